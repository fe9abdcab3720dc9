//! Volumes that are striped over several cores.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{
    CreatedVolume, MoveHooks, MovePoint, MoveSpec, NodeError, NodeErrorKind, NodeFuture,
    NodeOptions, PageQuery, Rates, Reservation, Slo, SloLimit, SloPromise, SnapshotSchedule,
    VolumeInfo, VolumeSpec,
};
use flagstone::offline::{InspectOptions, inspect};
use flagstone_client::{Durability, Target};
use flagstone_platform::IoBuf;
use flagstone_types::Lsn;
use flagstone_wire::Status;

use crate::between::with_client;
use crate::client::{self, Client};
use crate::native::client::Native;
use crate::native::{addresses, listening};
use crate::support::Scene;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 64 * KIB;
/// No whole number of units, nor of blocks for each member.
const SIZE: u64 = 4 * MIB + 3 * UNIT + 20 * KIB;

fn two_cores(options: &mut NodeOptions) {
    options.cores = Some(2);
    listening(options);
}

fn scene() -> Scene {
    Scene::start(2 << 30, two_cores).expect("a node")
}

fn spec(name: &str, stripes: u32) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: SIZE,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes: Some(stripes),
        stripe_unit_bytes: Some(UNIT),
        slo: Default::default(),
        oversubscribe: false,
    }
}

fn create(scene: &Scene, name: &str, stripes: u32) -> CreatedVolume {
    let created = scene.ask(|node| node.create_volume(spec(name, stripes)));
    created.expect("created")
}

fn show(scene: &Scene, name: &str) -> VolumeInfo {
    scene.show(name).expect("is there")
}

fn at(volume: &str, snapshot: &str) -> SnapshotRef {
    SnapshotRef::new(volume, snapshot).expect("names")
}

fn snapshot(scene: &Scene, volume: &str, name: &str) -> Result<(), NodeError> {
    let taken = scene.ask(|node| node.create_snapshots(vec![at(volume, name)]));
    taken.map(drop)
}

fn resize(scene: &Scene, volume: &str, size_bytes: u64) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.resize_volume(volume.to_owned(), size_bytes, true))
}

/// How many dvols that are volumes, or members of some, the device's journals have.
fn dvols(scene: &Scene) -> u64 {
    let journals = scene.ask(|node| node.list_journals("main".to_owned()));
    let journals = journals.expect("are listed");
    journals.iter().map(|one| one.volume_count).sum()
}

fn kind<T: std::fmt::Debug>(result: Result<T, NodeError>) -> NodeErrorKind {
    result.expect_err("is refused").kind
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn filled(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

/// Writes at random places, across borders of units, and zeros and holes; the same to `model`.
fn change_it(client: &mut Client, model: &mut [u8], random: &mut Random, rounds: u64) {
    for _ in 0..rounds {
        let len = match random.below(4) {
            0 => 1 + random.below(8 * KIB),
            1 => 4 * KIB,
            2 => UNIT + random.below(3 * UNIT),
            _ => 1 + random.below(12 * UNIT),
        };
        let len = len.min(model.len() as u64);
        let at = random.below(model.len() as u64 - len + 1);
        let range = at as usize..(at + len) as usize;
        match random.below(6) {
            0 => {
                assert_eq!(client.call_with(0, client::ZEROES, at, len as u32), 0);
                model[range].fill(0);
            }
            1 => {
                let blocks = at.next_multiple_of(4096)..(at + len) / 4096 * 4096;
                if blocks.is_empty() {
                    continue;
                }
                let trimmed = (blocks.end - blocks.start) as u32;
                assert_eq!(client.call_with(0, client::TRIM, blocks.start, trimmed), 0);
                model[blocks.start as usize..blocks.end as usize].fill(0);
            }
            _ => {
                let data = filled(random, len);
                let flags = if random.below(2) == 0 { client::FUA } else { 0 };
                assert_eq!(client.write_with(flags, at, &data), 0);
                model[range].copy_from_slice(&data);
            }
        }
    }
}

fn all_of(client: &mut Client, size_bytes: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size_bytes {
        let at = bytes.len() as u64;
        let len = (size_bytes - at).min(MIB - 100) as u32;
        let (error, part) = client.call(client::READ, at, len);
        assert_eq!(error, 0, "at {at}");
        bytes.extend(part);
    }
    bytes
}

fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other);
    assert_eq!(differs, None, "{what}: the first byte that is another one");
}

