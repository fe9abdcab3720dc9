//! Gives others their turn on the core while everything is looked at: nothing that is done for each of many
//! things is one step, not even letting go of what was noted of them.

use std::cell::Cell;

use flagstone_platform::Platform;

/// Things looked at in one step: some tens of microseconds.
const AT_ONCE: usize = 64;

/// Counts what is looked at.
pub(crate) struct Pace<P: Platform> {
    platform: P,
    left: Cell<usize>,
}

impl<P: Platform> Pace<P> {
    pub(crate) fn new(platform: P) -> Pace<P> {
        Pace {
            platform,
            left: Cell::new(AT_ONCE),
        }
    }

    /// Another thing was looked at.
    pub(crate) async fn step(&self) {
        self.steps(1).await;
    }

    /// Some more were, no more than are at once.
    pub(crate) async fn steps(&self, count: usize) {
        let left = self.left.get().saturating_sub(count);
        self.left.set(left);
        if left == 0 {
            self.left.set(AT_ONCE);
            self.platform.yield_now().await;
        }
    }

    /// Lets go of many things.
    pub(crate) async fn let_go<T>(&self, things: impl IntoIterator<Item = T>) {
        for thing in things {
            drop(thing);
            self.step().await;
        }
    }
}
