//! What a hypervisor sends, from a client of our own: stable writes and reads of images, with what they cost the device.

use anyhow::{Context, Result};

use super::counts::Counts;
use super::load::{self, Load, Order};
use crate::bench::nfs::client::{Connection, Outcome};
use crate::bench::nfs::wire::{Handle, Stability};
use crate::daemon::Node;
use crate::e2e::scene::{FILESYSTEM, NFS_PORT};

const DEPTH: usize = 32;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Writes at random places of a sparse image.
    pub(super) writes: u64,
    /// Bytes of the image that is written in full.
    pub(super) dense_bytes: u64,
    /// Transfers of 2 KiB.
    pub(super) small: u64,
}

/// What one point gave.
pub(super) struct Point {
    pub(super) name: &'static str,
    pub(super) about: String,
    pub(super) transfer_bytes: u64,
    pub(super) outcome: Outcome,
    /// Up to the last answer.
    pub(super) answered: Counts,
    /// The same and what the node did when all was quiet again: the last checkpoint.
    pub(super) all: Counts,
}

impl Point {
    fn operations(&self) -> f64 {
        self.outcome.operations as f64
    }

    /// For each operation.
    pub(super) fn each(&self, count: f64) -> f64 {
        count / self.operations().max(1.0)
    }

    /// Bytes written at the device for each that was sent.
    pub(super) fn amplification(&self) -> f64 {
        self.each(self.all.device_written_bytes()) / self.transfer_bytes as f64
    }
}

/// A node, a connection to it and its root.
pub(super) struct Bench<'a> {
    pub(super) node: &'a Node,
    connection: Connection,
    root: Handle,
}

impl Bench<'_> {
    pub(super) fn connect(node: &Node) -> Result<Bench<'_>> {
        let mut connection = Connection::open(NFS_PORT)?;
        let root = connection.mount(&format!("/{FILESYSTEM}"))?;
        Ok(Bench {
            node,
            connection,
            root,
        })
    }

    pub(super) fn make(&mut self, name: &str, size_bytes: u64) -> Result<Handle> {
        load::make_sparse(&mut self.connection, &self.root, name, size_bytes)
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        load::remove(&mut self.connection, &self.root, name)
    }

    fn measure(
        &mut self,
        name: &'static str,
        about: String,
        load: &Load,
        depth: usize,
    ) -> Result<Point> {
        let before = Counts::when_quiet(self.node)?;
        let outcome = self
            .connection
            .run(&mut load.start(), depth, None)
            .with_context(|| name)?;
        if load.writes == Some(Stability::Unstable) {
            self.connection.commit(load.file)?;
        }
        let answered = Counts::of(self.node)?.since(&before);
        let point = Point {
            name,
            about,
            transfer_bytes: load.transfer_bytes,
            outcome,
            answered,
            all: Counts::when_quiet(self.node)?.since(&before),
        };
        println!(
            "{name:<12} {:>8} operations {:>8.0}/s  device: {:.3} bytes written for each, {:.3} reads an operation, {} checkpoints",
            point.outcome.operations,
            point.outcome.operations as f64 / point.outcome.seconds,
            point.amplification(),
            point.each(point.answered.device_reads()),
            point.all.value("device_checkpoints"),
        );
        Ok(point)
    }
}

/// All points, in the order in which they build on each other.
pub(super) fn run(node: &Node, scale: &Scale) -> Result<Vec<Point>> {
    let mut bench = Bench::connect(node)?;
    let mut points = Vec::new();
    for (name, size_bytes, what) in [
        ("sparse-64g", 64 * GIB, "64 GiB"),
        ("sparse-1t", 1024 * GIB, "1 TiB"),
    ] {
        let file = bench.make(name, size_bytes)?;
        let load = Load {
            file: &file,
            range_bytes: size_bytes,
            transfer_bytes: 4 * KIB,
            order: Order::Random,
            writes: Some(Stability::FileSync),
            operations: scale.writes,
            seed: 1,
        };
        let about = format!("4 KiB, FILE_SYNC, random, depth 32, in a sparse image of {what}");
        points.push(bench.measure(name, about, &load, DEPTH)?);
        bench.remove(name)?;
    }
    dense(&mut bench, scale, &mut points)?;
    small(&mut bench, scale, &mut points)?;
    Ok(points)
}

/// An image that is written in full: its whole map is there.
fn dense(bench: &mut Bench, scale: &Scale, points: &mut Vec<Point>) -> Result<()> {
    let file = bench.make("dense", scale.dense_bytes)?;
    let gib = scale.dense_bytes as f64 / GIB as f64;
    let load = |transfer_bytes, order, writes, operations| Load {
        file: &file,
        range_bytes: scale.dense_bytes,
        transfer_bytes,
        order,
        writes,
        operations,
        seed: 2,
    };
    let fill = load(
        MIB,
        Order::Sequential,
        Some(Stability::Unstable),
        scale.dense_bytes / MIB,
    );
    let about = format!("1 MiB in order, UNSTABLE, a COMMIT at the end: an image of {gib:.2} GiB");
    points.push(bench.measure("fill", about, &fill, 8)?);
    let stable = Some(Stability::FileSync);
    let over = load(4 * KIB, Order::Random, stable, scale.writes);
    let about = "4 KiB, FILE_SYNC, random, depth 32, over that image".to_owned();
    points.push(bench.measure("dense", about, &over, DEPTH)?);
    let reads = load(2 * KIB, Order::Random, None, scale.small);
    let about = "2 KiB random reads of that image, depth 32, no cache of blocks".to_owned();
    points.push(bench.measure("read2k", about, &reads, DEPTH)?);
    let parts = load(2 * KIB, Order::Random, stable, scale.small);
    let about = "2 KiB, FILE_SYNC, random, depth 32, over that image".to_owned();
    points.push(bench.measure("write2k", about, &parts, DEPTH)?);
    let about = "2 KiB reads of what that has written, which are deltas, depth 32".to_owned();
    points.push(bench.measure("read2k-delta", about, &reads, DEPTH)?);
    bench.remove("dense")
}

/// A file of 2 KiB pieces, in order, as a guest with blocks of 2 KiB would write them, twice.
fn small(bench: &mut Bench, scale: &Scale, points: &mut Vec<Point>) -> Result<()> {
    let range_bytes = scale.small * 2 * KIB;
    let file = bench.make("small", range_bytes)?;
    let load = |order, writes| Load {
        file: &file,
        range_bytes,
        transfer_bytes: 2 * KIB,
        order,
        writes,
        operations: scale.small,
        seed: 3,
    };
    let stable = Some(Stability::FileSync);
    let about = |what: &str| format!("2 KiB, FILE_SYNC, in order, depth 1, {what}");
    let writes = load(Order::Sequential, stable);
    points.push(bench.measure("seq2k", about("in a new image"), &writes, 1)?);
    points.push(bench.measure(
        "seq2k-again",
        about("over what that has written"),
        &writes,
        1,
    )?);
    bench.remove("small")
}
