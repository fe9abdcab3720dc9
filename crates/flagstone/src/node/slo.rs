//! What volumes and filesystems are promised of their device, and how a device is divided. `docs/scheduling.md` has the rules.

use std::fmt;

use flagstone_types::BLOCK_SIZE;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reads and writes of 4 KiB a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Reads of 4 KiB a second.
    #[schema(example = 5000)]
    pub reads: u64,
    /// Writes of 4 KiB a second.
    #[schema(example = 1000)]
    pub writes: u64,
}

/// What a volume or filesystem is promised of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SloPromise {
    /// Of what floors leave, so many parts among those of all volumes and filesystems in use. At least 1.
    Share(u32),
    /// So much, whatever others do.
    Floor(Rates),
}

impl Default for SloPromise {
    fn default() -> SloPromise {
        SloPromise::Share(1)
    }
}

/// What a volume or filesystem may not exceed, whether or not others want anything. Null: no such limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SloLimit {
    /// Reads a second.
    pub reads: Option<u64>,
    /// Writes a second.
    pub writes: Option<u64>,
    /// Bytes a second, both ways together.
    pub bytes: Option<u64>,
}

/// The service level objective of a volume or filesystem. [decibel 4.3]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// What it is promised.
    pub promise: SloPromise,
    /// What it may not exceed.
    pub limit: SloLimit,
}

impl Slo {
    /// What one of so many has of it, which together have all of it. Of a share nobody has less than one part, and a limit is never
    /// 0: of a few each has more than that.
    pub(crate) fn part(&self, number: usize, of: usize) -> Slo {
        let (number, of) = (number as u64, of.max(1) as u64);
        let part = |all: u64| all / of + u64::from(number < all % of);
        let some = |all: Option<u64>| all.map(|all| part(all).max(1));
        let promise = match self.promise {
            SloPromise::Share(parts) => {
                SloPromise::Share(u32::try_from(part(parts.into())).unwrap_or(parts).max(1))
            }
            SloPromise::Floor(Rates { reads, writes }) => SloPromise::Floor(Rates {
                reads: part(reads),
                writes: part(writes),
            }),
        };
        let SloLimit {
            reads,
            writes,
            bytes,
        } = self.limit;
        Slo {
            promise,
            limit: SloLimit {
                reads: some(reads),
                writes: some(writes),
                bytes: some(bytes),
            },
        }
    }
}

impl SloLimit {
    /// Whether what is promised could never be had because of it.
    pub fn is_below(&self, floor: Rates) -> bool {
        let bytes = floor
            .reads
            .saturating_add(floor.writes)
            .saturating_mul(BLOCK_SIZE);
        let pairs = [
            (self.reads, floor.reads),
            (self.writes, floor.writes),
            (self.bytes, bytes),
        ];
        pairs
            .iter()
            .any(|(limit, floor)| limit.is_some_and(|limit| limit < *floor))
    }
}

impl fmt::Display for SloPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SloPromise::Share(parts) => write!(f, "share {parts}"),
            SloPromise::Floor(Rates { reads, writes }) => {
                write!(f, "floor reads={reads} writes={writes}")
            }
        }
    }
}

impl fmt::Display for SloLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SloLimit {
            reads,
            writes,
            bytes,
        } = self;
        let words = [("reads", reads), ("writes", writes), ("bytes", bytes)];
        let given = words.iter().filter_map(|(name, n)| n.map(|n| (name, n)));
        let words: Vec<String> = given.map(|(name, n)| format!("{name}={n}")).collect();
        match words.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&words.join(" ")),
        }
    }
}

/// What a device may be asked for, so that its latency stays where it is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceCeiling {
    /// Reads of 4 KiB a second. At least 1.
    #[schema(example = 80000)]
    pub reads: u64,
    /// Writes of 4 KiB a second that are not flushed. At least 1.
    #[schema(example = 50000)]
    pub writes: u64,
    /// Flushes a second; 0: they cost nothing.
    #[serde(default)]
    pub flushes: u64,
    /// Bytes a second in large requests; 0: large requests cost what their blocks do.
    #[serde(default)]
    pub bytes: u64,
    /// How long a request may be in the device at the ceiling, in microseconds: what is more at a time waits outside,
    /// where its order can still be changed. 0: a millisecond.
    #[serde(default)]
    pub latency_us: u64,
}

