//! Tests of arguments: golden bytes of every procedure, and each truncation of them.

use super::*;
use crate::nfs3::wire::attributes::SetTime;

const FILE: [u8; 8] = [0, 0, 0, 3, b'f', b'h', b'1', 0];
const DIRECTORY: [u8; 12] = [0, 0, 0, 5, b'd', b'i', b'r', b'0', b'1', 0, 0, 0];
const NAME: [u8; 8] = [0, 0, 0, 4, b'n', b'a', b'm', b'e'];
const OFFSET: [u8; 8] = [0, 0, 0, 1, 0, 0, 0x10, 0];
const COUNT: [u8; 4] = [0, 0, 0x20, 0];

const PLACE: Place<'static> = Place {
    directory: RawHandle(b"dir01"),
    name: RawName(b"name"),
};

/// Everything is set: mode, uid, gid, size, a client's time, the server's time.
const ALL_SET: [u8; 56] = [
    0, 0, 0, 1, 0, 0, 1, 0xa4, // mode 0644
    0, 0, 0, 1, 0, 0, 0, 10, // uid
    0, 0, 0, 1, 0, 0, 0, 20, // gid
    0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, // size
    0, 0, 0, 2, 0, 0, 0, 30, 0, 0, 0, 40, // accessed
    0, 0, 0, 1, // modified
    0, 0, 0, 0, // (what follows in SETATTR: no guard)
];

const ALL: SetAttributes = SetAttributes {
    mode: Some(0o644),
    uid: Some(10),
    gid: Some(20),
    size_bytes: Some(1024),
    accessed: SetTime::To(Time {
        seconds: 30,
        nanoseconds: 40,
    }),
    modified: SetTime::Now,
};

/// Nothing is set.
const NONE_SET: [u8; 24] = [0; 24];

fn decode<'a>(procedure: Procedure, bytes: &'a [u8]) -> Result<Arguments<'a>, XdrError> {
    Arguments::decode(procedure, &mut Reader::new(bytes))
}

/// The parts are the arguments of `procedure`, to the last byte and no less.
fn golden(procedure: Procedure, parts: &[&[u8]], expected: Arguments<'_>) {
    let bytes = parts.concat();
    let mut record = Reader::new(&bytes);
    let decoded = Arguments::decode(procedure, &mut record);
    assert_eq!(decoded, Ok(expected));
    assert_eq!(record.left_bytes(), 0);
    for end in 0..bytes.len() {
        let cut = decode(procedure, &bytes[..end]);
        assert!(
            matches!(cut, Err(XdrError::Truncated { .. })),
            "{procedure:?} {end}: {cut:?}"
        );
    }
}

/// [rfc1813 3.3.0] test
#[test]
fn null() {
    golden(Procedure::Null, &[], Arguments::Null);
    // What stands behind the last argument is ignored.
    assert_eq!(decode(Procedure::Null, &[1, 2, 3]), Ok(Arguments::Null));
}

/// [rfc1813 3.3.1] test
#[test]
fn handles_alone() {
    let file = RawHandle(b"fh1");
    golden(Procedure::GetAttr, &[&FILE], Arguments::GetAttr(file));
    golden(Procedure::ReadLink, &[&FILE], Arguments::ReadLink(file));
    golden(Procedure::FsStat, &[&FILE], Arguments::FsStat(file));
    golden(Procedure::FsInfo, &[&FILE], Arguments::FsInfo(file));
    golden(Procedure::PathConf, &[&FILE], Arguments::PathConf(file));
}

/// [rfc1813 3.3.2] test
#[test]
fn setattr() {
    let mut arguments = SetAttr {
        file: RawHandle(b"fh1"),
        attributes: ALL,
        guard: None,
    };
    let parts = [&FILE[..], &ALL_SET];
    golden(Procedure::SetAttr, &parts, Arguments::SetAttr(arguments));
    arguments.attributes = SetAttributes::default();
    arguments.guard = Some(Time {
        seconds: 5,
        nanoseconds: 6,
    });
    let guard = [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 6];
    let parts = [&FILE[..], &NONE_SET, &guard];
    golden(Procedure::SetAttr, &parts, Arguments::SetAttr(arguments));
}

/// [rfc1813 3.3.3] test
#[test]
fn names_alone() {
    let parts = [&DIRECTORY[..], &NAME];
    golden(Procedure::Lookup, &parts, Arguments::Lookup(PLACE));
    golden(Procedure::Remove, &parts, Arguments::Remove(PLACE));
    golden(Procedure::RmDir, &parts, Arguments::RmDir(PLACE));
}

/// [rfc1813 3.3.4] test
#[test]
fn access_bits() {
    let arguments = Access {
        file: RawHandle(b"fh1"),
        asked: access::READ | access::EXECUTE,
    };
    let parts = [&FILE[..], &[0, 0, 0, 0x21]];
    golden(Procedure::Access, &parts, Arguments::Access(arguments));
}

