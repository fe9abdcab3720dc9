//! Power losses, kills of the process, rot, and what recovery writes before a core serves again.

use std::rc::Rc;

use crate::bug::Bug;
use crate::check::Model;
use crate::config::{Rot, Seal};
use crate::properties::Property;
use crate::recover::Recovered;
use crate::state::{Content, Core, NO_BLOCK, Progress, Record, Root, State, Write};

impl Model {
    /// What each location in the cache may hold after a power loss: what was there, any write to
    /// it that isn't known to be durable, or garbage.
    fn power_loss_options(&self, state: &State) -> Vec<(u8, Vec<Content>)> {
        let by_location = state.cache.chunk_by(|one, other| one.loc == other.loc);
        let options = by_location.map(|writes| {
            let loc = writes[0].loc;
            let mut contents = vec![state.media[usize::from(loc)].clone()];
            for write in writes {
                if !contents.contains(&write.content) {
                    contents.push(write.content.clone());
                }
            }
            // Writing again what is there can't tear it.
            if contents.len() > 1 && !contents.contains(&Content::Garbage) {
                contents.push(Content::Garbage);
            }
            (loc, contents)
        });
        options.collect()
    }

    pub(crate) fn power_loss_outcomes(&self, state: &State) -> u32 {
        let options = self.power_loss_options(state);
        options
            .iter()
            .map(|(_, contents)| contents.len() as u32)
            .product()
    }

    pub(crate) fn lose_power(&self, state: &mut State, mut outcome: u32) {
        for (loc, contents) in self.power_loss_options(state) {
            let count = contents.len() as u32;
            state.media[usize::from(loc)] = contents[(outcome % count) as usize].clone();
            outcome /= count;
        }
        state.cache.clear();
        self.go_down(state);
    }

    pub(crate) fn kill_outcomes(&self, state: &State) -> u32 {
        let flying = state.cache.iter().filter(|write| !write.done).count();
        3u32.pow(flying as u32)
    }

    /// The process dies. Each write in flight was carried out, or wasn't, or in part; recovery
    /// starts when that is settled (the device stays locked as long as a write is in flight).
    pub(crate) fn kill(&self, state: &mut State, mut outcome: u32) {
        for write in std::mem::take(&mut state.cache) {
            let fate = if write.done { 0 } else { outcome % 3 };
            outcome = if write.done { outcome } else { outcome / 3 };
            let content = if fate == 2 {
                Content::Garbage
            } else {
                write.content
            };
            if fate != 1 {
                state.cache.push(Write {
                    content,
                    done: true,
                    cover: 0,
                    ..write
                });
            }
        }
        self.go_down(state);
    }

    fn go_down(&self, state: &mut State) {
        state.spent.crashes += 1;
        state.cores.clear();
        state.flushes.clear();
        state.reads.clear();
        state.ghost.flush_failed = false;
        forget_unreferenced(self, state);
    }

    /// Final mappings whose blocks may rot.
    pub(crate) fn rottable(&self, state: &State) -> impl Iterator<Item = u8> {
        let mut slots = Vec::new();
        for core in 0..self.config.cores() {
            let Ok(found) = self.recover(state, core) else {
                continue;
            };
            for key in self.config.keys_of_core(core) {
                let entry = found.map[key];
                let above = found.rests_on.contains(&entry.block);
                let intact = entry.block != NO_BLOCK && self.matches(state, key, &entry);
                if intact && (!above || self.config.rot == Rot::Anywhere) {
                    slots.push(key as u8);
                }
            }
        }
        slots.into_iter()
    }

    pub(crate) fn rot(&self, state: &mut State, key: usize) {
        let found = self.recover(state, self.config.core_of_key(key));
        let found = found.unwrap_or_else(|_| unreachable!("offered for a journal that recovers"));
        let block = found.map[key].block;
        state.spent.rots += 1;
        state.ghost.rotten |= 1 << block;
        state.cache.retain(|write| write.loc != block);
        state.media[usize::from(block)] = Content::Garbage;
    }

    /// The formatted device, served for the first time.
    pub(crate) fn first_state(&self) -> State {
        let mut state = State::new(&self.config);
        for core in 0..self.config.cores() {
            let found = self.recover(&state, core);
            let found = found.unwrap_or_else(|why| unreachable!("formatted, yet {why}"));
            let mut this = self.core_after(core, &found);
            this.inc = found.root.inc;
            state.cores.push(this);
        }
        (0..self.config.cores()).for_each(|core| self.serve(&mut state, core));
        state
    }

