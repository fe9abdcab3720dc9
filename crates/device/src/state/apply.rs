//! How each record changes the state.
//!
//! A record that was accepted into the journal always applies: whoever made it checked that the
//! slots, names and layers it speaks of fit. A record read from a device may be anything, so
//! [`State::check`] judges it first and recovery refuses what does not fit.

use flagstone_types::{LayerNo, Lsn, Slot, VBlock};

use super::{Effects, SlotState, State};
use crate::format::catalogue::{ATTRIBUTE_BYTES, CatalogueRecord, FLAG_HIDDEN, RecordKind};
use crate::format::geometry::Geometry;
use crate::format::record::{MapRun, Record};
use crate::format::segment::SegmentRecord;
use crate::planted::{Bug, planted};
use crate::v2p::{Edit, Entry, EntryKind, Key, Map, Missing, Retired, reap_step};

/// Entries looked at per internal step of a reap.
const REAP_STEP_ENTRIES: usize = 4096;

/// Room for displaced entries that is kept from one change to the next.
const SCRATCH_MAX_ENTRIES: usize = 1024;

/// A dvol has changed at this LSN, in this run of the device's owner.
fn note_lsn(record: &mut CatalogueRecord, lsn: Lsn, incarnation: u32) {
    if lsn > record.lsn || record.lsn_incarnation != incarnation {
        record.lsn = record.lsn.max(lsn);
        record.lsn_incarnation = incarnation;
    }
}

impl State {
    /// A node that must be in memory before `record` can be applied.
    pub fn missing(&self, record: &Record) -> Option<Missing> {
        let map = |slot: &Slot| self.slot(*slot).map(|s| &s.map);
        match record {
            Record::Map { slot, runs, .. } => {
                let map = map(slot)?;
                runs.iter().find_map(|run| {
                    let end = VBlock(run.start.0 + run.blocks.len() as u64);
                    map.missing(run.start..end)
                })
            }
            Record::Delta { slot, vblock, .. } | Record::MapUnder { slot, vblock, .. } => {
                map(slot)?.missing(*vblock..VBlock(vblock.0 + 1))
            }
            Record::Unmap { slot, ranges, .. } => {
                let map = map(slot)?;
                ranges
                    .iter()
                    .find_map(|&(start, count)| map.missing(start..VBlock(start.0 + count)))
            }
            Record::Reap { slot, to } => self.reap_plan(*slot, *to).err(),
            _ => None,
        }
    }

    /// Applies a record. Every node it needs must be in memory ([`State::missing`]).
    pub fn apply(&mut self, record: &Record, geometry: &Geometry, effects: &mut Effects) {
        self.apply_to_maps(record, geometry, effects);
        self.forget_placed_blocks(&effects.freed);
    }

