//! The real node, in this process: what volumes and clients see of each other through it.

mod client;
mod metrics;
mod stop;
mod support;
mod volumes;
