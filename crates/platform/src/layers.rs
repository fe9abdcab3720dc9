//! Layers between a device and those who use it: a ceiling, latency, errors, a trace. [decibel 6: a device of tomorrow is
//! emulated today]
//!
//! A stack of layers is told of each operation before it is begun ([`Layers::begin`]), and says until when it has to wait and
//! whether it fails; and once it has ended ([`Layers::end`]). It is shared by all cores that have the device, and holds a few atomic
//! numbers; a device without layers pays one comparison for each operation. Nothing here reads a clock or sleeps: whoever
//! implements a device does, on the real platform as in the simulator.
//!
//! Latency of the layers comes on top of the device's own, so they are most use on a device that has next to
//! none: a file in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use self::trace::Begun;
pub use self::trace::{Ended, Kept, Outcome, PLACE_BYTES, Ticket, Trace, Traced};
use crate::Time;

mod trace;

/// What a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// To read.
    Read {
        /// From where.
        offset_bytes: u64,
        /// How many bytes.
        len_bytes: u64,
    },
    /// To write.
    Write {
        /// Where to.
        offset_bytes: u64,
        /// How many bytes.
        len_bytes: u64,
    },
    /// To make what was written durable.
    Flush,
    /// To forget a range.
    Discard {
        /// Where it begins.
        offset_bytes: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
}

impl Operation {
    /// Which of four numbers it is.
    fn pick<T>(self, four: &PerOperation<T>) -> &T {
        match self {
            Operation::Read { .. } => &four.reads,
            Operation::Write { .. } => &four.writes,
            Operation::Flush => &four.flushes,
            Operation::Discard { .. } => &four.discards,
        }
    }

    /// Bytes that go to the device or come from it.
    fn moved_bytes(self) -> u64 {
        match self {
            Operation::Read { len_bytes, .. } | Operation::Write { len_bytes, .. } => len_bytes,
            Operation::Flush | Operation::Discard { .. } => 0,
        }
    }

    /// The number of its kind, offset and length.
    fn to_numbers(self) -> (u64, u64, u64) {
        match self {
            Operation::Read {
                offset_bytes,
                len_bytes,
            } => (0, offset_bytes, len_bytes),
            Operation::Write {
                offset_bytes,
                len_bytes,
            } => (1, offset_bytes, len_bytes),
            Operation::Flush => (2, 0, 0),
            Operation::Discard {
                offset_bytes,
                len_bytes,
            } => (3, offset_bytes, len_bytes),
        }
    }

