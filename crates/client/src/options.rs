//! What a client is told at its start.

use std::net::SocketAddr;

use flagstone_types::Epoch;

/// How a client behaves. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to begin: any cores of the nodes that have the volumes. At least one.
    pub addresses: Vec<SocketAddr>,
    /// Names the client in the servers' logs and lists; up to 64 bytes.
    pub name: String,
    /// How long a call may take, unless it is told otherwise
    /// ([`Volume::until`](crate::Volume::until)).
    pub call_timeout_ns: u64,
    /// How long connecting, or the answer to `HELLO`, may take.
    pub connect_timeout_ns: u64,
    /// A connection with requests on their way that brings nothing for so long is asked whether it
    /// lives, and given up after as long again.
    pub silence_ns: u64,
    /// Pauses between attempts (to connect, or of a request that was answered `BUSY`) begin around
    /// this and double.
    pub pause_first_ns: u64,
    /// No pause is longer.
    pub pause_max_ns: u64,
}

impl Options {
    /// The usual ones: calls take a minute at most.
    pub fn new(addresses: Vec<SocketAddr>, name: &str) -> Options {
        const MS: u64 = 1_000_000;
        Options {
            addresses,
            name: name.to_owned(),
            call_timeout_ns: 60_000 * MS,
            connect_timeout_ns: 5_000 * MS,
            silence_ns: 5_000 * MS,
            pause_first_ns: 2 * MS,
            pause_max_ns: 1_000 * MS,
        }
    }
}

/// How a volume is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenHow {
    /// For reading only.
    pub read_only: bool,
    /// Whoever else has it open for writing is refused from now on. Then writes whose outcome is not
    /// known after a restart of the server are repeated instead of being reported.
    pub alone: bool,
    /// The epoch in which whoever opens it has held it before, by other means. If anything but moves has raised it
    /// since, it isn't opened: [`Status::StaleEpoch`](flagstone_wire::Status::StaleEpoch).
    pub held: Option<Epoch>,
}

/// When a change is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// When it survives power loss.
    Durable,
    /// When everybody sees it. A power loss before the next flush may undo it.
    Visible,
}
