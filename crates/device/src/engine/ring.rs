//! A journal's ring as recovery reads it: piece by piece, so that the memory it takes does not grow with the ring.

use flagstone_platform::{BlockDevice, Platform};
use flagstone_types::BLOCK_SIZE;

use super::format::read_again;
use super::recovery::OpenError;
use crate::format::geometry::Geometry;

const BLOCK_BYTES: usize = BLOCK_SIZE as usize;

/// Blocks read at a time.
const READ_BLOCKS: u32 = 256;

/// See the module's page. Meant to be read forwards.
pub(super) struct Ring<'a, P: Platform> {
    platform: &'a P,
    device: &'a P::Device,
    geometry: &'a Geometry,
    journal: u16,
    /// Where in the ring what is in memory begins.
    first: u32,
    bytes: Vec<u8>,
}

impl<'a, P: Platform> Ring<'a, P> {
    pub(super) fn new(
        platform: &'a P,
        device: &'a P::Device,
        geometry: &'a Geometry,
        journal: u16,
    ) -> Ring<'a, P> {
        Ring {
            platform,
            device,
            geometry,
            journal,
            first: 0,
            bytes: Vec::new(),
        }
    }

    pub(super) fn len_blocks(&self) -> u32 {
        self.geometry.ring_blocks
    }

    /// So many blocks from `at` on, which must be in the ring.
    pub(super) async fn blocks(&mut self, at: u32, count: u32) -> Result<&[u8], OpenError> {
        let held = self.bytes.len() / BLOCK_BYTES;
        let skip = match at.checked_sub(self.first) {
            Some(skip) if skip as usize <= held => skip as usize,
            _ => {
                self.bytes.clear();
                self.first = at;
                0
            }
        };
        let len = count as usize * BLOCK_BYTES;
        if self.bytes.len() < skip * BLOCK_BYTES + len {
            self.bytes.drain(..skip * BLOCK_BYTES);
            self.first = at;
            while self.bytes.len() < len {
                self.read_on().await?;
            }
            return Ok(&self.bytes[..len]);
        }
        Ok(&self.bytes[skip * BLOCK_BYTES..][..len])
    }

    /// Reads what follows.
    async fn read_on(&mut self) -> Result<(), OpenError> {
        let at = self.first + (self.bytes.len() / BLOCK_BYTES) as u32;
        let blocks = (self.geometry.ring_blocks - at).min(READ_BLOCKS);
        let place = self.geometry.ring_block(self.journal, at);
        let buf = self.platform.buffers().take(blocks as usize * BLOCK_BYTES);
        let (buf, result) = self.device.read(place.offset_bytes(), buf).await;
        if result.is_ok() {
            self.bytes.extend_from_slice(&buf);
            return Ok(());
        }
        for index in at..at + blocks {
            let place = self.geometry.ring_block(self.journal, index);
            let bytes = read_again(self.platform, self.device, place).await;
            self.bytes.extend_from_slice(&bytes.map_err(OpenError::Io)?);
        }
        Ok(())
    }
}
