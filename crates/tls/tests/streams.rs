//! What goes over a connection with TLS, and how it ends.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use flagstone_platform::sync::promise;
use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_sim::{NetworkConfig, SimPlatform, SimStream};
use flagstone_tls::TlsStream;

use crate::support::*;

/// A small window and small segments: writers wait for readers, and nothing arrives whole.
fn narrow() -> NetworkConfig {
    NetworkConfig {
        segment_max_bytes: 700,
        window_bytes: 3000,
        ..NetworkConfig::default()
    }
}

/// Sends all of it in pieces of many sizes, as lists of buffers.
async fn send_pieces(stream: Tls, bytes: Rc<Vec<u8>>) {
    let mut rest = &bytes[..];
    let mut size = 1;
    while !rest.is_empty() {
        let mut list = Vec::new();
        for part in [size, 1, 20, size / 3] {
            let (now, later) = rest.split_at(part.min(rest.len()));
            list.push(IoBuf::copy_of(now));
            rest = later;
        }
        let (_, result) = stream.write_all(list).await;
        result.unwrap();
        size = size * 5 % 60_013 + 1;
    }
}

async fn receive_pieces(stream: Tls, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut size = 1;
    while all.len() < len {
        let want = size.min(len - all.len());
        if size % 2 == 0 {
            all.extend(receive(&stream, want).await);
        } else {
            let (buf, result) = stream.read(IoBuf::zeroed(want)).await;
            all.extend(&buf[..result.unwrap()]);
        }
        size = size * 7 % 90_001 + 1;
    }
    all
}

#[test]
fn much_goes_both_ways_at_once() {
    for (seed, network) in [NetworkConfig::default(), narrow()].into_iter().enumerate() {
        let world = world(30 + seed as u64, network);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (near, far) = shaken(&platform, &Party::new()).await;
            let (there, back) = (pattern(600_000, 1), pattern(500_000, 2));
            platform.spawn(send_pieces(near.clone(), there.clone()));
            platform.spawn(send_pieces(far.clone(), back.clone()));
            let (promise, received) = promise();
            let len = there.len();
            platform.spawn(async move { promise.fulfil(receive_pieces(far, len).await) });
            assert!(receive_pieces(near, back.len()).await == *back);
            assert!(received.await.unwrap() == *there);
        });
    }
}

/// Two tasks that write at once: each list arrives as one.
#[test]
fn writes_take_turns() {
    let world = world(32, narrow());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = shaken(&platform, &Party::new()).await;
        for letter in [b'a', b'b', b'c'] {
            let near = near.clone();
            platform.spawn(async move { send(&near, &vec![letter; 150_000]).await });
        }
        let all = receive(&far, 450_000).await;
        for part in all.chunks(150_000) {
            assert!(part.iter().all(|&letter| letter == part[0]));
        }
    });
}

/// A peer that takes nothing holds up who writes to it, and not who reads from it.
#[test]
fn a_read_does_not_wait_for_a_write() {
    let world = world(33, narrow());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = shaken(&platform, &Party::new()).await;
        let stuck = far.clone();
        let written = Rc::new(Cell::new(false));
        let noted = written.clone();
        platform.spawn(async move {
            send(&stuck, &[7; 100_000]).await;
            noted.set(true);
        });
        for round in 0..20u8 {
            send(&near, &[round; 100]).await;
            assert_eq!(receive(&far, 100).await, [round; 100]);
        }
        assert!(!written.get());
        assert_eq!(receive(&near, 100_000).await, [7; 100_000]);
    });
}

