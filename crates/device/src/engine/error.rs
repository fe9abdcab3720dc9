//! Why an operation on a dvol failed.

use std::fmt;

use flagstone_types::Lsn;

/// Why an operation on a dvol failed. Nothing has changed, unless a variant says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DvolError {
    /// The range leaves the dvol.
    OutOfRange,
    /// The dvol (or layer) can't be written.
    ReadOnly,
    /// No dvol or layer of that name or id.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The device has no room for it. Reading, overwriting reserved dvols, deallocating and
    /// deleting still work.
    NoSpace,
    /// No slot, layer number or journal room is left for one more dvol or layer.
    TooMany,
    /// Stored bytes don't match their checksum.
    Corrupt,
    /// The device failed a read or write. After a write the range holds what it held before, or
    /// (after a crash) what was written.
    Device,
    /// A flush or a journal write failed: nothing is acknowledged any more until the node has been
    /// restarted.
    Fenced,
    /// The node is stopping.
    Stopping,
    /// A condition did not hold; the LSN of the change that broke it is given if it is known.
    ConditionFailed(Lsn),
    /// A compare-and-swap found something else.
    NotEqual,
    /// The writer's epoch is older than the dvol's.
    StaleEpoch,
    /// What changed since that LSN is not known any more, because it lies below the dvol's floor or
    /// in a past that a rollback has discarded. Only a full copy helps.
    HistoryForgotten,
    /// The operation makes no sense: it is larger than one atomic unit can be, its parts overlap, a
    /// name or size is out of bounds, or it is not for what the handle names.
    Invalid,
    /// The dvol has snapshots, or the snapshot is needed.
    Busy,
}

impl fmt::Display for DvolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DvolError::OutOfRange => "the range leaves the dvol",
            DvolError::ReadOnly => "it is read-only",
            DvolError::NotFound => "there is no such dvol or layer",
            DvolError::AlreadyExists => "the name is taken",
            DvolError::NoSpace => "the device is full",
            DvolError::TooMany => "no slot is left for one more dvol or layer",
            DvolError::Corrupt => "stored bytes do not match their checksum",
            DvolError::Device => "the device failed the operation",
            DvolError::Fenced => "the device is fenced after a failed flush or journal write",
            DvolError::Stopping => "the node is stopping",
            DvolError::ConditionFailed(_) => "a condition does not hold",
            DvolError::NotEqual => "the block holds something else",
            DvolError::StaleEpoch => "the writer's epoch is over",
            DvolError::HistoryForgotten => "what changed since then is forgotten; make a full copy",
            DvolError::Invalid => "the operation is malformed or too large for one atomic unit",
            DvolError::Busy => "it is in use",
        })
    }
}

impl std::error::Error for DvolError {}

/// True if a write failed for want of space: the device itself reuses what it has, so it is what holds
/// the device that is full, or a quota on that.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// What the log adds to a write that failed for want of space. Empty for other errors.
pub(super) fn cause_of(error: &std::io::Error) -> &'static str {
    match is_full(error) {
        true => {
            ", since the filesystem that holds the device file (or what a thin block device is made \
             of) is full: make room there before the restart"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_filesystem_is_named_and_nothing_else_is() {
        // ENOSPC and EDQUOT; EIO is the device's own.
        for (number, is_full) in [(28, true), (122, true), (5, false)] {
            let cause = cause_of(&std::io::Error::from_raw_os_error(number));
            assert_eq!(
                cause.contains("filesystem that holds the device file"),
                is_full
            );
            assert_eq!(cause.is_empty(), !is_full);
        }
    }
}
