//! Bytes of blocks that were written in part lately, for the next write to the same block.
//!
//! A client that writes less than a block at a time often goes on where it has stopped, or comes back to a block. The second
//! part would have to read what the first has written, and what lies below. So the last ones are kept: a write to another part of
//! the block is written together with what is kept of it, as a delta of several pieces or as the whole block.
//!
//! A part is named by its dvol, block and LSN, which no other write of the dvol ever has. So what is found is what the mapping with
//! that LSN stands for, whatever has happened since; a write that fails leaves a name that no mapping has. (A dvol that is made anew with an id
//! that was there before, as a move does that is begun again, has its LSNs from the beginning: then its parts are forgotten.) It lies in one
//! block, so a crash leaves it or takes it as a whole.
//!
//! Bytes lie in a ring in which the oldest make room for the newest. A name has its place by its block: of two blocks with the same place the
//! later one is found. So keeping and finding take as long however many there are, and no memory but that of the ring, which is taken when
//! the journal's first part is written.

use std::cell::RefCell;

use flagstone_types::{BLOCK_SIZE, DvolId, Lsn, VBlock};

use crate::planted::{Bug, planted};
use crate::v2p::Changed;

/// Bytes of parts that are kept, for each journal: some eight thousand of 512 bytes.
const RING_BYTES: usize = 4 << 20;

/// Places for their names, for each journal: twice as many, so that most have one for themselves.
const NAMES: usize = 16 << 10;

/// A part with its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    dvol: DvolId,
    vblock: VBlock,
    lsn: Lsn,
    /// Which bytes of the block.
    changed: Changed,
    bytes: Pushed,
}

impl Kept {
    /// Which bytes of the block.
    pub(super) fn changed(&self) -> Changed {
        self.changed
    }
}

/// Where bytes begin, counted from the first that were ever put into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pushed(u64);

struct Parts {
    /// Bytes number `n` lie at `n % RING_BYTES`.
    ring: Vec<u8>,
    /// How many have been put into it, with those that were left out at its end.
    next: u64,
    names: Vec<Option<Kept>>,
}

/// The last parts.
#[derive(Default)]
pub(super) struct RecentParts(RefCell<Option<Parts>>);

/// Where the name of a block is. Neighbours, and blocks that are a power of two apart, have different places.
fn place_of(dvol: DvolId, vblock: VBlock) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let named = vblock.0 ^ dvol.0 as u64;
    // Of the product the upper bits depend on all of the number.
    (named.wrapping_mul(SPREAD) >> (u64::BITS - NAMES.ilog2())) as usize
}

