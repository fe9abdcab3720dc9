//! Checksums: CRC32C for blocks, CRC-64/NVME for whole structures and the journal's chain.

use std::fmt;

/// CRC32C (Castagnoli) of one block's 4096 bytes. It is kept with the pointer to the block, never
/// beside the data, so it also catches misdirected and lost writes. [decibel 4.1, data integrity]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockChecksum(pub u32);

impl BlockChecksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> BlockChecksum {
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
        BlockChecksum(crc as u32)
    }
}

impl fmt::Debug for BlockChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// CRC-64/NVME of a structure's bytes. A journal group carries the hash of the group before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ChainHash(pub u64);

impl ChainHash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> ChainHash {
        ChainHash(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values() {
        // [crccat "CRC-32/ISCSI"] test the check value, of "123456789"
        assert_eq!(BlockChecksum::of(b"123456789"), BlockChecksum(0xe306_9283));
        // [crccat "CRC-64/NVME"] test the same
        assert_eq!(
            ChainHash::of(b"123456789"),
            ChainHash(0xae8b_1486_0a79_9888)
        );
    }

    // [rfc3720 B.4] test the vectors; their bytes are listed lowest first
    #[test]
    fn vectors_of_iscsi() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let vectors: [(&[u8], u32); 4] = [
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
        ];
        for (bytes, checksum) in vectors {
            assert_eq!(BlockChecksum::of(bytes), BlockChecksum(checksum));
        }
    }
}
