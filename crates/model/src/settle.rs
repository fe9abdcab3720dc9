//! What a core does as soon as the rules allow it: show, acknowledge, free, go on with its
//! checkpoint. The planted bugs about acknowledging and reusing are here.

use std::rc::Rc;

use crate::bug::Bug;
use crate::check::Model;
use crate::config::Discipline;
use crate::properties::Property;
use crate::state::{
    Checkpoint, Content, Copied, Core, Entry, Failure, Io, NO_BLOCK, OpenGroup, Progress, Record,
    Root, State, Unit,
};
use crate::step::submit_write;

impl Model {
    /// Does all that the core may do now.
    pub(crate) fn settle(&self, state: &mut State, core: usize) {
        // A fenced device acknowledges nothing, on any core, and writes nothing.
        if state.cores[core].fenced {
            return;
        }
        loop {
            let before = failures(&state.cores[core]);
            for group in 0..state.cores[core].groups.len() {
                for unit in 0..state.cores[core].groups[group].units.len() {
                    self.take_back(state, core, group, unit);
                    self.show_and_answer(state, core, group, unit);
                    self.free_displaced(state, core, group, unit);
                }
            }
            // An abort may let units go on that lie before it.
            if failures(&state.cores[core]) == before {
                break;
            }
        }
        self.retire(&mut state.cores[core]);
        self.go_on_with_checkpoint(state, core);
    }

    /// Whether a unit has come so far (`Io::Done(0)` is written, `Io::Flushed` durable): its data,
    /// its group, and every earlier group of the journal, without which the chain ends before it.
    /// In the `Group` discipline the data of those groups counts as well. And in any discipline, a
    /// record about a whole dvol waits for the data of what came before it in that dvol: a
    /// snapshot's content is that data, and what a deletion frees depends on it.
    fn reached(&self, core: &Core, group: usize, unit: usize, least: Io) -> bool {
        let this = &core.groups[group].units[unit];
        let whole_dvol = match this.records.first() {
            Some(Record::Snapshot { .. }) => !self.has(Bug::SnapshotBeforeItsData),
            Some(Record::DeleteSnapshot { .. }) => !self.has(Bug::DeleteBeforeItsData),
            _ => false,
        };
        let dvols = self.dvols(this);
        // An abort counts as soon as the chain has it.
        let is_abort = matches!(this.records.first(), Some(Record::Abort { .. }));
        let whole_groups = self.config.discipline == Discipline::Group
            && !is_abort
            && !self.has(Bug::AckBeforeEarlierData);
        let counts = |other: &&Unit| {
            whole_groups || whole_dvol && self.dvols(other) & dvols != 0 && other.id < this.id
        };
        self.data_reached(this, least)
            && core.groups[..=group].iter().all(|earlier| {
                let mut others = earlier.units.iter().filter(counts);
                earlier.io >= least && others.all(|other| self.data_reached(other, least))
            })
    }

    /// Whether all data of a unit has come so far. A unit whose data failed never has, until it
    /// has never happened.
    fn data_reached(&self, unit: &Unit, least: Io) -> bool {
        let enough = match self.bug {
            Some(Bug::AbortCountsWhenWritten) => Failure::Withdrawn,
            _ => Failure::Aborted,
        };
        match unit.failure {
            Failure::None => unit.data.iter().all(|&io| io >= least),
            failure => failure >= enough,
        }
    }