#[test]
fn it_is_one_volume_over_all_its_members() {
    let scene = scene();
    create(&scene, "hot", 4);
    let info = show(&scene, "hot");
    let stripe = info.stripe.clone().expect("is striped");
    assert_eq!((info.size_bytes, stripe.unit_bytes), (SIZE, UNIT));
    let mut cores: Vec<u32> = stripe.members.iter().map(|member| member.core).collect();
    assert_eq!(cores.len(), 4);
    cores.sort_unstable();
    assert_eq!(cores, [0, 0, 1, 1], "each core has as many");
    let (mut random, mut model) = (Random(1), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 300);
    assert_same(&all_of(&mut client, SIZE), &model, "what was written");
    // Of all members together, and each has some.
    let info = show(&scene, "hot");
    let each = info.stripe.expect("is striped").members;
    let each: Vec<u64> = each.iter().map(|member| member.mapped_bytes).collect();
    assert_eq!(info.mapped_bytes, each.iter().sum::<u64>());
    assert!(each.iter().all(|bytes| *bytes > 0), "{each:?}");
    // Behind the end is nothing, although a member may be longer.
    assert_ne!(client.call(client::READ, SIZE - 1, 2).0, 0);
    assert_ne!(client.write(SIZE - 1, &[1, 2]), 0);
    // It is one volume.
    let page = scene.ask(|node| node.list_volumes(PageQuery::default()));
    let names: Vec<String> = page
        .expect("listed")
        .items
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(names, ["hot"]);
    let device = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("shown");
    assert_eq!(device.volume_count, 1);
    assert_eq!(dvols(&scene), 4);
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let shown: Vec<&str> = metrics.volumes.iter().map(|v| v.volume.as_str()).collect();
    assert_eq!(shown, ["hot"]);
    assert!(metrics.volumes[0].write.operations > 100);
    drop(client);
    // And stays so.
    let scene = scene.restart(two_cores);
    let mut client = scene.attach("hot");
    assert_same(&all_of(&mut client, SIZE), &model, "behind a start");
    change_it(&mut client, &mut model, &mut random, 50);
    drop(client);
    // With fewer cores as well.
    let scene = scene.restart(|options| options.cores = Some(1));
    let mut client = scene.attach("hot");
    assert_same(&all_of(&mut client, SIZE), &model, "with one core");
    drop(client);
    let deleted = scene.ask(|node| node.delete_volume("hot".to_owned(), false));
    deleted.expect("is deleted");
    assert_eq!(dvols(&scene), 0, "its members, too");
}

#[test]
fn clients_of_the_native_protocol_have_it_as_well() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    let core = show(&scene, "hot").core as usize;
    let mut native = Native::connect(addresses(&scene)[core]);
    let open = native.opened("hot", &token, 0);
    let mut random = Random(3);
    let data = filled(&mut random, 5 * UNIT + 1000);
    let written = native.write(open, UNIT - 500, &data, 0);
    assert_eq!(written.status(), Status::Ok, "{}", written.sentence());
    let read = native.read(open, UNIT - 500, data.len() as u64);
    assert_eq!(read.payload, data);
    assert_same(
        &scene
            .attach("hot")
            .call(client::READ, UNIT - 500, data.len() as u32)
            .1,
        &data,
        "over NBD",
    );
    let behind = native.read(open, SIZE - 10, 20);
    assert_eq!(behind.status(), Status::OutOfRange);
}

