//! The disk is an image on an export, through QEMU's `nfs://`. That takes no port and asks a portmapper, so the scenario
//! has a network of its own, in which the node is one.
//!
//! In each round a snapshot is taken while the guest writes. It must boot as a machine of its own, beside the first,
//! with every file that was durable then.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{FOUND, GuestFile, check_image, synced, wait_for_files, wait_until_up};
use crate::daemon::{Daemon, Node};
use crate::e2e::guest::{Boot, FILES_KEPT, Guest};
use crate::e2e::load::Random;
use crate::e2e::scene::{FILESYSTEM, Scene};

const DISK_BYTES: u64 = 256 << 20;
/// Files that the guest makes durable before each of the things that are done to it.
const FILES: usize = 10;
/// How often the server is killed under a guest.
const KILLS: u32 = 4;
/// The copies of a round write files of other names.
const COPY_ROUND: u32 = 1_000;

pub(super) fn run(scene: &Scene, rounds: u32, seed: u64) -> Result<()> {
    let guest = Guest::prepare(&scene.root)?;
    let mut random = Random::new(seed);
    let mut node = Node::start_with_files(scene.options("4G", 1))?;
    guest.make_disk(scene, "new.img", DISK_BYTES)?;
    put(scene, "new.img", "disk.img")?;
    for round in 1..=rounds {
        one_round(scene, &guest, &mut node, round, &mut random)
            .with_context(|| format!("round {round}"))?;
    }
    node.run(&["fs", "check"])?;
    node.stop()?;
    node.verify().map(|_| ())
}

fn one_round(
    scene: &Scene,
    guest: &Guest,
    node: &mut Node,
    round: u32,
    random: &mut Random,
) -> Result<()> {
    let mut machine = boot(scene, guest, round, "disk.img")?;
    for _ in 0..KILLS {
        let so_far = synced(&machine).len();
        wait_for_files(&mut machine, so_far + FILES)?;
        thread::sleep(Duration::from_millis(random.below(200)));
        node.kill()?;
        node.restart()?;
    }
    let so_far = synced(&machine).len();
    wait_for_files(&mut machine, so_far + FILES)?;
    println!(
        "round {round}: {so_far} files durable, the server was killed {KILLS} times under the guest, which goes on"
    );

    let snapshot = format!("round-{round}");
    let before = synced(&machine);
    let started = Instant::now();
    node.run(&["fs", "snapshot", "create", FILESYSTEM, &snapshot])?;
    let took = started.elapsed();
    let after = synced(&machine);
    let expected = surely_there(&before, &after);
    ensure!(
        !expected.is_empty(),
        "the guest wrote {} files while the snapshot was taken, and keeps {FILES_KEPT}",
        after.len() - before.len()
    );
    let image = format!("disk.img@{snapshot}");
    let mut copy = boot_snapshot(scene, guest, COPY_ROUND + round, &snapshot)?;
    let found = wait_until_up(&mut copy)?;
    for file in expected {
        ensure!(
            found.contains(file),
            "{file:?} was durable before {image} was taken; `{FOUND}` there: {found:?}"
        );
    }
    // It writes as well: to a file of QEMU's own.
    wait_for_files(&mut copy, FILES)?;
    copy.kill()?;
    println!(
        "round {round}: a snapshot taken in {} ms while the guest wrote boots with {} files of {} that it must have",
        took.as_millis(),
        found.len(),
        expected.len()
    );

    thread::sleep(Duration::from_millis(random.below(500)));
    let durable = synced(&machine);
    machine.kill()?;
    get(scene, &uri(FILESYSTEM, "disk.img"), "out.img")?;
    check_image(scene, "out.img", &durable)?;
    let snapshot_uri = uri(&format!("{FILESYSTEM}@{snapshot}"), "disk.img");
    get(scene, &snapshot_uri, "out.img")?;
    check_image(scene, "out.img", expected).with_context(|| image)?;
    println!(
        "round {round}: {} files durable when the machine was killed; clean, and so is the snapshot",
        durable.len()
    );
    Ok(())
}

/// Of the files that were durable before a moment those that weren't removed before another.
pub(crate) fn surely_there<'a>(before: &'a [GuestFile], after: &[GuestFile]) -> &'a [GuestFile] {
    // One that is being written isn't announced yet, but one is removed for it.
    let removed = (after.len() + 1).saturating_sub(FILES_KEPT);
    before.get(removed..).unwrap_or_default()
}

fn uri(export: &str, image: &str) -> String {
    format!("nfs://127.0.0.1/{export}/{image}")
}

pub(crate) fn put(scene: &Scene, from: &str, image: &str) -> Result<()> {
    let uri = uri(FILESYSTEM, image);
    scene.tool(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", from, &uri],
    )?;
    Ok(())
}

fn get(scene: &Scene, uri: &str, to: &str) -> Result<()> {
    scene.tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, to])?;
    Ok(())
}

pub(super) fn boot(scene: &Scene, guest: &Guest, round: u32, image: &str) -> Result<Daemon> {
    boot_from(scene, guest, round, &uri(FILESYSTEM, image), "off")
}

/// What it writes goes to a file of QEMU's own, which is gone with it.
fn boot_snapshot(scene: &Scene, guest: &Guest, round: u32, snapshot: &str) -> Result<Daemon> {
    let uri = uri(&format!("{FILESYSTEM}@{snapshot}"), "disk.img");
    boot_from(scene, guest, round, &uri, "on")
}

fn boot_from(
    scene: &Scene,
    guest: &Guest,
    round: u32,
    uri: &str,
    throw_away: &str,
) -> Result<Daemon> {
    let log = scene.dir.join(format!("guest-{round}.log"));
    let drive = format!("file={uri},format=raw,if=none,id=disk,snapshot={throw_away}");
    guest.boot(&Boot {
        disk: &["-drive", &drive],
        round,
        log: &log,
    })
}
