//! Volumes that arrive from other nodes, by what the bytes say: requests with right and wrong proofs, some damaged behind the proof. The first
//! byte chooses the order in which tasks run. No memory may stay behind, also none that only the allocator knows of.
#![no_main]

#[path = "../allocator.rs"]
mod allocator;
#[path = "../../crates/gateway/tests/native_support/mod.rs"]
mod native_support;
#[path = "../../crates/gateway/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [first, script @ ..] = bytes {
        allocator::keeps_nothing(|| {
            native_support::arrivals::arrivals(u64::from(*first), script);
        });
    }
});
