//! Moves of volumes, as the API tells of them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a volume is to be moved. What isn't named stays, if it can.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MoveSpec {
    /// The device, by name or id.
    pub device: Option<String>,
    /// The core.
    pub core: Option<u32>,
    /// Bytes a second to be copied at most; without it as many as others leave.
    pub limit_bytes: Option<u64>,
    /// Move it although the device can't keep what the volume is promised beside its other promises.
    pub oversubscribe: bool,
}

/// What a move is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// It is copying.
    Running,
    /// The volume is at its new place.
    Done,
    /// It was ended by request: the volume is where it was.
    Cancelled,
    /// It came to nothing: the volume is where it was.
    Failed,
}

/// Where a volume is within a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MovePlace {
    /// Name of the device.
    pub device: String,
    /// Number of the core.
    pub core: u32,
}

/// A move of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MoveInfo {
    /// The volume, by its name when the move began.
    pub volume: String,
    /// What it is doing.
    pub state: MoveState,
    /// Where the volume was.
    pub from: MovePlace,
    /// Where it is to be.
    pub to: MovePlace,
    /// When it was asked for: nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// Bytes copied so far, those that were written meanwhile included.
    pub copied_bytes: u64,
    /// Bytes that it has to copy, about: what the volume had when it began. Snapshots and what is written meanwhile add to
    /// it.
    pub expected_bytes: u64,
    /// For how long changes of the volume waited at its end, in microseconds; 0 before.
    pub held_us: u64,
    /// Why it failed.
    pub error: Option<String>,
}
