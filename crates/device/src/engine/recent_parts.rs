//! Bytes of blocks that were written in part lately, for the write beside them.
//!
//! A client that writes less than a block at a time often goes on where it has stopped. The second part would have
//! to read what the first has just written. So the last few are kept: a write that joins one of them is written together
//! with it, as a longer delta or as the whole block.
//!
//! A part is named by its dvol, block and LSN, which no other write of the dvol ever has. So what is found is what the mapping with
//! that LSN stands for, whatever has happened since. (A dvol that is made anew with an id that was there before, as a move does that is begun again, has its LSNs from
//! the beginning: then its parts are forgotten.) It lies in one block, so a crash leaves it or takes it as a whole.

use std::cell::RefCell;
use std::ops::{Deref, Range};
use std::rc::Rc;

use flagstone_types::{BLOCK_SIZE, DvolId, Lsn, VBlock};

/// Of the parts that are kept each has its place in one of so many sets, found by its block, and there are so many in a set. So it takes as long to look for one,
/// however many there are.
const SETS: usize = 32;
const IN_SET: usize = 2;
/// Parts that are kept, for each journal: 256 KiB at most, and as much memory for the next ones.
const PARTS_MAX: usize = SETS * IN_SET;

/// Some bytes of a block.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Part {
    /// Where they begin in their block.
    pub at: usize,
    pub bytes: Vec<u8>,
}

impl Part {
    /// Which bytes of their block.
    pub(super) fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    /// True if it is all of its block.
    pub(super) fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == BLOCK_SIZE
    }
}

/// A part that is about to be written. Unless it is kept then, its memory is there for the next one, however the write ends.
pub(super) struct Lent {
    parts: Rc<RecentParts>,
    part: Part,
}

impl Deref for Lent {
    type Target = Part;

    fn deref(&self) -> &Part {
        &self.part
    }
}

impl Lent {
    /// Keeps what a write has written, instead of what was kept of the same block.
    pub(super) fn keep(mut self, dvol: DvolId, vblock: VBlock, lsn: Lsn) {
        let part = std::mem::take(&mut self.part);
        self.parts.keep(dvol, vblock, lsn, part);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.parts.give_back(std::mem::take(&mut self.part));
    }
}

/// A part with its name.
struct Kept {
    dvol: DvolId,
    vblock: VBlock,
    lsn: Lsn,
    part: Part,
}

impl Kept {
    fn is_of(&self, dvol: DvolId, vblock: VBlock) -> bool {
        self.vblock == vblock && self.dvol == dvol
    }
}

/// Those of a set, the youngest first.
type Set = [Option<Kept>; IN_SET];

/// The last parts.
#[derive(Default)]
pub(super) struct RecentParts {
    sets: RefCell<[Set; SETS]>,
    /// Memory of those that are kept no more.
    spare: RefCell<Vec<Vec<u8>>>,
}

/// The set of a block. Neighbours, and blocks that are a power of two apart, have different ones.
fn set_of(dvol: DvolId, vblock: VBlock) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let named = vblock.0 ^ dvol.0 as u64;
    // Of the product the upper bits depend on all of the number.
    (named.wrapping_mul(SPREAD) >> (u64::BITS - SETS.ilog2())) as usize
}

impl RecentParts {
    fn keep(&self, dvol: DvolId, vblock: VBlock, lsn: Lsn, part: Part) {
        let mut kept = Some(Kept {
            dvol,
            vblock,
            lsn,
            part,
        });
        {
            let set = &mut self.sets.borrow_mut()[set_of(dvol, vblock)];
            // Each goes to the place behind it, up to that of the one that goes.
            for place in set {
                let before = std::mem::replace(place, kept);
                let is_same = before.as_ref().is_none_or(|one| one.is_of(dvol, vblock));
                kept = before;
                if is_same {
                    break;
                }
            }
        }
        if let Some(gone) = kept {
            self.give_back(gone.part);
        }
    }

    /// Keeps nothing more of a dvol: its LSNs may come again.
    pub(super) fn forget(&self, dvol: DvolId) {
        for place in self.sets.borrow_mut().iter_mut().flatten() {
            place.take_if(|one| one.dvol == dvol);
        }
    }

    /// Keeps the memory of a part that is not needed any more, if it has any.
    fn give_back(&self, part: Part) {
        let mut bytes = part.bytes;
        let mut spare = self.spare.borrow_mut();
        if spare.len() < PARTS_MAX && bytes.capacity() > 0 {
            bytes.clear();
            spare.push(bytes);
        }
    }

