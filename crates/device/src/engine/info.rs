//! What the engine tells about its dvols, layers and space.

use std::cell::Cell;
use std::collections::BTreeSet;

use flagstone_platform::{BlockDevice, Platform};
use flagstone_types::{BLOCK_SIZE, DvolId, Epoch, LayerNo, Lsn, Slot};

use super::admin::Attributes;
use super::error::DvolError;
use super::{Engine, Inner};
use crate::cache::Part;
use crate::format::catalogue::{CatalogueRecord, FLAG_READ_ONLY, RecordKind};
use crate::state::{SlotState, State};

/// Names an open dvol or layer. Stays valid until it is deleted; a reused slot is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// Where it is in the catalogue.
    pub slot: Slot,
    /// The dvol's id (for a layer: of the dvol it was taken from).
    pub id: DvolId,
    /// The layer's number; `None` for a dvol.
    pub layer: Option<LayerNo>,
}

/// A dvol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DvolInfo {
    /// To open it.
    pub handle: Handle,
    /// Its name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes mapped, shared ones included.
    pub mapped_bytes: u64,
    /// Bytes mapped that are shared with layers below, at most.
    pub inherited_bytes: u64,
    /// Bytes set aside for it, in use or not.
    pub reserved_bytes: u64,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: u64,
    /// The last LSN given out, of what has been applied.
    pub lsn: Lsn,
    /// Fencing number.
    pub epoch: Epoch,
    /// True if clients can't change it.
    pub read_only: bool,
    /// What the layer above keeps with it.
    pub attributes: Attributes,
    /// For a clone: whose layer it stands on, below snapshots of its own, and that layer's name. The name
    /// is empty if the dvol was cloned as it was, or the snapshot has been deleted since.
    pub origin: Option<(DvolId, String)>,
    /// Number of its snapshots.
    pub snapshot_count: usize,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerInfo {
    /// To open it.
    pub handle: Handle,
    /// Its name.
    pub name: String,
    /// Size in bytes when it was taken.
    pub size_bytes: u64,
    /// Bytes mapped, shared ones included.
    pub mapped_bytes: u64,
    /// When it was taken, nanoseconds since 1970.
    pub created_ns: u64,
    /// LSN of the last change in it.
    pub lsn: Lsn,
    /// What the layer above kept with the dvol when it was taken.
    pub attributes: Attributes,
    /// What stands on it of other dvols: clones, or their oldest layers. What is deleted counts as long
    /// as something that isn't stands on it.
    pub clones: usize,
}

/// A dvol: what is asked for often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DvolBrief {
    /// To open it.
    pub handle: Handle,
    /// Bytes mapped, shared ones included.
    pub mapped_bytes: u64,
    /// What the layer above keeps with it.
    pub attributes: Attributes,
}

/// How a journal's space is used, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceInfo {
    /// What can be handed out at all on the device.
    pub capacity_bytes: u64,
    /// In use by this journal's data and metadata, as of what has been applied.
    pub used_bytes: u64,
    /// Segments owned by this journal.
    pub owned_segments: u64,
    /// Neither used nor waiting to be reusable: in this journal's segments, in the one it is just
    /// taking, and in free ones.
    pub open_bytes: u64,
    /// In segments that no journal owns.
    pub unowned_bytes: u64,
    /// Of the open bytes: kept for checkpoints, kept for overwrites of dvols with a reservation, and
    /// promised to dvols. May be more than what is open.
    pub kept_bytes: u64,
    /// Ring blocks in use, in bytes.
    pub ring_used_bytes: u64,
    /// Size of the ring, in bytes.
    pub ring_bytes: u64,
    /// Map nodes in memory, in bytes.
    pub map_memory_bytes: u64,
    /// Blocks of data in the core's cache, in bytes.
    pub cache_bytes: u64,
    /// Layers that are deleted and not reaped yet.
    pub hidden_layers: usize,
    /// What holds the device (a file's filesystem, a thin pool) had no room when it was last asked for
    /// some.
    pub host_full: bool,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counts since the start.
        #[derive(Default, Debug)]
        pub struct EngineCounters {
            $($(#[doc = $doc])* pub $name: Cell<u64>,)*
        }

        impl EngineCounters {
            /// Every counter by name.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get())),*]
            }

            /// What a counter of that name counts, in a sentence; empty if there is none.
            pub fn help(name: &str) -> &'static str {
                $(if name == stringify!($name) {
                    return concat!($($doc),*).trim_ascii_start();
                })*
                ""
            }
        }
    };
}

