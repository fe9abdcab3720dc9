//! `kill -9` at random moments, again and again: nothing acknowledged as stable may be lost.
//!
//! Three things run when the node dies: writers that know what a crash may lose (`load`), fio
//! overwriting blocks that carry their own checksum and place, and a user who takes and deletes
//! snapshots. After each crash the device is verified offline, the node restarted, and all three
//! are held to what they were told. The node has one core and two in turn, so that journals change
//! their owner, and volumes on both. Killing a process loses nothing that the kernel has, so this
//! tests recovery and answers, not flushes; those are the simulator's and the crash images' part.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::{Random, Writer};
use super::nbd::Connection;
use super::scene::{Scene, find_strings};
use crate::daemon::{Node, NodeOptions};
use crate::repo;

const WRITERS: u64 = 8;
const REGION_BYTES: u64 = 32 << 20;
const FIO_BYTES: u64 = 128 << 20;
/// fio writes so much at once.
const FIO_PIECE_BYTES: usize = 64 << 10;
/// The user deletes the oldest of so many.
const SNAPSHOTS_KEPT: usize = 4;
/// The node lives this long, at least and at most, before it is killed.
const LIFE_MS: (u64, u64) = (100, 1_200);
/// What the writers write to, half of them each; one on each core while there are two.
const VOLUMES: [&str; 2] = ["data", "other"];
/// So much of each snapshot is read after each crash.
const SNAPSHOT_READ_BYTES: usize = 8 << 20;
const READ_BYTES: usize = 1 << 20;

pub(super) fn run(scene: &Scene, rounds: u32, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut node = scene.node("4G", 2)?;
    for (core, volume) in VOLUMES.iter().enumerate() {
        let (size, core) = ((WRITERS * REGION_BYTES).to_string(), core.to_string());
        let words = ["volume", "create", volume, "--size", &size, "--core", &core];
        node.run(&words)?;
    }
    node.run(&["volume", "create", "fio", "--size", &FIO_BYTES.to_string()])?;
    // From here on every block of this volume carries a checksum and its place.
    fio(
        scene,
        &node,
        &["--rw=write", "--bs=64k", "--verify=crc32c", "--do_verify=0"],
    )?;

    let mut pieces = fio_pieces(&node)?;
    let mut overwritten = 0;
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| Writer::new(index, REGION_BYTES, seed))
        .collect();
    let mut user = User::default();
    for round in 1..=rounds {
        let life = LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0);
        let answered = writers.iter().map(|writer| writer.answered).sum::<u64>();
        one_life(
            scene,
            &mut node,
            &mut writers,
            &mut user,
            Duration::from_millis(life),
        )?;
        let said = node
            .verify()
            .with_context(|| format!("verify after crash {round}"))?;
        // The journals of two cores go to one, and the other way round.
        node.options.cores = 1 + round % 2;
        let took = node
            .restart()
            .with_context(|| format!("restart after crash {round}"))?;
        for (index, writer) in writers.iter_mut().enumerate() {
            let check = writer.check(node.nbd_port, VOLUMES[index % 2]);
            check.with_context(|| format!("crash {round}, writer {index}, seed {seed}"))?;
        }
        let read = ["--rw=read", "--bs=64k", "--verify=crc32c"];
        fio(scene, &node, &read).with_context(|| format!("fio's check after crash {round}"))?;
        let found = fio_pieces(&node)?;
        let changed = found.iter().zip(&pieces).filter(|(now, then)| now != then);
        let changed = changed.count();
        (pieces, overwritten) = (found, overwritten + changed);
        user.check(&node)
            .with_context(|| format!("snapshots after crash {round}"))?;
        let answered = writers.iter().map(|writer| writer.answered).sum::<u64>() - answered;
        println!(
            "crash {round}: after {life} ms, {answered} answers and {changed} pieces that fio has overwritten; ready again with {} of 2 cores in {} ms; {}",
            node.options.cores,
            took.as_millis(),
            said.lines().last().unwrap_or_default()
        );
    }
    // Whose life was short may have seen none; fio takes a tenth of a second to start.
    ensure!(
        overwritten >= rounds as usize,
        "in {rounds} lives fio has overwritten {overwritten} pieces of {FIO_PIECE_BYTES} bytes: it was hardly there"
    );
    node.stop()?;
    node.verify().map(|_| ())
}

/// The node under load from everyone until it is killed.
fn one_life(
    scene: &Scene,
    node: &mut Node,
    writers: &mut [Writer],
    user: &mut User,
    life: Duration,
) -> Result<()> {
    let port = node.nbd_port;
    let commands = node.options.clone();
    let killed = AtomicBool::new(false);
    let mut load = start_fio_load(scene, node)?;
    let outcome = thread::scope(|scope| {
        let mut running: Vec<_> = writers
            .iter_mut()
            .enumerate()
            .map(|(index, writer)| scope.spawn(move || writer.run(port, VOLUMES[index % 2])))
            .collect();
        running.push(scope.spawn(|| user.act_until(&commands, &killed)));
        thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        let mut outcome = node.kill();
        for each in running {
            let result = each
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")));
            outcome = outcome.and(result);
        }
        outcome
    });
    // It ends with an error, since its server is gone; what it wrote is checked after the restart.
    let _ = load.kill();
    load.wait().context("waiting for fio")?;
    outcome
}

