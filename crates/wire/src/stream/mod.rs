//! The stream of a snapshot: what a backup is. The layout is in `docs/formats/stream.md` and nowhere else.
//!
//! Invariants: records come in the order of their offsets, don't overlap and lie within the size that
//! the header names; what was cut off, damaged, left out or put in another order is noticed, the end by
//! a trailer that counts and covers everything before it. An encoder can't write anything else, and a
//! decoder refuses anything else, so both go by one [`Totals`].

mod decode;
mod encode;
mod error;
mod header;

pub use decode::{Decoder, Event};
pub use encode::Encoder;
pub use error::StreamError;
pub use header::{HEADER_BYTES, STREAM_MAGIC, STREAM_VERSION, StreamBase, StreamHeader};

use flagstone_types::BLOCK_SIZE;
use flagstone_types::checksum::{crc32c, crc32c_combine};

/// Bytes in front of a record's payload.
pub const RECORD_BYTES: usize = 32;

/// Most bytes of data in one record.
pub const DATA_MAX_BYTES: u32 = 1 << 20;

/// Bytes of a trailer's payload.
const TRAILER_BYTES: usize = 32;

const KIND_DATA: u8 = 1;
const KIND_ZEROS: u8 = 2;
const KIND_END: u8 = 3;

/// What a stream comes to, up to some place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Records, without the trailer.
    pub records: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes that read as zeros and are not in the stream.
    pub zero_bytes: u64,
    /// CRC32C of all bytes, the header's included.
    crc: u32,
    /// Where the last record ends in the volume.
    pub end_bytes: u64,
}

impl Totals {
    /// More of the stream: `crc` is that of these `bytes`.
    fn cover(&mut self, crc: u32, bytes: u64) {
        self.crc = crc32c_combine(self.crc, crc, bytes);
    }

    /// A record, if it may stand here.
    fn add(&mut self, record: &RecordHead, size_bytes: u64) -> Result<(), &'static str> {
        let end = record.offset_bytes.checked_add(record.len_bytes);
        let Some(end) = end.filter(|end| *end <= size_bytes) else {
            return Err("it ends behind the volume's end");
        };
        if record.len_bytes == 0 {
            return Err("it covers nothing");
        }
        if record.offset_bytes < self.end_bytes {
            return Err("it begins before the record in front of it ends");
        }
        let is_whole = end.is_multiple_of(BLOCK_SIZE) || end == size_bytes;
        if !record.offset_bytes.is_multiple_of(BLOCK_SIZE) || !is_whole {
            return Err("it covers a part of a block");
        }
        match record.kind {
            KIND_DATA => self.data_bytes += record.len_bytes,
            _ => self.zero_bytes += record.len_bytes,
        }
        self.records += 1;
        self.end_bytes = end;
        Ok(())
    }

    /// A trailer's payload.
    fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(&self.records.to_le_bytes());
        out[8..16].copy_from_slice(&self.data_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.zero_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.crc.to_le_bytes());
        out
    }
}

/// What stands in front of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordHead {
    kind: u8,
    payload_bytes: u32,
    offset_bytes: u64,
    len_bytes: u64,
    payload_crc: u32,
}

impl RecordHead {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[0] = self.kind;
        out[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if the checksum isn't that of the bytes.
    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Result<RecordHead, &'static str>> {
        if u32_at(bytes, 28) != crc32c(&bytes[..28]) {
            return None;
        }
        let head = RecordHead {
            kind: bytes[0],
            payload_bytes: u32_at(bytes, 4),
            offset_bytes: u64_at(bytes, 8),
            len_bytes: u64_at(bytes, 16),
            payload_crc: u32_at(bytes, 24),
        };
        Some(head.check(&bytes[1..4]).map(|()| head))
    }

    /// What has to hold of a record by itself.
    fn check(&self, zeros: &[u8]) -> Result<(), &'static str> {
        if zeros != [0; 3] {
            return Err("bytes of it that must be 0 are not");
        }
        match self.kind {
            KIND_DATA if self.payload_bytes > DATA_MAX_BYTES => Err("it has more data than it may"),
            KIND_DATA if u64::from(self.payload_bytes) != self.len_bytes => {
                Err("its data is not as long as what it covers")
            }
            KIND_ZEROS if self.payload_bytes != 0 || self.payload_crc != 0 => {
                Err("it has data, and covers zeros")
            }
            KIND_END if self.payload_bytes as usize != TRAILER_BYTES => {
                Err("the trailer is not as long as one is")
            }
            KIND_END if self.len_bytes != 0 => Err("the trailer covers something"),
            KIND_DATA | KIND_ZEROS | KIND_END => Ok(()),
            _ => Err("its kind means nothing in this version"),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}
