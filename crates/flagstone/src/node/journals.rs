//! Journals of devices, as the API tells of them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A journal of a device: what one core serves of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JournalInfo {
    /// Its number on its device.
    pub journal: u16,
    /// The core that serves it; if it is closed, the one that served it last.
    pub core: u32,
    /// Volumes in it.
    pub volume_count: u64,
    /// Bytes that its volumes, their snapshots and its filesystems have mapped.
    pub mapped_bytes: u64,
    /// Whether filesystems are stored in it: then it stays on its core.
    pub has_filesystems: bool,
    /// Whether new volumes of its core go to it.
    pub takes_new: bool,
    /// Whether it is the journal of one volume that was created with `apart`: others don't go to it.
    pub is_apart: bool,
    /// Why no core could open it when it was handed over: its volumes are served by nobody until the node is restarted.
    pub closed: Option<String>,
    /// Reads that the device was asked for by it since its core has it.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// The journals of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    /// The journals, by number.
    pub items: Vec<JournalInfo>,
}

/// Where a journal is to go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverSpec {
    /// The core that is to serve it.
    pub core: u32,
}

/// A journal that went to another core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HandedOverJournal {
    /// The name of its device.
    pub device: String,
    /// Its number there.
    pub journal: u16,
    /// The core that served it. If that is the one that serves it now, it was there already and nothing was done.
    pub from_core: u32,
    /// The core that serves it now.
    pub core: u32,
    /// Volumes in it.
    pub volume_count: u64,
    /// For how long their clients waited, in microseconds; 0 if it was there already.
    pub held_us: u64,
}
