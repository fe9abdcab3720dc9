//! What goes on, on a real node.

use std::io::{Read, Write};

use flagstone::node::{
    Activity, ActivityQuery, CauseKind, DeviceCeiling, Explanation, NodeOptions, NoteKind,
    Schedule, ServerLook, Slo, SloLimit, SloState, activity, explanation,
};
use flagstone_types::checksum::crc32c;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::client::{Client, FLUSH, READ, WRITE};
use crate::file_slos::create as create_filesystem;
use crate::filesystems::with_nfs;
use crate::native::client::Native;
use crate::native::{addresses, listening, volume};
use crate::support::Scene;
use crate::volume_files::client::{FileSync, Files};
use crate::volume_files::exporting;

const MIB: u64 = 1 << 20;

fn ceiling(options: &mut NodeOptions) {
    options.devices[0].schedule = Schedule {
        ceiling: Some(DeviceCeiling {
            reads: 100_000,
            writes: 50_000,
            flushes: 0,
            bytes: 0,
            latency_us: 0,
        }),
        ..Schedule::default()
    };
}

/// What happens between two looks.
fn meanwhile(scene: &Scene, act: impl FnOnce()) -> Activity {
    let look = || scene.ask(|node| node.look()).expect("answered");
    let before = look();
    act();
    activity(&before, &look(), &ActivityQuery::default())
}

fn written(client: &mut Client, count: u64) {
    for number in 0..count {
        assert_eq!(client.write(number * 4096, &[1; 4096]), 0);
    }
}

/// How many times, of a rate.
fn times(found: &Activity, per_second: f64) -> f64 {
    let seconds = found.interval_ns as f64 / 1e9;
    let times = per_second * seconds;
    // Rates are in tenths.
    assert!(
        (times - times.round()).abs() < 0.1 + times / 100.0 + 0.05 * seconds,
        "{times} in {seconds} s"
    );
    times.round()
}

#[test]
fn operations_are_seen_where_they_happen() {
    let scene = Scene::with(ceiling);
    for name in ["busy", "calm", "other"] {
        scene.create(name, 8 * MIB).expect("created");
    }
    let (mut busy, mut calm) = (scene.attach("busy"), scene.attach("calm"));
    written(&mut busy, 10);
    let found = meanwhile(&scene, || {
        written(&mut busy, 60);
        assert_eq!(busy.call(FLUSH, 0, 0).0, 0);
        for number in 0..20 {
            assert_eq!(busy.call(READ, number * 4096, 4096).0, 0);
        }
        written(&mut calm, 3);
        // Beyond the end.
        assert_ne!(calm.call(READ, 9 * MIB, 4096).0, 0);
    });
    assert_eq!(found.active_count, 2, "{found:?}");
    let [first, second] = &found.volumes[..] else {
        panic!("two volumes: {found:?}");
    };
    assert_eq!(
        (first.name.as_str(), second.name.as_str()),
        ("busy", "calm")
    );
    assert_eq!(times(&found, first.write.per_second), 60.0);
    assert_eq!(times(&found, first.read.per_second), 20.0);
    assert_eq!(times(&found, first.flush.per_second), 1.0);
    assert_eq!(times(&found, second.write.per_second), 3.0);
    assert!(first.latency.is_some() && first.waited.is_some());
    assert!(first.in_flight > 0.0 && first.in_flight <= 1.0, "{first:?}");
    assert_eq!(first.slo_state, SloState::Met);
    // 20 reads and 60 writes of some 10 and 20 us, and what a flush and journals cost nobody here.
    let used_us = first.used.expect("divided") * found.interval_ns as f64 / 1e3;
    assert!((1_300.0..1_500.0).contains(&used_us), "{used_us}");
    let promised = first.promised.expect("divided");
    assert!((0.45..0.5).contains(&promised), "half of it: {promised}");
    let device = &found.devices[0];
    assert_eq!(device.name, "main");
    assert!(times(&found, device.flush.per_second) >= 1.0);
    assert!(device.write.per_second >= first.write.per_second / 60.0);
    assert_eq!(device.users[0].volume, "busy");
    let core = found.cores[0];
    assert!(core.busy > 0.0 && core.busy <= 1.0, "{core:?}");
    let nothing = meanwhile(&scene, || {});
    assert!(nothing.volumes.is_empty(), "{:?}", nothing.volumes);
}

