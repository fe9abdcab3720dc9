//! Moves of volumes, as the API tells of them.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{NodeErrorKind, Slo};

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
    /// The place that another node has promised; then neither device nor core is named here.
    pub arrival: Option<Arrival>,
}

/// A volume that is to come from another node, as it is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrivalSpec {
    /// Its name.
    pub volume: String,
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// The device it is to be on, by name or id; without it the node chooses.
    #[serde(default)]
    pub device: Option<String>,
    /// The core that is to have it.
    #[serde(default)]
    pub core: Option<u32>,
    /// What it is promised, and what it may not exceed.
    #[serde(default)]
    pub slo: Slo,
    /// Take it although the device can't keep what the volume is promised beside its other promises.
    #[serde(default)]
    pub oversubscribe: bool,
}

/// A promise to take one volume from another node. Whoever has it can bring that volume, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Its number on the core that is to have the volume.
    pub number: u32,
    /// What proves that one may: 64 hexadecimal digits.
    pub key: ArrivalKey,
    /// The id of the device that the volume is to be on.
    pub device: String,
    /// The name of that device there.
    pub device_name: String,
    /// The core that is to have it.
    pub core: u32,
    /// Where that core listens for the native protocol.
    pub address: String,
    /// After how many seconds it ends if nobody begins.
    pub ends_in_s: u64,
}

/// A volume that is on its way here from another node, or was promised a place. Until it has come it is in no list of volumes, and no other one can have its
/// name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ArrivingVolume {
    /// Its name.
    pub volume: String,
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// Name of the device that it is to be on.
    pub device: String,
    /// The core that is to have it.
    pub core: u32,
    /// Whether its node has begun to bring it; otherwise it was only promised a place.
    pub has_begun: bool,
    /// The address by which its node was heard of last; null before that, also behind a start of this one.
    #[serde(default)]
    pub from: Option<String>,
    /// For how many seconds nothing was heard of it.
    pub silent_s: u64,
    /// In how many seconds it is given up if nothing more is heard of it: what has come is deleted, and its name is free.
    pub ends_in_s: u64,
}

/// The key of an arrival, which `Debug` doesn't show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct ArrivalKey(pub String);

impl fmt::Debug for ArrivalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrivalKey(..)")
    }
}

/// What a move is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// It is copying.
    Running,
    /// It is cut off, and the volume is used where it is; `waits` says what for. If that is the other node, it goes on when that answers, and until then only
    /// the content of the volume may change. If it is a device that is not part of the node, with that device the next start goes on, and until
    /// then all may be done with the volume but to move it elsewhere, or to receive a stream into it.
    Waiting,
    /// In its last moment the node that it goes to has stopped answering: until that says whose the volume is, nobody is served. `waits` says since when.
    Held,
    /// The volume is at its new place.
    Done,
    /// It was ended by request: the volume is where it was.
    Cancelled,
    /// It came to nothing: the volume is where it was.
    Failed,
    /// Whether the volume has gone to the other node isn't known: it is served by nobody until this one is restarted, and has asked.
    Unknown,
}

impl MoveState {
    /// It goes on, now or later.
    #[must_use]
    pub fn is_not_over(self) -> bool {
        matches!(
            self,
            MoveState::Running | MoveState::Waiting | MoveState::Held
        )
    }
}

/// What a move waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveWaitsFor {
    /// For the device that it goes to, which is not part of the node.
    Device,
    /// For the node that it goes to, which doesn't answer.
    Node,
}

/// That a move waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MoveWait {
    /// What for; which one that is, `to` says.
    pub what: MoveWaitsFor,
    /// Since when: nanoseconds since 1970-01-01 UTC. Of a move that waits for a device that is the last start.
    pub since_ns: u64,
    /// How often it was tried in vain, that it was cut off included; 0 for a device, since only a start looks for that.
    pub attempts: u32,
}

/// Where a volume is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MovePlace {
    /// Name of the device.
    pub device: String,
    /// Number of the core.
    pub core: u32,
    /// The other node, by the address at which that core listens for the native protocol; null for this one.
    #[serde(default)]
    pub node: Option<String>,
}

/// What a move is doing while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum MovePhase {
    /// It copies a snapshot.
    Snapshot {
        /// Which one, counted from 1, the oldest.
        number: u32,
        /// How many there are.
        of: u32,
    },
    /// It copies the volume as it is.
    Volume,
    /// It copies what was written meanwhile.
    CatchingUp {
        /// How many times it has, this one included. A move that went on behind a start begins to count anew.
        round: u32,
    },
    /// The volume's changes wait for the last round, and for the volume to be at its new place.
    Switching,
}

impl fmt::Display for MovePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MovePhase::Snapshot { number, of } => write!(f, "copying snapshot {number} of {of}"),
            MovePhase::Volume => f.write_str("copying the volume as it is"),
            MovePhase::CatchingUp { round } => write!(f, "catching up, round {round}"),
            MovePhase::Switching => f.write_str("switching"),
        }
    }
}

