//! A move within the node that a stop or a death of the node has cut off goes on at the next start.

#![allow(
    clippy::disallowed_methods,
    reason = "what is waited for takes real time"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    DeviceOptions, MoveHooks, MoveInfo, MovePhase, MovePoint, MoveSpec, MoveState, MoveWaitsFor,
    NodeErrorKind, NodeOptions, Rates, Reservation, Schedule, Slo, SloLimit, SloPromise, TokenKind,
    TokenText,
};
use flagstone::offline::FormatOptions;
use flagstone_wire::Status;

use crate::client;
use crate::moves::{block, ended, metric};
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::{Down, Folder, Scene, copy_image};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// What is written of the volume, in MiB, and from which of them on behind its snapshot.
const WRITTEN: u64 = 24;
const CHANGED: u64 = 16;
/// Bytes of a device that is copied often.
const SMALL_BYTES: u64 = 128 << 20;
/// From point to point.
const POINT_AFTER_BYTES: u64 = 2 * MIB;

fn other_image(other: &Folder) -> PathBuf {
    other.path.join("other.img")
}

/// So many cores, and two devices, unless the second one isn't there.
fn change(options: &mut NodeOptions, cores: usize, other: Option<&Folder>) {
    options.cores = Some(cores);
    options.move_hooks.point_after_bytes = Some(POINT_AFTER_BYTES);
    listening(options);
    options.devices.extend(other.map(|other| DeviceOptions {
        name: "other".to_owned(),
        path: other_image(other),
        expected_size_bytes: None,
        layers: Vec::new(),
        schedule: Default::default(),
    }));
}

fn format(other: &Folder, size_bytes: u64) {
    let format = FormatOptions {
        size_bytes: Some(size_bytes),
        force: false,
        sparse: true,
    };
    flagstone::offline::format(&other_image(other), &format).expect("formatted");
}

fn there(core: u32, limit_bytes: Option<u64>) -> MoveSpec {
    MoveSpec {
        device: Some("other".to_owned()),
        core: Some(core),
        limit_bytes,
        ..MoveSpec::default()
    }
}

fn taken(name: &str) -> SnapshotRef {
    SnapshotRef {
        volume: "vm".to_owned(),
        snapshot: name.to_owned(),
    }
}

/// A volume with a snapshot, and what changed since.
fn filled(scene: &Scene) -> TokenText {
    let owner = volume(scene, "vm", Some(0));
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 64 * MIB, false));
    resized.expect("grows");
    let mut client = scene.attach("vm");
    let mut write = |at: u64, with: u8| {
        assert_eq!(client.write(at * MIB, &vec![with; MIB as usize]), 0);
    };
    for at in 0..WRITTEN {
        write(at, 1 + at as u8);
    }
    let snapshots = scene.ask(|node| node.create_snapshots(vec![taken("old")]));
    snapshots.expect("is taken");
    for at in CHANGED..WRITTEN {
        write(at, 101 + at as u8);
    }
    owner
}

/// It is at its new place with all it had, and nothing of it is at the old one.
fn check(scene: &Scene, owner: &TokenText, core: u32) {
    let shown = scene.show("vm").expect("is there");
    assert_eq!((&shown.device[..], shown.core), ("other", core));
    let mut native = Native::connect(addresses(scene)[core as usize]);
    for (name, first) in [("vm", 101), ("vm@old", 1)] {
        let vm = native.opened(name, owner, 0);
        for at in 0..WRITTEN {
            let with = at as u8 + if at < CHANGED { 1 } else { first };
            for part in [0, MIB - BLOCK] {
                let found = native.read(vm, at * MIB + part, BLOCK).payload;
                assert_eq!(found, [with; BLOCK as usize], "{name}, MiB {at}");
            }
        }
    }
    let main = scene.ask(|node| node.show_device("main".to_owned()));
    assert_eq!(main.expect("is there").volume_count, 0);
}

fn info(scene: &Scene) -> MoveInfo {
    let info = scene.ask(|node| node.show_move("vm".to_owned()));
    info.expect("is known")
}