/// All that a client can do with it, and what it can't.
#[test]
fn the_client_library_knows_no_difference() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    // From another core's address it is sent on.
    let core = show(&scene, "hot").core as usize;
    let address = addresses(&scene)[1 - core];
    let target = Target::Name("hot".to_owned());
    let used = with_client(address, target, &token, |_, volume| async move {
        let at = UNIT - 4096;
        let data = filled(&mut Random(4), 3 * UNIT);
        assert_eq!(volume.describe().await.expect("told").size_bytes, SIZE);
        let wrote = volume.write(at, IoBuf::copy_of(&data), Durability::Visible);
        wrote.await.expect("written");
        volume.flush().await.expect("flushed");
        volume.snapshot("s").await.expect("taken");
        let zero = volume.zero(at, UNIT, false, Durability::Durable);
        zero.await.expect("zeros");
        let gone = volume.deallocate(at + UNIT, UNIT, Durability::Durable);
        gone.await.expect("given back");
        let mut now = data.clone();
        now[..2 * UNIT as usize].fill(0);
        let read = volume.read(at, 3 * UNIT).await.expect("read");
        assert_same(&read, &now, "changed");
        let runs = volume.allocation(0, SIZE, 100).await.expect("told");
        let marked = runs.iter().filter(|run| run.is_marked);
        assert_eq!(marked.map(|run| run.len_bytes).sum::<u64>(), UNIT);
        assert_eq!(runs.iter().map(|run| run.len_bytes).sum::<u64>(), SIZE);
        volume.roll_back("s").await.expect("rolled back");
        let read = volume.read(at, 3 * UNIT).await.expect("read");
        assert_same(&read, &data, "rolled back");
        let snapshots = volume.snapshots().await.expect("told");
        assert_eq!(snapshots.len(), 1);
        assert_eq!(snapshots[0].size_bytes, SIZE);
        volume.delete_snapshot("s").await.expect("is deleted");
        volume.reserve(MIB).await.expect("reserved");
        volume.resize(SIZE + MIB).await.expect("resized");
        assert_eq!(
            volume.describe().await.expect("told").size_bytes,
            SIZE + MIB
        );
        let wrote = volume.write(
            SIZE + MIB - 4096,
            IoBuf::copy_of(&[7; 4096]),
            Durability::Durable,
        );
        wrote.await.expect("written");
        // What leaves the volume is refused before any part of it is made, however long it is.
        let before = volume.read(0, 4096).await.expect("read");
        let end = 200 * MIB;
        let zero = volume.zero(0, end, true, Durability::Durable);
        zero.await.expect_err("is refused");
        let runs = volume.allocation(0, UNIT - 4096, 10).await.expect("told");
        assert!(runs.iter().all(|run| !run.is_marked), "{runs:?}");
        assert_same(
            &volume.read(0, 4096).await.expect("read"),
            &before,
            "as it was",
        );
        // What rests on its being one dvol.
        let blocks = || IoBuf::copy_of(&[0; 4096]);
        let refused = [
            volume
                .compare_and_swap(0, blocks(), blocks(), Durability::Durable)
                .await
                .expect_err("is refused"),
            volume
                .write_with_metadata(0, blocks(), 5, Durability::Durable)
                .await
                .expect_err("is refused"),
            volume.read_metadata(0, 4096).await.expect_err("is refused"),
            volume
                .changed_since(0, 4096, Lsn::ZERO, 10)
                .await
                .expect_err("is refused"),
        ];
        for error in refused {
            assert!(error.to_string().contains("striped"), "{error}");
        }
        volume.close().await;
    });
    used.join().expect("used");
    let info = show(&scene, "hot");
    assert_eq!((info.size_bytes, info.snapshot_count), (SIZE + MIB, 0));
    assert!(info.reserved_bytes >= MIB);
}

#[test]
fn snapshots_clones_and_sizes_are_of_the_whole() {
    let scene = scene();
    create(&scene, "hot", 4);
    let (mut random, mut model) = (Random(5), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 60);
    snapshot(&scene, "hot", "first").expect("taken");
    assert_eq!(
        kind(snapshot(&scene, "hot", "first")),
        NodeErrorKind::AlreadyExists
    );
    let first = model.clone();
    change_it(&mut client, &mut model, &mut random, 60);
    let shown = scene
        .ask(|node| node.show_snapshot(at("hot", "first")))
        .expect("shown");
    assert_eq!(shown.size_bytes, SIZE);
    assert!(shown.referenced_bytes > 0 && shown.unique_bytes > 0);
    let source: SourceRef = "hot@first".parse().expect("a source");
    let cloned = scene.ask(|node| node.clone_volume(source, "copy".to_owned()));
    assert_eq!(cloned.expect("cloned").size_bytes, SIZE);
    assert_same(
        &all_of(&mut scene.attach("hot@first"), SIZE),
        &first,
        "the snapshot",
    );
    // A clone of it as it is, which then changes by itself.
    let source: SourceRef = "hot".parse().expect("a source");
    let cloned = scene.ask(|node| node.clone_volume(source, "now".to_owned()));
    assert_eq!(
        cloned.expect("cloned").stripe.map(|s| s.members.len()),
        Some(4)
    );
    let mut now = model.clone();
    change_it(&mut scene.attach("now"), &mut now, &mut random, 60);
    assert_eq!(dvols(&scene), 12);
    // Larger: zeros; smaller, and larger again: zeros, too.
    for (size, kept) in [
        (SIZE + 5 * UNIT + 7 * KIB, SIZE),
        (2 * UNIT + 4 * KIB, 2 * UNIT + 4 * KIB),
        (SIZE, 2 * UNIT + 4 * KIB),
    ] {
        assert_eq!(
            resize(&scene, "hot", size).expect("resized").size_bytes,
            size
        );
        model.truncate(kept as usize);
        model.resize(size as usize, 0);
        assert_same(&all_of(&mut scene.attach("hot"), size), &model, "resized");
    }
    resize(&scene, "hot", UNIT).expect("resized");
    let rolled = scene.ask(|node| node.rollback_volume(at("hot", "first")));
    assert_eq!(rolled.expect("rolled back").size_bytes, SIZE);
    for _ in 0..2 {
        assert_same(
            &all_of(&mut scene.attach("hot"), SIZE),
            &first,
            "rolled back",
        );
        assert_same(
            &all_of(&mut scene.attach("copy"), SIZE),
            &first,
            "the clone",
        );
        assert_same(
            &all_of(&mut scene.attach("now"), SIZE),
            &now,
            "the other clone",
        );
    }
    drop(client);
    let scene = scene.restart(two_cores);
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &first,
        "behind a start",
    );
    assert_same(
        &all_of(&mut scene.attach("now"), SIZE),
        &now,
        "the other clone",
    );
    let renamed = scene.ask(|node| node.rename_snapshot(at("hot", "first"), "one".to_owned()));
    renamed.expect("renamed");
    assert_same(
        &all_of(&mut scene.attach("hot@one"), SIZE),
        &first,
        "renamed",
    );
    let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "one")));
    deleted.expect("is deleted");
    for name in ["hot", "copy", "now"] {
        let deleted = scene.ask(|node| node.delete_volume(name.to_owned(), false));
        deleted.expect("is deleted");
    }
    assert_eq!(dvols(&scene), 0);
}

