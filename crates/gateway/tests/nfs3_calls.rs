//! Calls in flight: out of order, once more, later; and the portmapper.

use crate::nfs_server;
use crate::support;

use std::collections::BTreeSet;

use flagstone_fs::FileError;
use flagstone_gateway::nfs3::Portmapper;
use flagstone_gateway::rpc::server::{RpcLimits, RpcServer};
use flagstone_platform::Platform;
use nfs_server::client::*;
use nfs_server::{open_export, run};
use support::stream::Link;
use support::world::World;

/// Nobody waits for a call that takes long.
#[test]
fn answers_come_as_they_are_done() {
    run(31, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        scene.files.hold("read");
        let read = Args::new().opaque(&file).u64(0).u32(9);
        let slow = client.send((NFS, 3, 6), &read).await;
        let mut quick = BTreeSet::new();
        for _ in 0..100 {
            let args = Args::new().opaque(&root);
            quick.insert(client.send((NFS, 3, 1), &args).await);
        }
        while !quick.is_empty() {
            let (xid, reply) = client.receive().await.expect("an answer");
            assert!(quick.remove(&xid), "{xid} {reply:?}");
        }
        assert_eq!(scene.files.running(), 1);
        scene.files.release();
        assert_eq!(client.receive().await.expect("an answer").0, slow);
        let counters = scene.server.service().counters();
        assert_eq!(counters.procedures[1].answered, 100);
        assert_eq!(counters.procedures[1].latency.count(), 100);
    });
}

fn make_args(directory: &[u8]) -> Args {
    Args::new().place(directory, b"new").set(&Set::default())
}

/// A call that comes once more while it is under way is carried out once, whatever connection it comes on.
#[test]
fn the_same_call_is_carried_out_once() {
    run(32, |scene| async move {
        let client = scene.connect_from("192.0.2.7:700");
        let again = scene.connect_from("192.0.2.7:701");
        let other = scene.connect_from("192.0.2.8:700");
        let root = client.mount("/data").await;
        let before = scene.files.begun("make");
        scene.files.hold("make");
        for client in [&client, &client, &again, &other] {
            client.set_xid(0x1234);
            client.send((NFS, 3, 9), &make_args(&root)).await;
        }
        scene.world.sleep_ns(1_000_000).await;
        assert_eq!(scene.files.begun("make"), before + 2);
        scene.files.release();
        let (_, first) = client.receive().await.expect("an answer");
        let (_, second) = client.receive().await.expect("an answer");
        let (xid, third) = again.receive().await.expect("an answer");
        assert_eq!((xid, &second, &third), (0x1234, &first, &first));
        let (_, theirs) = other.receive().await.expect("an answer");
        let status = |reply: &Reply| match reply {
            Reply::Done(body) => body.clone().u32(),
            other => panic!("{other:?}"),
        };
        // Which of the two comes first is not said.
        let both = BTreeSet::from([status(&first), status(&theirs)]);
        assert_eq!(both, BTreeSet::from([OK, EXIST]));
        assert_eq!(scene.server.service().counters().repeated, 2);
    });
}

/// A call that comes once more when it was answered gets the same answer, from another server as well.
#[test]
fn the_same_call_is_answered_the_same() {
    run(33, |scene| async move {
        let client = scene.connect_from("192.0.2.7:700");
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        client.make_directory(&root, "directory").await;
        let set = Set::default();
        let changed = client.getattr(&file).await.changed;
        let mode = Set {
            mode: Some(0o640),
            ..Set::default()
        };
        let guarded = Args::new().opaque(&file).set(&mode);
        let calls = [
            (2, guarded.u32(1).u32(changed.0).u32(changed.1)),
            (8, Args::new().place(&root, b"guarded").u32(1).set(&set)),
            (9, Args::new().place(&root, b"made").set(&set)),
            (10, Args::new().place(&root, b"link").set(&set).opaque(b"x")),
            (11, Args::new().place(&root, b"pipe").u32(7).set(&set)),
            (15, Args::new().opaque(&file).place(&root, b"second")),
            (
                14,
                Args::new().place(&root, b"second").place(&root, b"third"),
            ),
            (12, Args::new().place(&root, b"third")),
            (13, Args::new().place(&root, b"directory")),
        ];
        for (index, (procedure, args)) in (5000..).zip(calls) {
            client.set_xid(index);
            let first = client.ask((NFS, 3, procedure), args.clone()).await;
            let Reply::Done(body) = &first else {
                panic!("{first:?}")
            };
            assert_eq!(body.clone().u32(), OK, "{procedure}");
            // Another connection, another port: the client has reconnected.
            let again = scene.connect_from("192.0.2.7:800");
            again.set_xid(index);
            let second = again.ask((NFS, 3, procedure), args.clone()).await;
            assert_eq!(second, first, "{procedure}");
            // Whoever else calls is somebody else, and so is another number.
            for (peer, xid) in [("192.0.2.8:700", index), ("192.0.2.7:700", 9000 + index)] {
                let other = scene.connect_from(peer);
                other.set_xid(xid);
                let reply = other.ask((NFS, 3, procedure), args.clone()).await;
                assert_ne!(reply, first, "{procedure}");
            }
        }
    });
}

