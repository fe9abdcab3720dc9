//! Two nodes in one simulated world, each on a core of its own that can be killed: one that a volume leaves, and one it comes to.
//!
//! A node keeps what it writes down of moves in a dvol of its own, one block.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_client::{Client, Connect, Options};
use flagstone_device::engine::{
    Attributes, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece,
    Stability, format_device,
};
use flagstone_device::transfer::{
    Arrival, DvolOrigin, Gate, Keeper, Marks, NewDvol, POINT_BYTES, Parts, Point, Progress,
    go_on_above,
};
use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest, Arrivals};
use flagstone_gateway::native::volume::NativeError;
use flagstone_gateway::native::{Ends, NativeDirectory, NativeLimits, NativeServer};
use flagstone_moves::away::{
    Ended, Home, Left, Question, RemoteTarget, Start, Told, ask, ask_of_fork, at_start, confirm,
    epoch_above, move_away,
};
use flagstone_moves::here::{RecordBytes, carry_out};
use flagstone_platform::{IoBuf, Listener, Platform};
use flagstone_sim::{DiskConfig, SimDisk, SimListener, SimNetwork, SimPlatform, SimStream, World};
use flagstone_types::{DeviceId, DvolId, Epoch};
use flagstone_wire::Operation;
use flagstone_wire::arrival::{Again, RECORD_BYTES, Settled};
use flagstone_wire::proof::Key;

use crate::nobody::Nobody;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const BLOCKS: u64 = 96;
pub(crate) const ID: DvolId = DvolId(0x51);
pub(crate) const ORIGIN: usize = 0;
pub(crate) const TARGET: usize = 1;
pub(crate) const CLIENTS: usize = 2;

pub(crate) const ARRIVAL: u32 = 7;
pub(crate) const KEY: Key = Key([3; 32]);
const NOTES: &str = ".moves";
/// What goes with the volume.
const TOKENS: u8 = 0x77;

pub(crate) fn at() -> SocketAddr {
    "10.0.0.2:4420".parse().expect("an address")
}

/// Bytes that are copied at once, and from one point to the next.
pub(crate) const PART_BYTES: u64 = 4 * BLOCK;
pub(crate) const POINT_AFTER_BYTES: u64 = 8 * BLOCK;

/// How a dvol is marked.
const ARRIVING: u8 = 1;
const LEAVING: u8 = 2;
const ARRIVING_AT: u8 = 3;
const GOING: u8 = 4;

/// Byte 0 says how it is marked, bytes 8 to 24 with which device, or bytes 8 to 56 how far a copy is; byte 1 is the layer's above. Bytes 2 to 6: of which
/// epoch it comes, as that goes with a volume: whoever held it in that one is let in where it goes, and nobody else.
#[derive(Clone, Copy)]
pub(crate) struct TestMarks;

fn marked(attributes: &Attributes, kind: u8, device: u128) -> Attributes {
    let mut marked = *attributes;
    marked[0] = kind;
    marked[8..24].copy_from_slice(&device.to_le_bytes());
    marked
}

impl Marks for TestMarks {
    fn arriving(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, ARRIVING, 0)
    }

    fn arriving_at(&self, point: &Point) -> Attributes {
        let mut attributes = [0; _];
        attributes[0] = ARRIVING_AT;
        attributes[8..8 + POINT_BYTES].copy_from_slice(&point.encode());
        attributes
    }

    fn point_of(&self, attributes: &Attributes) -> Option<Point> {
        let point = attributes[8..8 + POINT_BYTES].try_into();
        let is_said = attributes[0] == ARRIVING_AT;
        Point::decode(&point.expect("so many bytes")).filter(|_| is_said)
    }

    fn going(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, GOING, device)
    }

    fn leaving(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, LEAVING, device)
    }

    fn stayed(&self, _: &Attributes, _: u128) -> Attributes {
        panic!("between nodes nobody stays who isn't told")
    }

    fn plain(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, 0, 0)
    }
}

