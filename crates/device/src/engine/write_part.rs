//! Writing parts of blocks.
//!
//! A write within one block that is mapped becomes a delta and needs no read, unless there is one already with bytes that the
//! write leaves and that are not kept any more, or that lie too close to it for a hole. With what is kept it may be the whole block, and is written as that.
//! If it is just what the delta leaves of the block, nothing of the data below is wanted any more: then the write becomes the data, without what the delta has, and the
//! delta stays. That needs no read either. Other parts of blocks are read, changed and written as whole blocks.

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, Lsn, Slot, VBlock};
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use super::info::Handle;
use super::read::gather;
use super::recent_parts::Kept;
use super::spacing::Over;
use super::write::{DataWrite, Given, Metas, Recorded};
use crate::format::record::{MappedBlock, Record};
use crate::planted::{Bug, planted};
use crate::space::BlockRun;
use crate::v2p::{Changed, Entry};

/// As what a part of a block can be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fits {
    /// It is the whole block, and takes the place of the one before.
    Whole,
    /// It can lie over the block's data.
    AsDelta,
    /// It can take the place of the block's data, under the delta, with which it is the whole block.
    Under,
    /// It has to be read first what the block is.
    Read,
}

/// What a write to a part of a block makes of it.
pub(super) struct Patch {
    pub(super) fits: Fits,
    /// Which bytes it writes, with those that were written just before.
    pub(super) changed: Changed,
    /// Those that were written just before, unless their place is taken anyway.
    before: Option<Kept>,
    /// The metadata of the block.
    meta: u64,
}

impl<P: Platform> Inner<P> {
    /// Writes a part of a block, without metadata, and without reading if that can be.
    pub(super) async fn write_within(
        self: &Rc<Self>,
        handle: Handle,
        vblock: VBlock,
        at: usize,
        data: IoBuf,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let slot = handle.slot;
        let blocks = vblock..VBlock(vblock.0 + 1);
        self.load_range(slot, blocks.clone()).await?;
        let patch = self.patch(handle, vblock, at..at + data.len())?;
        let (whole, metas) = if patch.fits == Fits::Whole {
            let whole = self.patched(&patch, at, &data);
            drop(data);
            let mut metas = Metas::all(0);
            let meta = self.meta_of(slot, vblock).await?;
            if meta != 0 || self.has_had_metadata(slot) {
                // It is copied from a write that a crash may take back as a whole; that there is none as well.
                self.settle_loose(slot, vblock).await?;
            }
            metas.keep(true, true, meta);
            (whole, metas)
        } else {
            // A delta takes a block and gives none back, and data under one gives none back that a snapshot has: on a full device a reserved dvol does without.
            let over = match patch.fits {
                Fits::Under => Over::Data(&blocks),
                _ => Over::Delta,
            };
            let has_room = || !self.is_reserved(handle) || self.has_room(slot, 1, over);
            if patch.fits != Fits::Read && has_room() {
                let written = self.write_patch(handle, vblock, &patch, (at, &data), over, given);
                match written.await {
                    // Others have taken what there was.
                    Err(DvolError::NoSpace) if self.is_reserved(handle) => {}
                    written => return written,
                }
            }
            let offset_bytes = vblock.offset_bytes() + at as u64;
            self.widen(slot, blocks, offset_bytes, &data, 0).await?
        };
        let recent = &self.recent_parts;
        let kept = recent.push(handle.id, vblock, Changed::WHOLE, &whole);
        let written = self.write_blocks(handle, vblock, whole, metas, given);
        let lsn = written.await?;
        recent.name(kept, lsn);
        Ok(lsn)
    }

    /// Whether a change of a dvol has taken the place of a block with metadata, as far as this engine knows.
    fn has_had_metadata(&self, slot: Slot) -> bool {
        let state = self.state.borrow();
        state.slot(slot).is_some_and(|found| found.has_had_metadata)
    }

