//! A volume as the native protocol's server sees it: all that the device layer can do, in turns and under epochs.

use std::rc::Rc;

use flagstone_device::engine::{self, DvolError, Handle};
use flagstone_device::transfer::Gate;
use flagstone_gateway::native::volume::{
    Change, ChangeKind, Condition, Description, NativeError, NativeVolume, Parts, Presence,
    SnapshotInfo, Terms, VolumeRange,
};
use flagstone_gateway::volume::{AllocationExtent, Stability};
use flagstone_platform::record::NodeMark;
use flagstone_platform::{FuturePool, IoBuf, Platform, Time};
use flagstone_sched::Want;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::query::Run;

use super::convert::{
    bytes_compared, check_epochs, check_together, conditions_of, native_error, parts_of,
};
use super::striped::NOT_STRIPED;
use crate::name::{check_name, is_of_schedule};
use crate::node::real::core::{CoreNode, current};
use crate::node::real::epochs::{Pass, Raised};
use crate::node::real::errors::{check_reservation, check_size};
use crate::node::real::notes::VolumeNotes;
use crate::node::real::resize::{Resized, reserve_no_more, resize_here};
use crate::node::real::stripes::layer_size;
use crate::node::real::volume::{
    Began, OpCounters, RealVolume, TurnHere, Waiting, engine_stability, error_word, used_by,
    volume_error,
};

/// Bytes that are made zero or written in one turn: what one engine write may be.
pub(super) const PART_BYTES: u64 = engine::WRITE_MAX_BYTES;

/// Told who has a long range zeroed of which only the first parts came to their turns.
const ZEROED_LATE: &str = "A part of the range is zero now, and what was to be waited for at most was over before the rest; ask for the whole again, with \
                           more patience or for less at a time.";
const ZEROED_STOPPING: &str = "A part of the range is zero now, and the node is going down; ask for the whole again when it is back.";
const ZEROED_BUSY: &str =
    "A part of the range is zero now, and then its core was busy; ask for the whole again.";

/// Told who takes a snapshot of a name that isn't theirs to give.
const NOT_OF_SCHEDULE: NativeError =
    NativeError::Invalid("a SNAPSHOT named as only schedules name them");

/// Told who takes a snapshot of a name by which no command could mean it.
const NOT_A_NAME: NativeError = NativeError::Invalid(
    "a SNAPSHOT whose name is none: a name is 1 to 128 letters, digits, '-', '_' or '.', and begins with a letter or digit",
);

/// How often a compare-and-swap looks again that found other bytes than it could show afterwards.
const SWAP_TRIES: u32 = 16;

