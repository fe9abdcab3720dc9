//! Each promise of the store once.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{CreateDvol, DvolError, Stability};
use flagstone_pagestore::{
    BlockPtr, Commit, CommitError, ExtentId, Generation, PagePtr, PageSlot, RangeWrite, ReadError,
    StoreError, StoreOptions,
};
use flagstone_platform::Platform;
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, Latency, SimDisk, SimPlatform, World, WriteErrorLeaves,
};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;

fn in_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimDisk) -> F + 'static,
) {
    let world = World::new(11);
    let (platform, disk) = (world.platform(0), new_disk());
    world.block_on(0, test(platform, disk));
}

fn one(write: flagstone_pagestore::PageWrite) -> Commit {
    Commit {
        writes: vec![write],
        ..Commit::default()
    }
}

#[test]
fn a_page_that_has_changed_is_not_overwritten() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let empty = store.read(block).await.expect("readable");
        assert_eq!((empty.slot, empty.data[0]), (PageSlot(0), 0));
        let first = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        let first = first.expect("commits");
        // Seen at once, though not durable, and not before that is said.
        let read = store.read(block).await.expect("readable");
        assert_eq!(
            (read.slot, read.data[0], read.ticket),
            (first.slot, 1, first.ticket)
        );
        let again = store
            .commit(&one(page_write(block, PageSlot(0), 2, 4096)))
            .await;
        assert_eq!(again, Err(CommitError::Conflict(block)));
        // Of several pages one is enough.
        let other = block.with_page(block.page + 1);
        let both = Commit {
            checks: vec![(block, PageSlot(0))],
            writes: vec![page_write(other, PageSlot(0), 3, 4096)],
            ..Commit::default()
        };
        assert_eq!(store.commit(&both).await, Err(CommitError::Conflict(block)));
        assert_eq!(byte_of(&store, other).await, 0);
        store.wait(first.ticket).await.expect("durable");
        let read = store.read(block).await.expect("readable");
        assert_eq!(
            (read.slot, read.data[0]),
            (first.slot, 1),
            "the device has slot and bytes"
        );
        let both = Commit {
            checks: vec![(block, first.slot)],
            ..both
        };
        let second = store.commit(&both).await.expect("commits");
        assert!(second.slot > first.slot);
        assert_eq!(byte_of(&store, other).await, 3);
    });
}

#[test]
fn a_pointer_of_the_past_is_no_use() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let old = allocate(&store, LARGE, ALICE).await;
        let page = old.0.with_page(old.0.page + 7);
        let write = store
            .commit(&one(page_write(page, PageSlot(0), 1, 8192)))
            .await;
        store
            .wait(write.expect("commits").ticket)
            .await
            .expect("durable");
        let free = Commit {
            frees: vec![old],
            ..Commit::default()
        };
        let freed = store.commit(&free).await.expect("commits");
        assert_eq!(
            store.read(page).await.map(drop),
            Err(ReadError::NotOwner(page))
        );
        // Given to somebody else at once, before the first flush: the old bytes don't show.
        let new = BlockPtr(PagePtr {
            owner: BOB,
            generation: Generation(3),
            ..old.0
        });
        let take = Commit {
            allocates: vec![new],
            ..Commit::default()
        };
        store.commit(&take).await.expect("it is free");
        let theirs = new.0.with_page(page.page);
        assert_eq!(byte_of(&store, theirs).await, 0);
        let refused = store
            .commit(&one(page_write(page, PageSlot(0), 2, 8192)))
            .await;
        assert_eq!(refused, Err(CommitError::NotOwner(page)));
        assert_eq!(store.commit(&free).await, Err(CommitError::NotOwner(old.0)));
        assert_eq!(store.commit(&take).await, Err(CommitError::Taken(new)));
        let write = store
            .commit(&one(page_write(theirs, PageSlot(0), 9, 8192)))
            .await;
        let ticket = store.later(freed.ticket, write.expect("commits").ticket);
        store.wait(ticket).await.expect("durable");
        assert_eq!(byte_of(&store, theirs).await, 9);
        assert_eq!(byte_of(&store, new.0).await, 0);
        for (ptr, what) in [
            (
                PagePtr {
                    owner: ALICE,
                    ..new.0
                },
                "owner",
            ),
            (
                PagePtr {
                    generation: Generation(5),
                    ..new.0
                },
                "generation",
            ),
            (
                PagePtr {
                    read_only: true,
                    ..new.0
                },
                "bit",
            ),
        ] {
            let read = store.read(ptr).await.map(drop);
            assert_eq!(read, Err(ReadError::NotOwner(ptr)), "{what}");
            let range = store.read_range(ptr, 0, 1).await.map(drop);
            assert_eq!(range, Err(ReadError::NotOwner(ptr)), "{what}");
        }
    });
}