    /// What a write to these bytes of a block makes of it, together with what was written to the same block just before, if that is all that
    /// lies over the block's data, or is the data. The block's map node is in memory.
    pub(super) fn patch(
        &self,
        handle: Handle,
        vblock: VBlock,
        range: Range<usize>,
    ) -> Result<Patch, DvolError> {
        let Some(alone) = Changed::of(range.clone()) else {
            unreachable!("a part of a block lies within it");
        };
        let state = self.state.borrow();
        let found = state.slot(handle.slot).ok_or(DvolError::NotFound)?;
        let mapping = found.map.get(vblock).unwrap_or_default();
        let data_lsn = mapping.data().map(|entry| entry.lsn);
        let last = mapping.delta.as_ref().map(|entry| entry.lsn).or(data_lsn);
        let is_whole = mapping.delta.is_none();
        let find = |lsn| self.recent_parts.find(handle.id, vblock, lsn, is_whole);
        let before = last.and_then(find);
        let joined = before.and_then(|before| Some((before, before.changed().and(&range)?)));
        let is_over_data = data_lsn.is_some();
        // It takes the place of one whose bytes it has.
        let is_replaced = |delta: &Entry| alone.covers(&delta.changed().range());
        // It and the delta are the block, and have nothing in common: no byte of it would be hidden.
        let is_rest = |delta: &Entry| {
            let changed = delta.changed();
            !changed.touches(&range) && changed.and(&range).is_some_and(Changed::is_whole)
        };
        let (fits, changed, before) = match (&mapping.delta, joined) {
            (Some(delta), _) if is_over_data && is_replaced(delta) => (Fits::AsDelta, alone, None),
            (_, Some((before, both))) if both.is_whole() => (Fits::Whole, both, Some(before)),
            (_, Some((before, both))) if is_over_data => (Fits::AsDelta, both, Some(before)),
            (None, None) if is_over_data => (Fits::AsDelta, alone, None),
            (Some(delta), None) if is_over_data && is_rest(delta) => (Fits::Under, alone, None),
            _ => (Fits::Read, alone, None),
        };
        Ok(Patch {
            fits,
            changed,
            before,
            meta: mapping.data().map_or(0, |data| data.meta),
        })
    }

    /// The block that is written for a patch, whose own bytes are `data` and begin at `at`. Nothing was kept of other parts since the patch was made.
    pub(super) fn patched(&self, patch: &Patch, at: usize, data: &[u8]) -> IoBuf {
        let mut buf = self.platform.buffers().take(BLOCK_SIZE as usize);
        let bytes = buf.bytes_mut();
        // What others had in this memory is not to get to the device.
        let mut behind = 0;
        for piece in patch.changed.pieces() {
            bytes[behind..piece.start].fill(0);
            behind = piece.end;
        }
        bytes[behind..].fill(0);
        if let Some(before) = &patch.before {
            self.recent_parts.copy(before, bytes);
        }
        bytes[at..at + data.len()].copy_from_slice(data);
        buf
    }

    /// Writes a patch that is a delta, or lies under one.
    async fn write_patch(
        self: &Rc<Self>,
        handle: Handle,
        vblock: VBlock,
        patch: &Patch,
        (at, data): (usize, &[u8]),
        over: Over<'_>,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let buf = self.patched(patch, at, data);
        let runs = self.take_blocks(handle.slot, 1, over, &mut None).await?;
        let recorded = self.record_patch(handle, vblock, patch, buf, runs, given)?;
        self.finish_submitted(recorded.submitted, recorded.writes, None)
            .await?;
        Ok(recorded.lsn)
    }

