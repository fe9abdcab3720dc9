//! An image of 100 GiB is cloned while its guest writes. The clone takes no space to speak of and boots beside the
//! original; each goes on by itself, also while the node is killed, and is whole in the end.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::export::{boot, put, surely_there};
use super::{FILES_COMPARED, GuestFile, synced, wait_for_files, wait_until_up};
use crate::daemon::Daemon;
use crate::e2e::guest::{Guest, wait_for};
use crate::e2e::kernel::machine::{Kernel, Task};
use crate::e2e::kernel::{is_over, passed};
use crate::e2e::scene::{FILESYSTEM, Scene, free_bytes};

const DISK_BYTES: u64 = 100 << 30;
const IMAGE: &str = "large.img";
const CLONE: &str = "clone.img";
/// Files that a guest makes durable before something is done to it.
const FILES: usize = 10;
/// The clone's guest writes files of another name.
const ROUNDS: [u32; 2] = [10, 11];

pub(super) fn run(scene: &Scene) -> Result<()> {
    let guest = Guest::prepare(&scene.root)?;
    let mut node = scene.node_for_guests()?;
    let empty = free_bytes(&node)?;
    let new = guest.make_disk(scene, "new.img", DISK_BYTES)?;
    put(scene, "new.img", IMAGE)?;
    std::fs::remove_file(new).context("removing the new image")?;
    let mut original = boot(scene, &guest, ROUNDS[0], IMAGE)?;
    wait_for_files(&mut original, FILES)?;

    let before = synced(&original);
    let free = free_bytes(&node)?;
    let started = Instant::now();
    let paths = [IMAGE, CLONE].map(|name| format!("/{name}"));
    node.run(&["fs", "clone", FILESYSTEM, &paths[0], &paths[1]])?;
    let took = started.elapsed();
    let (image_bytes, clone_bytes) = (empty - free, free.saturating_sub(free_bytes(&node)?));
    let after = synced(&original);
    ensure!(
        clone_bytes < image_bytes / 4,
        "the clone took {clone_bytes} bytes, the image {image_bytes}"
    );

    let mut clone = boot(scene, &guest, ROUNDS[1], CLONE)?;
    let found = wait_until_up(&mut clone)?;
    check_found(&found, surely_there(&before, &after), after.len())?;
    println!(
        "an image of 100 GiB ({} MiB of them written) was cloned in {} ms while its guest wrote; the clone took {} KiB \
         and boots",
        image_bytes >> 20,
        took.as_millis(),
        clone_bytes >> 10
    );

    let so_far = synced(&original).len();
    wait_for_files(&mut clone, FILES)?;
    wait_for_files(&mut original, so_far + FILES)?;
    node.kill()?;
    node.restart()?;
    let so_far = (synced(&original).len(), synced(&clone).len());
    wait_for_files(&mut original, so_far.0 + FILES)?;
    wait_for_files(&mut clone, so_far.1 + FILES)?;
    let durable = (synced(&original), synced(&clone));
    original.kill()?;
    clone.kill()?;
    check_images(scene, &durable.0, &durable.1)?;
    println!(
        "image and clone: {} and {} files durable when both machines were killed, clean",
        durable.0.len(),
        durable.1.len()
    );
    node.run(&["fs", "check"])?;
    node.stop()?;
    node.verify().map(|_| ())
}

/// In a copy of an image is what was durable before it was taken, and nothing that was written later.
pub(crate) fn check_found(
    found: &[GuestFile],
    expected: &[GuestFile],
    written: usize,
) -> Result<()> {
    ensure!(
        !expected.is_empty(),
        "{written} files were written: too many while the clone was taken"
    );
    for file in expected {
        let is_there = found.contains(file);
        ensure!(is_there, "{file:?} was durable before; there are {found:?}");
    }
    for (name, _) in found {
        let number = name
            .rsplit('-')
            .next()
            .and_then(|n| n.parse::<usize>().ok());
        // One more may have been under way.
        ensure!(
            number.is_some_and(|number| number <= written + 1),
            "{name} is in the clone, which was taken when {written} files had been written"
        );
    }
    Ok(())
}

/// Their filesystems, through the kernel's client: it reads no more of 100 GiB than it needs to.
fn check_images(scene: &Scene, original: &[GuestFile], clone: &[GuestFile]) -> Result<()> {
    let last = |image: &'static str, files: &[GuestFile]| {
        let last = files.iter().rev().take(FILES_COMPARED);
        let items = last.map(|(name, hash)| format!("{image}:{name}:{hash}"));
        items.collect::<Vec<String>>()
    };
    let images = [last(IMAGE, original), last(CLONE, clone)].concat();
    let task = Task {
        number: 1,
        parts: "mount images",
        images: &images.join(" "),
        ..Task::default()
    };
    let mut machine: Daemon = Kernel::prepare(&scene.root)?.boot(scene, &task)?;
    wait_for(&mut machine, is_over)?;
    passed(&machine, &task)
}
