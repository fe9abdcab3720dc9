//! The connection to one core, made again whenever it breaks, with the session that outlives it.
//!
//! Two tasks: one writes what waits, gathered into one piece; one reads replies and hands them to
//! whoever waits. A request is made for one connection (its volume's number is of that connection), so
//! when that breaks, what was not sent goes back to its caller at once, and what was sent waits for
//! the next `HELLO` to say what became of it. See `call.rs` for what callers make of that.

mod driver;
mod flight;
mod incoming;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_platform::sync::{Signal, promise};
use flagstone_platform::{IoBuf, Platform, Stream, Time};
use flagstone_types::DvolId;
use flagstone_wire::Operation;
use flagstone_wire::hello::{NodeId, Nonce, SessionId};

use crate::connect::Connect;
use crate::ledger::Ledger;
use crate::options::Options;

pub(crate) use flight::{Answer, Fields, Flight, Reply, TooLong};

/// One core of a server.
pub(crate) struct Link<P: Platform, C: Connect> {
    platform: P,
    connector: Rc<C>,
    options: Rc<Options>,
    address: SocketAddr,
    state: RefCell<State<C::Stream>>,
    /// A connection has begun or ended, or an attempt has failed. All volumes that are open on it wait for this.
    changed: Signal,
    /// Somebody wants a connection, or none will be wanted any more. Its own task alone waits for this, so that opening a volume wakes none of the others.
    wanted: Signal,
    /// Something may be sent that could not before, or the connection has ended.
    work: Signal,
    /// When bytes came last, or a request was sent on an idle connection.
    arrived: Rc<Cell<Time>>,
}

struct State<S> {
    ledger: Ledger<Rc<Flight>>,
    /// Made for the present connection and not sent yet.
    queue: VecDeque<Rc<Flight>>,
    connection: Option<(S, About)>,
    /// Whose core it is, as it said when it was connected last.
    node: Option<NodeId>,
    /// Connections so far.
    generation: u64,
    /// Attempts to connect that have failed so far.
    failures: u64,
    /// Why there is no connection.
    trouble: String,
    /// Callers that wait for one.
    wanted: u64,
    /// A `PING` asks whether the server lives.
    is_asking: bool,
    stopped: bool,
}

/// What is known of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct About {
    /// Which one of the link it is.
    pub(crate) generation: u64,
    pub(crate) node: NodeId,
    /// Of the server's process.
    pub(crate) incarnation: u64,
    pub(crate) session: SessionId,
    pub(crate) server: Nonce,
    pub(crate) client: Nonce,
}

impl<P: Platform, C: Connect> Link<P, C> {
    /// A link that connects as soon as somebody wants it to.
    pub(crate) fn start(
        platform: P,
        connector: Rc<C>,
        options: Rc<Options>,
        address: SocketAddr,
    ) -> Rc<Link<P, C>> {
        let state = State {
            ledger: Ledger::new(),
            queue: VecDeque::new(),
            connection: None,
            node: None,
            generation: 0,
            failures: 0,
            trouble: "it was not connected yet".to_owned(),
            wanted: 0,
            is_asking: false,
            stopped: false,
        };
        let link = Rc::new(Link {
            platform: platform.clone(),
            connector,
            options,
            address,
            state: RefCell::new(state),
            changed: Signal::new(),
            wanted: Signal::new(),
            work: Signal::new(),
            arrived: Rc::new(Cell::new(platform.now())),
        });
        platform.spawn(driver::run(link.clone()));
        link
    }

    /// The connection, as soon as there is one. Fails, with the reason, when an attempt to make one
    /// does.
    pub(crate) async fn up(&self) -> Result<About, String> {
        let _wanted = Wanted::new(self);
        let failures = self.state.borrow().failures;
        loop {
            let changed = self.changed.wait();
            {
                let state = self.state.borrow();
                if let Some((_, about)) = &state.connection {
                    return Ok(*about);
                }
                if state.stopped || state.failures != failures {
                    return Err(state.trouble.clone());
                }
            }
            changed.await;
        }
    }

