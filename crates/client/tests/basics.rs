//! Each promise by itself, on a calm network.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_client::{Cause, Client, Durability, Error, OpenHow, Options, Target, Token, Volume};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{SimPlatform, World};
use flagstone_types::{DvolId, Epoch};
use flagstone_wire::Status;
use flagstone_wire::proof::Key;

use crate::gate::{Gate, GateConnect};
use crate::server::{BLOCK, Server, Trouble, value_of};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const ALONE: OpenHow = OpenHow {
    alone: true,
    held: None,
    read_only: false,
};
pub(crate) const SHARED: OpenHow = OpenHow {
    alone: false,
    held: None,
    read_only: false,
};

pub(crate) type SimClient = Client<SimPlatform, GateConnect>;
pub(crate) type SimVolume = Volume<SimPlatform, GateConnect>;

/// A server of three cores with volume `v` on the first, and a client that knows the first.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) gate: Gate,
    pub(crate) token: Token,
}

impl Stage {
    pub(crate) fn new(seed: u64) -> Stage {
        let world = World::new(seed);
        let server = Server::start(&world, 3);
        let token = server.create("v", 0, 8);
        let gate = Gate::default();
        Stage {
            world,
            server,
            gate,
            token,
        }
    }

    pub(crate) fn client(&self) -> SimClient {
        self.client_that_knows(1)
    }

    /// A client that is told of so many cores.
    fn client_that_knows(&self, cores: usize) -> SimClient {
        let addresses = self.server.with(|state| state.addresses[..cores].to_vec());
        let mut options = Options::new(addresses, "test");
        options.silence_ns = 20 * MS;
        options.connect_timeout_ns = 50 * MS;
        options.call_timeout_ns = 2_000 * MS;
        let connector = GateConnect {
            network: self.world.network(),
            gate: self.gate.clone(),
        };
        Client::new(self.world.platform(0), connector, options)
    }

    pub(crate) fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(0, work)
    }

    pub(crate) fn open(&self, how: OpenHow) -> SimVolume {
        let (client, token) = (self.client(), self.token.clone());
        self.run(async move { client.open(target(), token, how).await.unwrap() })
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.server.with(|state| state.trouble = trouble);
    }

    /// Nothing that a client must not do was done.
    pub(crate) fn rules_hold(&self) {
        let broken = self.server.with(|state| state.broken_rules.clone());
        assert!(broken.is_empty(), "{broken:?}");
    }

    pub(crate) fn log(&self) -> Vec<u64> {
        self.server.with(|state| state.volumes["v"].log.clone())
    }
}

pub(crate) fn target() -> Target {
    Target::Name("v".to_owned())
}

/// A block that begins with a value.
pub(crate) fn block(value: u64) -> IoBuf {
    let mut bytes = vec![0; BLOCK];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    IoBuf::copy_of(&bytes)
}

#[test]
fn what_is_written_is_read_again() {
    let stage = Stage::new(1);
    let volume = stage.open(SHARED);
    let description = volume.description();
    assert_eq!(description.size_bytes, 8 * BLOCK as u64);
    assert_eq!(description.failure_domain, "rack 7");
    assert!(!description.is_read_only && !description.is_snapshot);
    stage.run(async move {
        let first = volume
            .write(0, block(5), Durability::Durable)
            .await
            .unwrap();
        let second = volume
            .write(8192, block(6), Durability::Visible)
            .await
            .unwrap();
        assert!(second > first);
        assert_eq!(value_of(&volume.read(8192, 100).await.unwrap()), 6);
        assert_eq!(volume.flush().await.unwrap(), second);
        let two = volume.read(1, 8192 + 7).await.unwrap();
        assert_eq!((two.len(), two[8191]), (8199, 6));
        volume
            .zero(0, 4096, false, Durability::Durable)
            .await
            .unwrap();
        volume
            .deallocate(8192, 4096, Durability::Durable)
            .await
            .unwrap();
        assert!(
            volume
                .read(0, 12288)
                .await
                .unwrap()
                .iter()
                .all(|byte| *byte == 0)
        );
        let error = volume.read(0, 1 << 20).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::OutOfRange));
        volume.close().await;
    });
    stage.rules_hold();
}