/// A move of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MoveInfo {
    /// The volume, by its name when the move began.
    pub volume: String,
    /// What it is doing.
    pub state: MoveState,
    /// What it waits for, if it does; otherwise null.
    #[serde(default)]
    pub waits: Option<MoveWait>,
    /// Where the volume was. Of one that was on its way here from another node only that node's address, empty if it wasn't heard of. Empty, too, of a volume
    /// that went to another node if nothing else of that is remembered, above all behind a start: then what was copied is 0, and of where it is only the node is known.
    pub from: MovePlace,
    /// Where it is to be. Of a device that is not part of the node the id, and core 0: which one that will be isn't known.
    pub to: MovePlace,
    /// What it is doing of that; null before it has begun, while it waits, and once it is over.
    #[serde(default)]
    pub phase: Option<MovePhase>,
    /// When it was asked for, or the start that it went on or waits behind: nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// Bytes copied so far, those that were written meanwhile included.
    pub copied_bytes: u64,
    /// Bytes that it has to copy, about: what the volume had when it began. Snapshots and what is written meanwhile add to
    /// it.
    pub expected_bytes: u64,
    /// How many bytes a second may be written of the volume, since as much was written as was copied, and the move would have no end; null: as many as its
    /// SLO allows.
    #[serde(default)]
    pub slowed_to_bytes: Option<u64>,
    /// For how long changes of the volume waited at its end, in microseconds; 0 before.
    pub held_us: u64,
    /// Bytes a second that it copies at most; null: as many as others leave.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Seconds until it has copied what it has to copy, about, as fast as it did in the last ones; null if that isn't known: it has just begun, or
    /// copies what was written meanwhile.
    #[serde(default)]
    pub left_s: Option<u64>,
    /// Why it failed, or why it doesn't come to its end: it is held, and the other node can't be asked whether it has it; or it waits for that node, or for a device.
    pub error: Option<String>,
    /// Of what kind that is, if it failed.
    #[serde(default)]
    pub error_kind: Option<NodeErrorKind>,
}

impl MoveInfo {
    /// One that begins at this time, in nanoseconds since 1970, and of which nothing is known yet.
    #[must_use]
    pub fn that_begins(volume: &str, from: MovePlace, to: MovePlace, started_ns: u64) -> MoveInfo {
        MoveInfo {
            volume: volume.to_owned(),
            state: MoveState::Running,
            waits: None,
            from,
            to,
            phase: None,
            started_ns,
            copied_bytes: 0,
            expected_bytes: 0,
            slowed_to_bytes: None,
            held_us: 0,
            limit_bytes: None,
            left_s: None,
            error: None,
            error_kind: None,
        }
    }
}

/// What somebody says of a move, in the place of a node that can't be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveWord {
    /// A volume that is held goes on here, whatever the node has that it was moving to.
    Stay,
    /// A volume that has come here is this node's to delete or to move on, whether the node that it came from knows or not.
    Settled,
}

/// What is to end by somebody's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceMoveSpec {
    /// What is so.
    pub word: MoveWord,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForcedOutcome {
    /// It goes on here by that word. What the other node has is a fork, which is to be deleted there.
    Forced,
    /// The other node answers now: the volume has not come there, and never will. It goes on here, and nothing was forced.
    Stayed,
    /// The other node answers now: the volume is there. Nothing was forced.
    Went,
    /// It may be deleted or moved on.
    Settled,
}

impl ForcedOutcome {
    /// Its name, as answers have it.
    pub fn name(self) -> &'static str {
        match self {
            ForcedOutcome::Forced => "forced",
            ForcedOutcome::Stayed => "stayed",
            ForcedOutcome::Went => "went",
            ForcedOutcome::Settled => "settled",
        }
    }
}

/// What somebody's word has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ForcedMove {
    /// The volume.
    pub volume: String,
    /// What came of it.
    pub outcome: ForcedOutcome,
    /// The other node, by the address at which it listens for the native protocol, if it is known.
    #[serde(default)]
    pub node: Option<String>,
    /// The epoch in which it goes on, if it was forced: who had it open has to open it again.
    #[serde(default)]
    pub epoch: Option<u32>,
}

/// What is known of the other copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForkState {
    /// The other node has not said yet whether it has one.
    Unknown,
    /// It has: delete it there.
    There,
    /// This is the copy: the volume goes on at the node that it came from. Delete it here.
    Here,
}

/// The other copy of a volume that stayed by somebody's word, while it may have gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Fork {
    /// What is known of it.
    pub state: ForkState,
    /// The node that the volume was moving to, by the address at which it listens for the native protocol; null at that node.
    #[serde(default)]
    pub node: Option<String>,
}
