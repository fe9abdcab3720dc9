//! How groups become durable, and how what they changed comes to its place.
//!
//! The usual way: what a group changed is written to the log as one *frame*, a few blocks, and the group is durable (that of one
//! commit alone goes to the device's journal itself, if it is small). Its
//! pages stay in memory until, some groups later, all that the log has is *put in its place*: in one atomic batch of the
//! device layer, together with the log's header, which says that this is so. So a page that many groups change is
//! written once, and at any moment the device has the state after some group, and the log what came after it.
//!
//! Contents that come where nothing is go to their place at once, in one atomic batch with the frame, and are not in it:
//! nobody reads them before what the frame says of their block is there as well. Not if the block was freed by a group
//! that isn't in its place: that would empty them.
//!
//! A group with more other contents than are worth writing twice is put in its place directly, with all that the log has.
//!
//! If a group can't be made durable, everything that isn't durable is forgotten, what was built on it
//! included, and the *epoch* rises. What is durable in the log is never lost: putting it in its place is tried again.
//!
//! Invariants: what is in its place, what is being put there, what the log has and the group on its way follow each other;
//! the changes of a batch don't overlap; no group goes to its place directly while something else is put there, and
//! contents beside a frame only where neither what is put there nor what the log has does anything.

use std::collections::BTreeMap;

use crate::commit::StoreError;
use crate::dirty::{Dirty, write_pages};
use crate::latest::{Key, Version};
use crate::log::{FrameWriter, Mark, Ring};
use crate::machine::{EPOCHS_MAX, Machine};
use flagstone_device::engine::{Change, Handle};
use flagstone_types::BLOCK_SIZE;

/// Contents that come where nothing was are written twice if they are no more than this: with the frame, so that the group is one transfer, and
/// later to their place. That is one small file; of many at a time each is written once.
const FRAMED_FRESH_MAX: usize = 24 << 10;

/// Contents of a group that are worth writing twice, in bytes.
const LOGGED_CONTENTS_MAX: u64 = 256 << 10;

/// A group on its way.
pub(crate) struct Flying {
    pub(crate) group: u64,
    /// What it changed, but for what it puts in its place.
    dirty: Dirty,
    /// What it puts there beside its frame.
    placed: BTreeMap<Key, Version>,
    /// Not to the log, but to its place with all that the log has.
    is_direct: bool,
}

/// What is being put in its place.
pub(crate) struct Writing {
    dirty: Dirty,
    /// All groups up to this one are.
    group: u64,
    mark: Option<Mark>,
}

/// What has to be done for a group.
pub(crate) struct Closed {
    pub(crate) group: u64,
    pub(crate) way: Way,
}

/// How it becomes durable.
pub(crate) enum Way {
    /// These bytes at this place of the log, with zeros up to the end of their last block, and these changes.
    Frame(u64, Vec<u8>, Vec<Change>),
    /// The same bytes there, but in the journal of the device alone: nothing else is changed, and one transfer makes it durable.
    Journaled(u64, Vec<u8>),
    /// By these changes. The log's header is among them if it has to be written: that is for the log's owner to add.
    Direct(Vec<Change>, Option<Mark>),
}

impl Machine {
    /// Whether nothing waits for the device.
    pub(crate) fn is_idle(&self) -> bool {
        let is_in_place = self.logged.is_empty() && self.writing.is_none();
        self.flying.is_none() && !self.has_open() && is_in_place
    }

