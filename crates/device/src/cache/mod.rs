//! Blocks kept in memory: one bounded cache for each core, which all engines of the core share.
//!
//! It keeps physical blocks, by engine and number, in pages of 4 KiB of its own: a cached block never
//! keeps a large buffer alive. A hit hands out the page itself, which stays as it is until the last
//! reader lets go of it. Pages that readers still hold count, so the bound holds for them as well. Which
//! blocks stay is decided by [`fifo`].
//!
//! # Only what was verified
//!
//! A page is filled with bytes that have just been read from the device and compared with the checksum in
//! their mapping (`engine/read.rs`), and by nothing else. That checksum is kept with the page, and a hit
//! is one only if the mapping that is being followed names the same. What was written is not put in
//! (`docs/ARCHITECTURE.md` has the counts): it was computed, not read, so a write that the device lost
//! would go unnoticed for as long as the page stays.
//!
//! # Why no page is ever stale
//!
//! A block's bytes change only if it is freed, handed out again and written. Between the two lies, in this
//! order (invariant 4 of `docs/ARCHITECTURE.md`): the free is applied, so no lookup that begins later finds the block;
//! a flush that began later succeeds; every read that may have found the block earlier has left the gate.
//! Then `Inner::reopen_blocks` opens the block again, and **removes it from the cache first**. Nobody can
//! put it back: whoever fills a page is inside the gate, and looked the block up after entering it. So a
//! block that can be handed out is not cached, whatever freed it:
//!
//! - an overwrite, a deallocation, a delta folded in, reaping of a layer, a rollback: all go through the
//!   gate. A block that a snapshot still needs is not freed, and its page serves all that share it.
//! - blocks of a unit that failed go through the gate, too. Blocks handed out and given back unwritten
//!   (`return_blocks`), and those of map nodes and tables, were never mapped as data, so never cached.
//! - a segment is given back when all its blocks are open, so none of it is cached. Another journal
//!   that takes it knows its blocks by another name: each engine has a tag, and no tag is used twice. So
//!   it makes no difference either whether that journal is on this core, or that the device was opened
//!   before: what an engine had goes when it is closed.
//!
//! Blocks never move: what is rewritten gets another block. A block under a delta stays as it is, and is
//! cached, and so is the delta's block; the two are put together for each read. The tenant's metadata is
//! in the map, not here.
//!
//! Should all of this be wrong somewhere, the comparison of checksums makes a miss of the hit, logs it and
//! counts it (`cache_stale`); the simulator fails if that is not zero.
//!
//! # What it hides
//!
//! A block that was read well and has rotted on the device since is still served well while it is cached.
//! The scrub reads the device, never the cache, and what it finds damaged it removes, so that readers are
//! told as well. The same for a device that does not answer any more: what is cached is still right and
//! still served, as reads go on after a fence.

pub mod fifo;
mod index;

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_platform::{BufferPool, IoBuf};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo};

use fifo::S3Fifo;

/// What a page costs beside its bytes: its entry, its places in the two tables, its reference count.
const BESIDE_BYTES: u64 = 160;

/// Bits of a key that are the block's number: more than the largest device has.
const BLOCK_BITS: u32 = 40;

/// Pages let go to make room for one. More than one, because readers may hold a page that was let go;
/// not many more, because one that holds many must not empty the cache.
const EVICTIONS_MAX: usize = 2;

struct Cached {
    checksum: BlockChecksum,
    page: IoBuf,
}

struct State {
    blocks: S3Fifo<Cached>,
    pool: BufferPool,
    pages_max: usize,
    /// Pages kept for each engine, by its tag.
    kept: Vec<u64>,
}

/// One core's cache. A cheap handle.
#[derive(Clone, Default)]
pub struct BlockCache {
    /// `None`: it is off.
    state: Option<Rc<RefCell<State>>>,
}

impl BlockCache {
    /// No cache.
    pub fn off() -> BlockCache {
        BlockCache::default()
    }

