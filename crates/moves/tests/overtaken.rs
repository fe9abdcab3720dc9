//! Requests of an origin that overtake each other on their way, most of all what was sent before it asked where its copy goes on; and a target that says
//! what can't be.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_client::{Client, Error, Options};
use flagstone_device::engine::DvolError;
use flagstone_device::transfer::{Arrival, Marks, Point, What};
use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest, Arrivals};
use flagstone_gateway::native::volume::NativeError;
use flagstone_gateway::native::{Ends, NativeLimits};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Cut, DiskConfig, NetworkConfig, SegmentFaults, SimDisk, World, WorldConfig};
use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::arrival::{Again, Arrive, ArrivingRun, LeftCopy, Settled, Step, Warrant};
use flagstone_wire::proof::Key;
use flagstone_wire::{Operation, Status};

use crate::arrivals::{announced, point, runs_at, with_arrival};
use crate::between::{Model, Scene, check};
use crate::nobody::Nobody;
use crate::node::{
    ARRIVAL, BLOCK, Both, ID, KEY, ORIGIN, OneArrival, SimConnect, Store, TARGET, TestKeeper,
    TestMarks, at, begin, move_volume, serve,
};
use crate::resumed::filled;

/// Up to where the copy is, as is written down with it.
fn saved_bytes(store: &Store) -> u64 {
    let (handle, _) = store.volume().expect("is there");
    let attributes = store.engine.attributes_of(handle).expect("is there");
    let point = TestMarks.point_of(&attributes);
    point.expect("has a point").offset_bytes
}

