//! Which core serves which journal, and giving one to another core while its volumes are used: nothing is copied.
//!
//! The design is `docs/decisions/2026-11-26-journals-change-cores.md`. Whoever has a volume of the journal open goes on as at the end of a move
//! (`onward.rs`): what clients of NBD ask is passed on, and those of the native protocol are told the new address. Nothing of it is written
//! down, so at the next start journals are where the number of cores puts them. [decibel 4.4: migration]

mod commands;
mod homes;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use flagstone_device::engine::{DvolError, Engine, HandedOver, Handle, ScrubReport};
use flagstone_fs::DvolRole;
use flagstone_platform::Platform;
use flagstone_platform::locks::Mutex;
use flagstone_types::DvolId;

pub(super) use self::homes::Homes;
use super::access::TokenStore;
use super::attributes::VolumeAttributes;
use super::between::MoveStore;
use super::core::{CoreNode, Unasked};
use super::engines::OwnedEngine;
use super::names::Place;
use super::notes::VolumeNotes;
use super::onward::Gone;
use super::opening::OpenedEngine;
use crate::node::{MovePoint, Slo};

/// How often it is looked whether the device has answered everything, in nanoseconds.
const LOOK_NS: u64 = 100_000;
/// How often another core is asked that is behind, and the pause before it is asked again.
const TRIES_MAX: u32 = 5000;
const PAUSE_NS: u64 = 2_000_000;

/// Why a journal stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stays {
    /// It is being handed over already.
    Going,
    /// This core doesn't serve it.
    Elsewhere,
    /// The node stops. The journal was closed in order, if it was closed at all.
    Stopping,
    /// Filesystems are stored in it, and those stay on their core.
    Filesystems,
    /// Something is being done with one of its volumes that has to end first.
    Used { volume: String, how: &'static str },
    /// The engine can't stop in order, and goes on.
    Failed(DvolError),
    /// The other core could not open it, for this reason, and this one has opened it again.
    Reopened(String),
    /// Nor could this one: it is served by nobody until the node is started again.
    Closed(String),
}

/// A journal that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moved {
    pub(super) volumes: u64,
    /// For how long its volumes' clients waited, in nanoseconds.
    pub(super) held_ns: u64,
}

/// A volume of the journal.
struct Volume {
    handle: Handle,
    slo: Slo,
}

/// A journal on its way to a core.
struct Passing {
    number: usize,
    device: usize,
    /// What the scrub that somebody asked for last has found, or had when it was broken off.
    scrub: Option<ScrubReport>,
}

impl Stays {
    /// Whether it was tried: it wasn't in use, or to stay for another reason, and the node isn't stopping.
    fn is_failure(&self) -> bool {
        matches!(
            self,
            Stays::Failed(_) | Stays::Reopened(_) | Stays::Closed(_)
        )
    }
}

impl CoreNode {
    /// Gives a journal of this core to another one. If it is to be given to this one, it is there already: whoever repeats a command has what
    /// was asked for.
    pub(super) async fn hand_journal_over(
        self: Rc<Self>,
        number: usize,
        to: usize,
    ) -> Result<Moved, Stays> {
        let owned = self.engines.get(number).ok_or(Stays::Elsewhere)?;
        if owned.making.is_shut() {
            return Err(Stays::Going);
        }
        if to == self.index {
            return Ok(Moved {
                volumes: self.names.count_at(number),
                held_ns: 0,
            });
        }
        if self.files.hold(&owned) {
            return Err(Stays::Filesystems);
        }
        // Nothing is made in it from here on. What is being made is waited for: it goes, too.
        owned.making.hold().await;
        let handed = self.hand_marked_over(&owned, to).await;
        match &handed {
            Ok(moved) => {
                self.homes.ended(number, true);
                let held_us = moved.held_ns / 1000;
                let (device, journal) = (owned.device, owned.engine.journal_no());
                tracing::info!(
                    device,
                    journal,
                    volumes = moved.volumes,
                    from = self.index,
                    to,
                    held_us,
                    "a journal was handed over"
                );
            }
            Err(stays) => {
                if stays.is_failure() {
                    self.homes.ended(number, false);
                }
                // If it has gone it was closed, whoever has it now.
                if !owned.making.is_gone() {
                    owned.making.release();
                }
            }
        }
        handed
    }