/// [rfc1813 3.3.6] [rfc1813 3.3.21] test
#[test]
fn extents() {
    let arguments = Extent {
        file: RawHandle(b"fh1"),
        offset_bytes: (1 << 32) + 4096,
        count_bytes: 8192,
    };
    let parts = [&FILE[..], &OFFSET, &COUNT];
    golden(Procedure::Read, &parts, Arguments::Read(arguments));
    golden(Procedure::Commit, &parts, Arguments::Commit(arguments));
}

/// [rfc1813 3.3.7] test
#[test]
fn write() {
    let stable = [0, 0, 0, 2];
    let count = [0, 0, 0, 6];
    let parts = [&FILE[..], &OFFSET, &count, &stable, &count, b"abcdef\0\0"];
    let arguments = Write {
        file: RawHandle(b"fh1"),
        offset_bytes: (1 << 32) + 4096,
        stability: Stability::FileSync,
        payload: 28..34,
    };
    golden(Procedure::Write, &parts, Arguments::Write(arguments));
    let bytes = parts.concat();
    assert_eq!(bytes[28..34], *b"abcdef");
}

/// [rfc1813 3.3.7] test: the payload need not be here.
#[test]
fn head_of_a_write() {
    let count = [0, 0x10, 0, 0];
    let head = [&FILE[..], &OFFSET, &count, &[0, 0, 0, 0], &count].concat();
    let record_bytes = head.len() + (1 << 20);
    let decode = |at_hand: usize, record_bytes| {
        let mut record = Reader::head(&head[..at_hand], record_bytes);
        Arguments::decode(Procedure::Write, &mut record)
    };
    let Ok(Arguments::Write(write)) = decode(head.len(), record_bytes) else {
        panic!("the head is whole");
    };
    assert_eq!(write.payload, head.len()..record_bytes);
    for at_hand in 0..head.len() {
        let error = decode(at_hand, record_bytes).expect_err("more to come");
        assert!(error.is_incomplete(), "{error}");
    }
    let error = decode(head.len(), record_bytes - 1).expect_err("payload is cut");
    assert!(!error.is_incomplete(), "{error}");
    assert!(head.len() <= WRITE_HEAD_BYTES_MAX);
}

#[test]
fn write_says_one_length_only() {
    let parts = |count: u8, length: u8| {
        let numbers = [0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0, length];
        [&FILE[..], &OFFSET, &numbers, b"abcdefgh"].concat()
    };
    assert!(decode(Procedure::Write, &parts(8, 8)).is_ok());
    let error = XdrError::Mismatch {
        what: "length of the payload",
        at: 24,
        expected: 7,
        found: 8,
    };
    assert_eq!(decode(Procedure::Write, &parts(7, 8)), Err(error));
    assert!(decode(Procedure::Write, &parts(8, 7)).is_err());
}

/// [rfc1813 3.3.8] test
#[test]
fn create() {
    let attributes = &ALL_SET[..52];
    let unchecked = Create {
        place: PLACE,
        how: CreateHow::Unchecked(ALL),
    };
    let parts = [&DIRECTORY[..], &NAME, &[0, 0, 0, 0], attributes];
    golden(Procedure::Create, &parts, Arguments::Create(unchecked));
    let guarded = Create {
        how: CreateHow::Guarded(SetAttributes::default()),
        ..unchecked
    };
    let parts = [&DIRECTORY[..], &NAME, &[0, 0, 0, 1], &NONE_SET];
    golden(Procedure::Create, &parts, Arguments::Create(guarded));
    let exclusive = Create {
        how: CreateHow::Exclusive(*b"verifier"),
        ..unchecked
    };
    let parts = [&DIRECTORY[..], &NAME, &[0, 0, 0, 2], b"verifier"];
    golden(Procedure::Create, &parts, Arguments::Create(exclusive));
}

/// [rfc1813 3.3.9] [rfc1813 3.3.10] test
#[test]
fn mkdir_and_symlink() {
    let arguments = MkDir {
        place: PLACE,
        attributes: ALL,
    };
    let parts = [&DIRECTORY[..], &NAME, &ALL_SET[..52]];
    golden(Procedure::MkDir, &parts, Arguments::MkDir(arguments));
    let arguments = SymLink {
        place: PLACE,
        attributes: SetAttributes::default(),
        target: b"../to",
    };
    let target = [0, 0, 0, 5, b'.', b'.', b'/', b't', b'o', 0, 0, 0];
    let parts = [&DIRECTORY[..], &NAME, &NONE_SET, &target];
    golden(Procedure::SymLink, &parts, Arguments::SymLink(arguments));
}

