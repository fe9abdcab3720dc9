//! Filesystems, as they are asked for and told of. Also bodies of the HTTP API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::slo::Slo;

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
    /// Files and directories that there may be; without it as many as there is room for.
    #[serde(default)]
    pub quota_files: Option<u64>,
    /// A file that gets larger than this is kept as a volume's data is; without it 1 MiB. 1 GiB at most.
    #[serde(default)]
    pub promote_bytes: Option<u64>,
    /// Whether zeros that are written to such a file take no space: whole blocks of 4 KiB, of a write that is nothing else, and
    /// stretches of 64 KiB in a longer one.
    #[serde(default)]
    pub zeros_to_holes: bool,
    /// Whether its large files lie on the device that holds it and on no other. Without it they lie on all devices of the node, in
    /// proportion to what is free, so it may be larger than one; if it is promised a floor, which is one device's, they lie on that one.
    #[serde(default)]
    pub one_device: Option<bool>,
    /// The user whose the topmost directory is.
    #[serde(default)]
    pub owner_uid: u32,
    /// The group whose it is.
    #[serde(default)]
    pub owner_gid: u32,
    /// What it is promised of its device, and may not exceed. Without it a share of 1, and no limit.
    #[serde(default)]
    pub slo: Slo,
    /// Do it although the device can't keep all its floors when they are claimed at once.
    #[serde(default)]
    pub oversubscribe: bool,
}

/// What is to change of a filesystem. What isn't named stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FilesystemChanges {
    /// Bytes that its files may take; 0 for as many as there are.
    pub quota_bytes: Option<u64>,
    /// Files and directories that there may be; 0 for as many as there is room for.
    pub quota_files: Option<u64>,
    /// A file that gets larger than this from now on is kept as a volume's data is. 1 GiB at most.
    pub promote_bytes: Option<u64>,
    /// Whether zeros that are written to such a file from now on take no space.
    pub zeros_to_holes: Option<bool>,
    /// Whether new large files lie on the device that holds it and on no other. They do if it is promised a floor.
    pub one_device: Option<bool>,
    /// What it is promised of its device, and may not exceed.
    pub slo: Option<Slo>,
    /// Do it although the device can't keep all its floors when they are claimed at once.
    pub oversubscribe: bool,
}

/// Whether a directory is an image store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageStoreSpec {
    /// The directory; the path begins with a slash, the filesystem's topmost directory.
    #[schema(example = "/images")]
    pub path: String,
    /// Whether it is one from now on.
    pub enabled: bool,
}

/// What a filesystem has on a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemPart {
    /// The name of the device.
    #[schema(example = "device")]
    pub device: String,
    /// Bytes that it takes there.
    pub used_bytes: u64,
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
    /// Files and directories that there may be; null for as many as there is room for.
    pub quota_files: Option<u64>,
    /// A file that gets larger than this is kept as a volume's data is.
    pub promote_bytes: u64,
    /// Whether zeros that are written to such a file take no space.
    #[serde(default)]
    pub zeros_to_holes: bool,
    /// Whether new large files lie on the device that holds it and on no other.
    #[serde(default)]
    pub one_device: bool,
    /// What it takes of each device that it has something on. Empty if it can't be opened.
    #[serde(default)]
    pub devices: Vec<FilesystemPart>,
    /// What it is promised of its device, and may not exceed.
    #[serde(default)]
    pub slo: Slo,
    /// Directories whose files are kept so from their first byte on, as are those of directories made in them.
    /// Null in lists: the filesystem itself says it.
    pub image_stores: Option<Vec<String>>,
    /// When it was created: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// Number of its snapshots.
    pub snapshot_count: u64,
    /// The snapshot that it is being rolled back to; null if it isn't. Until it is done clients wait.
    pub rolling_back_to: Option<String>,
    /// What is wrong with it, and what to do; null if nothing is known to be. If it can't be opened, what counts
    /// is 0.
    #[serde(default)]
    pub problem: Option<String>,
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

/// A copy of a file to be made. Paths begin with a slash, the filesystem's topmost directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileCloneSpec {
    /// The file that is copied.
    #[schema(example = "/images/base.img")]
    pub source: String,
    /// The copy's path; nothing may be there.
    #[schema(example = "/images/vm-7.img")]
    pub destination: String,
    /// The snapshot that it is copied from; without it the file as it is now.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// A file that was copied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClonedFile {
    /// The filesystem it is in.
    #[schema(example = "data")]
    pub filesystem: String,
    /// What it was copied from.
    #[schema(example = "/images/base.img")]
    pub source: String,
    /// In which snapshot that was; null if it was copied as it is now.
    pub snapshot: Option<String>,
    /// Where it is.
    #[schema(example = "/images/vm-7.img")]
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of it that are not holes. It shares them with its source until either changes them, unless it is
    /// small.
    pub used_bytes: u64,
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
    /// Large files, those that only snapshots have included: each is kept as a volume's data is.
    pub objects: u64,
    /// Bytes that these take, with what only snapshots need.
    pub object_bytes: u64,
    /// Large files that nobody needed any more and that were given back by this: what a crash or an operation had
    /// left to the background.
    pub swept: u64,
    /// What is wrong, in words; a hundred things at most. Empty if nothing is.
    pub problems: Vec<String>,
}
