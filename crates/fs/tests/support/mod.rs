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
    let opened = Filesystems::open(platform.clone(), engine.clone(), options).await;
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
    format(platform, disk).await;
    let engine = open_engine(platform, disk).await;
    let all = open_all_with(platform, &engine, 0, journaled_bytes).await;
    let settings = Settings {
        promote_bytes,
        ..Settings::default()
    };
    let made = all.create_with(NAME, settings).await;
    let fs = made.expect("makes");
    (engine, all, fs)
}
