//! A connection from greeting to good-bye, and the server that all connections of a core belong to.
//!
//! When the volume lives on another core, the connection goes there with its negotiation as it
//! stands: the stream (no operation is pending on it) and a [`NegotiatedSession`] (plain data, with
//! all bytes received and not used).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Stream, Time};
use flagstone_tls::{HandshakeError, ServerTls, TlsStream, Transport};

use super::connection::{Connection, Shared, TransmissionEnd};
use super::counters::NbdCounters;
use super::limits::NbdLimits;
use super::negotiate::{Negotiated, NegotiatedSession, Negotiator};
use super::options::Agreement;
use super::receive::read_requests;
use super::transmit::spawn_writer;
use crate::sparingly::Sparingly;
use crate::volume::{Ends, VolumeDirectory};
use crate::window::SharedMemory;

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The client said good-bye, or closed between two messages.
    Finished,
    /// The connection broke in the middle of something.
    Broken,
    /// The client asked for a name that does not exist, in an option that has no error reply.
    NoSuchExport,
    /// The client broke the protocol or a limit: what it did.
    Violation(&'static str),
    /// The two did not agree on TLS.
    NoTls,
    /// Negotiation was not done in time.
    NegotiationTimeout,
    /// Nothing moved for too long in the middle of a message.
    Stalled,
    /// There were too many connections: this one came last, or was in negotiation for longest when
    /// its place was needed.
    Refused,
    /// The server is stopping.
    Stopping,
}

/// How [`NbdServer::serve_connection`] ends.
pub enum Outcome<S> {
    /// The connection is closed.
    Closed(CloseReason),
    /// Move the stream to this core and call [`NbdServer::resume_connection`] there. No operation
    /// is pending on the stream, and this is its only handle.
    HandOver {
        /// The core on which the volume lives.
        core: usize,
        /// The connection.
        stream: S,
        /// What goes with it.
        session: NegotiatedSession,
    },
}

/// One core's NBD server. A cheap handle.
pub struct NbdServer<P: Platform, D: VolumeDirectory> {
    inner: Rc<Inner<P, D>>,
}

