//! Forgetting deallocations.
//!
//! A tombstone is only there to say when its blocks were deallocated. A dvol whose address space is
//! written and deallocated here and there would collect them without end, so the oldest are
//! dropped, those up to the dvol's floor. Nothing that anybody reads depends on them, so this needs
//! no record: a replay that still has them gives the same answers, because the floor is in front
//! of every answer that would tell of them.

use flagstone_types::{Lsn, Slot, VBlock};

use super::{Effects, State};
use crate::planted::{Bug, planted};
use crate::v2p::{Edit, Missing};

/// Ranges that may be deallocated in a dvol after a start before its tombstones are counted.
pub const COUNT_AFTER: u64 = 256;

impl State {
    /// Takes note that tombstones may have been left in a dvol.
    pub(super) fn note_deallocations(&mut self, slot: Slot, count: u64, effects: &mut Effects) {
        let count_after = self.count_tombstones_after;
        let Some(state) = self.slot_mut(slot) else {
            return;
        };
        let left = state.deallocations_left.unwrap_or(count_after);
        let left = left.saturating_sub(count);
        state.deallocations_left = Some(left);
        if left == 0 {
            self.full_of_tombstones.insert(slot.0);
            effects.may_forget = true;
        }
    }

    /// A dvol that may have too many tombstones. It comes up again only after it has been allowed
    /// more deallocations.
    pub fn next_to_forget(&mut self) -> Option<Slot> {
        loop {
            let slot = Slot(self.full_of_tombstones.pop_first()?);
            if self.slot(slot).is_some_and(|s| s.is_dvol()) {
                return Some(slot);
            }
        }
    }

    /// Says how many ranges may be deallocated in a dvol before it comes up again.
    pub fn allow_deallocations(&mut self, slot: Slot, count: u64) {
        if let Some(state) = self.slot_mut(slot) {
            state.deallocations_left = Some(count);
        }
    }

    /// Drops up to `limit` tombstones of a dvol, from `from` on, as far as they lie at or below
    /// `up_to` and its floor. How many, and the block to go on from, or `None` when there are no more.
    ///
    /// Not while a checkpoint is under way: nodes are given up here, and a checkpoint has made sure
    /// before it takes its picture that the bitmaps of all that are given up are in memory.
    pub fn drop_tombstones(
        &mut self,
        slot: Slot,
        up_to: Lsn,
        from: VBlock,
        limit: usize,
    ) -> Result<(usize, Option<VBlock>), Missing> {
        let Some(state) = self.slot_mut(slot).filter(|s| s.is_dvol()) else {
            return Ok((0, None));
        };
        let mut edit = Edit::new(state.record.layer);
        let floor = match planted(Bug::TombstonesAboveFloor) || planted(Bug::TombstonesBeforeFloor)
        {
            true => up_to,
            false => state.record.floor.min(up_to),
        };
        let next = state.map.drop_tombstones(&mut edit, floor, from, limit)?;
        let forgotten = edit.forgotten;
        debug_assert!(edit.displaced.is_empty(), "a tombstone holds no block");
        if edit.dirtied > 0 || !edit.retired.is_empty() {
            self.take_nodes(slot, edit);
        }
        Ok((forgotten, next))
    }
}
