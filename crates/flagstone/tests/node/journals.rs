//! Journals are handed from one core to another while clients use their volumes.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    DeviceInfo, FilesystemInfo, FilesystemSpec, HandedOverJournal, JournalInfo, MoveHooks,
    MovePoint, MoveSpec, NodeError, NodeErrorKind, NodeOptions, Reservation, Slo, SloLimit,
    SnapshotSchedule, TokenKind, TokenText, VolumeSpec,
};
use flagstone_client::{Durability, Target};
use flagstone_platform::IoBuf;
use flagstone_wire::Status;
use flagstone_wire::operation::flag;

use crate::between::with_client;
use crate::client;
use crate::moves::{block, ended, use_it};
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::Scene;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn two_cores(options: &mut NodeOptions) {
    options.cores = Some(2);
    listening(options);
}

fn scene_with(change: impl FnOnce(&mut NodeOptions)) -> Scene {
    let start = Scene::start(2 << 30, |options| {
        two_cores(options);
        change(options);
    });
    start.expect("a node")
}

fn journals(scene: &Scene) -> Vec<JournalInfo> {
    let listed = scene.ask(|node| node.list_journals("main".to_owned()));
    listed.expect("are listed")
}

/// The cores that serve the device's journals, by their numbers.
fn cores(scene: &Scene) -> Vec<u32> {
    journals(scene).iter().map(|one| one.core).collect()
}

fn hand_over(scene: &Scene, journal: u16, core: u32) -> Result<HandedOverJournal, NodeError> {
    scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, core))
}

fn spec(name: &str) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 * MIB,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        slo: Default::default(),
        oversubscribe: false,
    }
}

fn filesystem(scene: &Scene, name: &str) -> Result<FilesystemInfo, NodeError> {
    let spec = FilesystemSpec {
        name: name.to_owned(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        owner_uid: 0,
        owner_gid: 0,
        slo: Slo::default(),
        oversubscribe: false,
    };
    scene.ask(|node| node.create_filesystem(spec))
}

fn device(scene: &Scene) -> DeviceInfo {
    let shown = scene.ask(|node| node.show_device("main".to_owned()));
    shown.expect("is there")
}

/// The value of a counter of the device in a scrape.
fn counted(scene: &Scene, name: &str) -> u64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let counters = &metrics.devices[0].more;
    let found = counters.iter().find(|one| one.name == name);
    found.unwrap_or_else(|| panic!("no {name}")).value as u64
}

#[test]
fn clients_go_on_while_their_journal_goes_to_and_fro() {
    let scene = scene_with(|_| {});
    let owner = volume(&scene, "vm", Some(0));
    let other = volume(&scene, "beside", Some(0));
    assert_eq!(scene.show("vm").expect("is there").journal, 0);
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut users = Vec::new();
    for (user, name) in ["vm", "vm", "beside"].into_iter().enumerate() {
        let client = scene.attach(name);
        let (stop, done) = (stop.clone(), done.clone());
        users.push(thread::spawn(move || {
            use_it(client, user as u64 * 64, &stop, &done)
        }));
    }
    // One of the native protocol, which follows by itself.
    let (stopped, rounds) = (stop.clone(), Arc::new(AtomicU64::new(0)));
    let counted_rounds = rounds.clone();
    let at = addresses(&scene)[0];
    let native = with_client(
        at,
        Target::Name("beside".to_owned()),
        &other,
        |_, volume| async move {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                let data = IoBuf::copy_of(&block(number));
                let at = (512 + number % 16) * BLOCK;
                volume
                    .write(at, data, Durability::Durable)
                    .await
                    .expect("written");
                let found = volume.read(at, BLOCK).await.expect("read");
                assert_eq!(&found[..], &block(number)[..]);
                counted_rounds.store(number, Ordering::Relaxed);
            }
            volume.flush().await.expect("flushed");
        },
    );
    let mut held = Vec::new();
    for round in 0..10_u32 {
        let before = (done.load(Ordering::Relaxed), rounds.load(Ordering::Relaxed));
        let to = 1 - round % 2;
        let moved = hand_over(&scene, 0, to).expect("is handed over");
        assert_eq!((moved.from_core, moved.core), (round % 2, to));
        assert_eq!(moved.volume_count, 2);
        held.push(moved.held_us);
        assert_eq!(cores(&scene)[0], to);
        let shown = scene.show("vm").expect("is there");
        assert_eq!((shown.core, shown.journal), (to, 0));
        // Somebody who comes now sees the same.
        let mut late = scene.attach("vm");
        assert_eq!(late.write(4 * MIB, &block(round.into())), 0);
        let until = Instant::now() + Duration::from_secs(30);
        while done.load(Ordering::Relaxed) < before.0 + 100
            || rounds.load(Ordering::Relaxed) < before.1 + 20
        {
            assert!(Instant::now() < until, "clients go on");
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.join().expect("no client saw an error or a wrong byte");
    }
    native.join().expect("nor did this one");
    assert!(held.iter().all(|us| *us > 0), "{held:?}");
    // All its bytes are there, also where the next start puts them.
    let mut client = scene.attach("vm");
    let (_, before) = client.call(client::READ, 0, 256 * BLOCK as u32);
    drop(client);
    hand_over(&scene, 0, 1).expect("is handed over");
    let scene = scene.restart(two_cores);
    assert_eq!(cores(&scene)[0], 0);
    let mut native = Native::connect(addresses(&scene)[0]);
    assert_eq!(native.open("vm", &owner, 0).status(), Status::Ok);
    let mut client = scene.attach("vm");
    assert!(client.call(client::READ, 0, 256 * BLOCK as u32).1 == before);
}

