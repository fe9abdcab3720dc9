//! Tests of request admission: one per duty.

use super::*;
use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};

const SIZE: u64 = 1 << 30;

fn export(mode: ReplyMode) -> ExportView {
    ExportView {
        mode,
        size_bytes: Some(SIZE),
        read_only: false,
        contexts_count: 2,
    }
}

fn request(command: u16, flags: u16, offset_bytes: u64, length_bytes: u64) -> RawRequest {
    RawRequest {
        flags,
        command,
        cookie: 1,
        offset_bytes,
        length_bytes,
    }
}

fn decide(mode: ReplyMode, request: RawRequest) -> Admission {
    admit(&request, &export(mode)).1
}

fn errno(admission: Admission) -> Errno {
    match admission {
        Admission::Answer {
            result: Err(refusal),
            ..
        } => refusal.errno,
        other => panic!("not refused: {other:?}"),
    }
}

const ALL_MODES: [ReplyMode; 3] = [
    ReplyMode::Simple,
    ReplyMode::Structured,
    ReplyMode::Extended,
];

#[test]
fn plain_requests_run() {
    assert_eq!(
        decide(ReplyMode::Structured, request(command::READ, DF, 4096, 512)),
        Admission::Run(Work::Read {
            offset_bytes: 4096,
            len_bytes: 512,
            dont_fragment: true
        })
    );
    let write = Work::Write {
        offset_bytes: 1,
        len_bytes: 3,
        stability: Stability::Stable,
    };
    assert_eq!(
        decide(ReplyMode::Simple, request(command::WRITE, FUA, 1, 3)),
        Admission::Run(write)
    );
    assert_eq!(
        decide(
            ReplyMode::Extended,
            request(command::WRITE, FUA | PAYLOAD_LEN, 1, 3)
        ),
        Admission::Run(write)
    );
    assert_eq!(
        decide(ReplyMode::Extended, request(command::TRIM, 0, 0, SIZE)),
        Admission::Run(Work::Trim {
            offset_bytes: 0,
            len_bytes: SIZE,
            stability: Stability::Unstable
        })
    );
    assert_eq!(
        decide(
            ReplyMode::Structured,
            request(command::BLOCK_STATUS, REQ_ONE, 0, 5)
        ),
        Admission::Run(Work::BlockStatus {
            offset_bytes: 0,
            len_bytes: 5,
            one_extent: true,
            contexts: ContextSet::first(2)
        })
    );
    let flush = request(command::FLUSH, FUA, 77, 99);
    assert_eq!(
        decide(ReplyMode::Simple, flush),
        Admission::Run(Work::Flush)
    );
    let bye = request(command::DISC, 0, 0, 0);
    assert_eq!(decide(ReplyMode::Simple, bye), Admission::Disconnect);
}

// [nbd "Error values"] test unknown commands and flags
#[test]
fn unknown_commands_and_flags() {
    for mode in ALL_MODES {
        for number in [8, 9, 0x100, u16::MAX] {
            assert_eq!(errno(decide(mode, request(number, 0, 0, 0))), Errno::Inval);
        }
        assert_eq!(
            errno(decide(mode, request(command::READ, 1 << 9, 0, 1))),
            Errno::Inval
        );
        assert_eq!(
            errno(decide(mode, request(command::FLUSH, NO_HOLE, 0, 0))),
            Errno::Inval
        );
        assert_eq!(
            errno(decide(mode, request(command::CACHE, REQ_ONE, 0, 1))),
            Errno::Inval
        );
        assert_eq!(
            errno(decide(mode, request(command::TRIM, NO_HOLE, 0, 1))),
            Errno::Inval
        );
        // FUA is valid on every command.
        assert!(matches!(
            decide(mode, request(command::READ, FUA, 0, 1)),
            Admission::Run(Work::Read { .. })
        ));
    }
    assert_eq!(
        errno(decide(ReplyMode::Simple, request(command::READ, DF, 0, 1))),
        Errno::Inval
    );
    let flagged = request(command::WRITE, PAYLOAD_LEN, 0, 7);
    assert_eq!(
        decide(ReplyMode::Structured, flagged),
        Admission::Answer {
            skip_bytes: 7,
            result: Err(UNKNOWN_FLAG)
        },
        "the payload of a compact write follows whatever its flags"
    );
}

