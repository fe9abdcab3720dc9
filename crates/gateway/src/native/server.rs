//! A connection from `HELLO` to its end, and the server that all connections and sessions of a core belong to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Stream, Time};
use flagstone_tls::{ServerTls, Transport};
use flagstone_types::Lsn;
use flagstone_wire::hello::{HelloReply, Nonce, VERSION};
use flagstone_wire::{Operation, VolumeNo};

use super::begin::{Begun, NotBegun, begin};
use super::connection::{Answer, Client, Connection, Shared, Ticket};
use super::counters::NativeCounters;
use super::directory::{Ends, NativeDirectory};
use super::hello::{Greeting, receive_hello};
use super::limits::NativeLimits;
use super::outbox::ReplyBody;
use super::receive::read_requests;
use super::sessions::{Attached, Came, Sessions};
use super::transmit::spawn_writer;
use crate::inbox::Inbox;
use crate::sparingly::Sparingly;
use crate::window::SharedMemory;

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The client closed between two frames.
    Finished,
    /// The connection broke in the middle of something.
    Broken,
    /// A header's checksum is wrong: nothing that follows it can be trusted.
    HeadDamaged,
    /// The client broke the protocol or a limit that it was told.
    Protocol(flagstone_wire::CloseReason),
    /// TLS did not begin: the two could not agree, or it is required and the client did not ask for it.
    NoTls,
    /// `HELLO` did not come in time.
    HelloTimeout,
    /// `HELLO` could not be answered with status 0.
    HelloRefused,
    /// Its session goes on with another connection.
    Replaced,
    /// Too many of its `OPEN`s were refused.
    Denied,
    /// Nothing moved for too long in the middle of a frame.
    Stalled,
    /// There were too many connections: this one came last, or was without a volume for longest when its
    /// place was needed.
    Refused,
    /// The server is stopping.
    Stopping,
}

impl CloseReason {
    /// Names of the kinds of reasons, for counters and lists.
    pub const KINDS: [&'static str; 12] = [
        "finished",
        "broken",
        "damaged",
        "protocol",
        "hello-timeout",
        "hello-refused",
        "replaced",
        "denied",
        "stalled",
        "refused",
        "stopping",
        "no-tls",
    ];

    /// The place of its kind among [`CloseReason::KINDS`].
    pub fn kind(self) -> usize {
        match self {
            CloseReason::Finished => 0,
            CloseReason::Broken => 1,
            CloseReason::HeadDamaged => 2,
            CloseReason::Protocol(_) => 3,
            CloseReason::HelloTimeout => 4,
            CloseReason::HelloRefused => 5,
            CloseReason::Replaced => 6,
            CloseReason::Denied => 7,
            CloseReason::Stalled => 8,
            CloseReason::Refused => 9,
            CloseReason::Stopping => 10,
            CloseReason::NoTls => 11,
        }
    }

    /// The client has left, or was asked to; nobody is to blame.
    fn is_usual(self) -> bool {
        matches!(
            self,
            CloseReason::Finished | CloseReason::Replaced | CloseReason::Stopping
        )
    }
}

/// One core's native server. A cheap handle.
pub struct NativeServer<P: Platform, D: NativeDirectory> {
    inner: Rc<Inner<P, D>>,
}

