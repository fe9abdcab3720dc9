//! What commands do to a device that no node serves: format, calibrate, inspect, verify, check its filesystems.

mod calibrate;
mod filesystems;
mod foreign;
mod format;
mod image;
mod room;

use std::path::Path;

use flagstone_device::engine::OpenError;
use flagstone_device::offline::{Image, ReadBlocks, inspect, verify};
use flagstone_runtime::lock_device_shared;
use flagstone_types::{BLOCK_SIZE, BlockNo};
use serde::Serialize;
use serde_json::Value;

use crate::node::{NodeError, NodeErrorKind};
use image::FileImage;

pub(crate) use calibrate::takes as calibration_takes;
pub use calibrate::{
    CalibrateOptions, CalibrateReport, CalibratedPoint, CalibratedPrices, calibrate,
};
pub use filesystems::{
    CheckStage, CheckTold, CheckedDevice, DeviceToCheck, OfflineCheck, OfflineFilesystem,
    check_filesystems,
};
pub use format::format;

/// A device to be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Its size in bytes. A file is created or extended to it; `None` takes the size that the file
    /// or block device has.
    pub size_bytes: Option<u64>,
    /// Format although it is not blank: whatever it holds is lost.
    pub force: bool,
    /// Of a file, set aside only superblocks and journals; the rest takes space as it is written.
    pub sparse: bool,
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
    /// What the user should know of it; left out if there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What `inspect` shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InspectOptions {
    /// Also list segments, journal groups and their records one by one.
    pub detailed: bool,
    /// Instead: the map of this volume or snapshot (`volume@snapshot`), node by node; of a striped one those of all its parts.
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

/// What is said of a device that another process has locked.
const SERVED: &str = "note: a node serves this device, or another program has it open: what is \
                      shown may be torn, and lacks what the node has not written yet";

/// The error for a file without a superblock of ours, if nothing else in it tells of a Flagstone
/// device: then it isn't a damaged one. `None` if it may be one.
pub(crate) fn no_device(path: &Path, doing: &str) -> Option<NodeError> {
    let content = match foreign::look(path) {
        Ok(content) if content.tells_of_flagstone() => return None,
        Ok(content) => content,
        // What can't be read is the device's failure.
        Err(_) => return None,
    };
    let found = match content.is_blank() {
        true => "nothing but zeros".to_owned(),
        false => content.words(),
    };
    let shown = path.display();
    let error = NodeError::new(
        NodeErrorKind::InvalidArgument,
        doing,
        format!("{shown} is no Flagstone device: found {found}"),
    );
    Some(error.next(format!(
        "check the path; a device that was never formatted needs `flagstone device format {shown}`"
    )))
}

/// What it is that a device can't be opened for, and what to do.
pub(crate) fn open_advice(path: &Path, error: &OpenError) -> (NodeErrorKind, String) {
    let path = path.display();
    match error {
        OpenError::Io(error) => (
            NodeErrorKind::of_io(error),
            "check the device and its path".to_owned(),
        ),
        OpenError::TooSmall { .. } => (
            NodeErrorKind::Corrupt,
            "check the device and its path".to_owned(),
        ),
        OpenError::Format(_) | OpenError::Damaged { .. } | OpenError::NoSpaceKnown(_) => (
            NodeErrorKind::Corrupt,
            format!(
                "keep a copy of {path}, see with `flagstone verify {path}` what else is wrong, and \
                 put back a copy from before the damage"
            ),
        ),
        OpenError::NoSpace => (
            NodeErrorKind::NoSpace,
            format!("run `flagstone verify {path}`"),
        ),
        OpenError::OtherJournal => (NodeErrorKind::Internal, "see the log".to_owned()),
    }
}

/// Describes a device: superblocks, journals, volumes, snapshots, segments; or one map; or one
/// block. What can't be read is described in its place. `NotFound`, `InvalidArgument` (not a
/// Flagstone device, or no block of it), `Corrupt` (no valid superblock). A node may be serving it:
/// then what is seen changes meanwhile, and the result says so.
pub fn inspect(path: &Path, options: &InspectOptions) -> Result<Inspection, NodeError> {
    let doing = format!("inspecting {}", path.display());
    let failed = |kind, found: String| NodeError::new(kind, doing.clone(), found);
    let file = FileImage::open(path).map_err(|error| NodeError::of_io(&*doing, &error))?;
    // Kept while we read: no node starts on it meanwhile.
    let lock = lock_device_shared(path);
    let is_served = match &lock {
        Ok(_) => false,
        Err(error) => NodeErrorKind::of_io(error) == NodeErrorKind::Busy,
    };
    let image = Image::open(file).map_err(|found| {
        no_device(path, &doing).unwrap_or_else(|| {
            failed(NodeErrorKind::Corrupt, found).next("put back a copy from before the damage")
        })
    })?;
    let (words, tree) = if let Some(block) = options.block {
        let end = image.superblock.block_count.max(image.source.block_count());
        if block >= end {
            let found = format!(
                "there is no block {block}: the device has the blocks 0 to {}",
                end - 1
            );
            return Err(failed(NodeErrorKind::InvalidArgument, found)
                .next("name one of them; blocks are counted in 4 KiB"));
        }
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
    let mut inspection = Inspection {
        words,
        value: image::to_json(&tree),
    };
    if is_served {
        inspection.words = format!("{SERVED}\n{}", inspection.words);
    }
    if let Value::Object(fields) = &mut inspection.value {
        fields.insert("served".to_owned(), is_served.into());
    }
    Ok(inspection)
}

/// Checks a device. What is wrong with it is in the report; an error means that it could not be
/// checked. `Busy` if a node serves it, `InvalidArgument` if it is no Flagstone device.
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
    if Image::open(&file).is_err()
        && let Some(error) = no_device(path, &doing)
    {
        return Err(error);
    }
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
