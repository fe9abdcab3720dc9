//! The operations, and of each what its header may have: flags, fields, body and payload.
//!
//! One row for each in `Operation::shape`; [`crate::check()`] holds requests to it.

use crate::arrival::{POINT_BYTES, RECORD_BYTES, WARRANT_BYTES};
use crate::hello::{HELLO_BODY_MAX_BYTES, HELLO_BODY_MIN_BYTES};
use crate::numbered::numbered;
use crate::open::{NAME_MAX_BYTES, OPEN_NAME_MAX_BYTES, PROOF_BYTES};

numbered! {
    /// What a request asks for.
    Operation: u8 {
        /// Begins a connection.
        Hello = 1 "HELLO",
        /// Opens a volume.
        Open = 2 "OPEN",
        /// Closes it.
        Close = 3 "CLOSE",
        /// Sends bytes back.
        Ping = 5 "PING",
        /// Reads a range.
        Read = 16 "READ",
        /// Writes a range.
        Write = 17 "WRITE",
        /// Makes a range read as zeros.
        Zero = 18 "ZERO",
        /// Gives the space of a range back; it reads as zeros.
        Deallocate = 19 "DEALLOCATE",
        /// Makes durable what was answered.
        Flush = 20 "FLUSH",
        /// Reads whole blocks with the LSN and metadata of each.
        ReadMetadata = 21 "READ_METADATA",
        /// Replaces bytes if they are what is expected.
        CompareAndSwap = 22 "COMPARE_AND_SWAP",
        /// Changes several ranges at once, under conditions.
        Commit = 23 "COMMIT",
        /// Reads several ranges in one instant, under conditions.
        ReadIf = 24 "READ_IF",
        /// Asks what of a range is allocated.
        Allocation = 25 "ALLOCATION",
        /// Asks what of a range has changed after an LSN.
        ChangedSince = 26 "CHANGED_SINCE",
        /// Takes snapshots of several volumes in one instant.
        Snapshot = 32 "SNAPSHOT",
        /// Deletes a snapshot.
        DeleteSnapshot = 33 "DELETE_SNAPSHOT",
        /// Makes a volume what it was in a snapshot.
        RollBack = 34 "ROLL_BACK",
        /// Lists the snapshots of a volume.
        ListSnapshots = 35 "LIST_SNAPSHOTS",
        /// Gives a volume another size.
        Resize = 36 "RESIZE",
        /// Reserves space for a volume.
        Reserve = 37 "RESERVE",
        /// Raises the epoch of a volume.
        SetEpoch = 38 "SET_EPOCH",
        /// Asks for what `OPEN` answers.
        Describe = 39 "DESCRIBE",
        /// Begins a volume that arrives from another node.
        Arrive = 48 "ARRIVE",
        /// Brings bytes of it.
        ArriveRuns = 49 "ARRIVE_RUNS",
        /// Changes its size, or takes a snapshot of it.
        ArriveStep = 50 "ARRIVE_STEP",
        /// It is whole: it is here from now on.
        Arrived = 51 "ARRIVED",
        /// Asks what became of an arrival.
        Settle = 52 "SETTLE",
        /// Begins once more what was cut off, and asks how far it is.
        ArriveAgain = 53 "ARRIVE_AGAIN",
    }
}

/// Flags of requests, by operation.
pub mod flag {
    /// `READ`: runs of zeros are left out of the payload.
    pub const SPARSE: u8 = 1 << 0;
    /// `WRITE`, `ZERO`, `DEALLOCATE`, `COMPARE_AND_SWAP`, `COMMIT`: answer when it survives power
    /// loss.
    pub const DURABLE: u8 = 1 << 0;
    /// `WRITE`: the header's `lsn` is the metadata of each block.
    pub const METADATA: u8 = 1 << 1;
    /// `ZERO`: the range keeps its space.
    pub const KEEP_SPACE: u8 = 1 << 1;
    /// `OPEN`: for reading.
    pub const READ_ONLY: u8 = 1 << 0;
    /// `OPEN`: raise the epoch, so that others can't write any more.
    pub const ALONE: u8 = 1 << 1;
    /// `SETTLE`: what has not arrived is not to.
    pub const ABANDON: u8 = 1 << 0;
    /// `SETTLE`: it will not be asked again.
    pub const CONFIRM: u8 = 1 << 1;
    /// `SETTLE`: the volume goes on at its origin, whatever is answered: what has arrived is a fork.
    pub const FORKED: u8 = 1 << 2;
}

