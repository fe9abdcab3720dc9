//! A hypervisor that takes a processor away, for 100 ms at a time where it limits what a machine may use, makes whoever is measured just then look
//! slow, and its server busy: the kernel counts such time as the server's. Nothing of it is a server's doing, so what is measured meanwhile is measured
//! again. In a pair the half counts from which more was stolen.

use std::time::Instant;

use anyhow::Result;

use crate::bench::STOLEN_CORES_MAX;
use crate::process;

/// How often it is tried again.
const REPEATS_MAX: u32 = 3;

/// Measures again where CPU time was stolen, and counts that.
#[derive(Default)]
pub(super) struct Calm {
    /// Measured again.
    pub(super) repeats: u32,
    /// Of those given up on: even the calmest had more stolen than is allowed.
    pub(super) stolen: u32,
}

impl Calm {
    /// The first time during which next to nothing was stolen; else, of a few, the one with the least, whatever it shows. `once` says what was stolen, in
    /// processors, and what was measured.
    pub(super) fn least<T>(&mut self, mut once: impl FnMut() -> Result<(f64, T)>) -> Result<T> {
        let mut kept = once()?;
        for _ in 0..REPEATS_MAX {
            if kept.0 <= STOLEN_CORES_MAX {
                return Ok(kept.1);
            }
            self.repeats += 1;
            let next = once()?;
            if next.0 < kept.0 {
                kept = next;
            }
        }
        self.stolen += u32::from(kept.0 > STOLEN_CORES_MAX);
        Ok(kept.1)
    }

    /// In a report's words.
    pub(super) fn describe(&self) -> String {
        format!(
            "measured again {} times, as more than {STOLEN_CORES_MAX} of a processor was stolen; {} kept although it was",
            self.repeats, self.stolen
        )
    }
}

/// Measures, and says what was stolen meanwhile, in processors.
pub(super) fn watched<T>(measure: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let (before, start) = (process::machine_busy_seconds()?.1, Instant::now());
    let measured = measure()?;
    let seconds = start.elapsed().as_secs_f64();
    let stolen = process::machine_busy_seconds()?.1 - before;
    Ok((stolen / seconds.max(1e-9), measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of tries of which so much is stolen, how many there were, and what was counted.
    fn kept(stolen: &[f64]) -> (usize, usize, Calm) {
        let (mut calm, mut tries) = (Calm::default(), 0);
        let kept = calm.least(|| {
            tries += 1;
            Ok((stolen[tries - 1], tries))
        });
        (kept.expect("measured"), tries, calm)
    }

    #[test]
    fn what_is_calm_is_measured_once() {
        let (kept, tries, calm) = kept(&[STOLEN_CORES_MAX]);
        assert_eq!((kept, tries, calm.repeats, calm.stolen), (1, 1, 0, 0));
    }

    #[test]
    fn stolen_time_has_it_measured_again_until_it_is_calm() {
        let (kept, tries, calm) = kept(&[0.5, 0.4, 0.0]);
        assert_eq!((kept, tries, calm.repeats, calm.stolen), (3, 3, 2, 0));
    }

    #[test]
    fn of_a_few_the_least_stolen_is_kept() {
        let (kept, tries, calm) = kept(&[0.5, 0.2, 0.3, 0.4]);
        assert_eq!((kept, tries, calm.repeats, calm.stolen), (2, 4, 3, 1));
        let (kept, tries, calm) = self::kept(&[0.5, 0.2, 0.3, 0.01]);
        assert_eq!((kept, tries, calm.repeats, calm.stolen), (4, 4, 3, 0));
    }

    #[test]
    fn a_failure_is_the_failure() {
        let failed = Calm::default().least(|| watched(|| anyhow::bail!("no answer")));
        let error: anyhow::Result<()> = failed;
        assert_eq!(error.expect_err("failed").to_string(), "no answer");
        let (stolen, measured) = watched(|| Ok(7)).expect("measured");
        assert!(stolen >= 0.0 && measured == 7, "{stolen}");
    }
}
