//! Which blocks of a device something refers to: a bit per block, in memory only for segments that
//! are in use.

use std::collections::BTreeMap;

use flagstone_types::{BlockNo, SegmentNo};

use crate::format::geometry::Geometry;
use crate::space::Bitmap;

/// Why a block can't be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimError {
    /// It lies outside of what can be handed out.
    Outside,
    /// Something else has claimed it.
    Twice,
}

/// A set of blocks.
#[derive(Clone, Default)]
pub struct Claims {
    segments: BTreeMap<SegmentNo, Bitmap>,
    count: u64,
}

impl Claims {
    /// Claims a block.
    pub fn claim(&mut self, block: BlockNo, geometry: &Geometry) -> Result<(), ClaimError> {
        let segment = block.segment();
        if !geometry.is_data(block)
            || !geometry.is_usable_segment(segment)
            || geometry.bitmap_slots(segment).contains(&block)
        {
            return Err(ClaimError::Outside);
        }
        let bitmap = self.segments.entry(segment).or_default();
        if bitmap.set(block.index_in_segment()) {
            return Err(ClaimError::Twice);
        }
        self.count += 1;
        Ok(())
    }

    /// True if the block is claimed.
    pub fn contains(&self, block: BlockNo) -> bool {
        let bitmap = self.segments.get(&block.segment());
        bitmap.is_some_and(|bitmap| bitmap.get(block.index_in_segment()))
    }

    /// Number of claimed blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Segments with claimed blocks.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentNo, &Bitmap)> {
        self.segments
            .iter()
            .map(|(&segment, bitmap)| (segment, bitmap))
    }

    /// The claimed blocks of one segment.
    pub fn segment(&self, segment: SegmentNo) -> Option<&Bitmap> {
        self.segments.get(&segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_claimed_once_and_only_where_blocks_are_handed_out() {
        let geometry = Geometry::checked(&crate::format::superblock::sample()).expect("valid");
        let mut claims = Claims::default();
        let first = geometry.data_start;
        assert_eq!(
            claims.claim(first, &geometry),
            Err(ClaimError::Outside),
            "a bitmap"
        );
        let block = BlockNo(first.0 + 2);
        assert_eq!(claims.claim(block, &geometry), Ok(()));
        assert_eq!(claims.claim(block, &geometry), Err(ClaimError::Twice));
        assert_eq!(
            claims.claim(geometry.data_end, &geometry),
            Err(ClaimError::Outside)
        );
        assert_eq!(
            claims.claim(BlockNo(u64::MAX), &geometry),
            Err(ClaimError::Outside)
        );
        assert!(claims.contains(block) && !claims.contains(BlockNo(block.0 + 1)));
        assert_eq!(claims.count(), 1);
    }
}
