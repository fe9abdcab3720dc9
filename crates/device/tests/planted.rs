//! Each way in which the engine's bookkeeping could be wrong, with all checksums right: `verify`
//! says what it is.

use crate::support;

use flagstone_device::format::catalogue::FLAG_HIDDEN;
use flagstone_device::format::record::{MapRun, MapRuns, MappedBlock, Record};
use flagstone_device::format::table::TableKind;
use flagstone_device::offline::verify::{Kind, Options, Report, Severity, verify};
use flagstone_device::v2p::Key;
use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, Slot, VBlock};
use support::patch::{self, TestImage};
use support::{Builder, Rng};

fn check(image: &TestImage) -> Report {
    verify(image, Options::default(), &mut |_, _| {})
}

fn assert_found(image: &TestImage, kind: Kind, severity: Severity, words: &str) {
    let report = check(image);
    let found = report.findings.problems.iter().any(|problem| {
        problem.kind == kind && problem.severity == severity && problem.what.contains(words)
    });
    assert!(
        found,
        "expected {kind:?} with '{words}', found:\n{}",
        report.words()
    );
}

/// A dvol with a snapshot and a clone, all with blocks of their own.
fn family() -> (Builder, Slot, Slot, Slot) {
    let mut builder = Builder::format(4400, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "alpha", None);
    let record = builder.data(0, dvol, 0, 300, 0);
    builder.unit(0, vec![record]);
    let layer = builder.free_slots(0, 1)[0];
    let snapshot = Record::Snapshot {
        slot: dvol,
        layer_slot: layer,
        head: builder.state(0).next_layer,
        created_ns: 2,
        name: "monday".into(),
    };
    builder.unit(0, vec![snapshot]);
    let clone = builder.create(0, "beta", Some(layer));
    for (slot, start) in [(dvol, 10), (clone, 20)] {
        let record = builder.data(0, slot, start, 3, 0);
        builder.unit(0, vec![record]);
    }
    builder.checkpoint(0, false);
    (builder, dvol, layer, clone)
}

/// Where virtual block `vblock` of a slot lies.
fn block_of(builder: &Builder, slot: Slot, vblock: u64) -> BlockNo {
    let map = &builder.state(0).slot(slot).expect("in use").map;
    let mapping = map.get(VBlock(vblock)).expect("in memory");
    mapping.data().expect("mapped").block
}

#[test]
fn nothing_is_wrong_to_begin_with() {
    let (builder, ..) = family();
    let report = check(&builder.image);
    assert!(report.is_clean(), "{}", report.words());
    assert_eq!((report.counts.dvols, report.counts.snapshots), (2, 1));
    assert_eq!(report.counts.data_blocks, 306, "shared blocks count once");
}

#[test]
fn a_leak() {
    let (mut builder, ..) = family();
    let block = builder.take_block(0);
    builder.pool(0).commit(block);
    builder.checkpoint(0, false);
    assert_found(
        &builder.image,
        Kind::Leak,
        Severity::Leak,
        &format!("block {}", block.0),
    );
    assert_eq!(check(&builder.image).findings.problem_count(), 1);
}

#[test]
fn a_bitmap_that_forgets_a_block() {
    let (mut builder, dvol, ..) = family();
    let block = block_of(&builder, dvol, 11);
    builder.pool(0).release(block);
    builder.checkpoint(0, false);
    let words = format!("block {} is in use, but the bitmap", block.0);
    assert_found(&builder.image, Kind::Unmarked, Severity::Loss, &words);
}

#[test]
fn a_block_that_two_dvols_use() {
    let (mut builder, dvol, _, clone) = family();
    let block = block_of(&builder, dvol, 11);
    let mut bytes = patch::read(&builder.image, block);
    let checksum = BlockChecksum::of(&bytes);
    bytes.clear();
    // The pool is made to believe that the block is free.
    builder.pool(0).release(block);
    let mapped = MappedBlock {
        block,
        checksum,
        meta: 0,
    };
    let runs = MapRuns::from_iter([MapRun {
        start: VBlock(50),
        blocks: [mapped].into_iter().collect(),
    }]);
    let lsn = builder.next_lsn(0, clone);
    builder.unit(
        0,
        vec![Record::Map {
            slot: clone,
            lsn,
            runs,
        }],
    );
    // Replay refuses it, and after a checkpoint the maps show it.
    assert_found(
        &builder.image,
        Kind::Journal,
        Severity::Loss,
        "which is in use",
    );
    builder.checkpoint(0, false);
    assert_found(
        &builder.image,
        Kind::DoubleUse,
        Severity::Loss,
        &format!("{block} is in use"),
    );
}

