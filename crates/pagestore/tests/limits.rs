//! Limits: what one commit, one group, the log and the space that was set aside can take, and what a stop waits for.

use crate::support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_device::engine::{CreateDvol, Engine, Handle, Stability};
use flagstone_pagestore::{
    BlockPtr, Commit, CommitError, ExtentId, Generation, Geometry, PagePtr, PageSlot, RangeWrite,
    StoreError, StoreOptions,
};
use flagstone_platform::Platform;
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves,
};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;
/// An extent whose blocks have one page.
const NARROW: ExtentId = ExtentId(60);

fn in_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimDisk) -> F + 'static,
) {
    let world = World::new(43);
    let (platform, disk) = (world.platform(0), new_disk());
    world.block_on(0, test(platform, disk));
}

async fn create_narrow(store: &TestStore, blocks: u64) {
    let geometry = Geometry::new(4096, 4096, blocks).expect("a shape");
    let created = store.create_extent(NARROW, geometry).await;
    created.expect("creates");
}

fn narrow(block: u64) -> BlockPtr {
    BlockPtr(PagePtr {
        extent: NARROW,
        page: block,
        owner: ALICE,
        generation: Generation(1),
        read_only: false,
    })
}

fn one(range: RangeWrite) -> Commit {
    Commit {
        ranges: vec![range],
        ..Commit::default()
    }
}

/// As many clients, each of which waits until its commit is durable. A group is on its way, so the next ones have them all.
async fn all_at_once(platform: &SimPlatform, store: &TestStore, commits: &[Commit]) {
    let claim = store.claim(SMALL, BOB).await.expect("has a free block");
    let first = Commit {
        allocates: vec![claim.ptr],
        ..Commit::default()
    };
    store.commit(&first).await.expect("commits");
    platform.sleep_ns(1_000).await;
    let done = Rc::new(Cell::new(0));
    for commit in commits {
        let (store, done, commit) = (store.clone(), done.clone(), commit.clone());
        platform.spawn(async move {
            durably(&store, &commit).await;
            done.set(done.get() + 1);
        });
    }
    while done.get() < commits.len() {
        platform.sleep_ns(100_000).await;
    }
}

async fn durably(store: &TestStore, commit: &Commit) {
    let committed = store.commit(commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
}

#[test]
fn a_commit_has_no_more_bytes_than_a_group() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        // On such a device a group has 512 KiB.
        let mut commit = Commit::default();
        for _ in 0..9 {
            commit.ranges.push(RangeWrite {
                first: allocate(&store, LARGE, ALICE).await.0,
                data: filled(1, 64 << 10),
            });
        }
        let refused = store.commit(&commit).await;
        assert!(
            matches!(refused, Err(CommitError::Invalid(_))),
            "{refused:?}"
        );
        let first = commit.ranges[0].first;
        assert_eq!(byte_of(&store, first).await, 0);
        let last = commit.ranges.pop();
        durably(&store, &commit).await;
        assert_eq!(byte_of(&store, first).await, 1);
        // Nor has a group more than that of several commits.
        let groups = store.counters().groups;
        let ranges = commit.ranges.into_iter().chain(last);
        let commits: Vec<Commit> = ranges.cycle().take(27).map(one).collect();
        all_at_once(&platform, &store, &commits).await;
        assert_eq!(store.counters().groups - groups, 1 + 27_u64.div_ceil(8));
    });
}

/// Each freed block that isn't beside another one is a change of the device, of which a batch has 1,024 at most: neither a group
/// nor what the log has may have more.
#[test]
fn what_is_put_in_its_place_at_once_is_what_a_batch_of_the_device_takes() {
    let world = World::new(43);
    let platform = world.platform(0);
    // On a small one much less is put in its place at once.
    let disk = SimDisk::new(DiskConfig::new(2048 * MIB));
    world.block_on(0, async move {
        let (_, store) = begin(&platform, &disk).await;
        let count = 3000;
        create_narrow(&store, count).await;
        let blocks: Vec<BlockPtr> = (0..count).map(narrow).collect();
        for part in blocks.chunks(15) {
            let commit = Commit {
                allocates: part.to_vec(),
                ..Commit::default()
            };
            store.commit(&commit).await.expect("commits");
        }
        in_place(&platform).await;
        // Every second one: some in a group that is in the log, then all others at once.
        let freed: Vec<BlockPtr> = blocks.into_iter().step_by(2).collect();
        let commits: Vec<Commit> = freed
            .chunks(15)
            .map(|part| Commit {
                frees: part.to_vec(),
                ..Commit::default()
            })
            .collect();
        let (first, others) = commits.split_at(22);
        for commits in [first, others] {
            all_at_once(&platform, &store, commits).await;
        }
        in_place(&platform).await;
        let counters = store.counters();
        assert_eq!(counters.put_in_place_failed, 0, "{counters:?}");
        assert_eq!(
            (counters.groups_lost, counters.log_used_bytes),
            (0, 0),
            "{counters:?}"
        );
        let left = store.allocated_blocks(NARROW).await;
        assert_eq!(left, Ok(count - freed.len() as u64));
    });
}

