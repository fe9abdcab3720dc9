//! The room that a device file gets on its filesystem before it is formatted.
//!
//! A file that is not set aside meets a full filesystem at a write that can't fail: one to a journal
//! fences the device, even for volumes with reservations.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;

use flagstone_device::engine;
use flagstone_runtime::{HostRoom, host_room, set_aside, write_out};
use flagstone_types::BLOCK_SIZE;

use crate::node::{NodeError, NodeErrorKind};
use crate::size;

/// Makes a regular file long enough for a device of `size_bytes` and sets that aside; if `sparse`, only
/// what fences the device when it can't be written. Leaves block devices alone. `NoSpace` if there is
/// no room; the file is then as it was. Returns what the user should be warned of.
pub(super) fn make_room(
    path: &Path,
    size_bytes: u64,
    sparse: bool,
    doing: &str,
) -> Result<Option<String>, NodeError> {
    let io_failed = |error: io::Error| NodeError::of_io(doing, &error);
    let size_bytes = size_bytes - size_bytes % BLOCK_SIZE;
    let Some(room) = host_room(path).map_err(io_failed)? else {
        return Ok(None);
    };
    let file_bytes = fs::metadata(path).map_err(io_failed)?.len();
    let invalid = |error: engine::OpenError| {
        NodeError::new(NodeErrorKind::InvalidArgument, doing, error.to_string())
    };
    let ranges = match sparse {
        true => fixed_areas(size_bytes).map_err(invalid)?.to_vec(),
        false => std::iter::once(0..size_bytes).collect(),
    };
    let wanted_bytes = ranges.iter().map(|range| range.end - range.start).sum();
    let missing_bytes = u64::saturating_sub(wanted_bytes, file_bytes - room.missing_bytes);
    let no_room = |why: &str, room: HostRoom| {
        let found = format!(
            "{why}: {} of the file are to be set aside, {} of that are missing, and {} are free",
            bytes(wanted_bytes),
            bytes(missing_bytes),
            bytes(room.free_bytes)
        );
        let next = match sparse {
            true => "make room there, or name a smaller size, as in PATH:20G",
            false => {
                "make room there, name a smaller size, as in PATH:20G, or pass --sparse to let the \
                 file grow: then writes fail when the filesystem is full"
            }
        };
        NodeError::new(NodeErrorKind::NoSpace, doing, found).next(next)
    };
    // Asked first: a filesystem that runs full on the way keeps what it has set aside so far.
    if missing_bytes > room.free_bytes {
        return Err(no_room("the filesystem of the file is too full", room));
    }
    if file_bytes < size_bytes {
        set_length(path, size_bytes).map_err(io_failed)?;
    }
    let is_set_aside = set_aside(path, &ranges).map_err(|error| {
        if file_bytes < size_bytes {
            // The error matters more than the length. Gives back what was set aside behind it.
            let _ = set_length(path, file_bytes);
        }
        let failed = io_failed(error);
        match failed.kind {
            NodeErrorKind::NoSpace => no_room(&failed.found, room),
            _ => failed,
        }
    })?;
    if is_set_aside {
        // Every flush waits for journals: 20 GiB have 320 MiB of them, written in a moment. Segments are written when
        // they are first used.
        let journals = fixed_areas(size_bytes).map_err(invalid)?;
        write_out(path, &journals).map_err(io_failed)?;
    }
    Ok((!is_set_aside).then(|| {
        format!(
            "the filesystem of {} can't set space aside: when it is full, writes fail, and a failed \
             write to a journal stops all changes until there is room and the node is restarted",
            path.display()
        )
    }))
}

/// Superblocks and journals.
fn fixed_areas(size_bytes: u64) -> Result<[Range<u64>; 2], engine::OpenError> {
    engine::fixed_areas(engine::FormatOptions::for_size(size_bytes))
}

fn set_length(path: &Path, size_bytes: u64) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)?
        .set_len(size_bytes)
}

/// With the exact number behind it.
fn bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", size::rounded(bytes))
}
