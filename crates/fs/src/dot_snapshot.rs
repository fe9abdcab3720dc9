//! `.snapshot`: in every directory a name that no listing shows, and below it one for each snapshot in which the
//! directory was there, so that users find what they have lost without asking anybody.
//!
//! Such a directory of snapshots is a [`Node`] of the directory at [`SNAPSHOTS`], so its handle holds as long as
//! the directory does. Nothing is stored for it. Promises what [`Files`] promises; the name can't be made, taken
//! away or given to anything else.

use flagstone_platform::{IoBuf, Platform};

use crate::attributes::{Attributes, Changes, FileKind, SetAttributes, Timestamp};
use crate::error::FileError;
use crate::files::{
    AccessMask, Caller, Cookie, Created, Entry, FileId, FileRead, Files, FilesystemId, Found,
    Listing, New, Node, SnapshotNumber, Space, Stability, Written,
};
use crate::filesystem::Filesystem;
use crate::memory::MemoryFiles;
use crate::permissions::check_name;
use crate::snapshots::SnapshotInfo;

/// The name.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshot";
/// When a directory's snapshots are: no snapshot has this number.
pub const SNAPSHOTS: SnapshotNumber = SnapshotNumber(u32::MAX - 1);

/// Cookies of `.` and `..`, and what a snapshot's number is added to.
const SELF: u64 = 1;
const PARENT: u64 = 2;
const FIRST: u64 = 3;

/// A filesystem that can say which snapshots it has.
pub trait HasSnapshots: Files {
    /// All of them, in any order.
    fn snapshots(&self) -> Vec<SnapshotInfo>;
}

impl<P: Platform> HasSnapshots for Filesystem<P> {
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        Filesystem::snapshots(self)
    }
}

impl<P: Platform> HasSnapshots for MemoryFiles<P> {
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        MemoryFiles::snapshots(self)
    }
}

/// A filesystem with [`SNAPSHOTS_NAME`] in its directories.
#[derive(Clone)]
pub struct WithSnapshots<F>(F);

impl<F: HasSnapshots> WithSnapshots<F> {
    /// Adds the name to a filesystem.
    pub fn new(files: F) -> WithSnapshots<F> {
        WithSnapshots(files)
    }

    /// The filesystem without it.
    pub fn inner(&self) -> &F {
        &self.0
    }

