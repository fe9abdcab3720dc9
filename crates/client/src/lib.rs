//! A client of the native protocol: volumes of other processes and nodes, as `docs/client.md` has it
//! for programs and `docs/protocols/native.md` for the bytes.
//!
//! Promises:
//! - a change is never carried out twice because a connection broke, nor because a server was busy
//!   or a volume has moved;
//! - each error says whether the change may have happened ([`Error::Perhaps`]) or not;
//! - changes that overlap happen in the order in which they were called, whatever is repeated;
//! - what is read matches the checksum that came with it, or is an error;
//! - every call ends at its deadline;
//! - a server's limits are kept to by waiting, and no answer of a server panics.
//!
//! It has no clock, thread or socket of its own: a [`Platform`](flagstone_platform::Platform) gives
//! time, tasks and randomness, [`Connect`] connections, [`TlsConnect`] those with TLS. So it runs unchanged in the simulator.
//!
//! Read first: [`Client`], [`Volume`], [`Error`]; then `call.rs` (what is made of each answer),
//! `ledger.rs` (numbers, and what became of them), `link/` (a connection), `open.rs` (a volume that stays
//! open).
//!
//! Called by: programs, and later other nodes. It calls `wire` for all bytes.

mod arrival;
mod backoff;
mod call;
mod client;
mod conditional;
mod connect;
mod error;
mod flush;
mod ledger;
mod link;
mod manage;
mod open;
mod options;
mod order;
mod query;
mod snapshots;
mod time;
mod tls;
mod token;
mod volume;

pub use arrival::Arrival;
pub use client::Client;
pub use conditional::{ATTRIBUTES_BYTES, Change, Committed, Condition, Range};
pub use connect::Connect;
pub use error::{Cause, Error, Failure};
pub use open::{Description, Target};
pub use options::{Durability, OpenHow, Options};
pub use snapshots::Snapshot;
pub use tls::TlsConnect;
pub use token::{Token, TokenError};
pub use volume::Volume;
