//! Atomic batches: several changes, over several dvols of one journal, under conditions, as one
//! unit. Decibel's `vol_write_tx` and `vol_cmpxchg` [decibel 4.1] are special cases.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockNo, Lsn, Slot, VBlock};
use smallvec::{SmallVec, smallvec};

use super::admin::Attributes;
use super::due::Purpose;
use super::error::DvolError;
use super::info::Handle;
use super::locks::RangeLock;
use super::overwrites::Turn;
use super::read::{Pieces, gather};
use super::segments::NO_SLOT;
use super::spacing::Over;
use super::write::{BODY_MAX, DataWrite, Metas, WRITE_MAX_BYTES, map_record_bytes};
use super::{Engine, Inner, Stability};
use crate::format::record::{ATTRIBUTES_RECORD_BYTES, JOURNALED_RECORD_BYTES, MapRun, Record};
use crate::planted::{Bug, planted};
use crate::space::BlockRun;

/// Bytes of a record that unmaps one range.
const UNMAP_RECORD_BYTES: u64 = 38;

/// Ranges and changes that one batch can name.
pub(super) const BATCH_PARTS_MAX: usize = 1024;

/// Bytes that the changes of a batch may write to the journal alone, at most: they are in one group with what else it records.
pub const JOURNALED_MAX_BYTES: usize = 64 << 10;

/// Something that must hold for a batch to happen.
#[derive(Clone, Debug)]
pub enum Condition {
    /// Nothing in the range changed after this LSN.
    UnchangedSince {
        /// Whose.
        handle: Handle,
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes.
        len_bytes: u64,
        /// The LSN.
        lsn: Lsn,
    },
    /// The bytes there are these.
    Equals {
        /// Whose.
        handle: Handle,
        /// From which byte.
        offset_bytes: u64,
        /// The bytes.
        bytes: IoBuf,
    },
    /// The dvol's epoch is not above this one.
    Epoch {
        /// Whose.
        handle: Handle,
        /// The writer's epoch.
        epoch: flagstone_types::Epoch,
    },
}

/// What is known of a block beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMeta {
    /// LSN of the change that made the block what it is. Zero: it was never written, or deallocated so
    /// long ago that it is forgotten.
    pub lsn: Lsn,
    /// The tenant's metadata; zero where nothing is mapped.
    pub meta: u64,
}

/// A change of a batch.
#[derive(Clone, Debug)]
pub enum Change {
    /// Write these bytes.
    Write {
        /// Whose.
        handle: Handle,
        /// From which byte.
        offset_bytes: u64,
        /// The bytes.
        data: IoBuf,
        /// The tenant's metadata for each block written.
        meta: u64,
    },
    /// Write these bytes, and zeros up to the end of their last block, for a while to the journal alone: one transfer is all that is
    /// waited for. The next checkpoint gives them blocks, unless others have been written there by then, or the
    /// range was deallocated. So this is for what is deallocated soon. Whoever reads the range, or asks about it, waits
    /// for that checkpoint. What is deallocated before it has blocks was never written: nothing tells that it
    /// changed. All of the dvol has to be reserved, so that the checkpoint finds room, and it has no
    /// snapshots: there will be none until the next start (they are refused as [`DvolError::Busy`]).
    WriteJournaled {
        /// Whose.
        handle: Handle,
        /// From which byte, a multiple of 4096.
        offset_bytes: u64,
        /// The bytes: at least one, at most [`JOURNALED_MAX_BYTES`] in a batch.
        data: Rc<[u8]>,
    },
    /// Deallocate whole blocks.
    Deallocate {
        /// Whose.
        handle: Handle,
        /// From which byte, a multiple of 4096.
        offset_bytes: u64,
        /// How many bytes, a multiple of 4096.
        len_bytes: u64,
    },
    /// Replace what the layer above keeps with a dvol. Once for each dvol.
    SetAttributes {
        /// Whose.
        handle: Handle,
        /// What it is then.
        attributes: Box<Attributes>,
    },
}

