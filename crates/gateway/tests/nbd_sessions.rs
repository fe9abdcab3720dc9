//! Whole NBD sessions over streams and volumes in memory.

mod support;

use std::rc::Rc;

use flagstone_gateway::nbd::{CloseReason, Command, NbdLimits, NbdServer, Outcome};
use flagstone_gateway::volume::{Stability, VolumeError};
use flagstone_platform::{IoBuf, Platform, Stream};
use support::client::*;
use support::memory::{BLOCK, Call, MemoryDirectory, MemoryVolume};
use support::stream::{Link, MemoryStream};
use support::world::World;

const SIZE: u64 = 8 << 20;

type Server = NbdServer<World, MemoryDirectory>;

/// A world with a server for one volume, `disk`.
struct Stage {
    world: World,
    volume: MemoryVolume,
    directory: MemoryDirectory,
    server: Server,
}

impl Stage {
    fn new(seed: u64) -> Stage {
        Stage::with_limits(seed, NbdLimits::default())
    }

    fn with_limits(seed: u64, limits: NbdLimits) -> Stage {
        let world = World::new(seed);
        let volume = MemoryVolume::new(&world, SIZE);
        let directory = MemoryDirectory::with("disk", &volume);
        let server = NbdServer::new(world.clone(), directory.clone(), limits);
        Stage {
            world,
            volume,
            directory,
            server,
        }
    }

    /// Starts a connection and returns the client's end, and where its end will be noted.
    fn connect(&self, link: Link) -> (MemoryStream, Rc<std::cell::Cell<Option<CloseReason>>>) {
        let (near, far) = link.connect();
        let end = Rc::new(std::cell::Cell::new(None));
        let (server, noted) = (self.server.clone(), end.clone());
        self.world.spawn(async move {
            match server.serve_connection(far).await {
                Outcome::Closed(reason) => noted.set(Some(reason)),
                Outcome::HandOver { .. } => panic!("not expected to move"),
            }
        });
        (near, end)
    }
}

/// Runs one client against a fresh stage in each mode.
fn in_each_mode<F: Future<Output = ()>>(
    script: impl Fn(Client, MemoryVolume) -> F + Copy + 'static,
) {
    for mode in MODES {
        let stage = Stage::new(7);
        let (stream, end) = stage.connect(Link::default());
        let volume = stage.volume.clone();
        stage.world.clone().run(async move {
            let contexts: &[&str] = match mode {
                Mode::Simple => &[],
                _ => &["base:allocation"],
            };
            let client = Client::attach(stream, mode, "disk", contexts)
                .await
                .expect("attached");
            let stream = client.stream.clone();
            script(client, volume).await;
            stream.shutdown();
            stage.server.stop();
            stage.server.stopped().await;
        });
        assert!(end.get().is_some());
    }
}

#[test]
fn reads_return_what_was_written() {
    in_each_mode(|mut client, volume| async move {
        assert_eq!(client.size_bytes, SIZE);
        assert_eq!(client.write(0, 5000, b"hello").await.result, Ok(()));
        let answer = client.call(READ, 0, 4990, 20).await;
        assert_eq!(answer.data, b"\0\0\0\0\0\0\0\0\0\0hello\0\0\0\0\0");
        // The whole volume is one hole but for one block.
        let answer = client.call(READ, 0, 0, SIZE).await;
        assert!(answer.data == *volume.memory.bytes.borrow());
        if client.mode != Mode::Simple {
            assert_eq!(
                (answer.content_chunks, answer.hole_bytes),
                (3, (SIZE - BLOCK) as usize)
            );
            let whole = client.call(READ, DF, 0, 65536).await;
            assert_eq!((whole.content_chunks, whole.hole_bytes), (1, 0));
            assert!(whole.data == volume.memory.bytes.borrow()[..65536]);
            let hole = client.call(READ, DF, 65536, 65536).await;
            assert_eq!((hole.content_chunks, hole.hole_bytes), (1, 65536));
        }
    });
}