#[test]
fn all_that_belongs_to_a_volume_goes_with_its_journal() {
    let scene = scene_with(|_| {});
    let owner = volume(&scene, "vm", Some(0));
    let (revoked, gone) = token(&scene, "vm", TokenKind::Writer);
    let at = addresses(&scene);
    let mut client = scene.attach("vm");
    let taken = SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: "monday".to_owned(),
    };
    assert_eq!(client.write(0, &block(1)), 0);
    scene
        .ask(|node| node.create_snapshots(vec![taken.clone()]))
        .expect("taken");
    assert_eq!(client.write(0, &block(2)), 0);
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
    // Opened with a token that is revoked behind the hand-over.
    let mut held = Native::connect(at[0]);
    let open = held.opened("vm", &gone, 0);
    let epoch = scene.show("vm").expect("is there").epoch;
    let reader = scene.attach("vm@monday");
    let before = device(&scene);
    hand_over(&scene, 0, 1).expect("is handed over");

    let shown = scene.show("vm").expect("is there");
    let schedule = shown.scheduled.map(|scheduled| scheduled.schedule);
    assert_eq!((shown.slo, schedule), (slo, Some(yearly)));
    assert_eq!(
        (shown.core, shown.epoch, shown.snapshot_count),
        (1, epoch, 1 + 1)
    );
    let after = device(&scene);
    assert_eq!(after.volume_count, before.volume_count);
    assert_eq!(
        after.free_bytes / MIB,
        before.free_bytes / MIB,
        "nothing was copied"
    );
    for mut monday in [reader, scene.attach("vm@monday")] {
        assert_eq!(monday.call(client::READ, 0, BLOCK as u32), (0, block(1)));
    }
    assert_eq!(client.call(client::READ, 0, BLOCK as u32), (0, block(2)));
    assert_eq!(held.read(open, 0, BLOCK).moved_to(), at[1]);
    let mut there = Native::connect(at[1]);
    let open = there.opened("vm", &gone, 0);
    scene
        .ask(|node| node.revoke_token("vm".to_owned(), revoked))
        .expect("revoked");
    assert_ne!(
        there.read(open, 0, BLOCK).status(),
        Status::Ok,
        "it was open by it"
    );
    assert_eq!(
        Native::connect(at[1]).open("vm", &gone, 0).status(),
        Status::Denied
    );
    let mut native = Native::connect(at[1]);
    let open = native.opened("vm", &owner, 0);
    assert_eq!(
        native.write(open, 0, &block(3), flag::DURABLE).status(),
        Status::Ok
    );
    // What is made of it now is made there.
    scene
        .ask(|node| node.resize_volume("vm".to_owned(), 16 * MIB, false))
        .expect("resized");
    scene
        .ask(|node| node.delete_snapshot(taken))
        .expect("deleted");
    let scene = scene.restart(two_cores);
    let mut native = Native::connect(addresses(&scene)[0]);
    assert_eq!(native.open("vm", &gone, 0).status(), Status::Denied);
    let open = native.opened("vm", &owner, 0);
    assert_eq!(native.read(open, 0, BLOCK).payload, block(3));
    assert_eq!(scene.show("vm").expect("is there").size_bytes, 16 * MIB);
}

