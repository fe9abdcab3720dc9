//! What the node does of its own at the device while a burst lasts: checkpoints above all. That is no tenant's, and in use all the same.

use anyhow::Result;

use super::load::Clock;
use crate::api::Api;

/// By the prices of the ceiling, like tenants' requests. Counted where the device is divided.
const USED: &str = "flagstone_device_background_used_seconds_total";

/// So seldom that asking is nothing beside thousands of requests a second.
const STEP_NS: u64 = 250_000_000;

/// Device time that the node used for itself, and when that was seen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct OwnWork {
    pub(super) at_ns: u64,
    pub(super) used_ns: u64,
}

/// Waits for the end of the burst, and says what was used in each step of it.
pub(super) fn watch(api: &Api, clock: Clock) -> Result<Vec<OwnWork>> {
    let mut work = Vec::new();
    clock.wait_until(clock.burst_ns());
    let mut before = api.metric(USED)?;
    let mut at_ns = clock.burst_ns();
    while at_ns < clock.burst_end_ns() {
        at_ns = clock.burst_end_ns().min(at_ns + STEP_NS);
        clock.wait_until(at_ns);
        let after = api.metric(USED)?;
        work.push(OwnWork {
            // Within the step that it was used in.
            at_ns: at_ns - 1,
            used_ns: ((after - before).max(0.0) * 1e9) as u64,
        });
        before = after;
    }
    Ok(work)
}
