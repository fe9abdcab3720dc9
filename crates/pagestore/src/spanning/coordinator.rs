//! Who commits over several stores: sends each message when the one before was answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use flagstone_platform::Platform;
use tracing::debug;

use super::message::{Answer, Message, Participant, StoreId, TransactionId};
use super::walk::Outcome;
use crate::commit::{Commit, CommitError, PARTS_MAX, StoreError};

/// A message without an answer is sent so often,
const TRIES: u32 = 5;
/// with pauses that double from here: 1 to 8 ms.
const PAUSE_NS: u64 = 1_000_000;

/// Commits over the stores that it knows. A cheap handle.
pub struct Spanning<P: Platform, T: Participant> {
    pub(super) platform: P,
    shared: Rc<Shared<T>>,
}

struct Shared<T> {
    participants: BTreeMap<StoreId, T>,
    /// What each has said last.
    as_of: RefCell<BTreeMap<StoreId, u64>>,
}

impl<P: Platform, T: Participant> Clone for Spanning<P, T> {
    fn clone(&self) -> Self {
        Spanning {
            platform: self.platform.clone(),
            shared: self.shared.clone(),
        }
    }
}

/// A commit over several stores that has happened. It is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spanned {
    /// Whether every store shows it. If one could not be reached it still has the old pages, busy, until the transaction is
    /// brought to its end there.
    pub is_everywhere: bool,
}

/// Why a commit over several stores did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanningError {
    /// This store has refused its part. Nothing has changed.
    Refused(StoreId, CommitError),
    /// A store could not be reached, or somebody took the transaction for one that had been left. Nothing has changed.
    Interrupted,
    /// Nobody knows whether it has happened. All of it or nothing.
    Unknown(TransactionId),
}

impl fmt::Display for SpanningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpanningError::Refused(store, error) => write!(f, "store {store:?}: {error}"),
            SpanningError::Interrupted => {
                f.write_str("a commit over several stores was interrupted: nothing has changed")
            }
            SpanningError::Unknown(transaction) => write!(
                f,
                "whether transaction {transaction:?} over several stores has happened is not known: read what it was to \
                 change"
            ),
        }
    }
}

impl std::error::Error for SpanningError {}

/// Why one transaction did not happen.
enum Stopped {
    /// A store has forgotten more than was known of it. What it says now is known; nothing has changed.
    TooOld,
    /// For good.
    For(SpanningError),
}

impl From<SpanningError> for Stopped {
    fn from(error: SpanningError) -> Stopped {
        Stopped::For(error)
    }
}

impl<P: Platform, T: Participant> Spanning<P, T> {
    /// Commits over these. They must reach every store that shares a transaction with one of them.
    pub fn new(platform: P, participants: impl IntoIterator<Item = T>) -> Spanning<P, T> {
        let participants = participants.into_iter();
        Spanning {
            platform,
            shared: Rc::new(Shared {
                participants: participants.map(|one| (one.id(), one)).collect(),
                as_of: RefCell::default(),
            }),
        }
    }

    pub(super) fn participants(&self) -> Vec<(StoreId, T)> {
        let all = self.shared.participants.iter();
        all.map(|(id, participant)| (*id, participant.clone()))
            .collect()
    }

    fn participant(&self, store: StoreId) -> Result<T, StoreError> {
        let found = self.shared.participants.get(&store).cloned();
        found.ok_or(StoreError::Device)
    }

    /// Sends a message until it is answered. Each may come twice, so each may be sent twice.
    pub(super) async fn send(
        &self,
        store: StoreId,
        message: Message,
    ) -> Result<Answer, StoreError> {
        let participant = self.participant(store)?;
        let mut pause_ns = PAUSE_NS;
        for tries in 1.. {
            match participant.send(message.clone()).await {
                Ok(reply) => {
                    self.shared.as_of.borrow_mut().insert(store, reply.as_of);
                    return Ok(reply.answer);
                }
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => {}
            }
            self.platform.sleep_ns(pause_ns).await;
            pause_ns *= 2;
        }
        Err(StoreError::Device)
    }

