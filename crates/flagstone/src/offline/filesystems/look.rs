//! What is done on a core: each device is opened under an overlay and recovered there, and then filesystems are looked at, whose large files
//! may lie on all of them. Nothing is stopped in order, since nothing of it is to last.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{Engine, EngineOptions, OpenError, RecoveryReport, join_all};
use flagstone_device::format::superblock::Superblock;
use flagstone_device::space::DeviceShared;
use flagstone_fs::{
    CheckProgress, CheckReport, CheckedAll, FileError, Files, Filesystem, FilesystemId,
    FilesystemInfo, FilesystemOptions, Filesystems,
};
use flagstone_platform::overlay::{FailedRead, Overlaid, Overlay};
use flagstone_platform::{BufferPool, Platform};
use flagstone_runtime::{DeviceOptions as OpenOptions, UringDevice, UringPlatform};
use flagstone_types::BLOCK_SIZE;

use super::CheckStage;
use crate::node::CheckedFilesystem;

/// Memory for what differs from the device, at most. A recovery changes the map nodes that waited for a checkpoint, which are three quarters
/// of a node's map cache at most, so less than a fifth of this unless that is larger than usual; a rollback of a filesystem
/// that goes on behind it changes what it has to.
pub(super) const KEPT_MAX_BYTES: u64 = 4 << 30;

/// For the maps of each journal: only those with filesystems need any of it.
const MAP_CACHE_BYTES: u64 = 256 << 20;

/// For pages that are read again.
const BLOCK_CACHE_BYTES: u64 = 256 << 20;

/// How often it is told how far it is, and looked whether a rollback is over.
const LOOK_NS: u64 = 100_000_000;

/// A rollback during which so often nothing was read or written doesn't get on: it waits for room, say.
const LOOKS_MAX: u32 = 300;

type Recovered = Overlaid<UringPlatform>;
type Device = Overlay<UringDevice>;

/// A device that is to be looked at.
pub(super) struct Asked {
    pub(super) path: PathBuf,
    pub(super) size_bytes: Option<u64>,
}

/// Why nothing was looked at.
pub(super) enum Failed {
    /// The device, or some of its journals, can't be opened.
    Open(Vec<(Option<u16>, OpenError)>),
    /// It has another size than was said.
    Size { expected: u64, blocks: u64 },
    /// What would be changed of it needs more memory than it gets.
    Full,
    /// The engine takes no more changes.
    Stopped,
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        Failed::Open(vec![(None, error)])
    }
}

/// What the recovery of the journals came to.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Recovery {
    /// Journals that had not been stopped in order.
    pub(super) journals: u64,
    pub(super) units: u64,
    pub(super) dropped: u64,
    pub(super) mended: u64,
    pub(super) bitmaps_lost: u64,
}

impl Recovery {
    fn add(&mut self, report: &RecoveryReport) {
        self.journals += u64::from(!report.clean);
        self.units += report.units;
        self.dropped += report.dropped;
        self.mended += u64::from(report.mended);
    }
}

/// What was found on a device.
pub(super) struct Found {
    /// Filesystems with the journals they are in.
    pub(super) items: Vec<(u16, CheckedFilesystem)>,
    pub(super) problems: Vec<String>,
    pub(super) journals: u16,
    pub(super) recovered: Recovery,
    /// Journals that have filesystems.
    pub(super) stores: Vec<u16>,
    /// There are large files of filesystems whose names are on another device.
    pub(super) has_others: bool,
    pub(super) kept_bytes: u64,
    pub(super) failed_reads: (u64, Option<FailedRead>),
}

/// What is being done now, to which of the devices.
enum Now {
    Recovering {
        nth: usize,
        device: Device,
        ring_bytes: u64,
    },
    Checking {
        nth: usize,
        progress: Rc<CheckProgress>,
    },
}

/// Says how far it is, again and again, as long as the core runs.
struct Course {
    now: RefCell<Option<Now>>,
}

