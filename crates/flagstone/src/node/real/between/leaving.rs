//! A volume that goes to another node.
//!
//! The order of things, and what each crash leaves, is in `flagstone_moves`; here are the turns it takes, what is written down, and what the
//! clients of this node see: they wait while it isn't known whose the volume is, and are sent on once it is the other node's.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_client::{Arrival, Error, Options};
use flagstone_device::engine::{DvolError, Handle, Stability};
use flagstone_device::transfer::{DvolOrigin, Marks, NewDvol};
use flagstone_moves::away::{Ended, Home, Question, RemoteTarget, abandon, confirm, move_away};
use flagstone_platform::{Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_types::{DeviceId, DvolId, Epoch};
use flagstone_wire::Status;
use flagstone_wire::proof::Key;

use super::arrivals::KEPT_NS;
use super::record::{Kind, MoveRecord};
use super::{Elsewhere, Route, UringClient, UringConnect, word};
use crate::node::real::core::CoreNode;
use crate::node::real::moving::{
    Here, POINT_AFTER_BYTES, Pace, State, VolumeMarks, Watched, behind_a_move, refuse_unsettled,
};
use crate::node::real::names::Place;
use crate::node::real::notes::VolumeNotes;
use crate::node::real::onward::Gone;
use crate::node::real::receive::quiesce;
use crate::node::real::records::Kept;
use crate::node::{MovePoint, Slo};

/// How long each request of a move may take, with all its repetitions, in nanoseconds: then the copy is cut off. Behind the hold, clients wait for it.
const REQUEST_NS: u64 = 10_000_000_000;

/// Before the other node is told again that it won't be asked any more, in nanoseconds.
const CONFIRM_PAUSE_NS: u64 = 5_000_000_000;

/// A place that another node has promised.
#[derive(Clone)]
pub(in crate::node::real) struct Promised {
    pub(super) number: u32,
    pub(super) key: Key,
    pub(super) device: DeviceId,
    pub(super) address: SocketAddr,
}

impl Promised {
    /// What is written down of a move there.
    fn record(&self, kind: Kind, volume: DvolId, name: &str, at_ns: u64) -> MoveRecord {
        MoveRecord {
            kind,
            volume,
            device: self.device,
            number: self.number,
            key: self.key.clone(),
            epoch: Epoch(0),
            at_ns,
            address: Some(self.address),
            name: name.to_owned(),
            attributes: [0; _],
            limit_bytes: 0,
        }
    }

    pub(super) fn of(record: &MoveRecord) -> Option<Promised> {
        Some(Promised {
            number: record.number,
            key: record.key.clone(),
            device: record.device,
            address: record.address?,
        })
    }

    pub(super) fn question(&self, volume: DvolId) -> Question {
        Question {
            device: self.device,
            volume,
        }
    }
}

/// A move to another node that is to be made.
#[derive(Clone)]
pub(in crate::node::real) struct Departure {
    pub(super) name: String,
    pub(super) from: Place,
    pub(super) slo: Slo,
    pub(super) watched: Arc<Watched>,
    pub(super) to: Promised,
    /// It goes on: an earlier run of this node has begun it.
    pub(super) has_begun: bool,
}

/// What this node writes down of a volume that goes, and whom it keeps waiting.
pub(super) struct NodeHome<'a> {
    pub(super) core: &'a CoreNode,
    pub(super) engine: usize,
    pub(super) name: String,
    pub(super) volume: DvolId,
    pub(super) to: Promised,
    /// Of a volume that is served.
    pub(super) notes: Option<Rc<VolumeNotes>>,
    /// What people see of the move that is under way.
    pub(super) watched: Option<&'a Watched>,
    /// Takes its tokens, once they don't change any more.
    pub(super) take_tokens: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
    /// Since when changes are held, of a move that is under way.
    pub(super) held_since: Option<&'a Cell<Option<Time>>>,
    /// It is written down that it goes there.
    pub(super) is_kept: Cell<bool>,
    /// The other node doesn't know that the move has come to nothing.
    pub(super) is_untold: Cell<bool>,
}

