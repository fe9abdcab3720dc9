//! Why a node refused or failed something.

use std::{fmt, io};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exit::Exit;

/// The kinds that callers tell apart. Each has one HTTP status and one exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeErrorKind {
    /// What was named doesn't exist.
    NotFound,
    /// The new name is taken.
    AlreadyExists,
    /// The device can't hold or promise that much.
    NoSpace,
    /// There are as many of them as there may be: one has to go first.
    TooMany,
    /// The request makes no sense, whatever the state.
    InvalidArgument,
    /// Somebody uses it, or another change to it is under way.
    Busy,
    /// It has snapshots, which have to go first.
    HasSnapshots,
    /// It can't be written (a snapshot, say).
    ReadOnly,
    /// Needs a confirmation that the request doesn't carry (data would be lost), or is not allowed
    /// to this client.
    Refused,
    /// The request has no key that opens this, or a wrong one.
    Unauthenticated,
    /// A flush failed earlier: the device takes no more changes until the node is restarted.
    Fenced,
    /// The node is starting, stopping, overloaded, or did not answer in time.
    Unavailable,
    /// Stored bytes don't match their checksum.
    Corrupt,
    /// A bug or a failing device.
    Internal,
}

impl NodeErrorKind {
    /// All of them, for tables and tests.
    pub const ALL: [NodeErrorKind; 14] = [
        NodeErrorKind::NotFound,
        NodeErrorKind::AlreadyExists,
        NodeErrorKind::NoSpace,
        NodeErrorKind::TooMany,
        NodeErrorKind::InvalidArgument,
        NodeErrorKind::Busy,
        NodeErrorKind::HasSnapshots,
        NodeErrorKind::ReadOnly,
        NodeErrorKind::Refused,
        NodeErrorKind::Unauthenticated,
        NodeErrorKind::Fenced,
        NodeErrorKind::Unavailable,
        NodeErrorKind::Corrupt,
        NodeErrorKind::Internal,
    ];

    /// The kind of an error of the operating system. What says nothing about the request or the
    /// state of things is a failing system: [`NodeErrorKind::Internal`].
    pub fn of_io(error: &io::Error) -> NodeErrorKind {
        use io::ErrorKind as Io;
        match error.kind() {
            Io::NotFound => NodeErrorKind::NotFound,
            Io::AlreadyExists => NodeErrorKind::AlreadyExists,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => NodeErrorKind::NoSpace,
            Io::InvalidInput
            | Io::InvalidFilename
            | Io::NotADirectory
            | Io::IsADirectory
            | Io::AddrNotAvailable => NodeErrorKind::InvalidArgument,
            Io::ResourceBusy | Io::ExecutableFileBusy | Io::AddrInUse | Io::WouldBlock => {
                NodeErrorKind::Busy
            }
            Io::ReadOnlyFilesystem => NodeErrorKind::ReadOnly,
            Io::PermissionDenied => NodeErrorKind::Refused,
            Io::TimedOut | Io::ConnectionRefused | Io::HostUnreachable | Io::NetworkUnreachable => {
                NodeErrorKind::Unavailable
            }
            _ => NodeErrorKind::Internal,
        }
    }

    /// The HTTP status the API answers with.
    pub fn http_status(self) -> u16 {
        match self {
            NodeErrorKind::NotFound => 404,
            NodeErrorKind::AlreadyExists => 409,
            NodeErrorKind::NoSpace => 507,
            NodeErrorKind::InvalidArgument => 400,
            NodeErrorKind::Busy | NodeErrorKind::HasSnapshots | NodeErrorKind::TooMany => 409,
            NodeErrorKind::ReadOnly | NodeErrorKind::Refused => 403,
            NodeErrorKind::Unauthenticated => 401,
            NodeErrorKind::Fenced | NodeErrorKind::Unavailable => 503,
            NodeErrorKind::Corrupt | NodeErrorKind::Internal => 500,
        }
    }

    /// The exit code of a command that fails with it.
    pub fn exit(self) -> Exit {
        match self {
            NodeErrorKind::NotFound => Exit::NotFound,
            NodeErrorKind::AlreadyExists => Exit::AlreadyExists,
            NodeErrorKind::NoSpace => Exit::NoSpace,
            NodeErrorKind::InvalidArgument => Exit::Usage,
            NodeErrorKind::Busy | NodeErrorKind::HasSnapshots | NodeErrorKind::TooMany => {
                Exit::Busy
            }
            NodeErrorKind::ReadOnly | NodeErrorKind::Refused | NodeErrorKind::Unauthenticated => {
                Exit::Refused
            }
            NodeErrorKind::Fenced => Exit::Fenced,
            NodeErrorKind::Unavailable => Exit::NotReachable,
            NodeErrorKind::Corrupt => Exit::Corrupt,
            NodeErrorKind::Internal => Exit::Internal,
        }
    }

