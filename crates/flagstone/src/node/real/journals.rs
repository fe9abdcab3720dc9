//! Which core serves which journal, and giving one to another core while its volumes are used: nothing is copied.
//!
//! The design is `docs/decisions/2026-11-26-journals-change-cores.md`. Whoever has a volume of the journal open goes on as at the end of a move
//! (`onward.rs`): what clients of NBD ask is passed on, and those of the native protocol are told the new address. Nothing of it is written
//! down, so at the next start journals are where the number of cores puts them. [decibel 4.4: migration]

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use flagstone_device::engine::{DvolError, Engine, HandedOver, Handle};
use flagstone_fs::DvolRole;
use flagstone_platform::Platform;
use flagstone_platform::locks::Mutex;
use flagstone_runtime::UringPlatform;

use super::RealNode;
use super::access::TokenStore;
use super::attributes::VolumeAttributes;
use super::between::MoveStore;
use super::core::{CoreNode, Unasked};
use super::engines::OwnedEngine;
use super::errors::node_error;
use super::files::has_store;
use super::names::Place;
use super::onward::Gone;
use super::opening::OpenedEngine;
use crate::node::{HandedOverJournal, JournalInfo, MovePoint, NodeError, NodeErrorKind, Slo};
use crate::size::counted;

/// How often it is looked whether the device has answered everything, in nanoseconds.
const LOOK_NS: u64 = 100_000;
/// How often another core is asked that is behind, and the pause before it is asked again.
const TRIES_MAX: u32 = 5000;
const PAUSE_NS: u64 = 2_000_000;

/// Of each journal of the node, by its number, the core that serves it.
pub(super) struct Homes(Vec<AtomicUsize>);

impl Homes {
    /// As they are at the start: of each device in order, journal j on core j modulo the number of cores.
    pub(super) fn new(journals: impl IntoIterator<Item = u16>, cores: usize) -> Homes {
        let numbers = journals.into_iter().flat_map(|count| 0..usize::from(count));
        Homes(numbers.map(|j| AtomicUsize::new(j % cores)).collect())
    }

    /// The core that serves a journal.
    pub(super) fn of(&self, number: usize) -> Option<usize> {
        self.0.get(number).map(|core| core.load(Ordering::Acquire))
    }

    /// Another one serves it from now on.
    fn moved(&self, number: usize, core: usize) {
        if let Some(home) = self.0.get(number) {
            home.store(core, Ordering::Release);
        }
    }
}

/// Why a journal stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stays {
    /// This core doesn't serve it, or it is being handed over already.
    NotHere,
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
    name: String,
    slo: Slo,
}

/// A journal on its way to a core.
struct Passing {
    number: usize,
    device: usize,
    /// A scrub that somebody asked for has not come to its end.
    scrubs: bool,
    /// It is one volume's alone.
    is_apart: bool,
}

