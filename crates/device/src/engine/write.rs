//! Writing.
//!
//! Data goes to fresh blocks while the record of where it went goes to the journal; the two are
//! not ordered, one flush covers both. Whole blocks need no read; parts of blocks are [apart](super::write_part). Every write of up to
//! [`WRITE_MAX_BYTES`] is one unit.

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::pool::Pooled;
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, Lsn, VBlock};
use smallvec::{SmallVec, smallvec};

use super::admin::Attributes;
use super::commit::Submitted;
use super::data::is_gathered;
use super::error::DvolError;
use super::info::Handle;
use super::join::join_all;
use super::loose::UnderWay;
use super::spacing::{OVERWRITE_PART_BLOCKS, Over};
use super::unit::{DataBlocks, Unit};
use super::{Engine, Inner, Stability};
use crate::format::group::BODY_MAX_BYTES;
use crate::format::record::{
    ATTRIBUTES_RECORD_BYTES, MAP_BLOCK_BYTES, MAP_BLOCK_META_BYTES, MAP_FIXED_BYTES, MAP_RUN_BYTES,
    MapRun, MappedBlock, MappedBlocks, RECORD_HEADER_BYTES, Record,
};
use crate::planted::{Bug, planted};
use crate::space::BlockRun;

/// Most bytes that one write can carry: its record fits one journal group.
pub const WRITE_MAX_BYTES: u64 = 32 << 20;

/// The tenant's metadata of the blocks of one write. A block that is written as a whole gets what
/// came with the write, so nothing if nothing came; one that is written in part keeps what it has
/// unless something came. Only the first and the last block of a write can be written in part.
#[derive(Clone, Copy)]
pub(super) struct Metas {
    given: u64,
    first: u64,
    last: u64,
}

impl Metas {
    /// That of a write of whole blocks.
    pub(super) fn all(given: u64) -> Metas {
        Metas {
            given,
            first: given,
            last: given,
        }
    }

    /// The first block, or the last, keeps what it has.
    pub(super) fn keep(&mut self, is_first: bool, is_last: bool, meta: u64) {
        if is_first {
            self.first = meta;
        }
        if is_last {
            self.last = meta;
        }
    }

    /// That of a part of `count` blocks.
    fn of_part(self, part: Range<usize>, count: usize) -> Metas {
        Metas {
            given: self.given,
            first: self.of(part.start, count),
            last: self.of(part.end - 1, count),
        }
    }

    /// That of block `index` of `count`.
    pub(super) fn of(&self, index: usize, count: usize) -> u64 {
        match index {
            0 => self.first,
            index if index + 1 == count => self.last,
            _ => self.given,
        }
    }
}

/// Bytes of records that one unit can have.
pub(super) const BODY_MAX: u64 = BODY_MAX_BYTES as u64;

/// Bytes of the record that maps `count` consecutive blocks. What does not fit a unit must be
/// refused before blocks are taken for it.
pub(super) fn map_record_bytes(count: u64, metas: Metas) -> u64 {
    let each = match metas.given | metas.first | metas.last {
        0 => MAP_BLOCK_BYTES,
        _ => MAP_BLOCK_META_BYTES,
    };
    (RECORD_HEADER_BYTES + MAP_FIXED_BYTES + MAP_RUN_BYTES) as u64 + count * each as u64
}

/// Attributes that come with a write: asked for when its record is made, so in the order in which writes
/// come true.
pub(super) type Along<'a> = Option<&'a dyn Fn() -> Attributes>;

/// What comes with a write beside its bytes.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// The tenant's metadata for each block.
    pub meta: u64,
    pub stability: Stability,
    /// New attributes of the dvol.
    pub along: Along<'a>,
}

impl Given<'_> {
    /// Nothing, and the write is stable.
    pub(super) fn stable() -> Given<'static> {
        Given {
            meta: 0,
            stability: Stability::Stable,
            along: None,
        }
    }

    /// Bytes of the record that it adds to the unit.
    fn record_bytes(&self) -> u64 {
        match self.along {
            Some(_) => ATTRIBUTES_RECORD_BYTES as u64,
            None => 0,
        }
    }
}

