//! What to do about a header that arrived undamaged: carry the request out, refuse it, or end the
//! connection.
//!
//! A connection ends when going on would cost memory that the client was told it can't have, or
//! when what comes can't be told from noise. Everything else is refused, and what follows the
//! header skipped, so that one faulty request doesn't cost the others their answers.

use std::fmt;

use flagstone_types::{BLOCK_SIZE, Epoch};

use crate::hello::{HELLO_BODY_MAX_BYTES, HELLO_MAGIC, HELLO_REPLY_BODY_MAX_BYTES};
use crate::operation::{LenUse, LsnUse, PayloadUse, Shape, flag};
use crate::{InFlight, Limits, Operation, ReplyHeader, RequestHeader, Status, VolumeNo};

/// What to do about a request's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Read body and payload, and carry it out.
    Run(Operation),
    /// Skip body and payload, and answer with the complaint's status and sentence.
    Refuse {
        /// What is wrong.
        complaint: Complaint,
        /// So many bytes are body and payload.
        skip_bytes: u64,
    },
    /// End the connection.
    Close(CloseReason),
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// No operation has this number.
    UnknownOperation(u8),
    /// The operation doesn't know these flags.
    UnknownFlags(Operation, u8),
    /// The operation has no use for a field, and it is not 0.
    NotZero(Operation, &'static str),
    /// The operation concerns a volume, and none is named.
    NoVolume(Operation),
    /// The range is of no bytes.
    Empty(Operation),
    /// The range does not consist of whole blocks.
    NotBlocks(Operation),
    /// The range does not lie within one block.
    NotWithinBlock(Operation),
    /// The range does not end within 2^64 bytes.
    OutOfRange(Operation),
    /// One reply can't have so many bytes: asked for, allowed.
    TooLong(Operation, u64, u64),
    /// The operation can't have a body of so many bytes.
    Body(Operation, u32),
    /// The operation can't have a payload of so many bytes.
    Payload(Operation, u32),
    /// There is no such epoch.
    Epoch(u64),
}

impl Complaint {
    /// What is answered.
    pub fn status(&self) -> Status {
        match self {
            Complaint::NoVolume(_) => Status::NoVolume,
            Complaint::OutOfRange(_) => Status::OutOfRange,
            Complaint::TooLong(..) => Status::TooLong,
            _ => Status::Invalid,
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Complaint::UnknownOperation(number) => {
                write!(f, "no operation has the number {number}")
            }
            Complaint::UnknownFlags(operation, flags) => {
                write!(f, "{operation} has no flags {flags:#04x}")
            }
            Complaint::NotZero(operation, field) => {
                write!(f, "{operation} has no use for {field}, which must be 0")
            }
            Complaint::NoVolume(operation) => write!(f, "{operation} names no volume"),
            Complaint::Empty(operation) => write!(f, "{operation} of 0 bytes"),
            Complaint::NotBlocks(operation) => {
                write!(f, "{operation} is for whole blocks of {BLOCK_SIZE} bytes")
            }
            Complaint::NotWithinBlock(operation) => {
                write!(
                    f,
                    "{operation} is for a range within one block of {BLOCK_SIZE} bytes"
                )
            }
            Complaint::OutOfRange(operation) => {
                write!(f, "{operation} of a range beyond what a volume can have")
            }
            Complaint::TooLong(operation, found, max) => {
                write!(f, "{operation} of {found} bytes; at most {max} at a time")
            }
            Complaint::Body(operation, bytes) => {
                write!(f, "{operation} has no body of {bytes} bytes")
            }
            Complaint::Payload(operation, bytes) => {
                write!(
                    f,
                    "{operation} has no payload of {bytes} bytes, with this length"
                )
            }
            Complaint::Epoch(epoch) => {
                write!(f, "epoch {epoch}; the highest is {}", Epoch::MAX.0)
            }
        }
    }
}