// [nbd "Size constraints"] test bounds
#[test]
fn bounds() {
    let cases = [
        (command::READ, Errno::Inval),
        (command::TRIM, Errno::Inval),
        (command::CACHE, Errno::Inval),
        (command::BLOCK_STATUS, Errno::Inval),
        (command::WRITE_ZEROES, Errno::NoSpc),
        (command::WRITE, Errno::NoSpc),
    ];
    for mode in [ReplyMode::Simple, ReplyMode::Structured] {
        for (number, expected) in cases {
            assert_eq!(errno(decide(mode, request(number, 0, SIZE, 1))), expected);
            assert_eq!(
                errno(decide(mode, request(number, 0, SIZE - 1, 2))),
                expected
            );
            assert_eq!(
                errno(decide(mode, request(number, 0, u64::MAX, 1))),
                expected
            );
            let inside = decide(mode, request(number, 0, SIZE - 1, 1));
            assert!(
                !matches!(inside, Admission::Answer { result: Err(_), .. }),
                "{inside:?}"
            );
        }
    }
}

#[test]
fn lengths() {
    let long = u64::from(PAYLOAD_MAX_BYTES) + 1;
    let read = request(command::READ, 0, 0, long);
    assert_eq!(errno(decide(ReplyMode::Simple, read)), Errno::Inval);
    assert_eq!(errno(decide(ReplyMode::Structured, read)), Errno::Overflow);
    for mode in ALL_MODES {
        let flags = if mode == ReplyMode::Extended {
            PAYLOAD_LEN
        } else {
            0
        };
        let write = request(command::WRITE, flags, 0, long);
        assert_eq!(decide(mode, write), Admission::PayloadTooLong);
        let largest = request(command::WRITE, flags, 0, long - 1);
        assert!(matches!(
            decide(mode, largest),
            Admission::Run(Work::Write { .. })
        ));
        for number in [
            command::READ,
            command::TRIM,
            command::WRITE_ZEROES,
            command::CACHE,
        ] {
            let empty = Admission::Answer {
                skip_bytes: 0,
                result: Ok(()),
            };
            assert_eq!(decide(mode, request(number, 0, 0, 0)), empty);
        }
        assert_eq!(
            errno(decide(mode, request(command::BLOCK_STATUS, 0, 0, 0))),
            Errno::Inval
        );
    }
}

// [nbd "Error values"] test EPERM
#[test]
fn read_only_exports() {
    let view = ExportView {
        read_only: true,
        ..export(ReplyMode::Structured)
    };
    for number in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(
            errno(admit(&request(number, 0, 0, 64), &view).1),
            Errno::Perm
        );
    }
    let (_, write) = admit(&request(command::WRITE, 0, 0, 64), &view);
    assert!(
        matches!(write, Admission::Answer { skip_bytes: 64, .. }),
        "the payload is skipped"
    );
    assert!(matches!(
        admit(&request(command::FLUSH, 0, 0, 0), &view).1,
        Admission::Run(Work::Flush)
    ));
}

// [nbd "Request types", NBD_CMD_WRITE_ZEROES] test
#[test]
fn zeroing() {
    let zero = |flags| {
        decide(
            ReplyMode::Simple,
            request(command::WRITE_ZEROES, flags, 0, 8192),
        )
    };
    for (flags, keep_allocated, fast) in [
        (0, false, false),
        (NO_HOLE, true, false),
        (FAST_ZERO, false, true),
    ] {
        let stability = Stability::Unstable;
        assert_eq!(
            zero(flags),
            Admission::Run(Work::WriteZeroes {
                offset_bytes: 0,
                len_bytes: 8192,
                keep_allocated,
                fast,
                stability
            })
        );
    }
    assert_eq!(errno(zero(FAST_ZERO | NO_HOLE)), Errno::NotSup);
}

