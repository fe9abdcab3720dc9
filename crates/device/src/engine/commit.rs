//! The order in which things become true.
//!
//! Units enter the journal in the order in which they are submitted. Within a slot they are applied
//! in that order, each when it is written (unstable) or durable (stable). A unit over several slots
//! waits until it is first in all of them. While a checkpoint takes its picture, nothing behind the
//! cut is applied.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use flagstone_platform::pool::Pooled;
use flagstone_platform::sync::Awaited;
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BlockNo, Slot};
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use super::journal::{SealedGroup, SealedGroups};
use super::unit::{DataBlocks, DataState, Outcome, Unit, UnitParts};
use crate::format::group::BODY_MAX_BYTES;
use crate::format::record::Record;
use crate::planted::{Bug, planted};
use crate::state::Effects;

/// How often a journal write is tried before the device is fenced.
const JOURNAL_WRITE_TRIES: usize = 3;

/// Memory used again and again is let go when one large change made it larger than this.
const SCRATCH_MAX_BYTES: usize = 64 << 10;

/// With up to so many slots an empty queue stays where it is.
const EMPTY_QUEUES_MAX: usize = 64;

/// Other empty queues kept, at most.
const SPARE_QUEUES_MAX: usize = 64;

/// What is written that is no data.
#[derive(Clone, Copy)]
pub(super) enum Written {
    /// A group of the journal, and what is waited for is in it.
    Awaited,
    /// Another one.
    Group,
    /// A part of a checkpoint.
    Checkpoint,
}

/// Units on their way, by slot.
#[derive(Default)]
pub(super) struct Commit {
    /// Slots that have some, and few that have none now: the same ones have some again and again.
    queues: BTreeMap<Slot, VecDeque<Pooled<Unit>>>,
    /// Empty queues, kept for their memory.
    spare_queues: Vec<VecDeque<Pooled<Unit>>>,
    /// Written stable units, in the order of the flushes they wait for.
    awaiting_flush: VecDeque<Pooled<Unit>>,
    /// Units submitted and not applied, in all.
    pending: usize,
    /// Nothing in a later group is applied.
    hold_after: Option<u64>,
    /// A slot whose first unit waits for a node to be loaded.
    loading: BTreeMap<Slot, ()>,
}

impl Commit {
    /// True if no unit is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// The unit of a slot that will be applied last.
    pub(super) fn last_of(&self, slot: Slot) -> Option<&Pooled<Unit>> {
        self.queues.get(&slot)?.back()
    }

    /// Units of a slot that are not applied, in order.
    pub(super) fn units_of(&self, slot: Slot) -> impl Iterator<Item = &Pooled<Unit>> {
        self.queues.get(&slot).into_iter().flatten()
    }

    fn push(&mut self, slot: Slot, unit: Pooled<Unit>) {
        let queue = self.queues.entry(slot);
        let queue = queue.or_insert_with(|| self.spare_queues.pop().unwrap_or_default());
        queue.push_back(unit);
    }

    fn pop(&mut self, slot: Slot) {
        let kept = self.queues.len();
        let Entry::Occupied(mut queue) = self.queues.entry(slot) else {
            return;
        };
        queue.get_mut().pop_front();
        if queue.get().is_empty() && kept > EMPTY_QUEUES_MAX {
            let queue = queue.remove();
            if self.spare_queues.len() < SPARE_QUEUES_MAX {
                self.spare_queues.push(queue);
            }
        }
    }

    /// True if a unit that data blocks were handed out for is on its way.
    pub(super) fn has_data(&self) -> bool {
        let has_blocks = |unit: &Pooled<Unit>| !unit.blocks.is_empty();
        self.queues.values().flatten().any(has_blocks)
    }

    /// True if a unit in a group up to `seq` is not applied yet.
    pub(super) fn has_pending_up_to(&self, seq: u64) -> bool {
        let up_to = |u: &Pooled<Unit>| u.seq.get() != 0 && u.seq.get() <= seq;
        self.queues
            .values()
            .any(|queue| queue.front().is_some_and(up_to))
    }
}

