//! Which dvols and layers of them are still needed, and what they take.
//!
//! An inode names a dvol now, or in a snapshot. A dvol that is named by none goes. A layer keeps what its dvol was
//! for the snapshots from the one before it on, up to its own: without any that have the file it goes.

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_device::engine::{
    Attributes, Batch, Change as DvolChange, Handle, Stability as DvolStability,
};
use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, DeviceId, DvolId};
use tracing::error;

use crate::change::{Tried, versions};
use crate::error::FileError;
use crate::files::{FileId, FilesystemId, SnapshotNumber};
use crate::filesystem::{Inner, decoded, final_error};
use crate::inode::Inode;
use crate::key;
use crate::object::{NAME_PREFIX, Object, Said, snapshot_of};
use crate::objects::of_dvol;
use crate::places::Place;
use crate::system::All;

/// When others were in the way.
const PAUSE_NS: u64 = 1_000_000;

/// Dvols looked at before others have their turn.
pub(crate) const AT_ONCE: usize = 64;
/// Visited at once, which takes less.
const VISITED_AT_ONCE: usize = 512;
/// All dvols are counted again this often at most.
const COUNTED_EVERY_NS: u64 = 1_000_000_000;

/// Bytes that a dvol has beside what it shares.
#[derive(Clone, Copy, Default)]
struct Own {
    place: Place,
    /// In layers of its own.
    below: u64,
    /// Above those: all that a write changes.
    head: u64,
}

/// Bytes that dvols of files take, by dvol: all that an inode names, or may have named. The sum is kept, so that
/// a write costs the same however many there are.
#[derive(Default)]
pub(crate) struct Taken {
    dvols: BTreeMap<DvolId, Own>,
    /// Of each place.
    totals: BTreeMap<Place, u64>,
    /// How many there are at each place.
    counts: BTreeMap<Place, u64>,
    /// Of the engine when all were counted, and when that was.
    layers_gone: u64,
    counted_ns: Option<u64>,
    /// Dvols of which all layers were counted.
    #[cfg(test)]
    pub(crate) walked: u64,
}

impl Taken {
    fn set(&mut self, dvol: DvolId, own: Option<Own>) {
        let old = match own {
            None => self.dvols.remove(&dvol),
            Some(own) => self.dvols.insert(dvol, own),
        };
        if let Some(old) = old {
            *self.counts.entry(old.place).or_default() -= 1;
            *self.totals.entry(old.place).or_default() -= old.below + old.head;
        }
        if let Some(new) = own {
            *self.counts.entry(new.place).or_default() += 1;
            *self.totals.entry(new.place).or_default() += new.below + new.head;
        }
    }

    /// False if nothing is known of the dvol yet.
    fn set_head(&mut self, dvol: DvolId, head: u64) -> bool {
        let Some(own) = self.dvols.get_mut(&dvol) else {
            return false;
        };
        let total = self.totals.entry(own.place).or_default();
        *total = *total - own.head + head;
        own.head = head;
        true
    }

    pub(crate) fn total(&self) -> u64 {
        self.totals.values().sum()
    }

    pub(crate) fn dvols_at(&self, place: Place) -> u64 {
        self.counts.get(&place).copied().unwrap_or(0)
    }

    pub(crate) fn total_at(&self, place: Place) -> u64 {
        self.totals.get(&place).copied().unwrap_or(0)
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
        let newer = self.versions.partition_point(|(version, _)| *version > at);
        let seen = self.versions.get(newer);
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
        let taken = self.taken.borrow();
        self.to_sweep
            .borrow_mut()
            .extend(taken.dvols.keys().copied());
        self.orphaned.notify();
    }

    /// All dvols that say they have a file of this filesystem.
    /// Others have their turn meanwhile.
    pub(crate) async fn own_dvols(&self) -> Vec<(DvolId, Option<Said>)> {
        let mut own = Vec::new();
        for (place, engine) in self.places.all() {
            let mut last = String::new();
            loop {
                let behind = std::mem::take(&mut last);
                let visit = |name: &str, handle: Handle, attributes: &Attributes| {
                    name.clone_into(&mut last);
                    let Some(said) = self.places.said_at(place, attributes) else {
                        return;
                    };
                    if said.is_none_or(|said| said.filesystem == self.keys.0) {
                        own.push((handle.id, said));
                    }
                };
                let count = engine.visit_dvols_behind(&behind, VISITED_AT_ONCE, visit);
                if count < VISITED_AT_ONCE {
                    break;
                }
                self.platform.yield_now().await;
            }
        }
        own
    }

