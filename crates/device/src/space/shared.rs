//! What the cores of a node share about one device: which segments are owned by which journal, and whether the
//! device is fenced. Touched once per 128 MiB, never per request; and twice per flush, without a lock.

use flagstone_platform::locks::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use flagstone_types::{BlockNo, SegmentNo};
use smallvec::SmallVec;

use crate::format::geometry::{Geometry, SEGMENT_CAPACITY_BLOCKS};

/// A handle that can be given to every core.
#[derive(Clone)]
pub struct DeviceShared {
    inner: Arc<Inner>,
}

struct Inner {
    geometry: Geometry,
    /// For each segment the journal that owns it, counted from 1; 0: none does.
    owners: Vec<AtomicU8>,
    free_segments: AtomicU32,
    free_blocks: AtomicU64,
    /// Journals whose ownership is known; segments can be reserved once all are.
    journals_known: AtomicU32,
    given_up: AtomicBool,
    fenced: AtomicBool,
    /// For each journal and who flushes in it, how many flushes have begun and how many have ended, added up: odd while
    /// one is under way. All access is by read-modify-write: see [`DeviceShared::flush_ended`].
    flushes: Vec<AtomicU64>,
    /// Copies of the superblock that are damaged and not rewritten yet.
    damaged_superblocks: Mutex<Vec<BlockNo>>,
}

/// Who flushes in a journal: each one flush after the other, but both at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushedBy {
    /// For those who wait for flushes.
    Flusher,
    /// A checkpoint; before anything is served, the recovery.
    Checkpoint,
}

const FLUSHED_BY_COUNT: usize = 2;

/// Flushes that were under way when another one ended.
pub struct FlushesBeside(SmallVec<[(usize, u64); 16]>);

impl DeviceShared {
    /// For a device of this geometry, with no segment owned yet.
    pub fn new(geometry: Geometry) -> DeviceShared {
        let segment_end = geometry.segments().last().map_or(0, |s| s.0 as usize + 1);
        let free_segments = geometry.segments().count() as u32;
        let free_blocks = geometry.capacity_blocks();
        DeviceShared {
            inner: Arc::new(Inner {
                owners: (0..segment_end).map(|_| AtomicU8::new(FREE)).collect(),
                free_segments: AtomicU32::new(free_segments),
                free_blocks: AtomicU64::new(free_blocks),
                journals_known: AtomicU32::new(0),
                given_up: AtomicBool::new(false),
                fenced: AtomicBool::new(false),
                flushes: (0..usize::from(geometry.journal_count) * FLUSHED_BY_COUNT)
                    .map(|_| AtomicU64::new(0))
                    .collect(),
                damaged_superblocks: Mutex::default(),
                geometry,
            }),
        }
    }

    /// Positions on the device.
    pub fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    /// Takes `segment` for a journal. False if one owns it already, this one included.
    pub fn claim(&self, journal: u16, segment: SegmentNo) -> bool {
        let Some(owner) = self.inner.owners.get(segment.0 as usize) else {
            return false;
        };
        let mark = mark_of(journal);
        let taken = owner.compare_exchange(FREE, mark, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return false;
        }
        let blocks = self.inner.geometry.segment_capacity_blocks(segment);
        self.inner.free_segments.fetch_sub(1, Ordering::AcqRel);
        self.inner.free_blocks.fetch_sub(blocks, Ordering::AcqRel);
        true
    }

    /// Whether a journal owns `segment`.
    pub fn is_owned_by(&self, journal: u16, segment: SegmentNo) -> bool {
        let owner = self.inner.owners.get(segment.0 as usize);
        owner.is_some_and(|owner| owner.load(Ordering::Acquire) == mark_of(journal))
    }

    /// The segments that a journal owns.
    pub fn owned_by(&self, journal: u16) -> impl Iterator<Item = SegmentNo> {
        let segments = self.inner.geometry.segments();
        segments.filter(move |&segment| self.is_owned_by(journal, segment))
    }

