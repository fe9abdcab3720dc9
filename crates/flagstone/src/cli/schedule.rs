//! `flagstone volume schedule`.

use clap::Args;

use super::token::parse_time;
use crate::api::requests::ScheduleRequest;
use crate::client::Client;
use crate::name::parse_name;
use crate::node::{ScheduledSnapshots, SnapshotSchedule, VolumeInfo};
use crate::output::{Output, utc};

#[derive(Args, Debug)]
#[command(after_help = "\
A snapshot stays if one of the rules keeps it; the others are deleted, also those that an earlier schedule took. A
schedule deletes only what it has taken (auto-20261124T231500Z, in UTC) and nothing that was received. To keep one
of them for good, rename it. What is given replaces the schedule as a whole.

Examples:
  flagstone volume schedule vm-1 --every 1h --keep 24 --daily 7 --weekly 4 --monthly 12
  flagstone volume schedule vm-1
  flagstone volume schedule vm-1 --none           no more are taken; those that were stay")]
pub(super) struct ScheduleArgs {
    #[arg(value_parser = parse_name)]
    name: String,
    /// How often one is taken, in whole minutes up to a year: 15m, 1h, 1d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    every: Option<u64>,
    /// How many of the newest stay
    #[arg(long, value_name = "COUNT", requires = "every")]
    keep: Option<u32>,
    /// Of how many days (of UTC) that have any the newest stays
    #[arg(long, value_name = "COUNT", requires = "every")]
    daily: Option<u32>,
    /// Of how many weeks, from Monday
    #[arg(long, value_name = "COUNT", requires = "every")]
    weekly: Option<u32>,
    /// Of how many months
    #[arg(long, value_name = "COUNT", requires = "every")]
    monthly: Option<u32>,
    /// Take none any more
    #[arg(long, conflicts_with_all = ["every", "keep", "daily", "weekly", "monthly"])]
    none: bool,
}

pub(super) fn run(
    client: &Client,
    args: &ScheduleArgs,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let path = format!("/v1/volumes/{}", args.name);
    let count = |count: Option<u32>| count.unwrap_or(0);
    let schedule = args.every.map(|every_s| SnapshotSchedule {
        every_s,
        keep: count(args.keep),
        daily: count(args.daily),
        weekly: count(args.weekly),
        monthly: count(args.monthly),
    });
    let info: VolumeInfo = match (schedule, args.none) {
        (None, false) => client.get(&path)?,
        (schedule, _) => {
            let request = ScheduleRequest { schedule };
            client.send("PUT", &format!("{path}/schedule"), &request)?
        }
    };
    let sentence = format!("volume {}: schedule {}", info.name, shown(&info));
    output.outcome(&info.scheduled, &sentence)?;
    Ok(())
}

/// A volume's schedule, in words.
pub(super) fn shown(info: &VolumeInfo) -> String {
    match &info.scheduled {
        Some(scheduled) => words(scheduled, info.moving.is_some()),
        None => "none".to_owned(),
    }
}

fn words(scheduled: &ScheduledSnapshots, is_moving: bool) -> String {
    let last = match scheduled.last_ns {
        Some(ns) => format!("last {} UTC", utc(ns)),
        None => "none taken yet".to_owned(),
    };
    let at = utc(scheduled.next_ns);
    let next = match (scheduled.is_due, is_moving) {
        (false, _) => format!("next {at} UTC"),
        (true, false) => format!("next due since {at} UTC"),
        (true, true) => format!("next due since {at} UTC, which waits until the volume has moved"),
    };
    let failure = match &scheduled.failure {
        Some(why) => format!("; the last try failed: {why}"),
        None => String::new(),
    };
    let schedule = scheduled.schedule;
    format!("{schedule}; {last}, {next}{failure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_said_to_be() {
        let mut scheduled = ScheduledSnapshots {
            schedule: SnapshotSchedule {
                every_s: 3600,
                keep: 2,
                daily: 0,
                weekly: 0,
                monthly: 0,
            },
            last_ns: None,
            next_ns: 1_795_478_400_000_000_000,
            is_due: false,
            failure: None,
        };
        let first = "every 1h keep 2; none taken yet, next";
        let at = "2026-11-24 00:00:00 UTC";
        assert_eq!(words(&scheduled, true), format!("{first} {at}"));
        scheduled.is_due = true;
        assert_eq!(words(&scheduled, false), format!("{first} due since {at}"));
        scheduled.failure = Some("the volume is being moved".to_owned());
        assert_eq!(
            words(&scheduled, true),
            format!(
                "{first} due since {at}, which waits until the volume has moved; the last try failed: the volume is being moved"
            )
        );
    }
}
