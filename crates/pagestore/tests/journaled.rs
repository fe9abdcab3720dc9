//! Commits alone: their frames are in the device's journal and nowhere else, and take no block of the log.

use crate::log::*;
use crate::support::*;

use flagstone_pagestore::{Commit, PagePtr, PageSlot, StoreError};
use flagstone_sim::{Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World, WriteErrorLeaves};

/// What somebody may be told of how a commit became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    writes: u64,
    flushes: u64,
    groups: u64,
    journaled: u64,
}

/// One transfer.
const ALONE: Cost = Cost {
    writes: 1,
    flushes: 1,
    groups: 1,
    journaled: 1,
};

async fn cost(disk: &SimDisk, store: &TestStore, work: impl AsyncFnOnce()) -> Cost {
    let before = (disk.counts(), store.counters());
    work().await;
    let after = (disk.counts(), store.counters());
    Cost {
        writes: after.0.writes - before.0.writes,
        flushes: after.0.flushes - before.0.flushes,
        groups: after.1.groups - before.1.groups,
        journaled: after.1.groups_journaled - before.1.groups_journaled,
    }
}

/// The four pages of a block, written once, which is so little that it goes to the journal. All is in its place.
async fn four_pages(platform: &SimPlatform, store: &TestStore) -> (Vec<PagePtr>, PageSlot) {
    let block = allocate(store, SMALL, ALICE).await.0;
    let pages: Vec<PagePtr> = (0..4).map(|n| block.with_page(block.page + n)).collect();
    let slot = change_all(store, &pages, PageSlot(0), 0).await;
    in_place(platform).await;
    // A frame has what has changed of a page that is in memory.
    assert_all(store, &pages, 0).await;
    (pages, slot)
}

/// What a change of four pages costs where frames of up to so many bytes go to the journal.
fn cost_with(journaled_bytes: usize) -> Cost {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_, store) = begin_journaling_up_to(&platform, &disk, journaled_bytes).await;
        let (pages, slot) = four_pages(&platform, &store).await;
        let change = async || {
            change_all(&store, &pages, slot, 1).await;
        };
        let cost = cost(&disk, &store, change).await;
        assert_all(&store, &pages, 1).await;
        cost
    })
}

#[test]
fn a_commit_alone_is_one_transfer() {
    assert_eq!(cost_with(32 << 10), ALONE);
    // A block of the log as well.
    let in_log = Cost {
        writes: 2,
        journaled: 0,
        ..ALONE
    };
    for journaled_bytes in [0, 150] {
        assert_eq!(cost_with(journaled_bytes), in_log, "{journaled_bytes}");
    }
}

/// Nobody takes a snapshot of the log, but if one was taken the device takes no such data, and commits go on as they did before there was any.
#[test]
fn a_log_with_a_snapshot_is_written_to_its_own_blocks() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin_journaling(&platform, &disk).await;
        let mut dvols = engine.dvols().into_iter();
        let log = dvols.find(|dvol| dvol.name == ".pagestore-log");
        let log = log.expect("is there").handle;
        let taken = engine.snapshot(&[(log, "monday".into())]).await;
        taken.expect("takes one");
        let (pages, slot) = four_pages(&platform, &store).await;
        let change = async || {
            change_all(&store, &pages, slot, 1).await;
        };
        let cost = cost(&disk, &store, change).await;
        assert_eq!((cost.writes, cost.groups), (2, 1));
        assert_eq!(store.counters().groups_lost, 0);
        assert_all(&store, &pages, 1).await;
    });
}

#[test]
fn two_commits_in_a_group_are_not_alone() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_, store) = begin_journaling(&platform, &disk).await;
        let (pages, slot) = four_pages(&platform, &store).await;
        let both = async || {
            let mut tickets = Vec::new();
            for (number, ptr) in (0..).zip(&pages[..2]) {
                let bytes = page(number, 1);
                let commit = Commit {
                    writes: vec![write(*ptr, slot, &bytes)],
                    ..Commit::default()
                };
                tickets.push(store.commit(&commit).await.expect("commits").ticket);
            }
            assert_eq!(tickets[0], tickets[1], "one group");
            store.wait(tickets[1]).await.expect("is durable");
        };
        let cost = cost(&disk, &store, both).await;
        assert!(cost.writes > 1, "{cost:?}");
        assert_eq!((cost.groups, cost.journaled), (1, 0));
        assert_all(&store, &pages[..2], 1).await;
    });
}

/// Bytes of the frame that `cost_with` has made, without those up to the end of its last block.
fn frame_len() -> usize {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, store) = begin(&platform, &disk).await;
        let (pages, slot) = four_pages(&platform, &store).await;
        change_all(&store, &pages, slot, 1).await;
        let log = engine.dvol(LOG).expect("is there");
        let at = last_frame(&engine, log.handle, log.size_bytes).await;
        let read = engine.read(log.handle, at, 4096).await;
        let head = bytes_of(read.expect("readable"));
        // Behind the head.
        32 + u64::from_le_bytes(head[16..24].try_into().expect("eight")) as usize
    })
}

