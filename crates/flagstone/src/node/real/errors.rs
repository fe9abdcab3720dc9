//! What the control side says when something can't be done.

use std::path::Path;

use flagstone_device::engine::{DvolError, DvolInfo, SIZE_MAX_BYTES, SpaceInfo};
use flagstone_runtime::{HostRoom, host_room};

use super::core::CoreNode;
use super::stripes::Shortage;
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

    /// What was expected and found on a device, and what to do.
    fn words(self, space: &SpaceInfo, name: &str, path: &Path) -> (String, String) {
        let free = space.open_bytes.saturating_sub(space.kept_bytes);
        let (Wanted::Anew(asked) | Wanted::Again(asked)) = self;
        // More than the device has is the device's to refuse.
        if space.host_full && free > 0 && asked <= free {
            return host_words(name, path, free, host_room(path).ok().flatten());
        }
        let left = format!(
            "{} are free, and {} are set aside for volumes and for what the device itself needs",
            bytes(free),
            bytes(space.kept_bytes)
        );
        // The map of what is reserved is promised as well, with less than 3 % of it.
        let most = free - free / 32;
        match self {
            Wanted::Anew(0) | Wanted::Again(0) => (
                format!("device '{name}' is full: {left}"),
                "delete volumes or snapshots, or reserve less for volumes".to_owned(),
            ),
            Wanted::Anew(asked) => (
                format!("{} were asked for on device '{name}'; {left}", bytes(asked)),
                format!(
                    "ask for {most} bytes or less, delete volumes or snapshots, or reserve less for \
                     other volumes"
                ),
            ),
            Wanted::Again(asked) => (
                format!(
                    "{} would be needed, what is reserved for it once more, since what it has will \
                     be the snapshot's; on device '{name}' {left}",
                    bytes(asked)
                ),
                "reserve less (`flagstone volume reserve`), or delete volumes or snapshots"
                    .to_owned(),
            ),
        }
    }
}

/// With the exact number behind it.
fn bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", rounded(bytes))
}

/// The device has room, and what holds it has none.
fn host_words(name: &str, path: &Path, free: u64, room: Option<HostRoom>) -> (String, String) {
    let shown = path.display();
    let Some(room) = room else {
        return (
            format!(
                "device '{name}' has {} free, but what {shown} is made of is full",
                bytes(free)
            ),
            "give it more room (a thin pool, say), then try again".to_owned(),
        );
    };
    (
        format!(
            "device '{name}' has {} free, but the filesystem that holds {shown} is full: {} are free \
             there, and {} of the file are not set aside yet",
            bytes(free),
            bytes(room.free_bytes),
            bytes(room.missing_bytes)
        ),
        "make room on that filesystem, then try again; `fallocate -l` on the file sets all of it aside"
            .to_owned(),
    )
}

impl RealNode {
    /// The same error; if the device has no room, with how much was asked for and how much there is.
    /// `find` says which device it is.
    pub(super) async fn with_space(
        &self,
        error: NodeError,
        core: usize,
        find: impl FnOnce(&CoreNode) -> Option<(usize, SpaceInfo, Wanted)> + Send + 'static,
    ) -> NodeError {
        if error.kind != NodeErrorKind::NoSpace || error.found != NO_ROOM {
            return error;
        }
        let found = self.on_core(core, &error.doing, move |core| async move { find(&core) });
        let Ok(Some((device, space, wanted))) = found.await else {
            return error;
        };
        let (found, next) = {
            let device = &self.devices[device];
            wanted.words(&space, &device.name, &device.path)
        };
        NodeError::new(error.kind, error.doing, found).next(next)
    }

    /// The same for a volume. Of a striped one no number is told: what its first part has says nothing of the others.
    pub(super) async fn with_space_of(
        &self,
        error: NodeError,
        target: &Target,
        wanted: impl FnOnce(&DvolInfo) -> Wanted + Send + 'static,
    ) -> NodeError {
        let (place, name) = (target.place, target.name.clone());
        if self.names.stripe_of(place.id).is_some() {
            return error;
        }
        let find = move |core: &CoreNode| {
            let owned = core.engines.get(place.engine)?;
            let wanted = wanted(&owned.engine.dvol_with(place.id, &name)?);
            Some((owned.device, owned.engine.space(), wanted))
        };
        self.with_space(error, place.core, find).await
    }
}

/// There is no room for what was to be reserved for a striped volume, and nothing of it was.
pub(super) fn no_room_for_all(
    shortage: &Shortage,
    (name, path): (&str, &Path),
    doing: String,
) -> NodeError {
    let Shortage {
        asked_bytes,
        needed_bytes,
        free_bytes,
        most_bytes,
        host_full,
    } = *shortage;
    let is_there = needed_bytes <= free_bytes;
    if host_full && is_there {
        let (found, next) = host_words(name, path, free_bytes, host_room(path).ok().flatten());
        return NodeError::new(NodeErrorKind::NoSpace, doing, found).next(next);
    }
    let found = format!(
        "{} were asked for in all its parts on device '{name}', which takes {} more than is set aside for it, maps included; {} can be had for that, in the \
         journals of its parts and in segments that are free",
        bytes(asked_bytes),
        bytes(needed_bytes),
        bytes(free_bytes),
    );
    let next = match (is_there, most_bytes) {
        // Somebody else has had it, and given it back.
        (true, _) => "try again".to_owned(),
        (false, 0) => "delete volumes or snapshots, or reserve less for other volumes".to_owned(),
        (false, most) => format!(
            "ask for {most} bytes or less, delete volumes or snapshots, or reserve less for other volumes"
        ),
    };
    NodeError::new(NodeErrorKind::NoSpace, doing, found).next(next)
}

