//! Creating, changing and deleting dvols and layers. One operation at a time per journal, each
//! stable: answered when it is durable. Each is one unit, but for giving back what a smaller size
//! leaves over, and for deleting a dvol with its snapshots.

use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, DvolId, Epoch, LayerNo, Lsn, Slot, VBlock};
use smallvec::{SmallVec, smallvec};

use super::due::Purpose;
use super::error::DvolError;
use super::info::Handle;
use super::promise::{Content, Pledged};
use super::read::gather;
use super::segments::NO_SLOT;
use super::{Engine, Inner, Stability};
use crate::format::catalogue::{
    ATTRIBUTE_BYTES, CatalogueRecord, FLAG_READ_ONLY, NAME_MAX_BYTES, RecordKind,
};
use crate::format::record::Record;
use crate::planted::{Bug, planted};
use crate::v2p::Key;

/// Largest size of a dvol in bytes. NBD clients and the Linux kernel keep offsets in signed 64 bits.
pub const SIZE_MAX_BYTES: u64 = (1 << 63) - BLOCK_SIZE;

/// Behind the last block that a dvol can have: its address space is larger than its size may be.
const DVOL_END: VBlock = VBlock(u64::MAX / BLOCK_SIZE);

/// Snapshots that are deleted in one unit, at most; and while the next checkpoint has no room for the
/// pages of the catalogue that so many may lie in.
const LAYERS_PER_UNIT: usize = 1000;
const LAYERS_PER_UNIT_FULL: usize = 16;

/// What a new dvol shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateDvol {
    /// Its name: 1 to 128 bytes, without '@', '/' and control characters. Not used by another dvol
    /// of the journal.
    pub name: String,
    /// Its id; `None` draws one.
    pub id: Option<DvolId>,
    /// Its size in bytes, at most [`SIZE_MAX_BYTES`]. A clone is never smaller than its source.
    pub size_bytes: u64,
    /// Bytes to set aside for it; rounded up to blocks.
    pub reserved_bytes: u64,
}

/// What the layer above keeps with a dvol. The device layer doesn't look at it. A layer has what its dvol
/// had when it was taken; a rollback leaves the dvol's.
pub type Attributes = [u8; ATTRIBUTE_BYTES];

impl<P: Platform> Engine<P> {
    /// Creates an empty dvol.
    pub async fn create(&self, new: CreateDvol) -> Result<Handle, DvolError> {
        self.create_with(new, [0; ATTRIBUTE_BYTES]).await
    }

    /// Creates an empty dvol that has attributes from the beginning.
    pub async fn create_with(
        &self,
        new: CreateDvol,
        attributes: Attributes,
    ) -> Result<Handle, DvolError> {
        self.create_above(new, attributes, LayerNo(0)).await
    }

