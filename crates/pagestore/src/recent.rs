//! Pages that were read lately, as the device has them, so that reading them again or committing on them asks
//! the device nothing. A tree's pages are read several times by each operation.
//!
//! Invariant: what is here of a page is its newest durable version, and nothing newer is on its way: every
//! change of a page goes through the machine, which says so here.
//!
//! Contents of files don't come here: they are read as ranges, and the device layer's cache is theirs.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use flagstone_platform::IoBuf;

use crate::latest::Key;
use crate::pointer::PageSlot;

/// One page.
struct Recent {
    /// Nothing while a newer version is on its way.
    now: Option<(IoBuf, PageSlot)>,
    len_bytes: usize,
    /// Since it was its turn to go.
    was_used: Cell<bool>,
}

/// See the module's page.
pub(crate) struct RecentPages {
    pages: BTreeMap<Key, Recent>,
    /// Each of them once, in the order in which they go. One that was used since comes round once more, so pages that
    /// are read only once push out each other.
    round: VecDeque<Key>,
    bytes: usize,
    bytes_max: usize,
}

impl RecentPages {
    pub(crate) fn new(bytes_max: usize) -> RecentPages {
        RecentPages {
            pages: BTreeMap::new(),
            round: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// A page and its slot, if it is here.
    pub(crate) fn get(&self, key: Key) -> Option<&(IoBuf, PageSlot)> {
        let recent = self.pages.get(&key)?;
        recent.was_used.set(true);
        recent.now.as_ref()
    }

    /// The slot of a page, if it is here.
    pub(crate) fn slot(&self, key: Key) -> Option<PageSlot> {
        let (_, slot) = self.pages.get(&key)?.now.as_ref()?;
        Some(*slot)
    }

    /// A page was read. Its newest version is durable, and this is it.
    pub(crate) fn put(&mut self, key: Key, data: &IoBuf, slot: PageSlot) {
        if data.len() > self.bytes_max {
            return;
        }
        // Memory of its own: what was read into belongs to a pool for transfers.
        let now = Some((IoBuf::copy_of(data), slot));
        if let Some(recent) = self.pages.get_mut(&key) {
            recent.now = now;
            return;
        }
        let recent = Recent {
            now,
            len_bytes: data.len(),
            was_used: Cell::new(false),
        };
        self.bytes += recent.len_bytes;
        self.pages.insert(key, recent);
        self.round.push_back(key);
        self.make_room();
    }

    /// Newer versions of these pages are on their way, or they are being freed.
    pub(crate) fn handle_changed(&mut self, extent: usize, pages: Range<u64>) {
        let range = (extent, pages.start)..(extent, pages.end);
        for (_, recent) in self.pages.range_mut(range) {
            recent.now = None;
        }
    }

    /// A newer version of a page is durable. It stays if the one before it was here.
    pub(crate) fn handle_durable(&mut self, key: Key, data: &IoBuf, slot: PageSlot) {
        if let Some(recent) = self.pages.get_mut(&key) {
            recent.now = Some((data.clone(), slot));
        }
    }

    fn make_room(&mut self) {
        while self.bytes > self.bytes_max {
            let Some(key) = self.round.pop_front() else {
                return;
            };
            let was_used = self.pages.get(&key).map(|recent| &recent.was_used);
            if was_used.is_some_and(|was_used| was_used.replace(false)) {
                self.round.push_back(key);
            } else if let Some(recent) = self.pages.remove(&key) {
                self.bytes -= recent.len_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64;

    fn page(fill: u8) -> IoBuf {
        IoBuf::copy_of(&[fill; PAGE])
    }

    #[test]
    fn a_page_is_gone_while_it_changes_and_back_when_that_is_durable() {
        let mut recent = RecentPages::new(4 * PAGE);
        recent.put((0, 7), &page(1), PageSlot(1));
        recent.put((0, 8), &page(2), PageSlot(1));
        recent.handle_changed(0, 7..8);
        assert!(recent.get((0, 7)).is_none() && recent.slot((0, 7)).is_none());
        assert_eq!(recent.slot((0, 8)), Some(PageSlot(1)));
        recent.handle_durable((0, 7), &page(3), PageSlot(2));
        recent.handle_durable((0, 9), &page(3), PageSlot(2));
        assert_eq!(recent.get((0, 7)).map(|(data, _)| data[0]), Some(3));
        assert!(recent.get((0, 9)).is_none(), "it was not here before");
    }

    #[test]
    fn what_is_read_once_does_not_push_out_what_is_read_again() {
        let mut recent = RecentPages::new(4 * PAGE);
        recent.put((0, 0), &page(9), PageSlot(1));
        for key in 1..100 {
            assert!(recent.get((0, 0)).is_some(), "at page {key}");
            recent.put((0, key), &page(0), PageSlot(1));
            assert!(recent.bytes <= recent.bytes_max);
            assert_eq!(recent.pages.len(), recent.round.len());
        }
        let mut none = RecentPages::new(0);
        none.put((0, 0), &page(9), PageSlot(1));
        assert!(none.get((0, 0)).is_none());
    }
}
