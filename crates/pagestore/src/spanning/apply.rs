//! What the machine does with parts: preparing, deciding, applying, deleting. Each is a commit that has the record's block
//! among its own.

use flagstone_platform::IoBuf;
use tracing::error;

use super::ledger::{Finished, Touch};
use super::message::{StoreId, TransactionId};
use super::record::{Record, RecordState};
use crate::commit::{Commit, CommitError, Committed, PARTS_MAX, RangeWrite, StoreError, Ticket};
use crate::machine::{DeviceSlots, Machine, Refused};
use crate::pointer::{BlockPtr, Generation, PagePtr};

/// A block, and the newest of its generations that were given and lost.
type Spent = ((usize, u64), Option<Generation>);

/// A part that is to be prepared, or to be decided with its transaction.
pub(super) struct NewPart<'a> {
    pub(super) transaction: TransactionId,
    pub(super) previous: Option<StoreId>,
    /// `None`: it is the last, and decides.
    pub(super) next: Option<StoreId>,
    pub(super) part: &'a Commit,
    /// Free, for the record.
    pub(super) block: BlockPtr,
}

impl Machine {
    /// Refuses what touches pages that are held. Costs nothing while nothing is.
    pub(crate) fn check_held(&self, commit: &Commit) -> Result<(), Refused> {
        if self.ledger.is_empty() {
            return Ok(());
        }
        let held = self.ledger.holder_of(&self.touches(commit)?);
        match held {
            Some((ptr, transaction)) => Err(Refused::For(CommitError::Busy(ptr, transaction))),
            None => Ok(()),
        }
    }

    /// Pages that a commit depends on or changes. Whatever happens to a block happens to all its pages.
    fn touches(&self, commit: &Commit) -> Result<Vec<Touch>, Refused> {
        let mut touches = Vec::new();
        let mut add = |ptr: PagePtr, count: u64, is_changed| {
            touches.push(Touch {
                extent: ptr.extent,
                pages: ptr.page..ptr.page.saturating_add(count),
                is_changed,
                ptr,
            });
        };
        for (ptr, _) in &commit.checks {
            add(*ptr, 1, false);
        }
        for write in &commit.writes {
            add(write.ptr, 1, true);
        }
        for range in &commit.ranges {
            let geometry = self.extents[self.locate(&range.first)?].geometry;
            let count = (range.data.len() as u64).div_ceil(geometry.page_bytes());
            add(range.first, count, true);
        }
        for (ptr, _) in commit.blocks() {
            let geometry = self.extents[self.locate(&ptr.0)?].geometry;
            add(ptr.0, geometry.pages_per_block(), true);
        }
        Ok(touches)
    }

    /// Prepares a part, or commits it and decides.
    pub(super) fn prepare(
        &mut self,
        new: &NewPart<'_>,
        found: &DeviceSlots,
    ) -> Result<Ticket, Refused> {
        if let Some(error) = self.dead {
            return Err(Refused::For(error.into()));
        }
        self.check_held(new.part)?;
        match new.next {
            Some(next) => self.prepare_part(new, next, found),
            None => self.decide_part(new, found),
        }
    }

    fn prepare_part(
        &mut self,
        new: &NewPart<'_>,
        next: StoreId,
        found: &DeviceSlots,
    ) -> Result<Ticket, Refused> {
        self.check_shape(new.part, PARTS_MAX)?;
        self.check_blocks(new.part)?;
        let new_pages = self.check_pages(new.part, found)?;
        let needed = self.needed_space(new.part, &new_pages.blocks)?;
        // What applying it takes is set aside from now on, so that applying never fails for want of it.
        self.check_room(&needed)?;
        let needs = needed
            .iter()
            .map(|(index, blocks)| (self.extents[*index].id, *blocks));
        let record = Record {
            transaction: new.transaction,
            previous: new.previous,
            state: RecordState::Prepared {
                next,
                part: new.part.clone(),
                needs: needs.collect(),
            },
        };
        let holds = self.touches(new.part)?;
        let (commit, bytes) = self.record_commit(&record, new, Commit::default())?;
        let done = self.decide(&commit, &DeviceSlots::new(), 2)?;
        self.note_record(record, (new.block, bytes), holds);
        Ok(done.ticket)
    }

    fn decide_part(&mut self, new: &NewPart<'_>, found: &DeviceSlots) -> Result<Ticket, Refused> {
        self.check_parts(new.part)?;
        let record = Record {
            transaction: new.transaction,
            previous: new.previous,
            state: RecordState::Decided,
        };
        let (commit, _) = self.record_commit(&record, new, new.part.clone())?;
        let done = self.decide(&commit, found, PARTS_MAX + 2)?;
        self.note_record(record, (new.block, 0), Vec::new());
        Ok(done.ticket)
    }

