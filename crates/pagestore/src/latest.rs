//! What has been committed and is not durable yet: the newest version of each page, and the blocks that
//! were freed. A group of it at a time is on its way to the device.

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_platform::IoBuf;

use crate::pointer::PageSlot;

/// An extent (by its position among the open ones) and a page of it.
pub(crate) type Key = (usize, u64);

/// The newest version of a page.
#[derive(Clone)]
pub(crate) struct Version {
    /// What was written together with it, as one piece.
    whole: IoBuf,
    /// Where in that it begins.
    at: usize,
    /// Names the piece.
    run: u64,
    /// Its memory may be part of something large, such as what a client sent.
    is_shared: bool,
    pub(crate) slot: PageSlot,
    /// The group it becomes durable with.
    pub(crate) group: u64,
}

/// What is known of a page without asking the device.
pub(crate) enum Known<'a> {
    /// Its newest version.
    Version(&'a Version),
    /// Nothing is in it since its block was freed in this group, which is not durable.
    Empty(u64),
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct LatestPages {
    pages: BTreeMap<Key, Version>,
    /// Freed blocks, and the group of the last time.
    freed: BTreeMap<(usize, u64), u64>,
    runs: u64,
}

/// Consecutive pages that were written in one piece.
pub(crate) struct Run {
    pub(crate) extent: usize,
    pub(crate) pages: Range<u64>,
    pub(crate) data: IoBuf,
    pub(crate) slot: PageSlot,
}

impl Version {
    /// A page by itself, of the device.
    pub(crate) fn alone(data: IoBuf, slot: PageSlot) -> Version {
        Version {
            whole: data,
            at: 0,
            run: 0,
            is_shared: false,
            slot,
            group: 0,
        }
    }

    /// The same in memory of its own.
    fn detached(&self, page_bytes: usize) -> Version {
        Version {
            whole: IoBuf::copy_of(&self.bytes(page_bytes)),
            at: 0,
            is_shared: false,
            ..*self
        }
    }

    /// Whether its memory holds nothing else.
    pub(crate) fn is_alone(&self) -> bool {
        !self.is_shared
    }

    /// Its bytes, without copying them.
    pub(crate) fn bytes(&self, page_bytes: usize) -> IoBuf {
        self.whole.slice(self.at..self.at + page_bytes)
    }
}

/// Pieces of consecutive pages that were written at once.
pub(crate) fn runs_of(
    pages: &BTreeMap<Key, Version>,
    page_bytes: impl Fn(usize) -> usize,
) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut last = None;
    for (&(extent, page), version) in pages {
        let size = page_bytes(extent);
        // Consecutive in memory too: some may have been moved since.
        let goes_on = last == Some((extent, page, version.run, version.at));
        match runs.last_mut().filter(|_| goes_on) {
            Some(run) => {
                let begin = version.at - (run.pages.end - run.pages.start) as usize * size;
                run.data = version.whole.slice(begin..version.at + size);
                run.pages.end = page + 1;
            }
            None => runs.push(Run {
                extent,
                pages: page..page + 1,
                data: version.bytes(size),
                slot: version.slot,
            }),
        }
        last = Some((extent, page + 1, version.run, version.at + size));
    }
    runs
}

impl LatestPages {
    /// The newest of a page, if it is not the durable one. `block` is the block it is in.
    pub(crate) fn get(&self, key: Key, block: u64) -> Option<Known<'_>> {
        if let Some(version) = self.pages.get(&key) {
            return Some(Known::Version(version));
        }
        let group = self.freed.get(&(key.0, block))?;
        Some(Known::Empty(*group))
    }

    /// Writes consecutive pages. `is_shared`: the memory may hold other things as well.
    pub(crate) fn write(
        &mut self,
        first: Key,
        (whole, is_shared): (IoBuf, bool),
        page_bytes: usize,
        slot: PageSlot,
        group: u64,
    ) {
        self.runs += 1;
        for (index, at) in (0..whole.len()).step_by(page_bytes).enumerate() {
            let version = Version {
                whole: whole.clone(),
                at,
                run: self.runs,
                is_shared,
                slot,
                group,
            };
            self.pages
                .insert((first.0, first.1 + index as u64), version);
        }
    }

    /// Empties a block.
    pub(crate) fn free(&mut self, extent: usize, block: u64, pages: Range<u64>, group: u64) {
        for page in pages {
            self.pages.remove(&(extent, page));
        }
        self.freed.insert((extent, block), group);
    }

    /// The pages that were written in a group. Those that a later write replaced are not among them.
    pub(crate) fn of_group(&self, group: u64) -> BTreeMap<Key, Version> {
        let of_group = self
            .pages
            .iter()
            .filter(|(_, version)| version.group == group);
        of_group
            .map(|(key, version)| (*key, version.clone()))
            .collect()
    }

    /// From now on pages of these are held in memory that holds nothing else.
    pub(crate) fn detach(
        &mut self,
        pages: &mut BTreeMap<Key, Version>,
        page_bytes: impl Fn(usize) -> usize,
    ) {
        for (key, version) in pages {
            let size = page_bytes(key.0);
            if version.is_alone() {
                continue;
            }
            *version = version.detached(size);
            if let Some(now) = self
                .pages
                .get_mut(key)
                .filter(|now| now.slot == version.slot)
            {
                *now = version.clone();
            }
        }
    }

    /// Puts back what was forgotten with the rest: blocks that are free, pages that were written since.
    pub(crate) fn put_back(
        &mut self,
        freed: impl Iterator<Item = ((usize, u64), Range<u64>)>,
        pages: &BTreeMap<Key, Version>,
        group: u64,
    ) {
        for ((extent, block), range) in freed {
            self.free(extent, block, range, group);
        }
        self.pages
            .extend(pages.iter().map(|(key, version)| (*key, version.clone())));
    }

    /// Whether a block was freed, and that is not in its place.
    pub(crate) fn is_freed(&self, extent: usize, block: u64) -> bool {
        self.freed.contains_key(&(extent, block))
    }

    /// The device has these pages. What was written to them since stays.
    pub(crate) fn handle_placed(&mut self, placed: &BTreeMap<Key, Version>) {
        for (key, version) in placed {
            if self
                .pages
                .get(key)
                .is_some_and(|now| now.slot == version.slot)
            {
                self.pages.remove(key);
            }
        }
    }

    /// Blocks freed in a group.
    pub(crate) fn freed_in(&self, group: u64) -> impl Iterator<Item = (usize, u64)> + '_ {
        let of_group = self.freed.iter().filter(move |(_, freed)| **freed == group);
        of_group.map(|(key, _)| *key)
    }

    /// All groups up to this one are in their place: what is newest of them is what the device has. `settle` gets each
    /// such page.
    pub(crate) fn handle_written(&mut self, group: u64, mut settle: impl FnMut(Key, &Version)) {
        self.pages.retain(|key, version| {
            let stays = version.group > group;
            if !stays {
                settle(*key, version);
            }
            stays
        });
        self.freed.retain(|_, freed| *freed > group);
    }

    /// Nothing of it has happened.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.freed.clear();
    }
}
