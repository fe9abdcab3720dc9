//! The filesystem as gateways know it.

use flagstone_pagestore::{StoreError, Ticket};
use flagstone_platform::{IoBuf, Platform};

use crate::answer::Answer;
use crate::attributes::{Attributes, Changes, FileKind, SetAttributes, Timestamp};
use crate::change::{Change, Tried};
use crate::contents::{Piecewise, content_mut};
use crate::error::FileError;
use crate::files::{
    AccessMask, Caller, Cookie, Created, Entry, FileId, FileRead, Files, FilesystemId, Found,
    Listing, New, Node, SnapshotNumber, Space, Stability, Written,
};
use crate::filesystem::{Filesystem, Inner, ROOT_DIRECTORY, decoded};
use crate::inode::{Body, Content, CookieValue, EntryValue, Inode};
use crate::key;
use crate::locks::Locked;
use crate::names::{COOKIE_FIRST, COOKIE_PARENT, COOKIE_SELF};
use crate::objects::OBJECT_MAX_BYTES;
use crate::permissions::{
    EXECUTE, READ, access, check_name, check_own_name, check_set, check_target, mode_after_write,
    require, require_read, require_write, stamp,
};
use crate::view::View;

/// How often a write that was lost is done again.
const WRITES_MAX: usize = 8;

/// What became of one transaction of a write, or of all.
enum Chunk<T> {
    /// It wrote.
    Done(T),
    /// What was written before it may be lost.
    Lost,
    /// The file's content is a dvol.
    InDvol,
    /// It is to become one.
    Promote,
}

/// The file, if it may change.
fn live(node: Node) -> Result<FileId, FileError> {
    match node.at {
        SnapshotNumber::LIVE => Ok(node.file),
        _ => Err(FileError::ReadOnly),
    }
}

/// An answer of another kind than the operation's: the same token for two calls.
fn mixed<T>() -> Result<T, FileError> {
    Err(FileError::Invalid)
}

impl<P: Platform> Inner<P> {
    /// Carries out an operation once, however often its call comes.
    async fn once(
        &self,
        caller: &Caller,
        operation: impl AsyncFn(&mut Change<P>) -> Result<Answer, Tried>,
    ) -> Result<Answer, FileError> {
        let Some(token) = caller.token else {
            return self.run(operation).await;
        };
        let answer = self.run(async |change| {
            if let Some(answer) = self.answer_of(token).await? {
                return Ok((answer, None));
            }
            // Also if it changes nothing: done later it might.
            let answer = operation(change).await?;
            let kept = self.keep_answer(change, token, answer).await?;
            Ok((answer, Some(kept)))
        });
        let (answer, kept) = answer.await?;
        if let Some(kept) = kept {
            self.kept_answer(token, kept);
        }
        Ok(answer)
    }

    /// Keeps others from changing a file, and which names a directory has. What a snapshot has nobody changes.
    async fn share(&self, node: Node) -> Option<Locked> {
        match node.at {
            SnapshotNumber::LIVE => Some(self.locks.share(node.file.number()).await),
            _ => None,
        }
    }

    async fn look_at_directory(
        &self,
        view: &mut View<P>,
        caller: &Caller,
        directory: FileId,
        bits: u32,
    ) -> Result<Inode, Tried> {
        let inode = self.look_at(view, directory).await?;
        if inode.directory().is_none() {
            return Err(FileError::NotDirectory.into());
        }
        require(caller, &inode.attributes, bits)?;
        Ok(inode)
    }

    async fn find(
        &self,
        view: &mut View<P>,
        caller: &Caller,
        directory: FileId,
        name: &[u8],
    ) -> Result<(FileId, Attributes), Tried> {
        let inode = self
            .look_at_directory(view, caller, directory, EXECUTE)
            .await?;
        let file = match (name, inode.directory()) {
            (b".", _) => return Ok((directory, inode.attributes)),
            (b"..", Some(part)) => part.parent(),
            _ => {
                let value = view.get(&self.keys.entry(directory, name)).await?;
                let value = value.ok_or(FileError::NotFound)?;
                decoded(EntryValue::decode(&value), "a name")?.file
            }
        };
        // A name that was taken away since it was read leads to nothing.
        match self.look_at(view, file).await {
            Ok(inode) => Ok((file, inode.attributes)),
            Err(Tried::For(FileError::Stale)) => Err(Tried::Again),
            Err(error) => Err(error),
        }
    }

