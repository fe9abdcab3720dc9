//! Segments going back and forth between this journal and the device.
//!
//! A journal gives back what it has emptied, so that others can have it: with a record, at a
//! checkpoint whose root leaves the segments out, and only once that root is durable may somebody
//! else take them. What it has promised to dvols with a reservation it keeps in segments of its own:
//! what nobody owns may be gone by the time it is needed.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{SegmentNo, Slot};
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use super::laying_out::{Needed, OPEN_BLOCKS_LOW};
use super::spacing::SPACE_WAITS_MAX;
use crate::format::geometry::SEGMENT_CAPACITY_BLOCKS;
use crate::format::record::Record;
use crate::state::Effects;

/// Empty segments that a journal keeps for itself where the others have too few open blocks, or while there is plenty and something changes. One that
/// has enough elsewhere keeps none otherwise: on a small device another journal's fullness may hang on it.
///
/// Blocks are handed out in turn, so what is overwritten again and again leaves one segment for the next. Were the empty one given back each
/// time, that would cost a checkpoint, and another segment to be taken, for each 128 MiB that are written.
const EMPTY_KEPT: usize = 1;

/// There is plenty while more than this part of the device is nobody's, and more than so many segments.
const PLENTY_PART: u64 = 4;
const PLENTY_SEGMENTS: u64 = 8;

/// Segments given back at a time, at most: their records must fit one unit.
const GIVEN_BACK_MAX: usize = 1024;

/// No slot: what is asked for is for nobody in particular.
pub(super) const NO_SLOT: Slot = Slot(u32::MAX);

impl<P: Platform> Inner<P> {
    /// Blocks that this journal must have in its own segments beside those that `slot` is about to
    /// take. Never more than what [`Inner::has_room`] keeps.
    pub(super) fn kept_from(&self, slot: Slot) -> u64 {
        let (has_reservations, is_reserved) = {
            let state = self.state.borrow();
            let slot = state.slot(slot);
            (
                state.has_reservations(),
                slot.is_some_and(|s| s.record.reserved_blocks > 0),
            )
        };
        let promised = self.promised_and_held(slot);
        let promised = match (has_reservations, is_reserved) {
            (_, true) => promised.data,
            (true, false) => promised.blocks() + self.overwrite_reserve(),
            (false, false) => promised.blocks(),
        };
        self.kept_for_checkpoint() + promised
    }

    /// Blocks that must lie in segments of this journal for all that is promised and pledged.
    fn to_be_held(&self) -> u64 {
        let promised = self.promised(NO_SLOT).blocks();
        self.checkpoint_reserve() + self.overwrite_reserve() + promised
    }

    /// Takes segments until all that is promised and pledged lies in segments of this journal: it
    /// must be there even if other journals take everything else.
    ///
    /// Where no room can be set aside, that can take minutes. So whoever else needs a segment gets it in between, and what is pledged
    /// counts for others ([`Inner::promised_and_held`]) only when this is done.
    pub(super) async fn hold(self: &Rc<Self>) -> Result<(), DvolError> {
        let is_held = || {
            let (open, unloaded) = self.own_open_blocks();
            open + unloaded >= self.to_be_held()
        };
        let mut waits = 0;
        while !is_held() {
            let turn = self.opening.take(1).await;
            self.check_running()?;
            if is_held() {
                break;
            }
            // With room for it: a promise must not end where the filesystem of a sparse file is full.
            let opened = self.open_segment(Needed::ByCommand).await;
            drop(turn);
            let is_full = opened == Err(DvolError::NoSpace) && !self.host_full.get();
            if is_full && waits < SPACE_WAITS_MAX && self.may_gain_space() {
                // It is there, but a checkpoint under way has it, or it has just been freed.
                self.gain_space(waits).await?;
                waits += 1;
            } else {
                opened?;
            }
        }
        self.pledge_held.set(true);
        Ok(())
    }