    fn apply_to_maps(&mut self, record: &Record, geometry: &Geometry, effects: &mut Effects) {
        match record {
            Record::Map { slot, lsn, runs } => {
                for run in runs {
                    let end = VBlock(run.start.0 + run.blocks.len() as u64);
                    self.forget_journaled(*slot, run.start..end);
                }
                self.note_change(*slot, *lsn);
                self.place_run(*slot, *lsn, runs, effects);
            }
            Record::Delta {
                slot,
                lsn,
                vblock,
                changed,
                block,
                checksum,
            } => {
                self.note_change(*slot, *lsn);
                self.edit(*slot, effects, |map, edit| {
                    map.write_delta(edit, *vblock, *block, *checksum, *changed, *lsn);
                });
                self.pool.commit(*block);
            }
            Record::MapUnder {
                slot,
                lsn,
                vblock,
                mapped,
            } => {
                self.forget_journaled(*slot, *vblock..VBlock(vblock.0 + 1));
                self.note_change(*slot, *lsn);
                self.edit(*slot, effects, |map, edit| {
                    if planted(Bug::UnderDisplacesDelta) {
                        return map.write_run(edit, *vblock, &[*mapped], *lsn);
                    }
                    map.write_under(edit, *vblock, mapped, *lsn);
                });
                self.pool.commit(mapped.block);
            }
            Record::Unmap { slot, lsn, ranges } => {
                for &(start, count) in ranges {
                    self.forget_journaled(*slot, start..VBlock(start.0 + count));
                }
                self.note_change(*slot, *lsn);
                self.edit(*slot, effects, |map, edit| {
                    let lsn = match planted(Bug::NoTombstone) {
                        true => Lsn::ZERO,
                        false => *lsn,
                    };
                    for &(start, count) in ranges {
                        map.deallocate(edit, start..VBlock(start.0 + count), lsn);
                    }
                });
                self.note_deallocations(*slot, ranges.len() as u64, effects);
            }
            Record::CreateDvol { slot, record } => self.apply_create(*slot, record),
            Record::Update { slot, record } => self.apply_update(*slot, record),
            Record::Snapshot {
                slot,
                layer_slot,
                head,
                created_ns,
                name,
            } => {
                self.apply_snapshot(*slot, *layer_slot, LayerNo(*head), *created_ns, name);
            }
            Record::Rollback {
                slot,
                to,
                discard_slot,
                head,
                lsn,
                size_bytes,
            } => {
                self.apply_rollback(*slot, *to, *discard_slot, LayerNo(*head), *lsn, *size_bytes);
                effects.may_reap = true;
            }
            Record::DeleteDvol { slot } | Record::DeleteLayer { slot } => {
                self.apply_hide(*slot);
                effects.may_reap = true;
            }
            Record::Reap { slot, to } => {
                self.apply_reap(*slot, *to, effects);
                effects.may_reap = true;
            }
            Record::ReserveSegment { segment } => {
                self.released_segments.remove(segment);
                // The live path adds it before it hands out its blocks; a root may hold it already.
                if !self.pool.owns(*segment) {
                    self.pool.add(*segment, SegmentRecord::EMPTY, geometry);
                }
                if let Some(state) = self.pool.segment_mut(*segment) {
                    state.dirty = true;
                }
            }
            Record::ReleaseSegment { segment } => {
                // A root may have left it out already.
                if self.pool.owns(*segment) {
                    self.pool.remove(*segment);
                    self.released_segments.insert(*segment);
                }
            }
            Record::Attributes {
                slot,
                lsn,
                attributes,
            } => {
                self.existing(*slot).record.attributes = **attributes;
                self.note_change(*slot, *lsn);
                self.touch(*slot);
            }
            Record::Journaled {
                slot,
                lsn,
                start,
                data,
            } => self.apply_journaled(*slot, *lsn, *start, data),
            // Aborted units were left out before.
            Record::Abort { .. } => {}
        }
    }

    pub(super) fn existing(&mut self, slot: Slot) -> &mut SlotState {
        self.slot_mut(slot)
            .expect("records are checked against the state before they are applied")
    }

    /// A dvol has changed at this LSN.
    pub(super) fn note_change(&mut self, slot: Slot, lsn: Lsn) {
        let incarnation = self.incarnation;
        note_lsn(&mut self.existing(slot).record, lsn, incarnation);
    }

    /// Maps blocks, which are in use from then on.
    pub(super) fn place_run(
        &mut self,
        slot: Slot,
        lsn: Lsn,
        runs: &[MapRun],
        effects: &mut Effects,
    ) {
        self.edit(slot, effects, |map, edit| {
            for run in runs {
                let deltas = match planted(Bug::DeltaKept) {
                    true => deltas_over(map, run),
                    false => Vec::new(),
                };
                map.write_run(edit, run.start, &run.blocks, lsn);
                for (vblock, delta) in deltas {
                    edit.displaced.retain(|entry| entry.block != delta.block);
                    map.write_delta(
                        edit,
                        vblock,
                        delta.block,
                        delta.checksum,
                        delta.changed(),
                        lsn,
                    );
                }
            }
        });
        for run in runs {
            for (index, mapped) in run.blocks.iter().enumerate() {
                if !(planted(Bug::CommitSkipped) && index == 1) {
                    self.pool.commit(mapped.block);
                }
            }
        }
    }

    /// Changes a dvol's map and frees what the change displaced, unless an older layer needs it.
    fn edit(
        &mut self,
        slot: Slot,
        effects: &mut Effects,
        change: impl FnOnce(&mut Map, &mut Edit),
    ) {
        let displaced = std::mem::take(&mut self.scratch_displaced);
        let retired = std::mem::take(&mut self.scratch_retired);
        let state = self.existing(slot);
        let mut edit = Edit::new(state.record.layer);
        edit.displaced = displaced;
        edit.retired = retired;
        change(&mut state.map, &mut edit);
        state.record.mapped_blocks = state.map.mapped_count();
        let mut inherited_gone = 0;
        let had_metadata = |entry: &Entry| entry.kind == EntryKind::Data && entry.meta != 0;
        state.has_had_metadata |= edit.displaced.iter().any(had_metadata);
        for entry in &edit.displaced {
            if entry.birth > self.needed_up_to(slot, entry.key) {
                if planted(Bug::ReleaseSkipped) && entry.kind == EntryKind::Delta {
                    continue;
                }
                self.pool.release(entry.block);
                effects.freed.push(entry.block);
            } else if entry.kind == EntryKind::Data {
                inherited_gone += 1;
            }
        }
        let state = self.existing(slot);
        let left = state.record.inherited_blocks.saturating_sub(inherited_gone);
        state.record.inherited_blocks = left.min(state.record.mapped_blocks);
        self.take_nodes(slot, edit);
    }

