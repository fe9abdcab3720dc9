//! Moves of a volume that fio overwrites and checks, and how long changes waited at the end of each.
//!
//! A move counts only if fio wrote the volume just before it, and had not come to its end behind it.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::others::{Others, Work};
use super::scene::{Scene, find_strings};
use crate::daemon::{Node, NodeOptions};
use crate::repo;

/// The volume that fio has.
pub(super) const VOLUME: &str = "fio";
pub(super) const VOLUME_BYTES: u64 = 64 << 20;
/// A run of fio overwrites the volume so often, as fast as this: it takes half a minute, in which a move has to find room on a machine with other work. (With 32 MiB/s and eight seconds
/// it did not, in CI beside a build.) A client without a limit is `flood`.
const LOAD: [&str; 2] = ["--loops=8", "--rate=16m"];
/// What the last run of fio said.
const REPORT: &str = "fio.json";
/// So many moves, one behind the other, may find that fio ended meanwhile.
const MISSED_MAX: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(30);

// Elsewhere no test asserts how long something takes. These are what the project promises of moves, and that is worth an
// exception. The middle one is below them, also while others build on the machine (docs/verification.md); beside
// programs that compute all the time it isn't always, so `others` makes them wider there.
/// To another core of a node.
pub(super) const BOUND_CORE: Duration = Duration::from_millis(50);
/// To another device, or another node.
pub(super) const BOUND_ELSEWHERE: Duration = Duration::from_millis(200);

/// Blocks that carry their own checksum and place.
pub(super) fn fio(scene: &Scene, node: &Node, arguments: &[&str]) -> Command {
    let mut fio = Command::new("fio");
    fio.current_dir(&scene.dir)
        .args(["--name=blocks", "--ioengine=nbd", "--iodepth=16"])
        .args([
            "--bs=64k",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=32",
        ])
        .arg(format!("--uri={}", node.uri(VOLUME)))
        .arg(format!("--size={VOLUME_BYTES}"))
        .args(arguments);
    fio
}

/// fio, run after run.
pub(super) struct Busy<'a> {
    scene: &'a Scene,
    node: &'a Node,
    running: Option<Child>,
    runs: u32,
    missed: u32,
    longest_ns: u64,
    /// When it began.
    before: Work,
}

