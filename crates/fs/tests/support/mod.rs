//! A filesystem on a simulated disk.

#![allow(dead_code)] // Each test binary uses its part.

pub(crate) mod course;
pub(crate) mod stage;

use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, format_device};
use flagstone_fs::{Filesystem, FilesystemOptions, Filesystems, PROMOTE_BYTES, Settings};
use flagstone_pagestore::StoreOptions;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const NAME: &str = "files";

pub(crate) type TestFs = Filesystem<SimPlatform>;

pub(crate) fn new_disk(mib: u64) -> SimDisk {
    SimDisk::new(DiskConfig::new(mib * MIB))
}

pub(crate) async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    format_device(platform, &device, options)
        .await
        .expect("formats");
}

pub(crate) async fn open_engine(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        // A few pages, so that they come and go.
        cache_bytes: 64 << 10,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// Of all disks, in their order.
pub(crate) async fn open_engines(
    platform: &SimPlatform,
    disks: &[SimDisk],
) -> Vec<Engine<SimPlatform>> {
    let mut engines = Vec::new();
    for disk in disks {
        engines.push(open_engine(platform, disk).await);
    }
    engines
}

pub(crate) async fn stop_engines(engines: &[Engine<SimPlatform>]) {
    for engine in engines {
        engine.stop().await.expect("stops");
    }
}

pub(crate) async fn open_all(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    injected_one_in: u64,
) -> Filesystems<SimPlatform> {
    open_all_with(platform, engine, injected_one_in, 32 << 10).await
}

/// The same with frames of the log of up to so many bytes in the device's journal. With none, each group of commits can be lost.
pub(crate) async fn open_all_with(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    injected_one_in: u64,
    journaled_bytes: usize,
) -> Filesystems<SimPlatform> {
    let engines = std::slice::from_ref(engine);
    open_all_over(platform, engines, injected_one_in, journaled_bytes).await
}

/// The same with large files on all of the engines: the first one has the tree.
pub(crate) async fn open_all_over(
    platform: &SimPlatform,
    engines: &[Engine<SimPlatform>],
    injected_one_in: u64,
    journaled_bytes: usize,
) -> Filesystems<SimPlatform> {
    let options = FilesystemOptions {
        store: StoreOptions {
            injected_one_in,
            // As small as the cache below.
            recent_bytes: 64 << 10,
            log_bytes: 256 << 10,
            journaled_bytes,
        },
        ..FilesystemOptions::default()
    };
    let (home, others) = engines.split_first().expect("has one");
    let (home, others) = (home.clone(), others.to_vec());
    let opened = Filesystems::open_over(platform.clone(), home, others, options).await;
    opened.expect("opens")
}

/// Most files of a test are larger, and become dvols.
pub(crate) const SMALL: u64 = 6 << 10;

/// Formats the disk and makes a filesystem there.
pub(crate) async fn begin(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, Filesystems<SimPlatform>, TestFs) {
    begin_with(platform, disk, PROMOTE_BYTES).await
}

/// The same where files become dvols when they get larger than `promote_bytes`.
pub(crate) async fn begin_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    promote_bytes: u64,
) -> (Engine<SimPlatform>, Filesystems<SimPlatform>, TestFs) {
    begin_on(platform, disk, promote_bytes, 32 << 10).await
}

/// The same with no frame in the device's journal: each group of commits can be lost, by a write of data that fails.
pub(crate) async fn begin_losing(
    platform: &SimPlatform,
    disk: &SimDisk,
    promote_bytes: u64,
) -> (Engine<SimPlatform>, Filesystems<SimPlatform>, TestFs) {
    begin_on(platform, disk, promote_bytes, 0).await
}

async fn begin_on(
    platform: &SimPlatform,
    disk: &SimDisk,
    promote_bytes: u64,
    journaled_bytes: usize,
) -> (Engine<SimPlatform>, Filesystems<SimPlatform>, TestFs) {
    let disks = std::slice::from_ref(disk);
    let (mut engines, all, fs) = begin_over(platform, disks, promote_bytes, journaled_bytes).await;
    (engines.remove(0), all, fs)
}

/// The same over several disks.
pub(crate) async fn begin_over(
    platform: &SimPlatform,
    disks: &[SimDisk],
    promote_bytes: u64,
    journaled_bytes: usize,
) -> (Vec<Engine<SimPlatform>>, Filesystems<SimPlatform>, TestFs) {
    for disk in disks {
        format(platform, disk).await;
    }
    let engines = open_engines(platform, disks).await;
    let all = open_all_over(platform, &engines, 0, journaled_bytes).await;
    let settings = Settings {
        promote_bytes,
        ..Settings::default()
    };
    let made = all.create_with(NAME, settings).await;
    let fs = made.expect("makes");
    (engines, all, fs)
}
