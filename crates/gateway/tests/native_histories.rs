//! Clients on a network that breaks at any byte: nothing is done twice, and what they are told is what happened.
//!
//! Each change carries a value of its own. A client keeps sending; when its connection breaks it comes back with its
//! session and believes what it is told: that a change was carried out, that it was not (then it sends it again), or that
//! it never arrived (then too). In the end the volume's own record must have each value once that was said to be carried
//! out, and no other.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_gateway::native::volume::NativeError;
use flagstone_gateway::native::{Ends, NativeLimits, NativeServer};
use flagstone_platform::{Listener, Platform, Stream};
use flagstone_sim::{
    Cut, FaultsSeen, NetworkConfig, Rng, SegmentFaults, SimPlatform, SimStream, World, WorldConfig,
};
use flagstone_wire::hello::SessionId;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::native_support::client::*;
use crate::native_support::node::*;

const ADDRESS: &str = "10.0.0.99:4420";
const CLIENTS: u64 = 3;
const CHANGES: u64 = 40;
const IN_FLIGHT: usize = 8;
const MS: u64 = 1_000_000;
/// Whoever has heard nothing for so long takes the connection for dead.
const SILENCE_NS: u64 = 3000 * MS;

async fn serve(platform: SimPlatform, node: MemoryNode<SimPlatform>) {
    let listener = platform.network().listen(ADDRESS).expect("nobody listens");
    // Sessions are kept for longer than the server is cut off for: nothing here is about those that are forgotten.
    let limits = NativeLimits {
        grace_ms: 3_600_000,
        ..NativeLimits::default()
    };
    let server = NativeServer::new(platform.clone(), node, limits);
    loop {
        let stream = listener.accept().await.expect("accepting does not fail");
        let server = server.clone();
        platform.spawn(async move {
            server.serve_connection(stream, Ends::default()).await;
        });
    }
}

