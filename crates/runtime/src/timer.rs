//! Timers of one core: a heap by deadline, with lazy removal.
//!
//! A timer that is dropped early leaves its heap entry behind; when such entries make up more than
//! half of the heap, it is rebuilt. So a request that arms a long time-out and ends soon costs
//! amortised constant memory, and steady use allocates nothing.
//!
//! Timers with equal deadlines fire in the order in which they were armed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

use flagstone_platform::Time;

/// Heaps smaller than this are not rebuilt.
const REBUILD_MIN: usize = 64;

/// Names an armed timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimerId {
    slot: u32,
    sequence: u64,
}

#[derive(Default)]
pub(crate) struct Timers {
    /// Deadline, sequence number of arming, slot; the earliest is on top.
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of the next arming. Unique, so it also tells a slot's timers apart.
    sequence: u64,
    /// Heap entries whose timer was disarmed.
    stale: usize,
}

struct Slot {
    /// The timer armed in this slot, if any.
    armed: Option<(u64, Waker)>,
}

impl Timers {
    /// Arms a timer that wakes `waker` at `deadline`.
    pub(crate) fn arm(&mut self, deadline: Time, waker: Waker) -> TimerId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { armed: None });
            (self.slots.len() - 1) as u32
        });
        let sequence = self.sequence;
        self.sequence += 1;
        self.slots[slot as usize].armed = Some((sequence, waker));
        self.heap.push(Reverse((deadline, sequence, slot)));
        TimerId { slot, sequence }
    }

    /// Changes whom the timer wakes. False if it has fired.
    pub(crate) fn rearm(&mut self, id: TimerId, waker: &Waker) -> bool {
        match &mut self.slots[id.slot as usize].armed {
            Some((sequence, old)) if *sequence == id.sequence => {
                old.clone_from(waker);
                true
            }
            _ => false,
        }
    }

    /// Forgets a timer. Nothing happens if it has fired.
    pub(crate) fn disarm(&mut self, id: TimerId) {
        let slot = &mut self.slots[id.slot as usize];
        if !matches!(slot.armed, Some((sequence, _)) if sequence == id.sequence) {
            return;
        }
        slot.armed = None;
        self.free.push(id.slot);
        self.stale += 1;
        if self.heap.len() >= REBUILD_MIN && self.stale * 2 > self.heap.len() {
            let slots = &self.slots;
            self.heap.retain(|&Reverse((_, sequence, slot))| {
                matches!(slots[slot as usize].armed, Some((s, _)) if s == sequence)
            });
            self.stale = 0;
        }
    }

    /// The earliest deadline, if any timer is armed.
    pub(crate) fn next_deadline(&mut self) -> Option<Time> {
        loop {
            let &Reverse((deadline, sequence, slot)) = self.heap.peek()?;
            if matches!(self.slots[slot as usize].armed, Some((s, _)) if s == sequence) {
                return Some(deadline);
            }
            self.heap.pop();
            self.stale -= 1;
        }
    }

    /// Takes the next timer that is due at `now` and gives its waker.
    pub(crate) fn poll_due(&mut self, now: Time) -> Option<Waker> {
        if self.next_deadline()? > now {
            return None;
        }
        let Reverse((_, _, slot)) = self.heap.pop()?;
        let (_, waker) = self.slots[slot as usize].armed.take()?;
        self.free.push(slot);
        Some(waker)
    }

    #[cfg(test)]
    fn heap_len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_platform::locks::Mutex;
    use std::sync::Arc;
    use std::task::Wake;

    struct Note(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    fn fire(timers: &mut Timers, now: u64) {
        while let Some(waker) = timers.poll_due(Time(now)) {
            waker.wake();
        }
    }

    #[test]
    fn timers_fire_by_deadline_then_by_arming() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut timers = Timers::default();
        for (n, deadline) in [30, 10, 20, 10, 30, 10].into_iter().enumerate() {
            timers.arm(
                Time(deadline),
                Waker::from(Arc::new(Note(n as u32, log.clone()))),
            );
        }
        assert_eq!(timers.next_deadline(), Some(Time(10)));
        fire(&mut timers, 9);
        assert!(log.lock().unwrap().is_empty());
        fire(&mut timers, 20);
        assert_eq!(*log.lock().unwrap(), [1, 3, 5, 2]);
        fire(&mut timers, 1000);
        assert_eq!(*log.lock().unwrap(), [1, 3, 5, 2, 0, 4]);
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn disarmed_timers_do_not_fire_and_do_not_pile_up() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut timers = Timers::default();
        let kept = timers.arm(Time(1 << 40), Waker::from(Arc::new(Note(7, log.clone()))));
        for n in 0..100_000u64 {
            let id = timers.arm(Time((1 << 39) + n % 17), Waker::noop().clone());
            timers.disarm(id);
            timers.disarm(id);
        }
        assert!(
            timers.heap_len() <= REBUILD_MIN,
            "{} entries",
            timers.heap_len()
        );
        assert!(timers.slots.len() <= 2);
        assert_eq!(timers.next_deadline(), Some(Time(1 << 40)));
        assert!(timers.rearm(kept, Waker::noop()));
        fire(&mut timers, 1 << 40);
        assert!(log.lock().unwrap().is_empty(), "the waker was exchanged");
        assert!(!timers.rearm(kept, Waker::noop()));
    }

    #[test]
    fn a_late_disarm_does_not_hit_the_slots_next_timer() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut timers = Timers::default();
        let old = timers.arm(Time(1), Waker::noop().clone());
        fire(&mut timers, 1);
        timers.arm(Time(2), Waker::from(Arc::new(Note(1, log.clone()))));
        timers.disarm(old);
        fire(&mut timers, 2);
        assert_eq!(*log.lock().unwrap(), [1]);
    }
}
