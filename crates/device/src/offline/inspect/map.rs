//! The nodes of one map; of a striped volume those of all its parts.

use std::ops::Range;

use flagstone_types::{BLOCK_SIZE, DvolId};

use super::attributes::{StripedParts, part_of_striped, striped};
use super::load_layers;
use crate::format::catalogue::RecordKind;
use crate::offline::layers::{LayerSlot, Layers};
use crate::offline::walk::Nodes;
use crate::offline::{Image, ReadBlocks, Tree, bytes_words};
use crate::v2p::{Entry, EntryKind, NodePtr};

/// Lines of a map that are shown, at most: maps have millions of entries.
const LINES_MAX: usize = 100_000;

/// A map, node by node, each followed by what is below it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapView {
    /// Whose it is.
    pub title: String,
    /// Nodes and entries in order: depth, and what it is.
    pub lines: Vec<(usize, Line)>,
    /// There is more than is shown.
    pub is_cut: bool,
    /// Of one part of a striped volume: where its bytes are in the volume.
    pub part: Option<PartOfStriped>,
    /// Of a striped volume, whose first part this is: the maps of the others, in order.
    pub others: Vec<MapView>,
    /// Lines that are shown, at most.
    lines_max: usize,
}

/// Which part of a striped volume a dvol is. What is said of its blocks is where they are in the part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartOfStriped {
    /// Its number; the first is 0.
    pub number: u8,
    /// How many there are.
    pub parts: u8,
    /// Bytes in a row that are in the same one.
    pub unit_bytes: u64,
}

impl PartOfStriped {
    /// Where a block of the part is in the volume, in bytes.
    fn volume_offset(&self, vblock: u64) -> u64 {
        let offset = vblock.saturating_mul(BLOCK_SIZE);
        let unit = (offset / self.unit_bytes)
            .saturating_mul(self.parts.into())
            .saturating_add(self.number.into());
        unit.saturating_mul(self.unit_bytes)
            .saturating_add(offset % self.unit_bytes)
    }
}

/// A node, an entry, or what can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// A node: where it lies, its entries, and the key range it covers.
    Node(NodePtr, usize, (u64, u64)),
    /// A leaf's entry.
    Entry(Entry),
    /// Damage.
    Fault(String),
}

/// Shows the map of a dvol, or of a snapshot (`dvol@snapshot`), on any journal; of a striped volume those of all its parts. `None`: there is
/// none of that name.
pub fn inspect_map<R: ReadBlocks>(image: &Image<R>, name: &str) -> Option<MapView> {
    let (number, layers, slot) = find(image, |layers| slot_named(layers, name))?;
    let record = &layers.get(slot)?.record;
    let Some(striped) = striped(&record.attributes) else {
        return Some(MapView::of(image, (number, &layers, slot), None, LINES_MAX));
    };
    // So that a large one doesn't hide those behind it.
    let lines_max = LINES_MAX / usize::from(striped.parts);
    let part = |number| part_numbered(striped, number);
    let mut view = MapView::of(image, (number, &layers, slot), Some(part(0)), lines_max);
    // Snapshots of one instant have the same time in all parts.
    let taken_ns = (record.kind == RecordKind::Layer).then_some(record.created_ns);
    let head = record.id;
    for other in 1..striped.parts {
        let found = find(image, |layers| part_slot(layers, head, other, taken_ns));
        view.others.push(match found {
            Some((number, layers, slot)) => {
                let found = (number, &layers, slot);
                MapView::of(image, found, Some(part(other)), lines_max)
            }
            None => MapView {
                title: "what no journal has".to_owned(),
                lines: vec![(0, Line::Fault("it isn't there".to_owned()))],
                part: Some(part(other)),
                ..MapView::default()
            },
        });
    }
    Some(view)
}

fn part_numbered(striped: StripedParts, number: u8) -> PartOfStriped {
    PartOfStriped {
        number,
        parts: striped.parts,
        unit_bytes: striped.unit_bytes,
    }
}

/// The first journal in whose catalogue something is, with that.
fn find<R: ReadBlocks>(
    image: &Image<R>,
    wanted: impl Fn(&Layers) -> Option<u32>,
) -> Option<(u16, Layers, u32)> {
    (0..image.geometry.journal_count).find_map(|number| {
        let roots = image.roots(number);
        let (layers, _) = load_layers(image, roots.current()?);
        let slot = wanted(&layers)?;
        Some((number, layers, slot))
    })
}

/// The slot of `dvol` or `dvol@snapshot`.
fn slot_named(layers: &Layers, name: &str) -> Option<u32> {
    let Some((dvol, snapshot)) = name.split_once('@') else {
        return layers.dvol_named(name);
    };
    let dvol = layers.get(layers.dvol_named(dvol)?)?;
    layers.snapshot_named(dvol.record.id, snapshot)
}

