//! Each procedure of NFS and MOUNT over a filesystem in memory, byte for byte.

mod nfs_server;
mod support;

use flagstone_fs::{Caller, FileError, Files, Node};
use flagstone_gateway::nfs3::{Clients, Squash};
use nfs_server::client::*;
use nfs_server::{memory, open_export, run};

/// [rfc1813 3.3.0] [rfc5531 9] test
#[test]
fn programs_and_versions() {
    run(1, |scene| async move {
        let client = scene.connect();
        let done = |body: Vec<u8>| Reply::Done(Body::new(body));
        assert_eq!(client.ask((NFS, 3, 0), Args::new()).await, done(vec![]));
        assert_eq!(client.ask((MOUNT, 3, 0), Args::new()).await, done(vec![]));
        for version in [2, 4, 0] {
            let mismatch = Reply::Refused(2, vec![3, 3]);
            assert_eq!(client.ask((NFS, version, 0), Args::new()).await, mismatch);
            assert_eq!(client.ask((MOUNT, version, 0), Args::new()).await, mismatch);
        }
        for program in [NFSACL, PORTMAP, 1] {
            let unavailable = Reply::Refused(1, vec![]);
            assert_eq!(client.ask((program, 3, 0), Args::new()).await, unavailable);
        }
        let no_procedure = Reply::Refused(3, vec![]);
        assert_eq!(client.ask((NFS, 3, 22), Args::new()).await, no_procedure);
        assert_eq!(client.ask((MOUNT, 3, 6), Args::new()).await, no_procedure);
        let garbage = Reply::Refused(4, vec![]);
        for procedure in 1..22 {
            let reply = client.ask((NFS, 3, procedure), Args::new().u32(65)).await;
            assert_eq!(reply, garbage, "{procedure}");
        }
        assert_eq!(client.ask((MOUNT, 3, 1), Args::new().u32(9)).await, garbage);
        let counters = scene.server.service().counters();
        assert_eq!(counters.refused, 6 + 3 + 2 + 21 + 1);
    });
}

/// [rfc1813 5.2] test
#[test]
fn mounting() {
    run(2, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        assert_eq!(root.len(), 48);
        let there = client.make_directory(&root, "there").await;
        let below = client.make_directory(&there, "below").await;
        client.create(&root, "file").await;
        assert_eq!(client.mount("/data/").await, root);
        assert_eq!(client.mount("//data/./there//below/").await, below);
        for (path, error) in [
            ("/", NOENT),
            ("/dat", NOENT),
            ("/database", NOENT),
            ("data", NOENT),
            ("", NOENT),
            ("/data/none", NOENT),
            ("/data/file", NOTDIR),
            ("/data/file/x", NOTDIR),
            ("/data/there/..", NOENT),
            ("/data/\0", NOENT),
        ] {
            assert_eq!(client.mount_status(path).await.0, error, "{path}");
        }
        // A directory as an export of its own; the longest path wins.
        let everybody = Caller::default();
        let top = Node::live(scene.files.root());
        let found = scene.files.inner.lookup(&everybody, top, b"there");
        let mut inner = open_export(8, "/data/there", &scene.files);
        inner.root = found.await.expect("made").node;
        scene.exports.0.borrow_mut().push(inner.into());
        let inner = client.mount("/data/there").await;
        assert_ne!(inner, there);
        assert_eq!(
            client.getattr(&inner).await.number,
            client.getattr(&there).await.number
        );
        let below_inner = client.mount("/data/there/below").await;
        assert_ne!(below_inner, below);
        // Nothing is above it.
        let (parent, _) = client.lookup(&inner, "..").await.expect("itself");
        assert_eq!(parent, inner);
        let (parent, _) = client.lookup(&below_inner, "..").await.expect("above");
        assert_eq!(parent, inner);
        // EXPORT, DUMP, UMNT, UMNTALL.
        let network = "10.0.0.0/8".parse().expect("a network");
        scene
            .exports
            .change(8, |export| export.clients = Clients::Only(vec![network]));
        let Reply::Done(mut list) = client.ask((MOUNT, 3, 5), Args::new()).await else {
            panic!("exports")
        };
        assert!(list.bool());
        assert_eq!(list.opaque(), b"/data");
        assert!(!list.bool());
        assert!(list.bool());
        assert_eq!(list.opaque(), b"/data/there");
        assert!(list.bool());
        assert_eq!(list.opaque(), b"10.0.0.0/8");
        assert!(!list.bool());
        assert!(!list.bool());
        list.end();
        let nothing = Reply::Done(Body::new(vec![0; 4]));
        assert_eq!(client.ask((MOUNT, 3, 2), Args::new()).await, nothing);
        let void = Reply::Done(Body::new(vec![]));
        let path = Args::new().opaque(b"/data");
        assert_eq!(client.ask((MOUNT, 3, 3), path).await, void);
        assert_eq!(client.ask((MOUNT, 3, 4), Args::new()).await, void);
        assert_eq!(client.mount_status("/data/there").await.0, ACCES);
    });
}

