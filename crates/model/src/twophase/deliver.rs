//! What a store does with each message, and in a crash.

use super::config::{Part, TwoPhaseBug};
use super::state::{Answer, Finished, Media, Message, Record, State, Store};
use super::step::TwoPhase;

impl TwoPhase {
    /// A message arrives at the store in this place of the transaction's list. Each transition is durable before its
    /// answer is given; a crash before that is a message that was lost.
    pub(crate) fn deliver(
        &self,
        state: &mut State,
        transaction: usize,
        message: Message,
        place: u8,
    ) -> Answer {
        let (index, part) = self.config.parts[transaction][usize::from(place)];
        let before = state.stores[index].media.clone();
        let read = state.transactions[transaction].read[index];
        let is_free = self.is_free(&state.stores[index], transaction, part, read, index);
        let store = &mut state.stores[index];
        let answer = match message {
            Message::Prepare => self.prepare(store, transaction, is_free),
            Message::PrepareAndDecide => self.decide(store, transaction, part, is_free),
            Message::DecideAndRelease => decide_and_release(store, transaction, part),
            Message::Release => self.release(store, transaction),
            Message::Refuse => self.refuse(store, transaction),
            Message::Abort => abort(store, transaction),
        };
        let is_early = self.bug
            == match answer {
                Answer::Prepared => Some(TwoPhaseBug::PreparedBeforeDurable),
                Answer::Decided => Some(TwoPhaseBug::DecidedBeforeDurable),
                Answer::Gone => Some(TwoPhaseBug::ReleasedBeforeDurable),
                _ => None,
            };
        if is_early && self.bug.is_some() && store.media != before && store.behind.is_none() {
            store.behind = Some(before);
        }
        answer
    }

    /// Whether the part's conditions hold and nobody else holds what it needs.
    fn is_free(
        &self,
        store: &Store,
        transaction: usize,
        part: Part,
        read: u8,
        index: usize,
    ) -> bool {
        let is_as_read = store.media.version == read || part == Part::Blind;
        let other = 1 - transaction;
        let others = self.config.parts.get(other).into_iter().flatten();
        let held = others
            .filter(|(store, _)| *store == index)
            .map(|(_, part)| *part);
        // Only what is prepared holds: once it was decided here it is as any other commit.
        let is_prepared = store.media.records[other] == Record::Prepared;
        let is_held = held.into_iter().any(|held| match (held, part) {
            (Part::None, _) | (_, Part::None) | (Part::Check, Part::Check) => false,
            // It may have been decided: who depends on what it replaces would be before it here, and perhaps behind it
            // elsewhere.
            (_, Part::Check) => !self.has(TwoPhaseBug::CheckedThroughHold),
            // It may have been decided: what it depends on has to stay as it was until it is applied.
            (Part::Check, _) => !self.has(TwoPhaseBug::ChecksNotHeld),
            _ => !self.has(TwoPhaseBug::WritesNotHeld),
        });
        is_as_read && !(is_held && is_prepared && !store.has_forgotten_holds)
    }

    fn prepare(&self, store: &mut Store, t: usize, is_free: bool) -> Answer {
        match store.media.records[t] {
            Record::Prepared => return Answer::Prepared,
            Record::Decided => return Answer::Decided,
            Record::None => {}
        }
        if let Some(over) = over(store, t) {
            return over;
        }
        if !is_free {
            return self.refused(store, t);
        }
        store.media.records[t] = Record::Prepared;
        Answer::Prepared
    }

    fn decide(&self, store: &mut Store, t: usize, part: Part, is_free: bool) -> Answer {
        if store.media.records[t] == Record::Decided {
            return Answer::Decided;
        }
        if let Some(over) = over(store, t) {
            return over;
        }
        if !is_free {
            return self.refused(store, t);
        }
        apply(&mut store.media, t, part);
        store.media.records[t] = Record::Decided;
        Answer::Decided
    }