/// The slot of another part of a striped volume, or of its snapshot of that time.
fn part_slot(layers: &Layers, head: DvolId, number: u8, taken_ns: Option<u64>) -> Option<u32> {
    let is_part = |layer: &LayerSlot| {
        layer.record.kind == RecordKind::Dvol
            && part_of_striped(&layer.record.attributes) == Some((head.0, number))
    };
    let (slot, dvol) = layers.iter().find(|(_, layer)| is_part(layer))?;
    let Some(taken_ns) = taken_ns else {
        return Some(slot);
    };
    let id = dvol.record.id;
    let is_it = |layer: &LayerSlot| {
        layer.record.kind == RecordKind::Layer
            && !layer.is_hidden()
            && layer.record.id == id
            && layer.record.created_ns == taken_ns
    };
    let found = layers.iter().find(|(_, layer)| is_it(layer));
    found.map(|(slot, _)| slot)
}

impl MapView {
    fn of<R: ReadBlocks>(
        image: &Image<R>,
        (number, layers, slot): (u16, &Layers, u32),
        part: Option<PartOfStriped>,
        lines_max: usize,
    ) -> MapView {
        let mut view = MapView {
            title: format!("{} of journal {number}", layers.words(slot)),
            part,
            lines_max,
            ..MapView::default()
        };
        let nodes = Nodes::new(image);
        if let Some(root) = layers.get(slot).and_then(|layer| layer.record.map) {
            view.node(&nodes, &root.ptr, 0);
        }
        view
    }

    fn node<R: ReadBlocks>(&mut self, nodes: &Nodes<'_, R>, ptr: &NodePtr, depth: usize) {
        if self.is_full() {
            return;
        }
        let node = match nodes.read(ptr) {
            Ok(node) => node,
            Err(fault) => return self.lines.push((depth, Line::Fault(fault.to_string()))),
        };
        let entries: Vec<Entry> = node.entries().collect();
        let range = (node.first_key().vblock().0, node.end_key().vblock().0);
        self.lines
            .push((depth, Line::Node(*ptr, entries.len(), range)));
        for entry in &entries {
            match node.child_ptr(entry) {
                Some(child) => self.node(nodes, &child, depth + 1),
                None if self.is_full() => return,
                None => self.lines.push((depth + 1, Line::Entry(*entry))),
            }
        }
    }

    fn is_full(&mut self) -> bool {
        self.is_cut |= self.lines.len() >= self.lines_max;
        self.is_cut
    }

    /// For people.
    pub fn words(&self) -> String {
        let mut lines = Vec::new();
        if let Some(part) = self.part.filter(|_| !self.others.is_empty()) {
            lines.push(format!(
                "striped over {} parts in units of {}: their maps follow, each with the offsets that its blocks have in the volume",
                part.parts,
                bytes_words(part.unit_bytes)
            ));
        }
        self.add_words(&mut lines);
        for other in &self.others {
            lines.push(String::new());
            other.add_words(&mut lines);
        }
        lines.join("\n")
    }

    fn add_words(&self, lines: &mut Vec<String>) {
        let which = self.part.map_or(String::new(), |part| {
            format!("part {} of {}, ", part.number, part.parts)
        });
        lines.push(format!("map of {which}{}", self.title));
        if self.lines.is_empty() {
            lines.push("  empty".to_owned());
        }
        for (depth, line) in &self.lines {
            let at = self.offset_of(line);
            let at = at.map_or(String::new(), |at| format!(", at {at} of the volume"));
            lines.push(format!("  {}{}{at}", "  ".repeat(*depth), line.words()));
        }
        if self.is_cut {
            lines.push(format!("  .. cut off after {} lines", self.lines_max));
        }
    }

    /// Where what an entry says begins in the striped volume, in bytes.
    fn offset_of(&self, line: &Line) -> Option<u64> {
        match (self.part, line) {
            (Some(part), Line::Entry(entry)) => Some(part.volume_offset(entry.key.vblock().0)),
            _ => None,
        }
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        let line = |(depth, line): &(usize, Line)| {
            let mut fields = vec![("depth", (*depth).into())];
            fields.extend(line.fields());
            if let Some(at) = self.offset_of(line) {
                fields.push(("volume_offset_bytes", at.into()));
            }
            Tree::Fields(fields)
        };
        let mut fields = vec![
            ("of", self.title.as_str().into()),
            ("lines", Tree::list(self.lines.iter().map(line))),
            ("cut", self.is_cut.into()),
        ];
        if let Some(part) = self.part {
            fields.extend([
                ("part", u64::from(part.number).into()),
                ("parts", u64::from(part.parts).into()),
                ("unit_bytes", part.unit_bytes.into()),
            ]);
        }
        if !self.others.is_empty() {
            let others = self.others.iter().map(MapView::tree);
            fields.push(("other_parts", Tree::list(others)));
        }
        Tree::Fields(fields)
    }
}