/// What was being carried out before an origin asks again belongs to what it is told, and what waits behind its question comes too late.
#[test]
fn requests_that_wait_for_each_other_keep_their_order() {
    with_arrival(|_, store, arrival, _| async move {
        let new = || announced(8 * BLOCK);
        let (first, _) = arrival.again(1, new()).await.expect("is promised");
        arrival.begin(first, new()).await.expect("begins");
        arrival.take(first, runs_at(0, 1)).await.expect("takes");
        arrival.save(first, point(BLOCK)).await.expect("saves");
        let mut taken = pin!(arrival.take(first, runs_at(3, 2)));
        let mut again = pin!(arrival.again(first, new()));
        let mut saved = pin!(arrival.save(first, point(8 * BLOCK)));
        let mut late = pin!(arrival.take(first, runs_at(5, 9)));
        let (mut took, mut told, mut refused) = (None, None, Vec::new());
        let (mut is_saved, mut is_late) = (false, false);
        // In this order from the first look on.
        poll_fn(|cx| {
            if took.is_none()
                && let Poll::Ready(done) = taken.as_mut().poll(cx)
            {
                took = Some(done);
            }
            if told.is_none()
                && let Poll::Ready(done) = again.as_mut().poll(cx)
            {
                assert!(took.is_some(), "what came before is under way");
                told = Some(done);
            }
            if !is_saved && let Poll::Ready(done) = saved.as_mut().poll(cx) {
                is_saved = true;
                refused.push(done);
            }
            if !is_late && let Poll::Ready(done) = late.as_mut().poll(cx) {
                is_late = true;
                refused.push(done);
            }
            match told.is_some() && refused.len() == 2 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        assert_eq!(took, Some(Ok(())));
        let (second, left) = told.expect("is told").expect("goes on");
        assert!(second > first);
        let left = left.expect("has a point");
        assert_eq!(left.point.offset_bytes, BLOCK);
        assert_eq!(left.again, vec![3 * BLOCK..4 * BLOCK]);
        assert_eq!(refused, [Err(DvolError::StaleEpoch); 2]);
        assert_eq!(saved_bytes(&store), BLOCK);
    });
}

fn arrive(name: &str) -> Arrive<'_> {
    Arrive {
        warrant: Warrant {
            arrival: 0,
            proof: [0; 32],
        },
        id: ID,
        size_bytes: 8 * BLOCK,
        reserved_bytes: 0,
        epoch: Epoch(9),
        highest_layer: LayerNo(4),
        snapshot_count: 0,
        attributes: [0; _],
        name,
    }
}

fn block_of(at: u64, byte: u8) -> ([ArrivingRun; 1], Vec<IoBuf>) {
    let run = ArrivingRun {
        offset_bytes: at * BLOCK,
        len_bytes: BLOCK,
        is_zeros: false,
        metadata: byte.into(),
    };
    ([run], vec![IoBuf::copy_of(&[byte; BLOCK as usize])])
}

/// What an earlier life of the origin has sent, and the network has kept until the next one was told where it goes on.
#[test]
fn what_was_sent_before_comes_behind_the_answer() {
    let world = World::new(8);
    let (platform, network) = (world.platform(0), world.network());
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
        let lives = ["earlier", "later"].map(|life| {
            let options = Options::new(vec![at()], life);
            let client = Client::new(platform.clone(), SimConnect(network.clone()), options);
            Rc::new(client.arrival(at(), ARRIVAL, KEY))
        });
        let [before, after] = lives;
        let deadline = platform.now().plus_ns(60_000_000_000);
        let new = arrive("vm");
        before.begin(&new, deadline).await.expect("begins");
        let (runs, bytes) = block_of(0, 1);
        let sent = before.runs(&runs, bytes, deadline).await;
        sent.expect("is taken");
        let saved = Step::Point(point(BLOCK).encode());
        before.step(&saved, deadline).await.expect("is saved");
        // What is sent now comes a second later.
        network.set_config(NetworkConfig {
            segments: SegmentFaults {
                resend_ns: 1_000_000_000..=1_000_000_000,
                ..SegmentFaults::default()
            },
            ..network.config()
        });
        network.cut(&at().to_string(), Cut::To);
        let came: Rc<RefCell<Vec<Result<(), Error>>>> = Rc::default();
        for is_point in [false, true] {
            let (before, came) = (before.clone(), came.clone());
            platform.spawn(async move {
                let (runs, bytes) = block_of(3, 9);
                let saved = Step::Point(point(8 * BLOCK).encode());
                let done = match is_point {
                    true => before.step(&saved, deadline).await,
                    false => before.runs(&runs, bytes, deadline).await,
                };
                came.borrow_mut().push(done);
            });
        }
        platform.sleep_ns(50_000_000).await;
        network.heal();
        let asked = after.again(&new, deadline).await.expect("goes on");
        assert!(came.borrow().is_empty(), "they come later");
        let told = attempts.borrow().len();
        let left = asked.left.expect("has a point");
        assert!(left.again.is_empty(), "all that has come is in the point");
        let (runs, bytes) = block_of(1, 2);
        let sent = after.runs(&runs, bytes, deadline).await;
        sent.expect("is taken");
        while came.borrow().len() < 2 {
            platform.sleep_ns(10_000_000).await;
        }
        for late in came.take() {
            let refused = late.expect_err("is refused");
            assert_eq!(refused.status(), Some(Status::StaleEpoch), "{refused}");
        }
        let late = attempts.borrow()[told..].to_vec();
        assert_eq!(late.iter().filter(|attempt| **attempt == 1).count(), 2);
        assert_eq!(saved_bytes(&store), BLOCK, "its point isn't written down");
        let (handle, _) = store.volume().expect("is there");
        let read = store.engine.read(handle, 3 * BLOCK, BLOCK).await;
        let holds_it = format!("{read:?}").contains("Data");
        assert!(!holds_it, "nor is what came with it");
        let saved = Step::Point(point(2 * BLOCK).encode());
        after.step(&saved, deadline).await.expect("is saved");
        assert_eq!(saved_bytes(&store), 2 * BLOCK);
    });
}

/// Takes all it is sent, breaks off once, and says then that it is so far.
#[derive(Clone)]
struct Liar {
    point: Point,
    /// Requests to copy that it takes before it breaks off.
    takes: Rc<Cell<u64>>,
}

