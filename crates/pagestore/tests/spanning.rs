//! Commits over several stores, each promise once. Histories are in `spanning_histories.rs`.

use crate::support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_device::engine::{Engine, Stability};
use flagstone_pagestore::{
    Answer, Commit, CommitError, ExtentId, Message, Outcome, PagePtr, PageSlot, Participant,
    RangeWrite, Reply, Spanned, Spanning, SpanningError, StoreError, StoreId, TransactionId,
};
use flagstone_platform::Platform;
use flagstone_sim::{Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves};
use support::*;

type Three = Vec<(SimDisk, Engine<SimPlatform>, TestStore, PagePtr)>;

/// Three stores with a block each.
async fn three(platform: &SimPlatform) -> Three {
    let mut all = Vec::new();
    for _ in 0..3 {
        let disk = new_disk();
        let (engine, store) = begin(platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        all.push((disk, engine, store, block));
    }
    all
}

fn spanning(platform: &SimPlatform, all: &Three) -> Spanning<SimPlatform, TestStore> {
    Spanning::new(platform.clone(), all.iter().map(|one| one.2.clone()))
}

fn in_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(SimPlatform) -> F + 'static) {
    let world = World::new(17);
    let platform = world.platform(0);
    world.block_on(0, test(platform));
}

fn write(ptr: PagePtr, slot: PageSlot, byte: u8) -> Commit {
    Commit {
        writes: vec![page_write(ptr, slot, byte, 4096)],
        ..Commit::default()
    }
}

fn part(one: &(SimDisk, Engine<SimPlatform>, TestStore, PagePtr), byte: u8) -> (StoreId, Commit) {
    (one.2.id(), write(one.3, PageSlot(0), byte))
}

async fn ask(store: &TestStore, message: Message) -> Answer {
    store.send(message).await.expect("answers").answer
}

async fn as_of(store: &TestStore) -> u64 {
    let reply = store.send(Message::Inquire(TransactionId(0))).await;
    reply.expect("answers").as_of
}

const T: TransactionId = TransactionId(77);

async fn prepare(all: &Three, place: usize, byte: u8) -> Answer {
    let (_, _, store, block) = &all[place];
    let message = Message::Prepare {
        transaction: T,
        previous: place.checked_sub(1).map(|before| all[before].2.id()),
        next: all[place + 1].2.id(),
        as_of: as_of(store).await,
        part: write(*block, PageSlot(0), byte),
    };
    ask(store, message).await
}

async fn decide(all: &Three, byte: u8) -> Answer {
    let (_, _, store, block) = &all[2];
    let message = Message::PrepareAndDecide {
        transaction: T,
        previous: Some(all[1].2.id()),
        as_of: as_of(store).await,
        part: write(*block, PageSlot(0), byte),
    };
    ask(store, message).await
}

/// Opens a store again as it is after the power failed now.
async fn reopen(
    platform: &SimPlatform,
    one: &mut (SimDisk, Engine<SimPlatform>, TestStore, PagePtr),
) {
    let disk = one.0.fork();
    disk.power_loss(&mut flagstone_sim::Rng::new(5));
    let engine = open_engine(platform, &disk).await;
    let store = open_store(platform, &engine, 0).await;
    (one.0, one.1, one.2) = (disk, engine, store);
}

#[test]
fn three_stores_change_at_once() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        let spanning = spanning(&platform, &all);
        let parts: Vec<_> = all.iter().map(|one| part(one, 5)).collect();
        assert_eq!(
            spanning.commit(&parts).await,
            Ok(Spanned {
                is_everywhere: true
            })
        );
        for (_, _, store, block) in &all {
            assert_eq!(byte_of(store, *block).await, 5);
        }
        // The pages have other slots now.
        let refused = spanning.commit(&parts).await;
        let expected = CommitError::Conflict(all[0].3);
        assert_eq!(
            refused,
            Err(SpanningError::Refused(all[0].2.id(), expected))
        );
        platform.sleep_ns(50_000_000).await;
        for one in &mut all {
            assert_eq!(one.2.records().await, Ok(Vec::new()));
            reopen(&platform, one).await;
            assert_eq!(byte_of(&one.2, one.3).await, 5, "it is durable");
        }
    });
}