    /// Commits all parts or nothing. Durable, and seen in every store, when this returns. The parts are prepared in the
    /// order in which they are given; who always takes the same order collides less. One part alone is an ordinary
    /// commit.
    ///
    /// A store that has restarted since it was last asked refuses what comes next as too old, and says from where on it
    /// counts now. So it begins anew, under another name, once for each store.
    pub async fn commit(&self, parts: &[(StoreId, Commit)]) -> Result<Spanned, SpanningError> {
        let invalid = |store, what| SpanningError::Refused(store, CommitError::Invalid(what));
        let ids: std::collections::BTreeSet<StoreId> = parts.iter().map(|part| part.0).collect();
        let Some(((last, last_part), others)) = parts.split_last() else {
            return Ok(Spanned {
                is_everywhere: true,
            });
        };
        if parts.len() > PARTS_MAX || ids.len() < parts.len() {
            return Err(invalid(*last, "more than fifteen stores, or one twice"));
        }
        if others.is_empty() {
            let refused = |error| SpanningError::Refused(*last, error);
            let participant = self
                .participant(*last)
                .map_err(|error| refused(error.into()))?;
            participant.commit_alone(last_part).await.map_err(refused)?;
            return Ok(Spanned {
                is_everywhere: true,
            });
        }
        for _ in 0..parts.len() {
            match self.attempt(parts).await {
                Err(Stopped::TooOld) => {}
                Err(Stopped::For(error)) => return Err(error),
                Ok(spanned) => return Ok(spanned),
            }
        }
        match self.attempt(parts).await {
            Err(Stopped::TooOld) => Err(SpanningError::Interrupted),
            Err(Stopped::For(error)) => Err(error),
            Ok(spanned) => Ok(spanned),
        }
    }

    /// One transaction.
    async fn attempt(&self, parts: &[(StoreId, Commit)]) -> Result<Spanned, Stopped> {
        let Some(((last, last_part), others)) = parts.split_last() else {
            return Err(SpanningError::Interrupted.into());
        };
        let high = u128::from(self.platform.random_u64()) << 64;
        let transaction = TransactionId(high | u128::from(self.platform.random_u64()));
        let as_of = self.as_of(transaction, parts).await?;
        self.prepare_all(transaction, parts, &as_of).await?;
        let message = Message::PrepareAndDecide {
            transaction,
            previous: others.last().map(|part| part.0),
            as_of: as_of[others.len()],
            part: last_part.clone(),
        };
        match self.send(*last, message).await {
            Ok(Answer::Decided { .. } | Answer::Committed) => {}
            Ok(Answer::Refused(error)) => {
                self.abort_from(transaction, others).await;
                return Err(SpanningError::Refused(*last, error).into());
            }
            Ok(Answer::Aborted) => {
                self.abort_from(transaction, others).await;
                return Err(SpanningError::Interrupted.into());
            }
            // In doubt: it may have decided, and that may have been seen to and be forgotten.
            Ok(answer) => {
                let resolved = self.resolve_own(transaction, parts).await;
                return resolved.map_err(|error| match (answer, error) {
                    (Answer::Gone, SpanningError::Interrupted) => Stopped::TooOld,
                    (_, error) => error.into(),
                });
            }
            Err(_) => return Ok(self.resolve_own(transaction, parts).await?),
        }
        Ok(self.release(transaction, parts).await)
    }

    /// Up to where each participant has forgotten, before the transaction begins.
    async fn as_of(
        &self,
        transaction: TransactionId,
        parts: &[(StoreId, Commit)],
    ) -> Result<Vec<u64>, SpanningError> {
        let mut all = Vec::new();
        for (store, _) in parts {
            let known = |shared: &Shared<T>| shared.as_of.borrow().get(store).copied();
            if known(&self.shared).is_none() {
                let asked = self.send(*store, Message::Inquire(transaction)).await;
                asked.map_err(|_| SpanningError::Interrupted)?;
            }
            all.push(known(&self.shared).unwrap_or_default());
        }
        Ok(all)
    }

