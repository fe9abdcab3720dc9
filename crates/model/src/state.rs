//! The state of the modelled device, of the cores that use it, and of the *ghost*: what an
//! all-knowing observer remembers in order to judge them. The rules never look at the ghost.
//!
//! Checksums are perfect here: the content of a data block names the write it came from, and a
//! mapping names the content it expects. Hashes of groups are hashes of their fields.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::check::Mix;
use crate::config::Config;
use crate::properties::Property;

/// A log sequence number as the catalogue keeps it: the counter, and the incarnation in which it
/// was given out. (The epoch above the counter changes only by the cluster's hand.)
pub(crate) type Lsn = (u16, u8);

/// "No block": of a deallocated key, and of records that bring no data.
pub(crate) const NO_BLOCK: u8 = 255;

/// What a location of the device holds.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) enum Content {
    /// Torn, rotten or never written: whatever it is, no checksum matches.
    Garbage,
    /// The data that operation `.0` wrote to key `.1`.
    Data(u8, u8),
    Group(Rc<Group>),
    Root(Rc<Root>),
    Checkpoint(Rc<Checkpoint>),
}

/// One atomic unit of a group is a list of these.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) enum Record {
    /// Key is now at `block` with checksum `val`, or deallocated. A move names the block it moved
    /// the content `from`, and holds only for a key that is still there.
    Map {
        key: u8,
        block: u8,
        from: u8,
        val: u8,
        lsn: Lsn,
        stable: bool,
    },
    /// The dvol's map as of here is kept.
    Snapshot { dvol: u8 },
    /// The dvol's snapshot is no more.
    DeleteSnapshot { dvol: u8 },
    /// Unit `unit` of group `seq` never happened: its data could not be written.
    Abort { seq: u8, unit: u8 },
}

impl Record {
    /// Block, and the content it must have, of a mapping that brings data.
    pub(crate) fn data(&self) -> Option<(u8, Content)> {
        match *self {
            Record::Map {
                key, block, val, ..
            } if block != NO_BLOCK => Some((block, Content::Data(val, key))),
            _ => None,
        }
    }

    /// The dvol, of a record whose effect depends on the whole map of a dvol.
    pub(crate) fn whole_dvol(&self) -> Option<u8> {
        match *self {
            Record::Snapshot { dvol } | Record::DeleteSnapshot { dvol } => Some(dvol),
            _ => None,
        }
    }
}

/// A journal group as it is on disk.
pub(crate) struct Group {
    pub inc: u8,
    pub seq: u8,
    pub prev_hash: u64,
    pub watermark: u8,
    pub units: Vec<Vec<Record>>,
    /// Hash of the fields above: the group's own checksum and the next group's `prev_hash`.
    pub hash: u64,
}

impl Group {
    pub(crate) fn new(
        inc: u8,
        seq: u8,
        prev_hash: u64,
        watermark: u8,
        units: Vec<Vec<Record>>,
    ) -> Group {
        let mut mix = Mix::default();
        (inc, seq, prev_hash, watermark, &units).hash(&mut mix);
        Group {
            inc,
            seq,
            prev_hash,
            watermark,
            units,
            hash: mix.finish(),
        }
    }
}

/// A root slot. The newest valid one is where recovery begins.
#[derive(Hash, PartialEq, Eq)]
pub(crate) struct Root {
    /// Number of this root; its slot is the number's parity.
    pub number: u8,
    /// Incarnation of the groups behind `sealed`.
    pub inc: u8,
    /// The checkpoint has every record up to this group and none behind it.
    pub base: u8,
    pub base_hash: u64,
    pub cell: u8,
    pub cell_hash: u64,
    /// Groups up to this one were judged by a recovery; what is not in `dropped` holds for good.
    pub sealed: u8,
    /// Units (group, index) between `base` and `sealed` that recovery dropped.
    pub dropped: Vec<(u8, u8)>,
}

/// A copy of one core's map.
pub(crate) struct Checkpoint {
    pub map: Vec<Entry>,
    pub hash: u64,
}

impl Checkpoint {
    pub(crate) fn new(base: u8, map: Vec<Entry>) -> Checkpoint {
        let mut mix = Mix::default();
        (base, &map).hash(&mut mix);
        Checkpoint {
            map,
            hash: mix.finish(),
        }
    }
}