#[test]
fn stability_is_passed_on() {
    in_each_mode(|mut client, volume| async move {
        client.write(0, 0, b"abc").await;
        assert_eq!(volume.memory.stable.borrow()[..3], *b"\0\0\0");
        client.write(FUA, 8192, b"def").await;
        assert_eq!(volume.memory.stable.borrow()[8192..8195], *b"def");
        assert_eq!(client.call(FLUSH, 0, 0, 0).await.result, Ok(()));
        assert_eq!(volume.memory.stable.borrow()[..3], *b"abc");
        for (command, flags) in [(TRIM, 0), (TRIM, FUA), (ZEROES, 0), (ZEROES, FUA | NO_HOLE)] {
            assert_eq!(client.call(command, flags, 0, 4096).await.result, Ok(()));
        }
        assert_eq!(client.call(ZEROES, FAST_ZERO, 0, SIZE).await.result, Ok(()));
        assert_eq!(
            client.call(ZEROES, FAST_ZERO | NO_HOLE, 0, 64).await.result,
            Err(ENOTSUP)
        );
        assert_eq!(client.call(CACHE, 0, 0, 4096).await.result, Ok(()));
        use Stability::{Stable, Unstable};
        let expected = [
            Call::Write(0, 3, Unstable),
            Call::Write(8192, 3, Stable),
            Call::Flush,
            Call::Deallocate(0, 4096, Unstable),
            Call::Deallocate(0, 4096, Stable),
            Call::WriteZeroes(0, 4096, false, Unstable),
            Call::WriteZeroes(0, 4096, true, Stable),
            Call::WriteZeroes(0, SIZE, false, Unstable),
        ];
        assert_eq!(*volume.memory.calls.borrow(), expected);
    });
}

#[test]
fn refused_requests_do_not_break_the_stream() {
    in_each_mode(|mut client, volume| async move {
        let long = [1u8; 100_000];
        assert_eq!(client.write(0, SIZE - 1, &long).await.result, Err(ENOSPC));
        assert_eq!(client.write(1 << 12, 0, &long).await.result, Err(EINVAL));
        assert_eq!(client.call(READ, 0, SIZE, 1).await.result, Err(EINVAL));
        assert_eq!(client.call(77, 0, 0, 0).await.result, Err(EINVAL));
        let beyond = if client.mode == Mode::Simple {
            EINVAL
        } else {
            EOVERFLOW
        };
        volume.memory.bytes.borrow_mut().resize(40 << 20, 0);
        assert_eq!(
            client.call(READ, 0, 0, (32 << 20) + 1).await.result,
            Err(beyond)
        );
        volume.memory.bytes.borrow_mut().truncate(SIZE as usize);
        let status = client.call(STATUS, 0, 0, 0).await;
        assert_eq!(status.result, Err(EINVAL));
        assert!(
            volume.memory.calls.borrow().is_empty(),
            "the volume saw nothing"
        );
        assert_eq!(client.call(READ, 0, 0, 0).await.result, Ok(()));
        assert_eq!(client.write(0, 0, b"").await.result, Ok(()));
        assert_eq!(client.call(TRIM, 0, SIZE, 0).await.result, Ok(()));
        assert_eq!(client.write(0, 9, b"fine").await.result, Ok(()));
        assert_eq!(client.call(READ, 0, 9, 4).await.data, b"fine");
    });
}

#[test]
fn failures_of_the_volume_become_error_numbers() {
    in_each_mode(|mut client, volume| async move {
        let cases = [
            (VolumeError::NoSpace, ENOSPC),
            (VolumeError::Device, EIO),
            (VolumeError::Fenced, EIO),
            (VolumeError::Gone, ESHUTDOWN),
            (VolumeError::ReadOnly, EPERM),
            (VolumeError::Unsupported, EINVAL),
        ];
        for (error, errno) in cases {
            volume.memory.failures.borrow_mut().push(error);
            assert_eq!(client.write(0, 0, b"x").await.result, Err(errno));
            volume.memory.failures.borrow_mut().push(error);
            assert_eq!(client.call(FLUSH, 0, 0, 0).await.result, Err(errno));
        }
        volume
            .memory
            .failures
            .borrow_mut()
            .push(VolumeError::Unsupported);
        assert_eq!(
            client.call(ZEROES, FAST_ZERO, 0, 1).await.result,
            Err(ENOTSUP)
        );
        // A volume that breaks its promises must not break the stream.
        client.write(0, 0, &[1; 3 * 4096]).await;
        volume.memory.short.set(true);
        assert_eq!(client.call(READ, 0, 0, 12288).await.result, Err(EIO));
        volume.memory.short.set(false);
        assert_eq!(client.call(READ, 0, 0, 12288).await.data, [1; 12288]);
    });
}

