//! Seeing to it that the next checkpoint finds blocks for all that it has to write.
//!
//! Every change makes nodes dirty or catalogue pages stale, and a checkpoint writes each of them to a
//! fresh block. What units on their way may add counts from the moment they are submitted, since they
//! may all be applied before the next picture is taken. So before a unit is submitted there must be
//! room for what is due already and for what it may add; if there is not, a checkpoint comes first.
//!
//! A checkpoint gives as many blocks back as it takes, except where a node was a snapshot's as well:
//! its copy is one block more for good. On a full device those come out of what is kept for
//! checkpoints and overwrites. The last [`GIVING_RESERVE`] blocks of that are left to what gives space
//! back (deletion, reaping), and as long as anything is reserved, what is promised is left alone, too.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::Slot;

use super::Inner;
use super::error::DvolError;
use super::laying_out::Needed;
use super::spacing::{OVERWRITE_PART_BLOCKS, SPACE_WAITS_MAX};
use crate::format::record::{Record, blocks_of_bytes};
use crate::format::table::{PAGES_PER_INDEX, TableKind};
use crate::v2p::{nodes_changed_max, nodes_unmapped_max};

/// Blocks that only what gives space back may have due. A step of reaping needs a page of the
/// catalogue for the layer and one for its child, a deletion one for each layer; what they take comes
/// back with the next checkpoint, so they never come to the end of it.
pub(super) const GIVING_RESERVE: u64 = 32;

/// What a change is for, which says how deep it may go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Gives space back, or takes none: never refused.
    Giving,
    /// Takes no blocks for data, but may leave more nodes or pages than there were.
    Changing,
    /// Writes data; how many blocks for that, is asked elsewhere.
    Writing,
}

impl<P: Platform> Inner<P> {
    /// Blocks that a checkpoint takes for the segment table, whatever has changed, and for the index
    /// of the catalogue.
    fn due_for_tables(&self) -> u64 {
        let segments = self.capacity_blocks / (127 * 32768) + 1;
        let slots = self.state.borrow().slot_count() as u64;
        let per_index = (PAGES_PER_INDEX * TableKind::Catalogue.records_per_page()) as u64;
        2 * segments + slots / per_index + 1
    }

    /// Blocks that the next checkpoint takes, at most, once everything on its way is applied.
    pub(super) fn due(&self) -> u64 {
        let (nodes, pages) = {
            let state = self.state.borrow();
            let nodes = state.dirty_nodes() as u64 + state.journaled_due();
            (nodes, state.dirty_pages() as u64)
        };
        nodes + pages + self.due_ahead.get() + self.due_for_tables()
    }

    /// Blocks that a unit may have due at the next checkpoint: nodes it may make dirty, and pages of
    /// the catalogue.
    pub(super) fn due_for(&self, records: &[Record], slots: &[Slot]) -> u64 {
        let nodes = |record: &Record| match record {
            Record::Map { slot, runs, .. } => {
                let each = runs.iter().map(|run| run.blocks.len() as u64);
                each.map(|count| self.nodes_due(*slot, count)).sum()
            }
            Record::Delta { slot, .. } | Record::MapUnder { slot, .. } => self.nodes_due(*slot, 1),
            Record::Unmap { slot, ranges, .. } => {
                ranges.len() as u64 * self.nodes_due_unmapping(*slot)
            }
            Record::Journaled { slot, data, .. } => {
                self.journaled_due(*slot, blocks_of_bytes(data.len()))
            }
            _ => 0,
        };
        records.iter().map(nodes).sum::<u64>() + slots.len() as u64
    }

    /// Nodes that writing `count` consecutive blocks may make dirty.
    pub(super) fn nodes_due(&self, slot: Slot, count: u64) -> u64 {
        nodes_changed_max(self.root_level(slot), count)
    }

    /// Blocks that the next checkpoint may take for `count` consecutive blocks whose data is in the journal: theirs, and nodes.
    pub(super) fn journaled_due(&self, slot: Slot, count: u64) -> u64 {
        count + self.nodes_due(slot, count)
    }

    /// Nodes that deallocating a range may make dirty.
    pub(super) fn nodes_due_unmapping(&self, slot: Slot) -> u64 {
        nodes_unmapped_max(self.root_level(slot))
    }