    fn show_and_answer(&self, state: &mut State, core: usize, group: usize, unit: usize) {
        let this = &state.cores[core];
        if this.groups[group].units[unit].failure != Failure::None {
            return;
        }
        let out_of_order = self.has(Bug::AckOutOfOrder);
        let this_group = &this.groups[group];
        let written =
            self.reached(this, group, unit, Io::Done(0)) || out_of_order && this_group.is_written();
        let durable = self.reached(this, group, unit, Io::Flushed)
            || out_of_order && self.is_flushed(this_group);
        let Unit {
            stable,
            visible,
            acked,
            ..
        } = this.groups[group].units[unit];
        // A stable write is visible to others when it is durable, not before; an unstable one at
        // once. Records of a dvol apply in order.
        let early = self.has(Bug::StableVisibleEarly);
        let may_show = if stable && !early { durable } else { written };
        if !visible && may_show && self.earlier_of_its_dvols_visible(this, group, unit) {
            self.show(&mut state.cores[core], group, unit);
            let shown = &state.cores[core].groups[group].units[unit];
            if let Some(&Record::Abort { seq, unit }) = shown.records.first() {
                self.withdraw(state, core, (seq, unit), Failure::Withdrawn);
            }
        }
        // Acknowledged when shown, and a stable one never before the flush that covers it.
        let this = &state.cores[core];
        let may_answer = this.groups[group].units[unit].visible && (durable || !stable)
            || self.has(Bug::AckBeforeFlush) && written;
        if !acked && may_answer {
            self.acknowledge(state, core, group, unit);
        }
        // An unstable one that was acknowledged and flushed since may not be lost any more either.
        let unit = &mut state.cores[core].groups[group].units[unit];
        let data_only = self.has(Bug::FlushCountsDataOnly) && unit.acked;
        let durable = durable || data_only && unit.data.iter().all(|&io| io == Io::Flushed);
        if unit.acked && !unit.promised && durable {
            unit.promised = true;
            let unit = unit.clone();
            self.promise(state, core, &unit);
        }
    }

    fn acknowledge(&self, state: &mut State, core: usize, group: usize, unit: usize) {
        if state.ghost.flush_failed {
            state.ghost.broken = Some(Property::NothingAfterFailedFlush);
        }
        let unit = &mut state.cores[core].groups[group].units[unit];
        unit.acked = true;
        unit.promised = unit.stable;
        if unit.stable {
            let unit = unit.clone();
            self.promise(state, core, &unit);
        }
    }

    fn earlier_of_its_dvols_visible(&self, core: &Core, group: usize, unit: usize) -> bool {
        let dvols = self.dvols(&core.groups[group].units[unit]);
        let before = core.groups[..group].iter().flat_map(|group| &group.units);
        before
            .chain(&core.groups[group].units[..unit])
            .all(|earlier| earlier.is_applied() || self.dvols(earlier) & dvols == 0)
    }

    fn dvols(&self, unit: &Unit) -> u32 {
        unit.records.iter().fold(0, |mask, record| match *record {
            Record::Map { key, .. } => mask | 1 << self.config.dvol_of_key[usize::from(key)],
            Record::Snapshot { dvol } | Record::DeleteSnapshot { dvol } => mask | 1 << dvol,
            Record::Abort { .. } => mask,
        })
    }

    /// Applies the unit to the map and notes the blocks it displaces, except those that the
    /// dvol's snapshot keeps.
    fn show(&self, core: &mut Core, group: usize, unit: usize) {
        let keys = self.config.keys();
        let unit = &mut core.groups[group].units[unit];
        unit.visible = true;
        for (index, record) in unit.records.iter().enumerate() {
            let lost = |slot: usize, kept_by: usize| {
                let block = core.map[slot].block;
                let lost = block != NO_BLOCK && block != core.map[kept_by].block;
                lost.then_some((block, index as u8))
            };
            match *record {
                Record::Map { key, .. } => {
                    unit.displaced
                        .extend(lost(key.into(), keys + usize::from(key)));
                }
                Record::DeleteSnapshot { dvol } => {
                    let own = self.config.keys_of_dvol(dvol);
                    unit.displaced
                        .extend(own.filter_map(|key| lost(keys + key, key)));
                }
                _ => {}
            }
            self.apply(record, &mut core.map);
        }
    }

