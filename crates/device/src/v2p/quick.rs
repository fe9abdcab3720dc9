//! The short way to map one block.
//!
//! Most writes go to nodes that an earlier write has made dirty since the last checkpoint, and
//! either replace one entry of the same kind or add one where there is room: data where nothing is known of the block, a delta over data. Data is also replaced below a delta that stays. Nothing has to be copied,
//! retired, split or merged then, and sums change by what the entry changes. Whatever is not so simple goes
//! the long way ([`Map::change`](super::Map)); `tests::model` goes both.

use std::rc::Rc;

use super::edit::Keep;
use super::node::Node;
use super::packed::Packed;
use super::{Edit, Entry, EntryKind, Key, Map};

/// What the parents must know of a change.
struct Done {
    /// Data entries added: zero or one.
    added: u64,
}

impl Map {
    /// Maps a block, or a delta over it, if that is simple. `None`: it is not, and nothing has changed.
    pub(super) fn write_quickly(
        &mut self,
        edit: &mut Edit,
        entry: &Packed,
        keep: Keep,
    ) -> Option<()> {
        let root = self.root.as_mut()?;
        let node = root.slot.loaded_mut()?;
        let first = node.first_key();
        let done = write(node, (entry, keep), first, &mut edit.displaced)?;
        root.entry.lsn = root.entry.lsn.max(entry.lsn);
        root.entry.meta += done.added;
        Some(())
    }
}

/// `first` is the node's first key.
fn write(
    node: &mut Rc<Node>,
    (entry, keep): (&Packed, Keep),
    first: Key,
    displaced: &mut Vec<Entry>,
) -> Option<Done> {
    let node = Rc::get_mut(node)?;
    if node.birth != entry.birth || !node.is_dirty() || entry.key() < first {
        return None;
    }
    let done = if node.is_leaf() {
        write_in_leaf(node, (entry, keep), first, displaced)?
    } else {
        let index = node.child_index(entry.vblock());
        let first = node.entries[index].key();
        let child = node.slots[index].loaded_mut()?;
        let done = write(child, (entry, keep), first, displaced)?;
        let parent = &mut node.entries[index];
        parent.lsn = parent.lsn.max(entry.lsn);
        parent.meta += done.added;
        done
    };
    node.touch();
    node.sum.lsn = node.sum.lsn.max(entry.lsn);
    node.sum.mapped += done.added;
    node.end = node.end.max(Key::block(entry.end_vblock()));
    Some(done)
}

fn write_in_leaf(
    node: &mut Node,
    (entry, keep): (&Packed, Keep),
    first: Key,
    displaced: &mut Vec<Entry>,
) -> Option<Done> {
    let key = Key::delta(entry.vblock());
    let mut at = node.upper(key, first);
    // There is one: the new entry is not below the first.
    let mut last = at.checked_sub(1)?;
    if keep == Keep::Delta && node.entries[last].key() == key {
        at = last;
        last = at.checked_sub(1)?;
    }
    let before = &mut node.entries[last];
    if before.key() == entry.key() && before.is(entry.kind()) {
        displaced.push(before.entry());
        *before = entry.clone();
        return Some(Done { added: 0 });
    }
    let is_data = entry.is(EntryKind::Data);
    let fits_behind = match is_data {
        true => before.end_vblock() <= entry.vblock(),
        // The data stays below it.
        false => before.key() == Key::block(entry.vblock()) && before.is(EntryKind::Data),
    };
    if !fits_behind || node.entries.len() >= node.stats.fanout {
        return None;
    }
    if node.entries.len() == node.entries.capacity() {
        node.make_room(1);
        node.settle();
    }
    node.entries.insert(at, entry.clone());
    let added = u64::from(is_data);
    Some(Done { added })
}
