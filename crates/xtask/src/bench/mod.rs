//! `cargo xtask bench block`: Flagstone beside its peers on one machine, in one run. `bench nfs` and `bench curve` are in `nfs`,
//! `bench vm` is in `vm`, `bench isolation` in `isolation`, `bench remote` in `remote`, `bench scale` in `scale`.
//!
//! For each point the targets take turns, and the whole is repeated, so that drift of the machine
//! hits all of them alike. What counts are ratios of medians; how each server treats a completed
//! write is part of the result.

mod client;
mod floor;
mod isolation;
mod machine;
pub(crate) mod nfs;
mod plot;
mod points;
mod remote;
mod report;
mod scale;
mod stats;
mod targets;
mod vm;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::{daemon, process, repo};
use client::{Clients, Sample};
use machine::Setting;
use points::{CHECK_POINTS, IDLE, POINTS, Point};
use report::{Described, Report};
use stats::Results;
use targets::{Caching, FlagstoneSetup, Target, Variant};

/// Lets a server finish what a load left behind before the next one is measured.
const SETTLE: Duration = Duration::from_millis(300);

/// Whose versions the report of volumes has.
const PROGRAMS: [(&str, &str); 3] = [("fio", "fio"), ("qemu", "qemu-nbd"), ("nbdkit", "nbdkit")];

/// If the hypervisor withheld more of a core than this from any target at a point, that point is measured
/// again on all targets, whatever it gave: half a round must not decide what neighbours of the machine do. Of a scene of
/// `bench isolation` it is the worst second, and of the whole machine; of what `bench remote` measures at a time all of it, and of the whole machine.
const STOLEN_CORES_MAX: f64 = 0.05;
/// How often at most. What comes last counts, disturbed or not; of a scene the time with the calmest worst second.
const REPEATS_MAX: u32 = 2;

/// Benchmarks.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Volumes over NBD beside qemu-nbd, qemu-storage-daemon, nbdkit and the raw file.
    Block(BlockArguments),
    /// Filesystems over NFS beside NFS-Ganesha on ext4; takes root.
    Nfs(nfs::NfsArguments),
    /// How much faster a filesystem is with more clients, and the curve that Oracle FSS fits to that.
    Curve(nfs::curve::CurveArguments),
    /// What virtual machines cost: bytes and operations of the application, of NFS and of the device.
    Vm(vm::VmArguments),
    /// What neighbours on one device do to each other: Decibel's Figure 13 on a node.
    Isolation(isolation::IsolationArguments),
    /// What the way to a volume costs: the native protocol and NBD beside the file, a bare echo and stock servers.
    Remote(remote::RemoteArguments),
    /// Throughput and latency with 1 to 10,000 active volumes, over the native protocol.
    Scale(scale::ScaleArguments),
    /// The bare echo of `bench remote`.
    #[command(hide = true)]
    Echo(remote::echo::EchoArguments),
}

