//! Looking for the bugs that can be planted in the engine: each must be noticed by some seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use flagstone_device::planted::{Bug, plant};

use super::plan::Plan;
use super::run::run;

/// Which seed noticed a bug, and how.
#[derive(Clone, Debug)]
pub struct Catch {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
}

/// Runs seeds with a bug planted until one fails. Panics of the engine count.
pub fn hunt(bug: Bug, seeds: impl IntoIterator<Item = u64>) -> Option<Catch> {
    plant(Some(bug));
    let caught = seeds.into_iter().find_map(|seed| {
        let what = match catch_unwind(AssertUnwindSafe(|| run(Plan::of(seed)))) {
            Ok(report) => report.failure?,
            Err(payload) => match payload.downcast::<String>() {
                Ok(what) => format!("a panic: {what}"),
                Err(_) => "a panic".to_owned(),
            },
        };
        Some(Catch { seed, what })
    });
    plant(None);
    caught
}
