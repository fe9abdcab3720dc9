//! Data that is in the journal alone.
//!
//! A record may have the bytes of whole blocks in itself ([`Record::Journaled`](crate::format::record::Record)): one transfer makes
//! such a write durable, where data in a block of its own takes two. The next checkpoint gives them blocks and maps those, since
//! the journal before its root is written over. What was deallocated or written over by then takes none, so it suits what
//! is soon worthless: a log.
//!
//! Until then the map says what was there before. Whoever looks at the map asks [`State::has_journaled`] first. Layers have none: a map that others share
//! nodes with can't be changed, so no snapshot is taken of a dvol that such data is written to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, Lsn, Slot, VBlock};
use smallvec::smallvec;

use super::{Effects, State};
use crate::format::record::{MapRun, MapRuns, MappedBlock, MappedBlocks, blocks_of_bytes};
use crate::planted::{Bug, planted};
use crate::v2p::{Missing, nodes_changed_max};

const BLOCK: usize = BLOCK_SIZE as usize;

/// Consecutive blocks of one slot.
#[derive(Clone, Debug)]
struct Run {
    lsn: Lsn,
    /// Bytes from the start of the first block on; behind them are zeros.
    data: Rc<[u8]>,
    /// Which of the blocks that the bytes are of.
    part: Range<u64>,
    /// Blocks that a checkpoint may take for it.
    due: u64,
}

impl Run {
    fn count(&self) -> u64 {
        self.part.end - self.part.start
    }

    /// A part of it, in blocks from its own start on.
    fn cut(&self, part: Range<u64>) -> Run {
        Run {
            part: self.part.start + part.start..self.part.start + part.end,
            ..self.clone()
        }
    }

    fn blocks(&self) -> impl Iterator<Item = JournaledBlock> + '_ {
        self.part.clone().map(|index| JournaledBlock {
            data: self.data.clone(),
            index,
        })
    }
}

/// A block whose bytes are in memory.
pub struct JournaledBlock {
    data: Rc<[u8]>,
    index: u64,
}

impl JournaledBlock {
    /// Its bytes.
    pub fn bytes(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        let from = self.index as usize * BLOCK;
        let data = &self.data[from..self.data.len().min(from + BLOCK)];
        bytes[..data.len()].copy_from_slice(data);
        bytes
    }
}

/// See the module's page.
#[derive(Default)]
pub(super) struct Journaled {
    /// By the first block. They don't overlap.
    runs: BTreeMap<(Slot, VBlock), Run>,
    /// Blocks that a checkpoint may take for all of them.
    due: u64,
    /// What was given blocks, until a root that has them is durable.
    placed: BTreeMap<Slot, Vec<Range<VBlock>>>,
    /// The blocks of that, until the picture is taken. The next picture may come only after a while: what has been freed by then may be another's.
    unwritten: Vec<(BlockNo, JournaledBlock)>,
    /// What it displaced, until the picture is taken.
    displaced: Vec<BlockNo>,
}

impl Journaled {
    fn put(&mut self, slot: Slot, start: VBlock, run: Run) {
        self.due += run.due;
        self.runs.insert((slot, start), run);
    }

    fn take(&mut self, slot: Slot, start: VBlock) -> Option<Run> {
        let run = self.runs.remove(&(slot, start))?;
        self.due -= run.due;
        Some(run)
    }

    fn overlapping(&self, slot: Slot, range: &Range<VBlock>) -> impl Iterator<Item = VBlock> {
        let before = self.runs.range((slot, VBlock(0))..(slot, range.end)).rev();
        let from = range.start.0;
        before
            .take_while(move |((_, start), run)| start.0 + run.count() > from)
            .map(|((_, start), _)| *start)
    }

    /// What is in the range is something else from now on.
    fn remove(&mut self, slot: Slot, range: Range<VBlock>) {
        if self.runs.is_empty() {
            return;
        }
        let starts: Vec<VBlock> = self.overlapping(slot, &range).collect();
        for start in starts {
            let Some(run) = self.take(slot, start) else {
                continue;
            };
            let (from, to) = (range.start.0, range.end.0);
            if start.0 < from {
                self.put(slot, start, run.cut(0..from - start.0));
            }
            if start.0 + run.count() > to {
                self.put(slot, VBlock(to), run.cut(to - start.0..run.count()));
            }
        }
    }

    fn of_slot(&self, slot: Slot) -> Vec<(VBlock, Run)> {
        let runs = self
            .runs
            .range((slot, VBlock(0))..=(slot, VBlock(u64::MAX)));
        runs.map(|((_, start), run)| (*start, run.clone()))
            .collect()
    }

    /// Nobody needs what a slot has.
    pub(super) fn forget(&mut self, slot: Slot) {
        if self.runs.is_empty() {
            return;
        }
        for (start, _) in self.of_slot(slot) {
            self.take(slot, start);
        }
    }

