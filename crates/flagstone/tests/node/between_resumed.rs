//! A move to another node that is cut off goes on: each of the two nodes is started again in the middle of the copy, or one is away for a while.

#![allow(
    clippy::disallowed_methods,
    reason = "what is waited for takes real time"
)]

use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::{
    ArrivalSpec, MoveInfo, MoveSpec, MoveState, MoveWaitsFor, NodeErrorKind, NodeOptions,
    ReceiveSpec, TokenText,
};

use crate::between::{ended, kind, promise, until_detached};
use crate::client;
use crate::moves::metric;
use crate::native::client::Native;
use crate::native::{addresses, listening, volume};
use crate::support::Scene;

pub(crate) const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// What is written of the volume, in MiB, and from which of them on behind its snapshot.
const WRITTEN: u64 = 24;
const CHANGED: u64 = 16;
/// All there is to copy, in bytes.
const ALL_BYTES: u64 = (WRITTEN + WRITTEN - CHANGED) * MIB;
const POINT_AFTER_BYTES: u64 = 2 * MIB;
/// What is copied in a second.
const LIMIT_BYTES: u64 = 8 * MIB;

pub(crate) fn change(options: &mut NodeOptions) {
    listening(options);
    options.stop_grace_ms = 2000;
    options.move_hooks.point_after_bytes = Some(POINT_AFTER_BYTES);
}

pub(crate) fn node() -> Scene {
    Scene::with(change)
}

/// The same again, at the address that it had.
fn again(scene: Scene) -> Scene {
    again_with(scene, |_| {})
}

/// The same, with some options changed.
pub(crate) fn again_with(scene: Scene, more: impl FnOnce(&mut NodeOptions)) -> Scene {
    let at = addresses(&scene)[0];
    scene.restart(|options| {
        change(options);
        options.native = Some(at);
        more(options);
    })
}

/// A volume with a snapshot, and what changed since.
pub(crate) fn filled(scene: &Scene) -> TokenText {
    let owner = volume(scene, "vm", None);
    let resized = scene.ask(|node| node.resize_volume("vm".to_owned(), 64 * MIB, false));
    resized.expect("grows");
    let mut client = scene.attach("vm");
    let mut write = |at: u64, with: u8| {
        assert_eq!(client.write(at * MIB, &vec![with; MIB as usize]), 0);
    };
    for at in 0..WRITTEN {
        write(at, 1 + at as u8);
    }
    let snapshots =
        scene.ask(|node| node.create_snapshots(vec!["vm@old".parse().expect("a name")]));
    snapshots.expect("is taken");
    for at in CHANGED..WRITTEN {
        write(at, 101 + at as u8);
    }
    drop(client);
    until_detached(scene);
    owner
}

/// It has all it had, and can be used. What was written meanwhile is the last block of MiB 3.
pub(crate) fn check(scene: &Scene, owner: &TokenText, meanwhile: u8) {
    let mut native = Native::connect(addresses(scene)[0]);
    for (name, first) in [("vm", 101), ("vm@old", 1)] {
        let vm = native.opened(name, owner, 0);
        for at in 0..WRITTEN {
            let with = at as u8 + if at < CHANGED { 1 } else { first };
            for part in [0, MIB - BLOCK] {
                let is_later = name == "vm" && (at, part) == (3, MIB - BLOCK);
                let with = if is_later { meanwhile } else { with };
                let found = native.read(vm, at * MIB + part, BLOCK).payload;
                assert_eq!(found, [with; BLOCK as usize], "{name}, MiB {at}");
            }
        }
    }
}

fn write_meanwhile(scene: &Scene, with: u8) {
    let mut client = scene.attach("vm");
    let at = 4 * MIB - BLOCK;
    assert_eq!(
        client.write_with(client::FUA, at, &[with; BLOCK as usize]),
        0
    );
    drop(client);
    until_detached(scene);
}

pub(crate) fn info(scene: &Scene) -> MoveInfo {
    let info = scene.ask(|node| node.show_move("vm".to_owned()));
    info.expect("is known")
}

