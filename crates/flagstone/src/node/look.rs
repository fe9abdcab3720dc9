//! What a node counts, at one moment: two of these say what went on between them.
//!
//! They never leave the process. Which volumes were the busiest of an interval only somebody knows who has both of its
//! ends for all of them; the node has, and so it measures the interval itself, and answers with the few that are asked
//! for ([`super::activity`]). Nothing is kept between two requests, so many may watch and none disturbs another.

use flagstone_types::{DvolId, HistogramMark};

use super::metrics::{ErrorCount, IoMetrics};
use super::slo::{Schedule, Slo};

/// Everything, at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Look {
    /// When: nanoseconds since 1970-01-01 UTC.
    pub wall_ns: u64,
    /// The devices of the node, in the order in which they are meant elsewhere.
    pub devices: Vec<DeviceFacts>,
    /// Each core, as it saw itself. Their moments differ a little.
    pub cores: Vec<CoreLook>,
}

/// What doesn't change from one moment to the next.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// How it is divided.
    pub schedule: Schedule,
}

/// One core.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CoreLook {
    /// Its number.
    pub core: u32,
    /// When, by a clock that only grows, in nanoseconds.
    pub at_ns: u64,
    /// Time spent neither looking for work nor asleep, in nanoseconds.
    pub busy_ns: u64,
    /// Time spent on looking for work, in nanoseconds.
    pub spin_ns: u64,
    /// Time for which something was due and it didn't come to it, a millisecond or more at a time, in nanoseconds.
    pub late_ns: u64,
    /// What its NBD server did with volumes.
    pub nbd: ServerLook,
    /// What its server of the native protocol did with volumes.
    pub native: ServerLook,
    /// What it asked of devices: one each, by their index.
    pub devices: Vec<DeviceLook>,
    /// Volumes that were used since the node was started.
    pub volumes: Vec<VolumeLook>,
    /// Members of striped volumes, but for the first of each, which is the volume: perhaps one of another core.
    pub members: Vec<MemberLook>,
    /// Filesystems that NFS clients have used, as if they were volumes called [`filesystem_name`]; a commit is a flush.
    pub filesystems: Vec<VolumeLook>,
}

/// What a server of a core did with volumes: commands that are read, write, flush or deallocate, the only ones whose operations are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerLook {
    /// Commands answered, failed ones included.
    pub commands: u64,
    /// Time from their arrival until their replies were handed to the socket, all together, in nanoseconds.
    pub commands_ns: u64,
    /// Time that their operations took, all together, in nanoseconds.
    pub operations_ns: u64,
}

impl ServerLook {
    /// What was counted between an earlier look and this one.
    pub fn since(&self, earlier: &ServerLook) -> ServerLook {
        ServerLook {
            commands: self.commands.saturating_sub(earlier.commands),
            commands_ns: self.commands_ns.saturating_sub(earlier.commands_ns),
            operations_ns: self.operations_ns.saturating_sub(earlier.operations_ns),
        }
    }
}

