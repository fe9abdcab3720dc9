//! One arrival: what comes twice, what comes late, who has no key.

use std::rc::Rc;

use flagstone_client::{Client, Options};
use flagstone_device::engine::{DvolError, Piece};
use flagstone_device::transfer::{Announced, Arrival, Became, NewDvol, Point, Run, What};
use flagstone_gateway::native::NativeLimits;
use flagstone_platform::Platform;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};
use flagstone_types::{DeviceId, Epoch, LayerNo, Lsn};
use flagstone_wire::Status;
use flagstone_wire::arrival::{Settled, Step};
use flagstone_wire::proof::Key;

use crate::nobody::Nobody;
use crate::node::{
    ARRIVAL, BLOCK, Both, ID, KEY, OneArrival, SimConnect, Store, TestKeeper, TestMarks, at, serve,
    tokens,
};

type TestArrival = Rc<Arrival<SimPlatform, TestMarks, TestKeeper>>;

pub(crate) fn announced(size_bytes: u64) -> Announced {
    Announced {
        new: NewDvol {
            id: ID,
            name: "vm".into(),
            reserved_bytes: 0,
            attributes: [0; _],
        },
        size_bytes,
        epoch: Epoch(9),
        above: LayerNo(4),
    }
}

/// It is done up to there.
pub(crate) fn point(offset_bytes: u64) -> Point {
    Point {
        snapshots: 0,
        of: None,
        what: What::Allocated,
        offset_bytes,
        mark: Lsn(5),
        lsn: Lsn(0),
        copied_bytes: offset_bytes,
    }
}

fn runs(byte: u8) -> Vec<Run> {
    runs_at(0, byte)
}

pub(crate) fn runs_at(block: u64, byte: u8) -> Vec<Run> {
    let bytes = vec![byte; BLOCK as usize];
    vec![Run::Data {
        offset_bytes: block * BLOCK,
        meta: byte.into(),
        bytes,
    }]
}

async fn first_byte(store: &Store) -> u8 {
    let (handle, _) = store.volume().expect("is there");
    let read = store.engine.read(handle, 0, BLOCK).await;
    match &read.expect("can be read")[..] {
        [Piece::Data(data)] => data[0],
        _ => 0,
    }
}

pub(crate) fn with_arrival<F: Future<Output = ()> + 'static>(
    run: impl FnOnce(SimPlatform, Store, TestArrival, Both) -> F + 'static,
) {
    let world = World::new(5);
    let platform = world.platform(0);
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    world.block_on(0, async move {
        let store = Store::format(&platform, &disk).await;
        let both = Both::default();
        let keeper = TestKeeper::new(&store, &both);
        let arrival = Arrival::new(store.engine.clone(), TestMarks, keeper);
        run(platform, store, Rc::new(arrival), both).await;
    });
}

/// What was sent over a connection that broke can come behind what was sent over the next one.
#[test]
fn what_comes_late_is_refused() {
    with_arrival(|_, store, arrival, _| async move {
        arrival
            .begin(1, announced(8 * BLOCK))
            .await
            .expect("begins");
        arrival.take(1, runs(1)).await.expect("takes");
        arrival.take(2, runs(2)).await.expect("takes");
        let late = DvolError::StaleEpoch;
        assert_eq!(arrival.take(1, runs(1)).await, Err(late));
        assert_eq!(arrival.resize(1, BLOCK).await, Err(late));
        let snapshot = arrival.snapshot(1, "late", 1, &[0; _], None).await;
        assert_eq!(snapshot, Err(late));
        assert_eq!(arrival.save(1, point(0)).await, Err(late));
        assert_eq!(arrival.finish(1, Some(tokens())).await, Err(late));
        assert_eq!(arrival.begin(1, announced(8 * BLOCK)).await, Err(late));
        assert_eq!(first_byte(&store).await, 2);
        assert!(store.engine.layers(ID).is_empty());
        assert_eq!(store.volume().expect("is there").1, 1, "still arriving");
    });
}

