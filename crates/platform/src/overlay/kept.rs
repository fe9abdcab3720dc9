//! What is kept of what was written: blocks by their numbers, each with the sectors that were written of it.

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_types::BLOCK_SIZE;

/// A block in memory.
const BLOCK_BYTES: usize = BLOCK_SIZE as usize;

/// What may be written alone.
pub(super) const SECTOR_BYTES: u64 = 512;

/// All sectors of a block.
const ALL: u8 = u8::MAX;

/// What a block takes beside its bytes, about.
pub(super) const PLACE_BYTES: u64 = 64;

/// A block of which something was written.
enum Block {
    /// All of it is zero.
    Zeros,
    /// Its bytes, and a bit for each sector that was written. The others are what lies below.
    Bytes(Box<[u8; BLOCK_BYTES]>, u8),
}

impl Block {
    /// The sectors that were written.
    fn sectors(&self) -> u8 {
        match self {
            Block::Zeros => ALL,
            Block::Bytes(_, sectors) => *sectors,
        }
    }

    fn held_bytes(&self) -> u64 {
        match self {
            Block::Zeros => PLACE_BYTES,
            Block::Bytes(..) => PLACE_BYTES + BLOCK_SIZE,
        }
    }
}

/// There is no room for more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full;

/// The part of a range that lies in one block.
struct Piece {
    block: u64,
    /// In the block.
    within: Range<usize>,
    /// In the range.
    part: Range<usize>,
}

impl Piece {
    /// The sectors it has.
    fn sectors(&self) -> u8 {
        let sector_of = |at: usize| at / SECTOR_BYTES as usize;
        let sectors = sector_of(self.within.start)..sector_of(self.within.end);
        sectors.fold(0, |all, sector| all | 1 << sector)
    }

    /// Whether it is all that a device of this size has of the block.
    fn is_whole(&self, size_bytes: u64) -> bool {
        let end = size_bytes.saturating_sub(self.block * BLOCK_SIZE);
        self.within.start == 0 && self.within.end as u64 >= end.min(BLOCK_SIZE)
    }
}

/// The pieces of a range of bytes, in order.
fn pieces(range: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
    let range = range.clone();
    let blocks = range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE);
    blocks.map(move |block| {
        let first = block * BLOCK_SIZE;
        let (from, to) = (range.start.max(first), range.end.min(first + BLOCK_SIZE));
        Piece {
            block,
            within: (from - first) as usize..(to - first) as usize,
            part: (from - range.start) as usize..(to - range.start) as usize,
        }
    })
}

/// What was written over a device of some size. Ranges lie on it, and are whole sectors.
pub(super) struct Kept {
    size_bytes: u64,
    max_bytes: u64,
    blocks: BTreeMap<u64, Block>,
    held_bytes: u64,
}

impl Kept {
    /// Nothing yet, and never more than `max_bytes` of memory.
    pub(super) fn new(size_bytes: u64, max_bytes: u64) -> Kept {
        Kept {
            size_bytes,
            max_bytes,
            blocks: BTreeMap::new(),
            held_bytes: 0,
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What of a range was never written: as few runs as can be, in order.
    pub(super) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        let mut add = |run: Range<u64>| match missing.last_mut() {
            _ if run.is_empty() => {}
            Some(last) if last.end == run.start => last.end = run.end,
            _ => missing.push(run),
        };
        let blocks = range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE);
        for (number, block) in self.blocks.range(blocks) {
            let first = number * BLOCK_SIZE;
            add(at..first.max(at));
            for sector in 0..BLOCK_SIZE / SECTOR_BYTES {
                let start = first + sector * SECTOR_BYTES;
                if block.sectors() >> sector & 1 == 0 {
                    let end = (start + SECTOR_BYTES).min(range.end);
                    add(start.max(range.start)..end.max(range.start));
                }
            }
            at = (first + BLOCK_SIZE).min(range.end);
        }
        add(at..range.end);
        missing
    }