#[test]
fn a_good_bye_is_an_end_and_a_cut_is_an_error() {
    let world = world(34, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = shaken(&platform, &Party::new()).await;
        send(&near, b"last words").await;
        near.shutdown();
        // Again, as those do that are not sure.
        near.shutdown();
        assert_eq!(receive(&far, 10).await, b"last words");
        let (_, result) = far.read(IoBuf::zeroed(1)).await;
        assert_eq!(result.unwrap(), 0);
        let (_, result) = far.read_exact(IoBuf::zeroed(1)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Who has ended it writes nothing more, and reads an end.
        let (_, result) = near.write_all(vec![IoBuf::copy_of(b"x")]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
    let world = crate::support::world(35, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let party = Party::new();
        let (handle, near, far) = with_handle(&platform, &party).await;
        send(&near, b"last words").await;
        handle.close_writing();
        assert_eq!(receive(&far, 10).await, b"last words");
        let (_, result) = far.read(IoBuf::zeroed(1)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

/// The client's stream beside both ends with TLS.
async fn with_handle(platform: &SimPlatform, party: &Party) -> (SimStream, Tls, Tls) {
    let (near, far) = pair(platform).await;
    let handle = near.clone();
    let (there, server) = (platform.clone(), party.server.clone());
    let (promise, accepted) = promise();
    platform.spawn(async move {
        promise.fulfil(TlsStream::accept(&there, far, &server, &[]).await);
    });
    let near = TlsStream::connect(platform, near, &party.client)
        .await
        .unwrap();
    (handle, near, accepted.await.unwrap().unwrap())
}

/// A record that somebody has put in between ends the connection, and the peer is told.
#[test]
fn a_forged_record_ends_the_connection() {
    let world = world(36, NetworkConfig::default());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (handle, near, far) = with_handle(&platform, &Party::new()).await;
        send(&near, b"genuine").await;
        send(
            &handle,
            b"\x17\x03\x03\x00\x20forged, and as long as it claims",
        )
        .await;
        assert_eq!(receive(&far, 7).await, b"genuine");
        for _ in 0..2 {
            let (_, result) = far.read(IoBuf::zeroed(100)).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let (_, result) = far.write_all(vec![IoBuf::copy_of(b"x")]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        // The alert comes although nobody writes on that side.
        let (_, result) = near.read(IoBuf::zeroed(100)).await;
        let error = result.unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
    });
}

/// A pending read ends, although the peer takes nothing of what is being sent.
#[test]
fn a_shutdown_ends_what_is_pending() {
    for (seed, stuck) in [(37, true), (38, false)] {
        let world = world(seed, narrow());
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (near, far) = shaken(&platform, &Party::new()).await;
            let (promise, ended) = promise();
            if stuck {
                let writer = far.clone();
                platform.spawn(async move {
                    let (_, result) = writer.write_all(vec![IoBuf::zeroed(100_000)]).await;
                    promise.fulfil(result.is_err());
                });
            } else {
                promise.fulfil(true);
            }
            let (reader, closer) = (far.clone(), platform.clone());
            platform.spawn(async move {
                closer.sleep_ns(50_000_000).await;
                far.shutdown();
            });
            let (_, result) = reader.read(IoBuf::zeroed(1)).await;
            assert_eq!(result.unwrap(), 0);
            assert_eq!(ended.await, Some(true));
            drop(near);
        });
    }
}

/// A write that is given up may have sent half a record: nothing follows it.
#[test]
fn a_write_given_up_is_the_last() {
    let world = world(39, narrow());
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = shaken(&platform, &Party::new()).await;
        {
            let mut write = std::pin::pin!(far.write_all(vec![IoBuf::zeroed(100_000)]));
            std::future::poll_fn(|cx| {
                assert!(write.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        let (_, result) = far.write_all(vec![IoBuf::copy_of(b"x")]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        drop(near);
    });
}

/// The session goes elsewhere between two messages, with what was received and not read.
#[test]
fn a_session_is_taken_apart_and_goes_on() {
    let network = NetworkConfig {
        short_read: 0.0,
        ..NetworkConfig::default()
    };
    let world = world(40, network);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (near, far) = shaken(&platform, &Party::new()).await;
        // Much, so that it receives much at once from now on.
        send(&near, &[b'x'; 200_000]).await;
        receive(&far, 200_000).await;
        send(&near, b"one").await;
        send(&near, &[b'y'; 40_000]).await;
        // All of it is there, and more is received than is asked for.
        platform.sleep_ns(1_000_000_000).await;
        assert_eq!(receive(&far, 1).await, b"o");
        let second = far.clone();
        assert!(far.detach().await.is_none(), "there is another handle");
        let (stream, session) = second.detach().await.expect("the last handle");
        let far = TlsStream::resume(&platform, stream, session);
        assert_eq!(receive(&far, 2).await, b"ne");
        assert_eq!(receive(&far, 40_000).await, [b'y'; 40_000]);
        send(&far, b"back").await;
        assert_eq!(receive(&near, 4).await, b"back");
    });
}
