//! The control side of Flagstone: command line, HTTP API, configuration, metrics and logs.
//!
//! One binary runs a node and talks to one. The data path lives in other crates; everything this
//! crate needs of it is behind one trait, [`node::Node`], so the control side is tested over a node
//! in memory and never runs on a core.
//!
//! Promises: the API listens on loopback unless told otherwise and refuses what a web page could
//! send; every request is bounded in bytes, in time and in number; every failure says what was
//! being done, to what, and what to do next, and has its own exit code ([`exit`]).
//!
//! Read first: [`node`], then [`api`], then [`cli`]. For operators: `docs/operating.md`.

pub mod api;
pub mod api_key;
pub mod attach;
mod audit;
pub mod cli;
pub mod client;
pub mod config;
pub mod exit;
pub mod layers;
pub mod log;
pub mod metrics;
pub mod name;
pub mod node;
pub mod node_file;
pub mod offline;
pub mod output;
pub mod serve;
pub mod size;
pub mod slo_text;
mod wait;
pub mod words;
