//! Changes to an image that keep its checksums right, as a bug of Flagstone would, or somebody who
//! means harm.

use flagstone_device::format::catalogue::{self, CatalogueRecord};
use flagstone_device::format::group::{self, HEADER_BYTES, check_hash, decode_header};
use flagstone_device::format::root::Root;
use flagstone_device::format::table::{BlockPtr, TableKind};
use flagstone_device::offline::{Image, Overlay, ReadBlocks, Zeros};
use flagstone_types::{BlockChecksum, BlockNo, ChainHash, Slot};

use super::{BLOCK, Rng};

pub type TestImage = Overlay<Zeros>;

pub fn read(image: &TestImage, block: BlockNo) -> Vec<u8> {
    let mut bytes = [0; BLOCK];
    image.read(block, &mut bytes).expect("memory");
    bytes.to_vec()
}

/// The root of a journal that counts.
pub fn root(image: &TestImage, journal: u16) -> (BlockNo, Root) {
    let opened = Image::open(image).expect("a valid superblock");
    let roots = opened.roots(journal);
    let slot = roots.current_slot().expect("a valid root");
    (
        roots.slots[slot].block,
        roots.current().expect("a valid root").clone(),
    )
}

/// Changes the root that counts.
pub fn patch_root(image: &mut TestImage, journal: u16, change: impl FnOnce(&mut Root)) {
    let (block, mut root) = root(image, journal);
    change(&mut root);
    image.put(block, &root.encode());
}

fn index_of(root: &mut Root, table: TableKind) -> &mut Vec<BlockPtr> {
    match table {
        TableKind::Catalogue => &mut root.catalogue,
        TableKind::Segments => &mut root.segments,
    }
}

/// Changes the bytes of a table's page and everything above that depends on them. The table must
/// have one index block.
pub fn patch_page(
    image: &mut TestImage,
    journal: u16,
    table: TableKind,
    page: usize,
    change: impl FnOnce(&mut [u8]),
) {
    let (_, mut old) = root(image, journal);
    let index = index_of(&mut old, table)[0].block;
    let mut index_bytes = read(image, index);
    let at = 64 + 16 * page;
    let mut le = [0; 8];
    le.copy_from_slice(&index_bytes[at..at + 8]);
    let block = BlockNo(u64::from_le_bytes(le));
    let mut bytes = read(image, block);
    change(&mut bytes);
    image.put(block, &bytes);
    index_bytes[at + 8..at + 16].copy_from_slice(&ChainHash::of(&bytes).0.to_le_bytes());
    image.put(index, &index_bytes);
    let hash = ChainHash::of(&index_bytes);
    patch_root(image, journal, |root| index_of(root, table)[0].hash = hash);
}

/// Changes a catalogue record.
pub fn patch_slot(
    image: &mut TestImage,
    journal: u16,
    slot: Slot,
    change: impl FnOnce(&mut CatalogueRecord),
) {
    let per_page = TableKind::Catalogue.records_per_page();
    let at = 64 + (slot.0 as usize % per_page) * catalogue::RECORD_BYTES;
    patch_page(
        image,
        journal,
        TableKind::Catalogue,
        slot.0 as usize / per_page,
        |bytes| {
            let place = &mut bytes[at..at + catalogue::RECORD_BYTES];
            let mut record = CatalogueRecord::decode(place)
                .expect("ours")
                .expect("in use");
            change(&mut record);
            let mut out = Vec::new();
            CatalogueRecord::encode(Some(&record), &mut out);
            place.copy_from_slice(&out);
        },
    );
}

/// Changes the bytes of some node of a slot's map, and the checksums above it. False if the map is
/// empty.
pub fn patch_node(
    image: &mut TestImage,
    journal: u16,
    slot: Slot,
    rng: &mut Rng,
    change: impl FnOnce(&mut [u8]),
) -> bool {
    let per_page = TableKind::Catalogue.records_per_page();
    let at = 64 + (slot.0 as usize % per_page) * catalogue::RECORD_BYTES;
    let mut is_there = false;
    let mut nodes = image.clone();
    patch_page(
        image,
        journal,
        TableKind::Catalogue,
        slot.0 as usize / per_page,
        |bytes| {
            let place = &mut bytes[at..at + catalogue::RECORD_BYTES];
            let mut record = CatalogueRecord::decode(place)
                .expect("ours")
                .expect("in use");
            let Some(root) = &mut record.map else { return };
            is_there = true;
            let mut change = Some(change);
            root.ptr.checksum =
                patch_below(&mut nodes, root.ptr.block, root.ptr.level, rng, &mut change);
            let mut out = Vec::new();
            CatalogueRecord::encode(Some(&record), &mut out);
            place.copy_from_slice(&out);
        },
    );
    for (block, bytes) in nodes.changed() {
        if read(image, block) != bytes[..] && is_there {
            // The pages above were written meanwhile: only nodes are taken over.
            if bytes.starts_with(b"FSND") {
                image.put(block, &bytes[..]);
            }
        }
    }
    is_there
}

fn patch_below<F: FnOnce(&mut [u8])>(
    image: &mut TestImage,
    block: BlockNo,
    level: u8,
    rng: &mut Rng,
    change: &mut Option<F>,
) -> BlockChecksum {
    let mut bytes = read(image, block);
    let count = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    if level == 0 || rng.below(3) == 0 || count == 0 {
        if let Some(change) = change.take() {
            change(&mut bytes);
        }
    } else {
        let at = 96 + 40 * rng.below(count as u64) as usize;
        let mut le = [0; 8];
        le.copy_from_slice(&bytes[at + 8..at + 16]);
        let child = BlockNo(u64::from_le_bytes(le));
        let checksum = patch_below(image, child, level - 1, rng, change);
        bytes[at + 16..at + 20].copy_from_slice(&checksum.0.to_le_bytes());
    }
    image.put(block, &bytes);
    BlockChecksum::of(&bytes)
}

/// Changes the bytes of group `number` behind the root, and the chain behind it. False if there are
/// not that many.
pub fn patch_group(
    image: &mut TestImage,
    journal: u16,
    number: usize,
    change: impl FnOnce(&mut [u8]),
) -> bool {
    let (_, root) = root(image, journal);
    let opened = Image::open(&*image).expect("a valid superblock");
    let geometry = opened.geometry.clone();
    let ring = flagstone_device::offline::ring::Ring::scan(&opened, &root);
    drop(opened);
    if ring.groups.len() <= number {
        return false;
    }
    let mut change = Some(change);
    let mut prev_hash = root.prev_hash;
    for (index, place) in ring.groups.iter().enumerate() {
        let blocks = if place.header.pad {
            1
        } else {
            u32::from(place.header.block_count)
        };
        let at = |i: u32| geometry.ring_block(journal, place.ring_index + i);
        let mut bytes: Vec<u8> = (0..blocks).flat_map(|i| read(image, at(i))).collect();
        if index == number
            && let Some(change) = change.take()
        {
            change(&mut bytes[HEADER_BYTES..]);
        }
        if index >= number {
            let mut header = decode_header(&bytes).expect("headers are not changed");
            header.prev_hash = prev_hash;
            let body_end = HEADER_BYTES + header.body_bytes as usize;
            bytes.truncate(body_end);
            prev_hash = group::seal(&mut header, &mut bytes);
            for (i, block) in (0..).zip(bytes.chunks(BLOCK)) {
                image.put(at(i), block);
            }
        } else {
            prev_hash = check_hash(&bytes).expect("in the chain");
        }
    }
    true
}
