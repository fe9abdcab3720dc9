//! Volumes go to other nodes while clients use them, with the library that clients use.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    Arrival, ArrivalKey, ArrivalSpec, MoveInfo, MoveSpec, MoveState, MoveWait, MoveWaitsFor,
    NodeError, NodeErrorKind, PageQuery, Restrictions, Slo, SloLimit, SnapshotSchedule, TokenKind,
    TokenText,
};
use flagstone_client::{Client, Connect, Durability, OpenHow, Options, Target, Token, Volume};
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::{RuntimeConfig, UringPlatform, UringStream, block_on};
use flagstone_wire::Status;

use crate::client;
use crate::native::client::Native;
use crate::native::{addresses, listening, token, volume};
use crate::native_access::why_not_attached;
use crate::support::Scene;
use crate::tls::tls;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;

/// A node that listens.
pub(crate) fn node() -> Scene {
    Scene::with(listening)
}

/// The same again, at the address that it had.
pub(crate) fn restart(scene: Scene) -> Scene {
    let at = addresses(&scene)[0];
    scene.restart(|options| options.native = Some(at))
}

pub(crate) fn promise(from: &Scene, to: &Scene, name: &str) -> Result<Arrival, NodeError> {
    let info = from.show(name).expect("is there");
    let spec = ArrivalSpec {
        volume: info.name,
        id: info.id,
        device: None,
        core: None,
        slo: info.slo,
        oversubscribe: false,
    };
    to.ask(|node| node.promise_arrival(spec))
}

pub(crate) fn begin(from: &Scene, arrival: Arrival, name: &str) -> Result<MoveInfo, NodeError> {
    let spec = MoveSpec {
        arrival: Some(arrival),
        ..MoveSpec::default()
    };
    from.ask(|node| node.move_volume(name.to_owned(), spec))
}

pub(crate) fn ended(from: &Scene, name: &str) -> MoveInfo {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let info = from.ask(|node| node.show_move(name.to_owned()));
        let info = info.expect("is known");
        // One that waits for the other node goes on by itself.
        let waits = |wait: &MoveWait| wait.what == MoveWaitsFor::Node;
        if info.state != MoveState::Running && !info.waits.as_ref().is_some_and(waits) {
            return info;
        }
        assert!(Instant::now() < until, "it doesn't end: {info:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Moves a volume and waits for the end of that.
pub(crate) fn moved(from: &Scene, to: &Scene, name: &str) -> MoveInfo {
    let arrival = promise(from, to, name).expect("promises");
    begin(from, arrival, name).expect("begins");
    let info = ended(from, name);
    assert_eq!((info.state, &info.error), (MoveState::Done, &None));
    info
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, NodeError>) -> (NodeErrorKind, String) {
    let error = result.expect_err("is refused");
    (error.kind, error.to_string())
}

pub(crate) struct Tcp(UringPlatform);

impl Connect for Tcp {
    type Stream = UringStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<UringStream>> + 'static {
        UringStream::connect_tcp(&self.0, address)
    }
}

pub(crate) type TcpVolume = Volume<UringPlatform, Tcp>;

/// Runs a client of the library, which knows of one node.
pub(crate) fn with_client<T: Send + 'static, F: Future<Output = T>>(
    at: SocketAddr,
    target: Target,
    token: &TokenText,
    work: impl FnOnce(UringPlatform, TcpVolume) -> F + Send + 'static,
) -> JoinHandle<T> {
    with_client_as(at, target, token, OpenHow::default(), work)
}

/// The same, which opens the volume like this.
pub(crate) fn with_client_as<T: Send + 'static, F: Future<Output = T>>(
    at: SocketAddr,
    target: Target,
    token: &TokenText,
    how: OpenHow,
    work: impl FnOnce(UringPlatform, TcpVolume) -> F + Send + 'static,
) -> JoinHandle<T> {
    let token: Token = token.0.parse().expect("a token");
    thread::spawn(move || {
        let config = RuntimeConfig {
            pin: false,
            ..RuntimeConfig::default()
        };
        block_on(&config, move |platform| async move {
            let options = Options::new(vec![at], "test");
            let client = Client::new(platform.clone(), Tcp(platform.clone()), options);
            let volume = client.open(target, token, how).await;
            work(platform, volume.expect("opens")).await
        })
        .expect("runs")
    })
}

