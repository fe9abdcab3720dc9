//! What one exploration may do: the shape of the device, the operations clients may send, and the
//! budget of crashes and failures. Everything in a [`Config`] is a bound on the state space; the
//! rules themselves are in `step.rs` and `recover.rs` and are the same for all of them, except the
//! two choices ([`Discipline`], [`Seal`]) whose alternatives the model compares.

/// What recovery drops, and therefore what an acknowledgement has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// An atomic unit waits for its own data and for the groups up to its own. Recovery drops
    /// single units, repeated to a fixpoint.
    Unit,
    /// A unit waits for the groups up to its own *and all their data*. Recovery cuts the journal
    /// at the first group that fails, so what survives is a prefix.
    Group,
}

/// What recovery makes durable before the core serves again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// A checkpoint of the recovered map, and a root for it under the new incarnation.
    Checkpoint,
    /// Only a root: the old checkpoint, the new incarnation, the group the journal now ends with
    /// and the units that were dropped. Its cost doesn't depend on the journal's length.
    Root,
    /// Nothing; the new incarnation goes on writing behind the last valid group. Unsound: it is
    /// here to show why, and as the ground on which the hash chain is the last defence.
    Nothing,
}

/// Which data blocks may rot (a fault of the medium, not of power).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// None: then no read may ever fail.
    Never,
    /// Blocks of final mappings that are below the watermark on disk.
    BelowWatermark,
    /// Blocks of any final mapping. Shows the window in which rot can't be told from a torn write.
    Anywhere,
}

/// One client operation, or one of the core's own.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Write all the keys as one atomic unit; they may lie in several dvols of one core.
    Write {
        /// Keys, in ascending order.
        keys: &'static [u8],
        /// Acknowledged and shown to others only when durable.
        stable: bool,
    },
    /// Deallocate a key. It leaves a tombstone with an LSN.
    Unmap {
        /// The key.
        key: u8,
        /// As in `Write`.
        stable: bool,
    },
    /// Move a key's block (scrub, merge). It changes no content and consumes no LSN.
    Move {
        /// The key.
        key: u8,
    },
    /// Keep the dvol's map as it is at this point of the journal; acknowledged when durable.
    Snapshot {
        /// The dvol.
        dvol: u8,
    },
    /// Forget the dvol's snapshot. Frees what only the snapshot had.
    DeleteSnapshot {
        /// The dvol.
        dvol: u8,
    },
}

/// A group that clients may cause, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The core whose journal takes the group.
    pub core: u8,
    /// The units of the group, in order. None at all is a group that only carries a watermark.
    pub units: &'static [Op],
    /// How many times.
    pub times: u8,
}

/// The bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Short name, for reports.
    pub name: &'static str,
    /// What recovery drops.
    pub discipline: Discipline,
    /// What recovery writes.
    pub seal: Seal,
    /// The dvol of each key. Every key is mapped from the start.
    pub dvol_of_key: &'static [u8],
    /// The core of each dvol.
    pub core_of_dvol: &'static [u8],
    /// Free blocks in each core's pool at the start.
    pub spare_blocks: u8,
    /// Slots in each core's ring.
    pub ring_slots: u8,
    /// Groups of one core that may be written but not yet flushed.
    pub pipeline_max: u8,
    /// What clients do.
    pub menu: &'static [Choice],
    /// Groups over all.
    pub groups_max: u8,
    /// Power losses and kills over all; exploration ends at the last one's recovery.
    pub crashes_max: u8,
    /// Crashes may be kills of the process, which leave the device's write cache as it is.
    pub kills: bool,
    /// Flushes that may fail.
    pub flush_failures_max: u8,
    /// A failed flush may leave writes that read back well but that no later flush saves.
    pub phantoms: bool,
    /// Data writes that the device may answer with an error.
    pub write_failures_max: u8,
    /// Checkpoints, not counting those of recovery.
    pub checkpoints_max: u8,
    /// Reads with a time between the lookup and the device's answer.
    pub reads_max: u8,
    /// Blocks that may rot.
    pub rot: Rot,
    /// A consumer of changes may copy a dvol, once.
    pub copies: bool,
    /// Whether what survives must be a prefix of the journal; holds in the `Group` discipline.
    pub prefix: bool,
    /// Whether LSNs are compared; off only where `Seal::Nothing` is studied for other properties.
    pub check_lsns: bool,
}

/// Parts of the device, by location number: data blocks, rings, root slots, checkpoints.
impl Config {
    pub(crate) fn keys(&self) -> usize {
        self.dvol_of_key.len()
    }

    pub(crate) fn cores(&self) -> usize {
        self.core_of_dvol
            .iter()
            .map(|&core| usize::from(core) + 1)
            .max()
            .unwrap_or(1)
    }

    pub(crate) fn core_of_key(&self, key: usize) -> usize {
        usize::from(self.core_of_dvol[usize::from(self.dvol_of_key[key])])
    }

    pub(crate) fn keys_of_dvol(&self, dvol: u8) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.keys()).filter(move |&key| self.dvol_of_key[key] == dvol)
    }

    pub(crate) fn keys_of_core(&self, core: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.keys()).filter(move |&key| self.core_of_key(key) == core)
    }

    /// Data blocks of the whole device; they come first, so a block number is its location.
    pub(crate) fn blocks(&self) -> usize {
        self.keys() + usize::from(self.spare_blocks) * self.cores()
    }

    /// The pool of one core: its share of the blocks that hold the first contents of its keys
    /// (key `k` starts in block `k`) and its own spare blocks.
    pub(crate) fn pool(&self, core: usize) -> u32 {
        let spare = usize::from(self.spare_blocks);
        let first = self.keys() + core * spare;
        let own = (first..first + spare).chain(self.keys_of_core(core));
        own.fold(0, |mask, block| mask | 1 << block)
    }

    pub(crate) fn ring_loc(&self, core: usize, seq: u8) -> u8 {
        let slots = usize::from(self.ring_slots);
        (self.blocks() + core * slots + usize::from(seq) % slots) as u8
    }

    pub(crate) fn root_loc(&self, core: usize, slot: u8) -> u8 {
        let rings = usize::from(self.ring_slots) * self.cores();
        (self.blocks() + rings + core * 4 + usize::from(slot)) as u8
    }

    pub(crate) fn cell_loc(&self, core: usize, cell: u8) -> u8 {
        self.root_loc(core, 2 + cell)
    }

    pub(crate) fn locations(&self) -> usize {
        self.blocks() + (usize::from(self.ring_slots) + 4) * self.cores()
    }
}