#[test]
fn everything_may_come_twice() {
    with_arrival(|_, store, arrival, both| async move {
        for _ in 0..2 {
            arrival
                .begin(1, announced(8 * BLOCK))
                .await
                .expect("begins");
        }
        let other = arrival.begin(1, announced(4 * BLOCK)).await;
        assert_eq!(other, Err(DvolError::NotFound), "another one");
        for _ in 0..2 {
            arrival.take(1, runs(1)).await.expect("takes");
            arrival.resize(1, 16 * BLOCK).await.expect("resizes");
        }
        for _ in 0..2 {
            let taken = arrival.snapshot(1, "one", 77, &[0; _], None).await;
            taken.expect("takes a snapshot");
        }
        let layers = store.engine.layers(ID);
        assert_eq!(layers.len(), 1);
        assert_eq!(layers[0].created_ns, 77);
        assert!(
            layers[0].handle.layer > Some(LayerNo(4)),
            "above the origin's"
        );
        assert!(both.target.here.borrow().is_none());
        for _ in 0..2 {
            arrival.finish(1, Some(tokens())).await.expect("arrives");
        }
        assert!(both.target.here.borrow().is_some());
        let (handle, mark) = store.volume().expect("is there");
        assert_eq!(mark, 0, "plain");
        assert_eq!(store.engine.size_of(handle), Ok(16 * BLOCK));
        assert_eq!(store.engine.epoch_of(handle), Ok(Epoch(9)));
        // Too late to be given up, or to be changed.
        assert_eq!(arrival.settle(true).await, Became::Arrived);
        assert_eq!(arrival.take(1, runs(3)).await, Err(DvolError::NotFound));
        assert!(store.note().await.is_some(), "until it is confirmed");
        for _ in 0..2 {
            arrival.confirm().await.expect("is confirmed");
        }
        assert_eq!(store.note().await, None);
        assert_eq!(first_byte(&store).await, 1);
    });
}

#[test]
fn what_was_given_up_never_arrives() {
    with_arrival(|_, store, arrival, both| async move {
        assert_eq!(arrival.settle(false).await, Became::Arriving);
        arrival
            .begin(1, announced(8 * BLOCK))
            .await
            .expect("begins");
        assert_eq!(arrival.settle(false).await, Became::Arriving);
        assert_eq!(arrival.settle(true).await, Became::Never);
        assert!(store.volume().is_none());
        for _ in 0..2 {
            let finished = arrival.finish(2, Some(tokens())).await;
            assert_eq!(finished, Err(DvolError::NotFound));
        }
        let again = arrival.begin(3, announced(8 * BLOCK)).await;
        assert_eq!(again, Err(DvolError::NotFound));
        arrival.confirm().await.expect("changes nothing");
        assert_eq!(arrival.settle(true).await, Became::Never);
        assert!(both.target.here.borrow().is_none());
    });
    with_arrival(|_, store, arrival, _| async move {
        assert_eq!(arrival.settle(true).await, Became::Never, "before it began");
        let begun = arrival.begin(1, announced(8 * BLOCK)).await;
        assert_eq!(begun, Err(DvolError::NotFound));
        assert!(store.volume().is_none());
    });
}

