//! Whether an idle core should look for work for a while before it sleeps.
//!
//! Sleeping and being woken costs time (20 to 40 us in a virtual machine) and a few microseconds of
//! CPU; looking for work costs CPU for as long as it lasts. So it is worth it only where the next
//! event comes soon, and the past says where that is.
//!
//! Idle periods are told apart by what the core waits for: a transfer of a device, a flush, or only
//! others (a client may think for any time). Within each kind, the outcomes of the last three idle
//! periods (short or long) select one of eight cells, the way a branch predictor does it. A
//! client that sends a header, its payload, and then thinks gives the pattern short, long, short,
//! long; each cell learns its own step, and the core spins only before the short ones.
//!
//! A cell spins until that fails. Each failure in a row doubles the number of idle periods in which
//! it doesn't try again; a success ends that, and so does a period that was short although the core
//! slept. A first version kept the share of short periods per cell instead, and counted a period in
//! which the core slept as short if it lasted little longer than the limit. A flush that takes just
//! longer than the limit then failed when spun for and counted as short when not, for ever in turns.
//!
//! A client that comes now and then makes every wait for the device end in time, but what looking for
//! work gains is small beside its pauses, and costs the more CPU the more such clients there are. So
//! after a long wait for others nothing is looked for until others have come quickly again.
//!
//! No clock and no I/O here: the caller says how long it waited.

/// What a core waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// A read or write of a device is in flight.
    Transfer,
    /// Only flushes or discards are in flight on devices.
    Flush,
    /// Only clients, peers, timers and other cores.
    Others,
}

const KINDS: usize = 3;

/// How an idle period ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Something happened while the core looked.
    WhileSpinning,
    /// The core slept, after it had looked in vain if `spun`, and woke because something happened
    /// (`event`) or because a timer was due.
    Asleep { spun: bool, event: bool },
}

/// Outcomes of idle periods that select a cell.
const HISTORY_BITS: u32 = 3;
const CELLS: usize = 1 << HISTORY_BITS;

/// Most idle periods that a cell lets pass between attempts. At a thousand fruitless idle periods a
/// second and 100 us for each attempt, attempts take less than two thousandths of the core.
const SKIP_MAX: u32 = 63;

/// About what being woken takes, in nanoseconds: a period in which the core slept at once belongs to
/// the short ones of a pattern if it was longer than the limit by no more than this.
const WAKE_NS: u64 = 30_000;

/// A wait for others that is longer than this many limits is a pause.
const PAUSE_LIMITS: u64 = 4;

pub(crate) struct SpinPolicy {
    max_ns: u64,
    kinds: [Kind; KINDS],
    /// The last wait for others was a pause.
    paused: bool,
}

#[derive(Default)]
struct Kind {
    history: usize,
    cells: [Cell; CELLS],
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// Idle periods until the next attempt.
    skip: u32,
    /// What `skip` was set to by the last failure; zero after a success.
    penalty: u32,
}

impl SpinPolicy {
    /// Spins at most `max_ns` at a time; 0 never.
    pub(crate) fn new(max_ns: u64) -> SpinPolicy {
        SpinPolicy {
            max_ns,
            kinds: Default::default(),
            paused: false,
        }
    }

    /// How long to look for work before sleeping, in nanoseconds.
    pub(crate) fn plan_ns(&self, wait: Wait) -> u64 {
        let kind = &self.kinds[wait as usize];
        match kind.cells[kind.history].skip {
            0 if wait == Wait::Others || !self.paused => self.max_ns,
            _ => 0,
        }
    }