fn fio_command(scene: &Scene, node: &Node) -> Command {
    let mut fio = Command::new("fio");
    fio.current_dir(&scene.dir)
        .args(["--name=blocks", "--ioengine=nbd", "--iodepth=16"])
        .args([
            format!("--uri={}", node.uri("fio")),
            format!("--size={FIO_BYTES}"),
        ]);
    fio
}

fn fio(scene: &Scene, node: &Node, arguments: &[&str]) -> Result<()> {
    let mut command = fio_command(scene, node);
    command.args(arguments);
    repo::output(command).map(|_| ())
}

/// What tells one content of each piece of fio's volume from the next.
fn fio_pieces(node: &Node) -> Result<Vec<u64>> {
    let mut connection = Connection::open(node.nbd_port, "fio")?;
    let mut buffer = vec![0; READ_BYTES];
    let mut pieces = Vec::new();
    for at in (0..FIO_BYTES).step_by(READ_BYTES) {
        connection.read(at, &mut buffer)?;
        for piece in buffer.chunks(FIO_PIECE_BYTES) {
            let mut hasher = DefaultHasher::new();
            piece.hash(&mut hasher);
            pieces.push(hasher.finish());
        }
    }
    connection.disconnect();
    Ok(pieces)
}

/// Overwrites the same blocks in random order with fresh, self-describing content.
fn start_fio_load(scene: &Scene, node: &Node) -> Result<Child> {
    let mut command = fio_command(scene, node);
    command
        // In one process, so that nothing is left of it when it is killed.
        .args([
            "--thread",
            "--rw=randwrite",
            "--bs=64k",
            "--verify=crc32c",
            "--do_verify=0",
        ])
        .args([
            "--randrepeat=0",
            "--norandommap",
            "--time_based",
            "--runtime=60",
            "--fsync=32",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().context("starting fio")
}

/// Takes and deletes snapshots, and remembers which commands were answered.
#[derive(Default)]
struct User {
    next: u64,
    /// Creation was answered and no deletion sent.
    present: BTreeSet<String>,
    /// A command was sent and its answer hasn't come.
    uncertain: BTreeSet<String>,
    /// What each held when it was first looked at, which it must hold for ever.
    contents: BTreeMap<String, Vec<u8>>,
}

impl User {
    /// Sends commands until one finds the node gone.
    fn act_until(&mut self, node: &NodeOptions, killed: &AtomicBool) -> Result<()> {
        while !killed.load(Ordering::SeqCst) {
            let (verb, name) = if self.present.len() < SNAPSHOTS_KEPT {
                self.next += 1;
                ("create", format!("data@s{}", self.next))
            } else {
                ("delete", self.present.pop_first().unwrap_or_default())
            };
            // Until the answer is here, it may be so or not.
            self.uncertain.insert(name.clone());
            match repo::output(node.command(&["snapshot", verb, &name])) {
                Ok(_) => {
                    self.uncertain.remove(&name);
                    if verb == "create" {
                        self.present.insert(name);
                    }
                }
                Err(error) if killed.load(Ordering::SeqCst) => {
                    // The usual end; the message of a real failure would show before the kill.
                    drop(error);
                    return Ok(());
                }
                Err(error) => return Err(error.context(format!("snapshot {verb} {name}"))),
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What was answered is so; nothing else is there; what is there has not changed.
    fn check(&mut self, node: &Node) -> Result<()> {
        let listed: BTreeSet<String> =
            find_strings(&node.json(&["snapshot", "list", "data"])?, "name")
                .into_iter()
                .map(|name| format!("data@{}", name.trim_start_matches("data@")))
                .collect();
        for name in &self.present {
            ensure!(
                listed.contains(name),
                "{name} was answered and is gone; there are {listed:?}"
            );
        }
        for name in &listed {
            let known = self.present.contains(name) || self.uncertain.contains(name);
            ensure!(
                known,
                "{name} is there, though its deletion was answered or nobody made it"
            );
        }
        for name in &listed {
            let mut found = vec![0; SNAPSHOT_READ_BYTES];
            let mut connection = Connection::open(node.nbd_port, name)?;
            for (index, piece) in found.chunks_mut(READ_BYTES).enumerate() {
                connection.read((index * READ_BYTES) as u64, piece)?;
            }
            connection.disconnect();
            let known = self.contents.entry(name.clone()).or_insert(found.clone());
            ensure!(*known == found, "{name} doesn't hold any more what it held");
        }
        self.contents.retain(|name, _| listed.contains(name));
        self.present = listed;
        self.uncertain.clear();
        Ok(())
    }
}
