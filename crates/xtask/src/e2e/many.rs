//! Thousands of volumes: creating, listing, restarting, and idling with them.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

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
/// Clients that fill the journals before a crash, for how long, and with how many writes to a
/// volume before they go on to the next.
const FILLERS: usize = 8;
const FILL_TIME: Duration = Duration::from_secs(10);
const WRITES_PER_VISIT: u64 = 16;
/// Some volumes are written, so that a restart has mappings to recover.
const WRITTEN_EVERY: usize = 10;

/// Creates `count` volumes, writes some, lists them, and restarts after a stop and after a crash.
pub(super) fn volumes(scene: &Scene, count: usize) -> Result<()> {
    let mut node = scene.node("20G", 1)?;
    let empty = process::tree_resident_bytes(node.pid()?);
    create(&node, count)?;
    let created = process::tree_resident_bytes(node.pid()?);
    println!(
        "resident memory: {} MiB empty, {} MiB with {count} volumes ({} bytes each)",
        empty >> 20,
        created >> 20,
        created.saturating_sub(empty) / count as u64
    );
    list(&node, count)?;
    write_some(&node, count)?;

    node.stop()?;
    println!(
        "restart after a clean stop: {} ms",
        node.restart()?.as_millis()
    );
    list(&node, count)?;

    let written = fill_journals(&mut node, count)?;
    println!("{}", node.verify()?);
    let took = node.restart()?;
    println!(
        "restart after a crash under {written} small writes all over the volumes: {} ms, {} MiB resident",
        took.as_millis(),
        process::tree_resident_bytes(node.pid()?) >> 20
    );
    println!("{}", recovered(&node)?);
    list(&node, count)?;
    check_some(&node, count)?;
    node.stop()
}

/// Small writes to as many volumes as possible, so that the journals are as full as they get, and
/// then a kill in the middle of it. Returns how many writes were answered.
fn fill_journals(node: &mut Node, count: usize) -> Result<u64> {
    let answered = AtomicU64::new(0);
    let port = node.nbd_port;
    write_some(node, count)?;
    thread::scope(|scope| {
        for writer in 0..FILLERS {
            let answered = &answered;
            scope.spawn(move || {
                // Ends when the node is gone.
                for index in (writer..count).step_by(FILLERS).cycle() {
                    let Ok(mut connection) = Connection::open(port, &name(index)) else {
                        return;
                    };
                    for step in 0..WRITES_PER_VISIT {
                        // Behind what `check_some` looks at.
                        let at = (1 << 30) + (index as u64 + step * 1000) * 4096;
                        if connection.write(at, &content(index), false).is_err() {
                            return;
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    connection.disconnect();
                }
            });
        }
        thread::sleep(FILL_TIME);
        node.kill()
    })?;
    Ok(answered.load(Ordering::Relaxed))
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
    let mut node = scene.node("20G", 1)?;
    create(&node, count)?;
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

/// A few users at once, each with the command line.
fn create(node: &Node, count: usize) -> Result<()> {
    let started = Instant::now();
    thread::scope(|scope| {
        let creators: Vec<_> = (0..CREATORS)
            .map(|creator| {
                scope.spawn(move || -> Result<()> {
                    for index in (creator..count).step_by(CREATORS) {
                        node.run(&["volume", "create", &name(index), "--size", "10G"])?;
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