/// A volume that has more than a device has room for.
pub(super) fn no_room_there(
    needed_bytes: u64,
    free_bytes: u64,
    device: &str,
    doing: &str,
) -> NodeError {
    let found = format!(
        "it needs {} at its new place, with its snapshots and what is reserved for it, and {} are free on device '{device}'",
        bytes(needed_bytes),
        bytes(free_bytes)
    );
    NodeError::new(NodeErrorKind::NoSpace, doing, found).next(
        "delete volumes or snapshots there, or move it to a device that has room (`flagstone device list`)",
    )
}

/// Refuses what no client could use, or not to its end.
pub(super) fn check_size(size_bytes: u64, doing: &str) -> Result<(), NodeError> {
    let (found, next) = match size_bytes {
        0 => (
            "its size is 0; a volume has at least one byte".to_owned(),
            "give a size such as 10G",
        ),
        1..=SIZE_MAX_BYTES => return Ok(()),
        _ => (
            format!(
                "{size_bytes} bytes were asked for; a volume has at most {SIZE_MAX_BYTES} (2^63 - 4096)"
            ),
            "ask for less",
        ),
    };
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(next))
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
    let found = format!(
        "{} were to be kept free for it, and it has a size of {}",
        bytes(reserved_bytes),
        bytes(size_bytes)
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

/// Volumes that can't have their snapshots in one instant: with what owns each.
pub(super) fn apart(owners: &[(String, String)], doing: &str) -> NodeError {
    let each: Vec<String> = owners
        .iter()
        .map(|(volume, owner)| format!("'{volume}' belongs to {owner}"))
        .collect();
    let found = format!(
        "one instant is to be had for the volumes of one journal only: {}",
        each.join("; ")
    );
    NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
        "name those of each journal in a command of their own (`flagstone volume show` says in which one a volume is); volumes that \
         shall have their snapshots in one instant have to be in one journal, as those are that are made on the same device and \
         core, and without --apart (`flagstone volume create --core N`)",
    )
}

pub(super) fn no_such_volume(name: &str, doing: &str) -> NodeError {
    NodeError::new(
        NodeErrorKind::NotFound,
        doing,
        format!("there is no volume '{name}'"),
    )
    .next("see `flagstone volume list`")
}

/// A volume in a journal that no core could open.
pub(super) fn closed(why: &str, doing: &str) -> NodeError {
    let found = format!("its journal is closed, since no core could open it: {why}");
    NodeError::new(NodeErrorKind::Unavailable, doing, found).next(
        "nothing that was answered is lost: see the log, put that right, and restart the node",
    )
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
            "see the log for the failed write (if the filesystem that holds the device file is full, \
             make room there), then restart the node",
        ),
        DvolError::Stopping => (NodeErrorKind::Busy, "try again"),
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
        DvolError::Stopping => "its journal stops: the node does, or another core gets it",
        DvolError::Invalid => "it is too much for one step, or can't be done to what is named",
        _ => return error.to_string(),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Which of the two is full, with what it has.
    #[test]
    fn a_full_filesystem_is_no_full_device() {
        let path = std::env::temp_dir().join(format!("flagstone-host-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(GIB).expect("sparse");
        let mut space = SpaceInfo {
            open_bytes: GIB,
            kept_bytes: GIB / 4,
            host_full: true,
            ..SpaceInfo::default()
        };
        for wanted in [
            Wanted::Anew(0),
            Wanted::Anew(GIB / 2),
            Wanted::Again(GIB / 2),
        ] {
            let (found, next) = wanted.words(&space, "fast", &path);
            for part in [
                "device 'fast' has 768 MiB (805306368 bytes) free",
                "the filesystem that holds",
                "1 GiB (1073741824 bytes) of the file are not set aside",
            ] {
                assert!(found.contains(part), "{part}: {found}");
            }
            assert!(next.contains("make room on that filesystem"), "{next}");
        }
        std::fs::remove_file(&path).expect("removed");
        let (found, _) = Wanted::Anew(1).words(&space, "fast", &path);
        assert!(found.contains("what "), "no file to look at: {found}");
        // More than the device has, and a filesystem with room.
        let (found, _) = Wanted::Anew(GIB).words(&space, "fast", &path);
        assert!(found.contains("were asked for"), "{found}");
        space.host_full = false;
        let (found, _) = Wanted::Anew(0).words(&space, "fast", &path);
        assert!(found.contains("device 'fast' is full"), "{found}");
    }
}
