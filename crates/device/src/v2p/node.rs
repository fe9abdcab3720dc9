//! A node of a map's tree in memory.
//!
//! Invariants of every node that is part of a map:
//! - Its entries are in ascending order of keys, and what they cover does not overlap.
//! - An entry for a child has the child's first key, birth and sums, so the entry that covers a
//!   block is always below the last child that starts at or before that block, never further left.
//! - A delta and the data under it are in the same leaf.
//! - `end` lies behind everything the node covers, at the start of a block, and not behind the
//!   start of its right neighbour.
//! - The birth of a node is at least that of everything below it.
//! - A node with a place on the device (a clean one) has only clean nodes below it, and none of its
//!   entries ever changes again: changing it makes it, or a copy of it, dirty.

use std::cell::{Cell, Ref};
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use flagstone_platform::pool::Pooled;
use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::packed::{ENTRY_BYTES, Packed};
use super::slot::{ChildRef, Missing, Slot};
use super::{EntryKind, Key, MapStats};

/// Bytes of a node on the device.
pub(super) const NODE_BYTES: usize = 4096;

/// Bytes in front of the entries.
pub(super) const HEADER_BYTES: usize = 96;

/// Entries that a node can hold.
pub(super) const ENTRIES_MAX: usize = (NODE_BYTES - HEADER_BYTES) / ENTRY_BYTES;

const _: () = assert!(ENTRIES_MAX == 100 && HEADER_BYTES + ENTRIES_MAX * ENTRY_BYTES == NODE_BYTES);

/// The highest level a node can have. A root gets a parent only once it is full, so no map comes
/// near this; it bounds how deep a damaged device can make us go.
pub(super) const LEVEL_MAX: u8 = 15;

/// Where a node lies, once it lies somewhere. A dirty node's place is shared with everybody who
/// must know about it later: copies of the map that hold the node, and lists of retired nodes.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Known(BlockNo, BlockChecksum),
    Later(Pooled<Later>),
}

/// The place of a node that was not read from a device.
#[derive(Debug)]
pub(super) struct Later {
    found: Cell<Found>,
    /// The node is in memory.
    is_held: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Found {
    NotYet,
    Block(BlockNo, BlockChecksum),
    /// The node will not be written: nobody will ever read it again.
    Never,
}

/// What an entry says of a child that will not be written.
const NOWHERE: (BlockNo, BlockChecksum) = (BlockNo(0), BlockChecksum(0));

/// Tells nodes apart without looking at what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Identity {
    Block(BlockNo),
    Unplaced(*const Later),
}

impl Place {
    fn later(stats: &MapStats) -> Place {
        Place::Later(stats.places.share(Later {
            found: Cell::new(Found::NotYet),
            is_held: Cell::new(true),
        }))
    }

    fn found(&self) -> Found {
        match self {
            Place::Known(block, checksum) => Found::Block(*block, *checksum),
            Place::Later(later) => later.found.get(),
        }
    }

    /// The block where the node lies.
    pub(super) fn location(&self) -> Option<(BlockNo, BlockChecksum)> {
        match self.found() {
            Found::Block(block, checksum) => Some((block, checksum)),
            Found::NotYet | Found::Never => None,
        }
    }

    /// What its parent is to say, once that is certain.
    pub(super) fn final_location(&self) -> Option<(BlockNo, BlockChecksum)> {
        match self.found() {
            Found::Block(block, checksum) => Some((block, checksum)),
            Found::NotYet => None,
            Found::Never => Some(NOWHERE),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        match (self.location(), self) {
            (Some((block, _)), _) | (None, &Place::Known(block, _)) => Identity::Block(block),
            (None, Place::Later(later)) => Identity::Unplaced(&raw const **later),
        }
    }

    /// Decides that a node which was not written yet never will be.
    pub(super) fn abandon(&self, stats: &MapStats) {
        if let Place::Later(later) = self
            && let Found::NotYet = later.found.get()
        {
            later.found.set(Found::Never);
            if later.is_held.get() {
                stats.forget_dirty();
            }
        }
    }
}

/// What a parent knows about what is below a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sum {
    /// No LSN below is higher. After a change that lowers LSNs it may be higher than need be.
    pub(super) lsn: Lsn,
    /// Data entries below.
    pub(super) mapped: u64,
    /// Set if there are tombstones below, and perhaps if not.
    pub(super) tombstones: bool,
}