    /// Counts again what a dvol takes with its layers.
    pub(crate) fn recount(&self, dvol: DvolId) {
        let own = self.own_of(dvol);
        let mut taken = self.taken.borrow_mut();
        #[cfg(test)]
        {
            taken.walked += 1;
        }
        taken.set(dvol, own);
    }

    fn own_of(&self, dvol: DvolId) -> Option<Own> {
        let (place, brief) = self.places.find(dvol)?;
        let (engine, handle) = (self.places.at(place), brief.handle);
        let head = engine.head_bytes_of(handle).ok()?;
        let all = engine.own_bytes_of(handle).ok()?;
        let below = all.saturating_sub(head);
        Some(Own { place, below, head })
    }

    pub(crate) fn bytes_of(&self, dvol: DvolId) -> u64 {
        self.own_of(dvol).map_or(0, |own| own.below + own.head)
    }

    /// Counts again what the dvol of an object takes that was changed above its layers.
    pub(crate) fn recount_object(&self, object: &Object) {
        let Ok(head) = self.engine_of(object).head_bytes_of(object.handle) else {
            return;
        };
        let dvol = object.handle.id;
        let is_known = self.taken.borrow_mut().set_head(dvol, head);
        if !is_known {
            self.recount(dvol);
        }
    }

    /// Whether there are dvols, and layers were taken out since all were counted, and that is a while ago.
    pub(crate) fn is_count_old(&self) -> bool {
        let layers_gone = self.places.layers_gone();
        let taken = self.taken.borrow();
        let next_ns = taken.counted_ns.map_or(0, |ns| ns + COUNTED_EVERY_NS);
        let is_old = taken.layers_gone != layers_gone && self.platform.now().0 >= next_ns;
        is_old && !taken.dvols.is_empty()
    }

    /// Counts all dvols again if layers were taken out since, but not all the time.
    pub(crate) async fn recount_if_old(&self) {
        if self.is_count_old() {
            // Who comes meanwhile waits for what it comes to: by the old count there may be no room.
            let _turn = self.counting.take(1).await;
            if self.is_count_old() {
                self.recount_all().await;
            }
        }
    }

    /// Counts all dvols again: what the background has freed is seen then.
    pub(crate) async fn recount_all(&self) {
        let layers_gone = self.places.layers_gone();
        let dvols: Vec<DvolId> = self.taken.borrow().dvols.keys().copied().collect();
        for some in dvols.chunks(AT_ONCE) {
            some.iter().for_each(|dvol| self.recount(*dvol));
            if some.len() == AT_ONCE {
                self.platform.yield_now().await;
            }
        }
        let mut taken = self.taken.borrow_mut();
        taken.layers_gone = layers_gone;
        taken.counted_ns = Some(self.platform.now().0);
    }

    /// What is counted in the tree, and what dvols take; what is in both counts once.
    pub(crate) fn used_bytes(&self) -> u64 {
        let blocks = self.with_state(|state| state.usage.bytes);
        let twice: u64 = self.giving_back.borrow().values().sum();
        let blocks = blocks.max(0).cast_unsigned().saturating_sub(twice);
        blocks + self.taken.borrow().total()
    }

    /// The same by devices: what isn't in dvols is on the first. Of the others those that have something.
    pub(crate) fn bytes_by_device(&self) -> Vec<(DeviceId, u64)> {
        let all = self.used_bytes();
        let taken = self.taken.borrow();
        let elsewhere = self.places.all().skip(1);
        let elsewhere = elsewhere.map(|(place, _)| (place, taken.total_at(place)));
        let elsewhere: Vec<_> = elsewhere.filter(|(_, bytes)| *bytes > 0).collect();
        let there: u64 = elsewhere.iter().map(|(_, bytes)| bytes).sum();
        let home = (Place::HOME, all.saturating_sub(there));
        let each = std::iter::once(home).chain(elsewhere);
        each.map(|(place, bytes)| (self.places.device_at(place), bytes))
            .collect()
    }

