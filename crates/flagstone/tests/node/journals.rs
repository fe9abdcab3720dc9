//! Journals are handed from one core to another while clients use their volumes.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    DeviceInfo, FilesystemInfo, FilesystemSpec, HandedOverJournal, JournalInfo, MoveHooks,
    MovePoint, MoveSpec, Node, NodeError, NodeErrorKind, NodeFuture, NodeOptions, PageQuery,
    Reservation, ScrubState, Slo, SloLimit, SnapshotQuery, SnapshotSchedule, StreamRun, TokenKind,
    TokenSpec, TokenText, VolumeSpec,
};
use flagstone_client::{Durability, Target};
use flagstone_platform::IoBuf;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo, batch};

use crate::between::with_client;
use crate::client;
use crate::moves::{block, ended, use_it};
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::{Scene, copy_image};

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
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    }
}

fn home() -> FilesystemSpec {
    FilesystemSpec {
        name: "home".to_owned(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        zeros_to_holes: false,
        one_device: None,
        owner_uid: 0,
        owner_gid: 0,
        slo: Slo::default(),
        oversubscribe: false,
    }
}

fn filesystem(scene: &Scene, name: &str) -> Result<FilesystemInfo, NodeError> {
    let spec = FilesystemSpec {
        name: name.to_owned(),
        ..home()
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

/// Waits until that is so.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Does something with a node beside the rest of the test, again and again.
struct Beside {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Beside {
    fn run(scene: &Scene, mut work: impl FnMut(&Asking, u64) + Send + 'static) -> Beside {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (stop.clone(), rounds.clone());
        let asking = Asking::new(scene);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let round = counted.load(Ordering::Relaxed);
                work(&asking, round);
                counted.store(round + 1, Ordering::Relaxed);
            }
        });
        Beside {
            stop,
            rounds,
            thread,
        }
    }

    /// How often it was done.
    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("nothing was wrong");
    }
}

/// Who asks the node from a thread of his own.
struct Asking {
    node: Arc<dyn Node>,
    runtime: tokio::runtime::Runtime,
}

impl Asking {
    fn new(scene: &Scene) -> Asking {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        Asking {
            node: scene.node.clone(),
            runtime: builder.enable_all().build().expect("a runtime"),
        }
    }

    fn ask<T>(&self, asked: impl FnOnce(&dyn Node) -> NodeFuture<'_, T>) -> Result<T, NodeError> {
        self.runtime.block_on(asked(&*self.node))
    }
}

/// Asks for a change until it is made: a journal that just goes refuses some, with these words and no others.
fn insist<T>(doing: &str, mut asked: impl FnMut() -> Result<T, NodeError>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match asked() {
            Ok(done) => return done,
            Err(error) => {
                let kinds = [NodeErrorKind::Busy, NodeErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind), "{doing}: {error}");
                assert!(Instant::now() < until, "{doing}: {error}");
                thread::sleep(Duration::from_micros(200));
            }
        }
    }
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

