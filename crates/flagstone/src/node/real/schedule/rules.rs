//! Which snapshot is due, and which stay: functions of times and layers, and of nothing else.
//!
//! The order of snapshots is that of their layers. Clocks jump; layers only grow. So a time says in which day a
//! snapshot counts, and whether the next is due, but never which of two is newer
//! (`docs/decisions/2026-11-24-snapshot-schedules.md`, "Rules of time").

use std::collections::BTreeSet;

use flagstone_types::{DvolId, LayerNo};

use crate::node::SnapshotSchedule;
use crate::output::civil_from_days;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;

/// A snapshot that is taken within this part of an interval before a point of the grid, an eighth, counts for that point.
const NEAR_PART: u64 = 8;

/// The period of a time in seconds, by number.
type PeriodOf = fn(u64) -> u64;

/// A snapshot that the schedule took and that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Its layer: the higher the newer.
    pub(super) layer: LayerNo,
    /// When it was taken, as the clock said then; nanoseconds since 1970.
    pub(super) taken_ns: u64,
}

/// The name of a snapshot that is taken at this time. The form is that of [`crate::name::is_of_schedule`].
pub(super) fn name_at(now_ns: u64) -> String {
    let seconds = now_ns / SECOND_NS;
    let (days, of_day) = (seconds / DAY_S, seconds % DAY_S);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("auto-{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The newest of them: that with the highest layer.
pub(super) fn newest(taken: &[Taken]) -> Option<Taken> {
    taken.iter().copied().max_by_key(|one| one.layer)
}

/// When the next is due, in nanoseconds since 1970: not later than `now_ns` if it is due now.
///
/// Points of the grid are an interval apart, from a turn that comes from the volume's id. Due is the first of them
/// behind the newest snapshot; of several that were missed one is made good. What was taken late, or as the first one,
/// right before a point counts for that point, too: two within an eighth of an interval would say the same twice. A
/// snapshot that seems to come from more than an interval ahead was taken with a clock that was wrong, so its time says
/// nothing and the next is due at once: waiting for its time could take years.
pub(super) fn next_due_ns(
    schedule: &SnapshotSchedule,
    id: DvolId,
    newest: Option<Taken>,
    now_ns: u64,
) -> u64 {
    let every_ns = schedule.every_s.max(1) * SECOND_NS;
    let Some(last) = newest else {
        return now_ns;
    };
    if last.taken_ns > now_ns.saturating_add(every_ns) {
        return now_ns;
    }
    let turn_ns = (id.0 % u128::from(every_ns)) as u64;
    let after_ns = last.taken_ns.saturating_add(every_ns / NEAR_PART);
    if after_ns < turn_ns {
        return turn_ns;
    }
    let passed = (after_ns - turn_ns) / every_ns;
    (passed + 1)
        .saturating_mul(every_ns)
        .saturating_add(turn_ns)
}

/// Those that no rule keeps any more, oldest first.
pub(super) fn gone(schedule: &SnapshotSchedule, taken: &[Taken], now_ns: u64) -> Vec<Taken> {
    let mut newest_first = taken.to_vec();
    newest_first.sort_by_key(|one| std::cmp::Reverse(one.layer));
    // What is taken with a clock that was ahead counts as of now.
    let time_s = |one: &Taken| one.taken_ns.min(now_ns) / SECOND_NS;
    let mut staying = BTreeSet::new();
    let rules: [(u32, PeriodOf); 3] = [
        (schedule.daily, day_of),
        (schedule.weekly, week_of),
        (schedule.monthly, month_of),
    ];
    staying.extend(
        newest_first
            .iter()
            .take(schedule.keep as usize)
            .map(|one| one.layer),
    );
    for (count, period_of) in rules {
        let mut seen = BTreeSet::new();
        for one in &newest_first {
            if seen.len() >= count as usize {
                break;
            }
            if seen.insert(period_of(time_s(one))) {
                staying.insert(one.layer);
            }
        }
    }
    newest_first.retain(|one| !staying.contains(&one.layer));
    newest_first.reverse();
    newest_first
}

/// The day of a time in seconds, counted from 1970-01-01.
fn day_of(seconds: u64) -> u64 {
    seconds / DAY_S
}

/// The week of a time, from Monday, as ISO 8601 has it. 1970-01-01 was a Thursday.
fn week_of(seconds: u64) -> u64 {
    (day_of(seconds) + 3) / 7
}

/// The month of a time.
fn month_of(seconds: u64) -> u64 {
    let (year, month, _) = civil_from_days(day_of(seconds));
    year * 12 + month
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::name::is_of_schedule;

    const HOUR_S: u64 = 3600;
    /// 2026-11-24 00:00:00, a Tuesday.
    const TUESDAY_S: u64 = 1_795_478_400;

    fn schedule(every_s: u64, [keep, daily, weekly, monthly]: [u32; 4]) -> SnapshotSchedule {
        SnapshotSchedule {
            every_s,
            keep,
            daily,
            weekly,
            monthly,
        }
    }

    fn taken(layer: u32, at_s: u64) -> Taken {
        Taken {
            layer: LayerNo(layer),
            taken_ns: at_s * SECOND_NS,
        }
    }

    fn layers(taken: &[Taken]) -> Vec<u32> {
        taken.iter().map(|one| one.layer.0).collect()
    }

    #[test]
    fn names_say_when() {
        for (at_s, name) in [
            (0, "auto-19700101T000000Z"),
            (951_782_399, "auto-20000228T235959Z"),
            (951_782_400, "auto-20000229T000000Z"),
            (951_868_800, "auto-20000301T000000Z"),
            (TUESDAY_S + 83_700, "auto-20261124T231500Z"),
            (4_107_542_399, "auto-21000228T235959Z"),
            (4_107_542_400, "auto-21000301T000000Z"),
        ] {
            assert_eq!(name_at(at_s * SECOND_NS + 999_999_999), name);
            assert!(is_of_schedule(name), "{name}");
        }
        assert!(is_of_schedule(&name_at(u64::MAX)), "{}", name_at(u64::MAX));
    }

    #[test]
    fn periods_begin_where_the_calendar_has_them() {
        // (second, whether the second before is of another day, week, month)
        for (at_s, week, month) in [
            (TUESDAY_S, false, false),
            // Monday the 23rd, and Sunday before it.
            (TUESDAY_S - DAY_S, true, false),
            (TUESDAY_S - 2 * DAY_S, false, false),
            // 2026-12-01, a Tuesday.
            (TUESDAY_S + 7 * DAY_S, false, true),
            // 2026-01-01 was a Thursday: of the same week as the end of 2025.
            (1_767_225_600, false, true),
            // 2024-01-01 was a Monday.
            (1_704_067_200, true, true),
            // 2024-02-29 and 03-01.
            (1_709_164_800, false, false),
            (1_709_251_200, false, true),
            // 1970-01-05 was the first Monday.
            (4 * DAY_S, true, false),
        ] {
            assert_eq!(day_of(at_s), day_of(at_s - 1) + 1, "{at_s}");
            assert_eq!(week_of(at_s) != week_of(at_s - 1), week, "{at_s}");
            assert_eq!(month_of(at_s) != month_of(at_s - 1), month, "{at_s}");
        }
    }

    #[test]
    fn one_is_due_at_each_point_of_the_grid() {
        let hourly = schedule(HOUR_S, [24, 0, 0, 0]);
        let turn_s = 1234;
        let id = DvolId(u128::from(HOUR_S * 77 + turn_s) * u128::from(SECOND_NS));
        let next_s = |last_s: u64, now_s: u64| {
            let now_ns = now_s * SECOND_NS;
            next_due_ns(&hourly, id, Some(taken(1, last_s)), now_ns) / SECOND_NS
        };
        let at = |hours: u64| TUESDAY_S + hours * HOUR_S + turn_s;
        assert_eq!(next_s(at(1), at(1)), at(2));
        assert_eq!(next_s(at(1) + 5, at(1) + 9), at(2));
        // Right before a point, the first one or one that was late: it isn't taken twice in a moment.
        assert_eq!(next_s(at(1) - 1, at(1) - 1), at(2));
        assert_eq!(next_s(at(1) - 450, at(1) - 450), at(2));
        assert_eq!(next_s(at(1) - 451, at(1) - 451), at(1));
        // Off for a week: one, not 168, and then the next of the grid.
        assert_eq!(next_s(at(1), at(169) + 7), at(2));
        assert_eq!(next_s(at(169) + 7, at(169) + 7), at(170));
        // The clock was ahead, by less than an interval and by a year.
        assert_eq!(next_s(at(1) + 1800, at(1)), at(2));
        assert_eq!(next_s(at(9000), at(1) + 3), at(1) + 3);
        let now_ns = at(3) * SECOND_NS;
        assert_eq!(next_due_ns(&hourly, id, None, now_ns), now_ns);
        // Before the first point there ever was.
        assert_eq!(next_s(5, 6), turn_s);
    }

    #[test]
    fn volumes_have_different_turns() {
        let hourly = schedule(HOUR_S, [24, 0, 0, 0]);
        let last = Some(taken(1, TUESDAY_S));
        let due: BTreeSet<u64> = (1..=1000u128)
            .map(|n| {
                let id = DvolId(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
                next_due_ns(&hourly, id, last, TUESDAY_S * SECOND_NS) / SECOND_NS / 60 % 60
            })
            .collect();
        assert_eq!(due.len(), 60, "in each minute some");
    }

    #[test]
    fn each_rule_keeps_its_own() {
        // Each six hours, for eighty days.
        let all: Vec<Taken> = (0..320)
            .map(|n| taken(n, TUESDAY_S + u64::from(n) * 6 * HOUR_S))
            .collect();
        let now_ns = all[319].taken_ns;
        let stay = |stay| {
            let gone = gone(&schedule(HOUR_S, stay), &all, now_ns);
            let gone = layers(&gone);
            let staying = (0..320).filter(|n| !gone.contains(n));
            staying.collect::<Vec<u32>>()
        };
        assert_eq!(stay([3, 0, 0, 0]), [317, 318, 319]);
        assert_eq!(stay([0, 3, 0, 0]), [311, 315, 319]);
        // Until Thursday, 2027-02-11; Sundays before.
        assert_eq!(stay([0, 0, 3, 0]), [275, 303, 319]);
        // 2026-12-31 and 2027-01-31.
        assert_eq!(stay([0, 0, 0, 3]), [151, 275, 319]);
        assert_eq!(stay([2, 2, 0, 1]), [315, 318, 319]);
    }

    #[test]
    fn a_clock_that_was_ahead_deletes_no_right_snapshot_at_once() {
        let mut all: Vec<Taken> = (0..24)
            .map(|n| taken(n, TUESDAY_S + u64::from(n) * HOUR_S))
            .collect();
        let year_s = 365 * DAY_S;
        let wrong = taken(24, TUESDAY_S + year_s);
        all.push(wrong);
        let hourly = schedule(HOUR_S, [24, 7, 0, 0]);
        // One is too many, and it is the oldest layer, not one that looks older than the wrong one.
        let gone_now = gone(&hourly, &all, TUESDAY_S * SECOND_NS + DAY_S * SECOND_NS);
        assert_eq!(layers(&gone_now), [0]);
        // And the wrong one goes as the oldest layers do.
        let after: Vec<Taken> = (24..60)
            .map(|n| match n {
                24 => wrong,
                _ => taken(n, TUESDAY_S + u64::from(n) * HOUR_S),
            })
            .collect();
        let now_ns = after[35].taken_ns;
        assert!(layers(&gone(&hourly, &after, now_ns)).contains(&24));
    }

    #[test]
    fn an_idle_year_deletes_nothing() {
        let all: Vec<Taken> = (0..5)
            .map(|n| taken(n, TUESDAY_S + u64::from(n) * DAY_S))
            .collect();
        let daily = schedule(DAY_S, [0, 5, 0, 0]);
        let later_ns = (TUESDAY_S + 400 * DAY_S) * SECOND_NS;
        assert_eq!(gone(&daily, &all, later_ns), []);
    }

    fn any_taken() -> impl Strategy<Value = Vec<Taken>> {
        // Times in any order: the clock jumps between two.
        let time_s = prop_oneof![0..40_000_000u64, Just(0), 0..u64::MAX / SECOND_NS];
        proptest::collection::btree_map(any::<u32>(), time_s, 0..60).prop_map(|map| {
            let all = map.into_iter();
            all.map(|(layer, at_s)| taken(layer, at_s)).collect()
        })
    }

    fn any_stay() -> impl Strategy<Value = [u32; 4]> {
        [0..20u32, 0..9u32, 0..6u32, 0..6u32]
    }

    proptest! {
        #[test]
        fn what_stays_is_right(all in any_taken(), stay in any_stay(), now_s in 0..50_000_000u64) {
            let rules = schedule(HOUR_S, stay);
            let now_ns = now_s * SECOND_NS;
            let going = gone(&rules, &all, now_ns);
            let staying: Vec<Taken> = all.iter().copied().filter(|one| !going.contains(one)).collect();
            prop_assert!(staying.len() <= stay.iter().sum::<u32>() as usize);
            // Again changes nothing.
            prop_assert_eq!(gone(&rules, &staying, now_ns), vec![]);
            // The newest layer stays, whatever its time is.
            if let Some(newest) = newest(&all) && stay != [0; 4] {
                prop_assert!(staying.contains(&newest));
            }
            // Of each kept period the newest.
            let period = |one: &Taken, of: fn(u64) -> u64| of(one.taken_ns.min(now_ns) / SECOND_NS);
            for (count, of) in [(stay[1], day_of as fn(u64) -> u64), (stay[2], week_of), (stay[3], month_of)] {
                let mut newest_of = std::collections::BTreeMap::new();
                for one in &all {
                    newest_of.insert(period(one, of), *one);
                }
                let mut newest_of: Vec<Taken> = newest_of.into_values().collect();
                newest_of.sort_by_key(|one| std::cmp::Reverse(one.layer));
                for one in newest_of.iter().take(count as usize) {
                    prop_assert!(staying.contains(one));
                }
            }
        }

        #[test]
        fn the_next_is_not_much_more_than_two_intervals_away(
            every_m in 1..600_000u64, id in any::<u128>(), last_s in 0..u64::MAX / SECOND_NS / 4,
            now_s in 0..u64::MAX / SECOND_NS / 4,
        ) {
            let rules = schedule(every_m * 60, [1, 0, 0, 0]);
            let (last, now_ns) = (taken(1, last_s), now_s * SECOND_NS);
            let next_ns = next_due_ns(&rules, DvolId(id), Some(last), now_ns);
            let every_ns = every_m * 60 * SECOND_NS;
            let near_ns = every_ns / NEAR_PART;
            prop_assert!(next_ns <= now_ns.saturating_add(2 * every_ns + near_ns));
            // Taken now, it isn't due again for the same point.
            if next_ns <= now_ns {
                let again_ns = next_due_ns(&rules, DvolId(id), Some(taken(2, now_s)), now_ns);
                prop_assert!(again_ns > now_ns + near_ns && again_ns <= now_ns + every_ns + near_ns);
            }
        }
    }
}