counters! {
    /// Journal groups written.
    groups,
    /// Bytes of the journal groups written.
    group_bytes,
    /// Bytes of zeros written over segments of a file before anything else is written there.
    prewritten_bytes,
    /// Segments of a file that were needed before zeros had been written over them.
    segments_used_early,
    /// Flushes of the device.
    flushes,
    /// Flushes asked for by clients.
    flush_requests,
    /// Pieces of data written to the device: of a write as many as the places that it lies in. What lies side by side goes there in one transfer.
    data_writes,
    /// Checkpoints made.
    checkpoints,
    /// Checkpoints made because nothing had happened for a while.
    idle_checkpoints,
    /// Steps in the background that did not wait for their turn at the device any longer.
    background_hurried,
    /// Time for which steps in the background waited for their turn at the device.
    background_waited_ns,
    /// Time that the last checkpoint took.
    checkpoint_ns,
    /// Time for which changes waited because the ring was full.
    journal_full_ns,
    /// Map nodes written.
    nodes_written,
    /// Map nodes read.
    nodes_read,
    /// Map nodes looked at to see whether they can be let go.
    nodes_looked_at,
    /// Reads of data that the device failed.
    read_errors,
    /// Blocks whose bytes did not match their checksum.
    corrupt_blocks,
    /// Blocks that were asked for and were in the cache.
    cache_hits,
    /// Blocks that were asked for and had to be read, of reads that go through the cache.
    cache_misses,
    /// Blocks that left the cache to make room for others.
    cache_evictions,
    /// Blocks found in the cache with another checksum than their mapping's. Never, or this is wrong.
    cache_stale,
    /// Blocks freed by reaping deleted layers.
    reaped_blocks,
    /// Tombstones forgotten: deallocations too long ago to tell of.
    tombstones_forgotten,
    /// Empty segments given back to the device, for other journals to take.
    segments_released,
    /// Segments whose bitmaps were found damaged: their free blocks stay unused.
    bitmaps_lost,
    /// Scrubs that the background has finished.
    scrubs,
    /// Blocks that scrubs have read and checked.
    scrubbed_blocks,
    /// Blocks and map nodes that scrubs found damaged or unreadable.
    scrub_findings,
}

/// What a request needs to know of a dvol or layer.
pub(super) struct Resolved {
    pub size_bytes: u64,
    pub read_only: bool,
    pub lsn: Lsn,
}

impl<P: Platform> Inner<P> {
    /// Looks a handle up; it may have been deleted meanwhile.
    pub(super) fn resolve(&self, handle: Handle) -> Result<Resolved, DvolError> {
        let state = self.state.borrow();
        let Some(found) = state.slot(handle.slot) else {
            return Err(DvolError::NotFound);
        };
        let record = &found.record;
        let same = record.id == handle.id
            && !found.is_hidden()
            && match handle.layer {
                None => record.kind == RecordKind::Dvol,
                Some(no) => record.kind == RecordKind::Layer && record.layer == no,
            };
        if !same || self.closing.borrow().contains(&handle.slot) {
            return Err(DvolError::NotFound);
        }
        Ok(Resolved {
            size_bytes: record.size_bytes,
            read_only: record.flags & FLAG_READ_ONLY != 0,
            lsn: record.lsn,
        })
    }
}

impl<P: Platform> Engine<P> {
    /// The dvol of that name.
    pub fn dvol(&self, name: &str) -> Option<DvolInfo> {
        let state = self.inner.state.borrow();
        let slot = state.dvol_named(name)?;
        state.slot(slot).map(|found| self.dvol_info(slot, found))
    }

    /// The dvol with this id, called by its name, or by its id as text: another journal may have a
    /// dvol of the same name.
    pub fn dvol_with(&self, id: DvolId, called: &str) -> Option<DvolInfo> {
        if let Some(named) = self.dvol(called).filter(|info| info.handle.id == id) {
            return Some(named);
        }
        if id.to_string() != called {
            return None;
        }
        let state = self.inner.state.borrow();
        let mut dvols = state.slots().filter(|(_, s)| s.is_dvol());
        let (slot, found) = dvols.find(|(_, s)| s.record.id == id)?;
        Some(self.dvol_info(slot, found))
    }

