//! A node of several cores whose one journal goes from core to core while its volumes are used: the real server on each core, and the real engine below.
//!
//! It does with a journal what the node of the binary does (`journals/mod.rs` there): `hand_it_over` and `leave`, and what `RealVolume` does at its gate.
//! What is missing is turns, names and tokens as the node keeps them, and messages between cores.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_client::Token;
use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{
    self, CreateDvol, DvolError, Engine, EngineOptions, HandedOver, Handle, OpenError, gathered,
};
use flagstone_device::transfer::{Entered, Gate};
use flagstone_gateway::native::directory::{
    Asked, Audit, Found, Grant, NativeDirectory, Rule, TokenKind,
};
use flagstone_gateway::native::volume::{
    Change, ChangeKind, Condition, ConditionKind, Description, NativeError, NativeVolume, Part,
    Parts, SnapshotInfo, Stability, Terms, VolumeRange,
};
use flagstone_gateway::native::{NativeLimits, NoArrivals};
use flagstone_platform::sync::promise;
use flagstone_platform::{BufferPool, IoBuf, Platform};
use flagstone_sim::{Fault, Injection, IoKind, SimDisk, SimPlatform};
use flagstone_types::{DvolId, Epoch, Lsn};
use flagstone_wire::hello::NodeId;
use flagstone_wire::open::Target;
use flagstone_wire::proof::Key;
use flagstone_wire::query::Run;

use super::book::{BLOCK_BYTES, BLOCKS, Book, Done, VOLUMES, values_of};
use crate::node::{format, open_engine, serve};

/// Cores that serve. The world has one more, for the clients.
pub(crate) const CORES: usize = 3;
pub(crate) const NAMES: [&str; VOLUMES] = ["vm", "log"];
/// How often a compare-and-swap looks again that found other bytes than it could show afterwards.
const SWAP_TRIES: u32 = 16;
const NOT_ASKED: NativeError = NativeError::Invalid("nobody asks for it here");

pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        // Blocks that become free are written again at once: what reads them too late reads something else.
        reuse_soon: true,
        ..EngineOptions::default()
    }
}

pub(crate) fn address_of(core: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 10 + core as u8], 4420))
}

pub(crate) fn token() -> Token {
    Token {
        number: 1,
        key: Key([4; 32]),
    }
}

pub(crate) fn id_of(volume: usize) -> DvolId {
    DvolId(0x51 + volume as u128)
}

/// The journal at one core, from one hand-over to the next.
struct Served {
    core: usize,
    engine: Engine<SimPlatform>,
    /// Held while it goes to another core, and gone once it has.
    serving: Gate,
}

/// How often something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moved {
    /// The journal went to another core.
    pub(crate) went: u64,
    /// That could not open it, and it was opened again where it had been.
    pub(crate) came_back: u64,
    /// Requests of open volumes that waited until it was decided where the journal is.
    pub(crate) held: u64,
    /// Requests of open volumes that were answered with another address.
    pub(crate) sent_on: u64,
}

struct Inner {
    platforms: Vec<SimPlatform>,
    disk: SimDisk,
    book: Rc<Book>,
    /// What clients find. It changes in one step.
    served: RefCell<Rc<Served>>,
    is_going: Cell<bool>,
    moved: Cell<Moved>,
}

/// The node. A cheap handle.
#[derive(Clone)]
pub(crate) struct Node {
    inner: Rc<Inner>,
}

/// Has a core do something.
async fn on<T: 'static>(platform: &SimPlatform, work: impl Future<Output = T> + 'static) -> T {
    let (done, awaited) = promise();
    platform.spawn(async move { done.fulfil(work.await) });
    awaited.await.expect("comes to its end")
}

