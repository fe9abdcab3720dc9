//! The store without its I/O: what is committed, in which group, and what each group writes.
//!
//! A commit is decided in one step, against what was committed before it, durable or not, so commits never
//! wait for each other. It joins the *open* group. One group at a time is *on its way* to the device; the next follows
//! when it is durable. So whatever a commit was built on is durable before it or with it, and one flush serves all of
//! them. How groups become durable, and what happens if they don't, is in `groups.rs`.
//!
//! Invariants: tables in memory are as after all commits; a slot is never given twice; `Extent::mapped` is never below
//! what the device will have mapped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flagstone_platform::IoBuf;
use flagstone_types::BLOCK_SIZE;

use crate::commit::{Commit, CommitError, Committed, PARTS_MAX, StoreError, Ticket};
use crate::dirty::Dirty;
use crate::extent::Extent;
use crate::groups::{Flying, Writing};
use crate::latest::{Key, Known, LatestPages};
use crate::log::Ring;
use crate::pointer::{BlockPtr, ExtentId, Generation, PagePtr, PageSlot};
use crate::recent::RecentPages;
use crate::spanning::Ledger;
use crate::table::{BlockEntry, place_of};

/// What one group is at most, and what the log may have when another one comes: both together are put in their place in one batch.
#[derive(Clone, Copy)]
pub(crate) struct GroupMax {
    /// Also of one commit.
    pub(crate) bytes: usize,
    /// Counted generously.
    pub(crate) changes: usize,
}

/// One batch of the device layer takes 1,024.
const GROUP_CHANGES: std::ops::RangeInclusive<usize> = 72..=960;
const GROUP_BYTES: std::ops::RangeInclusive<usize> = 512 << 10..=8 << 20;

impl GroupMax {
    /// On a device of this size. However full that is, it has a 64th for overwrites and a 128th for checkpoints, and a batch has to go into that: a
    /// 256th of it is data at most. For each change up to nine blocks are looked for: two nodes of each of three levels of a map, a new root, a page of the
    /// catalogue and its own. A block that is freed counts as two changes, and fifteen are looked for.
    pub(crate) fn of_device(capacity_bytes: u64) -> GroupMax {
        let part = |divisor: u64| usize::try_from(capacity_bytes / divisor).unwrap_or(usize::MAX);
        GroupMax {
            bytes: part(256).clamp(*GROUP_BYTES.start(), *GROUP_BYTES.end()),
            changes: part(7 << 18).clamp(*GROUP_CHANGES.start(), *GROUP_CHANGES.end()),
        }
    }
}

/// Changes that one write can make of those that are there: its own, and two where it cuts a longer one and
/// a freed block.
const CHANGES_PER_WRITE: usize = 3;
/// As [`Dirty::changes_max`](crate::dirty::Dirty::changes_max) counts one.
const CHANGES_PER_FREE: usize = 2;
/// Epochs whose end is remembered.
pub(crate) const EPOCHS_MAX: usize = 256;

/// Slots of pages as the device has them, for pages of which nothing newer is known.
pub(crate) type DeviceSlots = BTreeMap<Key, PageSlot>;

/// Why a commit can't be decided yet, or not at all.
pub(crate) enum Refused {
    /// For good.
    For(CommitError),
    /// The open group is full: when it has been closed.
    GroupFull,
    /// This page of a table has to be loaded.
    NeedsTable(usize, u64),
    /// The slots of its pages have to be looked up.
    NeedsSlot,
    /// So many blocks of the device have to be set aside for this extent.
    NeedsSpace(usize, u64),
}

/// What a commit puts where nothing was.
#[derive(Default)]
pub(crate) struct NewPages {
    /// Blocks of the device that takes, for each extent.
    pub(crate) blocks: BTreeMap<usize, u64>,
    /// Those that have contents.
    fresh: Vec<Key>,
}

