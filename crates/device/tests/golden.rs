//! Images of format version 1 that are never edited, and what is in them, field by field at the
//! offsets of `docs/formats/device.md`. If one of these tests fails, the format has changed: that
//! takes a new version, a new page and new images, and this code has to go on reading the old ones.

use crate::support;

use flagstone_device::format::catalogue::{FLAG_HIDDEN, RecordKind};
use flagstone_device::format::record::Record;
use flagstone_device::format::root::Root;
use flagstone_device::format::superblock::Superblock;
use flagstone_device::offline::inspect::{inspect, inspect_block, inspect_map};
use flagstone_device::offline::ring::{Ring, read_units};
use flagstone_device::offline::verify::{Options, Report, verify};
use flagstone_device::offline::{Image, Overlay, Zeros};
use flagstone_device::v2p::Key;
use flagstone_types::{BlockNo, ChainHash, DeviceId, LayerNo, Lsn, SegmentNo, Slot, VBlock};
use support::patch::read;
use support::{Builder, golden};

const EMPTY: &str = include_str!("golden/v1-empty.txt");
const LAYERS: &str = include_str!("golden/v1-layers.txt");
const JOURNAL: &str = include_str!("golden/v1-journal.txt");
const ENGINE: &str = include_str!("golden/v1-engine.txt");
const ATTRIBUTES: &str = include_str!("golden/v1-attributes.txt");
const JOURNALED: &str = include_str!("golden/v1-journaled.txt");
const UNDER: &str = include_str!("golden/v1-under.txt");

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn check(image: &Overlay<Zeros>) -> Report {
    let report = verify(image, Options::default(), &mut |_, _| {});
    assert!(report.is_clean(), "{}", report.words());
    report
}

/// A formatted device with two journals.
fn make_empty() -> Builder {
    Builder::format(4400, 2, 128)
}

/// A dvol with a snapshot and a clone, blocks of all kinds, and a deleted dvol half freed.
fn make_layers() -> Builder {
    let mut builder = Builder::format(33_000, 2, 128);
    for journal in 0..2 {
        builder.start(journal);
        builder.reserve(journal, u32::from(journal));
    }
    let alpha = builder.create(0, "alpha", None);
    let first = builder.data(0, alpha, 0, 110, 0);
    let second = builder.data(0, alpha, 1000, 2, 0x1122_3344_5566_7788);
    builder.unit(0, vec![first, second]);
    let layer_slot = builder.free_slots(0, 1)[0];
    let head = builder.state(0).next_layer;
    let name = "monday".into();
    let snapshot = Record::Snapshot {
        slot: alpha,
        layer_slot,
        head,
        created_ns: 77,
        name,
    };
    builder.unit(0, vec![snapshot]);
    let beta = builder.create(0, "beta", Some(layer_slot));
    let record = builder.data(0, beta, 5, 1, 0);
    builder.unit(0, vec![record]);
    let record = builder.delta(0, alpha, 7, (512, 1000));
    builder.unit(0, vec![record]);
    let lsn = builder.next_lsn(0, alpha);
    let ranges = vec![(support::vblock(20), 10), (support::vblock(1001), 1 << 40)];
    builder.unit(
        0,
        vec![Record::Unmap {
            slot: alpha,
            lsn,
            ranges,
        }],
    );
    let gone = builder.create(0, "gone", None);
    let record = builder.data(0, gone, 0, 20, 0);
    builder.unit(0, vec![record]);
    builder.checkpoint(0, false);
    builder.unit(0, vec![Record::DeleteDvol { slot: gone }]);
    assert!(builder.reap(0, 12));
    builder.checkpoint(0, true);
    let other = builder.create(1, "other", None);
    let record = builder.data(1, other, 3, 1, 0);
    builder.unit(1, vec![record]);
    builder.checkpoint(1, true);
    builder
}

