//! What a client can use up, how connections end, and who waits for whom.

use crate::nfs_server;
use crate::support;

use flagstone_gateway::rpc::record::{RecordError, RecordLimits};
use flagstone_gateway::rpc::server::{CloseReason, RpcLimits};
use flagstone_platform::{Platform, Stream};
use nfs_server::client::*;
use nfs_server::{Scene, run, run_with};
use support::Rng;
use support::stream::{Link, MemoryStream};

fn narrow() -> Link {
    Link {
        capacity: 4 << 20,
        peer: "127.0.0.1:700",
        ..Link::default()
    }
}

async fn file(client: &Client<MemoryStream>) -> Vec<u8> {
    let root = client.mount("/data").await;
    client.create(&root, "file").await
}

fn read_args(file: &[u8], count: u32) -> Args {
    Args::new().opaque(file).u64(0).u32(count)
}

/// Calls beyond the window stay in the socket; nobody else waits.
#[test]
fn calls_in_flight_are_bounded() {
    let limits = RpcLimits {
        calls_in_flight_max: 10,
        ..RpcLimits::default()
    };
    run_with(51, limits, |scene| async move {
        let (one, _) = scene.connect_over(narrow());
        let (two, _) = scene.connect_over(narrow());
        let file = file(&one).await;
        scene.files.hold("read");
        for _ in 0..100 {
            one.send((NFS, 3, 6), &read_args(&file, 9)).await;
        }
        scene.world.sleep_ns(1_000_000).await;
        assert_eq!(scene.files.running(), 10);
        assert_eq!(two.getattr(&file).await.size, 0);
        scene.files.release();
        for _ in 0..100 {
            assert!(one.receive().await.is_some());
        }
        assert_eq!(scene.files.running(), 0);
    });
}

/// Bytes in flight: a connection's own part, what all share, and one large call each besides.
#[test]
fn bytes_in_flight_are_bounded_for_each_and_for_all() {
    // The shared parts are raised to one largest call: 2 MiB and 16 KiB.
    let limits = RpcLimits {
        own_bytes: 16 << 10,
        connection_bytes_max: 0,
        shared_bytes: 0,
        single_bytes: 0,
        ..RpcLimits::default()
    };
    run_with(52, limits, |scene| async move {
        let (one, _) = scene.connect_over(narrow());
        let (two, _) = scene.connect_over(narrow());
        let file = file(&one).await;
        let buffers = scene.world.buffers().clone();
        let quiet = buffers.in_use_bytes();
        scene.files.hold("read");
        for _ in 0..6 {
            one.send((NFS, 3, 6), &read_args(&file, 1 << 20)).await;
        }
        scene.world.sleep_ns(1_000_000).await;
        // Two of a MiB are in what is shared; one more is a single one.
        assert_eq!(scene.files.running(), 3);
        // Small calls of others go on, and of the same connection don't: its socket is not read.
        assert_eq!(two.getattr(&file).await.size, 0);
        scene.files.release();
        for _ in 0..6 {
            assert!(one.receive().await.is_some());
        }
        // Payloads are charged before there is a buffer for them.
        scene.files.hold("write");
        for _ in 0..6 {
            let args = write_args(&file, 0, &vec![1; 1 << 20], 0);
            let record = one.record(one.next_xid(), (NFS, 3, 7), &args);
            let stream = one.stream.clone();
            scene.world.spawn(async move {
                let mut bytes = (1 << 31 | record.len() as u32).to_be_bytes().to_vec();
                bytes.extend(record);
                let _ = stream
                    .write_all(vec![flagstone_platform::IoBuf::copy_of(&bytes)])
                    .await;
            });
            scene.world.sleep_ns(1_000_000).await;
        }
        assert_eq!(scene.files.running(), 3);
        assert!(buffers.in_use_bytes() - quiet < 5 << 20);
        scene.files.release();
        for _ in 0..6 {
            assert!(one.receive().await.is_some());
        }
    });
}

/// An answer may be promised more room than a connection can ever have: it doesn't wait for ever.
#[test]
fn a_large_answer_is_waited_for_no_longer_than_possible() {
    let limits = RpcLimits {
        record: RecordLimits {
            record_bytes_max: 1000,
            fragments_max: 8,
        },
        connection_bytes_max: 0,
        shared_bytes: 0,
        single_bytes: 0,
        ..RpcLimits::default()
    };
    run_with(60, limits, |scene| async move {
        let client = scene.connect();
        client.send((MOUNT, 3, 5), &Args::new()).await;
        scene.world.sleep_ns(1_000_000_000).await;
        assert!(client.stream.unread_bytes() > 0, "no answer");
    });
}

