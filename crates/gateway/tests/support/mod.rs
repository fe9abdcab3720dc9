//! What the NBD tests stand on: a one-thread platform with virtual time, streams in memory, a volume
//! in memory that is its own reference, and a client that reads the protocol's bytes by itself.
//!
//! The fuzz targets in `fuzz/` include this module as well.
// Each test file uses a part of it, and none is a library.
#![allow(dead_code, unreachable_pub)]

pub mod cases;
pub mod client;
pub mod memory;
pub mod stage;
pub mod stream;
pub mod world;

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

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
