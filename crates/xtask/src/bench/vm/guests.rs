//! The experiments of the VM-NAS slides: files made and looked at, 2 KiB written in order and read at random, in the
//! filesystem of a virtual machine whose disk is an image on the export, and directly over NFS by a kernel's own
//! client. All run the same script; the node says what came of it.

use std::fs;

use anyhow::{Context, Result};

use super::counts::Counts;
use crate::daemon::{Daemon, Node};
use crate::e2e::guest::{Boot, Guest, wait_for};
use crate::e2e::kernel::machine::{Kernel, Task};
use crate::e2e::scene::{FILESYSTEM, Scene};

const LOAD: &str = include_str!("load.sh");
const DISK_BYTES: u64 = 256 << 20;
/// The steps, in the order of the script. The first is what comes before all.
const STEPS: [&str; 7] = ["begin", "create", "stat", "write", "stable", "fill", "read"];

/// The ways: the guest's filesystem has blocks of 4 KiB, or of 1 KiB, as mke2fs chooses for small disks.
pub(super) const IN_IMAGE: &str = "image";
pub(super) const SMALL_BLOCKS: &str = "image-1k";
pub(super) const DIRECT: &str = "direct";
pub(super) const WAYS: [&str; 3] = [IN_IMAGE, SMALL_BLOCKS, DIRECT];

/// One step on one way.
pub(super) struct Step {
    pub(super) way: &'static str,
    pub(super) name: &'static str,
    /// Of the application.
    pub(super) operations: f64,
    pub(super) bytes: f64,
    pub(super) counts: Counts,
}

impl Step {
    /// What an operation of the application is.
    pub(super) fn about(&self) -> &'static str {
        match self.name {
            "create" => "files made in one directory, and a sync",
            "stat" => "those looked at by name, caches empty",
            "write" => "2 KiB written in order to a new file, and a sync",
            "stable" => "2 KiB appended and fsynced, the file opened and closed each time",
            "fill" => "64 KiB written in order, and a sync",
            "read" => {
                "2 KiB read at a random place of 64 MiB, caches empty, the file opened each time"
            }
            _ => "",
        }
    }
}

/// All ways, one after the other.
pub(super) fn run(scene: &Scene, node: &Node) -> Result<Vec<Step>> {
    let mut all = Vec::new();
    for (way, block_bytes) in [(IN_IMAGE, 4096), (SMALL_BLOCKS, 1024)] {
        let steps = in_image(scene, node, way, block_bytes);
        all.extend(steps.context("in a virtual machine")?);
    }
    all.extend(direct(scene, node).context("with the kernel's own client")?);
    Ok(all)
}

fn in_image(scene: &Scene, node: &Node, way: &'static str, block_bytes: u32) -> Result<Vec<Step>> {
    let guest = Guest::prepare(&scene.root)?;
    let head = "#!/bin/busybox sh\nb=/bin/busybox\nd=/data\n$b mkdir -p /proc\n\
                $b mount -t devtmpfs dev /dev\n$b mount -t proc proc /proc\n";
    let tail = "while true; do $b sleep 1000; done\n";
    let script = format!("{head}{LOAD}{tail}");
    let disk = guest.make_disk_with(scene, "new.img", DISK_BYTES, &script, Some(block_bytes))?;
    let uri = format!("nfs://127.0.0.1/{FILESYSTEM}/{way}.img");
    let convert = ["convert", "-f", "raw", "-O", "raw", "new.img", &uri];
    scene.tool("qemu-img", &convert)?;
    fs::remove_file(disk).context("removing the new image")?;
    let log = scene.dir.join("guest.log");
    let drive = format!("file={uri},format=raw,if=none,id=disk");
    let mut machine = guest.boot(&Boot {
        disk: &["-drive", &drive],
        round: 0,
        log: &log,
    })?;
    let steps = follow(way, &mut machine, node)?;
    machine.kill()?;
    Ok(steps)
}

fn direct(scene: &Scene, node: &Node) -> Result<Vec<Step>> {
    let kernel = Kernel::prepare(&scene.root)?;
    fs::write(scene.dir.join("load.sh"), LOAD).context("writing the script")?;
    let task = Task {
        number: 1,
        parts: "mount bench",
        ..Task::default()
    };
    let mut machine = kernel.boot(scene, &task)?;
    let steps = follow(DIRECT, &mut machine, node)?;
    machine.kill()?;
    Ok(steps)
}

/// Takes what the node has counted at the end of each step.
fn follow(way: &'static str, machine: &mut Daemon, node: &Node) -> Result<Vec<Step>> {
    let (mut steps, mut before) = (Vec::new(), Counts::default());
    for name in STEPS {
        wait_for(machine, |machine| over(machine, name).is_some())
            .with_context(|| format!("step {name}"))?;
        let (operations, bytes) = over(machine, name).context("the step was over")?;
        let now = Counts::when_quiet(node)?;
        if operations > 0.0 {
            let counts = now.since(&before);
            println!(
                "{way:<8} {name:<7} {operations:>6} operations  NFS {:>7} calls  device {:>6} reads {:>6} writes",
                counts.all_calls(),
                counts.device_reads(),
                counts.device_writes()
            );
            steps.push(Step {
                way,
                name,
                operations,
                bytes,
                counts,
            });
        }
        before = now;
    }
    Ok(steps)
}

/// What the application did in a step, if it is over.
fn over(machine: &Daemon, name: &str) -> Option<(f64, f64)> {
    let printed = machine.printed();
    printed
        .iter()
        .find_map(|line| counts_of(line.trim_end(), name))
}

fn counts_of(line: &str, name: &str) -> Option<(f64, f64)> {
    let mut words = line.split_once("bench: over ")?.1.split(' ');
    (words.next()? == name).then_some(())?;
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_every_step_and_its_lines_are_understood() {
        for name in STEPS {
            assert!(LOAD.contains(&format!("\nstep {name} ")), "{name}");
        }
        let line = "bench: over write 4096 8388608";
        assert_eq!(counts_of(line, "write"), Some((4096.0, 8_388_608.0)));
        assert_eq!(counts_of(line, "writes"), None);
        assert_eq!(counts_of("bench: over write 40", "write"), None);
    }
}
