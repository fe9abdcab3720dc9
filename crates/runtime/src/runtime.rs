//! Starting and stopping: a thread per core.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe, Location, catch_unwind};
use std::process;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};

use flagstone_platform::Platform;

use crate::config::RuntimeConfig;
use crate::core::Core;
use crate::mailbox::{CoreRemote, CoreShared, Message};
use crate::platform::UringPlatform;
use crate::probe::RingError;
use crate::sys;

/// Why a runtime did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration asks for no cores.
    NoCores,
    /// A core's ring could not be set up.
    Ring {
        /// The core.
        core: usize,
        /// Why.
        error: RingError,
    },
    /// A core's thread or eventfd could not be made.
    Thread {
        /// The core.
        core: usize,
        /// Why.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoCores => f.write_str("starting the runtime: it needs at least one core"),
            StartError::Ring { core, error } => write!(f, "starting core {core}: {error}"),
            StartError::Thread { core, error } => {
                write!(f, "starting the thread of core {core}: {error}")
            }
        }
    }
}

impl std::error::Error for StartError {}

/// A running core.
pub struct CoreHandle {
    remote: CoreRemote,
    thread: JoinHandle<()>,
}

impl CoreHandle {
    /// The core's number in its runtime.
    pub fn index(&self) -> usize {
        self.remote.index()
    }

    /// The handle by which other threads reach the core.
    pub fn remote(&self) -> &CoreRemote {
        &self.remote
    }

    /// Tells the core to stop and waits until it has.
    pub fn stop(self) {
        self.remote.request_stop();
        self.wait();
    }

    /// Waits until the core has stopped.
    pub fn wait(self) {
        // The thread never unwinds: a panic on a core ends the process.
        let _ = self.thread.join();
    }
}

/// The cores of a node. Stopped cores end in order; dropping a runtime stops it.
pub struct Runtime {
    cores: Vec<CoreHandle>,
}

impl Runtime {
    /// Starts the cores. `init` is asked for one closure per core, which runs on that core's thread
    /// once every core has its ring; it opens devices, binds listeners and spawns tasks.
    ///
    /// A panic in a task, a message or such a closure ends the process at once: whatever storage
    /// task was half done, nothing may be built on it, and recovery starts from what is on media.
    pub fn start<I>(
        config: &RuntimeConfig,
        mut init: impl FnMut(usize) -> I,
    ) -> Result<Runtime, StartError>
    where
        I: FnOnce(UringPlatform) + Send + 'static,
    {
        if config.cores == 0 {
            return Err(StartError::NoCores);
        }
        let cpus = plan_cpus(config);
        let mut starting = Vec::new();
        for index in 0..config.cores {
            starting.push(Starting::new(index, config, &cpus, init(index))?);
        }
        // Every core reports before any is let go. Those that wait end when `starting` is dropped.
        for core in &starting {
            core.report()?;
        }
        Ok(Runtime {
            cores: starting.into_iter().map(Starting::go).collect(),
        })
    }

    /// The cores, in order.
    pub fn cores(&self) -> &[CoreHandle] {
        &self.cores
    }

    /// Tells all cores to stop and waits until they have.
    pub fn stop(self) {
        drop(self);
    }

    /// Waits until all cores have stopped by themselves.
    pub fn wait(mut self) {
        self.cores.drain(..).for_each(CoreHandle::wait);
    }

    /// Takes the cores out, to be stopped one by one.
    pub fn into_cores(mut self) -> Vec<CoreHandle> {
        std::mem::take(&mut self.cores)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        for core in &self.cores {
            core.remote.request_stop();
        }
        self.cores.drain(..).for_each(CoreHandle::wait);
    }
}

/// Runs one future on a core of its own and gives its result. For tools and tests.
pub fn block_on<F, T>(
    config: &RuntimeConfig,
    work: impl FnOnce(UringPlatform) -> F + Send + 'static,
) -> Result<T, StartError>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let (sender, receiver) = mpsc::sync_channel(1);
    let config = RuntimeConfig {
        cores: 1,
        ..config.clone()
    };
    let mut work = Some((work, sender));
    let runtime = Runtime::start(&config, |_| {
        let (work, sender) = work.take().expect("there is one core");
        move |platform: UringPlatform| {
            let work = work(platform.clone());
            platform.clone().spawn(async move {
                let result = work.await;
                // The receiver waits below.
                let _ = sender.send(result);
                platform.request_stop();
            });
        }
    })?;
    runtime.wait();
    Ok(receiver
        .recv()
        .expect("the core stops by itself only after it has sent the result"))
}

/// A core whose thread has been started and waits to be let go.
struct Starting {
    handle: CoreHandle,
    report: Receiver<Result<(), RingError>>,
    go: SyncSender<()>,
}

