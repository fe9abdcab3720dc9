//! One process at a time: locks on devices.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Kind;
use super::open::device_kind;

/// Keeps other processes, and other users of this function, from opening a device as long as it
/// lives. The kernel drops the lock with the process, however that ends.
pub struct DeviceLock {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl DeviceLock {
    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks a device for one process. Take it once per device and process, before any core opens the
/// device. A block device is refused as well if it is mounted or otherwise claimed.
///
/// `ResourceBusy` if somebody else has it.
pub fn lock_device(path: impl AsRef<Path>) -> io::Result<DeviceLock> {
    lock(path.as_ref(), false)
}

/// Locks a device against [`lock_device`], along with others that only read it.
pub fn lock_device_shared(path: impl AsRef<Path>) -> io::Result<DeviceLock> {
    lock(path.as_ref(), true)
}

fn lock(path: &Path, shared: bool) -> io::Result<DeviceLock> {
    let context = |error: io::Error| {
        let busy = error.raw_os_error() == Some(libc::EBUSY);
        let (kind, hint) = match busy {
            true => (
                io::ErrorKind::ResourceBusy,
                " (it is mounted, or another program claims it)",
            ),
            false => (error.kind(), ""),
        };
        io::Error::new(
            kind,
            format!("locking device {}: {error}{hint}", path.display()),
        )
    };
    let kind = fs::metadata(path)
        .and_then(|m| device_kind(&m))
        .map_err(context)?;
    let mut open = OpenOptions::new();
    open.read(true).write(!shared);
    if kind == Kind::Block && !shared {
        // Without O_CREAT this claims a block device, as a mount does.
        open.custom_flags(libc::O_EXCL);
    }
    let file = open.open(path).map_err(context)?;
    let locked = if shared {
        file.try_lock_shared()
    } else {
        file.try_lock()
    };
    match locked {
        Ok(()) => Ok(DeviceLock {
            path: path.to_owned(),
            _file: file,
        }),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "locking device {}: another process has it open",
                path.display()
            ),
        )),
        Err(TryLockError::Error(error)) => Err(context(error)),
    }
}
