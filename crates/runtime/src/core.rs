//! One core: its tasks, its ring, its timers, and the loop that turns them.
//!
//! A round: look at what other threads brought, poll ready tasks, fire due timers, submit what the
//! tasks asked for, take completions. If no task is ready, the core looks for work for a while
//! where that tends to pay (`spin.rs`), then sleeps in the kernel until something completes, a
//! timer is due, or another thread wakes it (`mailbox.rs`).
//!
//! No borrow of the core's state is held while tasks, messages or destructors run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll};

use flagstone_platform::{BufferPool, Time};

use crate::awake::Awake;
use crate::config::{RuntimeConfig, TRANSFER_MAX_BYTES};
use crate::counters::Counters;
use crate::executor::Executor;
use crate::helper::{Blocking, CALLS_MAX, Helper};
use crate::mailbox::{CoreShared, Message as MailboxMessage, running_core};
use crate::op::{Completion, Flight, Message, OpKey, Owned, Request, Unclaimed};
use crate::platform::UringPlatform;
use crate::probe::{KernelSupport, RingError};
use crate::ring::{Driver, Patience, REAP_MAX, Reaped};
use crate::spin::{self, Crowd, Depth, Ending, SpinPolicy, Surroundings, Wait};
use crate::sys::{self, monotonic_ns};
use crate::timer::Timers;
use crate::waker::TaskId;

/// Tasks polled in one round at most, so that the ring is visited often enough.
const POLLS_PER_ROUND_MAX: usize = 64;

/// Messages taken from the mailbox in one round at most.
const MESSAGES_PER_ROUND_MAX: usize = 64;

/// Empty messages kept for the next scattered sends.
const MESSAGES_KEPT_MAX: usize = 64;

/// A stopping core reports what it still waits for this often, in nanoseconds.
const STOP_REPORT_NS: u64 = 5_000_000_000;

/// A core that comes to its timers later than this is counted as late, in nanoseconds: less is how precisely the kernel wakes it.
const LATE_LEAST_NS: u64 = 1_000_000;

/// Random numbers fetched from the kernel at a time.
const RANDOM_KEPT: usize = 32;

/// A file or block device: the number of its filesystem, and its own there.
pub(crate) type DeviceId = (u64, u64);

thread_local! {
    /// The core whose thread this is.
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Wakes a task: directly on its own thread, through its core's shared side elsewhere. A task whose
/// core is gone is gone as well.
pub(crate) fn wake_task(id: TaskId) {
    let here = CURRENT.try_with(|current| match &*current.borrow() {
        Some(core) if core.shared.wake_id == id.core() => {
            core.executor.wake(id);
            true
        }
        _ => false,
    });
    if !here.unwrap_or(false)
        && let Some(shared) = running_core(id.core())
    {
        shared.push_wake(id);
    }
}

/// Wakes another core through its ring, if this thread is a core that can. The kernel hears of it
/// with this core's next submission.
pub(crate) fn poke_through_ring(target: &Arc<CoreShared>, ring_fd: i32) -> bool {
    let poked = CURRENT.try_with(|current| match &*current.borrow() {
        Some(core) if core.driver.support().msg_ring && !core.closed.get() => {
            core.shared.counters.wakes_sent.add(1);
            let request = Request::Poke {
                target: target.clone(),
                ring_fd,
            };
            core.driver.start(request, false, &core.shared.counters);
            true
        }
        _ => false,
    });
    poked.unwrap_or(false)
}

pub(crate) struct Core {
    pub(crate) shared: Arc<CoreShared>,
    executor: Executor,
    driver: Driver,
    timers: RefCell<Timers>,
    pub(crate) buffers: BufferPool,
    /// Present until the core stops.
    mailbox: RefCell<Option<Receiver<MailboxMessage>>>,
    helper: RefCell<Option<Helper>>,
    /// Results of the helper on their way to their operations; kept for its memory.
    /// Calls that the helper has been given and has not answered.
    helper_calls: Cell<usize>,
    /// CPUs the helper may use; empty if the core isn't pinned.
    helper_cpus: Vec<usize>,
    spin: RefCell<SpinPolicy>,
    depth: RefCell<Depth>,
    crowd: RefCell<Crowd>,
    /// Up to when `busy_ns` has been counted.
    busy_since_ns: Cell<u64>,
    /// The clock when it was last looked at.
    clock_ns: Cell<u64>,
    random: RefCell<Vec<u64>>,
    #[expect(
        clippy::vec_box,
        reason = "the kernel holds their addresses while they are in use"
    )]
    spare_messages: RefCell<Vec<Box<Message>>>,
    stop_wait_ns: u64,
    transfer_max: usize,
    wait_all: bool,
    submit_batch: usize,
    /// By how much the wall clock is set wrong, in nanoseconds: for tests.
    pub(crate) wall_shift_ns: Cell<i64>,
    spin_depth: usize,
    spin_yield: bool,
    awake: RefCell<Awake>,
    /// Devices open on this core, by what the kernel calls them, and how often each is.
    devices: RefCell<BTreeMap<DeviceId, usize>>,
    /// Set at the end: new operations fail at once.
    closed: Cell<bool>,
}