/// Who was let in once is asked again with every call.
#[test]
fn addresses_are_asked_with_every_call() {
    run(3, |scene| async move {
        let only = |network: &str| Clients::Only(vec![network.parse().expect("a network")]);
        scene
            .exports
            .change(7, |export| export.clients = only("192.0.2.0/24"));
        let near = scene.connect_from("[::ffff:192.0.2.9]:1000");
        let root = near.mount("/data").await;
        let far = scene.connect_from("198.51.100.1:1000");
        assert_eq!(far.mount_status("/data").await.0, ACCES);
        for procedure in [1, 18, 19, 20] {
            let args = Args::new().opaque(&root);
            assert_eq!(far.status(procedure, args.clone()).await, ACCES);
            assert_eq!(near.status(procedure, args).await, OK);
        }
        scene
            .exports
            .change(7, |export| export.clients = only("2001:db8::/32"));
        assert_eq!(near.status(1, Args::new().opaque(&root)).await, ACCES);
        let six = scene.connect_from("[2001:db8::1]:1000");
        assert_eq!(six.status(1, Args::new().opaque(&root)).await, OK);
        assert_eq!(
            scene.connect_from("unix").mount_status("/data").await.0,
            ACCES
        );
    });
}

/// [rfc1813 2.6] test: BADHANDLE, STALE.
#[test]
fn handles_that_are_not_ours() {
    run(4, |scene| async move {
        let other = memory(&scene.world, 2);
        scene
            .exports
            .0
            .borrow_mut()
            .push(open_export(8, "/other", &other).into());
        let again = open_export(9, "/again", &scene.files);
        scene.exports.0.borrow_mut().push(again.into());
        let client = scene.connect();
        let root = client.mount("/data").await;
        let status = async |handle: &[u8]| client.status(1, Args::new().opaque(handle)).await;
        assert_eq!(status(&root).await, OK);
        for at in [0, 1, 12, 20, 28, 32, 47] {
            let mut forged = root.clone();
            forged[at] ^= 1;
            assert_eq!(status(&forged).await, BADHANDLE, "byte {at}");
        }
        for len in [0, 1, 32, 47, 64] {
            let mut cut = root.clone();
            cut.resize(len, 0);
            assert_eq!(status(&cut).await, BADHANDLE, "{len} bytes");
        }
        // Of no export; of another filesystem's; of another export of the same filesystem.
        for (export, error) in [(6, STALE), (8, STALE), (9, BADHANDLE)] {
            let mut forged = root.clone();
            forged[3] = export;
            assert_eq!(status(&forged).await, error, "export {export}");
        }
        // Another server with the same filesystem takes it.
        let file = client.create(&root, "file").await;
        let args = Args::new().place(&root, b"file");
        assert_eq!(client.status(12, args).await, OK);
        assert_eq!(status(&file).await, STALE);
        scene.exports.0.borrow_mut().clear();
        assert_eq!(status(&root).await, STALE);
    });
}

