//! Workloads for the device engine, and a model of what they may rely on.
//!
//! A run is a node's lives on one disk: recovery, clients at work, an end that may be a crash at any
//! I/O. While it runs every answer is judged by the model; after each start everything there is is
//! read and compared, and `flagstone verify`'s own check goes over the disk. Everything follows from
//! a seed.
//!
//! Modules in reading order: `content` (which write a byte comes from), `history` (what one block
//! may hold), `model` (dvols, LSNs, names, sizes), `resolve` (judging a restart), `client` and its
//! operations, `node` (one life), [`plan`](Plan) and `run` (a seed), [`scenes`](Scene) (straight to
//! one kind of trouble), `script`, `script_full` and `sweep` (everything once, crashed everywhere).

mod admin_ops;
mod client;
mod content;
mod data_ops;
mod described;
mod history;
mod layer_ops;
mod model;
mod node;
mod plan;
#[cfg(feature = "planted-bugs")]
pub mod planted;
mod query_ops;
mod resolve;
mod run;
mod scenes;
mod script;
mod script_full;
mod sweep;
mod upkeep_ops;

pub use plan::{FaultClass, Plan, Style};
pub use run::{Report, run};
pub use scenes::Scene;
pub use sweep::{Crash, Script, Whole, crash_script, whole_script};
