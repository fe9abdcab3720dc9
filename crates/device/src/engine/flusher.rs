//! Flushes: one at a time, shared by everyone who waits.
//!
//! A ticket names a flush that has not begun yet, so it covers everything written before the ticket
//! was drawn. A failed flush fences the device: there is no retry. [design: Rules of the journal]

use std::cell::Cell;
use std::rc::Rc;

use flagstone_platform::{BlockDevice, Platform};

use super::Inner;
use super::error::DvolError;
use crate::planted::{Bug, planted};

/// How often to look whether another core's flush has ended.
const OTHER_CORES_PAUSE_NS: u64 = 10_000;

/// Numbers of flushes.
#[derive(Default)]
pub(super) struct Flusher {
    /// The last flush that has begun.
    started: Cell<u64>,
    /// The last flush that has succeeded.
    done: Cell<u64>,
    /// The last flush that somebody waits for.
    wanted: Cell<u64>,
    /// Bumped whenever the device got something that a flush would have to cover.
    written: Cell<u64>,
    /// Value of `written` when the last successful flush began.
    covered: Cell<u64>,
}

impl Flusher {
    /// A flush that begins after this call.
    pub(super) fn ticket(&self) -> u64 {
        if planted(Bug::TicketFromRunningFlush) && self.started.get() > self.done.get() {
            return self.started.get();
        }
        self.started.get() + 1
    }

    /// True if that flush has succeeded.
    pub(super) fn is_done(&self, ticket: u64) -> bool {
        ticket != 0 && self.done.get() >= ticket
    }

    /// Something was written to the device.
    pub(super) fn note_written(&self) {
        self.written.set(self.written.get() + 1);
    }

    /// True if nothing was written since the last successful flush began.
    pub(super) fn is_clean(&self) -> bool {
        self.written.get() == self.covered.get()
    }
}

impl<P: Platform> Inner<P> {
    /// Has a flush made that begins from now on.
    pub(super) fn want_flush(&self) -> u64 {
        let ticket = self.flusher.ticket();
        self.flusher
            .wanted
            .set(self.flusher.wanted.get().max(ticket));
        self.signals.flush_wanted.notify();
        ticket
    }

    /// Waits for a flush that begins after this call.
    pub(super) async fn flush_now(&self) -> Result<(), DvolError> {
        let ticket = self.want_flush();
        while !self.flusher.is_done(ticket) {
            let signal = self.signals.flushed.wait();
            if self.shared.is_fenced() {
                return Err(DvolError::Fenced);
            }
            signal.await;
        }
        Ok(())
    }

    /// Everything answered before this call is on stable media when this has succeeded.
    pub(super) async fn flush_for_client(&self) -> Result<(), DvolError> {
        self.counters
            .flush_requests
            .set(self.counters.flush_requests.get() + 1);
        if self.shared.is_fenced() {
            return Err(DvolError::Fenced);
        }
        if self.flusher.is_clean() {
            return Ok(());
        }
        self.flush_now().await
    }

    /// Flushes the device, and waits for the flushes of other cores that were under way with it: if
    /// one of those fails, this one's success proves nothing.
    pub(super) async fn flush_device(&self) -> Result<(), DvolError> {
        let id = self.shared.flush_begins();
        let mut result = self.device.flush().await;
        while planted(Bug::RetryAfterFailedFlush) && result.is_err() {
            result = self.device.flush().await;
        }
        if result.is_err() {
            self.shared.fence();
        }
        let beside = self.shared.flush_ended(id);
        while !beside.is_empty() && self.shared.any_under_way(&beside) {
            self.platform.sleep_ns(OTHER_CORES_PAUSE_NS).await;
        }
        if result.is_err() || self.shared.is_fenced() {
            Err(DvolError::Fenced)
        } else {
            Ok(())
        }
    }

    /// Task: makes flushes while somebody waits for one.
    pub(super) async fn run_flusher(self: Rc<Self>) {
        loop {
            let signal = self.signals.flush_wanted.wait();
            if self.shared.is_fenced() {
                return self.fail_all(DvolError::Fenced);
            }
            if self.flusher.wanted.get() <= self.flusher.done.get() {
                if self.flusher_off.get() {
                    return;
                }
                signal.await;
                continue;
            }
            // Requests that have just been written join this flush.
            self.platform.yield_now().await;
            let ticket = self.flusher.started.get() + 1;
            self.flusher.started.set(ticket);
            let written = self.flusher.written.get();
            let settled = self.journal.borrow_mut().settle();
            let freed = std::mem::take(&mut *self.freed.borrow_mut());
            self.counters.flushes.set(self.counters.flushes.get() + 1);
            if self.flush_device().await.is_err() {
                self.fence("a flush failed");
                return;
            }
            let (written, settled) = match planted(Bug::FlushCoversLater) {
                true => (
                    self.flusher.written.get(),
                    self.journal.borrow_mut().settle(),
                ),
                false => (written, settled),
            };
            self.flusher.done.set(ticket);
            self.flusher.covered.set(written);
            self.journal.borrow_mut().handle_flushed(settled);
            if !freed.is_empty() {
                self.gate.freed(freed);
                self.reopen_blocks();
            }
            self.apply_flushed();
            self.signals.flushed.notify();
        }
    }

    /// Task: when things have been quiet for a while, flushes what is unflushed and tells the
    /// watermark, so that a later corruption is not mistaken for a write that never finished, and
    /// freed blocks can be used again.
    pub(super) async fn run_quiet(self: Rc<Self>) {
        loop {
            let signal = self.signals.activity.wait();
            if self.shared.is_fenced() || self.stopping.get() {
                return;
            }
            signal.await;
            self.platform.sleep_ns(self.options.quiet_ns).await;
            if self.shared.is_fenced() || self.stopping.get() {
                return;
            }
            let unflushed = {
                let journal = self.journal.borrow();
                journal.has_unflushed() || !self.freed.borrow().is_empty()
            };
            if unflushed && self.flush_now().await.is_err() {
                return;
            }
            self.reopen_blocks();
            self.offer_segments();
            if self.journal.borrow().should_tell_watermark() {
                self.close_group();
            }
        }
    }
}