/// The epoch that a volume comes of, as was said with it.
pub(crate) fn comes_of(attributes: &Attributes) -> Epoch {
    let epoch = attributes[2..6].try_into();
    Epoch(u32::from_le_bytes(epoch.expect("four bytes")))
}

/// What is written down of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// It comes, or has come, with its tokens.
    Arrival,
    /// It may be there.
    Route,
    /// It is.
    Gone,
    /// It goes on here in this epoch, whatever is there.
    Forced(Epoch),
    /// It is being copied there.
    Going,
    /// It comes.
    Coming,
}

const NOTE_KINDS: [Note; 5] = [
    Note::Arrival,
    Note::Route,
    Note::Gone,
    Note::Going,
    Note::Coming,
];
const FORCED: u8 = 9;

/// An engine, and the block in which moves are noted.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) engine: Engine<SimPlatform>,
    notes: Handle,
}

impl Store {
    pub(crate) async fn format(platform: &SimPlatform, disk: &SimDisk) -> Store {
        format(platform, disk).await;
        let engine = open_engine(platform, disk, EngineOptions::default()).await;
        let notes = CreateDvol {
            name: NOTES.into(),
            id: None,
            size_bytes: BLOCK,
            reserved_bytes: BLOCK,
        };
        let notes = engine.create(notes).await.expect("creates");
        Store { engine, notes }
    }

    async fn open(platform: &SimPlatform, disk: &SimDisk) -> Store {
        let engine = open_engine(platform, disk, EngineOptions::default()).await;
        let notes = engine.dvol(NOTES).expect("is there").handle;
        Store { engine, notes }
    }

    pub(crate) async fn note(&self) -> Option<Note> {
        let read = self.engine.read(self.notes, 0, BLOCK).await;
        match &read.expect("can be read")[..] {
            [Piece::Data(data)] if data[0] == FORCED => {
                let epoch = data[4..8].try_into().expect("four bytes");
                Some(Note::Forced(Epoch(u32::from_le_bytes(epoch))))
            }
            [Piece::Data(data)] => NOTE_KINDS.get(usize::from(data[0])).copied(),
            _ => None,
        }
    }

    async fn put(&self, note: Note) -> Result<(), DvolError> {
        let mut bytes = vec![0; BLOCK as usize];
        match note {
            Note::Forced(epoch) => {
                bytes[0] = FORCED;
                bytes[4..8].copy_from_slice(&epoch.0.to_le_bytes());
            }
            note => {
                let kind = NOTE_KINDS.iter().position(|kind| *kind == note);
                bytes[0] = kind.expect("is one of them") as u8;
            }
        }
        let data = IoBuf::copy_of(&bytes);
        let write = self.engine.write(self.notes, 0, data, Stability::Stable);
        write.await.map(drop)
    }

    async fn forget(&self) -> Result<(), DvolError> {
        let gone = self
            .engine
            .deallocate(self.notes, 0, BLOCK, Stability::Stable);
        gone.await.map(drop)
    }

    /// The volume, and how it is marked.
    pub(crate) fn volume(&self) -> Option<(Handle, u8)> {
        let dvol = self.engine.dvol_with(ID, "vm")?;
        Some((dvol.handle, dvol.attributes[0]))
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.engine.superblock().device_id
    }
}

/// Formats a disk, with one journal.
pub(crate) async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let format = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    let formatted = format_device(platform, &device, format).await;
    formatted.expect("formats");
}

