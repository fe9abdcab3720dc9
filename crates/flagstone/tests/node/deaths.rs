//! One of two nodes dies at each step of a volume's move from one to the other: an image of its device is taken at that point, where it comes to a stop,
//! and it is started again on that. And what is left to people: a node that never comes back.

#![allow(
    clippy::disallowed_methods,
    reason = "nodes are threads of their own, and what is waited for takes real time"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::{
    ForcedMove, ForcedOutcome, Fork, ForkState, MoveHooks, MovePoint, MoveState, MoveWaitsFor,
    MoveWord, NodeErrorKind, NodeOptions, TokenKind, TokenSpec, TokenText,
};
use flagstone_client::{Durability, Target};
use flagstone_platform::{IoBuf, Platform};
use flagstone_wire::{Operation, Status};

use crate::between::{
    BLOCK, begin, block, ended, kind, moved, node, promise, until_detached, with_client,
};
use crate::client;
use crate::moves::metric;
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::support::{Down, Scene, copy_image};

const IMAGE: &str = "device.dead";
const BLOCKS: u64 = 48;
const SNAPSHOT: u64 = 1 << 20;
pub(crate) const NOW: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a node comes to a stop, and whether it has.
pub(crate) struct Trap {
    point: MovePoint,
    /// Whether the node is to die there, and what its device has then is to be kept.
    dies: bool,
    sprung: AtomicBool,
}

impl Trap {
    pub(crate) fn at(point: MovePoint) -> Arc<Trap> {
        Arc::new(Trap {
            point,
            dies: true,
            sprung: AtomicBool::new(false),
        })
    }

    /// There a move comes to a stop, and the node lives on.
    fn stop_at(point: MovePoint) -> Arc<Trap> {
        Arc::new(Trap {
            point,
            dies: false,
            sprung: AtomicBool::new(false),
        })
    }

    /// Whether what is at this point goes on. On the core that is there, the only one that writes to the device, so nothing is written meanwhile.
    fn passes(&self, point: MovePoint, device: &Path, image: &Path) -> bool {
        if self.sprung.load(Ordering::SeqCst) {
            return !self.dies;
        }
        if point != self.point {
            return true;
        }
        if self.dies {
            copy_image(device, image);
        }
        self.sprung.store(true, Ordering::SeqCst);
        false
    }

    fn arm(self: &Arc<Trap>, options: &mut NodeOptions) {
        let trap = self.clone();
        let device: PathBuf = options.devices[0].path.clone();
        let image = device.with_file_name(IMAGE);
        options.move_hooks = MoveHooks::at_points(move |at| trap.passes(at, &device, &image));
        // Whoever waits at that point isn't answered.
        options.stop_grace_ms = 50;
    }

    pub(crate) fn until_sprung(&self) {
        until("nobody comes to that point", || {
            self.sprung.load(Ordering::SeqCst).then_some(())
        });
    }
}

pub(crate) fn until<T>(why: &str, look: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{why}");
        thread::sleep(Duration::from_millis(5));
    }
}

const DEVICE_BYTES: u64 = 64 << 20;

pub(crate) fn small(change: impl FnOnce(&mut NodeOptions)) -> Scene {
    let start = Scene::start(DEVICE_BYTES, |options| {
        listening(options);
        options.stop_grace_ms = 50;
        change(options);
    });
    start.expect("a node")
}

pub(crate) fn trapped(trap: &Arc<Trap>) -> Scene {
    small(|options| trap.arm(options))
}

/// Started again, where it was.
pub(crate) fn up(down: Down, at: SocketAddr) -> Scene {
    up_with(down, at, |_| {})
}

fn up_with(down: Down, at: SocketAddr, change: impl FnOnce(&mut NodeOptions)) -> Scene {
    down.up(|options| {
        options.native = Some(at);
        options.stop_grace_ms = 50;
        change(options);
    })
}

