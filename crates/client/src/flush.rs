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
}

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

    /// A flush that was called when the state was `before` was answered by a process: false if
    /// changes before it may be gone. To each flush that was called before it was known this is said.
    pub(crate) fn flushed(&mut self, before: &Unflushed, incarnation: u64) -> bool {
        self.runs.retain_mut(|run| {
            run.first = run.first.max(before.changes + 1);
            run.first <= run.last
        });
        let mut runs = before.runs.iter();
        runs.all(|run| run.incarnation == incarnation)
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
