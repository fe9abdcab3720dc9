//! The frames of the native protocol: headers, bodies and their checks, for server and client.
//!
//! Promises: pure. No socket, clock or randomness; nothing is allocated, but for what a caller's
//! `Vec` has to grow by when a body is appended to it. No input panics: what is wrong with it is
//! said in a [`BodyError`], [`Complaint`] or [`CloseReason`], each a sentence for people.
//!
//! The layouts are in `docs/protocols/native.md` and nowhere else. All numbers are little-endian.
//!
//! Read first: [`RequestHeader`] and [`ReplyHeader`], [`Operation`], [`Status`]. A server decodes 64
//! bytes, asks [`check()`] what to do, compares the body's checksum
//! ([`RequestHeader::check_body`]), and decodes the body by operation. A client does the same with
//! [`check_reply`]. Bodies are read where they lie: lists are iterators over the bytes that came,
//! which `decode` has looked through once.
//!
//! Beside the frames: [`stream`], what a snapshot is outside of a node (`docs/formats/stream.md`).
//!
//! Called by: the native server in `gateway`, the client, and `flagstone` for streams. It calls only
//! `types`, and a library for the proofs.

pub mod address;
pub mod arrival;
pub mod batch;
pub mod check;
pub mod error;
pub mod failure;
mod fields;
pub mod header;
pub mod hello;
pub mod limits;
mod numbered;
pub mod open;
pub mod operation;
pub mod payload;
pub mod proof;
pub mod query;
pub mod snapshots;
pub mod status;
pub mod stream;

pub use check::{CloseReason, Complaint, Verdict, check, check_hello, check_number, check_reply};
pub use error::{BodyError, HeadDamaged};
pub use header::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, ReplyHeader, RequestHeader, VolumeNo};
pub use limits::{InFlight, Limits};
pub use operation::Operation;
pub use payload::PayloadCrc;
pub use status::{CarriedOut, Status};
