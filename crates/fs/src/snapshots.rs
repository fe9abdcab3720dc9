//! Snapshots: taking one is writing its number down, whatever there is; deleting one gives back what it alone
//! kept.

use std::cell::Cell;

use flagstone_platform::Platform;

use crate::attributes::Timestamp;
use crate::change::{Change, Tried, needed_by, versions};
use crate::contents::BlockValue;
use crate::error::FileError;
use crate::files::SnapshotNumber;
use crate::filesystem::{Filesystem, Inner, decoded};
use crate::key;
use crate::superblock::{SnapshotValue, Usage, is_label};

/// Snapshots of a filesystem, at most.
pub const SNAPSHOTS_MAX: usize = 4096;
/// Versions given back in one step.
const BATCH: usize = 64;

/// What is known of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// What nodes in it are named by.
    pub number: SnapshotNumber,
    /// When it was taken.
    pub taken: Timestamp,
}

/// Where versions are looked for that deleted snapshots alone needed.
pub(crate) struct Versions {
    /// From the beginning once more.
    pub(crate) is_again: Cell<bool>,
    /// From this snapshot's number on; `None`: there are none.
    from: Cell<Option<u32>>,
    has_failed: Cell<bool>,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            // Nobody knows what was left when the filesystem was closed.
            is_again: Cell::new(true),
            from: Cell::new(None),
            has_failed: Cell::new(false),
        }
    }
}

impl Versions {
    /// Whether there may be some.
    #[cfg(test)]
    pub(crate) fn is_due(&self) -> bool {
        self.is_again.get() || self.from.get().is_some()
    }
}

impl<P: Platform> Filesystem<P> {
    /// All snapshots, by name.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.inner.with_state(|state| {
            let info = |(name, value): &(Vec<u8>, SnapshotValue)| SnapshotInfo {
                name: String::from_utf8_lossy(name).into_owned(),
                number: SnapshotNumber(value.number),
                taken: value.taken,
            };
            state.snapshots.iter().map(info).collect()
        })
    }

    /// Keeps everything as it is now under a name. Every operation is in it wholly or not at all. Durable when
    /// this returns; what was answered before is in it.
    pub async fn take_snapshot(&self, name: &str) -> Result<SnapshotNumber, FileError> {
        if !is_label(name.as_bytes()) {
            return Err(FileError::Invalid);
        }
        let inner = &self.inner;
        let taken = inner.change_state(async |change, state| {
            let is_there = |(other, _): &(Vec<u8>, SnapshotValue)| other == name.as_bytes();
            if state.snapshots.iter().any(is_there) {
                return Err(FileError::Exists.into());
            }
            // What was answered before is in it, also what nobody has asked to be made durable.
            inner.flush_all_elsewhere().await?;
            let number = state.superblock.live;
            if state.snapshots.len() >= SNAPSHOTS_MAX || number >= u32::MAX - 1 {
                return Err(FileError::NoSpace.into());
            }
            let taken = inner.now();
            let value = SnapshotValue { number, taken };
            change.put_plain(&inner.keys.snapshot(name.as_bytes()), &value.encode())?;
            let mut superblock = state.superblock.clone();
            superblock.live += 1;
            change.put_plain(&inner.keys.superblock(), &superblock.encode())?;
            Ok(SnapshotNumber(number))
        });
        taken.await
    }

    /// Deletes a snapshot. Nodes in it are stale at once; what it alone kept is given back soon.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), FileError> {
        let inner = &self.inner;
        let deleted = inner.change_state(async |change, state| {
            let is_it = |(other, _): &&(Vec<u8>, SnapshotValue)| other == name.as_bytes();
            if !state.snapshots.iter().any(|snapshot| is_it(&snapshot)) {
                return Err(FileError::NotFound.into());
            }
            change.delete_plain(&inner.keys.snapshot(name.as_bytes()))
        });
        deleted.await?;
        inner.snapshot_gone();
        Ok(())
    }
}

