//! Opening segments, and laying them out.
//!
//! On a file the first write to a block changes the filesystem's metadata, and a flush behind it takes some four times as long. So zeros are
//! written over a segment before it is used: it is *laid out*. That takes as long as filling it, and nobody is to wait for it: all volumes of
//! a journal write to one open segment, so whoever fills one would have all others wait for the next.
//!
//! 1. The next segment is laid out while the open ones still have [`OPEN_BLOCKS_LOW`] blocks, in turns of the background.
//! 2. Who needs it before that is done has it at once: what holds the device sets room aside for it (`preallocate`), some tenths of a
//!    millisecond. A promise counts on that, too: it must not end where the filesystem of a sparse file is full.
//! 3. The rest of it is laid out while it is in use, in turns, from its end on, since blocks are handed out from its front. The blocks of each step are
//!    withheld until its zeros are written: they never come later than what somebody writes there.
//!
//! Where no room can be set aside, who needs a segment waits for its zeros. What was not laid out when the node stopped isn't later: flushes behind the first writes
//! there take longer, and that is all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::{BlockDevice, Platform, Time};
use flagstone_types::{BLOCK_SIZE, BlockNo, SegmentNo};
use smallvec::SmallVec;

use super::Inner;
use super::background::{PATIENCE_NS, Patience, Work};
use super::error::{DvolError, is_full};
use super::segments::NO_SLOT;
use crate::format::record::Record;
use crate::planted::{Bug, planted};

/// Open blocks in the pool below which the next segment is prepared.
pub(super) const OPEN_BLOCKS_LOW: u64 = 8192;

/// What is written of a segment that is laid out, at a time: others wait no longer than that for the device.
const STEP_BYTES: u64 = 256 << 10;

/// The same in blocks.
const STEP_BLOCKS: usize = (STEP_BYTES / BLOCK_SIZE) as usize;

/// What room is set aside for at a time, at least and at most. Others wait for each step: on a file in memory 32 MiB take 3 ms, and three times as long while
/// others use it; on ext4 next to nothing.
const ROOM_STEP_BYTES: Range<u64> = 2 << 20..32 << 20;

/// A step that took longer is followed by a smaller one.
const ROOM_STEP_NS: u64 = 500_000;

/// As long as a step took, others have the device for themselves behind it, unless somebody needs the segment; but no longer than this: the
/// whole has to be done before that.
const ROOM_PAUSE_MAX_NS: u64 = 1_000_000;

/// But no longer than this ([`EngineOptions::zeros_rest_times`](super::EngineOptions::zeros_rest_times)): a segment is laid out within two seconds, on a device
/// that takes a fifth of one for it.
const REST_MAX_NS: u64 = 2_000_000;

/// The longest wait of a step that lays out a segment for a command, where no room can be set aside: it takes no more than 13 seconds beside
/// what the device needs for it.
const COMMAND_PATIENCE_NS: u64 = 25_000_000;

/// How long no segment is opened ahead once what holds the device was full, or the device has failed: each try has others wait, and who hands out a block asks for one.
const FULL_PAUSE_NS: u64 = 1_000_000_000;

/// Blocks that must be left to everybody else while some are withheld: with fewer, nothing is laid out.
const LEFT_BLOCKS: u64 = 4 * STEP_BLOCKS as u64;

/// Who needs a segment that is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needed {
    /// A change that waits for it.
    ByChange,
    /// A command that waits for it.
    ByCommand,
    /// Nobody yet.
    Later,
}

/// Blocks of a segment in use, by their indices, that are still to be laid out.
struct Rest {
    segment: SegmentNo,
    blocks: Range<usize>,
}