fn until(why: &str, look: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !look() {
        assert!(Instant::now() < until, "{why}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A node with such a volume on its way, so slowly that there is time to see it, once so much is copied.
fn on_its_way(other: &Folder, copied_bytes: u64) -> (Scene, TokenText) {
    format(other, 2 << 30);
    let scene = Scene::start(2 << 30, |options| change(options, 2, Some(other))).expect("a node");
    let owner = filled(&scene);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(1, Some(8 * MIB))));
    begun.expect("begins");
    until("nothing is copied", || {
        info(&scene).copied_bytes >= copied_bytes
    });
    (scene, owner)
}

#[test]
fn a_move_goes_on_where_a_stop_of_the_node_left_it() {
    let other = Folder::new();
    let (scene, owner) = on_its_way(&other, 9 * MIB);
    // What is written by now is where the copy is done already.
    let mut client = scene.attach("vm");
    assert_eq!(client.write(3 * MIB, &[77; BLOCK as usize]), 0);
    drop(client);
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    let at_once = info(&scene);
    assert_eq!(at_once.state, MoveState::Running, "{at_once:?}");
    assert_eq!(metric(&scene, "moves_resumed"), 1.0);
    assert_eq!(metric(&scene, "moves_waiting"), 0.0);
    assert_eq!((&at_once.from.device[..], at_once.from.core), ("main", 0));
    assert_eq!((&at_once.to.device[..], at_once.to.core), ("other", 1));
    let shown = scene.show("vm").expect("is there");
    assert_eq!(&shown.device[..], "main");
    // As during each move.
    let renamed = scene.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    assert_eq!(renamed.map_err(|e| e.kind), Err(NodeErrorKind::Busy));
    // It knows what was copied, and still keeps to its limit: most of two seconds are left.
    assert!(at_once.copied_bytes >= 6 * MIB, "{at_once:?}");
    let since = Instant::now();
    until("it has a phase", || info(&scene).phase.is_some());
    let phase = info(&scene).phase;
    assert_eq!(phase, Some(MovePhase::Snapshot { number: 1, of: 1 }));
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(info.phase, None);
    assert!(
        since.elapsed() > Duration::from_secs(1),
        "its limit is forgotten"
    );
    let all = (WRITTEN + WRITTEN - CHANGED) * MIB;
    assert!(
        info.copied_bytes >= all && info.copied_bytes < all + 5 * MIB,
        "{info:?}"
    );
    let mut client = scene.attach("vm");
    let (error, found) = client.call(client::READ, 3 * MIB, BLOCK as u32);
    assert_eq!((error, &found[..]), (0, &[77; BLOCK as usize][..]));
    assert_eq!(client.write(3 * MIB, &[4; BLOCK as usize]), 0);
    drop(client);
    check(&scene, &owner, 1);
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    check(&scene, &owner, 1);
}

/// A node of one core, with images of both its devices just when it was written down for the nth time how far the copy is: nothing else is written meanwhile.
fn dead_at(nth: u32, other: &Folder) -> (Scene, TokenText, u32) {
    format(other, SMALL_BYTES);
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let second = other_image(other);
    let scene = Scene::start(SMALL_BYTES, |options| {
        let first = options.devices[0].path.clone();
        options.stop_grace_ms = 50;
        options.move_hooks = MoveHooks::at_points(move |at| {
            let seen = match at {
                MovePoint::PointKept => counted.fetch_add(1, Ordering::SeqCst) + 1,
                _ => counted.load(Ordering::SeqCst),
            };
            if at == MovePoint::PointKept && seen == nth {
                for device in [&first, &second] {
                    copy_image(device, &image_of(device));
                }
            }
            seen < nth
        });
        change(options, 1, Some(other));
    });
    let scene = scene.expect("a node");
    let owner = filled(&scene);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(0, None)));
    begun.expect("begins");
    let seen = || count.load(Ordering::SeqCst);
    until("it never comes to that point", || {
        seen() >= nth || info(&scene).state != MoveState::Running
    });
    (scene, owner, count.load(Ordering::SeqCst))
}

