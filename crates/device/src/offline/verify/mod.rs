//! Checking a whole device: that everything it holds can be read, is what its checksum says, has
//! one use, and is accounted for.
//!
//! A device that was stopped in order is checked as it lies there. Otherwise what counts is what a
//! node would serve from it, so the journal is replayed in memory first ([`replay`]) and the result
//! is checked; the state before is checked too, but for its data, because blocks that the journal
//! freed may have been reused.
//!
//! Memory: two bits per block of one journal's segments, and the nodes that its ring changes.

mod journal;
mod maps;
pub mod problem;
mod replay;
mod space;

use flagstone_types::{BLOCK_SIZE, BlockNo};

use super::image::Found;
use super::layers::Layers;
use super::{Image, ReadBlocks, Tree};
use crate::format::catalogue::RecordKind;
use journal::JournalCheck;
pub use problem::{Findings, Kind, Problem, Severity};

/// What to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Leave out reading the data: only metadata is checked.
    pub fast: bool,
}

/// What was looked at: of a journal whose ring was replayed, what the replay leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Journals.
    pub journals: u64,
    /// Groups behind the roots.
    pub groups: u64,
    /// Atomic units in them that hold.
    pub units: u64,
    /// Units that were never acknowledged and whose data is not there.
    pub dropped_units: u64,
    /// Dvols.
    pub dvols: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Deleted layers that wait to be freed.
    pub hidden_layers: u64,
    /// Map nodes.
    pub nodes: u64,
    /// Mapped data blocks, each counted once however many layers share it.
    pub data_blocks: u64,
    /// The same for blocks of deltas.
    pub delta_blocks: u64,
    /// Runs of deallocated blocks that are remembered.
    pub tombstones: u64,
    /// Pages and index blocks of tables.
    pub table_blocks: u64,
    /// Segments that journals own.
    pub segments: u64,
    /// Data compared with its checksum.
    pub data_bytes_read: u64,
}

/// The result.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Problems and remarks.
    pub findings: Findings,
    /// What was looked at.
    pub counts: Counts,
}

impl Report {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.problem_count() == 0
    }

    /// The worst that was found.
    pub fn worst(&self) -> Option<Severity> {
        self.findings
            .problems
            .iter()
            .map(|problem| problem.severity)
            .max()
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        let c = &self.counts;
        let counts = [
            ("journals", c.journals),
            ("groups", c.groups),
            ("units", c.units),
            ("dropped_units", c.dropped_units),
            ("dvols", c.dvols),
            ("snapshots", c.snapshots),
            ("hidden_layers", c.hidden_layers),
            ("nodes", c.nodes),
            ("data_blocks", c.data_blocks),
            ("delta_blocks", c.delta_blocks),
            ("tombstones", c.tombstones),
            ("table_blocks", c.table_blocks),
            ("segments", c.segments),
            ("data_bytes_read", c.data_bytes_read),
        ];
        let counts = counts
            .into_iter()
            .map(|(name, count)| (name, Tree::Number(count)));
        Tree::Fields(vec![
            ("clean", self.is_clean().into()),
            (
                "worst",
                self.worst()
                    .map_or(Tree::None, |worst| worst.words().into()),
            ),
            ("problem_count", self.findings.problem_count().into()),
            (
                "problems",
                Tree::list(self.findings.problems.iter().map(Problem::tree)),
            ),
            (
                "notes",
                Tree::list(self.findings.notes.iter().map(|note| note.as_str().into())),
            ),
            ("counts", Tree::Fields(counts.collect())),
        ])
    }

    /// For people, without the line that sums it up.
    pub fn words(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for problem in &self.findings.problems {
            lines.push(problem.to_string());
            lines.push(format!("    what to do: {}", problem.advice()));
        }
        match self.findings.unlisted_count() {
            0 => {}
            more => lines.push(format!("and {more} more problems of the same kinds")),
        }
        lines.extend(
            self.findings
                .notes
                .iter()
                .map(|note| format!("note: {note}")),
        );
        lines.push(self.counts.words());
        lines.join("\n")
    }
}

