//! Carrying groups out: the store's own task, and putting in its place what the log has.

use std::rc::Rc;

use flagstone_device::engine::{Batch, Change, DvolError, Stability as DeviceStability};
use flagstone_platform::Platform;
use flagstone_types::BLOCK_SIZE;
use tracing::warn;

use crate::commit::StoreError;
use crate::groups::{Closed, Way};
use crate::log::{Mark, header_change};
use crate::store::{Inner, StoreCounters};

/// What is in the log for so long is put in its place.
const LOGGED_NS_MAX: u64 = 100_000_000;
/// How long to wait before trying again to put something in its place: at first, and at most.
const RETRY_NS: std::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000;
/// After so many, 30 ms, nobody waits for room in the log any more, but is told that there is none.
const TRIES_BEFORE_REFUSING: u32 = 5;
/// So often when the store is stopping: what is in the log is durable there.
const LAST_TRIES: u32 = 4;

/// Rounds of the executor between two groups: whoever waited for the first one answers, what he answers goes to the kernel, and what has come
/// by then joins the second, whose frame takes as long to make as several answers. What three of them bring is measured
/// (`docs/benchmarks/README.md`, at ce89123); results don't depend on it.
const ROUNDS_BETWEEN: usize = 3;

impl<P: Platform> Inner<P> {
    /// Puts groups on their way, one after the other, until the store is stopped.
    pub(crate) async fn carry_out_groups(self: Rc<Self>) {
        loop {
            let work = self.work.wait();
            if self.machine.borrow().wants_write_back() {
                self.begin_write_back();
            }
            let closed = self.machine.borrow_mut().close();
            if let Some(closed) = closed {
                self.carry_out(closed).await;
                for _ in 0..ROUNDS_BETWEEN {
                    self.platform.yield_now().await;
                }
                continue;
            }
            if self.machine.borrow().wants_write_back() {
                continue;
            }
            let is_idle = self.machine.borrow().is_idle();
            if self.stopping.get() {
                let is_dead = self.machine.borrow().dead.is_some();
                if is_idle || is_dead || self.has_given_up.get() {
                    let mut machine = self.machine.borrow_mut();
                    machine.dead.get_or_insert(StoreError::Stopping);
                    drop(machine);
                    self.settled.notify();
                    return;
                }
                self.machine.borrow_mut().is_due = true;
                if self.machine.borrow().wants_write_back() {
                    continue;
                }
            } else if is_idle && self.machine.borrow().dead.is_none() {
                self.platform.spawn(self.clone().give_back());
            }
            work.await;
        }
    }

    /// Makes a group durable.
    async fn carry_out(self: &Rc<Self>, Closed { group, way }: Closed) {
        let mut done = self.try_once(&way).await;
        if matches!(done, Err(DvolError::Device | DvolError::NoSpace)) {
            // Everybody's work is in it, and the attempt that failed has left nothing behind.
            done = self.try_once(&way).await;
        }
        if let Err(error) = done
            && !matches!(error, DvolError::Fenced | DvolError::Stopping)
        {
            // What takes it back may be written and not durable: a crash would bring it back after somebody was told that it is lost.
            done = self.engine.flush().await.and(Err(error));
        }
        let usage = |handle| self.engine.usage_of(handle).ok();
        match done {
            Ok(()) => {
                let journaled = u64::from(matches!(way, Way::Journaled(..)));
                self.count(|counters| {
                    counters.groups += 1;
                    counters.groups_journaled += journaled;
                });
                self.machine.borrow_mut().handle_durable(usage);
                self.note_logged();
            }
            Err(error) => {
                self.count(|counters| counters.groups_lost += 1);
                warn!(
                    "group {group} of the page store has not happened, nor what came after it: {error}"
                );
                self.machine.borrow_mut().handle_lost(error.into(), usage);
            }
        }
        self.settled.notify();
    }

