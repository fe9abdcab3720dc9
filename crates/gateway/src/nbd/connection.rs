//! What the tasks of one connection share in the transmission phase: the queue of jobs, the queue
//! of replies, what is in flight, and how it ends.
//!
//! Tasks: the reader ([`super::receive`]) admits requests and queues jobs; workers ([`super::work`]),
//! as many as there were jobs at the same time, do them and queue replies; the writer
//! ([`super::transmit`]) sends all replies that are ready in one call; a watch ends the connection
//! when nothing moves. All run on one core, so plain cells do.
//!
//! Invariants: a job that was queued gets exactly one reply; its charge is held until the reply was
//! sent or the connection has failed; nobody reads the socket while the charge of the next request
//! does not fit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use flagstone_platform::sync::Signal;
use flagstone_platform::{IoBuf, Platform, Stream, Time};
use flagstone_tls::Transport;

use super::admit::{Command, Work};
use super::contexts::Context;
use super::counters::NbdCounters;
use super::limits::NbdLimits;
use super::outbox::{Address, Body};
use super::wire::ReplyMode;
use crate::stall::{Progress, STALL_TICKS, Stall};
use crate::window::{Charge, SharedMemory, Window};

/// What all connections of one server share.
pub(crate) struct Shared {
    pub(crate) limits: NbdLimits,
    pub(crate) counters: RefCell<NbdCounters>,
    pub(crate) memory: SharedMemory,
}

/// What a reply needs of its request.
pub(crate) struct Ticket {
    pub(crate) address: Address,
    pub(crate) command: Command,
    pub(crate) arrived: Time,
    pub(crate) charge: Charge,
}

/// A request to be done by a worker.
pub(crate) struct Job {
    pub(crate) ticket: Ticket,
    pub(crate) work: Work,
    /// A write's payload.
    pub(crate) payload: Option<IoBuf>,
}

/// A reply to be sent.
pub(crate) struct Reply {
    pub(crate) ticket: Ticket,
    pub(crate) body: Body,
}

/// How the transmission phase ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransmissionEnd {
    /// The client said good-bye or closed between two requests.
    Finished,
    /// The connection broke in the middle of a message.
    Broken,
    /// The client broke the protocol.
    Violation(&'static str),
    /// Nothing moved for too long in the middle of a message.
    Stalled,
    /// The server is stopping.
    Stopping,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Busy,
    Parked,
    /// Told to end.
    Retired,
}

#[derive(Default)]
struct Workers {
    states: Vec<WorkerState>,
    wakers: Vec<Option<Waker>>,
    /// Parked ones; the last to park is the first to work, which keeps its memory warm.
    parked: Vec<usize>,
    /// Places of workers that ended.
    free: Vec<usize>,
    /// Workers that were not told to end.
    count: usize,
}

/// See the module's page.
pub(crate) struct Connection<P: Platform, V> {
    pub(crate) platform: P,
    pub(crate) stream: Transport<P>,
    pub(crate) volume: V,
    pub(crate) mode: ReplyMode,
    pub(crate) contexts: Vec<Context>,
    pub(crate) shared: Rc<Shared>,
    window: Window,
    jobs: RefCell<VecDeque<Job>>,
    workers: RefCell<Workers>,
    replies: RefCell<VecDeque<Reply>>,
    writer: Cell<Option<Waker>>,
    /// Jobs queued whose replies are not sent.
    in_flight: Cell<u32>,
    in_flight_peak: Cell<u32>,
    closing: Cell<bool>,
    left: Cell<bool>,
    end: Cell<Option<TransmissionEnd>>,
    pub(crate) sending: Progress,
    pub(crate) receiving: Progress,
    watched: Cell<bool>,
    tasks: Cell<u32>,
    task_ended: Signal,
}

impl<P: Platform, V> Connection<P, V> {
    pub(crate) fn new(
        platform: P,
        stream: Transport<P>,
        volume: V,
        mode: ReplyMode,
        contexts: Vec<Context>,
        shared: Rc<Shared>,
    ) -> Connection<P, V> {
        let limits = shared.limits;
        Connection {
            platform,
            stream,
            volume,
            mode,
            contexts,
            shared,
            window: Window::new(&limits.window()),
            jobs: RefCell::default(),
            workers: RefCell::default(),
            replies: RefCell::default(),
            writer: Cell::new(None),
            in_flight: Cell::new(0),
            in_flight_peak: Cell::new(0),
            closing: Cell::new(false),
            left: Cell::new(false),
            end: Cell::new(None),
            sending: Progress::default(),
            receiving: Progress::default(),
            watched: Cell::new(false),
            tasks: Cell::new(0),
            task_ended: Signal::new(),
        }
    }

    /// Waits until one more request with `payload_bytes` of memory fits.
    pub(crate) async fn charge(&self, payload_bytes: u64) -> Charge {
        self.window.charge(&self.shared.memory, payload_bytes).await
    }