    /// A refusal is final: a second copy of the message may come when the condition holds, and by then the client has
    /// been told.
    fn refused(&self, store: &mut Store, t: usize) -> Answer {
        if !self.has(TwoPhaseBug::RefusalNotFinal) {
            store.finished[t] = Finished::Aborted;
        }
        Answer::Refused
    }

    fn release(&self, store: &mut Store, t: usize) -> Answer {
        if store.media.records[t] == Record::Decided {
            store.media.records[t] = Record::None;
            if !self.has(TwoPhaseBug::ReleasedForgotten) {
                store.finished[t] = Finished::Committed;
            }
        }
        Answer::Gone
    }

    /// The promise never to prepare or to decide, if there is no record.
    fn refuse(&self, store: &mut Store, t: usize) -> Answer {
        match store.media.records[t] {
            Record::Prepared if self.has(TwoPhaseBug::PromiseDropsPrepared) => {
                store.media.records[t] = Record::None;
            }
            Record::Prepared => return Answer::IsPrepared,
            Record::Decided if self.has(TwoPhaseBug::PromiseAfterDecision) => {
                return Answer::Promised;
            }
            Record::Decided => return Answer::IsCommitted,
            Record::None if store.finished[t] == Finished::Committed => return Answer::IsCommitted,
            Record::None => {}
        }
        if store.finished[t] == Finished::Unknown || self.has(TwoPhaseBug::PromiseIsVerdict) {
            store.finished[t] = match self.has(TwoPhaseBug::PromiseIsVerdict) {
                true => Finished::Aborted,
                false => Finished::Promised,
            };
        }
        Answer::Promised
    }

    pub(crate) fn crash(&self, store: &mut Store) {
        if let Some(durable) = store.behind.take() {
            store.media = durable;
        }
        store.finished = [Finished::Unknown; 2];
        if !self.has(TwoPhaseBug::PromiseForgotten) {
            // The floor is above everything that was begun: what was promised before stays so.
            store.admits = [false; 2];
        }
        store.has_forgotten_holds = self.has(TwoPhaseBug::HoldsForgotten);
    }

    /// Forgets a finished transaction, and the floor rises above it.
    pub(crate) fn forget(&self, store: &mut Store, t: usize) {
        store.finished[t] = Finished::Unknown;
        if !self.has(TwoPhaseBug::ForgottenBelowFloor) {
            store.admits[t] = false;
        }
    }
}

/// What is answered to a message that would make a record, if it must not.
fn over(store: &Store, t: usize) -> Option<Answer> {
    match store.finished[t] {
        Finished::Committed => Some(Answer::IsCommitted),
        Finished::Aborted => Some(Answer::Refused),
        Finished::Promised => Some(Answer::TooOld),
        Finished::Unknown => (!store.admits[t]).then_some(Answer::TooOld),
    }
}

fn decide_and_release(store: &mut Store, t: usize, part: Part) -> Answer {
    if store.media.records[t] == Record::Prepared {
        apply(&mut store.media, t, part);
        store.media.records[t] = Record::None;
        store.finished[t] = Finished::Committed;
    }
    Answer::Gone
}

/// Deletes a prepared record. Who sends this has the promise of the next store in the list.
fn abort(store: &mut Store, t: usize) -> Answer {
    match (store.media.records[t], store.finished[t]) {
        (Record::Prepared, _) => {
            store.media.records[t] = Record::None;
            store.finished[t] = Finished::Aborted;
            Answer::Deleted
        }
        (Record::Decided, _) | (_, Finished::Committed) => Answer::IsCommitted,
        (Record::None, Finished::Aborted) => Answer::Deleted,
        (Record::None, Finished::Unknown | Finished::Promised) => {
            store.finished[t] = Finished::Promised;
            Answer::Gone
        }
    }
}

fn apply(media: &mut Media, t: usize, part: Part) {
    media.applied.push(t as u8);
    if matches!(part, Part::Write | Part::Blind) {
        media.version = t as u8 + 1;
    }
}
