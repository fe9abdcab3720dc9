//! Tests of listings: golden bytes, and both budgets to the byte.

use super::*;
use crate::nfs3::wire::attributes::{DeviceNumber, FileType, Time};

const VERIFIER: Verifier = *b"verifier";

const ATTRIBUTES: Attributes = Attributes {
    kind: FileType::Directory,
    mode: 0o755,
    links: 2,
    uid: 1,
    gid: 2,
    size_bytes: 3,
    used_bytes: 4,
    device: DeviceNumber { major: 0, minor: 0 },
    filesystem: 5,
    file: 6,
    accessed: Time {
        seconds: 7,
        nanoseconds: 8,
    },
    modified: Time {
        seconds: 9,
        nanoseconds: 10,
    },
    changed: Time {
        seconds: 11,
        nanoseconds: 12,
    },
};

fn entry(name: &[u8]) -> Entry<'_> {
    Entry {
        file: 0x0102,
        name,
        cookie: 0x0304,
        attributes: None,
        handle: None,
    }
}

fn readdir(result_bytes: usize) -> ListingLimits {
    ListingLimits {
        result_bytes,
        names_bytes: None,
    }
}

/// As many copies of `each` as fit, and how many that were.
fn fill(
    limits: ListingLimits,
    directory: Option<&Attributes>,
    each: &Entry<'_>,
) -> (Vec<u8>, usize) {
    let mut out = vec![0xaa];
    let mut writer = Writer::new(&mut out);
    let mut listing =
        Listing::begin(&mut writer, limits, directory, VERIFIER).expect("an empty list fits");
    let mut count = 0;
    while count < 100 && listing.try_add(each) {
        count += 1;
    }
    assert_eq!(listing.is_empty(), count == 0);
    listing.finish(false);
    assert_eq!(out.remove(0), 0xaa);
    (out, count)
}

/// [rfc1813 3.3.16] test
#[test]
fn readdir_by_hand() {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    let mut listing = Listing::begin(&mut writer, readdir(1000), None, VERIFIER).expect("room");
    assert!(listing.try_add(&entry(b"abcde")));
    listing.finish(true);
    let expected = [
        &[0, 0, 0, 0][..],         // OK
        &[0, 0, 0, 0],             // no attributes
        b"verifier",               //
        &[0, 0, 0, 1],             // an entry
        &[0, 0, 0, 0, 0, 0, 1, 2], // file
        &[0, 0, 0, 5],             // length of its name
        b"abcde\0\0\0",            // name
        &[0, 0, 0, 0, 0, 0, 3, 4], // cookie
        &[0, 0, 0, 0],             // no further entry
        &[0, 0, 0, 1],             // the end
    ];
    assert_eq!(out, expected.concat());
}

/// [rfc1813 3.3.17] test
#[test]
fn readdirplus_by_hand() {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    let limits = ListingLimits {
        result_bytes: 1000,
        names_bytes: Some(1000),
    };
    let mut listing = Listing::begin(&mut writer, limits, None, VERIFIER).expect("room");
    let full = Entry {
        attributes: Some(&ATTRIBUTES),
        handle: Some(b"handle"),
        ..entry(b"a")
    };
    assert!(listing.try_add(&full));
    assert!(listing.try_add(&entry(b"b")));
    listing.finish(false);
    let mut attributes = Vec::new();
    ATTRIBUTES.put(&mut Writer::new(&mut attributes));
    assert_eq!(attributes.len(), Attributes::WIRE_BYTES);
    let expected = [
        &[0, 0, 0, 0, 0, 0, 0, 0][..], // OK, no attributes
        b"verifier",                   //
        &[0, 0, 0, 1],                 // an entry
        &[0, 0, 0, 0, 0, 0, 1, 2],     // file
        &[0, 0, 0, 1, b'a', 0, 0, 0],  // name
        &[0, 0, 0, 0, 0, 0, 3, 4],     // cookie
        &[0, 0, 0, 1],                 // attributes
        &attributes,                   //
        &[0, 0, 0, 1, 0, 0, 0, 6],     // a handle
        b"handle\0\0",                 //
        &[0, 0, 0, 1],                 // an entry
        &[0, 0, 0, 0, 0, 0, 1, 2],     //
        &[0, 0, 0, 1, b'b', 0, 0, 0],  //
        &[0, 0, 0, 0, 0, 0, 3, 4],     //
        &[0, 0, 0, 0],                 // no attributes
        &[0, 0, 0, 0],                 // no handle
        &[0, 0, 0, 0, 0, 0, 0, 0],     // no further entry, not the end
    ];
    assert_eq!(out, expected.concat());
}

