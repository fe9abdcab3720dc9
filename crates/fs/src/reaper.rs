//! Gives back, behind the operations, the contents of files that have no name any more and were too many blocks
//! for one transaction, and what deleted snapshots alone kept.

use std::rc::Rc;

use flagstone_platform::Platform;
use tracing::warn;

use crate::change::Tried;
use crate::error::FileError;
use crate::files::SnapshotNumber;
use crate::filesystem::{Inner, decoded, final_error};

/// Orphans looked for at once.
const BATCH: usize = 64;
/// After a failure the device gets some time.
const PAUSE_NS: u64 = 1_000_000_000;

impl<P: Platform> Inner<P> {
    /// Runs as long as the filesystem is open.
    pub(crate) async fn reap(self: Rc<Self>) {
        while !self.stopping.get() {
            let orphaned = self.orphaned.wait();
            match self.reap_what_there_is().await {
                Ok(0) => orphaned.await,
                Ok(_) => {}
                Err(FileError::Stopping) => return,
                Err(_) if self.stopping.get() => return,
                // It is being rolled back: that goes first.
                Err(FileError::Later) if self.is_rolling() => {}
                Err(error) => {
                    warn!("giving back what removed files held: {error}; trying again");
                    self.platform.sleep_ns(PAUSE_NS).await;
                }
            }
        }
    }

    async fn reap_what_there_is(&self) -> Result<usize, FileError> {
        // Before anything else: nobody is let in until it is done.
        if self.roll().await? {
            return Ok(1);
        }
        let mut reaped = self.reap_some().await?;
        if reaped == 0 {
            reaped = self.reap_versions().await?;
        }
        if reaped == 0 {
            reaped = self.cut_some().await?;
        }
        if reaped == 0 && !self.stopping.get() {
            reaped = self.sweep_some().await?;
        }
        Ok(reaped)
    }

    /// Gives back what was cut off a file's dvol.
    async fn cut_some(&self) -> Result<usize, FileError> {
        let Some(file) = self.to_cut.borrow_mut().pop_first() else {
            return Ok(0);
        };
        let _entered = self.enter().await;
        let _own = self.locks.own(&[file.number()]).await;
        let cut = match self.object(file).await {
            Ok(Some(object)) if object.content.cut_bytes > 0 => self.finish_cut(&object).await,
            Ok(_) | Err(Tried::For(FileError::Stale)) => Ok(()),
            Err(error) => Err(error),
        };
        match cut {
            Ok(()) => Ok(1),
            Err(error) => {
                self.to_cut.borrow_mut().insert(file);
                if error == Tried::Again {
                    self.platform.sleep_ns(PAUSE_NS / 1000).await;
                    return Ok(1);
                }
                Err(final_error(error))
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