    async fn prepare_all(
        &self,
        transaction: TransactionId,
        parts: &[(StoreId, Commit)],
        as_of: &[u64],
    ) -> Result<(), Stopped> {
        for (place, pair) in parts.windows(2).enumerate() {
            let message = Message::Prepare {
                transaction,
                previous: place.checked_sub(1).map(|before| parts[before].0),
                next: pair[1].0,
                as_of: as_of[place],
                part: pair[0].1.clone(),
            };
            let error = match self.send(pair[0].0, message).await {
                Ok(Answer::Prepared { .. }) => continue,
                Ok(Answer::Refused(error)) => SpanningError::Refused(pair[0].0, error),
                // Nobody has it yet.
                Ok(Answer::Gone) if place == 0 => return Err(Stopped::TooOld),
                // What was prepared is given up first, or the next attempt would find its pages held.
                Ok(Answer::Gone) => match self.resolve(transaction, parts[0].0).await {
                    Ok(Outcome::Aborted) => return Err(Stopped::TooOld),
                    _ => SpanningError::Interrupted,
                },
                // The last one never gets its message, so it never decides.
                Ok(_) | Err(_) => SpanningError::Interrupted,
            };
            match error {
                // It is over there, which is the promise that those before need.
                SpanningError::Refused(..) => self.abort_from(transaction, &parts[..place]).await,
                _ => self.leave(transaction, parts[0].0),
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Deletes what was prepared in these, from the back. The store behind them has refused for good.
    async fn abort_from(&self, transaction: TransactionId, prepared: &[(StoreId, Commit)]) {
        for (store, _) in prepared.iter().rev() {
            let done = self.send(*store, Message::Abort(transaction)).await;
            // Those before it are deleted with its promise only.
            let is_there = matches!(done, Ok(Answer::Prepared { .. } | Answer::Decided { .. }));
            if done.is_err() || is_there {
                self.leave(transaction, prepared[0].0);
                return;
            }
        }
    }

    /// Has somebody else see to it: this one's client doesn't wait for that.
    fn leave(&self, transaction: TransactionId, start: StoreId) {
        let this = self.clone();
        self.platform.spawn(async move {
            if let Err(error) = this.resolve(transaction, start).await {
                debug!("transaction {transaction:?} over several page stores is left: {error}");
            }
        });
    }

    async fn resolve_own(
        &self,
        transaction: TransactionId,
        parts: &[(StoreId, Commit)],
    ) -> Result<Spanned, SpanningError> {
        match self.resolve(transaction, parts[0].0).await {
            Ok(Outcome::Committed) => Ok(self.release(transaction, parts).await),
            Ok(Outcome::Aborted) => Err(SpanningError::Interrupted),
            Ok(Outcome::Unknown) | Err(_) => Err(SpanningError::Unknown(transaction)),
        }
    }

    /// It has happened: everybody applies it, from the front. The last one's release changes nothing that is seen.
    async fn release(&self, transaction: TransactionId, parts: &[(StoreId, Commit)]) -> Spanned {
        let Some(((last, _), others)) = parts.split_last() else {
            return Spanned {
                is_everywhere: true,
            };
        };
        for (store, _) in others {
            let message = Message::DecideAndRelease(transaction);
            if self.release_one(*store, message).await.is_err() {
                self.leave(transaction, *last);
                return Spanned {
                    is_everywhere: false,
                };
            }
        }
        let (this, last) = (self.clone(), *last);
        self.platform.spawn(async move {
            // If it can't be reached its own node releases it.
            let _ = this.release_one(last, Message::Release(transaction)).await;
        });
        Spanned {
            is_everywhere: true,
        }
    }
}
