//! What the cores of a node lend each other of a device. [decibel 4.3: request windows]
//!
//! Each core writes a line about itself and reads those of all; all compute the same from the same
//! lines. Nobody is asked, and nothing is shared on the way of a request.

use crate::scheduler::Budget;

/// How often a core writes its line and divides anew, in nanoseconds.
pub const PERIOD_NS: u64 = 2_000_000;

/// A core that uses less than it was promised keeps so much more than it used, in hundredths: what it
/// may grow by before it has to take back what it lent.
const HEADROOM_PERCENT: u128 = 105;

/// The part of a device that each core has at least: a thousandth. Enough to begin with after a rest.
const LEAST_PART: u64 = 1000;

/// What a core says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Line {
    /// What its volumes were promised, in nanoseconds of device time a second.
    pub promised_ns: u64,
    /// What it used in the last period, or lately in a busier one; in the same.
    pub used_ns: u64,
    /// Something had to wait there for the window or the rate: it would use more.
    pub was_held: bool,
}

impl Line {
    /// What it can be expected to use in the next period.
    fn need_ns(&self) -> u64 {
        if self.was_held {
            return u64::MAX;
        }
        let need = u128::from(self.used_ns) * HEADROOM_PERCENT / 100;
        u64::try_from(need).unwrap_or(u64::MAX)
    }
}

/// What each core may use of a device until the lines are read again.
pub fn divide(whole: Budget, lines: &[Line]) -> Vec<Budget> {
    let mut rates = Vec::new();
    divide_rate(whole.rate_ns, lines, &mut rates);
    let budgets = rates.iter().map(|&rate_ns| budget(whole, rate_ns));
    budgets.collect()
}

/// The same of one core, if there is a line of it. `rates` is memory that is used again: whoever divides every few milliseconds takes none then.
pub fn part_of_core(
    whole: Budget,
    lines: &[Line],
    core: usize,
    rates: &mut Vec<u64>,
) -> Option<Budget> {
    divide_rate(whole.rate_ns, lines, rates);
    rates.get(core).map(|&rate_ns| budget(whole, rate_ns))
}

fn budget(whole: Budget, rate_ns: u64) -> Budget {
    Budget {
        rate_ns,
        window_ns: part(whole.window_ns, rate_ns, whole.rate_ns),
    }
}

fn divide_rate(rate_ns: u64, lines: &[Line], rates: &mut Vec<u64>) {
    let least = rate_ns / LEAST_PART;
    let promised: u128 = lines.iter().map(|l| u128::from(l.promised_ns)).sum();
    // If more was promised than there is, all promises shrink by the same factor.
    let own = |line: &Line| -> u64 {
        match promised > u128::from(rate_ns) {
            true => (u128::from(line.promised_ns) * u128::from(rate_ns) / promised) as u64,
            false => line.promised_ns,
        }
    };
    let begin_with = |line: &Line| own(line).min(line.need_ns()).max(least);
    rates.clear();
    rates.extend(lines.iter().map(begin_with));
    // Then those that need more than they were promised, until nothing is left or nobody does; one of them is
    // satisfied each time, or all is given out.
    for _ in lines {
        let left = left_of(rate_ns, rates);
        let wants = |(line, rate): (&Line, u64)| line.need_ns() > rate;
        let parts = parts_of(lines, |at| wants((&lines[at], rates[at])));
        let mut is_changed = false;
        for (line, rate) in lines.iter().zip(rates.iter_mut()) {
            if wants((line, *rate)) {
                let more = part(left, weight(line), parts);
                let new = rate.saturating_add(more).min(line.need_ns());
                is_changed |= new != *rate;
                *rate = new;
            }
        }
        if !is_changed {
            break;
        }
    }
    // What nobody needs is everybody's to grow into.
    let left = left_of(rate_ns, rates);
    let parts = parts_of(lines, |_| true);
    for (line, rate) in lines.iter().zip(rates) {
        *rate = rate.saturating_add(part(left, weight(line), parts));
    }
}

fn left_of(rate_ns: u64, rates: &[u64]) -> u64 {
    rates
        .iter()
        .fold(rate_ns, |left, &r| left.saturating_sub(r))
}