/// Bytes that a `PING` may carry.
pub const PING_MAX_BYTES: u32 = 4096;

/// What an operation has in the header's field for a length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LenUse {
    /// Nothing: 0.
    None,
    /// The length of a range, 1 at least, that begins at the header's offset.
    Range,
    /// The length of a range of whole blocks.
    Blocks,
    /// That of a range within one block.
    WithinBlock,
    /// A size, which has no offset.
    Size,
}

/// What an operation has in the header's field for an LSN.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LsnUse {
    /// Nothing: 0.
    None,
    /// Any number.
    Any,
    /// Any number with the flag `METADATA`, otherwise 0.
    Metadata,
    /// An epoch.
    Epoch,
}

/// How much payload an operation has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadUse {
    /// None.
    None,
    /// As much as the body accounts for.
    ByBody,
    /// Up to so many bytes.
    UpTo(u32),
    /// The bytes of a range from the header's offset on, 1 at least.
    Range,
    /// Twice the header's length.
    Twice,
}

/// What the header of an operation may have.
pub(crate) struct Shape {
    pub(crate) flags: u8,
    pub(crate) volume: bool,
    pub(crate) len: LenUse,
    pub(crate) lsn: LsnUse,
    pub(crate) payload: PayloadUse,
    /// Least and most bytes of the body, beside the limit for all bodies.
    pub(crate) body_bytes: (u32, u32),
}

impl Shape {
    /// Of an operation that has nothing at all.
    const BARE: Shape = Shape {
        flags: 0,
        volume: false,
        len: LenUse::None,
        lsn: LsnUse::None,
        payload: PayloadUse::None,
        body_bytes: (0, 0),
    };
    /// Of one that has a volume.
    const VOLUME: Shape = Shape {
        volume: true,
        ..Shape::BARE
    };
    /// Of one that has a range of a volume.
    const RANGE: Shape = Shape {
        len: LenUse::Range,
        ..Shape::VOLUME
    };

    /// Of one of an arrival: the LSN is the number of the attempt.
    const ARRIVAL: Shape = Shape {
        lsn: LsnUse::Any,
        ..Shape::BARE
    };

    const fn flags(self, flags: u8) -> Shape {
        Shape { flags, ..self }
    }

    const fn len(self, len: LenUse) -> Shape {
        Shape { len, ..self }
    }

    const fn lsn(self, lsn: LsnUse) -> Shape {
        Shape { lsn, ..self }
    }

    const fn payload(self, payload: PayloadUse) -> Shape {
        Shape { payload, ..self }
    }

    /// A body of `min` to `max` bytes.
    const fn body(self, min: u32, max: u32) -> Shape {
        Shape {
            body_bytes: (min, max),
            ..self
        }
    }
}

/// Of a body that has its own counts; the limit for all bodies holds.
const ANY_LENGTH: u32 = u32::MAX;
const NAME_MAX: u32 = NAME_MAX_BYTES as u32;
/// `name_bytes` and the longest name.
const TARGET_MAX: u32 = 2 + OPEN_NAME_MAX_BYTES as u32;
/// The token's number and the proof.
const PROOF: u32 = 4 + PROOF_BYTES as u32;
const WARRANT: u32 = WARRANT_BYTES as u32;
/// With a name of one byte.
const ARRIVE_MIN: u32 = WARRANT + 16 + 8 + 8 + 4 + 4 + 4 + 64 + 2 + 1;
/// Kind, time, attributes, point and the longest name.
const STEP_MAX: u32 = 1 + 8 + 64 + POINT_BYTES as u32 + 2 + NAME_MAX;

