//! "What is block N?": its place, who refers to it, and what its bytes look like.

use flagstone_types::{BlockNo, SegmentNo};

use super::load_layers;
use super::map::entry_words;
use super::records::record_words;
use crate::format::geometry::Geometry;
use crate::format::group::decode_header;
use crate::format::root::Root;
use crate::format::segment::{NO_BITMAP, SegmentRecord};
use crate::offline::layers::Layers;
use crate::offline::ring::{Ring, read_units};
use crate::offline::table::{TableItem, walk_catalogue, walk_segments};
use crate::offline::walk::{Finder, Next, Nodes, Step, walk};
use crate::offline::{Image, ReadBlocks, Tree, read_block};
use crate::space::Bitmap;

/// What is known of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// Which.
    pub block: BlockNo,
    /// What the layout says of the place.
    pub place: String,
    /// What refers to it, or what else is known, one sentence each.
    pub references: Vec<String>,
    /// What its bytes look like.
    pub content: String,
}

impl BlockView {
    /// For people.
    pub fn words(&self) -> String {
        let mut lines = vec![format!("{}: {}", self.block, self.place)];
        lines.extend(
            self.references
                .iter()
                .map(|reference| format!("  {reference}")),
        );
        lines.push(format!("  its bytes: {}", self.content));
        lines.join("\n")
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        Tree::Fields(vec![
            ("block", self.block.0.into()),
            ("place", self.place.as_str().into()),
            (
                "references",
                Tree::list(self.references.iter().map(|r| r.as_str().into())),
            ),
            ("content", self.content.as_str().into()),
        ])
    }
}

/// Looks at a block, and at all maps for references to it.
pub fn inspect_block<R: ReadBlocks>(image: &Image<R>, block: BlockNo) -> BlockView {
    let mut view = BlockView {
        block,
        place: place_words(&image.geometry, block),
        references: Vec::new(),
        content: content_words(image, block),
    };
    for number in 0..image.geometry.journal_count {
        let roots = image.roots(number);
        for (slot, place) in roots.slots.iter().enumerate() {
            if place.block == block {
                let current = roots.current_slot() == Some(slot);
                let which = if current {
                    "the current root"
                } else {
                    "not the current root"
                };
                view.references
                    .push(format!("{}; {which}", place.found.words()));
            }
        }
        if let Some(root) = roots.current() {
            view.look(image, number, root);
        }
    }
    if image.geometry.is_data(block) && view.references.is_empty() {
        view.references.push("nothing refers to it".to_owned());
    }
    view
}

impl BlockView {
    fn look<R: ReadBlocks>(&mut self, image: &Image<R>, number: u16, root: &Root) {
        self.look_in_ring(image, number, root);
        if !image.geometry.is_data(self.block) {
            return;
        }
        let block = self.block;
        let mut found = Vec::new();
        walk_catalogue(image, &root.catalogue, |item| {
            found.extend(table_words(&item, block, "catalogue"));
        });
        walk_segments(image, &root.segments, |item| {
            found.extend(table_words(&item, block, "segment table"));
            if let TableItem::Record {
                number: segment,
                record,
                ..
            } = item
                && SegmentNo(segment) == block.segment()
                && image.geometry.is_usable_segment(SegmentNo(segment))
            {
                let words = bitmap_words(image, block, &record);
                found.push(format!("journal {number} owns its segment; {words}"));
            }
        });
        self.references.extend(found);
        let (layers, _) = load_layers(image, root);
        self.look_in_maps(image, &layers);
    }

    fn look_in_ring<R: ReadBlocks>(&mut self, image: &Image<R>, number: u16, root: &Root) {
        let ring = Ring::scan(image, root);
        for place in &ring.groups {
            let header = &place.header;
            let end = place.block.0 + u64::from(header.block_count);
            if (place.block.0..end).contains(&self.block.0) {
                self.references.push(format!(
                    "part of group {} of journal {number}'s chain{}",
                    header.seq,
                    if header.pad { ", a pad" } else { "" }
                ));
            }
            let Ok(units) = read_units(image, number, place) else {
                continue;
            };
            for record in units.iter().flatten() {
                if record.new_blocks().any(|(block, _)| block == self.block) {
                    self.references.push(format!(
                        "named by group {} of journal {number}: {}",
                        header.seq,
                        record_words(record)
                    ));
                }
            }
        }
    }