/// A writer counts up in unit after unit, each write answered before the next is sent: in a snapshot no unit may have a later count than the
/// one before it.
#[test]
fn a_snapshot_is_of_one_instant() {
    let scene = scene();
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let (mut client, stopped) = (scene.attach("hot"), stop.clone());
    let units = SIZE / UNIT;
    let written = Arc::new(AtomicU64::new(0));
    let told = written.clone();
    let writer = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let count = told.load(Ordering::Relaxed);
            let block = count.to_le_bytes().repeat(512);
            assert_eq!(client.write(count % units * UNIT, &block), 0);
            told.store(count + 1, Ordering::Relaxed);
        }
    });
    let taken: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    for (round, name) in taken.iter().enumerate() {
        // Each unit was written at least once before the first one.
        let until = Instant::now() + Duration::from_secs(60);
        while written.load(Ordering::Relaxed) < units + 7 * round as u64 {
            assert!(Instant::now() < until, "it writes");
            thread::sleep(Duration::from_millis(1));
        }
        snapshot(&scene, "hot", name).expect("taken");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("wrote");
    for name in taken {
        let mut client = scene.attach(&format!("hot@{name}"));
        let mut counts: Vec<u64> = (0..units)
            .map(|unit| {
                let (error, bytes) = client.call(client::READ, unit * UNIT, 8);
                assert_eq!(error, 0);
                u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
            })
            .collect();
        counts.sort_unstable();
        let last = counts[counts.len() - 1];
        // The last so many, without a gap.
        let expected: Vec<u64> = (last + 1 - units..=last).collect();
        assert_eq!(counts, expected, "{name}");
    }
}

#[test]
fn what_is_not_possible_with_it_is_said() {
    let scene = scene();
    let bad = [
        VolumeSpec {
            stripes: Some(17),
            ..spec("a", 4)
        },
        VolumeSpec {
            stripe_unit_bytes: Some(100_000),
            ..spec("a", 4)
        },
        VolumeSpec {
            stripes: None,
            ..spec("a", 4)
        },
        VolumeSpec {
            apart: true,
            ..spec("a", 4)
        },
    ];
    for spec in bad {
        let refused = scene.ask(|node| node.create_volume(spec));
        assert_eq!(kind(refused), NodeErrorKind::InvalidArgument);
    }
    create(&scene, "hot", 2);
    scene.create("cold", MIB).expect("created");
    snapshot(&scene, "hot", "s").expect("taken");
    let both = vec![at("hot", "t"), at("cold", "t")];
    let refused = scene.ask(|node| node.create_snapshots(both));
    assert_eq!(kind(refused), NodeErrorKind::InvalidArgument);
    let moved = scene.ask(|node| {
        let spec = MoveSpec {
            core: Some(1),
            ..MoveSpec::default()
        };
        node.move_volume("hot".to_owned(), spec)
    });
    assert_eq!(kind(moved), NodeErrorKind::InvalidArgument);
    let sent = scene.ask(|node| node.open_stream(at("hot", "s"), None));
    assert_eq!(kind(sent), NodeErrorKind::InvalidArgument);
    let schedule = SnapshotSchedule {
        every_s: 3600,
        keep: 3,
        daily: 0,
        weekly: 0,
        monthly: 0,
    };
    let scheduled = scene.ask(|node| node.set_snapshot_schedule("hot".to_owned(), Some(schedule)));
    assert_eq!(kind(scheduled), NodeErrorKind::InvalidArgument);
}