/// See the module's page.
pub(crate) struct Machine {
    pub(crate) extents: Vec<Extent>,
    by_id: BTreeMap<ExtentId, usize>,
    pub(crate) latest: LatestPages,
    pub(crate) recent: RecentPages,
    /// Pages of tables that the open group changes, as they were before it.
    pub(crate) open_tables: BTreeMap<(usize, u64), IoBuf>,
    /// Pages that it changes, as they were before it, where that is in memory.
    pub(crate) open_bases: BTreeMap<Key, IoBuf>,
    /// Frames of up to so many bytes may be in the device's journal alone.
    pub(crate) journaled_max: usize,
    /// Commits in the open group that change something.
    pub(crate) open_commits: usize,
    pub(crate) open_changes: usize,
    pub(crate) open_bytes: usize,
    /// Contents that it puts where nothing was since their blocks were allocated.
    pub(crate) open_fresh: BTreeSet<Key>,
    /// Number of the open group; the first is 1.
    pub(crate) open: u64,
    pub(crate) flying: Option<Flying>,
    /// `None`: each group is put in its place at once.
    pub(crate) ring: Option<Ring>,
    /// What is durable in the log and not in its place.
    pub(crate) logged: Dirty,
    /// What is being put there.
    pub(crate) writing: Option<Writing>,
    /// Somebody waits for it, or it has been in the log for long.
    pub(crate) is_due: bool,
    /// The open group can't go on its way before what the log has is in its place.
    pub(crate) needs_room: bool,
    /// Every group up to this one is durable, or lost.
    pub(crate) settled: u64,
    pub(crate) epoch: u64,
    /// The last groups that became durable in epochs that have ended.
    pub(crate) ended: VecDeque<(u64, u64)>,
    last_slot: u64,
    slot_limit: u64,
    pub(crate) group_max: GroupMax,
    /// Generations given to blocks by commits that aren't durable, and their groups.
    pub(crate) given: BTreeMap<(usize, u64), (Generation, u64)>,
    /// Generations that were given by commits which were lost. Somebody may still have pointers with them.
    pub(crate) spent: BTreeMap<(usize, u64), Generation>,
    /// Transactions over several stores.
    pub(crate) ledger: Ledger,
    /// Rises whenever the device gets newer pages: what was looked up before may be old.
    pub(crate) lookups: u64,
    /// Set when nothing can be committed any more.
    pub(crate) dead: Option<StoreError>,
}

impl Machine {
    /// A store without extents whose slots are above `slots.start` and below `slots.end`. It keeps so many bytes of
    /// pages that were read.
    pub(crate) fn new(
        slots: std::ops::Range<u64>,
        group_max: GroupMax,
        recent_bytes: usize,
        ring: Option<Ring>,
    ) -> Machine {
        Machine {
            extents: Vec::new(),
            by_id: BTreeMap::new(),
            latest: LatestPages::default(),
            recent: RecentPages::new(recent_bytes),
            open_tables: BTreeMap::new(),
            open_bases: BTreeMap::new(),
            journaled_max: 0,
            open_commits: 0,
            open_changes: 0,
            open_bytes: 0,
            open_fresh: BTreeSet::new(),
            open: 1,
            flying: None,
            ring,
            logged: Dirty::default(),
            writing: None,
            is_due: false,
            needs_room: false,
            settled: 0,
            epoch: 0,
            ended: VecDeque::new(),
            last_slot: slots.start,
            slot_limit: slots.end,
            group_max,
            given: BTreeMap::new(),
            spent: BTreeMap::new(),
            ledger: Ledger::new(slots.start),
            lookups: 0,
            dead: None,
        }
    }

    pub(crate) fn add_extent(&mut self, extent: Extent) {
        self.by_id.insert(extent.id, self.extents.len());
        self.extents.push(extent);
    }

    pub(crate) fn index_of(&self, id: ExtentId) -> Result<usize, StoreError> {
        self.by_id.get(&id).copied().ok_or(StoreError::NoExtent(id))
    }

    pub(crate) fn extent(&self, index: usize) -> &Extent {
        &self.extents[index]
    }

    pub(crate) fn extent_mut(&mut self, index: usize) -> &mut Extent {
        &mut self.extents[index]
    }

