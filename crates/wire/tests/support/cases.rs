//! What the fuzzer runs, and the tests with random bytes: any bytes as any header or body. Nothing
//! panics, and what is accepted is what would be written again.

use std::fmt::Debug;

use flagstone_types::checksum::crc32c;
use flagstone_wire::arrival::{
    Again, Arrive, Settle, Settled, Step, Warrant, decode_arrived, decode_runs, encode_arrived,
    encode_runs,
};
use flagstone_wire::batch::{self, decode_commit, decode_read_if};
use flagstone_wire::failure::Failure;
use flagstone_wire::hello::{HelloReply, HelloRequest};
use flagstone_wire::open::{OpenReply, OpenRequest};
use flagstone_wire::query::{self, Item};
use flagstone_wire::snapshots::{self, Snapshots};
use flagstone_wire::{
    BodyError, InFlight, Limits, Operation, REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, ReplyHeader,
    RequestHeader, Verdict, address, check, check_hello, check_reply,
};

/// Any bytes: the first chooses what they are.
pub(crate) fn any(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    match choice {
        0 => request(rest),
        1 => reply(rest),
        2 => failure(rest),
        3 => assert_same(address::decode(rest), address::encode, address::decode),
        _ => {
            // Bodies by themselves: no checksum and no length has to be right for them.
            let operation = Operation::ALL[usize::from(*choice) % Operation::ALL.len()];
            let (word, body) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], rest));
            let word = u32::from_le_bytes(*word);
            if *choice < 128 {
                request_body(operation, body, word);
            } else {
                reply_body(operation, body, word);
            }
        }
    }
}

/// A header whose checksum is made right, and what a server does about it.
fn request(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<REQUEST_HEADER_BYTES>() else {
        return;
    };
    let _ = RequestHeader::decode(head);
    let mut head = *head;
    seal(&mut head);
    let header = RequestHeader::decode(&head).expect("sealed");
    assert_eq!(header.encode(), head);
    let _ = check_hello(&header);
    match check(&header, &Limits::default(), &InFlight::default()) {
        Verdict::Run(operation) => {
            let bytes = rest.len().min(header.body_bytes as usize);
            let _ = header.check_body(rest);
            request_body(operation, &rest[..bytes], header.payload_bytes);
        }
        Verdict::Refuse {
            complaint,
            skip_bytes,
        } => {
            assert!(!complaint.to_string().is_empty());
            assert_eq!(skip_bytes, header.follow_bytes());
        }
        Verdict::Close(reason) => assert!(!reason.to_string().is_empty()),
    }
}

/// The same for a client.
fn reply(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<REPLY_HEADER_BYTES>() else {
        return;
    };
    let _ = ReplyHeader::decode(head);
    let mut head = *head;
    seal(&mut head);
    let header = ReplyHeader::decode(&head).expect("sealed");
    assert_eq!(header.encode(), head);
    if check_reply(&header, &Limits::default()).is_err() {
        return;
    }
    match (header.operation(), header.status) {
        (Some(operation), 0) => reply_body(operation, rest, header.payload_bytes),
        (_, status) => {
            let _ = said(Failure::decode(status, rest));
        }
    }
}

fn seal(head: &mut [u8]) {
    let at = head.len() - 4;
    let crc = crc32c(&head[..at]);
    head[at..].copy_from_slice(&crc.to_le_bytes());
}