impl Sum {
    pub(super) const EMPTY: Sum = Sum {
        lsn: Lsn::ZERO,
        mapped: 0,
        tombstones: false,
    };

    pub(super) fn of(entries: &[Packed]) -> Sum {
        let mut sum = Sum::EMPTY;
        for entry in entries {
            sum.lsn = sum.lsn.max(entry.lsn);
            match entry.kind() {
                EntryKind::Data => sum.mapped += 1,
                EntryKind::Tombstone => sum.tombstones = true,
                EntryKind::Delta => {}
                EntryKind::Child => {
                    sum.mapped += entry.meta;
                    sum.tombstones |= entry.tombstones_below();
                }
            }
        }
        sum
    }
}

/// A node.
pub(super) struct Node {
    /// Zero for a leaf.
    pub(super) level: u8,
    /// Used since eviction last came by.
    recent: Cell<bool>,
    /// The layer that changed the node last.
    pub(super) birth: LayerNo,
    /// Behind everything the node covers.
    pub(super) end: Key,
    pub(super) sum: Sum,
    pub(super) entries: Vec<Packed>,
    /// The children, parallel to `entries`; empty in a leaf.
    pub(super) slots: Vec<Slot>,
    pub(super) place: Place,
    /// The round in which the node was written to its place; zero if it was read from there.
    written_in: Cell<u64>,
    counted_bytes: usize,
    pub(super) stats: Rc<MapStats>,
}

impl Node {
    /// A node read from the device.
    pub(super) fn loaded(
        level: u8,
        birth: LayerNo,
        end: Key,
        entries: Vec<Packed>,
        place: (BlockNo, BlockChecksum),
        stats: &Rc<MapStats>,
    ) -> Node {
        let slots = match level {
            0 => Vec::new(),
            _ => entries.iter().map(|_| Slot::unloaded()).collect(),
        };
        let place = Place::Known(place.0, place.1);
        Node::new(level, birth, end, entries, slots, place, stats)
    }

    /// A new, dirty node.
    pub(super) fn dirty(
        level: u8,
        birth: LayerNo,
        end: Key,
        entries: Vec<Packed>,
        slots: Vec<Slot>,
        stats: &Rc<MapStats>,
    ) -> Node {
        stats.count_dirty();
        Node::new(
            level,
            birth,
            end,
            entries,
            slots,
            Place::later(stats),
            stats,
        )
    }

    fn new(
        level: u8,
        birth: LayerNo,
        end: Key,
        entries: Vec<Packed>,
        slots: Vec<Slot>,
        place: Place,
        stats: &Rc<MapStats>,
    ) -> Node {
        let mut node = Node {
            level,
            recent: Cell::new(true),
            birth,
            end,
            sum: Sum::of(&entries),
            entries,
            slots,
            place,
            written_in: Cell::new(0),
            counted_bytes: 0,
            stats: stats.clone(),
        };
        node.counted_bytes = node.bytes();
        stats.count_node(node.counted_bytes);
        node
    }

    /// A dirty copy, which shares the children.
    pub(super) fn dirty_copy(&self, birth: LayerNo) -> Node {
        // One more entry is likely, so there is room for a few.
        let mut entries = Vec::with_capacity(room_for(self.entries.len(), self.stats.fanout));
        entries.extend_from_slice(&self.entries);
        let slots = self.slots.clone();
        Node::dirty(self.level, birth, self.end, entries, slots, &self.stats)
    }

    /// Makes a clean node that nobody else holds dirty.
    pub(super) fn renew(&mut self, birth: LayerNo) {
        debug_assert!(!self.is_dirty());
        self.stats.count_dirty();
        if let Place::Later(later) = &self.place {
            later.is_held.set(false);
        }
        self.place = Place::later(&self.stats);
        self.birth = birth;
    }

