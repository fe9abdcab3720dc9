//! `.snapshot` in every directory: it is there, it can only be looked at, and it is in the way of nothing else.

use crate::conformance;
use crate::support;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{
    AccessMask, Caller, Cookie, FileError, FileKind, Files, HasSnapshots, Node, SNAPSHOTS,
    SnapshotNumber, WithSnapshots,
};
use flagstone_sim::{SimPlatform, World};

use conformance::{Client, NOTHING, Snapshots, conformance_tests, mode};
use support::{TestFs, begin, new_disk};

type Memory = WithSnapshots<MemoryFiles<SimPlatform>>;

impl Snapshots for Memory {
    async fn snapshot(&self) -> SnapshotNumber {
        self.inner().snapshot()
    }
}

impl Snapshots for WithSnapshots<TestFs> {
    async fn snapshot(&self) -> SnapshotNumber {
        // As the one in memory names them.
        let name = (self.inner().snapshots().len() + 1).to_string();
        let taken = self.inner().take_snapshot(&name).await;
        taken.expect("takes one")
    }
}

fn run<T: Future<Output = ()> + 'static>(test: impl FnOnce(Memory) -> T) {
    let world = World::new(1);
    let files = MemoryFiles::new(world.platform(0), MemoryOptions::default());
    world.block_on(0, test(WithSnapshots::new(files)));
}

// All that is promised of a filesystem without it.
conformance_tests! { crate::dot_snapshot::run }

conformance_tests! { crate::dot_snapshot::run:
    snapshots::{a_snapshot_can_only_be_read, a_snapshot_stays_as_it_was},
}

fn run_stored<T: Future<Output = ()> + 'static>(
    test: impl FnOnce(WithSnapshots<TestFs>) -> T + 'static,
) {
    let world = World::new(1);
    let (platform, disk) = (world.platform(0), new_disk(128));
    world.block_on(0, async move {
        let (engine, all, fs) = begin(&platform, &disk).await;
        test(WithSnapshots::new(fs)).await;
        all.stop().await;
        engine.stop().await.expect("stops");
    });
}

async fn what_was_lost_is_found<F: HasSnapshots>(fs: WithSnapshots<F>)
where
    WithSnapshots<F>: Snapshots,
{
    let root = Client::root(&fs);
    let top = root.top();
    let snapshots = |node: Node| Node {
        at: SNAPSHOTS,
        ..node
    };
    // Nobody sees it who doesn't ask for it.
    assert_eq!(root.names(top).await, [""; 0]);
    let none = root.lookup(top, ".snapshot").await.expect("is there");
    assert_eq!(none, snapshots(top));
    assert_eq!(root.names(none).await, [""; 0]);
    let empty = root.get(none).await;
    assert_eq!((empty.kind, empty.mode), (FileKind::Directory, 0o555));

    fs.snapshot().await;
    let directory = root.directory(top, "d").await.expect("makes");
    let file = root.file(directory, "file").await.expect("makes");
    root.write(file, 0, b"precious").await.expect("writes");
    let second = fs.snapshot().await;
    let third = fs.snapshot().await;
    root.remove(directory, "file").await.expect("removes");

    assert_eq!(root.names(snapshots(top)).await, ["1", "2", "3"]);
    assert_ne!(root.get(none).await.changed, empty.changed);
    // Of a directory those in which it was there.
    let below = root.lookup(directory, ".snapshot").await.expect("is there");
    assert_eq!(root.names(below).await, ["2", "3"]);
    let missing = root.lookup(below, "1").await;
    assert_eq!(missing, Err(FileError::NotFound));
    let then = root.lookup(below, "2").await.expect("is there");
    let expected = Node {
        at: second,
        ..directory
    };
    assert_eq!(then, expected);
    let found = root.lookup(then, "file").await.expect("is there");
    assert_eq!(root.read(found, 0, 100).await, Ok(b"precious".to_vec()));
    assert_eq!(root.lookup(below, "..").await, Ok(directory));
    assert_eq!(root.lookup(below, ".").await, Ok(below));
    let nested = root.lookup(then, ".snapshot").await;
    assert_eq!(nested, Err(FileError::NotFound));

    let never_given = root.list_behind(below, Cookie(u64::MAX), 5).await;
    assert_eq!(never_given, Err(FileError::Invalid));

    // In parts of any size.
    for count in 1..5 {
        let entries = root.list_behind(below, Cookie(0), count).await;
        let entries = entries.expect("lists");
        let nodes: Vec<Node> = entries.iter().map(|entry| entry.node).collect();
        let at = |at| Node { at, ..directory };
        assert_eq!(nodes, [below, directory, at(second), at(third)]);
        assert!(entries.iter().all(|entry| entry.attributes.is_some()));
    }
}

