//! One journal's worth of a device, running on one core.
//!
//! The engine owns its dvols, its journal, its segments. Requests arrive as async calls; a few
//! background tasks write groups, flush, make checkpoints, reap deleted layers, forget and scrub. All state
//! is in `RefCell`s that are never borrowed across an await.
//!
//! Modules in reading order: [`unit`], [`journal`], `commit` (the order in which things become
//! true), `write`, `deallocate`, `read`, `cached`, `checkpoint`, `recovery`, `replay`, `admin`, `reaper`.

mod admin;
mod ahead;
mod background;
mod batch;
mod bitmaps;
mod cached;
mod chain;
mod checkpoint;
mod commit;
mod data;
mod deallocate;
mod due;
mod error;
mod flusher;
mod forget;
mod format;
mod gate;
mod hand_over;
mod idle;
mod info;
mod join;
mod journal;
mod laying_out;
mod load;
mod locks;
mod loose;
mod mappings;
mod options;
mod overwrites;
mod pieces;
mod promise;
mod query;
mod read;
mod reaper;
mod recent_parts;
mod recovery;
mod replay;
mod ring;
mod room;
mod scrub;
mod segments;
mod spacing;
mod unit;
mod write;
mod write_now;
mod write_part;
mod writers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flagstone_platform::pool::Pooled;
use flagstone_platform::sync::{Budget, Signal};
use flagstone_platform::{FuturePool, Platform};
use flagstone_types::{BlockNo, DvolId, Lsn, SegmentNo, Slot, VBlock};

use crate::cache::Part;
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::space::{BlockRun, DeviceShared};
use crate::state::{Effects, State};
use crate::v2p::Entry;

pub use admin::{Attributes, CreateDvol, SIZE_MAX_BYTES};
pub use background::{Background, BackgroundTurn, ComingTurn, Work};
pub use batch::{Batch, BlockMeta, Change, Condition, JOURNALED_MAX_BYTES};
pub use error::DvolError;
pub use format::{fixed_areas, format_device, read_superblock};
pub use hand_over::HandedOver;
pub use info::{DvolBrief, DvolInfo, EngineCounters, Handle, LayerInfo, SpaceInfo};
pub use join::{Outputs, join_all, join_few, join_placed};
pub use options::{EngineOptions, FormatOptions};
pub use query::{AllocationExtent, ChangedExtent};
pub use read::{Data, DeviceReads, Piece, Pieces, READ_MAX_BYTES, gathered};
pub use recovery::{OpenError, RecoveryReport};
pub use room::{Reserving, SpareRoom};
pub use scrub::ScrubReport;
pub use write::WRITE_MAX_BYTES;

use commit::Commit;
use flusher::Flusher;
use gate::ReadGate;
use journal::Journal;
use locks::RangeLocks;
use promise::Pledged;
use unit::{Unit, Units};
use writers::Writers;

/// What a client wants to be true when a change is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stability {
    /// Written, not flushed: a power loss before the next flush may undo it.
    Unstable,
    /// Survives power loss.
    Stable,
}

/// One journal of a device, with everything it owns. A cheap handle.
pub struct Engine<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Engine<P> {
    fn clone(&self) -> Self {
        Engine {
            inner: self.inner.clone(),
        }
    }
}