    pub(super) fn is_dirty(&self) -> bool {
        matches!(self.place.found(), Found::NotYet)
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// The key of the first entry. A node of a map always has one.
    pub(super) fn first_key(&self) -> Key {
        self.entries[0].key()
    }

    /// Gives a dirty node its place.
    pub(super) fn set_place(&self, block: BlockNo, checksum: BlockChecksum) {
        match &self.place {
            Place::Later(later) if self.is_dirty() => {
                later.found.set(Found::Block(block, checksum));
            }
            _ => unreachable!("a node is written once"),
        }
        self.written_in.set(self.stats.round());
        self.stats.forget_dirty();
    }

    /// Whether the node can be read back from the device.
    pub(super) fn is_readable(&self) -> bool {
        self.place.location().is_some() && self.written_in.get() < self.stats.round()
    }

    /// Notes that the node was of use.
    pub(super) fn touch(&self) {
        self.recent.set(true);
        #[cfg(test)]
        self.stats.visits.set(self.stats.visits.get() + 1);
    }

    /// Whether it was of use since this was last asked.
    pub(super) fn take_recent(&self) -> bool {
        self.recent.replace(false)
    }

    /// Index of the first entry whose key is not below `key`.
    pub(super) fn lower(&self, key: Key) -> usize {
        self.entries.partition_point(|entry| entry.key() < key)
    }

    /// The child below which the entry that covers `vblock` is, if there is one; and where a new
    /// one goes. The key of the delta is looked for so that it can't be parted from its data.
    pub(super) fn child_index(&self, vblock: VBlock) -> usize {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else {
            return 0;
        };
        let (key, len) = (Key::delta(vblock), self.entries.len());
        let near = spread(key, first.key(), last.key(), len - 1);
        let is_below = |at: usize| self.entries[at].key() <= key;
        partition_near(len, near, is_below).saturating_sub(1)
    }

    /// Index behind the last entry of a leaf whose key is not above `key`. `first` is the leaf's first key, which its parent's entry has at hand: the first entry
    /// would be one more line of memory to wait for. A wrong one costs time and nothing else, and so does an `end` that lies far behind the last entry.
    pub(super) fn upper(&self, key: Key, first: Key) -> usize {
        let len = self.entries.len();
        let is_below = |at: usize| self.entries[at].key() <= key;
        // With deltas among blocks that are mapped without gaps it is near here, and without them right here.
        let evenly = spread(key, first, self.end, len);
        // Here, if the leaf's end lies far behind: behind a tombstone, or what was once there.
        let gapless = (key.0.saturating_sub(first.0) / 2) as usize;
        let near = match gapless > evenly && gapless < len && is_below(gapless) {
            true => gapless,
            false => evenly,
        };
        partition_near(len, near, is_below)
    }

    /// The children that a change in `range`, which is not empty, may concern.
    pub(super) fn children_for(&self, range: &Range<VBlock>) -> RangeInclusive<usize> {
        let first = self.child_index(range.start);
        let last = VBlock(range.end.0 - 1);
        let is_one = self
            .entries
            .get(first + 1)
            .is_none_or(|next| next.vblock() > last);
        first..=if is_one {
            first
        } else {
            self.child_index(last)
        }
    }

    /// A child together with what is known about it without loading it.
    pub(super) fn child_ref(&self, index: usize) -> ChildRef<'_> {
        let upper = self
            .entries
            .get(index + 1)
            .map(|next| Key::block(next.vblock()));
        ChildRef {
            entry: &self.entries[index],
            level: self.level - 1,
            slot: &self.slots[index],
            upper: upper.unwrap_or(self.end),
            first_known: true,
            stats: &self.stats,
        }
    }

