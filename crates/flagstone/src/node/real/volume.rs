//! A volume as the gateways see it: an engine's dvol or layer, with its counters.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use flagstone_device::engine::{self, DvolError, Engine, Handle};
use flagstone_device::transfer::{Entered, Gate};
use flagstone_gateway::volume::{AllocationExtent, ChangedExtent, Stability, VolumeError};
use flagstone_platform::record::NodeMark;
use flagstone_platform::{FuturePool, IoBuf, Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_sched::{Tenant, TenantStats, Turn, Want};
use flagstone_types::{Epoch, LatencyHistogram, Lsn};

use super::epochs::{Pass, Stale};
use super::notes::VolumeNotes;
use super::recording::Recording;
use super::stripes::OpenStripe;
use super::under_way::UnderWay;
use crate::node::{ErrorCount, IoMark, IoMetrics, TurnMetrics, VolumeLook, VolumeMetrics};

/// Counts of one kind of operation.
#[derive(Default)]
pub(super) struct OpCounters {
    operations: u64,
    bytes: u64,
    errors: Vec<ErrorCount>,
    latency: LatencyHistogram,
}

impl OpCounters {
    pub(super) fn record(&mut self, ns: u64, bytes: u64, error: Option<&'static str>) {
        self.operations += 1;
        self.latency.record(ns);
        match error {
            None => self.bytes += bytes,
            Some(kind) => match self.errors.iter_mut().find(|e| e.kind == kind) {
                Some(known) => known.count += 1,
                None => self.errors.push(ErrorCount { kind, count: 1 }),
            },
        }
    }

    pub(super) fn snapshot(&self) -> IoMetrics {
        IoMetrics {
            operations: self.operations,
            bytes: self.bytes,
            errors: self.errors.clone(),
            latency: self.latency.clone(),
        }
    }

    pub(super) fn mark(&self) -> IoMark {
        IoMark {
            operations: self.operations,
            bytes: self.bytes,
            errors: self.errors.clone(),
            latency: self.latency.mark(),
        }
    }
}

/// Counts of one volume since the node was started.
#[derive(Default)]
pub(super) struct VolumeCounters {
    pub(super) read: RefCell<OpCounters>,
    pub(super) write: RefCell<OpCounters>,
    pub(super) flush: RefCell<OpCounters>,
    pub(super) trim: RefCell<OpCounters>,
    /// Of its turns at the device.
    pub(super) turns: Rc<RefCell<TenantStats>>,
    /// Changes that are answered when they are durable.
    stable: Cell<u64>,
    under_way: UnderWay,
}

impl VolumeCounters {
    /// A copy under the volume's present name.
    pub(super) fn snapshot(&self, volume: String, promised_ns: u64) -> VolumeMetrics {
        let turns = self.turns.borrow();
        VolumeMetrics {
            volume,
            read: self.read.borrow().snapshot(),
            write: self.write.borrow().snapshot(),
            flush: self.flush.borrow().snapshot(),
            trim: self.trim.borrow().snapshot(),
            turns: TurnMetrics {
                waited: turns.waited.clone(),
                used_ns: turns.used_ns,
                short_ns: turns.short_ns,
                promised_ns,
            },
        }
    }
}

impl VolumeCounters {
    /// Puts what was counted into a look at the volume.
    pub(super) fn fill_look(&self, look: VolumeLook, now: Time) -> VolumeLook {
        let turns = self.turns.borrow();
        VolumeLook {
            read: self.read.borrow().mark(),
            write: self.write.borrow().mark(),
            flush: self.flush.borrow().mark(),
            trim: self.trim.borrow().mark(),
            waited: turns.waited.mark(),
            used_ns: turns.used_ns,
            short_ns: turns.short_ns,
            stable: self.stable.get(),
            in_flight: self.under_way.count(),
            occupied_ns: self.under_way.occupied_ns(now),
            under_way_ns: self.under_way.total_ns(now),
            ..look
        }
    }
}

/// What operations took that somebody asked for, of all volumes of a core together.
#[derive(Default)]
pub(super) struct Asked {
    took_ns: Cell<u64>,
}

impl Asked {
    pub(super) fn add(&self, took_ns: u64) {
        self.took_ns.set(self.took_ns.get().saturating_add(took_ns));
    }

    /// All that ended, also those that failed or were given up, in nanoseconds.
    pub(super) fn took_ns(&self) -> u64 {
        self.took_ns.get()
    }
}

/// The same by who asks: of commands of a protocol it is to be known how much of their time their operations are.
#[derive(Default)]
pub(super) struct AskedBy {
    pub(super) nbd: Rc<Asked>,
    pub(super) native: Rc<Asked>,
    /// Files of volumes, streams, members of striped volumes for the whole, and those who had a volume open where it was before.
    pub(super) others: Rc<Asked>,
}

/// An operation under way. It is over when this is dropped: also if nobody waits for it any more.
pub(super) struct Began<'a> {
    volume: &'a RealVolume,
    at: Time,
}

