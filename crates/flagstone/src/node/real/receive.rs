//! Streams of snapshots, received: all of one, or nothing, as everybody sees it.
//!
//! A whole stream becomes a new dvol, which is no volume until the end: it isn't in the node's names. An incremental one is
//! written into the volume itself, which nobody can open or change meanwhile. What is under way is marked in the dvol's
//! attributes *before* anything is changed, and the mark goes last, when the snapshot is durable. So whatever happens
//! in between, [`undo`] knows what to do, at once or at the next start: a new dvol is deleted, another one is rolled back to
//! the base, which costs next to nothing. To go on where a receive was interrupted would be possible, but
//! then a volume could be in between for days, and a stream has to be sent again from its beginning anyway, if it
//! comes through a pipe.

use std::cmp::Ordering;
use std::sync::{MutexGuard, PoisonError};

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, Handle, LayerInfo, Stability, join_all,
};
use flagstone_gateway::volume::Stability as WriteStability;
use flagstone_platform::IoBuf;
use flagstone_runtime::UringPlatform;
use flagstone_sched::Want;
use flagstone_types::DvolId;
use flagstone_wire::stream::{StreamBase, StreamHeader};

use super::attributes::{ContentId, Receiving, VolumeAttributes};
use super::core::CoreNode;
use super::creation::Wants;
use super::epochs::Raised;
use super::errors::{Wanted, check_size, node_error, taken};
use super::names::{Claim, Place};
use super::resize::{Resized, resize_alone, try_reserve_no_more};
use super::send::engine_error;
use super::volume::RealVolume;
use super::{Incoming, RealNode, Target};
use crate::name::SnapshotRef;
use crate::node::{NodeError, NodeErrorKind, ReceiveId, ReceiveSpec, SnapshotInfo, StreamRun};

/// A stream on its way into a volume.
pub(super) struct OneReceive {
    place: Place,
    handle: Handle,
    volume: String,
    snapshot: String,
    content: ContentId,
    /// The name of a new volume.
    claim: Option<Claim>,
}

/// Why a stream can't be received into a volume.
enum Unfit {
    Attached(u64),
    SnapshotExists,
    HasIt(String),
    NoBase,
    Changed(String),
    Unknown(String),
}

/// Undoes what a receive has left of a dvol, or takes the mark away if it came to its end. Returns whether the dvol is
/// still there.
pub(super) async fn undo(engine: &Engine<UringPlatform>, dvol: Handle) -> Result<bool, DvolError> {
    let attributes = VolumeAttributes::decode(&engine.attributes_of(dvol)?);
    let base = match attributes.receiving {
        None => return Ok(true),
        Some(Receiving::New) => {
            engine.delete(dvol, true).await?;
            return Ok(false);
        }
        Some(Receiving::Onto(base)) => base,
        // Not by a stream.
        Some(
            Receiving::Moved { .. }
            | Receiving::Going(_)
            | Receiving::Leaving(_)
            | Receiving::Stayed(_),
        ) => return Ok(true),
    };
    let layers = engine.layers(dvol.id);
    // The base may have the same content, and those before it, if nothing changed where the stream comes from. What was received is newer.
    let is_it = |layer: &LayerInfo| {
        content_of(layer) == attributes.content && layer.handle.layer > Some(base)
    };
    let is_whole = attributes.content.is_some() && layers.iter().any(is_it);
    if !is_whole {
        let base = layers.iter().find(|layer| layer.handle.layer == Some(base));
        let base = base.ok_or(DvolError::NotFound)?;
        engine.roll_back(dvol, base.handle).await?;
    }
    // Before it is served again: what it was to become may have been larger, and what it has become may be smaller.
    try_reserve_no_more(engine, dvol).await;
    settle(engine, dvol).await?;
    Ok(true)
}

/// Takes the mark of a receive away.
async fn settle(engine: &Engine<UringPlatform>, dvol: Handle) -> Result<(), DvolError> {
    let attributes = VolumeAttributes {
        receiving: None,
        content: None,
        ..VolumeAttributes::decode(&engine.attributes_of(dvol)?)
    };
    engine.set_attributes(dvol, attributes.encode()).await
}

/// What a snapshot was received as.
fn content_of(layer: &LayerInfo) -> Option<ContentId> {
    VolumeAttributes::decode(&layer.attributes).content
}

