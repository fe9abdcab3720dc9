//! Random histories with snapshots, copies and ways back, and power losses: a snapshot is a state that some order of the
//! calls passes through while it is taken, for ever.

use crate::conformance;
use crate::support;

use flagstone_fs::{Caller, Cookie, FileError, Files, Node, PROMOTE_BYTES};
use flagstone_platform::Platform;
use flagstone_sim::{Counting, CrashMoment, CrashPoint, FaultConfig, Rng, SimDisk, World};

use conformance::calls::bytes_of;
use conformance::histories::Plan;
use conformance::{Client, size};
use support::course::{Course, Stop, Sum, config};
use support::*;

/// So long a life is at most.
const LONGEST_NS: u64 = 16_000_000;
const JOURNALED_BYTES: usize = 32 << 10;

fn plan(seed: u64) -> Plan {
    Plan {
        clients: 1 + seed % 4,
        steps: 400,
        stable_only: true,
        lists_attributes: false,
        kept_one_in: 8,
        // Nothing else goes on while it does.
        rolls_back: (seed / 4).is_multiple_of(2),
        ..Plan::default()
    }
}

/// Three lives, each with some of the snapshots of those before.
fn run(
    disks: usize,
    seed: u64,
    promote_bytes: u64,
    journaled_bytes: usize,
    faults: &FaultConfig,
) -> Sum {
    let mut rng = Rng::stream(seed, 1);
    let mut course = Course::begin_over(disks, seed, promote_bytes, journaled_bytes);
    let plan = plan(seed);
    let lives = (0..3).map(|_| {
        let stop = Stop::AfterNs(rng.below(LONGEST_NS));
        course.live(&plan, faults, stop)
    });
    let sum = lives.sum();
    course.take_away();
    sum
}

fn on_good_disks(seeds: std::ops::Range<u64>, promote_bytes: u64) {
    on_so_many_good_disks(1, seeds, promote_bytes);
}

fn on_so_many_good_disks(disks: usize, seeds: std::ops::Range<u64>, promote_bytes: u64) {
    let good = FaultConfig::default();
    let run = |seed| run(disks, seed, promote_bytes, JOURNALED_BYTES, &good);
    let sum: Sum = seeds.map(run).sum();
    println!("{sum:?}");
    assert!(sum.calls > 10_000 && sum.seen > 100, "{sum:?}");
    assert!(sum.taken > 150 && sum.deleted > 100, "{sum:?}");
    assert!(sum.copied > 50 && sum.rolled_back > 20, "{sum:?}");
    assert!(sum.found > 0 && sum.rolling > 0, "{sum:?}");
}

#[test]
fn snapshots_of_small_files_are_what_an_order_passes_through() {
    on_good_disks(3_000..3_100, PROMOTE_BYTES);
}

#[test]
fn snapshots_of_both_kinds_are_what_an_order_passes_through() {
    on_good_disks(3_200..3_300, SMALL);
}

#[test]
fn snapshots_of_large_files_are_what_an_order_passes_through() {
    on_good_disks(3_400..3_500, 0);
}

#[test]
fn snapshots_of_files_on_three_devices_are_what_an_order_passes_through() {
    on_so_many_good_disks(3, 3_500..3_560, SMALL);
    on_so_many_good_disks(2, 3_560..3_600, 0);
}

/// Half of them put no frame into the device's journal, so that groups of commits are lost and life goes on.
#[test]
fn failing_disks_leave_no_other_snapshots() {
    let failing = FaultConfig {
        write_error: 0.08,
        ..FaultConfig::failing()
    };
    let of_seed = |seed: u64| {
        let disks = 1 + seed as usize / 8 % 2;
        let promote_bytes = [PROMOTE_BYTES, SMALL, 0][seed as usize % 3];
        let journaled_bytes = [0, JOURNALED_BYTES][seed as usize / 4 % 2];
        run(disks, seed, promote_bytes, journaled_bytes, &failing)
    };
    let sum: Sum = (3_600..3_660).map(of_seed).sum();
    println!("{sum:?}");
    assert!(sum.calls > 1_000 && sum.taken > 20, "{sum:?}");
    assert!(sum.groups_lost > 5, "{sum:?}");
}

