//! Units of several blocks that were answered without a flush: after a crash any of them may be left out, as a
//! whole, because some of its data never arrived.
//!
//! A later change that covers only a part of one of their blocks copies the rest of it. If that change
//! survived the crash and the unit did not, the copy would show a part of what as a whole never happened. So
//! whoever is about to copy from such a block has it flushed first. What lies in one block alone needs none
//! of this: copied it is all there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_platform::Platform;
use flagstone_platform::pool::{Pool, Pooled};
use flagstone_types::{Slot, VBlock};
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use crate::planted::{Bug, planted};

/// Ranges remembered of one dvol. Beyond, one that has them all takes their place.
const RANGES_MAX: usize = 128;

/// Dvols remembered before those that are flushed are looked for and forgotten.
const DVOLS_BEFORE_CLEANING: usize = 1024;

/// Under way: no flush covers it yet.
const UNDER_WAY: u64 = u64::MAX;

/// Tickets that memory is kept for when nobody looks at them any more.
const TICKETS_MAX: usize = 1024;

/// The flush that covers a unit.
pub(super) type Ticket = Pooled<Cell<u64>>;

#[derive(Clone)]
struct Loose {
    blocks: Range<VBlock>,
    ticket: Ticket,
}

/// What is not flushed, by dvol.
pub(super) struct LooseUnits {
    units: RefCell<BTreeMap<Slot, Vec<Loose>>>,
    /// Dvols that were left when it was last done.
    left: Cell<usize>,
    tickets: Pool<Cell<u64>>,
}

impl Default for LooseUnits {
    fn default() -> LooseUnits {
        LooseUnits {
            units: RefCell::default(),
            left: Cell::default(),
            tickets: Pool::new(TICKETS_MAX),
        }
    }
}

/// While it lives the unit is under way.
pub(super) struct UnderWay<'a, P: Platform> {
    inner: &'a Inner<P>,
    ticket: Option<Ticket>,
}

impl<P: Platform> UnderWay<'_, P> {
    /// Who ends it says so there instead ([`Inner::no_more_under_way`]).
    pub(super) fn handed_on(mut self) -> Option<Ticket> {
        self.ticket.take()
    }
}

impl<P: Platform> Drop for UnderWay<'_, P> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.inner.no_more_under_way(&ticket);
        }
    }
}

impl LooseUnits {
    /// Remembers a unit. Where the flush that covers it is to be noted, or `None` if it is a single block.
    fn note(
        &self,
        parts: &[(Slot, Range<VBlock>)],
        is_done: impl Fn(u64) -> bool,
    ) -> Option<Ticket> {
        let blocks: u64 = parts.iter().map(|(_, b)| b.end.0 - b.start.0).sum();
        if blocks <= 1 {
            return None;
        }
        let is_open = |unit: &mut Loose| !is_done(unit.ticket.get());
        let ticket = self.tickets.share(Cell::new(UNDER_WAY));
        let mut units = self.units.borrow_mut();
        // Those that nobody writes to any more. Twice as many as were left, so each pays for a few.
        if units.len() > DVOLS_BEFORE_CLEANING.max(2 * self.left.get()) {
            units.retain(|_, of_slot| {
                of_slot.retain_mut(is_open);
                !of_slot.is_empty()
            });
            self.left.set(units.len());
        }
        for (slot, blocks) in parts {
            let of_slot = units.entry(*slot).or_default();
            of_slot.retain_mut(is_open);
            if of_slot.len() >= RANGES_MAX {
                join(of_slot);
            }
            of_slot.push(Loose {
                blocks: blocks.clone(),
                ticket: ticket.clone(),
            });
        }
        Some(ticket)
    }

    /// True if what lies in a block is a part of a unit that a crash may still take back.
    fn has(&self, slot: Slot, block: VBlock, is_done: impl Fn(u64) -> bool) -> bool {
        let mut units = self.units.borrow_mut();
        let Some(of_slot) = units.get_mut(&slot) else {
            return false;
        };
        of_slot.retain(|unit| !is_done(unit.ticket.get()));
        let is_loose = of_slot.iter().any(|unit| unit.blocks.contains(&block));
        if of_slot.is_empty() {
            units.remove(&slot);
        }
        is_loose
    }
}

impl<P: Platform> Inner<P> {
    /// Notes what a unit changes that is answered without a flush. `None` if that is a single block.
    pub(super) fn note_loose(
        &self,
        parts: impl IntoIterator<Item = (Slot, Range<VBlock>)>,
    ) -> Option<UnderWay<'_, P>> {
        let parts: SmallVec<[_; 1]> = parts.into_iter().collect();
        let ticket = self.loose.note(&parts, |t| self.flusher.is_done(t))?;
        Some(UnderWay {
            inner: self,
            ticket: Some(ticket),
        })
    }

    /// A unit has been written, or has failed: a flush that begins from now on covers it.
    pub(super) fn no_more_under_way(&self, ticket: &Cell<u64>) {
        ticket.set(self.flusher.ticket());
    }

    /// Has what lies in a block flushed, if it is a part of such a unit. The caller has the block to itself.
    pub(super) async fn settle_loose(&self, slot: Slot, block: VBlock) -> Result<(), DvolError> {
        let is_loose = self.loose.has(slot, block, |t| self.flusher.is_done(t));
        match is_loose && !planted(Bug::CopyBeforeFlush) {
            true => self.flush_now().await,
            false => Ok(()),
        }
    }
}

