//! SLOs of volumes and schedules of devices, on a real node.

#![expect(clippy::disallowed_methods, reason = "a real node takes real time")]

use std::time::{Duration, Instant};

use flagstone::metrics::render;
use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{
    NodeError, NodeErrorKind, NodeOptions, Rates, Schedule, SchedulePolicy, Slo, SloLimit,
    SloPromise, VolumeInfo, VolumeSpec,
};

use crate::client::{Client, NO_HOLE, READ, WRITE, ZEROES};
use crate::native::client::Native;
use crate::native::{addresses, listening, volume as native_volume};
use crate::support::Scene;

const MIB: u64 = 1 << 20;

fn schedule(ceiling: &str, policy: SchedulePolicy) -> Schedule {
    Schedule {
        ceiling: Some(ceiling.parse().expect(ceiling)),
        policy,
        ..Schedule::default()
    }
}

/// 1,000 reads or 500 writes a second.
fn slow(options: &mut NodeOptions) {
    options.devices[0].schedule = schedule("reads=1000 writes=500", SchedulePolicy::Deficit);
}

fn floor(reads: u64, writes: u64) -> Slo {
    Slo {
        promise: SloPromise::Floor(Rates { reads, writes }),
        limit: SloLimit::default(),
    }
}

fn share(parts: u32) -> Slo {
    Slo {
        promise: SloPromise::Share(parts),
        limit: SloLimit::default(),
    }
}

fn limited(reads: u64) -> Slo {
    Slo {
        promise: SloPromise::default(),
        limit: SloLimit {
            reads: Some(reads),
            ..SloLimit::default()
        },
    }
}

fn create(scene: &Scene, name: &str, slo: Slo) -> Result<VolumeInfo, NodeError> {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 * MIB,
        reserve: Default::default(),
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo,
        oversubscribe: false,
    };
    scene
        .ask(|node| node.create_volume(spec))
        .map(|created| created.volume)
}

fn set(scene: &Scene, name: &str, slo: Slo, oversubscribe: bool) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.set_slo(name.to_owned(), slo, oversubscribe))
}

fn set_schedule(scene: &Scene, schedule: Schedule) -> Result<Option<f64>, NodeError> {
    let set = scene.ask(|node| node.set_schedule("main".to_owned(), schedule));
    set.map(|device| device.promised)
}

fn kind<T>(result: Result<T, NodeError>) -> Option<NodeErrorKind> {
    result.err().map(|error| error.kind)
}

#[test]
fn an_slo_lives_as_long_as_its_volume() {
    let scene = Scene::with(slow);
    create(&scene, "floor", floor(100, 10)).expect("created");
    create(&scene, "plain", Slo::default()).expect("created");
    let both = Slo {
        promise: SloPromise::Share(7),
        limit: SloLimit {
            writes: Some(5),
            bytes: Some(1 << 30),
            reads: None,
        },
    };
    set(&scene, "plain", both, false).expect("changed");
    // A snapshot doesn't keep it, and a volume that is rolled back keeps its own.
    let snapshot = SnapshotRef::new("floor", "s").expect("a name");
    scene
        .ask(|node| node.create_snapshots(vec![snapshot.clone()]))
        .expect("taken");
    set(&scene, "floor", floor(200, 20), false).expect("changed");
    let rolled = scene.ask(|node| node.rollback_volume(snapshot));
    assert_eq!(rolled.expect("rolled back").slo, floor(200, 20));
    let source = SourceRef {
        volume: "floor".to_owned(),
        snapshot: None,
    };
    let cloned = scene.ask(|node| node.clone_volume(source, "clone".to_owned()));
    assert_eq!(
        cloned.expect("cloned").slo,
        Slo::default(),
        "nobody was asked whether there is room for a second one"
    );
    let scene = scene.restart(slow);
    for (name, slo) in [
        ("floor", floor(200, 20)),
        ("plain", both),
        ("clone", Slo::default()),
    ] {
        assert_eq!(scene.show(name).expect("there").slo, slo, "{name}");
    }
    scene
        .ask(|node| node.rename_volume("plain".to_owned(), "fancy".to_owned()))
        .expect("renamed");
    assert_eq!(scene.show("fancy").expect("there").slo, both);
    set(&scene, "fancy", Slo::default(), false).expect("changed");
    let scene = scene.restart(slow);
    assert_eq!(scene.show("fancy").expect("there").slo, Slo::default());
}

