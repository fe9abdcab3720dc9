//! Nodes that were not written by us, or not like that. Nothing may panic, and what is let in keeps
//! the invariants.

use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::support::*;
use crate::v2p::{Edit, EntryKind, EvictState, Key, Map, MapStats, NodeImage, NodePtr, reap_step};

/// A tree with data, deltas and tombstones, and its nodes.
fn sample() -> (Map, Store) {
    let mut map = Map::empty(Rc::new(MapStats::with_fanout(12)));
    let mut edit = Edit::new(LayerNo(3));
    fill_range(&mut map, &mut edit, 0..150, Lsn(5));
    for vblock in (20..80).step_by(3) {
        put(
            &mut map,
            &mut edit,
            &delta(vblock, 500 + vblock, LayerNo(3), Lsn(6)),
        );
    }
    map.deallocate(&mut edit, VBlock(40)..VBlock(60), Lsn(7));
    let mut store = Store::default();
    let map = reopen(&map, &mut store);
    (map, store)
}

fn ptr_for(bytes: &[u8]) -> NodePtr {
    let birth = LayerNo(u32::from_le_bytes(bytes[8..12].try_into().unwrap()));
    let checksum = BlockChecksum::of(bytes);
    NodePtr {
        block: BlockNo(9),
        checksum,
        birth,
        level: bytes[5],
    }
}

/// If the bytes are accepted as a root, everything can be done with the map that does not need
/// more nodes, and it stays sound.
fn exercise(bytes: &[u8], random: &mut Random) -> bool {
    let ptr = ptr_for(bytes);
    let Ok(image) = NodeImage::decode(bytes, &ptr) else {
        return false;
    };
    let leaf = image.level() == 0;
    let mapped = |e: crate::v2p::Entry| match e.kind {
        EntryKind::Data => 1,
        EntryKind::Child => e.meta,
        _ => 0,
    };
    for entry in image.entries().filter(|e| e.kind == EntryKind::Delta) {
        assert!(entry.changed().pieces().all(|piece| piece.end <= 4096));
    }
    let count = image.entries().map(mapped).sum();
    let lsn = image.entries().map(|e| e.lsn).max().expect("not empty");
    let last = image.end_key();
    let stats = Rc::new(MapStats::default());
    let mut map = Map::from_root(ptr, count, lsn, stats.clone());
    map.missing(ALL)
        .expect("the root")
        .fill(image)
        .expect("as it says");
    let copy = map.clone();
    for _ in 0..4 {
        let vblock = VBlock(random.below(200));
        let _ = map.get(vblock);
        let mut out = Vec::new();
        let _ = map.lookup(vblock..VBlock(1 << 52), 50, &mut out);
        let _ = map.changed_since(vblock..VBlock(1 << 52), Lsn(5), 50, &mut out);
        map.missing_many(ALL, 1000);
        let mut edit = Edit::new(LayerNo(u32::MAX));
        let _ = map.drop_tombstones(&mut edit, lsn, vblock, 3);
        let end = VBlock((vblock.0 + 30).min(last.0));
        if vblock < end && map.missing(vblock..end).is_none() {
            map.deallocate(&mut edit, vblock..end, Lsn(9));
            fill_range(
                &mut map,
                &mut edit,
                vblock.0..end.0.min(vblock.0 + 3),
                Lsn(10),
            );
        }
        let _ = reap_step(&copy, Some(&map), LayerNo(1), Key(0), Key::END, 1000);
        let mut state = EvictState::default();
        stats.node_writes_done();
        copy.evict(&mut state, 1000);
    }
    if leaf {
        map.check_invariants();
    }
    true
}

/// A leaf with one delta, whose bytes are `changed` as a number, byte by byte. [docs/formats/device.md "Map"]
fn leaf_with_delta(version: u8, changed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[..4].copy_from_slice(b"FSND");
    bytes[4] = version;
    // One entry, of birth 3; the key of the delta over block 7, and what lies behind.
    bytes[6] = 1;
    bytes[8] = 3;
    bytes[16] = 15;
    bytes[24] = 16;
    let entry = &mut bytes[96..136];
    entry[0] = 15;
    entry[7] = 3;
    entry[8] = 9;
    entry[16] = 0xab;
    entry[20] = 3;
    entry[24] = 5;
    entry[32..].copy_from_slice(&changed.to_le_bytes());
    bytes
}