impl Course {
    fn begin(
        platform: &UringPlatform,
        tell: impl Fn(usize, CheckStage, u64, u64) + 'static,
    ) -> Rc<Course> {
        let course = Rc::new(Course {
            now: RefCell::default(),
        });
        let (told, platform) = (course.clone(), platform.clone());
        platform.clone().spawn(async move {
            loop {
                platform.sleep_ns(LOOK_NS).await;
                match &*told.now.borrow() {
                    None => {}
                    // The rings are read whole, and little else.
                    Some(Now::Recovering {
                        nth,
                        device,
                        ring_bytes,
                    }) => {
                        let done = device.read_bytes().min(*ring_bytes);
                        tell(*nth, CheckStage::Recovery, done, *ring_bytes);
                    }
                    Some(Now::Checking { nth, progress }) => {
                        let (done, total) = progress.far();
                        tell(*nth, CheckStage::Filesystems, done, total);
                    }
                }
            }
        });
        course
    }

    fn is_now(&self, now: Now) {
        *self.now.borrow_mut() = Some(now);
    }
}

/// A device that was recovered in memory.
struct Opened {
    device: Device,
    engines: Vec<Engine<Recovered>>,
    found: Found,
}

/// Recovers devices in memory, and looks at their filesystems, or at those of one name: what was found of each device, or why nothing was.
pub(super) async fn look_at(
    platform: UringPlatform,
    asked: Vec<Asked>,
    filesystem: Option<String>,
    tell: impl Fn(usize, CheckStage, u64, u64) + 'static,
) -> Vec<Result<Found, Failed>> {
    let course = Course::begin(&platform, tell);
    let recovered = Overlaid::new(platform.clone());
    let mut all = Vec::new();
    for (nth, asked) in asked.iter().enumerate() {
        all.push(recover(&platform, &recovered, asked, (nth, &course)).await);
    }
    for nth in 0..all.len() {
        let looked = look(&recovered, &mut all, nth, filesystem.as_deref(), &course).await;
        if let Err(failed) = looked {
            all[nth] = Err(failed);
        }
    }
    let finish = |opened: Result<Opened, Failed>| {
        let Opened {
            device, mut found, ..
        } = opened?;
        // Whatever else it came to: that is why.
        if device.is_full() {
            return Err(Failed::Full);
        }
        found.kept_bytes = device.kept_bytes();
        found.failed_reads = device.failed_reads();
        Ok(found)
    };
    all.into_iter().map(finish).collect()
}

/// Opens a device under an overlay, and all of its journals.
async fn recover(
    platform: &UringPlatform,
    recovered: &Recovered,
    asked: &Asked,
    (nth, course): (usize, &Course),
) -> Result<Opened, Failed> {
    let options = OpenOptions {
        read_only: true,
        memory_at_once: true,
        ..OpenOptions::default()
    };
    let below = UringDevice::open(platform, &asked.path, options).map_err(OpenError::Io)?;
    let device = Overlay::new(below, KEPT_MAX_BYTES);
    let (superblock, shared) = Engine::<Recovered>::prepare(recovered, &device).await?;
    if let Some(expected) = asked.size_bytes
        && expected / BLOCK_SIZE != superblock.block_count
    {
        let blocks = superblock.block_count;
        return Err(Failed::Size { expected, blocks });
    }
    let ring_blocks = u64::from(superblock.ring_blocks) * u64::from(superblock.journal_count);
    course.is_now(Now::Recovering {
        nth,
        device: device.clone(),
        ring_bytes: ring_blocks * BLOCK_SIZE,
    });
    let opened = open_all(recovered, &device, &superblock, &shared).await;
    let opened = match opened {
        Err(_) if device.is_full() => return Err(Failed::Full),
        opened => opened?,
    };
    let mut found = Found {
        items: Vec::new(),
        problems: Vec::new(),
        journals: superblock.journal_count,
        recovered: Recovery::default(),
        stores: Vec::new(),
        has_others: false,
        kept_bytes: 0,
        failed_reads: (0, None),
    };
    let mut engines = Vec::new();
    for (engine, report) in opened {
        found.recovered.add(&report);
        found.recovered.bitmaps_lost += engine.counters().bitmaps_lost.get();
        if Filesystems::are_on(&engine) {
            found.stores.push(engine.journal_no());
        }
        found.has_others |= Filesystems::lie_on(&engine);
        engines.push(engine);
    }
    Ok(Opened {
        device,
        engines,
        found,
    })
}