impl Surroundings for Core {
    fn has_work(&self) -> bool {
        self.driver.has_completions() || self.shared.has_work()
    }

    fn yield_now(&self) {
        std::thread::yield_now();
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}

impl Core {
    /// A core for the calling thread.
    pub(crate) fn new(
        shared: Arc<CoreShared>,
        mailbox: Receiver<MailboxMessage>,
        config: &RuntimeConfig,
        helper_cpus: Vec<usize>,
    ) -> Result<Rc<Core>, RingError> {
        let buffers = BufferPool::with_arena(config.registered_bytes);
        let driver = Driver::new(config.ring_entries, &config.kernel, &buffers, config.waves)?;
        if driver.support().msg_ring {
            shared.offer_ring(driver.ring_fd());
        }
        let awake = Awake::new(config.keep_awake.as_deref(), shared.index);
        let core = Rc::new(Core {
            executor: Executor::new(shared.wake_id),
            shared,
            driver,
            timers: RefCell::default(),
            buffers,
            mailbox: RefCell::new(Some(mailbox)),
            helper: RefCell::new(None),
            helper_calls: Cell::new(0),
            helper_cpus,
            depth: RefCell::default(),
            spin: RefCell::new(SpinPolicy::new(u64::from(config.spin_max_us) * 1_000)),
            crowd: RefCell::default(),
            busy_since_ns: Cell::new(monotonic_ns()),
            clock_ns: Cell::new(monotonic_ns()),
            random: RefCell::default(),
            spare_messages: RefCell::default(),
            stop_wait_ns: config.stop_wait_ms.saturating_mul(1_000_000),
            transfer_max: config
                .kernel
                .transfer_max_bytes
                .clamp(1, TRANSFER_MAX_BYTES) as usize,
            wait_all: config.kernel.wait_all,
            spin_depth: config.spin_depth as usize,
            spin_yield: config.spin_yield,
            awake: RefCell::new(awake),
            submit_batch: config.submit_batch.max(1) as usize,
            wall_shift_ns: Cell::new(config.wall_shift_s.saturating_mul(1_000_000_000)),
            devices: RefCell::default(),
            closed: Cell::new(false),
        });
        CURRENT.set(Some(core.clone()));
        core.listen(Box::new(0));
        Ok(core)
    }

