//! The log: what it saves, and that what is in it is as good as in its place.

use crate::support;

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_device::engine::{Engine, Handle, Stability};
use flagstone_pagestore::{
    Commit, CommitError, PagePtr, PageSlot, PageWrite, RangeWrite, Store, StoreError, StoreOptions,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, Fault, Injection, IoKind, SimDisk, SimPlatform, World,
    WriteErrorLeaves,
};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
pub(super) const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;
pub(super) const LOG: &str = ".pagestore-log";

/// A page of bytes that have nothing in common, but for the number of the change.
pub(super) fn page(seed: u8, change: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..4096_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ seed)
        .collect();
    bytes[2000] = change;
    bytes
}

pub(super) fn write(ptr: PagePtr, slot: PageSlot, bytes: &[u8]) -> PageWrite {
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
pub(super) async fn change_all(
    store: &TestStore,
    pages: &[PagePtr],
    slot: PageSlot,
    change: u8,
) -> PageSlot {
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

pub(super) async fn assert_all(store: &TestStore, pages: &[PagePtr], change: u8) {
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

/// Pages of a large block with one byte throughout.
pub(super) fn contents(first: PagePtr, byte: u8, pages: usize) -> Commit {
    let range = RangeWrite {
        first,
        data: filled(byte, pages * 8192),
    };
    Commit {
        ranges: vec![range],
        ..Commit::default()
    }
}

pub(super) async fn durably(store: &TestStore, commit: &Commit) {
    let committed = store.commit(commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
}

#[test]
fn contents_that_come_where_nothing_is_are_written_once() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        in_place(&platform).await;
        let before = (disk.counts(), engine.counters().data_writes.get());
        durably(&store, &contents(block, 1, 3)).await;
        assert_eq!(disk.counts().flushes - before.0.flushes, 1);
        in_place(&platform).await;
        let written = engine.counters().data_writes.get() - before.1;
        assert_eq!(written, 1 + 1, "three pages as one piece, and a frame");
        // There is something now: a few pages go to the log first, and then to their place with its header.
        durably(&store, &contents(block, 2, 2)).await;
        in_place(&platform).await;
        let more = engine.counters().data_writes.get() - before.1 - written;
        assert_eq!(more, 1 + 2 + 1, "a frame; two pages and the header");
        for (page, byte) in [(0, 2), (1, 2), (2, 1), (3, 0)] {
            assert_eq!(
                byte_of(&store, block.with_page(block.page + page)).await,
                byte
            );
        }
    });
}

/// A block is freed, taken again and written to, while what was in it before may still have to be emptied: by what
/// is in the log, on its way or being put in its place, so long after.
fn taken_again(after_ns: Option<u64>) {
    let disk = new_disk();
    let world = World::new(after_ns.unwrap_or(1));
    let (platform, on) = (world.platform(0), disk.clone());
    let again = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let mut blocks = Vec::new();
        for _ in 0..20 {
            blocks.push(allocate(&store, LARGE, ALICE).await);
        }
        durably(&store, &contents(blocks[7].0, 1, 8)).await;
        in_place(&platform).await;
        let free = Commit {
            frees: vec![blocks[7]],
            ..Commit::default()
        };
        let freed = store.commit(&free).await.expect("commits");
        if let Some(after_ns) = after_ns {
            store.wait(freed.ticket).await.expect("is durable");
            platform.sleep_ns(after_ns).await;
        }
        let claim = store.claim(LARGE, BOB).await.expect("has one free block");
        assert_eq!(claim.ptr.0.page, blocks[7].0.page);
        let commit = Commit {
            allocates: vec![claim.ptr],
            ..contents(claim.ptr.0, 2, 3)
        };
        durably(&store, &commit).await;
        claim.ptr.0
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(2);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let store = opened(&platform, &disk).await.1.expect("opens");
        for (page, byte) in [(0, 2), (2, 2), (3, 0), (7, 0)] {
            let ptr = again.with_page(again.page + page);
            assert_eq!(
                byte_of(&store, ptr).await,
                byte,
                "page {page}, {after_ns:?}"
            );
        }
    });
}

#[test]
fn a_block_that_is_freed_and_taken_again_has_its_new_contents() {
    taken_again(None);
    // It is put in its place after 100 ms.
    let around = (99_000_000..103_000_000).step_by(50_000);
    for after_ns in [0, 1_000_000].into_iter().chain(around) {
        taken_again(Some(after_ns));
    }
}

