//! What the core that has a volume does for NFS clients of it.

use std::rc::Rc;

use flagstone_device::engine::{DvolError, Engine, Handle, Pieces, SIZE_MAX_BYTES};
use flagstone_fs::{FileError, Stability};
use flagstone_gateway::volume::{self, Volume, VolumeError};
use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::UringPlatform;
use flagstone_types::{DvolId, LayerNo, Lsn};

use crate::node::real::core::CoreNode;
use crate::node::real::resize::{Resized, resize_here};
use crate::node::real::stripes;
use crate::node::real::volume::RealVolume;

/// How often something is tried on a volume that others resize meanwhile.
const ATTEMPTS_MAX: usize = 4;

/// A volume, or a snapshot of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) id: DvolId,
    pub(super) layer: Option<LayerNo>,
}

/// What a volume is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    pub(super) size_bytes: u64,
    pub(super) used_bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub(super) changed_ns: u64,
    pub(super) is_read_only: bool,
    /// Of the last change that can be seen.
    lsn: Lsn,
}

/// A volume before and after it was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Changed {
    /// If nobody else has changed it meanwhile.
    pub(super) before: Option<Look>,
    pub(super) after: Look,
}

/// A volume that was found.
struct Found {
    place: usize,
    engine: Engine<UringPlatform>,
    handle: Handle,
    /// When it was taken, if it is a snapshot, in nanoseconds since 1970.
    taken_ns: Option<u64>,
}

fn of_dvol(error: DvolError) -> FileError {
    match error {
        DvolError::NotFound => FileError::Stale,
        DvolError::OutOfRange | DvolError::Invalid => FileError::TooLarge,
        DvolError::ReadOnly | DvolError::StaleEpoch => FileError::ReadOnly,
        DvolError::NoSpace | DvolError::TooMany => FileError::NoSpace,
        DvolError::Corrupt => FileError::Corrupt,
        DvolError::Fenced | DvolError::Stopping => FileError::Stopping,
        DvolError::Busy => FileError::Later,
        DvolError::Device
        | DvolError::HistoryForgotten
        | DvolError::AlreadyExists
        | DvolError::ConditionFailed(_)
        | DvolError::NotEqual => FileError::Device,
    }
}

/// The dvol's handle, whatever its name is just then: a renaming is known to the names a moment later.
pub(in crate::node::real) fn dvol_of(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    id: DvolId,
) -> Option<Handle> {
    let notes = core.notes_of(id);
    if let Some(handle) = notes.handle.get()
        && engine.size_of(handle).is_ok()
    {
        return Some(handle);
    }
    let named = core.names.name_of(id);
    let named = named.and_then(|name| engine.dvol_with(id, &name));
    let mut found = None;
    if let Some(info) = named {
        notes.change.tell(info.created_ns);
        found = Some(info.handle);
    } else {
        engine.visit_dvols(|handle, _| {
            if handle.id == id {
                found = Some(handle);
            }
        });
    }
    notes.handle.set(found);
    found
}

/// A snapshot's handle, and when it was taken.
fn layer_of(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    id: DvolId,
    layer: LayerNo,
) -> Option<(Handle, u64)> {
    let notes = core.notes_of(id);
    let mut known = notes.layers.borrow_mut();
    if let Some((handle, created_ns)) = known.get(&layer) {
        if engine.size_of(*handle).is_ok() {
            return Some((*handle, *created_ns));
        }
        known.remove(&layer);
    }
    let mut layers = engine.layers(id).into_iter();
    let found = layers.find(|info| info.handle.layer == Some(layer))?;
    known.insert(layer, (found.handle, found.created_ns));
    Some((found.handle, found.created_ns))
}

fn find(core: &CoreNode, key: Key) -> Result<Found, FileError> {
    let (_, place) = core.names.place_of(key.id).ok_or(FileError::Stale)?;
    if place.core != core.index {
        // It was moved while this was on its way.
        return Err(FileError::Later);
    }
    let Some(engine) = core.engine(place.engine) else {
        // A journal that no core can open: handles of its volumes are good again behind the next start.
        return Err(match core.homes.closed(place.engine) {
            Some(_) => FileError::Later,
            None => FileError::Stale,
        });
    };
    let found = match key.layer {
        None => dvol_of(core, &engine, key.id).map(|handle| (handle, None)),
        Some(layer) => {
            let found = layer_of(core, &engine, key.id, layer);
            found.map(|(handle, created_ns)| (handle, Some(created_ns)))
        }
    };
    let (handle, taken_ns) = found.ok_or(FileError::Stale)?;
    Ok(Found {
        place: place.engine,
        engine,
        handle,
        taken_ns,
    })
}

