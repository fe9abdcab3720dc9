//! Order between operations on overlapping blocks of one dvol.
//!
//! Whole-block writes go to fresh blocks and need no lock among each other: the journal's order
//! decides. An operation that depends on what is there (a part of a block, a condition) holds its
//! range alone, from before it looks until its change is visible. First come, first served.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::{Promise, promise};
use flagstone_types::{Slot, VBlock};
use smallvec::{SmallVec, smallvec};

use super::Inner;

/// Ranges in use by a change. When whoever makes the change goes away before it is answered, its
/// unit may still be applied: the ranges are then left to the units on their way, so that nobody
/// looks at what is there in between and builds on it.
pub(super) struct Held<P: Platform> {
    inner: Rc<Inner<P>>,
    locks: SmallVec<[(Slot, RangeLock); 1]>,
}

impl<P: Platform> Inner<P> {
    /// Does `work` with these ranges in use.
    pub(super) async fn held<T>(
        self: &Rc<Self>,
        locks: SmallVec<[(Slot, RangeLock); 1]>,
        work: impl Future<Output = T>,
    ) -> T {
        let held = self.holding(locks);
        let result = work.await;
        held.answered();
        result
    }

    /// The same for whoever awaits the work itself: that of a write is a large future, which is not to be handed on.
    pub(super) fn holding(self: &Rc<Self>, locks: SmallVec<[(Slot, RangeLock); 1]>) -> Held<P> {
        Held {
            inner: self.clone(),
            locks,
        }
    }
}

impl<P: Platform> Held<P> {
    /// Whoever made the change has its answer: no unit on its way needs the ranges any more.
    pub(super) fn answered(mut self) {
        self.locks.clear();
    }
}

impl<P: Platform> Drop for Held<P> {
    fn drop(&mut self) {
        for (slot, lock) in self.locks.drain(..) {
            if let Some(unit) = self.inner.commit.borrow().last_of(slot) {
                unit.left.borrow_mut().push(lock);
            }
        }
    }
}

/// Ranges in ascending order that do not overlap.
type Ranges = SmallVec<[Range<VBlock>; 1]>;

/// The ranges in use of one dvol.
#[derive(Clone, Default)]
pub(super) struct RangeLocks {
    state: Rc<RefCell<LockState>>,
}

#[derive(Default)]
struct LockState {
    entries: VecDeque<Entry>,
    next_id: u64,
    exclusive_count: usize,
    /// Entries that wait.
    waiting_count: usize,
    marks: Marks,
}

/// Who may have a block, said at once. With as many in flight as a client has, most blocks are nobody's, and entries needn't be looked through for them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Marks {
    /// How often somebody has or wants a block of those whose numbers leave the same remainder.
    blocks: [u32; MARKS],
    /// Ranges with more blocks than are marked one by one.
    wide: u32,
}

/// Marks of a short range.
type MarksOf = std::iter::Map<Range<u64>, fn(u64) -> usize>;

/// Remainders that are told apart.
const MARKS: usize = 128;

/// Most blocks of a range that are marked one by one.
const MARKED_MAX: u64 = 4;

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            blocks: [0; MARKS],
            wide: 0,
        }
    }
}

impl Marks {
    /// The marks of a range of few blocks.
    fn of(range: &Range<VBlock>) -> Option<MarksOf> {
        let bucket: fn(u64) -> usize = |block| block as usize % MARKS;
        let (start, end) = (range.start.0, range.end.0);
        let is_few = end.saturating_sub(start) <= MARKED_MAX;
        is_few.then(|| (start..end).map(bucket))
    }

    fn add(&mut self, ranges: &Ranges) {
        for range in ranges {
            match Marks::of(range) {
                Some(marks) => marks.for_each(|mark| self.blocks[mark] += 1),
                None => self.wide += 1,
            }
        }
    }

    fn remove(&mut self, ranges: &Ranges) {
        for range in ranges {
            match Marks::of(range) {
                Some(marks) => marks.for_each(|mark| self.blocks[mark] -= 1),
                None => self.wide -= 1,
            }
        }
    }

