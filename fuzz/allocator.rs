//! Counts what Rust takes while a case runs. libFuzzer's own memory comes from elsewhere, and nothing runs beside a case.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What more is in use behind a case than before it.
fn kept_bytes(case: impl Fn()) -> usize {
    let region = Region::new(ALLOCATOR);
    case();
    let change = region.change();
    change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated)
}

/// Runs a case, which must give back all that it takes.
pub fn keeps_nothing(case: impl Fn()) {
    // What is made once for the whole process stays. The same case makes none of that again.
    if kept_bytes(&case) > 0 {
        let kept = kept_bytes(&case);
        assert_eq!(kept, 0, "bytes that nobody gives back");
    }
}