impl Node {
    /// With a formatted disk, and its journal on core 0.
    pub(crate) async fn start(platforms: Vec<SimPlatform>, disk: SimDisk, book: Rc<Book>) -> Node {
        format(&platforms[0], &disk).await;
        let engine = open_engine(&platforms[0], &disk, options()).await;
        for (volume, name) in NAMES.iter().enumerate() {
            let new = CreateDvol {
                name: (*name).into(),
                id: Some(id_of(volume)),
                size_bytes: (BLOCKS * BLOCK_BYTES) as u64,
                reserved_bytes: 0,
            };
            engine.create(new).await.expect("creates");
        }
        let served = Served {
            core: 0,
            engine,
            serving: Gate::default(),
        };
        let inner = Inner {
            platforms,
            disk,
            book,
            served: RefCell::new(Rc::new(served)),
            is_going: Cell::new(false),
            moved: Cell::default(),
        };
        Node {
            inner: Rc::new(inner),
        }
    }

    /// Serves its volumes at a core's address.
    pub(crate) fn serve_at(&self, core: usize) {
        let platform = self.inner.platforms[core].clone();
        let address = address_of(core).to_string();
        let listener = platform.network().listen(&address).expect("nobody listens");
        let directory = OneCore {
            node: self.inner.clone(),
            core,
        };
        // Sessions are kept for longer than anybody is cut off: nothing here is about those that are forgotten.
        let limits = NativeLimits {
            grace_ms: 24 * 3_600_000,
            ..NativeLimits::default()
        };
        platform.spawn(serve(platform.clone(), listener, directory, limits));
    }

    pub(crate) fn moved(&self) -> Moved {
        self.inner.moved.get()
    }

    /// Whether a hand-over is under way.
    pub(crate) fn is_going(&self) -> bool {
        self.inner.is_going.get()
    }

    pub(crate) fn core(&self) -> usize {
        self.inner.served.borrow().core
    }

    /// Gives the journal to another core. If that can't read the device, it goes on where it was.
    pub(crate) async fn hand_over(&self, to: usize, is_refused: bool) {
        let inner = &self.inner;
        let old = inner.served.borrow().clone();
        let home = inner.platforms[old.core].clone();
        inner.is_going.set(true);
        // So that little is left to be written while clients wait.
        let engine = old.engine.clone();
        let written = on(&home, async move { engine.checkpoint().await }).await;
        written.expect("has room");
        old.serving.hold().await;
        let engine = old.engine.clone();
        let handed = on(&home, async move { engine.hand_over().await }).await;
        let handed = handed.expect("is handed over");
        inner.book.all_safe();
        if is_refused {
            let failing = Injection::next(Fault::ReadError).only(IoKind::Read);
            inner.disk.inject(failing.times(u64::MAX));
        }
        let (core, engine) = match inner.take_over(to, handed).await {
            Ok(engine) => {
                inner.count(|moved| moved.went += 1);
                (to, engine)
            }
            Err((_, handed)) => {
                assert!(is_refused, "core {to} opens the journal");
                inner.disk.clear_injections();
                let engine = inner.take_over(old.core, handed).await;
                let engine = engine.map_err(|(error, _)| error).expect("opens again");
                inner.count(|moved| moved.came_back += 1);
                (old.core, engine)
            }
        };
        inner.disk.clear_injections();
        let served = Served {
            core,
            engine,
            serving: Gate::default(),
        };
        *inner.served.borrow_mut() = Rc::new(served);
        old.serving.leave();
        old.engine.let_go();
        inner.is_going.set(false);
    }
}

impl Inner {
    fn count(&self, change: impl FnOnce(&mut Moved)) {
        let mut moved = self.moved.get();
        change(&mut moved);
        self.moved.set(moved);
    }

    async fn take_over(
        &self,
        core: usize,
        handed: HandedOver,
    ) -> Result<Engine<SimPlatform>, (OpenError, HandedOver)> {
        let platform = self.platforms[core].clone();
        let (there, device) = (platform.clone(), platform.open(&self.disk));
        let opening = async move {
            let cache = BlockCache::new(0, BufferPool::new());
            Engine::take_over(&cache, there, device, handed, options()).await
        };
        let (engine, report) = on(&platform, opening).await?;
        assert!(report.clean, "it was handed over in order: {report:?}");
        Ok(engine)
    }
}