#[test]
fn what_was_counted_stays_counted() {
    let scene = scene_with(|_| {});
    volume(&scene, "vm", Some(0));
    let mut client = scene.attach("vm");
    for at in 0..64 {
        assert_eq!(client.write_with(client::FUA, at * BLOCK, &block(at)), 0);
    }
    let names = ["checkpoints", "groups"];
    let counts = |scene: &Scene| {
        let metrics = scene.ask(|node| node.metrics()).expect("metrics");
        let io = metrics.devices[0].write.operations;
        (names.map(|name| counted(scene, name)), io)
    };
    let mut last = counts(&scene);
    assert!(last.1 >= 64, "{last:?}");
    for round in 0..4 {
        hand_over(&scene, 0, 1 - round % 2).expect("is handed over");
        let now = counts(&scene);
        assert!(now.1 >= last.1, "{last:?}, then {now:?}");
        for (now, last) in now.0.iter().zip(last.0) {
            assert!(*now >= last, "{last:?}, then {now:?}");
        }
        last = now;
    }
    let reads = |journal: usize| journals(&scene)[journal].reads;
    let before = reads(0);
    assert_eq!(client.call(client::READ, 0, BLOCK as u32), (0, block(0)));
    assert!(reads(0) > before);
}

#[test]
fn what_can_not_be_handed_over_stays_and_says_why() {
    let scene = scene_with(|_| {});
    volume(&scene, "vm", Some(0));
    let kind = |journal, core| {
        let refused = hand_over(&scene, journal, core).expect_err("is refused");
        refused.kind
    };
    assert_eq!(kind(0, 0), NodeErrorKind::InvalidArgument);
    assert_eq!(kind(0, 2), NodeErrorKind::NotFound);
    let count = journals(&scene).len() as u16;
    assert_eq!(kind(count, 1), NodeErrorKind::NotFound);
    let asked = scene.ask(|node| node.hand_over_journal("none".to_owned(), 0, 1));
    assert_eq!(asked.expect_err("is refused").kind, NodeErrorKind::NotFound);
    // One of its volumes is being moved elsewhere; then one comes to it.
    let mut client = scene.attach("vm");
    for at in 0..6 {
        assert_eq!(client.write(at * MIB, &[5; 1 << 20]), 0);
    }
    let slow = MoveSpec {
        core: Some(1),
        limit_bytes: Some(64 << 10),
        ..MoveSpec::default()
    };
    scene
        .ask(|node| node.move_volume("vm".to_owned(), slow))
        .expect("begins");
    let until = Instant::now() + Duration::from_secs(30);
    let copied = || {
        let shown = scene.ask(|node| node.show_move("vm".to_owned()));
        shown.expect("is known").copied_bytes
    };
    while copied() == 0 {
        assert!(Instant::now() < until, "it begins");
        thread::sleep(Duration::from_millis(1));
    }
    for (journal, core) in [(0, 1), (1, 0)] {
        assert_eq!(kind(journal, core), NodeErrorKind::Busy);
    }
    scene
        .ask(|node| node.cancel_move("vm".to_owned()))
        .expect("is told");
    ended(&scene, "vm");
    assert_eq!(client.write(0, &block(7)), 0);
    hand_over(&scene, 0, 1).expect("is handed over");
    hand_over(&scene, 0, 0).expect("is handed over");
    // One whose snapshot is being sent.
    let taken = SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: "s".to_owned(),
    };
    scene
        .ask(|node| node.create_snapshots(vec![taken.clone()]))
        .expect("taken");
    let stream = scene
        .ask(|node| node.open_stream(taken, None))
        .expect("is opened");
    assert_eq!(kind(0, 1), NodeErrorKind::Busy);
    drop(stream);
    hand_over(&scene, 0, 1).expect("is handed over");
    hand_over(&scene, 0, 0).expect("is handed over");
    // Filesystems stay.
    filesystem(&scene, "home").expect("created");
    let home = journals(&scene);
    let home = home.iter().find(|one| one.has_filesystems).expect("is one");
    assert_eq!(kind(home.journal, 1), NodeErrorKind::InvalidArgument);
}