    /// Takes note of the nodes that a change of a dvol's map has made or given up.
    pub(super) fn take_nodes(&mut self, slot: Slot, mut edit: Edit) {
        for retired in edit.retired.drain(..) {
            // A node counts by its end: the reaper frees it when it passes that.
            if retired.birth > self.needed_up_to(slot, Key(retired.end_key.0 - 1)) {
                self.retired.push(retired);
            }
        }
        self.dirty_nodes += edit.dirtied;
        if edit.displaced.capacity() <= SCRATCH_MAX_ENTRIES {
            self.scratch_displaced = edit.displaced;
            self.scratch_displaced.clear();
        }
        if edit.retired.capacity() <= SCRATCH_MAX_ENTRIES {
            self.scratch_retired = edit.retired;
        }
        self.touch(slot);
    }

    fn apply_create(&mut self, slot: Slot, record: &CatalogueRecord) {
        let mut record = record.clone();
        record.map = None;
        let map = match record.parent {
            Some(parent) => {
                let parent = self.existing(parent);
                parent.children.push(slot);
                // Of a head that is being written to, more may have become part since the clone
                // was asked for.
                record.lsn = record.lsn.max(parent.record.lsn);
                record.floor = record.floor.max(parent.record.floor);
                parent.map.clone()
            }
            None => Map::empty(self.map_stats.clone()),
        };
        record.mapped_blocks = map.mapped_count();
        record.inherited_blocks = record.mapped_blocks;
        self.next_layer = self.next_layer.max(record.layer.0 + 1);
        self.fill(slot, SlotState::new(record, map));
        self.touch(slot);
    }

    fn apply_update(&mut self, slot: Slot, new: &CatalogueRecord) {
        let old = self.existing(slot).record.clone();
        self.remove_name(&old);
        let record = &mut self.existing(slot).record;
        record.name.clone_from(&new.name);
        record.size_bytes = new.size_bytes;
        record.flags = new.flags;
        record.epoch = new.epoch;
        record.lsn = record.lsn.max(new.lsn);
        record.floor = new.floor;
        record.reserved_blocks = new.reserved_blocks;
        // Not its attributes: units on their way when it was made may change those before this.
        let record = record.clone();
        self.add_name(slot, &record);
        self.touch(slot);
    }

    fn apply_snapshot(
        &mut self,
        slot: Slot,
        layer_slot: Slot,
        head: LayerNo,
        created_ns: u64,
        name: &str,
    ) {
        let dvol = self.existing(slot);
        let old_parent = dvol.record.parent;
        let layer = SlotState {
            record: CatalogueRecord {
                kind: RecordKind::Layer,
                flags: 0,
                name: name.to_owned(),
                created_ns,
                reserved_blocks: 0,
                ..dvol.record.clone()
            },
            map: dvol.map.clone(),
            children: vec![slot],
            evict_hand: Default::default(),
            deallocations_left: None,
            has_had_metadata: false,
        };
        dvol.record.parent = Some(layer_slot);
        if !planted(Bug::HeadKeepsNumber) {
            dvol.record.layer = head;
        }
        dvol.record.inherited_blocks = dvol.record.mapped_blocks;
        self.replace_child(old_parent, slot, Some(layer_slot));
        self.next_layer = self.next_layer.max(head.0 + 1);
        self.fill(layer_slot, layer);
        self.touch(slot);
        self.touch(layer_slot);
    }

    fn apply_rollback(
        &mut self,
        slot: Slot,
        to: Slot,
        discard_slot: Slot,
        head: LayerNo,
        lsn: Lsn,
        size_bytes: u64,
    ) {
        let incarnation = self.incarnation;
        let target = self.existing(to);
        target.children.push(slot);
        let (new_map, target_lsn) = (target.map.clone(), target.record.lsn);
        let dvol = self.existing(slot);
        let old_parent = dvol.record.parent;
        let discarded = SlotState {
            record: CatalogueRecord {
                kind: RecordKind::Layer,
                flags: FLAG_HIDDEN,
                name: String::new(),
                reserved_blocks: 0,
                ..dvol.record.clone()
            },
            map: std::mem::replace(&mut dvol.map, new_map),
            children: Vec::new(),
            evict_hand: Default::default(),
            deallocations_left: None,
            has_had_metadata: false,
        };
        let record = &mut dvol.record;
        // What happened between the snapshot and now is undone: nobody can be told what changed
        // since an LSN in between.
        record.roll_back_to(target_lsn, lsn);
        record.lsn = lsn;
        record.lsn_incarnation = incarnation;
        record.size_bytes = size_bytes;
        record.parent = Some(to);
        record.layer = head;
        record.mapped_blocks = dvol.map.mapped_count();
        record.inherited_blocks = record.mapped_blocks;
        self.replace_child(old_parent, slot, Some(discard_slot));
        self.next_layer = self.next_layer.max(head.0 + 1);
        self.fill(discard_slot, discarded);
        // Nobody reads what is discarded, and a layer has none.
        self.journaled.forget(slot);
        for touched in [slot, to, discard_slot] {
            self.touch(touched);
        }
    }