fn again(scene: Scene) -> Scene {
    let at = addresses(&scene)[0];
    up(scene.down(), at)
}

/// It has died at the point of its trap.
pub(crate) fn dead(scene: Scene) -> Down {
    scene.down().with_image(IMAGE)
}

/// A volume with a snapshot and a second token. Its first token.
pub(crate) fn filled(scene: &Scene) -> TokenText {
    let owner = volume(scene, "vm", None);
    token(scene, "vm", TokenKind::Reader);
    let mut client = scene.attach("vm");
    for at in 0..BLOCKS {
        assert_eq!(client.write(at * BLOCK, &block(SNAPSHOT + at)), 0);
    }
    let taken = scene.ask(|node| node.create_snapshots(vec!["vm@old".parse().expect("a name")]));
    taken.expect("is taken");
    for at in (0..BLOCKS).step_by(3) {
        assert_eq!(
            client.write_with(client::FUA, at * BLOCK, &block(NOW + at)),
            0
        );
    }
    drop(client);
    until_detached(scene);
    owner
}

/// It has what it had, and can be changed.
fn check(scene: &Scene, owner: &TokenText, what: &str) {
    let mut native = Native::connect(addresses(scene)[0]);
    for (name, is_now) in [("vm", true), ("vm@old", false)] {
        let vm = native.opened(name, owner, 0);
        for at in 0..BLOCKS {
            let wanted = match is_now && at.is_multiple_of(3) {
                true => NOW + at,
                false => SNAPSHOT + at,
            };
            let found = native.read(vm, at * BLOCK, BLOCK).payload;
            assert_eq!(found, block(wanted), "{what}: block {at} of {name}");
        }
    }
    drop(native);
    let tokens = scene.ask(|node| node.list_tokens("vm".to_owned()));
    assert_eq!(tokens.expect("lists").items.len(), 2, "{what}");
    let mut client = scene.attach("vm");
    assert_eq!(client.write(BLOCKS * BLOCK, &block(7)), 0, "{what}");
    drop(client);
    until_detached(scene);
}

fn volumes_on(scene: &Scene) -> u64 {
    let devices = scene.ask(|node| node.list_devices()).expect("lists");
    devices.iter().map(|device| device.volume_count).sum()
}

/// Waits until it is known which of two nodes has the volume, and nothing of it is left at the other one.
fn settled(one: &Scene, other: &Scene, what: &str) -> usize {
    until(&format!("{what}: it isn't known whose it is"), || {
        let shown = [one, other].map(|scene| scene.show("vm"));
        // One that is being moved may be held.
        let is_served = shown
            .each_ref()
            .map(|shown| shown.as_ref().is_ok_and(|info| info.moving.is_none()));
        assert_ne!(is_served, [true; 2], "{what}: both have it");
        let here = is_served.iter().position(|is_served| *is_served)?;
        let missing = shown[1 - here].as_ref().err()?;
        let counts = [one, other].map(volumes_on);
        let left = usize::from(here == 0);
        (missing.kind == NodeErrorKind::NotFound && counts[left] == 0).then_some(here)
    })
}

/// The move is asked for until it can be: an arrival may have to be confirmed before.
fn moves_on(from: &Scene, to: &Scene, what: &str) {
    let arrival = until(&format!("{what}: no place"), || {
        promise(from, to, "vm").ok()
    });
    until(&format!("{what}: it isn't confirmed"), || {
        begin(from, arrival.clone(), "vm").ok()
    });
    let info = ended(from, "vm");
    assert_eq!(info.state, MoveState::Done, "{what}: {:?}", info.error);
}