/// The engine's parts. Methods are spread over the modules by subject.
struct Inner<P: Platform> {
    platform: P,
    device: P::Device,
    shared: DeviceShared,
    superblock: Superblock,
    geometry: Geometry,
    /// What the geometry says can be handed out, added up once.
    capacity_blocks: u64,
    journal_no: u16,
    options: EngineOptions,
    state: RefCell<State>,
    journal: RefCell<Journal>,
    writers: Writers<journal::SealedGroup>,
    data: data::Data,
    commit: RefCell<Commit>,
    /// Where units lie.
    units: Units,
    /// Units that did not fit the open group, with their records' bytes, in order.
    overflow: RefCell<VecDeque<(Pooled<Unit>, Vec<u8>)>>,
    flusher: Flusher,
    gate: ReadGate,
    /// This journal's part of the core's cache, if there is one.
    cache: Option<Part>,
    locks: RefCell<BTreeMap<Slot, RangeLocks>>,
    /// Blocks freed by units applied since the last flush began.
    freed: RefCell<Vec<BlockNo>>,
    /// One administrative operation at a time: they choose slots and layer numbers.
    admin: Budget,
    /// Segments taken, with the units that say so, as long as those may be in an open group.
    segments_taking: RefCell<BTreeMap<SegmentNo, Pooled<Unit>>>,
    /// Segments that are written ahead.
    laying_out: laying_out::LayingOut,
    /// Only one task opens a segment at a time.
    opening: Budget,
    /// Whose turn it is to wait for room at the next checkpoint.
    way: Budget,
    /// Whose turn it is to take blocks that are kept for overwrites.
    overwrites: Budget,
    /// Blocks that units on their way may have due at the next checkpoint.
    due_ahead: Cell<u64>,
    /// Slots chosen by operations that are not applied yet.
    chosen_slots: RefCell<BTreeSet<u32>>,
    /// What the administrative operation under way is about to reserve, by slot.
    pledged: RefCell<BTreeMap<u32, Pledged>>,
    /// What is pledged lies in segments of this journal.
    pledge_held: Cell<bool>,
    /// Ranges of batches for which blocks have been handed out and no unit is submitted yet.
    batched: RefCell<Vec<(Slot, Range<VBlock>)>>,
    /// Dvols to which data was written that is in the journal alone, since the start. Nobody takes a snapshot of them.
    journaled_dvols: RefCell<BTreeSet<DvolId>>,
    /// Batches whose data is being written before they have a unit.
    made_ahead: Cell<u32>,
    /// Units of several blocks that a crash may still take back.
    loose: loose::LooseUnits,
    /// What parts of blocks were written last.
    recent_parts: recent_parts::RecentParts,
    /// Where the futures of writes that had to wait lie: of `write_waiting` and of nothing else, since a pool is for one type.
    waiting_writes: Rc<FuturePool>,
    /// The same of the pieces of reads: of `take_step_alone`.
    read_steps: Rc<FuturePool>,
    /// Dvols and layers that are being deleted: nothing new is accepted for them.
    closing: RefCell<BTreeSet<Slot>>,
    /// LSNs given to units that may not be applied yet.
    given_lsns: RefCell<BTreeMap<Slot, Lsn>>,
    /// Memory used again and again: the bytes of a unit's records, blocks that are handed out or can be again, and what
    /// applying the records freed.
    scratch_body: RefCell<Vec<u8>>,
    scratch_runs: RefCell<Vec<BlockRun>>,
    scratch_reusable: RefCell<Vec<BlockNo>>,
    scratch_effects: RefCell<Effects>,
    /// The same for reads: what a lookup finds, and checksums of long runs.
    scratch_entries: RefCell<Vec<Entry>>,
    spare_checksums: RefCell<Vec<read::Checksums>>,
    signals: Signals,
    counters: EngineCounters,
    root_seq: Cell<u64>,
    checkpoint_requested: Cell<bool>,
    checkpoints_started: Cell<u64>,
    checkpoints_done: Cell<u64>,
    /// Checkpoints for which there was no room.
    checkpoints_failed: Cell<u64>,
    /// Units that were applied, and how many of them the last checkpoint keeps.
    changes: Cell<u64>,
    changes_kept: Cell<u64>,
    /// Nothing has changed for a while: no segment is kept for what changes.
    gives_all_back: Cell<bool>,
    /// Set once the last checkpoint is being made.
    checkpointer_off: Cell<bool>,
    /// Set once the last checkpoint has been made: it needs flushes.
    flusher_off: Cell<bool>,
    /// Whoever stops it: one at a time.
    stop: Budget,
    /// It has stopped in order.
    has_stopped: Cell<bool>,
    /// Another engine may have the journal: blocks that it frees may be written while they would be read here.
    handed_over: Cell<bool>,
    stopping: Cell<bool>,
    /// Why reaping does not get on, if it does not.
    reaping_failed: Cell<Option<DvolError>>,
    /// The layer whose reaping was found safe to go on with.
    reaping_settled: Cell<Option<Slot>>,
    /// The device said that what holds it has no room, and has not taken anything new since.
    host_full: Cell<bool>,
    /// Slot whose map gives up nodes next.
    eviction: load::Eviction,
    /// Gives the background its turns; none: it needs none.
    background: RefCell<Option<Rc<dyn background::Background>>>,
    /// Those who wait for a checkpoint.
    pressing: Cell<u64>,
    /// How far the one under way has come.
    pace: Cell<background::Pace>,
    /// Background tasks still running.
    tasks: Cell<usize>,
    last_scrub: RefCell<Option<ScrubReport>>,
    background_scrub: RefCell<Option<ScrubReport>>,
}

