//! What a request of the native protocol takes from the allocator in steady state, on the whole way: a real node in this
//! process, with the server, turns at the device, the engine, and a file as the device.
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

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use load::{Kind, Load};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Windows in which requests are counted.
const WINDOWS: usize = 8;
/// Requests before them.
const WARM_UP: u64 = 8_192;

/// Requests of one kind, and what they may cost.
struct Case {
    name: &'static str,
    kind: Kind,
    depth: u64,
    /// Requests in a window.
    requests: u64,
    /// Allocations in the window that has the fewest.
    least_max: usize,
    /// Allocations for each thousand requests, over all windows.
    per_thousand_max: f64,
}

#[test]
fn requests_take_no_memory() {
    let mut load = Load::start();
    let mut failures = Vec::new();
    for case in cases() {
        load.rounds(case.kind, case.depth, WARM_UP / case.kind.weight());
        let windows: Vec<usize> = (0..WINDOWS)
            .map(|_| {
                let region = Region::new(ALLOCATOR);
                load.rounds(case.kind, case.depth, case.requests);
                let stats = region.change();
                stats.allocations + stats.reallocations
            })
            .collect();
        let least = windows.iter().copied().min().unwrap_or(0);
        let asked = case.requests * WINDOWS as u64;
        let per_thousand = windows.iter().sum::<usize>() as f64 * 1000.0 / asked as f64;
        let line = format!(
            "{}: {least} in the least of {WINDOWS} windows of {} requests, {per_thousand:.2} in 1,000 requests",
            case.name, case.requests
        );
        println!("{line}; {windows:?}");
        if least > case.least_max || per_thousand > case.per_thousand_max {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn cases() -> Vec<Case> {
    let case = |name, kind, depth, requests, each_max: f64| Case {
        name,
        kind,
        depth,
        requests,
        least_max: (requests as f64 * each_max) as usize,
        per_thousand_max: each_max * 1000.0 + 1.0,
    };
    use Kind::{Read, Write, WriteDurable};
    vec![
        case("4 KiB reads, 1 at a time", Read(4096), 1, 2_000, 0.0),
        case("4 KiB reads, 32 at a time", Read(4096), 32, 8_000, 0.0),
        case("512 B reads, 32 at a time", Read(512), 32, 8_000, 0.0),
        case("256 KiB reads, 4 at a time", Read(256 << 10), 4, 400, 10.0),
        case("4 KiB writes, 1 at a time", Write, 1, 2_000, 16.0),
        case("4 KiB writes, 32 at a time", Write, 32, 8_000, 8.0),
        case("durable 4 KiB writes", WriteDurable, 1, 200, 21.0),
    ]
}
