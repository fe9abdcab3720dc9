//! What a request takes from the allocator in steady state, and how many locks it takes, on the
//! whole way: a real node in this process, with the server, turns at the device, the engine, and a file as the device.
//!
//! On one core hardly anything could be locked that another thread wants. So requests are also counted on two cores at the same time, each
//! with a volume and a client of its own, and behind a connection that began on the wrong core.
//!
//! A checkpoint takes memory: more than a hundred times from the allocator, and a few times for each map node. The device is so
//! large that none comes because a journal is full, and a single one, after a while without writes, may fall into the reads.
//!
//! All threads are counted. The client has all its memory before the counting begins, so what is counted is the node's,
//! with what it does in the background. That goes by the clock: so windows of requests are counted, and what every window
//! has is the requests' own.

#![expect(clippy::disallowed_methods, reason = "a real node takes real time")]

#[allow(dead_code)]
#[path = "../node/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "../node/native/client.rs"]
mod native;
#[allow(dead_code)]
#[path = "../node/support.rs"]
mod support;

mod load;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flagstone_platform::locks;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use flagstone::node::SchedulePolicy;
use flagstone_wire::Status;
use load::{DIVIDED_READS, DIVIDED_WRITES, Kind, Load, Served, rounds};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Windows in which requests are counted.
const WINDOWS: usize = 8;
/// Of which so many have to be without anything: a cost that comes with every few hundred requests must not hide in the others.
const CLEAN_MIN: usize = 4;
/// Where windows take long, as of requests that wait, or segments are laid out meanwhile: what the background does by the clock then falls into most of them.
const CLEAN_MIN_LONG: usize = 1;
/// Requests before them.
const WARM_UP: u64 = 8_192;

/// Requests of one kind. They cost nothing, so there is a window without anything; and all windows together have no more than
/// the background may take.
struct Case {
    name: &'static str,
    kind: Kind,
    depth: u64,
    /// Requests in a window.
    requests: u64,
    /// Segments that may be laid out meanwhile.
    segments: u64,
    /// Most wait for their turns.
    waits: bool,
}

impl Case {
    /// What the device, if it is divided, has to do for the windows of one client, counting each request as an operation of one block.
    fn device_seconds(&self) -> f64 {
        let rate = match self.kind {
            Kind::Read(_) => DIVIDED_READS,
            Kind::Write(_) | Kind::WriteDurable | Kind::Flush => DIVIDED_WRITES,
        };
        (self.requests * WINDOWS as u64) as f64 / rate as f64
    }
}

/// What the background may take in all windows together: a checkpoint, when nothing has been written for a while, lists that
/// grow, a task that somebody elsewhere wakes.
const BACKGROUND_ALLOCATIONS_MAX: u64 = 400;
/// A segment that is laid out is 512 turns at the device, with two each. Where requests use up segments, that goes on beside them at their own pace on some
/// machines, and at once on others: then no window may be without it. There are fewer of these than requests.
const SEGMENT_ALLOCATIONS: u64 = 2 * 512;
const BACKGROUND_LOCKS_MAX: u64 = 20;

/// How much there may be in windows.
struct Most {
    /// So many windows have to be clean,
    clean_min: usize,
    /// which are those with no more than this: of less than one for each request.
    clean_max: u64,
    /// In all together.
    all_max: u64,
}

/// Judges what was counted in each window of so many requests, and says what is too much.
fn judge(what: &str, requests: u64, counts: &[u64], most: &Most) -> Option<String> {
    let Most {
        clean_min,
        clean_max,
        all_max,
    } = *most;
    let line = format!(
        "{what} in windows of {requests} requests: {counts:?}; {clean_min} must have {clean_max} at most, and all together {all_max}"
    );
    println!("{line}");
    assert!(
        clean_max < requests,
        "what each request has would be let through"
    );
    let clean = counts.iter().filter(|count| **count <= clean_max).count();
    (clean < clean_min || counts.iter().sum::<u64>() > all_max).then_some(line)
}

/// What is counted is the whole process's: only one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has each client ask for each case, and says what is too much.
fn count(loads: &mut [Load], cases: &[Case]) -> Vec<String> {
    count_behind(WARM_UP, loads, cases)
}