#[test]
fn a_delta_says_which_bytes_it_has() {
    let decode = |version, changed| {
        let bytes = leaf_with_delta(version, changed);
        NodeImage::decode(&bytes, &ptr_for(&bytes))
    };
    // Offset, length, holes.
    let meta = |offset: u64, len: u64, holes: u64| offset | len << 16 | holes << 32;
    let pieces = |image: &NodeImage| {
        let entry = image.entries().next().expect("one");
        entry.changed().to_string()
    };
    let plain = decode(1, meta(512, 1024, 0)).expect("as ever");
    assert_eq!(pieces(&plain), "1024 bytes at 512");
    let holed = decode(2, meta(0, 2048, 0xf0)).expect("with holes");
    assert_eq!(pieces(&holed), "512 bytes at 0, 1024 bytes at 1024");

    // Those who know no holes must not come across any.
    let early = decode(1, meta(0, 2048, 0xf0)).err().expect("refused");
    assert!(
        early.to_string().contains("version 1 doesn't have"),
        "{early}"
    );
    for wrong in [
        meta(0, 0, 0),
        meta(0, 4097, 0),
        meta(4095, 2, 0),
        meta(0, 2048, 1),
        meta(0, 2048, 1 << 15),
        meta(128, 1920, 1 << 1),
        meta(0, 2048, 1 << 31),
    ] {
        assert!(decode(2, wrong).is_err(), "{wrong:#x}");
        assert!(decode(1, wrong & 0xffff_ffff).is_err() || wrong >> 32 != 0);
    }
    assert!(decode(3, meta(0, 1, 0)).is_err() && decode(0, meta(0, 1, 0)).is_err());

    // Written, it is the same again.
    let mut map = Map::empty(full_size_stats());
    let mut edit = Edit::new(LayerNo(3));
    let entry = holed.entries().next().expect("one");
    put(&mut map, &mut edit, &entry);
    let mut store = Store::default();
    drop(reopen(&map, &mut store));
    let [written] = store.nodes.values().collect::<Vec<_>>()[..] else {
        panic!("one node");
    };
    assert_eq!(written[..], leaf_with_delta(2, meta(0, 2048, 0xf0))[..]);
}

fn full_size_stats() -> Rc<MapStats> {
    Rc::default()
}

#[test]
fn flipped_bits_are_noticed() {
    let (_, store) = sample();
    let mut random = Random(1);
    for bytes in store.nodes.values() {
        let ptr = ptr_for(bytes);
        assert!(NodeImage::decode(bytes, &ptr).is_ok());
        for _ in 0..500 {
            let mut bytes = bytes.clone();
            bytes[random.below(4096) as usize] ^= 1 << random.below(8);
            assert!(NodeImage::decode(&bytes, &ptr).is_err());
        }
        let wrong = [
            NodePtr {
                birth: LayerNo(ptr.birth.0 + 1),
                ..ptr
            },
            NodePtr {
                level: ptr.level + 1,
                ..ptr
            },
            NodePtr {
                checksum: BlockChecksum(ptr.checksum.0 ^ 1),
                ..ptr
            },
        ];
        for ptr in wrong {
            assert!(NodeImage::decode(bytes, &ptr).is_err());
        }
    }
}