/// Whether a snapshot has this content: it was received as that, or is itself where that comes from.
fn has_content(layer: &LayerInfo, content: ContentId) -> bool {
    let own = ContentId {
        volume: layer.handle.id,
        lsn: layer.lsn,
    };
    content_of(layer) == Some(content) || own == content
}

/// Whether a volume differs from a snapshot of it. `None` if it isn't known.
async fn has_changed(
    engine: &Engine<UringPlatform>,
    dvol: Handle,
    base: &LayerInfo,
) -> Result<Option<bool>, DvolError> {
    let size_bytes = engine.size_of(dvol)?;
    if size_bytes != base.size_bytes {
        return Ok(Some(true));
    }
    let mut at = 0;
    while at < size_bytes {
        let left = size_bytes - at;
        match engine.changed_since(dvol, base.lsn, at, left, 1).await {
            Ok(extents) => {
                if extents.iter().any(|extent| extent.changed) {
                    return Ok(Some(true));
                }
                at += extents.iter().map(|extent| extent.len_bytes).sum::<u64>();
            }
            Err(DvolError::HistoryForgotten) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(false))
}

/// Waits for changes of a volume, and of its snapshots, that were accepted before it was closed.
pub(super) async fn quiesce(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    dvol: Handle,
) -> Result<(), DvolError> {
    // Its size and attributes, and rollbacks, by this.
    let settings = core.sizing(dvol.id);
    let _turn = settings.take(1).await;
    // An engine makes one change of what dvols and layers there are at a time, in the order in which they were asked
    // for. So when this one is made, which changes nothing, those before it have been.
    let (_, reserved_bytes) = engine.usage_of(dvol)?;
    engine.set_reserved(dvol, reserved_bytes).await
}

/// Has nobody who was attached change a volume any more. What he asked for before he left may wait for its turn as long as a limit holds it, and would come
/// among what is received; and who comes back finds another volume than he left.
async fn lock_out(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    dvol: Handle,
) -> Result<(), DvolError> {
    let notes = core.notes_of(dvol.id);
    let stored = || engine.epoch_of(dvol);
    let store = |epoch| engine.set_epoch(dvol, epoch);
    match notes.epochs.raise(None, stored, store).await? {
        Raised::To(_) => Ok(()),
        Raised::Stale | Raised::Impossible => Err(DvolError::TooMany),
    }
}

/// Makes a volume the base that a stream begins at, marked as what is being received into.
async fn make_base(
    core: &CoreNode,
    place: Place,
    dvol: Handle,
    spec: &ReceiveSpec,
    stream_base: &StreamBase,
) -> Result<Result<(), Unfit>, DvolError> {
    let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
    quiesce(core, &engine, dvol).await?;
    let connections = core.attached().get(&dvol.id).copied().unwrap_or(0);
    if connections > 0 {
        return Ok(Err(Unfit::Attached(connections)));
    }
    // That mark says that a copy elsewhere is void, and must not be written over.
    let attributes = VolumeAttributes::decode(&engine.attributes_of(dvol)?);
    if attributes.receiving.is_some() {
        return Err(DvolError::Busy);
    }
    let header = &spec.header;
    let content = content_id(header);
    let layers = engine.layers(dvol.id);
    if layers.iter().any(|layer| layer.name == spec.snapshot) {
        return Ok(Err(Unfit::SnapshotExists));
    }
    // Nothing changed there since the base, so the volume has the content already, and gets it under another name: whoever sends on
    // from that one must find it here.
    let is_idle = header.lsn == stream_base.lsn && header.size_bytes == stream_base.size_bytes;
    let is_it =
        |layer: &&LayerInfo| has_content(layer, content) && layer.size_bytes == header.size_bytes;
    if let Some(layer) = layers.iter().find(is_it)
        && !is_idle
    {
        return Ok(Err(Unfit::HasIt(layer.name.clone())));
    }
    let wanted = ContentId {
        volume: header.volume_id,
        lsn: stream_base.lsn,
    };
    let is_base = |layer: &&LayerInfo| {
        has_content(layer, wanted) && layer.size_bytes == stream_base.size_bytes
    };
    // Of several with that content the newest: a rollback to an older one would have others be of a past that the volume has left.
    let bases = layers.iter().filter(is_base);
    let Some(base) = bases.max_by_key(|layer| layer.handle.layer) else {
        return Ok(Err(Unfit::NoBase));
    };
    let fits = |changed| match changed {
        Some(true) if !spec.force => Err(Unfit::Changed(base.name.clone())),
        None if !spec.force => Err(Unfit::Unknown(base.name.clone())),
        _ => Ok(()),
    };
    if let Err(unfit) = fits(has_changed(&engine, dvol, base).await?) {
        return Ok(Err(unfit));
    }
    lock_out(core, &engine, dvol).await?;
    // Once more: until then somebody could change it who was attached before.
    let changed = has_changed(&engine, dvol, base).await?;
    if let Err(unfit) = fits(changed) {
        return Ok(Err(unfit));
    }
    let attributes = VolumeAttributes {
        receiving: base.handle.layer.map(Receiving::Onto),
        content: None,
        ..VolumeAttributes::decode(&engine.attributes_of(dvol)?)
    };
    engine.set_attributes(dvol, attributes.encode()).await?;
    if changed != Some(false) {
        engine.roll_back(dvol, base.handle).await?;
        try_reserve_no_more(&engine, dvol).await;
    }
    match header.size_bytes.cmp(&base.size_bytes) {
        // What is reserved stays so until the end: if the stream doesn't come to that, the volume has its old size again.
        Ordering::Less => engine.resize(dvol, header.size_bytes).await?,
        Ordering::Equal => {}
        Ordering::Greater => match resize_alone(&engine, dvol, header.size_bytes, true).await? {
            Resized::Done => {}
            Resized::WouldShrink(_) => return Err(DvolError::Invalid),
        },
    }
    Ok(Ok(()))
}

fn content_id(header: &StreamHeader) -> ContentId {
    ContentId {
        volume: header.volume_id,
        lsn: header.lsn,
    }
}

/// Puts runs in their places.
async fn take_runs(volume: &RealVolume, runs: Vec<StreamRun>) -> Result<(), DvolError> {
    let taken = runs.into_iter().map(|run| async move {
        match run {
            StreamRun::Data {
                offset_bytes,
                bytes,
            } => {
                let data = IoBuf::copy_of(&bytes);
                drop(bytes);
                let written = volume.write_parts(offset_bytes, data, WriteStability::Unstable);
                written
                    .await
                    .map(drop)
                    .map_err(|error| engine_error(&error))
            }
            // Not as clients do it, for whom it is advice.
            StreamRun::Zeros {
                offset_bytes,
                len_bytes,
            } => {
                let _turn = volume.tenant.turn(Want::write(0, 1, false)).await;
                let (engine, handle) = (&volume.engine, volume.handle);
                engine
                    .deallocate(handle, offset_bytes, len_bytes, Stability::Unstable)
                    .await
                    .map(drop)
            }
        }
    });
    join_all(taken).await.into_iter().collect()
}

impl RealNode {
    /// Refuses a volume that a stream is being received into, or that is being moved.
    pub(super) fn target_to_change(&self, name: &str, doing: &str) -> Result<Target, NodeError> {
        let target = self.target(name, doing)?;
        self.refuse_unwhole(&target, doing)?;
        if self.names.is_receiving(target.place.id) {
            return Err(receiving(doing));
        }
        self.refuse_moving(&target, doing)?;
        Ok(target)
    }

    fn receives(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn begin(&self, spec: ReceiveSpec) -> Result<ReceiveId, NodeError> {
        let one = match spec.header.base.clone() {
            None => self.begin_new(spec).await?,
            Some(base) => self.begin_onto(spec, base).await?,
        };
        let mut receives = self.receives();
        receives.last += 1;
        let id = ReceiveId(receives.last);
        receives.by_id.insert(id, one);
        Ok(id)
    }

    async fn begin_new(&self, spec: ReceiveSpec) -> Result<OneReceive, NodeError> {
        let doing = format!("receiving volume '{}'", spec.volume);
        // What was sent when volumes could still be empty is taken back all the same.
        check_size(spec.header.size_bytes.max(1), &doing)?;
        let wants = Wants::bytes(spec.header.expected_bytes);
        let named = spec.device.as_deref();
        let (core, device) = self.place_for(named, spec.core, wants, &doing).await?;
        let nowhere = Place {
            core,
            engine: 0,
            id: DvolId(0),
        };
        let Some(claim) = self.names.claim(&spec.volume, nowhere) else {
            let next = "a whole stream makes a new volume: choose another name; what changed since a snapshot \
                        that the volume has can be received into it, if it was sent with --since";
            let arrives = self.taken_by_arrival(&spec.volume, &doing).await;
            return Err(arrives.unwrap_or_else(|| taken(&spec.volume, &doing).next(next)));
        };
        let new = CreateDvol {
            name: spec.volume.clone(),
            id: None,
            size_bytes: spec.header.size_bytes,
            reserved_bytes: 0,
        };
        let created = self
            .on_core(core, &doing, move |running| async move {
                let engine = running.engines.first_of(device);
                let engine = engine.ok_or(DvolError::Stopping)?;
                let attributes = VolumeAttributes {
                    receiving: Some(Receiving::New),
                    ..VolumeAttributes::default()
                };
                let owned = running.owned(engine)?;
                let _made = owned.made_in().await?;
                let owned = &owned.engine;
                let handle = owned.create_with(new, attributes.encode()).await?;
                Ok((engine, handle))
            })
            .await?;
        let (engine, handle) = created.map_err(|error| node_error(error, &doing))?;
        Ok(OneReceive {
            place: Place {
                core,
                engine,
                id: handle.id,
            },
            handle,
            volume: spec.volume,
            snapshot: spec.snapshot,
            content: content_id(&spec.header),
            claim: Some(claim),
        })
    }

    async fn begin_onto(
        &self,
        spec: ReceiveSpec,
        base: StreamBase,
    ) -> Result<OneReceive, NodeError> {
        let doing = format!("receiving into volume '{}'", spec.volume);
        let target = self.target(&spec.volume, &doing).map_err(|error| {
            let next = format!(
                "the stream says what changed since '{}': receive that one first, as a whole stream",
                base.snapshot
            );
            error.next(next)
        })?;
        let place = target.place;
        self.refuse_unwhole(&target, &doing)?;
        self.refuse_striped(&target, &doing)?;
        self.refuse_moving(&target, &doing)?;
        self.refuse_waiting(place.id, &doing)?;
        if !self.names.begin_receiving(place.id) {
            return Err(receiving(&doing));
        }
        let (wanted, since) = (spec.clone(), base.clone());
        let made = self
            .on_volume(&target, &doing, move |core, dvol| async move {
                let made = make_base(&core, place, dvol, &wanted, &since).await;
                if !matches!(made, Ok(Ok(()))) {
                    let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
                    undo(&engine, dvol).await?;
                }
                Ok((core.index, dvol, made?))
            })
            .await;
        let (core, handle, made) = made.inspect_err(|_| self.names.end_receiving(place.id))?;
        if let Err(why) = made {
            self.names.end_receiving(place.id);
            return Err(unfit(&why, &spec, &base, &doing));
        }
        Ok(OneReceive {
            place: Place { core, ..place },
            handle,
            content: content_id(&spec.header),
            volume: spec.volume,
            snapshot: spec.snapshot,
            claim: None,
        })
    }

    pub(super) async fn take_part(
        &self,
        id: ReceiveId,
        runs: Vec<StreamRun>,
    ) -> Result<(), NodeError> {
        let found = self.receives().by_id.get(&id).map(|one| {
            let doing = format!("receiving volume '{}'", one.volume);
            (one.place, one.handle, doing)
        });
        let (place, handle, doing) = found.ok_or_else(unknown)?;
        let taken = self
            .on_core(place.core, &doing, move |core| async move {
                let volume = core.volume_alone(place.engine, handle);
                take_runs(&volume.ok_or(DvolError::NotFound)?, runs).await
            })
            .await?;
        match taken {
            Ok(()) => Ok(()),
            Err(error) => {
                let find = move |core: &CoreNode| {
                    let owned = core.engines.get(place.engine)?;
                    Some((owned.device, owned.engine.space(), Wanted::Anew(0)))
                };
                let error = node_error(error, &doing);
                Err(self.with_space(error, place.core, find).await)
            }
        }
    }

    pub(super) async fn finish(&self, id: ReceiveId) -> Result<SnapshotInfo, NodeError> {
        let one = self.receives().by_id.remove(&id).ok_or_else(unknown)?;
        let doing = format!("receiving volume '{}'", one.volume);
        let (place, handle, content) = (one.place, one.handle, one.content);
        let named = one.snapshot.clone();
        let finished = self
            .on_core(place.core, &doing, move |core| async move {
                let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
                let attributes = VolumeAttributes {
                    content: Some(content),
                    ..VolumeAttributes::decode(&engine.attributes_of(handle)?)
                };
                // With the flush of this all that was written is durable. A snapshot may outlive a crash, before it is answered, that takes away unstable
                // writes from before it; this one is taken for the whole content by whoever finds it.
                engine.set_attributes(handle, attributes.encode()).await?;
                // The snapshot has these attributes.
                engine.snapshot(&[(handle, named)]).await?;
                settle(&engine, handle).await?;
                // It may have become smaller.
                try_reserve_no_more(&engine, handle).await;
                Ok(())
            })
            .await;
        let finished = match finished {
            Ok(finished) => finished.map_err(|error| node_error(error, &doing)),
            Err(error) => Err(error),
        };
        if let Err(error) = finished {
            let _ = self.give_up(one).await;
            return Err(error);
        }
        match one.claim {
            Some(claim) => claim.came_to_be(place),
            None => self.names.end_receiving(place.id),
        }
        let snapshot = SnapshotRef {
            volume: one.volume,
            snapshot: one.snapshot,
        };
        self.show_one_snapshot(snapshot).await
    }

    pub(super) async fn abandon(&self, id: ReceiveId) -> Result<(), NodeError> {
        let Some(one) = self.receives().by_id.remove(&id) else {
            return Ok(());
        };
        self.give_up(one).await
    }

    async fn give_up(&self, one: OneReceive) -> Result<(), NodeError> {
        let doing = format!("undoing what was received of volume '{}'", one.volume);
        let (place, handle) = (one.place, one.handle);
        let undone = self
            .on_core(place.core, &doing, move |core| async move {
                let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
                let is_there = undo(&engine, handle).await?;
                if !is_there {
                    core.forget(handle.id);
                }
                Ok(())
            })
            .await?;
        match undone {
            Ok(()) => {
                self.names.end_receiving(place.id);
                Ok(())
            }
            Err(error) => {
                // Marked as it is, the next start does it. Until then nobody can open it.
                let error = node_error(error, &doing).next("it is done at the node's next start");
                tracing::warn!("{error}");
                Err(error)
            }
        }
    }
}

fn receiving(doing: &str) -> NodeError {
    let found = "a stream is being received into it";
    NodeError::new(NodeErrorKind::Busy, doing, found).next("wait until that has ended, or end it")
}

fn unknown() -> NodeError {
    let found = "it has ended";
    NodeError::new(NodeErrorKind::NotFound, "receiving a stream", found).next("begin again")
}

fn unfit(why: &Unfit, spec: &ReceiveSpec, base: &StreamBase, doing: &str) -> NodeError {
    let volume = &spec.volume;
    let (kind, found, next) = match why {
        Unfit::Attached(count) => (
            NodeErrorKind::Busy,
            format!(
                "it is in use: connections, of NBD or of the native protocol, that have it open: {count}"
            ),
            "detach its clients; they can attach to its snapshots meanwhile".to_owned(),
        ),
        Unfit::SnapshotExists => (
            NodeErrorKind::AlreadyExists,
            format!("there already is a snapshot '{volume}@{}'", spec.snapshot),
            format!("name another one: `flagstone snapshot receive {volume}@NAME`"),
        ),
        Unfit::HasIt(name) => (
            NodeErrorKind::AlreadyExists,
            format!("the volume has it already, as snapshot '{volume}@{name}'"),
            "nothing is left to do".to_owned(),
        ),
        Unfit::NoBase => (
            NodeErrorKind::Refused,
            format!(
                "the stream says what changed since '{}' (volume {}, LSN {}), and no snapshot of '{volume}' is that",
                base.snapshot, spec.header.volume_id, base.lsn
            ),
            "receive the streams in their order, beginning with a whole one, or send this one --since a \
             snapshot that the volume has"
                .to_owned(),
        ),
        Unfit::Changed(name) => (
            NodeErrorKind::Refused,
            format!("it was changed since snapshot '{volume}@{name}', where the stream begins"),
            "pass --force to roll it back to that first, which discards what was changed; or clone the snapshot \
             and keep what was changed there"
                .to_owned(),
        ),
        Unfit::Unknown(name) => (
            NodeErrorKind::Refused,
            format!(
                "whether it was changed since snapshot '{volume}@{name}', where the stream begins, is not known any \
                 more"
            ),
            "pass --force to roll it back to that first".to_owned(),
        ),
    };
    NodeError::new(kind, doing, found).next(next)
}
