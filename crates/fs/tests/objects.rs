//! Large files are dvols: what that costs, what becomes of them in a crash, and what snapshots and copies see.

use crate::conformance;
use crate::support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_fs::{Caller, FileError, Files, Node, Settings, SnapshotNumber, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Counting, CrashMoment, CrashPoint, DiskConfig, SimDisk, World};

use conformance::{Client, size};
use support::stage::{objects, run};
use support::*;

const PAST: u64 = flagstone_fs::PROMOTE_BYTES + 1;

#[test]
fn a_file_that_gets_large_is_a_dvol() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &[1; 100]).await.expect("writes");
        let in_blocks = vec![2; 300_000];
        root.write(file, 100, &in_blocks).await.expect("writes");
        assert_eq!(objects(&stage.engine), 0);
        root.write(file, PAST, &[3; 10]).await.expect("writes");
        assert_eq!(objects(&stage.engine), 1);
        let bytes = root.read(file, 0, 2_000_000).await.expect("reads");
        let mut expected = vec![1; 100];
        expected.extend(in_blocks);
        expected.resize(PAST as usize, 0);
        expected.extend([3; 10]);
        assert!(bytes == expected);
        assert_eq!(root.get(file).await.size_bytes, PAST + 10);
        // By a size that is set, too.
        let other = root.file(root.top(), "other").await.expect("makes");
        root.set(other, size(PAST)).await.expect("sets");
        assert_eq!(objects(&stage.engine), 2);
        assert_eq!(root.get(other).await.size_bytes, PAST);
        assert_eq!(stage.settle().await, 2);
        root.remove(root.top(), "file").await.expect("removes");
        assert_eq!(stage.settle().await, 1);
        assert_eq!(objects(&stage.engine), 1);
        // It stays one when it gets small.
        root.set(other, size(5)).await.expect("sets");
        root.write(other, 7, b"x").await.expect("writes");
        assert_eq!(
            root.read(other, 0, 10).await.expect("reads"),
            b"\0\0\0\0\0\0\0x"
        );
    });
}

#[test]
fn what_is_made_in_an_image_store_is_a_dvol_at_once() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let store = root.directory(root.top(), "images").await.expect("makes");
        let caller = Caller::default();
        let set = stage.fs.set_image_store(&caller, store, true).await;
        set.expect("sets");
        let below = root.directory(store, "below").await.expect("makes");
        for (directory, expected) in [(root.top(), 0), (store, 1), (below, 2)] {
            let file = root.file(directory, "file").await.expect("makes");
            root.write(file, 0, b"content").await.expect("writes");
            assert_eq!(objects(&stage.engine), expected);
            assert_eq!(root.read(file, 0, 99).await.expect("reads"), b"content");
        }
        let user = Caller {
            uid: 5,
            ..Caller::default()
        };
        let refused = stage.fs.set_image_store(&user, store, false).await;
        assert_eq!(refused, Err(FileError::NotOwner));
        let file = root.lookup(store, b"file").await.expect("is there");
        let refused = stage.fs.set_image_store(&caller, file, true).await;
        assert_eq!(refused, Err(FileError::NotDirectory));
    });
}

/// A stable write to a large file is its data and its share of the journal: the tree is neither read nor changed.
#[test]
fn a_stable_write_touches_one_place() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 2 << 20])
            .await
            .expect("writes");
        let caller = Caller::default();
        let write = async |at: u64, stability| {
            let data = IoBuf::copy_of(&[2; 4096]);
            let written = stage.fs.write(&caller, file, at, data, stability).await;
            written.expect("writes");
        };
        write(0, Stability::Stable).await;
        stage.settle().await;
        write(4096, Stability::Stable).await;
        let before = stage.disk.counts();
        const COUNT: u64 = 50;
        for n in 0..COUNT {
            write(n * 8192, Stability::Stable).await;
        }
        let after = stage.disk.counts();
        assert_eq!(after.reads, before.reads);
        // The data, and a group with its record.
        assert_eq!(after.writes - before.writes, 2 * COUNT);
        assert_eq!(after.written_bytes - before.written_bytes, 2 * 4096 * COUNT);
        // The journal may flush once for itself.
        let flushes = after.flushes - before.flushes;
        assert!((COUNT..=COUNT + 1).contains(&flushes), "{flushes}");
        // Of many at once each still writes its own data, and they share the rest.
        let before = stage.disk.counts();
        let data = |n: u64| {
            let (fs, caller) = (stage.fs.clone(), caller.clone());
            async move {
                let data = IoBuf::copy_of(&[n as u8; 4096]);
                let written = fs.write(&caller, file, n * 8192, data, Stability::Stable);
                written.await.expect("writes");
            }
        };
        flagstone_device::engine::join_all((0..32).map(data)).await;
        let after = stage.disk.counts();
        assert_eq!(after.reads, before.reads);
        let bytes = after.written_bytes - before.written_bytes;
        assert!(bytes <= 32 * 4096 * 13 / 10, "{bytes} bytes for 32 blocks");
    });
}