    fn empty(&self) -> Vec<u8> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(BLOCK_SIZE as usize))
    }

    /// These bytes, in memory that was used before if there is some.
    pub(super) fn part(self: &Rc<Self>, at: usize, bytes: &[u8]) -> Lent {
        let mut copy = self.empty();
        copy.extend_from_slice(bytes);
        self.lent(Part { at, bytes: copy })
    }

    fn lent(self: &Rc<Self>, part: Part) -> Lent {
        let parts = self.clone();
        Lent { parts, part }
    }

    /// What is kept of a block together with new bytes, if both are one piece.
    pub(super) fn joined(
        self: &Rc<Self>,
        dvol: DvolId,
        vblock: VBlock,
        lsn: Lsn,
        at: usize,
        bytes: &[u8],
    ) -> Option<Lent> {
        let sets = self.sets.borrow();
        let mut set = sets[set_of(dvol, vblock)].iter().flatten();
        let found = set.find(|one| one.is_of(dvol, vblock))?;
        if found.lsn != lsn {
            return None;
        }
        let kept = &found.part;
        let (end, kept_end) = (at + bytes.len(), kept.at + kept.bytes.len());
        if at > kept_end || kept.at > end {
            return None;
        }
        let start = at.min(kept.at);
        let mut joined = self.empty();
        joined.resize(end.max(kept_end) - start, 0);
        joined[kept.at - start..kept_end - start].copy_from_slice(&kept.bytes);
        joined[at - start..end - start].copy_from_slice(bytes);
        Some(self.lent(Part {
            at: start,
            bytes: joined,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DVOL: DvolId = DvolId(1);
    const BLOCK: VBlock = VBlock(5);

    fn part(at: usize, bytes: &[u8]) -> Part {
        Part {
            at,
            bytes: bytes.to_vec(),
        }
    }

    fn new() -> Rc<RecentParts> {
        Rc::default()
    }

    fn told(lent: Option<Lent>) -> Option<Part> {
        lent.map(|lent| Part::clone(&lent))
    }

    #[test]
    fn new_bytes_win_and_a_gap_joins_nothing() {
        let parts = new();
        parts.keep(DVOL, BLOCK, Lsn(7), part(10, &[1; 4]));
        let joined = |at, bytes: &[u8]| told(parts.joined(DVOL, BLOCK, Lsn(7), at, bytes));
        assert_eq!(joined(14, &[2; 2]), Some(part(10, &[1, 1, 1, 1, 2, 2])));
        assert_eq!(joined(8, &[2; 3]), Some(part(8, &[2, 2, 2, 1, 1, 1])));
        assert_eq!(joined(11, &[2; 1]), Some(part(10, &[1, 2, 1, 1])));
        assert_eq!(joined(9, &[2; 9]), Some(part(9, &[2; 9])));
        assert_eq!(joined(15, &[2; 2]), None);
        assert_eq!(joined(5, &[2; 4]), None);
        // What another write has put there is not known.
        assert!(parts.joined(DVOL, BLOCK, Lsn(8), 14, &[2]).is_none());
    }

    #[test]
    fn a_dvol_that_is_forgotten_has_no_parts_and_others_keep_theirs() {
        let parts = new();
        let other = DvolId(2);
        for dvol in [DVOL, other] {
            parts.keep(dvol, BLOCK, Lsn(7), part(10, &[1; 4]));
        }
        parts.forget(DVOL);
        let joined = |dvol| parts.joined(dvol, BLOCK, Lsn(7), 14, &[2]);
        assert!(joined(DVOL).is_none());
        assert!(joined(other).is_some());
    }

    #[test]
    fn memory_of_what_is_kept_no_more_is_used_again() {
        let parts = new();
        let keep = |block, bytes: &[u8]| {
            let part = parts.part(0, bytes);
            let at = part.bytes.as_ptr();
            part.keep(DVOL, VBlock(block), Lsn(7));
            at
        };
        let first = keep(1, &[1; 9]);
        let second = keep(1, &[2; 9]);
        assert_eq!(keep(2, &[3; 4]), first, "of a part that another replaced");
        // Of a write that failed, or that nobody waited for.
        let given_up = parts
            .joined(DVOL, VBlock(2), Lsn(7), 4, &[5])
            .expect("joins");
        assert_eq!(*given_up, part(0, &[3, 3, 3, 3, 5]));
        let third = given_up.bytes.as_ptr();
        drop(given_up);
        let again = parts.part(1, &[6]);
        assert_eq!(again.bytes.as_ptr(), third);
        drop(again);
        assert_eq!(keep(2, &[7; 4]), third);
        assert_eq!(keep(3, &[8]), first);
        assert_eq!(parts.spare.borrow().len(), 0, "what is kept isn't lent");
        assert_ne!(second, first);
    }

    #[test]
    fn the_last_of_a_block_is_kept_and_the_oldest_of_its_set_goes() {
        let parts = new();
        let set = set_of(DVOL, BLOCK);
        let mut others = (100..).map(VBlock);
        let mut others = others.by_ref().filter(|other| set_of(DVOL, *other) == set);
        let is_there = |vblock, lsn| parts.joined(DVOL, vblock, Lsn(lsn), 1, &[3]).is_some();
        let keep = |vblock, lsn| parts.keep(DVOL, vblock, Lsn(lsn), part(0, &[1]));
        let [first, second, third] = [(); 3].map(|()| others.next().expect("there are many"));
        keep(BLOCK, 1);
        keep(BLOCK, 2);
        assert!(!is_there(BLOCK, 1) && is_there(BLOCK, 2));
        keep(first, 3);
        assert!(is_there(BLOCK, 2) && is_there(first, 3));
        // Written again, it is the younger one.
        keep(BLOCK, 4);
        keep(second, 5);
        assert!(is_there(BLOCK, 4) && !is_there(first, 3) && is_there(second, 5));
        keep(third, 6);
        assert!(!is_there(BLOCK, 4) && is_there(second, 5) && is_there(third, 6));
        // Forgotten, it leaves its place.
        parts.forget(DVOL);
        keep(first, 7);
        keep(BLOCK, 8);
        assert!(is_there(first, 7) && is_there(BLOCK, 8));
    }

    #[test]
    fn neighbours_and_streams_that_are_far_apart_are_kept_beside_each_other() {
        for apart in [1, 8, 64, 1 << 10, 1 << 20, 1 << 28] {
            let sets: std::collections::BTreeSet<usize> = (0..16)
                .map(|number| set_of(DVOL, VBlock(number * apart)))
                .collect();
            // Two have room in each.
            assert!(sets.len() >= 8, "{apart}: {sets:?}");
        }
    }
}
