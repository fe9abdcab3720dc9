//! Formatting a device.
//!
//! Order: everything that can be refused is refused before anything is written, and a file that was
//! made for this is removed again if it comes to nothing. A file is set aside on its filesystem before
//! anything is written to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flagstone_device::engine;
use flagstone_device::format::FORMAT_VERSION;
use flagstone_device::format::geometry::DEVICE_MIN_BYTES;
use flagstone_platform::BlockDevice;
use flagstone_runtime::{
    DeviceOptions, Fill, RuntimeConfig, UringDevice, UringPlatform, block_on, create_device_file,
    lock_device,
};
use flagstone_types::{BLOCK_SIZE, SEGMENT_SIZE};

use super::room::make_room;
use super::{FormatOptions, FormatReport, foreign};
use crate::node::{NodeError, NodeErrorKind};
use crate::size;

/// What a forced format makes zero at each end, so that no other program takes the device for what
/// it was.
const WIPED_BYTES: u64 = 1 << 20;

/// Writes an empty device. Unless `force` is set it has to be blank: `AlreadyExists` if there is a
/// Flagstone device, `Refused` if there is anything else. `Busy`, forced or not, if a node serves
/// it or it is mounted; `NoSpace` if a file can't be set aside. Nothing is changed then.
pub fn format(path: &Path, options: &FormatOptions) -> Result<FormatReport, NodeError> {
    let doing = format!("formatting {}", path.display());
    let failed = |kind, found: String| NodeError::new(kind, doing.clone(), found);
    let io_failed = |error: io::Error| NodeError::of_io(&*doing, &error);
    if let Some(size_bytes) = options.size_bytes {
        check_size(&doing, size_bytes)?;
    }
    if path.try_exists().map_err(io_failed)? {
        return format_existing(path, options, &doing);
    }
    let Some(size_bytes) = options.size_bytes else {
        return Err(
            failed(NodeErrorKind::NotFound, "there is no such file".to_owned())
                .next("name a size, as in PATH:20G, to create it"),
        );
    };
    create_device_file(path, size_bytes - size_bytes % BLOCK_SIZE, Fill::Sparse).map_err(
        |error| {
            NodeError::of_io(&*doing, &error).next_for(
                NodeErrorKind::NoSpace,
                format!(
                    "name a smaller size than {} ({size_bytes} bytes), or a place with more room",
                    size::rounded(size_bytes)
                ),
            )
        },
    )?;
    let formatted = lock_device(path).map_err(io_failed).and_then(|_lock| {
        let warning = make_room(path, size_bytes, options.sparse, &doing)?;
        let report = write(path, options, &doing)?;
        Ok(FormatReport { warning, ..report })
    });
    if formatted.is_err() {
        // The error matters more than whether the remains can be removed.
        let _ = fs::remove_file(path);
    }
    formatted
}

fn format_existing(
    path: &Path,
    options: &FormatOptions,
    doing: &str,
) -> Result<FormatReport, NodeError> {
    let io_failed = |error: io::Error| NodeError::of_io(doing, &error);
    let _lock = lock_device(path).map_err(|error| {
        NodeError::of_io(doing, &error).next_for(
            NodeErrorKind::Busy,
            "stop the node that serves it, or unmount it, first",
        )
    })?;
    if let Some(device) = foreign::loop_device(path) {
        let found = format!("it is in use: it is what {} shows", device.display());
        let next = format!(
            "unmount it and detach it with `losetup -d {}`",
            device.display()
        );
        return Err(NodeError::new(NodeErrorKind::Busy, doing, found).next(next));
    }
    let size_bytes = size_of(path).map_err(io_failed)?;
    let content = foreign::look(path).map_err(io_failed)?;
    if !content.is_blank() && !options.force {
        let kind = match content.is_flagstone() {
            true => NodeErrorKind::AlreadyExists,
            false => NodeErrorKind::Refused,
        };
        return Err(
            NodeError::new(kind, doing, foreign::sentence(&content, size_bytes))
                .next("check that it is the right device; pass --force to lose all it holds"),
        );
    }
    match options.size_bytes {
        None => check_size(doing, size_bytes)?,
        // A file grows to what is asked for.
        Some(asked) if asked > size_bytes && !path.is_file() => {
            let found =
                format!("expected a device of {asked} bytes or more, found one of {size_bytes}");
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("leave the size out, or name a smaller one"));
        }
        Some(_) => {}
    }
    let device_bytes = options.size_bytes.unwrap_or(size_bytes);
    let warning = make_room(path, device_bytes, options.sparse, doing)?;
    if !content.is_blank() {
        wipe_ends(path).map_err(io_failed)?;
    }
    let report = write(path, options, doing)?;
    Ok(FormatReport { warning, ..report })
}

fn check_size(doing: &str, size_bytes: u64) -> Result<(), NodeError> {
    if size_bytes >= DEVICE_MIN_BYTES {
        return Ok(());
    }
    let found = format!(
        "expected at least {} ({DEVICE_MIN_BYTES} bytes), found {} ({size_bytes} bytes)",
        size::rounded(DEVICE_MIN_BYTES),
        size::rounded(size_bytes)
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("name a larger size, as in PATH:20G for a file, or take a larger device"))
}

fn size_of(path: &Path) -> io::Result<u64> {
    // Metadata knows the size of files only.
    File::open(path)?.seek(SeekFrom::End(0))
}

/// Makes the first and the last MiB zero.
fn wipe_ends(path: &Path) -> io::Result<()> {
    let size_bytes = size_of(path)?;
    let file = OpenOptions::new().write(true).open(path)?;
    let length = size_bytes.min(WIPED_BYTES);
    let zeros = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.write_all_at(&zeros, 0)?;
    file.write_all_at(&zeros, size_bytes - length)?;
    file.sync_all()
}

/// Writes the empty device; the caller has locked it and made sure that it may.
fn write(path: &Path, options: &FormatOptions, doing: &str) -> Result<FormatReport, NodeError> {
    let (target, options) = (path.to_owned(), options.clone());
    let formatted = block_on(&RuntimeConfig::default(), move |platform| async move {
        write_on_core(&platform, &target, &options).await
    });
    match formatted {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(engine::OpenError::Io(error))) => Err(NodeError::of_io(doing, &error)),
        Ok(Err(error)) => {
            let kind = NodeErrorKind::InvalidArgument;
            Err(NodeError::new(kind, doing, error.to_string()))
        }
        Err(error) => {
            let kind = NodeErrorKind::Internal;
            Err(NodeError::new(kind, doing, error.to_string()))
        }
    }
}

async fn write_on_core(
    platform: &UringPlatform,
    path: &Path,
    options: &FormatOptions,
) -> Result<FormatReport, engine::OpenError> {
    let device = UringDevice::open(platform, path, DeviceOptions::default())
        .map_err(engine::OpenError::Io)?;
    let size_bytes = options.size_bytes.unwrap_or(device.size_bytes());
    if size_bytes > device.size_bytes() {
        return Err(engine::OpenError::TooSmall {
            expected_blocks: size_bytes / BLOCK_SIZE,
            found_blocks: device.size_bytes() / BLOCK_SIZE,
        });
    }
    let layout = engine::FormatOptions::for_size(size_bytes);
    let superblock = engine::format_device(platform, &device, layout).await?;
    let size_bytes = superblock.block_count * BLOCK_SIZE;
    Ok(FormatReport {
        id: superblock.device_id.to_string(),
        size_bytes,
        format_version: FORMAT_VERSION,
        segments: size_bytes.div_ceil(SEGMENT_SIZE),
        warning: None,
    })
}