#[test]
fn corrupt_blocks_are_located() {
    in_each_mode(|mut client, volume| async move {
        client.write(0, 0, &[1; 1 << 20]).await;
        for block in [0, 1, 100, 254, 255] {
            *volume.memory.corrupt.borrow_mut() = [block, 255].into();
            for (offset, len) in [
                (0, 1 << 20),
                (100, (1 << 20) - 200),
                (block * BLOCK + 5, 10),
            ] {
                let answer = client.call(READ, 0, offset, len).await;
                assert_eq!(answer.result, Err(EIO));
                let expected = match client.mode {
                    Mode::Simple => None,
                    _ => Some((block * BLOCK).max(offset)),
                };
                assert_eq!(answer.error_offset, expected, "{block} {offset} {len}");
            }
        }
        volume.memory.corrupt.borrow_mut().clear();
        assert_eq!(client.call(READ, 0, 0, 1 << 20).await.result, Ok(()));
    });
}

#[test]
fn read_only_exports() {
    let stage = Stage::new(3);
    let snapshot = stage.volume.snapshot();
    stage.directory.add("disk@mon", 0, &snapshot);
    let (stream, _) = stage.connect(Link::default());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Structured, "disk@mon", &[])
            .await
            .expect("attached");
        assert_eq!(client.flags & 0b10, 0b10);
        assert_eq!(client.write(0, 0, &[1; 70_000]).await.result, Err(EPERM));
        assert_eq!(client.call(TRIM, 0, 0, 10).await.result, Err(EPERM));
        assert_eq!(client.call(ZEROES, 0, 0, 10).await.result, Err(EPERM));
        assert_eq!(client.call(FLUSH, 0, 0, 0).await.result, Ok(()));
        assert_eq!(client.call(READ, 0, 0, 10).await.data, [0; 10]);
    });
    assert!(
        snapshot
            .memory
            .calls
            .borrow()
            .iter()
            .all(|call| !matches!(call, Call::Write(..)))
    );
}

#[test]
fn block_status() {
    for mode in [Mode::Structured, Mode::Extended] {
        let stage = Stage::new(5);
        let volume = stage.volume.clone();
        let directory = stage.directory.clone();
        let (stream, _) = stage.connect(Link::default());
        stage.world.run(async move {
            let mut client = Client::greet(stream).await.expect("greeted");
            client.choose_mode(mode).await.expect("mode");
            // Written before the snapshot, then one more block after it.
            write_directly(&volume, 4096, &[1; 8192]).await;
            directory.add("disk@mon", 0, &volume.snapshot());
            write_directly(&volume, 8192, &[2; 4096]).await;

            let listed = client
                .option(9, &meta_data("disk", &[]))
                .await
                .expect("listed");
            let names: Vec<_> = listed.iter().map(|(_, data)| data[4..].to_vec()).collect();
            assert_eq!(names, [&b"base:allocation"[..], b"flagstone:changed:mon"]);
            let wild = client
                .option(9, &meta_data("", &["flagstone:"]))
                .await
                .expect("listed");
            assert_eq!(wild.len(), 1);
            let all = [
                "flagstone:",
                "flagstone:changed:mon",
                "flagstone:changed:tue",
                "base:allocation",
                "base:allocation",
            ];
            client.select("", &all).await.expect("selected");
            assert_eq!(client.contexts[&1], "flagstone:changed:mon");
            assert_eq!(client.contexts[&2], "base:allocation");
            client.go("disk").await.expect("attached");

            let answer = client.call(STATUS, 0, 0, SIZE).await;
            let tail = SIZE - 12288;
            assert_eq!(answer.status[&1], [(8192, 0), (4096, 1), (tail, 0)]);
            assert_eq!(answer.status[&2], [(4096, 3), (8192, 0), (tail, 3)]);
            let answer = client.call(STATUS, REQ_ONE, 5000, 100).await;
            assert_eq!(
                (&answer.status[&1][..], &answer.status[&2][..]),
                (&[(100, 0)][..], &[(100, 0)][..])
            );

            volume
                .memory
                .failures
                .borrow_mut()
                .push(VolumeError::HistoryForgotten);
            assert_eq!(client.call(STATUS, 0, 0, SIZE).await.result, Err(EINVAL));
            if mode == Mode::Extended {
                chosen_contexts(&mut client).await;
            }
            assert_eq!(client.call(READ, 0, 4096, 1).await.data, [1]);
        });
    }
}

