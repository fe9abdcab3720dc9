//! The record of what was done to a device, from which crash images are made.
//!
//! The real runtime writes one such file per device while it serves a load; [`LogReplay`] reads it.
//! This module needs nothing but `std` and the checksums of `flagstone-types`.
//!
//! All numbers are little-endian. The file is a header of 16 bytes, then entries back to back:
//!
//! | offset | size | header |
//! | ---: | ---: | --- |
//! | 0 | 8 | magic `FLGIOREC` |
//! | 8 | 2 | version, 1 |
//! | 10 | 6 | zero |
//!
//! | offset | size | entry |
//! | ---: | ---: | --- |
//! | 0 | 4 | CRC32C of everything that follows in the entry |
//! | 4 | 1 | kind, see below |
//! | 5 | 1 | 1 if the operation succeeded (completions), else 0 |
//! | 6 | 2 | zero |
//! | 8 | 8 | id of the operation; value of a mark |
//! | 16 | 8 | offset on the device in bytes (write, discard), else 0 |
//! | 24 | 8 | length in bytes (write, discard), else 0 |
//! | 32 | length | the bytes written (write only) |
//!
//! Kinds: 1 write submitted, 2 write completed, 3 flush submitted, 4 flush completed, 5 discard
//! submitted, 6 discard completed, 7 mark. A mark says what the recorded side promised to a client
//! at that moment, for whoever checks the images.
//!
//! A record may be cut off anywhere (the recording process was killed); the entries before the cut
//! are good. Nothing in a file makes the reader panic or take memory beyond what the file holds.
//!
//! [`LogReplay`]: crate::crash::LogReplay

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use flagstone_types::BlockChecksum;

/// The first bytes of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"FLGIOREC";

/// The version this module writes, and the only one it reads.
pub const RECORD_VERSION: u16 = 1;

/// The longest write that fits an entry, in bytes.
pub const RECORDED_WRITE_MAX_BYTES: u64 = 64 << 20;

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 32;