/// What background tasks and waiters wait for.
#[derive(Default)]
struct Signals {
    /// The open group got its first unit, a group was written, or the ring was trimmed.
    journal: Signal,
    /// Data was gathered.
    data: Signal,
    /// Someone wants a flush.
    flush_wanted: Signal,
    /// A flush has ended.
    flushed: Signal,
    /// Blocks can be handed out again, or segments are free.
    space: Signal,
    /// The next segment is to be opened ahead of need, or one was opened and not laid out.
    blocks_low: Signal,
    /// Someone wants a checkpoint, or the state reached its limits.
    checkpoint_wanted: Signal,
    /// A checkpoint has ended.
    checkpointed: Signal,
    /// A layer may be ready for reaping.
    reap: Signal,
    /// A dvol may have too many tombstones.
    forget: Signal,
    /// A unit was applied.
    applied: Signal,
    /// Something happened that the quiet task should look at later.
    activity: Signal,
    /// A background task has ended.
    task_ended: Signal,
    /// It stops.
    stops: Signal,
}

impl<P: Platform> Engine<P> {
    /// The platform it runs on.
    pub fn platform(&self) -> &P {
        &self.inner.platform
    }

    /// The device's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }

    /// Which journal of the device this is.
    pub fn journal_no(&self) -> u16 {
        self.inner.journal_no
    }

    /// Whether changes are taken now: `Fenced` or `Stopping` if not.
    pub fn check_running(&self) -> Result<(), DvolError> {
        self.inner.check_running()
    }

