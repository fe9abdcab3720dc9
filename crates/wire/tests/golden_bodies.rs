//! The golden frames' bodies: each is read as the values below, and written from them.

use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::arrival::{
    Again, Arrive, ArrivingRun, LeftCopy, Settle, Settled, Step, Warrant, decode_arrived,
    decode_runs, encode_arrived, encode_runs,
};
use flagstone_wire::batch::{self, Change, Condition, ReadRange, decode_commit, decode_read_if};
use flagstone_wire::failure::Failure;
use flagstone_wire::hello::{HelloReply, HelloRequest, NodeId, Nonce, Outcome, SessionId};
use flagstone_wire::open::{OpenReply, OpenRequest, Target, open_flag, right};
use flagstone_wire::query::{self, BlockMetadata, Run, SparseRun};
use flagstone_wire::snapshots::{self, NewSnapshot, Snapshot, Snapshots};
use flagstone_wire::{BodyError, Limits, Operation, Status, VolumeNo, address};

use crate::support::{Frame, frame};

const ID: DvolId = DvolId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);

fn lsn(epoch: u32, counter: u64) -> Lsn {
    Lsn::new(Epoch(epoch), counter)
}

/// So many bytes, each one above the one before.
fn rising<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|index| first + index as u8)
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// A body that was cut off anywhere is refused, and so is one with a byte more, but for the lengths in
/// `except`.
fn refused_if_cut<'a, T>(
    frame: &'a Frame,
    except: &[usize],
    read: impl Fn(&'a [u8]) -> Result<T, BodyError>,
) {
    // Bodies are read where they lie, so this one stays.
    let longer: &[u8] = Vec::leak([frame.body(), &[0]].concat());
    for bytes in (0..=longer.len()).filter(|bytes| *bytes != frame.body().len()) {
        let is_refused = read(&longer[..bytes]).is_err();
        let name = frame.name;
        assert_ne!(
            is_refused,
            except.contains(&bytes),
            "{name} of {bytes} bytes"
        );
    }
}

#[test]
fn hello() {
    let frame = frame("hello_request");
    let hello = HelloRequest {
        version_min: 1,
        version_max: 3,
        features: 0,
        session: SessionId(rising(0x10)),
        nonce: Nonce(rising(0x20)),
        name: "fio",
    };
    assert_eq!(written(|out| hello.encode(out)), frame.body());
    assert_eq!(HelloRequest::decode(frame.body()), Ok(hello));
    // A later version may append something.
    refused_if_cut(&frame, &[frame.body().len() + 1], HelloRequest::decode);
    let longer = [frame.body(), b"later"].concat();
    assert_eq!(HelloRequest::decode(&longer), Ok(hello));
    assert_eq!(hello.common_version(1, 1), Some(1));
    assert_eq!(hello.common_version(2, 9), Some(3));
    assert_eq!(hello.common_version(4, 9), None);
}

#[test]
fn hello_reply() {
    let frame = frame("hello_reply");
    let reply = HelloReply {
        version: 1,
        core: 1,
        features: 0,
        node: NodeId(rising(0x40)),
        incarnation: 7,
        session: SessionId(rising(0x10)),
        nonce: Nonce(rising(0x30)),
        limits: Limits::default(),
        arrived: 12,
    };
    let addresses = ["10.0.0.7:4420", "[fd00::7]:4421"];
    let addresses = addresses.map(|text| text.parse().expect("an address"));
    let outcomes = [
        Outcome {
            number: 9,
            lsn: lsn(2, 100),
            operation: Operation::Write,
            status: Status::Ok.number(),
        },
        Outcome {
            number: 11,
            lsn: Lsn::ZERO,
            operation: Operation::Zero,
            status: Status::NoSpace.number(),
        },
    ];
    let body = written(|out| reply.encode(&addresses, outcomes.into_iter(), out));
    assert_eq!(body, frame.body());
    let read = HelloReply::decode(frame.body()).expect("a reply");
    assert_eq!(read.reply, reply);
    assert!(read.addresses.eq(addresses));
    assert!(read.outcomes.eq(outcomes));
    // Outcomes go on to the end of the body; its checksum notices what is missing.
    let whole = frame.body().len();
    refused_if_cut(&frame, &[whole - 48, whole - 24], HelloReply::decode);
}