#[test]
fn snapshots_see_what_was_there() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        let len = (PAST + 5000) as usize;
        root.write(file, 0, &vec![1; len]).await.expect("writes");
        let mut snapshots = Vec::new();
        let mut taken = async |name: &str| {
            let at = stage.fs.take_snapshot(name).await.expect("takes one");
            snapshots.push((name.to_owned(), at));
            Node { at, ..file }
        };
        let first = taken("first").await;
        let second = taken("second").await;
        let seen = root.get(first).await;
        // Both see the same layer, which is not there before it is needed.
        let layers = || {
            let dvol = stage.engine.dvols();
            dvol.iter().map(|info| info.snapshot_count).sum::<usize>()
        };
        assert_eq!(layers(), 0);
        root.set(file, conformance::mode(0o640))
            .await
            .expect("sets");
        assert_eq!(layers(), 0);
        root.write(file, 0, &[2; 4096]).await.expect("writes");
        root.write(file, 4096, &[2; 4096]).await.expect("writes");
        assert_eq!(layers(), 1);
        let third = taken("third").await;
        let changed = root.get(third).await;
        root.set(file, size(10)).await.expect("cuts");
        root.set(file, size(8192)).await.expect("extends");
        for node in [first, second] {
            assert_eq!(root.get(node).await, seen);
            let bytes = root.read(node, 0, len as u32).await.expect("reads");
            assert!(bytes == vec![1; len]);
        }
        assert_eq!(root.get(third).await, changed);
        let bytes = root.read(third, 0, 9000).await.expect("reads");
        assert!(bytes[..8192] == [2; 8192] && bytes[8192..] == [1; 808]);
        let bytes = root.read(file, 0, 9000).await.expect("reads");
        assert!(bytes.len() == 8192 && bytes[..10] == [2; 10] && bytes[10..] == [0; 8182]);
        stage.settle().await;
        assert_eq!(layers(), 2);
        // The layer is kept as long as one of both needs it.
        stage.fs.delete_snapshot("second").await.expect("deletes");
        stage.settle().await;
        assert_eq!((layers(), root.get(first).await), (2, seen));
        stage.fs.delete_snapshot("first").await.expect("deletes");
        stage.settle().await;
        assert_eq!(layers(), 1);
        root.remove(root.top(), "file").await.expect("removes");
        assert_eq!(stage.settle().await, 1);
        assert_eq!(root.get(third).await, changed);
        stage.fs.delete_snapshot("third").await.expect("deletes");
        assert_eq!(stage.settle().await, 0);
        assert_eq!(objects(&stage.engine), 0);
        let used = stage.fs.describe().used_bytes;
        assert_eq!(used, 0);
    });
}

/// What a removed file was written behind its last snapshot goes.
#[test]
fn of_a_removed_file_only_what_snapshots_see_is_left() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 2 << 20])
            .await
            .expect("writes");
        stage.fs.take_snapshot("one").await.expect("takes one");
        root.write(file, 4 << 20, &vec![2; 6 << 20])
            .await
            .expect("writes");
        assert_eq!(stage.fs.describe().used_bytes, 8 << 20);
        root.remove(root.top(), "file").await.expect("removes");
        stage.settle().await;
        assert_eq!(stage.fs.describe().used_bytes, 2 << 20);
        stage.settle().await;
        assert_eq!(objects(&stage.engine), 1);
    });
}

#[test]
fn a_quota_counts_what_dvols_take() {
    run(async |stage| {
        let settings = Settings {
            quota_bytes: 3 << 20,
            promote_bytes: 64 << 10,
            ..Settings::default()
        };
        let made = stage.all.create_with("small", settings).await;
        let fs = made.expect("makes");
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 3 << 20])
            .await
            .expect("writes");
        let space = fs.space().await.expect("looks");
        assert_eq!((space.total_bytes, space.free_bytes), (3 << 20, 0));
        let refused = root.write(file, 3 << 20, &[1; 100]).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        root.write(file, 4096, &[2; 5000])
            .await
            .expect("is there already");
        root.set(file, size(1 << 20)).await.expect("cuts");
        stage.platform.sleep_ns(1_000_000_000).await;
        root.write(file, 1 << 20, &vec![1; 1 << 20])
            .await
            .expect("writes");
        assert_eq!(fs.describe().used_bytes, 2 << 20);
    });
}