/// A volume, as it was opened where its journal was then.
#[derive(Clone)]
pub(crate) struct ServedVolume {
    node: Rc<Inner>,
    served: Rc<Served>,
    volume: usize,
    handle: Handle,
}

impl ServedVolume {
    /// What a client is told of a volume that isn't here any more.
    fn went(&self) -> NativeError {
        self.node.count(|moved| moved.sent_on += 1);
        NativeError::Moved(address_of(self.node.served.borrow().core))
    }

    fn check_here(&self) -> Result<(), NativeError> {
        match self.served.serving.is_gone() {
            true => Err(self.went()),
            false => Ok(()),
        }
    }

    /// That it is served here as long as this is kept.
    async fn entered(&self, terms: &Terms) -> Result<Entered<'_>, NativeError> {
        loop {
            match self.served.serving.try_enter() {
                Ok(Some(entered)) => return Ok(entered),
                Ok(None) => {
                    self.node.count(|moved| moved.held += 1);
                    self.in_time(self.served.serving.opened(), terms).await?;
                }
                Err(_) => return Err(self.went()),
            }
        }
    }

    async fn in_time(
        &self,
        what: impl Future<Output = ()>,
        terms: &Terms,
    ) -> Result<(), NativeError> {
        let Some(until) = terms.until else {
            what.await;
            return Ok(());
        };
        let platform = &self.node.platforms[self.served.core];
        let (mut what, mut late) = (pin!(what), pin!(platform.sleep_until(until)));
        poll_fn(|context| match what.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => late.as_mut().poll(context).map(|()| Err(NativeError::Late)),
        })
        .await
    }

    /// What becomes of an error of the device layer.
    fn error(&self, error: DvolError, changing: bool) -> NativeError {
        match error {
            DvolError::NotFound if self.served.serving.is_gone() => self.went(),
            DvolError::NotFound => NativeError::Gone,
            DvolError::Stopping if changing => NativeError::Fenced,
            DvolError::Stopping => NativeError::Stopping,
            DvolError::ConditionFailed(lsn) => NativeError::ConditionFailed(lsn),
            DvolError::NotEqual => NativeError::NotEqual(None),
            DvolError::Fenced => NativeError::Fenced,
            DvolError::Corrupt => NativeError::Corrupt,
            DvolError::NoSpace => NativeError::NoSpace,
            _ => NativeError::Device,
        }
    }

    fn carried_out(&self, offset_bytes: u64, bytes: &[u8], lsn: Lsn, stability: Stability) {
        let values = values_of(self.volume, offset_bytes, bytes).into_iter();
        self.node.book.carried_out(Done {
            writes: values.map(|(spot, value)| (spot, value, lsn)).collect(),
            is_safe: stability == Stability::Stable,
        });
    }
}

fn stability_of(stability: Stability) -> engine::Stability {
    match stability {
        Stability::Stable => engine::Stability::Stable,
        Stability::Unstable => engine::Stability::Unstable,
    }
}

fn condition_of(condition: Condition<ServedVolume>) -> Result<engine::Condition, NativeError> {
    let handle = condition.volume.handle;
    match condition.what {
        ConditionKind::Equals {
            offset_bytes,
            bytes,
        } => Ok(engine::Condition::Equals {
            handle,
            offset_bytes,
            bytes,
        }),
        ConditionKind::UnchangedSince { .. } | ConditionKind::Epoch(_) => Err(NOT_ASKED),
    }
}

impl NativeVolume for ServedVolume {
    fn gone(&self) -> NativeError {
        self.went()
    }

    fn describe(&self) -> Option<Description> {
        if self.served.serving.is_gone() {
            return None;
        }
        let engine = &self.served.engine;
        Some(Description {
            id: self.handle.id,
            size_bytes: engine.size_of(self.handle).ok()?,
            epoch: engine.epoch_of(self.handle).ok()?,
            read_only: false,
            snapshot: false,
            floor: engine.floor_of(self.handle).ok()?,
            device: engine.superblock().device_id,
            failure_domain: "".into(),
        })
    }

