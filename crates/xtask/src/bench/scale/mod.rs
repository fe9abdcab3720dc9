//! `cargo xtask bench scale`: what a request costs with 1 to 10,000 volumes that are all active.
//!
//! One node, and for each of its cores one connection of the native protocol with all of that core's volumes open. As many
//! requests are in flight at each point, and as many bytes are in use, so that nothing changes but the number of volumes that
//! these are spread over. With `--stripes` it is one volume instead: a plain one beside one that is striped over so many cores.

mod api;
mod report;
mod stripes;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::command_line;
use super::machine::Setting;
use super::remote::load::{Driven, Line, Shape};
use super::remote::native::{Native, Opened, Opening};
use super::remote::work_dir;
use crate::daemon::{self, Node, NodeOptions};
use crate::{process, repo};
use api::Api;
use report::{Report, Sample};

const COUNTS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const BLOCK: u32 = 4096;
/// So much is in use in all volumes together: 16 KiB each of 10,000.
const SPAN_BYTES: u64 = 160 << 20;
/// What a volume may grow to; nobody writes that much.
const VOLUME_BYTES: u64 = 1 << 30;
const SETTLE: Duration = Duration::from_millis(200);
const WARM_PART: u32 = 4;
const SECONDS_MIN: f64 = 0.02;
/// More doesn't fit into one connection's session.
const COUNT_MAX: usize = 16_000;
/// Of one connection; beyond it the server closes it.
const DEPTH_MAX: usize = 1000;

#[derive(Args)]
pub(crate) struct ScaleArguments {
    /// A smoke run: up to 1,000 volumes, one round, a twentieth of a second a point, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// How many volumes are active: 1,10,100,1000,10000 unless told otherwise, in rising order.
    #[arg(long, value_delimiter = ',')]
    counts: Vec<usize>,
    /// Compare one plain volume with one that is striped over so many cores instead, 2 to 16. Give as many --cores.
    #[arg(long, conflicts_with = "counts", value_parser = clap::value_parser!(u32).range(2..=16))]
    stripes: Option<u32>,
    /// Alternations of reads and writes at each point. Three unless told otherwise.
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of load per point and round. Two unless told otherwise.
    #[arg(long)]
    seconds: Option<f64>,
    /// Requests in flight, on all connections together.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Flagstone's cores.
    #[arg(long, default_value_t = 1)]
    cores: u32,
    /// Size of Flagstone's device, as its command line takes it.
    #[arg(long, default_value = "4G")]
    device_size: String,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for the node and its device. Default: in memory, /dev/shm; without that below the build folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What is asked of each point.
struct Plan {
    counts: Vec<usize>,
    rounds: u32,
    lasts: Duration,
    depth: usize,
}

impl Plan {
    fn of(arguments: &ScaleArguments) -> Result<Plan> {
        let (counts, rounds, seconds) = match arguments.quick {
            true => (&COUNTS[..4], 1, 0.05),
            false => (&COUNTS[..], 3, 2.0),
        };
        let counts = match arguments.counts.is_empty() {
            true => counts.to_vec(),
            false => arguments.counts.clone(),
        };
        let rounds = arguments.rounds.unwrap_or(rounds);
        let seconds = arguments.seconds.unwrap_or(seconds);
        ensure!(
            rounds > 0 && (SECONDS_MIN..=3600.0).contains(&seconds),
            "--rounds is {rounds} and --seconds {seconds}; expected 1 or more, and {SECONDS_MIN} to 3600"
        );
        ensure!(
            counts.first().is_some_and(|first| *first > 0)
                && counts.is_sorted_by(|one, next| one < next)
                && counts.last().is_some_and(|last| *last <= COUNT_MAX),
            "--counts are numbers from 1 to {COUNT_MAX} in rising order"
        );
        let depth = arguments.depth;
        let cores = arguments.cores as usize;
        ensure!(
            cores > 0 && (cores..=DEPTH_MAX).contains(&depth),
            "--depth is {depth}; expected one for each core, and {DEPTH_MAX} at most"
        );
        Ok(Plan {
            counts,
            rounds,
            lasts: Duration::from_secs_f64(seconds),
            depth,
        })
    }
}

pub(super) fn run(root: &Path, arguments: &ScaleArguments) -> Result<()> {
    let plan = Plan::of(arguments)?;
    let work = repo::target_dir(root).join("bench-scale");
    let dir = work_dir("scale", arguments.dir.as_deref(), &work);
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let setting = Setting::read(root, &dir, &[])?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => daemon::build(root)?,
    };
    let mut node = Node::start(NodeOptions {
        binary,
        dir: dir.join("node"),
        size: arguments.device_size.clone(),
        cores: arguments.cores,
        config: None,
        more_devices: 0,
        // Those of the other cores are any free ones, which HELLO tells.
        arguments: vec!["--native".to_owned(), "127.0.0.1:0".to_owned()],
        environment: Vec::new(),
    })?;
    let default_out = match arguments.quick {
        true => work,
        false => root.join("docs/benchmarks"),
    };
    let out = arguments.out.clone().unwrap_or(default_out);
    if let Some(stripes) = arguments.stripes {
        let samples = stripes::measure(&node, &plan, stripes)?;
        node.stop()?;
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        let page = stripes::write(&out, &setting, (arguments.cores, &plan), &samples)?;
        println!("results: {}", page.display());
        return Ok(());
    }
    let samples = measure(&node, &plan)?;
    node.stop()?;
    let report = Report {
        setting,
        command: command_line(),
        cores: arguments.cores,
        depth: plan.depth,
        rounds: plan.rounds,
        seconds: plan.lasts.as_secs_f64(),
        samples,
    };
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let page = report.write(&out)?;
    println!("results: {}", page.display());
    Ok(())
}