/// A copy costs the same whatever the size of what is copied.
#[test]
fn a_clone_is_constant_work() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let caller = Caller::default();
        let mut costs = Vec::new();
        for (name, end) in [("small", 2 << 20), ("large", 100_u64 << 30)] {
            let file = root.file(root.top(), name).await.expect("makes");
            for at in [0, end / 2, end - 4096] {
                root.write(file, at, &[7; 4096]).await.expect("writes");
            }
            stage.settle().await;
            let before = stage.disk.counts();
            let copy = format!("copy of {name}");
            let made = stage
                .fs
                .clone_file(&caller, file, root.top(), copy.as_bytes());
            let made = made.await.expect("clones");
            let after = stage.disk.counts();
            costs.push((
                after.reads - before.reads,
                after.writes - before.writes,
                after.flushes - before.flushes,
            ));
            assert_eq!(made.attributes.size_bytes, end);
            root.write(file, 0, &[8; 10]).await.expect("writes");
            let bytes = root.read(made.node, 0, 4096).await.expect("reads");
            assert_eq!(bytes, [7; 4096]);
            root.write(made.node, end / 2, &[9; 10])
                .await
                .expect("writes");
            let bytes = root.read(file, end / 2, 10).await.expect("reads");
            assert_eq!(bytes, [7; 10]);
        }
        println!("{costs:?}");
        assert_eq!(costs[0], costs[1]);
        assert_eq!(stage.settle().await, 4);
    });
}

#[test]
fn copies_of_all_kinds() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let caller = Caller::default();
        for (index, len) in [0, 5, 600, 4096, 40_000, 2 << 20].into_iter().enumerate() {
            let name = format!("file-{index}");
            let file = root.file(root.top(), &name).await.expect("makes");
            let old = vec![1; len];
            root.write(file, 0, &old).await.expect("writes");
            let snapshot = format!("at-{index}");
            let at = stage.fs.take_snapshot(&snapshot).await.expect("takes one");
            let new = vec![2; len / 2 + 1];
            root.write(file, 0, &new).await.expect("writes");
            let mut now = old.clone();
            now.resize(len.max(new.len()), 0);
            now[..new.len()].copy_from_slice(&new);
            for (source, expected) in [(Node { at, ..file }, &old), (file, &now)] {
                let copy = format!("copy-{index}-{}", source.at == SnapshotNumber::LIVE);
                let made = stage
                    .fs
                    .clone_file(&caller, source, root.top(), copy.as_bytes());
                let made = made.await.expect("clones").node;
                let bytes = root.read(made, 0, 3 << 20).await.expect("reads");
                assert!(bytes == *expected, "{copy}");
                root.write(made, 0, b"other").await.expect("writes");
                let bytes = root.read(source, 0, 3 << 20).await.expect("reads");
                assert!(bytes == *expected, "{copy}");
            }
            let again = stage
                .fs
                .clone_file(&caller, file, root.top(), name.as_bytes());
            assert_eq!(again.await.map(drop), Err(FileError::Exists));
        }
        let user = Caller {
            uid: 5,
            ..Caller::default()
        };
        let file = root.lookup(root.top(), b"file-5").await.expect("is there");
        root.set(file, conformance::mode(0o600))
            .await
            .expect("sets");
        let refused = stage.fs.clone_file(&user, file, root.top(), b"mine").await;
        assert_eq!(refused.map(drop), Err(FileError::Denied));
        stage.settle().await;
    });
}

/// What is known of a file and its snapshots while a script runs.
#[derive(Clone, Default)]
struct Known {
    /// What the file holds, and what the step under way makes of it; `None`: there is no such file.
    now: Vec<Option<Vec<u8>>>,
    snapshots: Vec<(String, Option<Vec<u8>>)>,
    /// A snapshot that is being taken or deleted.
    open: Option<String>,
}

/// Larger than what stays in blocks.
const LARGE: usize = 30_000;

