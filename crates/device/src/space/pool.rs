//! One journal's blocks.
//!
//! Each segment has two bitmaps in memory. `used` is the state as of the records applied so far and
//! is what a checkpoint writes. `taken` is what must not be handed out: what is used, what was
//! handed out to writes still under way, and what was freed but may not be reused yet.
//!
//! Invariant: `used` is a subset of `taken`.
//!
//! Bitmaps are loaded when first needed, so opening a device costs nothing per segment. Changes to
//! a segment whose bitmap is not loaded wait in `late` until it is.
//!
//! Maps and records read from a device may ask for what can't be: freeing a free block, say. That
//! changes nothing and is kept as a [`Misfit`] for whoever can refuse to go on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use flagstone_types::{BlockNo, SegmentNo};

use super::Bitmap;
use super::segment::{LONG_RUN_BLOCKS, Late, Maps, SegmentState};
use crate::format::geometry::Geometry;
use crate::format::segment::{NO_BITMAP, SegmentRecord};

/// Requests for at least this many blocks get them in long runs as far as there are any, so that what
/// was written in one piece can be read in one piece.
pub const LONG_BLOCKS: u64 = 16;

/// A segment that had no long run is looked through again when this many more of its blocks can be
/// handed out. Looking costs as much as handing out that many, at worst.
const LONG_RETRY_BLOCKS: u32 = 2048;

/// To choose a segment all are looked at. While one has blocks, that is done only when at least this part of their number was handed out
/// since: on a device that is nearly full a segment may have a handful.
const CHOICE_PART: u64 = 16;

/// Consecutive blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first one.
    pub start: BlockNo,
    /// How many.
    pub count: u64,
}

impl BlockRun {
    /// The blocks of the run.
    pub fn blocks(self) -> impl Iterator<Item = BlockNo> {
        (self.start.0..self.start.0 + self.count).map(BlockNo)
    }
}

/// A change that does not fit: the maps and the bitmaps contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit {
    /// The block.
    pub block: BlockNo,
    /// What was to be done with it, and why it can't be.
    pub what: &'static str,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.block, self.what)
    }
}

/// The segments of one journal.
pub struct Pool {
    segments: BTreeMap<SegmentNo, SegmentState>,
    /// Where requests for few blocks get them.
    current: Option<SegmentNo>,
    /// Blocks handed out since that was chosen.
    since_chosen: u64,
    /// Where requests for many get them: what is written in pieces keeps out of there.
    long: Option<SegmentNo>,
    /// Sum of `used_blocks`.
    used_blocks: u64,
    /// Sum of `open_blocks` of loaded segments.
    open_blocks: u64,
    /// Blocks not in use in segments that can be loaded.
    unloaded_free: u64,
    /// Blocks that became open, ever.
    opened: u64,
    /// No segment has a long run before this many blocks have become open.
    long_after_opened: u64,
    /// Hand out the lowest open block of a segment instead of going round.
    pub reuse_soon: bool,
    /// The first change that did not fit.
    misfit: Option<Misfit>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool::new()
    }
}

impl Pool {
    /// No segments.
    pub fn new() -> Pool {
        Pool {
            segments: BTreeMap::new(),
            current: None,
            since_chosen: 0,
            long: None,
            used_blocks: 0,
            open_blocks: 0,
            unloaded_free: 0,
            opened: 0,
            long_after_opened: 0,
            reuse_soon: false,
            misfit: None,
        }
    }

    /// The first change that did not fit, if any.
    pub fn misfit(&self) -> Option<Misfit> {
        self.misfit
    }

    /// Adds a segment this journal owns, as its record says. An empty one needs no loading.
    pub fn add(&mut self, segment: SegmentNo, record: SegmentRecord, geometry: &Geometry) {
        let (start, end) = geometry.segment_range(segment);
        let first = segment.first_block().0;
        let range = ((start.0 + 2 - first) as usize, (end.0 - first) as usize);
        let mut state = SegmentState {
            record,
            dirty: false,
            maps: None,
            late: Vec::new(),
            range,
            lost: false,
            unreadable: false,
        };
        self.used_blocks += u64::from(record.used_blocks);
        if record.bitmap_slot == NO_BITMAP {
            state.maps = Some(Maps::new(Bitmap::default(), range));
        }
        self.open_blocks += state.open_blocks();
        self.opened += state.open_blocks();
        self.unloaded_free += state.unloaded_free();
        self.long_after_opened = 0;
        let before = self.segments.insert(segment, state);
        assert!(before.is_none(), "a segment is added once");
    }

