//! Log sequence numbers: an epoch and a counter in 64 bits.
//!
//! Invariant: LSNs of one dvol only grow. The epoch is the high part, so a new epoch is above
//! everything an older one could have handed out, even what was lost in a crash.

use std::fmt;

/// Bits of the counter. 2^44 changes: half a year at a million changes a second in one epoch.
const COUNTER_BITS: u32 = 44;

/// Fencing number of whoever may write a dvol. At most [`Epoch::MAX`] (20 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The largest epoch the format can hold.
    pub const MAX: Epoch = Epoch((1 << (64 - COUNTER_BITS)) - 1);
    /// By so much a move of a volume raises its epoch. More than one, so that a client can tell a move from somebody else who has
    /// opened the volume alone.
    pub const PER_MOVE: u32 = 8;
}

/// Log sequence number of one dvol. [`Lsn::ZERO`] means "before any change".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before any change.
    pub const ZERO: Lsn = Lsn(0);
    /// Above every LSN a dvol can reach.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Puts an LSN together. `counter` must be below 2^44.
    pub fn new(epoch: Epoch, counter: u64) -> Lsn {
        assert!(epoch <= Epoch::MAX);
        assert!(counter < 1 << COUNTER_BITS);
        Lsn(u64::from(epoch.0) << COUNTER_BITS | counter)
    }

    /// The epoch this LSN was assigned in.
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> COUNTER_BITS) as u32)
    }

    /// The position within its epoch.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }

    /// The next LSN of the same dvol. A full counter moves on into the next epoch. Panics at
    /// [`Lsn::MAX`]; the format refuses LSNs that come near it.
    pub fn next(self) -> Lsn {
        Lsn(self
            .0
            .checked_add(1)
            .expect("2^64 changes of one dvol take longer than any device lives"))
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch().0, self.counter())
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_is_the_high_part() {
        let last_of_one = Lsn::new(Epoch(1), (1 << 44) - 1);
        assert!(last_of_one < Lsn::new(Epoch(2), 0));
        assert_eq!(last_of_one.next(), Lsn::new(Epoch(2), 0));
        let lsn = Lsn::new(Epoch(7), 9);
        assert_eq!((lsn.epoch(), lsn.counter()), (Epoch(7), 9));
    }
}