    /// Puts the open group on its way, if there is something in it, none is, and there is room.
    pub(crate) fn close(&mut self) -> Option<Closed> {
        if self.flying.is_some() || !self.has_open() || self.dead.is_some() {
            return None;
        }
        let group = self.open;
        let mut dirty = self.open_dirty();
        let mut placed = self.take_fresh(&mut dirty);
        let frame = self.frame_of(&dirty);
        if frame.is_none() {
            for (key, version) in std::mem::take(&mut placed) {
                dirty.put(key, version);
            }
        }
        let changes = [&self.logged, &dirty].map(Dirty::changes_max);
        let bytes = [&self.logged, &dirty].map(Dirty::bytes);
        let fits = changes.iter().sum::<usize>() <= self.group_max.changes
            && bytes.iter().sum::<usize>() <= self.group_max.bytes;
        if !fits && !self.logged.is_empty() {
            (self.is_due, self.needs_room) = (true, true);
            return None;
        }
        let way = match frame {
            Some(frame) => {
                let place = self.ring.as_mut()?.place(frame.padded_len() as u64);
                let Some((at, sequence)) = place else {
                    (self.is_due, self.needs_room) = (true, true);
                    return None;
                };
                // It is kept for a while, and what came from a client would be as long.
                self.latest.detach(dirty.pages_mut());
                let frame = frame.finish(sequence);
                match placed.is_empty() && self.is_alone() && frame.len() <= self.journaled_max {
                    true => {
                        if let Some(ring) = &mut self.ring {
                            let len = frame.len().next_multiple_of(BLOCK_SIZE as usize);
                            ring.handle_journaled(at, len as u64);
                        }
                        Way::Journaled(at, frame)
                    }
                    false => {
                        let mut beside = Vec::new();
                        write_pages(&placed, &self.extents, &mut beside);
                        Way::Frame(at, frame, beside)
                    }
                }
            }
            None if self.writing.is_some() => {
                self.needs_room = true;
                return None;
            }
            None => {
                let mut all = self.logged.clone();
                all.absorb(dirty.clone(), &self.extents);
                let ring = self.ring.as_ref().filter(|ring| ring.is_behind());
                Way::Direct(all.changes(&self.extents), ring.map(Ring::mark))
            }
        };
        self.needs_room = false;
        for extent in &mut self.extents {
            extent.handle_closed();
        }
        self.forget_open();
        self.flying = Some(Flying {
            group,
            dirty,
            placed,
            is_direct: matches!(way, Way::Direct(..)),
        });
        self.open += 1;
        Some(Closed { group, way })
    }

    fn forget_open(&mut self) {
        self.open_tables.clear();
        self.open_bases.clear();
        self.open_fresh.clear();
        (self.open_commits, self.open_changes, self.open_bytes) = (0, 0, 0);
    }

    /// Whether one client waits for the open group and nobody else: it is to be quick, rather than cost little.
    fn is_alone(&self) -> bool {
        self.open_commits == 1 && self.journaled_max > 0
    }

    /// Takes what can be put in its place beside a frame out of what a group changes.
    fn take_fresh(&self, dirty: &mut Dirty) -> BTreeMap<Key, Version> {
        if self.ring.is_none() {
            return BTreeMap::new();
        }
        let can_be_placed = |key: &&Key| {
            let block = self.extents[key.0].geometry.block_of(key.1);
            !self.latest.is_freed(key.0, block)
        };
        if self.is_alone() {
            let fresh_bytes = self.open_fresh.iter().map(|key| dirty.bytes_of(key));
            if fresh_bytes.sum::<usize>() <= FRAMED_FRESH_MAX {
                return BTreeMap::new();
            }
        }
        let fresh = self.open_fresh.iter().filter(can_be_placed);
        let taken = fresh.filter_map(|key| dirty.take(key).map(|version| (*key, version)));
        taken.collect()
    }

    /// What the open group changes.
    fn open_dirty(&self) -> Dirty {
        let mut dirty = Dirty::default();
        dirty.freed.extend(self.latest.freed_in(self.open));
        for &(index, page) in self.open_tables.keys() {
            let table = self.extents[index].encoded_table(page);
            dirty.tables.insert((index, page), table);
        }
        for (key, version) in self.latest.written_in(self.open) {
            dirty.put(key, version.clone());
        }
        dirty
    }

    /// The frame for what the open group changes. `None`: it has to be put in its place.
    fn frame_of(&self, dirty: &Dirty) -> Option<FrameWriter> {
        let frame_max = self.ring.as_ref()?.frame_max();
        if dirty.contents_bytes() as u64 > frame_max.min(LOGGED_CONTENTS_MAX) {
            return None;
        }
        let mut frame = FrameWriter::new();
        let id = |index: usize| self.extents[index].id.0;
        for &(index, block) in &dirty.freed {
            frame.freed(id(index), block);
        }
        for (&(index, page), data) in &dirty.tables {
            let old = self.open_tables.get(&(index, page));
            frame.table(id(index), page, old.map(|old| &old[..]), data);
        }
        for (key, version) in dirty.pages() {
            let name = (id(key.0), key.1, version.slot.0);
            let data = version.bytes();
            frame.page(name, self.open_bases.get(key).map(|old| &old[..]), &data);
        }
        (frame.padded_len() as u64 <= frame_max).then_some(frame)
    }

