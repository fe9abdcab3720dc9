//! How many operations of a volume are under way, for how long there were any, and how many at a time.

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
    /// When one began or ended last.
    changed: Cell<Time>,
    /// For how long each of them was under way until then, all added up, in nanoseconds.
    total_ns: Cell<u64>,
}

impl UnderWay {
    /// One has begun.
    pub(super) fn begin(&self, now: Time) {
        self.add_up(now);
        if self.count.get() == 0 {
            self.since.set(now);
        }
        self.count.set(self.count.get() + 1);
    }

    /// One has ended.
    pub(super) fn end(&self, now: Time) {
        self.add_up(now);
        self.count.set(self.count.get().saturating_sub(1));
        if self.count.get() == 0 {
            let passed_ns = now.since(self.since.get());
            self.occupied_ns.set(self.occupied_ns.get() + passed_ns);
        }
    }

    fn add_up(&self, now: Time) {
        self.total_ns.set(self.total_ns(now));
        self.changed.set(now);
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

    /// For how long each was under way until now, all added up, in nanoseconds: between two moments that is how many there were at a time. What
    /// those took that ended in between says something else, of which a part may have been before.
    pub(super) fn total_ns(&self, now: Time) -> u64 {
        let passed_ns = now.since(self.changed.get());
        let more_ns = passed_ns.saturating_mul(self.count.get());
        self.total_ns.get().saturating_add(more_ns)
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

    #[test]
    fn each_counts_as_long_as_it_is_there() {
        let under_way = UnderWay::default();
        assert_eq!(under_way.total_ns(Time(500)), 0);
        under_way.begin(Time(1000));
        under_way.begin(Time(1200));
        assert_eq!(under_way.total_ns(Time(1500)), 200 + 2 * 300);
        // Two of them in all of this time: as many, though none has ended.
        let then = under_way.total_ns(Time(2000));
        assert_eq!(under_way.total_ns(Time(3000)) - then, 2 * 1000);
        under_way.end(Time(3000));
        under_way.end(Time(3100));
        assert_eq!(under_way.total_ns(Time(9000)), 2000 + 1900);
    }
}
