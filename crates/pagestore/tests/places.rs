//! In which order changes come to their place: groups that go there directly, what could not be put there at once, and what
//! was lost.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_pagestore::{
    Commit, CommitError, PagePtr, PageSlot, PageWrite, RangeWrite, StoreError,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World, WriteErrorLeaves};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;

/// A life that ends with a power loss.
fn life<T: 'static>(
    disk: &SimDisk,
    live: impl AsyncFnOnce(SimPlatform, SimDisk) -> T + 'static,
) -> T {
    let world = World::new(71);
    let (platform, on) = (world.platform(0), disk.clone());
    let left = world.block_on(0, async move { live(platform, on).await });
    disk.power_loss(&mut world.crash());
    left
}

async fn reopened(platform: &SimPlatform, disk: &SimDisk) -> TestStore {
    let engine = open_engine(platform, disk).await;
    open_store(platform, &engine, 0).await
}

fn fail_writes(disk: &SimDisk, times: u64) {
    let failing = Fault::WriteError {
        leaves: WriteErrorLeaves::Old,
    };
    let writes = Injection::next(failing).only(IoKind::Write);
    disk.inject(writes.within(DATA).times(times));
}

async fn durably(store: &TestStore, commit: &Commit) -> PageSlot {
    let committed = store.commit(commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
    committed.slot
}

/// A page of bytes that have nothing in common, but for one, each time another one: a frame has what differs.
fn alike(byte: u8) -> IoBuf {
    let mut rng = Rng::new(5);
    let words = (0..512).flat_map(|_| rng.next_u64().to_le_bytes());
    let mut data: Vec<u8> = words.collect();
    data[50 * usize::from(byte)] ^= 0xff;
    IoBuf::copy_of(&data)
}

fn write(ptr: PagePtr, slot: PageSlot, byte: u8) -> Commit {
    let data = alike(byte);
    Commit {
        writes: vec![PageWrite { ptr, slot, data }],
        ..Commit::default()
    }
}

/// Contents of these blocks: more than are worth writing twice.
fn contents(blocks: &[PagePtr], byte: u8) -> Commit {
    let range = |first: &PagePtr| RangeWrite {
        first: *first,
        data: filled(byte, 64 << 10),
    };
    Commit {
        ranges: blocks.iter().map(range).collect(),
        ..Commit::default()
    }
}

/// A page, and two blocks with contents in their place.
async fn prepared(platform: &SimPlatform, store: &TestStore) -> (PagePtr, Vec<PagePtr>) {
    let page = allocate(store, SMALL, ALICE).await.0;
    let mut blocks = Vec::new();
    for _ in 0..2 {
        blocks.push(allocate(store, LARGE, ALICE).await.0);
    }
    durably(store, &contents(&blocks, 1)).await;
    in_place(platform).await;
    (page, blocks)
}

async fn check(store: &TestStore, page: PagePtr, blocks: &[PagePtr], byte: u8) {
    let read = store.read(page).await.expect("readable");
    assert!(read.data[..] == alike(byte)[..], "change {byte}");
    for block in blocks {
        assert_eq!(byte_of(store, *block).await, byte);
    }
}

/// Whose group goes to its place directly changes a page of which the log has an older version. The power fails at once.
#[test]
fn what_goes_to_its_place_directly_is_newer_than_what_the_log_has() {
    let disk = new_disk();
    let (page, blocks) = life(&disk, async |platform, disk| {
        let (_, store) = begin(&platform, &disk).await;
        let (page, blocks) = prepared(&platform, &store).await;
        let slot = durably(&store, &write(page, PageSlot(0), 1)).await;
        assert!(store.counters().log_used_bytes > 0);
        let commit = Commit {
            ranges: contents(&blocks, 2).ranges,
            ..write(page, slot, 2)
        };
        durably(&store, &commit).await;
        assert_eq!(store.counters().log_used_bytes, 0, "not through the log");
        (page, blocks)
    });
    life(&disk, async move |platform, disk| {
        let store = reopened(&platform, &disk).await;
        check(&store, page, &blocks, 2).await;
    });
}

/// The log's version of a page could not be put in its place and waits for another try: nothing newer may be there before it.
#[test]
fn nothing_goes_to_its_place_before_what_is_being_put_there() {
    let disk = new_disk();
    let (page, blocks) = life(&disk, async |platform, disk| {
        let (_, store) = begin(&platform, &disk).await;
        let (page, blocks) = prepared(&platform, &store).await;
        let slot = durably(&store, &write(page, PageSlot(0), 1)).await;
        fail_writes(&disk, 1_000_000);
        // The pause is some milliseconds by then.
        while store.counters().put_in_place_failed < 3 {
            platform.sleep_ns(100_000).await;
        }
        disk.clear_injections();
        let commit = Commit {
            ranges: contents(&blocks, 2).ranges,
            ..write(page, slot, 2)
        };
        durably(&store, &commit).await;
        check(&store, page, &blocks, 2).await;
        in_place(&platform).await;
        check(&store, page, &blocks, 2).await;
        (page, blocks)
    });
    life(&disk, async move |platform, disk| {
        let store = reopened(&platform, &disk).await;
        check(&store, page, &blocks, 2).await;
    });
}

/// Two groups change a page and are lost. What comes then is made out of what the page was before them.
#[test]
fn a_frame_is_not_made_out_of_what_was_lost() {
    let disk = new_disk();
    let page = life(&disk, async |platform, disk| {
        let (_, store) = begin(&platform, &disk).await;
        let (page, _) = prepared(&platform, &store).await;
        let kept = durably(&store, &write(page, PageSlot(0), 1)).await;
        fail_writes(&disk, 2);
        let first = store.commit(&write(page, kept, 2)).await.expect("commits");
        platform.sleep_ns(1_000).await;
        let second = write(page, first.slot, 3);
        let second = store.commit(&second).await.expect("commits");
        assert_ne!(first.ticket, second.ticket, "two groups");
        for lost in [first.ticket, second.ticket] {
            assert_eq!(store.wait(lost).await, Err(StoreError::Lost));
        }
        // Without a condition, so nothing is noted of what the page was.
        let range = RangeWrite {
            first: page,
            data: alike(4),
        };
        let commit = Commit {
            ranges: vec![range],
            ..Commit::default()
        };
        durably(&store, &commit).await;
        page
    });
    life(&disk, async move |platform, disk| {
        let store = reopened(&platform, &disk).await;
        check(&store, page, &[], 4).await;
    });
}

/// A device that took nothing for a while takes it again: nobody is told that the log is stuck.
#[test]
fn a_log_that_was_stuck_takes_commits_again() {
    let disk = new_disk();
    life(&disk, async |platform, disk| {
        let (_, store) = begin(&platform, &disk).await;
        let (page, blocks) = prepared(&platform, &store).await;
        let mut slot = durably(&store, &write(page, PageSlot(0), 1)).await;
        fail_writes(&disk, 1_000_000);
        while store.counters().put_in_place_failed < 8 {
            platform.sleep_ns(100_000).await;
        }
        disk.clear_injections();
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(store.counters().log_used_bytes, 0);
        let before = store.counters().put_in_place;
        // What is put in its place takes long, so the next group waits for that, and whoever commits joins it.
        slot = durably(&store, &write(page, slot, 2)).await;
        let slow = Injection::next(Fault::Delay { ns: 50_000_000 });
        disk.inject(slow.only(IoKind::Write).within(DATA));
        platform.sleep_ns(110_000_000).await;
        store.commit(&contents(&blocks, 3)).await.expect("commits");
        platform.sleep_ns(1_000_000).await;
        assert_eq!(store.counters().put_in_place, before, "it takes long");
        durably(&store, &write(page, slot, 3)).await;
        check(&store, page, &blocks, 3).await;
    });
}

/// A commit looks up two pages, and the device takes long to say of the second what it has. Meanwhile the first gets another
/// version, which is in its place when the commit is decided: what was looked up of it is of the past.
#[test]
fn what_was_looked_up_before_something_newer_was_in_its_place_is_looked_up_again() {
    for is_placed_at_once in [false, true] {
        let disk = new_disk();
        let (page, other) = life(&disk, async |platform, disk| {
            let (engine, store) = begin(&platform, &disk).await;
            let (page, blocks) = prepared(&platform, &store).await;
            durably(&store, &write(page, PageSlot(0), 1)).await;
            store.stop().await;
            engine.stop().await.expect("stops");
            (page, blocks[0])
        });
        life(&disk, async move |platform, disk| {
            let store = reopened(&platform, &disk).await;
            // A page with contents, or one without, whose first ones go to their place beside their frame.
            let page = page.with_page(page.page + u64::from(is_placed_at_once));
            let slot = store.read(page).await.expect("readable").slot;
            let slow = Injection::next(Fault::Delay { ns: 900_000_000 });
            disk.inject(slow.only(IoKind::Read).within(DATA));
            let late = Commit {
                ranges: contents(&[other], 9).ranges,
                ..write(page, slot, 9)
            };
            let (on, done) = (store.clone(), Rc::new(Cell::new(None)));
            let is_done = done.clone();
            platform.spawn(async move {
                is_done.set(Some(on.commit(&late).await.map(drop)));
            });
            platform.sleep_ns(1_000_000).await;
            let newer = match is_placed_at_once {
                true => Commit {
                    ranges: vec![RangeWrite {
                        first: page,
                        data: alike(2),
                    }],
                    ..Commit::default()
                },
                false => write(page, slot, 2),
            };
            durably(&store, &newer).await;
            if !is_placed_at_once {
                in_place(&platform).await;
            }
            assert_eq!(done.get(), None, "it is still looking");
            platform.sleep_ns(1_000_000_000).await;
            assert_eq!(done.get(), Some(Err(CommitError::Conflict(page))));
            check(&store, page, &[], 2).await;
        });
    }
}
