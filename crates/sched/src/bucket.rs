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
    /// What came back and found no room, since somebody asked, in the same.
    lost: u128,
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
            lost: 0,
        }
    }

    fn depth(rate: u64, depth_ns: u64) -> i64 {
        let depth = u128::from(rate) * u128::from(depth_ns) / u128::from(SECOND_NS);
        i64::try_from(depth).unwrap_or(i64::MAX).max(1)
    }

    /// Another rate from now on. What is owed stays owed; of what it has beyond its depth, what comes back in `late_ns` stays.
    pub(crate) fn set_rate(&mut self, rate: u64, depth_ns: u64, late_ns: u64, now_ns: u64) {
        self.fill(now_ns);
        self.rate = rate;
        self.rest = 0;
        self.depth = Self::depth(rate, depth_ns);
        self.level = self.level.min(self.with_late(late_ns));
    }

    /// What it may hold if somebody waited for so long.
    fn with_late(&self, late_ns: u64) -> i64 {
        match late_ns {
            0 => self.depth,
            late_ns => self.depth.saturating_add(Self::depth(self.rate, late_ns)),
        }
    }

    /// Puts in what came back since the last time.
    pub(crate) fn fill(&mut self, now_ns: u64) {
        self.fill_late(now_ns, 0);
    }

    /// The same; for so much of the time something was waiting that might have drawn from it, had it been woken. What came back then is not lost
    /// where there is no room for it: it stays until it is drawn, or [`Bucket::settle`] takes it away.
    pub(crate) fn fill_late(&mut self, now_ns: u64, late_ns: u64) {
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
        // What is there beyond it, from before, stays; no more comes.
        let most = self.with_late(late_ns).max(self.level);
        self.level = self.level.saturating_add(whole);
        if self.level >= most {
            let over = u128::from(self.level.abs_diff(most));
            let lost = over * u128::from(SECOND_NS) + u128::from(self.rest);
            self.lost = self.lost.saturating_add(lost);
            self.level = most;
            self.rest = 0;
        }
    }

    /// For how long it was full since this was asked last, in nanoseconds of what comes back: so much of its rate nobody drew. `fill` was called for now.
    pub(crate) fn take_full_ns(&mut self) -> u64 {
        if self.lost == 0 {
            return 0;
        }
        let lost = std::mem::take(&mut self.lost);
        u64::try_from(lost / u128::from(self.rate.max(1))).unwrap_or(u64::MAX)
    }

    /// Nobody waits any more: what it has beyond its depth is gone.
    pub(crate) fn settle(&mut self) {
        self.level = self.level.min(self.depth);
    }

    pub(crate) fn has_some(&self) -> bool {
        self.level > 0
    }

    /// It has some, or owes less than what it holds at most.
    pub(crate) fn may_owe(&self) -> bool {
        self.rate > 0 && self.level > -self.depth
    }

    pub(crate) fn take(&mut self, amount: u64) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.level = self.level.saturating_sub(amount);
    }

    /// Gives back what was taken for nothing.
    pub(crate) fn give_back(&mut self, amount: u64) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        let most = self.depth.max(self.level);
        self.level = self.level.saturating_add(amount).min(most);
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
    fn what_came_back_while_somebody_waited_too_long_is_there_until_it_is_drawn() {
        // One each microsecond, ten at most.
        let full = || {
            let mut bucket = Bucket::new(1_000_000, 10_000, 0);
            bucket.take(10);
            bucket
        };
        let drawn = |mut bucket: Bucket| {
            let mut drawn = 0;
            while bucket.has_some() {
                bucket.take(1);
                drawn += 1;
            }
            drawn
        };
        let mut bucket = full();
        bucket.fill(100_000);
        assert_eq!(drawn(bucket), 10, "nobody waited");
        let mut bucket = full();
        bucket.fill_late(100_000, 60_000);
        assert_eq!(drawn(bucket.clone()), 70, "for 60 us");
        // It stays, and grows no more.
        bucket.fill(200_000);
        bucket.give_back(5);
        assert_eq!(drawn(bucket.clone()), 70);
        bucket.take(65);
        bucket.fill(203_000);
        assert_eq!(drawn(bucket.clone()), 8, "as usual again");
        let mut bucket = full();
        bucket.fill_late(100_000, 60_000);
        let mut slower = bucket.clone();
        slower.set_rate(500_000, 10_000, 20_000, 100_000);
        assert_eq!(drawn(slower), 15, "of both");
        bucket.settle();
        assert_eq!(drawn(bucket), 10);
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
        bucket.set_rate(1, SECOND_NS, 0, u64::MAX);
        bucket.give_back(1);
        assert!(bucket.has_some());
    }

    /// To the nanosecond, however seldom or often it is filled.
    #[test]
    fn it_knows_for_how_long_it_was_full() {
        for step_ns in [7, 1_000, 333_333, 10_000_000] {
            // One each millisecond, two at most.
            let mut bucket = Bucket::new(1000, 2_000_000, 0);
            bucket.take(12);
            let filled = |bucket: &mut Bucket, from_ns: u64, to_ns: u64| {
                let mut now_ns = from_ns;
                while now_ns < to_ns {
                    now_ns = to_ns.min(now_ns + step_ns);
                    bucket.fill(now_ns);
                }
                bucket.take_full_ns()
            };
            assert_eq!(filled(&mut bucket, 0, 12_000_000), 0, "{step_ns}");
            assert_eq!(filled(&mut bucket, 12_000_000, 15_500_000), 3_500_000);
            assert_eq!(bucket.take_full_ns(), 0, "it was told of already");
            bucket.take(1);
            assert_eq!(filled(&mut bucket, 15_500_000, 17_000_000), 500_000);
        }
        let mut none = Bucket::new(0, 1, 0);
        none.take(1);
        none.fill(u64::MAX);
        assert_eq!(none.take_full_ns(), 0);
    }

    #[test]
    fn what_is_owed_stays_owed_when_the_rate_changes() {
        let mut bucket = Bucket::new(1000, SECOND_NS, 0);
        bucket.take(3000);
        bucket.set_rate(1_000_000, SECOND_NS, 0, 0);
        assert_eq!(bucket.ready_at_ns(), 2_001_000);
    }
}
