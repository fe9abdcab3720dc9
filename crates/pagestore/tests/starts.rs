//! Starts of a store: the very first one, what the header and the log must be for it, and what it leaves behind.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{CreateDvol, Engine, Stability};
use flagstone_pagestore::{
    BlockPtr, Commit, ExtentId, Generation, PagePtr, PageSlot, RangeWrite, Store, StoreError,
    StoreOptions,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{Counting, CrashMoment, CrashPoint, Rng, SimDisk, SimPlatform, World};
use flagstone_types::{BlockChecksum, ChainHash};
use support::*;

const LOG: &str = ".pagestore-log";
/// As a store begins with them in these tests.
const OPTIONS: StoreOptions = StoreOptions {
    injected_one_in: 0,
    recent_bytes: 64 << 10,
    log_bytes: 256 << 10,
    journaled_bytes: 0,
};

fn in_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(SimPlatform) -> F + 'static) {
    let world = World::new(23);
    let platform = world.platform(0);
    world.block_on(0, test(platform));
}

/// One life on a disk that ends with a power loss.
fn life<T: 'static>(
    disk: &SimDisk,
    live: impl AsyncFnOnce(SimPlatform, SimDisk) -> T + 'static,
) -> T {
    let world = World::new(29);
    let (platform, on) = (world.platform(0), disk.clone());
    let left = world.block_on(0, async move { live(platform, on).await });
    disk.power_loss(&mut world.crash());
    left
}

async fn open(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
) -> Result<TestStore, StoreError> {
    Store::open(platform.clone(), engine.clone(), OPTIONS).await
}

