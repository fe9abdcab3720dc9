//! A record of device I/O in a file, shared by the cores of a runtime.
//!
//! For tests and for finding out what happened: recording copies every byte written and blocks the
//! core while the file takes it.

use flagstone_platform::locks::Mutex;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

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

/// A device's record, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Trace(Option<TraceFile>);

impl Trace {
    pub(crate) fn to(trace: TraceFile) -> Trace {
        Trace(Some(trace))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records that an operation begins. Its id in the record.
    pub(crate) fn start<'a>(&self, event: impl FnOnce(u64) -> IoEvent<'a>) -> u64 {
        let Some(trace) = &self.0 else { return 0 };
        let id = trace.next_id();
        trace.record(&event(id));
        id
    }

    pub(crate) fn end(&self, event: IoEvent<'_>) {
        if let Some(trace) = &self.0 {
            trace.record(&event);
        }
    }

    /// A write has ended; `data` is what it was to write at `offset_bytes`. Of one that came back
    /// short, the part that was written is recorded once more, as a write that succeeded.
    pub(crate) fn written(&self, id: u64, offset_bytes: u64, data: &[u8], result: i32) {
        let moved = usize::try_from(result).unwrap_or(0).min(data.len());
        let ok = moved == data.len();
        self.end(IoEvent::WriteCompleted { id, ok });
        if !ok && moved > 0 {
            let data = &data[..moved];
            let id = self.start(|id| IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                data,
            });
            self.end(IoEvent::WriteCompleted { id, ok: true });
        }
    }
}