/// What is made meanwhile goes, too, or is refused; it is never made where nobody serves it.
#[test]
fn volumes_that_are_made_while_their_journal_goes_are_found() {
    // So that there is always one that is just being made.
    let slow = "latency writes=2ms";
    let scene = scene_with(|options| {
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    });
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let (node, stopped, counted) = (scene.node.clone(), stop.clone(), count.clone());
    let maker = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let (mut made, mut refused) = (Vec::new(), 0);
        while !stopped.load(Ordering::Relaxed) {
            let name = format!("v{}", made.len() + refused);
            let spec = VolumeSpec {
                core: Some(made.len() as u32 % 2),
                ..spec(&name)
            };
            match runtime.block_on(node.create_volume(spec)) {
                Ok(_) => {
                    made.push(name);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let kinds = [NodeErrorKind::Unavailable, NodeErrorKind::NotFound];
                    assert!(kinds.contains(&error.kind), "{error}");
                    refused += 1;
                }
            }
        }
        made
    });
    let until = Instant::now() + Duration::from_secs(60);
    let mut to = 1;
    while count.load(Ordering::Relaxed) < 30 {
        assert!(Instant::now() < until, "they are made");
        hand_over(&scene, 0, to).expect("is handed over");
        to = 1 - to;
    }
    stop.store(true, Ordering::Relaxed);
    let made = maker.join().expect("made or refused");
    let all = journals(&scene)
        .iter()
        .map(|one| one.volume_count)
        .sum::<u64>();
    assert_eq!(all, made.len() as u64, "and none that isn't known");
    let cores = cores(&scene);
    for name in &made {
        let shown = scene.show(name).expect("is there");
        assert_eq!(shown.core, cores[usize::from(shown.journal)]);
        assert_eq!(scene.attach(name).write(0, &block(7)), 0);
    }
}

