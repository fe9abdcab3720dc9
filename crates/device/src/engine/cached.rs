//! Reading through the core's cache. What it is and why it is never stale: [`cache`](crate::cache).
//!
//! Small reads go through it, if they ask for that or the engine's options say so. A run of blocks comes from the cache if all of it is there, in pages that
//! are handed out as they are; otherwise it is read in one piece, as without a cache, and kept. Large
//! reads go past it: they would cost a look-up and a copy for each block, and fill it with what is seldom
//! wanted twice.

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, Slot};

use super::Inner;
use super::error::DvolError;
use super::read::{DeviceReads, Step, Steps};
use crate::cache::{Found, Part};
use crate::planted::{Bug, planted};
use crate::v2p::Entry;

/// Blocks of a read that goes through the cache, at most (64 KiB).
const CACHED_BLOCKS_MAX: u64 = 16;

/// Whether a read goes through the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadPath {
    Through,
    Past,
}

impl<P: Platform> Inner<P> {
    /// How a read goes that doesn't ask for anything.
    pub(super) fn usual_path(&self) -> ReadPath {
        match self.options.cache_all_reads {
            true => ReadPath::Through,
            false => ReadPath::Past,
        }
    }

    /// How a read of so many blocks goes.
    pub(super) fn path_of(&self, wish: ReadPath, blocks: u64) -> ReadPath {
        match self.cache.is_some() && blocks <= CACHED_BLOCKS_MAX {
            true => wish,
            false => ReadPath::Past,
        }
    }

    /// Has the runs that are cached as a whole come from the cache. Called inside the gate: what the
    /// steps name is what the mapping names.
    pub(super) fn take_cached(&self, mut steps: Steps, path: ReadPath) -> Steps {
        let (Some(cache), ReadPath::Through) = (&self.cache, path) else {
            return steps;
        };
        // What nearly always is asked for, without moving anything.
        if let [Step::Run { start, checksums }] = &steps[..]
            && let [checksum] = checksums[..]
        {
            match self.find_cached(cache, *start, checksum) {
                Some(page) => {
                    count(&self.counters.cache_hits, 1);
                    steps[0] = Step::Cached(page, checksum);
                }
                None => count(&self.counters.cache_misses, 1),
            }
            return steps;
        }
        let mut out = Steps::new();
        for step in steps {
            let Step::Run { start, checksums } = &step else {
                out.push(step);
                continue;
            };
            let blocks = checksums.iter().zip(start.0..);
            let begun = out.len();
            if blocks.clone().all(|(_, block)| cache.has(BlockNo(block))) {
                let pages = blocks.map_while(|(&checksum, block)| {
                    let page = self.find_cached(cache, BlockNo(block), checksum)?;
                    Some(Step::Cached(page, checksum))
                });
                out.extend(pages);
            }
            if out.len() - begun < checksums.len() {
                out.truncate(begun);
                count(&self.counters.cache_misses, checksums.len() as u64);
                out.push(step);
            } else {
                count(&self.counters.cache_hits, checksums.len() as u64);
            }
        }
        out
    }

    fn find_cached(&self, cache: &Part, block: BlockNo, checksum: BlockChecksum) -> Option<IoBuf> {
        match cache.get(block, checksum) {
            Found::Hit(page) => Some(page),
            Found::Miss => None,
            Found::Stale => {
                count(&self.counters.cache_stale, 1);
                tracing::error!(
                    block = block.0,
                    expected = ?checksum,
                    "the cache had other bytes of a block than its mapping names; they were not used, \
                     the device is read. Please report this: it can't be"
                );
                None
            }
        }
    }

    /// Reads consecutive blocks from the device, and keeps them if the read goes through the cache.
    pub(super) async fn read_kept(
        &self,
        slot: Slot,
        start: BlockNo,
        checksums: &[BlockChecksum],
        path: ReadPath,
    ) -> Result<IoBuf, DvolError> {
        let buf = self.read_checked(slot, start, checksums).await?;
        if path == ReadPath::Through {
            self.keep_cached(start, checksums, &buf);
        }
        Ok(buf)
    }

    /// One block, from the cache or the device, and what that took.
    pub(super) async fn read_entry(
        &self,
        slot: Slot,
        entry: &Entry,
        path: ReadPath,
    ) -> Result<(IoBuf, DeviceReads), DvolError> {
        if let (Some(cache), ReadPath::Through) = (&self.cache, path) {
            if let Some(page) = self.find_cached(cache, entry.block, entry.checksum) {
                count(&self.counters.cache_hits, 1);
                return Ok((page, DeviceReads::default()));
            }
            count(&self.counters.cache_misses, 1);
        }
        let read = self
            .read_kept(slot, entry.block, &[entry.checksum], path)
            .await?;
        Ok((read, DeviceReads::run(1)))
    }

    /// Keeps blocks whose bytes have just been compared with these checksums. The caller is inside the
    /// gate since before it looked the blocks up, so none of them can have been handed out again.
    pub(super) fn keep_cached(&self, start: BlockNo, checksums: &[BlockChecksum], bytes: &[u8]) {
        let Some(cache) = &self.cache else { return };
        let blocks = bytes.chunks_exact(BLOCK_SIZE as usize);
        for ((&checksum, bytes), block) in checksums.iter().zip(blocks).zip(start.0..) {
            let evicted = cache.insert(BlockNo(block), checksum, bytes);
            count(&self.counters.cache_evictions, evicted);
        }
    }

    /// Takes blocks out of the cache.
    pub(super) fn forget_cached(&self, blocks: &[BlockNo]) {
        let Some(cache) = &self.cache else { return };
        if planted(Bug::CacheKeepsFreed) {
            return;
        }
        for &block in blocks {
            cache.remove(block);
        }
    }
}

fn count(counter: &std::cell::Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}
