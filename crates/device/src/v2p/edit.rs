//! Changing a map.
//!
//! A change goes down from the root. Every node on the way becomes dirty first: a clean one, or one
//! that a copy of the map holds as well, is replaced by a copy and retired; one that is dirty and
//! only ours is changed in place. On the way up, entries for children are brought up to date,
//! children that became too large have been split by then, and small neighbours are merged if both
//! are in memory.
//!
//! All changes are one operation: in a range of blocks, put these entries in place of what is
//! there.

use std::ops::Range;
use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock, unit::VBLOCKS_MAX};

use super::map::{Root, Wanted, check_range, entry_for};
use super::node::{LEVEL_MAX, Node, Place, Sum};
use super::packed::Packed;
use super::slot::Slot;
use super::split::{Pack, split};
use super::{Changed, Entry, EntryKind, Key, Map, MapStats, Missing};
use crate::format::record::MappedBlock;

pub(super) const NOT_LOADED: &str = "whoever changes a map asks for missing nodes first";

/// What changes of a map did besides changing it. Whoever frees what is in here must heed that
/// older layers may still need it: see [`FreeRule`](super::FreeRule).
pub struct Edit {
    /// The layer that is being changed: the birth of new entries and nodes.
    pub layer: LayerNo,
    /// Data and deltas that the map no longer holds. A key can come up more than once if the edit
    /// is used for several changes.
    pub displaced: Vec<Entry>,
    /// Nodes that the map no longer holds and that have, or may still get, a place on the device.
    pub retired: Vec<Retired>,
    /// Nodes that were created or became dirty: so many more blocks the next checkpoint may need.
    pub dirtied: usize,
    /// Tombstones forgotten.
    pub forgotten: usize,
}

impl Edit {
    /// An edit that has done nothing yet.
    pub fn new(layer: LayerNo) -> Edit {
        Edit {
            layer,
            displaced: Vec::new(),
            retired: Vec::new(),
            dirtied: 0,
            forgotten: 0,
        }
    }

    /// Forgets what was done, to be used again.
    pub fn clear(&mut self) {
        self.displaced.clear();
        self.retired.clear();
        self.dirtied = 0;
        self.forgotten = 0;
    }
}

/// A node that is no longer part of a map.
#[derive(Clone, Debug)]
pub struct Retired {
    place: Place,
    /// The layer it was written in.
    pub birth: LayerNo,
    /// Behind everything it covers. Like the birth it is the same wherever the node is met, so that
    /// a reaper and the layer above it agree about who frees the node.
    pub end_key: Key,
    /// Zero for a leaf.
    pub level: u8,
}

impl Retired {
    pub(super) fn new(node: &Node) -> Retired {
        let place = node.place.clone();
        Retired {
            place,
            birth: node.birth,
            end_key: node.end,
            level: node.level,
        }
    }

    /// Where the node lies. `None`: it has not been written. A checkpoint under way may still write
    /// it, if its frozen map holds the node.
    pub fn location(&self) -> Option<(BlockNo, BlockChecksum)> {
        self.place.location()
    }

    /// Says that the node, if it has not been written yet, never needs to be. Call this for every
    /// retired node when a checkpoint freezes the maps, while none is under way: the map of a layer
    /// that is being reaped still holds nodes that were reaped, and if they were written now,
    /// nobody would ever free them.
    pub fn abandon(&self, stats: &MapStats) {
        self.place.abandon(stats);
    }
}

/// Whether a node is at an edge of the whole map.
#[derive(Clone, Copy)]
struct Sides {
    left: bool,
    right: bool,
}

/// What stays of a block to which something is put.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Nothing.
    Nothing,
    /// Its data, when a delta is put over it.
    Data,
    /// The delta over it, when data is put below.
    Delta,
}

struct Change<'a> {
    edit: &'a mut Edit,
    keep: Keep,
}