#[test]
fn a_volume_apart_goes_alone_and_the_others_stay() {
    let scene = scene_with(|_| {});
    volume(&scene, "first", Some(0));
    let apart = |name: &str, core| {
        let spec = VolumeSpec {
            apart: true,
            core,
            ..spec(name)
        };
        scene.ask(|node| node.create_volume(spec))
    };
    let journal_count = journals(&scene).len();
    let vm = apart("vm", Some(0)).expect("created").volume;
    assert_eq!((vm.core, vm.journal), (0, 2));
    // New ones don't join it, there or elsewhere.
    hand_over(&scene, vm.journal, 1).expect("is handed over");
    let place = |name: &str| {
        let shown = scene.show(name).expect("is there");
        (shown.core, shown.journal)
    };
    assert_eq!((place("vm"), place("first")), ((1, 2), (0, 0)));
    for (name, core, expected) in [("on-0", 0, (0, 0)), ("on-1", 1, (1, 1))] {
        volume(&scene, name, Some(core));
        assert_eq!(place(name), expected);
    }
    // There are as many as there are journals, but for those that new ones go to.
    let mut made = 1;
    let refused = loop {
        match apart(&format!("apart-{made}"), None) {
            Ok(_) => made += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(
        (made, refused.kind),
        (journal_count - 2, NodeErrorKind::NoSpace)
    );
    assert!(refused.found.contains("main"), "{refused}");
}

/// The first filesystem decides for all.
#[test]
fn filesystems_begin_in_no_journal_that_is_somebody_elses() {
    let scene = Scene::formatted(8 << 30, true, two_cores).expect("a node");
    let apart = VolumeSpec {
        apart: true,
        core: Some(0),
        ..spec("vm")
    };
    let made = scene
        .ask(|node| node.create_volume(apart))
        .expect("created");
    assert_eq!(made.volume.journal, 2);
    hand_over(&scene, 0, 1).expect("is handed over");
    hand_over(&scene, 1, 0).expect("is handed over");
    filesystem(&scene, "home").expect("created");
    let listed = journals(&scene);
    let home = listed
        .iter()
        .find(|one| one.has_filesystems)
        .expect("is one");
    assert_eq!((home.journal, home.core), (4, 0));
}

#[test]
fn a_core_without_a_journal_gets_no_volume_until_it_has_one() {
    let scene = scene_with(|_| {});
    for journal in 0..journals(&scene).len() as u16 {
        if journal % 2 == 1 {
            hand_over(&scene, journal, 0).expect("is handed over");
        }
    }
    assert!(cores(&scene).iter().all(|core| *core == 0));
    let on_1 = || {
        let spec = VolumeSpec {
            core: Some(1),
            ..spec("vm")
        };
        scene.ask(|node| node.create_volume(spec))
    };
    let refused = on_1().expect_err("is refused");
    assert_eq!(refused.kind, NodeErrorKind::NotFound);
    assert!(refused.found.contains("handed over"), "{refused}");
    for name in ["a", "b", "c"] {
        scene.create(name, MIB).expect("created");
        assert_eq!(scene.show(name).expect("is there").core, 0);
    }
    hand_over(&scene, 3, 1).expect("is handed over");
    let made = on_1().expect("created").volume;
    assert_eq!((made.core, made.journal), (1, 3));
}

/// At each point of a hand-over, what is done.
struct Hooked {
    device: PathBuf,
    away: PathBuf,
    /// When the device's file is away: not at all, for the other core, or for both.
    away_for: AtomicUsize,
    seen: Mutex<Vec<MovePoint>>,
}

impl Hooked {
    fn at(&self, point: MovePoint) -> bool {
        let is = |file: &PathBuf| std::fs::metadata(file).is_ok();
        let rename = |from: &PathBuf, to: &PathBuf| std::fs::rename(from, to).expect("renamed");
        let away_for = self.away_for.load(Ordering::SeqCst);
        match point {
            MovePoint::JournalClosed if away_for > 0 => rename(&self.device, &self.away),
            MovePoint::JournalRefused if away_for == 1 && is(&self.away) => {
                rename(&self.away, &self.device);
            }
            _ => {}
        }
        self.seen.lock().expect("whole").push(point);
        true
    }
}

#[test]
fn a_journal_that_the_other_core_can_not_open_goes_on_where_it_was() {
    let mut hooked = None;
    let scene = scene_with(|options| {
        let device = options.devices[0].path.clone();
        let hook = Arc::new(Hooked {
            away: device.with_file_name("away.img"),
            device,
            away_for: AtomicUsize::new(1),
            seen: Mutex::default(),
        });
        hooked = Some(hook.clone());
        options.move_hooks = MoveHooks::at_points(move |point| hook.at(point));
    });
    let hooked = hooked.expect("is set");
    let owner = volume(&scene, "vm", Some(0));
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let client = scene.attach("vm");
    let user = {
        let (stop, done) = (stop.clone(), done.clone());
        thread::spawn(move || use_it(client, 0, &stop, &done))
    };
    for _ in 0..3 {
        let before = done.load(Ordering::Relaxed);
        let refused = hand_over(&scene, 0, 1).expect_err("can't be opened there");
        assert_eq!(refused.kind, NodeErrorKind::Internal);
        assert!(refused.next_step.contains("where it was"), "{refused}");
        assert_eq!(cores(&scene)[0], 0);
        let until = Instant::now() + Duration::from_secs(30);
        while done.load(Ordering::Relaxed) < before + 100 {
            assert!(Instant::now() < until, "clients go on");
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::Relaxed);
    user.join().expect("no client saw an error or a wrong byte");
    scene.create("new", MIB).expect("created");
    // And if it can't be opened by anybody, its volumes are gone until the next start.
    let mut client = scene.attach("vm");
    assert_eq!(client.write_with(client::FUA, 0, &block(77)), 0);
    hooked.away_for.store(2, Ordering::SeqCst);
    let refused = hand_over(&scene, 0, 1).expect_err("can't be opened at all");
    assert!(refused.next_step.contains("restart the node"), "{refused}");
    assert_ne!(client.write(0, &block(78)), 0, "nobody serves it");
    let open = Native::connect(addresses(&scene)[0])
        .open("vm", &owner, 0)
        .status();
    assert_ne!(open, Status::Ok);
    assert!(scene.show("vm").is_err());
    let seen = hooked.seen.lock().expect("whole").clone();
    let refusals = seen.iter().filter(|at| **at == MovePoint::JournalRefused);
    assert_eq!(refusals.count(), 4);
    std::fs::rename(&hooked.away, &hooked.device).expect("renamed");
    let scene = scene.restart(two_cores);
    let mut client = scene.attach("vm");
    assert_eq!(client.call(client::READ, 0, BLOCK as u32), (0, block(77)));
}

#[test]
fn a_node_that_stops_while_a_journal_goes_has_all_of_it_at_the_next_start() {
    for point in [MovePoint::JournalHeld, MovePoint::JournalClosed] {
        let stuck = Arc::new(AtomicBool::new(false));
        let scene = scene_with(|options| {
            let stuck = stuck.clone();
            options.stop_grace_ms = 50;
            options.move_hooks = MoveHooks::at_points(move |at| {
                stuck.store(at == point, Ordering::SeqCst);
                at != point
            });
        });
        volume(&scene, "vm", Some(0));
        let mut client = scene.attach("vm");
        for at in 0..16 {
            assert_eq!(client.write(at * BLOCK, &block(at + 1)), 0);
        }
        let node = scene.node.clone();
        let asked = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let name = "main".to_owned();
            let handed = runtime.block_on(node.hand_over_journal(name, 0, 1));
            handed.map_err(|error| error.kind)
        });
        let until = Instant::now() + Duration::from_secs(30);
        while !stuck.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "it comes to {point:?}");
            thread::sleep(Duration::from_millis(1));
        }
        // Until then everything can be looked at, and nothing be changed.
        assert_eq!(scene.show("vm").expect("is there").core, 0);
        let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 16 * MIB, false));
        assert_eq!(resized.expect_err("busy").kind, NodeErrorKind::Busy);
        assert_eq!(
            hand_over(&scene, 0, 1).expect_err("busy").kind,
            NodeErrorKind::Busy
        );
        client.submit(client::WRITE, 0, BLOCK as u32, &block(99));
        let down = scene.down();
        let handed = asked.join().expect("is told");
        assert_eq!(
            handed.expect_err("the node has stopped"),
            NodeErrorKind::Unavailable
        );
        let scene = down.up(two_cores);
        let mut client = scene.attach("vm");
        for at in 0..16 {
            let found = client.call(client::READ, at * BLOCK, BLOCK as u32);
            assert_eq!(found, (0, block(at + 1)), "block {at} behind {point:?}");
        }
    }
}

