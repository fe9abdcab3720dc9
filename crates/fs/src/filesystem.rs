//! An open filesystem: what of it is in memory, and how each operation is carried out.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_btree::{Tree, decode_counters};
use flagstone_pagestore::{Store, StoreError, Ticket};
use flagstone_platform::Platform;
use flagstone_platform::sync::{Budget, Share, Signal};
use flagstone_types::DvolId;
use tracing::{error, warn};

use crate::attributes::Timestamp;
use crate::change::{Change, Later, Tried};
use crate::contents::{Extents, content_mut};
use crate::error::FileError;
use crate::expiry::Expiry;
use crate::files::{FileId, FilesystemId, SnapshotNumber};
use crate::inode::{Content, Inode, ObjectContent};
use crate::key::Keys;
use crate::locks::Locks;
use crate::object::Objects;
use crate::places::Places;
use crate::reaper::Turns;
use crate::rollback::Trouble;
use crate::snapshots::Versions;
use crate::superblock::{ROOT, SnapshotValue, Superblock, Usage};
use crate::sweep::{AT_ONCE, Taken};
use crate::tokens::Tokens;
use crate::view::View;

/// Attempts at an operation before the caller is told to come again.
pub(crate) const ATTEMPTS_MAX: usize = 40;
/// Operations that may be under way; a snapshot takes all of them.
const OPERATIONS_MAX: u64 = 1 << 20;
/// Numbers of files set aside at a time.
const NUMBERS_AHEAD: u64 = 4096;

/// A filesystem. A cheap handle, used by one core.
pub struct Filesystem<P: Platform> {
    pub(crate) inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Filesystem<P> {
    fn clone(&self) -> Self {
        Filesystem {
            inner: self.inner.clone(),
        }
    }
}

impl<P: Platform> Filesystem<P> {
    /// Whether a change that begins now would wait for something that keeps all changes off: a snapshot that is being taken, a
    /// check.
    pub fn holds_changes(&self) -> bool {
        let gate = &self.inner.gate;
        gate.free() == 0 || gate.has_waiting()
    }

    /// Waits until a change that begins would not.
    pub async fn lets_changes(&self) {
        drop(self.inner.enter().await);
    }
}

/// See the module's page.
pub(crate) struct Inner<P: Platform> {
    pub(crate) platform: P,
    pub(crate) places: Rc<Places<P>>,
    pub(crate) tree: Tree<P>,
    pub(crate) extents: Extents,
    pub(crate) keys: Keys,
    pub(crate) locks: Rc<Locks>,
    /// Names of directories that move: one at a time, so that none comes to lie in itself.
    pub(crate) moves: Budget,
    /// Everybody takes one; who takes a snapshot takes all.
    gate: Budget,
    state: RefCell<State>,
    /// Operations that have changed something.
    commits: Cell<u64>,
    /// When all of them survive power loss.
    last: Cell<Ticket>,
    /// How often an operation was given up.
    given_up: Cell<u64>,
    pub(crate) tokens: RefCell<Tokens>,
    pub(crate) expiry: Expiry,
    /// There are files whose content is to be given back.
    pub(crate) orphaned: Signal,
    pub(crate) stopping: Cell<bool>,
    /// All of it is gone, or will be.
    pub(crate) is_deleted: Cell<bool>,
    /// Large files that are being used.
    pub(crate) objects: Objects,
    /// Dvols that no inode names yet.
    pub(crate) making: RefCell<BTreeSet<DvolId>>,
    /// What is durable of the superblock and the snapshots may be newer than what is in memory.
    is_state_old: Cell<bool>,
    /// Dvols that may not be needed any more.
    pub(crate) to_sweep: RefCell<Turns<DvolId>>,
    pub(crate) versions: Versions,
    /// Files whose dvols have more than they need.
    pub(crate) to_cut: RefCell<Turns<FileId>>,
    pub(crate) trouble: RefCell<Trouble>,
    pub(crate) taken: RefCell<Taken>,
    /// One at a time counts all dvols again.
    pub(crate) counting: Budget,
    /// Bytes of blocks that files had before they became dvols, and that are still to be given back.
    pub(crate) giving_back: RefCell<BTreeMap<FileId, u64>>,
    /// How often everything has gone back to a snapshot, or begun to.
    pub(crate) rolled: Cell<u64>,
    /// New large files are to lie on the tree's device as long as it is open, whatever is set.
    pub(crate) stays_home: Cell<bool>,
    /// There were too many dvols; from then on there may be room for more.
    pub(crate) promote_from_ns: Cell<u64>,
}

/// What is in memory of the superblock and what belongs to it. Loaded again whenever the store has lost
/// commits.
pub(crate) struct State {
    pub(crate) superblock: Superblock,
    /// By name.
    pub(crate) snapshots: Vec<(Vec<u8>, SnapshotValue)>,
    /// Ascending.
    pub(crate) numbers_of_snapshots: Rc<[u32]>,
    pub(crate) usage: Usage,
    pub(crate) rolling: Option<Rolling>,
    /// Numbers that files can be given.
    numbers: std::ops::Range<u64>,
    /// The store's when this was loaded.
    verifier: u64,
}

/// What is being rolled back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rolling {
    /// The snapshot.
    pub(crate) to: u32,
    /// Nothing is changed yet: it is seen whether all can be read that it takes.
    pub(crate) is_looking: bool,
}

