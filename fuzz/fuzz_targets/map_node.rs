//! A map node of any bytes under the right checksum: refused, or sound.

#![no_main]

use flagstone_device::v2p::{EntryKind, NodeImage, NodePtr};
use flagstone_types::{BlockChecksum, BlockNo, LayerNo};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&level, rest)) = data.split_first() else {
        return;
    };
    let mut bytes = rest.to_vec();
    bytes.resize(4096, 0);
    // "FSND", one of both versions, and the level its parent claims.
    bytes[..4].copy_from_slice(b"FSND");
    bytes[4] = 1 + (bytes[4] & 1);
    bytes[5] = level;
    let birth = LayerNo(u32::from_le_bytes([
        bytes[8], bytes[9], bytes[10], bytes[11],
    ]));
    let ptr = NodePtr {
        block: BlockNo(1),
        checksum: BlockChecksum::of(&bytes),
        birth,
        level,
    };
    if let Ok(image) = NodeImage::decode(&bytes, &ptr) {
        for entry in image.entries().filter(|e| e.kind == EntryKind::Delta) {
            assert!(entry.changed().pieces().all(|piece| piece.end <= 4096));
        }
    }
});