/// The same behind so many requests of a block.
fn count_behind(warm_up: u64, loads: &mut [Load], cases: &[Case]) -> Vec<String> {
    let clients = loads.len() as u64;
    let mut failures = Vec::new();
    for case in cases {
        rounds(loads, case.kind, case.depth, warm_up / case.kind.weight());
        let (mut allocations, mut taken) = ([0; WINDOWS], [0; WINDOWS]);
        for window in 0..WINDOWS {
            let (region, before) = (Region::new(ALLOCATOR), locks::taken());
            rounds(loads, case.kind, case.depth, case.requests);
            let stats = region.change();
            taken[window] = locks::taken() - before;
            allocations[window] = (stats.allocations + stats.reallocations) as u64;
        }
        let requests = case.requests * clients;
        // Each core has a background.
        let rest_max = BACKGROUND_ALLOCATIONS_MAX + case.segments * SEGMENT_ALLOCATIONS;
        let clean_min = match case.segments > 0 || case.waits {
            false => CLEAN_MIN,
            true => CLEAN_MIN_LONG,
        };
        failures.extend(judge(
            &format!("{}, {clients} clients, allocations", case.name),
            requests,
            &allocations,
            &Most {
                clean_min,
                clean_max: case.segments * SEGMENT_ALLOCATIONS / WINDOWS as u64 * clients,
                all_max: rest_max * clients,
            },
        ));
        failures.extend(judge(
            &format!("{}, {clients} clients, locks", case.name),
            requests,
            &taken,
            &Most {
                clean_min: CLEAN_MIN,
                clean_max: 0,
                all_max: BACKGROUND_LOCKS_MAX * clients,
            },
        ));
    }
    failures
}

