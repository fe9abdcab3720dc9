//! Steps in words, for counterexamples.

use crate::check::Model;
use crate::config::Op;
use crate::recover::Recovered;
use crate::state::{Content, NO_BLOCK, Progress, Record, State, Unit};
use crate::step::{Step, covered_by};

impl Model {
    /// What happened between two states, and what the cores made of it.
    pub(crate) fn describe(&self, before: &State, step: Step, after: &State) -> String {
        let words = match step {
            Step::Submit(index, _) => self.describe_submit(usize::from(index), after),
            Step::Complete(loc) => format!("the write to {} is answered", self.place(loc)),
            Step::DataFails(loc, _) => format!("the write to {} FAILS", self.place(loc)),
            Step::FlushStart(core) => format!("core {core} starts a flush"),
            Step::FlushOk(_) if before.flushes.len() > 1 => "one of the flushes succeeds".into(),
            Step::FlushOk(_) => "the flush succeeds".into(),
            Step::FlushFail(bit, doomed) => {
                let lost = covered_by(before, bit).enumerate();
                let lost = lost.filter(|(index, _)| doomed & 1 << index != 0);
                let lost: Vec<String> = lost.map(|(_, write)| self.place(write.loc)).collect();
                match lost.is_empty() {
                    true => "the flush FAILS".into(),
                    false => format!("the flush FAILS; the device gives up {}", lost.join(", ")),
                }
            }
            Step::Checkpoint(core) => match &after.cores[usize::from(core)].progress {
                Progress::Cell(root, _) => {
                    format!("core {core} writes a checkpoint as of group {}", root.base)
                }
                _ => format!("core {core} writes a checkpoint"),
            },
            Step::ReadStart(key) => {
                let core = self.config.core_of_key(key.into());
                let block = before.cores[core].map[usize::from(key)].block;
                format!("a read of k{key} is sent to block {block}")
            }
            Step::ReadEnd(index) => {
                format!(
                    "the read of k{} is answered",
                    before.reads[usize::from(index)].key
                )
            }
            Step::CopyDvol(dvol) => match &after.ghost.copy {
                Some(copy) => format!("somebody copies dvol {dvol} as of LSN {}", copy.since.0),
                None => format!("somebody copies dvol {dvol}"),
            },
            Step::PowerLoss(_) => format!("POWER LOSS: {}", self.describe_loss(before, after)),
            Step::Kill(_) => format!("KILL: {}", self.describe_loss(before, after)),
            Step::Recover => self.describe_recovery(before),
            Step::Rot(key) => format!("the block of k{key} ROTS"),
        };
        format!("{words}{}", self.describe_reactions(before, step, after))
    }

    fn place(&self, loc: u8) -> String {
        let blocks = self.config.blocks() as u8;
        if loc < blocks {
            return format!("block {loc}");
        }
        for core in 0..self.config.cores() {
            for number in 0..2 {
                if loc == self.config.root_loc(core, number) {
                    return format!("root slot {number} of core {core}");
                }
                if loc == self.config.cell_loc(core, number) {
                    return format!("checkpoint {number} of core {core}");
                }
            }
        }
        let (core, slot) = ((loc - blocks) / self.config.ring_slots, loc - blocks);
        format!("ring slot {} of core {core}", slot % self.config.ring_slots)
    }

    fn describe_submit(&self, index: usize, after: &State) -> String {
        let choice = &self.config.menu[index];
        let core = &after.cores[usize::from(choice.core)];
        let Some(group) = core.groups.last() else {
            return "a group is submitted".into();
        };
        let units = choice.units.iter().zip(&group.units);
        let units: Vec<String> = units.map(|(op, unit)| describe_unit(op, unit)).collect();
        let what = if units.is_empty() {
            "only a watermark".into()
        } else {
            units.join("; ")
        };
        format!("core {} submits group {}: {what}", choice.core, group.seq)
    }