#[test]
fn it_takes_two_messages_a_store_and_one_group_each() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let spanning = spanning(&platform, &all);
        let parts: Vec<_> = all.iter().map(|one| part(one, 1)).collect();
        spanning.commit(&parts).await.expect("commits");
        platform.sleep_ns(500_000_000).await;
        let groups = |all: &Three| all.iter().map(|one| one.2.counters().groups).sum::<u64>();
        let before = groups(&all);
        let mut parts = Vec::new();
        for (_, _, store, block) in &all {
            let slot = store.read(*block).await.expect("readable").slot;
            parts.push((store.id(), write(*block, slot, 2)));
        }
        spanning.commit(&parts).await.expect("commits");
        assert_eq!(groups(&all) - before, 5, "answered after 2n - 1");
        platform.sleep_ns(500_000_000).await;
        assert_eq!(groups(&all) - before, 6, "2n");
        // One store alone: one group, and no record.
        let slot = all[0].2.read(all[0].3).await.expect("readable").slot;
        let alone = [(all[0].2.id(), write(all[0].3, slot, 3))];
        spanning.commit(&alone).await.expect("commits");
        platform.sleep_ns(500_000_000).await;
        assert_eq!(groups(&all) - before, 7);
    });
}

#[test]
fn what_is_prepared_is_held_and_read_as_it_was() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        assert!(matches!(prepare(&all, 0, 9).await, Answer::Prepared { .. }));
        for is_started in [false, true] {
            if is_started {
                reopen(&platform, &mut all[0]).await;
            }
            let (store, block) = (all[0].2.clone(), all[0].3);
            assert_eq!(byte_of(&store, block).await, 0, "not decided");
            let busy = Err(CommitError::Busy(block, T));
            let attempt = store.commit(&write(block, PageSlot(0), 1)).await;
            assert_eq!(attempt, busy, "written, started: {is_started}");
            let depends = Commit {
                checks: vec![(block, PageSlot(0))],
                ..Commit::default()
            };
            assert_eq!(store.commit(&depends).await, busy, "depended on");
            let range = Commit {
                ranges: vec![RangeWrite {
                    first: block,
                    data: filled(4, 8192),
                }],
                ..Commit::default()
            };
            assert_eq!(store.commit(&range).await, busy);
            let free = Commit {
                frees: vec![flagstone_pagestore::BlockPtr(block)],
                ..Commit::default()
            };
            assert_eq!(store.commit(&free).await, busy);
            let beside = write(
                block.with_page(block.page + 1 + u64::from(is_started)),
                PageSlot(0),
                1,
            );
            store
                .commit(&beside)
                .await
                .expect("another page of the block is free");
        }
    });
}

#[test]
fn what_is_only_depended_on_is_held_against_writes() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let (store, block) = (all[0].2.clone(), all[0].3);
        let depends = Commit {
            checks: vec![(block, PageSlot(0))],
            ..Commit::default()
        };
        let message = Message::Prepare {
            transaction: T,
            previous: None,
            next: all[1].2.id(),
            as_of: as_of(&store).await,
            part: depends.clone(),
        };
        assert!(matches!(
            ask(&store, message).await,
            Answer::Prepared { .. }
        ));
        store
            .commit(&depends)
            .await
            .expect("others may depend on it too");
        let attempt = store.commit(&write(block, PageSlot(0), 1)).await;
        assert_eq!(attempt, Err(CommitError::Busy(block, T)));
    });
}

