//! Layers between a device and those who use it: a ceiling, latency, errors. [decibel 6: a device of tomorrow is
//! emulated today]
//!
//! A stack of layers is told of each operation before it is begun, and says until when it has to wait and
//! whether it fails. It is shared by all cores that have the device, and holds a few atomic numbers; a device
//! without layers pays one comparison for each operation. Nothing here reads a clock or sleeps: whoever
//! implements a device does, on the real platform as in the simulator.
//!
//! Latency of the layers comes on top of the device's own, so they are most use on a device that has next to
//! none: a file in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Time;

/// What a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// To read so many bytes.
    Read {
        /// How many.
        len_bytes: u64,
    },
    /// To write so many bytes.
    Write {
        /// How many.
        len_bytes: u64,
    },
    /// To make what was written durable.
    Flush,
    /// To forget a range.
    Discard,
}

impl Operation {
    /// Which of four numbers it is.
    fn pick<T>(self, four: &PerOperation<T>) -> &T {
        match self {
            Operation::Read { .. } => &four.reads,
            Operation::Write { .. } => &four.writes,
            Operation::Flush => &four.flushes,
            Operation::Discard => &four.discards,
        }
    }

    fn len_bytes(self) -> u64 {
        match self {
            Operation::Read { len_bytes } | Operation::Write { len_bytes } => len_bytes,
            Operation::Flush | Operation::Discard => 0,
        }
    }
}

/// One number for each kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PerOperation<T> {
    /// For reads.
    pub reads: T,
    /// For writes.
    pub writes: T,
    /// For flushes.
    pub flushes: T,
    /// For discards.
    pub discards: T,
}

/// One layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// A device that does one thing after another at these rates. What comes faster waits in a queue, in the
    /// order in which it came.
    Ceiling {
        /// Operations a second; zero for as many as come.
        per_second: PerOperation<u64>,
        /// Bytes a second, both ways; zero for as many as come. An operation takes what its bytes or its
        /// rate take, whichever is more.
        bytes_per_second: u64,
    },
    /// Each operation takes so much longer, however many there are at a time.
    Latency {
        /// Nanoseconds.
        ns: PerOperation<u64>,
        /// So much more or less by chance, in hundredths; at most 100.
        jitter_percent: u64,
        /// What chance is drawn from.
        seed: u64,
    },
    /// So many of a million operations fail, and are not begun.
    Errors {
        /// Of a million.
        per_million: PerOperation<u64>,
        /// What chance is drawn from.
        seed: u64,
    },
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Not before this time.
    pub until: Time,
    /// It fails then, and is never begun.
    pub fails: bool,
}

/// A layer at work.
#[derive(Debug)]
struct Working {
    layer: Layer,
    /// Of a ceiling: when it has done all that came, in nanoseconds. Of the others: how often chance was drawn.
    number: AtomicU64,
}

/// Layers in the order in which operations pass them.
#[derive(Debug)]
pub struct Layers {
    layers: Vec<Working>,
}

impl Layers {
    /// A stack of layers: the first is passed first.
    pub fn new(layers: &[Layer]) -> Layers {
        let working = layers.iter().map(|&layer| Working {
            layer,
            number: AtomicU64::new(0),
        });
        Layers {
            layers: working.collect(),
        }
    }

    /// What becomes of an operation that comes now.
    pub fn pass(&self, now: Time, operation: Operation) -> Verdict {
        let mut verdict = Verdict {
            until: now,
            fails: false,
        };
        for layer in &self.layers {
            layer.pass(operation, &mut verdict);
            if verdict.fails {
                break;
            }
        }
        verdict
    }
}

impl Working {
    fn pass(&self, operation: Operation, verdict: &mut Verdict) {
        match &self.layer {
            Layer::Ceiling {
                per_second,
                bytes_per_second,
            } => {
                let rate = *operation.pick(per_second);
                let by_rate = 1_000_000_000u64.checked_div(rate).unwrap_or(0);
                let by_bytes = bytes_ns(operation.len_bytes(), *bytes_per_second);
                verdict.until = self.queue(verdict.until, by_rate.max(by_bytes));
            }
            Layer::Latency {
                ns,
                jitter_percent,
                seed,
            } => {
                let ns = *operation.pick(ns);
                let jitter = u128::from(ns) * u128::from((*jitter_percent).min(100)) / 100;
                let jitter = u64::try_from(jitter).unwrap_or(u64::MAX);
                let drawn = match jitter {
                    0 => 0,
                    _ => self.draw(*seed) % jitter.saturating_mul(2).max(1),
                };
                let ns = ns.saturating_sub(jitter).saturating_add(drawn);
                verdict.until = verdict.until.plus_ns(ns);
            }
            Layer::Errors { per_million, seed } => {
                let chance = *operation.pick(per_million);
                verdict.fails = chance > 0 && self.draw(*seed) % 1_000_000 < chance;
            }
        }
    }

    /// When a device that does one thing after another is done with one more that takes so long.
    fn queue(&self, now: Time, takes_ns: u64) -> Time {
        if takes_ns == 0 {
            return now;
        }
        let done = |free_at: u64| free_at.max(now.0).saturating_add(takes_ns);
        let order = Ordering::Relaxed;
        let before = self.number.fetch_update(order, order, |at| Some(done(at)));
        // It never refuses, so both are the number before.
        Time(done(before.unwrap_or_else(|at| at)))
    }

    /// The next number drawn: the same ones in the same order for the same seed.
    fn draw(&self, seed: u64) -> u64 {
        let count = self.number.fetch_add(1, Ordering::Relaxed);
        mix(seed ^ mix(count))
    }
}

