//! Replies to bytes: headers and bodies share small buffers, payload is sent from where it is.
//!
//! The checksum of a payload is put together from those of its parts; only parts whose checksum nobody knows are
//! passed over. How replies are gathered for the socket: [`crate::gathered`].

use flagstone_platform::{BufferPool, IoBuf};
use flagstone_types::{BLOCK_SIZE, BlockChecksum};
use flagstone_wire::query::{Item, SPARSE_RUN_BYTES, SparseRun};
use flagstone_wire::{PayloadCrc, REPLY_HEADER_BYTES, ReplyHeader};

use super::connection::{Answer, Ticket};
use super::volume::{Part, Parts};
use crate::gathered::{Gathered, HEADER_MAX_BYTES};

const _: () = assert!(REPLY_HEADER_BYTES <= HEADER_MAX_BYTES);

/// The longest run of a sparse reply, in bytes: a multiple of the block size.
const RUN_MAX_BYTES: u64 = 1 << 30;

/// What follows the header of a reply.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Nothing.
    None,
    /// A sentence for people, up to the longest that may be.
    Sentence(&'static str),
    /// A body.
    Body(Vec<u8>),
    /// What was read.
    Parts(Parts),
    /// What was read: zeros are said in the body, not sent.
    Sparse(Parts),
    /// What was read, and a body.
    PartsAndBody(Parts, Vec<u8>),
    /// These bytes; their checksum if it is known.
    Payload(IoBuf, Option<u32>),
}

impl ReplyBody {
    /// Bytes of payload that it stands for; zeros that are left out count.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match self {
            ReplyBody::None | ReplyBody::Sentence(_) | ReplyBody::Body(_) => 0,
            ReplyBody::Parts(parts)
            | ReplyBody::Sparse(parts)
            | ReplyBody::PartsAndBody(parts, _) => parts_bytes(parts),
            ReplyBody::Payload(buf, _) => buf.len() as u64,
        }
    }
}

/// Bytes of one part.
pub(crate) fn part_bytes(part: &Part) -> u64 {
    match part {
        Part::Data(buf, _) => buf.len() as u64,
        Part::Zeros(bytes) => *bytes,
    }
}

/// Bytes of all parts.
pub(crate) fn parts_bytes(parts: &Parts) -> u64 {
    parts.iter().map(part_bytes).fold(0, u64::saturating_add)
}

/// Gathers replies. See the module's page.
pub(crate) struct Outbox {
    gathered: Gathered,
    /// The longest body, in bytes.
    body_max_bytes: usize,
    /// Memory of a body that is put together here, used again and again.
    scratch: Vec<u8>,
}

