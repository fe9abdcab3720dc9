//! Files as they were.

use flagstone_fs::{AccessMask, Cookie, Creation, FileError, Node, SnapshotNumber};

use super::{Client, NOTHING, Snapshots, mode};

pub(crate) async fn a_snapshot_stays_as_it_was<F: Snapshots>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let file = root.file(directory, "file").await.expect("makes");
    root.symlink(directory, "link", b"file")
        .await
        .expect("makes");
    root.write(file, 5_000, b"first").await.expect("writes");
    let (of_top, of_file) = (root.get(top).await, root.get(file).await);
    let first = fs.snapshot().await;
    root.write(file, 5_000, b"later").await.expect("writes");
    root.set(file, mode(0o600)).await.expect("sets");
    let second = fs.snapshot().await;
    assert!(first < second && second < SnapshotNumber::LIVE);
    root.remove(directory, "file").await.expect("removes");
    root.remove(directory, "link").await.expect("removes");
    root.rename((top, "d"), (top, "e")).await.expect("renames");
    root.remove_directory(top, "e").await.expect("removes");
    let then = |node: Node, at| Node { at, ..node };
    for (at, content, bits) in [(first, "first", 0o644), (second, "later", 0o600)] {
        let found = root.lookup(then(top, at), "d").await;
        assert_eq!(found, Ok(then(directory, at)));
        let found = root.lookup(then(directory, at), "file").await;
        assert_eq!(found, Ok(then(file, at)));
        let read = root.read(then(file, at), 4_998, 100).await;
        assert_eq!(read, Ok([b"\0\0", content.as_bytes()].concat()));
        assert_eq!(root.get(then(file, at)).await.mode, bits);
        assert_eq!(root.names(then(directory, at)).await, ["file", "link"]);
        let entries = root.list_behind(then(directory, at), Cookie(0), 1).await;
        let entries = entries.expect("lists");
        assert!(entries.iter().all(|entry| entry.node.at == at));
        let up = root.lookup(then(directory, at), "..").await;
        assert_eq!(up, Ok(then(top, at)));
        let link = root
            .lookup(then(directory, at), "link")
            .await
            .expect("is there");
        let (target, _) = fs.read_link(&root.caller, link).await.expect("is one");
        assert_eq!(target, b"file");
    }
    assert_eq!(root.get(then(top, first)).await, of_top);
    assert_eq!(root.get(then(file, first)).await, of_file);
    // What came later isn't there, nor a snapshot that never was.
    let new = root.file(top, "new").await.expect("makes");
    let never = SnapshotNumber(second.0 + 1_000);
    for node in [then(new, first), then(file, never), file] {
        assert_eq!(fs.attributes(node).await, Err(FileError::Stale));
    }
}

pub(crate) async fn a_snapshot_can_only_be_read<F: Snapshots>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let at = fs.snapshot().await;
    let (old_top, old_file) = (Node { at, ..top }, Node { at, ..file });
    let caller = &root.caller;
    let refused = Err(FileError::ReadOnly);
    assert_eq!(root.write(old_file, 0, b"x").await.map(drop), refused);
    assert_eq!(fs.commit(caller, old_file).await.map(drop), refused);
    assert_eq!(root.set(old_file, mode(0)).await.map(drop), refused);
    assert_eq!(root.set(old_file, NOTHING).await.map(drop), refused);
    for name in ["x", "file", "..", ""] {
        let made = root.file(old_top, name).await;
        assert_eq!(made.map(drop), refused, "before all other errors");
        assert_eq!(root.remove(old_top, name).await.map(drop), refused);
        let removed = root.remove_directory(old_top, name).await;
        assert_eq!(removed.map(drop), refused);
        let linked = root.link(file, old_top, name).await;
        assert_eq!(linked.map(drop), refused);
        let linked = root.link(old_file, top, name).await;
        assert_eq!(linked.map(drop), refused);
        let renamed = root.rename((old_top, name), (top, "x")).await;
        assert_eq!(renamed.map(drop), refused);
        let renamed = root.rename((top, "file"), (old_top, name)).await;
        assert_eq!(renamed.map(drop), refused);
    }
    let taken = flagstone_fs::New::File(Creation::Unchecked);
    let taken = root.make(old_top, "file", taken, NOTHING).await;
    assert_eq!(taken.map(drop), refused);
    let wanted = AccessMask {
        read: true,
        lookup: true,
        modify: true,
        extend: true,
        delete: true,
        execute: true,
    };
    let (told, _) = fs.access(caller, old_top, wanted).await.expect("says");
    let expected = AccessMask {
        read: true,
        lookup: true,
        ..AccessMask::default()
    };
    assert_eq!(told, expected);
    let (told, _) = fs.access(caller, old_file, wanted).await.expect("says");
    let expected = AccessMask {
        read: true,
        ..AccessMask::default()
    };
    assert_eq!(told, expected);
}
