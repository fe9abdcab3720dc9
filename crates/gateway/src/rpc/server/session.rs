//! The server that all connections of a core belong to, and a connection from its first to its last call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Stream};

use super::connection::{Connection, Shared};
use super::limits::RpcLimits;
use super::receive::read_calls;
use super::service::{Service, Visitor};
use super::transmit::spawn_writer;
use crate::rpc::record::RecordError;
use crate::sparingly::Sparingly;
use crate::volume::Ends;
use crate::window::SharedMemory;
use crate::xdr::XdrError;

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The client closed between two calls.
    Finished,
    /// The connection broke in the middle of something.
    Broken,
    /// The client sent a record that can't be one.
    BadRecord(RecordError),
    /// The client sent a record that is no call.
    NoCall(XdrError),
    /// Nothing moved for too long in the middle of a message.
    Stalled,
    /// It was idle when its place was needed.
    Displaced,
    /// There were too many connections, none of them idle.
    Refused,
    /// The server is stopping.
    Stopping,
}

/// What one core's server counts of its connections. Plain data: copies can go to other threads and be
/// added.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RpcCounters {
    /// Connections there are now.
    pub connections: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections closed at once because there were too many, or the server was stopping.
    pub connections_refused: u64,
    /// Idle connections closed to make place.
    pub connections_displaced: u64,
    /// Connections closed for breaking the protocol or a limit.
    pub connections_expelled: u64,
    /// Calls denied: another version of RPC, a bad credential.
    pub denied: u64,
    /// Times the receive side was called.
    pub receives: u64,
    /// Times the send side was called; answers divided by it tell how well they are gathered.
    pub sends: u64,
}

impl RpcCounters {
    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &RpcCounters) {
        self.connections += other.connections;
        self.connections_accepted += other.connections_accepted;
        self.connections_refused += other.connections_refused;
        self.connections_displaced += other.connections_displaced;
        self.connections_expelled += other.connections_expelled;
        self.denied += other.denied;
        self.receives += other.receives;
        self.sends += other.sends;
    }
}

/// One core's server. A cheap handle.
pub struct RpcServer<P: Platform, S: Service> {
    inner: Rc<Inner<P, S>>,
}

