//! Moving volumes to other devices and cores of the node while they are used.
//!
//! What happens and in which order is in `flagstone_device::transfer`; here is who does it. A task on the core that has
//! the volume copies it; the core that is to have it writes what it is sent. Clients go on at the end of a move as
//! `onward.rs` says. What a crash leaves is settled when the node starts, once all devices are open; a copy that was cut off goes on then.
//! [decibel 4.4: migration]

mod away;
pub(super) mod copier;
pub(super) mod left;
mod slow;
mod speed;
mod stay;
mod there;

use flagstone_platform::locks::Mutex;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use flagstone_device::engine::{Attributes, DvolError, Handle};
use flagstone_device::transfer::{
    Content, DvolOrigin, Marks, Origin, Part, Phase, Point, Progress, What, move_dvol,
};
use flagstone_platform::{Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_sched::{Tenant, Want};
use flagstone_types::{Epoch, LayerNo, Lsn};

use super::attributes::{OnlyMoved, Receiving, VolumeAttributes};
use super::core::CoreNode;
use super::names::Place;
use super::notes::VolumeNotes;
use super::onward::Gone;
use super::receive::quiesce;
use away::Away;
use copier::InTurns;
use slow::Slowing;
use speed::Speed;
use stay::Stayed;
use there::{There, WithTokens, throw_away};

use crate::node::{MovePoint, Slo, SloLimit, SloPromise};
pub(super) use copier::{Copier, Haste};
pub(super) use there::{Arriving, POINT_AFTER_BYTES};

/// How often another core is asked that is behind, and the pause before it is asked again.
const TRIES_MAX: u32 = 5000;
const PAUSE_NS: u64 = 2_000_000;

/// How often a move that keeps to a limit looks whether it is still wanted.
const LOOK_NS: u64 = 100_000_000;

/// How a volume says in its attributes that it is being moved.
#[derive(Clone, Copy)]
pub(super) struct VolumeMarks;

/// Refuses a volume of which there may be a copy that has arrived, and whose mark is all that says that the copy is void.
/// With another mark in its place, and a further copy, the next start couldn't tell the copies apart.
pub(super) fn refuse_unsettled(attributes: &Attributes) -> Result<(), DvolError> {
    match VolumeAttributes::decode(attributes).receiving {
        Some(Receiving::Stayed(_)) => Err(DvolError::AlreadyExists),
        _ => Ok(()),
    }
}

fn marked(attributes: &Attributes, receiving: Option<Receiving>) -> Attributes {
    let before = VolumeAttributes::decode(attributes);
    let content = match receiving {
        // These lie in the same place.
        Some(Receiving::Going(_) | Receiving::Leaving(_) | Receiving::Stayed(_)) => None,
        _ => before.content,
    };
    let after = VolumeAttributes {
        receiving,
        content,
        ..before
    };
    after.encode()
}

/// What a volume's attributes are behind its move, if it is in this epoch now.
pub(super) fn behind_a_move(attributes: &Attributes, epoch: Epoch) -> Attributes {
    let before = VolumeAttributes::decode(&VolumeMarks.plain(attributes));
    let after = VolumeAttributes {
        moved: Some(OnlyMoved::once_more(before.moved, epoch)),
        ..before
    };
    after.encode()
}

impl Marks for VolumeMarks {
    fn arriving(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, Some(Receiving::New))
    }

    fn arriving_at(&self, point: &Point) -> Attributes {
        arriving_at(point, None)
    }

    fn point_of(&self, attributes: &Attributes) -> Option<Point> {
        match VolumeAttributes::decode(attributes).receiving {
            Some(Receiving::Moved { point, .. }) => Some(point),
            _ => None,
        }
    }

    fn going(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, Some(Receiving::Going(device)))
    }

    fn leaving(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, Some(Receiving::Leaving(device)))
    }

    fn stayed(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, Some(Receiving::Stayed(device)))
    }

    fn plain(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, None)
    }
}

fn arriving_at(point: &Point, limit_bytes: Option<u64>) -> Attributes {
    // What else it has is its origin's to say, when it has arrived.
    let attributes = VolumeAttributes {
        receiving: Some(Receiving::Moved {
            point: *point,
            limit_bytes,
        }),
        ..VolumeAttributes::default()
    };
    attributes.encode()
}

