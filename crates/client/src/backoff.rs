//! How long to wait before something is tried again: pure, told what is random.

/// Growing pauses, each of random length so that many clients don't come back together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first_ns: u64,
    max_ns: u64,
    next_ns: u64,
}

impl Backoff {
    /// Pauses that begin around `first_ns` nanoseconds, double, and stay below `max_ns`.
    pub(crate) fn new(first_ns: u64, max_ns: u64) -> Backoff {
        let first_ns = first_ns.clamp(1, max_ns.max(1));
        Backoff {
            first_ns,
            max_ns: max_ns.max(1),
            next_ns: first_ns,
        }
    }

    /// The next pause in nanoseconds: half of it fixed, up to as much again by `random`.
    pub(crate) fn pause_ns(&mut self, random: u64) -> u64 {
        let whole_ns = self.next_ns;
        self.next_ns = whole_ns.saturating_mul(2).min(self.max_ns);
        let fixed_ns = whole_ns / 2;
        fixed_ns + random % (whole_ns - fixed_ns + 1)
    }

    /// It worked: the next pause is a short one again.
    pub(crate) fn reset(&mut self) {
        self.next_ns = self.first_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(8, 50);
        let longest: Vec<u64> = (0..5).map(|_| backoff.clone_pause(u64::MAX)).collect();
        assert_eq!(longest, [8, 16, 32, 50, 50]);
        backoff.reset();
        assert_eq!(backoff.pause_ns(0), 4);
        for random in [0, 1, 7, 12_345, u64::MAX] {
            assert!((8..=16).contains(&backoff.clone().pause_ns(random)));
        }
    }

    impl Backoff {
        /// The longest pause that `pause_ns` could have given, by trying.
        fn clone_pause(&mut self, tries: u64) -> u64 {
            let most = (0..tries.min(200)).map(|random| self.clone().pause_ns(random));
            let longest = most.max().unwrap();
            self.pause_ns(0);
            longest
        }
    }

    #[test]
    fn senseless_bounds_do_no_harm() {
        assert!(Backoff::new(0, 0).pause_ns(u64::MAX) <= 1);
        assert!(Backoff::new(u64::MAX, u64::MAX).pause_ns(u64::MAX) > 1);
    }
}
