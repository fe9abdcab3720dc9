//! The native protocol's server: volumes with all that the device layer can do, and requests that are never
//! carried out twice because a connection broke.
//!
//! The protocol, its limits and what its promises mean: `docs/protocols/native.md`. Frames: `flagstone_wire`.
//!
//! Called by the binary: one [`NativeServer`] per core, [`NativeServer::serve_connection`] for each accepted
//! stream. Calls: the traits in [`volume`] (what a volume can do) and [`directory`] (where volumes are and who
//! may open them), and the platform.
//!
//! Pure: `volumes` (what is open, rights), `prepare` (from a frame to what is to be carried out), `outbox` (from
//! a reply to bytes). Driving them: `server` (connections of a core), `begin` (with TLS or without), `hello` (the first frame), `sessions` (what
//! outlives a connection), `connection` (what the tasks of one share), `receive` (requests in), `opening` and `work`
//! (the directory and volumes asked), `transmit` (replies out). Beside them, for all protocols: `inbox`, `gathered`,
//! `window`, `stall`.

pub mod arrivals;
mod begin;
mod connection;
pub mod counters;
pub mod directory;
mod hello;
pub mod limits;
mod opening;
mod outbox;
mod prepare;
mod receive;
mod server;
mod sessions;
mod transmit;
pub mod volume;
mod volumes;
mod work;

pub use arrivals::{Arrivals, NoArrivals};
pub use counters::{NativeCounters, OperationCounters};
pub use directory::{Ends, NativeDirectory};
pub use limits::NativeLimits;
pub use server::{CloseReason, NativeServer};
