//! What one journal owns, in memory: dvols, layers, their maps, and the space they use.
//!
//! Pure: no I/O, no clock. Records change it through [`State::apply`], which is the only way it
//! changes, so that the live path and recovery can't disagree.
//!
//! Invariant: applying the records of a journal in order to the state of a root gives the state
//! that the next root will describe, block for block.

mod apply;
mod check;
mod forget;
mod freeze;
mod journaled;
mod promise;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::rc::Rc;

use flagstone_types::{BlockNo, DvolId, LayerNo, Lsn, SegmentNo, Slot, VBlock};

use crate::format::catalogue::{CatalogueRecord, FLAG_HIDDEN, RecordKind};
use crate::format::table::TableKind;
use crate::planted::{Bug, planted};
use crate::space::Pool;
use crate::v2p::{Entry, EntryKind, EvictState, Key, Map, MapStats, Retired};

pub use forget::COUNT_AFTER;
pub use freeze::{Frozen, FrozenPage, FrozenSegment, TableLocations};
pub use journaled::JournaledBlock;
pub use promise::Promise;

/// LSNs left out at the first change of a dvol after each start, so that one which a crash made
/// the node forget is never given out again. More than a ring can hold records.
pub const LSN_SKIP: u64 = 1 << 25;

/// A dvol or a layer.
pub struct SlotState {
    /// Its fields. `map` in it is not used; `mapped_blocks` is kept up to date.
    pub record: CatalogueRecord,
    /// Its map.
    pub map: Map,
    /// Slots whose parent this is.
    pub children: Vec<Slot>,
    /// Where eviction goes on in the map.
    pub evict_hand: Cell<EvictState>,
    /// Ranges that may be deallocated before its tombstones are counted; `None`: as many as after
    /// each start.
    deallocations_left: Option<u64>,
    /// A change since the start has taken the place of a block with metadata.
    pub has_had_metadata: bool,
}

impl SlotState {
    fn new(record: CatalogueRecord, map: Map) -> SlotState {
        SlotState {
            record,
            map,
            children: Vec::new(),
            evict_hand: Cell::default(),
            deallocations_left: None,
            has_had_metadata: false,
        }
    }

    /// True for a deleted layer that waits to be reaped.
    pub fn is_hidden(&self) -> bool {
        self.record.flags & FLAG_HIDDEN != 0
    }

    /// The first block of the map that the reaper has not passed: what lies before it, data and
    /// nodes that this layer had for itself, is given back.
    pub fn reaped_below(&self) -> VBlock {
        let cursor = self.record.reap_cursor;
        match cursor.is_delta() {
            true => VBlock(cursor.vblock().0 + 1),
            false => cursor.vblock(),
        }
    }

    /// True for a dvol.
    pub fn is_dvol(&self) -> bool {
        self.record.kind == RecordKind::Dvol
    }
}

/// What applying records has freed.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Effects {
    /// Blocks of data that nothing refers to any more. They may be handed out again once the
    /// record that freed them is durable and reads under way have ended.
    pub freed: Vec<BlockNo>,
    /// A layer was hidden or lost a child: it may be ready to be reaped.
    pub may_reap: bool,
    /// A dvol may have too many tombstones.
    pub may_forget: bool,
}