/// The same of a volume whose move is seen there: with the limit that it has by then.
#[derive(Clone)]
pub(super) struct MoveMarks(Arc<Watched>);

impl Marks for MoveMarks {
    fn arriving(&self, attributes: &Attributes) -> Attributes {
        VolumeMarks.arriving(attributes)
    }

    fn arriving_at(&self, point: &Point) -> Attributes {
        arriving_at(point, self.0.limit_bytes())
    }

    fn point_of(&self, attributes: &Attributes) -> Option<Point> {
        VolumeMarks.point_of(attributes)
    }

    fn going(&self, attributes: &Attributes, device: u128) -> Attributes {
        VolumeMarks.going(attributes, device)
    }

    fn leaving(&self, attributes: &Attributes, device: u128) -> Attributes {
        VolumeMarks.leaving(attributes, device)
    }

    fn stayed(&self, attributes: &Attributes, device: u128) -> Attributes {
        VolumeMarks.stayed(attributes, device)
    }

    fn plain(&self, attributes: &Attributes) -> Attributes {
        VolumeMarks.plain(attributes)
    }
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Running,
    /// For the device with this id, which isn't here.
    Waiting(u128),
    Done,
    Cancelled,
    Failed(DvolError),
    /// Whether the volume has gone isn't known.
    Unknown(DvolError),
}

/// What of a move can be seen from outside.
pub(super) struct Watched {
    progress: Mutex<Seen>,
    trouble: Mutex<Option<String>>,
    cancelled: AtomicBool,
    /// Bytes to be copied in a second, at most; 0: as many as others leave.
    limit_bytes: AtomicU64,
}

/// How far a move is, in numbers.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) state: State,
    pub(super) copied_bytes: u64,
    pub(super) expected_bytes: u64,
    /// For how long changes were held at its end, in nanoseconds.
    pub(super) held_ns: u64,
    /// What it is doing.
    pub(super) phase: Option<Phase>,
    /// How many bytes a second may be written of it, since as much was written as was copied. `None`: as many as its SLO allows.
    pub(super) slowed_to: Option<u64>,
    /// In how many rounds it was copied in a hurry, as they didn't become smaller; `None`: it isn't.
    hurried: Option<u32>,
    /// Bytes that it copies in a second, as far as is known.
    per_s: Option<u64>,
    /// The node that it goes to doesn't answer. `None`: it does, as far as is known.
    pub(super) away: Option<Away>,
    /// Nobody is served, as the node that it goes to doesn't say whose the volume is.
    pub(super) held: Option<Away>,
}

impl Seen {
    /// Whether it isn't over, and waits for nobody.
    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running && self.away.is_none() && self.held.is_none()
    }

    /// In how many seconds it will have copied what it had to when it began, as fast as lately. `None` if that isn't known: it hasn't copied for
    /// long enough, or has copied all that, and what is left is what others write.
    pub(super) fn left_s(&self) -> Option<u64> {
        let left_bytes = self.expected_bytes.checked_sub(self.copied_bytes)?;
        let per_s = self.per_s.filter(|per_s| *per_s > 0)?;
        let copies = matches!(self.phase, Some(Phase::Snapshot { .. } | Phase::Now));
        let is_known = self.is_running() && copies && left_bytes > 0;
        is_known.then(|| left_bytes.div_ceil(per_s))
    }
}

impl Watched {
    /// One that has begun, and copies so many bytes a second at most.
    pub(super) fn new(limit_bytes: Option<u64>) -> Arc<Watched> {
        Watched::that_is(State::Running, limit_bytes)
    }

    /// One that waits for this device.
    pub(super) fn waiting(device: u128) -> Arc<Watched> {
        Watched::that_is(State::Waiting(device), None)
    }

    fn that_is(state: State, limit_bytes: Option<u64>) -> Arc<Watched> {
        Arc::new(Watched {
            progress: Mutex::new(Seen {
                state,
                copied_bytes: 0,
                expected_bytes: 0,
                held_ns: 0,
                phase: None,
                slowed_to: None,
                hurried: None,
                per_s: None,
                away: None,
                held: None,
            }),
            trouble: Mutex::new(None),
            cancelled: AtomicBool::new(false),
            limit_bytes: AtomicU64::new(limit_bytes.unwrap_or(0)),
        })
    }

