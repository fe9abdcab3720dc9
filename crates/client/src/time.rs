//! Waiting for something, but not for ever.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::{Platform, Time};

/// What `future` gives, or `None` if that takes until `deadline`. What is ready counts even then.
pub(crate) async fn until<P: Platform, F: Future>(
    platform: &P,
    deadline: Time,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut sleep = pin!(platform.sleep_until(deadline));
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// The first of two futures that is ready; the first one if both are.
pub(crate) async fn either<A: Future, B: Future>(a: A, b: B) -> Option<A::Output> {
    let mut a = pin!(a);
    let mut b = pin!(b);
    poll_fn(|context| {
        if let Poll::Ready(value) = a.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        b.as_mut().poll(context).map(|_| None)
    })
    .await
}
