//! Exit codes. Scripts rely on them: a code never changes its meaning.

use std::fmt;
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exit {
    /// It did what it was asked.
    Ok = 0,
    /// A bug, or a failing device or operating system.
    Internal = 1,
    /// The command line, a configuration file or an argument makes no sense.
    Usage = 2,
    /// What was named doesn't exist.
    NotFound = 3,
    /// The new name is taken.
    AlreadyExists = 4,
    /// The device can't hold or promise that much.
    NoSpace = 5,
    /// It is in use, has snapshots or as many of something as it may have, or another change is under way.
    Busy = 6,
    /// No node answers (in time).
    NotReachable = 7,
    /// `verify`, `fs check` or a scrub found corruption, or stored bytes don't match their checksum.
    Corrupt = 8,
    /// Refused: read-only, not permitted, or it would lose data and was not confirmed.
    Refused = 9,
    /// The device takes no more changes since a flush failed.
    Fenced = 10,
    /// It was ended by another command before it was done.
    Cancelled = 11,
}

impl Exit {
    /// All of them, for the help text and tests.
    pub const ALL: [Exit; 12] = [
        Exit::Ok,
        Exit::Internal,
        Exit::Usage,
        Exit::NotFound,
        Exit::AlreadyExists,
        Exit::NoSpace,
        Exit::Busy,
        Exit::NotReachable,
        Exit::Corrupt,
        Exit::Refused,
        Exit::Fenced,
        Exit::Cancelled,
    ];

    /// The code a shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// What it means, in a line.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "done",
            Exit::Internal => "internal error, or a failing device or operating system",
            Exit::Usage => "wrong usage, arguments or configuration",
            Exit::NotFound => "no such volume, snapshot, device or file",
            Exit::AlreadyExists => "the name is taken",
            Exit::NoSpace => "the device is full or can't promise that much",
            Exit::Busy => {
                "in use, has snapshots, another change is under way, or a folder or port is taken"
            }
            Exit::NotReachable => "no node answers, or not in time",
            Exit::Corrupt => "corruption was found",
            Exit::Refused => {
                "refused: read-only, not permitted, or data would be lost and that was not confirmed"
            }
            Exit::Fenced => "the device takes no more changes after a failed flush",
            Exit::Cancelled => "ended by another command before it was done",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// Why a command ends with a code other than 0, where no more specific error says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// How the process should end.
    pub exit: Exit,
    /// What was being done, to what, and what was found.
    pub message: String,
    /// What can be done about it; may be empty.
    pub next_step: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The table for `--help`.
pub fn help_table() -> String {
    let rows = Exit::ALL.map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()));
    rows.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_stay_clear_of_signals() {
        let codes = Exit::ALL.map(Exit::code);
        for (index, code) in codes.iter().enumerate() {
            assert_eq!(*code as usize, index);
            assert!(*code < 126, "126 and up belong to the shell");
        }
    }
}
