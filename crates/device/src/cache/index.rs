//! Where a key's entry is: a table with open addressing, half empty at least, of a size that is fixed.
//!
//! The hash is fixed, so that runs repeat. Keys are numbers of blocks that the allocator has chosen; who
//! could choose them would gain slower look-ups in a cache of their own.

/// A place without a key.
const EMPTY: u32 = u32::MAX;

/// Spreads the bits of a key: the last step of the generator SplitMix64.
pub(super) fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers of entries by key. The keys themselves are kept by the caller.
pub(super) struct Index {
    places: Box<[u32]>,
}

impl Index {
    /// For so many keys at most.
    pub(super) fn new(keys_max: usize) -> Index {
        Index {
            places: vec![EMPTY; (keys_max * 2).next_power_of_two()].into(),
        }
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// The entry of `key`, which `is_it` recognizes.
    pub(super) fn find(&self, key: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = mix(key) as usize & self.mask();
        loop {
            match self.places[place] {
                EMPTY => return None,
                at if is_it(at) => return Some(at),
                _ => place = (place + 1) & self.mask(),
            }
        }
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, key: u64, at: u32) {
        let mut place = mix(key) as usize & self.mask();
        while self.places[place] != EMPTY {
            place = (place + 1) & self.mask();
        }
        self.places[place] = at;
    }

    /// Removes the key of entry `at`. What was pushed aside by it moves up, so that nothing marks the
    /// place and look-ups stay short.
    pub(super) fn remove(&mut self, key: u64, at: u32, key_of: impl Fn(u32) -> u64) {
        let mask = self.mask();
        let mut hole = mix(key) as usize & mask;
        while self.places[hole] != at {
            if self.places[hole] == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let other = self.places[place];
            if other == EMPTY {
                break;
            }
            let home = mix(key_of(other)) as usize & mask;
            // It may move if its home does not lie behind the hole.
            let is_reached = place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask;
            if is_reached {
                self.places[hole] = other;
                hole = place;
            }
        }
        self.places[hole] = EMPTY;
    }
}
