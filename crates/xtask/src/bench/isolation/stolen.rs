//! What a hypervisor takes from the machine while a scene is measured. Nothing of it is a node's doing, and the least second of a burst
//! shows little else where much is taken.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::load::Clock;
use crate::process;

const SECOND_NS: u64 = 1_000_000_000;

/// Waits for the end, and says what was taken in the worst second, in processors.
pub(super) fn most(clock: Clock) -> Result<f64> {
    let mut worst = 0.0_f64;
    let mut before = taken_seconds()?;
    let (mut from_ns, end_ns) = (clock.now_ns(), clock.end_ns());
    while from_ns < end_ns {
        let until_ns = end_ns.min(from_ns + SECOND_NS);
        thread::sleep(Duration::from_nanos(until_ns - from_ns));
        let (after, now_ns) = (taken_seconds()?, clock.now_ns());
        worst = worst.max(cores(after - before, now_ns - from_ns));
        (before, from_ns) = (after, now_ns);
    }
    Ok(worst)
}

fn taken_seconds() -> Result<f64> {
    Ok(process::machine_busy_seconds()?.1)
}

/// The kernel counts hundredths of a second: of less than half a second nothing can be said.
fn cores(taken_seconds: f64, ns: u64) -> f64 {
    match ns < SECOND_NS / 2 {
        true => 0.0,
        false => taken_seconds / (ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_taken_is_of_the_time_it_was_taken_in() {
        assert_eq!(cores(0.5, 2 * SECOND_NS), 0.25);
        assert_eq!(cores(0.01, SECOND_NS / 10), 0.0);
    }

    #[test]
    fn it_looks_until_the_end() {
        let clock = Clock {
            start: Instant::now(),
            warm_ns: 10_000_000,
            third_ns: 20_000_000,
        };
        let worst = most(clock).expect("/proc/stat");
        assert!(clock.now_ns() >= clock.end_ns());
        assert_eq!(worst, 0.0, "too short to say");
    }
}