impl CoreNode {
    /// Gives a journal of this core to another one.
    pub(super) async fn hand_journal_over(
        self: Rc<Self>,
        number: usize,
        to: usize,
    ) -> Result<Moved, Stays> {
        let owned = self.engines.get(number).ok_or(Stays::NotHere)?;
        if owned.making.is_shut() || to == self.index {
            return Err(Stays::NotHere);
        }
        if has_store(&owned.engine) {
            return Err(Stays::Filesystems);
        }
        // Nothing is made in it from here on. What is being made is waited for: it goes, too.
        owned.making.hold().await;
        let volumes = self.volumes_of(&owned.engine);
        let ids: Vec<_> = volumes.iter().map(|volume| volume.handle.id).collect();
        let handed = match self.names.begin_moving_all(&ids) {
            Err(busy) => Err(used(
                &volumes,
                busy,
                "it is being moved, or a stream is being received into it",
            )),
            Ok(()) => {
                let handed = self.hand_it_over(&owned, number, to, &volumes).await;
                self.names.end_moving_all(&ids);
                handed
            }
        };
        match &handed {
            Ok(moved) => {
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
            // It was closed, whoever has it now.
            Err(_) if owned.making.is_gone() => {}
            Err(_) => owned.making.release(),
        }
        handed
    }

    fn volumes_of(&self, engine: &Engine<UringPlatform>) -> Vec<Volume> {
        let mut volumes = Vec::new();
        for dvol in engine.dvols() {
            let id = dvol.handle.id;
            // What isn't in the names is no volume, or is held until it is known whose it is.
            if DvolRole::of(&dvol.attributes).is_some() {
                continue;
            }
            volumes.push(Volume {
                handle: dvol.handle,
                name: self.names.name_of(id).unwrap_or(dvol.name),
                slo: self.slo_of(id),
            });
        }
        volumes
    }

    /// Refuses what another node, or a client, is at work on beside the volume's own operations.
    fn check_unused(&self, number: usize, volumes: &[Volume]) -> Result<(), Stays> {
        for volume in volumes {
            let id = volume.handle.id;
            let how = match () {
                () if self.names.place_of(id).is_none() => {
                    "it is being received, or it isn't known yet whether it is another node's"
                }
                () if self.between.is_unconfirmed(id) || self.between.is_handed_over(id) => {
                    "its move from or to another node isn't confirmed yet"
                }
                () if self.schedules.is_sent(id) => "a snapshot of it is being sent",
                () => continue,
            };
            let volume = volume.name.clone();
            return Err(Stays::Used { volume, how });
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
        number: usize,
        to: usize,
        volumes: &[Volume],
    ) -> Result<Moved, Stays> {
        self.check_unused(number, volumes)?;
        self.quiesce_all(owned, volumes)
            .await
            .map_err(Stays::Failed)?;
        // Nobody writes anything beside its volumes meanwhile.
        let _tokens = owned.tokens.turn().await;
        let _moves = owned.moves.turn().await;
        // So that little is left to be written while clients wait.
        owned.engine.checkpoint().await.map_err(Stays::Failed)?;
        let began = self.platform.now();
        owned.serving.hold().await;
        self.at(MovePoint::JournalHeld).await;
        let scrub = owned.engine.last_scrub();
        let passing = Passing {
            number,
            device: owned.device,
            scrubs: scrub.is_some_and(|report| !report.finished),
            is_apart: owned.is_apart.get(),
        };
        let handed = match owned.engine.hand_over().await {
            Ok(handed) => handed,
            Err(error) => {
                owned.serving.release();
                return Err(Stays::Failed(error));
            }
        };
        // A write whose client has gone may be with the device still, and would land in what the next one has written.
        while !owned.handle.is_idle() {
            self.platform.sleep_ns(LOOK_NS).await;
        }
        self.at(MovePoint::JournalClosed).await;
        let (home, result) = match self.pass_on(to, passing, handed).await {
            Ok(()) => (to, Ok(())),
            // It is closed in order, and nobody is to open it before the next start.
            Err((why, ..)) if self.is_stopping() => (self.index, Err(Stays::Closed(why))),
            Err((why, passing, handed)) => {
                tracing::warn!(
                    device = owned.device,
                    journal = handed.journal_no(),
                    "core {to} can't open a journal: {why}; core {} opens it again",
                    self.index
                );
                self.at(MovePoint::JournalRefused).await;
                self.engines.take(number);
                match self.clone().take_journal_over(passing, handed).await {
                    Ok(()) => (self.index, Err(Stays::Reopened(why))),
                    Err((again, ..)) => {
                        tracing::error!(
                            device = owned.device,
                            journal = owned.engine.journal_no(),
                            "no core can open a journal: {again}; its volumes are served by nobody until the node is started again"
                        );
                        (self.index, Err(Stays::Closed(again)))
                    }
                }
            }
        };
        self.leave(owned, number, home, volumes);
        let held_ns = self.platform.now().since(began);
        result.map(|()| Moved {
            volumes: volumes.len() as u64,
            held_ns,
        })
    }

    /// Its volumes are served by the engine at `home` from this moment on. One step: nobody finds one in two places or in none.
    fn leave(&self, owned: &OwnedEngine, number: usize, home: usize, volumes: &[Volume]) {
        let is_here = home == self.index;
        for volume in volumes {
            let (handle, id) = (volume.handle, volume.handle.id);
            let epoch = owned.engine.epoch_of(handle).unwrap_or_default();
            let notes = self.notes_of(id);
            self.left(id, is_here, &volume.slo);
            let place = Place {
                core: home,
                engine: number,
                id,
            };
            let nth = self.names.moved(place, (epoch, epoch));
            *notes.gone.borrow_mut() = Some(Rc::new(Gone::of(&owned.engine, handle, nth)));
            notes.gate.leave();
            if is_here {
                // What was known of its last change is forgotten.
                let now_ns = self.platform.wall_clock_ns();
                self.notes_of(id).change.tell(now_ns);
            }
        }
        if !is_here {
            self.engines.take(number);
        }
        self.homes.moved(number, home);
        self.between.changed_core(number, home);
        owned.serving.leave();
        owned.making.leave();
        owned.engine.let_go();
    }

    /// Waits for changes of its volumes, and of their snapshots, that were accepted before they were marked.
    async fn quiesce_all(&self, owned: &OwnedEngine, volumes: &[Volume]) -> Result<(), DvolError> {
        let mut turns = Vec::new();
        for volume in volumes {
            // Its size and attributes, and rollbacks, by this.
            if let Some(sizing) = self.sizing_of(volume.handle.id) {
                turns.push(sizing.take(1).await);
            }
        }
        // An engine makes one change of what dvols and layers there are at a time, in the order in which they were asked for. So when this
        // one is made, which changes nothing, those before it have been.
        if let Some(first) = volumes.first() {
            let (_, reserved_bytes) = owned.engine.usage_of(first.handle)?;
            owned
                .engine
                .set_reserved(first.handle, reserved_bytes)
                .await?;
        }
        Ok(())
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
        if let Err(error) = tokens.load(|_| true).await {
            told("the tokens of volumes", error);
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
            let attributes = VolumeAttributes::decode(&dvol.attributes);
            self.set_slo(id, &attributes.slo);
            self.schedules
                .set(passing.number, dvol.handle, attributes.snapshots);
            // It isn't known here when it was last changed, and it may have been since somebody looked.
            self.notes_of(id).change.tell(now_ns);
        }
        if passing.scrubs {
            self.scrub(engine.clone());
        }
        self.serve_engine(OpenedEngine {
            number: passing.number,
            device: passing.device,
            engine,
            handle,
            io,
            tokens,
            moves,
            is_apart: passing.is_apart,
        });
        Ok(())
    }
}

impl RealNode {
    /// The number in the node of a device's journal.
    fn journal_number(&self, device: usize, journal: u16) -> Option<usize> {
        let found = self.devices.get(device)?;
        let before = self.devices.iter().take(device);
        let before: usize = before.map(|device| device.journal_count).sum();
        (usize::from(journal) < found.journal_count).then_some(before + usize::from(journal))
    }

    /// Whether a core serves any journal of a device.
    pub(super) fn serves(&self, core: usize, device: usize) -> bool {
        let journals = self
            .devices
            .get(device)
            .map_or(0, |found| found.journal_count);
        let mut numbers = (0..journals)
            .filter_map(|journal| self.journal_number(device, u16::try_from(journal).ok()?));
        numbers.any(|number| self.homes.of(number) == Some(core))
    }

    pub(super) async fn journals_of(&self, device: String) -> Result<Vec<JournalInfo>, NodeError> {
        let doing = format!("listing the journals of device '{device}'");
        let device = self.device_index(&device, &doing)?;
        let mut journals = Vec::new();
        for core in 0..self.remotes.len() {
            let mine = self.on_core(core, &doing, move |core| async move {
                let first = core.engines.first_of(device);
                let mine = core.engines.of(device).into_iter();
                let infos =
                    mine.map(|(number, owned)| core.journal_info(&owned, first == Some(number)));
                infos.collect::<Vec<_>>()
            });
            journals.extend(mine.await?);
        }
        // One that is just being handed over may have been seen on both.
        journals.sort_by_key(|info| info.journal);
        journals.dedup_by_key(|info| info.journal);
        Ok(journals)
    }

    pub(super) async fn hand_over(
        &self,
        device: String,
        journal: u16,
        core: u32,
    ) -> Result<HandedOverJournal, NodeError> {
        let doing = format!("handing over journal {journal} of device '{device}' to core {core}");
        let index = self.device_index(&device, &doing)?;
        let named = &self.devices[index].name;
        let Some(number) = self.journal_number(index, journal) else {
            let count = counted(self.devices[index].journal_count as u64, "journal");
            let found = format!("the device has {count}, from 0");
            return Err(NodeError::new(NodeErrorKind::NotFound, doing, found)
                .next(format!("`flagstone device journals {named}` lists them")));
        };
        let to = core as usize;
        if to >= self.remotes.len() {
            let count = counted(self.remotes.len() as u64, "core");
            let found = format!("the node has {count}, from 0");
            return Err(NodeError::new(NodeErrorKind::NotFound, doing, found)
                .next("name another core, or start the node with more --cores"));
        }
        let from = self.homes.of(number).unwrap_or_default();
        if from == to {
            let found = format!("core {core} serves it already");
            return Err(
                NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(format!(
                    "`flagstone device journals {named}` says who serves which"
                )),
            );
        }
        let handed = self.on_core(from, &doing, move |core| async move {
            core.hand_journal_over(number, to).await
        });
        match handed.await? {
            Ok(moved) => Ok(HandedOverJournal {
                device: named.clone(),
                journal,
                from_core: from as u32,
                core,
                volume_count: moved.volumes,
                held_us: moved.held_ns / 1000,
            }),
            Err(stays) => Err(stays.error(&doing)),
        }
    }
}

impl Stays {
    fn error(self, doing: &str) -> NodeError {
        let error = |kind, found: String, next: &str| NodeError::new(kind, doing, found).next(next);
        match self {
            Stays::NotHere => error(
                NodeErrorKind::Busy,
                "it is being handed over already".to_owned(),
                "try again",
            ),
            Stays::Filesystems => error(
                NodeErrorKind::InvalidArgument,
                "filesystems are stored in it, which stay on their core".to_owned(),
                "move its volumes one by one: `flagstone volume move NAME --core N`",
            ),
            Stays::Used { volume, how } if volume.is_empty() => error(
                NodeErrorKind::Busy,
                how.to_owned(),
                "try again once that is over",
            ),
            Stays::Used { volume, how } => error(
                NodeErrorKind::Busy,
                format!("volume '{volume}' can't go: {how}"),
                "try again once that is over",
            ),
            Stays::Failed(failed) => node_error(failed, doing),
            Stays::Reopened(why) => error(
                NodeErrorKind::Internal,
                format!("that core could not open it: {why}"),
                "it is served where it was; see the log",
            ),
            Stays::Closed(why) => error(
                NodeErrorKind::Internal,
                format!("no core could open it: {why}"),
                "nothing that was answered is lost, and its volumes are served by nobody: see the log, put that right, and restart the node",
            ),
        }
    }
}

impl CoreNode {
    fn journal_info(&self, owned: &OwnedEngine, takes_new: bool) -> JournalInfo {
        let (mut volumes, mut mapped) = (0, 0);
        for dvol in owned.engine.dvols() {
            volumes += u64::from(DvolRole::of(&dvol.attributes).is_none());
            mapped += dvol.mapped_bytes;
        }
        let io = owned.io.snapshot();
        JournalInfo {
            journal: owned.engine.journal_no(),
            core: self.index as u32,
            volume_count: volumes,
            mapped_bytes: mapped,
            has_filesystems: has_store(&owned.engine),
            takes_new,
            reads: io.read.operations,
            writes: io.write.operations,
        }
    }
}

fn used(volumes: &[Volume], id: flagstone_types::DvolId, how: &'static str) -> Stays {
    let named = volumes.iter().find(|volume| volume.handle.id == id);
    Stays::Used {
        volume: named.map_or_else(|| id.to_string(), |volume| volume.name.clone()),
        how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_begin_where_their_numbers_put_them() {
        let homes = Homes::new([3, 2], 2);
        let all = || {
            (0..5)
                .map(|n| homes.of(n).expect("is one"))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(), [0, 1, 0, 0, 1]);
        assert_eq!(homes.of(5), None);
        homes.moved(3, 1);
        assert_eq!(all(), [0, 1, 0, 1, 1]);
    }
}
