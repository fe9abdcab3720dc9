//! The simulator's own random numbers: xoshiro256** seeded through SplitMix64.
//!
//! Own code and not a crate, because a kept seed has to mean the same run for as long as the
//! repository lives; a library is free to change its algorithm with a new version. Both algorithms
//! are by Blackman and Vigna and are in the public domain.
//!
//! Each part of a world (scheduler, disks, network, the code under test) draws from a stream of its
//! own, so that turning on a disk fault does not also change which task runs next before the fault
//! has had an effect.

use std::ops::RangeInclusive;

/// A seeded generator. Not for secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of SplitMix64: spreads a counter or a small seed over 64 bits.
pub(crate) fn split_mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut counter = seed;
        let state = std::array::from_fn(|_| {
            let word = split_mix(counter);
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word
        });
        Rng { state }
    }

    /// One of several independent generators of the same `seed`.
    pub fn stream(seed: u64, label: u64) -> Rng {
        Rng::new(split_mix(seed) ^ split_mix(label.wrapping_mul(2).wrapping_add(1)))
    }

    /// Sixty-four random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `limit`, which must not be zero. (The bias of at most limit / 2^64 that the
    /// multiplication leaves does not matter here.)
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "nothing lies below zero");
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// An index into something of `len` elements, which must not be zero.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `range`; the start of an empty range.
    pub fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        let span = end.saturating_sub(start);
        match span.checked_add(1) {
            Some(count) => start + self.below(count),
            None => self.next_u64(),
        }
    }

    /// True with the given probability. Always draws, so a run with a probability of zero and one
    /// without the question stay in step.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A fraction of one, below it.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }

    /// Fills `bytes` with noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_reference_implementation() {
        // First outputs of xoshiro256** from state 1, 2, 3, 4 in the authors' C code.
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
        // First output of SplitMix64 from seed 0.
        assert_eq!(split_mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |label| Rng::stream(7, label).next_u64();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(Rng::stream(8, 1).next_u64(), draw(1));
    }

    #[test]
    fn ranges_are_covered_and_kept() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.within(&(0..=4)) as usize] = true;
            assert!((10..=12).contains(&rng.within(&(10..=12))));
            assert!(!rng.chance(0.0));
            assert!(rng.chance(1.0));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.within(&(9..=9)), 9);
        rng.within(&(0..=u64::MAX));
    }

    #[test]
    fn chance_is_about_right() {
        let mut rng = Rng::new(11);
        let hits = (0..100_000).filter(|_| rng.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut rng = Rng::new(5);
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
