//! All filesystems of one journal: one store, one tree, and extents for the blocks of small files.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_btree::{Tree, TreeError, TreeOptions};
use flagstone_device::engine::Engine;
use flagstone_pagestore::{
    DvolRole, ExtentId, Geometry, OwnerId, Store, StoreCounters, StoreError, StoreOptions,
};
use flagstone_platform::Platform;
use flagstone_platform::sync::{Budget, Signal};
use flagstone_types::DvolId;
use tracing::error;

use crate::attributes::{Attributes, FileKind, Timestamp};
use crate::change::Tried;
use crate::check::{CheckProgress, CheckReport};
use crate::contents::{BLOCK_SIZES, Extents, PAGE_BYTES};
use crate::error::FileError;
use crate::expiry;
use crate::files::FilesystemId;
use crate::filesystem::{ATTEMPTS_MAX, Filesystem, Inner, ROOT_DIRECTORY, decoded};
use crate::inode::{Body, DirectoryPart, Inode};
use crate::key::{self, Keys};
use crate::names::COOKIE_FIRST;
use crate::places::{Places, is_elsewheres, is_stranger};
use crate::settings::Settings;
use crate::superblock::{ROOT, Superblock, Usage, is_label};
use crate::view::View;

/// The tree's extent; those of blocks follow.
const TREE: ExtentId = ExtentId(1);
const FIRST_OF_BLOCKS: u64 = 2;
/// Whose the tree's blocks are: no filesystem's.
const SYSTEM: OwnerId = OwnerId(u64::MAX);
/// Bytes of a block of the tree.
const TREE_BLOCK_BYTES: u64 = 256 << 10;
/// Bytes that each extent can have. It is thin: only what is written takes space.
const EXTENT_BYTES: u64 = 1 << 40;

/// How to run filesystems.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FilesystemOptions {
    /// Of the page store.
    pub store: StoreOptions,
    /// Of the tree.
    pub tree: TreeOptions,
}

/// What is known of a filesystem in the list of all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilesystemInfo {
    /// Its number.
    pub id: FilesystemId,
    /// Its name.
    pub name: String,
}

/// What a check of all filesystems found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckedAll {
    /// In each, by name.
    pub filesystems: Vec<(FilesystemInfo, CheckReport)>,
    /// What is wrong with what they are stored in.
    pub problems: Vec<String>,
}

/// All filesystems of one journal. A cheap handle, used by one core.
pub struct Filesystems<P: Platform> {
    pub(crate) inner: Rc<All<P>>,
}

impl<P: Platform> Clone for Filesystems<P> {
    fn clone(&self) -> Self {
        Filesystems {
            inner: self.inner.clone(),
        }
    }
}

pub(crate) struct All<P: Platform> {
    pub(crate) platform: P,
    pub(crate) places: Rc<Places<P>>,
    pub(crate) tree: Tree<P>,
    extents: Extents,
    pub(crate) open: RefCell<BTreeMap<FilesystemId, Rc<Inner<P>>>>,
    /// Dvols of filesystems that have not been opened yet: nobody else makes any. `None`: nobody has looked.
    pub(crate) unopened: RefCell<Option<BTreeMap<FilesystemId, Vec<DvolId>>>>,
    /// One at a time is opened, made or deleted.
    pub(crate) turn: Budget,
    /// There are deleted ones whose content is to be given back.
    pub(crate) deleted: Signal,
    pub(crate) stopping: Cell<bool>,
    /// Deleted ones of which there may be something on a device that is not here, and nothing anywhere else.
    pub(crate) waiting: RefCell<BTreeSet<FilesystemId>>,
    /// Somebody gives that back.
    pub(crate) is_clearing: Cell<bool>,
}

fn geometry(block_bytes: u64) -> Result<Geometry, FileError> {
    let geometry = Geometry::new(PAGE_BYTES, block_bytes, EXTENT_BYTES / block_bytes);
    geometry.map_err(|_| FileError::Unsupported)
}

pub(crate) fn failed(tried: impl Into<Tried>) -> FileError {
    match tried.into() {
        Tried::Again => FileError::Later,
        Tried::For(error) => error,
    }
}

