//! The log: what it saves, and that what is in it is as good as in its place.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_device::engine::{Engine, Handle, Stability};
use flagstone_pagestore::{
    Commit, PagePtr, PageSlot, PageWrite, RangeWrite, Store, StoreError, StoreOptions,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, Fault, Injection, IoKind, SimDisk, SimPlatform, World,
    WriteErrorLeaves,
};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;
const LOG: &str = ".pagestore-log";

/// A page of bytes that have nothing in common, but for the number of the change.
fn page(seed: u8, change: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..4096_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ seed)
        .collect();
    bytes[2000] = change;
    bytes
}

fn write(ptr: PagePtr, slot: PageSlot, bytes: &[u8]) -> PageWrite {
    PageWrite {
        ptr,
        slot,
        data: IoBuf::copy_of(bytes),
    }
}

/// The pages of three blocks: twelve.
async fn pages(store: &TestStore) -> Vec<PagePtr> {
    let mut pages = Vec::new();
    for _ in 0..3 {
        let block = allocate(store, SMALL, ALICE).await.0;
        pages.extend((0..4).map(|number| block.with_page(block.page + number)));
    }
    pages
}

/// Gives all pages the same change, in one commit, and waits until that is durable.
async fn change_all(store: &TestStore, pages: &[PagePtr], slot: PageSlot, change: u8) -> PageSlot {
    let writes = pages.iter().enumerate();
    let commit = Commit {
        writes: writes
            .map(|(n, ptr)| write(*ptr, slot, &page(n as u8, change)))
            .collect(),
        ..Commit::default()
    };
    let committed = store.commit(&commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
    committed.slot
}

async fn assert_all(store: &TestStore, pages: &[PagePtr], change: u8) {
    for (number, ptr) in pages.iter().enumerate() {
        let read = store.read(*ptr).await.expect("readable");
        assert!(
            read.data[..] == page(number as u8, change)[..],
            "page {number}, change {change}"
        );
    }
}

#[test]
fn a_commit_of_many_pages_is_one_block_and_a_page_comes_to_its_place_once() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin(&platform, &disk).await;
        let pages = pages(&store).await;
        let mut slot = change_all(&store, &pages, PageSlot(0), 0).await;
        in_place(&platform).await;
        assert_all(&store, &pages, 0).await;
        let before = (disk.counts(), engine.counters().data_writes.get());
        slot = change_all(&store, &pages, slot, 1).await;
        let after = disk.counts();
        assert_eq!(
            after.writes - before.0.writes,
            2,
            "a block of the log, one of the journal"
        );
        assert_eq!(after.flushes - before.0.flushes, 1);
        for change in 2..20 {
            slot = change_all(&store, &pages, slot, change).await;
        }
        in_place(&platform).await;
        // Nineteen frames; then each page once, and the log's header.
        let written = engine.counters().data_writes.get() - before.1;
        assert_eq!(written, 19 + 12 + 1);
        assert_all(&store, &pages, 19).await;
    });
}

/// Contents are not worth it.
#[test]
fn a_group_with_much_content_is_written_once() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin(&platform, &disk).await;
        let pages = pages(&store).await;
        change_all(&store, &pages, PageSlot(0), 0).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        let write_block = async |byte| {
            let range = RangeWrite {
                first: block,
                data: filled(byte, 64 << 10),
            };
            let commit = Commit {
                ranges: vec![range],
                ..Commit::default()
            };
            let committed = store.commit(&commit).await.expect("commits");
            store.wait(committed.ticket).await.expect("is durable");
        };
        write_block(1).await;
        in_place(&platform).await;
        let before = disk.counts().written_bytes;
        write_block(2).await;
        in_place(&platform).await;
        let written = disk.counts().written_bytes - before;
        assert!((64 << 10..80 << 10).contains(&written), "{written}");
        assert!(engine.dvol(LOG).is_some());
        assert_eq!(byte_of(&store, block).await, 2);
        assert_all(&store, &pages, 0).await;
    });
}

/// What a life leaves on the disk: twelve pages, changed many times, with the last changes in the log only.
fn life(seed: u64) -> (SimDisk, Vec<PagePtr>) {
    let disk = new_disk();
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let pages = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let pages = pages(&store).await;
        let mut slot = change_all(&store, &pages, PageSlot(0), 0).await;
        in_place(&platform).await;
        for change in 1..=30 {
            slot = change_all(&store, &pages, slot, change).await;
        }
        pages
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    (disk, pages)
}

async fn opened(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, Result<TestStore, StoreError>) {
    let engine = open_engine(platform, disk).await;
    let options = StoreOptions {
        injected_one_in: 0,
        ..StoreOptions::default()
    };
    let store = Store::open(platform.clone(), engine.clone(), options).await;
    (engine, store)
}

/// Power is lost in the middle of a start, again and again: at each change of the device that it makes.
#[test]
fn a_start_that_breaks_off_leaves_everything_to_the_next() {
    let (disk, pages) = life(3);
    let mut changes = 0;
    for point in 0.. {
        let disk = disk.fork();
        let world = World::new(100 + point);
        let (platform, on) = (world.platform(0), disk.clone());
        let is_over = Rc::new(RefCell::new(false));
        let over = is_over.clone();
        world.crash_at(CrashPoint {
            nth: point,
            counting: Counting::Changes,
            moment: CrashMoment::InFlight,
        });
        world.spawn(0, async move {
            let (engine, store) = opened(&platform, &on).await;
            store.expect("opens").stop().await;
            engine.stop().await.expect("stops");
            *over.borrow_mut() = true;
        });
        let over = is_over.clone();
        let _ = world.run_until(move || *over.borrow());
        let mut crash = world.crash();
        disk.power_loss(&mut crash);
        let world = World::new(200 + point);
        let (platform, on, pages) = (world.platform(0), disk.clone(), pages.clone());
        world.block_on(0, async move {
            let (engine, store) = opened(&platform, &on).await;
            let store = store.expect("opens");
            assert_all(&store, &pages, 30).await;
            store.stop().await;
            engine.stop().await.expect("stops");
        });
        changes = point;
        if *is_over.borrow() {
            break;
        }
    }
    assert!(changes > 10, "{changes}");
}