    fn from_numbers(kind: u64, offset_bytes: u64, len_bytes: u64) -> Operation {
        match kind {
            0 => Operation::Read {
                offset_bytes,
                len_bytes,
            },
            1 => Operation::Write {
                offset_bytes,
                len_bytes,
            },
            2 => Operation::Flush,
            _ => Operation::Discard {
                offset_bytes,
                len_bytes,
            },
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
    /// The last operations that came this far are kept to be read: when they came, and how they ended. Of those that come to it
    /// nothing is changed.
    Trace {
        /// How many; each takes [`PLACE_BYTES`] of memory, from the beginning.
        operations: u64,
    },
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "whoever begins an operation has to wait, and to say how it ended"]
pub struct Verdict {
    /// Not before this time.
    pub until: Time,
    /// It fails then, and is never begun.
    pub fails: bool,
    /// For [`Layers::end`], which is told of those that fail here, too.
    pub ticket: Ticket,
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
    /// That of the layer which is one.
    trace: Option<Trace>,
}

impl Layers {
    /// A stack of layers: the first is passed first. At most one of them may be a trace.
    pub fn new(layers: &[Layer]) -> Layers {
        let traces = layers.iter().filter_map(|layer| match layer {
            Layer::Trace { operations } => Some(Trace::new(*operations)),
            _ => None,
        });
        let mut traces: Vec<Trace> = traces.collect();
        assert!(traces.len() <= 1, "a device has at most one trace");
        let working = layers.iter().map(|&layer| Working {
            layer,
            number: AtomicU64::new(0),
        });
        Layers {
            layers: working.collect(),
            trace: traces.pop(),
        }
    }

    /// What is kept of the operations, if one of the layers is a trace.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// What becomes of an operation that comes now, from this core.
    pub fn begin(&self, now: Time, core: u32, operation: Operation) -> Verdict {
        let mut verdict = Verdict {
            until: now,
            fails: false,
            ticket: Ticket::NONE,
        };
        let mut came = None;
        for layer in &self.layers {
            if let Layer::Trace { .. } = layer.layer {
                came = Some(verdict.until);
            }
            layer.pass(operation, &mut verdict);
            if verdict.fails {
                break;
            }
        }
        // Only now it is known how long it is held, and so it is written once.
        if let (Some(trace), Some(came)) = (&self.trace, came) {
            verdict.ticket = trace.begin(Begun {
                operation,
                core,
                came,
                until: verdict.until,
            });
        }
        verdict
    }

    /// An operation has ended now: one whose ticket this is.
    pub fn end(&self, ticket: Ticket, now: Time, outcome: Outcome) {
        if let Some(trace) = &self.trace {
            trace.end(ticket, now, outcome);
        }
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
                let by_bytes = bytes_ns(operation.moved_bytes(), *bytes_per_second);
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
            Layer::Trace { .. } => {}
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
    const READ: Operation = read_of(4096);
    const WRITE: Operation = Operation::Write {
        offset_bytes: 8192,
        len_bytes: 4096,
    };
    const DISCARD: Operation = Operation::Discard {
        offset_bytes: 0,
        len_bytes: 1 << 30,
    };

    const fn read_of(len_bytes: u64) -> Operation {
        Operation::Read {
            offset_bytes: 4096,
            len_bytes,
        }
    }

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
            assert_eq!(
                layers.begin(Time(7), 0, READ).until,
                Time(7 + n * 1_000_000)
            );
        }
        // Whoever comes when it has nothing to do waits for himself only.
        let late = Time(SECOND_NS);
        assert_eq!(layers.begin(late, 0, READ).until, late.plus_ns(1_000_000));
        // What has no rate passes at once, whoever waits.
        for operation in [WRITE, Operation::Flush, DISCARD] {
            assert_eq!(layers.begin(Time(8), 0, operation).until, Time(8));
        }
    }

    #[test]
    fn bytes_have_a_ceiling_too() {
        let layers = Layers::new(&[ceiling(1_000_000, 4096 * 1000)]);
        let two = read_of(8192);
        assert_eq!(layers.begin(Time(0), 0, two).until, Time(2_000_000));
        assert_eq!(layers.begin(Time(0), 0, WRITE).until, Time(3_000_000));
        let empty = read_of(0);
        assert_eq!(layers.begin(Time(0), 0, empty).until, Time(3_001_000));
    }

    #[test]
    fn several_cores_share_one_ceiling() {
        let layers = Layers::new(&[ceiling(100_000, 0)]);
        let latest: Vec<u64> = std::thread::scope(|scope| {
            let core = || {
                (0..1000)
                    .map(|_| layers.begin(Time(0), 0, READ).until.0)
                    .max()
            };
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
            assert_eq!(exact.begin(Time(5), 0, READ).until, Time(100_005));
            assert_eq!(exact.begin(Time(5), 0, WRITE).until, Time(20_005));
            assert_eq!(
                exact.begin(Time(5), 0, Operation::Flush).until,
                Time(SECOND_NS + 5)
            );
            assert_eq!(exact.begin(Time(5), 0, DISCARD).until, Time(5));
        }
        let (one, same) = (latency(20), latency(20));
        let times: Vec<u64> = (0..1000)
            .map(|_| one.begin(Time(0), 0, READ).until.0)
            .collect();
        assert!(times.iter().all(|ns| (80_000..120_000).contains(ns)));
        let middle = times.iter().sum::<u64>() / 1000;
        assert!((98_000..102_000).contains(&middle), "{middle}");
        // The same seed draws the same.
        assert!(
            times
                .iter()
                .all(|&ns| same.begin(Time(0), 0, READ).until.0 == ns)
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
            .filter(|_| layers.begin(Time(0), 0, READ).fails)
            .count();
        assert!((900..1100).contains(&failed), "{failed}");
        assert!(layers.begin(Time(0), 0, WRITE).fails);
        assert!(!layers.begin(Time(0), 0, Operation::Flush).fails);
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
            ticket: Ticket::NONE,
        };
        assert_eq!(always.begin(Time(0), 0, READ), failing);
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
        let huge = read_of(u64::MAX);
        for _ in 0..3 {
            let until = layers.begin(Time(u64::MAX - 1), 0, huge).until;
            assert_eq!(until, Time(u64::MAX));
        }
    }

    /// What stands in front of a trace has happened before, what stands behind it is in the time that is traced.
    #[test]
    fn a_trace_tells_what_came_to_it_and_how_it_ended() {
        let latency = |ns| Layer::Latency {
            ns: PerOperation {
                reads: ns,
                writes: ns,
                ..PerOperation::default()
            },
            jitter_percent: 0,
            seed: 0,
        };
        let errors = |reads, writes| Layer::Errors {
            per_million: PerOperation {
                reads,
                writes,
                ..PerOperation::default()
            },
            seed: 0,
        };
        let trace = Layer::Trace { operations: 100 };
        let layers = Layers::new(&[
            errors(1_000_000, 0),
            latency(30),
            trace,
            latency(500),
            errors(0, 1_000_000),
        ]);
        let refused = layers.begin(Time(0), 0, READ);
        assert!(refused.fails && !refused.ticket.is_traced());
        layers.end(refused.ticket, Time(9), Outcome::Failed);
        let written = layers.begin(Time(10), 1, WRITE);
        assert!(written.fails && written.until == Time(540));
        let flushed = layers.begin(Time(11), 2, Operation::Flush);
        assert!(!flushed.fails && flushed.until == Time(11));
        layers.end(flushed.ticket, Time(700), Outcome::Done);
        layers.end(written.ticket, Time(545), Outcome::Failed);
        let traced = |number, operation, core, came, held_ns, outcome, took_ns| Traced {
            number,
            operation,
            core,
            came: Time(came),
            held_ns,
            ended: Some(Ended { outcome, took_ns }),
        };
        let kept = layers.trace().expect("there is one").read(0, 10);
        assert_eq!(
            kept.operations,
            [
                traced(0, WRITE, 1, 40, 500, Outcome::Failed, 505),
                traced(1, Operation::Flush, 2, 11, 0, Outcome::Done, 689),
            ]
        );
        // Without one there is nothing to be read, and nothing to be told.
        let none = Layers::new(&[latency(1)]);
        assert!(none.trace().is_none() && !none.begin(Time(0), 0, READ).ticket.is_traced());
    }
}
