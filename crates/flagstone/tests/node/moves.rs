//! Volumes are moved between devices and cores while clients use them.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    DeviceOptions, MoveInfo, MoveSpec, MoveState, NodeError, NodeErrorKind, NodeOptions,
    Reservation, RotateSpec, Slo, SloLimit, SnapshotSchedule, VolumeSpec,
};
use flagstone::offline::FormatOptions;
use flagstone_wire::Status;
use flagstone_wire::operation::flag;

use crate::client::{self, Client};
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::{Folder, Scene};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// How often a volume goes to and fro until something that is on its way meets a move.
const MOVES: usize = 40;

/// A node with two cores and two devices, on which the native protocol is served.
pub(crate) fn scene(other: &Folder) -> Scene {
    let path = other.path.join("other.img");
    let format = FormatOptions {
        size_bytes: Some(2 << 30),
        force: false,
        sparse: true,
    };
    flagstone::offline::format(&path, &format).expect("formatted");
    Scene::start(2 << 30, |options| change(options, other)).expect("a node")
}

fn change(options: &mut NodeOptions, other: &Folder) {
    options.cores = Some(2);
    listening(options);
    options.devices.push(DeviceOptions {
        name: "other".to_owned(),
        path: other.path.join("other.img"),
        expected_size_bytes: None,
        layers: Vec::new(),
        schedule: Default::default(),
    });
}

pub(crate) fn to(device: Option<&str>, core: Option<u32>) -> MoveSpec {
    MoveSpec {
        device: device.map(str::to_owned),
        core,
        ..MoveSpec::default()
    }
}

/// A volume of so many MiB.
fn sized(name: &str, device: &str, mib: u64) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: mib * MIB,
        reserve: Reservation::None,
        device: Some(device.to_owned()),
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Slo::default(),
        oversubscribe: false,
    }
}

/// Moves a volume and waits for the end of that.
pub(crate) fn moved(scene: &Scene, name: &str, spec: MoveSpec) -> MoveInfo {
    let begun = scene.ask(|node| node.move_volume(name.to_owned(), spec));
    begun.expect("begins");
    ended(scene, name)
}

/// One of the node's own metrics.
pub(crate) fn metric(scene: &Scene, name: &str) -> f64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let found = metrics.more.iter().find(|one| one.name == name);
    found.expect("there is one of that name").value
}