    /// The same, whose layers' numbers, also of its later snapshots, are above that one: those who know a number of
    /// another dvol with the same id find nothing by it here.
    pub async fn create_above(
        &self,
        new: CreateDvol,
        attributes: Attributes,
        above: LayerNo,
    ) -> Result<Handle, DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.check_new_name(&new.name)?;
        if new.size_bytes > SIZE_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        inner.settle_down().await?;
        let id = new.id.unwrap_or_else(|| inner.random_id());
        let reserved_blocks = new.reserved_bytes.div_ceil(BLOCK_SIZE);
        let wanted = Pledged::new(reserved_blocks, Content::Empty);
        let _pledge = inner.pledge([(NO_SLOT, wanted)]).await?;
        inner.clear_way(NO_SLOT, 1, Purpose::Changing).await?;
        let slot = inner.choose_slots(1)?[0];
        let layer = inner.next_layer(0)?.0.max(above.0.saturating_add(1));
        if layer == u32::MAX {
            return Err(DvolError::TooMany);
        }
        inner.recent_parts.forget();
        let record = CatalogueRecord {
            reserved_blocks,
            attributes,
            ..inner.new_record(&new.name, id, new.size_bytes, LayerNo(layer))
        };
        let record = Record::CreateDvol {
            slot,
            record: Box::new(record),
        };
        inner.commit_admin(vec![record], vec![slot]).await?;
        Ok(Handle {
            slot,
            id,
            layer: None,
        })
    }

    /// Changes a dvol's size. Shrinking gives the space behind the new end back, for good: growing
    /// shows zeros there, also if a crash came in between. If that was left half done, by a crash or
    /// with `NoSpace`, the next resize does it, also one to the same size.
    pub async fn resize(&self, handle: Handle, size_bytes: u64) -> Result<(), DvolError> {
        let inner = &self.inner;
        inner.resolve(handle)?;
        if handle.layer.is_some() {
            return Err(DvolError::ReadOnly);
        }
        if size_bytes > SIZE_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        let turn = inner.admin.take(1).await;
        inner.check_running()?;
        let smaller = inner.resolve(handle)?.size_bytes.min(size_bytes);
        // Alone behind the smaller end until all is done. A write that was accepted before would
        // otherwise map blocks there after they were given back; and a second resize would let
        // clients write where this one still gives back.
        let lock = inner
            .range_locks(handle.slot)
            .take(VBlock::containing(smaller)..DVOL_END, true)
            .await;
        let work = async move {
            let old_size = inner.resolve(handle)?.size_bytes;
            if size_bytes > old_size {
                // Before anybody can see it.
                inner.clear_behind(handle, old_size, old_size).await?;
            }
            inner
                .change_record(handle, |record| {
                    record.size_bytes = size_bytes;
                    Ok(())
                })
                .await?;
            // Giving back takes its time, and others need not wait for that.
            drop(turn);
            if size_bytes <= old_size {
                inner.clear_behind(handle, size_bytes, old_size).await?;
            }
            Ok(())
        };
        inner.held(smallvec![(handle.slot, lock)], work).await
    }

    /// Gives a dvol or snapshot another name.
    pub async fn rename(&self, handle: Handle, name: &str) -> Result<(), DvolError> {
        let inner = &self.inner;
        self.update(handle, |record| {
            match handle.layer {
                None => inner.check_new_name(name)?,
                Some(_) => inner.check_new_layer_name(handle.id, name)?,
            }
            record.name = name.to_owned();
            Ok(())
        })
        .await
    }

    /// Sets `bytes`, rounded up to blocks, aside for a dvol. What it has mapped itself counts as
    /// theirs already. `NoSpace` if the rest can't be promised.
    pub async fn set_reserved(&self, handle: Handle, bytes: u64) -> Result<(), DvolError> {
        let inner = &self.inner;
        let blocks = bytes.div_ceil(BLOCK_SIZE);
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.resolve(handle)?;
        let wanted = Pledged::new(blocks, Content::AsItIs);
        let _pledge = inner.pledge([(handle.slot, wanted)]).await?;
        inner
            .change_record(handle, |record| {
                record.reserved_blocks = blocks;
                Ok(())
            })
            .await
    }

    /// Makes a dvol refuse changes by clients, or accept them again.
    pub async fn set_read_only(&self, handle: Handle, read_only: bool) -> Result<(), DvolError> {
        self.update(handle, |record| {
            record.flags &= !FLAG_READ_ONLY;
            record.flags |= if read_only { FLAG_READ_ONLY } else { 0 };
            Ok(())
        })
        .await
    }

    /// Raises a dvol's epoch: writers with an older one are refused from now on, and LSNs go on in
    /// the new epoch.
    pub async fn set_epoch(&self, handle: Handle, epoch: Epoch) -> Result<(), DvolError> {
        if epoch > Epoch::MAX {
            return Err(DvolError::Invalid);
        }
        let inner = &self.inner;
        self.update(handle, |record| {
            if epoch < record.epoch {
                return Err(DvolError::StaleEpoch);
            }
            inner.enter_epoch(handle, record, epoch);
            Ok(())
        })
        .await
    }

    /// Has a dvol's history begin with an epoch above its own: what it is made of is a copy of another one, whose LSNs
    /// say nothing here. What changed since an LSN of an earlier epoch is forgotten.
    pub async fn begin_history(&self, handle: Handle, epoch: Epoch) -> Result<(), DvolError> {
        if epoch > Epoch::MAX {
            return Err(DvolError::Invalid);
        }
        let inner = &self.inner;
        self.update(handle, |record| {
            if epoch <= record.epoch {
                return Err(DvolError::StaleEpoch);
            }
            record.floor = Lsn::new(epoch, 0);
            inner.enter_epoch(handle, record, epoch);
            Ok(())
        })
        .await
    }

    /// Takes a snapshot of each of these dvols, all in the same instant.
    pub async fn snapshot(&self, dvols: &[(Handle, String)]) -> Result<Vec<Handle>, DvolError> {
        self.snapshot_at(dvols, self.inner.platform.wall_clock_ns())
            .await
    }

    /// The same, as taken at this time, in nanoseconds since 1970: of a copy that time of the original.
    pub async fn snapshot_at(
        &self,
        dvols: &[(Handle, String)],
        created_ns: u64,
    ) -> Result<Vec<Handle>, DvolError> {
        self.snapshot_of(dvols, created_ns, None).await
    }

    /// The same of one dvol, with other attributes in the snapshot than the dvol has behind it: the first of these two, and the second.
    pub async fn snapshot_between(
        &self,
        dvol: Handle,
        name: &str,
        created_ns: u64,
        attributes: [Attributes; 2],
    ) -> Result<Handle, DvolError> {
        let dvols = [(dvol, name.to_owned())];
        let taken = self
            .snapshot_of(&dvols, created_ns, Some(attributes))
            .await?;
        taken.first().copied().ok_or(DvolError::Invalid)
    }

    async fn snapshot_of(
        &self,
        dvols: &[(Handle, String)],
        created_ns: u64,
        attributes: Option<[Attributes; 2]>,
    ) -> Result<Vec<Handle>, DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        let unique: BTreeSet<Slot> = dvols.iter().map(|(h, _)| h.slot).collect();
        if unique.len() != dvols.len() || dvols.is_empty() {
            return Err(DvolError::Invalid);
        }
        for (handle, name) in dvols {
            inner.resolve(*handle)?;
            if handle.layer.is_some() {
                return Err(DvolError::Invalid);
            }
            inner.check_new_layer_name(handle.id, name)?;
        }
        let _pledge = inner
            .pledge_anew(dvols.iter().map(|(h, _)| (*h, *h)))
            .await?;
        let pages = 2 * dvols.len() as u64;
        inner.clear_way(NO_SLOT, pages, Purpose::Changing).await?;
        for (handle, _) in dvols {
            inner.check_not_journaled(*handle)?;
        }
        let layer_slots = inner.choose_slots(dvols.len())?;
        let mut records = Vec::new();
        let mut slots = Vec::new();
        let mut layers = Vec::new();
        let given = |at: usize| {
            let mut given = Vec::new();
            for (handle, _) in dvols.iter().filter(|_| attributes.is_some()) {
                given.push(Record::Attributes {
                    slot: handle.slot,
                    lsn: inner.take_lsn(*handle)?,
                    attributes: Box::new(attributes.map_or([0; ATTRIBUTE_BYTES], |two| two[at])),
                });
            }
            Ok::<_, DvolError>(given)
        };
        records.extend(given(0)?);
        for (index, ((handle, name), layer_slot)) in dvols.iter().zip(&layer_slots).enumerate() {
            let head = inner.next_layer(index as u32)?.0;
            layers.push(Handle {
                slot: *layer_slot,
                id: handle.id,
                layer: Some(inner.record(*handle)?.layer),
            });
            slots.extend([handle.slot, *layer_slot]);
            records.push(Record::Snapshot {
                slot: handle.slot,
                layer_slot: *layer_slot,
                head,
                created_ns,
                name: name.clone(),
            });
        }
        records.extend(given(1)?);
        inner.commit_admin(records, slots).await?;
        Ok(layers)
    }

    /// Makes a new dvol with the content of a snapshot, or of a dvol as it is now. Copies nothing. Its
    /// attributes are zeros.
    pub async fn clone_of(&self, source: Handle, new: CreateDvol) -> Result<Handle, DvolError> {
        self.clone_with(source, new, [0; ATTRIBUTE_BYTES]).await
    }

    /// The same, with attributes from the beginning.
    pub async fn clone_with(
        &self,
        source: Handle,
        new: CreateDvol,
        attributes: Attributes,
    ) -> Result<Handle, DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.resolve(source)?;
        inner.check_new_name(&new.name)?;
        let source_record = inner.record(source)?;
        let id = new.id.unwrap_or_else(|| inner.random_id());
        let reserved_blocks = new.reserved_bytes.div_ceil(BLOCK_SIZE);
        // Of a head, a snapshot is taken.
        let again = match source.layer {
            Some(_) => 0,
            None => source_record.reserved_blocks,
        };
        let pledged = |reserved| Pledged::new(reserved, Content::SharedWith(source.slot));
        let wanted = [
            (NO_SLOT, pledged(reserved_blocks)),
            (source.slot, pledged(again)),
        ];
        let _pledge = inner.pledge(wanted).await?;
        inner.clear_way(NO_SLOT, 3, Purpose::Changing).await?;
        inner.check_not_journaled(source)?;
        if new.id.is_some() {
            // One that is drawn was never there before.
            inner.recent_parts.forget_all();
        }
        let size = source_record.size_bytes.max(new.size_bytes);
        let mut records = Vec::new();
        let mut slots = vec![source.slot];
        let parent = match source.layer {
            Some(_) => source.slot,
            None => {
                // A hidden snapshot, deleted in the same instant: it goes when one child remains.
                let layer_slot = inner.choose_slots(1)?[0];
                let head = inner.next_layer(0)?.0;
                let created_ns = inner.platform.wall_clock_ns();
                let name = String::new();
                let slot = source.slot;
                records.push(Record::Snapshot {
                    slot,
                    layer_slot,
                    head,
                    created_ns,
                    name,
                });
                records.push(Record::DeleteLayer { slot: layer_slot });
                slots.push(layer_slot);
                layer_slot
            }
        };
        let slot = inner.choose_slots(1)?[0];
        slots.push(slot);
        let layer = inner.next_layer(records.len() as u32)?;
        let record = CatalogueRecord {
            // Its LSN and floor are those of the parent when this is applied.
            parent: Some(parent),
            gap: source_record.gap,
            older_gap: source_record.older_gap,
            epoch: source_record.epoch,
            reserved_blocks,
            attributes,
            ..inner.new_record(&new.name, id, size, layer)
        };
        records.push(Record::CreateDvol {
            slot,
            record: Box::new(record),
        });
        inner.commit_admin(records, slots).await?;
        Ok(Handle {
            slot,
            id,
            layer: None,
        })
    }

    /// Brings a dvol back to one of its snapshots. What was written since is gone; LSNs go on.
    pub async fn roll_back(&self, dvol: Handle, to: Handle) -> Result<(), DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.resolve(dvol)?;
        let target = inner.resolve(to)?;
        if dvol.layer.is_some() || to.layer.is_none() || dvol.id != to.id {
            return Err(DvolError::Invalid);
        }
        let _pledge = inner.pledge_anew([(dvol, to)]).await?;
        let end = VBlock(flagstone_types::unit::VBLOCKS_MAX);
        // Alone on the whole dvol: what is under way ends before, what comes later sees the
        // snapshot.
        let lock = inner
            .range_locks(dvol.slot)
            .take(VBlock(0)..end, true)
            .await;
        inner.clear_way(dvol.slot, 3, Purpose::Changing).await?;
        let discard_slot = inner.choose_slots(1)?[0];
        let head = inner.next_layer(0)?.0;
        let lsn = inner.take_lsn(dvol)?;
        let slots = vec![dvol.slot, to.slot, discard_slot];
        let (slot, to, size_bytes) = (dvol.slot, to.slot, target.size_bytes);
        let record = Record::Rollback {
            slot,
            to,
            discard_slot,
            head,
            lsn,
            size_bytes,
        };
        let work = inner.commit_admin(vec![record], slots);
        inner.held(smallvec![(slot, lock)], work).await
    }

    /// Deletes a dvol, with its snapshots if `with_snapshots`. Without that, having snapshots is an
    /// error. Its space comes back in the background.
    pub async fn delete(&self, dvol: Handle, with_snapshots: bool) -> Result<(), DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.resolve(dvol)?;
        if dvol.layer.is_some() {
            return Err(DvolError::Invalid);
        }
        let layers: Vec<Slot> = {
            let state = inner.state.borrow();
            state.layers_of(dvol.id).map(|(_, slot)| slot).collect()
        };
        if !layers.is_empty() && !with_snapshots {
            return Err(DvolError::Busy);
        }
        let end = VBlock(flagstone_types::unit::VBLOCKS_MAX);
        let closing: Vec<Slot> = layers.iter().copied().chain([dvol.slot]).collect();
        inner.closing.borrow_mut().extend(closing.iter().copied());
        let lock = inner
            .range_locks(dvol.slot)
            .take(VBlock(0)..end, true)
            .await;
        let mut result = Ok(());
        // A unit fits a group, and a checkpoint has room for its pages of the catalogue: many
        // snapshots are several units, the dvol itself comes last.
        let part_max = match inner.is_clear(dvol.slot, LAYERS_PER_UNIT as u64, Purpose::Giving) {
            true => LAYERS_PER_UNIT,
            false => LAYERS_PER_UNIT_FULL,
        };
        for part in layers.chunks(part_max) {
            let pages = part.len() as u64;
            result = result.and(inner.clear_way(dvol.slot, pages, Purpose::Giving).await);
            if result.is_err() {
                break;
            }
            let records = part
                .iter()
                .map(|&slot| Record::DeleteLayer { slot })
                .collect();
            result = inner.commit_admin(records, part.to_vec()).await;
        }
        if result.is_ok() {
            result = inner.clear_way(dvol.slot, 1, Purpose::Giving).await;
        }
        if result.is_ok() {
            let record = Record::DeleteDvol { slot: dvol.slot };
            result = inner.commit_admin(vec![record], vec![dvol.slot]).await;
        }
        drop(lock);
        inner.forget(&closing, result.is_ok());
        if result.is_ok() {
            inner.journaled_dvols.borrow_mut().remove(&dvol.id);
        }
        result
    }

    /// Deletes a snapshot. Clones of it and other snapshots are not touched; its space comes back
    /// in the background, once at most one layer stands on it.
    pub async fn delete_layer(&self, layer: Handle) -> Result<(), DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.resolve(layer)?;
        if layer.layer.is_none() {
            return Err(DvolError::Invalid);
        }
        inner.closing.borrow_mut().insert(layer.slot);
        let record = Record::DeleteLayer { slot: layer.slot };
        let mut result = inner.clear_way(layer.slot, 1, Purpose::Giving).await;
        if result.is_ok() {
            result = inner.commit_admin(vec![record], vec![layer.slot]).await;
        }
        inner.forget(&[layer.slot], result.is_ok());
        result
    }

    /// Waits until the space of everything deleted so far is free.
    pub async fn wait_until_reaped(&self) -> Result<(), DvolError> {
        self.inner.reaping_done().await
    }

    /// Makes a checkpoint now.
    pub async fn checkpoint(&self) -> Result<(), DvolError> {
        self.inner.checkpoint_now().await
    }

    /// Changes fields of a dvol's or layer's record, as `change` says, which also checks what must
    /// hold: nothing else changes records meanwhile.
    async fn update(
        &self,
        handle: Handle,
        change: impl FnOnce(&mut CatalogueRecord) -> Result<(), DvolError>,
    ) -> Result<(), DvolError> {
        let inner = &self.inner;
        let _turn = inner.admin.take(1).await;
        inner.check_running()?;
        inner.change_record(handle, change).await
    }
}