/// What of this journal's segments is being laid out.
#[derive(Default)]
pub(super) struct LayingOut {
    /// Blocks of the segment that is just being taken.
    being_taken: Cell<u64>,
    /// Segments that were opened before they were laid out, the oldest first: it is used first.
    rests: RefCell<VecDeque<Rest>>,
    /// Blocks are withheld.
    withholds: Cell<bool>,
    /// The log has it that no room can be set aside.
    was_told: Cell<bool>,
    /// No segment is opened ahead before then: what holds the device was full, or the device has failed.
    not_before: Cell<Time>,
}

impl LayingOut {
    /// Blocks of the segment that this journal is just taking: no other one has them, and they can't be handed out yet.
    pub(super) fn blocks_being_taken(&self) -> u64 {
        self.being_taken.get()
    }

    /// Blocks that can't be handed out will be open again soon.
    pub(super) fn withholds(&self) -> bool {
        self.withholds.get()
    }
}

/// Has the blocks of a segment count as open while it is being taken.
struct Taking<'a> {
    being_taken: &'a Cell<u64>,
    blocks: u64,
}

impl<'a> Taking<'a> {
    fn new(being_taken: &'a Cell<u64>, blocks: u64) -> Taking<'a> {
        being_taken.set(being_taken.get() + blocks);
        Taking {
            being_taken,
            blocks,
        }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.being_taken.set(self.being_taken.get() - self.blocks);
    }
}

/// Blocks that nobody is handed as long as this is there.
struct Withheld<'a, P: Platform> {
    inner: &'a Inner<P>,
    segment: SegmentNo,
    blocks: Range<usize>,
}

impl<'a, P: Platform> Withheld<'a, P> {
    /// If all of them could be handed out.
    fn new(
        inner: &'a Inner<P>,
        segment: SegmentNo,
        blocks: Range<usize>,
    ) -> Option<Withheld<'a, P>> {
        let pool = &mut inner.state.borrow_mut().pool;
        let is_withheld = pool.withhold(segment, blocks.clone());
        is_withheld.then(|| {
            inner.laying_out.withholds.set(true);
            Withheld {
                inner,
                segment,
                blocks,
            }
        })
    }
}

impl<P: Platform> Drop for Withheld<'_, P> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        state.pool.give_back(self.segment, self.blocks.clone());
        self.inner.laying_out.withholds.set(false);
        drop(state);
        self.inner.signals.space.notify();
    }
}

fn block_of(segment: SegmentNo, index: usize) -> BlockNo {
    BlockNo(segment.first_block().0 + index as u64)
}

impl<P: Platform> Inner<P> {
    /// Task: opens the next segment ahead of need, and lays out what was needed before it was.
    pub(super) async fn run_opener(self: Rc<Self>) {
        loop {
            let signal = self.signals.blocks_low.wait();
            if self.check_running().is_err() {
                return;
            }
            self.keep_blocks_open().await;
            let had_rests = !self.laying_out.rests.borrow().is_empty();
            self.lay_out_rests().await;
            if had_rests && self.laying_out.rests.borrow().is_empty() {
                // One that is being laid out is not given back, and nothing else may happen here.
                self.offer_segments();
            }
            signal.await;
        }
    }

    /// True if the next segment should be opened ahead of need.
    pub(super) fn is_low_on_blocks(&self) -> bool {
        self.state.borrow().pool.segments().next().is_some()
            && self.needs_more(NO_SLOT, OPEN_BLOCKS_LOW)
    }

    /// True if that can be done.
    fn wants_next(&self) -> bool {
        let is_there = || {
            let is_unloaded = self.state.borrow().pool.wants_loading().is_some();
            is_unloaded || self.shared.free_blocks() > 0
        };
        let is_full = self.platform.now() < self.laying_out.not_before.get();
        self.is_low_on_blocks() && !is_full && is_there()
    }

