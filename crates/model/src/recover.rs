//! Recovery as a pure function from what the device returns to the state of one core's journal.
//!
//! It writes nothing, so a crash during recovery only means that it runs again. What recovery
//! *writes* before the core serves (its seal) is in `step.rs`.

use std::rc::Rc;

use crate::bug::Bug;
use crate::check::Model;
use crate::config::{Discipline, Seal};
use crate::state::{Content, Entry, Group, NO_BLOCK, Record, Root, State};

/// Where a mapping came from: the group and the unit's index in it; none for the checkpoint.
type Source = Option<(u8, u8)>;

/// What recovery found.
pub(crate) struct Recovered {
    pub root: Rc<Root>,
    pub map: Vec<Entry>,
    /// Number and hash of the group the journal ends with.
    pub end: (u8, u64),
    /// Incarnation of the last group.
    pub inc: u8,
    /// Units that don't count, as (group, index).
    pub dropped: Vec<(u8, u8)>,
    /// Groups up to here are known to have been flushed with their data.
    pub watermark: u8,
    /// Everything the result rests on that may not be durable: the root's slot, groups above the
    /// watermark, data of final mappings that come from them.
    pub rests_on: Vec<u8>,
}

/// All records, with the unit each belongs to.
fn records(groups: &[Rc<Group>]) -> impl Iterator<Item = ((u8, u8), &Record)> {
    groups.iter().flat_map(|group| {
        let units = group.units.iter().enumerate();
        units.flat_map(move |(index, unit)| unit.iter().map(move |r| ((group.seq, index as u8), r)))
    })
}

/// How one key of a unit is marked as dropped, which only a planted bug does.
fn one_key_of((seq, index): (u8, u8), record: &Record) -> (u8, u8) {
    match record {
        Record::Map { key, .. } => (seq, 16 * (key + 1) + index),
        _ => (seq, u8::MAX),
    }
}