    /// All dvols by name.
    pub fn dvols(&self) -> Vec<DvolInfo> {
        let state = self.inner.state.borrow();
        let infos = state.dvols().filter_map(|(_, slot)| {
            let found = state.slot(slot)?;
            Some(self.dvol_info(slot, found))
        });
        infos.collect()
    }

    fn dvol_info(&self, slot: Slot, found: &SlotState) -> DvolInfo {
        let state = self.inner.state.borrow();
        let record = &found.record;
        DvolInfo {
            handle: Handle {
                slot,
                id: record.id,
                layer: None,
            },
            name: record.name.clone(),
            size_bytes: record.size_bytes,
            mapped_bytes: record.mapped_blocks * BLOCK_SIZE,
            inherited_bytes: record.inherited_blocks * BLOCK_SIZE,
            reserved_bytes: record.reserved_blocks * BLOCK_SIZE,
            created_ns: record.created_ns,
            lsn: record.lsn,
            epoch: record.epoch,
            read_only: record.flags & FLAG_READ_ONLY != 0,
            attributes: record.attributes,
            origin: origin_of(&state, record),
            snapshot_count: state.layers_of(record.id).count(),
        }
    }

    /// Shows every dvol with its attributes.
    pub fn visit_dvols(&self, mut visit: impl FnMut(Handle, &Attributes)) {
        let state = self.inner.state.borrow();
        for (_, slot) in state.dvols() {
            let Some(found) = state.slot(slot) else {
                continue;
            };
            let handle = Handle {
                slot,
                id: found.record.id,
                layer: None,
            };
            visit(handle, &found.record.attributes);
        }
    }

    /// Shows dvols whose names come behind one, as many as `count`, with their names. Returns how many.
    pub fn visit_dvols_behind(
        &self,
        name: &str,
        count: usize,
        mut visit: impl FnMut(&str, Handle, &Attributes),
    ) -> usize {
        let state = self.inner.state.borrow();
        let mut visited = 0;
        for (name, slot) in state.dvols_behind(name).take(count) {
            visited += 1;
            if let Some(found) = state.slot(slot) {
                let id = found.record.id;
                let layer = None;
                visit(name, Handle { slot, id, layer }, &found.record.attributes);
            }
        }
        visited
    }

    /// What there is of a dvol, without what takes longer the more snapshots it has.
    pub fn brief(&self, name: &str) -> Option<DvolBrief> {
        let state = self.inner.state.borrow();
        let slot = state.dvol_named(name)?;
        let record = &state.slot(slot)?.record;
        Some(DvolBrief {
            handle: Handle {
                slot,
                id: record.id,
                layer: None,
            },
            mapped_bytes: record.mapped_blocks * BLOCK_SIZE,
            attributes: record.attributes,
        })
    }

    /// Of the bytes of [`own_bytes_of`](Engine::own_bytes_of) those that the dvol itself has: what it does not share
    /// with any layer. Takes the same time whatever there is.
    pub fn head_bytes_of(&self, handle: Handle) -> Result<u64, DvolError> {
        let record = self.inner.record(handle)?;
        Ok(record.mapped_blocks.saturating_sub(record.inherited_blocks) * BLOCK_SIZE)
    }

    /// How many layers the background has taken out since the start. As long as it is the same, what dvols'
    /// layers have of their own only changes with what is asked of the dvol.
    pub fn layers_gone(&self) -> u64 {
        self.inner.state.borrow().layers_gone
    }

    /// Bytes that a dvol and the layers of its own that it stands on have, deleted ones that others need included:
    /// each what it does not share with what is below. At least: what only a deleted layer had brought is
    /// left out as long as there is one below it.
    pub fn own_bytes_of(&self, handle: Handle) -> Result<u64, DvolError> {
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        let mut blocks = 0;
        let mut at = Some(handle.slot);
        // This ends: each layer is older than what stands on it.
        while let Some(found) = at.and_then(|slot| state.slot(slot)) {
            if found.record.id != handle.id {
                break;
            }
            let record = &found.record;
            blocks += record.mapped_blocks.saturating_sub(record.inherited_blocks);
            at = record.parent;
        }
        Ok(blocks * BLOCK_SIZE)
    }

