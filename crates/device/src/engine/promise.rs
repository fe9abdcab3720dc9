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
use crate::state::{Promise, State};

/// What is to be reserved for a dvol. How many blocks that takes follows from records as they are at
/// each moment: while segments are taken for it, clients write and trim.
#[derive(Clone, Copy)]
pub(super) struct Pledged {
    reserved_blocks: u64,
    content: Content,
}

/// What a dvol will have when what is pledged is promised.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// Nothing.
    Empty,
    /// What it has now.
    AsItIs,
    /// What this slot has now, and nothing of it is its own.
    SharedWith(Slot),
}

impl Pledged {
    pub(super) fn new(reserved_blocks: u64, content: Content) -> Pledged {
        Pledged {
            reserved_blocks,
            content,
        }
    }

    fn promise(&self, slot: Slot, state: &State) -> Promise {
        let record = |slot| state.slot(slot).map(|s| &s.record);
        let reserved = self.reserved_blocks;
        match self.content {
            Content::Empty => Promise::new(reserved, 0, 0),
            Content::AsItIs => record(slot).map_or_else(Promise::default, |record| {
                Promise::if_reserved(record, reserved)
            }),
            Content::SharedWith(slot) => {
                let inherited = record(slot).map_or(0, |record| record.mapped_blocks);
                Promise::new(reserved, 0, inherited)
            }
        }
    }
}

/// Blocks pledged until the operation under way, of which there is one at a time, is over.
pub(super) struct Pledge<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Drop for Pledge<P> {
    fn drop(&mut self) {
        self.inner.pledged.borrow_mut().clear();
        self.inner.pledge_held.set(false);
    }
}

impl<P: Platform> Inner<P> {
    /// Sees to it that so much can be reserved for each of these slots, and keeps it until the pledge is
    /// dropped. The caller has the turn of administrative operations.
    pub(super) async fn pledge(
        self: &Rc<Self>,
        wanted: impl IntoIterator<Item = (Slot, Pledged)>,
    ) -> Result<Pledge<P>, DvolError> {
        let wanted = wanted
            .into_iter()
            .filter(|(_, pledged)| pledged.reserved_blocks > 0);
        let wanted = wanted.map(|(slot, pledged)| (slot.0, pledged)).collect();
        let more = |inner: &Self| inner.not_promised(&wanted).blocks();
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
        self.pledge_held.set(!must_hold);
        *self.pledged.borrow_mut() = wanted;
        let pledge = Pledge {
            inner: self.clone(),
        };
        if must_hold {
            self.hold().await?;
        }
        Ok(pledge)
    }

    /// The pledge for operations after which nothing of a dvol's content, that of the second handle,
    /// is its own: each overwrite will take a new block, so all that is reserved must be there once
    /// more.
    pub(super) async fn pledge_anew(
        self: &Rc<Self>,
        dvols: impl IntoIterator<Item = (Handle, Handle)>,
    ) -> Result<Pledge<P>, DvolError> {
        let mut wanted = Vec::new();
        for (dvol, content) in dvols {
            let reserved = self.record(dvol)?.reserved_blocks;
            let content = Content::SharedWith(content.slot);
            wanted.push((dvol.slot, Pledged::new(reserved, content)));
        }
        self.pledge(wanted).await
    }

    /// What is set aside for dvols that do not use it yet, but for what is promised to `without`.
    pub(super) fn promised(&self, without: Slot) -> Promise {
        let mut pledged = self.pledged.borrow().clone();
        let state = self.state.borrow();
        let own = pledged.remove(&without.0);
        let own = own.map_or_else(Promise::default, |p| p.promise(without, &state));
        let others = state.promised(without);
        others.and(own).and(self.not_promised(&pledged))
    }

    /// The same as far as it lies in segments of this journal: without what is pledged until all of
    /// that has been taken. A change that counted it before would itself have to take segments for it.
    pub(super) fn promised_and_held(&self, without: Slot) -> Promise {
        match self.pledge_held.get() {
            true => self.promised(without),
            false => self.state.borrow().promised(without),
        }
    }

    /// How much more than what is promised already these are.
    fn not_promised(&self, wanted: &BTreeMap<u32, Pledged>) -> Promise {
        let state = self.state.borrow();
        let more = |(&slot, pledged): (&u32, &Pledged)| {
            let promised = state.promised_to(Slot(slot));
            pledged.promise(Slot(slot), &state).beyond(promised)
        };
        wanted
            .iter()
            .map(more)
            .fold(Promise::default(), Promise::and)
    }
}
