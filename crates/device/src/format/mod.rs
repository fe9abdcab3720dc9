//! What lies on a device, byte by byte. The only description in words is `docs/formats/device.md`.
//!
//! Pure: bytes in, values out. A decoder never panics whatever the bytes are, bounds every field
//! before using it, and says what was expected and what was found.
//!
//! Modules in reading order: [`superblock`], [`geometry`], [`root`], [`table`], [`catalogue`],
//! [`segment`], [`group`], [`record`]. Map nodes are in `v2p`.

pub mod bytes;
pub mod catalogue;
pub mod geometry;
pub mod group;
pub mod record;
pub mod root;
pub mod segment;
pub mod superblock;
pub mod table;

use std::fmt;

/// The format this code writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// What was being decoded, and what is wrong: expected and found.
    pub message: String,
}

impl FormatError {
    pub(crate) fn new(message: impl Into<String>) -> FormatError {
        FormatError {
            message: message.into(),
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FormatError {}