/// The block that a part allocates is offered to nobody, and comes with the generation that the part has, whatever was lost
/// meanwhile.
#[test]
fn blocks_of_a_part_are_kept_for_it() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        let claim = all[0].2.claim(SMALL, BOB).await.expect("has a free block");
        let ptr = claim.ptr;
        drop(claim);
        let (store, other) = (all[0].2.clone(), all[1].2.id());
        let message = Message::Prepare {
            transaction: T,
            previous: None,
            next: other,
            as_of: as_of(&store).await,
            part: Commit {
                allocates: vec![ptr],
                writes: vec![page_write(ptr.0, PageSlot(0), 8, 4096)],
                ..Commit::default()
            },
        };
        assert!(matches!(
            ask(&store, message).await,
            Answer::Prepared { .. }
        ));
        for _ in 0..2 {
            let store = all[0].2.clone();
            let mut claims = Vec::new();
            while let Ok(claim) = store.claim(SMALL, BOB).await {
                assert_ne!(claim.ptr.0.page, ptr.0.page);
                claims.push(claim);
            }
            assert_eq!(claims.len(), 298);
            drop(claims);
            reopen(&platform, &mut all[0]).await;
        }
        let store = all[0].2.clone();
        let answer = ask(&store, Message::DecideAndRelease(T)).await;
        assert_eq!(answer, Answer::Committed);
        assert_eq!(byte_of(&store, ptr.0).await, 8);
    });
}

#[test]
fn a_walk_aborts_before_the_decision_and_releases_after_it() {
    in_world(|platform| async move {
        for (stage, start) in [
            (1, 0),
            (2, 0),
            (2, 1),
            (3, 0),
            (3, 1),
            (3, 2),
            (4, 1),
            (4, 2),
            (5, 2),
        ] {
            let all = three(&platform).await;
            let spanning = spanning(&platform, &all);
            let stages = stage.min(2);
            for place in 0..stages {
                assert!(matches!(
                    prepare(&all, place, 6).await,
                    Answer::Prepared { .. }
                ));
            }
            if stage > 2 {
                assert!(matches!(decide(&all, 6).await, Answer::Decided { .. }));
            }
            for one in &all[..stage.max(3) - 3] {
                let answer = ask(&one.2, Message::DecideAndRelease(T)).await;
                assert_eq!(answer, Answer::Committed);
            }
            let expected = match stage {
                ..=2 => Outcome::Aborted,
                _ => Outcome::Committed,
            };
            let outcome = spanning.resolve(T, all[start].2.id()).await;
            assert_eq!(outcome, Ok(expected), "stage {stage} from {start}");
            for (_, _, store, block) in &all {
                assert_eq!(
                    store.records().await,
                    Ok(Vec::new()),
                    "stage {stage} from {start}"
                );
                let byte = if expected == Outcome::Committed { 6 } else { 0 };
                assert_eq!(
                    byte_of(store, *block).await,
                    byte,
                    "stage {stage} from {start}"
                );
            }
        }
    });
}

#[test]
fn late_copies_of_every_message_do_nothing() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        let id = |place: usize| all[place].2.id();
        let blind = |one: &(SimDisk, Engine<SimPlatform>, TestStore, PagePtr), byte| Commit {
            ranges: vec![RangeWrite {
                first: one.3,
                data: filled(byte, 4096),
            }],
            ..Commit::default()
        };
        let first = Message::Prepare {
            transaction: T,
            previous: None,
            next: id(1),
            as_of: as_of(&all[0].2).await,
            part: blind(&all[0], 1),
        };
        let last = Message::PrepareAndDecide {
            transaction: T,
            previous: Some(id(0)),
            as_of: as_of(&all[1].2).await,
            part: blind(&all[1], 1),
        };
        for _ in 0..2 {
            assert!(matches!(
                ask(&all[0].2, first.clone()).await,
                Answer::Prepared { .. }
            ));
        }
        for _ in 0..2 {
            assert!(matches!(
                ask(&all[1].2, last.clone()).await,
                Answer::Decided { .. }
            ));
        }
        for _ in 0..2 {
            let answer = ask(&all[0].2, Message::DecideAndRelease(T)).await;
            assert_eq!(answer, Answer::Committed);
        }
        for _ in 0..2 {
            assert_eq!(ask(&all[1].2, Message::Release(T)).await, Answer::Committed);
        }
        for place in [0, 1] {
            let again = all[place]
                .2
                .commit(&blind(&all[place], 2))
                .await
                .expect("commits");
            all[place].2.wait(again.ticket).await.expect("is durable");
        }
        for is_started in [false, true] {
            if is_started {
                reopen(&platform, &mut all[0]).await;
                reopen(&platform, &mut all[1]).await;
            }
            let expected = if is_started {
                Answer::Gone
            } else {
                Answer::Committed
            };
            assert_eq!(ask(&all[0].2, first.clone()).await, expected);
            assert_eq!(ask(&all[1].2, last.clone()).await, expected);
            for place in [0, 1] {
                assert_eq!(all[place].2.records().await, Ok(Vec::new()));
                assert_eq!(
                    byte_of(&all[place].2, all[place].3).await,
                    2,
                    "not applied again"
                );
            }
        }
    });
}

