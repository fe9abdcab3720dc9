//! What can happen next, and what it does: clients submit, the device answers, flushes start and
//! end. What a core does in response is in `settle.rs`; crashes and restarts are in `crash.rs`.
//!
//! To keep the space small, a core does what the rules allow *at once*: it acknowledges, frees
//! and goes on with a checkpoint in the same step as the answer that allows it. Doing these later
//! would only weaken what was promised by then. For the same reason clients' flushes need no
//! steps of their own: a client that asks for a flush just before each one starts is the most
//! demanding one, so every success promises all that was acknowledged before it started.

use crate::bug::Bug;
use crate::check::Model;
use crate::config::{Op, Rot};
use crate::state::{
    Content, Core, Entry, Failure, Flush, Group, Io, NO_BLOCK, OpenGroup, Progress, Read, Record,
    State, Unit, Write,
};

/// One event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Clients send the operations of this line of the menu; they share a group. Their data goes
    /// to blocks never used before, as far as there are any, or (true) to reused ones.
    Submit(u8, bool),
    /// The device answers the write to this location.
    Complete(u8),
    /// The device answers a write of data with an error, though (true) it may have done it.
    DataFails(u8, bool),
    /// A core starts a flush.
    FlushStart(u8),
    FlushOk(u8),
    /// The second number is the set of covered writes the device forgets about.
    FlushFail(u8, u8),
    Checkpoint(u8),
    ReadStart(u8),
    ReadEnd(u8),
    /// Somebody copies this dvol and the LSN it has.
    CopyDvol(u8),
    /// The number says what becomes of each write in the cache.
    PowerLoss(u32),
    /// The process dies; the number says what becomes of each write in flight.
    Kill(u32),
    Recover,
    /// The block behind this key, or key of a snapshot, rots.
    Rot(u8),
}