    /// A child, which must be in memory.
    pub(super) fn child(&self, index: usize) -> Result<Ref<'_, Rc<Node>>, Missing> {
        if let Some(child) = self.slots[index].loaded() {
            return Ok(child);
        }
        self.child_ref(index).load()
    }

    /// Makes the vector of entries large enough without wasting much.
    pub(super) fn make_room(&mut self, additional: usize) {
        let wanted = self.entries.len() + additional;
        if wanted > self.entries.capacity() {
            let room = room_for(wanted, self.stats.fanout).max(wanted);
            self.entries.reserve_exact(room - self.entries.len());
        }
    }

    /// After a change: brings the counters up to date and gives back much too large vectors.
    ///
    /// Much later than [`Node::make_room`] makes them larger: deltas come and go, and so would memory with each.
    pub(super) fn settle(&mut self) {
        let fit = room_for(self.entries.len(), self.stats.fanout);
        self.settle_in(fit, fit + fit * 3 / 4);
    }

    /// The same for a node that was cut: what is gone doesn't come back.
    pub(super) fn settle_cut(&mut self) {
        let fit = room_for(self.entries.len(), self.stats.fanout);
        self.settle_in(fit, fit);
    }

    /// Gives back what is more than `fit`, if there is more than `allowed`.
    fn settle_in(&mut self, fit: usize, allowed: usize) {
        if self.entries.capacity() > allowed {
            self.entries.shrink_to(fit);
        }
        let bytes = self.bytes();
        if bytes != self.counted_bytes {
            self.stats.resize_node(self.counted_bytes, bytes);
            self.counted_bytes = bytes;
        }
    }

    fn bytes(&self) -> usize {
        // A node lies behind two counts of its references.
        size_of::<Node>()
            + 2 * size_of::<usize>()
            + self.entries.capacity() * ENTRY_BYTES
            + self.slots.capacity() * size_of::<Slot>()
    }
}

/// Where of `places` a key would lie if keys from `first` to `end` were spread over them evenly.
fn spread(key: Key, first: Key, end: Key, places: usize) -> usize {
    let span = end.0.saturating_sub(first.0).max(1);
    let distance = key.0.saturating_sub(first.0).min(span);
    // Keys have 53 bits, and nodes some hundred entries.
    (distance * places as u64 / span) as usize
}

/// How many of the first `len` numbers are `below`, all of which come before those that aren't. Looks at `near`, which is at most `len`, and then ever farther from there: few
/// looks if the answer is near. Halving takes seven for a hundred, each with a line of memory to wait for; this takes up to thirteen if `near` is far from it.
fn partition_near(len: usize, near: usize, below: impl Fn(usize) -> bool) -> usize {
    let mut step = 1;
    // Those in front of `from` are, those from `to` on aren't.
    let (mut from, mut to) = (0, len);
    if near < len && below(near) {
        from = near + 1;
        while from + step <= len {
            let at = from + step - 1;
            if !below(at) {
                to = at;
                break;
            }
            from = at + 1;
            step *= 2;
        }
    } else {
        to = near;
        while let Some(at) = to.checked_sub(step) {
            if below(at) {
                from = at + 1;
                break;
            }
            to = at;
            step *= 2;
        }
    }
    while from < to {
        let middle = from + (to - from) / 2;
        match below(middle) {
            true => from = middle + 1,
            false => to = middle,
        }
    }
    from
}

