//! What is shown at which width.

use super::*;
use crate::node::{
    ActivityQuery, CoreActivity, DeviceUser, Latency, Look, Schedule, Slo, activity,
};

fn op(per_second: f64, p99_ns: u64) -> OpActivity {
    OpActivity {
        per_second,
        bytes_per_second: per_second * 4096.0,
        errors: 0,
        latency: Some(latency(p99_ns)),
    }
}

fn latency(p99_ns: u64) -> Latency {
    Latency {
        mean_ns: p99_ns / 2,
        p50_ns: p99_ns / 3,
        p99_ns,
    }
}

fn volume(name: &str) -> VolumeActivity {
    VolumeActivity {
        name: name.to_owned(),
        device: "fast".to_owned(),
        core: 1,
        slo: Slo::default(),
        read: op(12_345.6, 300_000),
        write: op(3.25, 4_000_000),
        flush: OpActivity::default(),
        trim: OpActivity::default(),
        latency: Some(latency(1_250_000)),
        waited: Some(latency(600_000)),
        in_flight: 31.97,
        waiting: 12.5,
        used: Some(0.62),
        promised: Some(0.05),
        slo_state: SloState::Missed,
        missed: 0.3,
    }
}

fn sample() -> Activity {
    let device = DeviceActivity {
        name: "fast".to_owned(),
        schedule: Schedule {
            ceiling: Some("reads=20000 writes=10000".parse().expect("a ceiling")),
            ..Schedule::default()
        },
        read: op(12_345.6, 200_000),
        write: op(40.0, 90_000),
        flush: op(7.0, 3_000_000),
        trim: OpActivity::default(),
        in_flight: 19.5,
        waiting: 12.5,
        used: Some(0.98),
        promised: Some(0.4),
        users: vec![
            DeviceUser {
                volume: "batch".to_owned(),
                part: 0.62,
                over: Some(0.57),
            },
            DeviceUser {
                volume: "web".to_owned(),
                part: 0.2,
                over: Some(0.0),
            },
        ],
    };
    let core = |core, busy| CoreActivity {
        core,
        busy,
        spinning: 0.0,
    };
    Activity {
        ended_ns: 1_700_000_000_000_000_000,
        interval_ns: 2_001_000_000,
        active_count: 3,
        read: op(12_345.6, 300_000),
        write: op(3.25, 4_000_000),
        cores: vec![core(0, 0.031), core(1, 0.87)],
        devices: vec![device],
        volumes: vec![volume("batch"), volume("a-volume-with-a-long-name-indeed")],
    }
}

fn at_width(columns: usize) -> String {
    let size = Size {
        rows: None,
        columns,
    };
    plain(&lines(&sample(), &size))
}

#[test]
fn all_of_it() {
    let expected = "\
2023-11-14 22:13:20 UTC, over 2.0s: 3 volumes at work
reads 12.3k/s 48.2 MiB/s, writes 3.2/s 13 KiB/s; cores busy: 0 3.1%, 1 87%
device fast: 98% of ceiling reads=20000 writes=10000 (deficit), waiting 12.5
  reads 12.3k/s p99 200us, writes 40/s p99 90us, flushes 7.0/s p99 3.0ms, queue 19.5
  load: batch 62% (57% over its promise), web 20%

VOLUME                            DEVICE  CORE  READS/S  WRITES/S    READ/S  WRITTEN/S    P50    P99  WAIT P99  QUEUE  WAITING  USED  PROMISED  SLO
batch                             fast       1    12.3k       3.2  48.2 MiB     13 KiB  417us  1.2ms     600us   32.0     12.5   62%      5.0%  missed 30%
a-volume-with-a-long-name-indeed  fast       1    12.3k       3.2  48.2 MiB     13 KiB  417us  1.2ms     600us   32.0     12.5   62%      5.0%  missed 30%
and 1 more
";
    assert_eq!(at_width(200), expected);
}

#[test]
fn what_matters_least_gives_way_to_a_narrow_terminal() {
    for columns in 40..170 {
        let text = at_width(columns);
        for line in text.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        assert!(text.contains("READS/S"), "{columns}: {text}");
    }
    let at_80 = at_width(80);
    let heading = at_80.lines().nth(6).expect("a heading");
    for kept in ["VOLUME", "READS/S", "WRITES/S", "P99", "USED", "SLO"] {
        assert!(heading.contains(kept), "{kept}: {heading}");
    }
    for gone in ["DEVICE", "CORE", "PROMISED"] {
        assert!(!heading.contains(gone), "{gone}: {heading}");
    }
    assert_eq!(heading.contains("READ/S"), heading.contains("WRITTEN/S"));
    assert!(at_width(50).contains("a-volume-wi~"), "{}", at_width(50));
}

#[test]
fn a_device_without_a_ceiling_shows_no_part_of_it() {
    let mut activity = sample();
    let device = &mut activity.devices[0];
    device.schedule = Schedule::default();
    (device.used, device.promised) = (None, None);
    device.users[0].over = None;
    let row = &mut activity.volumes[0];
    (row.used, row.promised, row.waited) = (None, None, None);
    (row.slo_state, row.missed) = (SloState::Undivided, 0.0);
    let text = plain(&lines(&activity, &SIZE_DEFAULT));
    assert!(text.contains("device fast: no ceiling\n  reads"), "{text}");
    assert!(!text.contains("over its promise"), "{text}");
    let row = text.lines().find(|line| line.starts_with("batch"));
    let row = row.expect("a row");
    assert!(row.contains("      -   32.0"), "{row}");
    assert!(row.ends_with("   -         -  -"), "{row}");
}

#[test]
fn a_node_that_does_nothing() {
    let nothing = activity(
        &Look::default(),
        &Look::default(),
        &ActivityQuery::default(),
    );
    let text = plain(&lines(&nothing, &SIZE_DEFAULT));
    assert!(text.contains("0 volumes at work"), "{text}");
    assert!(text.contains("VOLUME  DEVICE"), "{text}");
}

#[test]
fn a_frame_takes_the_place_of_the_one_before() {
    let lines: Vec<String> = (0..10).map(|n| format!("line {n}")).collect();
    let size = Size {
        rows: Some(5),
        columns: 80,
    };
    let first = frame(&lines, &size, true);
    assert!(
        first.starts_with("\x1b[2J\x1b[Hline 0\x1b[K\n"),
        "{first:?}"
    );
    assert!(first.ends_with("line 3\x1b[K\n\x1b[J"), "{first:?}");
    let next = frame(&lines[..2], &size, false);
    assert_eq!(next, "\x1b[Hline 0\x1b[K\nline 1\x1b[K\n\x1b[J");
}

#[test]
fn numbers() {
    let counts = [0.0, 0.04, 9.94, 9.96, 9_999.0, 10_000.0, 999_949.0, 2e6];
    let shown = ["0", "0.0", "9.9", "10", "9999", "10.0k", "999.9k", "2.0M"];
    assert_eq!(counts.map(count), shown);
    let times = [
        0,
        900,
        999_400,
        999_600,
        99_940_000,
        99_960_000,
        1_500_000_000,
    ];
    let shown = ["0us", "1us", "999us", "1.0ms", "99.9ms", "100ms", "1.5s"];
    assert_eq!(times.map(|ns| time(Some(ns))), shown);
    assert_eq!(part(Some(0.0)), "0%");
    assert_eq!(part(Some(0.0994)), "9.9%");
    assert_eq!(part(Some(0.0996)), "10%");
}
