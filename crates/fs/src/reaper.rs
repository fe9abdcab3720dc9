//! Gives back, behind the operations, the contents of files that have no name any more and were too many blocks
//! for one transaction, and what deleted snapshots alone kept.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Bound;
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

/// What is to be done to some things, one after the other, again and again: one that fails is put back, and its next
/// turn comes when the others have had theirs.
pub(crate) struct Turns<T> {
    waiting: BTreeSet<T>,
    last: Option<T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            waiting: BTreeSet::new(),
            last: None,
        }
    }
}

impl<T: Ord + Copy> Turns<T> {
    pub(crate) fn insert(&mut self, thing: T) {
        self.waiting.insert(thing);
    }

    pub(crate) fn extend(&mut self, things: impl IntoIterator<Item = T>) {
        self.waiting.extend(things);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Takes the next one.
    pub(crate) fn next(&mut self) -> Option<T> {
        let from = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.waiting.range((from, Bound::Unbounded)).next();
        let next = *behind.or_else(|| self.waiting.first())?;
        self.waiting.remove(&next);
        self.last = Some(next);
        Some(next)
    }
}

impl<P: Platform> Inner<P> {
    /// Runs as long as the filesystem is open.
    pub(crate) async fn reap(self: Rc<Self>) {
        while !self.stopping.get() {
            let orphaned = self.orphaned.wait();
            match self.reap_what_there_is().await {
                Ok(0) => orphaned.await,
                // Clients have their turn between all steps.
                Ok(_) => self.platform.yield_now().await,
                Err(error) if self.blamed(error) == FileError::Stopping => return,
                Err(_) if self.stopping.get() => return,
                // It is being rolled back: that goes first.
                Err(FileError::Later) if self.is_rolling() => {}
                Err(error) => {
                    let what = match self.is_rolling() {
                        true => "rolling back, before which nobody is let in",
                        false => "giving back what removed files held",
                    };
                    warn!(filesystem = %self.keys.0, "{what}: {error}; trying again");
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
        // What fails must not hold up the others, nor what takes hours: each has a step in turn.
        let (mut done, mut failed) = (0, None);
        for kind in 0..5 {
            let step = match kind {
                0 => self.reap_some().await,
                1 => self.reap_versions().await,
                2 => self.cut_some().await,
                3 => self.expire_some().await,
                _ if self.stopping.get() => Ok(0),
                _ => self.sweep_some().await,
            };
            match step {
                Ok(some) => done += some,
                Err(error) if self.blamed(error) == FileError::Stopping => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Gives back what was cut off a file's dvol.
    async fn cut_some(&self) -> Result<usize, FileError> {
        let Some(file) = self.to_cut.borrow_mut().next() else {
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

    /// Gives back all that is left of some orphans. Returns of how many; fails if that is so of all of them.
    pub(crate) async fn reap_some(&self) -> Result<usize, FileError> {
        let (from, to) = self.keys.orphans();
        let found = self.look(SnapshotNumber::LIVE, async |view| {
            view.scan_plain(&from, &to, BATCH).await
        });
        let found = found.await?;
        let (mut reaped, mut failed) = (0, None);
        for (key, _) in &found {
            match self.reap_orphan(key).await {
                Ok(()) => reaped += 1,
                Err(FileError::Stopping) => return Err(FileError::Stopping),
                Err(error) => {
                    warn!(filesystem = %self.keys.0, "giving back what the removed file {key:02x?} held: {error}");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if reaped == 0 => Err(error),
            _ => Ok(reaped),
        }
    }

    async fn reap_orphan(&self, key: &[u8]) -> Result<(), FileError> {
        let file = self.keys.of_orphan(key);
        loop {
            let freed = Cell::new(0);
            let step = self.run(async |change| {
                let file = decoded(file, "an orphan's key")?;
                let is_done = self.free_blocks(change, file, None, 0).await?;
                freed.set(change.usage().bytes.min(0).unsigned_abs());
                if is_done {
                    change.delete_plain(key)?;
                }
                Ok(is_done)
            });
            let is_done = step.await?;
            if let Some(file) = file {
                let mut all = self.giving_back.borrow_mut();
                if is_done {
                    all.remove(&file);
                } else if let Some(bytes) = all.get_mut(&file) {
                    *bytes = bytes.saturating_sub(freed.get());
                }
            }
            if is_done || self.stopping.get() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn_though_others_are_put_back() {
        let mut turns = Turns::default();
        turns.extend([1, 5, 9]);
        let mut seen = Vec::new();
        for _ in 0..6 {
            let next = turns.next().expect("there are some");
            seen.push(next);
            if next != 9 {
                turns.insert(next);
            }
        }
        assert_eq!(seen, [1, 5, 9, 1, 5, 1]);
        turns.insert(0);
        assert_eq!([turns.next(), turns.next()], [Some(5), Some(0)]);
        turns.insert(3);
        turns.clear();
        assert_eq!(turns.next(), None);
    }
}