/// Opens the journal of a disk.
pub(crate) async fn open_engine(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// The volume at the origin, and who may change it.
type Here = (Engine<SimPlatform>, Handle, Rc<Gate>);

/// Whom clients find at the origin.
#[derive(Default)]
pub(crate) struct AtOrigin {
    /// None while it is down, or doesn't know whose the volume is.
    pub(crate) here: RefCell<Option<Here>>,
    pub(crate) reads_are_held: Cell<bool>,
    /// It sends clients on.
    pub(crate) is_gone: Cell<bool>,
    /// How the move ended, once it has.
    pub(crate) ended: Cell<Option<bool>>,
    /// Why the volume stayed.
    pub(crate) error: Cell<Option<DvolError>>,
    /// What the target was last found to be wrong with by then, if anything.
    pub(crate) trouble: RefCell<Option<String>>,
    /// Somebody has ended the move.
    pub(crate) is_unwanted: Cell<bool>,
    /// How often it was started.
    pub(crate) lives: Cell<u64>,
    /// It has asked the target in vain.
    pub(crate) unanswered: Cell<bool>,
    /// The target doesn't know that the move is over, which came to nothing.
    pub(crate) is_untold: Cell<bool>,
    /// Somebody has said that the volume stays.
    pub(crate) is_forced: Cell<bool>,
    /// Bytes that it has copied, in all its lives.
    pub(crate) copied_bytes: Cell<u64>,
    /// How often a move went on with something that had been copied before, and what that was.
    pub(crate) resumed: RefCell<Vec<u64>>,
    /// Its move waits for the target.
    pub(crate) waits: Cell<bool>,
    /// How often it has begun to.
    pub(crate) cut_off: Cell<u64>,
    /// Bytes that it copies at once and from one point to the next, if those are others than usual.
    pub(crate) parts: Cell<Option<(u64, u64)>>,
}

/// And at the target.
#[derive(Default)]
pub(crate) struct AtTarget {
    /// What lies on its device, whether it has arrived or not.
    pub(crate) store: RefCell<Option<Store>>,
    pub(crate) here: RefCell<Option<(Engine<SimPlatform>, Handle)>>,
    pub(crate) lives: Cell<u64>,
    /// How many places it has named each time that it has said where a copy goes on.
    pub(crate) told: Rc<RefCell<Vec<usize>>>,
}

#[derive(Clone, Default)]
pub(crate) struct Both {
    pub(crate) origin: Rc<AtOrigin>,
    pub(crate) target: Rc<AtTarget>,
}

/// What the origin writes down.
struct TestHome {
    store: Store,
    origin: Rc<AtOrigin>,
}

impl Home for TestHome {
    async fn keep_going(&self) -> Result<(), DvolError> {
        match self.store.note().await {
            Some(Note::Going | Note::Route) => Ok(()),
            _ => self.store.put(Note::Going).await,
        }
    }

    fn is_unwanted(&self) -> bool {
        self.origin.is_unwanted.get()
    }

    fn cut_off(&self, _: &str) {
        assert!(!self.origin.reads_are_held.get(), "nothing was handed over");
        self.origin.waits.set(true);
        self.origin.cut_off.set(self.origin.cut_off.get() + 1);
    }

    fn goes_on(&self) {
        self.origin.waits.set(false);
    }

    async fn keep_route(&self) -> Result<(), DvolError> {
        self.store.put(Note::Route).await
    }

    async fn gone(&self, at: SocketAddr) -> Result<(), DvolError> {
        assert_eq!(at, crate::node::at());
        self.store.put(Note::Gone).await
    }

    async fn forget_route(&self) -> Result<(), DvolError> {
        self.store.forget().await
    }

    async fn hold_reads(&self) {
        self.origin.reads_are_held.set(true);
    }

    fn release_reads(&self) {
        self.origin.reads_are_held.set(false);
    }

    fn is_stopping(&self) -> bool {
        false
    }

    fn untold(&self) {
        self.origin.is_untold.set(true);
    }

    fn unanswered(&self, _: &str) {
        self.origin.unanswered.set(true);
    }

    fn is_forced(&self) -> bool {
        self.origin.is_forced.get()
    }

    async fn keep_forced(&self, epoch: Epoch) -> Result<(), DvolError> {
        assert!(self.origin.is_forced.get(), "nobody has said so");
        self.store.put(Note::Forced(epoch)).await
    }
}

/// What the target writes down.
pub(crate) struct TestKeeper {
    store: Store,
    target: Rc<AtTarget>,
}

impl TestKeeper {
    pub(crate) fn new(store: &Store, both: &Both) -> TestKeeper {
        TestKeeper {
            store: store.clone(),
            target: both.target.clone(),
        }
    }
}

impl Keeper for TestKeeper {
    type Record = RecordBytes;

    async fn comes(&self, new: &NewDvol) -> Result<(), DvolError> {
        assert_eq!(new.id, ID);
        self.store.put(Note::Coming).await
    }

    async fn take_record(&self, record: Option<RecordBytes>) -> Result<(), DvolError> {
        assert_eq!(record.expect("comes with the volume")[9], TOKENS);
        self.store.put(Note::Arrival).await
    }

    async fn forget(&self, _: bool) -> Result<(), DvolError> {
        self.store.forget().await
    }

    fn arrived(&self, handle: Handle) {
        let here = (self.store.engine.clone(), handle);
        *self.target.here.borrow_mut() = Some(here);
    }
}

type TestArrival = Rc<Arrival<SimPlatform, TestMarks, TestKeeper>>;

/// The one arrival of this node, as long as it knows of it.
#[derive(Clone)]
pub(crate) struct OneArrival {
    arrival: Option<TestArrival>,
    device: DeviceId,
    pub(crate) wrong_proofs: Rc<Cell<u64>>,
    /// The attempt of each request that was carried out.
    pub(crate) attempts: Rc<RefCell<Vec<u64>>>,
    told: Rc<RefCell<Vec<usize>>>,
}

impl OneArrival {
    pub(crate) fn new(arrival: Option<TestArrival>, store: &Store) -> OneArrival {
        OneArrival {
            arrival,
            device: store.device(),
            wrong_proofs: Rc::default(),
            attempts: Rc::default(),
            told: Rc::default(),
        }
    }
}

impl Arrivals for OneArrival {
    fn key(&self, arrival: u32, _: Option<DvolId>) -> Option<Key> {
        (arrival == ARRIVAL && self.arrival.is_some()).then_some(KEY)
    }

    async fn carry_out(
        &self,
        _: u32,
        attempt: u64,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        let arrival = self.arrival.clone().ok_or(NativeError::NotFound)?;
        self.attempts.borrow_mut().push(attempt);
        let reply = carry_out(&arrival, at(), attempt, request).await?;
        if let ArrivalReply::Again(Again {
            left: Some(left), ..
        }) = &reply
        {
            self.told.borrow_mut().push(left.again.len());
        }
        Ok(reply)
    }

    fn unknown(&self, device: DeviceId, _: DvolId) -> Settled {
        match device == self.device {
            true => Settled::Never,
            false => Settled::NotHere,
        }
    }

    fn audit(&self, _: u32, _: Operation, _: &str, _: Ends) {
        self.wrong_proofs.set(self.wrong_proofs.get() + 1);
    }
}

/// Connects through the simulated network.
pub(crate) struct SimConnect(pub(crate) SimNetwork);

impl Connect for SimConnect {
    type Stream = SimStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<SimStream>> + 'static {
        self.0.connect_from("10.0.0.1:9", &address.to_string())
    }
}