/// Puts one that has all their blocks in place of those that are not under way.
fn join(units: &mut Vec<Loose>) {
    let mut joined: Option<Loose> = None;
    units.retain(|unit| {
        let is_over = unit.ticket.get() != UNDER_WAY;
        if is_over {
            let so_far = joined.get_or_insert_with(|| unit.clone());
            let (blocks, of_all) = (&unit.blocks, &mut so_far.blocks);
            *of_all = of_all.start.min(blocks.start)..of_all.end.max(blocks.end);
            if unit.ticket.get() > so_far.ticket.get() {
                so_far.ticket = unit.ticket.clone();
            }
        }
        !is_over
    });
    units.extend(joined);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_they_have_all_blocks_and_the_latest_flush() {
        let unit = |start: u64, end: u64, ticket: u64| Loose {
            blocks: VBlock(start)..VBlock(end),
            ticket: Pooled::alone(Cell::new(ticket)),
        };
        let mut units = vec![
            unit(5, 7, 3),
            unit(90, 95, UNDER_WAY),
            unit(20, 30, 9),
            unit(1, 3, 4),
        ];
        join(&mut units);
        let shown: Vec<_> = units
            .iter()
            .map(|u| (u.blocks.clone(), u.ticket.get()))
            .collect();
        assert_eq!(
            shown,
            [
                (VBlock(90)..VBlock(95), UNDER_WAY),
                (VBlock(1)..VBlock(30), 9)
            ]
        );
    }
    const FIRST: Range<VBlock> = VBlock(0)..VBlock(2);

    /// Notes a unit of the first two blocks of a dvol whose flush is this one.
    fn note(units: &LooseUnits, slot: u32, ticket: u64, done: u64) {
        let noted = units.note(&[(Slot(slot), FIRST)], |t| t <= done);
        noted.expect("several blocks").set(ticket);
    }

    #[test]
    fn dvols_that_are_flushed_are_forgotten_and_the_others_are_not() {
        let units = LooseUnits::default();
        let most = DVOLS_BEFORE_CLEANING as u32;
        // Every fourth waits for a later flush, one has none yet.
        let ticket = |slot: u32| match slot {
            7 => UNDER_WAY,
            slot if slot % 4 == 0 => 2,
            _ => 1,
        };
        for slot in 0..=most {
            note(&units, slot, ticket(slot), 1);
        }
        assert_eq!(units.units.borrow().len(), DVOLS_BEFORE_CLEANING + 1);
        note(&units, most + 1, 2, 1);
        let left: Vec<u32> = units.units.borrow().keys().map(|slot| slot.0).collect();
        let expected = (0..=most + 1).filter(|&slot| ticket(slot) > 1 || slot > most);
        assert_eq!(left, expected.collect::<Vec<_>>());
        for slot in left {
            assert!(units.has(Slot(slot), VBlock(1), |t| t <= 1), "{slot}");
        }
    }

    /// As long as nothing can be forgotten, looking for it again and again would cost more than it is worth.
    #[test]
    fn what_was_left_doubles_before_it_is_gone_through_again() {
        let units = LooseUnits::default();
        let most = DVOLS_BEFORE_CLEANING as u32;
        for slot in 0..=most + 1 {
            note(&units, slot, 1, 0);
        }
        assert_eq!(units.left.get(), DVOLS_BEFORE_CLEANING + 1);
        // The first flush is done, and nobody looks yet.
        for slot in most + 2..=2 * most + 2 {
            note(&units, slot, 2, 1);
        }
        assert_eq!(units.units.borrow().len() as u32, 2 * most + 3);
        note(&units, 2 * most + 3, 2, 1);
        assert_eq!(units.units.borrow().len() as u32, most + 2);
    }

    #[test]
    fn a_unit_of_several_dvols_is_loose_where_it_lies_in_each() {
        let units = LooseUnits::default();
        let block = |at: u64| VBlock(at)..VBlock(at + 1);
        let parts = [(Slot(1), block(0)), (Slot(2), block(5))];
        let ticket = units.note(&parts, |_| false).expect("two blocks");
        let are = |done: u64| {
            let places = [(1, 0), (1, 5), (2, 0), (2, 5), (3, 0)];
            places.map(|(slot, at)| units.has(Slot(slot), VBlock(at), |t| t <= done))
        };
        assert_eq!(are(0), [true, false, false, true, false]);
        ticket.set(3);
        assert_eq!(are(2), [true, false, false, true, false]);
        assert_eq!(are(3), [false; 5]);
        assert!(units.units.borrow().is_empty());
        assert!(units.note(&parts[..1], |_| false).is_none(), "one block");
    }
}
