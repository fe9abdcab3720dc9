//! What moves of volumes have left when the node ended, settled at its start: which volumes there are is known only once
//! all devices are open.

use std::collections::BTreeMap;

use flagstone_device::engine::{DvolError, Handle};
use flagstone_device::transfer::{Found, Mark, Marks, Verdict, settle};
use flagstone_runtime::Runtime;
use flagstone_types::DvolId;

use super::VolumeMarks;
use crate::node::real::attributes::StripePart;
use crate::node::real::between::record::MoveRecord;
use crate::node::real::core::{CoreNode, current};
use crate::node::real::names::Place;
use crate::node::real::opening::Part;
use crate::node::real::start::wait_for;
use crate::node::{NodeError, Slo, SnapshotSchedule};

/// A dvol that may be a volume.
pub(in crate::node::real) struct FoundVolume {
    pub(in crate::node::real) name: String,
    pub(in crate::node::real) handle: Handle,
    pub(in crate::node::real) place: Place,
    pub(in crate::node::real) slo: Slo,
    pub(in crate::node::real) snapshots: Option<SnapshotSchedule>,
    /// Of a copy that a move has left: how many bytes that copies in a second, at most, and how many it has copied.
    pub(in crate::node::real) limit_bytes: Option<u64>,
    pub(in crate::node::real) copied_bytes: u64,
    /// It is being moved to another node, which is written down like this.
    pub(in crate::node::real) goes_on: Option<MoveRecord>,
    /// If it is a member of a striped volume: which.
    pub(in crate::node::real) stripe: Option<StripePart>,
    pub(in crate::node::real) found: Found,
}

/// A move that goes on.
pub(in crate::node::real) struct Interrupted {
    /// Of this volume.
    pub(in crate::node::real) name: String,
    pub(in crate::node::real) slo: Slo,
    pub(in crate::node::real) from: Place,
    /// The ids of the devices.
    pub(in crate::node::real) from_device: u128,
    pub(in crate::node::real) to_device: u128,
    pub(in crate::node::real) to: Place,
    /// What there is of it there.
    pub(in crate::node::real) left: Handle,
    pub(in crate::node::real) limit_bytes: Option<u64>,
    pub(in crate::node::real) copied_bytes: u64,
}

/// A move that would go on if its device were here.
pub(in crate::node::real) struct Waiting {
    /// Of this volume.
    pub(in crate::node::real) name: String,
    pub(in crate::node::real) at: Place,
    /// The ids of the devices.
    pub(in crate::node::real) from_device: u128,
    pub(in crate::node::real) to_device: u128,
}

/// A move to another node that goes on.
pub(in crate::node::real) struct Departing {
    /// Of this volume.
    pub(in crate::node::real) name: String,
    pub(in crate::node::real) slo: Slo,
    pub(in crate::node::real) from: Place,
    /// The id of the device that it is on.
    pub(in crate::node::real) from_device: u128,
    /// What is written down of it.
    pub(in crate::node::real) record: MoveRecord,
}

/// Moves that were cut off when the node ended.
#[derive(Default)]
pub(in crate::node::real) struct CutOff {
    /// Those that go on: their volumes are marked as being moved.
    pub(in crate::node::real) interrupted: Vec<Interrupted>,
    pub(in crate::node::real) waiting: Vec<Waiting>,
    /// Those to other nodes. Their volumes are marked, too.
    pub(in crate::node::real) departing: Vec<Departing>,
}

/// Puts the volumes that were found into the node's names, each once. Returns the moves that aren't over.
pub(in crate::node::real) fn settle_moves(
    runtime: &Runtime,
    part: &Part,
    volumes: Vec<FoundVolume>,
) -> Result<CutOff, NodeError> {
    let mut by_id: BTreeMap<DvolId, Vec<FoundVolume>> = BTreeMap::new();
    for volume in volumes {
        by_id.entry(volume.place.id).or_default().push(volume);
    }
    let is_here = |device: u128| {
        let mut devices = part.prepared.iter();
        devices.any(|found| found.superblock.device_id.0 == device)
    };
    let mut cut_off = CutOff::default();
    for found in by_id.into_values() {
        if let [one] = &found[..]
            && one.found.mark == Mark::Plain
        {
            serve(part, one);
            depart(part, one, &mut cut_off);
            continue;
        }
        let states: Vec<Found> = found.iter().map(|volume| volume.found).collect();
        let verdicts = settle(&states, is_here);
        let verdicts = found.iter().zip(verdicts).collect();
        settle_one(runtime, part, verdicts, &mut cut_off)?;
    }
    Ok(cut_off)
}