/// One node dies at a point, both are started again. Returns whether the volume went.
fn dies(is_origin: bool, point: MovePoint) -> bool {
    let what = format!("{point:?}");
    let trap = Trap::at(point);
    let (one, other) = match is_origin {
        true => (trapped(&trap), small(|_| {})),
        false => (small(|_| {}), trapped(&trap)),
    };
    let owner = filled(&one);
    let at = [&one, &other].map(|scene| addresses(scene)[0]);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let (one, other) = match is_origin {
        true => (up(dead(one), at[0]), other),
        false => (one, up(dead(other), at[1])),
    };
    let here = settled(&one, &other, &what);
    check([&one, &other][here], &owner, &what);
    // What its end was found to be stays so.
    let (one, other) = (again(one), again(other));
    assert_eq!(settled(&one, &other, &what), here, "{what}");
    check([&one, &other][here], &owner, &what);
    let (from, to) = match here {
        0 => (&one, &other),
        _ => (&other, &one),
    };
    moves_on(from, to, &what);
    assert_eq!(settled(&one, &other, &what), 1 - here, "{what}");
    check(to, &owner, &what);
    here == 1
}

#[test]
fn the_origin_dies_at_each_step() {
    use MovePoint::{ConfirmHeard, Copied, Deleted, Finishing, GoneKept, Heard, Held, RouteKept};
    for point in [Held, Finishing] {
        assert!(!dies(true, point), "{point:?}: it went");
    }
    // While it is copied the move goes on.
    for point in [MovePoint::GoingKept, Copied, RouteKept] {
        assert!(dies(true, point), "{point:?}: it stayed");
    }
    for point in [Heard, GoneKept, Deleted, ConfirmHeard] {
        assert!(dies(true, point), "{point:?}: it stayed");
    }
}

#[test]
fn the_target_dies_at_each_step() {
    use MovePoint::{ArrivalKept, Arrived, Begun, Confirmed, Confirming, Taken, TokensKept};
    for point in [TokensKept, ArrivalKept] {
        assert!(!dies(false, point), "{point:?}: it went");
    }
    // While it is copied the move goes on.
    for point in [MovePoint::ComingKept, Begun, Taken, MovePoint::PointKept] {
        assert!(dies(false, point), "{point:?}: it stayed");
    }
    for point in [Arrived, Confirming, Confirmed] {
        assert!(dies(false, point), "{point:?}: it stayed");
    }
}

fn say(scene: &Scene, word: MoveWord) -> Result<ForcedMove, flagstone::node::NodeError> {
    scene.ask(|node| node.force_move("vm".to_owned(), word))
}

/// Says that it stays as soon as that can be said.
fn stays(scene: &Scene) -> ForcedMove {
    until("it can't be said", || match say(scene, MoveWord::Stay) {
        Ok(forced) => Some(forced),
        Err(error) => {
            assert_eq!(error.kind, NodeErrorKind::Busy, "{error}");
            None
        }
    })
}

/// The node says that the volume is held, and that nobody can end that as other moves are ended.
fn is_held(scene: &Scene) {
    let info = || scene.ask(|node| node.show_move("vm".to_owned()));
    let held = until("it isn't said that it is held", || {
        let info = info().expect("is known");
        (info.state == MoveState::Held).then_some(info)
    });
    let waits = held.waits.expect("is said");
    assert_eq!(waits.what, MoveWaitsFor::Node);
    assert!(
        waits.since_ns > held.started_ns && waits.attempts > 0,
        "{waits:?}"
    );
    let why = held.error.expect("is said");
    assert!(why.contains("can't be asked"), "{why}");
    assert_eq!((held.phase, held.left_s), (None, None));
    let shown = scene.show("vm").expect("is here").moving;
    assert_eq!(shown.map(|info| info.state), Some(MoveState::Held));
    let gauges = ["moves_running", "moves_waiting", "moves_held"];
    assert_eq!(gauges.map(|name| metric(scene, name)), [0.0, 0.0, 1.0]);
    let refused = scene.ask(|node| node.cancel_move("vm".to_owned()));
    let refused = refused.expect_err("the other node may have it");
    assert_eq!(refused.kind, NodeErrorKind::Busy);
    assert!(refused.next_step.contains("--stay --force"), "{refused:?}");
    let now = info().expect("is known");
    assert_eq!(now.state, MoveState::Held, "as before: {now:?}");
}

