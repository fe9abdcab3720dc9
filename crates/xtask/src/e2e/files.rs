//! Files over NFS: a tree goes in with stock tools, the node is killed at random under load, and everything that was
//! answered is there afterwards, now and in a snapshot.
//!
//! `nfs-cp` commits a file before it ends, so each that ended well must be there whole. libnfs has no tool that
//! makes directories: those are made by hand (`nfs`). Beside it there are clients that go on through all crashes
//! with the handles they got before the first one (`steady`). The node has one core and two in turn, so the
//! filesystems' journal changes its owner.

mod steady;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::Random;
use super::nfs::Client;
use super::rpc::Rpc;
use super::scene::Scene;
use crate::daemon::{Node, NodeOptions};
use crate::{process, repo};
use steady::{Seen, Steady};

const FILESYSTEM: &str = "demo-files";
/// Taken once the tree is in.
const SNAPSHOT: &str = "tree";
/// A copy of one of its files.
const CLONE: &str = "clone-of-a-document";
const WRITERS: u32 = 2;
/// The node lives this long under load, at least and at most.
const LIFE_MS: (u64, u64) = (50, 900);
/// The files of the clients that go on: in blocks, and as dvols.
const STEADY_BYTES: [u64; 4] = [192 << 10, 768 << 10, 4 << 20, 16 << 20];
/// Of the files written under load: in the inode, in blocks, and in several writes.
const SIZES: [usize; 4] = [300, 5_000, 70_000, 1_500_000];
const POLL: Duration = Duration::from_millis(2);

pub(super) fn run(scene: &Scene, crashes: u32, seed: u64) -> Result<()> {
    for tool in ["nfs-cp", "nfs-cat", "nfs-ls"] {
        ensure!(
            repo::has_program(tool),
            "{tool} is missing; ./.ci/test installs it"
        );
    }
    // Large files lie on both devices.
    let options = NodeOptions {
        more_devices: 1,
        ..scene.options("2G", 2)
    };
    let mut node = Node::start_with_files(options)?;
    node.run(&["fs", "create", FILESYSTEM])?;
    let tree = copy_tree(scene, &node)?;
    node.run(&["fs", "snapshot", "create", FILESYSTEM, SNAPSHOT])?;
    let (copied, original) = tree.first().context("the tree is empty")?;
    let (from, to) = (format!("/{copied}"), format!("/{CLONE}"));
    node.run(&["fs", "clone", FILESYSTEM, &from, &to])?;
    let samples = Samples::make(scene, seed)?;
    let seen = under_load(scene, &mut node, &samples, crashes, seed)?;
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
    let shown = node.json(&["fs", "show", FILESYSTEM])?;
    let parts = shown["devices"].as_array().map_or(0, Vec::len);
    ensure!(parts == 2, "files are not on both devices: {shown}");
    node.run(&["fs", "snapshot", "delete", FILESYSTEM, SNAPSHOT])?;
    node.run(&["fs", "check", FILESYSTEM])?;
    node.stop()?;
    let verified = node.verify()?;
    println!("clients that went on: {seen}");
    println!("a tree of {} files: {}", tree.len(), verified.trim());
    Ok(())
}

/// The node is killed again and again. Returns what the clients have seen that go on all the time.
fn under_load(
    scene: &Scene,
    node: &mut Node,
    samples: &Samples,
    crashes: u32,
    seed: u64,
) -> Result<Seen> {
    let (port, export) = (port_of(node)?, format!("/{FILESYSTEM}"));
    let mut steady = Vec::new();
    for (index, bytes) in (0..).zip(STEADY_BYTES) {
        steady.push(Steady::start(port, &export, index, bytes, seed)?);
    }
    let is_over = AtomicBool::new(false);
    let (steady, seen) = thread::scope(|scope| {
        let running: Vec<_> = steady
            .into_iter()
            .map(|client| scope.spawn(|| client.run(&is_over)))
            .collect();
        let killed = kill_again_and_again(scene, node, samples, crashes, seed);
        is_over.store(true, Ordering::Release);
        let ended: Vec<_> = running.into_iter().map(|each| each.join()).collect();
        // If the node is gone for good, that is why they have ended as well.
        killed?;
        let mut clients = Vec::new();
        let mut seen = Seen::default();
        for each in ended {
            let each = each.map_err(|_| anyhow::anyhow!("a client panicked"));
            let (client, its) = each?.context("a client that goes on")?;
            clients.push(client);
            ensure!(
                its.crashes > 0 || crashes == 0,
                "a client has not noticed that the node was killed"
            );
            seen.add(&its);
        }
        anyhow::Ok((clients, seen))
    })?;
    let mut fresh = Client::new(Rpc::connect(port)?);
    let root = fresh.mount(&export)?;
    for mut client in steady {
        client.check_handles(&mut fresh, &root)?;
    }
    Ok(seen)
}