/// `BLOCK_STATUS` with a payload that chooses among the selected contexts.
async fn chosen_contexts(client: &mut Client) {
    assert_eq!(client.flags & (1 << 12), 1 << 12);
    let mut ask = async |ids: &[u32]| {
        let mut payload = 8192u64.to_be_bytes().to_vec();
        ids.iter().for_each(|id| payload.extend(id.to_be_bytes()));
        let (cookie, mut bytes) = client.encode(STATUS, PAYLOAD, 0, payload.len() as u64);
        bytes.extend(payload);
        client.send(&bytes).await;
        client.answer_to(cookie).await
    };
    let answer = ask(&[2]).await;
    assert_eq!(answer.status.len(), 1);
    assert_eq!(answer.status[&2], [(4096, 3), (4096, 0)]);
    assert_eq!(ask(&[1, 2]).await.status.len(), 2);
    assert_eq!(ask(&[3]).await.result, Err(EINVAL));
    assert_eq!(ask(&[1, 1]).await.result, Err(EINVAL));
    assert_eq!(ask(&[]).await.result, Err(EINVAL));
    assert_eq!(ask(&[1; 30]).await.result, Err(EINVAL));
}

async fn write_directly(volume: &MemoryVolume, offset: u64, bytes: &[u8]) {
    use flagstone_gateway::volume::Volume;
    volume
        .write(offset, IoBuf::copy_of(bytes), Stability::Stable)
        .await
        .expect("written");
}

#[test]
fn default_export_and_unknown_names() {
    let stage = Stage::new(2);
    let second = MemoryVolume::new(&stage.world, 4096);
    let (one, _) = stage.connect(Link::default());
    let (two, _) = stage.connect(Link::default());
    let (three, end) = stage.connect(Link::default());
    let directory = stage.directory.clone();
    stage.world.clone().run(async move {
        let attached = Client::attach(one, Mode::Simple, "", &[]).await;
        assert_eq!(attached.expect("the only volume").size_bytes, SIZE);
        directory.add("other", 0, &second);
        let mut client = Client::greet(two).await.expect("greeted");
        assert_eq!(client.go("").await, Err(Refused::Error(6)), "which one?");
        assert_eq!(client.go("nothing").await, Err(Refused::Error(6)));
        directory.available.set(false);
        assert_eq!(client.go("other").await, Err(Refused::Error(7)));
        directory.available.set(true);
        assert_eq!(client.go("other").await, Ok(()));
        assert_eq!(client.size_bytes, 4096);

        let mut client = Client::greet(three).await.expect("greeted");
        client.send(&option_message(1, b"nothing")).await;
        assert_eq!(client.take(1).await, None);
    });
    assert_eq!(end.get(), Some(CloseReason::NoSuchExport));
}

