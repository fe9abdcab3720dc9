//! Volumes that aren't whole: nothing of them is served, everybody is told, and once the cause is gone a start has them there again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone::node::{
    MoveHooks, MovePoint, NodeErrorKind, PageQuery, Reservation, SnapshotQuery, TokenKind,
    TokenText,
};
use flagstone_device::engine::{DvolError, Engine, EngineOptions};
use flagstone_runtime::{DeviceOptions, RuntimeConfig, UringDevice, UringPlatform, block_on};
use flagstone_wire::{Operation, RequestHeader, Status};

use super::room::{MEMBERS, crowded, is_now, one_core, others_are_as_they_were};
use super::{
    MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, clone, create, delete, dvols,
    filled, kind, on_device, reserve, resize, roll_back, show, snapshot, two_cores,
};
use crate::client::{Client, ESHUTDOWN, FLUSH, FUA, READ, TRIM, ZEROES};
use crate::native::client::Native;
use crate::native::{addresses, token};
use crate::support::{Scene, copy_image};

fn owner(scene: &Scene) -> TokenText {
    token(scene, "hot", TokenKind::Owner).1
}

fn notice(scene: &Scene) -> Option<String> {
    let info = scene.ask(|node| node.info()).expect("its description");
    let mut notices = info.notices.into_iter();
    notices.find(|notice| notice.contains("'hot' isn't whole"))
}

fn cannot_attach(scene: &Scene, export: &str) {
    let tcp = scene.tcp;
    let attached = std::panic::catch_unwind(|| Client::attach(tcp, export));
    assert!(attached.is_err(), "{export} is served");
}

/// Whatever is asked of it is refused, with the reason; and whoever looks at the node or lists its volumes sees it.
fn is_closed(scene: &Scene, token: &TokenText) {
    let refusals = [
        snapshot(scene, "hot", "more"),
        resize(scene, "hot", MIB).map(drop),
        resize(scene, "hot", 64 * MIB).map(drop),
        roll_back(scene, "hot", "s").map(drop),
        reserve(scene, "hot", Reservation::None).map(drop),
        clone(scene, "hot", "copy").map(drop),
        clone(scene, "hot@s", "copy").map(drop),
        scene.ask(|node| node.delete_snapshot(at("hot", "s"))),
        scene
            .ask(|node| node.open_stream(at("hot", "s"), None))
            .map(drop),
        scene
            .ask(|node| node.create_snapshots(vec![at("cold", "x"), at("hot", "x")]))
            .map(drop),
    ];
    for (number, refused) in refusals.into_iter().enumerate() {
        let error = refused.expect_err("is refused");
        assert_eq!(error.kind, NodeErrorKind::Unavailable, "{number}: {error}");
        assert!(error.found.contains("isn't whole"), "{number}: {error}");
        assert!(error.next_step.contains("log"), "{number}: {error}");
    }
    assert_eq!(kind(scene.show("copy")), NodeErrorKind::NotFound);
    assert!(notice(scene).is_some(), "whoever looks at the node is told");
    let listed = scene.ask(|node| node.list_volumes(PageQuery::default()));
    let listed = listed.expect("are listed").items;
    assert!(listed.iter().any(|one| one.name == "hot"), "{listed:?}");
    assert!(!listed.iter().any(|one| one.name.starts_with('.')));
    // As far as its first member says what it is.
    let shown = show(scene, "hot");
    assert!(shown.stripe.as_ref().is_none_or(|stripe| stripe.closed));
    let taken = scene.ask(|node| node.list_snapshots(SnapshotQuery::default()));
    taken.expect("are listed");
    scene.ask(|node| node.metrics()).expect("metrics");
    // No byte of it is to be had, nor of a snapshot of it.
    cannot_attach(scene, "hot");
    cannot_attach(scene, "hot@s");
    let mut native = Native::connect(addresses(scene)[0]);
    for name in ["hot", "hot@s"] {
        let opened = native.open(name, token, 0).status();
        assert_ne!(opened, Status::Ok, "{name}");
    }
    // The others are served.
    others_are_as_they_were(scene);
    snapshot(scene, "cold", "y").expect("is taken");
    let deleted = scene.ask(|node| node.delete_snapshot(at("cold", "y")));
    deleted.expect("is deleted");
}

