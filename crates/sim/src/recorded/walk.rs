//! Walks along a record and draws crash images: at every flush boundary, and at random moments.

use std::sync::Arc;

use super::client_log::ClientLog;
use super::expected::{Expected, Progress};
use crate::crash::LogReplay;
use crate::image::DiskImage;
use crate::record::IoEvent;
use crate::rng::Rng;

/// Something that is made untrue on purpose, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// The runtime answered flushes from the middle of the record on without carrying them out.
    NoFlush,
    /// The node answered unstable writes as stable ones.
    EarlyAnswer,
}

/// How to walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What is random comes from it.
    pub seed: u64,
    /// Images to draw at random moments, about; those at the boundaries of flushes come on top.
    pub random_images: u64,
    /// Images at the boundaries of flushes at most; with more boundaries, some of them at random.
    pub boundary_images_max: u64,
    /// What to make untrue.
    pub lie: Option<Lie>,
}

/// What a walk met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Events of the record.
    pub events: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Images drawn at the boundaries of flushes.
    pub boundary_images: u64,
    /// Images drawn elsewhere.
    pub random_images: u64,
    /// Requests that clients were answered.
    pub answered: u64,
    /// Snapshots that were taken.
    pub snapshots: u64,
}

/// Walks along `events` over `base`, the device's content before. `visit` gets each image, the
/// event it is drawn before, a seed, and what must be there; it returns false to end the walk.
pub fn walk(
    base: DiskImage,
    events: &[IoEvent],
    log: &Arc<ClientLog>,
    plan: Plan,
    mut visit: impl FnMut(DiskImage, usize, u64, &Progress) -> bool,
) -> Result<Outcome, String> {
    let mut rng = Rng::new(plan.seed);
    let mut outcome = Outcome {
        events: events.len() as u64,
        ..Outcome::default()
    };
    let is_end = |event: &&IoEvent| matches!(event, IoEvent::FlushCompleted { .. });
    let boundaries = 2 * events.iter().filter(is_end).count();
    let boundary_chance = plan.boundary_images_max as f64 / boundaries.max(1) as f64;
    let random_chance = plan.random_images as f64 / events.len().max(1) as f64;
    let mut replay = LogReplay::new(base);
    let lie = plan.lie;
    let mut expected = Expected::new(log.clone(), lie == Some(Lie::EarlyAnswer));
    let mut after_flush = false;
    for (index, event) in events.iter().enumerate() {
        let ends_flush = matches!(event, IoEvent::FlushCompleted { .. });
        let at_boundary = (ends_flush || after_flush) && rng.chance(boundary_chance.min(1.0));
        if at_boundary || rng.chance(random_chance.min(1.0)) {
            match at_boundary {
                true => outcome.boundary_images += 1,
                false => outcome.random_images += 1,
            }
            let image = replay.images().sample(&mut rng);
            if !visit(image, index, rng.next_u64(), &expected.progress) {
                break;
            }
        }
        after_flush = ends_flush;
        outcome.writes += u64::from(matches!(event, IoEvent::WriteSubmitted { .. }));
        outcome.flushes += u64::from(matches!(event, IoEvent::FlushCompleted { ok: true, .. }));
        let is_flush = ends_flush || matches!(event, IoEvent::FlushSubmitted { .. });
        if !(is_flush && lie == Some(Lie::NoFlush) && index > events.len() / 2) {
            let applied = replay.apply(event);
            // A flush that began before the lie has an end that nobody waits for.
            if let Err(error) = applied.or_else(|e| if lie.is_some() { Ok(()) } else { Err(e) }) {
                return Err(format!("event {index}: {error}"));
            }
        }
        expected
            .apply(event)
            .map_err(|what| format!("event {index}: {what}"))?;
    }
    let answered = expected.progress.writers.iter().map(|w| w.answered as u64);
    outcome.answered = answered.sum();
    outcome.snapshots = expected.progress.snapshots.len() as u64;
    Ok(outcome)
}
