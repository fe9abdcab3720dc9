//! Which mapping of each place is the last one in a chain: the one whose data recovery has to find.
//!
//! A mapping that a later one replaced is left out, whatever became of its data: its block may have been
//! reused since, and the unit it belongs to may have mapped other places, too, which must not go with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flagstone_types::{BlockChecksum, BlockNo, Slot, VBlock};

use super::chain::Chain;
use crate::format::record::Record;
use crate::planted::{Bug, planted};
use crate::v2p::Key;

/// The unit that maps a place last, with the block and its checksum. What is unmapped is not there:
/// unmapping the same over and over again must not cost what was once mapped.
type LastMappings = BTreeMap<(Slot, Key), (usize, BlockNo, BlockChecksum)>;

/// For each place that the units map, the unit that maps it last, the block and its checksum.
/// Superseded mappings are left out: their blocks may hold something else by now.
pub(super) fn final_mappings(
    chain: &Chain,
    skip: &BTreeSet<usize>,
) -> Vec<(usize, BlockNo, BlockChecksum)> {
    let mut last = LastMappings::new();
    let mut superseded = Vec::new();
    for (index, unit) in chain
        .units
        .iter()
        .enumerate()
        .filter(|(i, _)| !skip.contains(i))
    {
        for record in &unit.records {
            match record {
                Record::Map { slot, runs, .. } => {
                    for (vblock, mapped) in runs
                        .iter()
                        .flat_map(|run| (run.start.0..).map(VBlock).zip(&run.blocks))
                    {
                        let found = (index, mapped.block, mapped.checksum);
                        if planted(Bug::SupersededChecked) {
                            superseded.push(found);
                        }
                        last.insert((*slot, Key::block(vblock)), found);
                        last.remove(&(*slot, Key::delta(vblock)));
                    }
                }
                Record::Delta {
                    slot,
                    vblock,
                    block,
                    checksum,
                    ..
                } => {
                    let found = (index, *block, *checksum);
                    last.insert((*slot, Key::delta(*vblock)), found);
                }
                // The delta stays what it is, and its data is needed.
                Record::MapUnder {
                    slot,
                    vblock,
                    mapped,
                    ..
                } => {
                    let found = (index, mapped.block, mapped.checksum);
                    last.insert((*slot, Key::block(*vblock)), found);
                }
                Record::Unmap { slot, ranges, .. } => {
                    for &(start, count) in ranges {
                        forget_mappings(&mut last, *slot, start, count);
                    }
                }
                // A snapshot keeps what is mapped now: from here on, changes to the dvol do not
                // supersede it. The same holds for a slot that is given to something else.
                Record::Snapshot {
                    slot, layer_slot, ..
                } => {
                    move_mappings(&mut last, *slot, *layer_slot);
                }
                Record::Rollback {
                    slot, discard_slot, ..
                } => {
                    move_mappings(&mut last, *slot, *discard_slot);
                }
                _ => {}
            }
        }
    }
    let superseded = superseded.into_iter();
    last.into_values().chain(superseded).collect()
}

/// Units that mapped something last, by place.
type Units = BTreeMap<(Slot, VBlock), usize>;

