//! An NBD server: volumes as block devices for QEMU, libnbd, fio and the Linux kernel.
//!
//! What it supports, its limits and what its promises mean: `docs/protocols/nbd.md`. It keeps no
//! state but that of its connections, so it can be killed at any time: what was answered as stable
//! is stable, and a client that reconnects repeats the rest.
//!
//! Called by the binary: one [`NbdServer`] per core, [`NbdServer::serve_connection`] for each
//! accepted stream, [`NbdServer::resume_connection`] for streams that come from other cores.
//! Calls: the traits in [`crate::volume`] and the platform.
//!
//! Pure: [`wire`] (byte layouts), [`options`] (negotiation machine), [`admit`] (what a request may
//! do), [`contexts`] (metadata contexts), [`errors`] (the table of error numbers). Driving them:
//! `session` (connections of a core), `negotiate` (negotiation, hand-over), `connection` (what the
//! tasks of a connection share), `receive` (requests in), `work` (volume calls), `outbox` and `transmit`
//! (replies out). Beside them, for all protocols: `inbox`, `window`, `stall`.

pub mod admit;
mod connection;
pub mod contexts;
pub mod counters;
pub mod errors;
pub mod limits;
mod negotiate;
pub mod options;
mod outbox;
mod receive;
mod session;
mod transmit;
pub mod wire;
mod work;

pub use admit::Command;
pub use counters::{CommandCounters, NbdCounters};
pub use limits::NbdLimits;
pub use negotiate::NegotiatedSession;
pub use session::{CloseReason, NbdServer, Outcome};
