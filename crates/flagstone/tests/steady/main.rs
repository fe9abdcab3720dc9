//! What a request of the native protocol takes from the allocator in steady state, and how many locks it takes, on the
//! whole way: a real node in this process, with the server, turns at the device, the engine, and a file as the device.
//!
//! A checkpoint takes memory: more than a hundred times from the allocator, and a few times for each map node. The device is so
//! large that none comes because a journal is full, and a single one, after a while without writes, may fall into the reads.
//!
//! All threads are counted. The client has all its memory before the counting begins, so what is counted is the node's,
//! with what it does in the background. That goes by the clock: so windows of requests are counted, and what every window
//! has is the requests' own.

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

use flagstone_platform::locks;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use load::{Kind, Load};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Windows in which requests are counted.
const WINDOWS: usize = 8;
/// Requests before them.
const WARM_UP: u64 = 8_192;

/// Requests of one kind, and what each may cost: in the window in which they cost least, and once more in all windows with
/// what the background may add.
struct Case {
    name: &'static str,
    kind: Kind,
    depth: u64,
    /// Requests in a window.
    requests: u64,
    allocations_max: f64,
    locks_max: f64,
    /// Segments that may be laid out meanwhile.
    segments: u64,
}

/// What the background may take in all windows together: a checkpoint, when nothing has been written for a while, lists that
/// grow, a task that somebody elsewhere wakes.
const BACKGROUND_ALLOCATIONS_MAX: u64 = 400;
/// A segment that is laid out is 512 turns at the device, with two each.
const SEGMENT_ALLOCATIONS: u64 = 2 * 512;
const BACKGROUND_LOCKS_MAX: u64 = 40;

/// In most runs writes have windows without any allocation. In some, each window has one for some hundred writes: lists of freed blocks, which go
/// round and have each to become as large as what was freed between two flushes.
const RARELY: f64 = 0.01;

/// Judges what was counted in each window, and says what is too much.
fn judge(case: &Case, what: &str, counts: &[u64], each_max: f64, rest_max: u64) -> Option<String> {
    let requests = case.requests as f64;
    let least = counts.iter().copied().min().unwrap_or(0) as f64 / requests;
    let all = counts.iter().sum::<u64>() as f64;
    let line = format!(
        "{}: {what} for each: {least:.4} at least, {each_max} allowed, and {rest_max} more for all",
        case.name
    );
    println!("{line}; in windows of {}: {counts:?}", case.requests);
    let all_max = each_max * requests * counts.len() as f64 + rest_max as f64;
    (least > each_max || all > all_max).then_some(line)
}

#[test]
fn requests_take_no_memory_and_no_lock() {
    let began = (Region::new(ALLOCATOR), locks::taken());
    let mut load = Load::start();
    assert!(began.0.change().allocations > 0, "allocations are counted");
    assert!(locks::taken() > began.1, "locks are counted");
    let mut failures = Vec::new();
    for case in cases() {
        load.rounds(case.kind, case.depth, WARM_UP / case.kind.weight());
        let (mut allocations, mut taken) = ([0; WINDOWS], [0; WINDOWS]);
        for window in 0..WINDOWS {
            let (region, before) = (Region::new(ALLOCATOR), locks::taken());
            load.rounds(case.kind, case.depth, case.requests);
            let stats = region.change();
            taken[window] = locks::taken() - before;
            allocations[window] = (stats.allocations + stats.reallocations) as u64;
        }
        failures.extend(judge(
            &case,
            "allocations",
            &allocations,
            case.allocations_max,
            BACKGROUND_ALLOCATIONS_MAX + case.segments * SEGMENT_ALLOCATIONS,
        ));
        failures.extend(judge(
            &case,
            "locks",
            &taken,
            case.locks_max,
            BACKGROUND_LOCKS_MAX,
        ));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn cases() -> Vec<Case> {
    let case = |name, kind, depth, requests, allocations_max| Case {
        name,
        kind,
        depth,
        requests,
        allocations_max,
        locks_max: 0.0,
        segments: 0,
    };
    use Kind::{Read, Write, WriteDurable as Durable};
    vec![
        case("4 KiB reads, 1 at a time", Read(4096), 1, 2_000, 0.0),
        case("4 KiB reads, 32 at a time", Read(4096), 32, 8_000, 0.0),
        case("512 B reads, 32 at a time", Read(512), 32, 8_000, 0.0),
        case("256 KiB reads, 4 at a time", Read(256 << 10), 4, 400, 0.0),
        case("4 KiB writes, 1 at a time", Write(4096), 1, 2_000, RARELY),
        case("4 KiB writes, 32 at a time", Write(4096), 32, 8_000, RARELY),
        case("durable writes, 1 at a time", Durable, 1, 200, RARELY),
        case("durable writes, 32 at a time", Durable, 32, 1_600, RARELY),
        // A delta comes and goes with each, so nodes of the map become larger and smaller.
        case("512 B writes, 32 at a time", Write(512), 32, 1_600, 0.1),
        Case {
            // 200 MiB.
            segments: 2,
            ..case(
                "64 KiB writes, 4 at a time",
                Write(64 << 10),
                4,
                400,
                RARELY,
            )
        },
        // It reads what the writes before have left in pieces of 64 KiB.
        case("256 KiB in pieces", Read(256 << 10), 4, 400, 0.0),
    ]
}
