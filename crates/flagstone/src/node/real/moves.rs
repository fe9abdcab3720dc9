//! Moves of volumes as the control side sees them: asked for, watched, ended.

mod waiting;

use flagstone_platform::locks::Mutex;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use flagstone_device::engine::DvolError;
use flagstone_device::transfer::Phase;
use flagstone_platform::Platform;
use flagstone_runtime::Refused;
use flagstone_types::{DeviceId, DvolId};

use super::core::{CoreNode, current};
use super::describe::wall_clock_ns;
use super::errors::{no_room_there, no_such_device, node_error};
use super::moving::left::{CutOff, Interrupted, Waiting};
use super::moving::{Job, Seen, State, Watched};
use super::names::Place;
use super::slo::note_floor;
use super::{RealNode, SEND_PAUSE, SEND_TRIES, Target};
use crate::node::{
    MetricKind, MoveInfo, MovePhase, MovePlace, MoveSpec, MoveState, NamedValue, NodeError,
    NodeErrorKind, Slo, SloPromise,
};
use crate::wait::pause;

/// The last move of each volume.
#[derive(Default)]
pub(super) struct Moves {
    by_id: Mutex<BTreeMap<DvolId, OneMove>>,
    ended: Arc<Mutex<Ended>>,
}

/// Moves that have ended since the start, and what they took.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    /// Not an end: those that went on at the start.
    resumed: u64,
    done: u64,
    cancelled: u64,
    failed: u64,
    copied_bytes: u64,
    held_ns: u64,
}

impl Ended {
    fn count(&mut self, seen: &Seen) {
        match seen.state {
            State::Running | State::Waiting(_) => return,
            State::Done => self.done += 1,
            State::Cancelled => self.cancelled += 1,
            State::Failed(_) | State::Unknown(_) => self.failed += 1,
        }
        self.copied_bytes += seen.copied_bytes;
        self.held_ns += seen.held_ns;
    }

    fn named(&self, running: u64, waiting: u64, held: u64) -> Vec<NamedValue> {
        let value = |name, kind, value, help| NamedValue {
            name,
            help,
            kind,
            value,
        };
        let counter = |name, count: f64, help| value(name, MetricKind::Counter, count, help);
        vec![
            value(
                "moves_running",
                MetricKind::Gauge,
                running as f64,
                "Volumes that are being moved now; moves that wait are not among them.",
            ),
            value(
                "moves_waiting",
                MetricKind::Gauge,
                waiting as f64,
                "Moves that were cut off, and wait: for a device that is not part of the node, or for another node that doesn't answer.",
            ),
            value(
                "moves_held",
                MetricKind::Gauge,
                held as f64,
                "Volumes that nobody serves at the end of a move: the other node doesn't say whose they are (bring it back, or say --stay --force), or that can't be written down (restart this node).",
            ),
            counter(
                "moves_resumed",
                self.resumed as f64,
                "Moves that were cut off when the node ended, and went on at this start.",
            ),
            counter(
                "moves_done",
                self.done as f64,
                "Moves of volumes that were made.",
            ),
            counter(
                "moves_cancelled",
                self.cancelled as f64,
                "Moves that were ended by request.",
            ),
            counter(
                "moves_failed",
                self.failed as f64,
                "Moves that came to nothing, or of which that isn't known.",
            ),
            counter(
                "move_copied_bytes",
                self.copied_bytes as f64,
                "Bytes that moves copied which have ended.",
            ),
            counter(
                "move_held_seconds",
                self.held_ns as f64 / 1e9,
                "For how long changes of volumes waited at the end of their moves.",
            ),
        ]
    }
}

/// The least that a move may be told to copy in a second: one part. Less is a unit that was forgotten.
const LIMIT_LEAST_BYTES: u64 = 64 << 10;

/// What to do where no move is to be looked at or ended.
const WHERE_IT_IS: &str = "`flagstone volume show` says where it is";

/// What to do where no move is to be made faster or slower.
const HOW_IT_BEGINS: &str = "this changes a move that runs; to begin one, say where to: `flagstone volume move NAME --device D`, `--core N` or `--to ADDR:PORT`";

