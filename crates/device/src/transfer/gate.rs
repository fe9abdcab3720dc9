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

    /// A change of several dvols begins, once none of them is held. It begins in all at once: two that wait for one
    /// another's dvols while somebody holds those would wait for ever.
    pub async fn enter_all<'a>(gates: &[&'a Gate]) -> Result<Vec<Entered<'a>>, Gone> {
        loop {
            if gates.iter().any(|gate| gate.is_gone()) {
                return Err(Gone);
            }
            let Some(held) = gates.iter().find(|gate| gate.state.get() == State::Held) else {
                break;
            };
            held.changed.wait().await;
        }
        let entered = gates.iter().map(|gate| {
            gate.under_way.set(gate.under_way.get() + 1);
            Entered { gate }
        });
        Ok(entered.collect())
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
    fn changes_of_several_begin_in_all_or_in_none() {
        let (one, other) = (Gate::default(), Gate::default());
        assert!(poll(pin!(other.hold())).is_ready());
        let mut both = pin!(Gate::enter_all(&[&one, &other, &one]));
        assert!(poll(both.as_mut()).is_pending());
        assert!(
            poll(pin!(one.hold())).is_ready(),
            "nothing is under way in it"
        );
        other.release();
        assert!(poll(both.as_mut()).is_pending());
        one.release();
        let Poll::Ready(Ok(entered)) = poll(both.as_mut()) else {
            panic!("both are open");
        };
        assert!(poll(pin!(one.hold())).is_pending());
        drop(entered);
        assert!(poll(pin!(one.hold())).is_ready());
        other.leave();
        assert!(matches!(
            poll(pin!(Gate::enter_all(&[&other]))),
            Poll::Ready(Err(Gone))
        ));
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
