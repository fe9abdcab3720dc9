//! Bytes of blocks that were written in part lately, for the next write to the same block.
//!
//! A client that writes less than a block at a time often goes on where it has stopped, or comes back to a block. The second
//! part would have to read what the first has written, and what lies below. So the last ones are kept: a write to another part of
//! the block is written together with what is kept of it, as a delta of several pieces or as the whole block.
//!
//! A part is named by its dvol, block and LSN, which no other write of the dvol ever has. So what is found is what the mapping with
//! that LSN stands for, whatever has happened since; a write that fails leaves a name that no mapping has. (A dvol that is made anew with an id
//! that was there before, as a move does that is begun again, has its LSNs from the beginning: see [`RecentParts::forget`].) It lies in one
//! block, so a crash leaves it or takes it as a whole.
//!
//! Bytes lie in a ring in which the oldest make room for the newest, each behind a head that says what they are. A name has its place by its block: of
//! two blocks with the same place the later one is found. So keeping and finding take as long however many there are, and no memory but that which is
//! taken when the journal's first part is written. What is looked at for each write is small, so that it stays near the processor: 16 bytes for a name, and the ring only
//! once the LSN is right; names of whole blocks, which are asked for by each part that is the first over its block, have a few places of their own.

use std::cell::RefCell;

use flagstone_types::{DvolId, Lsn, VBlock};

use crate::planted::{Bug, planted};
use crate::v2p::Changed;

/// Bytes of parts and their heads that are kept, for each journal, unless something else is asked for: some thirty thousand parts of 512 bytes,
/// or four thousand that have become whole blocks' worth with the holes in them.
pub(super) const RING_BYTES: usize = 16 << 20;

/// Any part fits, and its head.
const RING_MIN_BYTES: usize = 8 << 10;

/// Places for names of deltas, for each journal: twice as many, so that most have one for themselves.
const DELTA_NAMES: usize = 64 << 10;

/// The same for whole blocks, which are mostly asked for while they are filled.
const WHOLE_NAMES: usize = 64;

/// A part that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
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

/// Bytes in the ring: where their head begins, counted from the first byte that was ever put into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pushed(u64);

/// What is said of bytes in the ring, in front of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    dvol: DvolId,
    vblock: VBlock,
    changed: Changed,
}

const HEAD_BYTES: usize = 32;

impl Head {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..16].copy_from_slice(&self.dvol.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.vblock.0.to_le_bytes());
        bytes[24..].copy_from_slice(&self.changed.meta().to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Head> {
        let (dvol, rest) = bytes.split_first_chunk::<16>()?;
        let (vblock, rest) = rest.split_first_chunk::<8>()?;
        let (changed, _) = rest.split_first_chunk::<8>()?;
        Some(Head {
            dvol: DvolId(u128::from_le_bytes(*dvol)),
            vblock: VBlock(u64::from_le_bytes(*vblock)),
            changed: Changed::from_meta(u64::from_le_bytes(*changed))?,
        })
    }
}

/// The LSN that bytes have.
#[derive(Clone, Copy)]
struct Name {
    lsn: Lsn,
    of: Pushed,
}

/// Of nothing: no bytes begin there.
const NO_NAME: Name = Name {
    lsn: Lsn::ZERO,
    of: Pushed(u64::MAX),
};

struct Parts {
    /// A power of two. Bytes number `n` lie at the remainder of `n`.
    ring: Vec<u8>,
    /// How many have been put into it, with those that were left out at its end.
    next: u64,
    /// What was put into it before that is not kept any more, and whole blocks that were put into it before this.
    since: u64,
    wholes_since: u64,
    of_deltas: Vec<Name>,
    of_wholes: Vec<Name>,
}

/// The last parts.
pub(super) struct RecentParts {
    parts: RefCell<Option<Parts>>,
    ring_bytes: usize,
}

/// Which of so many places the name of a block has, a power of two. Neighbours, and blocks that are a power of two apart, have different ones.
fn place_of(dvol: DvolId, vblock: VBlock, places: usize) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let named = vblock.0 ^ dvol.0 as u64;
    // Of the product the upper bits depend on all of the number.
    (named.wrapping_mul(SPREAD) >> (u64::BITS - places.ilog2())) as usize
}

