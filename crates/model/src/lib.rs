//! The rules of Flagstone's journal as an executable model, explored exhaustively.
//!
//! The device's journal, recovery, block reuse, flushes and their failure, LSNs and visibility
//! are modelled with the sentence of each rule beside the line that carries it out. A checker of
//! our own visits every state that some order of events can reach within the bounds of a
//! configuration. For each rule there is a planted bug that breaks it, and the checker must find
//! a counterexample. `docs/model.md` has the table, and what the model has taught.
//!
//! Promises: no I/O, no clock, no randomness, no dependencies; the same result on every run. It
//! never looks at the device's code: that code and its simulator follow the same rules, and this
//! model is what to change first when a rule changes.
//!
//! `twophase/` is a second model with the same checker: commits over several stores, which
//! `docs/protocols/two-phase-commit.md` describes.
//!
//! Read first: `step.rs` (what can happen), `settle.rs` (what a core then may do), `recover.rs`,
//! `properties.rs`. Then `crash.rs`, `state.rs`, `config.rs`, `scenarios.rs`, `check.rs`.

mod bug;
mod check;
mod config;
mod crash;
mod describe;
mod properties;
mod recover;
mod scenarios;
mod settle;
mod state;
mod step;
mod twophase;

pub use bug::Bug;
pub use check::{Counterexample, Model, Outcome};
pub use config::{Choice, Config, Discipline, Op, Rot, Seal};
pub use properties::Property;
pub use scenarios::{Size, limits, plain, planted};
pub use twophase::{
    TwoPhase, TwoPhaseBug, TwoPhaseConfig, TwoPhaseProperty, two_phase, two_phase_planted,
};