    /// Takes back a unit whose data could not be written, once all its writes are answered and its
    /// group is part of the chain: a record behind it says that it never happened.
    fn take_back(&self, state: &mut State, core: usize, group: usize, unit: usize) {
        let this = &state.cores[core];
        let failed = &this.groups[group].units[unit];
        let chained = this.groups[..=group].iter().all(|group| group.io.is_done());
        let answered = failed.data.iter().all(|io| io.is_done());
        if failed.failure != Failure::Failed || !chained || !answered {
            return;
        }
        let blocks = failed.records.iter().filter_map(Record::data);
        if self.has(Bug::FailureNotJournaled) {
            let free = blocks.fold(0, |mask, (block, _)| mask | 1 << block);
            let this = &mut state.cores[core];
            this.free |= free;
            this.groups[group].units[unit].failure = Failure::Aborted;
        } else if self.has_ring_slot(this, 0) {
            let seq = this.groups[group].seq;
            let record = Record::Abort {
                seq,
                unit: unit as u8,
            };
            let mut abort = Unit::new(state.ghost.next_id, false, vec![record]);
            state.ghost.next_id += 1;
            // Its blocks are free when that record is durable.
            abort.displaced = blocks.map(|(block, _)| (block, 0)).collect();
            state.cores[core].groups[group].units[unit].failure = Failure::Aborting;
            self.submit_group(state, core, vec![abort]);
        }
    }

    /// How far the abort of a unit has come.
    fn withdraw(&self, state: &mut State, core: usize, (seq, unit): (u8, u8), failure: Failure) {
        let mut groups = state.cores[core].groups.iter_mut();
        if let Some(group) = groups.find(|group| group.seq == seq) {
            group.units[usize::from(unit)].failure = failure;
        }
    }

    /// The unit never happened, whatever comes.
    pub(crate) fn abort_is_durable(&self, state: &mut State, core: usize, seq: u8, unit: u8) {
        let mut groups = state.cores[core].groups.iter();
        if let Some(group) = groups.find(|group| group.seq == seq) {
            let id = group.units[usize::from(unit)].id;
            self.forget_unit(state, id);
        }
        self.withdraw(state, core, (seq, unit), Failure::Aborted);
    }

    /// A displaced block is free when the record that displaced it is durable, which means the
    /// whole chain up to it and all data of its unit, and no read in flight wants the block.
    fn free_displaced(&self, state: &mut State, core: usize, group: usize, unit: usize) {
        let this = &state.cores[core];
        let chain = this.groups[..=group]
            .iter()
            .all(|group| group.io == Io::Flushed);
        let whole = self.reached(this, group, unit, Io::Flushed);
        let data = &this.groups[group].units[unit].data;
        let own_data = data.iter().all(|&io| io == Io::Flushed);
        let may_free = |record: u8| match self.bug {
            Some(Bug::ReuseBeforeDurable) => true,
            Some(Bug::ReuseBeforeData) => chain,
            Some(Bug::ReuseBeforeWholeUnit) => chain && data[usize::from(record)] == Io::Flushed,
            Some(Bug::ReuseBeforeChain) => this.groups[group].io == Io::Flushed && own_data,
            _ => whole,
        };
        let wanted = |block: u8| {
            !self.has(Bug::ReuseDuringRead)
                && state.reads.iter().any(|read| read.entry.block == block)
        };
        let displaced = &this.groups[group].units[unit].displaced;
        let free = |&(block, record): &(u8, u8)| may_free(record) && !wanted(block);
        let freed: Vec<(u8, u8)> = displaced.iter().copied().filter(free).collect();
        let this = &mut state.cores[core];
        this.free |= freed.iter().fold(0, |mask, &(block, _)| mask | 1 << block);
        let displaced = &mut this.groups[group].units[unit].displaced;
        displaced.retain(|block| !freed.contains(block));
    }