    /// Puts what was written over what lies below.
    pub(super) fn copy_over(&self, offset_bytes: u64, out: &mut [u8]) {
        let range = offset_bytes..offset_bytes + out.len() as u64;
        for piece in pieces(&range) {
            let Some(block) = self.blocks.get(&piece.block) else {
                continue;
            };
            let sectors = block.sectors();
            for at in piece.within.clone().step_by(SECTOR_BYTES as usize) {
                if sectors >> (at / SECTOR_BYTES as usize) & 1 == 0 {
                    continue;
                }
                let from = at..at + SECTOR_BYTES as usize;
                let to = piece.part.start + at - piece.within.start;
                let out = &mut out[to..to + SECTOR_BYTES as usize];
                match block {
                    Block::Zeros => out.fill(0),
                    Block::Bytes(bytes, _) => out.copy_from_slice(&bytes[from]),
                }
            }
        }
    }

    /// From the first to the last block of a range that would be written as a whole and of which nothing is kept: if it is what lies
    /// below, it need not be.
    pub(super) fn to_compare(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut span: Option<Range<u64>> = None;
        for piece in pieces(range) {
            if piece.is_whole(self.size_bytes) && !self.blocks.contains_key(&piece.block) {
                let start = piece.block * BLOCK_SIZE;
                let end = start + piece.within.end as u64;
                span = Some(span.map_or(start, |span| span.start)..end);
            }
        }
        span
    }

    /// Keeps what is written. `below` is what lies there from an offset on, as far as that is known.
    pub(super) fn put(
        &mut self,
        offset_bytes: u64,
        data: &[u8],
        below: Option<(u64, &[u8])>,
    ) -> Result<(), Full> {
        let range = offset_bytes..offset_bytes + data.len() as u64;
        for piece in pieces(&range) {
            let new = &data[piece.part.clone()];
            let is_whole = piece.is_whole(self.size_bytes);
            let is_there = || {
                let (start, bytes) = below?;
                let at = (piece.block * BLOCK_SIZE).checked_sub(start)? as usize;
                bytes.get(at..at + new.len()).map(|bytes| bytes == new)
            };
            if !self.blocks.contains_key(&piece.block) && is_whole && is_there() == Some(true) {
                continue;
            }
            self.put_piece(&piece, new, is_whole)?;
        }
        Ok(())
    }

    fn put_piece(&mut self, piece: &Piece, new: &[u8], is_whole: bool) -> Result<(), Full> {
        let is_zero = new.iter().all(|byte| *byte == 0);
        if is_whole && is_zero {
            return self.replace(piece.block, Block::Zeros);
        }
        let written = match is_whole {
            true => ALL,
            false => piece.sectors(),
        };
        match self.blocks.get_mut(&piece.block) {
            Some(Block::Zeros) if is_zero => Ok(()),
            Some(Block::Bytes(bytes, sectors)) => {
                bytes[piece.within.clone()].copy_from_slice(new);
                *sectors |= written;
                Ok(())
            }
            found => {
                // Of zeros all was written.
                let sectors = found.map_or(written, |_| ALL);
                let mut bytes = Box::new([0; BLOCK_BYTES]);
                bytes[piece.within.clone()].copy_from_slice(new);
                self.replace(piece.block, Block::Bytes(bytes, sectors))
            }
        }
    }

    fn replace(&mut self, number: u64, block: Block) -> Result<(), Full> {
        let before = self.blocks.get(&number).map_or(0, Block::held_bytes);
        let held_bytes = self.held_bytes - before + block.held_bytes();
        if held_bytes > self.max_bytes && held_bytes > self.held_bytes {
            return Err(Full);
        }
        self.held_bytes = held_bytes;
        self.blocks.insert(number, block);
        Ok(())
    }

    /// The whole blocks of a range are zeros from now on; if there is no room to remember that, they stay what they were.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        let count = (range.end - range.start) / BLOCK_SIZE;
        let left_bytes = self.max_bytes.saturating_sub(self.held_bytes);
        if count.saturating_mul(PLACE_BYTES) > left_bytes {
            return;
        }
        for piece in pieces(range) {
            if piece.is_whole(self.size_bytes) {
                // There is room: that was looked at.
                let _ = self.replace(piece.block, Block::Zeros);
            }
        }
    }
}