impl Model {
    /// Runs recovery for one core on what the device returns now.
    pub(crate) fn recover(&self, state: &State, core: usize) -> Result<Recovered, &'static str> {
        let root = self.newest_root(state, core).ok_or("no valid root")?;
        // A root names its checkpoint and the checkpoint's checksum.
        let checkpoint = match state.view(self.config.cell_loc(core, root.cell)) {
            Content::Checkpoint(checkpoint) if checkpoint.hash == root.cell_hash => checkpoint,
            _ => return Err("the root's checkpoint can't be read"),
        };
        let groups = self.scan(state, core, &root);
        let end = groups.last().map_or(root.base, |group| group.seq);
        // Groups that were sealed, or that a later group of this incarnation says were flushed,
        // can't be missing: that is damage, not the end of the journal.
        let flushed = self.watermark_of_any_group(state, core, &root);
        if flushed.max(root.sealed) > end {
            return Err("the journal ends before a group that was flushed");
        }
        Ok(self.sort_out(state, core, root, &checkpoint.map, groups))
    }

    /// Finds out which units of the chain hold.
    fn sort_out(
        &self,
        state: &State,
        core: usize,
        root: Rc<Root>,
        base: &[Entry],
        mut groups: Vec<Rc<Group>>,
    ) -> Recovered {
        // Records up to the highest watermark found are taken as they are.
        let watermarks = groups.iter().map(|group| group.watermark);
        let watermark = watermarks.fold(root.sealed, u8::max);
        // What an abort takes back never happened, even if the chain is cut before the abort.
        let mut dropped = root.dropped.clone();
        dropped.extend(records(&groups).filter_map(|(_, record)| match *record {
            Record::Abort { seq, unit } if seq > root.base => Some((seq, unit)),
            _ => None,
        }));
        let mut round = 0;
        let (mut map, sources) = loop {
            let (map, sources) = self.replay(&groups, base, &dropped);
            let failing = self.failing(state, &groups, watermark, &map, &sources, &dropped);
            if failing.is_empty() || self.has(Bug::NoFixpoint) && round > 0 {
                break (map, sources);
            }
            round += 1;
            match self.config.discipline {
                // Drop every atomic unit with a failing mapping, and look again: what a dropped
                // unit had superseded is final now.
                Discipline::Unit => dropped.extend(failing),
                // Cut before the first group that fails. Nothing behind it was acknowledged.
                Discipline::Group => {
                    let first = failing.iter().map(|&(seq, _)| seq).min().unwrap_or(0);
                    groups.retain(|group| group.seq < first);
                }
            }
        };
        // A mapping that still fails is below the watermark: acknowledged, then corrupted. It
        // stays, and reading it is an error.
        let last = groups.last();
        let end = last.map_or((root.base, root.base_hash), |group| (group.seq, group.hash));
        let inc = last.map_or(root.inc, |group| group.inc.max(root.inc));
        let rests_on = self.rests_on(core, &root, &groups, watermark, (&map, &sources));
        if self.has(Bug::DeletedSnapshotChecked) {
            let all = records(&groups).map(|(_, record)| record);
            all.filter(|record| matches!(record, Record::DeleteSnapshot { .. }))
                .for_each(|record| self.apply(record, &mut map));
        }
        // The next incarnation uses the numbers behind the end again.
        dropped.retain(|&(seq, _)| seq <= end.0 || self.has(Bug::DropsOutliveCut));
        dropped.sort_unstable();
        dropped.dedup();
        Recovered {
            root,
            map,
            end,
            inc,
            dropped,
            watermark,
            rests_on,
        }
    }

    /// Two alternating slots; the newest that isn't torn counts.
    fn newest_root(&self, state: &State, core: usize) -> Option<Rc<Root>> {
        let slots = (0..2).filter_map(|slot| match state.view(self.config.root_loc(core, slot)) {
            Content::Root(root) => Some(root.clone()),
            _ => None,
        });
        slots.max_by_key(|root| root.number)
    }

    /// The chain of groups behind the checkpoint: each in its slot, with the next number, under
    /// the right incarnation, and naming the hash of the one before it.
    fn scan(&self, state: &State, core: usize, root: &Root) -> Vec<Rc<Group>> {
        let mut groups: Vec<Rc<Group>> = Vec::new();
        let (mut hash, mut inc) = (root.base_hash, 0);
        for seq in root.base + 1..=root.base + self.config.ring_slots {
            let Content::Group(group) = state.view(self.config.ring_loc(core, seq)) else {
                break;
            };
            // Up to the seal older incarnations wrote the groups; behind it, only the root's own.
            // Without a seal all that can be asked is that incarnations don't go back.
            let inc_fits = match self.config.seal {
                _ if self.has(Bug::NoIncarnation) => true,
                _ if self.lazy() => group.inc >= inc,
                _ => seq <= root.sealed || group.inc == root.inc,
            };
            let chained = group.prev_hash == hash || self.has(Bug::NoPrevHash);
            if group.seq != seq || !inc_fits || !chained {
                break;
            }
            (hash, inc) = (group.hash, group.inc);
            groups.push(group.clone());
        }
        groups
    }

    fn watermark_of_any_group(&self, state: &State, core: usize, root: &Root) -> u8 {
        let slots = 1..=self.config.ring_slots;
        let groups = slots.filter_map(|seq| match state.view(self.config.ring_loc(core, seq)) {
            Content::Group(group) if group.inc == root.inc => Some(group.watermark),
            _ => None,
        });
        groups.max().unwrap_or(0)
    }

    /// The map that the records give which aren't dropped, and the source of each mapping.
    fn replay(
        &self,
        groups: &[Rc<Group>],
        base: &[Entry],
        dropped: &[(u8, u8)],
    ) -> (Vec<Entry>, Vec<Source>) {
        let (mut map, mut sources) = (base.to_vec(), vec![None; base.len()]);
        for (source, record) in records(groups) {
            let one_key = one_key_of(source, record);
            let too_long = self.has(Bug::DeletedSnapshotChecked)
                && matches!(record, Record::DeleteSnapshot { .. });
            if dropped.contains(&source) || dropped.contains(&one_key) || too_long {
                continue;
            }
            let before = map.clone();
            self.apply(record, &mut map);
            for slot in (0..map.len()).filter(|&slot| map[slot] != before[slot]) {
                // A snapshot's mapping comes from the unit that wrote it, not from the snapshot.
                sources[slot] = match record {
                    Record::Snapshot { .. } => sources[slot - self.config.keys()],
                    _ => Some(source),
                };
            }
        }
        (map, sources)
    }

    /// Applies one record to a map, in memory and in recovery alike.
    pub(crate) fn apply(&self, record: &Record, map: &mut [Entry]) {
        match *record {
            Record::Map {
                key,
                block,
                from,
                val,
                lsn,
                stable,
            } => {
                let slot = usize::from(key);
                // A move holds only for a key whose content is still where it was moved from:
                // the write it moved may have been dropped.
                let stale = from != NO_BLOCK && map[slot].block != from;
                if !stale || self.has(Bug::MoveUnconditional) {
                    map[slot] = Entry {
                        val,
                        block,
                        lsn,
                        stable,
                    };
                }
            }
            Record::Snapshot { dvol } => {
                for key in self.config.keys_of_dvol(dvol) {
                    map[self.config.keys() + key] = map[key];
                }
            }
            Record::DeleteSnapshot { dvol } => {
                for key in self.config.keys_of_dvol(dvol) {
                    map[self.config.keys() + key] = Entry::ABSENT;
                }
            }
            Record::Abort { .. } => {}
        }
    }

    /// Units above the watermark that don't hold, because a mapping of theirs fails its checksum.
    /// Only final mappings are checked, of the dvols and of their snapshots: superseded ones may
    /// point at blocks that were reused.
    fn failing(
        &self,
        state: &State,
        groups: &[Rc<Group>],
        watermark: u8,
        map: &[Entry],
        sources: &[Source],
        dropped: &[(u8, u8)],
    ) -> Vec<(u8, u8)> {
        let live_only = self.has(Bug::SnapshotNotChecked);
        let slots = if live_only {
            self.config.keys()
        } else {
            map.len()
        };
        let failing = (0..slots).filter(|&slot| !self.matches(state, slot, &map[slot]));
        let failing = failing.filter_map(|slot| {
            let (seq, index) = sources[slot]?;
            let droppable = seq > watermark || self.has(Bug::DropBelowWatermark);
            let marked = if self.has(Bug::DropOnlyFailingKey) {
                16 * ((slot % self.config.keys()) as u8 + 1) + index
            } else {
                index
            };
            droppable.then_some((seq, marked))
        });
        let mut failing: Vec<_> = failing.collect();
        if self.has(Bug::CheckSuperseded) {
            failing.extend(records(groups).filter_map(|(source, record)| {
                let (block, content) = record.data()?;
                (source.0 > watermark && *state.view(block) != content).then_some(source)
            }));
        }
        failing.retain(|unit| !dropped.contains(unit));
        failing
    }

    /// Whether the mapping's block has the data its checksum names.
    pub(crate) fn matches(&self, state: &State, slot: usize, entry: &Entry) -> bool {
        let key = (slot % self.config.keys()) as u8;
        entry.block == NO_BLOCK || *state.view(entry.block) == Content::Data(entry.val, key)
    }

    fn rests_on(
        &self,
        core: usize,
        root: &Root,
        groups: &[Rc<Group>],
        watermark: u8,
        (map, sources): (&[Entry], &[Source]),
    ) -> Vec<u8> {
        let above = |seq: u8| seq > watermark;
        let rings = groups.iter().filter(|group| above(group.seq));
        let data = (0..map.len()).filter(|&slot| sources[slot].is_some_and(|(seq, _)| above(seq)));
        std::iter::once(self.config.root_loc(core, self.root_slot(root.number)))
            .chain(rings.map(|group| self.config.ring_loc(core, group.seq)))
            .chain(
                data.map(|slot| map[slot].block)
                    .filter(|&block| block != NO_BLOCK),
            )
            .collect()
    }

    /// Roots alternate between two slots, so a torn one leaves the one before.
    pub(crate) fn root_slot(&self, number: u8) -> u8 {
        if self.has(Bug::RootInPlace) {
            0
        } else {
            number % 2
        }
    }

    /// Whether recovery leaves no durable trace of itself.
    pub(crate) fn lazy(&self) -> bool {
        self.config.seal == Seal::Nothing || self.has(Bug::RecoveryWritesNothing)
    }
}