fn check_limit(limit_bytes: Option<u64>, doing: &str) -> Result<(), NodeError> {
    let Some(bytes) = limit_bytes.filter(|bytes| *bytes < LIMIT_LEAST_BYTES) else {
        return Ok(());
    };
    let found = format!(
        "a limit of {bytes} bytes a second, with which it would hardly ever end; expected {LIMIT_LEAST_BYTES} or more"
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("give a number with its unit, such as 100M, or leave it out"))
}

/// Between two looks whether moves have ended.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How often one looks again whether there is room on a device where something is being freed, and the pause before that: some seconds.
const ROOM_LOOKS_MAX: u32 = 60;
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Counts a move that is over.
pub(super) fn count(ended: &Mutex<Ended>, watched: &Watched) {
    let mut counted = ended.lock().unwrap_or_else(PoisonError::into_inner);
    counted.count(&watched.seen());
}

struct OneMove {
    /// As it began.
    info: MoveInfo,
    watched: Arc<Watched>,
}

/// Moves that are remembered; of more, those that are over and began first are forgotten.
const REMEMBERED_MAX: usize = 1024;

impl Moves {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DvolId, OneMove>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As a scrape shows them, with so many that are held since a start.
    pub(super) fn named(
        &self,
        is_there: impl Fn(DvolId) -> bool,
        held_since_start: u64,
    ) -> Vec<NamedValue> {
        let moves = self.lock();
        let running = moves.values().filter(|one| one.watched.seen().is_running());
        let running = running.count() as u64;
        let waiting = moves
            .iter()
            .filter(|(id, one)| one.is_away() || one.is_waiting() && is_there(**id));
        let waiting = waiting.count() as u64;
        let held = moves.values().filter(|one| one.is_served_by_nobody());
        let held = held.count() as u64 + held_since_start;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.named(running, waiting, held)
    }

    /// The move of a volume that isn't over.
    pub(super) fn not_over(&self, id: DvolId) -> Option<MoveInfo> {
        let moves = self.lock();
        let info = moves.get(&id)?.now();
        info.state.is_not_over().then_some(info)
    }

    /// Waits until none within the node runs, but no longer than this. They see by themselves that the node stops, and write down how far they are:
    /// with the engines that would be too late.
    pub(super) async fn let_end(&self, at_most: Duration) {
        let ended = async {
            while self.any_runs_here() {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        };
        if tokio::time::timeout(at_most, ended).await.is_err() {
            tracing::warn!(
                "a move has not come to a stop: the next start goes on with it further back"
            );
        }
    }

    fn any_runs_here(&self) -> bool {
        let moves = self.lock();
        let mut running = moves
            .values()
            .filter(|one| one.watched.seen().state == State::Running);
        running.any(|one| one.info.to.node.is_none())
    }

    /// The last move of a volume, as far as it is remembered.
    pub(super) fn last(&self, id: DvolId) -> Option<MoveInfo> {
        self.lock().get(&id).map(OneMove::now)
    }

    /// One has begun.
    pub(super) fn begun(&self, id: DvolId, info: &MoveInfo, watched: &Arc<Watched>) {
        let one = OneMove {
            info: info.clone(),
            watched: watched.clone(),
        };
        self.put(id, one);
    }

    /// One that was cut off goes on.
    pub(super) fn resumed(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.resumed += 1;
    }

    /// Those that have ended.
    pub(super) fn ended(&self) -> Arc<Mutex<Ended>> {
        self.ended.clone()
    }

    /// The last move of a volume that is another node's now, by the name it had.
    fn of_one_that_went(&self, name: &str) -> Option<DvolId> {
        let moves = self.lock();
        // It goes from the names a moment before its move is over.
        let went = moves
            .iter()
            .filter(|(_, one)| one.info.to.node.is_some() && one.info.volume == name);
        went.max_by_key(|(_, one)| one.info.started_ns)
            .map(|(id, _)| *id)
    }

    fn put(&self, id: DvolId, one: OneMove) {
        let mut moves = self.lock();
        moves.insert(id, one);
        while moves.len() > REMEMBERED_MAX {
            let over = moves.iter().filter(|(_, one)| {
                !matches!(one.watched.seen().state, State::Running | State::Waiting(_))
            });
            let Some(oldest) = over
                .min_by_key(|(_, one)| one.info.started_ns)
                .map(|(id, _)| *id)
            else {
                return;
            };
            moves.remove(&oldest);
        }
    }
}

impl OneMove {
    /// It waits for a device.
    fn is_waiting(&self) -> bool {
        matches!(self.watched.seen().state, State::Waiting(_))
    }

