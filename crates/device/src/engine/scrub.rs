//! Scrub: reading everything that is mapped and checking it, in the background.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Slot, VBlock, unit::VBLOCKS_MAX};

use super::background::Work;
use super::error::DvolError;
use super::{Engine, Inner};
use crate::v2p::{Entry, EntryKind};

/// What a scrub found so far, or in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Blocks read.
    pub checked_blocks: u64,
    /// Blocks whose bytes don't match their checksum, with the slot and virtual block that need
    /// them. At most a thousand are listed.
    pub corrupt: Vec<(Slot, VBlock, BlockNo)>,
    /// Blocks that could not be read.
    pub unreadable: u64,
    /// Map nodes that can't be used: what lies below them was not checked.
    pub broken_maps: u64,
    /// True once everything was looked at.
    pub finished: bool,
}

/// Corrupt blocks listed in a report.
const LISTED_MAX: usize = 1000;

/// The longest rest of the background scrub, and how long after a stop it may still be there.
const PAUSE_MAX_NS: u64 = 60_000_000_000;

/// Entries looked up at a time.
const STEP_ENTRIES: usize = 256;

/// The same where each step waits for a turn at the device: they are read one after the other, so a longer turn would be
/// one that others wait long for.
const TURN_ENTRIES: usize = 16;

/// A pass over everything.
struct Pass<'a> {
    report: &'a RefCell<Option<ScrubReport>>,
    /// Rest after each step of at most 1 MiB.
    pause_ns: u64,
}

