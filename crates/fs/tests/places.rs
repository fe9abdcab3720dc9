//! Filesystems whose large files lie on several devices: larger than one of them, whole without some of them, and never
//! mistaking another's device for one of theirs.

use crate::conformance;
use crate::support;

use std::cell::Cell;

use flagstone_device::engine::Engine;
use flagstone_fs::{
    Caller, Cookie, FileError, FileKind, Files, Filesystems, Node, SnapshotNumber, Stability,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{FaultConfig, Rng, SimDisk, SimPlatform, World};

use conformance::{Client, mode};
use support::stage::objects;
use support::*;

type Engines = Vec<Engine<SimPlatform>>;
type All = Filesystems<SimPlatform>;

const LEN: usize = 1 << 20;

fn disks<const N: usize>(mib: [u64; N]) -> Vec<SimDisk> {
    mib.into_iter().map(new_disk).collect()
}

async fn open(platform: &SimPlatform, disks: &[SimDisk]) -> (Engines, All) {
    let engines = open_engines(platform, disks).await;
    let all = open_all_over(platform, &engines, 0, 32 << 10).await;
    (engines, all)
}

async fn stop((engines, all): (Engines, All)) {
    all.stop().await;
    stop_engines(&engines).await;
}

thread_local! {
    static WORLDS: Cell<u64> = const { Cell::new(1) };
}

/// What is drawn at random in one, such as ids, is not drawn in another.
fn another_world() -> World {
    let seed = WORLDS.get();
    WORLDS.set(seed + 1);
    World::new(seed)
}

/// One life on the disks, which ends in order.
fn live(disks: &[SimDisk], life: impl AsyncFnOnce(SimPlatform, Vec<SimDisk>) + 'static) {
    let world = another_world();
    let (platform, on) = (world.platform(0), disks.to_vec());
    world.block_on(0, async move { life(platform, on).await });
    let _ = world.crash();
}

fn content(nth: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 512 + nth * 7 + 1) as u8).collect()
}

/// Makes files of a MiB, one after the other, until there are so many or no room. Returns how many there are.
async fn make(root: &Client<TestFs>, count: usize) -> usize {
    make_more(root, 0, count).await
}

/// The same if there are some already.
async fn make_more(root: &Client<TestFs>, first: usize, count: usize) -> usize {
    for nth in first..count {
        let file = root.file(root.top(), format!("{nth}")).await;
        let written = match file {
            Ok(file) => root.write(file, 0, &content(nth)).await.map(drop),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {}
            Err(FileError::NoSpace) => return nth,
            Err(error) => panic!("{error}"),
        }
    }
    count
}

async fn is_whole(root: &Client<TestFs>, nth: usize) -> Result<(), FileError> {
    let file = root.lookup(root.top(), format!("{nth}")).await?;
    let found = root.read(file, 0, LEN as u32 + 1).await?;
    assert!(found == content(nth), "file {nth}");
    Ok(())
}

async fn check(all: &All) {
    for (info, report) in all.check().await.expect("can be looked at") {
        assert_eq!(report.problems, [""; 0], "{info:?}");
    }
}

#[test]
fn a_filesystem_is_larger_than_any_of_its_devices() {
    let disks = disks([64, 64, 128]);
    live(&disks, async |platform, disks| {
        let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
        let root = Client::root(&fs);
        let space = fs.space().await.expect("knows");
        let total: u64 = engines.iter().map(Engine::capacity_bytes).sum();
        assert_eq!(space.total_bytes, total);
        assert!(space.free_bytes > 200 * MIB, "{space:?}");
        assert_eq!(make(&root, 170).await, 170);
        let left = fs.space().await.expect("knows").free_bytes;
        assert!(left <= space.free_bytes - 170 * MIB, "{left}");
        let each: Vec<usize> = engines.iter().map(objects).collect();
        assert_eq!(each.iter().sum::<usize>(), 170);
        // In proportion to what is free, more or less.
        assert!(each[0] > 20 && each[1] > 20 && each[2] > 60, "{each:?}");
        check(&all).await;
        stop((engines, all)).await;
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        for nth in 0..170 {
            is_whole(&root, nth).await.expect("reads");
        }
        // Until the last of them is full.
        let before = fs.space().await.expect("knows").free_bytes;
        for nth in 0..170 {
            root.remove(root.top(), format!("{nth}"))
                .await
                .expect("removes");
        }
        platform.sleep_ns(20_000_000_000).await;
        let after = fs.space().await.expect("knows").free_bytes;
        assert!(after >= before + 169 * MIB, "{before} {after}");
        assert_eq!(make(&root, 210).await, 210);
        // As long as others have room, the device with the names keeps some.
        let home = engines[0].free_bytes();
        assert!(home >= 3 * MIB, "{home}");
        let made = make_more(&root, 210, 1000).await;
        assert!(engines[0].free_bytes() < 3 * MIB);
        assert!((190..256).contains(&made), "{made}");
        for nth in 0..made {
            is_whole(&root, nth).await.expect("reads");
        }
        // What is full can be used all the same.
        root.remove(root.top(), "0").await.expect("removes");
        platform.sleep_ns(20_000_000_000).await;
        check(&all).await;
        stop((engines, all)).await;
    });
}