/// Serves what a directory has from now on.
pub(crate) async fn serve(
    platform: SimPlatform,
    listener: SimListener,
    directory: impl NativeDirectory,
    limits: NativeLimits,
) {
    let server = NativeServer::new(platform.clone(), directory, limits);
    while let Ok(stream) = listener.accept().await {
        let server = server.clone();
        platform.spawn(async move {
            server.serve_connection(stream, Ends::default()).await;
        });
    }
}

/// The target from its start on: the first with a promise, the later ones with what they find.
pub(crate) async fn run_target(
    platform: SimPlatform,
    network: SimNetwork,
    disk: SimDisk,
    both: Both,
    is_first: bool,
) {
    let store = Store::open(&platform, &disk).await;
    *both.target.store.borrow_mut() = Some(store.clone());
    let keeper = TestKeeper::new(&store, &both);
    let engine = store.engine.clone();
    let arrival = match (is_first, store.volume(), store.note().await) {
        (true, ..) => Some(Arrival::new(engine, TestMarks, keeper)),
        (false, volume, Some(Note::Coming)) => {
            let copy = match volume {
                Some((handle, ARRIVING_AT)) => Some((new_dvol([0; _]), handle)),
                Some((handle, mark)) => {
                    assert_eq!(mark, ARRIVING, "it has come, and it isn't said how");
                    engine.delete(handle, true).await.expect("deletes");
                    None
                }
                None => None,
            };
            let now_ms = platform.wall_clock_ns() / 1_000_000;
            Some(Arrival::left(engine, TestMarks, keeper, copy, now_ms))
        }
        (false, Some((handle, 0)), note) => {
            // It is asked for until it is confirmed.
            let arrived = Arrival::arrived_before(engine.clone(), TestMarks, keeper);
            *both.target.here.borrow_mut() = Some((engine, handle));
            note.map(|note| {
                assert_eq!(note, Note::Arrival, "tokens come before the volume");
                arrived
            })
        }
        (false, Some((handle, _)), _) => {
            engine.delete(handle, true).await.expect("deletes");
            store.forget().await.expect("forgets");
            None
        }
        (false, None, _) => {
            store.forget().await.expect("forgets");
            None
        }
    };
    let directory = Nobody {
        arrivals: OneArrival {
            told: both.target.told.clone(),
            ..OneArrival::new(arrival.map(Rc::new), &store)
        },
        at: at(),
        incarnation: both.target.lives.get(),
    };
    let listener = network.listen(&at().to_string()).expect("listens");
    serve(platform, listener, directory, NativeLimits::default()).await;
}

