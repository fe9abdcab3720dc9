//! The headers of requests and replies: fixed arrays of 64 and 48 bytes, checked by their own
//! checksum.
//!
//! Numbers without a meaning (of an operation, flag or status) survive decoding, so that a server
//! can answer what it doesn't know and a client can say what it was answered.

use std::fmt;

use flagstone_types::checksum::crc32c;
use flagstone_types::{Epoch, Lsn};

use crate::operation::flag;
use crate::{CarriedOut, HeadDamaged, Operation, Status};

/// Bytes of a request's header.
pub const REQUEST_HEADER_BYTES: usize = 64;
/// Bytes of a reply's header.
pub const REPLY_HEADER_BYTES: usize = 48;
/// Bytes of the checksum at the end of both.
const CRC_BYTES: usize = 4;

/// What an `OPEN` was answered: names a volume on this connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct VolumeNo(pub u32);

impl VolumeNo {
    /// Concerns no volume.
    pub const NONE: VolumeNo = VolumeNo(0);
}

impl fmt::Display for VolumeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}", self.0)
    }
}

/// Header of a request. Whether its values make sense is asked of [`crate::check()`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestHeader {
    /// [`Operation`] as a number; see [`RequestHeader::operation`].
    pub operation: u8,
    /// Flags of the operation, [`flag`].
    pub flags: u8,
    /// 0, or how long after its arrival the request is still worth beginning, in milliseconds.
    pub patience_ms: u16,
    /// Which volume.
    pub volume: VolumeNo,
    /// 1 for the first request of a session, then one more each; 0 for `HELLO`.
    pub number: u64,
    /// Bytes of the body, which follows the header.
    pub body_bytes: u32,
    /// Bytes of the payload, which follows the body.
    pub payload_bytes: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
    /// CRC32C of the payload.
    pub payload_crc: u32,
    /// Where in the volume, in bytes.
    pub offset_bytes: u64,
    /// How much of it, in bytes.
    pub len_bytes: u64,
    /// Of the operation: an LSN, or what the operation has in its place.
    pub lsn: Lsn,
    /// So many numbers before this one may still lack a reply that has arrived at the client.
    pub unsettled: u32,
}

impl RequestHeader {
    /// Of an operation, everything else 0.
    pub fn of(operation: Operation) -> RequestHeader {
        RequestHeader {
            operation: operation.number(),
            ..RequestHeader::default()
        }
    }

    /// What is to be done; `None` if this version of the protocol doesn't know it.
    pub fn operation(&self) -> Option<Operation> {
        Operation::from_number(self.operation)
    }

    /// True if the flags of `bits` are set.
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// The metadata that a `WRITE` gives each block; `None` if it gives none.
    pub fn metadata(&self) -> Option<u64> {
        let is_write = self.operation() == Some(Operation::Write);
        (is_write && self.has(flag::METADATA)).then_some(self.lsn.0)
    }

    /// The epoch of a `SET_EPOCH` that [`crate::check()`] lets run.
    pub fn epoch(&self) -> Epoch {
        Epoch(u32::try_from(self.lsn.0).unwrap_or(u32::MAX))
    }

    /// Bytes of body and payload: how far the next header is.
    pub fn follow_bytes(&self) -> u64 {
        u64::from(self.body_bytes) + u64::from(self.payload_bytes)
    }

    /// Bytes of payload that the reply can have, as far as the header says: a `READ_IF` asks for
    /// what its body says besides.
    pub fn reply_payload_bytes(&self) -> u64 {
        match self.operation() {
            Some(Operation::Read | Operation::ReadMetadata | Operation::CompareAndSwap) => {
                self.len_bytes
            }
            Some(Operation::Ping) => self.payload_bytes.into(),
            _ => 0,
        }
    }

    /// True if `body` is what the header announces. If not: [`Status::Damaged`].
    pub fn check_body(&self, body: &[u8]) -> bool {
        is_announced(body, self.body_bytes, self.body_crc)
    }

    /// Announces `body`.
    pub fn set_body(&mut self, body: &[u8]) {
        (self.body_bytes, self.body_crc) = announcement(body);
    }

