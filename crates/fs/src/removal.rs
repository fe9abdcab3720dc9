//! Deleting whole filesystems: at once for everybody, and behind that what they held is given back.
//!
//! One transaction takes name and superblock away and notes the number as deleted. From then on nobody finds the
//! filesystem; whoever had it open finds everything gone. Then its dvols go, and all of its keys with the blocks
//! that they name, and the note last: so a crash at any time leaves either the filesystem or the note.

use std::rc::Rc;

use flagstone_btree::Part;
use flagstone_device::engine::DvolError;
use flagstone_pagestore::{PARTS_MAX, Ticket};
use flagstone_platform::Platform;
use tracing::{error, warn};

use crate::change::Tried;
use crate::contents::BlockValue;
use crate::error::FileError;
use crate::files::FilesystemId;
use crate::filesystem::{ATTEMPTS_MAX, Inner, decoded};
use crate::key::{self, Keys};
use crate::objects::of_dvol;
use crate::superblock::Superblock;
use crate::system::{All, Filesystems, failed};
use crate::view::View;

/// Dvols deleted, and transactions committed, before others who make or open filesystems get their turn.
const DVOLS: usize = 16;
const TRANSACTIONS: usize = 64;
/// Deleted filesystems that have their turn if those before them fail.
const DELETED: usize = 64;
/// Keys of them that a check looks at before others have their turn.
const CHECKED: usize = 256;
/// After a failure the device gets some time.
const PAUSE_NS: u64 = 1_000_000_000;

impl<P: Platform> Filesystems<P> {
    /// Goes on giving back what filesystems held that were deleted before these were opened. Whoever opens them
    /// says when.
    pub fn go_on_deleting(&self) {
        if !self.inner.is_clearing.replace(true) {
            let all = self.inner.clone();
            self.inner.platform.spawn(all.clear());
        }
    }

    /// Deletes a filesystem with all of its snapshots. Waits for what is under way in it; from then on whoever has
    /// it finds that its files are gone, for ever: numbers are not given again. Durable when this returns; what
    /// it held is given back behind.
    pub async fn delete(&self, id: FilesystemId) -> Result<(), FileError> {
        let filesystem = self.open_filesystem(id).await?;
        let all = &self.inner;
        let _turn = all.turn.take(1).await;
        filesystem.inner.take_away().await?;
        all.open.borrow_mut().remove(&id);
        self.go_on_deleting();
        all.deleted.notify();
        Ok(())
    }

    /// Deleted filesystems that still hold something.
    pub async fn deleted(&self) -> Result<Vec<FilesystemId>, FileError> {
        self.inner.deleted_ones(usize::MAX).await.map_err(failed)
    }
}

impl<P: Platform> Inner<P> {
    async fn take_away(&self) -> Result<(), FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let _pause = self.pause().await;
            match self.try_take_away().await {
                Ok(()) => {
                    // Before anybody goes on who waited for it.
                    self.is_deleted.set(true);
                    self.stopping.set(true);
                    self.orphaned.notify();
                    return Ok(());
                }
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(error),
            }
        }
        Err(FileError::Later)
    }

    async fn try_take_away(&self) -> Result<(), Tried> {
        let mut tx = self.tree.begin();
        let superblock = self.keys.superblock();
        let value = tx.get(&superblock).await?.ok_or(FileError::NotFound)?;
        let name = decoded(Superblock::decode(&value), "a superblock")?.name;
        tx.delete(&superblock)?;
        tx.delete(&key::name(&name))?;
        tx.put(&key::deleted(self.keys.0), &[])?;
        let committed = tx.commit().await?;
        Ok(self.store().wait(committed.ticket).await?)
    }
}

impl<P: Platform> All<P> {
    /// Runs as long as the filesystems are open.
    pub(crate) async fn clear(self: Rc<Self>) {
        while !self.stopping.get() {
            let deleted = self.deleted.wait();
            match self.clear_some().await {
                Ok(false) => deleted.await,
                Ok(true) => self.platform.yield_now().await,
                // What another device than the tree's takes no more is no end of all.
                Err(Tried::For(FileError::Stopping))
                    if self.places.home().check_running().is_err() =>
                {
                    return;
                }
                Err(_) if self.stopping.get() => return,
                Err(Tried::Again) => self.platform.sleep_ns(PAUSE_NS / 1000).await,
                Err(Tried::For(error)) => {
                    warn!("giving back what deleted filesystems held: {error}; trying again");
                    self.platform.sleep_ns(PAUSE_NS).await;
                }
            }
        }
    }

    async fn deleted_ones(&self, count: usize) -> Result<Vec<FilesystemId>, Tried> {
        let mut view = View::new(&self.tree, u32::MAX);
        let (from, to) = key::all_deleted();
        let found = view.scan_plain(&from, &to, count).await?;
        self.tree.store().wait(view.ticket()).await?;
        let id =
            |(key, _): (Vec<u8>, Vec<u8>)| decoded(key::of_deleted(&key), "a note of a filesystem");
        found.into_iter().map(id).collect()
    }

