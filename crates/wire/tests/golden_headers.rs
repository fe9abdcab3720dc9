//! The golden frames' headers: each is what the values below encode to, and the server lets each
//! request run.

use flagstone_types::checksum::crc32c;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::hello::HELLO_MAGIC;
use flagstone_wire::operation::flag;
use flagstone_wire::{
    InFlight, Limits, Operation, PayloadCrc, ReplyHeader, RequestHeader, Status, Verdict, VolumeNo,
    check, check_hello, check_reply,
};

use crate::support::{Frame, frames};

fn lsn(epoch: u32, counter: u64) -> Lsn {
    Lsn::new(Epoch(epoch), counter)
}

/// What the golden request's header says, without lengths and checksums.
fn request_of(name: &str) -> RequestHeader {
    let bare = |operation, number| RequestHeader {
        number,
        ..RequestHeader::of(operation)
    };
    let of_volume = |operation, number| RequestHeader {
        volume: VolumeNo(3),
        ..bare(operation, number)
    };
    let of_range = |operation, number, offset_bytes, len_bytes| RequestHeader {
        offset_bytes,
        len_bytes,
        ..of_volume(operation, number)
    };
    let with = |header, flags, lsn, unsettled| RequestHeader {
        flags,
        lsn,
        unsettled,
        ..header
    };
    let durable = |header| with(header, flag::DURABLE, Lsn::ZERO, 0);
    let none = Lsn::ZERO;
    match name {
        "hello" => with(bare(Operation::Hello, 0), 0, Lsn(HELLO_MAGIC), 0),
        "open" => with(bare(Operation::Open, 1), flag::ALONE, none, 0),
        "open_id" => with(bare(Operation::Open, 2), flag::READ_ONLY, none, 1),
        "close" => of_volume(Operation::Close, 4),
        "ping" => bare(Operation::Ping, 6),
        "read" => {
            let read = of_range(Operation::Read, 7, 4608, 3072);
            with(read, flag::SPARSE, none, 2)
        }
        "write" => {
            let (flags, metadata) = (flag::DURABLE | flag::METADATA, Lsn(0x1122_3344_5566_7788));
            with(of_range(Operation::Write, 8, 8192, 0), flags, metadata, 0)
        }
        "zero" => {
            let zero = of_range(Operation::Zero, 9, 1 << 20, 1 << 30);
            with(zero, flag::KEEP_SPACE, none, 0)
        }
        "deallocate" => durable(of_range(Operation::Deallocate, 10, 4096, 8192)),
        "flush" => of_volume(Operation::Flush, 11),
        "read_metadata" => of_range(Operation::ReadMetadata, 12, 4096, 8192),
        "compare_and_swap" => durable(of_range(Operation::CompareAndSwap, 13, 512, 4)),
        "commit" => durable(bare(Operation::Commit, 14)),
        "read_if" => bare(Operation::ReadIf, 15),
        "allocation" => of_range(Operation::Allocation, 16, 0, 1 << 40),
        "changed_since" => {
            let question = of_range(Operation::ChangedSince, 17, 4096, 1 << 20);
            with(question, 0, lsn(2, 50), 0)
        }
        "snapshot" => bare(Operation::Snapshot, 18),
        "delete_snapshot" => of_volume(Operation::DeleteSnapshot, 19),
        "roll_back" => of_volume(Operation::RollBack, 20),
        "list_snapshots" => of_volume(Operation::ListSnapshots, 21),
        "resize" => of_range(Operation::Resize, 22, 0, 1 << 41),
        "reserve" => of_range(Operation::Reserve, 23, 0, 1 << 30),
        "set_epoch" => with(of_volume(Operation::SetEpoch, 24), 0, Lsn(3), 0),
        "describe" => of_volume(Operation::Describe, 25),
        "arrive" => with(bare(Operation::Arrive, 26), 0, Lsn(1), 0),
        "arrive_runs" => with(bare(Operation::ArriveRuns, 27), 0, Lsn(1), 0),
        "arrive_step" => with(bare(Operation::ArriveStep, 28), 0, Lsn(2), 0),
        "arrived" => with(bare(Operation::Arrived, 29), 0, Lsn(2), 0),
        "settle" => with(bare(Operation::Settle, 30), flag::ABANDON, none, 0),
        "arrive_step_point" => with(bare(Operation::ArriveStep, 31), 0, Lsn(2), 0),
        "arrive_step_snapshot_point" => with(bare(Operation::ArriveStep, 32), 0, Lsn(2), 0),
        "arrive_again" => with(bare(Operation::ArriveAgain, 33), 0, Lsn(3), 0),
        _ => panic!("no values for the request {name}"),
    }
}

