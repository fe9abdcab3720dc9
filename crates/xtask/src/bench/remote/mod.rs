//! `cargo xtask bench remote`: what the way to a volume costs: Decibel's remote overhead and QuickSAN's latencies and small
//! accesses. [decibel 6, "Remote Overhead"]
//!
//! The targets take turns at each point, and the whole is repeated. One loop drives all of them (`load`), but for the file
//! without a server, which fio reads and writes. The device is a file in memory, unless told otherwise.

mod calm;
pub(super) mod echo;
pub(super) mod load;
pub(super) mod native;
mod nbd;
mod placing;
mod points;
mod report;
mod targets;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::machine::Setting;
use super::{PROGRAMS, command_line};
use crate::daemon::{self, Node, NodeOptions, free_port};
use crate::repo;
use calm::{Calm, watched};
use placing::Placing;
use points::{Beside, DEEP, Goal, HALF_PART, Pair, Point, Role, Sample, points};
use report::Report;
use targets::Target;

const MEMORY: &str = "/dev/shm";
/// Lets a server finish what a load left behind before the next one is measured.
const SETTLE: Duration = Duration::from_millis(20);
const SECONDS_MIN: f64 = 0.02;
/// The largest request and several of them.
const SIZE_STEP: u64 = 4 << 20;