pub(crate) fn ended(scene: &Scene, name: &str) -> MoveInfo {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let info = scene.ask(|node| node.show_move(name.to_owned()));
        let info = info.expect("is known");
        if info.state != MoveState::Running {
            return info;
        }
        assert!(Instant::now() < until, "it doesn't end: {info:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Writes blocks of its own again and again and reads each back; every answer has to be right.
pub(crate) fn use_it(mut client: Client, first: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut number = 1 << 32 | first;
    while !stop.load(Ordering::Relaxed) {
        for at in first..first + 16 {
            number += 1;
            let flags = if number.is_multiple_of(3) {
                client::FUA
            } else {
                0
            };
            let data = block(number);
            assert_eq!(client.write_with(flags, at * BLOCK, &data), 0, "write");
            let (error, found) = client.call(client::READ, at * BLOCK, BLOCK as u32);
            assert_eq!(error, 0, "read");
            assert_eq!(found, data, "block {at} is what was written last");
            done.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(client.call(client::FLUSH, 0, 0).0, 0, "flush");
    }
}

#[test]
fn clients_go_on_while_a_volume_goes_to_and_fro() {
    let other = Folder::new();
    let scene = scene(&other);
    let owner = volume(&scene, "vm", Some(0));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut users = Vec::new();
    for user in 0..3 {
        let client = scene.attach("vm");
        let (stop, done) = (stop.clone(), done.clone());
        users.push(thread::spawn(move || {
            use_it(client, user * 64, &stop, &done);
        }));
    }
    let mut held = Vec::new();
    // Another core, another device, both, and back; those who came first are two or more moves behind.
    for (device, core) in [
        (None, Some(1)),
        (Some("other"), None),
        (Some("main"), Some(0)),
        (Some("other"), Some(0)),
        (Some("main"), None),
        (Some("other"), Some(1)),
    ] {
        let before = done.load(Ordering::Relaxed);
        let info = moved(&scene, "vm", to(device, core));
        assert_eq!(info.state, MoveState::Done, "{info:?}");
        let shown = scene.show("vm").expect("is there");
        assert_eq!((&shown.device, shown.core), (&info.to.device, info.to.core));
        held.push(info.held_us);
        // Somebody who comes now is served where it is, and sees the same.
        let mut late = scene.attach("vm");
        assert_eq!(late.write(4 * MIB, &block(info.started_ns)), 0);
        let until = Instant::now() + Duration::from_secs(30);
        while done.load(Ordering::Relaxed) < before + 100 {
            assert!(Instant::now() < until, "clients go on");
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.join().expect("no client saw an error or a wrong byte");
    }
    assert!(held.iter().all(|us| *us > 0), "{held:?}");
    // All its bytes are there, also behind a restart, and nowhere else.
    let mut client = scene.attach("vm");
    let (_, before) = client.call(client::READ, 0, 256 * BLOCK as u32);
    drop(client);
    let scene = scene.restart(|options| change(options, &other));
    // Its token came along, though nobody has changed it since.
    let mut native = Native::connect(addresses(&scene)[1]);
    assert_eq!(native.open("vm", &owner, 0).status(), Status::Ok);
    let mut client = scene.attach("vm");
    assert!(client.call(client::READ, 0, 256 * BLOCK as u32).1 == before);
    let main = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("is there");
    assert_eq!(main.volume_count, 0);
    let used = main.used_bytes - main.journal_bytes;
    assert!(used < 2 * MIB, "its space there is free: {main:?}");
}

/// What clients ask is on its way to another core while the volume is moved once more there, which raises its epoch: that locks out none of them.
/// (With the epoch looked up where the question comes from it could, seldom: seen once, on a machine with too much to do.)
#[test]
fn what_is_on_its_way_to_another_core_is_not_locked_out_there() {
    let other = Folder::new();
    let scene = scene(&other);
    volume(&scene, "vm", Some(0));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut users = Vec::new();
    for user in 0..12 {
        let client = scene.attach("vm");
        let (stop, done) = (stop.clone(), done.clone());
        users.push(thread::spawn(move || {
            use_it(client, user * 16, &stop, &done);
        }));
    }
    moved(&scene, "vm", to(None, Some(1)));
    for number in 0..MOVES {
        let device = ["other", "main"][number % 2];
        let before = done.load(Ordering::Relaxed);
        let info = moved(&scene, "vm", to(Some(device), None));
        assert_eq!(info.state, MoveState::Done, "{info:?}");
        let is_seen_to =
            || done.load(Ordering::Relaxed) > before || users.iter().any(|user| user.is_finished());
        while !is_seen_to() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.join().expect("no client saw an error or a wrong byte");
    }
}

#[test]
fn snapshots_tokens_and_settings_go_with_it() {
    let other = Folder::new();
    let scene = scene(&other);
    let owner = volume(&scene, "vm", Some(0));
    let (revoked, gone) = token(&scene, "vm", flagstone::node::TokenKind::Writer);
    let mut client = scene.attach("vm");
    let taken = |name: &str| SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: name.to_owned(),
    };
    assert_eq!(client.write(0, &block(1)), 0);
    assert_eq!(client.write(8 * BLOCK, &block(8)), 0);
    let monday = scene.ask(|node| node.create_snapshots(vec![taken("monday")]));
    let monday = monday.expect("taken").remove(0);
    assert_eq!(client.write(0, &block(2)), 0);
    assert_eq!(client.call(client::TRIM, 8 * BLOCK, BLOCK as u32).0, 0);
    scene
        .ask(|node| node.create_snapshots(vec![taken("tuesday")]))
        .expect("taken");
    assert_eq!(client.write(0, &block(3)), 0);
    let slo = Slo {
        limit: SloLimit {
            reads: Some(100_000),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    scene
        .ask(|node| node.set_slo("vm".to_owned(), slo, false))
        .expect("is set");
    let yearly = SnapshotSchedule {
        every_s: 364 * 86_400,
        keep: 3,
        daily: 0,
        weekly: 0,
        monthly: 0,
    };
    scene
        .ask(|node| node.set_snapshot_schedule("vm".to_owned(), Some(yearly)))
        .expect("is set");
    // What has one of its snapshots open keeps it.
    let reader = scene.attach("vm@monday");
    let info = moved(&scene, "vm", to(Some("other"), Some(1)));
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    let expect = |export: &mut Client, at: u64, number: u64| {
        let (error, found) = export.call(client::READ, at * BLOCK, BLOCK as u32);
        assert_eq!((error, found), (0, block(number)), "block {at}");
    };
    for mut monday in [reader, scene.attach("vm@monday")] {
        expect(&mut monday, 0, 1);
        expect(&mut monday, 8, 8);
    }
    let mut tuesday = scene.attach("vm@tuesday");
    expect(&mut tuesday, 0, 2);
    expect(&mut tuesday, 8, 0);
    expect(&mut client, 0, 3);
    let shown = scene
        .ask(|node| node.show_snapshot(taken("monday")))
        .expect("is there");
    assert_eq!(shown.created_ns, monday.created_ns);
    let settings = |scene: &Scene| {
        let shown = scene.show("vm").expect("is there");
        (
            shown.slo,
            shown.scheduled.map(|scheduled| scheduled.schedule),
        )
    };
    assert_eq!(settings(&scene), (slo, Some(yearly)));
    // Its tokens: those that were there, and what is done with them afterwards.
    scene
        .ask(|node| node.revoke_token("vm".to_owned(), revoked))
        .expect("revoked");
    let scene = scene.restart(|options| change(options, &other));
    let mut native = Native::connect(addresses(&scene)[1]);
    assert_eq!(native.open("vm", &gone, 0).status(), Status::Denied);
    assert_eq!(native.open("vm", &owner, 0).status(), Status::Ok);
    let spec = RotateSpec::default();
    scene
        .ask(|node| node.rotate_token("vm".to_owned(), 1, spec))
        .expect("rotated");
}

#[test]
fn who_has_a_snapshot_open_keeps_that_one_whatever_is_named_like_it() {
    let other = Folder::new();
    let scene = scene(&other);
    volume(&scene, "vm", Some(0));
    let one = |name: &str| SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: name.to_owned(),
    };
    let take = |name: &str| {
        let taken = vec![one(name)];
        scene
            .ask(|node| node.create_snapshots(taken))
            .expect("taken");
    };
    let mut client = scene.attach("vm");
    assert_eq!(client.write(0, &block(1)), 0);
    take("kept");
    let mut kept = scene.attach("vm@kept");
    assert_eq!(client.write(0, &block(2)), 0);
    take("deleted");
    let mut deleted = scene.attach("vm@deleted");
    assert_eq!(client.write(0, &block(3)), 0);
    let info = moved(&scene, "vm", to(Some("other"), Some(1)));
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    scene
        .ask(|node| node.rename_snapshot(one("kept"), "other".to_owned()))
        .expect("renamed");
    scene
        .ask(|node| node.delete_snapshot(one("deleted")))
        .expect("deleted");
    // Others get their names.
    take("kept");
    take("deleted");
    let read = |from: &mut Client| from.call(client::READ, 0, BLOCK as u32);
    assert_eq!(read(&mut kept), (0, block(1)));
    assert_ne!(read(&mut deleted).0, 0, "it is gone");
    // And two moves behind.
    moved(&scene, "vm", to(None, Some(0)));
    assert_eq!(read(&mut kept), (0, block(1)));
}

#[test]
fn clients_of_the_native_protocol_are_told_the_new_address() {
    let other = Folder::new();
    let scene = scene(&other);
    let token = volume(&scene, "vm", Some(0));
    let cores = addresses(&scene);
    let mut native = Native::connect(cores[0]);
    let volume = native.opened("vm", &token, 0);
    let written = native.write(volume, 0, &block(7), flag::DURABLE);
    assert_eq!(written.status(), Status::Ok);
    let known = written.lsn();
    moved(&scene, "vm", to(None, Some(1)));
    assert_eq!(native.read(volume, 0, BLOCK).moved_to(), cores[1]);
    let refused = native.write(volume, 0, &block(8), flag::DURABLE);
    assert_eq!(refused.moved_to(), cores[1]);
    let mut there = Native::connect(cores[1]);
    let volume = there.opened("vm", &token, 0);
    let answer = there.read(volume, 0, BLOCK);
    assert_eq!(
        answer.payload,
        block(7),
        "what was refused was not carried out"
    );
    let written = there.write(volume, 0, &block(9), flag::DURABLE);
    assert!(written.lsn() > known, "LSNs go on");
}

#[test]
fn a_move_that_runs_is_told_to_be_faster_or_slower() {
    let other = Folder::new();
    let scene = scene(&other);
    volume(&scene, "vm", Some(0));
    volume(&scene, "still", Some(0));
    let mut client = scene.attach("vm");
    for at in 0..8 {
        assert_eq!(client.write(at * MIB, &[5; 1 << 20]), 0);
    }
    let limit =
        |name: &str, bytes: Option<u64>| scene.ask(|node| node.limit_move(name.to_owned(), bytes));
    let kind = |limited: Result<MoveInfo, NodeError>| limited.expect_err("is refused").kind;
    assert_eq!(kind(limit("vm", None)), NodeErrorKind::NotFound);
    // Two minutes.
    let slow = MoveSpec {
        limit_bytes: Some(64 << 10),
        ..to(Some("other"), None)
    };
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), slow));
    let begun = begun.expect("begins");
    assert_eq!((begun.limit_bytes, begun.left_s), (Some(64 << 10), None));
    let show = || {
        let info = scene.ask(|node| node.show_move("vm".to_owned()));
        info.expect("is known")
    };
    let until = Instant::now() + Duration::from_secs(30);
    let left_s = loop {
        let info = show();
        if let Some(left_s) = info.left_s {
            break left_s;
        }
        assert!(Instant::now() < until, "how long isn't known: {info:?}");
        thread::sleep(Duration::from_millis(20));
    };
    assert!((60..200).contains(&left_s), "{left_s}");
    let least = NodeErrorKind::InvalidArgument;
    assert_eq!(kind(limit("vm", Some((64 << 10) - 1))), least);
    assert_eq!(kind(limit("vm", Some(0))), least);
    assert_eq!(kind(limit("still", None)), NodeErrorKind::NotFound);
    assert_eq!(show().limit_bytes, Some(64 << 10), "it is as it was");
    // Eight times as fast, and then as fast as can be.
    let before = show();
    let faster = limit("vm", Some(512 << 10)).expect("is limited");
    assert_eq!(faster.limit_bytes, Some(512 << 10));
    let began = Instant::now();
    while show().copied_bytes < before.copied_bytes + 3 * MIB {
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", show());
        thread::sleep(Duration::from_millis(20));
    }
    // A part of a MiB may be copied at once, and then two that are waited for.
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(3), "another limit: {took:?}");
    let lifted = limit("vm", None).expect("is lifted");
    assert_eq!(lifted.limit_bytes, None);
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(kind(limit("vm", None)), NodeErrorKind::NotFound);
}

