//! What of a dvol is allocated, and what changed since an LSN.

use std::ops::Range;

use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Lsn, Slot, VBlock};

use super::error::DvolError;
use super::info::Handle;
use super::{Engine, Inner};
use crate::planted::{Bug, planted};
use crate::v2p::{Entry, EntryKind, Missing};

/// A run of bytes in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationExtent {
    /// Its length.
    pub len_bytes: u64,
    /// False: reads as zeros and takes no space.
    pub allocated: bool,
}

/// A run of bytes, changed or not since an LSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedExtent {
    /// Its length.
    pub len_bytes: u64,
    /// True: written or deallocated since.
    pub changed: bool,
}

/// Entries looked at for one answer, at most: bounds how long other work on the core waits.
const ENTRIES_MAX: usize = 8192;

impl<P: Platform> Engine<P> {
    /// What of a range is allocated: runs from its start on, at most `extents_max`. They may end
    /// before the range does, and cover at least one byte of it.
    pub async fn allocation(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, DvolError> {
        let range = self.inner.check_query(handle, offset_bytes, len_bytes)?;
        let (entries, until) = self
            .inner
            .entries(handle.slot, range.clone(), |map, range, out| {
                map.lookup(range, ENTRIES_MAX, out)
            })
            .await?;
        // While nodes were being loaded, it may have been deleted and its slot given to another one.
        self.inner.resolve(handle)?;
        let held = |e: &Entry| e.kind != EntryKind::Tombstone;
        Ok(extents(
            entries.iter().filter(|e| held(e)),
            (range.start..until, offset_bytes, len_bytes),
            extents_max,
        ))
    }

    /// What of a range is a dvol's own: data there that no layer below it has, so that overwriting it takes no
    /// more space for long. The rest is not allocated, or shared. Under the same rules as
    /// [`allocation`](Engine::allocation).
    pub async fn own_allocation(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, DvolError> {
        let range = self.inner.check_query(handle, offset_bytes, len_bytes)?;
        let (entries, until) = self
            .inner
            .entries(handle.slot, range.clone(), |map, range, out| {
                map.lookup(range, ENTRIES_MAX, out)
            })
            .await?;
        self.inner.resolve(handle)?;
        let state = self.inner.state.borrow();
        // A part over a shared block is counted with the block, when both become one.
        let own = |e: &&Entry| e.kind == EntryKind::Data && state.owns(handle.slot, e);
        Ok(extents(
            entries.iter().filter(own),
            (range.start..until, offset_bytes, len_bytes),
            extents_max,
        ))
    }

    /// What of a range changed after `since`, under the same rules. `HistoryForgotten` if that is
    /// not known any more; everything may have changed then.
    pub async fn changed_since(
        &self,
        handle: Handle,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, DvolError> {
        let range = self.inner.check_query(handle, offset_bytes, len_bytes)?;
        self.inner.check_history(handle, since)?;
        let (entries, until) = self
            .inner
            .entries(handle.slot, range.clone(), |map, range, out| {
                map.changed_since(range, since, ENTRIES_MAX, out)
            })
            .await?;
        // While nodes were being loaded, what the answer would have told may have been forgotten; or
        // it was deleted and its slot given to another one.
        self.inner.resolve(handle)?;
        if !planted(Bug::FloorNotRechecked) {
            self.inner.check_history(handle, since)?;
        }
        let runs = runs(entries.iter(), range.start..until);
        let runs = clip(runs, offset_bytes, len_bytes, range.start);
        let extents = runs.into_iter().take(extents_max.max(1));
        Ok(extents
            .map(|(len_bytes, changed)| ChangedExtent { len_bytes, changed })
            .collect())
    }
}

impl<P: Platform> Inner<P> {
    fn check_query(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
    ) -> Result<Range<VBlock>, DvolError> {
        let size = self.resolve(handle)?.size_bytes;
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= size && len > 0);
        let Some(end) = end else {
            return Err(DvolError::OutOfRange);
        };
        Ok(VBlock::containing(offset)..VBlock(end.div_ceil(BLOCK_SIZE)))
    }

    /// Whether it is still known what changed after `since`.
    pub(super) fn check_history(&self, handle: Handle, since: Lsn) -> Result<(), DvolError> {
        let record = self.record(handle)?;
        if since < record.floor || record.is_discarded(since) {
            return Err(DvolError::HistoryForgotten);
        }
        Ok(())
    }

    /// Entries of a map in a range, and how far they tell everything.
    pub(super) async fn entries(
        &self,
        slot: Slot,
        range: Range<VBlock>,
        search: impl Fn(&crate::v2p::Map, Range<VBlock>, &mut Vec<Entry>) -> Result<(), Missing>,
    ) -> Result<(Vec<Entry>, VBlock), DvolError> {
        loop {
            self.settle_journaled(slot, &range).await?;
            let found = self.entries_of_map(slot, range.clone(), &search).await?;
            if self.is_map_right(slot, &range) {
                return Ok(found);
            }
        }
    }

    /// The same of the map as it is, whatever is in the journal alone: for who looks for what that doesn't change.
    pub(super) async fn entries_of_map(
        &self,
        slot: Slot,
        range: Range<VBlock>,
        search: impl Fn(&crate::v2p::Map, Range<VBlock>, &mut Vec<Entry>) -> Result<(), Missing>,
    ) -> Result<(Vec<Entry>, VBlock), DvolError> {
        let mut entries = Vec::new();
        let mut makes_room = true;
        loop {
            let _pass = self.gate.enter();
            let missing = {
                let state = self.state.borrow();
                let Some(found) = state.slot(slot) else {
                    return Err(DvolError::NotFound);
                };
                entries.clear();
                match search(&found.map, range.clone(), &mut entries) {
                    Ok(()) => break,
                    Err(missing) => missing,
                }
            };
            if std::mem::take(&mut makes_room) {
                self.evict_nodes();
            }
            self.load_node(&missing).await?;
        }
        let all = entries.len() < ENTRIES_MAX;
        let until = match entries.last() {
            Some(last) if !all => last.end_vblock().min(range.end),
            _ => range.end,
        };
        Ok((entries, until))
    }

    /// True if data is mapped in `range`.
    pub(super) async fn has_mapped(
        &self,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<bool, DvolError> {
        let mut from = range.start;
        while from < range.end {
            let (entries, until) = self
                .entries(slot, from..range.end, |map, range, out| {
                    map.lookup(range, ENTRIES_MAX, out)
                })
                .await?;
            if entries.iter().any(|e| e.kind != EntryKind::Tombstone) {
                return Ok(true);
            }
            from = until;
        }
        Ok(false)
    }

    /// True if nothing in `range` changed after `since`. The caller holds the range.
    pub(super) async fn unchanged_since(
        &self,
        handle: Handle,
        range: Range<VBlock>,
        since: Lsn,
    ) -> Result<Result<(), Lsn>, DvolError> {
        self.check_history(handle, since)?;
        let (changed, _) = self
            .entries(handle.slot, range, |map, range, out| {
                map.changed_since(range, since, 1, out)
            })
            .await?;
        if !planted(Bug::FloorNotRechecked) {
            self.check_history(handle, since)?;
        }
        Ok(match changed.first() {
            Some(entry) => Err(entry.lsn),
            None => Ok(()),
        })
    }
}

/// Runs of blocks covered by entries (true) and not (false), in blocks.
fn runs<'a>(entries: impl Iterator<Item = &'a Entry>, range: Range<VBlock>) -> Vec<(u64, bool)> {
    let mut runs: Vec<(u64, bool)> = Vec::new();
    let mut push = |blocks: u64, covered: bool| match runs.last_mut() {
        _ if blocks == 0 => {}
        Some((len, kind)) if *kind == covered => *len += blocks,
        _ => runs.push((blocks, covered)),
    };
    let mut at = range.start.0;
    for entry in entries {
        let start = entry.key.vblock().0.max(at);
        let end = entry.end_vblock().0.min(range.end.0);
        if end <= start {
            continue;
        }
        push(start - at, false);
        push(end - start, true);
        at = end;
    }
    push(range.end.0.saturating_sub(at), false);
    runs
}

/// Runs of bytes of a range of blocks, covered by entries or not: those within the bytes asked for.
fn extents<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    (range, offset_bytes, len_bytes): (Range<VBlock>, u64, u64),
    extents_max: usize,
) -> Vec<AllocationExtent> {
    let first = range.start;
    let runs = clip(runs(entries, range), offset_bytes, len_bytes, first);
    let runs = runs.into_iter().take(extents_max.max(1));
    runs.map(|(len_bytes, allocated)| AllocationExtent {
        len_bytes,
        allocated,
    })
    .collect()
}

/// Turns runs of blocks from `first` on into runs of bytes within the range asked for.
fn clip(runs: Vec<(u64, bool)>, offset: u64, len: u64, first: VBlock) -> Vec<(u64, bool)> {
    let mut at = u128::from(first.offset_bytes());
    let (low, high) = (u128::from(offset), u128::from(offset) + u128::from(len));
    let mut clipped = Vec::new();
    for (blocks, kind) in runs {
        let end = at + u128::from(blocks) * u128::from(BLOCK_SIZE);
        let (from, to) = (at.max(low), end.min(high));
        if from < to {
            clipped.push(((to - from) as u64, kind));
        }
        at = end;
    }
    clipped
}