/// Who goes next where not everybody can.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulePolicy {
    /// Deficit round robin: by promises; what one doesn't use, others get.
    #[default]
    Deficit,
    /// Strict time sharing: by promises, each its own and no more.
    Strict,
    /// First come, first served: for comparison, since it keeps no ceiling and no promise. Limits hold.
    FirstCome,
}

impl SchedulePolicy {
    /// What there is to be known of a device that has a ceiling and this policy, in a clause: the ceiling may not be kept.
    pub fn warning(self) -> Option<&'static str> {
        (self == SchedulePolicy::FirstCome).then_some(
            "first-come keeps no ceiling and no promise, neither floors nor shares: each request begins as it comes, and only volumes' own limits hold any back",
        )
    }
}

impl fmt::Display for SchedulePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SchedulePolicy::Deficit => "deficit",
            SchedulePolicy::Strict => "strict",
            SchedulePolicy::FirstCome => "first-come",
        })
    }
}

/// How a device is divided among its volumes and filesystems.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// What it may be asked for. Null: whatever it can do; then nothing is divided, and floors promise nothing.
    pub ceiling: Option<DeviceCeiling>,
    /// Who goes next.
    pub policy: SchedulePolicy,
    /// What its own work (checkpoints, scrub, reaping) is promised, in percent of what can be. It takes what nobody else
    /// wants besides.
    #[schema(maximum = 50)]
    pub background_percent: u8,
}

/// The most that a device's own work can be promised, in percent.
pub const BACKGROUND_MAX_PERCENT: u8 = 50;

/// What a device's own work is promised unless told otherwise, in percent.
pub const BACKGROUND_DEFAULT_PERCENT: u8 = 5;

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            ceiling: None,
            policy: SchedulePolicy::default(),
            background_percent: BACKGROUND_DEFAULT_PERCENT,
        }
    }
}

impl fmt::Display for DeviceCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceCeiling {
            reads,
            writes,
            flushes,
            bytes,
            latency_us,
        } = self;
        write!(f, "reads={reads} writes={writes}")?;
        if *flushes > 0 {
            write!(f, " flushes={flushes}")?;
        }
        if *bytes > 0 {
            write!(f, " bytes={bytes}")?;
        }
        match latency_us {
            0 => {}
            us if us.is_multiple_of(1_000_000) => write!(f, " latency={}s", us / 1_000_000)?,
            us if us.is_multiple_of(1000) => write!(f, " latency={}ms", us / 1000)?,
            us => write!(f, " latency={us}us")?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole_and_none_is_nothing() {
        let whole = Slo {
            promise: SloPromise::Floor(Rates {
                reads: 4001,
                writes: 3,
            }),
            limit: SloLimit {
                reads: Some(2),
                writes: None,
                bytes: Some(1_000_003),
            },
        };
        let parts: Vec<Slo> = (0..4).map(|number| whole.part(number, 4)).collect();
        let floors = parts.iter().map(|part| match part.promise {
            SloPromise::Floor(rates) => (rates.reads, rates.writes),
            SloPromise::Share(_) => (0, 0),
        });
        let sum = floors.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        assert_eq!(sum, (4001, 3));
        let bytes = parts.iter().filter_map(|part| part.limit.bytes);
        assert_eq!(bytes.sum::<u64>(), 1_000_003);
        let reads: Vec<_> = parts.iter().map(|part| part.limit.reads).collect();
        assert_eq!(reads, [Some(1); 4], "0 would let nothing through");
        assert!(parts.iter().all(|part| part.limit.writes.is_none()));
        let share = |parts| Slo {
            promise: SloPromise::Share(parts),
            ..Slo::default()
        };
        let each = |parts: u32| {
            (0..3)
                .map(|number| share(parts).part(number, 3))
                .collect::<Vec<_>>()
        };
        assert_eq!(each(8), [share(3), share(3), share(2)]);
        assert_eq!(each(1), [share(1); 3]);
    }
}
