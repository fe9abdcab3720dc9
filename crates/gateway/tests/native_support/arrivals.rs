//! What the fuzzer runs of volumes that arrive from other nodes: a script of requests, most of them in order and with a right proof, some with
//! a wrong one, some that make no sense, some damaged behind the proof. What reaches the arrivals has to be what was sent, and has to
//! keep what the decoders promise; nothing may get there without a proof.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest, Arrivals, NewArrival};
use flagstone_gateway::native::directory::{Asked, Audit, Found, NativeDirectory};
use flagstone_gateway::native::volume::NativeError;
use flagstone_gateway::native::{CloseReason, Ends, NativeLimits, NativeServer};
use flagstone_platform::{Platform, Stream};
use flagstone_types::{BLOCK_SIZE, DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::arrival::{
    Again, Arrive, ArrivingRun, LeftCopy, POINT_BYTES, RECORD_BYTES, RUNS_MAX,
    RUNS_PAYLOAD_MAX_BYTES, SNAPSHOTS_MAX, Settle, Settled, Step, WARRANT_BYTES, Warrant,
    encode_arrived, encode_runs,
};
use flagstone_wire::batch::ATTRIBUTES_BYTES;
use flagstone_wire::hello::{NodeId, SessionId};
use flagstone_wire::open::NAME_MAX_BYTES;
use flagstone_wire::proof::{ArrivalClaim, Key};
use flagstone_wire::{Operation, RequestHeader, Status, address};

use super::client::{Client, Reply};
use super::memory::MemoryVolume;
use super::node::{MemoryGrant, MemoryNode};
use crate::support::stream::Link;
use crate::support::world::World;

const ARRIVAL: u32 = 7;
const KEY: [u8; 32] = [5; 32];
const HERE: DeviceId = DeviceId(1);

/// Steps of one script; more is never looked at.
const STEPS_MAX: u64 = 64;

type Attributes = [u8; ATTRIBUTES_BYTES as usize];
type Point = [u8; POINT_BYTES];

fn at() -> SocketAddr {
    "10.0.0.9:4420".parse().expect("an address")
}

/// A request, as it is sent and as it comes to the arrivals.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Begin(NewArrival),
    Again(NewArrival),
    Runs(Vec<ArrivingRun>, Vec<u8>),
    Resize(u64),
    Snapshot(String, u64, Attributes, Option<Point>),
    Point(Point),
    Finish(Option<Vec<u8>>),
    /// Flags: abandon, confirm, forked.
    Settle(DeviceId, DvolId, [bool; 3]),
}

impl Seen {
    fn of(request: ArrivalRequest) -> Seen {
        match request {
            ArrivalRequest::Begin(new) => Seen::Begin(new),
            ArrivalRequest::Again(new) => Seen::Again(new),
            ArrivalRequest::Point(point) => Seen::Point(point),
            ArrivalRequest::Runs(runs, payload) => Seen::Runs(runs, payload.to_vec()),
            ArrivalRequest::Resize(bytes) => Seen::Resize(bytes),
            ArrivalRequest::Snapshot {
                name,
                created_ns,
                attributes,
                point,
            } => Seen::Snapshot(name, created_ns, attributes, point),
            ArrivalRequest::Finish(record) => Seen::Finish(record.map(|record| record.to_vec())),
            ArrivalRequest::Settle {
                device,
                volume,
                abandon,
                confirm,
                forked,
            } => Seen::Settle(device, volume, [abandon, confirm, forked]),
        }
    }

    fn operation(&self) -> Operation {
        match self {
            Seen::Begin(_) => Operation::Arrive,
            Seen::Again(_) => Operation::ArriveAgain,
            Seen::Runs(..) => Operation::ArriveRuns,
            Seen::Resize(_) | Seen::Snapshot(..) | Seen::Point(_) => Operation::ArriveStep,
            Seen::Finish(_) => Operation::Arrived,
            Seen::Settle(..) => Operation::Settle,
        }
    }

