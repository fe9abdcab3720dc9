//! A tree on a simulated disk.

#![allow(dead_code)] // Each test binary uses its part.

use flagstone_btree::{Tree, TreeOptions};
use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, format_device};
use flagstone_pagestore::{ExtentId, Geometry, OwnerId, Store, StoreOptions};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const EXTENT: ExtentId = ExtentId(1);
/// Blocks that are no pages of the tree.
pub(crate) const OTHERS: ExtentId = ExtentId(2);
pub(crate) const OWNER: OwnerId = OwnerId(0x7ee);

pub(crate) type TestTree = Tree<SimPlatform>;

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

/// As much as a node has there, or nearly.
const JOURNALED_BYTES: usize = 32 << 10;

pub(crate) async fn open_engine(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        // As many pages as are soon in use: what is read has nearly always left it again.
        cache_bytes: 64 << 10,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

pub(crate) async fn open_store(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    injected_one_in: u64,
) -> Store<SimPlatform> {
    open_store_with(platform, engine, injected_one_in, JOURNALED_BYTES).await
}

/// The same with frames of up to so many bytes in the journal.
pub(crate) async fn open_store_with(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    injected_one_in: u64,
    journaled_bytes: usize,
) -> Store<SimPlatform> {
    let options = StoreOptions {
        injected_one_in,
        // As small as the cache below.
        recent_bytes: 64 << 10,
        log_bytes: 256 << 10,
        journaled_bytes,
    };
    let opened = Store::open(platform.clone(), engine.clone(), options).await;
    opened.expect("opens")
}

pub(crate) async fn open_tree(
    platform: &SimPlatform,
    store: &Store<SimPlatform>,
    cached_leaves: usize,
) -> TestTree {
    let options = TreeOptions { cached_leaves };
    let opened = Tree::open(platform.clone(), store.clone(), EXTENT, options).await;
    opened.expect("opens")
}

/// Formats the disk and makes a tree in it, with four pages in a block so that blocks come and go.
pub(crate) async fn begin(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, TestTree) {
    begin_with(platform, disk, JOURNALED_BYTES).await
}

/// The same with frames of up to so many bytes in the journal. With none the device can lose each group, by a write of data that fails.
pub(crate) async fn begin_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    journaled_bytes: usize,
) -> (Engine<SimPlatform>, TestTree) {
    format(platform, disk).await;
    let engine = open_engine(platform, disk).await;
    let store = open_store_with(platform, &engine, 0, journaled_bytes).await;
    let geometry = Geometry::new(4096, 16 << 10, 10_000).expect("a shape");
    store
        .create_extent(EXTENT, geometry)
        .await
        .expect("creates");
    store
        .create_extent(OTHERS, geometry)
        .await
        .expect("creates");
    let options = TreeOptions::default();
    let tree = Tree::create(platform.clone(), store, EXTENT, OWNER, options).await;
    (engine, tree.expect("creates"))
}
