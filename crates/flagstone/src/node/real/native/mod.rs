//! The native protocol on a node: its volumes as the server sees them, and what the server asks of the node.

mod convert;
mod directory;
mod metrics;
mod striped;
mod turns;
mod volume;

pub(super) use directory::{Identity, NativeNames};
pub(super) use metrics::named;
