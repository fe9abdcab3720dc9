//! Any bytes as the stream of a snapshot, as `flagstone snapshot receive` and a node read it. The first byte
//! chooses in what pieces they come, and whether checksums are made right.
#![no_main]

#[path = "../../crates/wire/tests/support/streams.rs"]
mod streams;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| streams::any(bytes));
