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
        !ledger.fits(0),
        "five numbers back is as far as four requests"
    );
    assert_eq!(ledger.settle(1, write), Ok("a"));
    assert_eq!(ledger.send(Operation::Write, 0, "e"), (5, 3));
    assert_eq!(ledger.settle(1, write), Err(Contradiction::NotAsked(1)));
    let wrong = Contradiction::Operation(2, write);
    assert_eq!(ledger.settle(2, write), Err(wrong));
    assert_eq!(ledger.on_their_way(), 3);
}

#[test]
fn payload_on_its_way_stays_within_the_limit() {
    let mut ledger = begun();
    ledger.send(Operation::Write, 60, "a");
    assert!(ledger.fits(40) && !ledger.fits(41));
    ledger.send(Operation::Read, 40, "b");
    assert!(ledger.fits(0) && !ledger.fits(1) && !ledger.fits(u64::MAX));
    ledger.settle(1, Operation::Write.number()).unwrap();
    assert!(ledger.fits(60) && !ledger.fits(61));
    resume(&mut ledger, &hello(7, 2, &[])).unwrap();
    assert!(ledger.fits(100));
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
    /// exactly what has no reply, and limits hold.
    #[test]
    fn any_history_keeps_the_rules(steps in prop::collection::vec((0_u8..4, any::<u16>()), 1..80)) {
        let mut ledger = begun();
        let mut open: BTreeMap<u64, u64> = BTreeMap::new();
        let mut last = 0;
        for (kind, value) in steps {
            let pick = open.keys().nth(usize::from(value) % open.len().max(1)).copied();
            match (kind, pick) {
                (0 | 1, _) => {
                    let payload_bytes = u64::from(value % 70);
                    if !ledger.fits(payload_bytes) {
                        let oldest = open.keys().next().copied().unwrap_or(last + 1);
                        let held = open.values().sum::<u64>() + payload_bytes > 100;
                        prop_assert!(held || last + 1 - oldest >= 4);
                        continue;
                    }
                    let (number, unsettled) = ledger.send(Operation::Write, payload_bytes, "x");
                    prop_assert_eq!(number, last + 1);
                    let oldest = open.keys().next().copied().unwrap_or(number);
                    prop_assert_eq!(u64::from(unsettled), number - oldest);
                    prop_assert!(unsettled < 4 && open.len() < 4);
                    open.insert(number, payload_bytes);
                    prop_assert!(open.values().sum::<u64>() <= 100);
                    last = number;
                }
                (2, Some(number)) => {
                    prop_assert!(ledger.settle(number, Operation::Write.number()).is_ok());
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
