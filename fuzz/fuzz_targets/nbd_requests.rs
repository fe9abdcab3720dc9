//! Bytes of a client as NBD requests, against a volume in memory. The first byte chooses headers
//! and the order in which tasks run.
#![no_main]

#[path = "../../crates/gateway/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [first, script @ ..] = bytes {
        support::cases::requests(*first, u64::from(first / 3), script);
    }
});