    /// Opens more blocks ahead of need, so that requests seldom wait for it. Not if somebody is at it already.
    async fn keep_blocks_open(self: &Rc<Self>) {
        if self.is_low_on_blocks()
            && self.check_running().is_ok()
            && self.platform.now() >= self.laying_out.not_before.get()
            && let Some(_turn) = self.opening.try_take(1)
        {
            // Failing is fine: whoever needs a block will try again and say so.
            let next = self.open_next(NO_SLOT, OPEN_BLOCKS_LOW, Needed::Later);
            let failed = next.await.err();
            // Zeros that fail would be begun anew with each block that is handed out, and logged each time.
            if failed == Some(DvolError::Device) || failed.is_some() && self.host_full.get() {
                let later = self.platform.now().plus_ns(FULL_PAUSE_NS);
                self.laying_out.not_before.set(later);
            }
        }
    }

    /// Takes over a segment that nobody owns. One at a time.
    pub(super) async fn open_segment(self: &Rc<Self>, needed: Needed) -> Result<(), DvolError> {
        let Some(segment) = self.shared.claim_any(self.journal_no) else {
            // It is the device that is full.
            self.host_full.set(false);
            return Err(DvolError::NoSpace);
        };
        if !self.options.prewrite_segments {
            return self.reserve(segment);
        }
        let blocks = self.geometry.segment_capacity_blocks(segment);
        let taking = Taking::new(&self.laying_out.being_taken, blocks);
        let laid_out = self.lay_out(segment, needed).await;
        drop(taking);
        let opened = match laid_out {
            Ok(up_to) => self.reserve(segment).map(|()| up_to),
            Err(error) => {
                self.shared.release(self.journal_no, segment);
                Err(error)
            }
        };
        opened.map(|up_to| self.lay_out_later(segment, up_to))
    }

    /// Takes over a segment that was claimed.
    fn reserve(self: &Rc<Self>, segment: SegmentNo) -> Result<(), DvolError> {
        self.state.borrow_mut().apply(
            &Record::ReserveSegment { segment },
            &self.geometry,
            &mut crate::state::Effects::default(),
        );
        // The record lies in front of every record that speaks of the segment's blocks. A checkpoint
        // needs it, too: its root names the segment, but before that root is durable others may
        // already have been given blocks.
        if planted(Bug::SegmentNotRecorded) {
            return Ok(());
        }
        // The last checkpoint has the segment to itself, and nothing may follow its root.
        if self.checkpointer_off.get() {
            return Ok(());
        }
        let mut records = SmallVec::new();
        records.push(Record::ReserveSegment { segment });
        let submitted = self.submit(records, SmallVec::new(), false, SmallVec::new())?;
        let mut taking = self.segments_taking.borrow_mut();
        taking.retain(|_, unit| unit.seq.get() == 0);
        taking.insert(segment, submitted.unit);
        Ok(())
    }

    /// Sees to it that there is room for a segment that nobody uses, and lays out as much of it as there is time for: from its front up to
    /// the block that this returns.
    async fn lay_out(&self, segment: SegmentNo, needed: Needed) -> Result<BlockNo, DvolError> {
        let (start, end) = self.geometry.segment_range(segment);
        let (mut at, end_bytes) = (start.offset_bytes(), end.offset_bytes());
        // What was written once needs it no more: it would cost a second write of every block.
        if self.device.is_allocated(at, end_bytes - at) {
            return Ok(end);
        }
        let has_room = self.set_aside(at..end_bytes, needed).await?;
        if has_room {
            self.host_full.set(false);
        }
        let patience = || self.laying_out_patience(needed, has_room);
        while at < end_bytes && patience() > Patience::GivenUp {
            // Only the last checkpoint takes one while it stops.
            if self.shared.is_fenced() || self.stopping.get() && !self.checkpointer_off.get() {
                return Err(self.check_running().err().unwrap_or(DvolError::Stopping));
            }
            let len = (end_bytes - at).min(STEP_BYTES);
            let Some(turn) = self.laying_out_turn(len / BLOCK_SIZE, patience).await else {
                break;
            };
            let began = self.platform.now();
            let written = self.write_zeros(at, len).await;
            drop(turn);
            written?;
            at += len;
            if !self.is_awaited(needed) {
                self.rest_behind_zeros(began).await;
            }
        }
        if needed == Needed::Later {
            self.check_running()?;
        }
        self.host_full.set(false);
        Ok(BlockNo(at / BLOCK_SIZE))
    }