#[test]
fn a_resize_is_seen_by_the_next_negotiation() {
    let stage = Stage::new(2);
    let (one, _) = stage.connect(Link::default());
    let (two, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut old = Client::attach(one, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        volume.memory.bytes.borrow_mut().truncate(4096);
        let new = Client::attach(two, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        assert_eq!((old.size_bytes, new.size_bytes), (SIZE, 4096));
        assert_eq!(old.call(READ, 0, 4096, 1).await.result, Err(EINVAL));
        assert_eq!(old.call(READ, 0, 4095, 1).await.result, Ok(()));
    });
}

#[test]
fn flush_covers_other_connections() {
    let stage = Stage::new(9);
    let (one, _) = stage.connect(Link::default());
    let (two, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut one = Client::attach(one, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        let mut two = Client::attach(two, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        assert_eq!(one.flags & (1 << 8), 1 << 8, "CAN_MULTI_CONN");
        one.write(0, 0, b"by one").await;
        two.call(FLUSH, 0, 0, 0).await;
        assert_eq!(volume.memory.stable.borrow()[..6], *b"by one");
    });
}

#[test]
fn requests_run_at_the_same_time_and_replies_are_gathered() {
    let stage = Stage::new(4);
    let (stream, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    let server = stage.server.clone();
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        let before = client.stream.writes_of_peer();
        volume.memory.held.set(true);
        let mut script = Vec::new();
        for index in 0..32 {
            let (_, bytes) = client.encode(READ, 0, index * 4096, 4096);
            script.extend(bytes);
        }
        client.send(&script).await;
        while volume.memory.running.get() < 32 {
            volume.world.yield_now().await;
        }
        volume.release();
        for _ in 0..32 {
            assert_eq!(client.answer().await.expect("an answer").result, Ok(()));
        }
        assert_eq!(
            client.stream.writes_of_peer() - before,
            1,
            "one call for all replies"
        );
        let counters = server.counters();
        assert_eq!(counters.command(Command::Read).answered, 32);
        assert_eq!(counters.command(Command::Read).latency.count(), 32);
        assert_eq!(counters.read_bytes, 32 * 4096);
        assert_eq!(counters.sends, 1);
        assert_eq!(counters.connections, 1);
    });
}

#[test]
fn all_workers_are_put_to_work_again_and_again() {
    // An odd seed: tasks also run when nobody has woken them.
    let stage = Stage::new(5);
    let (stream, _) = stage.connect(Link::default());
    let (world, volume) = (stage.world.clone(), stage.volume.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        for _ in 0..20 {
            volume.memory.held.set(true);
            for index in 0..32 {
                client.submit(READ, 0, index * 4096, 4096).await;
            }
            world.sleep_ns(1000).await;
            assert_eq!(volume.memory.running.get(), 32);
            volume.release();
            for _ in 0..32 {
                assert_eq!(client.answer().await.expect("an answer").result, Ok(()));
            }
            for _ in 0..1000 {
                world.yield_now().await;
            }
        }
    });
}

#[test]
fn what_is_in_flight_is_bounded() {
    let limits = NbdLimits {
        requests_in_flight_max: 10,
        ..NbdLimits::default()
    };
    let stage = Stage::with_limits(4, limits);
    let (stream, _) = stage.connect(Link {
        capacity: 1 << 20,
        ..Link::default()
    });
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        volume.memory.held.set(true);
        for index in 0..100 {
            client.submit(READ, 0, index * 64, 64).await;
        }
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(volume.memory.running.get(), 10);
        volume.release();
        for _ in 0..100 {
            assert_eq!(client.answer().await.expect("an answer").result, Ok(()));
        }
        assert_eq!(volume.memory.running_max.get(), 10);
    });
}

#[test]
fn payload_in_flight_is_bounded_for_each_and_for_all() {
    // Own part 16 KiB; a connection's limit and everyone's limit are raised to one largest request.
    let limits = NbdLimits {
        own_payload_bytes: 16 << 10,
        payload_bytes_max: 0,
        shared_payload_bytes: 0,
        ..NbdLimits::default()
    };
    let stage = Stage::with_limits(4, limits);
    let (one, _) = stage.connect(Link {
        capacity: 1 << 20,
        ..Link::default()
    });
    let (two, _) = stage.connect(Link {
        capacity: 1 << 20,
        ..Link::default()
    });
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut one = Client::attach(one, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        let mut two = Client::attach(two, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        volume.memory.held.set(true);
        for _ in 0..6 {
            one.submit(READ, 0, 0, 8 << 20).await;
        }
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(volume.memory.running.get(), 4, "32 MiB of reads");
        // The other connection's small requests go on; a large one has to wait.
        for _ in 0..3 {
            two.submit(READ, 0, 0, 8 << 10).await;
        }
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(volume.memory.running.get(), 6, "its own 16 KiB");
        volume.release();
        for _ in 0..6 {
            assert_eq!(one.answer().await.expect("an answer").data.len(), 8 << 20);
        }
        for _ in 0..3 {
            assert_eq!(two.answer().await.expect("an answer").data.len(), 8 << 10);
        }
    });
}