/// As if somebody had computed the checksums again.
#[test]
fn changed_nodes_with_right_checksums_never_panic() {
    let (_, store) = sample();
    let mut random = Random(2);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20 {
        for bytes in store.nodes.values() {
            let mut bytes = bytes.clone();
            for _ in 0..random.below(4) {
                let at = match random.below(4) {
                    0 => random.below(32),
                    1 => random.below(4096),
                    _ => 96 + random.below(12 * 40),
                } as usize;
                bytes[at] = match random.below(3) {
                    0 => bytes[at] ^ 1 << random.below(8),
                    1 => [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff][random.below(8) as usize],
                    _ => random.next() as u8,
                };
            }
            if exercise(&bytes, &mut random) {
                accepted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(
        accepted > 100 && refused > 100,
        "{accepted} accepted, {refused} refused"
    );
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(3);
    for _ in 0..3000 {
        let mut bytes: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
        // Far enough to be looked at.
        bytes[..5].copy_from_slice(&[0x46, 0x53, 0x4e, 0x44, 1]);
        bytes[5] = random.below(3) as u8;
        bytes[6..8].copy_from_slice(&(random.below(3) as u16).to_le_bytes());
        bytes[12..16].fill(0);
        bytes[32..96].fill(0);
        let (first, rest) = bytes.split_at_mut(96);
        first[16..24].copy_from_slice(&rest[..8]);
        first[23] = 0;
        exercise(&bytes, &mut random);
    }
}

/// Changes a child and puts its new checksum into the root, and asks whether the child is let in.
fn accepts(change_child: impl Fn(&mut [u8]), change_entry: impl Fn(&mut [u8])) -> bool {
    let (map, mut store) = sample();
    let root_ptr = map.root_ptr().expect("not empty");
    assert!(root_ptr.level == 2);
    let mut root = store.nodes[&root_ptr.block.0].clone();
    let entry = &mut root[96..136];
    let block = u64::from_le_bytes(entry[8..16].try_into().unwrap());
    let child = store.nodes.get_mut(&block).expect("is there");
    change_child(child);
    entry[16..20].copy_from_slice(&BlockChecksum::of(child).0.to_le_bytes());
    change_entry(entry);
    let ptr = NodePtr {
        checksum: BlockChecksum::of(&root),
        ..root_ptr
    };
    let stats = Rc::new(MapStats::default());
    let map = Map::from_root(ptr, map.mapped_count(), map.max_lsn(), stats);
    map.missing(ALL)
        .expect("the root")
        .fill_from(&root)
        .expect("sound by itself");
    let missing = map.missing(ALL).expect("its child");
    missing.fill_from(&store.nodes[&block]).is_ok()
}

#[test]
fn a_child_must_be_what_its_parent_says() {
    assert!(accepts(|_| {}, |_| {}));
    // An entry of the child moves behind the child's end, and is cut off.
    let drop_last = |bytes: &mut [u8]| {
        let count = bytes[6] as usize - 1;
        bytes[6] -= 1;
        bytes[96 + count * 40..96 + (count + 1) * 40].fill(0);
    };
    assert!(!accepts(drop_last, |_| {}), "fewer blocks mapped");
    let far_end = |bytes: &mut [u8]| bytes[24..32].copy_from_slice(&(1u64 << 53).to_le_bytes());
    assert!(!accepts(far_end, |_| {}), "reaches into its neighbour");
    let other_first = |bytes: &mut [u8]| {
        bytes[16..24].copy_from_slice(&4u64.to_le_bytes());
        bytes[96] = 4;
    };
    assert!(!accepts(other_first, |_| {}), "another first key");
    let young = |bytes: &mut [u8]| bytes[96 + 24] = 0xff;
    assert!(!accepts(young, |_| {}), "a higher LSN");
    let elder = |bytes: &mut [u8]| bytes[8] = 2;
    assert!(!accepts(elder, |_| {}), "another birth");
    let young_entry = |bytes: &mut [u8]| bytes[96 + 20] = 4;
    assert!(
        !accepts(young_entry, |_| {}),
        "an entry younger than its node"
    );
}

#[test]
fn a_root_must_be_what_the_catalogue_says() {
    let (map, store) = sample();
    let ptr = map.root_ptr().expect("not empty");
    let bytes = &store.nodes[&ptr.block.0];
    let tries = |mapped: u64, lsn: u64| {
        let map = Map::from_root(ptr, mapped, Lsn(lsn), Rc::default());
        map.missing(ALL).expect("the root").fill_from(bytes).is_ok()
    };
    assert!(tries(130, 7) && tries(130, 8));
    assert!(!tries(131, 7) && !tries(130, 6));
}
