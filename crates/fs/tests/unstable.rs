//! Unstable writes on disks that fail, with power losses: what a commit has answered with the verifier of the write is
//! there, and nothing else is but what was written.

use crate::conformance;
use crate::support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::{Caller, Files, Node, PROMOTE_BYTES, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, FaultConfig, Latency, Rng, SimDisk, SimPlatform, World};

use conformance::{Client, mode};
use support::*;

const PAGE: usize = 4096;
const PAGES: u64 = 24;
const CLIENTS: usize = 3;

/// What is known of a file: each page of a write has the write's number in each word.
#[derive(Clone, Default)]
struct Known {
    next: u64,
    /// Writes to each page, answered or not.
    issued: BTreeMap<u64, Vec<u64>>,
    /// The last of them that must be there, or a later one.
    promised: BTreeMap<u64, u64>,
    /// The last that was answered.
    answered: BTreeMap<u64, u64>,
    /// Answered as unstable, with which verifier.
    open: Vec<(u64, u64, u64)>,
}

impl Known {
    fn promise(&mut self, page: u64, write: u64) {
        let promised = self.promised.entry(page).or_default();
        *promised = write.max(*promised);
    }
}

/// What was seen in all lives.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    commits: u64,
    /// Commits with another verifier than some of what was written before.
    changed: u64,
    kept: u64,
    /// Pages of unstable writes that were answered and are gone.
    lost: u64,
}

type Shared = Rc<(RefCell<Vec<Known>>, Cell<Seen>)>;

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

fn failing() -> FaultConfig {
    FaultConfig {
        write_error: 0.08,
        ..FaultConfig::failing()
    }
}

async fn write(fs: &TestFs, file: Node, who: usize, shared: &Shared, rng: &mut Rng) {
    let (page, count) = (rng.below(PAGES), 1 + rng.below(4));
    let stability = match rng.below(5) {
        0 => Stability::Stable,
        _ => Stability::Unstable,
    };
    let number = {
        let known = &mut shared.0.borrow_mut()[who];
        known.next += 1;
        for page in page..page + count {
            known.issued.entry(page).or_default().push(known.next);
        }
        known.next
    };
    let data = number.to_le_bytes().repeat(PAGE / 8 * count as usize);
    let (by, data) = (Caller::default(), IoBuf::copy_of(&data));
    let at = page * PAGE as u64;
    let Ok(written) = fs.write(&by, file, at, data, stability).await else {
        return;
    };
    let known = &mut shared.0.borrow_mut()[who];
    for page in page..page + count {
        known.answered.insert(page, number);
        match written.stability {
            Stability::Stable => known.promise(page, number),
            Stability::Unstable => known.open.push((page, number, written.verifier)),
        }
    }
}

async fn commit(fs: &TestFs, file: Node, who: usize, shared: &Shared) {
    let Ok(committed) = fs.commit(&Caller::default(), file).await else {
        return;
    };
    let known = &mut shared.0.borrow_mut()[who];
    let mut seen = shared.1.get();
    seen.commits += 1;
    let open = std::mem::take(&mut known.open);
    seen.changed += u64::from(open.iter().any(|open| open.2 != committed.verifier));
    for (page, number, verifier) in open {
        if verifier == committed.verifier {
            seen.kept += 1;
            known.promise(page, number);
        }
    }
    shared.1.set(seen);
}

async fn work(fs: TestFs, who: usize, shared: Shared, mut rng: Rng) {
    let root = Client::root(&fs);
    let Ok(file) = root.lookup(root.top(), format!("{who}")).await else {
        return;
    };
    for _ in 0..400 {
        match rng.below(12) {
            // Something for the tree between writes.
            0 => {
                let (by, set) = (Caller::default(), mode(0o600 + rng.below(8) as u32));
                let _ = fs.set_attributes(&by, file, set, None).await;
            }
            1..4 => commit(&fs, file, who, &shared).await,
            _ => write(&fs, file, who, &shared, &mut rng).await,
        }
    }
}

/// What a page has: the number of its write, zero if there was none.
fn number_of(page: &[u8], what: &str) -> u64 {
    let mut words = page.chunks(8).map(|word| {
        let word = word.try_into().expect("is whole");
        u64::from_le_bytes(word)
    });
    let first = words.next().unwrap_or(0);
    assert!(words.all(|word| word == first), "{what} is torn");
    first
}

