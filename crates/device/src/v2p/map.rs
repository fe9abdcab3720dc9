//! The map, and reading it.
//!
//! Reads go down from the root and never change the tree, except that a node that was waited for
//! takes its place. They are the hot path of every I/O: one binary search per level over an array
//! of 40-byte entries, and no allocation.

use std::cell::Ref;
use std::ops::Range;
use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, Lsn, VBlock, unit::VBLOCKS_MAX};

use super::node::{LEVEL_MAX, Node, Sum};
use super::packed::Packed;
use super::slot::{ChildRef, Slot};
use super::{Entry, EntryKind, Key, MapStats, Missing, NodePtr};

/// From a dvol's blocks to the device's. A clone costs nothing, shares everything, and changes of
/// one are never seen by the other.
pub struct Map {
    pub(super) root: Option<Root>,
    pub(super) stats: Rc<MapStats>,
}

/// The root, seen like any other child.
pub(super) struct Root {
    pub(super) entry: Packed,
    pub(super) level: u8,
    pub(super) slot: Slot,
    /// Whether the root's first key is known: it is not before the root was loaded.
    first_known: bool,
}

/// What is known of one block. Both `None`: it was never written, or the past is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// Data, or the tombstone that covers the block (not clipped to it).
    pub base: Option<Entry>,
    /// A delta over the data, or over zeros.
    pub delta: Option<Entry>,
}

impl Mapping {
    /// LSN of the block's last change, as far as it is known.
    pub fn lsn(&self) -> Option<Lsn> {
        let base = self.base.as_ref().map(|entry| entry.lsn);
        base.max(self.delta.as_ref().map(|entry| entry.lsn))
    }

    /// The block's data, if it has any below the delta.
    pub fn data(&self) -> Option<&Entry> {
        self.base
            .as_ref()
            .filter(|entry| entry.kind == EntryKind::Data)
    }
}

impl Clone for Map {
    fn clone(&self) -> Map {
        if let Some(root) = &self.root
            && root.slot.loaded().is_none()
        {
            // So that the root, once loaded, arrives in both.
            root.child_ref(&self.stats).awaited();
        }
        Map {
            root: self.root.clone(),
            stats: self.stats.clone(),
        }
    }
}

impl Clone for Root {
    fn clone(&self) -> Root {
        Root {
            entry: self.entry.clone(),
            slot: self.slot.clone(),
            ..*self
        }
    }
}

impl Root {
    pub(super) fn holding(node: Rc<Node>) -> Root {
        let entry = entry_for(&node);
        Root {
            entry,
            level: node.level,
            slot: Slot::holding(node),
            first_known: true,
        }
    }

    /// A new leaf that is about to get its first entries.
    pub(super) fn holding_empty(leaf: Node) -> Root {
        let entry = Packed::new(&Entry {
            key: Key(0),
            kind: EntryKind::Child,
            block: BlockNo(0),
            checksum: BlockChecksum(0),
            birth: leaf.birth,
            lsn: Lsn::ZERO,
            meta: 0,
        });
        Root {
            entry,
            level: 0,
            slot: Slot::holding(Rc::new(leaf)),
            first_known: true,
        }
    }

    /// Brings what is known of the root up to date after a change below.
    pub(super) fn refresh(&mut self) {
        let node = self.slot.loaded_mut().expect("the root was just changed");
        self.entry = entry_for(node);
        self.first_known = true;
    }

    /// The root in place of its parent, which has only this one child.
    pub(super) fn from_child(entry: Packed, level: u8, slot: Slot) -> Root {
        Root {
            entry,
            level,
            slot,
            first_known: true,
        }
    }

    pub(super) fn child_ref<'a>(&'a self, stats: &'a Rc<MapStats>) -> ChildRef<'a> {
        ChildRef {
            entry: &self.entry,
            level: self.level,
            slot: &self.slot,
            upper: Key::END,
            first_known: self.first_known,
            stats,
        }
    }
}

