//! Replaying a journal's chain: which units count, and applying them to the state of the root.
//!
//! Units that were aborted don't count, nor do those above the watermark whose data is not there: they
//! were never acknowledged. All others do, and one that doesn't fit the state is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flagstone_platform::Platform;
use flagstone_types::{BlockChecksum, BlockNo};

use super::bitmaps::{read_bitmap, take_bitmap};
use super::chain::Chain;
use super::format::read_again;
use super::mappings::{final_mappings, parts_beside};
use super::pieces;
use super::recovery::{Loader, OpenError, RecoveryReport};
use crate::format::FormatError;
use crate::format::record::Record;
use crate::format::root::Root;
use crate::planted::{Bug, planted};
use crate::state::{Effects, State};

impl<P: Platform> Loader<'_, P> {
    /// Applies the chain's units to the state of the root, but for aborted ones and for those above
    /// the watermark whose data is not there.
    pub(super) async fn replay(
        &self,
        mut state: State,
        root: &Root,
        chain: &Chain,
    ) -> Result<(State, RecoveryReport), OpenError> {
        let mut report = RecoveryReport {
            clean: root.clean && chain.groups == 0,
            groups: chain.groups,
            ..RecoveryReport::default()
        };
        let skip = self.units_to_skip(chain, &mut report).await?;
        for (index, unit) in chain.units.iter().enumerate() {
            let from = match skip.contains(&index) {
                true if planted(Bug::DropOnlyPart) => 1,
                true => continue,
                false => 0,
            };
            for record in &unit.records[from..] {
                self.load_bitmaps(&mut state, record).await?;
                state
                    .check(record, self.geometry)
                    .map_err(|error| in_group(unit.seq, &error))?;
                self.apply(&mut state, record).await?;
                if let Some(misfit) = state.pool.misfit() {
                    return Err(in_group(unit.seq, &misfit));
                }
            }
            report.units += 1;
        }
        Ok((state, report))
    }

    /// Brings the bitmaps into memory that a record is checked against. The checkpoint at the end
    /// of recovery needs them as well.
    async fn load_bitmaps(&self, state: &mut State, record: &Record) -> Result<(), OpenError> {
        while let Some(segment) = state.needed_for_check(record) {
            let Some(found) = state.pool.segment_mut(segment) else {
                return Ok(());
            };
            let (device, geometry) = (self.device, self.geometry);
            let bitmap = read_bitmap(self.platform, device, geometry, segment, &found.record);
            let bitmap = bitmap.await.map_err(OpenError::Io)?;
            take_bitmap(&mut state.pool, segment, bitmap);
        }
        Ok(())
    }

    async fn apply(&self, state: &mut State, record: &Record) -> Result<(), OpenError> {
        while let Some(missing) = state.missing(record) {
            let ptr = missing.ptr();
            let bytes = read_again(self.platform, self.device, ptr.block)
                .await
                .map_err(OpenError::Io)?;
            missing.fill_from(&bytes).map_err(OpenError::Format)?;
        }
        let mut effects = Effects::default();
        state.apply(record, self.geometry, &mut effects);
        // No read is under way, and the new root is durable before anything is written.
        for block in effects.freed {
            state.pool.reopen(block);
        }
        Ok(())
    }

    /// Units that must not be applied: aborted ones, suspects whose data is not there, and parts that were
    /// written over blocks of those, or under their deltas.
    async fn units_to_skip(
        &self,
        chain: &Chain,
        report: &mut RecoveryReport,
    ) -> Result<BTreeSet<usize>, OpenError> {
        let mut skip = match planted(Bug::AbortedApplied) {
            true => BTreeSet::new(),
            false => aborted(chain),
        };
        if planted(Bug::SuspectsNotChecked) {
            return Ok(skip);
        }
        let suspects: BTreeSet<usize> = (0..chain.units.len())
            .filter(|&i| chain.units[i].seq > chain.watermark && !skip.contains(&i))
            .collect();
        report.suspects = suspects.len() as u64;
        let parts = parts_beside(chain, &skip);
        // `None`: it can't be read.
        let mut checked: BTreeMap<BlockNo, Option<BlockChecksum>> = BTreeMap::new();
        loop {
            let mut mappings = final_mappings(chain, &skip);
            mappings.retain(|(index, ..)| suspects.contains(index));
            self.check_blocks(chain, &mappings, &mut checked).await?;
            // What can't be read says nothing. The unit may have been acknowledged: leaving it out
            // would bring old content back as if it were current.
            let is_bad = |(_, block, expected): &&(usize, BlockNo, BlockChecksum)| {
                let found = checked.get(block).copied().flatten();
                found.is_some_and(|found| found != *expected)
            };
            let bad: BTreeSet<usize> = mappings.iter().filter(is_bad).map(|m| m.0).collect();
            if bad.is_empty() {
                let kept = final_mappings(chain, &skip);
                let kept = kept
                    .into_iter()
                    .filter(|(index, ..)| suspects.contains(index))
                    .map(|(_, block, _)| block);
                let (readable, unreadable): (Vec<BlockNo>, Vec<BlockNo>) =
                    kept.partition(|block| checked.get(block).is_some_and(Option::is_some));
                report.unreadable = unreadable.len() as u64;
                if !planted(Bug::TrustAfterFailedFlush) {
                    self.rewrite(readable).await?;
                }
                return Ok(skip);
            }
            report.dropped += bad.len() as u64;
            skip.extend(bad);
            // Else the part would lie over what the block had replaced, and displace what lies there; or be the data below a delta that isn't there.
            for (part, beside) in &parts {
                let goes = skip.contains(beside) && !planted(Bug::PartOutlivesBlock);
                report.dropped += u64::from(goes && skip.insert(*part));
            }
            if planted(Bug::NoFixpoint) {
                return Ok(skip);
            }
        }
    }

    /// Adds the checksums of mapped blocks to `checked`; `None` for one that can't be read.
    async fn check_blocks(
        &self,
        chain: &Chain,
        mappings: &[(usize, BlockNo, BlockChecksum)],
        checked: &mut BTreeMap<BlockNo, Option<BlockChecksum>>,
    ) -> Result<(), OpenError> {
        let mut unknown: BTreeMap<BlockNo, u64> = BTreeMap::new();
        for &(index, block, _) in mappings {
            let seq = chain.units[index].seq;
            if !self.geometry.is_data(block) {
                let what = format!("{block} lies outside the data area");
                return Err(in_group(seq, &what));
            }
            if !checked.contains_key(&block) {
                unknown.insert(block, seq);
            }
        }
        let blocks = unknown.keys().copied();
        for (block, found) in pieces::checksums(self.platform, self.device, blocks).await {
            if let Err(error) = &found {
                tracing::error!(
                    block = block.0,
                    group = unknown.get(&block),
                    "data written just before the stop can't be read: {error}; reading it will fail"
                );
            }
            checked.insert(block, found.ok());
        }
        Ok(())
    }
}

/// A record of a group does not fit what it is applied to.
pub(super) fn in_group(seq: u64, what: &dyn fmt::Display) -> OpenError {
    OpenError::Format(FormatError::new(format!(
        "group {seq} of the journal can't be replayed: {what}; run `flagstone verify`"
    )))
}

/// Units that an abort record takes back.
fn aborted(chain: &Chain) -> BTreeSet<usize> {
    let mut first_of_group: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, unit) in chain.units.iter().enumerate() {
        first_of_group.entry(unit.seq).or_insert(index);
    }
    let mut aborted = BTreeSet::new();
    for record in chain.units.iter().flat_map(|u| &u.records) {
        if let Record::Abort { seq, unit } = record
            && let Some(first) = first_of_group.get(seq)
        {
            let index = first + *unit as usize;
            if chain.units.get(index).is_some_and(|u| u.seq == *seq) {
                aborted.insert(index);
            }
        }
    }
    aborted
}