impl<P: Platform, S: Service> Clone for RpcServer<P, S> {
    fn clone(&self) -> Self {
        RpcServer {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<P: Platform, S: Service> {
    platform: P,
    service: Rc<S>,
    shared: Rc<Shared>,
    stopping: Cell<bool>,
    /// Connections there are now, by a number of their own: a lower one is older.
    live: RefCell<BTreeMap<u64, Rc<Connection<P, S>>>>,
    next_live: Cell<u64>,
    left: Signal,
    /// Connections that clients broke or had to be closed, in the log.
    ends: Sparingly,
}

impl<P: Platform, S: Service> RpcServer<P, S> {
    /// A server for the calls that `service` knows.
    pub fn new(platform: P, service: S, limits: RpcLimits) -> RpcServer<P, S> {
        let limits = limits.workable();
        let shared = Shared {
            limits,
            counters: RefCell::default(),
            memory: SharedMemory::new(limits.shared_bytes, limits.single_bytes),
            connections: Cell::new(0),
        };
        RpcServer {
            inner: Rc::new(Inner {
                platform,
                service: Rc::new(service),
                shared: Rc::new(shared),
                stopping: Cell::new(false),
                live: RefCell::default(),
                next_live: Cell::new(0),
                left: Signal::new(),
                ends: Sparingly::default(),
            }),
        }
    }

    /// What it serves.
    pub fn service(&self) -> &S {
        &self.inner.service
    }

    /// A copy of what was counted so far. Receives are added when a connection ends.
    pub fn counters(&self) -> RpcCounters {
        let mut counters = *self.inner.shared.counters.borrow();
        counters.connections = self.inner.live.borrow().len() as u64;
        counters
    }

    /// Serves a connection until it is over. Of its ends that is known which the stream says of its peer.
    pub async fn serve_connection(&self, stream: P::Stream) -> CloseReason {
        let ends = Ends {
            peer: stream.peer().parse().ok(),
            ..Ends::default()
        };
        self.serve_connection_of(stream, ends).await
    }

    /// The same, of a connection with these ends.
    pub async fn serve_connection_of(&self, stream: P::Stream, ends: Ends) -> CloseReason {
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
            self.log_end(&stream, reason, "rpc: connection refused");
            return reason;
        }
        inner.shared.counters.borrow_mut().connections_accepted += 1;
        let connection = Rc::new(Connection::new(
            inner.platform.clone(),
            stream.clone(),
            inner.service.clone(),
            inner.shared.clone(),
            Visitor::of(ends),
        ));
        let place = self.enter(connection.clone());
        spawn_writer(&connection);
        read_calls(&connection).await;
        connection.tasks_ended().await;
        drop(place);
        stream.shutdown();
        let reason = connection.end();
        self.note_end(&stream, reason);
        reason
    }

    /// Takes no more connections and no more calls. What is in flight is done and answered, then its
    /// connection is closed, so a client that reconnects repeats only what was not answered.
    pub fn stop(&self) {
        self.inner.stopping.set(true);
        for connection in self.inner.live.borrow().values() {
            connection.close(CloseReason::Stopping);
        }
    }

    /// Ends all connections at once, answered or not.
    pub fn abort(&self) {
        self.stop();
        for connection in self.inner.live.borrow().values() {
            connection.abort(CloseReason::Stopping);
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

    /// Makes sure that there is a place for one more connection. If all are taken, the oldest that never
    /// sent a call loses its place: who says nothing must not keep others out. If there is none, the one
    /// that waits for nothing and has said nothing for longest: its client connects again when it
    /// has something to say. False if all are busy.
    fn make_place(&self) -> bool {
        let mut live = self.inner.live.borrow_mut();
        if live.len() < self.inner.shared.limits.connections_max {
            return true;
        }
        let silent = live
            .iter()
            .find(|(_, connection)| connection.called_at().is_none());
        let idle = || {
            let idle = live.iter().filter(|(_, connection)| connection.is_idle());
            idle.min_by_key(|(_, connection)| connection.called_at())
        };
        let Some(number) = silent.or_else(idle).map(|(&number, _)| number) else {
            return false;
        };
        if let Some(connection) = live.remove(&number) {
            connection.abort(CloseReason::Displaced);
        }
        true
    }

    fn enter(&self, connection: Rc<Connection<P, S>>) -> Place<P, S> {
        let number = self.inner.next_live.get();
        self.inner.next_live.set(number + 1);
        self.inner.live.borrow_mut().insert(number, connection);
        self.inner.count_connections();
        Place {
            inner: self.inner.clone(),
            number,
        }
    }

    fn note_end(&self, stream: &P::Stream, reason: CloseReason) {
        let mut counters = self.inner.shared.counters.borrow_mut();
        let what = match reason {
            CloseReason::Finished | CloseReason::Stopping => {
                tracing::debug!(peer = stream.peer(), ?reason, "rpc: connection closed");
                return;
            }
            CloseReason::Broken => "rpc: connection lost",
            CloseReason::Displaced => {
                counters.connections_displaced += 1;
                "rpc: idle connection closed to make place"
            }
            CloseReason::BadRecord(_)
            | CloseReason::NoCall(_)
            | CloseReason::Stalled
            | CloseReason::Refused => {
                counters.connections_expelled += 1;
                "rpc: connection closed by us"
            }
        };
        drop(counters);
        self.log_end(stream, reason, what);
    }

    fn log_end(&self, stream: &P::Stream, reason: CloseReason, what: &str) {
        if let Some(left_out) = self.inner.ends.note(self.inner.platform.now()) {
            tracing::info!(peer = stream.peer(), ?reason, left_out, "{what}");
        }
    }
}

/// A connection's entry among those of the server, for as long as it is served.
struct Place<P: Platform, S: Service> {
    inner: Rc<Inner<P, S>>,
    number: u64,
}

impl<P: Platform, S: Service> Drop for Place<P, S> {
    fn drop(&mut self) {
        let live = self.inner.live.borrow_mut().remove(&self.number);
        drop(live);
        self.inner.count_connections();
        self.inner.left.notify();
    }
}

impl<P: Platform, S: Service> Inner<P, S> {
    /// For those that share the core with each other.
    fn count_connections(&self) {
        self.shared.connections.set(self.live.borrow().len());
    }
}
