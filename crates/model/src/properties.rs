//! What must hold in every reachable state, and the observer's books that tell.
//!
//! For each key the observer keeps the operations of which recovery must find one (`may_be`).
//! Submitting adds one at the end; a promise (an acknowledgement of a stable write, a flush
//! acknowledged behind an unstable one, a reader who saw a stable one) removes all before it; and
//! when a recovered core begins to serve, what it serves is the only one left. So a lost promise
//! and a discarded write that comes back are the same mistake: recovery finds something else.

use std::fmt;

use crate::bug::Bug;
use crate::check::Model;
use crate::state::{Core, Entry, Failure, Ghost, Lsn, NO_BLOCK, Record, State, Unit};

/// LSNs left out for each start: more than a ring has records.
const LSN_SKIP: u16 = 16;

/// What must hold.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Property {
    /// An acknowledged stable write, an acknowledged unstable one that a flush covers, and a
    /// stable one that was read, are there after a crash or superseded by a later write.
    PromisesKept,
    /// What a recovery has discarded never comes back.
    DiscardedStaysDiscarded,
    /// Atomic units, and snapshots, are there wholly or not at all.
    WholeOrAbsent,
    /// Where the configuration asks for it: what survives is a prefix of the journal.
    SurvivesAsPrefix,
    /// A mapping's block holds what was written to the key, as long as it is mapped or read.
    ReadsWhatWasWritten,
    /// No block is in two mappings, and none is both free and mapped.
    BlocksHaveOneOwner,
    /// Whoever has a copy and asks for what changed since its LSN gets all that changed.
    ChangesAreComplete,
    /// Whatever is submitted is acknowledged in the end if nothing fails.
    SomethingMoves,
    /// A dvol's LSNs only grow.
    LsnsGrow,
    /// After a failed flush nothing is acknowledged, on no core.
    NothingAfterFailedFlush,
    /// Recovery run twice finds the same.
    RecoversTheSameTwice,
    /// Recovery finds a root, its checkpoint, and every group known to have been flushed.
    Recovers,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Property::PromisesKept => "a promised write is lost",
            Property::DiscardedStaysDiscarded => "a discarded write came back",
            Property::WholeOrAbsent => "an atomic unit is there in part",
            Property::SurvivesAsPrefix => "what survived is not a prefix",
            Property::ReadsWhatWasWritten => "a mapped block doesn't hold what was written",
            Property::BlocksHaveOneOwner => "a block has two owners",
            Property::ChangesAreComplete => "a change since an LSN is not reported",
            Property::SomethingMoves => "nothing moves any more",
            Property::LsnsGrow => "an LSN was used again",
            Property::NothingAfterFailedFlush => "acknowledged after a failed flush",
            Property::RecoversTheSameTwice => "recovery run again finds something else",
            Property::Recovers => "the journal can't be recovered",
        })
    }
}

/// A broken property and what exactly is wrong.
type Verdict = Option<(Property, String)>;

impl Model {
    /// The first property that this state breaks.
    pub(crate) fn judge(&self, state: &State) -> Verdict {
        if let Some(property) = state.ghost.broken {
            return Some((property, "by the last step".into()));
        }
        if state.is_down() {
            return (0..self.config.cores()).find_map(|core| self.judge_recovery(state, core));
        }
        (0..state.cores.len()).find_map(|core| self.judge_running(state, core))
    }

    fn judge_running(&self, state: &State, core: usize) -> Verdict {
        let this = &state.cores[core];
        if !this.serving {
            return None;
        }
        let units = this.groups.iter().flat_map(|group| &group.units);
        let coming = units.filter(|unit| !unit.visible && unit.failure < Failure::Aborted);
        let coming = coming
            .flat_map(|unit| unit.records.iter().filter_map(Record::data))
            .fold(0, |mask, (block, _)| mask | 1 << block);
        let map = || self.judge_map(state, &this.map, this.free | coming);
        self.judge_progress(state, core)
            .or_else(|| self.judge_copy(state, core))
            .or_else(map)
    }

    /// While a core waits for something, the device has something to do for it.
    fn judge_progress(&self, state: &State, core: usize) -> Verdict {
        let this = &state.cores[core];
        let mut units = this.groups.iter().flat_map(|group| &group.units);
        let waits = units.any(|unit| !unit.is_over());
        let moves = state.ghost.flush_failed
            || self.may_checkpoint(this)
            || state.cache.iter().any(|write| !write.done || !write.doomed);
        (waits && !moves).then(|| (Property::SomethingMoves, format!("on core {core}")))
    }

    fn judge_copy(&self, state: &State, core: usize) -> Verdict {
        let copy = state.ghost.copy.as_ref()?;
        let of_dvol = |key: &usize| self.config.dvol_of_key[*key] == copy.dvol;
        let missed = self
            .config
            .keys_of_core(core)
            .filter(of_dvol)
            .find(|&key| {
                let entry = state.cores[core].map[key];
                entry.lsn <= copy.since && entry.val != copy.vals[key]
            })?;
        Some((Property::ChangesAreComplete, format!("of k{missed}")))
    }

