//! Tests of the XDR reader and writer: golden bytes, limits, truncation.

use super::*;

const MAX: u32 = u32::MAX;

#[test]
fn numbers() {
    let bytes = [
        0x00, 0x01, 0x02, 0x03, // unsigned
        0xff, 0xff, 0xff, 0xfe, // -2
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // hyper
        0, 0, 0, 1, // true
        0, 0, 0, 0, // false
    ];
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.u32(0x0001_0203);
    writer.i32(-2);
    writer.u64(0x1122_3344_5566_7788);
    writer.bool(true);
    writer.bool(false);
    assert_eq!(out, bytes);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u32(), Ok(0x0001_0203));
    assert_eq!(reader.i32(), Ok(-2));
    assert_eq!(reader.u64(), Ok(0x1122_3344_5566_7788));
    assert_eq!(reader.bool(), Ok(true));
    assert_eq!(reader.bool(), Ok(false));
    assert_eq!(reader.left_bytes(), 0);
    assert_eq!(reader.position(), bytes.len());
}

/// [rfc4506 4.10] test
#[test]
fn opaque_data_is_padded_with_zeros() {
    let golden: [(&[u8], &[u8]); 5] = [
        (b"", &[0, 0, 0, 0]),
        (b"a", &[0, 0, 0, 1, b'a', 0, 0, 0]),
        (b"ab", &[0, 0, 0, 2, b'a', b'b', 0, 0]),
        (b"abc", &[0, 0, 0, 3, b'a', b'b', b'c', 0]),
        (b"abcd", &[0, 0, 0, 4, b'a', b'b', b'c', b'd']),
    ];
    for (content, bytes) in golden {
        let mut out = Vec::new();
        Writer::new(&mut out).opaque(content);
        assert_eq!(out, bytes);
        let mut reader = Reader::new(bytes);
        assert_eq!(reader.opaque("test", 4), Ok(content));
        assert_eq!(reader.left_bytes(), 0);
        assert_eq!(padding(content.len()), &bytes[4 + content.len()..]);
        for end in 0..bytes.len() {
            let cut = Reader::new(&bytes[..end]).opaque("test", 4);
            assert!(matches!(cut, Err(XdrError::Truncated { .. })), "{cut:?}");
        }
    }
}

#[test]
fn padding_may_hold_anything_but_must_be_there() {
    let mut reader = Reader::new(&[0, 0, 0, 1, b'a', 1, 2, 3, 0, 0, 0, 9]);
    assert_eq!(reader.opaque("test", 4), Ok(&b"a"[..]));
    assert_eq!(reader.u32(), Ok(9));
    let mut reader = Reader::new(&[b'a', b'b', b'c', b'd', b'e', 7, 7, 7]);
    assert_eq!(reader.array(), Ok(*b"abcde"));
    assert_eq!(reader.left_bytes(), 0);
    assert_eq!(
        Reader::new(&[0, 0, 0, 1, b'a', 0, 0]).opaque("test", 4),
        Err(XdrError::Truncated {
            at: 4,
            needed_bytes: 1,
            left_bytes: 3
        })
    );
}

#[test]
fn claimed_lengths_are_refused() {
    let bytes = [0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    assert_eq!(
        Reader::new(&bytes).opaque("name", 255),
        Err(XdrError::TooLong {
            what: "name",
            at: 0,
            max: 255,
            found: MAX
        })
    );
    // Even where nothing but the record limits it.
    let truncated = XdrError::Truncated {
        at: 4,
        needed_bytes: MAX as usize,
        left_bytes: 4,
    };
    assert_eq!(Reader::new(&bytes).opaque("data", MAX), Err(truncated));
    assert_eq!(
        Reader::new(&bytes).opaque_range("data", MAX),
        Err(truncated)
    );
    let elements = Reader::new(&bytes).elements("list", MAX, 12);
    assert!(matches!(elements, Err(XdrError::Truncated { .. })));
}

/// [rfc4506 4.4] test
#[test]
fn booleans_are_zero_or_one() {
    for number in [2, 0x0100_0000, MAX] {
        let bytes = number.to_be_bytes();
        let error = XdrError::Unknown {
            what: "boolean",
            at: 0,
            found: number,
        };
        assert_eq!(Reader::new(&bytes).bool(), Err(error));
        assert_eq!(Reader::new(&bytes).optional(Reader::u32), Err(error));
    }
}

#[test]
fn optional_items() {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.optional(Some(5), Writer::u32);
    writer.optional(None, Writer::u32);
    assert_eq!(out, [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0]);
    let mut reader = Reader::new(&out);
    assert_eq!(reader.optional(Reader::u32), Ok(Some(5)));
    assert_eq!(reader.optional(Reader::u32), Ok(None));
}

#[test]
fn the_head_of_a_record_tells_what_is_still_to_come() {
    let bytes = [0, 0, 0, 7, 0, 0, 0, 100, 1, 2];
    // A word, a length and 100 bytes, of which two are here.
    let mut reader = Reader::head(&bytes, 108);
    assert_eq!(reader.u32(), Ok(7));
    assert_eq!(reader.opaque_range("payload", MAX), Ok(8..108));
    assert_eq!(reader.left_bytes(), 0);
    // Their content can't be had yet,
    let mut reader = Reader::head(&bytes[4..], 104);
    let error = reader.opaque("payload", MAX).expect_err("not here");
    assert!(error.is_incomplete(), "{error}");
    // and a record that is too short for them is refused at once.
    let mut reader = Reader::head(&bytes[4..], 103);
    let error = reader.opaque_range("payload", MAX).expect_err("too long");
    assert!(!error.is_incomplete(), "{error}");
    // Bytes of the next record don't count.
    assert_eq!(Reader::head(&bytes, 4).left_bytes(), 4);
    let mut reader = Reader::head(&bytes, 4);
    assert_eq!(reader.u32(), Ok(7));
    assert!(matches!(reader.u32(), Err(XdrError::Truncated { .. })));
}

#[test]
fn errors_say_what_was_expected_and_found() {
    let mismatch = Reader::new(&[0, 0, 0, 3]).expect("RPC version", 2);
    let text = mismatch.expect_err("not 2").to_string();
    assert_eq!(text, "byte 0: RPC version: expected 2, found 3");
    let cut = Reader::new(&[0, 0]).u32().expect_err("short").to_string();
    assert_eq!(cut, "byte 0: expected 4 bytes, the record has 2 left");
}