impl Outbox {
    pub(crate) fn new(buffers: BufferPool, body_max_bytes: u32) -> Outbox {
        Outbox {
            gathered: Gathered::new(buffers),
            body_max_bytes: body_max_bytes as usize,
            scratch: Vec::new(),
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
    pub(crate) fn push(&mut self, ticket: &Ticket, answer: Answer) {
        let header = ReplyHeader {
            operation: ticket.operation,
            flags: 0,
            status: answer.status.number(),
            volume: ticket.volume,
            number: ticket.number,
            lsn: answer.lsn,
            waited_us: u32::try_from(ticket.waited_ns / 1000).unwrap_or(u32::MAX),
            ..ReplyHeader::default()
        };
        match answer.body {
            ReplyBody::None => self.put_header(header),
            ReplyBody::Sentence(text) => self.push_body(header, text.as_bytes()),
            ReplyBody::Body(body) => self.push_body(header, &body),
            ReplyBody::Parts(parts) => self.push_parts(header, &[], parts),
            ReplyBody::PartsAndBody(parts, body) => self.push_parts(header, &body, parts),
            ReplyBody::Sparse(parts) => self.push_sparse(header, parts),
            ReplyBody::Payload(buf, crc) => {
                let mut parts = Parts::new();
                parts.push(Part::Data(buf, crc));
                self.push_parts(header, &[], parts);
            }
        }
    }

    fn put_header(&mut self, header: ReplyHeader) {
        let bytes = header.encode();
        self.gathered.put_headers(|out| {
            out[..REPLY_HEADER_BYTES].copy_from_slice(&bytes);
            REPLY_HEADER_BYTES
        });
    }

    fn push_body(&mut self, mut header: ReplyHeader, body: &[u8]) {
        header.set_body(body);
        self.put_header(header);
        self.gathered.push_copy(body);
    }

    fn push_parts(&mut self, mut header: ReplyHeader, body: &[u8], parts: Parts) {
        let mut crc = PayloadCrc::new();
        for part in &parts {
            add(&mut crc, part);
        }
        header.payload_crc = crc.value();
        // At most the limit for a payload, which is an u32.
        header.payload_bytes = parts_bytes(&parts) as u32;
        self.push_body(header, body);
        for part in parts {
            match part {
                Part::Data(buf, _) => self.gathered.push_payload(buf),
                Part::Zeros(bytes) => self.gathered.push_zeros(bytes),
            }
        }
    }

    fn push_sparse(&mut self, header: ReplyHeader, parts: Parts) {
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        put_runs(&parts, &mut body);
        let parts = if body.len() > self.body_max_bytes {
            // Cut into pieces so small that to name them all takes more than a body holds: sent as it is.
            body.clear();
            put_run(parts_bytes(&parts), false, &mut body);
            parts
        } else {
            let mut data = parts;
            data.retain(|part| matches!(part, Part::Data(..)));
            data
        };
        self.push_parts(header, &body, parts);
        self.scratch = body;
    }
}

/// The runs that parts are made of, neighbours of a kind as one.
fn put_runs(parts: &Parts, body: &mut Vec<u8>) {
    let mut run = (0, false);
    for part in parts {
        let is_zeros = matches!(part, Part::Zeros(_));
        if is_zeros != run.1 {
            put_run(run.0, run.1, body);
            run = (0, is_zeros);
        }
        run.0 += part_bytes(part);
    }
    put_run(run.0, run.1, body);
}

fn put_run(mut bytes: u64, is_zeros: bool, body: &mut Vec<u8>) {
    while bytes > 0 {
        let len = bytes.min(RUN_MAX_BYTES);
        let run = SparseRun {
            len_bytes: len as u32,
            is_zeros,
        };
        run.put(body);
        bytes -= len;
    }
}

const _: () = assert!(SPARSE_RUN_BYTES == 4 && RUN_MAX_BYTES.is_multiple_of(BLOCK_SIZE));

fn add(crc: &mut PayloadCrc, part: &Part) {
    match part {
        Part::Data(buf, Some(known)) if buf.len() as u64 == BLOCK_SIZE => {
            crc.add_block(BlockChecksum(*known));
        }
        Part::Data(buf, Some(known)) => crc.add(*known, buf.len() as u64),
        Part::Data(buf, None) => crc.add_bytes(buf),
        Part::Zeros(bytes) => crc.add_zeros(*bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_wire::query::decode_sparse_runs;

    fn data(len: usize) -> Part {
        Part::Data(IoBuf::copy_of(&vec![1; len]), None)
    }

    fn runs(parts: Vec<Part>) -> Vec<(u32, bool)> {
        let parts = Parts::from_vec(parts);
        let data_bytes = parts.iter().map(|part| match part {
            Part::Data(buf, _) => buf.len() as u32,
            Part::Zeros(_) => 0,
        });
        let (all, data_bytes) = (parts_bytes(&parts), data_bytes.sum());
        let mut body = Vec::new();
        put_runs(&parts, &mut body);
        let runs = decode_sparse_runs(&body, all, data_bytes).expect("they cover all of it");
        runs.map(|run| (run.len_bytes, run.is_zeros)).collect()
    }

    #[test]
    fn neighbours_of_a_kind_are_one_run() {
        let zeros = Part::Zeros;
        assert_eq!(runs(vec![data(5)]), [(5, false)]);
        assert_eq!(runs(vec![zeros(5), zeros(6)]), [(11, true)]);
        assert_eq!(
            runs(vec![zeros(5), zeros(0), data(3), data(4), zeros(6)]),
            [(5, true), (7, false), (6, true)]
        );
        assert_eq!(
            runs(vec![zeros(RUN_MAX_BYTES + 1)]),
            [(1 << 30, true), (1, true)]
        );
    }
}
