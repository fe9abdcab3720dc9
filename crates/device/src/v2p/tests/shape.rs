//! How full nodes get, how much memory that takes, and how much a read looks at.

use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::support::*;
use crate::format::record::MappedBlock;
use crate::v2p::{Edit, Map, MapStats};

fn full_size() -> Rc<MapStats> {
    Rc::default()
}

fn mapped(block: u64) -> MappedBlock {
    MappedBlock {
        block: BlockNo(block),
        checksum: BlockChecksum(1),
        meta: 0,
    }
}

fn write(map: &mut Map, edit: &mut Edit, vblock: u64) {
    let MappedBlock {
        block,
        checksum,
        meta,
    } = mapped(vblock % 1000);
    map.write(edit, VBlock(vblock), block, checksum, meta, Lsn(1));
    edit.clear();
}

/// Entries per node, in percent of what fits. All nodes count, so a full tree is not quite at 100.
fn fill_percent(map: &Map) -> u64 {
    map.check_invariants();
    map.mapped_count() * 100 / (map.stats().loaded_nodes() as u64 * map.stats().fanout as u64)
}

const MILLION: u64 = 1_000_000;

/// The figure of `docs/operating.md`. Sizes are those of what was allocated, added up node by node.
#[test]
fn memory_of_a_mapped_tebibyte() {
    const GIB_BLOCKS: u64 = 1 << 18;
    const TIB_BLOCKS: u64 = 1 << 28;
    let per_tib = |map: &Map| {
        let per_block = map.stats().loaded_bytes() as f64 / map.mapped_count() as f64;
        per_block * TIB_BLOCKS as f64 / f64::from(1 << 30)
    };
    let ascending = per_tib(&run_map(GIB_BLOCKS));
    let mut map = Map::empty(full_size());
    let mut edit = Edit::new(LayerNo(1));
    let mut random = Random(1);
    while map.mapped_count() < GIB_BLOCKS {
        write(&mut map, &mut edit, random.below(TIB_BLOCKS));
    }
    let scattered = per_tib(&map);
    println!("a mapped TiB: {ascending:.2} GiB in order, {scattered:.2} GiB at random");
    assert!((10.0..10.8).contains(&ascending), "{ascending}");
    assert!((11.0..12.0).contains(&scattered), "{scattered}");
}

/// Nodes that lost half of their entries give memory back, and those of which one comes and goes keep it.
#[test]
fn nodes_give_back_much_and_not_little() {
    const BLOCKS: u64 = 100_000;
    let mut map = run_map(BLOCKS);
    let mut edit = Edit::new(LayerNo(1));
    let full = map.stats().loaded_bytes();
    let mut change = |map: &mut Map, from: u64, count: u64| {
        for leaf in (0..BLOCKS).step_by(100) {
            let start = leaf + from;
            map.deallocate(&mut edit, VBlock(start)..VBlock(start + count), Lsn(0));
            edit.clear();
        }
    };
    change(&mut map, 10, 10);
    assert_eq!(map.stats().loaded_bytes(), full, "a tenth less");
    // Two neighbours with so many can't be merged.
    change(&mut map, 20, 42);
    let entries = map.mapped_count() as usize;
    let kept = map.stats().loaded_bytes();
    assert_eq!(entries, 48_000);
    assert!(kept < full * 2 / 3, "{kept} of {full}");
    map.check_invariants();
}

#[test]
fn a_million_ascending_writes_fill_the_leaves() {
    let mut map = Map::empty(full_size());
    let mut edit = Edit::new(LayerNo(1));
    for vblock in 0..MILLION {
        write(&mut map, &mut edit, vblock);
    }
    assert_eq!(map.mapped_count(), MILLION);
    assert!(fill_percent(&map) >= 98);
    // The memory that the module's page speaks of.
    let bytes = map.stats().loaded_bytes() as u64;
    assert!(bytes < MILLION * 43, "{bytes} bytes");
    let runs = run_map(MILLION);
    assert!(fill_percent(&runs) >= 98);
    for vblock in [0, 1, 99, 100, 123_456, 999_999] {
        assert_eq!(
            map.get(VBlock(vblock)).unwrap().data().unwrap().block.0,
            vblock % 1000
        );
    }
}

