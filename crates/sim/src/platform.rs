//! A simulated core: the [`Platform`] that code under test sees.

use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use flagstone_platform::{BufferPool, Platform, Time};

use crate::device::SimDevice;
use crate::disk::SimDisk;
use crate::executor::{Inner, Sleep, Yield};
use crate::network::{SimListener, SimNetwork, SimStream};
use crate::trace::TraceEvent;
use crate::world::CrashPoint;

/// 2026-01-01 UTC in nanoseconds since 1970: the wall clock when virtual time is zero.
const WALL_CLOCK_START_NS: u64 = 1_767_225_600_000_000_000;

/// One core of a simulated node. A cheap handle.
#[derive(Clone)]
pub struct SimPlatform {
    inner: Rc<Inner>,
    core: usize,
    buffers: BufferPool,
}

impl SimPlatform {
    pub(crate) fn new(inner: Rc<Inner>, core: usize) -> SimPlatform {
        let buffers = inner.buffers[core].clone();
        SimPlatform {
            inner,
            core,
            buffers,
        }
    }

    /// The core's number on its node.
    pub fn core(&self) -> usize {
        self.core
    }

    /// A handle on a disk. The disk must have nothing in flight from another world: see
    /// [`SimDisk::power_loss`] and [`SimDisk::process_killed`].
    pub fn open(&self, disk: &SimDisk) -> SimDevice {
        SimDevice::open(self.inner.clone(), self.core, disk.clone())
    }

    /// The node's network.
    pub fn network(&self) -> SimNetwork {
        SimNetwork::new(self.inner.clone())
    }

    /// True with the given probability; see [`World::chance`](crate::World::chance).
    pub fn chance(&self, probability: f64) -> bool {
        self.inner.rng.workload.borrow_mut().chance(probability)
    }

    /// Has the node crash at an I/O operation counted from now on.
    pub fn crash_in(&self, point: CrashPoint) {
        self.inner.crash_in(point);
    }

    /// Puts a note into the trace.
    pub fn note(&self, text: impl Into<String>) {
        self.inner.record(TraceEvent::Note { text: text.into() });
    }
}

impl Platform for SimPlatform {
    type Device = SimDevice;
    type Stream = SimStream;
    type Listener = SimListener;

    fn now(&self) -> Time {
        Time(self.inner.now_ns())
    }

    fn wall_clock_ns(&self) -> u64 {
        WALL_CLOCK_START_NS.saturating_add(self.inner.now_ns())
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        Sleep::new(self.inner.clone(), deadline.0)
    }

    #[track_caller]
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let type_name = type_name_of(&task);
        let place = Location::caller();
        self.inner
            .spawn(self.core, place, type_name, Box::pin(task));
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        Yield::new(self.inner.clone(), self.core)
    }

    fn random_u64(&self) -> u64 {
        let value = self.inner.rng.program.borrow_mut().next_u64();
        self.inner.record(TraceEvent::Drew { value });
        value
    }

    fn buffers(&self) -> &BufferPool {
        &self.buffers
    }
}

fn type_name_of<T>(_: &T) -> &'static str {
    std::any::type_name::<T>()
}