#[test]
fn what_it_is_promised_and_reserved_is_of_the_whole() {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    })
    .expect("a node");
    let floor = |reads| Slo {
        promise: SloPromise::Floor(Rates { reads, writes: 3 }),
        limit: SloLimit {
            bytes: Some(100 * MIB + 1),
            ..SloLimit::default()
        },
    };
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            slo: floor(4001),
            reserve: Reservation::Full,
            ..spec("hot", 4)
        })
    });
    let created = created.expect("created").volume;
    assert_eq!(created.slo, floor(4001));
    assert_eq!(created.reserve, Reservation::Full);
    assert!(created.reserved_bytes >= SIZE);
    // It is counted once, before and behind a start.
    let too_much = |scene: &Scene| {
        scene.ask(|node| {
            node.create_volume(VolumeSpec {
                slo: floor(6000),
                ..spec("more", 2)
            })
        })
    };
    assert_eq!(kind(too_much(&scene)), NodeErrorKind::NoSpace);
    let changed = scene.ask(|node| node.set_slo("hot".to_owned(), floor(5000), false));
    assert_eq!(changed.expect("is changed").slo, floor(5000));
    let scene = scene.restart(|options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    });
    assert_eq!(show(&scene, "hot").slo, floor(5000));
    assert_eq!(kind(too_much(&scene)), NodeErrorKind::NoSpace);
    // Each member has its part at once, and behind a start.
    let promised = |scene: &Scene| {
        let mut client = scene.attach("hot");
        assert_eq!(client.write(0, &vec![1; 4 * UNIT as usize]), 0);
        let metrics = scene.ask(|node| node.metrics()).expect("metrics");
        metrics.volumes[0].turns.promised_ns
    };
    let expected = promised(&scene);
    assert!(expected > 450_000_000, "half of the device: {expected}");
    let again = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    });
    let again = again.expect("a node");
    let created = again.ask(|node| {
        node.create_volume(VolumeSpec {
            slo: floor(5000),
            ..spec("hot", 4)
        })
    });
    created.expect("created");
    let found = promised(&again);
    assert!(
        found.abs_diff(expected) < expected / 100,
        "{found} and {expected}"
    );
    let reserved = scene.ask(|node| node.set_reservation("hot".to_owned(), Reservation::None));
    assert_eq!(reserved.expect("is changed").reserved_bytes, 0);
}

/// Clients go on while the journals of its members go from core to core.
#[test]
fn its_journals_change_their_cores_under_its_clients() {
    let scene = scene();
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let (mut client, stopped) = (scene.attach("hot"), stop.clone());
    let writer = thread::spawn(move || {
        let (mut random, mut model) = (Random(9), vec![0; SIZE as usize]);
        while !stopped.load(Ordering::Relaxed) {
            change_it(&mut client, &mut model, &mut random, 5);
        }
        assert_same(&all_of(&mut client, SIZE), &model, "on its way");
        model
    });
    let members = show(&scene, "hot").stripe.expect("is striped").members;
    for round in 0..6 {
        for member in &members[..2] {
            let to = (member.core + 1 + round) % 2;
            let journal = member.journal;
            let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
            handed.expect("is handed over");
        }
        let now = show(&scene, "hot");
        assert_eq!(now.stripe.expect("is striped").members.len(), 4);
        snapshot(&scene, "hot", &format!("s{round}")).expect("taken");
    }
    stop.store(true, Ordering::Relaxed);
    let model = writer.join().expect("wrote");
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &model,
        "attached anew",
    );
    let scene = scene.restart(two_cores);
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &model,
        "behind a start",
    );
}

/// Dvols and snapshots on a device, by name, with their sizes.
fn on_device(scene: Scene) -> (Vec<(String, u64)>, usize, Scene) {
    let path = scene.device_path();
    let down = scene.down();
    let found = inspect(&path, &InspectOptions::default()).expect("inspected");
    let journals = found.value["journals"]
        .as_array()
        .expect("journals")
        .clone();
    let mut dvols = Vec::new();
    let mut snapshots = 0;
    for slot in journals
        .iter()
        .flat_map(|journal| journal["layers"].as_array().expect("slots").clone())
    {
        let name = slot["name"].as_str().unwrap_or_default().to_owned();
        match slot["kind"].as_str() {
            Some("dvol") if name == "hot" || name.starts_with(".stripe") => {
                dvols.push((name, slot["size_bytes"].as_u64().expect("a size")));
            }
            // A deleted one that isn't reaped yet has no name.
            Some(kind) if kind != "dvol" && !name.is_empty() => snapshots += 1,
            _ => {}
        }
    }
    dvols.sort();
    (dvols, snapshots, down.up(two_cores))
}

