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
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{Slot, VBlock};

use super::Inner;
use super::error::DvolError;
use crate::planted::{Bug, planted};

/// Ranges remembered of one dvol. Beyond, one that has them all takes their place.
const RANGES_MAX: usize = 128;

/// Dvols remembered before those that are flushed are looked for and forgotten.
const DVOLS_BEFORE_CLEANING: usize = 1024;

/// Under way: no flush covers it yet.
const UNDER_WAY: u64 = u64::MAX;

#[derive(Clone)]
struct Loose {
    blocks: Range<VBlock>,
    /// The flush that covers it.
    ticket: Rc<Cell<u64>>,
}

/// What is not flushed, by dvol.
#[derive(Default)]
pub(super) struct LooseUnits {
    units: RefCell<BTreeMap<Slot, Vec<Loose>>>,
    /// Dvols that were left when it was last done.
    left: Cell<usize>,
}

/// While it lives the unit is under way.
pub(super) struct UnderWay<'a, P: Platform> {
    inner: &'a Inner<P>,
    ticket: Rc<Cell<u64>>,
}

impl<P: Platform> Drop for UnderWay<'_, P> {
    fn drop(&mut self) {
        self.ticket.set(self.inner.flusher.ticket());
    }
}

impl<P: Platform> Inner<P> {
    /// Notes what a unit changes that is answered without a flush. `None` if that is a single block.
    pub(super) fn note_loose(
        &self,
        parts: impl IntoIterator<Item = (Slot, Range<VBlock>)>,
    ) -> Option<UnderWay<'_, P>> {
        let parts: Vec<_> = parts.into_iter().collect();
        let blocks: u64 = parts.iter().map(|(_, b)| b.end.0 - b.start.0).sum();
        if blocks <= 1 {
            return None;
        }
        let ticket = Rc::new(Cell::new(UNDER_WAY));
        let mut units = self.loose.units.borrow_mut();
        // Those that nobody writes to any more. Twice as many as were left, so each pays for a few.
        if units.len() > DVOLS_BEFORE_CLEANING.max(2 * self.loose.left.get()) {
            units.retain(|_, of_slot| {
                of_slot.retain(|unit| !self.flusher.is_done(unit.ticket.get()));
                !of_slot.is_empty()
            });
            self.loose.left.set(units.len());
        }
        for (slot, blocks) in parts {
            let of_slot = units.entry(slot).or_default();
            of_slot.retain(|unit| !self.flusher.is_done(unit.ticket.get()));
            if of_slot.len() >= RANGES_MAX {
                join(of_slot);
            }
            let ticket = ticket.clone();
            of_slot.push(Loose { blocks, ticket });
        }
        Some(UnderWay {
            inner: self,
            ticket,
        })
    }

    /// Has what lies in a block flushed, if it is a part of such a unit. The caller has the block to itself.
    pub(super) async fn settle_loose(&self, slot: Slot, block: VBlock) -> Result<(), DvolError> {
        let is_loose = {
            let mut units = self.loose.units.borrow_mut();
            let Some(of_slot) = units.get_mut(&slot) else {
                return Ok(());
            };
            of_slot.retain(|unit| !self.flusher.is_done(unit.ticket.get()));
            let is_loose = of_slot.iter().any(|unit| unit.blocks.contains(&block));
            if of_slot.is_empty() {
                units.remove(&slot);
            }
            is_loose
        };
        match is_loose && !planted(Bug::CopyBeforeFlush) {
            true => self.flush_now().await,
            false => Ok(()),
        }
    }
}

/// Puts one that has all their blocks in place of those that are not under way.
fn join(units: &mut Vec<Loose>) {
    let is_over = |unit: &Loose| unit.ticket.get() != UNDER_WAY;
    let over: Vec<Loose> = units.iter().filter(|unit| is_over(unit)).cloned().collect();
    units.retain(|unit| !is_over(unit));
    let start = over.iter().map(|unit| unit.blocks.start).min();
    let end = over.iter().map(|unit| unit.blocks.end).max();
    let ticket = over.iter().map(|unit| unit.ticket.get()).max();
    if let (Some(start), Some(end), Some(ticket)) = (start, end, ticket) {
        units.push(Loose {
            blocks: start..end,
            ticket: Rc::new(Cell::new(ticket)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_they_have_all_blocks_and_the_latest_flush() {
        let unit = |start: u64, end: u64, ticket: u64| Loose {
            blocks: VBlock(start)..VBlock(end),
            ticket: Rc::new(Cell::new(ticket)),
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
}