/// A unit that has been submitted; its data is to be written, or gathered, by whoever submitted it.
pub(super) struct Submitted {
    /// The unit.
    pub unit: Pooled<Unit>,
    /// Completes when it is applied or has failed.
    pub answer: Awaited<Outcome>,
}

impl<P: Platform> Inner<P> {
    /// Puts a unit into the journal. With `blocks`: the caller has their data gathered ([`Inner::gather`]), or writes it and reports with
    /// [`Inner::data_done`]. Must not be awaited between taking LSNs and this call.
    pub(super) fn submit(
        self: &Rc<Self>,
        records: SmallVec<[Record; 1]>,
        slots: SmallVec<[Slot; 2]>,
        stable: bool,
        blocks: DataBlocks,
    ) -> Result<Submitted, DvolError> {
        // Nobody would answer any more: the journal's task ends with the fence.
        if self.shared.is_fenced() {
            return Err(DvolError::Fenced);
        }
        let mut body = self.scratch_body.take();
        body.clear();
        let last = records.len() - 1;
        for (index, record) in records.iter().enumerate() {
            record.encode(index != last, &mut body);
        }
        if body.len() > BODY_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        let due = self.due_for(&records, &slots);
        self.due_ahead.set(self.due_ahead.get() + due);
        let (unit, answer) = self.units.make(UnitParts {
            records,
            slots,
            stable,
            blocks,
            due,
        });
        self.enqueue(&unit, &body);
        if body.capacity() <= SCRATCH_MAX_BYTES {
            self.scratch_body.replace(body);
        }
        Ok(Submitted { unit, answer })
    }

    /// Puts an abort into a group of its own, for which the ring always has room.
    fn submit_abort(
        self: &Rc<Self>,
        records: SmallVec<[Record; 1]>,
    ) -> Result<Submitted, DvolError> {
        let mut body = Vec::new();
        for record in &records {
            record.encode(false, &mut body);
        }
        let (unit, answer) = self.units.make(UnitParts {
            records,
            ..UnitParts::default()
        });
        self.commit.borrow_mut().pending += 1;
        self.journal.borrow_mut().add_abort(unit.clone(), &body);
        self.signals.journal.notify();
        Ok(Submitted { unit, answer })
    }

    fn enqueue(self: &Rc<Self>, unit: &Pooled<Unit>, body: &[u8]) {
        let mut commit = self.commit.borrow_mut();
        for slot in &unit.slots {
            commit.push(*slot, unit.clone());
        }
        commit.pending += 1;
        drop(commit);
        // Once something did not fit, everything behind it waits as well: order is kept.
        let mut journal = self.journal.borrow_mut();
        let mut overflow = self.overflow.borrow_mut();
        if overflow.is_empty() && journal.fits(body.len()) {
            journal.add(unit.clone(), body);
        } else {
            overflow.push_back((unit.clone(), body.to_vec()));
        }
        drop((journal, overflow));
        self.signals.journal.notify();
    }

    /// The data of a unit has been written, or has failed.
    pub(super) fn data_done(self: &Rc<Self>, unit: &Pooled<Unit>, result: Result<(), DvolError>) {
        assert_eq!(
            unit.data.get(),
            DataState::Pending,
            "a unit's data is reported once"
        );
        match result {
            Ok(()) => {
                unit.data.set(DataState::Written);
                // Else its group is still to come, and goes on with it.
                match unit.journaled.get() {
                    true => self.advance(unit),
                    false => _ = self.has_ended(),
                }
            }
            Err(error) => {
                unit.data.set(DataState::Failed(error));
                self.abort_if_journaled(unit);
            }
        }
    }