#[test]
fn open() {
    let named = frame("open_request");
    let mut open = OpenRequest {
        target: Target::Name("vm-1"),
        token: 5,
        proof: rising(0x60),
    };
    assert_eq!(written(|out| open.encode(out)), named.body());
    assert_eq!(OpenRequest::decode(named.body()), Ok(open));
    refused_if_cut(&named, &[], OpenRequest::decode);
    let by_id = frame("open_id_request");
    (open.target, open.token) = (Target::Id(ID), 6);
    assert_eq!(written(|out| open.encode(out)), by_id.body());
    assert_eq!(OpenRequest::decode(by_id.body()), Ok(open));
    refused_if_cut(&by_id, &[], OpenRequest::decode);
    for name in ["open_reply", "describe_reply"] {
        let frame = frame(name);
        let reply = OpenReply {
            id: ID,
            size_bytes: 1 << 40,
            epoch: Epoch(2),
            flags: open_flag::SNAPSHOT,
            rights: right::READ | right::WRITE | right::OWN,
            block_bytes: 4096,
            floor: lsn(1, 5),
            device: DeviceId(0xf0e0_d0c0_b0a0_9080_7060_5040_3020_1000),
            failure_domain: "rack-3",
        };
        assert_eq!(written(|out| reply.encode(out)), frame.body());
        assert_eq!(OpenReply::decode(frame.body()), Ok(reply));
        refused_if_cut(&frame, &[], OpenReply::decode);
    }
}

#[test]
fn arrivals() {
    let warrant = Warrant {
        arrival: 7,
        proof: rising(0x60),
    };
    let begun = frame("arrive_request");
    let arrive = Arrive {
        warrant,
        id: ID,
        size_bytes: 1 << 30,
        reserved_bytes: 4096,
        epoch: Epoch(12),
        highest_layer: LayerNo(5),
        snapshot_count: 3,
        attributes: rising(1),
        name: "vm-1",
    };
    assert_eq!(written(|out| arrive.encode(out)), begun.body());
    assert_eq!(Arrive::decode(begun.body()), Ok(arrive));
    let runs = frame("arrive_runs_request");
    let expected = [
        ArrivingRun {
            offset_bytes: 0,
            len_bytes: 5,
            is_zeros: false,
            metadata: 77,
        },
        ArrivingRun {
            offset_bytes: 8192,
            len_bytes: 1 << 40,
            is_zeros: true,
            metadata: 0,
        },
    ];
    assert_eq!(
        written(|out| encode_runs(&warrant, &expected, out)),
        runs.body()
    );
    assert_eq!(runs.payload(), b"hello");
    let (found, read) = decode_runs(runs.body(), 5).expect("runs");
    assert_eq!(found, warrant);
    assert!(read.eq(expected));
    let stepped = frame("arrive_step_request");
    let step = Step::Snapshot {
        created_ns: 1_700_000_000_000_000_000,
        attributes: rising(2),
        point: None,
        name: "monday",
    };
    assert_eq!(written(|out| step.encode(&warrant, out)), stepped.body());
    assert_eq!(Step::decode(stepped.body()), Ok((warrant, step)));
    let with_point = Step::Snapshot {
        created_ns: 1_700_000_000_000_000_000,
        attributes: rising(2),
        point: Some(rising(0x80)),
        name: "monday",
    };
    for (name, step) in [
        ("arrive_step_point_request", Step::Point(rising(0x80))),
        ("arrive_step_snapshot_point_request", with_point),
    ] {
        let stepped = frame(name);
        assert_eq!(written(|out| step.encode(&warrant, out)), stepped.body());
        assert_eq!(Step::decode(stepped.body()), Ok((warrant, step)));
    }
    let begun_again = frame("arrive_again_request");
    assert_eq!(begun_again.body(), begun.body());
    let goes_on = frame("arrive_again_reply");
    let again = Again {
        attempt: 1 << 32,
        left: Some(LeftCopy {
            point: rising(0x80),
            again: vec![(8192, 4096), (1 << 20, 65536)],
        }),
    };
    assert_eq!(written(|out| again.encode(out)), goes_on.body());
    assert_eq!(Again::decode(goes_on.body()), Ok(again));
    let arrived = frame("arrived_request");
    assert_eq!(
        written(|out| encode_arrived(&warrant, None, out)),
        arrived.body()
    );
    assert_eq!(decode_arrived(arrived.body()), Ok((warrant, None)));
    let at = "10.0.0.8:4420".parse().expect("an address");
    assert_eq!(address::decode(frame("arrived_reply").body()), Ok(at));
    let asked = frame("settle_request");
    let settle = Settle {
        warrant,
        device: DeviceId(0xf0e0_d0c0_b0a0_9080_7060_5040_3020_1000),
        volume: ID,
    };
    assert_eq!(written(|out| settle.encode(out)), asked.body());
    assert_eq!(Settle::decode(asked.body()), Ok(settle));
    let settled = frame("settle_reply");
    assert_eq!(Settled::decode(settled.body()), Ok(Settled::Arrived(at)));
    assert_eq!(
        written(|out| Settled::Arrived(at).encode(out)),
        settled.body()
    );
}