#[test]
fn what_nfs_clients_do_is_seen_by_filesystem() {
    let scene = Scene::with(with_nfs);
    for name in ["home", "other"] {
        create_filesystem(&scene, name, Slo::default()).expect("made");
    }
    let mut home = Files::try_mount(&scene, "/home").expect("mounted");
    let mut other = Files::try_mount(&scene, "/other").expect("mounted");
    let file = home.create("file").expect("made");
    let found = meanwhile(&scene, || {
        for number in 0..30 {
            let written = home.write(&file, number * 4096, &[7; 4096], FileSync);
            written.expect("written");
        }
        for number in 0..20 {
            let read = home.read(&file, number * 4096, 4096);
            assert_eq!(read.expect("read").0, [7; 4096]);
        }
        for _ in 0..10 {
            home.attributes(&file).expect("there");
        }
        for number in 0..5 {
            assert_eq!(home.make_directory(&format!("{number}")), 0);
        }
        assert_eq!(other.make_directory("one"), 0);
    });
    assert_eq!((found.active_count, found.active_filesystem_count), (0, 2));
    let [first, second] = &found.filesystems[..] else {
        panic!("two filesystems: {found:?}");
    };
    assert_eq!(
        (first.name.as_str(), second.name.as_str()),
        ("home", "other")
    );
    assert_eq!(times(&found, first.write.per_second), 30.0);
    assert_eq!(times(&found, first.read.per_second), 20.0);
    assert_eq!(times(&found, first.change.per_second), 5.0);
    assert!(times(&found, first.look.per_second) >= 10.0);
    assert_eq!(times(&found, second.change.per_second), 1.0);
    let bytes = first.read.bytes_per_second * found.interval_ns as f64 / 1e9;
    assert!((bytes - 81_920.0).abs() < 1_000.0, "{bytes}");
    assert!(first.latency.is_some() && first.waited.is_none());
    assert_eq!((first.device.as_str(), first.core), ("main", 0));
    assert_eq!(first.slo_state, SloState::Undivided);
    // Also where nothing is divided it is seen whose load it is.
    assert_eq!(found.devices[0].users[0].volume, "filesystem home");
}

#[test]
fn volumes_of_all_cores_are_seen() {
    let scene = Scene::with_two_cores();
    let names: Vec<String> = (0..4).map(|number| format!("disk-{number}")).collect();
    for name in &names {
        scene.create(name, 8 * MIB).expect("created");
    }
    let mut clients: Vec<Client> = names.iter().map(|name| scene.attach(name)).collect();
    let found = meanwhile(&scene, || {
        for client in &mut clients {
            written(client, 5);
        }
    });
    let mut cores: Vec<(&str, u32)> = found
        .volumes
        .iter()
        .map(|volume| (volume.name.as_str(), volume.core))
        .collect();
    cores.sort_unstable();
    assert_eq!(cores.len(), 4);
    for core in 0..2 {
        assert!(cores.iter().any(|(_, of)| *of == core), "{cores:?}");
    }
    assert_eq!(times(&found, found.write.per_second), 20.0);
    assert_eq!(found.devices[0].used, None, "there is no ceiling");
    assert_eq!(found.volumes[0].slo_state, SloState::Undivided);
}

/// Beyond the number of volumes that are looked at in one go.
#[test]
fn none_of_many_volumes_is_missed() {
    let scene = Scene::new();
    for number in 0..70 {
        scene.create(&format!("v{number}"), MIB).expect("created");
        written(&mut scene.attach(&format!("v{number}")), 1);
    }
    let look = scene.ask(|node| node.look()).expect("answered");
    assert_eq!(look.cores[0].volumes.len(), 70);
}

/// Why a volume is as slow as it is while this happens.
fn explained(scene: &Scene, volume: &str, act: impl FnOnce()) -> Explanation {
    let look = || scene.ask(|node| node.look()).expect("answered");
    let before = look();
    act();
    explanation(&before, &look(), &scene.show(volume).expect("there"))
}

