//! Tests of results: golden bytes of every procedure, and the shape of every failure.

use super::*;
use crate::nfs3::wire::attributes::{Before, DeviceNumber, FileType};
use crate::xdr::padding;

const ATTRIBUTES: Attributes = Attributes {
    kind: FileType::Regular,
    mode: 0o644,
    links: 1,
    uid: 1000,
    gid: 100,
    size_bytes: 0x0102_0304_0506_0708,
    used_bytes: 4096,
    device: DeviceNumber { major: 8, minor: 1 },
    filesystem: 7,
    file: 9,
    accessed: Time {
        seconds: 1,
        nanoseconds: 2,
    },
    modified: Time {
        seconds: 3,
        nanoseconds: 4,
    },
    changed: Time {
        seconds: 5,
        nanoseconds: 6,
    },
};

/// [rfc1813 2.5, fattr3] test
const ATTRIBUTE_BYTES: [u8; 84] = [
    0, 0, 0, 1, // regular
    0, 0, 1, 0xa4, // mode
    0, 0, 0, 1, // names
    0, 0, 3, 0xe8, // uid
    0, 0, 0, 100, // gid
    1, 2, 3, 4, 5, 6, 7, 8, // size
    0, 0, 0, 0, 0, 0, 0x10, 0, // used
    0, 0, 0, 8, 0, 0, 0, 1, // device
    0, 0, 0, 0, 0, 0, 0, 7, // filesystem
    0, 0, 0, 0, 0, 0, 0, 9, // file
    0, 0, 0, 1, 0, 0, 0, 2, // accessed
    0, 0, 0, 3, 0, 0, 0, 4, // modified
    0, 0, 0, 5, 0, 0, 0, 6, // changed
];

const YES: [u8; 4] = [0, 0, 0, 1];
const NO: [u8; 4] = [0, 0, 0, 0];
const STATUS_OK: [u8; 4] = [0, 0, 0, 0];

/// Size, modified and changed of the same file.
const BEFORE_BYTES: [u8; 24] = [
    1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6,
];

fn both() -> Changes {
    Changes {
        before: Some(Before::of(&ATTRIBUTES)),
        after: Some(ATTRIBUTES),
    }
}

fn both_bytes() -> Vec<u8> {
    [&YES[..], &BEFORE_BYTES, &YES, &ATTRIBUTE_BYTES].concat()
}

