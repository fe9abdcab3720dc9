//! Walking the map of a dvol or layer through what belongs to it.
//!
//! Layers share most of their maps, so walking each of them wholly would cost the number of layers
//! times the size of the maps. But each node and mapping *belongs* to exactly one layer: the one in
//! whose map it has a birth above the number of the layer below (`docs/formats/device.md`, "Births").
//! A walk descends only into nodes that belong to its layer, so walking all layers comes across
//! each node once. What belongs to an older layer is shown but not descended into; a node belongs to
//! an older layer only wholly, except where that layer is being reaped (see [`Step::Node`]).

use std::collections::BTreeMap;

use flagstone_types::{BlockNo, Lsn};

use super::layers::{Layers, Lineage};
use super::{BlockBytes, Fault, Image, ReadBlocks};
use crate::format::catalogue::CatalogueRecord;
use crate::v2p::{Entry, EntryKind, Key, NodeImage, NodePtr};

/// Reads nodes from a device, or from memory where replay has changed them.
pub struct Nodes<'a, R> {
    /// The device.
    pub image: &'a Image<R>,
    /// Nodes that exist in memory only, under positions behind the device's end.
    pub placed: BTreeMap<u64, Box<BlockBytes>>,
}

impl<'a, R: ReadBlocks> Nodes<'a, R> {
    /// Nodes as they lie on the device.
    pub fn new(image: &'a Image<R>) -> Nodes<'a, R> {
        Nodes {
            image,
            placed: BTreeMap::new(),
        }
    }

    /// Reads and decodes a node.
    pub fn read(&self, ptr: &NodePtr) -> Result<NodeImage, Fault> {
        let decode =
            |bytes: &BlockBytes| NodeImage::decode(&bytes[..], ptr).map_err(|e| fault(ptr, e));
        if let Some(bytes) = self.placed.get(&ptr.block.0) {
            return decode(bytes);
        }
        if !self.image.geometry.is_data(ptr.block) {
            return Err(Fault::new(
                ptr.block,
                "a pointer to a map node leads out of the data area",
            ));
        }
        decode(&*self.image.read(ptr.block)?)
    }
}

fn fault(ptr: &NodePtr, error: crate::format::FormatError) -> Fault {
    Fault::format(ptr.block, error)
}

/// What a walk comes across.
pub enum Step<'a> {
    /// A node that was read. Its entries follow.
    Node {
        /// Where it lies.
        ptr: NodePtr,
        /// What is in it.
        node: &'a NodeImage,
        /// It belongs to the layer that is walked. Otherwise it belongs to an older one that is
        /// being reaped, but some of its entries don't any more.
        owned: bool,
    },
    /// A child that belongs wholly to an older layer.
    Inherited {
        /// Where it lies.
        ptr: NodePtr,
        /// The parent's entry for it; for a root, one made from the catalogue's record.
        entry: Entry,
        /// The child may cover nothing from here on.
        upper: Key,
        /// The older layer.
        from: u32,
    },
    /// An entry of a leaf.
    Leaf {
        /// The entry.
        entry: Entry,
        /// The leaf.
        node: BlockNo,
        /// The older layer that it belongs to; `None`: the one that is walked.
        from: Option<u32>,
    },
    /// Something can't be read or is not what its parent says. What is mapped in the keys from
    /// `keys.0` up to `keys.1` is lost.
    Fault {
        /// What is wrong.
        fault: Fault,
        /// The keys that can't be looked at.
        keys: (Key, Key),
    },
}

/// How a walk goes on after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Into what is below.
    On,
    /// Over it: the entries of this node are left out.
    Over,
    /// Not at all.
    Stop,
}