    /// Runs until told to stop, then drops all tasks and waits for operations in flight.
    pub(crate) fn run(self: &Rc<Self>) {
        while !self.look_around() {
            self.counters().rounds.add(1);
            self.counters().polls.add(self.run_tasks() as u64);
            let is_idle = !self.executor.has_ready();
            if is_idle {
                self.idle();
            } else if self.driver.needs_enter() {
                self.enter(Patience::None);
            }
            self.reap(is_idle);
            self.fire_timers();
            // A core that is never idle doesn't look for work, either.
            self.let_sleep(self.clock_ns());
        }
        self.stop();
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Looks at the clock.
    pub(crate) fn read_clock(&self) -> u64 {
        let now_ns = monotonic_ns();
        self.clock_ns.set(now_ns);
        now_ns
    }

    /// The time when the core last looked at the clock: when it last waited, took completions, or was
    /// asked for the time.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.clock_ns.get()
    }

    pub(crate) fn support(&self) -> &KernelSupport {
        self.driver.support()
    }

    /// Polls ready tasks until a batch of operations has gathered. Not until no task is ready: a
    /// burst of completions would then become a burst of operations, the device would stand still
    /// while the tasks run, and the core while the device works.
    fn run_tasks(&self) -> usize {
        let enough = || self.driver.gathered() >= self.submit_batch;
        self.executor.run(POLLS_PER_ROUND_MAX, enough)
    }

    /// Takes what other threads brought. True if the core is to stop.
    fn look_around(self: &Rc<Self>) -> bool {
        if !self.shared.take_work() {
            return false;
        }
        for id in self.shared.take_wakes() {
            self.executor.wake(id);
        }
        self.take_helped();
        let platform = UringPlatform::new(self.clone());
        for taken in 0.. {
            if taken == MESSAGES_PER_ROUND_MAX {
                self.shared.leave_work();
                break;
            }
            let received = self.mailbox.borrow().as_ref().map(Receiver::try_recv);
            let Some(Ok(message)) = received else {
                break;
            };
            self.counters().messages.add(1);
            message(&platform);
        }
        self.shared.is_stopping()
    }

    fn take_helped(&self) {
        let next = || self.helper.borrow().as_ref()?.take_result();
        while let Some((key, result)) = next() {
            self.helper_calls.set(self.helper_calls.get() - 1);
            let completion = self.driver.ops.complete(key, result);
            self.hand_on(completion);
        }
    }

    /// Nothing is ready: submits, then looks for work or sleeps until there is some.
    fn idle(&self) {
        let deadline = self.timers.borrow_mut().next_deadline();
        let release = self.driver.release_at_ns().map(Time);
        let deadline = deadline.into_iter().chain(release).min();
        let wait = match (self.driver.ops.transfers(), self.driver.ops.flushes()) {
            (0, 0) => Wait::Others,
            (0, _) => Wait::Flush,
            _ => Wait::Transfer,
        };
        let start_ns = self.read_clock();
        self.count_busy(start_ns);
        let yields = self.spin_yield && wait != Wait::Others;
        let is_crowded = yields && self.crowd.borrow().is_there(start_ns);
        let transfers = self.driver.ops.transfers();
        let mut depth = self.depth.borrow_mut();
        let is_deep = depth.is_great(transfers, self.spin_depth, start_ns);
        drop(depth);
        let spin_ns = match is_deep || is_crowded {
            true => 0,
            false => self.spin.borrow().plan_ns(wait),
        };
        if spin_ns > 0 {
            // Some operations complete at once, inside the call that submits them.
            if self.driver.has_unsubmitted() {
                self.enter(Patience::None);
            }
            let until = deadline
                .map_or(u64::MAX, |d| d.0)
                .min(start_ns.saturating_add(spin_ns));
            self.counters().spins.add(1);
            // The end of a direct write to a file is posted by a kernel worker on the CPU that took the interrupt. If that is
            // this one, the worker would wait for us, and we for it.
            let mut crowd = yields.then(|| self.crowd.borrow_mut());
            let looked = spin::look(self, until, crowd.as_deref_mut());
            drop(crowd);
            let (found, now_ns) = (looked.found, looked.now_ns);
            self.counters()
                .long_yields
                .add(u64::from(looked.is_crowded));
            self.clock_ns.set(now_ns);
            self.counters().spin_ns.add(now_ns.saturating_sub(start_ns));
            self.busy_since_ns.set(now_ns);
            if found {
                self.counters().spin_hits.add(1);
                self.awake.borrow_mut().hit(now_ns, self.counters());
                let waited_ns = now_ns.saturating_sub(start_ns);
                self.spin
                    .borrow_mut()
                    .note(wait, waited_ns, Ending::WhileSpinning);
                if self.driver.needs_enter() {
                    self.enter(Patience::None);
                }
                return;
            }
        }
        let rest = self.awake.borrow().until_ns().map(Time);
        self.sleep(deadline.into_iter().chain(rest).min());
        let mut now_ns = self.read_clock();
        // Woken only to let processors sleep again: nothing has happened yet, and it is the same idle period.
        let is_due = deadline.is_some_and(|deadline| deadline.0 <= now_ns);
        if self.let_sleep(now_ns) && !is_due && !self.has_work() {
            self.sleep(deadline);
            now_ns = self.read_clock();
        }
        self.busy_since_ns.set(now_ns);
        let ending = Ending::Asleep {
            spun: spin_ns > 0,
            event: self.has_work(),
        };
        self.spin
            .borrow_mut()
            .note(wait, now_ns.saturating_sub(start_ns), ending);
    }