#[test]
fn a_sealed_block_never_changes() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await;
        let write = store
            .commit(&one(page_write(block.0, PageSlot(0), 4, 4096)))
            .await;
        let slot = write.expect("commits").slot;
        let seal = Commit {
            seals: vec![block],
            ..Commit::default()
        };
        store.commit(&seal).await.expect("commits");
        let sealed = PagePtr {
            read_only: true,
            ..block.0
        };
        assert_eq!(byte_of(&store, sealed).await, 4);
        assert_eq!(
            store.read(block.0).await.map(drop),
            Err(ReadError::NotOwner(block.0))
        );
        let refused = store.commit(&one(page_write(sealed, slot, 5, 4096))).await;
        assert_eq!(refused, Err(CommitError::NotOwner(sealed)));
        let range = Commit {
            ranges: vec![RangeWrite {
                first: sealed,
                data: filled(5, 4096),
            }],
            ..Commit::default()
        };
        assert_eq!(
            store.commit(&range).await,
            Err(CommitError::NotOwner(sealed))
        );
        let free = Commit {
            frees: vec![BlockPtr(sealed)],
            ..Commit::default()
        };
        store.commit(&free).await.expect("it can be given back");
    });
}

#[test]
fn ranges_are_written_in_one_piece_and_cut_by_what_comes_later() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, LARGE, ALICE).await.0;
        let range = |page: u64, byte: u8, pages: usize| Commit {
            ranges: vec![RangeWrite {
                first: block.with_page(block.page + page),
                data: filled(byte, pages * 8192),
            }],
            ..Commit::default()
        };
        store.commit(&range(0, 1, 8)).await.expect("commits");
        let last = store.commit(&range(3, 2, 2)).await.expect("commits");
        let mut expected = vec![1; 64 << 10];
        expected[3 * 8192..5 * 8192].fill(2);
        for is_durable in [false, true] {
            let (pieces, ticket) = store
                .read_range(block, 0, 64 << 10)
                .await
                .expect("readable");
            assert_eq!(bytes_of(pieces), expected, "durable: {is_durable}");
            assert_eq!(ticket == last.ticket, !is_durable);
            let odd = store
                .read_range(block.with_page(block.page + 2), 8190, 8195)
                .await;
            let (pieces, _) = odd.expect("readable");
            assert_eq!(bytes_of(pieces), expected[3 * 8192 - 2..4 * 8192 + 1]);
            store.wait(last.ticket).await.expect("durable");
        }
        for (offset, len) in [(0, 0), (65535, 2), (u64::MAX, 2)] {
            let read = store.read_range(block, offset, len).await.map(drop);
            assert_eq!(read, Err(ReadError::OutOfRange(block)), "{offset}, {len}");
        }
    });
}