    /// The same, once nothing is made in it.
    async fn hand_marked_over(
        self: &Rc<Self>,
        owned: &Rc<OwnedEngine>,
        to: usize,
    ) -> Result<Moved, Stays> {
        // That may be what was just being made.
        if self.files.hold(owned) {
            return Err(Stays::Filesystems);
        }
        let volumes = self.volumes_of(owned)?;
        let ids: Vec<_> = volumes.iter().map(|volume| volume.handle.id).collect();
        if let Err(busy) = self.names.begin_moving_all(&ids) {
            let how = "it is being moved, or a stream is being received into it";
            return Err(self.used(busy, how));
        }
        let handed = self.hand_it_over(owned, to, volumes).await;
        self.names.end_moving_all(&ids);
        handed
    }

    /// The volumes of a journal, and nothing else.
    fn volumes_of(&self, owned: &OwnedEngine) -> Result<Vec<Volume>, Stays> {
        let mut volumes = Vec::new();
        for dvol in owned.engine.dvols() {
            let (handle, id) = (dvol.handle, dvol.handle.id);
            if DvolRole::of(&dvol.attributes).is_some() {
                continue;
            }
            match self.names.place_of(id) {
                Some((_, place)) if self.is_here(place, owned.number) => volumes.push(Volume {
                    handle,
                    slo: self.slo_of(id),
                }),
                Some(_) if self.names.is_moving(id) => {
                    return Err(self.used(id, "it is being moved"));
                }
                // It was moved elsewhere, and deleting what it was here has failed. The next start does that.
                Some(_) => {}
                None => {
                    let volume = dvol.name;
                    let how = "it is being received, it isn't known yet whether it is another node's, or it is left of one that was deleted or has gone, and the next start deletes it";
                    return Err(Stays::Used { volume, how });
                }
            }
        }
        Ok(volumes)
    }

    /// Whether a volume's place is this journal, and this core's.
    fn is_here(&self, place: Place, number: usize) -> bool {
        (place.core, place.engine) == (self.index, number)
    }

    fn used(&self, id: DvolId, how: &'static str) -> Stays {
        Stays::Used {
            volume: self.names.name_of(id).unwrap_or_else(|| id.to_string()),
            how,
        }
    }

    /// Refuses what another node, or a client, is at work on beside the volume's own operations.
    fn check_unused(&self, number: usize, volumes: &[Volume]) -> Result<(), Stays> {
        for volume in volumes {
            let id = volume.handle.id;
            let how = match () {
                () if self.between.is_unconfirmed(id) || self.between.is_handed_over(id) => {
                    "its move from or to another node isn't confirmed yet"
                }
                () if self.schedules.is_sent(id) => "a snapshot of it is being sent",
                () => continue,
            };
            return Err(self.used(id, how));
        }
        if let Some(volume) = self.arrivals.at(number) {
            let how = "it is to come to this journal from another node";
            return Err(Stays::Used { volume, how });
        }
        if self.is_target(number) {
            let (volume, how) = (String::new(), "a volume is being moved to this journal");
            return Err(Stays::Used { volume, how });
        }
        Ok(())
    }

