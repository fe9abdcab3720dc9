//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod checks;
mod cold;
mod conformance;
mod copies;
mod dot_snapshot;
mod histories;
mod judged;
mod lives;
mod losses;
mod memory;
mod objects;
mod overlaid;
mod places;
mod promises;
mod quotas;
mod removal;
mod rollback;
mod settings;
mod snapshot_lives;
mod support;
mod unstable;
mod zeros;