/// What is in the way goes away in a moment, or the client is told.
#[test]
fn later_is_tried_again_for_a_while() {
    run(34, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let begin = scene.world.now();
        scene.files.fail("make", FileError::Later, 5);
        client.make_directory(&root, "new").await;
        let took = scene.world.now().since(begin);
        // Pauses of 1, 2, 4, 8 and 16 ms, each from its half to itself and a half.
        assert!((15_500_000..46_500_000).contains(&took), "{took}");
        assert_eq!(scene.server.service().counters().retried, 5);
        let begin = scene.world.now();
        scene.files.fail("make", FileError::Later, u32::MAX);
        let args = Args::new().place(&root, b"other").set(&Set::default());
        let (status, mut body) = client.nfs(9, args).await;
        assert_eq!(status, JUKEBOX);
        assert!(body.wcc().1.is_some());
        let took = scene.world.now().since(begin);
        assert!((700_000_000..1_000_000_000).contains(&took), "{took}");
        // The others don't wait meanwhile.
        scene.files.fail("write", FileError::Later, 3);
        let file = client.create(&root, "file").await;
        client.write(&file, 0, b"abc", 2).await;
        assert_eq!(client.read(&file, 0, 9).await.0, b"abc");
    });
}

/// Many calls that are all to be tried later come back few at a time; each gets an answer in time, and another
/// filesystem notices nothing. Once it goes well again, so does everything.
#[test]
fn a_filesystem_that_says_later_is_tried_by_few_at_a_time() {
    const CALLS: u32 = 300;
    run(36, |scene| async move {
        let quiet = nfs_server::memory(&scene.world, 2);
        let more = std::rc::Rc::new(open_export(8, "/quiet", &quiet));
        scene.exports.0.borrow_mut().push(more);
        let client = scene.connect();
        let root = client.mount("/data").await;
        let clock = scene.world.clone();
        // Each takes a millisecond, so that many are under way at once.
        let pause = move || -> nfs_server::holding::Pause {
            let clock = clock.clone();
            Box::pin(async move { clock.sleep_ns(1_000_000).await })
        };
        *scene.files.control.pause.borrow_mut() = Some(Box::new(pause));
        scene.files.fail("make", FileError::Later, u32::MAX);
        let begin = scene.world.now();
        let before = scene.files.begun("make");
        let mut asked = BTreeSet::new();
        for number in 0..CALLS {
            let name = format!("new-{number}");
            let args = Args::new()
                .place(&root, name.as_bytes())
                .set(&Set::default());
            asked.insert(client.send((NFS, 3, 9), &args).await);
        }
        let other = scene.connect();
        let elsewhere = other.mount("/quiet").await;
        other.make_directory(&elsewhere, "quick").await;
        let took = scene.world.now().since(begin);
        assert!(took < 100_000_000, "the other filesystem took {took} ns");
        while !asked.is_empty() {
            let (xid, reply) = client.receive().await.expect("an answer");
            let Reply::Done(mut body) = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(body.u32(), JUKEBOX);
            assert!(asked.remove(&xid));
        }
        let took = scene.world.now().since(begin);
        assert!(took < 1_300_000_000, "{took}");
        // The first of each came in at once, and then hardly more than one at a time, a millisecond each.
        let tries = scene.files.begun("make") - before;
        assert!((CALLS..CALLS + 1500).contains(&tries), "{tries} tries");
        scene.files.fail("make", FileError::Later, 0);
        for number in 0..20 {
            client
                .make_directory(&root, &format!("again-{number}"))
                .await;
        }
    });
}