#[test]
fn commits_that_make_no_sense_are_refused() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await;
        let free = store.claim(SMALL, ALICE).await.expect("has one").ptr;
        let write = |page: u64, len: usize| {
            let ptr = block.0.with_page(block.0.page + page);
            page_write(ptr, PageSlot(0), 1, len)
        };
        let range = |page: u64, len: usize| RangeWrite {
            first: block.0.with_page(block.0.page + page),
            data: filled(1, len),
        };
        let none = Commit::default;
        let second = BlockPtr(block.0.with_page(block.0.page + 1));
        let beyond = block.0.with_page(small().page_count());
        let senseless = [
            Commit {
                writes: vec![write(0, 4095)],
                ..none()
            },
            Commit {
                writes: vec![write(0, 4096), write(0, 4096)],
                ..none()
            },
            Commit {
                writes: vec![write(1, 4096)],
                ranges: vec![range(0, 8192)],
                ..none()
            },
            Commit {
                ranges: vec![range(0, 0)],
                ..none()
            },
            Commit {
                ranges: vec![range(0, 100)],
                ..none()
            },
            Commit {
                ranges: vec![range(1, 16 << 10)],
                ..none()
            },
            Commit {
                checks: vec![(beyond, PageSlot(0))],
                ..none()
            },
            Commit {
                frees: vec![second],
                ..none()
            },
            Commit {
                frees: vec![block, block],
                ..none()
            },
            Commit {
                frees: vec![block],
                seals: vec![block],
                ..none()
            },
            Commit {
                frees: vec![block],
                writes: vec![write(0, 4096)],
                ..none()
            },
            Commit {
                seals: vec![block],
                ranges: vec![range(0, 4096)],
                ..none()
            },
            Commit {
                checks: vec![(block.0, PageSlot(0)); 16],
                ..none()
            },
        ];
        for commit in senseless {
            let answer = store.commit(&commit).await;
            assert!(
                matches!(answer, Err(CommitError::Invalid(_))),
                "{commit:?}: {answer:?}"
            );
        }
        let nowhere = PagePtr {
            extent: ExtentId(77),
            ..block.0
        };
        let commit = Commit {
            checks: vec![(nowhere, PageSlot(0))],
            ..none()
        };
        let no_extent = StoreError::NoExtent(ExtentId(77));
        assert_eq!(store.commit(&commit).await, Err(no_extent.into()));
        assert_eq!(store.read(nowhere).await.map(drop), Err(no_extent.into()));
        // A page of a free block, unless the same commit allocates it.
        let into_free = page_write(free.0, PageSlot(0), 1, 4096);
        let refused = store.commit(&one(into_free.clone())).await;
        assert_eq!(refused, Err(CommitError::NotOwner(free.0)));
        let commit = Commit {
            allocates: vec![free],
            writes: vec![into_free],
            ..none()
        };
        store.commit(&commit).await.expect("commits");
        assert_eq!(byte_of(&store, free.0).await, 1);
        // Fifteen parts are as many as there may be; a page that is checked and written is one.
        let checks = (0..4).map(|page| (block.0.with_page(block.0.page + page), PageSlot(0)));
        let commit = Commit {
            checks: checks.collect(),
            writes: (0..4).map(|page| write(page, 4096)).collect(),
            ..none()
        };
        assert_eq!(commit.parts(), 4);
        store.commit(&commit).await.expect("commits");
    });
}

#[test]
fn a_claimed_block_is_offered_once_and_a_full_extent_has_none() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let mut claims = Vec::new();
        for _ in 0..large().block_count() {
            claims.push(store.claim(LARGE, ALICE).await.expect("has one"));
        }
        let mut pages: Vec<u64> = claims.iter().map(|claim| claim.ptr.0.page).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 20);
        let none = store.claim(LARGE, ALICE).await.map(drop);
        assert_eq!(none, Err(StoreError::NoSpace));
        let given_back = claims.swap_remove(5).ptr;
        assert_eq!(
            store.claim(LARGE, ALICE).await.map(|c| c.ptr),
            Ok(given_back)
        );
        // Allocated ones are not offered either, and one that is freed is, in its next generation.
        let commit = Commit {
            allocates: vec![claims[0].ptr],
            ..Commit::default()
        };
        store.commit(&commit).await.expect("commits");
        let first = claims.swap_remove(0).ptr;
        let other = store
            .claim(LARGE, ALICE)
            .await
            .expect("the one given back")
            .ptr;
        assert_eq!(other, given_back);
        let commit = Commit {
            frees: vec![first],
            ..Commit::default()
        };
        store.commit(&commit).await.expect("commits");
        let offers = [store.claim(LARGE, BOB).await, store.claim(LARGE, BOB).await];
        let generations = offers
            .each_ref()
            .map(|c| c.as_ref().expect("has one").ptr.0.generation);
        assert!(generations.contains(&Generation(3)), "{generations:?}");
    });
}