/// One was opened before the journal went away and came back, and the other one behind that.
#[test]
fn what_is_asked_of_two_volumes_is_not_refused_since_one_of_them_was_elsewhere() {
    let scene = scene_with(|_| {});
    let owners = ["vm", "beside"].map(|name| volume(&scene, name, Some(0)));
    let mut native = Native::connect(addresses(&scene)[0]);
    let before = native.opened("vm", &owners[0], 0);
    for core in [1, 0] {
        hand_over(&scene, 0, core).expect("is handed over");
    }
    let beside = native.opened("beside", &owners[1], 0);
    let ask_both = |native: &mut Native, vm: VolumeNo, name: &str| {
        let both = [vm, beside];
        let no_conditions: [batch::Condition; 0] = [];
        let changes = both.map(|volume| batch::Change::Write {
            volume,
            offset_bytes: 0,
            len_bytes: 8,
            metadata: 0,
        });
        let ranges = both.map(|volume| batch::ReadRange {
            volume,
            offset_bytes: 0,
            len_bytes: 8,
        });
        let mut bodies = [Vec::new(), Vec::new(), vec![2, 0]];
        batch::encode(&no_conditions, &changes, &mut bodies[0]).expect("few");
        batch::encode(&no_conditions, &ranges, &mut bodies[1]).expect("few");
        for volume in both {
            bodies[2].extend(volume.0.to_le_bytes());
            bodies[2].extend((name.len() as u16).to_le_bytes());
            bodies[2].extend(name.as_bytes());
        }
        let [commit, read, snapshot] = bodies;
        let head = RequestHeader::of;
        [
            native.ask(head(Operation::Commit), &commit, &[5; 16]),
            native.ask(head(Operation::ReadIf), &read, &[]),
            native.ask(head(Operation::Snapshot), &snapshot, &[]),
        ]
    };
    for answer in ask_both(&mut native, before, "one") {
        assert_eq!(answer.status(), Status::Moved, "{}", answer.sentence());
        assert_eq!(answer.moved_to(), addresses(&scene)[0]);
    }
    let vm = native.opened("vm", &owners[0], 0);
    for answer in ask_both(&mut native, vm, "two") {
        assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
    }
    assert_eq!(native.read(vm, 0, 8).payload, [5; 8]);
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
    for at in 1..7 {
        assert_eq!(client.write(at * MIB, &[9; 1 << 20]), 0);
    }
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
    // A checkpoint is written once more, and what a checkpoint sets free is free.
    hand_over(&scene, 0, 1).expect("is handed over");
    hand_over(&scene, 0, 0).expect("is handed over");
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
    let copied = before.free_bytes.abs_diff(after.free_bytes);
    assert!(copied < MIB, "nothing was copied: {before:?}, {after:?}");
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

/// Scripts repeat commands.
#[test]
fn who_hands_a_journal_over_again_finds_it_there() {
    let scene = scene_with(|_| {});
    volume(&scene, "vm", Some(0));
    let first = hand_over(&scene, 0, 1).expect("is handed over");
    assert!(first.held_us > 0, "{first:?}");
    let again = hand_over(&scene, 0, 1).expect("is there");
    let expected = HandedOverJournal {
        from_core: 1,
        held_us: 0,
        ..first
    };
    assert_eq!(again, expected);
    assert_eq!(cores(&scene)[0], 1);
    // It went once, and none has failed, or was refused.
    let counts = || ["hand_overs_done", "hand_overs_failed"].map(|name| counted(&scene, name));
    assert_eq!(counts(), [1, 0]);
    hand_over(&scene, 0, 0).expect("is handed over");
    assert_eq!(counts(), [2, 0]);
    // So does who names the core of one that would not go elsewhere.
    filesystem(&scene, "home").expect("created");
    hand_over(&scene, 0, 0).expect("is there");
    hand_over(&scene, 0, 1).expect_err("stays");
    assert_eq!(counts(), [2, 0], "nothing of it was tried");
}

#[test]
fn what_can_not_be_handed_over_stays_and_says_why() {
    let scene = scene_with(|_| {});
    volume(&scene, "vm", Some(0));
    let kind = |journal, core| {
        let refused = hand_over(&scene, journal, core).expect_err("is refused");
        refused.kind
    };
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
                    let kinds = [NodeErrorKind::Busy, NodeErrorKind::NotFound];
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

/// Where on its device a block is.
fn place_of(path: &Path, wanted: &[u8]) -> u64 {
    let mut file = File::open(path).expect("the device");
    let mut part = vec![0; 1 << 20];
    for first in (0..).step_by(1 << 20) {
        file.read_exact(&mut part).expect("it is on the device");
        let found = part.chunks(wanted.len()).position(|block| block == wanted);
        if let Some(found) = found {
            return first + (found * wanted.len()) as u64;
        }
    }
    unreachable!("devices have an end")
}

/// A scrub finds what is wrong in each journal, and goes on knowing it, wherever that goes.
#[test]
fn what_a_scrub_finds_goes_with_its_journal() {
    let slow = "latency reads=100us";
    let scene = scene_with(|options| {
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    });
    volume(&scene, "vm", Some(0));
    let mut client = scene.attach("vm");
    for at in 0..4 {
        assert_eq!(client.write(at * MIB, &[at as u8 + 1; 1 << 20]), 0);
    }
    assert_eq!(client.write_with(client::FUA, 3 * BLOCK, &block(0xdead)), 0);
    let path = scene.device_path();
    let place = place_of(&path, &block(0xdead));
    let file = File::options().write(true).open(&path);
    let damaged = file.expect("the device").write_all_at(&[0], place + 1);
    damaged.expect("written");
    let main = || "main".to_owned();
    let scrub = Beside::run(&scene, move |asking, _| {
        let begun = asking.ask(|node| node.start_scrub(main()));
        begun.expect("begins");
        let mut status = asking.ask(|node| node.scrub_status(main()));
        while status.as_ref().expect("a status").state == ScrubState::Running {
            thread::sleep(Duration::from_micros(500));
            status = asking.ask(|node| node.scrub_status(main()));
        }
        let status = status.expect("a status");
        assert_eq!(status.bad_blocks, 1, "{status:?}");
        assert!(status.checked_bytes >= 4 * MIB, "{status:?}");
        assert_eq!(status.findings.len(), 1, "{status:?}");
        assert!(status.findings[0].contains("'vm', 4096 bytes at 12288"));
    });
    for round in 0..30_u32 {
        hand_over(&scene, 0, 1 - round % 2).expect("is handed over");
        // So that some find one in the middle, and others none.
        thread::sleep(Duration::from_millis(u64::from(round) * 3));
    }
    wait_until("they come to an end", || scrub.rounds() >= 3);
    scrub.end();
    let before = scene.ask(|node| node.scrub_status(main())).expect("told");
    assert_eq!((before.state, before.bad_blocks), (ScrubState::Finished, 1));
    hand_over(&scene, 0, 1).expect("is handed over");
    let after = scene.ask(|node| node.scrub_status(main())).expect("told");
    assert_eq!(after, before);
}

/// Commands of all kinds cross hand-overs: each is done or refused as busy, and none finds that there is no such volume.
#[test]
fn commands_that_cross_a_hand_over_are_done_or_come_again() {
    // So that they take a while.
    let slow = "latency reads=300us writes=300us";
    let scene = scene_with(|options| {
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    });
    for name in ["vm", "other", "third"] {
        volume(&scene, name, Some(0));
    }
    let taken = |name: &str| SnapshotRef {
        volume: "other".to_owned(),
        snapshot: name.to_owned(),
    };
    for name in ["a", "b"] {
        scene
            .ask(|node| node.create_snapshots(vec![taken(name)]))
            .expect("taken");
        assert_eq!(scene.attach("other").write(0, &[3; 1 << 20]), 0);
    }
    let looks = Beside::run(&scene, |asking, _| {
        for name in ["vm", "other", "third"] {
            let shown = asking.ask(|node| node.show_volume(name.to_owned()));
            assert_eq!(shown.expect("is there").journal, 0);
        }
        let all = PageQuery {
            after: None,
            limit: 100,
            prefix: None,
        };
        let listed = asking.ask(|node| node.list_volumes(all)).expect("listed");
        let named = |name: &str| listed.items.iter().any(|one| one.name == name);
        assert!(
            ["vm", "other", "third"].into_iter().all(named),
            "{listed:?}"
        );
        let listed = asking.ask(|node| node.list_journals("main".to_owned()));
        let numbers = listed.expect("listed").into_iter().map(|one| one.journal);
        assert!(numbers.eq(0..4), "each of them once");
    });
    let snapshots = Beside::run(&scene, move |asking, round| {
        let all = SnapshotQuery {
            volume: Some("other".to_owned()),
            after: None,
            limit: 100,
        };
        let listed = asking.ask(|node| node.list_snapshots(all)).expect("listed");
        let unique: Vec<_> = listed.items.iter().map(|one| one.unique_bytes).collect();
        assert!(unique.len() >= 2 && unique[1] == MIB, "{unique:?}");
        let snapshot = taken(&format!("s{round}"));
        insist("taking", || {
            asking.ask(|node| node.create_snapshots(vec![snapshot.clone()]))
        });
        insist("deleting a snapshot", || {
            asking.ask(|node| node.delete_snapshot(snapshot.clone()))
        });
    });
    let changes = Beside::run(&scene, |asking, round| {
        let slo = Slo {
            limit: SloLimit {
                reads: Some(100_000 + round),
                ..SloLimit::default()
            },
            ..Slo::default()
        };
        let vm = || "vm".to_owned();
        let set = insist("setting", || {
            asking.ask(|node| node.set_slo(vm(), slo, false))
        });
        assert_eq!(set.slo, slo);
        let size = 8 * MIB + round * BLOCK;
        let resized = insist("resizing", || {
            asking.ask(|node| node.resize_volume(vm(), size, false))
        });
        assert_eq!((resized.size_bytes, resized.slo), (size, slo));
        let token = TokenSpec {
            kind: TokenKind::Reader,
            ends_in_s: None,
            label: String::new(),
        };
        let made = insist("making a token", || {
            asking.ask(|node| node.create_token(vm(), token.clone()))
        });
        let number = made.info.number;
        insist("revoking", || {
            asking.ask(|node| node.revoke_token(vm(), number))
        });
    });
    let goers = Beside::run(&scene, |asking, round| {
        let name = format!("v{round}");
        let at = VolumeSpec {
            core: Some(round as u32 % 2),
            ..spec(&name)
        };
        insist("creating", || {
            asking.ask(|node| node.create_volume(at.clone()))
        });
        // One of a snapshot: nobody asks whether its volume is just going.
        let clone = format!("clone-{round}");
        insist("cloning", || {
            let source = "other@a".parse().expect("a snapshot");
            asking.ask(|node| node.clone_volume(source, clone.clone()))
        });
        insist("deleting the clone", || {
            asking.ask(|node| node.delete_volume(clone.clone(), false))
        });
        let renamed = format!("renamed-{round}");
        insist("renaming", || {
            asking.ask(|node| node.rename_volume(name.clone(), renamed.clone()))
        });
        insist("deleting", || {
            asking.ask(|node| node.delete_volume(renamed.clone(), false))
        });
    });
    let all = [looks, snapshots, changes, goers];
    for round in 0..40_u32 {
        let before = all.each_ref().map(Beside::rounds);
        let moved = insist("handing over", || hand_over(&scene, 0, 1 - round % 2));
        assert!((3..=5).contains(&moved.volume_count), "{moved:?}");
        wait_until("they go on", || {
            let now = all.each_ref().map(Beside::rounds);
            now.iter().zip(before).all(|(now, before)| *now > before)
        });
    }
    for one in all {
        one.end();
    }
    let shown = scene.show("vm").expect("is there");
    let scene = scene.restart(two_cores);
    let again = scene.show("vm").expect("is there");
    assert_eq!(
        (again.size_bytes, again.slo, again.snapshot_count),
        (shown.size_bytes, shown.slo, shown.snapshot_count)
    );
    let left: u64 = journals(&scene).iter().map(|one| one.volume_count).sum();
    assert_eq!(left, 3);
}

/// What of a snapshot is sent begins where its journal is, or behind where that goes: none that has begun breaks off.
#[test]
fn streams_that_begin_while_their_journal_goes_are_whole() {
    // So that hand-overs take a while.
    let slow = "latency reads=300us writes=300us";
    let scene = scene_with(|options| {
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    });
    volume(&scene, "vm", Some(0));
    assert_eq!(scene.attach("vm").write(0, &[3; 1 << 20]), 0);
    let taken = || SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: "s".to_owned(),
    };
    scene
        .ask(|node| node.create_snapshots(vec![taken()]))
        .expect("taken");
    let sends = Beside::run(&scene, move |asking, _| {
        let source = insist("sending", || {
            asking.ask(|node| node.open_stream(taken(), None))
        });
        let (mut at, mut sent) = (0, 0);
        while at < source.header.size_bytes {
            let part = asking.ask(|node| node.read_stream(source.clone(), at));
            let part = part.expect("is read, since it has begun");
            sent += part.runs.iter().map(StreamRun::data_bytes).sum::<u64>();
            at = part.next_bytes;
        }
        assert_eq!(sent, MIB);
        drop(source);
        // Or the journal would never go.
        thread::sleep(Duration::from_millis(2));
    });
    for round in 0..40_u32 {
        let before = sends.rounds();
        insist("handing over", || hand_over(&scene, 0, 1 - round % 2));
        wait_until("they go on", || sends.rounds() > before);
    }
    sends.end();
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

/// Also if a core has no other journal. Once it is empty, it is as any other.
#[test]
fn nobody_joins_a_volume_apart_until_it_has_gone() {
    let scene = scene_with(|_| {});
    let on_1 = |name: &str, apart| {
        let spec = VolumeSpec {
            apart,
            core: Some(1),
            ..spec(name)
        };
        scene.ask(|node| node.create_volume(spec))
    };
    let vm = on_1("vm", true).expect("created").volume;
    assert_eq!(vm.journal, 3);
    let apart = || {
        let all = journals(&scene).into_iter();
        let apart = all.filter(|one| one.is_apart).map(|one| one.journal);
        apart.collect::<Vec<_>>()
    };
    assert_eq!(apart(), [3]);
    hand_over(&scene, 1, 0).expect("is handed over");
    let refused = on_1("beside", false).expect_err("there is no place for it");
    assert_eq!(refused.kind, NodeErrorKind::NotFound);
    assert!(refused.found.contains("one volume's"), "{refused}");
    volume(&scene, "elsewhere", None);
    assert_eq!(scene.show("elsewhere").expect("is there").core, 0);
    let to_1 = || {
        let to = MoveSpec {
            core: Some(1),
            ..MoveSpec::default()
        };
        scene.ask(|node| node.move_volume("elsewhere".to_owned(), to))
    };
    assert_eq!(to_1().expect_err("nor there").kind, NodeErrorKind::NotFound);
    // It goes along with the journal, there and back.
    hand_over(&scene, 3, 0).expect("is handed over");
    assert_eq!(apart(), [3]);
    hand_over(&scene, 3, 1).expect("is handed over");
    // What is made of it is with it.
    let source = "vm".parse().expect("a volume");
    scene
        .ask(|node| node.clone_volume(source, "clone".to_owned()))
        .expect("cloned");
    for (name, left) in [("vm", [3].as_slice()), ("clone", [].as_slice())] {
        scene
            .ask(|node| node.delete_volume(name.to_owned(), false))
            .expect("deleted");
        assert_eq!(apart(), left);
    }
    let beside = on_1("beside", false).expect("created").volume;
    assert_eq!(beside.journal, 3);
    // The same if it is moved away.
    to_1().expect("begins");
    ended(&scene, "elsewhere");
    hand_over(&scene, 1, 1).expect("is handed over");
    let again = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            apart: true,
            core: Some(0),
            ..spec("again")
        })
    });
    let again = again.expect("created").volume;
    assert_eq!(apart(), [again.journal]);
    let to = MoveSpec {
        core: Some(1),
        ..MoveSpec::default()
    };
    scene
        .ask(|node| node.move_volume("again".to_owned(), to))
        .expect("begins");
    ended(&scene, "again");
    wait_until("it is empty", || apart().is_empty());
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
    // Nor in one that is another core's when the node has more of them.
    let refused = filesystem(&scene, "home").expect_err("is refused");
    assert_eq!(refused.kind, NodeErrorKind::Busy);
    assert!(
        refused.next_step.contains("--journal 0 --to-core 0"),
        "{refused}"
    );
    hand_over(&scene, 0, 0).expect("is handed over");
    filesystem(&scene, "home").expect("created");
    let listed = journals(&scene);
    let home = listed
        .iter()
        .find(|one| one.has_filesystems)
        .expect("is one");
    assert_eq!((home.journal, home.core), (0, 0));
    let mut scene = scene;
    for cores in [3, 1, 4, 2] {
        scene = scene.restart(|options| options.cores = Some(cores));
        let shown = scene.ask(|node| node.show_filesystem("home".to_owned()));
        shown.expect("is found");
        filesystem(&scene, &format!("with-{cores}")).expect("created");
    }
    let all = scene.ask(|node| node.list_filesystems(PageQuery::default()));
    assert_eq!(all.expect("listed").items.len(), 5);
    let listed = journals(&scene);
    let having = listed.iter().filter(|one| one.has_filesystems);
    assert_eq!(having.count(), 1);
}