/// The entry by which a parent speaks of `node`. Its place is filled in when it has one.
pub(super) fn entry_for(node: &Node) -> Packed {
    let (block, checksum) = node.place.final_location().unwrap_or_default();
    let mut entry = Packed::new(&Entry {
        key: node.first_key(),
        kind: EntryKind::Child,
        block,
        checksum,
        birth: node.birth,
        lsn: node.sum.lsn,
        meta: node.sum.mapped,
    });
    entry.set_tombstones_below(node.sum.tombstones);
    entry
}

impl Map {
    /// A map of nothing.
    pub fn empty(stats: Rc<MapStats>) -> Map {
        Map { root: None, stats }
    }

    /// A map whose root lies on the device. `mapped_count` and `max_lsn` are what
    /// [`mapped_count`](Map::mapped_count) and [`max_lsn`](Map::max_lsn) said when it was written;
    /// a root that does not agree is refused when it is loaded. `ptr` must be in range: a level up
    /// to 15, a block below [`BlockNo::LIMIT`](flagstone_types::BlockNo::LIMIT), and a birth not
    /// above the layer that will change the map.
    pub fn from_root(ptr: NodePtr, mapped_count: u64, max_lsn: Lsn, stats: Rc<MapStats>) -> Map {
        assert!(
            ptr.level <= LEVEL_MAX,
            "checked when the pointer was decoded"
        );
        let mut entry = Packed::new(&Entry {
            key: Key(0),
            kind: EntryKind::Child,
            block: ptr.block,
            checksum: ptr.checksum,
            birth: ptr.birth,
            lsn: max_lsn,
            meta: mapped_count,
        });
        entry.set_tombstones_below(true);
        let slot = Slot::unloaded();
        let root = Root {
            entry,
            level: ptr.level,
            slot,
            first_known: false,
        };
        Map {
            root: Some(root),
            stats,
        }
    }

    /// Level of the root and the layer it was written in; `None` for an empty map.
    pub fn root_level_and_birth(&self) -> Option<(u8, flagstone_types::LayerNo)> {
        let root = self.root.as_ref()?;
        let birth = root.slot.loaded().map(|node| node.birth);
        Some((root.level, birth.unwrap_or(root.entry.birth)))
    }

    /// Where the root lies; `None` if the map is empty, or if the root was
    /// [abandoned](super::Retired::abandon). It must not be dirty: finish the
    /// [`DirtyWalk`](super::DirtyWalk) of this map first.
    pub fn root_ptr(&self) -> Option<NodePtr> {
        let root = self.root.as_ref()?;
        let (block, checksum) = match root.slot.loaded() {
            Some(node) => {
                assert!(!node.is_dirty(), "the map was not written completely");
                node.place.location()?
            }
            None => (root.entry.block(), root.entry.checksum()),
        };
        let (birth, level) = (root.entry.birth, root.level);
        Some(NodePtr {
            block,
            checksum,
            birth,
            level,
        })
    }

    /// True if something in the map has no place on the device yet.
    pub fn is_dirty(&self) -> bool {
        let root = self.root.as_ref().and_then(|root| root.slot.loaded());
        root.is_some_and(|node| node.is_dirty())
    }

    /// True if the map has no entries, not even tombstones.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Data blocks mapped.
    pub fn mapped_count(&self) -> u64 {
        self.root.as_ref().map_or(0, |root| root.entry.meta)
    }

    /// No entry of the map has a higher LSN. Not the dvol's last LSN: what was changed last may be
    /// gone again.
    pub fn max_lsn(&self) -> Lsn {
        self.root.as_ref().map_or(Lsn::ZERO, |root| root.entry.lsn)
    }

    /// The counters this map takes part in.
    pub fn stats(&self) -> &Rc<MapStats> {
        &self.stats
    }