impl<P: Platform> Filesystems<P> {
    /// Whether there is anything of filesystems on an engine's journal, but for large files that another journal's name.
    pub fn are_on(engine: &Engine<P>) -> bool {
        let mut are_there = false;
        engine.visit_dvols(|_, attributes| {
            are_there |= DvolRole::of(attributes).is_some_and(DvolRole::is_of_store)
                && !is_elsewheres(attributes);
        });
        are_there
    }

    /// Whether there are large files on it that filesystems of another journal name.
    pub fn lie_on(engine: &Engine<P>) -> bool {
        let mut are_there = false;
        engine.visit_dvols(|_, attributes| are_there |= is_elsewheres(attributes));
        are_there
    }

    /// Whether there are large files on it that filesystems of yet another journal name than `home`'s.
    pub fn strangers_are_on(engine: &Engine<P>, home: Option<&Engine<P>>) -> bool {
        let mut are_there = false;
        engine.visit_dvols(|_, attributes| are_there |= is_stranger(attributes, home));
        are_there
    }

    /// Opens what filesystems there are on an engine's journal; prepares it for them if there is nothing yet.
    pub async fn open(
        platform: P,
        engine: Engine<P>,
        options: FilesystemOptions,
    ) -> Result<Filesystems<P>, FileError> {
        Filesystems::open_over(platform, engine, Vec::new(), options).await
    }

    /// The same, whose large files also lie on `others`: journals of other devices that nobody takes to another core as long as
    /// these are open.
    pub async fn open_over(
        platform: P,
        engine: Engine<P>,
        others: Vec<Engine<P>>,
        options: FilesystemOptions,
    ) -> Result<Filesystems<P>, FileError> {
        let store = Store::open(platform.clone(), engine.clone(), options.store).await;
        let store = store.map_err(failed)?;
        let mut extents = Extents([TREE; _]);
        for (index, block_bytes) in BLOCK_SIZES.into_iter().enumerate() {
            let id = ExtentId(FIRST_OF_BLOCKS + index as u64);
            extents.0[index] = id;
            make_extent(&store, id, geometry(block_bytes)?).await?;
        }
        make_extent(&store, TREE, geometry(TREE_BLOCK_BYTES)?).await?;
        let is_empty = store.block(TREE, 0).await.map_err(failed)?.is_none();
        let tree = match is_empty {
            true => Tree::create(platform.clone(), store, TREE, SYSTEM, options.tree).await,
            false => Tree::open(platform.clone(), store, TREE, options.tree).await,
        };
        let tree = tree.map_err(failed)?;
        let places = Places::new(engine, others);
        note_places(&tree, &places).await?;
        let inner = Rc::new(All {
            platform,
            places: Rc::new(places),
            tree,
            extents,
            open: RefCell::default(),
            unopened: RefCell::default(),
            turn: Budget::new(1),
            deleted: Signal::new(),
            stopping: Cell::new(false),
            waiting: RefCell::default(),
            is_clearing: Cell::new(false),
        });
        Ok(Filesystems { inner })
    }

    /// Finishes what is under way and stops. The engine is stopped by whoever opened it.
    pub async fn stop(&self) {
        self.inner.stopping.set(true);
        self.inner.deleted.notify();
        let open = std::mem::take(&mut *self.inner.open.borrow_mut());
        for filesystem in open.values() {
            filesystem.stopping.set(true);
            filesystem.orphaned.notify();
        }
        self.inner.tree.store().stop().await;
    }

    /// All filesystems, by name.
    pub async fn list(&self) -> Result<Vec<FilesystemInfo>, FileError> {
        let tree = &self.inner.tree;
        let mut view = View::new(tree, u32::MAX);
        let (from, to) = key::names();
        let found = view.scan_plain(&from, &to, usize::MAX).await;
        let found = found.map_err(failed)?;
        tree.store().wait(view.ticket()).await.map_err(failed)?;
        let info = |(key, value): (Vec<u8>, Vec<u8>)| {
            let id = <[u8; 8]>::try_from(value).ok();
            let id = decoded(id, "the list of filesystems").map_err(failed)?;
            Ok(FilesystemInfo {
                id: FilesystemId(u64::from_le_bytes(id)),
                name: String::from_utf8_lossy(&key[1..]).into_owned(),
            })
        };
        found.into_iter().map(info).collect()
    }

