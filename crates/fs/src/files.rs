//! What a gateway knows of a filesystem: one small interface.
//!
//! The filesystem implements it over the tree, and [`crate::memory`] over a map, which is what tests compare
//! with.

use std::fmt;
use std::future::Future;

use flagstone_device::engine::Pieces;
use flagstone_platform::IoBuf;
use smallvec::SmallVec;

use crate::attributes::{Attributes, Changes, SetAttributes, Timestamp};
use crate::error::FileError;

/// The longest name, in bytes.
pub const NAME_MAX_BYTES: usize = 255;
/// The longest target of a symbolic link, in bytes.
pub const TARGET_MAX_BYTES: usize = 4096;

/// A filesystem of this system, never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilesystemId(pub u64);

/// A file of a filesystem: where its keys are, and its number. Never given twice. [fss 4]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// Of a directory its own number; of any other file the directory's it was made in.
    pub directory: u64,
    /// Zero for a directory.
    pub file: u64,
}

impl FileId {
    /// Number of the file in its filesystem: directories and files are counted together.
    pub fn number(self) -> u64 {
        match self.file {
            0 => self.directory,
            file => file,
        }
    }
}

/// A snapshot of a filesystem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotNumber(pub u32);

impl SnapshotNumber {
    /// No snapshot: the files as they are now.
    pub const LIVE: SnapshotNumber = SnapshotNumber(u32::MAX);
}

/// A file as it is, or as it was in a snapshot. What handles name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node {
    /// Which.
    pub file: FileId,
    /// As of when.
    pub at: SnapshotNumber,
}

impl Node {
    /// The file as it is now.
    pub fn live(file: FileId) -> Node {
        Node {
            file,
            at: SnapshotNumber::LIVE,
        }
    }
}

/// Names a call of a client, so that the same call that comes once more is answered as it was the first time,
/// by whichever gateway and after whatever restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    /// Which client.
    pub client: u64,
    /// Which of its calls: what it is, and what it asks for.
    pub call: u64,
}

/// In whose name something is done, after the gateway has squashed what is to be squashed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User; zero is root, who may do everything.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: SmallVec<[u32; 16]>,
    /// For operations that must not be done twice.
    pub token: Option<Token>,
}

/// What somebody wants to do with a file, or may do. [rfc1813 3.3.4]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessMask {
    /// Read the content, list the directory.
    pub read: bool,
    /// Look up names.
    pub lookup: bool,
    /// Change what is there.
    pub modify: bool,
    /// Write behind the end, add names.
    pub extend: bool,
    /// Take names away.
    pub delete: bool,
    /// Execute.
    pub execute: bool,
}

/// When a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stability {
    /// When everybody sees it. A power loss before the next commit of the file may undo it.
    Unstable,
    /// When it survives power loss, with size and times.
    Stable,
}

/// What [`Files::lookup`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// It.
    pub node: Node,
    /// Its attributes.
    pub attributes: Attributes,
}

/// What was read.
#[derive(Debug)]
pub struct FileRead {
    /// Bytes, without gaps. Fewer than asked for only at the end of the file.
    pub pieces: Pieces,
    /// Whether the file ends where they do, or before.
    pub is_end: bool,
    /// Of the file.
    pub attributes: Attributes,
}

/// What became of a write or of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// How the file changed.
    pub changes: Changes,
    /// Whether it is durable.
    pub stability: Stability,
    /// Differs from an earlier one if unstable writes of that time may have been lost.
    /// [rfc1813 3.3.7, verf]
    pub verifier: u64,
}

/// How a regular file is made. [rfc1813 3.3.8]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Creation {
    /// If it is there already, it is taken (and cut, if the attributes have a size).
    Unchecked,
    /// If it is there already, [`FileError::Exists`].
    Guarded,
    /// If it is there already and was made with the same number, it is taken. No attributes are set: the
    /// client does that next. The number takes the place of the times until somebody sets them.
    Exclusive(u64),
}

/// What is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum New<'a> {
    /// A regular file.
    File(Creation),
    /// A directory.
    Directory,
    /// A symbolic link with this target: 1 to [`TARGET_MAX_BYTES`] bytes without a zero.
    SymbolicLink(&'a [u8]),
    /// A device, socket or pipe of the client's. Devices only by root.
    Special(crate::FileKind),
}

