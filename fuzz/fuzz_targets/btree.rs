//! Pages of a tree, with any bytes behind a right header and without one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    flagstone_btree::fuzz_decoders(data);
    for magic in [b"FSBT\x01", b"FSBK\x01"] {
        flagstone_btree::fuzz_decoders(&[magic, data].concat());
    }
});
