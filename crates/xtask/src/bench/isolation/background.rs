//! What the node does of its own at the device while a burst lasts: checkpoints above all. That is no tenant's, and in use all the same.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::load::Clock;
use crate::api::Api;

/// By the prices of the ceiling, like tenants' requests. Counted where the device is divided.
const USED: &str = "flagstone_device_background_used_seconds_total";

/// Zeros written over segments of the device, which is a file, before they are used or meanwhile.
const LAID_OUT: &str = "flagstone_device_prewritten_bytes_total";

/// It has to stay as it is for so long. A step of 256 KiB comes each 30 ms on the slowest device here, as much as the background is promised.
const QUIET: Duration = Duration::from_millis(500);
/// Of what a device that is as slow as ours gives the background, some segments take so long.
const LAID_OUT_WITHIN: Duration = Duration::from_secs(120);

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

/// Has the machine use as much memory for a file in this folder once, and gives it back. A virtual machine has some pages only once they are touched, by its
/// host, some 10 us each: beside a new file in memory everything stands still for tenths of a second.
pub(super) fn touch_memory(dir: &Path, bytes: u64) -> Result<()> {
    let path = dir.join("touched");
    let block = vec![1; 1 << 20];
    let mut file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let mut written = 0;
    while written < bytes {
        file.write_all(&block)
            .with_context(|| format!("writing to {}", path.display()))?;
        written += block.len() as u64;
    }
    fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
}

/// Waits until no segment is being laid out any more: that belongs to the first minutes of a device, and is a scene of its own.
pub(super) fn settle(api: &Api) -> Result<()> {
    let began = Instant::now();
    let mut before = api.metric(LAID_OUT)?;
    loop {
        thread::sleep(QUIET);
        let now = api.metric(LAID_OUT)?;
        if now == before {
            return Ok(());
        }
        if began.elapsed() > LAID_OUT_WITHIN {
            bail!("segments of the device are still being laid out after {LAID_OUT_WITHIN:?}");
        }
        before = now;
    }
}
