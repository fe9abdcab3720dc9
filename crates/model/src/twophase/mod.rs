//! The rules of commits over several stores: two-phase commit with 2n messages, and its recovery.
//!
//! What is modelled and why each rule is needed is in `docs/protocols/two-phase-commit.md`. Stores
//! are taken for machines that make each transition durable before they answer it; a crash of one
//! takes what it holds in memory only. A message that was sent may arrive at any later time, any
//! number of times or never, and so may its answer; whoever drives a transaction may stop for good
//! at any step. [fss 6]
//!
//! Read first: `deliver.rs` (what a store does), `step.rs` (coordinators and walkers), `judge.rs`.

mod config;
mod deliver;
mod judge;
mod state;
mod step;
mod walk;

pub use config::{TwoPhaseBug, TwoPhaseConfig, two_phase, two_phase_planted};
pub use judge::TwoPhaseProperty;
pub use step::TwoPhase;
