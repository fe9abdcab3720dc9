//! A filesystem from life to life, each of which ends by a power loss and is judged: with its snapshots, copies and ways
//! back.

use std::collections::BTreeMap;

use flagstone_fs::memory::MemoryFiles;
use flagstone_fs::{Cookie, FileKind, Node, SnapshotNumber};
use flagstone_platform::Platform;
use flagstone_sim::{
    CrashPoint, DiskConfig, FaultConfig, Latency, Rng, RunEnd, SimDisk, SimPlatform, World,
};

use super::*;
use crate::conformance::Client;
use crate::conformance::calls::{Answer, Call};
use crate::conformance::histories::{Event, History, Plan};
use crate::conformance::judge::{End, begin as begin_model, judge};
use crate::conformance::matching::Matching;
use crate::conformance::trees::walk;

/// A disk on which everything takes its time.
pub(crate) fn config() -> DiskConfig {
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

/// When a life ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// So long after clients have begun.
    AfterNs(u64),
    /// At a change of the device, or when nothing has gone on for long.
    At(CrashPoint),
}

/// What there was in some lives.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sum {
    pub(crate) calls: usize,
    /// Snapshots of which it is known what was in them, and that their taking was answered.
    pub(crate) taken: usize,
    /// Such as were there after a crash, and whose taking was not answered.
    pub(crate) found: usize,
    pub(crate) deleted: usize,
    /// Answers about files in snapshots.
    pub(crate) seen: usize,
    pub(crate) copied: usize,
    pub(crate) rolled_back: usize,
    /// Rollbacks that were under way when the power failed.
    pub(crate) rolling: usize,
    pub(crate) groups_lost: u64,
    /// Lives that ended where they were to end.
    pub(crate) crashes: usize,
}

impl std::ops::Add for Sum {
    type Output = Sum;

    fn add(self, other: Sum) -> Sum {
        Sum {
            calls: self.calls + other.calls,
            taken: self.taken + other.taken,
            found: self.found + other.found,
            deleted: self.deleted + other.deleted,
            seen: self.seen + other.seen,
            copied: self.copied + other.copied,
            rolled_back: self.rolled_back + other.rolled_back,
            rolling: self.rolling + other.rolling,
            groups_lost: self.groups_lost + other.groups_lost,
            crashes: self.crashes + other.crashes,
        }
    }
}

impl std::iter::Sum for Sum {
    fn sum<I: Iterator<Item = Sum>>(all: I) -> Sum {
        all.fold(Sum::default(), std::ops::Add::add)
    }
}

impl Sum {
    fn count(&mut self, events: &[Event], end: &End) {
        self.calls += events.len();
        for event in events {
            let Some((_, Ok(answer))) = &event.ended else {
                continue;
            };
            match (&event.call, answer) {
                (_, Answer::Taken(number, _)) if end.trees.contains_key(number) => self.taken += 1,
                (Call::DeleteSnapshot(_), _) => self.deleted += 1,
                (Call::RollBack(_), _) => self.rolled_back += 1,
                (Call::Copy(..), _) => self.copied += 1,
                (call, _) if !call.is_of_now() => self.seen += 1,
                _ => {}
            }
        }
        let is_answered = |number: SnapshotNumber| {
            events.iter().any(|event| {
                matches!(event.ended, Some((_, Ok(Answer::Taken(taken, _)))) if taken == number)
            })
        };
        let open = events.iter().filter(|event| event.ended.is_none());
        let open = open.filter_map(|event| match &event.call {
            Call::TakeSnapshot(name) => end.names.get(name),
            _ => None,
        });
        self.found += open.filter(|number| !is_answered(**number)).count();
    }
}

/// See the module's page.
pub(crate) struct Course {
    seed: u64,
    lives: u64,
    /// The first one has the tree.
    disks: Vec<SimDisk>,
    journaled_bytes: usize,
    model: MemoryFiles<SimPlatform>,
    matching: Matching,
    history: History,
}

impl Course {
    /// Begins with nothing, with frames of up to so many bytes in the device's journal.
    pub(crate) fn begin(seed: u64, promote_bytes: u64, journaled_bytes: usize) -> Course {
        Course::begin_over(1, seed, promote_bytes, journaled_bytes)
    }