    /// One transaction of a write. Size and times change with the last: until then nothing is seen of it but
    /// by who reads, and who reads waits. Returns up to where it wrote, and how the file changed.
    async fn write_chunk(
        &self,
        change: &mut Change<P>,
        caller: &Caller,
        file: FileId,
        what: Piecewise<'_>,
        is_first: bool,
    ) -> Result<Chunk<(u64, Changes)>, Tried> {
        let mut inode = self.inode(change, file).await?;
        let before = inode.attributes;
        require_write(caller, &before)?;
        if inode.object().is_some() {
            return Ok(Chunk::InDvol);
        }
        if is_first {
            self.check_cut(change, file, &inode).await?;
            let end = what.offset_bytes + what.data.len() as u64;
            if self.is_to_promote(change, file, &inode, end).await? {
                return Ok(Chunk::Promote);
            }
        }
        let end = what.offset_bytes + what.data.len() as u64;
        let reached = self.write_content(change, file, &mut inode, what).await?;
        let size_bytes = before.size_bytes.max(end);
        if let Content::Blocks { cut_bytes } = content_mut(&mut inode) {
            *cut_bytes = match reached < end && reached > before.size_bytes {
                true => reached,
                false => 0,
            };
        }
        if reached == end {
            let attributes = &mut inode.attributes;
            let stamp = stamp(attributes, self.now());
            attributes.modified = stamp;
            attributes.changed = stamp;
            attributes.size_bytes = size_bytes;
            attributes.mode = mode_after_write(caller, attributes.mode);
            if let Body::Regular { exclusive, .. } = &mut inode.body {
                *exclusive = None;
            }
        }
        self.put_inode(change, file, &inode).await?;
        let changes = Changes {
            before: (&before).into(),
            after: inode.attributes,
        };
        Ok(Chunk::Done((reached, changes)))
    }

    /// All transactions of a write, one behind the other. What it came to, also if that is an error, survives
    /// power loss when the ticket does.
    async fn write_all(
        &self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        data: &IoBuf,
    ) -> Result<(Result<Chunk<Changes>, FileError>, Ticket), FileError> {
        let _entered = self.enter().await;
        let _own = self.locks.own(&[file.number()]).await;
        let end = offset_bytes + data.len() as u64;
        for _ in 0..WRITES_MAX {
            let verifier = self.store().verifier();
            let (mut at, mut ticket) = (offset_bytes, Ticket::default());
            loop {
                let rest = data.slice((at - offset_bytes) as usize..data.len());
                let written = self.step(async |change| {
                    if self.store().verifier() != verifier && at > offset_bytes {
                        // What was written so far may be lost.
                        return Ok(Chunk::Lost);
                    }
                    let is_first = at == offset_bytes;
                    let what = Piecewise {
                        offset_bytes: at,
                        data: &rest,
                    };
                    self.write_chunk(change, caller, file, what, is_first).await
                });
                let (written, last) = written.await?;
                ticket = self.store().later(ticket, last);
                match written {
                    Ok(Chunk::Done((reached, changes))) if reached == end => {
                        return Ok((Ok(Chunk::Done(changes)), ticket));
                    }
                    Ok(Chunk::Done((reached, _))) => at = reached,
                    Ok(Chunk::Lost) => break,
                    Ok(Chunk::InDvol) => return Ok((Ok(Chunk::InDvol), ticket)),
                    Ok(Chunk::Promote) => return Ok((Ok(Chunk::Promote), ticket)),
                    Err(error) => return Ok((Err(error), ticket)),
                }
            }
        }
        Err(FileError::Later)
    }

    fn written(&self, changes: Changes, stability: Stability, verifier: u64) -> Written {
        Written {
            changes,
            stability,
            verifier,
        }
    }