#[test]
fn requests_take_no_memory_and_no_lock() {
    let _alone = alone();
    let began = (Region::new(ALLOCATOR), locks::taken());
    let node = Served::start(1);
    let token = node.create("disk", 0);
    let load = node.native("disk", &token, 0);
    assert!(began.0.change().allocations > 0, "allocations are counted");
    assert!(locks::taken() > began.1, "locks are counted");
    let failures = count(&mut [load], &cases());
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Both cores work at the same time, each for a client of its own; and what the device is asked for is traced.
#[test]
fn nor_do_they_on_two_cores() {
    let _alone = alone();
    let node = Served::traced(2);
    let mut loads = ["here", "there"].into_iter().zip(0..).map(|(name, core)| {
        let token = node.create(name, core);
        assert_eq!(node.core_of(name), core);
        node.native(name, &token, core)
    });
    let mut loads = [(); 2].map(|()| loads.next().expect("two"));
    let failures = count(&mut loads, &fewer_cases());
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A core passes no request of the native protocol on: it says where the volume is. A connection by NBD, which begins on the first core, goes to
/// the volume's, and what comes then costs as much as that of one that began there.
#[test]
fn nor_behind_a_connection_that_began_on_the_wrong_core() {
    let _alone = alone();
    let node = Served::start(2);
    let token = node.create("there", 1);
    assert_eq!(node.core_of("there"), 1);
    let mut wrong = node.connect(0);
    let answer = wrong.open("there", &token, 0);
    assert_eq!(answer.status(), Status::Moved);
    let there = wrong.addresses[1];
    assert_eq!(answer.moved_to(), there);
    drop(wrong);
    node.create("here", 0);
    let mut loads = [node.nbd("here"), node.nbd("there")];
    let failures = count(&mut loads, &fewer_cases());
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The device is divided, and most requests wait for their turns in the volume's queue: for the device's rate, and of one volume for its own limit.
#[test]
fn nor_while_they_wait_for_their_turns() {
    let _alone = alone();
    let node = Served::start(1);
    let tokens = ["plain", "limited"].map(|name| (name, node.create(name, 0)));
    let mut loads = tokens.map(|(name, token)| node.native(name, &token, 0));
    let mut failures = Vec::new();
    for policy in [SchedulePolicy::Deficit, SchedulePolicy::Strict] {
        for cases in [queued_reads(), queued_writes()] {
            // While nobody waits for the device, so that it takes no longer than it must.
            node.divide(None);
            node.limit("limited", None);
            let kinds = cases.iter().rev().map(|case| (case.kind, case.depth));
            for (kind, depth) in [(LARGE, 4)].into_iter().chain(kinds) {
                rounds(&mut loads, kind, depth, WARM_UP / kind.weight());
            }
            node.settle();
            node.limit("limited", Some(DIVIDED_WRITES / 2));
            node.divide(Some(policy));
            let began = Instant::now();
            failures.extend(count_behind(QUEUED_WARM_UP, &mut loads, &cases));
            let took = began.elapsed();
            // All of it, by the device's ceiling: had nothing waited it would have been quicker.
            let due = loads.len() as f64 * cases.iter().map(Case::device_seconds).sum::<f64>();
            assert!(took.as_secs_f64() > due / 2.0, "{took:?}, not {due} s");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Leaves a volume in pieces that are read in one go.
const LARGE: Kind = Kind::Write(64 << 10);

/// Requests of a block before the windows of those that wait.
const QUEUED_WARM_UP: u64 = 256;

fn queued(name: &'static str, kind: Kind, depth: u64, requests: u64) -> Case {
    Case {
        name,
        kind,
        depth,
        requests,
        segments: 0,
        waits: true,
    }
}

/// Also such as are cut into parts with turns of their own.
fn queued_reads() -> Vec<Case> {
    vec![
        queued("queued 4 KiB reads", Kind::Read(4096), 32, 320),
        queued("queued 512 B reads", Kind::Read(512), 32, 320),
        queued("queued 256 KiB reads", Kind::Read(256 << 10), 4, 16),
    ]
}

/// Also such as pay their part of a flush. The small ones come first, while nearly each block has its delta already.
fn queued_writes() -> Vec<Case> {
    vec![
        queued("queued 512 B writes", Kind::Write(512), 32, 160),
        queued("queued 4 KiB writes", Kind::Write(4096), 32, 160),
        queued("queued durable writes", Kind::WriteDurable, 32, 160),
    ]
}

/// What differs most, and less often.
fn fewer_cases() -> Vec<Case> {
    let all = cases().into_iter();
    let fewer = all.enumerate().filter(|(at, _)| FEWER.contains(at));
    fewer
        .map(|(_, case)| Case {
            requests: case.requests / if case.segments > 0 { 1 } else { 4 },
            ..case
        })
        .collect()
}

/// 4 KiB reads and writes, durable writes, small ones and large ones, several at a time.
const FEWER: [usize; 6] = [1, 3, 5, 7, 10, 11];

fn cases() -> Vec<Case> {
    let case = |name, kind, depth, requests| Case {
        name,
        kind,
        depth,
        requests,
        segments: 0,
        waits: false,
    };
    use Kind::{Read, Write, WriteDurable as Durable};
    vec![
        case("4 KiB reads, 1 at a time", Read(4096), 1, 2_000),
        case("4 KiB reads, 32 at a time", Read(4096), 32, 8_000),
        case("512 B reads, 32 at a time", Read(512), 32, 8_000),
        case("256 KiB reads, 4 at a time", Read(256 << 10), 4, 400),
        case("4 KiB writes, 1 at a time", Write(4096), 1, 2_000),
        case("4 KiB writes, 32 at a time", Write(4096), 32, 8_000),
        case("durable writes, 1 at a time", Durable, 1, 200),
        case("durable writes, 32 at a time", Durable, 32, 1_600),
        // Of what the durable ones have left: nothing, and of the unstable ones before them.
        case("flushes, 8 at a time", Kind::Flush, 8, 400),
        case("512 B writes, 1 at a time", Write(512), 1, 800),
        // A delta comes or goes with each, so nodes of the map have an entry more or less.
        case("512 B writes, 32 at a time", Write(512), 32, 1_600),
        Case {
            // 200 MiB.
            segments: 2,
            ..case("64 KiB writes, 4 at a time", Write(64 << 10), 4, 400)
        },
        // It reads what the writes before have left in pieces of 64 KiB.
        case("256 KiB in pieces", Read(256 << 10), 4, 400),
    ]
}
