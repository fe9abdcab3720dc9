//! NFS version 3 and MOUNT over [`flagstone_fs::Files`], and a portmapper for where there is none.
//!
//! What is supported, promised and limited: `docs/protocols/nfs3.md`. The gateway keeps no state that
//! matters: handles hold for ever, and what must not be done twice is remembered by the filesystem.
//!
//! Called by the binary: an [`RpcServer`](crate::rpc::server::RpcServer) with an [`NfsService`] on each core.
//!
//! Pure codecs over [`crate::xdr`] behind the headers of [`crate::rpc`]: [`wire`] (the 22 procedures),
//! [`mount`] (handles of exports), [`acl`] (POSIX ACLs, which no server uses yet), [`portmap`] (who listens
//! where), [`handle`] (file handles). Rules: [`exports`], [`status`] (the table of errors), `token` (names of
//! calls). Driving them: `service` (calls of both programs), `serve` (procedures), `running`, `retry`,
//! `congestion`, [`counters`], [`portmapper`].

pub mod acl;
mod congestion;
mod convert;
pub mod counters;
pub mod exports;
pub mod handle;
pub mod mount;
pub mod portmap;
pub mod portmapper;
mod retry;
mod running;
mod serve;
mod service;
pub mod status;
mod token;
pub mod wire;

pub use counters::{NfsCounters, Note, ProcedureCounters};
pub use exports::{Clients, Export, Exports, Listed, Network, Squash};
pub use portmapper::Portmapper;
pub use service::{NfsOptions, NfsService};