#[test]
fn many_commits_share_a_flush_and_a_page_is_written_once() {
    let world = World::new(3);
    // On a small one a group has room for a few of them only.
    let mut config = DiskConfig::new(2048 * MIB);
    config.latency = Latency {
        read_ns: 1_000..=2_000,
        write_ns: 1_000..=2_000,
        flush_ns: 1_000_000..=1_000_001,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 0,
    };
    let (platform, disk) = (world.platform(0), SimDisk::new(config));
    world.block_on(0, async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let done = Rc::new(Cell::new(0));
        let before = disk.counts();
        for _ in 0..50 {
            let (store, done) = (store.clone(), done.clone());
            platform.spawn(async move {
                // As those who change the same page do: read, change, commit, and again on a conflict.
                let committed = loop {
                    let read = store.read(block).await.expect("readable");
                    let write = page_write(block, read.slot, read.data[0] + 1, 4096);
                    match store.commit(&one(write)).await {
                        Err(CommitError::Conflict(_)) => {}
                        other => break other.expect("commits"),
                    }
                };
                store.wait(committed.ticket).await.expect("durable");
                done.set(done.get() + 1);
            });
        }
        while done.get() < 50 {
            platform.sleep_ns(100_000).await;
        }
        assert_eq!(byte_of(&store, block).await, 50);
        let after = disk.counts();
        // The first one goes by itself, the others together; each group is its page and a journal block.
        assert!(after.flushes - before.flushes <= 3, "{before:?} {after:?}");
        assert!(after.writes - before.writes <= 8, "{before:?} {after:?}");
    });
}

#[test]
fn what_could_not_be_made_durable_has_not_happened() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let kept = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        let kept = kept.expect("commits");
        store.wait(kept.ticket).await.expect("durable");
        let verifier = store.verifier();
        in_place(&platform).await;
        // If a group can't be written, the group is given up, and the store goes on.
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        // Once is nothing: what has failed is tried again.
        disk.inject(Injection::next(failing).only(IoKind::Write).within(DATA));
        let kept = store
            .commit(&one(page_write(block, kept.slot, 1, 4096)))
            .await;
        let kept = kept.expect("commits");
        store.wait(kept.ticket).await.expect("durable");
        assert_eq!(store.verifier(), verifier);
        disk.inject(
            Injection::next(failing)
                .only(IoKind::Write)
                .within(DATA)
                .times(2),
        );
        let lost = store
            .commit(&one(page_write(block, kept.slot, 2, 4096)))
            .await;
        let lost = lost.expect("commits");
        // Built on it, and in the group behind.
        let next = block.with_page(block.page + 1);
        platform.sleep_ns(1).await;
        let built = store
            .commit(&one(page_write(next, PageSlot(0), 3, 4096)))
            .await;
        let built = built.expect("commits");
        assert_eq!(store.wait(lost.ticket).await, Err(StoreError::Lost));
        assert_eq!(store.wait(built.ticket).await, Err(StoreError::Lost));
        assert_eq!(
            store.wait(kept.ticket).await,
            Ok(()),
            "of an epoch that has ended, and durable"
        );
        assert_ne!(store.verifier(), verifier);
        assert_eq!(
            (byte_of(&store, block).await, byte_of(&store, next).await),
            (1, 0)
        );
        let stale = store
            .commit(&one(page_write(block, lost.slot, 4, 4096)))
            .await;
        assert_eq!(stale, Err(CommitError::Conflict(block)));
        let good = store
            .commit(&one(page_write(block, kept.slot, 5, 4096)))
            .await;
        let good = good.expect("commits");
        assert!(good.slot > built.slot, "no slot is given twice");
        assert_eq!(
            store.later(lost.ticket, good.ticket),
            lost.ticket,
            "the worse one counts"
        );
        assert_eq!(store.later(good.ticket, kept.ticket), good.ticket);
        assert_eq!(store.wait(good.ticket).await, Ok(()));
        assert_eq!(byte_of(&store, block).await, 5);
    });
}

#[test]
fn after_a_failed_flush_nothing_is_promised() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        disk.inject(Injection::next(Fault::FlushError));
        let commit = store
            .commit(&one(page_write(block, PageSlot(0), 2, 4096)))
            .await;
        let commit = commit.expect("commits");
        assert_eq!(store.wait(commit.ticket).await, Err(StoreError::Fenced));
        let refused = store
            .commit(&one(page_write(block, PageSlot(0), 3, 4096)))
            .await;
        assert_eq!(refused, Err(StoreError::Fenced.into()));
        store.stop().await;
    });
}

