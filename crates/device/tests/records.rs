//! Records that nobody who works as he should would write, in groups with right hashes. The check
//! that recovery and `verify` share refuses them or they do no harm: nothing panics, and what comes
//! of those that pass is consistent.

use crate::support;

use std::collections::BTreeMap;

use flagstone_device::format::catalogue::{FLAG_HIDDEN, RecordKind};
use flagstone_device::format::record::{MapRun, MapRuns, MappedBlock, Record};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_device::v2p::Key;
use flagstone_types::{BlockChecksum, BlockNo, Lsn, SegmentNo, Slot, VBlock};
use support::{Builder, Rng, records, script};

/// A device of three segments, the first of which is owned, with a random history.
fn build(seed: u64) -> Builder {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::format(2 * 32_768 + 300, 1, 512);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 60);
    builder.checkpoint(0, false);
    builder
}

fn assert_consistent(builder: &Builder, what: &str) {
    let report = verify(&builder.image, Options { fast: true }, &mut |_, _| {});
    assert!(report.is_clean(), "{what}:\n{}", report.words());
}

#[test]
fn random_records_are_refused_or_do_no_harm() {
    let (mut accepted, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..200 {
        let mut builder = build(seed);
        let mut rng = Rng::new(seed ^ 0xbad);
        for round in 0..300 {
            let record = records::record(&builder, &mut |below| rng.below(below));
            let Some(record) = records::through_the_device(&record) else {
                continue;
            };
            if builder.check(0, &record).is_err() {
                *refused.entry(record.type_name()).or_insert(0) += 1;
                continue;
            }
            *accepted.entry(record.type_name()).or_insert(0) += 1;
            let what = format!("seed {seed} round {round}: {record:?}");
            builder.unit(0, vec![record]);
            builder.flush();
            assert_eq!(builder.state(0).pool.misfit(), None, "{what}");
            if builder.ring_live(0).len() > 200 || builder.open_blocks(0) < 2000 {
                // A last group says that all before it is there.
                builder.group(0, &[]);
                assert_consistent(&builder, &what);
                builder.checkpoint(0, false);
                assert_consistent(&builder, &what);
            }
            if builder.open_blocks(0) < 2000 {
                break;
            }
        }
        builder.group(0, &[]);
        assert_consistent(&builder, &format!("seed {seed} at the end"));
    }
    for kinds in [&accepted, &refused] {
        // Of abort records everything is accepted here, of deletions much.
        assert!(kinds.len() >= 12, "{kinds:?}");
        let few = kinds.iter().find(|(_, count)| **count < 3);
        assert_eq!(few, None, "{kinds:?}");
    }
}

/// A dvol with a snapshot, and a deleted layer below it.
fn family() -> (Builder, Slot, Slot, Slot) {
    let mut builder = Builder::format(2 * 32_768 + 300, 1, 128);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "alpha", None);
    let mut layers = Vec::new();
    for name in ["deleted", "kept"] {
        let record = builder.data(0, dvol, 0, 8, 0);
        builder.unit(0, vec![record]);
        let layer_slot = builder.free_slots(0, 1)[0];
        let snapshot = Record::Snapshot {
            slot: dvol,
            layer_slot,
            head: builder.state(0).next_layer,
            created_ns: 2,
            name: name.into(),
        };
        builder.unit(0, vec![snapshot]);
        layers.push(layer_slot);
    }
    builder.unit(0, vec![Record::DeleteLayer { slot: layers[0] }]);
    builder.checkpoint(0, false);
    (builder, dvol, layers[0], layers[1])
}

fn map_of(slot: Slot, blocks: &[u64]) -> Record {
    let blocks = blocks.iter().map(|&block| MappedBlock {
        block: BlockNo(block),
        checksum: BlockChecksum(0),
        meta: 0,
    });
    Record::Map {
        slot,
        lsn: Lsn(1000),
        runs: MapRuns::from_iter([MapRun {
            start: VBlock(100),
            blocks: blocks.collect(),
        }]),
    }
}