/// What the golden reply's header says besides its request's: status, LSN, wait in microseconds.
fn reply_of(name: &str) -> (&str, Status, Lsn, u32) {
    match name {
        "version" => ("hello", Status::Version, Lsn::ZERO, 0),
        "open" => (name, Status::Ok, lsn(2, 99), 0),
        "denied" => ("open_id", Status::Denied, Lsn::ZERO, 0),
        "hello" | "close" | "ping" | "resize" | "reserve" | "arrive" | "arrive_runs"
        | "arrive_step" | "arrived" | "settle" | "arrive_again" => (name, Status::Ok, Lsn::ZERO, 0),
        "read" => (name, Status::Ok, lsn(2, 99), 1500),
        "moved" => ("read", Status::Moved, Lsn::ZERO, 0),
        "write" => (name, Status::Ok, lsn(2, 100), 0),
        "zero" => (name, Status::Ok, lsn(2, 101), 0),
        "deallocate" | "flush" | "read_metadata" => (name, Status::Ok, lsn(2, 102), 0),
        "compare_and_swap" => (name, Status::NotEqual, lsn(2, 102), 0),
        "condition_failed" => ("commit", Status::ConditionFailed, Lsn::ZERO, 0),
        "delete_snapshot" => (name, Status::NotFound, Lsn::ZERO, 0),
        "commit" | "read_if" | "allocation" | "changed_since" | "snapshot" => {
            (name, Status::Ok, lsn(2, 105), 0)
        }
        "roll_back" | "list_snapshots" | "set_epoch" => (name, Status::Ok, lsn(2, 106), 0),
        "describe" => (name, Status::Ok, lsn(3, 106), 0),
        _ => panic!("no values for the reply {name}"),
    }
}

fn payload_crc(frame: &Frame) -> u32 {
    let mut crc = PayloadCrc::new();
    frame
        .payload()
        .chunks(5)
        .for_each(|part| crc.add_bytes(part));
    crc.value()
}

#[test]
fn requests_are_what_the_page_says() {
    let mut seen = Vec::new();
    for frame in frames().iter().filter(|frame| frame.is_request()) {
        let name = frame.name.strip_suffix("_request").expect("a request");
        let mut header = request_of(name);
        if name == "read" {
            header.patience_ms = 250;
        }
        header.set_body(frame.body());
        header.payload_bytes = frame.payload().len() as u32;
        header.payload_crc = payload_crc(frame);
        assert_eq!(header.encode(), frame.head(), "{name}");
        assert_eq!(frame.request(), header, "{name}");
        assert!(frame.request().check_body(frame.body()), "{name}");
        assert_eq!(crc32c(frame.payload()), header.payload_crc, "{name}");
        seen.extend(header.operation());
    }
    seen.dedup();
    assert_eq!(seen, Operation::ALL);
}

#[test]
fn requests_run() {
    for frame in frames().iter().filter(|frame| frame.is_request()) {
        let header = frame.request();
        let verdict = check(&header, &Limits::default(), &InFlight::default());
        match header.operation().expect("a known one") {
            Operation::Hello => assert_eq!(check_hello(&header), Ok(())),
            operation => assert_eq!(verdict, Verdict::Run(operation)),
        }
    }
}

#[test]
fn replies_are_what_the_page_says() {
    let mut seen = Vec::new();
    for frame in frames().iter().filter(|frame| !frame.is_request()) {
        let name = frame.name.strip_suffix("_reply").expect("a reply");
        let (request, status, lsn, waited_us) = reply_of(name);
        let mut header = ReplyHeader::to(&request_of(request), status);
        header.set_body(frame.body());
        header.payload_bytes = frame.payload().len() as u32;
        header.payload_crc = payload_crc(frame);
        (header.lsn, header.waited_us) = (lsn, waited_us);
        if name == "open" {
            header.volume = VolumeNo(3);
        }
        assert_eq!(header.encode(), frame.head(), "{name}");
        assert_eq!(frame.reply(), header, "{name}");
        assert!(frame.reply().check_body(frame.body()), "{name}");
        assert_eq!(check_reply(&header, &Limits::default()), Ok(()), "{name}");
        assert_eq!(header.status(), Some(status), "{name}");
        seen.extend(header.operation());
    }
    seen.dedup();
    assert_eq!(seen, Operation::ALL);
}
