//! What is asked of a node and what it answers. Also the bodies of the HTTP API.
//!
//! Requests refuse unknown fields, so that a misspelled option is not silently ignored. Answers
//! accept them, so that an older client can talk to a newer node.

use flagstone_types::{Epoch, Lsn};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::moves::{ArrivingVolume, Fork, MoveInfo};
use super::slo::{Schedule, Slo};
use super::snapshot_schedule::ScheduledSnapshots;
use super::tokens::Restrictions;
use crate::size::counted;

/// Rows of a page unless the request says otherwise.
pub const PAGE_ROWS_DEFAULT: usize = 1000;

/// The most rows a page may have: about 5 MB of JSON.
pub const PAGE_ROWS_MAX: usize = 10_000;

/// How much of a volume's size is kept free for it on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reservation {
    /// Nothing: space is taken as it is written.
    #[default]
    None,
    /// The whole size, also after a resize, and room to overwrite what snapshots share.
    Full,
    /// This many bytes.
    Bytes(u64),
}

/// A volume to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// Its name, unique on the node: 1 to 128 letters, digits, '-', '_', '.'.
    #[schema(example = "vm-1")]
    pub name: String,
    /// Its size in bytes: at least 1.
    #[schema(minimum = 1, example = 10737418240u64)]
    pub size_bytes: u64,
    /// Space kept free for it.
    #[serde(default)]
    pub reserve: Reservation,
    /// The device that holds it, by name or id; without it the node chooses.
    #[serde(default)]
    pub device: Option<String>,
    /// The core that owns it; without it the node chooses.
    #[serde(default)]
    pub core: Option<u32>,
    /// Give it a journal of its own, so that it can go to another core without being copied.
    #[serde(default)]
    pub apart: bool,
    /// Over how many dvols it is striped, each on another core as far as there are cores: 2 to 16. Null: it isn't.
    #[serde(default)]
    #[schema(minimum = 2, maximum = 16, example = 4)]
    pub stripes: Option<u32>,
    /// Bytes in a row that are on the same one: a power of two from 65,536 to 16,777,216. Null: 1 MiB. Neither changes later.
    #[serde(default)]
    pub stripe_unit_bytes: Option<u64>,
    /// What it is promised of its device, and what it may not exceed.
    #[serde(default)]
    pub slo: Slo,
    /// Create it although its device can't keep that promise beside the others it has made.
    #[serde(default)]
    pub oversubscribe: bool,
}

/// Bytes in a row that are on the same dvol of a striped volume, unless somebody says otherwise.
pub const STRIPE_UNIT_DEFAULT_BYTES: u64 = 1 << 20;

/// How a volume is striped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StripeInfo {
    /// Bytes in a row that are on the same member.
    #[schema(example = 1048576)]
    pub unit_bytes: u64,
    /// Its members, in order. The first one is the volume's own dvol.
    pub members: Vec<StripeMember>,
    /// True: something of it is missing, or a rollback of it was cut off, and it is served to nobody; the node's log says why.
    #[serde(default)]
    pub closed: bool,
    /// What is to be known if members share a core, which they do where there are fewer cores; left out if none do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl StripeInfo {
    /// How a volume with these members is striped.
    pub fn of(unit_bytes: u64, members: Vec<StripeMember>) -> StripeInfo {
        let mut cores: Vec<u32> = members.iter().map(|member| member.core).collect();
        cores.sort_unstable();
        cores.dedup();
        let (parts, cores) = (members.len(), cores.len());
        let warning = (cores < parts).then(|| {
            let no_faster = match cores {
                1 => "a volume that isn't striped".to_owned(),
                cores => format!("one striped over {cores}"),
            };
            format!(
                "its {parts} parts share {}: those on the same core take turns there, so it is no faster than {no_faster}, and a \
                 large request is cut into more pieces",
                counted(cores as u64, "core")
            )
        });
        StripeInfo {
            unit_bytes,
            members,
            closed: false,
            warning,
        }
    }
}