impl<'a> Busy<'a> {
    /// Writes the whole volume. `node` is where fio attaches it.
    pub(super) fn new(scene: &'a Scene, node: &'a Node) -> Result<Busy<'a>> {
        let before = Work::until_now()?;
        repo::output(fio(scene, node, &["--rw=write"]))?;
        Ok(Busy {
            scene,
            node,
            running: None,
            runs: 0,
            missed: 0,
            longest_ns: 0,
            before,
        })
    }

    /// Moves the volume while fio writes it. `at` is the node that has it before, and, if no run of fio is under way, the one that fio attaches. Nothing
    /// comes of it if fio ended meanwhile: whether it was moved or not, it doesn't count.
    pub(super) fn beside<T>(
        &mut self,
        at: &NodeOptions,
        moves: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.is_running()? {
            self.start()?;
        }
        if self.waited_until_written(at)? {
            let moved = moves()?;
            if self.is_running()? {
                self.missed = 0;
                return Ok(Some(moved));
            }
        }
        self.missed += 1;
        let missed = self.missed;
        ensure!(
            missed <= MISSED_MAX,
            "fio ended while its volume was moved, {missed} times one behind the other"
        );
        Ok(None)
    }

    /// Waits until a change comes: nobody but fio makes any. False if it has ended.
    fn waited_until_written(&mut self, at: &NodeOptions) -> Result<bool> {
        let until = Instant::now() + PATIENCE;
        let mut before = None;
        while self.is_running()? {
            ensure!(Instant::now() < until, "fio doesn't write its volume");
            let shown = super::moves::json(at, &["volume", "show", VOLUME])?;
            let lsn = find_strings(&shown, "lsn").pop().context("it has no LSN")?;
            if before.is_some_and(|before| before != lsn) {
                return Ok(true);
            }
            before = Some(lsn);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(false)
    }

    fn start(&mut self) -> Result<()> {
        let mut command = fio(self.scene, self.node, &LOAD);
        command
            .args(["--rw=randwrite", "--verify_backlog=64"])
            .arg("--output-format=json")
            .arg(format!("--output={REPORT}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        self.running = Some(command.spawn().context("starting fio")?);
        Ok(())
    }

    /// Whether fio runs. One that has ended must have found everything right.
    pub(super) fn is_running(&mut self) -> Result<bool> {
        let Some(running) = &mut self.running else {
            return Ok(false);
        };
        if running.try_wait().context("looking at fio")?.is_none() {
            return Ok(true);
        }
        self.wait()?;
        Ok(false)
    }

    /// Waits until the run under way is over.
    pub(super) fn wait(&mut self) -> Result<()> {
        let Some(ended) = self.running.take() else {
            return Ok(());
        };
        let ended = ended.wait_with_output().context("waiting for fio")?;
        let errors = String::from_utf8_lossy(&ended.stderr);
        ensure!(
            ended.status.success(),
            "fio while its volume was moved: {errors}"
        );
        self.runs += 1;
        let report = fs::read_to_string(self.scene.dir.join(REPORT)).context("fio's report")?;
        let longest_ns = longest_ns(&report).context("no latencies in fio's report")?;
        self.longest_ns = self.longest_ns.max(longest_ns);
        Ok(())
    }

    /// Waits for the last run, has fio read everything once more, and says what it saw. Returns what others had of the machine meanwhile.
    pub(super) fn end(mut self) -> Result<Others> {
        self.wait()?;
        ensure!(self.runs > 0, "fio did nothing");
        repo::output(fio(self.scene, self.node, &["--rw=read"]))?;
        println!(
            "{} runs of fio meanwhile; the longest that one of its requests took was {:.1} ms",
            self.runs,
            self.longest_ns as f64 / 1e6
        );
        self.before.others("fio")
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.kill();
            let _ = running.wait();
        }
    }
}

/// The longest that a read, a write or a flush took, from what fio says in JSON, with whatever it says before.
fn longest_ns(report: &str) -> Option<u64> {
    let json = &report[report.find('{')?..];
    let report: Value = serde_json::from_str(json).ok()?;
    let jobs = report["jobs"].as_array()?;
    let each = jobs.iter().flat_map(|job| {
        ["read/clat_ns", "write/clat_ns", "sync/lat_ns"]
            .map(|place| job.pointer(&format!("/{place}/max"))?.as_u64())
    });
    each.flatten().max()
}

/// How long changes waited at the end of each move, by the node's word. See [`judge_middle`].
pub(super) fn judge(what: &str, bound: Duration, held_us: &[u64]) -> Result<()> {
    judge_middle(&format!("{what}: changes waited"), bound, held_us)
}

/// Prints the middle one and the longest of these times, one for each move, and fails if the middle one is not below the bound. `waited` says of what they are.
pub(super) fn judge_middle(waited: &str, bound: Duration, times_us: &[u64]) -> Result<()> {
    let mut sorted = times_us.to_vec();
    sorted.sort_unstable();
    let ms = |us: u64| us as f64 / 1e3;
    let median = *sorted.get(sorted.len() / 2).context("nothing was moved")?;
    println!(
        "{waited} {:.1} ms in the middle one of {} moves, {:.1} ms at most",
        ms(median),
        sorted.len(),
        ms(sorted.last().copied().unwrap_or(0))
    );
    ensure!(
        u128::from(median) < bound.as_micros(),
        "{waited} {:.1} ms in the middle one of {} moves; it has to be less than {} ms. All of them, in ms: {:?}",
        ms(median),
        sorted.len(),
        bound.as_millis(),
        times_us.iter().copied().map(ms).collect::<Vec<_>>()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_too_long_if_the_middle_one_is() {
        let bound = Duration::from_millis(50);
        judge("here", bound, &[1_000, 900_000, 49_999]).expect("one may be long");
        let error = judge("there", bound, &[1_000, 900_000, 50_000]).expect_err("too long");
        let text = error.to_string();
        for word in ["there", "50.0 ms", "less than 50 ms", "1.0, 900.0, 50.0"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        judge("nowhere", bound, &[]).expect_err("nothing was moved");
    }

    #[test]
    fn the_longest_of_all_that_fio_did_is_found() {
        let report = r#"fio: connected to NBD server
            {"jobs": [{"read": {"clat_ns": {"max": 5}}, "write": {"clat_ns": {"max": 70}}, "sync": {"lat_ns": {"max": 6}}},
                {"read": {"clat_ns": {"max": 8}}}]}"#;
        assert_eq!(longest_ns(report), Some(70));
        assert_eq!(longest_ns("fio: nothing"), None);
        assert_eq!(longest_ns(r#"{"jobs": []}"#), None);
    }
}