/// Its first one is made while the journal is to go: either the journal has it and stays, or it goes and the filesystem isn't made.
#[test]
fn a_journal_in_which_a_filesystem_just_begins_stays() {
    let slow = "latency writes=2ms";
    let mut refused = 0;
    for round in 0..20 {
        let scene = Scene::formatted(2 << 30, true, |options| {
            two_cores(options);
            options.devices[0].layers = vec![slow.parse().expect(slow)];
        });
        let scene = scene.expect("a node");
        let asking = Asking::new(&scene);
        let maker = thread::spawn(move || asking.ask(|node| node.create_filesystem(home())));
        // None of the writes of its creation is done by then.
        thread::sleep(Duration::from_micros(500 * (round % 8)));
        let handed = hand_over(&scene, 0, 1);
        let made = maker.join().expect("is answered");
        let has = journals(&scene)[0].has_filesystems;
        match handed {
            // Then there is no place for it.
            Ok(_) => {
                assert!(!has, "it didn't go with the journal");
                assert_eq!(made.expect_err("is refused").kind, NodeErrorKind::Busy);
                hand_over(&scene, 0, 0).expect("is handed over");
            }
            Err(error) => {
                assert_eq!(error.kind, NodeErrorKind::InvalidArgument, "{error}");
                made.expect("is made");
                let shown = scene.ask(|node| node.show_filesystem("home".to_owned()));
                shown.expect("is there");
                assert!(has);
                refused += 1;
            }
        }
        filesystem(&scene, "more").expect("they go on");
        if refused == 3 {
            return;
        }
    }
    panic!("the first filesystem was never in the way of the journal");
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
    let looks = Beside::run(&scene, |asking, _| {
        let shown = asking.ask(|node| node.show_volume("vm".to_owned()));
        assert_eq!(shown.expect("is there").core, 0);
        let listed = asking.ask(|node| node.list_journals("main".to_owned()));
        assert_eq!(listed.expect("listed")[0].volume_count, 1);
    });
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
        assert_eq!(device(&scene).closed_journals, [0; 0]);
        wait_until("clients go on", || {
            done.load(Ordering::Relaxed) >= before + 100
        });
    }
    looks.end();
    stop.store(true, Ordering::Relaxed);
    user.join().expect("no client saw an error or a wrong byte");
    scene.create("new", MIB).expect("created");
    let new = scene.show("new").expect("is there");
    let counts = || {
        let names = ["hand_overs_done", "hand_overs_failed", "closed_journals"];
        names.map(|name| counted(&scene, name))
    };
    assert_eq!(counts(), [0, 3, 0]);
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
    assert_eq!(open, Status::Stopping, "it will be there again");
    // And says why, whatever is asked of it.
    let is_closed = |error: NodeError| {
        assert_eq!(error.kind, NodeErrorKind::Unavailable, "{error}");
        assert!(error.found.contains("closed"), "{error}");
    };
    is_closed(scene.show("vm").expect_err("is closed"));
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 16 * MIB, false));
    is_closed(resized.expect_err("is closed"));
    let query = SnapshotQuery {
        volume: Some("vm".to_owned()),
        ..SnapshotQuery::default()
    };
    let listed = scene.ask(|node| node.list_snapshots(query));
    is_closed(listed.expect_err("is closed"));
    let snapshot = scene.ask(|node| node.show_snapshot("vm@monday".parse().expect("a name")));
    let error = snapshot.expect_err("is closed");
    assert_eq!(error.doing, "showing snapshot 'vm@monday'");
    is_closed(error);
    let devices = scene.ask(|node| node.list_devices()).expect("listed");
    for shown in [&devices[0], &device(&scene)] {
        assert_eq!(shown.closed_journals, [0]);
    }
    assert_eq!(counts(), [0, 4, 1]);
    let again = hand_over(&scene, 0, 1).expect_err("is closed");
    assert!(again.next_step.contains("restart the node"), "{again}");
    let listed = &journals(&scene)[0];
    assert!(listed.closed.is_some() && !listed.takes_new, "{listed:?}");
    assert_eq!(listed.volume_count, 1 + u64::from(new.journal == 0));
    let info = scene.ask(|node| node.info()).expect("its description");
    let notice = info.notices.iter().find(|notice| notice.contains("closed"));
    let notice = notice.expect("whoever looks at the node is told");
    assert!(notice.contains("journal 0 of device 'main'"), "{notice}");
    // New volumes go elsewhere, and a scrub is of what is there.
    for name in ["a", "b"] {
        scene.create(name, MIB).expect("created");
        assert_ne!(scene.show(name).expect("is there").journal, 0);
    }
    scene
        .ask(|node| node.start_scrub("main".to_owned()))
        .expect("begins");
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
        // The last block that was answered when the image was made.
        let answered = Arc::new(AtomicU64::new(0));
        let (sprung, seen) = (Arc::new(AtomicU64::new(0)), answered.clone());
        let scene = scene_with(|options| {
            let device = options.devices[0].path.clone();
            let sprung = sprung.clone();
            options.stop_grace_ms = 50;
            options.move_hooks = MoveHooks::at_points(move |at| {
                if at == point && sprung.load(Ordering::SeqCst) == 0 {
                    sprung.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
                    copy_image(&device, &device.with_file_name("dead.img"));
                }
                true
            });
        });
        let owner: TokenText = volume(&scene, "vm", Some(0));
        let (mut client, told) = (scene.attach("vm"), answered.clone());
        let writer = Beside::run(&scene, move |_, round| {
            let number = round + 1;
            let flags = if number % 2 == 0 { client::FUA } else { 0 };
            assert_eq!(
                client.write_with(flags, number % 64 * BLOCK, &block(number)),
                0
            );
            told.store(number, Ordering::SeqCst);
        });
        wait_until("it writes", || writer.rounds() >= 200);
        hand_over(&scene, 0, 1).expect("is handed over");
        let last = sprung.load(Ordering::SeqCst);
        wait_until("and goes on", || writer.rounds() >= last + 200);
        writer.end();
        let scene = scene.down().with_image("dead.img").up(two_cores);
        let mut native = Native::connect(addresses(&scene)[0]);
        let open = native.opened("vm", &owner, 0);
        for at in 0..64 {
            let found = native.read(open, at * BLOCK, BLOCK).payload;
            let number = u64::from_le_bytes(*found.first_chunk().expect("a number"));
            // A copy of a file holds what was written, flushed or not. One more may have been under way.
            assert!(
                found == block(number)
                    && number % 64 == at
                    && (last - 63..=last + 1).contains(&number),
                "block {at} behind {point:?}: {number}, and {last} was answered"
            );
        }
    }
}
