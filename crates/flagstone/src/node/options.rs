//! What a node is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

/// A device to be opened. It must be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceOptions {
    /// Its name on this node, unique.
    pub name: String,
    /// The file or block device.
    pub path: PathBuf,
    /// The size it must have been formatted with; `None` accepts any.
    pub expected_size_bytes: Option<u64>,
}

/// What a node is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeOptions {
    /// Its devices, at least one.
    pub devices: Vec<DeviceOptions>,
    /// Number of cores; `None` for one per processor this process may run on.
    pub cores: Option<usize>,
    /// Where to listen for NBD clients (TCP); port 0 for any free one.
    pub nbd: Option<SocketAddr>,
    /// Where to listen for NBD clients (Unix socket).
    pub nbd_unix: Option<PathBuf>,
    /// For tests: record all I/O on the device, and the answers to clients, to this file.
    pub record: Option<PathBuf>,
}
