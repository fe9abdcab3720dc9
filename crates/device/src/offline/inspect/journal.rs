//! One journal: roots, ring, catalogue, segments.

use flagstone_types::{BLOCK_SIZE, SegmentNo};

use super::attributes::attribute_words;
use super::load_layers;
use super::records::record_words;
use crate::format::catalogue::{FLAG_READ_ONLY, RecordKind};
use crate::format::root::Root;
use crate::format::segment::NO_BITMAP;
use crate::offline::layers::Layers;
use crate::offline::ring::{GroupPlace, Ring, read_units};
use crate::offline::table::{TableItem, walk_segments};
use crate::offline::{Image, ReadBlocks, Tree, bytes_words};

/// A journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalView {
    /// Its number.
    pub number: u16,
    /// Both root slots.
    pub roots: Vec<RootView>,
    /// Groups behind the root that counts.
    pub group_count: u64,
    /// Everything up to this group is durable with its data.
    pub watermark: u64,
    /// The same groups with their records, if asked for.
    pub groups: Vec<GroupView>,
    /// Dvols and layers, parents before children.
    pub layers: Vec<LayerView>,
    /// Segments the journal owns.
    pub segments: Vec<SegmentView>,
    /// Segments are listed in words, not just summed up.
    pub with_segments: bool,
    /// What could not be read.
    pub faults: Vec<String>,
}

/// A root slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootView {
    /// Where it is.
    pub block: u64,
    /// Valid, or what else.
    pub state: String,
    /// It is the one that counts.
    pub is_current: bool,
    /// What it says.
    pub root: Option<Root>,
}

/// A group in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupView {
    /// Where it is and what it says of itself.
    pub place: GroupPlace,
    /// Its units, each a list of records in words.
    pub units: Vec<Vec<String>>,
}

/// A dvol or layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerView {
    /// Where it is in the catalogue.
    pub slot: u32,
    /// How deep it stands in its tree.
    pub depth: usize,
    /// `dvol`, `snapshot`, or `deleted`.
    pub kind: &'static str,
    /// Its record.
    pub record: crate::format::catalogue::CatalogueRecord,
}

/// A segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// Its number.
    pub number: u32,
    /// Blocks in use.
    pub used_blocks: u32,
    /// Blocks that can be handed out in all.
    pub capacity_blocks: u64,
    /// Where its bitmap is; `None`: it has none yet.
    pub bitmap_block: Option<u64>,
}

/// Looks at a journal.
pub(super) fn inspect_journal<R: ReadBlocks>(
    image: &Image<R>,
    number: u16,
    verbose: bool,
) -> JournalView {
    let roots = image.roots(number);
    let current = roots.current_slot();
    let views = roots
        .slots
        .iter()
        .enumerate()
        .map(|(slot, place)| RootView {
            block: place.block.0,
            state: place.found.words(),
            is_current: current == Some(slot),
            root: place.found.mended().cloned(),
        });
    let mut view = JournalView {
        number,
        roots: views.collect(),
        group_count: 0,
        watermark: 0,
        groups: Vec::new(),
        layers: Vec::new(),
        segments: Vec::new(),
        with_segments: verbose,
        faults: Vec::new(),
    };
    let Some(root) = roots.current() else {
        return view;
    };
    let ring = Ring::scan(image, root);
    view.group_count = ring.groups.len() as u64;
    view.watermark = ring.watermark;
    view.faults.extend(ring.missing(root.incarnation));
    view.faults
        .extend(ring.unreadable.iter().map(ToString::to_string));
    if verbose {
        for place in &ring.groups {
            let units = read_units(image, number, place);
            match units {
                Ok(units) => {
                    let words = |unit: Vec<_>| unit.iter().map(record_words).collect();
                    let units = units.into_iter().map(words).collect();
                    view.groups.push(GroupView {
                        place: *place,
                        units,
                    });
                }
                Err(fault) => view.faults.push(fault.to_string()),
            }
        }
    }
    let (layers, faults) = load_layers(image, root);
    view.faults.extend(faults);
    view.layers = layer_views(&layers);
    load_segments(image, root, &mut view);
    view
}