/// What comes of it, unless that takes too long.
async fn unless_silent<T>(platform: &SimPlatform, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut silence) = (pin!(work), pin!(platform.sleep_ns(SILENCE_NS)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => silence.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// The server is cut off now and then, mostly for less time than anybody waits for, until all is done.
async fn weather(platform: SimPlatform, mut rng: Rng, is_done: impl Fn() -> bool) {
    let network = platform.network();
    while !is_done() {
        platform.sleep_ns(rng.within(&(MS..=200 * MS))).await;
        let cut = [Cut::Both, Cut::To, Cut::From][rng.index(3)];
        network.cut(ADDRESS, cut);
        let longest = if rng.chance(0.2) { 20_000 } else { 300 };
        platform.sleep_ns(rng.within(&(MS..=longest * MS))).await;
        network.heal();
    }
}

/// What a client knows of one of its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    CarriedOut,
    Refused,
}

/// What all clients of a run know.
#[derive(Default)]
struct Book {
    told: RefCell<BTreeMap<u64, Told>>,
    resumed: Cell<u64>,
    sent_again: Cell<u64>,
    told_by_outcome: Cell<u64>,
}

struct Writer {
    platform: SimPlatform,
    number: u64,
    ports: u64,
    rng: Rng,
    book: Rc<Book>,
    session: SessionId,
    /// A volume was opened in it.
    has_opened: bool,
    /// Values still to be sent, in order.
    to_send: Vec<u64>,
    /// Sent without a reply so far: number and value, in order.
    in_flight: Vec<(u64, u64)>,
}

impl Writer {
    async fn connect(&mut self) -> Client<SimStream> {
        loop {
            self.ports += 1;
            let port = 1000 + self.ports % 60_000;
            let from = format!("10.0.0.{}:{port}", self.number);
            let network = self.platform.network();
            let Ok(stream) = network.connect_from(&from, ADDRESS).await else {
                continue;
            };
            let hello = Client::hello(stream, self.session);
            if let Some(Some(client)) = unless_silent(&self.platform, hello).await {
                return client;
            }
        }
    }

    fn say(&self, value: u64, told: Told) {
        let before = self.book.told.borrow_mut().insert(value, told);
        assert_eq!(before, None, "{value} is settled twice");
    }

    /// Takes what the server says of what was sent before.
    fn resume(&mut self, client: &Client<SimStream>) {
        if !self.has_opened {
            // Without a volume a session is not kept: there is nothing to know.
            self.session = client.hello.session;
            return;
        }
        assert_eq!(client.hello.session, self.session, "it is known");
        self.book.resumed.set(self.book.resumed.get() + 1);
        let outcomes: BTreeMap<u64, u16> = client
            .outcomes
            .iter()
            .map(|outcome| (outcome.number, outcome.status))
            .collect();
        let mut again = Vec::new();
        for (number, value) in std::mem::take(&mut self.in_flight) {
            match outcomes.get(&number) {
                Some(0) => {
                    self.book
                        .told_by_outcome
                        .set(self.book.told_by_outcome.get() + 1);
                    self.say(value, Told::CarriedOut);
                }
                Some(_) => self.say(value, Told::Refused),
                None => again.push(value),
            }
        }
        self.book
            .sent_again
            .set(self.book.sent_again.get() + again.len() as u64);
        again.append(&mut self.to_send);
        self.to_send = again;
    }

    /// One connection's life. True if everything is done.
    async fn live(&mut self) -> bool {
        let mut client = self.connect().await;
        self.resume(&client);
        let body = client.open_body("a", WRITER, 0);
        client.unsettled = 0;
        client
            .start(RequestHeader::of(Operation::Open), &body, &[])
            .await;
        let Some(Some(reply)) = unless_silent(&self.platform, client.receive()).await else {
            return false;
        };
        let volume = reply.ok().header.volume;
        self.has_opened = true;
        loop {
            while self.in_flight.len() < IN_FLIGHT && !self.to_send.is_empty() {
                let value = self.to_send.remove(0);
                self.send(&mut client, volume, value).await;
                if self.rng.chance(0.3) {
                    break;
                }
            }
            if self.in_flight.is_empty() {
                return self.to_send.is_empty();
            }
            if self.rng.chance(0.03) {
                // It has had enough of this connection, though nothing is wrong with it.
                if self.rng.coin() {
                    client.stream.shutdown();
                }
                return false;
            }
            let Some(Some(reply)) = unless_silent(&self.platform, client.receive()).await else {
                return false;
            };
            let number = reply.header.number;
            let at = self.in_flight.iter().position(|(one, _)| *one == number);
            let Some(at) = at else {
                panic!("a reply to nothing: {:?}", reply.header);
            };
            let (_, value) = self.in_flight.remove(at);
            match reply.status() {
                Status::Ok => self.say(value, Told::CarriedOut),
                Status::Busy | Status::Late => self.to_send.insert(0, value),
                _ => self.say(value, Told::Refused),
            }
        }
    }

    async fn send(&mut self, client: &mut Client<SimStream>, volume: VolumeNo, value: u64) {
        let oldest = self
            .in_flight
            .first()
            .map_or(client.number, |(one, _)| *one);
        client.unsettled = (client.number - oldest) as u32;
        let size = 8 + self.rng.below(3000) as usize;
        let mut bytes = vec![value as u8; size];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        let header = RequestHeader {
            patience_ms: if self.rng.chance(0.1) { 1 } else { 0 },
            ..write(volume, self.number * 8192)
        };
        let number = client.start(header, &[], &bytes).await;
        self.in_flight.push((number, value));
    }
}

#[derive(Default)]
struct Totals {
    resumed: u64,
    sent_again: u64,
    told_by_outcome: u64,
    faults: FaultsSeen,
}

fn run(seed: u64, totals: &mut Totals) {
    let has_weather = seed / 27 % 2 == 1;
    let config = WorldConfig {
        network: NetworkConfig {
            reset: [0.002, 0.01, 0.05][seed as usize % 3],
            segment_max_bytes: [60, 1000, 20_000][seed as usize / 3 % 3],
            segments: match has_weather {
                true => SegmentFaults::of_all_kinds(),
                false => SegmentFaults::default(),
            },
            ..NetworkConfig::default()
        },
        ..WorldConfig::new(seed)
    };
    let world = World::with_config(config);
    let platform = world.platform(0);
    let node = MemoryNode::with(&platform, &["a"]);
    let memory = node.volume("a").memory;
    memory
        .pause_ns
        .set([10_000, 500_000, 3_000_000][seed as usize / 9 % 3]);
    for at in 0..20 {
        let failure = match at % 4 {
            0 => NativeError::Busy,
            1 => NativeError::NoSpace,
            _ => NativeError::OutOfRange,
        };
        memory.failures.borrow_mut().push_back(failure);
    }
    world.spawn(0, serve(platform.clone(), node));
    let book = Rc::new(Book::default());
    let done = Rc::new(Cell::new(0));
    for number in 1..=CLIENTS {
        let mut writer = Writer {
            platform: platform.clone(),
            number,
            ports: 0,
            rng: Rng::stream(seed, number),
            book: book.clone(),
            session: SessionId::NEW,
            has_opened: false,
            to_send: (1..=CHANGES).map(|at| number * 1000 + at).collect(),
            in_flight: Vec::new(),
        };
        let done = done.clone();
        world.spawn(0, async move {
            while !writer.live().await {}
            done.set(done.get() + 1);
        });
    }
    if has_weather {
        let done = done.clone();
        let rng = Rng::stream(seed, 1000);
        world.spawn(
            0,
            weather(platform.clone(), rng, move || done.get() == CLIENTS),
        );
    }
    world.run_until(|| done.get() == CLIENTS);
    totals.faults += world.network().faults_seen();
    let carried_out = memory.carried_out.borrow();
    let mut once = carried_out.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(
        once.len(),
        carried_out.len(),
        "seed {seed}: something was done twice"
    );
    let told = book.told.borrow();
    assert_eq!(told.len() as u64, CLIENTS * CHANGES, "seed {seed}");
    let said: Vec<u64> = told
        .iter()
        .filter(|(_, told)| **told == Told::CarriedOut)
        .map(|(value, _)| *value)
        .collect();
    assert_eq!(
        said, once,
        "seed {seed}: what was said is not what happened"
    );
    totals.resumed += book.resumed.get();
    totals.sent_again += book.sent_again.get();
    totals.told_by_outcome += book.told_by_outcome.get();
}

#[test]
fn nothing_is_done_twice_because_a_connection_broke() {
    let mut totals = Totals::default();
    for seed in 0..300 {
        run(seed, &mut totals);
    }
    // Or the test would show nothing.
    assert!(totals.resumed > 3000, "{}", totals.resumed);
    assert!(totals.sent_again > 3000, "{}", totals.sent_again);
    assert!(totals.told_by_outcome > 1000, "{}", totals.told_by_outcome);
    let seen = totals.faults;
    assert!(seen.rarest() > 100 && seen.timed_out > 100, "{seen:?}");
}

/// Thousands of seeds: `cargo test --release -p flagstone-gateway -- --ignored native_histories`.
#[test]
#[ignore = "takes minutes"]
fn nothing_is_done_twice_in_many_worlds() {
    let mut totals = Totals::default();
    for seed in 300..10_000 {
        run(seed, &mut totals);
    }
}
