//! What the control side says when something can't be done.

use flagstone_device::engine::{DvolError, DvolInfo, SIZE_MAX_BYTES, SpaceInfo};

use super::core::CoreNode;
use super::{RealNode, Target};
use crate::node::{NodeError, NodeErrorKind};
use crate::size::{counted, rounded};

/// Said of a device without room until it is known how much there is.
const NO_ROOM: &str = "the device is full";

/// What a device had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// So many bytes more, to be set aside.
    Anew(u64),
    /// All that is reserved for a volume once more: what it has will be a snapshot's.
    Again(u64),
}

impl Wanted {
    /// A reservation of `bytes` for a volume: what it has mapped itself is there.
    pub(super) fn more_than(dvol: &DvolInfo, bytes: u64) -> Wanted {
        let own = dvol.mapped_bytes.saturating_sub(dvol.inherited_bytes);
        Wanted::Anew(bytes.saturating_sub(own))
    }

    /// What was expected and found, and what to do.
    fn words(self, space: &SpaceInfo) -> (String, String) {
        let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
        let free = space.open_bytes.saturating_sub(space.kept_bytes);
        let left = format!(
            "{} are free, and {} are set aside for volumes and for what the device itself needs",
            bytes(free),
            bytes(space.kept_bytes)
        );
        // The map of what is reserved is promised as well, with less than 3 % of it.
        let most = free - free / 32;
        match self {
            Wanted::Anew(0) | Wanted::Again(0) => (
                format!("the device is full: {left}"),
                "delete volumes or snapshots, or reserve less for volumes".to_owned(),
            ),
            Wanted::Anew(asked) => (
                format!("{} were asked for; {left}", bytes(asked)),
                format!(
                    "ask for {most} bytes or less, delete volumes or snapshots, or reserve less for \
                     other volumes"
                ),
            ),
            Wanted::Again(asked) => (
                format!(
                    "{} would be needed, what is reserved for it once more, since what it has will \
                     be the snapshot's; {left}",
                    bytes(asked)
                ),
                "reserve less (`flagstone volume reserve`), or delete volumes or snapshots"
                    .to_owned(),
            ),
        }
    }
}

impl RealNode {
    /// The same error; if the device has no room, with how much was asked for and how much there is.
    pub(super) async fn with_space(
        &self,
        error: NodeError,
        core: usize,
        find: impl FnOnce(&CoreNode) -> Option<(SpaceInfo, Wanted)> + Send + 'static,
    ) -> NodeError {
        if error.kind != NodeErrorKind::NoSpace || error.found != NO_ROOM {
            return error;
        }
        let found = self.on_core(core, &error.doing, move |core| async move { find(&core) });
        let Ok(Some((space, wanted))) = found.await else {
            return error;
        };
        let (found, next) = wanted.words(&space);
        NodeError::new(error.kind, error.doing, found).next(next)
    }

    /// The same for a volume.
    pub(super) async fn with_space_of(
        &self,
        error: NodeError,
        target: &Target,
        wanted: impl FnOnce(&DvolInfo) -> Wanted + Send + 'static,
    ) -> NodeError {
        let (place, name) = (target.place, target.name.clone());
        let find = move |core: &CoreNode| {
            let engine = core.engine(place.engine)?;
            Some((engine.space(), wanted(&engine.dvol_with(place.id, &name)?)))
        };
        self.with_space(error, place.core, find).await
    }
}

/// Refuses what no client could use to its end.
pub(super) fn check_size(size_bytes: u64, doing: &str) -> Result<(), NodeError> {
    if size_bytes <= SIZE_MAX_BYTES {
        return Ok(());
    }
    let found = format!(
        "{size_bytes} bytes were asked for; a volume has at most {SIZE_MAX_BYTES} (2^63 - 4096)"
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next("ask for less"))
}

/// Refuses to keep more free for a volume than it can ever hold: one of the two sizes is not what was
/// meant.
pub(super) fn check_reservation(
    reserved_bytes: u64,
    size_bytes: u64,
    doing: &str,
) -> Result<(), NodeError> {
    if reserved_bytes <= size_bytes {
        return Ok(());
    }
    let words = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    let found = format!(
        "{} were to be kept free for it, and it has a size of {}",
        words(reserved_bytes),
        words(size_bytes)
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("reserve its size at most (`full` stands for that), or make it larger first"))
}

