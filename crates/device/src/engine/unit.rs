//! Units: what happens wholly or not at all.
//!
//! A unit's records go into one journal group while its data goes to fresh blocks, in parallel. It
//! is *written* when its data and the journal up to its group have been written, and *durable* when
//! a flush that began after that has succeeded. A stable unit is applied (so that others see it)
//! and answered when it is durable, an unstable one when it is written. [design: Rules of the
//! journal, Visibility]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_platform::pool::{Pool, Pooled};
use flagstone_platform::sync::{Awaited, Promise, Promises};
use flagstone_types::{BlockNo, Slot};
use smallvec::SmallVec;

use super::error::DvolError;
use super::locks::RangeLock;
use super::loose::Ticket;
use crate::format::record::{MappedBlocks, Record};
use crate::planted::{Bug, planted};

/// Blocks handed out for a unit's data.
pub(super) type DataBlocks = SmallVec<[BlockNo; 2]>;

/// Units, and promises of their answers, that memory is kept for when they are over: of each some 300 KiB. As many as
/// are on their way at a time take nothing from the allocator.
const SPARES_MAX: usize = 1024;

/// How a unit ends for whoever made it.
pub(super) type Outcome = Result<(), DvolError>;

/// A change on its way.
pub(super) struct Unit {
    /// What it changes. Empty for units that only concern the journal.
    pub records: SmallVec<[Record; 1]>,
    /// The slots whose order it takes part in.
    pub slots: SmallVec<[Slot; 2]>,
    /// Applied and answered only when durable.
    pub stable: bool,
    /// Blocks handed out for its data.
    pub blocks: DataBlocks,
    /// Blocks that it may have due at the next checkpoint.
    pub due: u64,
    /// The group it is in, once that is closed; zero before.
    pub seq: Cell<u64>,
    /// Its place in that group.
    pub index: Cell<u32>,
    /// What is known of its data.
    pub data: Cell<DataState>,
    /// Pieces of its data that were gathered and are not written yet.
    pub pieces_left: Cell<u32>,
    /// Why one of them could not be written.
    pub piece_failed: Cell<Option<DvolError>>,
    /// True once its group and all before are written.
    pub journaled: Cell<bool>,
    /// The flush it waits for; zero while it is not written.
    pub ticket: Cell<u64>,
    /// Where it is to be said that it is no longer under way, if a crash may take it back afterwards.
    pub loose: Cell<Option<Ticket>>,
    /// Answers whoever made it.
    pub answer: Cell<Option<Promise<Outcome>>>,
    /// Ranges that whoever made it went away from: in use until it is applied or has failed.
    pub left: RefCell<Vec<RangeLock>>,
    /// Where the memory of its lists goes.
    lists: Rc<UnitLists>,
}

impl Drop for Unit {
    fn drop(&mut self) {
        for record in &mut self.records {
            if let Record::Map { runs, .. } = record {
                for run in runs {
                    keep(&self.lists.mapped, &mut run.blocks);
                }
            }
        }
        keep(&self.lists.blocks, &mut self.blocks);
    }
}

/// What makes a unit.
#[derive(Default)]
pub(super) struct UnitParts {
    pub records: SmallVec<[Record; 1]>,
    pub slots: SmallVec<[Slot; 2]>,
    pub stable: bool,
    pub blocks: DataBlocks,
    pub due: u64,
}

/// Where the units of a journal lie.
pub(super) struct Units {
    places: Pool<Unit>,
    answers: Promises<Outcome>,
    lists: Rc<UnitLists>,
}

/// Memory of the lists of units that are over: those of a write of several blocks take nothing from the allocator. At most 2 MiB.
#[derive(Default)]
pub(super) struct UnitLists {
    mapped: RefCell<Vec<MappedBlocks>>,
    blocks: RefCell<Vec<DataBlocks>>,
}

/// Lists that are kept, of each kind.
const LISTS_MAX: usize = 64;

/// Bytes of one, at most.
const LIST_MAX_BYTES: usize = 16 << 10;

impl UnitLists {
    /// An empty list with room for so many.
    pub(super) fn mapped(&self, count: usize) -> MappedBlocks {
        empty(&self.mapped, count)
    }

    /// An empty list with room for so many.
    pub(super) fn blocks(&self, count: usize) -> DataBlocks {
        empty(&self.blocks, count)
    }
}

fn empty<A: smallvec::Array>(spares: &RefCell<Vec<SmallVec<A>>>, count: usize) -> SmallVec<A> {
    let mut list = SmallVec::new();
    if count <= list.inline_size() {
        return list;
    }
    // A longer one would not be kept, and its memory be lost for the others.
    if count * size_of::<A::Item>() <= LIST_MAX_BYTES {
        list = spares.borrow_mut().pop().unwrap_or_default();
    }
    list.reserve_exact(count);
    list
}

fn keep<A: smallvec::Array>(spares: &RefCell<Vec<SmallVec<A>>>, list: &mut SmallVec<A>) {
    if !list.spilled() || list.capacity() * size_of::<A::Item>() > LIST_MAX_BYTES {
        return;
    }
    let mut spares = spares.borrow_mut();
    if spares.len() < LISTS_MAX {
        list.clear();
        spares.push(std::mem::take(list));
    }
}

impl Default for Units {
    fn default() -> Units {
        Units {
            places: Pool::new(SPARES_MAX),
            answers: Promises::new(SPARES_MAX),
            lists: Rc::default(),
        }
    }
}

