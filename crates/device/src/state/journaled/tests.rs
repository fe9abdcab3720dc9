//! What is left of runs, and of what checkpoints may take for them.

use super::*;

const SLOT: Slot = Slot(3);

/// What checkpoints may take for a run of these tests.
const DUE: u64 = 9;

/// The bytes of a block of the run that has this name. The last block of a run ends with zeros.
fn block(name: u8, index: u64, count: u64) -> [u8; BLOCK] {
    let mut bytes: [u8; BLOCK] = std::array::from_fn(|at| name ^ at as u8 ^ (at / 256) as u8);
    bytes[0] = name;
    bytes[1] = index as u8;
    if index + 1 == count {
        bytes[BLOCK - 100..].fill(0);
    }
    bytes
}

/// A run of so many blocks, the last of which the bytes don't fill.
fn run(name: u8, count: u64) -> Run {
    let all = (0..count).flat_map(|index| block(name, index, count));
    let bytes = all.take(count as usize * BLOCK - 100);
    Run {
        lsn: Lsn(u64::from(name)),
        data: bytes.collect(),
        part: 0..count,
        due: DUE,
    }
}

/// Runs of this slot: name, first block, how many.
fn journaled(runs: &[(u8, u64, u64)]) -> Journaled {
    let mut journaled = Journaled::default();
    for &(name, start, count) in runs {
        journaled.put(SLOT, VBlock(start), run(name, count));
    }
    journaled
}

fn remove(journaled: &mut Journaled, blocks: Range<u64>) {
    journaled.remove(SLOT, VBlock(blocks.start)..VBlock(blocks.end));
}

fn overlapping(journaled: &Journaled, blocks: Range<u64>) -> Vec<u64> {
    let range = VBlock(blocks.start)..VBlock(blocks.end);
    let found = journaled.overlapping(SLOT, &range);
    let mut starts: Vec<u64> = found.map(|start| start.0).collect();
    starts.sort_unstable();
    starts
}

/// That the slot has exactly these: name and length of the run that was put, where the rest of it begins, and which of its blocks that has.
/// Each run is counted, and LSNs are as they were.
fn assert_left(journaled: &Journaled, left: &[(u8, u64, u64, Range<u64>)]) {
    let runs = journaled.of_slot(SLOT);
    let places: Vec<_> = runs
        .iter()
        .map(|(start, run)| (start.0, run.count(), run.lsn.0))
        .collect();
    let expected: Vec<_> = left
        .iter()
        .map(|(name, _, start, part)| (*start, part.end - part.start, u64::from(*name)))
        .collect();
    assert_eq!(places, expected);
    for ((_, run), (name, count, start, part)) in runs.iter().zip(left) {
        for (found, index) in run.blocks().zip(part.clone()) {
            let is_right = found.bytes() == block(*name, index, *count);
            assert!(is_right, "block {index} of the run {name} at {start}");
        }
    }
    let due: u64 = runs.iter().map(|(_, run)| run.due).sum();
    assert_eq!(journaled.due, due);
}

#[test]
fn what_is_removed_from_a_run_leaves_the_rest_with_its_bytes() {
    type Left = &'static [(u8, u64, u64, Range<u64>)];
    let cases: [(&str, Range<u64>, Left); 7] = [
        ("the start", 10..12, &[(1, 5, 12, 2..5)]),
        ("from before it", 0..11, &[(1, 5, 11, 1..5)]),
        ("the end", 13..15, &[(1, 5, 10, 0..3)]),
        ("to behind it", 14..99, &[(1, 5, 10, 0..4)]),
        ("the middle", 11..14, &[(1, 5, 10, 0..1), (1, 5, 14, 4..5)]),
        ("all of it", 10..15, &[]),
        ("more than it", 9..16, &[]),
    ];
    for (what, blocks, left) in cases {
        println!("{what}");
        let mut all = journaled(&[(1, 10, 5)]);
        remove(&mut all, blocks);
        assert_left(&all, left);
    }
}

#[test]
fn what_is_removed_over_several_runs_leaves_their_ends() {
    let mut all = journaled(&[(1, 10, 5), (2, 15, 1), (3, 20, 4)]);
    remove(&mut all, 12..22);
    assert_left(&all, &[(1, 5, 10, 0..2), (3, 4, 22, 2..4)]);
    // What is left is a run like others.
    remove(&mut all, 11..23);
    assert_left(&all, &[(1, 5, 10, 0..1), (3, 4, 23, 3..4)]);
    remove(&mut all, 0..u64::MAX);
    assert_left(&all, &[]);
}

#[test]
fn what_is_removed_beside_a_run_leaves_it_alone() {
    for blocks in [0..10, 9..10, 15..16, 15..20, 22..99] {
        let mut all = journaled(&[(1, 10, 5), (2, 20, 2)]);
        println!("{blocks:?}");
        remove(&mut all, blocks);
        assert_left(&all, &[(1, 5, 10, 0..5), (2, 2, 20, 0..2)]);
    }
}

#[test]
fn a_range_overlaps_what_has_blocks_of_it_and_not_what_it_touches() {
    let all = journaled(&[(1, 10, 5), (2, 15, 1), (3, 20, 4)]);
    for (blocks, starts) in [
        (0..10, &[][..]),
        (16..20, &[]),
        (24..99, &[]),
        (0..0, &[]),
        (0..11, &[10]),
        (14..15, &[10]),
        (15..16, &[15]),
        (14..16, &[10, 15]),
        (23..99, &[20]),
        (0..99, &[10, 15, 20]),
    ] {
        assert_eq!(overlapping(&all, blocks.clone()), starts, "{blocks:?}");
    }
}

/// What was due for them would be kept from others for good.
#[test]
fn nothing_is_due_for_what_is_gone() {
    let runs = [(1, 10, 5), (2, 15, 1), (3, 20, 4)];
    let mut all = journaled(&runs);
    assert_eq!(all.due, 3 * DUE);
    all.forget(SLOT);
    assert_eq!((all.due, all.is_empty()), (0, true));
    let mut all = journaled(&runs);
    // Both halves may make as many nodes dirty as the whole.
    remove(&mut all, 12..13);
    assert_eq!(all.due, 4 * DUE);
    for vblock in 0..30 {
        remove(&mut all, vblock..vblock + 1);
    }
    assert_eq!((all.due, all.is_empty()), (0, true));
}

#[test]
fn slots_do_not_touch_each_other() {
    let mut all = journaled(&[(1, 10, 5)]);
    let others = [Slot(SLOT.0 - 1), Slot(SLOT.0 + 1)];
    for (slot, name) in others.into_iter().zip([2, 3]) {
        all.put(slot, VBlock(10), run(name, 5));
        all.put(slot, VBlock(0), run(name, 1));
    }
    assert_eq!(overlapping(&all, 0..u64::MAX), [10]);
    let is_whole = |all: &Journaled, slot| {
        let runs = all.of_slot(slot);
        let lengths: Vec<_> = runs.iter().map(|(at, run)| (at.0, run.count())).collect();
        lengths == [(0, 1), (10, 5)]
    };
    remove(&mut all, 11..13);
    assert!(others.iter().all(|slot| is_whole(&all, *slot)), "removed");
    let left = all.of_slot(SLOT);
    assert_eq!(left.len(), 2);
    all.forget(SLOT);
    assert!(others.iter().all(|slot| is_whole(&all, *slot)), "forgotten");
    assert!(all.of_slot(SLOT).is_empty());
    assert_eq!(all.due, 4 * DUE);
}
