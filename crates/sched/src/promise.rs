//! What volumes are promised of a device.

use crate::SECOND_NS;
use crate::price::{Kind, Prices};

/// What somebody asked for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slo {
    /// So many parts of what floors leave. Zero is taken for one.
    Share(u32),
    /// So many requests of 4 KiB a second, whatever others do.
    Floor {
        /// Reads a second.
        reads: u64,
        /// Writes a second.
        writes: u64,
    },
    /// So many millionths of what a device's background is promised, before floors.
    Background(u32),
}

/// The whole, in the unit of [`Totals::background`].
const MILLION: u128 = 1_000_000;

impl Default for Slo {
    fn default() -> Slo {
        Slo::Share(1)
    }
}

impl Slo {
    /// What it claims as a floor, in nanoseconds of device time a second. Others claim nothing.
    pub fn claim_ns(&self, prices: &Prices) -> u64 {
        match *self {
            Slo::Share(_) | Slo::Background(_) => 0,
            Slo::Floor { reads, writes } => {
                let reads = reads.saturating_mul(prices.of(Kind::Read, 0, 1));
                reads.saturating_add(writes.saturating_mul(prices.of(Kind::Write, 0, 1)))
            }
        }
    }
}

/// Device time that a volume is promised, in nanoseconds a second. At least one, so that everybody's
/// turn comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Promise(pub u64);

/// The part of a device that shares have together however much was promised as floors, so that a volume
/// without a floor isn't starved by an oversubscribed device: a hundredth.
const SHARES_PART: u64 = 100;

/// The part of a device that is never promised: a 32nd. It is kept for those who come back after they
/// used less than their promise ([`crate::scheduler`]), so the others together may not count on it.
pub(crate) const KEPT_PART: u64 = 32;

/// What can be promised of a device that gives `rate_ns` device time a second.
fn promisable_ns(rate_ns: u64) -> u64 {
    rate_ns - rate_ns / KEPT_PART
}

/// What all volumes of a device ask for together. Wide enough that no sum of theirs runs over, so that what is taken
/// out again was there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Reads a second of all floors.
    pub reads: u128,
    /// Writes a second of all floors.
    pub writes: u128,
    /// Parts of all shares.
    pub parts: u128,
    /// What the background is promised, in millionths of what can be.
    pub background: u32,
}

impl Totals {
    /// Those of these volumes.
    pub fn of(slos: impl Iterator<Item = Slo>) -> Totals {
        slos.fold(Totals::default(), |sum, slo| sum.with(slo))
    }

    /// With one more.
    pub fn with(self, slo: Slo) -> Totals {
        let Totals {
            reads: r,
            writes: w,
            parts,
            background,
        } = self;
        match slo {
            Slo::Share(_) => Totals {
                parts: parts + u128::from(parts_of(slo)),
                ..self
            },
            Slo::Floor { reads, writes } => Totals {
                reads: r + u128::from(reads),
                writes: w + u128::from(writes),
                ..self
            },
            // What it is promised doesn't grow with how many share it.
            Slo::Background(_) => Totals { background, ..self },
        }
    }

    /// With one less.
    pub fn without(self, slo: Slo) -> Totals {
        let one = Totals::default().with(slo);
        Totals {
            reads: self.reads.saturating_sub(one.reads),
            writes: self.writes.saturating_sub(one.writes),
            parts: self.parts.saturating_sub(one.parts),
            background: self.background,
        }
    }

    /// What the floors claim, in nanoseconds of device time a second.
    pub fn claimed_ns(&self, prices: &Prices) -> u128 {
        let reads = self
            .reads
            .saturating_mul(prices.of(Kind::Read, 0, 1).into());
        let writes = self
            .writes
            .saturating_mul(prices.of(Kind::Write, 0, 1).into());
        reads.saturating_add(writes)
    }

    /// What the background is promised of `whole`.
    fn for_background(&self, whole: u128) -> u128 {
        whole * u128::from(self.background).min(MILLION) / MILLION
    }

