//! Single promises of the interface.

use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::support::*;
use crate::v2p::{
    DirtyWalk, Edit, Entry, EntryKind, EvictState, FreeRule, Key, Map, MapStats, Missing, NodePtr,
    Reaping, reap_step,
};

fn small() -> Rc<MapStats> {
    Rc::new(MapStats::with_fanout(4))
}

fn edit(layer: u32) -> Edit {
    Edit::new(LayerNo(layer))
}

fn tombstones(map: &Map) -> Vec<(u64, u64, u64)> {
    let entries = entries_of(map, &mut Store::default());
    let only = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Tombstone);
    only.map(|e| (e.key.vblock().0, e.end_vblock().0, e.lsn.0))
        .collect()
}

fn deallocate(map: &mut Map, start: u64, end: u64, lsn: u64) {
    map.deallocate(&mut edit(1), VBlock(start)..VBlock(end), Lsn(lsn));
    map.check_invariants();
}

#[test]
fn a_deallocation_leaves_one_tombstone_over_what_was_there() {
    let mut map = Map::empty(small());
    deallocate(&mut map, 0, 1000, 1);
    assert!(map.is_empty(), "nothing was ever written");
    fill_range(&mut map, &mut edit(1), 100..200, Lsn(2));
    fill_range(&mut map, &mut edit(1), 300..310, Lsn(2));
    deallocate(&mut map, 150, 100_000, 3);
    assert_eq!(tombstones(&map), [(150, 310, 3)]);
    assert_eq!(map.mapped_count(), 50);
    // Older ones keep what lies outside.
    deallocate(&mut map, 200, 210, 4);
    assert_eq!(
        tombstones(&map),
        [(150, 200, 3), (200, 210, 4), (210, 310, 3)]
    );
    // One that is as young and covers it all makes it unnecessary.
    deallocate(&mut map, 201, 205, 4);
    deallocate(&mut map, 150, 160, 2);
    assert_eq!(
        tombstones(&map),
        [(150, 200, 3), (200, 210, 4), (210, 310, 3)]
    );
    deallocate(&mut map, 0, 1 << 52, 5);
    assert_eq!(tombstones(&map), [(100, 310, 5)]);
    assert_eq!((map.mapped_count(), map.max_lsn()), (0, Lsn(5)));
}

#[test]
fn touching_tombstones_of_one_lsn_become_one() {
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..100, Lsn(1));
    deallocate(&mut map, 10, 20, 2);
    deallocate(&mut map, 20, 30, 2);
    deallocate(&mut map, 30, 40, 3);
    assert_eq!(tombstones(&map), [(10, 30, 2), (30, 40, 3)]);
    deallocate(&mut map, 25, 50, 3);
    assert_eq!(tombstones(&map), [(10, 25, 2), (25, 50, 3)]);
    // Reaching into the range from either side.
    deallocate(&mut map, 40, 60, 3);
    assert_eq!(tombstones(&map), [(10, 25, 2), (25, 60, 3)]);
    deallocate(&mut map, 70, 80, 4);
    deallocate(&mut map, 65, 75, 4);
    assert_eq!(tombstones(&map), [(10, 25, 2), (25, 60, 3), (65, 80, 4)]);
}

#[test]
fn a_tombstone_is_found_from_anywhere_within() {
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..100, Lsn(1));
    deallocate(&mut map, 20, 80, 2);
    let whole = map.get(VBlock(20)).unwrap().base.expect("a tombstone");
    assert_eq!((whole.kind, whole.meta), (EntryKind::Tombstone, 60));
    for vblock in 20..80 {
        assert_eq!(map.get(VBlock(vblock)).unwrap().base, Some(whole));
        let mut out = Vec::new();
        map.lookup(VBlock(vblock)..VBlock(vblock + 1), 9, &mut out)
            .unwrap();
        map.changed_since(VBlock(vblock)..VBlock(vblock + 1), Lsn(1), 9, &mut out)
            .unwrap();
        assert_eq!(out, [whole, whole]);
    }
    assert_eq!(
        map.get(VBlock(80)).unwrap().data().map(|e| e.block),
        Some(BlockNo(81))
    );
}

