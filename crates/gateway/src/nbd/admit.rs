//! What a request may do: one pure function from a header to what happens next.
//!
//! Everything a client can get wrong in a header is decided here, before anything is allocated:
//! unknown commands and flags, lengths, bounds, a read-only export. What passes is a [`Work`] whose
//! numbers are known to be in range.

use super::contexts::ContextSet;
use super::errors::{Errno, Refusal, refusal_of};
use super::wire::{PAYLOAD_MAX_BYTES, RawRequest, ReplyMode, command, command_flag};
use crate::volume::{Stability, VolumeError};

/// The commands we know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Command {
    /// `NBD_CMD_READ`
    Read,
    /// `NBD_CMD_WRITE`
    Write,
    /// `NBD_CMD_FLUSH`
    Flush,
    /// `NBD_CMD_TRIM`
    Trim,
    /// `NBD_CMD_WRITE_ZEROES`
    WriteZeroes,
    /// `NBD_CMD_CACHE`
    Cache,
    /// `NBD_CMD_BLOCK_STATUS`
    BlockStatus,
    /// Any other number; always refused.
    Unknown,
}

impl Command {
    /// All of them, in the order of their indexes.
    pub const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Flush,
        Command::Trim,
        Command::WriteZeroes,
        Command::Cache,
        Command::BlockStatus,
        Command::Unknown,
    ];

    /// Position in [`Command::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// A word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Command::Read => "read",
            Command::Write => "write",
            Command::Flush => "flush",
            Command::Trim => "trim",
            Command::WriteZeroes => "write_zeroes",
            Command::Cache => "cache",
            Command::BlockStatus => "block_status",
            Command::Unknown => "unknown",
        }
    }

    fn of_number(number: u16) -> Command {
        match number {
            command::READ => Command::Read,
            command::WRITE => Command::Write,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim,
            command::CACHE => Command::Cache,
            command::WRITE_ZEROES => Command::WriteZeroes,
            command::BLOCK_STATUS => Command::BlockStatus,
            _ => Command::Unknown,
        }
    }

    /// Flags that mean something to the command. FUA is valid everywhere, since we advertise it.
    /// [nbd "Command flags"]
    fn flags_allowed(self, mode: ReplyMode) -> u16 {
        let own = match self {
            Command::Read if mode.is_chunked() => command_flag::DF,
            Command::Write if mode == ReplyMode::Extended => command_flag::PAYLOAD_LEN,
            Command::WriteZeroes => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            Command::BlockStatus if mode == ReplyMode::Extended => {
                command_flag::REQ_ONE | command_flag::PAYLOAD_LEN
            }
            Command::BlockStatus => command_flag::REQ_ONE,
            _ => 0,
        };
        own | command_flag::FUA
    }

    fn changes(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// What a worker does for a request. Ranges lie within the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Read; at least one byte, at most [`PAYLOAD_MAX_BYTES`].
    Read {
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u32,
        /// In one chunk.
        dont_fragment: bool,
    },
    /// Write; the payload, at least one byte, comes with the job.
    Write {
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u32,
        /// When to answer.
        stability: Stability,
    },
    /// Flush.
    Flush,
    /// Deallocate.
    Trim {
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
        /// When to answer.
        stability: Stability,
    },
    /// Write zeros.
    WriteZeroes {
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
        /// Keep the space.
        keep_allocated: bool,
        /// `FAST_ZERO` was asked for.
        fast: bool,
        /// When to answer.
        stability: Stability,
    },
    /// Ask for metadata; at least one byte.
    BlockStatus {
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
        /// One extent per context.
        one_extent: bool,
        /// Which contexts; not empty.
        contexts: ContextSet,
    },
}

/// What happens with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Do it. A write's payload of `len_bytes` follows the header.
    Run(Work),
    /// Skip the payload, then answer without any work: with success or with a refusal.
    Answer {
        /// Payload to skip.
        skip_bytes: u32,
        /// The answer.
        result: Result<(), Refusal>,
    },
    /// A payload of this many bytes (few) chooses contexts: read it, then call [`admit_status`].
    StatusPayload {
        /// Its length.
        payload_bytes: u32,
    },
    /// The client says good-bye.
    Disconnect,
    /// The payload is too long to take or to skip: drop the connection.
    PayloadTooLong,
}

/// What admission needs to know about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportView {
    /// Headers in use.
    pub mode: ReplyMode,
    /// The export's size now; `None` if it was deleted.
    pub size_bytes: Option<u64>,
    /// True if changes are refused.
    pub read_only: bool,
    /// Contexts selected.
    pub contexts_count: usize,
}