impl Parts {
    fn new(ring_bytes: usize) -> Parts {
        Parts {
            ring: vec![0; ring_bytes],
            next: 0,
            since: 0,
            wholes_since: 0,
            of_deltas: vec![NO_NAME; DELTA_NAMES],
            of_wholes: vec![NO_NAME; WHOLE_NAMES],
        }
    }

    /// Where bytes number `at` lie in the ring.
    fn place(&self, at: u64) -> usize {
        at as usize & (self.ring.len() - 1)
    }

    fn push(&mut self, head: &Head, bytes: &[u8]) -> Pushed {
        let whole = HEAD_BYTES + bytes.len();
        let left = self.ring.len() - self.place(self.next);
        if left < whole {
            self.next += left as u64;
        }
        let pushed = Pushed(self.next);
        let at = self.place(self.next);
        let place = &mut self.ring[at..][..whole];
        place[..HEAD_BYTES].copy_from_slice(&head.encode());
        place[HEAD_BYTES..].copy_from_slice(bytes);
        self.next += whole as u64;
        pushed
    }

    /// What begins there, if it is kept.
    fn at(&self, pushed: Pushed) -> Option<&[u8]> {
        let is_kept = (self.since..self.next).contains(&pushed.0)
            && self.next - pushed.0 <= self.ring.len() as u64;
        is_kept.then(|| &self.ring[self.place(pushed.0)..])
    }

    /// What is said of the bytes that begin there.
    fn head(&self, pushed: Pushed) -> Option<Head> {
        let head = Head::decode(self.at(pushed)?)?;
        let is_forgotten = head.changed.is_whole() && pushed.0 < self.wholes_since;
        (!is_forgotten).then_some(head)
    }

    fn name(&mut self, dvol: DvolId, vblock: VBlock, is_whole: bool) -> &mut Name {
        let names = match is_whole {
            true => &mut self.of_wholes,
            false => &mut self.of_deltas,
        };
        let place = place_of(dvol, vblock, names.len());
        &mut names[place]
    }
}

impl RecentParts {
    /// Keeps nothing yet, and so many bytes at a time: those of [`EngineOptions`](super::EngineOptions).
    pub(super) fn new(ring_bytes: usize) -> RecentParts {
        let ring_bytes = match ring_bytes {
            0 => 0,
            bytes => bytes.max(RING_MIN_BYTES).next_power_of_two(),
        };
        RecentParts {
            parts: RefCell::default(),
            ring_bytes,
        }
    }

    /// Keeps what a block has from the first of `changed` to the last, holes included, until it is said with which LSN; see [`RecentParts::name`].
    pub(super) fn push(
        &self,
        dvol: DvolId,
        vblock: VBlock,
        changed: Changed,
        block: &[u8],
    ) -> Pushed {
        if self.ring_bytes == 0 {
            return NO_NAME.of;
        }
        let mut parts = self.parts.borrow_mut();
        let parts = parts.get_or_insert_with(|| Parts::new(self.ring_bytes));
        let head = Head {
            dvol,
            vblock,
            changed,
        };
        parts.push(&head, &block[changed.range()])
    }

    /// Says with which LSN bytes were written that were kept.
    pub(super) fn name(&self, pushed: Pushed, lsn: Lsn) {
        let mut parts = self.parts.borrow_mut();
        let Some(parts) = parts.as_mut() else {
            return;
        };
        if let Some(head) = parts.head(pushed) {
            let name = parts.name(head.dvol, head.vblock, head.changed.is_whole());
            *name = Name { lsn, of: pushed };
        }
    }

    /// What was written to a block with this LSN, as a whole block or as a delta, if that is kept.
    pub(super) fn find(
        &self,
        dvol: DvolId,
        vblock: VBlock,
        lsn: Lsn,
        is_whole: bool,
    ) -> Option<Kept> {
        let mut parts = self.parts.borrow_mut();
        let parts = parts.as_mut()?;
        let name = *parts.name(dvol, vblock, is_whole);
        if name.lsn != lsn && !planted(Bug::StalePartUsed) {
            return None;
        }
        let head = parts.head(name.of)?;
        (head.vblock == vblock && head.dvol == dvol).then_some(Kept {
            changed: head.changed,
            bytes: name.of,
        })
    }