/// What was answered before a snapshot is in it, and what an inode says of a dvol is true, also when nobody has asked for anything to
/// be durable: of one device's writes a power loss takes none that another's journal builds on.
#[test]
fn what_is_durable_of_the_tree_is_durable_of_other_devices() {
    for seed in 0..40 {
        // What comes behind the snapshot would make durable what was before it.
        let goes_on = seed % 2 == 1;
        let disks = disks([64, 64]);
        live(&disks, async |platform, disks| {
            let (engines, all, fs) = begin_over(&platform, &disks, 0, 32 << 10).await;
            let root = Client::root(&fs);
            // Some on either.
            for name in 0..6 {
                let file = root.file(root.top(), format!("{name}")).await;
                let file = file.expect("makes");
                root.write(file, 0, &[1; 4096]).await.expect("writes");
            }
            assert!(engines.iter().all(|engine| objects(engine) > 0));
            stop((engines, all)).await;
        });
        let world = another_world();
        let (platform, on) = (world.platform(0), disks.clone());
        world.block_on(0, async move {
            let (_engines, all) = open(&platform, &on).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let root = Client::root(&fs);
            let write = async |name: u64, at: u64, byte: u8| {
                let file = root.lookup(root.top(), format!("{name}")).await;
                let file = file.expect("is there");
                let data = IoBuf::copy_of(&[byte; 4096]);
                let by = Caller::default();
                let written = fs.write(&by, file, at, data, Stability::Unstable).await;
                written.expect("writes");
                file
            };
            for name in 0..6 {
                write(name, 4096, 2).await;
            }
            fs.take_snapshot("kept").await.expect("takes one");
            for name in (0..6).filter(|_| goes_on) {
                let file = write(name, 8192, 3).await;
                root.set(file, mode(0o604)).await.expect("sets");
            }
        });
        let mut rng = world.crash();
        for disk in &disks {
            disk.power_loss(&mut rng);
        }
        live(&disks, async move |platform, disks| {
            let (engines, all) = open(&platform, &disks).await;
            check(&all).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let root = Client::root(&fs);
            let at = fs.snapshots()[0].number;
            for name in 0..6 {
                let file = root.lookup(root.top(), format!("{name}")).await;
                let file = file.expect("is there");
                let expected = [[1; 4096], [2; 4096], [3; 4096]].concat();
                let found = root.read(file, 0, 20_000).await.expect("reads");
                let kept = root.read(Node { at, ..file }, 0, 20_000).await;
                let kept = kept.expect("reads");
                assert!(
                    kept == expected[..8192],
                    "seed {seed}, file {name}: {}",
                    kept.len()
                );
                if !goes_on {
                    assert_eq!(found, kept);
                    continue;
                }
                assert!(
                    found == expected,
                    "seed {seed}, file {name}: {}",
                    found.len()
                );
                assert_eq!(root.get(file).await.mode, 0o604);
            }
            stop((engines, all)).await;
        });
    }
}

