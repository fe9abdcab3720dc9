//! Streams of snapshots: the golden one, random ones, and everything that can happen to one on its way.

use flagstone_types::{BLOCK_SIZE, DvolId, Epoch, Lsn};
use flagstone_wire::stream::{
    DATA_MAX_BYTES, Encoder, Event, HEADER_BYTES, RECORD_BYTES, StreamBase, StreamError,
    StreamHeader,
};
use proptest::prelude::*;

use crate::support::streams::{any as any_bytes, decode};

/// Made by another program, by the page of the format.
const GOLDEN: &[u8] = include_bytes!("golden/stream-v1.bin");

fn golden_header() -> StreamHeader {
    StreamHeader {
        volume_id: DvolId(0x5d9c_11a4_b7d0_4c1c_9d54_b2a3_f9e2_c0aa),
        volume: "vm-1".to_owned(),
        snapshot: "tuesday".to_owned(),
        lsn: Lsn::new(Epoch(3), 77),
        size_bytes: 3 * BLOCK_SIZE + 512,
        taken_ns: 1_763_900_000_123_456_789,
        expected_bytes: 4608,
        base: Some(StreamBase {
            snapshot: "monday".to_owned(),
            lsn: Lsn::new(Epoch(3), 42),
            size_bytes: 2 * BLOCK_SIZE,
        }),
    }
}

fn golden_data() -> Vec<u8> {
    (0..4096_u32).map(|n| (n * 7 % 251) as u8).collect()
}

#[test]
fn the_golden_stream_is_written_and_read() {
    let mut written = Vec::new();
    let mut encoder = Encoder::new(&golden_header(), &mut written).expect("a header");
    assert!(encoder.data(0, &golden_data(), &mut written));
    assert!(encoder.zeros(4096, 8192, &mut written));
    assert!(encoder.data(12288, &[0xab; 512], &mut written));
    let totals = encoder.finish(&mut written);
    assert_eq!(written, GOLDEN);
    let (events, end) = decode(GOLDEN, 100);
    let expected = [
        Event::Header(Box::new(golden_header())),
        Event::Data {
            offset_bytes: 0,
            bytes: golden_data(),
        },
        Event::Zeros {
            offset_bytes: 4096,
            len_bytes: 8192,
        },
        Event::Data {
            offset_bytes: 12288,
            bytes: vec![0xab; 512],
        },
        Event::End(totals),
    ];
    assert_eq!(events, expected);
    assert_eq!(end, Ok(totals));
    let counts = (totals.records, totals.data_bytes, totals.zero_bytes);
    assert_eq!(counts, (3, 4608, 8192));
}

#[test]
fn every_flipped_bit_is_noticed() {
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (_, end) = decode(&bytes, usize::MAX);
        assert!(end.is_err(), "bit {bit}");
    }
}

#[test]
fn a_stream_that_ends_early_or_late_is_noticed() {
    for len in 0..GOLDEN.len() {
        let (_, end) = decode(&GOLDEN[..len], usize::MAX);
        let bytes = len as u64;
        assert_eq!(end, Err(StreamError::CutOff { bytes }));
    }
    let longer = [GOLDEN, &[0]].concat();
    for piece_bytes in [1, GOLDEN.len(), usize::MAX] {
        let (_, end) = decode(&longer, piece_bytes);
        let at_bytes = GOLDEN.len() as u64;
        assert_eq!(end, Err(StreamError::GoesOn { at_bytes }));
    }
}

/// Each record is whole, and the stream isn't.
#[test]
fn records_that_were_lost_or_exchanged_are_noticed() {
    let zeros_at = HEADER_BYTES + RECORD_BYTES + 4096;
    let behind = zeros_at + RECORD_BYTES;
    let lost = [&GOLDEN[..zeros_at], &GOLDEN[behind..]].concat();
    let (events, end) = decode(&lost, usize::MAX);
    assert_eq!(events.len(), 3, "up to the trailer");
    assert!(matches!(end, Err(StreamError::Totals { .. })), "{end:?}");
    let twice = [&GOLDEN[..behind], &GOLDEN[zeros_at..]].concat();
    let (_, end) = decode(&twice, usize::MAX);
    assert!(
        matches!(end, Err(StreamError::Record { what, .. }) if what.contains("in front")),
        "{end:?}"
    );
    // Of another stream, with as many records of the same lengths.
    let mut other = Vec::new();
    let mut encoder = Encoder::new(&golden_header(), &mut other).expect("a header");
    assert!(encoder.data(0, &[1; 4096], &mut other));
    let from = HEADER_BYTES..zeros_at;
    let mixed = [&GOLDEN[..HEADER_BYTES], &other[from], &GOLDEN[zeros_at..]].concat();
    let (_, end) = decode(&mixed, usize::MAX);
    assert!(matches!(end, Err(StreamError::Totals { .. })), "{end:?}");
}