#[test]
fn the_last_block_of_a_dvol() {
    let last = (1 << 52) - 1;
    let mut map = Map::empty(small());
    put(&mut map, &mut edit(1), &data(last, 7, LayerNo(1), Lsn(1)));
    put(&mut map, &mut edit(1), &delta(last, 8, LayerNo(1), Lsn(2)));
    let found = map.get(VBlock(last)).unwrap();
    assert_eq!(found.data().map(|e| e.block), Some(BlockNo(7)));
    assert_eq!(found.delta.map(|e| e.block), Some(BlockNo(8)));
    assert_eq!(map.get(VBlock(u64::MAX)).unwrap(), Default::default());
    let mut out = Vec::new();
    map.lookup(VBlock(last)..VBlock(u64::MAX), 9, &mut out)
        .unwrap();
    assert_eq!(out.len(), 2);
    assert!(map.missing(VBlock(0)..VBlock(u64::MAX)).is_none());
    map.check_invariants();
    let mut store = Store::default();
    let again = reopen(&map, &mut store);
    assert_eq!(entries_of(&again, &mut store), out);
}

#[test]
fn an_awaited_node_arrives_in_all_copies() {
    let mut store = Store::default();
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..60, Lsn(1));
    let mut map = reopen(&map, &mut store);
    let copy = map.clone();
    let (one, other) = (
        map.get(VBlock(50)).unwrap_err(),
        copy.get(VBlock(9)).unwrap_err(),
    );
    assert!(one.is_same(&other), "both wait for the root");
    store.fill(&one);
    assert!(other.is_filled());
    // Something else is changed, and so the path copied, while a leaf is on its way.
    let mut awaited = None;
    for _ in 0..10 {
        match map.get(VBlock(50)) {
            Err(missing) if missing.ptr().level == 0 => awaited = Some(missing),
            Err(missing) => store.fill(&missing),
            Ok(_) => unreachable!("nobody loaded the leaf"),
        }
        if awaited.is_some() {
            break;
        }
    }
    let awaited = awaited.expect("the leaf is missing");
    let mut random = Random(1);
    store.prepare(&map, VBlock(0)..VBlock(1), &mut random);
    let mut change = edit(2);
    put(&mut map, &mut change, &data(0, 99, LayerNo(2), Lsn(2)));
    assert!(!change.retired.is_empty());
    let loads = store.loads;
    store.fill(&awaited);
    store.fill(&awaited);
    for map in [&map, &copy] {
        assert_eq!(
            map.get(VBlock(50)).unwrap().data().map(|e| e.block),
            Some(BlockNo(51))
        );
    }
    assert_eq!(store.loads, loads + 2, "nothing else had to be loaded");
    assert_eq!(
        store.load(|| copy.get(VBlock(0))).data().map(|e| e.block),
        Some(BlockNo(1))
    );
}

#[test]
fn only_the_right_node_is_accepted() {
    let mut store = Store::default();
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..60, Lsn(1));
    let map = reopen(&map, &mut store);
    let missing = map.missing(ALL).expect("the root");
    let right = store.nodes[&missing.block().0].clone();
    for (block, bytes) in &store.nodes {
        assert_eq!(
            missing.fill_from(bytes).is_ok(),
            *block == missing.block().0
        );
        if *block == missing.block().0 {
            break;
        }
    }
    assert!(missing.fill_from(&right[..4095]).is_err());
    assert!(missing.is_filled());
}

#[test]
#[should_panic(expected = "asks for missing nodes first")]
fn changing_what_is_not_loaded_panics() {
    let mut store = Store::default();
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..60, Lsn(1));
    let mut map = reopen(&map, &mut store);
    put(&mut map, &mut edit(1), &data(0, 99, LayerNo(1), Lsn(2)));
}

