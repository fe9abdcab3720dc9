//! Numbers that were made up, and what is said of them.

use super::*;
use crate::node::{Rates, SloLimit, SloPromise};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn took(count: u64, each_ns: u64) -> Took {
    Took {
        count,
        sum_ns: count * each_ns,
        p99_ns: each_ns * 3,
    }
}

/// A thousand reads of a millisecond each in a second, of which the device took 200 us.
fn sample() -> Measured {
    Measured {
        volume: "db".to_owned(),
        device: "fast".to_owned(),
        core: 1,
        interval_ns: SECOND,
        read: took(1000, MS),
        occupied_ns: SECOND,
        device_read: took(5000, MS / 5),
        device_in_flight: 1.5,
        core_busy: 0.2,
        ..Measured::default()
    }
}

fn kinds(measured: &Measured) -> Vec<(CauseKind, f64)> {
    let causes = causes(measured);
    causes
        .iter()
        .map(|cause| (cause.kind, cause.part))
        .collect()
}

fn cause(measured: &Measured, kind: CauseKind) -> Cause {
    let mut causes = causes(measured).into_iter();
    let found = causes.find(|cause| cause.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind:?}"))
}

fn noted(measured: &Measured) -> Vec<NoteKind> {
    notes(measured).iter().map(|note| note.kind).collect()
}

#[test]
fn parts_are_of_the_time_and_the_largest_comes_first() {
    let measured = sample();
    // The core worked for a fifth of the time, so it can't be what most of it was spent on.
    let expected = [
        (CauseKind::Rest, 0.6),
        (CauseKind::DeviceRead, 0.2),
        (CauseKind::Node, 0.2),
    ];
    assert_eq!(kinds(&measured), expected);
    let waiting = Measured {
        waited_ns: SECOND / 2,
        ..measured
    };
    let expected = [
        (CauseKind::Turn, 0.5),
        (CauseKind::DeviceRead, 0.2),
        (CauseKind::Node, 0.2),
        (CauseKind::Rest, 0.1),
    ];
    assert_eq!(kinds(&waiting), expected);
    let turn = cause(&waiting, CauseKind::Turn);
    assert_eq!(turn.mean_ns, MS / 2);
}

#[test]
fn never_more_than_the_operations_took() {
    let all = Measured {
        read: Took::default(),
        write: took(1000, MS),
        waited_ns: 900 * MS,
        journal_full_ns: 900 * MS,
        stable: 1000,
        device_flush: took(10, 50 * MS),
        ..sample()
    };
    let expected = [(CauseKind::Turn, 0.9), (CauseKind::JournalFull, 0.09)];
    assert_eq!(kinds(&all), expected);
    let too_much = Measured {
        waited_ns: u64::MAX,
        ..sample()
    };
    assert_eq!(kinds(&too_much), [(CauseKind::Turn, 1.0)]);
    // Reads that took less than the device takes for one came from memory: writes are not blamed for that.
    let cached = Measured {
        read: took(1000, MS / 10),
        write: took(1000, MS),
        ..sample()
    };
    let expected = [
        (CauseKind::Rest, 0.7091),
        (CauseKind::Node, 0.2),
        (CauseKind::DeviceRead, 0.0909),
    ];
    assert_eq!(kinds(&cached), expected);
}

#[test]
fn a_device_that_was_hardly_asked_is_not_to_blame() {
    let holes = Measured {
        device_read: took(10, MS / 5),
        ..sample()
    };
    let expected = [(CauseKind::Rest, 0.798), (CauseKind::Node, 0.2)];
    assert_eq!(kinds(&holes), expected);
}

#[test]
fn what_waits_for_flushes() {
    let measured = Measured {
        read: Took::default(),
        write: took(100, 4 * MS),
        flush: took(50, 2 * MS),
        stable: 100,
        device_write: took(400, MS),
        // They share them.
        device_flush: took(60, 2 * MS),
        ..sample()
    };
    let expected = [
        (CauseKind::Flush, 0.6),
        (CauseKind::DeviceWrite, 0.2),
        (CauseKind::Node, 0.2),
    ];
    assert_eq!(kinds(&measured), expected);
    let flush = cause(&measured, CauseKind::Flush);
    assert!(
        flush.says.contains("2.0ms on average (6.0ms"),
        "{}",
        flush.says
    );
    assert!(flush.advice.is_some());
    let write = cause(&measured, CauseKind::DeviceWrite);
    assert!(
        write.says.contains("writes of device 'fast'"),
        "{}",
        write.says
    );
    assert!(
        write.says.contains("1.5 operations in it"),
        "{}",
        write.says
    );
}