fn image_of(device: &Path) -> PathBuf {
    device.with_file_name("dead.img")
}

#[test]
fn a_move_goes_on_behind_a_death_of_the_node_at_each_of_its_points() {
    for nth in 1..100 {
        let other = Folder::new();
        let (scene, owner, seen) = dead_at(nth, &other);
        if seen < nth {
            assert!(
                nth > 15,
                "a point every 2 MiB, and one for each round: {nth}"
            );
            return;
        }
        let down = scene.down();
        std::fs::rename(image_of(&other_image(&other)), other_image(&other)).expect("an image");
        let scene = down.with_image("dead.img").up(|options| {
            change(options, 1, Some(&other));
        });
        let info = ended(&scene, "vm");
        assert_eq!(info.state, MoveState::Done, "point {nth}: {info:?}");
        check(&scene, &owner, 0);
    }
    panic!("it has more points than that");
}

#[test]
fn a_move_that_goes_on_can_be_ended() {
    let other = Folder::new();
    let (scene, _) = on_its_way(&other, 5 * MIB);
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    let ends = scene.ask(|node| node.cancel_move("vm".to_owned()));
    ends.expect("ends");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Cancelled, "{info:?}");
    let shown = scene.show("vm").expect("is there");
    assert_eq!(&shown.device[..], "main");
    let device = scene.ask(|node| node.show_device("other".to_owned()));
    assert_eq!(device.expect("is there").volume_count, 0);
    // And nothing goes on behind the next start.
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    let known = scene.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("is settled");
}

#[test]
fn a_move_whose_device_is_away_is_seen_to_wait_and_can_be_ended() {
    let other = Folder::new();
    let (scene, owner) = on_its_way(&other, 9 * MIB);
    let device = scene.ask(|node| node.show_device("other".to_owned()));
    let device = device.expect("is there").id;
    let notices = |scene: &Scene| {
        let info = scene.ask(|node| node.info()).expect("says what it is");
        let notices = info.notices.into_iter();
        notices
            .filter(|notice| notice.contains("the move of volume 'vm'"))
            .collect::<Vec<_>>()
    };
    // Of a start behind a start as well.
    let scene = scene.restart(|options| change(options, 2, None));
    let scene = scene.restart(|options| change(options, 2, None));
    let waiting = info(&scene);
    assert_eq!(waiting.state, MoveState::Waiting, "{waiting:?}");
    let waits = waiting.waits.expect("is said");
    assert_eq!(waits.what, MoveWaitsFor::Device);
    assert_eq!((waits.since_ns, waits.attempts), (waiting.started_ns, 0));
    assert_eq!((&waiting.from.device[..], waiting.from.core), ("main", 0));
    assert_eq!(waiting.to.device, device);
    let why = waiting.error.clone().expect("it is said");
    assert!(
        why.contains(&device) && why.contains("--cancel"),
        "what to do: {why}"
    );
    let shown = scene.show("vm").expect("is there");
    assert_eq!(shown.moving, Some(waiting));
    let told = notices(&scene);
    assert!(told.len() == 1 && told[0].contains(&device), "{told:?}");
    assert_eq!(metric(&scene, "moves_waiting"), 1.0);
    assert_eq!(metric(&scene, "moves_running"), 0.0);
    // All may be done with it but to begin another move, which would end this one.
    let elsewhere = || MoveSpec {
        core: Some(1),
        ..MoveSpec::default()
    };
    let refused = scene.ask(|node| node.move_volume("vm".to_owned(), elsewhere()));
    let refused = refused.expect_err("waits");
    assert_eq!(refused.kind, NodeErrorKind::Busy);
    assert!(refused.found.contains(&device), "{refused:?}");
    let set = scene.ask(|node| node.set_slo("vm".to_owned(), Slo::default(), false));
    set.expect("is set");
    let cancelled = scene.ask(|node| node.cancel_move("vm".to_owned()));
    // That is durable with the answer.
    assert_eq!(cancelled.expect("ends").state, MoveState::Cancelled);
    assert_eq!(info(&scene).state, MoveState::Cancelled);
    assert_eq!(scene.show("vm").expect("is there").moving, None);
    assert_eq!(notices(&scene), Vec::<String>::new());
    let counted = ["moves_waiting", "moves_cancelled"].map(|name| metric(&scene, name));
    assert_eq!(counted, [0.0, 1.0]);
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("grows");
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 64 * MIB, true));
    resized.expect("is as it was");
    let scene = scene.restart(|options| change(options, 2, None));
    is_not_known(&scene);
    // It is as if it had never been there, also where it may go elsewhere first.
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), elsewhere()));
    begun.expect("begins");
    assert_eq!(ended(&scene, "vm").state, MoveState::Done);
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    is_not_known(&scene);
    let shown = scene.show("vm").expect("is there");
    assert_eq!(
        (&shown.device[..], shown.core, shown.moving),
        ("main", 1, None)
    );
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(1, None)));
    begun.expect("begins");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "the place is free: {info:?}");
    check(&scene, &owner, 1);
}

