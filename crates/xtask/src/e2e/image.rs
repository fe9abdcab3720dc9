//! A real disk image goes in, is snapshotted and cloned, and comes back unchanged.
//!
//! All clients are stock ones. What is compared is whole images, byte by byte.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::scene::{Scene, free_bytes, wait_for_free};
use crate::daemon::Node;
use crate::{process, repo};

const IMAGE_BYTES: u64 = 1 << 30;
/// How much of a real tree the image gets.
const TREE_BYTES: u64 = 400 << 20;
/// Space that checkpoints and journals may hold on to after everything was deleted.
const METADATA_SLACK_BYTES: u64 = 24 << 20;
const COMPARE_BYTES: usize = 1 << 20;

pub(super) fn run(scene: &Scene) -> Result<()> {
    let image = make_image(scene)?;
    let mut node = scene.node("4G", 1)?;
    // Whatever `dev` makes by itself is there before the count begins.
    let free_before = free_bytes(&node)?;

    node.run(&[
        "volume",
        "create",
        "disk",
        "--size",
        &IMAGE_BYTES.to_string(),
    ])?;
    let disk = node.uri("disk");
    scene.tool(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &image, &disk],
    )?;
    same(
        scene,
        &node,
        "disk",
        &image,
        "the volume after qemu-img convert",
    )?;

    let free_filled = free_bytes(&node)?;
    node.run(&["snapshot", "create", "disk@first"])?;
    node.run(&["volume", "clone", "disk@first", "copy"])?;
    ensure!(
        free_bytes(&node)? + METADATA_SLACK_BYTES > free_filled,
        "a snapshot and a clone copied data"
    );
    same(scene, &node, "disk@first", &image, "the snapshot")?;
    same(scene, &node, "copy", &image, "the clone")?;

    write_into_clone(scene, &node)?;
    same(
        scene,
        &node,
        "disk@first",
        &image,
        "the snapshot after its clone was written",
    )?;
    same(
        scene,
        &node,
        "disk",
        &image,
        "the volume after the clone was written",
    )?;

    // The same after a restart: what was answered is on the device.
    node.stop()?;
    node.verify()?;
    node.restart()?;
    same(scene, &node, "disk", &image, "the volume after a restart")?;
    same(
        scene,
        &node,
        "disk@first",
        &image,
        "the snapshot after a restart",
    )?;

    let read_bytes = device_bytes(&node, "read")?;
    same(scene, &node, "disk", &image, "the volume, once more")?;
    let read_bytes = device_bytes(&node, "read")? - read_bytes;
    ensure!(
        (TREE_BYTES / 4..IMAGE_BYTES * 2).contains(&read_bytes),
        "the metrics say that reading the image once read {read_bytes} bytes of the device"
    );
    discard_and_delete(scene, &node, free_before)?;
    node.stop()?;
    println!("{}", node.verify()?);
    Ok(())
}

/// Bytes that the node's only device has moved, by its metrics.
fn device_bytes(node: &Node, op: &str) -> Result<u64> {
    let text = node.run(&["node", "metrics", "--no-volumes"])?;
    let label = format!("op=\"{op}\"}} ");
    let line = text
        .lines()
        .find(|l| l.starts_with("flagstone_device_bytes_total{") && l.contains(&label));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.with_context(|| format!("no flagstone_device_bytes_total of {op} in the metrics"))
}

/// An ext4 filesystem with a real tree in it, made without root.
fn make_image(scene: &Scene) -> Result<String> {
    let tree = scene.dir.join("tree");
    let copied = copy_tree(&[toolchain(scene)?, PathBuf::from("/usr/share")], &tree)?;
    let image = scene.dir.join("disk.img");
    let image = image
        .to_str()
        .context("the build folder has a name that is not UTF-8")?;
    File::create(image)
        .and_then(|file| file.set_len(IMAGE_BYTES))
        .context("creating the image")?;
    let from = tree
        .to_str()
        .context("the build folder has a name that is not UTF-8")?;
    scene.tool("mke2fs", &["-q", "-F", "-t", "ext4", "-d", from, image])?;
    scene.tool("e2fsck", &["-f", "-n", image])?;
    fs::remove_dir_all(&tree).context("removing the tree")?;
    println!("an ext4 image with {} MiB of files", copied >> 20);
    Ok(image.to_owned())
}

/// The Rust toolchain is there wherever this runs, and is large.
fn toolchain(scene: &Scene) -> Result<PathBuf> {
    let mut rustc = repo::command(&scene.root, "rustc");
    rustc.args(["--print", "sysroot"]);
    repo::output(rustc).map(PathBuf::from)
}