#[test]
fn what_can_not_be_moved_stays_and_says_why() {
    let other = Folder::new();
    let scene = scene(&other);
    volume(&scene, "vm", Some(0));
    let kind = |name: &str, spec: MoveSpec| {
        let asked = scene.ask(|node| node.move_volume(name.to_owned(), spec));
        asked.expect_err("is refused").kind
    };
    assert_eq!(kind("none", to(None, Some(1))), NodeErrorKind::NotFound);
    assert_eq!(kind("vm", to(Some("none"), None)), NodeErrorKind::NotFound);
    assert_eq!(
        kind("vm", to(None, Some(0))),
        NodeErrorKind::InvalidArgument
    );
    assert_eq!(kind("vm", to(None, None)), NodeErrorKind::InvalidArgument);
    for bytes in [0, 1, (64 << 10) - 1] {
        let hardly = MoveSpec {
            limit_bytes: Some(bytes),
            ..to(None, Some(1))
        };
        assert_eq!(kind("vm", hardly), NodeErrorKind::InvalidArgument);
    }
    let asked = scene.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(
        asked.expect_err("was not moved").kind,
        NodeErrorKind::NotFound
    );

    // One that would take minutes is ended; until then nothing but its bytes changes.
    let mut client = scene.attach("vm");
    for at in 0..6 {
        assert_eq!(client.write(at * MIB, &[5; 1 << 20]), 0);
    }
    let slow = MoveSpec {
        limit_bytes: Some(64 << 10),
        ..to(Some("other"), None)
    };
    scene
        .ask(|node| node.move_volume("vm".to_owned(), slow.clone()))
        .expect("begins");
    assert_eq!(kind("vm", slow), NodeErrorKind::Busy);
    let busy = |error: flagstone::node::NodeError| assert_eq!(error.kind, NodeErrorKind::Busy);
    busy(
        scene
            .ask(|node| node.resize_volume("vm".to_owned(), 16 * MIB, false))
            .expect_err("busy"),
    );
    busy(
        scene
            .ask(|node| node.rename_volume("vm".to_owned(), "new".to_owned()))
            .expect_err("busy"),
    );
    busy(
        scene
            .ask(|node| node.delete_volume("vm".to_owned(), true))
            .expect_err("busy"),
    );
    busy(
        scene
            .ask(|node| {
                node.create_snapshots(vec![SnapshotRef {
                    volume: "vm".to_owned(),
                    snapshot: "s".to_owned(),
                }])
            })
            .expect_err("busy"),
    );
    assert_eq!(client.write(0, &block(6)), 0, "its bytes may change");
    let shown = scene.show("vm").expect("is there").moving;
    let shown = shown.expect("it is said where it goes");
    assert_eq!(&shown.to.device[..], "other");
    assert_eq!(metric(&scene, "moves_running"), 1.0);
    scene
        .ask(|node| node.cancel_move("vm".to_owned()))
        .expect("is told");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Cancelled, "{info:?}");
    let shown = scene.show("vm").expect("is there");
    assert_eq!((&shown.device[..], shown.moving), ("main", None));
    let until = Instant::now() + Duration::from_secs(30);
    while metric(&scene, "moves_cancelled") != 1.0 {
        assert!(Instant::now() < until, "it is not counted");
        thread::sleep(Duration::from_millis(1));
    }
    let ended_now = ["moves_running", "moves_done", "moves_failed"];
    assert_eq!(ended_now.map(|name| metric(&scene, name)), [0.0; 3]);
    assert_eq!(
        metric(&scene, "move_copied_bytes"),
        info.copied_bytes as f64
    );
    assert_eq!(client.write(0, &block(7)), 0);
    let device = scene
        .ask(|node| node.show_device("other".to_owned()))
        .expect("is there");
    assert_eq!(device.volume_count, 0, "nothing is left there");
    scene
        .ask(|node| node.resize_volume("vm".to_owned(), 16 * MIB, false))
        .expect("is settled again");
}