/// Blocks with the bytes that go there.
pub(super) struct DataWrite {
    /// Where.
    pub run: BlockRun,
    /// What: `run.count` blocks.
    pub buf: IoBuf,
}

impl<P: Platform> Engine<P> {
    /// Writes the view of `data` at any offset, as one unit. On success the bytes are written, and
    /// durable if `stability` says so.
    pub async fn write(
        &self,
        handle: Handle,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, DvolError> {
        self.write_ex(handle, offset_bytes, data, 0, stability)
            .await
    }

    /// The same with the tenant's metadata for each block written. Zero is none: blocks written as
    /// a whole then have none, blocks written in part keep theirs. [decibel 4.1: vol_write_ex]
    pub async fn write_ex(
        &self,
        handle: Handle,
        offset_bytes: u64,
        data: IoBuf,
        meta: u64,
        stability: Stability,
    ) -> Result<Lsn, DvolError> {
        self.write_along(handle, offset_bytes, data, meta, stability, None)
            .await
    }

    /// Writes, and replaces the dvol's attributes in the same unit: both happen or neither, and both are
    /// seen at once. `attributes` is asked when the write gets its place among the dvol's changes: what it
    /// says of two writes comes true in the order in which it was asked. It may be asked for a write that
    /// fails after all; an empty write does not ask it.
    pub async fn write_with(
        &self,
        handle: Handle,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
        attributes: impl Fn() -> Attributes,
    ) -> Result<Lsn, DvolError> {
        let along: Along<'_> = Some(&attributes);
        self.write_along(handle, offset_bytes, data, 0, stability, along)
            .await
    }

    async fn write_along(
        &self,
        handle: Handle,
        offset_bytes: u64,
        data: IoBuf,
        meta: u64,
        stability: Stability,
        along: Along<'_>,
    ) -> Result<Lsn, DvolError> {
        let inner = &self.inner;
        let len = data.len() as u64;
        inner.check_change(handle, offset_bytes, len)?;
        if len > WRITE_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        if len == 0 {
            return Ok(inner.resolve(handle)?.lsn);
        }
        let first = VBlock::containing(offset_bytes);
        let blocks = first..VBlock((offset_bytes + len).div_ceil(BLOCK_SIZE));
        let whole = offset_bytes.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE);
        let given = Given {
            meta,
            stability,
            along,
        };
        let begun = match whole {
            true => inner.begin_now(handle, &blocks, &data, given)?,
            false => inner.begin_part_now(handle, &blocks, offset_bytes, &data, given)?,
        };
        if let Some(begun) = begun {
            drop(data);
            return begun.end().await;
        }
        // Its own place in memory: the others shall not be as large as this one.
        let waiting = inner.clone();
        // What comes along is borrowed, and memory that is used again is for what borrows nothing.
        if along.is_some() {
            let written = waiting.write_waiting(handle, blocks, offset_bytes, data, given);
            return Box::pin(written).await;
        }
        let given = Given {
            along: None,
            ..given
        };
        let written = waiting.write_waiting(handle, blocks, offset_bytes, data, given);
        inner.waiting_writes.place(written).await
    }

    /// Makes everything answered before this call durable.
    pub async fn flush(&self) -> Result<(), DvolError> {
        self.inner.flush_for_client().await
    }
}

/// A write whose record is submitted and whose data is still to be written.
pub(super) struct Recorded<'a, P: Platform> {
    pub lsn: Lsn,
    pub submitted: Submitted,
    pub writes: SmallVec<[DataWrite; 2]>,
    pub under_way: Option<UnderWay<'a, P>>,
}

