//! What the cores of a node share about one device: which segments are owned, and whether the
//! device is fenced. Touched once per 128 MiB and once per flush, never per request.

use flagstone_platform::locks::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use flagstone_types::{BlockNo, SegmentNo};

use crate::format::geometry::Geometry;

/// A handle that can be given to every core.
#[derive(Clone)]
pub struct DeviceShared {
    inner: Arc<Inner>,
}

struct Inner {
    geometry: Geometry,
    /// One bit per segment: owned by some journal.
    owned: Vec<AtomicU64>,
    free_segments: AtomicU32,
    free_blocks: AtomicU64,
    /// Journals whose ownership is known; segments can be reserved once all are.
    journals_known: AtomicU32,
    given_up: AtomicBool,
    fenced: AtomicBool,
    /// Flushes that have begun and not ended, on any core.
    flushes: Mutex<Flushes>,
    /// Copies of the superblock that are damaged and not rewritten yet.
    damaged_superblocks: Mutex<Vec<BlockNo>>,
}

#[derive(Default)]
struct Flushes {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl DeviceShared {
    /// For a device of this geometry, with no segment owned yet.
    pub fn new(geometry: Geometry) -> DeviceShared {
        let segment_end = geometry.segments().last().map_or(0, |s| s.0 as usize + 1);
        let free_segments = geometry.segments().count() as u32;
        let free_blocks = geometry.capacity_blocks();
        DeviceShared {
            inner: Arc::new(Inner {
                owned: (0..segment_end.div_ceil(64))
                    .map(|_| AtomicU64::new(0))
                    .collect(),
                free_segments: AtomicU32::new(free_segments),
                free_blocks: AtomicU64::new(free_blocks),
                journals_known: AtomicU32::new(0),
                given_up: AtomicBool::new(false),
                fenced: AtomicBool::new(false),
                flushes: Mutex::default(),
                damaged_superblocks: Mutex::default(),
                geometry,
            }),
        }
    }

    /// Positions on the device.
    pub fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    /// Takes `segment` for the caller. False if somebody owns it already.
    pub fn claim(&self, segment: SegmentNo) -> bool {
        let bit = 1 << (segment.0 % 64);
        let Some(word) = self.inner.owned.get(segment.0 as usize / 64) else {
            return false;
        };
        if word.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return false;
        }
        let blocks = self.inner.geometry.segment_capacity_blocks(segment);
        self.inner.free_segments.fetch_sub(1, Ordering::AcqRel);
        self.inner.free_blocks.fetch_sub(blocks, Ordering::AcqRel);
        true
    }

    /// Gives `segment` back, once the record of it is durable.
    pub fn release(&self, segment: SegmentNo) {
        let bit = 1 << (segment.0 % 64);
        let word = &self.inner.owned[segment.0 as usize / 64];
        assert!(
            word.fetch_and(!bit, Ordering::AcqRel) & bit != 0,
            "only an owner releases"
        );
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

    /// Takes any free segment, the lowest first; `None` if there is none or ownership is not known
    /// completely yet.
    pub fn claim_any(&self) -> Option<SegmentNo> {
        if !self.is_complete() || self.inner.free_segments.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.inner
            .geometry
            .segments()
            .find(|&segment| self.claim(segment))
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

    /// A flush begins. A flush that fails may take with it what another one, under way at the same
    /// time, is about to vouch for: see [`DeviceShared::flush_ended`].
    pub fn flush_begins(&self) -> u64 {
        let mut flushes = self.flushes();
        flushes.next += 1;
        let id = flushes.next;
        flushes.under_way.insert(id);
        id
    }

    /// A flush has ended; a failed one must have fenced the device before. Returns the flushes that
    /// were under way with it: its success counts once all of them have ended and the device is not
    /// fenced.
    pub fn flush_ended(&self, id: u64) -> Vec<u64> {
        let mut flushes = self.flushes();
        flushes.under_way.remove(&id);
        flushes.under_way.iter().copied().collect()
    }

    /// True if any of these is still under way.
    pub fn any_under_way(&self, ids: &[u64]) -> bool {
        let flushes = self.flushes();
        ids.iter().any(|id| flushes.under_way.contains(id))
    }

    fn flushes(&self) -> MutexGuard<'_, Flushes> {
        self.inner
            .flushes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// True after [`DeviceShared::fence`].
    pub fn is_fenced(&self) -> bool {
        self.inner.fenced.load(Ordering::Acquire)
    }
}