impl NodeHome<'_> {
    async fn put(&self, record: &MoveRecord) -> Result<(), DvolError> {
        let owned = self.core.owned(self.engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        store.put(record, Stability::Stable).await
    }

    fn record(&self, kind: Kind) -> MoveRecord {
        let at_ns = self.core.platform.wall_clock_ns();
        let record = self.to.record(kind, self.volume, &self.name, at_ns);
        let limit_bytes = match kind {
            Kind::Going | Kind::Leaving => self.watched.and_then(Watched::limit_bytes),
            _ => None,
        };
        MoveRecord {
            limit_bytes: limit_bytes.unwrap_or(0),
            ..record
        }
    }

    /// Where it is for clients: a node that listens on all its addresses is reached by the one that it was reached by.
    fn reachable(&self, at: SocketAddr) -> SocketAddr {
        match at.ip().is_unspecified() {
            true => SocketAddr::new(self.to.address.ip(), at.port()),
            false => at,
        }
    }
}

impl Home for NodeHome<'_> {
    async fn keep_going(&self) -> Result<(), DvolError> {
        if !self.is_kept.get() {
            self.put(&self.record(Kind::Going)).await?;
            self.is_kept.set(true);
        }
        Ok(())
    }

    fn is_unwanted(&self) -> bool {
        self.watched.is_some_and(Watched::is_cancelled)
    }

    fn cut_off(&self, why: &str) {
        // Those of its tokens that were to go with it may change again.
        self.core.between.stays(self.volume);
        if let Some(since) = self.held_since {
            since.set(None);
        }
        let Some(watched) = self.watched else { return };
        let text = format!("it waits for the other node, and goes on when that answers: {why}");
        // Once: it is asked again and again.
        if watched.is_cut_off(self.core.platform.wall_clock_ns(), text) {
            tracing::warn!(
                volume = self.name,
                to = %self.to.address,
                "its move is cut off, and goes on when the other node answers; until then it is used here: {why}"
            );
        }
    }

    fn goes_on(&self) {
        let Some(watched) = self.watched else { return };
        if watched.goes_on() {
            tracing::info!(volume = self.name, to = %self.to.address, "its move goes on");
        }
    }

    async fn keep_route(&self) -> Result<(), DvolError> {
        let owned = self.core.owned(self.engine)?;
        let store = &owned.tokens;
        {
            // Changes of its tokens that are under way come to their end before; others are refused from here on.
            let _turn = store.turn().await;
            self.core.between.hand_over(self.volume);
        }
        self.put(&self.record(Kind::Leaving)).await?;
        self.core.at(MovePoint::RouteKept).await;
        Ok(())
    }

    async fn gone(&self, at: SocketAddr) -> Result<(), DvolError> {
        self.core.at(MovePoint::Heard).await;
        let at = self.reachable(at);
        let mut record = self.record(Kind::Gone);
        record.address = Some(at);
        self.put(&record).await?;
        if let Some(watched) = self.watched {
            watched.is_told();
        }
        self.core.at(MovePoint::GoneKept).await;
        let route = Route {
            name: self.name.clone(),
            elsewhere: Elsewhere::At(at),
            on: (self.core.index, self.engine),
            at_ns: record.at_ns,
            unanswered: None,
        };
        let forgotten = self.core.between.put(self.volume, route);
        if let Some((oldest, _)) = forgotten {
            self.core.forget_route_here(self.engine, oldest).await;
        }
        Ok(())
    }

    async fn forget_route(&self) -> Result<(), DvolError> {
        self.core.between.take(self.volume);
        let owned = self.core.owned(self.engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        store.forget(MoveRecord::route_of(self.volume)).await
    }

    async fn hold_reads(&self) {
        if let Some(take) = self.take_tokens.borrow_mut().take() {
            take();
        }
        if let Some(notes) = &self.notes {
            notes.reads.shut();
        }
        self.core.at(MovePoint::Finishing).await;
    }

    fn release_reads(&self) {
        if let Some(watched) = self.watched {
            watched.is_told();
        }
        if let Some(notes) = &self.notes {
            notes.reads.release();
        }
    }

    fn is_stopping(&self) -> bool {
        self.core.is_stopping()
    }

    fn unanswered(&self, why: &str) {
        let is_new = self.core.asking.in_vain(self.volume, why);
        self.core.between.asked_in_vain(self.volume, why);
        if let Some(watched) = self.watched {
            let text = format!("the node that it was moving to can't be asked whose it is: {why}");
            watched.held_in_vain(self.core.platform.wall_clock_ns(), text);
        }
        let (volume, to) = (&self.name, self.to.address);
        match is_new {
            true => tracing::warn!(
                volume, %to,
                "{why}; until the node that it was moving to answers, the volume is served nowhere: bring that node back, or, if it never comes back, \
                 say `flagstone volume move {volume} --stay --force`"
            ),
            false => tracing::debug!(volume, %to, "{why}"),
        }
    }

    fn untold(&self) {
        self.is_untold.set(true);
    }

    fn is_forced(&self) -> bool {
        self.core.asking.is_forced(self.volume)
    }

    async fn keep_forced(&self, epoch: Epoch) -> Result<(), DvolError> {
        let record = MoveRecord {
            epoch,
            ..self.record(Kind::Forced)
        };
        self.put(&record).await?;
        self.core.at(MovePoint::ForcedKept).await;
        Ok(())
    }
}