#[derive(Args)]
pub(crate) struct BlockArguments {
    /// A smoke run: one round, one second a point, a small file, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Measure the raw file and the peers only.
    #[arg(long)]
    peers: bool,
    /// Measure Flagstone and the raw file only.
    #[arg(long, conflicts_with = "peers")]
    no_peers: bool,
    /// Alternations of all targets over each point.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of load per point, target and round.
    #[arg(long)]
    seconds: Option<u32>,
    /// Size of the file and of the volume, all of it written beforehand.
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Size of Flagstone's device, as its command line takes it.
    #[arg(long, default_value = "20G")]
    device_size: String,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Flagstone's cores.
    #[arg(long, default_value_t = 1)]
    cores: u32,
    /// Another way to run Flagstone, `NAME: KEY=VALUE --argument ...`; may be repeated, and then
    /// replaces the plain one.
    #[arg(long)]
    variant: Vec<String>,
    /// Only these points, such as `rr1,wf32`.
    #[arg(long, value_delimiter = ',')]
    points: Vec<String>,
    /// Also run fio's loads through the libnbd client, to hold the two against each other.
    #[arg(long)]
    check_client: bool,
    /// Let the libnbd client poll without sleeping.
    #[arg(long)]
    spin: bool,
    /// Folder for the files under test; needs O_DIRECT. Default: below the build folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs a benchmark.
pub(crate) fn run(root: &Path, bench: Bench) -> Result<()> {
    match bench {
        Bench::Block(arguments) => block(root, &arguments),
        Bench::Nfs(arguments) => nfs::run(root, &arguments),
        Bench::Curve(arguments) => nfs::curve::run(root, &arguments),
        Bench::Vm(arguments) => vm::run(root, &arguments),
        Bench::Isolation(arguments) => isolation::run(root, &arguments),
        Bench::Remote(arguments) => remote::run(root, &arguments),
        Bench::Scale(arguments) => scale::run(root, &arguments),
        Bench::Echo(arguments) => remote::echo::serve(&arguments),
    }
}

fn block(root: &Path, arguments: &BlockArguments) -> Result<()> {
    let points = choose_points(arguments)?;
    let work = repo::target_dir(root).join("bench-block");
    let dir = arguments.dir.clone().unwrap_or_else(|| work.join("files"));
    for folder in [&work, &dir] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let quick = arguments.quick;
    let clients = Clients {
        root: root.to_path_buf(),
        file: dir.join("raw.img"),
        libnbd_client: client::build_libnbd_client(root, &work)?,
        size_bytes: arguments
            .size
            .unwrap_or(if quick { 512 << 20 } else { 4 << 30 }),
        seconds: arguments.seconds.unwrap_or(if quick { 1 } else { 3 }),
        disk: machine::disk_name(&dir),
        spin: arguments.spin,
    };
    let rounds = arguments.rounds.unwrap_or(if quick { 1 } else { 5 });
    ensure!(
        rounds > 0 && clients.seconds > 0,
        "rounds and seconds must be positive"
    );

    let setting = Setting::read(root, &dir, &PROGRAMS)?;
    let targets = start_targets(root, arguments, &clients, &dir)?;
    let exchange = match arguments.no_peers {
        true => None,
        false => Some(targets::exchange(clients.size_bytes, &dir)?),
    };
    println!("writing {} MiB on each target", clients.size_bytes >> 20);
    for target in &targets {
        // The peers serve the raw file, which is written once.
        if matches!(target.caching, Caching::Raw | Caching::Own) {
            clients.prewrite(target)?;
        }
    }

    let (samples, repeats) = measure(&clients, &targets, exchange.as_ref(), &points, rounds)?;
    let report = Report {
        setting,
        described: targets.iter().chain(&exchange).map(Described::of).collect(),
        points,
        results: Results {
            targets: targets
                .iter()
                .map(|each| (each.name.clone(), each.caching))
                .collect(),
            samples,
        },
        rounds,
        repeats,
        seconds: clients.seconds,
        size_bytes: clients.size_bytes,
        spin: clients.spin,
        command: command_line(),
    };
    for target in targets.into_iter().chain(exchange) {
        target.stop()?;
    }
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let default_out = if quick {
        work
    } else {
        root.join("docs/benchmarks")
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    println!("results: {}", page.display());
    Ok(())
}

/// All points in all rounds, then the idle servers. And how many points had to be repeated.
fn measure(
    clients: &Clients,
    targets: &[Target],
    exchange: Option<&Target>,
    points: &[Point],
    rounds: u32,
) -> Result<(Vec<Sample>, u32)> {
    let (mut samples, mut repeats) = (Vec::new(), 0);
    for round in 0..rounds {
        if points::any_reads(points) {
            // All peers share the raw file, so it is used four times as much as a target with a file of its own, and the host of a virtual
            // disk has more of it in its memory: three times the rate at depth 32.
            println!("round {round}  reading all of each target once");
            for target in targets {
                if matches!(target.caching, Caching::Raw | Caching::Own) {
                    clients.read_through(target)?;
                }
            }
        }
        for point in points {
            let mut taken = one_point(clients, targets, point, round)?;
            for _ in 0..REPEATS_MAX {
                if !taken.iter().any(is_disturbed) {
                    break;
                }
                println!(
                    "round {round}  {:<12} again: CPU time was stolen",
                    point.name
                );
                repeats += 1;
                taken = one_point(clients, targets, point, round)?;
            }
            samples.extend(taken);
            if let Some(exchange) = exchange
                && floor::applies(point)
            {
                samples.extend(floor::measure(clients, exchange, point, round)?);
            }
        }
    }
    samples.extend(idle(targets, if rounds == 1 { 2 } else { 10 })?);
    Ok((samples, repeats))
}

fn is_disturbed(sample: &Sample) -> bool {
    sample.stolen_cores > STOLEN_CORES_MAX
}

/// The command as it would be typed; folders are left out, since they are of one machine only.
fn command_line() -> String {
    let mut shown = vec!["cargo xtask".to_owned()];
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--dir" | "--out" | "--binary" | "--beside" | "--tree" => drop(words.next()),
            _ if ["--dir=", "--out=", "--binary=", "--beside=", "--tree="]
                .iter()
                .any(|name| word.starts_with(name)) => {}
            "--own-network" => {}
            _ if word.contains(' ') => shown.push(format!("'{word}'")),
            _ => shown.push(word),
        }
    }
    shown.join(" ")
}

