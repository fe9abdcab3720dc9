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
use crate::format::record::Record;
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
    pub loose: Cell<Option<Rc<Cell<u64>>>>,
    /// Answers whoever made it.
    pub answer: Cell<Option<Promise<Outcome>>>,
    /// Ranges that whoever made it went away from: in use until it is applied or has failed.
    pub left: RefCell<Vec<RangeLock>>,
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
}

impl Default for Units {
    fn default() -> Units {
        Units {
            places: Pool::new(SPARES_MAX),
            answers: Promises::new(SPARES_MAX),
        }
    }
}

impl Units {
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
                    | Record::Unmap { .. }
                    | Record::Attributes { .. }
            )
        };
        !self.records.iter().all(is_data)
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
