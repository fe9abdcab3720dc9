//! A restart with journals as full as they can be: checkpoints are held back, clients write until
//! the rings take nothing more, the node is killed.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::many::recovered;
use super::nbd::Connection;
use super::scene::{Scene, find_number};
use crate::daemon::Node;
use crate::{process, repo};

/// As many as a device of this size has journals: each core has its volumes in one of them.
const CORES: u32 = 8;
/// What the clients have mapped at the end, whatever the number of volumes: half a million blocks.
const MAPPED_BLOCKS: u64 = 1 << 19;
const BLOCK_BYTES: u32 = 4096;
/// The fillers write behind what others look at.
const FILLED_FROM: u64 = 512 << 20;
/// Clients of each core. Many requests at a time make groups with many records, the densest journal.
const WRITERS_PER_CORE: usize = 2;
/// Requests that a client sends before it waits for the answers.
const BURST: u64 = 64;
/// Bursts of a client between flushes. What an overwrite has freed is used again after a flush.
const FLUSH_EVERY: u64 = 32;
/// Bursts to a volume before a client goes on to its next.
const BURSTS_PER_VISIT: u64 = 2;
/// The rings are full when they have not grown for so long.
const QUIET: Duration = Duration::from_secs(3);
const FILL_TIME_MAX: Duration = Duration::from_secs(300);
/// Of the rings. A ring keeps room for what recovery itself may have to write.
const FULL_PERCENT_MIN: u64 = 80;

/// Fills the rings of a device of this size, kills the node, and prints how long it takes until it
/// serves again.
pub(super) fn run(scene: &Scene, size: &str) -> Result<()> {
    let mut node = scene.node_on_sparse_file(size, CORES)?;
    let mut volumes = Vec::new();
    for core in 0..CORES {
        let name = format!("volume-{core}");
        let words = ["volume", "create", &name, "--size", "10G"];
        node.run(&[&words[..], &["--core", &core.to_string()]].concat())?;
        volumes.push(vec![name]);
    }
    fill_and_kill(&mut node, &volumes)?;
    let took = node.restart()?;
    println!(
        "restart with these journals: {} ms, {} MiB resident",
        took.as_millis(),
        process::tree_resident_bytes(node.pid()?) >> 20
    );
    println!("{}", recovered(&node)?);
    node.stop()?;
    let mut verify = Command::new(&node.options.binary);
    verify
        .args(["verify", "--metadata-only"])
        .arg(node.device_path());
    println!("{}", repo::output(verify)?);
    Ok(())
}

/// Starts the running node again with checkpoints held back, writes to these volumes, listed by
/// core, until the rings are full, and kills it. The next start is an ordinary one.
pub(super) fn fill_and_kill(node: &mut Node, volumes: &[Vec<String>]) -> Result<()> {
    node.stop()?;
    let held = ("FLAGSTONE_TUNING".into(), "checkpoints=held".into());
    node.options.environment.push(held);
    node.restart()?;
    let port = node.nbd_port;
    let count: usize = volumes.iter().map(Vec::len).sum();
    let blocks_each = (MAPPED_BLOCKS / count as u64).max(BURST);
    let filled = thread::scope(|scope| {
        for names in volumes {
            for writer in 0..WRITERS_PER_CORE {
                // Ends with the node, in the middle of something.
                scope.spawn(move || drop(write_without_end(port, names, writer, blocks_each)));
            }
        }
        let filled = wait_until_full(node);
        node.kill()?;
        filled
    });
    node.options.environment.clear();
    filled
}

/// Random blocks, seldom flushed, many requests at a time, to one volume after the other.
fn write_without_end(port: u16, names: &[String], writer: usize, blocks_each: u64) -> Result<()> {
    let mut state = writer as u64 + 1;
    let data = [writer as u8 + 1; BLOCK_BYTES as usize];
    let mut bursts: u64 = 0;
    let skip = names.len() * writer / WRITERS_PER_CORE;
    for name in names.iter().cycle().skip(skip) {
        let mut connection = Connection::open(port, name)?;
        for _ in 0..BURSTS_PER_VISIT {
            let mut places = Vec::new();
            for _ in 0..BURST {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let block = (state >> 33) % blocks_each;
                places.push(FILLED_FROM + block * u64::from(BLOCK_BYTES));
            }
            connection.write_many(&places, &data)?;
            bursts += 1;
            if bursts.is_multiple_of(FLUSH_EVERY) {
                connection.flush()?;
            }
        }
        connection.disconnect();
    }
    Ok(())
}

fn wait_until_full(node: &Node) -> Result<()> {
    let started = Instant::now();
    let (mut most, mut grown) = (0, Instant::now());
    loop {
        let info = node.json(&["device", "show", "device"])?;
        let number = |name| find_number(&info, name).with_context(|| format!("no {name}: {info}"));
        let (used, all) = (number("journal_used_bytes")?, number("journal_bytes")?);
        if used > most {
            (most, grown) = (used, Instant::now());
        }
        if grown.elapsed() >= QUIET {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{:.1} of {:.1} MiB of journals are full after {:.0} s",
                mib(used),
                mib(all),
                started.elapsed().as_secs_f64()
            );
            ensure!(used * 100 >= all * FULL_PERCENT_MIN, "that is not full");
            return Ok(());
        }
        ensure!(
            started.elapsed() < FILL_TIME_MAX,
            "{used} of {all} bytes are full, and it goes on"
        );
        thread::sleep(Duration::from_millis(300));
    }
}
