//! Keys and values of filesystems, with any bytes behind a right beginning and without one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    flagstone_fs::fuzz_decoders(data);
    // A version, and each kind of file.
    for kind in 1..8 {
        flagstone_fs::fuzz_decoders(&[&[1, kind], data].concat());
    }
});
