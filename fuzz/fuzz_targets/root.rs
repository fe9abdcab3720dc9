//! A journal root of any bytes: refused, or understood and written again to the same meaning.

#![no_main]

use flagstone_device::format::bytes::seal_block;
use flagstone_device::format::root::{MAGIC, Root};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Root::decode(data);
    let mut block = vec![0; 4096];
    block[..8].copy_from_slice(&MAGIC);
    let count = data.len().min(4096 - 8 - 8);
    block[8..8 + count].copy_from_slice(&data[..count]);
    seal_block(&mut block);
    if let Ok(root) = Root::decode(&block) {
        assert_eq!(
            Root::decode(&root.encode()).expect("what we write we can read"),
            root
        );
    }
});