/// What a volume is like now.
pub(super) fn look(core: &CoreNode, key: Key) -> Result<Look, FileError> {
    let found = find(core, key)?;
    let (engine, handle) = (found.engine, found.handle);
    let own_bytes = engine.size_of(handle).map_err(of_dvol)?;
    let stripe = core.names.stripe_of(key.id);
    let size_bytes = match &stripe {
        None => own_bytes,
        Some(stripe) => stripes::size_of(stripe, &engine, handle).ok_or(FileError::Stale)?,
    };
    // Of a striped volume the others have about as much: they are on other cores.
    let members = stripe.map_or(1, |stripe| stripe.members.len() as u64);
    let lsn = engine.lsn_of(handle).map_err(of_dvol)?;
    let changed_ns = found.taken_ns.unwrap_or_else(|| {
        let (started_ns, now_ns) = (core.started_ns, core.platform.wall_clock_ns());
        let notes = core.notes_of(key.id);
        notes.change.look((lsn.0, size_bytes), started_ns, now_ns)
    });
    Ok(Look {
        size_bytes,
        used_bytes: engine.mapped_bytes_of(handle).map_err(of_dvol)? * members,
        changed_ns,
        is_read_only: engine.is_read_only(handle),
        lsn,
    })
}

fn open(core: &CoreNode, key: Key) -> Result<RealVolume, FileError> {
    let found = find(core, key)?;
    // Closed while a stream is received into it; open while it is moved.
    if key.layer.is_none() && core.names.is_receiving(found.handle.id) {
        return Err(FileError::Later);
    }
    let volume = core.volume(found.place, found.handle);
    let asked = core.asked.others.clone();
    let volume = volume.map(|volume| RealVolume { asked, ..volume });
    volume.ok_or(FileError::Stale)
}

/// What a client is told when something with a volume failed.
fn of_volume(core: &CoreNode, key: Key, error: VolumeError) -> FileError {
    match error {
        VolumeError::OutOfRange => FileError::TooLarge,
        VolumeError::ReadOnly => FileError::ReadOnly,
        VolumeError::NoSpace => FileError::NoSpace,
        VolumeError::Corrupt => FileError::Corrupt,
        VolumeError::Fenced => FileError::Stopping,
        // It was deleted, or else the node stops.
        VolumeError::Gone => match find(core, key) {
            Err(error) => error,
            Ok(_) => FileError::Stopping,
        },
        VolumeError::Device | VolumeError::HistoryForgotten | VolumeError::Unsupported => {
            FileError::Device
        }
    }
}

/// The snapshot of that name of a volume.
pub(super) fn layer(core: &CoreNode, id: DvolId, snapshot: &str) -> Option<LayerNo> {
    let (_, place) = core.names.place_of(id)?;
    let layer = core.engine(place.engine)?.layer(id, snapshot)?;
    layer.handle.layer
}

/// Reads from a volume, at most to its end. What it is like is looked at before that: never newer than the bytes.
pub(super) async fn read(
    core: Rc<CoreNode>,
    key: Key,
    offset_bytes: u64,
    len_bytes: u32,
) -> Result<(Pieces, Look), FileError> {
    for _ in 0..ATTEMPTS_MAX {
        let before = look(&core, key)?;
        let rest = before.size_bytes.saturating_sub(offset_bytes);
        let len_bytes = u64::from(len_bytes).min(rest) as u32;
        if len_bytes == 0 {
            return Ok((Pieces::new(), before));
        }
        match open(&core, key)?.read_pieces(offset_bytes, len_bytes).await {
            Ok(pieces) => return Ok((pieces, before)),
            // It has become smaller.
            Err(VolumeError::OutOfRange) => {}
            Err(error) => return Err(of_volume(&core, key, error)),
        }
    }
    Err(FileError::Later)
}

/// Bytes that a device takes as they lie there.
fn aligned(data: IoBuf) -> IoBuf {
    match data.as_ptr().addr().is_multiple_of(BUFFER_ALIGN) {
        true => data,
        false => IoBuf::copy_of(&data),
    }
}