/// [rfc1813 3.3.1] [rfc1813 3.3.2] test
#[test]
fn attributes() {
    run(5, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let of_root = client.getattr(&root).await;
        assert_eq!((of_root.kind, of_root.mode, of_root.links), (2, 0o755, 2));
        assert_eq!((of_root.filesystem, of_root.number), (1, 1));
        let file = client.create(&root, "file").await;
        let before = client.getattr(&file).await;
        assert_eq!((before.kind, before.size, before.mode), (1, 0, 0o644));
        let set = Set {
            mode: Some(0o100_600),
            uid: Some(5),
            gid: Some(6),
            size: Some(10_000),
            accessed: Some((u32::MAX, 1)),
            modified: Some((7, 999_999_999)),
        };
        let args = Args::new().opaque(&file).set(&set).u32(0);
        let (status, mut body) = client.nfs(2, args).await;
        assert_eq!(status, OK);
        let (was, is) = body.wcc();
        body.end();
        assert_eq!(was, Some((0, before.modified, before.changed)));
        let is = is.expect("after");
        assert_eq!((is.mode, is.uid, is.gid, is.size), (0o600, 5, 6, 10_000));
        assert_eq!(
            (is.accessed, is.modified),
            ((u32::MAX, 1), (7, 999_999_999))
        );
        assert!(is.changed > before.changed);
        assert_eq!(client.getattr(&file).await, is);
        // A guard.
        let guarded = |time: (u32, u32)| {
            let args = Args::new().opaque(&file).set(&Set::default());
            args.u32(1).u32(time.0).u32(time.1)
        };
        let (status, mut body) = client.nfs(2, guarded(before.changed)).await;
        assert_eq!(status, NOT_SYNC);
        assert_eq!(body.wcc(), (None, Some(is)));
        assert_eq!(client.status(2, guarded(is.changed)).await, OK);
        assert_eq!(client.status(2, guarded((1, 1_000_000_000))).await, INVAL);
        let late = Set {
            modified: Some((1, 1_000_000_000)),
            ..Set::default()
        };
        let args = Args::new().opaque(&file).set(&late).u32(0);
        assert_eq!(client.status(2, args).await, INVAL);
        let size = Set {
            size: Some(1),
            ..Set::default()
        };
        let args = Args::new().opaque(&root).set(&size).u32(0);
        assert_eq!(client.status(2, args).await, ISDIR);
        client.become_user(9, 9, &[]);
        let chmod = Set {
            mode: Some(0),
            ..Set::default()
        };
        let args = Args::new().opaque(&file).set(&chmod).u32(0);
        assert_eq!(client.status(2, args).await, PERM);
        let args = Args::new().opaque(&file).set(&size).u32(0);
        assert_eq!(client.status(2, args).await, ACCES);
    });
}

/// [rfc1813 3.3.3] [rfc1813 3.2] test
#[test]
fn names() {
    run(6, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let there = client.make_directory(&root, "there").await;
        let file = client.create(&there, "file").await;
        let (found, attributes) = client.lookup(&there, "file").await.expect("there");
        assert_eq!(found, file);
        assert_eq!(attributes, client.getattr(&file).await);
        assert_eq!(client.lookup(&there, ".").await.expect("itself").0, there);
        assert_eq!(client.lookup(&there, "..").await.expect("above").0, root);
        assert_eq!(client.lookup(&root, "..").await.expect("itself").0, root);
        let (status, mut body) = client.nfs(3, Args::new().place(&there, b"none")).await;
        assert_eq!(status, NOENT);
        assert_eq!(body.post_op(), Some(client.getattr(&there).await));
        body.end();
        assert_eq!(client.lookup(&file, "x").await, Err(NOTDIR));
        let longest = "n".repeat(255);
        client.create(&there, &longest).await;
        assert!(client.lookup(&there, &longest).await.is_ok());
        let set = Set::default();
        let long = [b'n'; 256];
        for (name, error) in [
            (&b""[..], ACCES),
            (b"a/b", ACCES),
            (b"a\0b", ACCES),
            (&long, NAMETOOLONG),
        ] {
            let place = Args::new().place(&there, name);
            let make = [
                (3, place.clone()),
                (8, place.clone().u32(0).set(&set)),
                (9, place.clone().set(&set)),
                (10, place.clone().set(&set).opaque(b"target")),
                (11, place.clone().u32(7).set(&set)),
                (12, place.clone()),
                (13, place.clone()),
                (14, place.clone().place(&there, b"new")),
                (14, Args::new().place(&there, b"file").place(&there, name)),
                (15, Args::new().opaque(&file).place(&there, name)),
            ];
            for (procedure, args) in make {
                let status = client.status(procedure, args).await;
                assert_eq!(status, error, "{procedure} {name:?}");
            }
        }
        for (name, removed) in [(&b"."[..], INVAL), (b"..", EXIST)] {
            let place = Args::new().place(&there, name);
            let calls = [
                (8, place.clone().u32(1).set(&set), EXIST),
                (8, place.clone().u32(2).u64(5), EXIST),
                (9, place.clone().set(&set), EXIST),
                (10, place.clone().set(&set).opaque(b"target"), EXIST),
                (11, place.clone().u32(7).set(&set), EXIST),
                (12, place.clone(), removed),
                (13, place.clone(), removed),
                (14, place.clone().place(&there, b"new"), INVAL),
                (
                    14,
                    Args::new().place(&there, b"file").place(&there, name),
                    INVAL,
                ),
                (15, Args::new().opaque(&file).place(&there, name), EXIST),
            ];
            for (procedure, args, error) in calls {
                let status = client.status(procedure, args).await;
                assert_eq!(status, error, "{procedure} {name:?}");
            }
        }
    });
}