/// A volume whose rollback has failed behind its moment, with those who had it open; and what it is to be.
fn half_rolled_back(member: u64) -> (Scene, Vec<u8>, TokenText) {
    let (scene, before, _) = crowded(member);
    let token = owner(&scene);
    let mut nbd = scene.attach("hot");
    let mut taken = scene.attach("hot@s");
    let mut native = Native::connect(addresses(&scene)[0]);
    let open = native.opened("hot", &token, 0);
    let refused = roll_back(&scene, "hot", "s").expect_err("has no room");
    assert_eq!(refused.kind, NodeErrorKind::Unavailable, "{refused}");
    assert!(refused.found.contains("isn't whole"), "{refused}");
    assert!(refused.next_step.contains("restart the node"), "{refused}");
    // That of the whole, and not of its first member.
    assert_eq!(show(&scene, "hot").size_bytes, before.len() as u64);
    // Of members that are rolled back, and of those that aren't.
    for unit in 0..MEMBERS {
        let at = unit * UNIT;
        assert_eq!(nbd.call(READ, at, 4096).0, ESHUTDOWN);
        assert_eq!(nbd.write(at, &[1; 4096]), ESHUTDOWN);
        assert_eq!(nbd.call_with(0, TRIM, at, 4096), ESHUTDOWN);
        assert_eq!(nbd.call_with(0, ZEROES, at, 4096), ESHUTDOWN);
        assert_eq!(taken.call(READ, at, 4096).0, ESHUTDOWN);
        let read = native.read(open, at, 4096);
        assert_eq!(read.status(), Status::Gone, "{}", read.sentence());
        assert!(read.payload.is_empty());
        let wrote = native.write(open, at, &[1; 4096], 0);
        assert_ne!(wrote.status(), Status::Ok);
    }
    assert_eq!(nbd.call(FLUSH, 0, 0).0, ESHUTDOWN);
    for (operation, len_bytes, body) in [
        (Operation::Flush, 0, &[][..]),
        (Operation::Allocation, MIB, &100u32.to_le_bytes()[..]),
        (Operation::Resize, MIB, &[][..]),
        (Operation::RollBack, 0, &b"s"[..]),
        (Operation::DeleteSnapshot, 0, &b"s"[..]),
    ] {
        let head = RequestHeader {
            volume: open,
            len_bytes,
            ..RequestHeader::of(operation)
        };
        let answer = native.ask(head, body, &[]);
        assert_ne!(answer.status(), Status::Ok, "{operation:?}");
    }
    (scene, before, token)
}

/// Starts go on with it, for as long as there is no room in vain, and then it is there.
#[test]
fn one_that_is_half_rolled_back_is_closed_until_a_start_goes_on() {
    // The last of the others has no room, or the first one.
    for member in [2, 0] {
        let (scene, mut before, token) = half_rolled_back(member);
        is_closed(&scene, &token);
        let scene = scene.restart(one_core);
        is_closed(&scene, &token);
        assert_eq!(dvols(&scene), MEMBERS + 2, "nothing of it was deleted");
        let scene = scene.restart(one_core);
        is_closed(&scene, &token);
        delete(&scene, "other").expect("is deleted");
        is_closed(&scene, &token);
        let scene = scene.restart(one_core);
        assert_eq!(notice(&scene), None);
        is_now(&scene, &before, "it is rolled back");
        let mut native = Native::connect(addresses(&scene)[0]);
        let open = native.opened("hot", &token, 0);
        let read = native.read(open, UNIT, UNIT);
        assert_eq!(read.payload, before[UNIT as usize..][..UNIT as usize]);
        // Once: a later start leaves what was written since.
        assert_eq!(scene.attach("hot").write(0, &[3; 4 << 16]), 0);
        before[..4 << 16].fill(3);
        let (members, snapshots, scene) = on_device(scene);
        assert_eq!((members.len(), snapshots), (3, 3));
        is_now(&scene, &before, "a later start");
        snapshot(&scene, "hot", "t").expect("is taken");
        roll_back(&scene, "hot", "t").expect("is rolled back");
        is_now(&scene, &before, "and goes on");
    }
}

