//! What a check finds wrong, in words.

use std::collections::BTreeMap;
use std::fmt;

use flagstone_types::BlockNo;

use crate::offline::Tree;

/// Problems of one kind that are listed; more are only counted.
const LISTED_PER_KIND_MAX: u64 = 50;

/// Blocks that a problem names, at most.
const BLOCKS_NAMED_MAX: usize = 16;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// A copy or a count is wrong; nothing is lost and nothing can be lost by it.
    Harmless,
    /// Space can't be used again. The data is safe.
    Leak,
    /// Data is lost, or may be overwritten.
    Loss,
}

impl Severity {
    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Severity::Harmless => "harmless",
            Severity::Leak => "leaked space",
            Severity::Loss => "data loss",
        }
    }
}

/// What kind of thing is wrong. Names stay the same, so that scripts can rely on them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Not a device of this format, or cut off.
    Device,
    /// A copy of the superblock.
    Superblock,
    /// A root slot.
    Root,
    /// A page or index block of a table.
    Table,
    /// A catalogue record, or the tree of layers.
    Catalogue,
    /// A segment's record or bitmap.
    Segment,
    /// A map node.
    Node,
    /// A block of data or of a delta.
    Data,
    /// A mapping or node that has no business being where it is.
    Birth,
    /// A block with two uses.
    DoubleUse,
    /// A block in use that its bitmap calls free.
    Unmarked,
    /// A block that its bitmap calls used and nothing refers to.
    Leak,
    /// A sum or counter.
    Count,
    /// The journal's chain or its records.
    Journal,
}

impl Kind {
    /// The name scripts see.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Superblock => "superblock",
            Kind::Root => "root",
            Kind::Table => "table",
            Kind::Catalogue => "catalogue",
            Kind::Segment => "segment",
            Kind::Node => "node",
            Kind::Data => "data",
            Kind::Birth => "birth",
            Kind::DoubleUse => "double-use",
            Kind::Unmarked => "unmarked",
            Kind::Leak => "leak",
            Kind::Count => "count",
            Kind::Journal => "journal",
        }
    }

    /// What to do about it.
    fn advice(self) -> &'static str {
        match self {
            Kind::Device => "check that this is the right file or device, and that it is complete",
            Kind::Superblock => {
                "start a node on it: that rewrites it from the other copy; if the log says that it can't, copy \
                 the volumes to another device"
            }
            Kind::Root => "don't start a node on it before the device has been copied away",
            Kind::Table | Kind::Node => "copy what can be read to another device",
            Kind::Data => {
                "write the blocks anew, from a replica or a backup; reads of them fail until then"
            }
            Kind::Segment | Kind::DoubleUse | Kind::Unmarked => {
                "don't start a node on it: new data may overwrite old; copy it away offline"
            }
            Kind::Leak => "nothing urgent; copying the dvols to a new device gives the space back",
            Kind::Catalogue | Kind::Birth | Kind::Count => {
                "please report this: it looks like a bug of Flagstone and not like damage"
            }
            Kind::Journal => "don't start a node on it before the device has been copied away",
        }
    }
}

/// Something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing.
    pub kind: Kind,
    /// The blocks it is about, the first few if there are many.
    pub blocks: Vec<BlockNo>,
    /// What was expected and found, in words.
    pub what: String,
}

impl Problem {
    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match (self.severity, self.kind) {
            (Severity::Harmless, Kind::Root | Kind::Journal) => "nothing; the device can be used",
            (_, kind) => kind.advice(),
        }
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        Tree::Fields(vec![
            ("severity", self.severity.words().into()),
            ("kind", self.kind.name().into()),
            (
                "blocks",
                Tree::list(self.blocks.iter().map(|block| Tree::Number(block.0))),
            ),
            ("what", self.what.as_str().into()),
            ("advice", self.advice().into()),
        ])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (severity, kind) = (self.severity.words(), self.kind.name());
        write!(f, "{severity}: {kind}: {}", self.what)
    }
}

/// Collects problems and remarks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// What is wrong, in the order it was found.
    pub problems: Vec<Problem>,
    /// What is worth knowing and not wrong.
    pub notes: Vec<String>,
    counts: BTreeMap<Kind, u64>,
}

impl Findings {
    /// Notes a problem.
    pub fn add(&mut self, severity: Severity, kind: Kind, blocks: &[BlockNo], what: String) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= LISTED_PER_KIND_MAX {
            let blocks = blocks.iter().copied().take(BLOCKS_NAMED_MAX).collect();
            self.problems.push(Problem {
                severity,
                kind,
                blocks,
                what,
            });
        }
    }

    /// Notes something that is not wrong.
    pub fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    /// Problems, listed or not.
    pub fn problem_count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Problems of a kind, listed or not.
    pub fn count_of(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Problems that are not listed because there are too many of their kind.
    pub fn unlisted_count(&self) -> u64 {
        self.problem_count() - self.problems.len() as u64
    }
}
