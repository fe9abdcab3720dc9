//! Changes that were answered without being durable: whether a flush still covers them. Pure.
//!
//! A flush covers what its server's process has answered. If that process has ended, what it had
//! not flushed may be gone, and a flush of its successor says nothing about it. A program that
//! writes, flushes and is told "done" must be able to rely on both.

/// What of a volume is not durable yet.
#[derive(Clone, Default, Debug)]
pub(crate) struct Unflushed {
    /// Changes so far that were answered without being durable.
    changes: u64,
    /// Those that no flush has covered, by the process that answered them. Rarely more than one.
    runs: Vec<Run>,
    /// Processes that have said that the volume has moved, and the last change before that. The latest few: a flush asks about
    /// those that were answered before it was called.
    moved: Vec<(u64, u64)>,
}

/// Processes that are remembered to have said that the volume has moved.
const MOVED_MAX: usize = 16;

/// Changes that one process has answered, one after another.
#[derive(Clone, Copy, Debug)]
struct Run {
    incarnation: u64,
    first: u64,
    last: u64,
}

impl Unflushed {
    /// A change that is not durable was answered by a process.
    pub(crate) fn answered(&mut self, incarnation: u64) {
        self.changes += 1;
        let change = self.changes;
        match self.runs.last_mut() {
            Some(run) if run.incarnation == incarnation => run.last = change,
            _ => self.runs.push(Run {
                incarnation,
                first: change,
                last: change,
            }),
        }
    }

    /// A process has said that the volume, which it had, is elsewhere: whatever it had answered is durable there.
    pub(crate) fn moved(&mut self, incarnation: u64) {
        self.moved.retain(|(of, _)| *of != incarnation);
        if self.moved.len() == MOVED_MAX {
            self.moved.remove(0);
        }
        self.moved.push((incarnation, self.changes));
    }

    /// A flush that was called when the state was `before` was answered by a process: false if
    /// changes before it may be gone. To each flush that was called before it was known this is said.
    pub(crate) fn flushed(&mut self, before: &Unflushed, incarnation: u64) -> bool {
        self.runs.retain_mut(|run| {
            run.first = run.first.max(before.changes + 1);
            run.first <= run.last
        });
        let is_covered = |run: &Run| {
            let mut moved = self.moved.iter();
            let is_durable = |(of, last): &(u64, u64)| *of == run.incarnation && run.last <= *last;
            run.incarnation == incarnation || moved.any(is_durable)
        };
        before.runs.iter().all(is_covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed(unflushed: &mut Unflushed, incarnation: u64) -> bool {
        let before = unflushed.clone();
        unflushed.flushed(&before, incarnation)
    }

    #[test]
    fn a_flush_covers_what_its_own_process_has_answered() {
        let mut unflushed = Unflushed::default();
        assert!(flushed(&mut unflushed, 1), "nothing to cover");
        unflushed.answered(1);
        assert!(flushed(&mut unflushed, 1));
        unflushed.answered(1);
        unflushed.answered(2);
        let before = unflushed.clone();
        assert!(
            !unflushed.flushed(&before, 2),
            "the first change may be gone"
        );
        assert!(
            !unflushed.flushed(&before, 2),
            "a flush called at the same time says so, too"
        );
        assert!(flushed(&mut unflushed, 2), "it was said");
    }

    #[test]
    fn what_was_answered_before_a_move_is_durable_behind_it() {
        let mut unflushed = Unflushed::default();
        unflushed.answered(1);
        let before = unflushed.clone();
        unflushed.moved(1);
        assert!(unflushed.flushed(&before, 2), "called before the move");
        unflushed.answered(1);
        unflushed.moved(1);
        unflushed.answered(2);
        assert!(flushed(&mut unflushed, 2), "called behind it");
        unflushed.answered(1);
        assert!(
            !flushed(&mut unflushed, 2),
            "it came back, and has answered since"
        );
        unflushed.answered(3);
        unflushed.moved(1);
        assert!(!flushed(&mut unflushed, 2), "another one has not said it");
        for other in 10..100 {
            unflushed.moved(other);
        }
        assert!(unflushed.moved.len() <= MOVED_MAX);
    }

    #[test]
    fn what_comes_during_a_flush_waits_for_the_next() {
        let mut unflushed = Unflushed::default();
        unflushed.answered(1);
        let before = unflushed.clone();
        unflushed.answered(1);
        unflushed.answered(2);
        assert!(unflushed.flushed(&before, 1));
        assert!(!flushed(&mut unflushed, 2), "the second change may be gone");
        assert!(flushed(&mut unflushed, 2));
    }
}