    /// A cache that takes `bytes` of memory at most, what it knows of its pages included; off if that is
    /// less than a page. Pages come from `pool`, which nobody else uses.
    pub fn new(bytes: u64, pool: BufferPool) -> BlockCache {
        let pages_max = (bytes / (BLOCK_SIZE + BESIDE_BYTES)).min(1 << 28) as usize;
        if pages_max == 0 {
            return BlockCache::off();
        }
        let state = State {
            blocks: S3Fifo::new(pages_max),
            pool,
            pages_max,
            kept: Vec::new(),
        };
        BlockCache {
            state: Some(Rc::new(RefCell::new(state))),
        }
    }

    /// Bytes of pages that are kept or held by readers.
    pub fn in_use_bytes(&self) -> u64 {
        let in_use = |state: &Rc<RefCell<State>>| state.borrow().pool.in_use_bytes() as u64;
        self.state.as_ref().map_or(0, in_use)
    }

    /// One engine's part; `None` if the cache is off.
    pub(crate) fn join(&self) -> Option<Part> {
        let state = self.state.clone()?;
        let tag = {
            let kept = &mut state.borrow_mut().kept;
            // Never on a real node: an engine is opened once in the life of a process.
            if kept.len() >= 1 << (u64::BITS - BLOCK_BITS) {
                return None;
            }
            kept.push(0);
            kept.len() - 1
        };
        Some(Part { state, tag })
    }
}

/// What was found of a block.
pub(crate) enum Found {
    /// Its bytes.
    Hit(IoBuf),
    /// Nothing.
    Miss,
    /// Something else, which is gone now. This can't be.
    Stale,
}

/// What one engine has in the cache.
pub(crate) struct Part {
    state: Rc<RefCell<State>>,
    tag: usize,
}

impl Part {
    fn key(&self, block: BlockNo) -> u64 {
        debug_assert!(block.0 < 1 << BLOCK_BITS, "no device is that large");
        (self.tag as u64) << BLOCK_BITS | block.0
    }

    /// The block that a mapping names with this checksum.
    pub(crate) fn get(&self, block: BlockNo, checksum: BlockChecksum) -> Found {
        let mut state = self.state.borrow_mut();
        match state.blocks.hit(self.key(block)) {
            None => Found::Miss,
            Some(cached) if cached.checksum == checksum => Found::Hit(cached.page.clone()),
            Some(_) => {
                drop(state);
                self.remove(block);
                Found::Stale
            }
        }
    }

    /// True if the block is there. Does not count as asking for it.
    pub(crate) fn has(&self, block: BlockNo) -> bool {
        let state = self.state.borrow();
        state.blocks.peek(self.key(block)).is_some()
    }

    /// Keeps a copy of a block whose bytes have just been compared with `checksum`. Returns how many
    /// others had to go.
    pub(crate) fn insert(&self, block: BlockNo, checksum: BlockChecksum, bytes: &[u8]) -> u64 {
        let key = self.key(block);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.blocks.hit(key).is_some() {
            // It was read because of its neighbours, or by somebody else at the same time.
            return 0;
        }
        let is_full =
            |state: &State| state.pool.in_use_bytes() >= state.pages_max * BLOCK_SIZE as usize;
        let mut evicted = 0;
        while is_full(state) && evicted < EVICTIONS_MAX {
            let Some((key, _)) = state.blocks.evict() else {
                break;
            };
            state.kept[(key >> BLOCK_BITS) as usize] -= 1;
            evicted += 1;
        }
        // Readers may hold all that is left.
        if !is_full(state) {
            let mut page = state.pool.take(BLOCK_SIZE as usize);
            page.bytes_mut().copy_from_slice(bytes);
            state.blocks.insert(key, Cached { checksum, page });
            state.kept[self.tag] += 1;
        }
        evicted as u64
    }

    /// Forgets a block.
    pub(crate) fn remove(&self, block: BlockNo) {
        let mut state = self.state.borrow_mut();
        if state.blocks.remove(self.key(block)).is_some() {
            state.kept[self.tag] -= 1;
        }
    }

    /// Bytes of this engine's blocks.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.state.borrow().kept[self.tag] * BLOCK_SIZE
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        let tag = self.tag as u64;
        state.blocks.remove_all(|key| key >> BLOCK_BITS == tag);
        state.kept[self.tag] = 0;
    }
}

#[cfg(test)]
mod tests;
