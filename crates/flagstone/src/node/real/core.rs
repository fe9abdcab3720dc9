//! What lives on one core: engines, the NBD server, counters. Reached through thread-local
//! storage by messages from the control side. Beside it `nbd` (connections and names of NBD) and `tenants` (turns of volumes).

mod nbd;
mod tenants;

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{DvolError, Engine, Handle};
use flagstone_device::transfer::Gate;
use flagstone_gateway::native::{NativeLimits, NativeServer};
use flagstone_gateway::nbd::{NbdLimits, NbdServer};
use flagstone_platform::Platform;
use flagstone_platform::sync::Budget;
use flagstone_runtime::{CoreRemote, Refused, UringListener, UringPlatform};
use flagstone_sched::{Device as DividedDevice, Turns, WeakTenant};
use flagstone_tls::ServerTls;
use flagstone_types::DvolId;

use super::access::Access;
use super::attributes::{StripePart, VolumeAttributes};
use super::background;
use super::between::Between;
use super::between::again::ExpectedAgain;
use super::between::arrivals::CoreArrivals;
use super::between::found::{ComesAgain, LeftOver};
use super::between::word::Asking;
use super::engines::{Engines, OwnedEngine};
use super::files::CoreFiles;
use super::journals::Homes;
use super::moving::Arriving;
use super::names::Names;
use super::native::{Identity, NativeNames};
use super::notes::VolumeNotes;
use super::opening::{OpenedEngine, Opener};
use super::recording::Recording;
use super::schedule::{self, Schedules};
use super::start::Share;
use super::stripes::notes_as_member;
use super::volume::{AskedBy, RealVolume, VolumeCounters};
use crate::node::{MoveHooks, MovePoint, Slo};

pub(super) use self::nbd::Directory;

thread_local! {
    static CORE: RefCell<Option<Rc<CoreNode>>> = const { RefCell::new(None) };
}

/// Why another core was not asked, or has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unasked {
    /// It is behind; later it may not be.
    Busy,
    /// It has stopped.
    Stopped,
}

/// How devices are divided, as a core has to know it when it begins.
pub(super) struct Divided {
    /// What all cores share of each device of the node.
    pub(super) devices: Vec<Arc<DividedDevice>>,
    /// SLOs of this core's volumes, but for those that have the one of all.
    pub(super) slos: BTreeMap<DvolId, Slo>,
}

/// What a core has to know of volumes when it begins.
pub(super) struct Known {
    pub(super) names: Names,
    /// Which core serves which journal.
    pub(super) homes: Arc<Homes>,
    /// Who may open which.
    pub(super) access: Access,
    /// Which volumes are elsewhere.
    pub(super) between: Between,
    /// What takes other nodes to be settled.
    pub(super) left_over: Vec<LeftOver>,
    /// What was on its way here.
    pub(super) comes_again: Vec<ComesAgain>,
    /// What clients of the native protocol are told of the node.
    pub(super) identity: Identity,
    /// What fails together with it, as whoever runs it calls it.
    pub(super) failure_domain: Arc<str>,
    /// Which volumes of the core have snapshots taken by themselves.
    pub(super) schedules: Schedules,
    /// What clients of NBD and the native protocol may, or have to, begin.
    pub(super) tls: Option<ServerTls>,
    /// For tests of moves to other nodes.
    pub(super) move_hooks: MoveHooks,
}

