//! A world: one node with its cores, its clock and its network, run by one seed.
//!
//! A test makes a world, opens disks in it, spawns tasks on its cores and runs it until something
//! is true. When it crashes the world is thrown away; the disks stay, lose what was not flushed
//! ([`SimDisk::power_loss`]) and go into the next world.
//!
//! [`SimDisk::power_loss`]: crate::SimDisk::power_loss

use std::cell::RefCell;
use std::future::Future;
use std::ops::RangeInclusive;
use std::rc::Rc;

use flagstone_platform::{Platform, Time};

use crate::executor::Inner;
use crate::network::{NetworkConfig, SimNetwork};
use crate::platform::SimPlatform;
use crate::rng::Rng;
use crate::trace::TraceEvent;

/// What makes a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// Cores of the node.
    pub cores: usize,
    /// Virtual time one poll of a task takes, in nanoseconds.
    pub poll_cost_ns: RangeInclusive<u64>,
    /// How late timers are, in nanoseconds.
    pub timer_late_ns: RangeInclusive<u64>,
    /// Polls after which one call of a `run_` function panics: a livelock.
    pub polls_max: u64,
    /// Trace events kept to be printed on failure.
    pub trace_events_kept: usize,
    /// How the network behaves.
    pub network: NetworkConfig,
}

impl WorldConfig {
    /// One core, a calm network.
    pub fn new(seed: u64) -> WorldConfig {
        WorldConfig {
            seed,
            cores: 1,
            poll_cost_ns: 0..=1_000,
            timer_late_ns: 0..=50_000,
            polls_max: 20_000_000,
            trace_events_kept: 64,
            network: NetworkConfig::default(),
        }
    }

    /// The same with this many cores.
    pub fn cores(self, cores: usize) -> WorldConfig {
        WorldConfig { cores, ..self }
    }
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunEnd {
    /// The condition is true.
    Met,
    /// Nothing is ready and nothing will happen by itself.
    Idle,
    /// The time has come.
    Deadline,
    /// The node has crashed.
    Crashed,
}

/// Which I/O operations a crash point counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counting {
    /// All of them.
    EveryIo,
    /// Writes, flushes and discards.
    Changes,
    /// Flushes.
    Flushes,
}

/// When in an operation's life the node crashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashMoment {
    /// Before the disk has heard of it.
    Before,
    /// While it is in flight.
    InFlight,
    /// When it has completed but nobody has been told.
    Completed,
}

/// A crash at a chosen I/O operation, counted over all disks from the world's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrashPoint {
    /// Operations of the kind counted that go before, so zero is the first.
    pub nth: u64,
    /// What is counted.
    pub counting: Counting,
    /// When it happens.
    pub moment: CrashMoment,
}

/// One node in virtual time. See the module's page.
pub struct World {
    inner: Rc<Inner>,
}

impl World {
    /// A world of one core.
    pub fn new(seed: u64) -> World {
        World::with_config(WorldConfig::new(seed))
    }

    /// A world.
    pub fn with_config(config: WorldConfig) -> World {
        assert!(config.cores > 0, "a node has at least one core");
        World {
            inner: Rc::new(Inner::new(config)),
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.inner.config.seed
    }

    /// Cores of the node.
    pub fn cores(&self) -> usize {
        self.inner.config.cores
    }

    /// A core's view of the world.
    pub fn platform(&self, core: usize) -> SimPlatform {
        assert!(core < self.cores(), "the world has no core {core}");
        SimPlatform::new(self.inner.clone(), core)
    }

    /// The network, to listen on and connect through.
    pub fn network(&self) -> SimNetwork {
        SimNetwork::new(self.inner.clone())
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        Time(self.inner.now_ns())
    }

    /// Starts a task on a core.
    #[track_caller]
    pub fn spawn(&self, core: usize, task: impl Future<Output = ()> + 'static) {
        self.platform(core).spawn(task);
    }

    /// True with the given probability, drawn from the workload's generator: for workloads that
    /// now and then do something unusual.
    pub fn chance(&self, probability: f64) -> bool {
        self.inner.rng.workload.borrow_mut().chance(probability)
    }

    /// A generator for the workload. Each call gives another one.
    pub fn workload_rng(&self) -> Rng {
        Rng::new(self.inner.rng.workload.borrow_mut().next_u64())
    }

    /// Puts a note into the trace.
    pub fn note(&self, text: impl Into<String>) {
        self.inner.record(TraceEvent::Note { text: text.into() });
    }

    /// The hash of everything that has happened so far.
    pub fn trace_hash(&self) -> u64 {
        self.inner.trace_hash()
    }

    /// Events in the trace so far.
    pub fn trace_events(&self) -> u64 {
        self.inner.trace_events()
    }

    /// The last events, one per line.
    pub fn trace_tail(&self) -> String {
        self.inner.trace_tail()
    }

    /// Tasks that have not ended.
    pub fn tasks_alive(&self) -> usize {
        self.inner.tasks_alive()
    }

    /// I/O operations started so far, on all disks.
    pub fn ios_started(&self) -> u64 {
        self.inner.ios_started()
    }

    /// Writes, flushes and discards started so far, on all disks.
    pub fn changes_started(&self) -> u64 {
        self.inner.changes_started()
    }

    /// Runs until `condition` is true. Panics, naming the tasks that wait, if that can't happen
    /// any more because nothing is ready, sleeping or in flight.
    pub fn run_until(&self, condition: impl FnMut() -> bool) -> RunEnd {
        let end = self.run(condition, None);
        if end == RunEnd::Idle {
            panic!("{}", self.describe_deadlock());
        }
        end
    }

    /// Like [`World::run_until`], but says it when the condition can't come true any more.
    pub(crate) fn try_run_until(&self, condition: impl FnMut() -> bool) -> RunEnd {
        self.run(condition, None)
    }

    /// The tasks that wait for each other.
    pub(crate) fn describe_deadlock(&self) -> String {
        format!(
            "deadlock at {} ns with seed {}: nothing is ready, sleeping or in flight; waiting:\n{}",
            self.inner.now_ns(),
            self.seed(),
            self.inner.describe_tasks()
        )
    }

    /// Runs until nothing happens any more. Tasks may still be waiting.
    pub fn run_until_idle(&self) -> RunEnd {
        self.run(|| false, None)
    }

    /// Runs for `ns` nanoseconds of virtual time.
    pub fn run_for(&self, ns: u64) -> RunEnd {
        let deadline_ns = self.inner.now_ns().saturating_add(ns);
        self.run(|| false, Some(deadline_ns))
    }

    /// Runs a task on a core to its end and gives its result; `None` if the node crashed first.
    #[track_caller]
    pub fn run_task<T: 'static>(
        &self,
        core: usize,
        task: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let result: Rc<RefCell<Option<T>>> = Rc::default();
        let slot = result.clone();
        self.spawn(core, async move {
            let value = task.await;
            slot.replace(Some(value));
        });
        self.run_until(|| result.borrow().is_some());
        result.take()
    }