/// A member of a striped volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StripeMember {
    /// The core that serves it.
    pub core: u32,
    /// The journal of the device that it is in.
    pub journal: u16,
    /// Bytes of it that are mapped, shared ones included.
    pub mapped_bytes: u64,
}

/// Which page of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Only names that begin with this.
    pub prefix: Option<String>,
    /// Only names after this one: the `next` of the page before.
    pub after: Option<String>,
    /// Rows at most, 1 to 10,000.
    #[param(minimum = 1, maximum = 10000, default = 1000)]
    pub limit: usize,
}

impl Default for PageQuery {
    fn default() -> PageQuery {
        PageQuery {
            prefix: None,
            after: None,
            limit: PAGE_ROWS_DEFAULT,
        }
    }
}

/// Which page of the list of snapshots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct SnapshotQuery {
    /// Only snapshots of this volume.
    pub volume: Option<String>,
    /// Only snapshots after this one (`volume@snapshot`): the `next` of the page before.
    pub after: Option<String>,
    /// Rows at most, 1 to 10,000.
    #[param(minimum = 1, maximum = 10000, default = 1000)]
    pub limit: usize,
}

impl Default for SnapshotQuery {
    fn default() -> SnapshotQuery {
        SnapshotQuery {
            volume: None,
            after: None,
            limit: PAGE_ROWS_DEFAULT,
        }
    }
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeInfo {
    /// Its name.
    #[schema(example = "vm-1")]
    pub name: String,
    /// The id of its dvol, 32 hexadecimal digits; stays when the volume is renamed.
    #[schema(example = "5d9c11a4b7d04c1c9d54b2a3f9e2c0aa")]
    pub id: String,
    /// The name of the device that holds it.
    #[schema(example = "device")]
    pub device: String,
    /// The core that owns it.
    pub core: u32,
    /// The journal of the device that it is in: all volumes of one are served by the same core.
    #[serde(default)]
    pub journal: u16,
    /// Over how many dvols it is striped; null if it isn't.
    #[serde(default)]
    #[schema(example = 4)]
    pub stripes: Option<u32>,
    /// How it is striped over several; null if it isn't. Core and journal above are those of the first.
    #[serde(default)]
    pub stripe: Option<StripeInfo>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes of it that are mapped, shared ones included.
    pub mapped_bytes: u64,
    /// Bytes on the device that only this volume's current state uses; null if the node doesn't know.
    pub exclusive_bytes: Option<u64>,
    /// Space kept free for it.
    pub reserve: Reservation,
    /// The reservation in bytes, as it is now.
    pub reserved_bytes: u64,
    /// When it was created: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// What it was cloned from, `volume` or `volume@snapshot`.
    #[schema(example = "vm-0@monday")]
    pub origin: Option<String>,
    /// Number of its snapshots.
    pub snapshot_count: u64,
    /// How often it, not a snapshot of it, is attached by a connection of NBD or open on one of the native protocol.
    pub connection_count: u64,
    /// The LSN of its last change: `epoch.counter`.
    #[serde(with = "lsn_text")]
    #[schema(value_type = String, example = "1.42")]
    pub lsn: Lsn,
    /// The epoch of whoever may write it.
    pub epoch: u32,
    /// What it is promised of its device, and what it may not exceed.
    #[serde(default)]
    pub slo: Slo,
    /// Why its floor can't be guaranteed; left out if it can, or if it has none. That all floors together are more than the device has is said
    /// where the SLO is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_warning: Option<String>,
    /// From where it may be used. `0.0.0.0/32` alone, nobody's address: what it was restricted to can't be read.
    #[serde(default)]
    pub restrictions: Restrictions,
    /// Snapshots that are taken by themselves; null if none are.
    #[serde(default)]
    pub scheduled: Option<ScheduledSnapshots>,
    /// Where it is being moved to, and how far that is; null if it isn't being moved.
    #[serde(default)]
    pub moving: Option<MoveInfo>,
    /// Whether a stream is being received into it: nobody else can use or change it until the stream has ended or is given up.
    #[serde(default)]
    pub receiving: bool,
    /// The other copy of a volume that stayed by somebody's word; null if there was none.
    #[serde(default)]
    pub fork: Option<Fork>,
    /// Where NBD clients find it.
    #[schema(example = "nbd://127.0.0.1:10809/vm-1")]
    pub export_url: String,
}

/// A page of volumes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumePage {
    /// The volumes, sorted by name.
    pub items: Vec<VolumeInfo>,
    /// What to pass as `after` to get the next page; null if this is the last one.
    pub next: Option<String>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotInfo {
    /// The volume it belongs to.
    #[schema(example = "vm-1")]
    pub volume: String,
    /// Its name within the volume.
    #[schema(example = "monday")]
    pub name: String,
    /// The number of the layer it keeps on its device.
    pub layer: u32,
    /// The volume's size when it was taken, in bytes.
    pub size_bytes: u64,
    /// When it was taken: nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// The volume's LSN when it was taken: `epoch.counter`.
    #[serde(with = "lsn_text")]
    #[schema(value_type = String, example = "1.42")]
    pub lsn: Lsn,
    /// Bytes of data it can read.
    pub referenced_bytes: u64,
    /// Bytes on the device that only it uses: what deleting it frees.
    pub unique_bytes: u64,
    /// Number of volumes cloned from it.
    pub clones: u64,
}

/// A page of snapshots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotPage {
    /// The snapshots, sorted by volume, then name.
    pub items: Vec<SnapshotInfo>,
    /// What to pass as `after` to get the next page; null if this is the last one.
    pub next: Option<String>,
}

