//! Getting blocks: from the pool, by loading a bitmap, or by reserving one more segment.
//!
//! Three kinds of asking, each allowed to go deeper: new data stops where reservations and the
//! reserve for checkpoints begin; data of dvols with a reservation may use what is reserved for
//! them; checkpoints may use everything. That those find enough, whatever takes no data blocks, is
//! seen to by [`due`](super::due).

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Slot, VBlock};
use smallvec::SmallVec;

use super::Inner;
use super::bitmaps::{read_bitmap, take_bitmap};
use super::due::Purpose;
use super::error::DvolError;
use super::laying_out::Needed;
use super::overwrites::Turn;
use super::segments::NO_SLOT;
use crate::format::record::Record;
use crate::space::{BlockRun, LONG_BLOCKS};

/// Blocks that memory is kept for while they become usable again.
const SCRATCH_REUSABLE_MAX: usize = 8192;

/// Runs that memory is kept for between writes.
const SCRATCH_RUNS_MAX: usize = 1024;

/// How often an allocation waits for freed blocks to become usable before it gives up.
pub(super) const SPACE_WAITS_MAX: usize = 4;

/// What is written to the blocks that are taken.
#[derive(Clone, Copy)]
pub(super) enum Over<'a> {
    /// Whole blocks of this range.
    Blocks(&'a Range<VBlock>),
    /// A part of a block that stays.
    Delta,
    /// The data of these blocks, whose deltas stay.
    Data(&'a Range<VBlock>),
}

/// What there is for a write.
enum Room {
    /// Enough of what is promised to nobody.
    Free,
    /// Enough with what is promised to the dvol and what is kept for overwrites.
    Kept,
    /// The same, but others that overwrite have it and will give it back.
    Lent,
    /// Not enough.
    None,
}

/// Blocks of one part of an overwrite on a full device.
pub(super) const OVERWRITE_PART_BLOCKS: u64 = 64;

/// A segment is opened just for long runs as long as more than this part of the device is owned by no
/// journal.
const LONG_RUN_SPARE: u64 = 8;

impl<P: Platform> Inner<P> {
    /// Nodes that may be dirty before a checkpoint begins, however little space there is.
    pub(super) fn dirty_nodes_max(&self) -> usize {
        match self.options.dirty_nodes_max {
            0 => (self.capacity_blocks / 256).clamp(32, 16384) as usize,
            chosen => chosen,
        }
    }

    /// True if so many nodes are dirty that a checkpoint is due. The longer it waits, the more writes share
    /// a node, so with space and memory to spare it may be many: with writes at random places of a dvol of
    /// 64 GiB, nearly all of its 168,000 leaves. As space runs short, fewer may be, down to what is kept for
    /// them anyway.
    pub(super) fn has_many_dirty_nodes(&self) -> bool {
        let dirty = self.state.borrow().dirty_nodes();
        let always = self.dirty_nodes_max();
        if dirty <= always || self.options.dirty_nodes_max != 0 {
            return dirty > always;
        }
        let fit_memory = self.options.map_cache_bytes / 4 * 3 / BLOCK_SIZE;
        let wide = (self.capacity_blocks / 64).min(fit_memory);
        dirty as u64 > wide.min(self.available() / 4)
    }

    /// Blocks that must stay open, in segments of this journal, for the next checkpoint. Never more than
    /// what [`Inner::available`] leaves alone.
    pub(super) fn kept_for_checkpoint(&self) -> u64 {
        let reserve = self.checkpoint_reserve();
        let nodes = {
            let state = self.state.borrow();
            state.dirty_nodes() as u64 + state.journaled_due() + self.due_ahead.get()
        };
        reserve.max(nodes + reserve / 2)
    }

    /// Blocks kept for checkpoints, so that deallocation and deletion work on a full device: room
    /// for the new copy of everything that may be dirty beside the old one, and for the tables.
    /// Twice what makes a checkpoint begin, since more gets dirty before its picture is taken.
    pub(super) fn checkpoint_reserve(&self) -> u64 {
        let nodes = 2 * self.dirty_nodes_max() as u64;
        let segments = self.capacity_blocks / (127 * 32768) + 1;
        nodes + 4 * segments + 64
    }

    /// Blocks kept for overwrites of dvols with a reservation: an overwrite takes its new blocks
    /// before it frees the old ones.
    pub(super) fn overwrite_reserve(&self) -> u64 {
        (self.capacity_blocks / 64).clamp(OVERWRITE_PART_BLOCKS * 4, 16384)
    }

    /// Blocks that are open and not to be handed out to whoever asks: kept for checkpoints and for overwrites of dvols with a
    /// reservation, and promised to dvols.
    pub(super) fn kept_blocks(&self) -> u64 {
        let promised = self.state.borrow().promised(NO_SLOT).blocks();
        self.checkpoint_reserve() + self.overwrite_reserve() + promised
    }

    /// Blocks that are neither used nor handed out nor waiting to be reusable.
    pub(super) fn open_blocks(&self) -> u64 {
        let state = self.state.borrow();
        let own = state.pool.open_blocks() + state.pool.unloaded_free_blocks();
        own + self.not_owned_yet()
    }

    /// Blocks in segments that nobody owns, and in the one that this journal is just taking.
    pub(super) fn not_owned_yet(&self) -> u64 {
        self.shared.free_blocks() + self.laying_out.blocks_being_taken()
    }

    /// Blocks of this journal's own segments that can be handed out: at once, and after loading
    /// their bitmaps.
    pub(super) fn own_open_blocks(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.pool.open_blocks(), state.pool.unloaded_free_blocks())
    }

    /// True if handing out `count` blocks to `slot` takes another bitmap or segment first.
    pub(super) fn needs_more(&self, slot: Slot, count: u64) -> bool {
        let (open, unloaded) = self.own_open_blocks();
        open < count || open + unloaded < count + self.kept_from(slot)
    }

    /// Blocks that may still be taken for new data, beyond what is promised to anybody. What the next
    /// checkpoint will take for nodes is as good as taken, and so is what units on their way may add.
    pub(super) fn available(&self) -> u64 {
        self.open_blocks().saturating_sub(self.spoken_for())
    }

    /// Blocks that nobody may take for new data but those they are kept for or promised to.
    pub(super) fn spoken_for(&self) -> u64 {
        let nodes = {
            let state = self.state.borrow();
            state.dirty_nodes() as u64 + state.journaled_due() + self.due_ahead.get()
        };
        let kept = self.checkpoint_reserve() + self.overwrite_reserve() + nodes;
        kept + self.promised(NO_SLOT).blocks()
    }

    /// True if `slot` may take `count` blocks now, to write to what `over` says.
    ///
    /// What is reserved for a dvol it may always take. An overwrite of what is its own takes blocks
    /// from the reserve for overwrites, and gives as many back; nothing else may take those for good.
    pub(super) fn has_room(&self, slot: Slot, count: u64, over: Over<'_>) -> bool {
        matches!(self.room(slot, count, over), Room::Free | Room::Kept)
    }

    /// Where `slot` may take `count` blocks from now, to write to what `over` says.
    fn room(&self, slot: Slot, count: u64, over: Over<'_>) -> Room {
        let available = self.available();
        if available >= count {
            return Room::Free;
        }
        let is_reserved = |s: &crate::state::SlotState| s.record.reserved_blocks > 0;
        if !self.state.borrow().slot(slot).is_some_and(is_reserved) {
            return Room::None;
        }
        // The nodes promised to others are a bound, which new data has left alone.
        let kept = self.kept_for_checkpoint() + self.promised(slot).data;
        let is_there = self.open_blocks() >= kept + count;
        if !is_there && count > self.overwrite_reserve() {
            return Room::None;
        }
        let state = self.state.borrow();
        let goes = match over {
            Over::Delta => None,
            Over::Blocks(range) => Some(state.owned_in(slot, range.clone())),
            Over::Data(range) => Some(state.owned_data_in(slot, range.clone())),
        };
        let grows = match goes {
            None => count,
            Some(goes) => {
                let promised = state.promised_to(slot).data;
                let promised = promised.saturating_sub(self.growth_on_way(slot));
                count.saturating_sub(goes).saturating_sub(promised)
            }
        };
        drop(state);
        match is_there {
            _ if grows > available => Room::None,
            true => Room::Kept,
            false => Room::Lent,
        }
    }

    /// Blocks of those handed out to `slot` for changes that are not applied yet which it will have more
    /// then: they are still counted as promised.
    fn growth_on_way(&self, slot: Slot) -> u64 {
        let state = self.state.borrow();
        let grows = |start: VBlock, count: u64| {
            let range = start..VBlock(start.0 + count);
            count.saturating_sub(state.owned_in(slot, range))
        };
        let of = |record: &Record| match record {
            Record::Map { slot: of, runs, .. } if *of == slot => {
                let each = runs.iter();
                each.map(|run| grows(run.start, run.blocks.len() as u64))
                    .sum()
            }
            Record::Delta { slot: of, .. } if *of == slot => 1,
            Record::MapUnder {
                slot: of, vblock, ..
            } if *of == slot => {
                let range = *vblock..VBlock(vblock.0 + 1);
                let state = self.state.borrow();
                1_u64.saturating_sub(state.owned_data_in(slot, range))
            }
            _ => 0,
        };
        let commit = self.commit.borrow();
        let units = commit.units_of(slot).flat_map(|unit| &unit.records);
        let batched = self.batched.borrow();
        let batched = batched.iter().filter(|(of, _)| *of == slot);
        units.map(of).sum::<u64>()
            + batched
                .map(|(_, range)| grows(range.start, range.end.0 - range.start.0))
                .sum::<u64>()
    }

    /// Blocks for `slot`'s data. Waits for freed blocks if that helps. Who needs those that are kept for
    /// overwrites takes them in `turn`, and keeps the turn until a unit has them.
    pub(super) async fn take_blocks(
        self: &Rc<Self>,
        slot: Slot,
        count: u64,
        over: Over<'_>,
        turn: &mut Turn,
    ) -> Result<SmallVec<[BlockRun; 2]>, DvolError> {
        let mut waits = 0;
        let mut has_sought = false;
        let mut is_cleared = false;
        let more = count + self.nodes_due(slot, count) + 1;
        loop {
            // What is asked below needs them, and they may be let go while this waits.
            if let Over::Blocks(range) | Over::Data(range) = over {
                self.load_nodes(slot, range.clone()).await?;
            }
            self.check_running()?;
            match self.room(slot, count, over) {
                Room::Kept | Room::Lent if turn.is_none() => {
                    *turn = Some(self.overwrites.take(1).await);
                    is_cleared = false;
                    continue;
                }
                Room::Free | Room::Kept => {}
                Room::Lent => {
                    self.wait_for_lent(&mut waits).await?;
                    is_cleared = false;
                    continue;
                }
                Room::None => {
                    if waits == SPACE_WAITS_MAX || !self.may_gain_space() {
                        return Err(DvolError::NoSpace);
                    }
                    self.gain_space(waits).await?;
                    waits += 1;
                    is_cleared = false;
                    continue;
                }
            }
            if !is_cleared && !self.is_clear(slot, more, Purpose::Writing) {
                self.clear_way(slot, more, Purpose::Writing).await?;
                is_cleared = true;
                continue;
            }
            // Other journals may take every segment that nobody owns yet: what a checkpoint needs
            // must be in segments of this one before it is needed.
            if self.needs_more(slot, count) {
                is_cleared = false;
                match self.open_more(slot, count).await {
                    Ok(()) => continue,
                    Err(DvolError::NoSpace) if waits < SPACE_WAITS_MAX && self.may_gain_space() => {
                        self.gain_space(waits).await?;
                        waits += 1;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            // While that waits, the node may be stopping and others may take what there is.
            if !has_sought && self.seek_long_run(count).await {
                has_sought = true;
                is_cleared = false;
                continue;
            }
            return Ok(self.take_open(count));
        }
    }

    /// True if the map nodes of these blocks are in memory.
    pub(super) fn is_loaded(&self, slot: Slot, blocks: &Range<VBlock>) -> bool {
        let state = self.state.borrow();
        let found = state.slot(slot);
        found.is_some_and(|found| found.map.missing(blocks.clone()).is_none())
    }

    /// Few blocks for `slot`'s data, to write to these, if nothing has to be waited for ([`Inner::take_blocks`]).
    pub(super) fn take_blocks_now(
        self: &Rc<Self>,
        slot: Slot,
        count: u64,
        blocks: &Range<VBlock>,
        over: Over<'_>,
    ) -> Option<SmallVec<[BlockRun; 2]>> {
        let has_room = || matches!(self.room(slot, count, over), Room::Free);
        let more = count + self.nodes_due(slot, count) + 1;
        let may = self.is_loaded(slot, blocks)
            && count < LONG_BLOCKS
            && self.check_running().is_ok()
            && has_room()
            && self.is_clear(slot, more, Purpose::Writing)
            && !self.needs_more(slot, count);
        may.then(|| self.take_open(count))
    }

    fn take_open(&self, count: u64) -> SmallVec<[BlockRun; 2]> {
        let runs = self.hand_out(count);
        if self.is_low_on_blocks() {
            self.signals.blocks_low.notify();
        }
        runs
    }

    /// Hands out so many blocks, of those that are open.
    fn hand_out(&self, count: u64) -> SmallVec<[BlockRun; 2]> {
        let mut scratch = self.scratch_runs.borrow_mut();
        scratch.clear();
        let got = self.state.borrow_mut().pool.allocate(count, &mut scratch);
        assert_eq!(got, count, "as many blocks were open");
        let runs = SmallVec::from_slice(&scratch);
        // One large change leaves nothing.
        scratch.clear();
        scratch.shrink_to(SCRATCH_RUNS_MAX);
        runs
    }

    /// Has one more segment opened if many blocks are wanted, none of those that this journal owns
    /// has a long run, and there are enough that nobody owns. True if it had to wait.
    async fn seek_long_run(self: &Rc<Self>, count: u64) -> bool {
        let spare = self.capacity_blocks / LONG_RUN_SPARE;
        let is_pieced = || {
            count >= LONG_BLOCKS
                && self.shared.free_blocks() > spare
                && !self.state.borrow_mut().pool.seek_long_run()
        };
        if !is_pieced() {
            return false;
        }
        let _turn = self.opening.take(1).await;
        if self.check_running().is_ok() && is_pieced() {
            // Failing is fine: there are blocks, in pieces.
            let _ = self.open_segment(Needed::ByChange).await;
        }
        true
    }

    /// True if blocks are on their way to being usable.
    pub(super) fn may_gain_space(&self) -> bool {
        !self.freed.borrow().is_empty()
            || self.gate.has_waiting()
            || !self.commit.borrow().is_idle()
            || !self.state.borrow().is_clean()
            || self.state.borrow().reapable().is_some()
            || self.laying_out.withholds()
            || self.made_ahead.get() > 0
    }

    /// Has what is freed become usable: at first by a flush, then by a checkpoint, which gives up
    /// old map nodes, then by waiting for reads and reaping.
    pub(super) async fn gain_space(self: &Rc<Self>, waits: usize) -> Result<(), DvolError> {
        if self.laying_out.withholds() {
            self.signals.space.wait().await;
        }
        // What it displaces is free soon after it has a unit.
        if self.made_ahead.get() > 0 {
            self.signals.applied.wait().await;
        }
        self.flush_now().await?;
        self.reopen_blocks();
        if waits == 1 {
            self.checkpoint_now().await?;
        }
        if waits > 0 {
            self.platform.sleep_ns(1_000_000).await;
        }
        Ok(())
    }

    /// Loads a bitmap, or reserves a segment, if that is needed to hand out `count` blocks. One at
    /// a time: whoever has waited for its turn looks first whether the one before has opened enough.
    async fn open_more(self: &Rc<Self>, slot: Slot, count: u64) -> Result<(), DvolError> {
        let _turn = self.opening.take(1).await;
        self.open_next(slot, count, Needed::ByChange).await
    }

    /// The same for whoever has the turn.
    pub(super) async fn open_next(
        self: &Rc<Self>,
        slot: Slot,
        count: u64,
        needed: Needed,
    ) -> Result<(), DvolError> {
        self.check_running()?;
        if !self.needs_more(slot, count) {
            return Ok(());
        }
        let unloaded = self.state.borrow().pool.wants_loading();
        if let Some(segment) = unloaded {
            if self.load_bitmap(segment).await.is_err() {
                // Others first. The next checkpoint has it tried again.
                self.state.borrow_mut().pool.set_unreadable(segment);
            }
            return Ok(());
        }
        self.open_segment(needed).await
    }

    pub(super) fn checkpoint_is_under_way(&self) -> bool {
        self.checkpoints_started.get() > self.checkpoints_done.get()
    }

    /// Loads the bitmap of an owned segment, or goes on without it if it is damaged. Fails if it
    /// can't be read.
    pub(super) async fn load_bitmap(
        &self,
        segment: flagstone_types::SegmentNo,
    ) -> Result<(), DvolError> {
        let record = match self.state.borrow_mut().pool.segment_mut(segment) {
            Some(state) if !state.is_loaded() => state.record,
            _ => return Ok(()),
        };
        let bitmap = read_bitmap(
            &self.platform,
            &self.device,
            &self.geometry,
            segment,
            &record,
        );
        let bitmap = bitmap.await.map_err(|error| {
            tracing::warn!(
                device = %self.superblock.device_id,
                segment = segment.0,
                "the bitmap of a segment can't be read: {error}"
            );
            DvolError::Device
        })?;
        if !take_bitmap(&mut self.state.borrow_mut().pool, segment, bitmap) {
            let lost = &self.counters.bitmaps_lost;
            lost.set(lost.get() + 1);
        }
        Ok(())
    }

    /// Lets blocks be handed out again that no read can see any more.
    pub(super) fn reopen_blocks(&self) {
        let mut blocks = self.scratch_reusable.borrow_mut();
        self.gate.take_reusable(&mut blocks);
        if blocks.is_empty() {
            return;
        }
        // Before anybody can write to them.
        self.forget_cached(&blocks);
        let mut state = self.state.borrow_mut();
        for block in blocks.drain(..) {
            state.pool.reopen(block);
        }
        blocks.shrink_to(SCRATCH_REUSABLE_MAX);
        drop((state, blocks));
        self.signals.space.notify();
    }
}