impl Parts {
    fn new() -> Parts {
        Parts {
            ring: vec![0; RING_BYTES],
            next: 0,
            names: vec![None; NAMES],
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Pushed {
        let left = RING_BYTES - (self.next % RING_BYTES as u64) as usize;
        if left < bytes.len() {
            self.next += left as u64;
        }
        let pushed = Pushed(self.next);
        let at = (self.next % RING_BYTES as u64) as usize;
        self.ring[at..at + bytes.len()].copy_from_slice(bytes);
        self.next += bytes.len() as u64;
        pushed
    }

    /// Whether the bytes that begin there have not made room for others.
    fn has(&self, pushed: Pushed) -> bool {
        self.next - pushed.0 <= RING_BYTES as u64
    }
}

impl RecentParts {
    /// Keeps what a block has from `changed` on to its end, holes included, until it is said what that is; see [`RecentParts::name`].
    pub(super) fn push(&self, changed: Changed, block: &[u8]) -> Pushed {
        let mut parts = self.0.borrow_mut();
        let parts = parts.get_or_insert_with(Parts::new);
        parts.push(&block[changed.range()])
    }

    /// Says what the bytes are that were kept, instead of what was kept of the same block.
    pub(super) fn name(
        &self,
        pushed: Pushed,
        (dvol, vblock, lsn): (DvolId, VBlock, Lsn),
        changed: Changed,
    ) {
        let mut parts = self.0.borrow_mut();
        let parts = parts.get_or_insert_with(Parts::new);
        parts.names[place_of(dvol, vblock)] = Some(Kept {
            dvol,
            vblock,
            lsn,
            changed,
            bytes: pushed,
        });
    }

    /// What was written to a block with this LSN, if that is kept.
    pub(super) fn find(&self, dvol: DvolId, vblock: VBlock, lsn: Lsn) -> Option<Kept> {
        let parts = self.0.borrow();
        let parts = parts.as_ref()?;
        let kept = parts.names[place_of(dvol, vblock)]?;
        let is_current = kept.lsn == lsn || planted(Bug::StalePartUsed);
        let is_it = is_current && kept.vblock == vblock && kept.dvol == dvol;
        (is_it && parts.has(kept.bytes)).then_some(kept)
    }

    /// Copies what was found to its place in a block. Nothing was kept since it was found.
    pub(super) fn copy(&self, kept: &Kept, block: &mut [u8]) {
        let parts = self.0.borrow();
        let Some(parts) = parts.as_ref().filter(|parts| parts.has(kept.bytes)) else {
            unreachable!("it was just found");
        };
        let at = (kept.bytes.0 % RING_BYTES as u64) as usize;
        let first = kept.changed.range().start;
        for piece in kept.changed.pieces() {
            let from = at + piece.start - first;
            let bytes = &parts.ring[from..from + piece.len()];
            block[piece].copy_from_slice(bytes);
        }
    }

    /// Keeps nothing more of a dvol: its LSNs may come again.
    pub(super) fn forget(&self, dvol: DvolId) {
        let mut parts = self.0.borrow_mut();
        for place in parts.iter_mut().flat_map(|parts| &mut parts.names) {
            place.take_if(|one| one.dvol == dvol);
        }
    }
}

const _: () = assert!(RING_BYTES as u64 % BLOCK_SIZE == 0);

#[cfg(test)]
mod tests {
    use super::*;

    const DVOL: DvolId = DvolId(1);
    const BLOCK: VBlock = VBlock(5);
    const BYTES: usize = BLOCK_SIZE as usize;

    /// A block of which each byte says where it is and whose it is.
    fn block(number: u64) -> Vec<u8> {
        let byte = |at: usize| (at as u64 * 31 + number * 7) as u8;
        (0..BYTES).map(byte).collect()
    }

    fn keep(parts: &RecentParts, vblock: VBlock, lsn: u64, changed: Changed) -> Pushed {
        let pushed = parts.push(changed, &block(lsn));
        parts.name(pushed, (DVOL, vblock, Lsn(lsn)), changed);
        pushed
    }

    /// What is kept of a block with an LSN, or nothing.
    fn kept(parts: &RecentParts, vblock: VBlock, lsn: u64) -> Option<Vec<u8>> {
        let found = parts.find(DVOL, vblock, Lsn(lsn))?;
        let mut bytes = vec![0; BYTES];
        parts.copy(&found, &mut bytes);
        for piece in found.changed().pieces() {
            assert_eq!(bytes[piece.clone()], block(lsn)[piece]);
        }
        Some(bytes)
    }

    fn part(range: std::ops::Range<usize>) -> Changed {
        Changed::of(range).expect("within a block")
    }

    #[test]
    fn what_is_found_has_the_same_name_and_is_copied_without_its_holes() {
        let parts = RecentParts::default();
        assert_eq!(kept(&parts, BLOCK, 7), None);
        let changed = part(512..1024).and(&(2048..2560)).expect("granules");
        keep(&parts, BLOCK, 7, changed);
        let bytes = kept(&parts, BLOCK, 7).expect("kept");
        assert!(bytes[1024..2048].iter().all(|&byte| byte == 0), "a hole");
        assert!(
            bytes[..512]
                .iter()
                .chain(&bytes[2560..])
                .all(|&byte| byte == 0)
        );
        // What another write has put there is not known.
        assert_eq!(kept(&parts, BLOCK, 8), None);
        assert_eq!(kept(&parts, VBlock(6), 7), None);
        assert_eq!(parts.find(DvolId(2), BLOCK, Lsn(7)), None);
        keep(&parts, BLOCK, 8, part(0..1));
        assert!(kept(&parts, BLOCK, 7).is_none() && kept(&parts, BLOCK, 8).is_some());
    }

    #[test]
    fn a_dvol_that_is_forgotten_has_no_parts_and_others_keep_theirs() {
        let parts = RecentParts::default();
        parts.forget(DVOL);
        let other = DvolId(2);
        for dvol in [DVOL, other] {
            let pushed = parts.push(part(0..9), &block(7));
            parts.name(pushed, (dvol, BLOCK, Lsn(7)), part(0..9));
        }
        parts.forget(DVOL);
        assert!(parts.find(DVOL, BLOCK, Lsn(7)).is_none());
        assert!(parts.find(other, BLOCK, Lsn(7)).is_some());
    }

    /// Of all sizes, several times around: what is found is what was kept, and what is as young as the ring is large is found.
    #[test]
    fn the_oldest_make_room_for_the_newest() {
        let parts = RecentParts::default();
        let mut sizes = std::collections::VecDeque::new();
        let (mut found, mut gone) = (0, 0);
        for lsn in 0..20_000 {
            let len = 1 + lsn as usize * 37 % BYTES;
            keep(&parts, VBlock(lsn), lsn, part(0..len));
            sizes.push_front(len);
            assert!(kept(&parts, VBlock(lsn), lsn).is_some());
            for back in [1, 100, 1000, 1500, 2500] {
                let Some(earlier) = lsn.checked_sub(back) else {
                    continue;
                };
                let is_there = kept(&parts, VBlock(earlier), earlier).is_some();
                let since: usize = sizes.iter().take(back as usize + 1).sum();
                // One may be left out at the end of the ring; or its place is another's.
                assert!(!is_there || since <= RING_BYTES, "{earlier} of {lsn}");
                found += u64::from(is_there);
                gone += u64::from(!is_there);
                if back == 1000 {
                    assert!(since < RING_BYTES * 2 / 3);
                }
            }
        }
        assert!(
            found > 70_000 && gone > 15_000,
            "{found} found, {gone} gone"
        );
    }

    /// What has made room before it was named is not found.
    #[test]
    fn what_is_named_late_may_be_gone() {
        let parts = RecentParts::default();
        let pushed = parts.push(Changed::WHOLE, &block(7));
        for lsn in 0..(RING_BYTES / BYTES) as u64 - 1 {
            keep(&parts, VBlock(lsn), 100 + lsn, Changed::WHOLE);
        }
        parts.name(pushed, (DVOL, VBlock(9), Lsn(7)), Changed::WHOLE);
        assert!(kept(&parts, VBlock(9), 7).is_some());
        keep(&parts, VBlock(8), 8, part(0..1));
        assert!(kept(&parts, VBlock(9), 7).is_none());
    }

    #[test]
    fn neighbours_and_streams_that_are_far_apart_have_different_places() {
        for apart in [1, 8, 64, 1 << 10, 1 << 20, 1 << 28] {
            let places: std::collections::BTreeSet<usize> = (0..1000)
                .map(|number| place_of(DVOL, VBlock(number * apart)))
                .collect();
            assert!(places.len() >= 900, "{apart}: {}", places.len());
        }
    }
}