#[test]
fn another_version_is_named_and_other_bytes_are_no_stream() {
    let mut bytes = GOLDEN.to_vec();
    bytes[8] = 2;
    let (_, end) = decode(&bytes, usize::MAX);
    assert_eq!(end, Err(StreamError::Version { found: 2 }));
    let (_, end) = decode(&[b'x'; 600], usize::MAX);
    assert_eq!(end, Err(StreamError::NotAStream));
}

#[test]
fn what_makes_no_stream_is_not_written() {
    let header = golden_header();
    let size = header.size_bytes;
    let mut out = Vec::new();
    let begun = Encoder::new(&header, &mut out).expect("a header");
    let wrong = [
        (0, 100, "a part of a block"),
        (100, 4096 - 100, "from within a block"),
        (0, 0, "nothing"),
        (12288, 4096, "behind the end"),
        (u64::MAX - 4095, 4096, "behind everything"),
    ];
    for (offset, len, why) in wrong {
        assert!(!begun.clone().zeros(offset, len, &mut out), "{why}");
        let data = vec![0; len as usize];
        assert!(!begun.clone().data(offset, &data, &mut out), "{why}");
    }
    let mut encoder = begun.clone();
    assert!(encoder.zeros(4096, 4096, &mut out));
    assert!(!encoder.zeros(4096, size - 4096, &mut out), "once more");
    for change in [
        (|h: &mut StreamHeader| h.volume.clear()) as fn(&mut StreamHeader),
        |h| h.snapshot = "x".repeat(129),
        |h| h.size_bytes = 1 << 63,
    ] {
        let mut header = golden_header();
        change(&mut header);
        assert_eq!(header.encode(), None);
    }
}

#[test]
fn more_data_than_a_record_has_becomes_several() {
    let mut header = golden_header();
    header.size_bytes = 1 << 30;
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&header, &mut bytes).expect("a header");
    let data = vec![5; DATA_MAX_BYTES as usize + 4096];
    assert!(encoder.data(8192, &data, &mut bytes));
    let totals = encoder.finish(&mut bytes);
    assert_eq!((totals.records, totals.data_bytes), (2, data.len() as u64));
    let (events, end) = decode(&bytes, 65536);
    assert_eq!(end, Ok(totals));
    let second = Event::Data {
        offset_bytes: 8192 + u64::from(DATA_MAX_BYTES),
        bytes: vec![5; 4096],
    };
    assert_eq!(events[2], second);
}

/// A run: blocks left out before it, its blocks, and whether it is data.
type Run = (u64, u64, bool);

proptest! {
    #[test]
    fn what_is_written_is_read(
        runs in prop::collection::vec((0_u64..9, 1_u64..9, any::<bool>()), 0..20),
        tail in 0_u64..4096,
        is_incremental in any::<bool>(),
        piece_bytes in 1_usize..20_000,
    ) {
        let runs: Vec<Run> = runs;
        let blocks: u64 = runs.iter().map(|(skip, len, _)| skip + len).sum();
        let mut header = golden_header();
        header.size_bytes = blocks * BLOCK_SIZE + tail;
        if !is_incremental {
            header.base = None;
        }
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&header, &mut bytes).expect("a header");
        let mut expected = vec![Event::Header(Box::new(header))];
        let mut at = 0;
        for (skip, len, is_data) in runs {
            let offset_bytes = at + skip * BLOCK_SIZE;
            let len_bytes = len * BLOCK_SIZE;
            at = offset_bytes + len_bytes;
            if is_data {
                let data = vec![len as u8; len_bytes as usize];
                prop_assert!(encoder.data(offset_bytes, &data, &mut bytes));
                expected.push(Event::Data { offset_bytes, bytes: data });
            } else {
                prop_assert!(encoder.zeros(offset_bytes, len_bytes, &mut bytes));
                expected.push(Event::Zeros { offset_bytes, len_bytes });
            }
        }
        let totals = encoder.finish(&mut bytes);
        expected.push(Event::End(totals));
        let (events, end) = decode(&bytes, piece_bytes);
        prop_assert_eq!(events, expected);
        prop_assert_eq!(end, Ok(totals));
    }

    #[test]
    fn random_bytes_are_no_stream(
        choice in any::<u8>(),
        places in prop::collection::vec(any::<(usize, u8)>(), 0..6),
        cut_at in 0_usize..6000,
    ) {
        let mut bytes = GOLDEN.to_vec();
        for (at, value) in places {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(cut_at);
        any_bytes(&[&[choice], bytes.as_slice()].concat());
    }
}
