//! Bodies: any values survive; counts, lengths and reserved bytes that lie are refused.

use std::net::SocketAddr;

use flagstone_types::{BlockChecksum, DeviceId, DvolId, Epoch, Lsn};
use flagstone_wire::batch::{self, Change, Condition, Entry, ReadRange, decode_commit};
use flagstone_wire::failure::{Failure, SENTENCE_MAX_BYTES};
use flagstone_wire::hello::{HelloReply, HelloRequest, NodeId, Nonce, Outcome, SessionId};
use flagstone_wire::open::{OpenReply, OpenRequest, Target};
use flagstone_wire::query::{self, Run, SparseRun};
use flagstone_wire::snapshots::{self, NewSnapshot, Snapshot, Snapshots};
use flagstone_wire::{BodyError, Limits, Operation, PayloadCrc, Status, VolumeNo, address};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Frame, frame};

/// The frame's body with some bytes replaced.
fn with(frame: &Frame, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut body = frame.body().to_vec();
    body[at..at + bytes.len()].copy_from_slice(bytes);
    body
}

/// Fields of entry `index` of a batch.
fn entry(index: usize, field: usize) -> usize {
    4 + 32 * index + field
}

fn commit_error(body: &[u8]) -> BodyError {
    decode_commit(body, 76).err().expect("refused")
}

#[test]
fn counts_of_a_batch_must_be_true() {
    let commit = frame("commit_request");
    for counts in [
        [2, 3],
        [3, 2],
        [4, 3],
        [3, 4],
        [0, 6],
        [6, 0],
        [0, 0],
        [3, 0],
    ] {
        let counts = [counts[0], 0, counts[1], 0];
        assert!(decode_commit(&with(&commit, 0, &counts), 76).is_err());
    }
    let mut body = Vec::new();
    let range = ReadRange {
        volume: VolumeNo(1),
        offset_bytes: 0,
        len_bytes: 1,
    };
    assert_eq!(batch::encode(&[], &[range; 1025], &mut body), None);
    assert!(body.is_empty());
    assert_eq!(batch::encode(&[], &[range; 1024], &mut body), Some(0));
    assert!(batch::decode_read_if(&body, 0, 1024).is_ok());
    // 1,025 of them, by hand.
    body.extend_from_within(4..36);
    body[2..4].copy_from_slice(&1025_u16.to_le_bytes());
    let error = batch::decode_read_if(&body, 0, 2048)
        .err()
        .expect("too many");
    assert!(
        matches!(error, BodyError::Bounds { max: 1024, .. }),
        "{error}"
    );
    body[..4].fill(0xff);
    assert!(batch::decode_read_if(&body, 0, 2048).is_err());
}

#[test]
fn entries_of_a_batch_must_make_sense() {
    let commit = frame("commit_request");
    for index in 0..6 {
        for kind in [0, 4, 255] {
            let body = with(&commit, entry(index, 0), &[kind]);
            assert!(matches!(commit_error(&body), BodyError::Unknown { .. }));
        }
        for reserved in 1..4 {
            let body = with(&commit, entry(index, reserved), &[1]);
            assert!(matches!(commit_error(&body), BodyError::NotZero { .. }));
        }
        let body = with(&commit, entry(index, 4), &[0; 4]);
        assert_eq!(commit_error(&body).status(), Status::Invalid);
        // No length is right that another field doesn't go with.
        for len in [0, u64::MAX, 1 << 40] {
            let body = with(&commit, entry(index, 16), &len.to_le_bytes());
            // Two have no payload, of which the first begins at 0; the epoch has no length.
            let is_free = matches!(
                (index, len),
                (0, u64::MAX) | (0 | 4, 0x100_0000_0000) | (2, 0)
            );
            assert_eq!(decode_commit(&body, 76).is_ok(), is_free, "{index} {len}");
        }
    }
    // The epoch's offset, and what EQUALS, DEALLOCATE and SET_ATTRIBUTES have at the end.
    for (index, field) in [(2, 8), (1, 24), (4, 24), (5, 24), (5, 8)] {
        let body = with(&commit, entry(index, field), &[1]);
        assert_eq!(commit_error(&body).status(), Status::Invalid);
    }
    let body = with(&commit, entry(2, 24), &(1_u64 << 20).to_le_bytes());
    assert!(matches!(commit_error(&body), BodyError::Bounds { .. }));
    // Not a whole block.
    for field in [8, 16] {
        let body = with(&commit, entry(4, field), &4097_u64.to_le_bytes());
        assert!(matches!(commit_error(&body), BodyError::NotZero { .. }));
    }
    // Beyond everything.
    for index in [0, 1, 3] {
        let body = with(&commit, entry(index, 8), &u64::MAX.to_le_bytes());
        assert_eq!(commit_error(&body).status(), Status::OutOfRange);
    }
}