/// [rfc1813 3.3.4] test
#[test]
fn access() {
    run(7, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        let granted = async |client: &Client<_>, handle: &[u8], asked: u32| {
            let (status, mut body) = client.nfs(4, Args::new().opaque(handle).u32(asked)).await;
            assert_eq!(status, OK);
            body.post_op().expect("attributes");
            let granted = body.u32();
            body.end();
            granted
        };
        assert_eq!(granted(&client, &root, u32::MAX).await, 1 | 2 | 4 | 8 | 16);
        assert_eq!(granted(&client, &file, u32::MAX).await, 1 | 4 | 8);
        assert_eq!(granted(&client, &file, 4).await, 4);
        client.become_user(5, 5, &[]);
        assert_eq!(granted(&client, &root, u32::MAX).await, 1 | 2);
        assert_eq!(granted(&client, &file, u32::MAX).await, 1);
        client.become_user(0, 0, &[]);
        scene.exports.change(7, |export| export.read_only = true);
        assert_eq!(granted(&client, &root, u32::MAX).await, 1 | 2);
        assert_eq!(granted(&client, &file, u32::MAX).await, 1);
    });
}

/// [rfc1813 3.3.5] [rfc1813 3.3.10] test
#[test]
fn symbolic_links() {
    run(8, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let place = Args::new().place(&root, b"link").set(&Set::default());
        let target = "../some/where/".repeat(292);
        let made = client.made(10, place.clone().opaque(target.as_bytes()));
        let (link, attributes) = made.await.expect("made");
        assert_eq!((attributes.kind, attributes.size), (5, 4088));
        let (status, mut body) = client.nfs(5, Args::new().opaque(&link)).await;
        assert_eq!(status, OK);
        assert_eq!(body.post_op(), Some(attributes));
        assert_eq!(body.opaque(), target.as_bytes());
        body.end();
        let again = client.made(10, place.opaque(b"x")).await;
        assert_eq!(again, Err(EXIST));
        let empty = Args::new().place(&root, b"empty").set(&Set::default());
        assert_eq!(client.made(10, empty.opaque(b"")).await, Err(INVAL));
        assert_eq!(client.status(5, Args::new().opaque(&root)).await, INVAL);
    });
}

/// [rfc1813 3.3.6] [rfc1813 3.3.7] [rfc1813 3.3.21] test
#[test]
fn reading_and_writing() {
    run(9, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        let data: Vec<u8> = (0..300_001u32).map(|at| (at * 7 % 251) as u8).collect();
        for (stable, offset) in [(0, 5), (1, 9000), (2, 1 << 40)] {
            let (count, committed) = client.write(&file, offset, &data, stable).await;
            assert_eq!(count, 300_001);
            assert!(committed >= stable);
            let (read, is_end) = client.read(&file, offset, 300_001).await;
            assert_eq!(read, data);
            let size = client.getattr(&file).await.size;
            assert_eq!(is_end, offset + 300_001 == size);
            // The memory is aligned as the file is: whole blocks need no copy.
            assert_eq!(
                scene.files.control.last_write.get(),
                (300_001, offset as usize % 4096)
            );
        }
        let size = (1 << 40) + 300_001;
        // Holes, the end, and behind it.
        let (read, is_end) = client.read(&file, 1 << 30, u32::MAX).await;
        assert_eq!((read.len(), is_end), (1 << 20, false));
        assert!(read.iter().all(|byte| *byte == 0));
        assert_eq!(
            client.read(&file, size - 2, 9).await,
            (data[299_999..].to_vec(), true)
        );
        assert_eq!(client.read(&file, size, 9).await, (vec![], true));
        assert_eq!(client.read(&file, u64::MAX, 9).await, (vec![], true));
        assert_eq!(client.read(&file, 0, 0).await, (vec![], false));
        // Nothing written is nothing changed.
        let before = client.getattr(&file).await;
        let args = write_args(&file, 1 << 50, b"", 2);
        let (status, mut body) = client.nfs(7, args).await;
        assert_eq!(status, OK);
        assert_eq!(body.wcc().1, Some(before));
        assert_eq!(body.u32(), 0);
        // More than a call takes: a part of it is written.
        let large = vec![9; (1 << 20) + 4096];
        assert_eq!(client.write(&file, 0, &large, 2).await, (1 << 20, 2));
        let (status, mut body) = client
            .nfs(21, Args::new().opaque(&file).u64(0).u32(0))
            .await;
        assert_eq!(status, OK);
        assert!(body.wcc().0.is_some());
        assert_eq!(body.u64(), 1);
        body.end();
        scene.files.inner.set_verifier(0x0102_0304_0506_0708);
        let (_, mut body) = client.nfs(7, write_args(&file, 0, b"x", 0)).await;
        body.wcc();
        body.u64();
        assert_eq!(body.u64(), 0x0102_0304_0506_0708);
        // What can't be.
        for (offset, error) in [(u64::MAX - 1, FBIG), (1 << 60, FBIG)] {
            let args = write_args(&file, offset, b"abc", 2);
            assert_eq!(client.status(7, args).await, error);
        }
        let of_directory = |procedure| match procedure {
            6 => Args::new().opaque(&root).u64(0).u32(9),
            7 => write_args(&root, 0, b"abc", 2),
            _ => Args::new().opaque(&root).u64(0).u32(0),
        };
        for procedure in [6, 7, 21] {
            let status = client.status(procedure, of_directory(procedure)).await;
            assert_eq!(status, ISDIR, "{procedure}");
        }
        client.become_user(5, 5, &[]);
        let args = write_args(&file, 0, b"abc", 2);
        let (status, mut body) = client.nfs(7, args).await;
        assert_eq!(status, ACCES);
        assert_eq!(body.wcc(), (None, Some(client.getattr(&file).await)));
        body.end();
        let counters = scene.server.service().counters();
        assert_eq!(counters.written_bytes, 3 * 300_001 + (1 << 20) + 1);
        assert_eq!(counters.read_bytes, 3 * 300_001 + (1 << 20) + 2);
    });
}

