//! The simulated network: byte streams and listeners in memory, in virtual time.
//!
//! Streams behave as TCP does to a program that takes nothing for granted: reads return as little
//! as one byte, writes arrive in pieces and late, connections are reset. What happens to single messages happens to the
//! segments below the streams: they are lost, come twice, overtake each other, or don't pass at all for a while since an address
//! is cut off, for one direction or both. A program sees of that what TCP lets it see: pauses, connections that are over for one
//! side only, and calls that are never answered.

mod faults;
mod pipe;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use flagstone_platform::Listener;

use crate::executor::{Inner, Sleep};
use crate::rng::Rng;
use faults::{Cuts, Fate};
use pipe::Link;

pub use faults::{Cut, FaultsSeen, SegmentFaults};
pub use stream::SimStream;

/// How the network behaves.
#[derive(Clone, PartialEq, Debug)]
pub struct NetworkConfig {
    /// Time a segment is under way, in nanoseconds.
    pub delay_ns: RangeInclusive<u64>,
    /// Probability that a segment takes longer by a time out of `slow_ns`.
    pub slow: f64,
    /// Extra time of slow segments, in nanoseconds.
    pub slow_ns: RangeInclusive<u64>,
    /// Longest segment a write is cut into, in bytes, at least 1. Each is of random length.
    pub segment_max_bytes: u64,
    /// Probability that a read returns less than is there.
    pub short_read: f64,
    /// Probability, at each segment sent, that the connection is reset.
    pub reset: f64,
    /// Bytes under way and unread in one direction before a writer has to wait.
    pub window_bytes: usize,
    /// What happens to single segments.
    pub segments: SegmentFaults,
}

impl Default for NetworkConfig {
    /// A local network without faults, with short reads.
    fn default() -> NetworkConfig {
        NetworkConfig {
            delay_ns: 10_000..=200_000,
            slow: 0.0,
            slow_ns: 1_000_000..=200_000_000,
            segment_max_bytes: 16 << 10,
            short_read: 0.3,
            reset: 0.0,
            window_bytes: 256 << 10,
            segments: SegmentFaults::default(),
        }
    }
}

/// A world's network.
pub(crate) struct NetworkState {
    config: RefCell<NetworkConfig>,
    listeners: RefCell<BTreeMap<String, Rc<Backlog>>>,
    links: RefCell<Vec<Weak<Link>>>,
    pipes_numbered: Cell<u64>,
    connects: Cell<u64>,
    cuts: RefCell<Cuts>,
    seen: Cell<FaultsSeen>,
}

/// Connections that wait to be accepted.
#[derive(Default)]
struct Backlog {
    waiting: RefCell<VecDeque<SimStream>>,
    accepting: Cell<Option<Waker>>,
}

impl NetworkState {
    pub(crate) fn new(config: NetworkConfig) -> NetworkState {
        NetworkState {
            config: RefCell::new(config),
            listeners: RefCell::default(),
            links: RefCell::default(),
            pipes_numbered: Cell::new(0),
            connects: Cell::new(0),
            cuts: RefCell::default(),
            seen: Cell::default(),
        }
    }

    /// Whether nothing passes that `side` of a connection to `address` sends.
    fn is_cut(&self, address: &str, side: usize) -> bool {
        self.cuts.borrow().stops(address, side)
    }

    /// What becomes of a segment.
    fn draw_fate(&self, rng: &mut Rng, is_cut: bool, tries: u32) -> Fate {
        let delay_ns = self.draw_delay_ns(rng);
        let segments = &self.config.borrow().segments;
        let fate = Fate::draw(segments, rng, delay_ns, is_cut, tries);
        self.count(|seen| seen.note(&fate, is_cut));
        fate
    }

    /// What becomes of a call, which takes both directions.
    fn draw_call(&self, rng: &mut Rng, address: &str, tries: u32) -> Fate {
        let is_cut = self.is_cut(address, 0) || self.is_cut(address, 1);
        self.draw_fate(rng, is_cut, tries)
    }

    fn resends_max(&self) -> u32 {
        self.config.borrow().segments.resends_max
    }

    fn count(&self, change: impl FnOnce(&mut FaultsSeen)) {
        let mut seen = self.seen.get();
        change(&mut seen);
        self.seen.set(seen);
    }

    fn number_pipes(&self, count: u64) -> u64 {
        let first = self.pipes_numbered.get();
        self.pipes_numbered.set(first + count);
        first
    }

    fn draw_delay_ns(&self, rng: &mut Rng) -> u64 {
        let config = self.config.borrow();
        let delay_ns = rng.within(&config.delay_ns);
        let slow_ns = rng.within(&config.slow_ns);
        match rng.chance(config.slow) {
            true => delay_ns.saturating_add(slow_ns),
            false => delay_ns,
        }
    }

    /// Undoes the circles between the world and streams nobody has accepted.
    pub(crate) fn clear(&self) {
        let listeners = std::mem::take(&mut *self.listeners.borrow_mut());
        for backlog in listeners.into_values() {
            let waiting = std::mem::take(&mut *backlog.waiting.borrow_mut());
            drop(waiting);
        }
    }
}

/// A handle on a world's network.
#[derive(Clone)]
pub struct SimNetwork {
    world: Rc<Inner>,
}

