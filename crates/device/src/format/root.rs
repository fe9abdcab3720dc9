//! A journal's root: the durable state of everything that journal owns, as of one of its groups.
//!
//! Each journal has two root slots, written in turn; of two valid ones the higher `root_seq` holds.
//! What the older one points to stays untouched until the newer one is durable.

use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash, DeviceId};

use super::FormatError;
use super::bytes::{Reader, Writer, is_sealed, seal_block};
use super::table::{BlockPtr, INDEX_PTRS_MAX};

/// The first eight bytes of a root.
pub const MAGIC: [u8; 8] = *b"FSROOT01";

/// Numbers of groups and roots are below this; incarnations below its upper half. No journal gets
/// so far, and whoever counts on need not look out for the end.
const COUNTER_LIMIT: u64 = 1 << 63;

/// The state of one journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The device it belongs to.
    pub device_id: DeviceId,
    /// Which journal.
    pub journal: u16,
    /// Rises with each root of this journal.
    pub root_seq: u64,
    /// Rises with each start of the node. Groups of other incarnations are not part of the chain
    /// that follows this root.
    pub incarnation: u32,
    /// Sequence number of the first group that this root does not include.
    pub next_seq: u64,
    /// Ring index at which that group begins.
    pub ring_index: u32,
    /// Hash of the group before it.
    pub prev_hash: ChainHash,
    /// The next layer number to be given out by this journal.
    pub next_layer: u32,
    /// True if the node was stopped in order: nothing follows in the ring.
    pub clean: bool,
    /// Index blocks of the catalogue.
    pub catalogue: Vec<BlockPtr>,
    /// Index blocks of the segment table.
    pub segments: Vec<BlockPtr>,
}

impl Root {
    /// The 4096 bytes of one slot.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.catalogue.len() <= INDEX_PTRS_MAX);
        assert!(self.segments.len() <= INDEX_PTRS_MAX);
        let mut out = Vec::with_capacity(BLOCK_SIZE as usize);
        let mut writer = Writer::new(&mut out);
        writer
            .bytes(&MAGIC)
            .u128(self.device_id.0)
            .u16(self.journal)
            .u16(u16::from(self.clean))
            .u32(self.incarnation)
            .u64(self.root_seq)
            .u64(self.next_seq)
            .u64(self.prev_hash.0)
            .u32(self.ring_index)
            .u32(self.next_layer)
            .u16(self.catalogue.len() as u16)
            .u16(self.segments.len() as u16)
            .pad_to(128);
        for ptr in self.catalogue.iter().chain(&self.segments) {
            ptr.encode(&mut Writer::new(&mut out));
        }
        Writer::new(&mut out).pad_to(BLOCK_SIZE as usize);
        seal_block(&mut out);
        out
    }

    /// Checks and reads one slot.
    pub fn decode(block: &[u8]) -> Result<Root, FormatError> {
        let mut reader = Reader::new(block, "journal root");
        if reader.take(8)? != MAGIC {
            return Err(FormatError::new(
                "journal root: expected \"FSROOT01\" at its start",
            ));
        }
        if block.len() != BLOCK_SIZE as usize || !is_sealed(block) {
            return Err(FormatError::new(
                "journal root: its checksum does not match its bytes",
            ));
        }
        let device_id = DeviceId(reader.u128()?);
        let journal = reader.u16()?;
        let clean = match reader.u16()? {
            0 => false,
            1 => true,
            other => {
                return Err(FormatError::new(format!(
                    "journal root: unknown flags {other:#x}"
                )));
            }
        };
        let incarnation = reader.u32()?;
        let root_seq = reader.u64()?;
        let next_seq = reader.u64()?;
        let prev_hash = ChainHash(reader.u64()?);
        let ring_index = reader.u32()?;
        let next_layer = reader.u32()?;
        let catalogue_count = usize::from(reader.u16()?);
        let segment_count = usize::from(reader.u16()?);
        if catalogue_count > INDEX_PTRS_MAX || segment_count > INDEX_PTRS_MAX {
            return Err(FormatError::new(format!(
                "journal root: expected at most {INDEX_PTRS_MAX} index blocks each, found \
                 {catalogue_count} and {segment_count}"
            )));
        }
        if next_seq == 0 || incarnation == 0 || next_layer == 0 {
            return Err(FormatError::new(
                "journal root: sequence, incarnation and layer numbers begin at 1, found 0",
            ));
        }
        let counters = [u64::from(incarnation) << 32, root_seq, next_seq];
        if counters.iter().any(|&count| count >= COUNTER_LIMIT) {
            return Err(FormatError::new(format!(
                "journal root: no journal reaches incarnation {incarnation}, root {root_seq} or \
                 group {next_seq}"
            )));
        }
        reader.seek(128)?;
        let mut take = |count: usize| -> Result<Vec<BlockPtr>, FormatError> {
            (0..count).map(|_| BlockPtr::decode(&mut reader)).collect()
        };
        let catalogue = take(catalogue_count)?;
        let segments = take(segment_count)?;
        Ok(Root {
            device_id,
            journal,
            root_seq,
            incarnation,
            next_seq,
            ring_index,
            prev_hash,
            next_layer,
            clean,
            catalogue,
            segments,
        })
    }

    /// Checks that the root belongs where it was read, and points within the device.
    pub fn check_place(
        &self,
        device_id: DeviceId,
        journal: u16,
        geometry: &super::geometry::Geometry,
    ) -> Result<(), FormatError> {
        if self.device_id != device_id || self.journal != journal {
            return Err(FormatError::new(format!(
                "journal root: expected device {device_id} journal {journal}, found device {} \
                 journal {}",
                self.device_id, self.journal
            )));
        }
        if self.ring_index >= geometry.ring_blocks {
            return Err(FormatError::new(format!(
                "journal root: expected a ring index below {}, found {}",
                geometry.ring_blocks, self.ring_index
            )));
        }
        let outside = self
            .catalogue
            .iter()
            .chain(&self.segments)
            .find(|p| !p.is_within(geometry));
        match outside {
            Some(ptr) => Err(FormatError::new(format!(
                "journal root: it points to {}, outside the data area",
                BlockNo(ptr.block.0)
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Root {
        Root {
            device_id: DeviceId(77),
            journal: 1,
            root_seq: 9,
            incarnation: 4,
            next_seq: 1234,
            ring_index: 17,
            prev_hash: ChainHash(0xdead_beef),
            next_layer: 12,
            clean: true,
            catalogue: vec![BlockPtr {
                block: BlockNo(600),
                hash: ChainHash(1),
            }],
            segments: vec![
                BlockPtr {
                    block: BlockNo(601),
                    hash: ChainHash(2),
                },
                BlockPtr {
                    block: BlockNo(602),
                    hash: ChainHash(3),
                },
            ],
        }
    }

    #[test]
    fn round_trip_and_flips() {
        let bytes = sample().encode();
        assert_eq!(Root::decode(&bytes), Ok(sample()));
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Root::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