    /// Removes an empty segment.
    pub fn remove(&mut self, segment: SegmentNo) {
        let is_empty = |s: &SegmentState| s.record.used_blocks == 0;
        let Some(state) = self.segments.get(&segment).filter(|s| is_empty(s)) else {
            self.note(
                segment.first_block(),
                "begins a segment that is given back, but is not owned or not empty",
            );
            return;
        };
        self.open_blocks -= state.open_blocks();
        self.unloaded_free -= state.unloaded_free();
        self.segments.remove(&segment);
        for place in [&mut self.current, &mut self.long] {
            *place = place.filter(|&no| no != segment);
        }
    }

    /// True if this journal owns `segment`.
    pub fn owns(&self, segment: SegmentNo) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Owned segments in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = (SegmentNo, &SegmentState)> {
        self.segments.iter().map(|(&no, state)| (no, state))
    }

    /// Owned segments from `first` on, in order.
    pub fn segments_from(
        &self,
        first: SegmentNo,
    ) -> impl Iterator<Item = (SegmentNo, &SegmentState)> {
        self.segments.range(first..).map(|(&no, state)| (no, state))
    }

    /// A segment's state.
    pub fn segment_mut(&mut self, segment: SegmentNo) -> Option<&mut SegmentState> {
        self.segments.get_mut(&segment)
    }

    /// Blocks in use in all segments, as of the records applied.
    pub fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    /// Blocks that could be handed out at once.
    pub fn open_blocks(&self) -> u64 {
        self.open_blocks
    }

    /// Blocks not in use in segments that are not loaded.
    pub fn unloaded_free_blocks(&self) -> u64 {
        debug_assert_eq!(
            self.unloaded_free,
            self.segments
                .values()
                .map(SegmentState::unloaded_free)
                .sum::<u64>()
        );
        self.unloaded_free
    }

    /// Makes a change to a segment that may change which of its blocks could be handed out, and
    /// counts again.
    fn recounted<T>(
        &mut self,
        segment: SegmentNo,
        change: impl FnOnce(&mut SegmentState) -> T,
    ) -> Option<T> {
        let state = self.segments.get_mut(&segment)?;
        let (open, unloaded) = (state.open_blocks(), state.unloaded_free());
        let result = change(state);
        let now_open = state.open_blocks();
        self.opened += now_open.saturating_sub(open);
        self.open_blocks = self.open_blocks - open + now_open;
        self.unloaded_free = self.unloaded_free - unloaded + state.unloaded_free();
        Some(result)
    }

    /// The segment whose bitmap should be loaded next to have more open blocks.
    pub fn wants_loading(&self) -> Option<SegmentNo> {
        let with_room =
            |s: &SegmentState| s.can_be_loaded() && u64::from(s.record.used_blocks) < s.capacity();
        self.segments
            .iter()
            .find(|(_, s)| with_room(s))
            .map(|(&no, _)| no)
    }

    /// Gives an unloaded segment its bitmap as the last checkpoint wrote it. False if the bitmap
    /// does not fit the record or what has changed since: see [`Pool::lose`].
    pub fn loaded(&mut self, segment: SegmentNo, bitmap: Bitmap) -> bool {
        self.long_after_opened = 0;
        let load = |state: &mut SegmentState| {
            if state.maps.is_some() {
                return true;
            }
            let mut maps = Maps::new(bitmap, state.range);
            let mut fits = true;
            for late in std::mem::take(&mut state.late) {
                fits &= maps.change(late).is_some();
            }
            fits &= maps.used.count() == state.record.used_blocks
                && maps.used.count_in(state.range) == state.record.used_blocks;
            state.maps = Some(maps);
            state.unreadable = false;
            fits
        };
        self.recounted(segment, load).unwrap_or(false)
    }