impl<P: Platform> Inner<P> {
    /// A snapshot was deleted, or may have been: what it alone needed is looked for.
    pub(crate) fn snapshot_gone(&self) {
        self.versions.is_again.set(true);
        // Also layers of dvols.
        self.sweep_all_soon();
    }

    /// Gives back some of what deleted snapshots alone kept. Returns how much was looked at: nothing, if no snapshot
    /// was deleted since all was.
    pub(crate) async fn reap_versions(&self) -> Result<usize, FileError> {
        let versions = &self.versions;
        if versions.is_again.replace(false) {
            versions.from.set(Some(0));
        }
        let Some(from) = versions.from.get() else {
            return Ok(0);
        };
        let there = self.with_state(|state| state.numbers_of_snapshots.clone());
        // One gap between snapshots after the other: what is noted in it belongs to deleted ones. None comes into
        // one that was passed but when another snapshot is deleted, and then all are looked at from the beginning.
        let next = there.partition_point(|number| *number < from);
        let number = there.get(next).copied().unwrap_or(u32::MAX);
        let (begin, end) = (
            self.keys.displaced_from(from),
            self.keys.displaced_from(number),
        );
        let found = self.look(SnapshotNumber::LIVE, async |view| {
            view.scan_plain(&begin, &end, BATCH).await
        });
        let found = found.await?;
        let mut failed = None;
        for (note, _) in &found {
            match self
                .run(async |change| self.reap_version(change, note).await)
                .await
            {
                Ok(()) => {}
                Err(FileError::Stopping) => return Err(FileError::Stopping),
                Err(error) => failed = Some(error),
            }
        }
        if failed.is_some() || found.len() < BATCH {
            versions
                .has_failed
                .set(versions.has_failed.get() || failed.is_some());
            let next = number.checked_add(1);
            // What failed has its next turn when the others have had theirs.
            let next = next.or_else(|| versions.has_failed.take().then_some(0));
            versions.from.set(next);
        }
        failed.map_or(Ok(1), Err)
    }

    async fn reap_version(&self, change: &mut Change<P>, note: &[u8]) -> Result<(), Tried> {
        let (snapshot, versioned) = decoded(self.keys.of_displaced(note), "a note of a version")?;
        let (key, version) = decoded(key::split_version(&versioned), "a note of a version")?;
        if change.get_plain(note).await?.is_none() {
            return Ok(());
        }
        let snapshots = self.with_state(|state| state.numbers_of_snapshots.clone());
        if snapshots.contains(&snapshot) {
            return Ok(());
        }
        change.delete_plain(note)?;
        if let Some(other) = needed_by(&snapshots, version, snapshot) {
            return change.put_plain(&self.keys.displaced(other, &versioned), &[]);
        }
        let value = decoded(
            change.get_plain(&versioned).await?,
            "a version that was noted",
        )?;
        change.delete_plain(&versioned)?;
        if key::is_block(key) && !value.is_empty() {
            let block = decoded(BlockValue::decode(&value), "a block of a file")?;
            change.free(block.block);
            change.count(Usage {
                files: 0,
                bytes: -block.bytes().cast_signed(),
            });
        }
        // That it was taken away need not be said any more, if nothing older could come back.
        let (from, to) = versions(key, u32::MAX);
        let newest = change.first_plain(&from, &to).await?;
        if let Some((newest, value)) = newest
            && value.is_empty()
            && newest != versioned
        {
            let mut behind = newest.clone();
            behind.push(0);
            let next = change.first_plain(&behind, &to).await?;
            let is_last = match next {
                None => true,
                Some((key, _)) if key == versioned => {
                    let mut behind = versioned.clone();
                    behind.push(0);
                    change.first_plain(&behind, &to).await?.is_none()
                }
                Some(_) => false,
            };
            if is_last {
                change.delete_plain(&newest)?;
            }
        }
        Ok(())
    }
}