/// A root followed by each kind of record, a pad, an abort, and a unit that was never acknowledged.
fn make_journal() -> Builder {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    for _ in 0..120 {
        builder.group(0, &[]);
    }
    builder.checkpoint(0, false);
    builder.reserve(0, 0);
    let alpha = builder.create(0, "alpha", None);
    let beta = builder.create(0, "beta", None);
    let mut record = builder
        .state(0)
        .slot(alpha)
        .expect("created")
        .record
        .clone();
    record.size_bytes = 5 << 30;
    record.reserved_blocks = 10;
    builder.unit(
        0,
        vec![Record::Update {
            slot: alpha,
            record: Box::new(record),
        }],
    );
    let run = builder.data(0, alpha, 4, 12, 0);
    let tagged = builder.data(0, beta, 4, 1, 9);
    builder.unit(0, vec![run, tagged]);
    let record = builder.delta(0, alpha, 4, (100, 200));
    builder.unit(0, vec![record]);
    let layer_slot = builder.free_slots(0, 1)[0];
    let head = builder.state(0).next_layer;
    let name = "monday".into();
    let snapshot = Record::Snapshot {
        slot: alpha,
        layer_slot,
        head,
        created_ns: 77,
        name,
    };
    builder.unit(0, vec![snapshot]);
    // A group of two blocks doesn't fit the ring's last block: a pad comes first.
    assert_eq!(builder.ring_index(0), 127);
    let record = builder.data(0, alpha, 100, 500, 0);
    builder.unit(0, vec![record]);
    let lsn = builder.next_lsn(0, alpha);
    let ranges = vec![(support::vblock(100), 490)];
    builder.unit(
        0,
        vec![Record::Unmap {
            slot: alpha,
            lsn,
            ranges,
        }],
    );
    let rollback = Record::Rollback {
        slot: alpha,
        to: layer_slot,
        discard_slot: builder.free_slots(0, 1)[0],
        head: builder.state(0).next_layer,
        lsn: builder.next_lsn(0, alpha),
        size_bytes: 4 << 30,
    };
    builder.unit(0, vec![rollback]);
    builder.flush();
    assert!(builder.reap(0, 1000));
    builder.unit(0, vec![Record::DeleteDvol { slot: beta }]);
    builder.unit(0, vec![Record::DeleteLayer { slot: layer_slot }]);
    builder.unit(
        0,
        vec![Record::ReserveSegment {
            segment: SegmentNo(0),
        }],
    );
    let aborted = builder.data(0, alpha, 60, 1, 0);
    let seq = builder.next_seq(0);
    builder.group(0, &[vec![aborted]]);
    builder.unit(0, vec![Record::Abort { seq, unit: 0 }]);
    builder.flush();
    let kept = builder.data(0, alpha, 61, 1, 0);
    builder.unit(0, vec![kept]);
    let lost = builder.data(0, alpha, 62, 1, 0);
    let (block, _) = lost.new_blocks().next().expect("one block");
    builder.unit(0, vec![lost]);
    builder.image.put(block, &[]);
    builder
}

/// Blocks with attributes, attributes alone, and a snapshot between, behind a root that has some.
fn make_attributes() -> Builder {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let alpha = builder.create(0, "alpha", None);
    let describe = |builder: &Builder, byte: u8, lsn| Record::Attributes {
        slot: alpha,
        lsn: lsn_or_next(builder, alpha, lsn),
        attributes: Box::new(std::array::from_fn(|at| byte + at as u8)),
    };
    let alone = describe(&builder, 10, None);
    builder.unit(0, vec![alone]);
    builder.checkpoint(0, false);
    let data = builder.data(0, alpha, 4, 2, 0);
    let beside = describe(&builder, 20, Some(Lsn(2)));
    builder.unit(0, vec![data, beside]);
    let snapshot = Record::Snapshot {
        slot: alpha,
        layer_slot: builder.free_slots(0, 1)[0],
        head: builder.state(0).next_layer,
        created_ns: 77,
        name: "monday".into(),
    };
    builder.unit(0, vec![snapshot]);
    let alone = describe(&builder, 30, None);
    builder.unit(0, vec![alone]);
    // Its data is not there: nor are its attributes.
    let lost = builder.data(0, alpha, 9, 1, 0);
    let (block, _) = lost.new_blocks().next().expect("one block");
    let beside = describe(&builder, 40, Some(Lsn(4)));
    builder.unit(0, vec![lost, beside]);
    builder.image.put(block, &[]);
    builder
}

