//! Where a node that got too large is split.
//!
//! A map lives from being filled in order: images are copied in, logs are appended to. So leaves
//! are left full where writing goes on behind them, and are only halved where the next entry may
//! come anywhere. Random inserts end up with leaves about 70 % full.

use std::rc::Rc;

use smallvec::SmallVec;

use super::node::{ENTRIES_MAX, Node, Sum};
use super::{Edit, EntryKind, Key};

/// Entries that a node has at least, on average. Halving leaves a hundred and one of them in nodes of
/// fifty, and deleting merges neighbours that fill four fifths of a node or less: where nothing was
/// merged, two neighbours have more than eighty, so half of that. What is cut off behind a run of
/// blocks may be smaller, but the run, a quarter of a node at least, makes up for it: of all orders
/// tried (`no_order_of_writes_takes_more_nodes_than_are_promised`) none needs more.
const ENTRIES_MIN: u64 = (ENTRIES_MAX * 2 / 5) as u64;

/// Nodes of each level of a map with so many entries, at most, from the leaves up.
fn levels(entries: u64) -> impl Iterator<Item = u64> {
    let up = |&count: &u64| (count > 1).then(|| count.div_ceil(ENTRIES_MIN));
    std::iter::successors(Some(entries), up).skip(1)
}

/// Nodes that a map with so many entries has, at most: one for 39 entries.
pub fn nodes_max(entries: u64) -> u64 {
    levels(entries.max(2)).sum()
}

/// Nodes that a map with so many entries has, at least.
pub fn nodes_min(entries: u64) -> u64 {
    entries / ENTRIES_MAX as u64
}

/// Nodes of a map with so many entries that as many writes copy, at most. Each copies one of each level.
pub fn nodes_copied_max(entries: u64, writes: u64) -> u64 {
    levels(entries).map(|nodes| nodes.min(writes)).sum()
}

/// Nodes that writing `count` consecutive blocks makes dirty, at most, in a map whose root is on
/// `root_level`. On each level those that the range lies in, which is one if it is one block, and
/// one more, since a node may be split or merged with a neighbour; above them perhaps a new root.
pub fn nodes_changed_max(root_level: u8, count: u64) -> u64 {
    let beside = 1 + u64::from(count > 1);
    let mut nodes = count;
    let mut all = 1;
    for _ in 0..=root_level {
        nodes = nodes.div_ceil(ENTRIES_MIN) + beside;
        all += nodes;
    }
    all
}

/// The same for deallocating a range of any length: what lies within goes, what the two ends lie in
/// stays.
pub fn nodes_unmapped_max(root_level: u8) -> u64 {
    let ends = 1 + u64::from(root_level > 0);
    ends * nodes_changed_max(root_level, 1)
}

/// How to spread entries over nodes.
#[derive(Clone, Copy)]
pub(super) enum Pack {
    /// Full nodes from the left; the last one gets the rest.
    Left,
    /// Full nodes from the right; the first one gets the rest.
    Right,
    /// A node begins at this index; full nodes from the left on both sides of it.
    At(usize),
    /// All alike.
    Even,
}

/// Splits a dirty node that has too many entries. It keeps the first ones; the nodes to put behind
/// it are returned.
pub(super) fn split(node: &mut Node, pack: Pack, edit: &mut Edit) -> Vec<Rc<Node>> {
    let cuts = cuts(node, pack);
    let mut right = Vec::with_capacity(cuts.len());
    for &cut in cuts.iter().rev() {
        let entries = node.entries.split_off(cut);
        let slots = if node.is_leaf() {
            Vec::new()
        } else {
            node.slots.split_off(cut)
        };
        let stats = node.stats.clone();
        let next = Node::dirty(node.level, node.birth, node.end, entries, slots, &stats);
        edit.dirtied += 1;
        node.end = Key::block(next.first_key().vblock());
        right.push(Rc::new(next));
    }
    right.reverse();
    node.sum = Sum::of(&node.entries);
    node.settle_cut();
    right
}

/// Indices at which nodes begin, without the first.
fn cuts(node: &Node, pack: Pack) -> SmallVec<[usize; 8]> {
    let (len, max) = (node.entries.len(), node.stats.fanout);
    let middle = match pack {
        Pack::At(index) => index,
        Pack::Left | Pack::Right | Pack::Even => 0,
    };
    let mut cuts = SmallVec::new();
    let mut start = 0;
    while start < middle && middle < len || len - start > max {
        let rest = len - start;
        let size = match pack {
            Pack::At(_) if start < middle => max.min(middle - start),
            Pack::At(_) | Pack::Left => max,
            Pack::Right => (rest - 1) % max + 1,
            Pack::Even => rest.div_ceil(rest.div_ceil(max)),
        };
        let mut cut = start + size;
        if parts_a_pair(node, cut) {
            cut = if size > 1 { cut - 1 } else { cut + 1 };
        }
        cuts.push(cut);
        start = cut;
    }
    cuts
}

/// Whether the entry at `index` is a delta over the data before it.
fn parts_a_pair(node: &Node, index: usize) -> bool {
    let entry = &node.entries[index];
    entry.is(EntryKind::Delta) && node.entries[index - 1].vblock() == entry.vblock()
}
