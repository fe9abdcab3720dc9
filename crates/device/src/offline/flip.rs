//! Telling a flipped bit from a write that never finished.
//!
//! At the end of a journal, a group that doesn't match its hash is normal: it was being written
//! when the power failed. But if what is there is *one bit* away from a valid group, it was written
//! wholly and damaged later. CRCs are linear, so which single bit would have to be flipped follows
//! from the difference between the checksum found and the one expected, in one pass over the bit
//! positions and without trying any of them.

use flagstone_types::BlockChecksum;

/// What a write of any size is torn at.
const SECTOR_BYTES: usize = 512;

/// Bytes of a sector that must be as expected, and not just zero, for an older version of it to be
/// ruled out: older records differ in LSNs and checksums.
const TELLING_BYTES: usize = 16;

/// Reflected polynomial of CRC32C.
const CRC32C_POLYNOMIAL: u64 = 0x82f6_3b78;

/// Reflected polynomial of CRC-64/NVME.
const CRC64_POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// A bit in a run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlippedBit {
    /// The byte it is in.
    pub byte: usize,
    /// Which of its bits, the lowest being 0.
    pub bit: u8,
}

impl std::fmt::Display for FlippedBit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bit {} of byte {}", self.bit, self.byte)
    }
}

/// The single bit of `bytes` that must be flipped for it to have the CRC32C `expected`; `None` if
/// there is none. Two bits can't both do, for `bytes` up to 2^31 bits.
pub fn in_block(bytes: &[u8], expected: BlockChecksum) -> Option<FlippedBit> {
    let difference = u64::from(BlockChecksum::of(bytes).0 ^ expected.0);
    position(difference, CRC32C_POLYNOMIAL, bytes.len())
}

/// The single bit to flip in a structure of `len_bytes` whose CRC-64 is `found` but is stored as
/// `stored`. The bit may be in the structure or (as `None` in the first place, bit in the second)
/// in the stored checksum.
pub fn in_structure(found: u64, stored: u64, len_bytes: usize) -> Option<Crc64Flip> {
    let difference = found ^ stored;
    if difference.count_ones() == 1 {
        return Some(Crc64Flip::Stored(difference.trailing_zeros() as u8));
    }
    position(difference, CRC64_POLYNOMIAL, len_bytes).map(Crc64Flip::Covered)
}

/// Where the flipped bit of a structure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crc64Flip {
    /// In the bytes that the checksum covers.
    Covered(FlippedBit),
    /// In the stored checksum itself: which bit.
    Stored(u8),
}

/// The bit whose flip changes a CRC by `difference`. The change that the last bit makes is the
/// polynomial; each bit further to the front is one more step of the shift register.
fn position(difference: u64, polynomial: u64, len_bytes: usize) -> Option<FlippedBit> {
    if difference == 0 {
        return None;
    }
    let mut change = polynomial;
    for from_end in 0..len_bytes * 8 {
        if change == difference {
            let at = len_bytes * 8 - 1 - from_end;
            return Some(FlippedBit {
                byte: at / 8,
                bit: (at % 8) as u8,
            });
        }
        change = (change >> 1) ^ if change & 1 == 1 { polynomial } else { 0 };
    }
    None
}

/// If `block`, which fails its seal, is one bit away from being sealed: the block with that bit
/// flipped back.
pub fn mend_sealed(block: &[u8]) -> Option<Vec<u8>> {
    let (body, tail) = block.split_at_checked(block.len().checked_sub(8)?)?;
    mend(
        block,
        body.len(),
        flagstone_types::ChainHash::of(body).0,
        tail,
    )
}

/// The same for a group, whose hash lies within it and counts as zero. `hash_offset`: where.
pub fn mend_group(group: &[u8], hash_offset: usize) -> Option<Vec<u8>> {
    let mut copy = group.to_vec();
    copy.get_mut(hash_offset..hash_offset + 8)?.fill(0);
    let found = flagstone_types::ChainHash::of(&copy).0;
    let stored = group.get(hash_offset..hash_offset + 8)?;
    let flip = in_structure(found, read_u64(stored), group.len())?;
    let mut mended = group.to_vec();
    match flip {
        // A flip can't be in the hash and in what it covers: the hash counts as zero there.
        Crc64Flip::Covered(at) if (hash_offset..hash_offset + 8).contains(&at.byte) => return None,
        Crc64Flip::Covered(at) => mended[at.byte] ^= 1 << at.bit,
        Crc64Flip::Stored(bit) => mended[hash_offset + usize::from(bit / 8)] ^= 1 << (bit % 8),
    }
    Some(mended)
}

/// Whether `found` can't be a torn version of `mended`, from which it differs in one bit. A torn
/// write leaves whole sectors as they were before, and those could by chance differ in one bit if
/// there is next to nothing in them.
pub fn is_certain(found: &[u8], mended: &[u8]) -> bool {
    let pairs = found.chunks(SECTOR_BYTES).zip(mended.chunks(SECTOR_BYTES));
    let changed = pairs.into_iter().find(|(found, mended)| found != mended);
    changed.is_some_and(|(_, mended)| {
        let telling = mended.iter().filter(|&&byte| byte != 0).count();
        // A sector of zeros with one bit set is no older version of anything either.
        telling == 0 || telling >= TELLING_BYTES
    })
}

fn mend(block: &[u8], tail_offset: usize, found: u64, tail: &[u8]) -> Option<Vec<u8>> {
    let mut mended = block.to_vec();
    match in_structure(found, read_u64(tail), tail_offset)? {
        Crc64Flip::Covered(at) => mended[at.byte] ^= 1 << at.bit,
        Crc64Flip::Stored(bit) => mended[tail_offset + usize::from(bit / 8)] ^= 1 << (bit % 8),
    }
    Some(mended)
}

fn read_u64(bytes: &[u8]) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(le)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::bytes::{is_sealed, seal_block};

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn every_flipped_bit_of_a_block_is_located() {
        let block = noise(4096);
        let expected = BlockChecksum::of(&block);
        assert_eq!(in_block(&block, expected), None, "nothing is wrong with it");
        for at in (0..4096 * 8).step_by(13).chain([0, 4096 * 8 - 1]) {
            let mut flipped = block.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            let found = in_block(&flipped, expected);
            assert_eq!(
                found,
                Some(FlippedBit {
                    byte: at / 8,
                    bit: (at % 8) as u8
                })
            );
        }
        let mut torn = block;
        torn[512..].fill(0);
        assert_eq!(
            in_block(&torn, expected),
            None,
            "half a block is no flipped bit"
        );
    }

    #[test]
    fn a_sealed_block_is_mended() {
        let mut block = noise(4096);
        seal_block(&mut block);
        for at in (0..4096 * 8).step_by(101).chain(4088 * 8..4096 * 8) {
            let mut flipped = block.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            assert!(!is_sealed(&flipped));
            assert_eq!(mend_sealed(&flipped).as_ref(), Some(&block), "bit {at}");
        }
        let mut flipped = block.clone();
        flipped[700] ^= 1;
        assert!(is_certain(&flipped, &block));
        let (mut before, mut after) = ([0; 1024], [0; 1024]);
        after[600] = 1;
        assert!(!is_certain(&before, &after), "it may not have been written");
        (before, after) = (after, before);
        assert!(is_certain(&before, &after), "nothing looks like that");
        block[100..200].fill(0);
        assert_eq!(mend_sealed(&block), None);
        assert_eq!(mend_sealed(&[1, 2, 3]), None);
    }
}