#[test]
fn a_disconnect_waits_for_what_is_in_flight() {
    let stage = Stage::new(6);
    let (stream, end) = stage.connect(Link::default());
    let (volume, noted) = (stage.volume.clone(), end.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        volume.memory.held.set(true);
        let write = client.submit_write(0, 0, b"late").await;
        client.submit(DISC, 0, 0, 0).await;
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(noted.get(), None);
        volume.release();
        assert_eq!(client.answer_to(write).await.result, Ok(()));
        assert_eq!(client.take(1).await, None, "closed after the last reply");
    });
    assert_eq!(end.get(), Some(CloseReason::Finished));
    assert_eq!(stage.volume.memory.bytes.borrow()[..4], *b"late");
    assert_eq!(
        Rc::strong_count(&stage.volume.memory),
        2,
        "the stage and the directory"
    );
}

#[test]
fn a_lost_connection_waits_for_its_operations() {
    let stage = Stage::new(6);
    let (stream, end) = stage.connect(Link::default());
    let (volume, noted) = (stage.volume.clone(), end.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        volume.memory.held.set(true);
        for _ in 0..5 {
            client.submit_write(0, 0, b"late").await;
        }
        volume.world.sleep_ns(1_000_000).await;
        client.stream.shutdown();
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(noted.get(), None);
        volume.release();
        volume.world.sleep_ns(1_000_000).await;
        assert!(noted.get().is_some());
    });
    assert_eq!(stage.volume.memory.running.get(), 0);
}

#[test]
fn a_connection_that_can_not_be_written_to_ends() {
    let stage = Stage::new(6);
    let (stream, end) = stage.connect(Link::default());
    let world = stage.world.clone();
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        client.stream.close_receiving();
        client.submit(FLUSH, 0, 0, 0).await;
        world.sleep_ns(1_000_000).await;
    });
    assert_eq!(end.get(), Some(CloseReason::Broken));
}