#[test]
fn a_flush_is_all_flushes_and_nobody_else_pays_for_it() {
    // With nothing to make durable it takes no time, however long the device takes for one.
    let nothing_new = Measured {
        flush: took(1000, 1000),
        device_flush: took(5, 40 * MS),
        ..sample()
    };
    let parts = kinds(&nothing_new);
    assert!(
        parts.iter().all(|(kind, _)| *kind != CauseKind::Flush),
        "{parts:?}"
    );
    // It waits for the one that is under way, and then for its own.
    let behind = Measured {
        read: Took::default(),
        flush: took(100, 20 * MS),
        device_flush: took(50, 11 * MS),
        core_busy: 0.02,
        ..sample()
    };
    assert_eq!(kinds(&behind), [(CauseKind::Flush, 1.0)]);
    // Stable writes that wait for flushes are not blamed on reads.
    let beside = Measured {
        read: took(100, 10 * MS),
        write: took(100, 10 * MS),
        stable: 100,
        device_flush: took(50, 30 * MS),
        device_read: took(100, 10 * MS),
        core_busy: 0.02,
        ..sample()
    };
    let expected = [(CauseKind::Flush, 0.5), (CauseKind::DeviceRead, 0.5)];
    assert_eq!(kinds(&beside), expected);
}

#[test]
fn a_full_journal() {
    let reads = Measured {
        journal_full_ns: 700 * MS,
        checkpoints: 1,
        ..sample()
    };
    let parts = kinds(&reads);
    assert!(
        parts
            .iter()
            .all(|(kind, _)| *kind != CauseKind::JournalFull),
        "only changes wait"
    );
    // Thirty-two at a time.
    let measured = Measured {
        read: Took::default(),
        write: took(1000, 32 * MS),
        ..reads
    };
    let full = cause(&measured, CauseKind::JournalFull);
    assert_eq!(full.part, 0.7);
    assert!(full.says.contains("1 checkpoint did"), "{}", full.says);
}

#[test]
fn why_turns_are_waited_for() {
    let waiting = Measured {
        waited_ns: SECOND / 2,
        used: Some(0.25),
        promised: Some(0.25),
        device_used: Some(0.99),
        ..sample()
    };
    let said = |measured: &Measured| {
        let turn = cause(measured, CauseKind::Turn);
        format!("{}|{}", turn.says, turn.advice.unwrap_or_default())
    };
    let limited = Measured {
        limited_ns: SECOND * 2 / 5,
        slo: Slo {
            limit: SloLimit {
                reads: Some(1000),
                ..SloLimit::default()
            },
            ..Slo::default()
        },
        ..waiting.clone()
    };
    let text = said(&limited);
    assert!(
        text.contains("limit (reads=1000) held it back for 40%"),
        "{text}"
    );
    assert!(text.contains("volume slo db --limit none"), "{text}");
    let undivided = Measured {
        used: None,
        promised: None,
        ..limited.clone()
    };
    assert!(said(&undivided).contains("limit (reads=1000)"));
    // Without a limit of its own it is a move that holds it back.
    let moved = Measured {
        slo: Slo::default(),
        ..limited.clone()
    };
    let text = said(&moved);
    assert!(
        text.contains("being moved") && text.contains("for 40% of the time"),
        "{text}"
    );
    assert!(text.contains("volume move db --status"), "{text}");
    // A little of the time it was its limit, but most of it something else.
    let seldom = Measured {
        limited_ns: SECOND / 5,
        ..limited
    };
    assert!(said(&seldom).contains("close to its ceiling"));
    // Half of all waiting is what counts, not half of the interval.
    let at_once = Measured {
        occupied_ns: SECOND / 4,
        ..seldom
    };
    assert!(said(&at_once).contains("limit (reads=1000)"));

    let greedy = Measured {
        greedy: vec![DeviceUser {
            volume: "batch".to_owned(),
            part: 0.7,
            over: Some(0.45),
        }],
        ..waiting.clone()
    };
    let text = said(&greedy);
    assert!(
        text.contains("used 25% of the device and is promised 25% (share 1)"),
        "{text}"
    );
    assert!(text.contains("'batch' (45% over its promise)"), "{text}");
    assert!(
        text.contains("slo db --share 2`), or give 'batch' a limit"),
        "{text}"
    );

    let full = said(&waiting);
    assert!(full.contains("close to its ceiling (99% of it)"), "{full}");
    assert!(full.contains("or raise the ceiling"), "{full}");

    let strict = Measured {
        policy: SchedulePolicy::Strict,
        device_used: Some(0.4),
        slo: Slo {
            promise: SloPromise::Floor(Rates {
                reads: 9,
                writes: 8,
            }),
            ..Slo::default()
        },
        ..waiting.clone()
    };
    let text = said(&strict);
    assert!(
        text.contains("(floor reads=9 writes=8). It has used its promise up, and with strict"),
        "{text}"
    );
    let command = "`flagstone volume slo db --floor reads=18,writes=16`";
    assert!(text.contains(command), "{text}");
    // What it may not exceed would keep the node from promising more.
    let limited = Measured {
        slo: Slo {
            limit: SloLimit {
                reads: Some(12),
                ..SloLimit::default()
            },
            ..strict.slo
        },
        ..strict.clone()
    };
    let text = said(&limited);
    assert!(text.contains("reads=18,writes=16 --limit none`"), "{text}");
    // Else it gets what others leave, so a used promise holds nobody back.
    let free = Measured {
        policy: SchedulePolicy::Deficit,
        ..strict
    };
    let text = said(&free);
    assert!(
        text.contains("used 40% of the device, so it waits only while"),
        "{text}"
    );

    let broken = Measured {
        missed: 0.3,
        used: Some(0.2),
        ..greedy.clone()
    };
    let text = said(&broken);
    assert!(text.contains("for 30% of the time it got less"), "{text}");
    assert!(
        text.contains("the ceiling of device 'fast' is more"),
        "{text}"
    );
    let no_core = Measured {
        core_busy: 0.95,
        ..broken.clone()
    };
    assert!(said(&no_core).contains("core 1 is busy 95%"));
    // For a moment, while it got what it was promised on the whole.
    let moment = Measured {
        used: Some(0.25),
        ..broken
    };
    assert!(said(&moment).contains("'batch' (45% over its promise)"));

    // Others are greedy, but it has not used what it may.
    let bursts = Measured {
        used: Some(0.1),
        ..greedy
    };
    let text = said(&bursts);
    assert!(text.contains("come in bursts"), "{text}");
    assert!(!text.contains("batch"), "{text}");

    let undivided = Measured {
        used: None,
        promised: None,
        ..waiting
    };
    assert!(said(&undivided).contains("nothing has to any more"));
}