    /// Counts the time since the last idle period, or since this was last called, as busy. `now_ns`
    /// is a reading of the clock that was needed anyway.
    fn count_busy(&self, now_ns: u64) {
        let since_ns = self.busy_since_ns.replace(now_ns);
        self.counters().busy_ns.add(now_ns.saturating_sub(since_ns));
    }

    /// Lets the machine's processors sleep again, if they were kept awake and that has ended. True if it has now.
    fn let_sleep(&self, now_ns: u64) -> bool {
        self.awake.borrow_mut().rest(now_ns, self.counters())
    }

    fn sleep(&self, deadline: Option<Time>) {
        let patience = match deadline {
            None => Patience::Endless,
            Some(deadline) => match deadline.since(Time(monotonic_ns())) {
                0 => Patience::None,
                ns => Patience::Ns(ns),
            },
        };
        if patience == Patience::None || !self.shared.fall_asleep() {
            self.enter(Patience::None);
            return;
        }
        self.counters().sleeps.add(1);
        self.enter(patience);
        self.shared.awake();
    }

    fn enter(&self, patience: Patience) {
        if let Err(error) = self.driver.enter(patience, self.counters()) {
            // Nothing this core has in flight can be accounted for any more.
            panic!("io_uring_enter on core {}: {error}", self.shared.index);
        }
    }

    /// Takes completions. `clock_is_fresh`: the core has just looked at it.
    fn reap(&self, mut clock_is_fresh: bool) {
        let mut reaped = [Reaped::default(); REAP_MAX];
        loop {
            let count = self.driver.reap(&mut reaped, self.counters());
            if count > 0 && !std::mem::replace(&mut clock_is_fresh, true) {
                self.read_clock();
            }
            for &one in &reaped[..count] {
                if let Some(completion) =
                    self.driver.complete(one, self.clock_ns(), self.counters())
                {
                    self.hand_on(completion);
                }
            }
            if count < REAP_MAX {
                break;
            }
        }
        // The device has nothing to do: before the answers are dealt with, it gets what was held.
        if self.driver.release(|| self.clock_ns(), self.counters()) {
            self.enter(Patience::None);
        }
    }

    fn hand_on(&self, completion: Completion) {
        match completion {
            Completion::Claimed(Some(waker)) => waker.wake(),
            Completion::Claimed(None) => {}
            Completion::Unclaimed(flight, result) => self.dispose(flight, result),
        }
    }