impl Model {
    /// Everything that can happen in this state, but for crashes.
    pub(crate) fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        if state.is_down() {
            if self.config.rot != Rot::Never && state.spent.rots == 0 {
                steps.extend(self.rottable(state).map(Step::Rot));
            }
            if state.spent.crashes < self.config.crashes_max {
                steps.push(Step::Recover);
            }
        } else if state.cores.iter().any(|core| !core.fenced) {
            self.device_steps(state, &mut steps);
            self.client_steps(state, &mut steps);
        }
        steps
    }

    /// The crashes that can happen. They depend on what [`State::hash_for_crash`] covers and on
    /// nothing else.
    pub(crate) fn crash_steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        if state.spent.crashes < self.config.crashes_max {
            if !state.is_down() || !state.cache.is_empty() {
                steps.extend((0..self.power_loss_outcomes(state)).map(Step::PowerLoss));
            }
            if self.config.kills && !state.is_down() {
                steps.extend((0..self.kill_outcomes(state)).map(Step::Kill));
            }
        }
        steps
    }

    fn device_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let flying = state.cache.iter().filter(|write| !write.done);
        steps.extend(flying.map(|write| Step::Complete(write.loc)));
        if state.spent.write_failures < self.config.write_failures_max {
            let data = state.cache.iter().filter(|write| !write.done);
            let data = data.filter(|write| usize::from(write.loc) < self.config.blocks());
            steps.extend(
                data.flat_map(|write| [false, true].map(|done| Step::DataFails(write.loc, done))),
            );
        }
        for flush in &state.flushes {
            steps.push(Step::FlushOk(flush.bit));
            if state.spent.flush_failures < self.config.flush_failures_max {
                let covered = covered_by(state, flush.bit).count();
                let sets = if self.config.phantoms {
                    1 << covered
                } else {
                    1
                };
                steps.extend((0..sets).map(|set| Step::FlushFail(flush.bit, set)));
            }
        }
        // One flush at a time: a device may tell only one of two about a failure.
        let flushes_max = if self.has(Bug::OverlappingFlushes) {
            2
        } else {
            1
        };
        if state.flushes.len() < flushes_max {
            let waiting = (0..state.cores.len()).filter(|&core| {
                let mut waits = false;
                for_each_io(self, state.cores[core].clone(), core, |_, io| {
                    waits |= io == Io::Done(0);
                    io
                });
                waits && !state.cores[core].fenced
            });
            // Who starts it matters only if the others don't learn how it ends.
            let starters = if self.has(Bug::FenceNotShared) {
                usize::MAX
            } else {
                1
            };
            steps.extend(
                waiting
                    .take(starters)
                    .map(|core| Step::FlushStart(core as u8)),
            );
        }
    }

    fn client_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let groups: u8 = state.spent.choices.iter().sum();
        for (index, choice) in self.config.menu.iter().enumerate() {
            let left = state.spent.choices[index] < choice.times && groups < self.config.groups_max;
            if left && self.may_submit(state, index) {
                steps.push(Step::Submit(index as u8, false));
                let free = state.cores[usize::from(choice.core)].free;
                let may_reuse = free & named_blocks(state) != 0 && free.count_ones() > 1;
                if may_reuse && choice.units.iter().any(|op| blocks_needed(op) > 0) {
                    steps.push(Step::Submit(index as u8, true));
                }
            }
        }
        let checkpoints_left = state.spent.checkpoints < self.config.checkpoints_max;
        for (index, core) in state.cores.iter().enumerate() {
            if checkpoints_left && self.may_checkpoint(core) {
                steps.push(Step::Checkpoint(index as u8));
            }
        }
        if self.config.copies && state.ghost.copy.is_none() {
            let dvols = 0..self.config.core_of_dvol.len();
            let dvols = dvols.filter(|&dvol| self.may_copy(state, dvol));
            steps.extend(dvols.map(|dvol| Step::CopyDvol(dvol as u8)));
        }
        if state.spent.reads < self.config.reads_max {
            for key in 0..self.config.keys() {
                let core = &state.cores[self.config.core_of_key(key)];
                if core.serving && core.map[key].block != NO_BLOCK {
                    steps.push(Step::ReadStart(key as u8));
                }
            }
        }
        steps.extend((0..state.reads.len()).map(|read| Step::ReadEnd(read as u8)));
    }

    /// The state after a step.
    pub(crate) fn apply_step(&self, state: &State, step: Step) -> State {
        let mut next = state.clone();
        match step {
            Step::Submit(index, reuse) => self.submit(&mut next, usize::from(index), reuse),
            Step::Complete(loc) => self.complete(&mut next, loc),
            Step::DataFails(loc, done) => self.fail_data(&mut next, loc, done),
            Step::FlushStart(core) => self.start_flush(&mut next, core),
            Step::FlushOk(bit) => self.flush_succeeds(&mut next, bit),
            Step::FlushFail(bit, doomed) => self.flush_fails(&mut next, bit, doomed),
            Step::Checkpoint(core) => self.start_checkpoint(&mut next, usize::from(core)),
            Step::ReadStart(key) => {
                let entry = next.cores[self.config.core_of_key(key.into())].map[usize::from(key)];
                next.spent.reads += 1;
                next.reads.push(Read { key, entry });
            }
            Step::ReadEnd(index) => self.end_read(&mut next, usize::from(index)),
            Step::CopyDvol(dvol) => self.copy_dvol(&mut next, dvol),
            Step::PowerLoss(outcome) => self.lose_power(&mut next, outcome),
            Step::Kill(outcome) => self.kill(&mut next, outcome),
            Step::Recover => self.restart(&mut next),
            Step::Rot(slot) => self.rot(&mut next, usize::from(slot)),
        }
        next
    }

    fn may_submit(&self, state: &State, index: usize) -> bool {
        let choice = &self.config.menu[index];
        let core = &state.cores[usize::from(choice.core)];
        let unflushed = core.groups.iter().filter(|group| !self.is_flushed(group));
        if !core.serving || core.fenced || unflushed.count() >= self.config.pipeline_max.into() {
            return false;
        }
        let blocks: usize = choice.units.iter().map(blocks_needed).sum();
        let kept = self.config.write_failures_max * u8::from(!self.has(Bug::NoSlotForAborts));
        self.has_ring_slot(core, kept)
            && blocks <= core.free.count_ones() as usize
            && choice.units.iter().all(|op| match op {
                // A move takes the key's content from where it is visible, so nothing may be on
                // its way to the key.
                Op::Move { key } => {
                    core.map[usize::from(*key)].block != NO_BLOCK
                        && core
                            .groups
                            .iter()
                            .flat_map(|group| &group.units)
                            .all(|unit| unit.visible || unit.keys().all(|other| other != *key))
                }
                Op::DeleteSnapshot { dvol } => {
                    let mut own = self.config.keys_of_dvol(*dvol);
                    own.any(|key| core.map[self.config.keys() + key].val != 0)
                }
                _ => true,
            })
    }

    /// Whether the ring has a slot, and `kept` more. One is kept for aborts: until a unit that
    /// failed is taken back nothing behind it is shown, and no checkpoint gets past it, so a full
    /// ring would never empty.
    pub(crate) fn has_ring_slot(&self, core: &Core, kept: u8) -> bool {
        // A ring slot is overwritten only when the root that leaves it behind is durable.
        let trimmed = match &core.progress {
            Progress::Cell(root, _) | Progress::Root(root, _) if self.has(Bug::TrimBeforeRoot) => {
                root.base
            }
            _ => core.root.base,
        };
        core.head.0 - trimmed + kept < self.config.ring_slots
    }

    /// Data and group are written in parallel, to fresh blocks and the next slot of the ring.
    fn submit(&self, state: &mut State, index: usize, reuse: bool) {
        state.spent.choices[index] += 1;
        let choice = self.config.menu[index];
        let core = usize::from(choice.core);
        let units: Vec<Unit> = choice
            .units
            .iter()
            .map(|op| self.submit_unit(state, core, op, reuse))
            .collect();
        self.submit_group(state, core, units);
    }

    /// A group goes to the next slot of the ring.
    pub(crate) fn submit_group(&self, state: &mut State, core: usize, units: Vec<Unit>) {
        let watermark = self.watermark(&state.cores[core]);
        let this = &mut state.cores[core];
        let seq = this.head.0 + 1;
        let inc = if self.has(Bug::NoIncarnation) {
            0
        } else {
            this.inc
        };
        let records = units.iter().map(|unit| unit.records.clone()).collect();
        let group = Group::new(inc, seq, this.head.1, watermark, records);
        this.head = (seq, group.hash);
        this.groups.push(OpenGroup {
            seq,
            hash: group.hash,
            io: Io::Flying,
            units,
        });
        submit_write(
            state,
            self.config.ring_loc(core, seq),
            Content::Group(group.into()),
        );
    }

    fn submit_unit(&self, state: &mut State, core: usize, op: &Op, reuse: bool) -> Unit {
        let id = state.ghost.next_id;
        state.ghost.next_id += 1;
        let (keys, stable): (&[u8], bool) = match op {
            Op::Write { keys, stable } => (keys, *stable),
            Op::Unmap { key, stable } => (std::slice::from_ref(key), *stable),
            Op::Move { key } => return self.submit_move(state, core, (id, *key), reuse),
            Op::Snapshot { dvol } => {
                self.expect_snapshot(state, *dvol);
                return Unit::new(id, true, vec![Record::Snapshot { dvol: *dvol }]);
            }
            Op::DeleteSnapshot { dvol } => {
                self.expect_no_snapshot(state, *dvol);
                return Unit::new(id, true, vec![Record::DeleteSnapshot { dvol: *dvol }]);
            }
        };
        // Only client changes consume an LSN, one for each dvol of the unit.
        let dvol_of = |key: &u8| usize::from(self.config.dvol_of_key[usize::from(*key)]);
        let mut dvols: Vec<usize> = keys.iter().map(dvol_of).collect();
        dvols.dedup();
        for dvol in dvols {
            self.take_lsn(state, core, dvol);
        }
        self.expect_unit(state, id, keys);
        let mut records = Vec::new();
        for &key in keys {
            let block = match op {
                Op::Unmap { .. } => NO_BLOCK,
                _ => write_data(state, core, (id, key), reuse),
            };
            let (from, val, lsn) = (NO_BLOCK, id, state.cores[core].lsn[dvol_of(&key)]);
            records.push(Record::Map {
                key,
                block,
                from,
                val,
                lsn,
                stable,
            });
        }
        Unit::new(id, stable, records)
    }

    /// A move keeps content and LSN.
    fn submit_move(
        &self,
        state: &mut State,
        core: usize,
        (id, key): (u8, u8),
        reuse: bool,
    ) -> Unit {
        let Entry {
            val,
            block: from,
            lsn,
            stable,
        } = state.cores[core].map[usize::from(key)];
        let block = write_data(state, core, (val, key), reuse);
        Unit::new(
            id,
            false,
            vec![Record::Map {
                key,
                block,
                from,
                val,
                lsn,
                stable,
            }],
        )
    }

    fn complete(&self, state: &mut State, loc: u8) {
        let flying = state
            .cache
            .iter_mut()
            .find(|write| write.loc == loc && !write.done);
        flying
            .expect("the step was offered for a write in flight")
            .done = true;
        for core in 0..state.cores.len() {
            self.believe(state, core, |at, io| {
                if at == loc { io.max(Io::Done(0)) } else { io }
            });
            self.settle(state, core);
        }
    }

    /// A write of data fails. Nobody can say what the block holds now.
    fn fail_data(&self, state: &mut State, loc: u8, done: bool) {
        state.spent.write_failures += 1;
        let groups = state.cores.iter_mut().flat_map(|core| &mut core.groups);
        for unit in groups.flat_map(|group| &mut group.units) {
            let mut data = unit.records.iter().filter_map(Record::data);
            if data.any(|(block, _)| block == loc) {
                unit.failure = Failure::Failed;
                state.ghost.failed.push(unit.id);
            }
        }
        let mut flying = state
            .cache
            .iter_mut()
            .filter(|write| write.loc == loc && !write.done);
        let write = flying
            .next()
            .expect("the step was offered for a write in flight");
        if !done {
            write.content = Content::Garbage;
        }
        self.complete(state, loc);
    }

    /// A flush covers what was answered before it started, whoever wrote it.
    fn start_flush(&self, state: &mut State, core: u8) {
        let bit = if state.flushes.iter().any(|flush| flush.bit == 1) {
            2
        } else {
            1
        };
        state.flushes.push(Flush { bit, core });
        state
            .cache
            .iter_mut()
            .filter(|write| write.done)
            .for_each(|write| write.cover |= bit);
        for core in 0..state.cores.len() {
            self.believe(state, core, |_, io| match io {
                Io::Done(mask) => Io::Done(mask | bit),
                other => other,
            });
        }
    }

    fn flush_succeeds(&self, state: &mut State, bit: u8) {
        let place = state.flushes.iter().position(|flush| flush.bit == bit);
        let place = place.expect("the step was offered for a running flush");
        let earlier = state.flushes[..place]
            .iter()
            .fold(0, |mask, flush| mask | flush.bit);
        state.flushes.remove(place);
        let covered = std::mem::take(&mut state.cache);
        for mut write in covered {
            // A flush that started earlier and still runs may be the one that hears of a failure.
            let durable = write.cover & bit != 0 && write.cover & earlier == 0 && !write.doomed;
            write.cover &= !bit;
            if durable {
                state.cache.retain(|older| older.loc != write.loc);
                state.media[usize::from(write.loc)] = write.content;
            } else {
                state.cache.push(write);
            }
        }
        for core in 0..state.cores.len() {
            self.believe(state, core, |_, io| match io {
                Io::Done(mask) if mask & bit != 0 => Io::Flushed,
                Io::Done(_) if self.has(Bug::TicketFromRunningFlush) => Io::Flushed,
                other => other,
            });
            self.settle(state, core);
        }
    }

    /// A failed flush fences the device on all cores, for good; nothing is known about what it
    /// covered.
    fn flush_fails(&self, state: &mut State, bit: u8, doomed: u8) {
        let failed = state.flushes.iter().position(|flush| flush.bit == bit);
        let failed = state
            .flushes
            .remove(failed.expect("offered for a running flush"));
        state.spent.flush_failures += 1;
        state.ghost.flush_failed = true;
        let covered = state
            .cache
            .iter_mut()
            .filter(|write| write.cover & bit != 0);
        for (index, write) in covered.enumerate() {
            write.doomed |= doomed & 1 << index != 0;
            write.cover &= !bit;
        }
        for core in 0..state.cores.len() {
            let heard = core == usize::from(failed.core) || !self.has(Bug::FenceNotShared);
            state.cores[core].fenced |= heard && !self.has(Bug::RetryAfterFailedFlush);
            self.believe(state, core, |_, io| match io {
                Io::Done(mask) => Io::Done(mask & !bit),
                other => other,
            });
        }
    }

    fn believe(&self, state: &mut State, core: usize, belief: impl FnMut(u8, Io) -> Io) {
        let this = state.cores[core].clone();
        state.cores[core] = for_each_io(self, this, core, belief);
    }
}

