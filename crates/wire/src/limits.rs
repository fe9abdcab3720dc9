//! What one connection may have in flight. The server says it in its reply to `HELLO`.

use crate::BodyError;
use crate::fields::{Fields, bounded};

/// Limits of a connection, as the reply to `HELLO` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in flight. Also how far back a client's unsettled numbers may go.
    pub requests_max: u32,
    /// Payload in flight, in bytes: of requests, and of the replies that they ask for.
    pub payload_in_flight_max_bytes: u32,
    /// Payload of one request or reply, in bytes.
    pub payload_max_bytes: u32,
    /// Body of a request or reply, in bytes.
    pub body_max_bytes: u32,
    /// Volumes open at the same time.
    pub volumes_max: u32,
}

/// Bytes of [`Limits`] in a body.
pub const LIMITS_BYTES: usize = 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests_max: 1024,
            payload_in_flight_max_bytes: 16 << 20,
            payload_max_bytes: 4 << 20,
            body_max_bytes: 64 << 10,
            volumes_max: 16_384,
        }
    }
}

impl Limits {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let numbers = [
            self.requests_max,
            self.payload_in_flight_max_bytes,
            self.payload_max_bytes,
            self.body_max_bytes,
            self.volumes_max,
        ];
        for number in numbers {
            out.extend(number.to_le_bytes());
        }
    }

    /// None of them may be 0: nothing could be asked for.
    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<Limits, BodyError> {
        let mut next = |field| {
            let number = fields.u32(field)?;
            bounded(field, number.into(), 1, u32::MAX.into())?;
            Ok(number)
        };
        Ok(Limits {
            requests_max: next("the limit of requests")?,
            payload_in_flight_max_bytes: next("the limit of payload in flight")?,
            payload_max_bytes: next("the limit of a payload")?,
            body_max_bytes: next("the limit of a body")?,
            volumes_max: next("the limit of volumes")?,
        })
    }
}

/// What a connection has in flight before the request that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// Requests that came and are not answered.
    pub requests: u32,
    /// Payload of them and of the replies that they ask for, in bytes.
    pub payload_bytes: u64,
}
