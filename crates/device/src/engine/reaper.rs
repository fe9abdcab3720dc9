//! Reaping: freeing what only a deleted layer needed, in the background.
//!
//! Each step is one journal record that says how far the layer has been reaped; what the step frees
//! follows from the state, live and in recovery alike. Cost: the nodes that the layer does not
//! share with its child.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Slot};
use smallvec::SmallVec;

use super::background::Work;
use super::due::Purpose;
use super::error::DvolError;
use super::info::Handle;
use super::{Engine, Inner};
use crate::format::record::Record;
use crate::v2p::{Exclusive, Key, exclusive_count, reap_step};

/// How often and how long to wait for a neighbour's reaping to end.
const NEIGHBOUR_WAITS_MAX: usize = 500;
const NEIGHBOUR_PAUSE_NS: u64 = 10_000_000;

/// Entries freed per step, at most: bounds how long other work on the core waits.
const STEP_ENTRIES_MAX: usize = 1024;

impl<P: Platform> Engine<P> {
    /// Bytes of data that deleting a snapshot would free now: what it holds and nobody else does.
    /// Zero while several layers stand on it. Costs what a deletion would.
    pub async fn exclusive_bytes(&self, handle: Handle) -> Result<u64, DvolError> {
        let inner = &self.inner;
        inner.resolve(handle)?;
        inner.wait_for_neighbours(handle).await?;
        let mut count = Exclusive::default();
        let mut from = Key(0);
        loop {
            let _pass = inner.gate.enter();
            // Its slot may have been given to another one meanwhile.
            inner.resolve(handle)?;
            let missing = {
                let state = inner.state.borrow();
                let Some(found) = state.slot(handle.slot) else {
                    return Err(DvolError::NotFound);
                };
                if found.children.len() > 1 {
                    return Ok(0);
                }
                let child = found
                    .children
                    .first()
                    .and_then(|&c| state.slot(c))
                    .map(|c| &c.map);
                let parent = state.parent_layer(handle.slot);
                match exclusive_count(
                    &found.map,
                    child,
                    parent,
                    from,
                    STEP_ENTRIES_MAX,
                    &mut count,
                ) {
                    Ok(None) => return Ok(count.data_blocks * BLOCK_SIZE),
                    Ok(Some(next)) => {
                        from = next;
                        None
                    }
                    Err(missing) => Some(missing),
                }
            };
            match missing {
                Some(missing) => inner.load_node(&missing).await?,
                None => inner.platform.yield_now().await,
            }
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Task: reaps hidden layers one after the other.
    pub(super) async fn run_reaper(self: Rc<Self>) {
        loop {
            let signal = self.signals.reap.wait();
            if self.shared.is_fenced() || self.stopping.get() {
                // Whoever waits for the reaper must not wait for ever.
                self.signals.applied.notify();
                return;
            }
            let next = self.state.borrow().reapable();
            let Some(slot) = next else {
                signal.await;
                continue;
            };
            match self.reap_once(slot).await {
                Ok(()) => {
                    self.reaping_failed.set(None);
                    self.platform.yield_now().await;
                }
                Err(DvolError::Fenced | DvolError::Stopping) => continue,
                Err(error) => {
                    tracing::error!(
                        slot = slot.0,
                        "a deleted layer can't be freed: {error}; its space stays in use; run \
                         `flagstone verify`"
                    );
                    self.reaping_failed.set(Some(error));
                    self.signals.applied.notify();
                    signal.await;
                }
            }
        }
    }

    /// Waits until no layer next to this one is being reaped: what the reaper has passed of its map
    /// is gone.
    async fn wait_for_neighbours(&self, handle: Handle) -> Result<(), DvolError> {
        for _ in 0..NEIGHBOUR_WAITS_MAX {
            let busy = {
                let state = self.state.borrow();
                let reaped = |slot: Slot| {
                    state
                        .slot(slot)
                        .is_some_and(|s| s.is_hidden() && s.record.reap_cursor > Key(0))
                };
                let found = state.slot(handle.slot).ok_or(DvolError::NotFound)?;
                found.record.parent.is_some_and(reaped)
                    || found.children.iter().any(|&child| reaped(child))
            };
            if !busy {
                return Ok(());
            }
            self.platform.sleep_ns(NEIGHBOUR_PAUSE_NS).await;
        }
        Err(DvolError::Busy)
    }

    /// One step of reaping.
    async fn reap_once(self: &Rc<Self>, slot: Slot) -> Result<(), DvolError> {
        // One read to begin with: what it loads is charged when it is known.
        let mut turn = self.background_turn(Work::reads(1)).await;
        let loads = Cell::new(0);
        let result = self.reap_a_step(slot, &loads).await;
        turn.used(Work::reads(loads.get()));
        result
    }

    async fn reap_a_step(self: &Rc<Self>, slot: Slot, loads: &Cell<u64>) -> Result<(), DvolError> {
        self.settle_before_reaping(slot).await?;
        self.clear_way(slot, 2, Purpose::Giving).await?;
        let to = self.next_reap_cursor(slot, loads).await?;
        // The step itself must find everything it needs in memory.
        let record = Record::Reap { slot, to };
        loop {
            let _pass = self.gate.enter();
            let missing = self.state.borrow().missing(&record);
            let Some(missing) = missing else { break };
            loads.set(loads.get() + 1);
            self.load_node(&missing).await?;
        }
        self.check_running()?;
        let child = self
            .state
            .borrow()
            .slot(slot)
            .and_then(|s| s.children.first().copied());
        let mut slots = SmallVec::from_slice(&[slot]);
        // The child's changes at the same keys must not overtake the step.
        slots.extend(child);
        let mut records = SmallVec::new();
        records.push(record);
        let submitted = self.submit(records, slots, false, SmallVec::new())?;
        submitted.answer.await.unwrap_or(Err(DvolError::Fenced))
    }

    /// Waits until everything that was ever written to a layer is on stable media and the next
    /// group says so. What reaping frees may be reused; recovery must not take the old content of
    /// such a block for a write that never finished.
    async fn settle_before_reaping(&self, slot: Slot) -> Result<(), DvolError> {
        let begun = self
            .state
            .borrow()
            .slot(slot)
            .is_some_and(|s| s.record.reap_cursor > Key(0));
        if begun && self.reaping_settled.get() == Some(slot) {
            return Ok(());
        }
        let last = self.journal.borrow().position().next_seq - 1;
        while self.journal.borrow().watermark() < last {
            self.check_running()?;
            self.flush_now().await?;
            if self.journal.borrow().watermark() < last {
                self.platform.sleep_ns(1_000_000).await;
            }
        }
        self.reaping_settled.set(Some(slot));
        Ok(())
    }

    async fn next_reap_cursor(&self, slot: Slot, loads: &Cell<u64>) -> Result<Key, DvolError> {
        let most = self.options.reap_step_entries;
        loop {
            let _pass = self.gate.enter();
            let missing = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot) else {
                    return Err(DvolError::NotFound);
                };
                let child = found
                    .children
                    .first()
                    .and_then(|&c| state.slot(c))
                    .map(|c| &c.map);
                let parent = state.parent_layer(slot);
                let from = found.record.reap_cursor;
                if from >= Key::END {
                    return Ok(Key::END);
                }
                match reap_step(&found.map, child, parent, from, Key::END, most) {
                    Ok(step) => return Ok(step.next.unwrap_or(Key::END)),
                    Err(missing) => missing,
                }
            };
            loads.set(loads.get() + 1);
            self.load_node(&missing).await?;
        }
    }

    /// Waits until every deleted layer is reaped; fails if one can't be.
    pub(super) async fn reaping_done(&self) -> Result<(), DvolError> {
        loop {
            let signal = self.signals.applied.wait();
            self.check_running()?;
            if self.state.borrow().reapable().is_none() {
                return Ok(());
            }
            if let Some(error) = self.reaping_failed.take() {
                return Err(error);
            }
            self.signals.reap.notify();
            signal.await;
        }
    }
}