/// [rfc1813 3.3.8] [rfc1813 3.3.9] [rfc1813 3.3.11] test
#[test]
fn making() {
    run(10, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let create = |name: &str, how: u32, set: Set| {
            let args = Args::new().place(&root, name.as_bytes()).u32(how);
            client.made(8, args.set(&set))
        };
        let set = Set {
            mode: Some(0o4755),
            size: Some(100),
            ..Set::default()
        };
        let (file, attributes) = create("file", 0, set).await.expect("made");
        assert_eq!((attributes.mode, attributes.size), (0o4755, 100));
        assert_eq!(create("file", 1, set).await, Err(EXIST));
        let cut = Set {
            size: Some(0),
            ..Set::default()
        };
        let args = Args::new().place(&root, b"file").u32(0).set(&cut);
        let (status, mut body) = client.nfs(8, args).await;
        assert_eq!(status, OK);
        assert_eq!(body.post_op_handle(), Some(file));
        assert_eq!(body.post_op().expect("attributes").size, 0);
        // Exclusively, and once more.
        let exclusive = |number: u64| {
            let args = Args::new().place(&root, b"only");
            client.nfs(8, args.u32(2).u64(number))
        };
        let (status, mut body) = exclusive(77).await;
        assert_eq!(status, OK);
        let only = body.post_op_handle();
        let (status, mut body) = exclusive(77).await;
        assert_eq!(status, OK);
        assert_eq!(body.post_op_handle(), only);
        assert_eq!(exclusive(78).await.0, EXIST);
        let directory = |name: &[u8]| {
            let args = Args::new().place(&root, name);
            client.made(9, args.set(&Set::default()))
        };
        let (_, attributes) = directory(b"directory").await.expect("made");
        assert_eq!((attributes.kind, attributes.links), (2, 2));
        assert_eq!(client.getattr(&root).await.links, 3);
        assert_eq!(directory(b"directory").await, Err(EXIST));
        // Devices, sockets, pipes.
        let place = |kind: u32| {
            let name = format!("special-{kind}");
            let args = Args::new().place(&root, name.as_bytes());
            args.u32(kind).set(&Set::default())
        };
        for kind in [3, 4] {
            let made = client.made(11, place(kind).u32(8).u32(17)).await;
            let (_, attributes) = made.expect("made");
            assert_eq!((attributes.kind, attributes.device), (kind, (8, 17)));
        }
        for kind in [6, 7] {
            let (_, attributes) = client.made(11, place(kind)).await.expect("made");
            assert_eq!((attributes.kind, attributes.device), (kind, (0, 0)));
        }
        for kind in [1, 2, 5] {
            assert_eq!(client.made(11, place(kind)).await, Err(BADTYPE));
        }
        client.become_user(5, 5, &[]);
        assert_eq!(create("mine", 1, set).await, Err(ACCES));
    });
}