/// All but so much of the other device is set aside for another volume.
fn room_there(scene: &Scene, room_bytes: u64) {
    leave_room(scene, room_bytes).expect("is created");
}

fn leave_room(scene: &Scene, room_bytes: u64) -> Result<(), NodeError> {
    let device = scene.ask(|node| node.show_device("other".to_owned()));
    let size_bytes = device.expect("is there").free_bytes - room_bytes;
    let spec = VolumeSpec {
        name: "big".to_owned(),
        size_bytes,
        reserve: Reservation::Full,
        device: Some("other".to_owned()),
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Slo::default(),
        oversubscribe: false,
    };
    scene.ask(|node| node.create_volume(spec)).map(drop)
}

#[test]
fn what_has_no_room_at_its_new_place_is_refused_or_fails_as_that() {
    let other = Folder::new();
    let scene = scene(&other);
    volume(&scene, "vm", Some(0));
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 64 * MIB, false));
    resized.expect("grows");
    let mut client = scene.attach("vm");
    let mut write = |range: std::ops::Range<u64>| {
        for at in range {
            assert_eq!(client.write(at * MIB, &[5; 1 << 20]), 0);
        }
    };
    write(0..12);
    // What is set aside takes a little of what is left for its map.
    room_there(&scene, 120 * MIB);
    let free = || {
        let device = scene.ask(|node| node.show_device("other".to_owned()));
        device.expect("is there").free_bytes
    };
    let left = free();
    assert!(left > 16 * MIB, "{left}");
    // What it has is little, and what is reserved for it isn't.
    let larger = left.next_multiple_of(MIB) + 16 * MIB;
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), larger, false));
    resized.expect("grows");
    let full = Reservation::Full;
    scene
        .ask(|node| node.set_reservation("vm".to_owned(), full))
        .expect("is reserved");
    let refused = scene.ask(|node| node.move_volume("vm".to_owned(), to(Some("other"), None)));
    let refused = refused.expect_err("there is no room");
    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused:?}");
    for says in [format!("({larger} bytes)"), "'other'".to_owned()] {
        assert!(refused.found.contains(&says), "{says}: {}", refused.found);
    }
    // Who is short of room has blocks that were freed become usable first, and a checkpoint takes some: so it may be a little more or less by then.
    let (before, _) = refused
        .found
        .split_once(" bytes) are free")
        .expect("what is free");
    let (_, told) = before.rsplit_once('(').expect("in bytes");
    let told: u64 = told.parse().expect("a number");
    assert!(
        (left - MIB..left + MIB).contains(&told),
        "{left}: {}",
        refused.found
    );
    let asked = scene.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(
        asked.expect_err("was not moved").kind,
        NodeErrorKind::NotFound
    );
    scene
        .ask(|node| node.set_reservation("vm".to_owned(), Reservation::None))
        .expect("is not");
    // There is room for what it has, and none for what is written meanwhile.
    let slow = MoveSpec {
        limit_bytes: Some(6 * MIB),
        ..to(Some("other"), None)
    };
    scene
        .ask(|node| node.move_volume("vm".to_owned(), slow))
        .expect("begins");
    write(12..left / MIB + 8);
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Failed, "{info:?}");
    assert_eq!(info.error_kind, Some(NodeErrorKind::NoSpace), "{info:?}");
    let shown = scene.show("vm").expect("is there");
    assert_eq!((&shown.device[..], shown.moving), ("main", None));
    write(0..2);
    let until = Instant::now() + Duration::from_secs(30);
    while free() + MIB < left {
        assert!(Instant::now() < until, "its copy is left there");
        thread::sleep(Duration::from_millis(5));
    }
}

