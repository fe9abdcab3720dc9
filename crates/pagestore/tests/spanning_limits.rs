//! Commits over several stores: what is refused, messages that don't fit, a store that can't be reached behind the decision,
//! and what a start finds.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::Engine;
use flagstone_pagestore::{
    Answer, BlockPtr, Commit, CommitError, Message, PagePtr, PageSlot, Participant, Reply, Spanned,
    Spanning, SpanningError, StoreError, StoreId, TransactionId,
};
use flagstone_platform::Platform;
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, Fault, Injection, IoKind, Rng, SimPlatform, World,
    WriteErrorLeaves,
};
use support::*;

const T: TransactionId = TransactionId(77);
/// Where data lies on a device of 64 MiB with one journal.
const DATA: std::ops::Range<u64> = 259 * 4096..64 * MIB;
const RECORDS: &str = ".extent-ffffffffffffffff";

/// A store with a block.
struct One {
    engine: Engine<SimPlatform>,
    store: TestStore,
    block: PagePtr,
}

async fn some(platform: &SimPlatform, count: usize) -> Vec<One> {
    let mut all = Vec::new();
    for _ in 0..count {
        let disk = new_disk();
        let (engine, store) = begin(platform, &disk).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        all.push(One {
            engine,
            store,
            block,
        });
    }
    all
}

fn in_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(SimPlatform) -> F + 'static) {
    let world = World::new(47);
    let platform = world.platform(0);
    world.block_on(0, test(platform));
}

fn write(ptr: PagePtr, byte: u8) -> Commit {
    Commit {
        writes: vec![page_write(ptr, PageSlot(0), byte, 4096)],
        ..Commit::default()
    }
}

async fn ask(store: &TestStore, message: Message) -> Answer {
    store.send(message).await.expect("answers").answer
}

/// To the first of two stores if there is a next one, else to the last.
async fn take_part(store: &TestStore, next: Option<StoreId>, part: Commit) -> Answer {
    let asked = store.send(Message::Inquire(T)).await;
    let as_of = asked.expect("answers").as_of;
    let message = match next {
        Some(next) => Message::Prepare {
            transaction: T,
            previous: None,
            next,
            as_of,
            part,
        },
        None => Message::PrepareAndDecide {
            transaction: T,
            previous: None,
            as_of,
            part,
        },
    };
    ask(store, message).await
}

/// The second part of a store that is named twice would be taken for a copy of the first one's message.
#[test]
fn a_store_that_is_named_twice_or_sixteen_stores_are_refused() {
    in_world(|platform| async move {
        let all = some(&platform, 2).await;
        let stores = all.iter().map(|one| one.store.clone());
        let spanning = Spanning::new(platform.clone(), stores);
        let (first, second) = (all[0].block, all[0].block.with_page(all[0].block.page + 1));
        let twice = [
            (all[0].store.id(), write(first, 1)),
            (all[0].store.id(), write(second, 1)),
            (all[1].store.id(), write(all[1].block, 1)),
        ];
        let many: Vec<_> = (1..17).map(|id| (StoreId(id), Commit::default())).collect();
        for (parts, what) in [(&twice[..], "twice"), (&many, "sixteen")] {
            let refused = spanning.commit(parts).await;
            assert!(
                matches!(
                    refused,
                    Err(SpanningError::Refused(_, CommitError::Invalid(_)))
                ),
                "{what}: {refused:?}"
            );
        }
        for (one, ptr) in [(&all[0], first), (&all[0], second), (&all[1], all[1].block)] {
            assert_eq!(byte_of(&one.store, ptr).await, 0);
        }
        let nothing = spanning.commit(&[]).await;
        let is_everywhere = true;
        assert_eq!(nothing, Ok(Spanned { is_everywhere }));
    });
}

/// Fifteen parts, as in any commit; and whatever a store accepts its next start understands.
#[test]
fn a_part_that_is_too_large_is_refused() {
    in_world(|platform| async move {
        for next in [Some(StoreId(9)), None] {
            let all = some(&platform, 1).await;
            let (store, block) = (&all[0].store, all[0].block);
            let checks = |count| Commit {
                checks: vec![(block, PageSlot(0)); count],
                ..Commit::default()
            };
            let part = Commit {
                seals: vec![BlockPtr(block)],
                ..checks(15)
            };
            let answer = take_part(store, next, part).await;
            assert!(
                matches!(answer, Answer::Refused(CommitError::Invalid(_))),
                "{answer:?}"
            );
        }
        // Checks of a page that is written as well are no parts, but a record has no room for so many.
        let mut all = some(&platform, 1).await;
        let mut part = write(all[0].block, 1);
        part.checks = vec![(all[0].block, PageSlot(0)); 16];
        assert_eq!(part.parts(), 1);
        let answer = take_part(&all[0].store, Some(StoreId(9)), part).await;
        assert!(
            matches!(answer, Answer::Refused(CommitError::Invalid(_))),
            "{answer:?}"
        );
        let one = all.remove(0);
        one.store.stop().await;
        let store = open_store(&platform, &one.engine, 0).await;
        let checks = vec![(one.block, PageSlot(0)); 15];
        let part = Commit {
            checks,
            ..Commit::default()
        };
        let answer = take_part(&store, Some(StoreId(9)), part).await;
        assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
    });
}