impl Units {
    /// Where lists for units come from.
    pub(super) fn lists(&self) -> &UnitLists {
        &self.lists
    }

    /// A new unit, and what waits for its answer.
    pub(super) fn make(&self, parts: UnitParts) -> (Pooled<Unit>, Awaited<Outcome>) {
        let (answering, answer) = self.answers.promise();
        let data = match parts.blocks.is_empty() {
            true => DataState::Written,
            false => DataState::Pending,
        };
        let unit = Unit {
            records: parts.records,
            slots: parts.slots,
            stable: parts.stable,
            blocks: parts.blocks,
            due: parts.due,
            seq: 0.into(),
            index: 0.into(),
            data: data.into(),
            pieces_left: 0.into(),
            piece_failed: None.into(),
            journaled: false.into(),
            ticket: 0.into(),
            loose: None.into(),
            answer: Some(answering).into(),
            left: RefCell::default(),
            lists: self.lists.clone(),
        };
        (self.places.share(unit), answer)
    }
}

/// What is known of a unit's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DataState {
    /// On its way to the device.
    Pending,
    /// All of it written.
    Written,
    /// Some of it could not be written; the journal does not say so yet.
    Failed(DvolError),
    /// The same, and the journal says so.
    Aborted(DvolError),
}

impl Unit {
    /// True for a change that is more than data and the attributes that come with it: what it leaves (a snapshot, a size) rests on
    /// every change before it, so it is durable only when those are.
    pub(super) fn is_structural(&self) -> bool {
        if planted(Bug::SnapshotNotBarrier) {
            return false;
        }
        let is_data = |r: &Record| {
            matches!(
                r,
                Record::Map { .. }
                    | Record::Delta { .. }
                    | Record::MapUnder { .. }
                    | Record::Unmap { .. }
                    | Record::Attributes { .. }
                    | Record::Journaled { .. }
            )
        };
        !self.records.iter().all(is_data)
    }

    /// True if it brings data that is in the journal.
    pub(super) fn has_journaled(&self) -> bool {
        let has_data = |r: &Record| matches!(r, Record::Journaled { .. });
        self.records.iter().any(has_data)
    }

    /// True once data and journal are written.
    pub(super) fn is_written(&self) -> bool {
        self.journaled.get() && self.data.get() == DataState::Written
    }

    /// True once nothing more will be written for it.
    pub(super) fn is_settled(&self) -> bool {
        self.journaled.get()
            && matches!(self.data.get(), DataState::Written | DataState::Aborted(_))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::{BlockChecksum, Lsn, VBlock};
    use smallvec::smallvec;

    use super::*;
    use crate::format::record::{MapRun, MappedBlock};

    /// Makes a unit that maps so many blocks, and lets it go. Where its lists lay.
    fn pass(units: &Units, count: u64) -> (*const MappedBlock, *const BlockNo) {
        let mut mapped = units.lists().mapped(count as usize);
        let mut blocks = units.lists().blocks(count as usize);
        assert!(mapped.is_empty() && blocks.is_empty());
        for block in (0..count).map(BlockNo) {
            blocks.push(block);
            mapped.push(MappedBlock {
                block,
                checksum: BlockChecksum(0),
                meta: 0,
            });
        }
        let at = (mapped.as_ptr(), blocks.as_ptr());
        let start = VBlock(0);
        let record = Record::Map {
            slot: Slot(1),
            lsn: Lsn(1),
            runs: smallvec![MapRun {
                start,
                blocks: mapped
            }],
        };
        drop(units.make(UnitParts {
            records: smallvec![record],
            blocks,
            ..UnitParts::default()
        }));
        at
    }

    #[test]
    fn lists_of_a_unit_that_is_over_are_those_of_the_next() {
        let units = Units::default();
        let first = pass(&units, 16);
        assert_eq!(pass(&units, 16), first);
        assert_eq!(pass(&units, 9), first, "of fewer blocks as well");
        // Of one block they are within the unit, and take none of these.
        pass(&units, 1);
        assert_eq!(pass(&units, 16), first);
    }

    #[test]
    fn long_lists_and_many_are_not_kept() {
        let units = Units::default();
        let kept = |units: &Units| {
            let lists = units.lists();
            (lists.mapped.borrow().len(), lists.blocks.borrow().len())
        };
        let longest = [
            LIST_MAX_BYTES / size_of::<MappedBlock>(),
            LIST_MAX_BYTES / size_of::<BlockNo>(),
        ];
        pass(&units, longest[1] as u64 + 1);
        assert_eq!(kept(&units), (0, 0));
        pass(&units, longest[0] as u64 + 1);
        assert_eq!(kept(&units), (0, 1));
        pass(&units, longest[0] as u64);
        assert_eq!(kept(&units), (1, 1));
        pass(&units, longest[1] as u64 + 1);
        assert_eq!(kept(&units), (1, 1), "those that are kept are left alone");
        let units = Units::default();
        let many: Vec<_> = (0..LISTS_MAX + 9)
            .map(|_| {
                let blocks = SmallVec::from_slice(&[BlockNo(7); 3]);
                let parts = UnitParts {
                    blocks,
                    ..UnitParts::default()
                };
                units.make(parts)
            })
            .collect();
        drop(many);
        assert_eq!(kept(&units), (0, LISTS_MAX));
    }
}