#[test]
fn stopping_answers_what_is_in_flight_and_closes() {
    let stage = Stage::new(8);
    let (busy, busy_end) = stage.connect(Link::default());
    let (idle, idle_end) = stage.connect(Link::default());
    let (early, early_end) = stage.connect(Link::default());
    let (volume, server) = (stage.volume.clone(), stage.server.clone());
    stage.world.clone().run(async move {
        let mut busy = Client::attach(busy, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        let mut idle = Client::attach(idle, Mode::Structured, "disk", &[])
            .await
            .expect("attached");
        let mut early = Client::greet(early).await.expect("greeted");
        volume.memory.held.set(true);
        let write = busy.submit_write(FUA, 0, b"in time").await;
        volume.world.sleep_ns(1_000_000).await;
        server.stop();
        assert_eq!(idle.take(1).await, None);
        assert_eq!(early.take(1).await, None);
        busy.submit_write(FUA, 100, b"too late").await;
        volume.world.sleep_ns(1_000_000).await;
        volume.release();
        assert_eq!(busy.answer_to(write).await.result, Ok(()));
        assert_eq!(
            busy.answer().await,
            None,
            "not answered, so the client repeats it"
        );
        server.stopped().await;
        let (late, far) = Link::default().connect();
        let outcome = server.serve_connection(far).await;
        assert!(matches!(outcome, Outcome::Closed(CloseReason::Stopping)));
        assert!(Client::greet(late).await.is_err());
    });
    assert_eq!(stage.volume.memory.bytes.borrow()[100..108], [0; 8]);
    assert_eq!(busy_end.get(), Some(CloseReason::Stopping));
    assert_eq!(idle_end.get(), Some(CloseReason::Stopping));
    assert_eq!(early_end.get(), Some(CloseReason::Stopping));
}

#[test]
fn too_many_connections_are_refused() {
    let stage = Stage::with_limits(
        2,
        NbdLimits {
            connections_max: 2,
            ..NbdLimits::default()
        },
    );
    let (one, _) = stage.connect(Link::default());
    let (two, _) = stage.connect(Link::default());
    let (three, end) = stage.connect(Link::default());
    let server = stage.server.clone();
    stage.world.clone().run(async move {
        let one = Client::attach(one, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        let _two = Client::greet(two).await.expect("greeted");
        assert!(Client::greet(three).await.is_err());
        one.stream.shutdown();
        stage.world.sleep_ns(1000).await;
        let (four, _) = stage.connect(Link::default());
        assert!(Client::greet(four).await.is_ok());
    });
    assert_eq!(end.get(), Some(CloseReason::Refused));
    assert_eq!(server.counters().connections_refused, 1);
}

#[test]
fn negotiation_has_a_deadline() {
    let stage = Stage::new(1);
    let (silent, silent_end) = stage.connect(Link::default());
    let (slow, slow_end) = stage.connect(Link::default());
    let (deaf, deaf_end) = stage.connect(Link {
        capacity: 100,
        ..Link::default()
    });
    for index in 0..100 {
        stage
            .directory
            .add(&format!("volume-{index}"), 0, &stage.volume);
    }
    let world = stage.world.clone();
    stage.world.clone().run(async move {
        let mut slow = Client::greet(slow).await.expect("greeted");
        let mut deaf = Client::greet(deaf).await.expect("greeted");
        // Asks for much and never reads it.
        deaf.send(&option_message(3, b"")).await;
        // One byte a second.
        for byte in option_message(7, &go_data("disk")) {
            slow.send(&[byte]).await;
            world.sleep_ns(1_000_000_000).await;
        }
        assert_eq!(slow.take(1).await, None);
        drop(silent);
    });
    for end in [silent_end, slow_end, deaf_end] {
        assert_eq!(end.get(), Some(CloseReason::NegotiationTimeout));
    }
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let stage = Stage::new(1);
    let (stream, end) = stage.connect(Link {
        capacity: 1 << 20,
        ..Link::default()
    });
    let (world, noted) = (stage.world.clone(), end.clone());
    let server = stage.server.clone();
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        for _ in 0..1000 {
            client.submit(READ, 0, 0, 1 << 20).await;
        }
        world.sleep_ns(50_000_000_000).await;
        assert_eq!(noted.get(), None);
        let held = world.buffers().in_use_bytes();
        assert!(
            held < 4 << 20,
            "replies are zeros from a shared buffer: {held}"
        );
        world.sleep_ns(40_000_000_000).await;
        assert_eq!(noted.get(), Some(CloseReason::Stalled));
    });
    assert_eq!(server.counters().connections_expelled, 1);
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_message_is_dropped() {
    for (message, keep) in [(4096, 100), (32 << 20, 1 << 20), (4096, 10)] {
        let stage = Stage::new(1);
        let (stream, end) = stage.connect(Link {
            capacity: 4 << 20,
            ..Link::default()
        });
        let world = stage.world.clone();
        stage.volume.memory.bytes.borrow_mut().resize(32 << 20, 0);
        stage.world.run(async move {
            let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
                .await
                .expect("attached");
            let (_, mut bytes) = client.encode(WRITE, 0, 0, message);
            bytes.resize(keep, 7);
            client.send(&bytes).await;
            world.sleep_ns(90_000_000_000).await;
            assert_eq!(client.take(1).await, None);
        });
        assert_eq!(end.get(), Some(CloseReason::Stalled));
        assert_eq!(
            stage.world.buffers().in_use_bytes(),
            0,
            "all memory is given back"
        );
    }
}

#[test]
fn an_idle_client_may_stay() {
    let stage = Stage::new(1);
    let (stream, end) = stage.connect(Link::default());
    let (world, noted) = (stage.world.clone(), end.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        for _ in 0..3 {
            client.call(READ, 0, 0, 4096).await;
            world.sleep_ns(3_600_000_000_000).await;
        }
        assert_eq!(noted.get(), None);
        let held = world.buffers().in_use_bytes();
        assert!(held <= 16 << 10, "an idle connection holds {held} bytes");
    });
}

