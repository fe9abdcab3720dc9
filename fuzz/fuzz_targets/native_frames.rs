//! Any bytes as any header or body of the native protocol, as a server and as a client read them. The
//! first byte chooses which.
#![no_main]

#[path = "../../crates/wire/tests/support/cases.rs"]
mod cases;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cases::any(bytes));