/// A client of the target.
fn client(platform: &SimPlatform, network: SimNetwork) -> Client<SimPlatform, SimConnect> {
    let options = Options {
        connect_timeout_ns: 200_000_000,
        silence_ns: 500_000_000,
        ..Options::new(vec![at()], "origin")
    };
    Client::new(platform.clone(), SimConnect(network), options)
}

fn new_dvol(attributes: Attributes) -> NewDvol {
    NewDvol {
        id: ID,
        name: "vm".into(),
        reserved_bytes: 0,
        attributes,
    }
}

/// Goes a little slower than it could, so that clients come in between, and no further than to so many bytes.
struct Slowly(SimPlatform, Cell<u64>, Rc<AtOrigin>);

impl Progress for Slowly {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        let drawn_ns = self.0.random_u64() % 2_000_000;
        self.0.sleep_ns(drawn_ns).await;
        let left = self.1.get();
        self.1.set(left.saturating_sub(bytes));
        self.2.copied_bytes.set(self.2.copied_bytes.get() + bytes);
        match left >= bytes && !self.2.is_unwanted.get() {
            true => Ok(()),
            false => Err(DvolError::Busy),
        }
    }

    fn resumed(&self, copied_bytes: u64) {
        if copied_bytes > 0 {
            self.2.resumed.borrow_mut().push(copied_bytes);
        }
    }
}

/// The origin's first life: moves the volume while it is used.
pub(crate) async fn move_volume(
    platform: SimPlatform,
    network: SimNetwork,
    store: Store,
    device: DeviceId,
    both: Both,
    give_up_behind: u64,
) {
    go(
        platform,
        network,
        store,
        device,
        both,
        (give_up_behind, false),
    )
    .await;
}