/// It is written as quickly as it can be, and at most 24 MiB a second are copied. As long as its writes aren't made slower, each round copies all
/// of it, and there is no end.
#[test]
fn a_volume_that_is_written_as_quickly_as_it_is_copied_is_written_more_slowly_and_gets_there() {
    const SIZE: u64 = 48;
    let other = Folder::new();
    let scene = scene(&other);
    let created = scene.ask(|node| node.create_volume(sized("vm", "main", SIZE)));
    created.expect("is created");
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut client = scene.attach("vm");
    let writer = {
        let (stop, done) = (stop.clone(), done.clone());
        thread::spawn(move || {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) || number < SIZE {
                let data = number.to_le_bytes().repeat(MIB as usize / 8);
                assert_eq!(client.write(number % SIZE * MIB, &data), 0);
                number += 1;
                done.store(number, Ordering::Relaxed);
            }
            (client, number)
        })
    };
    while done.load(Ordering::Relaxed) < SIZE {
        assert!(!writer.is_finished(), "it fails");
        thread::sleep(Duration::from_millis(2));
    }
    let slow = MoveSpec {
        limit_bytes: Some(24 * MIB),
        ..to(Some("other"), None)
    };
    scene
        .ask(|node| node.move_volume("vm".to_owned(), slow))
        .expect("begins");
    let until = Instant::now() + Duration::from_secs(60);
    let mut slowed_to = Vec::new();
    let info = loop {
        let info = scene.ask(|node| node.show_move("vm".to_owned()));
        let info = info.expect("is known");
        if info.state != MoveState::Running {
            break info;
        }
        slowed_to.extend(info.slowed_to_bytes);
        assert!(Instant::now() < until, "it doesn't end: {info:?}");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(info.slowed_to_bytes, None, "it is over");
    assert!(!slowed_to.is_empty(), "{info:?}");
    // A third of what the limit allows. What a busy machine came too late to copy in one window it makes up for in the next, so single ones may have
    // more or less.
    slowed_to.sort_unstable();
    let middle = slowed_to[slowed_to.len() / 2];
    assert!(
        slowed_to[0] > 0 && middle <= 12 * MIB,
        "{middle}: {slowed_to:?}"
    );
    // All of it three times, before the writes are slower; then each time a part of the time before. Otherwise there would be no end to it.
    assert!(info.copied_bytes <= 6 * SIZE * MIB, "{info:?}");
    stop.store(true, Ordering::Relaxed);
    let (mut client, written) = writer.join().expect("no write failed");
    for at in 0..SIZE {
        let number = (written - 1) / SIZE * SIZE + at;
        let number = if number < written {
            number
        } else {
            number - SIZE
        };
        let (error, found) = client.call(client::READ, at * MIB, MIB as u32);
        assert_eq!(error, 0, "read");
        assert!(
            found == number.to_le_bytes().repeat(MIB as usize / 8),
            "the MiB {at} is what was written last"
        );
    }
}