    /// A segment's bitmap is damaged, so nobody knows which of its blocks are free. All count as
    /// used from now on, but for what is freed later, and the next checkpoint writes that down:
    /// space is lost until then, never a block handed out twice.
    pub fn lose(&mut self, segment: SegmentNo) {
        let lose = |state: &mut SegmentState| {
            let before = state.record.used_blocks;
            let mut all = Bitmap::default();
            (state.range.0..state.range.1).for_each(|index| {
                all.set(index);
            });
            let mut maps = Maps::new(all, state.range);
            for late in std::mem::take(&mut state.late) {
                // What is mapped now is among the used ones already.
                let _ = maps.change(late);
            }
            state.record.used_blocks = maps.used.count();
            state.maps = Some(maps);
            state.dirty = true;
            state.lost = true;
            (u64::from(before), u64::from(state.record.used_blocks))
        };
        if let Some((before, now)) = self.recounted(segment, lose) {
            self.used_blocks = self.used_blocks - before + now;
        }
    }

    /// Segments whose bitmaps were found damaged.
    pub fn lost_segments(&self) -> impl Iterator<Item = SegmentNo> {
        let lost = self.segments.iter().filter(|(_, state)| state.lost);
        lost.map(|(segment, _)| *segment)
    }

    /// A segment's bitmap could not be read: others are tried first, until
    /// [`Pool::retry_unreadable`].
    pub fn set_unreadable(&mut self, segment: SegmentNo) {
        self.recounted(segment, |state| state.unreadable = true);
    }

    /// Has bitmaps that could not be read tried again.
    pub fn retry_unreadable(&mut self) {
        for state in self.segments.values_mut().filter(|s| s.unreadable) {
            self.unloaded_free -= state.unloaded_free();
            state.unreadable = false;
            self.unloaded_free += state.unloaded_free();
        }
    }

    /// Hands out up to `count` blocks, appending runs to `out`; returns how many. They count as
    /// used only when [`Pool::commit`] says so.
    pub fn allocate(&mut self, count: u64, out: &mut Vec<BlockRun>) -> u64 {
        let mut left = count;
        while left >= LONG_BLOCKS && self.seek_long_run() {
            left -= self.take_long_run(left, out);
        }
        let segments = self.segments.len() as u64;
        while left > 0 && self.open_blocks > 0 {
            let Some(segment) = self.segment_with_room() else {
                break;
            };
            let state = self.segments.get_mut(&segment).expect("just found");
            let range = state.range;
            let maps = state.maps.as_mut().expect("has room, so it is loaded");
            if self.reuse_soon {
                maps.cursor = range.0;
            }
            let taken = maps.take(left, range, segment, out);
            self.open_blocks -= taken;
            left -= taken;
            self.since_chosen += taken;
            if left > 0 {
                // Gone through. What has become open behind its cursor meanwhile lies apart: another segment may have more.
                let is_worth_it = self.since_chosen * CHOICE_PART >= segments;
                if is_worth_it || maps.open_blocks == 0 {
                    self.current = None;
                } else {
                    maps.cursor = range.0;
                }
            }
        }
        count - left
    }

    /// Looks for a long run in the loaded segments; true if there is one.
    pub fn seek_long_run(&mut self) -> bool {
        loop {
            if self.long.is_none() && self.opened < self.long_after_opened {
                return false;
            }
            let Some(segment) = self.long.or_else(|| self.segment_for_long_runs()) else {
                self.long_after_opened = self.opened + u64::from(LONG_RETRY_BLOCKS);
                return false;
            };
            self.long = Some(segment);
            let Some(state) = self.segments.get_mut(&segment) else {
                return false;
            };
            let range = state.range;
            let Some(maps) = &mut state.maps else {
                return false;
            };
            if self.reuse_soon {
                maps.long_cursor = range.0;
            }
            let from = |start| maps.taken.find_long_run(start, range.1, LONG_RUN_BLOCKS);
            if let Some(start) = from(maps.long_cursor).or_else(|| from(range.0)) {
                maps.long_cursor = start;
                return true;
            }
            maps.long_above = maps.open_blocks.saturating_add(LONG_RETRY_BLOCKS);
            self.long = None;
        }
    }