fn fork(scene: &Scene) -> Option<Fork> {
    scene.show("vm").expect("is there").fork
}

fn until_fork(scene: &Scene, wanted: Option<ForkState>) {
    until(&format!("not {wanted:?}"), || {
        (fork(scene).map(|fork| fork.state) == wanted).then_some(())
    });
}

/// The target dies at a point and doesn't come back; the volume stays by somebody's word. Then it does come back.
fn stays_though_the_target(dies_at: MovePoint, has_come: bool) {
    let what = format!("{dies_at:?}");
    let trap = Trap::at(dies_at);
    let (one, other) = (small(|_| {}), trapped(&trap));
    let owner = filled(&one);
    let was = one.show("vm").expect("is there");
    let there = addresses(&other)[0];
    let mut attached = one.attach("vm");
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let (opened, is_opened) = std::sync::mpsc::channel();
    let target = Target::Name("vm".to_owned());
    let before = with_client(
        addresses(&one)[0],
        target,
        &owner,
        move |platform, volume| async move {
            opened.send(()).expect("is waited for");
            while may_go.try_recv().is_err() {
                platform.sleep_ns(1_000_000).await;
            }
            let bytes = IoBuf::copy_of(&block(9));
            let written = volume.write(0, bytes, Durability::Durable).await;
            written
                .expect_err("another one may have been written there")
                .status()
        },
    );
    is_opened.recv().expect("opens");
    let (why, words) = kind(say(&one, MoveWord::Stay));
    assert_eq!(why, NodeErrorKind::Refused, "{words}");
    assert!(words.contains("not being moved"), "{words}");
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let other = dead(other);
    is_held(&one);
    let forced = stays(&one);
    assert_eq!(forced.outcome, ForcedOutcome::Forced, "{what}");
    assert_eq!(metric(&one, "moves_held"), 0.0, "{what}");
    assert_eq!(forced.node, Some(there.to_string()));
    let now = one.show("vm").expect("is there");
    assert_eq!(Some(now.epoch), forced.epoch);
    assert!(now.epoch > was.epoch + 60_000, "{what}: {}", now.epoch);
    let unknown = Fork {
        state: ForkState::Unknown,
        node: Some(there.to_string()),
    };
    assert_eq!(now.fork, Some(unknown));
    let info = ended(&one, "vm");
    assert_eq!(info.state, MoveState::Failed);
    let error = info.error.unwrap_or_default();
    assert!(error.contains("by force"), "{error}");
    // Whoever had it open doesn't change it.
    go.send(()).expect("is waited for");
    assert_eq!(
        before.join().expect("ends"),
        Some(Status::StaleEpoch),
        "{what}"
    );
    assert_ne!(attached.write(0, &block(9)), 0, "{what}");
    assert_eq!(
        attached.call(client::READ, 0, BLOCK as u32),
        (0, block(NOW))
    );
    drop(attached);
    until_detached(&one);
    check(&one, &owner, &what);
    let one = again(one);
    check(&one, &owner, &what);
    assert_eq!(fork(&one).map(|fork| fork.state), Some(ForkState::Unknown));
    // It is back after all.
    let other = up(other, there);
    match has_come {
        false => until_fork(&one, None),
        true => {
            until_fork(&one, Some(ForkState::There));
            until_fork(&other, Some(ForkState::Here));
            let third = node();
            let arrival = promise(&other, &third, "vm").expect("promises");
            let (why, words) = kind(begin(&other, arrival, "vm"));
            assert_eq!(why, NodeErrorKind::Refused, "{words}");
            // Nobody has confirmed it, and nobody will.
            let deleted = other.ask(|node| node.delete_volume("vm".to_owned(), true));
            deleted.expect("is deleted");
            until_fork(&one, None);
        }
    }
    assert_eq!(kind(other.show("vm")).0, NodeErrorKind::NotFound);
    assert_eq!(volumes_on(&other), 0, "{what}");
    let (one, other) = (again(one), again(other));
    assert_eq!(fork(&one), None, "{what}: that is written down");
    moves_on(&one, &other, &what);
    check(&other, &owner, &what);
}

