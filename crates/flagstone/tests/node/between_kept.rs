//! What is kept of a move between nodes that is cut off: nothing, at either node, if it can't go on; otherwise what has come and what it was promised there.

#![allow(
    clippy::disallowed_methods,
    reason = "what is waited for takes real time"
)]

use std::thread;
use std::time::Duration;

use flagstone::node::{
    MoveHooks, MovePoint, MoveState, NodeError, NodeErrorKind, NodeOptions, Rates, Schedule, Slo,
    SloLimit, SloPromise, VolumeSpec,
};

use crate::between::{ended, promise};
use crate::between_resumed::{
    MIB, again_with, change, check, filled, info, node, on_its_way, until,
};
use crate::native::addresses;
use crate::support::Scene;

/// As one whose device is full. It is over then, and neither a start nor its copy remembers it.
#[test]
fn a_move_that_fails_at_once_behind_a_start_is_over() {
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 5 * MIB);
    let one = again_with(one, |options| {
        let limit = options.move_hooks.point_after_bytes;
        options.move_hooks = MoveHooks::at_points(|at| at != MovePoint::GoesOn);
        options.move_hooks.point_after_bytes = limit;
    });
    let failed = ended(&one, "vm");
    assert_eq!(failed.state, MoveState::Failed, "{failed:?}");
    let error = failed.error.unwrap_or_default();
    assert!(error.contains("under way here"), "{error}");
    check(&one, &owner, 4);
    let resized = one.ask(|node| node.resize_volume("vm".to_owned(), 128 * MIB, false));
    resized.expect("it can be changed at once");
    // It goes with its copy.
    until("its name isn't free there", || {
        other.create("vm", MIB).is_ok()
    });
    other
        .ask(|node| node.delete_volume("vm".to_owned(), true))
        .expect("is deleted");
    let one = again_with(one, |_| {});
    let known = one.ask(|node| node.show_move("vm".to_owned()));
    assert_eq!(known.map_err(|e| e.kind), Err(NodeErrorKind::NotFound));
    check(&one, &owner, 4);
    // It can be asked for again.
    on_its_way(&one, &other, 5 * MIB);
    assert_eq!(info(&one).error, None);
    assert_eq!(ended(&one, "vm").state, MoveState::Done);
    check(&other, &owner, 4);
}

/// It is away for longer than one that was only promised a place may be silent: nothing is copied once more.
#[test]
fn what_has_come_is_kept_for_an_origin_that_is_away() {
    const SILENCE: Duration = Duration::from_millis(500);
    let (one, other) = (node(), node());
    let owner = filled(&one);
    on_its_way(&one, &other, 9 * MIB);
    let (at, there) = (addresses(&one)[0], addresses(&other)[0]);
    let one = one.down();
    let silent = |options: &mut NodeOptions| {
        options.move_hooks.silence_ns = Some(SILENCE.as_nanos() as u64);
    };
    let other = again_with(other, silent);
    // A promise of which nothing has come ends meanwhile.
    let third = node();
    third.create("nothing", MIB).expect("created");
    promise(&third, &other, "nothing").expect("promises");
    until("the promise stays", || other.create("nothing", MIB).is_ok());
    thread::sleep(SILENCE * 2);
    let refused = other.create("vm", MIB).map_err(|error| error.kind);
    assert_eq!(refused, Err(NodeErrorKind::AlreadyExists), "it is kept");
    assert_eq!(addresses(&other)[0], there);
    let one = one.up(|options| {
        change(options);
        options.native = Some(at);
    });
    let info = ended(&one, "vm");
    assert_eq!((info.state, &info.error), (MoveState::Done, &None));
    // All of it is 32 MiB.
    assert!(info.copied_bytes < 38 * MIB, "it began anew: {info:?}");
    check(&other, &owner, 4);
}

fn floor(reads: u64) -> Slo {
    Slo {
        promise: SloPromise::Floor(Rates { reads, writes: 0 }),
        limit: SloLimit::default(),
    }
}

fn create_with_floor(scene: &Scene, name: &str, reads: u64) -> Result<(), NodeError> {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: MIB,
        reserve: Default::default(),
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: floor(reads),
        oversubscribe: false,
    };
    scene.ask(|node| node.create_volume(spec)).map(drop)
}

/// Nobody is promised it a second time, until it is known that the volume doesn't come.
#[test]
fn what_a_volume_that_comes_was_promised_stays_so_behind_a_start() {
    let divided = |options: &mut NodeOptions| {
        options.devices[0].schedule = Schedule {
            ceiling: Some("reads=100000 writes=100000".parse().expect("a ceiling")),
            ..Schedule::default()
        };
    };
    let divided_node = || {
        Scene::with(|options| {
            change(options);
            divided(options);
        })
    };
    let (one, other) = (divided_node(), divided_node());
    let owner = filled(&one);
    let set = one.ask(|node| node.set_slo("vm".to_owned(), floor(60_000), false));
    set.expect("there is room");
    let refused = |other: &Scene, when: &str| {
        let refused = create_with_floor(other, "db", 50_000).map_err(|error| error.kind);
        assert_eq!(refused, Err(NodeErrorKind::NoSpace), "{when}");
    };
    // One that doesn't come.
    on_its_way(&one, &other, 5 * MIB);
    refused(&other, "it comes");
    let other = again_with(other, divided);
    refused(&other, "it still comes");
    let cancelled = one.ask(|node| node.cancel_move("vm".to_owned()));
    cancelled.expect("ends");
    assert_eq!(ended(&one, "vm").state, MoveState::Cancelled);
    until("what it was promised isn't free", || {
        create_with_floor(&other, "db", 50_000).is_ok()
    });
    let deleted = other.ask(|node| node.delete_volume("db".to_owned(), false));
    deleted.expect("is deleted");
    // One that does.
    on_its_way(&one, &other, 5 * MIB);
    let other = again_with(other, divided);
    let info = ended(&one, "vm");
    assert_eq!((info.state, &info.error), (MoveState::Done, &None));
    refused(&other, "it has come");
    check(&other, &owner, 4);
    let deleted = other.ask(|node| node.delete_volume("vm".to_owned(), true));
    deleted.expect("is deleted");
    create_with_floor(&other, "db", 50_000).expect("it is free");
}