/// How long so many bytes take; no time if there is no limit.
fn bytes_ns(bytes: u64, per_second: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(per_second));
    u64::try_from(ns.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of what it is given.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const READ: Operation = Operation::Read { len_bytes: 4096 };
    const WRITE: Operation = Operation::Write { len_bytes: 4096 };

    fn ceiling(reads: u64, bytes_per_second: u64) -> Layer {
        Layer::Ceiling {
            per_second: PerOperation {
                reads,
                ..PerOperation::default()
            },
            bytes_per_second,
        }
    }

    #[test]
    fn a_ceiling_makes_a_queue() {
        let layers = Layers::new(&[ceiling(1000, 0)]);
        for n in 1..=50 {
            assert_eq!(layers.pass(Time(7), READ).until, Time(7 + n * 1_000_000));
        }
        // Whoever comes when it has nothing to do waits for himself only.
        let late = Time(SECOND_NS);
        assert_eq!(layers.pass(late, READ).until, late.plus_ns(1_000_000));
        // What has no rate passes at once, whoever waits.
        for operation in [WRITE, Operation::Flush, Operation::Discard] {
            assert_eq!(layers.pass(Time(8), operation).until, Time(8));
        }
    }

    #[test]
    fn bytes_have_a_ceiling_too() {
        let layers = Layers::new(&[ceiling(1_000_000, 4096 * 1000)]);
        let two = Operation::Read { len_bytes: 8192 };
        assert_eq!(layers.pass(Time(0), two).until, Time(2_000_000));
        assert_eq!(layers.pass(Time(0), WRITE).until, Time(3_000_000));
        let empty = Operation::Read { len_bytes: 0 };
        assert_eq!(layers.pass(Time(0), empty).until, Time(3_001_000));
    }

    #[test]
    fn several_cores_share_one_ceiling() {
        let layers = Layers::new(&[ceiling(100_000, 0)]);
        let latest: Vec<u64> = std::thread::scope(|scope| {
            let core = || (0..1000).map(|_| layers.pass(Time(0), READ).until.0).max();
            let cores: Vec<_> = (0..4).map(|_| scope.spawn(core)).collect();
            let done = cores.into_iter().map(|core| core.join());
            done.map(|at| at.expect("ran").expect("some")).collect()
        });
        // Four thousand at 10 us each, each at a time of its own.
        assert_eq!(latest.into_iter().max(), Some(4000 * 10_000));
    }

    #[test]
    fn latency_is_for_each_by_itself() {
        let ns = PerOperation {
            reads: 100_000,
            writes: 20_000,
            flushes: SECOND_NS,
            discards: 0,
        };
        let latency = |jitter_percent| {
            Layers::new(&[Layer::Latency {
                ns,
                jitter_percent,
                seed: 3,
            }])
        };
        let exact = latency(0);
        for _ in 0..3 {
            assert_eq!(exact.pass(Time(5), READ).until, Time(100_005));
            assert_eq!(exact.pass(Time(5), WRITE).until, Time(20_005));
            assert_eq!(
                exact.pass(Time(5), Operation::Flush).until,
                Time(SECOND_NS + 5)
            );
            assert_eq!(exact.pass(Time(5), Operation::Discard).until, Time(5));
        }
        let (one, same) = (latency(20), latency(20));
        let times: Vec<u64> = (0..1000).map(|_| one.pass(Time(0), READ).until.0).collect();
        assert!(times.iter().all(|ns| (80_000..120_000).contains(ns)));
        let middle = times.iter().sum::<u64>() / 1000;
        assert!((98_000..102_000).contains(&middle), "{middle}");
        // The same seed draws the same.
        assert!(
            times
                .iter()
                .all(|&ns| same.pass(Time(0), READ).until.0 == ns)
        );
    }

    #[test]
    fn so_many_of_a_million_fail() {
        let layers = Layers::new(&[
            ceiling(1000, 0),
            Layer::Errors {
                per_million: PerOperation {
                    reads: 100_000,
                    writes: 1_000_000,
                    ..PerOperation::default()
                },
                seed: 1,
            },
            ceiling(1, 0),
        ]);
        let failed = (0..10_000)
            .filter(|_| layers.pass(Time(0), READ).fails)
            .count();
        assert!((900..1100).contains(&failed), "{failed}");
        assert!(layers.pass(Time(0), WRITE).fails);
        assert!(!layers.pass(Time(0), Operation::Flush).fails);
        // What fails has passed the layers before, and not those behind.
        let always = Layers::new(&[
            ceiling(1000, 0),
            Layer::Errors {
                per_million: PerOperation {
                    reads: 1_000_000,
                    ..PerOperation::default()
                },
                seed: 1,
            },
            ceiling(1, 0),
        ]);
        let failing = Verdict {
            until: Time(1_000_000),
            fails: true,
        };
        assert_eq!(always.pass(Time(0), READ), failing);
    }

    #[test]
    fn absurd_numbers_end_at_the_end_of_time() {
        let layers = Layers::new(&[
            ceiling(u64::MAX, 1),
            Layer::Latency {
                ns: PerOperation {
                    reads: u64::MAX,
                    ..PerOperation::default()
                },
                jitter_percent: u64::MAX,
                seed: 0,
            },
        ]);
        let huge = Operation::Read {
            len_bytes: u64::MAX,
        };
        for _ in 0..3 {
            let until = layers.pass(Time(u64::MAX - 1), huge).until;
            assert_eq!(until, Time(u64::MAX));
        }
    }
}
