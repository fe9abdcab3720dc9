//! What a disk has taken but may still lose: the one description of flushes and power loss that the
//! simulated disk and the crash images of recorded runs share.
//!
//! A change (write or discard) is *in flight* from its submission to its completion, then *cached*
//! until a flush covers it, then *durable*: part of `stable`. The rules, sector by sector:
//!
//! 1. A flush that succeeds makes durable what had completed before it was started, nothing else.
//! 2. At power loss each change that is not durable survives wholly, not at all, or in any subset
//!    of its sectors. A sector itself is never torn.
//! 3. A change that is durable, and one that survives, lies over every change that had completed
//!    before it was submitted. Changes in flight at the same time lie over each other in any order.
//! 4. A read returns the newest completed change of each sector, or any change in flight on it.
//! 5. After a failed flush nothing is known about what it should have covered: see
//!    [`WriteCache::fail_flush`] and [`WriteCache::doubt_all`].
//!
//! Invariants: the overlays of a page are in the order in which they lie over each other; an
//! overlay's mask is not empty and each belongs to a cached change; `pages_left` of a cached change
//! counts its overlays and is not zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::image::{DiskImage, Fill, PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};
use crate::rng::{Rng, split_mix};

/// A change in flight: its submission's place in the cache's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChangeId(u64);

/// What a change puts into its sectors.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Bytes(Arc<[u8]>),
    /// A discard that reads as zeros afterwards.
    Zeros,
    /// A discard that reads as noise afterwards.
    Noise(u64),
}

/// What becomes of a change that is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The next flush that covers it makes it durable.
    Open,
    /// It may survive, but no flush makes it durable: an earlier one failed on it.
    Doubtful,
    /// It can still be read but will not survive, whatever is flushed.
    Lost,
}

#[derive(Clone, Debug)]
struct Change {
    offset_bytes: u64,
    len_bytes: u64,
    payload: Payload,
    submitted: u64,
    fate: Fate,
    pages_left: u64,
}

#[derive(Clone, Copy, Debug)]
struct Overlay {
    /// Key in `cached`.
    completed: u64,
    /// Sectors of the page, bit 0 the first.
    mask: u8,
}

/// Which sectors of a change survive. Sector numbers count from the disk's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Survival {
    Nothing,
    Whole,
    /// The sectors below this one.
    Before(u64),
    /// This sector and those above.
    From(u64),
    /// Each sector by the toss of this seed's coin.
    Scattered(u64),
    /// The change's sectors whose bit is set, counted from its first (at most 64 of them).
    Bits {
        first_sector: u64,
        bits: u64,
    },
}

impl Survival {
    pub(crate) fn keeps(self, sector: u64) -> bool {
        match self {
            Survival::Nothing => false,
            Survival::Whole => true,
            Survival::Before(end) => sector < end,
            Survival::From(start) => sector >= start,
            Survival::Scattered(seed) => split_mix(seed ^ split_mix(sector)) & 1 == 1,
            Survival::Bits { first_sector, bits } => {
                let index = sector.wrapping_sub(first_sector);
                index < 64 && bits >> index & 1 == 1
            }
        }
    }

    fn mask(self, page_no: u64) -> u8 {
        match self {
            Survival::Nothing => 0,
            Survival::Whole => 0xff,
            _ => (0..PAGE_SECTORS)
                .filter(|sector| self.keeps(page_no * PAGE_SECTORS + sector))
                .fold(0, |mask, sector| mask | 1 << sector),
        }
    }

    /// Part of the range, in one of the ways in which disks tear. The part may come out as nothing
    /// or everything.
    pub(crate) fn torn(rng: &mut Rng, offset_bytes: u64, len_bytes: u64) -> Survival {
        let first = offset_bytes / SECTOR_BYTES;
        let cut = first + rng.below(len_bytes / SECTOR_BYTES + 1);
        match rng.below(3) {
            0 => Survival::Before(cut),
            1 => Survival::From(cut),
            _ => Survival::Scattered(rng.next_u64()),
        }
    }

    /// Wholly, not at all or torn.
    pub(crate) fn any(rng: &mut Rng, offset_bytes: u64, len_bytes: u64) -> Survival {
        match rng.below(3) {
            0 => Survival::Nothing,
            1 => Survival::Whole,
            _ => Survival::torn(rng, offset_bytes, len_bytes),
        }
    }
}