    /// Starts the process: makes durable what recovery rests on, recovers, and begins to write the
    /// seal. Until the seal is durable the core doesn't serve.
    pub(crate) fn restart(&self, state: &mut State) {
        let found: Vec<Recovered> = (0..self.config.cores())
            .map(|core| self.recover(state, core))
            .collect::<Result<_, _>>()
            .unwrap_or_default();
        // After a kill, writes may be in the device's cache only. Recovery writes again, in place
        // and byte for byte, what it rests on and may not be durable (after a failed flush the
        // device may believe that it is); then it flushes. Both happen in this one step: a crash
        // between them leaves nothing that wasn't possible before.
        for write in std::mem::take(&mut state.cache) {
            let rewritten = found
                .iter()
                .any(|found| found.rests_on.contains(&write.loc))
                && !self.has(Bug::TrustAfterFailedFlush);
            let durable = (!write.doomed || rewritten) && !self.has(Bug::SkipRecoveryFlush);
            if durable {
                state.media[usize::from(write.loc)] = write.content;
            } else {
                state.cache.push(write);
            }
        }
        let cores = found.iter().enumerate();
        state.cores = cores
            .map(|(core, found)| self.core_after(core, found))
            .collect();
        for (core, found) in found.into_iter().enumerate() {
            self.begin_seal(state, core, found);
        }
    }

    fn core_after(&self, core: usize, found: &Recovered) -> Core {
        let used = found
            .map
            .iter()
            .map(|entry| entry.block)
            .filter(|&block| block != NO_BLOCK);
        Core {
            serving: false,
            fenced: false,
            inc: found.inc + 1,
            head: found.end,
            tail: found.end,
            groups: Vec::new(),
            map: found.map.clone(),
            free: used.fold(self.config.pool(core), |free, block| free & !(1 << block)),
            lsn: Vec::new(),
            progress: Progress::Idle,
            root: found.root.clone(),
        }
    }

    /// The new incarnation and the verdict over the journal must be durable before anything is
    /// read or written: else a second crash would judge the same records again, by blocks that
    /// may have been reused, and would hand out the same incarnation and LSNs.
    fn begin_seal(&self, state: &mut State, core: usize, found: Recovered) {
        let old = found.root;
        let (number, inc) = (old.number + 1, old.inc + 1);
        if self.lazy() {
            return self.serve(state, core);
        }
        if self.config.seal == Seal::Checkpoint {
            let map = Rc::new(found.map);
            return self.write_checkpoint(state, core, map, (number, inc), found.end);
        }
        let forget = self.has(Bug::ForgetDropped);
        let root = Root {
            number,
            inc,
            base: old.base,
            base_hash: old.base_hash,
            cell: old.cell,
            cell_hash: old.cell_hash,
            sealed: found.end.0,
            dropped: if forget { Vec::new() } else { found.dropped },
        };
        self.write_root(state, core, root.into());
    }

    /// Opens the recovered core to clients.
    pub(crate) fn serve(&self, state: &mut State, core: usize) {
        // Recovery run again from here must find the same.
        let again = self.recover(state, core);
        let this = &mut state.cores[core];
        if again.is_err() || again.is_ok_and(|again| again.map != this.map) {
            state.ghost.broken = Some(Property::RecoversTheSameTwice);
        }
        this.serving = true;
        // The last LSN found, with its incarnation: the next one keeps clear of what was lost.
        this.lsn = (0..self.config.core_of_dvol.len())
            .map(|dvol| self.last_lsn(&this.map, dvol))
            .collect();
        self.settle_on(state, core);
    }
}

/// Replaces data that no record and no checkpoint names by garbage: no recovery can tell them
/// apart, so neither need the checker.
fn forget_unreferenced(model: &Model, state: &mut State) {
    let mut named: Vec<(u8, Content)> = Vec::new();
    for content in state
        .media
        .iter()
        .chain(state.cache.iter().map(|write| &write.content))
    {
        match content {
            Content::Group(group) => {
                named.extend(group.units.iter().flatten().filter_map(Record::data));
            }
            Content::Checkpoint(checkpoint) => {
                let keys = model.config.keys();
                named.extend(checkpoint.map.iter().enumerate().map(|(slot, entry)| {
                    (entry.block, Content::Data(entry.val, (slot % keys) as u8))
                }));
            }
            _ => {}
        }
    }
    let named = |loc: u8, content: &Content| {
        usize::from(loc) >= model.config.blocks()
            || named
                .iter()
                .any(|(block, data)| *block == loc && data == content)
    };
    for loc in 0..model.config.blocks() as u8 {
        if !named(loc, &state.media[usize::from(loc)]) {
            state.media[usize::from(loc)] = Content::Garbage;
        }
    }
    for write in &mut state.cache {
        if !named(write.loc, &write.content) {
            write.content = Content::Garbage;
        }
    }
    let media = &state.media;
    state.cache.retain(|write| {
        write.content != Content::Garbage || media[usize::from(write.loc)] != Content::Garbage
    });
}
