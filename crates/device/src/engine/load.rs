//! Bringing map nodes into memory, and letting them go again.

use std::cell::Cell;
use std::ops::Range;

use flagstone_platform::{BlockDevice, Platform};
use flagstone_types::{Slot, VBlock};

use super::Inner;
use super::error::DvolError;
use super::join::join_all;
use crate::planted::{Bug, planted};
use crate::v2p::Missing;

/// Nodes loaded at the same time for one request.
const LOADS_IN_FLIGHT_MAX: usize = 32;

/// Nodes of one map looked at in one round of eviction.
const EVICT_VISITS_MAX: usize = 4096;

/// How far eviction has come.
#[derive(Default)]
pub(super) struct Eviction {
    /// Where it goes on.
    from: Cell<Slot>,
    /// Nodes looked at since there were few enough.
    looked_at: Cell<u64>,
    /// All were looked at twice and too many are left, since they are dirty or being written: nobody looks again before
    /// the maps take more bytes than this, or nodes were written since, of which this is the round.
    in_vain: Cell<Option<(u64, u64)>>,
}

impl<P: Platform> Inner<P> {
    /// Reads, checks and fills in one node.
    pub(super) async fn load_node(&self, missing: &Missing) -> Result<(), DvolError> {
        if missing.is_filled() {
            return Ok(());
        }
        self.check_ours()?;
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

    /// Waits until the map says what is in `range`: data that is in the journal alone is given blocks by a checkpoint. Whoever comes
    /// to that has no business with it but to see it through, so this may take long.
    pub(super) async fn settle_journaled(
        &self,
        slot: Slot,
        range: &Range<VBlock>,
    ) -> Result<(), DvolError> {
        while !self.is_map_right(slot, range) {
            self.checkpoint_now().await?;
        }
        Ok(())
    }

    /// Whether the map says what is in `range`. Whoever has waited for anything since he asked asks again when he looks.
    pub(super) fn is_map_right(&self, slot: Slot, range: &Range<VBlock>) -> bool {
        planted(Bug::JournaledNotSeen) || !self.state.borrow().has_journaled(slot, range)
    }

    /// Loads every node that a change of `range` needs, or that says what is in it.
    pub(super) async fn load_range(
        &self,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<(), DvolError> {
        loop {
            self.settle_journaled(slot, &range).await?;
            self.load_nodes(slot, range.clone()).await?;
            if self.is_map_right(slot, &range) {
                return Ok(());
            }
        }
    }

    /// The same if it doesn't matter what is in it.
    pub(super) async fn load_nodes(
        &self,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<(), DvolError> {
        let mut makes_room = true;
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
            // Once and before loading, so that what this request loads is there when it is used,
            // however small the limit.
            if std::mem::take(&mut makes_room) {
                self.evict_nodes();
            }
            let loads = missing.iter().map(|m| self.load_node(m));
            join_all(loads)
                .await
                .into_iter()
                .collect::<Result<(), _>>()?;
        }
    }

    /// Lets go of clean nodes that were not used lately, if there are too many: a sixteenth more
    /// than too many, so that this is not done for every node that is loaded. Goes on where it
    /// stopped the last time, and looks at each map twice at most (the first look at a node that
    /// was used only notes it).
    ///
    /// While a large checkpoint is being written nearly all nodes may be such that stay. Then it
    /// looks again with each sixteenth that comes, and not at all of them for every node.
    pub(super) fn evict_nodes(&self) {
        let state = self.state.borrow();
        let (stats, eviction) = (&state.map_stats, &self.eviction);
        let loaded = || stats.loaded_bytes() as u64;
        let limit = self.options.map_cache_bytes;
        if loaded() <= limit {
            eviction.looked_at.set(0);
            return;
        }
        let round = stats.writes_round();
        let in_vain = eviction.in_vain.get();
        if in_vain.is_some_and(|(bytes, of)| of == round && loaded() <= bytes) {
            return;
        }
        eviction.in_vain.set(None);
        let target = limit - limit / 16;
        let before = stats.evict_looks();
        let from = eviction.from.replace(Slot(0));
        let rest = state.slots().skip_while(|(slot, _)| *slot < from);
        for (slot, found) in rest.chain(state.slots()) {
            if loaded() <= target {
                eviction.from.set(slot);
                break;
            }
            let mut hand = found.evict_hand.get();
            found.map.evict(&mut hand, EVICT_VISITS_MAX);
            found.evict_hand.set(hand);
        }
        let looks = stats.evict_looks() - before;
        let counter = &self.counters.nodes_looked_at;
        counter.set(counter.get() + looks);
        let looked_at = eviction.looked_at.get() + looks;
        eviction.looked_at.set(looked_at);
        if loaded() <= target {
            eviction.looked_at.set(0);
        } else if looked_at >= 2 * stats.loaded_nodes() as u64 {
            eviction.looked_at.set(0);
            let bytes = loaded() + limit / 16;
            eviction.in_vain.set(Some((bytes, round)));
        }
    }
}