/// Why a move came to nothing. A node that has heard nothing for too long has thrown away what had come, and then the key of that opens nothing.
fn in_words(error: &Error, to: &Promised) -> String {
    match error.status() {
        Some(Status::Denied) => format!(
            "{} doesn't know of this move (DENIED): somebody has ended it there, or it has heard nothing of it for too long, and has thrown away what had \
             come, or the key is another's; ask for the move again",
            to.address
        ),
        _ => error.failure().to_string(),
    }
}

impl CoreNode {
    /// A client of another node. Its connections end with it.
    pub(super) fn client_of(&self, address: SocketAddr) -> UringClient {
        let connect = UringConnect(self.platform.clone());
        UringClient::new(
            self.platform.clone(),
            connect,
            Options::new(vec![address], "flagstone node"),
        )
    }

    /// Moves a volume of this core to another node. Returns what came of it; it is in the job's progress as well.
    pub(super) async fn send_volume(self: Rc<Self>, job: Departure) -> State {
        let id = job.from.id;
        let came = Cell::default();
        let sent = self.send_it(&job, &came).await;
        let state = match &sent {
            Ok(()) => State::Done,
            // Whatever it was doing just then.
            Err((_, true))
                if job.watched.is_cancelled() && came.get() == Some(word::Came::Stayed) =>
            {
                State::Cancelled
            }
            Err((DvolError::Busy, _)) if job.watched.is_cancelled() => State::Cancelled,
            Err((error, true)) => State::Failed(*error),
            Err((error, false)) => State::Unknown(*error),
        };
        // One that goes on since the last start may fail before it was even tried.
        let failed_at_once = sent.is_err() && came.get().is_none() && job.has_begun;
        let is_left = failed_at_once && !self.forget_departure(&job).await;
        let goes_on = came.get() == Some(word::Came::CutOff);
        if let Err((_, is_known)) = &sent
            && *is_known
            // Nothing of it is to change before the next start goes on.
            && !goes_on
            && !is_left
        {
            self.between.stays(id);
            self.names.end_moving(id);
        }
        let seen = job.watched.end(state);
        if let Some(came) = came.get() {
            self.asking.is_known(id, came);
        }
        let (volume, bytes, to) = (&job.name, seen.copied_bytes, job.to.address);
        match (state, sent) {
            (State::Done, _) => {
                let held_us = seen.held_ns / 1000;
                tracing::info!(volume, bytes, held_us, %to, "moved to another node");
            }
            (State::Cancelled, _) => tracing::info!(volume, bytes, %to, "moving it was cancelled"),
            _ if goes_on => tracing::info!(
                volume, bytes, %to,
                "the node stops while it is moved to another one: it is where it was, and the next start goes on"
            ),
            (_, Err((error, true))) => {
                let trouble = job.watched.trouble().unwrap_or_else(|| error.to_string());
                tracing::warn!(volume, bytes, %to, "moving it came to nothing: {trouble}; it is where it was");
            }
            (_, Err((error, false))) if self.is_stopping() => {
                tracing::warn!(volume, %to, "the node stops and doesn't know whether it was moved ({error}): the next start asks");
            }
            (_, sent) => {
                let error = sent.err().map_or(DvolError::Device, |(error, _)| error);
                tracing::error!(volume, %to, "whether it was moved can't be written down: {error}; it is served by nobody until the node is restarted");
            }
        }
        state
    }