/// A core's part of the node.
pub(super) struct CoreNode {
    pub(super) index: usize,
    pub(super) platform: UringPlatform,
    pub(super) engines: Rc<Engines>,
    /// How journals are opened.
    pub(super) opener: Opener,
    pub(super) names: Names,
    /// Which core serves which journal.
    pub(super) homes: Arc<Homes>,
    /// Who may open which volume of the node.
    pub(super) access: Access,
    /// Which volumes are at other nodes, or may be.
    pub(super) between: Between,
    /// Volumes that may come from other nodes to this core.
    pub(super) arrivals: CoreArrivals,
    /// Volumes of this core that are held, since another node was asked in vain whose they are.
    pub(super) asking: Asking,
    /// For tests.
    pub(super) move_hooks: MoveHooks,
    /// What takes other nodes to be settled, until that is begun.
    pub(super) left_over: RefCell<Vec<LeftOver>>,
    /// What was on its way here, until that is waited for.
    pub(super) comes_again: RefCell<Vec<ComesAgain>>,
    /// What of that is waited for, until it is counted what it was promised.
    pub(super) expected_again: RefCell<Vec<ExpectedAgain>>,
    pub(super) recording: Recording,
    pub(super) schedules: Schedules,
    pub(super) files: CoreFiles,
    /// All cores, to hand connections over.
    remotes: RefCell<Vec<CoreRemote>>,
    nbd: RefCell<Option<NbdServer<UringPlatform, Directory>>>,
    native: RefCell<Option<NativeServer<UringPlatform, NativeNames>>>,
    /// Until it is served.
    pub(super) native_listener: Cell<Option<UringListener>>,
    /// Where each core listens for the native protocol; none if the node doesn't.
    native_addresses: RefCell<Vec<SocketAddr>>,
    pub(super) identity: Identity,
    counters: RefCell<BTreeMap<DvolId, Rc<VolumeCounters>>>,
    /// Of what is asked of members of striped volumes: the whole is counted.
    pub(super) uncounted: Rc<VolumeCounters>,
    /// What operations took, by who asked for them.
    pub(super) asked: AskedBy,
    /// Turns at each device of the node.
    pub(super) turns: Vec<Turns<UringPlatform>>,
    /// Of volumes that have another SLO than all.
    slos: RefCell<BTreeMap<DvolId, Slo>>,
    /// Of volumes that somebody uses.
    tenants: RefCell<BTreeMap<DvolId, WeakTenant<UringPlatform>>>,
    /// Tenants that were in use a short while ago: a file of a volume is opened anew for each call.
    lingering: Rc<RefCell<tenants::Lingering>>,
    /// Of each volume that somebody has looked at.
    notes: RefCell<BTreeMap<DvolId, Rc<VolumeNotes>>>,
    /// When this run of the node began, in nanoseconds since 1970.
    pub(super) started_ns: u64,
    /// Differs from that of each other run: what was written to volumes and is not durable may be lost between two.
    pub(super) life: u64,
    /// Of each volume whose size was changed: one at a time does that.
    sizing: RefCell<BTreeMap<DvolId, Rc<Budget>>>,
    /// Volumes that are being moved to this core.
    arriving: RefCell<BTreeMap<DvolId, Rc<Arriving>>>,
    /// What fails together with this node, as whoever runs it calls it.
    failure_domain: Rc<str>,
    stopping: Cell<bool>,
    /// NBD connections for whose hand-over another core has no room yet.
    hand_overs_waiting: Cell<u32>,
    /// How long a stop waits for what is in flight to be answered, in nanoseconds.
    stop_grace_ns: u64,
}

/// This core's part of the node, once it is there.
pub(super) fn current() -> Option<Rc<CoreNode>> {
    CORE.with(|core| core.borrow().clone())
}

impl CoreNode {
    /// Puts the core's part in place.
    pub(super) fn install(
        platform: &UringPlatform,
        (opener, opened): (Opener, Vec<OpenedEngine>),
        known: Known,
        recording: Recording,
        files: CoreFiles,
        share: Share,
        divided: Divided,
    ) -> Rc<CoreNode> {
        let engines = Rc::new(Engines::new(known.homes.clone()));
        let turns = divided.devices.into_iter().enumerate();
        let turns = turns.map(|(device, divided)| {
            // Engines have tenants, and those their turns.
            let engines = Rc::downgrade(&engines);
            let flushes = move || {
                engines
                    .upgrade()
                    .map_or(0, |engines| engines.flushes(device))
            };
            Turns::new(platform.clone(), platform.core_index(), divided, flushes)
        });
        let turns: Vec<_> = turns.collect();
        let core = Rc::new(CoreNode {
            index: platform.core_index(),
            platform: platform.clone(),
            engines,
            opener,
            names: known.names,
            homes: known.homes,
            access: known.access,
            between: known.between,
            arrivals: CoreArrivals::default(),
            asking: Asking::default(),
            move_hooks: known.move_hooks,
            left_over: RefCell::new(known.left_over),
            comes_again: RefCell::new(known.comes_again),
            expected_again: RefCell::default(),
            recording,
            schedules: known.schedules,
            files,
            remotes: RefCell::default(),
            nbd: RefCell::default(),
            native: RefCell::default(),
            native_listener: Cell::new(None),
            native_addresses: RefCell::default(),
            identity: known.identity,
            counters: RefCell::default(),
            uncounted: Rc::default(),
            asked: AskedBy::default(),
            turns,
            slos: RefCell::new(divided.slos),
            tenants: RefCell::default(),
            lingering: Rc::default(),
            notes: RefCell::default(),
            started_ns: platform.wall_clock_ns(),
            life: platform.random_u64(),
            sizing: RefCell::default(),
            arriving: RefCell::default(),
            failure_domain: Rc::from(&*known.failure_domain),
            stopping: Cell::new(false),
            hand_overs_waiting: Cell::new(0),
            stop_grace_ns: share.stop_grace_ns,
        });
        for opened in opened {
            core.serve_engine(opened);
        }
        let server = NbdServer::with_tls(
            platform.clone(),
            Directory { core: core.clone() },
            NbdLimits {
                connections_max: share.connections_max,
                ..NbdLimits::default()
            },
            known.tls.clone(),
        );
        *core.nbd.borrow_mut() = Some(server);
        let native = NativeServer::with_tls(
            platform.clone(),
            NativeNames { core: core.clone() },
            NativeLimits {
                connections_max: share.native_connections_max,
                ..NativeLimits::default()
            },
            known.tls,
        );
        *core.native.borrow_mut() = Some(native);
        CORE.with(|slot| *slot.borrow_mut() = Some(core.clone()));
        core
    }

