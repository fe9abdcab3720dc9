//! Crash images of a real run: what the runtime asked the kernel for is recorded under load, and
//! thousands of states that a power loss may have left are recovered by the engine and judged.
//!
//! `kill -9` loses nothing that the kernel has, so it tests no flush; this does. The node records
//! (`FLAGSTONE_RECORD`), the clients log what they sent, and `crash-images` of the simulator's crate
//! does the rest: see its page, and docs/verification.md. To see that it can fail, it is then told
//! two lies about the same record, which it has to find out.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::{Random, SECTOR_BYTES, stamp};
use super::nbd::{Change, Connection};
use super::scene::{Scene, find_strings};
use crate::daemon::{Node, NodeOptions};
use crate::repo;

/// Volumes, one on each core.
const VOLUMES: u64 = 2;
/// Clients of each volume.
const WRITERS: u64 = 4;
/// Each has a region of 512 KiB to itself.
const REGION_SECTORS: u64 = 1024;
/// Requests of each client: enough for the journal to go round, few enough for every flush to get
/// its images.
const REQUESTS: u64 = 400;
const SECTORS_PER_BLOCK: u64 = 8;
/// Snapshots of each volume, taken one after the other; the oldest of more than so many goes.
const SNAPSHOTS_KEPT: usize = 2;
/// Images for each lie: the first one that shows it ends the search.
const LIE_IMAGES: u64 = 600;

pub(super) fn run(scene: &Scene, images: u64, seed: u64) -> Result<()> {
    let files = Files {
        base: scene.dir.join("base.img"),
        record: scene.dir.join("record"),
        log: scene.dir.join("clients.log"),
    };
    record(scene, &files, seed)?;
    let said = judge(scene, &files, images, seed, None)?;
    ensure!(
        said.good,
        "crash images are not as they must be:\n{}",
        said.text
    );
    println!("{}", said.text);
    for lie in ["no-flush", "early-answer"] {
        let said = judge(scene, &files, LIE_IMAGES, seed, Some(lie))?;
        ensure!(
            !said.good,
            "nobody noticed the lie `{lie}`: these images show nothing\n{}",
            said.text
        );
        let first = said.text.lines().next().unwrap_or_default();
        println!("the lie `{lie}` is found out: {first}");
    }
    Ok(())
}

struct Files {
    base: PathBuf,
    record: PathBuf,
    log: PathBuf,
}

/// Runs a node under load and leaves the three files.
fn record(scene: &Scene, files: &Files, seed: u64) -> Result<()> {
    let mut node = scene.node("1G", VOLUMES as u32)?;
    let size = (WRITERS * REGION_SECTORS * SECTOR_BYTES as u64).to_string();
    let mut log = String::new();
    for volume in 0..VOLUMES {
        let core = volume.to_string();
        let name = volume_name(volume);
        node.run(&["volume", "create", &name, "--size", &size, "--core", &core])?;
        let shown = find_strings(&node.json(&["volume", "show", &name])?, "id");
        let id = shown.first().context("a volume without an id")?;
        writeln!(log, "volume {volume} {name} {id}")?;
    }
    node.stop()?;
    copy_sparse(&node.device_path(), &files.base)?;
    let record = files.record.display().to_string();
    let recording = ("FLAGSTONE_RECORD".to_owned(), record);
    node.options.environment.push(recording);
    node.restart()?;
    let sent = load(&node, seed)?;
    node.stop()?;
    println!("{}", node.verify()?);
    for (index, writer) in sent.iter().enumerate() {
        let (volume, first) = (writer.volume, writer.first);
        writeln!(log, "writer {index} {volume} {first} {REGION_SECTORS}")?;
    }
    for writer in &sent {
        log.push_str(&writer.log);
    }
    fs::write(&files.log, log).with_context(|| format!("writing {}", files.log.display()))
}

fn volume_name(volume: u64) -> String {
    format!("data{volume}")
}

/// All clients at once, and a user who takes and deletes snapshots until they are done.
fn load(node: &Node, seed: u64) -> Result<Vec<Writer>> {
    let mut writers: Vec<Writer> = (0..VOLUMES * WRITERS)
        .map(|index| Writer::new(index, seed))
        .collect();
    let done = AtomicBool::new(false);
    let (port, options) = (node.nbd_port, &node.options);
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(move || writer.run(port)))
            .collect();
        let user = scope.spawn(|| take_snapshots(options, &done));
        let mut outcome = Ok(());
        for each in running {
            let joined = each.join();
            outcome = outcome.and(joined.unwrap_or_else(|_| Err(panicked())));
        }
        done.store(true, Ordering::SeqCst);
        outcome.and(user.join().unwrap_or_else(|_| Err(panicked())))
    })?;
    Ok(writers)
}

fn panicked() -> anyhow::Error {
    anyhow::anyhow!("a client panicked")
}