    fn lsn(&self) -> Lsn {
        let lsn = self.served.engine.lsn_of(self.handle);
        lsn.unwrap_or(Lsn::ZERO)
    }

    async fn read(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Parts, NativeError> {
        let _entered = self.entered(terms).await?;
        let read = self
            .served
            .engine
            .read(self.handle, offset_bytes, len_bytes.into());
        let part = |piece| match piece {
            engine::Piece::Data(data) => {
                let crc = data.crc32c();
                Part::Data(data.into_buf(), crc)
            }
            engine::Piece::Zeros(len) => Part::Zeros(len),
        };
        let pieces = read.await.map_err(|error| self.error(error, false))?;
        Ok(pieces.into_iter().map(part).collect())
    }

    async fn write(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let _entered = self.entered(terms).await?;
        let (meta, stable) = (metadata.unwrap_or(0), stability_of(stability));
        let (engine, written) = (&self.served.engine, data.clone());
        let write = engine.write_ex(self.handle, offset_bytes, data, meta, stable);
        let lsn = write.await.map_err(|error| self.error(error, true))?;
        self.carried_out(offset_bytes, &written, lsn, stability);
        Ok(lsn)
    }

    async fn flush(&self, terms: &Terms) -> Result<Lsn, NativeError> {
        let engine = &self.served.engine;
        // All that was answered by now has this one or a lower one.
        let lsn = engine.lsn_of(self.handle);
        let lsn = lsn.map_err(|error| self.error(error, false))?;
        let _entered = self.entered(terms).await?;
        let flush = engine.flush();
        flush.await.map_err(|error| self.error(error, true))?;
        Ok(lsn)
    }

    async fn compare_and_swap(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let (engine, stable) = (&self.served.engine, stability_of(stability));
        for _ in 0..SWAP_TRIES {
            let _entered = self.entered(terms).await?;
            let (old, new) = (expected.clone(), new.clone());
            let swap = engine.compare_and_swap(self.handle, offset_bytes, old, new.clone(), stable);
            match swap.await {
                Ok(lsn) => {
                    self.carried_out(offset_bytes, &new, lsn, stability);
                    return Ok(lsn);
                }
                Err(DvolError::NotEqual) => {}
                Err(error) => return Err(self.error(error, true)),
            }
            let len_bytes = expected.len() as u64;
            let found = engine.read(self.handle, offset_bytes, len_bytes).await;
            let found = found.map_err(|error| self.error(error, false))?;
            let found = IoBuf::copy_of(&gathered(&found, len_bytes));
            // Somebody may have put there meanwhile what was expected: then that is what it is to be compared with.
            if found[..] != expected[..] {
                return Err(NativeError::NotEqual(Some(found)));
            }
        }
        Err(NativeError::Busy)
    }

    async fn commit(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        changes: Vec<Change<Self>>,
        stability: Stability,
    ) -> Result<Vec<Lsn>, NativeError> {
        let volumes = conditions.iter().map(|condition| &condition.volume);
        for volume in volumes.chain(changes.iter().map(|change| &change.volume)) {
            volume.check_here()?;
        }
        // What is here is of the one journal.
        let first = changes.first().map(|change| change.volume.clone());
        let first = first.expect("the server asks for one at least");
        let _entered = first.entered(terms).await?;
        let mut batch = engine::Batch::default();
        for condition in conditions {
            batch.conditions.push(condition_of(condition)?);
        }
        for change in &changes {
            let ChangeKind::Write {
                offset_bytes,
                data,
                metadata,
            } = &change.what
            else {
                return Err(NOT_ASKED);
            };
            batch.changes.push(engine::Change::Write {
                handle: change.volume.handle,
                offset_bytes: *offset_bytes,
                data: data.clone(),
                meta: *metadata,
            });
        }
        let commit = first.served.engine.commit(batch, stability_of(stability));
        let lsns = commit.await.map_err(|error| first.error(error, true))?;
        for (change, lsn) in changes.iter().zip(&lsns) {
            if let ChangeKind::Write {
                offset_bytes, data, ..
            } = &change.what
            {
                let volume = &change.volume;
                volume.carried_out(*offset_bytes, data, *lsn, stability);
            }
        }
        Ok(lsns)
    }

    async fn zero(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: bool,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        Err(NOT_ASKED)
    }

    async fn deallocate(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        Err(NOT_ASKED)
    }

    async fn read_metadata(
        &self,
        _: &Terms,
        _: u64,
        _: u32,
    ) -> Result<(Parts, Vec<(Lsn, u64)>), NativeError> {
        Err(NOT_ASKED)
    }

    async fn allocation(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        Err(NOT_ASKED)
    }

    async fn changed_since(
        &self,
        _: &Terms,
        _: Lsn,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        Err(NOT_ASKED)
    }

    async fn set_epoch(&self, _: &Terms, _: Option<Epoch>) -> Result<Epoch, NativeError> {
        Err(NOT_ASKED)
    }

    async fn delete_snapshot(&self, _: &Terms, _: &str) -> Result<(), NativeError> {
        Err(NOT_ASKED)
    }

    async fn roll_back(&self, _: &Terms, _: &str) -> Result<Lsn, NativeError> {
        Err(NOT_ASKED)
    }

    async fn snapshots(
        &self,
        _: &Terms,
        _: &str,
        _: usize,
    ) -> Result<Vec<SnapshotInfo>, NativeError> {
        Err(NOT_ASKED)
    }

    async fn resize(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        Err(NOT_ASKED)
    }

    async fn reserve(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        Err(NOT_ASKED)
    }

    async fn read_if(
        _: &Terms,
        _: Vec<Condition<Self>>,
        _: Vec<VolumeRange<Self>>,
    ) -> Result<Parts, NativeError> {
        Err(NOT_ASKED)
    }

    async fn snapshot(_: &Terms, _: Vec<(Self, Epoch, String)>) -> Result<Vec<Lsn>, NativeError> {
        Err(NOT_ASKED)
    }
}

pub(crate) struct OwnerGrant;

impl Grant for OwnerGrant {
    fn kind(&self) -> TokenKind {
        TokenKind::Owner
    }