    /// The emptiest segment that may have long runs; the one that small requests use only if there
    /// is no other.
    fn segment_for_long_runs(&self) -> Option<SegmentNo> {
        let candidates = self.segments.iter().filter_map(|(&no, state)| {
            let maps = state.maps.as_ref()?;
            let worth_it = maps.open_blocks >= maps.long_above;
            worth_it.then_some((Some(no) != self.current, maps.open_blocks, no))
        });
        candidates
            .max_by_key(|&(apart, open, no)| (apart, open, std::cmp::Reverse(no)))
            .map(|(_, _, no)| no)
    }

    /// Takes up to `max` blocks of the run that [`Pool::seek_long_run`] has found.
    fn take_long_run(&mut self, max: u64, out: &mut Vec<BlockRun>) -> u64 {
        let Some(segment) = self.long else { return 0 };
        let Some(state) = self.segments.get_mut(&segment) else {
            return 0;
        };
        let Some(maps) = &mut state.maps else {
            return 0;
        };
        let taken = maps.take_long(max, state.range, segment, out);
        self.open_blocks -= taken;
        taken
    }

    fn segment_with_room(&mut self) -> Option<SegmentNo> {
        let has_room = |s: &SegmentState| s.maps.as_ref().is_some_and(|maps| maps.open_blocks > 0);
        if let Some(current) = self.current
            && self.segments.get(&current).is_some_and(has_room)
        {
            return Some(current);
        }
        // The emptiest of the loaded segments, but for the one that is kept for long runs.
        let roomiest = self
            .segments
            .iter()
            .filter(|(_, s)| has_room(s))
            .max_by_key(|(no, s)| {
                (
                    Some(**no) != self.long,
                    s.maps.as_ref().map_or(0, |maps| maps.open_blocks),
                    std::cmp::Reverse(**no),
                )
            });
        self.current = roomiest.map(|(&no, _)| no);
        self.since_chosen = 0;
        let chosen = self.segments.get_mut(&self.current?)?;
        let start = chosen.range.0;
        if let Some(maps) = &mut chosen.maps {
            maps.cursor = start;
        }
        self.current
    }

    /// The indices of a segment's blocks that can be handed out; `None` if it isn't owned or not loaded.
    pub fn range_of(&self, segment: SegmentNo) -> Option<Range<usize>> {
        let state = self.segments.get(&segment)?;
        state.is_loaded().then_some(state.range.0..state.range.1)
    }

    /// Whether all of these blocks, by their indices in the segment, could be handed out at once.
    pub fn are_open(&self, segment: SegmentNo, blocks: Range<usize>) -> bool {
        let found = self.segments.get(&segment);
        let inside = found.filter(|s| blocks.start >= s.range.0 && blocks.end <= s.range.1);
        let maps = inside.and_then(|state| state.maps.as_ref());
        maps.is_some_and(|maps| maps.taken.count_in((blocks.start, blocks.end)) == 0)
    }

    /// Keeps them from being handed out, if that is so, until [`Pool::give_back`].
    pub fn withhold(&mut self, segment: SegmentNo, blocks: Range<usize>) -> bool {
        if !self.are_open(segment, blocks.clone()) {
            return false;
        }
        let found = self.segments.get_mut(&segment);
        let Some(maps) = found.and_then(|state| state.maps.as_mut()) else {
            return false;
        };
        for index in blocks.clone() {
            maps.taken.set(index);
        }
        maps.open_blocks -= blocks.len() as u32;
        self.open_blocks -= blocks.len() as u64;
        true
    }