/// Walks what belongs to `slot`. Returns how many of its mapped data blocks belong to older layers.
pub fn walk<R: ReadBlocks>(
    nodes: &Nodes<'_, R>,
    layers: &Layers,
    slot: u32,
    visit: &mut dyn FnMut(Step<'_>) -> Next,
) -> u64 {
    let Some(layer) = layers.get(slot) else {
        return 0;
    };
    let Some(root) = layer.record.map else {
        return 0;
    };
    let Some(lineage) = layers.lineage(slot) else {
        return 0;
    };
    let from = layer.reaped_below();
    let number = layer.record.layer;
    let mut walk = Walk {
        nodes,
        lineage,
        from,
        visit,
        inherited_blocks: 0,
        stopped: false,
    };
    let Some(entry) = root_entry(&layer.record) else {
        return 0;
    };
    if root.ptr.birth > number {
        let what = format!(
            "its birth {:?} is above its layer's, {number:?}",
            root.ptr.birth
        );
        walk.show(Step::Fault {
            fault: Fault::new(root.ptr.block, what),
            keys: (Key(0), Key::END),
        });
        return 0;
    }
    walk.child(&root.ptr, &entry, None, Key::END);
    walk.inherited_blocks
}

/// The root as a parent would speak of it, but for its first key.
fn root_entry(record: &CatalogueRecord) -> Option<Entry> {
    let root = record.map?;
    Some(Entry {
        key: Key(0),
        kind: EntryKind::Child,
        block: root.ptr.block,
        checksum: root.ptr.checksum,
        birth: root.ptr.birth,
        lsn: root.max_lsn,
        meta: record.mapped_blocks,
    })
}

struct Walk<'a, 'b, R> {
    nodes: &'a Nodes<'a, R>,
    lineage: Lineage,
    /// Keys below this one have been reaped.
    from: Key,
    visit: &'b mut dyn FnMut(Step<'_>) -> Next,
    inherited_blocks: u64,
    stopped: bool,
}

impl<R: ReadBlocks> Walk<'_, '_, R> {
    /// True if the walk goes into what is below.
    fn show(&mut self, step: Step<'_>) -> bool {
        let next = if self.stopped {
            Next::Stop
        } else {
            (self.visit)(step)
        };
        self.stopped = next == Next::Stop;
        next == Next::On
    }

    fn show_inherited(&mut self, ptr: &NodePtr, entry: &Entry, upper: Key, from: u32) {
        self.inherited_blocks = self.inherited_blocks.saturating_add(entry.meta);
        self.show(Step::Inherited {
            ptr: *ptr,
            entry: *entry,
            upper,
            from,
        });
    }

    /// A child, or the root: then its first key is not known.
    fn child(&mut self, ptr: &NodePtr, entry: &Entry, first: Option<Key>, upper: Key) {
        if self.stopped || upper <= self.from {
            return;
        }
        // Whom it belongs to depends on where it ends, and that may lie well before its neighbour.
        let low = first.unwrap_or(Key(0));
        if first.is_some()
            && !self.lineage.changes_between(low, upper)
            && let (Some(from), number) = self.lineage.parent_at(low)
            && ptr.birth <= number
        {
            return self.show_inherited(ptr, entry, upper, from);
        }
        let node = self.nodes.read(ptr).and_then(|node| {
            check_place(&node, entry, first, upper).map_err(|what| Fault::new(ptr.block, what))?;
            Ok(node)
        });
        match node {
            Err(fault) => {
                self.show(Step::Fault {
                    fault,
                    keys: (low.max(self.from), upper),
                });
            }
            Ok(node) => self.node(ptr, entry, upper, &node),
        }
    }

    fn node(&mut self, ptr: &NodePtr, entry: &Entry, upper: Key, node: &NodeImage) {
        let (low, end) = (node.first_key(), node.end_key());
        if end <= self.from {
            // Reaped as a whole. Nothing says that it is still there, it just was not reused yet.
            return;
        }
        let (parent, number) = self.lineage.parent_at(Key(end.0.saturating_sub(1)));
        let owned = ptr.birth > number;
        if !owned
            && let Some(from) = parent
            && !self.lineage.changes_between(low, end)
        {
            return self.show_inherited(ptr, &Entry { key: low, ..*entry }, upper, from);
        }
        if !self.show(Step::Node {
            ptr: *ptr,
            node,
            owned,
        }) {
            return;
        }
        let entries: Vec<Entry> = node.entries().collect();
        for (index, entry) in entries.iter().enumerate() {
            if self.stopped {
                return;
            }
            match node.child_ptr(entry) {
                Some(child) => {
                    let upper = entries
                        .get(index + 1)
                        .map_or(end, |next| block_start(next.key));
                    self.child(&child, entry, Some(entry.key), upper);
                }
                None => self.leaf_entry(entry, ptr.block),
            }
        }
    }

