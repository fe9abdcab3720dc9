//! What the answers that tenants got come to. Pure: from times to numbers.

use super::background::OwnWork;
use super::load::{Answer, Clock};

const SECOND_NS: u64 = 1_000_000_000;
/// How finely the pictures are drawn.
pub(super) const STEP_NS: u64 = 100_000_000;

/// What a tenant saw between two times.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Seen {
    /// Requests answered a second.
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// A tenth of a second of a tenant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Slice {
    /// Where it begins, in seconds from the end of the warm-up.
    pub(super) second: f64,
    pub(super) seen: Seen,
}

/// Before, while and after the burst.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Phases {
    pub(super) before: Seen,
    pub(super) during: Seen,
    pub(super) after: Seen,
}

impl Phases {
    /// All that was answered in each, its first moments included.
    pub(super) fn of(answers: &[Answer], clock: &Clock) -> Phases {
        Phases {
            before: seen(answers, clock.warm_ns, clock.burst_ns()),
            during: seen(answers, clock.burst_ns(), clock.burst_end_ns()),
            after: seen(answers, clock.burst_end_ns(), clock.end_ns()),
        }
    }

    /// What is left of the throughput during the burst, of what it was before.
    pub(super) fn rate_kept(&self) -> f64 {
        ratio(self.during.rate, self.before.rate)
    }

    /// How many times its p99 is during the burst, of the smaller of those before and after: were the time before disturbed by something else,
    /// anything would look small beside it.
    pub(super) fn p99_grown(&self) -> f64 {
        ratio(
            self.during.p99_us,
            self.before.p99_us.min(self.after.p99_us),
        )
    }
}

/// Of nothing, nothing can be left: zero, which meets no goal.
fn ratio(now: f64, before: f64) -> f64 {
    match before > 0.0 {
        true => now / before,
        false => 0.0,
    }
}