/// Units that write a part of a block over it, each with the unit that mapped the block, and units that map the rest of a block under
/// a delta, each with the delta's; in the order of the chain. What was mapped before the chain is left out: nothing takes that back.
///
/// What is mapped under a delta needs nothing of what it replaces, but means nothing without the delta, or a later one which has all that it had.
/// A later one lies over it.
pub(super) fn parts_beside(chain: &Chain, aborted: &BTreeSet<usize>) -> Vec<(usize, usize)> {
    let (mut blocks, mut deltas) = (Units::new(), Units::new());
    let mut parts = Vec::new();
    let units = chain.units.iter().enumerate();
    for (index, unit) in units.filter(|(index, _)| !aborted.contains(index)) {
        for record in &unit.records {
            match record {
                Record::Map { slot, runs, .. } => {
                    for run in runs {
                        let end = VBlock(run.start.0 + run.blocks.len() as u64);
                        forget_blocks(&mut deltas, (*slot, run.start)..(*slot, end));
                        let mapped = (run.start.0..end.0).map(VBlock);
                        blocks.extend(mapped.map(|vblock| ((*slot, vblock), index)));
                    }
                }
                Record::Delta { slot, vblock, .. } => {
                    let place = (*slot, *vblock);
                    parts.extend(blocks.get(&place).map(|&under| (index, under)));
                    deltas.insert(place, index);
                }
                Record::MapUnder { slot, vblock, .. } => {
                    let place = (*slot, *vblock);
                    if !planted(Bug::UnderOutlivesDelta) {
                        parts.extend(deltas.get(&place).map(|&over| (index, over)));
                    }
                    blocks.insert(place, index);
                }
                Record::Unmap { slot, ranges, .. } => {
                    for &(start, count) in ranges {
                        let end = VBlock(start.0 + count);
                        for units in [&mut blocks, &mut deltas] {
                            forget_blocks(units, (*slot, start)..(*slot, end));
                        }
                    }
                }
                // What the slot maps from here on was durable before.
                Record::Rollback { slot, .. } | Record::CreateDvol { slot, .. } => {
                    for units in [&mut blocks, &mut deltas] {
                        forget_blocks(units, (*slot, VBlock(0))..(*slot, VBlock(u64::MAX)));
                    }
                }
                _ => {}
            }
        }
    }
    parts
}

fn forget_blocks(blocks: &mut Units, range: Range<(Slot, VBlock)>) {
    let gone: Vec<_> = blocks.range(range).map(|(place, _)| *place).collect();
    for place in gone {
        blocks.remove(&place);
    }
}

fn forget_mappings(last: &mut LastMappings, slot: Slot, start: VBlock, count: u64) {
    let from = (slot, Key::block(start));
    let end = (slot, Key::block(VBlock(start.0 + count)));
    let gone: Vec<(Slot, Key)> = last.range(from..end).map(|(place, _)| *place).collect();
    for place in gone {
        last.remove(&place);
    }
}