/// One event on a device. Ids are free for reuse once their operation has completed; flushes have
/// ids of their own, writes and discards share theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoEvent {
    /// A write is about to be handed to the device.
    WriteSubmitted {
        /// The operation.
        id: u64,
        /// Where it goes, in bytes.
        offset_bytes: u64,
        /// What it writes.
        bytes: Arc<[u8]>,
    },
    /// The device has answered a write.
    WriteCompleted {
        /// The operation.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// A flush is about to be handed to the device.
    FlushSubmitted {
        /// The operation.
        id: u64,
    },
    /// The device has answered a flush.
    FlushCompleted {
        /// The operation.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// A discard is about to be handed to the device.
    DiscardSubmitted {
        /// The operation.
        id: u64,
        /// Where it begins, in bytes.
        offset_bytes: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// The device has answered a discard.
    DiscardCompleted {
        /// The operation.
        id: u64,
        /// False if it failed.
        ok: bool,
    },
    /// Something worth remembering happened above the device.
    Mark {
        /// Its meaning is between the recorder and the checker.
        value: u64,
    },
}

/// Why a record can't be read further.
#[derive(Debug)]
pub enum RecordError {
    /// Reading the file failed.
    Io(io::Error),
    /// The file does not begin like a record.
    NotARecord,
    /// The record has a version this module does not know.
    Version {
        /// The version found.
        found: u16,
    },
    /// The file ends within an entry: the recording was cut off there.
    CutOff {
        /// Where the entry begins, in bytes.
        at_bytes: u64,
    },
    /// An entry's bytes don't match their checksum.
    Checksum {
        /// Where the entry begins, in bytes.
        at_bytes: u64,
    },
    /// An entry has a valid checksum and makes no sense.
    Entry {
        /// Where the entry begins, in bytes.
        at_bytes: u64,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Io(error) => write!(f, "reading the record failed: {error}"),
            RecordError::NotARecord => f.write_str("the file is no record of a device"),
            RecordError::Version { found } => write!(
                f,
                "the record has version {found}, this program reads {RECORD_VERSION}"
            ),
            RecordError::CutOff { at_bytes } => {
                write!(
                    f,
                    "the record is cut off within the entry at byte {at_bytes}"
                )
            }
            RecordError::Checksum { at_bytes } => {
                write!(
                    f,
                    "the entry at byte {at_bytes} does not match its checksum"
                )
            }
            RecordError::Entry { at_bytes } => {
                write!(f, "the entry at byte {at_bytes} makes no sense")
            }
        }
    }
}

impl std::error::Error for RecordError {}

/// Writes a record.
pub struct RecordWriter<W> {
    target: W,
}

impl<W: Write> RecordWriter<W> {
    /// Begins a record by writing its header.
    pub fn new(mut target: W) -> io::Result<RecordWriter<W>> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&RECORD_MAGIC);
        header[8..10].copy_from_slice(&RECORD_VERSION.to_le_bytes());
        target.write_all(&header)?;
        Ok(RecordWriter { target })
    }

    /// Appends an event. Fails with `InvalidInput` for a write beyond
    /// [`RECORDED_WRITE_MAX_BYTES`].
    pub fn append(&mut self, event: &IoEvent) -> io::Result<()> {
        let (kind, ok, id, offset_bytes, len_bytes) = fields(event);
        let payload: &[u8] = match event {
            IoEvent::WriteSubmitted { bytes, .. } => bytes,
            _ => &[],
        };
        if payload.len() as u64 > RECORDED_WRITE_MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut entry = Vec::with_capacity(ENTRY_BYTES + payload.len());
        entry.extend_from_slice(&[0; 4]);
        entry.extend_from_slice(&[kind, u8::from(ok), 0, 0]);
        entry.extend_from_slice(&id.to_le_bytes());
        entry.extend_from_slice(&offset_bytes.to_le_bytes());
        entry.extend_from_slice(&len_bytes.to_le_bytes());
        entry.extend_from_slice(payload);
        let checksum = BlockChecksum::of(&entry[4..]).0;
        entry[..4].copy_from_slice(&checksum.to_le_bytes());
        self.target.write_all(&entry)
    }

    /// The target, with everything appended handed over to it.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.target.flush()?;
        Ok(self.target)
    }
}

/// Kind, success, id, offset and length of an event, as the entry has them.
fn fields(event: &IoEvent) -> (u8, bool, u64, u64, u64) {
    match event {
        IoEvent::WriteSubmitted {
            id,
            offset_bytes,
            bytes,
        } => (1, false, *id, *offset_bytes, bytes.len() as u64),
        IoEvent::WriteCompleted { id, ok } => (2, *ok, *id, 0, 0),
        IoEvent::FlushSubmitted { id } => (3, false, *id, 0, 0),
        IoEvent::FlushCompleted { id, ok } => (4, *ok, *id, 0, 0),
        IoEvent::DiscardSubmitted {
            id,
            offset_bytes,
            len_bytes,
        } => (5, false, *id, *offset_bytes, *len_bytes),
        IoEvent::DiscardCompleted { id, ok } => (6, *ok, *id, 0, 0),
        IoEvent::Mark { value } => (7, false, *value, 0, 0),
    }
}

/// Reads a record: an iterator over its events that ends at the end of the file or after the first
/// error.
pub struct RecordReader<R> {
    source: R,
    at_bytes: u64,
    ended: bool,
}

impl<R: Read> RecordReader<R> {
    /// Checks the header.
    pub fn new(mut source: R) -> Result<RecordReader<R>, RecordError> {
        let header = read_up_to(&mut source, HEADER_BYTES as u64)?;
        if header.len() < HEADER_BYTES || header[..8] != RECORD_MAGIC {
            return Err(RecordError::NotARecord);
        }
        let found = u16::from_le_bytes([header[8], header[9]]);
        if found != RECORD_VERSION {
            return Err(RecordError::Version { found });
        }
        Ok(RecordReader {
            source,
            at_bytes: HEADER_BYTES as u64,
            ended: false,
        })
    }