    pub(crate) fn extent_count(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn extent_ids(&self) -> impl Iterator<Item = ExtentId> + '_ {
        self.by_id.keys().copied()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rises with every commit, and when commits are lost: as long as it is the same, so is every page. `None`: nothing
    /// can be committed any more.
    pub(crate) fn moment(&self) -> Option<u64> {
        self.dead.is_none().then_some(self.epoch + self.last_slot)
    }

    /// When this version of a page survives power loss, if it is the newest and the pointer may be used. `None` also if only
    /// the device knows.
    pub(crate) fn newest(&self, ptr: &PagePtr, slot: PageSlot) -> Option<Ticket> {
        let (Ok(index), None) = (self.index_of(ptr.extent), self.dead) else {
            return None;
        };
        let (now, ticket) = match self.latest(index, ptr.page) {
            Some(Known::Version(version)) => (version.slot, self.ticket(version.group)),
            Some(Known::Empty(_)) => return None,
            // Which notes that it is in use.
            None => (self.recent.get((index, ptr.page))?.1, Ticket::default()),
        };
        (now == slot && matches!(self.admits(index, ptr), Ok(true))).then_some(ticket)
    }

    /// The newest of a page, if the device doesn't have it.
    pub(crate) fn latest(&self, index: usize, page: u64) -> Option<Known<'_>> {
        let block = self.extents[index].geometry.block_of(page);
        self.latest.get((index, page), block)
    }

    /// The ticket of what is in a group.
    pub(crate) fn ticket(&self, group: u64) -> Ticket {
        Ticket {
            epoch: self.epoch,
            group,
        }
    }

    /// Whether what a ticket stands for is durable, can be durable yet, or is lost.
    pub(crate) fn state_of(&self, ticket: Ticket) -> Result<bool, StoreError> {
        if ticket.group == 0 {
            return Ok(true);
        }
        if ticket.epoch == self.epoch {
            return match (ticket.group <= self.settled, self.dead) {
                (true, _) => Ok(true),
                (false, Some(error)) => Err(error),
                (false, None) => Ok(false),
            };
        }
        let end = self.ended.iter().find(|(epoch, _)| *epoch == ticket.epoch);
        match end {
            Some((_, durable)) if ticket.group <= *durable => Ok(true),
            _ => Err(self.dead.unwrap_or(StoreError::Lost)),
        }
    }

    /// Whether a pointer may be used. [fss 3: checked on every access]
    pub(crate) fn admits(&self, index: usize, ptr: &PagePtr) -> Result<bool, Refused> {
        let extent = &self.extents[index];
        let block = extent.geometry.block_of(ptr.page);
        match extent.entry(block) {
            Some(entry) => Ok(entry.admits(ptr)),
            None => Err(Refused::NeedsTable(index, place_of(block).0)),
        }
    }

    /// Decides a commit. `found` are slots as the device has them, looked up when `lookups` was what it
    /// is now.
    pub(crate) fn commit(
        &mut self,
        commit: &Commit,
        found: &DeviceSlots,
    ) -> Result<Committed, Refused> {
        self.check_held(commit)?;
        self.decide(commit, found, PARTS_MAX)
    }

    /// The same whoever holds what, with so many parts at most.
    pub(crate) fn decide(
        &mut self,
        commit: &Commit,
        found: &DeviceSlots,
        parts_max: usize,
    ) -> Result<Committed, Refused> {
        if let Some(error) = self.dead {
            return Err(Refused::For(error.into()));
        }
        self.check_shape(commit, parts_max)?;
        self.check_blocks(commit)?;
        let new_pages = self.check_pages(commit, found)?;
        let needed = self.needed_space(commit, &new_pages.blocks)?;
        self.check_room(&needed)?;
        if self.last_slot + 1 >= self.slot_limit {
            // After years of commits: the next start has new ones.
            return Err(Refused::For(StoreError::Stopping.into()));
        }
        Ok(self.apply(commit, new_pages))
    }

    pub(crate) fn locate(&self, ptr: &PagePtr) -> Result<usize, Refused> {
        let index = self
            .index_of(ptr.extent)
            .map_err(|error| Refused::For(error.into()))?;
        match self.extents[index].contains(ptr) {
            true => Ok(index),
            false => Err(invalid("a page beyond its extent")),
        }
    }

