//! `cargo xtask bench nfs`: Flagstone beside NFS-Ganesha on one machine, in one run, with one client.
//!
//! For each point the servers take turns, and the whole is repeated. What counts are ratios of medians, and
//! what each server has done when it answers is part of the result.

pub(crate) mod client;
pub(super) mod curve;
pub(crate) mod data;
mod floor;
mod ganesha;
mod names;
mod points;
mod report;
mod servers;
mod tree;
pub(crate) mod wire;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::client::Sample;
use super::machine::{self, Setting};
use super::{REPEATS_MAX, SETTLE, command_line, is_disturbed, parse_size};
use crate::{daemon, process, repo};
use client::Outcome;
use data::{Kind, MEGABYTE, Random, Transfers};
use floor::Disk;
use names::{Create, List, Look, Made, Remove, Rename};
use points::{Load, Point};
use report::Report;
use servers::{DeviceCounts, Own, Server};
use tree::{Tree, Unpack};

/// Files that a load on names gets if CREATE at its depth was not measured.
const FILES_PREPARED: u64 = 2000;
/// More is not made in one go.
const FILES_MAX: u64 = 100_000;

#[derive(Args)]
pub(crate) struct NfsArguments {
    /// A smoke run: one round, 0.3 seconds a point, a small file, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Measure NFS-Ganesha only.
    #[arg(long)]
    peers: bool,
    /// Measure Flagstone only.
    #[arg(long, conflicts_with = "peers")]
    no_peers: bool,
    /// Alternations of the servers over each point.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of load per point, server and round.
    #[arg(long)]
    seconds: Option<f64>,
    /// Size of the large file, all of it written beforehand.
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Size of Flagstone's device, as its command line takes it.
    #[arg(long, default_value = "12G")]
    device_size: String,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Measure this Flagstone binary too, named `beside`.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Only these points, such as `create16,rename16`; a name without its number means all depths.
    #[arg(long, value_delimiter = ',')]
    points: Vec<String>,
    /// Unpack the files of this folder instead of a generated tree.
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Folder for the files under test; needs O_DIRECT, and for the peer ext4 or the like. Default: below the
    /// build folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Further arguments of Flagstone, such as `--block-cache=0`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What every point of a run shares.
struct Run {
    seconds: f64,
    large_bytes: u64,
    disk: Option<String>,
    /// The reference that changes are held against.
    floor: Disk,
    tree: Tree,
}

/// What one point on one server gave in one round.
struct Taken {
    sample: Sample,
    device: Option<DeviceCounts>,
}

pub(super) fn run(root: &Path, arguments: &NfsArguments) -> Result<()> {
    let points = choose_points(&arguments.points)?;
    let work = repo::target_dir(root).join("bench-nfs");
    let dir = arguments.dir.clone().unwrap_or_else(|| work.join("files"));
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let quick = arguments.quick;
    let run = Run {
        seconds: arguments.seconds.unwrap_or(if quick { 0.3 } else { 1.0 }),
        large_bytes: arguments
            .size
            .unwrap_or(if quick { 256 << 20 } else { 2 << 30 }),
        disk: machine::disk_name(&dir),
        floor: Disk::new(&dir)?,
        tree: match &arguments.tree {
            None => Tree::generated(),
            Some(folder) => Tree::read(folder)?,
        },
    };
    let rounds = arguments.rounds.unwrap_or(if quick { 1 } else { 5 });
    ensure!(
        rounds > 0 && run.seconds > 0.0,
        "rounds and seconds must be positive"
    );
    ensure!(
        run.large_bytes.is_multiple_of(MEGABYTE) && run.large_bytes > 0,
        "the large file's size must be of whole MiB"
    );

    let mut setting = Setting::read(root, &dir, &[])?;
    if !arguments.no_peers {
        setting
            .facts
            .push(("NFS-Ganesha".to_owned(), ganesha::version()));
    }
    let mut servers = start(root, arguments, &dir)?;
    for server in &mut servers {
        println!("writing {} MiB to {}", run.large_bytes >> 20, server.name);
        let began = Instant::now();
        server
            .fill(run.large_bytes)
            .with_context(|| format!("filling {}", server.name))?;
        println!("  in {:.1} s", began.elapsed().as_secs_f64());
    }
    let (taken, repeats) = measure(&run, &mut servers, &points, rounds)?;
    let report = Report {
        setting,
        servers: servers.iter().map(report::Described::of).collect(),
        points,
        taken,
        rounds,
        repeats,
        seconds: run.seconds,
        large_bytes: run.large_bytes,
        tree: run.tree,
        command: command_line(),
    };
    run.floor.remove()?;
    for server in servers {
        server.stop()?;
    }
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let default_out = match quick {
        true => work,
        false => root.join("docs/benchmarks"),
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    println!("results: {}", page.display());
    Ok(())
}

fn choose_points(names: &[String]) -> Result<Vec<Point>> {
    let all = points::points();
    let is_meant = |point: &Point, name: &str| {
        let kind = point.name.trim_end_matches(|c: char| c.is_ascii_digit());
        point.name == name || kind == name
    };
    for name in names {
        if !all.iter().any(|point| is_meant(point, name)) {
            let known: Vec<&str> = all.iter().map(|point| point.name.as_str()).collect();
            bail!("no point `{name}`; there are {}", known.join(", "));
        }
    }
    let chosen = |point: &Point| names.is_empty() || names.iter().any(|name| is_meant(point, name));
    Ok(all.into_iter().filter(chosen).collect())
}

fn start(root: &Path, arguments: &NfsArguments, dir: &Path) -> Result<Vec<Server>> {
    // What a run that failed has left.
    for name in [servers::OWN, servers::BESIDE, servers::PEER] {
        let left = dir.join(name);
        if left.exists() {
            fs::remove_dir_all(&left).with_context(|| format!("removing {}", left.display()))?;
        }
    }
    let mut servers = Vec::new();
    if !arguments.no_peers {
        servers.push(servers::peer(dir, &machine::filesystem(dir))?);
    }
    if !arguments.peers {
        let own = |binary: PathBuf| Own {
            binary,
            device_size: arguments.device_size.clone(),
            arguments: arguments.arguments.clone(),
            environment: Vec::new(),
        };
        let binary = match &arguments.binary {
            Some(binary) => binary.clone(),
            None => daemon::build(root)?,
        };
        servers.push(servers::own(servers::OWN, own(binary), dir)?);
        if let Some(binary) = &arguments.beside {
            servers.push(servers::own(servers::BESIDE, own(binary.clone()), dir)?);
        }
    }
    Ok(servers)
}

/// All points in all rounds. And how many points had to be repeated.
fn measure(
    run: &Run,
    servers: &mut [Server],
    points: &[Point],
    rounds: u32,
) -> Result<(Vec<Taken>, u32)> {
    let (mut all, mut repeats) = (Vec::new(), 0);
    for round in 0..rounds {
        for point in points {
            let mut taken = one_point(run, servers, point, round)?;
            // What takes files away can't be done once more.
            for _ in 0..REPEATS_MAX {
                let is_good = !taken.iter().any(|each| is_disturbed(&each.sample));
                if is_good || point.load == Load::Remove {
                    break;
                }
                println!(
                    "round {round}  {:<10} again: CPU time was stolen",
                    point.name
                );
                repeats += 1;
                taken = one_point(run, servers, point, round)?;
            }
            all.extend(taken);
        }
    }
    Ok((all, repeats))
}

/// One point on every server, starting with another one each round.
fn one_point(run: &Run, servers: &mut [Server], point: &Point, round: u32) -> Result<Vec<Taken>> {
    let mut all = Vec::new();
    let mut floor = || -> Result<()> {
        if point.stable_changes(&run.tree).is_none() {
            return Ok(());
        }
        let sample = run.floor.measure(point, round, run.seconds)?;
        println!(
            "round {round}  {:<10} {:<10} {:>9.0}/s  p50 {:>6.0} us  p99 {:>6.0} us",
            point.name, sample.target, sample.rate, sample.p50_us, sample.p99_us
        );
        let device = None;
        all.push(Taken { sample, device });
        thread::sleep(SETTLE);
        Ok(())
    };
    // Neither always behind the same server nor always before it.
    let is_first = round % 2 == 1;
    if is_first {
        floor()?;
    }
    let mut of_servers = Vec::new();
    let count = servers.len();
    for turn in 0..count {
        let server = &mut servers[(turn + round as usize) % count];
        let name = server.name;
        let taken = one_turn(run, server, point, round)
            .with_context(|| format!("{} on {name} in round {round}", point.name))?;
        println!(
            "round {round}  {:<10} {name:<10} {:>9.0}/s  p50 {:>6.0} us  p99 {:>6.0} us  server {:>5.2} \
             s/100k",
            point.name,
            taken.sample.rate,
            taken.sample.p50_us,
            taken.sample.p99_us,
            taken.sample.server_cpu_per_100k(),
        );
        of_servers.push(taken);
        thread::sleep(SETTLE);
    }
    if !is_first {
        floor()?;
    }
    all.extend(of_servers);
    Ok(all)
}

fn one_turn(run: &Run, server: &mut Server, point: &Point, round: u32) -> Result<Taken> {
    prepare(server, point)?;
    let device_before = server.device_counts()?;
    let awake_before = server.awake_seconds()?;
    let server_cpu = |server: &Server| server.pid().map_or(0.0, process::tree_cpu_seconds);
    let (server_before, client_before) = (server_cpu(server), process::own_cpu_seconds());
    let (busy_before, stolen_before) = process::machine_busy_seconds()?;
    let counts_before = process::machine_counts(run.disk.as_deref())?;
    let began = Instant::now();

    let outcome = load(run, server, point, round)?;

    let took = began.elapsed().as_secs_f64();
    let counts_after = process::machine_counts(run.disk.as_deref())?;
    let (busy_after, stolen_after) = process::machine_busy_seconds()?;
    let used = server_cpu(server) - server_before;
    let client = process::own_cpu_seconds() - client_before;
    let device = match server.is_ours() {
        true => Some(server.device_counts()?.since(device_before)),
        false => None,
    };
    let operations = outcome.operations as f64;
    Ok(Taken {
        sample: Sample {
            operations,
            seconds: outcome.seconds,
            p50_us: outcome.p50_us,
            p99_us: outcome.p99_us,
            server_cpu_seconds: used,
            client_cpu_seconds: client,
            others_cores: ((busy_after - busy_before - used - client) / took).max(0.0),
            stolen_cores: (stolen_after - stolen_before) / took,
            context_switches: counts_after.context_switches - counts_before.context_switches,
            disk_requests: counts_after.disk_requests - counts_before.disk_requests,
            awake_seconds: server.awake_seconds()? - awake_before,
            ..Sample::of_rate(
                server.name,
                &point.name,
                round,
                operations / outcome.seconds,
            )
        },
        device,
    })
}

/// What must be so before a point, and is not measured.
fn prepare(server: &mut Server, point: &Point) -> Result<()> {
    match point.load {
        Load::FromMemory => server.warm(),
        Load::Random(Kind::Reads) | Load::Sequential(Kind::Reads) => server.forget_large(),
        Load::Create => {
            let directory = server.new_directory("files")?;
            let made = Made {
                directory,
                files: Vec::new(),
            };
            server.made.insert(point.depth, made);
            Ok(())
        }
        Load::GetAttributes | Load::Lookup | Load::List | Load::Rename | Load::Remove => {
            let is_there = |made: &Made| made.files.len() >= 2 * point.depth as usize;
            if server.made.get(&point.depth).is_some_and(is_there) {
                return Ok(());
            }
            let mut made = Made {
                directory: server.new_directory("files")?,
                files: Vec::new(),
            };
            let mut create = Create::new(&mut made, FILES_PREPARED);
            server.connect()?.run(&mut create, 32, None)?;
            server.made.insert(point.depth, made);
            Ok(())
        }
        Load::Random(_) | Load::Sequential(_) | Load::Unpack => Ok(()),
    }
}

fn load(run: &Run, server: &mut Server, point: &Point, round: u32) -> Result<Outcome> {
    let mut connection = server.connect()?;
    let depth = point.depth as usize;
    let limit = Some(Duration::from_secs_f64(run.seconds));
    // Every server gets the same places in the same round.
    let seed = u64::from(round) << 32 | u64::from(point.depth);
    let large = server.large.clone();
    let (small_bytes, large_bytes) = (servers::SMALL_BYTES, run.large_bytes);
    match point.load {
        Load::FromMemory => {
            let mut work = Transfers::random(&server.small, small_bytes, Kind::Reads, seed);
            return connection.run(&mut work, depth, limit);
        }
        Load::Random(kind) => {
            let mut work = Transfers::random(&large, large_bytes, kind, seed);
            return connection.run(&mut work, depth, limit);
        }
        Load::Sequential(kind) => {
            let began = Instant::now();
            let mut work = Transfers::sequential(&large, large_bytes, kind, MEGABYTE);
            let outcome = connection.run(&mut work, depth, limit)?;
            if kind == Kind::Writes {
                connection.commit(&large)?;
            }
            return Ok(Outcome {
                seconds: began.elapsed().as_secs_f64(),
                ..outcome
            });
        }
        Load::Unpack => {
            let into = server.new_directory("tree")?;
            return connection.run(&mut Unpack::new(&run.tree, into), 1, None);
        }
        _ => {}
    }
    let made = server
        .made
        .get_mut(&point.depth)
        .context("files were made before")?;
    let random = Random::new(seed);
    match point.load {
        Load::Create => connection.run(&mut Create::new(made, FILES_MAX), depth, limit),
        Load::List => connection.run(&mut List::new(made), depth, limit),
        Load::Rename => connection.run(&mut Rename::new(made), depth, limit),
        Load::Remove => connection.run(&mut Remove { made }, depth, limit),
        load => {
            let by_name = load == Load::Lookup;
            let mut look = Look {
                made,
                by_name,
                random,
            };
            connection.run(&mut look, depth, limit)
        }
    }
}
