//! What threads hand over to the client's own: jobs, and the end of it.
//!
//! A core's mailbox would do but for its limit: a handle that is dropped hands something over as well,
//! and can't be refused. Here the callers are the limit. Each waits for its answer before it comes again.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use flagstone_platform::locks::Mutex;

use crate::thread::Desk;

/// What is done on the client's thread. It must not block, nor hold a handle: whoever drops the last one waits
/// for this very thread.
pub(crate) type Job = Box<dyn FnOnce(&Desk) + Send>;

/// Jobs on their way. Shared by the handles and the thread.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The thread waits for a job.
    waker: Option<Waker>,
    is_over: bool,
}

impl Queue {
    /// Hands a job over. False if nobody will ever do it.
    pub(crate) fn push(&self, job: Job) -> bool {
        let waker = {
            let state = &mut *self.lock();
            if state.is_over {
                return false;
            }
            state.jobs.push_back(job);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// A panic elsewhere is no reason to stop here: what the lock protects is whole between calls.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's side. When it is dropped, in whichever way the thread ends, all jobs are dropped, and
/// with them whatever their callers wait for.
pub(crate) struct Jobs(pub(crate) Arc<Queue>);

impl Jobs {
    /// The next job.
    pub(crate) async fn next(&self) -> Job {
        poll_fn(|context| {
            let state = &mut *self.0.lock();
            match state.jobs.pop_front() {
                Some(job) => Poll::Ready(job),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        let jobs = {
            let state = &mut *self.0.lock();
            state.is_over = true;
            mem::take(&mut state.jobs)
        };
        drop(jobs);
    }
}