/// [rfc1813 3.3.12] to [rfc1813 3.3.15] test
#[test]
fn removing_renaming_linking() {
    run(11, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let one = client.make_directory(&root, "one").await;
        let two = client.make_directory(&root, "two").await;
        let file = client.create(&one, "file").await;
        // RENAME tells of both directories.
        let args = Args::new().place(&one, b"file").place(&two, b"moved");
        let befores = [client.getattr(&one).await, client.getattr(&two).await];
        let (status, mut body) = client.nfs(14, args.clone()).await;
        assert_eq!(status, OK);
        for (before, directory) in befores.iter().zip([&one, &two]) {
            let (was, is) = body.wcc();
            assert_eq!(was, Some((before.size, before.modified, before.changed)));
            assert_eq!(is, Some(client.getattr(directory).await));
        }
        body.end();
        assert_eq!(client.lookup(&two, "moved").await.expect("there").0, file);
        let (status, mut body) = client.nfs(14, args).await;
        assert_eq!(status, NOENT);
        for directory in [&one, &two] {
            assert_eq!(body.wcc(), (None, Some(client.getattr(directory).await)));
        }
        body.end();
        // LINK.
        let args = Args::new().opaque(&file).place(&one, b"second");
        let (status, mut body) = client.nfs(15, args.clone()).await;
        assert_eq!(status, OK);
        assert_eq!(body.post_op().expect("attributes").links, 2);
        assert!(body.wcc().0.is_some());
        body.end();
        let (status, mut body) = client.nfs(15, args).await;
        assert_eq!(status, EXIST);
        assert_eq!(body.post_op().expect("attributes").links, 2);
        assert_eq!(body.wcc(), (None, Some(client.getattr(&one).await)));
        body.end();
        let args = Args::new().opaque(&one).place(&two, b"directory");
        assert_eq!(client.status(15, args).await, ISDIR);
        // REMOVE and RMDIR.
        let status = async |procedure, directory: &[u8], name: &str| {
            let args = Args::new().place(directory, name.as_bytes());
            let (status, mut body) = client.nfs(procedure, args).await;
            let (before, after) = body.wcc();
            assert_eq!(before.is_some(), status == OK);
            assert!(after.is_some());
            body.end();
            status
        };
        assert_eq!(status(12, &root, "one").await, ISDIR);
        assert_eq!(status(13, &one, "second").await, NOTDIR);
        assert_eq!(status(13, &root, "one").await, NOTEMPTY);
        assert_eq!(status(12, &one, "second").await, OK);
        assert_eq!(status(12, &one, "second").await, NOENT);
        assert_eq!(status(13, &root, "one").await, OK);
        // Where nothing is any more.
        let gone = Args::new().place(&two, b"moved").place(&one, b"x");
        let (status, mut body) = client.nfs(14, gone).await;
        assert_eq!(status, STALE);
        assert_eq!(body.wcc(), (None, Some(client.getattr(&two).await)));
        assert_eq!(body.wcc(), (None, None));
        body.end();
        // A directory into itself.
        let args = Args::new().place(&root, b"two").place(&two, b"x");
        assert_eq!(client.status(14, args).await, INVAL);
    });
}

/// Between exports nothing is moved or linked, also within one filesystem.
#[test]
fn exports_are_apart() {
    run(12, |scene| async move {
        let other = memory(&scene.world, 2);
        let mut exports = vec![open_export(8, "/other", &other)];
        exports.push(open_export(9, "/again", &scene.files));
        for export in exports {
            scene.exports.0.borrow_mut().push(export.into());
        }
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        for path in ["/other", "/again"] {
            let there = client.mount(path).await;
            let args = Args::new().place(&root, b"file").place(&there, b"file");
            let (status, mut body) = client.nfs(14, args).await;
            assert_eq!(status, XDEV);
            assert!(body.wcc().1.is_some());
            assert!(body.wcc().1.is_some());
            body.end();
            let args = Args::new().opaque(&file).place(&there, b"file");
            assert_eq!(client.status(15, args).await, XDEV);
        }
    });
}