#[test]
fn a_frame_of_as_many_bytes_as_may_be_is_in_the_journal_and_none_that_is_longer() {
    let len = frame_len();
    assert!(len > 150 && len < 4096, "{len}");
    assert_eq!(cost_with(len), ALONE);
    assert_eq!(cost_with(len - 1).journaled, 0);
}

/// A block that is taken and filled in one commit that is alone: what that costs, and bytes of its frame in whole blocks. It is there
/// after a crash.
fn filled_at_once(pages: usize) -> (Cost, u64) {
    let disk = new_disk();
    let world = World::new(2);
    let (platform, on) = (world.platform(0), disk.clone());
    let (block, cost) = world.block_on(0, async move {
        let (_, store) = begin_journaling(&platform, &on).await;
        // The extent has its room then.
        allocate(&store, LARGE, ALICE).await;
        in_place(&platform).await;
        let claim = store.claim(LARGE, BOB).await.expect("has a free block");
        let block = claim.ptr.0;
        let commit = Commit {
            allocates: vec![claim.ptr],
            ..contents(block, 9, pages)
        };
        let work = async || durably(&store, &commit).await;
        let cost = cost(&on, &store, work).await;
        (block, (cost, store.counters().log_used_bytes))
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let store = opened(&platform, &disk).await.1.expect("opens");
        for page in 0..8 {
            let ptr = block.with_page(block.page + page);
            let expected = if page < pages as u64 { 9 } else { 0 };
            assert_eq!(byte_of(&store, ptr).await, expected, "page {page}");
        }
    });
    cost
}

/// The bound is 24 KiB: three pages.
#[test]
fn a_small_file_where_nothing_was_is_one_transfer_and_more_goes_beside_the_frame() {
    for pages in 1..=3 {
        let frame = pages as u64 * 8192 + 4096;
        assert_eq!(filled_at_once(pages), (ALONE, frame), "{pages} pages");
    }
    // The contents and the frame, which lie side by side, and the journal.
    for pages in [4, 8] {
        let beside = Cost {
            writes: 2,
            journaled: 0,
            ..ALONE
        };
        assert_eq!(filled_at_once(pages), (beside, 4096), "{pages} pages");
    }
}

#[test]
fn what_was_put_in_its_place_takes_no_block_of_the_log() {
    let disk = new_disk();
    let world = World::new(4);
    let (platform, on) = (world.platform(0), disk.clone());
    let pages = world.block_on(0, async move {
        let (engine, store) = begin_journaling(&platform, &on).await;
        let (pages, mut slot) = four_pages(&platform, &store).await;
        let before = store.counters().groups_journaled;
        for change in 1..=20 {
            slot = change_all(&store, &pages, slot, change).await;
        }
        in_place(&platform).await;
        let counters = store.counters();
        assert_eq!(counters.groups_journaled - before, 20);
        assert_eq!(counters.log_used_bytes, 0, "all is in its place");
        engine.checkpoint().await.expect("takes one");
        let mapped_bytes = || engine.dvol(LOG).expect("is there").mapped_bytes;
        assert_eq!(mapped_bytes(), 4096, "the header");
        assert_all(&store, &pages, 20).await;
        // What is not in its place has to be somewhere when the journal before a checkpoint is written over.
        for change in 21..=23 {
            slot = change_all(&store, &pages, slot, change).await;
        }
        engine.checkpoint().await.expect("takes one");
        assert_eq!(mapped_bytes(), 4 * 4096, "three frames");
        change_all(&store, &pages, slot, 24).await;
        pages
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let store = opened(&platform, &disk).await.1.expect("opens");
        assert_all(&store, &pages, 24).await;
    });
}

/// A group whose data could not be written though it is all there is taken back by the journal. Whoever is told that it is lost
/// must not find it after a crash.
#[test]
fn what_was_said_to_be_lost_does_not_come_back() {
    let disk = new_disk();
    let world = World::new(6);
    let (platform, on) = (world.platform(0), disk.clone());
    let pages = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let (pages, slot) = four_pages(&platform, &store).await;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::New,
        };
        let failing = Injection::next(failing).only(IoKind::Write);
        on.inject(failing.within(DATA).times(2));
        let writes = pages.iter().enumerate();
        let commit = Commit {
            writes: writes
                .map(|(n, ptr)| write(*ptr, slot, &page(n as u8, 1)))
                .collect(),
            ..Commit::default()
        };
        let committed = store.commit(&commit).await.expect("commits");
        let lost = store.wait(committed.ticket).await;
        assert_eq!(lost, Err(StoreError::Lost));
        assert_eq!(on.fault_log().len(), 2, "tried twice");
        pages
    });
    let _ = world.crash();
    for seed in 0..60 {
        let disk = disk.after_power_loss(&mut Rng::new(seed));
        let world = World::new(100 + seed);
        let (platform, pages) = (world.platform(0), pages.clone());
        world.block_on(0, async move {
            let store = opened(&platform, &disk).await.1.expect("opens");
            for (number, ptr) in pages.iter().enumerate() {
                let read = store.read(*ptr).await.expect("readable");
                let is_old = read.data[..] == page(number as u8, 0)[..];
                assert!(is_old, "seed {seed}: page {number} is what was lost");
            }
        });
    }
}