    /// Bytes to be copied in a second, at most; `None`: as many as others leave.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// Has it keep to another limit, from the next part on.
    pub(super) fn limit(&self, limit_bytes: Option<u64>) {
        let limit = limit_bytes.unwrap_or(0);
        self.limit_bytes.store(limit, Ordering::Relaxed);
        // What it copied by the other one says nothing of what it will.
        self.lock().per_s = None;
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seen(&self) -> Seen {
        *self.lock()
    }

    /// Ends it at the next part, unless it is over by then.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// For how long changes were held, in nanoseconds.
    pub(super) fn held(&self, ns: u64) {
        self.lock().held_ns = ns;
    }

    /// So much had been copied before it went on.
    pub(super) fn had(&self, copied_bytes: u64) {
        self.lock().copied_bytes = copied_bytes;
    }

    /// It is over. Returns how far it was.
    pub(super) fn end(&self, state: State) -> Seen {
        let mut seen = self.lock();
        (seen.slowed_to, seen.hurried) = (None, None);
        (seen.away, seen.held) = (None, None);
        seen.state = state;
        *seen
    }

    /// Why it failed, where an error of the device layer doesn't say it.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// The same.
    pub(super) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone()
    }

    /// Who waits for what it copies, if changes are held or not.
    fn haste(&self, is_held: bool) -> Haste {
        match (is_held, self.seen().hurried) {
            (true, _) => Haste::Held,
            (false, Some(rounds)) => Haste::Hurry(rounds),
            (false, None) => Haste::None,
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// A move that is to be made.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) name: String,
    /// Where it is.
    pub(super) from: Place,
    /// Where it is to be.
    pub(super) to: Place,
    /// The id of the device there.
    pub(super) to_device: u128,
    pub(super) slo: Slo,
    /// A copy of it that was cut off, at that place.
    pub(super) left: Option<Handle>,
    pub(super) watched: Arc<Watched>,
}

/// The origin, with turns at its device.
pub(super) struct Here<'a> {
    origin: &'a DvolOrigin<UringPlatform, VolumeMarks>,
    copier: Copier,
    watched: &'a Watched,
    core: &'a CoreNode,
    /// Since when changes are held.
    held_since: &'a Cell<Option<Time>>,
    /// The epoch that the volume has at its new place.
    epoch: Cell<Epoch>,
    slowing: Slowing,
    /// The volume's own turns, in which it is read in a hurry.
    own: RefCell<Option<Tenant<UringPlatform>>>,
}

impl<'a> Here<'a> {
    /// With such turns, of a volume with this SLO.
    pub(super) fn new(
        origin: &'a DvolOrigin<UringPlatform, VolumeMarks>,
        copier: Copier,
        watched: &'a Watched,
        core: &'a CoreNode,
        held_since: &'a Cell<Option<Time>>,
        slo: Slo,
    ) -> Here<'a> {
        Here {
            origin,
            copier,
            watched,
            core,
            held_since,
            epoch: Cell::new(Epoch(0)),
            slowing: Slowing::new(slo, core.platform.now()),
            own: RefCell::default(),
        }
    }
}

impl Here<'_> {
    fn haste(&self) -> Haste {
        self.watched.haste(self.held_since.get().is_some())
    }

    /// The volume's own turns, if it is read in those now.
    fn own(&self) -> Option<Tenant<UringPlatform>> {
        match self.haste() {
            Haste::Hurry(_) => self.own.borrow().clone(),
            _ => None,
        }
    }

    /// Nobody has to be slower any more, and it isn't copied in a hurry.
    fn calm(&self) {
        self.slowing.end();
        *self.own.borrow_mut() = None;
        self.copier.calm();
        let mut seen = self.watched.lock();
        (seen.slowed_to, seen.hurried) = (None, None);
    }
}