impl Pass<'_> {
    fn report(&self, change: impl FnOnce(&mut ScrubReport)) {
        if let Some(report) = self.report.borrow_mut().as_mut() {
            change(report);
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Reads and checks every mapped block of this journal once, pausing `pause_ns` between steps
    /// of at most 1 MiB. Blocks shared by layers are read once: with the layer they were born in,
    /// or the oldest that still is.
    pub async fn scrub(&self, pause_ns: u64) -> Result<ScrubReport, DvolError> {
        let report = &self.inner.last_scrub;
        self.inner.scrub_all(&Pass { report, pause_ns }, 0).await
    }

    /// The report of the scrub under way, or of the last one, of those that were asked for.
    pub fn last_scrub(&self) -> Option<ScrubReport> {
        self.inner.last_scrub.borrow().clone()
    }

    /// What another engine has found of the same journal, before it was handed over: as if it had been found here.
    pub fn go_by_scrub(&self, report: ScrubReport) {
        *self.inner.last_scrub.borrow_mut() = Some(report);
    }

    /// The same of the scrub that goes on in the background.
    pub fn background_scrub(&self) -> Option<ScrubReport> {
        self.inner.background_scrub.borrow().clone()
    }
}

impl<P: Platform> Inner<P> {
    /// Looks at everything, beginning with the slot at position `first`.
    async fn scrub_all(
        self: &Rc<Self>,
        pass: &Pass<'_>,
        first: usize,
    ) -> Result<ScrubReport, DvolError> {
        *pass.report.borrow_mut() = Some(ScrubReport::default());
        let mut slots: Vec<(Slot, LayerNo)> = {
            let state = self.state.borrow();
            let slots = state.slots();
            slots.map(|(slot, s)| (slot, s.record.layer)).collect()
        };
        let middle = first % slots.len().max(1);
        slots.rotate_left(middle);
        for (slot, layer) in slots {
            self.check_running()?;
            self.scrub_slot(slot, layer, pass).await?;
        }
        pass.report(|report| report.finished = true);
        Ok(pass.report.borrow().clone().unwrap_or_default())
    }

    /// Task: goes through everything once in each period, slowly. A node may be restarted more often
    /// than that, so each time it begins somewhere else. It is not waited for at a stop: it
    /// notices when it wakes.
    pub(super) async fn run_scrubber(self: Rc<Self>) {
        let period_ns = self.options.scrub_period_ns;
        loop {
            let begun = self.platform.now();
            let pause_ns = {
                let state = self.state.borrow();
                let steps = state.pool.used_blocks() / STEP_ENTRIES as u64
                    + state.slots().count() as u64
                    + 1;
                (period_ns / steps).min(PAUSE_MAX_NS)
            };
            self.platform.sleep_ns(pause_ns).await;
            let first = self.platform.random_u64() as usize;
            let report = &self.background_scrub;
            let Ok(report) = self.scrub_all(&Pass { report, pause_ns }, first).await else {
                return;
            };
            let bad = report.corrupt.len() as u64 + report.unreadable + report.broken_maps;
            let (device, journal) = (self.superblock.device_id, self.journal_no);
            let checked_blocks = report.checked_blocks;
            if bad > 0 {
                tracing::error!(
                    %device, journal, checked_blocks, bad,
                    "the background scrub found damage; run `flagstone verify`"
                );
            } else {
                tracing::info!(%device, journal, checked_blocks, "the background scrub is done");
            }
            let scrubs = &self.counters.scrubs;
            scrubs.set(scrubs.get() + 1);
            while self.platform.now().since(begun) < period_ns {
                self.platform.sleep_ns(PAUSE_MAX_NS.min(period_ns)).await;
                if self.check_running().is_err() {
                    return;
                }
            }
        }
    }

    async fn scrub_slot(
        self: &Rc<Self>,
        slot: Slot,
        layer: LayerNo,
        pass: &Pass<'_>,
    ) -> Result<(), DvolError> {
        let mut from = VBlock(0);
        let end = VBlock(VBLOCKS_MAX);
        let step = match self.has_turns() {
            true => TURN_ENTRIES,
            false => STEP_ENTRIES,
        };
        let pause_ns = pass.pause_ns / (STEP_ENTRIES / step) as u64;
        while from < end {
            // Before the gate: who waits keeps nothing from being reused.
            let mut turn = self.background_turn(Work::reads(step as u64)).await;
            self.check_running()?;
            // What the step looks at is not reused before it is checked.
            let reading = self.gate.enter();
            let mut entries = Vec::new();
            let found = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot).filter(|s| s.record.layer == layer) else {
                    return Ok(());
                };
                // What the reaper has passed is given back, the nodes of its map, too: they may
                // hold anything by now.
                from = from.max(found.reaped_below());
                if from >= end {
                    return Ok(());
                }
                let looked = found.map.lookup(from..end, step, &mut entries);
                looked.map(|()| {
                    let last = (entries.len() >= step).then(|| entries.last());
                    let last = last.flatten().map(Entry::end_vblock);
                    // Its new place may have no data yet. The next scrub looks at it.
                    let is_unwritten = |entry: &Entry| {
                        state.is_placed(slot, &(entry.key.vblock()..entry.end_vblock()))
                    };
                    entries.retain(|entry| state.owns(slot, entry) && !is_unwritten(entry));
                    last
                })
            };
            let last = match found {
                Ok(last) => last,
                Err(missing) => {
                    turn.used(Work::reads(1));
                    let loaded = self.load_node(&missing).await;
                    if loaded == Err(DvolError::Stopping) {
                        return Err(DvolError::Stopping);
                    }
                    if loaded.is_err() {
                        pass.report(|report| report.broken_maps += 1);
                        self.count_scrubbed(0, 1);
                        return Ok(());
                    }
                    continue;
                }
            };
            turn.used(Work::reads(entries.len() as u64));
            for entry in &entries {
                self.scrub_entry(slot, entry, pass).await;
            }
            // Nothing is kept from being reused while the scrub rests.
            drop(reading);
            drop(turn);
            self.evict_nodes();
            self.platform.sleep_ns(pause_ns).await;
            match last {
                Some(last) => from = last,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    async fn scrub_entry(&self, slot: Slot, entry: &Entry, pass: &Pass<'_>) {
        if !matches!(entry.kind, EntryKind::Data | EntryKind::Delta) {
            return;
        }
        let expected: [BlockChecksum; 1] = [entry.checksum];
        let result = self.read_checked(slot, entry.block, &expected).await;
        self.count_scrubbed(1, u64::from(result.is_err()));
        pass.report(|report| {
            report.checked_blocks += 1;
            match result {
                Ok(_) => {}
                Err(DvolError::Corrupt) if report.corrupt.len() < LISTED_MAX => {
                    report.corrupt.push((slot, entry.key.vblock(), entry.block));
                }
                Err(_) => report.unreadable += 1,
            }
        });
    }

    fn count_scrubbed(&self, blocks: u64, bad: u64) {
        let counters = &self.counters;
        counters
            .scrubbed_blocks
            .set(counters.scrubbed_blocks.get() + blocks);
        counters
            .scrub_findings
            .set(counters.scrub_findings.get() + bad);
    }
}