#[test]
fn what_was_lost_is_found_in_memory() {
    run(what_was_lost_is_found);
}

#[test]
fn what_was_lost_is_found_on_a_disk() {
    run_stored(what_was_lost_is_found);
}

async fn nothing_of_it_can_be_changed<F: HasSnapshots>(fs: WithSnapshots<F>)
where
    WithSnapshots<F>: Snapshots,
{
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    fs.snapshot().await;
    let below = root.lookup(top, ".snapshot").await.expect("is there");

    let exists = Err(FileError::Exists);
    let read_only = Err(FileError::ReadOnly);
    let name = ".snapshot";
    assert_eq!(root.file(top, name).await, exists);
    assert_eq!(root.directory(top, name).await, exists);
    let linked = root.link(file, top, name).await;
    assert_eq!(linked.map(drop), Err(FileError::Exists));
    let renamed = root.rename((top, "file"), (top, name)).await;
    assert_eq!(renamed.map(drop), Err(FileError::Exists));
    let renamed = root.rename((top, name), (top, "other")).await;
    assert_eq!(renamed.map(drop), Err(FileError::ReadOnly));
    let removed = root.remove(top, name).await;
    assert_eq!(removed.map(drop), Err(FileError::ReadOnly));
    let removed = root.remove_directory(top, name).await;
    assert_eq!(removed.map(drop), Err(FileError::ReadOnly));

    assert_eq!(root.file(below, "new").await, read_only);
    let removed = root.remove_directory(below, "1").await;
    assert_eq!(removed.map(drop), Err(FileError::ReadOnly));
    let renamed = root.rename((top, "file"), (below, "x")).await;
    assert_eq!(renamed.map(drop), Err(FileError::ReadOnly));
    let set = root.set(below, mode(0o777)).await;
    assert_eq!(set.map(drop), Err(FileError::ReadOnly));
    let written = root.write(below, 0, b"x").await;
    assert_eq!(written.map(drop), Err(FileError::ReadOnly));
    let committed = fs.commit(&Caller::default(), below).await;
    assert_eq!(committed.map(drop), Err(FileError::ReadOnly));
    let read = fs.read(&Caller::default(), below, 0, 1).await;
    assert_eq!(read.map(drop), Err(FileError::IsDirectory));
    let target = fs.read_link(&Caller::default(), below).await;
    assert_eq!(target.map(drop), Err(FileError::Invalid));
    let all = AccessMask {
        read: true,
        lookup: true,
        modify: true,
        extend: true,
        delete: true,
        execute: true,
    };
    let (may, _) = fs
        .access(&Caller::default(), below, all)
        .await
        .expect("is there");
    let to_look = AccessMask {
        read: true,
        lookup: true,
        ..AccessMask::default()
    };
    assert_eq!(may, to_look);
}

#[test]
fn nothing_of_it_can_be_changed_in_memory() {
    run(nothing_of_it_can_be_changed);
}

#[test]
fn nothing_of_it_can_be_changed_on_a_disk() {
    run_stored(nothing_of_it_can_be_changed);
}

#[test]
fn who_may_not_enter_the_directory_may_not_enter_here() {
    run(|fs| async move {
        let root = Client::root(&fs);
        let closed = root.directory(root.top(), "closed").await.expect("makes");
        root.set(closed, mode(0o700)).await.expect("sets");
        fs.snapshot().await;
        let below = root.lookup(closed, ".snapshot").await.expect("is there");
        let other = Client {
            caller: Caller {
                uid: 5,
                gid: 5,
                ..Caller::default()
            },
            ..root.clone()
        };
        let denied = Err(FileError::Denied);
        assert_eq!(other.lookup(closed, ".snapshot").await, denied);
        assert_eq!(other.lookup(below, "1").await, denied);
        let listed = other.list_behind(below, Cookie(0), 10).await;
        assert_eq!(listed, Err(FileError::Denied));
        // Who may list it only sees names.
        root.set(closed, mode(0o704)).await.expect("sets");
        let listed = other.list_behind(below, Cookie(0), 10).await;
        let listed = listed.expect("lists");
        assert_eq!(listed.len(), 3);
        assert!(listed.iter().all(|entry| entry.attributes.is_none()));
        let made = other.fs.make(
            &other.caller,
            below,
            b"x",
            flagstone_fs::New::Directory,
            NOTHING,
        );
        assert_eq!(made.await.map(drop), Err(FileError::ReadOnly));
    });
}