#[test]
fn a_full_device_refuses_new_pages_and_nothing_else() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let write = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        let mut slot = write.expect("commits").slot;
        // Somebody else takes all there is.
        let glutton = CreateDvol {
            name: "glutton".into(),
            id: None,
            size_bytes: 1 << 30,
            reserved_bytes: 0,
        };
        let glutton = engine.create(glutton).await.expect("creates");
        let mut at = 0;
        for piece in [256 << 10, 4096] {
            while engine
                .write(glutton, at, filled(7, piece), Stability::Unstable)
                .await
                .is_ok()
            {
                at += piece as u64;
            }
        }
        // What is set aside can be used.
        let mut blocks = vec![block];
        let refused = loop {
            let claim = store
                .claim(SMALL, ALICE)
                .await
                .expect("the extent has more");
            let ptr = claim.ptr.0;
            let commit = Commit {
                allocates: vec![claim.ptr],
                ranges: vec![RangeWrite {
                    first: ptr,
                    data: filled(2, 16 << 10),
                }],
                ..Commit::default()
            };
            match store.commit(&commit).await {
                Ok(_) => blocks.push(ptr),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, CommitError::Store(StoreError::NoSpace));
        assert!(blocks.len() > 50, "{}", blocks.len());
        for turn in 0..20 {
            let write = store
                .commit(&one(page_write(block, slot, turn, 4096)))
                .await;
            let committed = write.expect("overwriting takes nothing");
            store.wait(committed.ticket).await.expect("durable");
            slot = committed.slot;
        }
        for ptr in blocks {
            let commit = Commit {
                frees: vec![BlockPtr(ptr)],
                ..Commit::default()
            };
            let committed = store.commit(&commit).await.expect("freeing takes nothing");
            store.wait(committed.ticket).await.expect("durable");
        }
        assert_eq!(engine.delete(glutton, false).await, Ok::<(), DvolError>(()));
        engine.wait_until_reaped().await.expect("reaps");
        allocate(&store, SMALL, BOB).await;
    });
}

#[test]
fn failures_are_injected_where_they_are_asked_for() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        store.stop().await;
        let store = open_store(&platform, &engine, 4).await;
        let (mut failed, mut slot) = (0, PageSlot(0));
        for turn in 0..200 {
            match store
                .commit(&one(page_write(block, slot, turn, 4096)))
                .await
            {
                Ok(committed) => slot = committed.slot,
                Err(error) => {
                    assert_eq!(error, CommitError::Conflict(block));
                    failed += 1;
                }
            }
        }
        assert!((20..100).contains(&failed), "{failed}");
        // Without a condition there is nothing that could have failed.
        let range = Commit {
            ranges: vec![RangeWrite {
                first: block,
                data: filled(5, 4096),
            }],
            ..Commit::default()
        };
        for _ in 0..50 {
            store.commit(&range).await.expect("commits");
        }
        let expected = if cfg!(debug_assertions) { 500 } else { 0 };
        assert_eq!(StoreOptions::default().injected_one_in, expected);
    });
}

#[test]
fn a_damaged_table_opens_nothing() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        store.stop().await;
        let dvol = engine
            .dvol(".extent-0000000000000001")
            .expect("the extent's")
            .handle;
        // Flags that no version has, in the entry of another block.
        let flags = engine.write(dvol, 5 * 16 + 12, filled(0xff, 4), Stability::Stable);
        flags.await.expect("writes");
        let store = open_store(&platform, &engine, 0).await;
        let read = store.read(block).await.map(drop);
        assert_eq!(read, Err(ReadError::Store(StoreError::Corrupt)));
        let claim = store.claim(SMALL, ALICE).await.map(drop);
        assert_eq!(claim, Err(StoreError::Corrupt));
        let write = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        assert_eq!(write, Err(StoreError::Corrupt.into()));
    });
}