#[derive(Args)]
pub(crate) struct RemoteArguments {
    /// A smoke run: one round, a twentieth of a second a point, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Alternations of all targets over each point. Nine unless told otherwise.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of load per point, target and round. 0.2 unless told otherwise.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only these points, such as `read-4K-1,write-512-1`.
    #[arg(long, value_delimiter = ',')]
    points: Vec<String>,
    /// Leave out the stock NBD servers and fio.
    #[arg(long)]
    no_peers: bool,
    /// Leave it to the kernel which processor client and servers run on, and let processors halt.
    #[arg(long)]
    unplaced: bool,
    /// Size of the file and of the volume, all of it written beforehand.
    #[arg(long, value_parser = super::parse_size, default_value = "256M")]
    size: u64,
    /// Size of Flagstone's device, as its command line takes it.
    #[arg(long, default_value = "2G")]
    device_size: String,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for the files under test; needs O_DIRECT. Default: in memory, /dev/shm. On a disk this is the variant with a
    /// real device.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(super) fn run(root: &Path, arguments: &RemoteArguments) -> Result<()> {
    let points = choose(&arguments.points)?;
    let (rounds, seconds) = match arguments.quick {
        true => (1, 0.05),
        false => (9, 0.2),
    };
    let rounds = arguments.rounds.unwrap_or(rounds);
    let seconds = arguments.seconds.unwrap_or(seconds);
    ensure!(
        rounds > 0 && (SECONDS_MIN..=3600.0).contains(&seconds),
        "--rounds is {rounds} and --seconds {seconds}; expected 1 or more, and {SECONDS_MIN} to 3600"
    );
    let size_bytes = arguments.size;
    ensure!(
        size_bytes >= SIZE_STEP && size_bytes.is_multiple_of(SIZE_STEP),
        "--size is {size_bytes} bytes; expected a multiple of 4M"
    );
    let work = repo::target_dir(root).join("bench-remote");
    let dir = work_dir("remote", arguments.dir.as_deref(), &work);
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => daemon::build(root)?,
    };
    let place = Place {
        dir: &dir,
        binary: &binary,
        device_size: &arguments.device_size,
        size_bytes,
        peers: !arguments.no_peers,
        placing: match arguments.unplaced {
            true => None,
            false => Some(Placing::start(&dir)?),
        },
    };
    let programs = if place.peers { &PROGRAMS[..] } else { &[] };
    let mut setting = Setting::read(root, &dir, programs)?;
    let placed = place.placing.as_ref().map(Placing::describe);
    let placed = placed.unwrap_or_else(|| "left to the kernel".to_owned());
    setting.facts.push(("placing".to_owned(), placed));
    let Measured {
        described,
        samples,
        pairs,
        calm,
    } = place.measure(&points, rounds, seconds)?;
    setting.facts.push(("stolen".to_owned(), calm.describe()));
    let report = Report {
        setting,
        command: command_line(),
        described,
        points,
        samples,
        pairs,
        rounds,
        seconds,
        size_bytes,
    };
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let default_out = match arguments.quick {
        true => work,
        false => root.join("docs/benchmarks"),
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    let goals = points::goals(&report.samples, &report.pairs);
    for goal in &goals {
        println!("{}", goal_line(goal));
    }
    println!("{}", points::count(&goals));
    println!("results: {}", page.display());
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<Point>> {
    let all = points();
    for name in names {
        if !all.iter().any(|point| point.name() == *name) {
            let known: Vec<String> = all.iter().map(Point::name).collect();
            bail!("no point `{name}`; there are {}", known.join(", "));
        }
    }
    let chosen = |point: &Point| names.is_empty() || names.contains(&point.name());
    Ok(all.into_iter().filter(chosen).collect())
}

/// A folder of this run's own, which is removed in the end: in `dir`, or in memory, or below the build folder where there is none.
pub(super) fn work_dir(what: &str, dir: Option<&Path>, work: &Path) -> PathBuf {
    let memory = Path::new(MEMORY);
    let within = match memory.is_dir() {
        true => memory,
        false => work,
    };
    let name = format!("flagstone-{what}-{}", std::process::id());
    dir.unwrap_or(within).join(name)
}

/// Name, and how it is run, of each target.
type Described = Vec<(&'static str, points::Role, String)>;

/// What came of a run.
struct Measured {
    described: Described,
    samples: Vec<Sample>,
    pairs: Vec<Pair>,
    calm: Calm,
}

/// Where, and with what.
struct Place<'a> {
    dir: &'a Path,
    binary: &'a Path,
    device_size: &'a str,
    size_bytes: u64,
    peers: bool,
    placing: Option<Placing>,
}

impl Place<'_> {
    /// Starts everything, measures all points in all rounds, and stops everything.
    fn measure(&self, points: &[Point], rounds: u32, seconds: f64) -> Result<Measured> {
        let native_port = free_port()?;
        let mut node = Node::start(NodeOptions {
            binary: self.binary.to_path_buf(),
            dir: self.dir.join("node"),
            size: self.device_size.to_owned(),
            cores: 1,
            config: None,
            more_devices: 0,
            arguments: vec!["--native".to_owned(), format!("127.0.0.1:{native_port}")],
            environment: Vec::new(),
        })?;
        let mut targets = self.targets(&node, native_port)?;
        let described = targets
            .iter()
            .map(|target| (target.name, target.role, target.how.clone()))
            .collect();
        let (mut samples, mut pairs) = (Vec::new(), Vec::new());
        let mut calm = Calm::default();
        for round in 0..rounds {
            // Each is the first of a round now and then: behind the last one a node may have something to do yet.
            for place in 0..points.len() {
                let point = &points[(place + round as usize) % points.len()];
                let count = targets.len();
                for turn in 0..count {
                    let target = &mut targets[(turn + round as usize) % count];
                    let lasts = Duration::from_secs_f64(seconds);
                    let sample = calm.least(|| {
                        watched(|| target.measure(point, self.size_bytes, lasts, round))
                    })?;
                    println!("{}", line(&sample));
                    samples.push(sample);
                    thread::sleep(SETTLE);
                }
            }
            pairs.extend(self.measure_pairs(points, &mut targets, round, seconds, &mut calm)?);
        }
        drop(targets);
        node.stop()?;
        Ok(Measured {
            described,
            samples,
            pairs,
            calm,
        })
    }

    /// What is held against each other, right behind each other, one as often first as the other: in a round of all points there are seconds
    /// between them, in which the machine becomes slower or quicker by more than they differ. Before each kind, and each pair of writes, the volume is written anew, and reads come
    /// before writes: over what small writes leave, 4 KiB are two blocks to read, and another part of such a block has to read both.
    ///
    /// Beside a stock server each half comes right behind writing all of its own anew, so that both find in the processor's caches what fits there. In the
    /// rounds nobody does.
    fn measure_pairs(
        &self,
        points: &[Point],
        targets: &mut [Target],
        round: u32,
        seconds: f64,
        calm: &mut Calm,
    ) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        let native = targets.iter().position(|one| one.role == Role::Native);
        let native = native.context("no native target")?;
        let lasts = Duration::from_secs_f64(seconds) / HALF_PART;
        let echoes = targets.iter().filter(|one| one.role == Role::Echo);
        let echoes = echoes.map(|echo| Beside::Echo(echo.name));
        let block = |depth| [false, true].map(|is_write| Beside::Block { is_write, depth });
        let blocks = [1, DEEP].into_iter().flat_map(block);
        let peers: Vec<&'static str> = targets
            .iter()
            .filter(|one| one.role == Role::Peer)
            .map(|peer| peer.name)
            .collect();
        let stock = |is_write| {
            peers
                .iter()
                .map(move |&name| Beside::Peer { name, is_write })
        };
        let stock = [false, true].into_iter().flat_map(stock);
        let kinds: Vec<Beside> = echoes.chain(blocks).chain(stock).collect();
        for kind in kinds {
            if !kind.is_among(points) {
                continue;
            }
            let [own, other] = kind.points();
            let beside = match kind {
                Beside::Block { .. } => Some(native),
                Beside::Echo(name) | Beside::Peer { name, .. } => {
                    targets.iter().position(|one| one.name == name)
                }
            };
            let beside = beside.context("no such target")?;
            let is_each_anew = matches!(kind, Beside::Peer { .. });
            for number in 0..kind.pairs() {
                let pair = calm.least(|| {
                    if !is_each_anew && (number == 0 || own.is_write) {
                        targets[native].fill(self.size_bytes)?;
                        thread::sleep(SETTLE);
                    }
                    let mut half = |target: usize, point: &Point| {
                        if is_each_anew {
                            targets[target].fill(self.size_bytes)?;
                            thread::sleep(SETTLE);
                        }
                        watched(|| targets[target].measure(point, self.size_bytes, lasts, round))
                    };
                    let pair = |(by_own, own): (f64, Sample), (by_other, other): (f64, Sample)| {
                        (by_own.max(by_other), Pair { own, other })
                    };
                    if number.is_multiple_of(2) {
                        let own = half(native, &own)?;
                        let other = half(beside, &other)?;
                        return Ok(pair(own, other));
                    }
                    let other = half(beside, &other)?;
                    let own = half(native, &own)?;
                    Ok(pair(own, other))
                })?;
                println!("{}\n{}", line(&pair.own), line(&pair.other));
                pairs.push(pair);
                thread::sleep(SETTLE);
            }
        }
        Ok(pairs)
    }

    /// A file of its own for each: of one that several share, the later would find in the processor's caches what the one before has left there.
    fn raw_file(&self, of: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("{of}.img"));
        let file =
            fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        file.set_len(self.size_bytes)
            .with_context(|| format!("sizing {}", path.display()))?;
        Ok(path)
    }

    fn targets(&self, node: &Node, native_port: u16) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        if self.peers {
            ensure!(repo::has_program("fio"), "fio is missing: apt install fio");
            targets.push(Target::local(&self.raw_file("local")?));
            let files = ["qemu-nbd", "qsd", "nbdkit"].map(|name| self.raw_file(name));
            let [qemu_nbd, qsd, nbdkit] = files;
            targets.extend(Target::peers(&[qemu_nbd?, qsd?, nbdkit?], self.dir)?);
        }
        for spin in [false, true] {
            targets.push(Target::echo(self.dir, spin)?);
        }
        targets.extend(Target::own(node, native_port, self.size_bytes)?);
        println!("writing {} MiB on each target", self.size_bytes >> 20);
        for target in &mut targets {
            target.fill(self.size_bytes)?;
        }
        if let Some(placing) = &self.placing {
            for pid in targets.iter().filter_map(|target| target.pid) {
                placing.server(pid)?;
            }
            placing.client()?;
        }
        Ok(targets)
    }
}

/// For whoever watches.
fn line(sample: &Sample) -> String {
    let cpu = sample
        .server_us()
        .map_or(String::new(), |us| format!("  server {us:>6.1} us each"));
    format!(
        "round {}  {:<13} {:<13} {:>8.0}/s  p50 {:>6.1} us  p99 {:>7.1} us{cpu}",
        sample.round,
        sample.point.name(),
        sample.target,
        sample.rate,
        sample.p50_us,
        sample.p99_us
    )
}

fn goal_line(goal: &Goal) -> String {
    let Some(found) = &goal.found else {
        return format!("{}: not measured, goal {}", goal.what, goal.bound);
    };
    let verdict = if goal.met { "met" } else { "MISSED" };
    format!(
        "{verdict:<7}{}: {:.2} of {}, goal {}",
        goal.what, found.ratio, found.against, goal.bound
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_chosen_by_name() {
        assert_eq!(choose(&[]).expect("all").len(), points().len());
        let some = choose(&["write-4K-32".to_owned()]).expect("one");
        assert_eq!(some, [Point::new(true, 4096, 32)]);
        let error = choose(&["read-4K-2".to_owned()]).expect_err("unknown");
        assert!(error.to_string().contains("read-512-1"), "{error}");
    }
}