/// Who takes no answers is cut off after a while, and holds no more than its window until then.
#[test]
fn a_client_that_takes_no_answers_is_cut_off() {
    let limits = RpcLimits {
        stall_ms: 1000,
        ..RpcLimits::default()
    };
    run_with(53, limits, |scene| async move {
        let link = Link {
            capacity: 64 << 10,
            ..narrow()
        };
        let (deaf, end) = scene.connect_over(link);
        let (other, _) = scene.connect_over(narrow());
        let file = file(&other).await;
        other.write(&file, 0, &vec![7; 1 << 20], 0).await;
        for _ in 0..200 {
            deaf.send((NFS, 3, 6), &read_args(&file, 1 << 20)).await;
        }
        let begin = scene.world.now();
        assert_eq!(other.getattr(&file).await.size, 1 << 20);
        assert_eq!(end.await, Some(CloseReason::Stalled));
        let took_ms = scene.world.now().since(begin) / 1_000_000;
        assert!((750..=1500).contains(&took_ms), "{took_ms}");
        assert_eq!(other.getattr(&file).await.size, 1 << 20);
        assert_eq!(scene.server.counters().connections_expelled, 1);
    });
}

/// Who begins a record and says no more is cut off; who says nothing may stay.
#[test]
fn half_a_record_is_not_waited_for() {
    let limits = RpcLimits {
        stall_ms: 1000,
        ..RpcLimits::default()
    };
    for sent in [
        &[0x80][..],
        &[0x80, 0, 0, 100],
        &[0x80, 0, 0, 100, 1, 2],
        &[0, 0, 0, 4, 1],
    ] {
        run_with(54, limits, move |scene| async move {
            let (quiet, quiet_end) = scene.connect_over(narrow());
            let (slow, end) = scene.connect_over(narrow());
            let root = quiet.mount("/data").await;
            assert!(slow.send_bytes(sent).await);
            assert_eq!(end.await, Some(CloseReason::Stalled));
            scene.world.sleep_ns(3_600_000_000_000).await;
            assert_eq!(quiet.getattr(&root).await.number, 1);
            quiet.stream.shutdown();
            assert_eq!(quiet_end.await, Some(CloseReason::Finished));
        });
    }
}

/// Records that can't be any close the connection at once.
#[test]
fn records_that_are_none() {
    run(55, |scene| async move {
        let max = RpcLimits::default().record.record_bytes_max;
        let long = max + 1;
        let [a, b, c, d] = (1 << 31 | long).to_be_bytes();
        let too_long = CloseReason::BadRecord(RecordError::TooLong {
            max,
            found: u64::from(long),
        });
        let (client, end) = scene.connect_over(narrow());
        assert!(client.send_bytes(&[a, b, c, d]).await);
        assert!(client.receive().await.is_none());
        assert_eq!(end.await, Some(too_long));
        let (client, end) = scene.connect_over(narrow());
        assert!(client.send_bytes(&[0; 4 * 1025]).await);
        assert!(client.receive().await.is_none());
        let many = CloseReason::BadRecord(RecordError::TooManyFragments { max: 1024 });
        assert_eq!(end.await, Some(many));
        // A reply, an empty record, one that ends within its header.
        let cut = [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2];
        for record in [&[0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0][..], &[], &cut] {
            let (client, end) = scene.connect_over(narrow());
            assert!(client.send_record(record).await);
            assert!(client.receive().await.is_none());
            let end = end.await;
            assert!(matches!(end, Some(CloseReason::NoCall(_))), "{end:?}");
        }
    });
}

/// What was called before something bad came is answered.
#[test]
fn calls_in_front_of_nonsense_are_answered() {
    run(56, |scene| async move {
        let (client, end) = scene.connect_over(narrow());
        let file = file(&client).await;
        scene.files.hold("read");
        let xid = client.send((NFS, 3, 6), &read_args(&file, 9)).await;
        assert!(client.send_record(&[1; 40]).await);
        scene.world.sleep_ns(1_000_000).await;
        scene.files.release();
        assert_eq!(client.receive().await.expect("an answer").0, xid);
        assert!(client.receive().await.is_none());
        assert!(matches!(end.await, Some(CloseReason::NoCall(_))));
    });
}

