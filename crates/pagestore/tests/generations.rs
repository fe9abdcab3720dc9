//! What a block is to the next who has it: no generation is given twice between two starts, whatever was lost, and
//! nothing of what was in it before is seen, whoever looks meanwhile.

use crate::support;

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_pagestore::{
    Answer, BlockPtr, Claim, Commit, CommitError, ExtentId, Generation, Message, OwnerId, PagePtr,
    PageSlot, PageWrite, Participant, ReadError, Store, StoreError, StoreId, StoreOptions, Ticket,
    TransactionId,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World, WriteErrorLeaves};
use support::*;

/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;

fn in_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimDisk) -> F + 'static,
) {
    let world = World::new(31);
    let (platform, disk) = (world.platform(0), new_disk());
    world.block_on(0, test(platform, disk));
}

fn allocation(ptr: BlockPtr) -> Commit {
    Commit {
        allocates: vec![ptr],
        ..Commit::default()
    }
}

fn free(ptr: BlockPtr) -> Commit {
    Commit {
        frees: vec![ptr],
        ..Commit::default()
    }
}

fn write(ptr: PagePtr, slot: PageSlot, byte: u8) -> Commit {
    Commit {
        writes: vec![page_write(ptr, slot, byte, 8192)],
        ..Commit::default()
    }
}

async fn commit(store: &TestStore, commit: &Commit) -> Ticket {
    store.commit(commit).await.expect("commits").ticket
}

async fn durably(store: &TestStore, commit: &Commit) {
    let committed = store.commit(commit).await.expect("commits");
    store.wait(committed.ticket).await.expect("is durable");
}

/// Claims all blocks but the last, so that this one is offered to everybody who asks.
async fn all_but_one(store: &TestStore) -> Vec<Claim<SimPlatform>> {
    let mut claims = Vec::new();
    for _ in 1..large().block_count() {
        claims.push(store.claim(LARGE, ALICE).await.expect("has a free block"));
    }
    claims
}

async fn offered(store: &TestStore, owner: OwnerId) -> BlockPtr {
    let claim = store.claim(LARGE, owner).await;
    claim.expect("has one free block").ptr
}

/// So many groups are written, and then one in vain.
fn lose_a_group(disk: &SimDisk, after: u64) {
    let failing = Fault::WriteError {
        leaves: WriteErrorLeaves::Old,
    };
    let writes = Injection::next(failing).only(IoKind::Write).within(DATA);
    disk.inject(writes.after(after).times(2));
}

/// A block that is free is given with the generation that comes next, and open.
#[test]
fn a_block_is_not_taken_by_another_pointer_than_the_one_offered() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let offered = offered(&store, ALICE).await;
        let sealed = BlockPtr(PagePtr {
            read_only: true,
            ..offered.0
        });
        let later = BlockPtr(PagePtr {
            generation: Generation(3),
            ..offered.0
        });
        for other in [sealed, later] {
            let refused = store.commit(&allocation(other)).await;
            assert_eq!(refused.map(drop), Err(CommitError::Taken(other)));
        }
        durably(&store, &allocation(offered)).await;
    });
}

