//! What the tasks of one connection share: what is in flight, the queue of answers, and how it ends.
//!
//! Tasks: the reader ([`super::receive`]) admits calls and starts a task for each; the writer
//! ([`super::transmit`]) sends all answers that are ready in one call; a watch ends the connection when
//! nothing moves. All run on one core, so plain cells do.
//!
//! Invariants: a call that was started gets exactly one answer; its charge is held until the answer was
//! sent or the connection has failed; nobody reads the socket while the charge of the next call does
//! not fit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Stream, Time};

use super::limits::RpcLimits;
use super::service::{Answer, Service, Visitor};
use super::session::{CloseReason, RpcCounters};
use crate::stall::{Progress, STALL_TICKS, Stall};
use crate::window::{Charge, SharedMemory, Window};

/// Lists of bytes kept for further answers, and the largest that is kept, in bytes.
const SPARE_LISTS_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 4096;

/// What all connections of one server share.
pub(crate) struct Shared {
    pub(crate) limits: RpcLimits,
    pub(crate) counters: RefCell<RpcCounters>,
    pub(crate) memory: SharedMemory,
    /// Connections there are now.
    pub(crate) connections: Cell<usize>,
}

/// An answer to be sent.
pub(crate) struct Reply<N> {
    /// The record's mark and everything in front of the payload.
    pub(crate) bytes: Vec<u8>,
    /// `None`: the call was refused before the service saw it.
    pub(crate) answer: Option<Answer<N>>,
    pub(crate) arrived: Time,
    pub(crate) charge: Charge,
}

/// See the module's page.
pub(crate) struct Connection<P: Platform, S: Service> {
    pub(crate) platform: P,
    pub(crate) stream: P::Stream,
    pub(crate) service: Rc<S>,
    pub(crate) shared: Rc<Shared>,
    pub(crate) visitor: Rc<Visitor>,
    window: Window,
    replies: RefCell<VecDeque<Reply<S::Note>>>,
    writer: Cell<Option<Waker>>,
    /// Calls whose answers are not sent.
    in_flight: Cell<u32>,
    /// When the last call came, if any has.
    called_at: Cell<Option<Time>>,
    /// The next call is there and doesn't fit yet.
    pub(crate) waiting: Cell<bool>,
    closing: Cell<bool>,
    end: Cell<Option<CloseReason>>,
    pub(crate) sending: Progress,
    pub(crate) receiving: Progress,
    watched: Cell<bool>,
    tasks: Cell<u32>,
    task_ended: Signal,
    spare: RefCell<Vec<Vec<u8>>>,
}

impl<P: Platform, S: Service> Connection<P, S> {
    pub(crate) fn new(
        platform: P,
        stream: P::Stream,
        service: Rc<S>,
        shared: Rc<Shared>,
        visitor: Visitor,
    ) -> Connection<P, S> {
        Connection {
            window: Window::new(&shared.limits.window()),
            visitor: Rc::new(visitor),
            platform,
            stream,
            service,
            shared,
            replies: RefCell::default(),
            writer: Cell::new(None),
            in_flight: Cell::new(0),
            called_at: Cell::new(None),
            waiting: Cell::new(false),
            closing: Cell::new(false),
            end: Cell::new(None),
            sending: Progress::default(),
            receiving: Progress::default(),
            watched: Cell::new(false),
            tasks: Cell::new(0),
            task_ended: Signal::new(),
            spare: RefCell::default(),
        }
    }

    /// Waits until one more call that holds so many bytes fits.
    pub(crate) async fn charge(&self, bytes: u64) -> Charge {
        self.window.charge(&self.shared.memory, bytes).await
    }

    /// Calls whose answers are not sent yet.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// When the last call came; none has: `None`.
    pub(crate) fn called_at(&self) -> Option<Time> {
        self.called_at.get()
    }

    /// True if nothing is lost by closing it: nobody waits for an answer, and no call is half there.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.get() == 0 && !self.receiving.busy.get() && !self.waiting.get()
    }

    /// True once no more calls are taken.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// An empty list of bytes.
    pub(crate) fn take_spare(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// For further answers.
    pub(crate) fn give_spare(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_LISTS_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// Counts a call in. It must be [finished](Self::finish).
    pub(crate) fn begin(&self, arrived: Time) {
        self.called_at.set(Some(arrived));
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Queues the answer to a call.
    pub(crate) fn finish(&self, reply: Reply<S::Note>) {
        self.replies.borrow_mut().push_back(reply);
        self.wake_writer();
    }

    fn wake_writer(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Waits until an answer is ready, and returns true; false once the connection is closing and
    /// everything was answered.
    pub(crate) async fn replies_ready(&self) -> bool {
        poll_fn(|cx| {
            if !self.replies.borrow().is_empty() {
                return Poll::Ready(true);
            }
            if self.closing.get() && self.in_flight.get() == 0 {
                return Poll::Ready(false);
            }
            self.writer.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// The next answer that is ready.
    pub(crate) fn take_reply(&self) -> Option<Reply<S::Note>> {
        self.replies.borrow_mut().pop_front()
    }

    /// Counts answers as sent, or as given up.
    pub(crate) fn replies_sent(&self, count: usize) {
        self.in_flight.set(self.in_flight.get() - count as u32);
    }

    /// Takes no more calls; what is in flight is done and answered, then the stream is shut down by the
    /// writer. The first reason given is the one that counts.
    pub(crate) fn close(&self, end: CloseReason) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.closing.set(true);
        self.wake_writer();
    }

    /// Closes at once: answers can't be sent any more.
    pub(crate) fn abort(&self, end: CloseReason) {
        self.close(end);
        self.stream.shutdown();
    }

    /// Why the connection was closed.
    pub(crate) fn end(&self) -> CloseReason {
        self.end.get().unwrap_or(CloseReason::Broken)
    }

    /// Completes when all tasks of the connection but the caller's have ended.
    pub(crate) async fn tasks_ended(&self) {
        while self.tasks.get() > 0 {
            self.task_ended.wait().await;
        }
    }
}

/// Counts a task of a connection for as long as it lives.
pub(crate) struct TaskGuard<P: Platform, S: Service>(pub(crate) Rc<Connection<P, S>>);

impl<P: Platform, S: Service> TaskGuard<P, S> {
    pub(crate) fn new(connection: &Rc<Connection<P, S>>) -> TaskGuard<P, S> {
        connection.tasks.set(connection.tasks.get() + 1);
        TaskGuard(connection.clone())
    }
}

impl<P: Platform, S: Service> Drop for TaskGuard<P, S> {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.task_ended.notify();
    }
}

/// Sees to it that a watch looks at the connection now and then, as long as it is in use. The data
/// path pays one flag for it.
pub(crate) fn ensure_watched<P: Platform, S: Service>(connection: &Rc<Connection<P, S>>) {
    if connection.watched.replace(true) {
        return;
    }
    // Only a weak handle: a closed connection must not live until the next look.
    let weak = Rc::downgrade(connection);
    let platform = connection.platform.clone();
    let tick_ns =
        connection.shared.limits.stall_ms.saturating_mul(1_000_000) / u64::from(STALL_TICKS);
    connection.platform.spawn(async move {
        let mut sending = Stall::default();
        let mut receiving = Stall::default();
        loop {
            platform.sleep_ns(tick_ns).await;
            let Some(connection) = weak.upgrade() else {
                return;
            };
            let stalled = sending.look(&connection.sending) | receiving.look(&connection.receiving);
            if stalled {
                connection.abort(CloseReason::Stalled);
                return;
            }
            if connection.is_idle() {
                connection.watched.set(false);
                return;
            }
        }
    });
}
