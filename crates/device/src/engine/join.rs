//! Waiting for several futures of one task at a time.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

/// A future and, once it has ended, its output.
type Running<F> = (Pin<Box<F>>, Option<<F as Future>::Output>);

/// Runs all of `futures` at the same time and returns their outputs in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Running<F>> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut all_done = true;
        for (future, output) in &mut running {
            if output.is_some() {
                continue;
            }
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => all_done = false,
            }
        }
        if all_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