/// Its name and who may open it are the first member's, and stay so while it is closed.
#[test]
fn one_that_is_closed_can_be_renamed_and_deleted() {
    let (scene, before, _) = half_rolled_back(2);
    for (from, to) in [("hot", "cool"), ("cool", "hot")] {
        let renamed = scene.ask(|node| node.rename_volume(from.to_owned(), to.to_owned()));
        renamed.expect("is renamed");
        cannot_attach(&scene, to);
    }
    assert!(notice(&scene).is_some());
    delete(&scene, "other").expect("is deleted");
    let scene = scene.restart(one_core);
    is_now(&scene, &before, "it is rolled back");
    let (scene, _, _) = half_rolled_back(2);
    delete(&scene, "hot").expect("is deleted");
    assert_eq!(notice(&scene), None);
    assert_eq!(dvols(&scene), 2, "nor is there a member");
    create(&scene, "hot", 3);
    let scene = scene.restart(one_core);
    assert_eq!(dvols(&scene), 2 + 3);
    let found = all_of(&mut scene.attach("hot"), SIZE);
    assert!(found.iter().all(|byte| *byte == 0), "it is another one");
    others_are_as_they_were(&scene);
    // At a start that has closed it nothing is known of its members.
    let (scene, _, _) = half_rolled_back(2);
    let scene = scene.restart(one_core);
    delete(&scene, "hot").expect("is deleted");
    assert_eq!(notice(&scene), None);
    let scene = scene.restart(one_core);
    assert_eq!(dvols(&scene), 2);
    let (members, snapshots, scene) = on_device(scene);
    assert_eq!((members.len(), snapshots), (0, 0));
    others_are_as_they_were(&scene);
}

pub(super) type Damage =
    fn(Engine<UringPlatform>) -> std::pin::Pin<Box<dyn Future<Output = Result<(), DvolError>>>>;

/// Changes what a device of one journal has, beside any node.
pub(super) fn damage(path: &Path, work: Damage) {
    let path = path.to_owned();
    let config = RuntimeConfig {
        pin: false,
        ..RuntimeConfig::default()
    };
    let damaged = block_on(&config, move |platform| async move {
        let device = UringDevice::open(&platform, &path, DeviceOptions::default()).expect("opens");
        let prepared = Engine::<UringPlatform>::prepare(&platform, &device).await;
        let (superblock, shared) = prepared.expect("is a device");
        let options = EngineOptions::default();
        let opened = Engine::open(platform, device, shared, superblock, 0, options).await;
        let engine = opened.expect("opens").0;
        work(engine.clone()).await.expect("is damaged");
        engine.stop().await.expect("stops");
    });
    damaged.expect("runs");
}

pub(super) fn part_of(
    engine: &Engine<UringPlatform>,
    name: &str,
) -> flagstone_device::engine::Handle {
    let dvols = engine.dvols();
    let found = dvols.iter().find(|dvol| dvol.name.ends_with(name));
    found.expect("is there").handle
}