#[test]
fn a_wrong_parent() {
    let (mut builder, _, _, clone) = family();
    let other = builder.create(0, "gamma", None);
    let layer_slot = builder.free_slots(0, 1)[0];
    let head = builder.state(0).next_layer;
    let name = "empty".into();
    let snapshot = Record::Snapshot {
        slot: other,
        layer_slot,
        head,
        created_ns: 1,
        name,
    };
    builder.unit(0, vec![snapshot]);
    builder.checkpoint(0, false);
    let mut image = builder.image.clone();
    patch::patch_slot(&mut image, 0, clone, |record| {
        record.parent = Some(layer_slot);
        record.layer = LayerNo(record.layer.0 + 100);
    });
    patch::patch_root(&mut image, 0, |root| root.next_layer += 1000);
    assert_found(&image, Kind::Birth, Severity::Loss, "is no part of its map");
    let mut image = builder.image.clone();
    patch::patch_slot(&mut image, 0, clone, |record| {
        record.parent = Some(Slot(99))
    });
    assert_found(
        &image,
        Kind::Catalogue,
        Severity::Loss,
        "its parent, slot 99, is empty",
    );
    let mut image = builder.image.clone();
    patch::patch_slot(&mut image, 0, clone, |record| record.parent = Some(other));
    assert_found(
        &image,
        Kind::Catalogue,
        Severity::Loss,
        "its parent is no layer but dvol 'gamma'",
    );
    let mut image = builder.image.clone();
    patch::patch_slot(&mut image, 0, clone, |record| record.parent = None);
    assert_found(&image, Kind::DoubleUse, Severity::Loss, "in use twice");
}

#[test]
fn wrong_records() {
    let (builder, dvol, layer, clone) = family();
    type Change = fn(&mut flagstone_device::format::catalogue::CatalogueRecord);
    let cases: [(Slot, Change, Kind, &str); 7] = [
        (
            dvol,
            |r| r.mapped_blocks += 1,
            Kind::Node,
            "but its parent expects 301",
        ),
        (
            dvol,
            |r| r.lsn = Lsn(1),
            Kind::Count,
            "only those up to 0.1 were given out",
        ),
        (
            clone,
            |r| r.inherited_blocks = 3,
            Kind::Count,
            "297 mapped blocks belong to older",
        ),
        (
            clone,
            |r| r.layer = LayerNo(77),
            Kind::Catalogue,
            "never given out",
        ),
        (
            clone,
            |r| r.name = "alpha".into(),
            Kind::Catalogue,
            "the same name",
        ),
        (
            clone,
            |r| r.flags = FLAG_HIDDEN,
            Kind::Catalogue,
            "a dvol can't be hidden",
        ),
        (
            layer,
            |r| r.reap_cursor = Key(8),
            Kind::Catalogue,
            "it was being freed",
        ),
    ];
    for (slot, change, kind, words) in cases {
        let mut image = builder.image.clone();
        patch::patch_slot(&mut image, 0, slot, change);
        let report = check(&image);
        let found = report.findings.problems.iter();
        let found = found
            .filter(|p| p.kind == kind && p.what.contains(words))
            .count();
        assert!(
            found > 0,
            "expected {kind:?} with '{words}', found:\n{}",
            report.words()
        );
    }
    let mut image = builder.image.clone();
    patch::patch_slot(&mut image, 0, dvol, |record| {
        record.map = None;
        record.mapped_blocks = 0;
        record.inherited_blocks = 0;
    });
    assert_found(&image, Kind::Leak, Severity::Leak, "nothing refers to");
}

#[test]
fn a_node_that_lies() {
    let (builder, dvol, ..) = family();
    type Change = fn(&mut [u8]);
    // Each change is to an entry of some node of the dvol's map, or to its header.
    let changes: [(&str, Change); 5] = [
        ("the end", |b| {
            b[24..32].copy_from_slice(&0_u64.to_le_bytes())
        }),
        ("the birth", |b| {
            b[8..12].copy_from_slice(&9999_u32.to_le_bytes())
        }),
        ("the first entry's key", |b| b[96] ^= 2),
        ("the first entry's birth", |b| b[96 + 23] = 1),
        ("the number of entries", |b| b[6] -= 1),
    ];
    for (what, change) in changes {
        for seed in 0..6 {
            let mut image = builder.image.clone();
            assert!(patch::patch_node(
                &mut image,
                0,
                dvol,
                &mut Rng::new(seed),
                change
            ));
            let report = check(&image);
            assert!(
                report.worst() == Some(Severity::Loss),
                "{what}:\n{}",
                report.words()
            );
        }
    }
}

