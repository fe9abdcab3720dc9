//! Who may do what: tokens, what they allow, and what those learn who have none.

use flagstone_gateway::native::{CloseReason, NativeLimits};
use flagstone_types::{DvolId, Epoch, Lsn};
use flagstone_wire::batch::{Change, Condition};
use flagstone_wire::failure::Failure;
use flagstone_wire::open::{OpenReply, Target, open_flag, right};
use flagstone_wire::operation::flag;
use flagstone_wire::query::encode_runs_max;
use flagstone_wire::snapshots::{NewSnapshot, encode_snapshots};
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::native_support::client::*;
use crate::native_support::node::*;
use crate::native_support::stage::Stage;
use crate::support::stream::Link;

use Operation::*;
use Status::{Denied, Ok as Fine, ReadOnly};

/// A request of each operation that concerns a volume, which does no harm.
fn request(operation: Operation, volume: VolumeNo) -> (RequestHeader, Vec<u8>, Vec<u8>) {
    let mut header = of(operation, volume);
    let (mut body, mut payload) = (Vec::new(), Vec::new());
    match operation {
        Read | Zero | Deallocate => header.len_bytes = 512,
        ReadMetadata => header.len_bytes = 4096,
        Write => payload = vec![0; 512],
        CompareAndSwap => {
            header.len_bytes = 4;
            payload = vec![0; 8];
        }
        Allocation | ChangedSince => {
            header.len_bytes = 4096;
            encode_runs_max(4, &mut body);
        }
        Commit => {
            header.volume = VolumeNo::NONE;
            let change = Change::Deallocate {
                volume,
                offset_bytes: 0,
                len_bytes: 4096,
            };
            flagstone_wire::batch::encode(&[], &[change], &mut body).expect("one");
        }
        Snapshot => {
            header.volume = VolumeNo::NONE;
            let new = NewSnapshot { volume, name: "s" };
            encode_snapshots(&[new], &mut body).expect("one");
        }
        RollBack | DeleteSnapshot => body = b"s".to_vec(),
        Resize => header.len_bytes = 1 << 20,
        Reserve => header.len_bytes = 4096,
        SetEpoch => header.lsn = Lsn(1),
        _ => {}
    }
    (header, body, payload)
}

/// Operations in an order in which all of them can be carried out.
const ALL: [Operation; 18] = [
    Read,
    ReadMetadata,
    Allocation,
    ChangedSince,
    ListSnapshots,
    Describe,
    Write,
    Zero,
    Deallocate,
    CompareAndSwap,
    Commit,
    Flush,
    SetEpoch,
    Snapshot,
    RollBack,
    DeleteSnapshot,
    Resize,
    Reserve,
];

fn expected(operation: Operation, writes: Status, owns: Status) -> Status {
    match operation {
        Snapshot | RollBack | DeleteSnapshot | Resize | Reserve => owns,
        _ if operation.is_change() || operation == Flush => writes,
        _ => Fine,
    }
}

#[test]
fn each_kind_of_token_allows_what_it_is_for() {
    let cases = [
        (OWNER, 0, Fine, Fine, right::ALL, false),
        (WRITER, 0, Fine, Denied, right::READ | right::WRITE, false),
        (READER, 0, ReadOnly, Denied, right::READ, true),
        (READER, flag::READ_ONLY, ReadOnly, Denied, right::READ, true),
        (OWNER, flag::READ_ONLY, ReadOnly, ReadOnly, right::ALL, true),
    ];
    for (token, flags, writes, owns, rights, read_only) in cases {
        Stage::new(token.into()).run(move |stage| async move {
            let mut client = stage.client().await;
            let reply = client.try_open("a", token, flags).await.ok();
            let about = OpenReply::decode(&reply.body).expect("a description");
            assert_eq!(about.rights, rights);
            assert_eq!(about.flags & open_flag::READ_ONLY != 0, read_only);
            for operation in ALL {
                let (header, body, payload) = request(operation, reply.header.volume);
                let status = client.ask(header, &body, &payload).await.status();
                let expected = expected(operation, writes, owns);
                assert_eq!(status, expected, "{operation} with token {token} {flags}");
            }
            let content = stage.volume("a").memory.content.borrow().lsn;
            assert_eq!(content == Lsn(0), writes != Fine, "refused, and not done");
        });
    }
}

#[test]
fn who_reads_one_volume_may_write_another_under_conditions_of_the_first() {
    Stage::new(1).run(|stage| async move {
        let mut client = stage.client().await;
        let (a, b) = (
            client.open("a", READER).await,
            client.open("b", WRITER).await,
        );
        let condition = |volume| Condition::Epoch {
            volume,
            epoch: Epoch(1),
        };
        let change = |volume| Change::Deallocate {
            volume,
            offset_bytes: 0,
            len_bytes: 4096,
        };
        let commit = [condition(a)];
        client.batch(Commit, &commit, &[change(b)], &[]).await.ok();
        let reply = client
            .batch(Commit, &[condition(b)], &[change(b), change(a)], &[])
            .await;
        assert_eq!(reply.status(), ReadOnly);
        assert_eq!(stage.volume("b").memory.content.borrow().lsn, Lsn(1));
    });
}