/// What a core asked of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceLook {
    /// Index of the device.
    pub device: usize,
    /// Reads.
    pub read: IoMark,
    /// Writes.
    pub write: IoMark,
    /// Flushes.
    pub flush: IoMark,
    /// Discards.
    pub trim: IoMark,
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeLook {
    /// Its id, which stays when it is renamed.
    pub id: DvolId,
    /// Its name.
    pub name: String,
    /// Index of its device.
    pub device: usize,
    /// What it was promised, and may not exceed.
    pub slo: Slo,
    /// Reads.
    pub read: IoMark,
    /// Writes.
    pub write: IoMark,
    /// Flushes.
    pub flush: IoMark,
    /// Deallocations and zeroing.
    pub trim: IoMark,
    /// Of a filesystem: looks at attributes, names and lists.
    pub look: IoMark,
    /// Of a filesystem: changes of names and attributes.
    pub change: IoMark,
    /// How long operations waited for their turn at the device.
    pub waited: HistogramMark,
    /// Of all changes, those that are answered when they are durable.
    pub stable: u64,
    /// Operations under way at this moment.
    pub in_flight: u64,
    /// Time for which there were any, in nanoseconds.
    pub occupied_ns: u64,
    /// Time for which each was under way, all added up, in nanoseconds.
    pub under_way_ns: u64,
    /// For how long its own limit held it back, in nanoseconds, since it was opened.
    pub limited_ns: u64,
    /// Time for which changes waited for room in the ring of its journal, in nanoseconds.
    pub journal_full_ns: u64,
    /// Checkpoints of its journal.
    pub checkpoints: u64,
    /// How many operations wait for their turn at this moment.
    pub waiting: u64,
    /// Device time that it used, in nanoseconds.
    pub used_ns: u64,
    /// For how long it got less than promised though it wanted more, in nanoseconds.
    pub short_ns: u64,
    /// Device time that it is promised, in nanoseconds a second; `None` where nothing is divided.
    pub promised_ns: Option<u64>,
}

/// A member of a striped volume: what was counted of its turns. Its operations are counted for the whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberLook {
    /// Which volume it is a member of.
    pub of: DvolId,
    /// As if it were a volume.
    pub look: VolumeLook,
}

/// Before the names of filesystems among volumes, of which none can be called that.
const FILESYSTEM: &str = "filesystem ";

/// How a filesystem is called among volumes.
pub fn filesystem_name(name: &str) -> String {
    format!("{FILESYSTEM}{name}")
}

/// The name of a filesystem that is called so among volumes.
pub(super) fn name_of_filesystem(among_volumes: &str) -> &str {
    among_volumes
        .strip_prefix(FILESYSTEM)
        .unwrap_or(among_volumes)
}

impl VolumeLook {
    /// A volume of which nothing was counted.
    pub fn new(id: DvolId, name: String, device: usize, slo: Slo) -> VolumeLook {
        VolumeLook {
            id,
            name,
            device,
            slo,
            read: IoMark::default(),
            write: IoMark::default(),
            flush: IoMark::default(),
            trim: IoMark::default(),
            look: IoMark::default(),
            change: IoMark::default(),
            waited: HistogramMark::default(),
            stable: 0,
            in_flight: 0,
            occupied_ns: 0,
            under_way_ns: 0,
            limited_ns: 0,
            journal_full_ns: 0,
            checkpoints: 0,
            waiting: 0,
            used_ns: 0,
            short_ns: 0,
            promised_ns: None,
        }
    }
}

/// Operations of one kind, until a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoMark {
    /// Operations answered, failed ones included.
    pub operations: u64,
    /// Bytes moved by those that succeeded.
    pub bytes: u64,
    /// Failures by kind.
    pub errors: Vec<ErrorCount>,
    /// How long they took, failed ones included.
    pub latency: HistogramMark,
}

impl IoMark {
    /// What was counted between an earlier mark and this one.
    pub fn since(&self, earlier: &IoMark) -> IoMetrics {
        let before = |kind| {
            let same = earlier.errors.iter().find(|error| error.kind == kind);
            same.map_or(0, |error| error.count)
        };
        let new = self.errors.iter().map(|error| ErrorCount {
            kind: error.kind,
            count: error.count.saturating_sub(before(error.kind)),
        });
        IoMetrics {
            operations: self.operations.saturating_sub(earlier.operations),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            errors: new.filter(|error| error.count > 0).collect(),
            latency: self.latency.since(&earlier.latency),
        }
    }
}

impl From<&IoMetrics> for IoMark {
    fn from(counted: &IoMetrics) -> IoMark {
        IoMark {
            operations: counted.operations,
            bytes: counted.bytes,
            errors: counted.errors.clone(),
            latency: counted.latency.mark(),
        }
    }
}