/// It becomes free a moment later. The other device has one journal: what is free there is free for whoever moves there.
#[test]
fn what_was_deleted_just_before_is_room_for_a_move() {
    let other = Folder::new();
    let format = FormatOptions {
        size_bytes: Some(256 << 20),
        force: false,
        sparse: false,
    };
    flagstone::offline::format(&other.path.join("other.img"), &format).expect("formatted");
    let scene = Scene::with(|options| change(options, &other));
    for (name, device) in [("vm", "main"), ("old", "other")] {
        let created = scene.ask(|node| node.create_volume(sized(name, device, 64)));
        created.expect("is created");
        let mut client = scene.attach(name);
        for at in 0..60 {
            assert_eq!(client.write(at * MIB, &[5; 1 << 20]), 0);
        }
    }
    // What the device keeps for itself can't be set aside.
    let left = (8..56).find(|left| leave_room(&scene, left * MIB).is_ok());
    left.expect("some of it is set aside");
    let move_it = || scene.ask(|node| node.move_volume("vm".to_owned(), to(Some("other"), None)));
    let refused = move_it().expect_err("there is no room for another one");
    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
    let deleted = scene.ask(|node| node.delete_volume("old".to_owned(), false));
    deleted.expect("is deleted");
    move_it().expect("there is by now");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
}

/// Volumes that go opposite ways at the same time need the same two journals for their ends.
#[test]
fn volumes_that_pass_one_another_get_there() {
    let other = Folder::new();
    let scene = scene(&other);
    for (name, core) in [("a", 0), ("b", 1), ("c", 0), ("d", 1)] {
        volume(&scene, name, Some(core));
        let mut client = scene.attach(name);
        assert_eq!(client.write(0, &block(u64::from(core) + 7)), 0);
    }
    for round in 0..10 {
        let names = [("a", 0), ("b", 1), ("c", 0), ("d", 1)];
        for (name, core) in names {
            let spec = to(None, Some((core + 1 + round) % 2));
            let begun = scene.ask(|node| node.move_volume(name.to_owned(), spec));
            begun.expect("begins");
        }
        for (name, core) in names {
            assert_eq!(ended(&scene, name).state, MoveState::Done, "{name}");
            let mut client = scene.attach(name);
            let (error, found) = client.call(client::READ, 0, BLOCK as u32);
            assert_eq!((error, found), (0, block(u64::from(core) + 7)), "{name}");
        }
    }
}