/// Data that the journal alone has: over what is mapped, where nothing is, and a part that was unmapped since. Behind a root that gave others blocks.
fn make_journaled() -> Builder {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let alpha = builder.create(0, "alpha", None);
    let journaled = |builder: &Builder, start: u64, len: usize| Record::Journaled {
        slot: alpha,
        lsn: builder.next_lsn(0, alpha),
        start: VBlock(start),
        data: (0..len).map(|at| (at / 16) as u8).collect(),
    };
    let data = builder.data(0, alpha, 4, 2, 0);
    builder.unit(0, vec![data]);
    let first = journaled(&builder, 20, 9_000);
    builder.unit(0, vec![first]);
    builder.checkpoint(0, false);
    let over = journaled(&builder, 5, 100);
    builder.unit(0, vec![over]);
    let fresh = journaled(&builder, 9, 5_000);
    builder.unit(0, vec![fresh]);
    let gone = Record::Unmap {
        slot: alpha,
        lsn: builder.next_lsn(0, alpha),
        ranges: vec![(VBlock(10), 1), (VBlock(21), 1)],
    };
    builder.unit(0, vec![gone]);
    builder
}

/// What was mapped under deltas: of a snapshot's and of one in the journal, whose data is missing, so that what lies under it is left out with it.
fn make_under() -> Builder {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let alpha = builder.create(0, "alpha", None);
    let data = builder.data(0, alpha, 4, 2, 9);
    builder.unit(0, vec![data]);
    let delta = builder.delta(0, alpha, 4, (0, 2048));
    builder.unit(0, vec![delta]);
    builder.checkpoint(0, false);
    let snapshot = Record::Snapshot {
        slot: alpha,
        layer_slot: builder.free_slots(0, 1)[0],
        head: builder.state(0).next_layer,
        created_ns: 77,
        name: "monday".into(),
    };
    builder.unit(0, vec![snapshot]);
    let under = builder.under(0, alpha, 4, 9);
    builder.unit(0, vec![under]);
    builder.flush();
    let lost = builder.delta(0, alpha, 5, (2048, 2048));
    let (block, _) = lost.new_blocks().next().expect("one block");
    builder.unit(0, vec![lost]);
    let under = builder.under(0, alpha, 5, 9);
    builder.unit(0, vec![under]);
    builder.image.put(block, &[]);
    builder
}

fn lsn_or_next(builder: &Builder, slot: Slot, lsn: Option<Lsn>) -> Lsn {
    lsn.unwrap_or_else(|| builder.next_lsn(0, slot))
}

/// Writes the images anew, next to the old ones. They are kept by hand, and never replaced.
#[test]
#[ignore = "run it to make images of a new version"]
fn make() {
    let made = [
        ("empty", make_empty(), "A formatted device."),
        (
            "layers",
            make_layers(),
            "A dvol, its snapshot, a clone; stopped in order.",
        ),
        (
            "journal",
            make_journal(),
            "Each kind of record behind the root; power failed.",
        ),
        (
            "attributes",
            make_attributes(),
            "Attributes that came with blocks and alone; power failed.",
        ),
        (
            "journaled",
            make_journaled(),
            "Data that the journal alone has; power failed.",
        ),
        (
            "under",
            make_under(),
            "Data mapped under deltas; power failed.",
        ),
    ];
    for (name, builder, about) in made {
        let text = golden::to_text(&builder, about);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        std::fs::write(format!("{folder}/new-{name}.txt"), text).expect("written");
    }
}

