//! Ids, units, LSNs, checksums and latency histograms that every part of Flagstone shares.
//!
//! Promises: plain values only. No I/O, no clock, no allocation on a hot path.
//!
//! Read first: [`Lsn`], then [`unit`]. Everything else in the workspace may depend on this crate;
//! it depends on nothing of ours. Words are those of `docs/GLOSSARY.md`.

pub mod checksum;
pub mod histogram;
pub mod id;
pub mod lsn;
pub mod unit;

pub use checksum::{BlockChecksum, ChainHash};
pub use histogram::{HistogramMark, LatencyHistogram};
pub use id::{DeviceId, DvolId, LayerNo, Slot};
pub use lsn::{Epoch, Lsn};
pub use unit::{BLOCK_SIZE, BlockNo, SEGMENT_BLOCKS, SEGMENT_SIZE, SegmentNo, VBlock};