async fn judge(platform: &SimPlatform, disks: &[SimDisk], shared: &Shared, what: &str) {
    let engines = open_engines(platform, disks).await;
    let all = open_all_over(platform, &engines, 0, 32 << 10).await;
    for (info, report) in all.check().await.expect("can be looked at") {
        assert_eq!(report.problems, [""; 0], "{what}: {info:?}");
    }
    let fs = all.open_by_name(NAME).await.expect("is there");
    let root = Client::root(&fs);
    for who in 0..CLIENTS {
        let file = root.lookup(root.top(), format!("{who}")).await;
        let file = file.expect("is there");
        let mut bytes = root.read(file, 0, 1 << 20).await.expect("reads");
        bytes.resize((PAGES as usize + 4) * PAGE, 0);
        let known = &mut shared.0.borrow_mut()[who];
        let mut seen = shared.1.get();
        for (page, bytes) in bytes.chunks(PAGE).enumerate() {
            let (page, what) = (page as u64, format!("{what}: page {page} of file {who}"));
            let found = number_of(bytes, &what);
            let promised = known.promised.get(&page).copied().unwrap_or(0);
            let answered = known.answered.get(&page).copied().unwrap_or(0);
            assert!(
                found >= promised,
                "{what} has {found}, and {promised} must stay"
            );
            let issued = known.issued.get(&page);
            let is_known = issued.is_some_and(|all| all.contains(&found));
            assert!(found == 0 || is_known, "{what} has {found}");
            seen.lost += u64::from(found < answered);
            // What was found is there for good.
            known.promised.insert(page, found);
            known.answered.insert(page, found);
        }
        shared.1.set(seen);
        known.open.clear();
    }
    all.stop().await;
    stop_engines(&engines).await;
}

/// Of a filesystem over so many disks.
fn lives(disks: usize, seed: u64, promote_bytes: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let disks: Vec<SimDisk> = (0..disks).map(|_| SimDisk::new(config())).collect();
    let first = World::new(seed);
    let (platform, on) = (first.platform(0), disks.clone());
    first.block_on(0, async move {
        let (engines, all, fs) = begin_over(&platform, &on, promote_bytes, 32 << 10).await;
        let root = Client::root(&fs);
        for who in 0..CLIENTS {
            let made = root.file(root.top(), format!("{who}")).await;
            made.expect("makes");
        }
        all.stop().await;
        stop_engines(&engines).await;
    });
    let _ = first.crash();
    let known = vec![Known::default(); CLIENTS];
    let shared: Shared = Rc::new((RefCell::new(known), Cell::default()));
    for life in 0..3 {
        let world = World::new(seed * 100 + life);
        let (platform, on, all_of) = (world.platform(0), disks.clone(), shared.clone());
        let mut seeds = Rng::new(rng.next_u64());
        world.spawn(0, async move {
            let engines = open_engines(&platform, &on).await;
            let all = open_all_over(&platform, &engines, 50, 32 << 10).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            for disk in &on {
                disk.set_faults(failing());
            }
            for who in 0..CLIENTS {
                let rng = Rng::new(seeds.next_u64());
                platform.spawn(work(fs.clone(), who, all_of.clone(), rng));
            }
        });
        world.run_for(5_000_000 + rng.below(40_000_000));
        let mut crash = world.crash();
        for disk in &disks {
            disk.power_loss(&mut crash);
            disk.set_faults(FaultConfig::default());
        }
        let world = World::new(seed * 100 + life + 50);
        let (platform, on, all_of) = (world.platform(0), disks.clone(), shared.clone());
        let what = format!("seed {seed}, life {life}");
        world.block_on(
            0,
            async move { judge(&platform, &on, &all_of, &what).await },
        );
        let _ = world.crash();
    }
    shared.1.get()
}

fn all_lives(disks: usize, seeds: std::ops::Range<u64>, promote_bytes: u64) -> Seen {
    let mut sum = Seen::default();
    for seed in seeds {
        let seen = lives(disks, seed, promote_bytes);
        sum.commits += seen.commits;
        sum.changed += seen.changed;
        sum.kept += seen.kept;
        sum.lost += seen.lost;
    }
    println!("{sum:?}");
    assert!(sum.kept > 200 && sum.lost > 20, "{sum:?}");
    sum
}

#[test]
fn failing_disks_keep_what_was_committed() {
    let seen = all_lives(1, 0..40, PROMOTE_BYTES);
    assert!(seen.changed > 5, "{seen:?}");
}

#[test]
fn failing_disks_keep_what_was_committed_of_large_files() {
    all_lives(1, 100..120, SMALL);
    all_lives(1, 200..220, 0);
}

#[test]
fn failing_disks_keep_what_was_committed_of_files_on_two_devices() {
    all_lives(2, 300..320, SMALL);
    all_lives(2, 400..420, 0);
}