/// Room to give a node of `len` entries: an eighth more, and not more than a node can use.
fn room_for(len: usize, fanout: usize) -> usize {
    (len + (len / 8).max(4)).min(fanout.max(len))
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stats.forget_node(self.counted_bytes);
        if self.is_dirty() {
            self.stats.forget_dirty();
        }
        if let Place::Later(later) = &self.place {
            later.is_held.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v2p::Entry;

    fn leaf(keys: &[u64], end: u64) -> Node {
        let entry = |&key: &u64| {
            Packed::new(&Entry {
                key: Key(key),
                kind: EntryKind::Data,
                block: BlockNo(1),
                checksum: BlockChecksum(0),
                birth: LayerNo(1),
                lsn: Lsn(1),
                meta: 0,
            })
        };
        let entries = keys.iter().map(entry).collect();
        Node::dirty(
            0,
            LayerNo(1),
            Key(end),
            entries,
            Vec::new(),
            &Rc::new(MapStats::default()),
        )
    }

    #[test]
    fn few_places_are_looked_at_where_the_answer_is_near() {
        let looks = std::cell::Cell::new(0);
        for len in 0..101 {
            for answer in 0..=len {
                for near in 0..=len {
                    looks.set(0);
                    let below = |at: usize| {
                        looks.set(looks.get() + 1);
                        at < answer
                    };
                    assert_eq!(partition_near(len, near, below), answer, "{near} of {len}");
                    // Right there or right in front of it, as where blocks are mapped without gaps.
                    let is_exact = answer == near || answer == near + 1;
                    let away = answer.abs_diff(near) + 1;
                    let most = match is_exact {
                        true => 2,
                        false => (2 * away.ilog2() + 2).min(13),
                    };
                    assert!(
                        looks.get() <= most,
                        "{} for {answer} near {near} of {len}",
                        looks.get()
                    );
                }
            }
        }
    }

    #[test]
    fn a_place_is_guessed_well() {
        let gapless: Vec<u64> = (0..100).map(|at| 2_000 + 2 * at).collect();
        let one_in_eight: Vec<u64> = (0..100u64)
            .map(|at| 2_000 + at / 9 * 16 + (at % 9 * 2).saturating_sub(u64::from(at % 9 > 4)))
            .collect();
        assert!(one_in_eight.is_sorted() && one_in_eight[8] == 2_015 && one_in_eight[5] == 2_009);
        for (at, &key) in gapless.iter().enumerate() {
            assert_eq!(spread(Key(key + 1), Key(2_000), Key(2_200), 100), at);
        }
        for (at, &key) in one_in_eight.iter().enumerate() {
            let near = spread(Key(key | 1), Key(2_000), Key(2_178), 100);
            assert!(near.abs_diff(at) <= 1, "{near} for {at}");
        }
        // Nothing but what is in range, whatever is asked for.
        assert_eq!(spread(Key(5), Key(10), Key(20), 7), 0);
        assert_eq!(spread(Key(50), Key(10), Key(20), 7), 7);
        assert_eq!(spread(Key(50), Key(10), Key(10), 7), 7);
        assert_eq!(spread(Key::END, Key(0), Key::END, 101), 101);
    }

    /// Keys that lie close together, far apart, in two heaps, and with deltas here and there; ends just behind the last and far away.
    #[test]
    fn a_key_is_found_however_the_others_lie() {
        let deltas = (0..60u64).flat_map(|at| match at % 7 {
            3 | 4 => vec![2 * at, 2 * at + 1],
            _ => vec![2 * at],
        });
        let all: [Vec<u64>; 7] = [
            Vec::new(),
            vec![5],
            (0..100).map(|at| 2 * at).collect(),
            (0..100).map(|at| 1000 + at * at * at).collect(),
            (0..50).chain(100_000..100_050).collect(),
            (0..100)
                .map(|at| (1 << 52) - (1 << (at / 2)) + at)
                .collect::<std::collections::BTreeSet<u64>>()
                .into_iter()
                .collect(),
            deltas.collect(),
        ];
        for keys in all {
            let (first, last) = (
                keys.first().copied().unwrap_or(0),
                keys.last().copied().unwrap_or(0),
            );
            // An end that isn't behind all breaks a promise, but nothing is to be missed for it.
            for end in [0, last + 1, last + 2, last + 1_000_000, Key::END.0] {
                let node = leaf(&keys, end);
                let near = keys
                    .iter()
                    .flat_map(|&key| [key.saturating_sub(1), key, key + 1]);
                for key in near.chain([0, last + 5_000_000]) {
                    let right = keys.partition_point(|&other| other <= key);
                    let covers = VBlock(key >> 1);
                    let child = keys.partition_point(|&other| other <= Key::delta(covers).0);
                    assert_eq!(node.child_index(covers), child.saturating_sub(1));
                    assert_eq!(
                        node.upper(Key(key), Key(first)),
                        right,
                        "{key} among {keys:?} up to {end}"
                    );
                }
            }
        }
    }
}
