//! Tests of the map against models that are too simple to be wrong.
//!
//! `model`: one map, and copies of it, against a `BTreeMap`. `world`: layers, checkpoints, crashes
//! and deletion, with every block accounted for. `damage`: bytes that were not written by us.
//! `shape`: fill, merging, cost. `parts`: single promises of the interface.

mod damage;
mod model;
mod parts;
mod shape;
mod support;
mod world;