#[test]
fn a_volume_stays_by_force_whatever_its_target_has() {
    stays_though_the_target(MovePoint::ArrivalKept, false);
    stays_though_the_target(MovePoint::Arrived, true);
}

/// Both have died: what is held since a start stays by the same word. The origin dies once more when that is written down.
#[test]
fn a_volume_that_is_held_since_a_start_stays_by_force() {
    let trap = Trap::at(MovePoint::Finishing);
    let (one, other) = (trapped(&trap), small(|_| {}));
    let owner = filled(&one);
    let at = addresses(&one)[0];
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let (why, words) = kind(say(&one, MoveWord::Stay));
    assert_eq!(why, NodeErrorKind::Busy, "{words}");
    assert!(words.contains("being moved"), "{words}");
    let there = addresses(&other)[0];
    let other = other.down();
    let second = Trap::at(MovePoint::ForcedKept);
    let one = up_with(dead(one), at, |options| second.arm(options));
    let (why, words) = kind(one.show("vm"));
    assert_eq!(why, NodeErrorKind::Unavailable, "{words}");
    assert!(words.contains("--stay --force"), "{words}");
    until("it isn't said why that isn't known", || {
        let (_, words) = kind(one.show("vm"));
        let is_said = words.contains("asked in vain a moment ago: ");
        is_said.then_some(())
    });
    assert_eq!(metric(&one, "moves_held"), 1.0);
    let mut native = Native::connect(at);
    assert_eq!(
        native.open("vm", &owner, 0).status(),
        Status::Busy,
        "it may be there"
    );
    let (why, _) = kind(one.create("vm", 1 << 20));
    assert_eq!(why, NodeErrorKind::AlreadyExists, "its name is taken");
    thread::scope(|scope| {
        // Whoever says it is not answered: the node dies.
        let node = one.node.clone();
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.expect("a runtime");
            while !second.sprung.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
                let said = node.force_move("vm".to_owned(), MoveWord::Stay);
                let _ = runtime
                    .block_on(async { tokio::time::timeout(Duration::from_secs(8), said).await });
            }
        });
    });
    let one = up(dead(one), at);
    let what = "since a start";
    until("it doesn't go on", || one.show("vm").ok());
    check(&one, &owner, what);
    let epoch = one.show("vm").expect("is there").epoch;
    let one = again(one);
    assert_eq!(one.show("vm").expect("is there").epoch, epoch, "once");
    assert_eq!(fork(&one).map(|fork| fork.state), Some(ForkState::Unknown));
    let other = up(other, there);
    until_fork(&one, None);
    moves_on(&one, &other, what);
    check(&other, &owner, what);
}

