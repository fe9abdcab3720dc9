//! Sizes and positions: blocks, segments, virtual blocks.
//!
//! An index is never a count and a count is never a size: positions are newtypes, counts are plain
//! integers whose name says what they count, sizes end in `_bytes`.

use std::fmt;

/// Bytes in a block: the unit of mapping, checksum and atomicity on a device. [decibel 4.1]
pub const BLOCK_SIZE: u64 = 4096;

/// Blocks in a segment: as many as one block has bits, so that one block holds the bitmap.
/// [decibel 4.1] (Decibel calls a segment an extent.)
pub const SEGMENT_BLOCKS: u64 = BLOCK_SIZE * 8;

/// Bytes in a segment: 128 MiB.
pub const SEGMENT_SIZE: u64 = SEGMENT_BLOCKS * BLOCK_SIZE;

const _: () = assert!(SEGMENT_SIZE == 128 << 20);

/// Virtual blocks in a dvol's address space of 2^64 bytes.
pub const VBLOCKS_MAX: u64 = 1 << 52;

/// A block's position on a device, counted from the device's first byte. Fits 40 bits: devices up
/// to 4 PiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// Positions at and above this one can't be written in a mapping.
    pub const LIMIT: BlockNo = BlockNo(1 << 40);

    /// The position's first byte on the device.
    pub fn offset_bytes(self) -> u64 {
        self.0 * BLOCK_SIZE
    }

    /// The segment this block lies in.
    pub fn segment(self) -> SegmentNo {
        SegmentNo(u32::try_from(self.0 / SEGMENT_BLOCKS).unwrap_or(u32::MAX))
    }

    /// The block's index within its segment, below [`SEGMENT_BLOCKS`].
    pub fn index_in_segment(self) -> usize {
        (self.0 % SEGMENT_BLOCKS) as usize
    }
}

impl fmt::Debug for BlockNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Display for BlockNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// A segment's position on a device, in segments from the device's first byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentNo(pub u32);

impl SegmentNo {
    /// The segment's first block.
    pub fn first_block(self) -> BlockNo {
        BlockNo(u64::from(self.0) * SEGMENT_BLOCKS)
    }
}

/// A block's position in a dvol's address space, below [`VBLOCKS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VBlock(pub u64);

impl VBlock {
    /// The virtual block that holds the byte at `offset_bytes`.
    pub fn containing(offset_bytes: u64) -> VBlock {
        VBlock(offset_bytes / BLOCK_SIZE)
    }

    /// The position's first byte in the dvol.
    pub fn offset_bytes(self) -> u64 {
        self.0 * BLOCK_SIZE
    }
}

impl fmt::Debug for VBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
