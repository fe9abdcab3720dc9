//! Which dvols and layers of them are still needed, and what they take.
//!
//! An inode names a dvol now, or in a snapshot. A dvol that is named by none goes. A layer keeps what its dvol was
//! for the snapshots from the one before it on, up to its own: without any that have the file it goes.

use std::collections::BTreeMap;

use flagstone_device::engine::{Batch, Change as DvolChange, Stability as DvolStability};
use flagstone_pagestore::DvolRole;
use flagstone_platform::Platform;
use flagstone_types::DvolId;
use tracing::error;

use crate::change::{Tried, versions};
use crate::error::FileError;
use crate::files::{FileId, SnapshotNumber};
use crate::filesystem::{Inner, decoded, final_error};
use crate::inode::Inode;
use crate::key;
use crate::object::{Object, Said, dvol_name, snapshot_of};
use crate::objects::of_dvol;

/// When others were in the way.
const PAUSE_NS: u64 = 1_000_000;

/// Bytes that dvols of files take, by dvol: each what it has beside what it shares.
#[derive(Default)]
pub(crate) struct Taken {
    dvols: BTreeMap<DvolId, u64>,
    total: u64,
}

impl Taken {
    fn set(&mut self, dvol: DvolId, bytes: u64) {
        let old = match bytes {
            0 => self.dvols.remove(&dvol),
            bytes => self.dvols.insert(dvol, bytes),
        };
        self.total = self.total - old.unwrap_or_default() + bytes;
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}

/// Versions of an inode, newest first: which dvol each names.
pub(crate) struct Named {
    versions: Vec<(u32, Option<DvolId>)>,
    /// The newest is not cut to its end yet.
    is_to_cut: bool,
}

impl Named {
    /// Whether the file has this dvol, as who sees versions up to `at` has it.
    pub(crate) fn has(&self, dvol: DvolId, at: u32) -> bool {
        let seen = self.versions.iter().find(|(version, _)| *version <= at);
        seen.is_some_and(|(_, named)| *named == Some(dvol))
    }
}

impl<P: Platform> Inner<P> {
    /// Has a dvol looked at soon.
    pub(crate) fn sweep_soon(&self, dvol: DvolId) {
        self.to_sweep.borrow_mut().insert(dvol);
        self.orphaned.notify();
    }

    /// Has all dvols of the filesystem looked at soon.
    pub(crate) fn sweep_all_soon(&self) {
        self.is_to_sweep_all.set(true);
        self.orphaned.notify();
    }

    /// All dvols that say they have a file of this filesystem.
    pub(crate) fn own_dvols(&self) -> Vec<(DvolId, Option<Said>)> {
        let mut own = Vec::new();
        self.engine.visit_dvols(|handle, attributes| {
            if DvolRole::of(attributes) != Some(DvolRole::File) {
                return;
            }
            let said = Said::decode(attributes);
            if said.is_none_or(|said| said.filesystem == self.keys.0) {
                own.push((handle.id, said));
            }
        });
        own
    }

    /// Counts again what a dvol takes with its layers.
    pub(crate) fn recount(&self, dvol: DvolId) {
        let bytes = self.bytes_of(dvol);
        self.taken.borrow_mut().set(dvol, bytes);
    }

    pub(crate) fn bytes_of(&self, dvol: DvolId) -> u64 {
        let found = self.engine.dvol(&dvol_name(dvol));
        let bytes = found.map(|info| self.engine.own_bytes_of(info.handle));
        bytes.and_then(Result::ok).unwrap_or_default()
    }

    /// Counts again what the dvol of an object takes.
    pub(crate) fn recount_object(&self, object: &Object) {
        if let Ok(bytes) = self.engine.own_bytes_of(object.handle) {
            self.taken.borrow_mut().set(object.handle.id, bytes);
        }
    }

    /// Counts all dvols again: what the background has freed, and what nobody waited for, is seen then.
    pub(crate) fn recount_all(&self) {
        let mut taken = Taken::default();
        for (dvol, said) in self.own_dvols() {
            if said.is_some() {
                taken.set(dvol, self.bytes_of(dvol));
            }
        }
        *self.taken.borrow_mut() = taken;
    }

    /// What is counted in the tree, and what dvols take.
    pub(crate) fn used_bytes(&self) -> u64 {
        let blocks = self.with_state(|state| state.usage.bytes);
        blocks.max(0).cast_unsigned() + self.taken.borrow().total()
    }

    /// Whether a write to an object stays within the quota.
    pub(crate) async fn check_room_for(
        &self,
        object: &Object,
        range: &std::ops::Range<u64>,
    ) -> Result<(), Tried> {
        let quota = self.with_state(|state| state.superblock.quota_bytes);
        let whole = range.start / 4096 * 4096..range.end.next_multiple_of(4096);
        let used = self.used_bytes();
        if quota == 0 || used.saturating_add(whole.end - whole.start) <= quota {
            return Ok(());
        }
        // What the dvol has for itself takes no more when it is overwritten. What it shares with a snapshot or a
        // copy does: that stays, too.
        let mut at = whole.start;
        let mut more = 0;
        while at < whole.end {
            let runs = self
                .engine
                .own_allocation(object.handle, at, whole.end - at, 64);
            for run in runs.await.map_err(of_dvol)? {
                at += run.len_bytes;
                more += match run.allocated {
                    true => 0,
                    false => run.len_bytes,
                };
            }
        }
        match more > 0 && used.saturating_add(more) > quota {
            true => Err(FileError::Quota.into()),
            false => Ok(()),
        }
    }