/// A page of the table is read slowly; meanwhile somebody else reads it, takes a block, which comes to its place, and then a group is
/// lost, and with it what is known of tables. What the slow one has read is of the past.
#[test]
fn a_table_that_was_read_before_a_group_was_lost_is_read_again() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        allocate(&store, LARGE, ALICE).await;
        store.stop().await;
        engine.stop().await.expect("stops");
        let engine = open_engine(&platform, &disk).await;
        let store = open_store(&platform, &engine, 0).await;
        let page = allocate(&store, SMALL, ALICE).await.0;
        let slow = Injection::next(Fault::Delay { ns: 900_000_000 });
        disk.inject(slow.only(IoKind::Read).within(DATA));
        let (other, is_loaded) = (store.clone(), Rc::new(RefCell::new(false)));
        let loaded = is_loaded.clone();
        platform.spawn(async move {
            other.block(LARGE, 0).await.expect("readable");
            *loaded.borrow_mut() = true;
        });
        platform.sleep_ns(1_000_000).await;
        let taken = allocate(&store, LARGE, ALICE).await;
        in_place(&platform).await;
        lose_a_group(&disk, 0);
        let lost = Commit {
            writes: vec![page_write(page, PageSlot(0), 1, 4096)],
            ..Commit::default()
        };
        let lost = commit(&store, &lost).await;
        assert_eq!(store.wait(lost).await, Err(StoreError::Lost));
        assert!(!*is_loaded.borrow(), "it is still being read");
        platform.sleep_ns(900_000_000).await;
        assert!(*is_loaded.borrow());
        let number = large().block_of(taken.0.page);
        assert_eq!(store.block(LARGE, number).await, Ok(Some(taken)));
        assert_ne!(offered(&store, BOB).await.0.page, taken.0.page);
    });
}

/// A part is applied, its block freed and given to somebody, and all that is lost. The part is applied again, with its
/// own generation; but what was given after it is spent.
#[test]
fn what_was_given_behind_a_lost_part_is_not_given_again() {
    in_world(|platform, disk| async move {
        let (_, store) = begin(&platform, &disk).await;
        let _others = all_but_one(&store).await;
        let taken = offered(&store, BOB).await;
        let prepare = async |transaction, part| {
            let asked = store.send(Message::Inquire(transaction)).await;
            let message = Message::Prepare {
                transaction,
                previous: None,
                next: StoreId(9),
                as_of: asked.expect("answers").as_of,
                part,
            };
            let answer = store.send(message).await.expect("answers").answer;
            assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
        };
        let transaction = TransactionId(7);
        prepare(transaction, allocation(taken)).await;
        in_place(&platform).await;
        lose_a_group(&disk, 0);
        let (other, answers) = (store.clone(), Rc::new(RefCell::new(Vec::new())));
        let on = answers.clone();
        platform.spawn(async move {
            let message = Message::DecideAndRelease(transaction);
            let answer = other.send(message).await;
            on.borrow_mut().push(answer);
        });
        let number = large().block_of(taken.0.page);
        while store.block(LARGE, number).await != Ok(Some(taken)) {
            platform.yield_now().await;
        }
        commit(&store, &free(taken)).await;
        let behind = offered(&store, BOB).await;
        assert_eq!(behind.0.generation, Generation(3));
        let lost = commit(&store, &allocation(behind)).await;
        assert_eq!(store.wait(lost).await, Err(StoreError::Lost));
        platform.sleep_ns(50_000_000).await;
        assert_eq!(answers.borrow().len(), 1);
        let done = store.send(Message::DecideAndRelease(transaction)).await;
        assert_eq!(done.expect("answers").answer, Answer::Committed);
        assert_eq!(taken.0.generation, Generation(1));
        let read = store.read(taken.0).await;
        assert!(read.is_ok(), "with the generation that the part has");
        durably(&store, &free(taken)).await;
        let next = offered(&store, BOB).await;
        assert_eq!(next.0.page, behind.0.page);
        assert_eq!(next.0.generation, Generation(5), "{behind:?}");
    });
}

