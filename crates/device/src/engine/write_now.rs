//! Writes that have nothing to wait for before they begin: most of the small ones. They are recorded and their data is gathered within the
//! call, and only their end is waited for. That takes no future for each thing that one might have to wait for, and no memory.

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::sync::Awaited;
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{Lsn, VBlock};
use smallvec::smallvec;

use super::Inner;
use super::commit::Submitted;
use super::data::GATHERED_MAX_BYTES;
use super::error::DvolError;
use super::info::Handle;
use super::locks::{Held, RangeLock};
use super::spacing::Over;
use super::unit::Outcome;
use super::write::{Given, Metas, Recorded};
use super::write_part::Fits;
use crate::planted::{Bug, planted};
use crate::state::State;

/// A write that was begun without waiting for anything, and has to be waited for now.
pub(super) struct Begun<P: Platform> {
    lsn: Lsn,
    answer: Awaited<Outcome>,
    held: Held<P>,
}

impl<P: Platform> Begun<P> {
    /// Waits for its end.
    pub(super) async fn end(self) -> Result<Lsn, DvolError> {
        let result = self.answer.await.unwrap_or(Err(DvolError::Fenced));
        self.held.answered();
        result.map(|()| self.lsn)
    }
}

impl<P: Platform> Inner<P> {
    /// Begins a write of few whole blocks.
    pub(super) fn begin_now(
        self: &Rc<Self>,
        handle: Handle,
        blocks: &Range<VBlock>,
        data: &IoBuf,
        given: Given<'_>,
    ) -> Result<Option<Begun<P>>, DvolError> {
        if data.len() > GATHERED_MAX_BYTES {
            return Ok(None);
        }
        let Some(lock) = self
            .range_locks(handle.slot)
            .take_now(blocks.clone(), false)
        else {
            return Ok(None);
        };
        let count = blocks.end.0 - blocks.start.0;
        let over = Over::Blocks(blocks);
        let Some(runs) = self.take_blocks_now(handle.slot, count, blocks, over) else {
            return Ok(None);
        };
        let metas = Metas::all(given.meta);
        let recorded = self.record_whole(handle, blocks.start, runs, data, metas, given)?;
        Ok(Some(self.begun(handle, lock, recorded)))
    }

    /// Begins a write of a part of a block, if it becomes a delta, or takes the place of the data under one.
    pub(super) fn begin_part_now(
        self: &Rc<Self>,
        handle: Handle,
        blocks: &Range<VBlock>,
        offset_bytes: u64,
        data: &IoBuf,
        given: Given<'_>,
    ) -> Result<Option<Begun<P>>, DvolError> {
        let (slot, vblock) = (handle.slot, blocks.start);
        if blocks.end.0 - vblock.0 > 1 || given.meta != 0 {
            return Ok(None);
        }
        let is_alone = !planted(Bug::PartsNotLocked);
        let Some(lock) = self.range_locks(slot).take_now(blocks.clone(), is_alone) else {
            return Ok(None);
        };
        let is_known = |state: &State| !state.has_journaled(slot, blocks);
        if !self.is_loaded(slot, blocks) || !is_known(&self.state.borrow()) {
            return Ok(None);
        }
        let at = (offset_bytes - vblock.offset_bytes()) as usize;
        let patch = self.patch(handle, vblock, at..at + data.len())?;
        let runs = match patch.fits {
            Fits::AsDelta => self.take_blocks_now(slot, 1, blocks, Over::Delta),
            Fits::Under => self.take_blocks_now(slot, 1, blocks, Over::Data(blocks)),
            Fits::Whole | Fits::Read => None,
        };
        let Some(runs) = runs else {
            return Ok(None);
        };
        let buf = self.patched(&patch, at, data);
        let recorded = self.record_patch(handle, vblock, &patch, buf, runs, given)?;
        Ok(Some(self.begun(handle, lock, recorded)))
    }

    /// Has the data of what was recorded gathered.
    fn begun(
        self: &Rc<Self>,
        handle: Handle,
        lock: RangeLock,
        recorded: Recorded<'_, P>,
    ) -> Begun<P> {
        let Submitted { unit, answer } = recorded.submitted;
        self.gather(&unit, recorded.writes, recorded.under_way);
        Begun {
            lsn: recorded.lsn,
            answer,
            held: self.holding(smallvec![(handle.slot, lock)]),
        }
    }
}
