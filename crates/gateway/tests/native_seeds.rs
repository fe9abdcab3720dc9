//! The inputs that fuzzing the native protocol starts from (`fuzz/seeds/`): they are what is written down here, and do what they are
//! kept for. With `FLAGSTONE_WRITE_SEEDS` set, the files are written anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flagstone_gateway::native::CloseReason;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::native_support::arrivals::arrivals;
use crate::native_support::cases::requests;

/// Compares a target's files with what they are to be; or writes them.
fn check_files(target: &str, seeds: &[(&str, Vec<u8>)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let folder = folder.join(target);
    if std::env::var_os("FLAGSTONE_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&folder).expect("a folder");
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes).expect("written");
        }
    }
    let files = fs::read_dir(&folder).expect("a folder of seeds");
    let files = files.map(|file| file.expect("an entry").file_name());
    let files: BTreeSet<String> = files.filter_map(|name| name.into_string().ok()).collect();
    let names: BTreeSet<String> = seeds.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, names, "{target}");
    for (name, bytes) in seeds {
        let kept = fs::read(folder.join(name)).expect("can be read");
        assert_eq!(kept, *bytes, "{target}/{name}");
    }
}

/// Order of the tasks as it comes, three requests in flight.
const IN_ORDER: u8 = 6;

// Of a script of arrivals: kind of a step, then what is done with it.
const BEGIN: u8 = 0;
const RUNS: u8 = 1;
const RESIZE: u8 = 2;
const SNAPSHOT: u8 = 3;
const FINISH: u8 = 4;
const SETTLE: u8 = 5;
const POINT: u8 = 6;
const AGAIN: u8 = 7;
const RIGHT: u8 = 0;
const WRONG_KEY: u8 = 6;
const WRONG_NUMBER: u8 = 7;
const FLIPPED: u8 = 5 << 3;
const CUT: u8 = 6 << 3;
const LONGER: u8 = 7 << 3;
const PAUSED: u8 = 1 << 6;
const STALE: u8 = 2 << 6;
const NO_SPACE: u8 = 3 << 6;

/// A step of each kind that makes sense.
fn steps(knobs: u8) -> Vec<Vec<u8>> {
    vec![
        // Id, epoch, length of its name, size, reserved, highest layer, attributes, snapshots.
        vec![BEGIN, knobs, 81, 9, 3, 64, 0, 4, 1, 8],
        // Data and zeros, each with where it lies and what it is.
        vec![RUNS, knobs, 3, 0, 110, 2, 113, 1, 2, 0],
        vec![RESIZE, knobs, 200],
        vec![SNAPSHOT, knobs, 5, 77, 2],
        // With a point.
        vec![SNAPSHOT, knobs, 6, 78, 3],
        vec![POINT, knobs, 4],
        // As the first; with something left.
        vec![AGAIN, knobs, 81, 9, 3, 64, 0, 4, 1, 8],
        vec![FINISH, knobs, 1],
        // Flags, device, volume.
        vec![SETTLE, knobs, 0, 1, 81],
    ]
}

/// The first eight steps, damaged in this way: of more wrong proofs a connection ends.
fn damaged(knobs: u8, place: u8, what: u8) -> Vec<u8> {
    let with = |step: Vec<u8>| [step, vec![place, what]].concat();
    let first = steps(knobs).into_iter().take(8);
    first.flat_map(with).collect()
}

