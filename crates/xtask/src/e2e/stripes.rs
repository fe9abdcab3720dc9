//! A volume that is striped over two cores: under fio while its members' journals change their cores and snapshots are taken, then under
//! `kill -9` while everything that can be done with it is done.
//!
//! fio's requests are larger than a unit, so each is cut. It may see no error and no wrong byte. After each kill the device is verified,
//! the writers (`load`) are held to what they were told, and there are as many dvols as the volumes that are listed have members.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::load::{Random, Writer};
use super::moves::json;
use super::scene::{Scene, find_number, find_strings};
use crate::daemon::{Node, NodeOptions};
use crate::repo;

const DEVICE: &str = "device";
const DEVICE_BYTES: &str = "2G";
const MEMBERS: u64 = 4;
const UNIT: &str = "64K";
const FIO_BYTES: u64 = 48 << 20;
/// Under fio: so often its journals change their cores, and so many snapshots are taken.
const ROUNDS: usize = 10;
const WRITERS: u64 = 4;
const REGION_BYTES: u64 = 8 << 20;
/// The node lives this long, at least and at most, before it is killed.
const LIFE_MS: (u64, u64) = (150, 1_000);

pub(super) fn run(scene: &Scene, kills: u32, seed: u64) -> Result<()> {
    let mut node = scene.node(DEVICE_BYTES, 2)?;
    create(&node, "fio", FIO_BYTES)?;
    under_fio(scene, &node)?;
    create(&node, "data", WRITERS * REGION_BYTES)?;
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| Writer::new(index, REGION_BYTES, seed))
        .collect();
    for kill in 1..=kills {
        let life = LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0);
        let done = one_life(&mut node, &mut writers, Duration::from_millis(life), kill)?;
        node.verify()
            .with_context(|| format!("verify after kill {kill}"))?;
        node.restart()
            .with_context(|| format!("restart after kill {kill}"))?;
        are_whole(&node).with_context(|| format!("after kill {kill}"))?;
        for (index, writer) in writers.iter_mut().enumerate() {
            let check = writer.check(node.nbd_port, "data");
            check.with_context(|| format!("kill {kill}, writer {index}, seed {seed}"))?;
        }
        println!("kill {kill}: after {life} ms, and {done} commands that were over");
    }
    fio(scene, &node, &["--rw=read"]).context("fio's check after the last kill")?;
    let before = dvols(&node)?;
    for volume in ["fio", "data"] {
        node.run(&["volume", "delete", volume, "--with-snapshots"])?;
    }
    let left = dvols(&node)?;
    ensure!(
        left + 2 * MEMBERS == before,
        "of {before} dvols {left} are left"
    );
    node.stop()?;
    node.verify().map(drop)
}

fn create(node: &Node, name: &str, size_bytes: u64) -> Result<()> {
    let (size, members) = (size_bytes.to_string(), MEMBERS.to_string());
    let words = ["volume", "create", name, "--size", &size];
    let striped = ["--stripes", &members, "--stripe-unit", UNIT];
    node.run(&[&words[..], &striped].concat()).map(drop)
}

/// Blocks that carry their own checksum and place, each of one and a half units.
fn fio(scene: &Scene, node: &Node, arguments: &[&str]) -> Result<()> {
    let mut fio = Command::new("fio");
    fio.current_dir(&scene.dir)
        .args([
            "--name=blocks",
            "--ioengine=nbd",
            "--iodepth=16",
            "--bs=96k",
        ])
        .args(["--verify=crc32c", "--verify_fatal=1", "--fsync=32"])
        .arg(format!("--uri={}", node.uri("fio")))
        .arg(format!("--size={FIO_BYTES}"))
        .args(arguments);
    repo::output(fio).map(drop)
}

/// Each round of fio has to pass while journals go and snapshots are taken, and a last one afterwards.
fn under_fio(scene: &Scene, node: &Node) -> Result<()> {
    fio(scene, node, &["--rw=write"])?;
    let over = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::SeqCst) {
                fio(scene, node, &["--rw=randwrite", "--verify_backlog=64"])?;
                rounds += 1;
            }
            Ok::<u32, anyhow::Error>(rounds)
        });
        let work = || {
            for round in 0..ROUNDS {
                hand_over(&node.options, "fio", round)?;
                node.run(&["snapshot", "create", &format!("fio@s{round}")])?;
                thread::sleep(Duration::from_millis(100));
            }
            Ok::<_, anyhow::Error>(())
        };
        let worked = work();
        over.store(true, Ordering::SeqCst);
        let rounds = load
            .join()
            .unwrap_or_else(|_| Err(anyhow!("fio's thread panicked")));
        worked?;
        rounds.context("fio while journals of its volume changed their cores")
    })?;
    ensure!(rounds > 0, "fio did nothing");
    fio(scene, node, &["--rw=read"])?;
    println!("{rounds} rounds of fio beside {ROUNDS} hand-overs and as many snapshots");
    Ok(())
}

