//! Writing a stream.

use flagstone_types::checksum::{crc32c, crc32c_append};

use super::{
    DATA_MAX_BYTES, KIND_DATA, KIND_END, KIND_ZEROS, RECORD_BYTES, RecordHead, StreamHeader, Totals,
};

/// Writes a stream, piece by piece.
#[derive(Clone, Debug)]
pub struct Encoder {
    size_bytes: u64,
    totals: Totals,
}

impl Encoder {
    /// Begins a stream: appends its header to `out`. `None` if the header can't be sent.
    pub fn new(header: &StreamHeader, out: &mut Vec<u8>) -> Option<Encoder> {
        let bytes = header.encode()?;
        let mut totals = Totals::default();
        totals.cover(crc32c(&bytes), bytes.len() as u64);
        out.extend(bytes);
        Some(Encoder {
            size_bytes: header.size_bytes,
            totals,
        })
    }

    /// What was written so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Appends data at `offset_bytes` of the volume: whole blocks, unless it reaches the volume's end.
    /// It becomes as many records as needed. False, and the stream is spoilt, if it can't follow
    /// what was written before.
    pub fn data(&mut self, offset_bytes: u64, data: &[u8], out: &mut Vec<u8>) -> bool {
        let mut at = offset_bytes;
        for part in data.chunks(DATA_MAX_BYTES as usize) {
            let head = RecordHead {
                kind: KIND_DATA,
                payload_bytes: part.len() as u32,
                offset_bytes: at,
                len_bytes: part.len() as u64,
                payload_crc: crc32c(part),
            };
            if !self.put(&head, out) {
                return false;
            }
            out.extend(part);
            self.totals.cover(head.payload_crc, head.len_bytes);
            at += head.len_bytes;
        }
        !data.is_empty()
    }

    /// Appends that `len_bytes` from `offset_bytes` on read as zeros. The same rules as for data.
    pub fn zeros(&mut self, offset_bytes: u64, len_bytes: u64, out: &mut Vec<u8>) -> bool {
        let head = RecordHead {
            kind: KIND_ZEROS,
            payload_bytes: 0,
            offset_bytes,
            len_bytes,
            payload_crc: 0,
        };
        self.put(&head, out)
    }

    fn put(&mut self, head: &RecordHead, out: &mut Vec<u8>) -> bool {
        if self.totals.add(head, self.size_bytes).is_err() {
            return false;
        }
        let bytes = head.encode();
        self.totals.cover(crc32c(&bytes), RECORD_BYTES as u64);
        out.extend(bytes);
        true
    }

    /// Ends the stream: appends its trailer.
    pub fn finish(self, out: &mut Vec<u8>) -> Totals {
        let payload = self.totals.encode();
        let head = RecordHead {
            kind: KIND_END,
            payload_bytes: payload.len() as u32,
            offset_bytes: self.size_bytes,
            len_bytes: 0,
            payload_crc: crc32c_append(0, &payload),
        };
        out.extend(head.encode());
        out.extend(payload);
        self.totals
    }
}