#[test]
fn failures() {
    let cases = [
        ("version_reply", Failure::Versions { min: 1, max: 1 }),
        ("denied_reply", Failure::Sentence("No.")),
        (
            "moved_reply",
            Failure::Moved("10.0.0.8:4420".parse().expect("an address")),
        ),
        ("compare_and_swap_reply", Failure::Sentence("They differ.")),
        ("condition_failed_reply", Failure::Found(lsn(2, 60))),
        ("delete_snapshot_reply", Failure::Sentence("")),
    ];
    for (name, failure) in cases {
        let frame = frame(name);
        let status = frame.reply().status;
        assert_eq!(written(|out| failure.encode(out)), frame.body(), "{name}");
        assert_eq!(Failure::decode(status, frame.body()), Ok(failure), "{name}");
        if !matches!(failure, Failure::Sentence(_)) {
            refused_if_cut(&frame, &[], |body| Failure::decode(status, body));
        }
    }
}

#[test]
fn reads() {
    let frame_of_read = frame("read_reply");
    let runs = [
        SparseRun {
            len_bytes: 16,
            is_zeros: false,
        },
        SparseRun {
            len_bytes: 3056,
            is_zeros: true,
        },
    ];
    assert_eq!(
        written(|out| query::encode(runs, out)),
        frame_of_read.body()
    );
    let read = |body: &[u8]| query::decode_sparse_runs(body, 3072, 16).map(|runs| runs.collect());
    let found: Vec<SparseRun> = read(frame_of_read.body()).expect("runs");
    assert_eq!(found, runs);
    refused_if_cut(&frame_of_read, &[], read);
    assert!(query::decode_sparse_runs(frame_of_read.body(), 3073, 16).is_err());
    assert!(query::decode_sparse_runs(frame_of_read.body(), 3072, 17).is_err());

    let frame = frame("read_metadata_reply");
    let blocks = [
        BlockMetadata {
            lsn: lsn(2, 100),
            metadata: 0x1122_3344_5566_7788,
        },
        BlockMetadata {
            lsn: lsn(1, 7),
            metadata: 0,
        },
    ];
    assert_eq!(written(|out| query::encode(blocks, out)), frame.body());
    let read = |body: &[u8]| query::decode_metadata(body, 2).map(|blocks| blocks.collect());
    let found: Vec<BlockMetadata> = read(frame.body()).expect("metadata");
    assert_eq!(found, blocks);
    refused_if_cut(&frame, &[], read);
}

#[test]
fn questions() {
    let cases = [
        (
            "allocation",
            100,
            vec![(4096, true), ((1 << 40) - 4096, false)],
        ),
        ("changed_since", 1, vec![(8192, true)]),
    ];
    for (name, runs_max, runs) in cases {
        let request = frame(&format!("{name}_request"));
        assert_eq!(
            written(|out| query::encode_runs_max(runs_max, out)),
            request.body()
        );
        assert_eq!(query::decode_runs_max(request.body()), Ok(runs_max));
        refused_if_cut(&request, &[], query::decode_runs_max);
        let reply = frame(&format!("{name}_reply"));
        let runs = runs.into_iter().map(|(len_bytes, is_marked)| Run {
            len_bytes,
            is_marked,
        });
        assert_eq!(
            written(|out| query::encode(runs.clone(), out)),
            reply.body()
        );
        let asked_bytes = request.request().len_bytes;
        let read = |body: &[u8]| {
            query::decode_runs(body, asked_bytes, runs_max).map(|found| found.eq(runs.clone()))
        };
        assert_eq!(read(reply.body()), Ok(true));
        // Fewer runs are an answer, too.
        let shorter: Vec<usize> = (1..runs.len()).map(|count| 8 * count).collect();
        refused_if_cut(&reply, &shorter, read);
    }
}

