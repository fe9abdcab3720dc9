//! Deallocating, and writing zeros.
//!
//! Whole blocks are given back by a record without data, in units of up to [`UNMAP_PART_BLOCKS`]. Parts of
//! blocks come after that, so that what was given back is there for them: where nothing is mapped
//! there is nothing to do, elsewhere zeros are written, which takes space.

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Lsn, Slot, VBlock};
use smallvec::{SmallVec, smallvec};

use super::due::Purpose;
use super::error::DvolError;
use super::info::Handle;
use super::write::{Given, WRITE_MAX_BYTES};
use super::{Attributes, Engine, Inner, Stability};
use crate::format::record::Record;
use crate::planted::{Bug, planted};

/// Mapped blocks that one deallocation unit removes at most; larger ranges are done in parts, so
/// that neither a record's effects nor a checkpoint grow without limit.
const UNMAP_PART_BLOCKS: u64 = 64 << 10;

impl<P: Platform> Engine<P> {
    /// Gives the range's space back; it reads as zeros afterwards. A hole stays one, also where the
    /// range has only a part of the block; a part of a block that is mapped is written as zeros. Not
    /// one unit: if there is no room for such a part, it stays as it was, and the rest is done all
    /// the same before `NoSpace` is returned. Whole blocks are refused with it only where no checkpoint
    /// would find room for copies of nodes (`due`); what was done before is then as durable as was
    /// asked for. Returns the highest LSN that a part of it got; that of the dvol's last change if there
    /// was nothing to change. [decibel 4.1: vol_deallocate]
    pub async fn deallocate(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<Lsn, DvolError> {
        let inner = &self.inner;
        inner.check_change(handle, offset_bytes, len_bytes)?;
        let end = offset_bytes + len_bytes;
        let first_whole = offset_bytes.next_multiple_of(BLOCK_SIZE);
        let end_whole = end - end % BLOCK_SIZE;
        if (first_whole, end_whole) == (offset_bytes, end) {
            let done = inner
                .unmap_bytes(handle, offset_bytes..end, stability)
                .await;
            // Only the last unit of a large range asks for a flush, and it may have been refused.
            if done == Err(DvolError::NoSpace) && stability == Stability::Stable {
                self.flush().await?;
            }
            return inner.lsn_or_last(handle, done?);
        }
        let done = if first_whole > end_whole {
            // Within one block.
            inner.clear_part(handle, offset_bytes..end).await
        } else {
            let whole = first_whole..end_whole;
            let whole = inner.unmap_bytes(handle, whole, Stability::Unstable).await;
            let head = inner.clear_part(handle, offset_bytes..first_whole).await;
            let tail = inner.clear_part(handle, end_whole..end).await;
            match (whole, head, tail) {
                (Ok(whole), Ok(head), Ok(tail)) => Ok(whole.max(head).max(tail)),
                (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => Err(error),
            }
        };
        // Also what was done beside a part that there was no room for. And what made a block a hole
        // may not be on stable media yet.
        if stability == Stability::Stable {
            self.flush().await?;
        }
        inner.lsn_or_last(handle, done?)
    }

    /// Deallocates whole blocks, and replaces the dvol's attributes in the same unit: both happen or neither, and both
    /// are seen at once. `attributes` is asked as [`Engine::write_with`] asks it. Blocks that are holes already stay as they
    /// are, and if all are, the attributes alone are replaced. Offset and length are multiples of 4096, and the length is
    /// at most [`WRITE_MAX_BYTES`]. [`DvolError::NoSpace`] as of a batch that deallocates; then nothing has happened.
    pub async fn deallocate_with(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
        attributes: impl Fn() -> Attributes,
    ) -> Result<Lsn, DvolError> {
        let inner = &self.inner;
        inner.check_change(handle, offset_bytes, len_bytes)?;
        let is_whole = [offset_bytes, len_bytes].map(|bytes| bytes.is_multiple_of(BLOCK_SIZE));
        if is_whole != [true; 2] || len_bytes > WRITE_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        if len_bytes == 0 {
            return inner.lsn_or_last(handle, None);
        }
        let first = VBlock::containing(offset_bytes);
        let range = first..VBlock(first.0 + len_bytes / BLOCK_SIZE);
        // Alone before it looks: what is a hole then still is one when its unit is submitted.
        let lock = inner
            .range_locks(handle.slot)
            .take(range.clone(), true)
            .await;
        let work = inner.unmap_along(handle, range, stability, &attributes);
        inner.held(smallvec![(handle.slot, lock)], work).await
    }

    /// Writes zeros that take space, so that later writes to them can't run out of it. Not one unit.
    /// Returns the LSN of its last part.
    pub async fn write_zeros(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<Lsn, DvolError> {
        self.inner.check_change(handle, offset_bytes, len_bytes)?;
        let mut last = None;
        let mut at = offset_bytes;
        let end = offset_bytes + len_bytes;
        let step_max = flagstone_platform::BufferPool::ZEROS_BYTES as u64;
        while at < end {
            let step = (end - at).min(step_max);
            let zeros = self.inner.platform.buffers().zeros(step as usize);
            last = Some(self.write(handle, at, zeros, Stability::Unstable).await?);
            at += step;
        }
        if stability == Stability::Stable {
            self.flush().await?;
        }
        self.inner.lsn_or_last(handle, last)
    }
}

impl<P: Platform> Inner<P> {
    /// What a change answers that got this LSN, or none because it left everything as it was.
    fn lsn_or_last(&self, handle: Handle, lsn: Option<Lsn>) -> Result<Lsn, DvolError> {
        match lsn {
            Some(lsn) => Ok(lsn),
            None => self.resolve(handle).map(|record| record.lsn),
        }
    }

    /// Makes a part of one block zero. A hole stays one: it takes no space, and gets no LSN.
    async fn clear_part(
        self: &Rc<Self>,
        handle: Handle,
        bytes: Range<u64>,
    ) -> Result<Option<Lsn>, DvolError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let first = VBlock::containing(bytes.start);
        let block = first..VBlock(first.0 + 1);
        // Alone before it looks: while a write waits for others, they may make a hole of the block,
        // and zeros would take its place.
        let lock = self
            .range_locks(handle.slot)
            .take(block.clone(), !planted(Bug::PartsNotLocked))
            .await;
        let work = async {
            let len = bytes.end - bytes.start;
            self.check_change(handle, bytes.start, len)?;
            if !self.has_mapped(handle.slot, block.clone()).await? {
                return Ok(None);
            }
            let zeros = self.platform.buffers().zeros(len as usize);
            let given = Given {
                meta: 0,
                stability: Stability::Unstable,
                along: None,
            };
            let write = self.write_held(handle, block, bytes.start, zeros, given);
            write.await.map(Some)
        };
        self.held(smallvec![(handle.slot, lock)], work).await
    }

    /// Deallocates what is mapped of whole blocks, in one unit with new attributes. The caller has the range alone.
    async fn unmap_along(
        self: &Rc<Self>,
        handle: Handle,
        range: Range<VBlock>,
        stability: Stability,
        attributes: &dyn Fn() -> Attributes,
    ) -> Result<Lsn, DvolError> {
        let slot = handle.slot;
        let is_mapped = self.has_mapped(slot, range.clone()).await?;
        let nodes = match is_mapped {
            true => {
                self.load_nodes(slot, range.clone()).await?;
                self.nodes_due_unmapping(slot)
            }
            false => 0,
        };
        self.clear_way(slot, nodes + 1, Purpose::Changing).await?;
        self.check_running()?;
        let bytes = (range.end.0 - range.start.0) * BLOCK_SIZE;
        // It may have been made smaller meanwhile.
        self.check_change(handle, range.start.0 * BLOCK_SIZE, bytes)?;
        let lsn = self.take_lsn(handle)?;
        let mut records = SmallVec::new();
        if is_mapped {
            let ranges = vec![(range.start, range.end.0 - range.start.0)];
            records.push(Record::Unmap { slot, lsn, ranges });
        }
        records.push(Record::Attributes {
            slot,
            lsn,
            attributes: Box::new(attributes()),
        });
        let stable = stability == Stability::Stable;
        let slots = SmallVec::from_slice(&[slot]);
        let submitted = self.submit(records, slots, stable, SmallVec::new())?;
        submitted.answer.await.unwrap_or(Err(DvolError::Fenced))?;
        Ok(lsn)
    }

    /// Deallocates whole blocks, given in bytes.
    async fn unmap_bytes(
        self: &Rc<Self>,
        handle: Handle,
        bytes: Range<u64>,
        stability: Stability,
    ) -> Result<Option<Lsn>, DvolError> {
        let range = VBlock(bytes.start / BLOCK_SIZE)..VBlock(bytes.end / BLOCK_SIZE);
        let lock = self
            .range_locks(handle.slot)
            .take(range.clone(), false)
            .await;
        let held = self.holding(smallvec![(handle.slot, lock)]);
        let unmapped = self.unmap(handle, range, stability).await;
        held.answered();
        unmapped
    }

    /// Deallocates whole blocks, in parts. Returns the LSN of the last one, if there is one.
    pub(super) async fn unmap(
        self: &Rc<Self>,
        handle: Handle,
        range: Range<VBlock>,
        stability: Stability,
    ) -> Result<Option<Lsn>, DvolError> {
        let mut from = range.start;
        let mut highest = None;
        while from < range.end {
            let end = self.unmap_part_end(handle.slot, from..range.end).await?;
            self.load_nodes(handle.slot, from..end).await?;
            let more = self.nodes_due_unmapping(handle.slot) + 1;
            self.clear_way(handle.slot, more, Purpose::Changing).await?;
            self.check_running()?;
            let lsn = self.take_lsn(handle)?;
            let ranges = vec![(from, end.0 - from.0)];
            let mut records = SmallVec::new();
            records.push(Record::Unmap {
                slot: handle.slot,
                lsn,
                ranges,
            });
            // Only the last part has to wait: a flush covers those before it.
            let last = end == range.end;
            let stable = last && stability == Stability::Stable;
            let slots = SmallVec::from_slice(&[handle.slot]);
            let submitted = self.submit(records, slots, stable, SmallVec::new())?;
            submitted.answer.await.unwrap_or(Err(DvolError::Fenced))?;
            highest = Some(lsn);
            from = end;
        }
        Ok(highest)
    }

    /// The end of the next part: at most [`UNMAP_PART_BLOCKS`] mapped blocks.
    async fn unmap_part_end(&self, slot: Slot, range: Range<VBlock>) -> Result<VBlock, DvolError> {
        let mut entries = Vec::new();
        loop {
            let _pass = self.gate.enter();
            let missing = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot) else {
                    return Err(DvolError::NotFound);
                };
                entries.clear();
                let limit = UNMAP_PART_BLOCKS as usize;
                match found.map.lookup(range.clone(), limit, &mut entries) {
                    Ok(()) if entries.len() < limit => return Ok(range.end),
                    Ok(()) => break,
                    Err(missing) => missing,
                }
            };
            self.load_node(&missing).await?;
        }
        let last = entries.last().map_or(range.end, |e| e.key.vblock());
        Ok(VBlock(last.0.max(range.start.0 + 1)).min(range.end))
    }
}
