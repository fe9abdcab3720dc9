//! Filesystems that are deleted: gone at once and for ever, and what they held is given back, whatever happens
//! meanwhile.

use crate::conformance;
use crate::support;

use flagstone_device::engine::Engine;
use flagstone_fs::{Caller, Cookie, FileError, Files, Filesystems, Node, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Latency, Rng, SimDisk, SimPlatform, World};

use conformance::Client;
use conformance::histories::{History, Plan};
use conformance::trees::walk;
use support::stage::{objects, run};
use support::*;

/// Files of all kinds, with snapshots and a clone.
async fn fill(fs: &TestFs) {
    let root = Client::root(fs);
    for n in 0..40 {
        let directory = root.directory(root.top(), format!("{n}")).await;
        let directory = directory.expect("makes");
        for (name, len) in [("inline", 100), ("blocks", 5000), ("more", 60_000)] {
            let file = root.file(directory, name).await.expect("makes");
            let data = vec![n as u8; if n < 5 { len } else { 50 }];
            root.write(file, 0, &data).await.expect("writes");
        }
        if n == 2 {
            let large = root.file(directory, "large").await.expect("makes");
            root.write(large, 0, &vec![7; 2 << 20])
                .await
                .expect("writes");
            fs.take_snapshot("monday").await.expect("takes one");
            root.write(large, 0, &[8; 9000]).await.expect("writes");
            let caller = Caller::default();
            let cloned = fs.clone_file(&caller, large, root.top(), b"clone").await;
            cloned.expect("clones");
            root.remove(directory, "blocks").await.expect("removes");
            fs.take_snapshot("tuesday").await.expect("takes one");
            root.remove(directory, "large").await.expect("removes");
        }
    }
}

async fn cleared(platform: &SimPlatform, all: &Filesystems<SimPlatform>) {
    for _ in 0..1000 {
        if all.deleted().await.expect("looks").is_empty() {
            return;
        }
        platform.sleep_ns(10_000_000).await;
    }
    panic!("what a filesystem held is not given back");
}

async fn check(all: &Filesystems<SimPlatform>) {
    for (info, report) in all.check().await.expect("can be looked at") {
        assert_eq!(report.problems, [""; 0], "{info:?}");
    }
}

/// What every call with a file of a deleted filesystem comes to.
async fn assert_gone(fs: &TestFs, file: Node, directory: Node) {
    let caller = Caller::default();
    let stale = FileError::Stale;
    assert_eq!(fs.attributes(file).await.map(drop), Err(stale));
    assert_eq!(fs.read(&caller, file, 0, 9).await.map(drop), Err(stale));
    for stability in [Stability::Stable, Stability::Unstable] {
        let written = fs.write(&caller, file, 0, IoBuf::copy_of(b"x"), stability);
        assert_eq!(written.await.map(drop), Err(stale));
    }
    assert_eq!(fs.commit(&caller, file).await.map(drop), Err(stale));
    let root = Client::root(fs);
    assert_eq!(root.lookup(directory, "x").await, Err(stale));
    assert_eq!(root.file(directory, "x").await, Err(stale));
    assert_eq!(root.remove(directory, "x").await.map(drop), Err(stale));
    let renamed = root.rename((directory, "a"), (directory, "b")).await;
    assert_eq!(renamed.map(drop), Err(stale));
    let listed = root.list_behind(directory, Cookie::default(), 10).await;
    assert_eq!(listed.map(drop), Err(stale));
    let cloned = fs.clone_file(&caller, file, directory, b"clone").await;
    assert_eq!(cloned.map(drop), Err(stale));
    assert_eq!(fs.take_snapshot("late").await.map(drop), Err(stale));
    assert_eq!(fs.space().await.map(drop), Err(stale));
}

#[test]
fn what_a_deleted_filesystem_held_is_given_back() {
    run(async |stage| {
        let fs = stage.all.create("gone", 0).await.expect("makes");
        fill(&fs).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, b"content").await.expect("writes");
        let large = root.lookup(root.top(), "clone").await.expect("is there");
        root.read(large, 0, 10).await.expect("reads");
        let other = Client::root(&stage.fs);
        let stays = other.file(other.top(), "stays").await.expect("makes");
        other.write(stays, 0, &[5; 9000]).await.expect("writes");
        assert!(objects(&stage.engine) > 0);
        let id = fs.id();
        stage.all.delete(id).await.expect("deletes");
        // It is gone before anything is given back.
        assert_eq!(stage.all.deleted().await, Ok(vec![id]));
        for node in [file, large] {
            assert_gone(&fs, node, root.top()).await;
        }
        assert_eq!(stage.all.delete(id).await, Err(FileError::NotFound));
        let opened = stage.all.open_by_name("gone").await;
        assert_eq!(opened.map(drop), Err(FileError::NotFound));
        // While that goes on everything is whole, and another one can have the name.
        stage.check().await;
        let again = stage.all.create("gone", 0).await.expect("makes");
        assert_ne!(again.id(), id);
        cleared(&stage.platform, &stage.all).await;
        assert_eq!(objects(&stage.engine), 0);
        let reports = stage.all.check().await.expect("can be looked at");
        let blocks: u64 = reports.iter().map(|(_, report)| report.blocks).sum();
        assert_eq!(blocks, 2, "those of the file that stays");
        // Numbers are the same as those of the first one's files; handles name the filesystem, too.
        let anew = Client::root(&again);
        let file_again = anew.file(anew.top(), "file").await.expect("makes");
        anew.write(file_again, 0, b"other").await.expect("writes");
        for node in [file, large] {
            assert_gone(&fs, node, root.top()).await;
        }
        assert_eq!(other.read(stays, 0, 1).await.expect("reads"), [5]);
        let opened = stage.all.open_filesystem(id).await.map(drop);
        assert_eq!(opened, Err(FileError::NotFound));
    });
}