// [nbd-ext "Request message"] test
#[test]
fn extended_payloads() {
    let mode = ReplyMode::Extended;
    assert_eq!(
        decide(mode, request(command::WRITE, 0, 0, 100)),
        Admission::Answer {
            skip_bytes: 0,
            result: Err(NO_PAYLOAD)
        }
    );
    assert_eq!(
        decide(mode, request(command::READ, PAYLOAD_LEN, 0, 100)),
        Admission::Answer {
            skip_bytes: 100,
            result: Err(UNKNOWN_FLAG)
        }
    );
    assert_eq!(
        decide(mode, request(77, PAYLOAD_LEN, 0, 100)),
        Admission::Answer {
            skip_bytes: 100,
            result: Err(UNKNOWN_COMMAND)
        }
    );
    assert_eq!(
        decide(mode, request(77, PAYLOAD_LEN, 0, u64::MAX)),
        Admission::PayloadTooLong
    );
    let big = ExportView {
        size_bytes: Some(1 << 60),
        ..export(mode)
    };
    assert!(matches!(
        admit(&request(command::WRITE_ZEROES, 0, 0, 1 << 50), &big).1,
        Admission::Run(Work::WriteZeroes {
            len_bytes: 0x4_0000_0000_0000,
            ..
        })
    ));
}

#[test]
fn status_with_chosen_contexts() {
    let mode = ReplyMode::Extended;
    let header = request(command::BLOCK_STATUS, PAYLOAD_LEN, 4096, 12);
    assert_eq!(
        decide(mode, header),
        Admission::StatusPayload { payload_bytes: 12 }
    );
    let too_many = request(command::BLOCK_STATUS, PAYLOAD_LEN, 0, 8 + 4 * 17);
    assert_eq!(errno(decide(mode, too_many)), Errno::Inval);
    let none = ExportView {
        contexts_count: 0,
        ..export(mode)
    };
    assert_eq!(errno(admit(&header, &none).1), Errno::Inval);

    let payload = |len: u64, ids: &[u32]| {
        let mut bytes = len.to_be_bytes().to_vec();
        ids.iter()
            .for_each(|id| bytes.extend_from_slice(&id.to_be_bytes()));
        bytes
    };
    let mut second = ContextSet::empty();
    assert!(second.insert_id(2, 2));
    assert_eq!(
        admit_status(&header, &payload(512, &[2]), &export(mode)),
        Ok(Work::BlockStatus {
            offset_bytes: 4096,
            len_bytes: 512,
            one_extent: false,
            contexts: second
        })
    );
    for bad in [
        payload(512, &[]),
        payload(512, &[0]),
        payload(512, &[3]),
        payload(512, &[1, 1]),
        payload(512, &[1])[..11].to_vec(),
        payload(0, &[1]),
        payload(SIZE, &[1]),
        vec![1, 2, 3],
    ] {
        let refused = admit_status(&header, &bad, &export(mode));
        assert_eq!(refused.expect_err("refused").errno, Errno::Inval, "{bad:?}");
    }
}

// [nbd "Terminating the transmission phase"] test: ESHUTDOWN for every request, however wrong it is.
#[test]
fn a_deleted_export_refuses_everything() {
    for mode in ALL_MODES {
        let gone = ExportView {
            size_bytes: None,
            ..export(mode)
        };
        for number in [0, 1, 3, 4, 5, 6, 7, 8, 99] {
            let payload = if number == command::WRITE && mode == ReplyMode::Extended {
                PAYLOAD_LEN
            } else {
                0
            };
            for (flags, offset_bytes, length_bytes) in [
                (0, 0, 4096),
                (0, 0, 0),
                (FUA, SIZE, 4096),
                (1 << 12, 0, 512),
            ] {
                let asked = request(number, flags | payload, offset_bytes, length_bytes);
                let (_, admission) = admit(&asked, &gone);
                assert_eq!(errno(admission), Errno::Shutdown, "{mode:?} {asked:?}");
                let skipped = match admission {
                    Admission::Answer { skip_bytes, .. } => u64::from(skip_bytes),
                    other => panic!("not an answer: {other:?}"),
                };
                let payload_bytes = if number == command::WRITE {
                    length_bytes
                } else {
                    0
                };
                assert_eq!(skipped, payload_bytes, "the stream stays in step");
            }
        }
        let bye = admit(&request(command::DISC, 0, 0, 0), &gone).1;
        assert_eq!(bye, Admission::Disconnect);
    }
}