#[test]
fn a_refusal_is_final_and_a_promise_is_kept() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        let (store, block) = (all[0].2.clone(), all[0].3);
        let message = |as_of, slot| Message::PrepareAndDecide {
            transaction: T,
            previous: None,
            as_of,
            part: write(block, slot, 1),
        };
        let early = as_of(&store).await;
        let refused = ask(&store, message(early, PageSlot(1))).await;
        assert_eq!(refused, Answer::Refused(CommitError::Conflict(block)));
        assert_eq!(
            ask(&store, message(early, PageSlot(0))).await,
            Answer::Aborted
        );
        // A promise, and after a start whatever was begun before.
        assert_eq!(ask(&all[1].2, Message::Refuse(T)).await, Answer::Promised);
        let early = as_of(&all[1].2).await - 1;
        assert_eq!(prepare(&all, 1, 1).await, Answer::Promised);
        reopen(&platform, &mut all[1]).await;
        let message = Message::Prepare {
            transaction: T,
            previous: None,
            next: all[0].2.id(),
            as_of: early,
            part: write(all[1].3, PageSlot(0), 1),
        };
        assert_eq!(ask(&all[1].2, message).await, Answer::Gone);
        assert_eq!(all[1].2.records().await, Ok(Vec::new()));
        // Who has prepared or decided promises nothing.
        assert!(matches!(decide(&all, 4).await, Answer::Decided { .. }));
        assert!(matches!(
            ask(&all[2].2, Message::Refuse(T)).await,
            Answer::Decided { .. }
        ));
        assert!(matches!(
            ask(&all[2].2, Message::Abort(T)).await,
            Answer::Decided { .. }
        ));
    });
}

/// So many that they are forgotten: what may have been is too old then.
#[test]
fn what_was_forgotten_is_below_the_floor() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let early = as_of(&all[0].2).await;
        for number in 0..4096 {
            let answer = ask(&all[0].2, Message::Refuse(TransactionId(1000 + number))).await;
            assert_eq!(answer, Answer::Promised);
        }
        let message = |transaction, as_of| Message::Prepare {
            transaction: TransactionId(transaction),
            previous: None,
            next: all[1].2.id(),
            as_of,
            part: write(all[0].3, PageSlot(0), 1),
        };
        assert_eq!(ask(&all[0].2, message(1000, early)).await, Answer::Promised);
        ask(&all[0].2, Message::Refuse(T)).await;
        assert_eq!(ask(&all[0].2, message(1000, early)).await, Answer::Gone);
        assert_eq!(ask(&all[0].2, message(3, early)).await, Answer::Gone);
        let now = as_of(&all[0].2).await;
        assert!(matches!(
            ask(&all[0].2, message(3, now)).await,
            Answer::Prepared { .. }
        ));
    });
}

#[test]
fn records_are_bounded() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let store = all[0].2.clone();
        let block = allocate(&store, LARGE, ALICE).await.0;
        let prepare = async |number: u128, part: Commit| {
            let message = Message::Prepare {
                transaction: TransactionId(number),
                previous: None,
                next: all[1].2.id(),
                as_of: as_of(&store).await,
                part,
            };
            ask(&store, message).await
        };
        let depends = Commit {
            checks: vec![(block, PageSlot(0))],
            ..Commit::default()
        };
        for number in 0..64 {
            let answer = prepare(100 + number, depends.clone()).await;
            assert!(
                matches!(answer, Answer::Prepared { .. }),
                "{number}: {answer:?}"
            );
        }
        let full = Answer::Refused(CommitError::Store(StoreError::NoSpace));
        assert_eq!(prepare(200, depends.clone()).await, full);
        assert_eq!(
            ask(&store, Message::Abort(TransactionId(100))).await,
            Answer::Aborted
        );
        assert!(matches!(
            prepare(201, depends).await,
            Answer::Prepared { .. }
        ));
        let taken = store.create_extent(ExtentId(u64::MAX), small()).await;
        assert!(taken.is_err(), "the store's own");
        assert_eq!(store.extents(), [SMALL, LARGE]);
    });
}