async fn is_device_error<T>(work: impl Future<Output = Result<T, FileError>>) -> bool {
    match work.await {
        Ok(_) => false,
        Err(FileError::Device) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn without_a_device_the_rest_is_there() {
    let disks = disks([128, 128]);
    live(&disks, async |platform, disks| {
        let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
        let root = Client::root(&fs);
        make(&root, 20).await;
        root.directory(root.top(), "below").await.expect("makes");
        fs.take_snapshot("monday").await.expect("takes one");
        assert_eq!(fs.describe().problem, None);
        // One that is deleted while a device is away.
        let other = all.create("doomed", 0).await.expect("makes");
        let by = Client::root(&other);
        for nth in 0..20 {
            let file = by.file(by.top(), format!("{nth}")).await.expect("makes");
            by.write(file, 2 << 20, &[1; 4096]).await.expect("writes");
        }
        stop((engines, all)).await;
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks[..1]).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        let problem = fs.describe().problem.expect("says so");
        assert!(problem.contains("which is not here"), "{problem}");
        let (mut here, mut away) = (Vec::new(), Vec::new());
        for nth in 0..20 {
            match is_device_error(is_whole(&root, nth)).await {
                false => here.push(nth),
                true => away.push(nth),
            }
        }
        assert!(here.len() > 3 && away.len() > 3, "{here:?} {away:?}");
        // All names are there, and attributes of what is.
        let caller = Caller::default();
        let listed = fs.list(&caller, root.top(), Cookie(0), 100, true).await;
        let entries = listed.expect("lists").entries;
        let with = entries.iter().filter(|entry| entry.attributes.is_some());
        assert_eq!((entries.len(), with.count()), (23, 3 + here.len()));
        for nth in &away {
            let name = format!("{nth}");
            let entry = entries.iter().find(|entry| entry.name == name.as_bytes());
            let node = entry.expect("is listed").node;
            assert!(is_device_error(fs.attributes(node)).await);
            let data = IoBuf::copy_of(&[1; 10]);
            let write = fs.write(&caller, node, 0, data, Stability::Stable);
            assert!(is_device_error(write).await);
            let at = fs.snapshots()[0].number;
            assert!(is_device_error(fs.read(&caller, Node { at, ..node }, 0, 10)).await);
            assert!(is_device_error(fs.commit(&caller, node)).await);
        }
        // What is there no more can be given up, and makes room for another one of its name.
        let gone = format!("{}", away[0]);
        root.remove(root.top(), &gone).await.expect("removes");
        let again = root.file(root.top(), &gone).await.expect("makes");
        root.write(again, 0, b"again").await.expect("writes");
        // New ones go where there is room.
        let file = root.file(root.top(), "new").await.expect("makes");
        root.write(file, 0, &content(77)).await.expect("writes");
        let reports = all.check().await.expect("can be looked at");
        let problems: Vec<String> = reports.into_iter().flat_map(|(_, r)| r.problems).collect();
        let device = disks.len();
        assert_eq!(device, 2);
        let says = |what: &str| problems.iter().filter(|found| found.contains(what)).count();
        assert_eq!(says("is not here: give all devices"), 1, "{problems:?}");
        assert!(says("is not there") >= away.len() - 1, "{problems:?}");
        let doomed = all.open_by_name("doomed").await.expect("is there").id();
        all.delete(doomed).await.expect("deletes");
        platform.sleep_ns(10_000_000_000).await;
        // What it has elsewhere is remembered.
        assert_eq!(all.deleted().await.expect("knows"), [doomed]);
        stop((engines, all)).await;
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        all.go_on_deleting();
        let fs = all.open_by_name(NAME).await.expect("is there");
        assert_eq!(fs.describe().problem, None);
        let root = Client::root(&fs);
        let mut others = 0;
        for nth in 0..20 {
            let file = root.lookup(root.top(), format!("{nth}")).await;
            let file = file.expect("is there");
            let at = fs.snapshots()[0].number;
            let kept = root.read(Node { at, ..file }, 0, LEN as u32).await;
            match root.get(file).await.size_bytes {
                5 => others += 1,
                _ => assert_eq!(kept, Ok(content(nth))),
            }
        }
        assert_eq!(others, 1, "one was made anew");
        platform.sleep_ns(10_000_000_000).await;
        assert_eq!(all.deleted().await.expect("knows"), []);
        check(&all).await;
        let left: usize = engines.iter().map(objects).sum();
        assert_eq!(left, 21, "what was deleted is given back");
        let file = root.lookup(root.top(), "new").await.expect("is there");
        assert_eq!(root.get(file).await.kind, FileKind::Regular);
        stop((engines, all)).await;
    });
}

/// Filesystems have the same numbers on every node.
#[test]
fn files_of_another_nodes_are_let_be() {
    let (ours, theirs) = (disks([64]), disks([64, 64]));
    for (disks, count) in [(&ours, 3), (&theirs, 30)] {
        live(disks, async move |platform, disks| {
            let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
            assert_eq!(make(&Client::root(&fs), count).await, count);
            stop((engines, all)).await;
        });
    }
    // Their second device comes to us, and goes back.
    let mixed = [ours[0].clone(), theirs[1].clone()];
    live(&mixed, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        assert!(Filesystems::are_on(&engines[0]) && !Filesystems::lie_on(&engines[0]));
        assert!(!Filesystems::are_on(&engines[1]) && Filesystems::lie_on(&engines[1]));
        let theirs = objects(&engines[1]);
        assert!(theirs > 5, "{theirs}");
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        assert_eq!(fs.describe().used_bytes, 3 * MIB);
        for nth in 10..30 {
            let file = root.file(root.top(), format!("{nth}")).await;
            let file = file.expect("makes");
            root.write(file, 0, &[5; 8192]).await.expect("writes");
        }
        assert!(
            objects(&engines[1]) > theirs,
            "some of ours are there as well"
        );
        check(&all).await;
        all.delete(fs.id()).await.expect("deletes");
        platform.sleep_ns(10_000_000_000).await;
        assert_eq!(all.deleted().await.expect("knows"), []);
        check(&all).await;
        assert_eq!(objects(&engines[1]), theirs, "theirs are let be");
        stop((engines, all)).await;
    });
    live(&theirs, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        for nth in 0..30 {
            is_whole(&root, nth).await.expect("reads");
        }
        check(&all).await;
        stop((engines, all)).await;
    });
}

