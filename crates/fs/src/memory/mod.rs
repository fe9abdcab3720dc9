//! A filesystem in memory: what [`Files`] promises, as simply as it can be said. Tests compare with it.
//!
//! Everything happens at one instant and is durable then. Nothing is bounded but by what the options say.

mod answers;
mod content;
mod snapshots;
mod state;

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};

use crate::attributes::{Attributes, Changes, FileKind, SetAttributes, Timestamp};
use crate::error::FileError;
use crate::files::{
    AccessMask, Caller, Cookie, Created, Entry, FileId, FileRead, Files, FilesystemId, Found,
    Listing, New, Node, SnapshotNumber, Space, Stability, Written,
};
use crate::permissions::{
    EXECUTE, READ, access, check_name, check_own_name, check_set, check_target, require,
    require_read, require_write,
};
use crate::snapshots::SnapshotInfo;
use answers::Answer;
pub use snapshots::Copied;
use snapshots::Kept;
use state::{Body, COOKIES_RESERVED, Limits, State};

/// What a filesystem in memory is to be like.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Which it is.
    pub id: FilesystemId,
    /// Key of the checksums in handles.
    pub secret: [u8; 16],
    /// The largest file.
    pub size_max_bytes: u64,
    /// What all files may take together, in blocks of 4 KiB.
    pub capacity_bytes: u64,
    /// An operation waits up to so long before it happens, and as long before it is answered.
    pub delay_max_ns: u64,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            id: FilesystemId(1),
            secret: *b"a secret of test",
            size_max_bytes: 1 << 60,
            capacity_bytes: 1 << 40,
            delay_max_ns: 0,
        }
    }
}

struct Inner<P> {
    platform: P,
    options: MemoryOptions,
    verifier: Cell<u64>,
    state: RefCell<State>,
}

/// The filesystem. A cheap handle.
pub struct MemoryFiles<P> {
    inner: Rc<Inner<P>>,
}

impl<P> Clone for MemoryFiles<P> {
    fn clone(&self) -> Self {
        MemoryFiles {
            inner: self.inner.clone(),
        }
    }
}

const ROOT: FileId = FileId {
    directory: 1,
    file: 0,
};

impl<P: Platform> MemoryFiles<P> {
    /// A filesystem with nothing in it. Its topmost directory is root's, with mode 0755.
    pub fn new(platform: P, options: MemoryOptions) -> MemoryFiles<P> {
        let now = Timestamp::from_ns(platform.wall_clock_ns());
        MemoryFiles {
            inner: Rc::new(Inner {
                platform,
                options,
                verifier: Cell::new(1),
                state: RefCell::new(State::new(ROOT, now)),
            }),
        }
    }

    /// Takes a snapshot of everything, called by its number.
    pub fn snapshot(&self) -> SnapshotNumber {
        let mut state = self.inner.state.borrow_mut();
        let taken = state.take_snapshot(None, self.now());
        taken.expect("nobody else is called by a number")
    }

    /// As [`crate::Filesystem::take_snapshot`].
    pub async fn take_snapshot(&self, name: &str) -> Result<SnapshotNumber, FileError> {
        self.change(|state, now| state.take_snapshot(Some(name), now))
            .await
    }