    /// Has no start go on with a move, and tells the other node. False if a start will, since the node stops or that can't be written down: then nothing of the
    /// volume is to change before.
    async fn forget_departure(self: &Rc<Self>, job: &Departure) -> bool {
        if self.is_stopping() && !job.watched.is_cancelled() {
            return false;
        }
        let forgotten = async {
            let device = job.to.device;
            self.end_going(job.from, &job.name, device.0).await?;
            // What is written down goes behind that: a start that finds it without the mark tells the other node once more.
            let client = self.client_of(job.to.address);
            let arrival = client.arrival(job.to.address, job.to.number, job.to.key.clone());
            if !abandon(&self.platform, &arrival, job.to.question(job.from.id)).await {
                self.abandon_later(&job.name, job.from.id, &job.to);
            }
            let store = &self.owned(job.from.engine)?.moves;
            let _turn = store.turn().await;
            store.forget(MoveRecord::route_of(job.from.id)).await
        };
        let forgotten = forgotten.await;
        if let Err(error) = &forgotten {
            tracing::warn!(
                volume = job.name,
                "its move to another node can't go on, and that it is over can't be written down: {error}; the next start tries again, and until then it can't be changed"
            );
        }
        forgotten.is_ok()
    }

    /// The error, and whether the volume is known to have stayed; and in `came` what whoever has a word in it is told.
    async fn send_it(
        self: &Rc<Self>,
        job: &Departure,
        came: &Cell<Option<word::Came>>,
    ) -> Result<(), (DvolError, bool)> {
        let stayed = |error| (error, true);
        let owned = self
            .engines
            .get(job.from.engine)
            .ok_or(stayed(DvolError::NotFound))?;
        let engine = &owned.engine;
        let found = || {
            let info = engine.dvol_with(job.from.id, &job.name);
            let info = info.ok_or(stayed(DvolError::NotFound))?;
            refuse_unsettled(&info.attributes).map_err(stayed)?;
            Ok(info)
        };
        let handle = found()?.handle;
        let quiet = match job.has_begun && !self.move_hooks.goes_on(MovePoint::GoesOn) {
            true => Err(DvolError::NoSpace),
            false => quiesce(self, engine, handle).await,
        };
        quiet.map_err(|error| {
            // The other node has nothing to do with that.
            let text = format!("waiting for the changes of it that were under way here: {error}");
            job.watched.set_trouble(Some(text));
            stayed(error)
        })?;
        // What was being changed of it when the move began is part of it only now.
        let info = found()?;
        let notes = self.notes_of(handle.id);
        let client = self.client_of(job.to.address);
        let arrival = client.arrival(job.to.address, job.to.number, job.to.key.clone());
        let epoch = engine.epoch_of(handle).map_err(stayed)?;
        let new = NewDvol {
            id: handle.id,
            name: job.name.clone(),
            reserved_bytes: info.reserved_bytes,
            attributes: VolumeMarks.plain(&behind_a_move(&info.attributes, epoch)),
        };
        let target = RemoteTarget::new(self.platform.clone(), &arrival, new, epoch, REQUEST_NS);
        let after_bytes = self.move_hooks.point_after_bytes;
        let target = target.with_points(after_bytes.unwrap_or(POINT_AFTER_BYTES));
        let gate = notes.gate.clone();
        let origin = DvolOrigin::new(engine.clone(), handle, gate, VolumeMarks, job.to.device.0);
        let (target, origin) = match job.has_begun {
            true => (target.that_has_begun(), origin.that_is_going()),
            false => (target, origin),
        };
        let copier = self.copier(job.from.engine, job.slo);
        let copier = copier.ok_or(stayed(DvolError::NotFound))?;
        let held_since = Cell::default();
        let here = Here::new(&origin, copier, &job.watched, self, &held_since, job.slo);
        let pace = Pace::new(self, &job.watched, &here, (&job.name, &job.from));
        let take_tokens = || {
            target.set_record(
                self.access
                    .record_of(handle.id)
                    .map(|record| Box::new(Kept::encode(&*record))),
            )
        };
        let home = NodeHome {
            core: self,
            engine: job.from.engine,
            name: job.name.clone(),
            volume: handle.id,
            to: job.to.clone(),
            notes: Some(notes.clone()),
            watched: Some(&job.watched),
            take_tokens: RefCell::new(Some(Box::new(take_tokens))),
            held_since: Some(&held_since),
            is_kept: Cell::new(job.has_begun),
            is_untold: Cell::new(false),
        };
        let question = job.to.question(handle.id);
        let ended = move_away(&origin, &here, &target, question, &pace, &home).await;
        came.set(Some(word::came_of(&ended)));
        if home.is_untold.get() {
            self.abandon_later(&job.name, job.from.id, &job.to);
        }
        if let Some(since) = held_since.get() {
            job.watched.held(self.platform.now().since(since));
        }
        match ended {
            Ended::Went(_) => {
                // What was not deleted is found at the next start, which then asks: so it must not be forgotten there.
                if self.went_away(job, handle, &notes).await {
                    self.confirm(&arrival, &home).await;
                }
                Ok(())
            }
            Ended::Stayed(error) => {
                let trouble = target.trouble().map(|error| in_words(&error, &job.to));
                job.watched.set_trouble(trouble);
                Err((error, true))
            }
            Ended::CutOff(error) => Err((error, true)),
            Ended::Forced(epoch) => {
                self.go_on_forced(job.from.engine, job.name.clone(), handle.id, &job.to, epoch);
                let text = format!(
                    "it stays by force, in epoch {}, since {} could not be asked; whether that node has it, too, isn't known",
                    epoch.0, job.to.address
                );
                job.watched.set_trouble(Some(text));
                Err((DvolError::Device, true))
            }
            Ended::Unknown(error) => {
                let node = job.to.address;
                let text = format!(
                    "whether it has come to {node} isn't known: {error}; restart this node, which then asks"
                );
                job.watched.set_trouble(Some(text));
                Err((error, false))
            }
        }
    }

