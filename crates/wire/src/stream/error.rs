//! What is wrong with a stream.

use std::fmt;

use super::{STREAM_VERSION, Totals};

/// Why bytes are no stream of a snapshot, or not a whole one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamError {
    /// It begins with other bytes than a stream does.
    NotAStream,
    /// It is of another version.
    Version {
        /// Which one.
        found: u16,
    },
    /// The header's checksum isn't that of its bytes.
    HeaderDamaged,
    /// A field of the header means nothing.
    Header {
        /// Which one, and what is wrong with it.
        what: &'static str,
    },
    /// The checksum of a record isn't that of its bytes.
    RecordDamaged {
        /// Where the record begins in the stream, in bytes.
        at_bytes: u64,
    },
    /// The checksum of a record's data isn't that of its bytes.
    DataDamaged {
        /// Where the record begins in the stream, in bytes.
        at_bytes: u64,
        /// What part of the volume it is, in bytes.
        offset_bytes: u64,
    },
    /// A record that must not be where it is.
    Record {
        /// Where it begins in the stream, in bytes.
        at_bytes: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The trailer says something else than what came before it.
    Totals {
        /// What came.
        found: Totals,
    },
    /// It ends before its trailer.
    CutOff {
        /// How many bytes there are of it.
        bytes: u64,
    },
    /// Something follows the trailer.
    GoesOn {
        /// Where the stream ends, in bytes.
        at_bytes: u64,
    },
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::NotAStream => {
                f.write_str("it does not begin as the stream of a snapshot does")
            }
            StreamError::Version { found } => write!(
                f,
                "it is a stream of version {found}, and this program reads version {STREAM_VERSION}"
            ),
            StreamError::HeaderDamaged => {
                f.write_str("its header is damaged: the checksum is not that of its bytes")
            }
            StreamError::Header { what } => write!(f, "its header makes no sense: {what}"),
            StreamError::RecordDamaged { at_bytes } => write!(
                f,
                "the record at byte {at_bytes} is damaged: the checksum is not that of its bytes"
            ),
            StreamError::DataDamaged {
                at_bytes,
                offset_bytes,
            } => write!(
                f,
                "the data of the record at byte {at_bytes}, for offset {offset_bytes} of the \
                 volume, is damaged: the checksum is not that of its bytes"
            ),
            StreamError::Record { at_bytes, what } => {
                write!(f, "the record at byte {at_bytes} makes no sense: {what}")
            }
            StreamError::Totals { found } => write!(
                f,
                "its trailer does not fit what came before: {} records with {} bytes of data and {} \
                 of zeros; some were lost, added or changed",
                found.records, found.data_bytes, found.zero_bytes
            ),
            StreamError::CutOff { bytes } => {
                write!(f, "it ends after {bytes} bytes, before its trailer")
            }
            StreamError::GoesOn { at_bytes } => {
                write!(f, "something follows its end at byte {at_bytes}")
            }
        }
    }
}

impl std::error::Error for StreamError {}