    /// The other node doesn't say whose the volume is.
    fn is_held(&self) -> bool {
        self.watched.seen().held.is_some()
    }

    /// Nobody is served, for that or as it can't be written down.
    fn is_served_by_nobody(&self) -> bool {
        self.is_held() || matches!(self.watched.seen().state, State::Unknown(_))
    }

    /// It waits for another node.
    fn is_away(&self) -> bool {
        self.watched.seen().away.is_some()
    }

    fn now(&self) -> MoveInfo {
        let seen = self.watched.seen();
        let (state, error) = match seen.state {
            State::Running if seen.held.is_some() => (MoveState::Held, self.watched.trouble()),
            State::Running if seen.away.is_some() => (MoveState::Waiting, self.watched.trouble()),
            State::Running => (MoveState::Running, self.watched.trouble()),
            State::Waiting(device) => (MoveState::Waiting, Some(waiting::words(device))),
            State::Done => (MoveState::Done, None),
            State::Cancelled => (MoveState::Cancelled, None),
            State::Unknown(error) => {
                let trouble = self.watched.trouble();
                (
                    MoveState::Unknown,
                    Some(trouble.unwrap_or_else(|| words(error))),
                )
            }
            State::Failed(error) => {
                let trouble = self.watched.trouble();
                (
                    MoveState::Failed,
                    Some(trouble.unwrap_or_else(|| words(error))),
                )
            }
        };
        let error_kind = match seen.state {
            State::Failed(error) | State::Unknown(error) => Some(node_error(error, "").kind),
            _ => None,
        };
        let phase = seen.phase.filter(|_| seen.is_running());
        MoveInfo {
            state,
            waits: waiting::shown(&seen, self.info.started_ns),
            phase: phase.map(shown_phase),
            copied_bytes: seen.copied_bytes,
            expected_bytes: seen.expected_bytes,
            slowed_to_bytes: seen.slowed_to,
            held_us: seen.held_ns / 1000,
            limit_bytes: self.watched.limit_bytes(),
            left_s: seen.left_s(),
            error,
            error_kind,
            ..self.info.clone()
        }
    }
}

fn shown_phase(phase: Phase) -> MovePhase {
    match phase {
        Phase::Snapshot { number, of } => MovePhase::Snapshot { number, of },
        Phase::Now => MovePhase::Volume,
        Phase::CatchingUp { round } => MovePhase::CatchingUp { round },
        Phase::Switching => MovePhase::Switching,
    }
}

/// Why a move failed, for people.
fn words(error: DvolError) -> String {
    match error {
        DvolError::NoSpace => "the device that it was to be moved to has no room for it".to_owned(),
        DvolError::TooMany => {
            "the journal that it was to be moved to can have no more volumes or snapshots".to_owned()
        }
        DvolError::AlreadyExists => {
            "there is something of this volume where it was to be moved; restart the node, and see what the log says"
                .to_owned()
        }
        DvolError::HistoryForgotten => {
            "so much of it was deallocated in the last moment that it isn't known what changed; move it again"
                .to_owned()
        }
        DvolError::Corrupt => {
            "a block of it, or of one of its snapshots, can't be read; `flagstone device scrub` says which".to_owned()
        }
        DvolError::StaleEpoch => {
            "it was opened alone while it was moved; move it again".to_owned()
        }
        DvolError::Stopping => {
            "the node stops, or a journal went to another core in this moment".to_owned()
        }
        error => error.to_string(),
    }
}

/// Where a volume is, and what is promised to it.
struct Now {
    place: Place,
    device: usize,
    slo: Slo,
    /// What a copy of it needs, at least, in bytes.
    needed_bytes: u64,
}

impl RealNode {
    pub(super) async fn start_move(
        &self,
        name: String,
        spec: MoveSpec,
    ) -> Result<MoveInfo, NodeError> {
        let doing = format!("moving volume '{name}'");
        check_limit(spec.limit_bytes, &doing)?;
        let target = self.target_to_change(&name, &doing)?;
        self.refuse_striped(&target, &doing)?;
        self.refuse_fork(target.place.id, &doing)?;
        self.refuse_unconfirmed(target.place.id, &doing)?;
        self.refuse_waiting(target.place.id, &doing)?;
        let now = self.now_of(&target, &doing).await?;
        let from = now.place;
        if let Some(arrival) = &spec.arrival {
            return self
                .start_departure(&name, from, now.device, now.slo, &spec, arrival)
                .await;
        }
        let (core, device) = self.place_to_move(from, now.device, &spec, &doing)?;
        let to = self.engine_of(core, device, from, &doing).await?;
        self.check_room(device, now.needed_bytes, &doing).await?;
        if !self.names.begin_moving(from.id) {
            return Err(moving(&doing));
        }
        let settled = async {
            self.check_still_at(from, &doing)?;
            // Looking for room takes a while; from here on it is promised nothing else.
            match self.now_of(&target, &doing).await?.slo == now.slo {
                true => Ok(()),
                false => Err(promised_else(&doing)),
            }
        };
        let settled = settled.await;
        settled.inspect_err(|_| self.names.end_moving(from.id))?;
        let began = self.begin_move(&name, from, to, &now, device, &spec, &doing);
        began.await.inspect_err(|_| self.names.end_moving(from.id))
    }