    async fn hand_it_over(
        self: &Rc<Self>,
        owned: &Rc<OwnedEngine>,
        to: usize,
        volumes: Vec<Volume>,
    ) -> Result<Moved, Stays> {
        let number = owned.number;
        self.check_unused(number, &volumes)?;
        self.quiesce_all(owned, &volumes).await;
        // Some may have been deleted, or changed, by those who were waited for.
        let volumes = self.volumes_of(owned)?;
        // Nobody writes anything beside its volumes meanwhile.
        let _tokens = owned.tokens.turn().await;
        let _moves = owned.moves.turn().await;
        // So that little is left to be written while clients wait.
        owned.engine.checkpoint().await.map_err(Stays::Failed)?;
        let began = self.platform.now();
        // What is asked of a striped volume passes its first member's core, and its parts may have to enter this journal, and another one that
        // goes: they are waited for while they can.
        let wholes = self.wholes_of(&volumes);
        for notes in &wholes {
            notes.gate.hold().await;
            notes.reads.hold().await;
        }
        owned.serving.hold().await;
        self.at(MovePoint::JournalHeld).await;
        let passing = Passing {
            number,
            device: owned.device,
            scrub: owned.engine.last_scrub(),
        };
        let handed = match owned.engine.hand_over().await {
            Ok(handed) => handed,
            Err(error) => {
                owned.serving.release();
                for notes in &wholes {
                    notes.gate.release();
                    notes.reads.release();
                }
                return Err(Stays::Failed(error));
            }
        };
        // A write whose client has gone may be with the device still, and would land in what the next one has written.
        while !owned.handle.is_idle() {
            self.platform.sleep_ns(LOOK_NS).await;
        }
        self.at(MovePoint::JournalClosed).await;
        let (home, result) = match self.pass_on(to, passing, handed).await {
            Ok(()) => (Some(to), Ok(())),
            // It is closed in order, and nobody is to open it before the next start.
            Err(_) if self.is_stopping() => (None, Err(Stays::Stopping)),
            Err((why, passing, handed)) => {
                tracing::warn!(
                    device = owned.device,
                    journal = handed.journal_no(),
                    "core {to} can't open a journal: {why}; core {} opens it again",
                    self.index
                );
                self.at(MovePoint::JournalRefused).await;
                match self.clone().take_journal_over(passing, handed).await {
                    Ok(()) => (Some(self.index), Err(Stays::Reopened(why))),
                    Err(_) if self.is_stopping() => (None, Err(Stays::Stopping)),
                    Err((again, ..)) => {
                        tracing::error!(
                            device = owned.device,
                            journal = owned.engine.journal_no(),
                            "no core can open a journal: {again}; its volumes are served by nobody until the node is started again"
                        );
                        self.homes.close(number, again.clone());
                        (None, Err(Stays::Closed(again)))
                    }
                }
            }
        };
        self.leave(owned, home, &volumes);
        let held_ns = self.platform.now().since(began);
        result.map(|()| Moved {
            volumes: volumes.len() as u64,
            held_ns,
        })
    }

    /// The notes of those that are striped, whose first member is here.
    fn wholes_of(&self, volumes: &[Volume]) -> Vec<Rc<VolumeNotes>> {
        let ids = volumes.iter().map(|volume| volume.handle.id);
        let wholes = ids.filter(|id| self.names.stripe_of(*id).is_some());
        wholes.map(|id| self.notes_of(id)).collect()
    }

    /// Its volumes are served at `home`, if anywhere, from this moment on. One step: nobody finds one in two places, or in none but then.
    fn leave(&self, owned: &OwnedEngine, home: Option<usize>, volumes: &[Volume]) {
        let number = owned.number;
        let core = home.unwrap_or(self.index);
        let is_here = core == self.index;
        for volume in volumes {
            let (handle, id) = (volume.handle, volume.handle.id);
            let notes = self.notes_of(id);
            let as_member = self.notes_as_member(id);
            self.left(id, is_here, &volume.slo);
            let nth = self.names.changed_core(Place {
                core,
                engine: number,
                id,
            });
            *notes.gone.borrow_mut() = Some(Rc::new(Gone::of(&owned.engine, handle, nth)));
            notes.gate.leave();
            notes.reads.leave();
            if let Some(notes) = as_member {
                notes.gate.leave();
                notes.reads.leave();
            }
            if is_here {
                // What was known of its last change is forgotten.
                let now_ns = self.platform.wall_clock_ns();
                self.notes_of(id).change.tell(now_ns);
            }
        }
        // If it is served here again, another engine has its place already.
        if home != Some(self.index) {
            self.engines.take(number);
        }
        self.homes.moved(number, core);
        self.between.changed_core(number, core);
        owned.serving.leave();
        owned.making.leave();
        owned.engine.let_go();
    }

    /// Waits for changes of its volumes, and of their snapshots, that were accepted before they were marked.
    async fn quiesce_all(&self, owned: &OwnedEngine, volumes: &[Volume]) {
        let mut turns = Vec::new();
        for volume in volumes {
            // Its size and attributes, and rollbacks, by this.
            if let Some(sizing) = self.sizing_of(volume.handle.id) {
                turns.push(sizing.take(1).await);
            }
        }
        owned.engine.wait_for_changes().await;
    }