    /// Deals with a completion that nobody waits for.
    fn dispose(&self, flight: Flight, result: i32) {
        match flight.unclaimed {
            Unclaimed::Release => {}
            Unclaimed::CloseAccepted if result >= 0 => drop(sys::accepted_fd(result)),
            Unclaimed::CloseAccepted => {}
            Unclaimed::RingDoorbell if result < 0 => {
                if let crate::op::Held::Core(target) = &flight.held {
                    target.ring_doorbell();
                }
            }
            Unclaimed::RingDoorbell => {}
            Unclaimed::ListenAgain => {
                // The kernel is done with the word.
                if let crate::op::Owned::Word(word) = flight.owned
                    && !self.closed.get()
                {
                    self.listen(word);
                }
            }
        }
    }

    /// Listens to the eventfd by which threads without a ring wake this core. What is read there goes to `word`.
    fn listen(&self, word: Box<u64>) {
        let request = Request::Doorbell {
            event: self.shared.event(),
            word,
        };
        self.driver.start(request, false, self.counters());
    }

    fn fire_timers(&self) {
        let Some(first) = self.timers.borrow_mut().next_deadline() else {
            return;
        };
        let now = Time(self.read_clock());
        self.count_busy(now.0);
        // Of those that are due the first one alone: so no moment counts twice.
        let late_ns = now.since(first);
        if late_ns >= LATE_LEAST_NS {
            self.counters().late_ns.add(late_ns);
        }
        loop {
            let due = self.timers.borrow_mut().poll_due(now);
            let Some(waker) = due else {
                return;
            };
            self.counters().timers.add(1);
            waker.wake();
        }
    }

    /// Drops what is left to do, then waits until the kernel has let go of every buffer.
    fn stop(self: &Rc<Self>) {
        self.awake
            .borrow_mut()
            .stop(self.clock_ns(), self.counters());
        self.executor.close();
        // Drops what is in it, and tells senders that the core has stopped.
        drop(self.mailbox.take());
        self.closed.set(true);
        let start_ns = monotonic_ns();
        let mut report_ns = start_ns + STOP_REPORT_NS;
        for key in self.driver.ops.endless() {
            self.driver.cancel(key, self.counters());
        }
        while self.driver.ops.in_flight() > 0 {
            // The helper's results come without a completion, hence the short wait.
            self.enter(Patience::Ns(1_000_000));
            self.reap(false);
            self.take_helped();
            // Also for transfers that are held: nothing else may look at the clock any more.
            let now_ns = self.read_clock();
            if now_ns >= report_ns {
                report_ns = now_ns + STOP_REPORT_NS;
                tracing::warn!(
                    "core {} waits for {} operations in flight before it can stop",
                    self.shared.index,
                    self.driver.ops.in_flight()
                );
            }
            if now_ns.saturating_sub(start_ns) > self.stop_wait_ns {
                self.leak();
                break;
            }
        }
        self.shared.retire();
        if self.driver.ops.in_flight() == 0
            && let Some(helper) = self.helper.take()
        {
            helper.stop();
        }
        CURRENT.set(None);
    }

    /// Keeps this core's memory for ever, since a device may still write into it.
    fn leak(self: &Rc<Self>) {
        tracing::error!(
            "core {} stops although {} operations are still in flight; their memory is lost to \
             the process. A device may be hanging.",
            self.shared.index,
            self.driver.ops.in_flight()
        );
        std::mem::forget(self.clone());
    }
}

/// What platform handles, devices and streams use.
impl Core {
    pub(crate) fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.executor.spawn(task);
    }

    pub(crate) fn live_tasks(&self) -> usize {
        self.executor.live()
    }

    /// Most bytes of one transfer.
    pub(crate) fn transfer_max(&self) -> usize {
        self.transfer_max
    }

    /// Whether the kernel may be asked to go on after a partial send or receive.
    pub(crate) fn wait_all(&self) -> bool {
        self.wait_all
    }

