//! Waiting for several futures of one task at a time.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

/// Futures that one call runs at the same time: device operations that one request has in flight. A
/// request of 32 MiB whose blocks lie anywhere asks for 8,192 of them; all at once they would keep
/// the operations of everybody else waiting, and each completion would poll all of them. At this
/// depth a device is busy.
const JOINED_MAX: usize = 64;

/// Runs all of `futures`, up to 64 at the same time and in their order, and returns their
/// outputs in order. They must not wait for each other.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting = futures.into_iter();
    let mut outputs: Vec<Option<F::Output>> = Vec::with_capacity(waiting.size_hint().0);
    let mut running: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    std::future::poll_fn(|cx| {
        let mut index = 0;
        loop {
            while index < running.len() {
                let (place, future) = &mut running[index];
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => {
                        outputs[*place] = Some(output);
                        running.remove(index);
                    }
                    Poll::Pending => index += 1,
                }
            }
            while running.len() < JOINED_MAX
                && let Some(future) = waiting.next()
            {
                running.push((outputs.len(), Box::pin(future)));
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
        let mut all = pin!(join_all((0..count).map(one)));
        let outputs = loop {
            polls.set(polls.get() + 1);
            if let Poll::Ready(outputs) = all.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                break outputs;
            }
            assert!(polls.get() < 10 * count + 100, "it goes on");
        };
        assert_eq!(running.get(), 0);
        let begun = begun.borrow().clone();
        (outputs, begun, most.get())
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
}