    fn is_revoked(&self) -> bool {
        false
    }
}

/// The node as one core's server sees it.
#[derive(Clone)]
struct OneCore {
    node: Rc<Inner>,
    core: usize,
}

impl NativeDirectory for OneCore {
    type Volume = ServedVolume;
    type Grant = OwnerGrant;
    type Arrivals = NoArrivals;

    async fn open(&self, asked: &Asked<'_>) -> Found<ServedVolume, OwnerGrant> {
        let Target::Name(name) = asked.claim.target else {
            return Found::Denied(Rule::UnknownVolume);
        };
        let Some(volume) = NAMES.iter().position(|known| *known == name) else {
            return Found::Denied(Rule::UnknownVolume);
        };
        if !asked.claim.is_proven(&token().key, asked.proof) {
            return Found::Denied(Rule::WrongProof);
        }
        let served = self.node.served.borrow().clone();
        if served.core != self.core {
            return Found::At(address_of(served.core));
        }
        let Some(dvol) = served.engine.dvol_with(id_of(volume), name) else {
            return Found::Failed(NativeError::Gone);
        };
        let volume = ServedVolume {
            node: self.node.clone(),
            served,
            volume,
            handle: dvol.handle,
        };
        Found::Here(volume, OwnerGrant)
    }

    fn arrivals(&self) -> NoArrivals {
        NoArrivals
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        out.extend((0..CORES).map(address_of));
    }

    fn core(&self) -> u16 {
        self.core as u16
    }

    fn node(&self) -> NodeId {
        NodeId([9; 16])
    }

    fn incarnation(&self) -> u64 {
        1
    }

    fn audit(&self, _: &Audit<'_>) {}
}
