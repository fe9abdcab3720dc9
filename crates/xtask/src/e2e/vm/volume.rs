//! The disk is a volume, over NBD.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{check_image, synced, wait_for_files};
use crate::daemon::Node;
use crate::e2e::guest::{Boot, Guest};
use crate::e2e::load::Random;
use crate::e2e::scene::Scene;

const DISK_BYTES: u64 = 512 << 20;
/// Files that the guest has made durable before and after the server's crash.
const FILES_BEFORE: usize = 10;
const FILES_AFTER: usize = 10;

pub(super) fn run(scene: &Scene, rounds: u32, seed: u64) -> Result<()> {
    let guest = Guest::prepare(&scene.root)?;
    let mut random = Random::new(seed);
    let mut node = scene.node("4G", 1)?;
    let size = DISK_BYTES.to_string();
    node.run(&["volume", "create", "disk", "--size", &size])?;
    guest.make_disk(scene, "new.img", DISK_BYTES)?;
    let uri = node.uri("disk");
    let arguments = ["convert", "-n", "-f", "raw", "-O", "raw", "new.img", &uri];
    scene.tool("qemu-img", &arguments)?;
    // QEMU connects again if the server goes away.
    let disk = format!(
        "driver=nbd,node-name=disk,server.type=inet,server.host=127.0.0.1,server.port={},\
         export=disk,reconnect-delay=60,discard=unmap",
        node.nbd_port
    );

    for round in 1..=rounds {
        let log = scene.dir.join(format!("guest-{round}.log"));
        let mut machine = guest.boot(&Boot {
            disk: &["-blockdev", &disk],
            round,
            log: &log,
        })?;
        wait_for_files(&mut machine, FILES_BEFORE)?;
        node.kill()?;
        let restart = node.restart()?;
        let at_crash = synced(&machine).len();
        wait_for_files(&mut machine, at_crash + FILES_AFTER)?;
        thread::sleep(Duration::from_millis(random.below(500)));
        let durable = synced(&machine);
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

/// Copies the disk out and looks at it.
fn check_disk(scene: &Scene, node: &Node, durable: &[super::GuestFile]) -> Result<()> {
    scene.tool("nbdcopy", &[&node.uri("disk"), "disk.img"])?;
    check_image(scene, "disk.img", durable)?;
    std::fs::remove_file(scene.dir.join("disk.img")).context("removing the copy")
}
