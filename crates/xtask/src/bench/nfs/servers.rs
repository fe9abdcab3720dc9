//! The servers side by side, what a load needs to know of each, and what ours counts at its device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::super::client::drop_cache;
use super::super::targets;
use super::client::Connection;
use super::data::{BLOCK_BYTES, Kind, MEGABYTE, Transfers};
use super::ganesha::{self, Ganesha};
use super::names::Made;
use super::wire::Handle;
use crate::daemon::{Node, NodeOptions};

pub(super) const OWN: &str = "flagstone";
/// A second one of ours.
pub(super) const BESIDE: &str = "beside";
pub(super) const PEER: &str = "ganesha";

/// The filesystem that a new node of ours has.
const EXPORT: &str = "/demo-files";
/// Of the file that is read from memory.
pub(super) const SMALL_BYTES: u64 = 32 << 20;
const LARGE: &str = "large";

enum Process {
    Own(Box<Node>),
    Peer(Box<Ganesha>),
}

/// A server and the files that the loads use there.
pub(super) struct Server {
    pub(super) name: &'static str,
    /// How to reproduce it, without ports and folders.
    pub(super) how: String,
    /// When a stable write is answered, and when any other change is.
    pub(super) durability: (&'static str, &'static str),
    process: Process,
    pub(super) root: Handle,
    pub(super) small: Handle,
    pub(super) large: Handle,
    /// What CREATE has made at each depth.
    pub(super) made: BTreeMap<u32, Made>,
    next: u32,
}

/// What an engine of ours did at its device.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct DeviceCounts {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) flushes: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
}

impl DeviceCounts {
    /// What came after `before`.
    pub(super) fn since(self, before: DeviceCounts) -> DeviceCounts {
        DeviceCounts {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }

    pub(super) fn to_json(self) -> Value {
        json!({ "reads": self.reads, "writes": self.writes, "flushes": self.flushes,
            "read_bytes": self.read_bytes, "written_bytes": self.written_bytes })
    }
}

/// How ours is run.
pub(super) struct Own {
    pub(super) binary: PathBuf,
    pub(super) device_size: String,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// Starts a node of ours.
pub(super) fn own(name: &'static str, own: Own, dir: &Path) -> Result<Server> {
    let mut how = "flagstone dev --cores 1".to_owned();
    for (key, value) in &own.environment {
        how = format!("{key}={value} {how}");
    }
    for argument in &own.arguments {
        how = format!("{how} {argument}");
    }
    let node = Node::start_with_files(NodeOptions {
        binary: own.binary,
        dir: dir.join(name),
        size: own.device_size,
        cores: 1,
        config: None,
        more_devices: 0,
        arguments: own.arguments,
        environment: own.environment,
    })?;
    Ok(Server {
        name,
        how: format!("{how}, its device a file"),
        durability: (
            "data, checksum and mapping flushed",
            "flushed: every operation is durable when answered",
        ),
        process: Process::Own(Box::new(node)),
        root: Handle::default(),
        small: Handle::default(),
        large: Handle::default(),
        made: BTreeMap::new(),
        next: 0,
    })
}

/// Starts the peer.
pub(super) fn peer(dir: &Path, filesystem: &str) -> Result<Server> {
    let started = ganesha::start(dir)?;
    Ok(Server {
        name: PEER,
        how: format!("ganesha.nfsd, VFS back end on the machine's own {filesystem}"),
        durability: (
            "pwrite and fsync",
            "not synced: CREATE, MKDIR, SETATTR, RENAME and REMOVE are in memory when answered",
        ),
        process: Process::Peer(Box::new(started)),
        root: Handle::default(),
        small: Handle::default(),
        large: Handle::default(),
        made: BTreeMap::new(),
        next: 0,
    })
}

impl Server {
    pub(super) fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Own(node) => node.pid().ok(),
            Process::Peer(ganesha) => Some(ganesha.daemon.pid()),
        }
    }

