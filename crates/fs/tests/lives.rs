//! Random histories of clients with power losses: what is there afterwards is what every answered call
//! made, in some order that time allows, and the filesystem is whole. And snapshots, taken while clients work.

use crate::conformance;
use crate::support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::memory::MemoryFiles;
use flagstone_fs::{Caller, Files, PROMOTE_BYTES, SnapshotNumber, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{FaultConfig, Rng, SimDisk, SimPlatform, World};

use conformance::Client;
use conformance::histories::{History, Plan};
use conformance::judge::{Verdict, begin as begin_model, judge};
use conformance::matching::Matching;
use conformance::trees::{Tree, walk};
use support::course::config;
use support::*;

/// A few hundred calls, and a few dozen.
const LONG_NS: u64 = 40_000_000;
const SHORT_NS: u64 = 8_000_000;

/// The whole tree, from a filesystem that was opened after an end and proved to be whole.
fn looked_at(seed: u64, disk: &SimDisk) -> Tree {
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let tree = world.block_on(0, async move {
        let engine = open_engine(&platform, &on).await;
        let all = open_all(&platform, &engine, 0).await;
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
        let fs = all.open_by_name(NAME).await.expect("is there");
        let tree = walk(&fs, SnapshotNumber::LIVE).await;
        all.stop().await;
        engine.stop().await.expect("stops");
        tree
    });
    let _ = world.crash();
    tree
}

type Model = MemoryFiles<SimPlatform>;

fn judged(
    world: &World,
    (model, matching): (&Model, &Matching),
    history: &History,
    tree: Tree,
) -> Result<Verdict<SimPlatform>, String> {
    let platform = world.platform(0);
    let (model, matching) = (model.fork(&platform), matching.clone());
    let events = history.take_events();
    world.block_on(0, async move {
        judge(&platform, &model, &matching, &events, &tree.into()).await
    })
}

/// What happened in some lives.
#[derive(Clone, Copy, Default)]
struct Sum {
    calls: usize,
    /// Groups of commits that were lost, and such as were in the device's journal alone.
    lost: u64,
    journaled: u64,
}

impl Sum {
    fn add(self, other: Sum) -> Sum {
        Sum {
            calls: self.calls + other.calls,
            lost: self.lost + other.lost,
            journaled: self.journaled + other.journaled,
        }
    }
}

/// Some lives of a filesystem, each ended by a power loss in the middle of everything, `longest_ns` after its
/// begin at the latest. Gives the number of calls.
fn run(
    seed: u64,
    clients: u64,
    longest_ns: u64,
    promote_bytes: u64,
    faults: &FaultConfig,
) -> usize {
    let size = (longest_ns, promote_bytes);
    run_journaling(seed, clients, size, faults, 32 << 10).calls
}

/// The same with frames of up to so many bytes in the device's journal.
fn run_journaling(
    seed: u64,
    clients: u64,
    (longest_ns, promote_bytes): (u64, u64),
    faults: &FaultConfig,
    journaled_bytes: usize,
) -> Sum {
    let mut rng = Rng::new(seed);
    let plan = Plan {
        clients,
        steps: 400,
        stable_only: true,
        lists_attributes: false,
        ..Plan::default()
    };
    let disk = SimDisk::new(config());
    let first = World::new(seed);
    let (platform, on) = (first.platform(0), disk.clone());
    let (mut model, mut matching) = first.block_on(0, async move {
        let (engine, all, fs) = begin_with(&platform, &on, promote_bytes).await;
        let begun = begin_model(&platform, &fs);
        all.stop().await;
        engine.stop().await.expect("stops");
        begun
    });
    let _ = first.crash();
    let history = History::default();
    let mut sum = Sum::default();
    for life in 0..4 {
        let world = World::new(seed * 100 + life);
        let (platform, on) = (world.platform(0), disk.clone());
        let (plan, faults, shared) = (plan.clone(), faults.clone(), history.clone());
        let mut seeds = Rng::new(rng.next_u64());
        let opened = Rc::new(RefCell::new(None));
        let kept = opened.clone();
        // The clock goes on, from the beginning on: told times that lie ahead of it lead the judge astray.
        let begin_ns = (life + 1) * 1_000_000_000;
        world.spawn(0, async move {
            platform.sleep_ns(begin_ns).await;
            let engine = open_engine(&platform, &on).await;
            let all = open_all_with(&platform, &engine, 50, journaled_bytes).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            *kept.borrow_mut() = Some(all);
            on.set_faults(faults);
            shared.start(&platform, &fs, &plan, &mut seeds);
        });
        world.run_for(begin_ns + rng.below(longest_ns));
        let counters = opened.take().map(|all| all.store_counters());
        let counters = counters.unwrap_or_default();
        sum.lost += counters.groups_lost;
        sum.journaled += counters.groups_journaled;
        let mut crash = world.crash();
        disk.power_loss(&mut crash);
        disk.set_faults(FaultConfig::default());
        let tree = looked_at(seed * 100 + life + 50, &disk);
        sum.calls += history.len();
        let after = World::new(seed);
        let verdict = judged(&after, (&model, &matching), &history, tree);
        let verdict = verdict.unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        (model, matching) = (verdict.model, verdict.matching);
    }
    sum
}

#[test]
fn power_losses_lose_nothing_that_was_answered() {
    let good = FaultConfig::default();
    let calls: usize = (0..20)
        .map(|seed| run(seed, 1 + seed % 4, LONG_NS, PROMOTE_BYTES, &good))
        .sum();
    println!("{calls} calls");
    assert!(calls > 10_000);
}

/// Short lives, so that power is lost early in a filesystem's life as often as late: two tests, side by side.
fn short_lives(seeds: std::ops::Range<u64>, promote_bytes: u64) -> usize {
    let good = FaultConfig::default();
    let calls: usize = seeds
        .map(|seed| run(seed, 1 + seed % 4, SHORT_NS, promote_bytes, &good))
        .sum();
    println!("{calls} calls");
    calls
}

#[test]
fn short_lives_lose_nothing_that_was_answered() {
    assert!(short_lives(1_000..1_500, PROMOTE_BYTES) > 50_000);
}

#[test]
fn other_short_lives_lose_nothing_that_was_answered() {
    assert!(short_lives(1_500..2_000, PROMOTE_BYTES) > 50_000);
}

/// Reads, writes and flushes fail now and then, so that groups of commits are given up.
fn failing() -> FaultConfig {
    FaultConfig {
        write_error: 0.08,
        ..FaultConfig::failing()
    }
}

/// Files of a few pages become dvols, and all in between.
#[test]
fn lives_of_large_files_lose_nothing_that_was_answered() {
    assert!(short_lives(2_000..2_150, 0) > 10_000);
    assert!(short_lives(2_150..2_300, SMALL) > 10_000);
    let good = FaultConfig::default();
    let long = |seed: u64| run(seed, 1 + seed % 4, LONG_NS, SMALL, &good);
    assert!((20..30).map(long).sum::<usize>() > 4_000);
}

/// Half of them, with one to four clients, put no frame into the device's journal, so that a group is lost now and then
/// and life goes on: in the journal what can't be written fences the device.
fn failing_lives(seeds: std::ops::Range<u64>, promote_bytes: u64) {
    let of_seed = |seed: u64| {
        let journaled_bytes = [0, 32 << 10][seed as usize / 4 % 2];
        let size = (LONG_NS, promote_bytes);
        run_journaling(seed, 1 + seed % 4, size, &failing(), journaled_bytes)
    };
    let Sum {
        calls,
        lost,
        journaled,
    } = seeds.map(of_seed).fold(Sum::default(), Sum::add);
    println!("{calls} calls, {lost} groups lost, {journaled} in the journal alone");
    assert!(calls > 1_000);
    assert!(lost > 5, "too few groups lost: {lost}");
    assert!(journaled > 600, "too few in the journal alone: {journaled}");
}

#[test]
fn failing_disks_lose_nothing_that_was_answered() {
    failing_lives(100..160, PROMOTE_BYTES);
}

#[test]
fn failing_disks_lose_nothing_of_large_files_that_was_answered() {
    failing_lives(130..190, SMALL);
}

/// Those that the judge once could not judge: after a fence, with clocks that lay behind told times, with writes
/// that had failed and whose time others were told.
#[test]
fn lives_that_were_misjudged() {
    for seed in [5_083, 5_085, 5_144] {
        run(seed, 1 + seed % 4, LONG_NS, PROMOTE_BYTES, &failing());
    }
    for seed in [105_074, 105_075, 105_141, 105_477, 105_509] {
        run(seed, 1 + seed % 4, LONG_NS, SMALL, &failing());
    }
    for seed in [205_013, 205_077, 205_135, 205_151, 205_187] {
        run(seed, 1 + seed % 4, LONG_NS, 0, &failing());
    }
    let good = FaultConfig::default();
    run(105_151, 4, SHORT_NS, SMALL, &good);
    run(205_151, 4, SHORT_NS, 0, &good);
}

/// Waits until nothing is left to be given back.
async fn settled(platform: &SimPlatform, fs: &TestFs) -> u64 {
    platform.sleep_ns(200_000_000).await;
    let report = fs.check().await.expect("can be looked at");
    assert_eq!(report.problems, [""; 0]);
    report.kept
}

/// What there is of a filesystem with some snapshots, each with the tree that it must have.
async fn check_snapshots(fs: &TestFs, expected: BTreeMap<String, Tree>) {
    let infos = fs.snapshots();
    let names: Vec<&String> = infos.iter().map(|info| &info.name).collect();
    assert_eq!(names, expected.keys().collect::<Vec<_>>());
    for info in &infos {
        let tree = walk(fs, info.number).await;
        assert!(tree == expected[&info.name], "{} has changed", info.name);
    }
}

/// Clients change things, snapshots are taken and deleted in any order, and now and then the node starts anew.
fn run_snapshots(seed: u64, promote_bytes: u64) {
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
    let expected = Rc::new(RefCell::new(BTreeMap::new()));
    let history = History::default();
    for life in 0..3 {
        let world = World::new(seed * 100 + life);
        let (platform, on) = (world.platform(0), disk.clone());
        let (shared, expected) = (history.clone(), expected.clone());
        let mut rng = Rng::new(rng.next_u64());
        world.block_on(0, async move {
            let engine = open_engine(&platform, &on).await;
            let all = open_all(&platform, &engine, 50).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let now = expected.borrow().clone();
            check_snapshots(&fs, now).await;
            for round in 0..4 {
                let plan = Plan {
                    clients: 2,
                    steps: 40,
                    ..Plan::default()
                };
                shared.start(&platform, &fs, &plan, &mut rng);
                platform.sleep_ns(rng.below(3_000_000)).await;
                // In the middle of everything: the tree is whatever it is then, for ever.
                let name = format!("{life}-{round}");
                let at = fs.take_snapshot(&name).await.expect("takes one");
                let tree = walk(&fs, at).await;
                expected.borrow_mut().insert(name, tree);
                platform.sleep_ns(20_000_000).await;
                let now = expected.borrow().clone();
                check_snapshots(&fs, now).await;
                while expected.borrow().len() > 3 {
                    let index = rng.index(expected.borrow().len());
                    let name = expected.borrow().keys().nth(index).cloned();
                    let name = name.expect("there are that many");
                    fs.delete_snapshot(&name).await.expect("deletes");
                    expected.borrow_mut().remove(&name);
                }
            }
            // Not until it is settled: what deleted snapshots kept goes on being given back by the next life.
            let report = fs.check().await.expect("can be looked at");
            assert_eq!(report.problems, [""; 0]);
            all.stop().await;
            engine.stop().await.expect("stops");
        });
        let _ = world.crash();
        let _ = history.take_events();
    }
    let world = World::new(seed * 100 + 99);
    let (platform, on) = (world.platform(0), disk.clone());
    let expected = expected.borrow().clone();
    world.block_on(0, async move {
        let engine = open_engine(&platform, &on).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        check_snapshots(&fs, expected.clone()).await;
        for name in expected.keys() {
            fs.delete_snapshot(name).await.expect("deletes");
        }
        let kept = settled(&platform, &fs).await;
        assert_eq!(kept, 0, "nothing is kept for nobody");
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
}

#[test]
fn snapshots_stay_as_they_were_and_give_back_what_they_kept() {
    (200..220).for_each(|seed| run_snapshots(seed, PROMOTE_BYTES));
}

#[test]
fn snapshots_of_large_files_stay_as_they_were_and_give_back_what_they_kept() {
    (220..230).for_each(|seed| run_snapshots(seed, SMALL));
    (230..240).for_each(|seed| run_snapshots(seed, 0));
}

/// A file of a hundred bytes; a write of many transactions over its end is under way when the power fails.
fn break_off(seed: u64, after_ns: u64, promote_bytes: u64) -> bool {
    const LEN: usize = 700 << 10;
    let disk = SimDisk::new(config());
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    world.spawn(0, async move {
        let (_, _, fs) = begin_with(&platform, &on, promote_bytes).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &[1; 100]).await.expect("writes");
        platform.sleep_ns(100_000_000).await;
        let _ = root.write(file, 50, &[2; LEN]).await;
    });
    world.run_for(after_ns);
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let world = World::new(seed + 1);
    let (platform, on) = (world.platform(0), disk.clone());
    let is_whole = world.block_on(0, async move {
        let engine = open_engine(&platform, &on).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        let file = root.lookup(root.top(), b"file").await.expect("is there");
        let size_bytes = root.get(file).await.size_bytes;
        let extend = conformance::size(1 << 20);
        root.set(file, extend).await.expect("extends");
        let bytes = root.read(file, 0, 1 << 20).await.expect("readable");
        assert_eq!(bytes[..50], [1; 50]);
        let is_whole = size_bytes > 100;
        match is_whole {
            true => assert!(bytes[50..50 + LEN].iter().all(|&byte| byte == 2)),
            false => assert!(bytes[100..].iter().all(|&byte| byte == 0)),
        }
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
        all.stop().await;
        engine.stop().await.expect("stops");
        is_whole
    });
    let _ = world.crash();
    is_whole
}

fn break_off_everywhere(promote_bytes: u64) {
    // The simulated clock when the write begins; it takes some milliseconds.
    let times = (0..60).map(|n| 101_000_000 + n * 200_000);
    let whole: Vec<bool> = times
        .enumerate()
        .map(|(n, at)| break_off(n as u64 * 2, at, promote_bytes))
        .collect();
    assert!(whole.contains(&true) && whole.contains(&false), "{whole:?}");
}

#[test]
fn a_long_write_that_broke_off_leaves_nothing_behind_the_end() {
    break_off_everywhere(PROMOTE_BYTES);
}

/// The file becomes a dvol with it.
#[test]
fn a_file_that_was_to_become_a_dvol_is_the_old_one_or_the_new() {
    break_off_everywhere(SMALL);
}

/// What is not one transaction's is given back behind it, without a restart.
#[test]
fn the_blocks_of_a_large_file_are_given_back() {
    let (world, disk) = (World::new(1), SimDisk::new(config()));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, all, fs) = begin(&platform, &disk).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &[1; 4 << 20]).await.expect("writes");
        let removed = root.remove(root.top(), "file").await;
        removed.expect("removes");
        platform.sleep_ns(1_000_000_000).await;
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!((report.blocks, report.problems), (0, vec![]), "{info:?}");
        }
        all.stop().await;
        engine.stop().await.expect("stops");
    });
}