#[test]
fn what_only_depends_on_others_is_durable_when_they_are() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let check = |slot: PageSlot| Commit {
            checks: vec![(block, slot)],
            ..Commit::default()
        };
        let idle = store.commit(&check(PageSlot(0))).await.expect("commits");
        store
            .wait(idle.ticket)
            .await
            .expect("nothing is on its way");
        let write = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        let write = write.expect("commits");
        let after = store.commit(&check(write.slot)).await.expect("commits");
        assert_eq!(after.ticket, write.ticket);
        platform.yield_now().await;
        let on_its_way = store.commit(&check(write.slot)).await.expect("commits");
        assert_eq!(on_its_way.ticket, write.ticket);
        store.wait(on_its_way.ticket).await.expect("durable");
    });
}

/// A pointer to a block whose allocation was lost must not be one to the block's next life.
#[test]
fn a_pointer_of_what_was_lost_is_no_use() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        allocate(&store, SMALL, BOB).await;
        let lost = store.claim(SMALL, ALICE).await.expect("has one").ptr;
        let take = Commit {
            allocates: vec![lost],
            ..Commit::default()
        };
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        disk.inject(
            Injection::next(failing)
                .only(IoKind::Write)
                .within(DATA)
                .times(2),
        );
        let committed = store.commit(&take).await.expect("commits");
        assert_eq!(store.wait(committed.ticket).await, Err(StoreError::Lost));
        let mut pointers = Vec::new();
        for _ in 0..small().block_count() - 1 {
            let claim = store.claim(SMALL, ALICE).await.expect("has one");
            let take = Commit {
                allocates: vec![claim.ptr],
                ..Commit::default()
            };
            store.commit(&take).await.expect("commits");
            pointers.push(claim.ptr);
        }
        let again = pointers
            .iter()
            .find(|ptr| ptr.0.page == lost.0.page)
            .expect("it is free");
        assert_eq!(
            (lost.0.generation, again.0.generation),
            (Generation(1), Generation(3))
        );
        assert_eq!(
            store.read(lost.0).await.map(drop),
            Err(ReadError::NotOwner(lost.0))
        );
        let commit = one(page_write(lost.0, PageSlot(0), 1, 4096));
        assert_eq!(
            store.commit(&commit).await,
            Err(CommitError::NotOwner(lost.0))
        );
        // And what is freed after that has a generation above it, too.
        let free = Commit {
            frees: vec![*again],
            ..Commit::default()
        };
        let freed = store.commit(&free).await.expect("commits");
        store.wait(freed.ticket).await.expect("durable");
        let next = store.claim(SMALL, ALICE).await.expect("has one").ptr;
        assert_eq!(
            (next.0.page, next.0.generation),
            (lost.0.page, Generation(5))
        );
    });
}

#[test]
fn more_than_one_group_can_hold_takes_several() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let done = Rc::new(Cell::new(0));
        let mut blocks = Vec::new();
        for _ in 0..16 {
            blocks.push(allocate(&store, LARGE, ALICE).await.0);
        }
        let before = disk.counts();
        // Each an eighth of what a group takes on such a device.
        for block in blocks {
            for byte in 0..2 {
                let (store, done) = (store.clone(), done.clone());
                platform.spawn(async move {
                    let range = Commit {
                        ranges: vec![RangeWrite {
                            first: block,
                            data: filled(byte + 1, 64 << 10),
                        }],
                        ..Commit::default()
                    };
                    let committed = store.commit(&range).await.expect("commits");
                    store.wait(committed.ticket).await.expect("durable");
                    done.set(done.get() + 1);
                });
            }
        }
        while done.get() < 32 {
            platform.sleep_ns(1_000_000).await;
        }
        let flushes = disk.counts().flushes - before.flushes;
        assert!(flushes >= 32 / 8, "{flushes}");
    });
}

