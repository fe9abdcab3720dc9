//! What is compared: the raw file, three stock NBD servers, and Flagstone.
//!
//! All peers serve the same file. They run side by side for the whole run, idle but for the one
//! under load, so that points can alternate between them in seconds; QEMU's image locks are off
//! for that reason, and nothing else about them is unusual.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::api::Api;
use crate::daemon::{Daemon, Node, NodeOptions, free_port};
use crate::{process, repo};

/// The export's name on every server, ours included.
const EXPORT: &str = "bench";

/// How long a server that accepts connections may take to open its file.
const OPEN_LIMIT: Duration = Duration::from_secs(2);

/// How a target relates to the page cache, which decides whom it may be compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caching {
    /// No server, no cache.
    Raw,
    /// O_DIRECT: a completed write has left memory.
    Direct,
    /// A completed write is in the page cache.
    PageCache,
    /// No disk: a reference, compared with nobody.
    Null,
    /// Flagstone.
    Own,
}

enum Process {
    None,
    Peer(Daemon),
    Node(Box<Node>),
}

/// Something that can be put under load.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) caching: Caching,
    /// What a completed write is; what a flushed one is.
    pub(super) durability: (&'static str, &'static str),
    /// How to reproduce it, without ports and folders.
    pub(super) how: String,
    /// The export, or nothing for the raw file.
    pub(super) uri: Option<String>,
    process: Process,
}

impl Target {
    /// The server's process, if there is one.
    pub(super) fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::None => None,
            Process::Peer(daemon) => Some(daemon.pid()),
            Process::Node(node) => node.pid().ok(),
        }
    }

    /// For how long it has kept the machine's idle processors awake since it started, in seconds; nothing of the kind is known of the
    /// peers.
    pub(super) fn awake_seconds(&self) -> Result<f64> {
        match &self.process {
            Process::None | Process::Peer(_) => Ok(0.0),
            Process::Node(node) => awake_seconds(node),
        }
    }

    pub(super) fn stop(self) -> Result<()> {
        match self.process {
            Process::None => Ok(()),
            Process::Peer(daemon) => daemon.stop().map(|_| ()),
            Process::Node(mut node) => node.stop(),
        }
    }
}

/// For how long a node has kept idle processors awake since it started, in seconds.
pub(super) fn awake_seconds(node: &Node) -> Result<f64> {
    Api::of(node)?.metric("flagstone_core_awake_seconds_total")
}

/// The raw file itself.
pub(super) fn raw() -> Target {
    Target {
        name: "raw".to_owned(),
        caching: Caching::Raw,
        durability: (
            "past the page cache (O_DIRECT), not flushed",
            "+ fdatasync after each write; FUA: O_DSYNC",
        ),
        how: "fio ioengine=io_uring direct=1 on the file".to_owned(),
        uri: None,
        process: Process::None,
    }
}

/// A completed write of the servers with O_DIRECT, and a flushed one.
const DIRECT: (&str, &str) = (
    "past the page cache (O_DIRECT), not flushed",
    "+ fdatasync after each write",
);
const CACHED: (&str, &str) = (
    "in the server's memory (page cache)",
    "+ fdatasync after each write",
);

/// Stock servers.
pub(super) const PEERS: usize = 3;

/// A stock server about to be started.
struct Peer<'a> {
    name: &'a str,
    caching: Caching,
    how: &'a str,
    command: Command,
    port: u16,
}

/// The stock servers, each on the file that `file_of` has for its place, which may be the same for all.
pub(super) fn peers<'a>(file_of: impl Fn(usize) -> &'a Path, dir: &Path) -> Result<Vec<Target>> {
    let makes: [fn(&str) -> Result<Peer<'static>>; PEERS] = [qemu_nbd, storage_daemon, nbdkit];
    let start = |(place, make): (usize, fn(&str) -> Result<Peer<'static>>)| {
        let file = file_of(place);
        let shown = file
            .to_str()
            .context("the benchmark's folder has a name that is not UTF-8")?;
        make(shown)?.start(file, dir)
    };
    makes.into_iter().enumerate().map(start).collect()
}

fn qemu_nbd(file: &str) -> Result<Peer<'static>> {
    let port = free_port()?;
    let mut command = Command::new("qemu-nbd");
    command.args([
        "--persistent",
        "--shared=0",
        "--cache=none",
        "--aio=io_uring",
    ]);
    command.args(["--bind=127.0.0.1", &format!("--port={port}")]);
    command.arg(format!("--export-name={EXPORT}"));
    command.arg("--image-opts");
    command.arg(format!(
        "driver=raw,file.driver=file,file.filename={file},file.locking=off"
    ));
    let how = "qemu-nbd --cache=none --aio=io_uring, TCP";
    Ok(Peer {
        name: "qemu-nbd",
        caching: Caching::Direct,
        how,
        command,
        port,
    })
}

fn storage_daemon(file: &str) -> Result<Peer<'static>> {
    let port = free_port()?;
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(format!(
        "driver=file,node-name=file0,filename={file},cache.direct=on,aio=io_uring,locking=off"
    ));
    command.arg("--nbd-server");
    command.arg(format!(
        "addr.type=inet,addr.host=127.0.0.1,addr.port={port}"
    ));
    command.arg("--export");
    command.arg(format!(
        "type=nbd,id=export0,node-name=file0,name={EXPORT},writable=on"
    ));
    let how = "qemu-storage-daemon, file with cache.direct=on aio=io_uring, NBD over TCP";
    Ok(Peer {
        name: "qsd",
        caching: Caching::Direct,
        how,
        command,
        port,
    })
}