#[test]
fn what_was_cut_off_goes_on_from_what_is_durable() {
    with_arrival(|_, store, arrival, _| async move {
        let again = |attempt| arrival.again(attempt, announced(8 * BLOCK));
        let (first, left) = again(3).await.expect("is promised");
        assert!(first > 3 && left.is_none(), "nothing has come");
        // Whatever was sent before comes too late, however often its origin had connected.
        let begun = arrival.begin(1000, announced(8 * BLOCK)).await;
        assert_eq!(begun, Err(DvolError::StaleEpoch));
        let begin = |attempt| arrival.begin(attempt, announced(8 * BLOCK));
        begin(first).await.expect("begins");
        arrival.take(first, runs(1)).await.expect("takes");
        let (second, left) = again(first + 2).await.expect("is known");
        assert!(second > first + 1000 && left.is_none(), "without a point");
        assert!(store.volume().is_none(), "it is thrown away");
        assert_eq!(arrival.settle(false).await, Became::Arriving);
        let taken = arrival.take(second, runs(1)).await;
        assert_eq!(taken, Err(DvolError::NotFound), "it has not begun");
        begin(second).await.expect("begins");
        arrival.take(second, runs(1)).await.expect("takes");
        arrival.save(second, point(BLOCK)).await.expect("saves");
        arrival.take(second, runs_at(3, 2)).await.expect("takes");
        // By an origin that counts from 1 again.
        let (third, left) = again(1).await.expect("goes on");
        let left = left.expect("has a point");
        assert_eq!(left.point.offset_bytes, BLOCK);
        assert_eq!(left.point.copied_bytes, BLOCK);
        assert_eq!(left.again.len(), 1);
        assert_eq!(left.again[0], 3 * BLOCK..4 * BLOCK);
        let late = arrival.take(second, runs(9)).await;
        assert_eq!(late, Err(DvolError::StaleEpoch));
        arrival.take(third, runs_at(3, 4)).await.expect("takes");
        assert_eq!(first_byte(&store).await, 1);
        // The volume is another one by now.
        let mut later = announced(8 * BLOCK);
        later.epoch = Epoch(17);
        let (fourth, left) = arrival.again(third, later.clone()).await.expect("is known");
        assert_eq!(left, None);
        assert!(store.volume().is_none(), "it is thrown away");
        arrival.begin(fourth, later).await.expect("begins");
        assert_eq!(arrival.settle(true).await, Became::Never);
        assert_eq!(again(fourth).await, Err(DvolError::NotFound));
    });
}

/// What a start has found waits for its origin, which says first that it goes on.
#[test]
fn what_was_left_is_taken_up_or_given_up() {
    for (with_copy, goes_on) in [(false, true), (true, true), (true, false), (false, false)] {
        with_arrival(move |_, store, before, both| async move {
            let new = announced(8 * BLOCK);
            if with_copy {
                before.begin(1, new.clone()).await.expect("begins");
                before.take(1, runs(1)).await.expect("takes");
                before.save(1, point(BLOCK)).await.expect("saves");
                before.take(1, runs_at(1, 7)).await.expect("takes");
            }
            let copy = store.volume().map(|(handle, _)| (new.new.clone(), handle));
            let keeper = TestKeeper::new(&store, &both);
            let arrival = Arrival::left(store.engine.clone(), TestMarks, keeper, copy, 7);
            assert!(arrival.has_begun());
            for refused in [
                arrival.take(1, runs(9)).await,
                arrival.resize(1, BLOCK).await,
                arrival.save(1, point(2 * BLOCK)).await,
                arrival.finish(1, Some(tokens())).await,
            ] {
                assert_eq!(refused, Err(DvolError::NotFound));
            }
            assert_eq!(arrival.settle(false).await, Became::Arriving);
            if !goes_on {
                assert_eq!(arrival.settle(true).await, Became::Never);
                assert!(store.volume().is_none());
                assert_eq!(store.note().await, None);
                return;
            }
            let (attempt, left) = arrival.again(1, new.clone()).await.expect("goes on");
            // What was sent to this node before it was started again, whatever it had told the origin by then.
            for before in (0..20)
                .map(|told| (told << 20) + 1)
                .filter(|&before| before != attempt + 1)
            {
                let late = arrival.save(before, point(2 * BLOCK)).await;
                assert_eq!(late, Err(DvolError::StaleEpoch), "{before}");
            }
            let again = left.map(|left| (left.again.len(), left.again.into_iter().next()));
            let block = (1, Some(BLOCK..2 * BLOCK));
            assert_eq!(again, with_copy.then_some(block));
            if !with_copy {
                arrival.begin(attempt, new).await.expect("begins");
                arrival.take(attempt, runs(1)).await.expect("takes");
            }
            arrival.take(attempt, runs_at(1, 2)).await.expect("takes");
            let finished = arrival.finish(attempt, Some(tokens())).await;
            finished.expect("arrives");
            assert_eq!(first_byte(&store).await, 1);
            assert_eq!(store.volume().expect("is there").1, 0, "plain");
        });
    }
}