    /// For how long it has kept idle processors awake since it started, in seconds; nothing of the kind is known of the peer.
    pub(super) fn awake_seconds(&self) -> Result<f64> {
        match &self.process {
            Process::Own(node) => targets::awake_seconds(node),
            Process::Peer(_) => Ok(0.0),
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self.process, Process::Own(_))
    }

    /// A new connection to its NFS port.
    pub(super) fn connect(&self) -> Result<Connection> {
        let port = match &self.process {
            Process::Own(node) => node.nfs_port.context("the node serves no NFS")?,
            Process::Peer(ganesha) => ganesha.port,
        };
        Connection::open(port)
    }

    /// Mounts it and writes the files that are read.
    pub(super) fn fill(&mut self, large_bytes: u64) -> Result<()> {
        let mut connection = self.connect()?;
        self.root = match &self.process {
            Process::Own(_) => connection.mount(EXPORT)?,
            Process::Peer(ganesha) => {
                let folder = ganesha.folder.to_str().context("a folder's name")?;
                Connection::open(ganesha.mount_port)?.mount(folder)?
            }
        };
        self.small = connection.make_file(&self.root, "small")?;
        self.large = connection.make_file(&self.root, LARGE)?;
        for (file, size) in [(&self.small, SMALL_BYTES), (&self.large, large_bytes)] {
            let mut writes = Transfers::sequential(file, size, Kind::Writes, MEGABYTE);
            connection.run(&mut writes, 8, None)?;
            connection.commit(file)?;
        }
        Ok(())
    }

    /// Reads the small file until it is in memory: block by block, and twice, since a cache may keep out what was
    /// read only once, and large reads.
    pub(super) fn warm(&self) -> Result<()> {
        let mut connection = self.connect()?;
        for _ in 0..2 {
            let mut reads =
                Transfers::sequential(&self.small, SMALL_BYTES, Kind::Reads, BLOCK_BYTES);
            connection.run(&mut reads, 32, None)?;
        }
        Ok(())
    }

    /// Takes the large file out of the page cache, where there is one. Ours has a cache of its own, an eighth of
    /// the large file at most.
    pub(super) fn forget_large(&self) -> Result<()> {
        match &self.process {
            Process::Own(_) => Ok(()),
            Process::Peer(ganesha) => drop_cache(&ganesha.folder.join(LARGE)),
        }
    }

    /// A new directory.
    pub(super) fn new_directory(&mut self, what: &str) -> Result<Handle> {
        self.next += 1;
        let name = format!("{what}.{}", self.next);
        self.connect()?.make_directory(&self.root, &name)
    }

    /// What ours has done at its device so far.
    pub(super) fn device_counts(&self) -> Result<DeviceCounts> {
        let Process::Own(node) = &self.process else {
            return Ok(DeviceCounts::default());
        };
        let metrics = node.json(&["node", "metrics", "--no-volumes"])?;
        let of = |what: &str, op: &str| {
            let name = format!("flagstone_device_{what}_total");
            let series = metrics.as_array().into_iter().flatten();
            series
                .filter(|each| each["name"] == name.as_str() && each["labels"]["op"] == op)
                .filter_map(|each| each["value"].as_f64())
                .sum()
        };
        Ok(DeviceCounts {
            reads: of("operations", "read"),
            writes: of("operations", "write"),
            flushes: of("operations", "flush"),
            read_bytes: of("bytes", "read"),
            written_bytes: of("bytes", "write"),
        })
    }

    /// Stops it. The peer's files are scrap, and it takes its time to stop.
    pub(super) fn stop(self) -> Result<()> {
        match self.process {
            Process::Own(mut node) => node.stop(),
            Process::Peer(ganesha) => {
                let Ganesha { daemon, folder, .. } = *ganesha;
                daemon.kill()?;
                fs::remove_dir_all(&folder)
                    .with_context(|| format!("removing {}", folder.display()))
            }
        }
    }
}
