//! Every decoder of the format against bytes that are damaged, cut off, or nothing at all: it
//! answers, never panics, and what it accepts is what it would write. Inputs follow from seeds, so a
//! failure repeats; `fuzz/` does the same with coverage.

use crate::support;

use flagstone_device::format::bytes::seal_block;
use flagstone_device::format::catalogue::{CatalogueRecord, RECORD_BYTES};
use flagstone_device::format::group::{HEADER_BYTES, check_hash, decode_header};
use flagstone_device::format::record::decode_units;
use flagstone_device::format::root::Root;
use flagstone_device::format::segment::SegmentRecord;
use flagstone_device::format::superblock::Superblock;
use flagstone_device::format::table::{
    BlockPtr, PAGES_PER_INDEX, TableKind, decode_index, decode_page, encode_index,
};
use flagstone_device::v2p::{Key, NodeImage, NodePtr};
use flagstone_types::{BlockChecksum, BlockNo, LayerNo};
use support::{BLOCK, Builder, Rng, golden, script};

const INPUTS_PER_SEED: usize = 4000;

/// Calls `check` with damaged versions of `valid`, and with noise.
fn damaged(seed: u64, valid: &[Vec<u8>], mut check: impl FnMut(&[u8])) {
    let mut rng = Rng::new(seed);
    for round in 0..INPUTS_PER_SEED {
        let mut bytes = rng.pick(valid).clone();
        match round % 8 {
            0 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
            1 => bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8),
            2 => bytes.fill(rng.next() as u8),
            3 => {
                // A field of eight bytes becomes an extreme value.
                let extremes = [
                    0,
                    1,
                    u64::MAX,
                    1 << 63,
                    (1 << 40) - 1,
                    1 << 53,
                    u64::from(u32::MAX),
                ];
                let at = rng.below(bytes.len().max(8) as u64 - 7) as usize;
                let value = rng.pick(&extremes).to_le_bytes();
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
            _ => {
                for _ in 0..=rng.below(6) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
        }
        check(&bytes);
    }
}

/// An image with everything in it.
fn rich() -> Builder {
    let mut rng = Rng::new(31);
    let mut builder = Builder::format(4600, 1, 256);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 150);
    builder.checkpoint(0, false);
    script::run(&mut builder, 0, &mut rng, 25);
    builder
}

/// Blocks of an image that begin so.
fn blocks(builder: &Builder, magic: &[u8]) -> Vec<Vec<u8>> {
    let all = builder.image.changed();
    let found: Vec<Vec<u8>> = all
        .filter(|(_, b)| b.starts_with(magic))
        .map(|(_, b)| b.to_vec())
        .collect();
    assert!(!found.is_empty());
    found
}

#[test]
fn superblock() {
    let valid = blocks(&rich(), b"FLAGSTON");
    damaged(1, &valid, |bytes| {
        let _ = Superblock::decode(bytes);
        if bytes.len() != BLOCK {
            return;
        }
        let mut sealed = bytes.to_vec();
        seal_block(&mut sealed);
        if let Ok(superblock) = Superblock::decode(&sealed) {
            let again = Superblock::decode(&superblock.encode());
            assert_eq!(again, Ok(superblock), "what is accepted can be written");
        }
    });
}

#[test]
fn root() {
    let builder = rich();
    let valid = blocks(&builder, b"FSROOT01");
    damaged(2, &valid, |bytes| {
        let _ = Root::decode(bytes);
        if bytes.len() != BLOCK {
            return;
        }
        let mut sealed = bytes.to_vec();
        seal_block(&mut sealed);
        if let Ok(root) = Root::decode(&sealed) {
            let _ = root.check_place(builder.superblock.device_id, 0, &builder.geometry);
            assert_eq!(Root::decode(&root.encode()), Ok(root));
        }
    });
}

#[test]
fn tables() {
    let builder = rich();
    let pages = blocks(&builder, b"FSTP");
    damaged(3, &pages, |bytes| {
        for table in [TableKind::Catalogue, TableKind::Segments] {
            for number in [0, 1, u32::MAX] {
                if let Ok(records) = decode_page(bytes, table, number) {
                    assert_eq!(records.count(), table.records_per_page());
                }
            }
        }
    });
    let index = blocks(&builder, b"FSTI");
    damaged(4, &index, |bytes| {
        for table in [TableKind::Catalogue, TableKind::Segments] {
            if let Ok(pages) = decode_index(bytes, table, 0) {
                assert!(pages.len() <= PAGES_PER_INDEX);
                let again = decode_index(&encode_index(table, 0, &pages), table, 0);
                assert_eq!(again, Ok(pages.clone()));
                for page in pages {
                    let _ = BlockPtr::is_within(&page, &builder.geometry);
                }
            }
        }
    });
}

