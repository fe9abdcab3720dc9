//! What a node is asked when a snapshot is sent or received, and what it answers.
//!
//! The stream itself (`docs/formats/stream.md`) is made and read by the API, beside the cores. A node only gives and
//! takes runs of a volume, some MiB at a time, so neither has to keep more.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use flagstone_types::Lsn;
use flagstone_wire::stream::StreamHeader;

/// Most bytes of data of one part.
pub const PART_MAX_BYTES: u64 = 4 << 20;

/// Most runs of one part.
pub const PART_MAX_RUNS: usize = 4096;

/// Keeps the volume's schedule from deleting a snapshot while it is being sent: as long as one of its copies is there.
#[derive(Clone, Default)]
pub struct StreamHold {
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl StreamHold {
    /// Holds until this is dropped.
    pub fn new(held: impl Any + Send + Sync) -> StreamHold {
        StreamHold {
            _held: Some(Arc::new(held)),
        }
    }
}

impl fmt::Debug for StreamHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamHold")
    }
}

/// What holds a source says nothing of what is sent.
impl PartialEq for StreamHold {
    fn eq(&self, _: &StreamHold) -> bool {
        true
    }
}

impl Eq for StreamHold {}

/// A snapshot that is being sent. People may delete it meanwhile: then the next part is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSource {
    /// What the stream is of.
    pub header: StreamHeader,
    /// What changed since is sent; `None`: all there is.
    pub since: Option<Lsn>,
    /// Where the snapshot is in its journal's catalogue.
    pub slot: u32,
    /// Its layer number.
    pub layer: u32,
    /// What the schedule of the volume waits for.
    pub hold: StreamHold,
}

/// A part of a snapshot, or of what a stream says of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamRun {
    /// Data.
    Data {
        /// Where, in bytes.
        offset_bytes: u64,
        /// At most [`PART_MAX_BYTES`].
        bytes: Vec<u8>,
    },
    /// Reads as zeros and takes no space.
    Zeros {
        /// Where, in bytes.
        offset_bytes: u64,
        /// How long, in bytes.
        len_bytes: u64,
    },
}

impl StreamRun {
    /// Bytes of data in it.
    pub fn data_bytes(&self) -> u64 {
        match self {
            StreamRun::Data { bytes, .. } => bytes.len() as u64,
            StreamRun::Zeros { .. } => 0,
        }
    }
}

/// The next part of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPart {
    /// In the order of their offsets. May be none, and more follow all the same.
    pub runs: Vec<StreamRun>,
    /// Where the next part begins, in bytes; the volume's size if this was the last.
    pub next_bytes: u64,
}

/// What is to be received, and as what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveSpec {
    /// The volume: a new one for a whole stream, the one that has the base for an incremental one.
    pub volume: String,
    /// The name of the snapshot at the end.
    pub snapshot: String,
    /// What the stream says it is.
    pub header: StreamHeader,
    /// Roll the volume back to the base if it was changed since.
    pub force: bool,
    /// The device that holds a new volume; without it the node chooses.
    pub device: Option<String>,
    /// The core that owns a new volume; without it the node chooses.
    pub core: Option<u32>,
}

/// A stream that is being received.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReceiveId(pub u64);
