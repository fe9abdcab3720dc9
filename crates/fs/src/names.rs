//! Operations on names: make, remove, rename, link. Each is one transaction, with the files it changes locked.

use flagstone_platform::Platform;

use crate::attributes::{Attributes, Changes, FileKind, SetAttributes, Timestamp};
use crate::change::{Change, Tried};
use crate::error::FileError;
use crate::files::{Caller, Created, Creation, FileId, LINKS_MAX, NAME_SIZE_BYTES, New, Node};
use crate::filesystem::{Inner, decoded};
use crate::inode::{
    Body, Content, CookieValue, DirectoryPart, EntryValue, INLINE_MAX_BYTES, Inode,
};
use crate::permissions::{
    EXECUTE, WRITE, new_attributes, require, require_removal, set_attributes, stamp,
};
use crate::superblock::Usage;
use crate::view::View;

/// Cookies of `.` and `..`; the first name gets the next.
pub(crate) const COOKIE_SELF: u64 = 1;
pub(crate) const COOKIE_PARENT: u64 = 2;
pub(crate) const COOKIE_FIRST: u64 = 3;

/// A directory that an operation changes.
struct Directory {
    file: FileId,
    inode: Inode,
    before: Attributes,
}

impl Directory {
    fn part(&mut self) -> &mut DirectoryPart {
        match &mut self.inode.body {
            Body::Directory(part) => part,
            _ => unreachable!("it was found to be a directory when it was read"),
        }
    }

    /// Its names have changed: so many bytes and directories more or less.
    fn touch(&mut self, names: i64, name_bytes: i64, directories: i64, now: Timestamp) {
        let part = self.part();
        part.entries = part.entries.saturating_add_signed(names);
        let attributes = &mut self.inode.attributes;
        let stamp = stamp(attributes, now);
        attributes.changed = stamp;
        attributes.modified = stamp;
        attributes.size_bytes = attributes.size_bytes.saturating_add_signed(name_bytes);
        let links = i64::from(attributes.links) + directories;
        attributes.links = links.clamp(0, i64::from(u32::MAX)) as u32;
    }

    fn is_image_store(&self) -> bool {
        self.inode
            .directory()
            .is_some_and(|part| part.is_image_store)
    }

    fn changes(&self) -> Changes {
        Changes {
            before: (&self.before).into(),
            after: self.inode.attributes,
        }
    }
}

/// What a name adds to its directory's size.
fn size_of(name: &[u8]) -> i64 {
    (name.len() as u64 + NAME_SIZE_BYTES).cast_signed()
}

impl<P: Platform> Inner<P> {
    /// A directory in which the caller may look up names.
    async fn directory(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        file: FileId,
    ) -> Result<Directory, Tried> {
        let inode = self.inode(change, file).await?;
        if inode.directory().is_none() {
            return Err(FileError::NotDirectory.into());
        }
        let before = inode.attributes;
        require(caller, &before, EXECUTE)?;
        Ok(Directory {
            file,
            inode,
            before,
        })
    }

    async fn entry(
        &self,
        change: &mut Change<P>,
        directory: FileId,
        name: &[u8],
    ) -> Result<Option<EntryValue>, Tried> {
        let value = change.get(&self.keys.entry(directory, name)).await?;
        let entry = value.map(|value| decoded(EntryValue::decode(value), "a name"));
        entry.transpose()
    }

    /// Gives a name that nobody has to a file.
    async fn put_name(
        &self,
        change: &mut Change<P>,
        directory: &mut Directory,
        name: &[u8],
        file: FileId,
    ) -> Result<(), Tried> {
        let part = directory.part();
        let cookie = part.next_cookie;
        part.next_cookie += 1;
        let key = self.keys.entry(directory.file, name);
        change
            .put(&key, EntryValue { file, cookie }.encode())
            .await?;
        let value = CookieValue::encode(file, name);
        change.put_new(self.keys.cookie(directory.file, cookie), value);
        Ok(())
    }

    async fn take_name(
        &self,
        change: &mut Change<P>,
        directory: FileId,
        name: &[u8],
        entry: &EntryValue,
    ) -> Result<(), Tried> {
        change.delete(&self.keys.entry(directory, name)).await?;
        change
            .delete(&self.keys.cookie(directory, entry.cookie))
            .await
    }