/// The same, or (`has_begun`) in a later life of the origin.
async fn go(
    platform: SimPlatform,
    network: SimNetwork,
    store: Store,
    device: DeviceId,
    both: Both,
    (give_up_behind, has_begun): (u64, bool),
) {
    let here = both.origin.here.borrow().clone();
    let (engine, handle, gate) = here.expect("is here");
    let client = client(&platform, network);
    let arrival = client.arrival(at(), ARRIVAL, KEY);
    let attributes = engine.attributes_of(handle).expect("is there");
    let epoch = engine.epoch_of(handle).expect("is there");
    let mut attributes = TestMarks.plain(&attributes);
    attributes[2..6].copy_from_slice(&epoch.0.to_le_bytes());
    let new = new_dvol(attributes);
    let target = RemoteTarget::new(platform.clone(), &arrival, new, epoch, 3_000_000_000);
    let parts = both.origin.parts.get();
    let (part_bytes, point_after_bytes) = parts.unwrap_or((PART_BYTES, POINT_AFTER_BYTES));
    let target = target.with_points(point_after_bytes);
    let target = match has_begun {
        true => target.that_has_begun(),
        false => target,
    };
    target.set_record(Some(tokens()));
    let home = TestHome {
        store: store.clone(),
        origin: both.origin.clone(),
    };
    let dvol = DvolOrigin::new(engine.clone(), handle, gate.clone(), TestMarks, device.0);
    let dvol = match has_begun {
        true => dvol.that_is_going(),
        false => dvol,
    };
    dvol.set_parts(Parts {
        bytes: part_bytes,
        ..Parts::QUICK
    });
    let question = Question { device, volume: ID };
    let origin = both.origin.clone();
    let slowly = Slowly(platform.clone(), Cell::new(give_up_behind), origin);
    let ended = move_away(&dvol, &dvol, &target, question, &slowly, &home).await;
    match ended {
        Ended::Went(_) => {
            both.origin.is_gone.set(true);
            gate.leave();
            engine.delete(handle, true).await.expect("deletes");
            let _ = confirm(&platform, &arrival, question).await;
        }
        // Whoever waited at the gate goes on.
        Ended::Stayed(error) => {
            let trouble = target.trouble().map(|error| error.to_string());
            both.origin.error.set(Some(error));
            both.origin.trouble.replace(trouble);
        }
        Ended::Forced(_) => {}
        Ended::CutOff(_) => panic!("nobody stops it"),
        Ended::Unknown(error) => panic!("{error}: {:?}", target.trouble()),
    }
    both.origin.ended.set(Some(matches!(ended, Ended::Went(_))));
}

/// Asks the target of a volume that goes on at the origin whether it has it, too.
pub(crate) async fn fork_of(
    platform: &SimPlatform,
    network: SimNetwork,
    device: DeviceId,
) -> Option<bool> {
    let client = client(platform, network);
    let arrival = client.arrival(at(), ARRIVAL, KEY);
    ask_of_fork(platform, &arrival, Question { device, volume: ID }).await
}

pub(crate) fn tokens() -> RecordBytes {
    let mut tokens = Box::new([0; RECORD_BYTES]);
    tokens[9] = TOKENS;
    tokens
}

/// A later life of the origin: goes on with the move, or asks what became of it, if that has to be asked.
pub(crate) async fn run_origin(
    platform: SimPlatform,
    network: SimNetwork,
    disk: SimDisk,
    device: DeviceId,
    both: Both,
) {
    let store = Store::open(&platform, &disk).await;
    let (volume, note) = (store.volume(), store.note().await);
    let left = Left {
        has_dvol: volume.is_some(),
        is_leaving: volume.is_some_and(|(_, mark)| mark == LEAVING),
        is_going: volume.is_some_and(|(_, mark)| mark == GOING),
        is_gone: note == Some(Note::Gone),
        is_forced: matches!(note, Some(Note::Forced(_))),
    };
    if at_start(left) == Start::GoOn {
        assert!(matches!(note, Some(Note::Going | Note::Route)), "{note:?}");
        let (handle, _) = volume.expect("is here");
        let here = (store.engine.clone(), handle, Rc::default());
        *both.origin.here.borrow_mut() = Some(here);
        return go(platform, network, store, device, both, (u64::MAX, true)).await;
    }
    let client = client(&platform, network);
    let arrival = client.arrival(at(), ARRIVAL, KEY);
    let question = Question { device, volume: ID };
    let home = TestHome {
        store: store.clone(),
        origin: both.origin.clone(),
    };
    let mut forced = match note {
        Some(Note::Forced(epoch)) => Some(epoch),
        _ => None,
    };
    let went = match at_start(left) {
        Start::SendOn => true,
        Start::Abandon | Start::Force | Start::Watch => false,
        Start::GoOn => unreachable!("it has gone on"),
        Start::Ask => {
            assert_eq!(note, Some(Note::Route), "a route before the hold");
            let asked = ask(&platform, &arrival, question, &home).await;
            match asked.expect("it doesn't stop") {
                Told::There(at) => home.gone(at).await.expect("is written down"),
                Told::Never => {}
                Told::Forced => {
                    let (handle, _) = volume.expect("is here");
                    let epoch = store.engine.epoch_of(handle).expect("is here");
                    forced = epoch_above(epoch);
                    let kept = home.keep_forced(forced.expect("there is one above"));
                    kept.await.expect("is written down");
                }
            }
            matches!(asked, Some(Told::There(_)))
        }
    };
    if went {
        both.origin.is_gone.set(true);
        if let Some((handle, _)) = volume {
            store.engine.delete(handle, true).await.expect("deletes");
        }
        let _ = confirm(&platform, &arrival, question).await;
    } else {
        let (handle, _) = volume.expect("is here");
        match forced {
            Some(epoch) => {
                let on = go_on_above(&store.engine, handle, &TestMarks, epoch);
                on.await.expect("goes on");
            }
            None => {
                let attributes = store.engine.attributes_of(handle).expect("is here");
                let plain = TestMarks.plain(&attributes);
                let unmarked = store.engine.set_attributes(handle, plain);
                unmarked.await.expect("unmarks");
                store.forget().await.expect("forgets");
            }
        }
        both.origin.reads_are_held.set(false);
        let here = (store.engine.clone(), handle, Rc::default());
        *both.origin.here.borrow_mut() = Some(here);
        if forced.is_some() {
            both.origin.ended.set(Some(false));
            if ask_of_fork(&platform, &arrival, question).await == Some(false) {
                store.forget().await.expect("forgets");
            }
            return;
        }
        // What the target still has of it, if it is written down where that is.
        if note.is_some() {
            let deadline = platform.now().plus_ns(5_000_000_000);
            let _ = arrival.settle(device, ID, (true, false), deadline).await;
        }
    }
    both.origin.ended.set(Some(went));
}