/// Blocks of 256 KiB, more than a device has room for.
async fn create_wide(store: &TestStore) -> ExtentId {
    let geometry = flagstone_pagestore::Geometry::new(4096, 256 << 10, 2000).expect("a shape");
    store
        .create_extent(ExtentId(50), geometry)
        .await
        .expect("creates");
    ExtentId(50)
}

/// A new block whose first pages are written.
async fn new_block(store: &TestStore, extent: ExtentId, pages: usize) -> Option<Commit> {
    let claim = store.claim(extent, BOB).await.ok()?;
    Some(Commit {
        allocates: vec![claim.ptr],
        ranges: vec![RangeWrite {
            first: claim.ptr.0,
            data: filled(3, pages * 4096),
        }],
        ..Commit::default()
    })
}

/// Fills an extent until nothing more has room.
async fn fill(store: &TestStore, extent: ExtentId, pages: usize) {
    while let Some(commit) = new_block(store, extent, pages).await {
        let done = store.commit(&commit).await;
        if done == Err(CommitError::Store(StoreError::NoSpace)) {
            return;
        }
        let ticket = done.expect("commits").ticket;
        store.wait(ticket).await.expect("is durable");
    }
    panic!("everything has room");
}

/// A device that gets full between prepare and decide has kept what that takes, over a start as well.
#[test]
fn what_is_prepared_has_its_space() {
    in_world(|platform| async move {
        for is_started in [false, true] {
            let mut all = three(&platform).await;
            let (store, block) = (all[0].2.clone(), all[0].3);
            let rows: Vec<PagePtr> = (0..4)
                .map(|page| block.with_page(block.page + page))
                .collect();
            let writes = rows
                .iter()
                .map(|ptr| page_write(*ptr, PageSlot(0), 7, 4096));
            let part = Commit {
                writes: writes.collect(),
                ..Commit::default()
            };
            let message = Message::Prepare {
                transaction: TransactionId(1),
                previous: None,
                next: all[1].2.id(),
                as_of: as_of(&store).await,
                part,
            };
            assert!(matches!(
                ask(&store, message).await,
                Answer::Prepared { .. }
            ));
            let wide = create_wide(&store).await;
            fill(&store, wide, 64).await;
            if is_started {
                reopen(&platform, &mut all[0]).await;
            }
            let store = all[0].2.clone();
            // What is set aside ahead of need is used up as well.
            fill(&store, SMALL, 1).await;
            in_place(&platform).await;
            fill(&store, SMALL, 1).await;
            let more = new_block(&store, SMALL, 4).await.expect("has a free block");
            let message = Message::Prepare {
                transaction: TransactionId(2),
                previous: None,
                next: all[1].2.id(),
                as_of: as_of(&store).await,
                part: more,
            };
            let full = Answer::Refused(CommitError::Store(StoreError::NoSpace));
            assert_eq!(ask(&store, message).await, full);
            let answer = ask(&store, Message::DecideAndRelease(TransactionId(1))).await;
            assert_eq!(answer, Answer::Committed, "started: {is_started}");
            for ptr in rows {
                assert_eq!(byte_of(&store, ptr).await, 7);
            }
        }
    });
}

#[test]
fn parts_that_are_prepared_are_bounded_in_bytes() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let store = all[0].2.clone();
        let wide = create_wide(&store).await;
        let mut count = 0;
        let last = loop {
            let message = Message::Prepare {
                transaction: TransactionId(count),
                previous: None,
                next: all[1].2.id(),
                as_of: as_of(&store).await,
                part: new_block(&store, wide, 64).await.expect("has a free block"),
            };
            match ask(&store, message).await {
                Answer::Prepared { .. } => count += 1,
                other => break other,
            }
        };
        assert_eq!(
            last,
            Answer::Refused(CommitError::Store(StoreError::NoSpace))
        );
        assert_eq!(count, 31, "8 MiB");
    });
}