/// What was made, or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// It.
    pub node: Node,
    /// Its attributes.
    pub attributes: Attributes,
    /// How the directory changed.
    pub directory: Changes,
}

/// Where a listing goes on: behind the entry that had it. Zero: the beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cookie(pub u64);

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// For going on behind it. Stays the name's as long as the name is there, and is given to no other name
    /// of the directory afterwards.
    pub cookie: Cookie,
    /// The name; `.` and `..` come first.
    pub name: Vec<u8>,
    /// What has it.
    pub node: Node,
    /// Its attributes, if they were asked for and it is still there.
    pub attributes: Option<Attributes>,
}

/// A part of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// In the order of their cookies.
    pub entries: Vec<Entry>,
    /// Whether nothing comes behind them.
    pub is_end: bool,
    /// Of the directory.
    pub directory: Attributes,
}

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that there may be in all: the quota, or what the device has.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Files and directories that there are.
    pub files: u64,
}

/// An open filesystem. A cheap handle, used by one core.
///
/// Every operation checks permissions: root may do everything; whoever owns a file may read and write it
/// whatever its mode says, since the client has checked that when the file was opened [rfc1813 4.4]; who may
/// execute a file may read it. Names are 1 to 255 bytes without a slash and without a zero; `.` and `..` can
/// be looked up and nothing else. Whatever changes something is answered when that survives power loss, but
/// for [`Files::write`]; whatever only looks is answered when what was seen survives it.
///
/// An operation on a snapshot that would change something is [`FileError::ReadOnly`].
pub trait Files: Clone + 'static {
    /// Which it is.
    fn id(&self) -> FilesystemId;

    /// Its topmost directory.
    fn root(&self) -> FileId;

    /// Key of the checksums in handles. Nobody outside this system may know it.
    fn secret(&self) -> [u8; 16];

    /// The largest file, in bytes.
    fn size_max_bytes(&self) -> u64;

    /// Attributes of a file.
    fn attributes(&self, node: Node) -> impl Future<Output = Result<Attributes, FileError>>;

    /// Which of the things wanted somebody may do.
    fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> impl Future<Output = Result<(AccessMask, Attributes), FileError>>;

    /// Finds a name. `..` of the topmost directory is itself.
    fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Found, FileError>>;

    /// A symbolic link's target.
    fn read_link(
        &self,
        caller: &Caller,
        node: Node,
    ) -> impl Future<Output = Result<(Vec<u8>, Attributes), FileError>>;

    /// Reads a regular file. Behind its end there is nothing.
    fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<FileRead, FileError>>;

    /// Writes to a regular file, and extends it if need be. All of it, or nothing.
    fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> impl Future<Output = Result<Written, FileError>>;

    /// Makes all earlier writes to a file durable.
    fn commit(
        &self,
        caller: &Caller,
        node: Node,
    ) -> impl Future<Output = Result<Written, FileError>>;

    /// Sets attributes, all or none; with a guard only if the file was last changed then.
    fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> impl Future<Output = Result<Changes, FileError>>;

    /// Makes something under a new name. What isn't in `set`: the caller is the owner; the group is the
    /// directory's if that has set-group, otherwise the caller's; a directory in one with set-group has it, too.
    fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> impl Future<Output = Result<Created, FileError>>;

    /// Takes a name away that isn't a directory's. A file without names is gone.
    fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Changes, FileError>>;

    /// Takes an empty directory away.
    fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Changes, FileError>>;

    /// Gives something another name, in the same or another directory. What has that name already is
    /// replaced, if it may be removed: a directory only by a directory and if it is empty, others only by others.
    /// Two names of one file stay both. Returns how both directories changed.
    fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> impl Future<Output = Result<(Changes, Changes), FileError>>;

    /// Gives a file that isn't a directory a further name.
    fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<(Attributes, Changes), FileError>>;

    /// Lists a directory behind a cookie: at most `count` entries, with attributes if wanted.
    fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> impl Future<Output = Result<Listing, FileError>>;

    /// How much room there is.
    fn space(&self) -> impl Future<Output = Result<Space, FileError>>;
}

impl fmt::Display for FilesystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
