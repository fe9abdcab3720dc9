//! Journal groups: what is written to a ring in one piece.
//!
//! A group names its incarnation, its sequence number and the hash of the group before it, so that
//! a tail which recovery discarded can never be taken for a continuation. It carries the watermark:
//! every group up to that one is on stable media together with the data it speaks of.

use flagstone_types::{BLOCK_SIZE, ChainHash, DeviceId};

use super::FormatError;
use super::bytes::Reader;

/// Bytes of a group in front of its records.
pub const HEADER_BYTES: usize = 64;

/// The largest group, in blocks. Bounds an atomic unit.
pub const GROUP_MAX_BLOCKS: u32 = 32;

/// Bytes that the records of one group can take.
pub const BODY_MAX_BYTES: usize = GROUP_MAX_BLOCKS as usize * BLOCK_SIZE as usize - HEADER_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"FSJG");
const VERSION: u16 = 1;

/// Only the first block is there; the rest of the ring up to its end is skipped.
const FLAG_PAD: u16 = 1;

/// Offset of the group's own hash.
const HASH_OFFSET: usize = 56;

/// What a group says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    /// Low half of the device's id.
    pub device_id_low: u64,
    /// Which journal.
    pub journal: u16,
    /// The incarnation that wrote it.
    pub incarnation: u32,
    /// Its place in the chain: one more than the group before it.
    pub seq: u64,
    /// Hash of the group before it.
    pub prev_hash: ChainHash,
    /// Everything up to this group was known to be on stable media when this one was built.
    pub watermark: u64,
    /// Ring blocks that it takes.
    pub block_count: u16,
    /// True: it only fills the ring up to its end.
    pub pad: bool,
    /// Bytes of records behind the header.
    pub body_bytes: u32,
}

/// The device id's half that groups carry.
pub fn device_id_low(id: DeviceId) -> u64 {
    id.0 as u64
}

/// Completes a group in place. `group` begins with [`HEADER_BYTES`] of anything, followed by the
/// records; it is padded with zeros to whole blocks. Returns the group's hash.
pub fn seal(header: &mut GroupHeader, group: &mut Vec<u8>) -> ChainHash {
    assert!(group.len() >= HEADER_BYTES);
    let body_bytes = group.len() - HEADER_BYTES;
    assert!(
        body_bytes <= BODY_MAX_BYTES,
        "a group's size is checked as it grows"
    );
    header.body_bytes = body_bytes as u32;
    if !header.pad {
        header.block_count = group.len().div_ceil(BLOCK_SIZE as usize) as u16;
    }
    group.resize(group.len().next_multiple_of(BLOCK_SIZE as usize), 0);
    // Behind the group first: its memory has room for that.
    let end = group.len();
    let flags = if header.pad { FLAG_PAD } else { 0 };
    super::bytes::Writer::new(group)
        .u32(MAGIC)
        .u16(VERSION)
        .u16(header.block_count)
        .u64(header.device_id_low)
        .u32(header.incarnation)
        .u16(header.journal)
        .u16(flags)
        .u64(header.seq)
        .u64(header.prev_hash.0)
        .u64(header.watermark)
        .u32(header.body_bytes)
        .u32(0)
        .u64(0);
    group.copy_within(end.., 0);
    group.truncate(end);
    let hash = ChainHash::of(group);
    group[HASH_OFFSET..HEADER_BYTES].copy_from_slice(&hash.0.to_le_bytes());
    hash
}

/// Reads the header at the start of `bytes` and bounds its fields. The hash is not checked yet:
/// the group may be longer than `bytes`.
pub fn decode_header(bytes: &[u8]) -> Result<GroupHeader, FormatError> {
    let mut reader = Reader::new(bytes, "journal group");
    let magic = reader.u32()?;
    let version = reader.u16()?;
    if magic != MAGIC || version != VERSION {
        return Err(FormatError::new(
            "journal group: expected a version 1 group, found none",
        ));
    }
    let block_count = reader.u16()?;
    let device_id_low = reader.u64()?;
    let incarnation = reader.u32()?;
    let journal = reader.u16()?;
    let flags = reader.u16()?;
    let seq = reader.u64()?;
    let prev_hash = ChainHash(reader.u64()?);
    let watermark = reader.u64()?;
    let body_bytes = reader.u32()?;
    let reserved = reader.u32()?;
    let pad = flags & FLAG_PAD != 0;
    if flags & !FLAG_PAD != 0 || reserved != 0 || block_count == 0 {
        return Err(FormatError::new(
            "journal group: unknown flags or no blocks",
        ));
    }
    let holds = u64::from(block_count) * BLOCK_SIZE;
    let too_long = !pad && u32::from(block_count) > GROUP_MAX_BLOCKS;
    if too_long || u64::from(body_bytes) + HEADER_BYTES as u64 > holds || (pad && body_bytes != 0) {
        return Err(FormatError::new(format!(
            "journal group {seq}: {body_bytes} bytes of records do not fit {block_count} blocks"
        )));
    }
    Ok(GroupHeader {
        device_id_low,
        journal,
        incarnation,
        seq,
        prev_hash,
        watermark,
        block_count,
        pad,
        body_bytes,
    })
}

/// Checks the whole group's hash, `bytes` being all its blocks (the first one for a pad). Returns
/// the hash, which the next group names, if it is right.
pub fn check_hash(bytes: &[u8]) -> Option<ChainHash> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let mut stored = [0; 8];
    stored.copy_from_slice(&bytes[HASH_OFFSET..HEADER_BYTES]);
    let mut copy = bytes.to_vec();
    copy[HASH_OFFSET..HEADER_BYTES].fill(0);
    let hash = ChainHash::of(&copy);
    (hash.0.to_le_bytes() == stored).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GroupHeader {
        GroupHeader {
            device_id_low: 1,
            journal: 2,
            incarnation: 3,
            seq: 4,
            prev_hash: ChainHash(5),
            watermark: 3,
            block_count: 0,
            pad: false,
            body_bytes: 0,
        }
    }

    #[test]
    fn round_trip() {
        let mut header = sample();
        let mut group = vec![0; HEADER_BYTES];
        group.extend_from_slice(&[9; 5000]);
        let hash = seal(&mut header, &mut group);
        assert_eq!(
            (group.len(), header.block_count, header.body_bytes),
            (8192, 2, 5000)
        );
        assert_eq!(decode_header(&group), Ok(header));
        assert_eq!(check_hash(&group), Some(hash));
        for bit in (0..group.len() * 8).step_by(11) {
            let mut flipped = group.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check_hash(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_pad_takes_any_number_of_blocks() {
        let mut header = GroupHeader {
            pad: true,
            block_count: 400,
            ..sample()
        };
        let mut group = vec![0; HEADER_BYTES];
        seal(&mut header, &mut group);
        assert_eq!(group.len(), 4096);
        assert_eq!(decode_header(&group).map(|h| h.block_count), Ok(400));
    }
}