fn parts_of(lines: &[Line], counts: impl Fn(usize) -> bool) -> u64 {
    let counted = lines.iter().enumerate().filter(|&(at, _)| counts(at));
    counted.fold(0, |sum, (_, line)| sum.saturating_add(weight(line)))
}

/// What is left goes by promises; a core without any still counts for something.
fn weight(line: &Line) -> u64 {
    line.promised_ns.max(1)
}

fn part(whole: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000_000;

    fn line(promised_ns: u64, used_ns: u64, was_held: bool) -> Line {
        Line {
            promised_ns,
            used_ns,
            was_held,
        }
    }

    fn rates(lines: &[Line]) -> Vec<u64> {
        let whole = Budget {
            rate_ns: RATE,
            window_ns: 1_000_000,
        };
        let budgets = divide(whole, lines);
        let mut memory = vec![7; 3];
        for (core, budget) in budgets.iter().enumerate() {
            assert_eq!(budget.window_ns, budget.rate_ns / 1000);
            let alone = part_of_core(whole, lines, core, &mut memory);
            assert_eq!(alone, Some(*budget));
        }
        assert_eq!(part_of_core(whole, lines, lines.len(), &mut memory), None);
        budgets.iter().map(|b| b.rate_ns).collect()
    }

    #[test]
    fn who_waits_has_what_was_promised() {
        let lines = [line(RATE / 4, 0, true), line(RATE / 4 * 3, RATE, true)];
        assert_eq!(rates(&lines), [RATE / 4, RATE / 4 * 3]);
    }

    #[test]
    fn what_one_does_not_use_others_get() {
        let lines = [
            line(RATE / 2, 100_000_000, false),
            line(RATE / 2, RATE / 2, true),
        ];
        assert_eq!(rates(&lines), [105_000_000, 895_000_000]);
        let idle = [line(RATE / 2, 0, false), line(RATE / 2, RATE / 2, true)];
        assert_eq!(rates(&idle), [RATE / 1000, RATE - RATE / 1000]);
        // A third core's need divides what is left by promises.
        let three = [
            line(RATE / 2, 0, false),
            line(RATE / 8, RATE / 8, true),
            line(RATE / 8 * 3, RATE, true),
        ];
        let rates = rates(&three);
        assert_eq!(rates[2] - RATE / 8 * 3, 3 * (rates[1] - RATE / 8));
    }

    #[test]
    fn if_nobody_waits_all_may_grow() {
        let lines = [line(RATE / 2, 0, false), line(RATE / 2, 0, false)];
        assert_eq!(rates(&lines), [RATE / 2; 2]);
        assert_eq!(rates(&[line(0, 0, false); 4]), [RATE / 4; 4]);
        // Who uses what was lent to it keeps it.
        let lent = [line(RATE / 2, 0, false), line(RATE / 2, 800_000_000, false)];
        assert!(rates(&lent)[1] >= 840_000_000);
        assert_eq!(rates(&[]), [0; 0]);
    }

    #[test]
    fn more_promises_than_there_is_shrink_together() {
        let lines = [line(RATE, RATE, true), line(3 * RATE, RATE, true)];
        assert_eq!(rates(&lines), [RATE / 4, RATE / 4 * 3]);
    }

    #[test]
    fn never_much_more_than_there_is() {
        // A simple generator; what matters is that it reaches all combinations.
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let count = 1 + draw(8);
            let lines: Vec<Line> = (0..count)
                .map(|_| line(draw(RATE), draw(2 * RATE), draw(2) == 0))
                .collect();
            let rates = rates(&lines);
            let sum: u64 = rates.iter().sum();
            assert!(sum <= RATE + count * (RATE / 1000), "{lines:?}: {rates:?}");
            assert!(sum + 3 * count >= RATE, "{lines:?}: {rates:?}");
            let promised: u64 = lines.iter().map(|l| l.promised_ns).sum();
            for (line, &rate) in lines.iter().zip(&rates) {
                let own = part(line.promised_ns, RATE, promised.max(RATE));
                assert!(!line.was_held || rate + 1 >= own, "{lines:?}: {rates:?}");
            }
        }
    }
}