/// The target is back when somebody says so: its answer counts.
#[test]
fn a_target_that_answers_is_believed() {
    for (dies_at, outcome) in [
        (MovePoint::ArrivalKept, ForcedOutcome::Stayed),
        (MovePoint::Arrived, ForcedOutcome::Went),
    ] {
        let trap = Trap::at(dies_at);
        let (one, other) = (small(|_| {}), trapped(&trap));
        let owner = filled(&one);
        let was = one.show("vm").expect("is there").epoch;
        let there = addresses(&other)[0];
        let arrival = promise(&one, &other, "vm").expect("promises");
        begin(&one, arrival, "vm").expect("begins");
        trap.until_sprung();
        let other = dead(other);
        let node = one.node.clone();
        let saying = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.expect("a runtime");
            loop {
                match runtime.block_on(node.force_move("vm".to_owned(), MoveWord::Stay)) {
                    Ok(forced) => return forced,
                    Err(error) => assert_eq!(error.kind, NodeErrorKind::Busy, "{error}"),
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        // It can be said as soon as it was asked in vain; then it is asked for five seconds once more.
        until("it can't be said", || {
            let info = one
                .ask(|node| node.show_move("vm".to_owned()))
                .expect("is known");
            info.error.filter(|error| error.contains("can't be asked"))
        });
        thread::sleep(Duration::from_millis(300));
        let (_, words) = kind(say(&one, MoveWord::Stay));
        assert!(words.contains("just now"), "{words}");
        let other = up(other, there);
        let forced = saying.join().expect("is told");
        assert_eq!((forced.outcome, forced.epoch), (outcome, None));
        let what = format!("{dies_at:?}");
        let here = settled(&one, &other, &what);
        assert_eq!(here == 1, outcome == ForcedOutcome::Went);
        assert_eq!(metric(&one, "moves_held"), 0.0, "{what}: it is served");
        let scene = [&one, &other][here];
        check(scene, &owner, &what);
        assert!(scene.show("vm").expect("is there").epoch <= was + 8);
        assert_eq!(fork(scene), None);
        if here == 1 {
            let (why, words) = kind(say(&one, MoveWord::Stay));
            assert_eq!(why, NodeErrorKind::NotFound, "{words}");
            assert!(words.contains("was moved to another node"), "{words}");
        }
    }
}

/// The origin dies before it knows, and isn't there. What has come is settled by force, deleted or moved on; when the origin is back it learns that.
fn is_settled_though_the_origin(moves_on_first: bool) {
    let trap = Trap::at(MovePoint::Heard);
    let (one, other) = (trapped(&trap), small(|_| {}));
    let owner = filled(&one);
    let at = addresses(&one)[0];
    let (why, words) = kind(say(&one, MoveWord::Settled));
    assert_eq!(why, NodeErrorKind::Refused, "{words}");
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let one = dead(one);
    let delete = |scene: &Scene| scene.ask(|node| node.delete_volume("vm".to_owned(), true));
    let (why, words) = kind(delete(&other));
    assert_eq!(why, NodeErrorKind::Busy, "{words}");
    assert!(words.contains("--settled --force"), "{words}");
    let settled = say(&other, MoveWord::Settled).expect("is settled");
    assert_eq!(settled.outcome, ForcedOutcome::Settled);
    let (why, words) = kind(say(&other, MoveWord::Settled));
    assert_eq!(why, NodeErrorKind::Refused, "{words}");
    let other = again(other);
    check(&other, &owner, "settled");
    let third = small(|_| {});
    if moves_on_first {
        // There and back: by a later arrival than the one that the origin asks for.
        moved(&other, &third, "vm");
        moves_on(&third, &other, "back");
    } else {
        delete(&other).expect("is deleted");
    }
    let other = again(other);
    let one = up(one, at);
    until("the origin doesn't learn it", || {
        let error = one.show("vm").expect_err("is not served here");
        let is_known = error.to_string().contains("was moved to another node");
        (is_known && volumes_on(&one) == 0).then_some(())
    });
    assert_eq!(volumes_on(&other), u64::from(moves_on_first));
    if moves_on_first {
        check(&other, &owner, "back");
        moves_on(&other, &one, "to where it was first");
        check(&one, &owner, "to where it was first");
    }
}

#[test]
fn a_volume_whose_origin_never_confirms_is_settled_by_force() {
    is_settled_though_the_origin(false);
    is_settled_though_the_origin(true);
}

/// The target dies in the middle of that: it may be said again.
#[test]
fn settling_that_was_cut_off_can_be_repeated() {
    let trap = Trap::at(MovePoint::Heard);
    let second = Trap::at(MovePoint::SettledKept);
    let (one, other) = (trapped(&trap), trapped(&second));
    let owner = filled(&one);
    let at = [&one, &other].map(|scene| addresses(scene)[0]);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let one = dead(one);
    thread::scope(|scope| {
        let node = other.node.clone();
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let said = node.force_move("vm".to_owned(), MoveWord::Settled);
            let said = async { tokio::time::timeout(Duration::from_secs(1), said).await };
            let said = runtime.expect("a runtime").block_on(said);
            assert!(said.is_err(), "it comes to a stop: {said:?}");
        });
    });
    second.until_sprung();
    let other = up(dead(other), at[1]);
    check(&other, &owner, "cut off");
    let delete = || other.ask(|node| node.delete_volume("vm".to_owned(), true));
    assert_eq!(kind(delete()).0, NodeErrorKind::Busy);
    say(&other, MoveWord::Settled).expect("is settled");
    delete().expect("is deleted");
    let one = up(one, at[0]);
    until("the origin doesn't learn it", || {
        let error = one.show("vm").expect_err("is not served here");
        error.to_string().contains("was moved").then_some(())
    });
}