    /// Locks directories, and then the files that have some names there, whatever their order.
    async fn lock(&self, change: &mut Change<P>, names: &[(FileId, &[u8])]) -> Result<(), Tried> {
        let mut wanted: Vec<u64> = names
            .iter()
            .map(|(directory, _)| directory.number())
            .collect();
        change.locked = self.locks.own(&wanted).await;
        let highest = wanted.iter().copied().max().unwrap_or_default();
        let found = self.files_of(change, names).await?;
        let more: Vec<u64> = found
            .iter()
            .copied()
            .filter(|n| !wanted.contains(n))
            .collect();
        if more.iter().all(|number| *number > highest) {
            // In ascending order still: files are mostly younger than their directories.
            change.locked.extend(self.locks.own(&more).await);
            return Ok(());
        }
        change.locked.clear();
        wanted.extend(more);
        change.locked = self.locks.own(&wanted).await;
        let mut again = change.fresh();
        match self.files_of(&mut again, names).await? == found {
            true => Ok(()),
            false => Err(Tried::Again),
        }
    }

    async fn files_of(
        &self,
        change: &mut Change<P>,
        names: &[(FileId, &[u8])],
    ) -> Result<Vec<u64>, Tried> {
        let mut found = Vec::new();
        for (directory, name) in names {
            let entry = self.entry(change, *directory, name).await?;
            found.extend(entry.map(|entry| entry.file.number()));
        }
        Ok(found)
    }

    #[expect(clippy::too_many_arguments, reason = "they are the operation's")]
    pub(crate) async fn make(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        new: New<'_>,
        set: &SetAttributes,
        size_max_bytes: u64,
    ) -> Result<Created, Tried> {
        self.lock(change, &[(directory, name)]).await?;
        let mut parent = self.directory(change, caller, directory).await?;
        let now = self.now();
        if let Some(entry) = self.entry(change, directory, name).await? {
            let taken = self.take_existing(change, caller, entry.file, new, set, size_max_bytes);
            let attributes = Box::pin(taken).await?;
            return Ok(Created {
                node: Node::live(entry.file),
                attributes,
                directory: parent.changes(),
            });
        }
        require(caller, &parent.before, WRITE)?;
        let is_directory = new == New::Directory;
        let (file, inode) = self
            .new_inode(change, caller, &parent, new, set, size_max_bytes, now)
            .await?;
        self.put_name(change, &mut parent, name, file).await?;
        parent.touch(1, size_of(name), i64::from(is_directory), now);
        self.put_inode(change, directory, &parent.inode).await?;
        change.put_new(self.keys.inode(file), inode.encode());
        change.count(Usage { files: 1, bytes: 0 });
        Ok(Created {
            node: Node::live(file),
            attributes: inode.attributes,
            directory: parent.changes(),
        })
    }

