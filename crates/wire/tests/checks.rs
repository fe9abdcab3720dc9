//! What a server does about headers, and a client about replies.

use flagstone_types::Lsn;
use flagstone_wire::operation::{PING_MAX_BYTES, flag};
use flagstone_wire::{
    CloseReason, Complaint, InFlight, Limits, Operation, ReplyHeader, RequestHeader, Status,
    Verdict, VolumeNo, check, check_hello, check_number, check_reply,
};

use crate::support::{Frame, frame, frames};

/// A request that runs, changed.
fn changed(name: &str, change: impl FnOnce(&mut RequestHeader)) -> RequestHeader {
    let mut header = frame(name).request();
    change(&mut header);
    header
}

fn verdict(header: &RequestHeader) -> Verdict {
    check(header, &Limits::default(), &InFlight::default())
}

/// It is refused with this status, and what follows it is skipped.
fn refused(header: &RequestHeader, status: Status) {
    match verdict(header) {
        Verdict::Refuse {
            complaint,
            skip_bytes,
        } => {
            assert_eq!(complaint.status(), status, "{complaint}");
            let follow_bytes = header.body_bytes + header.payload_bytes;
            assert_eq!(skip_bytes, u64::from(follow_bytes));
        }
        other => panic!("{other:?}, expected {status}"),
    }
}

fn closed(header: &RequestHeader, reason: CloseReason) {
    assert_eq!(verdict(header), Verdict::Close(reason));
}

fn requests() -> impl Iterator<Item = Frame> {
    let frames = frames().into_iter();
    frames.filter(|frame| frame.is_request() && frame.name != "hello_request")
}

#[test]
fn unknown_operations_are_answered() {
    for number in 0..=u8::MAX {
        if Operation::from_number(number).is_none() {
            let header = changed("write_request", |header| header.operation = number);
            refused(&header, Status::Invalid);
            assert_eq!(ReplyHeader::to(&header, Status::Invalid).operation, number);
        }
    }
}

#[test]
fn each_flag_is_known_or_refused() {
    for frame in requests() {
        let mut header = frame.request();
        let operation = header.operation().expect("known");
        let lsn = header.lsn;
        for bit in (0..8).map(|bit| 1 << bit) {
            header.flags = bit;
            // Without the flag for it, a write has no metadata.
            let is_bare_write = operation == Operation::Write && bit != flag::METADATA;
            header.lsn = if is_bare_write { Lsn::ZERO } else { lsn };
            if operation.flags() & bit == 0 {
                refused(&header, Status::Invalid);
            } else {
                assert_eq!(verdict(&header), Verdict::Run(operation));
            }
        }
    }
}

#[test]
fn what_has_no_use_is_zero() {
    for frame in requests() {
        let golden = frame.request();
        let operation = golden.operation().expect("known");
        let uses_offset = golden.offset_bytes != 0 || operation == Operation::Allocation;
        let with = |change: &dyn Fn(&mut RequestHeader)| {
            let mut header = golden;
            change(&mut header);
            header
        };
        if golden.volume == VolumeNo::NONE {
            refused(&with(&|header| header.volume.0 = 9), Status::Invalid);
        } else {
            refused(&with(&|header| header.volume.0 = 0), Status::NoVolume);
        }
        if !uses_offset {
            refused(&with(&|header| header.offset_bytes = 4096), Status::Invalid);
        }
        if golden.len_bytes == 0 {
            refused(&with(&|header| header.len_bytes = 4096), Status::Invalid);
        }
        // Whoever opens a volume again says in which epoch it was held.
        if golden.lsn == Lsn::ZERO && operation != Operation::Open {
            refused(&with(&|header| header.lsn = Lsn(1)), Status::Invalid);
        }
        if golden.body_bytes == 0 {
            refused(&with(&|header| header.body_bytes = 1), Status::Invalid);
        }
        let by_body = matches!(operation, Operation::Commit | Operation::ReadIf);
        if golden.payload_bytes == 0 && !by_body {
            refused(&with(&|header| header.payload_bytes = 1), Status::Invalid);
        }
    }
}

#[test]
fn metadata_goes_with_its_flag() {
    let header = changed("write_request", |header| header.flags = flag::DURABLE);
    refused(&header, Status::Invalid);
    let golden = frame("write_request").request();
    assert_eq!(golden.metadata(), Some(0x1122_3344_5566_7788));
    assert_eq!(header.metadata(), None);
}

#[test]
fn ranges_of_nothing_are_refused() {
    for name in [
        "read",
        "zero",
        "deallocate",
        "read_metadata",
        "compare_and_swap",
        "allocation",
        "changed_since",
    ] {
        let header = changed(&format!("{name}_request"), |header| header.len_bytes = 0);
        refused(&header, Status::Invalid);
    }
    refused(
        &changed("write_request", |header| header.payload_bytes = 0),
        Status::Invalid,
    );
    // No reservation is one as well.
    let header = changed("reserve_request", |header| header.len_bytes = 0);
    assert_eq!(verdict(&header), Verdict::Run(Operation::Reserve));
}