impl Began<'_> {
    /// It is over. Returns how long it took, in nanoseconds.
    pub(super) fn end(self, now: Time) -> u64 {
        let took_ns = self.over(now);
        // Or it would be over twice.
        std::mem::forget(self);
        took_ns
    }

    fn over(&self, now: Time) -> u64 {
        let took_ns = now.since(self.at);
        self.volume.counters.under_way.end(now);
        self.volume.asked.add(took_ns);
        took_ns
    }
}

impl Drop for Began<'_> {
    fn drop(&mut self) {
        self.over(self.volume.platform.now());
    }
}

/// A turn at a volume that is served here, as long as this is kept.
pub(super) struct TurnHere<'a> {
    turn: Turn<UringPlatform>,
    _served: Entered<'a>,
}

impl<'a> TurnHere<'a> {
    pub(super) fn new(turn: Turn<UringPlatform>, served: Entered<'a>) -> TurnHere<'a> {
        TurnHere {
            turn,
            _served: served,
        }
    }

    /// Ends it as one that was not made.
    pub(super) fn give_back(self) {
        self.turn.give_back();
    }
}

impl Deref for TurnHere<'_> {
    type Target = Turn<UringPlatform>;

    fn deref(&self) -> &Turn<UringPlatform> {
        &self.turn
    }
}

impl DerefMut for TurnHere<'_> {
    fn deref_mut(&mut self) -> &mut Turn<UringPlatform> {
        &mut self.turn
    }
}

/// How a read waits for its turns.
pub(super) trait Waiting: Clone + 'static {
    /// Why it has none, or could not read then.
    type Error: From<DvolError>;

    /// Waits for a turn, and says for how long that was.
    async fn turn<'a>(
        &self,
        volume: &'a RealVolume,
        want: Want,
    ) -> (u64, Result<TurnHere<'a>, Self::Error>);

    /// Memory for parts of reads that wait like this, of this core.
    fn memory() -> Rc<FuturePool>;
}

/// Until its turn comes.
#[derive(Clone, Copy)]
struct AsLongAsItTakes;

impl Waiting for AsLongAsItTakes {
    type Error = DvolError;

    async fn turn<'a>(
        &self,
        volume: &'a RealVolume,
        want: Want,
    ) -> (u64, Result<TurnHere<'a>, DvolError>) {
        let turn = volume.turn_here(want).await;
        (turn.as_ref().map_or(0, |turn| turn.waited_ns()), turn)
    }

    fn memory() -> Rc<FuturePool> {
        thread_local! {
            static PARTS: Rc<FuturePool> = Rc::default();
        }
        PARTS.with(Rc::clone)
    }
}

/// What became of a part of a read.
struct PartRead<E> {
    /// How long it waited for its turn at the device.
    turn_ns: u64,
    /// For how long it waited in all.
    waited_ns: u64,
    read: Result<engine::Pieces, E>,
}

/// What is written.
enum Bytes {
    /// These.
    Given(IoBuf),
    /// Zeros, which take space.
    Zeros,
}

impl Bytes {
    /// So many of them, from there on.
    fn part(&self, from: u64, len_bytes: u64) -> Bytes {
        match self {
            Bytes::Given(data) => {
                Bytes::Given(data.slice(from as usize..(from + len_bytes) as usize))
            }
            Bytes::Zeros => Bytes::Zeros,
        }
    }
}

/// A change that may be made, as long as this is kept.
pub(super) struct Admitted<'a> {
    _passed: Pass<'a>,
    _entered: Entered<'a>,
}