#[test]
fn the_revoked_are_denied_from_their_next_request_on() {
    Stage::new(2).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let b = client.open("b", OWNER).await;
        client.write(a, 0, b"before").await.ok();
        stage.node.revoke("a", OWNER);
        for operation in ALL {
            let (header, body, payload) = request(operation, a);
            let reply = client.ask(header, &body, &payload).await;
            assert_eq!(reply.status(), Denied, "{operation}");
            assert_eq!(reply.payload, b"");
        }
        assert_eq!(stage.volume("a").memory.content.borrow().lsn, Lsn(1));
        assert_eq!(client.try_open("a", OWNER, 0).await.status(), Denied);
        // The other tokens, and the other volumes, are as they were; and it can be closed.
        client.open("a", WRITER).await;
        client.write(b, 0, b"x").await.ok();
        client.ask(of(Close, a), &[], &[]).await.ok();
    });
}

#[test]
fn whoever_has_no_right_to_a_volume_learns_nothing() {
    Stage::new(3).run(|stage| async move {
        stage.node.move_to("c", 1);
        let mut client = stage.client().await;
        let header = RequestHeader::of(Open);
        let mut texts = Vec::new();
        // Another volume's key, no such token, no such volume, and a moved one without its key.
        let attempts = [
            ("a", "b", OWNER),
            ("a", "a", 9),
            ("nobody", "a", OWNER),
            ("c", "a", OWNER),
        ];
        for (name, key_of, token) in attempts {
            let target = Target::Name(name);
            let body = client.open_body_of(target, key(key_of, token), token, 0);
            let reply = client.ask(header, &body, &[]).await;
            assert_eq!(reply.status(), Denied, "{name}");
            assert_eq!(reply.header.volume, VolumeNo::NONE);
            texts.push((reply.text().to_owned(), reply.header.lsn, reply.payload));
        }
        // Other flags than those that were proven.
        let body = client.open_body("a", OWNER, flag::READ_ONLY);
        let reply = client.ask(header, &body, &[]).await;
        assert_eq!(reply.status(), Denied);
        texts.push((reply.text().to_owned(), reply.header.lsn, reply.payload));
        texts.dedup();
        assert_eq!(texts.len(), 1, "the same words");
        let lines = [
            "Name(\"a\") 1 wrong-proof",
            "Name(\"a\") 9 unknown-token",
            "Name(\"nobody\") 1 unknown-volume",
            "Name(\"c\") 1 wrong-proof",
            "Name(\"a\") 1 wrong-proof",
        ];
        assert_eq!(*stage.node.audit.borrow(), lines);
        assert_eq!(stage.server.counters().opens_denied, 5);
    });
}

#[test]
fn after_eight_refusals_the_connection_ends() {
    Stage::new(4).run(|stage| async move {
        let (stream, end) = stage.connect(Link::default());
        let client = Client::hello(stream, Default::default()).await;
        let mut client = client.expect("HELLO is answered");
        // Twenty guesses at once.
        stage.node.pause_ns.set(1_000_000);
        let body = client.open_body_of(Target::Name("a"), key("b", OWNER), OWNER, 0);
        for _ in 0..20 {
            client.start(RequestHeader::of(Open), &body, &[]).await;
        }
        let mut denied = 0;
        while let Some(reply) = client.receive().await {
            assert_eq!(reply.status(), Denied);
            denied += 1;
        }
        assert!((8..=20).contains(&denied), "{denied}");
        stage.sleep_ms(1).await;
        assert_eq!(end.get(), Some(CloseReason::Denied));
        // One after another: the ninth is not even asked.
        stage.node.pause_ns.set(0);
        stage.node.asked.set(0);
        let mut client = stage.client().await;
        for _ in 0..8 {
            let body = client.open_body_of(Target::Name("a"), key("b", OWNER), OWNER, 0);
            let reply = client.ask(RequestHeader::of(Open), &body, &[]).await;
            assert_eq!(reply.status(), Denied);
        }
        assert!(client.is_closed().await);
        assert_eq!(stage.node.asked.get(), 8);
    });
}

