//! Waiting between tasks of one core: no locks, no atomics, first come first served.
//!
//! These are plain futures, so they work on the real and on the simulated platform alike.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::pool::{Pool, Pooled};

/// A value that arrives once.
pub struct Promise<T> {
    state: Pooled<PromiseState<T>>,
}

/// Waits for a [`Promise`]. Yields `None` if the promise was dropped unfulfilled.
pub struct Awaited<T> {
    state: Pooled<PromiseState<T>>,
}

struct PromiseState<T> {
    value: Cell<Option<T>>,
    waker: Cell<Option<Waker>>,
    dropped: Cell<bool>,
}

impl<T> Default for PromiseState<T> {
    fn default() -> PromiseState<T> {
        PromiseState {
            value: Cell::new(None),
            waker: Cell::new(None),
            dropped: Cell::new(false),
        }
    }
}

/// A promise and the future that waits for it.
pub fn promise<T>() -> (Promise<T>, Awaited<T>) {
    both(Pooled::alone(PromiseState::default()))
}

fn both<T>(state: Pooled<PromiseState<T>>) -> (Promise<T>, Awaited<T>) {
    (
        Promise {
            state: state.clone(),
        },
        Awaited { state },
    )
}

/// Makes promises where each request has one: the memory of those that are over is used again.
pub struct Promises<T> {
    pool: Pool<PromiseState<T>>,
}

impl<T> Promises<T> {
    /// Keeps the memory of up to `free_max` promises that are over.
    pub fn new(free_max: usize) -> Promises<T> {
        Promises {
            pool: Pool::new(free_max),
        }
    }

    /// A promise and the future that waits for it.
    pub fn promise(&self) -> (Promise<T>, Awaited<T>) {
        both(self.pool.share(PromiseState::default()))
    }
}