impl<'a> Admitted<'a> {
    pub(super) fn new(passed: Pass<'a>, entered: Entered<'a>) -> Admitted<'a> {
        Admitted {
            _passed: passed,
            _entered: entered,
        }
    }
}

/// To deallocate costs a record in the journal, however long the range.
fn want_to_clear(stability: Stability) -> Want {
    Want::write(0, 1, stability == Stability::Stable)
}

/// An open volume or snapshot on its core.
#[derive(Clone)]
pub(super) struct RealVolume {
    pub(super) platform: UringPlatform,
    pub(super) engine: Engine<UringPlatform>,
    pub(super) handle: Handle,
    /// What it was when this handle was made: who opens it with a higher one ends this handle's changes. The
    /// native protocol brings one with each request instead.
    pub(super) epoch: Epoch,
    /// What fails together with its device.
    pub(super) failure_domain: Rc<str>,
    /// Whose turn it has to be.
    pub(super) tenant: Tenant<UringPlatform>,
    pub(super) counters: Rc<VolumeCounters>,
    /// Where it counts what operations took, by who has it open.
    pub(super) asked: Rc<Asked>,
    /// Whether its journal is served here.
    pub(super) serving: Rc<Gate>,
    pub(super) notes: Rc<VolumeNotes>,
    /// Of a striped volume: all its members, of which this is the first.
    pub(super) stripe: Option<Rc<OpenStripe>>,
    pub(super) recording: Recording,
}

impl RealVolume {
    /// Marks the answer to a change in the record, if there is one and the change was made.
    pub(super) fn mark<T>(
        &self,
        result: &Result<T, VolumeError>,
        mark: NodeMark,
        offset_bytes: u64,
        len_bytes: u64,
    ) {
        if result.is_ok() {
            self.recording
                .answered(mark, self.handle.id, offset_bytes, len_bytes);
        }
    }