    fn check_parts(&self, part: &Commit) -> Result<(), Refused> {
        match part.parts() > PARTS_MAX {
            true => Err(Refused::For(CommitError::Invalid(
                "more than fifteen parts",
            ))),
            false => Ok(()),
        }
    }

    /// `with`, and the record in its block.
    fn record_commit(
        &self,
        record: &Record,
        new: &NewPart<'_>,
        with: Commit,
    ) -> Result<(Commit, usize), Refused> {
        let bytes = record.encode();
        // A start has to understand it: checks of pages that are also written count as no parts, so there may be more.
        if Record::decode(&bytes).is_none() {
            return Err(Refused::For(CommitError::Invalid(
                "more than a record of a commit over several stores can have",
            )));
        }
        let index = self.locate(&new.block.0)?;
        if bytes.len() as u64 > self.extents[index].geometry.block_bytes() {
            return Err(Refused::For(CommitError::Invalid(
                "more bytes than a part of a commit over several stores has",
            )));
        }
        if !self.ledger.has_room(bytes.len()) {
            return Err(Refused::For(StoreError::NoSpace.into()));
        }
        let len = bytes.len();
        let mut commit = with;
        commit.allocates.push(new.block);
        commit.ranges.push(RangeWrite {
            first: new.block.0,
            data: IoBuf::copy_of(&bytes),
        });
        Ok((commit, len))
    }

    fn note_record(&mut self, record: Record, place: (BlockPtr, usize), holds: Vec<Touch>) {
        self.ledger.insert(record, place, holds, self.open);
        self.recount_kept();
    }

    /// A record that was found at the start.
    pub(super) fn add_found(
        &mut self,
        record: Record,
        block: BlockPtr,
        bytes: usize,
    ) -> Option<()> {
        let (holds, bytes) = match &record.state {
            RecordState::Prepared { part, .. } => (self.touches(part).ok()?, bytes),
            RecordState::Decided => (Vec::new(), 0),
        };
        self.ledger.insert(record, (block, bytes), holds, 0);
        self.recount_kept();
        Some(())
    }

    /// Deletes a record; `Committed` applies what was prepared.
    pub(super) fn finish(
        &mut self,
        transaction: TransactionId,
        how: Finished,
        found: &DeviceSlots,
    ) -> Result<Ticket, Refused> {
        let Some(entry) = self.ledger.entry(transaction) else {
            return Ok(Ticket::default());
        };
        let part = entry.prepared().map(|(_, part)| part);
        let part = part.filter(|_| how == Finished::Committed);
        let mut commit = part.cloned().unwrap_or_default();
        commit.frees.push(entry.block);
        // From here on its own holds, and what is kept for it, don't count.
        self.ledger.set_gone(transaction, Some((self.open, how)));
        self.recount_kept();
        let spent = self.give_again(&commit.allocates);
        let done = self.decide(&commit, found, PARTS_MAX + 2);
        let done = done.map(|done: Committed| done.ticket);
        self.set_spent(spent);
        if done.is_err() {
            self.ledger.set_gone(transaction, None);
            self.recount_kept();
        }
        if let Err(Refused::For(
            error @ (CommitError::Conflict(_)
            | CommitError::NotOwner(_)
            | CommitError::Taken(_)
            | CommitError::Invalid(_)
            | CommitError::Busy(..)),
        )) = done
        {
            error!(
                "applying the part of transaction {transaction:?} that was prepared: {error}, though it was held; its \
                 pages stay held"
            );
            return Err(Refused::For(StoreError::Corrupt.into()));
        }
        done
    }

    /// Has blocks get the generations of these pointers next. A part has the same ones whenever it is applied, though they
    /// may have been given, and others behind them, by groups that were lost. Returns what was spent.
    fn give_again(&mut self, allocates: &[BlockPtr]) -> Vec<Spent> {
        let mut before = Vec::new();
        for ptr in allocates {
            let Ok(index) = self.locate(&ptr.0) else {
                continue;
            };
            let key = (index, self.extents[index].geometry.block_of(ptr.0.page));
            let spent = self.spent.insert(key, ptr.0.generation.before());
            before.push((key, spent));
        }
        before
    }

    fn set_spent(&mut self, before: Vec<Spent>) {
        for (key, spent) in before {
            match spent {
                Some(spent) => self.spent.insert(key, spent),
                None => self.spent.remove(&key),
            };
        }
    }

    /// What is kept for parts that are prepared.
    pub(crate) fn recount_kept(&mut self) {
        for extent in &mut self.extents {
            extent.kept = self.ledger.kept_in(extent.id);
        }
    }

    /// Groups above this one are lost: records that they made are gone, those that they deleted are there.
    pub(crate) fn handle_lost_records(&mut self, durable: u64) {
        if self.ledger.is_empty() {
            return;
        }
        self.ledger.handle_lost(durable);
        self.recount_kept();
    }
}