    /// Attributes of a directory's snapshots: its owner's, for all to read.
    fn attributes_of(&self, directory: &Attributes) -> Attributes {
        let snapshots = self.0.snapshots();
        let last = snapshots.iter().map(|info| info.taken).max();
        let last = last.unwrap_or(directory.changed);
        // Clients look whether the time has changed. Deleting one changes it, too: what is below a second stands
        // for which there are.
        let which = snapshots.iter().fold(0u64, |which, info| {
            which.wrapping_add(u64::from(info.number.0).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        });
        let changed = Timestamp {
            nanoseconds: ((which >> 32) % 1_000_000_000) as u32,
            ..last
        };
        Attributes {
            kind: FileKind::Directory,
            mode: 0o555,
            links: 2,
            size_bytes: 0,
            used_bytes: 0,
            accessed: changed,
            modified: changed,
            changed,
            ..*directory
        }
    }

    /// A directory in a snapshot, if it was there.
    async fn at(&self, directory: FileId, at: SnapshotNumber) -> Result<Option<Found>, FileError> {
        let node = Node {
            file: directory,
            at,
        };
        match self.0.attributes(node).await {
            Ok(attributes) => Ok(Some(Found { node, attributes })),
            Err(FileError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds a name in a directory's snapshots.
    async fn lookup_snapshot(
        &self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
    ) -> Result<Found, FileError> {
        check_name(name)?;
        // Who may look up names in the directory may do so here.
        let live = self.0.lookup(caller, Node::live(directory), b".").await?;
        match name {
            b"." => Ok(self.found(&live)),
            b".." => Ok(live),
            name => {
                let snapshots = self.0.snapshots();
                let is_it = |info: &&SnapshotInfo| info.name.as_bytes() == name;
                let info = snapshots.iter().find(is_it).ok_or(FileError::NotFound)?;
                let found = self.at(directory, info.number).await?;
                found.ok_or(FileError::NotFound)
            }
        }
    }

    /// The directory of snapshots of a directory.
    fn found(&self, directory: &Found) -> Found {
        Found {
            node: Node {
                at: SNAPSHOTS,
                ..directory.node
            },
            attributes: self.attributes_of(&directory.attributes),
        }
    }

    async fn list_snapshots(
        &self,
        caller: &Caller,
        directory: FileId,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        if behind.0 >= FIRST + u64::from(SNAPSHOTS.0) {
            return Err(FileError::Invalid);
        }
        // Who may list the directory may do so here.
        let live = Node::live(directory);
        let listed = self.0.list(caller, live, Cookie(0), 1, false);
        let live = Found {
            node: live,
            attributes: listed.await?.directory,
        };
        let this = self.found(&live);
        let may_look_up = self.0.lookup(caller, live.node, b".").await.is_ok();
        let mut entries = Vec::new();
        let entry = |cookie: u64, name: &[u8], found: Found| Entry {
            cookie: Cookie(cookie),
            name: name.to_vec(),
            node: found.node,
            attributes: (with_attributes && may_look_up).then_some(found.attributes),
        };
        for (cookie, name, found) in [(SELF, &b"."[..], this), (PARENT, b"..", live)] {
            if cookie > behind.0 && entries.len() < count {
                entries.push(entry(cookie, name, found));
            }
        }
        let mut snapshots = self.0.snapshots();
        snapshots.retain(|info| FIRST + u64::from(info.number.0) > behind.0);
        snapshots.sort_unstable_by_key(|info| info.number);
        let mut is_end = true;
        for info in snapshots {
            let Some(found) = self.at(directory, info.number).await? else {
                continue;
            };
            if entries.len() == count {
                is_end = false;
                break;
            }
            let cookie = FIRST + u64::from(info.number.0);
            entries.push(entry(cookie, info.name.as_bytes(), found));
        }
        let last = entries.last().map_or(behind, |entry| entry.cookie);
        Ok(Listing {
            entries,
            is_end: is_end && last.0 >= PARENT,
            directory: this.attributes,
        })
    }
}

/// No name like this can be made.
fn check_new(node: Node, name: &[u8]) -> Result<(), FileError> {
    match node.at == SnapshotNumber::LIVE && name == SNAPSHOTS_NAME {
        true => Err(FileError::Exists),
        false => Ok(()),
    }
}

/// Nor taken away.
fn check_old(node: Node, name: &[u8]) -> Result<(), FileError> {
    match node.at == SnapshotNumber::LIVE && name == SNAPSHOTS_NAME {
        true => Err(FileError::ReadOnly),
        false => Ok(()),
    }
}

impl<F: HasSnapshots> Files for WithSnapshots<F> {
    fn id(&self) -> FilesystemId {
        self.0.id()
    }

    fn root(&self) -> FileId {
        self.0.root()
    }

    fn secret(&self) -> [u8; 16] {
        self.0.secret()
    }

    fn size_max_bytes(&self) -> u64 {
        self.0.size_max_bytes()
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        match node.at == SNAPSHOTS {
            true => {
                let live = self.0.attributes(Node::live(node.file)).await?;
                Ok(self.attributes_of(&live))
            }
            false => self.0.attributes(node).await,
        }
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        if node.at != SNAPSHOTS {
            return self.0.access(caller, node, wanted).await;
        }
        let live = Node::live(node.file);
        let (may, attributes) = self.0.access(caller, live, wanted).await?;
        let may = AccessMask {
            modify: false,
            extend: false,
            delete: false,
            ..may
        };
        Ok((may, self.attributes_of(&attributes)))
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        match directory.at {
            SNAPSHOTS => self.lookup_snapshot(caller, directory.file, name).await,
            SnapshotNumber::LIVE if name == SNAPSHOTS_NAME => {
                let live = self.0.lookup(caller, directory, b".").await?;
                Ok(self.found(&live))
            }
            _ => self.0.lookup(caller, directory, name).await,
        }
    }

    async fn read_link(
        &self,
        caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        match node.at == SNAPSHOTS {
            true => Err(FileError::Invalid),
            false => self.0.read_link(caller, node).await,
        }
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        match node.at == SNAPSHOTS {
            true => Err(FileError::IsDirectory),
            false => self.0.read(caller, node, offset_bytes, len_bytes).await,
        }
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        let written = self.0.write(caller, node, offset_bytes, data, stability);
        written.await
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        self.0.commit(caller, node).await
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        self.0.set_attributes(caller, node, set, guard).await
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        check_new(directory, name)?;
        self.0.make(caller, directory, name, new, set).await
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        check_old(directory, name)?;
        self.0.remove(caller, directory, name).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        check_old(directory, name)?;
        self.0.remove_directory(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        check_old(from.0, from.1)?;
        check_new(to.0, to.1)?;
        self.0.rename(caller, from, to).await
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        check_new(directory, name)?;
        self.0.link(caller, node, directory, name).await
    }

    async fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        if directory.at != SNAPSHOTS {
            let listing = self
                .0
                .list(caller, directory, behind, count, with_attributes);
            return listing.await;
        }
        self.list_snapshots(caller, directory.file, behind, count, with_attributes)
            .await
    }

    async fn space(&self) -> Result<Space, FileError> {
        self.0.space().await
    }
}
