//! How much of the machine others had while something was timed, and what a bound is then.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;

/// With this much of the machine for others, in processors, a time says as much of them as of what is timed.
const OTHERS_MAX: f64 = 0.5;
/// Then a bound is so many times as long: a pause of seconds is still found.
const WIDER: u32 = 3;

/// What the machine has done, and of that what this process, its node and its commands have, in seconds of a processor.
pub(super) struct Work {
    at: Instant,
    all_s: f64,
    own_s: f64,
}

impl Work {
    pub(super) fn until_now() -> Result<Work> {
        let (busy_s, stolen_s) = process::machine_busy_seconds()?;
        Ok(Work {
            at: Instant::now(),
            all_s: busy_s + stolen_s,
            own_s: process::tree_cpu_seconds(std::process::id()) + process::children_cpu_seconds(),
        })
    }

    /// What others had since this moment. Prints it with what becomes of bounds.
    pub(super) fn others(&self, what: &str) -> Result<Others> {
        let others = self.others_until(&Work::until_now()?);
        let bounds = match others.are_many() {
            true => format!("{WIDER} times what is promised"),
            false => "as promised".to_owned(),
        };
        println!(
            "{what}: others had {:.2} processors meanwhile, so the bounds are {bounds}",
            others.processors
        );
        Ok(others)
    }

    fn others_until(&self, then: &Work) -> Others {
        let passed_s = then.at.duration_since(self.at).as_secs_f64();
        let others_s = (then.all_s - self.all_s) - (then.own_s - self.own_s);
        Others {
            // They are not counted in the same instant.
            processors: others_s.max(0.0) / passed_s.max(f64::EPSILON),
        }
    }
}

/// What others had of the machine.
#[derive(Clone, Copy)]
pub(super) struct Others {
    processors: f64,
}

impl Others {
    fn are_many(self) -> bool {
        self.processors >= OTHERS_MAX
    }

    /// What becomes of a bound. What is promised is promised on a machine that does nothing else: beside programs that only compute, a client and
    /// its node get processors in pieces.
    pub(super) fn bound(self, promised: Duration) -> Duration {
        match self.are_many() {
            true => promised * WIDER,
            false => promised,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_is_what_is_not_this_tree_s() {
        let at = Instant::now();
        let work = |s, all_s, own_s| Work {
            at: at + Duration::from_secs(s),
            all_s,
            own_s,
        };
        let before = work(0, 100.0, 7.0);
        let processors = |then: Work| before.others_until(&then).processors;
        assert_eq!(processors(work(10, 118.0, 20.0)), 0.5);
        assert_eq!(processors(work(10, 102.0, 9.5)), 0.0);
    }

    #[test]
    fn a_bound_is_wider_if_others_have_half_a_processor() {
        let bound_ms = |processors| {
            let others = Others { processors };
            others.bound(Duration::from_millis(50)).as_millis()
        };
        assert_eq!(bound_ms(0.0), 50);
        assert_eq!(bound_ms(0.49), 50);
        assert_eq!(bound_ms(0.5), 150);
        assert_eq!(bound_ms(2.0), 150);
    }

    #[test]
    fn what_this_process_does_is_counted_as_its_own_and_as_all_s() {
        let before = Work::until_now().expect("the kernel tells");
        let started = process::own_cpu_seconds();
        while process::own_cpu_seconds() - started < 0.2 {}
        let then = Work::until_now().expect("the kernel tells");
        // The kernel counts hundredths, and not both in the same instant.
        assert!(then.own_s - before.own_s >= 0.15);
        assert!(then.all_s - before.all_s >= 0.15);
    }
}