/// Looks at the filesystems of one of the devices.
async fn look(
    platform: &Recovered,
    all: &mut [Result<Opened, Failed>],
    nth: usize,
    name: Option<&str>,
    course: &Course,
) -> Result<(), Failed> {
    let opened = all.iter().enumerate();
    let opened = opened.filter_map(|(other, opened)| Some((other, opened.as_ref().ok()?)));
    let others = opened.filter(|(other, _)| *other != nth);
    // As a node takes them.
    let others = others.flat_map(|(_, opened)| opened.engines.iter());
    let others = others.filter(|engine| engine.journal_no() == 0);
    let others: Vec<Engine<Recovered>> = others.cloned().collect();
    let devices = all.iter().filter_map(|opened| opened.as_ref().ok());
    let devices: Vec<Device> = devices.map(|opened| opened.device.clone()).collect();
    let Ok(opened) = &mut all[nth] else {
        return Ok(());
    };
    let with_files = opened.engines.iter();
    let with_files = with_files.filter(|engine| opened.found.stores.contains(&engine.journal_no()));
    let with_files: Vec<Engine<Recovered>> = with_files.cloned().collect();
    for engine in with_files {
        let progress = Rc::new(CheckProgress::default());
        course.is_now(Now::Checking {
            nth,
            progress: progress.clone(),
        });
        let engines = (&engine, others.clone());
        let found = look_at_store(platform, engines, name, &progress, opened).await;
        match found {
            Err(_) if devices.iter().any(Device::is_full) => return Err(Failed::Full),
            found => found?,
        }
    }
    Ok(())
}

/// Opens all journals, as a start does.
async fn open_all(
    platform: &Recovered,
    device: &Device,
    superblock: &Superblock,
    shared: &DeviceShared,
) -> Result<Vec<(Engine<Recovered>, RecoveryReport)>, Failed> {
    let cache = BlockCache::new(BLOCK_CACHE_BYTES, BufferPool::of_large_pieces());
    let options = EngineOptions {
        map_cache_bytes: MAP_CACHE_BYTES,
        hold_upkeep: true,
        ..EngineOptions::default()
    };
    let opening = (0..superblock.journal_count).map(|journal| {
        let engine = Engine::open_sharing(
            &cache,
            platform.clone(),
            device.clone(),
            shared.clone(),
            superblock.clone(),
            journal,
            options,
        );
        async move { (journal, engine.await) }
    });
    let opening: Vec<_> = opening.collect();
    let (mut opened, mut refused) = (Vec::new(), Vec::new());
    for (journal, result) in join_all(opening).await {
        match result {
            Ok(engine) => opened.push(engine),
            Err(error) => refused.push((Some(journal), error)),
        }
    }
    match refused.is_empty() {
        true => Ok(opened),
        false => Err(Failed::Open(refused)),
    }
}