#[test]
fn a_wrong_token_opens_nothing() {
    let stage = Stage::new(2);
    let client = stage.client();
    let wrong = Token {
        number: 1,
        key: Key([0xab; 32]),
    };
    let error = stage
        .run(async move { client.open(target(), wrong, SHARED).await.err() })
        .unwrap();
    assert_eq!(error.status(), Some(Status::Denied));
    let text = error.to_string();
    assert!(
        text.starts_with("opening volume v: the server answered DENIED"),
        "{text}"
    );
    assert!(!text.contains("ab") || !text.contains("abab"), "{text}");
    assert!(!error.may_have_happened());
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let stage = Stage::new(3);
    let (client, token) = (stage.client(), stage.token.clone());
    stage.run(async move {
        let both = OpenHow {
            alone: true,
            held: None,
            read_only: true,
        };
        let error = client
            .open(target(), token.clone(), both)
            .await
            .err()
            .unwrap();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        for name in [String::new(), "x".repeat(258)] {
            let named = client.open(Target::Name(name), token.clone(), SHARED).await;
            assert!(matches!(named.err().unwrap().cause(), Cause::Invalid(_)));
        }
        let volume = client.open(target(), token, SHARED).await.unwrap();
        let long = IoBuf::zeroed((4 << 20) + 1);
        let error = volume
            .write(0, long, Durability::Durable)
            .await
            .unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        assert!(!error.may_have_happened());
        let error = volume.read(0, (4 << 20) + 1).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("4194304 bytes of data at a time"),
            "{error}"
        );
        // The connection has not suffered.
        volume
            .write(0, block(1), Durability::Durable)
            .await
            .unwrap();
    });
    assert_eq!(stage.server.with(|state| state.opens), 1);
    stage.rules_hold();
}

#[test]
fn who_comes_later_alone_fences_off_who_was_there_for_good() {
    let stage = Stage::new(4);
    let old = stage.open(ALONE);
    let new = stage.open(ALONE);
    let (network, server) = (stage.world.network(), stage.server.clone());
    stage.run(async move {
        let error = old
            .write(0, block(1), Durability::Durable)
            .await
            .unwrap_err();
        assert_eq!(error.status(), Some(Status::StaleEpoch));
        assert!(!error.may_have_happened());
        // Not even when it opens again, and not by fencing off its successor.
        network.reset_all();
        let error = old
            .write(0, block(2), Durability::Durable)
            .await
            .unwrap_err();
        assert_eq!(error.status(), Some(Status::StaleEpoch));
        new.write(0, block(3), Durability::Durable).await.unwrap();
        server.restart();
        new.write(0, block(4), Durability::Durable).await.unwrap();
    });
    assert_eq!(stage.log(), [3, 4]);
    assert_eq!(
        stage.server.with(|state| state.volumes["v"].epoch),
        Epoch(3)
    );
}

#[test]
fn who_was_fenced_off_is_so_without_having_been_alone() {
    let stage = Stage::new(5);
    let old = stage.open(SHARED);
    let new = stage.open(ALONE);
    let network = stage.world.network();
    stage.run(async move {
        network.reset_all();
        let error = old
            .write(0, block(1), Durability::Durable)
            .await
            .unwrap_err();
        assert_eq!(
            error.status(),
            Some(Status::StaleEpoch),
            "opening again gives no new epoch"
        );
        new.write(0, block(2), Durability::Durable).await.unwrap();
    });
    assert_eq!(stage.log(), [2]);
}