/// A directory that was moved out of an export doesn't lead its clients up there.
#[test]
fn nothing_above_an_export_is_found() {
    run(13, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let inner = client.make_directory(&root, "inner").await;
        let deep = client.make_directory(&inner, "deep").await;
        client.make_directory(&deep, "deeper").await;
        let node = scene
            .files
            .inner
            .lookup(
                &Default::default(),
                Node::live(scene.files.root()),
                b"inner",
            )
            .await
            .expect("made")
            .node;
        let mut export = open_export(8, "/inner", &scene.files);
        export.root = node;
        scene.exports.0.borrow_mut().push(export.into());
        let deeper = client.mount("/inner/deep/deeper").await;
        assert!(client.lookup(&deeper, "..").await.is_ok());
        // READDIRPLUS shows the export's topmost directory as what is above it, and nothing further below.
        let mounted = client.mount("/inner").await;
        let args = |directory: &[u8]| {
            let args = Args::new().opaque(directory).u64(0).u64(0);
            args.u32(4096).u32(8192)
        };
        let (_, mut body) = client.nfs(17, args(&mounted)).await;
        body.post_op();
        body.u64();
        for name in [&b"."[..], b".."] {
            assert!(body.bool());
            assert_eq!(body.u64(), client.getattr(&mounted).await.number);
            assert_eq!(body.opaque(), name);
            body.u64();
            assert_eq!(body.post_op(), Some(client.getattr(&mounted).await));
            assert_eq!(body.post_op_handle(), Some(mounted.clone()));
        }
        let (_, mut body) = client.nfs(17, args(&deeper)).await;
        body.post_op();
        body.u64();
        for is_shown in [true, false] {
            assert!(body.bool());
            body.u64();
            body.opaque();
            body.u64();
            assert_eq!(body.post_op().is_some(), is_shown);
            assert_eq!(body.post_op_handle().is_some(), is_shown);
        }
        let args = Args::new().place(&inner, b"deep").place(&root, b"out");
        assert_eq!(client.status(14, args).await, OK);
        assert_eq!(client.lookup(&deeper, "..").await, Err(ACCES));
        assert!(client.lookup(&deeper, ".").await.is_ok());
    });
}

/// [rfc1813 3.3.18] to [rfc1813 3.3.20] test
#[test]
fn facts() {
    run(14, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let args = Args::new().opaque(&root);
        let (status, mut body) = client.nfs(18, args.clone()).await;
        assert_eq!(status, OK);
        assert_eq!(body.post_op(), Some(client.getattr(&root).await));
        let (total, free, available) = (body.u64(), body.u64(), body.u64());
        assert!(total == 1 << 40 && free <= total && available == free);
        let (files, free_files, available_files) = (body.u64(), body.u64(), body.u64());
        assert!(files > free_files && free_files == available_files);
        assert_eq!(body.u32(), 0);
        body.end();
        let (status, mut body) = client.nfs(19, args.clone()).await;
        assert_eq!(status, OK);
        assert!(body.post_op().is_some());
        for _ in ["read", "write"] {
            assert_eq!(
                (body.u32(), body.u32(), body.u32()),
                (1 << 20, 1 << 20, 4096)
            );
        }
        assert_eq!(body.u32(), 64 << 10);
        assert_eq!(body.u64(), 1 << 60);
        assert_eq!(body.time(), (0, 1));
        assert_eq!(body.u32(), 1 | 2 | 8 | 16);
        body.end();
        let (status, mut body) = client.nfs(20, args).await;
        assert_eq!(status, OK);
        assert!(body.post_op().is_some());
        assert_eq!((body.u32(), body.u32()), (65_000, 255));
        let flags = [body.bool(), body.bool(), body.bool(), body.bool()];
        assert_eq!(flags, [true, true, false, true]);
        body.end();
    });
}

/// What a client claims to be, and what is made of it.
#[test]
fn squashing() {
    run(15, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let open = Set {
            mode: Some(0o777),
            ..Set::default()
        };
        let args = Args::new().opaque(&root).set(&open).u32(0);
        assert_eq!(client.status(2, args).await, OK);
        let owner = async |name: &str| {
            let file = client.create(&root, name).await;
            let attributes = client.getattr(&file).await;
            (attributes.uid, attributes.gid)
        };
        scene
            .exports
            .change(7, |export| export.anonymous = (70, 71));
        assert_eq!(owner("a").await, (0, 0));
        scene
            .exports
            .change(7, |export| export.squash = Squash::Root);
        assert_eq!(owner("b").await, (70, 71));
        client.become_user(5, 6, &[7]);
        assert_eq!(owner("c").await, (5, 6));
        client.become_user(5, 0, &[]);
        assert_eq!(owner("d").await, (5, 71));
        scene
            .exports
            .change(7, |export| export.squash = Squash::All);
        client.become_user(5, 6, &[7]);
        assert_eq!(owner("e").await, (70, 71));
        scene
            .exports
            .change(7, |export| export.squash = Squash::None);
        *client.cred.borrow_mut() = Cred::None;
        assert_eq!(owner("f").await, (70, 71));
    });
}

