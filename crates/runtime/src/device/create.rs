//! New device files, and the room that device files have.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
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

/// Bytes that are free on the filesystem of a file or folder, for users without privileges.
pub fn free_bytes(path: impl AsRef<Path>) -> io::Result<u64> {
    sys::filesystem_free_bytes(&File::open(path)?)
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

/// Writes zeros where nothing was ever written in these ranges of a regular file, and makes that durable; what
/// they hold stays. Else the first write to each place would change the filesystem's metadata, and the flush
/// behind it would write that, too. Blocks; not for a core's thread.
pub fn write_out(path: impl AsRef<Path>, ranges: &[Range<u64>]) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let zeros = vec![0; FILL_CHUNK_BYTES];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let from = sys::next_hole(&file, at)?;
            if from >= range.end {
                break;
            }
            at = sys::next_data(&file, from)?.map_or(range.end, |data| data.min(range.end));
            for begin in (from..at).step_by(FILL_CHUNK_BYTES) {
                let len = (at - begin).min(FILL_CHUNK_BYTES as u64) as usize;
                file.write_all_at(&zeros[..len], begin)?;
            }
        }
    }
    file.sync_all()?;
    // The device is opened past the page cache.
    sys::drop_cached_pages(&file);
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_set_aside_is_written_where_nothing_was() {
        let path = std::env::temp_dir().join(format!("write-out-{}", std::process::id()));
        create_device_file(&path, 8 * MIB, Fill::Sparse).expect("creates");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("opens");
        file.write_all_at(b"something", MIB).expect("writes");
        let all = std::slice::from_ref(&(0..8 * MIB));
        let is_set_aside = set_aside(&path, all).expect("sets aside");
        write_out(&path, &[0..2 * MIB, 3 * MIB..3 * MIB + 4096]).expect("writes");
        let next = sys::next_hole(&file, 0).expect("seeks");
        let after = sys::next_data(&file, 2 * MIB).expect("seeks");
        let last = sys::next_data(&file, 4 * MIB).expect("seeks");
        // Only now: what is in the page cache counts as written.
        let mut bytes = vec![0; 2 * MIB as usize];
        file.read_exact_at(&mut bytes, 0).expect("reads");
        fs::remove_file(&path).expect("removes");
        if !is_set_aside {
            return;
        }
        assert_eq!(&bytes[MIB as usize..][..9], b"something");
        assert!(bytes[..MIB as usize].iter().all(|&byte| byte == 0));
        assert_eq!((next, after), (2 * MIB, Some(3 * MIB)));
        assert_eq!(last, None, "and nothing behind them");
    }
}
