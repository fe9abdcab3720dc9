//! What is sent to a participant and what it answers.

use std::fmt;

use crate::commit::{Commit, CommitError, StoreError};

/// A transaction over several stores. Random, given by its coordinator, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u128);

/// A store: the id of its header's dvol. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u128);

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A message to a participant. Each may come twice, or late.
#[derive(Clone, Debug)]
pub enum Message {
    /// Prepare a part.
    Prepare {
        /// Of this.
        transaction: TransactionId,
        /// The participant before it.
        previous: Option<StoreId>,
        /// The one behind it.
        next: StoreId,
        /// What a [`Reply`] of this participant said before the transaction began.
        as_of: u64,
        /// What it is to do.
        part: Commit,
    },
    /// To the last participant: commit a part, and with it the transaction.
    PrepareAndDecide {
        /// Of this.
        transaction: TransactionId,
        /// The participant before it.
        previous: Option<StoreId>,
        /// As in a prepare.
        as_of: u64,
        /// What it is to do.
        part: Commit,
    },
    /// The transaction was decided: apply what was prepared.
    DecideAndRelease(TransactionId),
    /// To the one that decided: all others have released.
    Release(TransactionId),
    /// What is known here.
    Inquire(TransactionId),
    /// Promise never to take part, if there is no record.
    Refuse(TransactionId),
    /// Delete what was prepared. Who sends this has the promise of the participant behind.
    Abort(TransactionId),
}

impl Message {
    /// Of which transaction.
    pub fn transaction(&self) -> TransactionId {
        match self {
            Message::Prepare { transaction, .. }
            | Message::PrepareAndDecide { transaction, .. }
            | Message::DecideAndRelease(transaction)
            | Message::Release(transaction)
            | Message::Inquire(transaction)
            | Message::Refuse(transaction)
            | Message::Abort(transaction) => *transaction,
        }
    }
}

/// What a participant has of a transaction. It is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It has prepared.
    Prepared {
        /// The participant before it.
        previous: Option<StoreId>,
        /// The one behind it.
        next: StoreId,
    },
    /// It has decided: the transaction has happened.
    Decided {
        /// The participant before it.
        previous: Option<StoreId>,
    },
    /// It refused, just now or when it was first asked. It has not decided and never will.
    Refused(CommitError),
    /// There is no record, and nothing is remembered.
    Gone,
    /// It will never take part. What was before is not known.
    Promised,
    /// There is no record any more, and the transaction has happened.
    Committed,
    /// There is no record, and the transaction has not happened and never will.
    Aborted,
}

/// An answer, and what every answer brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// For transactions that begin from now on.
    pub as_of: u64,
}

/// A store that can take part, here or over a network.
pub trait Participant: Clone + 'static {
    /// Its name.
    fn id(&self) -> StoreId;

    /// Sends a message and waits for the answer. After an error nobody knows whether it arrived.
    fn send(&self, message: Message) -> impl Future<Output = Result<Reply, StoreError>>;

    /// Transactions that have a record there.
    fn records(&self) -> impl Future<Output = Result<Vec<TransactionId>, StoreError>>;

    /// A commit in this store alone, and waits until it is durable.
    fn commit_alone(&self, commit: &Commit) -> impl Future<Output = Result<(), CommitError>>;
}
