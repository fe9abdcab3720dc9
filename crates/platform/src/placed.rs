//! Large futures in memory that is used again.
//!
//! A future that is seldom needed, or large, is not to lie within the one that awaits it: that would be as large each time. In a box of its
//! own it takes memory from the allocator each time. Placed in a pool, it takes what one before it has left.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Memory of futures that have ended, at most.
const FREE_MAX: usize = 64;

/// Memory for the futures of one `async fn`.
#[derive(Default)]
pub struct FuturePool {
    /// A `Free<F>`, once the first one has come: the type has no name.
    free: RefCell<Option<Box<dyn Any>>>,
}

type Free<F> = Vec<Pin<Box<Option<F>>>>;

/// A future in a pool's memory, which goes back when this is dropped.
pub struct Placed<F: Future + 'static> {
    /// `Some` until drop, and so is the future in it.
    place: Option<Pin<Box<Option<F>>>>,
    pool: Rc<FuturePool>,
}

impl FuturePool {
    /// Puts a future where it stays until its handle is dropped.
    ///
    /// # Panics
    ///
    /// If the futures before it were of another type.
    pub fn place<F: Future + 'static>(self: &Rc<Self>, future: F) -> Placed<F> {
        let free = self.free.borrow_mut().as_mut().and_then(|free| {
            let free = free.downcast_mut::<Free<F>>();
            free.expect("the futures of a pool are of one type").pop()
        });
        let place = match free {
            Some(mut place) => {
                place.set(Some(future));
                place
            }
            None => Box::pin(Some(future)),
        };
        Placed {
            place: Some(place),
            pool: self.clone(),
        }
    }

    fn keep<F: Future + 'static>(&self, place: Pin<Box<Option<F>>>) {
        let mut free = self.free.borrow_mut();
        let free = free.get_or_insert_with(|| Box::new(Free::<F>::new()));
        if let Some(free) = free.downcast_mut::<Free<F>>()
            && free.len() < FREE_MAX
        {
            free.push(place);
        }
    }
}

impl<F: Future + 'static> Future for Placed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let place = self.place.as_mut().expect("present until drop");
        let future = place.as_mut().as_pin_mut();
        future.expect("present until drop").poll(cx)
    }
}

impl<F: Future + 'static> Drop for Placed<F> {
    fn drop(&mut self) {
        if let Some(mut place) = self.place.take() {
            // It may place another one meanwhile: the pool is not borrowed.
            place.set(None);
            self.pool.keep(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    fn free_places<F: Future + 'static>(pool: &FuturePool, _like: &Placed<F>) -> usize {
        let free = pool.free.borrow();
        let free = free
            .as_ref()
            .and_then(|free| free.downcast_ref::<Free<F>>());
        free.map_or(0, Vec::len)
    }

    async fn held(value: Rc<u64>) -> u64 {
        let passed = std::cell::Cell::new(false);
        std::future::poll_fn(|_| match passed.replace(true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        *value
    }

    #[test]
    fn memory_is_used_again_and_what_is_in_a_future_goes_with_it() {
        let pool = Rc::new(FuturePool::default());
        let value = Rc::new(7);
        let mut cx = Context::from_waker(Waker::noop());
        let first_at = {
            let mut first = pin!(pool.place(held(value.clone())));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(7));
            let place = first.place.as_ref().expect("present until drop");
            std::ptr::from_ref(place.as_ref().get_ref()).cast::<u8>()
        };
        assert_eq!(Rc::strong_count(&value), 1, "its own is gone");
        let second = pool.place(held(value.clone()));
        let place = second.place.as_ref().expect("present until drop");
        let second_at = std::ptr::from_ref(place.as_ref().get_ref()).cast::<u8>();
        assert_eq!(first_at, second_at);
        assert_eq!(free_places(&pool, &second), 0);
        // One that nobody waits for to the end.
        drop(second);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_pool_keeps_up_to_its_bound_and_lives_as_long_as_its_futures() {
        let pool = Rc::new(FuturePool::default());
        let value = Rc::new(7);
        let place = || pool.place(held(value.clone()));
        let last = place();
        let many: Vec<_> = (0..FREE_MAX + 9).map(|_| place()).collect();
        drop(many);
        assert_eq!(free_places(&pool, &last), FREE_MAX);
        let alive = Rc::downgrade(&pool);
        drop(pool);
        assert!(alive.upgrade().is_some());
        drop(last);
        assert!(alive.upgrade().is_none());
    }
}