    /// A map's blocks hold what was written, and belong to it alone.
    fn judge_map(&self, state: &State, map: &[Entry], others: u32) -> Verdict {
        let mut owners = others;
        for (slot, entry) in map
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.block != NO_BLOCK)
        {
            let bit = 1 << entry.block;
            // A key and its snapshot share a block as long as the key isn't written.
            let live = (slot >= self.config.keys()).then(|| map[slot - self.config.keys()]);
            if live.is_none_or(|live| live.block != entry.block) {
                if owners & bit != 0 {
                    let detail = format!("block {} of k{slot}", entry.block);
                    return Some((Property::BlocksHaveOneOwner, detail));
                }
                owners |= bit;
            }
            if !self.matches(state, slot, entry) && state.ghost.rotten & bit == 0 {
                let detail = format!(
                    "{} has val {} in block {}",
                    self.slot(slot),
                    entry.val,
                    entry.block
                );
                return Some((Property::ReadsWhatWasWritten, detail));
            }
        }
        None
    }

    fn judge_recovery(&self, state: &State, core: usize) -> Verdict {
        let found = match self.recover(state, core) {
            Ok(found) => found,
            Err(why) => return Some((Property::Recovers, why.into())),
        };
        let ghost = &state.ghost;
        for key in self.config.keys_of_core(core) {
            for slot in [key, key + self.config.keys()] {
                let (may_be, val) = (&ghost.may_be[slot], found.map[slot].val);
                if !may_be.contains(&val) {
                    let lost = val < may_be[0];
                    let property = if lost {
                        Property::PromisesKept
                    } else {
                        Property::DiscardedStaysDiscarded
                    };
                    let slot = self.slot(slot);
                    return Some((property, format!("{slot} has {val}, may be {may_be:?}")));
                }
            }
        }
        let partly = || self.judge_units(ghost, core, &found.map);
        let holes = || self.judge_prefix(ghost, core, &found.map);
        self.judge_map(state, &found.map, 0)
            .or_else(partly)
            .or_else(holes)
    }

    /// If one key of a unit has it, no other key may be older.
    fn judge_units(&self, ghost: &Ghost, core: usize, map: &[Entry]) -> Verdict {
        let keys = self.config.keys();
        for &(id, mask) in &ghost.units {
            for base in [0, keys] {
                let own = self
                    .config
                    .keys_of_core(core)
                    .filter(|key| mask & 1 << key != 0);
                let vals = own.map(|key| map[base + key].val).filter(|&val| val != 0);
                if vals.clone().any(|val| val == id) && vals.clone().any(|val| val < id) {
                    let vals: Vec<u8> = vals.collect();
                    return Some((
                        Property::WholeOrAbsent,
                        format!("op {id}, keys have {vals:?}"),
                    ));
                }
            }
        }
        for dvol in 0..self.config.core_of_dvol.len() {
            let own = self.config.keys_of_core(core);
            let own = own.filter(|&key| usize::from(self.config.dvol_of_key[key]) == dvol);
            let mut there = own.map(|key| map[keys + key].val != 0);
            if there
                .next()
                .is_some_and(|first| there.any(|other| other != first))
            {
                return Some((Property::WholeOrAbsent, format!("snapshot of dvol {dvol}")));
            }
        }
        None
    }

    /// No key may miss a write that is older than one which another key has.
    fn judge_prefix(&self, ghost: &Ghost, core: usize, map: &[Entry]) -> Verdict {
        if !self.config.prefix {
            return None;
        }
        let newest = self
            .config
            .keys_of_core(core)
            .map(|key| map[key].val)
            .max()?;
        for key in self.config.keys_of_core(core) {
            let val = map[key].val;
            let between = |v: &&u8| **v > val && **v < newest && !ghost.failed.contains(v);
            if let Some(missed) = ghost.may_be[key].iter().find(between) {
                let detail = format!("k{key} misses op {missed}, op {newest} is there");
                return Some((Property::SurvivesAsPrefix, detail));
            }
        }
        None
    }

    fn slot(&self, slot: usize) -> String {
        match slot.checked_sub(self.config.keys()) {
            Some(key) => format!("the snapshot of k{key}"),
            None => format!("k{slot}"),
        }
    }

    /// Counts a dvol's LSN on and checks that it is new.
    pub(crate) fn take_lsn(&self, state: &mut State, core: usize, dvol: usize) {
        let this = &mut state.cores[core];
        let (last, inc) = this.lsn[dvol];
        // After a start, LSNs go on above all that earlier incarnations can have given out since
        // this one was recorded, each as much as the ring holds: they may be forgotten, but
        // somebody may have been told.
        let starts = u16::from(this.inc - inc);
        let skip = match self.bug {
            Some(Bug::LsnReused) => 1,
            Some(Bug::LsnSkipOnce) if starts > 0 => LSN_SKIP,
            _ if starts > 0 => starts * LSN_SKIP,
            _ => 1,
        };
        let lsn = last + skip;
        this.lsn[dvol] = (lsn, this.inc);
        if self.config.check_lsns && lsn <= state.ghost.lsn_max[dvol] {
            state.ghost.broken = Some(Property::LsnsGrow);
        }
        state.ghost.lsn_max[dvol] = state.ghost.lsn_max[dvol].max(lsn);
    }

    /// The last LSN of a dvol whose changes are in this map: each leaves a mapping or a tombstone.
    pub(crate) fn last_lsn(&self, map: &[Entry], dvol: usize) -> Lsn {
        let lsns = self.config.keys_of_dvol(dvol as u8).map(|key| map[key].lsn);
        lsns.max().unwrap_or((0, 0))
    }

    /// A unit was submitted: recovery may find it from now on.
    pub(crate) fn expect_unit(&self, state: &mut State, id: u8, keys: &[u8]) {
        for &key in keys {
            state.ghost.may_be[usize::from(key)].push(id);
        }
        if keys.len() > 1 {
            let mask = keys.iter().fold(0, |mask, key| mask | 1 << key);
            state.ghost.units.push((id, mask));
        }
    }

    /// A snapshot was submitted: it may have whatever its keys may have now.
    pub(crate) fn expect_snapshot(&self, state: &mut State, dvol: u8) {
        let keys = self.config.keys();
        for key in self.config.keys_of_dvol(dvol) {
            let of_key = state.ghost.may_be[key].clone();
            state.ghost.may_be[keys + key].extend(of_key);
        }
    }

    /// A snapshot's deletion was submitted.
    pub(crate) fn expect_no_snapshot(&self, state: &mut State, dvol: u8) {
        for key in self.config.keys_of_dvol(dvol) {
            state.ghost.may_be[self.config.keys() + key].push(0);
        }
    }

    /// The unit was taken back for good.
    pub(crate) fn forget_unit(&self, state: &mut State, id: u8) {
        for may_be in &mut state.ghost.may_be {
            may_be.retain(|&other| other != id);
        }
        state.ghost.units.retain(|&(other, _)| other != id);
    }

    /// The unit may not be lost any more.
    pub(crate) fn promise(&self, state: &mut State, core: usize, unit: &Unit) {
        if state.ghost.flush_failed {
            state.ghost.broken = Some(Property::NothingAfterFailedFlush);
        }
        for record in &unit.records {
            if let Some(dvol) = record.whole_dvol() {
                self.promise_snapshot(state, core, dvol);
            }
            match *record {
                Record::Map {
                    key,
                    from: NO_BLOCK,
                    val,
                    ..
                } => {
                    self.promise_key(state, usize::from(key), val);
                }
                Record::Abort { seq, unit } => self.abort_is_durable(state, core, seq, unit),
                // A move changes nothing a client can see.
                _ => {}
            }
        }
    }

    /// The key may not be older than this operation any more.
    pub(crate) fn promise_key(&self, state: &mut State, key: usize, val: u8) {
        state.ghost.may_be[key].retain(|&other| other >= val);
        let of_snapshot = &mut state.ghost.may_be[self.config.keys() + key];
        if of_snapshot.contains(&val) {
            of_snapshot.retain(|&other| other >= val || other == 0);
        }
        forget_settled_units(&mut state.ghost, self.config.keys());
    }

    /// The snapshot is as the map was when it was shown, or is no more.
    fn promise_snapshot(&self, state: &mut State, core: usize, dvol: u8) {
        let keys = self.config.keys();
        for key in self.config.keys_of_dvol(dvol) {
            let val = state.cores[core].map[keys + key].val;
            state.ghost.may_be[keys + key] = vec![val];
        }
        forget_settled_units(&mut state.ghost, keys);
    }

    /// The core serves what it recovered: that is now the truth.
    pub(crate) fn settle_on(&self, state: &mut State, core: usize) {
        let keys = self.config.keys();
        let State { cores, ghost, .. } = state;
        let this: &Core = &cores[core];
        for key in self.config.keys_of_core(core) {
            for slot in [key, keys + key] {
                ghost.may_be[slot] = vec![this.map[slot].val];
            }
        }
        forget_settled_units(ghost, keys);
    }
}

/// Forgets units of which no recovery can find a part any more.
fn forget_settled_units(ghost: &mut Ghost, keys: usize) {
    let may_be = &ghost.may_be;
    ghost.units.retain(|&(id, mask)| {
        [0, keys].into_iter().any(|base| {
            let own = (0..keys).filter(|key| mask & 1 << key != 0);
            let vals = own
                .flat_map(|key| &may_be[base + key])
                .filter(|&&val| val != 0);
            vals.clone().any(|&val| val == id) && vals.clone().any(|&val| val < id)
        })
    });
}