/// What a program has done that knows nothing of striped volumes.
#[test]
fn one_that_lacks_a_part_is_closed_and_nothing_of_it_is_deleted() {
    let damages: [(&str, u64, Damage); 4] = [
        ("a member", 3, |engine| {
            Box::pin(async move { engine.delete(part_of(&engine, ".2"), true).await })
        }),
        ("a member's snapshot", 4, |engine| {
            Box::pin(async move {
                let layers = engine.layers(part_of(&engine, ".1").id);
                engine.delete_layer(layers[0].handle).await
            })
        }),
        ("what its first member is", 4, |engine| {
            Box::pin(async move {
                let first = part_of(&engine, "hot");
                engine.set_attributes(first, [0; _]).await
            })
        }),
        ("what a member is", 4, |engine| {
            Box::pin(async move {
                let member = part_of(&engine, ".1");
                engine.set_attributes(member, [0; _]).await
            })
        }),
    ];
    for (what, left, work) in damages {
        let scene = Scene::with(one_core);
        let token = create(&scene, "hot", 3).token.expect("a token");
        scene.create("cold", MIB).expect("created");
        assert_eq!(scene.attach("cold").write(0, &[9; 1 << 20]), 0);
        let (mut random, mut model) = (Random(31), vec![0; SIZE as usize]);
        change_it(&mut scene.attach("hot"), &mut model, &mut random, 40);
        snapshot(&scene, "hot", "s").expect("taken");
        let path = scene.device_path();
        let down = scene.down();
        let copy = path.with_file_name("copy.img");
        copy_image(&path, &copy);
        damage(&path, work);
        let mut scene = down.up(one_core);
        for _ in 0..2 {
            is_closed(&scene, &token);
            assert_eq!(dvols(&scene), left, "{what}");
            let shown = show(&scene, "hot");
            let is_known = what != "what its first member is";
            assert_eq!(shown.stripe.is_some(), is_known, "{what}");
            assert!(!is_known || shown.size_bytes == SIZE, "{what}: {shown:?}");
            scene = scene.restart(one_core);
        }
        // With what it had it is served again.
        let scene = scene.down().with_image("copy.img").up(one_core);
        assert_eq!(notice(&scene), None, "{what}");
        let whole = show(&scene, "hot").stripe.expect("is striped");
        assert!(
            !whole.closed && whole.members.len() == 3,
            "{what}: {whole:?}"
        );
        for name in ["hot", "hot@s"] {
            assert_same(&all_of(&mut scene.attach(name), SIZE), &model, what);
        }
        change_it(&mut scene.attach("hot"), &mut model, &mut random, 20);
        assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, what);
    }
}

/// The device's file is away when a journal goes to another core, so that neither core can open it.
fn with_a_closed_journal(number: usize) -> (Scene, Vec<u8>, PathBuf) {
    let is_armed = Arc::new(AtomicBool::new(false));
    let asked = is_armed.clone();
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        let device = options.devices[0].path.clone();
        let away = device.with_file_name("away.img");
        options.move_hooks = MoveHooks::at_points(move |point| {
            if point == MovePoint::JournalClosed && asked.swap(false, Ordering::SeqCst) {
                std::fs::rename(&device, &away).expect("renamed");
            }
            true
        });
    })
    .expect("a node");
    create(&scene, "hot", 2);
    let model = filled(&mut Random(41), SIZE);
    let mut client = scene.attach("hot");
    for (part, data) in model.chunks(MIB as usize).enumerate() {
        let at = part as u64 * MIB;
        assert_eq!(client.write_with(FUA, at, data), 0);
    }
    snapshot(&scene, "hot", "s").expect("taken");
    let member = show(&scene, "hot").stripe.expect("is striped").members[number];
    is_armed.store(true, Ordering::SeqCst);
    let to = 1 - member.core;
    let refused = scene.ask(|node| node.hand_over_journal("main".to_owned(), member.journal, to));
    let refused = refused.expect_err("can't be opened");
    assert!(refused.next_step.contains("restart the node"), "{refused}");
    let away = scene.device_path().with_file_name("away.img");
    (scene, model, away)
}

fn put_back(scene: &Scene, away: &Path) {
    std::fs::rename(away, scene.device_path()).expect("renamed");
}

/// A journal that no core can open has one member: what lies in the other one is served, and nothing is done that all are needed for.
#[test]
fn a_member_whose_journal_is_closed_is_missed_until_a_start() {
    let (scene, model, away) = with_a_closed_journal(1);
    let mut client = scene.attach("hot");
    let (error, found) = client.call(READ, 2 * UNIT, UNIT as u32);
    assert_eq!(error, 0);
    assert_same(&found, &model[2 * UNIT as usize..][..UNIT as usize], "it");
    assert_ne!(client.call(READ, UNIT, 4096).0, 0);
    assert_ne!(client.call(READ, UNIT - 4096, 8192).0, 0);
    assert_ne!(client.write(UNIT, &[1; 4096]), 0);
    assert_ne!(client.call(FLUSH, 0, 0).0, 0);
    for refused in [
        snapshot(&scene, "hot", "t"),
        clone(&scene, "hot", "copy").map(drop),
        clone(&scene, "hot@s", "copy").map(drop),
        resize(&scene, "hot", SIZE + MIB).map(drop),
        reserve(&scene, "hot", Reservation::Full).map(drop),
    ] {
        let error = refused.expect_err("is refused");
        // It isn't said to be deleted.
        assert_eq!(error.kind, NodeErrorKind::Busy, "{error}");
    }
    assert_eq!(kind(scene.show("copy")), NodeErrorKind::NotFound);
    let shown = show(&scene, "hot");
    assert_eq!((shown.size_bytes, shown.snapshot_count), (SIZE, 1));
    put_back(&scene, &away);
    let scene = scene.restart(two_cores);
    assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, "whole");
    assert_same(&all_of(&mut scene.attach("hot@s"), SIZE), &model, "then");
    let (members, snapshots, scene) = on_device(scene);
    assert_eq!((members.len(), snapshots), (2, 2));
    snapshot(&scene, "hot", "t").expect("is taken");
    clone(&scene, "hot", "copy").expect("is cloned");
}