#[test]
fn what_an_edit_retires_and_when_it_has_a_place() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats.clone());
    let mut first = edit(1);
    put(&mut map, &mut first, &data(1, 1, LayerNo(1), Lsn(1)));
    put(&mut map, &mut first, &data(2, 2, LayerNo(1), Lsn(1)));
    assert_eq!((first.dirtied, first.retired.len()), (1, 0), "in place");

    // A copy holds the dirty node, and has it written later.
    let frozen = map.clone();
    let mut second = edit(1);
    put(&mut map, &mut second, &data(3, 3, LayerNo(1), Lsn(2)));
    assert_eq!((second.dirtied, second.retired.len()), (1, 1));
    assert_eq!(second.retired[0].location(), None);
    assert_eq!(stats.dirty_nodes(), 2);
    store.write(&frozen, || 77);
    assert_eq!(
        second.retired[0].location().map(|(block, _)| block),
        Some(BlockNo(77))
    );
    assert_eq!(stats.dirty_nodes(), 1);
    assert!(map.is_dirty() && !frozen.is_dirty());
    drop(frozen);

    // A clean node is replaced, whether or not somebody else holds it.
    store.write(&map, || 78);
    let mut third = edit(4);
    put(&mut map, &mut third, &data(3, 4, LayerNo(4), Lsn(3)));
    assert_eq!(
        third.retired[0].location().map(|(block, _)| block),
        Some(BlockNo(78))
    );
    assert_eq!(
        (third.retired[0].birth, third.retired[0].end_key),
        (LayerNo(1), Key(8))
    );
    assert_eq!(third.displaced, [data(3, 3, LayerNo(1), Lsn(2))]);

    // A dirty node of an older layer that is only ours belongs to the new layer from then on.
    let mut fourth = edit(6);
    put(&mut map, &mut fourth, &data(4, 5, LayerNo(6), Lsn(4)));
    assert_eq!((fourth.dirtied, fourth.retired.len()), (0, 0));
    store.write(&map, || 79);
    assert_eq!(map.root_ptr().map(|ptr| ptr.birth), Some(LayerNo(6)));
}

#[test]
fn what_is_emptied_is_retired_even_if_only_its_parent_is_shared() {
    let stats = small();
    let mut map = Map::empty(stats.clone());
    fill_range(&mut map, &mut edit(1), 0..200, Lsn(1));
    let frozen = map.clone();
    let nodes = stats.loaded_nodes();
    let mut change = edit(1);
    map.deallocate(&mut change, VBlock(0)..VBlock(1 << 52), Lsn(2));
    assert_eq!(change.displaced.len(), 200);
    assert_eq!(
        change.retired.len(),
        nodes,
        "the copy will have all of them written"
    );
    let mut next = 0;
    Store::default().write(&frozen, || {
        next += 1;
        next
    });
    assert!(change.retired.iter().all(|node| node.location().is_some()));
}

#[test]
fn maps_frozen_together_are_written_once() {
    let stats = small();
    let mut store = Store::default();
    let mut head = Map::empty(stats.clone());
    fill_range(&mut head, &mut edit(1), 0..100, Lsn(1));
    let snapshot = head.clone();
    put(&mut head, &mut edit(2), &data(50, 1000, LayerNo(2), Lsn(2)));
    let dirty = stats.dirty_nodes();
    assert!(DirtyWalk::count(&head) + DirtyWalk::count(&snapshot) > dirty);
    let (frozen_head, frozen_snapshot) = (head.clone(), snapshot.clone());
    let mut blocks = 0;
    for map in [&frozen_head, &frozen_snapshot] {
        store.write(map, || {
            blocks += 1;
            blocks
        });
    }
    assert_eq!((blocks as usize, stats.dirty_nodes()), (dirty, 0));
    assert!(!head.is_dirty() && !snapshot.is_dirty());
    assert_eq!(DirtyWalk::count(&head), 0);
    assert!(DirtyWalk::new(&head).next().is_none());
}

#[test]
fn eviction_spares_what_is_dirty_unwritten_or_in_use() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats.clone());
    fill_range(&mut map, &mut edit(1), 0..200, Lsn(1));
    let everything = |map: &Map| {
        let mut state = EvictState::default();
        (0..4)
            .map(|_| map.evict(&mut state, usize::MAX))
            .sum::<usize>()
    };
    assert_eq!(everything(&map), 0, "all dirty");
    let mut walk = DirtyWalk::new(&map);
    let mut block = 0;
    while let Some(node) = walk.next() {
        block += 1;
        let mut bytes = vec![0; 4096];
        node.write_to(BlockNo(block), &mut bytes);
        store.nodes.insert(block, bytes);
    }
    assert_eq!(everything(&map), 0, "writes have not ended");
    stats.node_writes_done();
    assert_eq!(entries_of(&map, &mut store).len(), 200);
    let mut state = EvictState::default();
    assert_eq!(map.evict(&mut state, usize::MAX), 0, "the second chance");
    assert!(state.is_at_start());
    map.get(VBlock(0)).unwrap();
    let loaded = stats.loaded_nodes();
    let mut dropped = 0;
    loop {
        dropped += map.evict(&mut state, 3);
        if state.is_at_start() {
            break;
        }
    }
    // All but the path to block 0, which is in memory still.
    assert_eq!(stats.loaded_nodes(), loaded - dropped);
    map.get(VBlock(0)).unwrap();
    let level = map.root_ptr().expect("not empty").level;
    assert_eq!(stats.loaded_nodes(), usize::from(level) + 1);
    everything(&map);
    assert_eq!(stats.loaded_nodes(), 0);
    assert_eq!(entries_of(&map, &mut store).len(), 200);
}