/// What these answers come to from a time up to another.
pub(super) fn seen(answers: &[Answer], from_ns: u64, to_ns: u64) -> Seen {
    let within = |answer: &&Answer| answer.at_ns >= from_ns && answer.at_ns < to_ns;
    let mut took: Vec<u64> = answers
        .iter()
        .filter(within)
        .map(|answer| answer.took_ns)
        .collect();
    took.sort_unstable();
    let percentile = |percent: usize| {
        let at = took.len() * percent / 100;
        took.get(at).copied().unwrap_or(0) as f64 / 1000.0
    };
    Seen {
        rate: took.len() as f64 / seconds(to_ns.saturating_sub(from_ns).max(1)),
        p50_us: percentile(50),
        p99_us: percentile(99),
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND_NS as f64
}

/// The same for each tenth of a second behind the warm-up. The answers are in the order of time.
pub(super) fn slices(answers: &[Answer], clock: &Clock) -> Vec<Slice> {
    let mut slices = Vec::new();
    let mut from_ns = clock.warm_ns;
    while from_ns + STEP_NS <= clock.end_ns() {
        let to_ns = from_ns + STEP_NS;
        let first = answers.partition_point(|answer| answer.at_ns < from_ns);
        let end = answers.partition_point(|answer| answer.at_ns < to_ns);
        slices.push(Slice {
            second: seconds(from_ns - clock.warm_ns),
            seen: seen(&answers[first..end], from_ns, to_ns),
        });
        from_ns = to_ns;
    }
    slices
}

/// How much of the device's ceiling all tenants and the node itself together used while the burst lasted: in all of it, and in the second of it
/// in which it was least. A burst shorter than a second is one second.
pub(super) fn used(answers: &[Vec<Answer>], own: &[OwnWork], clock: &Clock) -> (f64, f64) {
    let price = |from_ns: u64, to_ns: u64| {
        let all = answers.iter().flatten();
        let within = all.filter(|answer| answer.at_ns >= from_ns && answer.at_ns < to_ns);
        let own = own
            .iter()
            .filter(|work| work.at_ns >= from_ns && work.at_ns < to_ns);
        let sum: u64 = within
            .map(|answer| answer.price_ns)
            .chain(own.map(|work| work.used_ns))
            .sum();
        sum as f64 / to_ns.saturating_sub(from_ns).max(1) as f64
    };
    let (from_ns, end_ns) = (clock.burst_ns(), clock.burst_end_ns());
    let all = price(from_ns, end_ns);
    let step_ns = SECOND_NS.min(clock.third_ns);
    let starts = (from_ns..end_ns).step_by(step_ns.max(1) as usize);
    let whole = starts.filter(|start| start + step_ns <= end_ns);
    let least = whole.map(|start| price(start, start + step_ns));
    (all, least.fold(all, f64::min))
}

/// How far the rate of each is from its share of all, as a part of its share; all have one price.
pub(super) fn off_shares(rates: &[f64], shares: &[u32]) -> Vec<f64> {
    let whole: f64 = rates.iter().sum();
    let parts: f64 = shares.iter().map(|&share| f64::from(share)).sum();
    let off = |(rate, &share): (&f64, &u32)| {
        let due = whole * f64::from(share) / parts;
        ratio(*rate, due) - 1.0
    };
    rates.iter().zip(shares).map(off).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Thirds of a second and a half, behind a warm-up of a second.
    fn clock() -> Clock {
        Clock {
            start: Instant::now(),
            warm_ns: SECOND_NS,
            third_ns: SECOND_NS * 3 / 2,
        }
    }

    /// An answer every so often, each of which took so long.
    fn answers(from_ns: u64, to_ns: u64, every_ns: u64, took_ns: u64) -> Vec<Answer> {
        let answer = |at_ns| Answer {
            at_ns,
            took_ns,
            price_ns: every_ns / 4,
        };
        (from_ns..to_ns)
            .step_by(every_ns as usize)
            .map(answer)
            .collect()
    }

    fn three_phases() -> Vec<Answer> {
        let clock = clock();
        let mut all = answers(0, clock.burst_ns(), 1_000_000, 5_000_000);
        all.extend(answers(
            clock.burst_ns(),
            clock.burst_end_ns(),
            2_000_000,
            8_000_000,
        ));
        all.extend(answers(
            clock.burst_end_ns(),
            clock.end_ns() + SECOND_NS,
            1_000_000,
            5_000_000,
        ));
        all
    }

    #[test]
    fn each_phase_has_its_own_figures() {
        let phases = Phases::of(&three_phases(), &clock());
        let quiet = Seen {
            rate: 1000.0,
            p50_us: 5000.0,
            p99_us: 5000.0,
        };
        assert_eq!((phases.before, phases.after), (quiet, quiet));
        assert_eq!((phases.during.rate, phases.during.p99_us), (500.0, 8000.0));
        assert_eq!((phases.rate_kept(), phases.p99_grown()), (0.5, 1.6));
    }

    #[test]
    fn a_disturbed_third_hides_no_growth_of_the_p99() {
        let third = |p99_us| Seen {
            rate: 1.0,
            p50_us: 1.0,
            p99_us,
        };
        let grown = |before, during, after| {
            let phases = Phases {
                before: third(before),
                during: third(during),
                after: third(after),
            };
            phases.p99_grown()
        };
        assert_eq!(grown(4.0, 2.0, 1.0), 2.0);
        assert_eq!(grown(1.0, 2.0, 4.0), 2.0);
        assert_eq!(grown(0.0, 2.0, 4.0), 0.0, "of nothing");
        assert_eq!(grown(4.0, 2.0, 0.0), 0.0, "of nothing");
    }

    #[test]
    fn who_had_nothing_before_has_kept_nothing() {
        let clock = clock();
        let late = answers(clock.burst_ns(), clock.burst_end_ns(), 1_000_000, 1);
        let phases = Phases::of(&late, &clock);
        assert_eq!((phases.rate_kept(), phases.p99_grown()), (0.0, 0.0));
    }

    #[test]
    fn a_percentile_is_of_those_within() {
        let mut all = answers(0, 100, 1, 1000);
        // Two of a hundred take long, and one that is answered later longer still.
        all[3].took_ns = 7000;
        all[50].took_ns = 9000;
        all.extend(answers(100, 101, 1, 1_000_000));
        let seen = seen(&all, 0, 100);
        assert_eq!((seen.p50_us, seen.p99_us), (1.0, 9.0));
    }

    #[test]
    fn slices_begin_behind_the_warm_up_and_end_with_the_last_third() {
        let slices = slices(&three_phases(), &clock());
        assert_eq!(slices.len(), 45);
        assert_eq!((slices[0].second, slices[0].seen.rate), (0.0, 1000.0));
        assert_eq!((slices[15].second, slices[15].seen.rate), (1.5, 500.0));
        assert_eq!(slices[44].seen.p99_us, 5000.0);
    }

    #[test]
    fn what_is_used_is_of_the_burst_and_of_its_worst_second() {
        let clock = clock();
        // Two tenants, each of which uses a quarter; one of them pauses for a fifth of a second early in the burst.
        let one = answers(0, clock.end_ns(), 1_000_000, 1);
        let mut other = one.clone();
        let pause = clock.burst_ns() + 100_000_000;
        other.retain(|answer| answer.at_ns < pause || answer.at_ns >= pause + 200_000_000);
        let answers = [one, other];
        let (all, least) = used(&answers, &[], &clock);
        assert!((all - (0.5 - 0.05 / 1.5)).abs() < 1e-9, "{all}");
        assert!((least - 0.45).abs() < 1e-9, "{least}");
        // What the node does of its own counts when it is done.
        let own = |at_ns| OwnWork {
            at_ns,
            used_ns: 30_000_000,
        };
        let within = [own(clock.burst_ns() + 500_000_000)];
        let (all, least) = used(&answers, &within, &clock);
        assert!((all - (0.5 - 0.02 / 1.5)).abs() < 1e-9, "{all}");
        assert!((least - 0.48).abs() < 1e-9, "{least}");
        let later = [own(clock.burst_end_ns())];
        assert_eq!(used(&answers, &later, &clock), used(&answers, &[], &clock));
    }

    #[test]
    fn shares_are_of_what_all_got_together() {
        let off = off_shares(&[100.0, 210.0, 290.0], &[1, 2, 3]);
        let expected = [0.0, 0.05, -1.0 / 30.0];
        for (off, expected) in off.iter().zip(expected) {
            assert!((off - expected).abs() < 1e-9, "{off}");
        }
        assert_eq!(off_shares(&[0.0, 0.0], &[1, 1]), [-1.0, -1.0]);
    }
}
