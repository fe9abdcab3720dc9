//! The one table from why a volume refuses to the error numbers of NBD.
//!
//! The protocol fixes a small set of numbers that don't depend on the server's system.
//! [nbd "Error values"]

use super::admit::Command;
use crate::volume::VolumeError;

/// An error number as it goes over the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Invalid argument.
    Inval = 22,
    /// No space left on device.
    NoSpc = 28,
    /// Value too large.
    Overflow = 75,
    /// Operation not supported.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// Why a request is refused: a number for the client, and a few words for whoever reads its log
/// (sent in error chunks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The number.
    pub errno: Errno,
    /// The words, at most 200 bytes.
    pub message: &'static str,
}

impl Refusal {
    /// Puts a refusal together.
    pub const fn new(errno: Errno, message: &'static str) -> Refusal {
        Refusal { errno, message }
    }
}

/// What a client is told when `command` failed with `error`. `fast_zero`: the request carried the
/// flag `FAST_ZERO`.
pub fn refusal_of(error: VolumeError, command: Command, fast_zero: bool) -> Refusal {
    use Command::{Write, WriteZeroes};
    match error {
        // [nbd "Error values"] past the end: ENOSPC for what writes, EINVAL for what doesn't.
        VolumeError::OutOfRange => {
            let writes = matches!(command, Write | WriteZeroes);
            let errno = if writes { Errno::NoSpc } else { Errno::Inval };
            Refusal::new(errno, "the range leaves the export")
        }
        // [nbd "Error values"] a change of a read-only export: EPERM.
        VolumeError::ReadOnly => Refusal::new(Errno::Perm, "the export is read-only"),
        // [nbd "Error values"] ENOSPC, like EDQUOT and EFBIG.
        VolumeError::NoSpace => Refusal::new(
            Errno::NoSpc,
            "the device, or the filesystem that holds it, is full",
        ),
        // [nbd "Request types"] any other failure of the store: EIO.
        VolumeError::Corrupt => Refusal::new(Errno::Io, "stored bytes do not match their checksum"),
        VolumeError::Device => Refusal::new(Errno::Io, "the device failed the operation"),
        VolumeError::Fenced => Refusal::new(
            Errno::Io,
            "the device is fenced after a failed flush; restart the node",
        ),
        // [nbd "Terminating the transmission phase"] going away: ESHUTDOWN, and the client leaves.
        VolumeError::Gone => Refusal::new(Errno::Shutdown, "the volume is gone"),
        // [nbd "Error values"] EINVAL, which is also what clients make of numbers they don't know.
        VolumeError::HistoryForgotten => {
            Refusal::new(Errno::Inval, "the history since that snapshot is forgotten")
        }
        // [nbd "Error values"] ENOTSUP is for fast zeroing only; EINVAL elsewhere.
        VolumeError::Unsupported => {
            let errno = if fast_zero {
                Errno::NotSup
            } else {
                Errno::Inval
            };
            Refusal::new(errno, "not supported by this volume")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [nbd "Error values"] test
    #[test]
    fn the_table() {
        let errno = |error, command| refusal_of(error, command, false).errno;
        assert_eq!(errno(VolumeError::OutOfRange, Command::Write), Errno::NoSpc);
        assert_eq!(
            errno(VolumeError::OutOfRange, Command::WriteZeroes),
            Errno::NoSpc
        );
        assert_eq!(errno(VolumeError::OutOfRange, Command::Read), Errno::Inval);
        assert_eq!(errno(VolumeError::OutOfRange, Command::Trim), Errno::Inval);
        assert_eq!(errno(VolumeError::ReadOnly, Command::Trim), Errno::Perm);
        assert_eq!(errno(VolumeError::NoSpace, Command::Write), Errno::NoSpc);
        for error in [
            VolumeError::Corrupt,
            VolumeError::Device,
            VolumeError::Fenced,
        ] {
            assert_eq!(errno(error, Command::Read), Errno::Io);
        }
        assert_eq!(errno(VolumeError::Gone, Command::Flush), Errno::Shutdown);
        assert_eq!(
            errno(VolumeError::HistoryForgotten, Command::BlockStatus),
            Errno::Inval
        );
        assert_eq!(
            errno(VolumeError::Unsupported, Command::WriteZeroes),
            Errno::Inval
        );
        let fast = refusal_of(VolumeError::Unsupported, Command::WriteZeroes, true);
        assert_eq!(fast.errno, Errno::NotSup);
    }

    #[test]
    fn numbers_on_the_wire() {
        let all = [
            (Errno::Perm, 1),
            (Errno::Io, 5),
            (Errno::Inval, 22),
            (Errno::NoSpc, 28),
            (Errno::Overflow, 75),
            (Errno::NotSup, 95),
            (Errno::Shutdown, 108),
        ];
        for (errno, number) in all {
            assert_eq!(errno.number(), number);
        }
    }
}