    /// What a volume that is among them is promised of `rate_ns` device time a second: a floor what it claims, a share
    /// its parts of what is left. Where floors claim more than there is, all of them shrink by the same factor. One that isn't among them
    /// is promised no more than if it were the only one.
    pub fn promise(&self, prices: &Prices, rate_ns: u64, slo: Slo) -> Promise {
        let own = u128::from(slo.claim_ns(prices));
        let claimed = self.claimed_ns(prices).max(own);
        let whole = u128::from(promisable_ns(rate_ns));
        let rate = whole - self.for_background(whole);
        let kept = match self.parts.max(u128::from(parts_of(slo))) {
            0 => 0,
            _ => rate / u128::from(SHARES_PART),
        };
        let for_floors = claimed.min(rate - kept);
        let for_shares = rate - for_floors;
        let promised = match slo {
            Slo::Share(_) => {
                let own = u128::from(parts_of(slo));
                for_shares * own / self.parts.max(own)
            }
            Slo::Floor { .. } => own * for_floors / claimed.max(1),
            Slo::Background(millionths) => {
                self.for_background(whole) * u128::from(millionths).min(MILLION) / MILLION
            }
        };
        Promise(u64::try_from(promised).unwrap_or(u64::MAX).max(1))
    }
}

/// What each volume of a device is promised: see [`Totals::promise`].
pub fn promises<'a>(
    prices: &'a Prices,
    rate_ns: u64,
    slos: impl Iterator<Item = Slo> + Clone + 'a,
) -> impl Iterator<Item = Promise> + 'a {
    let totals = Totals::of(slos.clone());
    slos.map(move |slo| totals.promise(prices, rate_ns, slo))
}

fn parts_of(slo: Slo) -> u64 {
    match slo {
        Slo::Share(parts) => u64::from(parts.max(1)),
        Slo::Floor { .. } | Slo::Background(_) => 0,
    }
}

/// Whether one more volume may be promised a floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It fits.
    Fits,
    /// It doesn't. So much device time a second is left, and it claims so much.
    TooMuch {
        /// What is not promised yet, in nanoseconds of device time a second.
        left_ns: u64,
        /// What it asked for, in the same.
        claimed_ns: u64,
    },
}

/// Whether a floor fits beside what others were promised. Shares always do.
pub fn admit(prices: &Prices, rate_ns: u64, others: Totals, asked: Slo) -> Admission {
    let whole = u128::from(promisable_ns(rate_ns));
    let rate_ns = whole - others.for_background(whole);
    let rate_ns = rate_ns - rate_ns / u128::from(SHARES_PART);
    let left_ns = rate_ns.saturating_sub(others.claimed_ns(prices));
    let left_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
    let claimed_ns = asked.claim_ns(prices);
    match claimed_ns <= left_ns {
        true => Admission::Fits,
        false => Admission::TooMuch {
            left_ns,
            claimed_ns,
        },
    }
}

/// Floors of a device in words that people use: how many reads of 4 KiB a second so much device time is.
pub fn reads_per_second(prices: &Prices, promised: Promise) -> u64 {
    promised.0 / prices.of(Kind::Read, 0, 1)
}