/// From the moment on in which the target is asked to take the volume nothing of it is read at the origin, until it is known whose it is.
#[test]
fn reads_wait_while_it_is_not_known_whose_it_is() {
    let trap = Trap::at(MovePoint::ArrivalKept);
    let (one, other) = (small(|_| {}), trapped(&trap));
    let owner = filled(&one);
    let there = addresses(&other)[0];
    let mut native = Native::connect(addresses(&one)[0]);
    let vm = native.opened("vm", &owner, 0);
    let mut attached = one.attach("vm");
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    // What isn't waited for is told to come again.
    for operation in [Operation::Allocation, Operation::ChangedSince] {
        let head = flagstone_wire::RequestHeader {
            volume: vm,
            len_bytes: BLOCK,
            ..flagstone_wire::RequestHeader::of(operation)
        };
        let answer = native.ask(head, &8_u32.to_le_bytes(), &[]);
        assert_eq!(
            answer.status(),
            Status::Busy,
            "{operation:?}: {}",
            answer.sentence()
        );
    }
    let (told, answers) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let by_nbd = told.clone();
        scope.spawn(move || {
            let read = attached.call(client::READ, 0, BLOCK as u32);
            by_nbd.send(read).expect("is waited for");
        });
        scope.spawn(move || {
            let read = native.read(vm, 0, BLOCK);
            let error = u32::from(read.status() != Status::Ok);
            told.send((error, read.payload)).expect("is waited for");
        });
        let early = answers.recv_timeout(Duration::from_millis(500));
        assert!(early.is_err(), "read: {early:?}");
        let _other = up(dead(other), there);
        for _ in 0..2 {
            let read = answers.recv_timeout(PATIENCE).expect("goes on");
            assert_eq!(read, (0, block(NOW)));
        }
    });
    assert_eq!(ended(&one, "vm").state, MoveState::Failed);
}

/// Whoever has no more patience while changes are held is told so, also if he wants another epoch. Reads go on: nobody else can have changed it yet.
#[test]
fn what_is_held_for_too_long_is_late() {
    let trap = Trap::stop_at(MovePoint::Held);
    let (one, other) = (trapped(&trap), small(|_| {}));
    let owner = filled(&one);
    let epoch = one.show("vm").expect("is there").epoch;
    let mut native = Native::connect(addresses(&one)[0]);
    let vm = native.opened("vm", &owner, 0);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let late = |operation| flagstone_wire::RequestHeader {
        volume: vm,
        patience_ms: 200,
        ..flagstone_wire::RequestHeader::of(operation)
    };
    let mut change = late(Operation::Deallocate);
    change.len_bytes = BLOCK;
    let mut raise = late(Operation::SetEpoch);
    raise.lsn = flagstone_types::Lsn(u64::from(epoch) + 3);
    for head in [change, raise] {
        let answer = native.ask(head, &[], &[]);
        assert_eq!(answer.status(), Status::Late, "{}", answer.sentence());
    }
    assert_eq!(native.read(vm, 0, BLOCK).payload, block(NOW));
    assert_eq!(one.show("vm").expect("is there").epoch, epoch);
}