#[test]
fn what_is_left_is_seen_to() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let spanning = spanning(&platform, &all);
        let mut seen = BTreeSet::new();
        prepare(&all, 0, 1).await;
        prepare(&all, 1, 1).await;
        assert_eq!(spanning.sweep(&mut seen).await, 0, "it may be under way");
        assert!(spanning.sweep(&mut seen).await > 0);
        let commit = write(all[0].3, PageSlot(0), 2);
        let done = all[0].2.commit(&commit).await.expect("nothing is held");
        all[0].2.wait(done.ticket).await.expect("is durable");
        // Who is kept waiting sees to it.
        let other = TransactionId(78);
        let message = Message::Prepare {
            transaction: other,
            previous: None,
            next: all[2].2.id(),
            as_of: as_of(&all[1].2).await,
            part: write(all[1].3, PageSlot(0), 2),
        };
        ask(&all[1].2, message).await;
        let commit = write(all[1].3, PageSlot(0), 3);
        let busy = all[1].2.commit(&commit).await;
        assert_eq!(busy, Err(CommitError::Busy(all[1].3, other)));
        spanning
            .see_to(other, all[1].2.id())
            .await
            .expect("ends it");
        all[1].2.commit(&commit).await.expect("nothing is held");
    });
}

/// The next group is written in vain, and again, so it and what follows it have not happened. Data that goes to the device in one transfer is
/// tried piece by piece as well.
fn lose_next_group(disk: &SimDisk) {
    let failing = Fault::WriteError {
        leaves: WriteErrorLeaves::Old,
    };
    let writes = Injection::next(failing).only(IoKind::Write);
    disk.inject(writes.within(259 * 4096..64 * MIB).times(16));
}

/// A group that is lost takes back what it did to records, and the block of the part gets the generation that the
/// transaction's pointers have.
#[test]
fn what_is_lost_with_its_group_is_as_before() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let (disk, store) = (all[0].0.clone(), all[0].2.clone());
        let claim = store.claim(SMALL, BOB).await.expect("has a free block");
        let ptr = claim.ptr;
        drop(claim);
        let prepare = Message::Prepare {
            transaction: T,
            previous: None,
            next: all[1].2.id(),
            as_of: as_of(&store).await,
            part: Commit {
                allocates: vec![ptr],
                writes: vec![page_write(ptr.0, PageSlot(0), 8, 4096)],
                ..Commit::default()
            },
        };
        // The extent for records is made by the first that is prepared, and isn't what fails.
        let first = Message::Prepare {
            transaction: TransactionId(1),
            previous: None,
            next: all[1].2.id(),
            as_of: as_of(&store).await,
            part: write(all[0].3, PageSlot(0), 1),
        };
        ask(&store, first).await;
        ask(&store, Message::Abort(TransactionId(1))).await;
        in_place(&platform).await;
        lose_next_group(&disk);
        let lost = store.send(prepare.clone()).await;
        assert!(
            !lost.is_ok_and(|reply| reply.answer != Answer::Gone),
            "lost"
        );
        disk.clear_injections();
        assert_eq!(ask(&store, Message::Inquire(T)).await, Answer::Gone, "lost");
        assert_eq!(store.records().await, Ok(Vec::new()));
        assert!(matches!(
            ask(&store, prepare).await,
            Answer::Prepared { .. }
        ));
        in_place(&platform).await;
        for _ in 0..2 {
            lose_next_group(&disk);
            let lost = store.send(Message::DecideAndRelease(T)).await;
            assert!(!lost.is_ok_and(|reply| reply.answer == Answer::Committed));
            disk.clear_injections();
            let answer = ask(&store, Message::Inquire(T)).await;
            assert!(
                matches!(answer, Answer::Prepared { .. }),
                "it is prepared again: {answer:?}"
            );
            let taken = store.claim(SMALL, BOB).await.expect("has a free block");
            assert_ne!(taken.ptr.0.page, ptr.0.page, "and held");
            disk.clear_injections();
            in_place(&platform).await;
        }
        let answer = ask(&store, Message::DecideAndRelease(T)).await;
        assert_eq!(answer, Answer::Committed);
        assert_eq!(byte_of(&store, ptr.0).await, 8);
    });
}