    /// The bytes that are sent.
    pub fn encode(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[0] = self.operation;
        bytes[1] = self.flags;
        put(&mut bytes, 2, self.patience_ms.to_le_bytes());
        put(&mut bytes, 4, self.volume.0.to_le_bytes());
        put(&mut bytes, 8, self.number.to_le_bytes());
        put(&mut bytes, 16, self.body_bytes.to_le_bytes());
        put(&mut bytes, 20, self.payload_bytes.to_le_bytes());
        put(&mut bytes, 24, self.body_crc.to_le_bytes());
        put(&mut bytes, 28, self.payload_crc.to_le_bytes());
        put(&mut bytes, 32, self.offset_bytes.to_le_bytes());
        put(&mut bytes, 40, self.len_bytes.to_le_bytes());
        put(&mut bytes, 48, self.lsn.0.to_le_bytes());
        put(&mut bytes, 56, self.unsettled.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// A header from the bytes that came.
    pub fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Result<RequestHeader, HeadDamaged> {
        check_seal(bytes)?;
        Ok(RequestHeader {
            operation: bytes[0],
            flags: bytes[1],
            patience_ms: u16::from_le_bytes(get(bytes, 2)),
            volume: VolumeNo(u32::from_le_bytes(get(bytes, 4))),
            number: u64::from_le_bytes(get(bytes, 8)),
            body_bytes: u32::from_le_bytes(get(bytes, 16)),
            payload_bytes: u32::from_le_bytes(get(bytes, 20)),
            body_crc: u32::from_le_bytes(get(bytes, 24)),
            payload_crc: u32::from_le_bytes(get(bytes, 28)),
            offset_bytes: u64::from_le_bytes(get(bytes, 32)),
            len_bytes: u64::from_le_bytes(get(bytes, 40)),
            lsn: Lsn(u64::from_le_bytes(get(bytes, 48))),
            unsettled: u32::from_le_bytes(get(bytes, 56)),
        })
    }
}

/// Header of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyHeader {
    /// That of the request.
    pub operation: u8,
    /// None has a meaning yet: 0.
    pub flags: u8,
    /// [`Status`] as a number; see [`ReplyHeader::status`].
    pub status: u16,
    /// That of the request; for `OPEN` the one to name from now on.
    pub volume: VolumeNo,
    /// That of the request.
    pub number: u64,
    /// Bytes of the body, which follows the header.
    pub body_bytes: u32,
    /// Bytes of the payload, which follows the body.
    pub payload_bytes: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
    /// CRC32C of the payload.
    pub payload_crc: u32,
    /// Of a change: the one it got, of several the highest. Of a read or question: the volume's
    /// last one before it was carried out.
    pub lsn: Lsn,
    /// How long the request waited for its turn at the server, in microseconds.
    pub waited_us: u32,
}

impl ReplyHeader {
    /// The reply to a request, with nothing but a status.
    pub fn to(request: &RequestHeader, status: Status) -> ReplyHeader {
        ReplyHeader {
            operation: request.operation,
            status: status.number(),
            volume: request.volume,
            number: request.number,
            ..ReplyHeader::default()
        }
    }

    /// What was asked for; `None` if this version of the protocol doesn't know it.
    pub fn operation(&self) -> Option<Operation> {
        Operation::from_number(self.operation)
    }

    /// What it came to; `None` if this version of the protocol doesn't know it. Then it has failed,
    /// and may have been carried out.
    pub fn status(&self) -> Option<Status> {
        Status::from_number(self.status)
    }

    /// Whether it was carried out. What has a status of a later version may have been.
    pub fn carried_out(&self) -> CarriedOut {
        self.status()
            .map_or(CarriedOut::Perhaps, Status::carried_out)
    }

    /// Bytes of body and payload: how far the next header is.
    pub fn follow_bytes(&self) -> u64 {
        u64::from(self.body_bytes) + u64::from(self.payload_bytes)
    }

    /// True if `body` is what the header announces.
    pub fn check_body(&self, body: &[u8]) -> bool {
        is_announced(body, self.body_bytes, self.body_crc)
    }

    /// Announces `body`.
    pub fn set_body(&mut self, body: &[u8]) {
        (self.body_bytes, self.body_crc) = announcement(body);
    }

    /// The bytes that are sent.
    pub fn encode(&self) -> [u8; REPLY_HEADER_BYTES] {
        let mut bytes = [0; REPLY_HEADER_BYTES];
        bytes[0] = self.operation;
        bytes[1] = self.flags;
        put(&mut bytes, 2, self.status.to_le_bytes());
        put(&mut bytes, 4, self.volume.0.to_le_bytes());
        put(&mut bytes, 8, self.number.to_le_bytes());
        put(&mut bytes, 16, self.body_bytes.to_le_bytes());
        put(&mut bytes, 20, self.payload_bytes.to_le_bytes());
        put(&mut bytes, 24, self.body_crc.to_le_bytes());
        put(&mut bytes, 28, self.payload_crc.to_le_bytes());
        put(&mut bytes, 32, self.lsn.0.to_le_bytes());
        put(&mut bytes, 40, self.waited_us.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// A header from the bytes that came.
    pub fn decode(bytes: &[u8; REPLY_HEADER_BYTES]) -> Result<ReplyHeader, HeadDamaged> {
        check_seal(bytes)?;
        Ok(ReplyHeader {
            operation: bytes[0],
            flags: bytes[1],
            status: u16::from_le_bytes(get(bytes, 2)),
            volume: VolumeNo(u32::from_le_bytes(get(bytes, 4))),
            number: u64::from_le_bytes(get(bytes, 8)),
            body_bytes: u32::from_le_bytes(get(bytes, 16)),
            payload_bytes: u32::from_le_bytes(get(bytes, 20)),
            body_crc: u32::from_le_bytes(get(bytes, 24)),
            payload_crc: u32::from_le_bytes(get(bytes, 28)),
            lsn: Lsn(u64::from_le_bytes(get(bytes, 32))),
            waited_us: u32::from_le_bytes(get(bytes, 40)),
        })
    }
}

fn is_announced(body: &[u8], bytes: u32, crc: u32) -> bool {
    body.len() as u64 == u64::from(bytes) && crc32c(body) == crc
}

/// Length and checksum of a body. All that this crate makes fit: their lists have limits.
fn announcement(body: &[u8]) -> (u32, u32) {
    let bytes =
        u32::try_from(body.len()).expect("a body is far below 4 GiB: its lists have limits");
    (bytes, crc32c(body))
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Puts the checksum of all before it at the end.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - CRC_BYTES;
    let crc = crc32c(&bytes[..at]);
    put(bytes, at, crc.to_le_bytes());
}

fn check_seal(bytes: &[u8]) -> Result<(), HeadDamaged> {
    let at = bytes.len() - CRC_BYTES;
    let named = u32::from_le_bytes(get(bytes, at));
    let found = crc32c(&bytes[..at]);
    if named == found {
        return Ok(());
    }
    Err(HeadDamaged { named, found })
}
