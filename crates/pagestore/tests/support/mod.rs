//! A store on a simulated disk, and what tests do with it.

#![allow(dead_code)] // Each test binary uses its part.

use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, Piece, format_device};
use flagstone_pagestore::{
    BlockPtr, Commit, ExtentId, Geometry, OwnerId, PagePtr, PageSlot, PageWrite, Store,
    StoreOptions,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ALICE: OwnerId = OwnerId(0xa11ce);
pub(crate) const BOB: OwnerId = OwnerId(0xb0b);
/// Pages of 4 KiB, four in a block.
pub(crate) const SMALL: ExtentId = ExtentId(1);
/// Pages of 8 KiB, eight in a block.
pub(crate) const LARGE: ExtentId = ExtentId(2);

pub(crate) type TestStore = Store<SimPlatform>;

pub(crate) fn small() -> Geometry {
    Geometry::new(4096, 16 << 10, 300).expect("a shape")
}

pub(crate) fn large() -> Geometry {
    Geometry::new(8192, 64 << 10, 20).expect("a shape")
}

pub(crate) fn new_disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(64 * MIB))
}

pub(crate) async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    let formatted = format_device(platform, &device, options).await;
    formatted.expect("formats");
}

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

/// A store that does what it is told, every time.
pub(crate) async fn open_store(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    injected_one_in: u64,
) -> TestStore {
    let options = StoreOptions {
        injected_one_in,
        ..options()
    };
    open_with(platform, engine, options).await
}

fn options() -> StoreOptions {
    StoreOptions {
        injected_one_in: 0,
        // As small as the cache above.
        recent_bytes: 64 << 10,
        // Soon full.
        log_bytes: 256 << 10,
        // Then the device can lose groups: a journal that can't be written ends everything. Histories have both.
        journaled_bytes: 0,
    }
}

pub(crate) async fn open_with(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    options: StoreOptions,
) -> TestStore {
    let opened = Store::open(platform.clone(), engine.clone(), options).await;
    opened.expect("opens")
}

/// Formats the disk, and begins with both extents.
pub(crate) async fn begin(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, TestStore) {
    begin_journaling_up_to(platform, disk, 0).await
}

/// The same with frames of commits that are alone in the device's journal, as they usually are.
pub(crate) async fn begin_journaling(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, TestStore) {
    begin_journaling_up_to(platform, disk, 32 << 10).await
}

/// The same with such frames of up to so many bytes.
pub(crate) async fn begin_journaling_up_to(
    platform: &SimPlatform,
    disk: &SimDisk,
    journaled_bytes: usize,
) -> (Engine<SimPlatform>, TestStore) {
    format(platform, disk).await;
    let engine = open_engine(platform, disk).await;
    let options = StoreOptions {
        journaled_bytes,
        ..options()
    };
    let store = open_with(platform, &engine, options).await;
    for (id, geometry) in [(SMALL, small()), (LARGE, large())] {
        store.create_extent(id, geometry).await.expect("creates");
    }
    (engine, store)
}

/// Waits until what is durable in the log is in its place.
pub(crate) async fn in_place(platform: &SimPlatform) {
    platform.sleep_ns(300_000_000).await;
}

pub(crate) fn filled(byte: u8, len: usize) -> IoBuf {
    IoBuf::copy_of(&vec![byte; len])
}

pub(crate) fn page_write(ptr: PagePtr, slot: PageSlot, byte: u8, len: usize) -> PageWrite {
    PageWrite {
        ptr,
        slot,
        data: filled(byte, len),
    }
}

/// Allocates a block for `owner` and waits until that is durable.
pub(crate) async fn allocate(store: &TestStore, extent: ExtentId, owner: OwnerId) -> BlockPtr {
    let claim = store.claim(extent, owner).await.expect("has a free block");
    let commit = Commit {
        allocates: vec![claim.ptr],
        ..Commit::default()
    };
    let committed = store.commit(&commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
    claim.ptr
}

/// The byte that all of a page has.
pub(crate) async fn byte_of(store: &TestStore, ptr: PagePtr) -> u8 {
    let read = store.read(ptr).await.expect("readable");
    let first = read.data[0];
    assert!(
        read.data.iter().all(|&byte| byte == first),
        "one byte throughout"
    );
    first
}

pub(crate) fn bytes_of(pieces: impl IntoIterator<Item = Piece>) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => out.extend_from_slice(&data),
            Piece::Zeros(len) => out.resize(out.len() + len as usize, 0),
        }
    }
    out
}
