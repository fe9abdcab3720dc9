//! What clients bring about as often as they like is logged now and then, or they would fill the log's disk.

use std::cell::Cell;

use flagstone_platform::Time;

/// Between two lines of one kind, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;
/// So many lines are free before there are pauses: what happens to a few clients is said of each.
const FREE_LINES: u64 = 20;

/// Lines of one kind.
#[derive(Default)]
pub(crate) struct Sparingly {
    /// When the pause began that a line without leave would fall into.
    since: Cell<Option<Time>>,
    said: Cell<u64>,
    left_out: Cell<u64>,
}

impl Sparingly {
    /// Whether the line is to be said now: `Some` with the number of those that were left out before it.
    pub(crate) fn note(&self, now: Time) -> Option<u64> {
        let is_new = self
            .since
            .get()
            .is_none_or(|since| now.since(since) >= PAUSE_NS);
        if is_new {
            // After a while in which nobody was troublesome all lines are free again.
            let was_quiet = self.said.get() < FREE_LINES;
            self.since.set(Some(now));
            self.said.set(if was_quiet { 0 } else { FREE_LINES - 1 });
        }
        if self.said.get() >= FREE_LINES {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.said.set(self.said.get() + 1);
        Some(self.left_out.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_said_once_a_second() {
        let lines = Sparingly::default();
        let mut said = Vec::new();
        // A hundred a second, for five seconds.
        for count in 0..500 {
            if let Some(left_out) = lines.note(Time(count * 10_000_000)) {
                said.push(left_out);
            }
        }
        let free = [0; FREE_LINES as usize];
        assert_eq!(said[..free.len()], free);
        assert_eq!(said[free.len()..], [80, 99, 99, 99]);
    }

    #[test]
    fn a_few_are_said_each() {
        let lines = Sparingly::default();
        for second in 0..10 {
            for count in 0..19 {
                let now = Time(second * PAUSE_NS + count);
                assert_eq!(lines.note(now), Some(0), "{second} {count}");
            }
        }
    }
}