/// The whole of a device that isn't throttled.
pub const WHOLE_NS: u64 = SECOND_NS;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::Price;

    fn prices() -> Prices {
        Prices {
            read: Price::of_rates(100_000, 1 << 30),
            write: Price::of_rates(50_000, 1 << 29),
            flush_ns: 50_000,
        }
    }

    fn promised(slos: &[Slo]) -> Vec<u64> {
        // Of which a second can be promised.
        promises(&prices(), WHOLE_NS * 32 / 31, slos.iter().copied())
            .map(|p| p.0)
            .collect()
    }

    fn reads(reads: u64) -> Slo {
        Slo::Floor { reads, writes: 0 }
    }

    #[test]
    fn floors_come_first_and_shares_divide_the_rest() {
        let floor = Slo::Floor {
            reads: 20_000,
            writes: 5_000,
        };
        // 0.2 s for the reads and 0.1 s for the writes.
        assert_eq!(
            promised(&[floor, Slo::Share(1), Slo::Share(3)]),
            [300_000_000, 175_000_000, 525_000_000]
        );
        assert_eq!(promised(&[floor]), [300_000_000]);
        assert_eq!(promised(&[Slo::Share(7)]), [WHOLE_NS]);
        assert_eq!(promised(&[Slo::Share(0), Slo::Share(1)]), [WHOLE_NS / 2; 2]);
    }

    #[test]
    fn the_background_comes_before_floors() {
        let slos = [
            Slo::Background(750_000),
            Slo::Background(250_000),
            reads(20_000),
            Slo::Share(1),
            Slo::Share(3),
        ];
        let with = |background, slos: &[Slo]| -> Vec<u64> {
            let mut totals = Totals::of(slos.iter().copied());
            totals.background = background;
            let promise = |slo: &Slo| totals.promise(&prices(), WHOLE_NS * 32 / 31, *slo).0;
            slos.iter().map(promise).collect()
        };
        assert_eq!(
            with(100_000, &slos),
            [
                75_000_000,
                25_000_000,
                200_000_000,
                175_000_000,
                525_000_000
            ]
        );
        assert_eq!(with(0, &slos)[..2], [1, 1], "but never nothing");
        // Floors of all of it shrink by what it has, and a hundredth of the rest is for shares.
        let all = [reads(100_000), Slo::Share(1)];
        assert_eq!(with(100_000, &all), [891_000_000, 9_000_000]);
        let totals = Totals {
            background: 100_000,
            ..Totals::default()
        };
        assert_eq!(totals.with(Slo::Background(1_000_000)), totals);
        assert_eq!(totals.with(reads(1)).without(reads(1)), totals);
        let left = admit(&prices(), WHOLE_NS * 32 / 31, totals, reads(90_000));
        let is_less = matches!(left, Admission::TooMuch { left_ns, .. } if left_ns == 891_000_000);
        assert!(is_less, "{left:?}");
    }

    #[test]
    fn floors_that_claim_too_much_shrink_together() {
        // Three halves of the device, and a hundredth for the share.
        let all = promised(&[reads(100_000), reads(50_000), Slo::Share(1)]);
        assert_eq!(all, [660_000_000, 330_000_000, 10_000_000]);
    }

    /// As what is copied of a volume whose clients have gone.
    #[test]
    fn who_is_not_among_them_is_promised_no_more_than_alone() {
        let rate_ns = WHOLE_NS * 32 / 31;
        let of = |slos: &[Slo], slo| {
            let totals = Totals::of(slos.iter().copied());
            totals.promise(&prices(), rate_ns, slo).0
        };
        assert_eq!(of(&[], Slo::Share(5)), WHOLE_NS);
        assert_eq!(of(&[Slo::Share(1)], Slo::Share(4)), WHOLE_NS);
        assert_eq!(of(&[Slo::Share(4)], Slo::Share(1)), WHOLE_NS / 4);
        assert_eq!(of(&[], reads(20_000)), 200_000_000);
        // Shares have their hundredth beside floors that leave nothing, also those that aren't among them.
        let floors = [reads(80_000), reads(80_000)];
        assert_eq!(of(&floors, Slo::Share(1)), WHOLE_NS / 100);
    }

    #[test]
    fn nobody_is_promised_nothing() {
        let mut slos = vec![Slo::Share(u32::MAX); 100];
        slos.push(Slo::Share(1));
        assert!(promised(&slos).iter().all(|&p| p >= 1));
        assert_eq!(promised(&[reads(0), Slo::Share(1)]), [1, WHOLE_NS]);
        assert!(
            promised(&[reads(u64::MAX), reads(u64::MAX)])
                .iter()
                .sum::<u64>()
                <= WHOLE_NS
        );
    }

    #[test]
    fn a_floor_is_let_in_if_it_fits() {
        let others = [reads(50_000), Slo::Share(9)];
        let rate_ns = WHOLE_NS * 32 / 31;
        let totals = Totals::of(others.iter().copied());
        let ask = |slo| admit(&prices(), rate_ns, totals, slo);
        assert_eq!(ask(reads(49_000)), Admission::Fits);
        assert_eq!(ask(Slo::Share(1)), Admission::Fits);
        assert_eq!(
            ask(reads(49_001)),
            Admission::TooMuch {
                left_ns: 490_000_000,
                claimed_ns: 490_010_000
            }
        );
        assert_eq!(reads_per_second(&prices(), Promise(490_000_000)), 49_000);
    }
}