    /// Groups up to this one are flushed, and so is their data. Goes into the next group, so that
    /// recovery knows which failures are torn writes and which are damage.
    pub(crate) fn watermark(&self, core: &Core) -> u8 {
        let counts = core.groups.iter().take_while(|group| match self.bug {
            Some(Bug::WatermarkEarly) => group.is_written(),
            Some(Bug::WatermarkWithoutData) => group.io == Io::Flushed,
            _ => self.is_flushed(group),
        });
        counts.last().map_or(core.tail.0, |group| group.seq)
    }

    /// The group up to which everything is visible, if nothing behind it is.
    fn sharp_point(&self, core: &Core) -> Option<(u8, u64)> {
        let shown =
            |group: &&OpenGroup| group.io.is_done() && group.units.iter().all(Unit::is_applied);
        let count = core.groups.iter().take_while(shown).count();
        let later = core.groups[count..].iter().flat_map(|group| &group.units);
        let last = core.groups[..count]
            .last()
            .map_or(core.tail, |group| (group.seq, group.hash));
        later
            .clone()
            .all(|unit| !unit.visible || self.dvols(unit) == 0)
            .then_some(last)
    }

    pub(crate) fn may_checkpoint(&self, core: &Core) -> bool {
        let idle = core.serving && !core.fenced && core.progress == Progress::Idle;
        idle && self
            .sharp_point(core)
            .is_some_and(|(seq, _)| seq > core.root.base)
    }

    /// Copies the map as of a group (everything up to it, nothing behind it) to the place that the
    /// newest durable root doesn't use.
    pub(crate) fn start_checkpoint(&self, state: &mut State, core: usize) {
        state.spent.checkpoints += 1;
        let this = &state.cores[core];
        let sharp = self
            .sharp_point(this)
            .expect("the step was offered at a sharp point");
        let (mut base, mut map) = (sharp, this.map.clone());
        let later = this.groups.iter().filter(|group| group.seq > sharp.0);
        if let Some(next) = later.clone().next() {
            if self.has(Bug::CheckpointNotSharp) {
                let records = next.units.iter().flat_map(|unit| &unit.records);
                records.for_each(|record| self.apply(record, &mut map));
            }
            if self.has(Bug::CheckpointClaimsTooMuch) {
                base = (next.seq, next.hash);
            }
        }
        let (number, inc) = (this.root.number + 1, this.inc);
        self.write_checkpoint(state, core, Rc::new(map), (number, inc), base);
    }

    /// Writes a checkpoint; its root follows in `go_on_with_checkpoint`.
    pub(crate) fn write_checkpoint(
        &self,
        state: &mut State,
        core: usize,
        map: Rc<Vec<Entry>>,
        (number, inc): (u8, u8),
        (base, base_hash): (u8, u64),
    ) {
        let mut map = map.to_vec();
        if self.has(Bug::NoTombstone) {
            let tombstones = map.iter_mut().filter(|entry| entry.block == NO_BLOCK);
            tombstones.for_each(|entry| *entry = Entry::ABSENT);
        }
        let cell = 1 - state.cores[core].root.cell;
        let checkpoint = Checkpoint::new(base, map);
        let cell_hash = checkpoint.hash;
        let (sealed, dropped) = (base, Vec::new());
        let root = Root {
            number,
            inc,
            base,
            base_hash,
            cell,
            cell_hash,
            sealed,
            dropped,
        };
        let loc = self.config.cell_loc(core, cell);
        submit_write(state, loc, Content::Checkpoint(checkpoint.into()));
        state.cores[core].progress = Progress::Cell(root.into(), Io::Flying);
    }

    /// Checkpoint, flush, root, flush; only then the ring is trimmed, or the core serves.
    fn go_on_with_checkpoint(&self, state: &mut State, core: usize) {
        match state.cores[core].progress.clone() {
            Progress::Cell(root, io) => {
                let early = self.has(Bug::RootBeforeCheckpoint) && io.is_done();
                if io == Io::Flushed || early {
                    self.write_root(state, core, root);
                }
            }
            Progress::Root(root, Io::Flushed) => {
                let this = &mut state.cores[core];
                this.inc = root.inc;
                this.root = root;
                this.progress = Progress::Idle;
                if !this.serving {
                    self.serve(state, core);
                }
            }
            _ => {}
        }
    }

