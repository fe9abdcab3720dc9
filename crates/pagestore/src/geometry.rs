//! The shape of an extent, and where its parts lie in its dvol. [fss 3: pages and blocks]

use std::fmt;
use std::ops::Range;

use flagstone_device::engine::{Attributes, SIZE_MAX_BYTES};
use flagstone_types::BLOCK_SIZE;

use crate::pointer::ExtentId;
use crate::table::ENTRIES_PER_TABLE_PAGE;

/// First byte of the attributes of a dvol that is an extent.
pub(crate) const ATTRIBUTE_KIND_EXTENT: u8 = 1;
const VERSION: u8 = 1;
/// Pages have 4 to 32 KiB.
const PAGE_SHIFTS: Range<u8> = 12..16;
/// Blocks have at most 64 MiB.
const BLOCK_SHIFT_MAX: u8 = 26;
/// Blocks of an extent, at most: the table of all of them has 4 GiB.
const BLOCKS_MAX: u64 = 1 << 28;

/// The shape of an extent. It never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    page_shift: u8,
    block_shift: u8,
    block_count: u64,
}

/// Why an extent can't have a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// Pages are 4, 8, 16 or 32 KiB.
    PageBytes,
    /// Blocks are a power of two, at least a page, at most 64 MiB.
    BlockBytes,
    /// At least one block, at most 2^28, and no more than a dvol can hold.
    BlockCount,
    /// The dvol's attributes are not those of an extent of a known version.
    Attributes,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GeometryError::PageBytes => "pages have 4, 8, 16 or 32 KiB",
            GeometryError::BlockBytes => {
                "blocks have a power of two of bytes, from a page to 64 MiB"
            }
            GeometryError::BlockCount => "an extent has 1 to 2^28 blocks and fits a dvol",
            GeometryError::Attributes => "the dvol is not an extent of a version that is known",
        })
    }
}

impl std::error::Error for GeometryError {}

impl Geometry {
    /// A shape, from bytes of a page, bytes of a block and number of blocks.
    pub fn new(
        page_bytes: u64,
        block_bytes: u64,
        block_count: u64,
    ) -> Result<Geometry, GeometryError> {
        let shift = |bytes: u64| {
            bytes
                .is_power_of_two()
                .then(|| bytes.trailing_zeros() as u8)
        };
        let page_shift = shift(page_bytes).filter(|s| PAGE_SHIFTS.contains(s));
        let page_shift = page_shift.ok_or(GeometryError::PageBytes)?;
        let block_shift = shift(block_bytes).filter(|s| (page_shift..=BLOCK_SHIFT_MAX).contains(s));
        let geometry = Geometry {
            page_shift,
            block_shift: block_shift.ok_or(GeometryError::BlockBytes)?,
            block_count,
        };
        if block_count == 0 || block_count > BLOCKS_MAX || geometry.dvol_bytes() > SIZE_MAX_BYTES {
            return Err(GeometryError::BlockCount);
        }
        Ok(geometry)
    }

    /// Bytes of a page: the unit of reading, and of being changed.
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// Bytes of a block: the unit of allocation.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    /// Blocks of the extent.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// Pages of a block.
    pub fn pages_per_block(&self) -> u64 {
        1 << (self.block_shift - self.page_shift)
    }

    /// Pages of the extent.
    pub fn page_count(&self) -> u64 {
        self.block_count * self.pages_per_block()
    }

    /// The block that a page is in.
    pub fn block_of(&self, page: u64) -> u64 {
        page / self.pages_per_block()
    }

    /// Pages of the table that says whose each block is.
    pub(crate) fn table_pages(&self) -> u64 {
        self.block_count.div_ceil(ENTRIES_PER_TABLE_PAGE)
    }

    /// Where a page of the table lies in the dvol, from byte on.
    pub(crate) fn table_offset(&self, table_page: u64) -> u64 {
        table_page * BLOCK_SIZE
    }

    /// Where a page lies in the dvol, from byte on. Pages begin behind the table, at a multiple of their
    /// own size.
    pub(crate) fn page_offset(&self, page: u64) -> u64 {
        let table_bytes = self.table_pages() * BLOCK_SIZE;
        table_bytes.next_multiple_of(self.page_bytes()) + page * self.page_bytes()
    }

