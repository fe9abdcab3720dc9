//! What one core's native server counts.

use flagstone_types::LatencyHistogram;
use flagstone_wire::{Operation, Status};

use super::server::CloseReason;

/// Counts of one operation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OperationCounters {
    /// Requests answered with status 0.
    pub answered: u64,
    /// Requests refused or failed.
    pub failed: u64,
    /// From the arrival of the request to the moment its reply is handed to the socket.
    pub latency: LatencyHistogram,
}

/// Counts of a server since it was made. Plain data: copies can go to other threads and be added.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NativeCounters {
    /// Connections there are now.
    pub connections: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections closed at once because there were too many, or the server is stopping.
    pub connections_refused: u64,
    /// Volumes open now, on all connections.
    pub volumes_open: u64,
    /// Sessions without a connection now.
    pub sessions_waiting: u64,
    /// Sessions begun.
    pub sessions_begun: u64,
    /// Sessions that went on with another connection.
    pub sessions_resumed: u64,
    /// Sessions that a client wanted to go on with and that were not known (any more).
    pub sessions_unknown: u64,
    /// `OPEN`s denied.
    pub opens_denied: u64,
    /// Payload sent in replies, in bytes; zeros that were left out count too.
    pub read_bytes: u64,
    /// Payload received with requests, in bytes.
    pub written_bytes: u64,
    /// Times the receive side was called. Those of a connection are added when it ends.
    pub receives: u64,
    /// Times the send side was called; replies divided by it tell how well they are gathered.
    pub sends: u64,
    operations: [OperationCounters; Operation::ALL.len()],
    /// Requests with an operation that isn't one.
    pub unknown_operations: u64,
    statuses: [u64; Status::ALL.len()],
    closes: [u64; CloseReason::KINDS.len()],
}

impl NativeCounters {
    /// Counts of one operation.
    pub fn operation(&self, operation: Operation) -> &OperationCounters {
        &self.operations[place(Operation::ALL, operation)]
    }

    /// Requests answered with this status.
    pub fn status(&self, status: Status) -> u64 {
        self.statuses[place(Status::ALL, status)]
    }

    /// Connections that ended, by reason: the reasons are those of [`CloseReason::KINDS`].
    pub fn closes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        CloseReason::KINDS.into_iter().zip(self.closes)
    }

    pub(crate) fn note_close(&mut self, reason: CloseReason) {
        self.closes[reason.kind()] += 1;
    }

    pub(crate) fn note_reply(
        &mut self,
        operation: Option<Operation>,
        status: Status,
        latency_ns: u64,
    ) {
        self.statuses[place(Status::ALL, status)] += 1;
        let Some(operation) = operation else {
            self.unknown_operations += 1;
            return;
        };
        let counters = &mut self.operations[place(Operation::ALL, operation)];
        match status {
            Status::Ok => counters.answered += 1,
            _ => counters.failed += 1,
        }
        counters.latency.record(latency_ns);
    }

    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &NativeCounters) {
        self.connections += other.connections;
        self.connections_accepted += other.connections_accepted;
        self.connections_refused += other.connections_refused;
        self.volumes_open += other.volumes_open;
        self.sessions_waiting += other.sessions_waiting;
        self.sessions_begun += other.sessions_begun;
        self.sessions_resumed += other.sessions_resumed;
        self.sessions_unknown += other.sessions_unknown;
        self.opens_denied += other.opens_denied;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.receives += other.receives;
        self.sends += other.sends;
        self.unknown_operations += other.unknown_operations;
        for (mine, theirs) in self.operations.iter_mut().zip(&other.operations) {
            mine.answered += theirs.answered;
            mine.failed += theirs.failed;
            mine.latency.merge(&theirs.latency);
        }
        for (mine, theirs) in self.statuses.iter_mut().zip(&other.statuses) {
            *mine += theirs;
        }
        for (mine, theirs) in self.closes.iter_mut().zip(&other.closes) {
            *mine += theirs;
        }
    }
}

/// Where `one` stands in `all`, which is sorted and has it.
fn place<T: Ord>(all: &[T], one: T) -> usize {
    all.binary_search(&one).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_and_status_has_its_own_counts() {
        let mut counters = NativeCounters::default();
        for &operation in Operation::ALL {
            counters.note_reply(Some(operation), Status::Ok, 5);
        }
        for &status in Status::ALL {
            counters.note_reply(None, status, 5);
        }
        let mut twice = counters.clone();
        twice.merge(&counters);
        for &operation in Operation::ALL {
            assert_eq!(counters.operation(operation).answered, 1, "{operation}");
            assert_eq!(twice.operation(operation).answered, 2, "{operation}");
        }
        for &status in Status::ALL {
            let all = match status {
                Status::Ok => 1 + Operation::ALL.len() as u64,
                _ => 1,
            };
            assert_eq!(counters.status(status), all, "{status}");
        }
        assert_eq!(counters.unknown_operations, Status::ALL.len() as u64);
    }
}