/// Does what is to be done with the dvols of one id.
fn settle_one(
    runtime: &Runtime,
    part: &Part,
    mut verdicts: Vec<(&FoundVolume, Verdict)>,
    cut_off: &mut CutOff,
) -> Result<(), NodeError> {
    // Those that are served last: what is on their cores under this id is theirs.
    verdicts.sort_by_key(|(_, verdict)| {
        !matches!(verdict, Verdict::Resume | Verdict::Delete | Verdict::Close)
    });
    let mut are_deleted = true;
    let mut copy = None;
    for (volume, verdict) in verdicts {
        match verdict {
            Verdict::Resume => {
                forget_beside(runtime, volume)?;
                copy = Some(volume);
            }
            Verdict::Delete => are_deleted &= delete(runtime, volume)?,
            Verdict::Close => close(runtime, volume)?,
            Verdict::Serve => {
                serve(part, volume);
                depart(part, volume, cut_off);
                on_its_core(runtime, volume, Marked::AsItIs)?;
            }
            Verdict::Unmark => {
                serve(part, volume);
                // As long as there is another one that may have arrived, the mark says which of them it is.
                let is_going = matches!(volume.found.mark, Mark::Going(_));
                let marked = match are_deleted || is_going {
                    true => Marked::Plain,
                    false => Marked::AsItIs,
                };
                on_its_core(runtime, volume, marked)?;
            }
            Verdict::Wait(to_device) => {
                serve(part, volume);
                on_its_core(runtime, volume, Marked::AsItIs)?;
                cut_off.waiting.push(Waiting {
                    name: volume.name.clone(),
                    at: volume.place,
                    from_device: volume.found.device,
                    to_device,
                });
            }
            Verdict::Origin => {
                serve(part, volume);
                on_its_core(runtime, volume, Marked::Going)?;
                if let Some(copy) = copy.filter(|_| part.names.begin_moving(volume.place.id)) {
                    cut_off.interrupted.push(interrupted(volume, copy));
                }
            }
        }
    }
    Ok(())
}

fn interrupted(origin: &FoundVolume, copy: &FoundVolume) -> Interrupted {
    Interrupted {
        name: origin.name.clone(),
        slo: origin.slo,
        from: origin.place,
        from_device: origin.found.device,
        to_device: copy.found.device,
        to: copy.place,
        left: copy.handle,
        limit_bytes: copy.limit_bytes,
        copied_bytes: copy.copied_bytes,
    }
}

/// Its move to another node goes on, if one was under way.
fn depart(part: &Part, volume: &FoundVolume, cut_off: &mut CutOff) {
    let record = volume.goes_on.clone();
    if let Some(record) = record.filter(|_| part.names.begin_moving(volume.place.id)) {
        cut_off.departing.push(Departing {
            name: volume.name.clone(),
            slo: volume.slo,
            from: volume.place,
            from_device: volume.found.device,
            record,
        });
    }
}

fn serve(part: &Part, volume: &FoundVolume) {
    if let Some(id) = part.names.insert_found(&volume.name, volume.place) {
        tracing::error!(
            name = volume.name,
            "two volumes have this name; one of them is served as '{id}': rename or delete it"
        );
    }
}

fn close(runtime: &Runtime, volume: &FoundVolume) -> Result<(), NodeError> {
    let id = volume.place.id;
    let work = async move |core: std::rc::Rc<CoreNode>| {
        core.schedules.forget(id);
        Ok(())
    };
    let _ = ask(runtime, volume.place, work, "closing a volume")?;
    let device = volume.found.device;
    match volume.found.mark {
        Mark::Leaving(to) => tracing::error!(
            volume = volume.name,
            "it was being moved from device {device:032x} to device {to:032x}, which is not here, and may be there: it is \
             not served. Start the node with that device, too"
        ),
        _ => tracing::error!(
            volume = volume.name,
            "the same volume is on another device, too, and was used there later: it is not served from device \
             {device:032x}. One of the two is a copy that was made by other means"
        ),
    }
    Ok(())
}

/// How a volume that is served is to be marked.
#[derive(Clone, Copy)]
enum Marked {
    AsItIs,
    Plain,
    /// As one whose move goes on.
    Going,
}

