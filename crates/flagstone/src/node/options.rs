//! What a node is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

use flagstone_gateway::nfs3::{Network, Squash};
use flagstone_tls::ServerTls;
use serde::Deserialize;

use super::points::MoveHooks;
use super::slo::Schedule;
use crate::layers::LayerText;

/// A device to be opened. It must be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceOptions {
    /// Its name on this node, unique.
    pub name: String,
    /// The file or block device.
    pub path: PathBuf,
    /// The size it must have been formatted with; `None` accepts any.
    pub expected_size_bytes: Option<u64>,
    /// What it is asked for passes these first: for measuring and testing.
    pub layers: Vec<LayerText>,
    /// How it is divided among its volumes, until somebody says otherwise.
    pub schedule: Schedule,
}

/// Whether the machine's processors are kept from sleeping while clients ask for one thing after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepAwake {
    /// On virtual machines where sleeping is dear and few processors are concerned.
    #[default]
    Auto,
    /// Wherever the system lets this user ask for it.
    Yes,
    /// Never.
    No,
}

/// Memory for maps unless something else is said: enough for some hundred gigabytes in use.
pub const MAP_CACHE_DEFAULT_BYTES: u64 = 1 << 30;

/// Bytes of blocks kept in memory unless asked otherwise: the trees of filesystems with some hundred
/// thousand files.
pub const BLOCK_CACHE_DEFAULT_BYTES: u64 = 256 << 20;

/// NBD connections at the same time unless something else is said.
pub const NBD_CONNECTIONS_DEFAULT: usize = 1024;

/// Connections of the native protocol at the same time unless told otherwise.
pub const NATIVE_CONNECTIONS_DEFAULT: usize = 1024;

/// The longest name of a failure domain, in bytes.
pub const FAILURE_DOMAIN_MAX_BYTES: usize = 255;

/// Days in which everything is scrubbed once, unless something else is said.
pub const SCRUB_DAYS_DEFAULT: u32 = 30;

/// How long a stop waits for what is in flight to be answered, in milliseconds. A client can make
/// that take as long as it likes, by reading slowly or with a request that takes hours.
pub const STOP_GRACE_DEFAULT_MS: u64 = 10_000;

/// The name by which volumes are exported to NFS clients, as files of one directory. No filesystem can have it.
pub const VOLUMES_EXPORT: &str = ".volumes";

/// To whom a filesystem, or a directory of one, is exported, and in whose name they act. A filesystem that has no such
/// rules is exported to this machine only, where everybody is believed to be who they say. [`VOLUMES_EXPORT`] without
/// rules is not exported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportOptions {
    /// Its name, or [`VOLUMES_EXPORT`]. It need not be there yet.
    pub filesystem: String,
    /// The names that lead from its topmost directory to the one that is exported; none: that itself.
    pub directory: Vec<String>,
    /// In the handles of what is reached through it: 0 of a topmost directory, and of each other one a number of its own
    /// within the filesystem, for ever.
    pub number: u16,
    /// From where it may be used.
    pub clients: Vec<Network>,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Who acts in the name of nobody.
    pub squash: Squash,
    /// Nobody's user and group.
    pub anonymous: (u32, u32),
}

/// What a node is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeOptions {
    /// Its devices, at least one.
    pub devices: Vec<DeviceOptions>,
    /// Number of cores; `None` for half of the processors this process may run on, one to eight.
    pub cores: Option<usize>,
    /// Where to listen for NBD clients (TCP); port 0 for any free one.
    pub nbd: Option<SocketAddr>,
    /// Where to listen for NBD clients (Unix socket).
    pub nbd_unix: Option<PathBuf>,
    /// Where to listen for clients of the native protocol (TCP): the first core on this port, the next one on the next
    /// port; port 0 for any free one for each.
    pub native: Option<SocketAddr>,
    /// Connections of the native protocol at the same time, on all cores together.
    pub native_connections_max: usize,
    /// TLS of NBD and the native protocol.
    pub tls: Option<ServerTls>,
    /// What fails together with this node, such as the name of its rack: told to clients of the native protocol, which
    /// place copies by it. At most 255 bytes.
    pub failure_domain: String,
    /// Where to listen for NFS clients (TCP), with MOUNT on the same port; port 0 for any free one. The core
    /// that has the filesystems listens.
    pub nfs: Option<SocketAddr>,
    /// Whether a portmapper is to say where NFS is: one of the node's on port 111 of the same address where that
    /// is free, or else the machine's.
    pub portmapper: bool,
    /// What is not exported to this machine only.
    pub exports: Vec<ExportOptions>,
    /// Whether processors are kept from sleeping while clients come back at once.
    pub keep_awake: KeepAwake,
    /// Bytes of maps to keep in memory, on all cores and devices together; `None` for
    /// [`MAP_CACHE_DEFAULT_BYTES`].
    pub map_cache_bytes: Option<u64>,
    /// Bytes of blocks to keep in memory, on all cores together; 0 for none, `None` for
    /// [`BLOCK_CACHE_DEFAULT_BYTES`].
    pub block_cache_bytes: Option<u64>,
    /// Whether small reads of volumes go through it, as those of filesystems do.
    pub cache_volumes: bool,
    /// Days in which everything is scrubbed once in the background; 0 for never.
    pub scrub_days: u32,
    /// NBD connections at the same time, on all cores together.
    pub nbd_connections_max: usize,
    /// How long a stop waits for clients to take their answers, and for moves to write down how far they are, in milliseconds.
    pub stop_grace_ms: u64,
    /// For tests: record all I/O on the device, and the answers to clients, to this file.
    pub record: Option<PathBuf>,
    /// Settings of the cores, for measurements; see `docs/HACKING.md`.
    pub tuning: Option<String>,
    /// For tests of moves to other nodes.
    pub move_hooks: MoveHooks,
}