/// The longest payload with which `BLOCK_STATUS` can choose among the contexts there are.
pub const STATUS_PAYLOAD_MAX_BYTES: u32 = 8 + 4 * super::contexts::CONTEXTS_MAX as u32;

const UNKNOWN_COMMAND: Refusal = Refusal::new(Errno::Inval, "not a known command");
const UNKNOWN_FLAG: Refusal = Refusal::new(Errno::Inval, "a flag that this command does not have");
const NO_PAYLOAD: Refusal = Refusal::new(Errno::Inval, "a write needs a payload");
const NO_CONTEXT: Refusal = Refusal::new(Errno::Inval, "no metadata context was selected");
const BAD_CONTEXTS: Refusal =
    Refusal::new(Errno::Inval, "the list of metadata contexts is not valid");
const EMPTY_STATUS: Refusal = Refusal::new(Errno::Inval, "the range is empty");
const SLOW_ZERO: Refusal = Refusal::new(Errno::NotSup, "zeroing without a hole is not fast");
const LONG_READ: &str = "the read is longer than the largest payload";

/// Decides about a request. Returns its command too, for metrics.
pub fn admit(request: &RawRequest, export: &ExportView) -> (Command, Admission) {
    if request.command == command::DISC {
        return (Command::Unknown, Admission::Disconnect);
    }
    let known = Command::of_number(request.command);
    let payload_bytes = match payload_bytes(request, known, export.mode) {
        Some(bytes) => bytes,
        None => return (known, Admission::PayloadTooLong),
    };
    let answer = |result| Admission::Answer {
        skip_bytes: payload_bytes,
        result,
    };
    // [nbd "Terminating the transmission phase"] first of all: what else may be wrong with a request
    // to an export that is gone is of no use to its client.
    if export.size_bytes.is_none() {
        return (
            known,
            answer(Err(refusal_of(VolumeError::Gone, known, false))),
        );
    }
    let admission = match check(request, known, export) {
        Ok(Checked::Work(work)) => Admission::Run(work),
        Ok(Checked::StatusPayload) => Admission::StatusPayload { payload_bytes },
        Ok(Checked::Nothing) => answer(Ok(())),
        Err(refusal) => answer(Err(refusal)),
    };
    (known, admission)
}

/// Length of the payload after the header. `None`: longer than anyone may send.
///
/// Skipping what is too long would keep the stream in step, but lets a client keep the core busy
/// with nothing, so [nbd "Size constraints"] allows to disconnect.
fn payload_bytes(request: &RawRequest, command: Command, mode: ReplyMode) -> Option<u32> {
    let has_payload = match mode {
        // [nbd-ext "Request message"] the flag tells, whatever the command.
        ReplyMode::Extended => request.flags & command_flag::PAYLOAD_LEN != 0,
        ReplyMode::Simple | ReplyMode::Structured => command == Command::Write,
    };
    if !has_payload {
        return Some(0);
    }
    u32::try_from(request.length_bytes)
        .ok()
        .filter(|&bytes| bytes <= PAYLOAD_MAX_BYTES)
}

enum Checked {
    Work(Work),
    StatusPayload,
    /// Valid, and there is nothing to do.
    Nothing,
}

fn check(request: &RawRequest, command: Command, export: &ExportView) -> Result<Checked, Refusal> {
    // [nbd "Error values"] EINVAL for an unknown command or flag.
    if command == Command::Unknown {
        return Err(UNKNOWN_COMMAND);
    }
    if request.flags & !command.flags_allowed(export.mode) != 0 {
        return Err(UNKNOWN_FLAG);
    }
    let has_payload_flag = has(request, command_flag::PAYLOAD_LEN);
    if command == Command::Write && export.mode == ReplyMode::Extended && !has_payload_flag {
        return Err(NO_PAYLOAD);
    }
    if command.changes() && export.read_only {
        return Err(refusal_of(VolumeError::ReadOnly, command, false));
    }
    match command {
        // Offset and length are reserved; what they hold changes nothing.
        Command::Flush => Ok(Checked::Work(Work::Flush)),
        Command::BlockStatus if export.contexts_count == 0 => Err(NO_CONTEXT),
        Command::BlockStatus if has_payload_flag => {
            let fits = request.length_bytes <= u64::from(STATUS_PAYLOAD_MAX_BYTES);
            fits.then_some(Checked::StatusPayload).ok_or(BAD_CONTEXTS)
        }
        Command::BlockStatus => {
            let contexts = ContextSet::first(export.contexts_count);
            check_status(request, request.length_bytes, contexts, export).map(Checked::Work)
        }
        _ => {
            check_range(request.offset_bytes, request.length_bytes, command, export)?;
            // There is no cache to fill, which the protocol allows.
            if request.length_bytes == 0 || command == Command::Cache {
                return Ok(Checked::Nothing);
            }
            ranged_work(request, command, export).map(Checked::Work)
        }
    }
}