/// A turn that doesn't come is nobody's being in the way: the client is told as soon as it is known, and the filesystem gets no window
/// that would hold up those whose turns come.
#[test]
fn who_gets_no_turn_is_told_at_once_and_holds_nobody_up() {
    const CALLS: u32 = 200;
    run(37, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let clock = scene.world.clone();
        let pause = move || -> nfs_server::holding::Pause {
            let clock = clock.clone();
            Box::pin(async move { clock.sleep_ns(50_000_000).await })
        };
        *scene.files.control.pause.borrow_mut() = Some(Box::new(pause));
        scene.files.fail("make", FileError::NoTurn, CALLS);
        let before = scene.files.begun("make");
        // The second half comes when the first has been answered, and would find a window.
        for expected in [JUKEBOX, 0] {
            let begin = scene.world.now();
            let mut asked = BTreeSet::new();
            for number in 0..CALLS {
                let name = format!("new-{number}");
                let args = Args::new()
                    .place(&root, name.as_bytes())
                    .set(&Set::default());
                asked.insert(client.send((NFS, 3, 9), &args).await);
            }
            while !asked.is_empty() {
                let (xid, reply) = client.receive().await.expect("an answer");
                let Reply::Done(mut body) = reply else {
                    panic!("{reply:?}")
                };
                assert_eq!(body.u32(), expected);
                assert!(asked.remove(&xid));
            }
            // Each once, all at the same time; of those that fail the attributes are asked for, too.
            let took = scene.world.now().since(begin);
            assert!(took < 150_000_000, "{took}");
        }
        assert_eq!(scene.files.begun("make") - before, 2 * CALLS);
        assert_eq!(scene.server.service().counters().retried, 0);
    });
}

/// What the first try takes, such as its wait for a turn, is not taken off the time for which others are tried again.
#[test]
fn a_slow_first_try_is_tried_again() {
    run(38, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let clock = scene.world.clone();
        let pause = move || -> nfs_server::holding::Pause {
            let clock = clock.clone();
            Box::pin(async move { clock.sleep_ns(3_000_000_000).await })
        };
        *scene.files.control.pause.borrow_mut() = Some(Box::new(pause));
        scene.files.fail("make", FileError::Later, 1);
        client.make_directory(&root, "new").await;
        assert_eq!(scene.server.service().counters().retried, 1);
    });
}

/// A mount that is in the way is tried again as well. MOUNT has no word for later.
#[test]
fn mounting_is_tried_again() {
    run(35, |scene| async move {
        let client = scene.connect();
        scene.files.fail("attributes", FileError::Later, 3);
        client.mount("/data").await;
        scene.files.fail("attributes", FileError::Later, u32::MAX);
        assert_eq!(client.mount_status("/data").await.0, 10006);
    });
}

/// Every client that sends a record in several pieces, and the network in whatever portions, is understood.
#[test]
fn records_in_fragments_and_portions() {
    for portion_max in [1, 7, 1000, usize::MAX] {
        run(36, move |scene| async move {
            let link = Link {
                portion_max,
                peer: "127.0.0.1:700",
                ..Link::default()
            };
            let (client, _) = scene.connect_over(link);
            let root = client.mount("/data").await;
            let file = client.create(&root, "file").await;
            let data: Vec<u8> = (0..70_001u32).map(|at| (at % 253) as u8).collect();
            for pieces in [&[0usize, 1, 2][..], &[44], &[3, 500, 60_000]] {
                let xid = client.next_xid();
                let args = write_args(&file, 1234, &data, 2);
                let record = client.record(xid, (NFS, 3, 7), &args);
                let mut bytes = Vec::new();
                let mut start = 0;
                for end in pieces {
                    bytes.extend(((end - start) as u32).to_be_bytes());
                    bytes.extend(&record[start..*end]);
                    start = *end;
                }
                bytes.extend((1 << 31 | (record.len() - start) as u32).to_be_bytes());
                bytes.extend(&record[start..]);
                // Another call right behind it.
                assert!(client.send_bytes(&bytes).await);
                let (answered, reply) = client.receive().await.expect("an answer");
                assert_eq!(answered, xid);
                let Reply::Done(mut body) = reply else {
                    panic!("{reply:?}")
                };
                assert_eq!(body.u32(), OK);
                assert_eq!(client.read(&file, 1234, 70_001).await.0, data);
            }
            // What stands behind the arguments is ignored, however much it is.
            let mut record = client.record(77, (NFS, 3, 1), &Args::new().opaque(&root));
            record.extend(vec![5; 100_000]);
            assert!(client.send_record(&record).await);
            let (xid, reply) = client.receive().await.expect("an answer");
            assert_eq!(xid, 77);
            assert!(matches!(reply, Reply::Done(_)));
            let mut record = client.record(78, (NFS, 3, 7), &write_args(&file, 0, b"abcd", 2));
            record.extend([5; 4096]);
            assert!(client.send_record(&record).await);
            assert_eq!(client.receive().await.expect("an answer").0, 78);
            assert_eq!(client.read(&file, 0, 4).await.0, b"abcd");
        });
    }
}

