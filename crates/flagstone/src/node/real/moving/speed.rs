//! How fast a move copies: what it copied lately, not on the average since it began.

use std::collections::VecDeque;

use flagstone_platform::Time;

/// How far it is looked back, about, in nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// From one mark to the next at least, in nanoseconds. Nothing is told before that has passed.
const MARK_NS: u64 = 500_000_000;

/// How much had been copied at some moments of the last seconds, oldest first.
#[derive(Default)]
pub(super) struct Speed(VecDeque<(Time, u64)>);

impl Speed {
    /// So many bytes have been copied by now, all together. Returns how many that is in a second; `None` if that can't be told yet.
    pub(super) fn copied(&mut self, now: Time, bytes: u64) -> Option<u64> {
        let marks = &mut self.0;
        if marks.back().is_none_or(|(at, _)| now.since(*at) >= MARK_NS) {
            marks.push_back((now, bytes));
        }
        // The first one that is left is the last that is as old as the window.
        while marks
            .get(1)
            .is_some_and(|(at, _)| now.since(*at) >= WINDOW_NS)
        {
            marks.pop_front();
        }
        let (at, before) = marks.front()?;
        let passed_ns = now.since(*at);
        if passed_ns < MARK_NS {
            return None;
        }
        let per_s =
            u128::from(bytes.saturating_sub(*before)) * 1_000_000_000 / u128::from(passed_ns);
        u64::try_from(per_s).ok()
    }

    /// It copies by another limit from now on.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    /// In steps of so many milliseconds, each with so many MiB.
    fn copy(
        speed: &mut Speed,
        (now_ms, bytes): (&mut u64, &mut u64),
        step: (u64, u64),
        steps: u64,
    ) -> Option<u64> {
        let mut told = None;
        for _ in 0..steps {
            *now_ms += step.0;
            *bytes += step.1 * MIB;
            told = speed.copied(Time(*now_ms * MS), *bytes);
        }
        told
    }

    #[test]
    fn it_is_that_of_the_last_seconds() {
        let (mut speed, mut now_ms, mut bytes) = (Speed::default(), 70_000, 900 * MIB);
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (100, 1), 5), None, "too early");
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (100, 1), 1), Some(10 * MIB));
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (100, 1), 600), Some(10 * MIB));
        // Half as fast for half of the window, and then for all of it.
        let at = (&mut now_ms, &mut bytes);
        let half = copy(&mut speed, at, (200, 1), 25).expect("is told");
        assert!((7 * MIB..8 * MIB).contains(&half), "{half}");
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (200, 1), 50), Some(5 * MIB));
        assert!(speed.0.len() < 25, "{}", speed.0.len());
        speed.forget();
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (400, 8), 1), None);
        let at = (&mut now_ms, &mut bytes);
        assert_eq!(copy(&mut speed, at, (800, 8), 1), Some(10 * MIB));
    }
}