    /// The kind in a few words, as a heading.
    pub fn title(self) -> &'static str {
        match self {
            NodeErrorKind::NotFound => "not found",
            NodeErrorKind::AlreadyExists => "already exists",
            NodeErrorKind::NoSpace => "no space",
            NodeErrorKind::TooMany => "too many",
            NodeErrorKind::InvalidArgument => "invalid argument",
            NodeErrorKind::Busy => "busy",
            NodeErrorKind::HasSnapshots => "has snapshots",
            NodeErrorKind::ReadOnly => "read-only",
            NodeErrorKind::Refused => "refused",
            NodeErrorKind::Unauthenticated => "unauthenticated",
            NodeErrorKind::Fenced => "device fenced",
            NodeErrorKind::Unavailable => "unavailable",
            NodeErrorKind::Corrupt => "corrupt data",
            NodeErrorKind::Internal => "internal error",
        }
    }
}

/// A failure: its kind, and a message in three parts.
///
/// "creating volume 'a': there already is a volume of that name; choose another name".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeError {
    /// For programs.
    pub kind: NodeErrorKind,
    /// What was being done, to what: "creating volume 'a'".
    pub doing: String,
    /// What was expected and what was found instead.
    pub found: String,
    /// What the reader can do next; empty if there is nothing to advise.
    pub next_step: String,
}

impl NodeError {
    /// An error without advice. Add it with [`NodeError::next`].
    pub fn new(
        kind: NodeErrorKind,
        doing: impl Into<String>,
        found: impl Into<String>,
    ) -> NodeError {
        NodeError {
            kind,
            doing: doing.into(),
            found: found.into(),
            next_step: String::new(),
        }
    }

    /// An error of the operating system, with the advice that fits its kind.
    pub fn of_io(doing: impl Into<String>, error: &io::Error) -> NodeError {
        let kind = NodeErrorKind::of_io(error);
        let next = match kind {
            NodeErrorKind::NotFound => "check the path",
            NodeErrorKind::Refused => "check its owner and permissions, and your user",
            NodeErrorKind::ReadOnly => "choose a place that can be written",
            NodeErrorKind::NoSpace => "make room, ask for less, or choose another place",
            _ => "",
        };
        NodeError::new(kind, doing, error.to_string()).next(next)
    }

    /// The same error with other advice, if it is of this kind.
    pub fn next_for(self, kind: NodeErrorKind, next_step: impl Into<String>) -> NodeError {
        match self.kind == kind {
            true => self.next(next_step),
            false => self,
        }
    }

    /// The same error with advice.
    pub fn next(mut self, next_step: impl Into<String>) -> NodeError {
        self.next_step = next_step.into();
        self
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.found)?;
        if !self.next_step.is_empty() {
            write!(f, "; {}", self.next_step)?;
        }
        Ok(())
    }
}

impl std::error::Error for NodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_three_parts() {
        let error = NodeError::new(NodeErrorKind::Busy, "deleting volume 'a'", "it is in use");
        assert_eq!(error.to_string(), "deleting volume 'a': it is in use");
        let error = error.next("disconnect its clients first");
        assert_eq!(
            error.to_string(),
            "deleting volume 'a': it is in use; disconnect its clients first"
        );
    }

    #[test]
    fn statuses_and_exit_codes_report_failure() {
        for kind in NodeErrorKind::ALL {
            assert!((400..=599).contains(&kind.http_status()), "{kind:?}");
            assert_ne!(kind.exit(), Exit::Ok, "{kind:?}");
        }
    }

    #[test]
    fn errors_of_the_system_keep_their_meaning() {
        // Numbers of Linux: what std makes of them is part of what is tested.
        let table = [
            ("EPERM", 1, Exit::Refused),
            ("ENOENT", 2, Exit::NotFound),
            ("EIO", 5, Exit::Internal),
            ("EAGAIN", 11, Exit::Busy),
            ("EACCES", 13, Exit::Refused),
            ("EBUSY", 16, Exit::Busy),
            ("EEXIST", 17, Exit::AlreadyExists),
            ("ENOTDIR", 20, Exit::Usage),
            ("EISDIR", 21, Exit::Usage),
            ("EINVAL", 22, Exit::Usage),
            ("EMFILE", 24, Exit::Internal),
            ("ETXTBSY", 26, Exit::Busy),
            ("EFBIG", 27, Exit::NoSpace),
            ("ENOSPC", 28, Exit::NoSpace),
            ("EROFS", 30, Exit::Refused),
            ("ENAMETOOLONG", 36, Exit::Usage),
            ("EADDRINUSE", 98, Exit::Busy),
            ("EADDRNOTAVAIL", 99, Exit::Usage),
            ("ETIMEDOUT", 110, Exit::NotReachable),
            ("ECONNREFUSED", 111, Exit::NotReachable),
            ("EDQUOT", 122, Exit::NoSpace),
        ];
        for (name, number, exit) in table {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(NodeErrorKind::of_io(&error).exit(), exit, "{name}");
        }
    }
}