#[test]
fn groups_count_and_roots_is_not_believed() {
    run(16, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        for (name, group) in [("seven", 7), ("zero", 0)] {
            let file = client.create(&root, name).await;
            let set = Set {
                mode: Some(0o040),
                gid: Some(group),
                ..Set::default()
            };
            let args = Args::new().opaque(&file).set(&set).u32(0);
            assert_eq!(client.status(2, args).await, OK);
        }
        scene
            .exports
            .change(7, |export| export.squash = Squash::Root);
        client.become_user(5, 6, &[7, 0]);
        let read = async |name: &str| {
            let (file, _) = client.lookup(&root, name).await.expect("there");
            client
                .status(6, Args::new().opaque(&file).u64(0).u32(1))
                .await
        };
        assert_eq!(read("seven").await, OK);
        assert_eq!(read("zero").await, ACCES);
    });
}

#[test]
fn a_read_only_export_changes_nothing() {
    run(17, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        scene.exports.change(7, |export| export.read_only = true);
        let set = Set::default();
        let place = Args::new().place(&root, b"new");
        let calls = [
            (2, Args::new().opaque(&file).set(&set).u32(0)),
            (7, write_args(&file, 0, b"x", 2)),
            (8, place.clone().u32(1).set(&set)),
            (9, place.clone().set(&set)),
            (10, place.clone().set(&set).opaque(b"x")),
            (11, place.clone().u32(7).set(&set)),
            (12, Args::new().place(&root, b"file")),
            (13, Args::new().place(&root, b"file")),
            (14, Args::new().place(&root, b"file").place(&root, b"new")),
            (15, Args::new().opaque(&file).place(&root, b"new")),
        ];
        for (procedure, args) in calls {
            assert_eq!(client.status(procedure, args).await, ROFS, "{procedure}");
        }
        assert_eq!(client.read(&file, 0, 1).await, (vec![], true));
        for name in [
            "write",
            "make",
            "remove",
            "rename",
            "link",
            "set_attributes",
        ] {
            let begun = if name == "make" { 1 } else { 0 };
            assert_eq!(scene.files.begun(name), begun, "{name}");
        }
    });
}

/// A snapshot's files are there, as they were, and belong to another filesystem for clients.
#[test]
fn a_snapshot_is_an_export() {
    run(18, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        client.write(&file, 0, b"before", 2).await;
        let number = scene.files.inner.snapshot();
        client.write(&file, 0, b"behind", 2).await;
        let mut export = open_export(8, "/old", &scene.files);
        export.root.at = number;
        scene.exports.0.borrow_mut().push(export.into());
        let old = client.mount("/old").await;
        let (old_file, attributes) = client.lookup(&old, "file").await.expect("there");
        assert_eq!(client.read(&old_file, 0, 9).await.0, b"before");
        let now = client.getattr(&file).await;
        assert_eq!(attributes.number, now.number);
        assert_ne!(attributes.filesystem, now.filesystem);
        let args = write_args(&old_file, 0, b"x", 2);
        assert_eq!(client.status(7, args).await, ROFS);
        scene.files.inner.delete_snapshot(number);
        let args = Args::new().opaque(&old_file);
        assert_eq!(client.status(1, args).await, STALE);
    });
}

/// Whatever the filesystem says is said to the client; [`FileError::Later`] not before a while.
#[test]
fn errors_are_passed_on() {
    run(19, |scene| async move {
        let client = scene.connect();
        let root = client.mount("/data").await;
        for (error, status) in [
            (FileError::Corrupt, IO),
            (FileError::Device, IO),
            (FileError::Stopping, JUKEBOX),
            (FileError::NoSpace, NOSPC),
        ] {
            scene.files.fail("make", error, 1);
            let args = Args::new().place(&root, b"new").set(&Set::default());
            let (found, mut body) = client.nfs(9, args).await;
            assert_eq!(found, status);
            assert_eq!(body.wcc(), (None, Some(client.getattr(&root).await)));
        }
        let failed = &scene.server.service().counters().procedures[9].failed;
        assert_eq!(failed.values().sum::<u64>(), 4);
        assert_eq!(failed.len(), 3);
    });
}
