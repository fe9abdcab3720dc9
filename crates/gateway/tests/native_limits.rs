//! What a client can't do to a server: each limit, and what happens beyond it.

use std::rc::Rc;

use flagstone_gateway::native::{CloseReason, Ends, NativeLimits, NativeServer};
use flagstone_platform::{Platform, Stream};
use flagstone_types::Lsn;
use flagstone_wire::hello::{HELLO_MAGIC, HelloRequest, Nonce, SessionId};
use flagstone_wire::{Operation, ReplyHeader, RequestHeader, Status, VolumeNo};

use crate::native_support::arrivals::ArrivalNode;
use crate::native_support::client::*;
use crate::native_support::node::*;
use crate::native_support::stage::{End, Stage};
use crate::support::stream::{Link, MemoryStream};
use crate::support::world::World;

type Violation = flagstone_wire::CloseReason;

async fn client(stage: &Stage) -> (Client<MemoryStream>, End) {
    let (stream, end) = stage.connect(Link::default());
    let client = Client::hello(stream, SessionId::NEW).await;
    (client.expect("HELLO is answered"), end)
}

/// The server ends the connection for this.
async fn ends(stage: &Stage, mut client: Client<MemoryStream>, end: &End) -> Violation {
    assert!(client.is_closed().await);
    stage.sleep_ms(1).await;
    match end.get() {
        Some(CloseReason::Protocol(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_hello_ends_the_connection() {
    let hello = hello_frame(SessionId::NEW, Nonce([1; 16]));
    let ping = frame(RequestHeader::of(Operation::Ping), &[], &[]);
    let mut foreign = RequestHeader::of(Operation::Hello);
    foreign.lsn = Lsn(HELLO_MAGIC + 1);
    let mut long = foreign;
    long.lsn = Lsn(HELLO_MAGIC);
    long.body_bytes = 1025;
    let mut loaded = foreign;
    loaded.lsn = Lsn(HELLO_MAGIC);
    loaded.payload_bytes = 1;
    let mut damaged = hello.clone();
    damaged[9] ^= 1;
    let cases = [
        (ping, CloseReason::Protocol(Violation::NoHello(5))),
        (
            foreign.encode().to_vec(),
            CloseReason::Protocol(Violation::NotOurs(HELLO_MAGIC + 1)),
        ),
        (
            long.encode().to_vec(),
            CloseReason::Protocol(Violation::BodyTooLong(1025, 1024)),
        ),
        (
            loaded.encode().to_vec(),
            CloseReason::Protocol(Violation::PayloadTooLong(1, 0)),
        ),
        (damaged, CloseReason::HeadDamaged),
        // TLS, which isn't there.
        (vec![0x16; 64], CloseReason::HeadDamaged),
    ];
    for (bytes, reason) in cases {
        Stage::new(1).run(move |stage| async move {
            let (stream, end) = stage.connect(Link::default());
            let mut client = Client::bare(stream);
            client.send(&bytes).await;
            assert!(client.is_closed().await);
            stage.sleep_ms(1).await;
            assert_eq!(end.get(), Some(reason));
            let counters = stage.server.counters();
            assert_eq!(counters.closes().map(|(_, count)| count).sum::<u64>(), 1);
            let kind = CloseReason::KINDS[reason.kind()];
            assert!(counters.closes().any(|close| close == (kind, 1)));
        });
    }
}

#[test]
fn a_hello_that_cannot_be_is_answered_and_ends_the_connection() {
    let hello = |version_min, version_max| {
        let mut body = Vec::new();
        let hello = HelloRequest {
            version_min,
            version_max,
            features: u64::MAX,
            session: SessionId::NEW,
            nonce: Nonce([1; 16]),
            name: "n",
        };
        hello.encode(&mut body);
        let mut header = RequestHeader::of(Operation::Hello);
        header.lsn = Lsn(HELLO_MAGIC);
        // What a later version may have there is not looked at.
        (header.flags, header.unsettled, header.number) = (0xff, 9, 77);
        frame(header, &body, &[])
    };
    let mut damaged = hello(1, 1);
    *damaged.last_mut().expect("a name") ^= 1;
    let mut longer = hello_frame(SessionId::NEW, Nonce([1; 16]));
    longer.truncate(64 + 44);
    let cut = frame(
        RequestHeader {
            lsn: Lsn(HELLO_MAGIC),
            ..RequestHeader::of(Operation::Hello)
        },
        &longer[64..],
        &[],
    );
    let cases = [
        (hello(1, 1), Status::Ok),
        (hello(0, 9), Status::Ok),
        (hello(2, 9), Status::Version),
        (hello(0, 0), Status::Version),
        (hello(3, 1), Status::Invalid),
        (damaged, Status::Damaged),
        (cut, Status::Invalid),
    ];
    for (bytes, status) in cases {
        Stage::new(2).run(move |stage| async move {
            let (stream, end) = stage.connect(Link::default());
            let mut client = Client::bare(stream);
            client.send(&bytes).await;
            let reply = client.receive().await.expect("an answer");
            assert_eq!(reply.status(), status);
            assert_eq!(reply.header.number, 0);
            if status == Status::Ok {
                return;
            }
            if status == Status::Version {
                assert_eq!(reply.body, [1, 0, 1, 0]);
            }
            assert!(client.is_closed().await);
            stage.sleep_ms(1).await;
            assert_eq!(end.get(), Some(CloseReason::HelloRefused));
        });
    }
}

#[test]
fn a_hello_has_to_come_in_time() {
    Stage::new(3).run(|stage| async move {
        let (stream, end) = stage.connect(Link::default());
        let client = Client::bare(stream);
        client
            .send(&hello_frame(SessionId::NEW, client.nonce)[..70])
            .await;
        stage.sleep_ms(9_999).await;
        assert_eq!(end.get(), None);
        stage.sleep_ms(2).await;
        assert_eq!(end.get(), Some(CloseReason::HelloTimeout));
    });
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    type Break = fn(&mut Client<MemoryStream>, VolumeNo) -> RequestHeader;
    let cases: [(Break, Violation); 6] = [
        (
            |_, _| RequestHeader::of(Operation::Hello),
            Violation::SecondHello,
        ),
        (
            |client, volume| RequestHeader {
                number: client.number + 1,
                ..ranged(Operation::Read, volume, 0, 1)
            },
            Violation::Number(3, 2),
        ),
        (
            |client, volume| RequestHeader {
                number: client.number - 1,
                ..ranged(Operation::Read, volume, 0, 1)
            },
            Violation::Number(1, 2),
        ),
        (
            |client, volume| RequestHeader {
                body_bytes: (64 << 10) + 1,
                ..client.next(of(Operation::Flush, volume))
            },
            Violation::BodyTooLong((64 << 10) + 1, 64 << 10),
        ),
        (
            |client, volume| RequestHeader {
                payload_bytes: (4 << 20) + 1,
                ..client.next(write(volume, 0))
            },
            Violation::PayloadTooLong((4 << 20) + 1, 4 << 20),
        ),
        (
            |client, volume| RequestHeader {
                unsettled: 2,
                ..client.next(ranged(Operation::Read, volume, 0, 1))
            },
            Violation::Unsettled(2, 1),
        ),
    ];
    for (header, violation) in cases {
        Stage::new(4).run(move |stage| async move {
            let (mut client, end) = client(&stage).await;
            let a = client.open("a", OWNER).await;
            let bytes = header(&mut client, a).encode();
            client.send(&bytes).await;
            assert_eq!(ends(&stage, client, &end).await, violation);
        });
    }
}

#[test]
fn a_damaged_header_ends_the_connection_and_what_came_before_is_answered() {
    Stage::new(5).run(|stage| async move {
        let (mut client, end) = client(&stage).await;
        let a = client.open("a", OWNER).await;
        stage.volume("a").memory.pause_ns.set(1_000_000_000);
        client.start(write(a, 0), &[], b"x").await;
        let mut bytes = client.next(write(a, 0)).encode();
        bytes[33] ^= 0x10;
        client.send(&bytes).await;
        client.receive().await.expect("an answer").ok();
        assert!(client.is_closed().await);
        stage.sleep_ms(1).await;
        assert_eq!(end.get(), Some(CloseReason::HeadDamaged));
        assert_eq!(stage.volume("a").memory.carried_out.borrow().len(), 1);
    });
}

#[test]
fn no_more_requests_than_may_be_in_flight() {
    let mut limits = NativeLimits::default();
    limits.connection.requests_max = 10;
    Stage::with_limits(6, limits).run(|stage| async move {
        let (mut client, end) = client(&stage).await;
        assert_eq!(client.hello.limits.requests_max, 10);
        let a = client.open("a", OWNER).await;
        stage.volume("a").memory.pause_ns.set(1_000_000);
        // Never one too many, for a long time.
        let mut in_flight = 0;
        for _ in 0..200 {
            while in_flight < 10 {
                client
                    .start(ranged(Operation::Read, a, 0, 100), &[], &[])
                    .await;
                in_flight += 1;
            }
            client.receive().await.expect("an answer").ok();
            in_flight -= 1;
        }
        stage.volume("a").memory.pause_ns.set(1 << 40);
        for _ in 0..2 {
            client
                .start(ranged(Operation::Read, a, 0, 100), &[], &[])
                .await;
        }
        stage.volume("a").memory.pause_ns.set(0);
        stage.sleep_ms(1).await;
        let reason = loop {
            if client.receive().await.is_none() {
                break end.get();
            }
        };
        let expected = CloseReason::Protocol(Violation::TooManyRequests(10));
        assert_eq!(reason.or(end.get()).unwrap_or(expected), expected);
    });
}

#[test]
fn no_more_payload_than_may_be_in_flight() {
    let mut limits = NativeLimits::default();
    limits.connection.payload_max_bytes = 100_000;
    limits.connection.payload_in_flight_max_bytes = 250_000;
    for too_much in [false, true] {
        Stage::with_limits(7, limits).run(move |stage| async move {
            let (mut client, end) = client(&stage).await;
            let a = client.open("a", OWNER).await;
            stage.volume("a").memory.pause_ns.set(1_000_000_000);
            client
                .start(ranged(Operation::Read, a, 0, 100_000), &[], &[])
                .await;
            client.start(write(a, 0), &[], &vec![1; 100_000]).await;
            let more = if too_much { 50_001 } else { 50_000 };
            client
                .start(ranged(Operation::Read, a, 0, more), &[], &[])
                .await;
            for _ in 0..2 {
                client.receive().await.expect("an answer").ok();
            }
            if !too_much {
                client.receive().await.expect("an answer").ok();
                return;
            }
            let reason = ends(&stage, client, &end).await;
            assert_eq!(reason, Violation::TooMuchPayload(250_001, 250_000));
        });
    }
}

#[test]
fn what_must_be_zero_is_refused_and_the_connection_goes_on() {
    Stage::new(8).run(|stage| async move {
        let (mut client, _) = client(&stage).await;
        let a = client.open("a", OWNER).await;
        for operation in (0..=255).filter(|one| *one != Operation::Hello.number()) {
            let header = RequestHeader {
                operation,
                flags: 0x80,
                ..of(Operation::Ping, a)
            };
            // Body and payload are skipped, whatever they are.
            let reply = client.ask(header, &[7; 300], &[9; 5000]).await;
            assert_eq!(reply.status(), Status::Invalid);
            assert!(!reply.text().is_empty());
        }
        let refused = [
            (ranged(Operation::Read, a, 0, 0), Status::Invalid),
            (
                ranged(Operation::Read, a, 0, (4 << 20) + 1),
                Status::TooLong,
            ),
            (ranged(Operation::Read, a, u64::MAX, 2), Status::OutOfRange),
            (
                ranged(Operation::Read, VolumeNo::NONE, 0, 1),
                Status::NoVolume,
            ),
            (ranged(Operation::ReadMetadata, a, 0, 5), Status::Invalid),
        ];
        for (header, status) in refused {
            let reply = client.ask(header, &[], &[]).await;
            assert_eq!(reply.status(), status);
            assert!(!reply.text().is_empty());
        }
        client.read(a, 0, 1).await.ok();
        assert!(stage.server.counters().unknown_operations > 200);
        assert_eq!(stage.server.counters().written_bytes, 0, "nothing was kept");
    });
}

#[test]
fn who_stops_in_the_middle_of_a_frame_is_cut_off() {
    Stage::new(9).run(|stage| async move {
        for cut in [10, 64, 70, 64 + 4000] {
            let (mut client, end) = client(&stage).await;
            let a = client.open("a", OWNER).await;
            let header = client.next(write(a, 0));
            client.send(&frame(header, &[], &[1; 5000])[..cut]).await;
            stage.sleep_ms(44_000).await;
            assert_eq!(end.get(), None, "{cut}");
            stage.sleep_ms(32_000).await;
            assert_eq!(end.get(), Some(CloseReason::Stalled), "{cut}");
        }
        // Who says nothing at all may stay.
        let (mut client, end) = client(&stage).await;
        stage.sleep_ms(3_600_000).await;
        assert_eq!(end.get(), None);
        client.open("a", OWNER).await;
    });
}

#[test]
fn who_takes_no_replies_is_cut_off_and_its_memory_comes_back() {
    Stage::new(10).run(|stage| async move {
        let link = Link {
            capacity: 10_000,
            ..Link::default()
        };
        let (stream, end) = stage.connect(link);
        let client = Client::hello(stream, SessionId::NEW).await;
        let mut client = client.expect("HELLO is answered");
        let a = client.open("a", OWNER).await;
        for at in 0..8 {
            client.write(a, at * 100_000, &[1; 100_000]).await.ok();
        }
        for _ in 0..10 {
            client
                .start(ranged(Operation::Read, a, 0, 800_000), &[], &[])
                .await;
        }
        stage.sleep_ms(76_000).await;
        assert_eq!(end.get(), Some(CloseReason::Stalled));
        assert_eq!(stage.volume("a").memory.running.get(), 0);
        assert_eq!(stage.server.counters().volumes_open, 0);
        drop(client);
        let memory = stage.volume("a").memory;
        assert_eq!(Rc::strong_count(&memory), 2);
        assert_eq!(stage.world.buffers().in_use_bytes(), 0);
    });
}

#[test]
fn connections_without_a_volume_make_room() {
    let limits = NativeLimits {
        connections_max: 3,
        ..NativeLimits::default()
    };
    Stage::with_limits(11, limits).run(|stage| async move {
        let (mut first, first_end) = client(&stage).await;
        first.open("a", OWNER).await;
        stage.sleep_ms(1).await;
        let (silent, silent_end) = stage.connect(Link::default());
        stage.sleep_ms(1).await;
        let (mut third, third_end) = client(&stage).await;
        stage.sleep_ms(1).await;
        let (mut fourth, fourth_end) = client(&stage).await;
        stage.sleep_ms(1).await;
        assert_eq!(silent_end.get(), Some(CloseReason::Refused));
        let b = third.open("b", OWNER).await;
        fourth.open("b", OWNER).await;
        let (stream, end) = stage.connect(Link::default());
        assert!(Client::hello(stream, SessionId::NEW).await.is_none());
        assert_eq!(end.get(), Some(CloseReason::Refused), "all have a volume");
        stage.sleep_ms(1).await;
        third.ask(of(Operation::Close, b), &[], &[]).await.ok();
        let (_fifth, _) = client(&stage).await;
        stage.sleep_ms(1).await;
        assert_eq!(third_end.get(), Some(CloseReason::Refused));
        assert_eq!((first_end.get(), fourth_end.get()), (None, None));
        assert_eq!(stage.server.counters().connections, 3);
        drop(silent);
    });
}

/// Whoever brings a volume keeps his place as long as a request for that is under way, and no longer, unless he has one open.
#[test]
fn who_brings_a_volume_makes_room_when_he_has_brought_it() {
    let limits = NativeLimits {
        connections_max: 3,
        ..NativeLimits::default()
    };
    let world = World::new(13);
    let node = ArrivalNode::new(&world, &["a"]);
    let server = NativeServer::new(world.clone(), node.clone(), limits);
    let platform = world.clone();
    let connected = move || {
        let (near, far) = Link::default().connect();
        let (end, server) = (End::default(), server.clone());
        let noted = end.clone();
        platform.spawn(async move {
            noted.set(Some(server.serve_connection(far, Ends::default()).await));
        });
        async move {
            let client = Client::hello(near, SessionId::NEW).await;
            (client.expect("HELLO is answered"), end)
        }
    };
    world.clone().run(async move {
        let pause = || world.sleep_ns(1_000_000);
        let (mut holder, holder_end) = connected().await;
        holder.open("a", OWNER).await;
        node.bring(&mut holder, 0).await;
        holder.receive().await.expect("an answer").ok();
        let (mut bringing, bringing_end) = connected().await;
        node.bring(&mut bringing, 5_000_000).await;
        pause().await;
        let (_idle, idle_end) = connected().await;
        pause().await;
        let (_third, third_end) = connected().await;
        pause().await;
        assert_eq!(idle_end.get(), Some(CloseReason::Refused));
        assert_eq!(bringing_end.get(), None, "his request is under way");
        bringing.receive().await.expect("an answer").ok();
        pause().await;
        let (_fourth, fourth_end) = connected().await;
        pause().await;
        assert_eq!(third_end.get(), Some(CloseReason::Refused), "since longer");
        assert_eq!(bringing_end.get(), None);
        let (_fifth, fifth_end) = connected().await;
        pause().await;
        assert_eq!(bringing_end.get(), Some(CloseReason::Refused));
        let others = (holder_end.get(), fourth_end.get(), fifth_end.get());
        assert_eq!(others, (None, None, None));
    });
}

#[test]
fn what_others_hold_does_not_stop_small_requests() {
    let mut limits = NativeLimits {
        own_bytes: 64 << 10,
        // As little as can be: one connection can hold all of it.
        shared_bytes: 0,
        single_bytes: 0,
        ..NativeLimits::default()
    };
    limits.connection.payload_max_bytes = 1 << 20;
    limits.connection.payload_in_flight_max_bytes = 16 << 20;
    Stage::with_limits(12, limits).run(|stage| async move {
        // Greedy: asks for all that there is, and takes none of it.
        let mut greedy = Vec::new();
        for _ in 0..4 {
            let link = Link {
                capacity: 10_000,
                ..Link::default()
            };
            let (stream, _) = stage.connect(link);
            let client = Client::hello(stream, SessionId::NEW).await;
            let mut client = client.expect("HELLO is answered");
            let a = client.open("a", OWNER).await;
            for _ in 0..16 {
                let header = ranged(Operation::Read, a, 0, 1 << 20);
                client.start(header, &[], &[]).await;
            }
            greedy.push(client);
        }
        stage.sleep_ms(10).await;
        let (mut client, _) = client(&stage).await;
        let b = client.open("b", OWNER).await;
        let began = stage.world.now();
        for _ in 0..100 {
            client.write(b, 0, &[1; 4096]).await.ok();
            client.read(b, 0, 4096).await.ok();
        }
        assert!(stage.world.now().since(began) < 1_000_000_000);
        for client in greedy {
            client.stream.shutdown();
        }
    });
}

#[test]
fn replies_are_gathered() {
    Stage::new(14).run(|stage| async move {
        let (mut client, _) = client(&stage).await;
        let a = client.open("a", OWNER).await;
        let before = stage.server.counters().sends;
        let mut script = Vec::new();
        for _ in 0..64 {
            let header = client.next(ranged(Operation::Read, a, 0, 512));
            script.extend(frame(header, &[], &[]));
        }
        client.send(&script).await;
        for _ in 0..64 {
            client.receive().await.expect("an answer").ok();
        }
        let sends = stage.server.counters().sends - before;
        assert!(sends <= 8, "{sends} calls for 64 replies");
        let reads = stage.server.counters();
        assert_eq!(reads.operation(Operation::Read).answered, 64);
        assert_eq!(reads.read_bytes, 64 * 512);
    });
}

/// However much one client sends at once, whoever asks beside it is answered among the first of that: a reader lets others have their turn.
#[test]
fn who_sends_much_at_once_holds_nobody_up() {
    const PINGS: u64 = 10_000;
    let mut limits = NativeLimits::default();
    limits.connection.requests_max = 32_768;
    Stage::with_limits(18, limits).run(|stage| async move {
        // Nothing that is sent, or answered, has to wait for room on the way.
        let link = Link {
            capacity: 2 << 20,
            ..Link::default()
        };
        let greedy = Client::hello(stage.connect(link).0, SessionId::NEW).await;
        let mut greedy = greedy.expect("HELLO is answered");
        let mut modest = stage.client().await;
        let a = modest.open("a", OWNER).await;
        let mut script = Vec::new();
        for _ in 0..PINGS {
            let header = greedy.next(RequestHeader::of(Operation::Ping));
            script.extend(frame(header, &[], &[]));
        }
        greedy.send(&script).await;
        modest.read(a, 0, 512).await.ok();
        let answered = || stage.server.counters().operation(Operation::Ping).answered;
        assert!(answered() < 1000, "{} before it", answered());
        for _ in 0..PINGS {
            greedy.receive().await.expect("an answer").ok();
        }
        assert_eq!(answered(), PINGS);
    });
}

#[test]
fn reply_headers_name_their_requests() {
    Stage::new(16).run(|stage| async move {
        let (mut client, _) = client(&stage).await;
        let a = client.open("a", OWNER).await;
        let reply = client.read(a, 0, 4096).await.ok();
        let expected = ReplyHeader {
            operation: Operation::Read.number(),
            volume: a,
            number: 2,
            payload_bytes: 4096,
            payload_crc: flagstone_types::checksum::crc32c(&[0; 4096]),
            ..ReplyHeader::default()
        };
        assert_eq!(reply.header, expected);
    });
}