impl Operation {
    /// True if it changes something of a volume. These are what a session remembers.
    pub const fn is_change(self) -> bool {
        use Operation::*;
        match self {
            Write | Zero | Deallocate | CompareAndSwap | Commit => true,
            Snapshot | DeleteSnapshot | RollBack | Resize | Reserve | SetEpoch => true,
            Hello | Open | Close | Ping | Read | Flush | ReadMetadata | ReadIf => false,
            Allocation | ChangedSince | ListSnapshots | Describe => false,
            // Of those an arrival takes care itself: each may come twice.
            Arrive | ArriveRuns | ArriveStep | Arrived | Settle | ArriveAgain => false,
        }
    }

    /// The flags that it knows.
    pub const fn flags(self) -> u8 {
        self.shape().flags
    }

    pub(crate) const fn shape(self) -> Shape {
        use flag::*;
        match self {
            Operation::Hello => Shape::BARE
                .lsn(LsnUse::Any)
                .body(HELLO_BODY_MIN_BYTES, HELLO_BODY_MAX_BYTES),
            Operation::Open => Shape::BARE
                .flags(READ_ONLY | ALONE)
                .lsn(LsnUse::Any)
                .body(3 + PROOF, TARGET_MAX + PROOF),
            Operation::Ping => Shape::BARE.payload(PayloadUse::UpTo(PING_MAX_BYTES)),
            Operation::Close | Operation::Flush | Operation::Describe => Shape::VOLUME,
            Operation::Read => Shape::RANGE.flags(SPARSE),
            Operation::Write => Shape::VOLUME
                .flags(DURABLE | METADATA)
                .lsn(LsnUse::Metadata)
                .payload(PayloadUse::Range),
            Operation::Zero => Shape::RANGE.flags(DURABLE | KEEP_SPACE),
            Operation::Deallocate => Shape::RANGE.flags(DURABLE),
            Operation::ReadMetadata => Shape::VOLUME.len(LenUse::Blocks),
            Operation::CompareAndSwap => Shape::VOLUME
                .flags(DURABLE)
                .len(LenUse::WithinBlock)
                .payload(PayloadUse::Twice),
            Operation::Commit => Shape::BARE
                .flags(DURABLE)
                .payload(PayloadUse::ByBody)
                .body(4, ANY_LENGTH),
            Operation::ReadIf => Shape::BARE.payload(PayloadUse::ByBody).body(4, ANY_LENGTH),
            Operation::Allocation => Shape::RANGE.body(4, 4),
            Operation::ChangedSince => Shape::RANGE.lsn(LsnUse::Any).body(4, 4),
            Operation::Snapshot => Shape::BARE.body(2 + 4 + 2 + 1, ANY_LENGTH),
            Operation::DeleteSnapshot | Operation::RollBack => Shape::VOLUME.body(1, NAME_MAX),
            Operation::ListSnapshots => Shape::VOLUME.body(0, NAME_MAX),
            Operation::Resize | Operation::Reserve => Shape::VOLUME.len(LenUse::Size),
            Operation::SetEpoch => Shape::VOLUME.lsn(LsnUse::Epoch),
            Operation::Arrive | Operation::ArriveAgain => {
                Shape::ARRIVAL.body(ARRIVE_MIN, ARRIVE_MIN + NAME_MAX - 1)
            }
            Operation::ArriveRuns => Shape::ARRIVAL
                .payload(PayloadUse::ByBody)
                .body(WARRANT + 24, ANY_LENGTH),
            Operation::ArriveStep => Shape::ARRIVAL.body(WARRANT + 9, WARRANT + STEP_MAX),
            Operation::Arrived => Shape::ARRIVAL.body(WARRANT, WARRANT + RECORD_BYTES as u32),
            Operation::Settle => Shape::BARE
                .flags(ABANDON | CONFIRM | FORKED)
                .body(WARRANT + 32, WARRANT + 32),
        }
    }
}