    pub(crate) fn check_shape(&self, commit: &Commit, parts_max: usize) -> Result<(), Refused> {
        if commit.parts() > parts_max {
            return Err(invalid("more than fifteen parts"));
        }
        let mut bytes = 0;
        let mut written: Vec<(usize, std::ops::Range<u64>)> = Vec::new();
        for write in &commit.writes {
            let index = self.locate(&write.ptr)?;
            if write.data.len() as u64 != self.extents[index].geometry.page_bytes() {
                return Err(invalid("a page of another length than its extent's"));
            }
            written.push((index, write.ptr.page..write.ptr.page + 1));
            bytes += write.data.len();
        }
        for range in &commit.ranges {
            let index = self.locate(&range.first)?;
            let geometry = self.extents[index].geometry;
            let (len, first) = (range.data.len() as u64, range.first.page);
            let count = len / geometry.page_bytes();
            if count == 0 || len % geometry.page_bytes() != 0 {
                return Err(invalid("a range that is not whole pages"));
            }
            if first % geometry.pages_per_block() + count > geometry.pages_per_block() {
                return Err(invalid("a range that leaves its block"));
            }
            written.push((index, first..first + count));
            bytes += range.data.len();
        }
        if bytes > self.group_max.bytes {
            return Err(invalid("more bytes than one group has"));
        }
        written.sort_by_key(|(index, pages)| (*index, pages.start));
        let overlap = |pair: &[(usize, std::ops::Range<u64>)]| {
            pair[0].0 == pair[1].0 && pair[0].1.end > pair[1].1.start
        };
        if written.windows(2).any(overlap) {
            return Err(invalid("a page written twice"));
        }
        let changes = self.open_changes + CHANGES_PER_WRITE * written.len() + 2 * PARTS_MAX;
        let max = self.group_max;
        let is_full = changes > max.changes || self.open_bytes + bytes > max.bytes;
        match is_full && self.has_open() {
            true => Err(Refused::GroupFull),
            false => Ok(()),
        }
    }

    /// The blocks to allocate are free, the others those of their pointers.
    pub(crate) fn check_blocks(&self, commit: &Commit) -> Result<(), Refused> {
        let mut seen = Vec::new();
        for (ptr, is_allocation) in commit.blocks() {
            let index = self.locate(&ptr.0)?;
            let extent = &self.extents[index];
            let block = extent.geometry.block_of(ptr.0.page);
            if extent.first_page(block) != ptr.0.page {
                return Err(invalid(
                    "a block's pointer that is not that of its first page",
                ));
            }
            if seen.contains(&(index, block)) {
                return Err(invalid("a block allocated, freed or sealed twice"));
            }
            seen.push((index, block));
            let Some(entry) = extent.entry(block) else {
                return Err(Refused::NeedsTable(index, place_of(block).0));
            };
            let is_free = !entry.generation.is_allocated();
            let next = self.next_generation(index, block, entry.generation);
            let fits_next = ptr.0.generation == next && !ptr.0.read_only;
            match is_allocation {
                true if is_free && fits_next => {}
                true => return Err(Refused::For(CommitError::Taken(ptr))),
                false if entry.admits(&ptr.0) => {}
                false => return Err(Refused::For(CommitError::NotOwner(ptr.0))),
            }
        }
        Ok(())
    }

    /// Every page is theirs and has the slot it should. Returns the pages that don't take space yet.
    pub(crate) fn check_pages(
        &self,
        commit: &Commit,
        found: &DeviceSlots,
    ) -> Result<NewPages, Refused> {
        let mut new = NewPages::default();
        for (ptr, slot) in &commit.checks {
            self.check_page(commit, ptr, Some(*slot), false, found)?;
        }
        for write in &commit.writes {
            let (index, now) =
                self.check_page(commit, &write.ptr, Some(write.slot), true, found)?;
            if now == PageSlot(0) {
                *new.blocks.entry(index).or_default() += self.extents[index].device_blocks(1);
            }
        }
        for range in &commit.ranges {
            let index = self.locate(&range.first)?;
            let page_bytes = self.extents[index].geometry.page_bytes();
            for number in 0..range.data.len() as u64 / page_bytes {
                let ptr = range.first.with_page(range.first.page + number);
                let (_, now) = self.check_page(commit, &ptr, None, true, found)?;
                if now == PageSlot(0) {
                    *new.blocks.entry(index).or_default() += self.extents[index].device_blocks(1);
                    new.fresh.push((index, ptr.page));
                }
            }
        }
        Ok(new)
    }