#[test]
fn commit() {
    let frame_of_commit = frame("commit_request");
    let (a, b) = (VolumeNo(3), VolumeNo(4));
    let conditions = [
        Condition::UnchangedSince {
            volume: a,
            offset_bytes: 0,
            len_bytes: 4096,
            lsn: lsn(2, 50),
        },
        Condition::Equals {
            volume: b,
            offset_bytes: 512,
            len_bytes: 4,
        },
        Condition::Epoch {
            volume: b,
            epoch: Epoch(2),
        },
    ];
    let changes = [
        Change::Write {
            volume: a,
            offset_bytes: 4096,
            len_bytes: 8,
            metadata: 77,
        },
        Change::Deallocate {
            volume: b,
            offset_bytes: 8192,
            len_bytes: 4096,
        },
        Change::SetAttributes { volume: a },
    ];
    let mut body = Vec::new();
    let payload_bytes = batch::encode(&conditions, &changes, &mut body);
    assert_eq!(body, frame_of_commit.body());
    assert_eq!(payload_bytes, Some(76));
    let read = decode_commit(frame_of_commit.body(), 76).expect("a commit");
    let parts = [0..0, 0..4, 4..4];
    assert!(read.conditions.eq(conditions.into_iter().zip(parts)));
    let parts = [4..12, 12..12, 12..76];
    assert!(read.parts.eq(changes.into_iter().zip(parts)));
    refused_if_cut(&frame_of_commit, &[], |body| decode_commit(body, 76));
    for payload_bytes in [0, 4, 12, 75, 77, u32::MAX] {
        assert!(decode_commit(frame_of_commit.body(), payload_bytes).is_err());
    }
    let reply = frame("commit_reply");
    let lsns = [lsn(2, 103), lsn(2, 104), lsn(2, 105)];
    assert_eq!(written(|out| query::encode(lsns, out)), reply.body());
    let read = |body: &[u8]| query::decode_lsns(body, 3).map(|found| found.eq(lsns));
    assert_eq!(read(reply.body()), Ok(true));
    refused_if_cut(&reply, &[], read);
}

#[test]
fn read_if() {
    let frame = frame("read_if_request");
    let conditions = [Condition::Equals {
        volume: VolumeNo(3),
        offset_bytes: 100,
        len_bytes: 3,
    }];
    let ranges = [(3, 200, 5), (4, 0, 2)].map(|(volume, offset_bytes, len_bytes)| ReadRange {
        volume: VolumeNo(volume),
        offset_bytes,
        len_bytes,
    });
    let mut body = Vec::new();
    assert_eq!(batch::encode(&conditions, &ranges, &mut body), Some(3));
    assert_eq!(body, frame.body());
    let (read, asked_bytes) = decode_read_if(frame.body(), 3, 7).expect("a read");
    assert_eq!(asked_bytes, 7);
    let parts = std::iter::once(0..3);
    assert!(read.conditions.eq(conditions.into_iter().zip(parts)));
    assert!(read.parts.eq(ranges.into_iter().zip([3..3, 3..3])));
    refused_if_cut(&frame, &[], |body| decode_read_if(body, 3, 7));
    let too_long = decode_read_if(frame.body(), 3, 6).err().expect("too long");
    assert_eq!(too_long.status(), Status::TooLong);
}

#[test]
fn snapshot() {
    let request = frame("snapshot_request");
    let snapshots = [(3, "monday"), (4, "m")].map(|(volume, name)| NewSnapshot {
        volume: VolumeNo(volume),
        name,
    });
    let mut body = Vec::new();
    snapshots::encode_snapshots(&snapshots, &mut body).expect("good names");
    assert_eq!(body, request.body());
    let read = |body: &[u8]| snapshots::decode_snapshots(body).map(|found| found.eq(snapshots));
    assert_eq!(read(request.body()), Ok(true));
    refused_if_cut(&request, &[], read);
    let reply = frame("snapshot_reply");
    let lsns = [lsn(2, 105), lsn(1, 7)];
    assert_eq!(written(|out| query::encode(lsns, out)), reply.body());
    for (name, expected) in [("delete_snapshot", "sunday"), ("roll_back", "monday")] {
        let request = frame(&format!("{name}_request"));
        assert_eq!(snapshots::decode_name(request.body()), Ok(expected));
    }
}

#[test]
fn list_snapshots() {
    let request = frame("list_snapshots_request");
    assert_eq!(snapshots::decode_after(request.body()), Ok("friday"));
    let reply = frame("list_snapshots_reply");
    let snapshot = Snapshot {
        lsn: lsn(2, 105),
        created_ns: 1_700_000_000_000_000_000,
        size_bytes: 1 << 40,
        name: "monday",
    };
    assert_eq!(written(|out| snapshot.encode(out)), reply.body());
    assert_eq!(snapshot.encoded_bytes(), reply.body().len());
    let found: Vec<Snapshot<'_>> = Snapshots::decode(reply.body(), "friday")
        .expect("a list")
        .collect();
    assert_eq!(found, [snapshot]);
    refused_if_cut(&reply, &[0], |body| Snapshots::decode(body, "friday"));
    // Whoever asks what comes after a name would ask for ever if it came again.
    for after in ["monday", "sunday"] {
        assert!(Snapshots::decode(reply.body(), after).is_err());
    }
}