    /// An operation begins.
    pub(super) fn begin(&self) -> Began<'_> {
        let at = self.platform.now();
        self.counters.under_way.begin(at);
        Began { volume: self, at }
    }

    /// A change begins.
    pub(super) fn begin_change(&self, stability: Stability) -> Began<'_> {
        let stable = &self.counters.stable;
        stable.set(stable.get() + u64::from(stability == Stability::Stable));
        self.begin()
    }

    fn finish<T>(
        &self,
        began: Began<'_>,
        counters: &RefCell<OpCounters>,
        bytes: u64,
        result: Result<T, DvolError>,
    ) -> Result<T, VolumeError> {
        self.finish_as(began, counters, bytes, result.map_err(volume_error))
    }

    /// The same of what gateways are told.
    pub(super) fn finish_as<T>(
        &self,
        began: Began<'_>,
        counters: &RefCell<OpCounters>,
        bytes: u64,
        result: Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let ns = began.end(self.platform.now());
        if self.is_gone_by(result.as_ref().err()) {
            // It goes on elsewhere, and is counted there.
            return result;
        }
        let error = result.as_ref().err().map(error_word);
        counters.borrow_mut().record(ns, bytes, error);
        result
    }

    /// A turn at it, and that it is served here meanwhile.
    async fn turn_here(&self, want: Want) -> Result<TurnHere<'_>, DvolError> {
        loop {
            let turn = self.tenant.turn(want).await;
            match self.try_enter() {
                Ok(Some(served)) => return Ok(TurnHere::new(turn, served)),
                // Whoever decides that may need a turn to come to the end of it.
                undecided => {
                    turn.give_back();
                    undecided?;
                    self.decided().await;
                }
            }
        }
    }

    /// That it is served here as long as this is kept. `None`: that is being decided, since it may be another node's already, or its journal
    /// goes to another core.
    ///
    /// # Errors
    ///
    /// It is elsewhere.
    pub(super) fn try_enter(&self) -> Result<Option<Entered<'_>>, DvolError> {
        if self.is_gone() {
            return Err(DvolError::NotFound);
        }
        if self.notes.reads.is_shut() {
            return Ok(None);
        }
        self.serving.try_enter().map_err(|_| DvolError::NotFound)
    }

    /// Waits until it is decided whether it is served here.
    pub(super) async fn decided(&self) {
        self.notes.reads.opened().await;
        self.serving.opened().await;
    }

    /// A turn to change it by, and the right to, by this handle.
    async fn turn_to_change(&self, want: Want) -> Result<(TurnHere<'_>, Admitted<'_>), DvolError> {
        loop {
            let turn = self.turn_here(want).await?;
            match self.admit() {
                Ok(Some(admitted)) => return Ok((turn, admitted)),
                // Whoever holds it may need a turn to come to the end of that.
                Ok(None) => {
                    turn.give_back();
                    self.notes.gate.opened().await;
                }
                Err(error) => {
                    turn.give_back();
                    return Err(error);
                }
            }
        }
    }

    /// Begins a change by this handle, unless changes are held just now.
    pub(super) fn admit(&self) -> Result<Option<Admitted<'_>>, DvolError> {
        let Some(entered) = self
            .notes
            .gate
            .try_enter()
            .map_err(|_| DvolError::NotFound)?
        else {
            return Ok(None);
        };
        let stored = self.engine.epoch_of(self.handle)?;
        let passed = self.notes.epochs.enter(self.epoch, stored);
        let passed = passed.map_err(|Stale| DvolError::StaleEpoch)?;
        Ok(Some(Admitted::new(passed, entered)))
    }

    /// Says that it was changed, also if only a part of a change was made.
    pub(super) fn tell_changed(&self) {
        self.notes.change.tell(self.platform.wall_clock_ns());
    }

    /// The same of a striped volume, of which no LSN tells: later than it was told before, whatever the clock does.
    pub(super) fn tell_whole_changed(&self) {
        self.notes.change.tell_later(self.platform.wall_clock_ns());
    }

    /// Reads something here, when it is its turn, and says for how long it waited. What is large is read in parts, side by side and each in a turn of its
    /// own; what is written meanwhile may be in one of them and not in another.
    pub(super) async fn read_in_turns<W: Waiting>(
        &self,
        want: Want,
        waiting: W,
    ) -> (u64, Result<engine::Pieces, W::Error>) {
        let part_bytes = self.tenant.part_bytes();
        if want.len_bytes <= part_bytes {
            let part = self.read_part(want, &waiting).await;
            return (part.waited_ns, part.read);
        }
        let part = |want: Want| {
            let (volume, waiting) = (self.clone(), waiting.clone());
            async move { volume.read_part(want, &waiting).await }
        };
        let parts = engine::join_placed(&W::memory(), want.cut(part_bytes).map(part)).await;
        let turn_ns = parts.iter().map(|part| part.turn_ns).max();
        self.tenant.note_waited(turn_ns.unwrap_or(0));
        // Parts wait side by side: it is the longest wait that counts, not their sum.
        let waited_ns = parts.iter().map(|part| part.waited_ns).max();
        let mut pieces = engine::Pieces::new();
        for part in parts {
            match part.read {
                Ok(read) => pieces.extend(read),
                Err(error) => return (waited_ns.unwrap_or(0), Err(error)),
            }
        }
        (waited_ns.unwrap_or(0), Ok(pieces))
    }

    async fn read_part<W: Waiting>(&self, want: Want, waiting: &W) -> PartRead<W::Error> {
        let (waited_ns, turn) = waiting.turn(self, want).await;
        let mut turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                return PartRead {
                    turn_ns: 0,
                    waited_ns,
                    read: Err(error),
                };
            }
        };
        let (at, len) = (want.offset_bytes, want.len_bytes);
        let read = self.engine.read(self.handle, at, len).await;
        if let Ok(pieces) = &read {
            used_by(&mut turn, pieces);
        }
        PartRead {
            turn_ns: turn.waited_ns(),
            waited_ns,
            read: read.map_err(W::Error::from),
        }
    }

    /// Reads what is in its own dvol.
    pub(super) async fn read_alone(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<engine::Pieces, VolumeError> {
        let began = self.begin();
        let want = Want::read(offset_bytes, u64::from(len_bytes));
        let (_, read) = self.read_in_turns(want, AsLongAsItTakes).await;
        self.finish(began, &self.counters.read, u64::from(len_bytes), read)
    }

    /// Waits until it may be read.
    pub(super) async fn readable(&self) -> Result<Entered<'_>, VolumeError> {
        loop {
            match self.try_enter().map_err(volume_error)? {
                Some(served) => return Ok(served),
                None => self.decided().await,
            }
        }
    }

    /// Writes something, when it is its turn. What is large is written in parts, side by side and each in a turn of its own: each is a change for
    /// itself, and if one fails others may be made. Returns the LSN of the last one.
    async fn change_in_turns(&self, want: Want, bytes: Bytes) -> Result<Lsn, DvolError> {
        let part_bytes = self.tenant.part_bytes().min(engine::WRITE_MAX_BYTES);
        if want.len_bytes <= part_bytes {
            return self.change_part(want, bytes).await.1;
        }
        thread_local! {
            static PARTS: Rc<FuturePool> = Rc::default();
        }
        let part = |part: Want| {
            let bytes = bytes.part(part.offset_bytes - want.offset_bytes, part.len_bytes);
            let volume = self.clone();
            async move { volume.change_part(part, bytes).await }
        };
        let memory = PARTS.with(Rc::clone);
        let parts = engine::join_placed(&memory, want.cut(part_bytes).map(part)).await;
        let turn_ns = parts.iter().map(|(turn_ns, _)| *turn_ns).max();
        self.tenant.note_waited(turn_ns.unwrap_or(0));
        let mut last = Lsn::ZERO;
        for (_, written) in parts {
            last = last.max(written?);
        }
        Ok(last)
    }

    /// Writes a part of something in one turn, and says for how long it waited for that.
    async fn change_part(&self, want: Want, bytes: Bytes) -> (u64, Result<Lsn, DvolError>) {
        let (turn, _admitted) = match self.turn_to_change(want).await {
            Ok(admitted) => admitted,
            Err(error) => return (0, Err(error)),
        };
        let stability = match want.is_durable {
            true => engine::Stability::Stable,
            false => engine::Stability::Unstable,
        };
        let (engine, handle, at) = (&self.engine, self.handle, want.offset_bytes);
        let written = match bytes {
            Bytes::Given(data) => engine.write(handle, at, data, stability).await,
            Bytes::Zeros => {
                let zeros = engine.write_zeros(handle, at, want.len_bytes, stability);
                zeros.await
            }
        };
        (turn.waited_ns(), written)
    }

    /// Writes to its own dvol. Returns the LSN of the last part.
    pub(super) async fn write_alone(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        let began = self.begin_change(stability);
        let len = data.len() as u64;
        let mark = match stability {
            Stability::Stable => NodeMark::WroteStable,
            Stability::Unstable => NodeMark::WroteUnstable,
        };
        let want = Want::write(offset_bytes, len, stability == Stability::Stable);
        let result = self.change_in_turns(want, Bytes::Given(data)).await;
        self.tell_changed();
        let result = self.finish(began, &self.counters.write, len, result);
        self.mark(&result, mark, offset_bytes, len);
        result
    }
}