impl Origin for Here<'_> {
    async fn content(&self) -> Result<Content, DvolError> {
        let content = self.origin.content().await?;
        self.watched.lock().expected_bytes = content.expected_bytes;
        self.epoch.set(content.epoch);
        Ok(content)
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        let haste = self.haste();
        let own = self.own();
        let parts = self.copier.parts(haste, own.is_some());
        let tenant = own.unwrap_or_else(|| self.copier.tenant(haste == Haste::Held));
        let turns = InTurns(&tenant);
        let read = self.origin.part_in_turns(of, what, within, parts, &turns);
        let part = read.await?;
        self.copier.learn(haste, &part);
        self.core.at(MovePoint::Copied).await;
        Ok(part)
    }

    async fn going(&self) -> Result<(), DvolError> {
        self.origin.going().await?;
        self.core.at(MovePoint::GoingKept).await;
        Ok(())
    }

    async fn settle(&self) -> Result<(), DvolError> {
        let tenant = self.own().unwrap_or_else(|| self.copier.tenant(false));
        let _turn = tenant.turn(Want::flush()).await;
        self.origin.settle().await
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        self.origin.mark().await
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        self.held_since.set(Some(self.core.platform.now()));
        let epoch = self.origin.hold().await?;
        // What waits for that would wait here while it could go on there. Not before: all that waits would begin in the last moment.
        self.calm();
        self.core.at(MovePoint::Held).await;
        Ok(epoch)
    }
}

/// Counts what was copied, keeps to a limit, and ends the move if that is wanted.
pub(super) struct Pace<'a> {
    core: &'a CoreNode,
    watched: &'a Watched,
    /// The limit that it keeps to.
    limit_bytes: Cell<Option<u64>>,
    /// Since when.
    began: Cell<Time>,
    /// Bytes that had been copied by then.
    before_bytes: Cell<u64>,
    speed: RefCell<Speed>,
    here: &'a Here<'a>,
    name: &'a str,
    volume: &'a Place,
}

impl Progress for Pace<'_> {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        let slowed_to = self.here.slowing.copied(bytes, self.core.platform.now());
        let copied_bytes = {
            let mut seen = self.watched.lock();
            seen.copied_bytes += bytes;
            seen.slowed_to = slowed_to.or(seen.slowed_to);
            seen.copied_bytes
        };
        self.check_wanted()?;
        // Nobody is to wait for the limit.
        let is_held = self.here.held_since.get().is_some();
        let has_waited = !is_held && self.keep_to_limit(copied_bytes).await?;
        let now = self.core.platform.now();
        let per_s = self.speed.borrow_mut().copied(now, copied_bytes);
        if !has_waited {
            self.watched.lock().per_s = per_s;
        }
        Ok(())
    }

    fn phase(&self, phase: Phase) {
        let mut seen = self.watched.lock();
        seen.phase = Some(phase);
        if let (Some(rounds), Phase::CatchingUp { .. }) = (&mut seen.hurried, phase) {
            *rounds += 1;
        }
    }

    fn over(&self) {
        // It may have come to nothing, or go on later: what is to be done about that takes its time.
        self.here.calm();
    }

    fn hurry(&self) {
        let slo = &self.here.copier.slo();
        let has_share = matches!(slo.promise, SloPromise::Share(_));
        if has_share && slo.limit == SloLimit::default() {
            // It is what the volume does itself that is in the way of its move. So the copy takes the volume's own part of the device, and neither others' nor the
            // little that moves are promised, with which it may have no end. Not of a floor, of which nothing is to be taken, and not where a limit counts it.
            *self.here.own.borrow_mut() = self.tenant();
        }
        self.watched.lock().hurried = Some(0);
    }

    fn outrun(&self) {
        let Some(tenant) = self.tenant() else {
            return;
        };
        let slowed_to = self.here.slowing.begin(tenant, self.core.platform.now());
        self.watched.lock().slowed_to = slowed_to;
        tracing::info!(
            volume = self.name,
            bytes_per_second = slowed_to.unwrap_or(0),
            "it is written as quickly as it is copied: its writes are made slower until it is moved"
        );
    }

    fn resumed(&self, copied_bytes: u64) {
        self.before_bytes.set(copied_bytes);
        // It may have waited for the other node: that time is not to be made up for.
        self.began.set(self.core.platform.now());
        self.speed.borrow_mut().forget();
        self.watched.had(copied_bytes);
    }
}

