//! A superblock of any bytes: refused, or understood and written again to the same meaning.

#![no_main]

use flagstone_device::format::bytes::seal_block;
use flagstone_device::format::geometry::Geometry;
use flagstone_device::format::superblock::{MAGIC, Superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Superblock::decode(data);
    // No fuzzer guesses a checksum, so it gets the right one.
    let mut block = vec![0; 4096];
    block[..8].copy_from_slice(&MAGIC);
    block[8] = 1;
    let count = data.len().min(4096 - 16 - 8);
    block[12..12 + count].copy_from_slice(&data[..count]);
    seal_block(&mut block);
    if let Ok(superblock) = Superblock::decode(&block) {
        let geometry = Geometry::checked(&superblock).expect("a decoded superblock was checked");
        assert!(geometry.data_start < geometry.data_end);
        assert!(geometry.data_end.0 <= superblock.block_count);
        let again = Superblock::decode(&superblock.encode()).expect("what we write we can read");
        assert_eq!(again, superblock);
    }
});
