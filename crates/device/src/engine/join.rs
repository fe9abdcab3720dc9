//! Waiting for several futures of one task at a time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::FuturePool;
use smallvec::SmallVec;

/// Futures that one call runs at the same time: device operations that one request has in flight. A
/// request of 32 MiB whose blocks lie anywhere asks for 8,192 of them; all at once they would keep
/// the operations of everybody else waiting, and each completion would poll all of them. At this
/// depth a device is busy.
const JOINED_MAX: usize = 64;

/// What futures that run together return. Few take no memory of their own.
pub type Outputs<T> = SmallVec<[T; 4]>;

/// Runs all of `futures`, up to 64 at the same time and in their order, and returns their
/// outputs in order. They must not wait for each other.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    join_with(futures, JOINED_MAX, Box::pin).await.into_vec()
}

/// The same, `at_once` at the same time (1 to 64): each begins when one before it has ended, not all of some when all of others have.
pub async fn join_few<F: Future>(
    at_once: usize,
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let at_once = at_once.clamp(1, JOINED_MAX);
    join_with(futures, at_once, Box::pin).await.into_vec()
}

/// The same in memory that is used again.
pub async fn join_placed<F: Future + 'static>(
    pool: &Rc<FuturePool>,
    futures: impl IntoIterator<Item = F>,
) -> Outputs<F::Output> {
    join_with(futures, JOINED_MAX, |future| pool.place(future)).await
}

/// The same, each in the place that `place` gives it.
async fn join_with<F: Future, Placed: Future<Output = F::Output> + Unpin>(
    futures: impl IntoIterator<Item = F>,
    at_once: usize,
    place: impl Fn(F) -> Placed,
) -> Outputs<F::Output> {
    let mut waiting = futures.into_iter();
    let mut outputs: Outputs<Option<F::Output>> = Outputs::with_capacity(waiting.size_hint().0);
    let mut running: SmallVec<[(usize, Placed); 4]> = SmallVec::new();
    std::future::poll_fn(|cx| {
        let mut index = 0;
        loop {
            while index < running.len() {
                let (number, future) = &mut running[index];
                match Pin::new(future).poll(cx) {
                    Poll::Ready(output) => {
                        outputs[*number] = Some(output);
                        running.remove(index);
                    }
                    Poll::Pending => index += 1,
                }
            }
            while running.len() < at_once
                && let Some(future) = waiting.next()
            {
                running.push((outputs.len(), place(future)));
                outputs.push(None);
            }
            // What has just begun has to be polled before this sleeps.
            if index == running.len() {
                break;
            }
        }
        if running.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Futures that each end when it is their turn; polled until all have ended.
    fn run(count: usize, order: impl Fn(usize) -> usize) -> (Vec<usize>, Vec<usize>, usize) {
        run_few(JOINED_MAX, count, order)
    }

    fn run_few(
        at_once: usize,
        count: usize,
        order: impl Fn(usize) -> usize,
    ) -> (Vec<usize>, Vec<usize>, usize) {
        let begun = RefCell::new(Vec::new());
        let (running, most) = (Cell::new(0), Cell::new(0));
        let polls = Cell::new(0);
        let one = |index: usize| {
            let (begun, running, most, polls) = (&begun, &running, &most, &polls);
            let mut is_new = true;
            let ends = polls.get() + order(index);
            std::future::poll_fn(move |cx| {
                if std::mem::take(&mut is_new) {
                    begun.borrow_mut().push(index);
                    running.set(running.get() + 1);
                    most.set(most.get().max(running.get()));
                }
                if polls.get() < ends {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                running.set(running.get() - 1);
                Poll::Ready(index)
            })
        };
        let mut all = pin!(join_few(at_once, (0..count).map(one)));
        let outputs = loop {
            polls.set(polls.get() + 1);
            if let Poll::Ready(outputs) = all.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                break outputs;
            }
            assert!(polls.get() < 10 * count + 1000, "it goes on");
        };
        assert_eq!(running.get(), 0);
        let begun = begun.borrow().clone();
        (outputs, begun, most.get())
    }

    #[test]
    fn outputs_of_futures_in_a_pool_are_in_order() {
        let pool = Rc::default();
        let one = |number: u32| async move {
            let mut polls = 9 - number;
            std::future::poll_fn(|_| match polls {
                0 => Poll::Ready(()),
                _ => {
                    polls -= 1;
                    Poll::Pending
                }
            })
            .await;
            number
        };
        for _ in 0..2 {
            let mut all = pin!(join_placed(&pool, (0..9).map(one)));
            let outputs = loop {
                let polled = all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(outputs) = polled {
                    break outputs;
                }
            };
            assert_eq!(outputs.to_vec(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn what_runs_at_the_same_time_is_bounded() {
        for count in [0, 1, 2, JOINED_MAX, JOINED_MAX + 1, 8192] {
            let in_order: Vec<usize> = (0..count).collect();
            for order in [
                |_| 0,
                |_| 3,
                |index: usize| index % 7,
                |index: usize| 50 - index % 50,
            ] {
                let (outputs, begun, most) = run(count, order);
                assert_eq!(outputs, in_order, "outputs are in order");
                assert_eq!(begun, in_order, "and begun in order");
                assert!(most <= JOINED_MAX, "{most} at the same time");
            }
            let (_, _, most) = run(count, |_| 3);
            assert_eq!(most, count.min(JOINED_MAX), "and no fewer than may be");
        }
    }

    #[test]
    fn few_are_as_few_as_was_asked_for() {
        for (at_once, most_expected) in [(1, 1), (3, 3), (0, 1), (usize::MAX, JOINED_MAX)] {
            let (outputs, begun, most) = run_few(at_once, 100, |_| 3);
            let in_order: Vec<usize> = (0..100).collect();
            assert_eq!(
                (outputs, begun, most),
                (in_order.clone(), in_order, most_expected)
            );
        }
    }
}
