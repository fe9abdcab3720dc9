//! The native protocol's server: volumes with all that the device layer can do, and requests that are never
//! carried out twice because a connection broke.
//!
//! The protocol, its limits and what its promises mean: `docs/protocols/native.md`. Frames: `flagstone_wire`.
//!
//! Interfaces: [`volume`] (what a volume can do), [`directory`] (where volumes are and who may open them).

pub mod directory;
pub mod volume;