fn nbdkit(file: &str) -> Result<Peer<'static>> {
    let port = free_port()?;
    let mut command = Command::new("nbdkit");
    command.args([
        "--foreground",
        "--ipaddr=127.0.0.1",
        &format!("--port={port}"),
    ]);
    command.args([&format!("--exportname={EXPORT}"), "file", file]);
    let how = "nbdkit file (page cache), TCP";
    Ok(Peer {
        name: "nbdkit",
        caching: Caching::PageCache,
        how,
        command,
        port,
    })
}

/// A server that does nothing but answer.
pub(super) fn exchange(size_bytes: u64, dir: &Path) -> Result<Target> {
    let port = free_port()?;
    let mut command = Command::new("nbdkit");
    command.args([
        "--foreground",
        "--ipaddr=127.0.0.1",
        &format!("--port={port}"),
    ]);
    command.args([
        &format!("--exportname={EXPORT}"),
        "null",
        &format!("size={size_bytes}"),
    ]);
    let peer = Peer {
        name: super::floor::EXCHANGE,
        caching: Caching::Null,
        how: "nbdkit null, TCP",
        command,
        port,
    };
    peer.start(Path::new("/dev/null"), dir)
}

impl Peer<'_> {
    fn start(self, file: &Path, dir: &Path) -> Result<Target> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        ensure!(
            repo::has_program(&program),
            "{program} is missing: apt install qemu-utils qemu-system-common nbdkit"
        );
        let log = dir.join(format!("{}.log", self.name));
        let mut daemon = Daemon::start(self.name, self.command, &log)?;
        daemon.wait_for_port(self.port)?;
        if self.caching == Caching::Direct {
            // One that accepts connections may not have opened it yet.
            let is_direct = || process::opened_direct(daemon.pid(), file) == Some(true);
            let started = Instant::now();
            while !is_direct() && started.elapsed() < OPEN_LIMIT {
                thread::sleep(Duration::from_millis(10));
            }
            ensure!(
                is_direct(),
                "{} did not open the file with O_DIRECT",
                self.name
            );
        }
        Ok(Target {
            name: self.name.to_owned(),
            caching: self.caching,
            durability: match self.caching {
                Caching::Direct => DIRECT,
                Caching::Null => ("nowhere", "nowhere"),
                _ => CACHED,
            },
            how: self.how.to_owned(),
            uri: Some(format!("nbd://127.0.0.1:{}/{EXPORT}", self.port)),
            process: Process::Peer(daemon),
        })
    }
}

/// One way of running Flagstone; several can be compared in one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Variant {
    name: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Variant {
    pub(super) fn plain() -> Variant {
        Variant {
            name: "flagstone".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Reads `NAME: [KEY=VALUE ...] [--argument ...]`.
    pub(super) fn parse(text: &str) -> Result<Variant> {
        let (name, rest) = text
            .split_once(':')
            .with_context(|| format!("`{text}`: a variant is `NAME: KEY=VALUE --argument ...`"))?;
        let mut variant = Variant {
            name: name.trim().to_owned(),
            ..Variant::plain()
        };
        for word in rest.split_ascii_whitespace() {
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            match word.split_once('=') {
                Some((key, value)) if key.chars().all(is_name) => {
                    variant.environment.push((key.to_owned(), value.to_owned()));
                }
                _ => variant.arguments.push(word.to_owned()),
            }
        }
        Ok(variant)
    }
}

/// What a Flagstone target needs besides its variant.
pub(super) struct FlagstoneSetup {
    pub(super) binary: PathBuf,
    pub(super) cores: u32,
    pub(super) device_size: String,
    pub(super) volume_bytes: u64,
}

/// Starts a node of its own with one volume.
pub(super) fn flagstone(setup: &FlagstoneSetup, variant: &Variant, dir: &Path) -> Result<Target> {
    let node = Node::start(NodeOptions {
        binary: setup.binary.clone(),
        dir: dir.join(format!("node-{}", variant.name)),
        size: setup.device_size.clone(),
        cores: setup.cores,
        config: None,
        more_devices: 0,
        arguments: variant.arguments.clone(),
        environment: variant.environment.clone(),
    })?;
    let size = setup.volume_bytes.to_string();
    node.run(&["volume", "create", EXPORT, "--size", &size])?;
    let mut how = format!("flagstone dev --cores {}", setup.cores);
    for (name, value) in &variant.environment {
        how = format!("{name}={value} {how}");
    }
    for argument in &variant.arguments {
        how = format!("{how} {argument}");
    }
    Ok(Target {
        name: variant.name.clone(),
        caching: Caching::Own,
        durability: (
            "on the device (O_DIRECT) when answered, not flushed; checksummed",
            "data, checksum and mapping flushed; FUA the same",
        ),
        how: format!("{how}, NBD over TCP"),
        uri: Some(node.uri(EXPORT)),
        process: Process::Node(Box::new(node)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_a_name_then_environment_and_arguments() {
        let variant = Variant::parse("spin0: FLAGSTONE_SPIN=0 --flush=dsync -v").expect("parses");
        assert_eq!(variant.name, "spin0");
        assert_eq!(
            variant.environment,
            [("FLAGSTONE_SPIN".to_owned(), "0".to_owned())]
        );
        assert_eq!(variant.arguments, ["--flush=dsync", "-v"]);
        assert!(Variant::parse("no colon").is_err());
    }
}