    fn leaf_entry(&mut self, entry: &Entry, node: BlockNo) {
        if entry.key < self.from {
            return;
        }
        let (parent, number) = self.lineage.parent_at(entry.key);
        let from = parent.filter(|_| entry.birth <= number);
        if from.is_some() && entry.kind == EntryKind::Data {
            self.inherited_blocks += 1;
        }
        self.show(Step::Leaf {
            entry: *entry,
            node,
            from,
        });
    }
}

/// Whether a node is the one its parent means: `entry` for it, its first key if that is known, and
/// where the next child begins.
pub fn check_place(
    node: &NodeImage,
    entry: &Entry,
    first: Option<Key>,
    upper: Key,
) -> Result<(), String> {
    if first.is_some_and(|first| first != node.first_key()) || node.end_key() > upper {
        return Err(format!(
            "a map node covers keys {} up to {}, but its parent expects {} up to {} at most",
            node.first_key().0,
            node.end_key().0,
            entry.key.0,
            upper.0
        ));
    }
    let (mut mapped, mut lsn) = (0, Lsn::ZERO);
    for entry in node.entries() {
        lsn = lsn.max(entry.lsn);
        mapped += match entry.kind {
            EntryKind::Data => 1,
            // At most 2^52 each, a hundred of them.
            EntryKind::Child => entry.meta,
            _ => 0,
        };
    }
    if mapped != entry.meta || lsn > entry.lsn {
        return Err(format!(
            "a map node has {mapped} data entries and LSNs up to {lsn}, but its parent expects {} \
             and at most {}",
            entry.meta, entry.lsn
        ));
    }
    Ok(())
}

/// Data and the delta over it stay together, so a node ends where a block begins.
fn block_start(key: Key) -> Key {
    Key::block(key.vblock())
}

/// Finds single nodes and entries of one map, remembering the path so that lookups in ascending
/// order read each node once.
pub struct Finder<'a, R> {
    nodes: &'a Nodes<'a, R>,
    root: Option<(NodePtr, Entry)>,
    /// Nodes from the root down, with where they lie.
    path: Vec<(NodePtr, NodeImage)>,
}

impl<'a, R: ReadBlocks> Finder<'a, R> {
    /// For the map of `slot`.
    pub fn new(nodes: &'a Nodes<'a, R>, layers: &Layers, slot: u32) -> Finder<'a, R> {
        let record = layers.get(slot).map(|layer| &layer.record);
        let root = record.and_then(|record| Some((record.map?.ptr, root_entry(record)?)));
        Finder {
            nodes,
            root,
            path: Vec::new(),
        }
    }

    /// The node of that level that covers `key`, with its parent's entry, if the map has one.
    pub fn node(&mut self, level: u8, key: Key) -> Result<Option<(NodePtr, Entry)>, Fault> {
        let Some(mut at) = self.root else {
            return Ok(None);
        };
        let mut depth = 0;
        while at.0.level > level {
            let Some(child) = self.child_at(depth, &at.0, key)? else {
                return Ok(None);
            };
            at = child;
            depth += 1;
        }
        Ok((at.0.level == level).then_some(at))
    }

    /// The entry with exactly that key, if the map has one.
    pub fn entry(&mut self, key: Key) -> Result<Option<Entry>, Fault> {
        let Some((leaf, _)) = self.node(0, key)? else {
            return Ok(None);
        };
        let depth = usize::from(self.root.map_or(0, |(root, _)| root.level));
        let node = self.load(depth, &leaf)?;
        Ok(node.entries().find(|entry| entry.key == key))
    }

    /// The child that covers `key`: the last one that begins at or before its block.
    fn child_at(
        &mut self,
        depth: usize,
        at: &NodePtr,
        key: Key,
    ) -> Result<Option<(NodePtr, Entry)>, Fault> {
        let node = self.load(depth, at)?;
        let up_to = Key::delta(key.vblock());
        let covering = node.entries().take_while(|entry| entry.key <= up_to).last();
        Ok(covering.and_then(|entry| Some((node.child_ptr(&entry)?, entry))))
    }

    fn load(&mut self, depth: usize, ptr: &NodePtr) -> Result<&NodeImage, Fault> {
        let is_there = self.path.get(depth).is_some_and(|(there, _)| there == ptr);
        if !is_there {
            let node = self.nodes.read(ptr)?;
            self.path.truncate(depth);
            self.path.push((*ptr, node));
        }
        Ok(&self.path[depth].1)
    }
}
