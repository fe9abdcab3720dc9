//! Striped volumes on the command line: how they are shown, and what is said of them when they are made.

use serde_json::Value;

use crate::cli::{binary, good, json, ran};
use crate::support::serve;

#[test]
fn how_a_volume_is_striped_is_shown() {
    let served = serve();
    good(
        &served,
        "volume create hot --size 1G --stripes 3 --stripe-unit 256K",
    );
    let shown = good(&served, "volume show hot");
    assert!(
        shown.contains("3 in units of 256 KiB; core/journal 0/0 1/1 0/0"),
        "{shown}"
    );
    let stripe = &json(&served, "volume show hot")["stripe"];
    assert_eq!(stripe["unit_bytes"], 256 << 10);
    assert_eq!(stripe["members"].as_array().map(Vec::len), Some(3));
    good(&served, "volume create cold --size 1G");
    assert!(!good(&served, "volume show cold").contains("stripes"));
    // The first member's core, and how many others there are.
    let table = good(&served, "volume list");
    let core = |name: &str| {
        let row = table.lines().find(|row| row.starts_with(name));
        let row = row.expect("is listed").replace("  ", "\t");
        let cells = row.split('\t').filter(|cell| !cell.is_empty());
        cells.map(str::trim).nth(5).expect("a core").to_owned()
    };
    assert!(core("hot").ends_with("+2"), "{table}");
    assert!(!core("cold").contains('+'), "{table}");
    let listed = &json(&served, "volume list")["items"];
    assert_eq!(
        (&listed[0]["stripes"], &listed[1]["stripes"]),
        (&Value::Null, &3.into())
    );
}

#[test]
fn members_that_share_a_core_are_remarked_on() {
    let served = serve();
    let made = good(&served, "volume create wide --size 1G --stripes 4");
    let last = made.lines().last().expect("a line");
    assert!(
        last.starts_with("warning: its 4 parts share 2 cores: "),
        "{made}"
    );
    assert!(good(&served, "volume show wide").contains("4 parts share 2 cores"));
    let shown = json(&served, "volume create wider --size 1G --stripes 16");
    let warning = shown["stripe"]["warning"].as_str().expect("a warning");
    assert!(warning.contains("16 parts share 2 cores"), "{warning}");
    let made = good(&served, "volume create hot --size 1G --stripes 2");
    assert!(!made.contains("warning"), "{made}");
    let shown = json(&served, "volume show hot");
    assert!(shown["stripe"].get("warning").is_none(), "{shown}");
}

/// Before it is made, not only in the manual.
#[test]
fn what_stripes_do_not_promise_is_in_the_help() {
    let help = ran(binary()
        .args(["volume", "create", "--help"])
        .output()
        .expect("it runs"));
    let words: Vec<&str> = help.out.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains(
            "A write that crosses a border of stripe units may be there in part after a crash"
        ),
        "{words}"
    );
}