fn run_map(count: u64) -> Map {
    let mut map = Map::empty(full_size());
    let mut edit = Edit::new(LayerNo(1));
    let blocks: Vec<MappedBlock> = (0..256).map(mapped).collect();
    for start in (0..count).step_by(256) {
        let len = (count - start).min(256) as usize;
        map.write_run(&mut edit, VBlock(start), &blocks[..len], Lsn(1));
    }
    assert!(edit.displaced.is_empty() && edit.retired.is_empty());
    map
}

#[test]
fn overwriting_in_runs_keeps_the_shape() {
    let mut map = run_map(100_000);
    let nodes = map.stats().loaded_nodes();
    let mut edit = Edit::new(LayerNo(1));
    let blocks: Vec<MappedBlock> = (0..256).map(mapped).collect();
    for start in (13..99_000).step_by(300) {
        map.write_run(&mut edit, VBlock(start), &blocks, Lsn(2));
    }
    assert_eq!(
        (map.stats().loaded_nodes(), map.mapped_count()),
        (nodes, 100_000)
    );
    assert_eq!(edit.displaced.len(), 330 * 256);
    assert_eq!((edit.dirtied, edit.retired.len()), (0, 0));
    map.check_invariants();
}

#[test]
fn descending_and_interleaved_writes_fill_the_leaves() {
    let mut edit = Edit::new(LayerNo(1));
    let mut descending = Map::empty(full_size());
    for vblock in (0..100_000).rev() {
        write(&mut descending, &mut edit, vblock);
    }
    assert!(fill_percent(&descending) >= 97);
    // Four writers, each in its own region, one block each in turn.
    let mut regions = Map::empty(full_size());
    for vblock in 0..25_000 {
        for region in 0..4 {
            write(&mut regions, &mut edit, region << 30 | vblock);
        }
    }
    assert!(fill_percent(&regions) >= 95);
    // Every other block, then the ones between.
    let mut gaps = Map::empty(full_size());
    for vblock in (0..100_000).step_by(2).chain((1..100_000).step_by(2)) {
        write(&mut gaps, &mut edit, vblock);
    }
    assert!(fill_percent(&gaps) >= 48);
    // Into a hole that others have left.
    let mut hole = Map::empty(full_size());
    for vblock in (0..1000).chain(60_000..61_000).chain(1000..60_000) {
        write(&mut hole, &mut edit, vblock);
    }
    assert!(fill_percent(&hole) >= 95);
}

#[test]
fn a_million_random_writes_leave_two_thirds() {
    let mut map = Map::empty(full_size());
    let mut edit = Edit::new(LayerNo(1));
    let mut random = Random(7);
    for _ in 0..MILLION {
        write(&mut map, &mut edit, random.below(1 << 40));
    }
    let fill = fill_percent(&map);
    assert!((65..=75).contains(&fill), "{fill} %");
    let per_entry = map.stats().loaded_bytes() as u64 / map.mapped_count();
    assert!(per_entry <= 50, "{per_entry} bytes per entry");
    // Most of it goes again; neighbours merge.
    let mut random = Random(7);
    let vblocks: Vec<u64> = (0..MILLION).map(|_| random.below(1 << 40)).collect();
    for &vblock in &vblocks[..950_000] {
        map.deallocate(&mut edit, VBlock(vblock)..VBlock(vblock + 1), Lsn(2));
        edit.clear();
    }
    map.drop_tombstones(&mut edit, Lsn(2), VBlock(0), usize::MAX)
        .unwrap();
    assert!(map.mapped_count() <= 50_000);
    assert!(fill_percent(&map) >= 40, "{} %", fill_percent(&map));
    for &vblock in &vblocks[950_000..] {
        assert!(map.get(VBlock(vblock)).unwrap().data().is_some());
        map.deallocate(&mut edit, VBlock(vblock)..VBlock(vblock + 1), Lsn(3));
    }
    map.drop_tombstones(&mut edit, Lsn(3), VBlock(0), usize::MAX)
        .unwrap();
    assert!(map.is_empty());
    assert_eq!(map.stats().loaded_nodes(), 0);
}

