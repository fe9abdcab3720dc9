//! Why an operation on a file failed.

use std::fmt;

/// Why an operation failed. Nothing has changed, but for [`FileError::Stopping`]. A gateway has one table from these to its status codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileError {
    /// There is no such name.
    NotFound,
    /// The file is gone, or there never was one of this number.
    Stale,
    /// Only the owner, or root, may do that: or root alone, such as giving a file away.
    NotOwner,
    /// The permissions don't allow it.
    Denied,
    /// The name is there already.
    Exists,
    /// It should be a directory.
    NotDirectory,
    /// It should not be a directory.
    IsDirectory,
    /// The directory has names in it.
    NotEmpty,
    /// The name is longer than [`crate::NAME_MAX_BYTES`], or the target than [`crate::TARGET_MAX_BYTES`].
    NameTooLong,
    /// An argument makes no sense: an empty name or one with a slash or a zero byte, `.` or `..` where only a
    /// name of its own will do, a directory into itself, a billion nanoseconds. Or the file is neither a
    /// directory nor of the kind that the operation is for.
    Invalid,
    /// It can't be made that way: a regular file, a directory or a symbolic link as something special.
    Unsupported,
    /// Beyond the largest file.
    TooLarge,
    /// More than [`crate::LINKS_MAX`] names of one file.
    TooManyLinks,
    /// The condition was not met: the file was changed since. [rfc1813 3.3.2, guard]
    NotSame,
    /// The listing's cookie is none that this directory ever gave.
    BadCookie,
    /// The device has no room.
    NoSpace,
    /// The filesystem's quota is used up.
    Quota,
    /// A snapshot, or a filesystem that is read-only.
    ReadOnly,
    /// Too much at once, or others are in the way: the same again, later.
    Later,
    /// Its turn at the device didn't come while it had patience: nobody was in its way here, so it isn't to be tried again at
    /// once. Said by the layer that gives turns.
    NoTurn,
    /// Stored bytes don't match their checksum or their format. Never answered with data.
    Corrupt,
    /// The device failed.
    Device,
    /// The node is stopping, or the device is fenced after a failed flush. Whether the operation has happened is only
    /// known after the next start.
    Stopping,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileError::NotFound => "there is no such name",
            FileError::Stale => "the file is gone",
            FileError::NotOwner => "only the owner may do that",
            FileError::Denied => "the permissions do not allow it",
            FileError::Exists => "the name is there already",
            FileError::NotDirectory => "it is not a directory",
            FileError::IsDirectory => "it is a directory",
            FileError::NotEmpty => "the directory is not empty",
            FileError::NameTooLong => "the name is too long",
            FileError::Invalid => "an argument makes no sense",
            FileError::Unsupported => "a file of this kind can't be made that way",
            FileError::TooLarge => "beyond the largest file",
            FileError::TooManyLinks => "the file has too many names",
            FileError::NotSame => "the file was changed meanwhile",
            FileError::BadCookie => "the cookie is none of this directory",
            FileError::NoSpace => "the device is full",
            FileError::Quota => "the filesystem's quota is used up",
            FileError::ReadOnly => "the filesystem is read-only",
            FileError::Later => "others are in the way, try again later",
            FileError::NoTurn => "its turn at the device did not come in time, try again later",
            FileError::Corrupt => "stored bytes do not match their checksum or format",
            FileError::Device => "the device failed the operation",
            FileError::Stopping => "the node is stopping, or its device is fenced",
        })
    }
}

impl std::error::Error for FileError {}