impl SimNetwork {
    pub(crate) fn new(world: Rc<Inner>) -> SimNetwork {
        SimNetwork { world }
    }

    /// How the network behaves.
    pub fn config(&self) -> NetworkConfig {
        self.world.network.config.borrow().clone()
    }

    /// Sets how the network behaves from now on.
    pub fn set_config(&self, config: NetworkConfig) {
        assert!(config.segment_max_bytes > 0);
        assert!(config.window_bytes > 0);
        self.world.network.config.replace(config);
    }

    /// What has happened to segments so far.
    pub fn faults_seen(&self) -> FaultsSeen {
        self.world.network.seen.get()
    }

    /// From now on nothing passes from, or to, those who listen on an address, be they connected or not: until it is healed.
    pub fn cut(&self, address: &str, cut: Cut) {
        self.world.network.cuts.borrow_mut().cut(address, cut);
    }

    /// All addresses are reached again. What was sent meanwhile comes when it is sent the next time.
    pub fn heal(&self) {
        self.world.network.cuts.borrow_mut().heal();
    }

    /// Listens on an address, which is any text. Fails with `AddrInUse` if somebody does already.
    pub fn listen(&self, address: &str) -> io::Result<SimListener> {
        let mut listeners = self.world.network.listeners.borrow_mut();
        if listeners.contains_key(address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let backlog: Rc<Backlog> = Rc::default();
        listeners.insert(address.to_owned(), backlog.clone());
        Ok(SimListener {
            world: self.world.clone(),
            address: address.to_owned(),
            backlog,
        })
    }

    /// Connects to an address. Fails with `ConnectionRefused` if nobody listens there, and with `TimedOut` if nothing comes through for as
    /// long as it is tried.
    pub fn connect(&self, address: &str) -> impl Future<Output = io::Result<SimStream>> + use<> {
        let number = self.world.network.connects.get();
        let port = 40_000 + number % 20_000;
        self.connect_from(&format!("127.0.0.1:{port}"), address)
    }

    /// Connects as the peer that the accepting side will see as `from`.
    pub fn connect_from(
        &self,
        from: &str,
        address: &str,
    ) -> impl Future<Output = io::Result<SimStream>> + use<> {
        let network = &self.world.network;
        network.connects.set(network.connects.get() + 1);
        let mut fate = network.draw_call(&mut self.world.rng.network.borrow_mut(), address, 0);
        let (world, from, address) = (self.world.clone(), from.to_owned(), address.to_owned());
        let began_ns = self.world.now_ns();
        async move {
            let mut tries = 0;
            let mut sent_ns = began_ns;
            while fate.is_lost {
                tries += 1;
                if tries > world.network.resends_max() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Sleep::new(world.clone(), sent_ns.saturating_add(fate.again_ns)).await;
                sent_ns = world.now_ns();
                let rng = &world.rng.network;
                fate = world
                    .network
                    .draw_call(&mut rng.borrow_mut(), &address, tries);
            }
            Sleep::new(world.clone(), sent_ns.saturating_add(fate.delay_ns)).await;
            let listeners = world.network.listeners.borrow();
            let backlog = listeners.get(&address).cloned();
            drop(listeners);
            let backlog = backlog.ok_or(io::ErrorKind::ConnectionRefused)?;
            let link = Link::new(&world, &address);
            let mut links = world.network.links.borrow_mut();
            links.retain(|link| link.strong_count() > 0);
            links.push(Rc::downgrade(&link));
            drop(links);
            let accepted = SimStream::new(world.clone(), link.clone(), 1, from);
            let called = SimStream::new(world.clone(), link, 0, address);
            backlog.waiting.borrow_mut().push_back(accepted);
            if let Some(waker) = backlog.accepting.take() {
                waker.wake();
            }
            Ok(called)
        }
    }

    /// Resets every connection there is.
    pub fn reset_all(&self) {
        let links = self.world.network.links.borrow().clone();
        for link in links.iter().filter_map(Weak::upgrade) {
            link.reset(&self.world);
        }
    }

    /// Connections of which at least one side is held and that were not reset.
    pub fn connections(&self) -> usize {
        let links = self.world.network.links.borrow();
        let alive = links.iter().filter_map(Weak::upgrade);
        alive.filter(|link| !link.is_reset()).count()
    }
}

/// Accepts streams at an address. Dropping it frees the address; who waits to be accepted is
/// closed.
pub struct SimListener {
    world: Rc<Inner>,
    address: String,
    backlog: Rc<Backlog>,
}

impl Listener for SimListener {
    type Stream = SimStream;

    fn accept(&self) -> impl Future<Output = io::Result<SimStream>> {
        poll_fn(|context| {
            let next = self.backlog.waiting.borrow_mut().pop_front();
            match next {
                Some(stream) => Poll::Ready(Ok(stream)),
                None => {
                    let waker = context.waker().clone();
                    self.backlog.accepting.set(Some(waker));
                    Poll::Pending
                }
            }
        })
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut listeners = self.world.network.listeners.borrow_mut();
        let mine = listeners.get(&self.address);
        if mine.is_some_and(|backlog| Rc::ptr_eq(backlog, &self.backlog)) {
            listeners.remove(&self.address);
        }
        drop(listeners);
        let waiting = std::mem::take(&mut *self.backlog.waiting.borrow_mut());
        drop(waiting);
    }
}
