//! Bytes of a client of the native protocol, against volumes in memory. The first byte chooses the order in which
//! tasks run, and whether the bytes are sent as they are or as frames that get past the checksums. No memory may stay behind,
//! also none that only the allocator knows of.
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
            native_support::cases::requests(u64::from(*first), script);
        });
    }
});