impl<P: Platform> Inner<P> {
    /// A write that may have to wait before it can begin.
    async fn write_waiting(
        self: Rc<Self>,
        handle: Handle,
        blocks: Range<VBlock>,
        offset_bytes: u64,
        data: IoBuf,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let len = data.len() as u64;
        let whole = offset_bytes.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE);
        let inner = &self;
        let lock = inner
            .range_locks(handle.slot)
            .take(blocks.clone(), !whole && !planted(Bug::PartsNotLocked))
            .await;
        let held = inner.holding(smallvec![(handle.slot, lock)]);
        let written = inner
            .write_held(handle, blocks, offset_bytes, data, given)
            .await;
        held.answered();
        written
    }

    pub(super) fn check_change(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
    ) -> Result<(), DvolError> {
        self.check_running()?;
        let record = self.resolve(handle)?;
        if handle.layer.is_some() || record.read_only {
            return Err(DvolError::ReadOnly);
        }
        match offset.checked_add(len) {
            Some(end) if end <= record.size_bytes => Ok(()),
            _ => Err(DvolError::OutOfRange),
        }
    }

    /// Writes to blocks that are in use by this write: alone if it does not cover them wholly.
    pub(super) async fn write_held(
        self: &Rc<Self>,
        handle: Handle,
        blocks: Range<VBlock>,
        offset_bytes: u64,
        data: IoBuf,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let meta = given.meta;
        let len = data.len() as u64;
        let first = blocks.start;
        let whole = offset_bytes.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE);
        self.check_change(handle, offset_bytes, len)?;
        if whole {
            let metas = Metas::all(meta);
            return self.write_blocks(handle, first, data, metas, given).await;
        }
        if blocks.end.0 - blocks.start.0 == 1 && meta == 0 {
            let at = (offset_bytes - first.offset_bytes()) as usize;
            return self.write_within(handle, first, at, data, given).await;
        }
        let (widened, metas) = self
            .widen(handle.slot, blocks, offset_bytes, &data, meta)
            .await?;
        drop(data);
        self.write_blocks(handle, first, widened, metas, given)
            .await
    }

    /// Writes whole blocks as one unit; on a full device those of a reserved dvol in parts.
    pub(super) async fn write_blocks(
        self: &Rc<Self>,
        handle: Handle,
        first: VBlock,
        data: IoBuf,
        metas: Metas,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        match self
            .write_whole(handle, first, data.clone(), metas, given)
            .await
        {
            Err(DvolError::NoSpace) if self.is_reserved(handle) => {
                self.write_in_parts(handle, first, &data, metas, given)
                    .await
            }
            result => result,
        }
    }

    pub(super) async fn write_whole(
        self: &Rc<Self>,
        handle: Handle,
        first: VBlock,
        data: IoBuf,
        metas: Metas,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let slot = handle.slot;
        let count = data.len() as u64 / BLOCK_SIZE;
        if map_record_bytes(count, metas) + given.record_bytes() > BODY_MAX {
            return Err(DvolError::Invalid);
        }
        let blocks = first..VBlock(first.0 + count);
        let over = Over::Blocks(&blocks);
        let runs = self.take_blocks(slot, count, over, &mut None).await?;
        let recorded = self.record_whole(handle, first, runs, &data, metas, given)?;
        drop(data);
        let finished =
            self.finish_submitted(recorded.submitted, recorded.writes, recorded.under_way);
        finished.await?;
        Ok(recorded.lsn)
    }

    /// Submits the record of a write of whole blocks for which these were taken.
    pub(super) fn record_whole(
        self: &Rc<Self>,
        handle: Handle,
        first: VBlock,
        runs: SmallVec<[BlockRun; 2]>,
        data: &IoBuf,
        metas: Metas,
        given: Given<'_>,
    ) -> Result<Recorded<'_, P>, DvolError> {
        let slot = handle.slot;
        let mapped = self.map_blocks(&runs, data, metas);
        let count = mapped.len() as u64;
        let mut writes = SmallVec::<[DataWrite; 2]>::new();
        let mut at = 0;
        for run in &runs {
            let len = (run.count * BLOCK_SIZE) as usize;
            writes.push(DataWrite {
                run: *run,
                buf: data.slice(at..at + len),
            });
            at += len;
        }
        let lsn = self.lsn_or_return(handle, &runs)?;
        let map_run = MapRun {
            start: first,
            blocks: mapped,
        };
        let record = Record::Map {
            slot,
            lsn,
            runs: smallvec![map_run],
        };
        let under_way = match given.stability {
            Stability::Unstable => self.note_loose([(slot, first..VBlock(first.0 + count))]),
            Stability::Stable => None,
        };
        let submitted = self.submit_with_data(record, handle, lsn, &writes, given)?;
        Ok(Recorded {
            lsn,
            submitted,
            writes,
            under_way,
        })
    }

    /// Where each block of `data` goes, with its checksum and metadata.
    pub(super) fn map_blocks(&self, runs: &[BlockRun], data: &IoBuf, metas: Metas) -> MappedBlocks {
        let count = data.len() / BLOCK_SIZE as usize;
        // Of one block it is the block's.
        let known = data.known_checksum().filter(|_| count == 1);
        debug_assert!(
            known.is_none_or(|known| BlockChecksum(known) == BlockChecksum::of(data)),
            "the checksum that comes with bytes is theirs"
        );
        let mut mapped = self.units.lists().mapped(count);
        let mut bytes = data.chunks_exact(BLOCK_SIZE as usize);
        for block in runs.iter().flat_map(|run| run.blocks()) {
            let bytes = bytes.next().expect("as many blocks as there is data");
            mapped.push(MappedBlock {
                block,
                checksum: known.map_or_else(|| BlockChecksum::of(bytes), BlockChecksum),
                meta: metas.of(mapped.len(), count),
            });
        }
        mapped
    }

    pub(super) fn is_reserved(&self, handle: Handle) -> bool {
        let state = self.state.borrow();
        let found = state.slot(handle.slot);
        found.is_some_and(|found| found.record.reserved_blocks > 0)
    }

    /// Whether all blocks of a dvol are set aside for it.
    pub(super) fn is_all_reserved(&self, handle: Handle) -> Result<bool, DvolError> {
        let record = self.record(handle)?;
        Ok(record.reserved_blocks >= record.size_bytes.div_ceil(BLOCK_SIZE))
    }

    /// Overwrites a reserved dvol on a full device: in parts, each of which frees what the next one
    /// needs. The whole is not atomic; each part is.
    async fn write_in_parts(
        self: &Rc<Self>,
        handle: Handle,
        first: VBlock,
        data: &IoBuf,
        metas: Metas,
        given: Given<'_>,
    ) -> Result<Lsn, DvolError> {
        let block_bytes = BLOCK_SIZE as usize;
        let count = data.len() / block_bytes;
        let mut lsn = Lsn::ZERO;
        for at in (0..count).step_by(OVERWRITE_PART_BLOCKS as usize) {
            let end = count.min(at + OVERWRITE_PART_BLOCKS as usize);
            let part = data.slice(at * block_bytes..end * block_bytes);
            let start = VBlock(first.0 + at as u64);
            let metas = metas.of_part(at..end, count);
            // What comes along says of the whole.
            let along = given.along.filter(|_| end == count);
            let given = Given { along, ..given };
            lsn = self.write_whole(handle, start, part, metas, given).await?;
        }
        Ok(lsn)
    }

    /// Submits a record whose data is still to be written, and what comes along.
    pub(super) fn submit_with_data(
        self: &Rc<Self>,
        record: Record,
        handle: Handle,
        lsn: Lsn,
        writes: &[DataWrite],
        given: Given<'_>,
    ) -> Result<Submitted, DvolError> {
        let slot = handle.slot;
        let slots = || SmallVec::from_slice(&[slot]);
        let stable = given.stability == Stability::Stable;
        let mut records = SmallVec::new();
        records.push(record);
        if let Some(attributes) = given.along {
            let attributes = Box::new(attributes());
            let record = Record::Attributes {
                slot,
                lsn,
                attributes,
            };
            if planted(Bug::AttributesApart) {
                let apart = SmallVec::from_iter([record]);
                self.submit(apart, slots(), stable, DataBlocks::new())?;
            } else {
                records.push(record);
            }
        }
        // Not collected: most are one block, and that takes hundreds of instructions.
        let count: u64 = writes.iter().map(|write| write.run.count).sum();
        let mut blocks = self.units.lists().blocks(count as usize);
        for write in writes {
            for block in write.run.blocks() {
                blocks.push(block);
            }
        }
        self.submit(records, slots(), stable, blocks)
    }

    /// Writes the data of a unit that was just submitted and waits for its answer. If the caller goes away meanwhile, a unit whose data is
    /// gathered is made all the same, and one of much data is failed.
    pub(super) async fn finish_submitted(
        self: &Rc<Self>,
        submitted: Submitted,
        writes: SmallVec<[DataWrite; 2]>,
        under_way: Option<UnderWay<'_, P>>,
    ) -> Result<(), DvolError> {
        if writes.is_empty() {
            // Nothing but deallocations: there is no data to report.
            return submitted.answer.await.unwrap_or(Err(DvolError::Fenced));
        }
        if is_gathered(&writes) {
            self.gather(&submitted.unit, writes, under_way);
            drop(submitted.unit);
            return submitted.answer.await.unwrap_or(Err(DvolError::Fenced));
        }
        let mut guard = DataGuard {
            inner: self.clone(),
            unit: Some(submitted.unit),
        };
        if planted(Bug::AckBeforeData)
            && let Some(unit) = guard.unit.take()
        {
            self.data_done(&unit, Ok(()));
        }
        let result = self.write_data(writes).await;
        if let Some(unit) = guard.unit.take() {
            self.data_done(&unit, result);
        }
        submitted.answer.await.unwrap_or(Err(DvolError::Fenced))
    }

    async fn write_data(&self, writes: SmallVec<[DataWrite; 2]>) -> Result<(), DvolError> {
        self.counters
            .data_writes
            .set(self.counters.data_writes.get() + writes.len() as u64);
        let one = |w: DataWrite| async move {
            let (_, result) = self.device.write(w.run.start.offset_bytes(), w.buf).await;
            self.flusher.note_written();
            result
        };
        let results: SmallVec<[std::io::Result<()>; 2]> = if writes.len() == 1 {
            let mut results = SmallVec::new();
            for write in writes {
                results.push(one(write).await);
            }
            results
        } else {
            join_all(writes.into_iter().map(one))
                .await
                .into_iter()
                .collect()
        };
        for result in results {
            if let Err(error) = result {
                return Err(self.data_failure(&error));
            }
        }
        // With segments written ahead, those say it.
        if !self.options.prewrite_segments {
            self.host_full.set(false);
        }
        Ok(())
    }

    /// The next LSN of a dvol, or the blocks taken for its write go back: it may have been deleted
    /// while they were being taken.
    pub(super) fn lsn_or_return(
        &self,
        handle: Handle,
        runs: &[BlockRun],
    ) -> Result<Lsn, DvolError> {
        self.take_lsn(handle)
            .inspect_err(|_| self.return_blocks(runs.iter().flat_map(|run| run.blocks())))
    }

    /// The next LSN of a dvol. Whoever takes it submits its record before anything else can run.
    pub(super) fn take_lsn(&self, handle: Handle) -> Result<Lsn, DvolError> {
        self.resolve(handle)?;
        let mut given = self.given_lsns.borrow_mut();
        let state = self.state.borrow();
        let Some(found) = state.slot(handle.slot) else {
            return Err(DvolError::NotFound);
        };
        let next = state.next_lsn(&found.record);
        let last = given.entry(handle.slot).or_insert(Lsn::ZERO);
        let lsn = if *last >= next { last.next() } else { next };
        *last = lsn;
        Ok(lsn)
    }
}

/// Fails a unit whose writer went away. Its blocks stay taken until the node is restarted, since
/// the device may still be writing them.
struct DataGuard<P: Platform> {
    inner: Rc<Inner<P>>,
    unit: Option<Pooled<Unit>>,
}

impl<P: Platform> Drop for DataGuard<P> {
    fn drop(&mut self) {
        if let Some(unit) = self.unit.take() {
            self.inner.data_done(&unit, Err(DvolError::Stopping));
        }
    }
}
