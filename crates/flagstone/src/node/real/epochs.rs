//! Who may change a volume: those of its epoch.
//!
//! Whoever opens a volume alone, or takes a failed writer's place, raises its epoch. From then on changes by those who
//! opened it before are refused, and none of theirs that was under way comes after that. The device layer keeps the
//! number; here stands who is at work with which one. [`docs/protocols/native.md`, `OPEN` and `SET_EPOCH`]

use std::cell::Cell;

use flagstone_platform::sync::{Budget, Signal};
use flagstone_types::Epoch;

/// A writer's epoch is over: nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stale;

/// The changes of one volume that are under way on its core.
pub(super) struct EpochGate {
    /// Below this one nobody may begin, also if the device doesn't know it yet.
    raised: Cell<Epoch>,
    under_way: Cell<u64>,
    /// The last one that was under way has ended.
    idle: Signal,
    /// One at a time raises it.
    raising: Budget,
}

impl Default for EpochGate {
    fn default() -> EpochGate {
        EpochGate {
            raised: Cell::new(Epoch(0)),
            under_way: Cell::new(0),
            idle: Signal::new(),
            raising: Budget::new(1),
        }
    }
}

/// A change that is under way. Over when it is dropped.
#[must_use = "the change is over when this is dropped"]
pub(super) struct Pass<'a> {
    gate: &'a EpochGate,
}

impl EpochGate {
    /// A change by a writer of epoch `mine` begins; `stored` is the epoch that the device has.
    pub(super) fn enter(&self, mine: Epoch, stored: Epoch) -> Result<Pass<'_>, Stale> {
        if mine < stored.max(self.raised.get()) {
            return Err(Stale);
        }
        self.under_way.set(self.under_way.get() + 1);
        Ok(Pass { gate: self })
    }

    /// Raises the epoch to `wanted`, or to the one behind `stored`. Once nobody is at work with an older one, `store`
    /// puts it on the device. If that fails it is as it was.
    pub(super) async fn raise<E, F: Future<Output = Result<(), E>>>(
        &self,
        wanted: Option<Epoch>,
        stored: impl Fn() -> Result<Epoch, E>,
        store: impl FnOnce(Epoch) -> F,
    ) -> Result<Raised, E> {
        let _turn = self.raising.take(1).await;
        let before = stored()?;
        let epoch = match wanted {
            None if before >= Epoch::MAX => return Ok(Raised::Impossible),
            None => Epoch(before.0 + 1),
            Some(epoch) if epoch > Epoch::MAX => return Ok(Raised::Impossible),
            Some(epoch) if epoch < before => return Ok(Raised::Stale),
            Some(epoch) => epoch,
        };
        self.raised.set(epoch);
        // Also if whoever asked gives up.
        let _undo = Undo {
            gate: self,
            to: before,
        };
        if epoch > before {
            while self.under_way.get() > 0 {
                self.idle.wait().await;
            }
            store(epoch).await?;
        }
        Ok(Raised::To(epoch))
    }
}

/// What came of raising an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Raised {
    /// It is this now.
    To(Epoch),
    /// It is higher than that already.
    Stale,
    /// There is no higher one.
    Impossible,
}

/// What the device has counts again.
struct Undo<'a> {
    gate: &'a EpochGate,
    to: Epoch,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.gate.raised.set(self.to);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let left = self.gate.under_way.get() - 1;
        self.gate.under_way.set(left);
        if left == 0 {
            self.gate.idle.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(work: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        work.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn nobody_of_an_older_epoch_begins_and_who_has_begun_is_waited_for() {
        let gate = EpochGate::default();
        let stored = Rc::new(Cell::new(Epoch(4)));
        let steps = RefCell::new(Vec::new());
        let first = gate.enter(Epoch(4), stored.get()).expect("is its epoch");
        let second = gate.enter(Epoch(5), stored.get()).expect("is above it");
        assert!(gate.enter(Epoch(3), stored.get()).is_err());
        let raising = gate.raise(
            None,
            || Ok::<_, ()>(stored.get()),
            async |epoch| {
                steps.borrow_mut().push("stored");
                stored.set(epoch);
                Ok(())
            },
        );
        let mut raising = pin!(raising);
        assert!(poll(raising.as_mut()).is_pending());
        assert!(
            gate.enter(Epoch(4), stored.get()).is_err(),
            "the device has the old one still"
        );
        drop(first);
        assert!(poll(raising.as_mut()).is_pending());
        assert!(steps.borrow().is_empty());
        drop(second);
        assert_eq!(
            poll(raising.as_mut()),
            Poll::Ready(Ok(Raised::To(Epoch(5))))
        );
        assert!(gate.enter(Epoch(4), stored.get()).is_err());
        assert!(gate.enter(Epoch(5), stored.get()).is_ok());
    }

    #[test]
    fn what_can_not_be_stored_locks_nobody_out() {
        let gate = EpochGate::default();
        let mut failing = pin!(gate.raise(
            Some(Epoch(9)),
            || Ok(Epoch(1)),
            async |_| Err("the device failed")
        ));
        assert_eq!(
            poll(failing.as_mut()),
            Poll::Ready(Err("the device failed"))
        );
        assert!(gate.enter(Epoch(1), Epoch(1)).is_ok());
        // Nor does whoever gives up.
        let under_way = gate.enter(Epoch(1), Epoch(1)).expect("may");
        {
            let mut given_up =
                pin!(gate.raise(Some(Epoch(9)), || Ok::<_, ()>(Epoch(1)), async |_| Ok(())));
            assert!(poll(given_up.as_mut()).is_pending());
            assert!(gate.enter(Epoch(1), Epoch(1)).is_err());
        }
        drop(under_way);
        assert!(gate.enter(Epoch(1), Epoch(1)).is_ok());
    }

    #[test]
    fn an_epoch_is_never_lowered() {
        let gate = EpochGate::default();
        let raise = |wanted, stored| {
            let raising = gate.raise(wanted, move || Ok::<_, ()>(stored), async |_| Ok(()));
            poll(pin!(raising))
        };
        let done = |raised| Poll::Ready(Ok(raised));
        assert_eq!(raise(Some(Epoch(3)), Epoch(4)), done(Raised::Stale));
        assert_eq!(raise(Some(Epoch(4)), Epoch(4)), done(Raised::To(Epoch(4))));
        assert_eq!(raise(None, Epoch::MAX), done(Raised::Impossible));
        let above = Epoch(Epoch::MAX.0 + 1);
        assert_eq!(raise(Some(above), Epoch(4)), done(Raised::Impossible));
    }
}