    /// True while this is the connection.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        let state = self.state.borrow();
        let connection = state.connection.as_ref();
        connection.is_some_and(|(_, about)| about.generation == generation)
    }

    /// Completes when a connection begins or ends after this call, or an attempt to make one fails.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.wait()
    }

    /// Sends a request on the connection that it was made for and waits for what comes of it. If
    /// this is dropped before it was sent, it won't be.
    pub(crate) async fn exchange(&self, generation: u64, flight: &Rc<Flight>) -> Answer {
        let (answer, awaited) = promise();
        {
            let mut state = self.state.borrow_mut();
            if state.stopped {
                return Answer::Stopped;
            }
            let connection = state.connection.as_ref();
            if connection.is_none_or(|(_, about)| about.generation != generation) {
                return Answer::NotBegun;
            }
            if let Some(most) = state.refuses(flight) {
                return Answer::TooLong(most);
            }
            flight.expects(answer);
            state.queue.push_back(flight.clone());
        }
        self.work.notify();
        let _leave = Leave { link: self, flight };
        // Every flight is settled, at the latest when the link stops.
        awaited.await.unwrap_or(Answer::Stopped)
    }

    /// A volume is open at this node, behind a move if this link is another one's: what is on its way here can't change it any more. A node that has let
    /// a volume go refuses what comes later, and so it does when it is started again.
    pub(crate) fn left_behind(&self, volume: DvolId, node: NodeId) {
        let state = self.state.borrow();
        if state.node.is_some_and(|own| own != node) {
            for flight in state.ledger.sent() {
                flight.left_behind(volume);
            }
        }
    }

    /// Ends everything. What was on its way is answered [`Answer::Stopped`].
    pub(crate) fn stop(&self) {
        let flights = {
            let state = &mut *self.state.borrow_mut();
            state.stopped = true;
            state.trouble = "the client was closed".to_owned();
            if let Some((stream, _)) = state.connection.take() {
                stream.shutdown();
            }
            let mut flights = state.ledger.abandon();
            flights.extend(state.queue.drain(..));
            flights
        };
        for flight in flights {
            flight.settle(Answer::Stopped);
        }
        self.changed.notify();
        self.wanted.notify();
        self.work.notify();
    }

    /// Ends a connection, if it is still the present one.
    fn end(&self, generation: u64, trouble: String) {
        if !self.is_current(generation) {
            return;
        }
        let queue = {
            let state = &mut *self.state.borrow_mut();
            if let Some((stream, _)) = state.connection.take() {
                stream.shutdown();
            }
            state.trouble = trouble;
            state.is_asking = false;
            std::mem::take(&mut state.queue)
        };
        for flight in queue {
            flight.settle(Answer::NotBegun);
        }
        self.changed.notify();
        self.work.notify();
    }

    /// Asks whether the server lives, before everything else that waits.
    fn ask(&self) {
        let mut state = self.state.borrow_mut();
        if state.is_asking {
            return;
        }
        state.is_asking = true;
        let ping = Flight::new(Operation::Ping, Fields::default(), Vec::new());
        state
            .queue
            .push_front(Rc::new(ping.payload(Vec::<IoBuf>::new())));
        drop(state);
        self.work.notify();
    }
}

impl<S> State<S> {
    /// The most that may be of what this request has or asks for too much of.
    fn refuses(&self, flight: &Flight) -> Option<TooLong> {
        let (limits, max) = (self.ledger.limits(), self.ledger.payload_max_bytes());
        let most = flight
            .request_payload_bytes()
            .max(flight.reply_payload_bytes());
        let in_flight_max = u64::from(limits.payload_in_flight_max_bytes);
        let body_max = u64::from(limits.body_max_bytes);
        if most > max || flight.payload_bytes() > in_flight_max {
            return Some(TooLong::Payload(max));
        }
        (flight.body_bytes() > body_max).then_some(TooLong::Body(body_max))
    }
}

/// Somebody waits for a connection.
struct Wanted<'a, P: Platform, C: Connect> {
    link: &'a Link<P, C>,
}

impl<'a, P: Platform, C: Connect> Wanted<'a, P, C> {
    fn new(link: &'a Link<P, C>) -> Wanted<'a, P, C> {
        link.state.borrow_mut().wanted += 1;
        link.wanted.notify();
        Wanted { link }
    }
}

impl<P: Platform, C: Connect> Drop for Wanted<'_, P, C> {
    fn drop(&mut self) {
        self.link.state.borrow_mut().wanted -= 1;
    }
}

/// Takes a request out of the queue if its caller gives up before it was sent.
struct Leave<'a, P: Platform, C: Connect> {
    link: &'a Link<P, C>,
    flight: &'a Rc<Flight>,
}

impl<P: Platform, C: Connect> Drop for Leave<'_, P, C> {
    fn drop(&mut self) {
        if self.flight.was_sent() {
            return;
        }
        let mut state = self.link.state.borrow_mut();
        state
            .queue
            .retain(|flight| !Rc::ptr_eq(flight, self.flight));
    }
}