    /// Looks at some dvols that may not be needed any more. Returns at how many.
    pub(crate) async fn sweep_some(&self) -> Result<usize, FileError> {
        if self.is_to_sweep_all.replace(false) {
            let dvols = self.own_dvols().into_iter().map(|(dvol, _)| dvol);
            self.to_sweep.borrow_mut().extend(dvols);
        }
        let Some(dvol) = self.to_sweep.borrow_mut().next() else {
            return Ok(0);
        };
        let _entered = self.enter().await;
        let swept = self.sweep(dvol).await;
        if let Err(error) = swept {
            // Nothing is lost: it is tried again.
            self.to_sweep.borrow_mut().insert(dvol);
            if error == FileError::Later {
                self.platform.sleep_ns(PAUSE_NS).await;
                return Ok(1);
            }
            if error != FileError::Stopping {
                error!(
                    filesystem = %self.keys.0, %dvol,
                    "seeing whether the dvol of a large file is still needed: {error}; run `flagstone fs check`"
                );
            }
        }
        swept.map(|_| 1)
    }

    /// Deletes a dvol that no inode names, and layers that no snapshot needs. True if the dvol is gone. Nobody
    /// takes a snapshot meanwhile.
    pub(crate) async fn sweep(&self, dvol: DvolId) -> Result<bool, FileError> {
        let Some(found) = self.dvol(dvol) else {
            return Ok(true);
        };
        let file = found.said.file;
        let _own = self.locks.own(&[file.number()]).await;
        if self.making.borrow().contains(&dvol) {
            return Ok(false);
        }
        let named = self.named_by(file).await?;
        let snapshots = self.with_state(|state| state.numbers_of_snapshots.clone());
        let users = snapshots.iter().filter(|number| named.has(dvol, **number));
        let users: Vec<u32> = users.copied().collect();
        let is_live = named.has(dvol, u32::MAX);
        if is_live && named.is_to_cut {
            self.to_cut.borrow_mut().insert(file);
        }
        let swept = self.sweep_dvol(dvol, is_live, &users).await;
        self.recount(dvol);
        swept.map_err(final_error)
    }

    /// Which dvol each version of a file's inode names; that survives power loss.
    pub(crate) async fn named_by(&self, file: FileId) -> Result<Named, FileError> {
        let key = self.keys.inode(file);
        let (from, to) = versions(&key, u32::MAX);
        let found = self.look(SnapshotNumber::LIVE, async |view| {
            let mut all = Named {
                versions: Vec::new(),
                is_to_cut: false,
            };
            for (versioned, value) in view.scan_plain(&from, &to, usize::MAX).await? {
                let version = decoded(key::split_version(&versioned), "an inode's key")?.1;
                let dvol = match value.is_empty() {
                    true => None,
                    false => {
                        let inode = decoded(Inode::decode(file, &value), "an inode")?;
                        let object = inode.object();
                        let is_newest = all.versions.is_empty();
                        all.is_to_cut |= is_newest && object.is_some_and(|o| o.cut_bytes > 0);
                        object.map(|object| object.dvol)
                    }
                };
                all.versions.push((version, dvol));
            }
            Ok(all)
        });
        found.await
    }

    async fn sweep_dvol(&self, dvol: DvolId, is_live: bool, users: &[u32]) -> Result<bool, Tried> {
        let found = self.dvol(dvol).ok_or(Tried::Again)?;
        let engine = &self.engine;
        if !is_live && users.is_empty() {
            engine.delete(found.handle, true).await.map_err(of_dvol)?;
            return Ok(true);
        }
        let mut kept = Vec::new();
        let mut below = 0;
        let mut layers = Vec::new();
        for info in engine.layers(dvol) {
            let number = snapshot_of(&info.name);
            layers.push((decoded(number, "the name of a file's layer")?, info.handle));
        }
        layers.sort_unstable_by_key(|(number, _)| *number);
        for (number, handle) in layers {
            if users.iter().any(|user| below < *user && *user <= number) {
                kept.push((number, handle));
                below = number;
            } else {
                engine.delete_layer(handle).await.map_err(of_dvol)?;
            }
        }
        // Of a removed file only snapshots see anything: what was written behind the last one goes.
        if let Some((newest, layer)) = kept.last()
            && !is_live
            && found.said.since > *newest
            && users.iter().all(|user| user <= newest)
        {
            let handle = found.handle;
            engine.roll_back(handle, *layer).await.map_err(of_dvol)?;
            let said = Said {
                since: *newest,
                ..found.said
            };
            let attributes = Box::new(said.encode());
            let batch = Batch {
                conditions: Vec::new(),
                changes: vec![DvolChange::SetAttributes { handle, attributes }],
            };
            let done = engine.commit(batch, DvolStability::Stable).await;
            done.map_err(of_dvol)?;
        }
        Ok(false)
    }

    /// Does what was left to the background, for who looks at everything. Returns how many dvols went.
    pub(crate) async fn sweep_in_pause(&self) -> Result<u64, FileError> {
        let mut gone = 0;
        self.is_to_sweep_all.set(false);
        self.to_sweep.borrow_mut().clear();
        for (dvol, said) in self.own_dvols() {
            if said.is_none() {
                continue;
            }
            match self.sweep(dvol).await {
                Ok(is_gone) => gone += u64::from(is_gone),
                Err(error) => {
                    // All that was to be done, and is not.
                    self.sweep_all_soon();
                    return Err(error);
                }
            }
        }
        self.recount_all();
        Ok(gone)
    }
}
