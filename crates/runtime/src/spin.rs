//! Whether an idle core should look for work for a while before it sleeps.
//!
//! Sleeping and being woken costs time (20 to 40 us in a virtual machine) and a few microseconds of
//! CPU; looking for work costs CPU for as long as it lasts. So it is worth it only where the next
//! event comes soon, and the past says where that is.
//!
//! Idle periods are told apart by what the core waits for: a device (an answer is due) or only
//! others (a client may think for any time). Within each kind, the outcomes of the last three idle
//! periods (short or long) select one of eight scores, the way a branch predictor does it. A
//! client that sends a header, its payload, and then thinks gives the pattern short, long, short,
//! long; each score learns its own step, and the core spins only before the short ones.
//!
//! A score is the running share of idle periods that were short, i.e. in which spinning paid or
//! would have paid. No clock and no I/O here: the caller says how long it waited.

/// What a core waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// An operation on a device is in flight.
    Device,
    /// Only clients, peers, timers and other cores.
    Others,
}

/// How an idle period ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Something happened while the core looked.
    WhileSpinning,
    /// Something happened while it slept, having looked before.
    SleptAfterSpinning,
    /// Something happened while it slept, not having looked.
    SleptAtOnce,
    /// A timer was due, nothing else happened.
    Timer,
}

/// Outcomes of idle periods that select a score.
const HISTORY_BITS: u32 = 3;
const SCORES: usize = 1 << HISTORY_BITS;

/// A share of 1.
const SCORE_ONE: i32 = 1 << 10;
/// Spinning starts at this share of short periods: three in eight, since a period that is cut short
/// saves more time than a fruitless one costs.
const SCORE_SPIN: i32 = SCORE_ONE * 3 / 8;
/// Where scores start: spinning gets a chance, and a few failures end it.
const SCORE_START: i32 = SCORE_ONE / 2;
/// A score moves by this part of its distance to the outcome.
const SCORE_STEP: i32 = 8;

/// What being woken takes: a period in which the core slept at once counts as short if it lasted
/// no longer than the spin limit and this together, in nanoseconds.
const WAKE_ALLOWANCE_NS: u64 = 30_000;

pub(crate) struct SpinPolicy {
    max_ns: u64,
    kinds: [Kind; 2],
}

struct Kind {
    history: usize,
    scores: [i32; SCORES],
}

impl SpinPolicy {
    /// Spins at most `max_ns` at a time; 0 never.
    pub(crate) fn new(max_ns: u64) -> SpinPolicy {
        let kind = || Kind {
            history: 0,
            scores: [SCORE_START; SCORES],
        };
        SpinPolicy {
            max_ns,
            kinds: [kind(), kind()],
        }
    }

    /// How long to look for work before sleeping, in nanoseconds.
    pub(crate) fn plan_ns(&self, wait: Wait) -> u64 {
        let kind = &self.kinds[wait as usize];
        if kind.scores[kind.history] >= SCORE_SPIN {
            self.max_ns
        } else {
            0
        }
    }

    /// Learns from an idle period of `waited_ns`.
    pub(crate) fn note(&mut self, wait: Wait, waited_ns: u64, ending: Ending) {
        let short = match ending {
            Ending::WhileSpinning => true,
            Ending::SleptAfterSpinning => false,
            Ending::SleptAtOnce => waited_ns <= self.max_ns + WAKE_ALLOWANCE_NS,
            // Too early to say that nothing would have come.
            Ending::Timer if waited_ns <= self.max_ns => return,
            Ending::Timer => false,
        };
        let kind = &mut self.kinds[wait as usize];
        let score = &mut kind.scores[kind.history];
        let target = if short { SCORE_ONE } else { 0 };
        *score += (target - *score) / SCORE_STEP;
        kind.history = (kind.history << 1 | usize::from(short)) & (SCORES - 1);
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
            } else if plan > 0 {
                policy.note(wait, length_ns + 25_000, Ending::SleptAfterSpinning);
            } else {
                policy.note(wait, length_ns + 25_000, Ending::SleptAtOnce);
            }
        }
        (spun_ns, hits)
    }

    #[test]
    fn zero_never_spins() {
        let mut policy = SpinPolicy::new(0);
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Device, 1_000)));
        assert_eq!(spun_ns, 0);
    }

    #[test]
    fn steady_short_waits_are_spun_through() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let (_, hits) = live(&mut policy, (0..1000).map(|_| (Wait::Others, 30_000)));
        assert_eq!(hits, 1000);
    }

    #[test]
    fn a_trickle_stops_the_spinning_for_clients_but_not_for_the_device() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let trickle =
            |n: usize| (0..n).flat_map(|_| [(Wait::Device, 40_000), (Wait::Others, 900_000)]);
        live(&mut policy, trickle(50));
        let (spun_ns, hits) = live(&mut policy, trickle(1000));
        assert_eq!(hits, 1000, "each device wait");
        assert_eq!(
            spun_ns,
            1000 * 40_000,
            "4 % of the second that this stands for"
        );
    }

    #[test]
    fn a_pattern_is_learnt() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let pattern =
            |n: usize| (0..n).flat_map(|_| [(Wait::Others, 8_000), (Wait::Others, 900_000)]);
        live(&mut policy, pattern(100));
        let (spun_ns, hits) = live(&mut policy, pattern(1000));
        assert_eq!(hits, 1000);
        assert_eq!(spun_ns, 1000 * 8_000);
    }

    #[test]
    fn idleness_stops_it_and_load_brings_it_back() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..100).map(|_| (Wait::Others, 5_000_000)));
        let (spun_ns, _) = live(&mut policy, (0..100).map(|_| (Wait::Others, 5_000_000)));
        assert_eq!(spun_ns, 0);
        live(&mut policy, (0..20).map(|_| (Wait::Others, 20_000)));
        let (_, hits) = live(&mut policy, (0..100).map(|_| (Wait::Others, 20_000)));
        assert_eq!(hits, 100);
    }

    #[test]
    fn a_slow_device_is_slept_for() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..100).map(|_| (Wait::Device, 4_000_000)));
        assert_eq!(policy.plan_ns(Wait::Device), 0);
        assert_eq!(policy.plan_ns(Wait::Others), MAX_NS, "the kinds are apart");
    }

    #[test]
    fn frequent_timers_do_not_keep_a_core_spinning() {
        let mut policy = SpinPolicy::new(MAX_NS);
        for _ in 0..100 {
            policy.note(Wait::Others, 1_000_000, Ending::Timer);
        }
        assert_eq!(policy.plan_ns(Wait::Others), 0);
        let mut policy = SpinPolicy::new(MAX_NS);
        policy.note(Wait::Others, 10_000, Ending::Timer);
        assert_eq!(policy.plan_ns(Wait::Others), MAX_NS);
    }
}
