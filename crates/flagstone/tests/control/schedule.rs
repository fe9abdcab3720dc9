//! `flagstone volume schedule`.

use flagstone::exit::Exit;
use serde_json::Value;

use crate::cli::{fails, good, json, run};
use crate::support::serve;

#[test]
fn schedules_are_set_shown_and_lifted() {
    let served = serve();
    good(&served, "volume create vm --size 1G");
    let schedule = |args: &str| format!("volume schedule vm {args}");
    assert_eq!(good(&served, &schedule("")), "volume vm: schedule none\n");
    assert_eq!(json(&served, &schedule("")), Value::Null);
    let set = "--every 1h --keep 24 --daily 7 --weekly 4 --monthly 12";
    let shown = "every 1h keep 24 daily 7 weekly 4 monthly 12; none taken yet, next 2026-11-24 00:00:00 UTC";
    let sentence = format!("volume vm: schedule {shown}\n");
    assert_eq!(good(&served, &schedule(set)), sentence);
    assert_eq!(good(&served, &schedule("")), sentence);
    assert!(good(&served, "volume show vm").contains(shown));
    let found = json(&served, &schedule(""));
    assert_eq!(found["schedule"]["every_s"], 3600);
    assert_eq!(found["schedule"]["monthly"], 12);
    assert_eq!(found["last_ns"], Value::Null);
    // As a whole: what isn't named is not kept from before.
    let found = json(&served, &schedule("--every 90m --weekly 2"));
    assert_eq!(found["schedule"]["every_s"], 5400);
    assert_eq!(found["schedule"]["keep"], 0);
    assert_eq!(
        good(&served, &schedule("--none")),
        "volume vm: schedule none\n"
    );
    for (args, exit, words) in [
        ("--every 1h", Exit::Usage, "keep nothing"),
        ("--every 30s --keep 1", Exit::Usage, "whole minutes"),
        ("--every 1h --keep 512", Exit::Usage, "at most 511"),
        ("--keep 3", Exit::Usage, "--every"),
        ("--every 1h --keep 3 --none", Exit::Usage, "--none"),
        ("--every soon --keep 3", Exit::Usage, "is no time"),
    ] {
        fails(&run(&served, &schedule(args)), exit, words);
    }
    let none = run(&served, "volume schedule no --every 1h --keep 3");
    fails(&none, Exit::NotFound, "no such volume");
}