#[test]
fn a_store_that_stops_takes_nothing_more() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let last = store
            .commit(&one(page_write(block, PageSlot(0), 1, 4096)))
            .await;
        let last = last.expect("commits");
        let other = store.clone();
        let refused = Rc::new(Cell::new(false));
        let seen = refused.clone();
        platform.spawn(async move {
            // As busy clients do, without end.
            for byte in 0..100_000_u32 {
                let range = Commit {
                    ranges: vec![RangeWrite {
                        first: block,
                        data: filled(byte as u8, 4096),
                    }],
                    ..Commit::default()
                };
                match other.commit(&range).await {
                    Ok(committed) => drop(other.wait(committed.ticket).await),
                    Err(error) => {
                        assert_eq!(error, CommitError::Store(StoreError::Stopping));
                        seen.set(true);
                        return;
                    }
                }
            }
        });
        platform.sleep_ns(3_000_000).await;
        store.stop().await;
        assert_eq!(store.wait(last.ticket).await, Ok(()));
        platform.sleep_ns(3_000_000).await;
        assert!(refused.get());
        // Slots go on above those that were given.
        let store = open_store(&platform, &engine, 0).await;
        let read = store.read(block).await.expect("readable");
        let next = store
            .commit(&one(page_write(block, read.slot, 1, 4096)))
            .await;
        assert!(next.expect("commits").slot.0 > read.slot.0 + (1 << 43));
    });
}

#[test]
fn a_page_that_was_read_lately_is_at_hand() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let write = async |store: &TestStore, ptr, slot, byte| {
            let commit = one(page_write(ptr, slot, byte, 4096));
            let committed = store.commit(&commit).await.expect("commits");
            store.wait(committed.ticket).await.expect("is durable");
            committed.slot
        };
        write(&store, block, PageSlot(0), 1).await;
        in_place(&platform).await;
        assert_eq!(byte_of(&store, block).await, 1);
        // Not even from the engine, whose cache would be asked.
        let reads = || {
            let counters = engine.counters();
            (counters.cache_hits.get(), counters.cache_misses.get())
        };
        let before = reads();
        assert_eq!(byte_of(&store, block).await, 1);
        let slot = store.read(block).await.expect("readable").slot;
        // Also a newer version: once that is durable, and once it is in its place.
        let newer = write(&store, block, slot, 2).await;
        let read = store.read(block).await.expect("readable");
        assert_eq!((read.slot, read.data[0]), (newer, 2));
        assert_eq!(store.wait(read.ticket).await, Ok(()));
        in_place(&platform).await;
        let read = store.read(block).await.expect("readable");
        assert_eq!(
            (read.slot, read.data[0], read.ticket),
            (newer, 2, <_>::default())
        );
        assert_eq!(reads(), before, "nothing was read");
        // A block that is given back has nothing that anybody sees.
        let free = Commit {
            frees: vec![BlockPtr(block)],
            ..Commit::default()
        };
        let freed = store.commit(&free).await.expect("commits");
        store.wait(freed.ticket).await.expect("is durable");
        assert_eq!(
            store.read(block).await.err(),
            Some(ReadError::NotOwner(block))
        );
        store.stop().await;
    });
}

#[test]
fn a_store_without_its_header_opens_nothing() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        store.stop().await;
        let header = engine.dvol(".pagestore").expect("is there").handle;
        engine.set_attributes(header, [0; _]).await.expect("sets");
        let options = StoreOptions {
            injected_one_in: 0,
            ..StoreOptions::default()
        };
        let open = async || {
            let opened =
                flagstone_pagestore::Store::open(platform.clone(), engine.clone(), options);
            opened.await.map(drop)
        };
        assert_eq!(
            open().await,
            Err(StoreError::Corrupt),
            "another dvol of that name"
        );
        engine.delete(header, false).await.expect("deletes");
        assert_eq!(open().await, Err(StoreError::Corrupt), "none");
        assert!(engine.dvol(".pagestore").is_none(), "and none is made");
    });
}

/// The pages of a tree are read again and again, and nobody else keeps them.
#[test]
fn a_page_that_is_read_again_is_not_read_from_the_device_again() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let page = allocate(&store, LARGE, ALICE).await.0;
        let write = one(page_write(page, PageSlot(0), 7, 8192));
        let committed = store.commit(&write).await.expect("commits");
        store.wait(committed.ticket).await.expect("is durable");
        in_place(&platform).await;
        assert_eq!(byte_of(&store, page).await, 7);
        let before = disk.counts().reads;
        assert!(engine.space().cache_bytes >= 8192);
        assert_eq!(byte_of(&store, page).await, 7);
        let range = store.read_range(page, 100, 5000).await;
        assert_eq!(bytes_of(range.expect("reads").0), [7; 5000]);
        assert_eq!(disk.counts().reads, before);
    });
}
