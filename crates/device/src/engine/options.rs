//! What can be set when a device is formatted or opened.

use flagstone_types::BLOCK_SIZE;

use super::recent_parts::RING_BYTES;
use crate::format::geometry::{DEVICE_MIN_BYTES, RING_MIN_BLOCKS};

/// The largest ring that is made without asking, in blocks (256 MiB): every start reads them whole, and of
/// eight in full use a restart after a crash would take some eight seconds and 2.5 GiB beside them (computed from
/// smaller ones: `docs/benchmarks/scale.md`).
const RING_DEFAULT_MAX_BLOCKS: u32 = 65_536;

/// How to lay a device out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Bytes of the device to use: 16 MiB to 461 TiB; a last part of a block is left out.
    pub size_bytes: u64,
    /// Journals: as many cores can own parts of the device. 1 to 64.
    pub journal_count: u16,
    /// Blocks in each journal's ring. 128 to 131,072.
    pub ring_blocks: u32,
}

impl FormatOptions {
    /// Sensible values for a device of `size_bytes`: eight journals (four below 8 GiB, one below
    /// 1 GiB) whose rings take a 64th of the device together, each 0.5 to 256 MiB. At worst each
    /// block of a ring holds one small write, and the map nodes of all of them are written at the
    /// next checkpoint: the longer the ring, the more writes share a node. A restart reads it once.
    pub fn for_size(size_bytes: u64) -> FormatOptions {
        let blocks = size_bytes / BLOCK_SIZE;
        let journal_count: u16 = match size_bytes {
            0..DEVICE_MIN_BYTES => 1,
            s if s < 1 << 30 => 1,
            s if s < 8 << 30 => 4,
            _ => 8,
        };
        let ring = blocks / 64 / u64::from(journal_count);
        let ring_blocks = (ring as u32)
            .clamp(RING_MIN_BLOCKS, RING_DEFAULT_MAX_BLOCKS)
            .next_multiple_of(8);
        FormatOptions {
            size_bytes,
            journal_count,
            ring_blocks,
        }
    }
}

/// How to run a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Bytes of map nodes to keep in memory, in this journal. Nodes that wait for a checkpoint, and
    /// those in use, may take more.
    pub map_cache_bytes: u64,
    /// Bytes of blocks to keep in memory by an engine that has a cache to itself; zero: none.
    /// [`Engine::open_sharing`](super::Engine::open_sharing) doesn't look at it.
    pub cache_bytes: u64,
    /// True if all small reads go through the cache, not only those that ask for it
    /// ([`Engine::read_through`](super::Engine::read_through)).
    pub cache_all_reads: bool,
    /// Bytes of parts of blocks, written lately, to keep for the next write to the same block, if any are written: a power of two, or the next one, and 8 KiB
    /// at least. Zero: none. Simulations see with few what comes of parts that are not kept.
    pub recent_parts_bytes: usize,
    /// Groups written at the same time.
    pub groups_in_flight_max: usize,
    /// Map nodes that may become dirty before a checkpoint begins. Zero: one for 256 blocks of the
    /// device, 32 to 16,384; and while there is space to spare, up to one for 64 blocks, as long as
    /// they fit into three quarters of `map_cache_bytes`.
    pub dirty_nodes_max: usize,
    /// How long a journal must be quiet before it flushes what is unflushed and tells the
    /// watermark, nanoseconds.
    pub quiet_ns: u64,
    /// How long nothing must have changed before a checkpoint is made that gives space back,
    /// nanoseconds.
    pub idle_ns: u64,
    /// Set room aside for a segment when it is reserved, and write zeros over it before it is used or meanwhile. On a file the latter turns the first write
    /// to each block, which changes the filesystem's metadata and makes flushes slow, into a plain one.
    pub prewrite_segments: bool,
    /// So many times as long as a step of such zeros took, others have the device for themselves behind it, where nobody gives
    /// turns. Zero: the next step follows at once.
    pub zeros_rest_times: u64,
    /// Hand out the lowest open block instead of going round. Spreads nothing, but a freed block is
    /// used again at once, so simulations see what comes of freeing it too early.
    pub reuse_soon: bool,
    /// Entries of a deleted layer that one step of reaping deals with, at most.
    pub reap_step_entries: usize,
    /// For measurements of recovery: no checkpoint until the stop. Once the ring is full, changes
    /// wait for good, and so does whoever asks for a checkpoint.
    pub hold_checkpoints: bool,
    /// Leave undone what is only done to have space again: nothing is reaped or forgotten, and no checkpoint is made because nothing
    /// happens. For who looks at a journal and lets go of it.
    pub hold_upkeep: bool,
    /// Deallocated ranges that a dvol remembers, at most, for questions what has changed; or a
    /// quarter of its mapped blocks, if that is more. Beyond, the older half is forgotten.
    pub tombstones_max: u64,
    /// How long a scrub in the background takes to go through everything, nanoseconds; then it
    /// begins again. Zero: there is none.
    pub scrub_period_ns: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            map_cache_bytes: 1 << 30,
            cache_bytes: 0,
            cache_all_reads: false,
            recent_parts_bytes: RING_BYTES,
            groups_in_flight_max: 4,
            dirty_nodes_max: 0,
            quiet_ns: 50_000_000,
            idle_ns: 3_000_000_000,
            prewrite_segments: false,
            zeros_rest_times: 3,
            hold_checkpoints: false,
            hold_upkeep: false,
            tombstones_max: 65_536,
            scrub_period_ns: 0,
            reuse_soon: false,
            reap_step_entries: 1024,
        }
    }
}
