//! Giving back the memory of nodes that lie on the device.
//!
//! A clock with a second chance: a hand goes round over the leaves of a map in the order of their
//! keys. A node that was used since the hand last passed stays, any other is dropped. An inner node
//! can go when none of its children is in memory, and so can the root.
//!
//! Only nodes that can be read back are dropped: not dirty ones, and not those whose write has not
//! ended ([`MapStats::node_writes_done`](super::MapStats::node_writes_done)). A node that another
//! map holds as well loses its place here and takes up memory until it loses that too.

use flagstone_types::VBlock;

use super::Map;
use super::node::Node;
use super::packed::Packed;
use super::slot::Slot;

/// Where the hand stands in one map. `Default` is the beginning.
#[derive(Clone, Copy, Default, Debug)]
pub struct EvictState {
    next: VBlock,
}

/// One turn of the hand.
struct Turn {
    /// Nodes that may still be looked at.
    budget: usize,
    dropped: usize,
    /// Where it stopped for lack of budget.
    stopped: Option<VBlock>,
}

impl Map {
    /// Looks at up to `visits` nodes in memory from where `state` stands and drops those that were
    /// not used since they were last looked at. The number dropped. Two rounds without any use in
    /// between drop everything that can be dropped.
    ///
    /// `state` is back at the beginning when the end of the map was reached ([`EvictState`]'s
    /// [`is_at_start`](EvictState::is_at_start)).
    pub fn evict(&self, state: &mut EvictState, visits: usize) -> usize {
        let mut turn = Turn {
            budget: visits,
            dropped: 0,
            stopped: None,
        };
        if let Some(root) = &self.root {
            turn.child(&root.entry, &root.slot, state.next);
        }
        self.stats.count_evict_looks(visits - turn.budget);
        state.next = turn.stopped.unwrap_or_default();
        turn.dropped
    }
}

impl EvictState {
    /// True before and after a whole round.
    pub fn is_at_start(&self) -> bool {
        self.next == VBlock(0)
    }
}

impl Turn {
    /// Looks at what is below a node, then at the node itself.
    fn child(&mut self, entry: &Packed, slot: &Slot, from: VBlock) {
        if slot.is_vacant() {
            return;
        }
        if self.budget == 0 {
            self.stopped = Some(from.max(entry.vblock()));
            return;
        }
        let Some(node) = slot.loaded() else { return };
        self.below(&node, from);
        if self.stopped.is_some() {
            return;
        }
        // Here the hand does not stop, or it would pass the children twice in a row.
        self.budget = self.budget.saturating_sub(1);
        let was_used = node.take_recent();
        if was_used || !node.is_readable() || !node.slots.iter().all(Slot::is_vacant) {
            return;
        }
        if let Some((block, checksum)) = node.place.location() {
            entry.place_child(block, checksum);
        }
        drop(node);
        slot.unload();
        self.dropped += 1;
    }

    fn below(&mut self, node: &Node, from: VBlock) {
        if node.is_leaf() {
            return;
        }
        for index in node.child_index(from)..node.entries.len() {
            self.child(&node.entries[index], &node.slots[index], from);
            if self.stopped.is_some() {
                return;
            }
        }
    }
}
