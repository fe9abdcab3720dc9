//! Snapshots by schedule, as people give it and as the API shows it. The rules are in `real/schedule/rules.rs`, why
//! they are so in `docs/decisions/2026-11-24-snapshot-schedules.md`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The shortest interval, in seconds. All are whole minutes.
pub const EVERY_LEAST_S: u64 = 60;

/// The longest interval: a year, in seconds.
pub const EVERY_MOST_S: u64 = 366 * 86_400;

/// Most that stay of the newest, of days, of weeks and of months.
pub const STAY_MOST: [u32; 4] = [511, 127, 63, 63];

/// When snapshots of a volume are taken, and which of them stay: those that one of the rules keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// Seconds from one to the next: whole minutes, up to a year.
    #[schema(example = 3600)]
    pub every_s: u64,
    /// How many of the newest stay, at most 511.
    #[serde(default)]
    #[schema(example = 24)]
    pub keep: u32,
    /// Of how many days that have any the newest stays, at most 127. Days are those of UTC.
    #[serde(default)]
    pub daily: u32,
    /// Of how many weeks, from Monday; at most 63.
    #[serde(default)]
    pub weekly: u32,
    /// Of how many months; at most 63.
    #[serde(default)]
    pub monthly: u32,
}

impl SnapshotSchedule {
    /// What is wrong with it, and what would be right.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        let every_s = self.every_s;
        if !(EVERY_LEAST_S..=EVERY_MOST_S).contains(&every_s) || !every_s.is_multiple_of(60) {
            let found = format!("an interval of {every_s} s");
            return Err((found, "give whole minutes, from 1 minute to 366 days"));
        }
        let stay = self.stay();
        if stay == [0; 4] {
            let found = "it would keep nothing".to_owned();
            return Err((found, "say how many stay: keep, daily, weekly or monthly"));
        }
        if stay
            .iter()
            .zip(STAY_MOST)
            .any(|(count, most)| *count > most)
        {
            let found = format!("{self} is more than can be kept");
            let next = "keep at most 511, and those of 127 days, 63 weeks and 63 months";
            return Err((found, next));
        }
        Ok(())
    }

    /// How many stay of the newest, of days, of weeks and of months.
    pub fn stay(&self) -> [u32; 4] {
        [self.keep, self.daily, self.weekly, self.monthly]
    }
}

impl fmt::Display for SnapshotSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
        let unit = units.iter().find(|(s, _)| self.every_s.is_multiple_of(*s));
        let (s, letter) = unit.copied().unwrap_or((1, 's'));
        write!(f, "every {}{letter}", self.every_s / s)?;
        let names = ["keep", "daily", "weekly", "monthly"];
        for (name, count) in names.iter().zip(self.stay()) {
            if count > 0 {
                write!(f, " {name} {count}")?;
            }
        }
        Ok(())
    }
}

/// A volume's schedule, and what has come of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduledSnapshots {
    /// The schedule.
    pub schedule: SnapshotSchedule,
    /// When the last of its snapshots was taken: nanoseconds since 1970-01-01 UTC; null if there is none.
    pub last_ns: Option<u64>,
    /// When the next is due: nanoseconds since 1970-01-01 UTC.
    pub next_ns: u64,
    /// That time has come by the node's clock: it is about to be taken, or waits until the volume can be changed again, as during a
    /// move.
    #[serde(default)]
    pub is_due: bool,
    /// Why the last attempt failed; null if it did not. It is tried again after a minute.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_that_make_no_sense_are_refused() {
        let of = |every_s, [keep, daily, weekly, monthly]: [u32; 4]| SnapshotSchedule {
            every_s,
            keep,
            daily,
            weekly,
            monthly,
        };
        for (every_s, stay, is_good) in [
            (60, [1, 0, 0, 0], true),
            (EVERY_MOST_S, STAY_MOST, true),
            (3600, [0, 0, 0, 1], true),
            (0, [1, 0, 0, 0], false),
            (59, [1, 0, 0, 0], false),
            (61, [1, 0, 0, 0], false),
            (EVERY_MOST_S + 60, [1, 0, 0, 0], false),
            (3600, [0; 4], false),
            (3600, [512, 0, 0, 0], false),
            (3600, [1, 128, 0, 0], false),
            (3600, [1, 0, 64, 0], false),
            (3600, [1, 0, 0, 64], false),
        ] {
            let schedule = of(every_s, stay);
            assert_eq!(schedule.check().is_ok(), is_good, "{schedule}");
        }
        let text = |every_s, stay| of(every_s, stay).to_string();
        assert_eq!(
            text(3600, [24, 7, 4, 12]),
            "every 1h keep 24 daily 7 weekly 4 monthly 12"
        );
        assert_eq!(text(5400, [0, 0, 2, 0]), "every 90m weekly 2");
        assert_eq!(text(86_400, [1, 0, 0, 0]), "every 1d keep 1");
    }
}
