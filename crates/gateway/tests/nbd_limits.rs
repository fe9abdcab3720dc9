//! What a client can use up, how connections end, and who waits for whom.

use crate::support;

use std::rc::Rc;

use flagstone_gateway::nbd::{CloseReason, NbdLimits, NbdServer, Outcome};
use flagstone_platform::{Platform, Stream};
use support::client::*;
use support::memory::{Call, MemoryDirectory, MemoryVolume};
use support::stage::Stage;
use support::stream::Link;
use support::world::World;

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
    // Own part 16 KiB; a connection's limit, everyone's limit and what there is for single requests are
    // raised to one largest request.
    let limits = NbdLimits {
        own_payload_bytes: 16 << 10,
        payload_bytes_max: 0,
        shared_payload_bytes: 0,
        single_payload_bytes: 0,
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
        let running = || volume.memory.running.get();
        assert_eq!(running(), 5, "32 MiB of reads, and a single one");
        // The other connection's small requests go on, one as a single one; then they have to wait.
        for _ in 0..4 {
            two.submit(READ, 0, 0, 8 << 10).await;
        }
        volume.world.sleep_ns(1_000_000).await;
        assert_eq!(running(), 8, "its own 16 KiB, and a single one");
        volume.release();
        for _ in 0..6 {
            assert_eq!(one.answer().await.expect("an answer").data.len(), 8 << 20);
        }
        for _ in 0..4 {
            assert_eq!(two.answer().await.expect("an answer").data.len(), 8 << 10);
        }
    });
}

/// What is shared is more than one connection may take of it: the rest is for others.
#[test]
fn no_connection_takes_everything_that_is_shared() {
    let limits = NbdLimits {
        own_payload_bytes: 16 << 10,
        payload_bytes_max: 0,
        shared_payload_bytes: 64 << 20,
        ..NbdLimits::default()
    };
    let stage = Stage::with_limits(4, limits);
    let streams = [(); 2].map(|()| stage.connect(Link::default()).0);
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut clients = Vec::new();
        for stream in streams {
            let client = Client::attach(stream, Mode::Structured, "disk", &[]);
            clients.push(client.await.expect("attached"));
        }
        volume.memory.held.set(true);
        for (running, client) in [5, 10].into_iter().zip(&mut clients) {
            for _ in 0..8 {
                client.submit(READ, 0, 0, 8 << 20).await;
            }
            volume.world.sleep_ns(1_000_000).await;
            let found = volume.memory.running.get();
            assert_eq!(found, running, "32 MiB for each, and a single one");
        }
        volume.release();
        for client in &mut clients {
            for _ in 0..8 {
                let answer = client.answer().await.expect("an answer");
                assert_eq!(answer.data.len(), 8 << 20);
            }
        }
    });
}

