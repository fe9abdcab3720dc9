//! Several futures at once, in the task that waits for them.
//!
//! Promises: all are begun in order when this is first polled; it ends when the last has ended; and of those that
//! wait only those are polled that were woken.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Begins all of them, in order, and waits until each has ended. Returns what they returned, in their order.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    let mut bells: Vec<Arc<Bell>> = Vec::new();
    poll_fn(|cx| {
        // Another task may wait for this than the one that did so far.
        let is_same = |bell: &Arc<Bell>| bell.waiting.will_wake(cx.waker());
        if !bells.first().is_some_and(is_same) {
            bells.clear();
            bells.extend(running.iter().map(|_| Bell::rung_for(cx.waker())));
        }
        let mut is_done = true;
        for ((running, done), bell) in running.iter_mut().zip(&mut done).zip(&bells) {
            let Some(future) = running else {
                continue;
            };
            *done = bell.poll_if_rung(future.as_mut());
            match done {
                // What it holds isn't needed any more.
                Some(_) => *running = None,
                None => is_done = false,
            }
        }
        match is_done {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// What one of many futures is woken by, so that only those are polled that have something to do.
struct Bell {
    is_rung: AtomicBool,
    /// Who waits for all of them.
    waiting: Waker,
}

impl Bell {
    /// Of a future that has not been polled for `waiting` so far.
    fn rung_for(waiting: &Waker) -> Arc<Bell> {
        Arc::new(Bell {
            is_rung: AtomicBool::new(true),
            waiting: waiting.clone(),
        })
    }

    fn poll_if_rung<F: Future>(self: &Arc<Bell>, future: Pin<&mut F>) -> Option<F::Output> {
        if !self.is_rung.swap(false, Ordering::AcqRel) {
            return None;
        }
        let waker = Waker::from(self.clone());
        match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        self.is_rung.store(true, Ordering::Release);
        self.waiting.wake_by_ref();
    }
}