    /// A failed unit is taken back by a record behind it, as soon as its place is known and the
    /// journal holds it.
    fn abort_if_journaled(self: &Rc<Self>, unit: &Pooled<Unit>) {
        let DataState::Failed(error) = unit.data.get() else {
            return;
        };
        if self.has_ended() || !unit.journaled.get() {
            return;
        }
        if planted(Bug::FailureNotJournaled) {
            unit.data.set(DataState::Aborted(error));
            return self.advance(unit);
        }
        let record = Record::Abort {
            seq: unit.seq.get(),
            unit: unit.index.get(),
        };
        let mut records = SmallVec::new();
        records.push(record);
        // An abort takes part in no slot's order: it is over once the journal holds it.
        if let Ok(submitted) = self.submit_abort(records) {
            let (inner, unit) = (self.clone(), unit.clone());
            self.platform.spawn(async move {
                if submitted.answer.await == Some(Ok(())) {
                    unit.data.set(DataState::Aborted(error));
                    // If the writer went away, the device may still be writing its blocks: they
                    // stay taken until the node is restarted.
                    if error != DvolError::Stopping {
                        inner.freed.borrow_mut().extend_from_slice(&unit.blocks);
                    }
                    inner.advance(&unit);
                    inner.settle();
                }
            });
        }
    }

    /// True once the device is fenced. That may have been another core, which can't tell those who
    /// wait here: everybody who finds out does.
    fn has_ended(&self) -> bool {
        let is_fenced = self.shared.is_fenced();
        if is_fenced {
            self.fail_all(DvolError::Fenced);
        }
        is_fenced
    }

    /// Something about `unit` has changed: applies what can be applied now.
    pub(super) fn advance(self: &Rc<Self>, unit: &Pooled<Unit>) {
        if self.has_ended() {
            return;
        }
        if !unit.is_structural() {
            self.draw_ticket(unit);
        }
        if unit.slots.is_empty() {
            self.finish_free_unit(unit);
        }
        self.apply_ready(unit.slots.clone());
        self.settle();
    }

    /// Has a written stable unit wait for a flush that begins from now on.
    fn draw_ticket(&self, unit: &Pooled<Unit>) {
        if unit.is_written() && unit.stable && unit.ticket.get() == 0 {
            unit.ticket.set(self.flusher.ticket());
            self.commit
                .borrow_mut()
                .awaiting_flush
                .push_back(unit.clone());
            self.want_flush();
        }
    }

    /// A unit outside all slots' order (segments, aborts, watermarks) is over once it is written.
    fn finish_free_unit(self: &Rc<Self>, unit: &Pooled<Unit>) {
        let durable = !unit.stable || self.flusher.is_done(unit.ticket.get());
        if unit.is_written()
            && durable
            && let Some(answer) = unit.answer.take()
        {
            self.commit.borrow_mut().pending -= 1;
            self.signals.applied.notify();
            answer.fulfil(Ok(()));
        }
    }

    /// Applies the first units of these slots' queues while they are ready.
    fn apply_ready(self: &Rc<Self>, slots: SmallVec<[Slot; 2]>) {
        if self.has_ended() {
            return;
        }
        let mut work: SmallVec<[Slot; 8]> = slots.into_iter().collect();
        while let Some(slot) = work.pop() {
            while let Some(unit) = self.take_ready(slot) {
                work.extend(unit.slots.iter().copied().filter(|&s| s != slot));
                self.finish(&unit);
            }
        }
    }

