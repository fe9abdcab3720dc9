//! What the tests of the NFS codecs stand on: random messages, and what the fuzzers run.
//!
//! The fuzz targets in `fuzz/` include this module as well, so it names nothing but the codecs. The
//! other implementation, which the codecs are held against, is named in the test files only.
// Each test file uses a part of it, and none is a library.
#![allow(dead_code, unreachable_pub)]

pub mod cases;

/// A small generator of reproducible random numbers (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number of 32 bits, often one at an edge.
    pub fn word(&mut self) -> u32 {
        match self.below(6) {
            0 => 0,
            1 => u32::MAX,
            2 => self.below(16) as u32,
            _ => self.next() as u32,
        }
    }

    /// A number of 64 bits, often one at an edge.
    pub fn long(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => self.below(16),
            _ => self.next(),
        }
    }

    /// Up to `max` bytes, any of them.
    pub fn bytes(&mut self, max: usize) -> Vec<u8> {
        let len = match self.below(8) {
            0 => 0,
            1 => max as u64,
            2 => self.below(max as u64 + 1),
            _ => self.below(max.min(12) as u64 + 1),
        };
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Cuts, flips, repeats and overwrites.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const NASTY: [u8; 5] = [0, 1, 0x7f, 0x80, 0xff];
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len() as u64) as usize;
            match self.below(5) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes.truncate(at),
                2 => {
                    let copy = bytes[at..].to_vec();
                    let to = self.below(bytes.len() as u64) as usize;
                    bytes.splice(to..to, copy);
                }
                3 => {
                    let at = at / 4 * 4;
                    let end = (at + 4).min(bytes.len());
                    bytes[at..end].fill(NASTY[self.below(5) as usize]);
                }
                _ => bytes[at] = NASTY[self.below(5) as usize],
            }
        }
    }
}
