//! Who gives way when the API's connections are all taken.
//!
//! A connection that has not sent a whole request costs whoever opened it nothing, so it must not
//! keep others out: when a new one finds no place, the one that has waited longest for its client
//! is dropped. Those whose request is being worked on are never dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The connections that wait for their clients, in the order in which they began to.
#[derive(Default)]
pub(super) struct Crowd(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, Arc<Notify>>,
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

    /// Has the connection that waits longest end. False if none waits.
    pub(super) fn drop_oldest(&self) -> bool {
        let oldest = self.lock().by_age.pop_first();
        oldest.inspect(|(_, leave)| leave.notify_one()).is_some()
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
        waiting.by_age.insert(place, self.leave.clone());
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
        assert!(crowd.drop_oldest());
        assert_eq!(
            places(),
            [3],
            "the second, which waited longer than the third"
        );
        drop(third);
        assert!(!crowd.drop_oldest(), "the first works");
        drop((first, second));
    }
}
