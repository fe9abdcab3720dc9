//! Files over NFS: a tree goes in with stock tools, the node is killed under load, and everything that was
//! answered is there afterwards, now and in a snapshot.
//!
//! `nfs-cp` commits a file before it ends, so each that ended well must be there whole. libnfs has no tool that
//! makes directories: those are made by hand (`rpc`).

mod rpc;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::Random;
use super::scene::Scene;
use crate::daemon::Node;
use crate::{process, repo};
use rpc::Rpc;

const FILESYSTEM: &str = "demo-files";
/// Taken once the tree is in.
const SNAPSHOT: &str = "tree";
/// A copy of one of its files.
const CLONE: &str = "clone-of-a-document";
const ROUNDS: u32 = 3;
const WRITERS: u32 = 4;
/// The node lives this long under load.
const LIFE: Duration = Duration::from_millis(800);
/// Of the files written under load: in the inode, in blocks, and in several writes.
const SIZES: [usize; 4] = [300, 5_000, 70_000, 1_500_000];
const POLL: Duration = Duration::from_millis(2);

pub(super) fn run(scene: &Scene, seed: u64) -> Result<()> {
    for tool in ["nfs-cp", "nfs-cat", "nfs-ls"] {
        ensure!(
            repo::has_program(tool),
            "{tool} is missing; ./.ci/test installs it"
        );
    }
    let mut node = Node::start_with_files(scene.options("2G", 2))?;
    let tree = copy_tree(scene, &node)?;
    node.run(&["fs", "snapshot", "create", FILESYSTEM, SNAPSHOT])?;
    let (copied, original) = tree.first().context("the tree is empty")?;
    let (from, to) = (format!("/{copied}"), format!("/{CLONE}"));
    node.run(&["fs", "clone", FILESYSTEM, &from, &to])?;
    let samples = Samples::make(scene, seed)?;
    let mut answered = BTreeSet::new();
    for round in 0..ROUNDS {
        let written = one_life(&mut node, &samples, round)?;
        ensure!(!written.is_empty(), "nothing was written before the kill");
        answered.extend(written);
        let took = node.restart()?;
        node.run(&["fs", "check"])
            .context("a filesystem is not whole after a kill")?;
        let count = answered.len();
        println!(
            "killed {} times, {count} files answered, back in {took:?}",
            round + 1
        );
    }
    for file in &answered {
        let expected = &samples.files[file.sample()];
        same(scene, &node, &file.name(), expected)?;
    }
    same(scene, &node, CLONE, original)?;
    for (relative, original) in &tree {
        // What the load has changed since is not in the snapshot; of the tree it has changed nothing.
        same(scene, &node, relative, original)?;
        same_at(
            scene,
            &node,
            &format!("{FILESYSTEM}@{SNAPSHOT}/{relative}"),
            original,
        )?;
    }
    let listed = scene.tool(
        "nfs-ls",
        &[&uri(&node, &format!("{FILESYSTEM}@{SNAPSHOT}"))?],
    )?;
    ensure!(
        !listed.contains("load-"),
        "the snapshot has files that came after it:\n{listed}"
    );
    node.run(&["fs", "snapshot", "delete", FILESYSTEM, SNAPSHOT])?;
    node.run(&["fs", "check", FILESYSTEM])?;
    node.stop()?;
    let verified = node.verify()?;
    println!(
        "{} files and a tree of {}: {}",
        answered.len(),
        tree.len(),
        verified.trim()
    );
    Ok(())
}

fn uri(node: &Node, path: &str) -> Result<String> {
    Ok(uri_at(port_of(node)?, path))
}

fn port_of(node: &Node) -> Result<u16> {
    node.nfs_port.context("the node serves no NFS")
}

fn uri_at(port: u16, path: &str) -> String {
    format!("nfs://127.0.0.1/{path}?version=3&nfsport={port}&mountport={port}")
}

