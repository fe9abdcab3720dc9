//! What the control side says when something can't be done to a filesystem.

use flagstone_fs::FileError;

use crate::node::{NodeError, NodeErrorKind};

pub(super) fn no_such_filesystem(name: &str, doing: &str) -> NodeError {
    let found = format!("there is no filesystem '{name}'");
    NodeError::new(NodeErrorKind::NotFound, doing, found).next("see `flagstone fs list`")
}

pub(super) fn no_such_snapshot(filesystem: &str, name: &str, doing: &str) -> NodeError {
    let found = format!("filesystem '{filesystem}' has no snapshot '{name}'");
    let next = format!("see `flagstone fs snapshot list {filesystem}`");
    NodeError::new(NodeErrorKind::NotFound, doing, found).next(next)
}

/// What the control side says to an error of the filesystems.
pub(in crate::node::real) fn file_error(error: FileError, doing: &str) -> NodeError {
    let (kind, next) = match error {
        FileError::NotFound | FileError::Stale => {
            (NodeErrorKind::NotFound, "see `flagstone fs list`")
        }
        FileError::Exists => (NodeErrorKind::AlreadyExists, "choose another name"),
        FileError::NoSpace => (
            NodeErrorKind::NoSpace,
            "delete files, snapshots or volumes, or see `flagstone device list` for what is reserved",
        ),
        FileError::Quota => (NodeErrorKind::NoSpace, "delete files or snapshots"),
        FileError::Invalid | FileError::NameTooLong => {
            (NodeErrorKind::InvalidArgument, "choose another name")
        }
        FileError::ReadOnly => (
            NodeErrorKind::ReadOnly,
            "snapshots can't be changed; name what is there now",
        ),
        FileError::Later | FileError::NoTurn => (NodeErrorKind::Busy, "try again"),
        FileError::Corrupt => (
            NodeErrorKind::Corrupt,
            "see the log for what was found, and run `flagstone fs check` and, with the node stopped, \
             `flagstone verify` on the device",
        ),
        FileError::Stopping => (
            NodeErrorKind::Unavailable,
            "if the log tells of a device that was fenced, restart the node",
        ),
        FileError::Device => (
            NodeErrorKind::Internal,
            "see the log for the device's error",
        ),
        _ => (NodeErrorKind::Internal, "see the log"),
    };
    NodeError::new(kind, doing, error.to_string()).next(next)
}