/// Layers as a tree, each followed by what stands on it.
fn layer_views(layers: &Layers) -> Vec<LayerView> {
    let roots = layers
        .iter()
        .filter(|(_, layer)| layer.record.parent.is_none());
    let mut open: Vec<(u32, usize)> = roots.map(|(slot, _)| (slot, 0)).collect();
    open.reverse();
    let mut views = Vec::new();
    while let Some((slot, depth)) = open.pop() {
        let Some(layer) = layers.get(slot) else {
            continue;
        };
        let kind = match layer.record.kind {
            RecordKind::Dvol => "dvol",
            RecordKind::Layer if layer.is_hidden() => "deleted",
            RecordKind::Layer => "snapshot",
        };
        views.push(LayerView {
            slot,
            depth,
            kind,
            record: layer.record.clone(),
        });
        open.extend(layer.children.iter().rev().map(|&child| (child, depth + 1)));
    }
    views
}

fn load_segments<R: ReadBlocks>(image: &Image<R>, root: &Root, view: &mut JournalView) {
    walk_segments(image, &root.segments, |item| match item {
        TableItem::Record {
            number,
            block,
            record,
        } => {
            let segment = SegmentNo(number);
            if !image.geometry.is_usable_segment(segment) {
                view.faults
                    .push(format!("{block}: segment {number} can't be used"));
                return;
            }
            let slots = image.geometry.bitmap_slots(segment);
            let is_there = record.bitmap_slot != NO_BITMAP;
            view.segments.push(SegmentView {
                number,
                used_blocks: record.used_blocks,
                capacity_blocks: image.geometry.segment_capacity_blocks(segment),
                bitmap_block: is_there.then(|| slots[usize::from(record.bitmap_slot & 1)].0),
            });
        }
        TableItem::Fault(fault) => view.faults.push(fault.to_string()),
        TableItem::Index { .. } | TableItem::Page { .. } => {}
    });
}

impl JournalView {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("journal {}", self.number)];
        for root in &self.roots {
            lines.push(format!("  {}", root.words()));
        }
        lines.push(format!(
            "  ring: {} groups behind the root, durable up to group {}",
            self.group_count, self.watermark
        ));
        for group in &self.groups {
            lines.extend(group.lines());
        }
        lines.extend(
            self.layers
                .iter()
                .map(|layer| format!("  {}", layer.words())),
        );
        let used: u64 = self.segments.iter().map(|s| u64::from(s.used_blocks)).sum();
        let capacity: u64 = self.segments.iter().map(|s| s.capacity_blocks).sum();
        lines.push(format!(
            "  {} segments, {} of {} in use",
            self.segments.len(),
            bytes_words(used * BLOCK_SIZE),
            bytes_words(capacity.saturating_mul(BLOCK_SIZE))
        ));
        if self.with_segments {
            lines.extend(
                self.segments
                    .iter()
                    .map(|segment| format!("    {}", segment.words())),
            );
        }
        lines.extend(
            self.faults
                .iter()
                .map(|fault| format!("  can't be read: {fault}")),
        );
        lines
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        Tree::Fields(vec![
            ("journal", self.number.into()),
            ("roots", Tree::list(self.roots.iter().map(RootView::tree))),
            ("group_count", self.group_count.into()),
            ("watermark", self.watermark.into()),
            (
                "groups",
                Tree::list(self.groups.iter().map(GroupView::tree)),
            ),
            (
                "layers",
                Tree::list(self.layers.iter().map(LayerView::tree)),
            ),
            (
                "segments",
                Tree::list(self.segments.iter().map(SegmentView::tree)),
            ),
            (
                "faults",
                Tree::list(self.faults.iter().map(|fault| fault.as_str().into())),
            ),
        ])
    }
}

impl RootView {
    fn words(&self) -> String {
        let mut words = format!("root at block {}: {}", self.block, self.state);
        if let Some(root) = &self.root {
            words += &format!(
                "; number {}, incarnation {}, next group {} at ring index {}, next layer {}{}",
                root.root_seq,
                root.incarnation,
                root.next_seq,
                root.ring_index,
                root.next_layer,
                if root.clean { ", stopped in order" } else { "" }
            );
        }
        if self.is_current {
            words += " (current)";
        }
        words
    }

    fn tree(&self) -> Tree {
        let mut fields = vec![
            ("block", self.block.into()),
            ("state", self.state.as_str().into()),
            ("current", self.is_current.into()),
        ];
        if let Some(root) = &self.root {
            fields.extend([
                ("root_seq", root.root_seq.into()),
                ("incarnation", root.incarnation.into()),
                ("next_seq", root.next_seq.into()),
                ("ring_index", root.ring_index.into()),
                ("prev_hash", Tree::text(format!("{:?}", root.prev_hash))),
                ("next_layer", root.next_layer.into()),
                ("clean", root.clean.into()),
            ]);
        }
        Tree::Fields(fields)
    }
}