    /// Gives a journal's `segment` back, once the record of it is durable.
    pub fn release(&self, journal: u16, segment: SegmentNo) {
        let owner = &self.inner.owners[segment.0 as usize];
        let mark = mark_of(journal);
        let freed = owner.compare_exchange(mark, FREE, Ordering::AcqRel, Ordering::Acquire);
        assert!(freed.is_ok(), "only an owner releases");
        let blocks = self.inner.geometry.segment_capacity_blocks(segment);
        self.inner.free_segments.fetch_add(1, Ordering::AcqRel);
        self.inner.free_blocks.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Says that one more journal has claimed all its segments.
    pub fn journal_known(&self) {
        self.inner.journals_known.fetch_add(1, Ordering::AcqRel);
    }

    /// True once every journal's segments are claimed, so that the rest is known to be free.
    pub fn is_complete(&self) -> bool {
        let known = self.inner.journals_known.load(Ordering::Acquire);
        known == u32::from(self.inner.geometry.journal_count)
    }

    /// Says that a journal can't be opened: those that wait for all to be known wait in vain.
    pub fn give_up(&self) {
        self.inner.given_up.store(true, Ordering::Release);
    }

    /// True after [`DeviceShared::give_up`].
    pub fn is_given_up(&self) -> bool {
        self.inner.given_up.load(Ordering::Acquire)
    }

    /// Takes any free segment for a journal, the lowest first; `None` if there is none or ownership is not known
    /// completely yet.
    pub fn claim_any(&self, journal: u16) -> Option<SegmentNo> {
        if !self.is_complete() || self.inner.free_segments.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.inner
            .geometry
            .segments()
            .find(|&segment| self.claim(journal, segment))
    }

    /// Segments that nobody owns, and how many of those are shorter than others: the first and the last one may be.
    pub fn free_segments(&self) -> (u64, u64) {
        let geometry = &self.inner.geometry;
        let is_short = |segment: SegmentNo| {
            let owner = self.inner.owners.get(segment.0 as usize);
            owner.is_some_and(|owner| owner.load(Ordering::Acquire) == FREE)
                && geometry.segment_capacity_blocks(segment) < SEGMENT_CAPACITY_BLOCKS
        };
        let first = geometry.segments().next();
        let last = SegmentNo(self.inner.owners.len().saturating_sub(1) as u32);
        let others = first.filter(|first| *first != last);
        let short = others.into_iter().chain([last]).filter(|at| is_short(*at));
        let free = self.inner.free_segments.load(Ordering::Acquire);
        (free.into(), short.count() as u64)
    }

    /// Blocks in segments that nobody owns.
    pub fn free_blocks(&self) -> u64 {
        self.inner.free_blocks.load(Ordering::Acquire)
    }

    /// Notes the copies of the superblock that are damaged.
    pub fn set_damaged_superblocks(&self, copies: Vec<BlockNo>) {
        *self.damaged_superblocks() = copies;
    }

    /// The copies of the superblock that the caller has to rewrite: those that are damaged, once.
    pub fn take_damaged_superblocks(&self) -> Vec<BlockNo> {
        std::mem::take(&mut self.damaged_superblocks())
    }

    fn damaged_superblocks(&self) -> MutexGuard<'_, Vec<BlockNo>> {
        let copies = &self.inner.damaged_superblocks;
        copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fences the device: nothing is acknowledged from now on, on any core, until the node has
    /// been restarted. There is no way back.
    pub fn fence(&self) {
        self.inner.fenced.store(true, Ordering::Release);
    }

    /// A flush begins; call this before the device is asked for it. A flush that fails may take with it what another one,
    /// under way at the same time, is about to vouch for: see [`DeviceShared::flush_ended`].
    pub fn flush_begins(&self, journal: u16, by: FlushedBy) {
        let before = self.flushes(journal, by).fetch_add(1, Ordering::AcqRel);
        assert!(before.is_multiple_of(2), "one flush after the other");
    }

    /// A flush has ended; a failed one must have fenced the device before. Returns the flushes that
    /// were under way with it: its success counts once all of them have ended and the device is not
    /// fenced.
    ///
    /// Why no lock is needed. Let F be a flush that succeeds and calls this, and G another one that fails. Each word is
    /// only ever read and changed in one step, so the steps at G's word have one order, and each of them sees all that
    /// happened before those in front of it. F's look at G's word is one of them:
    /// - Before the step with which G begins: then F had ended at the device before G asked it, and what F vouches for was
    ///   not G's to take.
    /// - Between G's beginning and its end: F finds it under way, and waits until it sees another value. The
    ///   first one it can see is that of G's end, and with it the fence.
    /// - After the step with which G ends: F sees the fence, which was there before, when it looks for that after this.
    pub fn flush_ended(&self, journal: u16, by: FlushedBy) -> FlushesBeside {
        let before = self.flushes(journal, by).fetch_add(1, Ordering::AcqRel);
        assert!(!before.is_multiple_of(2), "a flush ends once");
        let seen = self.inner.flushes.iter().map(look).enumerate();
        FlushesBeside(seen.filter(|(_, count)| !count.is_multiple_of(2)).collect())
    }

    /// True if any of these is still under way.
    pub fn any_under_way(&self, beside: &FlushesBeside) -> bool {
        let is_same = |(at, seen): &(usize, u64)| look(&self.inner.flushes[*at]) == *seen;
        beside.0.iter().any(is_same)
    }

    fn flushes(&self, journal: u16, by: FlushedBy) -> &AtomicU64 {
        &self.inner.flushes[usize::from(journal) * FLUSHED_BY_COUNT + by as usize]
    }

    /// True after [`DeviceShared::fence`].
    pub fn is_fenced(&self) -> bool {
        self.inner.fenced.load(Ordering::Acquire)
    }
}

/// What marks a segment that nobody owns.
const FREE: u8 = 0;

/// What marks a journal's segments. There are few journals: [`JOURNALS_MAX`](crate::format::superblock::JOURNALS_MAX).
fn mark_of(journal: u16) -> u8 {
    u8::try_from(journal + 1).expect("the geometry was checked")
}

/// Reads a word as a step of its own among those that change it: unlike a load it can't see an older value than they leave.
fn look(word: &AtomicU64) -> u64 {
    word.fetch_add(0, Ordering::AcqRel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use FlushedBy::{Checkpoint, Flusher};

    fn shared() -> DeviceShared {
        let superblock = crate::format::superblock::sample();
        DeviceShared::new(Geometry::checked(&superblock).expect("valid"))
    }

    #[test]
    fn a_flush_waits_for_those_that_were_under_way_when_it_ended_and_no_others() {
        let shared = shared();
        let end = |journal, by| shared.flush_ended(journal, by);
        shared.flush_begins(0, Flusher);
        shared.flush_begins(1, Flusher);
        shared.flush_begins(0, Checkpoint);
        let beside = end(0, Flusher);
        assert!(shared.any_under_way(&beside));
        end(1, Flusher);
        assert!(shared.any_under_way(&beside), "its own checkpoint's");
        // Others that begin meanwhile don't count, not even those of the same.
        shared.flush_begins(1, Flusher);
        shared.flush_begins(0, Flusher);
        assert!(shared.any_under_way(&beside));
        let of_checkpoint = end(0, Checkpoint);
        assert!(!shared.any_under_way(&beside));
        shared.flush_begins(0, Checkpoint);
        assert!(!shared.any_under_way(&beside), "a later one");
        assert!(shared.any_under_way(&of_checkpoint));
        end(0, Flusher);
        assert!(shared.any_under_way(&of_checkpoint), "the other's");
        end(1, Flusher);
        assert!(!shared.any_under_way(&of_checkpoint));
        let last = end(0, Checkpoint);
        assert!(!shared.any_under_way(&last), "nothing was beside it");
    }

    /// The sum of all is the same as that of whole ones and the short ones.
    #[test]
    fn free_segments_are_counted_with_those_that_are_short() {
        let shared = shared();
        let segments: Vec<SegmentNo> = shared.geometry().segments().collect();
        let capacity = |segment: &SegmentNo| shared.geometry().segment_capacity_blocks(*segment);
        let is_short = |segment: &&SegmentNo| capacity(segment) < SEGMENT_CAPACITY_BLOCKS;
        for taken in 0..=segments.len() {
            let left = &segments[taken..];
            let short = left.iter().filter(is_short).count() as u64;
            assert_eq!(shared.free_segments(), (left.len() as u64, short));
            if let Some(segment) = left.first() {
                assert!(shared.claim(0, *segment));
            }
        }
    }

    #[test]
    #[should_panic(expected = "one flush after the other")]
    fn a_second_flush_of_the_same_is_noticed() {
        let shared = shared();
        shared.flush_begins(1, Flusher);
        shared.flush_begins(1, Flusher);
    }
}