/// A node of one core with such a volume, whose move comes to an end for ever at such a point; images of both its devices are of just then. Tells when that is.
fn dying_at(point: MovePoint, other: &Folder) -> (Scene, TokenText, impl Fn() -> bool) {
    format(other, SMALL_BYTES);
    let is_there = Arc::new(AtomicU32::new(0));
    let told = is_there.clone();
    let second = other_image(other);
    let scene = Scene::start(SMALL_BYTES, |options| {
        let first = options.devices[0].path.clone();
        options.stop_grace_ms = 50;
        options.move_hooks = MoveHooks::at_points(move |at| {
            if at == point && told.load(Ordering::SeqCst) == 0 {
                for device in [&first, &second] {
                    copy_image(device, &image_of(device));
                }
                told.store(1, Ordering::SeqCst);
            }
            at != point
        });
        change(options, 1, Some(other));
    });
    let scene = scene.expect("a node");
    let owner = filled(&scene);
    let seen = move || is_there.load(Ordering::SeqCst) == 1;
    (scene, owner, seen)
}

/// Behind that death.
fn dead(scene: Scene, other: &Folder) -> Down {
    let down = scene.down();
    std::fs::rename(image_of(&other_image(other)), other_image(other)).expect("an image");
    down.with_image("dead.img")
}

fn is_not_known(scene: &Scene) {
    let known = scene.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
}

/// It can be moved, so nothing of an earlier move is in the way.
fn is_free(scene: &Scene, owner: &TokenText) {
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(0, None)));
    begun.expect("begins");
    let info = ended(scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    check(scene, owner, 0);
}

/// The copy of one that was ended could not be deleted before the node died.
#[test]
fn a_move_that_was_ended_stays_so_though_its_copy_is_still_there() {
    let other = Folder::new();
    let (scene, owner, is_ended) = dying_at(MovePoint::EndKept, &other);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(0, Some(8 * MIB))));
    begun.expect("begins");
    until("nothing is copied", || info(&scene).copied_bytes >= 5 * MIB);
    let ends = scene.ask(|node| node.cancel_move("vm".to_owned()));
    ends.expect("ends");
    until("it doesn't end", is_ended);
    let scene = dead(scene, &other).up(|options| change(options, 1, Some(&other)));
    is_not_known(&scene);
    assert_eq!(metric(&scene, "moves_resumed"), 0.0);
    assert_eq!(&scene.show("vm").expect("is there").device[..], "main");
    is_free(&scene, &owner);
}

