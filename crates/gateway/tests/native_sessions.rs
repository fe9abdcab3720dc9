//! Sessions: what a client is told after its connection broke, and what is not done behind its back.

use flagstone_gateway::native::{CloseReason, NativeLimits};
use flagstone_platform::Stream;
use flagstone_types::Lsn;
use flagstone_wire::hello::{Outcome, SessionId};
use flagstone_wire::{Operation, RequestHeader, Status};

use crate::native_support::client::*;
use crate::native_support::node::*;
use crate::native_support::stage::Stage;
use crate::support::stream::Link;

fn outcome(number: u64, lsn: u64, operation: Operation, status: Status) -> Outcome {
    Outcome {
        number,
        lsn: Lsn(lsn),
        operation,
        status: status.number(),
    }
}

#[test]
fn a_client_that_comes_back_learns_what_became_of_its_changes() {
    Stage::new(1).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        assert_eq!((client.hello.arrived, client.hello.core), (0, 0));
        assert_eq!(client.addresses, *stage.node.addresses);
        let a = client.open("a", OWNER).await;
        client.unsettled = 1;
        client.write(a, 0, b"2").await.ok();
        client.unsettled = 2;
        client.read(a, 0, 1).await.ok();
        client.unsettled = 3;
        assert_eq!(
            client.write(a, 1 << 30, b"4").await.status(),
            Status::OutOfRange
        );
        client.unsettled = 4;
        client.ask(of(Operation::Flush, a), &[], &[]).await.ok();
        client.stream.shutdown();
        stage.sleep_ms(1000).await;
        assert_eq!(stage.server.counters().sessions_waiting, 1);

        let client = stage.client_of(session).await;
        assert_eq!(client.hello.session, session);
        assert_eq!(client.hello.arrived, 5);
        let expected = [
            outcome(2, 1, Operation::Write, Status::Ok),
            outcome(4, 0, Operation::Write, Status::OutOfRange),
        ];
        assert_eq!(client.outcomes, expected);
        let counters = stage.server.counters();
        assert_eq!(
            (counters.sessions_resumed, counters.sessions_waiting),
            (1, 0)
        );
        assert_eq!(counters.sessions_begun, 1);
    });
}

#[test]
fn numbers_go_on_and_volumes_are_opened_again() {
    Stage::new(2).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        let a = client.open("a", OWNER).await;
        client.stream.shutdown();
        let mut client = stage.client_of(session).await;
        assert_eq!(client.number, 2);
        assert_eq!(client.read(a, 0, 1).await.status(), Status::NoVolume);
        let a = client.open("a", OWNER).await;
        client.write(a, 0, b"x").await.ok();
        // A proof that was heard on the first connection is of no use here.
        client.stream.shutdown();
        let old = client;
        let mut client = stage.client_of(session).await;
        let body = old.open_body("a", OWNER, 0);
        let header = RequestHeader::of(Operation::Open);
        assert_eq!(
            client.ask(header, &body, &[]).await.status(),
            Status::Denied
        );
    });
}

#[test]
fn settled_outcomes_are_not_told_again() {
    Stage::new(3).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        let a = client.open("a", OWNER).await;
        for at in 0..10 {
            client.unsettled = 3.min(at + 1);
            client.write(a, 0, b"x").await.ok();
        }
        client.stream.shutdown();
        let client = stage.client_of(session).await;
        let numbers: Vec<_> = client.outcomes.iter().map(|one| one.number).collect();
        assert_eq!(numbers, [8, 9, 10, 11]);
    });
}

#[test]
fn what_is_under_way_is_waited_for_and_what_is_not_begun_never_is() {
    Stage::new(4).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        let a = client.open("a", OWNER).await;
        stage.volume("a").memory.pause_ns.set(2_000_000_000);
        for at in 0..5_u64 {
            client.unsettled = at as u32;
            client
                .start(write(a, 0), &[], &(at + 2).to_le_bytes())
                .await;
        }
        // Half a frame, which never comes whole.
        client.unsettled = 5;
        let header = client.next(write(a, 0));
        client.send(&frame(header, &[], &[9; 4096])[..1000]).await;
        stage.sleep_ms(1).await;
        let client = stage.client_of(session).await;
        let memory = stage.volume("a").memory;
        assert_eq!(memory.running.get(), 0, "nothing is under way any more");
        let carried_out = memory.carried_out.borrow().clone();
        let told: Vec<_> = client.outcomes.iter().map(|one| one.number).collect();
        assert_eq!(told, carried_out);
        assert_eq!(
            client.hello.arrived, 7,
            "the half frame's header has arrived"
        );
        stage.sleep_ms(60_000).await;
        assert_eq!(*memory.carried_out.borrow(), carried_out);
    });
}

#[test]
fn one_connection_has_a_session_and_the_last_one_gets_it() {
    Stage::new(5).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        let a = client.open("a", OWNER).await;
        stage.volume("a").memory.pause_ns.set(3_000_000_000);
        client.start(write(a, 0), &[], b"slow").await;
        stage.sleep_ms(1).await;
        // Both wait for the write; the second one is wanted.
        let (early, early_end) = stage.connect(Link::default());
        let (late, late_end) = stage.connect(Link::default());
        let mut early = Client::bare(early);
        early.send(&hello_frame(session, early.nonce)).await;
        stage.sleep_ms(1).await;
        let mut late = Client::bare(late);
        late.send(&hello_frame(session, late.nonce)).await;
        stage.sleep_ms(1).await;
        // At once: however often somebody comes back while the write is under way, only one of these waits.
        assert_eq!(stage.volume("a").memory.running.get(), 1);
        assert_eq!(early_end.get(), Some(CloseReason::Replaced));
        assert!(early.is_closed().await);
        late.greeted().await.expect("the last one");
        assert_eq!(late_end.get(), None);
        assert_eq!(late.outcomes.len(), 1);
        late.open("a", OWNER).await;
        assert!(client.is_closed().await, "the first connection has ended");
    });
}

