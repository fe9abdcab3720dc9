//! Filesystems, as they are asked for and told of. Also bodies of the HTTP API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A filesystem to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemSpec {
    /// Its name, unique on the node: 1 to 128 letters, digits, '-', '_', '.'.
    #[schema(example = "data")]
    pub name: String,
    /// Bytes that its files may take, with what only snapshots need; without it as many as there are.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// The user whose the topmost directory is.
    #[serde(default)]
    pub owner_uid: u32,
    /// The group whose it is.
    #[serde(default)]
    pub owner_gid: u32,
}

/// A filesystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemInfo {
    /// Its name.
    #[schema(example = "data")]
    pub name: String,
    /// Its number; never given twice on a device.
    pub id: u64,
    /// The name of the device that holds it.
    #[schema(example = "device")]
    pub device: String,
    /// The core that owns it.
    pub core: u32,
    /// Files and directories in it.
    pub files: u64,
    /// Bytes that its files take, with what only snapshots need.
    pub used_bytes: u64,
    /// Bytes that they may take; null for as many as there are.
    pub quota_bytes: Option<u64>,
    /// When it was created: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// Number of its snapshots.
    pub snapshot_count: u64,
    /// What clients mount. `@SNAPSHOT` behind it names a snapshot.
    #[schema(example = "/data")]
    pub export_path: String,
    /// Where libnfs and QEMU find it; empty if the node serves no NFS.
    #[schema(example = "nfs://127.0.0.1/data?version=3&nfsport=12049&mountport=12049")]
    pub export_url: String,
    /// How Linux mounts it on this machine; empty if the node serves no NFS.
    #[schema(
        example = "mount -t nfs -o port=12049,mountport=12049,vers=3,tcp,nolock 127.0.0.1:/data /mnt"
    )]
    pub mount_command: String,
}

/// A page of filesystems.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemPage {
    /// The filesystems, sorted by name.
    pub items: Vec<FilesystemInfo>,
    /// What to pass as `after` to get the next page; null if this is the last one.
    pub next: Option<String>,
}

/// A snapshot of a filesystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemSnapshotInfo {
    /// The filesystem it belongs to.
    #[schema(example = "data")]
    pub filesystem: String,
    /// Its name within the filesystem.
    #[schema(example = "monday")]
    pub name: String,
    /// Its number: of two snapshots of a filesystem the later one has the higher.
    pub number: u32,
    /// When it was taken: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// What clients mount, to read it.
    #[schema(example = "/data@monday")]
    pub export_path: String,
}

/// The snapshots of a filesystem. There are 4096 at most, so there is one page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemSnapshotPage {
    /// The snapshots, sorted by name.
    pub items: Vec<FilesystemSnapshotInfo>,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemCheck {
    /// Nothing is wrong.
    pub clean: bool,
    /// What was looked at, sorted by name.
    pub items: Vec<CheckedFilesystem>,
}

/// What a check found in one filesystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckedFilesystem {
    /// Its name.
    #[schema(example = "data")]
    pub filesystem: String,
    /// Files and directories there are now.
    pub files: u64,
    /// Snapshots looked at.
    pub snapshots: u64,
    /// Blocks, of all versions of all files.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// What is wrong, in words; a hundred things at most. Empty if nothing is.
    pub problems: Vec<String>,
}
