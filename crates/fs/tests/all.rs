//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod checks;
mod cold;
mod conformance;
mod copies;
mod dot_snapshot;
mod histories;
mod lives;
mod losses;
mod memory;
mod objects;
mod overlaid;
mod promises;
mod quotas;
mod removal;
mod rollback;
mod settings;
mod support;
mod unstable;
mod zeros;
