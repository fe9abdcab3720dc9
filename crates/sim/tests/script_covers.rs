//! The scripts that are crashed everywhere do all that an engine can do.
//!
//! What it can do is read from its source: every public asynchronous method of `Engine`, and every
//! counter of what it does by itself. One that is added has to be added to a script, or here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flagstone_device::engine::EngineCounters;
use flagstone_sim::workload::{Script, whole_script};

/// What the tally calls an operation by another name.
const OTHER_NAMES: [(&str, &str); 14] = [
    ("create_above", "create_with"),
    // The first is what a move does with its target, which is crashed everywhere in `tests/moves.rs`.
    ("begin_history", "set_epoch"),
    ("snapshot_at", "snapshot"),
    // So is this one, in `tests/moves/resumed.rs`.
    ("snapshot_between", "snapshot"),
    // A flush, or that.
    ("gain_room", "checkpoint"),
    ("clone_of", "clone"),
    ("clone_with", "clone"),
    ("write_with", "change with attributes"),
    ("deallocate_with", "change with attributes"),
    ("commit", "batch"),
    ("commit_ahead", "batch ahead"),
    // The same walk, which leaves more out. What quotas make of it: `tests/quotas.rs` of the filesystem.
    ("own_allocation", "allocation"),
    // With a cache, the runs' reads all go the same way.
    ("read_through", "read"),
    // With metadata or without, it is one operation.
    ("write_ex", "write"),
];

/// Not operations: each life of a run opens journals, each that ends in order stops them, and each look at
/// everything asks for metadata with data and without.
const OF_EVERY_LIFE: [&str; 5] = ["open", "open_sharing", "prepare", "stop", "metas_of"];

/// What takes two cores, and is crashed everywhere in `tests/hand_over.rs`.
const CRASHED_ELSEWHERE: [&str; 3] = ["hand_over", "take_over", "wait_for_changes"];

/// Counts of damage, which scripts without faults don't meet; the gauge of a checkpoint's time, which
/// goes with `checkpoints`; the scrub in the background, which begins after hours; segments that
/// are given back, for which the scripts' devices have too few (`tests/segments.rs` crashes there); what is written ahead, where a
/// device is a file; and what the
/// cache does, which scripts don't have: it changes nothing on the device (`tests/cache.rs`, and two of five random
/// runs). For how long a full ring held changes up is 0 wherever checkpoints keep up (`tests/rings.rs`), and
/// nobody gives the background turns here (`node/real/background.rs` of the binary, in the simulator, too).
const OTHER_COUNTERS: [&str; 16] = [
    "background_hurried",
    "background_waited_ns",
    "journal_full_ns",
    "prewritten_bytes",
    "segments_used_early",
    "read_errors",
    "corrupt_blocks",
    "bitmaps_lost",
    "scrub_findings",
    "scrubs",
    "checkpoint_ns",
    "segments_released",
    "cache_hits",
    "cache_misses",
    "cache_evictions",
    "cache_stale",
];

/// The tallies of both scripts.
fn tally() -> BTreeSet<String> {
    let mut done = BTreeSet::new();
    for script in Script::ALL {
        let whole = whole_script(script);
        assert_eq!(whole.failure, None, "{script:?}");
        done.extend(whole.tally.into_keys());
    }
    done
}

/// The public asynchronous methods of `Engine`.
fn operations() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/src/engine");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("the engine's source") {
        let text = fs::read_to_string(entry.expect("an entry").path()).unwrap_or_default();
        let methods = text
            .lines()
            .filter_map(|l| l.strip_prefix("    pub async fn "));
        found.extend(methods.filter_map(|l| Some(l.split_once(['(', '<'])?.0.to_owned())));
    }
    found
}

#[test]
fn the_scripts_do_every_operation_of_the_engine() {
    let (done, operations) = (tally(), operations());
    assert!(operations.len() > 20, "found only {operations:?}");
    for operation in operations {
        let left_out = OF_EVERY_LIFE.iter().chain(&CRASHED_ELSEWHERE);
        if left_out.into_iter().any(|name| *name == operation) {
            continue;
        }
        let other = OTHER_NAMES.iter().find(|(name, _)| *name == operation);
        let name = other.map_or(operation.as_str(), |(_, other)| other);
        assert!(
            done.contains(&format!("{name}: ok")),
            "no script does `{operation}`, or it never succeeds: {done:#?}"
        );
    }
}

#[test]
fn the_scripts_bring_about_all_that_the_engine_does_by_itself() {
    let done = tally();
    for (counter, _) in EngineCounters::default().list() {
        assert!(
            OTHER_COUNTERS.contains(&counter) || done.contains(&format!("counter {counter}")),
            "no script makes the engine count `{counter}`: {done:#?}"
        );
    }
    // A full device, and giving space back on it.
    for wanted in ["write: NoSpace", "deallocate: ok", "delete: ok"] {
        assert!(done.contains(wanted), "no script has `{wanted}`: {done:#?}");
    }
}