#[test]
fn empty_superblocks_and_roots() {
    let image = golden::from_text(EMPTY);
    let bytes = read(&image, BlockNo(0));
    assert_eq!(
        bytes,
        read(&image, BlockNo(4399)),
        "both copies are the same"
    );
    assert_eq!(&bytes[..8], b"FLAGSTON");
    assert_eq!(
        (u32_at(&bytes, 8), u32_at(&bytes, 12), u32_at(&bytes, 16)),
        (1, 0, 0)
    );
    assert_eq!((u16_at(&bytes, 20), u16_at(&bytes, 22)), (2, 0));
    assert_eq!(
        (u64_at(&bytes, 24), u64_at(&bytes, 32)),
        (0x0123_4567_89ab_cdef, 0xf1a6_5704_e000_0000)
    );
    assert_eq!((u64_at(&bytes, 40), u64_at(&bytes, 48)), (1, 4400));
    assert_eq!((u32_at(&bytes, 56), u32_at(&bytes, 60)), (128, 0));
    assert_eq!(u64_at(&bytes, 64), 1_700_000_000_000_000_000);
    assert!(bytes[72..4088].iter().all(|&byte| byte == 0));
    assert_eq!(u64_at(&bytes, 4088), ChainHash::of(&bytes[..4088]).0);
    let superblock = Superblock::decode(&bytes).expect("valid");
    assert_eq!(superblock.encode(), bytes, "written today it is the same");

    for (journal, block) in [(0, 2), (1, 132)] {
        let bytes = read(&image, BlockNo(block));
        let root = Root {
            device_id: DeviceId(0xf1a6_5704_e000_0000_0123_4567_89ab_cdef),
            journal,
            root_seq: 1,
            incarnation: 1,
            next_seq: 1,
            ring_index: 0,
            prev_hash: ChainHash(0),
            next_layer: 1,
            clean: true,
            catalogue: vec![],
            segments: vec![],
        };
        assert_eq!(Root::decode(&bytes), Ok(root.clone()));
        assert_eq!(root.encode(), bytes);
    }
    let report = check(&image);
    assert_eq!(
        (
            report.counts.journals,
            report.counts.groups,
            report.counts.nodes
        ),
        (2, 0, 0)
    );
}

#[test]
fn layers_root_and_tables() {
    let image = golden::from_text(LAYERS);
    let opened = Image::open(&image).expect("valid");
    let roots = opened.roots(0);
    let bytes = read(
        &image,
        roots.slots[roots.current_slot().expect("a root")].block,
    );
    assert_eq!(&bytes[..8], b"FSROOT01");
    assert_eq!(
        (u16_at(&bytes, 24), u16_at(&bytes, 26), u32_at(&bytes, 28)),
        (0, 1, 2)
    );
    let (root_seq, next_seq) = (u64_at(&bytes, 32), u64_at(&bytes, 40));
    assert_eq!((root_seq, next_seq), (4, 13));
    assert_eq!(
        (u32_at(&bytes, 56), u32_at(&bytes, 60)),
        (12, 5),
        "ring index, next layer"
    );
    assert_eq!(
        (u16_at(&bytes, 64), u16_at(&bytes, 66)),
        (1, 1),
        "index blocks"
    );

    // The catalogue: index block, page, record of slot 0.
    let index = read(&image, BlockNo(u64_at(&bytes, 128)));
    assert_eq!(ChainHash::of(&index).0, u64_at(&bytes, 136));
    assert_eq!(&index[..6], b"FSTI\x01\x01");
    assert_eq!((u16_at(&index, 6), u32_at(&index, 8)), (1, 0));
    let page = read(&image, BlockNo(u64_at(&index, 64)));
    assert_eq!(ChainHash::of(&page).0, u64_at(&index, 72));
    assert_eq!(&page[..6], b"FSTP\x01\x01");
    assert_eq!((u16_at(&page, 6), u32_at(&page, 8)), (8, 0));
    let record = &page[64..64 + 504];
    assert_eq!(
        (record[0], record[1], u16_at(record, 2), record[4]),
        (1, 1, 0, 5)
    );
    assert_eq!(u64_at(record, 24), 1 << 30, "size");
    assert_eq!(u64_at(record, 32), 1_700_000_000_000_000_001, "created");
    // Three changes, the first of an incarnation that skipped nothing.
    assert_eq!(u64_at(record, 40), 3, "LSN");
    assert_eq!(
        (u64_at(record, 48), u64_at(record, 56), u64_at(record, 64)),
        (0, 0, 0)
    );
    assert_eq!(
        (u32_at(record, 72), u32_at(record, 76)),
        (0, 2),
        "epoch, LSN's incarnation"
    );
    assert_eq!(
        (u32_at(record, 80), u32_at(record, 84)),
        (2, 1),
        "layer, parent"
    );
    assert_eq!(
        (u64_at(record, 88), u64_at(record, 96)),
        (0, 101),
        "reserved, inherited"
    );
    assert_eq!(
        (u64_at(record, 104), u64_at(record, 112)),
        (101, 0),
        "mapped, cursor"
    );
    assert_eq!(u32_at(record, 132), 2, "the root's birth");
    assert_eq!(
        (record[136], record[137]),
        (1, 1),
        "the root's level, and that there is one"
    );
    assert_eq!(u64_at(record, 144), 3, "highest LSN in the map");
    assert_eq!(&record[256..261], b"alpha");

    // The segment table: segment 0 and its bitmap.
    let index = read(&image, BlockNo(u64_at(&bytes, 144)));
    assert_eq!(&index[..6], b"FSTI\x01\x02");
    let page = read(&image, BlockNo(u64_at(&index, 64)));
    assert_eq!(&page[..6], b"FSTP\x01\x02");
    assert_eq!(u16_at(&page, 6), 126);
    let record = &page[64..96];
    let bitmap = read(&image, BlockNo(261 + u64::from(record[1])));
    assert_eq!((record[0], u16_at(record, 2)), (1, 0));
    assert_eq!(
        u32_at(record, 4),
        flagstone_types::BlockChecksum::of(&bitmap).0
    );
    let set: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(set, u32_at(record, 8));
    assert!(
        page[96..128].iter().all(|&byte| byte == 0),
        "segment 1 is the other journal's"
    );
}