    async fn list_some(
        &self,
        view: &mut View<P>,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
    ) -> Result<(Vec<Entry>, bool, Inode), Tried> {
        let inode = self
            .look_at_directory(view, caller, directory.file, READ)
            .await?;
        let part = *inode.directory().ok_or(FileError::NotDirectory)?;
        if behind.0 >= part.next_cookie {
            return Err(FileError::BadCookie.into());
        }
        let entry = |cookie: u64, name: &[u8], file: FileId| Entry {
            cookie: Cookie(cookie),
            name: name.to_vec(),
            node: Node { file, ..directory },
            attributes: None,
        };
        let own = [
            entry(COOKIE_SELF, b".", directory.file),
            entry(COOKIE_PARENT, b"..", part.parent()),
        ];
        let own = own.into_iter().filter(|entry| entry.cookie > behind);
        let mut entries: Vec<Entry> = own.collect();
        let first = COOKIE_FIRST.max(behind.0 + 1);
        let (from, to) = self.keys.cookies(directory.file, first);
        // One more, to see whether there is one.
        let wanted = count.saturating_add(1).saturating_sub(entries.len());
        for (key, value) in view.scan(&from, &to, wanted).await? {
            let cookie = decoded(key::last_number(&key), "a cookie's key")?;
            let value = decoded(CookieValue::decode(&value), "a cookie")?;
            entries.push(entry(cookie, &value.name, value.file));
        }
        let is_end = entries.len() <= count;
        entries.truncate(count);
        Ok((entries, is_end, inode))
    }
}

impl<P: Platform> Files for Filesystem<P> {
    fn id(&self) -> FilesystemId {
        self.inner.keys.0
    }

    fn root(&self) -> FileId {
        ROOT_DIRECTORY
    }

    fn secret(&self) -> [u8; 16] {
        self.inner.with_state(|state| state.superblock.secret)
    }

    fn size_max_bytes(&self) -> u64 {
        OBJECT_MAX_BYTES
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        let inner = &self.inner;
        let look = inner.look(node.at, async |view| inner.look_at(view, node.file).await);
        Ok(look.await?.attributes)
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        let attributes = self.attributes(node).await?;
        let is_live = node.at == SnapshotNumber::LIVE;
        Ok((access(caller, &attributes, is_live, wanted), attributes))
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        check_name(name)?;
        let inner = &self.inner;
        let found = inner.look(directory.at, async |view| {
            // As long as it is held the name stays what it is: so all that is seen is of one moment.
            let _shared = inner.share(directory).await;
            inner.find(view, caller, directory.file, name).await
        });
        let (file, attributes) = found.await?;
        let node = Node { file, ..directory };
        Ok(Found { node, attributes })
    }

