//! What a real node shows at `/metrics`.

use std::collections::BTreeSet;

use flagstone::metrics::render;
use flagstone::node::MetricsSnapshot;

use crate::support::Scene;

/// The names in the table under "Metrics": `flagstone_core_a`, `_b` means `flagstone_core_b` too.
fn documented() -> BTreeSet<String> {
    let text = include_str!("../../../../docs/operating.md");
    let (_, section) = text.split_once("\n## Metrics\n").expect("a section");
    let section = section.split("\n## ").next().expect("it ends");
    let mut names = BTreeSet::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cell = row.split(" |").next().expect("a cell");
        let mut group = String::new();
        for word in cell.split('`').filter(|word| word.contains('_')) {
            let name = match word.strip_prefix('_') {
                Some(rest) => format!("{group}_{rest}"),
                None => word.to_owned(),
            };
            group = name.split('_').take(2).collect::<Vec<_>>().join("_");
            assert!(names.insert(name.clone()), "{name} is documented twice");
        }
    }
    names
}

#[test]
fn every_series_is_documented_and_none_else() {
    let scene = Scene::new();
    let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeSet<String> = types
        .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
        .collect();
    let documented = documented();
    let missing: Vec<_> = shown.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/operating.md: {missing:?}");
    let gone: Vec<_> = documented.difference(&shown).collect();
    assert!(gone.is_empty(), "in docs/operating.md, not shown: {gone:?}");
}

#[test]
fn nothing_is_shown_under_two_names() {
    let scene = Scene::new();
    let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
    let plain = |name: &str| {
        let name = name.trim_end_matches("_total").trim_end_matches("_seconds");
        name.trim_end_matches("_ns")
            .replace("corrupt_blocks", "checksum_errors")
    };
    let mut seen = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().expect("a name");
        assert!(seen.insert(plain(name)), "{name} is there twice");
    }
}

/// One message for volumes and one for each device.
#[test]
fn a_scrape_asks_each_core_once_for_each_device() {
    let scene = Scene::new();
    let messages = |snapshot: &MetricsSnapshot| {
        let more = &snapshot.cores[0].more;
        let found = more.iter().find(|value| value.name == "messages");
        found.expect("counted").value
    };
    let first = scene.ask(|node| node.metrics()).expect("answered");
    let second = scene.ask(|node| node.metrics()).expect("answered");
    assert_eq!(messages(&second) - messages(&first), 2.0);
}
