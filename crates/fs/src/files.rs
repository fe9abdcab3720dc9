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
/// Most names of one file. Directories in a directory are not bounded by it.
pub const LINKS_MAX: u32 = 65_000;
/// What a name adds to the size of its directory beside its length.
pub const NAME_SIZE_BYTES: u64 = 16;
/// Answers that are kept of each client, for calls that come once more. See [`Token`].
pub const ANSWERS_KEPT: usize = 1024;
/// Clients of which answers are kept, but for a few that have just come.
pub const CLIENTS_KEPT: usize = 1024;
/// Answers of a client that has not called for so many seconds go. No client waits that long.
pub const ANSWERS_KEPT_SECONDS: i64 = 30 * 24 * 3600;

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
/// by whichever gateway and after whatever restart: with the same attributes, whatever has happened since, and
/// though it would fail now.
///
/// [`Files::make`], [`Files::remove`], [`Files::remove_directory`], [`Files::rename`], [`Files::link`] and
/// [`Files::set_attributes`] with a guard or a size look at it. Of each client the last [`ANSWERS_KEPT`] answers are
/// kept, for [`ANSWERS_KEPT_SECONDS`] behind its last call at least. If there are more than [`CLIENTS_KEPT`] clients,
/// those are forgotten that called longest ago, always of the source that has most: whoever calls in ever new names
/// pushes out nobody else. A failure isn't an answer: it has changed nothing, so the call is simply done again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    /// Which client, as [`Token::client_of`] has it.
    pub client: u64,
    /// Which of its calls: what it is, and what it asks for.
    pub call: u64,
}

impl Token {
    /// The number of a client. Its source is where it calls from, which it can't choose as it can its name. Two that
    /// get one number share what is kept of one, and their calls are still told apart.
    pub fn client_of(source: u32, name: u32) -> u64 {
        u64::from(source) << 32 | u64::from(name)
    }

    /// The source in the number of a client.
    pub(crate) fn source_of(client: u64) -> u32 {
        (client >> 32) as u32
    }
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
    /// If it is there already and a regular file, it is taken; if the attributes have a size, that is set, and
    /// nothing else of them. Anything else of that name: [`FileError::Exists`].
    Unchecked,
    /// If it is there already, [`FileError::Exists`].
    Guarded,
    /// If it is there already and was made with the same number, it is taken; otherwise
    /// [`FileError::Exists`]. No attributes are set: the client does that next. The number is kept beside the
    /// attributes until any of them is set or the content is changed.
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
    /// A device, socket or pipe of the client's. Devices only by root: [`FileError::NotOwner`].
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
    /// For going on behind it. Stays the name's as long as the name is there, also if another file gets it by
    /// [`Files::rename`], and is given to no other name of the directory afterwards. New names come behind all
    /// that there are. A listing can be continued behind a name that is gone.
    pub cookie: Cookie,
    /// The name; `.` and `..` come first.
    pub name: Vec<u8>,
    /// What has it.
    pub node: Node,
    /// Its attributes, if they were asked for, it is still there, and the caller may look up names in the
    /// directory: without them a gateway gives no handle either.
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
    /// How many more there may be; `None`: as many as there is room for.
    pub free_files: Option<u64>,
}

/// An open filesystem. A cheap handle, used by one core.
///
/// Every operation checks permissions. Root may do everything (but executes no file that nobody may). Whoever
/// owns a regular file may read it, write to it and set its size whatever its mode says, since the client has
/// checked that when the file was opened [rfc1813 4.4]; who may execute a regular file may read it. To look up,
/// make, rename or remove a name takes the execute permission of the directory, to change its names the write
/// permission as well, to list it the read permission; in a sticky directory only who owns the name's file or the
/// directory may take a name away or put another file in its place ([`FileError::NotOwner`]). Reading
/// attributes and links' targets takes none.
///
/// A write or a change of size by others than root clears set-user and set-group, and so does any change of
/// owner or group, but of a directory.
///
/// Names are 1 to 255 bytes without a slash and without a zero; `.` and `..` can be looked up and nothing else.
/// Whatever changes something is answered when that survives power loss, but for [`Files::write`]; whatever only
/// looks is answered when what was seen survives it, but for unstable writes to large files: those may be seen before.
///
/// What would change something, or commit, is [`FileError::ReadOnly`] on a snapshot, which goes before all other
/// errors. Then come arguments that make no sense, then the answer that is kept for the token, then
/// [`FileError::Stale`], [`FileError::NotDirectory`] and the permission to look up; then whether the name is there
/// ([`FileError::NotFound`], [`FileError::Exists`]); then the permission to change, and last what is said of the
/// operation.
///
/// What is read or written must be a regular file: a directory is [`FileError::IsDirectory`], anything else
/// [`FileError::Invalid`].
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

    /// Which of the things wanted the mode lets somebody do, which clients ask when they open a file: what an
    /// owner may do in spite of the mode, and reading what may be executed, are not counted. `lookup` and
    /// `delete` are for directories alone, `execute` for all others. Nothing may be changed in a snapshot.
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

    /// A symbolic link's target. Anything else is [`FileError::Invalid`].
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

    /// Writes to a regular file, and extends it if need be. Others see all of it or nothing. So it is after a
    /// crash, too, if it has at most 64 KiB; of a longer one that was not answered a part may be there. Without
    /// any bytes nothing changes.
    fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> impl Future<Output = Result<Written, FileError>>;

    /// Makes all earlier writes to a file durable. For those who may write to it.
    fn commit(
        &self,
        caller: &Caller,
        node: Node,
    ) -> impl Future<Output = Result<Written, FileError>>;

    /// Sets attributes, all or none; with a guard only if the file was last changed then, which is looked at
    /// before the permissions. With nothing to set nothing changes.
    fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> impl Future<Output = Result<Changes, FileError>>;

    /// Makes something under a new name. What isn't in `set`: the caller is the owner; the group is the
    /// directory's if that has set-group, otherwise the caller's; the mode is 0600, of a directory 0700, of a
    /// symbolic link 0777; the times are now. What is in it must be what the caller might set of a file of the
    /// caller's; a size only counts for a regular file. A directory in one with set-group has it, too.
    fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> impl Future<Output = Result<Created, FileError>>;

    /// Takes a name away that isn't a directory's ([`FileError::IsDirectory`]). A file without names is gone.
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
    /// Two names of one file stay both, and nothing changes. A directory into itself or below is
    /// [`FileError::Invalid`], before the permissions to change; into another directory takes its write
    /// permission, too, as its `..` changes. Returns how both directories changed.
    fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> impl Future<Output = Result<(Changes, Changes), FileError>>;

    /// Gives a file that isn't a directory ([`FileError::IsDirectory`], before the name) a further name.
    fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> impl Future<Output = Result<(Attributes, Changes), FileError>>;

    /// Lists a directory behind a cookie: at most `count` entries, with attributes if wanted. The names are of one
    /// moment, the attributes each of its own, during the call. A name that
    /// is there from the first part of a listing to the last is in it exactly once, whatever else comes and goes
    /// meanwhile.
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