macro_rules! stand_for_their_hash {
    ($($name:ty),*) => { $(
        impl Hash for $name {
            fn hash<H: Hasher>(&self, hasher: &mut H) {
                hasher.write_u64(self.hash);
            }
        }
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.hash == other.hash
            }
        }
        impl Eq for $name {}
    )* };
}
stand_for_their_hash!(Group, Checkpoint);

/// A mapping. A map has one for each key and then one for each key's snapshot.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Which operation changed the key last; 0 in a snapshot that doesn't exist.
    pub val: u8,
    pub block: u8,
    pub lsn: Lsn,
    /// Of the operation, so that a reader's expectations are known.
    pub stable: bool,
}

impl Entry {
    pub(crate) const ABSENT: Entry = Entry {
        val: 0,
        block: NO_BLOCK,
        lsn: (0, 0),
        stable: false,
    };
}

/// A write the device has accepted and not promised to keep.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Write {
    pub loc: u8,
    pub content: Content,
    /// Answered. Until then the block may also be torn.
    pub done: bool,
    /// Running flushes that started after the answer.
    pub cover: u8,
    /// A flush that covered it failed, and the device has forgotten that it isn't durable.
    pub doomed: bool,
}

/// How far a core believes a write of its own to be.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Io {
    Flying,
    /// Answered; the mask has the running flushes that started since.
    Done(u8),
    Flushed,
}

impl Io {
    pub(crate) fn is_done(self) -> bool {
        self != Io::Flying
    }
}

/// A unit in memory, from its submission until nothing waits for it.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Unit {
    pub id: u8,
    pub stable: bool,
    pub records: Vec<Record>,
    /// Of each record's data; a record without data counts as flushed.
    pub data: Vec<Io>,
    pub visible: bool,
    pub acked: bool,
    /// The ghost has been told that this one may not be lost any more.
    pub promised: bool,
    pub failure: Failure,
    /// Blocks its records displaced, with the record's index.
    pub displaced: Vec<(u8, u8)>,
}

/// What a core does about a unit whose data could not be written, in this order.
#[derive(Clone, Copy, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    None,
    /// A write was answered with an error.
    Failed,
    /// A record that takes the unit back is on its way.
    Aborting,
    /// That record is written.
    Withdrawn,
    /// That record is durable: the unit never happened.
    Aborted,
}

/// A group in memory.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct OpenGroup {
    pub seq: u8,
    pub hash: u64,
    pub io: Io,
    pub units: Vec<Unit>,
}

/// What a core is writing besides data and groups.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) enum Progress {
    Idle,
    Cell(Rc<Root>, Io),
    Root(Rc<Root>, Io),
}

/// One core and its journal.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Core {
    pub serving: bool,
    pub fenced: bool,
    pub inc: u8,
    /// Number and hash of the last group written, and of the last one nothing waits for.
    pub head: (u8, u64),
    pub tail: (u8, u64),
    pub groups: Vec<OpenGroup>,
    pub map: Vec<Entry>,
    /// Blocks of the pool that may be handed out.
    pub free: u32,
    /// The last LSN of each dvol.
    pub lsn: Vec<Lsn>,
    pub progress: Progress,
    /// The newest root known to be durable.
    pub root: Rc<Root>,
}

/// A read between its lookup and the device's answer.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Read {
    pub key: u8,
    pub entry: Entry,
}

/// A flush that runs; `bit` is its place in the masks.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Flush {
    pub bit: u8,
    pub core: u8,
}

/// What the observer knows.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Ghost {
    pub next_id: u8,
    /// For each key, and each key's snapshot: the operations of which recovery must find one.
    /// The first is promised, the others were submitted since.
    pub may_be: Vec<Vec<u8>>,
    /// Units of several keys (as a mask) that may still come out in part.
    pub units: Vec<(u8, u32)>,
    /// Units whose data could not be written.
    pub failed: Vec<u8>,
    /// Highest LSN of each dvol ever handed out.
    pub lsn_max: Vec<u16>,
    /// A flush has failed since the process started.
    pub flush_failed: bool,
    /// What a consumer of changes has copied.
    pub copy: Option<Copied>,
    /// Blocks that rotted.
    pub rotten: u32,
    /// The property a step has just broken.
    pub broken: Option<Property>,
}