    /// Bytes that a copy of a dvol with its snapshots has, at least. What snapshots share is in it once, what one has and the next one hasn't
    /// besides, and of a clone also what it shares with its source. What only clones of it need any more isn't.
    pub fn copy_bytes_of(&self, handle: Handle) -> Result<u64, DvolError> {
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        let snapshots: BTreeSet<Slot> = state.layers_of(handle.id).map(|(_, slot)| slot).collect();
        let (mut above_blocks, mut copied_blocks, mut now_blocks) = (0, 0, None);
        let mut at = Some(handle.slot);
        while let Some((slot, found)) = at.and_then(|slot| Some((slot, state.slot(slot)?))) {
            let record = &found.record;
            if record.id != handle.id {
                break;
            }
            if now_blocks.is_none() || snapshots.contains(&slot) {
                // The lowest one is copied whole.
                copied_blocks = above_blocks + record.mapped_blocks;
                above_blocks += record.mapped_blocks.saturating_sub(record.inherited_blocks);
            }
            now_blocks = now_blocks.or(Some(record.mapped_blocks));
            at = record.parent;
        }
        Ok(copied_blocks.max(now_blocks.unwrap_or(0)) * BLOCK_SIZE)
    }

    /// Bytes that a dvol has mapped, and bytes that are set aside for it, of what has been applied.
    pub fn usage_of(&self, handle: Handle) -> Result<(u64, u64), DvolError> {
        self.inner.resolve(handle)?;
        let record = self.inner.record(handle)?;
        let (mapped, reserved) = (record.mapped_blocks, record.reserved_blocks);
        Ok((mapped * BLOCK_SIZE, reserved * BLOCK_SIZE))
    }

    /// Name of the dvol with this id, if this journal has it.
    pub fn dvol_name(&self, id: DvolId) -> Option<String> {
        let state = self.inner.state.borrow();
        let mut dvols = state
            .slots()
            .filter(|(_, s)| s.is_dvol() && s.record.id == id);
        dvols.next().map(|(_, s)| s.record.name.clone())
    }

    /// What a slot holds, and its name: that of a snapshot within its dvol, empty if it is deleted.
    pub fn named(&self, slot: Slot) -> Option<(Handle, String)> {
        let state = self.inner.state.borrow();
        let record = &state.slot(slot)?.record;
        let handle = Handle {
            slot,
            id: record.id,
            layer: (record.kind == RecordKind::Layer).then_some(record.layer),
        };
        Some((handle, record.name.clone()))
    }

    /// A dvol's snapshot.
    pub fn layer(&self, dvol: DvolId, name: &str) -> Option<LayerInfo> {
        let state = self.inner.state.borrow();
        let slot = state.layer_named(dvol, name)?;
        state
            .slot(slot)
            .map(|found| layer_info(&state, slot, found))
    }

    /// A dvol's snapshots by name.
    pub fn layers(&self, dvol: DvolId) -> Vec<LayerInfo> {
        let state = self.inner.state.borrow();
        let infos = state.layers_of(dvol).filter_map(|(_, slot)| {
            let found = state.slot(slot)?;
            Some(layer_info(&state, slot, found))
        });
        infos.collect()
    }

    /// The first of a dvol's snapshots by name that is this one or comes behind it.
    pub fn layer_from(&self, dvol: DvolId, name: &str) -> Option<LayerInfo> {
        let state = self.inner.state.borrow();
        let slot = state.layers_from(dvol, name).next()?;
        let found = state.slot(slot)?;
        Some(layer_info(&state, slot, found))
    }

    /// The last of a dvol's snapshots by name.
    pub fn last_layer(&self, dvol: DvolId) -> Option<LayerInfo> {
        let state = self.inner.state.borrow();
        let slot = state.layers_from(dvol, "").next_back()?;
        let found = state.slot(slot)?;
        Some(layer_info(&state, slot, found))
    }

