//! What has changed and is not in its place yet, as it was after some group.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::engine::Change;
use flagstone_platform::IoBuf;
use flagstone_types::BLOCK_SIZE;

use crate::extent::Extent;
use crate::latest::{Key, Version, runs_of};

/// See the module's page. Later changes are taken over by [`Dirty::absorb`].
#[derive(Clone, Default)]
pub(crate) struct Dirty {
    pages: BTreeMap<Key, Version>,
    /// Bytes of those.
    page_bytes: usize,
    /// Blocks of which nothing is left but pages above.
    pub(crate) freed: BTreeSet<(usize, u64)>,
    pub(crate) tables: BTreeMap<(usize, u64), IoBuf>,
}

impl Dirty {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.freed.is_empty() && self.tables.is_empty()
    }

    /// Changes of the device that it can take to put it in its place, at most: of a freed block something may be left
    /// beside each page that was written since. That of two together is not more than the sum.
    pub(crate) fn changes_max(&self) -> usize {
        2 * (self.pages.len() + self.freed.len()) + self.tables.len()
    }

    /// Bytes that are written then.
    pub(crate) fn bytes(&self) -> usize {
        self.page_bytes + self.tables.len() * BLOCK_SIZE as usize
    }

    /// Bytes of those pages that are contents.
    pub(crate) fn contents_bytes(&self) -> usize {
        let contents = self.pages.values().filter(|version| !version.is_alone());
        contents.map(Version::len_bytes).sum()
    }

    pub(crate) fn pages(&self) -> &BTreeMap<Key, Version> {
        &self.pages
    }

    pub(crate) fn pages_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Version)> {
        self.pages.iter_mut()
    }

    /// A page is like this now.
    pub(crate) fn put(&mut self, key: Key, version: Version) {
        self.page_bytes += version.len_bytes();
        if let Some(old) = self.pages.insert(key, version) {
            self.page_bytes -= old.len_bytes();
        }
    }

    /// Bytes of a page that changed.
    pub(crate) fn bytes_of(&self, key: &Key) -> usize {
        self.pages.get(key).map_or(0, Version::len_bytes)
    }

    /// A page isn't among what changed.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Version> {
        let version = self.pages.remove(key)?;
        self.page_bytes -= version.len_bytes();
        Some(version)
    }

    /// Takes over what was changed later. Costs what that is, not what there was.
    pub(crate) fn absorb(&mut self, later: Dirty, extents: &[Extent]) {
        for &(extent, block) in &later.freed {
            self.free(extent, block, extents);
        }
        for (key, version) in later.pages {
            self.put(key, version);
        }
        self.tables.extend(later.tables);
    }

    /// Nothing is in this block any more.
    pub(crate) fn free(&mut self, extent: usize, block: u64, extents: &[Extent]) {
        let pages = extents[extent].pages_of(block);
        let range = (extent, pages.start)..(extent, pages.end);
        let gone: Vec<Key> = self.pages.range(range).map(|(key, _)| *key).collect();
        for key in gone {
            self.take(&key);
        }
        self.freed.insert((extent, block));
    }

    /// What the device has to do.
    pub(crate) fn changes(&self, extents: &[Extent]) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.changes_max());
        for (&(extent, page), data) in &self.tables {
            let (handle, offset_bytes) = extents[extent].table_place(page);
            changes.push(Change::Write {
                handle,
                offset_bytes,
                data: data.clone(),
                meta: 1,
            });
        }
        self.deallocate_freed(extents, &mut changes);
        write_pages(&self.pages, extents, &mut changes);
        changes
    }

    /// What is left of freed blocks between the pages that were written since. Blocks beside each other are one change: the
    /// device layer must have room for all the nodes that each change could touch, and a full one has little.
    fn deallocate_freed(&self, extents: &[Extent], changes: &mut Vec<Change>) {
        let mut runs: Vec<(usize, std::ops::Range<u64>)> = Vec::new();
        for &(extent, block) in &self.freed {
            let pages = extents[extent].pages_of(block);
            let written = (extent, pages.start)..(extent, pages.end);
            let written = self.pages.range(written).map(|(key, _)| key.1);
            let mut from = pages.start;
            for page in written.chain([pages.end]) {
                match runs.last_mut() {
                    _ if page == from => {}
                    Some((of, run)) if (*of, run.end) == (extent, from) => run.end = page,
                    _ => runs.push((extent, from..page)),
                }
                from = page + 1;
            }
        }
        changes.extend(runs.into_iter().map(|(extent, run)| {
            let (handle, offset_bytes) = extents[extent].page_place(run.start);
            Change::Deallocate {
                handle,
                offset_bytes,
                len_bytes: (run.end - run.start) * extents[extent].geometry.page_bytes(),
            }
        }));
    }
}

/// What the device has to do to have these pages.
pub(crate) fn write_pages(
    pages: &BTreeMap<Key, Version>,
    extents: &[Extent],
    changes: &mut Vec<Change>,
) {
    changes.extend(runs_of(pages).into_iter().map(|run| {
        let (handle, offset_bytes) = extents[run.extent].page_place(run.pages.start);
        Change::Write {
            handle,
            offset_bytes,
            data: run.data,
            meta: run.slot.0,
        }
    }));
}