impl Rolling {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = self.to.to_le_bytes().to_vec();
        // What began in an older version may have changed something.
        out.extend(self.is_looking.then_some(1));
        out
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Rolling> {
        let (to, rest) = value.split_first_chunk()?;
        let is_looking = match rest {
            [] => false,
            [1] => true,
            _ => return None,
        };
        let to = u32::from_le_bytes(*to);
        Some(Rolling { to, is_looking })
    }
}

impl<P: Platform> Inner<P> {
    /// Opens a filesystem that is there.
    pub(crate) async fn open(
        platform: P,
        places: Rc<Places<P>>,
        tree: Tree<P>,
        extents: Extents,
        id: FilesystemId,
        dvols: Vec<DvolId>,
    ) -> Result<Rc<Inner<P>>, Tried> {
        let keys = Keys(id);
        let state = load(&tree, keys).await?;
        let expiry = Expiry::new(platform.now().0);
        let inner = Rc::new(Inner {
            platform,
            places,
            tree,
            extents,
            keys,
            locks: Rc::default(),
            moves: Budget::new(1),
            gate: Budget::new(OPERATIONS_MAX),
            state: RefCell::new(state),
            commits: Cell::new(0),
            last: Cell::default(),
            given_up: Cell::default(),
            tokens: RefCell::default(),
            expiry,
            orphaned: Signal::new(),
            stopping: Cell::new(false),
            is_deleted: Cell::new(false),
            objects: Objects::default(),
            making: RefCell::default(),
            is_state_old: Cell::new(false),
            to_sweep: RefCell::default(),
            versions: Versions::default(),
            to_cut: RefCell::default(),
            trouble: RefCell::default(),
            taken: RefCell::default(),
            counting: Budget::new(1),
            giving_back: RefCell::default(),
            rolled: Cell::new(0),
            stays_home: Cell::new(false),
            promote_from_ns: Cell::new(0),
        });
        for (nth, dvol) in dvols.into_iter().enumerate() {
            if nth % AT_ONCE == AT_ONCE - 1 {
                inner.platform.yield_now().await;
            }
            inner.recount(dvol);
            // A crash may have come between a dvol and the inode that was to name it.
            inner.to_sweep.borrow_mut().insert(dvol);
        }
        Ok(inner)
    }