impl GroupView {
    fn lines(&self) -> Vec<String> {
        let header = &self.place.header;
        let mut lines = vec![format!(
            "    group {} at {}: {} blocks, watermark {}, {}",
            header.seq,
            self.place.block,
            header.block_count,
            header.watermark,
            match (header.pad, self.units.len()) {
                (true, _) => "a pad up to the ring's end".to_owned(),
                (false, units) => format!("{units} units"),
            }
        )];
        for (number, unit) in self.units.iter().enumerate() {
            for (at, record) in unit.iter().enumerate() {
                let lead = if at == 0 {
                    format!("{number}:")
                } else {
                    "  +".to_owned()
                };
                lines.push(format!("      {lead} {record}"));
            }
        }
        lines
    }

    fn tree(&self) -> Tree {
        let header = &self.place.header;
        let unit =
            |unit: &Vec<String>| Tree::list(unit.iter().map(|record| record.as_str().into()));
        Tree::Fields(vec![
            ("seq", header.seq.into()),
            ("block", self.place.block.0.into()),
            ("ring_index", self.place.ring_index.into()),
            ("block_count", header.block_count.into()),
            ("incarnation", header.incarnation.into()),
            ("watermark", header.watermark.into()),
            ("pad", header.pad.into()),
            ("hash", Tree::text(format!("{:?}", self.place.hash))),
            ("units", Tree::list(self.units.iter().map(unit))),
        ])
    }
}

impl LayerView {
    fn words(&self) -> String {
        let record = &self.record;
        let indent = "  ".repeat(self.depth);
        let name = match self.kind {
            "deleted" => String::new(),
            _ => format!(" '{}'", record.name),
        };
        let mut words = format!(
            "{indent}{}{name}: slot {}, layer {}, {} mapped, LSN {}",
            self.kind,
            self.slot,
            record.layer.0,
            bytes_words(record.mapped_blocks.saturating_mul(BLOCK_SIZE)),
            record.lsn
        );
        if self.kind == "dvol" {
            words += &format!(
                ", size {}, id {}",
                bytes_words(record.size_bytes),
                record.id
            );
            if record.reserved_blocks > 0 {
                let reserved = record.reserved_blocks.saturating_mul(BLOCK_SIZE);
                words += &format!(", {} reserved", bytes_words(reserved));
            }
            if record.flags & FLAG_READ_ONLY != 0 {
                words += ", read-only";
            }
            words += &attribute_words(&record.attributes);
        }
        if record.reap_cursor.0 > 0 {
            let at = record.reap_cursor.vblock().0;
            words += &format!(", being freed, done up to virtual block {at}");
        }
        words
    }

    fn tree(&self) -> Tree {
        let record = &self.record;
        let mut fields = vec![
            ("slot", self.slot.into()),
            ("kind", self.kind.into()),
            ("name", record.name.as_str().into()),
            ("id", Tree::text(record.id)),
            ("parent", Tree::option(record.parent.map(|slot| slot.0))),
            ("layer", record.layer.0.into()),
            ("size_bytes", record.size_bytes.into()),
            ("created_ns", record.created_ns.into()),
            ("lsn", record.lsn.0.into()),
            ("floor", record.floor.0.into()),
            ("epoch", record.epoch.0.into()),
            ("lsn_incarnation", record.lsn_incarnation.into()),
            ("read_only", (record.flags & FLAG_READ_ONLY != 0).into()),
            ("attribute_kind", u64::from(record.attributes[0]).into()),
            ("mapped_blocks", record.mapped_blocks.into()),
            ("inherited_blocks", record.inherited_blocks.into()),
            ("reserved_blocks", record.reserved_blocks.into()),
            ("reap_cursor", record.reap_cursor.0.into()),
        ];
        if let Some(root) = &record.map {
            fields.extend([
                ("map_block", root.ptr.block.0.into()),
                ("map_level", u64::from(root.ptr.level).into()),
                ("map_birth", root.ptr.birth.0.into()),
            ]);
        }
        Tree::Fields(fields)
    }
}

impl SegmentView {
    fn words(&self) -> String {
        let bitmap = match self.bitmap_block {
            Some(block) => format!("bitmap at block {block}"),
            None => "no bitmap yet".to_owned(),
        };
        format!(
            "segment {}: {} of {} blocks in use, {bitmap}",
            self.number, self.used_blocks, self.capacity_blocks
        )
    }

    fn tree(&self) -> Tree {
        Tree::Fields(vec![
            ("segment", self.number.into()),
            ("used_blocks", self.used_blocks.into()),
            ("capacity_blocks", self.capacity_blocks.into()),
            ("bitmap_block", Tree::option(self.bitmap_block)),
        ])
    }
}
