//! Everything that the page store reads from its dvols.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    flagstone_pagestore::fuzz_decoders(data);
});