/// A release is for who has decided, and a decision for who has prepared.
#[test]
fn a_message_that_does_not_fit_changes_nothing() {
    in_world(|platform| async move {
        let all = some(&platform, 2).await;
        let (first, last) = (&all[0], &all[1]);
        let answer = take_part(&first.store, Some(last.store.id()), write(first.block, 1)).await;
        assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
        let answer = take_part(&last.store, None, write(last.block, 1)).await;
        assert!(matches!(answer, Answer::Decided { .. }), "{answer:?}");
        let answer = ask(&first.store, Message::Release(T)).await;
        assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
        let answer = ask(&last.store, Message::DecideAndRelease(T)).await;
        assert!(matches!(answer, Answer::Decided { .. }), "{answer:?}");
        for one in [first, last] {
            assert_eq!(one.store.records().await, Ok(vec![T]));
        }
        assert_eq!(byte_of(&first.store, first.block).await, 0);
    });
}

/// A store that can't be told to apply its part as long as that is so.
#[derive(Clone)]
struct Deaf {
    store: TestStore,
    is_deaf: Rc<Cell<bool>>,
}

impl Participant for Deaf {
    fn id(&self) -> StoreId {
        Participant::id(&self.store)
    }

    async fn send(&self, message: Message) -> Result<Reply, StoreError> {
        match (self.is_deaf.get(), &message) {
            (true, Message::DecideAndRelease(_)) => Err(StoreError::Device),
            _ => self.store.send(message).await,
        }
    }

    async fn records(&self) -> Result<Vec<TransactionId>, StoreError> {
        self.store.records().await
    }

    async fn commit_alone(&self, commit: &Commit) -> Result<(), CommitError> {
        self.store.commit_alone(commit).await
    }
}

#[test]
fn a_store_that_is_not_reached_behind_the_decision_follows() {
    in_world(|platform| async move {
        let all = some(&platform, 3).await;
        let is_deaf = Rc::new(Cell::new(true));
        let stores = all.iter().enumerate().map(|(place, one)| Deaf {
            store: one.store.clone(),
            is_deaf: match place {
                0 => is_deaf.clone(),
                _ => Rc::default(),
            },
        });
        let spanning = Spanning::new(platform.clone(), stores);
        let parts: Vec<_> = all
            .iter()
            .map(|one| (one.store.id(), write(one.block, 4)))
            .collect();
        let done = spanning.commit(&parts).await;
        let is_everywhere = false;
        assert_eq!(done, Ok(Spanned { is_everywhere }));
        // In their order: the second is not released before the first.
        for (one, byte) in all.iter().zip([0, 0, 4]) {
            assert_eq!(byte_of(&one.store, one.block).await, byte);
            assert_eq!(one.store.records().await.map(|all| all.len()), Ok(1));
        }
        let busy = all[0].store.commit(&write(all[0].block, 5)).await;
        assert!(matches!(busy, Err(CommitError::Busy(..))), "{busy:?}");
        // Who committed has it seen to.
        is_deaf.set(false);
        platform.sleep_ns(100_000_000).await;
        for one in &all {
            assert_eq!(byte_of(&one.store, one.block).await, 4);
            assert_eq!(one.store.records().await, Ok(Vec::new()));
        }
    });
}

/// A part alone is an ordinary commit, and durable as all of them are.
#[test]
fn a_commit_in_one_store_is_durable_when_it_is_answered() {
    let disk = new_disk();
    let world = World::new(53);
    let (platform, on) = (world.platform(0), disk.clone());
    let block = world.block_on(0, async move {
        let (_, store) = begin(&platform, &on).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        let spanning = Spanning::new(platform, [store.clone()]);
        let alone = [(store.id(), write(block, 6))];
        spanning.commit(&alone).await.expect("commits");
        block
    });
    disk.power_loss(&mut world.crash());
    let world = World::new(54);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let store = open_store(&platform, &engine, 0).await;
        assert_eq!(byte_of(&store, block).await, 6);
    });
}

