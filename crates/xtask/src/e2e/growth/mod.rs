//! What files cost as there are more of them: names in one directory, snapshots of one filesystem, filesystems of one
//! node. Each scenario prints its figures as rows of a table, and fails where something is wrong or grows beyond all
//! measure, never where it is a little slower than elsewhere.

pub(super) mod directory;
pub(super) mod filesystems;
mod loads;
pub(super) mod snapshots;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::load::Random;
use super::scene::{FILESYSTEM, Scene};
use crate::api::Api;
use crate::bench::nfs::client::Connection;
use crate::daemon::Node;
use crate::process;

/// A million names take an eighth of it.
const DEVICE_SIZE: &str = "4G";
/// Calls in flight, where one client does as much as it can.
const DEPTH: usize = 64;
/// The node's memory is looked at this often while its peak is watched.
const WATCH: Duration = Duration::from_millis(5);
/// The longest that a node may take until it answers again.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// What the background has to give back has to be free by then.
const FREE_LIMIT: Duration = Duration::from_secs(120);
const FREE_POLL: Duration = Duration::from_millis(50);
/// What is done to many of a kind may cost this many times as much as what is done to few: other programs may be in
/// the way of either, and a cost that grows with the number passes it at once.
const TIMES_MAX: f64 = 10.0;
/// And so much more in any case: that long the processors may have been somebody else's.
const PAUSE_MS: f64 = 4.0;

/// Rows are printed as they come, so that a scenario that fails shows those before.
struct Table;

impl Table {
    fn begin(about: &str) -> Table {
        println!("| {about} | |\n| --- | --- |");
        Table
    }

    fn row(&self, what: &str, found: &str) {
        println!("| {what} | {found} |");
    }
}

/// How long each of many took, in their order.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = work();
        self.0.push(began.elapsed());
        result
    }

    fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Of so many at the beginning and at the end: the middle one, in milliseconds.
    fn ends(&self, count: usize) -> (f64, f64) {
        let count = count.clamp(1, self.0.len().max(1)).min(self.0.len());
        let first = &self.0[..count];
        let last = &self.0[self.0.len() - count..];
        (part_ms(first, 0.5), part_ms(last, 0.5))
    }

    /// Which is longer than this part of them, in milliseconds.
    fn part(&self, part: f64) -> f64 {
        part_ms(&self.0, part)
    }
}

fn part_ms(times: &[Duration], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() as f64 * part) as usize;
    let found = sorted.get(index.min(sorted.len().saturating_sub(1)));
    found.map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// What takes `last` milliseconds where it took `first` when there were fewer.
fn must_not_grow(what: &str, first: f64, last: f64) -> Result<()> {
    ensure!(
        last <= first * TIMES_MAX + PAUSE_MS,
        "{what} takes {last:.3} ms where it took {first:.3}: it grows with what there is"
    );
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A node and who asks it.
struct Stage {
    node: Node,
    api: Api,
}

impl Stage {
    /// A node without a filesystem.
    fn begin(scene: &Scene) -> Result<Stage> {
        let node = Node::start_with_files(scene.options(DEVICE_SIZE, 1))?;
        let api = Api::of(&node)?;
        api.ask("DELETE", &format!("/v1/filesystems/{FILESYSTEM}"), None)?;
        Ok(Stage { node, api })
    }

    fn connect(&self) -> Result<Connection> {
        Connection::open(self.node.nfs_port.context("the node serves no NFS")?)
    }

    fn resident(&self) -> Result<u64> {
        Ok(process::tree_resident_bytes(self.node.pid()?))
    }

    fn create_filesystem(&self, name: &str) -> Result<()> {
        let spec = json!({ "name": name });
        self.api
            .ask("POST", "/v1/filesystems", Some(&spec))
            .map(drop)
    }

    /// A number that the API says of a filesystem.
    fn of_filesystem(&self, name: &str, what: &str) -> Result<u64> {
        let shown = self
            .api
            .ask("GET", &format!("/v1/filesystems/{name}"), None)?;
        let number = shown.get(what).and_then(Value::as_u64);
        number.with_context(|| format!("no {what} in {shown}"))
    }

    /// Reads and writes of the device so far.
    fn device_operations(&self) -> Result<(f64, f64)> {
        let of = |label| {
            let name = "flagstone_device_operations_total";
            self.api.metric_with(name, label)
        };
        Ok((of("op=\"read\"")?, of("op=\"write\"")?))
    }

    /// Starts the node again and says how long it took until it was ready.
    fn restart(&mut self) -> Result<Duration> {
        let took = self.node.restart()?;
        self.api = Api::of(&self.node)?;
        ensure!(
            took <= RESTART_MAX,
            "the restart took {took:?}; the bound is {RESTART_MAX:?}"
        );
        Ok(took)
    }

    /// Carries something out and returns the most memory that the node had meanwhile.
    fn with_peak<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let pid = self.node.pid()?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut most = 0;
                loop {
                    let now = process::stat(pid).map_or(0, |stat| stat.resident_bytes);
                    most = most.max(now);
                    if is_over.load(Ordering::Acquire) {
                        return most;
                    }
                    thread::sleep(WATCH);
                }
            });
            let result = work();
            is_over.store(true, Ordering::Release);
            let most = watching.join();
            let most = most.map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
            Ok((result?, most))
        })
    }

    /// `fs check`, which has to find nothing.
    fn check(&self, table: &Table, name: &str) -> Result<()> {
        let before = self.resident()?;
        let began = Instant::now();
        // The command fails if anything is wrong.
        let (said, most) = self.with_peak(|| self.node.run(&["fs", "check", name]))?;
        let took = began.elapsed().as_secs_f64();
        table.row(
            &format!("`fs check {name}`"),
            &format!(
                "{took:.2} s; {:.0} MiB of memory more at most",
                mib(most.saturating_sub(before))
            ),
        );
        ensure!(!said.trim().is_empty(), "`fs check` has said nothing");
        Ok(())
    }

    /// Waits until something is so, and says how long it took.
    fn wait_for(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<Duration> {
        let began = Instant::now();
        while !is_so()? {
            ensure!(
                began.elapsed() < FREE_LIMIT,
                "after {FREE_LIMIT:?} it is not so that {what}"
            );
            thread::sleep(FREE_POLL);
        }
        Ok(began.elapsed())
    }
}

/// In another order, which the seed decides.
fn shuffle<T>(things: &mut [T], random: &mut Random) {
    for index in (1..things.len()).rev() {
        let other = random.below(index as u64 + 1) as usize;
        things.swap(index, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_first_and_of_the_last_are_told_apart() {
        let times = Times([1, 9, 2, 30, 50, 40].map(Duration::from_millis).to_vec());
        assert_eq!(times.ends(3), (2.0, 40.0));
        assert_eq!(times.ends(100), times.ends(6));
        assert_eq!(times.part(0.0), 1.0);
        assert_eq!(times.part(1.0), 50.0);
        assert_eq!(Times::default().ends(10), (0.0, 0.0));
        assert_eq!(times.sum(), Duration::from_millis(132));
    }

    #[test]
    fn what_grows_is_noticed() {
        assert!(must_not_grow("it", 10.0, 103.0).is_ok());
        assert!(must_not_grow("it", 10.0, 105.0).is_err());
    }

    #[test]
    fn a_shuffled_list_has_the_same_things() {
        let mut things: Vec<u32> = (0..100).collect();
        shuffle(&mut things, &mut Random::new(1));
        assert_ne!(things, (0..100).collect::<Vec<u32>>());
        things.sort_unstable();
        assert_eq!(things, (0..100).collect::<Vec<u32>>());
    }
}