    /// The volume is the other node's, and that is written down: clients are sent on, and what it was here goes. Returns whether it has gone.
    async fn went_away(&self, job: &Departure, handle: Handle, notes: &VolumeNotes) -> bool {
        let Some(engine) = self.engine(job.from.engine) else {
            return false;
        };
        // One step: nobody finds it here any more, and who had it is sent on.
        let before = engine.epoch_of(handle).unwrap_or_default();
        let behind = Epoch(before.0.saturating_add(Epoch::PER_MOVE));
        let nth = self.names.went(handle.id, (before, behind));
        *notes.gone.borrow_mut() = Some(Rc::new(Gone::of(&engine, handle, nth)));
        self.between.stays(handle.id);
        self.between.drop_fork(handle.id);
        notes.gate.leave();
        notes.reads.release();
        self.left(handle.id, false, &job.slo);
        let deleted = engine.delete(handle, true).await;
        self.engines.emptied(job.from.engine);
        self.at(MovePoint::Deleted).await;
        if let Err(error) = &deleted {
            tracing::warn!(
                volume = job.name,
                "deleting what it was before it was moved: {error}; the next start does it"
            );
        }
        deleted.is_ok()
    }

    /// Tells the other node that it won't be asked any more, now or later.
    pub(super) async fn confirm(
        self: &Rc<Self>,
        arrival: &Arrival<UringPlatform, UringConnect>,
        home: &NodeHome<'_>,
    ) {
        let question = home.to.question(home.volume);
        match confirm(&self.platform, arrival, question).await {
            true => {
                self.at(MovePoint::ConfirmHeard).await;
                self.note_confirmed(home).await;
            }
            false => {
                let core = self.clone();
                let (engine, name, volume) = (home.engine, home.name.clone(), home.volume);
                let to = home.to.clone();
                self.platform
                    .spawn(async move { core.confirm_later(engine, name, volume, to).await });
            }
        }
    }

