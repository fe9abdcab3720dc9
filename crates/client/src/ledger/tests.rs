//! The books, against a server's that does what the protocol's page says.

use flagstone_types::Lsn;
use flagstone_wire::hello::{HelloReply, NodeId, Nonce};
use proptest::prelude::*;

use super::*;

fn hello(session: u8, arrived: u64, outcomes: &[(u64, Operation)]) -> Vec<u8> {
    let reply = HelloReply {
        version: 1,
        core: 0,
        features: 0,
        node: NodeId([1; 16]),
        incarnation: 1,
        session: SessionId([session; 16]),
        nonce: Nonce([3; 16]),
        limits: LIMITS,
        arrived,
    };
    let outcomes = outcomes.iter().map(|(number, operation)| Outcome {
        number: *number,
        lsn: Lsn(number * 10),
        operation: *operation,
        status: 0,
    });
    let mut body = Vec::new();
    reply.encode(&["127.0.0.1:1".parse().unwrap()], outcomes, &mut body);
    body
}

const LIMITS: Limits = Limits {
    requests_max: 4,
    payload_in_flight_max_bytes: 100,
    payload_max_bytes: 60,
    body_max_bytes: 1000,
    volumes_max: 5,
};

fn resume(
    ledger: &mut Ledger<&'static str>,
    body: &[u8],
) -> Result<Fates<&'static str>, (Contradiction, Fates<&'static str>)> {
    ledger.resume(&HelloReply::decode(body).unwrap())
}

fn begun() -> Ledger<&'static str> {
    let mut ledger = Ledger::new();
    assert_eq!(ledger.session(), SessionId::NEW);
    assert_eq!(resume(&mut ledger, &hello(7, 0, &[])), Ok(Vec::new()));
    assert_eq!(ledger.session(), SessionId([7; 16]));
    assert_eq!(ledger.payload_max_bytes(), 60);
    ledger
}

#[test]
fn numbers_have_no_gaps_and_unsettled_goes_back_to_the_oldest() {
    let mut ledger = begun();
    assert_eq!(ledger.send(Operation::Write, 0, "a"), (1, 0));
    assert_eq!(ledger.send(Operation::Read, 0, "b"), (2, 1));
    assert_eq!(ledger.send(Operation::Write, 0, "c"), (3, 2));
    let write = Operation::Write.number();
    assert_eq!(ledger.settle(3, write), Ok("c"));
    assert_eq!(ledger.send(Operation::Write, 0, "d"), (4, 3));
    assert!(
        !ledger.fits(Operation::Write, 0),
        "five numbers back is as far as four requests"
    );
    assert!(!ledger.fits(Operation::Read, 0), "whatever it is");
    assert_eq!(ledger.settle(1, write), Ok("a"));
    // Behind the second one, which is a read.
    assert_eq!(ledger.send(Operation::Write, 0, "e"), (5, 1));
    assert_eq!(ledger.settle(1, write), Err(Contradiction::NotAsked(1)));
    let wrong = Contradiction::Operation(2, write);
    assert_eq!(ledger.settle(2, write), Err(wrong));
    assert_eq!(ledger.on_their_way(), 3);
}

/// A read of a volume that had used its share held up all others of the connection, once 1,024 numbers had been given out behind it.
#[test]
fn a_read_that_waits_holds_up_nobody() {
    let mut ledger = begun();
    assert_eq!(ledger.send(Operation::Read, 0, "slow"), (1, 0));
    let write = Operation::Write.number();
    for number in 2..100 {
        assert_eq!(ledger.send(Operation::Write, 0, "x"), (number, 0));
        assert_eq!(ledger.settle(number, write), Ok("x"));
    }
    assert_eq!(ledger.settle(1, Operation::Read.number()), Ok("slow"));
    // They count among those on their way all the same.
    for _ in 0..4 {
        assert!(ledger.fits(Operation::Read, 0));
        ledger.send(Operation::Read, 0, "y");
    }
    assert!(!ledger.fits(Operation::Read, 0));
}

/// A server that lives was given up after ten seconds, since nothing could be sent to ask it. Now after sixteen times asking.
#[test]
fn some_numbers_are_left_to_ping() {
    let mut ledger = Ledger::new();
    let mut body = hello(7, 0, &[]);
    let hello = HelloReply::decode(&body).unwrap().reply;
    body.clear();
    let limits = Limits {
        requests_max: 1024,
        ..LIMITS
    };
    let hello = HelloReply { limits, ..hello };
    hello.encode(&["127.0.0.1:1".parse().unwrap()], [].into_iter(), &mut body);
    resume(&mut ledger, &body).unwrap();
    ledger.send(Operation::Write, 0, "slow");
    let mut sent = 1;
    while ledger.fits(Operation::Write, 0) {
        let (number, _) = ledger.send(Operation::Write, 0, "x");
        ledger.settle(number, Operation::Write.number()).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 1024 - 16);
    for _ in 0..16 {
        assert!(ledger.fits(Operation::Ping, 0) && !ledger.fits(Operation::Read, 0));
        let (number, _) = ledger.send(Operation::Ping, 0, "?");
        ledger.settle(number, Operation::Ping.number()).unwrap();
    }
    assert!(!ledger.fits(Operation::Ping, 0));
}