    /// Lets blocks be handed out again that were withheld. Nothing was freed: they don't count as opened.
    pub fn give_back(&mut self, segment: SegmentNo, blocks: Range<usize>) {
        let found = self.segments.get_mut(&segment);
        let Some(maps) = found.and_then(|state| state.maps.as_mut()) else {
            return;
        };
        for index in blocks {
            let was_withheld = maps.taken.clear(index);
            maps.open_blocks += u32::from(was_withheld);
            self.open_blocks += u64::from(was_withheld);
        }
    }

    /// A handed-out block is used by a record that has been applied. During replay the block was
    /// never handed out; that is the same.
    pub fn commit(&mut self, block: BlockNo) {
        self.change(block, Late::Commit);
    }

    /// A used block is free as of a record that has been applied. It is not handed out again
    /// before [`Pool::reopen`].
    pub fn release(&mut self, block: BlockNo) {
        self.change(block, Late::Release);
    }

    /// A block that is not used may be handed out again.
    pub fn reopen(&mut self, block: BlockNo) {
        self.change(block, Late::Reopen);
    }

    /// Whether `block` is used, if its segment is loaded.
    pub fn is_used(&self, block: BlockNo) -> Option<bool> {
        let state = self.segments.get(&block.segment())?;
        state
            .maps
            .as_ref()
            .map(|maps| maps.used.get(block.index_in_segment()))
    }

    /// Whether a record may map `block`; `None` if its segment is not loaded. In a segment whose
    /// bitmap was lost nothing is known to be in use.
    pub fn is_free(&self, block: BlockNo) -> Option<bool> {
        let is_lost = self.segments.get(&block.segment())?.lost;
        self.is_used(block).map(|used| is_lost || !used)
    }

    /// Whether an owned segment's bitmap is in memory; `None` if it is not owned.
    pub fn is_loaded(&self, segment: SegmentNo) -> Option<bool> {
        self.segments.get(&segment).map(SegmentState::is_loaded)
    }

    /// Blocks in use in an owned segment; `None` if it is not owned.
    pub fn used_in(&self, segment: SegmentNo) -> Option<u32> {
        self.segments.get(&segment).map(|s| s.record.used_blocks)
    }

    fn change(&mut self, block: BlockNo, change: fn(usize) -> Late) {
        let index = block.index_in_segment();
        let Some(state) = self.segments.get_mut(&block.segment()) else {
            return self.note(block, "lies in no segment of this journal");
        };
        if index < state.range.0 || index >= state.range.1 {
            return self.note(block, "can't be handed out");
        }
        let change = change(index);
        let opened = match (&mut state.maps, change) {
            (None, Late::Release(_)) if state.record.used_blocks == 0 => None,
            (None, late) => {
                state.late.push(late);
                Some(0)
            }
            // Of a lost segment every block counts as used, what is mapped now as well.
            (Some(maps), Late::Commit(index)) if state.lost && maps.used.get(index) => return,
            (Some(maps), change) => maps.change(change),
        };
        match (opened, change) {
            (None, Late::Commit(_)) => self.note(block, "is to be used, but is in use"),
            (None, Late::Release(_)) => self.note(block, "is to be freed, but is not in use"),
            (None, Late::Reopen(_)) => self.note(block, "is to be reused, but is in use"),
            (Some(opened), change) => {
                self.open_blocks = self.open_blocks.saturating_add_signed(opened);
                self.opened += u64::try_from(opened).unwrap_or(0);
                self.unloaded_free -= state.unloaded_free();
                match change {
                    Late::Commit(_) => {
                        state.record.used_blocks += 1;
                        self.used_blocks += 1;
                        state.dirty = true;
                    }
                    Late::Release(_) => {
                        state.record.used_blocks -= 1;
                        self.used_blocks -= 1;
                        state.dirty = true;
                    }
                    Late::Reopen(_) => {}
                }
                self.unloaded_free += state.unloaded_free();
            }
        }
    }

