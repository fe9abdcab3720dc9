//! What the tasks of one connection share once `HELLO` was answered: the queue of requests, the queue of replies,
//! what is in flight, and how it ends.
//!
//! Tasks: the reader ([`super::receive`]) checks requests and queues them; workers ([`super::work`]), as many as
//! there were requests at the same time, carry them out and queue replies; the writer ([`super::transmit`]) sends all
//! replies that are ready in one call; a watch ends the connection when nothing moves. All run on one core, so
//! plain cells do.
//!
//! Invariants: workers take requests in the order in which they were queued, and poll the volume for the first
//! time before they wait for anything, which is what makes the order of changes true. A request that a worker has
//! taken is finished, and its outcome remembered, before the connection counts as ended; one that nobody has
//! taken may be thrown away, and then was never begun.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Stream, Time};
use flagstone_tls::Transport;
use flagstone_types::Lsn;
use flagstone_wire::hello::Nonce;
use flagstone_wire::{InFlight, Operation, Status, VolumeNo};

use super::counters::NativeCounters;
use super::directory::{Ends, NativeDirectory, RefusedRequest};
use super::limits::NativeLimits;
use super::outbox::ReplyBody;
use super::server::CloseReason;
use super::sessions::Session;
use super::volume::Presence;
use super::volumes::{Need, OpenVolume, Volumes, rule_of_refusal};
use super::work::Work;
use crate::stall::{Progress, STALL_TICKS, Stall};
use crate::window::{Charge, SharedMemory, Window};

/// What all connections of one server share.
pub(crate) struct Shared {
    pub(crate) limits: NativeLimits,
    pub(crate) counters: RefCell<NativeCounters>,
    pub(crate) memory: SharedMemory,
}

/// What a reply needs of its request.
pub(crate) struct Ticket {
    /// As it came, even if there is no such operation.
    pub(crate) operation: u8,
    pub(crate) volume: VolumeNo,
    pub(crate) number: u64,
    pub(crate) arrived: Time,
    /// Payload of it and of its reply, in bytes, as the client's limit counts it.
    pub(crate) payload_bytes: u64,
    pub(crate) waited_ns: u64,
    pub(crate) charge: Charge,
}

impl Ticket {
    pub(crate) fn known(&self) -> Option<Operation> {
        Operation::from_number(self.operation)
    }
}

/// A request to be carried out by a worker.
pub(crate) struct Job<D: NativeDirectory> {
    pub(crate) ticket: Ticket,
    /// It is not worth beginning after this.
    pub(crate) until: Option<Time>,
    pub(crate) work: Work<D>,
}

/// What a request came to.
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) lsn: Lsn,
    pub(crate) body: ReplyBody,
}

/// A reply to be sent.
pub(crate) struct Reply {
    pub(crate) ticket: Ticket,
    pub(crate) answer: Answer,
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

/// Who is at the other end.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) ends: Ends,
    pub(crate) client_nonce: Nonce,
    pub(crate) server_nonce: Nonce,
}

/// See the module's page.
pub(crate) struct Connection<P: Platform, D: NativeDirectory> {
    pub(crate) platform: P,
    pub(crate) stream: Transport<P>,
    pub(crate) directory: D,
    pub(crate) client: Client,
    pub(crate) session: Rc<Session>,
    pub(crate) shared: Rc<Shared>,
    pub(crate) volumes: Volumes<D>,
    /// Since when it has none; `None` if it has.
    pub(crate) without_volume_since: Cell<Option<Time>>,
    /// `OPEN`s that were refused.
    pub(crate) refused_opens: Cell<u32>,
    window: Window,
    /// As the client's limits count it.
    in_flight: Cell<InFlight>,
    jobs: RefCell<VecDeque<Job<D>>>,
    workers: RefCell<Workers>,
    /// Of the client, for all of its requests.
    pub(crate) presence: Presence,
    replies: RefCell<VecDeque<Reply>>,
    writer: Cell<Option<Waker>>,
    /// The reader, while it waits for room.
    reader: Cell<Option<Waker>>,
    /// Requests whose replies are not sent.
    pending: Cell<u32>,
    pending_peak: Cell<u32>,
    closing: Cell<bool>,
    end: Cell<Option<CloseReason>>,
    pub(crate) sending: Progress,
    pub(crate) receiving: Progress,
    watched: Cell<bool>,
    tasks: Cell<u32>,
    task_ended: Signal,
}