pub(crate) fn until(why: &str, look: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !look() {
        assert!(Instant::now() < until, "{why}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The volume is on its way to the other node, and so much of it is copied.
pub(crate) fn on_its_way(one: &Scene, other: &Scene, copied_bytes: u64) {
    let spec = MoveSpec {
        arrival: Some(promise(one, other, "vm").expect("promises")),
        limit_bytes: Some(LIMIT_BYTES),
        ..MoveSpec::default()
    };
    let begun = one.ask(|node| node.move_volume("vm".to_owned(), spec));
    begun.expect("begins");
    until("nothing is copied", || {
        info(one).copied_bytes >= copied_bytes
    });
}

/// It goes on from about where it was when so much was copied, and not from nothing.
fn goes_on(one: &Scene, before_bytes: u64) {
    let least = before_bytes - POINT_AFTER_BYTES - 2 * MIB;
    until("it doesn't go on", || {
        let info = info(one);
        // Before it has asked the other node it doesn't know.
        if info.phase.is_some() {
            assert!(info.copied_bytes >= least, "{least} were copied: {info:?}");
        }
        info.copied_bytes > before_bytes + MIB
    });
    assert_eq!(info(one).error, None, "it has gone on");
}

/// It has come, and no more was copied than all of it and what was behind a point.
fn came(one: &Scene, other: &Scene, owner: &TokenText, interruptions: u64, meanwhile: u8) {
    let info = ended(one, "vm");
    assert_eq!((info.state, &info.error), (MoveState::Done, &None));
    let most = ALL_BYTES + (POINT_AFTER_BYTES + 3 * MIB) * interruptions;
    assert!(info.copied_bytes <= most, "at most {most}: {info:?}");
    assert!(
        info.copied_bytes >= ALL_BYTES,
        "with what was copied before: {info:?}"
    );
    assert_eq!(kind(one.show("vm")).0, NodeErrorKind::NotFound);
    check(other, owner, meanwhile);
}

#[test]
fn a_move_goes_on_behind_a_start_of_each_of_its_nodes() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 9 * MIB);
    // The new node first.
    let other = again(other);
    let (refused, _) = kind(other.create("vm", MIB));
    assert_eq!(refused, NodeErrorKind::AlreadyExists, "its name is kept");
    let arriving = other
        .ask(|node| node.info())
        .expect("says what it is")
        .arriving;
    assert!(arriving.len() == 1 && arriving[0].has_begun, "{arriving:?}");
    goes_on(&one, 9 * MIB);
    write_meanwhile(&one, 77);
    let before = info(&one).copied_bytes;
    // Then the old one.
    let one = again(one);
    let at_once = info(&one);
    assert_eq!(at_once.state, MoveState::Running, "{at_once:?}");
    let there = addresses(&other)[0].to_string();
    assert_eq!(at_once.to.node, Some(there));
    assert_eq!(at_once.limit_bytes, Some(LIMIT_BYTES), "it is written down");
    assert_eq!(metric(&one, "moves_resumed"), 1.0);
    // As during each move.
    let resized = one.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    assert_eq!(resized.map_err(|e| e.kind), Err(NodeErrorKind::Busy));
    goes_on(&one, before);
    came(&one, &other, &owner, 2, 77);
    let (one, other) = (again(one), again(other));
    assert_eq!(kind(one.show("vm")).0, NodeErrorKind::NotFound);
    // How it went is forgotten, and not where: a command that waited for it ends well.
    let there = addresses(&other)[0].to_string();
    let known = info(&one);
    assert_eq!(known.state, MoveState::Done, "{known:?}");
    assert_eq!((known.to.node, known.error), (Some(there), None));
    assert_eq!((known.from.device, known.copied_bytes), (String::new(), 0));
    // One that is here comes before one that went.
    one.create("vm", MIB).expect("the name is free");
    let known = one.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    check(&other, &owner, 77);
}

#[test]
fn a_move_waits_for_a_node_that_is_away() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 9 * MIB);
    let (at, before) = (addresses(&other)[0], info(&one).copied_bytes);
    assert_eq!(info(&one).waits, None);
    let gauges = || ["moves_running", "moves_waiting"].map(|name| metric(&one, name));
    assert_eq!(gauges(), [1.0, 0.0]);
    let other = other.down();
    until("it isn't said that it waits", || {
        info(&one).state == MoveState::Waiting
    });
    let waiting = info(&one);
    let error = waiting.error.unwrap_or_default();
    assert!(error.contains("waits for the other node"), "{error}");
    assert_eq!((waiting.phase, waiting.left_s), (None, None));
    let first = waiting.waits.expect("is said");
    assert_eq!(first.what, MoveWaitsFor::Node);
    assert!(
        first.since_ns > waiting.started_ns && first.attempts > 0,
        "{first:?}"
    );
    assert_eq!(gauges(), [0.0, 1.0]);
    let shown = one.show("vm").expect("is here").moving;
    assert_eq!(shown.map(|info| info.state), Some(MoveState::Waiting));
    until("it isn't tried again", || {
        info(&one).waits.is_some_and(|now| {
            assert_eq!(now.since_ns, first.since_ns);
            now.attempts > first.attempts
        })
    });
    // It is used where it is, also behind a start of its own node.
    write_meanwhile(&one, 55);
    let one = again(one);
    write_meanwhile(&one, 66);
    let other = other.up(|options| {
        change(options);
        options.native = Some(at);
    });
    goes_on(&one, before);
    assert_eq!(info(&one).waits, None, "it has gone on");
    came(&one, &other, &owner, 2, 66);
}

