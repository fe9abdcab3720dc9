//! A catalogue record of any bytes: refused, or understood and written again to the same meaning.

#![no_main]

use flagstone_device::format::catalogue::{CatalogueRecord, RECORD_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = CatalogueRecord::decode(data);
    let mut bytes = data.to_vec();
    bytes.resize(RECORD_BYTES, 0);
    if let Ok(record) = CatalogueRecord::decode(&bytes) {
        let mut written = Vec::new();
        CatalogueRecord::encode(record.as_ref(), &mut written);
        let again = CatalogueRecord::decode(&written).expect("what we write we can read");
        assert_eq!(again, record);
    }
});
