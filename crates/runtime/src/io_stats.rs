//! What a core has asked of a device, how much that moved, how it ended, and how long it took.
//!
//! One entry for each operation of the engine: what the kernel needs to be asked again for belongs
//! to the operation. What is refused before the kernel hears of it (a range behind the end, a
//! change of what was opened for reading) does not count.
//!
//! One core counts and answers for itself, so plain cells do; whoever wants the whole asks every
//! core and adds. Times are differences between looks at the clock that the core makes anyway
//! ([`crate::core::Core::clock_ns`]): exact where the core waited for the operation, and up to one
//! round of its loop off where it was busy with others.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_types::LatencyHistogram;

/// Operations of one kind.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IoKindStats {
    /// Operations that have ended, failed ones included.
    pub operations: u64,
    /// Bytes that those which succeeded have moved or discarded.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// From asking to the end, failed ones included.
    pub latency: LatencyHistogram,
}

/// What one core has asked of one device. Copies can be added.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeviceIoStats {
    /// Reads.
    pub read: IoKindStats,
    /// Writes.
    pub write: IoKindStats,
    /// Flushes.
    pub flush: IoKindStats,
    /// Discards.
    pub discard: IoKindStats,
}

/// The kinds that are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoKind {
    Read,
    Write,
    Flush,
    Discard,
}

/// The statistics of an open device. A handle that does not keep the device open.
#[derive(Clone, Default)]
pub struct IoStats(Rc<RefCell<DeviceIoStats>>);

impl IoStats {
    /// Flushes that have ended. Cheap, where [`snapshot`](IoStats::snapshot) copies histograms.
    pub fn flushes(&self) -> u64 {
        self.0.borrow().flush.operations
    }

    /// Reads that have ended, and bytes of those which succeeded. As cheap. Each is counted while whoever asked for it is being polled.
    pub fn reads(&self) -> (u64, u64) {
        let stats = self.0.borrow();
        (stats.read.operations, stats.read.bytes)
    }

    /// A copy.
    pub fn snapshot(&self) -> DeviceIoStats {
        self.0.borrow().clone()
    }

    /// An operation of `bytes` has ended after `ns`.
    pub(crate) fn count(&self, kind: IoKind, bytes: u64, ns: u64, ok: bool) {
        let mut stats = self.0.borrow_mut();
        let stats = match kind {
            IoKind::Read => &mut stats.read,
            IoKind::Write => &mut stats.write,
            IoKind::Flush => &mut stats.flush,
            IoKind::Discard => &mut stats.discard,
        };
        stats.operations += 1;
        stats.latency.record(ns);
        match ok {
            true => stats.bytes += bytes,
            false => stats.errors += 1,
        }
    }
}

impl IoKindStats {
    fn merge(&mut self, other: &IoKindStats) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.latency.merge(&other.latency);
    }
}

impl DeviceIoStats {
    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &DeviceIoStats) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.flush.merge(&other.flush);
        self.discard.merge(&other.discard);
    }
}
