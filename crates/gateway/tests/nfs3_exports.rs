//! Exports: mounting them, who may use them and in whose name, their handles, and what lies between them.

use crate::nfs_server;

use flagstone_fs::{Caller, Files, Node};
use flagstone_gateway::nfs3::{Clients, Squash};
use nfs_server::client::*;
use nfs_server::{memory, open_export, run};

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

/// Between exports nothing is moved or linked, also within one filesystem.
#[test]
fn exports_are_apart() {
    run(12, |scene| async move {
        let other = memory(&scene.world, 2);
        let mut exports = vec![open_export(8, "/other", &other)];
        exports.push(open_export(9, "/again", &scene.files));
        // A node numbers the exports of each filesystem from zero, and files as well.
        exports.push(open_export(7, "/twin", &other));
        for export in exports {
            scene.exports.0.borrow_mut().push(export.into());
        }
        let client = scene.connect();
        let root = client.mount("/data").await;
        let file = client.create(&root, "file").await;
        let twin = client.mount("/twin").await;
        client.create(&twin, "its-file").await;
        for path in ["/other", "/again", "/twin"] {
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
        let name = number.0.to_string();
        let deleted = scene.files.inner.delete_snapshot(&name).await;
        deleted.expect("deletes");
        let args = Args::new().opaque(&old_file);
        assert_eq!(client.status(1, args).await, STALE);
    });
}
