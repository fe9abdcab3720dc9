//! Who gives way when the API's connections are all taken.
//!
//! A connection that has not sent a whole request costs whoever opened it nothing, so it must not
//! keep others out: when a new one finds no place, the one that has waited longest for its client
//! is dropped. Those whose request is being worked on are never dropped, and nobody is before its
//! client has had some time: what it sends may be on its way, and so may an answer to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The connections that wait for their clients, in the order in which they began to.
#[derive(Default)]
pub(super) struct Crowd(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

impl Crowd {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, which waits for its client.
    pub(super) fn join(self: &Arc<Crowd>) -> Arc<Member> {
        let member = Arc::new(Member {
            crowd: self.clone(),
            leave: Arc::default(),
            place: Mutex::default(),
        });
        member.waits();
        member
    }

    /// Has the connection that waits longest end. False if none has waited for `waited_min`.
    pub(super) fn drop_oldest(&self, waited_min: Duration) -> bool {
        let mut waiting = self.lock();
        let oldest = waiting.by_age.first_entry();
        let Some(oldest) = oldest.filter(|oldest| oldest.get().0.elapsed() >= waited_min) else {
            return false;
        };
        let (_, leave) = oldest.remove();
        leave.notify_one();
        true
    }
}

/// One connection.
pub(super) struct Member {
    crowd: Arc<Crowd>,
    leave: Arc<Notify>,
    place: Mutex<Option<u64>>,
}

impl Member {
    /// It waits for its client: for a request, or for what is missing of one.
    pub(super) fn waits(&self) {
        self.works();
        let mut waiting = self.crowd.lock();
        let place = waiting.next;
        waiting.next += 1;
        let entry = (Instant::now(), self.leave.clone());
        waiting.by_age.insert(place, entry);
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }

    /// It has a whole request and works on it.
    pub(super) fn works(&self) {
        let place = self
            .place
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(place) = place {
            self.crowd.lock().by_age.remove(&place);
        }
    }

    /// Completes when it has to make room.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.works();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_waiting_one_goes_and_workers_stay() {
        let crowd = Arc::new(Crowd::default());
        let (first, second, third) = (crowd.join(), crowd.join(), crowd.join());
        first.works();
        third.works();
        third.waits();
        let places = || -> Vec<u64> { crowd.lock().by_age.keys().copied().collect() };
        assert_eq!(places(), [1, 3]);
        assert!(!crowd.drop_oldest(Duration::from_secs(3600)), "too early");
        assert!(crowd.drop_oldest(Duration::ZERO));
        assert_eq!(
            places(),
            [3],
            "the second, which waited longer than the third"
        );
        drop(third);
        assert!(!crowd.drop_oldest(Duration::ZERO), "the first works");
        drop((first, second));
    }
}