#[test]
fn eviction_through_a_copy_leaves_the_place_behind() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats.clone());
    fill_range(&mut map, &mut edit(1), 0..100, Lsn(1));
    let frozen = map.clone();
    // Copies of the inner nodes, which still say that their children lie nowhere.
    put(&mut map, &mut edit(1), &data(3, 1000, LayerNo(1), Lsn(2)));
    let mut block = 0;
    store.write(&frozen, || {
        block += 1;
        block
    });
    let mut state = EvictState::default();
    map.evict(&mut state, usize::MAX);
    assert!(map.evict(&mut state, usize::MAX) > 0);
    drop(frozen);
    map.check_invariants();
    let found = entries_of(&map, &mut store);
    assert_eq!((found.len(), found[99].block), (100, BlockNo(100)));
    store.write(&map, || {
        block += 1;
        block
    });
    let again = reopen(&map, &mut store);
    assert_eq!(entries_of(&again, &mut store), found);
}

#[test]
fn a_lookup_is_as_it_was_when_a_node_is_missing() {
    let mut store = Store::default();
    let mut map = Map::empty(small());
    fill_range(&mut map, &mut edit(1), 0..60, Lsn(1));
    let map = reopen(&map, &mut store);
    store.prepare(&map, VBlock(0)..VBlock(5), &mut Random(1));
    let mut out = vec![data(1, 1, LayerNo(1), Lsn(1))];
    assert!(map.lookup(VBlock(0)..VBlock(60), 99, &mut out).is_err());
    assert_eq!(out.len(), 1);
    map.lookup(VBlock(0)..VBlock(5), 99, &mut out).unwrap();
    assert_eq!(out.len(), 6);
}

#[test]
fn a_limit_does_not_part_data_from_its_delta() {
    let mut map = Map::empty(small());
    for vblock in 0..50 {
        put(&mut map, &mut edit(1), &data(vblock, 1, LayerNo(1), Lsn(1)));
        put(
            &mut map,
            &mut edit(1),
            &delta(vblock, 2, LayerNo(1), Lsn(2)),
        );
    }
    map.check_invariants();
    let mut out = Vec::new();
    map.lookup(ALL, 3, &mut out).unwrap();
    assert_eq!(out.len(), 4);
    assert_eq!(out[3].key, Key::delta(VBlock(1)));
}

/// Nodes that have to be loaded for something, from none in memory.
fn loads(store: &mut Store, work: impl FnMut() -> Result<(), Missing>) -> u64 {
    let before = store.loads;
    store.load(work);
    store.loads - before
}

