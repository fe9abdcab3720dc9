//! Opening a file or block device: what it is, whether direct I/O works, and what that wants to be
//! aligned.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::mapped::Mapped;
use super::{DeviceFile, DeviceOptions, DirectIo, Kind, SECTOR_BYTES, UringDevice, invalid};
use crate::io_stats::IoStats;
use crate::pace::FlushPace;
use crate::platform::UringPlatform;
use crate::sys;
use crate::trace::Trace;

pub(super) fn open_device(
    platform: &UringPlatform,
    path: &Path,
    options: DeviceOptions,
) -> io::Result<UringDevice> {
    // Looked at before it is opened: opening a named pipe would wait for its other end.
    let metadata = fs::metadata(path)?;
    let kind = device_kind(&metadata)?;
    // Two names of one block device pass for two devices: flushes are then handed over.
    let id = (metadata.dev(), metadata.ino());
    let (mut file, direct) = open_file(path, options)?;
    let size = file.seek(SeekFrom::End(0))?;
    let (memory_align, offset_align) = match direct {
        true => direct_alignment(&file)?,
        false => (1, SECTOR_BYTES),
    };
    if direct {
        // Left over from whoever made or copied the file. A direct write to a cached block has to
        // evict it first, which the ring can't do without a worker thread.
        sys::drop_cached_pages(&file);
    }
    let core = platform.core.clone();
    let at_once = options.memory_at_once && kind == Kind::File && sys::is_in_memory(&file);
    let size_bytes = size - size % offset_align;
    let mapped = match at_once && !options.read_only {
        // By what was opened: another file may have taken its name since that was looked at.
        true => {
            let opened = file.metadata()?;
            Mapped::of((opened.dev(), opened.ino()), &file, size_bytes)
        }
        false => None,
    };
    let file = DeviceFile {
        at_once,
        mapped,
        fixed: core.register_file(file.as_raw_fd()),
        file: Arc::new(file),
        core: Rc::downgrade(&core),
        kind,
        size_bytes,
        memory_align,
        offset_align,
        options,
        direct,
        id,
        pace: FlushPace::default(),
        under_way: Cell::new(0),
        waves: Default::default(),
        counts_as_holding: Cell::new(false),
        held: Default::default(),
        io: IoStats::default(),
    };
    core.device_opened(id);
    Ok(UringDevice {
        core,
        file: Rc::new(file),
        trace: Trace::default(),
        layers: None,
    })
}

pub(super) fn device_kind(metadata: &fs::Metadata) -> io::Result<Kind> {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Ok(Kind::File)
    } else if file_type.is_block_device() {
        Ok(Kind::Block)
    } else {
        Err(invalid(
            "it is neither a regular file nor a block device".to_owned(),
        ))
    }
}

/// Opens the file; true if for direct I/O.
fn open_file(path: &Path, options: DeviceOptions) -> io::Result<(File, bool)> {
    // O_CLOEXEC is what the standard library does anyway.
    let open = |flags: i32| {
        let mut open = OpenOptions::new();
        open.read(true)
            .write(!options.read_only)
            .custom_flags(flags);
        open.open(path)
    };
    if options.direct == DirectIo::Never {
        return Ok((open(libc::O_DSYNC)?, false));
    }
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        Err(error) if options.direct == DirectIo::Require => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "its filesystem refuses direct I/O ({error}), which is required here; put the \
                 device on a filesystem such as ext4, xfs or btrfs, or on a block device"
            ),
        )),
        Err(_) => {
            let file = open(libc::O_DSYNC)?;
            tracing::warn!(
                "{}: its filesystem refuses direct I/O; going through the page cache with O_DSYNC, \
                 which is slow",
                path.display()
            );
            Ok((file, false))
        }
    }
}

/// Alignment of memory, and of offsets and lengths, that direct I/O on `file` wants.
fn direct_alignment(file: &File) -> io::Result<(usize, u64)> {
    let Some((memory, offset)) = sys::direct_alignment(file) else {
        // A kernel before 6.1. Sectors of 512 bytes are what nearly all devices offer; where they
        // don't, the kernel refuses the first write with EINVAL.
        return Ok((SECTOR_BYTES as usize, SECTOR_BYTES));
    };
    if memory == 0 || offset == 0 {
        // The file takes O_DIRECT, but serves it in memory (tmpfs) or says nothing.
        return Ok((SECTOR_BYTES as usize, SECTOR_BYTES));
    }
    if !memory.is_power_of_two() || !offset.is_power_of_two() || offset > 1 << 20 {
        return Err(invalid(format!(
            "direct I/O wants memory aligned to {memory} and offsets to {offset} bytes, which \
             makes no sense"
        )));
    }
    Ok((memory as usize, u64::from(offset).max(SECTOR_BYTES)))
}