impl Line {
    fn words(&self) -> String {
        match self {
            Line::Node(ptr, entries, (first, end)) => format!(
                "node at {}: level {}, layer {}, {entries} entries, virtual blocks {first} to {}",
                ptr.block,
                ptr.level,
                ptr.birth.0,
                end.saturating_sub(1)
            ),
            Line::Entry(entry) => entry_words(entry),
            Line::Fault(fault) => format!("can't be read: {fault}"),
        }
    }

    fn fields(&self) -> Vec<(&'static str, Tree)> {
        match self {
            Line::Node(ptr, entries, (first, end)) => vec![
                ("node", ptr.block.0.into()),
                ("level", u64::from(ptr.level).into()),
                ("layer", ptr.birth.0.into()),
                ("checksum", Tree::text(format!("{:?}", ptr.checksum))),
                ("entries", (*entries).into()),
                ("first_vblock", (*first).into()),
                ("end_vblock", (*end).into()),
            ],
            Line::Entry(entry) => vec![
                ("entry", kind_name(entry.kind).into()),
                ("vblock", entry.key.vblock().0.into()),
                ("block", entry.block.0.into()),
                ("checksum", Tree::text(format!("{:?}", entry.checksum))),
                ("layer", entry.birth.0.into()),
                ("lsn", entry.lsn.0.into()),
                more_of(entry),
            ],
            Line::Fault(fault) => vec![("fault", fault.as_str().into())],
        }
    }
}

/// What an entry says besides: of a delta the bytes of the block that it replaces.
fn more_of(entry: &Entry) -> (&'static str, Tree) {
    match entry.kind {
        EntryKind::Delta => ("parts", Tree::list(entry.changed().pieces().map(part))),
        EntryKind::Data | EntryKind::Tombstone | EntryKind::Child => ("meta", entry.meta.into()),
    }
}

fn part(bytes: Range<usize>) -> Tree {
    Tree::Fields(vec![
        ("offset_bytes", (bytes.start as u64).into()),
        ("len_bytes", (bytes.len() as u64).into()),
    ])
}

fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Data => "data",
        EntryKind::Tombstone => "tombstone",
        EntryKind::Delta => "delta",
        EntryKind::Child => "child",
    }
}

/// An entry of a leaf in one line.
pub(super) fn entry_words(entry: &Entry) -> String {
    let vblock = entry.key.vblock().0;
    let written = format!("layer {}, LSN {}", entry.birth.0, entry.lsn);
    match entry.kind {
        EntryKind::Data => format!(
            "v{vblock}: {}, checksum {:?}, {written}, metadata {:#x}",
            entry.block, entry.checksum, entry.meta
        ),
        EntryKind::Tombstone => {
            format!("v{vblock}: {} blocks deallocated, {written}", entry.meta)
        }
        EntryKind::Delta => format!(
            "v{vblock}: delta of {} in {}, checksum {:?}, {written}",
            entry.changed(),
            entry.block,
            entry.checksum
        ),
        EntryKind::Child => format!("v{vblock}: child at {}", entry.block),
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

    use super::*;
    use crate::v2p::{Changed, Key};

    #[test]
    fn a_delta_is_shown_with_its_parts() {
        let changed = Changed::with_holes(512..2048, 1 << 6).expect("a hole");
        let entry = Entry {
            key: Key::delta(VBlock(7)),
            kind: EntryKind::Delta,
            block: BlockNo(9),
            checksum: BlockChecksum(0),
            birth: LayerNo(1),
            lsn: Lsn(3),
            meta: changed.meta(),
        };
        let part = |offset: u64, len: u64| {
            Tree::Fields(vec![
                ("offset_bytes", offset.into()),
                ("len_bytes", len.into()),
            ])
        };
        let fields = Line::Entry(entry).fields();
        let expected = Tree::list([part(512, 256), part(896, 1152)]);
        assert_eq!(fields.last(), Some(&("parts", expected)));
        assert!(fields.iter().all(|(name, _)| *name != "meta"));
    }

    /// As `docs/decisions/2026-11-26-local-stripes.md` deals units.
    #[test]
    fn blocks_of_parts_are_somewhere_in_the_volume() {
        let part = |number| PartOfStriped {
            number,
            parts: 3,
            unit_bytes: 64 << 10,
        };
        let unit = 64 << 10;
        assert_eq!(part(0).volume_offset(0), 0);
        assert_eq!(part(1).volume_offset(0), unit);
        assert_eq!(part(2).volume_offset(15), 2 * unit + 15 * BLOCK_SIZE);
        assert_eq!(part(2).volume_offset(16), 5 * unit);
        assert_eq!(part(0).volume_offset(u64::MAX), u64::MAX);
    }
}
