//! Recording what a node asks of its device and what it answers, for making crash images from it
//! (`cargo xtask e2e images`). Off unless `FLAGSTONE_RECORD` names a file.

use std::path::Path;

use flagstone_platform::record::{IoEvent, NodeMark, Recorder};
use flagstone_runtime::{TraceFile, UringDevice};
use flagstone_types::DvolId;

use crate::node::{NodeError, NodeErrorKind};

/// Where a node records to, if it does.
#[derive(Clone, Default)]
pub(super) struct Recording(Option<TraceFile>);

impl Recording {
    /// Starts a record, of a node with this many devices.
    pub(super) fn start(path: Option<&Path>, devices: usize) -> Result<Recording, NodeError> {
        let Some(path) = path else {
            return Ok(Recording(None));
        };
        let doing = format!("recording to {}", path.display());
        if devices != 1 {
            let found = format!("a record is of one device, and the node has {devices}");
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found));
        }
        tracing::warn!("{doing}: everything written is copied there, which is slow");
        match TraceFile::create(path) {
            Ok(trace) => Ok(Recording(Some(trace))),
            Err(error) => Err(NodeError::of_io(doing, &error)),
        }
    }

    /// The device, recorded from now on.
    pub(super) fn device(&self, device: UringDevice) -> UringDevice {
        match &self.0 {
            Some(trace) => device.record_to(trace.clone()),
            None => device,
        }
    }

    /// Marks the answer to a request of a volume.
    pub(super) fn answered(&self, mark: NodeMark, dvol: DvolId, offset_bytes: u64, len_bytes: u64) {
        if let Some(trace) = &self.0 {
            trace.record(&IoEvent::Mark {
                value: mark.value(),
                offset_bytes,
                len_bytes,
                data: &dvol.0.to_le_bytes(),
            });
        }
    }

    /// Marks what happens to a snapshot.
    pub(super) fn snapshot(&self, mark: NodeMark, name: &str) {
        if let Some(trace) = &self.0 {
            trace.record(&IoEvent::Mark {
                value: mark.value(),
                offset_bytes: 0,
                len_bytes: 0,
                data: name.as_bytes(),
            });
        }
    }

    /// A number that nothing else in the record has; zero if there is no record.
    pub(super) fn number(&self) -> u64 {
        self.0.as_ref().map_or(0, Recorder::next_id)
    }

    /// Writes out what has gathered.
    pub(super) fn finish(&self) {
        if let Some(Err(error)) = self.0.as_ref().map(TraceFile::finish) {
            tracing::error!("the record is incomplete: {error}");
        }
    }
}
