//! A record of device I/O in a file, shared by the cores of a runtime.
//!
//! For tests and for finding out what happened: recording copies every byte written and blocks the
//! core while the file takes it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flagstone_platform::record::{IoEvent, Recorder};

/// Bytes gathered before they go to the file.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes events to a file in the format of [`flagstone_platform::record`]. Clones write to the
/// same file; one lock puts the events of all cores into one order.
#[derive(Clone)]
pub struct TraceFile {
    state: Arc<State>,
}

struct State {
    next_id: AtomicU64,
    out: Mutex<Out>,
}

struct Out {
    file: BufWriter<File>,
    /// One event, encoded; kept for its memory.
    scratch: Vec<u8>,
    /// The first error; nothing is written after it, so the file stays a whole prefix.
    error: Option<io::Error>,
}

impl TraceFile {
    /// Creates the file, or empties it.
    pub fn create(path: impl AsRef<Path>) -> io::Result<TraceFile> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        let out = Out {
            file,
            scratch: Vec::new(),
            error: None,
        };
        let state = State {
            next_id: AtomicU64::new(0),
            out: Mutex::new(out),
        };
        Ok(TraceFile {
            state: Arc::new(state),
        })
    }

    /// Writes out what has gathered. Reports the first error since the start, if any.
    pub fn finish(&self) -> io::Result<()> {
        let mut out = self
            .state
            .out
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match out.error.take() {
            Some(error) => Err(error),
            None => out.file.flush(),
        }
    }
}

impl Recorder for TraceFile {
    fn next_id(&self) -> u64 {
        self.state.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn record(&self, event: &IoEvent<'_>) {
        let mut out = self
            .state
            .out
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let out = &mut *out;
        if out.error.is_some() {
            return;
        }
        out.scratch.clear();
        event.encode(&mut out.scratch);
        out.error = out.file.write_all(&out.scratch).err();
    }
}