impl<T> Promise<T> {
    /// Hands the value over and wakes whoever waits.
    pub fn fulfil(self, value: T) {
        self.state.value.set(Some(value));
        // Drop does the waking.
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.state.dropped.set(true);
        if let Some(waker) = self.state.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Awaited<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.state.value.take() {
            return Poll::Ready(Some(value));
        }
        if self.state.dropped.get() {
            return Poll::Ready(None);
        }
        self.state.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Waiters that a signal keeps memory for while there are none.
const WAITING_KEPT: usize = 64;

/// Wakes tasks that wait for a condition. Waiters check the condition themselves, in a loop.
#[derive(Default)]
pub struct Signal {
    waiting: RefCell<Vec<Waker>>,
    generation: Cell<u64>,
}

impl Signal {
    /// A signal nobody waits for.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Wakes everyone who waits now.
    pub fn notify(&self) {
        self.generation.set(self.generation.get() + 1);
        let mut waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting.drain(..) {
            waker.wake();
        }
        // Most signals are given and waited for again and again: their memory stays, but that of a crowd.
        let mut anew = self.waiting.borrow_mut();
        if anew.is_empty() && waiting.capacity() <= WAITING_KEPT {
            *anew = waiting;
        }
    }

    /// Completes at the next `notify` after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.generation.get();
        std::future::poll_fn(move |cx| {
            if self.generation.get() != seen {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// A budget: takes are granted in the order they were asked for.
pub struct Budget {
    state: Rc<BudgetState>,
}

struct BudgetState {
    free: Cell<u64>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    amount: u64,
    granted: Cell<bool>,
    gone: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

/// A share of a [`Budget`], given back when dropped.
pub struct Share {
    state: Rc<BudgetState>,
    amount: u64,
}

impl Budget {
    /// A budget of `total` units.
    pub fn new(total: u64) -> Budget {
        let state = BudgetState {
            free: Cell::new(total),
            queue: RefCell::default(),
        };
        Budget {
            state: Rc::new(state),
        }
    }

    /// Units free at the moment.
    pub fn free(&self) -> u64 {
        self.state.free.get()
    }

    /// Whether somebody waits.
    pub fn has_waiting(&self) -> bool {
        !self.state.queue.borrow().is_empty()
    }

    /// Takes `amount` units now if nobody waits and they are there.
    pub fn try_take(&self, amount: u64) -> Option<Share> {
        if !self.state.queue.borrow().is_empty() || self.state.free.get() < amount {
            return None;
        }
        self.state.free.set(self.state.free.get() - amount);
        Some(Share {
            state: self.state.clone(),
            amount,
        })
    }

    /// Waits for `amount` units. The amount must not exceed the total, or this never completes.
    pub async fn take(&self, amount: u64) -> Share {
        if let Some(share) = self.try_take(amount) {
            return share;
        }
        let waiter = Rc::new(Waiter {
            amount,
            granted: Cell::new(false),
            gone: Cell::new(false),
            waker: Cell::new(None),
        });
        self.state.queue.borrow_mut().push_back(waiter.clone());
        let mut guard = WaiterGuard {
            waiter,
            state: self.state.clone(),
            armed: true,
        };
        std::future::poll_fn(|cx| {
            if guard.waiter.granted.get() {
                return Poll::Ready(());
            }
            guard.waiter.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
        guard.armed = false;
        Share {
            state: self.state.clone(),
            amount,
        }
    }
}

/// Gives a grant back if the future that waited for it is dropped.
struct WaiterGuard {
    waiter: Rc<Waiter>,
    state: Rc<BudgetState>,
    armed: bool,
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.waiter.gone.set(true);
        if self.waiter.granted.get() {
            self.state
                .free
                .set(self.state.free.get() + self.waiter.amount);
        }
        self.state.grant();
    }
}

impl BudgetState {
    fn grant(&self) {
        let mut queue = self.queue.borrow_mut();
        while let Some(first) = queue.front() {
            if first.gone.get() {
                queue.pop_front();
                continue;
            }
            if first.amount > self.free.get() {
                return;
            }
            self.free.set(self.free.get() - first.amount);
            first.granted.set(true);
            if let Some(waker) = first.waker.take() {
                waker.wake();
            }
            queue.pop_front();
        }
    }
}

impl Share {
    /// Units this share holds.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.state.free.set(self.state.free.get() + self.amount);
        self.state.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn promise_arrives_or_is_dropped() {
        let (promise_a, awaited_a) = promise::<u32>();
        let mut awaited_a = Box::pin(awaited_a);
        assert!(poll_once(awaited_a.as_mut()).is_pending());
        promise_a.fulfil(5);
        assert_eq!(poll_once(awaited_a.as_mut()), Poll::Ready(Some(5)));
        let (promise_b, awaited_b) = promise::<u32>();
        drop(promise_b);
        assert_eq!(poll_once(Box::pin(awaited_b).as_mut()), Poll::Ready(None));
    }

    #[test]
    fn a_promise_in_used_memory_is_a_new_one() {
        let promises = Promises::new(1);
        for round in 0..3 {
            let (promise, awaited) = promises.promise();
            let mut awaited = Box::pin(awaited);
            assert!(poll_once(awaited.as_mut()).is_pending(), "{round}");
            if round < 2 {
                promise.fulfil(round);
                assert_eq!(poll_once(awaited.as_mut()), Poll::Ready(Some(round)));
            } else {
                drop(promise);
                assert_eq!(poll_once(awaited.as_mut()), Poll::Ready(None));
            }
        }
    }

    #[test]
    fn budget_is_first_come_first_served() {
        let budget = Budget::new(10);
        let held = budget.try_take(8).expect("free");
        let mut large = Box::pin(budget.take(5));
        let mut small = Box::pin(budget.take(1));
        assert!(poll_once(large.as_mut()).is_pending());
        assert!(poll_once(small.as_mut()).is_pending(), "no overtaking");
        drop(held);
        let Poll::Ready(large_share) = poll_once(large.as_mut()) else {
            panic!("granted")
        };
        let Poll::Ready(small_share) = poll_once(small.as_mut()) else {
            panic!("granted")
        };
        assert_eq!(budget.free(), 4);
        drop((large_share, small_share));
        assert_eq!(budget.free(), 10);
    }

    #[test]
    fn a_dropped_waiter_gives_its_grant_back() {
        let budget = Budget::new(4);
        let held = budget.try_take(4).expect("free");
        let mut first = Box::pin(budget.take(4));
        let mut second = Box::pin(budget.take(2));
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        drop(held);
        drop(first);
        assert!(poll_once(second.as_mut()).is_ready());
    }

    #[test]
    fn signal_wakes_only_later_waits() {
        let signal = Signal::new();
        signal.notify();
        let mut wait = Box::pin(signal.wait());
        assert!(poll_once(wait.as_mut()).is_pending());
        signal.notify();
        assert!(poll_once(wait.as_mut()).is_ready());
    }
}