/// A change that power loss may undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolatileChange {
    /// Where it begins, in bytes.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// True if it had not completed.
    pub in_flight: bool,
}

impl VolatileChange {
    /// Its first sector, counted from the disk's start.
    pub(crate) fn first_sector(&self) -> u64 {
        self.offset_bytes / SECTOR_BYTES
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.len_bytes / SECTOR_BYTES
    }
}

/// See the module's page.
#[derive(Clone)]
pub(crate) struct WriteCache {
    stable: DiskImage,
    clock: u64,
    /// By submission.
    in_flight: BTreeMap<u64, Change>,
    /// By completion.
    cached: BTreeMap<u64, Change>,
    /// By page.
    overlays: BTreeMap<u64, Vec<Overlay>>,
}

impl WriteCache {
    pub(crate) fn new(stable: DiskImage) -> WriteCache {
        WriteCache {
            stable,
            clock: 0,
            in_flight: BTreeMap::new(),
            cached: BTreeMap::new(),
            overlays: BTreeMap::new(),
        }
    }

    pub(crate) fn stable(&self) -> &DiskImage {
        &self.stable
    }

    /// For damage behind the cache's back.
    pub(crate) fn stable_mut(&mut self) -> &mut DiskImage {
        &mut self.stable
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A change begins. Offset and length are multiples of a sector.
    pub(crate) fn submit(
        &mut self,
        offset_bytes: u64,
        len_bytes: u64,
        payload: Payload,
    ) -> ChangeId {
        assert!(offset_bytes.is_multiple_of(SECTOR_BYTES));
        assert!(len_bytes.is_multiple_of(SECTOR_BYTES));
        let submitted = self.tick();
        let change = Change {
            offset_bytes,
            len_bytes,
            payload,
            submitted,
            fate: Fate::Open,
            pages_left: 0,
        };
        self.in_flight.insert(submitted, change);
        ChangeId(submitted)
    }

    /// A change is done; `survival` says which of its sectors have reached the cache. Among changes
    /// that were in flight with it, its place is drawn from `rng`, or on top. False if there is no
    /// such change (the power was cut meanwhile).
    pub(crate) fn complete(
        &mut self,
        id: ChangeId,
        survival: Survival,
        mut rng: Option<&mut Rng>,
    ) -> bool {
        let Some(mut change) = self.in_flight.remove(&id.0) else {
            return false;
        };
        let completed = self.tick();
        for (page_no, mask) in self.pages_of(&change) {
            let mask = mask & survival.mask(page_no);
            if mask == 0 {
                continue;
            }
            let overlays = self.overlays.entry(page_no).or_default();
            let after = overlays
                .iter()
                .rposition(|overlay| overlay.completed < change.submitted);
            let lowest = after.map_or(0, |index| index + 1);
            let place = match &mut rng {
                Some(rng) if lowest < overlays.len() => {
                    lowest + rng.index(overlays.len() - lowest + 1)
                }
                _ => overlays.len(),
            };
            overlays.insert(place, Overlay { completed, mask });
            change.pages_left += 1;
        }
        if change.pages_left > 0 {
            self.cached.insert(completed, change);
        }
        true
    }

    /// No flush makes this change in flight durable any more, though it may survive.
    pub(crate) fn doubt(&mut self, id: ChangeId) {
        if let Some(change) = self.in_flight.get_mut(&id.0) {
            change.fate = Fate::Doubtful;
        }
    }

    /// Pages and sectors a change touches. A discard touches only what holds something, so that
    /// one of a whole device costs what is stored.
    fn pages_of(&self, change: &Change) -> Vec<(u64, u8)> {
        if change.len_bytes == 0 {
            return Vec::new();
        }
        let first = change.offset_bytes / PAGE_BYTES;
        let end = (change.offset_bytes + change.len_bytes).div_ceil(PAGE_BYTES);
        let pages: Vec<u64> = match change.payload {
            Payload::Bytes(_) => (first..end).collect(),
            Payload::Zeros | Payload::Noise(_) => {
                let mut pages: Vec<u64> = self.stable.stored_in(first, end).collect();
                pages.extend(self.overlays.range(first..end).map(|(page_no, _)| *page_no));
                pages.sort_unstable();
                pages.dedup();
                pages
            }
        };
        let masks = pages.into_iter().map(|page_no| {
            let mask = (0..PAGE_SECTORS)
                .filter(|sector| {
                    let at = page_no * PAGE_BYTES + sector * SECTOR_BYTES;
                    at >= change.offset_bytes && at < change.offset_bytes + change.len_bytes
                })
                .fold(0, |mask, sector| mask | 1 << sector);
            (page_no, mask)
        });
        masks.collect()
    }

    /// A flush begins; hand the result to [`WriteCache::flushed`] if it succeeds.
    pub(crate) fn flush_started(&mut self) -> u64 {
        self.tick()
    }

    /// A flush succeeded: what had completed before it started is durable.
    pub(crate) fn flushed(&mut self, started: u64) {
        let covered: Vec<u64> = self
            .cached
            .range(..started)
            .filter(|(_, change)| change.fate == Fate::Open)
            .map(|(completed, _)| *completed)
            .collect();
        for completed in covered {
            self.make_durable(completed, Survival::Whole);
        }
    }

    /// Moves the sectors of a cached change that `survival` keeps into the stable content. What
    /// they lie over is gone for good; what lies over them stays as it is.
    fn make_durable(&mut self, completed: u64, survival: Survival) {
        let Some(change) = self.cached.get(&completed).cloned() else {
            return;
        };
        for page_no in self.pages_with_overlays(&change) {
            let Some(overlays) = self.overlays.get_mut(&page_no) else {
                continue;
            };
            let Some(index) = overlays.iter().position(|o| o.completed == completed) else {
                continue;
            };
            let moved = overlays[index].mask & survival.mask(page_no);
            for overlay in &mut overlays[..=index] {
                overlay.mask &= !moved;
            }
            put_sectors(&mut self.stable, page_no, moved, &change);
            self.drop_empty_overlays(page_no);
        }
    }

    fn pages_with_overlays(&self, change: &Change) -> Vec<u64> {
        let first = change.offset_bytes / PAGE_BYTES;
        let end = (change.offset_bytes + change.len_bytes).div_ceil(PAGE_BYTES);
        let pages = self.overlays.range(first..end);
        pages.map(|(page_no, _)| *page_no).collect()
    }

    fn drop_empty_overlays(&mut self, page_no: u64) {
        let Some(overlays) = self.overlays.get_mut(&page_no) else {
            return;
        };
        let cached = &mut self.cached;
        overlays.retain(|overlay| {
            if overlay.mask != 0 {
                return true;
            }
            if let Some(change) = cached.get_mut(&overlay.completed) {
                change.pages_left -= 1;
                if change.pages_left == 0 {
                    cached.remove(&overlay.completed);
                }
            }
            false
        });
        if overlays.is_empty() {
            self.overlays.remove(&page_no);
        }
    }

    /// A flush failed, as on a real system whose cache gives up what it could not write: each
    /// change since the last success (also those in flight) is durable, still open, or lost, in
    /// whole or in part. What is lost can be read for a while or at once no more; no later flush
    /// brings it back.
    pub(crate) fn fail_flush(&mut self, rng: &mut Rng) {
        let completed: Vec<u64> = self.cached.keys().copied().collect();
        for completed in completed {
            let Some(change) = self.cached.get(&completed) else {
                continue; // A later one became durable over it.
            };
            if change.fate == Fate::Lost {
                continue;
            }
            let (offset_bytes, len_bytes) = (change.offset_bytes, change.len_bytes);
            match rng.below(4) {
                0 => {} // Still open.
                1 => self.make_durable(completed, Survival::Whole),
                2 => self.lose(completed, rng.coin()),
                _ => {
                    let part = Survival::torn(rng, offset_bytes, len_bytes);
                    self.make_durable(completed, part);
                    self.lose(completed, rng.coin());
                }
            }
        }
        for change in self.in_flight.values_mut() {
            if rng.below(4) == 0 {
                change.fate = Fate::Lost;
            }
        }
    }

    /// The change will not survive; `readable` until then or gone at once.
    fn lose(&mut self, completed: u64, readable: bool) {
        let Some(change) = self.cached.get_mut(&completed) else {
            return;
        };
        change.fate = Fate::Lost;
        if readable {
            return;
        }
        let change = change.clone();
        for page_no in self.pages_with_overlays(&change) {
            if let Some(overlays) = self.overlays.get_mut(&page_no) {
                for overlay in overlays.iter_mut().filter(|o| o.completed == completed) {
                    overlay.mask = 0;
                }
            }
            self.drop_empty_overlays(page_no);
        }
    }

    /// A flush failed and what the device made of it is not known: from now on each change since
    /// the last success may or may not survive, and no later flush makes it durable.
    pub(crate) fn doubt_all(&mut self) {
        let changes = self.cached.values_mut().chain(self.in_flight.values_mut());
        for change in changes.filter(|change| change.fate == Fate::Open) {
            change.fate = Fate::Doubtful;
        }
    }

    /// What a read of these sectors returns now. Where changes are in flight, `rng` decides
    /// sector by sector; without one they are not seen.
    pub(crate) fn read(&self, offset_bytes: u64, out: &mut [u8], rng: Option<&mut Rng>) {
        assert!(offset_bytes.is_multiple_of(SECTOR_BYTES));
        assert!((out.len() as u64).is_multiple_of(SECTOR_BYTES));
        self.stable.read(offset_bytes, out);
        let end_bytes = offset_bytes + out.len() as u64;
        let pages = offset_bytes / PAGE_BYTES..end_bytes.div_ceil(PAGE_BYTES);
        for (page_no, overlays) in self.overlays.range(pages) {
            for overlay in overlays {
                let Some(change) = self.cached.get(&overlay.completed) else {
                    continue;
                };
                for sector in (0..PAGE_SECTORS).filter(|sector| overlay.mask >> sector & 1 == 1) {
                    let at = page_no * PAGE_BYTES + sector * SECTOR_BYTES;
                    if at >= offset_bytes && at < end_bytes {
                        change.copy_sector(at, sector_of(out, at - offset_bytes));
                    }
                }
            }
        }
        let Some(rng) = rng else {
            return;
        };
        for change in self.in_flight.values() {
            let start = change.offset_bytes.max(offset_bytes);
            let end = (change.offset_bytes + change.len_bytes).min(end_bytes);
            for at in (start..end).step_by(SECTOR_BYTES as usize) {
                if rng.coin() {
                    change.copy_sector(at, sector_of(out, at - offset_bytes));
                }
            }
        }
    }

    /// The content that reads see, without changes in flight.
    pub(crate) fn visible(&self) -> DiskImage {
        let mut image = self.stable.clone();
        for (page_no, overlays) in &self.overlays {
            for overlay in overlays {
                if let Some(change) = self.cached.get(&overlay.completed) {
                    put_sectors(&mut image, *page_no, overlay.mask, change);
                }
            }
        }
        image
    }

    /// What power loss may undo now: cached changes by completion, then those in flight by
    /// submission. What is sure to be lost is not listed.
    pub(crate) fn volatile(&self) -> Vec<VolatileChange> {
        let survivable = |change: &&Change| change.fate != Fate::Lost;
        let describe = |in_flight: bool| {
            move |change: &Change| VolatileChange {
                offset_bytes: change.offset_bytes,
                len_bytes: change.len_bytes,
                in_flight,
            }
        };
        let cached = self.cached.values().filter(survivable);
        let in_flight = self.in_flight.values().filter(survivable);
        cached
            .map(describe(false))
            .chain(in_flight.map(describe(true)))
            .collect()
    }

    /// The stable content after a power loss in which each change of [`WriteCache::volatile`]
    /// survives as `survivals` says, index for index.
    pub(crate) fn after_power_loss(&self, survivals: &[Survival]) -> DiskImage {
        let mut image = self.stable.clone();
        let mut survivals = survivals.iter().copied();
        let mut survival_of: BTreeMap<u64, Survival> = BTreeMap::new();
        for (completed, change) in &self.cached {
            if change.fate != Fate::Lost {
                let survival = survivals.next().unwrap_or(Survival::Nothing);
                survival_of.insert(*completed, survival);
            }
        }
        for (page_no, overlays) in &self.overlays {
            for overlay in overlays {
                let survival = survival_of.get(&overlay.completed);
                let survival = survival.copied().unwrap_or(Survival::Nothing);
                let mask = overlay.mask & survival.mask(*page_no);
                if let Some(change) = self.cached.get(&overlay.completed) {
                    put_sectors(&mut image, *page_no, mask, change);
                }
            }
        }
        // Those in flight go on top. That loses nothing: where one should lie below a cached
        // change, there is the outcome in which it does not survive.
        for change in self.in_flight.values() {
            if change.fate != Fate::Lost {
                let survival = survivals.next().unwrap_or(Survival::Nothing);
                for (page_no, mask) in self.pages_of(change) {
                    put_sectors(&mut image, page_no, mask & survival.mask(page_no), change);
                }
            }
        }
        image
    }

    /// The process dies but device and kernel go on: what is in flight completes in whole, in part
    /// or not; what is cached stays.
    pub(crate) fn abandon_in_flight(&mut self, rng: &mut Rng) {
        while let Some((&submitted, change)) = self.in_flight.first_key_value() {
            let survival = Survival::any(rng, change.offset_bytes, change.len_bytes);
            self.complete(ChangeId(submitted), survival, Some(rng));
        }
    }

    /// True if nothing is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Pages that take up space when the cached changes are counted. A page that a discard has
    /// zeroed takes none.
    pub(crate) fn allocated_pages(&self) -> u64 {
        let mut count = self.stable.stored_pages();
        for page_no in self.overlays.keys() {
            match (self.is_allocated(*page_no), self.stable.is_stored(*page_no)) {
                (true, false) => count += 1,
                (false, true) => count -= 1,
                _ => {}
            }
        }
        count
    }

    /// True if the page takes up space.
    pub(crate) fn is_allocated(&self, page_no: u64) -> bool {
        let top = self.overlays.get(&page_no).and_then(|all| all.last());
        let Some(top) = top else {
            return self.stable.is_stored(page_no);
        };
        let payload = self
            .cached
            .get(&top.completed)
            .map(|change| &change.payload);
        !(matches!(payload, Some(Payload::Zeros)) && top.mask == 0xff)
    }

    /// Checks the module's invariants.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let mut pages_left: BTreeMap<u64, u64> = BTreeMap::new();
        for overlays in self.overlays.values() {
            assert!(!overlays.is_empty());
            for overlay in overlays {
                assert_ne!(overlay.mask, 0);
                *pages_left.entry(overlay.completed).or_default() += 1;
            }
        }
        let counted = self
            .cached
            .iter()
            .map(|(id, change)| (*id, change.pages_left));
        assert!(pages_left.into_iter().eq(counted));
    }
}