/// A volume over its limit may have nobody's turn come for minutes: who comes back after his connection broke must not wait for
/// what he has asked for over the old one.
#[test]
fn what_waits_for_its_turn_ends_when_its_client_leaves() {
    Stage::new(14).run(|stage| async move {
        let mut client = stage.client().await;
        let session = client.hello.session;
        let a = client.open("a", OWNER).await;
        let memory = stage.volume("a").memory;
        memory.starves.set(true);
        for at in 0..3_u64 {
            client.unsettled = at as u32;
            client.start(write(a, 0), &[], &at.to_le_bytes()).await;
        }
        stage.sleep_ms(1).await;
        assert_eq!(memory.running.get(), 3);
        client.stream.shutdown();
        let client = stage.client_of(session).await;
        assert_eq!(memory.running.get(), 0);
        assert_eq!((client.hello.arrived, client.outcomes.len()), (4, 0));
        assert_eq!(client.hello.session, session);
        assert!(memory.carried_out.borrow().is_empty());
    });
}

#[test]
fn an_unknown_session_begins_anew() {
    Stage::new(6).run(|stage| async move {
        let unknown = SessionId([5; 16]);
        let client = stage.client_of(unknown).await;
        assert_ne!(client.hello.session, unknown);
        assert_ne!(client.hello.session, SessionId::NEW);
        assert_eq!((client.hello.arrived, client.outcomes.len()), (0, 0));
        let counters = stage.server.counters();
        assert_eq!((counters.sessions_unknown, counters.sessions_begun), (1, 1));
    });
}

#[test]
fn a_session_is_forgotten_after_its_grace() {
    Stage::new(7).run(|stage| async move {
        for (pause_ms, is_known) in [(59_000, true), (61_000, false)] {
            let mut client = stage.client().await;
            let session = client.hello.session;
            client.open("a", OWNER).await;
            client.stream.shutdown();
            stage.sleep_ms(pause_ms).await;
            let waiting = stage.server.counters().sessions_waiting;
            assert_eq!(waiting, u64::from(is_known), "nobody has to ask for it");
            let client = stage.client_of(session).await;
            assert_eq!(client.hello.session == session, is_known);
        }
    });
}

#[test]
fn the_oldest_of_too_many_sessions_is_forgotten() {
    let limits = NativeLimits {
        sessions_max: 3,
        ..NativeLimits::default()
    };
    Stage::with_limits(8, limits).run(|stage| async move {
        let mut sessions = Vec::new();
        for _ in 0..5 {
            let mut client = stage.client().await;
            client.open("a", OWNER).await;
            sessions.push(client.hello.session);
            client.stream.shutdown();
            stage.sleep_ms(1).await;
        }
        // Who opens nothing has no place among them.
        for _ in 0..10 {
            let client = stage.client().await;
            client.stream.shutdown();
            stage.sleep_ms(1).await;
        }
        assert_eq!(stage.server.counters().sessions_waiting, 3);
        for (at, session) in sessions.into_iter().enumerate() {
            let client = stage.client_of(session).await;
            assert_eq!(client.hello.session == session, at >= 2, "{at}");
        }
    });
}

#[test]
fn a_server_that_stops_answers_what_it_has_begun() {
    Stage::new(9).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let (silent, end) = stage.connect(Link::default());
        stage.volume("a").memory.pause_ns.set(1_000_000_000);
        let number = client.start(write(a, 0), &[], b"last").await;
        stage.sleep_ms(1).await;
        let server = stage.server.clone();
        assert!(server.stop_within(20_000_000_000).await);
        let reply = client.receive().await.expect("an answer").ok();
        assert_eq!(reply.header.number, number);
        assert!(client.is_closed().await);
        assert_eq!(end.get(), Some(CloseReason::Stopping));
        drop(silent);
        let (stream, end) = stage.connect(Link::default());
        assert!(Client::hello(stream, SessionId::NEW).await.is_none());
        assert_eq!(end.get(), Some(CloseReason::Stopping));
        assert_eq!(stage.server.counters().connections_refused, 1);
    });
}

#[test]
fn a_client_that_takes_nothing_does_not_hold_a_stop_up() {
    Stage::new(10).run(|stage| async move {
        let link = Link {
            capacity: 1000,
            ..Link::default()
        };
        let (stream, end) = stage.connect(link);
        let client = Client::hello(stream, SessionId::NEW).await;
        let mut client = client.expect("HELLO is answered");
        let a = client.open("a", OWNER).await;
        client
            .start(ranged(Operation::Read, a, 0, 1 << 20), &[], &[])
            .await;
        stage.sleep_ms(1).await;
        assert!(!stage.server.stop_within(1_000_000_000).await);
        stage.sleep_ms(1).await;
        assert_eq!(end.get(), Some(CloseReason::Stopping));
    });
}