impl RealVolume {
    pub(super) fn enter_as(&self, epoch: Epoch) -> Result<Pass<'_>, NativeError> {
        let stored = self.engine.epoch_of(self.handle);
        let stored = stored.map_err(|error| self.error(error, false))?;
        let running = self.engine.check_running();
        running.map_err(|error| self.error(error, false))?;
        Ok(self.notes.epochs.enter(epoch, stored)?)
    }

    /// What a client is told of a volume that isn't here any more.
    pub(super) fn went(&self) -> NativeError {
        let address = self.address_elsewhere();
        address.map_or(NativeError::Gone, NativeError::Moved)
    }

    /// What becomes of an error of the device layer.
    fn error(&self, error: DvolError, changing: bool) -> NativeError {
        match error {
            DvolError::NotFound => self.went(),
            error => native_error(error, changing),
        }
    }

    /// Counts an operation that has ended.
    pub(super) fn ended<T>(
        &self,
        began: Began<'_>,
        counters: &std::cell::RefCell<OpCounters>,
        bytes: u64,
        result: &Result<T, DvolError>,
    ) {
        let ns = began.end(self.platform.now());
        let error = result.as_ref().err().copied();
        let error = error.map(volume_error).as_ref().map(error_word);
        counters.borrow_mut().record(ns, bytes, error);
    }

    /// One change that is carried out in one piece.
    async fn change_as<F: Future<Output = Result<Lsn, DvolError>>>(
        &self,
        (terms, want): (&Terms, Want),
        kind: ChangeOf,
        (offset_bytes, len_bytes): (u64, u64),
        stability: Stability,
        work: impl FnOnce() -> F,
    ) -> Result<Lsn, NativeError> {
        let began = self.begin_change(stability);
        let (turn, admitted) = self.turn_to_change_on(want, terms, terms.epoch).await?;
        let result = work().await;
        drop((turn, admitted));
        self.tell_changed();
        let (counters, mark) = match (kind, stability) {
            (ChangeOf::Bytes, Stability::Stable) => (&self.counters.write, NodeMark::WroteStable),
            (ChangeOf::Bytes, _) => (&self.counters.write, NodeMark::WroteUnstable),
            (ChangeOf::Space, Stability::Stable) => (&self.counters.trim, NodeMark::ClearedStable),
            (ChangeOf::Space, _) => (&self.counters.trim, NodeMark::ClearedUnstable),
        };
        self.ended(began, counters, len_bytes, &result);
        if result.is_ok() {
            self.recording
                .answered(mark, self.handle.id, offset_bytes, len_bytes);
        }
        result.map_err(|error| self.error(error, true))
    }

    /// The name that a snapshot of it has in a record.
    fn recorded_name(&self, core: &CoreNode, snapshot: &str) -> String {
        let volume = core.names.name_of(self.handle.id).unwrap_or_default();
        format!("{volume}@{snapshot}")
    }

    fn layer(&self, name: &str) -> Result<Handle, NativeError> {
        self.engine
            .size_of(self.handle)
            .map_err(|error| self.error(error, false))?;
        let layer = self.engine.layer(self.handle.id, name);
        layer.map(|found| found.handle).ok_or(NativeError::NotFound)
    }

    /// Refuses what can't be done just now: while it is moved, nothing but its bytes may change.
    fn check_settled(&self) -> Result<(), NativeError> {
        self.check_here()?;
        let core = current().ok_or(NativeError::Stopping)?;
        core.check_settled(self.handle.id)
            .map_err(|error| native_error(error, false))
    }

    /// A change of what a volume is, not of what is in it: no turn, since the device has next to nothing to do.
    async fn change_itself<R, F: Future<Output = Result<R, DvolError>>>(
        &self,
        terms: &Terms,
        work: impl FnOnce() -> F,
    ) -> Result<R, NativeError> {
        if self.handle.layer.is_some() {
            return Err(NativeError::ReadOnly);
        }
        self.check_settled()?;
        let pass = self.enter_as(terms.epoch)?;
        let result = work().await;
        drop(pass);
        result.map_err(|error| self.error(error, true))
    }
}

/// Why something wasn't read.
enum Unread {
    /// It was not begun.
    NoTurn(NativeError),
    /// The engine could not.
    Failed(DvolError),
}

impl From<DvolError> for Unread {
    fn from(error: DvolError) -> Unread {
        Unread::Failed(error)
    }
}

/// A read waits for its turns as long as its client has patience.
#[derive(Clone)]
struct OnTerms {
    until: Option<Time>,
    epoch: Epoch,
    client: Option<Presence>,
}

impl Waiting for OnTerms {
    type Error = Unread;

    async fn turn<'a>(
        &self,
        volume: &'a RealVolume,
        want: Want,
    ) -> (u64, Result<TurnHere<'a>, Unread>) {
        let own = Terms::new(self.until, self.epoch, 0).of(self.client.as_ref());
        let turn = volume.turn_on(want, &own).await;
        (own.waited_ns(), turn.map_err(Unread::NoTurn))
    }

    fn memory() -> Rc<FuturePool> {
        thread_local! {
            static PARTS: Rc<FuturePool> = Rc::default();
        }
        PARTS.with(Rc::clone)
    }
}

/// What a change is counted as.
#[derive(Clone, Copy)]
enum ChangeOf {
    Bytes,
    Space,
}

/// Refuses names that a client may not give to a snapshot.
fn check_snapshot_name(name: &str) -> Result<(), NativeError> {
    check_name(name).map_err(|_| NOT_A_NAME)?;
    match is_of_schedule(name) {
        true => Err(NOT_OF_SCHEDULE),
        false => Ok(()),
    }
}