/// What doesn't fit leaves nothing.
#[test]
fn what_can_not_begin_leaves_nothing() {
    with_arrival(|_, store, arrival, _| async move {
        let mut huge = announced(8 * BLOCK);
        huge.new.reserved_bytes = 1 << 40;
        assert!(arrival.begin(1, huge).await.is_err());
        assert!(store.volume().is_none());
        assert_eq!(arrival.settle(true).await, Became::Never);
    });
}

#[test]
fn who_has_no_key_gets_nothing() {
    let world = World::new(6);
    let platform = world.platform(0);
    let network = world.network();
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    world.block_on(0, async move {
        let store = Store::format(&platform, &disk).await;
        let keeper = TestKeeper::new(&store, &Both::default());
        let arrival = Arrival::new(store.engine.clone(), TestMarks, keeper);
        let arrivals = OneArrival::new(Some(Rc::new(arrival)), &store);
        let wrong_proofs = arrivals.wrong_proofs.clone();
        let directory = Nobody {
            arrivals,
            at: at(),
            incarnation: 1,
        };
        let listener = network.listen(&at().to_string()).expect("listens");
        let limits = NativeLimits::default();
        platform.spawn(serve(platform.clone(), listener, directory, limits));
        let options = Options::new(vec![at()], "stranger");
        let client = Client::new(platform.clone(), SimConnect(network), options);
        let deadline = platform.now().plus_ns(10_000_000_000);
        let device = store.device();
        for (number, key) in [(ARRIVAL, Key([4; 32])), (ARRIVAL + 1, KEY)] {
            let stranger = client.arrival(at(), number, key);
            let finished = stranger.finish(Some(&tokens()), deadline).await;
            let refused = finished.expect_err("is refused");
            assert_eq!(refused.status(), Some(Status::Denied), "{refused}");
        }
        let wrong = client.arrival(at(), ARRIVAL, Key([4; 32]));
        let asked = wrong.settle(device, ID, (true, false), deadline).await;
        let refused = asked.expect_err("is refused");
        assert_eq!(refused.status(), Some(Status::Denied), "{refused}");
        assert_eq!(wrong_proofs.get(), 3);
        // One that isn't known never was, where its device is; elsewhere somebody else knows.
        let unknown = client.arrival(at(), ARRIVAL + 1, KEY);
        let asked = unknown.settle(device, ID, (true, false), deadline).await;
        assert_eq!(asked, Ok(Settled::Never));
        let elsewhere = DeviceId(device.0 ^ 1);
        let asked = unknown.settle(elsewhere, ID, (true, false), deadline).await;
        assert_eq!(asked, Ok(Settled::NotHere));
        let right = client.arrival(at(), ARRIVAL, KEY);
        let asked = right.settle(device, ID, (false, false), deadline).await;
        assert_eq!(asked, Ok(Settled::Arriving), "nothing has been done to it");
    });
}

#[test]
fn each_connection_is_another_attempt() {
    let world = World::new(7);
    let platform = world.platform(0);
    let network = world.network();
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    world.block_on(0, async move {
        let store = Store::format(&platform, &disk).await;
        let keeper = TestKeeper::new(&store, &Both::default());
        let arrival = Arrival::new(store.engine.clone(), TestMarks, keeper);
        let arrivals = OneArrival::new(Some(Rc::new(arrival)), &store);
        let attempts = arrivals.attempts.clone();
        let directory = Nobody {
            arrivals,
            at: at(),
            incarnation: 1,
        };
        let listener = network.listen(&at().to_string()).expect("listens");
        let limits = NativeLimits::default();
        platform.spawn(serve(platform.clone(), listener, directory, limits));
        let options = Options::new(vec![at()], "origin");
        let client = Client::new(platform.clone(), SimConnect(network.clone()), options);
        let origin = client.arrival(at(), ARRIVAL, KEY);
        let deadline = platform.now().plus_ns(60_000_000_000);
        for breaks in [false, true, false, true] {
            if breaks {
                network.reset_all();
            }
            // Nothing has begun, so there is nothing to resize.
            let stepped = origin.step(&Step::Size(BLOCK), deadline).await;
            let refused = stepped.expect_err("is refused");
            assert_eq!(refused.status(), Some(Status::NotFound), "{refused}");
        }
        assert_eq!(*attempts.borrow(), [1, 2, 2, 3]);
    });
}
