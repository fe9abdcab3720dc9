//! Everything a client could use up, with a limit.

use super::options::NegotiationLimits;
use super::wire::PAYLOAD_MAX_BYTES;
use crate::window::WindowLimits;

/// Limits of one core's NBD server. The defaults suit a core with some hundred clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NbdLimits {
    /// Connections at the same time. One more takes the place of the one that has been in negotiation
    /// for longest; if all are past that, it is closed at once.
    pub connections_max: usize,
    /// From one answer in the negotiation to the end of the client's next option, and for each part
    /// of a long answer, in milliseconds.
    pub negotiation_ms: u64,
    /// What a client may send before the transmission phase.
    pub negotiation: NegotiationLimits,
    /// Requests of one connection whose replies are not sent yet. At it, its socket is not read.
    pub requests_in_flight_max: u32,
    /// Payload of one connection that is not drawn from what all share, in bytes. Small requests
    /// go on although others have used up the shared part.
    pub own_payload_bytes: u64,
    /// Payload in flight of one connection drawn from the shared part, in bytes.
    pub payload_bytes_max: u64,
    /// Payload in flight of all connections of the core beyond their own parts, in bytes.
    pub shared_payload_bytes: u64,
    /// Payload in flight, in bytes, of requests that are each the only one of their connection here, of
    /// all connections of the core. Large requests go on although a few have used up the shared part.
    pub single_payload_bytes: u64,
    /// A connection on which nothing moves for this long in the middle of a message, in either
    /// direction, is closed. In milliseconds; exact to a quarter of it.
    pub stall_ms: u64,
}

impl Default for NbdLimits {
    fn default() -> NbdLimits {
        NbdLimits {
            connections_max: 1024,
            negotiation_ms: 10_000,
            negotiation: NegotiationLimits {
                options_max: 65_536,
                option_bytes_max: 64 << 10,
            },
            requests_in_flight_max: 128,
            own_payload_bytes: 1 << 20,
            payload_bytes_max: 64 << 20,
            shared_payload_bytes: 512 << 20,
            single_payload_bytes: 512 << 20,
            stall_ms: 60_000,
        }
    }
}

impl NbdLimits {
    /// Time for one question of the negotiation, in nanoseconds.
    pub(crate) fn negotiation_ns(&self) -> u64 {
        self.negotiation_ms.saturating_mul(1_000_000)
    }

    /// What one connection may have in flight.
    pub(crate) fn window(&self) -> WindowLimits {
        WindowLimits {
            calls: self.requests_in_flight_max,
            own_bytes: self.own_payload_bytes,
            shared_bytes: self.payload_bytes_max,
        }
    }

    /// These limits, raised where the largest request could never be served.
    pub(crate) fn workable(mut self) -> NbdLimits {
        let one_request = u64::from(PAYLOAD_MAX_BYTES);
        self.requests_in_flight_max = self.requests_in_flight_max.max(1);
        self.payload_bytes_max = self.payload_bytes_max.max(one_request);
        self.shared_payload_bytes = self.shared_payload_bytes.max(one_request);
        self.single_payload_bytes = self.single_payload_bytes.max(one_request);
        self.stall_ms = self.stall_ms.max(4);
        self
    }
}