#[test]
fn two_owners_of_a_segment() {
    let mut builder = Builder::format(2 * 32768, 2, 128);
    for journal in 0..2 {
        builder.start(journal);
        builder.reserve(journal, u32::from(journal));
        builder.create(journal, "alpha", None);
        builder.checkpoint(journal, false);
    }
    assert!(check(&builder.image).is_clean());
    let mut image = builder.image.clone();
    patch::patch_page(&mut image, 1, TableKind::Segments, 0, |bytes| {
        let (first, second) = bytes[64..].split_at_mut(32);
        first.copy_from_slice(&second[..32]);
    });
    assert_found(
        &image,
        Kind::Segment,
        Severity::Loss,
        "belongs to journal 0 and to journal 1",
    );
}

#[test]
fn groups_missing_in_the_middle() {
    let (mut builder, dvol, ..) = family();
    for start in 0..6 {
        let record = builder.data(0, dvol, start * 7, 1, 0);
        builder.unit(0, vec![record]);
        builder.flush();
    }
    assert!(check(&builder.image).is_clean());
    let third = builder.ring_live(0)[2];
    let mut image = builder.image.clone();
    image.put(third, &[]);
    assert_found(
        &image,
        Kind::Journal,
        Severity::Loss,
        "acknowledged changes are lost",
    );
    let mut image = builder.image.clone();
    let last = *builder.ring_live(0).last().expect("six groups");
    image.put(last, &[]);
    assert!(
        check(&image).is_clean(),
        "the last group was never acknowledged, for all we know"
    );
}

#[test]
fn a_lost_root_shows_by_the_groups_behind_it() {
    let (mut builder, dvol, ..) = family();
    builder.restart(0);
    let record = builder.data(0, dvol, 3, 1, 0);
    builder.unit(0, vec![record]);
    assert!(check(&builder.image).is_clean());
    let mut image = builder.image.clone();
    image.put(builder.newest_root_slot(0), b"gone");
    assert_found(
        &image,
        Kind::Journal,
        Severity::Loss,
        "a later root is lost",
    );
}

#[test]
fn an_image_that_was_cut_off() {
    let (builder, ..) = family();
    let mut short = flagstone_device::offline::Overlay::new(flagstone_device::offline::Zeros {
        block_count: 3000,
    });
    for (block, bytes) in builder.image.changed().filter(|(block, _)| block.0 < 3000) {
        short.put(block, bytes);
    }
    assert_found(&short, Kind::Device, Severity::Loss, "it was cut off");
    assert_found(&short, Kind::Superblock, Severity::Harmless, "second copy");
}

/// The family, and of its dvol some data that the journal alone has.
fn family_with_journaled() -> (Builder, Slot) {
    let (mut builder, dvol, ..) = family();
    let journaled = Record::Journaled {
        slot: dvol,
        lsn: builder.next_lsn(0, dvol),
        start: VBlock(40),
        data: (0..5_000).map(|at| at as u8).collect(),
    };
    builder.unit(0, vec![journaled]);
    let report = check(&builder.image);
    assert!(report.is_clean(), "{}", report.words());
    (builder, dvol)
}

fn next_snapshot(builder: &Builder, dvol: Slot) -> Record {
    Record::Snapshot {
        slot: dvol,
        layer_slot: builder.free_slots(0, 1)[0],
        head: builder.state(0).next_layer,
        created_ns: 3,
        name: "tuesday".into(),
    }
}

/// A layer's map could not be changed by the checkpoint that gives such data blocks.
#[test]
fn a_snapshot_of_data_that_the_journal_alone_has() {
    let (mut builder, dvol) = family_with_journaled();
    let snapshot = next_snapshot(&builder, dvol);
    // No state would apply it.
    builder.group(0, &[vec![snapshot]]);
    let words = "a dvol without data in the journal alone";
    assert_found(&builder.image, Kind::Journal, Severity::Loss, words);
}

/// Once a checkpoint has given it blocks there is nothing against it.
#[test]
fn a_snapshot_behind_the_checkpoint_that_gave_such_data_blocks_is_right() {
    let (mut builder, dvol) = family_with_journaled();
    builder.checkpoint(0, false);
    let snapshot = next_snapshot(&builder, dvol);
    builder.unit(0, vec![snapshot]);
    let report = check(&builder.image);
    assert!(report.is_clean(), "{}", report.words());
}
