//! One attempt at an operation: what it reads and changes, as versions of keys in one transaction.
//!
//! What is written bears the live number. A version that a snapshot needs stays beside it, and is noted under
//! the newest snapshot that needs it, so that deleting a snapshot costs what it alone kept.

use std::rc::Rc;

use flagstone_btree::{Held, Part, Transaction, Tree, TreeError};
use flagstone_pagestore::{
    BlockPtr, Claim, CommitError, ExtentId, OwnerId, PARTS_MAX, RangeWrite, ReadError, StoreError,
    Ticket,
};
use flagstone_platform::Platform;
use flagstone_platform::sync::Share;
use flagstone_types::DvolId;
use tracing::error;

use crate::error::FileError;
use crate::files::FileId;
use crate::key::{self, Keys};
use crate::locks::Locked;
use crate::superblock::Usage;

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    /// Others were in the way, or what it was built on is lost: from the beginning.
    Again,
    /// For good.
    For(FileError),
}

impl From<FileError> for Tried {
    fn from(error: FileError) -> Tried {
        Tried::For(error)
    }
}

impl From<StoreError> for Tried {
    fn from(error: StoreError) -> Tried {
        match error {
            StoreError::Lost => Tried::Again,
            StoreError::NoSpace => Tried::For(FileError::NoSpace),
            StoreError::Corrupt => Tried::For(FileError::Corrupt),
            StoreError::Device => Tried::For(FileError::Device),
            StoreError::Stuck => Tried::For(FileError::Later),
            StoreError::Fenced | StoreError::Stopping => Tried::For(FileError::Stopping),
            StoreError::NoExtent(id) => {
                error!("a pointer names the extent {:#x}, which is not there", id.0);
                Tried::For(FileError::Corrupt)
            }
        }
    }
}

impl From<ReadError> for Tried {
    fn from(error: ReadError) -> Tried {
        match error {
            // Its block was given back meanwhile; whoever did that changed the key it was found by.
            ReadError::NotOwner(_) => Tried::Again,
            ReadError::OutOfRange(_) => {
                error!("a block of a file is {error}");
                Tried::For(FileError::Corrupt)
            }
            ReadError::Store(error) => error.into(),
        }
    }
}

impl From<TreeError> for Tried {
    fn from(error: TreeError) -> Tried {
        match error {
            TreeError::Conflict | TreeError::Busy => Tried::Again,
            TreeError::Part(
                CommitError::Conflict(_)
                | CommitError::NotOwner(_)
                | CommitError::Taken(_)
                | CommitError::Busy(..),
            ) => Tried::Again,
            TreeError::Part(CommitError::Store(error)) | TreeError::Store(error) => error.into(),
            TreeError::Damaged(..) => {
                error!("{error}");
                Tried::For(FileError::Corrupt)
            }
            TreeError::Part(CommitError::Invalid(_)) | TreeError::TooLarge(_) => {
                error!("an operation asks for what can't be: {error}");
                Tried::For(FileError::Device)
            }
        }
    }
}

/// What the background does once a change is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Later {
    /// Give back what a cut has left behind the end of a file's dvol.
    Cut(FileId),
    /// See whether a dvol is still needed.
    Sweep(DvolId),
}

/// What is there of a key, and what is to be.
struct Known {
    /// The newest version and its value, empty if the key was taken away in it.
    found: Option<(u32, Held)>,
    /// `None`: nothing changes. Otherwise the value it gets, if it isn't taken away.
    next: Option<Option<Vec<u8>>>,
    /// Its value can't be another version's as well: it names a block.
    names_block: bool,
}

/// See the module's page. Dropping it leaves everything as it was.
pub(crate) struct Change<P: Platform> {
    tree: Tree<P>,
    tx: Transaction<P>,
    keys: Keys,
    live: u32,
    snapshots: Rc<[u32]>,
    /// By key, in the order in which they were looked for: there are a dozen of them.
    known: Vec<(Vec<u8>, Known)>,
    /// Keys that have no versions, and parts that are no keys.
    others: usize,
    usage: Usage,
    claims: Vec<Claim<P>>,
    noted: Ticket,
    /// What it has locked, until it is over.
    pub(crate) locked: Vec<Locked>,
    /// Nobody else moves directories meanwhile.
    pub(crate) moving: Option<Share>,
    /// There is something for the reaper when it is committed.
    pub(crate) leaves_orphan: bool,
    pub(crate) later: Vec<Later>,
}

impl<P: Platform> Change<P> {
    pub(crate) fn new(tree: &Tree<P>, keys: Keys, live: u32, snapshots: Rc<[u32]>) -> Change<P> {
        Change {
            tree: tree.clone(),
            tx: tree.begin(),
            keys,
            live,
            snapshots,
            known: Vec::new(),
            others: 0,
            usage: Usage::default(),
            claims: Vec::new(),
            noted: Ticket::default(),
            locked: Vec::new(),
            moving: None,
            leaves_orphan: false,
            later: Vec::new(),
        }
    }

