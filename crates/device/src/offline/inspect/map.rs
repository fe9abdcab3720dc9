//! The nodes of one map.

use super::load_layers;
use crate::offline::layers::Layers;
use crate::offline::walk::Nodes;
use crate::offline::{Image, ReadBlocks, Tree};
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

/// Shows the map of a dvol, or of a snapshot (`dvol@snapshot`), on any journal. `None`: there is
/// none of that name.
pub fn inspect_map<R: ReadBlocks>(image: &Image<R>, name: &str) -> Option<MapView> {
    for number in 0..image.geometry.journal_count {
        let roots = image.roots(number);
        let Some(root) = roots.current() else {
            continue;
        };
        let (layers, _) = load_layers(image, root);
        let Some(slot) = slot_named(&layers, name) else {
            continue;
        };
        let mut view = MapView {
            title: format!("{} of journal {number}", layers.words(slot)),
            ..MapView::default()
        };
        let nodes = Nodes::new(image);
        if let Some(root) = layers.get(slot).and_then(|layer| layer.record.map) {
            view.node(&nodes, &root.ptr, 0);
        }
        return Some(view);
    }
    None
}

/// The slot of `dvol` or `dvol@snapshot`.
fn slot_named(layers: &Layers, name: &str) -> Option<u32> {
    let Some((dvol, snapshot)) = name.split_once('@') else {
        return layers.dvol_named(name);
    };
    let dvol = layers.get(layers.dvol_named(dvol)?)?;
    layers.snapshot_named(dvol.record.id, snapshot)
}

impl MapView {
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
        self.is_cut |= self.lines.len() >= LINES_MAX;
        self.is_cut
    }

    /// For people.
    pub fn words(&self) -> String {
        let mut lines = vec![format!("map of {}", self.title)];
        if self.lines.is_empty() {
            lines.push("  empty".to_owned());
        }
        for (depth, line) in &self.lines {
            lines.push(format!("  {}{}", "  ".repeat(*depth), line.words()));
        }
        if self.is_cut {
            lines.push(format!("  .. cut off after {LINES_MAX} lines"));
        }
        lines.join("\n")
    }

    /// For machines.
    pub fn tree(&self) -> Tree {
        let line = |(depth, line): &(usize, Line)| {
            let mut fields = vec![("depth", (*depth).into())];
            fields.extend(line.fields());
            Tree::Fields(fields)
        };
        Tree::Fields(vec![
            ("of", self.title.as_str().into()),
            ("lines", Tree::list(self.lines.iter().map(line))),
            ("cut", self.is_cut.into()),
        ])
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
                ("meta", entry.meta.into()),
            ],
            Line::Fault(fault) => vec![("fault", fault.as_str().into())],
        }
    }
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
            "v{vblock}: delta of {} bytes at {} in {}, checksum {:?}, {written}",
            entry.meta >> 16 & 0xffff,
            entry.meta & 0xffff,
            entry.block,
            entry.checksum
        ),
        EntryKind::Child => format!("v{vblock}: child at {}", entry.block),
    }
}