/// The devices of a node. There are few, so there is one page.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DevicePage {
    /// The devices, sorted by name.
    pub items: Vec<DeviceInfo>,
}

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceInfo {
    /// Its name on this node.
    #[schema(example = "device")]
    pub name: String,
    /// Its id, 32 hexadecimal digits, drawn when it was formatted.
    #[schema(example = "77f0c3a1b2d94e5f8a6b7c8d9e0f1a2b")]
    pub id: String,
    /// The file or block device.
    #[schema(example = "/var/lib/flagstone/device.img")]
    pub path: String,
    /// The version of its format.
    pub format_version: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes in use by data, metadata and journals.
    pub used_bytes: u64,
    /// Bytes that can still be written by volumes without a reservation.
    pub free_bytes: u64,
    /// Of the used bytes: maps, bitmaps, segment table, superblocks.
    pub metadata_bytes: u64,
    /// Bytes promised to volumes and not yet used, for data and for nodes of their maps, and the node's
    /// own reserve.
    pub reserved_bytes: u64,
    /// Size of its journals together, in bytes.
    pub journal_bytes: u64,
    /// Of these, what a recovery would have to read now.
    pub journal_used_bytes: u64,
    /// Bytes of memory that the maps of its volumes and snapshots take now.
    pub map_memory_bytes: u64,
    /// Number of its segments.
    pub segments_total: u64,
    /// Number of segments no core holds.
    pub segments_free: u64,
    /// Number of volumes on it.
    pub volume_count: u64,
    /// Number of snapshots on it.
    pub snapshot_count: u64,
    /// Why the device takes no more changes; null while it does.
    pub fenced: Option<String>,
    /// Its journals that no core could open when they were handed over, by number: their volumes are served by nobody until the node is
    /// restarted, and are not counted here.
    #[serde(default)]
    pub closed_journals: Vec<u16>,
    /// How it is divided among its volumes.
    #[serde(default)]
    pub schedule: Schedule,
    /// What all floors of its volumes claim of what it can promise: 0.8 is four fifths. Above 1 they can't all be kept
    /// at the same time. Null where there is no ceiling.
    #[serde(default)]
    pub promised: Option<f64>,
    /// The last scrub.
    pub scrub: ScrubStatus,
}