/// All points in rising order, since volumes are made as they are needed.
fn measure(node: &Node, plan: &Plan) -> Result<Vec<Sample>> {
    let address = native_address(node)?;
    let pid = node.pid()?;
    let mut volumes: Vec<(String, String)> = Vec::new();
    let mut samples = Vec::new();
    for &count in &plan.counts {
        // Another one each time: while a point is measured nothing is asked, and the node closes connections that are idle for some seconds.
        let mut api = Api::connect(node.api_port, &node.options.dir.join("api.key"))?;
        for index in volumes.len()..count {
            let made = api.create_volume(&name(index), VOLUME_BYTES, None);
            let made = made.with_context(|| format!("creating volume {index}"))?;
            volumes.push((name(index), made));
        }
        let (mut lines, span_bytes) = filled(address, &volumes)?;
        thread::sleep(SETTLE);
        for round in 0..plan.rounds {
            for is_write in [false, true] {
                let sample = one(&mut lines, plan, (count, round, is_write, span_bytes), pid)?;
                println!("{}", sample.line());
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

/// All of these volumes, open and full as far as they are used: so many bytes of each.
fn filled(address: SocketAddr, volumes: &[(String, String)]) -> Result<(Lines, u64)> {
    let mut lines = open_all(address, volumes)?;
    // The same in all volumes together, in whole blocks.
    let blocks = (SPAN_BYTES / u64::from(BLOCK) / volumes.len() as u64).max(1);
    let span_bytes = fillable(blocks * u64::from(BLOCK));
    for (line, places) in &mut lines {
        line.fill(*places, span_bytes)?;
    }
    Ok((lines, span_bytes))
}

/// As much as the load can fill in requests of one size: a multiple of a MiB, or less than one.
fn fillable(span_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    match span_bytes > MIB {
        true => span_bytes / MIB * MIB,
        false => span_bytes,
    }
}

fn name(index: usize) -> String {
    format!("volume-{index:05}")
}

/// Where the first core speaks the native protocol.
fn native_address(node: &Node) -> Result<SocketAddr> {
    let info = node.json(&["node", "info"])?;
    let first = info["native_addresses"][0].as_str();
    let first = first.context("the node doesn't say where it speaks the native protocol")?;
    first.parse().context("an address of the native protocol")
}

type Lines = Vec<(Line<Native>, usize)>;

/// A connection to each core that has volumes, with all of these, named with their tokens, open.
fn open_all(first: SocketAddr, volumes: &[(String, String)]) -> Result<Lines> {
    let mut by_core: BTreeMap<SocketAddr, Opening> = BTreeMap::new();
    by_core.insert(first, Opening::connect(first)?);
    for (name, token) in volumes {
        let mut address = first;
        // Once to the first core, and if the volume isn't there, to its own.
        for _ in 0..2 {
            let opening = match by_core.entry(address) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    new.insert(Opening::connect(address)?)
                }
            };
            match opening.open(name, token)? {
                Opened::Here => {
                    address = first;
                    break;
                }
                Opened::At(other) => address = other,
            }
        }
        if address != first {
            bail!("{name} is not where it is said to be");
        }
    }
    let openings = by_core.into_values().enumerate();
    let lines = openings.map(|(seed, opening)| {
        let places = opening.volume_count();
        (opening.into_line(seed as u64 + 1), places)
    });
    Ok(lines.filter(|(_, places)| *places > 0).collect())
}

/// One point: all connections at once, each on its thread.
fn one(
    lines: &mut Lines,
    plan: &Plan,
    (count, round, is_write, span_bytes): (usize, u32, bool, u64),
    pid: u32,
) -> Result<Sample> {
    let each = plan.depth / lines.len().max(1);
    let mut drive = |lasts: Duration| -> Result<Vec<Driven>> {
        thread::scope(|scope| {
            let threads: Vec<_> = lines
                .iter_mut()
                .map(|(line, places)| {
                    let shape = Shape {
                        is_write,
                        len_bytes: BLOCK,
                        depth: each.max(1),
                        places: *places,
                        span_bytes,
                    };
                    scope.spawn(move || line.drive(&shape, lasts))
                })
                .collect();
            let driven = threads.into_iter().map(|thread| match thread.join() {
                Ok(driven) => driven,
                Err(_) => bail!("a load panicked"),
            });
            driven.collect()
        })
    };
    drive(plan.lasts / WARM_PART)?;
    let before = process::threads_ran_ns(pid)?;
    let driven = drive(plan.lasts)?;
    let ran_ns = process::threads_ran_ns(pid)?.saturating_sub(before);
    let rate: f64 = driven.iter().map(Driven::rate).sum();
    let mut all = Driven {
        seconds: plan.lasts.as_secs_f64(),
        latencies_ns: driven
            .into_iter()
            .flat_map(|one| one.latencies_ns)
            .collect(),
    };
    let answered = all.latencies_ns.len().max(1) as f64;
    Ok(Sample {
        count,
        round,
        is_write,
        rate,
        p50_us: all.percentile_us(50),
        p99_us: all.percentile_us(99),
        server_us: ran_ns as f64 / 1000.0 / answered,
        resident_bytes: process::tree_resident_bytes(pid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_filled_in_whole_requests() {
        assert_eq!(fillable(16 << 10), 16 << 10);
        assert_eq!(fillable(SPAN_BYTES), SPAN_BYTES);
        assert_eq!(fillable((1 << 20) + 4096), 1 << 20);
    }
}
