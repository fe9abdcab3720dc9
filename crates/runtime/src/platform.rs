//! The platform handle of a core: clock, timers, tasks, randomness, buffers.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use flagstone_platform::{BufferPool, Platform, Time};

use crate::core::Core;
use crate::counters::CoreCounters;
use crate::device::UringDevice;
use crate::mailbox::CoreRemote;
use crate::net::{UringListener, UringStream};
use crate::probe::KernelSupport;
use crate::timer::TimerId;

/// The real platform, as one core sees it. A cheap handle, bound to its core's thread.
#[derive(Clone)]
pub struct UringPlatform {
    pub(crate) core: Rc<Core>,
}

impl UringPlatform {
    pub(crate) fn new(core: Rc<Core>) -> UringPlatform {
        UringPlatform { core }
    }

    /// The core's number in its runtime.
    pub fn core_index(&self) -> usize {
        self.core.shared.index
    }

    /// A handle by which other threads reach this core.
    pub fn remote(&self) -> CoreRemote {
        CoreRemote {
            shared: self.core.shared.clone(),
        }
    }

    /// What this core's ring can do.
    pub fn kernel_support(&self) -> &KernelSupport {
        self.core.support()
    }

    /// What this core has done so far.
    pub fn counters(&self) -> CoreCounters {
        self.core.counters().snapshot()
    }

    /// Tasks alive on this core.
    pub fn live_tasks(&self) -> usize {
        self.core.live_tasks()
    }

    /// Sets this core's wall clock wrong by so many nanoseconds more. For tests of what happens when a clock jumps.
    pub fn shift_wall_clock(&self, by_ns: i64) {
        let shift = &self.core.wall_shift_ns;
        shift.set(shift.get().saturating_add(by_ns));
    }

    /// Tells this core to stop, once the running task has yielded.
    pub fn request_stop(&self) {
        self.core.shared.request_stop();
    }
}

impl Platform for UringPlatform {
    type Device = UringDevice;
    type Stream = UringStream;
    type Listener = UringListener;

    fn now(&self) -> Time {
        Time(self.core.read_clock())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the wall clock comes from"
    )]
    fn wall_clock_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A clock before 1970 is wrong anyway, and this is only for labels.
        let ns = since.map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        });
        ns.saturating_add_signed(self.core.wall_shift_ns.get())
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        Sleep {
            core: self.core.clone(),
            deadline,
            timer: None,
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.core.spawn(Box::pin(task));
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        YieldNow { yielded: false }
    }

    fn random_u64(&self) -> u64 {
        self.core
            .random_u64()
            .expect("getrandom works on every kernel that has io_uring")
    }

    fn buffers(&self) -> &BufferPool {
        &self.core.buffers
    }
}

/// Completes at its deadline. Dropped early, it disarms its timer.
struct Sleep {
    core: Rc<Core>,
    deadline: Time,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = self.core.clone();
        let mut timers = core.timers().borrow_mut();
        match self.timer {
            // A timer that has fired has reached its deadline: no need to ask the clock.
            Some(timer) if timers.rearm(timer, cx.waker()) => Poll::Pending,
            Some(_) => {
                self.timer = None;
                Poll::Ready(())
            }
            None if self.core.read_clock() >= self.deadline.0 => Poll::Ready(()),
            None => {
                self.timer = Some(timers.arm(self.deadline, cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.core.timers().borrow_mut().disarm(timer);
        }
    }
}

/// Gives way once: the task goes to the end of the ready queue.
struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