    /// All snapshots.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let state = self.inner.state.borrow();
        let info = |(number, kept): (&SnapshotNumber, &Kept)| SnapshotInfo {
            name: kept.name.clone(),
            number: *number,
            taken: kept.taken,
        };
        state.snapshots.iter().map(info).collect()
    }

    /// As [`crate::Filesystem::delete_snapshot`].
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), FileError> {
        self.change(|state, _| state.delete_snapshot(name)).await
    }

    /// As [`crate::Filesystem::roll_back`], but for everything being done when this returns.
    pub async fn roll_back(&self, name: &str) -> Result<(), FileError> {
        self.change(|state, _| state.roll_back(name)).await
    }

    /// As [`crate::Filesystem::clone_file`]: what is copied is looked at first, and the copy made then.
    pub async fn clone_file(
        &self,
        caller: &Caller,
        source: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<Created, FileError> {
        let copied = self.copied(caller, source, directory, name).await?;
        self.make_copy(caller, directory, name, &copied).await
    }

    /// The first half of a copy.
    pub async fn copied(
        &self,
        caller: &Caller,
        source: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<Copied, FileError> {
        check_own_name(name)?;
        live(directory)?;
        self.look(|state| state.copied(caller, source)).await
    }

    /// The other half, whatever has become of the file meanwhile.
    pub async fn make_copy(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        copied: &Copied,
    ) -> Result<Created, FileError> {
        let (directory, limits) = (live(directory)?, self.limits());
        self.change(|state, now| state.make_copy(caller, directory, name, copied, limits, now))
            .await
    }

    /// Another filesystem that is as this one is now, and goes its own way from here on, on this or another
    /// platform: what a restart finds.
    pub fn fork(&self, platform: &P) -> MemoryFiles<P> {
        let inner = &self.inner;
        MemoryFiles {
            inner: Rc::new(Inner {
                platform: platform.clone(),
                options: inner.options.clone(),
                verifier: inner.verifier.clone(),
                state: RefCell::new(inner.state.borrow().clone()),
            }),
        }
    }

    /// Sets what writes and commits answer as their verifier, as if something had been lost.
    pub fn set_verifier(&self, verifier: u64) {
        self.inner.verifier.set(verifier);
    }

    fn limits(&self) -> Limits {
        Limits {
            size_max_bytes: self.inner.options.size_max_bytes,
            capacity_bytes: self.inner.options.capacity_bytes,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.inner.platform.wall_clock_ns())
    }

    /// Lets others go first, as an operation that waits for a device does.
    async fn wait(&self) {
        let inner = &self.inner;
        inner.platform.yield_now().await;
        if inner.options.delay_max_ns > 0 {
            let delay_ns = inner.platform.random_u64() % inner.options.delay_max_ns;
            inner.platform.sleep_ns(delay_ns).await;
        }
    }

    /// Waits, looks, and waits once more.
    async fn look<T>(
        &self,
        act: impl FnOnce(&State) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.wait().await;
        let seen = act(&self.inner.state.borrow());
        self.wait().await;
        seen
    }

    /// The same, then changes.
    async fn change<T>(
        &self,
        act: impl FnOnce(&mut State, Timestamp) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.wait().await;
        let done = act(&mut self.inner.state.borrow_mut(), self.now());
        self.wait().await;
        done
    }

    /// The same, unless the call was answered before: then that is the answer.
    async fn change_once(
        &self,
        caller: &Caller,
        act: impl FnOnce(&mut State, Timestamp) -> Result<Answer, FileError>,
    ) -> Result<Answer, FileError> {
        self.change(|state, now| {
            if let Some(answer) = state.answers.find(caller) {
                return Ok(answer);
            }
            let answer = act(state, now)?;
            state.answers.keep(caller, answer);
            Ok(answer)
        })
        .await
    }

    async fn remove_kind(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        is_directory: bool,
    ) -> Result<Changes, FileError> {
        let directory = live(directory)?;
        check_own_name(name)?;
        let answer = self.change_once(caller, |state, now| {
            let removed = state.remove(caller, directory, name, is_directory, now);
            removed.map(Answer::Changed)
        });
        match answer.await? {
            Answer::Changed(changes) => Ok(changes),
            _ => Err(FileError::Invalid),
        }
    }

    fn written(&self, changes: Changes) -> Written {
        Written {
            changes,
            stability: Stability::Stable,
            verifier: self.inner.verifier.get(),
        }
    }
}

/// The file, if it may change.
fn live(node: Node) -> Result<FileId, FileError> {
    match node.at {
        SnapshotNumber::LIVE => Ok(node.file),
        _ => Err(FileError::ReadOnly),
    }
}

impl<P: Platform> Files for MemoryFiles<P> {
    fn id(&self) -> FilesystemId {
        self.inner.options.id
    }

    fn root(&self) -> FileId {
        ROOT
    }

    fn secret(&self) -> [u8; 16] {
        self.inner.options.secret
    }

    fn size_max_bytes(&self) -> u64 {
        self.inner.options.size_max_bytes
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        self.look(|state| state.get(node).map(|inode| inode.attributes))
            .await
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
        self.look(|state| {
            let (_, names) = state.directory(caller, directory)?;
            let file = match name {
                b"." => directory.file,
                b".." => names.parent,
                _ => names.by_name.get(name).ok_or(FileError::NotFound)?.1,
            };
            let node = Node { file, ..directory };
            let attributes = state.get(node)?.attributes;
            Ok(Found { node, attributes })
        })
        .await
    }

    async fn read_link(
        &self,
        _caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        self.look(|state| {
            let inode = state.get(node)?;
            match &inode.body {
                Body::Link(target) => Ok((target.clone(), inode.attributes)),
                _ => Err(FileError::Invalid),
            }
        })
        .await
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        self.look(|state| {
            let inode = state.get(node)?;
            require_read(caller, &inode.attributes)?;
            let Body::Regular { content, .. } = &inode.body else {
                unreachable!("only regular files may be read");
            };
            let rest = inode.attributes.size_bytes.saturating_sub(offset_bytes);
            let len = rest.min(u64::from(len_bytes));
            Ok(FileRead {
                pieces: content.read(offset_bytes, len),
                is_end: len == rest,
                attributes: inode.attributes,
            })
        })
        .await
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        _stability: Stability,
    ) -> Result<Written, FileError> {
        let (file, limits) = (live(node)?, self.limits());
        let changes = self
            .change(|state, now| state.write(caller, file, offset_bytes, &data, limits, now))
            .await?;
        Ok(self.written(changes))
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        live(node)?;
        let attributes = self.attributes(node).await?;
        require_write(caller, &attributes)?;
        Ok(self.written(Changes {
            before: (&attributes).into(),
            after: attributes,
        }))
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
        let size_max_bytes = self.inner.options.size_max_bytes;
        let once = Caller {
            token: caller
                .token
                .filter(|_| guard.is_some() || set.size_bytes.is_some()),
            ..caller.clone()
        };
        let answer = self.change_once(&once, |state, now| {
            let changes = state.set_attributes(caller, file, &set, guard, size_max_bytes, now);
            changes.map(Answer::Changed)
        });
        match answer.await? {
            Answer::Changed(changes) => Ok(changes),
            _ => Err(FileError::Invalid),
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
        let size_max_bytes = self.inner.options.size_max_bytes;
        let answer = self.change_once(caller, |state, now| {
            let made = state.make(caller, directory, name, new, &set, size_max_bytes, now);
            made.map(Answer::Made)
        });
        match answer.await? {
            Answer::Made(created) => Ok(created),
            _ => Err(FileError::Invalid),
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
        let answer = self.change_once(caller, |state, now| {
            let (from, to) = state.rename(caller, from, to, now)?;
            Ok(Answer::Renamed(from, to))
        });
        match answer.await? {
            Answer::Renamed(from, to) => Ok((from, to)),
            _ => Err(FileError::Invalid),
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
        let answer = self.change_once(caller, |state, now| {
            let (attributes, changes) = state.link(caller, file, directory, name, now)?;
            Ok(Answer::Linked(attributes, changes))
        });
        match answer.await? {
            Answer::Linked(attributes, changes) => Ok((attributes, changes)),
            _ => Err(FileError::Invalid),
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
        self.look(|state| {
            let inode = state.get(directory)?;
            let Body::Directory(names) = &inode.body else {
                return Err(FileError::NotDirectory);
            };
            require(caller, &inode.attributes, READ)?;
            if behind.0 >= names.next_cookie {
                return Err(FileError::BadCookie);
            }
            let may_search = require(caller, &inode.attributes, EXECUTE).is_ok();
            let own = COOKIES_RESERVED
                .into_iter()
                .zip([directory.file, names.parent]);
            let own = own.map(|((cookie, name), file)| (cookie, name, file));
            let own = own.filter(|(cookie, _, _)| *cookie > behind);
            let others = names
                .by_cookie
                .range((Bound::Excluded(behind), Bound::Unbounded));
            let others = others.map(|(cookie, name)| (*cookie, &name[..], names.by_name[name].1));
            let mut rest = own.chain(others).map(|(cookie, name, file)| {
                let node = Node { file, ..directory };
                let wanted = with_attributes && may_search;
                let attributes = wanted.then(|| state.get(node)).and_then(Result::ok);
                Entry {
                    cookie,
                    name: name.to_vec(),
                    node,
                    attributes: attributes.map(|inode| inode.attributes),
                }
            });
            Ok(Listing {
                entries: rest.by_ref().take(count).collect(),
                is_end: rest.next().is_none(),
                directory: inode.attributes,
            })
        })
        .await
    }

    async fn space(&self) -> Result<Space, FileError> {
        let total_bytes = self.inner.options.capacity_bytes;
        self.look(|state| {
            Ok(Space {
                total_bytes,
                free_bytes: total_bytes.saturating_sub(state.used_bytes),
                files: state.live.len() as u64,
                free_files: None,
            })
        })
        .await
    }
}
