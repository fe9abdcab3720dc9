//! A small server of the native protocol, for the client to be held against: it keeps sessions and
//! their outcomes as the protocol's page says, refuses what the page forbids, and counts how often each
//! value was written, so that it can be asked what really happened.

mod connection;
mod execute;
mod more;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_client::Token;
use flagstone_platform::sync::Signal;
use flagstone_platform::{Listener, Platform, Stream};
use flagstone_sim::{Rng, SimPlatform, SimStream, World};
use flagstone_types::{DvolId, Epoch};
use flagstone_wire::Limits;
use flagstone_wire::hello::{Outcome, SessionId};
use flagstone_wire::proof::Key;

/// Bytes of a block, in each of which the tests write one value.
pub(crate) const BLOCK: usize = 4096;

/// What goes wrong, and how often.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) busy: f64,
    pub(crate) damaged_request: f64,
    pub(crate) damaged_reply: f64,
    /// A redirect to a core that doesn't have the volume.
    pub(crate) wrong_redirect: f64,
    /// Longest time that a request takes, in nanoseconds.
    pub(crate) slow_ns: u64,
    /// No volume can be opened besides those that are.
    pub(crate) is_full: bool,
    /// Of so many requests the volume is not known, though it was opened.
    pub(crate) forgets: u32,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) shared: Rc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) platform: SimPlatform,
    pub(crate) state: RefCell<State>,
    /// Something ended that others wait for.
    pub(crate) changed: Signal,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) trouble: Trouble,
    pub(crate) limits: Limits,
    pub(crate) incarnation: u64,
    pub(crate) addresses: Vec<SocketAddr>,
    /// By core.
    sessions: Vec<BTreeMap<SessionId, Rc<RefCell<Session>>>>,
    pub(crate) volumes: BTreeMap<String, Volume>,
    streams: Vec<(u64, SimStream)>,
    connections: u64,
    /// While it is down nobody gets an answer.
    pub(crate) is_down: bool,
    /// Each core is a node of its own.
    pub(crate) has_nodes: bool,
    /// Those that will never answer again.
    pub(crate) dead: Vec<usize>,
    /// Proofs that were right, with the nonce of their connections.
    proofs: BTreeMap<[u8; 32], [u8; 16]>,
    /// What a client must not do, and did.
    pub(crate) broken_rules: Vec<String>,
    /// Requests answered `LATE`.
    pub(crate) late: u64,
    pub(crate) opens: u64,
    pub(crate) closes: u64,
    /// Requests answered `MOVED`.
    pub(crate) moved: u64,
}

pub(crate) struct Volume {
    pub(crate) id: DvolId,
    pub(crate) core: usize,
    pub(crate) epoch: Epoch,
    /// The epochs that it had since it was last opened alone.
    only_moved: Vec<Epoch>,
    pub(crate) key: Key,
    pub(crate) bytes: Vec<u8>,
    durable: Vec<u8>,
    pub(crate) blocks: Vec<more::BlockInfo>,
    pub(crate) attributes: Vec<u8>,
    snapshots: BTreeMap<String, more::Taken>,
    pub(crate) lsn: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) counter: u64,
    /// Every value that was written, in the order in which that happened.
    pub(crate) log: Vec<u64>,
    /// Changes that have arrived and are not carried out: by arrival, with their ranges.
    pending: BTreeMap<u64, (u64, u64)>,
    arrivals: u64,
}

pub(crate) struct Session {
    id: SessionId,
    arrived: u64,
    outcomes: BTreeMap<u64, Outcome>,
    /// Its connection.
    connection: u64,
    /// Requests that came over an earlier connection, or this one, and are not dealt with.
    busy: u64,
}

impl Server {
    /// A server with so many cores, on 10.0.0.N:4420.
    pub(crate) fn start(world: &World, cores: usize) -> Server {
        let addresses: Vec<SocketAddr> = (0..cores)
            .map(|core| format!("10.0.0.{}:4420", core + 1).parse().unwrap())
            .collect();
        let state = State {
            rng: world.workload_rng(),
            trouble: Trouble::default(),
            limits: Limits::default(),
            incarnation: 1,
            addresses: addresses.clone(),
            sessions: vec![BTreeMap::new(); cores],
            volumes: BTreeMap::new(),
            streams: Vec::new(),
            connections: 0,
            is_down: false,
            has_nodes: false,
            dead: Vec::new(),
            proofs: BTreeMap::new(),
            broken_rules: Vec::new(),
            late: 0,
            opens: 0,
            closes: 0,
            moved: 0,
        };
        let shared = Shared {
            platform: world.platform(0),
            state: RefCell::new(state),
            changed: Signal::new(),
        };
        let server = Server {
            shared: Rc::new(shared),
        };
        for (core, address) in addresses.iter().enumerate() {
            let listener = world.network().listen(&address.to_string()).unwrap();
            let shared = server.shared.clone();
            world.spawn(0, async move {
                loop {
                    let stream = listener.accept().await.unwrap();
                    let platform = shared.platform.clone();
                    platform.spawn(connection::serve(shared.clone(), core, stream));
                }
            });
        }
        server
    }

