//! Whole NBD sessions over streams and volumes in memory.

use crate::support;

use flagstone_gateway::nbd::{CloseReason, Command, NbdLimits, NbdServer, Outcome};
use flagstone_gateway::volume::{Stability, VolumeError};
use flagstone_platform::{IoBuf, Platform, Stream};
use support::client::*;
use support::memory::{BLOCK, Call, MemoryDirectory, MemoryVolume};
use support::stage::{SIZE, Server, Stage};
use support::stream::Link;

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

/// [nbd "Structured reply types"] no chunk of a read is empty.
#[test]
fn nothing_is_sent_for_an_empty_piece() {
    in_each_mode(|mut client, volume| async move {
        assert_eq!(client.write(0, 4096, &[7; 8192]).await.result, Ok(()));
        volume.memory.empty.set(true);
        let answer = client.call(READ, 0, 4096, 8192).await;
        assert_eq!(answer.data, [7; 8192]);
        if client.mode != Mode::Simple {
            assert_eq!((answer.content_chunks, answer.hole_bytes), (1, 0));
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

/// Whatever is asked for, and whatever the volume makes of what was under way: ESHUTDOWN, no data.
#[test]
fn a_volume_that_is_deleted_under_its_client() {
    in_each_mode(|mut client, volume| async move {
        client.write(0, 0, &[7; 8192]).await;
        // Under way when it happens.
        volume.memory.held.set(true);
        let read = client.submit(READ, 0, 0, 8192).await;
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(volume.memory.running.get(), 1);
        volume.memory.deleted.set(true);
        volume
            .memory
            .failures
            .borrow_mut()
            .push(VolumeError::Corrupt);
        volume.release();
        let answer = client.answer_to(read).await;
        assert_eq!((answer.result, answer.data.len()), (Err(ESHUTDOWN), 0));
        // Asked for afterwards: the volume is not even asked.
        let calls = volume.memory.calls.borrow().len();
        for command in [READ, FLUSH, TRIM, CACHE, ZEROES, STATUS, 77] {
            for (flags, offset, len) in [(0, 0, 4096), (0, 0, 0), (FUA, SIZE, 512), (64, 0, 1)] {
                let answer = client.call(command, flags, offset, len).await;
                assert_eq!(answer.result, Err(ESHUTDOWN), "{command} {flags} {offset}");
            }
        }
        for (flags, data) in [(0, &b"late"[..]), (FUA, &[1; 70_000]), (0, b"")] {
            let answer = client.write(flags, 0, data).await;
            assert_eq!(answer.result, Err(ESHUTDOWN));
        }
        assert_eq!(volume.memory.calls.borrow().len(), calls);
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
            // A wildcard selects nothing.
            let all = [
                "base:",
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
            let answer = client.call(STATUS, REQ_ONE, 0, SIZE).await;
            assert_eq!(
                (&answer.status[&1][..], &answer.status[&2][..]),
                (&[(8192, 0)][..], &[(4096, 3)][..]),
                "one extent of each, however many there are"
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
            panic!("a question about `disk` moves back")
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

/// Two cores that each think the volume is with the other one don't send its client to and fro for ever.
#[test]
fn a_connection_does_not_move_for_ever() {
    let stage = Stage::new(1);
    let volume = MemoryVolume::new(&stage.world, 1 << 20);
    let servers = [0, 1].map(|core| {
        let directory = MemoryDirectory::new();
        directory.add("restless", 1 - core, &volume);
        let limits = NbdLimits::default();
        NbdServer::new(stage.world.clone(), directory.on_core(core), limits)
    });
    let (near, far) = Link::default().connect();
    stage.world.clone().spawn(async move {
        let mut outcome = servers[0].serve_connection(far).await;
        for _ in 0..20 {
            let Outcome::HandOver {
                core,
                stream,
                session,
            } = outcome
            else {
                return;
            };
            outcome = servers[core].resume_connection(stream, session).await;
        }
        panic!("it moved twenty times");
    });
    stage.world.clone().run(async move {
        let mut client = Client::greet(near).await.expect("greeted");
        let refused = client.option(6, &go_data("restless")).await;
        assert!(refused.is_err(), "not available at the moment");
        client.stream.shutdown();
    });
}

/// Only the core that owns a volume knows its snapshots, and contexts are chosen before `GO`.
#[test]
fn contexts_of_a_volume_on_another_core_are_found() {
    let stage = Stage::new(1);
    let volume = MemoryVolume::new(&stage.world, 1 << 20);
    stage.directory.add("far", 1, &volume);
    stage.directory.add("far@mon", 1, &volume.snapshot());
    let there: Server = NbdServer::new(
        stage.world.clone(),
        stage.directory.on_core(1),
        NbdLimits::default(),
    );
    let (near, far) = Link::default().connect();
    let (here, listings) = (
        stage.server.clone(),
        stage.directory.snapshot_listings.clone(),
    );
    stage.world.clone().spawn(async move {
        let Outcome::HandOver {
            core: 1,
            stream,
            session,
        } = here.serve_connection(far).await
        else {
            panic!("a question about contexts of `far` moves to core 1")
        };
        let outcome = there.resume_connection(stream, session).await;
        assert!(matches!(outcome, Outcome::Closed(CloseReason::Finished)));
    });
    stage.world.clone().run(async move {
        let mut client = Client::greet(near).await.expect("greeted");
        client.choose_mode(Mode::Structured).await.expect("mode");
        let everything = ["flagstone:"; 100];
        let data = meta_data("far", &everything);
        let listed = client.option(9, &data).await.expect("listed");
        let name = &listed[0].1[4..];
        assert_eq!(name, b"flagstone:changed:mon");
        assert_eq!(listings.get(), 1, "each listing costs what there is");
        client
            .select("far", &["flagstone:changed:mon"])
            .await
            .expect("selected");
        client.go("far").await.expect("attached");
        let answer = client.call(STATUS, 0, 0, 4096).await;
        assert_eq!(answer.result, Ok(()));
    });
}
