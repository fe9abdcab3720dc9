//! The simulated network: streams and listeners as the gateways use them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Listener, Platform, Stream};
use flagstone_sim::{NetworkConfig, SimStream, World, WorldConfig};

/// A world and the two ends of a connection in it.
fn connected(config: WorldConfig) -> (World, SimStream, SimStream) {
    let world = World::with_config(config);
    let network = world.network();
    let listener = network
        .listen("127.0.0.1:10809")
        .expect("the address is free");
    assert_eq!(listener.local_address(), "127.0.0.1:10809");
    let connecting = network.connect("127.0.0.1:10809");
    let (called, accepted) = world.block_on(0, async move {
        let called = connecting.await.expect("somebody listens");
        (
            called,
            listener.accept().await.expect("accepting does not fail"),
        )
    });
    (world, called, accepted)
}

fn calm(seed: u64) -> (World, SimStream, SimStream) {
    connected(WorldConfig::new(seed))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 253) as u8).collect()
}

async fn send(stream: &SimStream, bytes: &[u8]) -> Result<(), ErrorKind> {
    // In several buffers of odd lengths.
    let bufs = bytes.chunks(1 + bytes.len() / 3).map(IoBuf::copy_of);
    let (_, result) = stream.write_all(bufs.collect()).await;
    result.map_err(|error| error.kind())
}

async fn receive(stream: &SimStream, len: usize) -> Result<Vec<u8>, ErrorKind> {
    let (buf, result) = stream.read(IoBuf::zeroed(len)).await;
    let count = result.map_err(|error| error.kind())?;
    Ok(buf[..count].to_vec())
}

async fn receive_exact(stream: &SimStream, len: usize) -> Result<Vec<u8>, ErrorKind> {
    let (buf, result) = stream.read_exact(IoBuf::zeroed(len)).await;
    result.map_err(|error| error.kind())?;
    Ok(buf.to_vec())
}

