//! The maps, and what each operation on names does with them.

use std::collections::BTreeMap;

use super::answers::Answers;
use super::content::Content;
use super::snapshots::Kept;
use crate::attributes::{Attributes, Changes, FileKind, SetAttributes, Timestamp};
use crate::error::FileError;
use crate::files::{
    Caller, Cookie, Created, Creation, FileId, LINKS_MAX, NAME_SIZE_BYTES, New, Node,
    SnapshotNumber,
};
use crate::permissions::{
    EXECUTE, WRITE, new_attributes, require, require_removal, require_write, set_attributes, stamp,
};

/// A file with everything that is in it.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) attributes: Attributes,
    pub(super) body: Body,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Regular {
        content: Content,
        /// The number it was made with, as long as nobody has written to it or set anything.
        exclusive: Option<u64>,
    },
    Directory(Names),
    Link(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) parent: FileId,
    pub(super) by_name: BTreeMap<Vec<u8>, (Cookie, FileId)>,
    pub(super) by_cookie: BTreeMap<Cookie, Vec<u8>>,
    /// What the next new name gets.
    pub(super) next_cookie: u64,
    /// What the directory's size is: of each name its length and [`NAME_SIZE_BYTES`].
    size_bytes: u64,
}

/// Of `.` and `..`.
pub(super) const COOKIES_RESERVED: [(Cookie, &[u8]); 2] = [(Cookie(1), b"."), (Cookie(2), b"..")];

impl Names {
    fn new(parent: FileId) -> Names {
        Names {
            parent,
            by_name: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: 3,
            size_bytes: 0,
        }
    }

    /// Gives the name to a file. Who had it before is answered.
    fn put(&mut self, name: &[u8], file: FileId) -> Option<FileId> {
        if let Some((_, held)) = self.by_name.get_mut(name) {
            return Some(std::mem::replace(held, file));
        }
        let cookie = Cookie(self.next_cookie);
        self.next_cookie += 1;
        self.by_name.insert(name.to_vec(), (cookie, file));
        self.by_cookie.insert(cookie, name.to_vec());
        self.size_bytes += name.len() as u64 + NAME_SIZE_BYTES;
        None
    }

    fn take(&mut self, name: &[u8]) {
        let (cookie, _) = self.by_name.remove(name).expect("it was found just now");
        self.by_cookie.remove(&cookie);
        self.size_bytes -= name.len() as u64 + NAME_SIZE_BYTES;
    }
}

pub(super) type Inodes = BTreeMap<FileId, Inode>;

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) live: Inodes,
    pub(super) snapshots: BTreeMap<SnapshotNumber, Kept>,
    /// Of the next snapshot: none is given twice.
    pub(super) next_snapshot: u32,
    pub(super) answers: Answers,
    /// What all live files take together.
    pub(super) used_bytes: u64,
    next_number: u64,
}

/// What was found in the way of making something.
enum Taken {
    No,
    /// It is there, and may be taken for what was to be made.
    As(FileId),
}

impl State {
    /// A topmost directory that belongs to root and that everybody may read.
    pub(super) fn new(root: FileId, now: Timestamp) -> State {
        let attributes = Attributes {
            kind: FileKind::Directory,
            mode: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            number: root.number(),
            accessed: now,
            modified: now,
            changed: now,
        };
        let body = Body::Directory(Names::new(root));
        State {
            live: BTreeMap::from([(root, Inode { attributes, body })]),
            snapshots: BTreeMap::new(),
            next_snapshot: 1,
            answers: Answers::default(),
            used_bytes: 0,
            next_number: root.number() + 1,
        }
    }

    pub(super) fn get(&self, node: Node) -> Result<&Inode, FileError> {
        let inodes = match node.at {
            SnapshotNumber::LIVE => Some(&self.live),
            at => self.snapshots.get(&at).map(|kept| &*kept.inodes),
        };
        let found = inodes.and_then(|inodes| inodes.get(&node.file));
        found.ok_or(FileError::Stale)
    }

    fn attributes(&self, file: FileId) -> Result<Attributes, FileError> {
        self.get(Node::live(file)).map(|inode| inode.attributes)
    }