    /// What the picture has of it: blocks to be written, and those that they have displaced.
    pub(super) fn take_placed(&mut self) -> (Vec<(BlockNo, JournaledBlock)>, Vec<BlockNo>) {
        let unwritten = std::mem::take(&mut self.unwritten);
        (unwritten, std::mem::take(&mut self.displaced))
    }

    /// What was given blocks has them for good.
    pub(super) fn handle_placed(&mut self) {
        self.placed.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.placed.is_empty()
    }
}

impl State {
    /// True if of some of these blocks the map does not say, or not yet rightly, what is in them: until the end of a checkpoint that
    /// begins from now on.
    pub fn has_journaled(&self, slot: Slot, range: &Range<VBlock>) -> bool {
        if self.journaled.is_empty() {
            return false;
        }
        self.journaled.overlapping(slot, range).next().is_some() || self.is_placed(slot, range)
    }

    /// True if some of these blocks have a new place where their data may not be yet.
    pub fn is_placed(&self, slot: Slot, range: &Range<VBlock>) -> bool {
        let overlaps =
            |placed: &Range<VBlock>| placed.start < range.end && range.start < placed.end;
        let placed = self.journaled.placed.get(&slot);
        placed.is_some_and(|placed| placed.iter().any(overlaps))
    }

    /// True if a slot has any.
    pub fn has_journaled_data(&self, slot: Slot) -> bool {
        self.has_journaled(slot, &(VBlock(0)..VBlock(u64::MAX)))
    }

    /// These blocks are nobody's any more.
    pub(super) fn forget_placed_blocks(&mut self, freed: &[BlockNo]) {
        if !self.journaled.unwritten.is_empty() && !planted(Bug::JournaledBlockReused) {
            let unwritten = &mut self.journaled.unwritten;
            unwritten.retain(|(block, _)| !freed.contains(block));
        }
    }

    /// Blocks that a checkpoint may take for data that is in the journal alone.
    pub fn journaled_due(&self) -> u64 {
        self.journaled.due
    }

    /// A node that must be in memory before that data can be mapped.
    pub fn missing_to_place(&self) -> Option<Missing> {
        let runs = self.journaled.runs.iter();
        let mut missing = runs.filter_map(|((slot, start), run)| {
            let map = &self.slot(*slot)?.map;
            map.missing(*start..VBlock(start.0 + run.count()))
        });
        missing.next()
    }

    pub(super) fn apply_journaled(&mut self, slot: Slot, lsn: Lsn, start: VBlock, data: &Rc<[u8]>) {
        let count = blocks_of_bytes(data.len());
        let root = self.existing(slot).map.root_level_and_birth();
        let level = root.map_or(0, |(level, _)| level);
        let run = Run {
            lsn,
            data: data.clone(),
            part: 0..count,
            due: count + nodes_changed_max(level, count),
        };
        self.forget_journaled(slot, start..VBlock(start.0 + count));
        self.journaled.put(slot, start, run);
        self.note_change(slot, lsn);
        self.touch(slot);
    }

    /// Other data comes in this range, or none.
    pub(super) fn forget_journaled(&mut self, slot: Slot, range: Range<VBlock>) {
        if !planted(Bug::JournaledOutlivesBlock) {
            self.journaled.remove(slot, range);
        }
    }

    /// Gives blocks to data that is in the journal alone, and maps them, before a picture is taken; [`State::needed_for_freeze`] is asked behind it, since
    /// it frees some. `None` if there are not enough: what has none yet is as it was.
    /// Every node that it needs must be in memory ([`State::missing_to_place`]).
    pub fn place_journaled(&mut self) -> Option<()> {
        if planted(Bug::JournaledNotPlaced) {
            self.journaled = Journaled::default();
        }
        let places: Vec<(Slot, VBlock)> = self.journaled.runs.keys().copied().collect();
        for (slot, start) in places {
            let count = self.journaled.runs.get(&(slot, start))?.count();
            let blocks = self.take_blocks(count as usize)?;
            let run = self.journaled.take(slot, start)?;
            let mut mapped = MappedBlocks::new();
            for (block, data) in blocks.into_iter().zip(run.blocks()) {
                mapped.push(MappedBlock {
                    block,
                    checksum: BlockChecksum::of(&data.bytes()),
                    meta: 0,
                });
                self.journaled.unwritten.push((block, data));
            }
            let runs: MapRuns = smallvec![MapRun {
                start,
                blocks: mapped,
            }];
            let mut effects = Effects::default();
            self.place_run(slot, run.lsn, &runs, &mut effects);
            self.journaled.displaced.append(&mut effects.freed);
            let end = VBlock(start.0 + count);
            self.journaled
                .placed
                .entry(slot)
                .or_default()
                .push(start..end);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
