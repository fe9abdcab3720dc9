//! What is wrong with bytes that were to be a header or a body.

use std::fmt;

use crate::Status;

/// The checksum of a header is not that of its bytes. Nothing that follows on the connection can be
/// trusted: its lengths would be guesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadDamaged {
    /// The checksum that the header names.
    pub named: u32,
    /// That of its bytes.
    pub found: u32,
}

impl fmt::Display for HeadDamaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reading a header: it names the checksum {:08x}, and its bytes have {:08x}: it was \
             damaged on the way, or no header begins here; the connection ends",
            self.named, self.found
        )
    }
}

impl std::error::Error for HeadDamaged {}

/// Why a body is malformed. Fields are named as on the protocol's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// It ends within a field.
    Ends {
        /// Which one.
        field: &'static str,
        /// How many bytes of it are there.
        left_bytes: usize,
    },
    /// Something follows the last field.
    GoesOn {
        /// How many bytes.
        extra_bytes: usize,
    },
    /// A text is not UTF-8, or an address not one.
    NotText {
        /// Which one.
        field: &'static str,
    },
    /// A number is out of bounds.
    Bounds {
        /// Which one.
        field: &'static str,
        /// What it is.
        found: u64,
        /// The smallest that it may be.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A field that must be 0 is not.
    NotZero {
        /// Which one.
        field: &'static str,
    },
    /// A number has no meaning in this version of the protocol.
    Unknown {
        /// Which one.
        field: &'static str,
        /// What it is.
        found: u64,
    },
    /// Lengths or counts don't add up.
    Sum {
        /// Of what.
        field: &'static str,
        /// What they come to.
        found: u64,
        /// What they must come to.
        expected: u64,
    },
    /// A list is not in order.
    Order {
        /// By what it ought to be.
        field: &'static str,
    },
    /// A range does not end within 2^64 bytes.
    OutOfRange {
        /// Where it begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// More bytes are asked for than one reply may have.
    TooLong {
        /// How many.
        found: u64,
        /// How many there may be.
        max: u64,
    },
}

impl BodyError {
    /// What a server answers a request that has such a body.
    pub fn status(&self) -> Status {
        match self {
            BodyError::OutOfRange { .. } => Status::OutOfRange,
            BodyError::TooLong { .. } => Status::TooLong,
            _ => Status::Invalid,
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BodyError::Ends { field, left_bytes } => {
                write!(
                    f,
                    "the body ends within {field}, of which it has {left_bytes} bytes"
                )
            }
            BodyError::GoesOn { extra_bytes } => {
                write!(f, "{extra_bytes} bytes follow the body's last field")
            }
            BodyError::NotText { field } => write!(f, "{field} is not what it must be as text"),
            BodyError::Bounds {
                field,
                found,
                min,
                max,
            } => write!(f, "{field} is {found}, and must be {min} to {max}"),
            BodyError::NotZero { field } => write!(f, "{field} must be 0"),
            BodyError::Unknown { field, found } => {
                write!(f, "{field} is {found}, which means nothing in this version")
            }
            BodyError::Sum {
                field,
                found,
                expected,
            } => write!(f, "{field} come to {found}, and must come to {expected}"),
            BodyError::Order { field } => write!(f, "the list is not in the order of {field}"),
            BodyError::OutOfRange {
                offset_bytes,
                len_bytes,
            } => write!(
                f,
                "{len_bytes} bytes from {offset_bytes} on go beyond what a volume can have"
            ),
            BodyError::TooLong { found, max } => {
                write!(
                    f,
                    "{found} bytes are asked for, and one reply may have {max}"
                )
            }
        }
    }
}

impl std::error::Error for BodyError {}
