//! Golden bytes of replies, and how they are grouped.

use super::*;
use crate::gathered::{GROUP_BUFFERS_MAX, GROUP_BYTES_MAX};
use crate::nbd::errors::Errno;
use smallvec::smallvec;

const ADDRESS: Address = Address {
    cookie: 5,
    request_offset_bytes: 0x1000,
    is_read: true,
};

fn sent(mode: ReplyMode, body: Body) -> Vec<u8> {
    let mut outbox = Outbox::new(mode, BufferPool::new());
    outbox.push(&ADDRESS, body);
    drain(&mut outbox).concat()
}

/// Each group's bytes.
fn drain(outbox: &mut Outbox) -> Vec<Vec<u8>> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    while outbox.take_group(&mut group) {
        groups.push(group.iter().flat_map(|buf| buf.to_vec()).collect());
    }
    groups
}

fn data(payload: Payload, len_bytes: u32, dont_fragment: bool) -> Body {
    Body::Data {
        payload,
        offset_bytes: 0x1000,
        len_bytes,
        dont_fragment,
    }
}

fn mixed() -> Payload {
    smallvec![
        Piece::Data(IoBuf::copy_of(b"ab")),
        Piece::Data(IoBuf::copy_of(b"c")),
        Piece::Zeros(2),
        Piece::Zeros(3),
        Piece::Data(IoBuf::copy_of(b"d")),
    ]
}

fn structured(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(5u64.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn at(offset: u64, rest: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes(), rest].concat()
}

// [nbd "Request types", NBD_CMD_READ] test
#[test]
fn reads() {
    let simple = sent(ReplyMode::Simple, data(mixed(), 9, false));
    let mut expected = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    expected.extend(b"abc\0\0\0\0\0d");
    assert_eq!(simple, expected);

    let fragments = sent(ReplyMode::Structured, data(mixed(), 9, false));
    let expected = [
        structured(0, 1, &at(0x1000, b"abc")),
        structured(0, 2, &at(0x1003, &5u32.to_be_bytes())),
        structured(1, 1, &at(0x1008, b"d")),
    ];
    assert_eq!(fragments, expected.concat());

    let whole = sent(ReplyMode::Structured, data(mixed(), 9, true));
    assert_eq!(whole, structured(1, 1, &at(0x1000, b"abc\0\0\0\0\0d")));

    let hole = || -> Payload { smallvec![Piece::Zeros(4), Piece::Zeros(4)] };
    for dont_fragment in [false, true] {
        let bytes = sent(ReplyMode::Structured, data(hole(), 8, dont_fragment));
        assert_eq!(bytes, structured(1, 2, &at(0x1000, &8u32.to_be_bytes())));
    }
}

#[test]
fn extended_chunks_carry_the_requests_offset() {
    let payload = smallvec![Piece::Data(IoBuf::copy_of(b"xy"))];
    let bytes = sent(ReplyMode::Extended, data(payload, 2, false));
    let mut expected = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1];
    expected.extend(5u64.to_be_bytes());
    expected.extend(0x1000u64.to_be_bytes());
    expected.extend(10u64.to_be_bytes());
    expected.extend(at(0x1000, b"xy"));
    assert_eq!(bytes, expected);
}

#[test]
fn success_without_payload() {
    let done = |mode, is_read| {
        let mut outbox = Outbox::new(mode, BufferPool::new());
        outbox.push(&Address { is_read, ..ADDRESS }, Body::Done);
        drain(&mut outbox).concat()
    };
    let simple = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    assert_eq!(done(ReplyMode::Simple, true), simple);
    assert_eq!(done(ReplyMode::Structured, false), simple);
    assert_eq!(done(ReplyMode::Structured, true), structured(1, 0, b""));
    assert_eq!(done(ReplyMode::Extended, false).len(), 32);
}

#[test]
fn errors() {
    let refusal = Refusal::new(Errno::Io, "no");
    let simple = sent(ReplyMode::Simple, Body::Failed(refusal, None));
    assert_eq!(
        simple,
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 5]
    );
    let plain = sent(ReplyMode::Structured, Body::Failed(refusal, None));
    assert_eq!(
        plain,
        structured(1, 0x8001, &[0, 0, 0, 5, 0, 2, b'n', b'o'])
    );
    let located = sent(ReplyMode::Structured, Body::Failed(refusal, Some(0x1001)));
    let payload = [0, 0, 0, 5, 0, 2, b'n', b'o', 0, 0, 0, 0, 0, 0, 0x10, 1];
    assert_eq!(located, structured(1, 0x8002, &payload));
}

#[test]
fn acknowledgements_share_a_buffer() {
    let pool = BufferPool::new();
    let mut outbox = Outbox::new(ReplyMode::Simple, pool.clone());
    for _ in 0..32 {
        outbox.push(&ADDRESS, Body::Done);
    }
    let mut group = Vec::new();
    assert!(outbox.take_group(&mut group));
    assert_eq!(group.len(), 1);
    assert_eq!(group[0].len(), 32 * 16);
    assert!(!outbox.take_group(&mut group));
    assert_eq!(
        pool.in_use_bytes(),
        0,
        "the header buffer goes back once it is sent"
    );
}

#[test]
fn many_replies_need_many_header_buffers() {
    let mut outbox = Outbox::new(ReplyMode::Structured, BufferPool::new());
    for _ in 0..1000 {
        let payload = smallvec![Piece::Data(IoBuf::copy_of(b"z"))];
        outbox.push(&ADDRESS, data(payload, 1, false));
    }
    let groups = drain(&mut outbox);
    assert_eq!(groups.len(), 2000usize.div_ceil(GROUP_BUFFERS_MAX));
    let one = structured(1, 1, &at(0x1000, b"z"));
    assert_eq!(groups.concat(), one.repeat(1000));
}

#[test]
fn large_payload_goes_out_in_parts() {
    let mut outbox = Outbox::new(ReplyMode::Simple, BufferPool::new());
    let mut buf = IoBuf::zeroed(9 << 20);
    for (index, byte) in buf.bytes_mut().iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    let expected = buf.to_vec();
    outbox.push(
        &ADDRESS,
        data(
            smallvec![Piece::Data(buf), Piece::Zeros(3 << 20)],
            12 << 20,
            false,
        ),
    );
    assert!(outbox.is_full());
    let groups = drain(&mut outbox);
    assert!(groups.iter().all(|group| group.len() <= GROUP_BYTES_MAX));
    let all = groups.concat();
    assert_eq!(all.len(), 16 + (12 << 20));
    assert!(all[16..16 + (9 << 20)] == expected[..]);
    assert!(all[16 + (9 << 20)..].iter().all(|&byte| byte == 0));
}