    /// Makes a volume of so many blocks: its token.
    pub(crate) fn create(&self, name: &str, core: usize, blocks: usize) -> Token {
        let state = &mut *self.shared.state.borrow_mut();
        let number = state.volumes.len() as u128 + 1;
        let volume = Volume {
            id: DvolId(number),
            core,
            epoch: Epoch(1),
            only_moved: vec![Epoch(1)],
            key: Key([number as u8; 32]),
            bytes: vec![0; blocks * BLOCK],
            durable: vec![0; blocks * BLOCK],
            blocks: vec![more::BlockInfo::default(); blocks],
            attributes: Vec::new(),
            snapshots: BTreeMap::new(),
            lsn: 0,
            reserved_bytes: 0,
            counter: 0,
            log: Vec::new(),
            pending: BTreeMap::new(),
            arrivals: 0,
        };
        let key = volume.key.clone();
        state.volumes.insert(name.to_owned(), volume);
        Token { number: 1, key }
    }

    /// The process ends and another one starts: sessions are forgotten, and perhaps what was not
    /// flushed.
    pub(crate) fn restart(&self) {
        let streams = {
            let state = &mut *self.shared.state.borrow_mut();
            state.incarnation += 1;
            state.sessions.iter_mut().for_each(BTreeMap::clear);
            let loses = state.rng.coin();
            for volume in state.volumes.values_mut() {
                volume.pending.clear();
                match loses {
                    true => volume.bytes.clone_from(&volume.durable),
                    false => volume.make_durable(),
                }
            }
            std::mem::take(&mut state.streams)
        };
        self.shared.changed.notify();
        for (_, stream) in streams {
            stream.shutdown();
        }
    }

    /// The grace time of sessions without a connection is over.
    pub(crate) fn forget_sessions(&self) {
        let state = &mut *self.shared.state.borrow_mut();
        let streams = &state.streams;
        let is_kept = |session: &Rc<RefCell<Session>>| {
            let session = session.borrow();
            let mut numbers = streams.iter().map(|(number, _)| *number);
            session.busy > 0 || numbers.any(|number| number == session.connection)
        };
        for sessions in &mut state.sessions {
            sessions.retain(|_, session| is_kept(session));
        }
    }

    pub(crate) fn move_volume(&self, name: &str, core: usize) {
        let mut state = self.shared.state.borrow_mut();
        let volume = state.volumes.get_mut(name).unwrap();
        if volume.core != core {
            volume.core = core;
            volume.moved();
        }
    }

    /// A core dies for good. All connections end.
    pub(crate) fn kill(&self, core: usize) {
        let streams = {
            let state = &mut *self.shared.state.borrow_mut();
            state.dead.push(core);
            std::mem::take(&mut state.streams)
        };
        for (_, stream) in streams {
            stream.shutdown();
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.shared.state.borrow_mut())
    }

    /// The value in a block.
    pub(crate) fn value(&self, name: &str, block: usize) -> u64 {
        value_of(&self.shared.state.borrow().volumes[name].bytes[block * BLOCK..])
    }
}

impl Volume {
    /// All of it survives a restart from now on.
    fn make_durable(&mut self) {
        self.durable.clone_from(&self.bytes);
    }

    /// It is at a new place, in a new epoch, as durable as can be.
    fn moved(&mut self) {
        self.make_durable();
        self.epoch = Epoch(self.epoch.0 + Epoch::PER_MOVE);
        self.only_moved.push(self.epoch);
        self.counter = 0;
    }

    /// It has another epoch, by somebody's wish.
    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.only_moved = vec![epoch];
    }

    /// Whether it is on this core and has been since it had this epoch: whoever had it open before it went and came back is sent on, too.
    pub(crate) fn is_where(&self, core: usize, epoch: Epoch) -> bool {
        let has_gone = epoch != self.epoch && self.only_moved.contains(&epoch);
        self.core == core && !has_gone
    }

    /// Whether whoever held it in this epoch is locked out.
    pub(crate) fn locks_out(&self, held: Option<Epoch>) -> bool {
        held.is_some_and(|held| held < self.epoch && !self.only_moved.contains(&held))
    }
}

/// The value that a block begins with.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}