    pub(super) fn root_node(&self) -> Result<Option<Ref<'_, Rc<Node>>>, Missing> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        match root.slot.loaded() {
            Some(node) => Ok(Some(node)),
            None => root.child_ref(&self.stats).load().map(Some),
        }
    }

    /// What is known of one block.
    pub fn get(&self, vblock: VBlock) -> Result<Mapping, Missing> {
        if vblock >= VBlock(VBLOCKS_MAX) {
            return Ok(Mapping::default());
        }
        match self.root_node()? {
            Some(root) => root.get(vblock, root.first_key()),
            None => Ok(Mapping::default()),
        }
    }

    /// Appends the entries that cover something in `range`, in order of their keys, to `out`, and
    /// stops after `limit` of them. Data and its delta are not parted, so there may be one more. A
    /// tombstone may begin before the range and end behind it. To go on, ask for what lies behind
    /// the last entry. If a node is missing, `out` is as it was.
    pub fn lookup(
        &self,
        range: Range<VBlock>,
        limit: usize,
        out: &mut Vec<Entry>,
    ) -> Result<(), Missing> {
        self.collect(range, Wanted::Everything, limit, out)
    }

    /// Like [`lookup`](Map::lookup), but only entries with an LSN above `lsn`. Costs as much as
    /// there is to find, not as much as there is in the range.
    pub fn changed_since(
        &self,
        range: Range<VBlock>,
        lsn: Lsn,
        limit: usize,
        out: &mut Vec<Entry>,
    ) -> Result<(), Missing> {
        self.collect(range, Wanted::ChangedSince(lsn), limit, out)
    }

    /// Like [`lookup`](Map::lookup), but only tombstones. Parts of the map without any are not
    /// looked at.
    pub fn tombstones(
        &self,
        range: Range<VBlock>,
        limit: usize,
        out: &mut Vec<Entry>,
    ) -> Result<(), Missing> {
        self.collect(range, Wanted::TombstonesUpTo(Lsn::MAX), limit, out)
    }

    pub(super) fn collect(
        &self,
        range: Range<VBlock>,
        wanted: Wanted,
        limit: usize,
        out: &mut Vec<Entry>,
    ) -> Result<(), Missing> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let range = clipped(range);
        if range.is_empty() || limit == 0 || !wanted.below(&root.entry) {
            return Ok(());
        }
        let Some(node) = self.root_node()? else {
            return Ok(());
        };
        let before = out.len();
        let mut search = Search {
            range,
            wanted,
            until: before.saturating_add(limit),
            out,
        };
        let done = node.collect(&mut search);
        if done.is_err() {
            out.truncate(before);
        }
        done
    }

    /// A node that must be loaded before blocks in `range` may be changed. Once there is none, any
    /// change within the range finds all it needs in memory, until nodes are evicted.
    pub fn missing(&self, range: Range<VBlock>) -> Option<Missing> {
        let mut found = None;
        self.visit_missing(range, &mut |missing| {
            found = Some(missing);
            false
        });
        found
    }

    /// Up to `max` nodes that must be loaded, in the order of their keys. What lies below them is
    /// not known yet: ask again until there are none.
    pub fn missing_many(&self, range: Range<VBlock>, max: usize) -> Vec<Missing> {
        let mut found = Vec::new();
        self.visit_missing(range, &mut |missing| {
            found.push(missing);
            found.len() < max
        });
        found
    }

    /// Calls `visit` for each missing node until it returns false.
    fn visit_missing(&self, range: Range<VBlock>, visit: &mut dyn FnMut(Missing) -> bool) {
        let range = clipped(range);
        if range.is_empty() {
            return;
        }
        match self.root_node() {
            Ok(None) => {}
            Ok(Some(root)) => {
                root.visit_missing(&range, visit);
            }
            Err(missing) => {
                visit(missing);
            }
        }
    }
}

/// Which entries a search is for.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Everything,
    ChangedSince(Lsn),
    TombstonesUpTo(Lsn),
}

impl Wanted {
    fn entry(self, entry: &Packed) -> bool {
        match self {
            Wanted::Everything => true,
            Wanted::ChangedSince(lsn) => entry.lsn > lsn,
            Wanted::TombstonesUpTo(lsn) => entry.is(EntryKind::Tombstone) && entry.lsn <= lsn,
        }
    }

    /// Whether there may be something below a child.
    fn below(self, child: &Packed) -> bool {
        match self {
            Wanted::Everything => true,
            Wanted::ChangedSince(lsn) => child.lsn > lsn,
            Wanted::TombstonesUpTo(_) => child.tombstones_below(),
        }
    }
}

/// A search under way.
struct Search<'a> {
    range: Range<VBlock>,
    wanted: Wanted,
    /// Length of `out` at which it ends.
    until: usize,
    out: &'a mut Vec<Entry>,
}