/// Whoever says nothing makes place for others, then whoever has said nothing for longest; the busy stay.
#[test]
fn a_crowd_keeps_nobody_out() {
    let limits = RpcLimits {
        connections_max: 4,
        ..RpcLimits::default()
    };
    run_with(57, limits, |scene: Scene| async move {
        let (busy, busy_end) = scene.connect_over(narrow());
        let file = file(&busy).await;
        let (idle, idle_end) = scene.connect_over(narrow());
        idle.getattr(&file).await;
        scene.world.sleep_ns(1000).await;
        scene.files.hold("read");
        busy.send((NFS, 3, 6), &read_args(&file, 9)).await;
        let mut crowd = Vec::new();
        for _ in 0..50 {
            crowd.push(scene.connect_over(narrow()));
            scene.world.sleep_ns(1000).await;
        }
        assert_eq!(scene.server.counters().connections, 4);
        assert_eq!(scene.server.counters().connections_displaced, 48);
        assert_eq!(idle.getattr(&file).await.size, 0);
        // Those that have called are idle now and then, too.
        let mut callers = Vec::new();
        for _ in 0..3 {
            let caller = scene.connect_over(narrow());
            caller.0.getattr(&file).await;
            scene.world.sleep_ns(1000).await;
            callers.push(caller);
        }
        assert_eq!(idle_end.await, Some(CloseReason::Displaced));
        // All are busy: the new one has to go.
        for (caller, _) in &callers {
            caller.send((NFS, 3, 6), &read_args(&file, 9)).await;
        }
        scene.world.sleep_ns(1_000_000).await;
        let (refused, end) = scene.connect_over(narrow());
        assert_eq!(end.await, Some(CloseReason::Refused));
        assert!(refused.receive().await.is_none());
        scene.files.release();
        assert!(busy.receive().await.is_some());
        for (caller, _) in &callers {
            assert!(caller.receive().await.is_some());
        }
        busy.stream.shutdown();
        assert_eq!(busy_end.await, Some(CloseReason::Finished));
    });
}

/// What is in flight when the server stops is answered; what comes then is not taken.
#[test]
fn stopping_answers_what_is_in_flight() {
    run(58, |scene| async move {
        let (client, end) = scene.connect_over(narrow());
        let file = file(&client).await;
        scene.files.hold("read");
        let xid = client.send((NFS, 3, 6), &read_args(&file, 9)).await;
        scene.world.sleep_ns(1_000_000).await;
        scene.server.stop();
        client.send((NFS, 3, 1), &Args::new().opaque(&file)).await;
        let (late, late_end) = scene.connect_over(narrow());
        assert_eq!(late_end.await, Some(CloseReason::Stopping));
        assert!(late.receive().await.is_none());
        scene.files.release();
        assert_eq!(client.receive().await.expect("an answer").0, xid);
        assert!(client.receive().await.is_none());
        assert_eq!(end.await, Some(CloseReason::Stopping));
        scene.server.stopped().await;
    });
}

/// A client that leaves while its calls are under way leaves nothing behind.
#[test]
fn leaving_in_the_middle() {
    run(59, |scene| async move {
        let (client, end) = scene.connect_over(narrow());
        let file = file(&client).await;
        let buffers = scene.world.buffers().clone();
        scene.files.hold("write");
        for _ in 0..20 {
            let args = write_args(&file, 0, &[1; 10_000], 2);
            client.send((NFS, 3, 7), &args).await;
        }
        scene.world.sleep_ns(1_000_000).await;
        assert_eq!(scene.files.running(), 20);
        client.stream.shutdown();
        scene.files.release();
        assert!(end.await.is_some());
        assert_eq!(scene.files.running(), 0);
        scene.server.stopped().await;
        drop(client);
        assert_eq!(buffers.in_use_bytes(), 0);
    });
}

/// Whatever bytes come, the server lives, the connection ends or goes on, and nothing is left.
#[test]
fn random_and_damaged_calls() {
    for seed in 0..300 {
        let limits = RpcLimits {
            record: RecordLimits {
                record_bytes_max: 70_000,
                fragments_max: 8,
            },
            ..RpcLimits::default()
        };
        run_with(seed, limits, move |scene| async move {
            let mut rng = Rng(seed);
            let (good, _) = scene.connect_over(narrow());
            let file = file(&good).await;
            let link = Link {
                portion_max: [usize::MAX, 50][seed as usize % 2],
                seed,
                ..narrow()
            };
            let (client, end) = scene.connect_over(link);
            let mut bytes = Vec::new();
            for _ in 0..30 {
                let procedure = rng.below(23) as u32;
                let name = b"name".repeat(1 + rng.below(3) as usize);
                let args = match rng.below(3) {
                    0 => write_args(&file, rng.next(), &name, rng.below(4) as u32),
                    1 => Args::new().place(&file, &name).place(&file, &name),
                    _ => Args::new().opaque(&file).u64(rng.next()).u64(rng.next()),
                };
                let program = [NFS, MOUNT][rng.below(5) as usize / 4];
                let record = client.record(rng.next() as u32, (program, 3, procedure), &args);
                bytes.extend((1 << 31 | record.len() as u32).to_be_bytes());
                bytes.extend(record);
            }
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next() as u8;
            }
            assert!(client.send_bytes(&bytes).await);
            client.stream.close_sending();
            while client.receive().await.is_some() {}
            assert!(end.await.is_some());
            assert_eq!(good.getattr(&file).await.kind, 1);
            assert_eq!(scene.files.running(), 0);
        });
    }
}

/// The same with calls whose handles are right.
#[test]
fn random_arguments_of_right_files() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..400).map(|_| rng.next() as u8).collect();
        nfs_server::cases::calls(seed, &bytes);
    }
}
