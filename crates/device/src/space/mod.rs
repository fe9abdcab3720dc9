//! Space on a device: who owns which segment, and which blocks of it are in use.
//!
//! Allocation is split in two [decibel 4.1]: a core reserves whole segments from the device
//! ([`DeviceShared`]) and hands out single blocks from its own [`Pool`] without asking anybody.

mod bitmap;
mod pool;
mod segment;
mod shared;

pub use bitmap::Bitmap;
pub use pool::{BlockRun, LONG_BLOCKS, Misfit, Pool};
pub use segment::SegmentState;
pub use shared::{DeviceShared, FlushedBy};