fn failure(bytes: &[u8]) {
    let Some((status, body)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let status = u16::from_le_bytes(*status);
    let write = |failure: Failure<'_>, out: &mut Vec<u8>| failure.encode(out);
    if let Ok(failure) = said(Failure::decode(status, body)) {
        let mut out = Vec::new();
        write(failure, &mut out);
        assert_eq!(Failure::decode(status, &out), Ok(failure));
    }
}

/// A body that a client sent, to a server.
fn request_body(operation: Operation, body: &[u8], payload_bytes: u32) {
    match operation {
        Operation::Hello => {
            if let Ok(hello) = said(HelloRequest::decode(body)) {
                let mut out = Vec::new();
                hello.encode(&mut out);
                assert!(body.starts_with(&out), "the rest is for later versions");
            }
        }
        Operation::Open => {
            let write = |open: OpenRequest<'_>, out: &mut Vec<u8>| open.encode(out);
            is_same(body, OpenRequest::decode(body), write);
        }
        Operation::Commit => {
            // A request can have any payload: that its length fits must not be left to chance.
            for payload_bytes in [payload_bytes, payload_sum(body)] {
                let Ok(commit) = said(decode_commit(body, payload_bytes)) else {
                    continue;
                };
                let conditions = in_order(commit.conditions, 0);
                let changes = in_order(commit.parts, conditions.1);
                assert_eq!(changes.1, payload_bytes as usize);
                let mut out = Vec::new();
                let sum = batch::encode(&conditions.0, &changes.0, &mut out);
                assert_eq!((out.as_slice(), sum), (body, Some(payload_bytes.into())));
            }
        }
        Operation::ReadIf => {
            for payload_bytes in [payload_bytes, payload_sum(body)] {
                let Ok((read_if, _)) = said(decode_read_if(body, payload_bytes, 4 << 20)) else {
                    continue;
                };
                let conditions = in_order(read_if.conditions, 0);
                let ranges = in_order(read_if.parts, conditions.1);
                assert_eq!(ranges.1, payload_bytes as usize);
                let mut out = Vec::new();
                let sum = batch::encode(&conditions.0, &ranges.0, &mut out);
                assert_eq!((out.as_slice(), sum), (body, Some(payload_bytes.into())));
            }
        }
        Operation::Allocation | Operation::ChangedSince => {
            is_same(body, query::decode_runs_max(body), query::encode_runs_max);
        }
        Operation::Snapshot => {
            if let Ok(snapshots) = said(snapshots::decode_snapshots(body)) {
                let count = snapshots.len();
                let snapshots: Vec<_> = snapshots.collect();
                assert_eq!(snapshots.len(), count);
                let mut out = Vec::new();
                snapshots::encode_snapshots(&snapshots, &mut out).expect("they were accepted");
                assert_eq!(out, body);
            }
        }
        Operation::DeleteSnapshot | Operation::RollBack => {
            let _ = said(snapshots::decode_name(body));
        }
        Operation::ListSnapshots => {
            let _ = said(snapshots::decode_after(body));
        }
        Operation::Arrive | Operation::ArriveAgain => {
            let write = |arrive: Arrive<'_>, out: &mut Vec<u8>| arrive.encode(out);
            is_same(body, Arrive::decode(body), write);
        }
        Operation::ArriveRuns => {
            for payload_bytes in [payload_bytes, arriving_sum(body)] {
                if let Ok((warrant, runs)) = said(decode_runs(body, payload_bytes)) {
                    let runs: Vec<_> = runs.collect();
                    let mut out = Vec::new();
                    encode_runs(&warrant, &runs, &mut out);
                    assert_eq!(out, body);
                }
            }
        }
        Operation::ArriveStep => {
            let write = |(warrant, step): (Warrant, Step<'_>), out: &mut Vec<u8>| {
                step.encode(&warrant, out);
            };
            is_same(body, Step::decode(body), write);
        }
        Operation::Arrived => {
            if let Ok((warrant, record)) = said(decode_arrived(body)) {
                let mut out = Vec::new();
                encode_arrived(&warrant, record, &mut out);
                assert_eq!(out, body);
            }
        }
        Operation::Settle => {
            let write = |settle: Settle, out: &mut Vec<u8>| settle.encode(out);
            is_same(body, Settle::decode(body), write);
        }
        _ => {}
    }
}

/// A body that a server sent, to a client. `word` stands for what the client had asked for.
fn reply_body(operation: Operation, body: &[u8], word: u32) {
    match operation {
        Operation::Hello => {
            if let Ok(hello) = said(HelloReply::decode(body)) {
                let addresses: Vec<_> = hello.addresses.clone().collect();
                assert_eq!(addresses.len(), hello.addresses.len());
                let outcomes: Vec<_> = hello.outcomes.clone().collect();
                assert_eq!(outcomes.len(), hello.outcomes.len());
                let mut out = Vec::new();
                let again = outcomes.iter().copied();
                hello.reply.encode(&addresses, again, &mut out);
                // An address can be written in several ways, so the bytes may differ.
                let again = HelloReply::decode(&out).expect("it was accepted");
                assert_eq!(again.reply, hello.reply);
                assert!(again.outcomes.eq(outcomes));
            }
        }
        Operation::Open | Operation::Describe => {
            let write = |open: OpenReply<'_>, out: &mut Vec<u8>| open.encode(out);
            is_same(body, OpenReply::decode(body), write);
        }
        Operation::ArriveAgain => {
            if let Ok(again) = said(Again::decode(body)) {
                let mut out = Vec::new();
                again.encode(&mut out);
                assert_eq!(out, body);
            }
        }
        Operation::Settle => {
            // An address can be written in several ways.
            if let Ok(settled) = said(Settled::decode(body)) {
                let mut out = Vec::new();
                settled.encode(&mut out);
                assert_eq!(Settled::decode(&out), Ok(settled));
            }
        }
        Operation::Read => {
            let asked_bytes = u64::from(word) + body.len() as u64;
            is_list(body, query::decode_sparse_runs(body, asked_bytes, word));
            is_list(body, query::decode_sparse_runs(body, word.into(), word / 2));
        }
        Operation::ReadMetadata => {
            is_list(body, query::decode_metadata(body, body.len() as u64 / 16));
        }
        Operation::Allocation | Operation::ChangedSince => {
            is_list(body, query::decode_runs(body, u64::from(word) << 20, word));
        }
        Operation::Commit | Operation::Snapshot => {
            is_list(body, query::decode_lsns(body, body.len() / 8));
        }
        Operation::ListSnapshots => {
            if let Ok(snapshots) = said(Snapshots::decode(body, "")) {
                let mut out = Vec::new();
                snapshots.for_each(|snapshot| snapshot.encode(&mut out));
                assert_eq!(out, body);
            }
        }
        _ => {}
    }
}

/// How much payload runs that arrive ask for, if they are such.
fn arriving_sum(body: &[u8]) -> u32 {
    match decode_runs(body, u32::MAX).err() {
        Some(BodyError::Sum { found, .. }) => u32::try_from(found).unwrap_or(0),
        _ => 0,
    }
}

/// How much payload the entries of a batch ask for, if they are entries.
fn payload_sum(body: &[u8]) -> u32 {
    let found = |error| match error {
        Some(BodyError::Sum { found, .. }) => u32::try_from(found).ok(),
        _ => None,
    };
    // Each attempt says how much the next entry asks for on top.
    let mut payload_bytes = 0;
    for _ in 0..16 {
        let commit = found(decode_commit(body, payload_bytes).err());
        let read_if = found(decode_read_if(body, payload_bytes, u32::MAX).err());
        match commit.or(read_if) {
            Some(more) => payload_bytes = more,
            None => break,
        }
    }
    payload_bytes
}

/// All entries; the parts of the payload that belong to them follow one another.
fn in_order<E: batch::Entry>(entries: batch::Entries<'_, E>, mut at: usize) -> (Vec<E>, usize) {
    let count = entries.len();
    let mut all = Vec::new();
    for (entry, payload) in entries {
        assert_eq!(payload.len() as u64, entry.payload_bytes());
        assert_eq!(payload.start, at);
        at = payload.end;
        all.push(entry);
    }
    assert_eq!(all.len(), count);
    (all, at)
}

/// The list is written again as it was.
fn is_list<T: Item>(body: &[u8], list: Result<query::Items<'_, T>, BodyError>) {
    if let Ok(list) = said(list) {
        let count = list.len();
        let items: Vec<T> = list.collect();
        assert_eq!(items.len(), count);
        let mut out = Vec::new();
        query::encode(items, &mut out);
        assert_eq!(out, body);
    }
}

/// What was decoded is written again as it was.
fn is_same<T>(body: &[u8], decoded: Result<T, BodyError>, write: impl Fn(T, &mut Vec<u8>)) {
    if let Ok(value) = said(decoded) {
        let mut out = Vec::new();
        write(value, &mut out);
        assert_eq!(out, body);
    }
}

/// What was decoded is written so that it is read again as the same.
fn assert_same<T: Copy + PartialEq + Debug>(
    decoded: Result<T, BodyError>,
    write: impl Fn(T, &mut Vec<u8>),
    read: impl Fn(&[u8]) -> Result<T, BodyError>,
) {
    if let Ok(value) = said(decoded) {
        let mut out = Vec::new();
        write(value, &mut out);
        assert_eq!(read(&out), Ok(value));
    }
}

/// A complaint can be told to people, and has a status.
fn said<T>(decoded: Result<T, BodyError>) -> Result<T, BodyError> {
    if let Err(error) = &decoded {
        assert!(!error.to_string().is_empty());
        assert_ne!(error.status().number(), 0);
    }
    decoded
}
