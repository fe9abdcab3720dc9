//! A virtual machine with a volume as its disk, killed in the middle of its work.
//!
//! The guest says on its console what it has made durable. In each round the server is killed and
//! restarted under it, which it must survive, and then the machine itself is killed. The filesystem
//! must then come back clean from its own journal, with every file the guest spoke of.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::guest::Guest;
use super::load::Random;
use super::scene::Scene;
use crate::daemon::{Daemon, Node};

const DISK_BYTES: u64 = 512 << 20;
/// Files that the guest has made durable before and after the server's crash.
const FILES_BEFORE: usize = 10;
const FILES_AFTER: usize = 10;
/// A guest that says nothing for so long is stuck.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// Of the files of a round so many of the last are compared; the guest removes older ones.
const FILES_COMPARED: usize = 8;
const SAID: &str = "guest: synced ";

pub(super) fn run(scene: &Scene, rounds: u32, seed: u64) -> Result<()> {
    let guest = Guest::prepare(&scene.root)?;
    let mut random = Random::new(seed);
    let mut node = scene.node("4G", 1)?;
    node.run(&[
        "volume",
        "create",
        "disk",
        "--size",
        &DISK_BYTES.to_string(),
    ])?;
    scene.tool(
        "mke2fs",
        &[
            "-q",
            "-F",
            "-t",
            "ext4",
            "empty.img",
            &format!("{}K", DISK_BYTES >> 10),
        ],
    )?;
    let uri = node.uri("disk");
    scene.tool(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", "empty.img", &uri],
    )?;

    for round in 1..=rounds {
        let log = scene.dir.join(format!("guest-{round}.log"));
        let mut machine = guest.boot(node.nbd_port, "disk", round, &log)?;
        wait_for_files(&mut machine, FILES_BEFORE)?;
        node.kill()?;
        let restart = node.restart()?;
        let at_crash = files(&machine).len();
        wait_for_files(&mut machine, at_crash + FILES_AFTER)?;
        thread::sleep(Duration::from_millis(random.below(500)));
        let durable = files(&machine);
        machine.kill()?;
        println!(
            "round {round}: {} files durable, server restarted in {} ms under the guest",
            durable.len(),
            restart.as_millis()
        );
        check_disk(scene, &node, &durable).with_context(|| format!("round {round}"))?;
    }
    node.stop()?;
    node.verify().map(|_| ())
}

/// Name and hash of each file that the guest has made durable so far.
fn files(machine: &Daemon) -> Vec<(String, String)> {
    let file = |line: &String| {
        let (name, hash) = line.split_once(SAID)?.1.trim().split_once(' ')?;
        // The last line may not be complete yet.
        (hash.len() == 64).then(|| (name.to_owned(), hash.to_owned()))
    };
    machine.printed().iter().filter_map(file).collect()
}

fn wait_for_files(machine: &mut Daemon, count: usize) -> Result<()> {
    let mut last = (0, Instant::now());
    loop {
        let now = files(machine).len();
        if now >= count {
            return Ok(());
        }
        if now > last.0 {
            last = (now, Instant::now());
        }
        if last.1.elapsed() > SILENCE_LIMIT {
            let said = machine.printed();
            let tail = &said[said.len().saturating_sub(20)..];
            bail!("the guest is stuck; it said last:\n{}", tail.join("\n"));
        }
        ensure!(
            machine.is_alive(),
            "the guest ended\n{}",
            machine.log_tail()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Copies the disk out, lets the filesystem replay its journal, and looks at it.
fn check_disk(scene: &Scene, node: &Node, durable: &[(String, String)]) -> Result<()> {
    scene.tool("nbdcopy", &[&node.uri("disk"), "disk.img"])?;
    // Mounting does the same; e2fsck without root is the way to do it here. It exits with 1 when it
    // has changed something, which a replay is.
    let replay = "PATH=$PATH:/usr/sbin; e2fsck -E journal_only -p disk.img || [ $? -le 1 ]";
    scene.tool("sh", &["-c", replay])?;
    scene
        .tool("e2fsck", &["-f", "-n", "disk.img"])
        .context("the filesystem is damaged")?;
    for (name, hash) in durable.iter().rev().take(FILES_COMPARED) {
        let read = format!("PATH=$PATH:/usr/sbin; debugfs -R 'cat {name}' disk.img | sha256sum");
        let found = scene.tool("sh", &["-c", &read])?;
        ensure!(
            found.starts_with(hash.as_str()),
            "{name} is lost or changed: {found}, not {hash}"
        );
    }
    std::fs::remove_file(scene.dir.join("disk.img")).context("removing the copy")
}