#[test]
fn protocol_violations_end_the_connection() {
    let scripts: [(&[u8], &str); 3] = [
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "bad magic number in front of a request",
        ),
        (&[0; 28], "bad magic number in front of a request"),
        (
            b"\x25\x60\x95\x13\0\0\0\x01cookie..\0\0\0\0\0\0\0\0\xff\xff\xff\xff",
            "a payload above the advertised limit",
        ),
    ];
    for (script, what) in scripts {
        let stage = Stage::new(1);
        let (stream, end) = stage.connect(Link::default());
        let (server, stopping) = (stage.server.clone(), stage.server.clone());
        stage.world.run(async move {
            let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
                .await
                .expect("attached");
            assert_eq!(client.write(0, 0, b"ok").await.result, Ok(()));
            client.send(script).await;
            assert_eq!(client.take(1).await, None);
            stopping.stopped().await;
        });
        assert_eq!(end.get(), Some(CloseReason::Violation(what)));
        assert_eq!(server.counters().connections_expelled, 1);
    }
}

#[test]
fn a_connection_moves_to_the_core_of_its_volume() {
    let stage = Stage::new(1);
    let far_volume = MemoryVolume::new(&stage.world, 1 << 20);
    stage.directory.add("far", 1, &far_volume);
    let there: Server = NbdServer::new(
        stage.world.clone(),
        stage.directory.on_core(1),
        NbdLimits::default(),
    );
    let (near, far) = Link::default().connect();
    let (here, second) = (stage.server.clone(), there.clone());
    stage.world.clone().spawn(async move {
        let Outcome::HandOver {
            core: 1,
            stream,
            session,
        } = here.serve_connection(far).await
        else {
            panic!("INFO about `far` moves to core 1")
        };
        assert_eq!(stream.handle_count(), 1, "nothing is left behind");
        let Outcome::HandOver {
            core: 0,
            stream,
            session,
        } = second.resume_connection(stream, session).await
        else {
            panic!("GO to `disk` moves back")
        };
        let outcome = here.resume_connection(stream, session).await;
        assert!(matches!(outcome, Outcome::Closed(CloseReason::Finished)));
    });
    let here = stage.server.clone();
    stage.world.clone().run(async move {
        let mut client = Client::greet(near).await.expect("greeted");
        client.choose_mode(Mode::Structured).await.expect("mode");
        let info = client.option(6, &go_data("far")).await.expect("described");
        assert_eq!(info[0].1[2..10], (1u64 << 20).to_be_bytes());
        // Contexts are found wherever the volume lives, and the choice moves along.
        client
            .select("disk", &["base:allocation"])
            .await
            .expect("selected");
        // The first request comes right behind GO: it must not be lost on the way.
        let go = option_message(7, &go_data("disk"));
        let (cookie, request) = client.encode(STATUS, 0, 0, 4096);
        client.send(&[go, request].concat()).await;
        let replies = client
            .take(20 + 12 + 20 + 14 + 20)
            .await
            .expect("replies to GO");
        assert_eq!(replies[14..16], [0, 3]);
        let answer = client.answer_to(cookie).await;
        assert_eq!(answer.status[&1], [(4096, 3)]);
        client.submit(DISC, 0, 0, 0).await;
        assert_eq!(client.take(1).await, None);
        assert_eq!(here.counters().connections_handed_over, 1);
        assert_eq!(there.counters().connections_handed_over, 1);
        here.stopped().await;
    });
}

#[test]
fn workers_that_are_not_needed_end() {
    let stage = Stage::new(2);
    let (stream, _) = stage.connect(Link::default());
    let (world, volume) = (stage.world.clone(), stage.volume.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        // The client, the connection, its writer.
        assert_eq!(world.task_count(), 3);
        for round in 0..20 {
            let depth = if round % 5 == 0 { 100 } else { 2 };
            volume.memory.held.set(true);
            for _ in 0..depth {
                client.submit(READ, 0, 0, 512).await;
            }
            while volume.memory.running.get() < depth {
                world.yield_now().await;
            }
            // And its watch.
            assert!(world.task_count() >= 4 + depth as usize);
            volume.release();
            for _ in 0..depth {
                client.answer().await.expect("an answer");
            }
            // Long enough for the watch to look.
            world.sleep_ns(40_000_000_000).await;
            if depth == 2 {
                assert!(world.task_count() <= 3 + 2, "{} tasks", world.task_count());
            }
        }
    });
}
