//! Everything a client could use up, with a limit.

use flagstone_wire::Limits;

use crate::window::WindowLimits;

/// Room in a connection's window beside the payload that a client may have in flight, in bytes: for bodies.
const BODIES_BYTES: u64 = 16 << 20;

/// Limits of one core's server. The defaults are those of the protocol's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeLimits {
    /// Of one connection. Clients are told these; who goes beyond them is cut off.
    pub connection: Limits,
    /// Connections at the same time. One more takes the place of the one that has been without a volume for
    /// longest; if all have one, it is closed at once.
    pub connections_max: usize,
    /// Until `HELLO` has come, in milliseconds.
    pub hello_ms: u64,
    /// Memory of one connection that is not drawn from what all share, in bytes. Small requests go on
    /// although others have used up the shared part.
    pub own_bytes: u64,
    /// Memory of requests and replies in flight of all connections of the core beyond their own parts, in bytes.
    pub shared_bytes: u64,
    /// The same of requests that are each the only one of their connection here. Large requests go on although
    /// a few connections have used up the shared part.
    pub single_bytes: u64,
    /// A connection on which nothing moves for this long in the middle of a frame, in either direction, is
    /// closed. In milliseconds; exact to a quarter of it.
    pub stall_ms: u64,
    /// Sessions without a connection that are remembered.
    pub sessions_max: usize,
    /// For so long, in milliseconds.
    pub grace_ms: u64,
    /// After so many refused `OPEN`s a connection is closed.
    pub refused_opens_max: u32,
}

impl Default for NativeLimits {
    fn default() -> NativeLimits {
        NativeLimits {
            connection: Limits::default(),
            connections_max: 1024,
            hello_ms: 10_000,
            own_bytes: 1 << 20,
            shared_bytes: 512 << 20,
            single_bytes: 512 << 20,
            stall_ms: 60_000,
            sessions_max: 4096,
            grace_ms: 60_000,
            refused_opens_max: 8,
        }
    }
}

impl NativeLimits {
    /// Time for `HELLO`, in nanoseconds.
    pub(crate) fn hello_ns(&self) -> u64 {
        self.hello_ms.saturating_mul(1_000_000)
    }

    /// Grace of sessions, in nanoseconds.
    pub(crate) fn grace_ns(&self) -> u64 {
        self.grace_ms.saturating_mul(1_000_000)
    }

    /// Memory that one connection may draw from the shared part, in bytes.
    fn drawn_bytes(&self) -> u64 {
        u64::from(self.connection.payload_in_flight_max_bytes) + BODIES_BYTES
    }

    /// What one connection may have in flight.
    pub(crate) fn window(&self) -> WindowLimits {
        WindowLimits {
            // Twice: a slot is held until the reply is sent, and the client may have its bytes a moment before.
            calls: 2 * self.connection.requests_max,
            own_bytes: self.own_bytes,
            shared_bytes: self.drawn_bytes(),
        }
    }

    /// These limits, changed where something could never be served, or not be said in a frame.
    pub(crate) fn workable(mut self) -> NativeLimits {
        let told = &mut self.connection;
        // The outcomes of as many changes fit into the reply to HELLO.
        told.requests_max = told.requests_max.clamp(1, 32_768);
        // A volume's number has 16 bits for its place.
        told.volumes_max = told.volumes_max.clamp(1, 65_535);
        // What a device layer reads or writes in one go.
        told.payload_max_bytes = told.payload_max_bytes.clamp(4096, 32 << 20);
        told.body_max_bytes = told.body_max_bytes.clamp(1024, 1 << 20);
        let one_request = told.payload_max_bytes * 2;
        told.payload_in_flight_max_bytes = told.payload_in_flight_max_bytes.max(one_request);
        let drawn_bytes = self.drawn_bytes();
        self.shared_bytes = self.shared_bytes.max(drawn_bytes);
        self.single_bytes = self.single_bytes.max(drawn_bytes);
        self.stall_ms = self.stall_ms.max(4);
        self.connections_max = self.connections_max.max(1);
        self.refused_opens_max = self.refused_opens_max.max(1);
        self
    }
}
