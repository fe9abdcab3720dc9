//! What a scrape collects: plain counters and histograms, summed over cores by the node.
//!
//! `crate::metrics` renders them. A value that has no field of its own goes into `more`, which
//! needs no change to the renderer.

use flagstone_types::LatencyHistogram;

/// Everything a scrape shows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MetricsSnapshot {
    /// Volumes with activity since the node was started. Others may be left out; those that have
    /// none are not shown.
    pub volumes: Vec<VolumeMetrics>,
    /// All devices.
    pub devices: Vec<DeviceMetrics>,
    /// All cores.
    pub cores: Vec<CoreMetrics>,
    /// Filesystems that are open.
    pub filesystems: Vec<FilesystemMetrics>,
    /// Calls of NFS, by procedure. Those that were never called may be left out.
    pub nfs: Vec<NfsCallMetrics>,
    /// Values of the node as a whole; shown as `flagstone_<name>`.
    pub more: Vec<NamedValue>,
}

/// One kind of operation: how many, how much, how long, how badly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoMetrics {
    /// Operations answered, failed ones included.
    pub operations: u64,
    /// Bytes moved, deallocated or zeroed by those that succeeded.
    pub bytes: u64,
    /// Failures by kind.
    pub errors: Vec<ErrorCount>,
    /// From accepting the operation to answering it, failed ones included.
    pub latency: LatencyHistogram,
}

impl IoMetrics {
    /// True if nothing has happened.
    pub fn is_idle(&self) -> bool {
        self.operations == 0 && self.latency.is_empty() && self.errors.iter().all(|e| e.count == 0)
    }
}

/// How often operations failed in one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorCount {
    /// A word for the kind: `no_space`, `corrupt`, `device`, ...
    pub kind: &'static str,
    /// How often.
    pub count: u64,
}

/// A volume's operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeMetrics {
    /// Its name.
    pub volume: String,
    /// Reads.
    pub read: IoMetrics,
    /// Writes.
    pub write: IoMetrics,
    /// Flushes.
    pub flush: IoMetrics,
    /// Deallocations and zeroing.
    pub trim: IoMetrics,
    /// Its turns at the device, where that is divided or the volume limited.
    pub turns: TurnMetrics,
}

impl VolumeMetrics {
    /// True if it was asked for nothing.
    pub(crate) fn is_idle(&self) -> bool {
        [&self.read, &self.write, &self.flush, &self.trim]
            .iter()
            .all(|io| io.is_idle())
    }
}

/// Turns of a volume or filesystem at its device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TurnMetrics {
    /// How long operations waited for their turn.
    pub waited: LatencyHistogram,
    /// Device time that it used, in nanoseconds.
    pub used_ns: u64,
    /// For how long it got less than promised though it wanted more, in nanoseconds.
    pub short_ns: u64,
    /// Device time that it is promised, in nanoseconds a second; 0 where nothing is divided.
    pub promised_ns: u64,
}

impl TurnMetrics {
    /// Adds those of another member of the same volume.
    pub(crate) fn add(&mut self, other: &TurnMetrics) {
        self.waited.merge(&other.waited);
        self.used_ns += other.used_ns;
        self.short_ns += other.short_ns;
        self.promised_ns += other.promised_ns;
    }
}

/// A device's I/O, as it was issued to the file or block device.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeviceMetrics {
    /// Its name.
    pub device: String,
    /// Reads.
    pub read: IoMetrics,
    /// Writes.
    pub write: IoMetrics,
    /// Flushes.
    pub flush: IoMetrics,
    /// Discards.
    pub trim: IoMetrics,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Of the used bytes: metadata.
    pub metadata_bytes: u64,
    /// Bytes promised and not used.
    pub reserved_bytes: u64,
    /// What a recovery would have to read now, in bytes.
    pub journal_used_bytes: u64,
    /// Memory that maps take now, in bytes.
    pub map_memory_bytes: u64,
    /// Blocks of data in the cache now, in bytes.
    pub cache_bytes: u64,
    /// Blocks that did not match their checksum.
    pub checksum_errors: u64,
    /// True if the device takes no more changes.
    pub fenced: bool,
    /// More of it; shown as `flagstone_device_<name>{device=..}`.
    pub more: Vec<NamedValue>,
}

/// What a core did with its time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CoreMetrics {
    /// Its number.
    pub core: u32,
    /// Times it looked for work and found none.
    pub spins: u64,
    /// Times it slept until the kernel woke it.
    pub sleeps: u64,
    /// System calls that submitted to or waited for its ring.
    pub enters: u64,
    /// Nanoseconds spent neither looking for work nor asleep.
    pub busy_ns: u64,
    /// More of it; shown as `flagstone_core_<name>{core=..}`.
    pub more: Vec<NamedValue>,
}

/// What a filesystem holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FilesystemMetrics {
    /// Its name.
    pub filesystem: String,
    /// Files and directories.
    pub files: u64,
    /// Bytes that they take, with what only snapshots need.
    pub used_bytes: u64,
    /// Bytes that they may take; zero for as many as there are.
    pub quota_bytes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Its turns at the device, where that is divided or the filesystem limited.
    pub turns: TurnMetrics,
    /// What NFS clients did with it; `None` if none has used it.
    pub io: Option<Box<FilesystemIo>>,
}

/// What NFS clients did with a filesystem since somebody first used it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FilesystemIo {
    /// Reads of files.
    pub read: IoMetrics,
    /// Writes to files.
    pub write: IoMetrics,
    /// Commits of what was written.
    pub commit: IoMetrics,
    /// Looks at attributes, names and lists.
    pub look: IoMetrics,
    /// Changes of names and attributes.
    pub change: IoMetrics,
}

/// Calls of one procedure of NFS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NfsCallMetrics {
    /// Its name in small letters: `getattr`.
    pub procedure: String,
    /// Calls answered without an error.
    pub answered: u64,
    /// Calls answered with an error: its name in small letters, and how often.
    pub failed: Vec<(String, u64)>,
    /// From the arrival of a call to its answer.
    pub latency: LatencyHistogram,
}

/// Whether a value only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A value with its name and meaning.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NamedValue {
    /// Letters, digits and `_`, with its unit last (`_bytes`, `_seconds`). Counters are shown with
    /// `_total` behind it.
    pub name: &'static str,
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// The value.
    pub value: f64,
}