    pub(crate) fn store(&self) -> &Store<P> {
        self.tree.store()
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.platform.wall_clock_ns())
    }

    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.borrow())
    }

    /// Begins an operation that changes something: until the share is dropped no snapshot is taken. Before any
    /// file is locked: who takes a snapshot waits for whoever waits for a file.
    pub(crate) async fn enter(&self) -> Share {
        self.gate.take(1).await
    }

    /// Carries out an operation that changes something: as often as others are in the way, or what it was
    /// built on is lost. It is answered when it survives power loss, whatever it came to.
    pub(crate) async fn run<T>(
        &self,
        operation: impl AsyncFn(&mut Change<P>) -> Result<T, Tried>,
    ) -> Result<T, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let entered = self.enter().await;
            let (result, ticket) = match self.attempt(&operation).await {
                Ok(done) => done,
                Err(Tried::Again) => continue,
                Err(Tried::For(error)) => return Err(self.blamed(error)),
            };
            drop(entered);
            // Also if it failed: what it failed for was seen.
            match self.store().wait(ticket).await.map_err(Tried::from) {
                Ok(()) => return result.map_err(|error| self.blamed(error)),
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(error),
            }
        }
        Err(self.given_up())
    }

    /// Carries out one step of an operation that has entered. Others see it when this returns; it survives power
    /// loss when the ticket does, and so does what it failed for.
    pub(crate) async fn step<T>(
        &self,
        operation: impl AsyncFn(&mut Change<P>) -> Result<T, Tried>,
    ) -> Result<(Result<T, FileError>, Ticket), FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            match self.attempt(&operation).await {
                Ok(done) => return Ok(done),
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(error),
            }
        }
        Err(self.given_up())
    }

    async fn attempt<T>(
        &self,
        operation: &impl AsyncFn(&mut Change<P>) -> Result<T, Tried>,
    ) -> Result<(Result<T, FileError>, Ticket), Tried> {
        self.refresh().await?;
        let (live, snapshots) = self.with_state(|state| {
            let snapshots = state.numbers_of_snapshots.clone();
            (state.superblock.live, snapshots)
        });
        let mut change = Change::new(&self.tree, self.keys, live, snapshots);
        match operation(&mut change).await {
            Err(Tried::Again) => Err(Tried::Again),
            Err(Tried::For(error)) => Ok((Err(error), change.ticket())),
            Ok(value) if !change.changes_something() => Ok((Ok(value), change.ticket())),
            Ok(value) => {
                if self.check_room(change.usage()).is_err() {
                    self.recount_if_old().await;
                }
                if let Err(error) = self.check_room(change.usage()) {
                    return Ok((Err(error), change.ticket()));
                }
                let _held = (std::mem::take(&mut change.locked), change.moving.take());
                let ticket = self.commit_step(change).await?;
                Ok((Ok(value), ticket))
            }
        }
    }

    /// Commits a change and counts what it brings.
    pub(crate) async fn commit_step(&self, change: Change<P>) -> Result<Ticket, Tried> {
        let (usage, leaves_orphan) = (change.usage(), change.leaves_orphan);
        let mut change = change;
        let later = std::mem::take(&mut change.later);
        let ticket = change.commit().await?;
        for later in later {
            match later {
                Later::Cut(file) => self.to_cut.borrow_mut().insert(file),
                Later::Sweep(dvol) => self.to_sweep.borrow_mut().insert(dvol),
            }
            self.orphaned.notify();
        }
        if leaves_orphan {
            // Not before: the reaper would look, find nothing and sleep.
            self.orphaned.notify();
        }
        self.state.borrow_mut().usage.add(usage);
        self.commits.set(self.commits.get() + 1);
        self.last.set(self.store().later(self.last.get(), ticket));
        Ok(ticket)
    }

    /// What is counted, and the quotas of bytes and of files. Survives power loss when this returns.
    pub(crate) async fn counted(&self) -> Result<(Usage, u64, u64), FileError> {
        for _ in 0..ATTEMPTS_MAX {
            self.refresh().await.map_err(final_error)?;
            let last = self.last.get();
            let counted = self.with_state(|state| {
                let superblock = &state.superblock;
                let (bytes, files) = (superblock.quota_bytes, superblock.quota_files);
                (state.usage, bytes, files)
            });
            match self.store().wait(last).await {
                Ok(()) => return Ok(counted),
                Err(StoreError::Lost) => {}
                Err(error) => return Err(final_error(error.into())),
            }
        }
        Err(self.given_up())
    }

    /// Carries out an operation that only looks.
    pub(crate) async fn look<T>(
        &self,
        at: SnapshotNumber,
        operation: impl AsyncFn(&mut View<P>) -> Result<T, Tried>,
    ) -> Result<T, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let rolled = self.rolled.get();
            let mut view = View::new(&self.tree, self.number_of(at)?);
            let result = operation(&mut view).await;
            if result.as_ref().err() == Some(&Tried::Again) {
                continue;
            }
            // Else it may have seen a part of what is being done, or what an older snapshot has: the versions of one
            // that was deleted meanwhile are given back.
            self.number_of(at)?;
            if self.rolled.get() != rolled {
                // All of it was done meanwhile, and some was seen before and some behind it.
                continue;
            }
            match self.store().wait(view.ticket()).await {
                Ok(()) => {}
                Err(StoreError::Lost) => continue,
                Err(error) => return Err(final_error(error.into())),
            }
            return result.map_err(|error| self.blamed(final_error(error)));
        }
        Err(self.given_up())
    }

    /// Something was tried as often as it may be. Now and then that happens where many change the same; if the
    /// number rises while little is going on, something is wrong.
    fn given_up(&self) -> FileError {
        let times = self.given_up.get() + 1;
        self.given_up.set(times);
        if times.is_power_of_two() {
            warn!(
                filesystem = self.keys.0.0,
                times,
                "an operation was in the way of others {ATTEMPTS_MAX} times and was given up; its client is told to try again later"
            );
        }
        FileError::Later
    }

    /// Up to which version somebody sees.
    pub(crate) fn number_of(&self, at: SnapshotNumber) -> Result<u32, FileError> {
        self.check_there()?;
        if at == SnapshotNumber::LIVE {
            return Ok(u32::MAX);
        }
        let is_there =
            self.with_state(|state| state.numbers_of_snapshots.binary_search(&at.0).is_ok());
        match is_there {
            true => Ok(at.0),
            false => Err(FileError::Stale),
        }
    }

    /// Whoever has a deleted filesystem finds nothing in it; while one is being rolled back nobody is let in.
    pub(crate) fn check_there(&self) -> Result<(), FileError> {
        if self.is_deleted.get() {
            return Err(FileError::Stale);
        }
        match self.with_state(|state| state.rolling) {
            Some(_) => Err(FileError::Later),
            None => Ok(()),
        }
    }

    pub(crate) fn is_rolling(&self) -> bool {
        self.with_state(|state| state.rolling.is_some())
    }

    /// It has been rolled back, or goes on with that.
    pub(crate) fn set_rolling(&self, rolling: Option<Rolling>) {
        self.state.borrow_mut().rolling = rolling;
    }

    /// Loads again what is in memory, if the store has lost commits since.
    pub(crate) async fn refresh(&self) -> Result<(), Tried> {
        self.check_there()?;
        self.reload().await?;
        // What it has loaded may be a rollback that nobody here had heard of.
        self.check_there().map_err(Tried::from)
    }

    /// The same for who works while nobody is let in. True if some were lost.
    pub(crate) async fn reload(&self) -> Result<bool, Tried> {
        let verifier = self.store().verifier();
        if self.with_state(|state| state.verifier == verifier) && !self.is_state_old.get() {
            return Ok(false);
        }
        warn!("the store has lost commits, or could not be read; looking again what there is");
        loop {
            let commits = self.commits.get();
            let state = Box::pin(load(&self.tree, self.keys)).await?;
            // Whoever commits meanwhile counts in what is replaced here.
            if self.commits.get() == commits {
                self.last.set(Ticket::default());
                self.tokens.borrow_mut().forget();
                *self.state.borrow_mut() = state;
                self.is_state_old.set(false);
                // A snapshot may be gone that was to be deleted.
                self.snapshot_gone();
                return Ok(true);
            }
        }
    }

    /// Whether what takes more space may be done.
    fn check_room(&self, more: Usage) -> Result<(), FileError> {
        let is_past = |used: i64, more: i64, quota: u64| {
            let after = used.saturating_add(more).max(0).cast_unsigned();
            more > 0 && quota > 0 && after > quota
        };
        let used = self.used_bytes().cast_signed();
        let is_past = self.with_state(|state| {
            let superblock = &state.superblock;
            is_past(used, more.bytes, superblock.quota_bytes)
                || is_past(state.usage.files, more.files, superblock.quota_files)
        });
        match is_past {
            true => Err(FileError::Quota),
            false => Ok(()),
        }
    }

    /// A number for a new file.
    pub(crate) async fn new_number(&self) -> Result<u64, Tried> {
        loop {
            let next = self.state.borrow_mut().numbers.next();
            if let Some(number) = next {
                return Ok(number);
            }
            let mut tx = self.tree.begin();
            let key = self.keys.superblock();
            let value = tx.get(&key).await?.ok_or(FileError::Stale)?;
            let mut superblock = decoded(Superblock::decode(&value), "a superblock")?;
            let first = superblock.next_number;
            superblock.next_number = first.checked_add(NUMBERS_AHEAD).ok_or(FileError::NoSpace)?;
            let verifier = self.store().verifier();
            tx.put(&key, &superblock.encode())?;
            let committed = tx.commit().await?;
            // Else a file could be made with a number that is given once more when this is lost.
            self.store().wait(committed.ticket).await?;
            let mut state = self.state.borrow_mut();
            // Otherwise what is in memory is about to be loaded again.
            if state.verifier == verifier && verifier == self.store().verifier() {
                state.superblock.next_number = superblock.next_number;
                state.numbers = first..superblock.next_number;
            }
        }
    }

    /// Changes the superblock or the snapshots, with nothing else under way. Durable when it returns.
    pub(crate) async fn change_state<T>(
        &self,
        operation: impl AsyncFn(&mut Change<P>, &State) -> Result<T, Tried>,
    ) -> Result<T, FileError> {
        let operation = async |change: &mut Change<P>, state: &State| {
            self.check_there()?;
            operation(change, state).await
        };
        self.change_state_of_all(operation).await
    }

    /// The same also while it is being rolled back.
    pub(crate) async fn change_state_of_all<T>(
        &self,
        operation: impl AsyncFn(&mut Change<P>, &State) -> Result<T, Tried>,
    ) -> Result<T, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let gate = self.gate.take(OPERATIONS_MAX).await;
            match self.try_change_state(&operation).await {
                Ok(value) => return Ok(value),
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(self.blamed(error)),
            }
            drop(gate);
        }
        Err(self.given_up())
    }

    async fn try_change_state<T>(
        &self,
        operation: &impl AsyncFn(&mut Change<P>, &State) -> Result<T, Tried>,
    ) -> Result<T, Tried> {
        if self.is_deleted.get() {
            return Err(FileError::Stale.into());
        }
        // Read anew: a transaction of its own may have raised the next number.
        let state = load(&self.tree, self.keys).await?;
        let snapshots = state.numbers_of_snapshots.clone();
        let mut change = Change::new(&self.tree, self.keys, state.superblock.live, snapshots);
        let value = operation(&mut change, &state).await?;
        // Until it is loaded again, whatever fails on the way: it may be durable all the same.
        let was_old = self.is_state_old.replace(true);
        let ticket = change.commit().await?;
        self.store().wait(ticket).await?;
        let (numbers, verifier) = self.with_state(|state| (state.numbers.clone(), state.verifier));
        let mut state = self.load_behind().await?;
        state.numbers = numbers;
        let was_lost = state.verifier != verifier;
        // As `reload` does, which won't see any of it any more.
        if was_lost {
            self.last.set(Ticket::default());
            self.tokens.borrow_mut().forget();
        }
        *self.state.borrow_mut() = state;
        self.is_state_old.set(false);
        if was_old || was_lost {
            self.snapshot_gone();
        }
        Ok(value)
    }

    /// What is there behind a change that is durable. Whatever is in the way, the change is not made once more: who has deleted
    /// a snapshot would be told that there is none.
    async fn load_behind(&self) -> Result<State, FileError> {
        for _ in 0..ATTEMPTS_MAX {
            match load(&self.tree, self.keys).await {
                Err(Tried::Again) => self.platform.yield_now().await,
                result => return result.map_err(final_error),
            }
        }
        Err(self.given_up())
    }

    /// Waits until nothing is under way; nothing is as long as this lives.
    pub(crate) async fn pause(&self) -> Share {
        self.gate.take(OPERATIONS_MAX).await
    }

    /// Looks at everything, during a pause.
    pub(crate) async fn look_in_pause<T>(
        &self,
        look: impl AsyncFn(&State) -> Result<T, Tried>,
    ) -> Result<T, FileError> {
        for _ in 0..ATTEMPTS_MAX {
            let looked = match self.refresh().await {
                Ok(()) => {
                    let mut state = load(&self.tree, self.keys).await.map_err(final_error)?;
                    state.usage = self.with_state(|state| state.usage);
                    look(&state).await
                }
                Err(error) => Err(error),
            };
            match looked {
                Err(Tried::Again) => {}
                result => return result.map_err(final_error),
            }
        }
        Err(self.given_up())
    }

    /// A file's inode, live. `Stale` if there is none.
    pub(crate) async fn inode(&self, change: &mut Change<P>, file: FileId) -> Result<Inode, Tried> {
        let value = change.get(&self.keys.inode(file)).await?;
        let value = value.ok_or(FileError::Stale)?;
        let mut inode = decoded(Inode::decode(file, value), "an inode")?;
        self.complete_alone(file, &mut inode)?;
        Ok(inode)
    }

    /// The same of one that loses a name. If its content is on a device that isn't there and this is its last name, as it was put:
    /// what it has there goes when the device comes back.
    pub(crate) async fn inode_to_remove(
        &self,
        change: &mut Change<P>,
        file: FileId,
    ) -> Result<Inode, Tried> {
        match self.inode(change, file).await {
            Err(Tried::For(FileError::Device)) => {}
            found => return found,
        }
        let value = change.get(&self.keys.inode(file)).await?;
        let value = value.ok_or(FileError::Stale)?;
        let inode = decoded(Inode::decode(file, value), "an inode")?;
        let is_missing = inode.object().is_some_and(|o| self.is_missing(o.dvol));
        match is_missing && inode.attributes.links == 1 {
            true => Ok(inode),
            false => Err(FileError::Device.into()),
        }
    }

    /// A file's inode as a view has it. `Stale` if there is none.
    pub(crate) async fn look_at(&self, view: &mut View<P>, file: FileId) -> Result<Inode, Tried> {
        let mut inode = self.look_at_put(view, file).await?;
        self.complete(file, &mut inode, |dvol| match view.at() {
            u32::MAX => self.dvol(dvol),
            at => self.dvol_at(dvol, at),
        })?;
        Ok(inode)
    }

    /// The same as it was put, without what its dvol says.
    pub(crate) async fn look_at_put(
        &self,
        view: &mut View<P>,
        file: FileId,
    ) -> Result<Inode, Tried> {
        let value = view.get(&self.keys.inode(file)).await?;
        let value = value.ok_or(FileError::Stale)?;
        decoded(Inode::decode(file, &value), "an inode")
    }

    pub(crate) async fn put_inode(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &Inode,
    ) -> Result<(), Tried> {
        let key = self.keys.inode(file);
        let Some(object) = inode.object() else {
            return change.put(&key, inode.encode()).await;
        };
        // What its dvol has said so far is in it; what it says from now on is of this one.
        let stamp = object.stamp.checked_add(1).ok_or(FileError::NoSpace)?;
        self.flush_elsewhere(object.dvol).await?;
        let mut put = inode.clone();
        *content_mut(&mut put) = Content::Object(ObjectContent { stamp, ..object });
        put.attributes.used_bytes = 0;
        self.objects.forget(file);
        change.put(&key, put.encode()).await
    }
}