fn golden(put: impl FnOnce(&mut Writer<'_>), parts: &[&[u8]]) {
    let mut out = Vec::new();
    put(&mut Writer::new(&mut out));
    assert_eq!(out, parts.concat());
}

/// [rfc1813 3.3.1] test
#[test]
fn getattr() {
    let parts = [&STATUS_OK[..], &ATTRIBUTE_BYTES];
    golden(|out| put_getattr(out, &ATTRIBUTES), &parts);
}

/// [rfc1813 3.3.2] [rfc1813 3.3.12] [rfc1813 3.3.13] test
#[test]
fn changed() {
    golden(
        |out| put_changed(out, &both()),
        &[&STATUS_OK, &both_bytes()],
    );
    golden(|out| put_changed(out, &UNKNOWN), &[&STATUS_OK, &NO, &NO]);
}

/// [rfc1813 3.3.3] test
#[test]
fn lookup() {
    golden(
        |out| put_lookup(out, b"handle", Some(&ATTRIBUTES), None),
        &[
            &STATUS_OK,
            &[0, 0, 0, 6],
            b"handle\0\0",
            &YES,
            &ATTRIBUTE_BYTES,
            &NO,
        ],
    );
}

/// [rfc1813 3.3.4] [rfc1813 3.3.5] test
#[test]
fn access_and_readlink() {
    golden(
        |out| put_access(out, None, 0x1f),
        &[&STATUS_OK, &NO, &[0, 0, 0, 0x1f]],
    );
    golden(
        |out| put_readlink(out, None, b"to"),
        &[&STATUS_OK, &NO, &[0, 0, 0, 2, b't', b'o', 0, 0]],
    );
}

/// [rfc1813 3.3.6] test
#[test]
fn read() {
    let payload = b"hello";
    let mut out = Vec::new();
    put_read_head(&mut Writer::new(&mut out), Some(&ATTRIBUTES), 5, true);
    out.extend_from_slice(payload);
    out.extend_from_slice(padding(payload.len()));
    let parts = [
        &STATUS_OK[..],
        &YES,
        &ATTRIBUTE_BYTES,
        &[0, 0, 0, 5], // count
        &YES,          // end of file
        &[0, 0, 0, 5], // length
        b"hello\0\0\0",
    ];
    assert_eq!(out, parts.concat());
}

/// [rfc1813 3.3.7] [rfc1813 3.3.21] test
#[test]
fn write_and_commit() {
    golden(
        |out| put_write(out, &both(), 4096, Stability::FileSync, *b"verifier"),
        &[
            &STATUS_OK,
            &both_bytes(),
            &[0, 0, 0x10, 0],
            &[0, 0, 0, 2],
            b"verifier",
        ],
    );
    golden(
        |out| put_commit(out, &UNKNOWN, *b"verifier"),
        &[&STATUS_OK, &NO, &NO, b"verifier"],
    );
}

/// [rfc1813 3.3.8] [rfc1813 3.3.9] [rfc1813 3.3.10] [rfc1813 3.3.11] test
#[test]
fn created() {
    golden(
        |out| put_created(out, Some(b"fh"), Some(&ATTRIBUTES), &both()),
        &[
            &STATUS_OK,
            &YES,
            &[0, 0, 0, 2, b'f', b'h', 0, 0],
            &YES,
            &ATTRIBUTE_BYTES,
            &both_bytes(),
        ],
    );
    golden(
        |out| put_created(out, None, None, &UNKNOWN),
        &[&STATUS_OK, &NO, &NO, &NO, &NO],
    );
}

/// [rfc1813 3.3.14] [rfc1813 3.3.15] test
#[test]
fn renamed_and_linked() {
    golden(
        |out| put_renamed(out, &both(), &UNKNOWN),
        &[&STATUS_OK, &both_bytes(), &NO, &NO],
    );
    golden(
        |out| put_linked(out, Some(&ATTRIBUTES), &both()),
        &[&STATUS_OK, &YES, &ATTRIBUTE_BYTES, &both_bytes()],
    );
}

/// [rfc1813 3.3.18] test
#[test]
fn fsstat() {
    let room = Room {
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        unchanged_seconds: 7,
    };
    let numbers: Vec<u8> = (1..=6).flat_map(u64::to_be_bytes).collect();
    golden(
        |out| put_fsstat(out, None, &room),
        &[&STATUS_OK, &NO, &numbers, &[0, 0, 0, 7]],
    );
}

/// [rfc1813 3.3.19] test
#[test]
fn fsinfo() {
    let sizes = |first| TransferSizes {
        max: first,
        preferred: first + 1,
        multiple: first + 2,
    };
    let info = ServerInfo {
        read: sizes(1),
        write: sizes(4),
        preferred_listing_bytes: 7,
        file_bytes_max: 8,
        time_step: Time {
            seconds: 9,
            nanoseconds: 10,
        },
        properties: property::LINKS | property::SYMBOLIC_LINKS | property::SETS_TIMES,
    };
    let sizes: Vec<u8> = (1..=7).flat_map(u32::to_be_bytes).collect();
    golden(
        |out| put_fsinfo(out, None, &info),
        &[
            &STATUS_OK,
            &NO,
            &sizes,
            &[0, 0, 0, 0, 0, 0, 0, 8],
            &[0, 0, 0, 9, 0, 0, 0, 10],
            &[0, 0, 0, 0x13],
        ],
    );
}

/// [rfc1813 3.3.20] test
#[test]
fn pathconf() {
    let limits = PathLimits {
        links_max: 32000,
        name_bytes_max: 255,
        refuses_long_names: true,
        restricts_chown: true,
        ignores_case: false,
        keeps_case: true,
    };
    golden(
        |out| put_pathconf(out, None, &limits),
        &[
            &STATUS_OK,
            &NO,
            &[0, 0, 0x7d, 0, 0, 0, 0, 0xff],
            &YES,
            &YES,
            &NO,
            &YES,
        ],
    );
}

/// How many empty optional items each procedure's failure has.
#[test]
fn failures_have_the_shape_of_their_procedure() {
    let items = [
        0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 3, 1, 1, 1, 1, 1, 2,
    ];
    for (procedure, items) in Procedure::ALL.into_iter().zip(items) {
        let status: &[u8] = match procedure {
            Procedure::Null => &[],
            _ => &[0, 0, 0x27, 0x18], // 10008
        };
        golden(
            |out| put_refused(out, procedure, Nfs3Error::JukeBox),
            &[status, &vec![0; 4 * items]],
        );
    }
}

fn failed(failure: Failure<'_>, parts: &[&[u8]]) {
    golden(|out| put_failed(out, Nfs3Error::Stale, failure), parts);
}

#[test]
fn failures_tell_what_is_known() {
    let both = both();
    let stale = [0, 0, 0, 70];
    let file = Some(&ATTRIBUTES);
    let some = [&YES[..], &ATTRIBUTE_BYTES].concat();
    failed(Failure::Nothing, &[&stale]);
    failed(Failure::File(file), &[&stale, &some]);
    failed(Failure::Changed(&both), &[&stale, &both_bytes()]);
    let renamed = Failure::Renamed(&UNKNOWN, &both);
    failed(renamed, &[&stale, &NO, &NO, &both_bytes()]);
    let linked = Failure::Linked(file, &UNKNOWN);
    failed(linked, &[&stale, &some, &NO, &NO]);
}