#[test]
fn catalogue_records() {
    let pages = blocks(&rich(), b"FSTP\x01\x01");
    let slots = pages
        .iter()
        .flat_map(|page| page[64..].chunks_exact(RECORD_BYTES));
    let records: Vec<Vec<u8>> = slots
        .map(<[u8]>::to_vec)
        .filter(|record| record[0] != 0)
        .collect();
    damaged(5, &records, |bytes| {
        if let Ok(Some(record)) = CatalogueRecord::decode(bytes) {
            let mut out = Vec::new();
            CatalogueRecord::encode(Some(&record), &mut out);
            assert_eq!(CatalogueRecord::decode(&out), Ok(Some(record)));
        }
    });
}

#[test]
fn segment_records() {
    let pages = blocks(&rich(), b"FSTP\x01\x02");
    let records: Vec<Vec<u8>> = pages.iter().map(|page| page[64..96].to_vec()).collect();
    damaged(6, &records, |bytes| {
        if let Ok(record) = SegmentRecord::decode(bytes) {
            let mut out = Vec::new();
            SegmentRecord::encode(record.as_ref(), &mut out);
            assert_eq!(SegmentRecord::decode(&out), Ok(record));
        }
    });
}

#[test]
fn groups_and_records() {
    let groups = blocks(&rich(), b"FSJG");
    damaged(7, &groups, |bytes| {
        if let Ok(header) = decode_header(bytes) {
            assert!(header.block_count > 0);
            let holds = u64::from(header.block_count) * BLOCK as u64;
            assert!(HEADER_BYTES as u64 + u64::from(header.body_bytes) <= holds);
        }
        let _ = check_hash(bytes);
    });
    let bodies: Vec<Vec<u8>> = groups
        .iter()
        .filter_map(|group| {
            let header = decode_header(group)
                .ok()
                .filter(|header| header.body_bytes > 0)?;
            let end = (HEADER_BYTES + header.body_bytes as usize).min(BLOCK);
            Some(group[HEADER_BYTES..end].to_vec())
        })
        .collect();
    damaged(8, &bodies, |bytes| {
        let Ok(units) = decode_units(bytes) else {
            return;
        };
        let mut out = Vec::new();
        for unit in &units {
            for (index, record) in unit.iter().enumerate() {
                record.encode(index + 1 < unit.len(), &mut out);
            }
        }
        assert_eq!(decode_units(&out), Ok(units));
    });
}

/// Lengths and counts in records are claims: memory is taken for what is really there.
#[test]
fn records_that_claim_too_much() {
    let mut body = vec![1, 0, 0, 0];
    body.extend_from_slice(&31_u32.to_le_bytes());
    body.extend_from_slice(&0_u32.to_le_bytes());
    body.extend_from_slice(&1_u64.to_le_bytes());
    body.extend_from_slice(&u16::MAX.to_le_bytes());
    body.extend_from_slice(&0_u64.to_le_bytes());
    body.extend_from_slice(&u32::MAX.to_le_bytes());
    body.push(0);
    body.resize(8 + 31, 0);
    let error = decode_units(&body).expect_err("a run of 2^32 blocks in a few bytes");
    assert!(error.message.contains("does not fit"), "{error}");
    assert!(
        decode_units(&[13, 1, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            .expect_err("the unit goes on")
            .message
            .contains("does not end")
    );
}

#[test]
fn map_nodes() {
    let nodes = blocks(&rich(), b"FSND");
    damaged(9, &nodes, |bytes| {
        // The checksum is the parent's, so it is right here; level and birth may be, too.
        let field = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let birth = u32::from_le_bytes([field(8), field(9), field(10), field(11)]);
        let ptr = NodePtr {
            block: BlockNo(300),
            checksum: BlockChecksum::of(bytes),
            birth: LayerNo(birth),
            level: field(5),
        };
        let Ok(node) = NodeImage::decode(bytes, &ptr) else {
            return;
        };
        let entries: Vec<_> = node.entries().collect();
        assert!(!entries.is_empty() && node.end_key() <= Key::END);
        assert!(entries.windows(2).all(|pair| pair[0].key < pair[1].key));
        for entry in &entries {
            assert!(entry.birth <= node.birth());
            assert!(Key::block(entry.end_vblock()) <= node.end_key());
            assert_eq!(node.child_ptr(entry).is_some(), ptr.level > 0);
        }
    });
}

/// The text form of golden images is exact.
#[test]
fn golden_text_is_exact() {
    let builder = rich();
    let live = builder.live_blocks();
    let image = golden::from_text(&golden::to_text(&builder, "x"));
    for (block, bytes) in builder
        .image
        .changed()
        .filter(|(block, _)| live.contains(block))
    {
        assert!(support::patch::read(&image, block) == bytes[..], "{block}");
    }
}