fn choose_points(arguments: &BlockArguments) -> Result<Vec<Point>> {
    let more: &[Point] = if arguments.check_client {
        &CHECK_POINTS
    } else {
        &[]
    };
    let all: Vec<Point> = POINTS.iter().chain(more).copied().collect();
    for name in &arguments.points {
        if !all.iter().any(|point| point.name == name) {
            let names: Vec<&str> = all.iter().map(|point| point.name).collect();
            bail!("no point `{name}`; there are {}", names.join(", "));
        }
    }
    let chosen = |point: &Point| {
        arguments.points.is_empty() || arguments.points.iter().any(|name| name == point.name)
    };
    Ok(all.into_iter().filter(chosen).collect())
}

fn start_targets(
    root: &Path,
    arguments: &BlockArguments,
    clients: &Clients,
    dir: &Path,
) -> Result<Vec<Target>> {
    // The file must have its size before a server opens it.
    let file = fs::File::create(&clients.file).context("creating the raw file")?;
    file.set_len(clients.size_bytes)
        .context("sizing the raw file")?;
    let mut targets = vec![targets::raw()];
    if !arguments.no_peers {
        targets.extend(targets::peers(|_| &clients.file, dir)?);
    }
    if !arguments.peers {
        let setup = FlagstoneSetup {
            binary: match &arguments.binary {
                Some(binary) => binary.clone(),
                None => daemon::build(root)?,
            },
            cores: arguments.cores,
            device_size: arguments.device_size.clone(),
            volume_bytes: clients.size_bytes,
        };
        let mut variants = Vec::new();
        for text in &arguments.variant {
            variants.push(Variant::parse(text)?);
        }
        if variants.is_empty() {
            variants.push(Variant::plain());
        }
        for variant in &variants {
            targets.push(targets::flagstone(&setup, variant, dir)?);
        }
    }
    Ok(targets)
}

/// One point on every target, starting with another one each round.
fn one_point(
    clients: &Clients,
    targets: &[Target],
    point: &Point,
    round: u32,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for turn in 0..targets.len() {
        let target = &targets[(turn + round as usize) % targets.len()];
        let cached = target.caching == Caching::PageCache;
        if cached {
            client::drop_cache(&clients.file)?;
        }
        let sample = clients.run(target, point, round)?;
        println!(
            "round {round}  {:<12} {:<10} {:>9.0}/s  p50 {:>6.0} us  p99 {:>6.0} us  server {:>5.2} \
             s/100k  others {:.2}",
            point.name,
            target.name,
            sample.rate,
            sample.p50_us,
            sample.p99_us,
            sample.server_cpu_per_100k(),
            sample.others_cores
        );
        samples.push(sample);
        if cached {
            // Its written pages would otherwise go to the disk during somebody else's point.
            client::drop_cache(&clients.file)?;
        }
        thread::sleep(SETTLE);
    }
    Ok(samples)
}

/// CPU time of all servers while nobody talks to them, all at once.
fn idle(targets: &[Target], seconds: u64) -> Result<Vec<Sample>> {
    thread::sleep(Duration::from_secs(2));
    let before: Vec<f64> = targets
        .iter()
        .map(|target| target.pid().map_or(0.0, process::tree_cpu_seconds))
        .collect();
    let started = Instant::now();
    thread::sleep(Duration::from_secs(seconds));
    let mut samples = Vec::new();
    for (target, before) in targets.iter().zip(before) {
        let Some(pid) = target.pid() else { continue };
        let cpu = process::tree_cpu_seconds(pid) - before;
        println!(
            "idle  {:<10} {:.2} % of a core",
            target.name,
            cpu / seconds as f64 * 100.0
        );
        samples.push(Sample {
            seconds: started.elapsed().as_secs_f64(),
            operations: 0.0,
            server_cpu_seconds: cpu,
            ..Sample::of_rate(&target.name, IDLE, 0, 0.0)
        });
    }
    Ok(samples)
}

/// Reads `4G`, `512M` or a plain number of bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is no size such as 4G"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("G").is_err() && parse_size("99999999T").is_err());
    }
}