/// What looks like bursts, or like a ceiling that is too high, is a core that other programs keep from its work.
#[test]
fn a_core_that_comes_late() {
    let bursts = Measured {
        waited_ns: SECOND / 2,
        used: Some(0.1),
        promised: Some(0.25),
        device_used: Some(0.1),
        ..sample()
    };
    let missed = Measured {
        missed: 0.3,
        ..bursts.clone()
    };
    // One that keeps many requests waiting gets what there was time for, and wants more.
    let greedy = Measured {
        waited_ns: SECOND,
        used: Some(0.75),
        promised: Some(0.25),
        device_used: Some(0.75),
        ..sample()
    };
    for on_time in [bursts.clone(), missed, greedy] {
        let turn = cause(&on_time, CauseKind::Turn);
        assert!(!turn.says.contains("core"), "{}", turn.says);
        let late = Measured {
            core_late: 0.3,
            ..on_time
        };
        let turn = cause(&late, CauseKind::Turn);
        let says = "the core that it waits for, not the device: core 1 came late to what was due for 30% of the time";
        assert!(turn.says.contains(says), "{}", turn.says);
        let advice = turn.advice.unwrap_or_default();
        assert!(
            advice.contains("give core 1 a processor of its own"),
            "{advice}"
        );
        assert!(noted(&late).contains(&NoteKind::Core), "{:?}", notes(&late));
    }
    // It was late for a little of the time for which the volume waited.
    let little = Measured {
        core_late: 0.05,
        ..bursts.clone()
    };
    let turn = cause(&little, CauseKind::Turn);
    assert!(turn.says.contains("come in bursts"), "{}", turn.says);
    assert_eq!(noted(&little), []);
    let rest = cause(&little, CauseKind::Rest);
    assert!(
        rest.says.ends_with("core 1 came late for 5.0% of the time"),
        "{}",
        rest.says
    );
    // Others want what there is, and have it: the device is at its ceiling all the same.
    let full = Measured {
        core_late: 0.3,
        used: Some(0.25),
        device_used: Some(0.95),
        ..bursts
    };
    let turn = cause(&full, CauseKind::Turn);
    assert!(turn.says.contains("close to its ceiling"), "{}", turn.says);
}