    /// Refuses a volume, marked as being moved by now, that went to another core before that.
    pub(super) fn check_still_at(&self, from: Place, doing: &str) -> Result<(), NodeError> {
        let now = self.names.place_of(from.id);
        if now.is_some_and(|(_, now)| now == from) {
            return Ok(());
        }
        self.names.end_moving(from.id);
        let found = "it went to another place of the node in this moment";
        Err(NodeError::new(NodeErrorKind::Busy, doing, found).next("try again"))
    }

    /// The device and core that it is to be moved to.
    fn place_to_move(
        &self,
        from: Place,
        on: usize,
        spec: &MoveSpec,
        doing: &str,
    ) -> Result<(usize, usize), NodeError> {
        let device = match &spec.device {
            None => on,
            Some(wanted) => {
                let mut devices = self.devices.iter();
                let found = devices.position(|d| d.name == *wanted || d.id == *wanted);
                found.ok_or_else(|| no_such_device(wanted, doing))?
            }
        };
        let core = match spec.core {
            Some(core) => {
                self.check_serves(core, device, doing)?;
                core as usize
            }
            None if self.serves(from.core, device) => from.core,
            None => self.first_core_of(device, doing)?,
        };
        if (core, device) == (from.core, on) {
            let found = format!(
                "it is on core {core} and device '{}' already",
                self.devices[device].name
            );
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("name another --device or --core"));
        }
        Ok((core, device))
    }

    /// What has to be known of a volume before it is moved.
    async fn now_of(&self, target: &Target, doing: &str) -> Result<Now, NodeError> {
        let (place, name) = (target.place, target.name.clone());
        self.on_volume(target, doing, move |core, dvol| async move {
            let owned = core.engines.get(place.engine).ok_or(DvolError::NotFound)?;
            let core_index = core.index;
            let engine = &owned.engine;
            let copied_bytes = engine.copy_bytes_of(dvol)?;
            let reserved_bytes = engine
                .dvol_with(dvol.id, &name)
                .map_or(0, |info| info.reserved_bytes);
            Ok(Now {
                place: Place {
                    core: core_index,
                    ..place
                },
                device: owned.device,
                slo: core.slo_of(dvol.id),
                needed_bytes: copied_bytes.max(reserved_bytes),
            })
        })
        .await
    }