    /// Removes and returns the first unit of `slot` if it can be applied now; its nodes are loaded.
    fn take_ready(self: &Rc<Self>, slot: Slot) -> Option<Pooled<Unit>> {
        let mut commit = self.commit.borrow_mut();
        if commit.loading.contains_key(&slot) {
            return None;
        }
        let unit = commit.queues.get(&slot)?.front()?.clone();
        let is_first = |s: &Slot| {
            commit
                .queues
                .get(s)
                .and_then(|q| q.front())
                .is_some_and(|f| f.is_same(&unit))
        };
        if !unit.slots.iter().all(is_first) {
            return None;
        }
        if unit.is_structural() && unit.ticket.get() == 0 && unit.stable {
            // Everything before it in its slots has been written and applied: only a flush from
            // now on covers what it rests on.
            drop(commit);
            self.draw_ticket(&unit);
            return None;
        }
        let over = match unit.data.get() {
            DataState::Aborted(_) => true,
            _ if planted(Bug::AckBeforeFlush) => unit.is_written(),
            _ => unit.is_written() && (!unit.stable || self.flusher.is_done(unit.ticket.get())),
        };
        let held = commit
            .hold_after
            .is_some_and(|after| unit.seq.get() > after && !planted(Bug::CheckpointNotSharp));
        if !over || held || self.shared.is_fenced() {
            return None;
        }
        if unit.data.get() == DataState::Written {
            let state = self.state.borrow();
            let missing = unit.records.iter().find_map(|r| state.missing(r));
            if let Some(missing) = missing {
                commit.loading.insert(slot, ());
                drop((state, commit));
                self.load_then_apply(slot, missing);
                return None;
            }
        }
        for slot in &unit.slots {
            commit.pop(*slot);
        }
        Some(unit)
    }

    /// Applies a unit (unless it was aborted) and answers it.
    fn finish(self: &Rc<Self>, unit: &Pooled<Unit>) {
        let result = match unit.data.get() {
            DataState::Aborted(error) | DataState::Failed(error) => Err(error),
            DataState::Written | DataState::Pending => {
                let mut effects = self.scratch_effects.take();
                debug_assert_eq!(effects, Effects::default(), "what is kept is the memory");
                let mut state = self.state.borrow_mut();
                for record in &unit.records {
                    state.apply(record, &self.geometry, &mut effects);
                }
                drop(state);
                if matches!(unit.records[..], [Record::Reap { .. }]) {
                    let reaped = &self.counters.reaped_blocks;
                    reaped.set(reaped.get() + effects.freed.len() as u64);
                }
                self.handle_effects(&mut effects);
                if effects.freed.capacity() * size_of::<BlockNo>() <= SCRATCH_MAX_BYTES {
                    self.scratch_effects.replace(effects);
                }
                self.check_misfit()
            }
        };
        // What it has made dirty is counted by now.
        self.due_ahead
            .set(self.due_ahead.get().saturating_sub(unit.due));
        let mut commit = self.commit.borrow_mut();
        commit.pending = commit.pending.saturating_sub(1);
        let alone = commit.is_idle();
        drop(commit);
        if let Some(ticket) = unit.loose.take() {
            self.no_more_under_way(&ticket);
        }
        unit.left.borrow_mut().clear();
        if let Some(answer) = unit.answer.take() {
            answer.fulfil(result);
        }
        if !unit.stable && !unit.slots.is_empty() {
            self.note_answered_write(alone);
        }
        if result == Err(DvolError::Corrupt) {
            self.fence("the state can't be trusted");
        }
        self.signals.applied.notify();
    }

    /// What was freed waits for a flush that begins from now on, which covers the record with its
    /// data and everything that was applied before it, and for reads under way. Leaves `effects`
    /// empty, for its memory.
    fn handle_effects(self: &Rc<Self>, effects: &mut Effects) {
        self.changes.set(self.changes.get() + 1);
        if planted(Bug::ReuseAtOnce) {
            let mut state = self.state.borrow_mut();
            effects.freed.drain(..).for_each(|b| state.pool.reopen(b));
        } else if planted(Bug::FreeBeforeFlush) {
            self.gate.freed(&mut effects.freed);
        } else {
            self.freed.borrow_mut().append(&mut effects.freed);
        }
        if std::mem::take(&mut effects.may_reap) {
            self.signals.reap.notify();
        }
        if std::mem::take(&mut effects.may_forget) {
            self.signals.forget.notify();
        }
        if self.wants_checkpoint() {
            self.signals.checkpoint_wanted.notify();
        }
        self.signals.activity.notify();
    }

