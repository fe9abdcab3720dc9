//! Checking the invariants of a tree, as far as it is in memory.

use super::map::entry_for;
use super::node::{Node, Sum};
use super::{EntryKind, Key, Map};

impl Map {
    /// Panics if what is in memory of the map breaks an invariant. For tests: it looks at all of
    /// it.
    pub fn check_invariants(&self) {
        let Some(root) = &self.root else { return };
        let Some(node) = root.slot.loaded() else {
            return;
        };
        assert_eq!(node.level, root.level);
        assert!(
            node.is_leaf() || node.entries.len() > 1,
            "a root with one child"
        );
        node.check(Key::END);
        assert_eq!(root.entry.meta, node.sum.mapped);
        assert!(root.entry.lsn >= node.sum.lsn);
    }
}

impl Node {
    /// `upper`: the node may cover nothing from here on.
    fn check(&self, upper: Key) {
        assert!(!self.entries.is_empty(), "an empty node");
        assert!(
            self.entries.len() <= self.stats.fanout,
            "{} entries",
            self.entries.len()
        );
        assert!(self.end <= upper && !self.end.is_delta());
        assert_eq!(
            self.slots.len(),
            if self.is_leaf() {
                0
            } else {
                self.entries.len()
            }
        );
        let exact = Sum::of(&self.entries);
        assert_eq!(self.sum.mapped, exact.mapped);
        assert!(self.sum.lsn >= exact.lsn);
        assert!(self.sum.tombstones || !exact.tombstones);
        for pair in self.entries.windows(2) {
            assert!(pair[0].key() < pair[1].key(), "keys out of order");
            let is_pair = pair[0].key() == Key::block(pair[1].vblock())
                && pair[0].is(EntryKind::Data)
                && pair[1].is(EntryKind::Delta);
            let gap = pair[1].vblock() >= pair[0].end_vblock();
            assert!(gap || is_pair, "{:?} overlaps", pair[0].entry());
        }
        for (index, entry) in self.entries.iter().enumerate() {
            assert!(entry.birth <= self.birth, "younger than its node");
            assert_eq!(entry.is(EntryKind::Child), !self.is_leaf());
            assert!(Key::block(entry.end_vblock()) <= self.end);
            if self.is_leaf() {
                continue;
            }
            let child_ref = self.child_ref(index);
            let Some(child) = child_ref.slot.loaded() else {
                assert!(
                    !self.is_dirty() || entry.block().0 > 0,
                    "a child without a place"
                );
                continue;
            };
            assert_eq!(child.level + 1, self.level);
            assert!(
                self.place.location().is_none() || !child.is_dirty(),
                "a dirty child of a clean node"
            );
            let exact = entry_for(&child);
            assert_eq!(entry.key(), exact.key());
            assert_eq!((entry.birth, entry.meta), (exact.birth, exact.meta));
            assert!(entry.lsn >= exact.lsn);
            assert!(entry.tombstones_below() || !exact.tombstones_below());
            child.check(child_ref.upper);
        }
    }
}