    /// A name is there already: whether what has it can be taken for what was to be made.
    async fn take_existing(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        file: FileId,
        new: New<'_>,
        set: &SetAttributes,
        size_max_bytes: u64,
    ) -> Result<Attributes, Tried> {
        let inode = self.inode(change, file).await?;
        let Body::Regular { exclusive, .. } = &inode.body else {
            return Err(FileError::Exists.into());
        };
        match new {
            New::File(Creation::Unchecked) => {
                let cut = SetAttributes {
                    size_bytes: set.size_bytes,
                    ..SetAttributes::default()
                };
                if cut == SetAttributes::default() {
                    return Ok(inode.attributes);
                }
                let after = self
                    .set_inode(change, caller, file, inode, &cut, size_max_bytes)
                    .await?;
                Ok(after.attributes)
            }
            New::File(Creation::Exclusive(number)) if *exclusive == Some(number) => {
                Ok(inode.attributes)
            }
            _ => Err(FileError::Exists.into()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the operation's")]
    async fn new_inode(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        parent: &Directory,
        new: New<'_>,
        set: &SetAttributes,
        size_max_bytes: u64,
        now: Timestamp,
    ) -> Result<(FileId, Inode), Tried> {
        let regular = |exclusive| Body::Regular {
            content: Content::Inline(Vec::new()),
            exclusive,
        };
        let nothing = SetAttributes::default();
        let (kind, body, set) = match new {
            New::File(Creation::Exclusive(number)) => {
                (FileKind::Regular, regular(Some(number)), &nothing)
            }
            New::File(_) => (FileKind::Regular, regular(None), set),
            New::Directory => {
                let part = DirectoryPart {
                    parent: parent.file.directory,
                    next_cookie: COOKIE_FIRST,
                    entries: 0,
                    is_image_store: parent.is_image_store(),
                };
                (FileKind::Directory, Body::Directory(part), set)
            }
            New::SymbolicLink(target) => {
                let content = match target.len() <= INLINE_MAX_BYTES {
                    true => Content::Inline(target.to_vec()),
                    false => Content::Blocks { cut_bytes: 0 },
                };
                (FileKind::SymbolicLink, Body::Link(content), set)
            }
            New::Special(kind) => {
                let is_device = matches!(
                    kind,
                    FileKind::BlockDevice { .. } | FileKind::CharacterDevice { .. }
                );
                if is_device && !caller.is_root() {
                    return Err(FileError::NotOwner.into());
                }
                (kind, Body::Special, set)
            }
        };
        let parent = &parent.before;
        let mut attributes = new_attributes(caller, parent, kind, 0, set, size_max_bytes, now)?;
        let number = self.new_number().await?;
        attributes.number = number;
        let file = match kind {
            FileKind::Directory => FileId {
                directory: number,
                file: 0,
            },
            _ => FileId {
                directory: parent.number,
                file: number,
            },
        };
        let mut inode = Inode { attributes, body };
        if let New::SymbolicLink(target) = new {
            inode.attributes.size_bytes = target.len() as u64;
            if target.len() > INLINE_MAX_BYTES {
                self.write_new(change, file, &mut inode, target).await?;
            }
        } else if inode.attributes.size_bytes > 0 {
            self.resize_new(&mut inode);
        }
        Ok((file, inode))
    }

    pub(crate) async fn remove(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
        is_directory: bool,
    ) -> Result<Changes, Tried> {
        self.lock(change, &[(directory, name)]).await?;
        let mut parent = self.directory(change, caller, directory).await?;
        let entry = self.entry(change, directory, name).await?;
        let entry = entry.ok_or(FileError::NotFound)?;
        let inode = self.inode_to_remove(change, entry.file).await?;
        require_removal(caller, &parent.before, &inode.attributes)?;
        check_replaceable(&inode, is_directory)?;
        let now = self.now();
        self.take_name(change, directory, name, &entry).await?;
        parent.touch(-1, -size_of(name), -i64::from(is_directory), now);
        self.put_inode(change, directory, &parent.inode).await?;
        self.lose_name(change, entry.file, inode, now).await?;
        Ok(parent.changes())
    }

    /// A file has a name less. Without any it is gone.
    async fn lose_name(
        &self,
        change: &mut Change<P>,
        file: FileId,
        mut inode: Inode,
        now: Timestamp,
    ) -> Result<(), Tried> {
        let is_directory = inode.directory().is_some();
        let attributes = &mut inode.attributes;
        attributes.links = attributes.links.saturating_sub(1);
        attributes.changed = stamp(attributes, now);
        if attributes.links > u32::from(is_directory) {
            return self.put_inode(change, file, &inode).await;
        }
        self.give_up(change, file, &inode).await?;
        change.count(Usage {
            files: -1,
            bytes: 0,
        });
        Ok(())
    }

    pub(crate) async fn link(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        file: FileId,
        directory: FileId,
        name: &[u8],
    ) -> Result<(Attributes, Changes), Tried> {
        let numbers = [file.number(), directory.number()];
        change.locked = self.locks.own(&numbers).await;
        let mut inode = self.inode(change, file).await?;
        let mut parent = self.directory(change, caller, directory).await?;
        if inode.directory().is_some() {
            return Err(FileError::IsDirectory.into());
        }
        if self.entry(change, directory, name).await?.is_some() {
            return Err(FileError::Exists.into());
        }
        require(caller, &parent.before, WRITE)?;
        if inode.attributes.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks.into());
        }
        let now = self.now();
        self.put_name(change, &mut parent, name, file).await?;
        parent.touch(1, size_of(name), 0, now);
        self.put_inode(change, directory, &parent.inode).await?;
        inode.attributes.links += 1;
        inode.attributes.changed = stamp(&inode.attributes, now);
        self.put_inode(change, file, &inode).await?;
        Ok((inode.attributes, parent.changes()))
    }

    pub(crate) async fn rename(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
    ) -> Result<(Changes, Changes), Tried> {
        if from.0 != to.0 {
            change.moving = Some(self.moves.take(1).await);
        }
        self.lock(change, &[from, to]).await?;
        let mut source = self.directory(change, caller, from.0).await?;
        let target = self.directory(change, caller, to.0).await?;
        let moved = self.entry(change, from.0, from.1).await?;
        let moved = moved.ok_or(FileError::NotFound)?;
        let replaced = self.entry(change, to.0, to.1).await?;
        if replaced.is_some_and(|replaced| replaced.file == moved.file) {
            return Ok((source.changes(), target.changes()));
        }
        let mut inode = self.inode(change, moved.file).await?;
        let is_directory = inode.directory().is_some();
        let is_moved = from.0 != to.0;
        if is_directory && self.is_within(change, to.0, moved.file).await? {
            return Err(FileError::Invalid.into());
        }
        require_removal(caller, &source.before, &inode.attributes)?;
        require(caller, &target.before, WRITE)?;
        if is_directory && is_moved {
            require(caller, &inode.attributes, WRITE)?;
        }
        let mut lost = None;
        if let Some(replaced) = replaced {
            let inode = self.inode_to_remove(change, replaced.file).await?;
            require_removal(caller, &target.before, &inode.attributes)?;
            check_replaceable(&inode, is_directory)?;
            lost = Some((replaced, inode));
        }
        let now = self.now();
        self.take_name(change, from.0, from.1, &moved).await?;
        let of_directory = i64::from(is_directory);
        let of_lost = i64::from(is_directory && lost.is_some());
        source.touch(-1, -size_of(from.1), 0, now);
        // Within one directory both are the same.
        let mut other = is_moved.then_some(target);
        let target = other.as_mut().unwrap_or(&mut source);
        match &lost {
            Some((lost, _)) => self.replace_name(change, to, lost, moved.file).await?,
            None => self.put_name(change, target, to.1, moved.file).await?,
        }
        let (names, bytes) = match lost {
            Some(_) => (0, 0),
            None => (1, size_of(to.1)),
        };
        if is_moved {
            target.touch(names, bytes, of_directory - of_lost, now);
            source.inode.attributes.links -= u32::from(is_directory);
        } else {
            // Once more would be another change: only what is counted.
            let part = target.part();
            part.entries = part.entries.saturating_add_signed(names);
            let attributes = &mut target.inode.attributes;
            attributes.size_bytes = attributes.size_bytes.saturating_add_signed(bytes);
            attributes.links -= of_lost as u32;
        }
        if let Body::Directory(part) = &mut inode.body {
            part.parent = to.0.directory;
        }
        inode.attributes.changed = stamp(&inode.attributes, now);
        self.put_inode(change, moved.file, &inode).await?;
        self.put_inode(change, from.0, &source.inode).await?;
        if let Some(target) = &other {
            self.put_inode(change, to.0, &target.inode).await?;
        }
        if let Some((replaced, inode)) = lost {
            self.lose_name(change, replaced.file, inode, now).await?;
        }
        let changes = source.changes();
        Ok((changes, other.map_or(changes, |target| target.changes())))
    }

    /// A name gets another file, and keeps its cookie.
    async fn replace_name(
        &self,
        change: &mut Change<P>,
        (directory, name): (FileId, &[u8]),
        old: &EntryValue,
        file: FileId,
    ) -> Result<(), Tried> {
        let cookie = old.cookie;
        let entry = EntryValue { file, cookie };
        let key = self.keys.entry(directory, name);
        change.put(&key, entry.encode()).await?;
        let key = self.keys.cookie(directory, cookie);
        change.put(&key, CookieValue::encode(file, name)).await
    }

    /// Whether `inner` is the directory `outer` or below it. Nobody else moves directories meanwhile.
    async fn is_within(
        &self,
        change: &mut Change<P>,
        mut inner: FileId,
        outer: FileId,
    ) -> Result<bool, Tried> {
        // Not as a part of the transaction: there may be any number of them, with names that come and go.
        let mut view = View::new(&self.tree, u32::MAX);
        while inner != outer {
            let inode = self.look_at(&mut view, inner).await?;
            let part = inode.directory().ok_or(FileError::Corrupt)?;
            if part.parent() == inner {
                change.note(view.ticket());
                return Ok(false);
            }
            inner = part.parent();
        }
        change.note(view.ticket());
        Ok(true)
    }

    /// Sets attributes, the size among them. Returns the file as it is then.
    pub(crate) async fn set_inode(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        file: FileId,
        mut inode: Inode,
        set: &SetAttributes,
        size_max_bytes: u64,
    ) -> Result<Inode, Tried> {
        let before = inode.attributes;
        let stamp = stamp(&before, self.now());
        let after = set_attributes(caller, &before, set, size_max_bytes, stamp)?;
        if set.size_bytes.is_some() {
            Box::pin(self.resize(change, file, &mut inode, after.size_bytes)).await?;
        }
        let used_bytes = inode.attributes.used_bytes;
        inode.attributes = Attributes {
            used_bytes,
            ..after
        };
        if let Body::Regular { exclusive, .. } = &mut inode.body {
            *exclusive = None;
        }
        self.put_inode(change, file, &inode).await?;
        Ok(inode)
    }
}

/// Fails unless the file is an empty directory, or none, as is said.
fn check_replaceable(inode: &Inode, is_directory: bool) -> Result<(), FileError> {
    match inode.directory() {
        Some(_) if !is_directory => Err(FileError::IsDirectory),
        Some(part) if part.entries > 0 => Err(FileError::NotEmpty),
        None if is_directory => Err(FileError::NotDirectory),
        _ => Ok(()),
    }
}