    fn load_then_apply(self: &Rc<Self>, slot: Slot, missing: crate::v2p::Missing) {
        let inner = self.clone();
        // The node can't move before the unit is applied: it is not dirty, and what would change it
        // waits behind the unit. Entered all the same, like for every node that is read.
        let pass = self.gate.enter();
        self.platform.spawn(async move {
            let loaded = inner.load_node(&missing).await;
            drop(pass);
            inner.commit.borrow_mut().loading.remove(&slot);
            match loaded {
                Ok(()) => inner.apply_ready(SmallVec::from_slice(&[slot])),
                // An acknowledged or promised change can't be applied to a map that can't be read.
                Err(_) => inner.fence("a map node needed to apply a change can't be read"),
            }
        });
    }

    /// A flush has succeeded: applies the stable units that waited for it.
    pub(super) fn apply_flushed(self: &Rc<Self>) {
        loop {
            let mut commit = self.commit.borrow_mut();
            let done = |u: &Pooled<Unit>| self.flusher.is_done(u.ticket.get());
            if !commit.awaiting_flush.front().is_some_and(done) {
                break;
            }
            let Some(unit) = commit.awaiting_flush.pop_front() else {
                break;
            };
            drop(commit);
            self.advance(&unit);
        }
    }

    /// Sets or lifts the limit behind which nothing is applied.
    pub(super) fn hold_after(self: &Rc<Self>, limit: Option<u64>) {
        self.commit.borrow_mut().hold_after = limit;
        if limit.is_none() {
            let slots: Vec<Slot> = self.commit.borrow().queues.keys().copied().collect();
            for slot in slots {
                self.apply_ready(SmallVec::from_slice(&[slot]));
            }
        }
    }

    fn settle(&self) {
        self.journal.borrow_mut().settle();
    }

    /// Fails everything that waits.
    pub(super) fn fail_all(&self, error: DvolError) {
        self.writers.end();
        self.data.end();
        let units = self.journal.borrow_mut().abandon();
        let overflow = std::mem::take(&mut *self.overflow.borrow_mut());
        let mut commit = self.commit.borrow_mut();
        commit.pending = 0;
        let queues = std::mem::take(&mut commit.queues);
        let awaiting = std::mem::take(&mut commit.awaiting_flush);
        drop(commit);
        let queued = queues.into_values().flatten().chain(awaiting);
        for unit in units
            .into_iter()
            .chain(queued)
            .chain(overflow.into_iter().map(|(u, _)| u))
        {
            // The journal may keep the unit; nobody shall wait for what it has in use.
            unit.left.borrow_mut().clear();
            if let Some(answer) = unit.answer.take() {
                answer.fulfil(Err(error));
            }
        }
        for signal in [
            &self.signals.applied,
            &self.signals.flushed,
            &self.signals.space,
        ] {
            signal.notify();
        }
        for signal in [
            &self.signals.journal,
            &self.signals.data,
            &self.signals.checkpointed,
        ] {
            signal.notify();
        }
    }

    /// Task: closes groups and has them written.
    pub(super) async fn run_journal(self: Rc<Self>) {
        loop {
            let signal = self.signals.journal.wait();
            if self.shared.is_fenced() {
                return self.fail_all(DvolError::Fenced);
            }
            if self.stopping.get() && self.commit.borrow().is_idle() {
                return;
            }
            let (aborts, idle, busy, full) = self.journal_stands();
            if aborts {
                self.close_aborts();
                continue;
            }
            // One that is under way makes room.
            if full && !idle && !self.checkpoint_is_under_way() {
                self.request_checkpoint();
            }
            if full && !idle {
                let since = self.platform.now();
                signal.await;
                let waited_ns = &self.counters.journal_full_ns;
                waited_ns.set(waited_ns.get() + self.platform.now().since(since));
                continue;
            }
            if idle || busy {
                signal.await;
                continue;
            }
            // Let every request that has already arrived join the group.
            self.platform.yield_now().await;
            self.close_group();
        }
    }

