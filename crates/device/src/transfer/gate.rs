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
    /// A change begins, unless they are held just now.
    pub fn try_enter(&self) -> Result<Option<Entered<'_>>, Gone> {
        match self.state.get() {
            State::Gone => Err(Gone),
            State::Held => Ok(None),
            State::Open => {
                self.under_way.set(self.under_way.get() + 1);
                Ok(Some(Entered { gate: self }))
            }
        }
    }

    /// A change of several dvols begins, unless those of one of them are held just now. In all or in none: two that waited
    /// for one another's dvols while somebody holds those would wait for ever.
    pub fn try_enter_all<'a>(gates: &[&'a Gate]) -> Result<Option<Vec<Entered<'a>>>, Gone> {
        if gates.iter().any(|gate| gate.is_gone()) {
            return Err(Gone);
        }
        if gates.iter().any(|gate| gate.state.get() == State::Held) {
            return Ok(None);
        }
        let entered = gates.iter().map(|gate| gate.try_enter());
        entered
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A change begins, once they aren't held.
    pub async fn enter(&self) -> Result<Entered<'_>, Gone> {
        loop {
            if let Some(entered) = self.try_enter()? {
                return Ok(entered);
            }
            self.opened().await;
        }
    }

    /// Waits while changes are held. Whoever waits must not hold what the others need to come to an end.
    pub async fn opened(&self) {
        while self.state.get() == State::Held {
            self.changed.wait().await;
        }
    }

    /// Lets no change begin, and waits for those that are under way. Until [`Gate::release`] or [`Gate::leave`].
    pub async fn hold(&self) {
        self.state.set(State::Held);
        while self.under_way.get() > 0 {
            self.changed.wait().await;
        }
    }

    /// Lets no change begin, whatever is under way. Until [`Gate::release`] or [`Gate::leave`].
    pub fn shut(&self) {
        self.state.set(State::Held);
    }

    /// Whether none may begin just now.
    pub fn is_shut(&self) -> bool {
        self.state.get() == State::Held
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
        let both = [&one, &other, &one];
        assert!(matches!(Gate::try_enter_all(&both), Ok(None)));
        assert!(
            poll(pin!(one.hold())).is_ready(),
            "nothing is under way in it"
        );
        other.release();
        assert!(matches!(Gate::try_enter_all(&both), Ok(None)));
        one.release();
        let Ok(Some(entered)) = Gate::try_enter_all(&both) else {
            panic!("both are open");
        };
        assert!(poll(pin!(one.hold())).is_pending());
        drop(entered);
        assert!(poll(pin!(one.hold())).is_ready());
        other.leave();
        assert!(matches!(Gate::try_enter_all(&[&other]), Err(Gone)));
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