/// Who wants its name there is told what has it, and where that is ended.
#[test]
fn a_volume_that_arrives_is_shown_and_has_its_name() {
    let (one, other) = (node(), node());
    filled(&one);
    let arriving = || {
        other
            .ask(|node| node.info())
            .expect("says what it is")
            .arriving
    };
    assert_eq!(arriving(), []);
    let stream = one.ask(|node| node.open_stream("vm@old".parse().expect("a name"), None));
    let header = stream.expect("is read").header.clone();
    let promised = promise(&one, &other, "vm").expect("promises");
    let told = |what: &str| {
        let error = other.create("vm", MIB).expect_err("its name is kept");
        assert_eq!(error.kind, NodeErrorKind::AlreadyExists);
        assert!(error.found.contains(what), "{what}: {error:?}");
        assert!(
            error.next_step.contains("volume move vm --cancel"),
            "{error:?}"
        );
    };
    told("was promised a place here");
    let shown = arriving();
    assert!(!shown[0].has_begun && shown[0].from.is_none(), "{shown:?}");
    let spec = MoveSpec {
        arrival: Some(promised),
        limit_bytes: Some(LIMIT_BYTES),
        ..MoveSpec::default()
    };
    let begun = one.ask(|node| node.move_volume("vm".to_owned(), spec));
    begun.expect("begins");
    until("nothing is copied", || info(&one).copied_bytes >= MIB);
    told("is arriving from another node (127.0.0.1)");
    other.create("own", MIB).expect("is made");
    let renamed = other.ask(|node| node.rename_volume("own".to_owned(), "vm".to_owned()));
    let cloned =
        other.ask(|node| node.clone_volume("own".parse().expect("a name"), "vm".to_owned()));
    let another = ArrivalSpec {
        volume: "vm".to_owned(),
        id: "a7".repeat(16),
        device: None,
        core: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    let promised = other.ask(|node| node.promise_arrival(another));
    let stream = ReceiveSpec {
        volume: "vm".to_owned(),
        snapshot: "old".to_owned(),
        header,
        force: false,
        device: None,
        core: None,
    };
    let received = other.ask(|node| node.begin_receive(stream));
    for refused in [
        renamed.map(drop),
        cloned.map(drop),
        promised.map(drop),
        received.map(drop),
    ] {
        let error = refused.expect_err("its name is kept");
        assert!(
            error.found.contains("arriving from another node"),
            "{error:?}"
        );
    }
    let shown = arriving();
    let [vm] = &shown[..] else {
        panic!("one is on its way: {shown:?}");
    };
    let id = one.show("vm").expect("is here").id;
    assert_eq!(
        (&vm.volume[..], &vm.id, &vm.device[..]),
        ("vm", &id, "main")
    );
    assert_eq!(
        (vm.has_begun, vm.from.as_deref()),
        (true, Some("127.0.0.1"))
    );
    assert!(vm.silent_s < 60 && vm.ends_in_s > 86_000, "{vm:?}");
    let unlimited = one.ask(|node| node.limit_move("vm".to_owned(), None));
    unlimited.expect("hurries");
    assert_eq!(ended(&one, "vm").state, MoveState::Done);
    assert_eq!(arriving(), [], "it has come");
    let (_, found) = kind(other.create("vm", MIB));
    assert!(found.contains("there already is a volume"), "{found}");
}

/// What the other node keeps for a move can be ended there, too: what has come, and what was promised alone.
#[test]
fn a_volume_that_arrives_can_be_refused_where_it_comes() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    let end = || other.ask(|node| node.cancel_move("vm".to_owned()));
    assert_eq!(
        end().map_err(|error| error.kind),
        Err(NodeErrorKind::NotFound)
    );
    promise(&one, &other, "vm").expect("promises");
    let over = end().expect("nothing has come");
    assert_eq!(over.state, MoveState::Cancelled, "{over:?}");
    // As a command gives back what it was promised in vain.
    let give_back = |number| other.ask(move |node| node.give_back_arrival(number));
    let promised = promise(&one, &other, "vm").expect("promises");
    let unknown = give_back(promised.number ^ 1);
    assert_eq!(unknown.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    let given = give_back(promised.number).expect("nobody has begun");
    assert_eq!((&given.volume[..], given.has_begun), ("vm", false));
    other.create("vm", MIB).expect("its name is free");
    let deleted = other.ask(|node| node.delete_volume("vm".to_owned(), true));
    deleted.expect("is deleted");
    on_its_way(&one, &other, 5 * MIB);
    let arriving = other.ask(|node| node.info()).expect("says what it is");
    assert!(arriving.arriving[0].has_begun);
    let over = end().expect("it is on its way");
    assert_eq!(over.state, MoveState::Cancelled);
    assert_eq!(over.from.node.as_deref(), Some("127.0.0.1"));
    assert_eq!(over.to.device, "main");
    until("its name isn't free", || other.create("vm", MIB).is_ok());
    // The node that has it is told so by its next request.
    let info = ended(&one, "vm");
    assert_eq!(info.state, MoveState::Failed);
    let why = info.error.expect("is said");
    assert!(why.contains("somebody has ended it there"), "{why}");
    check(&one, &owner, 4);
    let resized = one.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("nothing goes on");
    // Nothing of it is left there.
    let deleted = other.ask(|node| node.delete_volume("vm".to_owned(), true));
    deleted.expect("is deleted");
    let device = other.ask(|node| node.show_device("main".to_owned()));
    assert_eq!(device.expect("is there").volume_count, 0);
}

/// Behind a start it isn't known where it comes from.
#[test]
fn what_has_come_before_a_start_can_be_refused_too() {
    let (one, other) = (node(), node());
    filled(&one);
    on_its_way(&one, &other, 5 * MIB);
    let _one = one.down();
    let other = again(other);
    let over = other.ask(|node| node.cancel_move("vm".to_owned()));
    let over = over.expect("it is on its way");
    assert_eq!(over.state, MoveState::Cancelled);
    assert_eq!(over.from.node.as_deref(), Some(""));
    until("its name isn't free", || other.create("vm", MIB).is_ok());
    let device = other.ask(|node| node.show_device("main".to_owned()));
    assert_eq!(device.expect("is there").volume_count, 1, "the new one");
}

/// One that was ended while the other node was away is told there when that is back, and nobody has to free its name.
#[test]
fn a_node_that_was_away_is_told_that_a_move_is_over() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 5 * MIB);
    let at = addresses(&other)[0];
    let other = other.down();
    let cancelled = one.ask(|node| node.cancel_move("vm".to_owned()));
    cancelled.expect("ends");
    assert_eq!(ended(&one, "vm").state, MoveState::Cancelled);
    let other = other.up(|options| {
        change(options);
        options.native = Some(at);
    });
    // Nothing else frees it for a day.
    until("its name isn't free", || other.create("vm", MIB).is_ok());
    check(&one, &owner, 4);
}

#[test]
fn a_move_that_waits_can_be_ended_and_never_comes_back() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 5 * MIB);
    let at = addresses(&other)[0];
    let other = other.down();
    let one = again(one);
    let cancelled = one.ask(|node| node.cancel_move("vm".to_owned()));
    cancelled.expect("ends");
    assert_eq!(ended(&one, "vm").state, MoveState::Cancelled);
    // Behind that nobody tells the other node.
    let one = again(one);
    let other = other.up(|options| {
        change(options);
        options.native = Some(at);
        options.move_hooks.kept_ns = Some(300_000_000);
    });
    let known = one.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    check(&one, &owner, 4);
    let resized = one.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("is settled");
    until("what has come of it stays", || {
        let device = other.ask(|node| node.show_device("main".to_owned()));
        device.expect("is there").volume_count == 0
    });
    until("its name isn't free", || other.create("vm", MIB).is_ok());
}