/// A client writes, commits, and may forget what it wrote if both say the same verifier. Whether they did, and how many groups
/// were lost.
fn commit_on_a_failing_disk(seed: u64, promote_bytes: u64) -> (bool, u64) {
    let disk = SimDisk::new(config());
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    let faults = FaultConfig {
        write_error: 0.4,
        ..FaultConfig::default()
    };
    let (is_told, lost) = world.block_on(0, async move {
        let (_, all, fs) = begin_losing(&platform, &on, promote_bytes).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        if promote_bytes == 0 {
            root.write(file, 0, b"x").await.expect("writes");
        }
        on.set_faults(faults);
        let (caller, data) = (Caller::default(), IoBuf::copy_of(&[7; 5000]));
        let written = fs.write(&caller, file, 0, data, Stability::Unstable).await;
        let committed = fs.commit(&caller, file).await;
        let both = written.ok().zip(committed.ok());
        let is_told =
            both.is_some_and(|(written, committed)| written.verifier == committed.verifier);
        (is_told, all.store_counters().groups_lost)
    });
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    disk.set_faults(FaultConfig::default());
    let world = World::new(seed + 1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        let root = Client::root(&fs);
        let file = root.lookup(root.top(), b"file").await.expect("is there");
        let bytes = root.read(file, 0, 9000).await.expect("readable");
        assert!(!is_told || bytes == [7; 5000], "seed {seed}: told and gone");
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    (is_told, lost)
}

fn commit_on_failing_disks(promote_bytes: u64, lost_min: u64) {
    let all = (0..200).map(|n| commit_on_a_failing_disk(n * 2, promote_bytes));
    let (told, lost) = all.fold((0, 0), |(told, lost), one| {
        (told + u64::from(one.0), lost + one.1)
    });
    println!("{told} were told, {lost} groups lost");
    assert!(lost >= lost_min, "too few groups lost: {lost}");
    assert!(
        told > 20 && told < 190,
        "{told} of 200 were told that it survives"
    );
}

#[test]
fn a_commit_that_says_the_same_verifier_has_lost_nothing() {
    commit_on_failing_disks(PROMOTE_BYTES, 13);
}

#[test]
fn a_commit_of_a_large_file_that_says_the_same_verifier_has_lost_nothing() {
    // What fails is the file's own data, of which the page store knows nothing.
    commit_on_failing_disks(0, 0);
}