/// Whatever a COMMIT is about: what its changes are of, and its conditions.
fn all_of<'a>(
    conditions: &'a [Condition<RealVolume>],
    changes: &'a [Change<RealVolume>],
) -> impl Iterator<Item = &'a RealVolume> + Clone {
    let of_changes = changes.iter().map(|change| &change.volume);
    of_changes.chain(conditions.iter().map(|condition| &condition.volume))
}

impl NativeVolume for RealVolume {
    fn gone(&self) -> NativeError {
        self.went()
    }

    fn describe(&self) -> Option<Description> {
        self.check_here().ok()?;
        let size_bytes = match &self.stripe {
            None => self.engine.size_of(self.handle).ok()?,
            Some(stripe) => stripe.size_bytes()?,
        };
        Some(Description {
            id: self.handle.id,
            size_bytes,
            epoch: self.engine.epoch_of(self.handle).ok()?,
            read_only: self.engine.is_read_only(self.handle),
            snapshot: self.handle.layer.is_some(),
            floor: self.engine.floor_of(self.handle).ok()?,
            device: self.engine.superblock().device_id,
            failure_domain: self.failure_domain.clone(),
        })
    }

    fn lsn(&self) -> Lsn {
        if self.stripe.is_some() {
            return Lsn::ZERO;
        }
        self.engine.lsn_of(self.handle).unwrap_or(Lsn::ZERO)
    }

