//! The superblock: what a device is and how it is laid out. Written when the device is formatted
//! (and when it grows), read at every start.
//!
//! Two copies, in the first and in the last block of the device, so that the loss of either end
//! (another tool's label, a truncated copy) is survived.

use flagstone_types::{BLOCK_SIZE, DeviceId};

use super::bytes::{Reader, Writer, is_sealed, seal_block};
use super::{FORMAT_VERSION, FormatError};

/// The first eight bytes of a Flagstone device.
pub const MAGIC: [u8; 8] = *b"FLAGSTON";

/// Features a reader must know to read the device at all. None is defined in version 1.
pub const INCOMPATIBLE_KNOWN: u32 = 0;

/// Journals a device can have: as many cores can own parts of it.
pub const JOURNALS_MAX: u16 = 64;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Drawn at random when the device was formatted.
    pub device_id: DeviceId,
    /// Rises with each rewrite; of two valid copies the higher one holds.
    pub generation: u64,
    /// Blocks of the device that are in use by the format, from its first byte on.
    pub block_count: u64,
    /// Number of journals, 1 to [`JOURNALS_MAX`].
    pub journal_count: u16,
    /// Blocks in each journal's ring.
    pub ring_blocks: u32,
    /// When it was formatted, nanoseconds since 1970.
    pub created_ns: u64,
    /// Features that a reader may ignore.
    pub compatible: u32,
    /// Features that a reader must know.
    pub incompatible: u32,
}

impl Superblock {
    /// The 4096 bytes of one copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_SIZE as usize);
        Writer::new(&mut out)
            .bytes(&MAGIC)
            .u32(FORMAT_VERSION)
            .u32(self.compatible)
            .u32(self.incompatible)
            .u16(self.journal_count)
            .u16(0)
            .u128(self.device_id.0)
            .u64(self.generation)
            .u64(self.block_count)
            .u32(self.ring_blocks)
            .u32(0)
            .u64(self.created_ns)
            .pad_to(BLOCK_SIZE as usize);
        seal_block(&mut out);
        out
    }

    /// Checks and reads one copy.
    pub fn decode(block: &[u8]) -> Result<Superblock, FormatError> {
        let mut reader = Reader::new(block, "superblock");
        let magic = reader.take(8)?;
        if magic != MAGIC {
            return Err(FormatError::new(
                "superblock: expected the bytes \"FLAGSTON\" at its start, found others; \
                 this is not a Flagstone device",
            ));
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            return Err(FormatError::new(format!(
                "superblock: expected format version {FORMAT_VERSION}, found {version}; \
                 use a release of Flagstone that knows it"
            )));
        }
        if block.len() != BLOCK_SIZE as usize || !is_sealed(block) {
            return Err(FormatError::new(
                "superblock: its checksum does not match its bytes",
            ));
        }
        let compatible = reader.u32()?;
        let incompatible = reader.u32()?;
        if incompatible & !INCOMPATIBLE_KNOWN != 0 {
            return Err(FormatError::new(format!(
                "superblock: features {incompatible:#x} are not known to this release"
            )));
        }
        let journal_count = reader.u16()?;
        reader.u16()?;
        let superblock = Superblock {
            compatible,
            incompatible,
            journal_count,
            device_id: DeviceId(reader.u128()?),
            generation: reader.u64()?,
            block_count: reader.u64()?,
            ring_blocks: {
                let ring_blocks = reader.u32()?;
                reader.u32()?;
                ring_blocks
            },
            created_ns: reader.u64()?,
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), FormatError> {
        if self.journal_count == 0 || self.journal_count > JOURNALS_MAX {
            return Err(FormatError::new(format!(
                "superblock: expected 1 to {JOURNALS_MAX} journals, found {}",
                self.journal_count
            )));
        }
        let geometry = super::geometry::Geometry::checked(self)?;
        if geometry.data_start.0 >= geometry.data_end.0 {
            return Err(FormatError::new(format!(
                "superblock: {} blocks leave no room behind {} journals of {} blocks",
                self.block_count, self.journal_count, self.ring_blocks
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) fn sample() -> Superblock {
    Superblock {
        device_id: DeviceId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        generation: 3,
        block_count: 16384,
        journal_count: 2,
        ring_blocks: 256,
        created_ns: 1_700_000_000_000_000_000,
        compatible: 0,
        incompatible: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let superblock = sample();
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
