//! How many operations of a volume are under way, and for how long there were any.

use std::cell::Cell;

use flagstone_platform::Time;

/// Counts those that have begun and not ended.
#[derive(Default)]
pub(super) struct UnderWay {
    count: Cell<u64>,
    /// Since when there are any, if there are.
    since: Cell<Time>,
    /// For how long there were any before that, in nanoseconds.
    occupied_ns: Cell<u64>,
}

impl UnderWay {
    /// One has begun.
    pub(super) fn begin(&self, now: Time) {
        if self.count.get() == 0 {
            self.since.set(now);
        }
        self.count.set(self.count.get() + 1);
    }

    /// One has ended.
    pub(super) fn end(&self, now: Time) {
        self.count.set(self.count.get().saturating_sub(1));
        if self.count.get() == 0 {
            let passed_ns = now.since(self.since.get());
            self.occupied_ns.set(self.occupied_ns.get() + passed_ns);
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    /// For how long there were any until now, in nanoseconds.
    pub(super) fn occupied_ns(&self, now: Time) -> u64 {
        let now_ns = match self.count.get() {
            0 => 0,
            _ => now.since(self.since.get()),
        };
        self.occupied_ns.get() + now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_many_there_are() {
        let under_way = UnderWay::default();
        assert_eq!(under_way.occupied_ns(Time(500)), 0);
        under_way.begin(Time(1000));
        under_way.begin(Time(1200));
        assert_eq!(
            (under_way.count(), under_way.occupied_ns(Time(1500))),
            (2, 500)
        );
        under_way.end(Time(1600));
        assert_eq!(
            (under_way.count(), under_way.occupied_ns(Time(1700))),
            (1, 700)
        );
        under_way.end(Time(2000));
        assert_eq!(
            (under_way.count(), under_way.occupied_ns(Time(9000))),
            (0, 1000)
        );
        under_way.begin(Time(10_000));
        assert_eq!(under_way.occupied_ns(Time(10_005)), 1005);
    }
}
