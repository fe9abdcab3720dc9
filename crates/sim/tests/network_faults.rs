//! What happens to single segments below the streams: lost, twice, overtaken, cut off.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_sim::{Cut, FaultsSeen, NetworkConfig, SegmentFaults, SimStream, World, WorldConfig};

const ADDRESS: &str = "10.0.0.9:4420";
const SECOND_NS: u64 = 1_000_000_000;

fn config(seed: u64, segments: SegmentFaults) -> WorldConfig {
    WorldConfig {
        network: NetworkConfig {
            segment_max_bytes: 500,
            segments,
            ..NetworkConfig::default()
        },
        ..WorldConfig::new(seed)
    }
}

/// A world and the two ends of a connection in it.
fn connected(config: WorldConfig) -> (World, SimStream, SimStream) {
    let world = World::with_config(config);
    let network = world.network();
    let listener = network.listen(ADDRESS).expect("nobody listens");
    let connecting = network.connect(ADDRESS);
    let (called, accepted) = world.block_on(0, async move {
        let called = connecting.await.expect("somebody listens");
        (called, listener.accept().await.expect("accepted"))
    });
    (world, called, accepted)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

async fn send(stream: &SimStream, bytes: &[u8]) -> Result<(), ErrorKind> {
    let (_, result) = stream.write_all(vec![IoBuf::copy_of(bytes)]).await;
    result.map_err(|error| error.kind())
}

async fn receive(stream: &SimStream, len: usize) -> Result<Vec<u8>, ErrorKind> {
    let (buf, result) = stream.read_exact(IoBuf::zeroed(len)).await;
    result.map_err(|error| error.kind())?;
    Ok(buf.to_vec())
}

/// What a task has come to, once it has.
type Outcome<T> = Rc<RefCell<Option<T>>>;

fn start<T: 'static>(world: &World, work: impl Future<Output = T> + 'static) -> Outcome<T> {
    let outcome: Outcome<T> = Rc::default();
    let end = outcome.clone();
    world.spawn(0, async move {
        let result = work.await;
        end.replace(Some(result));
    });
    outcome
}

#[test]
fn bytes_come_once_and_in_order_whatever_happens_to_segments() {
    let mut seen = FaultsSeen::default();
    for seed in 0..40 {
        let (world, called, accepted) = connected(config(seed, SegmentFaults::of_all_kinds()));
        let (there, back) = (called.clone(), accepted.clone());
        start(&world, async move { send(&there, &bytes(60_000)).await });
        start(&world, async move { send(&back, &bytes(30_000)).await });
        let got = world.block_on(0, async move {
            let there = receive(&accepted, 60_000).await;
            (there, receive(&called, 30_000).await)
        });
        assert!(got == (Ok(bytes(60_000)), Ok(bytes(30_000))), "seed {seed}");
        seen += world.network().faults_seen();
    }
    let all = [
        seen.lost,
        seen.duplicated,
        seen.dropped_twice,
        seen.reordered,
        seen.came_early,
    ];
    assert!(all.iter().all(|count| *count > 100), "{seen:?}");
    assert_eq!((seen.cut_off, seen.timed_out), (0, 0));
}

#[test]
fn each_fault_alone_is_what_was_asked_for() {
    let seen = |segments: SegmentFaults| {
        let (world, called, accepted) = connected(config(1, segments));
        start(&world, async move { send(&called, &bytes(60_000)).await });
        let got = world.block_on(0, async move { receive(&accepted, 60_000).await });
        assert_eq!(got, Ok(bytes(60_000)));
        world.network().faults_seen()
    };
    let none = SegmentFaults::default;
    assert_eq!(seen(none()), FaultsSeen::default());
    let lost = seen(SegmentFaults {
        loss: 0.1,
        ..none()
    });
    assert!(lost.lost > 0 && lost.came_early > 0, "{lost:?}");
    assert_eq!((lost.duplicated, lost.reordered), (0, 0));
    let twice = seen(SegmentFaults {
        duplicate: 0.1,
        ..none()
    });
    assert!(twice.duplicated > 0 && twice.lost == 0, "{twice:?}");
    let overtaken = seen(SegmentFaults {
        reorder: 0.1,
        ..none()
    });
    assert!(overtaken.came_early > 0, "{overtaken:?}");
    assert_eq!((overtaken.lost, overtaken.duplicated), (0, 0));
}

#[test]
fn nothing_passes_a_cut_and_all_of_it_comes_once_that_is_healed() {
    for cut in [Cut::Both, Cut::To, Cut::From] {
        let (world, called, accepted) = connected(config(2, SegmentFaults::default()));
        let network = world.network();
        network.cut(ADDRESS, cut);
        let asked = start(&world, async move {
            send(&called, b"question").await.expect("there is room");
            receive(&called, 6).await
        });
        let heard = start(&world, async move {
            let question = receive(&accepted, 8).await;
            send(&accepted, b"answer").await.expect("there is room");
            question
        });
        world.run_for(SECOND_NS);
        assert_eq!(*asked.borrow(), None, "{cut:?}");
        let has_come = heard.borrow().is_some();
        assert_eq!(has_come, cut == Cut::From, "the other direction: {cut:?}");
        network.heal();
        world.run_for(10 * SECOND_NS);
        assert_eq!(*heard.borrow(), Some(Ok(b"question".to_vec())), "{cut:?}");
        assert_eq!(*asked.borrow(), Some(Ok(b"answer".to_vec())), "{cut:?}");
        assert!(network.faults_seen().cut_off > 0);
    }
}