/// What a scrub is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// None was started since the node was.
    #[default]
    Idle,
    /// It is reading.
    Running,
    /// Everything was read.
    Finished,
    /// It could not go on (the device failed or the node is stopping).
    Stopped,
}

/// How far a scrub is and what it found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ScrubStatus {
    /// What it is doing.
    pub state: ScrubState,
    /// When it was started: nanoseconds since 1970-01-01 UTC; 0 if never.
    pub started_ns: u64,
    /// When it ended: nanoseconds since 1970-01-01 UTC; 0 if it has not.
    pub finished_ns: u64,
    /// Bytes checked so far.
    pub checked_bytes: u64,
    /// Bytes to be checked, as far as known.
    pub total_bytes: u64,
    /// Blocks whose bytes did not match their checksum or could not be read.
    pub bad_blocks: u64,
    /// What was wrong, in words; the first few.
    pub findings: Vec<String>,
}

/// What a node is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Recovering or not listening yet.
    Starting,
    /// Everything answers.
    Ready,
    /// On its way out.
    Stopping,
}

/// A core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CoreInfo {
    /// Its number, from 0.
    pub core: u32,
    /// The processor it is pinned to; null if it is not pinned.
    pub cpu: Option<u32>,
    /// Number of volumes it owns.
    pub volume_count: u64,
    /// Number of gateway connections it serves.
    pub connection_count: u64,
}

/// The node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// The version of the running binary.
    #[schema(example = "0.1.0")]
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What it is doing.
    pub state: NodeState,
    /// When it was started: nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// Seconds it has been running.
    pub uptime_s: u64,
    /// Its cores.
    pub cores: Vec<CoreInfo>,
    /// Where the HTTP API listens. Filled in by the API itself.
    #[schema(example = "127.0.0.1:7878")]
    pub api_address: String,
    /// Where NBD clients connect (TCP).
    #[schema(example = json!(["127.0.0.1:10809"]))]
    pub nbd_addresses: Vec<String>,
    /// Where NBD clients connect (Unix socket).
    pub nbd_unix: Option<String>,
    /// Where clients of the native protocol connect, for each core. Empty if the node doesn't serve it.
    #[serde(default)]
    #[schema(example = json!(["127.0.0.1:4430"]))]
    pub native_addresses: Vec<String>,
    /// Where NFS clients connect, and ask MOUNT. Empty if the node serves no NFS.
    #[serde(default)]
    #[schema(example = json!(["127.0.0.1:12049"]))]
    pub nfs_addresses: Vec<String>,
    /// Whether a portmapper says where that is, so that clients needn't be told the port: the node's own, or the
    /// machine's.
    #[serde(default)]
    pub has_portmapper: bool,
    /// Volumes that are on their way here from other nodes.
    #[serde(default)]
    pub arriving: Vec<ArrivingVolume>,
    /// What a person should know: kernel features that are missing, cores that have nothing to do.
    pub notices: Vec<String>,
}

/// An LSN as `epoch.counter`: as a JSON number it would lose digits in readers that keep numbers
/// as doubles.
mod lsn_text {
    use super::{Epoch, Lsn};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom("an LSN is written epoch.counter"))
    }

    fn parse(text: &str) -> Option<Lsn> {
        let (epoch, counter) = text.split_once('.')?;
        let (epoch, counter) = (epoch.parse().ok()?, counter.parse().ok()?);
        let fits = epoch <= Epoch::MAX.0 && counter <= Lsn::MAX.counter();
        fits.then(|| Lsn::new(Epoch(epoch), counter))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn text_and_back() {
            for lsn in [Lsn::ZERO, Lsn::new(Epoch(3), 77), Lsn::MAX] {
                assert_eq!(parse(&lsn.to_string()), Some(lsn));
            }
            let too_big = ["1048576.0", "0.17592186044416", "1", ".", "a.b", "-1.0"];
            assert!(too_big.iter().all(|text| parse(text).is_none()));
        }
    }
}