/// Where nothing goes back more else is done.
fn rolls_back_everywhere(seed: u64) -> bool {
    seed % 2 == 1
}

/// What several clients do, broken off at each change of the device.
fn broken_off_everywhere(disks: usize, seed: u64, promote_bytes: u64) -> Sum {
    let good = FaultConfig::default();
    let plan = |steps| Plan {
        clients: 3,
        steps,
        rolls_back: rolls_back_everywhere(seed),
        ..plan(seed)
    };
    let mut course = Course::begin_over(disks, seed, promote_bytes, JOURNALED_BYTES);
    // So that there is something to begin with.
    course.live(&plan(400), &good, Stop::AfterNs(LONGEST_NS));
    let moments = [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ];
    let mut all = Sum::default();
    for nth in 0.. {
        let point = CrashPoint {
            nth,
            counting: Counting::Changes,
            moment: moments[nth as usize % 3],
        };
        let mut course = course.fork();
        let sum = course.live(&plan(60), &good, Stop::At(point));
        if sum.crashes == 0 {
            break;
        }
        if nth % 8 == 0 {
            course.take_away();
        }
        all = all + sum;
    }
    println!("{all:?}");
    all
}

#[test]
fn no_change_of_the_device_is_a_wrong_one_to_break_off_at() {
    let mut all = Sum::default();
    for (seed, promote_bytes) in [(3_701, PROMOTE_BYTES), (3_702, SMALL), (3_709, 0)] {
        let sum = broken_off_everywhere(1, seed, promote_bytes);
        assert!(sum.crashes > 100, "{sum:?}");
        let has_rolled = sum.rolled_back > 100 && sum.rolling > 0;
        assert_eq!(has_rolled, rolls_back_everywhere(seed), "{sum:?}");
        all = all + sum;
    }
    println!("{all:?}");
    assert!(
        all.found > 5 && all.taken > 300 && all.deleted > 500,
        "{all:?}"
    );
    assert!(all.copied > 100 && all.seen > 1_000, "{all:?}");
}

#[test]
fn nor_is_a_change_of_one_of_two_devices() {
    let sums = [(3_711, SMALL), (3_713, 0)].map(|(seed, promote_bytes)| {
        let sum = broken_off_everywhere(2, seed, promote_bytes);
        assert!(sum.crashes > 150 && sum.found > 0, "{sum:?}");
        assert!(sum.copied > 50 && sum.seen > 100, "{sum:?}");
        assert!(sum.rolled_back > 100 && sum.rolling > 0, "{sum:?}");
        sum
    });
    println!("{sums:?}");
}

/// What is known of a snapshot that is going to be deleted.
struct Doomed {
    disk: SimDisk,
    /// It has the file under this name, with so many bytes.
    file: Node,
    name: String,
    len: usize,
}

/// One file changes from snapshot to snapshot, among so many others that little of the tree is in memory.
fn doomed(promote_bytes: u64, read_max_ns: u64) -> Doomed {
    let mut slow = config();
    slow.latency.read_ns = 1_000..=read_max_ns;
    let disk = SimDisk::new(slow);
    let (world, on) = (World::new(1), disk.clone());
    let platform = world.platform(0);
    let file = world.block_on(0, async move {
        let (engine, all, fs) = begin_with(&platform, &on, promote_bytes).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "of none").await.expect("makes");
        for n in 0..120 {
            let name = format!("{n}{}", "x".repeat(100));
            let other = root.file(root.top(), name).await.expect("makes");
            root.write(other, 0, &[1; 400]).await.expect("writes");
        }
        let mut before = "of none".to_owned();
        for (name, len) in [("old", 100), ("gone", 9_000), ("new", 200)] {
            let next = format!("of {name}");
            let renamed = root.rename((root.top(), &before), (root.top(), &next));
            renamed.await.expect("renames");
            root.set(file, size(0)).await.expect("cuts");
            root.write(file, 0, &vec![7; len]).await.expect("writes");
            fs.take_snapshot(name).await.expect("takes one");
            before = next;
        }
        // A later change, so that the newest one keeps something, too.
        root.set(file, size(0)).await.expect("cuts");
        root.remove(root.top(), &before).await.expect("removes");
        all.stop().await;
        engine.stop().await.expect("stops");
        file
    });
    let _ = world.crash();
    Doomed {
        disk,
        file,
        name: "of gone".to_owned(),
        len: 9_000,
    }
}