impl<P: Platform> Inner<P> {
    /// The same for who has the turn.
    async fn change_record(
        self: &Rc<Self>,
        handle: Handle,
        change: impl FnOnce(&mut CatalogueRecord) -> Result<(), DvolError>,
    ) -> Result<(), DvolError> {
        self.clear_way(handle.slot, 1, Purpose::Giving).await?;
        self.resolve(handle)?;
        let mut record = self.record(handle)?;
        change(&mut record)?;
        record.map = None;
        let record = Record::Update {
            slot: handle.slot,
            record: Box::new(record),
        };
        self.commit_admin(vec![record], vec![handle.slot]).await
    }

    /// LSNs go on in this epoch.
    fn enter_epoch(&self, handle: Handle, record: &mut CatalogueRecord, epoch: Epoch) {
        record.epoch = epoch;
        record.lsn = record.lsn.max(Lsn::new(epoch, 0));
        // What is behind this in the journal has to have a higher LSN, though this is applied later.
        let mut given = self.given_lsns.borrow_mut();
        let last = given.entry(handle.slot).or_insert(Lsn::ZERO);
        *last = record.lsn.max(*last);
    }

    /// Gives back what lies behind `end_bytes`, where the dvol ended at `old_end_bytes`. The caller has
    /// everything from the block of `end_bytes` on to itself. Behind the old end, too: an earlier
    /// shrinking may have been kept from its own end by a crash, or for want of space.
    async fn clear_behind(
        self: &Rc<Self>,
        handle: Handle,
        end_bytes: u64,
        old_end_bytes: u64,
    ) -> Result<(), DvolError> {
        // First, so that what is given back is there for the zeros.
        let first = VBlock(end_bytes.div_ceil(BLOCK_SIZE));
        let shrinks = end_bytes < old_end_bytes;
        let old_end = VBlock(old_end_bytes.div_ceil(BLOCK_SIZE));
        if first < old_end {
            self.unmap(handle, first..old_end, Stability::Stable)
                .await?;
        }
        // Not together with the others: what was deallocated there before did not change now.
        let behind = first.max(old_end)..DVOL_END;
        if self.has_mapped(handle.slot, behind.clone()).await? {
            self.unmap(handle, behind, Stability::Stable).await?;
        }
        let part = (end_bytes % BLOCK_SIZE) as usize;
        let last = VBlock::containing(end_bytes)..first;
        // A hole stays one: zeros would take space.
        if part == 0 || !self.has_mapped(handle.slot, last.clone()).await? {
            return Ok(());
        }
        let has_rest = shrinks || {
            let pieces = self
                .read_blocks(self.usual_path(), handle.slot, last.clone())
                .await?;
            let block = gather(self, &pieces, BLOCK_SIZE as usize);
            block[part..].iter().any(|&byte| byte != 0)
        };
        if has_rest {
            let zeros = self.platform.buffers().zeros(BLOCK_SIZE as usize - part);
            self.write_part(handle, last, end_bytes, &zeros).await?;
        }
        Ok(())
    }