    /// True if certainly nobody has or wants any of these. Nobody has an empty range.
    fn are_free(&self, ranges: &[Range<VBlock>]) -> bool {
        let is_free = |mut buckets: MarksOf| buckets.all(|bucket| self.blocks[bucket] == 0);
        self.wide == 0
            && ranges
                .iter()
                .all(|range| Marks::of(range).is_some_and(is_free))
    }
}

struct Entry {
    id: u64,
    ranges: Ranges,
    exclusive: bool,
    /// Taken when the lock is granted.
    waiting: Option<Promise<()>>,
}

/// A range in use. Gives it back when dropped.
pub(super) struct RangeLock {
    state: Rc<RefCell<LockState>>,
    id: u64,
}

impl RangeLocks {
    /// Takes `range`, together with others (`exclusive` false) or alone.
    pub(super) async fn take(&self, range: Range<VBlock>, exclusive: bool) -> RangeLock {
        self.take_all(smallvec![range], exclusive).await
    }

    /// Takes several ranges in one step. One after the other they could wait for somebody who took
    /// a wider range in between and waits for the first of them.
    pub(super) async fn take_all(&self, ranges: Ranges, exclusive: bool) -> RangeLock {
        let (lock, granted) = self.begin(ranges, exclusive);
        if let Some(granted) = granted {
            granted.await;
        }
        lock
    }

    /// Takes `range` if that takes no waiting. Together with others not if it may be one that somebody has or wants alone: that is quicker to see.
    pub(super) fn take_now(&self, range: Range<VBlock>, exclusive: bool) -> Option<RangeLock> {
        let ranges: Ranges = smallvec![range];
        let state = self.state.borrow();
        let may_have = match exclusive {
            true => !state.must_wait(&ranges, true),
            false => state.exclusive_count == 0 || state.marks.are_free(&ranges),
        };
        drop(state);
        may_have.then(|| self.enter(ranges, exclusive, false).0)
    }

    fn begin(
        &self,
        ranges: Ranges,
        exclusive: bool,
    ) -> (RangeLock, Option<flagstone_platform::sync::Awaited<()>>) {
        let must_wait = self.state.borrow().must_wait(&ranges, exclusive);
        self.enter(ranges, exclusive, must_wait)
    }

    fn enter(
        &self,
        ranges: Ranges,
        exclusive: bool,
        must_wait: bool,
    ) -> (RangeLock, Option<flagstone_platform::sync::Awaited<()>>) {
        let mut state = self.state.borrow_mut();
        let id = state.next_id;
        state.next_id += 1;
        state.exclusive_count += usize::from(exclusive);
        state.waiting_count += usize::from(must_wait);
        state.marks.add(&ranges);
        let (waiting, granted) = if must_wait {
            let (granting, granted) = promise();
            (Some(granting), Some(granted))
        } else {
            (None, None)
        };
        state.entries.push_back(Entry {
            id,
            ranges,
            exclusive,
            waiting,
        });
        (
            RangeLock {
                state: self.state.clone(),
                id,
            },
            granted,
        )
    }
}

impl LockState {
    /// True if whoever wants these ranges comes behind somebody who has or wants some of them.
    fn must_wait(&self, ranges: &[Range<VBlock>], exclusive: bool) -> bool {
        let mut entries = self.entries.iter();
        (exclusive || self.exclusive_count > 0)
            && !self.marks.are_free(ranges)
            && entries.any(|e| e.conflicts(ranges, exclusive))
    }
}

impl Entry {
    fn conflicts(&self, ranges: &[Range<VBlock>], exclusive: bool) -> bool {
        (exclusive || self.exclusive) && overlap(&self.ranges, ranges)
    }
}

