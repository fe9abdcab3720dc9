//! Filesystems that go back to a snapshot.

use flagstone_fs::{FileError, SnapshotNumber};
use flagstone_platform::Platform;

use super::errors::{file_error, no_such_snapshot};
use super::settings::described;
use super::{CORE, CoreFilesystem};
use crate::node::real::RealNode;
use crate::node::{FilesystemInfo, NodeError, NodeErrorKind};

/// How long whoever asks waits for it to be done, and how often it is looked.
const WAIT_NS: u64 = 45_000_000_000;
const POLL_NS: u64 = 5_000_000;

fn failed(error: FileError, files: &CoreFilesystem, snapshot: &str, doing: &str) -> NodeError {
    match (error, files.describe().rolling_back_to) {
        (FileError::NotFound, _) => no_such_snapshot(&files.describe().name, snapshot, doing),
        (FileError::Later, Some(to)) => {
            let found = format!("it is being rolled back to '{to}'");
            NodeError::new(NodeErrorKind::Busy, doing, found)
                .next("`flagstone fs show` says when that is done")
        }
        (error, _) => file_error(error, doing),
    }
}

impl RealNode {
    pub(in crate::node::real) async fn roll_back_fs(
        &self,
        name: String,
        snapshot: String,
    ) -> Result<FilesystemInfo, NodeError> {
        let doing = format!("rolling back to '{name}@{snapshot}'");
        let said = doing.clone();
        let found = self.on_core(CORE, &doing, move |core| async move {
            let files = core.files.named(&core, &name, &said).await?;
            let begun = files.roll_back(&snapshot).await;
            begun.map_err(|error| failed(error, &files, &snapshot, &said))?;
            let mut left_ns = WAIT_NS;
            let is_done = |to: Option<SnapshotNumber>| to.is_none();
            while !is_done(files.rolling_back_to()) && left_ns > 0 {
                core.platform.sleep_ns(POLL_NS).await;
                left_ns -= POLL_NS;
            }
            let found = described(files, &said).await?;
            match (&found.0.rolling_back_to, &found.0.not_rolled_back) {
                (None, Some(problem)) => {
                    let error = NodeError::new(NodeErrorKind::Corrupt, &*said, problem.clone());
                    Err(error.next("choose another snapshot"))
                }
                _ => Ok(found),
            }
        });
        let found = found.await??;
        self.info_of(found, &doing).await
    }
}