/// A core that can't own volumes of a device.
pub(super) fn no_such_core(asked: u32, cores: usize, journals: usize, doing: &str) -> NodeError {
    let last = cores.saturating_sub(1);
    let which = match last {
        0 => "only core 0".to_owned(),
        _ => format!("cores 0 to {last}"),
    };
    let why = match journals == cores {
        true => format!("the device has {}", counted(journals as u64, "journal")),
        false => format!("the node has {}", counted(cores as u64, "core")),
    };
    let found = format!("there is no core {asked} for it: {which} can own it, since {why}");
    let next = match journals > cores {
        true => "name one of them, leave --core out, or start the node with more --cores",
        false => "name one of them, or leave --core out",
    };
    NodeError::new(NodeErrorKind::NotFound, doing, found).next(next)
}

pub(super) fn no_such_volume(name: &str, doing: &str) -> NodeError {
    NodeError::new(
        NodeErrorKind::NotFound,
        doing,
        format!("there is no volume '{name}'"),
    )
    .next("see `flagstone volume list`")
}

pub(super) fn no_such_snapshot(name: &str, doing: &str) -> NodeError {
    let found = format!("there is no snapshot '{name}'");
    NodeError::new(NodeErrorKind::NotFound, doing, found).next("see `flagstone snapshot list`")
}

pub(super) fn no_such_device(name: &str, doing: &str) -> NodeError {
    NodeError::new(
        NodeErrorKind::NotFound,
        doing,
        format!("there is no device '{name}'"),
    )
    .next("see `flagstone device list`")
}

pub(super) fn taken(name: &str, doing: &str) -> NodeError {
    let found = format!("there already is a volume '{name}'");
    NodeError::new(NodeErrorKind::AlreadyExists, doing, found).next("choose another name")
}

/// What the control side says to an engine's error.
pub(super) fn node_error(error: DvolError, doing: &str) -> NodeError {
    let (kind, next) = match error {
        DvolError::NotFound => (NodeErrorKind::NotFound, "see `flagstone volume list`"),
        DvolError::AlreadyExists => (NodeErrorKind::AlreadyExists, "choose another name"),
        DvolError::NoSpace => (
            NodeErrorKind::NoSpace,
            "delete volumes or snapshots, or ask for less",
        ),
        DvolError::TooMany => (NodeErrorKind::NoSpace, "delete volumes or snapshots first"),
        DvolError::OutOfRange => (NodeErrorKind::InvalidArgument, ""),
        DvolError::Invalid => (NodeErrorKind::InvalidArgument, "do it for fewer at a time"),
        DvolError::ReadOnly => (NodeErrorKind::ReadOnly, ""),
        DvolError::Busy => (NodeErrorKind::Busy, "try again"),
        DvolError::Fenced => (
            NodeErrorKind::Fenced,
            "see the log for the failed write, then restart the node",
        ),
        DvolError::Stopping => (NodeErrorKind::Unavailable, ""),
        DvolError::Corrupt => (
            NodeErrorKind::Corrupt,
            "run `flagstone verify` on the device",
        ),
        DvolError::Device => (
            NodeErrorKind::Internal,
            "see the log for the device's error",
        ),
        DvolError::ConditionFailed(_)
        | DvolError::NotEqual
        | DvolError::StaleEpoch
        | DvolError::HistoryForgotten => (NodeErrorKind::Internal, ""),
    };
    NodeError::new(kind, doing, words(error)).next(next)
}

/// What is wrong, in the words of whoever gives commands.
fn words(error: DvolError) -> String {
    let words = match error {
        DvolError::OutOfRange => "the range leaves the volume",
        DvolError::NotFound => "it is not there any more; it was deleted or renamed meanwhile",
        DvolError::NoSpace => NO_ROOM,
        DvolError::TooMany => "the device's journal can't hold one more volume or snapshot",
        DvolError::Invalid => "it is too much for one step, or can't be done to what is named",
        _ => return error.to_string(),
    };
    words.to_owned()
}