fn take_snapshots(node: &NodeOptions, done: &AtomicBool) -> Result<()> {
    let mut kept: Vec<String> = Vec::new();
    for number in 0.. {
        if done.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("{}@s{number}", volume_name(number % VOLUMES));
        repo::output(node.command(&["snapshot", "create", &name]))?;
        kept.push(name);
        if kept.len() > SNAPSHOTS_KEPT * VOLUMES as usize {
            repo::output(node.command(&["snapshot", "delete", &kept.remove(0)]))?;
        }
        thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

/// A client that sends one request after the other and writes down each before it sends it.
struct Writer {
    index: u64,
    volume: u64,
    first: u64,
    random: Random,
    log: String,
}

impl Writer {
    fn new(index: u64, seed: u64) -> Writer {
        Writer {
            index,
            volume: index / WRITERS,
            first: index % WRITERS * REGION_SECTORS,
            random: Random::new(seed ^ (index + 1) << 32),
            log: String::new(),
        }
    }

    fn run(&mut self, port: u16) -> Result<()> {
        let mut connection = Connection::open(port, &volume_name(self.volume))?;
        for step in 0..REQUESTS {
            let number = (self.index << 40) + step + 1;
            self.step(&mut connection, number)
                .with_context(|| format!("request {number} of client {}", self.index))?;
        }
        connection.disconnect();
        Ok(())
    }

    fn step(&mut self, connection: &mut Connection, number: u64) -> Result<()> {
        let choice = self.random.below(20);
        if choice < 2 {
            self.note(number, "flush", 0, 0);
            return Ok(connection.flush()?);
        }
        let (first, sectors) = self.pick_range();
        let (at, fua) = (first * SECTOR_BYTES as u64, choice.is_multiple_of(2));
        if choice < 5 {
            self.note(
                number,
                if fua { "clear-stable" } else { "clear" },
                first,
                sectors,
            );
            let change = match self.random.below(3) {
                0 => Change::Trim,
                1 => Change::Zeros,
                _ => Change::AllocatedZeros,
            };
            let len = sectors * SECTOR_BYTES as u64;
            return Ok(connection.change(change, at, len as u32, fua)?);
        }
        self.note(
            number,
            if fua { "write-stable" } else { "write" },
            first,
            sectors,
        );
        let sectors = first..first + sectors;
        let data: Vec<u8> = sectors.flat_map(|sector| stamp(sector, number)).collect();
        Ok(connection.write(at, &data, fua)?)
    }

    fn note(&mut self, number: u64, kind: &str, first: u64, sectors: u64) {
        let line = format!("{} {number} {kind} {first} {sectors}\n", self.index);
        self.log.push_str(&line);
    }

    /// Whole blocks, parts of one, many, and ranges that begin and end anywhere; half of them in a
    /// hot spot.
    fn pick_range(&mut self) -> (u64, u64) {
        let blocks = REGION_SECTORS / SECTORS_PER_BLOCK;
        let hot = self.random.below(2) == 0;
        let start = self.random.below(if hot { 16 } else { blocks }) * SECTORS_PER_BLOCK;
        let inside = self.random.below(SECTORS_PER_BLOCK);
        let (offset, sectors) = match self.random.below(8) {
            0..=2 => (0, SECTORS_PER_BLOCK),
            3..=4 => (inside, 1 + self.random.below(SECTORS_PER_BLOCK - inside)),
            5..=6 => (inside, 1 + self.random.below(40)),
            _ => (0, SECTORS_PER_BLOCK * (1 + self.random.below(16))),
        };
        let first = start + offset;
        (self.first + first, sectors.min(REGION_SECTORS - first))
    }
}

/// A copy that has the holes of the original.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(from).arg(to);
    repo::output(copy).map(|_| ())
}

struct Said {
    good: bool,
    text: String,
}

/// Hands the files to the judge. An error if it can't do its work.
fn judge(scene: &Scene, files: &Files, images: u64, seed: u64, lie: Option<&str>) -> Result<Said> {
    let mut command = match &scene.judge {
        Some(judge) => repo::command(&scene.root, judge),
        None => {
            let mut cargo = repo::cargo(&scene.root);
            cargo
                .args(["run", "--release", "--quiet", "--package", "flagstone-sim"])
                .args(["--bin", "crash-images", "--"]);
            cargo
        }
    };
    command
        .arg("--base")
        .arg(&files.base)
        .arg("--record")
        .arg(&files.record)
        .arg("--log")
        .arg(&files.log)
        .args(["--images", &images.to_string(), "--seed", &seed.to_string()]);
    if let Some(lie) = lie {
        command.args(["--lie", lie]);
    }
    let output = command.output().context("starting crash-images")?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    // A build that fails ends with 101, a misunderstanding with 2.
    let understood = matches!(output.status.code(), Some(0 | 1));
    ensure!(understood, "crash-images did not work:\n{complaint}");
    Ok(Said {
        good: output.status.success(),
        text,
    })
}
