//! The faults a simulated disk can have: how likely each is, and scripts that inject one at a
//! chosen I/O.
//!
//! Two classes, kept apart because they prove different things. Faults *within the contract* of
//! [`BlockDevice`] (errors, slowness, full files) may make operations fail, but what was
//! acknowledged must survive them. Faults that *break the contract* ([`BrokenFaults`]: lost and
//! misdirected writes, flipped bits) destroy data, so they legitimately cause read errors; what
//! they must never cause is wrong data.
//!
//! [`BlockDevice`]: flagstone_platform::BlockDevice

use std::fmt;
use std::ops::{Range, RangeInclusive};

use crate::rng::Rng;

/// The kinds of I/O a disk takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum IoKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

impl IoKind {
    /// True for what can change the disk's content or its durability: everything but reads.
    pub fn is_change(self) -> bool {
        self != IoKind::Read
    }
}

impl fmt::Display for IoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Flush => "flush",
            IoKind::Discard => "discard",
        })
    }
}

/// How likely each fault is at each I/O it can befall. The default has none.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultConfig {
    /// A read fails; its buffer holds noise.
    pub read_error: f64,
    /// A write fails; its sectors hold the old content, the new, or some of each.
    pub write_error: f64,
    /// A flush fails; what it should have covered is durable, still open or lost.
    pub flush_error: f64,
    /// A discard fails and has no effect.
    pub discard_error: f64,
    /// A write fails for want of space.
    pub no_space: f64,
    /// An operation takes longer by a time out of `slow_ns`.
    pub slow: f64,
    /// Extra time of slow operations, in nanoseconds.
    pub slow_ns: RangeInclusive<u64>,
    /// An operation hangs for a time out of `stuck_ns`.
    pub stuck: f64,
    /// Extra time of stuck operations, in nanoseconds.
    pub stuck_ns: RangeInclusive<u64>,
    /// A write or discard whose future was dropped in flight is cut short: some of its sectors
    /// reach the disk. Otherwise it completes as if nothing had happened.
    pub cut_short: f64,
    /// What discards do.
    pub discard: DiscardMix,
    /// Faults that break the device's contract.
    pub broken: BrokenFaults,
}

/// What a discard does: probabilities, looked at in this order; what is left keeps the content.
#[derive(Clone, PartialEq, Debug)]
pub struct DiscardMix {
    /// The range reads as zeros.
    pub zeros: f64,
    /// The range reads as noise.
    pub noise: f64,
    /// The device answers that it can't.
    pub unsupported: f64,
}

/// How likely each contract-breaking fault is at each I/O it can befall. The default has none.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BrokenFaults {
    /// A write is acknowledged but never stored.
    pub lost_write: f64,
    /// A write lands elsewhere; its own place keeps the old content.
    pub misdirected_write: f64,
    /// A read returns the content of another place.
    pub misdirected_read: f64,
    /// One bit of a write is inverted on the way to the disk.
    pub flip_in_write: f64,
    /// One bit of a read is inverted on the way from the disk; the disk is sound.
    pub flip_in_read: f64,
    /// While any operation goes on, one bit of a random stored page is inverted.
    pub flip_stored: f64,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            read_error: 0.0,
            write_error: 0.0,
            flush_error: 0.0,
            discard_error: 0.0,
            no_space: 0.0,
            slow: 0.0,
            slow_ns: 1_000_000..=50_000_000,
            stuck: 0.0,
            stuck_ns: 1_000_000_000..=30_000_000_000,
            cut_short: 0.5,
            discard: DiscardMix::default(),
            broken: BrokenFaults::default(),
        }
    }
}

impl Default for DiscardMix {
    /// Keeps a third, zeros a third, garbles a third.
    fn default() -> DiscardMix {
        DiscardMix {
            zeros: 0.33,
            noise: 0.33,
            unsupported: 0.0,
        }
    }
}

impl DiscardMix {
    /// Every discard reads as zeros, as in a file on Linux.
    pub const ZEROS: DiscardMix = DiscardMix {
        zeros: 1.0,
        noise: 0.0,
        unsupported: 0.0,
    };
    /// Discards have no effect.
    pub const KEEP: DiscardMix = DiscardMix {
        zeros: 0.0,
        noise: 0.0,
        unsupported: 0.0,
    };
    /// Every discard reads as noise.
    pub const NOISE: DiscardMix = DiscardMix {
        zeros: 0.0,
        noise: 1.0,
        unsupported: 0.0,
    };
    /// The device knows no discards.
    pub const UNSUPPORTED: DiscardMix = DiscardMix {
        zeros: 0.0,
        noise: 0.0,
        unsupported: 1.0,
    };
}

impl FaultConfig {
    /// Faults within the contract that leave data alone: slow and stuck operations.
    pub fn sluggish() -> FaultConfig {
        FaultConfig {
            slow: 0.02,
            stuck: 0.000_5,
            ..FaultConfig::default()
        }
    }