    /// Starts an operation; the future gives its result and what it owned.
    pub(crate) fn operate(self: &Rc<Self>, request: Request) -> Operation {
        let key = self.begin(request);
        Operation {
            core: self.clone(),
            key: Some(key),
        }
    }

    /// Starts an operation for which the caller polls by its key.
    pub(crate) fn begin(self: &Rc<Self>, request: Request) -> OpKey {
        if self.closed.get() {
            let (flight, _) = request.prepare(&(0..0));
            let key = self.driver.ops.insert(flight, true);
            self.hand_on(self.driver.ops.complete(key, -libc::ECANCELED));
            return key;
        }
        self.driver.start(request, true, self.counters())
    }

    pub(crate) fn poll_operation(&self, key: OpKey, cx: &Context<'_>) -> Poll<(i32, Owned)> {
        match self.driver.ops.poll(key, cx.waker()) {
            Some((flight, result)) => Poll::Ready((result, flight.owned)),
            None => Poll::Pending,
        }
    }

    /// Nobody waits for the operation any more; it goes on, and keeps what it owns until the end.
    pub(crate) fn abandon(&self, key: OpKey) {
        self.counters().abandoned.add(1);
        if let Some((flight, result)) = self.driver.abandon(key) {
            self.dispose(flight, result);
        }
    }

    /// Lets the helper thread make a call that blocks.
    pub(crate) fn help(self: &Rc<Self>, request: Request, blocking: Blocking) -> Operation {
        let key = self.begin(request);
        if !self.closed.get()
            && let Err(result) = self.hand_to_helper(key, blocking)
        {
            self.hand_on(self.driver.ops.complete(key, result));
        }
        Operation {
            core: self.clone(),
            key: Some(key),
        }
    }

    /// Hands a call to the helper. An error is the call's result: it has none to hand it to, or was made here.
    fn hand_to_helper(&self, key: OpKey, blocking: Blocking) -> Result<(), i32> {
        let mut helper = self.helper.borrow_mut();
        if helper.is_none() {
            match Helper::start(self.shared.clone(), self.helper_cpus.clone()) {
                Ok(started) => *helper = Some(started),
                Err(error) => {
                    tracing::error!("core {} can't start its helper: {error}", self.shared.index);
                    return Err(-libc::EAGAIN);
                }
            }
        }
        if self.helper_calls.get() >= CALLS_MAX {
            // The core stands still meanwhile, but then it is hopelessly behind already.
            return Err(blocking.run());
        }
        let submitted = helper
            .as_ref()
            .is_some_and(|helper| helper.submit(key, blocking));
        if !submitted {
            return Err(-libc::EAGAIN);
        }
        self.helper_calls.set(self.helper_calls.get() + 1);
        Ok(())
    }

    /// A device is opened here.
    pub(crate) fn device_opened(&self, id: DeviceId) {
        *self.devices.borrow_mut().entry(id).or_default() += 1;
    }

