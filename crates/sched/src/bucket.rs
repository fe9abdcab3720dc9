//! A rate with a little patience.

use crate::SECOND_NS;

/// A token bucket that may be drawn below zero: whoever finds it above zero takes what he needs, and
/// the next one waits until it is above zero again. So the rate holds over time for requests of any
/// size, and none has to be split.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// What comes back each second.
    rate: u64,
    /// What it holds at most. At least one.
    depth: i64,
    level: i64,
    /// Until when it was filled, in nanoseconds.
    filled_at_ns: u64,
    /// What was not a whole unit of what came back, in units times nanoseconds.
    rest: u64,
}

impl Bucket {
    /// A full bucket that holds as much as comes back in `depth_ns`.
    pub(crate) fn new(rate: u64, depth_ns: u64, now_ns: u64) -> Bucket {
        let depth = Self::depth(rate, depth_ns);
        Bucket {
            rate,
            depth,
            level: depth,
            filled_at_ns: now_ns,
            rest: 0,
        }
    }

    fn depth(rate: u64, depth_ns: u64) -> i64 {
        let depth = u128::from(rate) * u128::from(depth_ns) / u128::from(SECOND_NS);
        i64::try_from(depth).unwrap_or(i64::MAX).max(1)
    }

    /// Another rate from now on. What is owed stays owed.
    pub(crate) fn set_rate(&mut self, rate: u64, depth_ns: u64, now_ns: u64) {
        self.fill(now_ns);
        self.rate = rate;
        self.rest = 0;
        self.depth = Self::depth(rate, depth_ns);
        self.level = self.level.min(self.depth);
    }

    /// Puts in what came back since the last time.
    pub(crate) fn fill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.filled_at_ns);
        if passed == 0 {
            return;
        }
        self.filled_at_ns = now_ns;
        let all = u128::from(self.rate) * u128::from(passed) + u128::from(self.rest);
        let whole = all / u128::from(SECOND_NS);
        // Below a second's nanoseconds.
        self.rest = (all % u128::from(SECOND_NS)) as u64;
        let whole = i64::try_from(whole).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(whole);
        if self.level >= self.depth {
            self.level = self.depth;
            self.rest = 0;
        }
    }

    pub(crate) fn has_some(&self) -> bool {
        self.level > 0
    }

    pub(crate) fn take(&mut self, amount: u64) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.level = self.level.saturating_sub(amount);
    }

    /// Gives back what was taken for nothing.
    pub(crate) fn give_back(&mut self, amount: u64) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(amount).min(self.depth);
    }

    /// When it is above zero again, if nothing more is taken. `fill` was called for now.
    pub(crate) fn ready_at_ns(&self) -> u64 {
        if self.has_some() {
            return self.filled_at_ns;
        }
        if self.rate == 0 {
            return u64::MAX;
        }
        let lacking = 1 - i128::from(self.level);
        let needed = lacking as u128 * u128::from(SECOND_NS) - u128::from(self.rest);
        let ns = needed.div_ceil(u128::from(self.rate));
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        self.filled_at_ns.saturating_add(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_however_it_is_asked() {
        // Three a second, looked at every 7 ns and drawn into debt by tens.
        for step in [7, 1_000_003, 900_000_000] {
            let mut bucket = Bucket::new(3, SECOND_NS, 0);
            let (mut now, mut taken) = (0, 0);
            let steps = (20 * SECOND_NS / step).min(2_000_000);
            for _ in 0..steps {
                now += step;
                bucket.fill(now);
                if bucket.has_some() {
                    bucket.take(10);
                    taken += 10;
                }
            }
            let came = 3 + 3 * now / SECOND_NS;
            assert!(
                taken <= came + 10 && taken + 4 >= came.min(taken + 4),
                "{taken} of {came}"
            );
            assert!(taken + 10 >= came, "{taken} of {came} at {step}");
        }
    }

    #[test]
    fn it_says_when_to_come_back() {
        let mut bucket = Bucket::new(1000, 1_000_000, 5);
        assert!(bucket.has_some());
        bucket.take(11);
        assert!(!bucket.has_some());
        let at = bucket.ready_at_ns();
        bucket.fill(at - 1);
        assert!(!bucket.has_some());
        bucket.fill(at);
        assert!(bucket.has_some());
        assert_eq!(bucket.ready_at_ns(), at);
    }

    #[test]
    fn a_rate_of_zero_never_comes_back() {
        let mut bucket = Bucket::new(0, 1, 0);
        bucket.take(1);
        bucket.fill(u64::MAX);
        assert!(!bucket.has_some());
        assert_eq!(bucket.ready_at_ns(), u64::MAX);
        bucket.set_rate(1, SECOND_NS, u64::MAX);
        bucket.give_back(1);
        assert!(bucket.has_some());
    }

    #[test]
    fn what_is_owed_stays_owed_when_the_rate_changes() {
        let mut bucket = Bucket::new(1000, SECOND_NS, 0);
        bucket.take(3000);
        bucket.set_rate(1_000_000, SECOND_NS, 0);
        assert_eq!(bucket.ready_at_ns(), 2_001_000);
    }
}