/// Looks at the filesystems of a journal, whose large files may lie on others as well.
async fn look_at_store(
    platform: &Recovered,
    (engine, others): (&Engine<Recovered>, Vec<Engine<Recovered>>),
    name: Option<&str>,
    progress: &CheckProgress,
    Opened { device, found, .. }: &mut Opened,
) -> Result<(), Failed> {
    let journal = engine.journal_no();
    let mut options = FilesystemOptions::default();
    // Nobody is to learn here what it is like to be refused.
    options.store.injected_one_in = 0;
    let opened = Filesystems::open_over(platform.clone(), engine.clone(), others, options).await;
    let all = match opened {
        Ok(all) => all,
        Err(FileError::Stopping) => return Err(Failed::Stopped),
        Err(error) => {
            found.problems.push(format!(
                "the filesystems of journal {journal} can't be opened: {error}"
            ));
            return Ok(());
        }
    };
    finish_rollbacks(platform, &all, name, device).await;
    match check(&all, name, progress).await {
        Ok(CheckedAll {
            filesystems,
            problems,
        }) => {
            let items = filesystems.into_iter();
            let items = items.map(|(info, report)| (journal, item(&all, info.name, report)));
            found.items.extend(items);
            let problems = problems.into_iter();
            let of_journal = problems.map(|problem| format!("journal {journal}: {problem}"));
            found.problems.extend(of_journal);
            Ok(())
        }
        Err(FileError::Stopping) => Err(Failed::Stopped),
        Err(error) => {
            found.problems.push(format!(
                "which filesystems journal {journal} has can't be read: {error}"
            ));
            Ok(())
        }
    }
}

/// Looks at all, or at one; at none if there is none of that name.
async fn check(
    all: &Filesystems<Recovered>,
    name: Option<&str>,
    progress: &CheckProgress,
) -> Result<CheckedAll, FileError> {
    let Some(name) = name else {
        return all.check_noting(progress).await;
    };
    let (id, report) = match all.open_by_name(name).await {
        Err(FileError::NotFound) => return Ok(CheckedAll::default()),
        Err(error) => (FilesystemId(0), Err(error)),
        Ok(filesystem) => (filesystem.id(), filesystem.check_noting(progress).await),
    };
    let report = match report {
        Err(FileError::Stopping) => return Err(FileError::Stopping),
        Err(error) => CheckReport {
            problems: vec![format!("it can't be looked at to its end: {error}")],
            ..CheckReport::default()
        },
        Ok(report) => report,
    };
    let name = name.to_owned();
    Ok(CheckedAll {
        filesystems: vec![(FilesystemInfo { id, name }, report)],
        problems: Vec::new(),
    })
}

/// Waits until filesystems that were being rolled back are, as a start would go on with that: before, nothing in them fits together. Who
/// can't be opened is told of when it is looked at.
async fn finish_rollbacks(
    platform: &Recovered,
    all: &Filesystems<Recovered>,
    name: Option<&str>,
    device: &Device,
) {
    match name {
        Some(name) => drop(all.open_by_name(name).await),
        None => {
            for info in all.list().await.unwrap_or_default() {
                drop(all.open_filesystem(info.id).await);
            }
        }
    }
    let rolls = |filesystem: &Filesystem<Recovered>| {
        let described = filesystem.describe();
        described.rolling_back_to.is_some() && described.not_rolled_back.is_none()
    };
    let (mut looks, mut last) = (0, (0, 0));
    while looks < LOOKS_MAX && all.opened().iter().any(rolls) {
        platform.sleep_ns(LOOK_NS).await;
        let now = (device.read_bytes(), device.kept_bytes());
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
}

fn item(
    all: &Filesystems<Recovered>,
    filesystem: String,
    report: CheckReport,
) -> CheckedFilesystem {
    let mut problems = report.problems;
    let described = all.opened().into_iter().map(|opened| opened.describe());
    for described in described.filter(|described| described.name == filesystem) {
        if let (Some(to), None) = (&described.rolling_back_to, &described.not_rolled_back) {
            problems.push(format!(
                "it is being rolled back to '{to}', and that doesn't get on: until it has, nothing in it is proved"
            ));
        }
        problems.extend(described.not_rolled_back);
    }
    CheckedFilesystem {
        filesystem,
        files: report.files,
        snapshots: report.snapshots,
        blocks: report.blocks,
        bytes: report.bytes,
        objects: report.objects,
        object_bytes: report.object_bytes,
        swept: report.swept,
        problems,
    }
}