    async fn read(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Parts, NativeError> {
        if let Some(stripe) = &self.stripe {
            return self
                .read_striped(stripe, terms, offset_bytes, len_bytes)
                .await;
        }
        let began = self.begin();
        let len_bytes = u64::from(len_bytes);
        let want = Want::read(offset_bytes, len_bytes);
        let on_terms = OnTerms {
            until: terms.until,
            epoch: terms.epoch,
            client: terms.client().cloned(),
        };
        let (waited_ns, read) = self.read_in_turns(want, on_terms).await;
        terms.note_waited(waited_ns);
        let read = match read {
            Ok(pieces) => Ok(pieces),
            Err(Unread::Failed(error)) => Err(error),
            Err(Unread::NoTurn(error)) => return Err(error),
        };
        self.ended(began, &self.counters.read, len_bytes, &read);
        read.map(parts_of).map_err(|error| self.error(error, false))
    }

    async fn write(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        if let Some(stripe) = &self.stripe {
            if metadata.is_some_and(|metadata| metadata != 0) {
                return Err(NOT_STRIPED);
            }
            return self
                .write_striped(stripe, terms, offset_bytes, data, stability)
                .await;
        }
        let len_bytes = data.len() as u64;
        let want = Want::write(offset_bytes, len_bytes, stability == Stability::Stable);
        let range = (offset_bytes, len_bytes);
        let (meta, stable) = (metadata.unwrap_or(0), engine_stability(stability));
        self.change_as((terms, want), ChangeOf::Bytes, range, stability, || {
            self.engine
                .write_ex(self.handle, offset_bytes, data, meta, stable)
        })
        .await
    }

    async fn zero(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        keep_space: bool,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        if let Some(stripe) = &self.stripe {
            let (range, keep) = ((offset_bytes, len_bytes), Some(keep_space));
            return self
                .clear_striped(stripe, terms, range, keep, stability)
                .await;
        }
        if !keep_space {
            return self
                .deallocate(terms, offset_bytes, len_bytes, stability)
                .await;
        }
        let size_bytes = self.engine.size_of(self.handle);
        let size_bytes = size_bytes.map_err(|error| self.error(error, false))?;
        let end = offset_bytes.checked_add(len_bytes);
        let Some(end) = end.filter(|end| *end <= size_bytes) else {
            return Err(NativeError::OutOfRange);
        };
        let (mut at, mut lsn) = (offset_bytes, Lsn::ZERO);
        while at < end {
            let len = (end - at).min(PART_BYTES);
            let want = Want::write(at, len, stability == Stability::Stable);
            let stable = engine_stability(stability);
            let part = self.change_as((terms, want), ChangeOf::Space, (at, len), stability, || {
                self.engine.write_zeros(self.handle, at, len, stable)
            });
            lsn = part.await.map_err(|error| match error {
                // Those say that nothing was done. So do others that can come between two parts, of which the protocol says that it may be in part:
                // what they say else is what a client has to know.
                NativeError::Late if at > offset_bytes => NativeError::Partly(ZEROED_LATE),
                NativeError::Stopping if at > offset_bytes => NativeError::Partly(ZEROED_STOPPING),
                NativeError::Busy if at > offset_bytes => NativeError::Partly(ZEROED_BUSY),
                error => error,
            })?;
            at += len;
        }
        Ok(lsn)
    }

    async fn deallocate(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        if let Some(stripe) = &self.stripe {
            let range = (offset_bytes, len_bytes);
            return self
                .clear_striped(stripe, terms, range, None, stability)
                .await;
        }
        // It costs a record in the journal, however long the range.
        let want = Want::write(0, 1, stability == Stability::Stable);
        let range = (offset_bytes, len_bytes);
        let stable = engine_stability(stability);
        self.change_as((terms, want), ChangeOf::Space, range, stability, || {
            self.engine
                .deallocate(self.handle, offset_bytes, len_bytes, stable)
        })
        .await
    }

    async fn flush(&self, terms: &Terms) -> Result<Lsn, NativeError> {
        if let Some(stripe) = &self.stripe {
            return self.flush_striped(stripe, terms).await;
        }
        let began = self.begin();
        // All that was answered by now has this one or a lower one.
        let lsn = self.engine.lsn_of(self.handle);
        let lsn = lsn.map_err(|error| self.error(error, false))?;
        let turn = self.turn_on(Want::flush(), terms).await?;
        let number = self.recording.number();
        let mark = |mark| self.recording.answered(mark, self.handle.id, 0, 0);
        mark(NodeMark::FlushBegan(number));
        // The engine flushes for all its volumes, and would for one that is gone.
        let result = match self.engine.size_of(self.handle) {
            Ok(_) => self.engine.flush().await,
            Err(error) => Err(error),
        };
        drop(turn);
        self.ended(began, &self.counters.flush, 0, &result);
        result.map_err(|error| self.error(error, true))?;
        mark(NodeMark::Flushed(number));
        Ok(lsn)
    }

    async fn read_metadata(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<(Parts, Vec<(Lsn, u64)>), NativeError> {
        self.refuse_if_striped()?;
        let began = self.begin();
        let len_bytes = u64::from(len_bytes);
        let want = Want::read(offset_bytes, len_bytes);
        let mut turn = self.turn_on(want, terms).await?;
        let read = self
            .engine
            .read_ex(self.handle, offset_bytes, len_bytes)
            .await;
        if let Ok((pieces, _)) = &read {
            used_by(&mut turn, pieces);
        }
        drop(turn);
        self.ended(began, &self.counters.read, len_bytes, &read);
        let (pieces, metas) = read.map_err(|error| self.error(error, false))?;
        let metas = metas.into_iter().map(|block| (block.lsn, block.meta));
        Ok((parts_of(pieces), metas.collect()))
    }

    async fn compare_and_swap(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        self.refuse_if_striped()?;
        let range = (offset_bytes, new.len() as u64);
        let want = Want::write(range.0, range.1, stability == Stability::Stable);
        let stable = engine_stability(stability);
        for _ in 0..SWAP_TRIES {
            let (expected, new) = (expected.clone(), new.clone());
            let compared = expected.clone();
            let swap = self.change_as((terms, want), ChangeOf::Bytes, range, stability, || {
                self.engine
                    .compare_and_swap(self.handle, offset_bytes, expected, new, stable)
            });
            match swap.await {
                Err(NativeError::NotEqual(_)) => {}
                other => return other,
            }
            // A read like any other, or else who swaps in vain would read for nothing.
            let mut turn = self.turn_on(Want::read(range.0, range.1), terms).await?;
            let found = self.engine.read(self.handle, offset_bytes, range.1).await;
            if let Ok(pieces) = &found {
                used_by(&mut turn, pieces);
            }
            drop(turn);
            let found = found.map_err(|error| self.error(error, false))?;
            let found = self.gathered(&found, range.1);
            // Somebody may have put there meanwhile what was expected: then that is what it is to be compared with.
            if found[..] != compared[..] {
                return Err(NativeError::NotEqual(Some(found)));
            }
        }
        Err(NativeError::Busy)
    }

    async fn allocation(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, NativeError> {
        if let Some(stripe) = &self.stripe {
            let _reading = self.reading_on(terms).await?;
            let found = stripe.allocation(offset_bytes, len_bytes, runs_max);
            let run = |e: AllocationExtent| Run {
                len_bytes: e.len_bytes,
                is_marked: e.allocated,
            };
            let found = found.await.map_err(|error| self.of_whole(error, false))?;
            return Ok(found.into_iter().map(run).collect());
        }
        let _served = self.served(terms).await?;
        let found = self
            .engine
            .allocation(self.handle, offset_bytes, len_bytes, runs_max)
            .await;
        let found = found.map_err(|error| self.error(error, false))?;
        let run = |e: engine::AllocationExtent| Run {
            len_bytes: e.len_bytes,
            is_marked: e.allocated,
        };
        Ok(found.into_iter().map(run).collect())
    }

    async fn changed_since(
        &self,
        terms: &Terms,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, NativeError> {
        self.refuse_if_striped()?;
        let _served = self.served(terms).await?;
        let found = self
            .engine
            .changed_since(self.handle, since, offset_bytes, len_bytes, runs_max)
            .await;
        let found = found.map_err(|error| self.error(error, false))?;
        let run = |e: engine::ChangedExtent| Run {
            len_bytes: e.len_bytes,
            is_marked: e.changed,
        };
        Ok(found.into_iter().map(run).collect())
    }

    async fn set_epoch(&self, terms: &Terms, epoch: Option<Epoch>) -> Result<Epoch, NativeError> {
        if self.handle.layer.is_some() {
            return Err(NativeError::ReadOnly);
        }
        let (_entered, _served) = match self.stripe {
            None => {
                // Whoever moves it looks at the epoch once, behind this.
                let entered = self.in_time(self.notes.gate.enter(), terms).await?;
                let entered = entered.map_err(|_| self.went())?;
                (Some(entered), self.served(terms).await?)
            }
            // It isn't moved, and who holds its gate may wait for those that are to be locked out.
            Some(_) => {
                let served = self.in_time(self.serving.enter(), terms).await?;
                (None, served.map_err(|_| self.went())?)
            }
        };
        let core = current().ok_or(NativeError::Stopping)?;
        // Whoever receives a stream into it raises it himself, behind his mark: who comes later than that would get into what is received.
        let stored = || match core.names.is_receiving(self.handle.id) {
            true => Err(DvolError::Busy),
            false => self.engine.epoch_of(self.handle),
        };
        let store = |epoch| self.engine.set_epoch(self.handle, epoch);
        let raised = self.notes.epochs.raise(epoch, stored, store).await;
        match raised.map_err(|error| self.error(error, true))? {
            Raised::To(epoch) => Ok(epoch),
            Raised::Stale => Err(NativeError::StaleEpoch),
            Raised::Impossible => Err(NativeError::Invalid(
                "there is no such epoch: 2^20 - 1 is the last",
            )),
        }
    }

    async fn delete_snapshot(&self, terms: &Terms, name: &str) -> Result<(), NativeError> {
        let layer = self.layer(name)?;
        let core = current().ok_or(NativeError::Stopping)?;
        let stripe = self.striped();
        self.change_itself(terms, || async {
            if let Some(stripe) = stripe {
                let deleting = core.delete_striped_layer(&self.engine, &stripe, layer);
                return deleting.await;
            }
            let name = self.recorded_name(&core, name);
            core.recording.snapshot(NodeMark::SnapshotGoing, &name);
            self.engine.delete_layer(layer).await?;
            core.recording.snapshot(NodeMark::SnapshotGone, &name);
            Ok(())
        })
        .await
    }

    async fn roll_back(&self, terms: &Terms, name: &str) -> Result<Lsn, NativeError> {
        let layer = self.layer(name)?;
        let core = current().ok_or(NativeError::Stopping)?;
        let stripe = self.striped();
        self.change_itself(terms, || async {
            if let Some(stripe) = stripe {
                let mut layers = self.engine.layers(self.handle.id).into_iter();
                let layer = layers.find(|found| found.handle == layer);
                let layer = layer.ok_or(DvolError::NotFound)?;
                let dvol = (&self.engine, self.handle);
                core.roll_striped_back(dvol, &stripe, &layer).await?;
            } else {
                let sizing = core.sizing(self.handle.id);
                let _turn = sizing.take(1).await;
                self.engine.roll_back(self.handle, layer).await?;
                // It may have been smaller.
                reserve_no_more(&self.engine, self.handle).await?;
            }
            let volume = core.names.name_of(self.handle.id).unwrap_or_default();
            let what = "rolled back under its clients: they read the snapshot from now on";
            core.tell_of_attached(self.handle.id, &volume, what);
            self.tell_changed();
            match self.stripe {
                None => self.engine.lsn_of(self.handle),
                Some(_) => Ok(Lsn::ZERO),
            }
        })
        .await
    }

    async fn snapshots(
        &self,
        terms: &Terms,
        after: &str,
        count_max: usize,
    ) -> Result<Vec<SnapshotInfo>, NativeError> {
        let _served = self.served(terms).await?;
        self.engine
            .size_of(self.handle)
            .map_err(|error| self.error(error, false))?;
        let mut found = Vec::new();
        // The first name behind it.
        let mut from = after.to_owned();
        from.push('\0');
        while found.len() < count_max {
            let Some(layer) = self.engine.layer_from(self.handle.id, &from) else {
                break;
            };
            from.clone_from(&layer.name);
            from.push('\0');
            let size_bytes = layer_size(&layer);
            found.push(SnapshotInfo {
                name: layer.name,
                lsn: layer.lsn,
                created_ns: layer.created_ns,
                size_bytes,
            });
        }
        Ok(found)
    }

    async fn resize(&self, terms: &Terms, size_bytes: u64) -> Result<(), NativeError> {
        if check_size(size_bytes, "").is_err() {
            return Err(NativeError::Invalid("no volume can have this size"));
        }
        let core = current().ok_or(NativeError::Stopping)?;
        let stripe = self.striped();
        self.change_itself(terms, || async {
            if let Some(stripe) = stripe {
                let dvol = (&self.engine, self.handle);
                let resized = core.resize_striped(dvol, &stripe, size_bytes, true);
                return resized.await.map(drop).map_err(DvolError::from);
            }
            match resize_here(&core, &self.engine, self.handle, size_bytes, true).await? {
                Resized::Done => Ok(()),
                Resized::WouldShrink(_) => Err(DvolError::Invalid),
            }
        })
        .await
    }

    async fn reserve(&self, terms: &Terms, bytes: u64) -> Result<(), NativeError> {
        let core = current().ok_or(NativeError::Stopping)?;
        let stripe = self.striped();
        let done = self.change_itself(terms, || async {
            if let Some(stripe) = stripe {
                let size_bytes = stripe.size_bytes().ok_or(DvolError::NotFound)?;
                if check_reservation(bytes, size_bytes, "").is_err() {
                    return Ok(false);
                }
                let reserving = core.reserve_striped(self.handle, &stripe, Some(bytes));
                return reserving.await.map(|()| true).map_err(DvolError::from);
            }
            let sizing = core.sizing(self.handle.id);
            let _turn = sizing.take(1).await;
            core.check_settled(self.handle.id)?;
            let size_bytes = self.engine.size_of(self.handle)?;
            if check_reservation(bytes, size_bytes, "").is_err() {
                return Ok(false);
            }
            self.engine.set_reserved(self.handle, bytes).await?;
            Ok(true)
        });
        match done.await? {
            true => Ok(()),
            false => Err(NativeError::Invalid(
                "more can't be reserved for a volume than it has bytes",
            )),
        }
    }

    async fn commit(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        changes: Vec<Change<Self>>,
        stability: Stability,
    ) -> Result<Vec<Lsn>, NativeError> {
        check_together(all_of(&conditions, &changes))?;
        for change in &changes {
            change.volume.refuse_if_striped()?;
        }
        for condition in &conditions {
            condition.volume.refuse_if_striped()?;
        }
        let Some(first) = changes.first().map(|change| change.volume.clone()) else {
            return Err(NativeError::Invalid("a COMMIT without a change"));
        };
        let mut bytes = bytes_compared(&conditions);
        for change in &changes {
            bytes += match &change.what {
                ChangeKind::Write { data, .. } => data.len() as u64,
                ChangeKind::Deallocate { .. } => 0,
                // What is there tells the node what the volume was promised.
                ChangeKind::SetAttributes(_) => {
                    return Err(NativeError::Invalid(
                        "a volume's attributes are the node's own",
                    ));
                }
            };
        }
        let began = first.begin_change(stability);
        let want = Want::write(0, bytes.max(1), stability == Stability::Stable);
        // Also of what is only looked at: as long as its changes aren't held, nobody else has made any elsewhere.
        let notes: Vec<Rc<VolumeNotes>> = all_of(&conditions, &changes)
            .map(|volume| volume.notes.clone())
            .collect();
        let gates: Vec<&Gate> = notes.iter().map(|notes| &*notes.gate).collect();
        let (turn, _entered) = loop {
            let turn = first.turn_on(want, terms).await?;
            match Gate::try_enter_all(&gates) {
                Ok(Some(entered)) => break (turn, entered),
                Ok(None) => {
                    turn.give_back();
                    // As where it is read: whose it is isn't known, and may not be for hours.
                    for condition in &conditions {
                        condition.volume.check_readable()?;
                    }
                    for gate in &gates {
                        first.in_time(gate.opened(), terms).await?;
                    }
                }
                Err(_) => {
                    turn.give_back();
                    let gone = all_of(&conditions, &changes).find(|volume| volume.is_gone());
                    return Err(gone.map_or(NativeError::Gone, |volume| volume.went()));
                }
            }
        };
        let entered = changes
            .iter()
            .map(|change| change.volume.enter_as(change.epoch));
        let entered = entered.collect::<Result<Vec<_>, _>>();
        let checked = entered.and_then(|passes| check_epochs(&conditions).map(|()| passes));
        let passes = match checked {
            Ok(passes) => passes,
            Err(error) => {
                turn.give_back();
                return Err(error);
            }
        };
        let of_engine = |change: &Change<Self>| {
            let handle = change.volume.handle;
            match &change.what {
                ChangeKind::Write {
                    offset_bytes,
                    data,
                    metadata,
                } => engine::Change::Write {
                    handle,
                    offset_bytes: *offset_bytes,
                    data: data.clone(),
                    meta: *metadata,
                },
                ChangeKind::Deallocate {
                    offset_bytes,
                    len_bytes,
                } => engine::Change::Deallocate {
                    handle,
                    offset_bytes: *offset_bytes,
                    len_bytes: *len_bytes,
                },
                ChangeKind::SetAttributes(attributes) => engine::Change::SetAttributes {
                    handle,
                    attributes: Box::new(*attributes),
                },
            }
        };
        let batch = engine::Batch {
            conditions: conditions_of(conditions),
            changes: changes.iter().map(of_engine).collect(),
        };
        let result = first
            .engine
            .commit(batch, engine_stability(stability))
            .await;
        drop((turn, passes));
        for change in &changes {
            change.volume.tell_changed();
            let (offset_bytes, len_bytes, mark) = match (&change.what, stability) {
                (
                    ChangeKind::Write {
                        offset_bytes, data, ..
                    },
                    Stability::Stable,
                ) => (*offset_bytes, data.len() as u64, NodeMark::WroteStable),
                (
                    ChangeKind::Write {
                        offset_bytes, data, ..
                    },
                    Stability::Unstable,
                ) => (*offset_bytes, data.len() as u64, NodeMark::WroteUnstable),
                (
                    ChangeKind::Deallocate {
                        offset_bytes,
                        len_bytes,
                    },
                    Stability::Stable,
                ) => (*offset_bytes, *len_bytes, NodeMark::ClearedStable),
                (
                    ChangeKind::Deallocate {
                        offset_bytes,
                        len_bytes,
                    },
                    Stability::Unstable,
                ) => (*offset_bytes, *len_bytes, NodeMark::ClearedUnstable),
                (ChangeKind::SetAttributes(_), _) => continue,
            };
            if result.is_ok() {
                let id = change.volume.handle.id;
                let recording = &change.volume.recording;
                recording.answered(mark, id, offset_bytes, len_bytes);
            }
        }
        first.ended(began, &first.counters.write, bytes, &result);
        result.map_err(|error| first.error(error, true))
    }

    async fn read_if(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        ranges: Vec<VolumeRange<Self>>,
    ) -> Result<Parts, NativeError> {
        let volumes = conditions.iter().map(|condition| &condition.volume);
        check_together(volumes.chain(ranges.iter().map(|range| &range.volume)))?;
        for range in &ranges {
            range.volume.refuse_if_striped()?;
        }
        for condition in &conditions {
            condition.volume.refuse_if_striped()?;
        }
        let of_ranges = ranges.first().map(|range| range.volume.clone());
        let of_conditions = conditions.first().map(|condition| condition.volume.clone());
        let Some(first) = of_ranges.or(of_conditions) else {
            return Ok(Parts::new());
        };
        check_epochs(&conditions)?;
        let began = first.begin();
        let bytes: u64 = ranges.iter().map(|range| range.len_bytes).sum();
        let want = Want::read(0, (bytes + bytes_compared(&conditions)).max(1));
        let turn = first.turn_on(want, terms).await?;
        let others = ranges.iter().map(|range| &range.volume);
        for volume in others.chain(conditions.iter().map(|condition| &condition.volume)) {
            if let Err(error) = volume.check_readable() {
                turn.give_back();
                return Err(error);
            }
        }
        let ranges: Vec<(Handle, u64, u64)> = ranges
            .iter()
            .map(|range| (range.volume.handle, range.offset_bytes, range.len_bytes))
            .collect();
        let conditions = conditions_of(conditions);
        let read = first.engine.read_if(conditions, &ranges).await;
        drop(turn);
        first.ended(began, &first.counters.read, bytes, &read);
        let found = read.map_err(|error| first.error(error, false))?;
        Ok(found.into_iter().flat_map(parts_of).collect())
    }

    async fn snapshot(
        terms: &Terms,
        volumes: Vec<(Self, Epoch, String)>,
    ) -> Result<Vec<Lsn>, NativeError> {
        let _ = terms;
        check_together(volumes.iter().map(|(volume, _, _)| volume))?;
        let Some((first, _, _)) = volumes.first() else {
            return Err(NativeError::Invalid("a SNAPSHOT of no volume"));
        };
        let core = current().ok_or(NativeError::Stopping)?;
        let mut passes = Vec::new();
        let (mut dvols, mut marked) = (Vec::new(), Vec::new());
        if let [(volume, epoch, name)] = &volumes[..]
            && let Some(stripe) = volume.striped()
        {
            if volume.handle.layer.is_some() {
                return Err(NativeError::ReadOnly);
            }
            check_snapshot_name(name)?;
            volume.check_settled()?;
            let _pass = volume.enter_as(*epoch)?;
            let dvol = (&volume.engine, volume.handle);
            let taken = core.snapshot_striped(dvol, &stripe, name.clone()).await;
            taken.map_err(|error| volume.error(error, true))?;
            return Ok(vec![Lsn::ZERO]);
        }
        for (volume, epoch, name) in &volumes {
            volume.refuse_if_striped()?;
            if volume.handle.layer.is_some() {
                return Err(NativeError::ReadOnly);
            }
            volume.check_settled()?;
            check_snapshot_name(name)?;
            passes.push(volume.enter_as(*epoch)?);
            dvols.push((volume.handle, name.clone()));
            marked.push(volume.recorded_name(&core, name));
        }
        for name in &marked {
            core.recording.snapshot(NodeMark::SnapshotBegan, name);
        }
        let taken = first.engine.snapshot(&dvols).await;
        let taken = taken.map_err(|error| first.error(error, true))?;
        for name in &marked {
            core.recording.snapshot(NodeMark::SnapshotTaken, name);
        }
        let lsn = |layer: Handle| first.engine.lsn_of(layer).unwrap_or(Lsn::ZERO);
        Ok(taken.into_iter().map(lsn).collect())
    }
}

impl RealVolume {
    /// What was read, in one buffer.
    fn gathered(&self, pieces: &engine::Pieces, len_bytes: u64) -> IoBuf {
        IoBuf::copy_of(&engine::gathered(pieces, len_bytes))
    }
}