    /// Refuses what surely has no room there. What is written meanwhile comes on top, and what others write there: so it may still fail later.
    async fn check_room(
        &self,
        device: usize,
        needed_bytes: u64,
        doing: &str,
    ) -> Result<(), NodeError> {
        let mut free_bytes = 0;
        for look in 0.. {
            // Of the device: one journal doesn't know what others have set aside where.
            let found = self.device_info(device).await?;
            if needed_bytes <= found.free_bytes {
                return Ok(());
            }
            // Looking costs some blocks itself, which come back.
            free_bytes = found.free_bytes.max(free_bytes);
            if look == ROOM_LOOKS_MAX || !self.gain_room(device, look, doing).await? {
                return Err(no_room_there(needed_bytes, free_bytes, &found.name, doing));
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        Ok(())
    }

    /// Has what was deleted on a device a moment ago become free. False: nothing more comes of it.
    async fn gain_room(&self, device: usize, look: u32, doing: &str) -> Result<bool, NodeError> {
        let mut has_gained = false;
        for core in 0..self.remotes.len() {
            let gained = self.on_core(core, doing, move |core| async move {
                let mut has_gained = false;
                for (_, owned) in core.engines.of(device) {
                    // By turns a flush, a checkpoint, and a wait: what is reaped meanwhile needs one more of each.
                    let gained = owned.engine.gain_room(look as usize % 3).await;
                    has_gained |= gained.unwrap_or(false);
                }
                has_gained
            });
            has_gained |= gained.await?;
        }
        Ok(has_gained)
    }

    /// The place on a core for volumes of a device.
    async fn engine_of(
        &self,
        core: usize,
        device: usize,
        from: Place,
        doing: &str,
    ) -> Result<Place, NodeError> {
        let engine = self
            .on_core(core, doing, move |core| async move {
                core.engines.first_of(device)
            })
            .await?;
        let engine = engine.ok_or_else(|| {
            let found = format!(
                "core {core} serves no journal of device '{}' just now that takes new volumes",
                self.devices[device].name
            );
            NodeError::new(NodeErrorKind::Busy, doing, found).next("try again")
        })?;
        Ok(Place {
            core,
            engine,
            id: from.id,
        })
    }

    #[allow(clippy::too_many_arguments)] // What was found out, each thing once.
    async fn begin_move(
        &self,
        name: &str,
        from: Place,
        to: Place,
        now: &Now,
        device: usize,
        spec: &MoveSpec,
        doing: &str,
    ) -> Result<MoveInfo, NodeError> {
        let to_device = self.device_id(to, doing).await?;
        // What it is promised counts at its new place from now on, and at the old one again if it stays.
        if device != now.device {
            let mut floors = self.floors.lock().await;
            self.admit(&floors, device, None, &now.slo, spec.oversubscribe, doing)?;
            note_floor(&mut floors, from.id, device, &now.slo);
        }
        let info = MoveInfo {
            limit_bytes: spec.limit_bytes,
            ..self.move_info(name, (now.device, from), (device, to))
        };
        let watched = Watched::new(spec.limit_bytes);
        let job = Job {
            name: name.to_owned(),
            from,
            to,
            to_device,
            slo: now.slo,
            left: None,
            watched: watched.clone(),
        };
        let run = self.run(job, now.device, device);
        let sent = self
            .on_core(from.core, doing, move |core| async move { run(&core) })
            .await;
        if let Err(error) = sent {
            if device != now.device {
                let mut floors = self.floors.lock().await;
                note_floor(&mut floors, from.id, now.device, &now.slo);
            }
            return Err(error);
        }
        self.moves.begun(from.id, &info, &watched);
        Ok(info)
    }

    /// What the core of a volume does to move it from one device to another, and to count that.
    fn run(
        &self,
        job: Job,
        was_on: usize,
        device: usize,
    ) -> impl FnOnce(&Rc<CoreNode>) + Send + 'static {
        let (ended, floors) = (self.moves.ended(), self.floors.clone());
        move |core| {
            let (core, platform) = (core.clone(), core.platform.clone());
            platform.spawn(async move {
                let (id, slo, watched) = (job.from.id, job.slo, job.watched.clone());
                let is_promised = matches!(slo.promise, SloPromise::Floor(_)) && device != was_on;
                if job.left.is_some() && is_promised {
                    note_floor(&mut *floors.lock().await, id, device, &slo);
                }
                let state = core.clone().move_volume(job).await;
                count(&ended, &watched);
                if state != State::Done && device != was_on {
                    // What it is promised now: a change of that may have been under way when it began, and be why it came to nothing.
                    note_floor(&mut *floors.lock().await, id, was_on, &core.slo_of(id));
                }
            });
        }
    }

    /// Goes on with the moves that were cut off when the node ended, and tells of those that wait.
    pub(super) fn go_on_moving(&self, cut_off: CutOff) {
        let on = |id: u128| {
            let mut ids = self.devices.iter().map(|device| &device.id);
            ids.position(|device| *device == DeviceId(id).to_string())
        };
        for one in cut_off.waiting {
            self.wait_for_device(on(one.from_device), one);
        }
        for one in cut_off.interrupted {
            self.go_on(on(one.from_device), on(one.to_device), one);
        }
        for one in cut_off.departing {
            self.go_on_departing(on(one.from_device), one);
        }
    }

    fn go_on(&self, was_on: Option<usize>, device: Option<usize>, one: Interrupted) {
        let (Some(was_on), Some(device)) = (was_on, device) else {
            self.names.end_moving(one.from.id);
            return;
        };
        let watched = Watched::new(one.limit_bytes);
        watched.had(one.copied_bytes);
        let info = self.move_info(&one.name, (was_on, one.from), (device, one.to));
        let (id, core) = (one.from.id, one.from.core);
        let job = Job {
            name: one.name,
            from: one.from,
            to: one.to,
            to_device: one.to_device,
            slo: one.slo,
            left: Some(one.left),
            watched: watched.clone(),
        };
        self.moves.begun(id, &info, &watched);
        self.moves.resumed();
        let run = self.run(job, was_on, device);
        self.have_go_on(core, id, &info.volume, &watched, run);
    }

    /// Has a core go on with a move.
    pub(super) fn have_go_on(
        &self,
        core: usize,
        id: DvolId,
        volume: &str,
        watched: &Watched,
        run: impl FnOnce(&Rc<CoreNode>) + Send + 'static,
    ) {
        if let Err(refused) = self.send(core, run) {
            tracing::warn!(
                volume,
                "going on with its move: {refused}; the next start tries again"
            );
            watched.set_trouble(Some(format!(
                "its core could not be asked to go on with it ({refused}): the next start tries again"
            )));
            watched.end(State::Failed(DvolError::Stopping));
            count(&self.moves.ended, watched);
            self.names.end_moving(id);
        }
    }

    /// Has a core do something, from the thread that starts the node.
    pub(super) fn send(
        &self,
        core: usize,
        work: impl FnOnce(&Rc<CoreNode>) + Send + 'static,
    ) -> Result<(), Refused> {
        let mut message: flagstone_runtime::Message = Box::new(move |_| {
            if let Some(core) = current() {
                work(&core);
            }
        });
        for _ in 0..SEND_TRIES {
            match self.remotes[core].try_send(message) {
                Err(Refused::Full(back)) => message = back,
                sent => return sent,
            }
            pause(SEND_PAUSE);
        }
        Err(Refused::Full(message))
    }

    /// A move that begins now.
    pub(super) fn move_info(
        &self,
        name: &str,
        from: (usize, Place),
        to: (usize, Place),
    ) -> MoveInfo {
        let place = |(device, place): (usize, Place)| MovePlace {
            device: self.devices[device].name.clone(),
            core: u32::try_from(place.core).unwrap_or(u32::MAX),
            node: None,
        };
        MoveInfo::that_begins(name, place(from), place(to), wall_clock_ns())
    }

    /// The id of the device at a place.
    async fn device_id(&self, at: Place, doing: &str) -> Result<u128, NodeError> {
        let found = self
            .on_core(at.core, doing, move |core| async move {
                let owned = core.engines.get(at.engine)?;
                Some(owned.engine.superblock().device_id.0)
            })
            .await?;
        found.ok_or_else(|| NodeError::new(NodeErrorKind::Internal, doing, "the device is gone"))
    }

    /// Refuses a volume that is being moved.
    pub(super) fn refuse_moving(&self, target: &Target, doing: &str) -> Result<(), NodeError> {
        match self.names.is_moving(target.place.id) {
            true => Err(moving(doing)),
            false => Ok(()),
        }
    }

    /// The metrics of moves.
    pub(super) fn move_metrics(&self) -> Vec<NamedValue> {
        let is_there = |id| self.names.place_of(id).is_some();
        self.moves.named(is_there, self.between.held_since_start())
    }

    pub(super) fn move_of(&self, name: &str) -> Result<MoveInfo, NodeError> {
        let doing = format!("looking at the move of volume '{name}'");
        let shown = self.with_move(name, &doing, WHERE_IT_IS, OneMove::now);
        // One that is here comes before one that went.
        match self.target(name, &doing) {
            Ok(_) => shown,
            Err(_) => shown.or_else(|error| self.one_that_went(name).ok_or(error)),
        }
    }

    pub(super) async fn end_move(&self, name: &str) -> Result<MoveInfo, NodeError> {
        let doing = format!("ending the move of volume '{name}'");
        match self.target(name, &doing) {
            Ok(target) if self.moves.waits(target.place.id).is_some() => {
                self.end_waiting(name, &doing).await?;
            }
            Ok(_) => {}
            Err(_) => {
                if let Some(ended) = self.end_arrival(name, &doing).await? {
                    return Ok(ended);
                }
                if self.target(name, &doing).is_ok() {
                    let found = "it has come in this moment";
                    return Err(NodeError::new(NodeErrorKind::Busy, doing, found)
                        .next("look at it: `flagstone volume show NAME`"));
                }
            }
        }
        self.with_move(name, &doing, WHERE_IT_IS, |one| {
            if one.is_held() {
                let found = one.watched.trouble().unwrap_or_default();
                return Err(NodeError::new(NodeErrorKind::Busy, &doing, found).next(format!(
                    "bring that node back: then the volume is where it says. If it never comes back: `flagstone volume move {name} --stay --force`"
                )));
            }
            one.watched.cancel();
            Ok(one.now())
        })?
    }

    /// Has a move that runs keep to another limit.
    pub(super) fn change_move_limit(
        &self,
        name: &str,
        limit_bytes: Option<u64>,
    ) -> Result<MoveInfo, NodeError> {
        let doing = format!("changing the limit of the move of volume '{name}'");
        check_limit(limit_bytes, &doing)?;
        self.with_move(name, &doing, HOW_IT_BEGINS, |one| {
            match one.watched.seen().state {
                State::Running => {
                    one.watched.limit(limit_bytes);
                    Ok(one.now())
                }
                State::Waiting(device) => {
                    let found = waiting::words(device);
                    Err(NodeError::new(NodeErrorKind::Busy, &doing, found)
                        .next("give it a limit once it goes on"))
                }
                _ => {
                    let found = "its move is over";
                    Err(NodeError::new(NodeErrorKind::NotFound, &doing, found).next(HOW_IT_BEGINS))
                }
            }
        })?
    }

    fn with_move<R>(
        &self,
        name: &str,
        doing: &str,
        next: &str,
        look: impl FnOnce(&OneMove) -> R,
    ) -> Result<R, NodeError> {
        let id = match self.target(name, doing) {
            Ok(target) => target.place.id,
            Err(error) => self.moves.of_one_that_went(name).ok_or(error)?,
        };
        let moves = self.moves.lock();
        moves.get(&id).map(look).ok_or_else(|| {
            let found = "it was not moved since the node was started";
            NodeError::new(NodeErrorKind::NotFound, doing, found).next(next)
        })
    }
}

/// Refuses to move what would be scheduled there by what it was promised before.
fn promised_else(doing: &str) -> NodeError {
    let found = "what it is promised was changed just now";
    NodeError::new(NodeErrorKind::Busy, doing, found).next("move it again")
}

/// Refuses what can't be done with a volume that is being moved.
pub(super) fn moving(doing: &str) -> NodeError {
    NodeError::new(NodeErrorKind::Busy, doing, "it, or the journal that it is in, is being moved").next(
        "try again; if it is being copied (`flagstone volume move NAME --status`), wait until that is over, or end it (`--cancel`): \
         meanwhile only its content may change",
    )
}