    /// The same over so many disks.
    pub(crate) fn begin_over(
        disks: usize,
        seed: u64,
        promote_bytes: u64,
        journaled_bytes: usize,
    ) -> Course {
        let disks: Vec<SimDisk> = (0..disks).map(|_| SimDisk::new(config())).collect();
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), disks.clone());
        let (model, matching) = world.block_on(0, async move {
            let (engines, all, fs) = begin_over(&platform, &on, promote_bytes, 32 << 10).await;
            let begun = begin_model(&platform, &fs);
            all.stop().await;
            stop_engines(&engines).await;
            begun
        });
        let _ = world.crash();
        Course {
            seed,
            lives: 0,
            disks,
            journaled_bytes,
            model,
            matching,
            history: History::default(),
        }
    }

    /// Another one that is as this one is now, to go another way.
    pub(crate) fn fork(&self) -> Course {
        Course {
            disks: self.disks.iter().map(SimDisk::fork).collect(),
            // Whoever judges goes on with another one.
            model: self.model.clone(),
            matching: self.matching.clone(),
            history: self.history.fork(),
            ..*self
        }
    }

    /// One more life, and what it came to.
    pub(crate) fn live(&mut self, plan: &Plan, faults: &FaultConfig, stop: Stop) -> Sum {
        let what = format!("seed {}, life {}, {stop:?}", self.seed, self.lives);
        let seed = self.seed * 1_000 + self.lives * 10;
        // The clock goes on, from the beginning on: told times that lie ahead of it lead the judge astray.
        let begin_ns = (self.lives + 1) * 1_000_000_000;
        self.lives += 1;
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), self.disks.clone());
        let (plan, faults, history) = (plan.clone(), faults.clone(), self.history.clone());
        let (mut seeds, journaled_bytes) = (Rng::new(seed), self.journaled_bytes);
        let opened = std::rc::Rc::new(std::cell::RefCell::new(None));
        let kept = opened.clone();
        if let Stop::At(point) = stop {
            world.crash_at(point);
        }
        world.spawn(0, async move {
            platform.sleep_ns(begin_ns).await;
            let engines = open_engines(&platform, &on).await;
            let all = open_all_over(&platform, &engines, 50, journaled_bytes).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            history.set_snapshots(&fs.snapshots());
            *kept.borrow_mut() = Some(all);
            for disk in &on {
                disk.set_faults(faults.clone());
            }
            history.start(&platform, &fs, &plan, &mut seeds);
        });
        let end = world.run_for(match stop {
            Stop::AfterNs(ns) => begin_ns + ns,
            Stop::At(_) => begin_ns + 500_000_000,
        });
        let counters = opened.take().map(|all| all.store_counters());
        let mut crash = world.crash();
        for disk in &self.disks {
            disk.power_loss(&mut crash);
            disk.set_faults(FaultConfig::default());
        }
        let (end_of_life, rolling) = self.look(seed + 1, &what);
        let events = self.history.take_events();
        let mut sum = Sum {
            rolling: usize::from(rolling),
            groups_lost: counters.unwrap_or_default().groups_lost,
            crashes: usize::from(matches!(stop, Stop::AfterNs(_)) || end == RunEnd::Crashed),
            ..Sum::default()
        };
        sum.count(&events, &end_of_life);
        self.judge(begin_ns, events, end_of_life, &what);
        sum
    }

    /// All that there is after an end, from a filesystem that was proved to be whole; and whether it was being rolled
    /// back.
    fn look(&self, seed: u64, what: &str) -> (End, bool) {
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), self.disks.clone());
        let (history, what) = (self.history.clone(), what.to_owned());
        let looked = world.block_on(0, async move {
            let engines = open_engines(&platform, &on).await;
            let all = open_all_over(&platform, &engines, 0, 32 << 10).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            let is_rolling = fs.rolling_back_to().is_some();
            rolled_back(&platform, &fs).await;
            for (info, report) in all.check().await.expect("can be looked at") {
                assert_eq!(report.problems, [""; 0], "{what}: {info:?}");
            }
            let tree = walk(&fs, SnapshotNumber::LIVE).await;
            let mut names = BTreeMap::new();
            for info in fs.snapshots() {
                // The same as ever, if somebody has seen it before.
                history.see(info.number, walk(&fs, info.number).await);
                names.insert(info.name, info.number);
            }
            all.stop().await;
            stop_engines(&engines).await;
            let trees = history.trees();
            (End { tree, names, trees }, is_rolling)
        });
        let _ = world.crash();
        looked
    }

    fn judge(&mut self, begin_ns: u64, events: Vec<Event>, end: End, what: &str) {
        let world = World::new(self.seed);
        let platform = world.platform(0);
        let (model, matching) = (self.model.fork(&platform), self.matching.clone());
        let verdict = world.block_on(0, async move {
            // No time is told twice, though files go back to earlier ones.
            platform.sleep_ns(begin_ns).await;
            judge(&platform, &model, &matching, &events, &end).await
        });
        let verdict = verdict.unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        (self.model, self.matching) = (verdict.model, verdict.matching);
    }

    /// Takes all away, first the snapshots: in the end nothing is kept for nobody.
    pub(crate) fn take_away(self) {
        let what = format!("seed {}", self.seed);
        let world = World::new(self.seed);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engines = open_engines(&platform, &self.disks).await;
            let all = open_all_over(&platform, &engines, 0, 32 << 10).await;
            let fs = all.open_by_name(NAME).await.expect("is there");
            for info in fs.snapshots() {
                fs.delete_snapshot(&info.name).await.expect("deletes");
            }
            platform.sleep_ns(500_000_000).await;
            let report = fs.check().await.expect("can be looked at");
            let left = (report.kept, report.swept, report.problems);
            assert_eq!(left, (0, 0, vec![]), "{what}");
            let root = Client::root(&fs);
            remove_below(&root, root.top()).await;
            platform.sleep_ns(500_000_000).await;
            let report = fs.check().await.expect("can be looked at");
            let left = (report.files, report.blocks, report.objects, report.swept);
            assert_eq!((left, report.problems), ((1, 0, 0, 0), vec![]), "{what}");
            for engine in &engines {
                assert_eq!(stage::objects(engine), 0, "{what}");
            }
            all.stop().await;
            stop_engines(&engines).await;
        });
        let _ = world.crash();
    }
}

/// Waits until a filesystem is what it was to go back to.
pub(crate) async fn rolled_back(platform: &SimPlatform, fs: &TestFs) {
    for _ in 0..1000 {
        if fs.rolling_back_to().is_none() {
            return;
        }
        platform.sleep_ns(10_000_000).await;
    }
    panic!("it takes too long");
}

async fn remove_below(root: &Client<TestFs>, top: Node) {
    let entries = root.list_behind(top, Cookie(0), 100).await;
    for entry in &entries.expect("lists")[2..] {
        let is_directory = root.get(entry.node).await.kind == FileKind::Directory;
        if is_directory {
            Box::pin(remove_below(root, entry.node)).await;
            let removed = root.remove_directory(top, &entry.name).await;
            removed.expect("removes");
        } else {
            root.remove(top, &entry.name).await.expect("removes");
        }
    }
}