    /// Like [`World::run_task`] where no crash is expected: panics at one.
    #[track_caller]
    pub fn block_on<T: 'static>(&self, core: usize, task: impl Future<Output = T> + 'static) -> T {
        match self.run_task(core, task) {
            Some(value) => value,
            None => panic!("the node crashed, with seed {}", self.seed()),
        }
    }

    fn run(&self, mut condition: impl FnMut() -> bool, deadline_ns: Option<u64>) -> RunEnd {
        let inner = &self.inner;
        let mut polls: u64 = 0;
        loop {
            if inner.is_crashed() {
                return RunEnd::Crashed;
            }
            if condition() {
                return RunEnd::Met;
            }
            if deadline_ns.is_some_and(|deadline| inner.now_ns() >= deadline) {
                return RunEnd::Deadline;
            }
            inner.run_due_events();
            if inner.is_crashed() {
                return RunEnd::Crashed;
            }
            if inner.poll_one() {
                polls += 1;
                assert!(
                    polls <= inner.config.polls_max,
                    "no end after {polls} polls with seed {}: a livelock? Alive:\n{}",
                    self.seed(),
                    inner.describe_tasks()
                );
                continue;
            }
            match (inner.next_event_ns(), deadline_ns) {
                (Some(at), Some(deadline)) if at > deadline => inner.advance_to(deadline),
                (Some(at), _) => inner.advance_to(at),
                (None, Some(deadline)) => inner.advance_to(deadline),
                (None, None) => {
                    // The condition may have become true in the last poll or event.
                    return if condition() {
                        RunEnd::Met
                    } else {
                        RunEnd::Idle
                    };
                }
            }
        }
    }

    /// Flushes started so far, on all disks.
    pub fn flushes_started(&self) -> u64 {
        self.inner.flushes_started()
    }

    /// Has the node crash at a chosen I/O operation; the run then ends with [`RunEnd::Crashed`].
    pub fn crash_at(&self, point: CrashPoint) {
        self.inner.set_crash_point(Some(point));
    }

    /// Kills what runs on a core, while the others go on: for a world whose cores are nodes of their own. Not from within a task. Its disks
    /// are left to operations that may still be under way: go on with [`SimDisk::after_power_loss`](crate::SimDisk::after_power_loss). Tasks
    /// that are spawned there afterwards run.
    pub fn kill_core(&self, core: usize) -> Rng {
        self.inner.kill_core(core);
        Rng::new(self.inner.rng.crash.borrow_mut().next_u64())
    }

    /// Stops the node where it stands: drops every task, in an order drawn from the seed, and ends
    /// the world. The generator returned is for what the seed decides after the crash, such as
    /// [`SimDisk::power_loss`](crate::SimDisk::power_loss).
    pub fn crash(self) -> Rng {
        self.inner.clear();
        Rng::new(self.inner.rng.crash.borrow_mut().next_u64())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && self.inner.config.trace_events_kept > 0 {
            eprintln!(
                "the world of seed {} failed at {} ns, trace {:016x}; its last events:\n{}",
                self.seed(),
                self.inner.now_ns(),
                self.trace_hash(),
                self.trace_tail()
            );
        }
        self.inner.clear();
    }
}