/// Makes a file large, cuts it, keeps it, writes it and removes it, again and again.
async fn play(fs: TestFs, known: Rc<RefCell<Known>>) {
    let root = Client::root(&fs);
    let step = |next: Option<Vec<u8>>| known.borrow_mut().now.push(next);
    let done = || {
        let mut known = known.borrow_mut();
        let last = known.now.pop().expect("it was begun");
        known.now = vec![last];
    };
    let now = || known.borrow().now[0].clone();
    known.borrow_mut().now = vec![None];
    for round in 0..3_u8 {
        // An empty file is as good as none.
        let file = root.file(root.top(), "file").await.expect("makes");
        known.borrow_mut().now = vec![Some(Vec::new())];
        step(Some(vec![round + 1; 3000]));
        root.write(file, 0, &[round + 1; 3000])
            .await
            .expect("writes");
        done();
        let mut large = now().expect("is there");
        large.resize(LARGE, round + 10);
        step(Some(large));
        root.write(file, 3000, &vec![round + 10; LARGE - 3000])
            .await
            .expect("writes");
        done();
        let take = async |name: String| {
            known.borrow_mut().open = Some(name.clone());
            fs.take_snapshot(&name).await.expect("takes one");
            let mut known = known.borrow_mut();
            let held = known.now[0].clone();
            known.snapshots.push((name, held));
            known.open = None;
        };
        take(format!("a-{round}")).await;
        let mut cut = now().expect("is there");
        cut.truncate(5000);
        step(Some(cut));
        root.set(file, size(5000)).await.expect("cuts");
        done();
        let mut longer = now().expect("is there");
        longer.resize(20_000, 0);
        step(Some(longer));
        root.set(file, size(20_000)).await.expect("extends");
        done();
        take(format!("b-{round}")).await;
        let mut part = now().expect("is there");
        part[4000..9000].fill(round + 20);
        step(Some(part));
        root.write(file, 4000, &[round + 20; 5000])
            .await
            .expect("writes");
        done();
        let oldest = known.borrow_mut().snapshots.remove(0).0;
        known.borrow_mut().open = Some(oldest.clone());
        fs.delete_snapshot(&oldest).await.expect("deletes");
        known.borrow_mut().open = None;
        step(None);
        root.remove(root.top(), "file").await.expect("removes");
        done();
    }
}

/// Runs the script up to a change of the device, and looks at what is there. True if that came before its end.
fn crash_at(nth: u64, moment: CrashMoment) -> bool {
    let disk = SimDisk::new(DiskConfig::new(96 * MIB));
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let (engine, all, _) = begin_with(&platform, &on, 8192).await;
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    let world = World::new(2 + nth);
    let (platform, on) = (world.platform(0), disk.clone());
    let known = Rc::new(RefCell::new(Known::default()));
    let (shared, is_over) = (known.clone(), Rc::new(Cell::new(false)));
    let over = is_over.clone();
    world.crash_at(CrashPoint {
        nth,
        counting: Counting::Changes,
        moment,
    });
    world.spawn(0, async move {
        let engine = open_engine(&platform, &on).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        play(fs, shared).await;
        platform.sleep_ns(100_000_000).await;
        over.set(true);
    });
    world.run_for(60_000_000_000);
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let known = known.borrow().clone();
    let world = World::new(3 + nth);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        let content = async |at: SnapshotNumber| {
            let top = Node { at, ..root.top() };
            match root.lookup(top, b"file").await {
                Ok(file) => Some(root.read(file, 0, 1 << 20).await.expect("reads")),
                Err(_) => None,
            }
        };
        let found = content(SnapshotNumber::LIVE).await;
        let is_one = known.now.contains(&found);
        let is_empty = found.as_ref().is_none_or(|bytes| bytes.is_empty());
        let was_empty = known
            .now
            .iter()
            .any(|now| now.as_ref().is_none_or(|b| b.is_empty()));
        assert!(
            is_one || is_empty && was_empty || known.now.is_empty(),
            "change {nth}: the file"
        );
        for info in fs.snapshots() {
            let found = content(info.number).await;
            let held = known.snapshots.iter().find(|(name, _)| *name == info.name);
            let is_open = known.open.as_ref() == Some(&info.name);
            assert!(held.is_some() || is_open, "change {nth}: {}", info.name);
            if let Some((_, held)) = held {
                assert!(found == *held, "change {nth}: {}", info.name);
            }
        }
        let is_there = |name: &String| fs.snapshots().iter().any(|info| info.name == *name);
        assert!(
            known.snapshots.iter().all(|(name, _)| is_there(name)),
            "change {nth}"
        );
        // What the crash left over the background has found by itself.
        platform.sleep_ns(2_000_000_000).await;
        for (info, report) in all.check().await.expect("can be looked at") {
            let (swept, problems) = (report.swept, report.problems);
            assert_eq!((swept, problems), (0, vec![]), "change {nth}: {info:?}");
        }
        // Whatever there was: when all is removed, nothing is left.
        let _ = root.remove(root.top(), "file").await;
        for info in fs.snapshots() {
            fs.delete_snapshot(&info.name).await.expect("deletes");
        }
        platform.sleep_ns(2_000_000_000).await;
        for (info, report) in all.check().await.expect("can be looked at") {
            let left = (report.swept, report.objects, report.blocks, report.kept);
            assert_eq!(
                (left, report.problems),
                ((0, 0, 0, 0), vec![]),
                "change {nth}: {info:?}"
            );
        }
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    !is_over.get()
}

#[test]
fn no_crash_leaves_half_of_anything() {
    let moments = [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ];
    let mut count = 0;
    for nth in 0.. {
        if !crash_at(nth, moments[nth as usize % 3]) {
            break;
        }
        count += 1;
    }
    println!("{count} crashes");
    assert!(count > 100, "{count}");
}