impl<'a> Pace<'a> {
    /// Whose the volume's requests are.
    fn tenant(&self) -> Option<Tenant<UringPlatform>> {
        let (core, place) = (self.core, self.volume);
        let device = core.engines.get(place.engine)?.device;
        core.tenant_of(device, place.id)
    }

    /// From now on, of the volume with this name and place.
    pub(super) fn new(
        core: &'a CoreNode,
        watched: &'a Watched,
        here: &'a Here<'a>,
        (name, volume): (&'a str, &'a Place),
    ) -> Pace<'a> {
        let began = core.platform.now();
        Pace {
            core,
            watched,
            limit_bytes: Cell::new(watched.limit_bytes()),
            began: Cell::new(began),
            before_bytes: Cell::new(0),
            speed: RefCell::default(),
            here,
            name,
            volume,
        }
    }

    /// Waits until so many bytes may have been copied, and returns whether it had to: then it copies as fast as the limit says. Somebody may change
    /// or lift that meanwhile.
    async fn keep_to_limit(&self, copied_bytes: u64) -> Result<bool, DvolError> {
        let mut has_waited = false;
        loop {
            let now = self.core.platform.now();
            let limit = self.watched.limit_bytes();
            if self.limit_bytes.replace(limit) != limit {
                // What was copied by another one doesn't count against this one.
                self.began.set(now);
                self.before_bytes.set(copied_bytes);
                self.speed.borrow_mut().forget();
                has_waited = false;
            }
            let Some(limit) = limit else {
                return Ok(false);
            };
            let copied_bytes = copied_bytes.saturating_sub(self.before_bytes.get());
            let ns = u128::from(copied_bytes) * 1_000_000_000 / u128::from(limit);
            let due = self.began.get();
            let due = due.plus_ns(u64::try_from(ns).unwrap_or(u64::MAX));
            if now >= due {
                return Ok(has_waited);
            }
            has_waited = true;
            self.watched.lock().per_s = Some(limit);
            let look = now.plus_ns(LOOK_NS);
            self.core.platform.sleep_until(due.min(look)).await;
            self.check_wanted()?;
        }
    }

    fn check_wanted(&self) -> Result<(), DvolError> {
        match self.watched.is_cancelled() || self.core.is_stopping() {
            true => Err(DvolError::Busy),
            false => Ok(()),
        }
    }
}

impl CoreNode {
    /// Whose turns the move of a volume with this SLO takes at an engine.
    pub(super) fn copier(&self, engine: usize, slo: Slo) -> Option<Copier> {
        let device = self.engines.get(engine)?.device;
        let (mover, turns) = (self.mover_of(engine)?, self.turns.get(device)?.clone());
        Some(Copier::new(mover, turns, slo))
    }

    /// Moves a volume of this core. Returns what came of it; it is in the job's progress as well.
    pub(super) async fn move_volume(self: Rc<Self>, job: Job) -> State {
        let moved = self.move_it(&job).await;
        let goes_on = moved.is_err_and(|stayed| stayed.goes_on);
        let state = match moved {
            Ok(()) => State::Done,
            Err(stayed) if stayed.is_cancelled(&job) => State::Cancelled,
            Err(stayed) => State::Failed(stayed.error),
        };
        // In this order: who sees that it is over may have it moved again.
        self.names.end_moving(job.from.id);
        let seen = job.watched.end(state);
        let (volume, bytes) = (&job.name, seen.copied_bytes);
        match state {
            // Nothing is wrong with that.
            State::Failed(DvolError::Busy | DvolError::Stopping) if goes_on => {
                tracing::info!(
                    volume,
                    bytes,
                    "the node stops while it is moved: it is where it was, and the next start goes on"
                );
            }
            State::Failed(DvolError::Busy | DvolError::Stopping) if self.is_stopping() => {
                tracing::info!(
                    volume,
                    bytes,
                    "the node stops while it is moved: it is where it was, and its move is over"
                );
            }
            State::Failed(error) => {
                tracing::warn!(
                    volume,
                    bytes,
                    "moving it came to nothing: {error}; it is where it was"
                );
            }
            State::Cancelled => tracing::info!(volume, bytes, "moving it was cancelled"),
            _ => {
                let held_us = seen.held_ns / 1000;
                let (device, core) = (job.to_device, job.to.core);
                tracing::info!(
                    volume,
                    bytes,
                    held_us,
                    core,
                    device = format!("{device:032x}"),
                    "moved"
                );
            }
        }
        state
    }