#[test]
fn a_flush_after_a_restart_says_that_changes_may_be_gone() {
    let stage = Stage::new(6);
    let volume = stage.open(SHARED);
    let server = stage.server.clone();
    stage.run(async move {
        volume
            .write(0, block(1), Durability::Durable)
            .await
            .unwrap();
        server.restart();
        volume
            .flush()
            .await
            .expect("what was durable is not in doubt");
        volume
            .write(0, block(2), Durability::Visible)
            .await
            .unwrap();
        server.restart();
        let error = volume.flush().await.unwrap_err();
        assert_eq!(error.cause(), &Cause::UnflushedLost);
        volume.flush().await.expect("it is said once");
        volume
            .write(0, block(3), Durability::Visible)
            .await
            .unwrap();
        volume.flush().await.unwrap();
    });
}

/// A change is under way when the session is lost.
fn in_doubt(stage: &Stage, volume: &SimVolume) -> Result<(), Error> {
    stage.trouble(Trouble {
        slow_ns: 20 * MS,
        ..Trouble::default()
    });
    let (volume, server) = (volume.clone(), stage.server.clone());
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    stage.world.spawn(0, async move {
        let written = volume.write(0, block(77), Durability::Durable).await;
        slot.replace(Some(written.map(|_| ())));
    });
    stage.world.run_for(MS);
    server.restart();
    stage.world.run_until(|| result.borrow().is_some());
    result.take().unwrap()
}

#[test]
fn what_is_in_doubt_is_repeated_alone_and_reported_otherwise() {
    let stage = Stage::new(7);
    let shared = stage.open(SHARED);
    let error = in_doubt(&stage, &shared).unwrap_err();
    assert_eq!(error.cause(), &Cause::SessionLost);
    assert!(error.may_have_happened());
    assert!(
        error.to_string().contains("may have been carried out"),
        "{error}"
    );
    assert_eq!(stage.log(), []);
    let alone = stage.open(ALONE);
    in_doubt(&stage, &alone).unwrap();
    assert_eq!(stage.log(), [77]);
}

#[test]
fn who_was_fenced_off_while_in_doubt_doesnt_repeat() {
    let stage = Stage::new(8);
    let old = stage.open(ALONE);
    let server = stage.server.clone();
    stage.trouble(Trouble {
        slow_ns: 900 * MS,
        ..Trouble::default()
    });
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    stage.world.spawn(0, async move {
        slot.replace(Some(old.write(0, block(1), Durability::Durable).await));
    });
    stage.world.run_for(MS);
    // Somebody else takes over while the first one is away.
    server.with(|state| {
        let volume = state.volumes.get_mut("v").unwrap();
        volume.set_epoch(Epoch(volume.epoch.0 + 1));
    });
    server.restart();
    stage.world.run_until(|| result.borrow().is_some());
    let error = result.take().unwrap().unwrap_err();
    assert_eq!(error.status(), Some(Status::StaleEpoch));
    assert!(
        error.may_have_happened(),
        "the first attempt may have been carried out"
    );
    assert_eq!(stage.log(), []);
}

#[test]
fn calls_end_at_their_deadline_and_say_what_is_known() {
    let stage = Stage::new(9);
    let volume = stage.open(SHARED);
    let (gate, platform) = (stage.gate.clone(), stage.world.platform(0));
    let server = stage.server.clone();
    stage.run(async move {
        gate.set_shut(true);
        let deadline = platform.now().plus_ns(10 * MS);
        let error = volume
            .until(deadline)
            .write(0, block(1), Durability::Durable)
            .await;
        let error = error.unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut(_)), "{error}");
        assert!(error.may_have_happened(), "it was handed to the network");
        assert!(platform.now().since(deadline) < MS);
        let deadline = platform.now().plus_ns(300 * MS);
        let error = volume.until(deadline).read(0, 8).await.unwrap_err();
        assert!(!error.may_have_happened(), "a read changes nothing");
        assert!(error.to_string().contains("last trouble"), "{error}");
        // By now the connection was given up, and nothing can be sent.
        let deadline = platform.now().plus_ns(10 * MS);
        let elsewhere = volume
            .until(deadline)
            .write(4096, block(2), Durability::Durable)
            .await;
        assert!(!elsewhere.unwrap_err().may_have_happened());
        gate.set_shut(false);
        volume
            .write(8192, block(3), Durability::Durable)
            .await
            .unwrap();
        assert_eq!(server.value("v", 1), 0);
    });
    stage.rules_hold();
}