/// Everything one journal owns.
pub struct State {
    slots: Vec<Option<Box<SlotState>>>,
    free_slots: BTreeSet<u32>,
    dvol_names: BTreeMap<String, Slot>,
    layer_names: BTreeMap<(DvolId, String), Slot>,
    /// Segments and their bitmaps.
    pub pool: Pool,
    /// The next layer number.
    pub next_layer: u32,
    /// Layers that were taken out since this was made.
    pub layers_gone: u64,
    /// The node's incarnation on this journal.
    pub incarnation: u32,
    /// Counts nodes in memory.
    pub map_stats: Rc<MapStats>,
    /// Slots of dvols with a reservation, and what is set aside for each that it does not use yet.
    promises: BTreeMap<u32, Promise>,
    /// Sum of those.
    promised: Promise,
    /// Ranges that may be deallocated in a dvol after a start before its tombstones are counted.
    pub count_tombstones_after: u64,
    /// Slots in which as many ranges were deallocated as was allowed.
    full_of_tombstones: BTreeSet<u32>,
    /// Memory for what a change displaces and retires; empty between changes.
    scratch_displaced: Vec<Entry>,
    scratch_retired: Vec<Retired>,
    dirty_slots: BTreeSet<u32>,
    /// Pages of the catalogue that hold those.
    dirty_pages: BTreeSet<u32>,
    /// Nodes that became dirty since the last freeze: at least as many as a freeze will write.
    dirty_nodes: usize,
    /// Nodes that no map refers to once the next checkpoint is done.
    retired: Vec<Retired>,
    /// Segments given back since the last freeze.
    released_segments: BTreeSet<SegmentNo>,
    /// Data that no map knows of yet.
    journaled: journaled::Journaled,
    catalogue: TableLocations,
    segment_table: TableLocations,
}

impl State {
    /// A journal that owns nothing.
    pub fn new(incarnation: u32, next_layer: u32) -> State {
        State {
            slots: Vec::new(),
            free_slots: BTreeSet::new(),
            dvol_names: BTreeMap::new(),
            layer_names: BTreeMap::new(),
            pool: Pool::new(),
            next_layer,
            layers_gone: 0,
            incarnation,
            map_stats: Rc::new(MapStats::default()),
            promises: BTreeMap::new(),
            promised: Promise::default(),
            count_tombstones_after: COUNT_AFTER,
            full_of_tombstones: BTreeSet::new(),
            scratch_displaced: Vec::new(),
            scratch_retired: Vec::new(),
            dirty_slots: BTreeSet::new(),
            dirty_pages: BTreeSet::new(),
            dirty_nodes: 0,
            retired: Vec::new(),
            released_segments: BTreeSet::new(),
            journaled: journaled::Journaled::default(),
            catalogue: TableLocations::default(),
            segment_table: TableLocations::default(),
        }
    }

    /// What `slot` holds.
    pub fn slot(&self, slot: Slot) -> Option<&SlotState> {
        self.slots.get(slot.0 as usize)?.as_deref()
    }

    fn slot_mut(&mut self, slot: Slot) -> Option<&mut SlotState> {
        self.slots.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    /// All slots in use.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &SlotState)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(n, s)| Some((Slot(n as u32), s.as_deref()?)))
    }

    /// The dvol of that name.
    pub fn dvol_named(&self, name: &str) -> Option<Slot> {
        self.dvol_names.get(name).copied()
    }

    /// The snapshot of that name of a dvol.
    pub fn layer_named(&self, dvol: DvolId, name: &str) -> Option<Slot> {
        self.layer_names.get(&(dvol, name.to_owned())).copied()
    }

    /// Dvols by name, in order.
    pub fn dvols(&self) -> impl Iterator<Item = (&str, Slot)> {
        self.dvol_names
            .iter()
            .map(|(name, &slot)| (name.as_str(), slot))
    }

    /// Dvols whose names come behind one, in order.
    pub fn dvols_behind(&self, name: &str) -> impl Iterator<Item = (&str, Slot)> {
        let behind = (Bound::Excluded(name), Bound::Unbounded);
        self.dvol_names
            .range::<str, _>(behind)
            .map(|(name, &slot)| (name.as_str(), slot))
    }

    /// Snapshots of a dvol whose names are this one or come behind it, in order.
    pub fn layers_from(&self, dvol: DvolId, name: &str) -> impl DoubleEndedIterator<Item = Slot> {
        let from = Bound::Included((dvol, name.to_owned()));
        let to = match dvol.0.checked_add(1) {
            Some(next) => Bound::Excluded((DvolId(next), String::new())),
            None => Bound::Unbounded,
        };
        self.layer_names.range((from, to)).map(|(_, &slot)| slot)
    }