impl Arrivals for Liar {
    fn key(&self, _: u32, _: Option<DvolId>) -> Option<Key> {
        Some(KEY)
    }

    async fn carry_out(
        &self,
        _: u32,
        _: u64,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        Ok(match request {
            ArrivalRequest::Runs(..) => {
                let left = self.takes.get();
                self.takes.set(left.wrapping_sub(1));
                if left == 0 {
                    return Err(NativeError::NotFound);
                }
                ArrivalReply::Done
            }
            ArrivalRequest::Again(_) => ArrivalReply::Again(Again {
                attempt: 1 << 20,
                left: Some(LeftCopy {
                    point: self.point.encode(),
                    again: Vec::new(),
                }),
            }),
            ArrivalRequest::Finish(_) => ArrivalReply::At(at()),
            ArrivalRequest::Settle { confirm: true, .. } => {
                ArrivalReply::Settled(Settled::Arrived(at()))
            }
            ArrivalRequest::Settle { .. } => ArrivalReply::Settled(Settled::Never),
            _ => ArrivalReply::Done,
        })
    }

    fn unknown(&self, _: DeviceId, _: DvolId) -> Settled {
        Settled::NotHere
    }

    fn audit(&self, _: u32, _: Operation, _: &str, _: Ends) {}
}

/// Moves a volume with one snapshot to a target that is so far, as it says. Whether it goes, and why not.
fn is_told(snapshots: u32, of: impl Fn(LayerNo) -> Option<LayerNo>) -> (bool, Option<DvolError>) {
    let world = World::with_config(WorldConfig::new(92).cores(3));
    let (disks, store, device, both) = begin(&world);
    let scene = Scene {
        world,
        disks,
        before: [0; 2],
        device,
        both: both.clone(),
        left: Rc::default(),
    };
    let model = Model::default();
    let had = filled(&scene, &model);
    let layers = store.engine.layers(ID);
    let layer = layers[0].handle.layer.expect("is a snapshot");
    let point = Point {
        snapshots,
        of: of(layer),
        what: What::Allocated,
        offset_bytes: 0,
        mark: Lsn(0),
        lsn: Lsn(7),
        copied_bytes: BLOCK,
    };
    let directory = Nobody {
        arrivals: Liar {
            point,
            takes: Rc::new(Cell::new(3)),
        },
        at: at(),
        incarnation: 1,
    };
    let network = scene.world.network();
    let listener = network.listen(&at().to_string()).expect("listens");
    let limits = NativeLimits::default();
    let serving = serve(scene.world.platform(TARGET), listener, directory, limits);
    scene.world.spawn(TARGET, serving);
    let platform = scene.world.platform(ORIGIN);
    let moving = move_volume(platform, network, store, device, both.clone(), u64::MAX);
    scene.world.spawn(ORIGIN, moving);
    scene.run_until(|| false);
    let went = both.origin.ended.get().expect("ends");
    assert_eq!(both.origin.cut_off.get(), 1, "it has broken off");
    if !went {
        check(&scene.world, "it is lied to", false, &both, &model, had);
    }
    (went, both.origin.error.get())
}

/// The volume would be gone, and what is there not all of it.
#[test]
fn a_copy_that_can_not_be_of_the_volume_is_not_gone_on_with() {
    let other = |layer: LayerNo| Some(LayerNo(layer.0 + 1));
    let refused = (false, Some(DvolError::Invalid));
    assert_eq!(is_told(0, |_| None), refused, "without its snapshot");
    assert_eq!(is_told(0, other), refused, "of another snapshot");
    assert_eq!(is_told(1, Some), refused, "of one that it has");
    assert_eq!(is_told(1, other), refused, "of one too many");
    assert_eq!(is_told(2, |_| None), refused, "with one too many");
    // As far as can be known.
    assert_eq!(is_told(0, Some), (true, None));
    assert_eq!(is_told(1, |_| None), (true, None));
}
