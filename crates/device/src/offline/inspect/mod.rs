//! What is on a device, in words and as a [`Tree`](super::Tree).
//!
//! Looking is not judging: damage is shown where it is met, and everything else is shown as well.
//! Whether all of it fits together is for [`verify`](super::verify) to say. The state shown is that
//! of the roots; what the rings hold behind them is listed, not replayed.

mod attributes;
mod block;
mod journal;
mod map;
mod records;

use flagstone_types::BLOCK_SIZE;

use super::layers::Layers;
use super::table::{TableItem, walk_catalogue};
use super::{Image, ReadBlocks, Tree, bytes_words};

pub use block::{BlockView, inspect_block};
pub use journal::JournalView;
pub use map::{MapView, PartOfStriped, inspect_map};
pub use records::record_words;

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceView {
    /// Both copies of the superblock: where, and in what state.
    pub superblocks: Vec<(u64, String)>,
    /// The device's id.
    pub id: String,
    /// Generation of the superblock.
    pub generation: u64,
    /// Blocks of the device, and of the image.
    pub blocks: (u64, u64),
    /// Blocks in each ring.
    pub ring_blocks: u32,
    /// When it was formatted, nanoseconds since 1970.
    pub created_ns: u64,
    /// Where the data area begins and ends.
    pub data: (u64, u64),
    /// Blocks that can be handed out.
    pub capacity_blocks: u64,
    /// The journals.
    pub journals: Vec<JournalView>,
}

/// Looks at a device. `verbose`: every group and record in the rings, and every segment.
pub fn inspect<R: ReadBlocks>(image: &Image<R>, verbose: bool) -> DeviceView {
    let superblock = &image.superblock;
    let geometry = &image.geometry;
    let copies = image.superblocks.iter();
    DeviceView {
        superblocks: copies
            .map(|place| (place.block.0, place.found.words()))
            .collect(),
        id: superblock.device_id.to_string(),
        generation: superblock.generation,
        blocks: (superblock.block_count, image.source.block_count()),
        ring_blocks: superblock.ring_blocks,
        created_ns: superblock.created_ns,
        data: (geometry.data_start.0, geometry.data_end.0),
        capacity_blocks: geometry.capacity_blocks(),
        journals: (0..geometry.journal_count)
            .map(|number| journal::inspect_journal(image, number, verbose))
            .collect(),
    }
}

impl DeviceView {
    /// For people.
    pub fn words(&self) -> String {
        let size = |blocks: u64| bytes_words(blocks.saturating_mul(BLOCK_SIZE));
        let mut lines = vec![
            format!(
                "device {}, format version 1, generation {}",
                self.id, self.generation
            ),
            format!(
                "  size {} ({} blocks), of which {} can be handed out",
                size(self.blocks.0),
                self.blocks.0,
                size(self.capacity_blocks)
            ),
            format!(
                "  {} journals with rings of {}; data area: blocks {} to {}",
                self.journals.len(),
                size(u64::from(self.ring_blocks)),
                self.data.0,
                self.data.1.saturating_sub(1)
            ),
        ];
        if self.blocks.0 != self.blocks.1 {
            lines.push(format!("  the image has {} blocks", self.blocks.1));
        }
        for (block, state) in &self.superblocks {
            lines.push(format!("  superblock at block {block}: {state}"));
        }
        for journal in &self.journals {
            lines.push(String::new());
            lines.extend(journal.lines());
        }
        lines.join("\n")
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        let copy = |(block, state): &(u64, String)| {
            Tree::Fields(vec![
                ("block", (*block).into()),
                ("state", state.as_str().into()),
            ])
        };
        Tree::Fields(vec![
            ("id", self.id.as_str().into()),
            ("format_version", 1_u64.into()),
            ("generation", self.generation.into()),
            ("block_count", self.blocks.0.into()),
            ("image_block_count", self.blocks.1.into()),
            ("capacity_blocks", self.capacity_blocks.into()),
            ("ring_blocks", self.ring_blocks.into()),
            ("created_ns", self.created_ns.into()),
            ("data_start", self.data.0.into()),
            ("data_end", self.data.1.into()),
            ("superblocks", Tree::list(self.superblocks.iter().map(copy))),
            (
                "journals",
                Tree::list(self.journals.iter().map(JournalView::tree)),
            ),
        ])
    }
}

/// The catalogue of a journal as its root describes it, and what could not be read of it.
pub(super) fn load_layers<R: ReadBlocks>(
    image: &Image<R>,
    root: &crate::format::root::Root,
) -> (Layers, Vec<String>) {
    let mut layers = Layers::default();
    let mut faults = Vec::new();
    walk_catalogue(image, &root.catalogue, |item| match item {
        TableItem::Record {
            number,
            block,
            record,
        } => layers.insert(number, record, block),
        TableItem::Fault(fault) => faults.push(fault.to_string()),
        TableItem::Index { .. } | TableItem::Page { .. } => {}
    });
    for (slot, problem) in layers.link() {
        faults.push(format!("{}: {problem}", layers.words(slot)));
    }
    (layers, faults)
}