/// A node with a striped volume, of whose device a copy is made at a point of what is done then. Returns the volume's bytes before that,
/// and a node on the copy.
fn died_at(point: MovePoint, work: impl FnOnce(&Scene)) -> (Vec<u8>, Scene) {
    let copied = Arc::new(Mutex::new(false));
    let seen = copied.clone();
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        let device = options.devices[0].path.clone();
        options.move_hooks = MoveHooks::at_points(move |at| {
            let mut copied = seen.lock().expect("nobody has died");
            if at == point && !*copied {
                *copied = true;
                std::fs::copy(&device, device.with_file_name("dead.img")).expect("an image");
            }
            true
        });
    });
    let scene = scene.expect("a node");
    create(&scene, "hot", 3);
    let (mut random, mut model) = (Random(11), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 40);
    drop(client);
    work(&scene);
    assert!(
        *copied.lock().expect("nobody has died"),
        "{point:?} was never reached"
    );
    (model, scene.down().with_image("dead.img").up(two_cores))
}

fn is_whole(scene: &Scene, model: &[u8], what: &str) {
    assert_eq!(show(scene, "hot").size_bytes, model.len() as u64, "{what}");
    let found = all_of(&mut scene.attach("hot"), model.len() as u64);
    assert_same(&found, model, what);
    // And it goes on as a volume does.
    let (mut random, mut model) = (Random(13), model.to_vec());
    change_it(&mut scene.attach("hot"), &mut model, &mut random, 20);
    snapshot(scene, "hot", "behind").expect("taken");
    let found = all_of(&mut scene.attach("hot@behind"), model.len() as u64);
    assert_same(&found, &model, what);
}

#[test]
fn one_that_was_half_made_or_half_deleted_is_not_there() {
    let (model, scene) = died_at(MovePoint::StripeMade, |scene| {
        create(scene, "new", 4);
    });
    // The point was reached by the first one already, whose members nobody has.
    assert_eq!(dvols(&scene), 0, "{}", model.len());
    create(&scene, "hot", 3);
    let (_, scene) = died_at(MovePoint::StripeDeleted, |scene| {
        let deleted = scene.ask(|node| node.delete_volume("hot".to_owned(), false));
        deleted.expect("is deleted");
    });
    assert_eq!(dvols(&scene), 0);
    assert_eq!(kind(scene.show("hot")), NodeErrorKind::NotFound);
}

#[test]
fn one_that_was_half_resized_has_one_size() {
    let (model, scene) = died_at(MovePoint::StripeGrown, |scene| {
        resize(scene, "hot", SIZE + 3 * MIB).expect("resized");
    });
    let (dvols, _, scene) = on_device(scene);
    assert_eq!(dvols.iter().map(|(_, bytes)| bytes).sum::<u64>(), SIZE);
    is_whole(&scene, &model, "it was growing");
    let smaller = UNIT + 4 * KIB;
    let (mut model, scene) = died_at(MovePoint::StripeShrunk, |scene| {
        resize(scene, "hot", smaller).expect("resized");
    });
    model.truncate(smaller as usize);
    let (dvols, _, scene) = on_device(scene);
    assert_eq!(dvols.iter().map(|(_, bytes)| bytes).sum::<u64>(), smaller);
    is_whole(&scene, &model, "it was shrinking");
    // What was given back is zeros.
    resize(&scene, "hot", SIZE).expect("resized");
    let found = all_of(&mut scene.attach("hot"), SIZE);
    assert!(found[smaller as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_snapshot_that_was_half_taken_or_half_deleted_is_not_there() {
    let layers = |scene: &Scene| show(scene, "hot").snapshot_count;
    let (model, scene) = died_at(MovePoint::StripeSnapped, |scene| {
        snapshot(scene, "hot", "one").expect("taken");
    });
    assert_eq!(layers(&scene), 0);
    let (_, snapshots, scene) = on_device(scene);
    assert_eq!(snapshots, 0, "no member has one, either");
    is_whole(&scene, &model, "a snapshot was being taken");
    let (model, scene) = died_at(MovePoint::StripeUnsnapped, |scene| {
        snapshot(scene, "hot", "one").expect("taken");
        let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "one")));
        deleted.expect("is deleted");
    });
    assert_eq!(layers(&scene), 0);
    let (_, snapshots, scene) = on_device(scene);
    assert_eq!(snapshots, 0, "no member has one, either");
    is_whole(&scene, &model, "a snapshot was being deleted");
}

