//! What happens to single segments, below the streams.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::rng::Rng;

/// Probabilities are of each segment, each time it is sent. Where one is 0 nothing is drawn for it.
#[derive(Clone, PartialEq, Debug)]
pub struct SegmentFaults {
    /// It doesn't arrive, and is sent again.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// Others that were sent behind it may arrive before it.
    pub reorder: f64,
    /// By how much a copy comes behind the first, or one that is overtaken comes late, in nanoseconds.
    pub late_ns: RangeInclusive<u64>,
    /// After so long a lost one is sent again, in nanoseconds; after twice as long the next time, and so on.
    pub resend_ns: RangeInclusive<u64>,
    /// How often it is sent again before who sends it gives the connection up.
    pub resends_max: u32,
}

impl Default for SegmentFaults {
    /// None. What is lost because of a cut is given up after 6 to 13 seconds.
    fn default() -> SegmentFaults {
        SegmentFaults {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            late_ns: 10_000..=5_000_000,
            resend_ns: 100_000_000..=200_000_000,
            resends_max: 5,
        }
    }
}

impl SegmentFaults {
    /// Some of each.
    pub fn of_all_kinds() -> SegmentFaults {
        SegmentFaults {
            loss: 0.02,
            duplicate: 0.02,
            reorder: 0.05,
            resend_ns: 1_000_000..=200_000_000,
            ..SegmentFaults::default()
        }
    }
}

/// How often something happened to a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultsSeen {
    /// Lost by chance.
    pub lost: u64,
    /// Lost because of a cut.
    pub cut_off: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Copies that were dropped where they came.
    pub dropped_twice: u64,
    /// Sent so that others may overtake it.
    pub reordered: u64,
    /// Arrived before one that was sent earlier.
    pub came_early: u64,
    /// Connections that one side gave up.
    pub timed_out: u64,
}

impl FaultsSeen {
    /// How often that kind of fault came that came least often: segments lost by chance, lost because of a cut, dropped where they came as a second
    /// copy, and arrived before one that was sent earlier. A test that runs many seeds over such a network asserts that this is above some number: or
    /// there was nothing in its way.
    ///
    /// Connections that one side gave up ([`FaultsSeen::timed_out`]) are not among these: whether there are any depends on how long programs wait.
    pub fn rarest(&self) -> u64 {
        let each = [self.lost, self.cut_off, self.dropped_twice, self.came_early];
        each.into_iter().fold(u64::MAX, u64::min)
    }

    pub(super) fn note(&mut self, fate: &Fate, is_cut: bool) {
        self.cut_off += u64::from(is_cut);
        self.lost += u64::from(fate.is_lost && !is_cut);
        self.duplicated += u64::from(fate.twice_ns.is_some());
        self.reordered += u64::from(fate.is_overtaken);
    }
}

impl std::ops::AddAssign for FaultsSeen {
    fn add_assign(&mut self, other: FaultsSeen) {
        self.lost += other.lost;
        self.cut_off += other.cut_off;
        self.duplicated += other.duplicated;
        self.dropped_twice += other.dropped_twice;
        self.reordered += other.reordered;
        self.came_early += other.came_early;
        self.timed_out += other.timed_out;
    }
}

/// What becomes of a segment.
pub(super) struct Fate {
    pub(super) delay_ns: u64,
    pub(super) is_lost: bool,
    /// If it is lost: when it is sent again.
    pub(super) again_ns: u64,
    /// When a copy comes, behind it.
    pub(super) twice_ns: Option<u64>,
    /// It isn't kept in order.
    pub(super) is_overtaken: bool,
}

impl Fate {
    pub(super) fn draw(
        faults: &SegmentFaults,
        rng: &mut Rng,
        delay_ns: u64,
        is_cut: bool,
        tries: u32,
    ) -> Fate {
        let mut happens = |chance: f64| chance > 0.0 && rng.chance(chance);
        let is_lost = is_cut || happens(faults.loss);
        let is_twice = !is_lost && happens(faults.duplicate);
        let is_overtaken = !is_lost && happens(faults.reorder);
        let again_ns = match is_lost {
            true => rng.within(&faults.resend_ns) << tries.min(16),
            false => 0,
        };
        let twice_ns = is_twice.then(|| rng.within(&faults.late_ns));
        let late_ns = match is_overtaken {
            true => rng.within(&faults.late_ns),
            false => 0,
        };
        Fate {
            delay_ns: delay_ns.saturating_add(late_ns),
            is_lost,
            again_ns,
            twice_ns,
            is_overtaken,
        }
    }
}

/// What doesn't pass where an address is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Nothing passes.
    Both,
    /// What is sent to those who listen there doesn't arrive; what they send does.
    To,
    /// The other way round.
    From,
}

/// The addresses that are cut off.
#[derive(Default)]
pub(super) struct Cuts {
    cuts: BTreeMap<String, Cut>,
}

impl Cuts {
    pub(super) fn cut(&mut self, address: &str, cut: Cut) {
        self.cuts.insert(address.to_owned(), cut);
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Whether nothing passes that `side` of a connection to an address sends: 0 is the one that has called.
    pub(super) fn stops(&self, address: &str, side: usize) -> bool {
        match (self.cuts.get(address), side) {
            (None, _) => false,
            (Some(Cut::Both), _) => true,
            (Some(Cut::To), side) => side == 0,
            (Some(Cut::From), side) => side == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rarest_kind_is_none_as_long_as_one_is_missing() {
        let all = FaultsSeen {
            lost: 5,
            cut_off: 4,
            dropped_twice: 3,
            came_early: 6,
            ..FaultsSeen::default()
        };
        assert_eq!(all.rarest(), 3);
        let without = [
            FaultsSeen { lost: 0, ..all },
            FaultsSeen { cut_off: 0, ..all },
            FaultsSeen {
                dropped_twice: 0,
                ..all
            },
            FaultsSeen {
                came_early: 0,
                ..all
            },
        ];
        assert!(without.iter().all(|seen| seen.rarest() == 0));
        assert_eq!(FaultsSeen::default().rarest(), 0);
    }
}
