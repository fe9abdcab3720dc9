//! What people are told of a filesystem.

use flagstone_platform::Platform;

use crate::attributes::Timestamp;
use crate::files::FilesystemId;
use crate::filesystem::Filesystem;

/// A filesystem as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its number.
    pub id: FilesystemId,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// Bytes that its files may take; zero: as many as there are.
    pub quota_bytes: u64,
    /// Bytes that they take, with what only snapshots need.
    pub used_bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Snapshots.
    pub snapshots: u64,
}

impl<P: Platform> Filesystem<P> {
    /// What it is like now.
    pub fn describe(&self) -> Description {
        let id = self.inner.keys.0;
        let used_bytes = self.inner.used_bytes();
        self.inner.with_state(|state| Description {
            id,
            name: String::from_utf8_lossy(&state.superblock.name).into_owned(),
            created: state.superblock.created,
            quota_bytes: state.superblock.quota_bytes,
            used_bytes,
            files: state.usage.files.max(0).cast_unsigned(),
            snapshots: state.snapshots.len() as u64,
        })
    }
}