    /// Of a dvol to which data is written that is in the journal alone no snapshot is taken: a checkpoint couldn't give that
    /// blocks in a map that others share nodes with. Nothing may be waited for between this and the submission of what depends on it.
    fn check_not_journaled(&self, handle: Handle) -> Result<(), DvolError> {
        let is_head = handle.layer.is_none();
        match is_head && self.journaled_dvols.borrow().contains(&handle.id) {
            true => Err(DvolError::Busy),
            false => Ok(()),
        }
    }

    /// From now on there is no snapshot of it. [`DvolError::Invalid`] if it has layers, is about to get one, or isn't reserved as a whole.
    pub(super) fn begin_journaling(&self, handle: Handle) -> Result<(), DvolError> {
        let has_parent = self.record(handle)?.parent.is_some();
        let gets_one = {
            let commit = self.commit.borrow();
            let is_snapshot = |r: &Record| matches!(r, Record::Snapshot { .. });
            let mut units = commit.units_of(handle.slot);
            units.any(|unit| unit.records.iter().any(is_snapshot))
        };
        if has_parent || gets_one || !self.is_all_reserved(handle)? {
            return Err(DvolError::Invalid);
        }
        self.journaled_dvols.borrow_mut().insert(handle.id);
        Ok(())
    }

    pub(super) async fn commit_admin(
        self: &Rc<Self>,
        records: Vec<Record>,
        slots: Vec<Slot>,
    ) -> Result<(), DvolError> {
        let unique: BTreeSet<Slot> = slots.into_iter().collect();
        let slots: SmallVec<[Slot; 2]> = unique.into_iter().collect();
        // Whoever waited for ranges or a turn meanwhile may come after the last checkpoint's picture.
        let submitted = self
            .check_running()
            .and_then(|()| self.submit(records.into(), slots, true, SmallVec::new()));
        let result = match submitted {
            Ok(submitted) => submitted.answer.await.unwrap_or(Err(DvolError::Fenced)),
            Err(error) => Err(error),
        };
        self.chosen_slots.borrow_mut().clear();
        result
    }

