//! Scrub: reading everything that is mapped and checking it, in the background.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Slot, VBlock, unit::VBLOCKS_MAX};

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

/// Entries looked up at a time.
const STEP_ENTRIES: usize = 256;

impl<P: Platform> Engine<P> {
    /// Reads and checks every mapped block of this journal once, pausing `pause_ns` between steps
    /// of at most 1 MiB. Blocks shared by layers are read once: with the layer they were born in,
    /// or the oldest that still is.
    pub async fn scrub(&self, pause_ns: u64) -> Result<ScrubReport, DvolError> {
        let inner = &self.inner;
        *inner.last_scrub.borrow_mut() = Some(ScrubReport::default());
        let slots: Vec<(Slot, LayerNo)> = {
            let state = inner.state.borrow();
            state
                .slots()
                .map(|(slot, s)| (slot, s.record.layer))
                .collect()
        };
        for (slot, layer) in slots {
            inner.check_running()?;
            inner.scrub_slot(slot, layer, pause_ns).await?;
        }
        let mut report = inner.last_scrub.borrow().clone().unwrap_or_default();
        report.finished = true;
        *inner.last_scrub.borrow_mut() = Some(report.clone());
        Ok(report)
    }

    /// The report of the scrub under way, or of the last one.
    pub fn last_scrub(&self) -> Option<ScrubReport> {
        self.inner.last_scrub.borrow().clone()
    }
}

impl<P: Platform> Inner<P> {
    async fn scrub_slot(
        self: &Rc<Self>,
        slot: Slot,
        layer: LayerNo,
        pause_ns: u64,
    ) -> Result<(), DvolError> {
        let mut from = VBlock(0);
        let end = VBlock(VBLOCKS_MAX);
        while from < end {
            self.check_running()?;
            // What the step looks at is not reused before it is checked.
            let _pass = self.gate.enter();
            let mut entries = Vec::new();
            let found = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot).filter(|s| s.record.layer == layer) else {
                    return Ok(());
                };
                let looked = found.map.lookup(from..end, STEP_ENTRIES, &mut entries);
                looked.map(|()| {
                    let last = (entries.len() >= STEP_ENTRIES).then(|| entries.last());
                    let last = last.flatten().map(Entry::end_vblock);
                    entries.retain(|entry| state.owns(slot, entry));
                    last
                })
            };
            let last = match found {
                Ok(last) => last,
                Err(missing) => {
                    if self.load_node(&missing).await.is_err() {
                        self.report(|report| report.broken_maps += 1);
                        return Ok(());
                    }
                    continue;
                }
            };
            for entry in &entries {
                self.scrub_entry(slot, entry).await;
            }
            match last {
                Some(last) => from = last,
                None => return Ok(()),
            }
            self.platform.sleep_ns(pause_ns).await;
        }
        Ok(())
    }

    async fn scrub_entry(&self, slot: Slot, entry: &Entry) {
        if !matches!(entry.kind, EntryKind::Data | EntryKind::Delta) {
            return;
        }
        let expected: [BlockChecksum; 1] = [entry.checksum];
        let result = self.read_checked(entry.block, &expected).await;
        self.report(|report| {
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

    fn report(&self, change: impl FnOnce(&mut ScrubReport)) {
        if let Some(report) = self.last_scrub.borrow_mut().as_mut() {
            change(report);
        }
    }
}
