//! Forgetting old deallocations, in the background, so that a dvol does not collect tombstones
//! without end.
//!
//! First the floor is raised, by a record like any other change of the dvol; once that is durable,
//! the tombstones up to it are dropped. A question what has changed since an LSN below the floor is
//! refused from the first step on, so whatever a crash leaves of the second one, no answer depends
//! on it.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{DvolId, Lsn, Slot, VBlock, unit::VBLOCKS_MAX};

use super::Inner;
use super::background::Work;
use super::due::Purpose;
use super::error::DvolError;
use crate::format::catalogue::CatalogueRecord;
use crate::format::record::Record;
use crate::planted::{Bug, planted};
use crate::state::COUNT_AFTER;

/// Tombstones looked at or dropped in one go: bounds how long other work on the core waits.
const STEP_MAX: usize = 256;

/// LSNs kept to find the middle one. If there are more tombstones, some stand for several.
const SAMPLES_MAX: usize = 65_536;

/// What a dvol remembers of deallocations.
#[derive(Default)]
struct Census {
    count: u64,
    /// LSNs of every `stride`th tombstone.
    lsns: Vec<Lsn>,
    stride: u64,
}

impl Census {
    fn add(&mut self, lsn: Lsn) {
        self.stride = self.stride.max(1);
        if self.count.is_multiple_of(self.stride) {
            self.lsns.push(lsn);
        }
        self.count += 1;
        if self.lsns.len() == SAMPLES_MAX {
            let mut index = 0;
            self.lsns.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// The floor that leaves about `keep` of the youngest.
    fn floor(mut self, keep: u64) -> Lsn {
        self.lsns.sort_unstable();
        let kept = (keep / self.stride.max(1)) as usize;
        let dropped = self.lsns.len().saturating_sub(kept);
        match dropped {
            0 => Lsn::ZERO,
            dropped => self.lsns[dropped - 1],
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Task: sees to it that no dvol remembers too many deallocations.
    pub(super) async fn run_forgetter(self: Rc<Self>) {
        loop {
            let signal = self.signals.forget.wait();
            if self.check_running().is_err() {
                return;
            }
            let next = self.state.borrow_mut().next_to_forget();
            let Some(slot) = next else {
                signal.await;
                continue;
            };
            let most = self.tombstones_max(slot);
            let allowed = match self.forget_some(slot, most).await {
                Ok(left) => most.saturating_sub(left).max(most / 4),
                Err(DvolError::Fenced | DvolError::Stopping) => return,
                // The dvol is gone, or a node can't be read, or there is no room for new ones.
                Err(error) => {
                    tracing::debug!(slot = slot.0, "old deallocations are kept: {error}");
                    COUNT_AFTER
                }
            };
            let mut state = self.state.borrow_mut();
            state.allow_deallocations(slot, allowed.max(1));
        }
    }

    /// Tombstones that a dvol may have. A quarter of its mappings does not make its map much larger.
    fn tombstones_max(&self, slot: Slot) -> u64 {
        let state = self.state.borrow();
        let mapped_blocks = state.slot(slot).map_or(0, |s| s.record.mapped_blocks);
        self.options.tombstones_max.max(mapped_blocks / 4).max(2)
    }

    /// Counts what a dvol remembers, and forgets the older half if it is too much. How much is left.
    async fn forget_some(self: &Rc<Self>, slot: Slot, most: u64) -> Result<u64, DvolError> {
        let id = self.dvol_in(slot)?.id;
        let (census, forgettable) = self.count_tombstones(slot).await?;
        let count = census.count;
        if count <= most && forgettable == 0 {
            return Ok(count);
        }
        if count > most {
            let floor = census.floor(most / 2);
            if planted(Bug::TombstonesBeforeFloor) {
                self.drop_tombstones(slot, floor).await?;
            }
            self.raise_floor(slot, id, floor).await?;
        }
        if planted(Bug::TombstonesBeforeFloor) {
            return Ok(0);
        }
        let dropped = self.drop_tombstones(slot, Lsn::MAX).await?;
        Ok(count.saturating_sub(dropped))
    }

    fn dvol_in(&self, slot: Slot) -> Result<CatalogueRecord, DvolError> {
        let state = self.state.borrow();
        let found = state.slot(slot).filter(|s| s.is_dvol());
        let found = found.filter(|_| !self.closing.borrow().contains(&slot));
        found.map(|s| s.record.clone()).ok_or(DvolError::NotFound)
    }

    /// What a dvol remembers, and how many tombstones lie below its floor already.
    async fn count_tombstones(&self, slot: Slot) -> Result<(Census, u64), DvolError> {
        let mut census = Census::default();
        let mut forgettable = 0;
        let end = VBlock(VBLOCKS_MAX);
        let mut from = VBlock(0);
        loop {
            self.check_running()?;
            let _turn = self.background_turn(Work::reads(1)).await;
            let floor = self.dvol_in(slot)?.floor;
            let find = |map: &crate::v2p::Map, range, out: &mut Vec<_>| {
                map.tombstones(range, STEP_MAX, out)
            };
            // Tombstones alone: nobody waits for a checkpoint because of that.
            let (found, _) = self.entries_of_map(slot, from..end, find).await?;
            for entry in &found {
                census.add(entry.lsn);
                forgettable += u64::from(entry.lsn <= floor);
            }
            match found.last() {
                Some(last) if found.len() >= STEP_MAX => from = last.end_vblock(),
                _ => return Ok((census, forgettable)),
            }
            self.evict_nodes();
            self.platform.yield_now().await;
        }
    }

    /// Says, durably, that nothing is known of changes up to `floor`.
    async fn raise_floor(
        self: &Rc<Self>,
        slot: Slot,
        id: DvolId,
        floor: Lsn,
    ) -> Result<(), DvolError> {
        let _turn = self.admin.take(1).await;
        self.check_running()?;
        self.clear_way(slot, 1, Purpose::Giving).await?;
        let mut record = self.dvol_in(slot)?;
        if record.id != id {
            return Err(DvolError::NotFound);
        }
        record.floor = record.floor.max(floor);
        record.map = None;
        let record = Box::new(record);
        self.commit_admin(vec![Record::Update { slot, record }], vec![slot])
            .await
    }

    /// Drops the tombstones up to a dvol's floor and `up_to`. How many there were.
    async fn drop_tombstones(self: &Rc<Self>, slot: Slot, up_to: Lsn) -> Result<u64, DvolError> {
        let step = STEP_MAX.min(self.dirty_nodes_max() / 8).max(1);
        let mut from = VBlock(0);
        let mut dropped = 0;
        let mut loads = 0;
        loop {
            self.check_running()?;
            // A checkpoint under way must not lose its nodes, and one that is due comes first. That it finds room is
            // seen to below, so no other begins sooner for this than for writes.
            let checkpointed = self.signals.checkpointed.wait();
            let more = step as u64 * self.nodes_due_unmapping(slot) + 1;
            let is_due = self.has_many_dirty_nodes();
            if is_due || self.checkpoint_is_under_way() {
                if is_due {
                    self.request_checkpoint();
                }
                checkpointed.await;
                continue;
            }
            // They take no data blocks, but of nodes that a snapshot has they leave copies.
            if !self.has_way(slot, more, Purpose::Changing) {
                self.clear_way(slot, more, Purpose::Changing).await?;
                continue;
            }
            let pass = self.gate.enter();
            let result = {
                let mut state = self.state.borrow_mut();
                state.drop_tombstones(slot, up_to, from, step)
            };
            match result {
                Ok((count, next)) => {
                    dropped += count as u64;
                    let Some(next) = next else { break };
                    from = next;
                    drop(pass);
                    self.evict_nodes();
                    // Not between loading nodes and using them: they would be gone again.
                    if loads > 0 {
                        drop(self.background_turn(Work::reads(loads)).await);
                        loads = 0;
                    }
                }
                // What was loaded stays until it has been used: if the maps have less room than a
                // step needs, it would be loaded again and again, and so would what changes need.
                Err(missing) => {
                    loads += 1;
                    self.load_node(&missing).await?;
                }
            }
            self.platform.yield_now().await;
        }
        let forgotten = &self.counters.tombstones_forgotten;
        forgotten.set(forgotten.get() + dropped);
        Ok(dropped)
    }
}