impl Map {
    /// Maps a block. What was known of it before is displaced.
    pub fn write(
        &mut self,
        edit: &mut Edit,
        vblock: VBlock,
        block: BlockNo,
        checksum: BlockChecksum,
        meta: u64,
        lsn: Lsn,
    ) {
        let key = Key::block(vblock);
        let birth = edit.layer;
        let kind = EntryKind::Data;
        let entry = Packed::new(&Entry {
            key,
            kind,
            block,
            checksum,
            birth,
            lsn,
            meta,
        });
        if self.write_quickly(edit, &entry, Keep::Nothing).is_none() {
            self.change(edit, one(vblock), &[entry], Keep::Nothing);
        }
    }

    /// Maps a block below the delta over it, if there is one: that stays. Older data, or the tombstone, is displaced.
    pub fn write_under(&mut self, edit: &mut Edit, vblock: VBlock, mapped: &MappedBlock, lsn: Lsn) {
        let entry = Packed::new(&Entry {
            key: Key::block(vblock),
            kind: EntryKind::Data,
            block: mapped.block,
            checksum: mapped.checksum,
            birth: edit.layer,
            lsn,
            meta: mapped.meta,
        });
        if self.write_quickly(edit, &entry, Keep::Delta).is_none() {
            self.change(edit, one(vblock), &[entry], Keep::Delta);
        }
    }

    /// Maps consecutive blocks from `start` on. Goes down once per leaf, not once per block.
    pub fn write_run(&mut self, edit: &mut Edit, start: VBlock, blocks: &[MappedBlock], lsn: Lsn) {
        if let [one] = blocks {
            return self.write(edit, start, one.block, one.checksum, one.meta, lsn);
        }
        if blocks.is_empty() {
            return;
        }
        let birth = edit.layer;
        let range = start..VBlock(start.0 + blocks.len() as u64);
        let mut entries = self.stats.scratch.take();
        entries.extend(blocks.iter().zip(range.start.0..).map(|(mapped, vblock)| {
            let &MappedBlock {
                block,
                checksum,
                meta,
            } = mapped;
            let (key, kind) = (Key::block(VBlock(vblock)), EntryKind::Data);
            Packed::new(&Entry {
                key,
                kind,
                block,
                checksum,
                birth,
                lsn,
                meta,
            })
        }));
        self.change(edit, range, &entries, Keep::Nothing);
        entries.clear();
        self.stats.scratch.set(entries);
    }

    /// Maps a delta over a block. Data below it stays; an older delta is displaced, and of a
    /// tombstone the block is taken out.
    pub fn write_delta(
        &mut self,
        edit: &mut Edit,
        vblock: VBlock,
        block: BlockNo,
        checksum: BlockChecksum,
        changed: Changed,
        lsn: Lsn,
    ) {
        let key = Key::delta(vblock);
        let meta = changed.meta();
        let birth = edit.layer;
        let kind = EntryKind::Delta;
        let entry = Packed::new(&Entry {
            key,
            kind,
            block,
            checksum,
            birth,
            lsn,
            meta,
        });
        if self.write_quickly(edit, &entry, Keep::Data).is_none() {
            self.change(edit, one(vblock), &[entry], Keep::Data);
        }
    }

    /// Unmaps a range. If something in it was mapped or unmapped before, one tombstone is left that
    /// reaches from the first to the last such block: space that was never written has no past to
    /// tell of. Nothing changes if there is only a tombstone that is as young.
    ///
    /// Tombstones of the same LSN that touch become one, if they are in memory.
    pub fn deallocate(&mut self, edit: &mut Edit, range: Range<VBlock>, lsn: Lsn) {
        check_range(&range);
        let Some(extent) = self.extent(&range, lsn, &mut edit.displaced) else {
            return;
        };
        let entry = Packed::tombstone(extent.start, extent.end, edit.layer, lsn);
        self.change(edit, extent, &[entry], Keep::Nothing);
    }