impl Starting {
    fn new(
        index: usize,
        config: &RuntimeConfig,
        cpus: &Cpus,
        init: impl FnOnce(UringPlatform) + Send + 'static,
    ) -> Result<Starting, StartError> {
        let failed = |error| StartError::Thread { core: index, error };
        let (shared, mailbox) = CoreShared::new(index, config).map_err(failed)?;
        let remote = CoreRemote {
            shared: shared.clone(),
        };
        let (reporter, report) = mpsc::sync_channel(1);
        let (go, gate) = mpsc::sync_channel(1);
        let seat = Seat {
            shared: shared.clone(),
            config: config.clone(),
            cpu: cpus.per_core.get(index).copied(),
            all_cpus: cpus.all.clone(),
        };
        let spawned = thread::Builder::new()
            .name(format!("fs-core-{index}"))
            .spawn(move || abort_on_panic(index, || seat.run(mailbox, &reporter, &gate, init)));
        match spawned {
            Ok(thread) => Ok(Starting {
                handle: CoreHandle { remote, thread },
                report,
                go,
            }),
            Err(error) => {
                shared.retire();
                Err(failed(error))
            }
        }
    }

    fn report(&self) -> Result<(), StartError> {
        let core = self.handle.index();
        let report = self
            .report
            .recv()
            .expect("a core's thread reports before it ends");
        report.map_err(|error| StartError::Ring { core, error })
    }

    fn go(self) -> CoreHandle {
        self.go.send(()).expect("the core's thread waits for this");
        self.handle
    }
}

/// What a core's thread starts with.
struct Seat {
    shared: Arc<CoreShared>,
    config: RuntimeConfig,
    cpu: Option<usize>,
    all_cpus: Vec<usize>,
}

impl Seat {
    fn run(
        self,
        mailbox: Receiver<Message>,
        reporter: &SyncSender<Result<(), RingError>>,
        gate: &Receiver<()>,
        init: impl FnOnce(UringPlatform),
    ) {
        let index = self.shared.index;
        if let Some(cpu) = self.cpu
            && let Err(error) = sys::set_affinity(&[cpu])
        {
            tracing::warn!("core {index} runs unpinned: pinning it to CPU {cpu} failed: {error}");
        }
        let helper_cpus = if self.cpu.is_some() {
            self.all_cpus
        } else {
            Vec::new()
        };
        let core = match Core::new(self.shared.clone(), mailbox, &self.config, helper_cpus) {
            Ok(core) => core,
            Err(error) => {
                self.shared.retire();
                // The starter waits for the report.
                let _ = reporter.send(Err(error));
                return;
            }
        };
        tracing::info!("core {index}: {}", core.support());
        let _ = reporter.send(Ok(()));
        match gate.recv() {
            Ok(()) => init(UringPlatform::new(core.clone())),
            // Another core could not start.
            Err(_) => self.shared.request_stop(),
        }
        core.run();
        let left = Rc::strong_count(&core) - 1;
        if left > 0 {
            tracing::debug!("core {index} has ended; {left} handles to it are still around");
        }
    }
}

thread_local! {
    /// The number of the core whose thread this is.
    static ON_CORE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs a core. If it panics, the process ends: its tasks may have left anything half done.
fn abort_on_panic(index: usize, run: impl FnOnce()) {
    abort_from_hook();
    ON_CORE.set(Some(index));
    // Only in case somebody has replaced the hook since.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        abort(index, panic_text(&*panic), None);
    }
}

/// Ends the process from the panic hook, before anything unwinds: destructors would let other
/// threads and peers see the state of a task that is half done. What the hook did before, such as
/// printing a backtrace, it still does, on all threads.
fn abort_from_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            before(info);
            if let Ok(Some(index)) = ON_CORE.try_with(Cell::get) {
                abort(index, panic_text(info.payload()), info.location());
            }
        }));
    });
}

fn abort(index: usize, text: &str, location: Option<&Location<'_>>) -> ! {
    let place = location
        .map(|location| format!(" at {location}"))
        .unwrap_or_default();
    // Not through the log: that may be what panicked. If it can't be written, nothing is left to do.
    let _ = writeln!(
        io::stderr(),
        "flagstone: core {index} panicked{place} ({text}). Aborting: a storage task may be half \
         done, and nothing may be built on that; restart to recover from what is on media."
    );
    process::abort();
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Which CPUs cores are pinned to.
struct Cpus {
    /// One per core; empty if cores are not pinned.
    per_core: Vec<usize>,
    /// All that the process may use.
    all: Vec<usize>,
}

fn plan_cpus(config: &RuntimeConfig) -> Cpus {
    let none = Cpus {
        per_core: Vec::new(),
        all: Vec::new(),
    };
    if !config.pin {
        return none;
    }
    let all = match sys::allowed_cpus() {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!("cores run unpinned: asking for the allowed CPUs failed: {error}");
            return none;
        }
    };
    let wanted = if config.cpus.is_empty() {
        &all
    } else {
        &config.cpus
    };
    if wanted.len() < config.cores {
        tracing::warn!(
            "cores run unpinned: {} cores, but only {} CPUs to pin them to",
            config.cores,
            wanted.len()
        );
        return none;
    }
    Cpus {
        per_core: wanted[..config.cores].to_vec(),
        all,
    }
}