#[test]
fn a_server_is_told_how_long_a_request_is_worth_beginning() {
    let stage = Stage::new(10);
    let volume = stage.open(SHARED);
    stage.trouble(Trouble {
        slow_ns: 400 * MS,
        ..Trouble::default()
    });
    let platform = stage.world.platform(0);
    let mut may_have_happened = 0;
    for value in 1..40 {
        let deadline = platform.now().plus_ns(60 * MS);
        let volume = volume.until(deadline);
        let written =
            stage.run(async move { volume.write(0, block(value), Durability::Durable).await });
        may_have_happened += written.map_or_else(|error| error.may_have_happened().into(), |_| 1);
        // Long enough for what was sent to be begun, or thrown away.
        stage.world.run_for(600 * MS);
    }
    let late = stage.server.with(|state| state.late);
    assert!(
        late > 10,
        "{late}: what nobody waits for any more is not begun"
    );
    assert_eq!(late + stage.log().len() as u64, 39);
    assert_eq!(may_have_happened, 39);
    stage.rules_hold();
}

#[test]
fn a_volume_that_has_moved_is_found() {
    let stage = Stage::new(11);
    let volume = stage.open(ALONE);
    let server = stage.server.clone();
    let platform = stage.world.platform(0);
    stage.run(async move {
        for value in 1..30 {
            server.move_volume("v", value as usize % 3);
            volume
                .write(0, block(value), Durability::Durable)
                .await
                .unwrap();
            platform.sleep_ns(MS).await;
        }
    });
    let (opens, closes) = stage.server.with(|state| (state.opens, state.closes));
    assert_eq!(
        opens - closes,
        1,
        "it is open where it is, and nowhere else"
    );
    assert_eq!(stage.log(), (1..30).collect::<Vec<u64>>());
    assert_eq!(
        stage.server.with(|state| state.volumes["v"].epoch),
        Epoch(2 + 29 * Epoch::PER_MOVE),
        "alone once, and moved"
    );
    stage.rules_hold();
}

/// A write is on its way to a node that the volume leaves, and which dies for good then: the next write of the same blocks, at the node that has the volume,
/// need not wait for an answer that never comes. At another core of the same node it does, since that one will say what became of it.
#[test]
fn what_was_on_its_way_to_a_node_that_died_holds_up_nobody_behind_the_move() {
    for has_nodes in [true, false] {
        let stage = Stage::new(12);
        stage.server.with(|state| state.has_nodes = has_nodes);
        let (client, token) = (stage.client_that_knows(3), stage.token.clone());
        let volume = stage.run(async move { client.open(target(), token, SHARED).await.unwrap() });
        stage.trouble(Trouble {
            slow_ns: 20 * MS,
            ..Trouble::default()
        });
        let (first, slot) = (volume.clone(), Rc::new(RefCell::new(None)));
        let result = slot.clone();
        stage.world.spawn(0, async move {
            let written = first.write(0, block(77), Durability::Durable).await;
            slot.replace(Some(written));
        });
        stage.world.run_for(MS);
        stage.server.move_volume("v", 1);
        stage.server.kill(0);
        stage.world.run_until(|| result.borrow().is_some());
        let error = result.take().unwrap().unwrap_err();
        assert!(error.may_have_happened(), "{error}");
        stage.trouble(Trouble::default());
        let behind = volume.clone();
        let written =
            stage.run(async move { behind.write(0, block(78), Durability::Durable).await });
        assert_eq!(written.is_ok(), has_nodes, "{written:?}");
        let apart = stage.run(async move {
            volume
                .write(BLOCK as u64, block(79), Durability::Durable)
                .await
        });
        apart.unwrap();
        stage.rules_hold();
    }
}