/// What is written over contents that are on their way is newer than what arrives.
#[test]
fn contents_that_are_on_their_way_can_be_written_over() {
    let disk = new_disk();
    let world = World::new(4);
    let (platform, on) = (world.platform(0), disk.clone());
    let block = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        in_place(&platform).await;
        let first = store.commit(&contents(block, 1, 3)).await.expect("commits");
        platform.sleep_ns(1_000).await;
        let second = store.commit(&contents(block, 2, 2)).await.expect("commits");
        store.wait(first.ticket).await.expect("is durable");
        assert_ne!(first.ticket, second.ticket, "it was on its way");
        assert_eq!(byte_of(&store, block).await, 2);
        assert_eq!(byte_of(&store, block.with_page(block.page + 2)).await, 1);
        store.wait(second.ticket).await.expect("is durable");
        block
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let store = opened(&platform, &disk).await.1.expect("opens");
        for (page, byte) in [(0, 2), (1, 2), (2, 1), (3, 0)] {
            let ptr = block.with_page(block.page + page);
            assert_eq!(byte_of(&store, ptr).await, byte, "page {page}");
        }
    });
}

/// Contents that can't be written to where nothing was are not there afterwards either.
#[test]
fn contents_that_are_lost_leave_nothing_where_nothing_was() {
    let (world, disk) = (World::new(3), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        in_place(&platform).await;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::New,
        };
        disk.inject(
            Injection::next(failing)
                .only(IoKind::Write)
                .within(DATA)
                .times(60),
        );
        let committed = store.commit(&contents(block, 1, 3)).await.expect("commits");
        assert_eq!(byte_of(&store, block).await, 1, "seen before it is durable");
        let lost = store.wait(committed.ticket).await;
        assert_eq!(lost, Err(StoreError::Lost));
        disk.clear_injections();
        assert_eq!(byte_of(&store, block).await, 0);
        durably(&store, &contents(block.with_page(block.page + 1), 2, 1)).await;
        for (page, byte) in [(0, 0), (1, 2), (2, 0)] {
            assert_eq!(
                byte_of(&store, block.with_page(block.page + page)).await,
                byte
            );
        }
        store.stop().await;
    });
}

/// Other contents are not worth being written twice, if they are many.
#[test]
fn a_group_with_much_content_is_written_once() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin(&platform, &disk).await;
        let pages = pages(&store).await;
        change_all(&store, &pages, PageSlot(0), 0).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        durably(&store, &contents(block, 1, 8)).await;
        in_place(&platform).await;
        let before = disk.counts().written_bytes;
        durably(&store, &contents(block, 2, 8)).await;
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

pub(super) async fn opened(
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
pub(super) async fn last_frame(engine: &Engine<SimPlatform>, log: Handle, size_bytes: u64) -> u64 {
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

/// Whoever comes while the log can take nothing and can't be emptied is told so; what was committed before waits, and
/// happens.
#[test]
fn a_log_that_can_not_be_emptied_refuses_commits() {
    let (world, disk) = (World::new(9), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_, store) = begin(&platform, &disk).await;
        let pages = pages(&store).await;
        let slot = change_all(&store, &pages, PageSlot(0), 1).await;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        disk.inject(
            Injection::next(failing)
                .only(IoKind::Write)
                .within(DATA)
                .times(1_000_000),
        );
        in_place(&platform).await;
        let counters = store.counters();
        assert!(counters.put_in_place_failed >= 5, "{counters:?}");
        assert!(counters.log_used_bytes > 0 && counters.log_used_bytes < counters.log_bytes);
        let commit = async |slot, change| {
            let one = Commit {
                writes: vec![write(pages[0], slot, &page(0, change))],
                ..Commit::default()
            };
            let committed = store.commit(&one).await;
            platform.sleep_ns(1_000).await;
            committed
        };
        // This one is lost; the log is closed until it has been emptied.
        let lost = commit(slot, 2).await.expect("commits");
        assert_eq!(store.wait(lost.ticket).await, Err(StoreError::Lost));
        let waits = commit(slot, 3).await.expect("commits");
        let refused = commit(waits.slot, 4).await;
        assert_eq!(refused, Err(CommitError::Store(StoreError::Stuck)));
        disk.clear_injections();
        store.wait(waits.ticket).await.expect("is durable");
        change_all(&store, &pages[1..], slot, 5).await;
        let read = store.read(pages[0]).await.expect("readable");
        assert_eq!(read.data[2000], 3);
        in_place(&platform).await;
        let counters = store.counters();
        assert_eq!(
            (counters.groups_lost, counters.log_used_bytes),
            (1, 0),
            "{counters:?}"
        );
        assert!(
            counters.put_in_place >= 2 && counters.groups >= 4,
            "{counters:?}"
        );
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
