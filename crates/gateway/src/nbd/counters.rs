//! What one core's NBD server counts.

use flagstone_types::LatencyHistogram;

use super::admit::Command;

/// Counts of one command.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommandCounters {
    /// Requests answered without an error.
    pub answered: u64,
    /// Requests refused or failed.
    pub failed: u64,
    /// From the arrival of the request to the moment its reply is handed to the socket.
    pub latency: LatencyHistogram,
}

/// Counts of a server since it was made. Plain data: copies can go to other threads and be added.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NbdCounters {
    /// Connections there are now.
    pub connections: u64,
    /// Connections accepted, including those handed over from other cores.
    pub connections_accepted: u64,
    /// Connections closed at once because there were too many.
    pub connections_refused: u64,
    /// Connections handed over to other cores.
    pub connections_handed_over: u64,
    /// Connections closed for breaking the protocol or a limit.
    pub connections_expelled: u64,
    /// Payload sent in replies to reads, in bytes; zeros that were sent as holes count too.
    pub read_bytes: u64,
    /// Payload received in writes, in bytes.
    pub written_bytes: u64,
    /// Times the receive side was called.
    pub receives: u64,
    /// Times the send side was called; replies divided by it tell how well they are gathered.
    pub sends: u64,
    /// By [`Command::index`].
    pub commands: [CommandCounters; Command::ALL.len()],
}

impl NbdCounters {
    /// Counts of one command.
    pub fn command(&self, command: Command) -> &CommandCounters {
        &self.commands[command.index()]
    }

    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &NbdCounters) {
        self.connections += other.connections;
        self.connections_accepted += other.connections_accepted;
        self.connections_refused += other.connections_refused;
        self.connections_handed_over += other.connections_handed_over;
        self.connections_expelled += other.connections_expelled;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.receives += other.receives;
        self.sends += other.sends;
        for (mine, theirs) in self.commands.iter_mut().zip(&other.commands) {
            mine.answered += theirs.answered;
            mine.failed += theirs.failed;
            mine.latency.merge(&theirs.latency);
        }
    }
}
