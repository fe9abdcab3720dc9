//! Where everything lies on a device, computed from its superblock.
//!
//! block 0: superblock · per journal: two root slots and the ring · data · last block: superblock
//!
//! Segments tile the device from block 0. What the superblocks and journals take is never handed
//! out; a segment's usable part begins behind them. Its first two usable blocks hold the two
//! versions of its bitmap.

use flagstone_types::unit::{SEGMENT_BLOCKS, SegmentNo};
use flagstone_types::{BLOCK_SIZE, BlockNo};

use super::FormatError;
use super::superblock::Superblock;
use super::table::TableKind;

/// A segment with fewer usable blocks than this is not used at all.
pub const SEGMENT_USABLE_MIN_BLOCKS: u64 = 64;

/// Blocks of a whole segment that can be handed out: all but the two of its bitmap.
pub const SEGMENT_CAPACITY_BLOCKS: u64 = SEGMENT_BLOCKS - 2;

/// The smallest ring, in blocks: four groups of the largest size.
pub const RING_MIN_BLOCKS: u32 = 128;

/// The largest ring, in blocks (512 MiB). It bounds recovery.
pub const RING_MAX_BLOCKS: u32 = 131_072;

/// The smallest device, in bytes.
pub const DEVICE_MIN_BYTES: u64 = 16 << 20;

/// The largest device, in bytes: what a segment table reaches (461 TiB).
pub const DEVICE_MAX_BYTES: u64 =
    TableKind::Segments.capacity() as u64 * SEGMENT_BLOCKS * BLOCK_SIZE;

const _: () = assert!(DEVICE_MAX_BYTES / BLOCK_SIZE < BlockNo::LIMIT.0);

/// Positions on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of journals.
    pub journal_count: u16,
    /// Blocks in each ring.
    pub ring_blocks: u32,
    /// First block behind the journals.
    pub data_start: BlockNo,
    /// First block behind the data: that of the second superblock.
    pub data_end: BlockNo,
}

impl Geometry {
    /// The geometry, if the superblock's numbers make sense together.
    pub fn checked(superblock: &Superblock) -> Result<Geometry, FormatError> {
        if superblock.block_count < DEVICE_MIN_BYTES / BLOCK_SIZE
            || superblock.block_count > DEVICE_MAX_BYTES / BLOCK_SIZE
        {
            return Err(FormatError::new(format!(
                "superblock: expected {} to {} blocks (16 MiB to 461 TiB), found {}",
                DEVICE_MIN_BYTES / BLOCK_SIZE,
                DEVICE_MAX_BYTES / BLOCK_SIZE,
                superblock.block_count
            )));
        }
        if superblock.ring_blocks < RING_MIN_BLOCKS || superblock.ring_blocks > RING_MAX_BLOCKS {
            return Err(FormatError::new(format!(
                "superblock: expected rings of {RING_MIN_BLOCKS} to {RING_MAX_BLOCKS} blocks, \
                 found {}",
                superblock.ring_blocks
            )));
        }
        let per_journal = 2 + u64::from(superblock.ring_blocks);
        Ok(Geometry {
            journal_count: superblock.journal_count,
            ring_blocks: superblock.ring_blocks,
            data_start: BlockNo(1 + u64::from(superblock.journal_count) * per_journal),
            data_end: BlockNo(superblock.block_count - 1),
        })
    }

    /// The two places of `journal`'s root.
    pub fn root_slots(&self, journal: u16) -> [BlockNo; 2] {
        let first = self.journal_area(journal);
        [BlockNo(first), BlockNo(first + 1)]
    }

    /// Where block `index` of `journal`'s ring lies.
    pub fn ring_block(&self, journal: u16, index: u32) -> BlockNo {
        assert!(index < self.ring_blocks);
        BlockNo(self.journal_area(journal) + 2 + u64::from(index))
    }

    fn journal_area(&self, journal: u16) -> u64 {
        assert!(journal < self.journal_count);
        1 + u64::from(journal) * (2 + u64::from(self.ring_blocks))
    }