/// As many records as there can be: a start finds each of them.
#[test]
fn a_start_finds_all_records_that_there_can_be() {
    in_world(|platform| async move {
        let all = some(&platform, 1).await;
        let (store, block) = (&all[0].store, all[0].block);
        for number in 0..64 {
            let asked = store.send(Message::Inquire(T)).await;
            let message = Message::Prepare {
                transaction: TransactionId(number),
                previous: None,
                next: StoreId(9),
                as_of: asked.expect("answers").as_of,
                part: Commit {
                    checks: vec![(block, PageSlot(0))],
                    ..Commit::default()
                },
            };
            let answer = ask(store, message).await;
            assert!(matches!(answer, Answer::Prepared { .. }), "{answer:?}");
        }
        store.stop().await;
        let store = open_store(&platform, &all[0].engine, 0).await;
        let expected: Vec<_> = (0..64).map(TransactionId).collect();
        assert_eq!(store.records().await, Ok(expected));
    });
}

/// Power is lost at each change of the device while the first record is made: nobody who doesn't know of records opens a
/// store that has their extent, since the next record would go there.
#[test]
fn the_extent_for_records_is_never_there_before_the_header_says_so() {
    let disk = new_disk();
    let world = World::new(59);
    let (platform, on) = (world.platform(0), disk.clone());
    let block = world.block_on(0, async move {
        let (engine, store) = begin(&platform, &on).await;
        let block = allocate(&store, SMALL, ALICE).await.0;
        store.stop().await;
        engine.stop().await.expect("stops");
        block
    });
    let _ = world.crash();
    let mut seen = Vec::new();
    for nth in 0.. {
        let disk = disk.fork();
        let world = World::new(200 + nth);
        let (platform, on) = (world.platform(0), disk.clone());
        let store = world.block_on(0, async move {
            let engine = open_engine(&platform, &on).await;
            open_store(&platform, &engine, 0).await
        });
        world.crash_at(CrashPoint {
            nth: world.changes_started() + nth,
            counting: Counting::Changes,
            moment: CrashMoment::Completed,
        });
        let is_over = Rc::new(Cell::new(false));
        let over = is_over.clone();
        world.spawn(0, async move {
            take_part(&store, Some(StoreId(9)), write(block, 1)).await;
            over.set(true);
        });
        let over = is_over.clone();
        let _ = world.run_until(move || over.get());
        let _ = world.crash();
        disk.power_loss(&mut Rng::new(nth));
        let world = World::new(300 + nth);
        let platform = world.platform(0);
        let found = world.block_on(0, async move {
            let engine = open_engine(&platform, &disk).await;
            let header = engine.dvol(".pagestore").expect("is there").handle;
            let block = engine.read(header, 0, 4096).await.expect("readable");
            (bytes_of(block)[8], engine.dvol(RECORDS).is_some())
        });
        assert_ne!(found, (2, true), "change {nth}");
        seen.push(found);
        if is_over.get() {
            break;
        }
    }
    assert!(
        seen.contains(&(2, false)) && seen.contains(&(3, true)),
        "{seen:?}"
    );
}

/// A group of which nobody knows how much is on the device: once somebody was told that its record isn't there, it isn't there
/// after a power loss either.
#[test]
fn what_was_lost_stays_lost_once_that_was_answered() {
    for seed in 0..20 {
        let disk = new_disk();
        let world = World::new(61);
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            let (_, store) = begin(&platform, &on).await;
            let block = allocate(&store, SMALL, ALICE).await.0;
            let early = take_part(&store, Some(StoreId(9)), Commit::default()).await;
            assert!(matches!(early, Answer::Prepared { .. }), "{early:?}");
            assert_eq!(ask(&store, Message::Abort(T)).await, Answer::Aborted);
            in_place(&platform).await;
            let failing = Fault::WriteError {
                leaves: WriteErrorLeaves::New,
            };
            let writes = Injection::next(failing).only(IoKind::Write);
            on.inject(writes.within(DATA).times(4));
            let other = TransactionId(78);
            let message = Message::PrepareAndDecide {
                transaction: other,
                previous: Some(StoreId(9)),
                as_of: store
                    .send(Message::Inquire(T))
                    .await
                    .expect("answers")
                    .as_of,
                part: write(block, 1),
            };
            assert_eq!(ask(&store, message).await, Answer::Gone, "it is lost");
            assert_eq!(store.counters().groups_lost, 1);
        });
        let _ = world.crash();
        disk.power_loss(&mut Rng::new(seed));
        let world = World::new(67);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engine = open_engine(&platform, &disk).await;
            let store = open_store(&platform, &engine, 0).await;
            assert_eq!(store.records().await, Ok(Vec::new()), "seed {seed}");
        });
    }
}
