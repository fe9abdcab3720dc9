//! Replies to bytes: headers share small buffers, payload is sent from where it is.
//!
//! How they are gathered for the socket: [`crate::gathered`].

use flagstone_platform::{BufferPool, IoBuf};

use super::errors::Refusal;
use super::wire::{ChunkHeader, ReplyMode, chunk, put_simple_reply};
use crate::gathered::{Gathered, HEADER_MAX_BYTES};
use crate::volume::{Payload, Piece};

/// What a reply says.
#[derive(Debug)]
pub(crate) enum Body {
    /// Done.
    Done,
    /// Failed; at this offset if it is known.
    Failed(Refusal, Option<u64>),
    /// What was read, exactly `len_bytes` of it.
    Data {
        payload: Payload,
        offset_bytes: u64,
        len_bytes: u32,
        dont_fragment: bool,
    },
    /// Finished bytes, headers included.
    Encoded(IoBuf),
}

/// Which request is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) cookie: u64,
    pub(crate) request_offset_bytes: u64,
    /// A read, which has no short form of success in structured replies.
    pub(crate) is_read: bool,
}

/// Gathers replies. See the module's page.
pub(crate) struct Outbox {
    mode: ReplyMode,
    gathered: Gathered,
}

impl Outbox {
    pub(crate) fn new(mode: ReplyMode, buffers: BufferPool) -> Outbox {
        Outbox {
            mode,
            gathered: Gathered::new(buffers),
        }
    }

    /// True once there is enough for one call to the socket.
    pub(crate) fn is_full(&self) -> bool {
        self.gathered.is_full()
    }

    /// Moves the next buffers to send into `group`. False if there are none.
    pub(crate) fn take_group(&mut self, group: &mut Vec<IoBuf>) -> bool {
        self.gathered.take_group(group)
    }

    /// Forgets everything gathered.
    pub(crate) fn clear(&mut self) {
        self.gathered.clear();
    }

    /// Adds a reply.
    pub(crate) fn push(&mut self, address: &Address, body: Body) {
        match body {
            Body::Done => self.push_done(address),
            Body::Failed(refusal, at) => self.push_failed(address, refusal, at),
            Body::Data {
                payload,
                offset_bytes,
                len_bytes,
                dont_fragment,
            } => match self.mode {
                ReplyMode::Simple => {
                    self.gathered
                        .put_headers(|out| put_simple_reply(out, address.cookie, 0));
                    self.push_contiguous(payload);
                }
                _ if dont_fragment => self.push_whole(address, payload, offset_bytes, len_bytes),
                _ => self.push_fragments(address, payload, offset_bytes),
            },
            Body::Encoded(bytes) => self.gathered.push_payload(bytes),
        }
    }

    fn push_done(&mut self, address: &Address) {
        let simple = match self.mode {
            ReplyMode::Simple => true,
            // [nbd "Structured reply chunk message"] everything without payload but a read may be
            // answered with the shorter simple reply.
            ReplyMode::Structured => !address.is_read,
            ReplyMode::Extended => false,
        };
        if simple {
            self.gathered
                .put_headers(|out| put_simple_reply(out, address.cookie, 0));
        } else {
            self.put_chunk(address, chunk::DONE, chunk::NONE, 0, |_| 0);
        }
    }

