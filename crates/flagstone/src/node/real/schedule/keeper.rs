//! One look at one volume: takes what is due, deletes what no rule keeps.
//!
//! What was done last is seen from the snapshots that are there and is written nowhere else, so a crash at any moment
//! leaves nothing that the next look doesn't put right. Over any platform, so that the simulator crashes it.

use flagstone_device::engine::{DvolError, Engine, Handle, LayerInfo};
use flagstone_platform::Platform;
use flagstone_platform::record::NodeMark;

use super::rules::{self, Taken};
use crate::name::is_of_schedule;
use crate::node::SnapshotSchedule;
use crate::node::real::attributes::VolumeAttributes;

/// What the node knows of a volume and the engine doesn't.
pub(super) trait Surroundings {
    /// Held while a snapshot is deleted.
    type Going;

    /// Whether a stream is being received into the volume.
    fn is_closed(&self) -> bool;

    /// Something happens to a snapshot, or has happened.
    fn mark(&self, mark: NodeMark, snapshot: &str);

    /// Right before a snapshot is deleted. `None` if it is being sent: it stays until the next look.
    fn begin_deleting(&self, layer: Handle) -> Option<Self::Going>;
}

/// What a look has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Looked {
    /// When the snapshot was taken that was due, in nanoseconds since 1970.
    pub(super) taken_ns: Option<u64>,
    /// Snapshots that were deleted.
    pub(super) deleted: u64,
    /// The snapshot that was due could not be taken.
    pub(super) not_taken: Option<DvolError>,
    /// Snapshots could not be deleted; the first reason.
    pub(super) not_deleted: Option<DvolError>,
    /// How many are still being sent.
    pub(super) held: u64,
    /// When the newest of the schedule's snapshots was taken.
    pub(super) last_ns: Option<u64>,
    /// When the next is due, in nanoseconds since 1970.
    pub(super) next_ns: u64,
}

/// A volume's snapshots that its schedule took: it has given their names, and none was received.
fn own<P: Platform>(engine: &Engine<P>, dvol: Handle) -> Vec<LayerInfo> {
    let is_received = |layer: &LayerInfo| {
        let attributes = VolumeAttributes::decode(&layer.attributes);
        attributes.content.is_some()
    };
    let mut layers = engine.layers(dvol.id);
    layers.retain(|layer| is_of_schedule(&layer.name) && !is_received(layer));
    layers
}

fn as_taken(layers: &[LayerInfo]) -> Vec<Taken> {
    let taken = layers.iter().filter_map(|layer| {
        Some(Taken {
            layer: layer.handle.layer?,
            taken_ns: layer.created_ns,
        })
    });
    taken.collect()
}

/// When the last was taken, if any was, and when the next is due.
pub(super) fn times<P: Platform>(
    engine: &Engine<P>,
    dvol: Handle,
    schedule: &SnapshotSchedule,
    now_ns: u64,
) -> (Option<u64>, u64) {
    let newest = rules::newest(&as_taken(&own(engine, dvol)));
    let next_ns = rules::next_due_ns(schedule, dvol.id, newest, now_ns);
    (newest.map(|one| one.taken_ns), next_ns)
}

/// Looks at a volume. What can't be taken keeps nothing from being deleted that the rules don't keep: on a full device
/// that is what makes room.
pub(super) async fn look<P: Platform>(
    platform: &P,
    engine: &Engine<P>,
    dvol: Handle,
    schedule: &SnapshotSchedule,
    around: &impl Surroundings,
) -> Looked {
    let mut looked = Looked::default();
    let now_ns = platform.wall_clock_ns();
    let (_, due_ns) = times(engine, dvol, schedule, now_ns);
    if due_ns <= now_ns {
        match take(engine, dvol, now_ns, around).await {
            Ok(()) => looked.taken_ns = Some(now_ns),
            Err(error) => looked.not_taken = Some(error),
        }
    }
    if !around.is_closed() {
        delete(engine, dvol, schedule, now_ns, around, &mut looked).await;
    }
    (looked.last_ns, looked.next_ns) = times(engine, dvol, schedule, platform.wall_clock_ns());
    looked
}

async fn take<P: Platform>(
    engine: &Engine<P>,
    dvol: Handle,
    now_ns: u64,
    around: &impl Surroundings,
) -> Result<(), DvolError> {
    if around.is_closed() {
        return Err(DvolError::Busy);
    }
    let name = rules::name_at(now_ns);
    around.mark(NodeMark::SnapshotBegan, &name);
    engine.snapshot(&[(dvol, name.clone())]).await?;
    around.mark(NodeMark::SnapshotTaken, &name);
    Ok(())
}

async fn delete<P: Platform>(
    engine: &Engine<P>,
    dvol: Handle,
    schedule: &SnapshotSchedule,
    now_ns: u64,
    around: &impl Surroundings,
    looked: &mut Looked,
) {
    let layers = own(engine, dvol);
    let gone = rules::gone(schedule, &as_taken(&layers), now_ns);
    for one in gone {
        let found = layers
            .iter()
            .find(|info| info.handle.layer == Some(one.layer));
        let Some(layer) = found else { continue };
        // A move may have begun since the last one.
        if around.is_closed() {
            return;
        }
        // Somebody may have renamed it since, to keep it; or deleted it.
        let is_same = |now: LayerInfo| now.handle == layer.handle;
        if !engine.layer(dvol.id, &layer.name).is_some_and(is_same) {
            continue;
        }
        let Some(_going) = around.begin_deleting(layer.handle) else {
            looked.held += 1;
            continue;
        };
        around.mark(NodeMark::SnapshotGoing, &layer.name);
        match engine.delete_layer(layer.handle).await {
            Ok(()) => {
                around.mark(NodeMark::SnapshotGone, &layer.name);
                looked.deleted += 1;
            }
            Err(DvolError::NotFound) => {}
            Err(error) => {
                looked.not_deleted.get_or_insert(error);
            }
        }
    }
}
