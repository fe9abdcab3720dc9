//! Who gives way when the API's connections are all taken.
//!
//! A connection that has not sent a whole request costs whoever opened it nothing, so it must not
//! keep others out: when a new one finds no place, the one that has waited longest for its client
//! is dropped. Those whose request is being worked on are never dropped, and nobody is before its
//! client has had some time: what it sends may be on its way, and so may an answer to it.
//! Those that were refused for want of the right key go before all others, and at once: all that they
//! wait for is to be told so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// Those that were refused, in the order in which they were.
    refused: BTreeMap<u64, Arc<Notify>>,
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
            streams: AtomicUsize::new(0),
            is_refused: AtomicBool::new(false),
        });
        member.waits();
        member
    }

    /// Has the connection end that was refused first, or else that which waits longest. False if none was refused
    /// and none has waited for `waited_min`.
    pub(super) fn drop_oldest(&self, waited_min: Duration) -> bool {
        let mut waiting = self.lock();
        if let Some((_, leave)) = waiting.refused.pop_first() {
            leave.notify_one();
            return true;
        }
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
    /// Bodies of any length that are on their way.
    streams: AtomicUsize,
    /// It has been refused, and ends with the answer that says so.
    is_refused: AtomicBool,
}

/// A body of any length is on its way, as long as this is there.
pub(super) struct Streaming(Arc<Member>);

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
        self.0.waits();
    }
}

impl Member {
    /// It waits for its client: for a request, or for what is missing of one.
    pub(super) fn waits(&self) {
        self.works();
        let mut waiting = self.crowd.lock();
        let place = waiting.next;
        waiting.next += 1;
        let leave = self.leave.clone();
        match self.is_refused.load(Ordering::Relaxed) {
            true => drop(waiting.refused.insert(place, leave)),
            false => drop(waiting.by_age.insert(place, (Instant::now(), leave))),
        }
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
            let mut waiting = self.crowd.lock();
            waiting.by_age.remove(&place);
            waiting.refused.remove(&place);
        }
    }

    /// Its request had not the right key: whatever it waits for from now on, it is the first to make room.
    pub(super) fn is_refused(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
        self.waits();
    }

    /// A body of any length begins. Until it ends the connection counts as one that works, however long that takes:
    /// whoever makes or reads the body has a time-out of its own.
    pub(super) fn streams(self: &Arc<Member>) -> Streaming {
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.works();
        Streaming(self.clone())
    }

    /// Whether such a body is on its way.
    pub(super) fn is_streaming(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
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

    #[test]
    fn refused_ones_go_first_and_at_once() {
        let crowd = Arc::new(Crowd::default());
        let (patient, refused, later) = (crowd.join(), crowd.join(), crowd.join());
        later.works();
        later.is_refused();
        refused.works();
        refused.is_refused();
        let left = || {
            let waiting = crowd.lock();
            (waiting.by_age.len(), waiting.refused.len())
        };
        assert_eq!(left(), (1, 2));
        let hour = Duration::from_secs(3600);
        assert!(crowd.drop_oldest(hour) && crowd.drop_oldest(hour));
        assert!(
            !crowd.drop_oldest(hour),
            "the patient one has not waited long"
        );
        assert_eq!(left(), (1, 0));
        // Also while it waits for its client to take the answer, and no longer than it is there.
        later.waits();
        assert_eq!(left(), (1, 1));
        drop(later);
        assert_eq!(left(), (1, 0));
        drop((patient, refused));
    }

    #[test]
    fn one_that_streams_stays() {
        let crowd = Arc::new(Crowd::default());
        let member = crowd.join();
        assert!(!member.is_streaming());
        let streaming = member.streams();
        assert!(member.is_streaming());
        assert!(!crowd.drop_oldest(Duration::ZERO), "it works");
        drop(streaming);
        assert!(!member.is_streaming());
        assert!(crowd.drop_oldest(Duration::ZERO), "it waits again");
    }
}
