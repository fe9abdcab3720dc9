//! A store as a participant: what it does with each message.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::BLOCK_SIZE;
use tracing::{error, info};

use super::apply::NewPart;
use super::ledger::{Finished, RECORDS_MAX};
use super::message::{Answer, Message, Participant, Reply, StoreId, TransactionId};
use super::record::Record;
use crate::commit::{Commit, CommitError, ReadError, StoreError};
use crate::geometry::Geometry;
use crate::header;
use crate::machine::Machine;
use crate::pointer::{ExtentId, OwnerId};
use crate::store::{Inner, Store};

/// The extent that the store's own records are in. No other may have this id.
pub(crate) const RECORDS: ExtentId = ExtentId(u64::MAX);
/// Bytes of a record, at most.
const RECORD_BYTES: u64 = 1 << 20;
/// Whose its blocks are.
const OWNER: OwnerId = OwnerId(u64::MAX);

impl<P: Platform> Store<P> {
    /// Its name as a participant of transactions over several stores. It never changes.
    pub fn id(&self) -> StoreId {
        self.inner.id
    }

    /// Reads what was there at the last stop: parts that are prepared are held again before anybody commits.
    pub(crate) async fn load_records(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        if inner.machine.borrow().index_of(RECORDS).is_err() {
            return Ok(());
        }
        let mut count = 0;
        for block in 0..RECORDS_MAX {
            let Some(ptr) = self.block(RECORDS, block).await? else {
                continue;
            };
            let read = async |len| match self.read_range(ptr.0, 0, len).await {
                Ok((pieces, _)) => Ok(inner.join(pieces, len as usize)),
                Err(ReadError::Store(error)) => Err(error),
                Err(_) => Err(StoreError::Corrupt),
            };
            let head = read(BLOCK_SIZE).await?;
            let len = Record::len_of(&head).filter(|len| *len <= RECORD_BYTES);
            let bytes = read(len.unwrap_or(BLOCK_SIZE)).await?;
            let added = Record::decode(&bytes).and_then(|record| {
                inner
                    .machine
                    .borrow_mut()
                    .add_found(record, ptr, bytes.len())
            });
            if added.is_none() {
                error!(
                    "opening the page store: the record of a transaction in block {block} of extent {:#x} is not what the \
                     format says; nothing is read or written",
                    RECORDS.0
                );
                return Err(StoreError::Corrupt);
            }
            count += 1;
        }
        if count > 0 {
            info!("the page store has records of {count} transactions over several stores");
        }
        Ok(())
    }

    /// Makes the extent for records, the first time that one is needed.
    async fn make_room_for_records(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let _turn = inner.records_turn.take(1).await;
        if inner.machine.borrow().index_of(RECORDS).is_ok() {
            return Ok(());
        }
        // First: whoever doesn't know of records must not open a store that has one.
        let header = inner.header.get();
        inner
            .header
            .set(header::note_transactions(&inner.engine, header).await?);
        let geometry = Geometry::new(BLOCK_SIZE, RECORD_BYTES, RECORDS_MAX);
        let geometry = geometry.map_err(|_| StoreError::Corrupt)?;
        inner.create_extent(RECORDS, geometry).await
    }

    async fn handle(&self, message: Message) -> Result<Answer, StoreError> {
        let transaction = message.transaction();
        self.inner.stand_still(transaction).await?;
        match message {
            Message::Prepare {
                previous,
                next,
                as_of,
                part,
                ..
            } => {
                self.take_part(transaction, previous, Some(next), as_of, &part)
                    .await
            }
            Message::PrepareAndDecide {
                previous,
                as_of,
                part,
                ..
            } => {
                self.take_part(transaction, previous, None, as_of, &part)
                    .await
            }
            Message::DecideAndRelease(_) | Message::Release(_) => {
                let is_release = matches!(message, Message::Release(_));
                match self.inner.answer_of(transaction) {
                    Answer::Prepared { .. } if !is_release => {}
                    Answer::Decided { .. } if is_release => {}
                    other => return Ok(other),
                }
                self.finish(transaction, Finished::Committed).await
            }
            Message::Inquire(_) => Ok(self.inner.answer_of(transaction)),
            Message::Refuse(_) => {
                let answer = self.inner.answer_of(transaction);
                if answer == Answer::Gone {
                    let mut machine = self.inner.machine.borrow_mut();
                    machine.ledger.finish(transaction, Finished::Promised);
                    return Ok(Answer::Promised);
                }
                Ok(answer)
            }
            Message::Abort(_) => match self.inner.answer_of(transaction) {
                Answer::Prepared { .. } => self.finish(transaction, Finished::Aborted).await,
                Answer::Gone => {
                    let mut machine = self.inner.machine.borrow_mut();
                    machine.ledger.finish(transaction, Finished::Promised);
                    Ok(Answer::Promised)
                }
                other => Ok(other),
            },
        }
    }