#[test]
fn lengths_of_names_must_be_true() {
    let open = frame("open_request");
    for bytes in [1_u16, 3, 5, 41, 258, u16::MAX] {
        let body = with(&open, 0, &bytes.to_le_bytes());
        assert!(OpenRequest::decode(&body).is_err(), "{bytes}");
    }
    let snapshot = frame("snapshot_request");
    for count in [0_u16, 1, 3, 1025, u16::MAX] {
        let body = with(&snapshot, 0, &count.to_le_bytes());
        assert!(snapshots::decode_snapshots(&body).is_err(), "{count}");
    }
    for bytes in [0_u16, 5, 7, 129, u16::MAX] {
        let body = with(&snapshot, 6, &bytes.to_le_bytes());
        assert!(snapshots::decode_snapshots(&body).is_err(), "{bytes}");
    }
    assert!(snapshots::decode_name(b"").is_err());
    assert!(snapshots::decode_name(&[b'a'; 129]).is_err());
    assert_eq!(snapshots::decode_after(b""), Ok(""));
    assert!(snapshots::decode_after(&[b'a'; 129]).is_err());
    let not_text = with(&open, 2, &[0xff]);
    assert!(matches!(
        OpenRequest::decode(&not_text),
        Err(BodyError::NotText { .. })
    ));
    let long = "n".repeat(129);
    let mut out = Vec::new();
    for name in ["", long.as_str()] {
        let new = NewSnapshot {
            volume: VolumeNo(1),
            name,
        };
        assert_eq!(snapshots::encode_snapshots(&[new], &mut out), None);
        assert!(out.is_empty());
    }
}

#[test]
fn a_hello_must_make_sense() {
    let hello = frame("hello_request");
    for bytes in [4_u8, 65, 255] {
        assert!(HelloRequest::decode(&with(&hello, 44, &[bytes])).is_err());
    }
    // The lowest version is above the highest.
    assert!(HelloRequest::decode(&with(&hello, 0, &[4])).is_err());
    let reply = frame("hello_reply");
    let whole = reply.body().len();
    let refused = |at: usize, bytes: &[u8]| {
        let body = with(&reply, at, bytes);
        assert!(HelloReply::decode(&body).is_err(), "{at}");
    };
    refused(2, &[2]); // Of two cores.
    refused(4, &[0]);
    refused(4, &[1]);
    refused(4, &[3]);
    for limit in 0..5 {
        refused(70 + 4 * limit, &[0; 4]);
    }
    refused(90, &[10]); // An outcome above the highest number.
    refused(98, &[12]);
    refused(99, b"x");
    let last = whole - 24;
    refused(last, &[9]); // The same number twice.
    refused(last, &[0]);
    refused(last + 16, &[16]); // A read has no outcome.
    refused(last + 16, &[15]);
    for reserved in [17, 20, 21, 22, 23] {
        refused(last + reserved, &[1]);
    }
}

