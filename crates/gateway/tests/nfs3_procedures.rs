//! Each procedure of NFS over a filesystem in memory, byte for byte.

use crate::nfs_server;

use flagstone_fs::FileError;
use nfs_server::client::*;
use nfs_server::run;

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
            (FileError::NoTurn, JUKEBOX),
            (FileError::NoSpace, NOSPC),
        ] {
            scene.files.fail("make", error, 1);
            let args = Args::new().place(&root, b"new").set(&Set::default());
            let (found, mut body) = client.nfs(9, args).await;
            assert_eq!(found, status);
            assert_eq!(body.wcc(), (None, Some(client.getattr(&root).await)));
        }
        let failed = &scene.server.service().counters().procedures[9].failed;
        assert_eq!(failed.values().sum::<u64>(), 5);
        assert_eq!(failed.len(), 3);
    });
}