/// What the gateways ask of it, where it is: of its own dvol. Of a striped volume that is one member.
impl RealVolume {
    pub(super) async fn flush_alone(&self) -> Result<(), VolumeError> {
        let began = self.begin();
        let number = self.recording.number();
        let flushing = async {
            let _turn = self.turn_here(Want::flush()).await?;
            self.mark(&Ok(()), NodeMark::FlushBegan(number), 0, 0);
            // The engine flushes for all its volumes, and would for one that is gone.
            self.engine.size_of(self.handle)?;
            self.engine.flush().await
        };
        let result = flushing.await;
        let result = self.finish(began, &self.counters.flush, 0, result);
        self.mark(&result, NodeMark::Flushed(number), 0, 0);
        result
    }

    /// Deallocates in one turn.
    async fn clear(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), DvolError> {
        let _admitted = self.turn_to_change(want_to_clear(stability)).await?;
        let stability = engine_stability(stability);
        let clearing = self
            .engine
            .deallocate(self.handle, offset_bytes, len_bytes, stability);
        clearing.await.map(drop)
    }

    pub(super) async fn deallocate_alone(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let began = self.begin_change(stability);
        let mark = cleared(stability);
        let result = self.clear(offset_bytes, len_bytes, stability).await;
        // What could be done has been, as durable as was asked for. For the rest (parts at the ends,
        // which would have to be written; nodes that a snapshot has, which would have to be copied) it
        // is advice. [nbd "NBD_CMD_TRIM"]
        let result = match result {
            Err(DvolError::NoSpace) => Ok(()),
            result => result,
        };
        self.tell_changed();
        let result = self.finish(began, &self.counters.trim, len_bytes, result);
        self.mark(&result, mark, offset_bytes, len_bytes);
        result
    }