    fn check_page(
        &self,
        commit: &Commit,
        ptr: &PagePtr,
        expected: Option<PageSlot>,
        is_written: bool,
        found: &DeviceSlots,
    ) -> Result<(usize, PageSlot), Refused> {
        let index = self.locate(ptr)?;
        let geometry = &self.extents[index].geometry;
        let first = geometry.block_of(ptr.page) * geometry.pages_per_block();
        let block = BlockPtr(ptr.with_page(first));
        if is_written && (commit.frees.contains(&block) || commit.seals.contains(&block)) {
            return Err(invalid("a page written in a block that is freed or sealed"));
        }
        let now = if commit.allocates.contains(&block) {
            // Whatever lay there was freed: its pages are empty.
            PageSlot(0)
        } else {
            if !self.admits(index, ptr)? || (is_written && ptr.read_only) {
                return Err(Refused::For(CommitError::NotOwner(*ptr)));
            }
            match self.latest(index, ptr.page) {
                Some(Known::Version(version)) => version.slot,
                Some(Known::Empty(_)) => PageSlot(0),
                None => {
                    let key = (index, ptr.page);
                    let slot = self.recent.slot(key).or_else(|| found.get(&key).copied());
                    slot.ok_or(Refused::NeedsSlot)?
                }
            }
        };
        match expected {
            Some(slot) if slot != now => Err(Refused::For(CommitError::Conflict(*ptr))),
            _ => Ok((index, now)),
        }
    }

    /// Blocks of the device that a commit takes, for each extent.
    pub(crate) fn needed_space(
        &self,
        commit: &Commit,
        new_blocks: &BTreeMap<usize, u64>,
    ) -> Result<BTreeMap<usize, u64>, Refused> {
        let mut needed = new_blocks.clone();
        for (ptr, _) in commit.blocks() {
            let index = self.locate(&ptr.0)?;
            let extent = &self.extents[index];
            if extent.entry_takes_space(extent.geometry.block_of(ptr.0.page)) {
                *needed.entry(index).or_default() += 1;
            }
        }
        Ok(needed)
    }

    /// Everything that will be written has been set aside.
    pub(crate) fn check_room(&self, needed: &BTreeMap<usize, u64>) -> Result<(), Refused> {
        for (&index, &blocks) in needed {
            if !self.extents[index].has_room_for(blocks) {
                return Err(Refused::NeedsSpace(index, blocks));
            }
        }
        Ok(())
    }

    fn apply(&mut self, commit: &Commit, new: NewPages) -> Committed {
        self.last_slot += 1;
        let (slot, group) = (PageSlot(self.last_slot), self.open);
        for (index, blocks) in new.blocks {
            self.extents[index].note_new(blocks);
        }
        for ptr in &commit.frees {
            let (index, block) = self.set_entry(ptr, |_, next| BlockEntry::freed(next));
            let pages = self.extents[index].pages_of(block);
            self.recent.handle_changed(index, pages.clone());
            for page in pages.clone() {
                self.open_bases.remove(&(index, page));
                self.open_fresh.remove(&(index, page));
            }
            self.latest.free(index, block, pages, group);
            self.open_changes += CHANGES_PER_FREE;
        }
        for ptr in &commit.seals {
            self.set_entry(ptr, |entry, _| BlockEntry {
                read_only: true,
                ..entry
            });
        }
        for ptr in &commit.allocates {
            self.set_entry(ptr, |_, next| BlockEntry::allocated_to(ptr.0.owner, next));
        }
        for write in &commit.writes {
            self.keep_base(&write.ptr);
            self.write(write.ptr, (write.data.clone(), false), slot, group);
        }
        self.open_fresh.extend(new.fresh);
        for range in &commit.ranges {
            self.write(range.first, (range.data.clone(), true), slot, group);
        }
        self.open_commits += usize::from(commit.changes_something());
        // What only depends on others is durable when they are.
        let group = match self.has_open() {
            true => group,
            false => self
                .flying
                .as_ref()
                .map_or(self.settled, |flying| flying.group),
        };
        Committed {
            slot,
            ticket: self.ticket(group),
        }
    }