    /// Whether it makes sense. Written without looking at the decoders, by what they promise.
    fn is_good(&self) -> bool {
        let is_name = |name: &str| (1..=NAME_MAX_BYTES).contains(&name.len());
        match self {
            Seen::Begin(new) | Seen::Again(new) => {
                new.id.0 != 0 && new.epoch <= Epoch::MAX && is_name(&new.name)
            }
            Seen::Runs(runs, payload) => {
                let mut end = Some(0);
                let mut sum = 0;
                for run in runs {
                    let begins_well = run.offset_bytes.is_multiple_of(BLOCK_SIZE)
                        && end.is_some_and(|end| end <= run.offset_bytes);
                    if !begins_well || run.len_bytes == 0 || (run.is_zeros && run.metadata != 0) {
                        return false;
                    }
                    end = run.offset_bytes.checked_add(run.len_bytes);
                    sum += if run.is_zeros { 0 } else { run.len_bytes };
                }
                end.is_some()
                    && (1..=RUNS_MAX).contains(&runs.len())
                    && sum == payload.len() as u64
                    && sum <= RUNS_PAYLOAD_MAX_BYTES
            }
            Seen::Snapshot(name, ..) => is_name(name),
            Seen::Finish(Some(record)) => record.len() == RECORD_BYTES,
            Seen::Resize(_) | Seen::Point(_) | Seen::Finish(None) | Seen::Settle(..) => true,
        }
    }
}

/// What the arrivals do with a request.
#[derive(Clone, Copy, Default)]
struct Treated {
    pause_ns: u64,
    error: Option<fn() -> NativeError>,
}

/// Arrivals that keep what they are asked for.
#[derive(Clone)]
pub struct MemoryArrivals {
    platform: World,
    /// By number. Each request is an attempt of its own.
    treated: Rc<RefCell<BTreeMap<u64, Treated>>>,
    carried: Rc<RefCell<BTreeMap<u64, Seen>>>,
    running: Rc<Cell<u32>>,
}

impl Arrivals for MemoryArrivals {
    fn key(&self, arrival: u32, _: Option<DvolId>) -> Option<Key> {
        (arrival == ARRIVAL).then_some(Key(KEY))
    }

    async fn carry_out(
        &self,
        arrival: u32,
        attempt: u64,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        assert_eq!(arrival, ARRIVAL, "there is one");
        let seen = Seen::of(request);
        assert!(seen.is_good(), "{seen:?}");
        let number = match &seen {
            // It belongs to no attempt, so the volume names it.
            Seen::Settle(_, volume, _) if attempt == 0 => (volume.0 >> 8) as u64,
            _ => attempt,
        };
        let treated = self.treated.borrow().get(&number).copied();
        let treated = treated.expect("it was sent");
        let reply = answer(&seen);
        let again = self.carried.borrow_mut().insert(number, seen);
        assert_eq!(again, None, "it was sent once");
        let _running = Running::begin(&self.running);
        if treated.pause_ns > 0 {
            self.platform.sleep_ns(treated.pause_ns).await;
        }
        match treated.error {
            Some(error) => Err(error()),
            None => Ok(reply),
        }
    }

    fn unknown(&self, device: DeviceId, _: DvolId) -> Settled {
        unknown(device)
    }

    fn audit(&self, _: u32, _: Operation, _: &str, _: Ends) {}
}

/// Counts what is under way, whether it is awaited to its end or not.
struct Running(Rc<Cell<u32>>);