    /// Puts `new` in place of the first `old` among the children of `parent`.
    fn replace_child(&mut self, parent: Option<Slot>, old: Slot, new: Option<Slot>) {
        let Some(parent) = parent else { return };
        let children = &mut self.existing(parent).children;
        if let Some(at) = children.iter().position(|&c| c == old) {
            match new {
                Some(new) => children[at] = new,
                None => {
                    children.remove(at);
                }
            }
        }
        if let Some(new) = new
            && let Some(state) = self.slot_mut(new)
        {
            state.record.parent = Some(parent);
        }
    }

    fn apply_hide(&mut self, slot: Slot) {
        let old = self.existing(slot).record.clone();
        self.remove_name(&old);
        self.journaled.forget(slot);
        let record = &mut self.existing(slot).record;
        record.kind = RecordKind::Layer;
        record.flags |= FLAG_HIDDEN;
        record.name.clear();
        record.reserved_blocks = 0;
        record.attributes = [0; ATTRIBUTE_BYTES];
        self.touch(slot);
    }

    /// What reaping `slot` up to `to` frees: entries of data, and the nodes of its map. Also how far
    /// that comes, which in a replay can be slightly beyond `to`.
    fn reap_plan(&self, slot: Slot, to: Key) -> Result<(Vec<Entry>, Vec<Retired>, Key), Missing> {
        let (mut entries, mut nodes) = (Vec::new(), Vec::new());
        let Some(old) = self.slot(slot) else {
            return Ok((entries, nodes, to));
        };
        let child = old
            .children
            .first()
            .and_then(|&c| self.slot(c))
            .map(|c| &c.map);
        let child = child.filter(|_| !planted(Bug::ReaperFreesShared));
        let parent = self.parent_layer(slot);
        let mut from = old.record.reap_cursor;
        while from < to {
            let step = reap_step(&old.map, child, parent, from, to, REAP_STEP_ENTRIES)?;
            entries.extend(step.data);
            nodes.extend(step.nodes);
            from = step.next.unwrap_or(Key::END);
        }
        Ok((entries, nodes, from))
    }

    /// Number of the layer below `slot`; zero if there is none.
    pub fn parent_layer(&self, slot: Slot) -> LayerNo {
        let parent = self.slot(slot).and_then(|s| s.record.parent);
        parent
            .and_then(|p| self.slot(p))
            .map_or(LayerNo(0), |p| p.record.layer)
    }

    fn apply_reap(&mut self, slot: Slot, to: Key, effects: &mut Effects) {
        let (entries, nodes, cursor) = self
            .reap_plan(slot, to)
            .expect("the caller has loaded what was missing");
        for entry in entries {
            self.pool.release(entry.block);
            effects.freed.push(entry.block);
        }
        self.retired.extend(nodes);
        self.existing(slot).record.reap_cursor = cursor;
        self.touch(slot);
        if to == Key::END {
            self.remove_layer(slot);
        }
    }

    /// Takes a reaped layer out of the tree: its child, if any, stands on its parent now.
    fn remove_layer(&mut self, slot: Slot) {
        let state = self.slots[slot.0 as usize].take().expect("was just reaped");
        self.free_slots.insert(slot.0);
        self.layers_gone += 1;
        let parent = state.record.parent;
        let child = state.children.first().copied();
        self.replace_child(parent, slot, child);
        if let Some(child) = child {
            let child_state = self.existing(child);
            child_state.record.parent = parent;
            if parent.is_none() {
                child_state.record.inherited_blocks = 0;
            }
            self.touch(child);
        }
    }
}

/// The deltas over the blocks of a run.
fn deltas_over(map: &Map, run: &MapRun) -> Vec<(VBlock, Entry)> {
    let end = run.start.0 + run.blocks.len() as u64;
    let vblocks = (run.start.0..end).map(VBlock);
    vblocks
        .filter_map(|vblock| Some((vblock, map.get(vblock).ok()?.delta?)))
        .collect()
}