    /// Snapshots of a dvol by name, in order.
    pub fn layers_of(&self, dvol: DvolId) -> impl Iterator<Item = (&str, Slot)> {
        let from = (dvol, String::new());
        self.layer_names
            .range(from..)
            .take_while(move |((id, _), _)| *id == dvol)
            .map(|((_, name), &slot)| (name.as_str(), slot))
    }

    /// `count` free slots, lowest first, without the ones in `without`. They stay free until a
    /// record fills them.
    pub fn free_slots(&self, count: usize, without: &BTreeSet<u32>) -> Option<Vec<Slot>> {
        let reused = self.free_slots.iter().copied();
        let fresh = self.slots.len() as u32..crate::format::catalogue::SLOTS_MAX;
        let found: Vec<Slot> = reused
            .chain(fresh)
            .filter(|s| !without.contains(s))
            .take(count)
            .map(Slot)
            .collect();
        (found.len() == count).then_some(found)
    }

    /// The LSN of a dvol's next change. Each incarnation since the last known change may have given
    /// out LSNs that a crash made the node forget, so each is skipped.
    pub fn next_lsn(&self, record: &CatalogueRecord) -> Lsn {
        let starts = u64::from(self.incarnation.saturating_sub(record.lsn_incarnation));
        let starts = match starts {
            _ if planted(Bug::LsnNotSkipped) => 0,
            _ if planted(Bug::LsnSkippedOnce) => starts.min(1),
            starts => starts,
        };
        match starts {
            0 => record.lsn.next(),
            starts => Lsn(record.lsn.0.saturating_add(starts.saturating_mul(LSN_SKIP))),
        }
    }

    /// Number of the youngest layer below `slot` that still needs what is mapped at `key`: entries
    /// born later belong to `slot` alone. A layer that is being reaped needs nothing below its
    /// cursor any more.
    pub fn needed_up_to(&self, slot: Slot, key: Key) -> LayerNo {
        let mut at = self.slot(slot).and_then(|s| s.record.parent);
        while let Some(parent_slot) = at {
            let Some(parent) = self.slot(parent_slot) else {
                return LayerNo(0);
            };
            let reaped = parent.is_hidden() && parent.children.len() == 1;
            if !(reaped && key < parent.record.reap_cursor) || planted(Bug::CursorIgnored) {
                return parent.record.layer;
            }
            at = parent.record.parent;
        }
        LayerNo(0)
    }

    /// True if an entry of `slot`'s map is its own: older layers don't have it, and the reaper, if it
    /// is at work on `slot`, has not yet given it back.
    pub fn owns(&self, slot: Slot, entry: &Entry) -> bool {
        let is_reaped = |s: &SlotState| s.is_hidden() && entry.key < s.record.reap_cursor;
        !self.slot(slot).is_none_or(is_reaped) && entry.birth > self.needed_up_to(slot, entry.key)
    }

    /// Entries with a block in `range` of `slot`'s map that are its own: what an overwrite frees. None
    /// if not all of its nodes are in memory.
    pub fn owned_in(&self, slot: Slot, range: Range<VBlock>) -> u64 {
        let has_block = |kind| matches!(kind, EntryKind::Data | EntryKind::Delta);
        self.owned_of(slot, range, has_block)
    }

    /// The same without deltas: what is freed where those stay.
    pub fn owned_data_in(&self, slot: Slot, range: Range<VBlock>) -> u64 {
        self.owned_of(slot, range, |kind| kind == EntryKind::Data)
    }

    fn owned_of(
        &self,
        slot: Slot,
        range: Range<VBlock>,
        is_wanted: impl Fn(EntryKind) -> bool,
    ) -> u64 {
        let mut entries = Vec::new();
        let found = self.slot(slot);
        match found.map(|s| s.map.lookup(range, usize::MAX, &mut entries)) {
            Some(Ok(())) => {}
            _ => return 0,
        }
        let wanted = entries.iter().filter(|e| is_wanted(e.kind));
        wanted.filter(|e| self.owns(slot, e)).count() as u64
    }