#[test]
fn one_that_was_half_rolled_back_is_rolled_back() {
    for point in [MovePoint::StripeRolling, MovePoint::StripeRolled] {
        let (model, scene) = died_at(point, |scene| {
            snapshot(scene, "hot", "one").expect("taken");
            let (mut random, mut later) = (Random(17), vec![0; SIZE as usize]);
            change_it(&mut scene.attach("hot"), &mut later, &mut random, 40);
            resize(scene, "hot", 2 * UNIT).expect("resized");
            let rolled = scene.ask(|node| node.rollback_volume(at("hot", "one")));
            rolled.expect("rolled back");
        });
        is_whole(&scene, &model, "it was being rolled back");
    }
}

/// Nobody sees one member rolled back and another not.
#[test]
fn readers_see_all_of_it_rolled_back_or_nothing() {
    let scene = scene();
    create(&scene, "hot", 2);
    let (old, new) = (vec![1; 8 * UNIT as usize], vec![2; 8 * UNIT as usize]);
    let mut client = scene.attach("hot");
    assert_eq!(client.write(0, &old), 0);
    snapshot(&scene, "hot", "one").expect("taken");
    let stop = Arc::new(AtomicBool::new(false));
    let writing = Arc::new(RwLock::new(()));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (mut client, stopped) = (scene.attach("hot"), stop.clone());
            let (writes, writing) = ((old.clone(), new.clone()), writing.clone());
            thread::spawn(move || {
                let mut rounds = 0u64;
                while !stopped.load(Ordering::Relaxed) {
                    // A write of several members may be seen in part.
                    let _none = writing.read().expect("nobody has died");
                    let (error, found) = client.call(client::READ, 0, 8 * UNIT as u32);
                    assert_eq!(error, 0);
                    assert!(found == writes.0 || found == writes.1, "some of both");
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    for _ in 0..40 {
        let alone = writing.write().expect("nobody has died");
        assert_eq!(client.write(0, &new), 0);
        drop(alone);
        let rolled = scene.ask(|node| node.rollback_volume(at("hot", "one")));
        rolled.expect("rolled back");
        let (error, found) = client.call(client::READ, 0, 8 * UNIT as u32);
        assert_eq!((error, found == old), (0, true));
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().expect("read") > 40);
    }
}

/// Writers that each have a region of their own, and check it. They wait for their turns at the device nearly all the time.
fn writers(
    scene: &Scene,
    name: &str,
    count: u64,
    stop: &Arc<AtomicBool>,
) -> Vec<thread::JoinHandle<u64>> {
    let region = SIZE / count / 4096 * 4096;
    let start = |number: u64| {
        let (mut client, stopped) = (scene.attach(name), stop.clone());
        thread::spawn(move || {
            let (first, mut rounds) = (number * region, 0u64);
            while !stopped.load(Ordering::Relaxed) {
                let len = 4096 * (1 + rounds % 5);
                let at = first + rounds * 20_480 % (region - len);
                let data = (number << 32 | rounds)
                    .to_le_bytes()
                    .repeat(len as usize / 8);
                let flags = if rounds % 3 == 0 { client::FUA } else { 0 };
                assert_eq!(client.write_with(flags, at, &data), 0);
                let (error, found) = client.call(client::READ, at, len as u32);
                assert_eq!(error, 0);
                assert_same(&found, &data, "what was just written");
                rounds += 1;
            }
            rounds
        })
    };
    (0..count).map(start).collect()
}

fn ended(writers: Vec<thread::JoinHandle<u64>>, stop: &AtomicBool) {
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.join().expect("wrote") > 0);
    }
}

/// Who has let something into the whole waits for turns at the device when the whole is held: neither may wait for the other.
#[test]
fn what_waits_for_its_turn_holds_nobody_up() {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=3000 writes=1500".parse().expect("one"));
    })
    .expect("a node");
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = writers(&scene, "hot", 12, &stop);
    let members = show(&scene, "hot").stripe.expect("is striped").members;
    for round in 0..4u32 {
        snapshot(&scene, "hot", "s").expect("taken");
        resize(&scene, "hot", SIZE + MIB).expect("resized");
        let source: SourceRef = "hot".parse().expect("a source");
        let cloned = scene.ask(|node| node.clone_volume(source, "copy".to_owned()));
        cloned.expect("cloned");
        for member in &members[..2] {
            let to = (member.core + 1 + round) % 2;
            let journal = member.journal;
            let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
            handed.expect("is handed over");
        }
        resize(&scene, "hot", SIZE).expect("resized");
        let renamed = format!("hot{round}");
        let to = |from: &str, to: &str| {
            let renamed = scene.ask(|node| node.rename_volume(from.to_owned(), to.to_owned()));
            renamed.expect("renamed");
        };
        to("hot", &renamed);
        to(&renamed, "hot");
        let deleted = scene.ask(|node| node.delete_volume("copy".to_owned(), true));
        deleted.expect("is deleted");
        let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "s")));
        deleted.expect("is deleted");
    }
    ended(writers, &stop);
    // With readers alone a rollback may come.
    snapshot(&scene, "hot", "s").expect("taken");
    let reader = {
        let (mut client, stopped) = (scene.attach("hot"), Arc::new(AtomicBool::new(false)));
        let stop = stopped.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                assert_eq!(client.call(client::READ, 0, (10 * UNIT) as u32).0, 0);
            }
        });
        (thread, stop)
    };
    for _ in 0..3 {
        let rolled = scene.ask(|node| node.rollback_volume(at("hot", "s")));
        rolled.expect("rolled back");
    }
    reader.1.store(true, Ordering::Relaxed);
    reader.0.join().expect("read");
}