    async fn move_it(self: &Rc<Self>, job: &Job) -> Result<(), Stayed> {
        let error = match self.copy_and_switch(job).await {
            Ok(moved) => return moved,
            Err(error) => error,
        };
        let goes_on = job.left.is_some() && self.is_cut_off(job);
        let stayed = Stayed {
            error,
            goes_on,
            is_written: true,
        };
        if job.left.is_none() || goes_on {
            return Err(stayed);
        }
        // What it would have gone on with, if it didn't come to that.
        let ended = self.end_going(job.from, &job.name, job.to_device).await;
        let thrown = throw_away(self, job).await.map(drop);
        Err(stayed.when_ended(job, ended, thrown))
    }

    /// Whether a move that comes to nothing in this moment was only cut off, because the node stops. Asked once of each.
    pub(super) fn is_cut_off(&self, job: &Job) -> bool {
        self.is_stopping() && !job.watched.is_cancelled()
    }

    /// Has no start go on with a copy that a volume of this core has on this device. Nothing else may be done to the volume meanwhile.
    pub(super) async fn end_going(
        &self,
        at: Place,
        name: &str,
        device: u128,
    ) -> Result<(), DvolError> {
        let engine = self.engine(at.engine).ok_or(DvolError::NotFound)?;
        let info = engine.dvol_with(at.id, name).ok_or(DvolError::NotFound)?;
        let receiving = VolumeAttributes::decode(&info.attributes).receiving;
        if receiving == Some(Receiving::Going(device)) {
            let plain = VolumeMarks.plain(&info.attributes);
            engine.set_attributes(info.handle, plain).await?;
        }
        Ok(())
    }

    /// Fails only before anything was done. What came of it otherwise, and that all is settled then, the result says.
    async fn copy_and_switch(self: &Rc<Self>, job: &Job) -> Result<Result<(), Stayed>, DvolError> {
        let owned = self.owned(job.from.engine)?;
        let engine = &owned.engine;
        let found = || {
            let info = engine.dvol_with(job.from.id, &job.name);
            let info = info.ok_or(DvolError::NotFound)?;
            refuse_unsettled(&info.attributes).map(|()| info)
        };
        let handle = found()?.handle;
        quiesce(self, engine, handle).await?;
        // What was being changed of it when the move began is part of it only now.
        let info = found()?;
        if VolumeAttributes::decode(&info.attributes).slo != job.slo {
            let text = "it was promised something else meanwhile; move it again";
            job.watched.set_trouble(Some(text.to_owned()));
            return Err(DvolError::Busy);
        }
        let notes = self.notes_of(handle.id);
        let origin = DvolOrigin::new(
            engine.clone(),
            handle,
            notes.gate.clone(),
            VolumeMarks,
            job.to_device,
        );
        let origin = match job.left {
            Some(_) => origin.that_is_going(),
            None => origin,
        };
        let held_since = Cell::default();
        let copier = self.copier(job.from.engine, job.slo);
        let copier = copier.ok_or(DvolError::NotFound)?;
        let here = Here::new(&origin, copier, &job.watched, self, &held_since, job.slo);
        let there = There {
            core: self,
            job,
            attributes: behind_a_move(&info.attributes, engine.epoch_of(handle)?),
            reserved_bytes: info.reserved_bytes,
            held_since: &held_since,
            tokens: Default::default(),
        };
        let pace = Pace::new(self, &job.watched, &here, (&job.name, &job.from));
        // What tokens it has doesn't change from here on: it goes with the volume.
        let store = &owned.tokens;
        let moved = async {
            let with_tokens = WithTokens {
                there: &there,
                store,
                turn: Default::default(),
            };
            let moved = move_dvol(&here, &with_tokens, &pace).await;
            if moved.is_ok() {
                self.went(job, handle, &notes, here.epoch.get());
            }
            moved
        };
        let moved = moved.await;
        if let Some(since) = here.held_since.get() {
            job.watched.held(self.platform.now().since(since));
        }
        match moved {
            Ok(()) => {
                self.clean_up(job, handle).await;
                Ok(Ok(()))
            }
            Err(failed) => Ok(Err(self.stay(job, &origin, &there, failed).await)),
        }
    }

