//! What commands do to a device that no node serves: format, inspect, verify.

mod foreign;
mod format;
mod image;

use std::path::Path;

use flagstone_device::offline::{Image, inspect, verify};
use flagstone_runtime::lock_device_shared;
use flagstone_types::{BLOCK_SIZE, BlockNo};
use serde::Serialize;

use crate::node::{NodeError, NodeErrorKind};
use image::FileImage;

pub use format::format;

/// A device to be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Its size in bytes. A file is created or extended (sparsely) to it; `None` takes the size
    /// that the file or block device has.
    pub size_bytes: Option<u64>,
    /// Format although it is not blank: whatever it holds is lost.
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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InspectOptions {
    /// Also list segments, journal groups and their records one by one.
    pub detailed: bool,
    /// Instead: the map of this volume or snapshot (`volume@snapshot`), node by node.
    pub map_of: Option<String>,
    /// Instead: what this block is, and who refers to it.
    pub block: Option<u64>,
}

/// What `inspect` found.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// For people.
    pub words: String,
    /// For programs.
    pub value: serde_json::Value,
}

/// What `verify` found. It changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Nothing is wrong.
    pub clean: bool,
    /// Blocks of metadata that were read and checked: map nodes and tables.
    pub metadata_blocks: u64,
    /// Blocks of data that were read and checked; 0 if `skip_data` was asked for.
    pub data_blocks: u64,
    /// What is wrong, in words, with the place. Empty if nothing is.
    pub problems: Vec<VerifyProblem>,
    /// Problems of the same kinds that are not listed.
    pub unlisted_problems: u64,
    /// What is unusual but harmless, such as writes that were under way when the power failed.
    pub remarks: Vec<String>,
    /// What was looked at, in words.
    pub summary: String,
}

/// Something wrong with a device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifyProblem {
    /// `data loss`, `leaked space` or `harmless`.
    pub severity: String,
    /// What kind of thing it is, by a name that doesn't change.
    pub kind: String,
    /// The first few blocks it is about.
    pub blocks: Vec<u64>,
    /// What was expected and found.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// What `verify` checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifyOptions {
    /// Check the metadata only, not the checksum of every data block.
    pub skip_data: bool,
}

/// Told how far a long operation is: bytes done, bytes in all (0 if unknown).
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Describes a device: superblocks, journals, volumes, snapshots, segments; or one map; or one
/// block. What can't be read is described in its place. `NotFound`, `InvalidArgument` (not a
/// Flagstone device). A node may be serving it: then what is seen changes meanwhile.
pub fn inspect(path: &Path, options: &InspectOptions) -> Result<Inspection, NodeError> {
    let doing = format!("inspecting {}", path.display());
    let failed = |kind, found: String| NodeError::new(kind, doing.clone(), found);
    let file = FileImage::open(path).map_err(|error| NodeError::of_io(&*doing, &error))?;
    let image = Image::open(file).map_err(|found| failed(NodeErrorKind::InvalidArgument, found))?;
    let (words, tree) = if let Some(block) = options.block {
        let view = inspect::inspect_block(&image, BlockNo(block));
        (view.words(), view.tree())
    } else if let Some(name) = &options.map_of {
        let view = inspect::inspect_map(&image, name).ok_or_else(|| {
            failed(
                NodeErrorKind::NotFound,
                format!("there is no volume or snapshot '{name}'"),
            )
            .next(
                "write VOLUME or VOLUME@SNAPSHOT; what is only in the journal so far is \
                       not found",
            )
        })?;
        (view.words(), view.tree())
    } else {
        let view = inspect::inspect(&image, options.detailed);
        (view.words(), view.tree())
    };
    Ok(Inspection {
        words,
        value: image::to_json(&tree),
    })
}

/// Checks a device. What is wrong with it is in the report; an error means that it could not be
/// checked. `Busy` if a node serves it.
pub fn verify(
    path: &Path,
    options: &VerifyOptions,
    progress: Progress<'_>,
) -> Result<VerifyReport, NodeError> {
    let doing = format!("verifying {}", path.display());
    let file = FileImage::open(path).map_err(|error| NodeError::of_io(&*doing, &error))?;
    let _lock = lock_device_shared(path).map_err(|error| {
        NodeError::of_io(doing.clone(), &error).next_for(
            NodeErrorKind::Busy,
            "stop the node that serves it first, or let it scrub its volumes",
        )
    })?;
    let checks = verify::Options {
        fast: options.skip_data,
    };
    let report = verify::verify(file, checks, &mut |done, total| {
        progress(done * BLOCK_SIZE, total * BLOCK_SIZE);
    });
    let problem = |problem: &verify::Problem| VerifyProblem {
        severity: problem.severity.words().to_owned(),
        kind: problem.kind.name().to_owned(),
        blocks: problem.blocks.iter().map(|block| block.0).collect(),
        what: problem.what.clone(),
        advice: problem.advice().to_owned(),
    };
    Ok(VerifyReport {
        clean: report.is_clean(),
        metadata_blocks: report.counts.nodes + report.counts.table_blocks,
        data_blocks: report.counts.data_bytes_read / BLOCK_SIZE,
        problems: report.findings.problems.iter().map(problem).collect(),
        unlisted_problems: report.findings.unlisted_count(),
        remarks: report.findings.notes.clone(),
        summary: report.counts.words(),
    })
}
