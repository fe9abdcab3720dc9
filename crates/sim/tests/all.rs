//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod ahead;
mod answers;
mod attributes;
mod cache;
mod damage;
#[path = "../../device/tests/support/mod.rs"]
mod device_support;
mod disk_rules;
mod engine_basic;
#[path = "support/engine.rs"]
mod engine_support;
mod evictions;
mod faults;
mod flips;
mod flush_ahead;
mod full_device;
mod gathered;
mod hand_over;
mod history;
mod idle;
mod journaled;
mod layers;
mod laying_out;
mod loose;
mod moves;
mod nbd;
mod network;
mod network_faults;
mod offline;
mod parts;
mod promises;
mod properties;
mod races;
mod replay;
mod reservations;
mod reuse;
mod rings;
mod script_covers;
mod segments;
mod sharing;
mod stopping;
mod stories;
mod superblocks;
mod support;
mod trims;
mod worlds;