    /// Whether aborts wait, nothing waits, enough is in flight, the ring is full.
    fn journal_stands(&self) -> (bool, bool, bool, bool) {
        let journal = self.journal.borrow();
        let busy = journal.in_flight() >= self.options.groups_in_flight_max
            || (journal.may_grow() && self.overflow.borrow().is_empty());
        (
            journal.has_aborts(),
            !journal.has_open_group(),
            busy,
            !journal.has_room(),
        )
    }

    /// Closes the open group and starts writing it; the next one takes what did not fit.
    pub(super) fn close_group(self: &Rc<Self>) {
        let mut journal = self.journal.borrow_mut();
        if self.shared.is_fenced() || !journal.has_room() {
            return;
        }
        let sealed = journal.close();
        let mut overflow = self.overflow.borrow_mut();
        while let Some((unit, body)) = overflow.pop_front() {
            if !journal.fits(body.len()) {
                overflow.push_front((unit, body));
                break;
            }
            journal.add(unit, &body);
        }
        drop((journal, overflow));
        self.write_groups(sealed);
        if self.wants_checkpoint() {
            self.signals.checkpoint_wanted.notify();
        }
    }

    /// Closes a group of aborts and starts writing it.
    fn close_aborts(self: &Rc<Self>) {
        let sealed = self.journal.borrow_mut().close_aborts();
        match sealed {
            Some(sealed) => self.write_groups(sealed),
            None => self.fence("the ring has no room left to take failed writes back"),
        }
    }

    fn write_groups(self: &Rc<Self>, groups: SealedGroups) {
        for group in groups {
            let counters = &self.counters;
            counters.groups.set(counters.groups.get() + 1);
            let group_bytes = &counters.group_bytes;
            group_bytes.set(group_bytes.get() + group.bytes.len() as u64);
            self.start_writing(group);
        }
    }

    /// Writes a group, and goes on with what it holds.
    pub(super) async fn write_group(self: &Rc<Self>, group: SealedGroup) {
        let at = self
            .geometry
            .ring_block(self.journal_no, group.ring_index)
            .offset_bytes();
        let mut buf = self.platform.buffers().take(group.bytes.len());
        buf.bytes_mut().copy_from_slice(&group.bytes);
        self.journal.borrow_mut().keep_bytes(group.bytes);
        let kind = match group.is_alone {
            true => Written::Awaited,
            false => Written::Group,
        };
        let written = self
            .write_with_retries(at, buf, (kind, JOURNAL_WRITE_TRIES))
            .await;
        if let Err(error) = written {
            self.fence_for("a journal group could not be written", &error);
            return;
        }
        if !planted(Bug::FlushForgetsJournal) {
            self.flusher.note_written();
        }
        let mut journaled = self.journal.borrow_mut().handle_written(group.seq);
        for unit in journaled.drain(..) {
            self.abort_if_journaled(&unit);
            self.advance(&unit);
        }
        self.journal.borrow_mut().keep_units(journaled);
        self.settle();
        self.signals.journal.notify();
        self.signals.activity.notify();
    }

    /// Writes `buf`, again if that fails.
    pub(super) async fn write_with_retries(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
        (kind, tries): (Written, usize),
    ) -> std::io::Result<()> {
        let mut buf = buf;
        for attempt in 1.. {
            let (back, result) = match kind {
                Written::Awaited => self.device.write_awaited(offset_bytes, buf).await,
                Written::Group | Written::Checkpoint => self.device.write(offset_bytes, buf).await,
            };
            let Err(error) = result else { break };
            tracing::warn!(
                device = %self.superblock.device_id,
                offset_bytes,
                attempt,
                "writing the journal or a checkpoint failed: {error}"
            );
            if attempt >= tries {
                return Err(error);
            }
            buf = back;
        }
        Ok(())
    }
}