/// A copy of a dvol that somebody keeps and means to bring up to date by asking what changed
/// since an LSN.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Copied {
    pub dvol: u8,
    pub since: Lsn,
    /// Which operation's content each key of the device had; only those of the dvol count.
    pub vals: Vec<u8>,
}

/// What is used up of the budget.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct Spent {
    pub choices: Vec<u8>,
    pub crashes: u8,
    pub flush_failures: u8,
    pub write_failures: u8,
    pub checkpoints: u8,
    pub reads: u8,
    pub rots: u8,
}

/// Everything.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(crate) struct State {
    /// What survives whatever happens.
    pub media: Vec<Content>,
    /// What may or may not, each for itself; ordered by location and then age.
    pub cache: Vec<Write>,
    pub flushes: Vec<Flush>,
    /// Empty while the process is down.
    pub cores: Vec<Core>,
    pub reads: Vec<Read>,
    pub ghost: Ghost,
    pub spent: Spent,
}

impl State {
    /// A formatted device, its keys mapped; no process has started yet.
    pub(crate) fn new(config: &Config) -> State {
        let keys = config.keys();
        let mut media = vec![Content::Garbage; config.locations()];
        for core in 0..config.cores() {
            let mut map = vec![Entry::ABSENT; 2 * keys];
            for key in config.keys_of_core(core) {
                let val = key as u8 + 1;
                map[key] = Entry {
                    val,
                    block: key as u8,
                    lsn: (1, 1),
                    stable: true,
                };
                media[key] = Content::Data(val, key as u8);
            }
            let checkpoint = Checkpoint::new(0, map);
            let root = Root {
                number: 0,
                inc: 1,
                base: 0,
                base_hash: core as u64,
                cell: 0,
                cell_hash: checkpoint.hash,
                sealed: 0,
                dropped: Vec::new(),
            };
            media[usize::from(config.cell_loc(core, 0))] = Content::Checkpoint(checkpoint.into());
            media[usize::from(config.root_loc(core, 0))] = Content::Root(root.into());
        }
        let vals = 1..=keys as u8;
        State {
            media,
            cache: Vec::new(),
            flushes: Vec::new(),
            cores: Vec::new(),
            reads: Vec::new(),
            ghost: Ghost {
                next_id: keys as u8 + 1,
                may_be: vals
                    .map(|val| vec![val])
                    .chain(vec![vec![0]; keys])
                    .collect(),
                units: Vec::new(),
                failed: Vec::new(),
                lsn_max: vec![1; config.core_of_dvol.len()],
                flush_failed: false,
                copy: None,
                rotten: 0,
                broken: None,
            },
            spent: Spent {
                choices: vec![0; config.menu.len()],
                crashes: 0,
                flush_failures: 0,
                write_failures: 0,
                checkpoints: 0,
                reads: 0,
                rots: 0,
            },
        }
    }

    /// What a read of this location returns: the newest write that was answered. While a write is
    /// in flight nobody can say.
    pub(crate) fn view(&self, loc: u8) -> &Content {
        match self.cache.iter().rfind(|write| write.loc == loc) {
            Some(write) if write.done || write.content == self.media[usize::from(loc)] => {
                &write.content
            }
            Some(_) => &Content::Garbage,
            None => &self.media[usize::from(loc)],
        }
    }

    /// Hashes what the outcomes of a crash depend on. Many states differ only in what the cores
    /// have noticed so far; their crashes lead to the same states and need to be tried once.
    pub(crate) fn hash_for_crash(&self, kills: bool, hasher: &mut impl Hasher) {
        (self.is_down(), &self.media, &self.spent).hash(hasher);
        let Ghost {
            next_id,
            may_be,
            units,
            failed,
            lsn_max,
            copy,
            rotten,
            flush_failed: _,
            broken: _,
        } = &self.ghost;
        (next_id, may_be, units, failed, lsn_max, copy, rotten).hash(hasher);
        for Write {
            loc,
            content,
            done,
            doomed,
            cover: _,
        } in &self.cache
        {
            (loc, content, kills.then_some((done, doomed))).hash(hasher);
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.cores.is_empty()
    }
}