/// Changes the log while no store is open, and says what opening it gives then.
fn after(
    seed: u64,
    change: impl AsyncFnOnce(Engine<SimPlatform>, Handle, u64) + 'static,
) -> Option<StoreError> {
    let (disk, _) = life(seed);
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let log = engine.dvol(LOG).expect("is there");
        change(engine.clone(), log.handle, log.size_bytes).await;
        engine.stop().await.expect("stops");
        opened(&platform, &disk).await.1.err()
    })
}

async fn flip(engine: &Engine<SimPlatform>, log: Handle, at: u64) {
    let pieces = engine
        .read(log, at / 4096 * 4096, 4096)
        .await
        .expect("readable");
    let mut bytes = bytes_of(pieces);
    bytes[(at % 4096) as usize] ^= 1;
    let block = IoBuf::copy_of(&bytes);
    let at = at / 4096 * 4096;
    let done = engine.write(log, at, block, Stability::Stable).await;
    done.expect("writes");
}

/// The place of the frame with the last change: the last whose head is one.
async fn last_frame(engine: &Engine<SimPlatform>, log: Handle, size_bytes: u64) -> u64 {
    let mut last = (0, 0);
    for at in (4096..size_bytes).step_by(4096) {
        let bytes = bytes_of(engine.read(log, at, 4096).await.expect("readable"));
        if bytes.starts_with(b"FSPFRAME") {
            last = last.max((
                u64::from_le_bytes(bytes[8..16].try_into().expect("eight")),
                at,
            ));
        }
    }
    last.1
}

#[test]
fn a_log_that_is_not_as_it_was_written_is_not_used() {
    assert_eq!(after(5, async |_, _, _| {}), None);
    let header = after(5, async |engine, log, _| flip(&engine, log, 100).await);
    assert_eq!(header, Some(StoreError::Corrupt));
    let entry = after(5, async |engine, log, size_bytes| {
        let at = last_frame(&engine, log, size_bytes).await;
        flip(&engine, log, at + 200).await;
    });
    assert_eq!(entry, Some(StoreError::Corrupt));
    let other = after(5, async |engine, log, _| {
        engine.set_attributes(log, [0; _]).await.expect("sets");
    });
    assert_eq!(
        other,
        Some(StoreError::Corrupt),
        "another dvol of that name"
    );
    // A page that is not what it was when the frame was written.
    let base = after(5, async |engine, _, _| {
        let extent = engine
            .dvol(".extent-0000000000000001")
            .expect("is there")
            .handle;
        let garbage = IoBuf::copy_of(&[3; 4096]);
        for block in 2..14 {
            let done = engine
                .write_ex(extent, block * 4096, garbage.clone(), 77, Stability::Stable)
                .await;
            done.expect("writes");
        }
    });
    assert_eq!(base, Some(StoreError::Corrupt));
}

#[test]
fn what_can_not_be_put_in_its_place_is_tried_again_and_nothing_is_lost() {
    let (world, disk) = (World::new(9), new_disk());
    let (platform, on) = (world.platform(0), disk.clone());
    let pages = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let pages = pages(&store).await;
        in_place(&platform).await;
        let verifier = store.verifier();
        let slot = change_all(&store, &pages, PageSlot(0), 1).await;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        on.inject(
            Injection::next(failing)
                .only(IoKind::Write)
                .within(DATA)
                .times(60),
        );
        in_place(&platform).await;
        on.clear_injections();
        assert!(!on.fault_log().is_empty(), "it was tried");
        change_all(&store, &pages, slot, 2).await;
        assert_eq!(store.verifier(), verifier, "nothing was lost");
        assert_all(&store, &pages, 2).await;
        platform.sleep_ns(3_000_000_000).await;
        assert_all(&store, &pages, 2).await;
        pages
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(10);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_, store) = opened(&platform, &disk).await;
        assert_all(&store.expect("opens"), &pages, 2).await;
    });
}

/// A store that began without a log gets one, and one that has one keeps it.
#[test]
fn a_store_without_a_log_does_without() {
    let (world, disk) = (World::new(9), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let without = StoreOptions {
            injected_one_in: 0,
            log_bytes: 0,
            ..StoreOptions::default()
        };
        let store = open_with(&platform, &engine, without).await;
        store.create_extent(SMALL, small()).await.expect("creates");
        assert!(engine.dvol(LOG).is_none());
        let version = async || {
            let header = engine.dvol(".pagestore").expect("is there").handle;
            bytes_of(engine.read(header, 0, 4096).await.expect("readable"))[8]
        };
        assert_eq!(version().await, 1);
        let pages = pages(&store).await;
        let slot = change_all(&store, &pages, PageSlot(0), 1).await;
        let before = engine.counters().data_writes.get();
        let slot = change_all(&store, &pages, slot, 2).await;
        assert_eq!(engine.counters().data_writes.get() - before, 12);
        store.stop().await;
        let store = open_store(&platform, &engine, 0).await;
        assert!(engine.dvol(LOG).is_some());
        assert_eq!(version().await, 2, "nobody opens it who knows of no log");
        assert_all(&store, &pages, 2).await;
        change_all(&store, &pages, slot, 3).await;
        store.stop().await;
        let store = open_with(&platform, &engine, without).await;
        assert_all(&store, &pages, 3).await;
    });
}
