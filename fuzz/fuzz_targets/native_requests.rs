//! Bytes of a client of the native protocol, against volumes in memory. The first byte chooses the order in which
//! tasks run, and whether the bytes are sent as they are or as frames that get past the checksums. No memory may stay behind,
//! also none that only the allocator knows of.
#![no_main]

#[path = "../../crates/gateway/tests/native_support/mod.rs"]
mod native_support;
#[path = "../../crates/gateway/tests/support/mod.rs"]
mod support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts what Rust takes. libFuzzer's own memory comes from elsewhere, and nothing runs beside a case.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What more is in use behind a case than before it.
fn kept_bytes(seed: u64, script: &[u8]) -> usize {
    let region = Region::new(ALLOCATOR);
    native_support::cases::requests(seed, script);
    let change = region.change();
    change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [first, script @ ..] = bytes {
        let seed = u64::from(*first);
        // What is made once for the whole process stays. The same case makes none of that again.
        if kept_bytes(seed, script) > 0 {
            let kept = kept_bytes(seed, script);
            assert_eq!(kept, 0, "bytes that nobody gives back");
        }
    }
});