impl Running {
    fn begin(count: &Rc<Cell<u32>>) -> Running {
        count.set(count.get() + 1);
        Running(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn unknown(device: DeviceId) -> Settled {
    match device == HERE {
        true => Settled::Never,
        false => Settled::NotHere,
    }
}

fn answer(seen: &Seen) -> ArrivalReply {
    match seen {
        Seen::Finish(_) => ArrivalReply::At(at()),
        Seen::Settle(_, volume, _) => ArrivalReply::Settled(match (volume.0 & 255) % 3 {
            0 => Settled::Arriving,
            1 => Settled::Arrived(at()),
            _ => Settled::Never,
        }),
        Seen::Again(new) => ArrivalReply::Again(Again {
            attempt: new.size_bytes,
            left: new.id.0.is_multiple_of(2).then(|| LeftCopy {
                point: [3; _],
                again: vec![(BLOCK_SIZE, 3 * BLOCK_SIZE), (8 * BLOCK_SIZE, 1)],
            }),
        }),
        _ => ArrivalReply::Done,
    }
}

/// The body of the reply.
fn answer_body(reply: ArrivalReply) -> Vec<u8> {
    let mut body = Vec::new();
    match reply {
        ArrivalReply::Done => {}
        ArrivalReply::At(at) => address::encode(at, &mut body),
        ArrivalReply::Settled(settled) => settled.encode(&mut body),
        ArrivalReply::Again(again) => again.encode(&mut body),
    }
    body
}

/// A node on which volumes arrive, beside those it has.
#[derive(Clone)]
pub struct ArrivalNode {
    node: MemoryNode<World>,
    arrivals: MemoryArrivals,
}

impl ArrivalNode {
    pub fn new(world: &World, names: &[&str]) -> ArrivalNode {
        ArrivalNode {
            node: MemoryNode::with(world, names),
            arrivals: MemoryArrivals {
                platform: world.clone(),
                treated: Rc::default(),
                carried: Rc::default(),
                running: Rc::default(),
            },
        }
    }

    /// Sends a step of a volume that arrives, which takes so long.
    pub async fn bring<S: Stream>(&self, client: &mut Client<S>, pause_ns: u64) {
        let (seen, attempt, error) = (Seen::Resize(BLOCK_SIZE), client.number, None);
        let warrant = warrant(client, Proof::Right, seen.operation(), 0);
        let header = RequestHeader {
            lsn: Lsn(attempt),
            ..RequestHeader::of(seen.operation())
        };
        let treated = Treated { pause_ns, error };
        self.arrivals.treated.borrow_mut().insert(attempt, treated);
        client.start(header, &body(&seen, &warrant, 0), &[]).await;
    }
}

impl NativeDirectory for ArrivalNode {
    type Volume = MemoryVolume<World>;
    type Grant = MemoryGrant;
    type Arrivals = MemoryArrivals;

    async fn open(&self, asked: &Asked<'_>) -> Found<MemoryVolume<World>, MemoryGrant> {
        self.node.open(asked).await
    }

    fn arrivals(&self) -> MemoryArrivals {
        self.arrivals.clone()
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        self.node.addresses(out);
    }

    fn core(&self) -> u16 {
        self.node.core()
    }

    fn node(&self) -> NodeId {
        self.node.node()
    }

    fn incarnation(&self) -> u64 {
        self.node.incarnation()
    }

    fn audit(&self, line: &Audit<'_>) {
        self.node.audit(line);
    }
}

/// Bytes that say what is to be sent. Where they end zeros follow.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// One time in 131 it is too long by one, and so on up to three.
    fn name(&mut self) -> String {
        let len = 1 + usize::from(self.byte()) % (NAME_MAX_BYTES + 3);
        "n".repeat(len)
    }
}

/// What is wrong with the proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proof {
    Right,
    WrongKey,
    /// Of an arrival that isn't known.
    WrongNumber,
}

/// A request to be sent.
struct Sent {
    seen: Seen,
    proof: Proof,
    flags: u8,
    body: Vec<u8>,
    payload: Vec<u8>,
    /// The body was changed after the proof: from here on, in bytes.
    damaged_from: Option<usize>,
    treated: Treated,
    /// It makes no sense, in what only the body has.
    is_odd: bool,
}

impl Sent {
    /// The next request of a script, for this connection.
    fn read<S: Stream>(script: &mut Script<'_>, client: &Client<S>) -> Sent {
        let (kind, knobs) = (script.byte(), script.byte());
        let mut snapshot_count = 0;
        let mut flags = 0;
        let seen = match kind % 8 {
            kind @ (0 | 7) => {
                let (new, count) = begin(script);
                snapshot_count = count;
                match kind {
                    0 => Seen::Begin(new),
                    _ => Seen::Again(new),
                }
            }
            1 => runs(script),
            2 => Seen::Resize(u64::from(script.byte()) << 12),
            3 => {
                let (name, created, byte) = (script.name(), script.byte(), script.byte());
                let point = (byte % 2 == 1).then_some([byte; _]);
                Seen::Snapshot(name, created.into(), [byte; _], point)
            }
            4 => {
                let byte = script.byte();
                let bytes = match byte {
                    255 => RECORD_BYTES - 1,
                    _ => RECORD_BYTES,
                };
                Seen::Finish((byte % 2 == 1).then(|| vec![byte; bytes]))
            }
            6 => Seen::Point([script.byte(); _]),
            _ => {
                flags = script.byte() % 8;
                let named = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
                let (device, volume) = (script.byte() % 3, script.byte());
                let volume = u128::from(client.number) << 8 | u128::from(volume);
                Seen::Settle(DeviceId(device.into()), DvolId(volume), named)
            }
        };
        let proof = match knobs & 7 {
            0..=5 => Proof::Right,
            6 => Proof::WrongKey,
            _ => Proof::WrongNumber,
        };
        let warrant = warrant(client, proof, seen.operation(), flags);
        let mut body = body(&seen, &warrant, snapshot_count);
        // The volume of a SETTLE says which one it is.
        let changeable = match &seen {
            Seen::Settle(..) => WARRANT_BYTES + 16,
            _ => body.len(),
        };
        let damaged_from = damage(&mut body, changeable, knobs >> 3 & 7, script);
        let treated = match knobs >> 6 {
            0 => Treated::default(),
            1 => Treated {
                pause_ns: 5_000,
                error: None,
            },
            2 => Treated {
                pause_ns: 0,
                error: Some(|| NativeError::StaleEpoch),
            },
            _ => Treated {
                pause_ns: 3_000,
                error: Some(|| NativeError::NoSpace),
            },
        };
        let is_odd = match &seen {
            Seen::Begin(new) | Seen::Again(new) => {
                snapshot_count > new.highest_layer.0.min(SNAPSHOTS_MAX)
            }
            _ => false,
        };
        let payload = match &seen {
            Seen::Runs(_, payload) => payload.clone(),
            _ => Vec::new(),
        };
        Sent {
            seen,
            proof,
            flags,
            body,
            payload,
            damaged_from,
            treated,
            is_odd,
        }
    }