/// True if some range of one overlaps one of the other. Both ascend.
fn overlap(mut some: &[Range<VBlock>], mut others: &[Range<VBlock>]) -> bool {
    while let ([a, rest_a @ ..], [b, rest_b @ ..]) = (some, others) {
        if a.end <= b.start {
            some = rest_a;
        } else if b.end <= a.start {
            others = rest_b;
        } else {
            return true;
        }
    }
    false
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(at) = state.entries.iter().position(|e| e.id == self.id) else {
            return;
        };
        let Some(gone) = state.entries.remove(at) else {
            return;
        };
        state.exclusive_count -= usize::from(gone.exclusive);
        state.waiting_count -= usize::from(gone.waiting.is_some());
        state.marks.remove(&gone.ranges);
        if state.waiting_count == 0 || (!gone.exclusive && state.exclusive_count == 0) {
            return;
        }
        for index in at..state.entries.len() {
            let entry = &state.entries[index];
            if entry.waiting.is_none() {
                continue;
            }
            let blocked = state
                .entries
                .range(..index)
                .any(|e| e.conflicts(&entry.ranges, entry.exclusive));
            if !blocked && let Some(waiting) = state.entries[index].waiting.take() {
                state.waiting_count -= 1;
                waiting.fulfil(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Ranges {
        smallvec![VBlock(start)..VBlock(end)]
    }

    fn is_granted(locks: &RangeLocks, id: u64) -> bool {
        locks
            .state
            .borrow()
            .entries
            .iter()
            .any(|e| e.id == id && e.waiting.is_none())
    }

    #[test]
    fn first_come_first_served() {
        let locks = RangeLocks::default();
        let (first, _) = locks.begin(range(0, 4), false);
        let (second, _) = locks.begin(range(2, 6), false);
        let (alone, waits) = locks.begin(range(3, 4), true);
        assert!(waits.is_some());
        let (behind, waits) = locks.begin(range(0, 4), false);
        assert!(waits.is_some(), "must not overtake the exclusive one");
        let (apart, waits) = locks.begin(range(4, 6), false);
        assert!(waits.is_none());
        drop(first);
        assert!(!is_granted(&locks, alone.id));
        drop(second);
        assert!(is_granted(&locks, alone.id));
        assert!(!is_granted(&locks, behind.id));
        drop(alone);
        assert!(is_granted(&locks, behind.id));
        drop((behind, apart));
        assert_eq!(locks.state.borrow().exclusive_count, 0);
    }

    #[test]
    fn what_is_taken_now_needs_no_waiting() {
        let locks = RangeLocks::default();
        let block = |at| VBlock(at)..VBlock(at + 1);
        let shared = locks.take_now(block(1), false).expect("nobody is there");
        assert!(locks.take_now(block(1), true).is_none());
        let alone = locks.take_now(block(2), true).expect("another block");
        assert!(locks.take_now(block(2), true).is_none());
        assert!(
            locks.take_now(block(1), false).is_none(),
            "somebody may have it alone"
        );
        drop(locks.take_now(block(3), false).expect("that nobody has"));
        drop(
            locks
                .take_now(VBlock(3)..VBlock(7), false)
                .expect("nobody has any"),
        );
        // Not looked through, since they leave the rest of one that somebody has, or are many.
        assert!(locks.take_now(block(2 + MARKS as u64), false).is_none());
        assert!(locks.take_now(VBlock(3)..VBlock(9), false).is_none());
        // Whoever wants them alone looks.
        drop(
            locks
                .take_now(block(2 + MARKS as u64), true)
                .expect("it is another"),
        );
        drop(
            locks
                .take_now(VBlock(3)..VBlock(9), true)
                .expect("nobody has any"),
        );
        let wide = locks.take_now(VBlock(10)..VBlock(20), true);
        assert!(
            locks.take_now(block(15), true).is_none() && locks.take_now(block(15), false).is_none()
        );
        drop(locks.take_now(block(20), true).expect("behind it"));
        drop(wide);
        drop(locks.take_now(block(15), false).expect("again nobody's"));
        drop(shared);
        let (waiting, waits) = locks.begin(range(1, 3), true);
        assert!(waits.is_some());
        assert!(
            locks.take_now(block(1), true).is_none(),
            "not before whoever waits for it"
        );
        assert_eq!(
            locks.state.borrow().entries.len(),
            2,
            "who got none left nothing"
        );
        drop((alone, waiting));
        assert!(locks.take_now(block(1), false).is_some());
    }

    /// A number below this one that looks random.
    fn random(number: &mut u64, below: u64) -> u64 {
        *number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*number >> 33) % below
    }

    /// Ranges at random, against a list of who has and wants what.
    #[test]
    fn nobody_is_told_that_a_block_is_free_which_somebody_has() {
        let locks = RangeLocks::default();
        let mut held: Vec<(Range<VBlock>, bool, RangeLock)> = Vec::new();
        let (mut taken, mut number) = (0, 1u64);
        let mut random = |below| random(&mut number, below);
        for _ in 0..20_000 {
            if held.len() > random(12) as usize {
                let at = random(held.len() as u64) as usize;
                held.swap_remove(at);
            }
            let start = random(300);
            let wanted = VBlock(start)..VBlock(start + 1 + random(7));
            let exclusive = random(2) == 0;
            if let Some(lock) = locks.take_now(wanted.clone(), exclusive) {
                for (had, alone, _) in &held {
                    let apart = had.end <= wanted.start || wanted.end <= had.start;
                    assert!(apart || !(exclusive || *alone), "{had:?} and {wanted:?}");
                }
                held.push((wanted, exclusive, lock));
                taken += 1;
            }
        }
        assert!(taken > 5_000, "{taken}");
    }

    /// What is counted and marked stays what it is of, whoever comes, waits, is let in and goes, with up to three ranges each.
    #[test]
    fn counts_and_marks_are_those_of_the_entries() {
        let locks = RangeLocks::default();
        let (mut held, mut waited, mut number) = (Vec::new(), 0, 7u64);
        let mut random = |below| random(&mut number, below);
        for step in 0..5_000 {
            if held.len() > random(12) as usize || step > 4_900 {
                let at = random(held.len().max(1) as u64) as usize;
                if at < held.len() {
                    drop(held.swap_remove(at));
                }
            } else {
                let mut start = random(40);
                let mut ranges = Ranges::new();
                for _ in 0..1 + random(3) {
                    let end = start + 1 + random(7);
                    ranges.push(VBlock(start)..VBlock(end));
                    start = end + random(3);
                }
                let (lock, waits) = locks.begin(ranges, random(2) == 0);
                waited += usize::from(waits.is_some());
                held.push((lock, waits));
            }
            let state = locks.state.borrow();
            let waiting = state.entries.iter().filter(|e| e.waiting.is_some());
            assert_eq!(state.waiting_count, waiting.count());
            let exclusive = state.entries.iter().filter(|e| e.exclusive);
            assert_eq!(state.exclusive_count, exclusive.count());
            let mut marks = Marks::default();
            for entry in &state.entries {
                marks.add(&entry.ranges);
            }
            assert_eq!(state.marks, marks);
            // Whoever waits comes behind somebody.
            for (at, entry) in state.entries.iter().enumerate() {
                let before = state.entries.range(..at);
                let is_behind = before
                    .clone()
                    .any(|e| e.conflicts(&entry.ranges, entry.exclusive));
                assert_eq!(entry.waiting.is_some(), is_behind);
            }
        }
        assert!(
            waited > 1_000 && held.is_empty(),
            "{waited}, {}",
            held.len()
        );
    }

    #[test]
    fn several_ranges_are_taken_in_one_step() {
        let locks = RangeLocks::default();
        let apart: Ranges = smallvec![VBlock(1)..VBlock(2), VBlock(5)..VBlock(6)];
        let (held, waits) = locks.begin(apart.clone(), true);
        assert!(waits.is_none());
        let (between, waits) = locks.begin(range(2, 5), true);
        assert!(waits.is_none(), "lies in the gap");
        let (wide, waits) = locks.begin(range(0, 10), true);
        assert!(waits.is_some());
        let (behind, waits) = locks.begin(apart, true);
        assert!(
            waits.is_some(),
            "waits for all of it at once, holding nothing"
        );
        drop((held, between));
        assert!(is_granted(&locks, wide.id) && !is_granted(&locks, behind.id));
        drop(wide);
        assert!(is_granted(&locks, behind.id));
    }

    #[test]
    fn a_waiter_that_goes_away_lets_others_pass() {
        let locks = RangeLocks::default();
        let (held, _) = locks.begin(range(0, 1), true);
        let (gone, _) = locks.begin(range(0, 2), true);
        let (last, _) = locks.begin(range(1, 2), true);
        drop(gone);
        assert!(
            is_granted(&locks, last.id),
            "only the second one stood in its way"
        );
        drop((held, last));
    }
}