/// [rfc5531 9] test: calls that are denied, and the connection goes on.
#[test]
fn denied_calls() {
    run(37, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let good = client.record(5, (NFS, 3, 1), &Args::new().opaque(&root));
        let denied = async |change: &dyn Fn(&mut Vec<u8>)| {
            let mut record = good.clone();
            change(&mut record);
            assert!(client.send_record(&record).await);
            let (xid, reply) = client.receive().await.expect("an answer");
            assert_eq!(xid, 5);
            reply
        };
        let version = denied(&|record| record[11] = 3).await;
        assert_eq!(version, Reply::Denied(vec![0, 2, 2]));
        let flavour = denied(&|record| record[27] = 6).await;
        assert_eq!(flavour, Reply::Denied(vec![1, 1]));
        let long = denied(&|record| record[30] = 0xff).await;
        assert_eq!(long, Reply::Denied(vec![1, 1]));
        assert_eq!(scene.server.counters().denied, 3);
        assert!(matches!(denied(&|_| ()).await, Reply::Done(_)));
    });
}

/// [rfc1833 3.2] test
#[test]
fn the_portmapper_knows_our_ports() {
    let world = World::new(38);
    let server = RpcServer::new(
        world.clone(),
        Portmapper { port: 2050 },
        RpcLimits::default(),
    );
    let (near, far) = Link::default().connect();
    let serving = server.clone();
    world.spawn(async move {
        serving.serve_connection(far).await;
    });
    let client = Client::new(near);
    world.run(async move {
        let port = async |program, version, transport: u32| {
            let args = Args::new().u32(program).u32(version).u32(transport).u32(0);
            match client.ask((PORTMAP, 2, 3), args).await {
                Reply::Done(mut body) => {
                    let port = body.u32();
                    body.end();
                    port
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(port(NFS, 3, 6).await, 2050);
        assert_eq!(port(NFS, 4, 6).await, 2050);
        assert_eq!(port(MOUNT, 3, 6).await, 2050);
        assert_eq!(port(PORTMAP, 2, 6).await, 111);
        assert_eq!(port(NFS, 3, 17).await, 0);
        assert_eq!(port(NFSACL, 3, 6).await, 0);
        let Reply::Done(mut dump) = client.ask((PORTMAP, 2, 4), Args::new()).await else {
            panic!("a list")
        };
        let mut all = Vec::new();
        while dump.bool() {
            all.push([dump.u32(), dump.u32(), dump.u32(), dump.u32()]);
        }
        dump.end();
        let expected = [[PORTMAP, 2, 6, 111], [NFS, 3, 6, 2050], [MOUNT, 3, 6, 2050]];
        assert_eq!(all, expected);
        let address = async |version, network: &str, reached: &str| {
            let args = Args::new().u32(NFS).u32(3).opaque(network.as_bytes());
            let args = args.opaque(reached.as_bytes()).opaque(b"");
            match client.ask((PORTMAP, version, 3), args).await {
                Reply::Done(mut body) => String::from_utf8(body.opaque()).expect("text"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(address(3, "tcp", "192.0.2.1.0.111").await, "192.0.2.1.8.2");
        assert_eq!(
            address(4, "tcp6", "2001:db8::1.0.111").await,
            "2001:db8::1.8.2"
        );
        assert_eq!(address(4, "tcp6", "192.0.2.1.0.111").await, "::.8.2");
        assert_eq!(address(4, "tcp", "").await, "0.0.0.0.8.2");
        assert_eq!(address(4, "udp", "").await, "");
        let no = Reply::Done(Body::new(vec![0; 4]));
        let mapping = Args::new().u32(1).u32(1).u32(6).u32(99);
        for procedure in [1, 2] {
            assert_eq!(
                client.ask((PORTMAP, 2, procedure), mapping.clone()).await,
                no
            );
        }
        assert_eq!(port(1, 1, 6).await, 0);
        for (call, refused) in [
            ((PORTMAP, 2, 5), Reply::Refused(3, vec![])),
            ((PORTMAP, 4, 9), Reply::Refused(3, vec![])),
            ((PORTMAP, 5, 0), Reply::Refused(2, vec![2, 4])),
            ((NFS, 3, 0), Reply::Refused(1, vec![])),
            ((PORTMAP, 2, 3), Reply::Refused(4, vec![])),
        ] {
            assert_eq!(client.ask(call, Args::new()).await, refused);
        }
    });
}

/// Two filesystems remember their answers each for itself.
#[test]
fn tokens_belong_to_a_filesystem() {
    run(39, |scene| async move {
        let other = nfs_server::memory(&scene.world, 2);
        let export = open_export(8, "/other", &other);
        scene.exports.0.borrow_mut().push(export.into());
        let client = scene.connect();
        for path in ["/data", "/other"] {
            let root = client.mount(path).await;
            client.set_xid(900);
            client.make_directory(&root, "new").await;
        }
    });
}