    /// Whether it may reach the arrivals.
    fn may_be_carried_out(&self) -> bool {
        let proof_is_whole = self.damaged_from.is_none_or(|from| from >= WARRANT_BYTES);
        self.proof == Proof::Right && proof_is_whole
    }

    /// It is as it should be, but for who sends it.
    fn is_whole(&self) -> bool {
        self.damaged_from.is_none() && self.seen.is_good() && !self.is_odd
    }

    /// Checks what came of it against what it was. `guessed`: there were so many wrong proofs that nothing was looked at in the end.
    fn check(&self, carried: Option<&Seen>, reply: Option<&Reply>, guessed: bool) {
        if let Some(carried) = carried {
            assert!(self.may_be_carried_out(), "{carried:?} without a proof");
            let changed = self.damaged_from.is_some();
            assert!(changed || self.is_whole(), "{carried:?} makes no sense");
            assert!(changed || *carried == self.seen, "not {:?}", self.seen);
        }
        let Some(reply) = reply else { return };
        let status = reply.status();
        if guessed && matches!(status, Status::Denied | Status::Busy) {
            assert_eq!(carried, None);
            return;
        }
        if !self.is_whole() {
            // What was damaged may still be something; what makes no sense is nothing.
            let may_be = self.damaged_from.is_some() || status != Status::Ok;
            assert!(may_be, "{:?}", self.seen);
            return;
        }
        let (expected, said) = match (self.proof, &self.seen) {
            (Proof::Right, seen) => {
                assert!(carried.is_some(), "{seen:?}: {status:?}");
                match self.treated.error {
                    Some(error) => (error().status(), None),
                    None => (Status::Ok, Some(answer_body(answer(seen)))),
                }
            }
            (Proof::WrongNumber, Seen::Settle(device, ..)) => {
                let settled = ArrivalReply::Settled(unknown(*device));
                (Status::Ok, Some(answer_body(settled)))
            }
            _ => (Status::Denied, None),
        };
        assert_eq!(status, expected, "{:?}", self.seen);
        assert!(
            said.is_none_or(|said| said == reply.body),
            "{:?}",
            self.seen
        );
    }
}

fn begin(script: &mut Script<'_>) -> (NewArrival, u32) {
    let id = match script.byte() {
        255 => 0,
        byte => u128::from(byte) + 1,
    };
    let epoch = match script.byte() {
        255 => Epoch(u32::MAX),
        byte => Epoch(byte.into()),
    };
    let begin = NewArrival {
        id: DvolId(id),
        name: script.name(),
        size_bytes: u64::from(script.byte()) << 20,
        reserved_bytes: u64::from(script.byte()) << 20,
        epoch,
        highest_layer: LayerNo(script.byte().into()),
        attributes: [script.byte(); _],
    };
    (begin, (script.byte() / 4).into())
}

fn runs(script: &mut Script<'_>) -> Seen {
    let count = match script.byte() {
        255 => RUNS_MAX + 1,
        254 => RUNS_MAX,
        byte => usize::from(byte) % 6,
    };
    let mut runs: Vec<ArrivingRun> = Vec::new();
    let (mut next, mut sum) = (0_u64, 0);
    for _ in 0..count {
        let (place, form) = (script.byte(), script.byte());
        let offset_bytes = match (place, runs.last()) {
            (255, Some(last)) => last.offset_bytes,
            (254, _) => next.saturating_add(512),
            (253, _) => u64::MAX - 4095,
            _ => next.saturating_add(u64::from(place % 4) * BLOCK_SIZE),
        };
        let is_zeros = form % 2 == 1 || count >= RUNS_MAX;
        let len_bytes = match form {
            252 => 0,
            _ => 1 + u64::from(form) * 37 % 9_000,
        };
        let metadata = match (is_zeros, form % 16) {
            (true, 15) | (false, 2) => 9,
            _ => 0,
        };
        sum += if is_zeros { 0 } else { len_bytes };
        next = offset_bytes
            .saturating_add(len_bytes)
            .checked_next_multiple_of(BLOCK_SIZE)
            .unwrap_or(0);
        runs.push(ArrivingRun {
            offset_bytes,
            len_bytes,
            is_zeros,
            metadata,
        });
    }
    let sum = match script.byte() {
        255 => sum + 1,
        _ => sum,
    };
    Seen::Runs(runs, (0..sum).map(|at| at as u8).collect())
}

fn warrant<S: Stream>(
    client: &Client<S>,
    proof: Proof,
    operation: Operation,
    flags: u8,
) -> Warrant {
    let arrival = match proof {
        Proof::WrongNumber => ARRIVAL + 1,
        _ => ARRIVAL,
    };
    let key = match proof {
        Proof::WrongKey => Key([6; 32]),
        _ => Key(KEY),
    };
    let claim = ArrivalClaim {
        server: client.hello.nonce,
        client: client.nonce,
        session: client.hello.session,
        arrival,
        operation: operation.number(),
        flags,
    };
    Warrant {
        arrival,
        proof: claim.prove(&key),
    }
}

fn body(seen: &Seen, warrant: &Warrant, snapshot_count: u32) -> Vec<u8> {
    let mut body = Vec::new();
    match seen {
        Seen::Begin(new) | Seen::Again(new) => {
            let arrive = Arrive {
                warrant: *warrant,
                id: new.id,
                size_bytes: new.size_bytes,
                reserved_bytes: new.reserved_bytes,
                epoch: new.epoch,
                highest_layer: new.highest_layer,
                snapshot_count,
                attributes: new.attributes,
                name: &new.name,
            };
            arrive.encode(&mut body);
        }
        Seen::Runs(runs, _) => encode_runs(warrant, runs, &mut body),
        Seen::Resize(bytes) => Step::Size(*bytes).encode(warrant, &mut body),
        Seen::Point(point) => Step::Point(*point).encode(warrant, &mut body),
        Seen::Snapshot(name, created_ns, attributes, point) => {
            let step = Step::Snapshot {
                created_ns: *created_ns,
                attributes: *attributes,
                point: *point,
                name,
            };
            step.encode(warrant, &mut body);
        }
        Seen::Finish(record) => {
            encode_arrived(warrant, None, &mut body);
            body.extend(record.iter().flatten());
        }
        Seen::Settle(device, volume, _) => {
            let settle = Settle {
                warrant: *warrant,
                device: *device,
                volume: *volume,
            };
            settle.encode(&mut body);
        }
    }
    body
}

/// Changes a body, one time in three or so, in its first so many bytes or at its end. Returns from where on it is another one.
fn damage(
    body: &mut Vec<u8>,
    changeable: usize,
    how: u8,
    script: &mut Script<'_>,
) -> Option<usize> {
    if how < 5 {
        return None;
    }
    let (place, what) = (usize::from(script.byte()), script.byte());
    let at = place * 7 % changeable;
    match how {
        5 => body[at] ^= what.max(1),
        6 => body.truncate(at),
        _ => {
            let at = body.len();
            body.push(what);
            return Some(at);
        }
    }
    Some(at)
}

/// What came of a script.
pub struct Came {
    pub reason: CloseReason,
    /// What was carried out, in the order in which it was sent.
    pub carried: Vec<Operation>,
    /// What was answered to each request of which anything came back.
    pub answered: Vec<(Operation, Status)>,
}

/// Sends what the bytes say over one connection, and closes. The server must end it, leave nothing running and give all memory back.
pub fn arrivals(seed: u64, bytes: &[u8]) -> Came {
    let world = World::new(seed);
    // The pool keeps zeros to send, once it has made some.
    drop(world.buffers().zeros(1));
    let kept_bytes = world.buffers().in_use_bytes();
    let node = ArrivalNode::new(&world, &[]);
    let arrivals = node.arrivals.clone();
    let server = NativeServer::new(world.clone(), node.clone(), NativeLimits::default());
    let portion_max = match seed % 5 {
        0 => 1 + (seed / 5 % 90) as usize,
        _ => usize::MAX,
    };
    let link = Link {
        portion_max,
        seed,
        ..Link::default()
    };
    let (near, far) = link.connect();
    let (running, bytes) = (server.clone(), bytes.to_vec());
    let in_flight_max = 1 + (seed / 3 % 5) as usize;
    let talk = Rc::new(RefCell::new((BTreeMap::new(), BTreeMap::new())));
    let (spawned, heard, treated) = (world.clone(), talk.clone(), arrivals.treated.clone());
    let reason = world.run(async move {
        let is_over = Rc::new(Cell::new(false));
        let over = is_over.clone();
        spawned.spawn(async move {
            let client = Client::hello(near.clone(), SessionId::NEW).await;
            let mut client = client.expect("HELLO is answered");
            let said = say(&mut client, &bytes, in_flight_max, &treated).await;
            let (sent, mut replies) = said;
            near.close_sending();
            while let Some(reply) = client.receive().await {
                replies.insert(reply.header.number, reply);
            }
            *heard.borrow_mut() = (sent, replies);
            over.set(true);
        });
        let reason = running.serve_connection(far, Ends::default()).await;
        // The client reads what is left.
        while !is_over.get() {
            spawned.sleep_ns(1_000).await;
        }
        reason
    });
    let (sent, replies) = talk.take();
    let carried = arrivals.carried.take();
    let mut came = Came {
        reason,
        carried: Vec::new(),
        answered: Vec::new(),
    };
    let mut known = BTreeSet::new();
    // A connection that has ended by then has another reason.
    let guesses_max = u64::from(NativeLimits::default().refused_opens_max);
    let guessed = server.counters().opens_denied >= guesses_max;
    assert!(guessed || came.reason != CloseReason::Denied);
    for (number, request) in &sent {
        let (seen, reply) = (carried.get(number), replies.get(number));
        request.check(seen, reply, guessed);
        if came.reason == CloseReason::Finished {
            assert!(reply.is_some(), "{:?} was not answered", request.seen);
        }
        let operation = request.seen.operation();
        if seen.is_some() {
            came.carried.push(operation);
            known.insert(*number);
        }
        came.answered
            .extend(reply.map(|reply| (operation, reply.status())));
    }
    assert_eq!(known.len(), carried.len(), "what was not sent is not done");
    assert_eq!(arrivals.running.get(), 0, "nothing is left under way");
    assert_eq!(server.counters().connections, 0);
    drop((server, node, arrivals, sent, replies));
    let left_bytes = world.buffers().in_use_bytes();
    assert_eq!(left_bytes, kept_bytes, "no buffer is left");
    came
}

type Requests = BTreeMap<u64, Sent>;
type Replies = BTreeMap<u64, Reply>;

/// Sends a script, so many requests at a time. What was sent, by its number, and the replies so far.
async fn say<S: Stream>(
    client: &mut Client<S>,
    bytes: &[u8],
    in_flight_max: usize,
    treated: &RefCell<BTreeMap<u64, Treated>>,
) -> (Requests, Replies) {
    let mut script = Script(bytes);
    let (mut sent, mut replies) = (Requests::new(), Replies::new());
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        let request = Sent::read(&mut script, client);
        let number = client.number;
        let attempt = match request.seen {
            Seen::Settle(..) => 0,
            _ => number,
        };
        let header = RequestHeader {
            flags: request.flags,
            lsn: Lsn(attempt),
            ..RequestHeader::of(request.seen.operation())
        };
        treated.borrow_mut().insert(number, request.treated);
        let started = client.start(header, &request.body, &request.payload).await;
        assert_eq!(started, number);
        sent.insert(number, request);
        while sent.len() - replies.len() >= in_flight_max {
            let Some(reply) = client.receive().await else {
                return (sent, replies);
            };
            replies.insert(reply.header.number, reply);
        }
    }
    (sent, replies)
}