/// Somebody holds everything that is shared, for as long as it likes. A client that waited for some
/// of that did not get back to what it has for itself.
#[test]
fn who_holds_what_is_shared_stops_nobody_else() {
    let limits = NbdLimits {
        own_payload_bytes: 16 << 10,
        payload_bytes_max: 0,
        shared_payload_bytes: 0,
        ..NbdLimits::default()
    };
    let stage = Stage::with_limits(4, limits);
    let hogs = [(); 4].map(|()| stage.connect(Link::default()).0);
    let (honest, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut attached = Vec::new();
        for hog in hogs {
            let mut hog = Client::attach(hog, Mode::Simple, "disk", &[])
                .await
                .expect("attached");
            // A large payload of which nothing comes.
            let (_, header) = hog.encode(WRITE, 0, 0, 8 << 20);
            hog.send(&header).await;
            attached.push(hog);
        }
        let mut honest = Client::attach(honest, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        volume.world.sleep_ns(1_000_000).await;
        for _ in 0..8 {
            honest.submit(READ, 0, 0, 8 << 10).await;
        }
        let began = volume.world.now();
        for _ in 0..8 {
            assert_eq!(
                honest.answer().await.expect("an answer").data.len(),
                8 << 10
            );
        }
        let took_ns = volume.world.now().since(began);
        assert!(took_ns < 1_000_000_000, "virtual time: {took_ns} ns");
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
        volume.world.sleep_ns(1000).await;
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

/// Eight that take no answers hold everything that is shared. Requests larger than what an honest client
/// has for itself waited for that, and everything behind them.
#[test]
fn who_holds_what_is_shared_stops_no_large_request() {
    let stage = Stage::new(4);
    let hogs = [(); 8].map(|()| stage.connect(Link::default()).0);
    let (honest, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut attached = Vec::new();
        for hog in hogs {
            let mut hog = Client::attach(hog, Mode::Simple, "disk", &[])
                .await
                .expect("attached");
            for _ in 0..64 {
                hog.submit(READ, 0, 0, 8 << 20).await;
            }
            attached.push(hog);
        }
        let mut honest = Client::attach(honest, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        volume.world.sleep_ns(1_000_000_000).await;
        let reads = volume.memory.calls.borrow().len();
        assert!(reads >= 8 * 8, "{reads}: they hold all that is shared");
        let began = volume.world.now();
        for round in 0..10 {
            let lens = [2 << 20, 8 << 20, 4096];
            for len in lens {
                honest.submit(READ, 0, 0, len).await;
            }
            for len in lens {
                let answer = honest.answer().await.expect("an answer");
                assert_eq!(answer.data.len() as u64, len, "round {round}");
            }
            let ones = vec![1; 2 << 20];
            assert_eq!(honest.write(0, 0, &ones).await.result, Ok(()));
        }
        let took_ns = volume.world.now().since(began);
        assert!(took_ns < 1_000_000_000, "virtual time: {took_ns} ns");
    });
}

/// Zeros that take space can be asked for as far as the volume goes, in as many requests as may be in
/// flight. They went on being written for somebody who had long left, and kept its place.
#[test]
fn zeros_are_not_written_for_who_has_left() {
    for says_good_bye in [true, false] {
        let world = World::new(3);
        let volume = MemoryVolume::new(&world, 64 << 20);
        let directory = MemoryDirectory::with("disk", &volume);
        let server = NbdServer::new(world.clone(), directory, NbdLimits::default());
        // A minute for the volume.
        volume.memory.zeros_ns.set(1_000_000_000);
        let (near, far) = Link::default().connect();
        let serving = server.clone();
        world.spawn(async move { drop(serving.serve_connection(far).await) });
        let asking = world.clone();
        world.run(async move {
            let mut client = Client::attach(near, Mode::Simple, "disk", &[])
                .await
                .expect("attached");
            for _ in 0..64 {
                client.submit(ZEROES, NO_HOLE, 0, 64 << 20).await;
            }
            asking.sleep_ns(1_000_000_000).await;
            assert_eq!(volume.memory.running.get(), 64);
            if says_good_bye {
                client.submit(DISC, 0, 0, 0).await;
            }
            client.stream.shutdown();
            asking.sleep_ns(10_000_000_000).await;
            assert_eq!(volume.memory.running.get(), 0);
            assert_eq!(server.counters().connections, 0);
        });
    }
}

/// In parts, of which none ends within a block.
#[test]
fn many_zeros_are_written_for_who_stays() {
    let stage = Stage::new(3);
    let (stream, _) = stage.connect(Link::default());
    let volume = stage.volume.clone();
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        let ones = vec![1; 8 << 20];
        assert_eq!(client.write(FUA, 0, &ones).await.result, Ok(()));
        let len = (8 << 20) - 1000;
        let zeroed = client.submit(ZEROES, NO_HOLE | FUA, 500, len).await;
        assert_eq!(client.answer_to(zeroed).await.result, Ok(()));
        let stable = volume.memory.stable.borrow();
        let end = 500 + len as usize;
        assert!(stable[500..end].iter().all(|&byte| byte == 0));
        assert!(stable[..500].iter().chain(&stable[end..]).all(|&b| b == 1));
        for call in volume.memory.calls.borrow().iter() {
            if let Call::WriteZeroes(offset, len, ..) = call {
                assert!(*offset == 500 || offset.is_multiple_of(4096));
                assert!(*len <= 4 << 20, "{len}");
            }
        }
    });
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

/// A client that reads a little now and then could hold a stop up for as long as it liked.
#[test]
fn who_takes_no_answers_can_be_cut_off_at_a_stop() {
    let stage = Stage::new(1);
    let (stream, end) = stage.connect(Link::default());
    let (world, server) = (stage.world.clone(), stage.server.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        for _ in 0..64 {
            client.submit(READ, 0, 0, 1 << 20).await;
        }
        world.sleep_ns(1_000_000).await;
        let began = world.now();
        assert!(!server.stop_within(10_000_000_000).await);
        assert_eq!(world.now().since(began), 10_000_000_000);
        server.stopped().await;
        assert_eq!(world.now().since(began), 10_000_000_000, "at once");
    });
    assert_eq!(end.get(), Some(CloseReason::Stopping));
}

/// As long as the grace lasts, a slow client gets what it has asked for; then the stop is over.
#[test]
fn who_takes_its_answers_in_time_gets_them() {
    let stage = Stage::new(1);
    let (stream, end) = stage.connect(Link::default());
    let (world, server) = (stage.world.clone(), stage.server.clone());
    stage.world.run(async move {
        let mut client = Client::attach(stream, Mode::Simple, "disk", &[])
            .await
            .expect("attached");
        for _ in 0..8 {
            client.submit(READ, 0, 0, 1 << 20).await;
        }
        world.sleep_ns(1_000_000).await;
        let began = world.now();
        let stopping = Rc::new(std::cell::Cell::new(None));
        let (noted, clock) = (stopping.clone(), world.clone());
        world.spawn(async move {
            let in_time = server.stop_within(10_000_000_000).await;
            noted.set(Some((in_time, clock.now().since(began))));
        });
        for _ in 0..8 {
            world.sleep_ns(1_000_000_000).await;
            assert_eq!(client.answer().await.expect("an answer").result, Ok(()));
        }
        assert_eq!(client.answer().await, None, "closed");
        world.yield_now().await;
        let (in_time, took_ns) = stopping.get().expect("stopped");
        assert!(in_time);
        assert!(took_ns < 9_000_000_000, "in virtual time: {took_ns}");
    });
    assert_eq!(end.get(), Some(CloseReason::Stopping));
}

fn with_places(connections_max: usize) -> Stage {
    let limits = NbdLimits {
        connections_max,
        ..NbdLimits::default()
    };
    Stage::with_limits(2, limits)
}

#[test]
fn too_many_connections_are_refused() {
    let stage = with_places(2);
    let server = stage.server.clone();
    let end = Rc::new(std::cell::Cell::new(None));
    let noted = end.clone();
    stage.world.clone().run(async move {
        let mut attached = Vec::new();
        for _ in 0..2 {
            let (stream, _) = stage.connect(Link::default());
            let client = Client::attach(stream, Mode::Simple, "disk", &[]).await;
            attached.push(client.expect("attached"));
        }
        let (three, ended) = stage.connect(Link::default());
        assert!(Client::greet(three).await.is_err());
        noted.set(ended.get());
        let one = attached.remove(0);
        one.stream.shutdown();
        stage.world.sleep_ns(1000).await;
        let (four, _) = stage.connect(Link::default());
        assert!(Client::greet(four).await.is_ok());
    });
    assert_eq!(end.get(), Some(CloseReason::Refused));
    assert_eq!(server.counters().connections_refused, 1);
}

/// Connections that say nothing take all places; everyone else still gets in, and stays.
#[test]
fn who_is_silent_keeps_nobody_out() {
    let stage = with_places(8);
    let server = stage.server.clone();
    stage.world.clone().run(async move {
        let mut attached = Vec::new();
        let mut silent = Vec::new();
        for round in 0..7 {
            for _ in 0..20 {
                let (stream, end) = stage.connect(Link::default());
                stage.world.sleep_ns(1000).await;
                silent.push((stream, end));
            }
            let (stream, _) = stage.connect(Link::default());
            let client = Client::attach(stream, Mode::Simple, "disk", &[]).await;
            attached.push(client.unwrap_or_else(|error| panic!("round {round}: {error:?}")));
            for client in &mut attached {
                assert_eq!(client.write(0, 0, b"still here").await.result, Ok(()));
            }
        }
        assert_eq!(stage.server.counters().connections, 8);
        // The oldest of them went first.
        let lost = silent.iter().take_while(|(_, end)| end.get().is_some());
        assert_eq!(lost.count(), 7 * 20 - 1);
        assert_eq!(silent[0].1.get(), Some(CloseReason::Refused));
        assert_eq!(silent[139].1.get(), None);
    });
    assert_eq!(server.counters().connections_expelled, 139);
}

/// A place is not given to one that has waited for longer: moving from core to core makes nobody new.
#[test]
fn a_negotiation_keeps_its_age_when_it_moves() {
    let world = World::new(2);
    let volume = MemoryVolume::new(&world, 1 << 20);
    let directory = MemoryDirectory::new();
    directory.add("disk", 1, &volume);
    let limits = NbdLimits {
        connections_max: 1,
        ..NbdLimits::default()
    };
    let near = NbdServer::new(world.clone(), directory.on_core(0), limits);
    let far = NbdServer::new(world.clone(), directory.on_core(1), limits);
    let (old, there) = Link::default().connect();
    world.clone().run(async move {
        let mut old = Client::detached(old, Mode::Simple);
        old.send(&3u32.to_be_bytes()).await;
        let moved = Rc::new(std::cell::RefCell::new(None));
        let slot = moved.clone();
        world.spawn(async move { *slot.borrow_mut() = Some(near.serve_connection(there).await) });
        world.sleep_ns(1_000_000_000).await;
        old.send(&option_message(7, &go_data("disk"))).await;
        world.sleep_ns(1000).await;
        let Some(Outcome::HandOver {
            stream, session, ..
        }) = moved.take()
        else {
            panic!("its volume is on the other core");
        };
        // Meanwhile somebody younger has the only place there.
        let (young, there) = Link::default().connect();
        let serving = far.clone();
        world.spawn(async move { drop(serving.serve_connection(there).await) });
        let mut young = Client::greet(young).await.expect("greeted");
        let outcome = far.resume_connection(stream, session).await;
        assert!(matches!(outcome, Outcome::Closed(CloseReason::Refused)));
        assert_eq!(young.go("disk").await, Ok(()));
    });
}

/// Ten seconds are for one question: a client that looks at thousands of exports may take longer.
#[test]
fn each_question_has_its_own_time() {
    let stage = Stage::new(1);
    let (stream, end) = stage.connect(Link::default());
    for index in 0..3000 {
        let name = format!("volume-{index}");
        stage.directory.add(&name, 0, &stage.volume);
    }
    let world = stage.world.clone();
    stage.world.run(async move {
        let mut client = Client::greet(stream).await.expect("greeted");
        client.choose_mode(Mode::Structured).await.expect("chosen");
        let exports = client.option(3, b"").await.expect("listed");
        assert_eq!(exports.len(), 3001);
        for (index, (_, data)) in exports.iter().enumerate() {
            let name = std::str::from_utf8(&data[4..]).expect("a name");
            let name = &name[..name.find("this is").expect("its description")];
            client.option(6, &go_data(name)).await.expect("described");
            for option in [9, 10] {
                let meta = meta_data(name, &["base:allocation"]);
                client.option(option, &meta).await.expect("listed");
            }
            if index % 100 == 0 {
                world.sleep_ns(9_000_000_000).await;
            }
        }
        world.sleep_ns(10_000_000_001).await;
        assert_eq!(client.take(1).await, None);
    });
    assert_eq!(end.get(), Some(CloseReason::NegotiationTimeout));
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
