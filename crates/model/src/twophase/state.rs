//! What there is: stores, what was sent and answered, coordinators and walkers.

/// Stores, at most.
pub(crate) const STORES_MAX: usize = 3;

/// What a store has durably of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Record {
    /// Nothing.
    #[default]
    None,
    /// Its part, not applied.
    Prepared,
    /// It has been decided here, and applied.
    Decided,
}

/// What a store remembers of a transaction that is over here. In memory only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Finished {
    /// Nothing.
    #[default]
    Unknown,
    /// It was applied, and its record is gone.
    Committed,
    /// It never will be: it was refused here, or its record deleted.
    Aborted,
    /// Nothing of it will be accepted any more. What was before that isn't known: it may have been forgotten.
    Promised,
}

/// What is durable in a store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Media {
    /// Of each transaction.
    pub(crate) records: [Record; 2],
    /// Which transactions were applied here, in their order; the last one that writes made the page.
    pub(crate) applied: Vec<u8>,
    /// Who wrote the page last, counted from one; zero: nobody.
    pub(crate) version: u8,
}

/// A store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Store {
    pub(crate) media: Media,
    /// With a bug that answers too early: what is durable, while that is something else.
    pub(crate) behind: Option<Media>,
    pub(crate) finished: [Finished; 2],
    /// Whether a message of each transaction is above the floor.
    pub(crate) admits: [bool; 2],
    /// With a bug: it has started and holds nothing.
    pub(crate) has_forgotten_holds: bool,
}

/// A message to a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Message {
    Prepare,
    PrepareAndDecide,
    DecideAndRelease,
    Release,
    /// Asks for the promise never to take part.
    Refuse,
    /// Deletes a prepared record.
    Abort,
}

impl Message {
    pub(crate) const ALL: [Message; 6] = [
        Message::Prepare,
        Message::PrepareAndDecide,
        Message::DecideAndRelease,
        Message::Release,
        Message::Refuse,
        Message::Abort,
    ];
}

/// An answer of a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Answer {
    Prepared,
    Decided,
    /// A condition doesn't hold, or a page is held. Final.
    Refused,
    /// Below the floor, or it is over here: nothing is known.
    TooOld,
    /// There is no record of it any more, or never was.
    Gone,
    /// It will never take part in this.
    Promised,
    /// To a wish for the promise: it has prepared.
    IsPrepared,
    /// To a wish for the promise, or to an abort: it has been committed.
    IsCommitted,
    /// The prepared record was there and is deleted.
    Deleted,
}

impl Answer {
    pub(crate) const ALL: [Answer; 9] = [
        Answer::Prepared,
        Answer::Decided,
        Answer::Refused,
        Answer::TooOld,
        Answer::Gone,
        Answer::Promised,
        Answer::IsPrepared,
        Answer::IsCommitted,
        Answer::Deleted,
    ];
}

/// Messages that were sent: each may arrive from now on, at its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Sent(u32);

impl Sent {
    pub(crate) fn add(&mut self, message: Message, place: u8) {
        self.0 |= 1 << (message as u8 * STORES_MAX as u8 + place);
    }

    pub(crate) fn has(self, message: Message, place: u8) -> bool {
        self.0 & 1 << (message as u8 * STORES_MAX as u8 + place) != 0
    }
}

/// Answers that were given: each may arrive from now on, where its message came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Answers([u64; STORES_MAX]);

impl Answers {
    pub(crate) fn add(&mut self, message: Message, place: u8, answer: Answer) {
        self.0[usize::from(place)] |= 1 << (message as u8 * 9 + answer as u8);
    }

    pub(crate) fn of(self, message: Message, place: u8) -> impl Iterator<Item = Answer> {
        let bits = self.0[usize::from(place)] >> (message as u8 * 9);
        let given = Answer::ALL.into_iter();
        given.filter(move |answer| bits & 1 << *answer as u8 != 0)
    }
}

/// What a coordinator's client was told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Told {
    #[default]
    Nothing,
    Committed,
    Aborted,
}

/// Where a coordinator is. It may stop anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Coordinator {
    /// Reads at this place of its list.
    Reading(u8),
    /// Waits for what it sent there to prepare (or, to the last, to decide).
    Waiting(u8),
    /// Waits for what it sent there to release.
    Releasing(u8),
    /// Walks, because it doesn't know what became of it.
    Resolving,
    Over,
}

/// A transaction and its coordinator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Transaction {
    pub(crate) coordinator: Coordinator,
    /// The version of each store's page when it was read.
    pub(crate) read: [u8; STORES_MAX],
    pub(crate) sent: Sent,
    pub(crate) answers: Answers,
    pub(crate) told: Told,
}

/// What a walker does next, at a place of the list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Walk {
    /// Looks what is there, coming from the front.
    Forward,
    /// Waits for the promise of the store there.
    Asking,
    /// Waits for the prepared record there to be deleted.
    Aborting,
    /// Looks what is there, coming from the decision.
    Back,
    /// Waits for what it sent there to release.
    Releasing,
    Over,
}

/// Somebody who brings a transaction to its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Walker {
    pub(crate) transaction: u8,
    pub(crate) start: u8,
    pub(crate) at: u8,
    pub(crate) walk: Walk,
    /// What it knows for sure.
    pub(crate) knows: Told,
    pub(crate) is_coordinator: bool,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) stores: Vec<Store>,
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) walkers: Vec<Walker>,
    pub(crate) crashes_left: u8,
    pub(crate) evictions_left: u8,
    pub(crate) walks_left: u8,
}
