//! Gives back, behind the operations, the contents of files that have no name any more and were too many blocks
//! for one transaction, and what deleted snapshots alone kept.

use std::rc::Rc;

use flagstone_platform::Platform;
use tracing::warn;

use crate::error::FileError;
use crate::files::SnapshotNumber;
use crate::filesystem::{Inner, decoded};

/// Orphans looked for at once.
const BATCH: usize = 64;
/// After a failure the device gets some time.
const PAUSE_NS: u64 = 1_000_000_000;

impl<P: Platform> Inner<P> {
    /// Runs as long as the filesystem is open.
    pub(crate) async fn reap(self: Rc<Self>) {
        while !self.stopping.get() {
            let orphaned = self.orphaned.wait();
            let reaped = match self.reap_some().await {
                Ok(0) => self.reap_versions().await,
                reaped => reaped,
            };
            match reaped {
                Ok(0) => orphaned.await,
                Ok(_) => {}
                Err(FileError::Stopping) => return,
                Err(error) => {
                    warn!("giving back what removed files held: {error}; trying again");
                    self.platform.sleep_ns(PAUSE_NS).await;
                }
            }
        }
    }

    /// Gives back all that is left of some orphans. Returns of how many.
    pub(crate) async fn reap_some(&self) -> Result<usize, FileError> {
        let (from, to) = self.keys.orphans();
        let found = self.look(SnapshotNumber::LIVE, async |view| {
            view.scan_plain(&from, &to, BATCH).await
        });
        let found = found.await?;
        for (key, _) in &found {
            let file = self.keys.of_orphan(key);
            loop {
                let step = self.run(async |change| {
                    let file = decoded(file, "an orphan's key")?;
                    let is_done = self.free_blocks(change, file, None, 0).await?;
                    if is_done {
                        change.delete_plain(key)?;
                    }
                    Ok(is_done)
                });
                if step.await? || self.stopping.get() {
                    break;
                }
            }
        }
        Ok(found.len())
    }
}