    /// Takes a first segment. A journal without one can't make checkpoints, so it must not have
    /// anything that needs them.
    pub(super) async fn settle_down(self: &Rc<Self>) -> Result<(), DvolError> {
        let _turn = self.opening.take(1).await;
        if self.state.borrow().pool.segments().next().is_some() {
            return Ok(());
        }
        self.open_segment(Needed::ByCommand).await
    }

    /// Empty segments that this journal can do without, the highest first, and no more than `most`.
    ///
    /// None whose record of being taken is in a group that is still open: the root leaves the segment
    /// out, but the chain behind that root would begin by taking it.
    ///
    /// Takes no memory to look for one: that is done whenever things are quiet.
    fn spare_segments(&self, most: usize) -> SmallVec<[SegmentNo; 1]> {
        // There may be nobody else to have them.
        if self.geometry.journal_count == 1 {
            return SmallVec::new();
        }
        let (open, unloaded) = self.own_open_blocks();
        // What was taken for a pledge is not given back before the rest of it is there.
        let needed = match self.pledged.borrow().is_empty() {
            true => self.kept_from(NO_SLOT),
            false => self.to_be_held(),
        };
        let needed = needed + OPEN_BLOCKS_LOW;
        let mut left = (open + unloaded).saturating_sub(needed);
        let mut taking = self.segments_taking.borrow_mut();
        taking.retain(|_, unit| unit.seq.get() == 0);
        let state = self.state.borrow();
        let empty = || {
            let segments = state.pool.segments();
            segments.filter(|(no, s)| s.is_untouched() && !taking.contains_key(no))
        };
        let in_empty: u64 = empty().map(|(_, s)| s.capacity()).sum();
        let has_too_few = (open + unloaded).saturating_sub(in_empty) < needed;
        let plenty_blocks = (self.geometry.capacity_blocks() / PLENTY_PART)
            .max(PLENTY_SEGMENTS * SEGMENT_CAPACITY_BLOCKS);
        let is_plenty = self.shared.free_blocks() > plenty_blocks;
        let kept = match has_too_few || is_plenty && !self.gives_all_back.get() {
            true => EMPTY_KEPT,
            false => 0,
        };
        let offered = empty().count().saturating_sub(kept);
        let spare = empty().rev().take(offered).filter(|(_, s)| {
            let is_spare = s.capacity() <= left;
            left -= if is_spare { s.capacity() } else { 0 };
            is_spare
        });
        spare.map(|(no, _)| no).take(most).collect()
    }

    /// True if there is something to give back where nothing changes.
    pub(super) fn has_idle_segments(&self) -> bool {
        let gave = self.gives_all_back.replace(true);
        let has = !self.spare_segments(1).is_empty();
        self.gives_all_back.set(gave);
        has
    }

    /// Has a checkpoint made if there is something to give back.
    pub(super) fn offer_segments(&self) {
        if !self.spare_segments(1).is_empty() {
            self.request_checkpoint();
        }
    }

    /// Gives empty segments back: the root of the checkpoint that begins now leaves them out.
    ///
    /// Nothing that is under way speaks of their blocks, since those count as taken until the record
    /// that freed them is durable and nobody reads them. So in a replay the record finds them empty.
    pub(super) fn give_segments_back(self: &Rc<Self>) -> Result<(), DvolError> {
        let spare = self.spare_segments(GIVEN_BACK_MAX);
        if spare.is_empty() {
            return Ok(());
        }
        let mut records: SmallVec<[Record; 1]> = SmallVec::new();
        records.extend(
            spare
                .into_iter()
                .map(|segment| Record::ReleaseSegment { segment }),
        );
        for record in &records {
            let mut state = self.state.borrow_mut();
            state.apply(record, &self.geometry, &mut Effects::default());
        }
        let counter = &self.counters.segments_released;
        counter.set(counter.get() + records.len() as u64);
        self.submit(records, SmallVec::new(), false, SmallVec::new())
            .map(drop)
    }
}
