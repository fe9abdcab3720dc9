//! Flushes: one at a time, shared by everyone who waits.
//!
//! A ticket names a flush that has not begun yet, so it covers everything written before the ticket
//! was drawn. A failed flush fences the device: there is no retry. [design: Rules of the journal]

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::{BlockDevice, Platform};

use super::Inner;
use super::error::DvolError;
use crate::planted::{Bug, planted};
use crate::space::FlushedBy;

/// How often to look whether another core's flush has ended.
const OTHER_CORES_PAUSE_NS: u64 = 10_000;

/// Freed blocks that a list keeps room for between flushes.
const FREED_KEPT_MAX: usize = 8192;

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
    /// Value of `written` when the last flush began.
    began_at: Cell<u64>,
    /// Blocks were freed before the flush under way, and can be used again after it.
    frees: Cell<bool>,
    /// What clients do with flushes, as far as it is known.
    habit: FlushHabit,
}

/// Whether clients flush after every single write, one after the other. The flush is then begun as
/// soon as the write is answered: when the client's request for it arrives, part of it is over.
#[derive(Default)]
struct FlushHabit {
    /// Flushes in a row that each followed one write.
    score: Cell<u32>,
    /// Writes answered since the last flush was asked for.
    writes: Cell<u32>,
}

/// Flushes in a row after which the next one is expected.
const HABIT_SCORE: u32 = 8;

impl FlushHabit {
    /// A client asked for a flush.
    fn note_flush(&self) {
        let score = match self.writes.replace(0) {
            1 => (self.score.get() + 1).min(HABIT_SCORE),
            _ => 0,
        };
        self.score.set(score);
    }

    /// A write was answered without a flush. True if a flush will probably be asked for next.
    fn note_write(&self) -> bool {
        self.writes.set(self.writes.get().saturating_add(1));
        if self.writes.get() > 1 {
            self.score.set(0);
        }
        self.score.get() == HABIT_SCORE
    }
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

    /// The flush under way, if nothing was written since it began: it covers everything.
    fn under_way(&self) -> Option<u64> {
        let runs = self.started.get() > self.done.get();
        let covers_all = self.began_at.get() == self.written.get() || planted(Bug::FlushJoinedLate);
        (runs && covers_all).then(|| self.started.get())
    }

    /// The flush under way, if it is what freed blocks wait for.
    pub(super) fn freeing(&self) -> Option<u64> {
        let runs = self.started.get() > self.done.get();
        (runs && self.frees.get()).then(|| self.started.get())
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
        self.wait_for_flush(ticket).await
    }

    pub(super) async fn wait_for_flush(&self, ticket: u64) -> Result<(), DvolError> {
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
        self.flusher.habit.note_flush();
        if self.flusher.is_clean() {
            return Ok(());
        }
        match self.flusher.under_way() {
            Some(ticket) => self.wait_for_flush(ticket).await,
            None => self.flush_now().await,
        }
    }

    /// A write that needed no flush has been answered, and nothing else is on its way if `alone`.
    pub(super) fn note_answered_write(&self, alone: bool) {
        if self.flusher.habit.note_write() && alone && !self.flusher.is_clean() {
            self.want_flush();
        }
    }

    /// Flushes the device, and waits for the flushes of other cores that were under way with it: if
    /// one of those fails, this one's success proves nothing.
    pub(super) async fn flush_device(&self, by: FlushedBy) -> Result<(), DvolError> {
        self.shared.flush_begins(self.journal_no, by);
        let mut result = self.device.flush().await;
        while planted(Bug::RetryAfterFailedFlush) && result.is_err() {
            result = self.device.flush().await;
        }
        if let Err(error) = &result {
            tracing::error!(
                device = %self.superblock.device_id,
                journal = self.journal_no,
                "flushing the device failed: {error}"
            );
            self.shared.fence();
        }
        let beside = self.shared.flush_ended(self.journal_no, by);
        while self.shared.any_under_way(&beside) {
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
        // What was freed before the flush under way. It changes places with the list that others add to.
        let mut freed = Vec::new();
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
            self.flusher.began_at.set(written);
            let settled = self.journal.borrow_mut().settle();
            std::mem::swap(&mut *self.freed.borrow_mut(), &mut freed);
            self.flusher.frees.set(!freed.is_empty());
            self.counters.flushes.set(self.counters.flushes.get() + 1);
            if self.flush_device(FlushedBy::Flusher).await.is_err() {
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
                self.gate.freed(&mut freed);
                freed.shrink_to(FREED_KEPT_MAX);
                self.reopen_blocks();
            }
            self.apply_flushed();
            self.signals.flushed.notify();
        }
    }

    /// A stop waits for the tasks, and clients may be waiting for it: a journal that goes to another core stops here first.
    async fn sleep_unless_stopped(&self, ns: u64) {
        let stops = self.signals.stops.wait();
        if self.stopping.get() {
            return;
        }
        let (mut slept, mut stops) = (pin!(self.platform.sleep_ns(ns)), pin!(stops));
        poll_fn(|cx| match slept.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => stops.as_mut().poll(cx),
        })
        .await;
    }

    /// Task: when things have been quiet for a while, flushes what is unflushed and tells the
    /// watermark, so that a later corruption is not mistaken for a write that never finished, and
    /// freed blocks can be used again.
    pub(super) async fn run_quiet(self: Rc<Self>) {
        let mut signal = self.signals.activity.wait();
        loop {
            if self.shared.is_fenced() || self.stopping.get() {
                return;
            }
            signal.await;
            self.sleep_unless_stopped(self.options.quiet_ns).await;
            if self.shared.is_fenced() || self.stopping.get() {
                return;
            }
            // What happens from here on, during the flush as well, has another look.
            signal = self.signals.activity.wait();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of rounds of a write and a flush after which the flush is begun unasked.
    fn rounds_to_learn(habit: &FlushHabit) -> u32 {
        let round = |_: &u32| {
            let expects = habit.note_write();
            habit.note_flush();
            expects
        };
        (0..100).find(round).expect("learns")
    }

    #[test]
    fn a_flush_after_every_write_is_expected_after_a_while() {
        let habit = FlushHabit::default();
        assert_eq!(rounds_to_learn(&habit), HABIT_SCORE);
        assert!(habit.note_write(), "and from then on");
    }

    #[test]
    fn a_second_write_before_the_flush_ends_the_habit() {
        let habit = FlushHabit::default();
        rounds_to_learn(&habit);
        assert!(habit.note_write());
        assert!(!habit.note_write());
        habit.note_flush();
        assert_eq!(
            rounds_to_learn(&habit),
            HABIT_SCORE,
            "learns from the start"
        );
    }

    #[test]
    fn flushes_without_writes_are_no_habit() {
        let habit = FlushHabit::default();
        for _ in 0..100 {
            habit.note_flush();
        }
        assert!(!habit.note_write());
    }

    #[test]
    fn only_a_flush_that_began_after_the_last_write_is_joined() {
        let flusher = Flusher::default();
        flusher.note_written();
        assert_eq!(flusher.under_way(), None, "none runs");
        flusher.started.set(1);
        flusher.began_at.set(flusher.written.get());
        assert_eq!(flusher.under_way(), Some(1));
        flusher.note_written();
        assert_eq!(flusher.under_way(), None, "something was written since");
        flusher.done.set(1);
        assert_eq!(flusher.under_way(), None);
    }
}