/// Why a connection ends. Each names what was found, and what there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// It doesn't begin with `HELLO`, but with an operation of this number.
    NoHello(u8),
    /// Its `HELLO` is not one of this protocol: the number in place of its mark.
    NotOurs(u64),
    /// A second `HELLO`.
    SecondHello,
    /// A body is too long: found, allowed.
    BodyTooLong(u32, u32),
    /// The payload of one frame is too long: found, allowed.
    PayloadTooLong(u32, u32),
    /// One request more than may be in flight.
    TooManyRequests(u32),
    /// More payload than may be in flight: found, allowed.
    TooMuchPayload(u64, u32),
    /// The unsettled numbers go back further than they may: found, allowed.
    Unsettled(u32, u64),
    /// The request's number is not the one that follows: found, expected.
    Number(u64, u64),
    /// The reply has flags that nobody asked for.
    ReplyFlags(u8),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CloseReason::NoHello(number) => {
                write!(
                    f,
                    "the first request is operation {number}, and must be HELLO"
                )
            }
            CloseReason::NotOurs(found) => write!(
                f,
                "HELLO has {found:#018x} where {HELLO_MAGIC:#018x} must be: this is another protocol"
            ),
            CloseReason::SecondHello => f.write_str("a second HELLO on one connection"),
            CloseReason::BodyTooLong(found, max) => {
                write!(f, "a body of {found} bytes; at most {max} are allowed")
            }
            CloseReason::PayloadTooLong(found, max) => {
                write!(f, "a payload of {found} bytes; at most {max} are allowed")
            }
            CloseReason::TooManyRequests(max) => {
                write!(f, "one request more than the {max} that may be in flight")
            }
            CloseReason::TooMuchPayload(found, max) => {
                write!(
                    f,
                    "{found} bytes of payload in flight; at most {max} are allowed"
                )
            }
            CloseReason::Unsettled(found, max) => {
                write!(
                    f,
                    "{found} unsettled numbers before this one; at most {max} are allowed"
                )
            }
            CloseReason::Number(found, expected) => {
                write!(
                    f,
                    "a request has the number {found}, and must have {expected}"
                )
            }
            CloseReason::ReplyFlags(flags) => {
                write!(f, "a reply with the flags {flags:#04x}, which mean nothing")
            }
        }
    }
}

/// Looks at the first header of a connection, which must be that of a `HELLO`. Only what no version
/// can change is looked at: the client may speak a later one.
pub fn check_hello(header: &RequestHeader) -> Result<(), CloseReason> {
    if header.operation() != Some(Operation::Hello) {
        return Err(CloseReason::NoHello(header.operation));
    }
    if header.lsn.0 != HELLO_MAGIC {
        return Err(CloseReason::NotOurs(header.lsn.0));
    }
    if header.body_bytes > HELLO_BODY_MAX_BYTES {
        return Err(CloseReason::BodyTooLong(
            header.body_bytes,
            HELLO_BODY_MAX_BYTES,
        ));
    }
    if header.payload_bytes > 0 {
        return Err(CloseReason::PayloadTooLong(header.payload_bytes, 0));
    }
    Ok(())
}

/// Looks at the number of any later request; `arrived` is the highest of the session before it. They
/// have no gaps, so that what a server remembers is bounded by how far back a client looks.
pub fn check_number(header: &RequestHeader, arrived: u64) -> Result<(), CloseReason> {
    let expected = arrived.saturating_add(1);
    // Nobody gets as far as the second condition.
    if header.number == expected && arrived < u64::MAX {
        return Ok(());
    }
    Err(CloseReason::Number(header.number, expected))
}

/// Looks at the header of any later request. `in_flight` is without it.
pub fn check(header: &RequestHeader, limits: &Limits, in_flight: &InFlight) -> Verdict {
    if let Err(reason) = check_limits(header, limits, in_flight) {
        return Verdict::Close(reason);
    }
    let refuse = |complaint| Verdict::Refuse {
        complaint,
        skip_bytes: header.follow_bytes(),
    };
    let Some(operation) = header.operation() else {
        return refuse(Complaint::UnknownOperation(header.operation));
    };
    if let Err(complaint) = check_shape(header, operation, limits) {
        return refuse(complaint);
    }
    // Only now is the length of what is to be read known to be a possible one.
    let payload_bytes = in_flight
        .payload_bytes
        .saturating_add(u64::from(header.payload_bytes) + header.reply_payload_bytes());
    if payload_bytes > limits.payload_in_flight_max_bytes.into() {
        let max = limits.payload_in_flight_max_bytes;
        return Verdict::Close(CloseReason::TooMuchPayload(payload_bytes, max));
    }
    Verdict::Run(operation)
}

/// Looks at the header of a reply, as a client does. Whether it answers a request that is in flight
/// only the client knows.
pub fn check_reply(header: &ReplyHeader, limits: &Limits) -> Result<(), CloseReason> {
    // The limits come with this very reply, and lists of cores and results may be long.
    let body_max_bytes = match header.operation() {
        Some(Operation::Hello) => HELLO_REPLY_BODY_MAX_BYTES,
        _ => limits.body_max_bytes,
    };
    if header.body_bytes > body_max_bytes {
        return Err(CloseReason::BodyTooLong(header.body_bytes, body_max_bytes));
    }
    if header.payload_bytes > limits.payload_max_bytes {
        return Err(CloseReason::PayloadTooLong(
            header.payload_bytes,
            limits.payload_max_bytes,
        ));
    }
    if header.flags != 0 {
        return Err(CloseReason::ReplyFlags(header.flags));
    }
    Ok(())
}