    /// Sets room aside for bytes of the device. False: it can't be done there.
    async fn set_aside(&self, bytes: Range<u64>, needed: Needed) -> Result<bool, DvolError> {
        let (mut at, mut step) = (bytes.start, ROOM_STEP_BYTES.start);
        while at < bytes.end {
            let len = (bytes.end - at).min(step);
            let began = self.platform.now();
            match self.device.preallocate(at, len).await {
                Ok(()) => {}
                Err(error) if is_full(&error) => return Err(self.write_failure(&error)),
                // It can't be done there; then zeros show what can. (Whatever else is wrong they show, too.)
                Err(error) => {
                    if error.kind() != ErrorKind::Unsupported
                        && !self.laying_out.was_told.replace(true)
                    {
                        tracing::warn!(
                            device = %self.superblock.device_id,
                            journal = self.journal_no,
                            "no room can be set aside for segments: {error}; who needs one waits until it is written full of zeros"
                        );
                    }
                    return Ok(false);
                }
            }
            at += len;
            let took_ns = self.platform.now().since(began);
            step = match took_ns {
                ..ROOM_STEP_NS => step * 2,
                _ => step / 2,
            };
            step = step.clamp(ROOM_STEP_BYTES.start, ROOM_STEP_BYTES.end);
            if at < bytes.end && !self.is_awaited(needed) && self.check_running().is_ok() {
                self.platform.sleep_ns(took_ns.min(ROOM_PAUSE_MAX_NS)).await;
            }
        }
        Ok(true)
    }

    /// Somebody waits for the segment that is being opened.
    fn is_awaited(&self, needed: Needed) -> bool {
        needed != Needed::Later || self.opening.has_waiting()
    }

    /// How long the next step of laying out a segment waits that isn't open yet.
    fn laying_out_patience(&self, needed: Needed, has_room: bool) -> Patience {
        let is_awaited = self.is_awaited(needed);
        let is_running = self.check_running().is_ok();
        match needed {
            // What is there can be used as it is, and what isn't needed need not be there.
            _ if has_room && is_awaited => Patience::GivenUp,
            Needed::Later if !is_running => Patience::GivenUp,
            // Nobody ever waits for it, so it takes no more than its turns: on a slow device ten steps a second are all there is.
            _ if has_room => Patience::Ns(u64::MAX),
            _ if self.opening.has_waiting() || !is_running => Patience::Ns(0),
            Needed::ByChange => Patience::Ns(0),
            Needed::ByCommand => Patience::Ns(COMMAND_PATIENCE_NS),
            Needed::Later => Patience::Ns(PATIENCE_NS),
        }
    }