/// Two volumes, each with its first member in the journal of the other's second one, and both journals go at the same time; and clones are made
/// meanwhile.
#[test]
fn journals_that_go_at_the_same_time_do_not_wait_for_each_other() {
    let scene = scene();
    let at_core = |name: &str, core, members| {
        let created = scene.ask(|node| {
            node.create_volume(VolumeSpec {
                core: Some(core),
                ..spec(name, members)
            })
        });
        created.expect("created");
    };
    at_core("one", 0, 2);
    // Of this one two are in each journal.
    at_core("hot", 1, 4);
    let members = show(&scene, "one").stripe.expect("is striped").members;
    let stop = Arc::new(AtomicBool::new(false));
    let mut all = writers(&scene, "one", 3, &stop);
    all.extend(writers(&scene, "hot", 3, &stop));
    for round in 0..6u32 {
        let answers = scene.ask_all(|node| {
            let handed = members.iter().map(|member| {
                let to = (member.core + 1 + round) % 2;
                let handed = node.hand_over_journal("main".to_owned(), member.journal, to);
                let handed: NodeFuture<'_, ()> = Box::pin(async move { handed.await.map(drop) });
                handed
            });
            let handed: Vec<_> = handed.collect();
            let cloned = ["one", "hot"].map(|name| {
                let source: SourceRef = name.parse().expect("a source");
                let cloned = node.clone_volume(source, format!("{name}-{round}"));
                let cloned: NodeFuture<'_, ()> = Box::pin(async move { cloned.await.map(drop) });
                cloned
            });
            // Who comes first isn't always the same.
            let (mut first, then): (Vec<_>, Vec<_>) = match round % 2 {
                0 => (handed, cloned.into()),
                _ => (cloned.into(), handed),
            };
            first.extend(then);
            first
        });
        for answer in answers {
            // Who comes in the moment of a hand-over may be told to try again.
            if let Err(error) = answer {
                assert_eq!(error.kind, NodeErrorKind::Busy, "{error}");
            }
        }
    }
    ended(all, &stop);
}

/// What only a part of it is has no name for clients.
#[test]
fn its_members_are_nobodys_volumes() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    let member = format!(".stripe.{}.1", show(&scene, "hot").id);
    let attached = std::panic::catch_unwind(|| Client::attach(scene.tcp, &member));
    assert!(attached.is_err(), "NBD has no such export");
    let mut native = Native::connect(addresses(&scene)[0]);
    let refused = native.open(&member, &token, 0);
    assert_ne!(refused.status(), Status::Ok);
    assert_eq!(kind(scene.show(&member)), NodeErrorKind::NotFound);
}

/// Clients that were attached before a volume's journal went are passed on by what the volume is, not by its name.
#[test]
fn a_renaming_is_not_noticed_by_those_who_are_passed_on() {
    let scene = scene();
    create(&scene, "hot", 3);
    scene.create("cold", SIZE).expect("created");
    let stop = Arc::new(AtomicBool::new(false));
    let mut all = writers(&scene, "hot", 4, &stop);
    all.extend(writers(&scene, "cold", 4, &stop));
    for name in ["hot", "cold"] {
        let info = show(&scene, name);
        let (journal, to) = (info.journal, 1 - info.core);
        let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
        handed.expect("is handed over");
    }
    for round in 0..100 {
        for name in ["hot", "cold"] {
            let other = format!("{name}-{round}");
            for (from, to) in [(name, other.as_str()), (other.as_str(), name)] {
                let renamed = scene.ask(|node| node.rename_volume(from.to_owned(), to.to_owned()));
                renamed.expect("renamed");
            }
        }
    }
    ended(all, &stop);
}
