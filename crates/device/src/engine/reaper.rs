//! Reaping: freeing what only a deleted layer needed, in the background.
//!
//! Each step is one journal record that says how far the layer has been reaped; what the step frees
//! follows from the state, live and in recovery alike. Cost: the nodes that the layer does not
//! share with its child.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::Slot;
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use crate::format::record::Record;
use crate::v2p::{Key, reap_step};

/// Entries freed per step, at most: bounds how long other work on the core waits.
const STEP_ENTRIES_MAX: usize = 1024;

impl<P: Platform> Inner<P> {
    /// Task: reaps hidden layers one after the other.
    pub(super) async fn run_reaper(self: Rc<Self>) {
        loop {
            let signal = self.signals.reap.wait();
            if self.shared.is_fenced() || self.stopping.get() {
                return;
            }
            let next = self.state.borrow().reapable();
            let Some(slot) = next else {
                signal.await;
                continue;
            };
            match self.reap_once(slot).await {
                Ok(()) => self.platform.yield_now().await,
                Err(DvolError::Fenced | DvolError::Stopping) => return,
                Err(error) => {
                    tracing::error!(
                        slot = slot.0,
                        "a deleted layer can't be freed: {error}; its space stays in use; run \
                         `flagstone verify`"
                    );
                    signal.await;
                }
            }
        }
    }

    /// One step of reaping.
    async fn reap_once(self: &Rc<Self>, slot: Slot) -> Result<(), DvolError> {
        let to = self.next_reap_cursor(slot).await?;
        // The step itself must find everything it needs in memory.
        let record = Record::Reap { slot, to };
        loop {
            let _pass = self.gate.enter();
            let missing = self.state.borrow().missing(&record);
            let Some(missing) = missing else { break };
            self.load_node(&missing).await?;
        }
        self.check_running()?;
        let child = self.state.borrow().slot(slot).and_then(|s| s.children.first().copied());
        let mut slots = SmallVec::from_slice(&[slot]);
        // The child's changes at the same keys must not overtake the step.
        slots.extend(child);
        let mut records = SmallVec::new();
        records.push(record);
        let submitted = self.submit(records, slots, false, Vec::new())?;
        submitted.answer.await.unwrap_or(Err(DvolError::Fenced))
    }

    async fn next_reap_cursor(&self, slot: Slot) -> Result<Key, DvolError> {
        loop {
            let _pass = self.gate.enter();
            let missing = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot) else { return Err(DvolError::NotFound) };
                let child = found.children.first().and_then(|&c| state.slot(c)).map(|c| &c.map);
                let parent = state.parent_layer(slot);
                let from = found.record.reap_cursor;
                match reap_step(&found.map, child, parent, from, Key::END, STEP_ENTRIES_MAX) {
                    Ok(step) => return Ok(step.next.unwrap_or(Key::END)),
                    Err(missing) => missing,
                }
            };
            self.load_node(&missing).await?;
        }
    }

    /// Waits until every deleted layer is reaped, or nothing moves any more.
    pub(super) async fn reaping_done(&self) -> Result<(), DvolError> {
        loop {
            let signal = self.signals.applied.wait();
            self.check_running()?;
            if self.state.borrow().reapable().is_none() {
                return Ok(());
            }
            self.signals.reap.notify();
            signal.await;
        }
    }
}