impl Counts {
    fn count_layers(&mut self, layers: &Layers) {
        for (_, layer) in layers.iter() {
            match layer.record.kind {
                RecordKind::Dvol => self.dvols += 1,
                RecordKind::Layer if layer.is_hidden() => self.hidden_layers += 1,
                RecordKind::Layer => self.snapshots += 1,
            }
        }
    }

    /// For people.
    pub fn words(&self) -> String {
        format!(
            "checked: {} dvols, {} snapshots, {} deleted layers; {} data blocks, {} deltas, {} map \
             nodes and {} table blocks in {} segments; {} of data read; {} journal groups behind \
             the roots, {} units replayed, {} dropped",
            self.dvols,
            self.snapshots,
            self.hidden_layers,
            self.data_blocks,
            self.delta_blocks,
            self.nodes,
            self.table_blocks,
            self.segments,
            super::bytes_words(self.data_bytes_read),
            self.groups,
            self.units,
            self.dropped_units
        )
    }
}

/// Tells the caller how far the check has come.
pub(super) struct Progress<'p> {
    done_blocks: u64,
    total_blocks: u64,
    tell: &'p mut dyn FnMut(u64, u64),
}

/// Blocks between two calls of the caller's callback.
const PROGRESS_STEP_BLOCKS: u64 = 1024;

impl Progress<'_> {
    /// More blocks are to be looked at.
    fn expect(&mut self, blocks: u64) {
        self.total_blocks = self.total_blocks.saturating_add(blocks);
    }

    /// One more block was looked at.
    fn step(&mut self) {
        self.done_blocks += 1;
        if self.done_blocks.is_multiple_of(PROGRESS_STEP_BLOCKS) {
            (self.tell)(self.done_blocks, self.total_blocks.max(self.done_blocks));
        }
    }
}

/// Checks a device. `progress` is told from time to time how many blocks were looked at, and of how
/// many; there can be more as more journals come into sight.
pub fn verify<R: ReadBlocks>(
    source: R,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Report {
    let mut report = Report::default();
    let image = match Image::open(source) {
        Ok(image) => image,
        Err(what) => {
            report
                .findings
                .add(Severity::Loss, Kind::Device, &[BlockNo(0)], what);
            return report;
        }
    };
    check_superblocks(&image, &mut report.findings);
    let mut progress = Progress {
        done_blocks: 0,
        total_blocks: 0,
        tell: progress,
    };
    let mut device = journal::DeviceWide::default();
    for number in 0..image.geometry.journal_count {
        report.counts.journals += 1;
        JournalCheck {
            image: &image,
            number,
            options,
            findings: &mut report.findings,
            counts: &mut report.counts,
            progress: &mut progress,
            device: &mut device,
        }
        .run();
    }
    (progress.tell)(progress.done_blocks, progress.done_blocks);
    report
}

fn check_superblocks<R: ReadBlocks>(image: &Image<R>, findings: &mut Findings) {
    let expected = image.superblock.block_count;
    let found = image.source.block_count();
    if found < expected {
        let what = format!(
            "the superblock speaks of {expected} blocks ({}), but the image has only {found}: it \
             was cut off",
            super::bytes_words(expected.saturating_mul(BLOCK_SIZE))
        );
        findings.add(Severity::Loss, Kind::Device, &[BlockNo(found)], what);
    } else if found > expected {
        findings.note(format!(
            "the image is {} blocks longer than the device",
            found - expected
        ));
    }
    for (copy, place) in ["first", "second"].iter().zip(&image.superblocks) {
        match &place.found {
            Found::Valid(superblock) if *superblock == image.superblock => {}
            Found::Valid(superblock) => {
                let what = format!(
                    "the {copy} copy of the superblock ({}) is of generation {}, the other of {}: \
                     rewriting them was interrupted",
                    place.block, superblock.generation, image.superblock.generation
                );
                findings.add(Severity::Harmless, Kind::Superblock, &[place.block], what);
            }
            other => {
                let what = format!(
                    "the {copy} copy of the superblock ({}) is {}",
                    place.block,
                    other.words()
                );
                findings.add(Severity::Harmless, Kind::Superblock, &[place.block], what);
            }
        }
    }
}