    /// The group on its way is durable. `usage` is what the device layer says of a dvol.
    pub(crate) fn handle_durable(&mut self, usage: impl Fn(Handle) -> Option<(u64, u64)>) {
        let Some(flying) = self.flying.take() else {
            return;
        };
        self.settled = flying.group;
        self.given
            .retain(|_, (_, given_in)| *given_in > flying.group);
        if !flying.placed.is_empty() {
            self.lookups += 1;
            self.latest.handle_placed(&flying.placed);
        }
        for &(index, _) in flying.placed.keys() {
            let extent = &mut self.extents[index];
            extent.handle_placed(extent.device_blocks(1));
        }
        for extent in &mut self.extents {
            extent.handle_logged();
        }
        self.logged.absorb(flying.dirty, &self.extents);
        self.ledger.handle_durable(self.settled);
        if flying.is_direct {
            let mark = self.ring.as_ref().map(Ring::mark);
            self.begin_writing(mark);
            self.handle_written(usage);
        }
    }

    fn begin_writing(&mut self, mark: Option<Mark>) {
        for extent in &mut self.extents {
            extent.handle_writing();
        }
        self.is_due = false;
        self.writing = Some(Writing {
            dirty: std::mem::take(&mut self.logged),
            group: self.settled,
            mark,
        });
    }

    /// Whether it is time to put in its place what the log has. Between two groups: then all in it is durable.
    pub(crate) fn wants_write_back(&self) -> bool {
        let is_free = self.writing.is_none() && self.flying.is_none();
        let is_much = self.logged.changes_max() > self.group_max.changes / 4 * 3
            || self.logged.bytes() > self.group_max.bytes / 2;
        let is_half_full = self.ring.as_ref().is_some_and(Ring::is_half_full);
        let is_wanted = is_half_full || !self.logged.is_empty() && (self.is_due || is_much);
        is_free && is_wanted && self.dead.is_none()
    }

    /// Begins with it: changes, and up to where the log's header has to say that they are in their place.
    pub(crate) fn begin_write_back(&mut self) -> (Vec<Change>, Option<Mark>) {
        let mark = self.ring.as_ref().map(Ring::mark);
        self.begin_writing(mark.clone());
        let writing = self.writing.as_ref();
        let changes = writing.map(|writing| writing.dirty.changes(&self.extents));
        (changes.unwrap_or_default(), mark)
    }

    /// What was being put in its place is there. `usage` is what the device layer says of a dvol.
    pub(crate) fn handle_written(&mut self, usage: impl Fn(Handle) -> Option<(u64, u64)>) {
        let Some(writing) = self.writing.take() else {
            return;
        };
        self.lookups += 1;
        let recent = &mut self.recent;
        self.latest.handle_written(writing.group, |key, version| {
            if version.is_alone() {
                recent.handle_durable(key, &version.bytes(), version.slot);
            }
        });
        if let (Some(ring), Some(mark)) = (&mut self.ring, writing.mark) {
            ring.handle_cleared(mark);
        }
        for extent in &mut self.extents {
            if let Some(usage) = usage(extent.handle) {
                extent.handle_written(usage);
            }
        }
    }

    /// The group on its way has not happened, and nothing that came after it.
    pub(crate) fn handle_lost(
        &mut self,
        error: StoreError,
        usage: impl Fn(Handle) -> Option<(u64, u64)>,
    ) {
        self.ended.push_back((self.epoch, self.settled));
        if self.ended.len() > EPOCHS_MAX {
            self.ended.pop_front();
        }
        let is_frame = self.flying.take().is_some_and(|flying| !flying.is_direct);
        if let Some(ring) = self.ring.as_mut().filter(|_| is_frame) {
            ring.handle_lost();
        }
        self.epoch += 1;
        self.lookups += 1;
        let durable = std::mem::replace(&mut self.settled, self.open);
        self.open += 1;
        for (key, (generation, _)) in std::mem::take(&mut self.given) {
            // A part that was applied again has given what was given before.
            let spent = self.spent.entry(key).or_insert(generation);
            if generation.is_above(*spent) {
                *spent = generation;
            }
        }
        self.handle_lost_records(durable);
        self.forget_open();
        if matches!(error, StoreError::Fenced | StoreError::Stopping) {
            self.dead = Some(error);
        }
        for extent in &mut self.extents {
            extent.handle_lost(usage(extent.handle).unwrap_or_default());
        }
        self.latest.clear();
        let written = self
            .writing
            .as_ref()
            .map(|writing| (&writing.dirty, writing.group));
        for (dirty, group) in written.into_iter().chain([(&self.logged, durable)]) {
            let extents = &self.extents;
            let freed = dirty
                .freed
                .iter()
                .map(|&(index, block)| ((index, block), extents[index].pages_of(block)));
            self.latest.put_back(freed, dirty.pages(), group);
            for (&(index, page), data) in &dirty.tables {
                self.extents[index].put_back_table(page, data);
            }
        }
    }
}
