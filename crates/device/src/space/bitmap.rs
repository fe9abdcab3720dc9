//! A segment's bitmap: one bit a block, one block in all.

use flagstone_types::unit::{BLOCK_SIZE, SEGMENT_BLOCKS};

const WORDS: usize = SEGMENT_BLOCKS as usize / 64;

/// One bit for each block of a segment.
#[derive(Clone, PartialEq, Eq)]
pub struct Bitmap {
    words: Box<[u64; WORDS]>,
}

impl Default for Bitmap {
    fn default() -> Self {
        Bitmap {
            words: Box::new([0; WORDS]),
        }
    }
}

impl Bitmap {
    /// The bitmap whose block on the device is `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Bitmap {
        assert_eq!(bytes.len(), BLOCK_SIZE as usize);
        let mut bitmap = Bitmap::default();
        for (word, chunk) in bitmap.words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        bitmap
    }

    /// The block on the device.
    pub fn to_bytes(&self, out: &mut [u8]) {
        for (word, chunk) in self.words.iter().zip(out.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Bit `index`.
    pub fn get(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// Sets bit `index`; returns what it was.
    pub fn set(&mut self, index: usize) -> bool {
        let was = self.get(index);
        self.words[index / 64] |= 1 << (index % 64);
        was
    }

    /// Clears bit `index`; returns what it was.
    pub fn clear(&mut self, index: usize) -> bool {
        let was = self.get(index);
        self.words[index / 64] &= !(1 << (index % 64));
        was
    }

    /// Set bits.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Set bits from index `range.0` up to `range.1`.
    pub fn count_in(&self, range: (usize, usize)) -> u32 {
        let mut at = range.0;
        let mut count = 0;
        while at < range.1 {
            let behind = range.1.min((at / 64 + 1) * 64);
            let mask = u64::MAX >> (64 - (behind - at));
            count += (self.words[at / 64] >> (at % 64) & mask).count_ones();
            at = behind;
        }
        count
    }

    /// The first run of clear bits at or behind `from` and below `end`: its start and length, the
    /// length at most `max`.
    pub fn find_clear_run(&self, from: usize, end: usize, max: usize) -> Option<(usize, usize)> {
        let start = self.next(from, end, false)?;
        let limit = end.min(start.saturating_add(max));
        let stop = self.next(start, limit, true).unwrap_or(limit);
        Some((start, stop - start))
    }

    /// Where the first run of at least `min` clear bits begins, at or behind `from` and below `end`.
    pub fn find_long_run(&self, from: usize, end: usize, min: usize) -> Option<usize> {
        let mut at = from;
        loop {
            let (start, len) = self.find_clear_run(at, end, min)?;
            if len == min {
                return Some(start);
            }
            at = start + len;
        }
    }

    /// First index in `from..end` whose bit is `value`.
    fn next(&self, from: usize, end: usize, value: bool) -> Option<usize> {
        let mut at = from;
        while at < end {
            let word = if value {
                self.words[at / 64]
            } else {
                !self.words[at / 64]
            };
            let rest = word >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros() as usize;
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_across_words() {
        let mut bitmap = Bitmap::default();
        for index in (0..60).chain(70..200) {
            bitmap.set(index);
        }
        assert_eq!(bitmap.find_clear_run(0, 32768, 100), Some((60, 10)));
        assert_eq!(bitmap.find_clear_run(65, 32768, 3), Some((65, 3)));
        assert_eq!(bitmap.find_clear_run(70, 32768, 100), Some((200, 100)));
        assert_eq!(bitmap.find_clear_run(70, 200, 100), None);
        assert_eq!(bitmap.find_long_run(0, 32768, 10), Some(60));
        assert_eq!(bitmap.find_long_run(0, 32768, 11), Some(200));
        assert_eq!(bitmap.find_long_run(0, 210, 11), None, "cut off by the end");
        assert_eq!(bitmap.find_clear_run(32760, 32768, 100), Some((32760, 8)));
        assert_eq!(bitmap.count(), 190);
        assert_eq!(bitmap.count_in((0, 32768)), 190);
        assert_eq!(bitmap.count_in((59, 71)), 2);
        assert_eq!(bitmap.count_in((64, 128)), 58);
        let mut bytes = vec![0; 4096];
        bitmap.to_bytes(&mut bytes);
        assert!(Bitmap::from_bytes(&bytes) == bitmap);
    }
}