fn arrival_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let script = |steps: Vec<Vec<u8>>| [vec![IN_ORDER], steps.concat()].concat();
    let settle = |knobs, flags, device| vec![SETTLE, knobs, flags, device, 82];
    vec![
        ("a_move", script(steps(RIGHT))),
        (
            "a_move_out_of_order",
            [vec![13], steps(PAUSED).concat()].concat(),
        ),
        (
            "each_thing_twice",
            script([steps(RIGHT), steps(RIGHT)].concat()),
        ),
        ("refused", script([steps(STALE), steps(NO_SPACE)].concat())),
        // One more, and the connection ends.
        (
            "wrong_keys",
            script(steps(WRONG_KEY).into_iter().take(8).collect()),
        ),
        (
            "guesses",
            script([steps(WRONG_NUMBER), steps(WRONG_KEY)].concat()),
        ),
        (
            "settled",
            script(vec![
                settle(RIGHT, flag::ABANDON, 1),
                settle(RIGHT, flag::CONFIRM, 1),
                settle(RIGHT, flag::FORKED | flag::ABANDON, 2),
                settle(WRONG_NUMBER, 0, 1),
                settle(WRONG_NUMBER, 0, 2),
            ]),
        ),
        // Behind the proof, and within it.
        ("flipped", [vec![IN_ORDER], damaged(FLIPPED, 6, 1)].concat()),
        (
            "flipped_proof",
            [vec![IN_ORDER], damaged(FLIPPED, 2, 1)].concat(),
        ),
        ("cut", [vec![IN_ORDER], damaged(CUT, 6, 0)].concat()),
        ("longer", [vec![IN_ORDER], damaged(LONGER, 0, 0)].concat()),
        (
            "nonsense",
            script(vec![
                // No id, too late an epoch, too long a name, more snapshots than layers.
                vec![BEGIN, RIGHT, 255, 9, 3, 64, 0, 4, 1, 8],
                vec![BEGIN, RIGHT, 81, 255, 3, 64, 0, 4, 1, 8],
                vec![BEGIN, RIGHT, 81, 9, 129, 64, 0, 4, 1, 8],
                vec![BEGIN, RIGHT, 81, 9, 3, 64, 0, 4, 1, 255],
                // No runs; in each other; within a block; beyond the end; of no bytes; zeros with metadata; too few bytes.
                vec![RUNS, RIGHT, 0, 0],
                vec![RUNS, RIGHT, 2, 0, 110, 255, 110, 0],
                vec![RUNS, RIGHT, 1, 254, 110, 0],
                vec![RUNS, RIGHT, 1, 253, 240, 0],
                vec![RUNS, RIGHT, 1, 0, 252, 0],
                // Of no bytes in the last block there is, and one behind it.
                vec![RUNS, RIGHT, 2, 253, 252, 1, 110, 0],
                vec![RUNS, RIGHT, 2, 253, 252, 254, 110, 0],
                vec![RUNS, RIGHT, 1, 0, 15, 0],
                vec![RUNS, RIGHT, 1, 0, 110, 255],
                vec![SNAPSHOT, RIGHT, 128, 77, 2],
                vec![FINISH, RIGHT, 255],
            ]),
        ),
        // So many wrong proofs that nothing is looked at any more, in a connection that has ended by then. Found by the fuzzer.
        (
            "guesses_as_it_ends",
            include_bytes!("../../../fuzz/seeds/native_arrivals/guesses_as_it_ends").to_vec(),
        ),
        (
            "as_many_runs_as_may_be",
            script(vec![
                [&[RUNS, RIGHT, 254][..], &[0, 1].repeat(512), &[0]].concat(),
                [&[RUNS, RIGHT, 255][..], &[0, 1].repeat(513), &[0]].concat(),
            ]),
        ),
    ]
}

#[test]
fn those_of_arrivals_do_what_they_are_kept_for() {
    let seeds = arrival_seeds();
    check_files("native_arrivals", &seeds);
    let came = |name: &str| {
        let (_, bytes) = seeds.iter().find(|(other, _)| *other == name).expect(name);
        let (first, script) = bytes.split_first().expect("not empty");
        arrivals(u64::from(*first), script)
    };
    let all = [
        Operation::Arrive,
        Operation::ArriveRuns,
        Operation::ArriveStep,
        Operation::ArriveStep,
        Operation::ArriveStep,
        Operation::ArriveStep,
        Operation::ArriveAgain,
        Operation::Arrived,
        Operation::Settle,
    ];
    let statuses = |name: &str| {
        let came = came(name);
        assert_eq!(came.reason, CloseReason::Finished, "{name}");
        let statuses = came.answered.into_iter().map(|(_, status)| status);
        (came.carried, statuses.collect::<Vec<_>>())
    };
    let all_twice = [all, all].concat();
    assert_eq!(
        statuses("a_move"),
        (all.to_vec(), vec![Status::Ok; all.len()])
    );
    let out_of_order = statuses("a_move_out_of_order");
    assert_eq!(out_of_order, (all.to_vec(), vec![Status::Ok; all.len()]));
    let twice = statuses("each_thing_twice");
    assert_eq!(twice, (all_twice.clone(), vec![Status::Ok; 2 * all.len()]));
    let errors = [[Status::StaleEpoch; 9], [Status::NoSpace; 9]].concat();
    assert_eq!(statuses("refused"), (all_twice, errors));
    assert_eq!(statuses("wrong_keys"), (vec![], vec![Status::Denied; 8]));
    let guesses = came("guesses");
    assert_eq!(
        (guesses.reason, guesses.carried.len()),
        (CloseReason::Denied, 0)
    );
    let late = came("guesses_as_it_ends");
    assert_eq!(late.reason, CloseReason::Finished);
    // Behind the eighth nothing is said of any.
    let counted = |wanted: Status| {
        let answered = late.answered.iter();
        answered.filter(|(_, status)| *status == wanted).count()
    };
    assert_eq!(counted(Status::Denied), 8);
    assert!(counted(Status::Busy) > 0);
    let settled = statuses("settled");
    assert_eq!(settled, (vec![Operation::Settle; 3], vec![Status::Ok; 5]));
    for name in ["flipped_proof", "cut", "longer", "nonsense"] {
        let (carried, statuses) = statuses(name);
        assert!(carried.is_empty(), "{name}: {carried:?}");
        assert!(!statuses.contains(&Status::Ok), "{name}: {statuses:?}");
    }
    // Of some another number is as good.
    let (flipped, _) = statuses("flipped");
    assert!(flipped.contains(&Operation::Arrive), "{flipped:?}");
    assert!(flipped.contains(&Operation::ArriveAgain), "{flipped:?}");
    let (carried, statuses) = statuses("as_many_runs_as_may_be");
    assert_eq!(carried, [Operation::ArriveRuns]);
    assert_eq!(statuses, [Status::Ok, Status::Invalid]);
}