#[test]
fn reaping_looks_only_at_what_is_not_shared() {
    let stats = small();
    let mut store = Store::default();
    let mut old = Map::empty(stats.clone());
    fill_range(&mut old, &mut edit(1), 0..20_000, Lsn(1));
    let mut child = old.clone();
    for vblock in [7, 9_000, 9_001, 19_999] {
        put(
            &mut child,
            &mut edit(2),
            &data(vblock, 30_000 + vblock, LayerNo(2), Lsn(2)),
        );
    }
    let (old, child) = (reopen(&old, &mut store), reopen(&child, &mut store));
    let height = u64::from(old.root_ptr().expect("not empty").level) + 1;
    let mut step = None;
    let count = loads(&mut store, || {
        reap_step(&old, Some(&child), LayerNo(0), Key(0), Key::END, usize::MAX).map(|found| {
            step = Some(found);
        })
    });
    // A step that meets a missing node gives what it has, so there are more of them.
    let mut blocks = Vec::new();
    let mut nodes = 0;
    let mut loaded = count;
    loop {
        let found = step.take().expect("was found");
        blocks.extend(found.data.iter().map(|e| e.block.0 - 1));
        nodes += found.nodes.len() as u64;
        let Some(next) = found.next else { break };
        loaded += loads(&mut store, || {
            reap_step(&old, Some(&child), LayerNo(0), next, Key::END, usize::MAX).map(|found| {
                step = Some(found);
            })
        });
    }
    assert_eq!(blocks, [7, 9_000, 9_001, 19_999]);
    assert!(nodes <= 4 * height, "{nodes} nodes are not shared");
    assert!(loaded <= 2 * 4 * height, "{loaded} loads for {nodes} nodes");

    // With the child gone, all that was born above the parent goes.
    let mut step = store.load(|| reap_step(&child, None, LayerNo(1), Key(0), Key::END, usize::MAX));
    let mut blocks = Vec::new();
    loop {
        blocks.extend(step.data.iter().map(|e| e.block.0 - 30_000));
        let Some(next) = step.next else { break };
        step = store.load(|| reap_step(&child, None, LayerNo(1), next, Key::END, usize::MAX));
    }
    assert_eq!(blocks, [7, 9_000, 9_001, 19_999]);
}

#[test]
fn a_reap_step_ends_where_it_was_told_to_whatever_is_shared() {
    let mut old = Map::empty(small());
    fill_range(&mut old, &mut edit(1), 0..100, Lsn(1));
    let mut child = old.clone();
    put(
        &mut child,
        &mut edit(2),
        &data(99, 1000, LayerNo(2), Lsn(2)),
    );
    for vblock in [49, 50, 51, 52] {
        let until = Key::block(VBlock(vblock));
        let (from, max) = (Key(0), usize::MAX);
        let step = reap_step(&old, Some(&child), LayerNo(0), from, until, max).unwrap();
        assert_eq!(step.next, Some(until));
        assert!(step.data.is_empty() && step.nodes.is_empty());
        let step = reap_step(&old, Some(&child), LayerNo(0), until, Key::END, max).unwrap();
        assert_eq!((step.data.len(), step.next), (1, None));
    }
}

#[test]
fn changed_since_looks_only_at_what_changed() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats);
    fill_range(&mut map, &mut edit(1), 0..20_000, Lsn(1));
    put(&mut map, &mut edit(1), &data(12_345, 1, LayerNo(1), Lsn(5)));
    let map = reopen(&map, &mut store);
    let height = u64::from(map.root_ptr().expect("not empty").level) + 1;
    let mut out = Vec::new();
    let count = loads(&mut store, || map.changed_since(ALL, Lsn(4), 99, &mut out));
    assert_eq!(
        (out.len(), out[0].key.vblock(), count),
        (1, VBlock(12_345), height)
    );
    out.clear();
    assert_eq!(
        loads(&mut store, || map.changed_since(ALL, Lsn(5), 99, &mut out)),
        0
    );
    assert!(out.is_empty());
}

#[test]
fn tombstones_are_found_without_loading_the_rest() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats);
    fill_range(&mut map, &mut edit(1), 0..20_000, Lsn(1));
    deallocate(&mut map, 500, 510, 2);
    deallocate(&mut map, 15_000, 15_010, 3);
    let mut map = reopen(&map, &mut store);
    let height = u64::from(map.root_ptr().expect("not empty").level) + 1;
    let before = store.loads;
    let mut change = edit(1);
    let next = store.load(|| map.drop_tombstones(&mut change, Lsn(2), VBlock(0), 10));
    assert_eq!(next, None);
    assert!(store.loads - before <= 2 * height);
    assert_eq!(store.load(|| map.get(VBlock(505))).base, None);
    assert!(store.load(|| map.get(VBlock(15_005))).base.is_some());
    assert_eq!(map.max_lsn(), Lsn(3));
    store.load(|| map.drop_tombstones(&mut change, Lsn(3), VBlock(0), 10));
    assert_eq!(map.max_lsn(), Lsn(1), "of what is left");
    assert_eq!(map.mapped_count(), 19_980);
    // Gone for good: nothing has to be looked at to know.
    let mut map = reopen(&map, &mut store);
    let before = store.loads;
    let next = store.load(|| map.drop_tombstones(&mut change, Lsn::MAX, VBlock(0), 10));
    assert_eq!((next, store.loads - before), (None, 1));
}

