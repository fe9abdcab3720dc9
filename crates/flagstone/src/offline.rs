//! What commands do to a device that no node serves: format, inspect, verify.
//!
//! TO BE FILLED: each of these calls into the device layer. Until then they fail and say so; they
//! never pretend to have looked.

use std::path::Path;

use serde::Serialize;

use crate::node::{NodeError, NodeErrorKind};

/// A device to be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Its size in bytes. A file is created or extended (sparsely) to it; `None` takes the size
    /// that the file or block device has.
    pub size_bytes: Option<u64>,
    /// Format although it holds a Flagstone device already.
    pub force: bool,
}

/// A device that was formatted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FormatReport {
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The version of its format.
    pub format_version: u32,
    /// Number of its segments.
    pub segments: u64,
}

/// What `inspect` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InspectOptions {
    /// Also list volumes, layers, segments and journal groups one by one.
    pub detailed: bool,
}

/// What `verify` found. It changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Blocks of metadata that were read and checked.
    pub metadata_blocks: u64,
    /// Blocks of data that were read and checked; 0 if `skip_data` was asked for.
    pub data_blocks: u64,
    /// What is wrong, in words, with the place. Empty if nothing is.
    pub problems: Vec<String>,
    /// What is unusual but harmless, such as journal groups to be replayed.
    pub remarks: Vec<String>,
}

/// What `verify` checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifyOptions {
    /// Check the metadata only, not the checksum of every data block.
    pub skip_data: bool,
}

/// Told how far a long operation is: bytes done, bytes in all (0 if unknown).
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Writes an empty device. `AlreadyExists` if there is one and `force` is not set; `Busy` if a node
/// serves it.
pub fn format(path: &Path, _options: &FormatOptions) -> Result<FormatReport, NodeError> {
    Err(not_yet("formatting", path))
}

/// Describes a device as JSON: superblocks, segment table, journals, volumes, snapshots. Fields
/// that can't be read are described in words in their place. `NotFound`, `InvalidArgument` (not a
/// Flagstone device).
pub fn inspect(path: &Path, _options: &InspectOptions) -> Result<serde_json::Value, NodeError> {
    Err(not_yet("inspecting", path))
}

/// Checks a device. What is wrong with it is in the report; an error means that it could not be
/// checked.
pub fn verify(
    path: &Path,
    _options: &VerifyOptions,
    _progress: Progress<'_>,
) -> Result<VerifyReport, NodeError> {
    Err(not_yet("verifying", path))
}

fn not_yet(doing: &str, path: &Path) -> NodeError {
    NodeError::new(
        NodeErrorKind::Internal,
        format!("{doing} {}", path.display()),
        "this build of Flagstone has no device layer yet, so nothing was read or written",
    )
}