#[test]
fn ranges_beyond_everything_are_refused() {
    for name in ["read", "zero", "deallocate", "read_metadata", "write"] {
        let header = changed(&format!("{name}_request"), |header| {
            header.offset_bytes = u64::MAX - 7;
            header.len_bytes = if name == "write" { 0 } else { 8192 };
        });
        refused(&header, Status::OutOfRange);
    }
    let header = changed("allocation_request", |header| {
        (header.offset_bytes, header.len_bytes) = (1, u64::MAX);
    });
    refused(&header, Status::OutOfRange);
}

#[test]
fn blocks_are_whole() {
    for (offset_bytes, len_bytes) in [(1, 4096), (4096, 4095), (512, 4096 - 512)] {
        let header = changed("read_metadata_request", |header| {
            (header.offset_bytes, header.len_bytes) = (offset_bytes, len_bytes);
        });
        refused(&header, Status::Invalid);
    }
    for (offset_bytes, len_bytes, runs) in [
        (0, 4096, true),
        (4095, 1, true),
        (4095, 2, false),
        (0, 4097, false),
        (0, u64::MAX, false),
        (8192, 4096, true),
    ] {
        let header = changed("compare_and_swap_request", |header| {
            (header.offset_bytes, header.len_bytes) = (offset_bytes, len_bytes);
            header.payload_bytes = 2 * len_bytes.min(4097) as u32;
        });
        if runs {
            assert_eq!(verdict(&header), Verdict::Run(Operation::CompareAndSwap));
        } else {
            refused(&header, Status::Invalid);
        }
    }
    let header = changed("compare_and_swap_request", |header| {
        header.payload_bytes = 7;
    });
    refused(&header, Status::Invalid);
}

#[test]
fn bodies_have_their_length() {
    for (name, body_bytes) in [
        ("open", 38),
        ("open", 296),
        ("commit", 3),
        ("allocation", 3),
        ("changed_since", 5),
        ("snapshot", 8),
        ("delete_snapshot", 0),
        ("roll_back", 129),
        ("list_snapshots", 129),
    ] {
        let header = changed(&format!("{name}_request"), |header| {
            header.body_bytes = body_bytes;
        });
        refused(&header, Status::Invalid);
    }
    let longest = changed("list_snapshots_request", |header| header.body_bytes = 128);
    assert_eq!(verdict(&longest), Verdict::Run(Operation::ListSnapshots));
}

#[test]
fn epochs_fit() {
    let with = |epoch| changed("set_epoch_request", |header| header.lsn = Lsn(epoch));
    assert_eq!(with((1 << 20) - 1).epoch().0, (1 << 20) - 1);
    assert_eq!(
        verdict(&with((1 << 20) - 1)),
        Verdict::Run(Operation::SetEpoch)
    );
    refused(&with(1 << 20), Status::Invalid);
    refused(&with(u64::MAX), Status::Invalid);
}

#[test]
fn what_is_too_long_to_be_read() {
    let limits = Limits::default();
    let with = |len_bytes| changed("read_request", |header| header.len_bytes = len_bytes);
    assert_eq!(verdict(&with(4 << 20)), Verdict::Run(Operation::Read));
    refused(&with((4 << 20) + 1), Status::TooLong);
    refused(&with(1 << 60), Status::TooLong);
    let header = changed("read_metadata_request", |header| header.len_bytes = 8 << 20);
    refused(&header, Status::TooLong);
    let header = changed("ping_request", |header| {
        header.payload_bytes = PING_MAX_BYTES + 1;
    });
    refused(&header, Status::Invalid);
    // Nobody has to send or keep a byte for these.
    let header = changed("zero_request", |header| header.len_bytes = 1 << 60);
    assert_eq!(
        check(&header, &limits, &full(0, 16 << 20)),
        Verdict::Run(Operation::Zero)
    );
}

fn full(requests: u32, payload_bytes: u64) -> InFlight {
    InFlight {
        requests,
        payload_bytes,
    }
}

#[test]
fn limits_end_the_connection() {
    let limits = Limits::default();
    let (body, payload) = (64 << 10, 4 << 20);
    closed(
        &changed("commit_request", |header| header.body_bytes = body + 1),
        CloseReason::BodyTooLong(body + 1, body),
    );
    closed(
        &changed("write_request", |header| header.payload_bytes = payload + 1),
        CloseReason::PayloadTooLong(payload + 1, payload),
    );
    // What is refused may still not be longer than what may be sent.
    closed(
        &changed("write_request", |header| {
            (header.operation, header.payload_bytes) = (255, u32::MAX);
        }),
        CloseReason::PayloadTooLong(u32::MAX, payload),
    );
    let flush = frame("flush_request").request();
    assert_eq!(
        check(&flush, &limits, &full(1023, 0)),
        Verdict::Run(Operation::Flush)
    );
    let too_many = Verdict::Close(CloseReason::TooManyRequests(1024));
    assert_eq!(check(&flush, &limits, &full(1024, 0)), too_many);
    let header = changed("hello_request", |header| header.number = 1);
    closed(&header, CloseReason::SecondHello);
}

