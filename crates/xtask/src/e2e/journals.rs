//! A restart with journals as full as they can be: checkpoints are held back, clients write until
//! the rings take nothing more, the node is killed.

use std::io::{Read, Write};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::many::recovered;
use super::nbd::{Connection, request};
use super::scene::{Scene, find_number};
use crate::daemon::Node;
use crate::{process, repo};

/// As many as a device of this size has journals: each core has its volumes in one of them.
const CORES: u32 = 8;
const SIZE: &str = "20G";
const VOLUME_BLOCKS: u64 = 1 << 16;
const BLOCK_BYTES: u32 = 4096;
const COMMAND_WRITE: u16 = 1;
const COMMAND_FLUSH: u16 = 3;
/// Requests sent in one go. Many at a time make groups with many records, the densest journal.
const BURST: u64 = 64;
/// Bursts between flushes. What an overwrite has freed is used again after a flush.
const FLUSH_EVERY: u64 = 32;
/// The rings are full when they have not grown for so long.
const QUIET: Duration = Duration::from_secs(3);
const FILL_TIME_MAX: Duration = Duration::from_secs(240);
/// Of the rings. A ring keeps room for what recovery itself may have to write.
const FULL_PERCENT_MIN: u64 = 80;

/// Fills the rings, kills the node, and prints how long it takes until it serves again.
pub(super) fn run(scene: &Scene) -> Result<()> {
    let mut node = scene.node(SIZE, CORES)?;
    for index in 0..CORES {
        let core = index.to_string();
        let words = ["volume", "create", &name(index), "--size", "1G"];
        node.run(&[&words[..], &["--core", &core]].concat())?;
    }
    node.stop()?;
    let held = ("FLAGSTONE_TUNING".into(), "checkpoints=held".into());
    node.options.environment.push(held);
    node.restart()?;
    let used_bytes = fill(&mut node)?;
    node.options.environment.clear();
    let took = node.restart()?;
    println!(
        "restart with {:.1} MiB of journals to be replayed: {} ms, {} MiB resident",
        used_bytes as f64 / f64::from(1 << 20),
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

fn name(index: u32) -> String {
    format!("volume-{index}")
}

/// Writes to all volumes until the rings are full, and kills the node. Bytes of the rings in use.
fn fill(node: &mut Node) -> Result<u64> {
    let port = node.nbd_port;
    thread::scope(|scope| {
        for index in 0..CORES {
            scope.spawn(move || write_without_end(port, index));
        }
        let result = wait_until_full(node);
        // The writers end with it.
        node.kill()?;
        result
    })
}

/// Random blocks, seldom flushed, many requests at a time, until the node is gone.
fn write_without_end(port: u16, index: u32) -> Result<()> {
    let mut stream = Connection::open(port, &name(index))?.into_stream();
    let mut answers = stream.try_clone().context("a second handle")?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut reply = [0; 16 * 64];
            while matches!(answers.read(&mut reply), Ok(count) if count > 0) {}
        });
        let mut state = u64::from(index) + 1;
        let data = [index as u8; BLOCK_BYTES as usize];
        for round in 0.. {
            let mut bytes = Vec::new();
            for step in 0..BURST {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let block = (state >> 33) % VOLUME_BLOCKS;
                let handle = round * BURST + step;
                let offset = block * u64::from(BLOCK_BYTES);
                bytes.extend(request(0, COMMAND_WRITE, handle, offset, BLOCK_BYTES));
                bytes.extend(data);
            }
            if round % FLUSH_EVERY == 0 {
                bytes.extend(request(0, COMMAND_FLUSH, u64::MAX, 0, 0));
            }
            if stream.write_all(&bytes).is_err() {
                break;
            }
        }
        // Ends the reader, too.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    Ok(())
}

fn wait_until_full(node: &Node) -> Result<u64> {
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
            println!(
                "{used} of {all} bytes of journals are full after {:.0} s",
                started.elapsed().as_secs_f64()
            );
            ensure!(used * 100 >= all * FULL_PERCENT_MIN, "that is not full");
            return Ok(used);
        }
        ensure!(
            started.elapsed() < FILL_TIME_MAX,
            "{used} of {all} bytes are full, and it goes on"
        );
        thread::sleep(Duration::from_millis(300));
    }
}
