//! Filesystems that go back to a snapshot: they are what they were then, whatever happens meanwhile, and all other
//! snapshots are as they were.

use crate::conformance;
use crate::support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::{Caller, FileError, Files, PROMOTE_BYTES, SnapshotNumber};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, FaultConfig, Rng, SimDisk, World};

use conformance::Client;
use conformance::histories::{History, Plan};
use conformance::trees::{Tree, walk};
use support::course::{config, rolled_back};
use support::stage::{objects, run};
use support::*;

#[test]
fn everything_is_what_it_was() {
    run(async |stage| {
        let (fs, root) = (&stage.fs, Client::root(&stage.fs));
        let top = root.top();
        let directory = root.directory(top, "directory").await.expect("makes");
        let mut files = Vec::new();
        for (name, len) in [("inline", 9), ("blocks", 9000), ("large", 2 << 20)] {
            let file = root.file(directory, name).await.expect("makes");
            root.write(file, 0, &vec![1; len]).await.expect("writes");
            files.push((name, file, len));
        }
        let at = fs.take_snapshot("then").await.expect("takes one");
        let then = walk(fs, at).await;
        for (name, file, len) in &files {
            root.write(*file, 3, &vec![2; *len]).await.expect("writes");
            let later = format!("later-{name}");
            let other = root.file(top, &later).await.expect("makes");
            root.write(other, 0, &vec![3; *len]).await.expect("writes");
        }
        let after = fs.take_snapshot("after").await.expect("takes one");
        let since = walk(fs, after).await;
        for (name, file, _) in &files {
            root.write(*file, 0, b"lost").await.expect("writes");
            root.remove(directory, *name).await.expect("removes");
        }
        root.remove_directory(top, "directory")
            .await
            .expect("removes");
        fs.roll_back("then").await.expect("begins");
        let early = fs.attributes(top).await.map(drop);
        assert_eq!(early, Err(FileError::Later));
        rolled_back(&stage.platform, fs).await;
        assert!(walk(fs, SnapshotNumber::LIVE).await.as_now() == then.as_now());
        assert!(walk(fs, at).await == then);
        assert!(walk(fs, after).await == since, "later snapshots stay");
        // Handles of then are good, and what is written stays here.
        for (_, file, _) in &files {
            root.write(*file, 0, b"new").await.expect("writes");
            assert_eq!(root.read(*file, 0, 5).await.expect("reads"), b"new\x01\x01");
        }
        assert!(walk(fs, at).await == then);
        fs.roll_back("after").await.expect("begins");
        rolled_back(&stage.platform, fs).await;
        assert!(
            walk(fs, SnapshotNumber::LIVE).await.as_now() == since.as_now(),
            "and forth"
        );
        assert_eq!(fs.roll_back("none").await, Err(FileError::NotFound));
        for name in ["then", "after"] {
            fs.delete_snapshot(name).await.expect("deletes");
        }
        stage.settle().await;
        assert!(walk(fs, SnapshotNumber::LIVE).await.as_now() == since.as_now());
        assert_eq!(objects(&stage.engine), 2);
    });
}

/// When everything goes back.
const BEGIN_NS: u64 = 20_000_000_000;

type Trees = Rc<RefCell<BTreeMap<String, Tree>>>;

async fn check_snapshots(fs: &TestFs, expected: &Trees, what: &str) {
    let expected = expected.borrow().clone();
    for info in fs.snapshots() {
        let tree = walk(fs, info.number).await;
        assert!(
            tree == expected[&info.name],
            "{what}: {} has changed",
            info.name
        );
    }
}