#[test]
fn an_open_volume_must_make_sense() {
    let open = frame("open_reply");
    for (at, bytes) in [
        (27, [1]),
        (28, [4]),
        (31, [1]),
        (30, [8]),
        (60, [5]),
        (60, [7]),
    ] {
        let body = with(&open, at, &bytes);
        assert!(OpenReply::decode(&body).is_err(), "{at}");
    }
    assert!(OpenReply::decode(&with(&open, 32, &[0; 4])).is_err());
}

#[test]
fn runs_must_add_up() {
    let mut body = Vec::new();
    let run = |len_bytes, is_marked| Run {
        len_bytes,
        is_marked,
    };
    query::encode([run(5, true), run(7, false)], &mut body);
    assert!(query::decode_runs(&body, 12, 2).is_ok());
    assert!(query::decode_runs(&body, 100, 100).is_ok());
    assert!(query::decode_runs(&body, 11, 2).is_err());
    assert!(query::decode_runs(&body, 12, 1).is_err());
    assert!(query::decode_runs(&[], 12, 1).is_err());
    assert!(query::decode_runs(&[0; 8], 12, 1).is_err());
    // Many times nearly everything doesn't come to little.
    assert!(query::decode_runs(&[0xff; 80], u64::MAX - 1, 100).is_err());
    assert!(query::decode_runs(&[0xff; 80], 12, 100).is_err());
    assert!(query::decode_sparse_runs(&[0xff; 80], 12, 0).is_err());
    assert!(query::decode_runs_max(&[0; 4]).is_err());
    assert!(query::decode_runs_max(&[1; 5]).is_err());
    assert!(query::decode_lsns(&[0; 16], 1).is_err());
    assert!(query::decode_metadata(&[0; 16], 2).is_err());
}

#[test]
fn lists_of_snapshots_go_on() {
    let snapshot = |name| Snapshot {
        lsn: Lsn(1),
        created_ns: 2,
        size_bytes: 3,
        name,
    };
    let mut body = Vec::new();
    for name in ["a", "b", "b"] {
        snapshot(name).encode(&mut body);
    }
    assert!(Snapshots::decode(&body[..54], "").is_ok());
    let error = Snapshots::decode(&body, "").err().expect("not in order");
    assert!(matches!(error, BodyError::Order { .. }));
}

#[test]
fn sentences_are_cut_between_letters() {
    let long = "ü".repeat(SENTENCE_MAX_BYTES);
    let mut body = Vec::new();
    Failure::Sentence(&long).encode(&mut body);
    assert_eq!(body.len(), SENTENCE_MAX_BYTES);
    let status = Status::Device.number();
    let read = |body| Failure::decode(status, body).expect("any bytes are a sentence");
    assert_eq!(read(&body), Failure::Sentence(&long[..SENTENCE_MAX_BYTES]));
    assert_eq!(read(b"no \xff text"), Failure::Sentence("no "));
    let unknown = Failure::decode(999, b"later");
    assert_eq!(unknown, Ok(Failure::Sentence("later")));
}

#[test]
fn addresses_are_addresses() {
    for text in [
        "",
        "localhost:1",
        "10.0.0.7",
        "10.0.0.7:65536",
        "[::1]",
        " 10.0.0.7:1",
    ] {
        let body = [&[text.len() as u8], text.as_bytes()].concat();
        assert!(address::decode(&body).is_err(), "{text}");
    }
    let longest: SocketAddr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535"
        .parse()
        .expect("an address");
    let mut body = Vec::new();
    address::encode(longest, &mut body);
    assert_eq!(address::decode(&body), Ok(longest));
    body.push(0);
    assert_eq!(
        address::decode(&body),
        Err(BodyError::GoesOn { extra_bytes: 1 })
    );
}

fn any_volume() -> impl Strategy<Value = VolumeNo> {
    (1_u32..).prop_map(VolumeNo)
}

/// Offset and length of a range that can be, with little payload.
fn any_range() -> impl Strategy<Value = (u64, u64)> {
    (0..u64::MAX - 100_000, 1_u64..100_000)
}