    /// True if the other one is a handle of the same journal: what can be changed in one instant.
    pub fn is_same(&self, other: &Engine<P>) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// True once a flush or journal write has failed.
    pub fn is_fenced(&self) -> bool {
        self.inner.shared.is_fenced()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &EngineCounters {
        &self.inner.counters
    }

    /// Stops in order: waits for what is under way, writes a last checkpoint, ends the tasks. What
    /// comes in meanwhile is refused. Once it has stopped, nothing happens any more; least of all if it has handed its journal over:
    /// another one may be writing there. If it failed it may be tried again.
    pub async fn stop(&self) -> Result<(), DvolError> {
        let inner = &self.inner;
        // Two at once would both write the last root.
        let _turn = inner.stop.take(1).await;
        if inner.has_stopped.get() || inner.handed_over.get() {
            return Ok(());
        }
        inner.stopping.set(true);
        inner.signals.stops.notify();
        let drained = async {
            let is_idle = || inner.commit.borrow().is_idle() && inner.made_ahead.get() == 0;
            while !is_idle() && !inner.shared.is_fenced() {
                inner.signals.applied.wait().await;
            }
        };
        drained.await;
        let result = inner.final_checkpoint().await;
        inner.flusher_off.set(true);
        inner.writers.end();
        inner.data.end();
        inner.signals.data.notify();
        inner.signals.journal.notify();
        inner.signals.flush_wanted.notify();
        inner.signals.checkpoint_wanted.notify();
        inner.signals.blocks_low.notify();
        inner.signals.reap.notify();
        inner.signals.checkpointed.notify();
        inner.signals.forget.notify();
        inner.signals.activity.notify();
        while inner.tasks.get() > 0 {
            inner.signals.task_ended.wait().await;
        }
        inner.has_stopped.set(result.is_ok());
        result
    }

    /// Starts the background tasks.
    fn start_tasks(&self) {
        self.start_task(|inner| async move { inner.run_journal().await });
        self.start_task(|inner| async move { inner.run_data().await });
        self.start_task(|inner| async move { inner.run_flusher().await });
        self.start_task(|inner| async move { inner.run_checkpointer().await });
        self.start_task(|inner| async move { inner.run_opener().await });
        let keeps_up = !self.inner.options.hold_upkeep;
        if keeps_up {
            self.start_task(|inner| async move { inner.run_reaper().await });
            self.start_task(|inner| async move { inner.run_forgetter().await });
        }
        self.start_task(|inner| async move { inner.run_quiet().await });
        if keeps_up {
            self.inner.platform.spawn(self.inner.clone().run_idle());
        }
        if self.inner.options.scrub_period_ns > 0 {
            self.inner.platform.spawn(self.inner.clone().run_scrubber());
        }
    }

    fn start_task<F: Future<Output = ()> + 'static>(&self, task: impl FnOnce(Rc<Inner<P>>) -> F) {
        let inner = self.inner.clone();
        inner.tasks.set(inner.tasks.get() + 1);
        let task = task(inner.clone());
        self.inner.platform.spawn(async move {
            task.await;
            inner.tasks.set(inner.tasks.get() - 1);
            inner.signals.task_ended.notify();
        });
    }
}

impl<P: Platform> Inner<P> {
    /// Fences the device on all cores and fails everything that waits on this one.
    fn fence(&self, why: &str) {
        if !self.shared.is_fenced() {
            tracing::error!(
                device = %self.superblock.device_id,
                journal = self.journal_no,
                "{why}; the device is fenced: nothing is acknowledged until the node is restarted"
            );
        }
        self.shared.fence();
        self.fail_all(DvolError::Fenced);
    }

    /// Fences the device for a write that failed. If what holds the device is full, a restart alone
    /// changes nothing: the log says what does.
    fn fence_for(&self, why: &str, error: &std::io::Error) {
        self.fence(&format!("{why} ({error}){}", error::cause_of(error)));
    }

    /// What a failed write is to whoever asked for it. A sparse file's filesystem may be full, or what a
    /// thin block device is made of: for a client that is as if the device were. Operators are told.
    fn write_failure(&self, error: &std::io::Error) -> DvolError {
        if !error::is_full(error) {
            return DvolError::Device;
        }
        if !self.host_full.replace(true) {
            tracing::warn!(
                device = %self.superblock.device_id,
                journal = self.journal_no,
                "the device itself has room, but what holds it (a file's filesystem, a thin pool) has \
                 none: writes that need new space fail until there is room ({error})"
            );
        }
        DvolError::NoSpace
    }

    /// The same for data, of which operators are told whatever it was.
    fn data_failure(&self, error: &std::io::Error) -> DvolError {
        tracing::warn!(
            device = %self.superblock.device_id,
            journal = self.journal_no,
            "a write to the device failed: {error}"
        );
        self.write_failure(error)
    }

    fn check_running(&self) -> Result<(), DvolError> {
        if self.shared.is_fenced() {
            return Err(DvolError::Fenced);
        }
        if self.stopping.get() {
            return Err(DvolError::Stopping);
        }
        Ok(())
    }

    /// Refuses to read from the device what another engine may have by now.
    fn check_ours(&self) -> Result<(), DvolError> {
        match self.handed_over.get() {
            true => Err(DvolError::Stopping),
            false => Ok(()),
        }
    }

    fn range_locks(&self, slot: Slot) -> RangeLocks {
        self.locks.borrow_mut().entry(slot).or_default().clone()
    }
}