/// Conditions, and changes that happen together if all of them hold. Changes must not overlap.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Checked first, all in the same instant.
    pub conditions: Vec<Condition>,
    /// Happen all or not at all.
    pub changes: Vec<Change>,
}

/// Notes what a batch has blocks for, as long as no unit says so.
struct Batched<'a, P: Platform> {
    inner: &'a Inner<P>,
    ranges: Vec<(Slot, Range<VBlock>)>,
}

impl<'a, P: Platform> Batched<'a, P> {
    fn new(inner: &'a Inner<P>) -> Batched<'a, P> {
        Batched {
            inner,
            ranges: Vec::new(),
        }
    }

    fn add(&mut self, slot: Slot, range: Range<VBlock>) {
        let mut batched = self.inner.batched.borrow_mut();
        batched.push((slot, range.clone()));
        self.ranges.push((slot, range));
    }
}

impl<P: Platform> Drop for Batched<'_, P> {
    fn drop(&mut self) {
        let mut batched = self.inner.batched.borrow_mut();
        for range in &self.ranges {
            // One that is equal is as good.
            if let Some(at) = batched.iter().position(|other| other == range) {
                batched.swap_remove(at);
            }
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Carries a batch out. Returns, for each change, the LSN it got.
    pub async fn commit(&self, batch: Batch, stability: Stability) -> Result<Vec<Lsn>, DvolError> {
        self.commit_as(batch, stability, Order::Beside).await
    }

    pub(super) async fn commit_as(
        &self,
        batch: Batch,
        stability: Stability,
        order: Order,
    ) -> Result<Vec<Lsn>, DvolError> {
        let inner = &self.inner;
        inner.check_running()?;
        if batch.changes.len() + batch.conditions.len() > BATCH_PARTS_MAX {
            return Err(DvolError::Invalid);
        }
        if planted(Bug::ConditionsNotLocked) {
            inner.check_conditions(&batch.conditions).await?;
        }
        let locks = inner.lock_batch(&batch, true).await?;
        let work = async {
            if !planted(Bug::ConditionsNotLocked) {
                inner.check_conditions(&batch.conditions).await?;
            }
            if batch.changes.is_empty() {
                return Ok(Vec::new());
            }
            inner.commit_changes(&batch.changes, stability, order).await
        };
        inner.held(locks, work).await
    }

    /// Replaces the bytes at a place if they are what is expected. [decibel 4.1: vol_cmpxchg]
    pub async fn compare_and_swap(
        &self,
        handle: Handle,
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, DvolError> {
        if expected.len() != new.len() {
            return Err(DvolError::Invalid);
        }
        let condition = Condition::Equals {
            handle,
            offset_bytes,
            bytes: expected,
        };
        let change = Change::Write {
            handle,
            offset_bytes,
            data: new,
            meta: 0,
        };
        let batch = Batch {
            conditions: vec![condition],
            changes: vec![change],
        };
        let lsns = self.commit(batch, stability).await?;
        lsns.first().copied().ok_or(DvolError::Invalid)
    }

    /// Replaces a dvol's attributes. Durable when this returns.
    pub async fn set_attributes(
        &self,
        handle: Handle,
        attributes: Attributes,
    ) -> Result<(), DvolError> {
        let attributes = Box::new(attributes);
        let batch = Batch {
            conditions: Vec::new(),
            changes: vec![Change::SetAttributes { handle, attributes }],
        };
        self.commit(batch, Stability::Stable).await.map(drop)
    }

    /// Reads ranges, all in the same instant, if the conditions hold in it.
    pub async fn read_if(
        &self,
        conditions: Vec<Condition>,
        ranges: &[(Handle, u64, u64)],
    ) -> Result<Vec<Pieces>, DvolError> {
        let inner = &self.inner;
        inner.check_running()?;
        if conditions.len() + ranges.len() > BATCH_PARTS_MAX {
            return Err(DvolError::Invalid);
        }
        let batch = Batch {
            conditions,
            changes: Vec::new(),
        };
        let mut extra = Vec::new();
        for &(handle, offset, len) in ranges {
            extra.push((handle, blocks_of(offset, len)?));
        }
        let _locks = inner
            .lock_ranges(batch.ranges()?.into_iter().chain(extra))
            .await;
        inner.check_conditions(&batch.conditions).await?;
        let mut out = Vec::new();
        for &(handle, offset, len) in ranges {
            out.push(self.read(handle, offset, len).await?);
        }
        Ok(out)
    }

    /// Reads with LSN and metadata of each block touched, all of the same instant.
    /// [decibel 4.1: vol_read_ex]
    pub async fn read_ex(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(Pieces, Vec<BlockMeta>), DvolError> {
        let range = blocks_of(offset_bytes, len_bytes)?;
        // Data and metadata of the same instant.
        let _locks = self.inner.lock_ranges([(handle, range.clone())]).await;
        let pieces = self.read(handle, offset_bytes, len_bytes).await?;
        let metas = self.inner.metas(handle, range).await?;
        // As in a read: its slot may have been given away while map nodes were loaded.
        self.inner.resolve(handle)?;
        Ok((pieces, metas))
    }

    /// The tenant's metadata of each block that the range touches; zero where nothing is mapped.
    pub async fn metas_of(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Vec<u64>, DvolError> {
        self.inner.resolve(handle)?;
        let metas = self
            .inner
            .metas(handle, blocks_of(offset_bytes, len_bytes)?)
            .await?;
        // As in a read: its slot may have been given away while map nodes were loaded.
        self.inner.resolve(handle)?;
        Ok(metas.into_iter().map(|block| block.meta).collect())
    }
}

impl Batch {
    /// Every range the batch looks at or changes.
    fn ranges(&self) -> Result<Vec<(Handle, Range<VBlock>)>, DvolError> {
        let mut ranges = Vec::new();
        for condition in &self.conditions {
            match condition {
                Condition::UnchangedSince {
                    handle,
                    offset_bytes,
                    len_bytes,
                    ..
                } => {
                    ranges.push((*handle, blocks_of(*offset_bytes, *len_bytes)?));
                }
                Condition::Equals {
                    handle,
                    offset_bytes,
                    bytes,
                } => {
                    ranges.push((*handle, blocks_of(*offset_bytes, bytes.len() as u64)?));
                }
                Condition::Epoch { .. } => {}
            }
        }
        for change in &self.changes {
            ranges.extend(change.range()?);
        }
        Ok(ranges)
    }
}

impl Change {
    /// The blocks that it changes; `None` if that is none.
    fn range(&self) -> Result<Option<(Handle, Range<VBlock>)>, DvolError> {
        let (handle, range) = match self {
            Change::Write {
                handle,
                offset_bytes,
                data,
                ..
            } => (*handle, blocks_of(*offset_bytes, data.len() as u64)?),
            Change::WriteJournaled {
                handle,
                offset_bytes,
                data,
            } => {
                if offset_bytes % BLOCK_SIZE != 0 || data.len() > JOURNALED_MAX_BYTES {
                    return Err(DvolError::Invalid);
                }
                (*handle, blocks_of(*offset_bytes, data.len() as u64)?)
            }
            Change::Deallocate {
                handle,
                offset_bytes,
                len_bytes,
            } => {
                if offset_bytes % BLOCK_SIZE != 0 || len_bytes % BLOCK_SIZE != 0 {
                    return Err(DvolError::Invalid);
                }
                (*handle, blocks_of(*offset_bytes, *len_bytes)?)
            }
            Change::SetAttributes { .. } => return Ok(None),
        };
        Ok(Some((handle, range)))
    }
}

/// When the data of a batch is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Beside the group of its records.
    Beside,
    /// Before them ([`Engine::commit_ahead`]).
    Ahead,
}

/// A record under construction, with what it still needs.
struct Prepared {
    handle: Handle,
    first: VBlock,
    /// Whole blocks to write; `None`: deallocate `count` blocks.
    data: Option<(IoBuf, Metas)>,
    count: u64,
    /// No blocks, but this.
    attributes: Option<Box<Attributes>>,
    /// No blocks either: these bytes are in the record itself.
    journaled: Option<Rc<[u8]>>,
}

impl Prepared {
    /// Whether it brings data.
    fn writes(&self) -> bool {
        self.data.is_some() || self.journaled.is_some()
    }
}

/// What goes to which blocks.
fn writes_of(
    prepared: &[Prepared],
    runs_of: &[SmallVec<[BlockRun; 2]>],
) -> SmallVec<[DataWrite; 2]> {
    let mut writes = SmallVec::new();
    for (part, runs) in prepared.iter().zip(runs_of) {
        let Some((data, _)) = &part.data else {
            continue;
        };
        let mut at = 0;
        for run in runs {
            let len = (run.count * BLOCK_SIZE) as usize;
            writes.push(DataWrite {
                run: *run,
                buf: data.slice(at..at + len),
            });
            at += len;
        }
    }
    writes
}

impl<P: Platform> Inner<P> {
    async fn lock_batch(
        &self,
        batch: &Batch,
        check_overlap: bool,
    ) -> Result<SmallVec<[(Slot, RangeLock); 1]>, DvolError> {
        if check_overlap {
            let mut changes = Vec::new();
            let mut described = Vec::new();
            for change in &batch.changes {
                if let Change::SetAttributes { handle, .. } = change {
                    if described.contains(&handle.slot) {
                        return Err(DvolError::Invalid);
                    }
                    described.push(handle.slot);
                }
                if let Some((handle, range)) = change.range()? {
                    changes.push((handle.slot, range.start, range.end));
                }
            }
            changes.sort_unstable();
            let overlap = changes
                .windows(2)
                .any(|w| w[0].0 == w[1].0 && w[1].1 < w[0].2);
            if overlap {
                return Err(DvolError::Invalid);
            }
        }
        Ok(self.lock_ranges(batch.ranges()?).await)
    }

    /// Takes ranges for itself alone: all of a slot in one step, slots always in the same order.
    async fn lock_ranges(
        &self,
        ranges: impl IntoIterator<Item = (Handle, Range<VBlock>)>,
    ) -> SmallVec<[(Slot, RangeLock); 1]> {
        let mut ranges: Vec<_> = ranges
            .into_iter()
            .map(|(h, r)| (h.slot, r.start, r.end))
            .collect();
        ranges.sort_unstable();
        let mut of_slots: BTreeMap<Slot, SmallVec<[Range<VBlock>; 1]>> = BTreeMap::new();
        for (slot, start, end) in ranges {
            let merged = of_slots.entry(slot).or_default();
            match merged.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => merged.push(start..end),
            }
        }
        let mut locks = SmallVec::new();
        for (slot, ranges) in of_slots {
            locks.push((slot, self.range_locks(slot).take_all(ranges, true).await));
        }
        locks
    }

    async fn check_conditions(self: &Rc<Self>, conditions: &[Condition]) -> Result<(), DvolError> {
        for condition in conditions {
            match condition {
                Condition::UnchangedSince {
                    handle,
                    offset_bytes,
                    len_bytes,
                    lsn,
                } => {
                    self.resolve(*handle)?;
                    let range = blocks_of(*offset_bytes, *len_bytes)?;
                    if let Err(changed) = self.unchanged_since(*handle, range, *lsn).await? {
                        return Err(DvolError::ConditionFailed(changed));
                    }
                }
                Condition::Equals {
                    handle,
                    offset_bytes,
                    bytes,
                } => {
                    let engine = Engine {
                        inner: self.clone(),
                    };
                    let len = bytes.len();
                    let pieces = engine.read(*handle, *offset_bytes, len as u64).await?;
                    if gather(self, &pieces, len)[..] != bytes[..] {
                        return Err(DvolError::NotEqual);
                    }
                }
                Condition::Epoch { handle, epoch } => {
                    self.resolve(*handle)?;
                    if self.record(*handle)?.epoch > *epoch {
                        return Err(DvolError::StaleEpoch);
                    }
                }
            }
        }
        Ok(())
    }

    async fn commit_changes(
        self: &Rc<Self>,
        changes: &[Change],
        stability: Stability,
        order: Order,
    ) -> Result<Vec<Lsn>, DvolError> {
        let prepared = self.prepare(changes).await?;
        for part in prepared.iter().filter(|part| part.count > 0) {
            let end = VBlock(part.first.0 + part.count);
            self.load_nodes(part.handle.slot, part.first..end).await?;
        }
        let mut batched = Batched::new(self);
        let mut runs_of = Vec::new();
        let mut turn = Turn::default();
        for part in &prepared {
            let blocks = part.first..VBlock(part.first.0 + part.count);
            let over = Over::Blocks(&blocks);
            let runs = match part.data {
                Some(_) => {
                    self.take_blocks(part.handle.slot, part.count, over, &mut turn)
                        .await
                }
                None => Ok(SmallVec::new()),
            };
            match runs {
                Ok(runs) => {
                    runs_of.push(runs);
                    // What is deallocated takes none of what is promised.
                    if part.data.is_some() {
                        batched.add(part.handle.slot, blocks);
                    }
                }
                Err(error) => {
                    self.return_blocks(runs_of.iter().flatten().flat_map(|run| run.blocks()));
                    return Err(error);
                }
            }
        }
        let mut writes = writes_of(&prepared, &runs_of);
        let blocks: Vec<BlockNo> = writes.iter().flat_map(|w| w.run.blocks()).collect();
        let is_ahead = order == Order::Ahead && !blocks.is_empty();
        let ahead = is_ahead.then(|| self.begin_ahead());
        if is_ahead {
            let written = self.write_first(&prepared, &writes).await;
            writes.clear();
            if let Err(error) = written {
                self.return_blocks(blocks);
                return Err(error);
            }
        }
        // The next checkpoint has room for what all of them may make dirty, and all of them are there,
        // or the blocks go back: one may have been deleted meanwhile.
        let cleared = self.clear_way_for(&prepared).await;
        // While nodes were being loaded, the last checkpoint may have been made: nobody would answer.
        if let Some(error) = cleared
            .and_then(|()| self.check_running())
            .err()
            .or_else(|| {
                prepared
                    .iter()
                    .find_map(|part| self.check_still(part).err())
            })
        {
            self.return_blocks(blocks);
            return Err(error);
        }
        let mut records = SmallVec::new();
        let mut lsns = Vec::new();
        for (part, runs) in prepared.iter().zip(runs_of) {
            let slot = part.handle.slot;
            let lsn = self.take_lsn(part.handle)?;
            lsns.push(lsn);
            if let Some(attributes) = &part.attributes {
                let attributes = attributes.clone();
                records.push(Record::Attributes {
                    slot,
                    lsn,
                    attributes,
                });
                continue;
            }
            if let Some(data) = &part.journaled {
                let (start, data) = (part.first, data.clone());
                records.push(Record::Journaled {
                    slot,
                    lsn,
                    start,
                    data,
                });
                continue;
            }
            let Some((data, metas)) = &part.data else {
                let ranges = vec![(part.first, part.count)];
                records.push(Record::Unmap { slot, lsn, ranges });
                continue;
            };
            let blocks = self.map_blocks(&runs, data, *metas);
            records.push(Record::Map {
                slot,
                lsn,
                runs: smallvec![MapRun {
                    start: part.first,
                    blocks,
                }],
            });
        }
        let mut slots: SmallVec<[Slot; 2]> = prepared.iter().map(|p| p.handle.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let stable = stability == Stability::Stable;
        let submitted = match self.submit(records, slots, stable, blocks.clone().into()) {
            Ok(submitted) => submitted,
            // Only of a device that is fenced, or too long, which `prepare` has ruled out.
            Err(error) => {
                self.return_blocks(blocks);
                return Err(error);
            }
        };
        if is_ahead {
            self.data_done(&submitted.unit, Ok(()));
        }
        drop((batched, turn, ahead));
        let of_blocks = prepared.iter().filter(|part| part.count > 0);
        let parts = of_blocks.map(|part| {
            let end = VBlock(part.first.0 + part.count);
            (part.handle.slot, part.first..end)
        });
        let under_way = match stability {
            Stability::Unstable => self.note_loose(parts),
            Stability::Stable => None,
        };
        self.finish_submitted(submitted, writes, under_way).await?;
        Ok(lsns)
    }

    /// Nothing has happened to a dvol that ends what was looked at before something was waited for.
    fn check_still(&self, part: &Prepared) -> Result<(), DvolError> {
        let is_read_only = self.resolve(part.handle)?.read_only;
        match is_read_only && part.attributes.is_none() {
            true => Err(DvolError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Writes the data of a batch that is made ahead, if there is room for what comes behind it, and sees to it that this needs no reading afterwards:
    /// whatever changes the same dvols would wait for that.
    async fn write_first(
        self: &Rc<Self>,
        parts: &[Prepared],
        writes: &[DataWrite],
    ) -> Result<(), DvolError> {
        self.clear_way_for(parts).await?;
        self.write_ahead(writes).await?;
        for part in parts.iter().filter(|part| part.count > 0) {
            let end = VBlock(part.first.0 + part.count);
            self.load_nodes(part.handle.slot, part.first..end).await?;
        }
        Ok(())
    }

    async fn clear_way_for(self: &Rc<Self>, parts: &[Prepared]) -> Result<(), DvolError> {
        let due = |part: &Prepared| match part.data {
            Some(_) => self.nodes_due(part.handle.slot, part.count),
            None if part.attributes.is_some() => 0,
            None if part.journaled.is_some() => self.journaled_due(part.handle.slot, part.count),
            None => self.nodes_due_unmapping(part.handle.slot),
        };
        let more = parts.iter().map(|part| due(part) + 1).sum();
        let purpose = match parts {
            _ if parts.iter().any(Prepared::writes) => Purpose::Writing,
            _ if parts.iter().all(|part| part.attributes.is_some()) => Purpose::Giving,
            _ => Purpose::Changing,
        };
        let slot = parts.first().map_or(NO_SLOT, |part| part.handle.slot);
        self.clear_way(slot, more, purpose).await
    }

    /// Checks the changes and widens parts of blocks to whole ones.
    async fn prepare(self: &Rc<Self>, changes: &[Change]) -> Result<Vec<Prepared>, DvolError> {
        let mut prepared = Vec::new();
        let (mut total, mut record_bytes, mut journaled_bytes) = (0, 0, 0);
        for change in changes {
            let Some((handle, range)) = change.range()? else {
                if let Change::SetAttributes { handle, attributes } = change {
                    self.check_running()?;
                    self.resolve(*handle)?;
                    // Those of a dvol that clients can't change may be replaced, those of a layer not.
                    if handle.layer.is_some() {
                        return Err(DvolError::ReadOnly);
                    }
                    record_bytes += ATTRIBUTES_RECORD_BYTES as u64;
                    prepared.push(Prepared {
                        handle: *handle,
                        first: VBlock(0),
                        data: None,
                        count: 0,
                        attributes: Some(attributes.clone()),
                        journaled: None,
                    });
                }
                continue;
            };
            let count = range.end.0 - range.start.0;
            let data = match change {
                Change::Write {
                    offset_bytes,
                    data,
                    meta,
                    ..
                } => {
                    self.check_change(handle, *offset_bytes, data.len() as u64)?;
                    total += count * BLOCK_SIZE;
                    let whole = offset_bytes % BLOCK_SIZE == 0
                        && (data.len() as u64).is_multiple_of(BLOCK_SIZE);
                    let (data, metas) = match whole {
                        true => (data.clone(), Metas::all(*meta)),
                        false => {
                            let range = range.clone();
                            self.widen(handle.slot, range, *offset_bytes, data, *meta)
                                .await?
                        }
                    };
                    record_bytes += map_record_bytes(count, metas);
                    Some((data, metas))
                }
                Change::Deallocate {
                    offset_bytes,
                    len_bytes,
                    ..
                } => {
                    self.check_change(handle, *offset_bytes, *len_bytes)?;
                    record_bytes += UNMAP_RECORD_BYTES;
                    None
                }
                Change::WriteJournaled {
                    offset_bytes, data, ..
                } => {
                    self.check_change(handle, *offset_bytes, data.len() as u64)?;
                    self.begin_journaling(handle)?;
                    journaled_bytes += data.len();
                    record_bytes += (JOURNALED_RECORD_BYTES + data.len()) as u64;
                    None
                }
                Change::SetAttributes { .. } => continue,
            };
            let journaled = match change {
                Change::WriteJournaled { data, .. } => Some(data.clone()),
                _ => None,
            };
            prepared.push(Prepared {
                handle,
                first: range.start,
                data,
                count,
                attributes: None,
                journaled,
            });
        }
        if total > WRITE_MAX_BYTES
            || record_bytes > BODY_MAX
            || journaled_bytes > JOURNALED_MAX_BYTES
        {
            return Err(DvolError::Invalid);
        }
        Ok(prepared)
    }

    /// Gives back blocks that were handed out and never written.
    pub(super) fn return_blocks(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        let mut state = self.state.borrow_mut();
        for block in blocks {
            state.pool.reopen(block);
        }
    }

    async fn metas(
        &self,
        handle: Handle,
        range: Range<VBlock>,
    ) -> Result<Vec<BlockMeta>, DvolError> {
        let mut metas = Vec::new();
        for vblock in range.start.0..range.end.0 {
            metas.push(self.block_meta(handle.slot, VBlock(vblock)).await?);
        }
        Ok(metas)
    }

    /// A block's metadata; zero where nothing is mapped.
    pub(super) async fn meta_of(&self, slot: Slot, vblock: VBlock) -> Result<u64, DvolError> {
        self.block_meta(slot, vblock).await.map(|block| block.meta)
    }

    async fn block_meta(&self, slot: Slot, vblock: VBlock) -> Result<BlockMeta, DvolError> {
        self.load_range(slot, vblock..VBlock(vblock.0 + 1)).await?;
        let state = self.state.borrow();
        let Some(found) = state.slot(slot) else {
            return Err(DvolError::NotFound);
        };
        let mapping = found.map.get(vblock).unwrap_or_default();
        Ok(BlockMeta {
            lsn: mapping.lsn().unwrap_or(Lsn::ZERO),
            meta: mapping.data().map_or(0, |entry| entry.meta),
        })
    }
}

/// The blocks that a range of bytes touches; it must not be empty.
fn blocks_of(offset: u64, len: u64) -> Result<Range<VBlock>, DvolError> {
    match offset.checked_add(len) {
        Some(end) if len > 0 => Ok(VBlock::containing(offset)..VBlock(end.div_ceil(BLOCK_SIZE))),
        _ => Err(DvolError::OutOfRange),
    }
}
