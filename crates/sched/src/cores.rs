//! What the cores of a node lend each other of a device. [decibel 4.3: request windows]
//!
//! Each core writes a line about itself and reads those of all; all compute the same from the same
//! lines. Nobody is asked, and nothing is shared on the way of a request.

use crate::promise::WHOLE_NS;
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
    /// The most that it had in flight in the last period, or lately in a busier one, with all that waited where anything was held; in nanoseconds of device time.
    pub wanted_ns: u64,
}

impl Line {
    /// What it can be expected to use in the next period.
    fn needed_rate_ns(&self) -> u64 {
        match self.was_held {
            true => u64::MAX,
            false => with_headroom(self.used_ns),
        }
    }

    /// What of the window it can be expected to have use for.
    fn needed_window_ns(&self) -> u64 {
        with_headroom(self.wanted_ns)
    }
}

fn with_headroom(ns: u64) -> u64 {
    let ns = u128::from(ns) * HEADROOM_PERCENT / 100;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// What each core may use of a device until the lines are read again. Promises are parts of [`WHOLE_NS`], whatever the rate is.
pub fn divide(whole: Budget, lines: &[Line]) -> Vec<Budget> {
    let mut memory = Vec::new();
    let cores = 0..lines.len();
    cores
        .filter_map(|core| part_of_core(whole, lines, core, &mut memory))
        .collect()
}

/// The same of one core, if there is a line of it. `memory` is used again: whoever divides every few milliseconds takes none then.
pub fn part_of_core(
    whole: Budget,
    lines: &[Line],
    core: usize,
    memory: &mut Vec<u64>,
) -> Option<Budget> {
    divide_one(whole.rate_ns, lines, Line::needed_rate_ns, memory);
    let rate_ns = *memory.get(core)?;
    // By what each has use for, not by the rates: a core that was held for a moment, as by a piece of what it copies, has use for a quarter of
    // the rate, perhaps, but not of the window. Who has filled the window would have to wait each time until so much of it is empty.
    divide_one(whole.window_ns, lines, Line::needed_window_ns, memory);
    Some(Budget {
        rate_ns,
        window_ns: *memory.get(core)?,
        latency_ns: whole.latency_ns,
    })
}

/// Divides the rate, or the window: each core gets what it needs, up to its part by what was promised, and what is left of those that need more.
fn divide_one(whole_ns: u64, lines: &[Line], need_ns: fn(&Line) -> u64, parts_ns: &mut Vec<u64>) {
    let least = whole_ns / LEAST_PART;
    let promised: u128 = lines.iter().map(|l| u128::from(l.promised_ns)).sum();
    // If more was promised than there is, all promises shrink by the same factor.
    let all = promised.max(u128::from(WHOLE_NS));
    let own = |line: &Line| (u128::from(line.promised_ns) * u128::from(whole_ns) / all) as u64;
    let begin_with = |line: &Line| own(line).min(need_ns(line)).max(least);
    parts_ns.clear();
    parts_ns.extend(lines.iter().map(begin_with));
    // Then those that need more than they were promised, until nothing is left or nobody does; one of them is
    // satisfied each time, or all is given out.
    for _ in lines {
        let left = left_of(whole_ns, parts_ns);
        let wants = |(line, ns): (&Line, u64)| need_ns(line) > ns;
        let parts = parts_of(lines, |at| wants((&lines[at], parts_ns[at])));
        let mut is_changed = false;
        for (line, ns) in lines.iter().zip(parts_ns.iter_mut()) {
            if wants((line, *ns)) {
                let more = part(left, weight(line), parts);
                let new = ns.saturating_add(more).min(need_ns(line));
                is_changed |= new != *ns;
                *ns = new;
            }
        }
        if !is_changed {
            break;
        }
    }
    // What nobody needs is everybody's to grow into.
    let left = left_of(whole_ns, parts_ns);
    let parts = parts_of(lines, |_| true);
    for (line, ns) in lines.iter().zip(parts_ns) {
        *ns = ns.saturating_add(part(left, weight(line), parts));
    }
}

fn left_of(whole_ns: u64, parts_ns: &[u64]) -> u64 {
    parts_ns
        .iter()
        .fold(whole_ns, |left, &ns| left.saturating_sub(ns))
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

    /// Whose use of the window is that of the rate.
    fn line(promised_ns: u64, used_ns: u64, was_held: bool) -> Line {
        Line {
            promised_ns,
            used_ns,
            was_held,
            wanted_ns: if was_held { u64::MAX } else { used_ns / 1000 },
        }
    }

    fn rates(lines: &[Line]) -> Vec<u64> {
        let whole = Budget::whole(RATE, RATE / 1000);
        let budgets = divide(whole, lines);
        let mut memory = vec![7; 3];
        for (core, budget) in budgets.iter().enumerate() {
            let like_rate = budget.rate_ns / 1000;
            assert!(
                budget.window_ns.abs_diff(like_rate) <= 10,
                "{lines:?}: {budgets:?}"
            );
            assert_eq!(budget.latency_ns, RATE / 1000);
            let alone = part_of_core(whole, lines, core, &mut memory);
            assert_eq!(alone, Some(*budget));
        }
        assert_eq!(part_of_core(whole, lines, lines.len(), &mut memory), None);
        budgets.iter().map(|b| b.rate_ns).collect()
    }

    #[test]
    fn a_core_takes_back_only_as_much_of_the_window_as_it_has_use_for() {
        let whole = Budget::whole(RATE, 13_000_000);
        let busy = Line {
            wanted_ns: 15_000_000,
            ..line(RATE / 4 * 3, RATE, true)
        };
        let piece = Line {
            wanted_ns: 400_000,
            ..line(RATE / 4, 0, true)
        };
        let budgets = divide(whole, &[busy, piece]);
        assert_eq!(budgets[1].rate_ns, RATE / 4);
        assert_eq!(budgets[1].window_ns, 420_000);
        assert_eq!(budgets[0].window_ns, 13_000_000 - 420_000);
        // As much as it was promised, if it has use for that.
        let budgets = divide(
            whole,
            &[
                busy,
                Line {
                    wanted_ns: 9_000_000,
                    ..piece
                },
            ],
        );
        assert_eq!(budgets[1].window_ns, 13_000_000 / 4);
        assert_eq!(budgets[0].window_ns, 13_000_000 / 4 * 3);
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