#[test]
fn who_frees_what() {
    let at = |vblock: u64, birth: u32| data(vblock, 1, LayerNo(birth), Lsn(1));
    let rule = FreeRule {
        parent: LayerNo(5),
        reaping: None,
    };
    assert!(rule.frees_entry(&at(10, 6)) && !rule.frees_entry(&at(10, 5)));
    // Layer 5 is being reaped and has been up to block 10; its parent is 3.
    let reaping = Some(Reaping {
        parent: LayerNo(3),
        cursor: Key::block(VBlock(10)),
    });
    let rule = FreeRule {
        parent: LayerNo(5),
        reaping,
    };
    let frees = |vblock, birth| rule.frees_entry(&at(vblock, birth));
    assert!(frees(20, 6) && !frees(20, 5) && !frees(20, 3));
    assert!(frees(9, 6) && frees(9, 5) && frees(9, 4) && !frees(9, 3));
    assert!(!frees(10, 5));
    // A node that ends at block 10, and one that ends behind it.
    let ends = |end: u64| {
        let mut map = Map::empty(small());
        fill_range(&mut map, &mut edit(5), 0..end, Lsn(1));
        let _copy = map.clone();
        let mut change = edit(6);
        map.deallocate(&mut change, VBlock(0)..VBlock(1), Lsn(2));
        let ends = |node: &&crate::v2p::Retired| node.end_key == Key::block(VBlock(end));
        let retired = change.retired.iter().find(ends).expect("the root").clone();
        rule.frees_node(&retired)
    };
    assert!(ends(9) && ends(10) && !ends(11));
}

#[test]
fn a_root_with_one_child_with_one_child_goes_wholly() {
    let stats = small();
    let mut store = Store::default();
    let mut map = Map::empty(stats.clone());
    // Leaves of four under nodes of four: the last leaf is alone under its parent.
    fill_range(&mut map, &mut edit(1), 0..17, Lsn(1));
    assert_eq!(stats.loaded_nodes(), 5 + 2 + 1);
    let mut map = reopen(&map, &mut store);
    let mut random = Random(1);
    store.prepare(&map, VBlock(0)..VBlock(16), &mut random);
    // The last leaf is not loaded, so that nothing is merged.
    let mut change = edit(2);
    map.deallocate(&mut change, VBlock(0)..VBlock(16), Lsn(2));
    assert_eq!(change.retired.len(), 4 + 1 + 1);
    store.prepare(&map, VBlock(0)..VBlock(17), &mut random);
    map.drop_tombstones(&mut change, Lsn(2), VBlock(0), 9)
        .unwrap();
    assert_eq!(
        map.root_ptr().map(|ptr| ptr.level),
        Some(0),
        "it is the root now"
    );
    assert_eq!(change.retired.len(), 4 + 1 + 1 + 1);
    assert!(change.retired.iter().all(|node| node.location().is_some()));
    assert_eq!(entries_of(&map, &mut store).len(), 1);
}

#[test]
fn two_walks_in_turn_write_each_node_once() {
    let stats = small();
    let mut head = Map::empty(stats.clone());
    fill_range(&mut head, &mut edit(1), 0..100, Lsn(1));
    let snapshot = head.clone();
    put(&mut head, &mut edit(2), &data(50, 1000, LayerNo(2), Lsn(2)));
    let dirty = stats.dirty_nodes();
    let mut walks = [DirtyWalk::new(&head), DirtyWalk::new(&snapshot)];
    let mut blocks = 0;
    loop {
        let before = blocks;
        for walk in &mut walks {
            if let Some(node) = walk.next() {
                blocks += 1;
                node.write_to(BlockNo(blocks), &mut [0; 4096]);
            }
        }
        if blocks == before {
            break;
        }
    }
    assert_eq!((blocks as usize, stats.dirty_nodes()), (dirty, 0));
}