#[test]
fn who_sends_in_vain_gives_up_and_the_other_side_hears_of_it_when_it_sends() {
    let (world, called, accepted) = connected(config(3, SegmentFaults::default()));
    let network = world.network();
    network.cut(ADDRESS, Cut::Both);
    let asks = called.clone();
    let asked = start(&world, async move {
        send(&asks, b"question").await.expect("there is room");
        receive(&asks, 1).await
    });
    let waits = accepted.clone();
    let waiting = start(&world, async move { receive(&waits, 1).await });
    world.run_for(30 * SECOND_NS);
    assert_eq!(*asked.borrow(), Some(Err(ErrorKind::TimedOut)));
    assert_eq!(network.faults_seen().timed_out, 1);
    let after = called.clone();
    let again = world.block_on(0, async move { send(&after, b"x").await });
    assert_eq!(again, Err(ErrorKind::TimedOut));
    // Half open: nobody has told the other side, and nobody will.
    network.heal();
    world.run_for(30 * SECOND_NS);
    assert_eq!(*waiting.borrow(), None);
    let says = accepted.clone();
    world.block_on(
        0,
        async move { send(&says, b"hello?").await.expect("room") },
    );
    world.run_for(SECOND_NS);
    assert_eq!(*waiting.borrow(), Some(Err(ErrorKind::ConnectionReset)));
}

/// A reset is a message, too.
#[test]
fn a_reset_that_does_not_pass_is_not_heard() {
    let (world, called, accepted) = connected(config(4, SegmentFaults::default()));
    let network = world.network();
    let says = called.clone();
    world.block_on(
        0,
        async move { send(&says, b"unread").await.expect("room") },
    );
    world.run_for(SECOND_NS);
    network.cut(ADDRESS, Cut::From);
    // With bytes unread: that resets, if it is heard.
    drop(accepted);
    let waits = called.clone();
    let waiting = start(&world, async move { receive(&waits, 1).await });
    world.run_for(SECOND_NS);
    assert_eq!(*waiting.borrow(), None);
    // What is sent there comes to nobody, and that it does isn't heard either, for as long as the sender waits.
    let more = called.clone();
    world.block_on(0, async move { send(&more, b"more").await.expect("room") });
    world.run_for(30 * SECOND_NS);
    assert_eq!(*waiting.borrow(), Some(Err(ErrorKind::TimedOut)));
}

#[test]
fn calls_wait_for_a_cut_to_heal_and_not_for_ever() {
    for cut in [Cut::Both, Cut::To, Cut::From] {
        let world = World::with_config(config(5, SegmentFaults::default()));
        let network = world.network();
        let _listener = network.listen(ADDRESS).expect("nobody listens");
        network.cut(ADDRESS, cut);
        let call = network.connect(ADDRESS);
        let called = start(&world, async move {
            call.await.map(drop).map_err(|error| error.kind())
        });
        world.run_for(SECOND_NS);
        assert_eq!(*called.borrow(), None, "{cut:?}");
        network.heal();
        world.run_for(10 * SECOND_NS);
        assert_eq!(*called.borrow(), Some(Ok(())), "{cut:?}");
        network.cut(ADDRESS, cut);
        let call = network.connect(ADDRESS);
        let late = start(&world, async move {
            call.await.map(drop).map_err(|error| error.kind())
        });
        world.run_for(60 * SECOND_NS);
        assert_eq!(*late.borrow(), Some(Err(ErrorKind::TimedOut)), "{cut:?}");
        assert_eq!(network.connections(), 1, "what never came is nobody's");
    }
}

#[test]
fn others_are_not_cut_off() {
    let (world, called, accepted) = connected(config(6, SegmentFaults::default()));
    world.network().cut("10.0.0.8:4420", Cut::Both);
    let got = world.block_on(0, async move {
        send(&called, b"here").await.expect("room");
        receive(&accepted, 4).await
    });
    assert_eq!(got, Ok(b"here".to_vec()));
}

/// Whoever sees the same seed sees the same faults.
#[test]
fn faults_are_the_seeds() {
    let run = |seed| {
        let (world, called, accepted) = connected(config(seed, SegmentFaults::of_all_kinds()));
        start(&world, async move { send(&called, &bytes(60_000)).await });
        let got = world.block_on(0, async move { receive(&accepted, 60_000).await });
        assert_eq!(got, Ok(bytes(60_000)));
        let platform = world.platform(0);
        (world.network().faults_seen(), platform.now())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