    /// A directory in which the caller may look up names.
    pub(super) fn directory(
        &self,
        caller: &Caller,
        node: Node,
    ) -> Result<(&Attributes, &Names), FileError> {
        let inode = self.get(node)?;
        let Body::Directory(names) = &inode.body else {
            return Err(FileError::NotDirectory);
        };
        require(caller, &inode.attributes, EXECUTE)?;
        Ok((&inode.attributes, names))
    }

    fn find(&self, caller: &Caller, directory: FileId, name: &[u8]) -> Result<FileId, FileError> {
        let (_, names) = self.directory(caller, Node::live(directory))?;
        let found = names.by_name.get(name).map(|&(_, file)| file);
        found.ok_or(FileError::NotFound)
    }

    pub(super) fn inode_mut(&mut self, file: FileId) -> &mut Inode {
        let inode = self.live.get_mut(&file);
        inode.expect("whoever changes a file has found it just now")
    }

    fn names_mut(&mut self, directory: FileId) -> &mut Names {
        match &mut self.inode_mut(directory).body {
            Body::Directory(names) => names,
            _ => unreachable!("it was found to be a directory just now"),
        }
    }

    /// Notes that the names of a directory, and so its content, have changed.
    fn touch_directory(&mut self, directory: FileId, links: i32, now: Timestamp) {
        let size_bytes = self.names_mut(directory).size_bytes;
        let attributes = &mut self.inode_mut(directory).attributes;
        let stamp = stamp(attributes, now);
        attributes.modified = stamp;
        attributes.changed = stamp;
        attributes.size_bytes = size_bytes;
        attributes.links = attributes
            .links
            .checked_add_signed(links)
            .expect("no more names go than came");
    }

    /// Notes that a file has more or fewer names, or another. Without any it is gone.
    fn touch_file(&mut self, file: FileId, links: i32, now: Timestamp) {
        let inode = self.inode_mut(file);
        let attributes = &mut inode.attributes;
        attributes.changed = stamp(attributes, now);
        attributes.links = attributes
            .links
            .checked_add_signed(links)
            .expect("no more names go than came");
        let is_directory = attributes.kind == FileKind::Directory;
        let names_left = attributes.links - u32::from(is_directory);
        if names_left == 0 {
            self.used_bytes -= attributes.used_bytes;
            self.live.remove(&file);
        }
    }

    fn changes(&self, file: FileId, before: &Attributes) -> Result<Changes, FileError> {
        Ok(Changes {
            before: before.into(),
            after: self.attributes(file)?,
        })
    }

    pub(super) fn set_attributes(
        &mut self,
        caller: &Caller,
        file: FileId,
        set: &SetAttributes,
        guard: Option<Timestamp>,
        size_max_bytes: u64,
        now: Timestamp,
    ) -> Result<Changes, FileError> {
        let before = self.attributes(file)?;
        if guard.is_some_and(|guard| guard != before.changed) {
            return Err(FileError::NotSame);
        }
        if *set == SetAttributes::default() {
            return self.changes(file, &before);
        }
        let stamp = stamp(&before, now);
        let after = set_attributes(caller, &before, set, size_max_bytes, stamp)?;
        let inode = self.live.get_mut(&file).expect("it was found just now");
        inode.attributes = after;
        if let Body::Regular { content, exclusive } = &mut inode.body {
            content.cut(after.size_bytes);
            self.used_bytes -= before.used_bytes - content.used_bytes();
            inode.attributes.used_bytes = content.used_bytes();
            *exclusive = None;
        }
        self.changes(file, &before)
    }

