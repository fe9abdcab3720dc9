//! A segment's record in its owner's segment table.

use flagstone_types::unit::SEGMENT_BLOCKS;
use flagstone_types::{BLOCK_SIZE, BlockChecksum};

use super::FormatError;
use super::bytes::{Reader, Writer};

/// Bytes of a segment's record.
pub const RECORD_BYTES: usize = 32;

/// Bytes of a segment's bitmap: exactly one block. [decibel 4.1]
pub const BITMAP_BYTES: usize = BLOCK_SIZE as usize;

const _: () = assert!(SEGMENT_BLOCKS as usize == BITMAP_BYTES * 8);

/// What the owner of a segment knows of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRecord {
    /// Which of the segment's two bitmap slots is current: 0 or 1. 2: neither, nothing is
    /// allocated yet.
    pub bitmap_slot: u8,
    /// CRC32C of the current bitmap. Bit b of byte n set: block 8n + b of the segment is in use.
    /// Blocks that can't be handed out (journals, bitmaps, behind the end) are clear.
    pub bitmap_checksum: BlockChecksum,
    /// Set bits in the bitmap.
    pub used_blocks: u32,
}

/// Value of `bitmap_slot` for a segment without a bitmap on the device.
pub const NO_BITMAP: u8 = 2;

impl SegmentRecord {
    /// A segment just reserved.
    pub const EMPTY: SegmentRecord = SegmentRecord {
        bitmap_slot: NO_BITMAP,
        bitmap_checksum: BlockChecksum(0),
        used_blocks: 0,
    };

    /// Appends the record; `None` (not owned by this journal) is all zeros.
    pub fn encode(record: Option<&SegmentRecord>, out: &mut Vec<u8>) {
        let end = out.len() + RECORD_BYTES;
        if let Some(record) = record {
            Writer::new(out)
                .u8(1)
                .u8(record.bitmap_slot)
                .u16(0)
                .u32(record.bitmap_checksum.0)
                .u32(record.used_blocks);
        }
        out.resize(end, 0);
    }

    /// Reads a record; `None` if this journal does not own the segment.
    pub fn decode(bytes: &[u8]) -> Result<Option<SegmentRecord>, FormatError> {
        let mut reader = Reader::new(bytes, "segment record");
        match reader.u8()? {
            0 => return Ok(None),
            1 => {}
            other => {
                return Err(FormatError::new(format!(
                    "segment record: unknown state {other}"
                )));
            }
        }
        let bitmap_slot = reader.u8()?;
        reader.u16()?;
        let bitmap_checksum = BlockChecksum(reader.u32()?);
        let used_blocks = reader.u32()?;
        if bitmap_slot > NO_BITMAP || u64::from(used_blocks) > SEGMENT_BLOCKS {
            return Err(FormatError::new(format!(
                "segment record: expected a bitmap slot up to 2 and at most {SEGMENT_BLOCKS} used \
                 blocks, found slot {bitmap_slot} and {used_blocks} blocks"
            )));
        }
        Ok(Some(SegmentRecord {
            bitmap_slot,
            bitmap_checksum,
            used_blocks,
        }))
    }
}