    /// The generation that a block gets with its next allocation or deallocation: one that nobody was given
    /// before, by commits that were lost either.
    pub(crate) fn next_generation(&self, index: usize, block: u64, now: Generation) -> Generation {
        let next = now.next();
        match self.spent.get(&(index, block)) {
            Some(spent) if !next.is_above(*spent) => {
                let above = spent.next();
                if above.is_allocated() == next.is_allocated() {
                    above
                } else {
                    above.next()
                }
            }
            _ => next,
        }
    }

    /// Keeps what the page is, for the log: before the open group changes it.
    fn keep_base(&mut self, ptr: &PagePtr) {
        if self.ring.is_none() {
            return;
        }
        let index = self.by_id[&ptr.extent];
        let key = (index, ptr.page);
        let base = match self.latest(index, ptr.page) {
            Some(Known::Version(version)) if version.group < self.open => version.bytes(),
            // Made by the open group, or empty before it.
            Some(_) => return,
            None => match self.recent.get(key) {
                Some((data, _)) => data.clone(),
                None => return,
            },
        };
        self.open_bases.insert(key, base);
    }

    fn write(
        &mut self,
        first: PagePtr,
        (data, is_shared): (IoBuf, bool),
        slot: PageSlot,
        group: u64,
    ) {
        let index = self.by_id[&first.extent];
        let page_bytes = self.extents[index].geometry.page_bytes() as usize;
        self.open_changes += CHANGES_PER_WRITE;
        self.open_bytes += data.len();
        let end = first.page + (data.len() / page_bytes) as u64;
        self.recent.handle_changed(index, first.page..end);
        self.latest.write(
            (index, first.page),
            (data, is_shared),
            page_bytes,
            slot,
            group,
        );
    }

    fn set_entry(
        &mut self,
        ptr: &BlockPtr,
        change: impl Fn(BlockEntry, Generation) -> BlockEntry,
    ) -> (usize, u64) {
        let index = self.by_id[&ptr.0.extent];
        let block = self.extents[index].geometry.block_of(ptr.0.page);
        let entry = self.extents[index].entry(block).expect("looked at before");
        let entry = change(entry, self.next_generation(index, block, entry.generation));
        self.given
            .insert((index, block), (entry.generation, self.open));
        let place = (index, place_of(block).0);
        let extent = &mut self.extents[index];
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.open_tables.entry(place) {
            vacant.insert(extent.encoded_table(place.1));
            self.open_changes += 1;
            self.open_bytes += BLOCK_SIZE as usize;
        }
        let blocks = extent.set_entry(block, entry);
        extent.note_new(blocks);
        (index, block)
    }

    pub(crate) fn has_open(&self) -> bool {
        self.open_changes > 0
    }
}

impl Commit {
    /// The blocks it allocates (true), frees or seals.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (BlockPtr, bool)> + '_ {
        let others = self
            .frees
            .iter()
            .chain(&self.seals)
            .map(|ptr| (*ptr, false));
        self.allocates.iter().map(|ptr| (*ptr, true)).chain(others)
    }
}

fn invalid(what: &'static str) -> Refused {
    Refused::For(CommitError::Invalid(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above what the start has gained the next start gives slots.
    #[test]
    fn only_slots_that_the_start_has_gained_are_given() {
        let mut machine = Machine::new(10..14, GroupMax::of_device(1 << 30), 0, None);
        let mut given = Vec::new();
        let refused = loop {
            match machine.commit(&Commit::default(), &DeviceSlots::new()) {
                Ok(committed) => given.push(committed.slot.0),
                Err(refused) => break refused,
            }
            assert!(given.len() < 10, "{given:?}");
        };
        assert!(given.is_sorted() && given[0] > 10, "{given:?}");
        assert!(given.last().is_some_and(|last| *last <= 14), "{given:?}");
        let stopping = CommitError::Store(StoreError::Stopping);
        assert!(matches!(refused, Refused::For(error) if error == stopping));
    }
}