/// It is the first one's: the volume is closed with it, and its members stay. So do those of a volume that is deleted then.
#[test]
fn a_volume_whose_own_journal_is_closed_is_there_again_at_a_start() {
    let (scene, model, away) = with_a_closed_journal(0);
    assert_eq!(kind(scene.show("hot")), NodeErrorKind::Unavailable);
    for refused in [
        snapshot(&scene, "hot", "t"),
        clone(&scene, "hot", "copy").map(drop),
        resize(&scene, "hot", SIZE + MIB).map(drop),
        delete(&scene, "hot"),
    ] {
        assert_eq!(kind(refused), NodeErrorKind::Unavailable);
    }
    cannot_attach(&scene, "hot");
    put_back(&scene, &away);
    let scene = scene.restart(two_cores);
    assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, "whole");
    assert_same(&all_of(&mut scene.attach("hot@s"), SIZE), &model, "then");
    delete(&scene, "hot").expect("is deleted");
    assert_eq!(dvols(&scene), 0);
}

/// A rollback that misses a member behind its moment: closed, and rolled back at the next start.
#[test]
fn a_rollback_that_misses_a_member_goes_on_at_the_next_start() {
    let (scene, model, away) = with_a_closed_journal(1);
    let mut client = scene.attach("hot");
    assert_eq!(client.write(0, &[7; 4096]), 0);
    let rolled = roll_back(&scene, "hot", "s").expect_err("misses a member");
    assert_eq!(rolled.kind, NodeErrorKind::Busy, "{rolled}");
    // It was the first to be rolled back, so nothing was.
    assert_eq!(client.call(READ, 0, 4096), (0, vec![7; 4096]));
    put_back(&scene, &away);
    let scene = scene.restart(two_cores);
    let mut now = model;
    now[..4096].fill(7);
    assert_same(&all_of(&mut scene.attach("hot"), SIZE), &now, "as it was");
}

/// A shrinking that misses a member has happened: the rest is done by the next start, and is zeros when it grows.
#[test]
fn a_shrinking_that_misses_a_member_is_ended_by_a_start() {
    let (scene, mut model, away) = with_a_closed_journal(1);
    let smaller = UNIT / 2;
    // What is reserved of each is looked at before anything is done.
    let refused = resize(&scene, "hot", smaller).expect_err("misses a member");
    assert_eq!(refused.kind, NodeErrorKind::Busy, "{refused}");
    let size = show(&scene, "hot").size_bytes;
    assert!(size == SIZE || size == smaller, "{size}");
    put_back(&scene, &away);
    let scene = scene.restart(two_cores);
    assert_eq!(show(&scene, "hot").size_bytes, size);
    model.truncate(size as usize);
    assert_same(&all_of(&mut scene.attach("hot"), size), &model, "it");
    let (members, _, scene) = on_device(scene);
    assert_eq!(members.iter().map(|(_, bytes)| bytes).sum::<u64>(), size);
    resize(&scene, "hot", smaller).expect("is resized");
    resize(&scene, "hot", SIZE).expect("is resized");
    model.truncate(smaller as usize);
    model.resize(SIZE as usize, 0);
    assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, "zeros");
}