/// Lets `belief` see and change what the core believes of each of its writes.
fn for_each_io(
    model: &Model,
    mut this: Core,
    core: usize,
    mut belief: impl FnMut(u8, Io) -> Io,
) -> Core {
    for group in &mut this.groups {
        group.io = belief(model.config.ring_loc(core, group.seq), group.io);
        for unit in &mut group.units {
            for (record, io) in unit.records.iter().zip(&mut unit.data) {
                if let Record::Map { block, .. } = *record {
                    *io = if *io == Io::Flushed {
                        *io
                    } else {
                        belief(block, *io)
                    };
                }
            }
        }
    }
    match &mut this.progress {
        Progress::Idle => {}
        Progress::Cell(root, io) => *io = belief(model.config.cell_loc(core, root.cell), *io),
        Progress::Root(root, io) => {
            let slot = model.root_slot(root.number);
            *io = belief(model.config.root_loc(core, slot), *io);
        }
    }
    this
}

/// Hands a write to the device.
pub(crate) fn submit_write(state: &mut State, loc: u8, content: Content) {
    let place = state.cache.partition_point(|write| write.loc <= loc);
    let write = Write {
        loc,
        content,
        done: false,
        cover: 0,
        doomed: false,
    };
    state.cache.insert(place, write);
}