/// Copies this repository's documents in, directories and all. Returns where each lies, there and here.
fn copy_tree(scene: &Scene, node: &Node) -> Result<Vec<(String, PathBuf)>> {
    let mut rpc = Rpc::connect(port_of(node)?)?;
    let root = rpc.mount(&format!("/{FILESYSTEM}"))?;
    let mut files = Vec::new();
    let mut directories = vec![(scene.root.join("docs"), "docs".to_owned(), root)];
    while let Some((here, there, parent)) = directories.pop() {
        let (_, name) = there.rsplit_once('/').unwrap_or(("", &there));
        let handle = rpc.make_directory(&parent, name)?;
        let entries = fs::read_dir(&here).with_context(|| format!("reading {}", here.display()))?;
        for entry in entries {
            let entry = entry.context("reading an entry")?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (path, relative) = (entry.path(), format!("{there}/{name}"));
            if path.is_dir() {
                directories.push((path, relative, handle.clone()));
                continue;
            }
            let target = uri(node, &format!("{FILESYSTEM}/{relative}"))?;
            scene.tool("nfs-cp", &[&path.display().to_string(), &target])?;
            files.push((relative, path));
        }
    }
    ensure!(files.len() > 10, "the tree has only {} files", files.len());
    Ok(files)
}

/// Files of random bytes to write.
struct Samples {
    files: Vec<PathBuf>,
}

impl Samples {
    fn make(scene: &Scene, seed: u64) -> Result<Samples> {
        let mut random = Random::new(seed);
        let mut files = Vec::new();
        for bytes in SIZES {
            let path = scene.dir.join(format!("sample-{bytes}"));
            let content: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
            files.push(path);
        }
        Ok(Samples { files })
    }
}

/// A file written under load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Loaded {
    round: u32,
    writer: u32,
    number: usize,
}

impl Loaded {
    fn name(&self) -> String {
        format!("load-{}-{}-{}", self.round, self.writer, self.number)
    }

    fn sample(&self) -> usize {
        self.number % SIZES.len()
    }
}

/// Writes files until the node is killed. Returns those that were answered.
fn one_life(node: &mut Node, samples: &Samples, round: u32) -> Result<Vec<Loaded>> {
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    let port = port_of(node)?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write_files(samples, port, (round, writer), is_over)))
            .collect();
        thread::sleep(LIFE);
        let killed = node.kill();
        is_over.store(true, Ordering::Release);
        let mut answered = Vec::new();
        for writer in writers {
            let written = writer
                .join()
                .map_err(|_| anyhow::anyhow!("a writer panicked"));
            answered.extend(written??);
        }
        killed?;
        Ok(answered)
    })
}

fn write_files(
    samples: &Samples,
    port: u16,
    (round, writer): (u32, u32),
    is_over: &AtomicBool,
) -> Result<Vec<Loaded>> {
    let mut answered = Vec::new();
    for number in 0.. {
        let file = Loaded {
            round,
            writer,
            number,
        };
        let mut command = Command::new("nfs-cp");
        command
            .arg(&samples.files[file.sample()])
            .arg(uri_at(port, &format!("{FILESYSTEM}/{}", file.name())))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().context("starting nfs-cp")?;
        if !ended_well(child, is_over)? {
            break;
        }
        answered.push(file);
    }
    Ok(answered)
}

/// Whether a client has ended well. One whose server is gone would wait for ever.
fn ended_well(mut child: Child, is_over: &AtomicBool) -> Result<bool> {
    loop {
        if let Some(status) = child.try_wait().context("asking after nfs-cp")? {
            ensure!(
                status.success() || is_over.load(Ordering::Acquire),
                "nfs-cp ended with {status} while the node was there"
            );
            return Ok(status.success());
        }
        if is_over.load(Ordering::Acquire) {
            process::kill_tree(child.id());
            child.wait().context("waiting for nfs-cp")?;
            return Ok(false);
        }
        thread::sleep(POLL);
    }
}

fn same(scene: &Scene, node: &Node, relative: &str, expected: &Path) -> Result<()> {
    same_at(scene, node, &format!("{FILESYSTEM}/{relative}"), expected)
}

fn same_at(scene: &Scene, node: &Node, path: &str, expected: &Path) -> Result<()> {
    let copy = scene.dir.join("copy");
    let out = fs::File::create(&copy).context("making a file")?;
    let mut command = Command::new("nfs-cat");
    command.arg(uri(node, path)?).stdout(out);
    let status = command.status().context("starting nfs-cat")?;
    ensure!(status.success(), "nfs-cat of {path} ended with {status}");
    let (found, expected) = (fs::read(&copy)?, fs::read(expected)?);
    ensure!(
        found == expected,
        "{path} has {} bytes that are not the {} that were written",
        found.len(),
        expected.len()
    );
    Ok(())
}