/// A copy shares what its source has, wherever that is; and a filesystem goes back with files on all devices.
#[test]
fn copies_and_ways_back_wherever_files_are() {
    let disks = disks([128, 128]);
    live(&disks, async |platform, disks| {
        let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
        let root = Client::root(&fs);
        make(&root, 20).await;
        let at = fs.take_snapshot("then").await.expect("takes one");
        let used = fs.describe().used_bytes;
        let before: Vec<usize> = engines.iter().map(objects).collect();
        assert!(before.iter().all(|count| *count > 3), "{before:?}");
        for nth in 0..20 {
            let file = root.lookup(root.top(), format!("{nth}")).await;
            let file = file.expect("is there");
            let at = [SnapshotNumber::LIVE, at][nth % 2];
            let name = format!("copy {nth}");
            let by = Caller::default();
            let cloned = fs.clone_file(&by, Node { at, ..file }, root.top(), name.as_bytes());
            cloned.await.expect("copies");
            root.write(file, 0, &[0xee; 4096]).await.expect("writes");
        }
        let after: Vec<usize> = engines.iter().map(objects).collect();
        let twice: Vec<usize> = before.iter().map(|count| 2 * count).collect();
        assert_eq!(after, twice, "each beside its source");
        assert!(fs.describe().used_bytes < used + 2 * MIB);
        fs.roll_back("then").await.expect("begins");
        support::course::rolled_back(&platform, &fs).await;
        for nth in 0..20 {
            is_whole(&root, nth).await.expect("reads");
        }
        assert_eq!(root.names(root.top()).await.len(), 20);
        platform.sleep_ns(10_000_000_000).await;
        check(&all).await;
        let left: Vec<usize> = engines.iter().map(objects).collect();
        assert_eq!(left, before, "copies are gone");
        stop((engines, all)).await;
    });
}

/// Power is lost while files become dvols: what is nobody's goes, on whatever device.
#[test]
fn nothing_is_left_of_files_that_were_being_made() {
    let mut rng = Rng::new(7);
    let mut crashes_with_strays = 0;
    for seed in 0..30 {
        let disks = disks([64, 64]);
        live(&disks, async |platform, disks| {
            let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
            let root = Client::root(&fs);
            for who in 0..4 {
                let made = root.directory(root.top(), format!("{who}")).await;
                made.expect("makes");
            }
            stop((engines, all)).await;
        });
        let world = another_world();
        let (platform, on) = (world.platform(0), disks.clone());
        world.spawn(0, async move {
            let (_engines, all) = open(&platform, &on).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            for who in 0..4 {
                let root = Client::root(&fs);
                let own = root.lookup(root.top(), format!("{who}")).await;
                let own = own.expect("is there");
                platform.spawn(async move {
                    for nth in 0..20 {
                        let file = root.file(own, format!("{nth}")).await.expect("makes");
                        root.write(file, 0, &[1; 20_000]).await.expect("writes");
                    }
                });
            }
        });
        world.run_for(3_000_000 + rng.below(30_000_000));
        let mut crash = world.crash();
        for disk in &disks {
            disk.power_loss(&mut crash);
        }
        let world = another_world();
        let (platform, on) = (world.platform(0), disks.clone());
        let had_strays = world.block_on(0, async move {
            let (engines, all) = open(&platform, &on).await;
            let before: usize = engines.iter().map(objects).sum();
            let fs = all.open_by_name(NAME).await.expect("is there");
            check(&all).await;
            let root = Client::root(&fs);
            let (mut large, mut all_files) = (0, 0);
            for who in 0..4 {
                let own = root.lookup(root.top(), format!("{who}")).await;
                let own = own.expect("is there");
                for name in root.names(own).await {
                    let file = root.lookup(own, &name).await.expect("is there");
                    let len = root.get(file).await.size_bytes;
                    assert!(len == 0 || len == 20_000, "{len}");
                    large += usize::from(len > 0);
                    all_files += 1;
                }
            }
            let after: usize = engines.iter().map(objects).sum();
            // One may be a dvol before anything is written to it.
            assert!((large..=all_files).contains(&after), "seed {seed}");
            stop((engines, all)).await;
            before > after
        });
        crashes_with_strays += usize::from(had_strays);
    }
    assert!(crashes_with_strays > 2, "{crashes_with_strays}");
}