#[test]
fn layers_nodes() {
    let image = golden::from_text(LAYERS);
    let view = inspect_map(&Image::open(&image).expect("valid"), "alpha").expect("there");
    let text = view.words();
    // The map of alpha: an inner node over three leaves.
    let root = text.lines().nth(1).expect("a root");
    assert!(root.contains("level 1, layer 2, 3 entries"), "{text}");
    let block: u64 = root
        .split("block ")
        .nth(1)
        .and_then(|rest| rest.split(':').next())
        .and_then(|number| number.parse().ok())
        .expect("a number");
    let bytes = read(&image, BlockNo(block));
    assert_eq!((&bytes[..4], bytes[4], bytes[5]), (&b"FSND"[..], 1, 1));
    assert_eq!(
        (u16_at(&bytes, 6), u32_at(&bytes, 8), u32_at(&bytes, 12)),
        (3, 2, 0)
    );
    assert_eq!(u64_at(&bytes, 16), 0, "first key");
    assert_eq!(u64_at(&bytes, 24), 1002 << 1, "end");
    assert_eq!(u64_at(&bytes, 96) >> 56, 4, "a child");
    let leaf = read(&image, BlockNo(u64_at(&bytes, 96 + 8)));
    assert_eq!(
        u32_at(&bytes, 96 + 16),
        flagstone_types::BlockChecksum::of(&leaf).0
    );
    assert_eq!(bytes[96 + 20], 2, "born in layer 2");
    // Entries 7 and 8 of the leaf: virtual block 7 and the delta over it.
    let (data, delta) = (96 + 40 * 7, 96 + 40 * 8);
    assert_eq!((leaf[5], u64_at(&leaf, data)), (0, 1 << 56 | 14));
    assert_eq!((u32_at(&leaf, data + 20), u64_at(&leaf, data + 24)), (1, 1));
    assert_eq!(u64_at(&leaf, delta), 3 << 56 | 15);
    assert_eq!(u64_at(&leaf, delta + 32), 512 | 1000 << 16);
    assert_eq!(
        (u32_at(&leaf, delta + 20), u64_at(&leaf, delta + 24)),
        (2, 2)
    );
    // The tombstone over virtual blocks 20 to 29.
    let tombstone = 96 + 40 * 21;
    assert_eq!(u64_at(&leaf, tombstone), 2 << 56 | 40);
    assert_eq!(
        (u64_at(&leaf, tombstone + 8), u32_at(&leaf, tombstone + 16)),
        (0, 0)
    );
    assert_eq!(
        (u64_at(&leaf, tombstone + 24), u64_at(&leaf, tombstone + 32)),
        (3, 10)
    );
    assert!(text.contains("metadata 0x1122334455667788"), "{text}");
}

