//! Who may change a dvol just now: everybody, nobody for a moment, or nobody any more because it is elsewhere.
//!
//! A change that isn't held costs two counts; nothing is allocated and no clock is read.

use std::cell::Cell;

use flagstone_platform::sync::Signal;

/// The dvol is somewhere else: nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Held,
    Gone,
}

/// The changes of one dvol.
pub struct Gate {
    state: Cell<State>,
    under_way: Cell<u64>,
    /// The state is another one, or nothing is under way any more.
    changed: Signal,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            state: Cell::new(State::Open),
            under_way: Cell::new(0),
            changed: Signal::new(),
        }
    }
}

/// A change that is under way. Over when it is dropped.
#[must_use = "the change is over when this is dropped"]
pub struct Entered<'a> {
    gate: &'a Gate,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let left = self.gate.under_way.get() - 1;
        self.gate.under_way.set(left);
        if left == 0 {
            self.gate.changed.notify();
        }
    }
}

impl Gate {
    /// A change begins, once none is held.
    pub async fn enter(&self) -> Result<Entered<'_>, Gone> {
        while self.state.get() == State::Held {
            self.changed.wait().await;
        }
        match self.state.get() {
            State::Gone => Err(Gone),
            State::Open | State::Held => {
                self.under_way.set(self.under_way.get() + 1);
                Ok(Entered { gate: self })
            }
        }
    }

    /// Lets no change begin, and waits for those that are under way. Until [`Gate::release`] or [`Gate::leave`].
    pub async fn hold(&self) {
        self.state.set(State::Held);
        while self.under_way.get() > 0 {
            self.changed.wait().await;
        }
    }

    /// Lets those go on that waited.
    pub fn release(&self) {
        self.set(State::Open);
    }

    /// The dvol is elsewhere from now on.
    pub fn leave(&self) {
        self.set(State::Gone);
    }

    /// Whether it is elsewhere.
    pub fn is_gone(&self) -> bool {
        self.state.get() == State::Gone
    }

    fn set(&self, state: State) {
        self.state.set(state);
        self.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(work: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        work.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_hold_waits_for_what_is_under_way_and_nothing_begins_meanwhile() {
        let gate = Gate::default();
        let Poll::Ready(Ok(first)) = poll(pin!(gate.enter())) else {
            panic!("is open");
        };
        let mut holding = pin!(gate.hold());
        assert!(poll(holding.as_mut()).is_pending());
        let mut second = pin!(gate.enter());
        assert!(poll(second.as_mut()).is_pending());
        drop(first);
        assert!(poll(holding.as_mut()).is_ready());
        assert!(poll(second.as_mut()).is_pending());
        gate.release();
        assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(_))));
    }

    #[test]
    fn what_was_held_learns_that_it_is_elsewhere() {
        let gate = Gate::default();
        assert!(poll(pin!(gate.hold())).is_ready());
        let mut waiting = pin!(gate.enter());
        assert!(poll(waiting.as_mut()).is_pending());
        gate.leave();
        assert!(matches!(poll(waiting.as_mut()), Poll::Ready(Err(Gone))));
        assert!(matches!(poll(pin!(gate.enter())), Poll::Ready(Err(Gone))));
        assert!(gate.is_gone());
    }
}