/// What is on the device at any moment of a hand-over is a journal like any other: a copy of it is opened by another node.
#[test]
fn who_dies_while_a_journal_goes_has_lost_nothing() {
    for point in [MovePoint::JournalHeld, MovePoint::JournalClosed] {
        let sprung = Arc::new(AtomicBool::new(false));
        let scene = scene_with(|options| {
            let device = options.devices[0].path.clone();
            let sprung = sprung.clone();
            options.stop_grace_ms = 50;
            options.move_hooks = MoveHooks::at_points(move |at| {
                if at == point && !sprung.swap(true, Ordering::SeqCst) {
                    let image = device.with_file_name("dead.img");
                    std::fs::copy(&device, image).expect("an image");
                }
                true
            });
        });
        let owner: TokenText = volume(&scene, "vm", Some(0));
        let mut client = scene.attach("vm");
        for at in 0..64 {
            let flags = if at % 2 == 0 { client::FUA } else { 0 };
            assert_eq!(client.write_with(flags, at * BLOCK, &block(at + 1)), 0);
        }
        hand_over(&scene, 0, 1).expect("is handed over");
        assert!(sprung.load(Ordering::SeqCst));
        let scene = scene.down().with_image("dead.img").up(two_cores);
        let mut native = Native::connect(addresses(&scene)[0]);
        let open = native.opened("vm", &owner, 0);
        for at in 0..64 {
            let found = native.read(open, at * BLOCK, BLOCK).payload;
            // A copy of a file holds what was written, flushed or not.
            assert_eq!(found, block(at + 1), "block {at} behind {point:?}");
        }
    }
}