    /// What became of each write that was at stake.
    fn describe_loss(&self, before: &State, after: &State) -> String {
        let fates = before.cache.iter().map(|write| {
            let now = after.view(write.loc);
            let fate = if *now == write.content {
                "survives"
            } else if *now == Content::Garbage {
                "is torn or lost"
            } else {
                "is lost"
            };
            format!("{} {fate}", self.place(write.loc))
        });
        let fates: Vec<String> = fates.collect();
        if fates.is_empty() {
            "nothing was at stake".into()
        } else {
            fates.join(", ")
        }
    }

    fn describe_recovery(&self, before: &State) -> String {
        let cores = (0..self.config.cores()).map(|core| match self.recover(before, core) {
            Ok(Recovered {
                root,
                end,
                watermark,
                dropped,
                map,
                ..
            }) => {
                let keys = self.config.keys_of_core(core);
                let vals: Vec<String> = keys
                    .map(|key| format!("k{key}=op {}", map[key].val))
                    .collect();
                let dropped = match dropped.is_empty() {
                    true => String::new(),
                    false => format!(", drops units (group, index) {dropped:?}"),
                };
                format!(
                    "core {core} recovers from root {}, groups up to {}, watermark {watermark}\
                     {dropped}: {}",
                    root.number,
                    end.0,
                    vals.join(", ")
                )
            }
            Err(why) => format!("core {core} can't recover: {why}"),
        });
        cores.collect::<Vec<String>>().join("; ")
    }

    /// What the cores did because of the step.
    fn describe_reactions(&self, before: &State, step: Step, after: &State) -> String {
        let mut words = String::new();
        for (index, (old, new)) in before.cores.iter().zip(&after.cores).enumerate() {
            for unit in old.groups.iter().flat_map(|group| &group.units) {
                let now = new
                    .groups
                    .iter()
                    .flat_map(|g| &g.units)
                    .find(|now| now.id == unit.id);
                let (visible, acked) = now.map_or((true, true), |now| (now.visible, now.acked));
                match (visible && !unit.visible, acked && !unit.acked) {
                    (true, true) => words += &format!("; op {} shown, acknowledged", unit.id),
                    (true, false) => words += &format!("; op {} shown", unit.id),
                    (false, true) => words += &format!("; op {} acknowledged", unit.id),
                    (false, false) => {}
                }
            }
            for block in (0..32).filter(|bit| new.free & !old.free & 1 << bit != 0) {
                words += &format!("; block {block} is free");
            }
            if let (Progress::Cell(..), Progress::Root(..)) = (&old.progress, &new.progress) {
                words += &format!("; core {index} writes the root");
            }
            if new.head.0 > old.head.0 && !matches!(step, Step::Submit(..)) {
                words += &format!("; core {index} writes group {}, an abort", new.head.0);
            }
            if new.root != old.root {
                words += &format!("; root {} counts", new.root.number);
            }
            if new.serving && !old.serving {
                words += &format!("; core {index} serves, incarnation {}", new.inc);
            }
        }
        words
    }
}

fn describe_unit(op: &Op, unit: &Unit) -> String {
    let places: Vec<String> = unit
        .records
        .iter()
        .map(|record| match record {
            Record::Map {
                key,
                block: NO_BLOCK,
                ..
            } => format!("k{key}"),
            Record::Map { key, block, .. } => format!("k{key} to block {block}"),
            Record::Snapshot { dvol } | Record::DeleteSnapshot { dvol } => format!("dvol {dvol}"),
            Record::Abort { seq, unit } => format!("unit {unit} of group {seq}"),
        })
        .collect();
    let places = places.join(" and ");
    let how = if unit.stable { "stable" } else { "unstable" };
    match op {
        Op::Write { .. } => format!("op {}, {how} write of {places}", unit.id),
        Op::Unmap { .. } => format!("op {}, {how} unmap of {places}", unit.id),
        Op::Move { .. } => format!("op {}, move of {places}", unit.id),
        Op::Snapshot { .. } => format!("op {}, snapshot of {places}", unit.id),
        Op::DeleteSnapshot { .. } => format!("op {}, deletes the snapshot of {places}", unit.id),
    }
}