/// Copies files of the given trees until there are enough of them.
fn copy_tree(from: &[PathBuf], to: &Path) -> Result<u64> {
    let mut copied = 0;
    for (index, source) in from.iter().enumerate() {
        let mut folders = vec![(source.clone(), to.join(index.to_string()))];
        while let Some((folder, target)) = folders.pop() {
            if copied >= TREE_BYTES {
                return Ok(copied);
            }
            // Folders of others may not be readable; there is enough besides.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            fs::create_dir_all(&target).context("creating the tree")?;
            for entry in entries.flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                match entry.metadata() {
                    Ok(about) if about.is_dir() => folders.push((path, target.join(name))),
                    Ok(about) if about.is_file() && about.len() < TREE_BYTES / 2 => {
                        copied += fs::copy(&path, target.join(name)).unwrap_or(0);
                    }
                    _ => {}
                }
            }
        }
    }
    ensure!(
        copied >= TREE_BYTES / 4,
        "found only {copied} bytes of files for the image"
    );
    Ok(copied)
}

/// Copies an export out with `nbdcopy` and compares it with a file.
fn same(scene: &Scene, node: &Node, export: &str, image: &str, what: &str) -> Result<()> {
    let out = scene.dir.join("out.img");
    let shown = out
        .to_str()
        .context("the build folder has a name that is not UTF-8")?;
    scene.tool("nbdcopy", &[&node.uri(export), shown])?;
    if let Some(at) = first_difference(Path::new(image), &out)? {
        bail!("{what} ({export}) differs from the image at byte {at}");
    }
    println!("{what}: identical");
    fs::remove_file(&out).context("removing the copy")
}

/// Where two files differ; the shorter one differs where it ends.
fn first_difference(left: &Path, right: &Path) -> Result<Option<u64>> {
    let open =
        |path: &Path| File::open(path).with_context(|| format!("opening {}", path.display()));
    let (mut left, mut right) = (open(left)?, open(right)?);
    let mut at = 0;
    loop {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let piece = COMPARE_BYTES as u64;
        left.by_ref()
            .take(piece)
            .read_to_end(&mut a)
            .context("comparing")?;
        right
            .by_ref()
            .take(piece)
            .read_to_end(&mut b)
            .context("comparing")?;
        if let Some(index) = a.iter().zip(&b).position(|(x, y)| x != y) {
            return Ok(Some(at + index as u64));
        }
        if a.len() != b.len() {
            return Ok(Some(at + a.len().min(b.len()) as u64));
        }
        if a.is_empty() {
            return Ok(None);
        }
        at += a.len() as u64;
    }
}

/// Writes at aligned and at odd places, and reads the pattern back.
fn write_into_clone(scene: &Scene, node: &Node) -> Result<()> {
    let uri = node.uri("copy");
    for (pattern, offset, length) in [
        ("0xa5", "0", "1M"),
        ("0x5a", "100M", "64k"),
        ("0x3c", "4608", "1536"),
    ] {
        let write = format!("write -P {pattern} {offset} {length}");
        let read = format!("read -P {pattern} {offset} {length}");
        let said = scene.tool("qemu-io", &["-f", "raw", "-c", &write, "-c", &read, &uri])?;
        ensure!(
            !said.contains("verification failed"),
            "the clone reads back wrong:\n{said}"
        );
    }
    Ok(())
}

/// Everything is given back: by discards first, then by deletion in an awkward order.
fn discard_and_delete(scene: &Scene, node: &Node, free_before: u64) -> Result<()> {
    let used = free_before.saturating_sub(free_bytes(node)?);
    ensure!(
        used > TREE_BYTES / 4,
        "the image took only {used} bytes of the device"
    );
    node.run(&["snapshot", "delete", "disk@first"])?;
    let half = format!("discard 0 {}", IMAGE_BYTES / 2);
    scene.tool(
        "qemu-io",
        &["-f", "raw", "-d", "unmap", "-c", &half, &node.uri("disk")],
    )?;
    node.run(&["volume", "delete", "disk"])?;
    node.run(&["volume", "delete", "copy"])?;
    let free = wait_for_free(node, free_before.saturating_sub(METADATA_SLACK_BYTES))?;
    println!(
        "free space: {} MiB before, {} MiB after everything was deleted",
        free_before >> 20,
        free >> 20
    );
    let resident = process::tree_resident_bytes(node.pid()?);
    println!("resident memory of the node: {} MiB", resident >> 20);
    Ok(())
}