/// [rfc1813 3.3.16] test: the limit counts everything behind the status word.
#[test]
fn a_result_is_never_longer_than_asked_for() {
    for directory in [None, Some(&ATTRIBUTES)] {
        for name_bytes in [1, 4, 5, 255] {
            let name = vec![b'n'; name_bytes];
            let (one, count) = fill(readdir(400 + 300), directory, &entry(&name));
            assert!(count > 0);
            let entry_bytes = entry(&name).names_bytes();
            // What `count` entries take is enough for them, and a byte less is not.
            let exact = one.len() - 4;
            for (limit, fit) in [
                (exact, count),
                (exact - 1, count - 1),
                (exact + entry_bytes - 1, count),
                (exact + entry_bytes, count + 1),
            ] {
                let (bytes, count) = fill(readdir(limit), directory, &entry(&name));
                assert_eq!(count, fit, "limit {limit}");
                assert!(bytes.len() - 4 <= limit);
            }
        }
    }
}

#[test]
fn readdirplus_keeps_to_both_limits() {
    let full = Entry {
        attributes: Some(&ATTRIBUTES),
        handle: Some(b"handle"),
        ..entry(b"name")
    };
    let names = full.names_bytes();
    let whole = names + full.plus_bytes();
    let fixed = 4 + 8 + END_BYTES;
    let count = |result_bytes, names_bytes| {
        let limits = ListingLimits {
            result_bytes,
            names_bytes: Some(names_bytes),
        };
        let (bytes, count) = fill(limits, None, &full);
        assert!(bytes.len() - 4 <= result_bytes);
        assert_eq!(bytes.len() - 4, fixed + count * whole);
        count
    };
    assert_eq!(count(fixed + 3 * whole, 1000), 3);
    assert_eq!(count(fixed + 3 * whole - 1, 1000), 2);
    assert_eq!(count(10_000, 3 * names), 3);
    assert_eq!(count(10_000, 3 * names - 1), 2);
    // The second limit is advice for all but the first entry,
    assert_eq!(count(10_000, 0), 1);
    // the first one is not.
    assert_eq!(count(fixed + whole - 1, 1000), 0);
}

#[test]
fn nothing_stays_behind_if_nothing_fits() {
    let mut out = b"before".to_vec();
    let mut writer = Writer::new(&mut out);
    let too_small = Listing::begin(&mut writer, readdir(19), None, VERIFIER);
    assert!(too_small.is_none());
    let mut listing = Listing::begin(&mut writer, readdir(20), None, VERIFIER).expect("just");
    assert!(!listing.try_add(&entry(b"a")));
    listing.abandon();
    assert_eq!(out, b"before");
}

#[test]
fn limits_of_the_server_count_as_well() {
    let args = ReadDir {
        directory: crate::nfs3::wire::attributes::RawHandle(b""),
        cookie: 0,
        verifier: VERIFIER,
        count_bytes: u32::MAX,
    };
    let limits = ListingLimits::of_readdir(&args, 4096);
    assert_eq!(limits, readdir(4096));
    let args = ReadDirPlus {
        directory: args.directory,
        cookie: 0,
        verifier: VERIFIER,
        names_bytes: 17,
        count_bytes: 2000,
    };
    let limits = ListingLimits::of_readdirplus(&args, 4096);
    assert_eq!(limits.result_bytes, 2000);
    assert_eq!(limits.names_bytes, Some(17));
}