/// The topmost directory.
pub(crate) const ROOT_DIRECTORY: FileId = FileId {
    directory: ROOT,
    file: 0,
};

async fn load<P: Platform>(tree: &Tree<P>, keys: Keys) -> Result<State, Tried> {
    let verifier = tree.store().verifier();
    let mut view = View::new(tree, u32::MAX);
    let value = view.get_plain(&keys.superblock()).await?;
    let value = value.ok_or(FileError::NotFound)?;
    let superblock = decoded(Superblock::decode(&value), "a superblock")?;
    let (from, to) = keys.snapshots();
    let mut snapshots = Vec::new();
    for (key, value) in view.scan_plain(&from, &to, usize::MAX).await? {
        let snapshot = decoded(SnapshotValue::decode(&value), "a snapshot")?;
        snapshots.push((key[from.len()..].to_vec(), snapshot));
    }
    let counters = view.get_plain(&keys.counters()).await?;
    let usage = match counters {
        Some(value) => Usage::of(decoded(decode_counters(&value), "what is counted")?),
        None => Usage::default(),
    };
    let rolling = match view.get_plain(&keys.rollback()).await? {
        Some(value) => {
            let rolling = Rolling::decode(&value);
            Some(decoded(rolling, "what is being rolled back to")?)
        }
        None => None,
    };
    tree.store().wait(view.ticket()).await?;
    let numbers = snapshots.iter().map(|(_, value)| value.number);
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let next = superblock.next_number;
    Ok(State {
        superblock,
        snapshots,
        numbers_of_snapshots: numbers.into(),
        usage,
        rolling,
        numbers: next..next,
        verifier,
    })
}

/// A value that was read from the tree, or `Corrupt`.
pub(crate) fn decoded<T>(value: Option<T>, what: &str) -> Result<T, Tried> {
    value.ok_or_else(|| {
        error!("{what} in the tree is not what its format says");
        Tried::For(FileError::Corrupt)
    })
}

pub(crate) fn final_error(tried: Tried) -> FileError {
    match tried {
        Tried::Again => FileError::Later,
        Tried::For(error) => error,
    }
}