    /// The volume is elsewhere from this moment on. One step: nobody sees it in two places or in none.
    fn went(&self, job: &Job, handle: Handle, notes: &VolumeNotes, epoch: Epoch) {
        let Some(owned) = self.engines.get(job.from.engine) else {
            return;
        };
        let engine = &owned.engine;
        let before = engine.epoch_of(handle).unwrap_or_default();
        // Before anybody can find it at its new place, which may be on this core.
        self.left(handle.id, job.to.core == self.index, &job.slo);
        let nth = self.names.moved(job.to, (before, epoch));
        let gone = Gone::of(engine, handle, nth);
        *notes.gone.borrow_mut() = Some(Rc::new(gone));
        notes.gate.leave();
    }

    /// What isn't needed here any more.
    async fn clean_up(&self, job: &Job, handle: Handle) {
        let Some(engine) = self.engine(job.from.engine) else {
            return;
        };
        // If this fails the next start does it.
        if let Err(error) = engine.delete(handle, true).await {
            tracing::warn!(
                volume = job.name,
                "deleting what it was before it was moved: {error}"
            );
        }
        self.engines.emptied(job.from.engine);
        if let Some(owned) = self.engines.get(job.from.engine) {
            let store = &owned.tokens;
            let _turn = store.turn().await;
            if let Err(error) = store.forget(handle.id).await {
                tracing::debug!(
                    volume = job.name,
                    "forgetting its tokens where it was: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_known_while_it_copies_what_there_was() {
        let copies = Seen {
            state: State::Running,
            copied_bytes: 30,
            expected_bytes: 100,
            held_ns: 0,
            phase: Some(Phase::Now),
            per_s: Some(8),
            slowed_to: None,
            hurried: None,
            away: None,
            held: None,
        };
        assert_eq!(copies.left_s(), Some(9));
        let unknown = |change: fn(&mut Seen)| {
            let mut seen = copies;
            change(&mut seen);
            assert_eq!(seen.left_s(), None);
        };
        unknown(|seen| seen.per_s = None);
        unknown(|seen| seen.per_s = Some(0));
        unknown(|seen| seen.phase = None);
        unknown(|seen| seen.phase = Some(Phase::CatchingUp { round: 1 }));
        unknown(|seen| seen.phase = Some(Phase::Switching));
        unknown(|seen| seen.copied_bytes = 100);
        unknown(|seen| seen.copied_bytes = 101);
        unknown(|seen| seen.state = State::Done);
        unknown(|seen| seen.away = Some(Away::default()));
        unknown(|seen| seen.held = Some(Away::default()));
        let watched = Watched::new(Some(7));
        *watched.lock() = copies;
        assert_eq!(watched.limit_bytes(), Some(7));
        watched.limit(None);
        assert_eq!(watched.limit_bytes(), None);
        assert_eq!(watched.seen().left_s(), None, "that was with the limit");
    }

    #[test]
    fn a_volume_of_which_a_copy_may_be_left_is_not_moved() {
        let plain = VolumeAttributes::default().encode();
        assert_eq!(refuse_unsettled(&plain), Ok(()));
        // The next hold overwrites this one, which says nothing once its move has come to nothing.
        let leaving = VolumeMarks.leaving(&plain, 7);
        assert_eq!(refuse_unsettled(&leaving), Ok(()));
        let stayed = VolumeMarks.stayed(&leaving, 7);
        assert_eq!(refuse_unsettled(&stayed), Err(DvolError::AlreadyExists));
        assert_eq!(refuse_unsettled(&VolumeMarks.plain(&stayed)), Ok(()));
    }
}