    fn note(&mut self, block: BlockNo, what: &'static str) {
        self.misfit.get_or_insert(Misfit { block, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::{self, Superblock};

    fn geometry() -> Geometry {
        Geometry::checked(&superblock::sample()).expect("valid")
    }

    #[test]
    fn blocks_go_round() {
        let geometry = geometry();
        let mut pool = Pool::new();
        pool.add(SegmentNo(0), SegmentRecord::EMPTY, &geometry);
        let capacity = geometry.capacity_blocks();
        assert_eq!(pool.open_blocks(), capacity);
        let mut runs = Vec::new();
        assert_eq!(pool.allocate(10, &mut runs), 10);
        assert_eq!(
            runs,
            [BlockRun {
                start: BlockNo(geometry.data_start.0 + 2),
                count: 10
            }]
        );
        let block = runs[0].start;
        pool.commit(block);
        assert_eq!((pool.used_blocks(), pool.open_blocks()), (1, capacity - 10));
        pool.release(block);
        assert_eq!((pool.used_blocks(), pool.open_blocks()), (0, capacity - 10));
        let mut rest = Vec::new();
        assert_eq!(pool.allocate(u64::MAX, &mut rest), capacity - 10);
        assert!(
            rest.iter().all(|run| run.blocks().all(|b| b != block)),
            "not reopened yet"
        );
        pool.reopen(block);
        runs.clear();
        assert_eq!(pool.allocate(5, &mut runs), 1);
        assert_eq!(
            runs,
            [BlockRun {
                start: block,
                count: 1
            }]
        );
    }

    /// A pool of so many empty segments.
    fn empty_pool(count: u32) -> Pool {
        let geometry = Geometry::checked(&Superblock {
            block_count: 32768 * u64::from(count),
            ..superblock::sample()
        });
        let geometry = geometry.expect("valid");
        let mut pool = Pool::new();
        for segment in geometry.segments() {
            pool.add(segment, SegmentRecord::EMPTY, &geometry);
        }
        pool
    }

    /// Fills a pool of `count` segments and reopens every second block of what small requests took.
    fn half_open_pool(count: u32) -> Pool {
        let mut pool = empty_pool(count);
        let mut all = Vec::new();
        let open = pool.open_blocks();
        assert_eq!(pool.allocate(open, &mut all), open);
        for run in all {
            run.blocks()
                .filter(|b| b.0 % 2 == 0)
                .for_each(|b| pool.reopen(b));
        }
        pool
    }

    #[test]
    fn many_blocks_are_not_pieced_together_where_long_runs_are() {
        let mut pool = half_open_pool(3);
        let free = 10_000..10_000 + 300;
        // The even ones are open already; that changes nothing.
        free.clone().for_each(|block| pool.reopen(BlockNo(block)));
        let mut few = Vec::new();
        assert_eq!(pool.allocate(5, &mut few), 5);
        assert!(few.iter().all(|run| run.count == 1), "{few:?}");
        let mut many = Vec::new();
        assert_eq!(pool.allocate(256, &mut many), 256);
        assert_eq!(many.len(), 1, "{many:?}");
        assert!(free.contains(&many[0].start.0));
        // The rest is shorter than a long run, so this comes in pieces; and all of it comes.
        let mut pieces = Vec::new();
        let open = pool.open_blocks();
        assert_eq!(pool.allocate(open + 1, &mut pieces), open);
        assert_eq!(pool.open_blocks(), 0);
        let mut taken: Vec<BlockNo> = [few, many, pieces]
            .iter()
            .flatten()
            .flat_map(|run| run.blocks())
            .collect();
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count, "none is handed out twice");
    }

    #[test]
    fn a_segment_without_long_runs_is_looked_through_again_when_much_was_freed() {
        let mut pool = half_open_pool(1);
        assert!(!pool.seek_long_run());
        (9_000..9_200).for_each(|block| pool.reopen(BlockNo(block)));
        assert!(!pool.seek_long_run(), "a hundred more is not worth looking");
        (9_000..18_000).for_each(|block| pool.reopen(BlockNo(block)));
        assert!(pool.seek_long_run());
    }

    /// Blocks that are overwritten at random free others all over the segments. What is handed out next is to lie side by side as far as
    /// can be: the emptiest segment is taken, from its beginning to its end.
    #[test]
    fn a_segment_is_gone_through_once_and_then_the_emptiest_is_taken() {
        let mut pool = empty_pool(8);
        let mut runs = Vec::new();
        let half = pool.open_blocks() / 2;
        assert_eq!(pool.allocate(half, &mut runs), half);
        let mut volume: Vec<BlockNo> = runs.iter().flat_map(|run| run.blocks()).collect();
        volume.iter().for_each(|&block| pool.commit(block));
        let mut random = 1u64;
        let (mut transfers, mut blocks) = (0, 0);
        for round in 0..60_000 {
            // Sixteen writes that come together.
            runs.clear();
            (0..16).for_each(|_| assert_eq!(pool.allocate(1, &mut runs), 1));
            if round > 30_000 {
                transfers += runs.len();
                blocks += 16;
            }
            for block in runs.iter().flat_map(|run| run.blocks()) {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (random >> 33) as usize % volume.len();
                let old = std::mem::replace(&mut volume[at], block);
                pool.commit(block);
                pool.release(old);
                pool.reopen(old);
            }
        }
        assert_eq!(pool.misfit(), None);
        let each = blocks as f64 / transfers as f64;
        // 3.03; 2.66 when a segment was gone through as long as it had any block left.
        assert!(each > 2.9, "{each} blocks in a transfer");
    }

    /// To look at all segments for each block would take longer than the write.
    #[test]
    fn a_segment_that_gave_little_is_gone_through_again_before_all_are_looked_at() {
        let mut pool = empty_pool(CHOICE_PART as u32 * 2);
        let mut all = Vec::new();
        let open = pool.open_blocks();
        assert_eq!(pool.allocate(open, &mut all), open);
        pool.reopen(BlockNo(32_768 + 500));
        let take = |pool: &mut Pool| {
            let mut runs = Vec::new();
            assert_eq!(pool.allocate(1, &mut runs), 1);
            runs[0].start.0
        };
        assert_eq!(take(&mut pool), 32_768 + 500);
        // Behind its cursor, and two where there is more.
        let places = [32_768 + 400, 3 * 32_768 + 7, 3 * 32_768 + 9];
        places.iter().for_each(|&block| pool.reopen(BlockNo(block)));
        assert_eq!(take(&mut pool), 32_768 + 400, "it gave one block");
        pool.reopen(BlockNo(32_768 + 300));
        assert_eq!(take(&mut pool), 3 * 32_768 + 7, "it has given two");
    }

    #[test]
    fn few_blocks_come_from_elsewhere_than_long_runs() {
        let mut pool = empty_pool(4);
        let mut runs = Vec::new();
        for _ in 0..10 {
            pool.allocate(64, &mut runs);
            let mut few = Vec::new();
            pool.allocate(1, &mut few);
        }
        assert_eq!(runs.len(), 1, "{runs:?}");
        assert_eq!(runs[0].count, 640);
    }

    #[test]
    fn changes_before_loading_are_made_up_for() {
        let geometry = geometry();
        let mut on_device = Bitmap::default();
        on_device.set(600);
        on_device.set(601);
        let record = SegmentRecord {
            bitmap_slot: 0,
            used_blocks: 2,
            ..SegmentRecord::EMPTY
        };
        let mut pool = Pool::new();
        pool.add(SegmentNo(0), record, &geometry);
        assert_eq!(pool.open_blocks(), 0);
        pool.release(BlockNo(600));
        pool.commit(BlockNo(602));
        assert_eq!(pool.wants_loading(), Some(SegmentNo(0)));
        assert!(pool.loaded(SegmentNo(0), on_device.clone()));
        assert_eq!(pool.is_used(BlockNo(600)), Some(false));
        assert_eq!(pool.is_used(BlockNo(602)), Some(true));
        assert_eq!(
            pool.open_blocks(),
            geometry.capacity_blocks() - 3,
            "600 is not reopened"
        );
        let mut wrong = Pool::new();
        wrong.add(
            SegmentNo(0),
            SegmentRecord {
                used_blocks: 3,
                ..record
            },
            &geometry,
        );
        assert!(!wrong.loaded(SegmentNo(0), on_device));
    }
}