    /// [nbd "Structured reply types", NBD_REPLY_TYPE_ERROR and NBD_REPLY_TYPE_ERROR_OFFSET]
    fn push_failed(&mut self, address: &Address, refusal: Refusal, at: Option<u64>) {
        let errno = refusal.errno.number();
        if !self.mode.is_chunked() {
            self.gathered
                .put_headers(|out| put_simple_reply(out, address.cookie, errno));
            return;
        }
        let message = refusal.message.as_bytes();
        let message = &message[..message.len().min(HEADER_MAX_BYTES - 64)];
        let kind = if at.is_some() {
            chunk::ERROR_OFFSET
        } else {
            chunk::ERROR
        };
        let payload_bytes = 6 + message.len() + at.map_or(0, |_| 8);
        self.put_chunk(address, chunk::DONE, kind, payload_bytes, |out| {
            out[..4].copy_from_slice(&errno.to_be_bytes());
            out[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
            out[6..6 + message.len()].copy_from_slice(message);
            if let Some(at) = at {
                out[6 + message.len()..payload_bytes].copy_from_slice(&at.to_be_bytes());
            }
            payload_bytes
        });
    }

    /// One chunk for each run of data and each run of zeros. The data is in memory, so nothing can
    /// fail any more and the last chunk may be marked as such.
    fn push_fragments(&mut self, address: &Address, payload: Payload, mut offset_bytes: u64) {
        let mut pieces = payload.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Zeros(mut zeros) => {
                    while let Some(Piece::Zeros(more)) = pieces.peek() {
                        zeros += *more;
                        pieces.next();
                    }
                    let flags = if pieces.peek().is_none() {
                        chunk::DONE
                    } else {
                        0
                    };
                    self.put_hole(address, flags, offset_bytes, zeros);
                    offset_bytes += zeros;
                }
                Piece::Data(first) => {
                    let mut run: smallvec::SmallVec<[IoBuf; 4]> = smallvec::smallvec![first];
                    while matches!(pieces.peek(), Some(Piece::Data(_))) {
                        if let Some(Piece::Data(more)) = pieces.next() {
                            run.push(more);
                        }
                    }
                    let flags = if pieces.peek().is_none() {
                        chunk::DONE
                    } else {
                        0
                    };
                    let len: usize = run.iter().map(|buf| buf.len()).sum();
                    self.put_data_header(address, flags, offset_bytes, len);
                    run.into_iter()
                        .for_each(|buf| self.gathered.push_payload(buf));
                    offset_bytes += len as u64;
                }
            }
        }
    }

    /// [nbd "Request types", NBD_CMD_READ, the flag DF] one chunk; a pure hole may stay one.
    fn push_whole(&mut self, address: &Address, payload: Payload, offset: u64, len_bytes: u32) {
        if payload.iter().all(|piece| matches!(piece, Piece::Zeros(_))) {
            self.put_hole(address, chunk::DONE, offset, u64::from(len_bytes));
        } else {
            self.put_data_header(address, chunk::DONE, offset, len_bytes as usize);
            self.push_contiguous(payload);
        }
    }

    fn push_contiguous(&mut self, payload: Payload) {
        for piece in payload {
            match piece {
                Piece::Data(buf) => self.gathered.push_payload(buf),
                Piece::Zeros(zeros) => self.gathered.push_zeros(zeros),
            }
        }
    }

    fn put_hole(&mut self, address: &Address, flags: u16, offset_bytes: u64, len_bytes: u64) {
        self.put_chunk(address, flags, chunk::OFFSET_HOLE, 12, |out| {
            out[..8].copy_from_slice(&offset_bytes.to_be_bytes());
            // A read is at most PAYLOAD_MAX_BYTES long, so this fits.
            out[8..12].copy_from_slice(&(len_bytes as u32).to_be_bytes());
            12
        });
    }

    fn put_data_header(&mut self, address: &Address, flags: u16, offset_bytes: u64, len: usize) {
        self.put_chunk(address, flags, chunk::OFFSET_DATA, 8 + len, |out| {
            out[..8].copy_from_slice(&offset_bytes.to_be_bytes());
            8
        });
    }

    /// A chunk's header and the fixed fields behind it.
    fn put_chunk(
        &mut self,
        address: &Address,
        flags: u16,
        kind: u16,
        payload_bytes: usize,
        put_fields: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let mode = self.mode;
        let header = ChunkHeader {
            flags,
            kind,
            cookie: address.cookie,
            request_offset_bytes: address.request_offset_bytes,
            payload_bytes: payload_bytes as u32,
        };
        self.gathered.put_headers(|out| {
            let len = header.put(mode, out);
            len + put_fields(&mut out[len..])
        });
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