    /// Gives back some of what a deleted filesystem held. False if there is none. One that fails does not hold up the
    /// others.
    async fn clear_some(&self) -> Result<bool, Tried> {
        // No check of everything is under way meanwhile.
        let _turn = self.turn.take(1).await;
        let mut failed = None;
        let waiting = self.waiting.borrow().len();
        let mut deleted = self.deleted_ones(DELETED + waiting).await?;
        deleted.retain(|id| !self.waiting.borrow().contains(id));
        for id in deleted.into_iter().take(DELETED) {
            match self.clear_some_of(id).await {
                Ok(()) => return Ok(true),
                Err(Tried::For(FileError::Stopping)) => return Err(FileError::Stopping.into()),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    async fn clear_some_of(&self, id: FilesystemId) -> Result<(), Tried> {
        let mut dvols = Vec::new();
        self.visit_files(|place, handle, said| {
            if said.filesystem == id {
                dvols.push((place, handle));
            }
            dvols.len() < DVOLS
        })
        .await;
        for (place, dvol) in &dvols {
            match self.places.at(*place).delete(*dvol, true).await {
                Ok(()) | Err(DvolError::NotFound) => {}
                Err(error) => return Err(of_dvol(error)),
            }
        }
        if !dvols.is_empty() {
            return Ok(());
        }
        let mut last = Ticket::default();
        let mut is_done = false;
        for _ in 0..TRANSACTIONS {
            match self.clear_keys(id).await? {
                Some(ticket) => last = self.tree.store().later(last, ticket),
                None => {
                    is_done = true;
                    break;
                }
            }
        }
        self.tree.store().wait(last).await?;
        if is_done && !self.places.are_all_here() {
            // What it has on a device that is not here is given back when that is.
            self.waiting.borrow_mut().insert(id);
        } else if is_done {
            let mut tx = self.tree.begin();
            tx.delete(&key::deleted(id))?;
            let committed = tx.commit().await?;
            self.tree.store().wait(committed.ticket).await?;
        }
        Ok(())
    }

    /// Takes as many keys away as one transaction can, with the blocks that they name. `None`: there are none.
    async fn clear_keys(&self, id: FilesystemId) -> Result<Option<Ticket>, Tried> {
        let (from, to) = Keys(id).all();
        let mut view = View::new(&self.tree, u32::MAX);
        let found = view.scan_plain(&from, &to, PARTS_MAX).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let mut tx = self.tree.begin();
        let mut parts = 0;
        for (key, value) in found {
            let block = block_of(&key, &value).unwrap_or_else(|_| {
                // All there was to find the block by. `check` tells that one is nobody's.
                error!(filesystem = %id, "the key {key:02x?} of a deleted filesystem names no block: what it was stays allocated");
                None
            });
            parts += 1 + usize::from(block.is_some());
            if parts > PARTS_MAX {
                break;
            }
            tx.delete(&key)?;
            if let Some(block) = block {
                tx.add(Part::Free(block.block));
            }
        }
        Ok(Some(tx.commit().await?.ticket))
    }

    /// Blocks that deleted filesystems still have, and what is wrong with dvols: each is of a filesystem that is
    /// there, or is deleted, or is what all are stored in. For who looks at everything in turn.
    pub(crate) async fn check_remains(
        &self,
        there: &[FilesystemId],
    ) -> Result<(u64, Vec<String>), Tried> {
        let deleted = self.deleted_ones(usize::MAX).await?;
        let mut problems = self.check_strays(there, &deleted).await;
        let mut blocks = 0;
        for id in deleted {
            let (mut from, to) = Keys(id).all_files();
            let mut view = View::new(&self.tree, u32::MAX);
            loop {
                let found = view.scan_plain(&from, &to, CHECKED).await?;
                let Some((last, _)) = found.last() else { break };
                self.platform.yield_now().await;
                from = [last.as_slice(), &[0]].concat();
                for (key, value) in &found {
                    match block_of(key, value) {
                        Ok(block) => blocks += u64::from(block.is_some()),
                        Err(_) => problems.push(format!(
                            "the key {key:02x?} of the deleted filesystem {id} names no block"
                        )),
                    }
                }
            }
        }
        Ok((blocks, problems))
    }
}

/// The block that a key with its version names.
fn block_of(versioned: &[u8], value: &[u8]) -> Result<Option<BlockValue>, Tried> {
    let is_block = key::split_version(versioned).is_some_and(|(key, _)| key::is_block(key));
    match is_block && !value.is_empty() {
        true => decoded(BlockValue::decode(value), "a block of a file").map(Some),
        false => Ok(None),
    }
}