    async fn read_link(
        &self,
        _caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        let inner = &self.inner;
        let read = inner.look(node.at, async |view| {
            let inode = inner.look_at(view, node.file).await?;
            let Body::Link(content) = &inode.body else {
                return Err(FileError::Invalid.into());
            };
            let size_bytes = inode.attributes.size_bytes;
            let pieces = inner
                .read_content(view, node.file, content, 0..size_bytes)
                .await?;
            let mut target = Vec::with_capacity(size_bytes as usize);
            for piece in pieces {
                match piece {
                    crate::Piece::Data(data) => target.extend_from_slice(&data),
                    crate::Piece::Zeros(_) => return Err(FileError::Corrupt.into()),
                }
            }
            Ok((target, inode.attributes))
        });
        read.await
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        let inner = &self.inner;
        let is_live = node.at == SnapshotNumber::LIVE;
        let in_memory = inner.objects.get(node.file);
        if is_live && in_memory.is_some() {
            let read = inner.read_object(caller, node.file, offset_bytes, len_bytes);
            if let Some(read) = read.await? {
                return Ok(read);
            }
        }
        let read = inner.look(node.at, async |view| {
            // So that size and content are of one moment.
            let _shared = inner.share(node).await;
            let inode = inner.look_at(view, node.file).await?;
            require_read(caller, &inode.attributes)?;
            let size_bytes = inode.attributes.size_bytes;
            let rest = size_bytes.saturating_sub(offset_bytes);
            let len = rest.min(u64::from(len_bytes));
            let content = decoded(inode.content(), "a regular file")?;
            if is_live && inode.object().is_some() {
                return Ok(None);
            }
            let range = match len {
                0 => 0..0,
                _ => offset_bytes..offset_bytes + len,
            };
            let pieces = inner.read_content(view, node.file, content, range).await?;
            Ok(Some(FileRead {
                pieces,
                is_end: len == rest,
                attributes: inode.attributes,
            }))
        });
        if let Some(read) = read.await? {
            return Ok(read);
        }
        let read = inner.read_object(caller, node.file, offset_bytes, len_bytes);
        // What had a dvol has it as long as it is there.
        read.await?.ok_or(FileError::Stale)
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        let file = live(node)?;
        let inner = &self.inner;
        if data.is_empty() {
            let attributes = self.attributes(node).await?;
            require_write(caller, &attributes)?;
            let changes = Changes {
                before: (&attributes).into(),
                after: attributes,
            };
            return Ok(inner.written(changes, stability, inner.store().verifier()));
        }
        let end = offset_bytes.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > OBJECT_MAX_BYTES) {
            let attributes = self.attributes(node).await?;
            require_write(caller, &attributes)?;
            return Err(FileError::TooLarge);
        }
        let in_memory = inner.objects.get(file);
        let mut is_in_dvol = in_memory.is_some();
        for _ in 0..WRITES_MAX {
            // Before it is written: if that is lost, the client must see another one.
            let verifier = inner.store().verifier();
            if is_in_dvol {
                let written = inner.write_object(caller, file, offset_bytes, &data, stability);
                match written.await? {
                    Some(changes) => return Ok(inner.written(changes, stability, verifier)),
                    None => is_in_dvol = false,
                }
                continue;
            }
            let (chunk, ticket) = inner.write_all(caller, file, offset_bytes, &data).await?;
            let changes = match chunk {
                Ok(Chunk::InDvol) => {
                    is_in_dvol = true;
                    continue;
                }
                Ok(Chunk::Promote) => {
                    let more = data.len() as u64;
                    Box::pin(inner.promote(file, more)).await?;
                    continue;
                }
                Ok(Chunk::Lost) => continue,
                Ok(Chunk::Done(changes)) => Ok(changes),
                Err(error) => Err(error),
            };
            if let Ok(changes) = changes
                && stability == Stability::Unstable
            {
                return Ok(inner.written(changes, stability, verifier));
            }
            match inner.store().wait(ticket).await {
                Ok(()) => return Ok(inner.written(changes?, stability, verifier)),
                Err(StoreError::Lost) => {}
                Err(error) => {
                    return Err(match Tried::from(error) {
                        Tried::For(error) => error,
                        Tried::Again => FileError::Later,
                    });
                }
            }
        }
        Err(FileError::Later)
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        let file = live(node)?;
        let inner = &self.inner;
        if let Some(committed) = inner.commit_object(caller, file).await? {
            return Ok(committed);
        }
        // This waits until what was written survives.
        let attributes = self.attributes(node).await?;
        require_write(caller, &attributes)?;
        // Only then: if something was lost meanwhile, the client must see another one than with its writes.
        let verifier = inner.store().verifier();
        let changes = Changes {
            before: (&attributes).into(),
            after: attributes,
        };
        Ok(inner.written(changes, Stability::Stable, verifier))
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let file = live(node)?;
        check_set(&set)?;
        let inner = &self.inner;
        if let Some(size_bytes) = set.size_bytes {
            Box::pin(inner.promote_for(caller, file, size_bytes)).await?;
        }
        let once = Caller {
            // What else is set is the same if it is set once more. A size would cut what was written since.
            token: caller
                .token
                .filter(|_| guard.is_some() || set.size_bytes.is_some()),
            ..caller.clone()
        };
        let answer = inner.once(&once, async |change| {
            change.locked = inner.locks.own(&[file.number()]).await;
            let inode = inner.inode(change, file).await?;
            let before = inode.attributes;
            if guard.is_some_and(|guard| guard != before.changed) {
                return Err(FileError::NotSame.into());
            }
            let after = match set == SetAttributes::default() {
                true => before,
                false => {
                    let set = inner.set_inode(change, caller, file, inode, &set, OBJECT_MAX_BYTES);
                    set.await?.attributes
                }
            };
            Ok(Answer::Changed(Changes {
                before: (&before).into(),
                after,
            }))
        });
        match answer.await? {
            Answer::Changed(changes) => Ok(changes),
            _ => mixed(),
        }
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        let directory = live(directory)?;
        check_own_name(name)?;
        check_set(&set)?;
        match new {
            New::SymbolicLink(target) => check_target(target)?,
            New::Special(FileKind::Regular | FileKind::Directory | FileKind::SymbolicLink) => {
                return Err(FileError::Unsupported);
            }
            _ => {}
        }
        let inner = &self.inner;
        let answer = inner.once(caller, async |change| {
            let made = inner.make(change, caller, directory, name, new, &set, OBJECT_MAX_BYTES);
            made.await.map(Answer::Made)
        });
        match answer.await? {
            Answer::Made(created) => Ok(created),
            _ => mixed(),
        }
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        self.remove_kind(caller, directory, name, false).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        self.remove_kind(caller, directory, name, true).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        let (from, to) = ((live(from.0)?, from.1), (live(to.0)?, to.1));
        check_own_name(from.1)?;
        check_own_name(to.1)?;
        let inner = &self.inner;
        let answer = inner.once(caller, async |change| {
            let (from, to) = inner.rename(change, caller, from, to).await?;
            Ok(Answer::Renamed(from, to))
        });
        match answer.await? {
            Answer::Renamed(from, to) => Ok((from, to)),
            _ => mixed(),
        }
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        let (file, directory) = (live(node)?, live(directory)?);
        check_own_name(name)?;
        let inner = &self.inner;
        let answer = inner.once(caller, async |change| {
            let (attributes, changes) = inner.link(change, caller, file, directory, name).await?;
            Ok(Answer::Linked(attributes, changes))
        });
        match answer.await? {
            Answer::Linked(attributes, changes) => Ok((attributes, changes)),
            _ => mixed(),
        }
    }

    async fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        let inner = &self.inner;
        let listing = inner.look(directory.at, async |view| {
            // Names are of one moment; attributes each of its own.
            let _shared = inner.share(directory).await;
            let (mut entries, is_end, inode) = inner
                .list_some(view, caller, directory, behind, count)
                .await?;
            let may_search = require(caller, &inode.attributes, EXECUTE).is_ok();
            for entry in entries.iter_mut().filter(|_| with_attributes && may_search) {
                match inner.look_at(view, entry.node.file).await {
                    Ok(inode) => entry.attributes = Some(inode.attributes),
                    Err(Tried::For(FileError::Stale)) => {}
                    // Whoever asks for this one is told; the others are there all the same.
                    Err(Tried::For(FileError::Device)) if !inner.places.are_all_here() => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(Listing {
                entries,
                is_end,
                directory: inode.attributes,
            })
        });
        listing.await
    }

    async fn space(&self) -> Result<Space, FileError> {
        let inner = &self.inner;
        let (usage, quota, quota_files) = inner.counted().await?;
        inner.recount_if_old().await;
        let used = inner.used_bytes();
        let is_one = inner.with_state(|state| state.superblock.one_device);
        let (capacity, free) = inner.places.space(is_one);
        let (total_bytes, free_bytes) = match quota {
            0 => (capacity, free),
            quota => (quota, free.min(quota.saturating_sub(used))),
        };
        let files = usage.files.max(0).cast_unsigned();
        Ok(Space {
            total_bytes,
            free_bytes,
            files,
            free_files: (quota_files > 0).then(|| quota_files.saturating_sub(files)),
        })
    }
}

impl<P: Platform> Filesystem<P> {
    async fn remove_kind(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        is_directory: bool,
    ) -> Result<Changes, FileError> {
        let directory = live(directory)?;
        check_own_name(name)?;
        let inner = &self.inner;
        let answer = inner.once(caller, async |change| {
            let removed = inner.remove(change, caller, directory, name, is_directory);
            removed.await.map(Answer::Changed)
        });
        match answer.await? {
            Answer::Changed(changes) => Ok(changes),
            _ => mixed(),
        }
    }
}