fn kill_again_and_again(
    scene: &Scene,
    node: &mut Node,
    samples: &Samples,
    crashes: u32,
    seed: u64,
) -> Result<()> {
    let mut random = Random::new(seed);
    for round in 1..=crashes {
        let life = LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0);
        let answered = one_life(node, samples, round, Duration::from_millis(life))?;
        node.options.cores = 1 + round % 2;
        node.check_files()
            .with_context(|| format!("what crash {round} has left, before a start"))?;
        let took = node
            .restart()
            .with_context(|| format!("restart after crash {round}"))?;
        node.run(&["fs", "check"])
            .with_context(|| format!("a filesystem is not whole after crash {round}"))?;
        // Those who go on don't end here: this is what they see of it, too.
        let mut client = Client::new(Rpc::connect(port_of(node)?)?);
        let root = client.mount(&format!("/{FILESYSTEM}"))?;
        for file in &answered {
            let expected = &samples.files[file.sample()];
            same(scene, node, &file.name(), expected)
                .with_context(|| format!("after crash {round}, seed {seed}"))?;
        }
        for name in client.names(&root)? {
            // Answered or not: there is room for the next ones.
            if name.starts_with("load-") {
                client.remove(&root, &name)?;
            }
        }
        println!(
            "crash {round}: after {life} ms and {} files of nfs-cp; ready again with {} of 2 cores in {} ms",
            answered.len(),
            node.options.cores,
            took.as_millis()
        );
    }
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
    let mut client = Client::new(Rpc::connect(port_of(node)?)?);
    let root = client.mount(&format!("/{FILESYSTEM}"))?;
    let mut files = Vec::new();
    let mut directories = vec![(scene.root.join("docs"), "docs".to_owned(), root)];
    while let Some((here, there, parent)) = directories.pop() {
        let (_, name) = there.rsplit_once('/').unwrap_or(("", &there));
        let handle = client.make_directory(&parent, name)?;
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

/// The end of one of the node's lives: what a client may say of it before it is known to be over.
#[derive(Default)]
struct End {
    /// The node may be gone.
    is_near: AtomicBool,
    /// It is.
    is_over: AtomicBool,
}

/// Writes files until the node is killed. Returns those that were answered.
fn one_life(node: &mut Node, samples: &Samples, round: u32, life: Duration) -> Result<Vec<Loaded>> {
    let end = &End::default();
    let port = port_of(node)?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write_files(samples, port, (round, writer), end)))
            .collect();
        thread::sleep(life);
        end.is_near.store(true, Ordering::Release);
        let killed = node.kill();
        end.is_over.store(true, Ordering::Release);
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
    end: &End,
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
        if !ended_well(child, end)? {
            break;
        }
        answered.push(file);
    }
    Ok(answered)
}

/// Whether a client has ended well. One whose server is gone may say so, or wait for ever.
fn ended_well(mut child: Child, end: &End) -> Result<bool> {
    loop {
        if let Some(status) = child.try_wait().context("asking after nfs-cp")? {
            ensure!(
                status.success() || end.is_near.load(Ordering::Acquire),
                "nfs-cp ended with {status} while the node was there"
            );
            return Ok(status.success());
        }
        if end.is_over.load(Ordering::Acquire) {
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
