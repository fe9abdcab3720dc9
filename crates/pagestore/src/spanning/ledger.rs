//! What a store knows of transactions over several stores: its records, and those that are over here.
//!
//! A record is made and deleted by commits, so it can be on its way to the device; what is answered waits until that
//! is over, and a group that is lost takes back what it did here. Transactions that are over are kept in memory only: at
//! a start the floor is above them all.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::message::{StoreId, TransactionId};
use super::record::{Record, RecordState};
use crate::commit::Commit;
use crate::pointer::{BlockPtr, ExtentId, PagePtr};

/// Records of a store, at most: entries of one page of a table are enough for four times as many.
pub(crate) const RECORDS_MAX: u64 = 64;
/// Bytes of all parts that are prepared, at most. They are held in memory.
const PREPARED_BYTES_MAX: usize = 8 << 20;
/// Transactions that are over and remembered, at most: some hundred KiB, and as many as a busy store has in a second.
const FINISHED_MAX: usize = 4096;

/// How a transaction that is over here ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finished {
    /// Applied, and its record is gone.
    Committed,
    /// Refused here, or its prepared record deleted.
    Aborted,
    /// Never will be accepted. What was before is not known.
    Promised,
}

/// Pages that a part touches.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(super) extent: ExtentId,
    pub(super) pages: Range<u64>,
    /// Changed, or not only depended on.
    pub(super) is_changed: bool,
    /// To name it by.
    pub(super) ptr: PagePtr,
}

/// A record and where it is.
pub(super) struct Entry {
    pub(super) record: Record,
    /// The block that holds it.
    pub(super) block: BlockPtr,
    holds: Vec<Touch>,
    bytes: usize,
    /// The group that made it; zero: durable.
    made_in: u64,
    /// The group that deletes it, and how that ends.
    gone_in: Option<(u64, Finished)>,
}

impl Entry {
    /// The participant behind it and the part, if it is prepared.
    pub(super) fn prepared(&self) -> Option<(StoreId, &Commit)> {
        match &self.record.state {
            RecordState::Prepared { next, part, .. } => Some((*next, part)),
            RecordState::Decided => None,
        }
    }

    /// Blocks of the device that are kept for it.
    fn needs(&self) -> &[(ExtentId, u64)] {
        match &self.record.state {
            RecordState::Prepared { needs, .. } => needs,
            RecordState::Decided => &[],
        }
    }
}

/// See the module's page.
pub(crate) struct Ledger {
    entries: BTreeMap<TransactionId, Entry>,
    finished: BTreeMap<TransactionId, (Finished, u64)>,
    /// Those, the oldest first.
    order: VecDeque<TransactionId>,
    /// Transactions that were over here so far, above all that earlier starts counted.
    count: u64,
    /// What is as of less is refused.
    floor: u64,
}

impl Ledger {
    /// Of a start whose slots begin here: no start has counted so far.
    pub(crate) fn new(first_slot: u64) -> Ledger {
        Ledger {
            entries: BTreeMap::new(),
            finished: BTreeMap::new(),
            order: VecDeque::new(),
            count: first_slot,
            floor: first_slot,
        }
    }

    /// Whether there is no record: then nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn as_of(&self) -> u64 {
        self.count
    }

    pub(super) fn transactions(&self) -> Vec<TransactionId> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn entry(&self, transaction: TransactionId) -> Option<&Entry> {
        self.entries.get(&transaction)
    }

    pub(super) fn finished(&self, transaction: TransactionId) -> Option<Finished> {
        self.finished.get(&transaction).map(|(how, _)| *how)
    }

    /// Whether a message with this can be of a transaction that was forgotten.
    pub(super) fn is_too_old(&self, as_of: u64) -> bool {
        as_of < self.floor
    }

    /// Whether one more part of so many bytes has room. How many records there are their extent bounds.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let held: usize = self.entries.values().map(|entry| entry.bytes).sum();
        held + bytes <= PREPARED_BYTES_MAX
    }

    /// A group is on its way that makes or deletes the record.
    pub(super) fn is_moving(&self, transaction: TransactionId, settled: u64) -> Option<u64> {
        let entry = self.entries.get(&transaction)?;
        let gone_in = entry.gone_in.map(|(group, _)| group);
        gone_in.or_else(|| (entry.made_in > settled).then_some(entry.made_in))
    }

    pub(super) fn insert(
        &mut self,
        record: Record,
        (block, bytes): (BlockPtr, usize),
        holds: Vec<Touch>,
        made_in: u64,
    ) {
        let entry = Entry {
            block,
            holds,
            bytes,
            made_in,
            gone_in: None,
            record,
        };
        self.entries.insert(entry.record.transaction, entry);
    }

    /// The record goes with this group; `None`: it stays after all.
    pub(super) fn set_gone(&mut self, transaction: TransactionId, gone: Option<(u64, Finished)>) {
        if let Some(entry) = self.entries.get_mut(&transaction) {
            entry.gone_in = gone;
        }
    }

    /// Entries whose parts are not applied, as far as what was committed is concerned.
    fn active(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .values()
            .filter(|entry| entry.gone_in.is_none())
    }

    /// Blocks of the device that are kept in an extent.
    pub(crate) fn kept_in(&self, extent: ExtentId) -> u64 {
        let needs = self.active().flat_map(Entry::needs);
        let of_extent = needs.filter(|(of, _)| *of == extent);
        of_extent.map(|(_, blocks)| blocks).sum()
    }

    /// Whether a block is touched by what is prepared, so that nobody is offered it.
    pub(crate) fn holds_pages(&self, extent: ExtentId, pages: &Range<u64>) -> bool {
        let mut holds = self.active().flat_map(|entry| &entry.holds);
        holds.any(|hold| hold.extent == extent && overlap(&hold.pages, pages))
    }

    /// Who holds one of these against this use: what is changed against everybody, what is depended on against who
    /// changes it.
    pub(super) fn holder_of(&self, touches: &[Touch]) -> Option<(PagePtr, TransactionId)> {
        self.active().find_map(|entry| {
            let is_held = |touch: &&Touch| {
                entry.holds.iter().any(|hold| {
                    (hold.is_changed || touch.is_changed)
                        && hold.extent == touch.extent
                        && overlap(&hold.pages, &touch.pages)
                })
            };
            let touch = touches.iter().find(is_held)?;
            Some((touch.ptr, entry.record.transaction))
        })
    }

    /// A transaction is over here. What is known better stays.
    pub(super) fn finish(&mut self, transaction: TransactionId, how: Finished) {
        if self.finished.contains_key(&transaction) {
            return;
        }
        self.count += 1;
        self.finished.insert(transaction, (how, self.count));
        self.order.push_back(transaction);
        if self.order.len() > FINISHED_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, number)) = self.finished.remove(&oldest)
        {
            self.floor = number;
        }
    }

    /// Every group up to this one is durable.
    pub(crate) fn handle_durable(&mut self, settled: u64) {
        let is_gone = |entry: &Entry| entry.gone_in.filter(|(group, _)| *group <= settled);
        let gone: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(id, entry)| is_gone(entry).map(|(_, how)| (*id, how)))
            .collect();
        for (id, how) in gone {
            self.entries.remove(&id);
            self.finish(id, how);
        }
    }

    /// Groups above this one are lost.
    pub(crate) fn handle_lost(&mut self, durable: u64) {
        self.entries.retain(|_, entry| entry.made_in <= durable);
        for entry in self.entries.values_mut() {
            entry.gone_in = None;
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
