//! A server of RPC over TCP: connections of one core, each with a window of calls that are carried out at the
//! same time and answered in whatever order they are done.
//!
//! What calls mean is for a [`Service`]. Called by the binary: one [`RpcServer`] a core,
//! [`RpcServer::serve_connection`] for each accepted stream.
//!
//! Promises: a call is charged, in number and bytes, before its payload is received; when a connection's
//! window is full its socket is not read, and nobody else waits for it; a payload is received into the
//! buffer that it is written from, and read payload is sent from where it is.
//!
//! `session` (connections of a core), `connection` (what the tasks of a connection share), `receive`
//! (calls in), `transmit` (answers out), [`limits`].

mod connection;
pub mod limits;
mod receive;
mod service;
mod session;
mod transmit;

pub use limits::RpcLimits;
pub use service::{Answer, PayloadPlace, Plan, Request, Service, Visitor};
pub use session::{CloseReason, RpcCounters, RpcServer};
