//! Thousands of volumes: creating, listing, restarting, and idling with them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::journals;
use super::nbd::Connection;
use super::scene::{Scene, find_strings};
use crate::daemon::Node;
use crate::process;

const CREATORS: usize = 4;
/// An idle node must cost less than this part of one core.
const IDLE_CORES_MAX: f64 = 0.02;
const IDLE_WATCH: Duration = Duration::from_secs(20);
/// Clients that are connected and ask for nothing.
const IDLE_CLIENTS: usize = 32;
/// What empty volumes may take of the node's memory: so much each, which is about twice what they
/// take, and what creating any at all needs.
const VOLUME_MEMORY_MAX: u64 = 2500;
const CREATION_MEMORY_MAX: u64 = 16 << 20;
/// What a node may take that has just replayed full journals, with up to 512 MiB of rings: the maps
/// that the replay has made, above all. They are let go of after its checkpoint.
const REPLAY_MEMORY_MAX: u64 = 3 << 30;
/// Some volumes are written, so that a restart has mappings to recover.
const WRITTEN_EVERY: usize = 10;

/// How many volumes on what, and how soon they must be back.
pub(super) struct Many {
    pub(super) count: usize,
    pub(super) device_size: String,
    /// As many as the device has journals, so that all of them are in use.
    pub(super) cores: usize,
    /// How long a restart may take.
    pub(super) restart_max: Duration,
}

/// Creates volumes, writes some, lists them, and restarts after a stop and after a kill with every
/// journal full.
pub(super) fn volumes(scene: &Scene, many: &Many) -> Result<()> {
    let count = many.count;
    let mut node = scene.node_on_sparse_file(&many.device_size, many.cores as u32)?;
    let empty = process::tree_resident_bytes(node.pid()?);
    create(&node, count, many.cores)?;
    let created = process::tree_resident_bytes(node.pid()?);
    let taken = created.saturating_sub(empty);
    println!(
        "resident memory: {} MiB empty, {} MiB with {count} volumes ({} bytes each)",
        empty >> 20,
        created >> 20,
        taken / count as u64
    );
    let bound = CREATION_MEMORY_MAX + count as u64 * VOLUME_MEMORY_MAX;
    ensure!(
        taken <= bound,
        "{count} empty volumes take {taken} bytes; the bound is {bound}"
    );
    list(&node, count)?;
    write_some(&node, count)?;

    node.stop()?;
    restart(&mut node, many, "a clean stop")?;
    list(&node, count)?;

    let by_core: Vec<Vec<String>> = (0..many.cores)
        .map(|core| (core..count).step_by(many.cores).map(name).collect())
        .collect();
    journals::fill_and_kill(&mut node, &by_core)?;
    println!("{}", node.verify()?);
    restart(&mut node, many, "a kill with full journals")?;
    println!("{}", recovered(&node)?);
    list(&node, count)?;
    check_some(&node, count)?;
    node.stop()
}

/// Restarts the node and holds it to its time and memory.
fn restart(node: &mut Node, many: &Many, after: &str) -> Result<()> {
    let took = node.restart()?;
    let resident = process::tree_resident_bytes(node.pid()?);
    println!(
        "restart with {} volumes after {after}: {} ms, {} MiB resident",
        many.count,
        took.as_millis(),
        resident >> 20
    );
    ensure!(
        took <= many.restart_max,
        "the restart after {after} took {took:?}; the bound is {:?}",
        many.restart_max
    );
    ensure!(
        resident <= REPLAY_MEMORY_MAX,
        "the node has {resident} bytes resident after {after}; the bound is {REPLAY_MEMORY_MAX}"
    );
    Ok(())
}

/// What the node's log says of its last recovery, journals with nothing to replay left out.
pub(super) fn recovered(node: &Node) -> Result<String> {
    let log = node.options.dir.with_extension("log");
    let text = fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
    let lines = text.lines().filter(|line| line.contains("recovered after"));
    let told: Vec<&str> = lines.filter(|line| !line.contains("groups=0 ")).collect();
    Ok(told.join("\n"))
}

/// Watches the CPU of a node with `count` volumes and a few silent clients.
pub(super) fn idle(scene: &Scene, count: usize) -> Result<()> {
    let mut node = scene.node("4G", 1)?;
    create(&node, count, 1)?;
    let mut clients = Vec::new();
    for index in 0..IDLE_CLIENTS.min(count) {
        clients.push(Connection::open(node.nbd_port, &name(index))?);
    }
    thread::sleep(Duration::from_secs(3));
    let pid = node.pid()?;
    let before = process::tree_cpu_seconds(pid);
    thread::sleep(IDLE_WATCH);
    let cores = (process::tree_cpu_seconds(pid) - before) / IDLE_WATCH.as_secs_f64();
    println!(
        "idle with {count} volumes, {} clients: {:.2} % of a core",
        clients.len(),
        cores * 100.0
    );
    ensure!(cores < IDLE_CORES_MAX, "that is not idle: the bound is 2 %");
    drop(clients);
    node.stop()
}

fn name(index: usize) -> String {
    format!("volume-{index:05}")
}

/// A few users at once, each with the command line. Volumes go round the cores.
fn create(node: &Node, count: usize, cores: usize) -> Result<()> {
    let started = Instant::now();
    thread::scope(|scope| {
        let creators: Vec<_> = (0..CREATORS)
            .map(|creator| {
                scope.spawn(move || -> Result<()> {
                    for index in (creator..count).step_by(CREATORS) {
                        let core = (index % cores).to_string();
                        let words = ["volume", "create", &name(index), "--size", "10G"];
                        node.run(&[&words[..], &["--core", &core]].concat())?;
                    }
                    Ok(())
                })
            })
            .collect();
        for creator in creators {
            creator
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a creator panicked")))?;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    let took = started.elapsed();
    println!(
        "created {count} volumes in {:.1} s, {:.1} ms each, the command's start included",
        took.as_secs_f64(),
        took.as_secs_f64() * 1e3 / count as f64
    );
    Ok(())
}

fn list(node: &Node, count: usize) -> Result<()> {
    let started = Instant::now();
    let listed = find_strings(&node.json(&["volume", "list"])?, "name");
    println!(
        "listed {} volumes in {} ms",
        listed.len(),
        started.elapsed().as_millis()
    );
    for index in 0..count {
        let name = name(index);
        ensure!(listed.contains(&name), "{name} is missing from the list");
    }
    Ok(())
}

fn content(index: usize) -> [u8; 4096] {
    let mut bytes = [index as u8; 4096];
    bytes[..8].copy_from_slice(&(index as u64).to_le_bytes());
    bytes
}

fn write_some(node: &Node, count: usize) -> Result<()> {
    for index in (0..count).step_by(WRITTEN_EVERY) {
        let name = name(index);
        let mut connection = Connection::open(node.nbd_port, &name)?;
        connection
            .write(index as u64 * 4096, &content(index), true)
            .with_context(|| format!("writing to {name}"))?;
        connection.disconnect();
    }
    Ok(())
}

fn check_some(node: &Node, count: usize) -> Result<()> {
    for index in (0..count).step_by(WRITTEN_EVERY) {
        let name = name(index);
        let mut connection = Connection::open(node.nbd_port, &name)?;
        let mut found = [0; 4096];
        connection
            .read(index as u64 * 4096, &mut found)
            .with_context(|| format!("reading {name}"))?;
        ensure!(found == content(index), "{name} lost its block");
        connection.disconnect();
    }
    Ok(())
}
