//! Commits over several stores: two-phase commit with 2n messages. [fss 6]
//!
//! `docs/protocols/two-phase-commit.md` has the rules and why each is there, and the model in
//! `crates/model/src/twophase` explores them; here the same names are used. A store is a participant
//! (`participant.rs`), who commits over several is a [`Spanning`] (`coordinator.rs`), and what somebody has left is
//! brought to its end by walks (`walk.rs`).
//!
//! A record of a transaction is a block of an extent of the store's own, so what makes, applies and deletes it is
//! an ordinary commit of one group, with its log, its space and its recovery.

mod apply;
mod coordinator;
mod ledger;
mod message;
mod participant;
mod record;
mod walk;

pub use coordinator::{Spanned, Spanning, SpanningError};
pub use message::{Answer, Message, Participant, Reply, StoreId, TransactionId};
pub use walk::Outcome;

pub(crate) use ledger::Ledger;
pub(crate) use participant::RECORDS;

/// Reads what a record can have, for a fuzzer. Panics if it is not written as the same bytes.
pub(crate) fn fuzz_decoders(bytes: &[u8]) {
    record::fuzz(bytes);
}