    /// The blocks that the tombstone of a deallocation covers; `None` if there will be none.
    /// `scratch` is used and left as it was.
    fn extent(
        &self,
        range: &Range<VBlock>,
        lsn: Lsn,
        scratch: &mut Vec<Entry>,
    ) -> Option<Range<VBlock>> {
        let mark = scratch.len();
        self.lookup(range.clone(), 1, scratch).expect(NOT_LOADED);
        let first = scratch.get(mark).copied();
        scratch.truncate(mark);
        let first = first?;
        let last = self.last_before(range.end)?;
        let mut start = range.start.max(first.key.vblock());
        let mut end = range.end.min(last.end_vblock());
        if first.kind == EntryKind::Tombstone && first.end_vblock() >= end && first.lsn >= lsn {
            return None;
        }
        let same = |entry: &Entry| entry.kind == EntryKind::Tombstone && entry.lsn == lsn;
        if same(&first) {
            start = first.key.vblock();
        } else if start == range.start
            && start.0 > 0
            && let Ok(before) = self.get(VBlock(start.0 - 1))
            && let Some(before) = before.base.filter(same)
        {
            start = before.key.vblock();
        }
        if same(&last) {
            end = last.end_vblock();
        }
        Some(start..end)
    }

    /// The last entry that starts before `end`.
    fn last_before(&self, end: VBlock) -> Option<Entry> {
        let root = self.root_node().expect(NOT_LOADED)?;
        root.last_at(VBlock(end.0 - 1))
    }

    /// Forgets up to `limit` tombstones, from `from` on, whose LSN is at most `up_to`. The block to
    /// go on from, or `None` when all are gone. Parts of the map without tombstones are not loaded.
    pub fn drop_tombstones(
        &mut self,
        edit: &mut Edit,
        up_to: Lsn,
        from: VBlock,
        limit: usize,
    ) -> Result<Option<VBlock>, Missing> {
        let mut found = Vec::new();
        let range = from..VBlock(VBLOCKS_MAX);
        self.collect(range, Wanted::TombstonesUpTo(up_to), limit, &mut found)?;
        for entry in &found {
            let range = entry.key.vblock()..entry.end_vblock();
            self.change(edit, range, &[], Keep::Nothing);
        }
        edit.forgotten += found.len();
        let is_all = found.len() < limit;
        Ok(found.last().filter(|_| !is_all).map(Entry::end_vblock))
    }

    /// Puts `put` in place of everything in `range`.
    fn change(&mut self, edit: &mut Edit, range: Range<VBlock>, put: &[Packed], keep: Keep) {
        check_range(&range);
        let layer = edit.layer;
        if self.root.is_none() {
            if put.is_empty() {
                return;
            }
            let leaf = Node::dirty(0, layer, Key(0), Vec::new(), Vec::new(), &self.stats);
            edit.dirtied += 1;
            self.root = Some(Root::holding_empty(leaf));
        }
        let root = self.root.as_mut().expect("was just made if there was none");
        let node = root.slot.loaded_mut().expect(NOT_LOADED);
        assert!(
            node.birth <= layer,
            "layers change in the order of their numbers"
        );
        let mut change = Change { edit, keep };
        let sides = Sides {
            left: true,
            right: true,
        };
        let right = change.node(node, range, put, sides);
        let is_settled = right.is_empty() && node.entries.len() > usize::from(!node.is_leaf());
        if is_settled {
            root.refresh();
            return;
        }
        let node = node.clone();
        self.root = None;
        if !right.is_empty() {
            self.grow(edit, node, right);
        } else if !node.entries.is_empty() {
            self.root = Some(Root::holding(node));
            self.shrink(edit);
        }
    }

    /// Puts new nodes above a root that was split.
    fn grow(&mut self, edit: &mut Edit, first: Rc<Node>, mut right: Vec<Rc<Node>>) {
        let mut first = first;
        while !right.is_empty() {
            let level = first.level + 1;
            assert!(level <= LEVEL_MAX, "no map that fits a device is so tall");
            let end = right.last().expect("was not empty").end;
            let children: Vec<Rc<Node>> = std::iter::once(first).chain(right).collect();
            let entries = children.iter().map(|child| entry_for(child)).collect();
            let slots = children.into_iter().map(Slot::holding).collect();
            let mut parent = Node::dirty(level, edit.layer, end, entries, slots, &self.stats);
            edit.dirtied += 1;
            right = match parent.entries.len() > self.stats.fanout {
                true => split(&mut parent, Pack::Left, edit),
                false => Vec::new(),
            };
            first = Rc::new(parent);
        }
        self.root = Some(Root::holding(first));
    }