    /// When what it has seen survives power loss.
    pub(crate) fn ticket(&self) -> Ticket {
        self.tree.store().later(self.tx.ticket(), self.noted)
    }

    /// It has seen something by other ways.
    pub(crate) fn note(&mut self, ticket: Ticket) {
        self.noted = self.tree.store().later(self.noted, ticket);
    }

    /// Another one, of the same moment, that has seen nothing.
    pub(crate) fn fresh(&self) -> Change<P> {
        Change::new(&self.tree, self.keys, self.live, self.snapshots.clone())
    }

    /// Whether it would change anything.
    pub(crate) fn changes_something(&self) -> bool {
        let is_changed = |known: &Known| known.next.is_some();
        self.others > 0
            || !self.usage.is_zero()
            || self.known.iter().any(|(_, known)| is_changed(known))
    }

    /// The value of a versioned key now, its own change included. The commit depends on it.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, Tried> {
        let known = self.know(key).await?;
        let value = match &known.next {
            Some(next) => next.as_deref(),
            None => known.found.as_ref().map(|(_, held)| held.value()),
        };
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// Whether a snapshot needs the version that is there of a key. The key was got before.
    pub(crate) fn is_kept(&self, key: &[u8]) -> bool {
        let known = self.position(key).map(|index| &self.known[index].1);
        let found = known.and_then(|known| known.found.as_ref());
        found.is_some_and(|(version, held)| {
            !held.value().is_empty() && needed_by(&self.snapshots, *version, self.live).is_some()
        })
    }

    pub(crate) async fn put(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), Tried> {
        self.know(key).await?.next = Some(Some(value));
        Ok(())
    }

    /// As `put`, of a key that names a block.
    pub(crate) async fn put_block(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), Tried> {
        let known = self.know(key).await?;
        known.next = Some(Some(value));
        known.names_block = true;
        Ok(())
    }

    /// A key that never was there: nothing is looked up.
    pub(crate) fn put_new(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let known = Known {
            found: None,
            next: Some(Some(value)),
            names_block: false,
        };
        match self.position(&key) {
            Some(index) => self.known[index].1 = known,
            None => self.known.push((key, known)),
        }
    }

    pub(crate) async fn delete(&mut self, key: &[u8]) -> Result<(), Tried> {
        let known = self.know(key).await?;
        known.next = Some(None);
        Ok(())
    }

    /// As `delete`, of a key that names a block.
    pub(crate) async fn delete_block(&mut self, key: &[u8]) -> Result<(), Tried> {
        let known = self.know(key).await?;
        known.next = Some(None);
        known.names_block = true;
        Ok(())
    }

    fn position(&self, key: &[u8]) -> Option<usize> {
        self.known.iter().position(|(known, _)| known == key)
    }

    async fn know(&mut self, key: &[u8]) -> Result<&mut Known, Tried> {
        let index = match self.position(key) {
            Some(index) => index,
            None => {
                let (from, to) = versions(key, u32::MAX);
                let found = self.tx.first(from, to).await?;
                let known = Known {
                    found: found.map(|held| (version_of(&held), held)),
                    next: None,
                    names_block: false,
                };
                self.known.push((key.to_vec(), known));
                self.known.len() - 1
            }
        };
        Ok(&mut self.known[index].1)
    }