/// What was given before was lost, so the part has a higher generation than the table's next: after a start as well.
#[test]
fn a_part_has_its_generation_after_a_start() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let others = all_but_one(&store).await;
        let given = offered(&store, BOB).await;
        lose_a_group(&disk, 0);
        let lost = commit(&store, &allocation(given)).await;
        assert_eq!(store.wait(lost).await, Err(StoreError::Lost));
        let taken = offered(&store, BOB).await;
        assert_eq!(taken.0.generation, Generation(3));
        let asked = store.send(Message::Inquire(TransactionId(7))).await;
        let message = Message::Prepare {
            transaction: TransactionId(7),
            previous: None,
            next: StoreId(9),
            as_of: asked.expect("answers").as_of,
            part: allocation(taken),
        };
        let answer = store.send(message).await.expect("answers").answer;
        assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
        drop(others);
        store.stop().await;
        let store = open_store(&platform, &engine, 0).await;
        let done = store
            .send(Message::DecideAndRelease(TransactionId(7)))
            .await;
        assert_eq!(done.expect("answers").answer, Answer::Committed);
        assert_eq!(byte_of(&store, taken.0).await, 0);
        durably(&store, &free(taken)).await;
        let _others = all_but_one(&store).await;
        assert!(offered(&store, BOB).await.0.generation >= Generation(3));
    });
}