    /// Size of the dvol.
    pub(crate) fn dvol_bytes(&self) -> u64 {
        self.page_offset(self.page_count())
    }

    /// The attributes of the dvol of extent `id`.
    pub(crate) fn attributes(&self, id: ExtentId) -> Attributes {
        let mut out: Attributes = [0; _];
        out[0] = ATTRIBUTE_KIND_EXTENT;
        out[1] = VERSION;
        out[2] = self.page_shift;
        out[3] = self.block_shift;
        out[8..16].copy_from_slice(&id.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.block_count.to_le_bytes());
        out
    }

    /// Reads back what the attributes of an extent's dvol say: which extent it is, and its shape.
    pub fn of_attributes(bytes: &Attributes) -> Result<(ExtentId, Geometry), GeometryError> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let is_zero = |range: Range<usize>| bytes[range].iter().all(|&byte| byte == 0);
        if bytes[0] != ATTRIBUTE_KIND_EXTENT
            || bytes[1] != VERSION
            || !is_zero(4..8)
            || !is_zero(24..bytes.len())
        {
            return Err(GeometryError::Attributes);
        }
        let (page_shift, block_shift) = (bytes[2], bytes[3]);
        if page_shift >= 64 || block_shift >= 64 {
            return Err(GeometryError::Attributes);
        }
        let geometry = Geometry::new(1 << page_shift, 1 << block_shift, long(16))?;
        Ok((ExtentId(long(8)), geometry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_bounds() {
        assert!(Geometry::new(4096, 4096, 1).is_ok());
        assert!(Geometry::new(32 << 10, 64 << 20, 1 << 28).is_ok());
        assert_eq!(Geometry::new(2048, 4096, 1), Err(GeometryError::PageBytes));
        assert_eq!(
            Geometry::new(64 << 10, 64 << 10, 1),
            Err(GeometryError::PageBytes)
        );
        assert_eq!(
            Geometry::new(12 << 10, 64 << 10, 1),
            Err(GeometryError::PageBytes)
        );
        assert_eq!(Geometry::new(8192, 4096, 1), Err(GeometryError::BlockBytes));
        assert_eq!(
            Geometry::new(4096, 128 << 20, 1),
            Err(GeometryError::BlockBytes)
        );
        assert_eq!(Geometry::new(4096, 4096, 0), Err(GeometryError::BlockCount));
        assert_eq!(
            Geometry::new(4096, 4096, (1 << 28) + 1),
            Err(GeometryError::BlockCount)
        );
    }

    #[test]
    fn parts_follow_each_other() {
        // 257 blocks need two pages of table, and pages of 16 KiB begin at a multiple of that.
        let geometry = Geometry::new(16 << 10, 64 << 10, 257).expect("a shape");
        assert_eq!(
            (geometry.pages_per_block(), geometry.page_count()),
            (4, 1028)
        );
        assert_eq!(
            (geometry.table_pages(), geometry.table_offset(1)),
            (2, 4096)
        );
        assert_eq!(
            (geometry.page_offset(0), geometry.page_offset(5)),
            (16 << 10, 96 << 10)
        );
        assert_eq!(geometry.dvol_bytes(), 1029 * (16 << 10));
        assert_eq!((geometry.block_of(3), geometry.block_of(4)), (0, 1));
    }

    #[test]
    fn attributes_are_read_back_and_others_refused() {
        let geometry = Geometry::new(8192, 256 << 10, 77).expect("a shape");
        let bytes = geometry.attributes(ExtentId(9));
        assert_eq!(Geometry::of_attributes(&bytes), Ok((ExtentId(9), geometry)));
        for (at, value) in [
            (0, 2),
            (1, 2),
            (2, 11),
            (2, 77),
            (3, 255),
            (4, 1),
            (16, 0),
            (24, 1),
            (63, 1),
        ] {
            let mut other = bytes;
            other[at] = value;
            assert!(
                Geometry::of_attributes(&other).is_err(),
                "byte {at} = {value}"
            );
        }
    }
}