/// What has to be put right on the core of a volume that is served.
fn on_its_core(runtime: &Runtime, volume: &FoundVolume, marked: Marked) -> Result<(), NodeError> {
    let (place, handle, slo) = (volume.place, volume.handle, volume.slo);
    let (snapshots, mark) = (volume.snapshots, volume.found.mark);
    let work = async move |core: std::rc::Rc<CoreNode>| {
        let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
        let before = engine.attributes_of(handle)?;
        let after = match (marked, mark) {
            (Marked::Plain, _) => VolumeMarks.plain(&before),
            (Marked::Going, Mark::Leaving(to)) => VolumeMarks.going(&before, to),
            (Marked::Going | Marked::AsItIs, _) => before,
        };
        core.set_slo(place.id, &slo);
        core.schedules.set(place.engine, handle, snapshots);
        // Others may have been read behind them.
        if let Some(owned) = core.engines.get(place.engine) {
            let store = &owned.tokens;
            core.access.reload(store, place.id).await;
        }
        // Last: it is served in either case, and may need nothing of that less if this fails.
        match after == before {
            true => Ok(()),
            false => engine.set_attributes(handle, after).await,
        }
    };
    let done = ask(
        runtime,
        place,
        work,
        "settling what a move of a volume has left",
    )?;
    if let Err(error) = done {
        // The next start finds the same.
        let volume = &volume.name;
        match marked {
            Marked::Going => tracing::warn!(volume, "marking it as being moved: {error}"),
            _ => tracing::warn!(volume, "taking the mark of its move away: {error}"),
        }
    }
    Ok(())
}

/// What else may be beside a copy that isn't a volume yet.
fn forget_beside(runtime: &Runtime, volume: &FoundVolume) -> Result<(), NodeError> {
    let place = volume.place;
    let work = async move |core: std::rc::Rc<CoreNode>| {
        core.schedules.forget(place.id);
        if let Some(owned) = core.engines.get(place.engine) {
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.forget(place.id).await?;
        }
        Ok(())
    };
    let doing = "settling what a move of a volume has left";
    if let Err(error) = ask(runtime, place, work, doing)? {
        // They are written once more when it arrives.
        tracing::warn!(
            volume = volume.name,
            "forgetting the tokens beside its copy: {error}"
        );
    }
    Ok(())
}

/// A copy that nobody needs. Returns whether it is gone.
fn delete(runtime: &Runtime, volume: &FoundVolume) -> Result<bool, NodeError> {
    let (place, handle) = (volume.place, volume.handle);
    let work = async move |core: std::rc::Rc<CoreNode>| {
        let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
        core.schedules.forget(place.id);
        engine.delete(handle, true).await?;
        if let Some(owned) = core.engines.get(place.engine) {
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.forget(place.id).await?;
        }
        Ok(())
    };
    let name = &volume.name;
    let done = ask(
        runtime,
        place,
        work,
        "deleting what a move of a volume has left",
    )?;
    match &done {
        Ok(()) if volume.found.mark == Mark::ArrivingAt => tracing::warn!(
            volume = name,
            "part of a copy of it was here, and is deleted: its move was ended, or the volume isn't as it was when that began, or its own device isn't \
             here. Nothing of the volume itself was deleted"
        ),
        Ok(()) => tracing::info!(
            volume = name,
            "it was being moved when the node ended; the copy that is not needed is deleted"
        ),
        Err(error) => tracing::warn!(
            volume = name,
            "it was being moved when the node ended; the copy that is not needed can't be deleted: {error}; the next \
             start tries again"
        ),
    }
    Ok(done.is_ok())
}

/// Has the core of a volume do something, before the node serves anybody.
pub(in crate::node::real) fn ask<R, F>(
    runtime: &Runtime,
    place: Place,
    work: impl FnOnce(std::rc::Rc<CoreNode>) -> F + Send + 'static,
    doing: &str,
) -> Result<Result<R, DvolError>, NodeError>
where
    R: Send + 'static,
    F: Future<Output = Result<R, DvolError>> + 'static,
{
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let core = &runtime.cores()[place.core];
    let sent = core.remote().call_then(
        move |_| async move {
            match current() {
                Some(core) => work(core).await,
                None => Err(DvolError::Stopping),
            }
        },
        move |result| {
            // Nobody waits once the node has given up.
            let _ = sender.send(result);
        },
    );
    wait_for(sent.map(|()| receiver), doing)
}
