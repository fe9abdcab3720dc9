//! Space that one volume gives back is another's within seconds, on another core too; and a volume
//! far larger than its device.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::load::stamp;
use super::nbd::{Change, Connection, Failure};
use super::scene::{Scene, free_bytes};
use crate::daemon::Node;

const DEVICE: &str = "1536M";
/// Of what is free at the start. Two volumes with so much each have no room beside each other; and one
/// has room beside three segments (a quarter of the device) that single blocks keep with the other core.
const FILL_PERCENT: u64 = 60;
const PIECE_BYTES: usize = 1 << 20;
const SECTOR_BYTES: usize = 512;
const NO_SPACE: u32 = 28;
/// How long a client may be told that the device is full although enough was given back. It takes a
/// second or two; other work on the machine doesn't make it ten times that.
const WAIT_MAX: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(20);

/// Fills a volume, trims it, and fills one of the other core; deletes that, and fills the first again.
pub(super) fn given_back(scene: &Scene) -> Result<()> {
    let mut node = scene.node(DEVICE, 2)?;
    let free = free_bytes(&node)?;
    let pieces = free * FILL_PERCENT / 100 / PIECE_BYTES as u64;
    let size = (pieces * PIECE_BYTES as u64).to_string();
    for (name, core) in [("first", "0"), ("second", "1")] {
        let words = ["volume", "create", name, "--size", &size, "--core", core];
        node.run(&words)?;
    }
    fill(&node, "first", pieces, 1)?;
    check(&node, "first", pieces, 1)?;

    let mut connection = Connection::open(node.nbd_port, "second")?;
    let refused = (0..pieces).find_map(|piece| {
        let written = connection.write(offset(piece), &content(piece, 2), false);
        written.err().map(|error| (piece, error))
    });
    match refused {
        Some((_, Failure::Refused(NO_SPACE))) => {}
        Some((piece, other)) => bail!("filling the device, piece {piece}: {other}"),
        None => bail!("both volumes fit, so this shows nothing"),
    }
    connection.disconnect();

    let mut connection = Connection::open(node.nbd_port, "first")?;
    for piece in 0..pieces {
        connection
            .change(Change::Trim, offset(piece), PIECE_BYTES as u32, false)
            .with_context(|| format!("trimming piece {piece}"))?;
    }
    connection.flush()?;
    let waited = fill(&node, "second", pieces, 3)?;
    println!("{pieces} MiB trimmed on core 0 and written on core 1: refused for {waited:?}");
    check(&node, "second", pieces, 3)?;
    let mut found = vec![1; PIECE_BYTES];
    for piece in 0..pieces {
        connection.read(offset(piece), &mut found)?;
        ensure!(
            found.iter().all(|byte| *byte == 0),
            "piece {piece} was trimmed and doesn't read as zeros"
        );
    }
    connection.disconnect();

    node.run(&["volume", "delete", "second"])?;
    let waited = fill(&node, "first", pieces, 4)?;
    println!("{pieces} MiB deleted on core 1 and written on core 0: refused for {waited:?}");
    check(&node, "first", pieces, 4)?;
    node.stop()?;
    println!("{}", node.verify()?);
    Ok(())
}

fn offset(piece: u64) -> u64 {
    piece * PIECE_BYTES as u64
}

fn content(piece: u64, number: u64) -> Vec<u8> {
    let first = offset(piece) / SECTOR_BYTES as u64;
    // One stamp for every block: made quickly, and of this place and write alone.
    let mut bytes = vec![0; PIECE_BYTES];
    for (index, block) in bytes.chunks_mut(8 * SECTOR_BYTES).enumerate() {
        block[..SECTOR_BYTES].copy_from_slice(&stamp(first + index as u64 * 8, number));
    }
    bytes
}

/// Writes all pieces; who is told that the device is full tries again for a while. How long that was.
fn fill(node: &Node, name: &str, pieces: u64, number: u64) -> Result<Duration> {
    let mut connection = Connection::open(node.nbd_port, name)?;
    let mut waited = Duration::ZERO;
    for piece in 0..pieces {
        let (bytes, started) = (content(piece, number), Instant::now());
        loop {
            match connection.write(offset(piece), &bytes, false) {
                Ok(()) => break,
                Err(Failure::Refused(NO_SPACE)) if waited + started.elapsed() < WAIT_MAX => {
                    thread::sleep(RETRY);
                }
                Err(error) => bail!(
                    "writing piece {piece} of {pieces} to {name}, after {:?} of waiting for space: {error}",
                    waited + started.elapsed()
                ),
            }
        }
        // A write that took its time without having been refused hardly counts.
        waited += started.elapsed().saturating_sub(RETRY);
    }
    connection.flush()?;
    connection.disconnect();
    Ok(waited)
}

fn check(node: &Node, name: &str, pieces: u64, number: u64) -> Result<()> {
    let mut connection = Connection::open(node.nbd_port, name)?;
    let mut found = vec![0; PIECE_BYTES];
    for piece in 0..pieces {
        connection.read(offset(piece), &mut found)?;
        ensure!(
            found == content(piece, number),
            "piece {piece} of {name} doesn't hold what was written"
        );
    }
    connection.disconnect();
    Ok(())
}

/// A volume of 16 TiB on a device of 1 GiB: written at both ends and in the middle,
/// killed, read back, stopped, verified.
pub(super) fn terabytes(scene: &Scene) -> Result<()> {
    const SIZE_BYTES: u64 = 16 << 40;
    let mut node = scene.node("1G", 1)?;
    let size = SIZE_BYTES.to_string();
    node.run(&["volume", "create", "large", "--size", &size])?;
    let end = SIZE_BYTES / PIECE_BYTES as u64;
    let places = [0, 1, end / 2, end - 1];
    let mut connection = Connection::open(node.nbd_port, "large")?;
    ensure!(
        connection.size_bytes == SIZE_BYTES,
        "the export has {} bytes, not {SIZE_BYTES}",
        connection.size_bytes
    );
    for piece in places {
        connection.write(offset(piece), &content(piece, 1), true)?;
    }
    let read_back = |node: &Node| -> Result<()> {
        let mut connection = Connection::open(node.nbd_port, "large")?;
        let mut found = vec![0; PIECE_BYTES];
        for piece in places {
            connection.read(offset(piece), &mut found)?;
            ensure!(found == content(piece, 1), "piece {piece} is lost");
        }
        // Beside what was written there is nothing.
        connection.read(offset(end - 2), &mut found)?;
        ensure!(found.iter().all(|byte| *byte == 0), "a hole is not empty");
        connection.disconnect();
        Ok(())
    };
    read_back(&node)?;
    node.kill()?;
    println!("{}", node.verify()?);
    node.restart()?;
    read_back(&node)?;
    node.stop()?;
    println!("{}", node.verify()?);
    node.restart()?;
    read_back(&node)?;
    node.stop()
}