/// What a slot maps now stays as it is, under another slot's name.
fn move_mappings(last: &mut LastMappings, from: Slot, to: Slot) {
    let keys: Vec<Key> = last
        .range((from, Key(0))..=(from, Key::END))
        .map(|((_, key), _)| *key)
        .collect();
    for key in keys {
        if let Some(value) = last.remove(&(from, key)) {
            last.insert((to, key), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::Lsn;

    use super::super::chain::FoundUnit;
    use super::super::journal::Position;
    use super::*;
    use smallvec::smallvec;

    use crate::format::record::{MapRun, MappedBlock};
    use crate::v2p::Changed;

    const DVOL: Slot = Slot(1);
    const OTHER: Slot = Slot(2);
    const LAYER: Slot = Slot(3);

    fn checksum() -> BlockChecksum {
        BlockChecksum::of(&[0; 4096])
    }

    fn map(slot: Slot, vblock: u64, block: u64) -> Record {
        let mapped = MappedBlock {
            block: BlockNo(block),
            checksum: checksum(),
            meta: 0,
        };
        Record::Map {
            slot,
            lsn: Lsn(1),
            runs: smallvec![MapRun {
                start: VBlock(vblock),
                blocks: smallvec![mapped],
            }],
        }
    }

    fn delta(slot: Slot, vblock: u64, block: u64) -> Record {
        Record::Delta {
            slot,
            lsn: Lsn(1),
            vblock: VBlock(vblock),
            changed: Changed::of(0..1).unwrap(),
            block: BlockNo(block),
            checksum: checksum(),
        }
    }

    fn under(slot: Slot, vblock: u64, block: u64) -> Record {
        Record::MapUnder {
            slot,
            lsn: Lsn(1),
            vblock: VBlock(vblock),
            mapped: MappedBlock {
                block: BlockNo(block),
                checksum: checksum(),
                meta: 0,
            },
        }
    }

    fn unmap(slot: Slot, vblock: u64) -> Record {
        Record::Unmap {
            slot,
            lsn: Lsn(1),
            ranges: vec![(VBlock(vblock), 1)],
        }
    }

    fn chain_of<const N: usize>(units: [Vec<Record>; N]) -> Chain {
        Chain {
            units: units
                .into_iter()
                .map(|records| FoundUnit { seq: 1, records })
                .collect(),
            position: Position {
                next_seq: 2,
                ring_index: 0,
                prev_hash: flagstone_types::ChainHash(0),
            },
            watermark: 0,
            groups: 1,
            places: Vec::new(),
        }
    }

    /// The unit and block of each final mapping, in the order of blocks.
    fn last_of<const N: usize>(units: [Vec<Record>; N], skip: &[usize]) -> Vec<(usize, u64)> {
        let chain = chain_of(units);
        let skip = skip.iter().copied().collect();
        let found = final_mappings(&chain, &skip);
        let mut found: Vec<_> = found
            .into_iter()
            .map(|(u, block, _)| (u, block.0))
            .collect();
        found.sort_by_key(|&(_, block)| block);
        found
    }

    #[test]
    fn what_a_later_unit_replaced_is_not_looked_at() {
        let first = vec![map(DVOL, 0, 100), map(OTHER, 0, 101)];
        assert_eq!(
            last_of([first.clone(), vec![map(DVOL, 0, 102)]], &[]),
            [(0, 101), (1, 102)]
        );
        assert_eq!(last_of([first, vec![unmap(DVOL, 0)]], &[]), [(0, 101)]);
    }

    #[test]
    fn what_a_skipped_unit_replaced_is_looked_at() {
        let units = [vec![map(DVOL, 0, 100)], vec![map(DVOL, 0, 102)]];
        assert_eq!(last_of(units, &[1]), [(0, 100)]);
    }

    #[test]
    fn a_delta_goes_with_the_block_below_it() {
        let first = vec![map(DVOL, 0, 100), map(OTHER, 0, 101)];
        let parts = vec![delta(DVOL, 0, 103), delta(OTHER, 1, 104)];
        assert_eq!(
            last_of([first.clone(), parts.clone()], &[]),
            [(0, 100), (0, 101), (1, 103), (1, 104)],
            "both the block and its part are needed"
        );
        let whole = vec![map(DVOL, 0, 102)];
        assert_eq!(
            last_of([first.clone(), parts.clone(), whole], &[]),
            [(0, 101), (2, 102), (1, 104)]
        );
        let again = vec![delta(DVOL, 0, 105)];
        assert_eq!(
            last_of([first.clone(), parts.clone(), again], &[]),
            [(0, 100), (0, 101), (1, 104), (2, 105)]
        );
        let gone = vec![unmap(DVOL, 0)];
        assert_eq!(last_of([first, parts, gone], &[]), [(0, 101), (1, 104)]);
    }

    #[test]
    fn a_part_is_of_the_block_that_it_was_written_over() {
        let rollback = Record::Rollback {
            slot: OTHER,
            to: LAYER,
            discard_slot: Slot(4),
            head: 9,
            lsn: Lsn(2),
            size_bytes: 4096,
        };
        let parts = vec![
            delta(DVOL, 0, 110),
            delta(DVOL, 1, 111),
            delta(OTHER, 0, 112),
        ];
        let chain = chain_of([
            vec![map(DVOL, 0, 100), map(OTHER, 0, 101), map(OTHER, 1, 102)],
            parts.clone(),
            vec![map(DVOL, 0, 103), unmap(OTHER, 1)],
            vec![map(DVOL, 0, 104)],
            parts,
            vec![delta(OTHER, 1, 113)],
            vec![rollback],
            vec![delta(OTHER, 0, 114)],
        ]);
        let all = [(1, 0), (1, 0), (4, 3), (4, 0)];
        assert_eq!(parts_beside(&chain, &BTreeSet::new()), all);
        let aborted = BTreeSet::from([1, 3]);
        assert_eq!(parts_beside(&chain, &aborted), [(4, 2), (4, 0)]);
    }

    #[test]
    fn what_is_mapped_under_a_delta_takes_the_place_of_the_block_alone() {
        let first = vec![map(DVOL, 0, 100)];
        let part = vec![delta(DVOL, 0, 101)];
        let rest = vec![under(DVOL, 0, 102)];
        let three = [first, part, rest];
        assert_eq!(last_of(three.clone(), &[]), [(1, 101), (2, 102)]);
        assert_eq!(last_of(three.clone(), &[2]), [(0, 100), (1, 101)]);
        let [first, part, rest] = three;
        let units = |last: Vec<Record>| [first.clone(), part.clone(), rest.clone(), last];
        let again = units(vec![under(DVOL, 0, 103)]);
        assert_eq!(last_of(again, &[]), [(1, 101), (3, 103)]);
        let replaced = units(vec![delta(DVOL, 0, 103)]);
        assert_eq!(last_of(replaced.clone(), &[]), [(2, 102), (3, 103)]);
        assert_eq!(last_of(replaced, &[3]), [(1, 101), (2, 102)]);
        let whole = units(vec![map(DVOL, 0, 103)]);
        assert_eq!(last_of(whole, &[]), [(3, 103)]);
        assert_eq!(last_of(units(vec![unmap(DVOL, 0)]), &[]), []);
    }

    #[test]
    fn what_is_mapped_under_a_delta_goes_with_it() {
        let rollback = Record::Rollback {
            slot: OTHER,
            to: LAYER,
            discard_slot: Slot(4),
            head: 9,
            lsn: Lsn(2),
            size_bytes: 4096,
        };
        let chain = chain_of([
            // Under a delta from before the chain: nothing takes that back.
            vec![under(DVOL, 0, 100), under(OTHER, 0, 101)],
            vec![delta(DVOL, 0, 102), delta(OTHER, 0, 103)],
            // Another block, and the same one of another dvol.
            vec![under(DVOL, 0, 104), under(DVOL, 1, 105)],
            // Of the first nothing is left, so it needs the delta alone.
            vec![under(DVOL, 0, 106)],
            // What replaces the delta lies over what is below now, and has to be there from then on.
            vec![delta(DVOL, 0, 107)],
            vec![under(DVOL, 0, 108)],
            vec![map(DVOL, 0, 109), unmap(OTHER, 0)],
            // Nothing lies over these.
            vec![under(DVOL, 0, 110), under(OTHER, 0, 111)],
            vec![delta(OTHER, 0, 112)],
            vec![rollback],
            vec![under(OTHER, 0, 113)],
        ]);
        let all = [(1, 0), (1, 0), (2, 1), (3, 1), (4, 3), (5, 4), (8, 7)];
        assert_eq!(parts_beside(&chain, &BTreeSet::new()), all);
        // What never happened lies nowhere.
        let aborted = BTreeSet::from([0, 3, 4]);
        assert_eq!(parts_beside(&chain, &aborted), [(2, 1), (5, 1), (8, 7)]);
    }

    #[test]
    fn what_a_snapshot_keeps_is_looked_at() {
        let snapshot = Record::Snapshot {
            slot: DVOL,
            layer_slot: LAYER,
            head: 9,
            created_ns: 0,
            name: "s".into(),
        };
        let units = [
            vec![map(DVOL, 0, 100), delta(DVOL, 0, 101), map(OTHER, 0, 102)],
            vec![snapshot],
            vec![map(DVOL, 0, 103), map(OTHER, 0, 104)],
        ];
        let found = last_of(units, &[]);
        assert_eq!(found, [(0, 100), (0, 101), (2, 103), (2, 104)]);
    }

    #[test]
    fn what_is_rolled_back_is_looked_at_until_it_is_reaped() {
        let rollback = Record::Rollback {
            slot: DVOL,
            to: OTHER,
            discard_slot: LAYER,
            head: 9,
            lsn: Lsn(2),
            size_bytes: 4096,
        };
        let units = [
            vec![map(DVOL, 0, 100)],
            vec![rollback],
            vec![map(DVOL, 0, 103)],
        ];
        assert_eq!(last_of(units, &[]), [(0, 100), (2, 103)]);
    }

    #[test]
    fn what_is_unmapped_costs_nothing_more() {
        let mut last = LastMappings::new();
        for vblock in 0..10 {
            let found = (0, BlockNo(100 + vblock), checksum());
            last.insert((Slot(1), Key::block(VBlock(vblock))), found);
            last.insert((Slot(1), Key::delta(VBlock(vblock))), found);
            last.insert((Slot(2), Key::block(VBlock(vblock))), found);
        }
        forget_mappings(&mut last, Slot(1), VBlock(2), 7);
        assert_eq!(last.len(), 30 - 14);
        forget_mappings(&mut last, Slot(1), VBlock(0), 1 << 52);
        assert_eq!(last.len(), 10, "those of the other slot");
    }
}