    /// True if `block` can hold data or metadata of a segment.
    pub fn is_data(&self, block: BlockNo) -> bool {
        block >= self.data_start && block < self.data_end
    }

    /// Segments that can be used, in order.
    pub fn segments(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        let first = self.data_start.segment().0;
        let last = BlockNo(self.data_end.0 - 1).segment().0;
        (first..=last).map(SegmentNo).filter(|&s| {
            let (start, end) = self.segment_range(s);
            end.0 >= start.0 + SEGMENT_USABLE_MIN_BLOCKS
        })
    }

    /// True if `segment` can be used.
    pub fn is_usable_segment(&self, segment: SegmentNo) -> bool {
        let (start, end) = self.segment_range(segment);
        end.0 >= start.0 + SEGMENT_USABLE_MIN_BLOCKS
    }

    /// First usable block of `segment` and the first block behind it (equal or reversed if none).
    pub fn segment_range(&self, segment: SegmentNo) -> (BlockNo, BlockNo) {
        let first = segment.first_block();
        let start = first.max(self.data_start);
        let end = BlockNo((first.0 + SEGMENT_BLOCKS).min(self.data_end.0));
        (start, end)
    }

    /// The two places of `segment`'s bitmap.
    pub fn bitmap_slots(&self, segment: SegmentNo) -> [BlockNo; 2] {
        let (start, _) = self.segment_range(segment);
        [start, BlockNo(start.0 + 1)]
    }

    /// Blocks of `segment` that can be handed out: all usable ones but the bitmaps. [`SEGMENT_CAPACITY_BLOCKS`] unless it is the first or
    /// the last one.
    pub fn segment_capacity_blocks(&self, segment: SegmentNo) -> u64 {
        let (start, end) = self.segment_range(segment);
        (end.0.saturating_sub(start.0)).saturating_sub(2)
    }

    /// Blocks of the device that can be handed out.
    pub fn capacity_blocks(&self) -> u64 {
        self.segments()
            .map(|s| self.segment_capacity_blocks(s))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_no_segment_table_reaches_is_refused() {
        let mut superblock = super::super::superblock::sample();
        superblock.block_count = DEVICE_MAX_BYTES / BLOCK_SIZE;
        assert_eq!(DEVICE_MAX_BYTES >> 40, 461);
        let geometry = Geometry::checked(&superblock).expect("valid");
        let last = BlockNo(geometry.data_end.0 - 1).segment();
        assert_eq!(last.0 as usize, TableKind::Segments.capacity() - 1);
        superblock.block_count += 1;
        let error = Geometry::checked(&superblock).expect_err("too large");
        assert!(error.message.contains("461 TiB"), "{error}");
    }

    #[test]
    fn areas_do_not_overlap() {
        let mut superblock = super::super::superblock::sample();
        superblock.block_count = 3 * SEGMENT_BLOCKS + 100;
        let geometry = Geometry::checked(&superblock).expect("valid");
        assert_eq!(geometry.root_slots(0), [BlockNo(1), BlockNo(2)]);
        assert_eq!(geometry.ring_block(0, 0), BlockNo(3));
        assert_eq!(geometry.ring_block(0, 255), BlockNo(258));
        assert_eq!(geometry.root_slots(1), [BlockNo(259), BlockNo(260)]);
        assert_eq!(geometry.ring_block(1, 255), BlockNo(516));
        assert_eq!(geometry.data_start, BlockNo(517));
        assert_eq!(
            geometry.segment_range(SegmentNo(0)),
            (BlockNo(517), BlockNo(32768))
        );
        assert_eq!(
            geometry.bitmap_slots(SegmentNo(1)),
            [BlockNo(32768), BlockNo(32769)]
        );
        let segments: Vec<_> = geometry.segments().collect();
        assert_eq!(
            segments,
            [SegmentNo(0), SegmentNo(1), SegmentNo(2), SegmentNo(3)]
        );
        assert_eq!(geometry.segment_capacity_blocks(SegmentNo(3)), 97);
        assert_eq!(
            geometry.capacity_blocks(),
            3 * SEGMENT_BLOCKS + 99 - 517 - 8
        );
    }
}