    /// A device is closed that was opened here.
    pub(crate) fn device_closed(&self, id: DeviceId) {
        let mut devices = self.devices.borrow_mut();
        if let Some(count) = devices.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                devices.remove(&id);
            }
        }
    }

    /// True if nobody would miss this core for a moment: one device, and nothing is asked of it.
    pub(crate) fn is_quiet(&self) -> bool {
        let ops = &self.driver.ops;
        self.devices.borrow().len() == 1
            && ops.transfers() == 0
            && ops.flushes() == 0
            && !self.helper_is_busy()
            && !self.closed.get()
    }

    /// True if other tasks could run at once.
    pub(crate) fn has_ready_tasks(&self) -> bool {
        self.executor.has_ready()
    }

    /// Has the kernel begin what tasks have asked for.
    pub(crate) fn submit(&self) {
        if self.driver.has_unsubmitted() {
            self.enter(Patience::None);
        }
    }

    /// True while the helper thread has something to do.
    pub(crate) fn helper_is_busy(&self) -> bool {
        self.helper_calls.get() > 0
    }

    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.timers
    }

    pub(crate) fn register_file(&self, fd: i32) -> Option<u32> {
        self.driver.register_file(fd)
    }

    pub(crate) fn unregister_file(&self, slot: u32) {
        self.driver.unregister_file(slot);
    }

    pub(crate) fn take_message(&self) -> Box<Message> {
        self.spare_messages
            .borrow_mut()
            .pop()
            .unwrap_or_else(Message::new)
    }

    pub(crate) fn give_message(&self, message: Box<Message>) {
        assert!(message.bufs.is_empty(), "a spare message holds no buffers");
        let mut spare = self.spare_messages.borrow_mut();
        if spare.len() < MESSAGES_KEPT_MAX {
            spare.push(message);
        }
    }

    pub(crate) fn random_u64(&self) -> io::Result<u64> {
        let mut kept = self.random.borrow_mut();
        if let Some(value) = kept.pop() {
            return Ok(value);
        }
        let mut bytes = [0; RANDOM_KEPT * 8];
        sys::fill_random(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        kept.extend(words.iter().map(|&word| u64::from_ne_bytes(word)));
        Ok(kept.pop().expect("just filled"))
    }
}

/// An operation in flight. Gives the kernel's result (negative: an error number) and what the
/// operation owned. Dropping it leaves the operation to itself.
pub(crate) struct Operation {
    core: Rc<Core>,
    key: Option<OpKey>,
}

impl Future for Operation {
    type Output = (i32, Owned);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(i32, Owned)> {
        let key = self.key.expect("not polled again once it is done");
        let polled = self.core.poll_operation(key, cx);
        if polled.is_ready() {
            self.key = None;
        }
        polled
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.abandon(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::mailbox::CoreRemote;
    use crate::runtime::Runtime;

    /// The target's ring may be gone, or its number may belong to another file by now.
    #[test]
    fn a_core_that_cannot_be_reached_through_its_ring_is_woken_all_the_same() {
        let config = RuntimeConfig {
            cores: 2,
            pin: false,
            spin_max_us: 0,
            ..Default::default()
        };
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let [first, second] = [0, 1].map(|n| runtime.cores()[n].remote().clone());
        let other_file = std::fs::File::open("/dev/null").unwrap();
        second.shared.offer_ring(other_file.as_raw_fd());
        // On a busy machine the second core may be slow to fall asleep.
        for round in 0.. {
            if round >= 100 && first.counters().wakes_sent > 0 {
                break;
            }
            assert!(round < 100_000, "the second core never sleeps");
            let (sender, receiver) = mpsc::channel();
            let target: CoreRemote = second.clone();
            let send = move |_: &UringPlatform| {
                target
                    .try_send(Box::new(move |_| sender.send(()).unwrap()))
                    .unwrap();
            };
            first.try_send(Box::new(send)).unwrap();
            let answer = receiver.recv_timeout(Duration::from_secs(60));
            answer.expect("the second core is woken by its eventfd");
        }
        runtime.stop();
    }

    /// A connection that was accepted for somebody who no longer waits is closed, not forgotten.
    #[test]
    fn a_connection_that_nobody_waits_for_is_closed() {
        use std::io::Read;
        use std::os::fd::IntoRawFd;
        use std::os::unix::net::UnixStream;
        let config = RuntimeConfig {
            pin: false,
            ..Default::default()
        };
        let work = |platform: UringPlatform| async move {
            let (accepted, mut peer) = UnixStream::pair().unwrap();
            peer.set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let flight = Flight {
                owned: Owned::Nothing,
                held: crate::op::Held::Event(platform.core.shared.event()),
                unclaimed: Unclaimed::CloseAccepted,
                is_read: false,
            };
            platform.core.dispose(flight, accepted.into_raw_fd());
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "its end is closed");
        };
        crate::runtime::block_on(&config, work).unwrap();
    }
}