    async fn try_once(&self, way: &Way) -> Result<(), DvolError> {
        let log = self.log;
        let aligned = |frame: &[u8]| {
            let padded_len = frame.len().next_multiple_of(BLOCK_SIZE as usize);
            let mut data = self.platform.buffers().take(padded_len);
            let (bytes, padding) = data.bytes_mut().split_at_mut(frame.len());
            bytes.copy_from_slice(frame);
            padding.fill(0);
            data
        };
        match (way, log) {
            (Way::Journaled(at, frame), Some(log)) => {
                let change = Change::WriteJournaled {
                    handle: log,
                    offset_bytes: *at,
                    data: frame[..].into(),
                };
                match self.commit_all(vec![change]).await {
                    // The device takes no such data for this log: it has a snapshot, or isn't reserved as a whole. Its own blocks do as well.
                    Err(DvolError::Invalid) => {
                        let (data, stable) = (aligned(frame), DeviceStability::Stable);
                        self.engine.write(log, *at, data, stable).await.map(drop)
                    }
                    done => done,
                }
            }
            (Way::Frame(at, frame, beside), Some(log)) if beside.is_empty() => {
                let (data, stable) = (aligned(frame), DeviceStability::Stable);
                self.engine.write(log, *at, data, stable).await.map(drop)
            }
            (Way::Frame(at, frame, beside), Some(log)) => {
                let mut changes = beside.clone();
                changes.push(Change::Write {
                    handle: log,
                    offset_bytes: *at,
                    data: aligned(frame),
                    meta: 0,
                });
                self.commit_all(changes).await
            }
            (Way::Direct(changes, mark), _) => {
                let changes = self.in_place(changes, mark.as_ref());
                self.commit_all(changes).await
            }
            (Way::Frame(..) | Way::Journaled(..), None) => Err(DvolError::Invalid),
        }
    }

    /// What puts changes in their place, up to a mark of the log.
    fn in_place(&self, changes: &[Change], mark: Option<&Mark>) -> Vec<Change> {
        let mut changes = changes.to_vec();
        if let (Some(log), Some(mark)) = (self.log, mark) {
            changes.push(header_change(log, mark.header));
            // Else the next checkpoint would give blocks to what was only in the journal.
            changes.extend(mark.journaled.iter().map(|part| Change::Deallocate {
                handle: log,
                offset_bytes: part.start,
                len_bytes: part.end - part.start,
            }));
        }
        changes
    }

    async fn commit_all(&self, changes: Vec<Change>) -> Result<(), DvolError> {
        let batch = Batch {
            conditions: Vec::new(),
            changes,
        };
        self.engine
            .commit(batch, DeviceStability::Stable)
            .await
            .map(drop)
    }

    /// Something is in the log: after a while it is put in its place, if that has not happened by then.
    fn note_logged(self: &Rc<Self>) {
        if self.machine.borrow().logged.is_empty() || self.has_timer.replace(true) {
            return;
        }
        let inner = Rc::downgrade(self);
        let sleep = self.platform.sleep_ns(LOGGED_NS_MAX);
        self.platform.spawn(async move {
            sleep.await;
            if let Some(inner) = inner.upgrade() {
                inner.has_timer.set(false);
                inner.machine.borrow_mut().is_due = true;
                inner.work.notify();
            }
        });
    }

    fn count(&self, change: impl FnOnce(&mut StoreCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    fn begin_write_back(self: &Rc<Self>) {
        let (changes, mark) = self.machine.borrow_mut().begin_write_back();
        self.platform.spawn(self.clone().write_back(changes, mark));
    }

    async fn write_back(self: Rc<Self>, changes: Vec<Change>, mark: Option<Mark>) {
        let mut pause_ns = *RETRY_NS.start();
        for tries in 1.. {
            let batch = Batch {
                conditions: Vec::new(),
                changes: self.in_place(&changes, mark.as_ref()),
            };
            // Ahead: it is much, and each frame that comes meanwhile changes the log behind it.
            let error = match self.engine.commit_ahead(batch).await {
                Ok(_) => break,
                Err(error) => error,
            };
            if matches!(error, DvolError::Fenced | DvolError::Stopping) {
                self.machine.borrow_mut().dead.get_or_insert(error.into());
                self.work.notify();
                self.settled.notify();
                return;
            }
            if self.stopping.get() && tries >= LAST_TRIES {
                self.has_given_up.set(true);
                self.work.notify();
                return;
            }
            self.count(|counters| counters.put_in_place_failed += 1);
            if tries >= TRIES_BEFORE_REFUSING && !self.is_failing.replace(true) {
                self.settled.notify();
            }
            warn!(
                "putting what the page store's log has in its place: {error}; it is durable in the log, and tried again \
                 in {} ms",
                pause_ns / 1_000_000
            );
            self.platform.sleep_ns(pause_ns).await;
            pause_ns = (2 * pause_ns).min(*RETRY_NS.end());
        }
        self.is_failing.set(false);
        self.count(|counters| counters.put_in_place += 1);
        let usage = |handle| self.engine.usage_of(handle).ok();
        self.machine.borrow_mut().handle_written(usage);
        self.work.notify();
        self.settled.notify();
    }
}