    pub(super) async fn write_zeroes_alone(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let began = self.begin_change(stability);
        let mark = cleared(stability);
        let result = match keep_allocated {
            true => {
                let want = Want::write(offset_bytes, len_bytes, stability == Stability::Stable);
                self.change_in_turns(want, Bytes::Zeros).await.map(drop)
            }
            false => self.clear(offset_bytes, len_bytes, stability).await,
        };
        self.tell_changed();
        let result = self.finish(began, &self.counters.trim, len_bytes, result);
        self.mark(&result, mark, offset_bytes, len_bytes);
        result
    }

    pub(super) async fn allocation_alone(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let _served = self.readable().await?;
        let found = self
            .engine
            .allocation(self.handle, offset_bytes, len_bytes, extents_max)
            .await;
        let extents = found.map_err(volume_error)?.into_iter();
        let extent = |e: engine::AllocationExtent| AllocationExtent {
            len_bytes: e.len_bytes,
            allocated: e.allocated,
        };
        Ok(extents.map(extent).collect())
    }

    pub(super) async fn changed_since_alone(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        let _served = self.readable().await?;
        let found = self
            .engine
            .changed_since(self.handle, since, offset_bytes, len_bytes, extents_max)
            .await;
        let extents = found.map_err(volume_error)?.into_iter();
        let extent = |e: engine::ChangedExtent| ChangedExtent {
            len_bytes: e.len_bytes,
            changed: e.changed,
        };
        Ok(extents.map(extent).collect())
    }
}

/// Charges for what a read took of the device: nothing for holes and for what was cached, and more where it doesn't lie together.
pub(super) fn used_by(turn: &mut Turn<UringPlatform>, pieces: &engine::Pieces) {
    let took = engine::DeviceReads::of(pieces);
    turn.used_reads(took.operations.into(), took.blocks.into());
}

pub(super) fn cleared(stability: Stability) -> NodeMark {
    match stability {
        Stability::Stable => NodeMark::ClearedStable,
        Stability::Unstable => NodeMark::ClearedUnstable,
    }
}

pub(super) fn engine_stability(stability: Stability) -> engine::Stability {
    match stability {
        Stability::Stable => engine::Stability::Stable,
        Stability::Unstable => engine::Stability::Unstable,
    }
}

/// What a gateway is told.
pub(super) fn volume_error(error: DvolError) -> VolumeError {
    match error {
        DvolError::OutOfRange => VolumeError::OutOfRange,
        DvolError::ReadOnly | DvolError::StaleEpoch => VolumeError::ReadOnly,
        DvolError::NoSpace | DvolError::TooMany => VolumeError::NoSpace,
        DvolError::Corrupt => VolumeError::Corrupt,
        DvolError::Device => VolumeError::Device,
        DvolError::Fenced => VolumeError::Fenced,
        DvolError::NotFound | DvolError::Stopping => VolumeError::Gone,
        DvolError::HistoryForgotten => VolumeError::HistoryForgotten,
        DvolError::AlreadyExists
        | DvolError::ConditionFailed(_)
        | DvolError::NotEqual
        | DvolError::Invalid
        | DvolError::Busy => VolumeError::Unsupported,
    }
}

/// The word for an error in metrics.
pub(super) fn error_word(error: &VolumeError) -> &'static str {
    match error {
        VolumeError::OutOfRange => "out_of_range",
        VolumeError::ReadOnly => "read_only",
        VolumeError::NoSpace => "no_space",
        VolumeError::Corrupt => "corrupt",
        VolumeError::Device => "device",
        VolumeError::Fenced => "fenced",
        VolumeError::Gone => "gone",
        VolumeError::HistoryForgotten => "history_forgotten",
        VolumeError::Unsupported => "unsupported",
    }
}