impl<P: Platform, D: NativeDirectory> Connection<P, D> {
    /// The volume of this number, if it may be used for that.
    pub(crate) fn admit(&self, number: VolumeNo, need: Need) -> Result<Rc<OpenVolume<D>>, Status> {
        let admitted = self.volumes.admit(number, need);
        if admitted.is_err() {
            self.tell_refused(number, need);
        }
        admitted
    }

    /// Puts into the audit log that a token doesn't allow what was asked for, once.
    #[cold]
    fn tell_refused(&self, number: VolumeNo, need: Need) {
        let Some(open) = self.volumes.get(number) else {
            return;
        };
        let Some(rule) = rule_of_refusal(&open.grant, need) else {
            return;
        };
        if self.session.note_refused(open.id, open.token, rule) {
            self.directory.audit_request(&RefusedRequest {
                volume: open.id,
                token: open.token,
                client: &self.client.name,
                ends: self.client.ends,
                rule,
            });
        }
    }

    pub(crate) fn new(
        platform: P,
        stream: Transport<P>,
        directory: D,
        client: Client,
        session: Rc<Session>,
        shared: Rc<Shared>,
    ) -> Connection<P, D> {
        let limits = shared.limits;
        let now = platform.now();
        Connection {
            platform,
            stream,
            directory,
            client,
            session,
            shared,
            volumes: Volumes::new(limits.connection.volumes_max),
            without_volume_since: Cell::new(Some(now)),
            refused_opens: Cell::new(0),
            window: Window::new(&limits.window()),
            in_flight: Cell::default(),
            jobs: RefCell::default(),
            workers: RefCell::default(),
            presence: Presence::default(),
            replies: RefCell::default(),
            writer: Cell::new(None),
            reader: Cell::new(None),
            pending: Cell::new(0),
            pending_peak: Cell::new(0),
            closing: Cell::new(false),
            end: Cell::new(None),
            sending: Progress::default(),
            receiving: Progress::default(),
            watched: Cell::new(false),
            tasks: Cell::new(0),
            task_ended: Signal::new(),
        }
    }

    /// Waits until one more request with so much memory fits. `None` if the connection closes first. The
    /// second result is how long it has waited, in nanoseconds.
    pub(crate) async fn charge(&self, bytes: u64) -> Option<(Charge, u64)> {
        let mut charge = pin!(self.window.charge(&self.shared.memory, bytes));
        let mut began = None;
        let charge = poll_fn(|cx| {
            if self.closing.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(charge) = charge.as_mut().poll(cx) {
                return Poll::Ready(Some(charge));
            }
            // The clock is read only by those who have to wait.
            began.get_or_insert_with(|| self.platform.now());
            self.reader.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await?;
        let waited_ns = began.map_or(0, |began| self.platform.now().since(began));
        Some((charge, waited_ns))
    }

    /// What the client has in flight.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.in_flight.get()
    }

    /// A request has come, with so much payload of it and of its reply.
    pub(crate) fn count_request(&self, payload_bytes: u64) {
        let mut now = self.in_flight.get();
        now.requests += 1;
        now.payload_bytes += payload_bytes;
        self.in_flight.set(now);
    }

    /// Its reply is handed to the socket: from then on the client may have it, and ask for more.
    pub(crate) fn uncount_request(&self, payload_bytes: u64) {
        let mut now = self.in_flight.get();
        now.requests -= 1;
        now.payload_bytes -= payload_bytes;
        self.in_flight.set(now);
    }

    /// Requests whose replies are not sent yet.
    pub(crate) fn pending(&self) -> u32 {
        self.pending.get()
    }

    /// True once no more requests are taken.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    fn count_in(&self) {
        let now = self.pending.get() + 1;
        self.pending.set(now);
        self.pending_peak.set(self.pending_peak.get().max(now));
    }