/// Each kind of nonsense, with the words that must be in the error, and the same from `verify`.
#[test]
fn what_does_not_fit_is_named() {
    let (builder, dvol, deleted, kept) = family();
    let state = builder.state(0);
    let used = builder.some_data_block(0).0;
    let [bitmap, _] = builder.geometry.bitmap_slots(SegmentNo(0));
    let free = builder.geometry.data_end.0.min(32_768) - 10;
    let next = state.next_layer;
    let empty = builder.free_slots(0, 1)[0];
    let of = |slot: Slot| Box::new(state.slot(slot).expect("in use").record.clone());
    let snapshot = |layer_slot, head, name: &str| Record::Snapshot {
        slot: dvol,
        layer_slot,
        head,
        created_ns: 1,
        name: name.into(),
    };
    let back = |to, head, lsn| Record::Rollback {
        slot: dvol,
        to,
        discard_slot: empty,
        head,
        lsn,
        size_bytes: 1,
    };
    let changed =
        |slot, change: &dyn Fn(&mut flagstone_device::format::catalogue::CatalogueRecord)| {
            let mut record = of(slot);
            change(&mut record);
            Record::Update { slot, record }
        };
    let clone_of = |parent, number: u32| {
        let mut record = of(dvol);
        record.name = "clone".into();
        record.parent = Some(parent);
        record.layer = flagstone_types::LayerNo(number);
        Record::CreateDvol {
            slot: empty,
            record,
        }
    };
    let block = |n| format!("{}", BlockNo(n));
    let cases: Vec<(Record, Vec<String>)> = vec![
        (map_of(dvol, &[used]), vec!["in use".into(), block(used)]),
        (
            map_of(dvol, &[free, free]),
            vec!["twice".into(), block(free)],
        ),
        (
            map_of(dvol, &[bitmap.0]),
            vec!["bitmap".into(), block(bitmap.0)],
        ),
        (
            map_of(dvol, &[40_000]),
            vec!["this journal's segments".into()],
        ),
        (
            map_of(dvol, &[1 << 39]),
            vec!["this journal's segments".into()],
        ),
        (map_of(dvol, &[1]), vec!["this journal's segments".into()]),
        (
            map_of(kept, &[free]),
            vec!["expected a dvol in slot".into(), "'kept'".into()],
        ),
        (map_of(empty, &[free]), vec!["found nothing".into()]),
        (
            Record::ReleaseSegment {
                segment: SegmentNo(0),
            },
            vec!["to be empty".into()],
        ),
        (
            Record::ReserveSegment {
                segment: SegmentNo(7),
            },
            vec!["found 7".into()],
        ),
        (
            Record::Reap {
                slot: deleted,
                to: Key(3),
            },
            vec!["found key 3".into()],
        ),
        (
            Record::Reap {
                slot: kept,
                to: Key(4),
            },
            vec!["expected a deleted layer".into()],
        ),
        (
            Record::DeleteLayer { slot: deleted },
            vec!["found deleted layer".into()],
        ),
        (
            Record::DeleteDvol { slot: kept },
            vec!["expected a dvol".into()],
        ),
        (
            snapshot(empty, next - 1, "new"),
            vec![format!("from {next} on")],
        ),
        (
            snapshot(empty, u32::MAX, "new"),
            vec![format!("found {}", u32::MAX)],
        ),
        (
            snapshot(kept, next, "new"),
            vec!["expected nothing in slot".into()],
        ),
        (
            snapshot(empty, next, "kept"),
            vec!["expected a new name".into()],
        ),
        (
            back(deleted, next, Lsn(1000)),
            vec!["not deleted".into(), "found deleted layer".into()],
        ),
        (
            back(kept, next - 1, Lsn(1000)),
            vec![format!("from {next} on")],
        ),
        (
            back(kept, next, Lsn(0)),
            vec!["expected an LSN from".into()],
        ),
        (
            back(kept, next, Lsn(u64::MAX)),
            vec!["expected an LSN up to".into()],
        ),
        (
            changed(kept, &|r| r.flags |= FLAG_HIDDEN),
            vec!["stay visible".into()],
        ),
        (
            changed(deleted, &|r| r.flags = 0),
            vec!["found deleted layer".into()],
        ),
        (
            changed(kept, &|r| r.kind = RecordKind::Dvol),
            vec!["expected a Dvol".into()],
        ),
        (
            changed(dvol, &|r| r.lsn = Lsn(u64::MAX)),
            vec!["expected an LSN up to".into()],
        ),
        (clone_of(empty, next), vec!["a whole layer".into()]),
        (clone_of(dvol, next), vec!["a whole layer".into()]),
        (clone_of(kept, next - 1), vec![format!("from {next} on")]),
    ];
    for (record, words) in cases {
        let (mut builder, ..) = family();
        let error = builder.check(0, &record).expect_err("does not fit");
        let all = words.iter().all(|w| error.message.contains(w.as_str()));
        assert!(all, "expected {words:?} in '{error}' for {record:?}");
        assert!(error.message.starts_with(record.type_name()), "{error}");
        // The same through an image.
        builder.group(0, &[vec![record.clone()]]);
        builder.flush();
        builder.group(0, &[]);
        let report = verify(&builder.image, Options::default(), &mut |_, _| {});
        let is_named = |what: &str| words.iter().all(|w| what.contains(w.as_str()));
        let found = report.findings.problems.iter();
        assert!(
            found
                .into_iter()
                .any(|p| is_named(&p.what) && p.what.contains("group ")),
            "{record:?}:\n{}",
            report.words()
        );
    }
}

/// Maps and bitmaps that contradict each other are noticed when it matters, whatever is in memory.
#[test]
fn freeing_what_is_free_is_kept_as_a_misfit() {
    let (mut builder, ..) = family();
    let pool = builder.pool(0);
    pool.release(BlockNo(20_000));
    let misfit = pool.misfit().expect("is kept");
    assert_eq!(misfit.block, BlockNo(20_000));
    let (used, open) = (pool.used_blocks(), pool.open_blocks());
    for block in [0, 40_000, 1 << 39] {
        pool.release(BlockNo(block));
        pool.commit(BlockNo(block));
        pool.reopen(BlockNo(block));
    }
    pool.remove(SegmentNo(0));
    pool.remove(SegmentNo(1));
    assert_eq!((pool.used_blocks(), pool.open_blocks()), (used, open));
    assert_eq!(pool.misfit(), Some(misfit), "the first one is told");
}