    /// Copies what was found to its place in a block. Nothing was kept since it was found.
    pub(super) fn copy(&self, kept: &Kept, block: &mut [u8]) {
        let parts = self.parts.borrow();
        let Some(bytes) = parts.as_ref().and_then(|parts| parts.at(kept.bytes)) else {
            unreachable!("it was just found");
        };
        let first = kept.changed.range().start;
        for piece in kept.changed.pieces() {
            let from = HEAD_BYTES + piece.start - first;
            let bytes = &bytes[from..from + piece.len()];
            block[piece].copy_from_slice(bytes);
        }
    }

    /// Keeps nothing that was written so far. To be called when a clone is made with an id that there may have been before: it has LSNs of its source, which
    /// that one may have had, too, for something else.
    pub(super) fn forget_all(&self) {
        if let Some(parts) = self.parts.borrow_mut().as_mut() {
            parts.since = parts.next;
        }
    }

    /// To be called when an empty dvol is made, before it is written to: if there was one with its id before, LSNs come again.
    ///
    /// Keeps no whole block that was written so far. One could be taken for what a write of whole blocks, which keeps nothing, has mapped with the same
    /// LSN. A delta can't, as an empty dvol gets none but by a write of its own: that names
    /// itself, in the place where one with the same name would be.
    pub(super) fn forget(&self) {
        if let Some(parts) = self.parts.borrow_mut().as_mut() {
            parts.wholes_since = parts.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::BLOCK_SIZE;

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
        let pushed = parts.push(DVOL, vblock, changed, &block(lsn));
        parts.name(pushed, Lsn(lsn));
        pushed
    }

    /// What is kept of a block with an LSN, or nothing.
    fn kept(parts: &RecentParts, vblock: VBlock, lsn: u64) -> Option<Vec<u8>> {
        let of = |is_whole| parts.find(DVOL, vblock, Lsn(lsn), is_whole);
        let found = of(false).or(of(true))?;
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
        let parts = RecentParts::new(RING_BYTES);
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
        assert_eq!(parts.find(DvolId(2), BLOCK, Lsn(7), false), None);
        keep(&parts, BLOCK, 8, part(0..1));
        assert!(kept(&parts, BLOCK, 7).is_none() && kept(&parts, BLOCK, 8).is_some());
        // Whole blocks have names of their own.
        keep(&parts, BLOCK, 9, Changed::WHOLE);
        assert!(kept(&parts, BLOCK, 8).is_some() && kept(&parts, BLOCK, 9).is_some());
        assert_eq!(parts.find(DVOL, BLOCK, Lsn(9), false), None);
    }

    /// Two blocks with the same LSN and the same place for their names.
    #[test]
    fn the_bytes_say_whose_they_are() {
        let parts = RecentParts::new(RING_BYTES);
        let place = |vblock| place_of(DVOL, vblock, DELTA_NAMES);
        let other = (6..)
            .map(VBlock)
            .find(|&other| place(other) == place(BLOCK));
        let other = other.expect("there are many");
        keep(&parts, BLOCK, 7, part(0..9));
        assert_eq!(kept(&parts, other, 7), None);
        keep(&parts, other, 7, part(0..9));
        assert_eq!(kept(&parts, BLOCK, 7), None);
        // Of two dvols as well.
        let elsewhere = (2..)
            .map(DvolId)
            .find(|&dvol| place_of(dvol, other, DELTA_NAMES) == place(other));
        let elsewhere = elsewhere.expect("there are many");
        assert_eq!(parts.find(elsewhere, other, Lsn(7), false), None);
    }

    /// Deltas are: see there.
    #[test]
    fn whole_blocks_that_were_forgotten_are_not_found() {
        let parts = RecentParts::new(RING_BYTES);
        parts.forget();
        keep(&parts, BLOCK, 7, Changed::WHOLE);
        keep(&parts, VBlock(9), 6, part(0..9));
        let late = parts.push(DVOL, VBlock(6), Changed::WHOLE, &block(8));
        parts.forget();
        parts.name(late, Lsn(8));
        assert!(kept(&parts, BLOCK, 7).is_none() && kept(&parts, VBlock(6), 8).is_none());
        assert!(kept(&parts, VBlock(9), 6).is_some());
        keep(&parts, BLOCK, 7, Changed::WHOLE);
        assert!(kept(&parts, BLOCK, 7).is_some());
        parts.forget_all();
        assert!(kept(&parts, BLOCK, 7).is_none() && kept(&parts, VBlock(9), 6).is_none());
    }

    /// Of all sizes, several times around: what is found is what was kept, and what is as young as the ring is large is found.
    #[test]
    fn the_oldest_make_room_for_the_newest() {
        let parts = RecentParts::new(RING_BYTES);
        let mut sizes = std::collections::VecDeque::new();
        let (mut found, mut gone) = (0, 0);
        for lsn in 0..40_000 {
            let len = 1 + lsn as usize * 37 % BYTES;
            keep(&parts, VBlock(lsn), lsn, part(0..len));
            sizes.push_front(len);
            assert!(kept(&parts, VBlock(lsn), lsn).is_some());
            for back in [1, 100, 4000, 6000, 10_000] {
                let Some(earlier) = lsn.checked_sub(back) else {
                    continue;
                };
                let is_there = kept(&parts, VBlock(earlier), earlier).is_some();
                let since: usize = sizes.iter().take(back as usize + 1).sum();
                // One may be left out at the end of the ring; or its place is another's.
                assert!(!is_there || since <= RING_BYTES, "{earlier} of {lsn}");
                found += u64::from(is_there);
                gone += u64::from(!is_there);
                if back == 4000 {
                    assert!(since < RING_BYTES * 2 / 3);
                }
            }
        }
        assert!(
            found > 130_000 && gone > 20_000,
            "{found} found, {gone} gone"
        );
    }

    #[test]
    fn of_few_bytes_the_last_block_is_kept() {
        for (asked, bytes) in [(1, 8 << 10), (8 << 10, 8 << 10), (9000, 16 << 10)] {
            let parts = RecentParts::new(asked);
            assert_eq!(parts.ring_bytes, bytes);
            for lsn in 0..20 {
                keep(&parts, VBlock(lsn), lsn, Changed::WHOLE);
                assert!(kept(&parts, VBlock(lsn), lsn).is_some());
                let before = lsn.checked_sub(bytes as u64 / BLOCK_SIZE - 1);
                let before = before.and_then(|before| kept(&parts, VBlock(before), before));
                assert_eq!(before, None, "{asked}");
            }
        }
        let parts = RecentParts::new(0);
        keep(&parts, BLOCK, 7, Changed::WHOLE);
        keep(&parts, BLOCK, 7, part(0..9));
        assert_eq!(kept(&parts, BLOCK, 7), None);
        assert!(parts.parts.borrow().is_none(), "nor is memory taken");
    }

    /// What has made room before it was named is not found.
    #[test]
    fn what_is_named_late_may_be_gone() {
        let parts = RecentParts::new(RING_BYTES);
        let push = |number| parts.push(DVOL, VBlock(number), Changed::WHOLE, &block(number));
        let first = push(0);
        let second = push(1);
        for number in 2..(RING_BYTES / (BYTES + HEAD_BYTES)) as u64 {
            push(number);
        }
        parts.name(first, Lsn(0));
        assert!(kept(&parts, VBlock(0), 0).is_some());
        // It has the place of the first, up to the second.
        push(100);
        parts.name(first, Lsn(0));
        parts.name(second, Lsn(1));
        assert!(kept(&parts, VBlock(0), 0).is_none() && kept(&parts, VBlock(1), 1).is_some());
        parts.push(DVOL, VBlock(101), part(0..1), &block(101));
        assert!(kept(&parts, VBlock(1), 1).is_none());
    }

    #[test]
    fn neighbours_and_streams_that_are_far_apart_have_different_places() {
        for apart in [1, 8, 64, 1 << 10, 1 << 20, 1 << 28] {
            let places: std::collections::BTreeSet<usize> = (0..1000)
                .map(|number| place_of(DVOL, VBlock(number * apart), DELTA_NAMES))
                .collect();
            assert!(places.len() >= 950, "{apart}: {}", places.len());
        }
    }
}
