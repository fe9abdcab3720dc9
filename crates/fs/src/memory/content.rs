//! Bytes of a regular file: the blocks that were written, and nothing where none was.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::IoBuf;

use crate::{Piece, Pieces};

/// What is kept together.
const BLOCK_BYTES: u64 = 4096;

/// Behind the file's end every byte is zero. The size is in the attributes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Content {
    blocks: BTreeMap<u64, Rc<Vec<u8>>>,
}

/// The blocks that a range touches: number, beginning within the block, and length.
fn parts(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset_bytes + len_bytes;
    let mut at = offset_bytes;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (block, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let len = (BLOCK_BYTES - start).min(end - at);
        at += len;
        Some((block, start as usize, len as usize))
    })
}

impl Content {
    pub(super) fn used_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// What a write would take in addition.
    pub(super) fn needed_bytes(&self, offset_bytes: u64, len_bytes: u64) -> u64 {
        let missing = parts(offset_bytes, len_bytes)
            .filter(|(block, _, _)| !self.blocks.contains_key(block))
            .count();
        missing as u64 * BLOCK_BYTES
    }

    pub(super) fn write(&mut self, offset_bytes: u64, mut data: &[u8]) {
        for (block, start, len) in parts(offset_bytes, data.len() as u64) {
            let block = self.blocks.entry(block);
            let bytes = block.or_insert_with(|| Rc::new(vec![0; BLOCK_BYTES as usize]));
            Rc::make_mut(bytes)[start..start + len].copy_from_slice(&data[..len]);
            data = &data[len..];
        }
    }

    /// The range must lie within the file.
    pub(super) fn read(&self, offset_bytes: u64, len_bytes: u64) -> Pieces {
        let mut pieces = Pieces::new();
        let (mut data, mut zeros) = (Vec::new(), 0);
        for (block, start, len) in parts(offset_bytes, len_bytes) {
            match self.blocks.get(&block) {
                Some(bytes) => {
                    end_zeros(&mut pieces, &mut zeros);
                    data.extend_from_slice(&bytes[start..start + len]);
                }
                None => {
                    end_data(&mut pieces, &mut data);
                    zeros += len as u64;
                }
            }
        }
        end_data(&mut pieces, &mut data);
        end_zeros(&mut pieces, &mut zeros);
        pieces
    }

    /// Forgets what is behind the end.
    pub(super) fn cut(&mut self, size_bytes: u64) {
        self.blocks.split_off(&size_bytes.div_ceil(BLOCK_BYTES));
        let (block, start) = (size_bytes / BLOCK_BYTES, size_bytes % BLOCK_BYTES);
        if let Some(bytes) = self.blocks.get_mut(&block) {
            Rc::make_mut(bytes)[start as usize..].fill(0);
        }
    }
}

fn end_data(pieces: &mut Pieces, data: &mut Vec<u8>) {
    if !data.is_empty() {
        pieces.push(Piece::Data(IoBuf::copy_of(data).into()));
        data.clear();
    }
}

fn end_zeros(pieces: &mut Pieces, zeros: &mut u64) {
    if *zeros > 0 {
        pieces.push(Piece::Zeros(*zeros));
        *zeros = 0;
    }
}