/// A request as [`requests`] takes it: the header, and what follows it.
fn request(header: RequestHeader, rest: [u8; 4]) -> Vec<u8> {
    let mut bytes = header.encode().to_vec();
    bytes.extend(rest);
    bytes.resize(80, 48);
    bytes
}

fn request_seeds() -> Vec<(&'static str, Operation, Vec<u8>)> {
    let of = |operation, offset_bytes, len_bytes| RequestHeader {
        volume: VolumeNo(1),
        offset_bytes,
        len_bytes,
        ..RequestHeader::of(operation)
    };
    // What follows: which parts are as they came, how long the body is; of a payload of its own 16, of 4 KiB 32.
    let (none, short, block) = ([0, 0, 48, 48], [16, 0, 48, 48], [32, 0, 48, 48]);
    let write = request(of(Operation::Write, 4096, 0), short);
    let one = |operation, offset_bytes, len_bytes, rest| {
        request(of(operation, offset_bytes, len_bytes), rest)
    };
    let swap = one(Operation::CompareAndSwap, 4098, 14, [48, 0, 48, 48]);
    let mut epoch = of(Operation::SetEpoch, 0, 0);
    epoch.lsn.0 = 5;
    let ping = request(RequestHeader::of(Operation::Ping), short);
    let durable = RequestHeader {
        flags: flag::DURABLE,
        ..of(Operation::Write, 8192, 0)
    };
    let runs = [0, 4, 0, 0];
    [
        ("ping", Operation::Ping, vec![ping]),
        (
            "write",
            Operation::Write,
            vec![write.clone(), request(durable, block)],
        ),
        (
            "read",
            Operation::Read,
            vec![write.clone(), one(Operation::Read, 4000, 5000, none)],
        ),
        (
            "compare_and_swap",
            Operation::CompareAndSwap,
            vec![write.clone(), swap],
        ),
        (
            "zero",
            Operation::Zero,
            vec![write.clone(), one(Operation::Zero, 0, 8192, none)],
        ),
        (
            "deallocate",
            Operation::Deallocate,
            vec![one(Operation::Deallocate, 4096, 4096, none)],
        ),
        (
            "flush",
            Operation::Flush,
            vec![one(Operation::Flush, 0, 0, none)],
        ),
        (
            "read_metadata",
            Operation::ReadMetadata,
            vec![write.clone(), one(Operation::ReadMetadata, 0, 16384, none)],
        ),
        (
            "allocation",
            Operation::Allocation,
            vec![write.clone(), one(Operation::Allocation, 0, 65535, runs)],
        ),
        (
            "changed_since",
            Operation::ChangedSince,
            vec![write, one(Operation::ChangedSince, 0, 65535, runs)],
        ),
        (
            "resize",
            Operation::Resize,
            vec![one(Operation::Resize, 0, 32768, none)],
        ),
        (
            "reserve",
            Operation::Reserve,
            vec![one(Operation::Reserve, 0, 4096, none)],
        ),
        ("set_epoch", Operation::SetEpoch, vec![request(epoch, none)]),
        (
            "describe",
            Operation::Describe,
            vec![one(Operation::Describe, 0, 0, none)],
        ),
        (
            "close",
            Operation::Close,
            vec![one(Operation::Close, 0, 0, none)],
        ),
    ]
    .map(|(name, operation, requests)| {
        (
            name,
            operation,
            [vec![IN_ORDER], requests.concat()].concat(),
        )
    })
    .into()
}

#[test]
fn those_of_requests_do_what_they_are_kept_for() {
    let seeds = request_seeds();
    let files: Vec<(&str, Vec<u8>)> = seeds
        .iter()
        .map(|(name, _, bytes)| (*name, bytes.clone()))
        .collect();
    check_files("native_requests", &files);
    for (name, operation, bytes) in seeds {
        let (reason, counters) = requests(u64::from(bytes[0]), &bytes[1..]);
        assert_eq!(reason, CloseReason::Finished, "{name}");
        let counted = counters.operation(operation);
        assert_eq!(counted.failed, 0, "{name}");
        assert!(counted.answered > 0, "{name}");
    }
}