    fn read_entry(&mut self) -> Result<Option<IoEvent>, RecordError> {
        let at_bytes = self.at_bytes;
        let mut entry = read_up_to(&mut self.source, ENTRY_BYTES as u64)?;
        if entry.is_empty() {
            return Ok(None);
        }
        if entry.len() < ENTRY_BYTES {
            return Err(RecordError::CutOff { at_bytes });
        }
        let (kind, len_bytes) = (entry[4], number_at(&entry, 24));
        let payload_bytes = if kind == 1 { len_bytes } else { 0 };
        // Not yet covered by the checksum: bounded before it is used.
        if payload_bytes > RECORDED_WRITE_MAX_BYTES {
            return Err(RecordError::Checksum { at_bytes });
        }
        let payload = read_up_to(&mut self.source, payload_bytes)?;
        if (payload.len() as u64) < payload_bytes {
            return Err(RecordError::CutOff { at_bytes });
        }
        entry.extend_from_slice(&payload);
        let stored = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        if BlockChecksum::of(&entry[4..]) != BlockChecksum(stored) {
            return Err(RecordError::Checksum { at_bytes });
        }
        self.at_bytes += entry.len() as u64;
        let event = decode(&entry, payload).ok_or(RecordError::Entry { at_bytes })?;
        Ok(Some(event))
    }
}

impl<R: Read> Iterator for RecordReader<R> {
    type Item = Result<IoEvent, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read_entry().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Grows with what is really there, whatever length was asked for.
fn read_up_to(source: &mut impl Read, len_bytes: u64) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::new();
    let mut source = source.take(len_bytes);
    source.read_to_end(&mut bytes).map_err(RecordError::Io)?;
    Ok(bytes)
}