impl<P: Platform, D: NativeDirectory> Clone for NativeServer<P, D> {
    fn clone(&self) -> Self {
        NativeServer {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<P: Platform, D: NativeDirectory> {
    platform: P,
    directory: D,
    tls: Option<ServerTls>,
    shared: Rc<Shared>,
    sessions: Rc<Sessions<P>>,
    stopping: Cell<bool>,
    /// Connections there are now, by a number of their own.
    live: RefCell<BTreeMap<u64, Live<P, D>>>,
    next_live: Cell<u64>,
    left: Signal,
    /// Connections that clients broke or had to be closed, in the log.
    ends: Sparingly,
}

enum Live<P: Platform, D: NativeDirectory> {
    Greeting { stream: P::Stream, began: Time },
    Serving(Rc<Connection<P, D>>),
}

impl<P: Platform, D: NativeDirectory> Live<P, D> {
    /// Since when it has no volume; `None` if it has one.
    fn without_volume_since(&self) -> Option<Time> {
        match self {
            Live::Greeting { began, .. } => Some(*began),
            Live::Serving(connection) => connection.without_volume_since.get(),
        }
    }

    fn end(&self, reason: CloseReason) {
        match self {
            Live::Greeting { stream, .. } => stream.shutdown(),
            Live::Serving(connection) => connection.abort(reason),
        }
    }
}

impl<P: Platform, D: NativeDirectory> NativeServer<P, D> {
    /// A server for the volumes of `directory`, without TLS.
    pub fn new(platform: P, directory: D, limits: NativeLimits) -> NativeServer<P, D> {
        NativeServer::with_tls(platform, directory, limits, None)
    }

    /// A server for the volumes of `directory`, which offers TLS, or wants it, if there is something to offer.
    pub fn with_tls(
        platform: P,
        directory: D,
        limits: NativeLimits,
        tls: Option<ServerTls>,
    ) -> NativeServer<P, D> {
        let limits = limits.workable();
        let shared = Shared {
            limits,
            counters: RefCell::default(),
            memory: SharedMemory::new(limits.shared_bytes, limits.single_bytes),
        };
        let sessions = Sessions::new(platform.clone(), limits.sessions_max, limits.grace_ns());
        NativeServer {
            inner: Rc::new(Inner {
                platform,
                directory,
                tls,
                shared: Rc::new(shared),
                sessions,
                stopping: Cell::new(false),
                live: RefCell::default(),
                next_live: Cell::new(0),
                left: Signal::new(),
                ends: Sparingly::default(),
            }),
        }
    }

    /// A copy of what was counted so far.
    pub fn counters(&self) -> NativeCounters {
        let inner = &self.inner;
        let mut counters = inner.shared.counters.borrow().clone();
        counters.connections = inner.live.borrow().len() as u64;
        counters.sessions_waiting = inner.sessions.waiting_count() as u64;
        let live = inner.live.borrow();
        counters.volumes_open = live
            .values()
            .map(|live| match live {
                Live::Greeting { .. } => 0,
                Live::Serving(connection) => connection.volumes.count() as u64,
            })
            .sum();
        counters
    }

    /// Shows `look` each volume that is open on a connection, as often as it is open.
    pub fn for_each_open(&self, mut look: impl FnMut(&D::Volume)) {
        for live in self.inner.live.borrow().values() {
            if let Live::Serving(connection) = live {
                connection.volumes.for_each(&mut look);
            }
        }
    }

    /// Serves a connection. Completes when it is over, and nothing that came in over it is under way any
    /// more.
    pub async fn serve_connection(&self, stream: P::Stream, ends: Ends) -> CloseReason {
        let inner = &self.inner;
        let refused = if inner.stopping.get() {
            Some(CloseReason::Stopping)
        } else if !self.make_place() {
            Some(CloseReason::Refused)
        } else {
            None
        };
        if let Some(reason) = refused {
            stream.shutdown();
            inner.shared.counters.borrow_mut().connections_refused += 1;
            self.note_end(&Transport::Plain(stream), reason);
            return reason;
        }
        inner.shared.counters.borrow_mut().connections_accepted += 1;
        let place = self.enter(Live::Greeting {
            stream: stream.clone(),
            began: inner.platform.now(),
        });
        let mut transport = Transport::Plain(stream);
        let reason = self.run(&mut transport, ends, &place).await;
        // What a stop or somebody else's need of its place does to a stream looks like the client's doing.
        let reason = match reason {
            CloseReason::Finished | CloseReason::Broken if !place.is_kept() => CloseReason::Refused,
            CloseReason::Finished | CloseReason::Broken if inner.stopping.get() => {
                CloseReason::Stopping
            }
            reason => reason,
        };
        drop(place);
        transport.shutdown();
        self.note_end(&transport, reason);
        reason
    }

    /// Takes no more connections and no more requests. What is in flight is carried out and answered, then its
    /// connection is closed.
    pub fn stop(&self) {
        self.inner.stopping.set(true);
        for live in self.inner.live.borrow().values() {
            match live {
                Live::Greeting { stream, .. } => stream.shutdown(),
                Live::Serving(connection) => connection.close(CloseReason::Stopping),
            }
        }
    }

    /// Ends all connections at once, answered or not: for those that are still there some time after
    /// [`NativeServer::stop`], such as that of a client which takes a byte now and then.
    pub fn abort(&self) {
        self.stop();
        for live in self.inner.live.borrow().values() {
            live.end(CloseReason::Stopping);
        }
    }

    /// Stops, and cuts off who has not taken its answers after `grace_ns`. True if nobody had to be.
    pub async fn stop_within(&self, grace_ns: u64) -> bool {
        self.stop();
        let mut stopped = pin!(self.stopped());
        let mut late = pin!(self.inner.platform.sleep_ns(grace_ns));
        let in_time = poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => late.as_mut().poll(cx).map(|()| false),
        })
        .await;
        if !in_time {
            self.abort();
        }
        in_time
    }

    /// Completes when there are no connections any more.
    pub async fn stopped(&self) {
        while !self.inner.live.borrow().is_empty() {
            self.inner.left.wait().await;
        }
    }

    /// Makes sure that there is a place for one more connection. If all are taken, the one that has been without a
    /// volume for longest loses its place: who opens nothing must not keep others out. False if all have one.
    fn make_place(&self) -> bool {
        let mut live = self.inner.live.borrow_mut();
        if live.len() < self.inner.shared.limits.connections_max {
            return true;
        }
        let idle = live
            .iter()
            .filter_map(|(&number, live)| Some((live.without_volume_since()?, number)));
        let Some((_, number)) = idle.min() else {
            return false;
        };
        // Its task notices that its place is gone.
        let ended = live.remove(&number);
        drop(live);
        if let Some(ended) = ended {
            ended.end(CloseReason::Refused);
        }
        true
    }

    fn enter(&self, live: Live<P, D>) -> Place<P, D> {
        let number = self.inner.next_live.get();
        self.inner.next_live.set(number + 1);
        self.inner.live.borrow_mut().insert(number, live);
        Place {
            inner: self.inner.clone(),
            number,
        }
    }

    fn note_end(&self, stream: &Transport<P>, reason: CloseReason) {
        self.inner.shared.counters.borrow_mut().note_close(reason);
        if reason.is_usual() {
            tracing::debug!(peer = stream.peer(), ?reason, "native: connection closed");
        } else if let Some(left_out) = self.inner.ends.note(self.inner.platform.now()) {
            let said = match reason {
                CloseReason::Protocol(what) => what.to_string(),
                _ => CloseReason::KINDS[reason.kind()].to_owned(),
            };
            let peer = stream.peer();
            tracing::info!(peer, reason = said, left_out, "native: connection ended");
        }
    }

    /// Begins TLS if the client does, and returns what was received behind that. Leaves `transport` as it is then.
    async fn begin(&self, transport: &mut Transport<P>) -> Result<Vec<u8>, CloseReason> {
        let inner = &self.inner;
        let (Some(tls), Transport::Plain(stream)) = (&inner.tls, &*transport) else {
            return Ok(Vec::new());
        };
        let hello_ns = inner.shared.limits.hello_ns();
        let begun = begin(&inner.platform, stream, tls, hello_ns).await;
        match begun {
            Ok(Begun {
                transport: carrier,
                unread,
            }) => {
                *transport = carrier;
                Ok(unread)
            }
            Err(NotBegun::Closed(reason)) => Err(reason),
            Err(NotBegun::NoTls(error)) => {
                let now = inner.platform.now();
                if let Some(error) = error
                    && let Some(left_out) = inner.ends.note(now)
                {
                    let peer = transport.peer();
                    tracing::info!(peer, %error, left_out, "native: TLS did not begin");
                }
                Err(CloseReason::NoTls)
            }
        }
    }

    async fn run(
        &self,
        transport: &mut Transport<P>,
        ends: Ends,
        place: &Place<P, D>,
    ) -> CloseReason {
        let inner = &self.inner;
        let arrived = inner.platform.now();
        let unread = match self.begin(transport).await {
            Ok(unread) => unread,
            Err(reason) => return reason,
        };
        let stream = &*transport;
        let buffers = inner.platform.buffers().clone();
        let mut inbox = Inbox::new(stream.clone(), buffers, &unread);
        // The handshake and `HELLO` have this time together.
        let taken_ns = inner.platform.now().since(arrived);
        let hello_ns = inner.shared.limits.hello_ns().saturating_sub(taken_ns);
        let greeting = receive_hello(&inner.platform, stream, &mut inbox, hello_ns).await;
        let greeting = match greeting {
            Ok(greeting) => greeting,
            Err(reason) => return reason,
        };
        // Waits until nothing of the session is under way any more.
        let attached = inner.sessions.attach(greeting.session).await;
        let Some((attached, came)) = attached else {
            return CloseReason::Replaced;
        };
        if inner.stopping.get() {
            return CloseReason::Stopping;
        }
        if !place.is_kept() {
            return CloseReason::Refused;
        }
        self.count_session(came);
        let connection = self.connect(stream, ends, greeting, &attached);
        place.replace(Live::Serving(connection.clone()));
        let weak = Rc::downgrade(&connection);
        attached.session.set_end(move || {
            if let Some(connection) = weak.upgrade() {
                connection.abort(CloseReason::Replaced);
            }
        });
        spawn_writer(&connection);
        if let Some((charge, _)) = connection.charge(0).await {
            let ticket = Ticket {
                operation: Operation::Hello.number(),
                volume: VolumeNo::NONE,
                number: 0,
                arrived,
                payload_bytes: 0,
                waited_ns: 0,
                charge,
            };
            let body = self.hello_body(&connection);
            connection.answer(ticket, Answer::ok(Lsn::ZERO, ReplyBody::Body(body)));
        }
        read_requests(&connection, inbox).await;
        connection.tasks_ended().await;
        let reason = connection.end();
        connection.volumes.clear();
        // Only now may another connection have the session.
        drop(attached);
        reason
    }

    fn count_session(&self, came: Came) {
        let mut counters = self.inner.shared.counters.borrow_mut();
        match came {
            Came::New => counters.sessions_begun += 1,
            Came::Resumed => counters.sessions_resumed += 1,
            Came::Unknown => {
                counters.sessions_begun += 1;
                counters.sessions_unknown += 1;
            }
        }
    }

    fn connect(
        &self,
        stream: &Transport<P>,
        ends: Ends,
        greeting: Greeting,
        attached: &Attached<P>,
    ) -> Rc<Connection<P, D>> {
        let inner = &self.inner;
        let platform = &inner.platform;
        let (low, high) = (platform.random_u64(), platform.random_u64());
        let client = Client {
            name: greeting.name,
            ends,
            client_nonce: greeting.nonce,
            server_nonce: Nonce((u128::from(high) << 64 | u128::from(low)).to_le_bytes()),
        };
        Rc::new(Connection::new(
            platform.clone(),
            stream.clone(),
            inner.directory.clone(),
            client,
            attached.session.clone(),
            inner.shared.clone(),
        ))
    }

    fn hello_body(&self, connection: &Connection<P, D>) -> Vec<u8> {
        let directory = &self.inner.directory;
        let reply = HelloReply {
            version: VERSION,
            core: directory.core(),
            // There are none yet, whatever was asked for.
            features: 0,
            node: directory.node(),
            incarnation: directory.incarnation(),
            session: connection.session.id(),
            nonce: connection.client.server_nonce,
            limits: connection.shared.limits.connection,
            arrived: connection.session.arrived(),
        };
        let mut addresses = Vec::new();
        directory.addresses(&mut addresses);
        let outcomes = connection.session.outcomes().into_iter();
        let mut body = Vec::new();
        reply.encode(&addresses, outcomes, &mut body);
        body
    }
}

/// A connection's entry among those of the server, for as long as it is served here.
struct Place<P: Platform, D: NativeDirectory> {
    inner: Rc<Inner<P, D>>,
    number: u64,
}

impl<P: Platform, D: NativeDirectory> Place<P, D> {
    /// False if it was given to another connection.
    fn is_kept(&self) -> bool {
        self.inner.live.borrow().contains_key(&self.number)
    }

    fn replace(&self, live: Live<P, D>) {
        self.inner.live.borrow_mut().insert(self.number, live);
    }
}

impl<P: Platform, D: NativeDirectory> Drop for Place<P, D> {
    fn drop(&mut self) {
        let live = self.inner.live.borrow_mut().remove(&self.number);
        drop(live);
        self.inner.left.notify();
    }
}