    /// Whether a name is free for something new.
    fn taken(
        &self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        new: New<'_>,
    ) -> Result<Taken, FileError> {
        let found = match self.find(caller, directory, name) {
            Ok(found) => found,
            Err(FileError::NotFound) => return Ok(Taken::No),
            Err(error) => return Err(error),
        };
        match (&self.get(Node::live(found))?.body, new) {
            (Body::Regular { .. }, New::File(Creation::Unchecked)) => Ok(Taken::As(found)),
            (Body::Regular { exclusive, .. }, New::File(Creation::Exclusive(number)))
                if *exclusive == Some(number) =>
            {
                Ok(Taken::As(found))
            }
            _ => Err(FileError::Exists),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the operation's")]
    pub(super) fn make(
        &mut self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        new: New<'_>,
        set: &SetAttributes,
        size_max_bytes: u64,
        now: Timestamp,
    ) -> Result<Created, FileError> {
        let before = self.attributes(directory)?;
        let file = match self.taken(caller, directory, name, new)? {
            Taken::As(file) => {
                let cut = SetAttributes {
                    size_bytes: set.size_bytes,
                    ..SetAttributes::default()
                };
                if matches!(new, New::File(Creation::Unchecked)) {
                    self.set_attributes(caller, file, &cut, None, size_max_bytes, now)?;
                }
                file
            }
            Taken::No => {
                require(caller, &before, WRITE)?;
                self.make_new(caller, directory, name, new, set, size_max_bytes, now)?
            }
        };
        Ok(Created {
            node: Node::live(file),
            attributes: self.attributes(file)?,
            directory: self.changes(directory, &before)?,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "they are the operation's")]
    fn make_new(
        &mut self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        new: New<'_>,
        set: &SetAttributes,
        size_max_bytes: u64,
        now: Timestamp,
    ) -> Result<FileId, FileError> {
        let number = self.next_number;
        let in_directory = FileId {
            directory: directory.directory,
            file: number,
        };
        let own = FileId {
            directory: number,
            file: 0,
        };
        let regular = |exclusive| Body::Regular {
            content: Content::default(),
            exclusive,
        };
        let nothing = SetAttributes::default();
        let (file, kind, body, set) = match new {
            New::File(Creation::Exclusive(exclusive)) => {
                let body = regular(Some(exclusive));
                (in_directory, FileKind::Regular, body, &nothing)
            }
            New::File(_) => (in_directory, FileKind::Regular, regular(None), set),
            New::Directory => {
                let body = Body::Directory(Names::new(directory));
                (own, FileKind::Directory, body, set)
            }
            New::SymbolicLink(target) => {
                let body = Body::Link(target.to_vec());
                (in_directory, FileKind::SymbolicLink, body, set)
            }
            New::Special(kind) => {
                let is_device = matches!(
                    kind,
                    FileKind::BlockDevice { .. } | FileKind::CharacterDevice { .. }
                );
                if is_device && !caller.is_root() {
                    return Err(FileError::NotOwner);
                }
                (in_directory, kind, Body::Special, set)
            }
        };
        let parent = self.attributes(directory)?;
        let mut attributes =
            new_attributes(caller, &parent, kind, number, set, size_max_bytes, now)?;
        if let Body::Link(target) = &body {
            attributes.size_bytes = target.len() as u64;
        }
        self.next_number += 1;
        self.live.insert(file, Inode { attributes, body });
        self.names_mut(directory).put(name, file);
        let links = i32::from(kind == FileKind::Directory);
        self.touch_directory(directory, links, now);
        Ok(file)
    }

    pub(super) fn remove(
        &mut self,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        is_directory: bool,
        now: Timestamp,
    ) -> Result<Changes, FileError> {
        let file = self.find(caller, directory, name)?;
        let before = self.attributes(directory)?;
        require_removal(caller, &before, &self.attributes(file)?)?;
        self.require_replaceable(file, is_directory)?;
        self.names_mut(directory).take(name);
        self.touch_directory(directory, -i32::from(is_directory), now);
        self.touch_file(file, -1, now);
        self.changes(directory, &before)
    }

    /// Fails unless the file is an empty directory, or none, as is said.
    fn require_replaceable(&self, file: FileId, is_directory: bool) -> Result<(), FileError> {
        match &self.get(Node::live(file))?.body {
            Body::Directory(_) if !is_directory => Err(FileError::IsDirectory),
            Body::Directory(names) if !names.by_name.is_empty() => Err(FileError::NotEmpty),
            Body::Directory(_) => Ok(()),
            _ if is_directory => Err(FileError::NotDirectory),
            _ => Ok(()),
        }
    }

    /// Whether `inner` is the directory `outer` or below it.
    fn is_within(&self, mut inner: FileId, outer: FileId) -> bool {
        while inner != outer {
            let Ok(Inode {
                body: Body::Directory(names),
                ..
            }) = self.get(Node::live(inner))
            else {
                unreachable!("what is above a directory is a directory");
            };
            if names.parent == inner {
                return false;
            }
            inner = names.parent;
        }
        true
    }

    pub(super) fn rename(
        &mut self,
        caller: &Caller,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        now: Timestamp,
    ) -> Result<(Changes, Changes), FileError> {
        let ((from, from_name), (to, to_name)) = (from, to);
        let before = (
            *self.directory(caller, Node::live(from))?.0,
            *self.directory(caller, Node::live(to))?.0,
        );
        let file = self.find(caller, from, from_name)?;
        let replaced = match self.find(caller, to, to_name) {
            Ok(found) => Some(found),
            Err(FileError::NotFound) => None,
            Err(error) => return Err(error),
        };
        if replaced != Some(file) {
            let attributes = self.attributes(file)?;
            let is_directory = attributes.kind == FileKind::Directory;
            let is_moved = from != to;
            if is_directory && self.is_within(to, file) {
                return Err(FileError::Invalid);
            }
            require_removal(caller, &before.0, &attributes)?;
            require(caller, &before.1, WRITE)?;
            if is_directory && is_moved {
                require(caller, &attributes, WRITE)?;
            }
            if let Some(replaced) = replaced {
                require_removal(caller, &before.1, &self.attributes(replaced)?)?;
                self.require_replaceable(replaced, is_directory)?;
            }
            // From here on nothing fails.
            self.names_mut(from).take(from_name);
            self.names_mut(to).put(to_name, file);
            if is_directory {
                self.names_mut(file).parent = to;
            }
            let of_directory = i32::from(is_directory);
            let of_replaced = i32::from(is_directory && replaced.is_some());
            if is_moved {
                self.touch_directory(from, -of_directory, now);
                self.touch_directory(to, of_directory - of_replaced, now);
            } else {
                self.touch_directory(from, -of_replaced, now);
            }
            self.touch_file(file, 0, now);
            if let Some(replaced) = replaced {
                self.touch_file(replaced, -1, now);
            }
        }
        Ok((self.changes(from, &before.0)?, self.changes(to, &before.1)?))
    }

    pub(super) fn link(
        &mut self,
        caller: &Caller,
        file: FileId,
        directory: FileId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(Attributes, Changes), FileError> {
        let attributes = self.attributes(file)?;
        let before = *self.directory(caller, Node::live(directory))?.0;
        if attributes.kind == FileKind::Directory {
            return Err(FileError::IsDirectory);
        }
        match self.find(caller, directory, name) {
            Ok(_) => return Err(FileError::Exists),
            Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
        require(caller, &before, WRITE)?;
        if attributes.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        self.names_mut(directory).put(name, file);
        self.touch_directory(directory, 0, now);
        self.touch_file(file, 1, now);
        Ok((self.attributes(file)?, self.changes(directory, &before)?))
    }

    /// All of it, or nothing.
    pub(super) fn write(
        &mut self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        data: &[u8],
        limits: Limits,
        now: Timestamp,
    ) -> Result<Changes, FileError> {
        let before = self.attributes(file)?;
        require_write(caller, &before)?;
        if data.is_empty() {
            return self.changes(file, &before);
        }
        let end = offset_bytes.checked_add(data.len() as u64);
        let Some(end) = end.filter(|&end| end <= limits.size_max_bytes) else {
            return Err(FileError::TooLarge);
        };
        let inode = self.live.get_mut(&file).expect("it was found just now");
        let Inode { attributes, body } = inode;
        let Body::Regular { content, exclusive } = body else {
            unreachable!("only regular files may be written to");
        };
        let needed = content.needed_bytes(offset_bytes, data.len() as u64);
        if self.used_bytes + needed > limits.capacity_bytes {
            return Err(FileError::NoSpace);
        }
        content.write(offset_bytes, data);
        self.used_bytes += needed;
        *exclusive = None;
        let stamp = stamp(attributes, now);
        attributes.modified = stamp;
        attributes.changed = stamp;
        attributes.size_bytes = attributes.size_bytes.max(end);
        attributes.used_bytes = content.used_bytes();
        attributes.mode = crate::permissions::mode_after_write(caller, attributes.mode);
        self.changes(file, &before)
    }
}

/// What bounds a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) size_max_bytes: u64,
    pub(super) capacity_bytes: u64,
}
