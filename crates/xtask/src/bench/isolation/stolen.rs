//! What a hypervisor takes from the machine while a scene is measured. Nothing of it is a node's doing, and the least second of a burst
//! shows little else where much is taken.

use anyhow::Result;

use super::load::Clock;
use crate::process;

const SECOND_NS: u64 = 1_000_000_000;

/// Waits for the end, and says what was taken in the worst second behind the warm-up, in processors.
pub(super) fn most(clock: Clock) -> Result<f64> {
    let mut worst = 0.0_f64;
    clock.wait_until(clock.warm_ns);
    let (mut before, mut from_ns) = (taken_seconds()?, clock.now_ns());
    for edge_ns in edges(clock.warm_ns, clock.end_ns()) {
        clock.wait_until(edge_ns);
        let (after, now_ns) = (taken_seconds()?, clock.now_ns());
        worst = worst.max(cores(after - before, now_ns.saturating_sub(from_ns)));
        (before, from_ns) = (after, now_ns);
    }
    Ok(worst)
}

/// The ends of parts of the same length, of a second or more each: the kernel counts hundredths of a second, so of shorter ones little can be
/// said.
fn edges(from_ns: u64, end_ns: u64) -> Vec<u64> {
    let whole_ns = end_ns.saturating_sub(from_ns);
    let count = (whole_ns / SECOND_NS).max(1);
    let edge = |number| from_ns + whole_ns * number / count;
    (1..=count).map(edge).collect()
}

fn taken_seconds() -> Result<f64> {
    Ok(process::machine_busy_seconds()?.1)
}

fn cores(taken_seconds: f64, ns: u64) -> f64 {
    taken_seconds / (ns.max(1) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_taken_is_of_the_time_it_was_taken_in() {
        assert_eq!(cores(0.5, 2 * SECOND_NS), 0.25);
        assert_eq!(cores(0.25, SECOND_NS / 2), 0.5);
    }

    #[test]
    fn parts_are_of_a_second_or_more_and_leave_nothing_out() {
        let seconds = |seconds: f64| (seconds * 1e9) as u64;
        let second = SECOND_NS;
        assert_eq!(edges(second, 4 * second), [2, 3, 4].map(|at| at * second));
        assert_eq!(
            edges(0, seconds(2.5)),
            [seconds(1.25), seconds(2.5)],
            "no short one at the end"
        );
        assert_eq!(edges(second, seconds(1.5)), [seconds(1.5)]);
    }

    #[test]
    fn it_looks_until_the_end() {
        let clock = Clock {
            start: Instant::now(),
            warm_ns: 10_000_000,
            third_ns: 20_000_000,
        };
        assert!(most(clock).expect("/proc/stat") >= 0.0);
        assert!(clock.now_ns() >= clock.end_ns());
    }
}