async fn header_version(engine: &Engine<SimPlatform>) -> u8 {
    let header = engine.dvol(".pagestore").expect("is there").handle;
    let pieces = engine.read(header, 0, 4096).await.expect("readable");
    bytes_of(pieces)[8]
}

#[test]
fn a_store_says_that_it_has_records_before_it_has_one() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        assert_eq!(header_version(&all[0].1).await, 2);
        prepare(&all, 0, 1).await;
        assert_eq!(header_version(&all[0].1).await, 3);
        assert_eq!(header_version(&all[1].1).await, 2);
        reopen(&platform, &mut all[0]).await;
        assert_eq!(header_version(&all[0].1).await, 3);
    });
}

/// What has been decided elsewhere may be in it: without it nobody may write.
#[test]
fn a_store_with_a_damaged_record_is_not_opened() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        prepare(&all, 0, 1).await;
        in_place(&platform).await;
        all[0].2.stop().await;
        let engine = all[0].1.clone();
        let records = engine
            .dvol(".extent-ffffffffffffffff")
            .expect("is there")
            .handle;
        let byte = filled(0xff, 1);
        let done = engine
            .write(records, 4096 + 100, byte, Stability::Stable)
            .await;
        done.expect("writes");
        let options = flagstone_pagestore::StoreOptions::default();
        let opened = flagstone_pagestore::Store::open(platform.clone(), engine, options).await;
        assert_eq!(opened.map(drop).err(), Some(StoreError::Corrupt));
    });
}

/// A store at whose first inquiry somebody else ends the transaction, and both stores restart.
#[derive(Clone)]
struct Overtaken {
    platform: SimPlatform,
    all: Rc<RefCell<Three>>,
    place: usize,
    is_next: Rc<Cell<bool>>,
}

impl Overtaken {
    fn store(&self, place: usize) -> TestStore {
        self.all.borrow()[place].2.clone()
    }
}

impl Participant for Overtaken {
    fn id(&self) -> StoreId {
        self.store(self.place).id()
    }

    async fn send(&self, message: Message) -> Result<Reply, StoreError> {
        if self.place == 1 && self.is_next.replace(false) {
            ask(&self.store(0), Message::DecideAndRelease(T)).await;
            ask(&self.store(1), Message::Release(T)).await;
            for place in [0, 1] {
                let mut one = self.all.borrow_mut().remove(place);
                reopen(&self.platform, &mut one).await;
                self.all.borrow_mut().insert(place, one);
            }
        }
        self.store(self.place).send(message).await
    }

    async fn records(&self) -> Result<Vec<TransactionId>, StoreError> {
        self.store(self.place).records().await
    }

    async fn commit_alone(&self, commit: &Commit) -> Result<(), CommitError> {
        self.store(self.place).commit_alone(commit).await
    }
}

/// What is known of a store that has restarted since is too old for it: the first commit behind that happens all the same.
#[test]
fn the_first_commit_behind_a_restart_is_not_interrupted() {
    in_world(|platform| async move {
        for restarted in [vec![0], vec![1], vec![2], vec![0, 1, 2]] {
            let all = Rc::new(RefCell::new(three(&platform).await));
            let remotes = (0..3).map(|place| Overtaken {
                platform: platform.clone(),
                all: all.clone(),
                place,
                is_next: Rc::default(),
            });
            let spanning = Spanning::new(platform.clone(), remotes);
            for byte in [1, 2] {
                let mut parts = Vec::new();
                let stores: Vec<_> = all
                    .borrow()
                    .iter()
                    .map(|one| (one.2.clone(), one.3))
                    .collect();
                for (store, block) in stores {
                    let slot = store.read(block).await.expect("readable").slot;
                    parts.push((store.id(), write(block, slot, byte)));
                }
                let done = spanning.commit(&parts).await;
                assert!(done.is_ok(), "{byte}, {restarted:?} restarted: {done:?}");
                platform.sleep_ns(50_000_000).await;
                for place in &restarted {
                    let mut one = all.borrow_mut().remove(*place);
                    reopen(&platform, &mut one).await;
                    all.borrow_mut().insert(*place, one);
                }
            }
            let stores: Vec<_> = all
                .borrow()
                .iter()
                .map(|one| (one.2.clone(), one.3))
                .collect();
            for (store, block) in stores {
                assert_eq!(byte_of(&store, block).await, 2);
                assert_eq!(store.records().await, Ok(Vec::new()));
            }
        }
    });
}