/// Writes data to a free block.
fn write_data(state: &mut State, core: usize, (val, key): (u8, u8), reuse: bool) -> u8 {
    let free = state.cores[core].free;
    let (used, fresh) = (free & named_blocks(state), free & !named_blocks(state));
    let block = match (reuse, used, fresh) {
        (true, 1.., _) => used.ilog2() as u8,
        (false, _, 1..) => fresh.trailing_zeros() as u8,
        _ => free.trailing_zeros() as u8,
    };
    state.cores[core].free &= !(1 << block);
    state.ghost.rotten &= !(1 << block);
    submit_write(state, block, Content::Data(val, key));
    block
}

/// Blocks that some group or checkpoint on the device names. The others are all alike.
fn named_blocks(state: &State) -> u32 {
    let bit = |block: u8| if block == NO_BLOCK { 0 } else { 1u32 << block };
    let mut named = 0;
    let cached = state.cache.iter().map(|write| &write.content);
    for content in state.media.iter().chain(cached) {
        match content {
            Content::Group(group) => {
                let data = group.units.iter().flatten().filter_map(Record::data);
                named |= data.fold(0, |mask, (block, _)| mask | bit(block));
            }
            Content::Checkpoint(copy) => {
                named |= copy
                    .map
                    .iter()
                    .fold(0, |mask, entry| mask | bit(entry.block));
            }
            _ => {}
        }
    }
    named
}

/// Writes that a running flush covers.
pub(crate) fn covered_by(state: &State, bit: u8) -> impl Iterator<Item = &Write> {
    state
        .cache
        .iter()
        .filter(move |write| write.cover & bit != 0)
}

fn blocks_needed(op: &Op) -> usize {
    match op {
        Op::Write { keys, .. } => keys.len(),
        Op::Move { .. } => 1,
        Op::Unmap { .. } | Op::Snapshot { .. } | Op::DeleteSnapshot { .. } => 0,
    }
}

impl Unit {
    pub(crate) fn new(id: u8, stable: bool, records: Vec<Record>) -> Unit {
        let data = records.iter().map(|record| match record {
            Record::Map { block, .. } if *block != NO_BLOCK => Io::Flying,
            _ => Io::Flushed,
        });
        let data = data.collect();
        let (visible, acked, promised) = (false, false, false);
        let failure = Failure::None;
        Unit {
            id,
            stable,
            records,
            data,
            visible,
            acked,
            promised,
            failure,
            displaced: Vec::new(),
        }
    }

    /// Keys its records name.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u8> + '_ {
        self.records.iter().filter_map(|record| match record {
            Record::Map { key, .. } => Some(*key),
            _ => None,
        })
    }
}
