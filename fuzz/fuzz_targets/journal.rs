//! A journal group: its header from any bytes, and records of any bytes in a group with a right hash.

#![no_main]

use flagstone_device::format::group::{check_hash, decode_header};
use flagstone_device::format::record::decode_units;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = decode_header(data) {
        assert!(header.block_count > 0);
    }
    let _ = check_hash(data);
    let Ok(units) = decode_units(data) else {
        return;
    };
    let mut written = Vec::new();
    for unit in &units {
        for (index, record) in unit.iter().enumerate() {
            record.encode(index + 1 < unit.len(), &mut written);
        }
    }
    assert_eq!(
        decode_units(&written).expect("what we write we can read"),
        units
    );
});
