//! How quick a device's flushes are, as far as they have been seen.
//!
//! Handing a flush to another thread and hearing of its end costs about as much as the flush of a
//! quick device takes. A core with nothing else to do can make the call itself, if experience says
//! that it will soon be back. See `docs/decisions/2026-11-21-flush-and-spin.md`.

use std::cell::Cell;

/// Flushes seen before anything is said about the next one.
const SEEN_MIN: u32 = 16;

/// A flush is quick if they take no longer than this on average, in nanoseconds. Clients that come
/// meanwhile wait this long at most.
const QUICK_NS: u64 = 300_000;

/// A flush that took this long is an upset, in nanoseconds.
const UPSET_NS: u64 = 2_000_000;

/// After an upset this many flushes are not expected to be quick.
const UPSET_LASTS: u32 = 100;

/// The history of one device's flushes on one core.
#[derive(Default)]
pub(crate) struct FlushPace {
    seen: Cell<u32>,
    /// Moving average of their times, in nanoseconds; older ones weigh less.
    average_ns: Cell<u64>,
    /// Flushes until an upset is forgotten.
    upset: Cell<u32>,
}

impl FlushPace {
    /// True if the next flush will probably be quick.
    pub(crate) fn is_quick(&self) -> bool {
        self.seen.get() >= SEEN_MIN && self.upset.get() == 0 && self.average_ns.get() <= QUICK_NS
    }

    /// A write that the core stood still for took `ns` nanoseconds.
    pub(crate) fn note_write(&self, ns: u64) {
        if ns >= UPSET_NS {
            self.upset.set(UPSET_LASTS);
        }
    }

    /// A flush took `ns` nanoseconds.
    pub(crate) fn note(&self, ns: u64) {
        let average = self.average_ns.get();
        let average = match self.seen.get() {
            0 => ns,
            _ => average - average / 8 + ns / 8,
        };
        self.average_ns.set(average);
        self.seen.set(self.seen.get().saturating_add(1));
        self.upset.set(match ns >= UPSET_NS {
            true => UPSET_LASTS,
            false => self.upset.get().saturating_sub(1),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(times_ns: impl IntoIterator<Item = u64>) -> FlushPace {
        let pace = FlushPace::default();
        times_ns.into_iter().for_each(|ns| pace.note(ns));
        pace
    }

    #[test]
    fn nothing_is_expected_of_an_unknown_device() {
        assert!(!noted([]).is_quick());
        assert!(!noted([90_000; 15]).is_quick());
        assert!(noted([90_000; 16]).is_quick());
    }

    #[test]
    fn slow_flushes_are_not_quick() {
        assert!(!noted([400_000; 1_000]).is_quick());
        let pace = noted([90_000; 100]);
        (0..16).for_each(|_| pace.note(600_000));
        assert!(!pace.is_quick(), "it has become slow");
        (0..32).for_each(|_| pace.note(90_000));
        assert!(pace.is_quick(), "and quick again");
    }

    #[test]
    fn an_upset_is_remembered() {
        let pace = noted([90_000; 100]);
        pace.note(2_100_000);
        for _ in 0..99 {
            pace.note(90_000);
            assert!(!pace.is_quick());
        }
        pace.note(90_000);
        assert!(pace.is_quick());
    }

    #[test]
    fn a_write_that_was_an_upset_is_remembered_and_changes_no_average() {
        let pace = noted([90_000; 100]);
        let before = (pace.average_ns.get(), pace.seen.get());
        pace.note_write(UPSET_NS - 1);
        assert!(pace.is_quick(), "just below");
        pace.note_write(UPSET_NS);
        assert_eq!((pace.average_ns.get(), pace.seen.get()), before);
        for flush in 0..UPSET_LASTS {
            assert!(!pace.is_quick(), "{flush} flushes behind it");
            // Quick writes behind it don't make up for it.
            pace.note_write(1_000);
            pace.note(90_000);
        }
        assert!(pace.is_quick());
    }
}
