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
    /// Where in that it is.
    at: Range<usize>,
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
    open: Open,
    runs: u64,
}

/// What was written and freed in the newest group, perhaps several times.
#[derive(Default)]
struct Open {
    group: u64,
    pages: Vec<Key>,
    freed: Vec<(usize, u64)>,
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
            at: 0..data.len(),
            whole: data,
            run: 0,
            is_shared: false,
            slot,
            group: 0,
        }
    }

    /// The same in memory of its own.
    fn detached(&self) -> Version {
        Version {
            whole: IoBuf::copy_of(&self.bytes()),
            at: 0..self.len_bytes(),
            is_shared: false,
            ..*self
        }
    }

    /// Whether its memory holds nothing else.
    pub(crate) fn is_alone(&self) -> bool {
        !self.is_shared
    }

    /// Its bytes, without copying them.
    pub(crate) fn bytes(&self) -> IoBuf {
        self.whole.slice(self.at.clone())
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.at.len()
    }
}

/// Pieces of consecutive pages that were written at once.
pub(crate) fn runs_of(pages: &BTreeMap<Key, Version>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut last = None;
    for (&(extent, page), version) in pages {
        // Consecutive in memory too: some may have been moved since.
        let goes_on = last == Some((extent, page, version.run, version.at.start));
        match runs.last_mut().filter(|_| goes_on) {
            Some(run) => {
                let begin = version.at.start - run.data.len();
                run.data = version.whole.slice(begin..version.at.end);
                run.pages.end = page + 1;
            }
            None => runs.push(Run {
                extent,
                pages: page..page + 1,
                data: version.bytes(),
                slot: version.slot,
            }),
        }
        last = Some((extent, page + 1, version.run, version.at.end));
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
        self.begin_group(group);
        self.runs += 1;
        for (index, at) in (0..whole.len()).step_by(page_bytes).enumerate() {
            let version = Version {
                whole: whole.clone(),
                at: at..at + page_bytes,
                run: self.runs,
                is_shared,
                slot,
                group,
            };
            let key = (first.0, first.1 + index as u64);
            self.open.pages.push(key);
            self.pages.insert(key, version);
        }
    }

    /// What is noted of a group, which is no earlier one than last time.
    fn begin_group(&mut self, group: u64) {
        if self.open.group != group {
            self.open = Open {
                group,
                ..Open::default()
            };
        }
    }

    /// Empties a block.
    pub(crate) fn free(&mut self, extent: usize, block: u64, pages: Range<u64>, group: u64) {
        for page in pages {
            self.pages.remove(&(extent, page));
        }
        self.begin_group(group);
        self.open.freed.push((extent, block));
        self.freed.insert((extent, block), group);
    }

    /// The pages that were written in the group, which is the newest. Costs what that has, not what all have.
    pub(crate) fn written_in(&self, group: u64) -> impl Iterator<Item = (Key, &Version)> {
        let of_group = (self.open.group == group).then_some(&self.open.pages[..]);
        let versions = of_group.unwrap_or_default().iter();
        versions.filter_map(|key| self.pages.get(key).map(|version| (*key, version)))
    }

    /// From now on pages of these are held in memory that holds nothing else.
    pub(crate) fn detach<'a>(&mut self, pages: impl Iterator<Item = (&'a Key, &'a mut Version)>) {
        for (key, version) in pages {
            if version.is_alone() {
                continue;
            }
            *version = version.detached();
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

    /// Blocks freed in the group, which is the newest.
    pub(crate) fn freed_in(&self, group: u64) -> impl Iterator<Item = (usize, u64)> + '_ {
        let of_group = (self.open.group == group).then_some(&self.open.freed[..]);
        of_group.unwrap_or_default().iter().copied()
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
        self.open = Open::default();
    }
}