    /// Free slots for an operation under way. The admin budget makes it the only one.
    fn choose_slots(&self, count: usize) -> Result<Vec<Slot>, DvolError> {
        let mut chosen = self.chosen_slots.borrow_mut();
        let slots = self
            .state
            .borrow()
            .free_slots(count, &chosen)
            .ok_or(DvolError::TooMany)?;
        chosen.extend(slots.iter().map(|s| s.0));
        // A new dvol does not go on where the one before it in the slot ended: so far ahead of what
        // is on the device, it would give LSNs out twice after a crash.
        let mut given = self.given_lsns.borrow_mut();
        for slot in &slots {
            if !planted(Bug::LsnOfSlotKept) {
                given.remove(slot);
            }
        }
        Ok(slots)
    }

    fn next_layer(&self, ahead: u32) -> Result<LayerNo, DvolError> {
        let next = self.state.borrow().next_layer;
        next.checked_add(ahead)
            .filter(|&n| n < u32::MAX)
            .map(LayerNo)
            .ok_or(DvolError::TooMany)
    }

    fn new_record(
        &self,
        name: &str,
        id: DvolId,
        size_bytes: u64,
        layer: LayerNo,
    ) -> CatalogueRecord {
        CatalogueRecord {
            kind: RecordKind::Dvol,
            flags: 0,
            name: name.to_owned(),
            id,
            size_bytes,
            created_ns: self.platform.wall_clock_ns(),
            lsn: Lsn::ZERO,
            floor: Lsn::ZERO,
            gap: (Lsn::ZERO, Lsn::ZERO),
            older_gap: (Lsn::ZERO, Lsn::ZERO),
            epoch: Epoch(0),
            lsn_incarnation: self.state.borrow().incarnation,
            layer,
            parent: None,
            reserved_blocks: 0,
            inherited_blocks: 0,
            mapped_blocks: 0,
            reap_cursor: Key(0),
            map: None,
            attributes: [0; ATTRIBUTE_BYTES],
        }
    }