/// Hands the journal of a volume's first or second member to the other core.
fn hand_over(node: &NodeOptions, volume: &str, round: usize) -> Result<()> {
    let shown = json(node, &["volume", "show", volume])?;
    let member = &shown["stripe"]["members"][round % 2];
    let core = find_number(member, "core").context("it is not striped")?;
    let journal = find_number(member, "journal").context("it is in no journal")?;
    let (to, journal) = ((1 - core.min(1)).to_string(), journal.to_string());
    let words = ["device", "hand-over", DEVICE, "--journal", &journal];
    json(node, &[&words[..], &["--to-core", &to]].concat()).map(drop)
}

/// What is done with the volume, one after the other.
fn command(node: &NodeOptions, number: usize) -> Result<()> {
    let size = |more: u64| (WRITERS * REGION_BYTES + more).to_string();
    let run = |words: &[&str]| repo::output(node.command(words)).map(drop);
    match number % 8 {
        0 => run(&["snapshot", "create", "data@s"]),
        1 => run(&["volume", "resize", "data", &size(5 << 20)]),
        2 => run(&["volume", "clone", "data@s", "copy"]),
        3 => hand_over(node, "data", number / 8),
        4 => run(&["volume", "resize", "data", &size(0), "--allow-data-loss"]),
        5 => run(&["volume", "delete", "copy", "--with-snapshots"]),
        6 => run(&["volume", "clone", "data", "copy"])
            .and_then(|()| run(&["volume", "delete", "copy", "--with-snapshots"])),
        _ => run(&["snapshot", "delete", "data@s"]),
    }
}

/// The volume is written, and commands are given for it, until the node is killed. Returns how many of those were over.
fn one_life(node: &mut Node, writers: &mut [Writer], life: Duration, kill: u32) -> Result<usize> {
    // What the last life left is there or not: both is right.
    let list = |node: &Node| node.json(&["volume", "list"]);
    if find_strings(&list(node)?, "name").contains(&"copy".to_owned()) {
        node.run(&["volume", "delete", "copy", "--with-snapshots"])?;
    }
    if find_number(&node.json(&["volume", "show", "data"])?, "snapshot_count") == Some(1) {
        node.run(&["snapshot", "delete", "data@s"])?;
    }
    let (port, commands) = (node.nbd_port, node.options.clone());
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(move || writer.run(port, "data")))
            .collect();
        let worker = scope.spawn(|| {
            let mut done = 0;
            while !killed.load(Ordering::SeqCst) {
                match command(&commands, done) {
                    Ok(()) => done += 1,
                    Err(_) if killed.load(Ordering::SeqCst) => break,
                    Err(error) => return Err(error.context(format!("command {done}"))),
                }
            }
            Ok(done)
        });
        thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        let mut outcome = node.kill();
        for each in running {
            let result = each.join();
            outcome = outcome.and(result.unwrap_or_else(|_| Err(anyhow!("a client panicked"))));
        }
        let done = worker.join();
        let done = done.unwrap_or_else(|_| Err(anyhow!("whoever gives commands panicked")));
        outcome.and(done).with_context(|| format!("life {kill}"))
    })
}

/// How many dvols of volumes there are in all journals.
fn dvols(node: &Node) -> Result<u64> {
    let journals = node.json(&["device", "journals", DEVICE])?;
    let rows = journals["items"].as_array().or(journals.as_array());
    let rows = rows.context("no list of journals")?;
    let counts = rows.iter().map(|row| find_number(row, "volume_count"));
    let counts: Option<Vec<u64>> = counts.collect();
    Ok(counts.context("a journal without a count")?.iter().sum())
}

/// Each volume that is listed has all its members, and nothing else is there.
fn are_whole(node: &Node) -> Result<()> {
    let listed = node.json(&["volume", "list"])?;
    let rows = listed["items"].as_array().or(listed.as_array());
    let mut expected = 0;
    let mut found = Vec::new();
    for row in rows.context("no list of volumes")? {
        let name = row["name"].as_str().context("a volume without a name")?;
        let members = row["stripe"]["members"].as_array();
        match name {
            "copy" | "data" | "fio" => {
                let members = members.map_or(0, Vec::len) as u64;
                ensure!(members == MEMBERS, "'{name}' has {members} members");
                expected += members;
            }
            // That of every new node.
            _ => expected += 1,
        }
        found.push(name.to_owned());
    }
    let is_there = |name: &str| found.iter().any(|found| found == name);
    ensure!(is_there("data") && is_there("fio"), "there are {found:?}");
    let dvols = dvols(node)?;
    ensure!(
        dvols == expected,
        "{found:?} have {expected} members, and the journals have {dvols} dvols"
    );
    Ok(())
}
