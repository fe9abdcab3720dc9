//! The device layer: dvols on one device.
//!
//! Promises: an acknowledged stable write survives power loss; bytes that don't match their
//! checksum never leave; a unit of several blocks happens wholly or not at all. Redirect-on-write:
//! nothing live is ever overwritten.
//!
//! Never: reads a clock, draws randomness or does I/O except through `flagstone-platform`.
//!
//! Read first: `docs/formats/device.md`, then [`format`], [`v2p`]. Called by the gateways (through
//! the binary); calls only the platform. Source: Decibel sections on dVols, address
//! virtualization, block allocation and data integrity.

pub mod cache;
pub mod engine;
pub mod format;
pub mod offline;
pub mod planted;
pub mod space;
pub mod state;
pub mod transfer;
pub mod v2p;