/// Clients change things, snapshots are taken and deleted, and again and again everything goes back to one of them.
/// The power fails while it does.
fn lives(seed: u64, promote_bytes: u64, faults: &FaultConfig) {
    let mut rng = Rng::new(seed);
    let disk = SimDisk::new(config());
    let first = World::new(seed);
    let (platform, on) = (first.platform(0), disk.clone());
    first.block_on(0, async move {
        let (engine, all, _) = begin_with(&platform, &on, promote_bytes).await;
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = first.crash();
    let expected = Trees::default();
    let history = History::default();
    for life in 0..4_u64 {
        let what = format!("seed {seed}, life {life}");
        let world = World::new(seed * 100 + life);
        let (platform, on) = (world.platform(0), disk.clone());
        let (shared, trees) = (history.clone(), expected.clone());
        let mut seeds = Rng::new(rng.next_u64());
        let target = Rc::new(RefCell::new(None));
        let (to, during) = (target.clone(), faults.clone());
        world.spawn(0, async move {
            let engine = open_engine(&platform, &on).await;
            let all = open_all(&platform, &engine, 50).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let plan = Plan {
                clients: 2,
                steps: 60,
                ..Plan::default()
            };
            for round in 0..3 {
                shared.start(&platform, &fs, &plan, &mut seeds);
                platform.sleep_ns(2_000_000 + seeds.below(3_000_000)).await;
                let name = format!("{life}-{round}");
                let at = fs.take_snapshot(&name).await.expect("takes one");
                let tree = walk(&fs, at).await;
                trees.borrow_mut().insert(name, tree);
                platform.sleep_ns(20_000_000).await;
                while trees.borrow().len() > 4 {
                    let index = seeds.index(trees.borrow().len());
                    let name = trees.borrow().keys().nth(index).cloned();
                    let name = name.expect("there are that many");
                    fs.delete_snapshot(&name).await.expect("deletes");
                    trees.borrow_mut().remove(&name);
                }
            }
            let index = seeds.index(trees.borrow().len());
            let name = trees.borrow().keys().nth(index).cloned();
            let name = name.expect("there are that many");
            // Now the clock counts to the power loss.
            let left_ns = BEGIN_NS.checked_sub(platform.now().0);
            platform.sleep_ns(left_ns.expect("it takes less")).await;
            on.set_faults(during);
            fs.roll_back(&name).await.expect("begins");
            *to.borrow_mut() = Some(name);
        });
        world.run_for(BEGIN_NS + rng.below(30_000_000));
        let mut crash = world.crash();
        disk.power_loss(&mut crash);
        disk.set_faults(FaultConfig::default());
        let _ = history.take_events();
        let world = World::new(seed * 100 + life + 50);
        let (platform, on) = (world.platform(0), disk.clone());
        let (trees, to) = (expected.clone(), target.borrow().clone());
        world.block_on(0, async move {
            let engine = open_engine(&platform, &on).await;
            let all = open_all(&platform, &engine, 50).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            rolled_back(&platform, &fs).await;
            for (info, report) in all.check().await.expect("can be looked at") {
                assert_eq!(report.problems, [""; 0], "{what}: {info:?}");
            }
            if let Some(to) = to {
                let now = walk(&fs, SnapshotNumber::LIVE).await.as_now();
                let differences = now.differences(&trees.borrow()[&to].as_now());
                assert_eq!(differences, [""; 0], "{what}: {to}");
            }
            check_snapshots(&fs, &trees, &what).await;
            let caller = Caller::default();
            let root = Client::root(&fs);
            let file = root.file(root.top(), format!("of {life}")).await;
            let data = IoBuf::copy_of(b"goes on");
            let written = fs.write(
                &caller,
                file.expect("makes"),
                0,
                data,
                flagstone_fs::Stability::Stable,
            );
            written.await.expect("writes");
            all.stop().await;
            engine.stop().await.expect("stops");
        });
        let _ = world.crash();
    }
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        for info in fs.snapshots() {
            fs.delete_snapshot(&info.name).await.expect("deletes");
        }
        platform.sleep_ns(500_000_000).await;
        let report = fs.check().await.expect("can be looked at");
        assert_eq!((report.kept, report.problems), (0, vec![]), "seed {seed}");
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
}

#[test]
fn power_losses_leave_what_was_rolled_back_to() {
    let good = FaultConfig::default();
    (0..12).for_each(|seed| lives(seed, PROMOTE_BYTES, &good));
    (12..24).for_each(|seed| lives(seed, SMALL, &good));
    (24..34).for_each(|seed| lives(seed, 0, &good));
}

/// What came after the snapshot has taken all the room: that goes first, since nobody else could give it back.
#[test]
fn a_full_device_can_be_rolled_back() {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(96 * MIB)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (_engine, all, fs) = begin(&platform, &disk).await;
        let root = Client::root(&fs);
        let top = root.top();
        let content = |seed: u8| vec![seed; 500 << 10];
        for n in 0..40 {
            let file = root.file(top, format!("old-{n}")).await.expect("makes");
            root.write(file, 0, &content(n)).await.expect("writes");
        }
        fs.take_snapshot("then").await.expect("takes");
        for n in 0..40 {
            root.remove(top, format!("old-{n}")).await.expect("removes");
        }
        let mut new = 0;
        let full = loop {
            let Ok(file) = root.file(top, format!("new-{new}")).await else {
                break FileError::NoSpace;
            };
            if let Err(error) = root.write(file, 0, &content(77)).await {
                break error;
            }
            new += 1;
        };
        assert_eq!(full, FileError::NoSpace);
        assert!(new > 20, "{new}");
        fs.roll_back("then").await.expect("begins");
        platform.sleep_ns(60_000_000_000).await;
        assert_eq!(fs.rolling_back_to(), None);
        for n in 0..40 {
            let file = root.lookup(top, format!("old-{n}")).await.expect("is back");
            let read = root.read(file, 0, 500 << 10).await.expect("reads");
            assert!(read == content(n), "file {n}");
        }
        let gone = root.lookup(top, "new-0").await;
        assert_eq!(gone.map(drop), Err(FileError::NotFound));
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
    });
    let _ = world.crash();
}