fn any_condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        (any_volume(), any_range(), any::<u64>()).prop_map(|(volume, range, lsn)| {
            Condition::UnchangedSince {
                volume,
                offset_bytes: range.0,
                len_bytes: range.1,
                lsn: Lsn(lsn),
            }
        }),
        (any_volume(), any_range()).prop_map(|(volume, range)| Condition::Equals {
            volume,
            offset_bytes: range.0,
            len_bytes: range.1,
        }),
        (any_volume(), 0..=Epoch::MAX.0).prop_map(|(volume, epoch)| Condition::Epoch {
            volume,
            epoch: Epoch(epoch),
        }),
    ]
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any_volume(), any_range(), any::<u64>()).prop_map(|(volume, range, metadata)| {
            Change::Write {
                volume,
                offset_bytes: range.0,
                len_bytes: range.1,
                metadata,
            }
        }),
        (any_volume(), 0_u64..1 << 40, 1_u64..1 << 40).prop_map(|(volume, from, count)| {
            Change::Deallocate {
                volume,
                offset_bytes: from * 4096,
                len_bytes: count * 4096,
            }
        }),
        any_volume().prop_map(|volume| Change::SetAttributes { volume }),
    ]
}

prop_compose! {
    fn any_limits()(numbers in any::<[u32; 5]>()) -> Limits {
        let [a, b, c, d, e] = numbers.map(|number| number.max(1));
        Limits {
            requests_max: a,
            payload_in_flight_max_bytes: b,
            payload_max_bytes: c,
            body_max_bytes: d,
            volumes_max: e,
        }
    }
}

prop_compose! {
    fn any_outcomes()(
        outcomes in vec((1_u64..100, any::<u64>(), any::<u16>(), any::<prop::sample::Index>()), 0..30),
    ) -> Vec<Outcome> {
        let changes: Vec<Operation> = Operation::ALL
            .iter()
            .copied()
            .filter(|operation| operation.is_change())
            .collect();
        let mut number = 0;
        let next = |(step, lsn, status, which): (u64, u64, u16, prop::sample::Index)| {
            number += step;
            Outcome { number, lsn: Lsn(lsn), operation: *which.get(&changes), status }
        };
        outcomes.into_iter().map(next).collect()
    }
}