    /// Submits the record of a patch for which a block was taken, and keeps its bytes if it is a delta. Beside the delta that it lies under it would be
    /// the whole block, but that one's bytes are not kept.
    pub(super) fn record_patch(
        self: &Rc<Self>,
        handle: Handle,
        vblock: VBlock,
        patch: &Patch,
        buf: IoBuf,
        runs: SmallVec<[BlockRun; 2]>,
        given: Given<'_>,
    ) -> Result<Recorded<'_, P>, DvolError> {
        let (slot, changed, block) = (handle.slot, patch.changed, runs[0].start);
        debug_assert!(!changed.is_whole(), "a whole block is written as one");
        let lsn = self.lsn_or_return(handle, &runs)?;
        let checksum = BlockChecksum::of_part(&buf, changed.range());
        let record = if patch.fits == Fits::Under {
            // Copied, maybe from a write that a crash takes back as a whole: that takes the delta back, which lies over what it wrote, and so this as well.
            let meta = match planted(Bug::UnderForgetsMeta) {
                true => 0,
                false => patch.meta,
            };
            let mapped = MappedBlock {
                block,
                checksum,
                meta,
            };
            Record::MapUnder {
                slot,
                lsn,
                vblock,
                mapped,
            }
        } else {
            let kept = self.recent_parts.push(handle.id, vblock, changed, &buf);
            self.recent_parts.name(kept, lsn);
            Record::Delta {
                slot,
                lsn,
                vblock,
                changed,
                block,
                checksum,
            }
        };
        let mut writes = SmallVec::new();
        writes.push(DataWrite { run: runs[0], buf });
        let submitted = self.submit_with_data(record, handle, lsn, &writes, given)?;
        Ok(Recorded {
            lsn,
            submitted,
            writes,
            under_way: None,
        })
    }

    /// Writes a part of blocks that the caller has to itself; stable.
    pub(super) async fn write_part(
        self: &Rc<Self>,
        handle: Handle,
        blocks: Range<VBlock>,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<(), DvolError> {
        let first = blocks.start;
        let (widened, metas) = self
            .widen(handle.slot, blocks, offset_bytes, data, 0)
            .await?;
        self.write_whole(handle, first, widened, metas, Given::stable())
            .await
            .map(|_| ())
    }

    /// Whole blocks around `data`, the rest being what is there now, and their metadata if `given`
    /// came with the data.
    pub(super) async fn widen(
        self: &Rc<Self>,
        slot: Slot,
        blocks: Range<VBlock>,
        offset_bytes: u64,
        data: &[u8],
        given: u64,
    ) -> Result<(IoBuf, Metas), DvolError> {
        let len = ((blocks.end.0 - blocks.start.0) * BLOCK_SIZE) as usize;
        let mut buf = self.platform.buffers().take(len);
        let mut metas = Metas::all(given);
        let (first, last) = (blocks.start, VBlock(blocks.end.0 - 1));
        let data_end = offset_bytes + data.len() as u64;
        let is_part = |edge: VBlock| {
            let start = edge.offset_bytes();
            start < offset_bytes || data_end < start + BLOCK_SIZE
        };
        let edges: SmallVec<[VBlock; 2]> = match first == last {
            true => SmallVec::from_slice(&[first]),
            false => SmallVec::from_slice(&[first, last]),
        };
        for edge in edges.into_iter().filter(|&edge| is_part(edge)) {
            self.settle_loose(slot, edge).await?;
            let pieces = self
                .read_blocks(self.usual_path(), slot, edge..VBlock(edge.0 + 1))
                .await?;
            let block = gather(self, &pieces, BLOCK_SIZE as usize);
            let at = ((edge.0 - first.0) * BLOCK_SIZE) as usize;
            buf.bytes_mut()[at..at + BLOCK_SIZE as usize].copy_from_slice(&block);
            if given == 0 {
                metas.keep(edge == first, edge == last, self.meta_of(slot, edge).await?);
            }
        }
        let at = (offset_bytes - blocks.start.offset_bytes()) as usize;
        buf.bytes_mut()[at..at + data.len()].copy_from_slice(data);
        Ok((buf, metas))
    }
}
