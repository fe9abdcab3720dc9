//! Walks: bringing a transaction to its end that its coordinator has left, or doesn't know the end of. [fss 6]
//!
//! The rules are in `docs/protocols/two-phase-commit.md`, "When something stops". Any number of walks may be under way
//! at once, and the coordinator with them.

use std::collections::BTreeSet;

use flagstone_platform::Platform;
use tracing::warn;

use super::coordinator::Spanning;
use super::message::{Answer, Message, Participant, StoreId, TransactionId};
use crate::commit::StoreError;

/// A record that was there for so long has been left.
const LEFT_NS: u64 = 1_000_000_000;

/// What a walk proves of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It has happened.
    Committed,
    /// It has not and never will.
    Aborted,
    /// It is over, and nobody remembers how.
    Unknown,
}

impl<P: Platform, T: Participant> Spanning<P, T> {
    /// Brings a transaction to its end, from a store on that has a record or had one.
    pub async fn resolve(
        &self,
        transaction: TransactionId,
        start: StoreId,
    ) -> Result<Outcome, StoreError> {
        let mut at = start;
        // Stores behind which nothing may be deleted yet: each with the one before it.
        let mut path: Vec<(StoreId, Option<StoreId>)> = Vec::new();
        let mut is_asking = false;
        loop {
            let message = match is_asking {
                true => Message::Refuse(transaction),
                false => Message::Inquire(transaction),
            };
            let answer = self.send(at, message).await?;
            let asked = std::mem::take(&mut is_asking);
            match answer {
                Answer::Prepared { previous, next } => {
                    path.push((at, previous));
                    at = next;
                }
                Answer::Decided { previous } => {
                    self.release_all(transaction, at, previous).await?;
                    return Ok(Outcome::Committed);
                }
                answer if path.is_empty() => {
                    return Ok(match answer {
                        Answer::Committed => Outcome::Committed,
                        Answer::Aborted | Answer::Refused(_) => Outcome::Aborted,
                        _ => Outcome::Unknown,
                    });
                }
                // Whoever had prepared has released: what was looked at has gone meanwhile.
                Answer::Committed => return Ok(Outcome::Committed),
                // A dangling pointer.
                Answer::Gone if !asked => is_asking = true,
                _ => return self.abort_all(transaction, path).await,
            }
        }
    }

    /// Deletes prepared records from the back. The store behind the last of them has given its promise, and each that
    /// is deleted is one for the store before it.
    async fn abort_all(
        &self,
        transaction: TransactionId,
        mut path: Vec<(StoreId, Option<StoreId>)>,
    ) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome::Unknown;
        while let Some((at, previous)) = path.pop() {
            // Only a store that has deleted it, or remembers that, proves that it was aborted.
            match self.send(at, Message::Abort(transaction)).await? {
                Answer::Aborted => outcome = Outcome::Aborted,
                Answer::Committed => return Ok(Outcome::Committed),
                Answer::Prepared { .. } | Answer::Decided { .. } => return Err(StoreError::Lost),
                _ => {}
            }
            // The walk may have begun in the middle.
            if let Some(previous) = previous.filter(|_| path.is_empty()) {
                let answer = self.send(previous, Message::Inquire(transaction)).await?;
                if let Answer::Prepared {
                    previous: before, ..
                } = answer
                {
                    path.push((previous, before));
                }
            }
        }
        Ok(outcome)
    }

    /// The transaction was decided in `last`: everything before it is released, from the first that isn't, and then that.
    async fn release_all(
        &self,
        transaction: TransactionId,
        last: StoreId,
        mut previous: Option<StoreId>,
    ) -> Result<(), StoreError> {
        let mut unreleased = Vec::new();
        while let Some(at) = previous {
            let answer = self.send(at, Message::Inquire(transaction)).await?;
            let Answer::Prepared {
                previous: before, ..
            } = answer
            else {
                break;
            };
            unreleased.push(at);
            previous = before;
        }
        for at in unreleased.into_iter().rev() {
            self.release_one(at, Message::DecideAndRelease(transaction))
                .await?;
        }
        self.release_one(last, Message::Release(transaction)).await
    }

    /// Sends it until the record is gone.
    pub(super) async fn release_one(
        &self,
        store: StoreId,
        message: Message,
    ) -> Result<(), StoreError> {
        match self.send(store, message).await? {
            // Its group was lost.
            Answer::Prepared { .. } | Answer::Decided { .. } => Err(StoreError::Lost),
            _ => Ok(()),
        }
    }

    /// Waits until a transaction that keeps a store's pages busy is over there, and brings it to its end if that takes
    /// a second.
    pub async fn see_to(
        &self,
        transaction: TransactionId,
        store: StoreId,
    ) -> Result<(), StoreError> {
        self.platform.sleep_ns(LEFT_NS).await;
        let answer = self.send(store, Message::Inquire(transaction)).await?;
        if matches!(answer, Answer::Prepared { .. } | Answer::Decided { .. }) {
            self.resolve(transaction, store).await?;
        }
        Ok(())
    }

    /// Brings to their end all transactions that have had a record since the last call with the same set, and notes in it
    /// those that have one now. How many they were.
    pub async fn sweep(&self, seen: &mut BTreeSet<(StoreId, TransactionId)>) -> usize {
        let mut now = BTreeSet::new();
        let mut count = 0;
        for (id, participant) in self.participants() {
            let Ok(records) = participant.records().await else {
                continue;
            };
            for transaction in records {
                if !seen.contains(&(id, transaction)) {
                    now.insert((id, transaction));
                    continue;
                }
                match self.resolve(transaction, id).await {
                    Ok(_) => count += 1,
                    Err(error) => {
                        now.insert((id, transaction));
                        warn!(
                            "bringing transaction {transaction:?} over several page stores to its end: {error}; its pages \
                             stay held, and it is tried again in a second"
                        );
                    }
                }
            }
        }
        *seen = now;
        count
    }

    /// Sees to what has been left, for ever. A node runs this from its start on.
    pub async fn watch(self) {
        let mut seen = BTreeSet::new();
        loop {
            self.sweep(&mut seen).await;
            self.platform.sleep_ns(LEFT_NS).await;
        }
    }
}