/// Takes all that the device has.
async fn take_all(engine: &Engine<SimPlatform>) {
    let glutton = CreateDvol {
        name: "glutton".into(),
        id: None,
        size_bytes: 1 << 30,
        reserved_bytes: 0,
    };
    let glutton = engine.create(glutton).await.expect("creates");
    let mut at = 0;
    for piece in [256 << 10, 4096] {
        loop {
            let data = filled(7, piece);
            let done = engine.write(glutton, at, data, Stability::Stable).await;
            if done.is_err() {
                break;
            }
            at += piece as u64;
        }
    }
}

/// The first entry in a page of the table takes a block of the device for it: what is set aside is enough for that, or
/// the commit is refused.
#[test]
fn a_page_of_the_table_takes_its_space() {
    for is_written in [false, true] {
        in_world(move |platform, disk| async move {
            let (engine, store) = begin(&platform, &disk).await;
            create_narrow(&store, 600).await;
            // 256 blocks of the device were set aside: one is left.
            for block in 0..254 {
                let commit = Commit {
                    allocates: vec![narrow(block)],
                    writes: vec![page_write(narrow(block).0, PageSlot(0), 1, 4096)],
                    ..Commit::default()
                };
                store.commit(&commit).await.expect("commits");
            }
            in_place(&platform).await;
            take_all(&engine).await;
            let mut commit = Commit {
                allocates: vec![narrow(256)],
                ..Commit::default()
            };
            if is_written {
                commit.writes = vec![page_write(narrow(256).0, PageSlot(0), 1, 4096)];
            }
            let done = store.commit(&commit).await;
            if is_written {
                assert_eq!(done, Err(CommitError::Store(StoreError::NoSpace)));
                return;
            }
            let ticket = done.expect("one is left").ticket;
            assert_eq!(store.wait(ticket).await, Ok(()));
            let write = Commit {
                writes: vec![page_write(narrow(256).0, PageSlot(0), 1, 4096)],
                ..Commit::default()
            };
            let refused = store.commit(&write).await;
            assert_eq!(refused, Err(CommitError::Store(StoreError::NoSpace)));
        });
    }
}

/// A page in a block of its own.
fn take(block: u64) -> Commit {
    Commit {
        allocates: vec![narrow(block)],
        writes: vec![page_write(narrow(block).0, PageSlot(0), 1, 4096)],
        ..Commit::default()
    }
}

/// All that was set aside for an extent is in use, and the device is full but for a dvol that can be deleted.
async fn full_extent(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
    store: &TestStore,
) -> Handle {
    create_narrow(store, 600).await;
    for block in 0..255 {
        store.commit(&take(block)).await.expect("commits");
    }
    in_place(platform).await;
    let crumb = CreateDvol {
        name: "crumb".into(),
        id: None,
        size_bytes: 1 << 20,
        reserved_bytes: 0,
    };
    let crumb = engine.create(crumb).await.expect("creates");
    let data = filled(7, 128 << 10);
    let written = engine.write(crumb, 0, data, Stability::Stable).await;
    written.expect("has room");
    take_all(engine).await;
    let refused = store.commit(&take(255)).await;
    assert_eq!(refused, Err(CommitError::Store(StoreError::NoSpace)));
    crumb
}

/// Space is set aside ahead of need, but if there is less, just enough.
#[test]
fn a_device_with_little_room_is_filled() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let crumb = full_extent(&platform, &engine, &store).await;
        engine.delete(crumb, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        durably(&store, &take(255)).await;
    });
}

/// On a full device a commit has the room that a freed block gives back, though that isn't in its place yet.
#[test]
fn what_was_freed_has_room_for_what_comes_next() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        full_extent(&platform, &engine, &store).await;
        let freed = Commit {
            frees: (0..10).map(narrow).collect(),
            ..Commit::default()
        };
        store.commit(&freed).await.expect("commits");
        durably(&store, &take(255)).await;
    });
}

/// However many places are changed at a time: on a full device the batch that puts them in their place has as much room as its map's nodes may need.
#[test]
fn many_places_at_once_are_changed_on_a_full_device() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        full_extent(&platform, &engine, &store).await;
        let apart = || (0..255).step_by(2);
        for byte in 2..5 {
            let fill = |block| RangeWrite {
                first: narrow(block).0,
                data: filled(byte, 4096),
            };
            let commits: Vec<Commit> = apart().map(fill).map(one).collect();
            all_at_once(&platform, &store, &commits).await;
            in_place(&platform).await;
        }
        for block in apart() {
            assert_eq!(byte_of(&store, narrow(block).0).await, 4);
        }
        let free = |block| Commit {
            frees: vec![narrow(block)],
            ..Commit::default()
        };
        let commits: Vec<Commit> = apart().map(free).collect();
        all_at_once(&platform, &store, &commits).await;
        in_place(&platform).await;
        let counters = store.counters();
        assert_eq!(counters.put_in_place_failed, 0);
        assert_eq!(counters.groups_lost, 0);
    });
}

