//! Order between operations on overlapping blocks of one dvol.
//!
//! Whole-block writes go to fresh blocks and need no lock among each other: the journal's order
//! decides. An operation that depends on what is there (a part of a block, a condition) holds its
//! range alone, from before it looks until its change is visible. First come, first served.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::sync::{Promise, promise};
use flagstone_types::VBlock;

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
}

struct Entry {
    id: u64,
    range: Range<VBlock>,
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
        let (lock, granted) = self.begin(range, exclusive);
        if let Some(granted) = granted {
            granted.await;
        }
        lock
    }

    fn begin(
        &self,
        range: Range<VBlock>,
        exclusive: bool,
    ) -> (RangeLock, Option<flagstone_platform::sync::Awaited<()>>) {
        let mut state = self.state.borrow_mut();
        let id = state.next_id;
        state.next_id += 1;
        let must_wait = (exclusive || state.exclusive_count > 0)
            && state.entries.iter().any(|e| e.conflicts(&range, exclusive));
        state.exclusive_count += usize::from(exclusive);
        let (waiting, granted) = if must_wait {
            let (granting, granted) = promise();
            (Some(granting), Some(granted))
        } else {
            (None, None)
        };
        state.entries.push_back(Entry {
            id,
            range,
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

impl Entry {
    fn conflicts(&self, range: &Range<VBlock>, exclusive: bool) -> bool {
        (exclusive || self.exclusive)
            && self.range.start < range.end
            && range.start < self.range.end
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.entries.iter().position(|e| e.id == self.id) else {
            return;
        };
        let Some(gone) = state.entries.remove(at) else {
            return;
        };
        state.exclusive_count -= usize::from(gone.exclusive);
        if !gone.exclusive && state.exclusive_count == 0 {
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
                .any(|e| e.conflicts(&entry.range, entry.exclusive));
            if !blocked && let Some(waiting) = state.entries[index].waiting.take() {
                waiting.fulfil(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range<VBlock> {
        VBlock(start)..VBlock(end)
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