/// Whoever opens one too many is told at once; one that was open isn't lost for having moved to where there are too many.
#[test]
fn too_many_volumes_are_told_and_lose_none_that_was_open() {
    let stage = Stage::new(13);
    let volume = stage.open(SHARED);
    let full = |is_full| {
        stage.trouble(Trouble {
            is_full,
            ..Trouble::default()
        });
    };
    full(true);
    let before = stage.world.now();
    let (client, token) = (stage.client(), stage.token.clone());
    let opening = async move { client.open(target(), token, SHARED).await.err() };
    let error = stage.run(opening).expect("is refused");
    assert!(error.to_string().contains("close one first"), "{error}");
    assert!(stage.world.now().since(before) < 100 * MS);
    stage.server.move_volume("v", 1);
    let platform = stage.world.platform(0);
    let first = volume.until(platform.now().plus_ns(700 * MS));
    let written = stage.run(async move { first.write(0, block(1), Durability::Durable).await });
    assert!(written.is_err(), "there is no room in its time");
    full(false);
    stage.run(async move {
        volume
            .write(0, block(2), Durability::Durable)
            .await
            .unwrap()
    });
    assert_eq!(stage.log(), [2]);
    stage.rules_hold();
}

#[test]
fn redirects_that_lead_nowhere_are_not_followed_for_ever() {
    let stage = Stage::new(12);
    let volume = stage.open(SHARED);
    stage.server.move_volume("v", 1);
    // Every core says that it is on another one.
    stage.trouble(Trouble {
        wrong_redirect: 1.0,
        ..Trouble::default()
    });
    let server = stage.server.clone();
    server.with(|state| state.volumes.get_mut("v").unwrap().core = usize::MAX);
    let platform = stage.world.platform(0);
    let before = stage.server.with(|state| state.opens);
    let error = stage.run(async move {
        let volume = volume.until(platform.now().plus_ns(500 * MS));
        volume
            .write(0, block(1), Durability::Durable)
            .await
            .unwrap_err()
    });
    assert!(!error.may_have_happened());
    assert!(error.to_string().contains("moved"), "{error}");
    assert_eq!(stage.server.with(|state| state.opens), before);
    // After each eighth there is a pause, and they get longer.
    let moved = stage.server.with(|state| state.moved);
    assert!(
        (8..200).contains(&moved),
        "{moved} redirects in half a second"
    );
}

#[test]
fn a_servers_limits_are_kept_to_by_waiting() {
    let stage = Stage::new(13);
    stage.server.with(|state| {
        state.limits.requests_max = 3;
        state.limits.payload_in_flight_max_bytes = 3 * BLOCK as u32;
        state.limits.payload_max_bytes = 2 * BLOCK as u32;
    });
    stage.trouble(Trouble {
        slow_ns: 3 * MS,
        ..Trouble::default()
    });
    let volume = stage.open(SHARED);
    let done = Rc::new(RefCell::new(0));
    for value in 0..60 {
        let (volume, done) = (volume.clone(), done.clone());
        stage.world.spawn(0, async move {
            let offset = value % 7 * BLOCK as u64;
            match value % 2 {
                0 => drop(volume.read(offset, 2 * BLOCK as u64).await.unwrap()),
                _ => drop(
                    volume
                        .write(offset, block(value), Durability::Visible)
                        .await
                        .unwrap(),
                ),
            }
            *done.borrow_mut() += 1;
        });
    }
    stage.world.run_until(|| *done.borrow() == 60);
    stage.rules_hold();
}

