//! One request on its way, and what comes back.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use flagstone_platform::sync::Promise;
use flagstone_platform::{IoBuf, Time};
use flagstone_types::checksum::{crc32c, crc32c_append};
use flagstone_types::{DvolId, Lsn};
use flagstone_wire::hello::Outcome;
use flagstone_wire::{Operation, ReplyHeader, RequestHeader, VolumeNo};

use crate::order::Place;

/// The longest wait that a header can speak of, in milliseconds.
const PATIENCE_MAX_MS: u64 = u16::MAX as u64;

/// One attempt of a request: made for one connection, and never sent on another.
pub(crate) struct Flight {
    pub(crate) operation: Operation,
    /// Without what is known only when it is sent: number, unsettled, patience.
    header: RequestHeader,
    body: Vec<u8>,
    payload: Vec<IoBuf>,
    /// Of the reply, if it succeeds.
    reply_payload_bytes: u64,
    /// When its caller gives up; `None` for what nobody waits for.
    deadline: Option<Time>,
    /// Later changes that overlap wait until this is dropped: when the request is settled, even if
    /// its caller has given up before; or when it can't be carried out any more.
    place: RefCell<Option<Rc<Place>>>,
    answer: Cell<Option<Promise<Answer>>>,
    was_sent: Cell<bool>,
}

/// What a request's header has besides what follows from body and payload.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fields {
    pub(crate) flags: u8,
    pub(crate) volume: VolumeNo,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) lsn: u64,
}

/// What a request has or asks for too much of, and how much the server allows, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TooLong {
    /// Of data.
    Payload(u64),
    /// Of what says which: names, ranges, conditions.
    Body(u64),
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooLong::Payload(max) => {
                write!(f, "the server allows {max} bytes of data at a time; cut it")
            }
            TooLong::Body(max) => write!(
                f,
                "the server allows {max} bytes of names, ranges and conditions in a request; ask for fewer at a time"
            ),
        }
    }
}

/// What came of one attempt.
pub(crate) enum Answer {
    /// A reply.
    Reply(Reply),
    /// The connection broke, and the session knows what became of it.
    Outcome {
        outcome: Outcome,
        /// Of the server's process, in which it was carried out.
        incarnation: u64,
    },
    /// It was not carried out and never will be.
    NotBegun,
    /// Nobody knows.
    Unknown,
    /// It is longer than the server allows.
    TooLong(TooLong),
    /// The client was closed.
    Stopped,
}

/// A reply, with what its checksums say.
pub(crate) struct Reply {
    pub(crate) header: ReplyHeader,
    /// `None` if it doesn't match its checksum.
    pub(crate) body: Option<Vec<u8>>,
    /// `None` if it doesn't match its checksum.
    pub(crate) payload: Option<IoBuf>,
    /// Of the server's process.
    pub(crate) incarnation: u64,
}

impl Flight {
    pub(crate) fn new(operation: Operation, fields: Fields, body: Vec<u8>) -> Flight {
        let mut header = RequestHeader {
            flags: fields.flags,
            volume: fields.volume,
            offset_bytes: fields.offset_bytes,
            len_bytes: fields.len_bytes,
            lsn: Lsn(fields.lsn),
            ..RequestHeader::of(operation)
        };
        header.set_body(&body);
        Flight {
            operation,
            reply_payload_bytes: header.reply_payload_bytes(),
            header,
            body,
            payload: Vec::new(),
            deadline: None,
            place: RefCell::new(None),
            answer: Cell::new(None),
            was_sent: Cell::new(false),
        }
    }

    /// With the bytes that follow the body: up to 4 GiB, of which a server allows far less.
    pub(crate) fn payload(mut self, payload: Vec<IoBuf>) -> Flight {
        let bytes: usize = payload.iter().map(|buf| buf.len()).sum();
        self.header.payload_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.header.payload_crc = payload
            .iter()
            .fold(crc32c(&[]), |crc, buf| crc32c_append(crc, buf));
        if self.operation == Operation::Ping {
            self.reply_payload_bytes = self.header.reply_payload_bytes();
        }
        self.payload = payload;
        self
    }

    /// With so much payload in the reply, which the header doesn't say.
    pub(crate) fn reply_payload(self, bytes: u64) -> Flight {
        Flight {
            reply_payload_bytes: bytes,
            ..self
        }
    }

    pub(crate) fn deadline(self, deadline: Time) -> Flight {
        Flight {
            deadline: Some(deadline),
            ..self
        }
    }

    pub(crate) fn place(self, place: Option<Rc<Place>>) -> Flight {
        self.place.replace(place);
        self
    }

    /// True from the moment on from which the server may have it.
    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent.get()
    }

    /// Payload of the request, in bytes.
    pub(super) fn request_payload_bytes(&self) -> u64 {
        self.header.payload_bytes.into()
    }

    /// Payload of the reply that it asks for, in bytes.
    pub(super) fn reply_payload_bytes(&self) -> u64 {
        self.reply_payload_bytes
    }

    /// Payload of both, in bytes.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.request_payload_bytes()
            .saturating_add(self.reply_payload_bytes)
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.body.len() as u64
    }

    pub(super) fn expects(&self, promise: Promise<Answer>) {
        self.answer.set(Some(promise));
    }

    /// Settles it: whoever waits gets the answer, and whatever waits behind it may go.
    pub(super) fn settle(&self, answer: Answer) {
        if let Some(promise) = self.answer.take() {
            promise.fulfil(answer);
        }
        self.place.replace(None);
    }

    /// A volume is open at another node: whatever became of this one there, nothing more will. What waits behind it need not wait for a node that
    /// may never come back; its caller, if he still waits, does.
    pub(super) fn left_behind(&self, volume: DvolId) {
        let mut place = self.place.borrow_mut();
        place.take_if(|place| place.is_of(volume));
    }

    /// Header and body as they are sent now.
    pub(super) fn encode(&self, number: u64, unsettled: u32, now: Time, out: &mut Vec<u8>) {
        self.was_sent.set(true);
        let header = RequestHeader {
            number,
            unsettled,
            patience_ms: self
                .deadline
                .map_or(0, |deadline| patience_ms(now, deadline)),
            ..self.header
        };
        out.extend(header.encode());
        out.extend(&self.body);
    }

    pub(super) fn payload_bufs(&self) -> &[IoBuf] {
        &self.payload
    }
}

/// How long a request is worth beginning, as a header has it: 1 at least, since 0 means for ever.
/// Who has more time than a header can say is told `LATE` in between, and asks again.
fn patience_ms(now: Time, deadline: Time) -> u16 {
    let left_ms = deadline.since(now) / 1_000_000;
    left_ms.clamp(1, PATIENCE_MAX_MS) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_what_is_left() {
        const MS: u64 = 1_000_000;
        let now = Time(5 * MS);
        assert_eq!(patience_ms(now, Time(7 * MS)), 2);
        assert_eq!(patience_ms(now, Time(7 * MS - 1)), 1);
        assert_eq!(patience_ms(now, Time(5 * MS)), 1);
        assert_eq!(
            patience_ms(now, Time(0)),
            1,
            "never 0: that would be for ever"
        );
        assert_eq!(patience_ms(now, Time(70_000 * MS)), u16::MAX);
    }
}