    /// Bytes that can be handed out at all on the device.
    pub fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_blocks * BLOCK_SIZE
    }

    /// Bytes that are open to be used and that nothing is kept or promised for. Takes the same time however many dvols there are.
    pub fn free_bytes(&self) -> u64 {
        let inner = &self.inner;
        let open = inner.open_blocks();
        let kept = inner.kept_blocks();
        open.saturating_sub(kept) * BLOCK_SIZE
    }

    /// How space is used.
    pub fn space(&self) -> SpaceInfo {
        let inner = &self.inner;
        let state = inner.state.borrow();
        let journal = inner.journal.borrow();
        SpaceInfo {
            capacity_bytes: self.capacity_bytes(),
            used_bytes: state.pool.used_blocks() * BLOCK_SIZE,
            owned_segments: state.pool.segments().count() as u64,
            open_bytes: inner.open_blocks() * BLOCK_SIZE,
            unowned_bytes: inner.shared.free_blocks() * BLOCK_SIZE,
            kept_bytes: inner.kept_blocks() * BLOCK_SIZE,
            ring_used_bytes: u64::from(journal.used_blocks()) * BLOCK_SIZE,
            ring_bytes: u64::from(journal.ring_blocks()) * BLOCK_SIZE,
            map_memory_bytes: state.map_stats.loaded_bytes() as u64,
            cache_bytes: inner.cache.as_ref().map_or(0, Part::kept_bytes),
            hidden_layers: state.slots().filter(|(_, s)| s.is_hidden()).count(),
            host_full: inner.host_full.get(),
        }
    }

    /// Size of a dvol or layer now, or `NotFound` if it is gone.
    pub fn size_of(&self, handle: Handle) -> Result<u64, DvolError> {
        self.inner.resolve(handle).map(|r| r.size_bytes)
    }

    /// What the layer above keeps with a dvol, or kept with it when the layer was taken.
    pub fn attributes_of(&self, handle: Handle) -> Result<Attributes, DvolError> {
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        let found = state.slot(handle.slot).ok_or(DvolError::NotFound)?;
        Ok(found.record.attributes)
    }

    /// Bytes that a dvol or layer has mapped, shared ones included.
    pub fn mapped_bytes_of(&self, handle: Handle) -> Result<u64, DvolError> {
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        let found = state.slot(handle.slot).ok_or(DvolError::NotFound)?;
        Ok(found.record.mapped_blocks * BLOCK_SIZE)
    }

    /// True if clients can't change it: a layer, or a dvol that was made so. False for a dvol that is
    /// gone; what is asked of it says so.
    pub fn is_read_only(&self, handle: Handle) -> bool {
        let found = self.inner.resolve(handle);
        handle.layer.is_some() || found.is_ok_and(|r| r.read_only)
    }

    /// LSN of the last change of a dvol or layer that others can see.
    pub fn lsn_of(&self, handle: Handle) -> Result<Lsn, DvolError> {
        self.inner.resolve(handle).map(|r| r.lsn)
    }

    /// The epoch of a dvol; that of the dvol as it was when the layer was taken.
    pub fn epoch_of(&self, handle: Handle) -> Result<Epoch, DvolError> {
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        let found = state.slot(handle.slot).ok_or(DvolError::NotFound)?;
        Ok(found.record.epoch)
    }

    /// The LSN up to which nothing is known of a dvol's or layer's changes.
    pub fn floor_of(&self, handle: Handle) -> Result<Lsn, DvolError> {
        self.inner.resolve(handle)?;
        self.inner.record(handle).map(|record| record.floor)
    }

    /// Bytes of the device as the platform sees it.
    pub fn device_bytes(&self) -> u64 {
        self.inner.device.size_bytes()
    }
}

/// The layer of another dvol that a dvol stands on, below all layers of its own.
fn origin_of(state: &State, record: &CatalogueRecord) -> Option<(DvolId, String)> {
    let mut at = record.parent;
    // This ends: each layer is older than what stands on it.
    while let Some(below) = at.and_then(|slot| state.slot(slot)) {
        if below.record.id != record.id {
            return Some((below.record.id, below.record.name.clone()));
        }
        at = below.record.parent;
    }
    None
}

/// True if `slot`, or anything that stands on it, is not deleted.
fn is_in_use(state: &State, slot: Slot) -> bool {
    let mut open = vec![slot];
    while let Some(slot) = open.pop() {
        let Some(found) = state.slot(slot) else {
            continue;
        };
        if !found.is_hidden() {
            return true;
        }
        open.extend(&found.children);
    }
    false
}

fn layer_info(state: &State, slot: Slot, found: &SlotState) -> LayerInfo {
    let record = &found.record;
    let others = found.children.iter().filter(|&&child| {
        let is_other = |child: &SlotState| child.record.id != record.id;
        state.slot(child).is_some_and(is_other)
    });
    let clones = others.filter(|&&child| is_in_use(state, child)).count();
    LayerInfo {
        handle: Handle {
            slot,
            id: record.id,
            layer: Some(record.layer),
        },
        name: record.name.clone(),
        size_bytes: record.size_bytes,
        mapped_bytes: record.mapped_blocks * BLOCK_SIZE,
        created_ns: record.created_ns,
        lsn: record.lsn,
        attributes: record.attributes,
        clones,
    }
}