#[test]
fn what_a_volume_waits_for_is_told() {
    let scene = Scene::with(ceiling);
    scene.create("disk", 8 * MIB).expect("created");
    let mut client = scene.attach("disk");
    written(&mut client, 64);
    let limited = Slo {
        limit: SloLimit {
            reads: Some(200),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let change = scene.ask(|node| node.set_slo("disk".to_owned(), limited, false));
    change.expect("changed");
    // All at once: some go on, the others one every five milliseconds.
    let ranges: Vec<(u64, u32)> = (0..60).map(|number| (number * 4096, 4096)).collect();
    let found = explained(&scene, "disk", || {
        client.submit_many(READ, &ranges);
        for _ in &ranges {
            assert_eq!(client.answer().0, 0);
            let data = client.stream.read_exact(&mut [0; 4096]);
            data.expect("what was read");
        }
    });
    let first = &found.causes[0];
    assert_eq!(first.kind, CauseKind::Turn, "{found:?}");
    assert!(
        first.says.contains("its own limit (reads=200)"),
        "{found:?}"
    );
    let sum: f64 = found.causes.iter().map(|cause| cause.part).sum();
    assert!(sum <= 1.001, "{found:?}");
}

#[test]
fn flushes_errors_and_idle_clients_are_told() {
    let scene = Scene::new();
    scene.create("disk", 8 * MIB).expect("created");
    let nothing = explained(&scene, "disk", || {});
    assert!(nothing.causes.is_empty(), "{nothing:?}");
    // Two looks so close to each other may find the core busy with them.
    assert_eq!(nothing.notes[0].kind, NoteKind::Client, "{nothing:?}");
    assert_eq!(
        (nothing.volume.name.as_str(), nothing.volume.device.as_str()),
        ("disk", "main")
    );
    let mut client = scene.attach("disk");
    let found = explained(&scene, "disk", || {
        for _ in 0..20 {
            written(&mut client, 1);
            assert_eq!(client.call(FLUSH, 0, 0).0, 0);
        }
    });
    let kinds: Vec<_> = found.causes.iter().map(|cause| cause.kind).collect();
    assert!(kinds.contains(&CauseKind::Flush), "{found:?}");
    let look = scene.ask(|node| node.look()).expect("answered");
    let volume = &look.cores[0].volumes[0];
    assert_eq!(volume.in_flight, 0);
    let sums = [&volume.write, &volume.flush].map(|kind| kind.operations);
    assert_eq!(sums, [20, 20]);
    assert!(volume.occupied_ns > 0 && volume.occupied_ns < look.cores[0].at_ns);
    let nbd = look.cores[0].nbd;
    assert_eq!(nbd.commands, 40);
    assert!(nbd.operations_ns >= volume.occupied_ns, "{nbd:?}");
    assert!(nbd.commands_ns >= nbd.operations_ns, "{nbd:?}");
    assert_eq!(look.cores[0].native, ServerLook::default());
}

/// Operations of the volume "held", which wait for its limit: half a second and more.
fn much_by_nbd(scene: &Scene) {
    let mut client = scene.attach("held");
    client.submit_many(READ, &[(0, 4096); 12]);
    for _ in 0..12 {
        assert_eq!(client.answer().0, 0);
        client.data(4096);
    }
}

fn much_natively((native, held): (&mut Native, VolumeNo)) {
    for _ in 0..12 {
        let head = RequestHeader {
            volume: held,
            len_bytes: 4096,
            ..RequestHeader::of(Operation::Read)
        };
        native.send(head, &[], &[]);
    }
    for _ in 0..12 {
        assert_eq!(native.receive().expect("an answer").status(), Status::Ok);
    }
}

fn much_by_files(scene: &Scene) {
    let mut files = Files::mount(scene);
    let held = files.find("held");
    for _ in 0..12 {
        files.read(&held, 0, 4096).expect("read");
    }
}

/// A command whose data come late, and meanwhile that.
fn slow_by_nbd(scene: &Scene, meanwhile: impl FnOnce()) {
    let mut client = scene.attach("slow");
    client.submit(WRITE, 0, 4096, &[]);
    meanwhile();
    client.stream.write_all(&[1; 4096]).expect("sent");
    assert_eq!(client.answer().0, 0);
}

fn slow_natively((native, slow): (&mut Native, VolumeNo), meanwhile: impl FnOnce()) {
    let data = [1; 4096];
    let mut head = RequestHeader {
        volume: slow,
        number: native.next,
        payload_bytes: data.len() as u32,
        payload_crc: crc32c(&data),
        ..RequestHeader::of(Operation::Write)
    };
    head.set_body(&[]);
    native.next += 1;
    native.stream.write_all(&head.encode()).expect("sent");
    meanwhile();
    native.stream.write_all(&data).expect("sent");
    assert_eq!(native.receive().expect("an answer").status(), Status::Ok);
}

/// However long operations take that are asked for otherwise.
#[test]
fn time_in_front_of_operations_is_told_by_protocol() {
    let scene = Scene::with(|options| {
        listening(options);
        exporting(options);
    });
    let tokens = ["slow", "held"].map(|name| volume(&scene, name, None));
    let limited = Slo {
        limit: SloLimit {
            reads: Some(20),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let change = scene.ask(|node| node.set_slo("held".to_owned(), limited, false));
    change.expect("changed");
    let address = addresses(&scene)[0];
    let (mut native, mut other) = (Native::connect(address), Native::connect(address));
    let slow = native.opened("slow", &tokens[0], 0);
    let held = other.opened("held", &tokens[1], 0);
    let noted = |act: &mut dyn FnMut()| {
        let found = explained(&scene, "slow", act);
        let notes = found.notes.into_iter();
        let notes = notes.filter(|note| note.kind == NoteKind::Gateway);
        notes.map(|note| note.says).collect::<Vec<_>>()
    };
    let by_nbd = "a command of NBD on core 0";
    let natively = "a request of the native protocol on core 0";
    let found = [
        (
            by_nbd,
            noted(&mut || slow_by_nbd(&scene, || much_natively((&mut other, held)))),
        ),
        (
            by_nbd,
            noted(&mut || slow_by_nbd(&scene, || much_by_files(&scene))),
        ),
        (
            natively,
            noted(&mut || slow_natively((&mut native, slow), || much_by_nbd(&scene))),
        ),
        (
            natively,
            noted(&mut || slow_natively((&mut native, slow), || much_by_files(&scene))),
        ),
    ];
    for (by, notes) in found {
        assert_eq!(notes.len(), 1, "{by}: {notes:?}");
        assert!(notes[0].contains(by), "{by}: {notes:?}");
    }
    assert!(noted(&mut || much_natively((&mut other, held))).is_empty());
    assert!(noted(&mut || much_by_nbd(&scene)).is_empty());
}
