//! The tree of layers of one journal, as its catalogue describes it.
//!
//! Invariant after [`Layers::link`]: each parent link leads to a layer with a lower number, so there
//! are no cycles, and a chain ends after at most as many steps as there are slots.

use std::collections::BTreeMap;

use flagstone_types::{BlockNo, DvolId, LayerNo, Slot};

use crate::format::catalogue::{CatalogueRecord, FLAG_HIDDEN, RecordKind};
use crate::v2p::Key;

/// Layers in a row that can be under way to be reaped. The engine reaps one at a time.
const REAPED_CHAIN_MAX: usize = 64;

/// A dvol or layer and its place in the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerSlot {
    /// What the catalogue says.
    pub record: CatalogueRecord,
    /// Slots that stand on it.
    pub children: Vec<u32>,
    /// The catalogue page it is in; for a slot that exists only in the journal, block 0.
    pub page: BlockNo,
}

impl LayerSlot {
    /// True for a deleted layer.
    pub fn is_hidden(&self) -> bool {
        self.record.flags & FLAG_HIDDEN != 0
    }

    /// True if keys below its cursor no longer count.
    pub fn is_reaped(&self) -> bool {
        self.is_hidden() && self.children.len() <= 1 && self.record.reap_cursor > Key(0)
    }

    /// Keys below this one no longer count in this layer.
    pub fn reaped_below(&self) -> Key {
        if self.is_reaped() {
            self.record.reap_cursor
        } else {
            Key(0)
        }
    }

    /// What to call it.
    pub fn words(&self, slot: u32) -> String {
        let CatalogueRecord {
            kind, name, layer, ..
        } = &self.record;
        match kind {
            RecordKind::Dvol => format!("dvol '{name}' (slot {slot}, {layer:?})"),
            RecordKind::Layer if self.is_hidden() => {
                format!("hidden layer (slot {slot}, {layer:?})")
            }
            RecordKind::Layer => format!("snapshot '{name}' (slot {slot}, {layer:?})"),
        }
    }
}

/// All dvols and layers of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    slots: BTreeMap<u32, LayerSlot>,
}

/// The part of a dvol's or layer's ancestry that decides who owns a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lineage {
    /// Cursor, slot and number of each ancestor up to the first that isn't being reaped.
    ancestors: Vec<(Key, u32, LayerNo)>,
}

impl Lineage {
    /// The layer below at `key`, and its number; no slot and zero if there is none.
    pub fn parent_at(&self, key: Key) -> (Option<u32>, LayerNo) {
        let found = self.ancestors.iter().find(|(cursor, _, _)| key >= *cursor);
        found.map_or((None, LayerNo(0)), |&(_, slot, number)| {
            (Some(slot), number)
        })
    }

    /// True if the layer below isn't the same for all keys above `low` and below `high`.
    pub fn changes_between(&self, low: Key, high: Key) -> bool {
        self.ancestors
            .iter()
            .any(|&(cursor, _, _)| low < cursor && cursor < high)
    }
}

impl Layers {
    /// Adds what a slot holds. Call [`Layers::link`] once all are added.
    pub fn insert(&mut self, slot: u32, record: CatalogueRecord, page: BlockNo) {
        self.slots.insert(
            slot,
            LayerSlot {
                record,
                children: Vec::new(),
                page,
            },
        );
    }

    /// What a slot holds.
    pub fn get(&self, slot: u32) -> Option<&LayerSlot> {
        self.slots.get(&slot)
    }

    /// All slots in use, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &LayerSlot)> {
        self.slots.iter().map(|(&slot, layer)| (slot, layer))
    }

    /// What a slot is called, also if it is empty.
    pub fn words(&self, slot: u32) -> String {
        self.get(slot)
            .map_or_else(|| format!("empty slot {slot}"), |layer| layer.words(slot))
    }

    /// Fills in the children. A parent that can't be one is taken away from the child; each such
    /// case is returned in words, with the child's slot.
    pub fn link(&mut self) -> Vec<(u32, String)> {
        let mut wrong = Vec::new();
        let links: Vec<(u32, u32)> = self
            .slots
            .iter()
            .filter_map(|(&slot, layer)| Some((slot, layer.record.parent?.0)))
            .collect();
        for (child, parent) in links {
            let number = self.slots[&child].record.layer;
            let problem = match self.slots.get(&parent) {
                None => Some(format!("its parent, slot {parent}, is empty")),
                Some(p) if p.record.kind != RecordKind::Layer => {
                    Some(format!("its parent is no layer but {}", p.words(parent)))
                }
                Some(p) if p.record.layer >= number => {
                    Some(format!("its parent is not older: {}", p.words(parent)))
                }
                Some(_) => None,
            };
            match problem {
                Some(problem) => {
                    wrong.push((child, problem));
                    self.change(child, |layer| layer.record.parent = None);
                }
                None => self.change(parent, |layer| layer.children.push(child)),
            }
        }
        wrong
    }

    fn change(&mut self, slot: u32, change: impl FnOnce(&mut LayerSlot)) {
        if let Some(layer) = self.slots.get_mut(&slot) {
            change(layer);
        }
    }

    /// Slots with parents before their children.
    pub fn parents_first(&self) -> Vec<u32> {
        let mut order: Vec<u32> = self.slots.keys().copied().collect();
        // A parent's number is lower than its child's.
        order.sort_by_key(|slot| (self.slots[slot].record.layer, *slot));
        order
    }

    /// The ancestry of a slot. `None` if more layers in a row are being reaped than can be.
    pub fn lineage(&self, slot: u32) -> Option<Lineage> {
        let mut ancestors = Vec::new();
        let mut at = self.get(slot)?.record.parent;
        while let Some((Slot(number), layer)) = at.and_then(|s| Some((s, self.get(s.0)?))) {
            ancestors.push((layer.reaped_below(), number, layer.record.layer));
            if !layer.is_reaped() {
                break;
            }
            if ancestors.len() >= REAPED_CHAIN_MAX {
                return None;
            }
            at = layer.record.parent;
        }
        Some(Lineage { ancestors })
    }

    /// Slot of the dvol of that name.
    pub fn dvol_named(&self, name: &str) -> Option<u32> {
        let dvols = self
            .iter()
            .filter(|(_, l)| l.record.kind == RecordKind::Dvol);
        dvols
            .into_iter()
            .find(|(_, l)| l.record.name == name)
            .map(|(slot, _)| slot)
    }

    /// Slot of the snapshot of that name of a dvol.
    pub fn snapshot_named(&self, dvol: DvolId, name: &str) -> Option<u32> {
        let is_it = |layer: &LayerSlot| {
            layer.record.kind == RecordKind::Layer
                && !layer.is_hidden()
                && layer.record.id == dvol
                && layer.record.name == name
        };
        self.iter()
            .find(|(_, layer)| is_it(layer))
            .map(|(slot, _)| slot)
    }

    /// The slots of the tree that `slot` is in: all that can share blocks with it.
    pub fn family(&self, slot: u32) -> Vec<u32> {
        let mut root = slot;
        while let Some(parent) = self.get(root).and_then(|layer| layer.record.parent) {
            root = parent.0;
        }
        let mut family = vec![root];
        let mut next = 0;
        while let Some(&at) = family.get(next) {
            family.extend(self.get(at).into_iter().flat_map(|layer| &layer.children));
            next += 1;
        }
        family
    }
}