    /// Queues a job. Returns true if a worker must be started for it. Not after [`Self::close`].
    #[must_use]
    pub(crate) fn submit(&self, job: Job<D>) -> bool {
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
            None => workers.count < self.shared.limits.connection.requests_max as usize,
        }
    }

    /// Queues the reply to a request that needs no worker.
    pub(crate) fn answer(&self, ticket: Ticket, answer: Answer) {
        self.count_in();
        self.queue(ticket, answer);
    }

    /// A worker is done with a job.
    pub(crate) fn finish(&self, ticket: Ticket, answer: Answer) {
        if let Some(operation) = ticket.known() {
            self.session
                .remember(ticket.number, operation, answer.status, answer.lsn);
        }
        self.queue(ticket, answer);
    }

    fn queue(&self, ticket: Ticket, answer: Answer) {
        self.replies
            .borrow_mut()
            .push_back(Reply { ticket, answer });
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
    pub(crate) async fn next_job(&self, worker: usize) -> Option<Job<D>> {
        poll_fn(|cx| {
            let mut workers = self.workers.borrow_mut();
            // Also of one that finds work at once: it may wait in the middle of that when the client leaves.
            if !workers.wakers[worker]
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                workers.wakers[worker] = Some(cx.waker().clone());
            }
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
            Poll::Pending
        })
        .await
    }

    /// Ends parked workers that the last while did not need.
    fn retire_workers(&self) {
        let keep = self.pending_peak.replace(self.pending.get()).max(1) as usize;
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
            if self.closing.get() && self.pending.get() == 0 {
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
        self.pending.set(self.pending.get() - count as u32);
    }

    /// Takes no more requests; what is in flight is carried out and answered, then the stream is shut
    /// down by the writer. The first reason given is the one that counts.
    pub(crate) fn close(&self, end: CloseReason) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.closing.set(true);
        self.wake_writer();
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
        let mut workers = self.workers.borrow_mut();
        while let Some(worker) = workers.parked.pop() {
            workers.states[worker] = WorkerState::Busy;
            if let Some(waker) = &workers.wakers[worker] {
                waker.wake_by_ref();
            }
        }
    }

    /// The client is not there any more: what nobody has begun is thrown away, and what waits for its turn needn't.
    pub(crate) fn leave(&self) {
        self.presence.leave();
        self.wake_busy_workers();
        let thrown_away = std::mem::take(&mut *self.jobs.borrow_mut());
        self.pending
            .set(self.pending.get() - thrown_away.len() as u32);
        for job in &thrown_away {
            self.uncount_request(job.ticket.payload_bytes);
        }
        drop(thrown_away);
        self.wake_writer();
    }

    /// Has those look at what they wait for who carry something out.
    fn wake_busy_workers(&self) {
        let workers = self.workers.borrow();
        let busy = workers.states.iter().zip(&workers.wakers);
        for (_, waker) in busy.filter(|(state, _)| **state == WorkerState::Busy) {
            if let Some(waker) = waker {
                waker.wake_by_ref();
            }
        }
    }

    /// Closes at once: replies can't be sent any more, and what nobody has begun is thrown away.
    pub(crate) fn abort(&self, end: CloseReason) {
        self.close(end);
        self.leave();
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
pub(crate) struct TaskGuard<P: Platform, D: NativeDirectory>(pub(crate) Rc<Connection<P, D>>);

impl<P: Platform, D: NativeDirectory> TaskGuard<P, D> {
    pub(crate) fn new(connection: &Rc<Connection<P, D>>) -> TaskGuard<P, D> {
        connection.tasks.set(connection.tasks.get() + 1);
        TaskGuard(connection.clone())
    }
}

impl<P: Platform, D: NativeDirectory> Drop for TaskGuard<P, D> {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.task_ended.notify();
    }
}

/// Sees to it that a watch looks at the connection now and then, as long as it is in use. The data
/// path pays one flag for it and reads no clock.
pub(crate) fn ensure_watched<P: Platform, D: NativeDirectory>(connection: &Rc<Connection<P, D>>) {
    if connection.watched.replace(true) {
        return;
    }
    // Only a weak handle: a closed connection must not keep its volumes until the next look.
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
            connection.retire_workers();
            let idle = connection.pending() == 0 && !connection.receiving.busy.get();
            if idle {
                connection.watched.set(false);
                return;
            }
        }
    });
}