impl<P: Platform, D: VolumeDirectory> Clone for NbdServer<P, D> {
    fn clone(&self) -> Self {
        NbdServer {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<P: Platform, D: VolumeDirectory> {
    platform: P,
    directory: D,
    tls: Option<ServerTls>,
    shared: Rc<Shared>,
    stopping: Cell<bool>,
    /// Connections there are now, by a number of their own.
    live: RefCell<BTreeMap<u64, Live<P, D::Volume>>>,
    next_live: Cell<u64>,
    left: Signal,
    /// Connections that clients broke or had to be closed, in the log.
    ends: Sparingly,
}

enum Live<P: Platform, V> {
    Negotiating { stream: Transport<P>, began: Time },
    Transmitting(Rc<Connection<P, V>>),
}

impl<P: Platform, D: VolumeDirectory> NbdServer<P, D> {
    /// A server for the volumes of `directory`, without TLS.
    pub fn new(platform: P, directory: D, limits: NbdLimits) -> NbdServer<P, D> {
        NbdServer::with_tls(platform, directory, limits, None)
    }

    /// A server for the volumes of `directory`, which offers TLS, or wants it, if there is something to offer.
    pub fn with_tls(
        platform: P,
        directory: D,
        limits: NbdLimits,
        tls: Option<ServerTls>,
    ) -> NbdServer<P, D> {
        let limits = limits.workable();
        let shared = Shared {
            limits,
            counters: RefCell::default(),
            memory: SharedMemory::new(limits.shared_payload_bytes, limits.single_payload_bytes),
        };
        NbdServer {
            inner: Rc::new(Inner {
                platform,
                directory,
                tls,
                shared: Rc::new(shared),
                stopping: Cell::new(false),
                live: RefCell::default(),
                next_live: Cell::new(0),
                left: Signal::new(),
                ends: Sparingly::default(),
            }),
        }
    }

    /// A copy of what was counted so far. Receives are added when a connection ends.
    pub fn counters(&self) -> NbdCounters {
        let mut counters = self.inner.shared.counters.borrow().clone();
        counters.connections = self.inner.live.borrow().len() as u64;
        counters
    }

    /// Shows `look` the volume of each connection that has been admitted to one.
    pub fn for_each_attached(&self, mut look: impl FnMut(&D::Volume)) {
        for live in self.inner.live.borrow().values() {
            if let Live::Transmitting(connection) = live {
                look(&connection.volume);
            }
        }
    }

    /// Serves a new connection whose ends nobody knows, as those of a Unix socket. Completes when it is over or must move
    /// to another core.
    pub async fn serve_connection(&self, stream: P::Stream) -> Outcome<P::Stream> {
        self.serve_connection_of(stream, Ends::default()).await
    }

    /// The same, of a connection with these ends.
    pub async fn serve_connection_of(&self, stream: P::Stream, ends: Ends) -> Outcome<P::Stream> {
        let limits = &self.inner.shared.limits;
        let tls = self.inner.tls.as_ref();
        let time_ns = limits.negotiation_ns();
        let session = NegotiatedSession::new(limits.negotiation, tls, time_ns, ends);
        self.resume_connection(stream, session).await
    }

    /// Goes on with a connection that came from another core; otherwise like
    /// [`NbdServer::serve_connection`].
    pub async fn resume_connection(
        &self,
        stream: P::Stream,
        mut session: NegotiatedSession,
    ) -> Outcome<P::Stream> {
        let platform = &self.inner.platform;
        let transport = match session.tls.take() {
            None => Transport::Plain(stream),
            Some(known) => Transport::Tls(TlsStream::resume(platform, stream, known)),
        };
        let began = session.began(self.inner.platform.now());
        let refused = if self.inner.stopping.get() {
            Some(CloseReason::Stopping)
        } else if !self.make_place(began) {
            Some(CloseReason::Refused)
        } else {
            None
        };
        if let Some(reason) = refused {
            transport.shutdown();
            self.inner.shared.counters.borrow_mut().connections_refused += 1;
            self.log_end(&transport, reason, "nbd: connection refused");
            return Outcome::Closed(reason);
        }
        self.inner.shared.counters.borrow_mut().connections_accepted += 1;
        let place = self.enter(Live::Negotiating {
            stream: transport.clone(),
            began,
        });
        let (transport, end) = self.run(transport, session, &place).await;
        drop(place);
        match end {
            Ended::HandOver(core, mut session) => {
                let stream = match transport {
                    Transport::Plain(stream) => stream,
                    Transport::Tls(stream) => match stream.detach().await {
                        Some((stream, known)) => {
                            session.tls = Some(known);
                            stream
                        }
                        // It has just ended.
                        None => return Outcome::Closed(CloseReason::Broken),
                    },
                };
                self.inner
                    .shared
                    .counters
                    .borrow_mut()
                    .connections_handed_over += 1;
                Outcome::HandOver {
                    core,
                    stream,
                    session,
                }
            }
            Ended::Closed(reason) => {
                transport.shutdown();
                self.note_end(&transport, reason);
                Outcome::Closed(reason)
            }
        }
    }

    /// Takes no more connections and no more requests. What is in flight is done and answered, then
    /// its connection is closed, so a client that reconnects repeats only what was not answered.
    pub fn stop(&self) {
        self.inner.stopping.set(true);
        for live in self.inner.live.borrow().values() {
            match live {
                Live::Negotiating { stream, .. } => stream.shutdown(),
                Live::Transmitting(connection) => connection.close(TransmissionEnd::Stopping),
            }
        }
    }

    /// Ends all connections at once, answered or not: for those that are still there some time after
    /// [`NbdServer::stop`], such as that of a client which takes a byte now and then.
    pub fn abort(&self) {
        self.stop();
        for live in self.inner.live.borrow().values() {
            if let Live::Transmitting(connection) = live {
                connection.abort(TransmissionEnd::Stopping);
            }
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

    /// Makes sure that there is a place for a connection whose negotiation began at `began`. If all are
    /// taken, the one whose negotiation has gone on for longest loses its place: who says nothing
    /// must not keep others out. False if that would be the new one itself, or all are attached.
    fn make_place(&self, began: Time) -> bool {
        let mut live = self.inner.live.borrow_mut();
        if live.len() < self.inner.shared.limits.connections_max {
            return true;
        }
        let negotiating = live.iter().filter_map(|(&number, live)| match live {
            Live::Negotiating { began, .. } => Some((*began, number)),
            Live::Transmitting(_) => None,
        });
        let Some((oldest, number)) = negotiating.min() else {
            return false;
        };
        if began < oldest {
            return false;
        }
        // Its task notices that its place is gone.
        if let Some(Live::Negotiating { stream, .. }) = live.remove(&number) {
            stream.shutdown();
        }
        true
    }

    fn enter(&self, live: Live<P, D::Volume>) -> Place<P, D> {
        let number = self.inner.next_live.get();
        self.inner.next_live.set(number + 1);
        self.inner.live.borrow_mut().insert(number, live);
        Place {
            inner: self.inner.clone(),
            number,
        }
    }

    fn note_end(&self, stream: &Transport<P>, reason: CloseReason) {
        let what = match reason {
            CloseReason::Finished | CloseReason::NoSuchExport | CloseReason::Stopping => {
                tracing::debug!(peer = stream.peer(), ?reason, "nbd: connection closed");
                return;
            }
            CloseReason::Broken => "nbd: connection lost",
            CloseReason::NoTls => {
                self.inner.shared.counters.borrow_mut().connections_expelled += 1;
                return;
            }
            CloseReason::Violation(_)
            | CloseReason::NegotiationTimeout
            | CloseReason::Stalled
            | CloseReason::Refused => {
                self.inner.shared.counters.borrow_mut().connections_expelled += 1;
                "nbd: connection closed by us"
            }
        };
        self.log_end(stream, reason, what);
    }

    /// Why, which is more than its reason says.
    fn log_no_tls(&self, stream: &Transport<P>, error: &HandshakeError) {
        if let Some(left_out) = self.inner.ends.note(self.inner.platform.now()) {
            tracing::info!(peer = stream.peer(), %error, left_out, "nbd: TLS did not begin");
        }
    }

    fn log_end(&self, stream: &Transport<P>, reason: CloseReason, what: &str) {
        if let Some(left_out) = self.inner.ends.note(self.inner.platform.now()) {
            tracing::info!(peer = stream.peer(), ?reason, left_out, "{what}");
        }
    }

    async fn run(
        &self,
        transport: Transport<P>,
        session: NegotiatedSession,
        place: &Place<P, D>,
    ) -> (Transport<P>, Ended) {
        let (platform, directory) = (&self.inner.platform, &self.inner.directory);
        let tls = self.inner.tls.as_ref();
        let question_ns = self.inner.shared.limits.negotiation_ns();
        let mut negotiator =
            Negotiator::new(platform, directory, transport, tls, session, question_ns);
        let negotiated = negotiator.run().await;
        let transport = negotiator.transport();
        if let Some(error) = &negotiator.tls_error {
            self.log_no_tls(&transport, error);
        }
        let end = self.go_on(&transport, negotiator, negotiated, place).await;
        (transport, end)
    }

    /// What follows on a negotiation.
    async fn go_on(
        &self,
        stream: &Transport<P>,
        negotiator: Negotiator<'_, P, D>,
        negotiated: Negotiated<D::Volume>,
        place: &Place<P, D>,
    ) -> Ended {
        if !place.is_kept() {
            return Ended::Closed(CloseReason::Refused);
        }
        let (volume, agreement) = match negotiated {
            Negotiated::Transmit(volume, agreement) => (volume, agreement),
            Negotiated::HandOver(core) => {
                return Ended::HandOver(core, negotiator.into_session());
            }
            // A stop shuts the stream down, which looks like the client's doing.
            Negotiated::Closed(_) if self.inner.stopping.get() => {
                return Ended::Closed(CloseReason::Stopping);
            }
            Negotiated::Closed(reason) => return Ended::Closed(reason),
        };
        if self.inner.stopping.get() {
            return Ended::Closed(CloseReason::Stopping);
        }
        tracing::debug!(
            peer = stream.peer(),
            export = agreement.export,
            tls = stream.is_tls(),
            "nbd: export attached"
        );
        let end = self.transmit(stream, volume, agreement, place).await;
        Ended::Closed(match end {
            TransmissionEnd::Finished => CloseReason::Finished,
            TransmissionEnd::Broken => CloseReason::Broken,
            TransmissionEnd::Violation(what) => CloseReason::Violation(what),
            TransmissionEnd::Stalled => CloseReason::Stalled,
            TransmissionEnd::Stopping => CloseReason::Stopping,
        })
    }

    async fn transmit(
        &self,
        stream: &Transport<P>,
        volume: D::Volume,
        agreement: Agreement,
        place: &Place<P, D>,
    ) -> TransmissionEnd {
        let connection = Rc::new(Connection::new(
            self.inner.platform.clone(),
            stream.clone(),
            volume,
            agreement.mode,
            agreement.contexts,
            self.inner.shared.clone(),
        ));
        place.replace(Live::Transmitting(connection.clone()));
        spawn_writer(&connection);
        read_requests(&connection, &agreement.unread).await;
        connection.tasks_ended().await;
        connection.end()
    }
}

enum Ended {
    Closed(CloseReason),
    HandOver(usize, NegotiatedSession),
}

/// A connection's entry among those of the server, for as long as it is served here.
struct Place<P: Platform, D: VolumeDirectory> {
    inner: Rc<Inner<P, D>>,
    number: u64,
}

impl<P: Platform, D: VolumeDirectory> Place<P, D> {
    /// False if it was given to another connection.
    fn is_kept(&self) -> bool {
        self.inner.live.borrow().contains_key(&self.number)
    }

    fn replace(&self, live: Live<P, D::Volume>) {
        self.inner.live.borrow_mut().insert(self.number, live);
    }
}

impl<P: Platform, D: VolumeDirectory> Drop for Place<P, D> {
    fn drop(&mut self) {
        let live = self.inner.live.borrow_mut().remove(&self.number);
        drop(live);
        self.inner.left.notify();
    }
}