impl Doomed {
    /// Somebody looks while somebody else deletes it. Whether the look was answered with what the snapshot has; it may only be
    /// told that it is gone else.
    fn look(&self, seed: u64, kind: u64) -> bool {
        let mut rng = Rng::new(seed);
        let disk = self.disk.fork();
        let (world, delay_ns) = (World::new(seed), rng.below(100_000));
        let platform = world.platform(0);
        let (file, name, len) = (self.file, self.name.clone(), self.len);
        let is_seen = world.block_on(0, async move {
            let engine = open_engine(&platform, &disk).await;
            let all = open_all(&platform, &engine, 0).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let snapshots = fs.snapshots();
            let gone = snapshots.iter().find(|info| info.name == "gone");
            let at = gone.expect("is there").number;
            let deleting = fs.clone();
            platform.spawn(async move {
                let deleted = deleting.delete_snapshot("gone").await;
                deleted.expect("deletes");
            });
            platform.sleep_ns(delay_ns).await;
            let (caller, top) = (Caller::default(), Node::live(fs.root()));
            let (top, file) = (Node { at, ..top }, Node { at, ..file });
            let seen = match kind {
                0 => {
                    let found = fs.lookup(&caller, top, name.as_bytes()).await;
                    found.map(|found| found.attributes.size_bytes)
                }
                1 => fs.attributes(file).await.map(|seen| seen.size_bytes),
                2 => {
                    let read = fs.read(&caller, file, 0, 20_000).await;
                    let bytes = read.map(|read| bytes_of(&read.pieces));
                    bytes.map(|bytes| bytes.iter().filter(|byte| **byte == 7).count() as u64)
                }
                _ => {
                    let listing = fs.list(&caller, top, Cookie(2), 200, false).await;
                    listing.map(|listing| {
                        let mut names = listing.entries.iter().map(|entry| &entry.name);
                        len as u64 * u64::from(names.any(|found| *found == name.as_bytes()))
                    })
                }
            };
            let is_seen = match seen {
                Ok(seen) => {
                    assert_eq!(seen, len as u64, "seed {seed}, {kind}");
                    true
                }
                Err(error) => {
                    assert_eq!(error, FileError::Stale, "seed {seed}, {kind}");
                    false
                }
            };
            platform.sleep_ns(100_000_000).await;
            all.stop().await;
            engine.stop().await.expect("stops");
            is_seen
        });
        let _ = world.crash();
        is_seen
    }
}

/// Not what an older one has, of which the versions are left: they are while a look waits for slow reads.
#[test]
fn who_sees_something_of_a_deleted_snapshot_sees_the_snapshot() {
    for promote_bytes in [PROMOTE_BYTES, 0] {
        let looks = |read_max_ns| {
            let doomed = doomed(promote_bytes, read_max_ns);
            let seen = (0..200).filter(|seed| doomed.look(*seed, seed % 4));
            seen.count()
        };
        let (soon, late) = (looks(20_000), looks(200_000));
        println!("{soon} and {late} of 200 were in time");
        assert!((50..150).contains(&soon) && late < 50, "{soon}, {late}");
    }
}