impl Node {
    /// `first` is the node's first key: the parent's entry is at hand, the node's own is one more
    /// line of memory to wait for.
    fn get(&self, vblock: VBlock, first: Key) -> Result<Mapping, Missing> {
        self.touch();
        if self.is_leaf() {
            return Ok(self.get_in_leaf(vblock, first));
        }
        let index = self.child_index(vblock);
        let first = self.entries[index].key();
        self.child(index)?.get(vblock, first)
    }

    fn get_in_leaf(&self, vblock: VBlock, first: Key) -> Mapping {
        let mut at = self.upper(Key::delta(vblock), first);
        let mut mapping = Mapping::default();
        if at > 0 && self.entries[at - 1].key() == Key::delta(vblock) {
            mapping.delta = Some(self.entries[at - 1].entry());
            at -= 1;
        }
        if at > 0 {
            let entry = &self.entries[at - 1];
            if !entry.key().is_delta() && entry.end_vblock() > vblock {
                mapping.base = Some(entry.entry());
            }
        }
        mapping
    }

    fn collect(&self, search: &mut Search<'_>) -> Result<(), Missing> {
        self.touch();
        let end = Key::block(search.range.end);
        if self.is_leaf() {
            self.collect_in_leaf(search);
            return Ok(());
        }
        let from = self.child_index(search.range.start);
        for (index, entry) in self.entries.iter().enumerate().skip(from) {
            if entry.key() >= end || search.out.len() >= search.until {
                break;
            }
            if search.wanted.below(entry) {
                self.child(index)?.collect(search)?;
            }
        }
        Ok(())
    }

    fn collect_in_leaf(&self, search: &mut Search<'_>) {
        let end = Key::block(search.range.end);
        let mut from = self.lower(Key::block(search.range.start));
        if from > 0 && self.entries[from - 1].end_vblock() > search.range.start {
            from -= 1;
        }
        for entry in &self.entries[from..] {
            if entry.key() >= end {
                return;
            }
            if !search.wanted.entry(entry) {
                continue;
            }
            if search.out.len() >= search.until {
                let last = search.out.last().map(|last| last.key.vblock());
                if !(entry.key().is_delta() && last == Some(entry.vblock())) {
                    return;
                }
            }
            search.out.push(entry.entry());
        }
    }

    /// False once `visit` has had enough.
    fn visit_missing(&self, range: &Range<VBlock>, visit: &mut dyn FnMut(Missing) -> bool) -> bool {
        self.touch();
        if self.is_leaf() {
            return true;
        }
        for index in self.children_for(range) {
            let goes_on = match self.child(index) {
                // Nothing is missing below a leaf, so it need not be looked at.
                Ok(_) if self.level == 1 => true,
                Ok(child) => child.visit_missing(range, visit),
                Err(missing) => visit(missing),
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Brings the entry for a child, and what depends on it, up to date after a change below.
    pub(super) fn refresh(&mut self, index: usize) {
        let child = self.slots[index]
            .loaded_mut()
            .expect("the child was just changed");
        let old = std::mem::replace(&mut self.entries[index], entry_for(child));
        let end = child.end;
        let new = &self.entries[index];
        self.end = self.end.max(end);
        self.sum.mapped = self.sum.mapped - old.meta + new.meta;
        self.sum.lsn = self.sum.lsn.max(new.lsn);
        self.sum.tombstones |= new.tombstones_below();
        // Where something got smaller, only looking at all of them tells by how much.
        let lsn_fell = new.lsn < old.lsn && old.lsn == self.sum.lsn;
        if lsn_fell || old.tombstones_below() && !new.tombstones_below() {
            self.sum = Sum::of(&self.entries);
        }
    }
}

/// The part of a range that a dvol can have.
fn clipped(range: Range<VBlock>) -> Range<VBlock> {
    range.start..range.end.min(VBlock(VBLOCKS_MAX))
}

/// Panics if the range can't be part of a dvol.
pub(super) fn check_range(range: &Range<VBlock>) {
    assert!(range.start <= range.end, "a range has no negative length");
    assert!(
        range.end <= VBlock(VBLOCKS_MAX),
        "a range ends within the dvol"
    );
}