/// A block with a page that is on the device and in no cache, and the only one that is offered once it is freed.
async fn unread(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (TestStore, BlockPtr, Vec<Claim<SimPlatform>>) {
    let (engine, store) = begin(platform, disk).await;
    let claims = all_but_one(&store).await;
    let block = offered(&store, ALICE).await;
    durably(&store, &allocation(block)).await;
    for page in 0..8 {
        let page = block.0.with_page(block.0.page + page);
        durably(&store, &write(page, PageSlot(0), 1)).await;
    }
    drop(claims);
    store.stop().await;
    engine.stop().await.expect("stops");
    let engine = open_engine(platform, disk).await;
    let store = open_store(platform, &engine, 0).await;
    // Loads the table, and what says where the pages lie.
    assert_eq!(byte_of(&store, block.0).await, 1);
    let claims = all_but_one(&store).await;
    (store, block, claims)
}

/// Whose block is given to somebody else while it is read does not see what that one puts there.
#[test]
fn a_read_that_takes_long_sees_nothing_of_the_next_owner() {
    for is_range in [false, true] {
        in_world(move |platform, disk| async move {
            let (store, block, _others) = unread(&platform, &disk).await;
            let page = block.0.with_page(block.0.page + 5);
            let slow = Injection::next(Fault::Delay { ns: 900_000_000 });
            disk.inject(slow.only(IoKind::Read).within(DATA));
            let (other, seen) = (store.clone(), Rc::new(RefCell::new(None)));
            let on = seen.clone();
            platform.spawn(async move {
                let read = match is_range {
                    true => other.read_range(page, 0, 100).await.map(drop),
                    false => other.read(page).await.map(drop),
                };
                *on.borrow_mut() = Some(read);
            });
            platform.sleep_ns(1_000_000).await;
            durably(&store, &free(block)).await;
            let theirs = offered(&store, BOB).await;
            assert_eq!(theirs.0.page, block.0.page);
            let commit = Commit {
                allocates: vec![theirs],
                ..write(theirs.0.with_page(page.page), PageSlot(0), 2)
            };
            durably(&store, &commit).await;
            in_place(&platform).await;
            assert_eq!(*seen.borrow(), None, "it is still being read");
            platform.sleep_ns(900_000_000).await;
            assert_eq!(*seen.borrow(), Some(Err(ReadError::NotOwner(page))));
        });
    }
}

/// What was read of a block lately is not what its next owner reads.
#[test]
fn what_was_read_lately_is_not_seen_by_the_next_owner() {
    in_world(|platform, disk| async move {
        let (store, block, _others) = unread(&platform, &disk).await;
        let page = block.0.with_page(block.0.page + 5);
        assert_eq!(byte_of(&store, page).await, 1);
        durably(&store, &free(block)).await;
        let theirs = offered(&store, BOB).await;
        durably(&store, &allocation(theirs)).await;
        let page = theirs.0.with_page(page.page);
        assert_eq!(byte_of(&store, page).await, 0);
        in_place(&platform).await;
        assert_eq!(byte_of(&store, page).await, 0);
        durably(&store, &write(page, PageSlot(0), 3)).await;
    });
}

/// Who reads the pages of a block that was just given has to wait for that, though there is nothing in them.
#[test]
fn an_empty_page_of_a_new_block_is_durable_with_it() {
    in_world(|platform, disk| async move {
        let (store, block, _others) = unread(&platform, &disk).await;
        commit(&store, &free(block)).await;
        let theirs = offered(&store, BOB).await;
        let given = commit(&store, &allocation(theirs)).await;
        let read = store.read(theirs.0).await.expect("readable");
        assert_eq!((read.data[0], read.ticket), (0, given));
        let range = store.read_range(theirs.0, 0, 8192).await;
        assert_eq!(range.expect("readable").1, given);
    });
}

/// A page of bytes that have nothing in common, but for one, each time another one: a frame has what differs.
fn alike(ptr: PagePtr, slot: PageSlot, byte: u8) -> PageWrite {
    let mut rng = Rng::new(5);
    let words = (0..1024).flat_map(|_| rng.next_u64().to_le_bytes());
    let mut data: Vec<u8> = words.collect();
    data[50 * usize::from(byte)] ^= 0xff;
    let data = IoBuf::copy_of(&data);
    PageWrite { ptr, slot, data }
}

/// A page is written twice, its block freed and given again, and the page written once more, all in one group: its frame
/// must make the page out of nothing, and another one out of what that was before the group.
#[test]
fn a_frame_makes_pages_out_of_what_they_were_before_its_group() {
    let disk = new_disk();
    let world = World::new(31);
    let (platform, on) = (world.platform(0), disk.clone());
    let again = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let mut others = all_but_one(&store).await;
        let block = offered(&store, ALICE).await;
        let next = block.0.with_page(block.0.page + 1);
        let kept = others.remove(0).ptr;
        let first = Commit {
            allocates: vec![block, kept],
            writes: [next, kept.0].map(|ptr| alike(ptr, PageSlot(0), 1)).into(),
            ..Commit::default()
        };
        let slot = store.commit(&first).await.expect("commits").slot;
        let other = allocate(&store, SMALL, ALICE).await.0;
        // While this group is on its way the next one is open.
        let before = Commit {
            writes: vec![page_write(other, PageSlot(0), 1, 4096)],
            ..Commit::default()
        };
        commit(&store, &before).await;
        platform.sleep_ns(1_000).await;
        let (mut slot, mut groups) = (slot, Vec::new());
        for byte in 2..5 {
            let commit = Commit {
                writes: [next, kept.0].map(|ptr| alike(ptr, slot, byte)).into(),
                ..Commit::default()
            };
            let done = store.commit(&commit).await.expect("commits");
            slot = done.slot;
            groups.push(done.ticket);
        }
        groups.push(commit(&store, &free(block)).await);
        let again = offered(&store, BOB).await;
        let last = Commit {
            allocates: vec![again],
            writes: vec![alike(again.0.with_page(next.page), PageSlot(0), 5)],
            ..Commit::default()
        };
        groups.push(commit(&store, &last).await);
        assert!(groups.iter().all(|group| *group == groups[0]), "one group");
        store.wait(groups[0]).await.expect("is durable");
        (again.0, next.page, kept.0)
    });
    disk.power_loss(&mut world.crash());
    let world = World::new(31);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let store = open_store(&platform, &engine, 0).await;
        let (again, page, kept) = again;
        assert_eq!(byte_of(&store, again).await, 0);
        for (ptr, byte) in [(again.with_page(page), 5), (kept, 4)] {
            let read = store.read(ptr).await.expect("readable");
            let expected = alike(ptr, PageSlot(0), byte).data;
            assert!(read.data[..] == expected[..], "{ptr:?}");
        }
    });
}