#[test]
fn what_is_abandoned_is_not_written() {
    let stats = small();
    let mut store = Store::default();
    let mut old = Map::empty(stats.clone());
    fill_range(&mut old, &mut edit(1), 0..100, Lsn(1));
    let dirty = stats.dirty_nodes();
    let from = Key(0);
    let until = Key::block(VBlock(50));
    let step = reap_step(&old, None, LayerNo(0), from, until, usize::MAX).unwrap();
    assert_eq!((step.data.len(), step.next), (50, Some(until)));
    assert!(step.nodes.len() > 10);
    for node in &step.nodes {
        node.abandon(&stats);
        node.abandon(&stats);
        assert_eq!(node.location(), None);
    }
    assert_eq!(stats.dirty_nodes(), dirty - step.nodes.len());
    assert_eq!(DirtyWalk::count(&old), dirty - step.nodes.len());
    // The rest is all it takes to go on after a restart.
    let again = reopen(&old, &mut store);
    assert_eq!(store.nodes.len(), dirty - step.nodes.len());
    let (mut next, mut data, mut nodes) = (step.next, 0, step.nodes.len());
    while let Some(from) = next {
        let step = store.load(|| reap_step(&again, None, LayerNo(0), from, Key::END, usize::MAX));
        data += step.data.len();
        nodes += step.nodes.len();
        next = step.next;
    }
    assert_eq!((data, nodes), (50, dirty));
}

#[test]
fn a_root_pointer_is_that_of_the_root() {
    let mut map = Map::empty(small());
    assert_eq!(map.root_ptr(), None);
    fill_range(&mut map, &mut edit(3), 0..10, Lsn(1));
    let mut store = Store::default();
    let again = reopen(&map, &mut store);
    let ptr = map.root_ptr().expect("not empty");
    assert_eq!(again.root_ptr(), Some(ptr));
    assert_eq!((again.mapped_count(), again.max_lsn()), (10, Lsn(1)));
    let checksum = BlockChecksum::of(&store.nodes[&ptr.block.0]);
    assert_eq!(
        ptr,
        NodePtr {
            checksum,
            birth: LayerNo(3),
            level: 1,
            ..ptr
        }
    );
}

/// The layout of `docs/formats/device.md`, "Map node". Never change this test: a new layout is a
/// new version.
#[test]
fn golden_bytes_of_a_leaf() {
    let mut map = Map::empty(Rc::default());
    let mut change = edit(0x0102_0304);
    let layer = change.layer;
    let entry = Entry {
        checksum: BlockChecksum(0xa1a2_a3a4),
        meta: 0x5152_5354_5556_5758,
        ..data(0x1234, 0xb1_b2b3_b4b5, layer, Lsn(0x6162_6364_6566_6768))
    };
    put(&mut map, &mut change, &entry);
    let over = Entry {
        meta: 0x0200_0010,
        ..delta(0x1234, 0x77, layer, Lsn(9))
    };
    put(
        &mut map,
        &mut change,
        &Entry {
            checksum: BlockChecksum(0x88),
            ..over
        },
    );
    put(&mut map, &mut change, &data(0x2000, 1, layer, Lsn(1)));
    map.deallocate(&mut change, VBlock(0x2000)..VBlock(0x2001), Lsn(0x99));
    let mut bytes = vec![0xff; 4096];
    let node = DirtyWalk::new(&map).next().expect("dirty");
    node.write_to(BlockNo(5), &mut bytes);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let header = "46534e44 01 00 0300 04030201 00000000 6824000000000000 0240000000000000";
    assert_eq!(hex(&bytes[..32]), header.replace(' ', ""));
    assert!(bytes[32..96].iter().all(|&b| b == 0));
    let entries = [
        "6824000000000001 b5b4b3b2b1000000 a4a3a2a1 04030201 6867666564636261 5857565554535251",
        "6924000000000003 7700000000000000 88000000 04030201 0900000000000000 1000000200000000",
        "0040000000000002 0000000000000000 00000000 04030201 9900000000000000 0100000000000000",
    ];
    for (entry, at) in entries.iter().zip((96..).step_by(40)) {
        assert_eq!(hex(&bytes[at..at + 40]), entry.replace(' ', ""));
    }
    assert!(bytes[96 + 3 * 40..].iter().all(|&b| b == 0));
}