async fn durably(store: &TestStore, commit: &Commit) -> PageSlot {
    let committed = store.commit(commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
    committed.slot
}

/// Power is lost at each change of the device that the first start and its first extent make.
#[test]
fn a_first_start_that_breaks_off_is_made_up_for() {
    let formatted = new_disk();
    life(&formatted, async |platform, disk| {
        format(&platform, &disk).await;
    });
    for moment in [CrashMoment::InFlight, CrashMoment::Completed] {
        let mut changes = 0;
        for nth in 0.. {
            let disk = formatted.fork();
            let world = World::new(100 + nth);
            let (platform, on) = (world.platform(0), disk.clone());
            let is_over = Rc::new(Cell::new(false));
            let over = is_over.clone();
            world.crash_at(CrashPoint {
                nth,
                counting: Counting::Changes,
                moment,
            });
            world.spawn(0, async move {
                let engine = open_engine(&platform, &on).await;
                let store = open(&platform, &engine).await.expect("opens");
                store.create_extent(SMALL, small()).await.expect("creates");
                over.set(true);
            });
            let over = is_over.clone();
            let _ = world.run_until(move || over.get());
            disk.power_loss(&mut world.crash());
            life(&disk, async move |platform, disk| {
                let engine = open_engine(&platform, &disk).await;
                let store = open(&platform, &engine).await;
                let store = store.unwrap_or_else(|error| panic!("change {nth}: {error}"));
                if store.extents().is_empty() {
                    store.create_extent(SMALL, small()).await.expect("creates");
                }
                allocate(&store, SMALL, ALICE).await;
            });
            changes = nth;
            if is_over.get() {
                break;
            }
        }
        assert!(changes > 5, "{changes}");
    }
}

/// Zeros are a header that was never written: only where there is no extent yet.
#[test]
fn a_header_that_is_none_opens_nothing() {
    in_world(|platform| async move {
        for has_extents in [true, false] {
            let disk = new_disk();
            format(&platform, &disk).await;
            let engine = open_engine(&platform, &disk).await;
            let store = open(&platform, &engine).await.expect("opens");
            if has_extents {
                store.create_extent(SMALL, small()).await.expect("creates");
            }
            store.stop().await;
            let header = engine.dvol(".pagestore").expect("is there").handle;
            let put = async |byte| {
                let block = filled(byte, 4096);
                let done = engine.write(header, 0, block, Stability::Stable).await;
                done.expect("writes");
            };
            put(7).await;
            let opened = open(&platform, &engine).await.map(drop);
            assert_eq!(opened, Err(StoreError::Corrupt), "extents: {has_extents}");
            put(0).await;
            let opened = open(&platform, &engine).await.map(drop);
            let expected = match has_extents {
                true => Err(StoreError::Corrupt),
                false => Ok(()),
            };
            assert_eq!(opened, expected, "extents: {has_extents}");
        }
    });
}

/// A device that is full when its store is first opened has no room for a log: the store does without, until it has.
#[test]
fn a_store_on_a_full_device_has_no_log() {
    in_world(|platform| async move {
        let disk = new_disk();
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let glutton = CreateDvol {
            name: "glutton".into(),
            id: None,
            size_bytes: 1 << 30,
            reserved_bytes: 0,
        };
        let glutton = engine.create(glutton).await.expect("creates");
        let mut at = 0;
        loop {
            let piece = filled(7, 64 << 10);
            let done = engine.write(glutton, at, piece, Stability::Unstable).await;
            if done.is_err() {
                break;
            }
            at += 64 << 10;
        }
        let store = open(&platform, &engine).await.expect("opens");
        assert!(engine.dvol(LOG).is_none());
        store.stop().await;
        engine.delete(glutton, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        open(&platform, &engine).await.expect("opens");
        assert!(engine.dvol(LOG).is_some());
    });
}

/// One page of a large block, where nothing is.
fn contents(page: PagePtr) -> Commit {
    Commit {
        ranges: vec![RangeWrite {
            first: page,
            data: filled(1, 8192),
        }],
        ..Commit::default()
    }
}

/// A page of bytes of which no two are alike.
fn noise(seed: u64) -> IoBuf {
    let mut rng = Rng::new(seed);
    let words: Vec<u8> = (0..512)
        .flat_map(|_| rng.next_u64().to_le_bytes())
        .collect();
    IoBuf::copy_of(&words)
}

fn noisy(page: PagePtr, slot: PageSlot, seed: u64) -> flagstone_pagestore::PageWrite {
    flagstone_pagestore::PageWrite {
        ptr: page,
        slot,
        data: noise(seed),
    }
}

/// Groups of contents that are in their place beside their frames leave frames without entries. A start that finds
/// nothing else in the log must note that they are done with: the places of these frames are used again.
#[test]
fn frames_without_entries_are_done_with_after_a_start() {
    let disk = new_disk();
    let pages = life(&disk, async |platform, disk| {
        let (_, store) = begin(&platform, &disk).await;
        let (mut large, mut pages) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let block = allocate(&store, LARGE, ALICE).await.0;
            large.extend((0..8).map(|page| block.with_page(block.page + page)));
            let block = allocate(&store, SMALL, ALICE).await.0;
            pages.extend((0..4).map(|page| block.with_page(block.page + page)));
        }
        in_place(&platform).await;
        // Not half of the log, or it would be cleared.
        for page in &large[..30] {
            durably(&store, &contents(*page)).await;
        }
        assert_eq!(store.counters().log_used_bytes, 30 * 4096);
        pages
    });
    let (pages, last) = life(&disk, async move |platform, disk| {
        let engine = open_engine(&platform, &disk).await;
        let store = open(&platform, &engine).await.expect("opens");
        assert_eq!(store.counters().log_used_bytes, 0);
        // Up to the end of the log, and a large frame from its beginning on, which ends where those frames were.
        let (mut slot, mut change) = (PageSlot(0), 0);
        while store.counters().log_used_bytes < 25 * 4096 {
            change += 1;
            let commit = Commit {
                writes: vec![noisy(pages[0], slot, change)],
                ..Commit::default()
            };
            slot = durably(&store, &commit).await;
        }
        let commit = Commit {
            writes: pages[1..14]
                .iter()
                .map(|page| noisy(*page, PageSlot(0), page.page))
                .collect(),
            ..Commit::default()
        };
        durably(&store, &commit).await;
        assert_eq!(store.counters().put_in_place, 0, "all of it is in the log");
        (pages, change)
    });
    life(&disk, async move |platform, disk| {
        let engine = open_engine(&platform, &disk).await;
        let store = open(&platform, &engine).await.expect("opens");
        let now = async |page| store.read(page).await.expect("readable").data;
        assert!(now(pages[0]).await[..] == noise(last)[..], "change {last}");
        for page in &pages[1..14] {
            assert!(now(*page).await[..] == noise(page.page)[..], "{page:?}");
        }
    });
}

/// A frame as the format has it.
fn frame(sequence: u64, entries: &[u8]) -> IoBuf {
    let len = entries.len() as u64;
    let mut bytes = b"FSPFRAME".to_vec();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(entries);
    let seal = ChainHash::of(&bytes).0;
    bytes[24..32].copy_from_slice(&seal.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    IoBuf::copy_of(&bytes)
}

fn entry(kind: u8, extent: ExtentId, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(extent.0.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(rest);
    bytes
}

fn freed(block: u64) -> Vec<u8> {
    entry(1, SMALL, block, &[])
}

/// What makes a page out of nothing: all its bytes.
fn change(page: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(BlockChecksum::of(page).0.to_le_bytes());
    bytes.extend((page.len() as u32 + 2).to_le_bytes());
    bytes.extend((1_u16 << 15 | page.len() as u16).to_le_bytes());
    bytes.extend(page);
    bytes
}

/// A page of the table with one block that is Alice's.
fn table(page: u64, entry_at: usize) -> Vec<u8> {
    let mut bytes = [0; 4096];
    bytes[16 * entry_at..16 * entry_at + 8].copy_from_slice(&ALICE.0.to_le_bytes());
    bytes[16 * entry_at + 8] = 1;
    entry(2, SMALL, page, &change(&bytes))
}

fn page(extent: ExtentId, page: u64) -> Vec<u8> {
    let slot = 77_u64.to_le_bytes();
    let change = change(&[5; 4096]);
    entry(3, extent, page, &[&slot[..], &change[..]].concat())
}

/// The store has 300 blocks with four pages each, so the table's second page has 44 entries.
#[test]
fn a_frame_that_names_what_is_not_there_opens_nothing() {
    in_world(|platform| async move {
        let disk = new_disk();
        let (engine, store) = begin(&platform, &disk).await;
        store.stop().await;
        let log = engine.dvol(LOG).expect("is there").handle;
        let open_with = async |sequence, entries: &[u8]| {
            let frame = frame(sequence, entries);
            let done = engine.write(log, 4096, frame, Stability::Stable).await;
            done.expect("writes");
            open(&platform, &engine).await
        };
        let mut torn = page(SMALL, 0);
        torn.truncate(100);
        let mut other = page(SMALL, 0);
        other[26] ^= 1;
        let mut base = page(SMALL, 0);
        base[25] = 2;
        for (entries, what) in [
            (freed(300), "a block behind the last"),
            (freed(u64::MAX), "a block far behind it"),
            (table(2, 0), "a page behind the table"),
            (table(u64::MAX, 0), "a page far behind it"),
            (table(1, 44), "an entry behind the last"),
            (page(SMALL, 1200), "a page behind the last"),
            (page(SMALL, u64::MAX), "a page far behind it"),
            (page(ExtentId(9), 0), "another extent"),
            (entry(4, SMALL, 0, &[]), "another kind"),
            (torn, "half an entry"),
            (other, "another page"),
            (base, "another base"),
        ] {
            let opened = open_with(1, &entries).await.map(drop);
            assert_eq!(opened, Err(StoreError::Corrupt), "{what}");
        }
        let good = [freed(299), table(1, 43), page(SMALL, 1196)].concat();
        let ptr = PagePtr {
            extent: SMALL,
            page: 1196,
            owner: ALICE,
            generation: Generation(1),
            read_only: false,
        };
        // A frame that doesn't follow isn't one.
        let store = open_with(2, &good).await.expect("opens");
        assert_eq!(store.block(SMALL, 299).await, Ok(None));
        store.stop().await;
        let store = open_with(1, &good).await.expect("opens");
        assert_eq!(store.block(SMALL, 299).await, Ok(Some(BlockPtr(ptr))));
        let read = store.read(ptr).await.expect("readable");
        assert_eq!((read.slot, read.data[0]), (PageSlot(77), 5));
    });
}