    async fn note_confirmed(&self, home: &NodeHome<'_>) {
        let Some(owned) = self.engines.get(home.engine) else {
            return;
        };
        let store = &owned.moves;
        let _turn = store.turn().await;
        // It may have come back meanwhile, and have gone once more.
        let stored = store.record(MoveRecord::route_of(home.volume)).await;
        let Ok(Some(gone)) = stored else {
            return;
        };
        if (gone.kind, gone.number) != (Kind::Gone, home.to.number) {
            return;
        }
        let record = MoveRecord {
            kind: Kind::Confirmed,
            ..gone
        };
        // Otherwise the next start tells it once more.
        if let Err(error) = store.put(&record, Stability::Unstable).await {
            tracing::debug!(volume = home.name, "noting that its move is over: {error}");
        }
    }

    /// Tells the other node that a move is over that came to nothing, until it has heard that, or must have ended it by itself, or this node ends.
    pub(super) fn abandon_later(self: &Rc<Self>, name: &str, volume: DvolId, to: &Promised) {
        let (core, name, to) = (self.clone(), name.to_owned(), to.clone());
        tracing::warn!(
            volume = name, to = %to.address,
            "the node that it was moving to could not be told that its move is over: until it is, or has heard nothing for a day, it keeps what has come, and \
             the name; to free them at once: `flagstone volume move {name} --cancel` there"
        );
        self.platform.spawn(async move {
            let client = core.client_of(to.address);
            let arrival = client.arrival(to.address, to.number, to.key.clone());
            let until = core.platform.now().plus_ns(KEPT_NS);
            while !core.is_stopping() && core.platform.now() < until {
                core.platform.sleep_ns(CONFIRM_PAUSE_NS).await;
                if abandon(&core.platform, &arrival, to.question(volume)).await {
                    tracing::info!(volume = name, to = %to.address, "the node that it was moving to knows that its move is over");
                    return;
                }
            }
        });
    }

    /// Tells it again and again.
    pub(super) async fn confirm_later(
        self: Rc<Self>,
        engine: usize,
        name: String,
        volume: DvolId,
        to: Promised,
    ) {
        let client = self.client_of(to.address);
        let arrival = client.arrival(to.address, to.number, to.key.clone());
        let home = NodeHome {
            core: &self,
            engine,
            name,
            volume,
            to: to.clone(),
            notes: None,
            watched: None,
            take_tokens: RefCell::default(),
            held_since: None,
            is_kept: Cell::new(true),
            is_untold: Cell::new(false),
        };
        while !self.is_stopping() && matches!(self.between.of(volume), Some(Elsewhere::At(_))) {
            if confirm(&self.platform, &arrival, to.question(volume)).await {
                self.note_confirmed(&home).await;
                return;
            }
            self.platform.sleep_ns(CONFIRM_PAUSE_NS).await;
        }
    }

    /// A volume is here: that it was elsewhere is forgotten where that is written down, with the tokens it had there, unless that is where it is now.
    pub(super) async fn forget_route(
        self: &Rc<Self>,
        on: (usize, usize),
        now: (usize, usize),
        volume: DvolId,
    ) {
        let (core, engine) = on;
        let with_tokens = on != now;
        let forgotten = self.ask(core, move |there| async move {
            there.forget_route_of(engine, volume, with_tokens).await
        });
        if !matches!(forgotten.await, Ok(Ok(()))) {
            tracing::debug!(%volume, "that it was elsewhere is forgotten at the next start");
        }
    }

    /// Clients are not sent on any more for a volume that went long ago.
    async fn forget_route_here(&self, engine: usize, volume: DvolId) {
        // One that is just coming back brings its tokens.
        let with_tokens = self.arrivals.of(volume).is_none();
        if with_tokens {
            self.access.forget(volume);
        }
        if let Err(error) = self.forget_route_of(engine, volume, with_tokens).await {
            tracing::debug!(%volume, "forgetting where it went: {error}");
        }
    }

    pub(super) async fn forget_route_of(
        &self,
        engine: usize,
        volume: DvolId,
        with_tokens: bool,
    ) -> Result<(), DvolError> {
        if with_tokens {
            let owned = self.owned(engine)?;
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.forget(volume).await?;
        }
        let owned = self.owned(engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        store.forget(MoveRecord::route_of(volume)).await
    }
}