#[test]
fn payload_in_flight_is_that_of_both_ways() {
    let limits = Limits::default();
    let all = u64::from(limits.payload_in_flight_max_bytes);
    for (name, own_bytes) in [
        ("write", 9),
        ("read", 3072),
        ("compare_and_swap", 12),
        ("ping", 8),
    ] {
        let header = frame(&format!("{name}_request")).request();
        let operation = header.operation().expect("known");
        assert_eq!(
            check(&header, &limits, &full(1, all - own_bytes)),
            Verdict::Run(operation)
        );
        let reason = CloseReason::TooMuchPayload(all + 1, limits.payload_in_flight_max_bytes);
        assert_eq!(
            check(&header, &limits, &full(1, all - own_bytes + 1)),
            Verdict::Close(reason)
        );
        let no_overflow = check(&header, &limits, &full(1, u64::MAX));
        assert!(matches!(no_overflow, Verdict::Close(_)));
    }
}

#[test]
fn unsettled_numbers_have_an_end() {
    let with = |number, unsettled| {
        changed("flush_request", |header| {
            (header.number, header.unsettled) = (number, unsettled);
        })
    };
    assert_eq!(verdict(&with(5000, 1023)), Verdict::Run(Operation::Flush));
    closed(&with(5000, 1024), CloseReason::Unsettled(1024, 1023));
    assert_eq!(verdict(&with(3, 2)), Verdict::Run(Operation::Flush));
    closed(&with(3, 3), CloseReason::Unsettled(3, 2));
    closed(&with(0, 1), CloseReason::Unsettled(1, 0));
    closed(
        &with(u64::MAX, u32::MAX),
        CloseReason::Unsettled(u32::MAX, 1023),
    );
}

#[test]
fn numbers_have_no_gaps() {
    let with = |number| changed("flush_request", |header| header.number = number);
    assert_eq!(check_number(&with(1), 0), Ok(()));
    assert_eq!(check_number(&with(8), 7), Ok(()));
    for (number, arrived) in [(0, 0), (2, 0), (7, 7), (9, 7), (6, 7), (u64::MAX, u64::MAX)] {
        let reason = CloseReason::Number(number, u64::saturating_add(arrived, 1));
        assert_eq!(check_number(&with(number), arrived), Err(reason));
    }
}

#[test]
fn the_first_request_is_hello() {
    for frame in requests() {
        let header = frame.request();
        let reason = CloseReason::NoHello(header.operation);
        assert_eq!(check_hello(&header), Err(reason));
    }
    let refused = |change: fn(&mut RequestHeader)| {
        check_hello(&changed("hello_request", change)).expect_err("no HELLO of ours")
    };
    assert!(matches!(
        refused(|hello| hello.lsn.0 ^= 1),
        CloseReason::NotOurs(_)
    ));
    let long = refused(|hello| hello.body_bytes = 1025);
    assert_eq!(long, CloseReason::BodyTooLong(1025, 1024));
    let long = refused(|hello| hello.payload_bytes = 1);
    assert_eq!(long, CloseReason::PayloadTooLong(1, 0));
    // A later version may do more in the header than this one knows of.
    let later = changed("hello_request", |hello| {
        (hello.flags, hello.len_bytes) = (1, 1)
    });
    assert_eq!(check_hello(&later), Ok(()));
}

#[test]
fn hello_is_told_from_tls() {
    // A TLS connection begins with this byte.
    assert_ne!(frame("hello_request").head()[0], 0x16);
    assert_eq!(frame("hello_request").head()[0], Operation::Hello.number());
}

#[test]
fn replies_have_limits() {
    let limits = Limits::default();
    let with = |change: fn(&mut ReplyHeader)| {
        let mut header = frame("read_reply").reply();
        change(&mut header);
        check_reply(&header, &limits)
    };
    assert_eq!(with(|reply| reply.payload_bytes = 4 << 20), Ok(()));
    assert!(with(|reply| reply.payload_bytes = (4 << 20) + 1).is_err());
    assert_eq!(with(|reply| reply.body_bytes = 64 << 10), Ok(()));
    assert!(with(|reply| reply.body_bytes = (64 << 10) + 1).is_err());
    assert_eq!(
        with(|reply| reply.flags = 1),
        Err(CloseReason::ReplyFlags(1))
    );
    // Statuses of later versions are for the caller.
    assert_eq!(with(|reply| reply.status = 999), Ok(()));
    let hello = |body_bytes| {
        let mut header = frame("hello_reply").reply();
        header.body_bytes = body_bytes;
        check_reply(&header, &limits)
    };
    assert_eq!(hello(1 << 20), Ok(()));
    assert!(hello((1 << 20) + 1).is_err());
}

#[test]
fn complaints_are_sentences_with_facts() {
    let text = Complaint::TooLong(Operation::Read, 5, 4).to_string();
    assert_eq!(text, "READ of 5 bytes; at most 4 at a time");
    let text = CloseReason::NoHello(22).to_string();
    assert_eq!(text, "the first request is operation 22, and must be HELLO");
}