impl Change {
    /// Copies the sector at `at` (bytes from the disk's start) into `out`.
    fn copy_sector(&self, at: u64, out: &mut [u8]) {
        match &self.payload {
            Payload::Bytes(bytes) => {
                let start = (at - self.offset_bytes) as usize;
                out.copy_from_slice(&bytes[start..start + SECTOR_BYTES as usize]);
            }
            Payload::Zeros => out.fill(0),
            Payload::Noise(seed) => Rng::stream(*seed, at).fill(out),
        }
    }
}

fn sector_of(out: &mut [u8], start_bytes: u64) -> &mut [u8] {
    let start = start_bytes as usize;
    &mut out[start..start + SECTOR_BYTES as usize]
}

/// Writes the sectors of `change` in `mask` into `image`.
fn put_sectors(image: &mut DiskImage, page_no: u64, mask: u8, change: &Change) {
    let page_at = page_no * PAGE_BYTES;
    match &change.payload {
        Payload::Zeros if mask == 0xff && image.fill() == Fill::Zeros => image.forget_page(page_no),
        Payload::Bytes(bytes) if mask == 0xff => {
            let start = (page_at - change.offset_bytes) as usize;
            image.write(page_at, &bytes[start..start + PAGE_BYTES as usize]);
        }
        _ => {
            let mut sector_bytes = [0; SECTOR_BYTES as usize];
            for sector in (0..PAGE_SECTORS).filter(|sector| mask >> sector & 1 == 1) {
                let at = page_at + sector * SECTOR_BYTES;
                change.copy_sector(at, &mut sector_bytes);
                image.write(at, &sector_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