    /// Has another core open a journal.
    async fn pass_on(
        &self,
        to: usize,
        passing: Passing,
        handed: HandedOver,
    ) -> Result<(), (String, Passing, HandedOver)> {
        // Whoever is asked in vain gives it back.
        let given = Arc::new(Mutex::new(Some((passing, handed))));
        let take = || {
            let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
            given.take()
        };
        let mut why = format!("core {to} is too busy to answer");
        for _ in 0..TRIES_MAX {
            let there = given.clone();
            let asked = self.ask(to, move |core| async move {
                let given = there.lock().unwrap_or_else(PoisonError::into_inner).take();
                match given {
                    Some((passing, handed)) => core.take_journal_over(passing, handed).await,
                    // Nobody asks twice who was answered.
                    None => Ok(()),
                }
            });
            match asked.await {
                Ok(done) => return done,
                Err(Unasked::Busy) => self.platform.sleep_ns(PAUSE_NS).await,
                Err(Unasked::Stopped) => {
                    why = format!("core {to} has stopped");
                    break;
                }
            }
        }
        match take() {
            Some((passing, handed)) => Err((why, passing, handed)),
            // The core has stopped with it in its hands: the node stops.
            None => Ok(()),
        }
    }

    /// Opens a journal that was handed over, and serves it.
    async fn take_journal_over(
        self: Rc<Self>,
        passing: Passing,
        handed: HandedOver,
    ) -> Result<(), (String, Passing, HandedOver)> {
        if self.is_stopping() {
            return Err(("the node is stopping".to_owned(), passing, handed));
        }
        let Some(found) = self.opener.devices.get(passing.device) else {
            return Err(("there is no such device".to_owned(), passing, handed));
        };
        let handle = match found.open(&self.platform) {
            Ok(handle) => handle,
            Err(error) => return Err((error.to_string(), passing, handed)),
        };
        let io = handle.io_stats();
        let taken = Engine::take_over(
            &self.opener.cache,
            self.platform.clone(),
            self.opener.recording.device(handle.clone()),
            handed,
            self.opener.options(&handle),
        );
        let engine = match taken.await {
            Ok((engine, _)) => engine,
            Err((error, handed)) => return Err((error.to_string(), passing, handed)),
        };
        let tokens = TokenStore::new(engine.clone());
        let moves = MoveStore::new(engine.clone());
        // What they say is known to the whole node already, and more: who is connected by which token.
        let journal = engine.journal_no();
        let told = |what: &str, error: DvolError| {
            tracing::error!(device = passing.device, journal, "reading {what}: {error}");
        };
        match tokens.load(|_| true).await {
            Ok(loaded) => loaded.unreadable.iter().for_each(|what| {
                let device = passing.device;
                tracing::error!(
                    device,
                    journal,
                    "reading the tokens of volumes: {what}; what they were is known until the next start, which closes \
                     volumes that have no other: see with `flagstone volume restrict` and `token list` what each has, and \
                     say it anew"
                );
            }),
            Err(error) => told("the tokens of volumes", error),
        }
        if let Err(error) = moves.load(|_| true).await {
            told("what moves of volumes between nodes have left", error);
        }
        let now_ns = self.platform.wall_clock_ns();
        for dvol in engine.dvols() {
            if DvolRole::of(&dvol.attributes).is_some() {
                continue;
            }
            let id = dvol.handle.id;
            // What a volume was here before it was moved elsewhere says nothing of it.
            let place = self.names.place_of(id);
            if place.is_none_or(|(_, place)| place.engine != passing.number) {
                continue;
            }
            let attributes = VolumeAttributes::decode(&dvol.attributes);
            // A member of a striped volume has a part of what the whole is promised.
            let stripe = self.names.stripe_with(id);
            let slo = stripe.map_or(attributes.slo, |stripe| stripe.slo_of(id));
            self.set_slo(id, &slo);
            self.schedules
                .set(passing.number, dvol.handle, attributes.snapshots);
            // It isn't known here when it was last changed, and it may have been since somebody looked.
            self.notes_of(id).change.tell(now_ns);
        }
        match passing.scrub {
            Some(report) if report.finished => engine.go_by_scrub(report),
            Some(_) => self.scrub(engine.clone()),
            None => {}
        }
        // The one that has handed it over, if that was on this core.
        self.engines.take(passing.number);
        self.serve_engine(OpenedEngine {
            number: passing.number,
            device: passing.device,
            engine: engine.clone(),
            handle,
            io,
            tokens,
            moves,
        });
        if self.is_stopping()
            && let Err(error) = engine.stop().await
        {
            tracing::warn!(
                device = passing.device,
                journal,
                "a journal that came while the node stops did not stop in order, and will be recovered: {error}"
            );
        }
        Ok(())
    }
}