fn number_at(entry: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&entry[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The event of an entry whose checksum is good. Fields that an event doesn't have must be zero,
/// so each event has one encoding.
fn decode(entry: &[u8], payload: Vec<u8>) -> Option<IoEvent> {
    let (kind, ok) = (entry[4], entry[5]);
    let (id, offset_bytes) = (number_at(entry, 8), number_at(entry, 16));
    let len_bytes = number_at(entry, 24);
    let is_completion = matches!(kind, 2 | 4 | 6);
    let has_range = matches!(kind, 1 | 5);
    if entry[6] != 0 || entry[7] != 0 || ok > u8::from(is_completion) {
        return None;
    }
    if !has_range && (offset_bytes | len_bytes) != 0 {
        return None;
    }
    let ok = ok == 1;
    Some(match kind {
        1 => IoEvent::WriteSubmitted {
            id,
            offset_bytes,
            bytes: payload.into(),
        },
        2 => IoEvent::WriteCompleted { id, ok },
        3 => IoEvent::FlushSubmitted { id },
        4 => IoEvent::FlushCompleted { id, ok },
        5 => IoEvent::DiscardSubmitted {
            id,
            offset_bytes,
            len_bytes,
        },
        6 => IoEvent::DiscardCompleted { id, ok },
        7 => IoEvent::Mark { value: id },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn one_of_each() -> Vec<IoEvent> {
        vec![
            IoEvent::WriteSubmitted {
                id: 1,
                offset_bytes: 4096,
                bytes: vec![7; 512].into(),
            },
            IoEvent::WriteCompleted { id: 1, ok: true },
            IoEvent::FlushSubmitted { id: u64::MAX },
            IoEvent::FlushCompleted {
                id: u64::MAX,
                ok: false,
            },
            IoEvent::DiscardSubmitted {
                id: 2,
                offset_bytes: 1 << 40,
                len_bytes: 128 << 20,
            },
            IoEvent::DiscardCompleted { id: 2, ok: true },
            IoEvent::Mark { value: 99 },
            IoEvent::WriteSubmitted {
                id: 3,
                offset_bytes: 0,
                bytes: Vec::new().into(),
            },
        ]
    }

    fn encode(events: &[IoEvent]) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new()).unwrap();
        for event in events {
            writer.append(event).unwrap();
        }
        writer.into_inner().unwrap()
    }

    /// The events before the first error, and the error.
    fn decode_all(bytes: &[u8]) -> (Vec<IoEvent>, Option<RecordError>) {
        let mut events = Vec::new();
        match RecordReader::new(bytes) {
            Err(error) => (events, Some(error)),
            Ok(reader) => {
                for event in reader {
                    match event {
                        Ok(event) => events.push(event),
                        Err(error) => return (events, Some(error)),
                    }
                }
                (events, None)
            }
        }
    }

    #[test]
    fn events_round_trip() {
        let events = one_of_each();
        let (decoded, error) = decode_all(&encode(&events));
        assert_eq!(decoded, events);
        assert!(error.is_none());
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = encode(&[IoEvent::WriteSubmitted {
            id: 0x0102,
            offset_bytes: 0x0a00,
            bytes: vec![0xcc; 2].into(),
        }]);
        assert_eq!(bytes[..10], *b"FLGIOREC\x01\x00");
        assert_eq!(bytes[20..26], [1, 0, 0, 0, 2, 1]);
        assert_eq!(bytes[32..34], [0x00, 0x0a]);
        assert_eq!(bytes[40..50], [2, 0, 0, 0, 0, 0, 0, 0, 0xcc, 0xcc]);
        assert_eq!(bytes.len(), 50);
    }

    #[test]
    fn a_record_cut_off_anywhere_gives_the_entries_before() {
        let events = one_of_each();
        let bytes = encode(&events);
        for len in 0..bytes.len() {
            let (decoded, error) = decode_all(&bytes[..len]);
            assert_eq!(decoded, events[..decoded.len()]);
            let at_boundary = encode(&events[..decoded.len()]).len() == len;
            match error {
                None => assert!(at_boundary),
                Some(RecordError::NotARecord) => assert!(len < HEADER_BYTES),
                Some(RecordError::CutOff { .. }) => assert!(!at_boundary),
                Some(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let events = one_of_each();
        let bytes = encode(&events);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let (decoded, error) = decode_all(&bytes);
                assert_eq!(decoded, events[..decoded.len()], "byte {at} bit {bit}");
                // The header's reserved bytes are not looked at.
                let reserved = (10..HEADER_BYTES).contains(&at);
                assert_eq!(error.is_none(), reserved, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn noise_does_no_harm() {
        let mut rng = Rng::new(21);
        let good = encode(&one_of_each());
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..rng.within(&(1..=8)) {
                let at = rng.index(bytes.len());
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.index(bytes.len() + 1));
            let (decoded, _) = decode_all(&bytes);
            assert!(decoded.len() <= 8);
            // With the checksums repaired the fields themselves are reached.
            if bytes.len() >= HEADER_BYTES + ENTRY_BYTES {
                bytes[..HEADER_BYTES].copy_from_slice(&good[..HEADER_BYTES]);
                let len = number_at(&bytes[HEADER_BYTES..], 24).min(1024) as usize;
                let len = if bytes[HEADER_BYTES + 4] == 1 { len } else { 0 };
                let end = HEADER_BYTES + ENTRY_BYTES + len;
                if end <= bytes.len() {
                    let checksum = BlockChecksum::of(&bytes[HEADER_BYTES + 4..end]).0;
                    let place = HEADER_BYTES..HEADER_BYTES + 4;
                    bytes[place].copy_from_slice(&checksum.to_le_bytes());
                }
                decode_all(&bytes);
            }
        }
    }

    #[test]
    fn a_huge_length_takes_no_memory() {
        let mut bytes = encode(&one_of_each()[..1]);
        let at = HEADER_BYTES + 24;
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let (decoded, error) = decode_all(&bytes);
        assert!(decoded.is_empty());
        assert!(matches!(
            error,
            Some(RecordError::Checksum { at_bytes: 16 })
        ));
        bytes[at..at + 8].copy_from_slice(&RECORDED_WRITE_MAX_BYTES.to_le_bytes());
        let (_, error) = decode_all(&bytes);
        assert!(matches!(error, Some(RecordError::CutOff { at_bytes: 16 })));
    }
}