pub(crate) fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Writes blocks again and again, flushes, and reads each back: every answer has to be right.
fn use_it(
    at: SocketAddr,
    token: &TokenText,
    first: u64,
    stop: &Arc<AtomicBool>,
    done: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let (stop, done) = (stop.clone(), done.clone());
    let target = Target::Name("vm".to_owned());
    with_client(at, target, token, move |_, volume| async move {
        let mut number = 1 << 32 | first;
        while !stop.load(Ordering::Relaxed) {
            for at in first..first + 16 {
                number += 1;
                let durability = match number.is_multiple_of(3) {
                    true => Durability::Durable,
                    false => Durability::Visible,
                };
                let written = volume
                    .write(at * BLOCK, IoBuf::copy_of(&block(number)), durability)
                    .await;
                written.expect("writes");
                let found = volume.read(at * BLOCK, BLOCK).await.expect("reads");
                assert!(
                    found[..] == block(number)[..],
                    "block {at} is what was written last"
                );
                done.fetch_add(1, Ordering::Relaxed);
            }
            volume.flush().await.expect("flushes");
        }
    })
}

#[test]
fn clients_follow_a_volume_to_another_node_and_back() {
    let (one, other) = (node(), node());
    let owner = volume(&one, "vm", None);
    let (reader, _) = token(&one, "vm", TokenKind::Reader);
    let (stop, done) = (Arc::default(), Arc::default());
    let at = addresses(&one)[0];
    let users: Vec<_> = [0, 100]
        .map(|first| use_it(at, &owner, first, &stop, &done))
        .into();
    let took_part = |least: u64| {
        let wanted = done.load(Ordering::Relaxed) + least;
        let until = Instant::now() + Duration::from_secs(60);
        while done.load(Ordering::Relaxed) < wanted {
            assert!(
                users.iter().all(|user| !user.is_finished()),
                "a client has failed"
            );
            assert!(Instant::now() < until, "clients have come to a stop");
            thread::sleep(Duration::from_millis(1));
        }
    };
    took_part(50);
    let was = one.show("vm").expect("is there");
    for round in 0..5 {
        let (from, to) = if round % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let info = moved(from, to, "vm");
        assert!(info.copied_bytes >= 32 * BLOCK, "{info:?}");
        assert!(info.held_us > 0, "{info:?}");
        let address = addresses(to)[0].to_string();
        assert_eq!(info.to.node.as_ref(), Some(&address));
        took_part(50);
        let now = to.show("vm").expect("is there");
        assert_eq!((now.id, now.size_bytes), (was.id.clone(), was.size_bytes));
        let (gone, words) = kind(from.show("vm"));
        assert_eq!(gone, NodeErrorKind::NotFound);
        assert!(words.contains(&address), "{words}");
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.join().expect("no client has seen an error");
    }
    // It has its tokens.
    let tokens = other
        .ask(|node| node.list_tokens("vm".to_owned()))
        .expect("lists");
    let numbers: Vec<u32> = tokens.items.iter().map(|token| token.number).collect();
    assert_eq!(numbers, [1, reader]);
}

