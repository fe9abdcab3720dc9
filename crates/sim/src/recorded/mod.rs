//! Crash images from a record of a real node: what a power loss may have left at any moment of a
//! run on the real platform is recovered by the engine, checked and read.
//!
//! Three things come from outside: the device as it was when recording began, the record of what
//! the runtime asked the kernel for ([`crate::record`]), with the answers that the node gave in
//! between ([`NodeMark`](flagstone_platform::record::NodeMark)), and the log of what each client
//! sent ([`client_log`]). What clients sent says itself when it was sent, so the node's word for
//! what it answered is checked, too ([`Expected::apply`]).
//!
//! At each chosen moment an image is drawn, and of each image must be true:
//! - the offline check finds nothing wrong, before and after recovery;
//! - the engine opens it; what was answered as stable is there;
//! - every sector holds something a client sent to it, and a write is there in full or not at all;
//! - the snapshots that were answered are there, and have the same content in every image.

pub mod client_log;
mod expected;
mod judge;
mod recover;
mod walk;

pub use client_log::ClientLog;
pub use expected::{Expected, Progress};
pub use recover::{Seen, check_image};
pub use walk::{Lie, Outcome, Plan, walk};