/// Whether what was read is the newest is known without the device, and never said of what isn't.
#[test]
fn what_is_not_the_newest_is_never_taken_for_it() {
    in_world(|platform, disk| async move {
        let (store, block, _others) = unread(&platform, &disk).await;
        let (page, mut moments) = (block.0, vec![store.moment()]);
        let mut moved = |store: &TestStore| {
            assert!(!moments.contains(&store.moment()), "{moments:?}");
            moments.push(store.moment());
        };
        let old = store.read(page).await.expect("readable").slot;
        assert!(store.newest(page, old).is_some());
        lose_a_group(&disk, 0);
        let lost = store.commit(&write(page, old, 2)).await.expect("commits");
        moved(&store);
        assert!(store.newest(page, old).is_none() && store.newest(page, lost.slot).is_some());
        assert_eq!(store.wait(lost.ticket).await, Err(StoreError::Lost));
        moved(&store);
        assert!(store.newest(page, lost.slot).is_none());
        let slot = store.read(page).await.expect("readable").slot;
        assert!(slot == old && store.newest(page, slot).is_some());
        let seal = Commit {
            seals: vec![block],
            ..Commit::default()
        };
        durably(&store, &seal).await;
        moved(&store);
        let sealed = PagePtr {
            read_only: true,
            ..page
        };
        assert!(store.newest(page, slot).is_none() && store.newest(sealed, slot).is_some());
        commit(&store, &free(BlockPtr(sealed))).await;
        moved(&store);
        assert!(store.newest(sealed, slot).is_none());
        let other = allocate(&store, SMALL, ALICE).await.0;
        let write = |ptr| Commit {
            writes: vec![page_write(ptr, PageSlot(0), 2, 4096)],
            ..Commit::default()
        };
        durably(&store, &write(other)).await;
        in_place(&platform).await;
        let slot = store.read(other).await.expect("readable").slot;
        assert!(store.newest(other, slot).is_some());
        disk.inject(Injection::next(Fault::FlushError));
        let fenced = commit(&store, &write(other.with_page(other.page + 1))).await;
        assert_eq!(store.wait(fenced).await, Err(StoreError::Fenced));
        assert_eq!(store.moment(), None);
        // What the device has may be read, but nobody commits on it.
        assert_eq!(store.read(other).await.expect("readable").slot, slot);
        assert!(
            store.newest(other, slot).is_none(),
            "nothing is known any more"
        );
    });
}

/// Blocks are counted in pages of the table that are only in memory, and over such as were never written.
#[test]
fn blocks_are_counted_wherever_their_entries_are() {
    in_world(|platform, disk| async move {
        let (engine, store) = begin(&platform, &disk).await;
        let id = ExtentId(60);
        let geometry = flagstone_pagestore::Geometry::new(4096, 4096, 256 * 40).expect("a shape");
        store.create_extent(id, geometry).await.expect("creates");
        let block = |page| {
            BlockPtr(PagePtr {
                extent: id,
                page,
                owner: ALICE,
                generation: Generation(1),
                read_only: false,
            })
        };
        let count = async |store: &TestStore| store.allocated_blocks(id).await.expect("counts");
        assert_eq!(count(&store).await, 0);
        for (number, page) in [0, 256 * 17 + 3, 256 * 17 + 4, 256 * 39 + 255]
            .into_iter()
            .enumerate()
        {
            durably(&store, &allocation(block(page))).await;
            assert_eq!(count(&store).await, number as u64 + 1, "in memory");
            in_place(&platform).await;
            assert_eq!(count(&store).await, number as u64 + 1);
        }
        store.stop().await;
        let store = Store::open(platform, engine, StoreOptions::default()).await;
        let store = store.expect("opens");
        assert_eq!(count(&store).await, 4, "from the device");
        assert_eq!(
            store.block(id, 256 * 39 + 255).await,
            Ok(Some(block(256 * 39 + 255)))
        );
        for behind in [256 * 40, u64::MAX] {
            assert_eq!(store.block(id, behind).await, Ok(None), "behind the last");
        }
    });
}
