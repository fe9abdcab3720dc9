//! The checksum of a payload, put together while its blocks are checked one by one.

use flagstone_types::BlockChecksum;
use flagstone_types::checksum::{
    crc32c_append, crc32c_combine, crc32c_combine_block, crc32c_of_zeros,
};

/// CRC32C of what has been added so far.
///
/// Both sides of a transfer have the checksum of each whole block anyway: the map keeps it. So they
/// add that, and pass only over parts of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PayloadCrc(u32);

impl PayloadCrc {
    /// Of no bytes.
    pub const fn new() -> PayloadCrc {
        PayloadCrc(0)
    }

    /// A whole block of 4 KiB follows.
    pub fn add_block(&mut self, block: BlockChecksum) {
        self.0 = crc32c_combine_block(self.0, block);
    }

    /// These bytes follow. They are passed over.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.0 = crc32c_append(self.0, bytes);
    }

    /// So many zeros follow.
    pub fn add_zeros(&mut self, bytes: u64) {
        self.add(crc32c_of_zeros(bytes), bytes);
    }

    /// A piece of `bytes` follows, whose CRC32C is `crc`.
    pub fn add(&mut self, crc: u32, bytes: u64) {
        self.0 = crc32c_combine(self.0, crc, bytes);
    }

    /// What belongs into a header.
    pub fn value(self) -> u32 {
        self.0
    }
}
