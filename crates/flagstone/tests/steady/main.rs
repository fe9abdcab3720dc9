//! What a request of the native protocol takes from the allocator in steady state, and how many locks it takes, on the
//! whole way: a real node in this process, with the server, turns at the device, the engine, and a file as the device.
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

/// Requests of one kind, and what each may cost: in the window in which they cost least, and once more with a little for the
/// background over all windows.
struct Case {
    name: &'static str,
    kind: Kind,
    depth: u64,
    /// Requests in a window.
    requests: u64,
    allocations_max: f64,
    locks_max: f64,
}

/// What the background may add for each request, over all windows: a checkpoint or a flush may fall into them.
const BACKGROUND_MAX: f64 = 0.01;

/// Counts `what` in each window, and says what is too much.
fn judge(case: &Case, what: &str, counts: &[u64], each_max: f64) -> Option<String> {
    let each = |count: u64, windows: usize| count as f64 / (case.requests * windows as u64) as f64;
    let least = each(counts.iter().copied().min().unwrap_or(0), 1);
    let mean = each(counts.iter().sum(), counts.len());
    let line = format!(
        "{}: {what} for each: {least:.4} at least, {mean:.4} in the mean, {each_max} allowed",
        case.name
    );
    println!("{line}; in windows of {}: {counts:?}", case.requests);
    (least > each_max || mean > each_max + BACKGROUND_MAX).then_some(line)
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
        ));
        failures.extend(judge(&case, "locks", &taken, case.locks_max));
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
        // A flush takes one when it begins and one when it ends: one for each durable write, some in the background
        // for others. While another journal's flush is under way it looks every 10 us, with one each.
        locks_max: match kind {
            Kind::WriteDurable => 8.0,
            Kind::Write => 0.1,
            Kind::Read(_) => 0.0,
        },
    };
    use Kind::{Read, Write, WriteDurable};
    vec![
        case("4 KiB reads, 1 at a time", Read(4096), 1, 2_000, 0.0),
        case("4 KiB reads, 32 at a time", Read(4096), 32, 8_000, 0.0),
        case("512 B reads, 32 at a time", Read(512), 32, 8_000, 0.0),
        case("256 KiB reads, 4 at a time", Read(256 << 10), 4, 400, 9.5),
        case("4 KiB writes, 1 at a time", Write, 1, 2_000, 14.0),
        case("4 KiB writes, 32 at a time", Write, 32, 8_000, 7.5),
        case("durable 4 KiB writes", WriteDurable, 1, 200, 18.0),
    ]
}
