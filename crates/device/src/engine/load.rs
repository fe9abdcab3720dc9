//! Bringing map nodes into memory, and letting them go again.

use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::{BlockDevice, Platform};
use flagstone_types::{Slot, VBlock};

use super::Inner;
use super::error::DvolError;
use super::join::join_all;
use crate::v2p::Missing;

/// Nodes loaded at the same time for one request.
const LOADS_IN_FLIGHT_MAX: usize = 32;

/// Nodes of one map looked at in one round of eviction.
const EVICT_VISITS_MAX: usize = 4096;

impl<P: Platform> Inner<P> {
    /// Reads, checks and fills in one node.
    pub(super) async fn load_node(&self, missing: &Missing) -> Result<(), DvolError> {
        if missing.is_filled() {
            return Ok(());
        }
        let ptr = missing.ptr();
        let buf = self.platform.buffers().take(4096);
        let (buf, result) = self.device.read(ptr.block.offset_bytes(), buf).await;
        self.counters
            .nodes_read
            .set(self.counters.nodes_read.get() + 1);
        result.map_err(|_| DvolError::Device)?;
        match missing.fill_from(&buf) {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::error!(block = ptr.block.0, "a map node can't be used: {error}");
                Err(DvolError::Corrupt)
            }
        }
    }

    /// Loads every node that a change of `range` needs.
    pub(super) async fn load_range(
        &self,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<(), DvolError> {
        loop {
            // A node's old place is not reused while it is being read.
            let _pass = self.gate.enter();
            let missing = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot) else {
                    return Err(DvolError::NotFound);
                };
                found.map.missing_many(range.clone(), LOADS_IN_FLIGHT_MAX)
            };
            if missing.is_empty() {
                return Ok(());
            }
            let loads = missing.iter().map(|m| self.load_node(m));
            join_all(loads)
                .await
                .into_iter()
                .collect::<Result<(), _>>()?;
        }
    }

    /// Lets go of clean nodes that were not used lately, if there are too many.
    pub(super) fn evict_nodes(self: &Rc<Self>) {
        let state = self.state.borrow();
        let limit = self.options.map_cache_bytes;
        for (_, slot) in state.slots() {
            if state.map_stats.loaded_bytes() as u64 <= limit {
                return;
            }
            let mut hand = slot.evict_hand.get();
            slot.map.evict(&mut hand, EVICT_VISITS_MAX);
            slot.evict_hand.set(hand);
        }
    }
}
