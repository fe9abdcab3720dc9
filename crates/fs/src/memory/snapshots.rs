//! Snapshots, going back to one, and copies of files.

use std::rc::Rc;

use super::content::Content;
use super::state::{Body, Inodes, Limits, State};
use crate::Pieces;
use crate::attributes::{SetAttributes, Timestamp};
use crate::error::FileError;
use crate::files::{Caller, Created, Creation, FileId, New, Node, SnapshotNumber};
use crate::permissions::require_read;
use crate::superblock::is_label;

/// A snapshot: what it is called, and what there was.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) taken: Timestamp,
    pub(super) inodes: Rc<Inodes>,
}

/// What a file that is copied was when that was looked at, and what the copy gets of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied {
    set: SetAttributes,
    content: Content,
    size_bytes: u64,
}

impl Copied {
    /// How many bytes are copied.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// All of them.
    pub fn pieces(&self) -> Pieces {
        self.content.read(0, self.size_bytes)
    }
}

/// More cookies than a directory can have given since a snapshot.
const COOKIES_JUMP: u64 = 1 << 32;

impl State {
    /// Keeps everything as it is now under a name, or under its number.
    pub(super) fn take_snapshot(
        &mut self,
        name: Option<&str>,
        now: Timestamp,
    ) -> Result<SnapshotNumber, FileError> {
        let number = self.next_snapshot;
        let name = name.map_or_else(|| number.to_string(), str::to_owned);
        if !is_label(name.as_bytes()) {
            return Err(FileError::Invalid);
        }
        if self.named(&name).is_ok() {
            return Err(FileError::Exists);
        }
        self.next_snapshot += 1;
        let inodes = Rc::new(self.live.clone());
        let kept = Kept {
            name,
            taken: now,
            inodes,
        };
        self.snapshots.insert(SnapshotNumber(number), kept);
        Ok(SnapshotNumber(number))
    }

    fn named(&self, name: &str) -> Result<SnapshotNumber, FileError> {
        let mut snapshots = self.snapshots.iter();
        let found = snapshots.find(|(_, kept)| kept.name == name);
        found.map(|(number, _)| *number).ok_or(FileError::NotFound)
    }

    pub(super) fn delete_snapshot(&mut self, name: &str) -> Result<(), FileError> {
        let number = self.named(name)?;
        self.snapshots.remove(&number);
        Ok(())
    }

    /// Makes everything what it was when a snapshot was taken. No number and no cookie is given once more.
    pub(super) fn roll_back(&mut self, name: &str) -> Result<(), FileError> {
        let number = self.named(name)?;
        let mut then = (*self.snapshots[&number].inodes).clone();
        for (file, inode) in &mut then {
            let Body::Directory(names) = &mut inode.body else {
                continue;
            };
            let all = self.snapshots.values().map(|kept| &*kept.inodes);
            let all = all
                .chain([&self.live])
                .filter_map(|inodes| inodes.get(file));
            let highest = all.filter_map(|inode| match &inode.body {
                Body::Directory(names) => Some(names.next_cookie),
                _ => None,
            });
            let jump = match self.live.contains_key(file) {
                true => 0,
                false => COOKIES_JUMP,
            };
            names.next_cookie = highest.max().unwrap_or(names.next_cookie) + jump;
        }
        self.used_bytes = then.values().map(|inode| inode.attributes.used_bytes).sum();
        self.live = then;
        Ok(())
    }

    /// What of a file goes into a copy of it, as it is now or was in a snapshot.
    pub(super) fn copied(&self, caller: &Caller, source: Node) -> Result<Copied, FileError> {
        let inode = self.get(source)?;
        let attributes = &inode.attributes;
        require_read(caller, attributes)?;
        let Body::Regular { content, .. } = &inode.body else {
            unreachable!("only regular files may be read");
        };
        let is_root = caller.is_root();
        Ok(Copied {
            set: SetAttributes {
                mode: Some(attributes.mode),
                uid: is_root.then_some(attributes.uid),
                gid: is_root.then_some(attributes.gid),
                ..SetAttributes::default()
            },
            content: content.clone(),
            size_bytes: attributes.size_bytes,
        })
    }

    /// Makes a file with what was copied in it.
    pub(super) fn make_copy(
        &mut self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        copied: &Copied,
        limits: Limits,
        now: Timestamp,
    ) -> Result<Created, FileError> {
        let used_bytes = copied.content.used_bytes();
        let (new, size_max_bytes) = (New::File(Creation::Guarded), limits.size_max_bytes);
        if self.used_bytes + used_bytes > limits.capacity_bytes {
            return Err(FileError::NoSpace);
        }
        let set = &copied.set;
        let mut created = self.make(caller, directory, name, new, set, size_max_bytes, now)?;
        let inode = self.inode_mut(created.node.file);
        inode.attributes.size_bytes = copied.size_bytes;
        inode.attributes.used_bytes = used_bytes;
        inode.body = Body::Regular {
            content: copied.content.clone(),
            exclusive: None,
        };
        created.attributes = inode.attributes;
        self.used_bytes += used_bytes;
        Ok(created)
    }
}