#[test]
fn layers_as_a_whole() {
    let image = golden::from_text(LAYERS);
    let report = check(&image);
    let counts = &report.counts;
    assert_eq!(
        (counts.dvols, counts.snapshots, counts.hidden_layers),
        (3, 1, 1)
    );
    assert_eq!((counts.groups, counts.segments), (0, 2));
    // 112 of alpha, one of beta, one of the other journal, and what is left of the deleted one.
    assert_eq!(
        (counts.data_blocks, counts.delta_blocks),
        (114 + 20 - 11, 1)
    );
    let opened = Image::open(&image).expect("valid");
    let view = inspect(&opened, false);
    let names: Vec<(&str, usize, &str)> = view.journals[0]
        .layers
        .iter()
        .map(|layer| (layer.kind, layer.depth, layer.record.name.as_str()))
        .collect();
    let expected = [
        ("snapshot", 0, "monday"),
        ("dvol", 1, "alpha"),
        ("dvol", 1, "beta"),
        ("deleted", 0, ""),
    ];
    assert_eq!(names, expected);
    let deleted = &view.journals[0].layers[3].record;
    assert_eq!(
        (deleted.kind, deleted.flags),
        (RecordKind::Layer, FLAG_HIDDEN)
    );
    assert_eq!(deleted.reap_cursor, Key(22));
    assert_eq!(view.journals[0].layers[0].record.created_ns, 77);
    assert_eq!(view.journals[1].layers[0].record.layer, LayerNo(1));
}

#[test]
fn journal_groups() {
    let image = golden::from_text(JOURNAL);
    let opened = Image::open(&image).expect("valid");
    let roots = opened.roots(0);
    let root = roots.current().expect("a root");
    assert_eq!(
        (root.next_seq, root.ring_index, root.incarnation),
        (121, 120, 2)
    );
    let bytes = read(&image, BlockNo(3 + 120));
    assert_eq!(
        (&bytes[..4], u16_at(&bytes, 4), u16_at(&bytes, 6)),
        (&b"FSJG"[..], 1, 1)
    );
    assert_eq!(
        (u64_at(&bytes, 8), u32_at(&bytes, 16)),
        (0x0123_4567_89ab_cdef, 2)
    );
    assert_eq!(
        (u16_at(&bytes, 20), u16_at(&bytes, 22)),
        (0, 0),
        "journal, flags"
    );
    assert_eq!(
        (u64_at(&bytes, 24), u64_at(&bytes, 32)),
        (121, root.prev_hash.0)
    );
    assert_eq!(
        (u64_at(&bytes, 40), u32_at(&bytes, 48)),
        (120, 12),
        "watermark, body"
    );
    let mut hashed = bytes.clone();
    hashed[56..64].fill(0);
    assert_eq!(u64_at(&bytes, 56), ChainHash::of(&hashed).0);
    assert_eq!(
        (bytes[64], bytes[65], u32_at(&bytes, 68), u32_at(&bytes, 72)),
        (11, 0, 4, 0)
    );

    let ring = Ring::scan(&opened, root);
    let pad = &ring.groups[7].header;
    assert_eq!((pad.pad, pad.block_count, pad.seq), (true, 1, 128));
    assert_eq!(
        (ring.groups[8].ring_index, ring.groups[8].header.block_count),
        (0, 2)
    );
    assert_eq!((ring.end_seq, ring.watermark), (140, 137));
    assert!(ring.strays.is_empty() && ring.flipped.is_none());
}