    /// Takes snapshots by schedule from now on: once it is known which volumes there are.
    pub(super) fn begin_schedules(self: &Rc<Self>) {
        self.platform.spawn(schedule::run(self.clone()));
    }

    /// Tells the core where the others are.
    pub(super) fn set_remotes(&self, remotes: Vec<CoreRemote>) {
        *self.remotes.borrow_mut() = remotes;
    }

    /// The NBD server of this core.
    pub(super) fn nbd(&self) -> Option<NbdServer<UringPlatform, Directory>> {
        self.nbd.borrow().clone()
    }

    /// The server of the native protocol of this core.
    pub(super) fn native(&self) -> Option<NativeServer<UringPlatform, NativeNames>> {
        self.native.borrow().clone()
    }

    /// Where the cores listen for the native protocol.
    pub(super) fn native_addresses(&self) -> Ref<'_, Vec<SocketAddr>> {
        self.native_addresses.borrow()
    }

    /// Tells the core where the cores listen for the native protocol.
    pub(super) fn set_native_addresses(&self, addresses: Vec<SocketAddr>) {
        *self.native_addresses.borrow_mut() = addresses;
    }

    /// A move is at this point. In a test it may stay there for good.
    pub(super) async fn at(&self, point: MovePoint) {
        if !self.move_hooks.goes_on(point) {
            std::future::pending::<()>().await;
        }
    }

    /// True once the node is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Counters of a volume, kept until it is deleted.
    fn counters_of(&self, id: DvolId) -> Rc<VolumeCounters> {
        self.counters.borrow_mut().entry(id).or_default().clone()
    }

    /// What is remembered of a volume until it is deleted.
    pub(super) fn notes_of(&self, id: DvolId) -> Rc<VolumeNotes> {
        self.notes.borrow_mut().entry(id).or_default().clone()
    }

    /// The turns of those who change a volume's size.
    pub(super) fn sizing(&self, id: DvolId) -> Rc<Budget> {
        let mut sizing = self.sizing.borrow_mut();
        let turns = sizing.entry(id).or_insert_with(|| Rc::new(Budget::new(1)));
        turns.clone()
    }

    /// The same, if there are any.
    pub(super) fn sizing_of(&self, id: DvolId) -> Option<Rc<Budget>> {
        self.sizing.borrow().get(&id).cloned()
    }

    /// Whether a volume is being moved to this journal.
    pub(super) fn is_target(&self, number: usize) -> bool {
        let arriving = self.arriving.borrow();
        arriving.values().any(|one| one.at() == number)
    }

    /// Volumes of which there are counters, by id.
    pub(super) fn counted(&self) -> Vec<DvolId> {
        self.counters.borrow().keys().copied().collect()
    }

    /// Volumes of which there are counters.
    #[cfg(test)]
    pub(super) fn counted_volumes(&self) -> usize {
        self.counters.borrow().len()
    }

    /// How often each volume itself, not a snapshot of it, is attached or open.
    pub(super) fn attached(&self) -> BTreeMap<DvolId, u64> {
        let mut counts = BTreeMap::new();
        let mut count = |volume: &RealVolume| {
            if volume.handle.layer.is_none() {
                *counts.entry(volume.handle.id).or_default() += 1;
            }
        };
        if let Some(server) = self.nbd() {
            server.for_each_attached(&mut count);
        }
        if let Some(server) = self.native() {
            server.for_each_open(&mut count);
        }
        counts
    }

    /// Says in the log what happens to the clients of a volume that is changed under them.
    pub(super) fn tell_of_attached(&self, id: DvolId, volume: &str, what: &str) {
        let connections = self.attached().get(&id).copied().unwrap_or(0);
        if connections > 0 {
            tracing::warn!(volume, connections, "{what}");
        }
    }

    /// A volume was deleted: its counters go, with the last client that is still attached to it.
    pub(super) fn forget(&self, id: DvolId) {
        self.counters.borrow_mut().remove(&id);
        self.sizing.borrow_mut().remove(&id);
        self.slos.borrow_mut().remove(&id);
        self.leave_tenant(id);
        self.notes.borrow_mut().remove(&id);
        self.notes.borrow_mut().remove(&notes_as_member(id));
        self.schedules.forget(id);
    }

    /// The engine that has a volume.
    pub(super) fn engine(&self, number: usize) -> Option<Engine<UringPlatform>> {
        self.engines.get(number).map(|owned| owned.engine.clone())
    }

    /// A journal that this core serves.
    pub(super) fn owned(&self, number: usize) -> Result<Rc<OwnedEngine>, DvolError> {
        self.engines.get(number).ok_or(DvolError::NotFound)
    }

    /// Serves a journal from now on.
    pub(super) fn serve_engine(&self, opened: OpenedEngine) {
        let Some(turns) = self.turns.get(opened.device) else {
            return;
        };
        let owned = OwnedEngine {
            own_work: background::schedule(&opened.engine, turns),
            mover: background::mover(&opened.engine, turns),
            is_guest: usize::from(opened.engine.journal_no()) % self.opener.cores != self.index,
            number: opened.number,
            device: opened.device,
            engine: opened.engine,
            handle: opened.handle,
            io: opened.io,
            tokens: opened.tokens,
            moves: opened.moves,
            serving: Rc::default(),
            making: Gate::default(),
        };
        self.engines.put(owned);
    }

    /// A volume, or a snapshot of one, to be read and written: for the native server, unless whoever has it opened says so ([`RealVolume::asked`]). `None` while a stream is being received into it: what it
    /// has then is neither of two states.
    pub(super) fn volume(&self, engine: usize, handle: Handle) -> Option<RealVolume> {
        let is_receiving = handle.layer.is_none() && self.names.is_receiving(handle.id);
        if is_receiving || self.names.is_unwhole(handle.id) {
            return None;
        }
        let volume = self.volume_alone(engine, handle)?;
        let attributes = volume.engine.attributes_of(handle).ok()?;
        let stripe = match VolumeAttributes::decode(&attributes).stripe {
            None => None,
            // One that isn't whole is not to be taken for what one member has.
            Some(StripePart::Head { .. }) => Some(self.open_stripe(&volume.engine, handle)?),
            Some(StripePart::Member { .. }) => return None,
        };
        Some(RealVolume {
            stripe,
            asked: self.asked.native.clone(),
            ..volume
        })
    }

    /// Refuses a change of a volume that a stream is being received into, or that is being moved. Asked on the core, right before the change:
    /// whoever closes the volume waits for those that were let through.
    pub(super) fn check_settled(&self, id: DvolId) -> Result<(), DvolError> {
        let is_moving = self.names.is_moving(id);
        match self.names.is_receiving(id) || is_moving || self.names.is_unwhole(id) {
            true => Err(DvolError::Busy),
            false => Ok(()),
        }
    }

    /// Refuses a change of a volume that is being moved. Asked on the core, right before the change.
    pub(super) fn check_not_moving(&self, id: DvolId) -> Result<(), DvolError> {
        match self.names.is_moving(id) {
            true => Err(DvolError::Busy),
            false => Ok(()),
        }
    }

    /// A volume that is being moved to this core.
    pub(super) fn arriving_of(&self, id: DvolId) -> Option<Rc<Arriving>> {
        self.arriving.borrow().get(&id).cloned()
    }

    /// It begins to arrive.
    pub(super) fn put_arriving(&self, id: DvolId, arriving: Rc<Arriving>) {
        self.arriving.borrow_mut().insert(id, arriving);
    }

    /// It has arrived, or won't.
    pub(super) fn take_arriving(&self, id: DvolId) -> Option<Rc<Arriving>> {
        self.arriving.borrow_mut().remove(&id)
    }

    /// A volume has left its place on this core, for another one `here` or for another core. Those who have it open keep
    /// what they need.
    pub(super) fn left(&self, id: DvolId, here: bool, slo: &Slo) {
        self.sizing.borrow_mut().remove(&id);
        self.leave_tenant(id);
        self.notes.borrow_mut().remove(&id);
        self.notes.borrow_mut().remove(&notes_as_member(id));
        match here {
            true => self.set_slo(id, slo),
            false => {
                self.schedules.forget(id);
                self.counters.borrow_mut().remove(&id);
                self.slos.borrow_mut().remove(&id);
            }
        }
    }

    /// A dvol or a snapshot of one: of a striped volume one member. Also while a stream is received into it.
    pub(super) fn volume_alone(&self, engine: usize, handle: Handle) -> Option<RealVolume> {
        let owned = self.engines.get(engine)?;
        Some(RealVolume {
            platform: self.platform.clone(),
            engine: owned.engine.clone(),
            handle,
            epoch: owned.engine.epoch_of(handle).unwrap_or_default(),
            failure_domain: self.failure_domain.clone(),
            tenant: self.tenant_of(owned.device, handle.id)?,
            counters: self.counters_of(handle.id),
            asked: self.asked.others.clone(),
            serving: owned.serving.clone(),
            notes: self.notes_of(handle.id),
            stripe: None,
            recording: self.recording.clone(),
        })
    }

    /// How many cores the node has.
    pub(super) fn cores(&self) -> usize {
        self.remotes.borrow().len()
    }

    /// Has another core of the node do something, and waits for what comes of it. It is done even if whoever asked
    /// doesn't wait.
    pub(super) async fn ask<R, F>(
        &self,
        core: usize,
        work: impl FnOnce(Rc<CoreNode>) -> F + Send + 'static,
    ) -> Result<R, Unasked>
    where
        R: Send + 'static,
        F: Future<Output = R> + 'static,
    {
        let remote = self.remotes.borrow().get(core).cloned();
        let remote = remote.ok_or(Unasked::Stopped)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let sent = remote.try_send(Box::new(move |platform| {
            let Some(core) = current() else { return };
            let running = work(core);
            platform.spawn(async move { drop(sender.send(running.await)) });
        }));
        match sent {
            Ok(()) => receiver.await.map_err(|_| Unasked::Stopped),
            Err(Refused::Full(_)) => Err(Unasked::Busy),
            Err(Refused::Stopped(_)) => Err(Unasked::Stopped),
        }
    }

    /// Stops serving clients of volumes. All cores do before one of them stops its engines: volumes may have members on several.
    pub(super) async fn stop_serving(&self) {
        if self.stopping.replace(true) {
            return;
        }
        self.schedules.wake();
        if let Some(server) = self.nbd()
            && !server.stop_within(self.stop_grace_ns).await
        {
            // What a volume is still at work on, it refuses to go on with once it stops, below.
            tracing::warn!("NBD clients that did not take their answers are cut off");
        }
        if let Some(server) = self.native()
            && !server.stop_within(self.stop_grace_ns).await
        {
            tracing::warn!(
                "clients of the native protocol that did not take their answers are cut off"
            );
        }
        self.files.stop(self.stop_grace_ns).await;
    }

    /// Stops serving: connections first, then the filesystems, then the engines.
    pub(super) async fn stop(&self) -> Result<(), String> {
        self.stop_serving().await;
        let mut failed = None;
        for (_, owned) in self.engines.all() {
            if let Err(error) = owned.engine.stop().await {
                failed = Some(error.to_string());
            }
        }
        // Engines and servers hold each other's core; letting go lets everything drop.
        *self.nbd.borrow_mut() = None;
        *self.native.borrow_mut() = None;
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