/// It is written down that it is being moved, and not yet how far that is.
#[test]
fn a_move_that_has_no_point_yet_is_forgotten() {
    let other = Folder::new();
    let (scene, owner, is_going) = dying_at(MovePoint::GoingKept, &other);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(0, None)));
    begun.expect("begins");
    until("it doesn't begin", is_going);
    // Without its device that isn't known.
    let scene = dead(scene, &other).up(|options| change(options, 1, None));
    assert_eq!(info(&scene).state, MoveState::Waiting);
    let scene = scene.restart(|options| change(options, 1, Some(&other)));
    is_not_known(&scene);
    // And the next start doesn't wait for anything.
    let scene = scene.restart(|options| change(options, 1, None));
    is_not_known(&scene);
    let scene = scene.restart(|options| change(options, 1, Some(&other)));
    is_free(&scene, &owner);
}

/// Its tokens have come to its new place, and it hasn't: they are as they were then, and mustn't be what counts.
#[test]
fn tokens_beside_a_copy_that_goes_on_say_nothing() {
    let other = Folder::new();
    let (scene, owner, is_there) = dying_at(MovePoint::TokensKept, &other);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(0, Some(20 * MIB))));
    begun.expect("begins");
    until("it doesn't come so far", is_there);
    let scene = dead(scene, &other).up(|options| {
        change(options, 1, Some(&other));
        // So that the move is at the same place once more, and not over.
        options.move_hooks = MoveHooks::at_points(|at| at != MovePoint::Held);
        options.stop_grace_ms = 50;
    });
    assert_eq!(info(&scene).state, MoveState::Running);
    let opens = |scene: &Scene, token: &TokenText| {
        let mut native = Native::connect(addresses(scene)[0]);
        native.open("vm", token, 0).status()
    };
    assert_eq!(opens(&scene, &owner), Status::Ok);
    // What is changed from here on counts, behind each start.
    let (_, reader) = token(&scene, "vm", TokenKind::Reader);
    assert_eq!(opens(&scene, &reader), Status::Ok);
    let scene = scene.restart(|options| change(options, 1, Some(&other)));
    assert_eq!(opens(&scene, &reader), Status::Ok);
    assert_eq!(ended(&scene, "vm").state, MoveState::Done);
    assert_eq!(opens(&scene, &reader), Status::Ok);
    check(&scene, &owner, 0);
    let scene = scene.restart(|options| change(options, 1, Some(&other)));
    assert_eq!(opens(&scene, &reader), Status::Ok);
    check(&scene, &owner, 0);
}

/// Between two points there are many parts.
#[test]
fn a_stop_in_order_leaves_a_point_of_what_is_copied_then() {
    let other = Folder::new();
    let rarely = |options: &mut NodeOptions| {
        change(options, 2, Some(&other));
        options.move_hooks.point_after_bytes = Some(1 << 40);
    };
    format(&other, 2 << 30);
    let scene = Scene::start(2 << 30, rarely).expect("a node");
    let owner = filled(&scene);
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), there(1, Some(8 * MIB))));
    begun.expect("begins");
    until("nothing is copied", || info(&scene).copied_bytes >= 9 * MIB);
    let copied_bytes = info(&scene).copied_bytes;
    let scene = scene.restart(rarely);
    let at_once = info(&scene);
    assert_eq!(at_once.state, MoveState::Running, "{at_once:?}");
    assert!(
        at_once.copied_bytes >= copied_bytes,
        "{copied_bytes}: {at_once:?}"
    );
    assert_eq!(ended(&scene, "vm").state, MoveState::Done);
    check(&scene, &owner, 1);
}