    fn random_id(&self) -> DvolId {
        let high = u128::from(self.platform.random_u64());
        DvolId(high << 64 | u128::from(self.platform.random_u64()))
    }

    pub(super) fn record(&self, handle: Handle) -> Result<CatalogueRecord, DvolError> {
        let state = self.state.borrow();
        state
            .slot(handle.slot)
            .map(|s| s.record.clone())
            .ok_or(DvolError::NotFound)
    }

    fn check_new_name(&self, name: &str) -> Result<(), DvolError> {
        check_name(name)?;
        match self.state.borrow().dvol_named(name) {
            Some(_) => Err(DvolError::AlreadyExists),
            None => Ok(()),
        }
    }

    fn check_new_layer_name(&self, dvol: DvolId, name: &str) -> Result<(), DvolError> {
        check_name(name)?;
        match self.state.borrow().layer_named(dvol, name) {
            Some(_) => Err(DvolError::AlreadyExists),
            None => Ok(()),
        }
    }

    /// Lets go of what is kept per slot once it has been deleted, or could not be: then those who wait for its locks have to meet those who
    /// come later.
    fn forget(&self, slots: &[Slot], is_deleted: bool) {
        let mut closing = self.closing.borrow_mut();
        let mut locks = self.locks.borrow_mut();
        for slot in slots {
            closing.remove(slot);
            if is_deleted {
                locks.remove(slot);
            }
        }
    }
}

/// Names are 1 to 128 bytes and leave out what addresses use.
fn check_name(name: &str) -> Result<(), DvolError> {
    let bad = |c: char| c == '@' || c == '/' || c.is_control();
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name.contains(bad) {
        return Err(DvolError::Invalid);
    }
    Ok(())
}
