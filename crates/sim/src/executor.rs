//! The inside of a world: tasks, the order they run in, virtual time and what happens when.
//!
//! Single-threaded. A task that becomes ready goes into `ready`; the scheduler's generator picks
//! which one runs next, among all cores. Only when none is ready does the clock go on to the next
//! event (a timer, the end of an I/O operation, the arrival of bytes).
//!
//! Invariants: no `RefCell` here is borrowed while a future is polled or dropped or an event is
//! carried out, since those call back in; a task under poll is not in `tasks`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use flagstone_platform::BufferPool;

use crate::fault::IoKind;
use crate::network::NetworkState;
use crate::rng::Rng;
use crate::trace::{Trace, TraceEvent};
use crate::world::{Counting, CrashMoment, CrashPoint, WorldConfig};

/// The clock's first value, in nanoseconds. Not zero, so that nobody takes zero for "long ago".
const START_NS: u64 = 1_000_000_000;

pub(crate) type TaskId = u64;

/// What happens at some time.
pub(crate) type Action = Box<dyn FnOnce(&Rc<Inner>)>;

/// Events at the same time happen in the order of `tie`, which is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EventKey {
    at_ns: u64,
    tie: u32,
    number: u64,
}

/// Where a world is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Running,
    /// The power is gone: nothing runs and no I/O is taken.
    Crashed,
}

struct Task {
    core: usize,
    spawned_at: &'static Location<'static>,
    type_name: &'static str,
    waker: Arc<TaskWaker>,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// Wakers have to be `Send`, though nothing here ever leaves its thread: hence the lock.
struct TaskWaker {
    task: TaskId,
    queued: AtomicBool,
    woken: Arc<Mutex<Vec<TaskId>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            woken.push(self.task);
        }
    }
}

/// A task that let the others go first.
struct Yielded {
    task: Option<TaskId>,
    core: usize,
    /// Tasks of its core that were ready (or had yielded) by then and have not run since.
    before: BTreeSet<TaskId>,
    turn: Rc<Turn>,
}