#[test]
fn guesses_beyond_the_limit_are_not_asked_for() {
    Stage::new(5).run(|stage| async move {
        let mut client = stage.client().await;
        let body = client.open_body_of(Target::Name("a"), key("b", OWNER), OWNER, 0);
        let mut script = Vec::new();
        for _ in 0..30 {
            let header = client.next(RequestHeader::of(Open));
            script.extend(frame(header, &body, &[]));
        }
        // One with a right to it is among them: it is not said to have none.
        let body = client.open_body("a", OWNER, 0);
        let header = client.next(RequestHeader::of(Open));
        script.extend(frame(header, &body, &[]));
        client.send(&script).await;
        let mut statuses = Vec::new();
        while let Some(reply) = client.receive().await {
            statuses.push(reply.status());
        }
        let (refused, unasked) = statuses.split_at(8);
        assert_eq!(refused, [Denied; 8]);
        assert!(
            unasked.iter().all(|&status| status == Status::Busy),
            "{unasked:?}"
        );
        assert_eq!(stage.node.asked.get(), 8);
        let audit = stage.node.audit.borrow();
        let beyond = audit
            .iter()
            .filter(|line| line.ends_with("too-many-refused"));
        assert_eq!(beyond.count() + 8, audit.len());
    });
}

#[test]
fn a_volume_elsewhere_is_a_redirect() {
    Stage::new(6).run(|stage| async move {
        stage.node.move_to("c", 1);
        let mut client = stage.client().await;
        let reply = client.try_open("c", READER, 0).await;
        assert_eq!(reply.status(), Status::Moved);
        let said = Failure::decode(reply.header.status, &reply.body);
        assert_eq!(said, Ok(Failure::Moved(stage.node.addresses[1])));
        stage.volume("b").memory.deleted.set(true);
        assert_eq!(client.try_open("b", READER, 0).await.status(), Status::Gone);
    });
}

#[test]
fn a_volume_can_be_named_by_its_id() {
    Stage::new(7).run(|stage| async move {
        let mut client = stage.client().await;
        let target = Target::Id(DvolId(2));
        let body = client.open_body_of(target, key("b", OWNER), OWNER, 0);
        let reply = client.ask(RequestHeader::of(Open), &body, &[]).await.ok();
        client.write(reply.header.volume, 0, b"by id").await.ok();
        assert_eq!(
            stage.volume("b").memory.content.borrow().bytes[..5],
            *b"by id"
        );
    });
}

#[test]
fn opened_alone_is_for_writers() {
    Stage::new(8).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let mut body = Vec::new();
        encode_snapshots(
            &[NewSnapshot {
                volume: a,
                name: "s",
            }],
            &mut body,
        )
        .expect("one");
        client
            .ask(RequestHeader::of(Snapshot), &body, &[])
            .await
            .ok();
        let attempts = [
            ("a", READER, flag::ALONE, Denied),
            ("a", OWNER, flag::ALONE | flag::READ_ONLY, Status::Invalid),
            ("a@s", OWNER, flag::ALONE, ReadOnly),
        ];
        for (name, token, flags, status) in attempts {
            assert_eq!(
                client.try_open(name, token, flags).await.status(),
                status,
                "{name}"
            );
        }
        let reply = client.ask(of(Describe, a), &[], &[]).await.ok();
        let about = OpenReply::decode(&reply.body).expect("a description");
        assert_eq!(about.epoch, Epoch(1), "nothing was raised");
        client.write(a, 0, b"x").await.ok();
        assert_eq!(stage.server.counters().volumes_open, 1);
        let audit = stage.node.audit.borrow();
        assert_eq!(audit[1..], ["Name(\"a\") 3 kind-of-token"]);
    });
}

#[test]
fn the_audit_log_has_a_line_for_the_first_open_of_a_session() {
    Stage::new(9).run(|stage| async move {
        let mut client = stage.client().await;
        for token in [OWNER, OWNER, READER, OWNER, READER] {
            client.open("a", token).await;
        }
        let session = client.hello.session;
        let mut client = stage.client_of(session).await;
        client.open("a", OWNER).await;
        let mut other = stage.client().await;
        other.open("a", OWNER).await;
        let lines = [
            "Name(\"a\") 1 opened 1",
            "Name(\"a\") 3 opened 1",
            "Name(\"a\") 1 opened 1",
        ];
        assert_eq!(*stage.node.audit.borrow(), lines);
    });
}

#[test]
fn no_more_volumes_than_may_be_open() {
    let mut limits = NativeLimits::default();
    limits.connection.volumes_max = 3;
    Stage::with_limits(10, limits).run(|stage| async move {
        let mut client = stage.client().await;
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(client.open("a", OWNER).await);
        }
        assert_eq!(client.try_open("a", OWNER, 0).await.status(), Status::Limit);
        client.ask(of(Close, open[1]), &[], &[]).await.ok();
        let again = client.open("a", OWNER).await;
        assert!(!open.contains(&again));
        // They come together, and the directory takes its time.
        let mut client = stage.client().await;
        stage.node.pause_ns.set(1_000_000);
        let body = client.open_body("a", OWNER, 0);
        for _ in 0..10 {
            client.start(RequestHeader::of(Open), &body, &[]).await;
        }
        let mut opened = 0;
        for _ in 0..10 {
            match client.receive().await.expect("an answer").status() {
                Fine => opened += 1,
                status => assert_eq!(status, Status::Limit),
            }
        }
        assert_eq!(opened, 3);
    });
}