#[test]
fn a_core_is_late_for_a_part_of_the_time_between_two_looks() {
    let look = |at_ns, late_ns| CoreLook {
        at_ns,
        late_ns,
        ..CoreLook::default()
    };
    let (then, now) = (look(5 * SECOND, 7 * SECOND), look(7 * SECOND, 8 * SECOND));
    assert_eq!(late_part(&then, &now), 0.5);
    assert_eq!(late_part(&then, &then), 0.0);
    assert_eq!(late_part(&then, &look(6 * SECOND, 11 * SECOND)), 1.0);
}

#[test]
fn the_node_itself() {
    let idle = cause(&sample(), CauseKind::Node);
    assert!(
        idle.says.contains("core 1, which is busy 20%"),
        "{}",
        idle.says
    );
    assert_eq!(idle.advice, None);
    assert_eq!(noted(&sample()), []);
    let busy = Measured {
        core_busy: 0.97,
        ..sample()
    };
    let node = cause(&busy, CauseKind::Node);
    assert!(
        node.says.contains("operations wait for it"),
        "{}",
        node.says
    );
    assert!(node.advice.is_some());
    assert_eq!(noted(&busy), [NoteKind::Core]);
}

#[test]
fn clients_that_ask_for_little() {
    let measured = Measured {
        occupied_ns: SECOND / 4,
        ..sample()
    };
    let notes = notes(&measured);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].kind, NoteKind::Client);
    assert!(
        notes[0].says.contains("for 75% of the time"),
        "{}",
        notes[0].says
    );
    let nothing = Measured {
        read: Took::default(),
        occupied_ns: 0,
        ..sample()
    };
    assert_eq!(causes(&nothing), []);
    assert_eq!(noted(&nothing), [NoteKind::Client]);
}

#[test]
fn a_device_that_hangs() {
    let measured = Measured {
        read: Took::default(),
        in_flight: 3,
        ..sample()
    };
    let notes = notes(&measured);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].kind, NoteKind::Stuck);
    assert!(
        notes[0].says.starts_with("3 operations under way"),
        "{}",
        notes[0].says
    );
    let slow = Measured {
        in_flight: 3,
        ..sample()
    };
    assert_eq!(noted(&slow), [], "others end");
}

#[test]
fn errors_and_broken_promises_come_first() {
    let measured = Measured {
        errors: vec![
            ErrorCount {
                kind: "no_space",
                count: 7,
            },
            ErrorCount {
                kind: "device",
                count: 1,
            },
        ],
        missed: 0.5,
        occupied_ns: 0,
        core_busy: 0.9,
        ..sample()
    };
    let expected = [
        NoteKind::Errors,
        NoteKind::Missed,
        NoteKind::Client,
        NoteKind::Core,
    ];
    assert_eq!(noted(&measured), expected);
    let says = &notes(&measured)[0].says;
    assert_eq!(says, "8 of 1000 operations failed: 7 no_space, 1 device");
}

#[test]
fn time_outside_of_operations() {
    let half = ServerLook {
        commands: 2000,
        commands_ns: 4 * SECOND,
        operations_ns: 2 * SECOND,
    };
    let little = ServerLook {
        operations_ns: 4 * SECOND - SECOND / 2,
        ..half
    };
    // Whatever the other protocol does.
    let busy = ServerLook {
        operations_ns: 100 * SECOND,
        ..half
    };
    for other in [ServerLook::default(), little, busy] {
        let by_nbd = Measured {
            nbd: half,
            native: other,
            ..sample()
        };
        let natively = Measured {
            nbd: other,
            native: half,
            ..sample()
        };
        for (measured, what) in [
            (by_nbd, "a command of NBD on core 1"),
            (natively, "a request of the native protocol on core 1"),
        ] {
            let notes = notes(&measured);
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert_eq!(notes[0].kind, NoteKind::Gateway);
            let says = &notes[0].says;
            assert!(says.contains(what), "{says}");
            assert!(says.contains("50% (1.0ms for each)"), "{says}");
        }
    }
    let both = Measured {
        nbd: half,
        native: half,
        ..sample()
    };
    assert_eq!(noted(&both), [NoteKind::Gateway, NoteKind::Gateway]);
    let neither = Measured {
        nbd: little,
        native: busy,
        ..sample()
    };
    assert_eq!(noted(&neither), []);
}

#[test]
fn nothing_measured_is_no_failure() {
    assert_eq!(causes(&Measured::default()), []);
    assert_eq!(noted(&Measured::default()), [NoteKind::Client]);
}