    /// Whether a write of these ranges to an object stays within the quota.
    pub(crate) async fn check_room_for(
        &self,
        object: &Object,
        ranges: impl Iterator<Item = Range<u64>> + Clone,
    ) -> Result<(), Tried> {
        let quota = self.with_state(|state| state.superblock.quota_bytes);
        let whole = |range: Range<u64>| {
            range.start / BLOCK_SIZE * BLOCK_SIZE..range.end.next_multiple_of(BLOCK_SIZE)
        };
        let is_room = || {
            let each = ranges.clone().map(whole);
            let most: u64 = each.map(|range| range.end - range.start).sum();
            self.used_bytes().saturating_add(most) <= quota
        };
        if quota == 0 || is_room() {
            return Ok(());
        }
        self.recount_if_old().await;
        // What the dvol has for itself takes no more when it is overwritten. What it shares with a snapshot or a
        // copy does: that stays, too.
        let mut more = 0;
        for range in ranges.clone().map(whole) {
            let mut at = range.start;
            while at < range.end {
                let runs =
                    self.engine_of(object)
                        .own_allocation(object.handle, at, range.end - at, 64);
                for run in runs.await.map_err(of_dvol)? {
                    at += run.len_bytes;
                    more += match run.allocated {
                        true => 0,
                        false => run.len_bytes,
                    };
                }
            }
        }
        match more > 0 && self.used_bytes().saturating_add(more) > quota {
            true => Err(FileError::Quota.into()),
            false => Ok(()),
        }
    }

    /// Looks at some dvols that may not be needed any more. Returns at how many.
    pub(crate) async fn sweep_some(&self) -> Result<usize, FileError> {
        let Some(dvol) = self.to_sweep.borrow_mut().next() else {
            return Ok(0);
        };
        let _entered = self.enter().await;
        let swept = self.sweep(dvol).await.map_err(|error| self.blamed(error));
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
        let engine = self.places.at(found.place);
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
            let first = users.partition_point(|user| *user <= below);
            if users.get(first).is_some_and(|user| *user <= number) {
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
        self.to_sweep.borrow_mut().clear();
        for (dvol, said) in self.own_dvols().await {
            if said.is_none() {
                continue;
            }
            self.platform.yield_now().await;
            match self.sweep(dvol).await {
                Ok(is_gone) => gone += u64::from(is_gone),
                Err(error) => {
                    // All that was to be done, and is not.
                    self.sweep_all_soon();
                    return Err(error);
                }
            }
        }
        self.recount_all().await;
        Ok(gone)
    }
}

impl<P: Platform> All<P> {
    /// Dvols of a filesystem that is about to be opened for the first time. Those of all are looked for once.
    pub(crate) async fn dvols_of_unopened(&self, id: FilesystemId) -> Vec<DvolId> {
        if self.unopened.borrow().is_none() {
            let mut found: BTreeMap<FilesystemId, Vec<DvolId>> = BTreeMap::new();
            self.visit_files(|_, handle, said| {
                found.entry(said.filesystem).or_default().push(handle.id);
                true
            })
            .await;
            *self.unopened.borrow_mut() = Some(found);
        }
        let mut unopened = self.unopened.borrow_mut();
        let found = unopened.as_mut().and_then(|all| all.remove(&id));
        found.unwrap_or_default()
    }

    /// Shows the dvols of files of all filesystems, as long as more are wanted. Others have their turn meanwhile.
    pub(crate) async fn visit_files(&self, mut visit: impl FnMut(Place, Handle, Said) -> bool) {
        let mut is_enough = false;
        for (place, engine) in self.places.all() {
            let mut last = NAME_PREFIX.to_owned();
            loop {
                let mut is_over = false;
                let behind = std::mem::take(&mut last);
                let see = |name: &str, handle: Handle, attributes: &Attributes| {
                    name.clone_into(&mut last);
                    is_over |= !name.starts_with(NAME_PREFIX);
                    if !is_over
                        && !is_enough
                        && let Some(Some(said)) = self.places.said_at(place, attributes)
                    {
                        is_enough = !visit(place, handle, said);
                    }
                };
                let count = engine.visit_dvols_behind(&behind, VISITED_AT_ONCE, see);
                if is_enough {
                    return;
                }
                if is_over || count < VISITED_AT_ONCE {
                    break;
                }
                self.platform.yield_now().await;
            }
        }
    }
}