    /// Learns from an idle period of `waited_ns`.
    pub(crate) fn note(&mut self, wait: Wait, waited_ns: u64, ending: Ending) {
        let max_ns = self.max_ns;
        if wait == Wait::Others && !matches!(ending, Ending::Asleep { event: false, .. }) {
            self.paused = waited_ns > max_ns.saturating_mul(PAUSE_LIMITS);
        }
        let kind = &mut self.kinds[wait as usize];
        let cell = &mut kind.cells[kind.history];
        let short = match ending {
            Ending::WhileSpinning => {
                *cell = Cell::default();
                true
            }
            // Too early to say that nothing would have come.
            Ending::Asleep { event: false, .. } if waited_ns <= max_ns => return,
            Ending::Asleep { spun: true, .. } => {
                cell.penalty = (cell.penalty * 2 + 1).min(SKIP_MAX);
                cell.skip = cell.penalty;
                false
            }
            Ending::Asleep { spun: false, event } => {
                cell.skip = match event && waited_ns <= max_ns {
                    true => 0,
                    false => cell.skip.saturating_sub(1),
                };
                event && waited_ns <= max_ns + WAKE_NS
            }
        };
        kind.history = (kind.history << 1 | usize::from(short)) & (CELLS - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_NS: u64 = 50_000;

    /// Lets the policy live through idle periods of the given true lengths, where being woken
    /// takes 25 us. Returns the time spent spinning and the number of periods cut short.
    fn live(policy: &mut SpinPolicy, waits: impl Iterator<Item = (Wait, u64)>) -> (u64, usize) {
        let (mut spun_ns, mut hits) = (0, 0);
        for (wait, length_ns) in waits {
            let plan = policy.plan_ns(wait);
            spun_ns += plan.min(length_ns);
            if length_ns <= plan {
                hits += 1;
                policy.note(wait, length_ns, Ending::WhileSpinning);
            } else {
                let (spun, event) = (plan > 0, true);
                policy.note(wait, length_ns + 25_000, Ending::Asleep { spun, event });
            }
        }
        (spun_ns, hits)
    }

    #[test]
    fn zero_never_spins() {
        let mut policy = SpinPolicy::new(0);
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 1_000)));
        assert_eq!(spun_ns, 0);
    }

    #[test]
    fn steady_short_waits_are_spun_through() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let (_, hits) = live(&mut policy, (0..1000).map(|_| (Wait::Others, 30_000)));
        assert_eq!(hits, 1000);
    }

    #[test]
    fn a_trickle_stops_the_spinning() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let trickle =
            |n: usize| (0..n).flat_map(|_| [(Wait::Transfer, 40_000), (Wait::Others, 900_000)]);
        live(&mut policy, trickle(100));
        let (spun_ns, _) = live(&mut policy, trickle(1000));
        assert!(spun_ns < 1000 * MAX_NS / 50, "{spun_ns} ns");
        // Its first request, for the device of which the core sleeps, then no more.
        let busy =
            |n: usize| (0..n).flat_map(|_| [(Wait::Transfer, 40_000), (Wait::Others, 20_000)]);
        let (_, hits) = live(&mut policy, busy(100));
        assert!(hits >= 198, "{hits} of 200");
    }

    #[test]
    fn a_pattern_is_learnt() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let pattern =
            |n: usize| (0..n).flat_map(|_| [(Wait::Others, 8_000), (Wait::Others, 900_000)]);
        live(&mut policy, pattern(100));
        let (spun_ns, hits) = live(&mut policy, pattern(1000));
        assert_eq!(hits, 1000);
        let fruitless_ns = spun_ns - 1000 * 8_000;
        assert!(fruitless_ns < 1000 * MAX_NS / 50, "{fruitless_ns} ns");
    }

    /// Writes are answered in time, flushes just not.
    #[test]
    fn what_takes_just_too_long_is_not_tried_for_ever() {
        for flush_ns in [51_000, 55_000, 60_000, 100_000] {
            let mut policy = SpinPolicy::new(MAX_NS);
            let stable = |n: usize| {
                (0..n).flat_map(move |_| [(Wait::Transfer, 40_000), (Wait::Flush, flush_ns)])
            };
            live(&mut policy, stable(200));
            let (spun_ns, hits) = live(&mut policy, stable(1000));
            assert!(hits >= 980, "{hits} writes were spun through");
            let fruitless_ns = spun_ns - hits as u64 * 40_000;
            assert!(
                fruitless_ns < 1000 * MAX_NS / 20,
                "{fruitless_ns} ns for {flush_ns}"
            );
        }
    }

    #[test]
    fn idleness_stops_it_and_load_brings_it_back() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        assert!(spun_ns <= 1000 * MAX_NS / 50, "{spun_ns} ns");
        live(&mut policy, (0..10).map(|_| (Wait::Others, 20_000)));
        let (_, hits) = live(&mut policy, (0..100).map(|_| (Wait::Others, 20_000)));
        assert_eq!(hits, 100, "at once, since the sleeps were short");
        live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        live(&mut policy, (0..100).map(|_| (Wait::Others, 45_000)));
        let (_, hits) = live(&mut policy, (0..100).map(|_| (Wait::Others, 45_000)));
        assert_eq!(
            hits, 100,
            "after a while, since being woken hides how short they were"
        );
    }

    #[test]
    fn a_slow_device_is_slept_for() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 4_000_000)));
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 4_000_000)));
        assert!(spun_ns <= 1000 * MAX_NS / 50, "{spun_ns} ns");
        assert_eq!(policy.plan_ns(Wait::Others), MAX_NS, "the kinds are apart");
    }

    #[test]
    fn frequent_timers_do_not_keep_a_core_spinning() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let mut spins = 0;
        for _ in 0..1000 {
            let spun = policy.plan_ns(Wait::Others) > 0;
            spins += u32::from(spun);
            let event = false;
            policy.note(Wait::Others, 1_000_000, Ending::Asleep { spun, event });
        }
        assert!(spins < 40, "{spins}");
        let mut policy = SpinPolicy::new(MAX_NS);
        let (spun, event) = (true, false);
        policy.note(Wait::Others, 10_000, Ending::Asleep { spun, event });
        assert_eq!(
            policy.plan_ns(Wait::Others),
            MAX_NS,
            "it was not given its time"
        );
    }
}
