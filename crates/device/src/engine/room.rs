//! What a reservation would take, and what a journal could give, before anything is taken.
//!
//! For who reserves in several journals at once: each of them takes segments, which come back with a later checkpoint only, so it has to be
//! known beforehand whether there is room in all of them. What is told here promises nothing: the next moment it may be another's.

use flagstone_platform::Platform;
use flagstone_types::BLOCK_SIZE;

use super::Engine;
use super::error::DvolError;
use super::info::Handle;
use super::spacing::SPACE_WAITS_MAX;
use crate::format::geometry::SEGMENT_CAPACITY_BLOCKS;
use crate::state::Promise;

/// What a dvol has, from which follows what a reservation for it would take. By default of one that has nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserving {
    own_blocks: u64,
    inherited_blocks: u64,
    promised: Promise,
}

impl Reserving {
    /// Bytes to be set aside in addition to what is, with `bytes` reserved for it, nodes of its map included.
    pub fn more_bytes(&self, bytes: u64) -> u64 {
        let blocks = bytes.div_ceil(BLOCK_SIZE);
        let wanted = Promise::new(blocks, self.own_blocks, self.inherited_blocks);
        wanted
            .beyond(self.promised)
            .blocks()
            .saturating_mul(BLOCK_SIZE)
    }
}

/// What a journal could set aside beside what it has, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpareRoom {
    /// In its own segments, and in one that it is just taking. Below zero: what it keeps for itself and has promised needs that much more, before anything else.
    pub own_bytes: i64,
    /// In segments that no journal owns. A journal takes whole ones.
    pub unowned_bytes: u64,
    /// How many segments that are.
    pub unowned_segments: u64,
    /// How many of them are shorter than others.
    pub short_segments: u64,
    /// What a segment gives that isn't short.
    pub segment_bytes: u64,
    /// What holds the device (a file's filesystem, a thin pool) had no room when it was last asked for some.
    pub host_full: bool,
}

impl<P: Platform> Engine<P> {
    /// What a reservation for a dvol would be reckoned from. `NotFound`.
    pub fn reserving(&self, dvol: Handle) -> Result<Reserving, DvolError> {
        self.inner.resolve(dvol)?;
        let record = self.inner.record(dvol)?;
        let inherited_blocks = record.inherited_blocks;
        Ok(Reserving {
            own_blocks: record.mapped_blocks.saturating_sub(inherited_blocks),
            inherited_blocks,
            promised: Promise::if_reserved(&record, record.reserved_blocks),
        })
    }

    /// What this journal could set aside now.
    pub fn spare_room(&self) -> SpareRoom {
        let inner = &self.inner;
        let (open, unloaded) = inner.own_open_blocks();
        // With the segment that this journal is just taking: it is no other one's, and whoever needs a segment waits for it first.
        let own_blocks = open + unloaded + inner.laying_out.blocks_being_taken();
        let own_blocks = own_blocks as i64 - inner.spoken_for() as i64;
        let (free, short_segments) = inner.shared.free_segments();
        SpareRoom {
            own_bytes: own_blocks * BLOCK_SIZE as i64,
            unowned_bytes: inner.shared.free_blocks() * BLOCK_SIZE,
            unowned_segments: free,
            short_segments,
            segment_bytes: SEGMENT_CAPACITY_BLOCKS * BLOCK_SIZE,
            host_full: inner.host_full.get(),
        }
    }

    /// Has what was freed in this journal become usable, as one does who asks for room there: by a flush at first, by a checkpoint when it is
    /// asked for the second time (`waits` is 1), by waiting for what is under way then. False: nothing more comes of it.
    pub async fn gain_room(&self, waits: usize) -> Result<bool, DvolError> {
        if waits >= SPACE_WAITS_MAX || !self.inner.may_gain_space() {
            return Ok(false);
        }
        self.inner.gain_space(waits).await?;
        Ok(true)
    }
}