    /// Every fault within the contract, at rates that leave most operations alone.
    pub fn failing() -> FaultConfig {
        FaultConfig {
            read_error: 0.002,
            write_error: 0.002,
            flush_error: 0.002,
            discard_error: 0.01,
            no_space: 0.001,
            discard: DiscardMix {
                unsupported: 0.05,
                ..DiscardMix::default()
            },
            ..FaultConfig::sluggish()
        }
    }

    /// Every fault there is.
    pub fn hostile() -> FaultConfig {
        FaultConfig {
            broken: BrokenFaults::all(0.001),
            ..FaultConfig::failing()
        }
    }
}

impl BrokenFaults {
    /// Every contract-breaking fault with the same probability.
    pub fn all(probability: f64) -> BrokenFaults {
        BrokenFaults {
            lost_write: probability,
            misdirected_write: probability,
            misdirected_read: probability,
            flip_in_write: probability,
            flip_in_read: probability,
            flip_stored: probability,
        }
    }
}

/// One fault, as injected or as it happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// See [`FaultConfig::read_error`].
    ReadError,
    /// See [`FaultConfig::write_error`].
    WriteError {
        /// What the sectors hold afterwards.
        leaves: WriteErrorLeaves,
    },
    /// See [`FaultConfig::flush_error`].
    FlushError,
    /// See [`FaultConfig::discard_error`].
    DiscardError,
    /// See [`FaultConfig::no_space`].
    NoSpace,
    /// See [`FaultConfig::slow`] and [`FaultConfig::stuck`].
    Delay {
        /// Extra time in nanoseconds.
        ns: u64,
    },
    /// See [`BrokenFaults::lost_write`].
    LostWrite,
    /// See [`BrokenFaults::misdirected_write`].
    MisdirectedWrite {
        /// Where it lands, in bytes; drawn if `None`.
        to_bytes: Option<u64>,
    },
    /// See [`BrokenFaults::misdirected_read`].
    MisdirectedRead {
        /// Where it reads, in bytes; drawn if `None`.
        from_bytes: Option<u64>,
    },
    /// See [`BrokenFaults::flip_in_write`].
    FlipInWrite,
    /// See [`BrokenFaults::flip_in_read`].
    FlipInRead,
    /// See [`BrokenFaults::flip_stored`].
    FlipStored,
}

/// What a failed write leaves in its sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteErrorLeaves {
    /// What was there.
    Old,
    /// What it wrote.
    New,
    /// Some of each.
    Torn,
    /// Drawn from the above.
    Any,
}

impl Fault {
    /// True if the fault breaks the device's contract.
    pub fn is_broken(self) -> bool {
        matches!(
            self,
            Fault::LostWrite
                | Fault::MisdirectedWrite { .. }
                | Fault::MisdirectedRead { .. }
                | Fault::FlipInWrite
                | Fault::FlipInRead
                | Fault::FlipStored
        )
    }

    /// True if the fault can befall an operation of this kind.
    pub fn befalls(self, kind: IoKind) -> bool {
        match self {
            Fault::ReadError | Fault::MisdirectedRead { .. } | Fault::FlipInRead => {
                kind == IoKind::Read
            }
            Fault::WriteError { .. }
            | Fault::NoSpace
            | Fault::LostWrite
            | Fault::MisdirectedWrite { .. }
            | Fault::FlipInWrite => kind == IoKind::Write,
            Fault::FlushError => kind == IoKind::Flush,
            Fault::DiscardError => kind == IoKind::Discard,
            Fault::Delay { .. } | Fault::FlipStored => true,
        }
    }
}

/// A fault to inject at a chosen I/O: the `skip`-th one from now (zero is the next) that the fault
/// can befall and that touches `within`, and then `times` in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injection {
    /// What is to happen.
    pub fault: Fault,
    /// Matching operations to leave alone first.
    pub skip: u64,
    /// Matching operations to befall after that.
    pub times: u64,
    /// Only operations that touch this range of bytes; flushes touch everything.
    pub within: Option<Range<u64>>,
    /// Only operations of this kind.
    pub kind: Option<IoKind>,
}

impl Injection {
    /// Once, at the next operation.
    pub fn next(fault: Fault) -> Injection {
        Injection {
            fault,
            skip: 0,
            times: 1,
            within: None,
            kind: None,
        }
    }

    /// Leaves this many operations alone first.
    pub fn after(self, skip: u64) -> Injection {
        Injection { skip, ..self }
    }

    /// Befalls this many operations in a row.
    pub fn times(self, times: u64) -> Injection {
        Injection { times, ..self }
    }

    /// Only operations that touch this range of bytes.
    pub fn within(self, range: Range<u64>) -> Injection {
        Injection {
            within: Some(range),
            ..self
        }
    }

    /// Only operations of this kind.
    pub fn only(self, kind: IoKind) -> Injection {
        Injection {
            kind: Some(kind),
            ..self
        }
    }

    /// True if this operation is one the injection counts.
    fn counts(&self, kind: IoKind, offset_bytes: u64, len_bytes: u64) -> bool {
        let touches = self.within.as_ref().is_none_or(|range| {
            let end_bytes = offset_bytes.saturating_add(len_bytes);
            kind == IoKind::Flush || (offset_bytes < range.end && range.start < end_bytes)
        });
        touches && self.kind.is_none_or(|only| only == kind) && self.fault.befalls(kind)
    }
}