#[test]
fn what_a_volume_has_goes_with_it_and_stays_behind_restarts() {
    let (one, other) = (node(), node());
    let owner = volume(&one, "vm", None);
    let slo = Slo {
        limit: SloLimit {
            reads: Some(9000),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    one.ask(|node| node.set_slo("vm".to_owned(), slo, false))
        .expect("is set");
    let schedule = SnapshotSchedule {
        every_s: 86_400,
        keep: 3,
        daily: 0,
        weekly: 0,
        monthly: 0,
    };
    one.ask(|node| node.set_snapshot_schedule("vm".to_owned(), Some(schedule)))
        .expect("is set");
    let mut native = Native::connect(addresses(&one)[0]);
    let vm = native.opened("vm", &owner, 0);
    native.write(vm, 0, &block(1), 0).lsn();
    let snapshot: SnapshotRef = "vm@old".parse().expect("a name");
    one.ask(|node| node.create_snapshots(vec![snapshot]))
        .expect("is taken");
    native.write(vm, 0, &block(2), 0).lsn();
    native.write(vm, 5 * MIB, &block(3), 0).lsn();
    moved(&one, &other, "vm");
    // Whoever had it open is told where it is, and so is whoever comes.
    let at = addresses(&other)[0];
    let refused = native.read(vm, 0, BLOCK);
    assert_eq!((refused.status(), refused.moved_to()), (Status::Moved, at));
    let (one, other) = (restart(one), restart(other));
    for (name, first) in [("vm", 2), ("vm@old", 1)] {
        let mut old = Native::connect(addresses(&one)[0]);
        let sent_on = old.open(name, &owner, 0);
        assert_eq!(
            (sent_on.status(), sent_on.moved_to()),
            (Status::Moved, at),
            "{name}"
        );
        let mut native = Native::connect(at);
        let vm = native.opened(name, &owner, 0);
        assert_eq!(native.read(vm, 0, BLOCK).payload, block(first), "{name}");
    }
    let wrong = TokenText(owner.0.replace(&owner.0[owner.0.len() - 4..], "0000"));
    let mut old = Native::connect(addresses(&one)[0]);
    assert_eq!(
        old.open("vm", &wrong, 0).status(),
        Status::Denied,
        "without a token nobody is told"
    );
    let info = other.show("vm").expect("is there");
    assert_eq!(info.slo, slo);
    assert!(
        info.snapshot_count >= 1,
        "and those that its schedule has taken"
    );
    assert_eq!(
        info.scheduled.map(|scheduled| scheduled.schedule),
        Some(schedule)
    );
    // Its name is free where it was, and a new volume of that name is found before the one that went.
    let new = volume(&one, "vm", None);
    let mut native = Native::connect(addresses(&one)[0]);
    native.opened("vm", &new, 0);
    // It is confirmed, so it can go.
    other
        .ask(|node| node.delete_volume("vm".to_owned(), true))
        .expect("is deleted");
}

#[test]
fn a_volume_that_comes_back_is_here_and_not_there() {
    let (one, other) = (node(), node());
    let owner = volume(&one, "vm", None);
    moved(&one, &other, "vm");
    let (made, _) = token(&other, "vm", TokenKind::Writer);
    moved(&other, &one, "vm");
    for round in 0..2 {
        let mut native = Native::connect(addresses(&one)[0]);
        native.opened("vm", &owner, 0);
        let tokens = one
            .ask(|node| node.list_tokens("vm".to_owned()))
            .expect("lists");
        assert_eq!(tokens.items.len(), 2, "{round}: that of {made} too");
    }
    let one = restart(one);
    let mut native = Native::connect(addresses(&one)[0]);
    native.opened("vm", &owner, 0);
    let tokens = one
        .ask(|node| node.list_tokens("vm".to_owned()))
        .expect("lists");
    assert_eq!(tokens.items.len(), 2, "those it came with");
    let listed = one
        .ask(|node| node.list_volumes(PageQuery::default()))
        .expect("lists");
    assert_eq!(listed.items.len(), 1);
}

#[test]
fn what_cannot_come_is_refused_and_stays() {
    let (one, other) = (node(), node());
    volume(&one, "vm", None);
    volume(&other, "vm", None);
    let (why, words) = kind(promise(&one, &other, "vm"));
    assert_eq!(why, NodeErrorKind::AlreadyExists, "{words}");
    let (why, words) = kind(promise(&one, &one, "vm"));
    assert_eq!(why, NodeErrorKind::AlreadyExists, "{words}");
    other
        .ask(|node| node.delete_volume("vm".to_owned(), false))
        .expect("is deleted");
    let arrival = promise(&one, &other, "vm").expect("promises");
    let (why, words) = kind(promise(&one, &other, "vm"));
    assert_eq!(why, NodeErrorKind::Busy, "{words}");
    assert!(!format!("{arrival:?}").contains(&arrival.key.0));
    // Its name is taken meanwhile.
    let (why, _) = kind(other.create("vm", MIB));
    assert_eq!(why, NodeErrorKind::AlreadyExists);
    // For one that NBD has attached this node has to be a client there. It was attached before it was restricted.
    let attached = one.attach("vm");
    let restrictions = Restrictions {
        allow_from: vec!["10.0.0.0/8".parse().expect("a network")],
        ..Restrictions::default()
    };
    one.ask(|node| node.restrict_volume("vm".to_owned(), restrictions))
        .expect("is restricted");
    let departure = || one.ask(|node| node.check_departure("vm".to_owned()));
    for refused in [kind(begin(&one, arrival.clone(), "vm")), kind(departure())] {
        let (why, words) = refused;
        assert_eq!(why, NodeErrorKind::Busy, "{words}");
        assert!(words.contains("NBD"), "{words}");
    }
    drop(attached);
    until_detached(&one);
    departure().expect("nobody has it attached");
    one.ask(|node| node.restrict_volume("vm".to_owned(), Restrictions::default()))
        .expect("is free again");
    // Somebody without the key.
    let mut wrong = arrival.clone();
    wrong.key = ArrivalKey("0".repeat(64));
    begin(&one, wrong, "vm").expect("begins");
    let info = ended(&one, "vm");
    assert_eq!(info.state, MoveState::Failed);
    let error = info.error.unwrap_or_default();
    for words in ["DENIED", "ask for the move again"] {
        assert!(error.contains(words), "{error}");
    }
    // Nobody listens there.
    let mut nowhere = arrival.clone();
    nowhere.address = "127.0.0.1:1".to_owned();
    begin(&one, nowhere, "vm").expect("begins");
    one.ask(|node| node.cancel_move("vm".to_owned()))
        .expect("is cancelled");
    let info = ended(&one, "vm");
    assert!(
        matches!(info.state, MoveState::Cancelled | MoveState::Failed),
        "{info:?}"
    );
    // It is where it was, and can still go.
    let mut attached = one.attach("vm");
    assert_eq!(attached.write(0, &block(1)), 0);
    drop(attached);
    until_detached(&one);
    begin(&one, arrival, "vm").expect("begins");
    assert_eq!(ended(&one, "vm").state, MoveState::Done);
    let mut attached = other.attach("vm");
    let found = attached.call(client::READ, 0, BLOCK as u32);
    assert_eq!(found, (0, block(1)));
}

/// The node has seen that its NBD client has gone.
pub(crate) fn until_detached(scene: &Scene) {
    let until = Instant::now() + Duration::from_secs(20);
    while scene.show("vm").expect("is there").connection_count > 0 {
        assert!(Instant::now() < until, "the client is still there");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_promise_is_for_one_volume() {
    let (one, other) = (node(), node());
    volume(&one, "vm", None);
    volume(&one, "evil", None);
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "evil").expect("begins");
    let info = ended(&one, "evil");
    assert_eq!(info.state, MoveState::Failed);
    let error = info.error.unwrap_or_default();
    assert!(error.contains("another volume"), "{error}");
    assert_eq!(kind(other.show("evil")).0, NodeErrorKind::NotFound);
    one.show("evil").expect("is where it was");
}

#[test]
fn when_the_other_node_is_started_again_the_move_goes_on() {
    let (one, other) = (node(), node());
    volume(&one, "vm", None);
    let mut client = one.attach("vm");
    for at in 0..64 {
        assert_eq!(client.write(at * BLOCK, &block(at)), 0);
    }
    drop(client);
    until_detached(&one);
    let arrival = promise(&one, &other, "vm").expect("promises");
    let spec = MoveSpec {
        arrival: Some(arrival),
        limit_bytes: Some(64 << 10),
        ..MoveSpec::default()
    };
    one.ask(|node| node.move_volume("vm".to_owned(), spec))
        .expect("begins");
    let until = Instant::now() + Duration::from_secs(20);
    while one
        .ask(|node| node.show_move("vm".to_owned()))
        .expect("runs")
        .copied_bytes
        == 0
    {
        assert!(Instant::now() < until, "it doesn't begin");
        thread::sleep(Duration::from_millis(2));
    }
    let other = restart(other);
    // It isn't there yet, and its name is kept for it.
    assert_eq!(kind(other.show("vm")).0, NodeErrorKind::NotFound);
    let listed = other
        .ask(|node| node.list_volumes(PageQuery::default()))
        .expect("lists");
    assert!(listed.items.is_empty());
    assert_eq!(
        kind(other.create("vm", MIB)).0,
        NodeErrorKind::AlreadyExists
    );
    let info = ended(&one, "vm");
    assert_eq!((info.state, &info.error), (MoveState::Done, &None));
    let mut client = other.attach("vm");
    for at in 0..64 {
        assert_eq!(
            client.call(client::READ, at * BLOCK, BLOCK as u32),
            (0, block(at))
        );
    }
}

/// A client that would attach a volume that went is told so, if it could attach it.
#[test]
fn who_attaches_a_volume_that_went_is_told() {
    let (one, other) = (node(), node());
    for name in ["vm", "secret"] {
        volume(&one, name, None);
    }
    let restrictions = Restrictions {
        allow_from: vec!["10.0.0.0/8".parse().expect("a network")],
        ..Restrictions::default()
    };
    one.ask(|node| node.restrict_volume("secret".to_owned(), restrictions))
        .expect("is restricted");
    for name in ["vm", "secret"] {
        moved(&one, &other, name);
    }
    for (export, says) in [
        ("vm", "moved to another node: attach it there"),
        ("vm@old", "moved to another node"),
        ("secret", "may not be opened from this address"),
        ("none", "no such volume"),
    ] {
        let told = why_not_attached(one.tcp, export);
        assert!(told.contains(says), "{export}: {told}");
    }
    // Another one of that name is that one.
    volume(&one, "vm", None);
    assert_eq!(one.attach("vm").call(client::READ, 0, 4096).0, 0);
    // Also behind a start, and whoever has it now serves it.
    let one = restart(one);
    let told = why_not_attached(one.tcp, "secret");
    assert!(told.contains("may not be opened"), "{told}");
    assert_eq!(other.attach("vm").call(client::READ, 0, 4096).0, 0);
}

/// Writes with NBD again and again, and reads back.
fn use_nbd(mut client: client::Client, first: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut number = 1 << 40 | first;
    while !stop.load(Ordering::Relaxed) {
        for at in first..first + 16 {
            number += 1;
            let flags = if number.is_multiple_of(3) {
                client::FUA
            } else {
                0
            };
            assert_eq!(
                client.write_with(flags, at * BLOCK, &block(number)),
                0,
                "write"
            );
            let (error, found) = client.call(client::READ, at * BLOCK, BLOCK as u32);
            assert_eq!(error, 0, "read");
            assert_eq!(found, block(number), "block {at} is what was written last");
            done.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(client.call(client::FLUSH, 0, 0).0, 0, "flush");
    }
}

#[test]
fn clients_of_nbd_go_on_though_their_volume_is_elsewhere() {
    let (one, other) = (node(), node());
    volume(&one, "vm", None);
    let mut plain = one.attach("vm");
    assert_eq!(plain.write(6 * MIB, &block(6)), 0);
    one.ask(|node| node.create_snapshots(vec!["vm@old".parse().expect("a name")]))
        .expect("is taken");
    let mut old = one.attach("vm@old");
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        let users: Vec<_> = [0, 100]
            .map(|first| {
                let client = one.attach("vm");
                scope.spawn(move || use_nbd(client, first, stop, done))
            })
            .into();
        let took_part = |least: u64| {
            let wanted = done.load(Ordering::Relaxed) + least;
            let until = Instant::now() + Duration::from_secs(60);
            while done.load(Ordering::Relaxed) < wanted
                && users.iter().all(|user| !user.is_finished())
            {
                assert!(Instant::now() < until, "clients have come to a stop");
                thread::sleep(Duration::from_millis(1));
            }
        };
        took_part(50);
        // There, back, and there again.
        for (from, to) in [(&one, &other), (&other, &one), (&one, &other)] {
            moved(from, to, "vm");
            took_part(50);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // What else NBD has.
    let length = (2 * MIB) as u32;
    assert_eq!(
        plain.write(4 * MIB, &vec![7; length as usize]),
        0,
        "in parts"
    );
    assert_eq!(
        plain.call(client::READ, 4 * MIB, length).1,
        vec![7; length as usize]
    );
    assert_eq!(plain.call(client::TRIM, 4 * MIB, BLOCK as u32).0, 0);
    assert_eq!(plain.call(client::ZEROES, 5 * MIB, 100).0, 0);
    let mut wanted = vec![0; 100];
    wanted.resize(BLOCK as usize, 7);
    assert_eq!(plain.call(client::READ, 5 * MIB, BLOCK as u32), (0, wanted));
    assert_eq!(
        plain.call(client::READ, 8 * MIB, BLOCK as u32).0,
        client::EINVAL
    );
    assert_eq!(
        old.call(client::READ, 6 * MIB, BLOCK as u32),
        (0, block(6)),
        "as it was"
    );
    let mut there = other.attach("vm");
    assert_eq!(
        there.call(client::READ, 4 * MIB, BLOCK as u32),
        (0, vec![0; BLOCK as usize])
    );
    // Somebody takes it for his own there: whoever came by the old node is locked out.
    let (_, mine) = token(&other, "vm", TokenKind::Writer);
    let target = Target::Name("vm".to_owned());
    let alone = OpenHow {
        alone: true,
        ..OpenHow::default()
    };
    with_client_as(addresses(&other)[0], target, &mine, alone, |_, _| async {})
        .join()
        .expect("opens");
    assert_ne!(plain.write(0, &block(9)), 0);
    // It is deleted there.
    other
        .ask(|node| node.delete_volume("vm".to_owned(), true))
        .expect("is deleted");
    assert_ne!(plain.call(client::READ, 0, BLOCK as u32).0, 0);
}

#[test]
fn who_was_locked_out_stays_so_behind_a_move() {
    let (one, other) = (node(), node());
    let owner = volume(&one, "vm", None);
    let at = addresses(&one)[0];
    let target = || Target::Name("vm".to_owned());
    let alone = OpenHow {
        alone: true,
        ..OpenHow::default()
    };
    let (opened, has_opened) = std::sync::mpsc::channel();
    let (go, went) = std::sync::mpsc::channel::<()>();
    let old = with_client(at, target(), &owner, move |platform, volume| async move {
        opened.send(()).expect("is waited for");
        while went.try_recv().is_err() {
            platform.sleep_ns(1_000_000).await;
        }
        let written = volume
            .write(0, IoBuf::copy_of(&block(1)), Durability::Durable)
            .await;
        written.expect_err("is locked out").status()
    });
    has_opened.recv().expect("opens");
    // Somebody takes it for his own, and goes on behind the move.
    let (moved_on, has_moved) = std::sync::mpsc::channel::<()>();
    let (opened, has_opened) = std::sync::mpsc::channel();
    let new = with_client_as(
        at,
        target(),
        &owner,
        alone,
        move |platform, volume| async move {
            opened.send(()).expect("is waited for");
            while has_moved.try_recv().is_err() {
                platform.sleep_ns(1_000_000).await;
            }
            let written = volume
                .write(0, IoBuf::copy_of(&block(2)), Durability::Durable)
                .await;
            written.expect("goes on");
        },
    );
    has_opened.recv().expect("opens");
    moved(&one, &other, "vm");
    go.send(()).expect("is waited for");
    assert_eq!(old.join().expect("ends"), Some(Status::StaleEpoch));
    moved_on.send(()).expect("is waited for");
    new.join().expect("no error");
}

/// Nodes bring volumes without TLS.
#[test]
fn a_node_that_wants_tls_promises_nothing() {
    let one = node();
    let other = Scene::with(|options| {
        listening(options);
        options.tls = Some(tls());
    });
    volume(&one, "vm", None);
    let (why, words) = kind(promise(&one, &other, "vm"));
    assert_eq!(why, NodeErrorKind::Refused, "{words}");
    assert!(words.contains("TLS"), "{words}");
    let silent = Scene::with(|_| {});
    let (why, words) = kind(promise(&one, &silent, "vm"));
    assert_eq!(why, NodeErrorKind::Refused, "{words}");
    assert!(words.contains("native"), "{words}");
}

/// What was written at the other node and not flushed may be gone with its restart: a flush where the volume is back must not hide that.
#[test]
fn a_flush_behind_the_way_back_tells_what_was_lost_there() {
    for restarts in [false, true] {
        let (one, other) = (node(), node());
        volume(&one, "vm", None);
        let mut attached = one.attach("vm");
        moved(&one, &other, "vm");
        assert_eq!(attached.write(0, &block(1)), 0, "there, and not flushed");
        let other = match restarts {
            true => restart(other),
            false => other,
        };
        moved(&other, &one, "vm");
        let flushed = attached.call(client::FLUSH, 0, 0).0;
        assert_eq!(flushed != 0, restarts, "{flushed}");
    }
}

/// Requests that wait for a node which is off fail together, in the time of one.
#[test]
fn what_is_passed_on_to_a_node_that_is_off_fails_in_time() {
    let (one, other) = (node(), node());
    volume(&one, "vm", None);
    let mut attached = one.attach("vm");
    moved(&one, &other, "vm");
    drop(other);
    let began = Instant::now();
    let ranges: Vec<(u64, u32)> = (0..64).map(|at| (at * BLOCK, BLOCK as u32)).collect();
    attached.submit_many(client::READ, &ranges);
    for _ in &ranges {
        assert_ne!(attached.answer().0, 0);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
}