proptest! {
    #[test]
    fn commits_survive(
        conditions in vec(any_condition(), 0..20),
        changes in vec(any_change(), 1..20),
    ) {
        let mut body = Vec::new();
        let sum = batch::encode(&conditions, &changes, &mut body).expect("few entries");
        let commit = decode_commit(&body, sum as u32).expect("what was written");
        let parts = commit.conditions.clone().map(|(_, part)| part)
            .chain(commit.parts.clone().map(|(_, part)| part));
        let mut at = 0;
        for part in parts {
            prop_assert_eq!(part.start, at);
            at = part.end;
        }
        prop_assert_eq!(at as u64, sum);
        let lengths = commit.parts.clone().map(|(_, part)| part.len() as u64);
        prop_assert!(lengths.eq(changes.iter().map(Entry::payload_bytes)));
        prop_assert!(commit.conditions.map(|(condition, _)| condition).eq(conditions));
        prop_assert!(commit.parts.map(|(change, _)| change).eq(changes));
        prop_assert!(decode_commit(&body, sum as u32 + 1).is_err());
        prop_assert!(decode_commit(&body[..body.len() - 1], sum as u32).is_err());
    }

    #[test]
    fn hellos_survive(
        versions in any::<(u16, u16)>(),
        (features, session, nonce) in any::<(u64, [u8; 16], [u8; 16])>(),
        name in "\\PC{0,16}",
    ) {
        let hello = HelloRequest {
            version_min: versions.0.min(versions.1),
            version_max: versions.0.max(versions.1),
            features,
            session: SessionId(session),
            nonce: Nonce(nonce),
            name: &name,
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        prop_assert_eq!(HelloRequest::decode(&body), Ok(hello));
    }

    #[test]
    fn hello_replies_survive(
        (version, core, features, incarnation) in any::<(u16, u16, u64, u64)>(),
        (node, session, nonce) in any::<([u8; 16], [u8; 16], [u8; 16])>(),
        limits in any_limits(),
        addresses in vec(any::<SocketAddr>(), 1..20),
        outcomes in any_outcomes(),
    ) {
        // A flow label is not part of an address as text.
        let plain = |address: SocketAddr| address.to_string().parse().expect("an address");
        let addresses: Vec<SocketAddr> = addresses.into_iter().map(plain).collect();
        let reply = HelloReply {
            version,
            core: core % addresses.len() as u16,
            features,
            node: NodeId(node),
            incarnation,
            session: SessionId(session),
            nonce: Nonce(nonce),
            limits,
            arrived: outcomes.last().map_or(0, |outcome| outcome.number),
        };
        let mut body = Vec::new();
        reply.encode(&addresses, outcomes.iter().copied(), &mut body);
        let read = HelloReply::decode(&body).expect("what was written");
        prop_assert_eq!(read.reply, reply);
        prop_assert!(read.addresses.eq(addresses));
        prop_assert!(read.outcomes.eq(outcomes));
    }

    #[test]
    fn opens_survive(
        name in "\\PC{1,64}",
        (id, by_id, token, proof) in any::<(u128, bool, u32, [u8; 32])>(),
        (size_bytes, epoch, floor, device) in any::<(u64, u32, u64, u128)>(),
        (flags, rights, block_bytes) in any::<(u16, u16, u32)>(),
    ) {
        let id = DvolId(id);
        let target = if by_id { Target::Id(id) } else { Target::Name(&name) };
        let open = OpenRequest { target, token, proof };
        let mut body = Vec::new();
        open.encode(&mut body);
        prop_assert_eq!(OpenRequest::decode(&body), Ok(open));
        let reply = OpenReply {
            id,
            size_bytes,
            epoch: Epoch(epoch & Epoch::MAX.0),
            flags: flags & 3,
            rights: rights & 7,
            block_bytes: block_bytes.max(1),
            floor: Lsn(floor),
            device: DeviceId(device),
            failure_domain: name.get(..9).unwrap_or_default(),
        };
        body.clear();
        reply.encode(&mut body);
        prop_assert_eq!(OpenReply::decode(&body), Ok(reply));
    }

    #[test]
    fn sparse_runs_survive(runs in vec((1_u32..1 << 31, any::<bool>()), 0..40)) {
        let runs: Vec<SparseRun> = runs.into_iter()
            .map(|(len_bytes, is_zeros)| SparseRun { len_bytes: len_bytes >> 6 | 1, is_zeros })
            .collect();
        let length = |zeros: bool| runs.iter()
            .filter(|run| !run.is_zeros || zeros)
            .map(|run| u64::from(run.len_bytes))
            .sum::<u64>();
        let mut body = Vec::new();
        query::encode(runs.iter().copied(), &mut body);
        let read = query::decode_sparse_runs(&body, length(true), length(false) as u32);
        prop_assert!(read.expect("what was written").eq(runs));
    }

    #[test]
    fn a_payload_in_pieces_has_the_checksum_of_the_whole(
        head in vec(any::<u8>(), 0..4096),
        blocks in vec(any::<u8>(), 0..4),
        hole_bytes in 0_usize..9000,
        tail in vec(any::<u8>(), 0..4096),
    ) {
        let mut whole = head.clone();
        let mut crc = PayloadCrc::new();
        crc.add_bytes(&head);
        for fill in blocks {
            let block: Vec<u8> = (0..4096_usize).map(|at| (at as u8).wrapping_mul(fill)).collect();
            crc.add_block(BlockChecksum::of(&block));
            whole.extend(block);
        }
        crc.add_zeros(hole_bytes as u64);
        whole.resize(whole.len() + hole_bytes, 0);
        crc.add(BlockChecksum::of(&tail).0, tail.len() as u64);
        whole.extend(&tail);
        prop_assert_eq!(crc.value(), BlockChecksum::of(&whole).0);
    }
}