/// A fault that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRecord {
    /// The operation it befell, counted from zero on its disk.
    pub io: u64,
    /// What happened; places that were drawn are filled in.
    pub fault: Fault,
    /// The operation's place in bytes; of a stored bit that flipped, its byte.
    pub offset_bytes: u64,
    /// The operation's length in bytes; of a stored bit that flipped, 1.
    pub len_bytes: u64,
}

/// What is in store for one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) delay_ns: u64,
    pub(crate) flip_stored: bool,
    pub(crate) fault: Option<Fault>,
}

/// Draws what befalls an operation. Draws the same number of times whatever the probabilities.
pub(crate) fn draw_plan(config: &FaultConfig, kind: IoKind, rng: &mut Rng) -> Plan {
    let slow_ns = rng.within(&config.slow_ns);
    let stuck_ns = rng.within(&config.stuck_ns);
    let mut delay_ns = 0;
    if rng.chance(config.slow) {
        delay_ns += slow_ns;
    }
    if rng.chance(config.stuck) {
        delay_ns += stuck_ns;
    }
    let broken = &config.broken;
    let flip_stored = rng.chance(broken.flip_stored);
    let candidates: &[(f64, Fault)] = match kind {
        IoKind::Read => &[
            (config.read_error, Fault::ReadError),
            (
                broken.misdirected_read,
                Fault::MisdirectedRead { from_bytes: None },
            ),
            (broken.flip_in_read, Fault::FlipInRead),
        ],
        IoKind::Write => &[
            (
                config.write_error,
                Fault::WriteError {
                    leaves: WriteErrorLeaves::Any,
                },
            ),
            (config.no_space, Fault::NoSpace),
            (broken.lost_write, Fault::LostWrite),
            (
                broken.misdirected_write,
                Fault::MisdirectedWrite { to_bytes: None },
            ),
            (broken.flip_in_write, Fault::FlipInWrite),
        ],
        IoKind::Flush => &[(config.flush_error, Fault::FlushError)],
        IoKind::Discard => &[(config.discard_error, Fault::DiscardError)],
    };
    let mut fault = None;
    for &(probability, candidate) in candidates {
        if rng.chance(probability) && fault.is_none() {
            fault = Some(candidate);
        }
    }
    Plan {
        delay_ns,
        flip_stored,
        fault,
    }
}

/// Lets each injection that counts the operation have its turn; scripts go before chance.
pub(crate) fn inject(
    injections: &mut Vec<Injection>,
    plan: &mut Plan,
    kind: IoKind,
    offset_bytes: u64,
    len_bytes: u64,
) {
    for injection in injections.iter_mut() {
        if !injection.counts(kind, offset_bytes, len_bytes) {
            continue;
        }
        if injection.skip > 0 {
            injection.skip -= 1;
            continue;
        }
        if injection.times == 0 {
            continue;
        }
        injection.times -= 1;
        match injection.fault {
            Fault::Delay { ns } => plan.delay_ns += ns,
            Fault::FlipStored => plan.flip_stored = true,
            fault => plan.fault = Some(fault),
        }
    }
    injections.retain(|injection| injection.times > 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_and_kinds_respected() {
        let config = FaultConfig {
            flush_error: 0.1,
            write_error: 0.1,
            read_error: 0.1,
            discard_error: 0.1,
            ..FaultConfig::default()
        };
        let mut rng = Rng::new(1);
        let kinds = [IoKind::Read, IoKind::Write, IoKind::Flush, IoKind::Discard];
        for kind in kinds {
            let mut hits = 0;
            for _ in 0..10_000 {
                if let Some(fault) = draw_plan(&config, kind, &mut rng).fault {
                    assert!(fault.befalls(kind));
                    assert!(!fault.is_broken());
                    hits += 1;
                }
            }
            assert!((850..1150).contains(&hits), "{kind}: {hits}");
        }
    }

    #[test]
    fn drawing_stays_in_step_whatever_the_rates() {
        let mut calm = Rng::new(2);
        let mut wild = Rng::new(2);
        for _ in 0..100 {
            draw_plan(&FaultConfig::default(), IoKind::Write, &mut calm);
            draw_plan(&FaultConfig::hostile(), IoKind::Write, &mut wild);
        }
        assert_eq!(calm, wild);
    }

    #[test]
    fn injections_count_what_they_can_befall() {
        let mut injections = vec![
            Injection::next(Fault::LostWrite)
                .after(1)
                .times(2)
                .within(4096..8192),
        ];
        let mut hit = |kind, offset_bytes| {
            let mut plan = Plan::default();
            inject(&mut injections, &mut plan, kind, offset_bytes, 512);
            plan.fault.is_some()
        };
        assert!(!hit(IoKind::Write, 4096), "the first is skipped");
        assert!(!hit(IoKind::Read, 4096), "reads don't count");
        assert!(!hit(IoKind::Write, 8192), "outside");
        assert!(hit(IoKind::Write, 7680));
        assert!(hit(IoKind::Write, 4096));
        assert!(!hit(IoKind::Write, 4096), "used up");
        assert!(injections.is_empty());
    }
}
