//! What a real node shows at `/metrics`.

use std::collections::BTreeSet;

use flagstone::metrics::render;
use flagstone::node::MetricsSnapshot;

use crate::filesystems::scene_with_files;
use crate::support::Scene;

/// The names in the table under "Metrics": `flagstone_core_a`, `_b` means `flagstone_core_b` too.
pub(crate) fn documented() -> BTreeSet<String> {
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
    let scene = scene_with_files();
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

/// What is no counter: all others must be, with the name of one.
const GAUGES: [&str; 31] = [
    "flagstone_build_info",
    "flagstone_core_holding_devices",
    "flagstone_device_cache_bytes",
    "flagstone_device_checkpoint_seconds",
    "flagstone_device_closed_journals",
    "flagstone_device_fenced",
    "flagstone_device_free_bytes",
    "flagstone_device_journal_used_bytes",
    "flagstone_device_map_memory_bytes",
    "flagstone_device_metadata_bytes",
    "flagstone_device_reserved_bytes",
    "flagstone_device_size_bytes",
    "flagstone_device_used_bytes",
    "flagstone_filesystem_files",
    "flagstone_filesystem_promised_ratio",
    "flagstone_filesystem_quota_bytes",
    "flagstone_filesystem_snapshots",
    "flagstone_filesystem_used_bytes",
    "flagstone_moves_running",
    "flagstone_moves_waiting",
    "flagstone_moves_held",
    "flagstone_native_connections",
    "flagstone_native_volumes_open",
    "flagstone_nfs_connections",
    "flagstone_pagestore_log_bytes",
    "flagstone_pagestore_log_used_bytes",
    "flagstone_schedule_last_taken_seconds",
    "flagstone_schedule_shortest_interval_seconds",
    "flagstone_schedule_volumes",
    "flagstone_volume_promised_ratio",
    "flagstone_volumes_unruled",
];

#[test]
fn counters_are_named_and_explained_as_such() {
    let scene = scene_with_files();
    let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("name and type");
        let expected = match GAUGES.contains(&name) {
            true => "gauge",
            false if name.ends_with("_seconds") => "histogram",
            false => "counter",
        };
        assert_eq!(kind, expected, "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
    }
    let mut helps = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').expect("name and help");
        assert!(help.ends_with('.'), "{name}: {help}");
        assert!(!help.contains("docs/"), "{name}: {help}");
        // Volumes, filesystems and devices count the same operations, volumes and filesystems the same turns.
        let firsts = [
            "flagstone_volume_",
            "flagstone_filesystem_operation",
            "flagstone_filesystem_bytes_",
            "flagstone_filesystem_errors_",
        ];
        let is_first = firsts.iter().any(|first| name.starts_with(first));
        assert!(
            is_first || helps.insert(help.to_owned()),
            "{name}: said twice: {help}"
        );
    }
}

#[test]
fn nothing_is_shown_under_two_names() {
    let scene = scene_with_files();
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