/// What a client was told that it can't have.
fn check_limits(
    header: &RequestHeader,
    limits: &Limits,
    in_flight: &InFlight,
) -> Result<(), CloseReason> {
    if header.operation() == Some(Operation::Hello) {
        return Err(CloseReason::SecondHello);
    }
    if header.body_bytes > limits.body_max_bytes {
        return Err(CloseReason::BodyTooLong(
            header.body_bytes,
            limits.body_max_bytes,
        ));
    }
    if header.payload_bytes > limits.payload_max_bytes {
        return Err(CloseReason::PayloadTooLong(
            header.payload_bytes,
            limits.payload_max_bytes,
        ));
    }
    if in_flight.requests >= limits.requests_max {
        return Err(CloseReason::TooManyRequests(limits.requests_max));
    }
    // This request is one of those that may be in flight, and no number comes before 1.
    let others_max = u64::from(limits.requests_max.saturating_sub(1));
    let before = others_max.min(header.number.saturating_sub(1));
    if u64::from(header.unsettled) > before {
        return Err(CloseReason::Unsettled(header.unsettled, before));
    }
    Ok(())
}

/// Holds a header to what its operation may have.
fn check_shape(
    header: &RequestHeader,
    operation: Operation,
    limits: &Limits,
) -> Result<(), Complaint> {
    let shape = operation.shape();
    let unknown = header.flags & !shape.flags;
    if unknown != 0 {
        return Err(Complaint::UnknownFlags(operation, unknown));
    }
    match (shape.volume, header.volume) {
        (true, VolumeNo::NONE) => return Err(Complaint::NoVolume(operation)),
        (false, volume) if volume != VolumeNo::NONE => {
            return Err(Complaint::NotZero(operation, "the volume"));
        }
        _ => {}
    }
    check_lsn(header, operation, shape.lsn)?;
    let (body_min, body_max) = shape.body_bytes;
    if !(body_min..=body_max).contains(&header.body_bytes) {
        return Err(Complaint::Body(operation, header.body_bytes));
    }
    check_range(header, operation, &shape)?;
    check_payload(header, operation, shape.payload)?;
    let reply_bytes = header.reply_payload_bytes();
    let reply_max_bytes = limits.payload_max_bytes.into();
    if reply_bytes > reply_max_bytes {
        return Err(Complaint::TooLong(operation, reply_bytes, reply_max_bytes));
    }
    Ok(())
}

fn check_lsn(header: &RequestHeader, operation: Operation, lsn: LsnUse) -> Result<(), Complaint> {
    let is_used = match lsn {
        LsnUse::None => false,
        LsnUse::Any => true,
        LsnUse::Metadata => header.has(flag::METADATA),
        LsnUse::Epoch if header.lsn.0 > Epoch::MAX.0.into() => {
            return Err(Complaint::Epoch(header.lsn.0));
        }
        LsnUse::Epoch => true,
    };
    if header.lsn.0 != 0 && !is_used {
        return Err(Complaint::NotZero(operation, "the LSN"));
    }
    Ok(())
}

fn check_range(
    header: &RequestHeader,
    operation: Operation,
    shape: &Shape,
) -> Result<(), Complaint> {
    let (offset, len) = (header.offset_bytes, header.len_bytes);
    let by_payload = shape.payload == PayloadUse::Range;
    if offset != 0 && matches!(shape.len, LenUse::None | LenUse::Size) && !by_payload {
        return Err(Complaint::NotZero(operation, "the offset"));
    }
    if len != 0 && shape.len == LenUse::None {
        return Err(Complaint::NotZero(operation, "the length"));
    }
    let range_bytes = match shape.len {
        LenUse::None if by_payload => header.payload_bytes.into(),
        LenUse::None | LenUse::Size => return Ok(()),
        LenUse::Range | LenUse::Blocks | LenUse::WithinBlock => len,
    };
    if range_bytes == 0 {
        return Err(Complaint::Empty(operation));
    }
    let end = offset.checked_add(range_bytes);
    if end.is_none() {
        return Err(Complaint::OutOfRange(operation));
    }
    if shape.len == LenUse::Blocks && (offset | len) % BLOCK_SIZE != 0 {
        return Err(Complaint::NotBlocks(operation));
    }
    // The length first: the sum would not fit if it were any number.
    let leaves_block = len > BLOCK_SIZE || offset % BLOCK_SIZE + len > BLOCK_SIZE;
    if shape.len == LenUse::WithinBlock && leaves_block {
        return Err(Complaint::NotWithinBlock(operation));
    }
    Ok(())
}

fn check_payload(
    header: &RequestHeader,
    operation: Operation,
    payload: PayloadUse,
) -> Result<(), Complaint> {
    let bytes = header.payload_bytes;
    let fits = match payload {
        PayloadUse::None => bytes == 0,
        PayloadUse::ByBody => true,
        PayloadUse::UpTo(max) => bytes <= max,
        // `check_range` has looked at it.
        PayloadUse::Range => true,
        PayloadUse::Twice => u64::from(bytes) == 2 * header.len_bytes,
    };
    if fits {
        return Ok(());
    }
    Err(Complaint::Payload(operation, bytes))
}