/// Reads to the end.
async fn receive_all(stream: &SimStream) -> Result<Vec<u8>, ErrorKind> {
    let mut all = Vec::new();
    loop {
        let more = receive(stream, 10_000).await?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

#[test]
fn bytes_arrive_in_order_and_complete() {
    for seed in 0..20 {
        let (world, called, accepted) = calm(seed);
        // Beyond the window, so the writer has to wait for the reader.
        let sent = bytes(700_000);
        let to_send = sent.clone();
        world.spawn(0, async move {
            send(&called, &to_send).await.unwrap();
        });
        let got = world.block_on(0, async move { receive_all(&accepted).await });
        assert_eq!(got.unwrap(), sent);
    }
}

#[test]
fn reads_return_random_short_counts() {
    let (world, called, accepted) = calm(3);
    let lengths: BTreeSet<usize> = world.block_on(0, async move {
        send(&called, &bytes(100_000)).await.unwrap();
        drop(called);
        let mut lengths = BTreeSet::new();
        loop {
            match receive(&accepted, 5_000).await.unwrap().len() {
                0 => return lengths,
                len => lengths.insert(len),
            };
        }
    });
    assert!(lengths.len() > 5, "{lengths:?}");
    assert!(lengths.contains(&5_000));
}

#[test]
fn exact_reads_fill_the_buffer_or_fail() {
    let (world, called, accepted) = calm(4);
    world.block_on(0, async move {
        send(&called, &bytes(1_000)).await.unwrap();
        assert_eq!(receive_exact(&accepted, 600).await.unwrap(), bytes(600));
        drop(called);
        let end = receive_exact(&accepted, 600).await;
        assert_eq!(end.unwrap_err(), ErrorKind::UnexpectedEof);
        assert_eq!(receive_exact(&accepted, 0).await.unwrap(), []);
        assert_eq!(receive(&accepted, 5).await.unwrap(), []);
    });
}

#[test]
fn a_half_closed_stream_still_receives() {
    let (world, called, accepted) = calm(5);
    world.block_on(0, async move {
        send(&called, b"request").await.unwrap();
        called.close_writing();
        let late = send(&called, b"more").await;
        assert_eq!(late.unwrap_err(), ErrorKind::BrokenPipe);
        assert_eq!(receive_all(&accepted).await.unwrap(), b"request");
        send(&accepted, b"answer").await.unwrap();
        drop(accepted);
        assert_eq!(receive_all(&called).await.unwrap(), b"answer");
    });
}

#[test]
fn shutdown_ends_what_is_pending_on_both_sides() {
    let (world, called, accepted) = calm(6);
    let results: Rc<RefCell<Vec<String>>> = Rc::default();
    let log = results.clone();
    let reader = called.clone();
    world.spawn(0, async move {
        let read = receive(&reader, 10).await;
        log.borrow_mut().push(format!("called read {read:?}"));
    });
    let (writer, log) = (called.clone(), results.clone());
    world.spawn(0, async move {
        // More than the window holds, and the peer does not read.
        let written = send(&writer, &bytes(1 << 20)).await;
        log.borrow_mut().push(format!("called write {written:?}"));
    });
    world.run_until_idle();
    assert_eq!(world.tasks_alive(), 2, "both wait");
    called.shutdown();
    called.shutdown();
    world.run_until_idle();
    let mut results = results.take();
    results.sort();
    assert_eq!(
        results,
        ["called read Ok([])", "called write Err(BrokenPipe)"]
    );
    let got = world.block_on(0, async move { receive_all(&accepted).await.unwrap() });
    assert_eq!(got, bytes(256 << 10), "what was sent before arrives");
}

#[test]
fn dropping_the_last_clone_ends_a_pending_read() {
    let (world, called, _accepted) = calm(7);
    let other = called.clone();
    let reading = called.read(IoBuf::zeroed(10));
    let ended = Rc::new(RefCell::new(None));
    let slot = ended.clone();
    world.spawn(0, async move {
        let (_, result) = reading.await;
        slot.replace(Some(result.unwrap()));
    });
    drop(called);
    world.run_until_idle();
    assert_eq!(ended.take(), None, "a clone is left");
    drop(other);
    world.run_until_idle();
    assert_eq!(ended.take(), Some(0));
}

#[test]
fn writing_to_a_peer_that_is_gone_resets() {
    let (world, called, accepted) = calm(8);
    let platform = world.platform(0);
    world.block_on(0, async move {
        drop(accepted);
        // The first write may succeed: nobody knows yet.
        let _ = send(&called, b"anyone?").await;
        platform.sleep_ns(10_000_000).await;
        let second = send(&called, b"hello?").await;
        assert_eq!(second.unwrap_err(), ErrorKind::ConnectionReset);
        let read = receive(&called, 10).await;
        assert_eq!(read.unwrap_err(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn closing_with_bytes_unread_resets_the_peer() {
    let (world, called, accepted) = calm(9);
    let platform = world.platform(0);
    world.block_on(0, async move {
        send(&called, b"never read").await.unwrap();
        platform.sleep_ns(10_000_000).await;
        drop(accepted);
        platform.sleep_ns(10_000_000).await;
        assert_eq!(
            receive(&called, 10).await.unwrap_err(),
            ErrorKind::ConnectionReset
        );
    });
}

#[test]
fn resets_reach_whoever_waits() {
    let (world, called, accepted) = calm(10);
    let network = world.network();
    assert_eq!(network.connections(), 1);
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    world.spawn(0, async move {
        let read = receive(&accepted, 10).await;
        slot.replace(Some(read));
    });
    world.run_until_idle();
    network.reset_all();
    world.run_until_idle();
    assert_eq!(result.take(), Some(Err(ErrorKind::ConnectionReset)));
    assert_eq!(network.connections(), 0);
    called.reset();
    let sent = world.block_on(0, async move { send(&called, b"x").await });
    assert_eq!(sent, Err(ErrorKind::ConnectionReset));
}

#[test]
fn connections_are_reset_by_chance() {
    let mut config = WorldConfig::new(11);
    config.network = NetworkConfig {
        reset: 0.02,
        ..NetworkConfig::default()
    };
    let (mut reset, mut whole) = (0, 0);
    for seed in 0..60 {
        config.seed = seed;
        let (world, called, accepted) = connected(config.clone());
        world.spawn(0, async move {
            let _ = send(&called, &bytes(200_000)).await;
        });
        match world.block_on(0, async move { receive_all(&accepted).await }) {
            Ok(got) => {
                assert_eq!(got, bytes(200_000));
                whole += 1;
            }
            Err(error) => {
                assert_eq!(error, ErrorKind::ConnectionReset);
                reset += 1;
            }
        }
    }
    assert!(reset > 10 && whole > 10, "{reset} reset, {whole} whole");
}

#[test]
fn slow_segments_hold_up_those_behind_them() {
    let mut config = WorldConfig::new(12);
    config.network = NetworkConfig {
        slow: 0.3,
        slow_ns: 1_000_000_000..=1_000_000_000,
        segment_max_bytes: 100,
        ..NetworkConfig::default()
    };
    let (world, called, accepted) = connected(config);
    let start = world.now();
    let got = world.block_on(0, async move {
        send(&called, &bytes(5_000)).await.unwrap();
        drop(called);
        receive_all(&accepted).await.unwrap()
    });
    assert_eq!(got, bytes(5_000));
    assert!(world.now().since(start) >= 1_000_000_000);
}

#[test]
fn a_dropped_read_swallows_bytes() {
    let (world, called, accepted) = calm(13);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let mut reading = Box::pin(accepted.read(IoBuf::zeroed(4)));
        let pending = std::future::poll_fn(|context| {
            std::task::Poll::Ready(reading.as_mut().poll(context).is_pending())
        });
        assert!(pending.await);
        drop(reading);
        send(&called, b"abcdefgh").await.unwrap();
        drop(called);
        platform.sleep_ns(10_000_000).await;
        let rest = receive_all(&accepted).await.unwrap();
        assert!(rest.len() < 8 && rest.len() >= 4, "{rest:?}");
        assert!(b"abcdefgh".ends_with(&rest[..]));
    });
}

#[test]
#[should_panic(expected = "two reads")]
fn two_reads_at_once_panic() {
    let (world, called, _accepted) = calm(14);
    for _ in 0..2 {
        let stream = called.clone();
        world.spawn(0, async move {
            let _ = receive(&stream, 10).await;
        });
    }
    world.run_until_idle();
}

#[test]
fn addresses_are_taken_refused_and_freed() {
    let world = World::new(15);
    let network = world.network();
    let refused = network.connect("nowhere");
    let refused = world.block_on(0, refused);
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::ConnectionRefused);
    let listener = network.listen("unix:/run/flagstone").unwrap();
    let taken = network.listen("unix:/run/flagstone");
    assert_eq!(taken.err().unwrap().kind(), ErrorKind::AddrInUse);
    let connecting = network.connect_from("10.1.2.3:5000", "unix:/run/flagstone");
    let stream = world.block_on(0, connecting).unwrap();
    assert_eq!(stream.peer(), "unix:/run/flagstone");
    let (accepted, listener) = world.block_on(0, async move {
        let accepted = listener.accept().await.unwrap();
        (accepted, listener)
    });
    assert_eq!(accepted.peer(), "10.1.2.3:5000");
    // Who was not accepted sees the end when the listener goes.
    let waiting = network.connect("unix:/run/flagstone");
    let waiting = world.block_on(0, waiting).unwrap();
    drop(listener);
    let ended = world.block_on(0, async move { receive(&waiting, 1).await });
    assert_eq!(ended, Ok(Vec::new()));
    assert!(network.listen("unix:/run/flagstone").is_ok());
}

#[test]
fn an_accept_waits_for_a_connection() {
    let world = World::new(16);
    let network = world.network();
    let listener = network.listen("here").unwrap();
    let (caller, platform) = (network.clone(), world.platform(0));
    world.spawn(0, async move {
        platform.sleep_ns(5_000_000).await;
        let stream = caller.connect("here").await.unwrap();
        send(&stream, b"hello").await.unwrap();
    });
    let got = world.block_on(0, async move {
        let stream = listener.accept().await.unwrap();
        receive_all(&stream).await.unwrap()
    });
    assert_eq!(got, b"hello");
}
