//! Everything a client could use up, with a limit.

use crate::nfs3::wire::args::WRITE_HEAD_BYTES_MAX;
use crate::rpc::call::CALL_HEADER_BYTES_MAX;
use crate::rpc::record::RecordLimits;
use crate::window::WindowLimits;

/// What is received of a record before it is decided what to do with it, in bytes: a call's header, and the
/// arguments of a WRITE in front of the payload.
pub(crate) const HEAD_BYTES: usize = CALL_HEADER_BYTES_MAX + WRITE_HEAD_BYTES_MAX;

/// What is kept of a record without payload, in bytes: more than the longest arguments with their header,
/// those of RENAME. What a client sends behind is received and forgotten.
pub const RECORD_KEPT_BYTES: usize = 16 << 10;

/// What a call takes while it is carried out, besides what it came with and what it answers, in bytes: its task.
pub(crate) const TASK_BYTES: u64 = 4096;

/// The most payload of one call, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// Limits of one core's server. The defaults suit a core with some hundred clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcLimits {
    /// Connections at the same time. One more takes the place of one that never sent a call, or else of
    /// one that has sent none for longest and waits for no answer; if there is none, it is closed at once.
    pub connections_max: usize,
    /// One record.
    pub record: RecordLimits,
    /// Calls of one connection whose answers are not sent yet. At it, its socket is not read.
    pub calls_in_flight_max: u32,
    /// Bytes of one connection's calls and answers that are not drawn from what all share.
    pub own_bytes: u64,
    /// Bytes in flight of one connection drawn from the shared part.
    pub connection_bytes_max: u64,
    /// Bytes in flight of all connections of the core beyond their own parts.
    pub shared_bytes: u64,
    /// Bytes in flight of calls that are each the only one of their connection here, of all connections
    /// of the core. Large calls go on although a few have used up the shared part.
    pub single_bytes: u64,
    /// A connection on which nothing moves for this long in the middle of a message, in either
    /// direction, is closed. In milliseconds; exact to a quarter of it.
    pub stall_ms: u64,
}

impl Default for RpcLimits {
    fn default() -> RpcLimits {
        RpcLimits {
            connections_max: 1024,
            record: RecordLimits {
                record_bytes_max: PAYLOAD_BYTES_MAX + RECORD_KEPT_BYTES as u32,
                fragments_max: 1024,
            },
            calls_in_flight_max: 512,
            own_bytes: 1 << 20,
            connection_bytes_max: 64 << 20,
            shared_bytes: 512 << 20,
            single_bytes: 256 << 20,
            stall_ms: 60_000,
        }
    }
}

impl RpcLimits {
    /// What one connection may have in flight.
    pub(crate) fn window(&self) -> WindowLimits {
        WindowLimits {
            calls: self.calls_in_flight_max,
            own_bytes: self.own_bytes,
            shared_bytes: self.connection_bytes_max,
        }
    }

    /// The most one call is charged with: a whole record, and an answer with the largest payload.
    pub(crate) fn call_bytes_max(&self) -> u64 {
        TASK_BYTES + u64::from(self.record.record_bytes_max) + u64::from(PAYLOAD_BYTES_MAX)
    }

    /// These limits, raised where the largest call could never be served.
    pub(crate) fn workable(mut self) -> RpcLimits {
        let one_call = self.call_bytes_max();
        self.calls_in_flight_max = self.calls_in_flight_max.max(1);
        self.connection_bytes_max = self.connection_bytes_max.max(one_call);
        self.shared_bytes = self.shared_bytes.max(one_call);
        self.single_bytes = self.single_bytes.max(one_call);
        self.stall_ms = self.stall_ms.max(4);
        self
    }
}
