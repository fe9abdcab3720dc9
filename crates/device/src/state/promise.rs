//! What is set aside for dvols with a reservation and not used by them yet.
//!
//! Writing a block takes one for the data, and now and then one for a node of the map. Both are
//! promised. The data part changes with each write by what that write takes, so the dvols' parts can be
//! added up and held against each other. The nodes part is a bound: it says what new data must leave
//! alone, but nobody who writes what was promised to him is measured by the bounds of others.

use flagstone_types::Slot;

use super::State;
use crate::format::catalogue::CatalogueRecord;
use crate::v2p::{nodes_copied_max, nodes_max, nodes_min};

/// Blocks that a dvol may still take of what is reserved for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Promise {
    /// For data.
    pub data: u64,
    /// For nodes of its map, at most.
    pub nodes: u64,
}

impl Promise {
    /// For a dvol with `reserved` blocks that has `own` mapped ones, and `inherited` ones that it shares
    /// with older layers: overwriting those takes new blocks, and copies of the nodes that are shared.
    ///
    /// The nodes for all that is reserved are set aside, less those that its own blocks surely have
    /// already. They stay set aside when everything is written: nodes may be full then, and after a
    /// deallocation the same blocks written in another order need more.
    pub fn new(reserved: u64, own: u64, inherited: u64) -> Promise {
        if reserved == 0 {
            return Promise::default();
        }
        let own = own.min(reserved);
        let nodes = nodes_max(reserved) + nodes_copied_max(inherited, reserved);
        Promise {
            data: reserved - own,
            nodes: nodes.saturating_sub(nodes_min(own)),
        }
    }

    pub(super) fn of(record: &CatalogueRecord) -> Promise {
        Promise::if_reserved(record, record.reserved_blocks)
    }

    /// For a dvol with this record if so many blocks were reserved for it.
    pub fn if_reserved(record: &CatalogueRecord, reserved: u64) -> Promise {
        let inherited = record.inherited_blocks;
        let own = record.mapped_blocks.saturating_sub(inherited);
        Promise::new(reserved, own, inherited)
    }

    /// Data and nodes.
    pub fn blocks(self) -> u64 {
        self.data + self.nodes
    }

    /// The sum of both.
    pub fn and(self, other: Promise) -> Promise {
        Promise {
            data: self.data + other.data,
            nodes: self.nodes + other.nodes,
        }
    }

    /// How much more this is than another.
    pub fn beyond(self, other: Promise) -> Promise {
        Promise {
            data: self.data.saturating_sub(other.data),
            nodes: self.nodes.saturating_sub(other.nodes),
        }
    }
}

impl State {
    /// Counts again what is set aside for a dvol, after any change to its record.
    pub(super) fn note_reservation(&mut self, slot: Slot) {
        let reserving = self.slot(slot).filter(|s| s.record.reserved_blocks > 0);
        let promise = reserving.map(|s| Promise::of(&s.record));
        let before = match promise {
            Some(promise) => self.promises.insert(slot.0, promise),
            None => self.promises.remove(&slot.0),
        };
        let others = self.promised.beyond(before.unwrap_or_default());
        self.promised = others.and(promise.unwrap_or_default());
    }

    /// True if any dvol has a reservation.
    pub fn has_reservations(&self) -> bool {
        !self.promises.is_empty()
    }

    /// What is set aside for dvols that do not use it yet, but for `without`.
    pub fn promised(&self, without: Slot) -> Promise {
        debug_assert!(self.promises.iter().all(|(&slot, &promise)| {
            let state = self.slot(Slot(slot));
            state.is_some_and(|s| Promise::of(&s.record) == promise)
        }));
        self.promised.beyond(self.promised_to(without))
    }

    /// What is set aside for a dvol that it does not use yet.
    pub fn promised_to(&self, slot: Slot) -> Promise {
        self.promises.get(&slot.0).copied().unwrap_or_default()
    }
}
