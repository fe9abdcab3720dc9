//! Numbers that were made up, and what they come to.

use super::*;
use crate::node::{
    CoreLook, DeviceCeiling, DeviceFacts, DeviceLook, ErrorCount, IoMark, MemberLook, SloLimit,
    SloPromise,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// So many operations of 4 KiB that took so long each.
fn marked(operations: u64, each_ns: u64) -> IoMark {
    let mut latency = LatencyHistogram::new();
    (0..operations).for_each(|_| latency.record(each_ns));
    IoMark {
        operations,
        bytes: operations * 4096,
        errors: Vec::new(),
        latency: latency.mark(),
    }
}

fn waited(operations: u64, each_ns: u64) -> flagstone_types::HistogramMark {
    marked(operations, each_ns).latency
}

fn volume(id: u128, name: &str) -> VolumeLook {
    VolumeLook::new(DvolId(id), name.to_owned(), 0, Slo::default())
}

/// A device, at a moment of one core.
fn look(at_ns: u64, is_divided: bool, volumes: Vec<VolumeLook>) -> Look {
    let ceiling = is_divided.then_some(DeviceCeiling {
        reads: 10_000,
        writes: 5_000,
        flushes: 0,
        bytes: 0,
        latency_us: 0,
    });
    let facts = DeviceFacts {
        name: "ssd".to_owned(),
        schedule: Schedule {
            ceiling,
            ..Schedule::default()
        },
    };
    Look {
        wall_ns: 1_700_000_000 * SECOND + at_ns,
        devices: vec![facts],
        cores: vec![CoreLook {
            at_ns,
            volumes,
            ..CoreLook::default()
        }],
    }
}

fn all() -> ActivityQuery {
    ActivityQuery::default()
}

fn sorted(sort: ActivityOrder) -> ActivityQuery {
    ActivityQuery { sort, ..all() }
}

fn names(activity: &Activity) -> Vec<&str> {
    let names = activity.volumes.iter().map(|volume| volume.name.as_str());
    names.collect()
}

#[test]
fn rates_and_percentiles_are_of_the_interval_only() {
    // A hundred slow reads long ago, then two hundred fast ones within two seconds.
    let before = VolumeLook {
        read: marked(100, 50 * MS),
        ..volume(1, "a")
    };
    let mut now = before.clone();
    now.under_way_ns += 400 * MS;
    let mut latency = LatencyHistogram::new();
    (0..100).for_each(|_| latency.record(50 * MS));
    (0..200).for_each(|_| latency.record(MS));
    now.read = IoMark {
        operations: 300,
        bytes: 300 * 4096,
        errors: vec![ErrorCount {
            kind: "device",
            count: 3,
        }],
        latency: latency.mark(),
    };
    let then = look(5 * SECOND, false, vec![before]);
    let now = look(7 * SECOND, false, vec![now]);
    let found = activity(&then, &now, &all());
    assert_eq!(found.interval_ns, 2 * SECOND);
    assert_eq!(found.ended_ns, 1_700_000_007 * SECOND);
    assert_eq!(found.active_count, 1);
    let a = &found.volumes[0];
    assert_eq!(a.read.per_second, 100.0);
    assert_eq!(a.read.bytes_per_second, 409_600.0);
    assert_eq!(a.read.errors, 3);
    let latency = a.latency.expect("there were some");
    assert!(latency.p99_ns < 2 * MS, "{latency:?}");
    assert_eq!(latency.mean_ns, MS);
    assert_eq!(
        a.in_flight, 0.2,
        "400 ms in 2 s: what the reads took that ended is 200 ms"
    );
    assert_eq!(a.write, OpActivity::default());
    assert_eq!(a.waited, None);
    assert_eq!((a.used, a.promised), (None, None));
    assert_eq!(a.slo_state, SloState::Undivided);
    assert_eq!(found.read, a.read);
}

#[test]
fn what_did_nothing_is_left_out_and_what_is_new_counts_from_zero() {
    let idle = VolumeLook {
        read: marked(100, MS),
        ..volume(1, "idle")
    };
    let new = VolumeLook {
        write: marked(10, MS),
        ..volume(2, "new")
    };
    let stuck = VolumeLook {
        waiting: 1,
        ..volume(3, "stuck")
    };
    let then = look(SECOND, false, vec![idle.clone(), volume(4, "deleted")]);
    let now = look(2 * SECOND, false, vec![idle, new, stuck]);
    let found = activity(&then, &now, &all());
    assert_eq!(names(&found), ["new", "stuck"]);
    assert_eq!(found.volumes[0].write.per_second, 10.0);
}

#[test]
fn a_volume_that_was_renamed_is_the_same() {
    let before = VolumeLook {
        read: marked(100, MS),
        ..volume(1, "old")
    };
    let now = VolumeLook {
        name: "new".to_owned(),
        read: marked(101, MS),
        ..before.clone()
    };
    let then = look(SECOND, false, vec![before]);
    let found = activity(&then, &look(2 * SECOND, false, vec![now]), &all());
    assert_eq!(found.volumes[0].read.per_second, 1.0);
}

#[test]
fn the_order_is_the_one_asked_for() {
    let mut small = VolumeLook {
        read: marked(500, MS),
        waited: waited(500, MS / 10),
        used_ns: 10 * MS,
        ..volume(1, "small")
    };
    let mut large = VolumeLook {
        write: IoMark {
            bytes: 100 << 20,
            ..marked(100, 2 * MS)
        },
        waited: waited(100, MS),
        used_ns: 500 * MS,
        ..volume(2, "large")
    };
    let mut slow = VolumeLook {
        read: marked(2, 80 * MS),
        used_ns: 20 * MS,
        ..volume(3, "slow")
    };
    for is_divided in [true, false] {
        for volume in [&mut small, &mut large, &mut slow] {
            volume.promised_ns = is_divided.then_some(SECOND / 4);
        }
        let volumes = vec![small.clone(), large.clone(), slow.clone()];
        let (then, now) = (
            look(SECOND, is_divided, Vec::new()),
            look(2 * SECOND, is_divided, volumes),
        );
        let order = |sort| {
            let found = activity(&then, &now, &sorted(sort));
            names(&found).join(" ")
        };
        assert_eq!(order(ActivityOrder::Iops), "small large slow");
        assert_eq!(order(ActivityOrder::Bytes), "large small slow");
        assert_eq!(order(ActivityOrder::Latency), "slow large small");
        assert_eq!(order(ActivityOrder::Waited), "large small slow");
        let by_use = if is_divided {
            "large slow small"
        } else {
            "large small slow"
        };
        assert_eq!(order(ActivityOrder::Used), by_use);
        let query = ActivityQuery {
            limit: 1,
            prefix: Some("s".to_owned()),
            ..all()
        };
        let found = activity(&then, &now, &query);
        assert_eq!(names(&found), ["small"]);
        assert_eq!(found.active_count, 2, "those that begin with it");
        assert_eq!(found.read.per_second, 502.0, "of all volumes");
    }
}

/// They may be on other cores, which are looked at for another time.
#[test]
fn turns_of_members_are_those_of_the_whole() {
    let two = |at_ns: u64, other_at_ns, head: VolumeLook, member: VolumeLook| {
        let beside = VolumeLook {
            promised_ns: Some(SECOND / 4),
            used_ns: at_ns / 10,
            ..volume(2, "beside")
        };
        let mut both = look(at_ns, true, vec![beside, head]);
        let of_nobody = VolumeLook {
            used_ns: at_ns,
            ..volume(8, ".stripe.7")
        };
        both.cores.push(CoreLook {
            core: 1,
            at_ns: other_at_ns,
            members: vec![
                MemberLook {
                    of: DvolId(7),
                    look: of_nobody,
                },
                MemberLook {
                    of: DvolId(1),
                    look: member,
                },
            ],
            ..CoreLook::default()
        });
        both
    };
    let head = VolumeLook {
        used_ns: 7 * SECOND,
        ..volume(1, "hot")
    };
    let member = VolumeLook {
        used_ns: 3 * SECOND,
        short_ns: 5 * SECOND,
        waited: waited(40, MS),
        ..volume(3, ".stripe.1")
    };
    let then = two(SECOND, 5 * SECOND, head.clone(), member.clone());
    let head = VolumeLook {
        read: marked(100, 6 * MS),
        used_ns: head.used_ns + 100 * MS,
        short_ns: 100 * MS,
        waited: waited(100, 2 * MS),
        promised_ns: Some(SECOND / 8),
        ..head
    };
    let mut waits = LatencyHistogram::new();
    (0..40).for_each(|_| waits.record(MS));
    (0..100).for_each(|_| waits.record(4 * MS));
    let member = VolumeLook {
        used_ns: member.used_ns + 300 * MS,
        short_ns: member.short_ns + 300 * MS,
        waited: waits.mark(),
        promised_ns: Some(SECOND / 8),
        ..member
    };
    let now = two(2 * SECOND, 7 * SECOND, head.clone(), member.clone());
    let found = activity(&then, &now, &all());
    assert_eq!(names(&found), ["hot", "beside"]);
    let hot = &found.volumes[0];
    // A tenth of a second, and 150 ms of each second.
    assert_eq!((hot.used, hot.promised), (Some(0.25), Some(0.25)));
    assert_eq!((hot.slo_state, hot.missed), (SloState::Missed, 0.3));
    // Two hundred turns of 3 ms, for a hundred operations.
    assert_eq!(hot.waiting, 0.3);
    assert_eq!(hot.waited.expect("some").mean_ns, 3 * MS);
    let device = &found.devices[0];
    assert_eq!((device.used, device.promised), (Some(0.35), Some(0.5)));
    assert_eq!(device.waiting, 0.15, "in the longest of all intervals");
    let users: Vec<(&str, f64)> = device
        .users
        .iter()
        .map(|user| (user.volume.as_str(), user.part))
        .collect();
    assert_eq!(users, [("hot", 0.7143), ("beside", 0.2857)]);
    // One whose first member nobody has used for a while, so that it has no turns.
    let head = VolumeLook {
        promised_ns: None,
        ..head
    };
    let found = activity(&then, &two(2 * SECOND, 7 * SECOND, head, member), &all());
    assert_eq!(found.volumes[0].promised, Some(0.125));
}

#[test]
fn promises_are_met_missed_or_limited() {
    let promised = VolumeLook {
        read: marked(100, MS),
        promised_ns: Some(SECOND / 4),
        used_ns: 100 * MS,
        ..volume(1, "a")
    };
    let limited = |reads| VolumeLook {
        slo: Slo {
            promise: SloPromise::default(),
            limit: SloLimit {
                reads: Some(reads),
                ..SloLimit::default()
            },
        },
        ..promised.clone()
    };
    let cases = [
        (promised.clone(), SloState::Met, 0.0),
        (
            VolumeLook {
                short_ns: 300 * MS,
                ..promised.clone()
            },
            SloState::Missed,
            0.3,
        ),
        (limited(100), SloState::Limited, 0.0),
        (limited(200), SloState::Met, 0.0),
        (
            VolumeLook {
                promised_ns: None,
                ..promised.clone()
            },
            SloState::Undivided,
            0.0,
        ),
    ];
    for (now, state, missed) in cases {
        let then = look(SECOND, true, vec![volume(1, "a")]);
        let found = activity(&then, &look(2 * SECOND, true, vec![now]), &all());
        let a = &found.volumes[0];
        assert_eq!((a.slo_state, a.missed), (state, missed));
    }
    // A limit of bytes counts both ways.
    let both = VolumeLook {
        slo: Slo {
            limit: SloLimit {
                bytes: Some(200 * 4096),
                ..SloLimit::default()
            },
            ..Slo::default()
        },
        write: marked(95, MS),
        ..promised
    };
    let then = look(SECOND, true, Vec::new());
    let found = activity(&then, &look(2 * SECOND, true, vec![both]), &all());
    assert_eq!(found.volumes[0].slo_state, SloState::Limited);
}

#[test]
fn who_uses_more_than_promised_causes_the_load() {
    let using = |id: u128, name: &str, used_ms: u64, promised_ms: u64| VolumeLook {
        read: marked(10, MS),
        waited: waited(10, 50 * MS),
        used_ns: used_ms * MS,
        promised_ns: Some(promised_ms * MS),
        ..volume(id, name)
    };
    let volumes = vec![
        using(1, "modest", 400, 450),
        using(2, "greedy", 350, 50),
        using(3, "over", 150, 100),
        using(4, "quiet", 10, 100),
        using(5, "asleep", 0, 100),
    ];
    let then = look(SECOND, true, Vec::new());
    let found = activity(&then, &look(2 * SECOND, true, volumes.clone()), &all());
    let device = &found.devices[0];
    let users: Vec<_> = device
        .users
        .iter()
        .map(|user| (user.volume.as_str(), user.part, user.over))
        .collect();
    let expected = [
        ("greedy", 0.3846, Some(0.3)),
        ("over", 0.1648, Some(0.05)),
        ("modest", 0.4396, Some(0.0)),
    ];
    assert_eq!(users, expected);
    assert_eq!(device.used, Some(0.91));
    assert_eq!(device.promised, Some(0.8));
    assert_eq!(device.waiting, 2.5, "50 waits of 50 ms in a second");
    // Without a ceiling: whoever moves most.
    let mut volumes = volumes;
    for volume in &mut volumes {
        (volume.promised_ns, volume.used_ns) = (None, 0);
    }
    volumes[3].write.bytes = 110 * 4096;
    volumes[3].write.operations = 1;
    let found = activity(&then, &look(2 * SECOND, false, volumes), &all());
    let device = &found.devices[0];
    assert_eq!((device.used, device.promised), (None, None));
    let first = &device.users[0];
    assert_eq!((first.volume.as_str(), first.part), ("quiet", 0.75));
    assert_eq!(first.over, None);
    assert_eq!(device.users.len(), USERS_MAX);
}

#[test]
fn nothing_has_no_sign() {
    let found = activity(
        &look(SECOND, true, vec![]),
        &look(2 * SECOND, true, vec![]),
        &all(),
    );
    let device = &found.devices[0];
    for part in [device.used, device.promised] {
        let part = part.expect("it is divided");
        assert!(part == 0.0 && part.is_sign_positive(), "{part:?}");
    }
}

#[test]
fn devices_and_cores_add_up() {
    let core = |number: u32, seconds: u64, writes| CoreLook {
        core: number,
        at_ns: seconds * SECOND + u64::from(number),
        busy_ns: seconds * SECOND / 4,
        spin_ns: seconds * SECOND / 10,
        devices: vec![DeviceLook {
            device: 0,
            write: marked(writes, 2 * MS),
            flush: marked(writes / 10, 5 * MS),
            ..DeviceLook::default()
        }],
        ..CoreLook::default()
    };
    let whole = |seconds, writes| Look {
        cores: vec![core(0, seconds, writes), core(1, seconds, writes)],
        ..look(0, false, Vec::new())
    };
    let found = activity(&whole(1, 100), &whole(3, 300), &all());
    let device = &found.devices[0];
    assert_eq!(device.write.per_second, 200.0);
    assert_eq!(device.flush.per_second, 20.0);
    assert_eq!(device.in_flight, 0.5, "800 ms and 200 ms of 2 s");
    let expected = |core| CoreActivity {
        core,
        busy: 0.25,
        spinning: 0.1,
    };
    assert_eq!(found.cores, [expected(0), expected(1)]);
    // The first look at a core that was not there: since it is.
    let found = activity(&Look::default(), &whole(2, 100), &all());
    assert_eq!(found.devices[0].write.per_second, 100.0);
}

/// Filesystems have rows of their own: what clients did with them, and what they used, in the order asked for.
#[test]
fn filesystems_are_told_of_beside_volumes() {
    let files = |number: u64, name: &str, seconds: u64| VolumeLook {
        read: marked(seconds * 10 * number, MS),
        write: marked(seconds * 20, 2 * MS),
        flush: marked(seconds * 3, MS),
        look: marked(seconds * 100, MS / 2),
        change: marked(seconds * 40, 8 * MS),
        under_way_ns: seconds * 423 * MS,
        waited: waited(seconds * 10, MS),
        used_ns: seconds * SECOND / 10,
        promised_ns: Some(SECOND / 4),
        ..VolumeLook::new(
            DvolId(number.into()),
            super::super::filesystem_name(name),
            0,
            Slo::default(),
        )
    };
    let at = |seconds: u64| {
        let mut look = look(seconds * SECOND, true, vec![volume(7, "home-disk")]);
        look.cores[0].filesystems = vec![
            files(1, "home", seconds),
            files(9, "work", seconds),
            files(2, "idle", 1),
        ];
        look
    };
    let found = activity(&at(1), &at(3), &all());
    assert_eq!((found.active_filesystem_count, found.active_count), (2, 0));
    let named = |found: &Activity| {
        let names = found.filesystems.iter().map(|files| files.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(named(&found), ["work", "home"], "who does most comes first");
    let home = &found.filesystems[1];
    let rates = [
        home.read.per_second,
        home.write.per_second,
        home.commit.per_second,
        home.look.per_second,
        home.change.per_second,
    ];
    assert_eq!(rates, [10.0, 20.0, 3.0, 100.0, 40.0]);
    assert_eq!(home.read.bytes_per_second, 40_960.0);
    assert_eq!(home.in_flight, 0.423);
    // 13 of 1 ms, 20 of 2 ms, 40 of 8 ms; looks are not among them.
    let latency = home.latency.expect("there were some");
    assert!(
        (8 * MS..10 * MS + 1).contains(&latency.p50_ns),
        "{latency:?}"
    );
    assert_eq!(latency.mean_ns, 373 * MS / 73);
    assert_eq!((home.used, home.promised), (Some(0.1), Some(0.25)));
    assert_eq!((home.waiting, home.slo_state), (0.01, SloState::Met));
    assert_eq!((home.device.as_str(), home.core), ("ssd", 0));
    let query = |prefix: &str, limit| ActivityQuery {
        prefix: Some(prefix.to_owned()),
        limit,
        ..all()
    };
    let found = activity(&at(1), &at(3), &query("ho", 20));
    assert_eq!(named(&found), ["home"]);
    let found = activity(&at(1), &at(3), &query("", 1));
    assert_eq!(
        (named(&found), found.active_filesystem_count),
        (vec!["work".to_owned()], 2)
    );
}

/// A device that hangs ends nothing: that is when somebody looks.
#[test]
fn what_never_ends_is_shown() {
    let mut stuck = VolumeLook {
        write: marked(100, MS),
        in_flight: 3,
        ..volume(1, "stuck")
    };
    let at = |seconds: u64, stuck: &VolumeLook| {
        let stuck = &VolumeLook {
            under_way_ns: seconds * stuck.in_flight * SECOND,
            ..stuck.clone()
        };
        let mut look = look(seconds * SECOND, false, vec![stuck.clone()]);
        let files = VolumeLook {
            name: super::super::filesystem_name("home"),
            ..stuck.clone()
        };
        look.cores[0].filesystems = vec![files];
        look
    };
    let found = activity(&at(1, &stuck), &at(2, &stuck), &all());
    assert_eq!((found.active_count, found.active_filesystem_count), (1, 1));
    assert_eq!(found.volumes[0].in_flight, 3.0);
    assert_eq!(found.filesystems[0].in_flight, 3.0);
    assert_eq!(found.filesystems[0].latency, None);
    stuck.in_flight = 0;
    let found = activity(&at(1, &stuck), &at(2, &stuck), &all());
    assert_eq!((found.active_count, found.active_filesystem_count), (0, 0));
}

/// Its changes of names count against the writes that it is limited to, so what it wrote doesn't say whether it is at its limit.
#[test]
fn a_filesystem_that_its_limit_holds_back_says_so() {
    let state = |limited_ns: u64| {
        let files = VolumeLook {
            change: marked(100, 10 * MS),
            limited_ns,
            promised_ns: Some(SECOND / 4),
            slo: Slo {
                limit: SloLimit {
                    writes: Some(100),
                    ..SloLimit::default()
                },
                ..Slo::default()
            },
            ..volume(1, &super::super::filesystem_name("home"))
        };
        let mut look = look(2 * SECOND, true, Vec::new());
        look.cores[0].filesystems = vec![files];
        let found = activity(&self::look(SECOND, true, Vec::new()), &look, &all());
        found.filesystems[0].slo_state
    };
    assert_eq!(state(SECOND / 2), SloState::Limited);
    assert_eq!(state(SECOND / 100), SloState::Met);
}

/// Who looks for what takes a device finds a filesystem there.
#[test]
fn filesystems_are_among_those_who_cause_load() {
    let used = |seconds: u64, part: u64, id: u64, name: &str| VolumeLook {
        used_ns: seconds * SECOND * part / 100,
        promised_ns: Some(SECOND / 4),
        ..VolumeLook::new(
            flagstone_types::DvolId(id.into()),
            name.to_owned(),
            0,
            Slo::default(),
        )
    };
    // The same number, which means nothing.
    let at = |seconds: u64| {
        let mut look = look(seconds * SECOND, true, vec![used(seconds, 20, 7, "disk")]);
        look.cores[0].filesystems =
            vec![used(seconds, 60, 7, &super::super::filesystem_name("home"))];
        look
    };
    let found = activity(&at(1), &at(3), &all());
    assert_eq!(names(&found), ["disk"]);
    let device = &found.devices[0];
    assert_eq!((device.used, device.promised), (Some(0.8), Some(0.5)));
    let users: Vec<_> = device.users.iter().collect();
    assert_eq!(users[0].volume, "filesystem home");
    assert_eq!((users[0].part, users[0].over), (0.75, Some(0.35)));
    assert_eq!((users[1].volume.as_str(), users[1].part), ("disk", 0.25));
}

#[test]
fn time_that_is_counted_late_is_not_more_than_there_is() {
    let at = |at_ns, busy_ns| Look {
        cores: vec![CoreLook {
            at_ns,
            busy_ns,
            ..CoreLook::default()
        }],
        ..Look::default()
    };
    let found = activity(&at(SECOND, 0), &at(2 * SECOND, SECOND + MS), &all());
    assert_eq!(found.cores[0].busy, 1.0);
}