#[test]
fn journal_records() {
    let image = golden::from_text(JOURNAL);
    let opened = Image::open(&image).expect("valid");
    let roots = opened.roots(0);
    let ring = Ring::scan(&opened, roots.current().expect("a root"));
    let units: Vec<Vec<Record>> = ring
        .groups
        .iter()
        .flat_map(|g| read_units(&opened, 0, g).expect("valid"))
        .collect();
    let view = inspect(&opened, true);
    let lines: Vec<&str> = view.journals[0]
        .groups
        .iter()
        .flat_map(|group| &group.units)
        .flatten()
        .map(String::as_str)
        .collect();
    let expected = [
        "reserve segment 0",
        "create dvol 'alpha' in slot 0",
        "create dvol 'beta' in slot 1",
        "update slot 0: name 'alpha', 5368709120 bytes, epoch 0, 10 blocks reserved",
        "map slot 0, LSN 0.1: 12 blocks, v4 to v15 at 133",
        "map slot 1, LSN 0.1: 1 blocks, v4 at 145",
        "delta slot 0, LSN 0.2: 200 bytes at 100 of virtual block 4, in block 146",
        "snapshot 'monday' of slot 0 in slot 2; the head is layer 3 now",
        "map slot 0, LSN 0.3: 500 blocks, v100 to v599 at 147",
        "unmap slot 0, LSN 0.4: v100 to v589",
        "roll slot 0 back to slot 2, LSN 0.5; the old head goes to slot 3, the new one is layer 4",
        "free what only slot 3 needs, up to virtual block 4503599627370496",
        "delete the dvol in slot 1",
        "delete the layer in slot 2",
        "reserve segment 0",
        "map slot 0, LSN 0.6: 1 blocks, v60 at 647",
        "abort unit 0 of group 136",
        "map slot 0, LSN 0.6: 1 blocks, v61 at 648",
        "map slot 0, LSN 0.7: 1 blocks, v62 at 649",
    ];
    assert_eq!(lines, expected);
    assert_eq!(units[4].len(), 2, "one unit over two dvols");
    assert!(
        units
            .iter()
            .enumerate()
            .all(|(index, unit)| index == 4 || unit.len() == 1)
    );
    let Record::Map { slot, lsn, runs } = &units[4][1] else {
        panic!("a map record")
    };
    assert_eq!((*slot, *lsn, runs[0].blocks[0].meta), (Slot(1), Lsn(1), 9));
}

#[test]
fn journal_as_a_whole() {
    let image = golden::from_text(JOURNAL);
    let report = check(&image);
    let counts = &report.counts;
    // Eighteen units, without the aborted one and the one whose data is missing.
    assert_eq!(
        (counts.groups, counts.units, counts.dropped_units),
        (19, 16, 1)
    );
    assert_eq!(
        (counts.dvols, counts.snapshots, counts.hidden_layers),
        (1, 0, 2),
        "alpha, its deleted snapshot and beta are only in the ring"
    );
    // Alpha: 12 blocks and a delta from the snapshot, one of its own; beta's waits to be freed.
    assert_eq!((counts.data_blocks, counts.delta_blocks), (14, 1));
    let opened = Image::open(&image).expect("valid");
    let words = inspect_block(&opened, BlockNo(647)).words();
    assert!(
        words.contains("named by group 136 of journal 0: map slot 0"),
        "{words}"
    );
    assert!(words.contains("index 647 of segment 0"), "{words}");
    let words = inspect_block(&opened, BlockNo(3 + 127)).words();
    assert!(words.contains("ring index 127 of journal 0"), "{words}");
    assert!(
        words.contains("part of group 128 of journal 0's chain, a pad"),
        "{words}"
    );
}

#[test]
fn engine_as_a_whole() {
    let image = golden::from_text(ENGINE);
    let counts = check(&image).counts;
    assert_eq!((counts.dropped_units, counts.hidden_layers), (0, 0));
    // Of disk-1 three and a delta (the fourth is the snapshot's alone now), one of the snapshot that
    // disk-1 wrote over, one of disk-2.
    assert_eq!((counts.data_blocks, counts.delta_blocks), (6, 1));
    let opened = Image::open(&image).expect("valid");
    let map = inspect_map(&opened, "disk-1@monday")
        .expect("a snapshot")
        .words();
    assert_eq!(map.lines().count(), 2 + 4, "{map}");
    let words = inspect(&opened, true).words();
    for expected in [
        "snapshot 'monday': slot 1, layer 1, 16 KiB mapped",
        "  dvol 'disk-1': slot 0, layer 2",
        "create dvol 'disk-2' in slot 2, a clone of slot 1",
        "unmap slot 0, LSN 0.4: v3",
    ] {
        assert!(words.contains(expected), "'{expected}' is not in\n{words}");
    }
}