    /// Makes a filesystem. Its name has 1 to 200 letters, digits and `-_.:@+` and does not begin with a dot.
    /// Durable when this returns.
    pub async fn create(&self, name: &str, quota_bytes: u64) -> Result<Filesystem<P>, FileError> {
        let settings = Settings {
            quota_bytes,
            ..Settings::default()
        };
        self.create_with(name, settings).await
    }

    /// The same with other settings.
    pub async fn create_with(
        &self,
        name: &str,
        settings: Settings,
    ) -> Result<Filesystem<P>, FileError> {
        if !is_label(name.as_bytes()) {
            return Err(FileError::Invalid);
        }
        let turn = self.inner.turn.take(1).await;
        let mut attempts = 0;
        let id = loop {
            match self.try_create(name, settings).await {
                Ok(id) => break id,
                Err(Tried::Again) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(error) => return Err(failed(error)),
            }
            self.inner.platform.yield_now().await;
        };
        drop(turn);
        self.open_filesystem(id).await
    }

    async fn try_create(&self, name: &str, settings: Settings) -> Result<FilesystemId, Tried> {
        let All { platform, tree, .. } = &*self.inner;
        let now = Timestamp::from_ns(platform.wall_clock_ns());
        let mut tx = tree.begin();
        let name_key = key::name(name.as_bytes());
        if tx.get(&name_key).await?.is_some() {
            return Err(FileError::Exists.into());
        }
        let next = match tx.get(&key::system()).await? {
            Some(next) => decoded(
                next.try_into().ok().map(u64::from_le_bytes),
                "the next number",
            )?,
            None => 1,
        };
        let keys = Keys(FilesystemId(next));
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&platform.random_u64().to_le_bytes());
        secret[8..].copy_from_slice(&platform.random_u64().to_le_bytes());
        let Settings {
            quota_bytes,
            quota_files,
            promote_bytes,
            zeros_to_holes,
            one_device,
            opaque,
        } = settings;
        let superblock = Superblock {
            live: 1,
            next_number: ROOT + 1,
            quota_bytes,
            quota_files,
            promote_bytes,
            zeros_to_holes,
            one_device,
            secret,
            created: now,
            opaque,
            name: name.as_bytes().to_vec(),
        };
        let root = Inode {
            attributes: Attributes {
                kind: FileKind::Directory,
                mode: 0o755,
                links: 2,
                uid: 0,
                gid: 0,
                size_bytes: 0,
                used_bytes: 0,
                number: ROOT,
                accessed: now,
                modified: now,
                changed: now,
            },
            body: Body::Directory(DirectoryPart {
                parent: ROOT,
                next_cookie: COOKIE_FIRST,
                entries: 0,
                is_image_store: false,
            }),
        };
        tx.put(&key::system(), &(next + 1).to_le_bytes())?;
        tx.put(&name_key, &next.to_le_bytes())?;
        tx.put(&keys.superblock(), &superblock.encode())?;
        tx.put(&keys.has_clients(), expiry::mark())?;
        let root_key = key::versioned(&keys.inode(ROOT_DIRECTORY), superblock.live);
        tx.put(&root_key, &root.encode())?;
        let usage = Usage { files: 1, bytes: 0 };
        tx.count(&keys.counters(), usage.counters())?;
        let committed = tx.commit().await?;
        tree.store().wait(committed.ticket).await?;
        Ok(keys.0)
    }

    /// Opens a filesystem by its name.
    pub async fn open_by_name(&self, name: &str) -> Result<Filesystem<P>, FileError> {
        let tree = &self.inner.tree;
        let mut view = View::new(tree, u32::MAX);
        let found = view.get_plain(&key::name(name.as_bytes())).await;
        let id = found.map_err(failed)?.ok_or(FileError::NotFound)?;
        let id = id.try_into().ok().map(u64::from_le_bytes);
        let id = decoded(id, "the list of filesystems").map_err(failed)?;
        self.open_filesystem(FilesystemId(id)).await
    }

    /// Opens a filesystem by its number.
    pub async fn open_filesystem(&self, id: FilesystemId) -> Result<Filesystem<P>, FileError> {
        // Of one that is open nobody waits, not even for a check of all.
        if let Some(found) = self.find_open(id) {
            return Ok(found);
        }
        let _turn = self.inner.turn.take(1).await;
        self.open_in_turn(id).await
    }

    fn find_open(&self, id: FilesystemId) -> Option<Filesystem<P>> {
        let inner = self.inner.open.borrow().get(&id).cloned();
        inner.map(|inner| Filesystem { inner })
    }

    async fn open_in_turn(&self, id: FilesystemId) -> Result<Filesystem<P>, FileError> {
        let All {
            platform,
            places,
            tree,
            extents,
            open,
            ..
        } = &*self.inner;
        if let Some(found) = self.find_open(id) {
            return Ok(found);
        }
        let dvols = self.inner.dvols_of_unopened(id).await;
        let (platform, places) = (platform.clone(), places.clone());
        let inner = Inner::open(platform, places, tree.clone(), *extents, id, dvols.clone()).await;
        let inner = match inner {
            Ok(inner) => inner,
            Err(error) => {
                // For who tries again.
                if let Some(all) = &mut *self.inner.unopened.borrow_mut() {
                    all.insert(id, dvols);
                }
                return Err(failed(error));
            }
        };
        let platform = &self.inner.platform;
        open.borrow_mut().insert(id, inner.clone());
        platform.spawn(inner.clone().reap());
        Ok(Filesystem { inner })
    }

    /// What the page store below all of them has done.
    pub fn store_counters(&self) -> StoreCounters {
        self.inner.tree.store().counters()
    }

    /// One of those that are open.
    pub fn opened_by(&self, id: FilesystemId) -> Option<Filesystem<P>> {
        self.find_open(id)
    }

    /// Those that are open.
    pub fn opened(&self) -> Vec<Filesystem<P>> {
        let open = self.inner.open.borrow();
        let handle = |inner: &Rc<Inner<P>>| Filesystem {
            inner: inner.clone(),
        };
        open.values().map(handle).collect()
    }

    /// Looks at everything: the tree, all filesystems with all snapshots, and that every block is somebody's.
    /// Whoever changes something meanwhile waits. What can't be read is a problem of its filesystem and keeps
    /// nobody from looking at the others.
    pub async fn check(&self) -> Result<Vec<(FilesystemInfo, CheckReport)>, FileError> {
        let CheckedAll {
            mut filesystems,
            problems,
        } = self.check_noting(&CheckProgress::default()).await?;
        if filesystems.is_empty() && !problems.is_empty() {
            let nobody = FilesystemInfo {
                id: FilesystemId(0),
                name: "(no filesystem)".to_owned(),
            };
            filesystems.push((nobody, CheckReport::default()));
        }
        // Somebody has to say it.
        if let Some((_, last)) = filesystems.last_mut() {
            last.problems.extend(problems);
        }
        Ok(filesystems)
    }

    /// The same, with what is no filesystem's alone apart, for who wants to know how far it is.
    pub async fn check_noting(&self, progress: &CheckProgress) -> Result<CheckedAll, FileError> {
        let tree = &self.inner.tree;
        // None is made or opened until this is over, and nothing is under way in those there are: the blocks of
        // all are counted against what the page store has given out.
        let _turn = self.inner.turn.take(1).await;
        let (mut all, mut pauses) = (Vec::new(), Vec::new());
        for info in self.list().await? {
            let filesystem = match self.open_in_turn(info.id).await {
                Err(FileError::Stopping) => return Err(FileError::Stopping),
                filesystem => filesystem,
            };
            if let Ok(filesystem) = &filesystem {
                pauses.push(filesystem.inner.pause().await);
            }
            all.push((info, filesystem));
        }
        let mut reports = Vec::new();
        let there: Vec<FilesystemId> = all.iter().map(|(info, _)| info.id).collect();
        let files = begin(progress, &all);
        // Of deleted ones, what is still being given back.
        let mut problems = Vec::new();
        if let Err(error) = self.inner.check_tree(progress, files).await {
            let said = error.to_string();
            if failed(error) == FileError::Stopping {
                return Err(FileError::Stopping);
            }
            problems.push(format!("the tree of all filesystems: {said}"));
        }
        // Of what can't be read nobody knows which blocks it has.
        let mut blocks;
        match self.inner.check_remains(&there).await.map_err(failed) {
            Ok((remaining, found)) => {
                blocks = Some(remaining);
                problems.extend(found);
            }
            Err(FileError::Stopping) => return Err(FileError::Stopping),
            Err(error) => {
                blocks = None;
                problems.push(format!("what deleted filesystems still have: {error}"));
            }
        }
        for (info, filesystem) in all {
            let report = match filesystem {
                Ok(filesystem) => filesystem.check_in_pause(progress).await,
                Err(error) => Err(error),
            };
            let report = match report {
                Ok(report) => {
                    blocks = blocks.map(|blocks| blocks + report.blocks);
                    report
                }
                Err(FileError::Stopping) => return Err(FileError::Stopping),
                Err(error) => {
                    blocks = None;
                    let what = format!("it can't be looked at to its end: {error}");
                    CheckReport {
                        problems: vec![what],
                        ..CheckReport::default()
                    }
                }
            };
            reports.push((info, report));
        }
        let mut allocated = 0;
        for extent in self.inner.extents.0 {
            match tree.store().allocated_blocks(extent).await.map_err(failed) {
                Ok(found) => allocated += found,
                Err(FileError::Stopping) => return Err(FileError::Stopping),
                Err(error) => {
                    blocks = None;
                    problems.push(format!("which blocks are allocated: {error}"));
                }
            }
        }
        match blocks {
            Some(blocks) if allocated != blocks => problems.push(format!(
                "{allocated} blocks are allocated, and files of all filesystems have {blocks}"
            )),
            _ => {}
        }
        Ok(CheckedAll {
            filesystems: reports,
            problems,
        })
    }
}

