//! Promising space: what is reserved for a dvol can really be written, whatever others write.
//!
//! What is promised to a dvol follows from its record, so a new promise counts only when the record
//! that makes it is applied. Until then it is *pledged*: nobody may take the blocks meanwhile, not
//! even the dvol itself, whose blocks are about to become a snapshot's and so no longer its own.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::Slot;

use super::Inner;
use super::error::DvolError;
use super::info::Handle;
use super::spacing::SPACE_WAITS_MAX;

/// Blocks pledged until the operation under way, of which there is one at a time, is over.
pub(super) struct Pledge<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Drop for Pledge<P> {
    fn drop(&mut self) {
        self.inner.pledged.borrow_mut().clear();
    }
}

impl<P: Platform> Inner<P> {
    /// Sees to it that each of these slots can be promised as many blocks, and keeps them until the
    /// pledge is dropped. The caller has the turn of administrative operations.
    pub(super) async fn pledge(
        self: &Rc<Self>,
        wanted: impl IntoIterator<Item = (Slot, u64)>,
    ) -> Result<Pledge<P>, DvolError> {
        let wanted = wanted.into_iter().filter(|&(_, blocks)| blocks > 0);
        let wanted = wanted.map(|(slot, blocks)| (slot.0, blocks)).collect();
        let more = |inner: &Self| inner.not_promised(&wanted);
        for waits in 0.. {
            self.check_running()?;
            if more(self) <= self.available() {
                break;
            }
            if waits == SPACE_WAITS_MAX || !self.may_gain_space() {
                return Err(DvolError::NoSpace);
            }
            self.gain_space(waits).await?;
        }
        let must_hold = more(self) > 0;
        *self.pledged.borrow_mut() = wanted;
        let pledge = Pledge {
            inner: self.clone(),
        };
        if must_hold {
            self.hold().await?;
        }
        Ok(pledge)
    }

    /// The pledge for operations after which nothing of a dvol's content is its own: each overwrite
    /// will take a new block, so all that is reserved must be there once more.
    pub(super) async fn pledge_anew(
        self: &Rc<Self>,
        dvols: impl IntoIterator<Item = Handle>,
    ) -> Result<Pledge<P>, DvolError> {
        let mut wanted = Vec::new();
        for dvol in dvols {
            wanted.push((dvol.slot, self.record(dvol)?.reserved_blocks));
        }
        self.pledge(wanted).await
    }

    /// Blocks set aside for dvols that do not use them yet, but for what is promised to `without`.
    pub(super) fn promised_blocks(&self, without: Slot) -> u64 {
        let mut pledged = self.pledged.borrow().clone();
        let own = pledged.remove(&without.0).unwrap_or(0);
        self.state.borrow().promised_blocks(without) + own + self.not_promised(&pledged)
    }

    /// How much more than what is promised already these are.
    fn not_promised(&self, wanted: &BTreeMap<u32, u64>) -> u64 {
        let state = self.state.borrow();
        let more = |(&slot, &blocks): (&u32, &u64)| {
            let promised = state.promised_to(Slot(slot));
            blocks.saturating_sub(promised)
        };
        wanted.iter().map(more).sum()
    }
}