    /// Takes away roots that have only one child.
    fn shrink(&mut self, edit: &mut Edit) {
        while let Some(root) = &self.root {
            let Some(node) = root.slot.loaded() else {
                return;
            };
            if node.is_leaf() || node.entries.len() > 1 {
                return;
            }
            if !node.is_dirty() || Rc::strong_count(&node) > 1 {
                edit.retired.push(Retired::new(&node));
            }
            let (entry, slot) = (node.entries[0].clone(), node.slots[0].clone());
            let child = Root::from_child(entry, node.level - 1, slot);
            drop(node);
            self.root = Some(child);
        }
    }
}

fn one(vblock: VBlock) -> Range<VBlock> {
    vblock..VBlock(vblock.0 + 1)
}

/// Makes a node ours to change.
fn make_dirty<'a>(node: &'a mut Rc<Node>, edit: &mut Edit) -> &'a mut Node {
    let is_shared = Rc::strong_count(node) > 1;
    let was_dirty = node.is_dirty();
    if is_shared || !was_dirty {
        edit.retired.push(Retired::new(node));
        edit.dirtied += 1;
    }
    if is_shared {
        *node = Rc::new(node.dirty_copy(edit.layer));
    }
    let node = Rc::get_mut(node).expect("nobody else holds it, and nodes have no weak references");
    if !is_shared && !was_dirty {
        node.renew(edit.layer);
    }
    node.birth = edit.layer;
    node
}

impl Node {
    /// The last entry that starts at or before `vblock`.
    fn last_at(&self, vblock: VBlock) -> Option<Entry> {
        if !self.is_leaf() {
            return self
                .child(self.child_index(vblock))
                .expect(NOT_LOADED)
                .last_at(vblock);
        }
        let behind = self.lower(Key(Key::delta(vblock).0 + 1));
        Some(self.entries[..behind].last()?.entry())
    }
}

