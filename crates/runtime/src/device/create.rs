//! New device files, and the room that device files have.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{SECTOR_BYTES, invalid};
use crate::sys;

/// Bytes that `create_device_file` writes at a time.
const FILL_CHUNK_BYTES: usize = 1 << 20;

/// What a new device file's space is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fill {
    /// Nothing is allocated until it is written. Quick; the filesystem may run full later, and the
    /// first write to each place costs a flush of the filesystem's metadata.
    #[default]
    Sparse,
    /// Allocated, not written. The filesystem can't run full; first writes still change metadata.
    Reserve,
    /// Written with zeros. Takes as long as writing it, and flushes are quick from then on.
    Zeros,
}

/// Creates a device file of `size_bytes` (whole sectors); fails if there is one. When this returns,
/// file and name are durable. Blocks; not for a core's thread.
pub fn create_device_file(path: impl AsRef<Path>, size_bytes: u64, fill: Fill) -> io::Result<()> {
    let path = path.as_ref();
    let context = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("creating device file {}: {error}", path.display()),
        )
    };
    if !size_bytes.is_multiple_of(SECTOR_BYTES) {
        let text = format!("{size_bytes} bytes are not whole sectors of {SECTOR_BYTES}");
        return Err(context(invalid(text)));
    }
    let mut open = OpenOptions::new();
    let file = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(context)?;
    let filled = fill_file(&file, size_bytes, fill).and_then(|()| sync_parent(path));
    filled.map_err(|error| {
        // The error matters more than whether the remains can be removed.
        let _ = fs::remove_file(path);
        context(error)
    })
}

/// The room that a device file's filesystem has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRoom {
    /// Bytes that are free on the filesystem.
    pub free_bytes: u64,
    /// Bytes of the file that it has not set aside yet.
    pub missing_bytes: u64,
}

/// Looks at the filesystem of a device file; `None` if it is no regular file.
pub fn host_room(path: impl AsRef<Path>) -> io::Result<Option<HostRoom>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    // Counted in units of 512 bytes, whatever the filesystem's blocks are.
    let stored_bytes = metadata.blocks().saturating_mul(512);
    Ok(Some(HostRoom {
        free_bytes: sys::filesystem_free_bytes(&file)?,
        missing_bytes: metadata.len().saturating_sub(stored_bytes),
    }))
}

/// Sets ranges of a regular file aside on its filesystem and makes that durable; what they hold stays.
/// `false` if the filesystem can't do that: nothing is changed then. If one range fails, those before
/// it may have been set aside. Blocks; not for a core's thread.
pub fn set_aside(path: impl AsRef<Path>, ranges: &[Range<u64>]) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).open(path)?;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        match sys::preallocate(&file, range.start, range.end - range.start) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
            done => done?,
        }
    }
    file.sync_all()?;
    Ok(true)
}

fn fill_file(mut file: &File, size_bytes: u64, fill: Fill) -> io::Result<()> {
    file.set_len(size_bytes)?;
    match fill {
        Fill::Sparse => {}
        Fill::Reserve if size_bytes == 0 => {}
        Fill::Reserve => sys::preallocate(file, 0, size_bytes)?,
        Fill::Zeros => {
            let zeros = vec![0; FILL_CHUNK_BYTES];
            let mut left = size_bytes;
            while left > 0 {
                let part = left.min(FILL_CHUNK_BYTES as u64);
                file.write_all(&zeros[..part as usize])?;
                left -= part;
            }
        }
    }
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}