    fn root_level(&self, slot: Slot) -> u8 {
        let state = self.state.borrow();
        let root = state.slot(slot).and_then(|s| s.map.root_level_and_birth());
        root.map_or(0, |(level, _)| level)
    }

    /// True if the next checkpoint will find room for `more` blocks beside what is due, in segments of
    /// this journal: what nobody owns yet, others may take.
    pub(super) fn has_way(&self, slot: Slot, more: u64, purpose: Purpose) -> bool {
        let (open, unloaded) = self.own_open_blocks();
        let needed = self.due() + more;
        let has_reservations = || self.state.borrow().has_reservations();
        let left = match purpose {
            Purpose::Giving => 0,
            Purpose::Changing if has_reservations() => {
                let kept = self.promised_and_held(slot).blocks() + OVERWRITE_PART_BLOCKS;
                self.checkpoint_reserve() + kept
            }
            Purpose::Changing | Purpose::Writing => GIVING_RESERVE,
        };
        open + unloaded >= needed + left
    }

    /// True if a unit may be submitted at once.
    pub(super) fn is_clear(&self, slot: Slot, more: u64, purpose: Purpose) -> bool {
        let nobody_waits = purpose == Purpose::Giving || self.way.free() > 0;
        nobody_waits && self.has_way(slot, more, purpose)
    }

    /// Waits until the next checkpoint will find room for `more` blocks, which a unit that is submitted
    /// without a further wait may make due. First come, first served, but for what gives space back.
    /// `NoSpace` if no checkpoint makes room.
    pub(super) async fn clear_way(
        self: &Rc<Self>,
        slot: Slot,
        more: u64,
        purpose: Purpose,
    ) -> Result<(), DvolError> {
        match self.clear_way_beside(slot, more, purpose).await {
            Err(DvolError::NoSpace) if purpose == Purpose::Changing => {}
            result => return result,
        }
        // Overwrites may have some of what it leaves alone, and give it back. Others take no more of it
        // while this has the turn; who writes has it before it comes here, so it is not taken above.
        let _turn = self.overwrites.take(1).await;
        let mut waits = SPACE_WAITS_MAX - 1;
        loop {
            self.check_running()?;
            if self.has_way(slot, more, purpose) {
                return Ok(());
            }
            self.wait_for_lent(&mut waits).await?;
        }
    }

    /// The same while others overwrite.
    async fn clear_way_beside(
        self: &Rc<Self>,
        slot: Slot,
        more: u64,
        purpose: Purpose,
    ) -> Result<(), DvolError> {
        if self.is_clear(slot, more, purpose) {
            return Ok(());
        }
        let _turn = match purpose {
            Purpose::Giving => None,
            Purpose::Changing | Purpose::Writing => Some(self.way.take(1).await),
        };
        let mut waits = 0;
        loop {
            self.check_running()?;
            if self.has_way(slot, more, purpose) {
                return Ok(());
            }
            if self.not_owned_yet() > 0 && self.open_for_way(slot, more, purpose).await {
                continue;
            }
            if waits == SPACE_WAITS_MAX || !self.may_gain_space() {
                return match purpose {
                    // There is room for it in what the others leave alone.
                    Purpose::Giving => Ok(()),
                    Purpose::Changing | Purpose::Writing => Err(DvolError::NoSpace),
                };
            }
            self.flush_now().await?;
            self.reopen_blocks();
            self.check_running()?;
            match self.checkpoint_now().await {
                Ok(()) | Err(DvolError::NoSpace) => {}
                Err(error) => return Err(error),
            }
            self.reopen_blocks();
            if waits > 0 {
                self.platform.sleep_ns(1_000_000).await;
            }
            waits += 1;
        }
    }

    /// Takes over a segment that nobody owns, if that is still needed. True if something has changed.
    async fn open_for_way(self: &Rc<Self>, slot: Slot, more: u64, purpose: Purpose) -> bool {
        let _turn = self.opening.take(1).await;
        self.check_running().is_err()
            || self.has_way(slot, more, purpose)
            || self.open_segment(Needed::ByChange).await.is_ok()
    }
}