impl Change<'_> {
    /// Changes what is below a node. If it got too large, the nodes to put behind it are returned;
    /// if nothing is left, it is empty.
    fn node(
        &mut self,
        node: &mut Rc<Node>,
        range: Range<VBlock>,
        put: &[Packed],
        sides: Sides,
    ) -> Vec<Rc<Node>> {
        let node = make_dirty(node, self.edit);
        node.touch();
        if node.is_leaf() {
            return self.leaf(node, range, put, sides);
        }
        let (first, last) = node.children_for(&range).into_inner();
        let len_before = node.entries.len();
        let mut shrunk = false;
        let mut added = 0;
        let mut put = put;
        let mut end = range.end;
        // From the right, so that indices to the left stay what they are.
        for index in (first..=last).rev() {
            let start = if index == first {
                range.start
            } else {
                node.entries[index].vblock()
            };
            let (before, mine) = put.split_at(put.partition_point(|e| e.vblock() < start));
            let inner = Sides {
                left: sides.left && index == 0,
                right: sides.right && index + 1 == node.entries.len(),
            };
            match self.child(node, index, start..end, mine, inner) {
                Outcome::Fits => {}
                Outcome::Shrunk => shrunk = true,
                Outcome::Gone => shrunk = true,
                Outcome::Split(count) => added += count,
            }
            put = before;
            end = start;
        }
        if shrunk || added > 0 {
            let touched = last + 1 + node.entries.len() - len_before - first;
            if shrunk && touched > 0 {
                self.merge_around(node, first, touched);
            }
            node.sum = Sum::of(&node.entries);
            node.settle();
        }
        if node.entries.len() <= node.stats.fanout {
            return Vec::new();
        }
        let is_append = first + 1 + added == node.entries.len();
        let pack = if is_append && sides.right {
            Pack::Left
        } else {
            Pack::Even
        };
        split(node, pack, self.edit)
    }

    /// Changes what is below one child of a node.
    fn child(
        &mut self,
        node: &mut Node,
        index: usize,
        range: Range<VBlock>,
        put: &[Packed],
        sides: Sides,
    ) -> Outcome {
        let child = node.slots[index].loaded_mut().expect(NOT_LOADED);
        let is_covered =
            range.start <= child.first_key().vblock() && child.end <= Key::block(range.end);
        if put.is_empty() && is_covered {
            self.displace_all(child, false);
            node.entries.remove(index);
            node.slots.remove(index);
            return Outcome::Gone;
        }
        let len_before = child.entries.len();
        let right = self.node(child, range, put, sides);
        let len = child.entries.len();
        if len == 0 {
            node.entries.remove(index);
            node.slots.remove(index);
            return Outcome::Gone;
        }
        node.refresh(index);
        if right.is_empty() {
            return if len < len_before {
                Outcome::Shrunk
            } else {
                Outcome::Fits
            };
        }
        let count = right.len();
        node.end = node.end.max(right[count - 1].end);
        node.make_room(count);
        node.entries.splice(
            index + 1..index + 1,
            right.iter().map(|child| entry_for(child)),
        );
        node.slots
            .splice(index + 1..index + 1, right.into_iter().map(Slot::holding));
        Outcome::Split(count)
    }

    /// Gives up a whole subtree. `is_shared`: a copy of the map can reach it.
    fn displace_all(&mut self, node: &Rc<Node>, is_shared: bool) {
        let is_shared = is_shared || Rc::strong_count(node) > 1;
        self.displace(&node.entries);
        for index in 0..node.slots.len() {
            let child = node.child(index).expect(NOT_LOADED);
            self.displace_all(&child, is_shared);
        }
        if is_shared || !node.is_dirty() {
            self.edit.retired.push(Retired::new(node));
        }
    }

    /// Notes the data and deltas among `entries`. The number of data entries.
    fn displace(&mut self, entries: &[Packed]) -> u64 {
        let mut data = 0;
        for entry in entries {
            match entry.kind() {
                EntryKind::Data => data += 1,
                EntryKind::Delta => {}
                EntryKind::Tombstone | EntryKind::Child => continue,
            }
            self.edit.displaced.push(entry.entry());
        }
        data
    }

    /// Merges small neighbours among `count` children from `first` on and the ones beside them.
    fn merge_around(&mut self, node: &mut Node, first: usize, count: usize) {
        let mut index = first.saturating_sub(1);
        let mut end = first + count;
        while index < end && index + 1 < node.entries.len() {
            if self.merge(node, index) {
                end -= 1;
            } else {
                index += 1;
            }
        }
    }

    /// Merges a child with its right neighbour if both are in memory and fill four fifths of a node
    /// at most.
    fn merge(&mut self, node: &mut Node, index: usize) -> bool {
        let mut len_of = |index: usize| node.slots[index].loaded_mut().map(|n| n.entries.len());
        let (Some(left_len), Some(right_len)) = (len_of(index), len_of(index + 1)) else {
            return false;
        };
        if left_len + right_len > node.stats.fanout * 4 / 5 {
            return false;
        }
        node.entries.remove(index + 1);
        let mut slot = node.slots.remove(index + 1);
        let right = slot.loaded_mut().expect("was just looked at");
        if !right.is_dirty() || Rc::strong_count(right) > 1 {
            self.edit.retired.push(Retired::new(right));
        }
        let left = node.slots[index].loaded_mut().expect("was just looked at");
        let left = make_dirty(left, self.edit);
        left.end = right.end;
        left.make_room(right_len);
        left.entries.extend_from_slice(&right.entries);
        left.slots.extend_from_slice(&right.slots);
        left.sum = Sum::of(&left.entries);
        left.settle();
        node.refresh(index);
        true
    }

    /// Changes a leaf.
    fn leaf(
        &mut self,
        node: &mut Node,
        range: Range<VBlock>,
        put: &[Packed],
        sides: Sides,
    ) -> Vec<Rc<Node>> {
        let end_key = Key::block(range.end);
        let mut from = node.lower(Key::block(range.start));
        let mut to = from;
        if range.end.0 - range.start.0 == 1 {
            while node
                .entries
                .get(to)
                .is_some_and(|entry| entry.key() < end_key)
            {
                to += 1;
            }
        } else {
            to += node.entries[from..].partition_point(|entry| entry.key() < end_key);
        }
        match self.keep {
            Keep::Data if from < to && node.entries[from].is(EntryKind::Data) => from += 1,
            Keep::Delta if from < to && node.entries[to - 1].is(EntryKind::Delta) => to -= 1,
            _ => {}
        }
        // Tombstones that reach over an edge of the range keep the part outside.
        let is_cut = |entry: &&Packed| entry.is(EntryKind::Tombstone);
        let before = from
            .checked_sub(1)
            .map(|index| &node.entries[index])
            .filter(is_cut);
        let before = before.filter(|entry| entry.end_vblock() > range.start);
        let head = before.map(|entry| entry.clipped(VBlock(0), range.start));
        from -= usize::from(head.is_some());
        let last = node.entries[from..to].last().filter(is_cut);
        let last = last.filter(|entry| entry.end_vblock() > range.end);
        let tail = last.map(|entry| entry.clipped(range.end, VBlock(VBLOCKS_MAX)));

        let old = &node.entries[from..to];
        let old_tombstones = old.iter().any(|entry| entry.is(EntryKind::Tombstone));
        let old_data = self.displace(old);
        let at = from + usize::from(head.is_some());
        if head.is_none() && tail.is_none() && put.len() == to - from {
            node.entries[from..to].clone_from_slice(put);
        } else {
            let new_len = put.len() + usize::from(head.is_some()) + usize::from(tail.is_some());
            node.make_room(new_len.saturating_sub(to - from));
            let new = head.into_iter().chain(put.iter().cloned()).chain(tail);
            node.entries.splice(from..to, new);
        }
        if old_tombstones || put.is_empty() {
            node.sum = Sum::of(&node.entries);
        } else {
            let new = Sum::of(put);
            node.sum.mapped = node.sum.mapped - old_data + new.mapped;
            node.sum.lsn = node.sum.lsn.max(new.lsn);
            node.sum.tombstones |= new.tombstones;
        }
        if let Some(last) = put.last() {
            node.end = node.end.max(Key::block(last.end_vblock()));
        }
        if node.entries.len() <= node.stats.fanout {
            node.settle();
            return Vec::new();
        }
        let pack = self.pack_leaf(node, at..at + put.len(), &range, sides);
        split(node, pack, self.edit)
    }

    /// How to split a leaf that got too large by the entries at `new`.
    fn pack_leaf(
        &self,
        node: &Node,
        new: Range<usize>,
        range: &Range<VBlock>,
        sides: Sides,
    ) -> Pack {
        if self.keep != Keep::Nothing {
            // Data and its delta must not be parted; `Even` looks after that.
            return Pack::Even;
        }
        // Only behind or before a run of blocks: whoever has written less than that may go on anywhere,
        // and what was cut off would stay small.
        let run = (node.stats.fanout / 4).saturating_sub(new.len()).max(1);
        let follows = new.start >= run && {
            let before = &node.entries[new.start - 1];
            let is_run = node.entries[new.start - run].vblock().0 + run as u64 == range.start.0;
            is_run && before.end_vblock() == range.start && !before.is(EntryKind::Tombstone)
        };
        let precedes = new.end + run <= node.entries.len() && {
            let next = &node.entries[new.end];
            let last = &node.entries[new.end + run - 1];
            let is_run = last.vblock().0 + 1 == range.end.0 + run as u64;
            is_run && next.vblock() == range.end && !next.is(EntryKind::Tombstone)
        };
        match (follows, precedes) {
            _ if sides.right && new.end == node.entries.len() => Pack::Left,
            _ if sides.left && new.start == 0 => Pack::Right,
            // Whoever writes ascending goes on behind the new entries, so they had better be last
            // in their leaf; and first, for descending.
            (true, false) => Pack::At(new.end),
            (false, true) => Pack::At(new.start),
            _ => Pack::Even,
        }
    }
}

/// What a change did to a child.
enum Outcome {
    /// It has as many entries as before, or more.
    Fits,
    /// It has fewer.
    Shrunk,
    /// It has none and was taken out.
    Gone,
    /// So many nodes were put behind it.
    Split(usize),
}