#[test]
fn payload_on_its_way_stays_within_the_limit() {
    let mut ledger = begun();
    ledger.send(Operation::Write, 60, "a");
    assert!(ledger.fits(Operation::Write, 40) && !ledger.fits(Operation::Write, 41));
    ledger.send(Operation::Read, 40, "b");
    assert!(
        ledger.fits(Operation::Write, 0)
            && !ledger.fits(Operation::Write, 1)
            && !ledger.fits(Operation::Write, u64::MAX)
    );
    ledger.settle(1, Operation::Write.number()).unwrap();
    assert!(ledger.fits(Operation::Write, 60) && !ledger.fits(Operation::Write, 61));
    resume(&mut ledger, &hello(7, 2, &[])).unwrap();
    assert!(ledger.fits(Operation::Write, 100));
}

#[test]
fn a_session_that_goes_on_says_what_became_of_everything() {
    let mut ledger = begun();
    for name in ["done", "never begun", "settled", "not arrived"] {
        ledger.send(Operation::Write, 0, name);
    }
    ledger.settle(3, Operation::Write.number()).unwrap();
    let outcomes = [(1, Operation::Write), (3, Operation::Write)];
    let fates = resume(&mut ledger, &hello(7, 3, &outcomes)).unwrap();
    let outcome = Outcome {
        number: 1,
        lsn: Lsn(10),
        operation: Operation::Write,
        status: 0,
    };
    let expected = [
        ("done", Fate::Outcome(outcome)),
        ("never begun", Fate::NotBegun),
        ("not arrived", Fate::NotBegun),
    ];
    assert_eq!(fates, expected);
    // One above the highest that arrived.
    assert_eq!(ledger.send(Operation::Write, 0, "next"), (4, 0));
}

#[test]
fn of_another_session_nothing_is_known() {
    let mut ledger = begun();
    ledger.send(Operation::Write, 50, "a");
    ledger.send(Operation::Read, 0, "b");
    let fates = resume(&mut ledger, &hello(8, 0, &[])).unwrap();
    assert_eq!(fates, [("a", Fate::Unknown), ("b", Fate::Unknown)]);
    assert_eq!(ledger.session(), SessionId([8; 16]));
    assert_eq!(ledger.send(Operation::Write, 100, "c"), (1, 0));
}

#[test]
fn a_server_that_contradicts_itself_is_not_believed() {
    let cases: [(Vec<u8>, Contradiction); 3] = [
        (hello(7, 3, &[]), Contradiction::Arrived(3, 2)),
        (
            hello(7, 2, &[(1, Operation::Zero)]),
            Contradiction::Operation(1, Operation::Zero.number()),
        ),
        (hello(8, 1, &[]), Contradiction::NewSession(1)),
    ];
    for (body, contradiction) in cases {
        let mut ledger = begun();
        ledger.send(Operation::Write, 0, "a");
        ledger.send(Operation::Write, 0, "b");
        let unknown = vec![("a", Fate::Unknown), ("b", Fate::Unknown)];
        assert_eq!(resume(&mut ledger, &body), Err((contradiction, unknown)));
        assert_eq!(ledger.session(), SessionId::NEW, "a new one is asked for");
    }
}

proptest! {
    /// Whatever is sent, answered and broken: numbers follow one another, `unsettled` covers
    /// exactly the changes that have no reply, and limits hold.
    #[test]
    fn any_history_keeps_the_rules(steps in prop::collection::vec((0_u8..4, any::<u16>()), 1..80)) {
        let mut ledger = begun();
        let mut open: BTreeMap<u64, (u64, Operation)> = BTreeMap::new();
        let mut last = 0;
        for (kind, value) in steps {
            let pick = open.keys().nth(usize::from(value) % open.len().max(1)).copied();
            match (kind, pick) {
                (0 | 1, _) => {
                    let payload_bytes = u64::from(value % 70);
                    let operation = [Operation::Write, Operation::Read][kind as usize];
                    let mut changes = open.iter().filter(|(_, (_, of))| of.is_change());
                    let oldest = changes.next().map_or(last + 1, |(number, _)| *number);
                    let held = open.values().map(|(bytes, _)| bytes).sum::<u64>();
                    if !ledger.fits(operation, payload_bytes) {
                        let is_far = last + 1 - oldest >= 4 || open.len() >= 4;
                        prop_assert!(held + payload_bytes > 100 || is_far);
                        continue;
                    }
                    let (number, unsettled) = ledger.send(operation, payload_bytes, "x");
                    prop_assert_eq!(number, last + 1);
                    prop_assert_eq!(u64::from(unsettled), number - oldest);
                    prop_assert!(unsettled < 4 && open.len() < 4);
                    open.insert(number, (payload_bytes, operation));
                    prop_assert!(held + payload_bytes <= 100);
                    last = number;
                }
                (2, Some(number)) => {
                    let (_, operation) = open[&number];
                    prop_assert!(ledger.settle(number, operation.number()).is_ok());
                    open.remove(&number);
                }
                (3, _) => {
                    let highest_settled = (1..=last).rev().find(|number| !open.contains_key(number));
                    let least = highest_settled.unwrap_or(0);
                    let arrived = least + u64::from(value) % (last - least + 1);
                    let fates = resume(&mut ledger, &hello(7, arrived, &[])).unwrap();
                    prop_assert_eq!(fates.len(), open.len());
                    open.clear();
                    last = arrived;
                }
                _ => {}
            }
            prop_assert_eq!(ledger.on_their_way(), open.len());
        }
    }
}