fn has(request: &RawRequest, flag: u16) -> bool {
    request.flags & flag != 0
}

/// What to do over a range that lies within the export and is not empty.
fn ranged_work(
    request: &RawRequest,
    command: Command,
    export: &ExportView,
) -> Result<Work, Refusal> {
    let (offset_bytes, len_bytes) = (request.offset_bytes, request.length_bytes);
    let stability = match has(request, command_flag::FUA) {
        true => Stability::Stable,
        false => Stability::Unstable,
    };
    Ok(match command {
        Command::Read => Work::Read {
            offset_bytes,
            len_bytes: read_len(len_bytes, export.mode)?,
            dont_fragment: has(request, command_flag::DF),
        },
        Command::Write => Work::Write {
            offset_bytes,
            // Never too long: `payload_bytes` has refused that.
            len_bytes: u32::try_from(len_bytes).map_err(|_| NO_PAYLOAD)?,
            stability,
        },
        Command::Trim => Work::Trim {
            offset_bytes,
            len_bytes,
            stability,
        },
        Command::WriteZeroes => {
            let keep_allocated = has(request, command_flag::NO_HOLE);
            let fast = has(request, command_flag::FAST_ZERO);
            // [nbd "Request types", NBD_CMD_WRITE_ZEROES] fail at once what may be as slow as a
            // write: giving each block space is.
            if fast && keep_allocated {
                return Err(SLOW_ZERO);
            }
            Work::WriteZeroes {
                offset_bytes,
                len_bytes,
                keep_allocated,
                fast,
                stability,
            }
        }
        Command::Cache | Command::Flush | Command::BlockStatus | Command::Unknown => {
            return Err(UNKNOWN_COMMAND);
        }
    })
}

fn check_range(
    offset_bytes: u64,
    len_bytes: u64,
    command: Command,
    export: &ExportView,
) -> Result<(), Refusal> {
    let Some(size_bytes) = export.size_bytes else {
        return Err(refusal_of(VolumeError::Gone, command, false));
    };
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(refusal_of(VolumeError::OutOfRange, command, false)),
    }
}

/// [nbd "Error values"] EOVERFLOW only where reads can be fragmented; EINVAL otherwise.
fn read_len(len_bytes: u64, mode: ReplyMode) -> Result<u32, Refusal> {
    let errno = if mode.is_chunked() {
        Errno::Overflow
    } else {
        Errno::Inval
    };
    u32::try_from(len_bytes)
        .ok()
        .filter(|&len| len <= PAYLOAD_MAX_BYTES)
        .ok_or(Refusal::new(errno, LONG_READ))
}

fn check_status(
    request: &RawRequest,
    len_bytes: u64,
    contexts: ContextSet,
    export: &ExportView,
) -> Result<Work, Refusal> {
    check_range(
        request.offset_bytes,
        len_bytes,
        Command::BlockStatus,
        export,
    )?;
    // A reply has at least one extent, and no extent is empty.
    if len_bytes == 0 {
        return Err(EMPTY_STATUS);
    }
    Ok(Work::BlockStatus {
        offset_bytes: request.offset_bytes,
        len_bytes,
        one_extent: has(request, command_flag::REQ_ONE),
        contexts,
    })
}

/// Decides about a `BLOCK_STATUS` whose payload is a length and a list of context ids.
/// [nbd-ext "Request types", NBD_CMD_BLOCK_STATUS]
pub fn admit_status(
    request: &RawRequest,
    payload: &[u8],
    export: &ExportView,
) -> Result<Work, Refusal> {
    let mut fields = super::wire::Fields::new(payload);
    let len_bytes = fields.u64().ok_or(BAD_CONTEXTS)?;
    let mut contexts = ContextSet::empty();
    while !fields.is_empty() {
        let id = fields.u32().ok_or(BAD_CONTEXTS)?;
        if !contexts.insert_id(id, export.contexts_count) {
            return Err(BAD_CONTEXTS);
        }
    }
    if contexts.is_empty() {
        return Err(BAD_CONTEXTS);
    }
    check_status(request, len_bytes, contexts, export)
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