/// Whether it is a yielded task's turn again.
struct Turn {
    come: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The generators of a world's parts. See `rng.rs` for why there are several.
pub(crate) struct Generators {
    scheduler: RefCell<Rng>,
    pub(crate) disk: RefCell<Rng>,
    pub(crate) network: RefCell<Rng>,
    pub(crate) program: RefCell<Rng>,
    pub(crate) workload: RefCell<Rng>,
    pub(crate) crash: RefCell<Rng>,
}

/// A world's state, shared by all its handles.
pub(crate) struct Inner {
    pub(crate) config: WorldConfig,
    pub(crate) rng: Generators,
    pub(crate) network: NetworkState,
    pub(crate) buffers: Vec<BufferPool>,
    life: Cell<Life>,
    now_ns: Cell<u64>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    tasks_spawned: Cell<u64>,
    current: Cell<Option<TaskId>>,
    woken: Arc<Mutex<Vec<TaskId>>>,
    ready: RefCell<Vec<TaskId>>,
    yielded: RefCell<Vec<Yielded>>,
    events: RefCell<BTreeMap<EventKey, Action>>,
    events_made: Cell<u64>,
    trace: RefCell<Trace>,
    crash_point: Cell<Option<CrashPoint>>,
    ios_started: Cell<u64>,
    changes_started: Cell<u64>,
    flushes_started: Cell<u64>,
    pub(crate) disks_opened: Cell<u32>,
}

impl Inner {
    pub(crate) fn new(config: WorldConfig) -> Inner {
        let stream = |label| RefCell::new(Rng::stream(config.seed, label));
        Inner {
            rng: Generators {
                scheduler: stream(1),
                disk: stream(2),
                network: stream(3),
                program: stream(4),
                workload: stream(5),
                crash: stream(6),
            },
            network: NetworkState::new(config.network.clone()),
            buffers: (0..config.cores).map(|_| BufferPool::new()).collect(),
            life: Cell::new(Life::Running),
            now_ns: Cell::new(START_NS),
            tasks: RefCell::default(),
            tasks_spawned: Cell::new(0),
            current: Cell::new(None),
            woken: Arc::default(),
            ready: RefCell::default(),
            yielded: RefCell::default(),
            events: RefCell::default(),
            events_made: Cell::new(0),
            trace: RefCell::new(Trace::new(config.trace_events_kept)),
            crash_point: Cell::new(None),
            ios_started: Cell::new(0),
            changes_started: Cell::new(0),
            flushes_started: Cell::new(0),
            disks_opened: Cell::new(0),
            config,
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn is_crashed(&self) -> bool {
        self.life.get() == Life::Crashed
    }

    // Tasks.

    pub(crate) fn spawn(
        &self,
        core: usize,
        spawned_at: &'static Location<'static>,
        type_name: &'static str,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) {
        if self.is_crashed() {
            return; // Drops the future: nothing runs any more.
        }
        let id = self.tasks_spawned.get();
        self.tasks_spawned.set(id + 1);
        let waker = Arc::new(TaskWaker {
            task: id,
            queued: AtomicBool::new(false),
            woken: self.woken.clone(),
        });
        waker.wake_by_ref();
        let task = Task {
            core,
            spawned_at,
            type_name,
            waker,
            future,
        };
        self.tasks.borrow_mut().insert(id, task);
    }

    fn collect_woken(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.borrow_mut().append(&mut woken);
    }

    /// Takes a ready task, chosen by the seed. Wakes of tasks that have ended are dropped here.
    fn pick(&self) -> Option<(TaskId, Task)> {
        self.collect_woken();
        loop {
            let id = {
                let mut ready = self.ready.borrow_mut();
                if ready.is_empty() {
                    return None;
                }
                let index = self.rng.scheduler.borrow_mut().index(ready.len());
                ready.swap_remove(index)
            };
            let task = self.tasks.borrow_mut().remove(&id);
            match task {
                Some(task) => return Some((id, task)),
                None => self.let_yielded_go_on(id),
            }
        }
    }

    /// Polls one ready task. False if there is none.
    pub(crate) fn poll_one(&self) -> bool {
        let Some((id, mut task)) = self.pick() else {
            return false;
        };
        self.record(TraceEvent::Polled {
            task: id,
            core: task.core,
        });
        task.waker.queued.store(false, Ordering::Relaxed);
        self.current.set(Some(id));
        let waker = Waker::from(task.waker.clone());
        let poll = task.future.as_mut().poll(&mut Context::from_waker(&waker));
        self.current.set(None);
        match poll {
            Poll::Pending => {
                self.tasks.borrow_mut().insert(id, task);
            }
            Poll::Ready(()) => {
                self.record(TraceEvent::Ended { task: id });
                drop(task);
            }
        }
        self.let_yielded_go_on(id);
        let cost_ns = {
            let mut rng = self.rng.scheduler.borrow_mut();
            rng.within(&self.config.poll_cost_ns)
        };
        self.now_ns.set(self.now_ns.get().saturating_add(cost_ns));
        true
    }

    /// A task has run: whoever yielded to it waits for one less.
    fn let_yielded_go_on(&self, ran: TaskId) {
        let mut come = Vec::new();
        self.yielded.borrow_mut().retain_mut(|yielded| {
            yielded.before.remove(&ran);
            if yielded.before.is_empty() {
                come.push(yielded.turn.clone());
            }
            !yielded.before.is_empty()
        });
        for turn in come {
            turn.come.set(true);
            if let Some(waker) = turn.waker.take() {
                waker.wake();
            }
        }
    }

    /// The task under poll, of `core`, lets every other ready one of its core run once.
    /// Tasks that have yielded earlier count as ready. They don't wait for this one in turn, because
    /// it is running now.
    fn begin_yield(&self, core: usize, waker: Waker) -> Rc<Turn> {
        self.collect_woken();
        let task = self.current.get();
        let mut before: BTreeSet<TaskId> = BTreeSet::new();
        {
            let tasks = self.tasks.borrow();
            let of_core = |id: &TaskId| tasks.get(id).is_some_and(|task| task.core == core);
            let ready = self.ready.borrow();
            before.extend(ready.iter().copied().filter(of_core));
            let yielded = self.yielded.borrow();
            let earlier = yielded.iter().filter(|earlier| earlier.core == core);
            before.extend(earlier.filter_map(|earlier| earlier.task));
        }
        before.retain(|id| Some(*id) != task);
        let turn = Rc::new(Turn {
            come: Cell::new(before.is_empty()),
            waker: RefCell::new(None),
        });
        if before.is_empty() {
            waker.wake();
        } else {
            turn.waker.replace(Some(waker));
            self.yielded.borrow_mut().push(Yielded {
                task,
                core,
                before,
                turn: turn.clone(),
            });
        }
        turn
    }

    /// One line per task that has not ended: its core, its type and where it was spawned.
    pub(crate) fn describe_tasks(&self) -> String {
        let lines: Vec<String> = self
            .tasks
            .borrow()
            .iter()
            .map(|(id, task)| {
                let (core, place) = (task.core, task.spawned_at);
                let type_name = task.type_name;
                format!("  task {id} on core {core}: {type_name}, spawned at {place}\n")
            })
            .collect();
        lines.concat()
    }

    pub(crate) fn tasks_alive(&self) -> usize {
        self.tasks.borrow().len()
    }

    // Events.

    /// Has `action` carried out at `at_ns`. After a crash nothing happens any more.
    pub(crate) fn schedule(&self, at_ns: u64, action: Action) -> EventKey {
        let number = self.events_made.get();
        self.events_made.set(number + 1);
        let tie = (self.rng.scheduler.borrow_mut().next_u64() >> 32) as u32;
        let key = EventKey { at_ns, tie, number };
        if !self.is_crashed() {
            self.events.borrow_mut().insert(key, action);
        }
        key
    }

    /// Takes an event back. Harmless if it has happened.
    pub(crate) fn cancel(&self, key: EventKey) {
        let action = self.events.borrow_mut().remove(&key);
        drop(action);
    }

    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        let events = self.events.borrow();
        events.first_key_value().map(|(key, _)| key.at_ns)
    }

    /// Carries out what is due.
    pub(crate) fn run_due_events(self: &Rc<Self>) {
        while !self.is_crashed()
            && self
                .next_event_ns()
                .is_some_and(|at| at <= self.now_ns.get())
        {
            let event = self.events.borrow_mut().pop_first();
            if let Some((_, action)) = event {
                action(self);
            }
        }
    }

    /// Sets the clock forward. It never goes back.
    pub(crate) fn advance_to(&self, at_ns: u64) {
        self.now_ns.set(self.now_ns.get().max(at_ns));
        self.record(TraceEvent::Advanced);
    }

    // Trace.

    pub(crate) fn record(&self, event: TraceEvent) {
        self.trace.borrow_mut().record(self.now_ns.get(), event);
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.borrow().hash()
    }

    pub(crate) fn trace_tail(&self) -> String {
        self.trace.borrow().tail()
    }

    pub(crate) fn trace_events(&self) -> u64 {
        self.trace.borrow().events()
    }

    // Crash.

    pub(crate) fn set_crash_point(&self, point: Option<CrashPoint>) {
        self.crash_point.set(point);
    }

    pub(crate) fn ios_started(&self) -> u64 {
        self.ios_started.get()
    }

    pub(crate) fn changes_started(&self) -> u64 {
        self.changes_started.get()
    }

    pub(crate) fn flushes_started(&self) -> u64 {
        self.flushes_started.get()
    }

    /// Has the node crash at an operation counted from now on.
    pub(crate) fn crash_in(&self, point: CrashPoint) {
        let before = match point.counting {
            Counting::EveryIo => self.ios_started(),
            Counting::Changes => self.changes_started(),
            Counting::Flushes => self.flushes_started(),
        };
        let nth = before + point.nth;
        self.set_crash_point(Some(CrashPoint { nth, ..point }));
    }

    /// Counts an I/O operation and says whether, and when in its life, the node crashes at it.
    pub(crate) fn count_io(&self, kind: IoKind) -> Option<CrashMoment> {
        let is_change = kind.is_change();
        let is_flush = kind == IoKind::Flush;
        let io = self.ios_started.get();
        self.ios_started.set(io + 1);
        let change = self.changes_started.get();
        self.changes_started.set(change + u64::from(is_change));
        let flush = self.flushes_started.get();
        self.flushes_started.set(flush + u64::from(is_flush));
        let point = self.crash_point.get()?;
        let reached = match point.counting {
            Counting::EveryIo => io == point.nth,
            Counting::Changes => is_change && change == point.nth,
            Counting::Flushes => is_flush && flush == point.nth,
        };
        reached.then_some(point.moment)
    }

    /// The node stops where it stands. Tasks are dropped by [`Inner::clear`].
    pub(crate) fn crash(&self) {
        if !self.is_crashed() {
            self.record(TraceEvent::Crashed);
            self.life.set(Life::Crashed);
        }
    }

    /// Drops the tasks of a core, in an order drawn from the seed. What they asked of disks and the network still happens, and nobody hears of
    /// it.
    pub(crate) fn kill_core(&self, core: usize) {
        let mut of_core: Vec<Task> = {
            let mut tasks = self.tasks.borrow_mut();
            let ids: Vec<TaskId> = tasks
                .iter()
                .filter(|(_, task)| task.core == core)
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        self.rng.scheduler.borrow_mut().shuffle(&mut of_core);
        self.record(TraceEvent::Note {
            text: format!("core {core} is killed"),
        });
        drop(of_core);
    }

    /// Drops all tasks and events, in an order drawn from the seed: a task must not rely on
    /// another one being dropped later. This also undoes the circles of handles within the world.
    pub(crate) fn clear(&self) {
        self.crash();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        let mut tasks: Vec<Task> = tasks.into_values().collect();
        self.rng.scheduler.borrow_mut().shuffle(&mut tasks);
        drop(tasks);
        let events = std::mem::take(&mut *self.events.borrow_mut());
        drop(events);
        self.network.clear();
        self.yielded.borrow_mut().clear();
        self.ready.borrow_mut().clear();
    }
}

/// See `Platform::yield_now`.
pub(crate) struct Yield {
    inner: Rc<Inner>,
    core: usize,
    turn: Option<Rc<Turn>>,
}

impl Yield {
    pub(crate) fn new(inner: Rc<Inner>, core: usize) -> Yield {
        Yield {
            inner,
            core,
            turn: None,
        }
    }
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &self.turn {
            Some(turn) if turn.come.get() => Poll::Ready(()),
            Some(turn) => {
                turn.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
            None => {
                let turn = self.inner.begin_yield(self.core, context.waker().clone());
                self.turn = Some(turn);
                Poll::Pending
            }
        }
    }
}

/// See `Platform::sleep_until`. Its event goes when it is dropped, so a time-out that was not
/// needed does not keep a world from being idle.
pub(crate) struct Sleep {
    inner: Rc<Inner>,
    deadline_ns: u64,
    event: Option<EventKey>,
    waker: Rc<RefCell<Option<Waker>>>,
    rang: Rc<Cell<bool>>,
}

impl Sleep {
    pub(crate) fn new(inner: Rc<Inner>, deadline_ns: u64) -> Sleep {
        Sleep {
            inner,
            deadline_ns,
            event: None,
            waker: Rc::default(),
            rang: Rc::default(),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let never_waited = self.event.is_none() && self.inner.now_ns() >= self.deadline_ns;
        if self.rang.get() || never_waited {
            return Poll::Ready(());
        }
        self.waker.replace(Some(context.waker().clone()));
        if self.event.is_none() {
            let late_ns = {
                let mut rng = self.inner.rng.scheduler.borrow_mut();
                rng.within(&self.inner.config.timer_late_ns)
            };
            let (waker, rang) = (self.waker.clone(), self.rang.clone());
            let at_ns = self.deadline_ns.saturating_add(late_ns);
            let ring = Box::new(move |_: &Rc<Inner>| {
                rang.set(true);
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
            });
            self.event = Some(self.inner.schedule(at_ns, ring));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(event) = self.event {
            self.inner.cancel(event);
        }
    }
}
