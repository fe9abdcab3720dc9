//! What is shown at which width.

use super::*;
use crate::node::{
    ActivityQuery, CoreActivity, DeviceUser, FilesystemActivity, Latency, Look, Schedule, Slo,
    activity,
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

fn files(name: &str) -> FilesystemActivity {
    FilesystemActivity {
        name: name.to_owned(),
        device: "fast".to_owned(),
        core: 0,
        slo: Slo::default(),
        read: op(120.0, 300_000),
        write: op(80.0, 4_000_000),
        commit: op(2.0, 4_000_000),
        look: op(1_500.0, 20_000),
        change: op(33.0, 900_000),
        latency: Some(latency(900_000)),
        waited: None,
        in_flight: 1.25,
        waiting: 0.0,
        used: Some(0.021),
        promised: Some(0.2),
        slo_state: SloState::Met,
        missed: 0.0,
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
        active_filesystem_count: 0,
        filesystems: Vec::new(),
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
fn filesystems_have_a_table_of_their_own() {
    let mut activity = sample();
    activity.filesystems = vec![files("home")];
    activity.active_filesystem_count = 1;
    let text = plain(&lines(&activity, &SIZE_DEFAULT));
    let expected = "\
and 1 more

FILESYSTEM  DEVICE  CORE  READS/S  WRITES/S  LOOKS/S  CHANGES/S  COMMITS/S   READ/S  WRITTEN/S    P50    P99  WAIT P99  QUEUE  WAITING  USED  PROMISED  SLO
home        fast       0      120        80     1500         33        2.0  480 KiB    320 KiB  300us  900us         -    1.2        0  2.1%       20%  met
";
    assert!(text.ends_with(expected), "{text}");
    assert!(text.contains("3 volumes at work, 1 filesystem\n"), "{text}");
    activity.active_filesystem_count = 12;
    let text = plain(&lines(&activity, &SIZE_DEFAULT));
    assert!(text.ends_with("and 11 more\n"), "{text}");
    // No table of volumes where there are none to show.
    (activity.volumes, activity.active_count) = (Vec::new(), 0);
    let text = plain(&lines(&activity, &SIZE_DEFAULT));
    assert!(!text.contains("VOLUME"), "{text}");
}

/// However few lines there are, of both as much is shown as there is room for, and how many more there are.
#[test]
fn volumes_and_filesystems_share_the_lines_there_are() {
    let mut activity = sample();
    let shown = |activity: &Activity, rows: usize| {
        let size = Size {
            rows: Some(rows),
            columns: 200,
        };
        let lines = lines(activity, &size);
        assert!(rows < 14 || lines.len() < rows, "{rows}: {}", plain(&lines));
        let count = |name: &str| lines.iter().filter(|line| line.starts_with(name)).count();
        let more = lines.iter().filter(|line| line.starts_with("and "));
        let more: Vec<String> = more.cloned().collect();
        (count("v-"), count("f-"), more.join(", "))
    };
    let volumes = |count: usize| (0..count).map(|n| volume(&format!("v-{n}"))).collect();
    let filesystems = |count: usize| (0..count).map(|n| files(&format!("f-{n}"))).collect();
    (activity.volumes, activity.active_count) = (volumes(30), 30);
    (activity.filesystems, activity.active_filesystem_count) = (filesystems(3), 3);
    // Five lines above all, and the last one is free.
    assert_eq!(shown(&activity, 24), (9, 3, "and 21 more".to_owned()));
    (activity.filesystems, activity.active_filesystem_count) = (filesystems(30), 40);
    let both = "and 24 more, and 34 more".to_owned();
    assert_eq!(shown(&activity, 24), (6, 6, both));
    (activity.volumes, activity.active_count) = (volumes(1), 1);
    assert_eq!(shown(&activity, 24), (1, 11, "and 29 more".to_owned()));
    (activity.filesystems, activity.active_filesystem_count) = (Vec::new(), 0);
    (activity.volumes, activity.active_count) = (volumes(16), 16);
    assert_eq!(shown(&activity, 24), (16, 0, String::new()));
    activity.active_count = 17;
    assert_eq!(shown(&activity, 24), (15, 0, "and 2 more".to_owned()));
    // Where there is no room for a table, it is said that there are some.
    (activity.filesystems, activity.active_filesystem_count) = (filesystems(2), 2);
    let said = "and 16 more, and 2 more filesystems".to_owned();
    assert_eq!(shown(&activity, 11), (1, 0, said));
    (activity.volumes, activity.active_count) = (Vec::new(), 0);
    assert_eq!(shown(&activity, 11), (0, 2, String::new()));
    for rows in 0..14 {
        let _ = shown(&activity, rows);
    }
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