    fn look_in_maps<R: ReadBlocks>(&mut self, image: &Image<R>, layers: &Layers) {
        let nodes = Nodes::new(image);
        for (slot, _) in layers.iter() {
            let mut found = Vec::new();
            walk(&nodes, layers, slot, &mut |step| {
                match step {
                    Step::Node {
                        ptr,
                        node,
                        owned: true,
                    } if ptr.block == self.block => {
                        found.push((node.first_key(), Some(ptr.level), String::new()));
                    }
                    Step::Leaf {
                        entry, from: None, ..
                    } if entry.block == self.block => {
                        found.push((entry.key, None, entry_words(&entry)));
                    }
                    _ => {}
                }
                Next::On
            });
            for (key, level, words) in found {
                let whose = layers.words(slot);
                self.references.push(match level {
                    Some(level) => format!("a map node of level {level} of {whose}"),
                    None => format!("mapped by {whose}: {words}"),
                });
                for other in layers
                    .family(slot)
                    .into_iter()
                    .filter(|&other| other != slot)
                {
                    let mut finder = Finder::new(&nodes, layers, other);
                    let block = match level {
                        Some(level) => finder.node(level, key).map(|n| n.map(|(p, _)| p.block)),
                        None => finder
                            .entry(key)
                            .map(|entry| entry.map(|entry| entry.block)),
                    };
                    if block.ok().flatten() == Some(self.block) {
                        self.references
                            .push(format!("shared by {}", layers.words(other)));
                    }
                }
            }
        }
    }
}

fn table_words<T>(item: &TableItem<T>, wanted: BlockNo, table: &str) -> Option<String> {
    match item {
        TableItem::Index { number, block } if *block == wanted => {
            Some(format!("index block {number} of the {table}"))
        }
        TableItem::Page { number, block } if *block == wanted => {
            Some(format!("page {number} of the {table}"))
        }
        TableItem::Fault(fault) if fault.block == wanted => {
            Some(format!("the {table} refers to it, but {}", fault.what))
        }
        _ => None,
    }
}

fn bitmap_words<R: ReadBlocks>(image: &Image<R>, block: BlockNo, record: &SegmentRecord) -> String {
    let slots = image.geometry.bitmap_slots(block.segment());
    if let Some(slot) = slots.iter().position(|&slot| slot == block) {
        let is_current = usize::from(record.bitmap_slot) == slot;
        return format!(
            "it is {}",
            if is_current {
                "the bitmap"
            } else {
                "not the bitmap now"
            }
        );
    }
    if record.bitmap_slot == NO_BITMAP {
        return "there is no bitmap yet, so it is free".to_owned();
    }
    match image.read(slots[usize::from(record.bitmap_slot & 1)]) {
        Err(fault) => format!("the bitmap can't be read: {fault}"),
        Ok(bytes) => {
            let is_used = Bitmap::from_bytes(&bytes[..]).get(block.index_in_segment());
            format!("its bit says {}", if is_used { "used" } else { "free" })
        }
    }
}

/// What the layout alone says.
fn place_words(geometry: &Geometry, block: BlockNo) -> String {
    if block.0 == 0 || block == geometry.data_end {
        return "a copy of the superblock".to_owned();
    }
    if block > geometry.data_end {
        return "behind the end of the device".to_owned();
    }
    if block < geometry.data_start {
        let per_journal = 2 + u64::from(geometry.ring_blocks);
        let (journal, at) = ((block.0 - 1) / per_journal, (block.0 - 1) % per_journal);
        return match at {
            0 | 1 => format!("root slot {at} of journal {journal}"),
            _ => format!("ring index {} of journal {journal}", at - 2),
        };
    }
    let segment = block.segment();
    let index = block.index_in_segment();
    if !geometry.is_usable_segment(segment) {
        return format!("in segment {}, which is too small to be used", segment.0);
    }
    match geometry
        .bitmap_slots(segment)
        .iter()
        .position(|&slot| slot == block)
    {
        Some(slot) => format!("bitmap slot {slot} of segment {}", segment.0),
        None => format!("index {index} of segment {}", segment.0),
    }
}

/// What the bytes alone say.
fn content_words<R: ReadBlocks>(image: &Image<R>, block: BlockNo) -> String {
    let bytes = match read_block(&image.source, block) {
        Ok(bytes) => bytes,
        Err(fault) => return fault.what,
    };
    if bytes.iter().all(|&byte| byte == 0) {
        return "all zero".to_owned();
    }
    if let Ok(header) = decode_header(&bytes[..]) {
        return format!(
            "the start of journal group {} (incarnation {})",
            header.seq, header.incarnation
        );
    }
    let looks: [(&[u8], &str); 5] = [
        (b"FLAGSTON", "a superblock"),
        (b"FSROOT01", "a journal's root"),
        (b"FSTI", "a table's index block"),
        (b"FSTP", "a table's page"),
        (b"FSND", "a map node"),
    ];
    match looks.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        Some((_, what)) => format!("look like {what}"),
        None => {
            let start: Vec<String> = bytes[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("begin with {}", start.join(" "))
        }
    }
}