#[test]
fn a_device_that_was_away_finds_its_copy_going_on_or_of_no_use() {
    for is_changed in [false, true] {
        let other = Folder::new();
        let (scene, owner) = on_its_way(&other, 9 * MIB);
        let scene = scene.restart(|options| change(options, 2, None));
        let mut native = Native::connect(addresses(&scene)[0]);
        assert_eq!(native.open("vm", &owner, 0).status(), Status::Ok);
        // It is no longer being moved, so anything may be done with it.
        let mut client = scene.attach("vm");
        assert_eq!(client.write(MIB, &block(9)), 0);
        assert_eq!(client.call(client::TRIM, 2 * MIB, MIB as u32).0, 0);
        drop(client);
        if is_changed {
            let snapshots = scene.ask(|node| node.create_snapshots(vec![taken("new")]));
            snapshots.expect("is taken");
        }
        let scene = scene.restart(|options| change(options, 2, Some(&other)));
        let info = ended(&scene, "vm");
        assert_eq!(info.state, MoveState::Done, "{info:?}");
        let all = (WRITTEN + WRITTEN - CHANGED) * MIB;
        assert!(info.copied_bytes < all + 5 * MIB, "{info:?}");
        let mut client = scene.attach("vm");
        let (error, found) = client.call(client::READ, MIB, BLOCK as u32);
        assert_eq!((error, found), (0, block(9)));
        let (error, found) = client.call(client::READ, 2 * MIB, MIB as u32);
        assert_eq!((error, found), (0, vec![0; MIB as usize]));
        for (at, with) in [(1, 2), (2, 3)] {
            assert_eq!(client.write(at * MIB, &vec![with; MIB as usize]), 0);
        }
        drop(client);
        check(&scene, &owner, 1);
        let snapshots = scene.show("vm").expect("is there").snapshot_count;
        assert_eq!(snapshots, 1 + u64::from(is_changed));
    }
}

/// What its copy had is gone, so it is neither counted nor waited for because of the limit.
#[test]
fn a_move_that_begins_anew_counts_from_nothing() {
    let other = Folder::new();
    let (scene, owner) = on_its_way(&other, 20 * MIB);
    let scene = scene.restart(|options| change(options, 2, None));
    let reserved = scene.ask(|node| node.set_reservation("vm".to_owned(), Reservation::Full));
    reserved.expect("is reserved");
    let scene = scene.restart(|options| change(options, 2, Some(&other)));
    let since = Instant::now();
    until("it doesn't begin anew", || {
        (1..16 * MIB).contains(&info(&scene).copied_bytes)
    });
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    let all = (WRITTEN + WRITTEN - CHANGED) * MIB;
    assert!(
        (all..all + 5 * MIB).contains(&info.copied_bytes),
        "{info:?}"
    );
    assert!(since.elapsed() < Duration::from_secs(20), "it waits");
    check(&scene, &owner, 1);
}

/// The copy has its volume's id, and may be read behind it.
#[test]
fn what_is_promised_to_a_volume_is_so_while_its_move_goes_on() {
    let ceiling = |options: &mut NodeOptions, cores: usize| {
        change(options, cores, None);
        options.devices[0].schedule = Schedule {
            ceiling: Some("reads=1000000 writes=1000000".parse().expect("a ceiling")),
            ..Schedule::default()
        };
    };
    let scene = Scene::start(2 << 30, |options| ceiling(options, 2)).expect("a node");
    let owner = filled(&scene);
    let floor = Slo {
        promise: SloPromise::Floor(Rates {
            reads: 200_000,
            writes: 0,
        }),
        limit: SloLimit::default(),
    };
    let set = scene.ask(|node| node.set_slo("vm".to_owned(), floor, false));
    set.expect("is promised");
    let promised = |scene: &Scene| {
        let device = scene.ask(|node| node.show_device("main".to_owned()));
        device.expect("is there").promised.expect("has a ceiling")
    };
    let before = promised(&scene);
    assert!(before > 0.1, "{before}");
    let spec = MoveSpec {
        core: Some(1),
        limit_bytes: Some(8 * MIB),
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), spec));
    begun.expect("begins");
    until("nothing is copied", || info(&scene).copied_bytes >= 5 * MIB);
    // Both journals are on one core then.
    let scene = scene.restart(|options| ceiling(options, 1));
    assert_eq!(promised(&scene), before);
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(promised(&scene), before);
    let mut native = Native::connect(addresses(&scene)[0]);
    let vm = native.opened("vm", &owner, 0);
    let found = native.read(vm, 23 * MIB, BLOCK).payload;
    assert_eq!(found, [124; BLOCK as usize]);
    let scene = scene.restart(|options| ceiling(options, 1));
    assert_eq!(promised(&scene), before);
}