    /// Writes a root into the slot that doesn't have the newest one.
    pub(crate) fn write_root(&self, state: &mut State, core: usize, root: Rc<Root>) {
        let loc = self.config.root_loc(core, self.root_slot(root.number));
        submit_write(state, loc, Content::Root(root.clone()));
        state.cores[core].progress = Progress::Root(root, Io::Flying);
    }

    /// Who asks what changed since an LSN relies on everything up to it. So what they are shown
    /// must be durable: a change that vanishes in a crash is not a change since.
    pub(crate) fn may_copy(&self, state: &State, dvol: usize) -> bool {
        let core = &state.cores[usize::from(self.config.core_of_dvol[dvol])];
        let mut units = core.groups.iter().flat_map(|group| &group.units);
        let early = self.has(Bug::CopyBeforeDurable);
        core.serving
            && units.all(|unit| {
                !unit.visible || unit.promised || early || self.dvols(unit) & 1 << dvol == 0
            })
    }

    pub(crate) fn copy_dvol(&self, state: &mut State, dvol: u8) {
        let map = &state.cores[usize::from(self.config.core_of_dvol[usize::from(dvol)])].map;
        let vals: Vec<u8> = map[..self.config.keys()]
            .iter()
            .map(|entry| entry.val)
            .collect();
        let own = (0..vals.len()).filter(|&key| self.config.dvol_of_key[key] == dvol);
        let since = own.map(|key| map[key].lsn).max().unwrap_or((0, 0));
        state.ghost.copy = Some(Copied { dvol, since, vals });
    }

    /// The device answers a read with what the block holds now.
    pub(crate) fn end_read(&self, state: &mut State, index: usize) {
        let read = state.reads.remove(index);
        let core = self.config.core_of_key(read.key.into());
        let rotten = state.ghost.rotten & 1 << read.entry.block != 0;
        if !self.matches(state, read.key.into(), &read.entry) && !rotten {
            state.ghost.broken = Some(Property::ReadsWhatWasWritten);
        }
        if read.entry.stable {
            self.promise_key(state, usize::from(read.key), read.entry.val);
        }
        self.settle(state, core);
    }
}

impl Model {
    /// The group and all its data are believed flushed.
    pub(crate) fn is_flushed(&self, group: &OpenGroup) -> bool {
        let mut units = group.units.iter();
        group.io == Io::Flushed && units.all(|unit| self.data_reached(unit, Io::Flushed))
    }

    /// Forgets groups for which nothing is left to do.
    fn retire(&self, core: &mut Core) {
        let finished = core.groups.iter().take_while(|group| {
            let mut units = group.units.iter();
            self.is_flushed(group) && units.all(|unit| unit.is_over() && unit.displaced.is_empty())
        });
        let count = finished.count();
        if count > 0 {
            core.tail = (core.groups[count - 1].seq, core.groups[count - 1].hash);
            core.groups.drain(..count);
        }
    }
}

fn failures(core: &Core) -> Vec<Failure> {
    let units = core.groups.iter().flat_map(|group| &group.units);
    units
        .map(|unit| unit.failure)
        .filter(|&failure| failure != Failure::None)
        .collect()
}

impl Unit {
    /// In its dvols' order, those behind it need not wait for it any more.
    fn is_applied(&self) -> bool {
        self.visible || self.failure >= Failure::Withdrawn
    }

    /// Nothing is to be said about it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.promised || self.failure == Failure::Aborted
    }
}

impl OpenGroup {
    /// The group and its own data are written.
    fn is_written(&self) -> bool {
        let mut data = self.units.iter().flat_map(|unit| &unit.data);
        self.io.is_done() && data.all(|io| io.is_done())
    }
}