    async fn take_part(
        &self,
        transaction: TransactionId,
        previous: Option<StoreId>,
        next: Option<StoreId>,
        as_of: u64,
        part: &Commit,
    ) -> Result<Answer, StoreError> {
        let inner = &self.inner;
        if let Some(answer) = inner.over(transaction, as_of) {
            return Ok(answer);
        }
        let claim = match self.make_room_for_records().await {
            Ok(()) => self.claim(RECORDS, OWNER).await,
            Err(error) => Err(error),
        };
        let claim = match claim {
            Ok(claim) => claim,
            Err(StoreError::NoSpace) => {
                return Ok(inner.refused(transaction, as_of, StoreError::NoSpace.into()));
            }
            Err(error) => return Err(error),
        };
        let new = NewPart {
            transaction,
            previous,
            next,
            part,
            block: claim.ptr,
        };
        let done = inner
            .decide(part, |machine, found| {
                // Copies of the message, or a walker, may have come while pages were looked up.
                match over(machine, transaction, as_of) {
                    Some(_) => Ok(()),
                    None => machine.prepare(&new, found).map(drop),
                }
            })
            .await;
        match done {
            Ok(()) => {}
            // Nothing was decided, and the same message may come again.
            Err(CommitError::Store(error)) if error != StoreError::NoSpace => return Err(error),
            Err(error) => return Ok(inner.refused(transaction, as_of, error)),
        }
        inner.stand_still(transaction).await?;
        Ok(inner.answer_of(transaction))
    }

    async fn finish(
        &self,
        transaction: TransactionId,
        how: Finished,
    ) -> Result<Answer, StoreError> {
        let inner = &self.inner;
        let part = {
            let machine = inner.machine.borrow();
            let entry = machine.ledger.entry(transaction);
            let part = entry.and_then(|entry| entry.prepared().map(|(_, part)| part.clone()));
            part.filter(|_| how == Finished::Committed)
        };
        let part = part.unwrap_or_default();
        let done = inner.decide(&part, |machine, found| {
            let settled = machine.settled;
            match machine.ledger.is_moving(transaction, settled) {
                // Somebody else's message was first.
                Some(_) => Ok(()),
                None => machine.finish(transaction, how, found).map(drop),
            }
        });
        match done.await {
            Ok(()) => {}
            Err(CommitError::Store(error)) => return Err(error),
            Err(_) => return Err(StoreError::Corrupt),
        }
        inner.stand_still(transaction).await?;
        Ok(inner.answer_of(transaction))
    }
}

/// What is answered to a message that would make a record, if it must not.
fn over(machine: &Machine, transaction: TransactionId, as_of: u64) -> Option<Answer> {
    let ledger = &machine.ledger;
    if ledger.entry(transaction).is_some() || ledger.finished(transaction).is_some() {
        return Some(known(machine, transaction));
    }
    ledger.is_too_old(as_of).then_some(Answer::Gone)
}

fn known(machine: &Machine, transaction: TransactionId) -> Answer {
    if let Some(entry) = machine.ledger.entry(transaction) {
        let previous = entry.record.previous;
        return match entry.prepared() {
            Some((next, _)) => Answer::Prepared { previous, next },
            None => Answer::Decided { previous },
        };
    }
    match machine.ledger.finished(transaction) {
        Some(Finished::Committed) => Answer::Committed,
        Some(Finished::Aborted) => Answer::Aborted,
        Some(Finished::Promised) => Answer::Promised,
        None => Answer::Gone,
    }
}

impl<P: Platform> Inner<P> {
    fn over(&self, transaction: TransactionId, as_of: u64) -> Option<Answer> {
        over(&self.machine.borrow(), transaction, as_of)
    }

    fn answer_of(&self, transaction: TransactionId) -> Answer {
        known(&self.machine.borrow(), transaction)
    }

    /// A refusal is final: a second copy of the message must not find the condition true.
    fn refused(&self, transaction: TransactionId, as_of: u64, error: CommitError) -> Answer {
        let mut machine = self.machine.borrow_mut();
        match over(&machine, transaction, as_of) {
            // A copy of the message was first, and may be forgotten already.
            Some(answer) => answer,
            None => {
                machine.ledger.finish(transaction, Finished::Aborted);
                Answer::Refused(error)
            }
        }
    }

    /// What was lost with its group must not come back after a power loss, once somebody was told that it isn't there. The
    /// journal's word that it was given up is durable with whatever is written later.
    async fn make_sure(&self) -> Result<(), StoreError> {
        let epoch = self.machine.borrow().epoch();
        if epoch == self.sure_epoch.get() {
            return Ok(());
        }
        // A new version of the header may be under way, which this must not take back.
        let _turn = self.records_turn.take(1).await;
        header::write_again(&self.engine, self.header.get()).await?;
        self.sure_epoch.set(epoch);
        Ok(())
    }

    /// Waits until what this store has of a transaction is durable, or lost.
    async fn stand_still(self: &Rc<Self>, transaction: TransactionId) -> Result<(), StoreError> {
        loop {
            let settled = self.settled.wait();
            {
                let machine = self.machine.borrow();
                if machine
                    .ledger
                    .is_moving(transaction, machine.settled)
                    .is_none()
                {
                    return Ok(());
                }
                if let Some(error) = machine.dead {
                    return Err(error);
                }
            }
            settled.await;
        }
    }
}

impl<P: Platform> Participant for Store<P> {
    fn id(&self) -> StoreId {
        self.inner.id
    }

    async fn send(&self, message: Message) -> Result<Reply, StoreError> {
        let answer = self.handle(message).await?;
        self.inner.make_sure().await?;
        let machine = self.inner.machine.borrow();
        // A store that is fenced doesn't know what it has: a group whose flush failed may be there at the next start,
        // and with it a decision, or a record that was not deleted.
        if let Some(error) = machine.dead {
            return Err(error);
        }
        Ok(Reply {
            answer,
            as_of: machine.ledger.as_of(),
        })
    }

    async fn records(&self) -> Result<Vec<TransactionId>, StoreError> {
        Ok(self.inner.machine.borrow().ledger.transactions())
    }

    async fn commit_alone(&self, commit: &Commit) -> Result<(), CommitError> {
        let committed = self.commit(commit).await?;
        Ok(self.wait(committed.ticket).await?)
    }
}