/// Writes to a volume.
pub(super) async fn write(
    core: Rc<CoreNode>,
    key: Key,
    offset_bytes: u64,
    data: IoBuf,
    stability: Stability,
) -> Result<Changed, FileError> {
    let before = look(&core, key)?;
    if before.is_read_only {
        return Err(FileError::ReadOnly);
    }
    let end = offset_bytes.checked_add(data.len() as u64);
    if end.is_none_or(|end| end > before.size_bytes) {
        return Err(FileError::TooLarge);
    }
    if data.is_empty() {
        let changed = Changed {
            before: Some(before),
            after: before,
        };
        return Ok(changed);
    }
    let stability = match stability {
        Stability::Stable => volume::Stability::Stable,
        Stability::Unstable => volume::Stability::Unstable,
    };
    let opened = open(&core, key)?;
    let written = opened.write_parts(offset_bytes, aligned(data), stability);
    let lsn = written
        .await
        .map_err(|error| of_volume(&core, key, error))?;
    let after = look(&core, key)?;
    // Each change has the LSN behind that of the one before.
    let is_alone =
        lsn == before.lsn.next() && after.lsn == lsn && after.size_bytes == before.size_bytes;
    Ok(Changed {
        before: is_alone.then_some(before),
        after,
    })
}

/// Makes what was written to a volume durable.
pub(super) async fn commit(core: Rc<CoreNode>, key: Key) -> Result<Look, FileError> {
    let flushed = open(&core, key)?.flush().await;
    flushed.map_err(|error| of_volume(&core, key, error))?;
    look(&core, key)
}

/// What is to be set of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Set {
    pub(super) size_bytes: Option<u64>,
    /// Whether it counts as changed, if nothing else is.
    pub(super) touch: bool,
    /// Only if it was last changed then.
    pub(super) guard_ns: Option<u64>,
}

/// Makes a volume larger, or says that it was changed. Smaller: [`FileError::NotOwner`].
pub(super) async fn set(core: Rc<CoreNode>, key: Key, set: Set) -> Result<Changed, FileError> {
    let before = look(&core, key)?;
    if set.guard_ns.is_some_and(|guard| guard != before.changed_ns) {
        return Err(FileError::NotSame);
    }
    if before.is_read_only {
        return Err(FileError::ReadOnly);
    }
    if let Some(size_bytes) = set.size_bytes.filter(|size| *size != before.size_bytes) {
        if size_bytes > SIZE_MAX_BYTES {
            return Err(FileError::TooLarge);
        }
        let found = find(&core, key)?;
        if core.names.stripe_of(key.id).is_some() {
            return Err(FileError::NotOwner);
        }
        let engine = core.engine(found.place).ok_or(FileError::Stale)?;
        let resized = resize_here(&core, &engine, found.handle, size_bytes, false);
        match resized.await.map_err(of_dvol)? {
            Resized::Done => {}
            Resized::WouldShrink(_) => return Err(FileError::NotOwner),
        }
    } else if set.touch {
        let now_ns = core.platform.wall_clock_ns();
        core.notes_of(key.id).change.tell(now_ns);
    }
    let after = look(&core, key)?;
    Ok(Changed {
        before: (before.lsn == after.lsn).then_some(before),
        after,
    })
}

/// What this core's journals know of the room on their devices, with the device's index.
pub(super) fn rooms(core: &CoreNode) -> Vec<(usize, Room)> {
    let rooms = core.engines.all().into_iter().map(|(_, owned)| {
        let space = owned.engine.space();
        let room = Room {
            total_bytes: space.capacity_bytes,
            open_bytes: space.open_bytes.saturating_sub(space.unowned_bytes),
            unowned_bytes: space.unowned_bytes,
            // One that has written nothing yet keeps nothing.
            kept_bytes: match space.owned_segments {
                0 => 0,
                _ => space.kept_bytes,
            },
        };
        (owned.device, room)
    });
    rooms.collect()
}

/// What a journal knows of the room on its device, or several of one device together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Room {
    pub(super) total_bytes: u64,
    /// In segments of its own.
    open_bytes: u64,
    /// In segments that no journal has.
    unowned_bytes: u64,
    /// Not for those who write.
    kept_bytes: u64,
}

impl Room {
    /// Adds what another journal of the same device knows.
    pub(super) fn add(&mut self, other: Room) {
        self.total_bytes = self.total_bytes.max(other.total_bytes);
        self.open_bytes += other.open_bytes;
        self.unowned_bytes = self.unowned_bytes.max(other.unowned_bytes);
        self.kept_bytes += other.kept_bytes;
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let open_bytes = self.open_bytes + self.unowned_bytes;
        open_bytes.saturating_sub(self.kept_bytes)
    }
}
