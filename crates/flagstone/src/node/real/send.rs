//! Snapshots, given out in parts: all of one, or what changed since an older one.
//!
//! Nothing is held between two parts but what the caller has. What a part costs is bounded, and holes cost nothing,
//! so neither a large volume nor a slow reader is a burden to the core.

use flagstone_device::engine::{DvolError, Engine, Handle, LayerInfo, gathered, join_all};
use flagstone_device::transfer::{Most, PlannedRange, What, plan_of};
use flagstone_gateway::volume::VolumeError;
use flagstone_runtime::UringPlatform;
use flagstone_types::{LayerNo, Lsn, Slot};
use flagstone_wire::stream::{StreamBase, StreamHeader};

use super::core::CoreNode;
use super::errors::{no_such_snapshot, node_error};
use super::volume::RealVolume;
use super::{FOLLOWS_MAX, RealNode};
use crate::name::SnapshotRef;
use crate::node::{
    NodeError, NodeErrorKind, PART_MAX_BYTES, PART_MAX_RUNS, StreamHold, StreamPart, StreamRun,
    StreamSource,
};

/// What a part of a stream may have. Several reads are under way at a time.
const SENT: Most = Most {
    bytes: PART_MAX_BYTES,
    runs: PART_MAX_RUNS,
    read_bytes: 1 << 20,
};

/// A snapshot, and the one that its stream begins at.
type Pair = (LayerInfo, Option<LayerInfo>);

/// Why a snapshot can't be sent as the differences to another.
enum NoBase {
    Missing,
    Newer,
    Forgotten(Lsn),
}

fn layer_of(engine: &Engine<UringPlatform>, layer: Handle) -> Result<LayerInfo, DvolError> {
    let mut layers = engine.layers(layer.id).into_iter();
    let found = layers.find(|info| info.handle == layer);
    found.ok_or(DvolError::NotFound)
}