#[test]
fn attributes_and_what_they_came_with() {
    let image = golden::from_text(ATTRIBUTES);
    let opened = Image::open(&image).expect("valid");
    let report = check(&image);
    assert_eq!(
        report.counts.dropped_units, 1,
        "the last one's data is missing"
    );
    let roots = opened.roots(0);
    let ring = Ring::scan(&opened, roots.current().expect("a root"));
    let groups = ring.groups.iter();
    let units: Vec<Vec<Record>> = groups
        .flat_map(|g| read_units(&opened, 0, g).expect("valid"))
        .collect();
    let described: Vec<(usize, u64, u8)> = units
        .iter()
        .flatten()
        .filter_map(|record| match record {
            Record::Attributes {
                slot,
                lsn,
                attributes,
            } => Some((slot.0 as usize, lsn.0, attributes[3])),
            _ => None,
        })
        .collect();
    assert_eq!(described, [(0, 2, 23), (0, 3, 33), (0, 4, 43)]);
}

#[test]
fn what_was_mapped_under_deltas() {
    let image = golden::from_text(UNDER);
    let counts = check(&image).counts;
    // The snapshot's two and the one below its delta, which both have.
    assert_eq!(
        (
            counts.dropped_units,
            counts.data_blocks,
            counts.delta_blocks
        ),
        (2, 3, 1)
    );
    let opened = Image::open(&image).expect("valid");
    let roots = opened.roots(0);
    let ring = Ring::scan(&opened, roots.current().expect("a root"));
    let units = ring
        .groups
        .iter()
        .flat_map(|g| read_units(&opened, 0, g).expect("valid"));
    let mapped: Vec<(u32, u64, u64, u64)> = units
        .flatten()
        .filter_map(|record| match record {
            Record::MapUnder {
                slot,
                lsn,
                vblock,
                mapped,
            } => Some((slot.0, lsn.0, vblock.0, mapped.meta)),
            _ => None,
        })
        .collect();
    assert_eq!(mapped, [(0, 3, 4, 9), (0, 5, 5, 9)]);
    let words = inspect(&opened, true).words();
    let expected = "map under a delta slot 0, LSN 0.3: v4 at ";
    assert!(words.contains(expected), "'{expected}' is not in\n{words}");
}

#[test]
fn journaled_data_behind_a_root_that_gave_some_a_block() {
    let image = golden::from_text(JOURNALED);
    let report = check(&image);
    // Two that are mapped as always, and of three that the root gave blocks the two that are still there.
    let counts = (report.counts.dropped_units, report.counts.data_blocks);
    assert_eq!(counts, (0, 4));
    let opened = Image::open(&image).expect("valid");
    let roots = opened.roots(0);
    let ring = Ring::scan(&opened, roots.current().expect("a root"));
    let units = ring
        .groups
        .iter()
        .flat_map(|g| read_units(&opened, 0, g).expect("valid"));
    let written: Vec<(u32, u64, u64, usize)> = units
        .flatten()
        .filter_map(|record| match record {
            Record::Journaled {
                slot,
                lsn,
                start,
                data,
            } => {
                let is_right = (0..data.len()).all(|at| data[at] == (at / 16) as u8);
                assert!(is_right, "{start:?}");
                Some((slot.0, lsn.0, start.0, data.len()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(written, [(0, 3, 5, 100), (0, 4, 9, 5_000)]);
    let words = inspect(&opened, true).words();
    let expected = "data of slot 0, LSN 0.4: 5000 bytes at v9 to v10, in the journal";
    assert!(words.contains(expected), "'{expected}' is not in\n{words}");
}