#[test]
fn more_is_not_promised_than_there_is() {
    let scene = Scene::with(slow);
    // 911 reads a second can be promised: a 32nd is kept, a twentieth is the background's, and a hundredth of the rest is for
    // shares.
    create(&scene, "a", floor(500, 0)).expect("half of it");
    create(&scene, "b", floor(0, 200)).expect("two fifths");
    let error = create(&scene, "c", floor(100, 0)).expect_err("too much");
    assert_eq!(error.kind, NodeErrorKind::NoSpace);
    assert!(error.found.contains("which is 11 reads/s"), "{error}");
    assert_eq!(kind(scene.show("c")), Some(NodeErrorKind::NotFound));
    create(&scene, "c", floor(11, 0)).expect("the rest");
    create(&scene, "d", share(100)).expect("shares always fit");
    let refused = set(&scene, "d", floor(1, 0), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    assert_eq!(scene.show("d").expect("there").slo, share(100));
    set(&scene, "a", floor(499, 0), false).expect("its own is not in its way");
    set(&scene, "d", floor(1, 0), false).expect("now there is room");
    set(&scene, "d", floor(600, 0), true).expect("as confirmed");
    // It has more than there is by now: it keeps that without a further word, or less, and gets no more where it needn't.
    let held = Slo {
        limit: limited(600).limit,
        ..floor(600, 0)
    };
    set(&scene, "d", held, false).expect("a limit asks for nothing");
    let refused = set(&scene, "d", floor(601, 0), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    let refused = set(&scene, "d", floor(599, 1), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace), "a write more");
    set(&scene, "d", floor(600, 0), false).expect("as it was");
    let device = |scene: &Scene| scene.ask(|node| node.show_device("main".to_owned()));
    let promised = device(&scene).expect("there").promised;
    assert!(promised.is_some_and(|part| part > 1.6), "{promised:?}");
    // Also of what was promised before a restart.
    let scene = scene.restart(slow);
    assert_eq!(device(&scene).expect("there").promised, promised);
    scene
        .ask(|node| node.delete_volume("d".to_owned(), false))
        .expect("deleted");
    let refused = create(&scene, "e", floor(2, 0));
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    create(&scene, "e", floor(1, 0)).expect("what it had is free");

    for nonsense in [
        floor(0, 0),
        share(0),
        Slo {
            limit: SloLimit {
                bytes: Some(0),
                ..SloLimit::default()
            },
            ..Slo::default()
        },
    ] {
        let refused = set(&scene, "e", nonsense, true);
        assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
        let refused = create(&scene, "f", nonsense);
        assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    }
}

#[test]
fn without_a_ceiling_there_is_nothing_to_promise() {
    let scene = Scene::new();
    let error = create(&scene, "a", floor(1, 0)).expect_err("of what?");
    assert_eq!(error.kind, NodeErrorKind::InvalidArgument);
    assert!(error.to_string().contains("device schedule"), "{error}");
    create(&scene, "a", limited(5000)).expect("a limit needs none");
    let ceiling = schedule("reads=1000 writes=500", SchedulePolicy::Strict);
    assert_eq!(set_schedule(&scene, ceiling).expect("set"), Some(0.0));
    set(&scene, "a", floor(1, 0), false).expect("now there is one");
    assert_eq!(
        set_schedule(&scene, Schedule::default()).expect("set"),
        None
    );
    let nonsense = Schedule {
        ceiling: Some(flagstone::node::DeviceCeiling {
            reads: 0,
            writes: 5,
            flushes: 0,
            bytes: 0,
            latency_us: 0,
        }),
        ..Schedule::default()
    };
    let refused = set_schedule(&scene, nonsense);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    let greedy = Schedule {
        background_percent: 51,
        ..ceiling
    };
    let refused = set_schedule(&scene, greedy);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    let unknown = scene.ask(|node| node.set_schedule("none".to_owned(), Schedule::default()));
    assert_eq!(kind(unknown), Some(NodeErrorKind::NotFound));
}

/// What it was promised stays with it, and can't be kept: that is said, and is no reason to let it take whatever it likes.
#[test]
fn a_floor_without_a_ceiling_keeps_no_limit_from_being_set() {
    let scene = Scene::with(slow);
    create(&scene, "vm", floor(100, 10)).expect("created");
    assert_eq!(scene.show("vm").expect("there").slo_warning, None);
    let both = Slo {
        limit: limited(150).limit,
        ..floor(100, 10)
    };
    let below = Slo {
        limit: limited(50).limit,
        ..floor(100, 10)
    };
    set_schedule(&scene, Schedule::default()).expect("set");
    let is_told = |info: VolumeInfo| {
        let warning = info.slo_warning.expect("a warning");
        assert!(
            warning.contains("device 'main' has no ceiling"),
            "{warning}"
        );
    };
    is_told(scene.show("vm").expect("there"));
    is_told(set(&scene, "vm", both, false).expect("a limit"));
    let refused = set(&scene, "vm", below, false);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    // Nor may it have more than it has.
    let refused = set(&scene, "vm", floor(101, 10), true);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    let scene = scene.restart(|_| {});
    assert_eq!(scene.show("vm").expect("there").slo, both);
    is_told(set(&scene, "vm", floor(100, 5), false).expect("less"));
    let info = set(&scene, "vm", limited(50), false).expect("a share");
    assert_eq!(info.slo_warning, None, "nothing is promised");
    let refused = set(&scene, "vm", floor(100, 5), false);
    assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    // More than the device has, all floors together.
    let scene = scene.restart(slow);
    create(&scene, "other", floor(900, 0)).expect("created");
    let info = set(&scene, "vm", floor(100, 0), true).expect("as confirmed");
    let warning = info.slo_warning.expect("a warning");
    assert!(warning.contains("all get less"), "{warning}");
}

/// A node says so as long as it is so: what was promised isn't kept.
#[test]
fn a_ceiling_that_is_not_kept_is_told() {
    let scene = Scene::with(slow);
    let told = |scene: &Scene| {
        let notices = scene.ask(|node| node.info()).expect("told").notices;
        let is_about = |notice: &&String| notice.contains("ceiling of device 'main' is not kept");
        notices.iter().filter(is_about).count()
    };
    assert_eq!(told(&scene), 0);
    let first_come = schedule("reads=1000 writes=500", SchedulePolicy::FirstCome);
    set_schedule(&scene, first_come).expect("set");
    assert_eq!(told(&scene), 1);
    let no_ceiling = Schedule {
        ceiling: None,
        ..first_come
    };
    set_schedule(&scene, no_ceiling).expect("set");
    assert_eq!(told(&scene), 0, "nothing is divided");
    let scene = scene.restart(|options| options.devices[0].schedule = first_come);
    assert_eq!(told(&scene), 1);
}

/// How long so many requests take, one after the other.
fn time(client: &mut Client, command: u16, count: u32) -> Duration {
    let began = Instant::now();
    for number in 0..count {
        let at = u64::from(number % 64) * 4096;
        let error = match command {
            WRITE => client.write(at, &[7; 4096]),
            _ => client.call(READ, at, 4096).0,
        };
        assert_eq!(error, 0);
    }
    began.elapsed()
}

/// Device time that the volume `disk` has used.
fn device_seconds(scene: &Scene) -> f64 {
    let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
    let name = "flagstone_volume_device_seconds_total{volume=\"disk\"}";
    let row = text.lines().find(|line| line.starts_with(name));
    let value = row.and_then(|row| row.rsplit_once(' '));
    let value = value.and_then(|(_, v)| v.parse::<f64>().ok());
    value.expect("a number")
}

/// Sixteen blocks that don't lie together are sixteen reads for the device, and what is paid for.
#[test]
fn a_read_costs_what_it_takes_of_the_device() {
    let scene = Scene::new();
    create(&scene, "disk", Slo::default()).expect("created");
    let ceiling: flagstone::node::DeviceCeiling = "reads=10000 writes=10000 bytes=400M"
        .parse()
        .expect("a ceiling");
    let divided = Schedule {
        ceiling: Some(ceiling),
        ..Schedule::default()
    };
    set_schedule(&scene, divided).expect("set");
    let mut client = scene.attach("disk");
    assert_eq!(client.write(0, &[1; 16 * 4096]), 0);
    // Each second block, so that no two lie together.
    assert_eq!(client.write(MIB, &[1; 32 * 4096]), 0);
    for block in 0..16 {
        assert_eq!(client.write(MIB + 2 * block * 4096, &[2; 4096]), 0);
    }
    let used = || device_seconds(&scene);
    // 18 writes, one of them in two parts, of 64 blocks at 90 and 10 us. All of it is known at once, though nothing is asked for any more.
    let written = used();
    assert!((0.0023..0.0024).contains(&written), "{written}");
    let mut cost = |at: u64, blocks: u32, expected: std::ops::Range<f64>| {
        let before = used();
        for _ in 0..20 {
            assert_eq!(client.call(READ, at, blocks * 4096).0, 0);
        }
        let more = used() - before;
        assert!(expected.contains(&more), "{more} is used, not {expected:?}");
    };
    // 1 operation and 16 blocks each, at 90 and 10 us; then 31 operations and 31 blocks; then a hole.
    cost(0, 16, 0.0045..0.0055);
    cost(MIB, 31, 0.06..0.064);
    cost(4 * MIB, 16, 0.0..0.0001);
}

/// Each part waits for its own turn, and what comes of it is the whole.
#[test]
fn large_reads_wait_for_their_turn_in_parts() {
    let scene = Scene::with(listening);
    let token = native_volume(&scene, "disk", None);
    let mut client = scene.attach("disk");
    let bytes: Vec<u8> = (0..2 * MIB).map(|at| (at * 7 + at / 4096) as u8).collect();
    assert_eq!(client.write(0, &bytes), 0);
    let value = |name: &str| {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let row = text.lines().find_map(|line| line.strip_prefix(name));
        row.map_or(0, |value| value.trim().parse::<u64>().expect("a count"))
    };
    let reads = || value("flagstone_device_operations_total{device=\"main\",op=\"read\"}");
    let waits = || value("flagstone_volume_wait_seconds_count{volume=\"disk\"}");
    let range = |from: u64, len: u64| &bytes[from as usize..(from + len) as usize];
    let (from, len) = (1000, MIB + 5000);
    let before = reads();
    assert!(client.call(READ, from, len as u32).1 == range(from, len));
    assert!(
        reads() <= before + 4,
        "nothing is divided, so nothing is cut"
    );
    // A 32nd of the window is less than that, but no part has less than 64 KiB.
    let ceiling = schedule("reads=4000 writes=4000", SchedulePolicy::Deficit);
    set_schedule(&scene, ceiling).expect("set");
    // From the second request on, at the latest, the core knows.
    let settled = |client: &mut Client| {
        for _ in 0..500 {
            let before = reads();
            assert!(client.call(READ, from, len as u32).1 == range(from, len));
            if reads() >= before + 17 {
                return;
            }
        }
        panic!("it is not cut into seventeen parts");
    };
    settled(&mut client);
    let mut native = Native::connect(addresses(&scene)[0]);
    let disk = native.opened("disk", &token, 0);
    let (before, waited) = (reads(), waits());
    let began = Instant::now();
    let answer = native.read(disk, from, len);
    let took_us = began.elapsed().as_micros();
    assert!(answer.payload == range(from, len));
    assert!(reads() >= before + 17, "{} reads", reads() - before);
    // It waited once, and no longer than it took, though its parts waited side by side.
    assert_eq!(waits(), waited + 1);
    let waited_us = u128::from(answer.head.waited_us);
    assert!(
        (20_000..=took_us).contains(&waited_us),
        "{waited_us} of {took_us} us"
    );
    let before = reads();
    assert!(native.read(disk, 0, 65_536).payload == range(0, 65_536));
    assert!(reads() <= before + 2);
}

/// Each part waits for its own turn and is charged for itself, and what comes of it is the whole: of zeros that take space, too.
#[test]
fn large_writes_wait_for_their_turn_in_parts() {
    let scene = Scene::new();
    create(&scene, "disk", Slo::default()).expect("created");
    let ceiling = "reads=10000 writes=10000 bytes=409600000";
    set_schedule(&scene, schedule(ceiling, SchedulePolicy::Deficit)).expect("set");
    let mut client = scene.attach("disk");
    let mut expected: Vec<u8> = (0..2 * MIB).map(|at| (at * 7 + at / 4096) as u8).collect();
    assert_eq!(client.write(0, &expected), 0);
    let waits = || {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let name = "flagstone_volume_wait_seconds_count{volume=\"disk\"}";
        let row = text.lines().find_map(|line| line.strip_prefix(name));
        row.map_or(0, |value| value.trim().parse::<u64>().expect("a count"))
    };
    let (from, len) = (1000, MIB as usize + 5000);
    let new: Vec<u8> = (0..len).map(|at| (at * 3 + at / 4096 + 1) as u8).collect();
    let zeros = vec![0; 512 << 10];
    type Change<'a> = (usize, &'a [u8], Box<dyn Fn(&mut Client) -> u32 + 'a>, f64);
    let changes: [Change<'_>; 2] = [
        // 258 blocks in 17 parts, at 90 us and 10.
        (
            from,
            &new,
            Box::new(|client| client.write(from as u64, &new)),
            0.001_53 + 0.002_58,
        ),
        // 129 blocks in 9 parts.
        (
            300_000,
            &zeros,
            Box::new(|client| client.call_with(NO_HOLE, ZEROES, 300_000, 512 << 10)),
            0.000_81 + 0.001_29,
        ),
    ];
    for (at, bytes, change, costs) in changes {
        let (used, waited) = (device_seconds(&scene), waits());
        assert_eq!(change(&mut client), 0);
        let used = device_seconds(&scene) - used;
        assert!(
            (costs - 0.000_15..costs + 0.000_15).contains(&used),
            "{used}"
        );
        assert_eq!(waits(), waited + 1, "it waited once");
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        assert!(client.call(READ, 0, 2 * MIB as u32).1 == expected);
    }
}

/// What holds requests back can only make them take longer, so these times have a lower bound on any machine.
#[test]
fn limits_and_ceilings_hold_clients_back_and_let_them_go_again() {
    let scene = Scene::new();
    create(&scene, "disk", Slo::default()).expect("created");
    let mut client = scene.attach("disk");
    time(&mut client, WRITE, 64);
    set(&scene, "disk", limited(200), false).expect("changed");
    // 20 ms of it at once, then 5 ms each.
    assert!(time(&mut client, READ, 40) > Duration::from_millis(150));
    set(&scene, "disk", Slo::default(), false).expect("changed");
    let ceiling = schedule("reads=400 writes=200", SchedulePolicy::Deficit);
    set_schedule(&scene, ceiling).expect("set");
    // 400 ms, but for those within the two milliseconds in which a core has not looked yet.
    let took = time(&mut client, READ, 160);
    assert!(took > Duration::from_millis(150), "{took:?}");
    assert!(time(&mut client, WRITE, 40) > Duration::from_millis(150));
    let value_of = |name: &str| -> f64 {
        let text = render(&scene.ask(|node| node.metrics()).expect("answered"), "0");
        let row = text.lines().find(|line| line.starts_with(name));
        let value = row.and_then(|row| row.rsplit_once(' '));
        value.and_then(|(_, v)| v.parse().ok()).unwrap_or(-1.0)
    };
    let of_disk = |name: &str| value_of(&format!("{name}{{volume=\"disk\"}}"));
    // A hole costs the device nothing, where data would cost a second.
    let before = of_disk("flagstone_volume_device_seconds_total");
    for _ in 0..400 {
        client.call(READ, 4 * MIB, 4096);
    }
    let holes = of_disk("flagstone_volume_device_seconds_total") - before;
    assert!(holes < 0.01, "{holes} s");
    let data = time(&mut client, READ, 400);
    assert!(data > Duration::from_millis(400), "{data:?}");
    assert!(of_disk("flagstone_volume_wait_seconds_count") >= 1040.0);
    assert!(of_disk("flagstone_volume_device_seconds_total") - before > 0.9);
    let promised = of_disk("flagstone_volume_promised_ratio");
    // But for what is kept and what the background is promised.
    assert!((0.91..0.93).contains(&promised), "{promised}");
    let own = value_of("flagstone_device_background_used_seconds_total{device=\"main\"}");
    assert!(own >= 0.0, "it is there: {own}");
    assert!(of_disk("flagstone_volume_slo_missed_seconds_total") >= 0.0);
    set_schedule(&scene, Schedule::default()).expect("set");
    let waited = of_disk("flagstone_volume_wait_seconds_count");
    time(&mut client, READ, 400);
    assert_eq!(
        of_disk("flagstone_volume_wait_seconds_count"),
        waited,
        "nobody waits"
    );
}

/// Who comes and goes with each request has used what he has used: also when nobody has had the volume open for longer than it is kept for him.
#[test]
fn a_limit_outlasts_those_who_come_and_go() {
    const BYTES: u64 = 8192;
    let scene = Scene::with(|_| {});
    let limit = Slo {
        promise: SloPromise::default(),
        limit: SloLimit {
            bytes: Some(BYTES),
            ..SloLimit::default()
        },
    };
    create(&scene, "vm", limit).expect("created");
    let began = Instant::now();
    // Sixteen seconds of its limit, which it may begin at once.
    assert_eq!(scene.attach("vm").write(0, &[1; 128 << 10]), 0);
    std::thread::sleep(Duration::from_secs(11).saturating_sub(began.elapsed()));
    assert_eq!(scene.attach("vm").write(0, &[2; 4096]), 0);
    let took = began.elapsed();
    assert!(took > Duration::from_secs(14), "{took:?}");
}