/// The snapshot, and the other, if what changed between the two is known.
async fn pair(
    engine: &Engine<UringPlatform>,
    layer: Handle,
    since: Option<&str>,
) -> Result<Result<Pair, NoBase>, DvolError> {
    let info = layer_of(engine, layer)?;
    let Some(since) = since else {
        return Ok(Ok((info, None)));
    };
    let Some(base) = engine.layer(layer.id, since) else {
        return Ok(Err(NoBase::Missing));
    };
    if base.lsn > info.lsn {
        return Ok(Err(NoBase::Newer));
    }
    if info.size_bytes > 0 {
        match engine.changed_since(layer, base.lsn, 0, 1, 1).await {
            Ok(_) => {}
            Err(DvolError::HistoryForgotten) => {
                return Ok(Err(NoBase::Forgotten(engine.floor_of(layer)?)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok((info, Some(base))))
}

impl RealNode {
    pub(super) async fn open_stream_of(
        &self,
        snapshot: SnapshotRef,
        since: Option<String>,
    ) -> Result<StreamSource, NodeError> {
        let doing = format!("sending snapshot '{snapshot}'");
        let target = self.target(&snapshot.volume, &doing)?;
        self.refuse_unwhole(&target, &doing)?;
        self.refuse_striped(&target, &doing)?;
        let found = self.begin_stream(&snapshot, since.as_ref(), &doing).await?;
        let ((info, base), hold) = found.map_err(|why| {
            let since = since.unwrap_or_default();
            no_base(&why, &snapshot, &since, &doing)
        })?;
        let layer = info.handle.layer.map_or(0, |layer| layer.0);
        let since = base.as_ref().map(|base| base.lsn);
        Ok(StreamSource {
            slot: info.handle.slot.0,
            layer,
            since,
            hold,
            header: StreamHeader {
                volume_id: info.handle.id,
                volume: snapshot.volume,
                snapshot: info.name,
                lsn: info.lsn,
                size_bytes: info.size_bytes,
                taken_ns: info.created_ns,
                // What changed is found while it is sent.
                expected_bytes: match base {
                    None => info.mapped_bytes,
                    Some(_) => 0,
                },
                base: base.map(|base| StreamBase {
                    snapshot: base.name,
                    lsn: base.lsn,
                    size_bytes: base.size_bytes,
                }),
            },
        })
    }

    /// Looks for a snapshot, and holds it where its journal is.
    async fn begin_stream(
        &self,
        snapshot: &SnapshotRef,
        since: Option<&String>,
        doing: &str,
    ) -> Result<Result<(Pair, StreamHold), NoBase>, NodeError> {
        for _ in 0..FOLLOWS_MAX {
            let older = since.cloned();
            let begun =
                self.on_snapshot(snapshot, doing, move |core, number, _, layer| async move {
                    let owned = core.owned(number)?;
                    // A journal that just goes doesn't see what is held from here on, and the core that gets it doesn't know of it. Behind
                    // this one, a hand-over finds that the snapshot is being sent.
                    let Ok(made) = owned.made_in().await else {
                        return Ok(None);
                    };
                    // From here on the volume's schedule leaves it. If it is just deleting it, there is none.
                    let held = core.schedules.holds.hold(layer);
                    let held = held.ok_or(DvolError::NotFound)?;
                    drop(made);
                    let pair = pair(&owned.engine, layer, older.as_deref()).await?;
                    Ok(Some(pair.map(|pair| (pair, StreamHold::new(held)))))
                });
            if let Some(begun) = begun.await? {
                return Ok(begun);
            }
        }
        let found = "its journal goes to another core, again and again";
        Err(NodeError::new(NodeErrorKind::Busy, doing, found).next("try again"))
    }

    pub(super) async fn read_part_of(
        &self,
        source: StreamSource,
        from_bytes: u64,
    ) -> Result<StreamPart, NodeError> {
        let StreamHeader {
            volume_id,
            volume,
            snapshot,
            base,
            ..
        } = source.header;
        let name = format!("{volume}@{snapshot}");
        let doing = format!("sending snapshot '{name}'");
        let gone = || no_such_snapshot(&name, &doing);
        let (_, place) = self.names.place_of(volume_id).ok_or_else(gone)?;
        let handle = Handle {
            slot: Slot(source.slot),
            id: volume_id,
            layer: Some(LayerNo(source.layer)),
        };
        let since = source.since;
        let part = self
            .on_core(place.core, &doing, move |core| async move {
                part_of(&core, place.engine, handle, since, from_bytes).await
            })
            .await?;
        part.map_err(|error| match error {
            DvolError::NotFound => gone(),
            DvolError::HistoryForgotten => {
                let base = base.map(|base| base.snapshot).unwrap_or_default();
                forgotten(&base, None, &doing)
            }
            error => node_error(error, &doing),
        })
    }
}

fn no_base(why: &NoBase, snapshot: &SnapshotRef, since: &str, doing: &str) -> NodeError {
    match why {
        NoBase::Missing => no_such_snapshot(&format!("{}@{since}", snapshot.volume), doing),
        NoBase::Newer => {
            let found = format!("'{since}' is newer than it, and --since names what is older");
            NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
                "exchange the two; to bring back what an older snapshot has, roll back to it or clone it",
            )
        }
        NoBase::Forgotten(floor) => forgotten(since, Some(*floor), doing),
    }
}

fn forgotten(since: &str, floor: Option<Lsn>, doing: &str) -> NodeError {
    // Of one that has forgotten nothing it is nothing to be said.
    let floor = floor.filter(|floor| *floor > Lsn::ZERO);
    let floor = floor.map_or_else(String::new, |lsn| format!(" (its history begins at {lsn})"));
    let found = format!(
        "what changed since '{since}' is not known any more: the volume has forgotten it, or it lies in a \
         past that a rollback has discarded, or between two rollbacks{floor}"
    );
    NodeError::new(NodeErrorKind::Refused, doing, found).next(
        "send the whole snapshot, without --since, to a new volume; later ones can be sent --since this one",
    )
}

/// The part of a snapshot from `from_bytes` on.
async fn part_of(
    core: &CoreNode,
    engine: usize,
    layer: Handle,
    since: Option<Lsn>,
    from_bytes: u64,
) -> Result<StreamPart, DvolError> {
    let volume = core.volume(engine, layer).ok_or(DvolError::NotFound)?;
    let volume = RealVolume {
        asked: core.asked.others.clone(),
        ..volume
    };
    let what = since.map_or(What::Allocated, What::ChangedSince);
    let plan = plan_of(&volume.engine, layer, what, from_bytes, SENT).await?;
    let reads = plan.ranges.into_iter().map(|range| read(&volume, range));
    let runs = join_all(reads).await.into_iter();
    Ok(StreamPart {
        runs: runs.collect::<Result<_, _>>()?,
        next_bytes: match plan.next_bytes {
            Some(next) => next,
            None => volume.engine.size_of(layer)?,
        },
    })
}

/// Reads a range in a turn of the volume's.
async fn read(volume: &RealVolume, range: PlannedRange) -> Result<StreamRun, DvolError> {
    let PlannedRange {
        offset_bytes,
        len_bytes,
        is_data,
    } = range;
    if !is_data {
        return Ok(StreamRun::Zeros {
            offset_bytes,
            len_bytes,
        });
    }
    let pieces = volume.read_pieces(offset_bytes, len_bytes as u32).await;
    let pieces = pieces.map_err(|error| engine_error(&error))?;
    Ok(StreamRun::Data {
        offset_bytes,
        bytes: gathered(&pieces, len_bytes),
    })
}

/// What the engine said.
pub(super) fn engine_error(error: &VolumeError) -> DvolError {
    match error {
        VolumeError::Corrupt => DvolError::Corrupt,
        VolumeError::Fenced => DvolError::Fenced,
        VolumeError::Gone => DvolError::NotFound,
        VolumeError::NoSpace => DvolError::NoSpace,
        VolumeError::ReadOnly => DvolError::ReadOnly,
        VolumeError::OutOfRange => DvolError::OutOfRange,
        _ => DvolError::Device,
    }
}