    /// The value of a key that has no versions.
    pub(crate) async fn get_plain(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Tried> {
        Ok(self.tx.get(key).await?)
    }

    /// The first key from `from` on that is below `to`, its own changes left out of account.
    pub(crate) async fn first_plain(
        &mut self,
        from: &[u8],
        to: &[u8],
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, Tried> {
        let first = self.tx.first(from.to_vec(), to.to_vec()).await?;
        Ok(first.map(|held| (held.key(), held.value().to_vec())))
    }

    pub(crate) fn put_plain(&mut self, key: &[u8], value: &[u8]) -> Result<(), Tried> {
        self.others += 1;
        Ok(self.tx.put(key, value)?)
    }

    pub(crate) fn delete_plain(&mut self, key: &[u8]) -> Result<(), Tried> {
        self.others += 1;
        Ok(self.tx.delete(key)?)
    }

    /// Names a free block and takes it.
    pub(crate) async fn allocate(
        &mut self,
        extent: ExtentId,
        owner: OwnerId,
    ) -> Result<BlockPtr, Tried> {
        let claim = self.tree.store().claim(extent, owner).await?;
        let ptr = claim.ptr;
        self.claims.push(claim);
        self.others += 1;
        self.tx.add(Part::Allocate(ptr));
        Ok(ptr)
    }

    pub(crate) fn free(&mut self, block: BlockPtr) {
        self.others += 1;
        self.tx.add(Part::Free(block));
    }

    pub(crate) fn write_range(&mut self, range: RangeWrite) {
        self.others += 1;
        self.tx.add(Part::Range(range));
    }

    /// Counts what it brings or takes.
    pub(crate) fn count(&mut self, usage: Usage) {
        self.usage.add(usage);
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Parts of the transaction so far; [`PARTS_MAX`] at most. A version that stays needs one more.
    pub(crate) fn parts(&self) -> usize {
        let of_key = |known: &Known| match (&known.next, &known.found) {
            (None, _) => 0,
            (Some(_), Some((version, _))) if *version < self.live => 2,
            (Some(_), _) => 1,
        };
        let keys: usize = self.known.iter().map(|(_, known)| of_key(known)).sum();
        keys + self.others + usize::from(!self.usage.is_zero())
    }

    /// Does it, at once or not at all.
    pub(crate) async fn commit(mut self) -> Result<Ticket, Tried> {
        if self.parts() > PARTS_MAX {
            return Box::pin(self.thaw()).await;
        }
        for (key, known) in std::mem::take(&mut self.known) {
            let Some(next) = known.next else { continue };
            let Some((version, _)) = known.found else {
                if let Some(next) = next {
                    self.tx.put(&key::versioned(&key, self.live), &next)?;
                }
                continue;
            };
            // That a key was taken away is needed as much: what is older must not come back.
            let needed = needed_by(&self.snapshots, version, self.live);
            if let Some(snapshot) = needed {
                let old = key::versioned(&key, version);
                self.tx.put(&self.keys.displaced(snapshot, &old), &[])?;
            } else if version != self.live {
                self.tx.delete(&key::versioned(&key, version))?;
            }
            let new = key::versioned(&key, self.live);
            match next {
                Some(next) => self.tx.put(&new, &next)?,
                None if needed.is_some() || self.has_older(&key, version).await? => {
                    self.tx.put(&new, &[])?;
                }
                None => self.tx.delete(&new)?,
            }
        }
        if !self.usage.is_zero() {
            let counters = self.usage.counters();
            self.tx.count(&self.keys.counters(), counters)?;
        }
        let committed = self.tx.commit().await?;
        Ok(self.tree.store().later(committed.ticket, self.noted))
    }

    /// Whether an older version of a key is there, which would be the newest if this one went.
    async fn has_older(&mut self, key: &[u8], version: u32) -> Result<bool, Tried> {
        // Also without snapshots: what deleted ones kept may still be there. The first version is 1.
        if version <= 1 {
            return Ok(false);
        }
        let (from, to) = versions(key, version - 1);
        Ok(self.tx.first(from, to).await?.is_some())
    }

    /// There are too many older versions for one transaction: gives the keys concerned their value once more
    /// under the live number, so that the next attempt finds none, and keeps the older version if a snapshot needs
    /// it. Nothing changes for anybody.
    async fn thaw(self) -> Result<Ticket, Tried> {
        let cold = self.known.iter().filter_map(|(key, known)| {
            let (version, held) = known.found.as_ref()?;
            let needed = needed_by(&self.snapshots, *version, self.live);
            let is_cold = *version < self.live && known.next.is_some() && !known.names_block;
            is_cold.then_some((key, *version, held.value(), needed))
        });
        let cold: Vec<_> = cold.collect();
        if cold.is_empty() {
            error!(parts = self.parts(), "an operation has too many parts");
            return Err(Tried::For(FileError::Device));
        }
        for some in cold.chunks(PARTS_MAX / 2) {
            let mut tx = self.tree.begin();
            for (key, version, value, snapshot) in some {
                let (from, to) = versions(key, u32::MAX);
                let first = tx.first(from, to).await?;
                let old = key::versioned(key, *version);
                if first.is_none_or(|held| held.key() != old) {
                    return Err(Tried::Again);
                }
                tx.put(&key::versioned(key, self.live), value)?;
                match snapshot {
                    Some(snapshot) => tx.put(&self.keys.displaced(*snapshot, &old), &[])?,
                    None => tx.delete(&old)?,
                }
            }
            tx.commit().await?;
        }
        Err(Tried::Again)
    }
}

/// The newest snapshot that needs a version which is followed by one of `next`: those taken from its number on
/// and before that. The snapshots are in ascending order.
pub(crate) fn needed_by(snapshots: &[u32], version: u32, next: u32) -> Option<u32> {
    let before = snapshots.partition_point(|number| *number < next);
    let newest = snapshots[..before].last().copied();
    newest.filter(|number| *number >= version)
}

/// All versions of a key up to one: from, to.
pub(crate) fn versions(key: &[u8], up_to: u32) -> (Vec<u8>, Vec<u8>) {
    let mut to = key::versioned(key, 0);
    to.push(0);
    (key::versioned(key, up_to), to)
}

fn version_of(versioned: &Held) -> u32 {
    versioned.key_end().map_or(0, key::version_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_needed_by_snapshots_of_its_time() {
        // (snapshots, version, next, needed by)
        for (snapshots, version, next, expected) in [
            (&[][..], 1, 2, None),
            (&[1][..], 1, 2, Some(1)),
            (&[1][..], 2, 3, None),
            (&[1, 2, 5][..], 1, 4, Some(2)),
            (&[1, 2, 5][..], 3, 5, None),
            (&[1, 2, 5][..], 3, 6, Some(5)),
            (&[5][..], 5, 5, None),
        ] {
            assert_eq!(needed_by(snapshots, version, next), expected);
        }
    }
}