/// Groups of commits are given up while it goes on: what was done by then is done again.
fn rolled_back_while_commits_are_lost(seed: u64) -> Option<u64> {
    let (world, disk) = (World::new(seed), SimDisk::new(config()));
    let platform = world.platform(0);
    let losses = world.block_on(0, async move {
        let (_engine, all, fs) = begin_losing(&platform, &disk, PROMOTE_BYTES).await;
        let root = Client::root(&fs);
        let top = root.top();
        let mut files = Vec::new();
        for n in 0..120_u8 {
            let file = root.file(top, format!("{n}")).await.expect("makes");
            root.write(file, 0, &[n; 600]).await.expect("writes");
            files.push(file);
        }
        let at = fs.take_snapshot("then").await.expect("takes one");
        for file in &files {
            root.write(*file, 0, &[200; 700]).await.expect("writes");
        }
        let then = walk(&fs, at).await;
        let before = all.store_counters();
        // Many, since what fails in one transfer is written once more by itself, and a group is tried twice.
        disk.set_faults(FaultConfig {
            write_error: 0.15,
            ..FaultConfig::default()
        });
        fs.roll_back("then").await.expect("begins");
        for _ in 0..3000 {
            if fs.rolling_back_to().is_none() {
                break;
            }
            platform.sleep_ns(1_000_000).await;
        }
        disk.set_faults(FaultConfig::default());
        // What the device failed once too often waits, or the engine takes nothing more: other tests' business.
        if fs.rolling_back_to().is_some() || fs.describe().problem.is_some() {
            return None;
        }
        let now = walk(&fs, SnapshotNumber::LIVE).await.as_now();
        assert_eq!(now.differences(&then.as_now()), [""; 0], "seed {seed}");
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "seed {seed}: {info:?}");
        }
        Some(all.store_counters().groups_lost - before.groups_lost)
    });
    let _ = world.crash();
    losses
}

#[test]
fn what_is_lost_on_the_way_is_rolled_back_once_more() {
    let losses = (0..60).filter_map(rolled_back_while_commits_are_lost);
    let losses: Vec<u64> = losses.collect();
    println!("groups lost by those that were rolled back: {losses:?}");
    assert!(losses.iter().sum::<u64>() > 10, "{losses:?}");
}