/// A promise of a store that may have forgotten proves nothing: not "aborted", when it was committed.
#[test]
fn what_nobody_remembers_is_unknown() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        let first = Message::Prepare {
            transaction: T,
            previous: None,
            next: all[1].2.id(),
            as_of: as_of(&all[0].2).await,
            part: write(all[0].3, PageSlot(0), 1),
        };
        assert!(matches!(
            ask(&all[0].2, first).await,
            Answer::Prepared { .. }
        ));
        let last = Message::PrepareAndDecide {
            transaction: T,
            previous: Some(all[0].2.id()),
            as_of: as_of(&all[1].2).await,
            part: write(all[1].3, PageSlot(0), 1),
        };
        assert!(matches!(ask(&all[1].2, last).await, Answer::Decided { .. }));
        let start = all[0].2.id();
        let all = Rc::new(RefCell::new(all));
        let is_next = Rc::new(Cell::new(true));
        let members = [0, 1].map(|place| Overtaken {
            platform: platform.clone(),
            all: all.clone(),
            place,
            is_next: is_next.clone(),
        });
        let spanning = Spanning::new(platform.clone(), members);
        assert_eq!(spanning.resolve(T, start).await, Ok(Outcome::Unknown));
        assert!(!is_next.get());
        let (store, block) = (all.borrow()[0].2.clone(), all.borrow()[0].3);
        assert_eq!(byte_of(&store, block).await, 1, "it was committed");
    });
}

/// Two copies at the same moment, both of which look up what they need: one does it, and both are answered.
#[test]
fn copies_that_come_together_do_it_once() {
    in_world(|platform| async move {
        let mut all = three(&platform).await;
        prepare(&all, 0, 3).await;
        reopen(&platform, &mut all[0]).await;
        let answers = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..2 {
            let (store, answers) = (all[0].2.clone(), answers.clone());
            platform.spawn(async move {
                let reply = store.send(Message::DecideAndRelease(T)).await;
                answers.borrow_mut().push(reply.map(|reply| reply.answer));
            });
        }
        platform.sleep_ns(100_000_000).await;
        assert_eq!(*answers.borrow(), [Ok(Answer::Committed); 2]);
        assert_eq!(byte_of(&all[0].2, all[0].3).await, 3);
    });
}

/// A failed flush: what it should have covered may be there at the next start, so nobody is told that it isn't.
#[test]
fn a_fenced_store_answers_nothing() {
    in_world(|platform| async move {
        let all = three(&platform).await;
        prepare(&all, 1, 1).await;
        let store = all[2].2.clone();
        let other = TransactionId(1);
        let early = Message::PrepareAndDecide {
            transaction: other,
            previous: None,
            as_of: as_of(&store).await,
            part: Commit::default(),
        };
        // Makes the extent for records.
        ask(&store, early).await;
        ask(&store, Message::Release(other)).await;
        let last = Message::PrepareAndDecide {
            transaction: T,
            previous: Some(all[1].2.id()),
            as_of: as_of(&store).await,
            part: write(all[2].3, PageSlot(0), 1),
        };
        all[2].0.inject(Injection::next(Fault::FlushError));
        assert_eq!(store.send(last).await, Err(StoreError::Fenced));
        for message in [Message::Inquire(T), Message::Refuse(T), Message::Abort(T)] {
            assert_eq!(store.send(message).await, Err(StoreError::Fenced));
        }
        let spanning = spanning(&platform, &all);
        let outcome = spanning.resolve(T, all[1].2.id()).await;
        assert_eq!(outcome, Err(StoreError::Fenced), "not known");
        assert_eq!(all[1].2.records().await, Ok(vec![T]), "it stays prepared");
    });
}