    /// Requests whose replies are not sent yet.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// True once no more requests are taken.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    fn count_in(&self) {
        let now = self.in_flight.get() + 1;
        self.in_flight.set(now);
        self.in_flight_peak.set(self.in_flight_peak.get().max(now));
    }

    /// Queues a job. Returns true if a worker must be started for it. Not after [`Self::close`].
    #[must_use]
    pub(crate) fn submit(&self, job: Job) -> bool {
        self.count_in();
        self.jobs.borrow_mut().push_back(job);
        let mut workers = self.workers.borrow_mut();
        match workers.parked.pop() {
            Some(worker) => {
                workers.states[worker] = WorkerState::Busy;
                if let Some(waker) = &workers.wakers[worker] {
                    waker.wake_by_ref();
                }
                false
            }
            None => workers.count < self.shared.limits.requests_in_flight_max as usize,
        }
    }

    /// Queues a reply to a request that needs no work.
    pub(crate) fn answer(&self, ticket: Ticket, body: Body) {
        self.count_in();
        self.finish(ticket, body);
    }

    /// Queues the reply to a job.
    pub(crate) fn finish(&self, ticket: Ticket, body: Body) {
        self.replies.borrow_mut().push_back(Reply { ticket, body });
        self.wake_writer();
    }

    fn wake_writer(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// A place for a worker about to be started.
    pub(crate) fn add_worker(&self) -> usize {
        let mut workers = self.workers.borrow_mut();
        workers.count += 1;
        match workers.free.pop() {
            Some(worker) => {
                workers.states[worker] = WorkerState::Busy;
                workers.wakers[worker] = None;
                worker
            }
            None => {
                workers.states.push(WorkerState::Busy);
                workers.wakers.push(None);
                workers.states.len() - 1
            }
        }
    }

    /// The next job for `worker`; `None` if it is to end.
    pub(crate) async fn next_job(&self, worker: usize) -> Option<Job> {
        poll_fn(|cx| {
            let mut workers = self.workers.borrow_mut();
            match workers.states[worker] {
                // Woken for something else: still waiting in line.
                WorkerState::Parked => return Poll::Pending,
                WorkerState::Retired => {
                    workers.free.push(worker);
                    return Poll::Ready(None);
                }
                WorkerState::Busy => {}
            }
            if let Some(job) = self.jobs.borrow_mut().pop_front() {
                return Poll::Ready(Some(job));
            }
            if self.closing.get() {
                workers.count -= 1;
                workers.free.push(worker);
                return Poll::Ready(None);
            }
            workers.states[worker] = WorkerState::Parked;
            workers.parked.push(worker);
            if !workers.wakers[worker]
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                workers.wakers[worker] = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Ends parked workers that the last while did not need.
    fn retire_workers(&self) {
        let keep = self.in_flight_peak.replace(self.in_flight.get()).max(1) as usize;
        let mut workers = self.workers.borrow_mut();
        while workers.count > keep {
            let Some(worker) = workers.parked.pop() else {
                return;
            };
            workers.count -= 1;
            workers.states[worker] = WorkerState::Retired;
            if let Some(waker) = &workers.wakers[worker] {
                waker.wake_by_ref();
            }
        }
    }

    /// Waits until a reply is ready, and returns true; false once the connection is closing and
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

    /// The next reply that is ready.
    pub(crate) fn take_reply(&self) -> Option<Reply> {
        self.replies.borrow_mut().pop_front()
    }

    /// Counts replies as sent, or as given up.
    pub(crate) fn replies_sent(&self, count: usize) {
        self.in_flight.set(self.in_flight.get() - count as u32);
    }

    /// Takes no more requests; what is in flight is done and answered, then the stream is shut
    /// down by the writer. The first reason given is the one that counts.
    pub(crate) fn close(&self, end: TransmissionEnd) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.closing.set(true);
        self.wake_writer();
        let mut workers = self.workers.borrow_mut();
        while let Some(worker) = workers.parked.pop() {
            workers.states[worker] = WorkerState::Busy;
            if let Some(waker) = &workers.wakers[worker] {
                waker.wake_by_ref();
            }
        }
    }

    /// The client is not there any more: nobody waits for what goes on.
    pub(crate) fn leave(&self) {
        self.left.set(true);
    }

    /// True once nobody waits for replies.
    pub(crate) fn is_left(&self) -> bool {
        self.left.get()
    }

    /// Closes at once: replies can't be sent any more.
    pub(crate) fn abort(&self, end: TransmissionEnd) {
        self.close(end);
        self.leave();
        self.stream.shutdown();
    }

    /// Why the connection was closed.
    pub(crate) fn end(&self) -> TransmissionEnd {
        self.end.get().unwrap_or(TransmissionEnd::Broken)
    }

    /// Completes when all tasks of the connection but the caller's have ended.
    pub(crate) async fn tasks_ended(&self) {
        while self.tasks.get() > 0 {
            self.task_ended.wait().await;
        }
    }
}

/// Counts a task of a connection for as long as it lives.
pub(crate) struct TaskGuard<P: Platform, V>(pub(crate) Rc<Connection<P, V>>);

impl<P: Platform, V> TaskGuard<P, V> {
    pub(crate) fn new(connection: &Rc<Connection<P, V>>) -> TaskGuard<P, V> {
        connection.tasks.set(connection.tasks.get() + 1);
        TaskGuard(connection.clone())
    }
}

impl<P: Platform, V> Drop for TaskGuard<P, V> {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.task_ended.notify();
    }
}

/// Sees to it that a watch looks at the connection now and then, as long as it is in use. The data
/// path pays one flag for it and reads no clock.
pub(crate) fn ensure_watched<P: Platform, V: 'static>(connection: &Rc<Connection<P, V>>) {
    if connection.watched.replace(true) {
        return;
    }
    // Only a weak handle: a closed connection must not keep its volume until the next look.
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
                connection.abort(TransmissionEnd::Stalled);
                return;
            }
            connection.retire_workers();
            let idle = connection.in_flight() == 0 && !connection.receiving.busy.get();
            if idle {
                connection.watched.set(false);
                return;
            }
        }
    });
}