/// Of what isn't there nobody knows whether it was written to since the snapshot.
#[test]
fn nothing_goes_back_while_a_device_is_missing() {
    let disks = disks([128, 128]);
    live(&disks, async |platform, disks| {
        let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
        let root = Client::root(&fs);
        make(&root, 12).await;
        fs.take_snapshot("then").await.expect("takes one");
        for nth in 0..12 {
            let file = root.lookup(root.top(), format!("{nth}")).await;
            let file = file.expect("is there");
            root.write(file, 0, &[9; 4096]).await.expect("writes");
        }
        root.file(root.top(), "later").await.expect("makes");
        stop((engines, all)).await;
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks[..1]).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        assert_eq!(fs.describe().not_rolled_back, None);
        fs.roll_back("then").await.expect("begins");
        support::course::rolled_back(&platform, &fs).await;
        let said = fs.describe().not_rolled_back.expect("says so");
        assert!(said.contains("it is as it was before"), "{said}");
        let root = Client::root(&fs);
        root.lookup(root.top(), "later").await.expect("is there");
        stop((engines, all)).await;
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        for nth in 0..12 {
            let file = root.lookup(root.top(), format!("{nth}")).await;
            let file = file.expect("is there");
            let expected = [vec![9; 4096], content(nth)[4096..].to_vec()].concat();
            assert!(
                root.read(file, 0, LEN as u32).await == Ok(expected),
                "file {nth}"
            );
        }
        fs.roll_back("then").await.expect("begins");
        support::course::rolled_back(&platform, &fs).await;
        assert_eq!(fs.describe().not_rolled_back, None);
        for nth in 0..12 {
            is_whole(&root, nth).await.expect("reads");
        }
        check(&all).await;
        stop((engines, all)).await;
    });
}

/// A flush that fails fences a device: what is on it is lost to its clients, and nothing else.
#[test]
fn a_device_that_takes_no_more_holds_up_nothing_on_others() {
    let disks = disks([128, 128]);
    live(&disks, async |platform, disks| {
        let (engines, all, fs) = begin_over(&platform, &disks, SMALL, 32 << 10).await;
        let root = Client::root(&fs);
        make(&root, 20).await;
        let before = [objects(&engines[0]), objects(&engines[1])];
        assert!(before.iter().all(|count| *count > 3), "{before:?}");
        disks[1].set_faults(FaultConfig {
            flush_error: 1.0,
            ..FaultConfig::default()
        });
        let (mut here, mut away) = (Vec::new(), Vec::new());
        for nth in 0..20 {
            let file = root.lookup(root.top(), format!("{nth}")).await;
            let file = file.expect("is there");
            match is_device_error(root.write(file, 0, &content(nth)[..4096])).await {
                false => here.push(nth),
                true => away.push(nth),
            }
        }
        assert_eq!([here.len(), away.len()], before);
        assert!(engines[0].check_running().is_ok() && engines[1].check_running().is_err());
        // The background gives back what it can, whatever else it can't.
        for nth in [away[0], here[0], here[1]] {
            root.remove(root.top(), format!("{nth}"))
                .await
                .expect("removes");
        }
        platform.sleep_ns(60_000_000_000).await;
        assert_eq!(objects(&engines[0]), before[0] - 2);
        for nth in &here[2..] {
            is_whole(&root, *nth).await.expect("reads");
        }
        all.stop().await;
        let _ = engines[1].stop().await;
        engines[0].stop().await.expect("stops");
        disks[1].set_faults(FaultConfig::default());
    });
    live(&disks, async |platform, disks| {
        let (engines, all) = open(&platform, &disks).await;
        all.open_by_name(NAME).await.expect("is there");
        platform.sleep_ns(10_000_000_000).await;
        check(&all).await;
        let left: usize = engines.iter().map(objects).sum();
        assert_eq!(left, 17);
        stop((engines, all)).await;
    });
}