/// [rfc1813 3.3.11] test
#[test]
fn mknod() {
    let none = SetAttributes::default();
    let device = DeviceNumber { major: 8, minor: 1 };
    let numbers = [0, 0, 0, 8, 0, 0, 0, 1];
    let cases: [(u8, &[&[u8]], NodeKind); 7] = [
        (1, &[], NodeKind::Other(FileType::Regular)),
        (2, &[], NodeKind::Other(FileType::Directory)),
        (
            3,
            &[&NONE_SET, &numbers],
            NodeKind::BlockDevice(none, device),
        ),
        (
            4,
            &[&ALL_SET[..52], &numbers],
            NodeKind::CharacterDevice(ALL, device),
        ),
        (5, &[], NodeKind::Other(FileType::SymbolicLink)),
        (6, &[&NONE_SET], NodeKind::Socket(none)),
        (7, &[&ALL_SET[..52]], NodeKind::Pipe(ALL)),
    ];
    for (number, tail, kind) in cases {
        let number = [0, 0, 0, number];
        let mut parts = vec![&DIRECTORY[..], &NAME, &number];
        parts.extend_from_slice(tail);
        let arguments = MkNod { place: PLACE, kind };
        golden(Procedure::MkNod, &parts, Arguments::MkNod(arguments));
    }
}

/// [rfc1813 3.3.14] [rfc1813 3.3.15] test
#[test]
fn rename_and_link() {
    let other = Place {
        directory: RawHandle(b"fh1"),
        name: RawName(b"x"),
    };
    let x = [0, 0, 0, 1, b'x', 0, 0, 0];
    let arguments = Rename {
        from: PLACE,
        to: other,
    };
    let parts = [&DIRECTORY[..], &NAME, &FILE, &x];
    golden(Procedure::Rename, &parts, Arguments::Rename(arguments));
    let arguments = Link {
        file: RawHandle(b"fh1"),
        place: PLACE,
    };
    let parts = [&FILE[..], &DIRECTORY, &NAME];
    golden(Procedure::Link, &parts, Arguments::Link(arguments));
}

/// [rfc1813 3.3.16] [rfc1813 3.3.17] test
#[test]
fn listings() {
    let arguments = ReadDir {
        directory: RawHandle(b"dir01"),
        cookie: (1 << 32) + 4096,
        verifier: *b"verifier",
        count_bytes: 8192,
    };
    let parts = [&DIRECTORY[..], &OFFSET, b"verifier", &COUNT];
    golden(Procedure::ReadDir, &parts, Arguments::ReadDir(arguments));
    let arguments = ReadDirPlus {
        directory: RawHandle(b"dir01"),
        cookie: (1 << 32) + 4096,
        verifier: *b"verifier",
        names_bytes: 8192,
        count_bytes: 32768,
    };
    let parts = [
        &DIRECTORY[..],
        &OFFSET,
        b"verifier",
        &COUNT,
        &[0, 0, 0x80, 0],
    ];
    let arguments = Arguments::ReadDirPlus(arguments);
    golden(Procedure::ReadDirPlus, &parts, arguments);
}

#[test]
fn long_handles_names_and_targets_are_refused() {
    let long = |len: u32| [&len.to_be_bytes()[..], &[b'x'; 5000]].concat();
    let longest = long(HANDLE_BYTES_MAX);
    assert!(decode(Procedure::GetAttr, &longest[..68]).is_ok());
    let lookup = |len| decode(Procedure::Lookup, &[&FILE[..], &long(len)].concat()).map(|_| ());
    let symlink = |len| {
        let bytes = [&DIRECTORY[..], &NAME, &NONE_SET, &long(len)].concat();
        decode(Procedure::SymLink, &bytes).map(|_| ())
    };
    assert_eq!(lookup(TEXT_BYTES_MAX), Ok(()));
    assert_eq!(symlink(TEXT_BYTES_MAX), Ok(()));
    for len in [1, u32::MAX - TEXT_BYTES_MAX] {
        let too_long = |refused| matches!(refused, Err(XdrError::TooLong { .. }));
        let handle = long(HANDLE_BYTES_MAX + len);
        assert!(too_long(decode(Procedure::GetAttr, &handle).map(|_| ())));
        assert!(too_long(lookup(TEXT_BYTES_MAX + len)));
        assert!(too_long(symlink(TEXT_BYTES_MAX + len)));
    }
}

#[test]
fn unknown_choices_are_refused() {
    let refused = |procedure, parts: &[&[u8]], what: &str| {
        let bytes = parts.concat();
        let error = decode(procedure, &bytes).expect_err("not a choice");
        let is_that = matches!(error, XdrError::Unknown { what: found, .. } if found == what);
        assert!(is_that, "{error}");
    };
    let three = [0, 0, 0, 3];
    let place = [&DIRECTORY[..], &NAME].concat();
    let parts = [&place[..], &three, &NONE_SET];
    refused(Procedure::Create, &parts, "createmode3");
    for number in [0, 8] {
        let parts = [&place[..], &[0, 0, 0, number], &NONE_SET];
        refused(Procedure::MkNod, &parts, "ftype3");
    }
    let parts = [&FILE[..], &OFFSET, &[0; 4], &three, &[0; 4]];
    refused(Procedure::Write, &parts, "stable_how");
    let parts = [&FILE[..], &[0; 16], &three, &[0; 8]];
    refused(Procedure::SetAttr, &parts, "time_how");
    let parts = [&FILE[..], &[0, 0, 0, 2], &[0; 40]];
    refused(Procedure::SetAttr, &parts, "boolean");
}