/// What is changed of its tokens behind the moment in which they are taken would be lost.
#[test]
fn tokens_do_not_change_while_they_are_handed_over() {
    let trap = Trap::stop_at(MovePoint::RouteKept);
    let (one, other) = (trapped(&trap), small(|_| {}));
    let owner = filled(&one);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let spec = TokenSpec {
        kind: TokenKind::Writer,
        ends_in_s: None,
        label: String::new(),
    };
    let (why, words) = kind(one.ask(|node| node.create_token("vm".to_owned(), spec.clone())));
    assert_eq!(why, NodeErrorKind::Busy, "{words}");
    let (why, words) = kind(one.ask(|node| node.revoke_token("vm".to_owned(), 2)));
    assert_eq!(why, NodeErrorKind::Busy, "{words}");
    // Behind its next start it isn't held, and the move waits for the other node.
    let _other = other.down();
    let one = again(one);
    check(&one, &owner, "it stayed");
    one.ask(|node| node.create_token("vm".to_owned(), spec))
        .expect("is made");
    one.ask(|node| node.cancel_move("vm".to_owned()))
        .expect("ends");
    assert_eq!(ended(&one, "vm").state, MoveState::Cancelled);
}

#[test]
fn what_nobody_asks_for_ends() {
    let silence_ns = 1_000_000_000;
    let other = small(|options| {
        options.move_hooks.silence_ns = Some(silence_ns);
        options.move_hooks.kept_ns = Some(silence_ns);
    });
    let one = small(|_| {});
    filled(&one);
    let arrival = promise(&one, &other, "vm").expect("promises");
    assert_eq!(
        kind(other.create("vm", 1 << 20)).0,
        NodeErrorKind::AlreadyExists
    );
    until("its name isn't free", || other.create("vm", 1 << 20).ok());
    begin(&one, arrival, "vm").expect("begins");
    let info = ended(&one, "vm");
    let error = info.error.unwrap_or_default();
    assert!(error.contains("DENIED"), "{error}");
    other
        .ask(|node| node.delete_volume("vm".to_owned(), true))
        .expect("is deleted");
    // One that comes and isn't heard of any more ends as well, with what there is of it.
    let trap = Trap::at(MovePoint::Held);
    let one = trapped(&trap);
    filled(&one);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let _one = one.down();
    until("what has come of it stays", || {
        (volumes_on(&other) == 0).then_some(())
    });
    until("its name isn't free", || other.create("vm", 1 << 20).ok());
}

#[test]
fn of_many_that_went_the_first_are_forgotten() {
    let one = small(|options| options.move_hooks.routes_max = Some(3));
    let other = small(|_| {});
    let names = ["a", "b", "c", "d", "e"];
    let owners = names.map(|name| volume(&one, name, None));
    for name in names {
        moved(&one, &other, name);
    }
    let at = addresses(&other)[0];
    let told = |one: &Scene| {
        let mut native = Native::connect(addresses(one)[0]);
        let answers = names.iter().zip(&owners).map(|(name, owner)| {
            let answer = native.open(name, owner, 0);
            match answer.status() {
                Status::Moved => {
                    assert_eq!(answer.moved_to(), at);
                    true
                }
                status => {
                    assert_eq!(status, Status::Denied, "{name}: its tokens are gone, too");
                    false
                }
            }
        });
        answers.collect::<Vec<_>>()
    };
    let wanted = [false, false, true, true, true];
    assert_eq!(told(&one), wanted);
    // That is written down: also for one that remembers more.
    let one = again(one);
    assert_eq!(told(&one), wanted);
}
