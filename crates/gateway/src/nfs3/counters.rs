//! What one core's NFS server counts.

use std::collections::BTreeMap;

use flagstone_types::LatencyHistogram;

use super::wire::Procedure;
use super::wire::errors::Nfs3Error;

/// Counts of one procedure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ProcedureCounters {
    /// Calls answered without an error.
    pub answered: u64,
    /// Calls answered with an error, by which.
    pub failed: BTreeMap<Nfs3Error, u64>,
    /// From the arrival of the call to the moment its answer is handed to the socket.
    pub latency: LatencyHistogram,
}

/// Counts of a server since it was made. Plain data: copies can go to other threads and be added.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NfsCounters {
    /// Payload sent in answers to READ, in bytes.
    pub read_bytes: u64,
    /// Payload of WRITE that was written, in bytes.
    pub written_bytes: u64,
    /// Calls to MOUNT that were answered without an error.
    pub mount_answered: u64,
    /// Calls to MOUNT that were answered with one.
    pub mount_failed: u64,
    /// Calls of programs, versions and procedures that aren't there, and with arguments that can't be decoded.
    pub refused: u64,
    /// Calls that came once more while they were under way.
    pub repeated: u64,
    /// Times that an operation was tried again.
    pub retried: u64,
    /// By number.
    pub procedures: [ProcedureCounters; Procedure::ALL.len()],
}

impl NfsCounters {
    /// Counts of one procedure.
    pub fn procedure(&self, procedure: Procedure) -> &ProcedureCounters {
        &self.procedures[procedure as usize]
    }

    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &NfsCounters) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.mount_answered += other.mount_answered;
        self.mount_failed += other.mount_failed;
        self.refused += other.refused;
        self.repeated += other.repeated;
        self.retried += other.retried;
        for (mine, theirs) in self.procedures.iter_mut().zip(&other.procedures) {
            mine.answered += theirs.answered;
            for (error, count) in &theirs.failed {
                *mine.failed.entry(*error).or_default() += count;
            }
            mine.latency.merge(&theirs.latency);
        }
    }

    pub(super) fn note(&mut self, note: &Note, latency_ns: u64) {
        match note {
            Note::Nfs {
                procedure,
                error,
                read_bytes,
                written_bytes,
            } => {
                self.read_bytes += read_bytes;
                self.written_bytes += written_bytes;
                let procedure = &mut self.procedures[*procedure as usize];
                match error {
                    None => procedure.answered += 1,
                    Some(error) => *procedure.failed.entry(*error).or_default() += 1,
                }
                procedure.latency.record(latency_ns);
            }
            Note::Mount { is_answered: true } => self.mount_answered += 1,
            Note::Mount { is_answered: false } => self.mount_failed += 1,
            Note::Refused => self.refused += 1,
        }
    }
}

/// What is counted of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// One of NFS.
    Nfs {
        /// Which.
        procedure: Procedure,
        /// How it failed, if it did.
        error: Option<Nfs3Error>,
        /// Payload that is sent, in bytes.
        read_bytes: u64,
        /// Payload that was written, in bytes.
        written_bytes: u64,
    },
    /// One of MOUNT.
    Mount {
        /// Without an error.
        is_answered: bool,
    },
    /// One that isn't there, or can't be decoded.
    Refused,
}