impl<P: Platform> All<P> {
    /// Whether an extent is the tree's, or has blocks of files.
    pub(crate) fn has_extent(&self, id: ExtentId) -> bool {
        id == TREE || self.extents.0.contains(&id)
    }

    /// Looks at the tree, which takes as long as it takes to look at so many files.
    async fn check_tree(&self, progress: &CheckProgress, files: u64) -> Result<(), TreeError> {
        // Some of their pages are free: behind the last one that is in use all is done.
        let blocks = self.tree.store().allocated_blocks(TREE).await;
        let blocks = blocks.unwrap_or_default();
        let pages = (blocks * (TREE_BLOCK_BYTES / PAGE_BYTES)).max(1);
        let pass = progress.next(files);
        let told = |seen: u64| pass.seen(files.saturating_mul(seen) / pages);
        self.tree.check_telling(&told).await.map(drop)
    }
}

/// Says how much is to be looked at of these, and how many files they have.
fn begin<P: Platform>(
    progress: &CheckProgress,
    all: &[(FilesystemInfo, Result<Filesystem<P>, FileError>)],
) -> u64 {
    let mut sum = (1_u64, 0_u64);
    for filesystem in all.iter().filter_map(|(_, found)| found.as_ref().ok()) {
        let (files, times) = filesystem.to_check();
        let looks = files.saturating_mul(times);
        sum = (sum.0.saturating_add(files), sum.1.saturating_add(looks));
    }
    let (files, looks) = sum;
    progress.begin(files.saturating_add(looks));
    files
}

/// Reads on which devices files may lie, and says which of them are not here.
async fn note_places<P: Platform>(tree: &Tree<P>, places: &Places<P>) -> Result<(), FileError> {
    let mut view = View::new(tree, u32::MAX);
    let (from, to) = key::places();
    let found = view.scan_plain(&from, &to, usize::MAX).await;
    let found = found.map_err(failed)?;
    tree.store().wait(view.ticket()).await.map_err(failed)?;
    for (key, _) in found {
        let device = decoded(key::of_place(&key), "a note of a device").map_err(failed)?;
        places.note(device);
    }
    for device in places.missing() {
        error!(
            "the device {device} has large files of filesystems and is not here: whoever uses one of those gets an error. Start the node with all its devices"
        );
    }
    Ok(())
}

async fn make_extent<P: Platform>(
    store: &Store<P>,
    id: ExtentId,
    geometry: Geometry,
) -> Result<(), FileError> {
    match store.geometry(id) {
        Ok(found) if found == geometry => Ok(()),
        Ok(_) => Err(FileError::Corrupt),
        Err(StoreError::NoExtent(_)) => store.create_extent(id, geometry).await.map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
