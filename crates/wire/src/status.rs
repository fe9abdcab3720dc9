//! What a request came to.

use crate::numbered::numbered;

numbered! {
    /// Status of a reply.
    Status: u16 {
        /// Carried out.
        Ok = 0 "OK",
        /// No version in common; the body has those that the server speaks.
        Version = 1 "VERSION",
        /// The request makes no sense: unknown operation or flag, malformed body, a field that must
        /// be 0.
        Invalid = 2 "INVALID",
        /// More bytes than one reply may have are asked for.
        TooLong = 3 "TOO_LONG",
        /// Body or payload don't match their checksum.
        Damaged = 4 "DAMAGED",
        /// No right to it.
        Denied = 5 "DENIED",
        /// The header names no volume that is open.
        NoVolume = 6 "NO_VOLUME",
        /// The volume is elsewhere; the body says where.
        Moved = 7 "MOVED",
        /// The volume was deleted.
        Gone = 8 "GONE",
        /// No more of these may be open.
        Limit = 9 "LIMIT",
        /// Nothing was done, and it is worth sending again later: its core is busy, or whose the volume is isn't known.
        Busy = 10 "BUSY",
        /// Its turn came after the client's patience had ended.
        Late = 11 "LATE",
        /// The node is going down.
        Stopping = 12 "STOPPING",
        /// The range leaves the volume.
        OutOfRange = 16 "OUT_OF_RANGE",
        /// The volume was opened for reading, or is a snapshot.
        ReadOnly = 17 "READ_ONLY",
        /// The device has no room for it.
        NoSpace = 18 "NO_SPACE",
        /// Stored bytes don't match their checksum.
        Corrupt = 19 "CORRUPT",
        /// The device failed.
        Device = 20 "DEVICE",
        /// A flush failed: nothing is acknowledged any more.
        Fenced = 21 "FENCED",
        /// Somebody else opened the volume alone.
        StaleEpoch = 22 "STALE_EPOCH",
        /// A range has changed; the body has the LSN of that, or 0.
        ConditionFailed = 23 "CONDITION_FAILED",
        /// The bytes are others than expected.
        NotEqual = 24 "NOT_EQUAL",
        /// What changed since then is not known any more.
        Forgotten = 25 "FORGOTTEN",
        /// The volumes are not in one journal.
        NotTogether = 26 "NOT_TOGETHER",
        /// The name is taken.
        Exists = 27 "EXISTS",
        /// No such snapshot.
        NotFound = 28 "NOT_FOUND",
        /// Something else needs what was to go.
        InUse = 29 "IN_USE",
        /// A part of a longer change was made, and then something came in between.
        Partly = 30 "PARTLY",
    }
}

/// Whether a request was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CarriedOut {
    /// Nothing has changed.
    No,
    /// It happened.
    Yes,
    /// Each block is wholly as before or wholly as asked for.
    Perhaps,
}

impl Status {
    /// Whether what it answers was carried out.
    pub const fn carried_out(self) -> CarriedOut {
        match self {
            Status::Ok => CarriedOut::Yes,
            Status::NoSpace | Status::Device | Status::Fenced | Status::Partly => {
                CarriedOut::Perhaps
            }
            _ => CarriedOut::No,
        }
    }

    /// A sentence for people, for which a server has a better one if it knows more.
    pub const fn sentence(self) -> &'static str {
        match self {
            Status::Ok => "It was carried out.",
            Status::Version => "Client and server have no version of the protocol in common.",
            Status::Invalid => {
                "The request makes no sense: unknown operation or flag, a malformed body, or a \
                 field that must be 0."
            }
            Status::TooLong => "It is longer than one reply can be; ask for less at a time.",
            Status::Damaged => {
                "Body or payload don't match their checksum; send it again, and if that goes on, \
                 look at the network."
            }
            Status::Denied => {
                "The token, the address or what it is opened for doesn't allow it; the node's audit log says what."
            }
            Status::NoVolume => "No volume is open under this number; open it first.",
            Status::Moved => "The volume is on another core or node; open it there.",
            Status::Gone => "The volume was deleted; open another one.",
            Status::Limit => "No more volumes can be open on this connection; close one first.",
            Status::Busy => {
                "Nothing was done: its core is busy, or it isn't known for certain where the volume is; try again later."
            }
            Status::Late => "Its turn came after the time that it was to wait at most.",
            Status::Stopping => "The node is going down; open the volume again when it is back.",
            Status::OutOfRange => {
                "The range leaves the volume; ask for its size, which may have changed."
            }
            Status::ReadOnly => {
                "The volume was opened for reading, or is a snapshot; open it for writing, or a clone of the snapshot."
            }
            Status::NoSpace => "The device is full; free some space, or reserve it beforehand.",
            Status::Corrupt => {
                "The stored bytes don't match their checksum; restore them from a copy."
            }
            Status::Device => "The device failed; the node's log says how.",
            Status::Fenced => {
                "A flush of the device failed, so nothing is acknowledged any more; restart the \
                 node."
            }
            Status::StaleEpoch => {
                "Somebody else has opened the volume alone since; open it alone, too, if it is to be written from here."
            }
            Status::ConditionFailed => {
                "The range has changed since that LSN; read it again and decide anew."
            }
            Status::NotEqual => {
                "The bytes there are others than expected; read them again and decide anew."
            }
            Status::Forgotten => "What changed since then is forgotten; make a full copy.",
            Status::NotTogether => {
                "The volumes are not in one journal; create those that are changed together on one device and core, without --apart."
            }
            Status::Exists => "The name is taken; choose another one.",
            Status::NotFound => {
                "There is no such snapshot; `flagstone snapshot list` shows those that there are."
            }
            Status::InUse => {
                "Something else needs it: a move, which `flagstone volume move NAME --status` shows, a stream that is being received into it, or a clone, which is to be deleted first."
            }
            Status::Partly => {
                "A part of it was carried out, and then something came in between: each block is wholly as before or wholly as asked for."
            }
        }
    }
}
