//! What all maps of a core share: counters of nodes in memory.

use std::cell::Cell;

use flagstone_platform::pool::Pool;

use super::node::{ENTRIES_MAX, Later};
use super::packed::Packed;

/// Places that memory is kept for when nobody has them any more: some 300 KiB.
const SPARE_PLACES_MAX: usize = 4096;

/// Counters of the nodes in memory, over all maps that were made with them.
pub struct MapStats {
    loaded_nodes: Cell<usize>,
    loaded_bytes: Cell<usize>,
    dirty_nodes: Cell<usize>,
    /// Grows each time all writes of nodes handed out so far are known to have ended.
    round: Cell<u64>,
    /// Nodes that eviction has looked at.
    evict_looks: Cell<u64>,
    /// Entries per node. Smaller than on the device only in tests, to get tall trees cheaply.
    pub(super) fanout: usize,
    /// Room for the entries of a run while it is being put into a map.
    pub(super) scratch: Cell<Vec<Packed>>,
    /// Where the places of dirty nodes lie.
    pub(super) places: Pool<Later>,
    /// Nodes looked into by reads.
    #[cfg(test)]
    pub(super) visits: Cell<u64>,
}

impl Default for MapStats {
    fn default() -> MapStats {
        MapStats {
            loaded_nodes: Cell::new(0),
            loaded_bytes: Cell::new(0),
            dirty_nodes: Cell::new(0),
            round: Cell::new(1),
            evict_looks: Cell::new(0),
            fanout: ENTRIES_MAX,
            scratch: Cell::new(Vec::new()),
            places: Pool::new(SPARE_PLACES_MAX),
            #[cfg(test)]
            visits: Cell::new(0),
        }
    }
}

impl MapStats {
    /// Counters for maps with small nodes.
    #[cfg(test)]
    pub(super) fn with_fanout(fanout: usize) -> MapStats {
        assert!((4..=ENTRIES_MAX).contains(&fanout));
        MapStats {
            fanout,
            ..MapStats::default()
        }
    }

    /// Nodes in memory, each counted once however many maps share it.
    pub fn loaded_nodes(&self) -> usize {
        self.loaded_nodes.get()
    }

    /// Bytes those nodes take: what was allocated for each and for its entries.
    pub fn loaded_bytes(&self) -> usize {
        self.loaded_bytes.get()
    }

    /// Nodes in memory that have no place on the device yet.
    pub fn dirty_nodes(&self) -> usize {
        self.dirty_nodes.get()
    }

    /// Says that every block handed out to [`DirtyNode::write_to`](super::DirtyNode::write_to) so
    /// far can be read back. Until then those nodes are not evicted: they could not be loaded.
    pub fn node_writes_done(&self) {
        self.round.set(self.round.get() + 1);
    }

    pub(super) fn round(&self) -> u64 {
        self.round.get()
    }

    /// Another number when those nodes can be evicted that could not before.
    pub fn writes_round(&self) -> u64 {
        self.round.get()
    }

    /// Nodes that eviction has looked at so far.
    pub fn evict_looks(&self) -> u64 {
        self.evict_looks.get()
    }

    pub(super) fn count_evict_looks(&self, count: usize) {
        self.evict_looks.set(self.evict_looks.get() + count as u64);
    }

    pub(super) fn count_node(&self, bytes: usize) {
        self.loaded_nodes.set(self.loaded_nodes.get() + 1);
        self.loaded_bytes.set(self.loaded_bytes.get() + bytes);
    }

    pub(super) fn forget_node(&self, bytes: usize) {
        self.loaded_nodes.set(self.loaded_nodes.get() - 1);
        self.loaded_bytes.set(self.loaded_bytes.get() - bytes);
    }

    pub(super) fn resize_node(&self, from_bytes: usize, to_bytes: usize) {
        self.loaded_bytes
            .set(self.loaded_bytes.get() - from_bytes + to_bytes);
    }

    pub(super) fn count_dirty(&self) {
        self.dirty_nodes.set(self.dirty_nodes.get() + 1);
    }

    pub(super) fn forget_dirty(&self) {
        self.dirty_nodes.set(self.dirty_nodes.get() - 1);
    }
}