    /// The layer to reap next: one under way first, else any that is hidden and has at most one
    /// child.
    pub fn reapable(&self) -> Option<Slot> {
        let hidden = || {
            self.slots()
                .filter(|(_, s)| s.is_hidden() && s.children.len() <= 1)
        };
        hidden()
            .find(|(_, s)| s.record.reap_cursor > Key(0))
            .or_else(|| hidden().next())
            .map(|(slot, _)| slot)
    }

    /// Slots up to the last one that was ever in use since the start.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Pages of the catalogue that a freeze would have to write.
    pub fn dirty_pages(&self) -> usize {
        self.dirty_pages.len()
    }

    /// Nodes that a freeze would have to write, at most.
    pub fn dirty_nodes(&self) -> usize {
        self.dirty_nodes
    }

    /// True if the next freeze gives up more nodes than it writes.
    pub fn gives_space_back(&self) -> bool {
        let written = self.retired.iter().filter(|r| r.location().is_some());
        written.count() > self.dirty_nodes
    }

    /// True if nothing changed since the last freeze.
    pub fn is_clean(&self) -> bool {
        self.dirty_slots.is_empty()
            && self.retired.is_empty()
            && self.released_segments.is_empty()
            && self.journaled.is_empty()
            && !self.pool.segments().any(|(_, s)| s.dirty)
    }

    fn touch(&mut self, slot: Slot) {
        if self.dirty_slots.insert(slot.0) {
            let per_page = TableKind::Catalogue.records_per_page() as u32;
            self.dirty_pages.insert(slot.0 / per_page);
        }
        self.note_reservation(slot);
    }

    /// Puts a slot's content in place while a root is being loaded.
    pub fn load_slot(&mut self, slot: Slot, record: CatalogueRecord) {
        let map = match &record.map {
            Some(root) => Map::from_root(
                root.ptr,
                record.mapped_blocks,
                root.max_lsn,
                self.map_stats.clone(),
            ),
            None => Map::empty(self.map_stats.clone()),
        };
        self.fill(slot, SlotState::new(record, map));
        self.note_reservation(slot);
    }

    /// Links parents and children once all slots are loaded. The slots whose parent is missing.
    pub fn link_children(&mut self) -> Vec<Slot> {
        let links: Vec<(Slot, Slot)> = self
            .slots()
            .filter_map(|(s, state)| Some((s, state.record.parent?)))
            .collect();
        let mut orphans = Vec::new();
        for (slot, parent) in links {
            match self.slot_mut(parent) {
                Some(parent) if parent.record.kind == RecordKind::Layer => {
                    parent.children.push(slot);
                }
                _ => orphans.push(slot),
            }
        }
        for number in 0..self.slots.len() as u32 {
            if self.slot(Slot(number)).is_none() {
                self.free_slots.insert(number);
            }
        }
        orphans
    }

    /// Fills an empty slot and the name tables. The slot is empty: [`State::check`] says so of what
    /// is read, the engine of what it makes, and a table has each slot once.
    fn fill(&mut self, slot: Slot, state: SlotState) {
        let index = slot.0 as usize;
        while self.slots.len() <= index {
            let number = self.slots.len() as u32;
            if number != slot.0 {
                self.free_slots.insert(number);
            }
            self.slots.push(None);
        }
        assert!(
            self.slots[index].is_none(),
            "slot {} is filled once",
            slot.0
        );
        self.free_slots.remove(&slot.0);
        self.add_name(slot, &state.record);
        self.slots[index] = Some(Box::new(state));
    }

    fn add_name(&mut self, slot: Slot, record: &CatalogueRecord) {
        if record.name.is_empty() || record.flags & FLAG_HIDDEN != 0 {
            return;
        }
        match record.kind {
            RecordKind::Dvol => {
                self.dvol_names.insert(record.name.clone(), slot);
            }
            RecordKind::Layer => {
                self.layer_names
                    .insert((record.id, record.name.clone()), slot);
            }
        }
    }

    fn remove_name(&mut self, record: &CatalogueRecord) {
        match record.kind {
            RecordKind::Dvol => {
                self.dvol_names.remove(&record.name);
            }
            RecordKind::Layer => {
                self.layer_names.remove(&(record.id, record.name.clone()));
            }
        }
    }
}
