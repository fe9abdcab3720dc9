//! Virtual machines with their disks on the node, killed in the middle of their work: images on an export over QEMU's own
//! NFS client (`export`), one of 100 GiB and its clone (`clone`), and a volume over NBD (`volume`).
//!
//! The guest says on its console what it has made durable. The server is killed and started again under it, which it
//! must survive, and then the machine itself is killed. The filesystem must then come back clean from its own
//! journal, with every file the guest spoke of.

mod clone;
mod export;
mod volume;

use std::fs;

use anyhow::{Context, Result, ensure};

pub(crate) use clone::check_found;
pub(crate) use export::{put, surely_there};

use super::guest::wait_for;
use super::scene::Scene;
use crate::daemon::Daemon;

/// Of the files of a round so many of the last are compared; the guest removes older ones.
const FILES_COMPARED: usize = 8;
const SYNCED: &str = "guest: synced ";
pub(crate) const FOUND: &str = "guest: found ";
const UP: &str = "guest: up";

pub(super) fn run(scene: &Scene, rounds: u32, seed: u64) -> Result<()> {
    export::run(scene, rounds, seed).context("an image on an export")?;
    clear(scene)?;
    clone::run(scene).context("a clone of an image")?;
    clear(scene)?;
    volume::run(scene, rounds, seed).context("a volume")
}

/// The next part begins with a new device.
fn clear(scene: &Scene) -> Result<()> {
    fs::remove_dir_all(scene.dir.join("node")).context("removing the node's device")
}

/// Name and hash of a file.
pub(crate) type GuestFile = (String, String);

/// The files that the guest has made durable so far.
pub(crate) fn synced(machine: &Daemon) -> Vec<GuestFile> {
    said(machine, SYNCED)
}

fn said(machine: &Daemon, what: &str) -> Vec<GuestFile> {
    let printed = machine.printed();
    let files = printed.iter().filter_map(|line| file_in(line, what));
    files.collect()
}

/// The file that a guest's line is about, if it is one of these.
pub(crate) fn file_in(line: &str, what: &str) -> Option<GuestFile> {
    let (name, hash) = line.split_once(what)?.1.trim().split_once(' ')?;
    // The last line may not be complete yet.
    (hash.len() == 64).then(|| (name.to_owned(), hash.to_owned()))
}

/// Waits until the guest has made so many files durable.
fn wait_for_files(machine: &mut Daemon, count: usize) -> Result<()> {
    wait_for(machine, |machine| synced(machine).len() >= count)
}

/// Waits until the guest runs from its disk. Gives the files that it found there.
fn wait_until_up(machine: &mut Daemon) -> Result<Vec<GuestFile>> {
    wait_for(machine, |machine| {
        let printed = machine.printed();
        printed.iter().any(|line| line.contains(UP))
    })?;
    Ok(said(machine, FOUND))
}

/// Lets the filesystem in an image replay its journal, and looks at it. Of the files that were durable the last must
/// be there.
fn check_image(scene: &Scene, image: &str, durable: &[GuestFile]) -> Result<()> {
    // Mounting does the same; e2fsck without root is the way to do it here. It exits with 1 when it
    // has changed something, which a replay is.
    let replay = format!("PATH=$PATH:/usr/sbin; e2fsck -E journal_only -p {image} || [ $? -le 1 ]");
    scene.tool("sh", &["-c", &replay])?;
    scene
        .tool("e2fsck", &["-f", "-n", image])
        .context("the filesystem is damaged")?;
    for (name, hash) in durable.iter().rev().take(FILES_COMPARED) {
        let read =
            format!("PATH=$PATH:/usr/sbin; debugfs -R 'cat data/{name}' {image} | sha256sum");
        let found = scene.tool("sh", &["-c", &read])?;
        ensure!(
            found.starts_with(hash.as_str()),
            "{name} is lost or changed: {found}, not {hash}"
        );
    }
    Ok(())
}