/// Clients go on all the while, and find that nothing is there.
#[test]
fn clients_of_a_deleted_filesystem_are_told_so() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (world, disk) = (World::new(seed), new_disk(96));
        let platform = world.platform(0);
        world.block_on(0, async move {
            let promote_bytes = [0, SMALL, 1 << 20][seed as usize % 3];
            let (engine, all, fs) = begin_with(&platform, &disk, promote_bytes).await;
            let history = History::default();
            let plan = Plan {
                clients: 3,
                steps: 1000,
                ..Plan::default()
            };
            history.start(&platform, &fs, &plan, &mut rng);
            platform.sleep_ns(rng.below(5_000_000)).await;
            all.delete(fs.id()).await.expect("deletes");
            let root = Client::root(&fs);
            let looked = fs.attributes(root.top()).await;
            assert_eq!(looked.map(drop), Err(FileError::Stale));
            platform.sleep_ns(50_000_000).await;
            cleared(&platform, &all).await;
            assert_eq!(objects(&engine), 0, "seed {seed}");
            check(&all).await;
            assert_eq!(all.check().await, Ok(Vec::new()));
            all.stop().await;
            engine.stop().await.expect("stops");
        });
        let _ = world.crash();
    }
}

fn config() -> DiskConfig {
    let mut config = DiskConfig::new(96 * MIB);
    config.latency = Latency {
        read_ns: 1_000..=20_000,
        write_ns: 1_000..=50_000,
        flush_ns: 10_000..=200_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    config
}

/// What a power loss finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    There,
    /// Something was still to be given back.
    Deleted,
    Cleared,
}

async fn begun_again(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> (Engine<SimPlatform>, Filesystems<SimPlatform>) {
    let engine = open_engine(platform, disk).await;
    let all = open_all(platform, &engine, 20).await;
    all.go_on_deleting();
    (engine, all)
}

/// The power fails some time after a deletion was begun, and once more while the rest is given back.
fn lose_power(seed: u64, disk: &SimDisk, after_ns: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let answered = std::rc::Rc::new(std::cell::Cell::new(false));
    let told = answered.clone();
    world.spawn(0, async move {
        let (_, all) = begun_again(&platform, &on).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        platform.sleep_ns(50_000_000).await;
        all.delete(fs.id()).await.expect("deletes");
        told.set(true);
    });
    world.run_for(50_000_000 + after_ns);
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(seed + 1);
    let (platform, on) = (world.platform(0), disk.clone());
    let outcome = world.block_on(0, async move {
        let (engine, all) = begun_again(&platform, &on).await;
        let deleted = all.deleted().await.expect("looks");
        // None is cleared meanwhile, and none of this may disturb the other.
        check(&all).await;
        let found = all.open_by_name(NAME).await;
        let outcome = match &found {
            Ok(_) => Outcome::There,
            Err(_) if deleted.is_empty() => Outcome::Cleared,
            Err(_) => Outcome::Deleted,
        };
        if let Ok(fs) = found {
            assert!(!answered.get(), "it was said to be deleted");
            assert!(deleted.is_empty());
            walk(&fs, flagstone_fs::SnapshotNumber::LIVE).await;
            all.delete(fs.id()).await.expect("deletes");
        }
        drop(engine);
        outcome
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(seed + 2);
    let (platform, on) = (world.platform(0), disk.clone());
    world.spawn(0, async move {
        let _ = begun_again(&platform, &on).await;
        platform.sleep_ns(1_000_000_000).await;
    });
    world.run_for(rng.below(60_000_000));
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(seed + 3);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let (engine, all) = begun_again(&platform, &on).await;
        let gone = all.open_by_name(NAME).await.map(drop);
        assert_eq!(gone, Err(FileError::NotFound));
        cleared(&platform, &all).await;
        assert_eq!(objects(&engine), 0);
        let reports = all.check().await.expect("can be looked at");
        let blocks: Vec<u64> = reports.iter().map(|(_, report)| report.blocks).collect();
        assert_eq!(blocks, [2], "those of the other filesystem");
        check(&all).await;
        let again = all.create(NAME, 0).await.expect("makes");
        let root = Client::root(&again);
        assert_eq!(root.names(root.top()).await, [""; 0]);
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    outcome
}

#[test]
fn a_power_loss_leaves_a_filesystem_or_nothing_of_it() {
    let disk = SimDisk::new(config());
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let (engine, all, fs) = begin(&platform, &on).await;
        fill(&fs).await;
        let stays = all.create("stays", 0).await.expect("makes");
        let root = Client::root(&stays);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &[5; 9000]).await.expect("writes");
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    let mut outcomes = Vec::new();
    for n in 0..60 {
        // Close at first, when the transaction is under way.
        let after_ns = n * n * 12_000;
        let copy = disk.fork();
        outcomes.push(lose_power(n * 10, &copy, after_ns));
    }
    println!("{outcomes:?}");
    for outcome in [Outcome::There, Outcome::Deleted, Outcome::Cleared] {
        assert!(outcomes.contains(&outcome), "{outcome:?}: {outcomes:?}");
    }
}