#[test]
fn damaged_bytes_are_asked_for_again_and_never_given_out() {
    let stage = Stage::new(14);
    let volume = stage.open(SHARED);
    let server = stage.server.clone();
    stage.run(async move {
        volume
            .write(0, block(9), Durability::Durable)
            .await
            .unwrap();
        server.with(|state| state.trouble.damaged_reply = 0.3);
        for _ in 0..50 {
            match volume.read(0, 4096).await {
                Ok(bytes) => assert_eq!(&bytes[..], &block(9)[..]),
                Err(error) => assert_eq!(error.cause(), &Cause::Damaged),
            }
        }
        server.with(|state| state.trouble.damaged_reply = 1.0);
        let error = volume.read(0, 4096).await.unwrap_err();
        assert_eq!(error.cause(), &Cause::Damaged);
    });
}

#[test]
fn overlapping_changes_keep_their_order_when_a_server_is_busy() {
    let stage = Stage::new(15);
    let volume = stage.open(SHARED);
    stage.trouble(Trouble {
        busy: 0.7,
        slow_ns: MS,
        ..Trouble::default()
    });
    let done = Rc::new(RefCell::new(0));
    // Called one after another by one task, all before the first is answered.
    let calls: Vec<_> = (1..=30)
        .map(|value| {
            let volume = volume.clone();
            Box::pin(async move {
                let offset = value % 2 * 100;
                let bytes = block(value).narrow(0..50);
                volume
                    .write(offset, bytes, Durability::Visible)
                    .await
                    .unwrap();
            })
        })
        .collect();
    let count = done.clone();
    stage.world.spawn(0, async move {
        let mut calls = calls;
        std::future::poll_fn(|context| {
            calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
            match calls.is_empty() {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        *count.borrow_mut() = 1;
    });
    stage.world.run_until(|| *done.borrow() == 1);
    let aligned: Vec<u64> = (1..=30).filter(|value| value % 2 == 0).collect();
    assert_eq!(stage.log(), aligned);
    stage.rules_hold();
}

#[test]
fn everything_ends_when_nobody_holds_the_client() {
    let stage = Stage::new(16);
    let volume = stage.open(SHARED);
    assert!(stage.world.network().connections() > 0);
    drop(volume);
    stage.world.run_until_idle();
    assert_eq!(stage.world.network().connections(), 0);
    // What is left are the three that accept.
    assert_eq!(stage.world.tasks_alive(), 3);
}

#[test]
fn a_client_that_is_stopped_answers_everybody() {
    let stage = Stage::new(17);
    let (client, token) = (stage.client(), stage.token.clone());
    stage.trouble(Trouble {
        slow_ns: 50 * MS,
        ..Trouble::default()
    });
    let (opener, gate) = (client.clone(), stage.gate.clone());
    let volume = stage.run(async move { opener.open(target(), token, SHARED).await.unwrap() });
    gate.set_shut(true);
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    let writer = volume.clone();
    stage.world.spawn(0, async move {
        slot.replace(Some(writer.write(0, block(1), Durability::Durable).await));
    });
    stage.world.run_for(MS);
    client.stop();
    stage.world.run_until(|| result.borrow().is_some());
    let error = result.take().unwrap().unwrap_err();
    assert_eq!(error.cause(), &Cause::Closed);
    assert!(error.may_have_happened());
    let later = stage.run(async move { volume.read(0, 8).await.unwrap_err() });
    assert_eq!(later.cause(), &Cause::Closed);
}

#[test]
fn size_reservation_and_epoch_are_changed_by_who_has_it() {
    let stage = Stage::new(18);
    let volume = stage.open(ALONE);
    let server = stage.server.clone();
    stage.run(async move {
        volume.resize(16 * BLOCK as u64).await.unwrap();
        assert_eq!(volume.description().size_bytes, 8 * BLOCK as u64);
        assert_eq!(
            volume.describe().await.unwrap().size_bytes,
            16 * BLOCK as u64
        );
        assert_eq!(volume.description().size_bytes, 16 * BLOCK as u64);
        volume
            .write(15 * BLOCK as u64, block(1), Durability::Durable)
            .await
            .unwrap();
        volume.reserve(5 * BLOCK as u64).await.unwrap();
        volume.set_epoch(Epoch(7)).await.unwrap();
        volume
            .write(0, block(2), Durability::Durable)
            .await
            .unwrap();
        // It is still the one that may write when it is opened again.
        server.restart();
        volume
            .write(0, block(3), Durability::Durable)
            .await
            .unwrap();
        let error = volume.set_epoch(Epoch(6)).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::StaleEpoch));
    });
    stage.server.with(|state| {
        assert_eq!(state.volumes["v"].reserved_bytes, 5 * BLOCK as u64);
        assert_eq!(state.volumes["v"].epoch, Epoch(7));
    });
    stage.rules_hold();
}

/// It was deleted while the connection was broken, and another one made under its name: that one must not get what was meant for it.
#[test]
fn another_volume_of_the_same_name_is_not_the_one_that_was_open() {
    let stage = Stage::new(19);
    let volume = stage.open(SHARED);
    let id = volume.description().id;
    stage.server.with(|state| {
        state.volumes.get_mut("v").unwrap().id = DvolId(77);
    });
    stage.world.network().reset_all();
    stage.run(async move {
        let written = volume.write(0, block(1), Durability::Durable).await;
        let read = volume.read(0, 8).await;
        for error in [written.unwrap_err(), read.unwrap_err()] {
            assert_eq!(error.status(), Some(Status::Gone));
            assert!(!error.may_have_happened());
        }
        assert_eq!(volume.description().id, id);
    });
    assert_eq!(stage.log(), []);
    stage.rules_hold();
}

/// Three times, and not for ever: whoever asks hears of a server that never knows it.
#[test]
fn a_volume_that_the_server_does_not_know_is_opened_again_three_times() {
    for forgets in 0..=4 {
        let stage = Stage::new(20);
        let volume = stage.open(SHARED);
        stage.trouble(Trouble {
            forgets,
            ..Trouble::default()
        });
        let read = stage.run(async move { volume.read(0, 8).await });
        let opened_again = stage.server.with(|state| state.opens) - 1;
        assert_eq!(opened_again, u64::from(forgets.min(3)), "{forgets}");
        let status = read.err().map(|error| error.status());
        let expected = (forgets > 3).then_some(Some(Status::NoVolume));
        assert_eq!(status, expected, "{forgets}");
        stage.rules_hold();
    }
}

/// What it takes to open so many volumes on one connection, one after the other, with all of them open: scheduling decisions and messages.
fn steps_to_open(count: u64) -> u64 {
    let stage = Stage::new(1);
    let client = stage.client();
    let names: Vec<_> = (0..count)
        .map(|number| format!("volume-{number}"))
        .collect();
    let create = |name: &String| (name.clone(), stage.server.create(name, 0, 8));
    let volumes: Vec<_> = names.iter().map(create).collect();
    let before = stage.world.trace_events();
    let opened = stage.run(async move {
        let mut opened = Vec::new();
        for (name, token) in volumes {
            opened.push(
                client
                    .open(Target::Name(name), token, SHARED)
                    .await
                    .unwrap(),
            );
        }
        opened
    });
    assert_eq!(opened.len() as u64, count);
    stage.rules_hold();
    stage.world.trace_events() - before
}

/// Each volume that was opened woke all that were open: sixteen thousand took minutes.
#[test]
fn a_volume_is_opened_as_quickly_however_many_are_open() {
    let (few, many) = (steps_to_open(50), steps_to_open(800));
    assert!(many < 20 * few, "{few} steps for 50, {many} for 800");
}
