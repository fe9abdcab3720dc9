//! What the fuzzer runs, and the tests with random bytes: any bytes as a stream. Nothing panics, it
//! doesn't matter in what pieces they come, and what is accepted is what would be written again.

use flagstone_types::checksum::crc32c;
use flagstone_wire::stream::{
    Decoder, Encoder, Event, HEADER_BYTES, RECORD_BYTES, StreamError, Totals,
};

/// All events of a stream that comes in pieces of `piece_bytes`, and how it ended.
pub(crate) fn decode(
    bytes: &[u8],
    piece_bytes: usize,
) -> (Vec<Event>, Result<Totals, StreamError>) {
    let mut decoder = Decoder::default();
    let mut events = Vec::new();
    for piece in bytes.chunks(piece_bytes.max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Err(error)),
            }
        }
    }
    (events, decoder.finish())
}

/// Any bytes: the first says in what pieces they come, and whether checksums are made right.
pub(crate) fn any(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let mut bytes = rest.to_vec();
    if choice % 2 == 1 {
        seal(&mut bytes);
    }
    let (events, end) = decode(&bytes, usize::from(*choice) * 7);
    let (at_once, end_at_once) = decode(&bytes, usize::MAX);
    assert_eq!(events, at_once);
    assert_eq!(end, end_at_once);
    let Some((Event::Header(header), events)) = events.split_first() else {
        return;
    };
    let mut again = Vec::new();
    let mut encoder = Encoder::new(header, &mut again).expect("it was accepted");
    let mut has_ended = false;
    for event in events {
        match event {
            Event::Header(_) => panic!("a second header"),
            Event::Data {
                offset_bytes,
                bytes,
            } => assert!(encoder.data(*offset_bytes, bytes, &mut again)),
            Event::Zeros {
                offset_bytes,
                len_bytes,
            } => assert!(encoder.zeros(*offset_bytes, *len_bytes, &mut again)),
            Event::End(_) => has_ended = true,
        }
    }
    assert_eq!(again, bytes[..again.len()]);
    let totals = encoder.finish(&mut again);
    assert_eq!(end.is_ok(), has_ended && again.len() == bytes.len());
    if !has_ended {
        // With the right trailer, what was accepted is a stream.
        let (_, end) = decode(&again, usize::from(*choice));
        assert_eq!(end, Ok(totals));
    }
}

/// Makes the checksums of a header and of the records behind it right.
fn seal(bytes: &mut [u8]) {
    let Some(header) = bytes.first_chunk_mut::<HEADER_BYTES>() else {
        return;
    };
    header[..10].copy_from_slice(b"FSSTREAM\x01\0");
    header[124..128].fill(0);
    let crc = crc32c(header);
    header[124..128].copy_from_slice(&crc.to_le_bytes());
    let mut rest = &mut bytes[HEADER_BYTES..];
    while rest.len() >= RECORD_BYTES {
        let (head, behind) = rest.split_at_mut(RECORD_BYTES);
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let payload_bytes = len.min(behind.len());
        let (payload, behind) = behind.split_at_mut(payload_bytes);
        let crc = crc32c(payload);
        head[24..28].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&head[..28]);
        head[28..].copy_from_slice(&crc.to_le_bytes());
        rest = behind;
    }
}