/// A world of three cores with two formatted disks and the volume on the first.
pub(crate) fn begin(world: &World) -> ([SimDisk; 2], Store, DeviceId, Both) {
    begin_of(world, BLOCKS)
}

/// The same with a volume of so many blocks.
pub(crate) fn begin_of(world: &World, blocks: u64) -> ([SimDisk; 2], Store, DeviceId, Both) {
    let disks = [64 << 20, 64 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
    let both = Both::default();
    let (platform, disk) = (world.platform(TARGET), disks[1].clone());
    let device = world.block_on(TARGET, async move {
        let store = Store::format(&platform, &disk).await;
        let device = store.device();
        store.engine.stop().await.expect("stops");
        device
    });
    let (platform, disk) = (world.platform(ORIGIN), disks[0].clone());
    let told = both.clone();
    let store = world.block_on(ORIGIN, async move {
        let store = Store::format(&platform, &disk).await;
        let mut attributes = [0; _];
        attributes[1] = 9;
        let new = CreateDvol {
            name: "vm".into(),
            id: Some(ID),
            size_bytes: blocks * BLOCK,
            reserved_bytes: 0,
        };
        let made = store.engine.create_with(new, attributes).await;
        let handle = made.expect("creates");
        *told.origin.here.borrow_mut() = Some((store.engine.clone(), handle, Rc::default()));
        store
    });
    (disks, store, device, both)
}

/// What each block of a dvol or layer holds: its number, and its metadata.
pub(crate) async fn read_all(engine: &Engine<SimPlatform>, handle: Handle) -> BTreeMap<u64, u64> {
    read_blocks(engine, handle, BLOCKS).await
}

/// The same of one that has so many.
pub(crate) async fn read_blocks(
    engine: &Engine<SimPlatform>,
    handle: Handle,
    blocks: u64,
) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for block in 0..blocks {
        let read = engine.read_ex(handle, block * BLOCK, BLOCK).await;
        let (pieces, metas) = read.expect("can be read");
        let number = match &pieces[..] {
            [Piece::Data(data)] => u64::from_le_bytes(data[..8].try_into().expect("eight bytes")),
            _ => 0,
        };
        assert_eq!(
            metas[0].meta, number,
            "block {block}: metadata go with the data"
        );
        found.insert(block, number);
    }
    found
}
