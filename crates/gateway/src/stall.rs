//! Noticing that a connection has stopped in the middle of a message.
//!
//! Whoever moves bytes steps a [`Progress`] for each piece; a watch looks at it now and then. So the data
//! path pays one number and reads no clock.

use std::cell::Cell;

/// How often the watch looks within the stall limit.
pub(crate) const STALL_TICKS: u32 = 4;

/// What the watch sees of one direction of a connection.
#[derive(Default)]
pub(crate) struct Progress {
    /// In the middle of a message.
    pub(crate) busy: Cell<bool>,
    /// Grows with each piece that got through.
    pub(crate) steps: Cell<u64>,
}

impl Progress {
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
    }
}

/// One direction as the watch remembers it.
#[derive(Default)]
pub(crate) struct Stall {
    steps: u64,
    ticks: u32,
}

impl Stall {
    /// True if nothing has moved for too long.
    pub(crate) fn look(&mut self, progress: &Progress) -> bool {
        let steps = progress.steps.get();
        if !progress.busy.get() || steps != self.steps {
            self.steps = steps;
            self.ticks = 0;
            return false;
        }
        self.ticks += 1;
        self.ticks >= STALL_TICKS
    }
}
