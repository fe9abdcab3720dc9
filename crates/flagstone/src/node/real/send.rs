//! Snapshots, given out in parts: all of one, or what changed since an older one.
//!
//! Nothing is held between two parts but what the caller has. What a part costs is bounded, and holes cost nothing,
//! so neither a large volume nor a slow reader is a burden to the core.

use flagstone_device::engine::{DvolError, Engine, Handle, LayerInfo, Piece, Pieces, join_all};
use flagstone_gateway::volume::VolumeError;
use flagstone_runtime::UringPlatform;
use flagstone_types::{LayerNo, Lsn, Slot};
use flagstone_wire::stream::{StreamBase, StreamHeader};

use super::RealNode;
use super::core::CoreNode;
use super::errors::{no_such_snapshot, node_error};
use super::volume::RealVolume;
use crate::name::SnapshotRef;
use crate::node::{
    NodeError, NodeErrorKind, PART_MAX_BYTES, PART_MAX_RUNS, StreamHold, StreamPart, StreamRun,
    StreamSource,
};

/// Extents that are asked for at once.
const EXTENTS_MAX: usize = 2048;

/// Most bytes of one read. Several are under way at a time.
const READ_BYTES: u64 = 1 << 20;

/// Times that a part asks what is allocated or changed, at most: where a volume has much that is neither, the
/// core has other things to do as well.
const QUERIES_MAX: usize = 64;

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
) -> Result<Result<(LayerInfo, Option<LayerInfo>), NoBase>, DvolError> {
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
        let older = since.clone();
        let found = self
            .on_snapshot(
                &snapshot,
                &doing,
                move |core, engine, _, layer| async move {
                    let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
                    // From here on the volume's schedule leaves it. If it is just deleting it, there is none.
                    let held = core.schedules.holds.hold(layer);
                    let held = held.ok_or(DvolError::NotFound)?;
                    let pair = pair(engine, layer, older.as_deref()).await?;
                    Ok(pair.map(|pair| (pair, StreamHold::new(held))))
                },
            )
            .await?;
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
    let floor = floor.map_or_else(String::new, |lsn| format!(" (its history begins at {lsn})"));
    let found = format!(
        "what changed since '{since}' is not known any more: the volume has forgotten it, or was rolled back to \
         before it{floor}"
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
    let size_bytes = volume.engine.size_of(layer)?;
    let mut plan = Plan::default();
    let mut at = from_bytes;
    for _ in 0..QUERIES_MAX {
        if at >= size_bytes || plan.is_full() {
            break;
        }
        at = match since {
            None => plan.add_allocated(&volume, at, size_bytes, false).await?,
            Some(lsn) => plan.add_changed(&volume, lsn, at, size_bytes).await?,
        };
    }
    let runs = plan.read(&volume).await?;
    Ok(StreamPart {
        runs,
        next_bytes: at.min(size_bytes),
    })
}

/// What a part is going to have, in the order of offsets.
#[derive(Default)]
struct Plan {
    /// Where, how long, and whether it is data.
    runs: Vec<(u64, u64, bool)>,
    data_bytes: u64,
}

impl Plan {
    fn is_full(&self) -> bool {
        self.data_bytes >= PART_MAX_BYTES || self.runs.len() >= PART_MAX_RUNS
    }

    /// Adds data, as much as there is room for. Returns where it ends.
    fn add_data(&mut self, mut at: u64, end: u64) -> u64 {
        while at < end && !self.is_full() {
            let room = PART_MAX_BYTES - self.data_bytes;
            let len = (end - at).min(READ_BYTES).min(room);
            self.runs.push((at, len, true));
            self.data_bytes += len;
            at += len;
        }
        at
    }

    /// Adds what is allocated from `at` on, and if asked what isn't. Returns how far that goes.
    async fn add_allocated(
        &mut self,
        volume: &RealVolume,
        mut at: u64,
        end: u64,
        with_holes: bool,
    ) -> Result<u64, DvolError> {
        let extents = volume
            .engine
            .allocation(volume.handle, at, end - at, EXTENTS_MAX)
            .await?;
        for extent in extents {
            if self.is_full() {
                break;
            }
            let extent_end = at + extent.len_bytes;
            if extent.allocated {
                at = self.add_data(at, extent_end);
                if at < extent_end {
                    break;
                }
                continue;
            }
            if with_holes {
                self.runs.push((at, extent.len_bytes, false));
            }
            at = extent_end;
        }
        Ok(at)
    }

    /// Adds what changed from `at` on: data, and what was deallocated. Returns how far that goes.
    async fn add_changed(
        &mut self,
        volume: &RealVolume,
        since: Lsn,
        mut at: u64,
        end: u64,
    ) -> Result<u64, DvolError> {
        let extents = volume
            .engine
            .changed_since(volume.handle, since, at, end - at, EXTENTS_MAX)
            .await?;
        for extent in extents {
            let extent_end = at + extent.len_bytes;
            if !extent.changed {
                at = extent_end;
                continue;
            }
            while at < extent_end && !self.is_full() {
                at = self.add_allocated(volume, at, extent_end, true).await?;
            }
            if at < extent_end {
                break;
            }
        }
        Ok(at)
    }

    /// Reads the data.
    async fn read(self, volume: &RealVolume) -> Result<Vec<StreamRun>, DvolError> {
        let reads = self
            .runs
            .into_iter()
            .map(|(offset_bytes, len_bytes, is_data)| async move {
                if !is_data {
                    return Ok(StreamRun::Zeros {
                        offset_bytes,
                        len_bytes,
                    });
                }
                let pieces = volume.read_pieces(offset_bytes, len_bytes as u32).await;
                let pieces = pieces.map_err(|error| engine_error(&error))?;
                let bytes = gathered(pieces, len_bytes as usize);
                Ok(StreamRun::Data {
                    offset_bytes,
                    bytes,
                })
            });
        join_all(reads).await.into_iter().collect()
    }
}

/// In one piece.
fn gathered(pieces: Pieces, len_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len_bytes);
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeros(zeros) => bytes.resize(bytes.len() + zeros as usize, 0),
        }
    }
    bytes
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