#[test]
fn a_lookup_under_a_thousand_snapshots_looks_at_as_many_nodes_as_under_none() {
    let mut random = Random(3);
    let mut visits = |snapshots: u64| {
        let mut map = run_map(50_000);
        let mut kept = Vec::new();
        for snapshot in 0..snapshots {
            kept.push(map.clone());
            let mut edit = Edit::new(LayerNo(2 + snapshot as u32));
            for _ in 0..5 {
                write(&mut map, &mut edit, random.below(50_000));
            }
        }
        let stats = map.stats().clone();
        let before = stats.visits.get();
        for vblock in (0..50_000).step_by(7) {
            assert!(map.get(VBlock(vblock)).unwrap().data().is_some());
            if let Some(first) = kept.first() {
                assert_eq!(
                    first.get(VBlock(vblock)).unwrap().data().unwrap().birth,
                    LayerNo(1)
                );
            }
        }
        stats.visits.get() - before
    };
    let alone = visits(0);
    let under_many = visits(1000);
    assert_eq!(
        under_many,
        2 * alone,
        "the head and the oldest snapshot, each like one map"
    );
}

#[test]
fn a_snapshot_and_a_change_copy_one_path() {
    let mut map = run_map(MILLION);
    let stats = map.stats().clone();
    let nodes = stats.loaded_nodes();
    let _snapshot = map.clone();
    assert_eq!(stats.loaded_nodes(), nodes, "a clone copies nothing");
    let mut edit = Edit::new(LayerNo(2));
    let MappedBlock {
        block,
        checksum,
        meta,
    } = mapped(5);
    map.write(&mut edit, VBlock(777_777), block, checksum, meta, Lsn(2));
    assert_eq!(
        (stats.loaded_nodes(), edit.dirtied, edit.retired.len()),
        (nodes + 3, 3, 3)
    );
}

/// Nodes are promised with what is reserved, whatever the order in which it is written.
#[test]
fn no_order_of_writes_takes_more_nodes_than_are_promised() {
    const COUNT: u64 = 60_000;
    let all = || 0..COUNT;
    let apart = |step: u64| (0..step).flat_map(move |first| (first..COUNT).step_by(step as usize));
    let mut shuffled: Vec<u64> = all().collect();
    let mut random = Random(1);
    for index in (1..shuffled.len()).rev() {
        shuffled.swap(index, random.below(index as u64 + 1) as usize);
    }
    let runs = |len: u64| {
        let starts = shuffled.iter().filter(move |&&start| start < COUNT / len);
        starts.flat_map(move |start| start * len..(start + 1) * len)
    };
    let orders: Vec<(String, Vec<u64>)> = [
        ("ascending".to_owned(), all().collect()),
        ("descending".to_owned(), all().rev().collect()),
        ("any".to_owned(), shuffled.clone()),
    ]
    .into_iter()
    .chain(
        [2, 3, 4, 5, 7, 50, 100, 150].map(|step| (format!("{step} apart"), apart(step).collect())),
    )
    .chain([2, 3, 4, 8, 16, 32, 64, 256].map(|len| (format!("runs of {len}"), runs(len).collect())))
    .collect();
    for (name, order) in orders {
        let mut map = Map::empty(full_size());
        let mut edit = Edit::new(LayerNo(1));
        let mut most = 0;
        for (nth, &vblock) in order.iter().enumerate() {
            write(&mut map, &mut edit, vblock);
            if nth as u64 % 64 == 63 {
                let (entries, nodes) = (nth as u64 + 1, map.stats().loaded_nodes() as u64);
                let promised = crate::v2p::nodes_max(entries);
                if entries > 1000 {
                    most = most.max(nodes * 1000 / promised);
                }
            }
        }
        let (nodes, entries) = (map.stats().loaded_nodes() as u64, map.mapped_count());
        println!(
            "{name}: {nodes} nodes for {entries}, at most {most} permille of what is promised"
        );
        assert!(most <= 1000, "{name}");
        assert!(nodes >= crate::v2p::nodes_min(entries), "{name}");
    }
}
