//! Shared values whose memory is used again: a [`Pooled`] is an [`Rc`] that goes back to its pool.
//!
//! When the last handle of a value goes away the value is dropped, as in an `Rc`, and the memory waits in the pool
//! for the next one. So values that come and go with each request take nothing from the allocator once there
//! have been as many at a time. A pool keeps up to a bound; what comes back beyond it is freed.
//!
//! Memory in a pool doesn't know the pool, and a value that is in use does: both go when their last holder does.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// Memory for values of one kind, of one core. A cheap handle.
pub struct Pool<T> {
    state: Rc<PoolState<T>>,
}

struct PoolState<T> {
    free: RefCell<Vec<Rc<Place<T>>>>,
    free_max: usize,
}

/// A value in use has both, memory that is free has neither.
struct Place<T> {
    value: Option<T>,
    pool: Option<Rc<PoolState<T>>>,
}

/// A handle on a value that others may share, and that only cells change.
pub struct Pooled<T> {
    /// `Some` until drop.
    place: Option<Rc<Place<T>>>,
}

impl<T> Pool<T> {
    /// An empty one, which keeps the memory of up to `free_max` values that nobody holds.
    pub fn new(free_max: usize) -> Pool<T> {
        let free = RefCell::default();
        Pool {
            state: Rc::new(PoolState { free, free_max }),
        }
    }

    /// Puts a value where it can be shared.
    pub fn share(&self, value: T) -> Pooled<T> {
        let pool = Some(self.state.clone());
        let value = Some(value);
        let free = self.state.free.borrow_mut().pop();
        let place = match free {
            Some(mut place) => {
                let empty = Rc::get_mut(&mut place).expect("nobody holds what is free");
                *empty = Place { value, pool };
                place
            }
            None => Rc::new(Place { value, pool }),
        };
        Pooled { place: Some(place) }
    }
}

impl<T> Pooled<T> {
    /// A value of no pool: its memory is freed.
    pub fn alone(value: T) -> Pooled<T> {
        let (value, pool) = (Some(value), None);
        Pooled {
            place: Some(Rc::new(Place { value, pool })),
        }
    }

    fn place(&self) -> &Rc<Place<T>> {
        self.place.as_ref().expect("present until drop")
    }

    /// True if both are handles of the same value.
    pub fn is_same(&self, other: &Pooled<T>) -> bool {
        Rc::ptr_eq(self.place(), other.place())
    }
}

impl<T> Clone for Pooled<T> {
    fn clone(&self) -> Pooled<T> {
        Pooled {
            place: self.place.clone(),
        }
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let value = self.place().value.as_ref();
        value.expect("present until the last handle is dropped")
    }
}

impl<T: fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        let Some(mut place) = self.place.take() else {
            return;
        };
        let Some(last) = Rc::get_mut(&mut place) else {
            return;
        };
        let pool = last.pool.take();
        // It may hold values of the same pool, and so it goes while the pool is not borrowed.
        drop(last.value.take());
        if let Some(pool) = pool {
            let mut free = pool.free.borrow_mut();
            if free.len() < pool.free_max {
                free.push(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a value lies.
    fn at<T>(value: &Pooled<T>) -> *const T {
        &raw const **value
    }

    #[test]
    fn memory_is_used_again_once_nobody_holds_the_value() {
        let pool = Pool::new(8);
        let first = pool.share(1);
        let first_at = at(&first);
        let second = first.clone();
        assert!(first.is_same(&second));
        drop(first);
        let other = pool.share(2);
        assert_ne!(at(&other), first_at, "somebody holds the first");
        assert!(!other.is_same(&second));
        assert_eq!((*second, *other), (1, 2));
        drop(second);
        let third = pool.share(3);
        assert_eq!((at(&third), *third), (first_at, 3));
    }

    #[test]
    fn values_are_dropped_when_they_go_and_not_when_the_memory_does() {
        let pool = Pool::new(8);
        let value = Rc::new(());
        let holds = [pool.share(value.clone()), Pooled::alone(value.clone())];
        assert_eq!(Rc::strong_count(&value), 3);
        drop(holds);
        assert_eq!(Rc::strong_count(&value), 1);
        assert_eq!(pool.state.free.borrow().len(), 1, "that of no pool is gone");
    }

    #[test]
    fn a_pool_keeps_up_to_its_bound() {
        let pool = Pool::new(3);
        let many: Vec<_> = (0..9).map(|value| pool.share(value)).collect();
        drop(many);
        assert_eq!(pool.state.free.borrow().len(), 3);
    }

    #[test]
    fn a_value_may_hold_others_of_its_pool_and_outlive_it() {
        struct Link(Option<Pooled<Link>>);
        let pool = Pool::new(8);
        let inner = pool.share(Link(None));
        let outer = pool.share(Link(Some(inner)));
        let state = Rc::downgrade(&pool.state);
        drop(pool);
        assert!(outer.0.is_some());
        drop(outer);
        assert!(
            state.upgrade().is_none(),
            "the pool is gone with its last value"
        );
    }
}