    async fn write_zeros(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DvolError> {
        let zeros = self.platform.buffers().zeros(len_bytes as usize);
        let (_, result) = self.device.write(offset_bytes, zeros).await;
        if let Err(error) = result {
            tracing::warn!(
                device = %self.superblock.device_id,
                journal = self.journal_no,
                "writing zeros over a segment failed: {error}"
            );
            return Err(self.write_failure(&error));
        }
        let written = &self.counters.prewritten_bytes;
        written.set(written.get() + len_bytes);
        // In memory a write is over at once, and others on the core are to have their turn.
        self.platform.yield_now().await;
        Ok(())
    }

    /// Leaves the device to others behind a step that began then, where nobody gives turns: a client with one operation in flight finds it busy a
    /// quarter of the time, not always. Not if blocks may run out before the segment is laid out.
    async fn rest_behind_zeros(&self, began: Time) {
        let times = self.options.zeros_rest_times;
        let has_time = times > 0 && !self.needs_more(NO_SLOT, OPEN_BLOCKS_LOW / 2);
        if !self.has_turns() && has_time && self.check_running().is_ok() {
            let took_ns = self.platform.now().since(began);
            let rest_ns = took_ns.saturating_mul(times).min(REST_MAX_NS);
            self.platform.sleep_ns(rest_ns).await;
        }
    }

    /// Has the rest of a segment that was just opened laid out, from this block on.
    fn lay_out_later(&self, segment: SegmentNo, from: BlockNo) {
        let Some(all) = self.state.borrow().pool.range_of(segment) else {
            return;
        };
        let first = (from.0 - segment.first_block().0) as usize;
        let blocks = first.max(all.start)..all.end;
        if blocks.is_empty() {
            return;
        }
        let early = &self.counters.segments_used_early;
        early.set(early.get() + 1);
        let mut rests = self.laying_out.rests.borrow_mut();
        rests.push_back(Rest { segment, blocks });
        self.signals.blocks_low.notify();
    }

    /// Lays out what is in use. Not while the next segment is to be opened: that comes first, and asks for this again.
    async fn lay_out_rests(&self) {
        let goes_on = || self.check_running().is_ok() && !self.wants_next() && self.may_withhold();
        while goes_on()
            && let Some((segment, blocks)) = self.next_rest()
        {
            let count = blocks.len() as u64;
            let patience = || match goes_on() {
                true => Patience::Ns(u64::MAX),
                false => Patience::GivenUp,
            };
            let Some(mut turn) = self.laying_out_turn(count, patience).await else {
                self.put_back(segment, blocks);
                return;
            };
            let mut withheld = Withheld::new(self, segment, blocks.clone());
            // While the turn was waited for, they may have been handed out.
            if withheld.is_none() && !planted(Bug::LaidOutInUse) {
                turn.used(Work {
                    times: 0,
                    ..Work::write(count)
                });
                continue;
            }
            if planted(Bug::OpenUnderZeros) {
                withheld = None;
            }
            let at = block_of(segment, blocks.start).offset_bytes();
            let began = self.platform.now();
            let written = self.write_zeros(at, count * BLOCK_SIZE).await;
            drop((withheld, turn));
            self.rest_behind_zeros(began).await;
            if written.is_err() {
                // Who writes there is told himself.
                self.laying_out.rests.borrow_mut().pop_front();
            }
        }
    }

    /// True if others have enough while some blocks are withheld.
    fn may_withhold(&self) -> bool {
        let (open, unloaded) = self.own_open_blocks();
        let kept = self.due() + self.kept_from(NO_SLOT) + LEFT_BLOCKS;
        self.available() >= LEFT_BLOCKS && open + unloaded >= kept
    }

    /// The next blocks to be laid out: the last of the oldest segment of which all can still be handed out.
    fn next_rest(&self) -> Option<(SegmentNo, Range<usize>)> {
        let mut rests = self.laying_out.rests.borrow_mut();
        let state = self.state.borrow();
        while let Some(rest) = rests.front_mut() {
            let segment = rest.segment;
            while !rest.blocks.is_empty() {
                let start = rest.blocks.end.saturating_sub(STEP_BLOCKS);
                let step = start.max(rest.blocks.start)..rest.blocks.end;
                rest.blocks.end = step.start;
                if planted(Bug::LaidOutInUse) || state.pool.are_open(segment, step.clone()) {
                    return Some((segment, step));
                }
            }
            rests.pop_front();
        }
        None
    }

    fn put_back(&self, segment: SegmentNo, blocks: Range<usize>) {
        let mut rests = self.laying_out.rests.borrow_mut();
        match rests.front_mut() {
            Some(rest) if rest.segment == segment => rest.blocks.end = blocks.end,
            _ => rests.push_front(Rest { segment, blocks }),
        }
    }
}