/// What a page is on the device is looked up before space is set aside for a commit, which takes a while; others change the page
/// meanwhile, and nothing in memory says so any more.
#[test]
fn a_page_that_changes_while_space_is_set_aside_is_another_one() {
    let mut changed = 0;
    for seed in 0..24 {
        let world = World::new(seed);
        let (platform, disk) = (world.platform(0), new_disk());
        changed += u32::from(!world.block_on(0, race_for_a_page(platform, disk, seed % 6)));
    }
    assert!(changed > 12, "{changed}");
}

/// One commit that space has to be set aside for and one that needs none replace the same version of a page. Whether the first
/// one did.
async fn race_for_a_page(platform: SimPlatform, disk: SimDisk, rounds: u64) -> bool {
    format(&platform, &disk).await;
    let engine = open_engine(&platform, &disk).await;
    let options = StoreOptions {
        injected_one_in: 0,
        recent_bytes: 0,
        log_bytes: 0,
        journaled_bytes: 0,
    };
    let store = open_with(&platform, &engine, options).await;
    for (id, geometry) in [(SMALL, small()), (LARGE, large())] {
        store.create_extent(id, geometry).await.expect("creates");
    }
    let page = allocate(&store, SMALL, ALICE).await.0;
    let replace = |slot, byte| Commit {
        writes: vec![page_write(page, slot, byte, 4096)],
        ..Commit::default()
    };
    durably(&store, &replace(PageSlot(0), 1)).await;
    let slot = store.read(page).await.expect("readable").slot;
    let fill = |first: PagePtr| RangeWrite {
        first,
        data: filled(9, 64 << 10),
    };
    // Of the mebibyte that is set aside at first 640 KiB.
    for _ in 0..10 {
        let block = allocate(&store, LARGE, ALICE).await;
        let commit = Commit {
            ranges: vec![fill(block.0)],
            ..Commit::default()
        };
        durably(&store, &commit).await;
    }
    let mut large = replace(slot, 2);
    let mut claims = Vec::new();
    for _ in 0..7 {
        let claim = store.claim(LARGE, ALICE).await.expect("has a free block");
        large.allocates.push(claim.ptr);
        large.ranges.push(fill(claim.ptr.0));
        claims.push(claim);
    }
    let done = Rc::new(RefCell::new(None));
    let (task, result) = (store.clone(), done.clone());
    platform.spawn(async move {
        let committed = task.commit(&large).await;
        *result.borrow_mut() = Some(committed);
    });
    for _ in 0..rounds {
        platform.yield_now().await;
    }
    let other = store.commit(&replace(slot, 3)).await;
    while done.borrow().is_none() {
        platform.sleep_ns(1_000_000).await;
    }
    let first = done.borrow_mut().take().expect("is over");
    let (won, lost) = match (first, other) {
        (Ok(_), Err(lost)) => (2, lost),
        (Err(lost), Ok(_)) => (3, lost),
        both => panic!("one of them has it: {both:?}"),
    };
    assert_eq!(lost, CommitError::Conflict(page));
    assert_eq!(byte_of(&store, page).await, won);
    store.stop().await;
    won == 2
}

/// What was committed and not waited for is there at the next start, in its place.
#[test]
fn a_stop_waits_for_everything_that_was_committed() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let mut slot = PageSlot(0);
        let started = platform.now();
        for byte in 1..4 {
            let commit = Commit {
                writes: vec![page_write(block, slot, byte, 4096)],
                ..Commit::default()
            };
            slot = store.commit(&commit).await.expect("commits").slot;
            platform.yield_now().await;
        }
        store.stop().await;
        let took = platform.now().since(started);
        assert!(
            took < 50_000_000,
            "{took} ns: it does not wait for the timer"
        );
        let counters = store.counters();
        assert_eq!((counters.log_used_bytes, counters.groups_lost), (0, 0));
        let store = open_store(&platform, &engine, 0).await;
        let read = store.read(block).await.expect("readable");
        assert_eq!((read.slot, read.data[0]), (slot, 3));
    });
}

/// A device that takes nothing to its place doesn't hold up the stop: what was committed is durable in the log.
#[test]
fn a_stop_gives_up_what_can_not_be_put_in_its_place() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let commit = Commit {
            writes: vec![page_write(block, PageSlot(0), 9, 4096)],
            ..Commit::default()
        };
        durably(&store, &commit).await;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        let writes = Injection::next(failing).only(IoKind::Write).within(DATA);
        disk.inject(writes.times(1_000_000));
        let (other, is_over) = (store.clone(), Rc::new(Cell::new(false)));
        let over = is_over.clone();
        platform.spawn(async move {
            other.stop().await;
            over.set(true);
        });
        platform.sleep_ns(2_000_000_000).await;
        assert!(is_over.get(), "it has stopped");
        disk.clear_injections();
        let store = open_store(&platform, &engine, 0).await;
        assert_eq!(byte_of(&store, block).await, 9);
    });
}
