//! A filesystem goes back to one of its snapshots.
//!
//! One transaction notes to which. From then on nobody is let in until it is done: whoever comes is told to come
//! again later. All keys are walked, and each that differs gets the value again that the snapshot has, under the live
//! number, as if somebody had changed it: so other snapshots keep what they have, whether they are older or newer.
//! Blocks that files got since are given back, those of the snapshot are copied, and dvols are rolled back to the
//! layer that keeps them. After a crash it is walked once more from the beginning; what is there by then stays.
//!
//! Before anything is changed all is read that this will read. If something can't be, the filesystem is let be as
//! it is. What can't be read later keeps it closed: then it can be rolled back to another snapshot, or deleted.

use flagstone_device::engine::{Batch, Change as DvolChange, Stability as DvolStability};
use flagstone_pagestore::{OwnerId, PARTS_MAX, RangeWrite, Ticket};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::DvolId;
use tracing::{error, info};

use crate::change::{Change, Later, Tried, versions};
use crate::contents::{BlockValue, PAGE_BYTES, block_size_index, content_mut};
use crate::error::FileError;
use crate::files::{FileId, SnapshotNumber};
use crate::filesystem::{ATTEMPTS_MAX, Filesystem, Inner, Rolling, decoded, final_error};
use crate::inode::{Body, Content, Inode, ObjectContent};
use crate::key::{self, FileKey, Part};
use crate::names::COOKIE_FIRST;
use crate::object::{Said, layer_name, snapshot_of};
use crate::objects::of_dvol;
use crate::superblock::{SnapshotValue, Usage};
use crate::view::View;

/// Versions of keys read at once.
const BATCH: usize = 512;
/// Parts that one key takes at most: two versions, a block that is taken, one that is given back, what is written,
/// and what is noted of an image store.
const PARTS_PER_KEY: usize = 6;
/// More than a directory can have given while nobody kept what it was.
const COOKIES_JUMP: u64 = 1 << 32;
/// When it has to begin once more.
const PAUSE_NS: u64 = 1_000_000;

/// So often in a row it begins anew because something seems to be gone. A file's dvol that is missing looks like
/// one that others are just deleting.
const LATERS_MAX: u32 = 200;
/// Transactions that may wait for their flush.
const AHEAD: usize = 32;
/// How often it is tried to read what can't be read, before that is said.
const TRIES: u32 = 3;
/// Between two tries. It doubles, up to the latter.
const FAILED_NS: u64 = 1_000_000_000;
const FAILED_MAX_NS: u64 = 64_000_000_000;

/// What came of rolling back that went wrong.
#[derive(Default)]
pub(crate) struct Trouble {
    /// How often it was tried in vain.
    tries: u32,
    /// How often in a row it was to be tried once more.
    laters: u32,
    said: Option<String>,
}

impl Trouble {
    pub(crate) fn said(&self) -> Option<String> {
        self.said.clone()
    }
}

/// A key that is to be what a snapshot has.
struct Wanted {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl<P: Platform> Filesystem<P> {
    /// Makes everything what it was when a snapshot was taken; later snapshots stay. Durable when this returns:
    /// it happens then, behind, whatever comes between, and until it has ([`Filesystem::rolling_back_to`])
    /// everything else is [`FileError::Later`].
    ///
    /// What is being rolled back and can't be, since something can't be read, can be rolled back to another snapshot.
    pub async fn roll_back(&self, name: &str) -> Result<(), FileError> {
        let inner = &self.inner;
        let begun = inner.change_state_of_all(async |change, state| {
            let is_stuck = inner.trouble.borrow().said.is_some();
            if state.rolling.is_some() && !is_stuck {
                return Err(FileError::Later.into());
            }
            let is_it = |(other, _): &&(Vec<u8>, SnapshotValue)| other == name.as_bytes();
            let found = state.snapshots.iter().find(|snapshot| is_it(snapshot));
            let (_, snapshot) = found.ok_or(FileError::NotFound)?;
            let rolling = Rolling {
                to: snapshot.number,
                // What was begun has changed something.
                is_looking: state.rolling.is_none_or(|rolling| rolling.is_looking),
            };
            change.put_plain(&inner.keys.rollback(), &rolling.encode())
        });
        begun.await?;
        *inner.trouble.borrow_mut() = Trouble::default();
        inner.orphaned.notify();
        Ok(())
    }

    /// The snapshot that it is being rolled back to.
    pub fn rolling_back_to(&self) -> Option<SnapshotNumber> {
        self.inner
            .with_state(|state| state.rolling.map(|rolling| SnapshotNumber(rolling.to)))
    }
}

impl<P: Platform> Inner<P> {
    /// Does what was begun. Returns whether there was anything.
    pub(crate) async fn roll(&self) -> Result<bool, FileError> {
        let Some(rolling) = self.with_state(|state| state.rolling) else {
            return Ok(false);
        };
        let to = rolling.to;
        let mut done = match rolling.is_looking {
            true => self.look_through(to).await,
            false => self.roll_to(to).await,
        };
        if !rolling.is_looking && done == Err(FileError::NoSpace) {
            // What came after the snapshot has the room, and only this gives it back.
            done = self.restore_all(to, |wanted| wanted.value.is_none()).await;
            if done.is_ok() {
                done = self.roll_to(to).await;
            }
        }
        match done {
            // Some of it is lost: once more. If that goes on and on, something is missing for good.
            Err(FileError::Later) => {
                let laters = self.trouble.borrow().laters + 1;
                self.trouble.borrow_mut().laters = laters;
                self.platform.sleep_ns(PAUSE_NS).await;
                if laters >= LATERS_MAX {
                    self.trouble.borrow_mut().laters = 0;
                    self.not_rolled(rolling, FileError::Corrupt).await?;
                }
            }
            Err(error @ (FileError::Corrupt | FileError::Device)) => {
                self.not_rolled(rolling, error).await?;
            }
            done => {
                self.trouble.borrow_mut().laters = 0;
                done?;
            }
        }
        Ok(true)
    }

    /// Reads all that is to be read, and has it begin then.
    async fn look_through(&self, to: u32) -> Result<(), FileError> {
        let (mut from, end) = self.keys.all_files();
        loop {
            let (wanted, next) = self.wanted(&from, &end, to).await?;
            for wanted in &wanted {
                let looked = self.look_through_key(wanted, to).await;
                looked.map_err(final_error)?;
            }
            self.platform.yield_now().await;
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let rolling = Rolling {
            to,
            is_looking: false,
        };
        self.note_rolling(to, Some(rolling)).await
    }

    async fn look_through_key(&self, wanted: &Wanted, to: u32) -> Result<(), Tried> {
        let Wanted { key, value } = wanted;
        let parts = decoded(self.keys.of_file(key), "a key of a file")?;
        let Some(value) = value else { return Ok(()) };
        match parts.part {
            Part::Inode => {
                let mut inode = decoded(Inode::decode(parts.file, value), "an inode")?;
                if let Some(object) = inode.object() {
                    // Which is to become what the snapshot has.
                    self.dvol(object.dvol).ok_or_else(|| self.not_there())?;
                    self.complete(parts.file, &mut inode, |dvol| self.dvol_at(dvol, to))?;
                }
            }
            Part::Block(_) if self.has_blocks(parts.file, to).await? => {
                let kept = decoded(BlockValue::decode(value), "a block of a file")?;
                for page in (0..64).filter(|page| kept.written >> page & 1 == 1) {
                    self.store().read(kept.page(page)).await?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes how far it is, if it is still that snapshot.
    async fn note_rolling(&self, to: u32, rolling: Option<Rolling>) -> Result<(), FileError> {
        let key = self.keys.rollback();
        let noted = self.alone(to, async |change| {
            match rolling {
                Some(rolling) => change.put_plain(&key, &rolling.encode())?,
                None => change.delete_plain(&key)?,
            }
            Ok(true)
        });
        if let Some(ticket) = noted.await? {
            self.wait_for(ticket).await?;
        }
        // Another one may have been asked for meanwhile.
        if self.with_state(|state| state.rolling.is_some_and(|now| now.to == to)) {
            self.set_rolling(rolling);
        }
        Ok(())
    }

    /// Something that it takes can't be read. If nothing was changed yet, everything stays as it is.
    async fn not_rolled(&self, rolling: Rolling, error: FileError) -> Result<(), FileError> {
        let tries = self.trouble.borrow().tries + 1;
        self.trouble.borrow_mut().tries = tries;
        let name = self.with_state(|state| {
            let is_it = |(_, value): &&(Vec<u8>, SnapshotValue)| value.number == rolling.to;
            let found = state.snapshots.iter().find(is_it);
            found.map_or(String::new(), |(name, _)| {
                String::from_utf8_lossy(name).into_owned()
            })
        });
        if tries >= TRIES {
            let what = match rolling.is_looking {
                true => format!(
                    "it was not rolled back to '{name}', since not all of that can be read ({error}): it is as it was before; `flagstone fs check` says more"
                ),
                false => format!(
                    "it is half rolled back to '{name}', since not all of that can be read ({error}), and clients wait: roll it back to another snapshot, or delete it"
                ),
            };
            error!(filesystem = %self.keys.0, "{what}");
            self.trouble.borrow_mut().said = Some(what);
            if rolling.is_looking {
                self.note_rolling(rolling.to, None).await?;
                self.trouble.borrow_mut().tries = 0;
                return Ok(());
            }
        }
        let pause_ns = FAILED_NS << (tries - 1).min(6);
        let until_ns = self.platform.now().0 + pause_ns.min(FAILED_MAX_NS);
        // Somebody may choose another snapshot, or delete it, or the node stop.
        while self.platform.now().0 < until_ns
            && !self.stopping.get()
            && self.with_state(|state| state.rolling == Some(rolling))
        {
            self.platform.sleep_ns(FAILED_NS / 10).await;
        }
        Ok(())
    }

    /// Gives keys the values that the snapshot has: those of the keys that differ that are `included`.
    async fn restore_all(
        &self,
        to: u32,
        included: impl Fn(&Wanted) -> bool,
    ) -> Result<(), FileError> {
        let mut last = Ticket::default();
        // Whoever removed those files did so after the snapshot, or they would be given back with what comes back.
        while let Some(ticket) = self
            .alone(to, async |change| self.roll_orphan(change).await)
            .await?
        {
            last = self.store().later(last, ticket);
        }
        self.wait_for(last).await?;
        let (mut from, end) = self.keys.all_files();
        let mut ahead = 0;
        loop {
            let (mut wanted, next) = self.wanted(&from, &end, to).await?;
            wanted.retain(&included);
            let mut rest = &wanted[..];
            while !rest.is_empty() {
                let begun = rest;
                let done = std::cell::Cell::new(0);
                let ticket = self.alone(to, async |change| {
                    done.set(0);
                    for wanted in begun {
                        if change.parts() + PARTS_PER_KEY > PARTS_MAX {
                            break;
                        }
                        self.restore(change, wanted, to).await?;
                        done.set(done.get() + 1);
                    }
                    Ok(true)
                });
                if let Some(ticket) = ticket.await? {
                    last = self.store().later(last, ticket);
                }
                rest = &rest[done.get()..];
                ahead += 1;
                if ahead == AHEAD {
                    self.wait_for(last).await?;
                    ahead = 0;
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        self.wait_for(last).await
    }

    async fn roll_to(&self, to: u32) -> Result<(), FileError> {
        self.rolled.set(self.rolled.get() + 1);
        self.restore_all(to, |_| true).await?;
        let done = self.alone(to, async |change| {
            change.delete_plain(&self.keys.rollback())?;
            Ok(true)
        });
        if let Some(ticket) = done.await? {
            self.wait_for(ticket).await?;
        }
        self.giving_back.borrow_mut().clear();
        self.sweep_all_soon();
        self.recount_all().await;
        // Counting took a while, and whoever asked for another rollback meanwhile was told that it is done.
        let this = Rolling {
            to,
            is_looking: false,
        };
        if self.with_state(|state| state.rolling) == Some(this) {
            self.set_rolling(None);
            *self.trouble.borrow_mut() = Trouble::default();
        }
        info!(filesystem = %self.keys.0, snapshot = to, "rolled back");
        Ok(())
    }

    async fn wait_for(&self, ticket: Ticket) -> Result<(), FileError> {
        let waited = self.store().wait(ticket).await;
        waited.map_err(|error| final_error(error.into()))
    }

    /// Carries out one step while nobody else is let in. `None` if it has found nothing to do.
    pub(crate) async fn alone(
        &self,
        to: u32,
        operation: impl AsyncFn(&mut Change<P>) -> Result<bool, Tried>,
    ) -> Result<Option<Ticket>, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let _entered = self.enter().await;
            if self.stopping.get() {
                return Err(FileError::Stopping);
            }
            if self.with_state(|state| state.rolling.is_none_or(|rolling| rolling.to != to)) {
                // Somebody has chosen another snapshot.
                return Err(FileError::Later);
            }
            match self.try_alone(&operation).await {
                Ok(done) => return Ok(done),
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(error),
            }
        }
        Err(FileError::Later)
    }

    async fn try_alone(
        &self,
        operation: &impl AsyncFn(&mut Change<P>) -> Result<bool, Tried>,
    ) -> Result<Option<Ticket>, Tried> {
        let lost = self.reload().await?;
        if lost {
            // What was committed ahead may be gone with it: from the beginning.
            return Err(Tried::For(FileError::Later));
        }
        let (live, snapshots) = self.with_state(|state| {
            let snapshots = state.numbers_of_snapshots.clone();
            (state.superblock.live, snapshots)
        });
        let mut change = Change::new(&self.tree, self.keys, live, snapshots);
        if !operation(&mut change).await? {
            return Ok(None);
        }
        if !change.changes_something() {
            return Ok(Some(change.ticket()));
        }
        self.commit_step(change).await.map(Some)
    }

    /// Gives back some of what a removed file held.
    async fn roll_orphan(&self, change: &mut Change<P>) -> Result<bool, Tried> {
        let (from, to) = self.keys.orphans();
        let Some((key, _)) = change.first_plain(&from, &to).await? else {
            return Ok(false);
        };
        let file = decoded(self.keys.of_orphan(&key), "an orphan's key")?;
        if self.free_blocks(change, file, None, 0).await? {
            change.delete_plain(&key)?;
        }
        Ok(true)
    }

    /// Keys of files from one on that differ from what a snapshot has, and where to go on.
    async fn wanted(
        &self,
        from: &[u8],
        end: &[u8],
        to: u32,
    ) -> Result<(Vec<Wanted>, Option<Vec<u8>>), FileError> {
        let mut view = View::new(&self.tree, u32::MAX);
        let found = view.scan_plain(from, end, BATCH).await;
        let found = found.map_err(final_error)?;
        let is_end = found.len() < BATCH;
        let mut wanted: Vec<Wanted> = Vec::new();
        // The key whose versions are being passed, and whether its value in the snapshot is known.
        let mut passing: Vec<u8> = Vec::new();
        let mut is_decided = false;
        for (versioned, value) in &found {
            let split = decoded(key::split_version(versioned), "a key of a file");
            let (key, version) = split.map_err(final_error)?;
            if passing != key {
                passing = key.to_vec();
                is_decided = version <= to;
                let same = || Some(value.clone()).filter(|_| self.was_written(key, value, to));
                let value = match is_decided {
                    // Nothing has changed but what its dvol says and has.
                    true => same().map(Some),
                    false => Some(None),
                };
                wanted.extend(value.map(|value| Wanted {
                    key: key.to_vec(),
                    value,
                }));
                continue;
            }
            if !is_decided && version <= to {
                is_decided = true;
                let value = Some(value.clone()).filter(|value| !value.is_empty());
                if let Some(last) = wanted.last_mut() {
                    last.value = value;
                }
            }
        }
        if is_end {
            return Ok((wanted, None));
        }
        // The last key's versions may go on: it is looked at from its beginning, but for one that has filled it all.
        let mut next = passing.clone();
        if !is_decided && wanted.len() > 1 {
            wanted.pop();
            return Ok((wanted, Some(next)));
        }
        if !is_decided {
            let mut view = View::new(&self.tree, to);
            let value = view.get(&passing).await.map_err(final_error)?;
            if let Some(last) = wanted.last_mut() {
                last.value = value;
            }
        }
        next.extend([255; 5]);
        Ok((wanted, Some(next)))
    }

    /// Whether a key is the inode of a file whose dvol was written to since a snapshot.
    fn was_written(&self, key: &[u8], value: &[u8], to: u32) -> bool {
        let Some(FileKey {
            file,
            part: Part::Inode,
        }) = self.keys.of_file(key)
        else {
            return false;
        };
        let object = Inode::decode(file, value).and_then(|inode| inode.object());
        // Of one that isn't there nobody knows: whoever looks at it finds that out.
        object.is_some_and(|object| {
            self.layer_at(object.dvol, to).is_some() || self.is_missing(object.dvol)
        })
    }

    /// Gives a key the value that the snapshot has.
    async fn restore(&self, change: &mut Change<P>, wanted: &Wanted, to: u32) -> Result<(), Tried> {
        let Wanted { key, value } = wanted;
        let now = change.get(key).await?.map(<[u8]>::to_vec);
        let parts = decoded(self.keys.of_file(key), "a key of a file")?;
        match parts.part {
            Part::Inode => {
                let restored = self.restore_inode(change, parts.file, (now, value.as_deref()), to);
                restored.await
            }
            Part::Block(_) => {
                // The snapshot may have what a removed file, or one that had become a dvol, had not given back yet.
                let value = match value {
                    Some(value) if self.has_blocks(parts.file, to).await? => Some(value.as_slice()),
                    _ => None,
                };
                self.restore_block(change, key, now, value).await
            }
            Part::Name(_) | Part::Cookie(_) if now == *value => Ok(()),
            Part::Name(_) | Part::Cookie(_) => match value {
                Some(value) => change.put(key, value.clone()).await,
                None => change.delete(key).await,
            },
        }
    }

    /// Whether a file's content is in blocks in a snapshot.
    async fn has_blocks(&self, file: FileId, at: u32) -> Result<bool, Tried> {
        let mut view = View::new(&self.tree, at);
        match self.look_at_put(&mut view, file).await {
            Ok(inode) => Ok(matches!(inode.content(), Some(Content::Blocks { .. }))),
            Err(Tried::For(FileError::Stale)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A block belongs to one version: the snapshot's is copied.
    async fn restore_block(
        &self,
        change: &mut Change<P>,
        key: &[u8],
        now: Option<Vec<u8>>,
        value: Option<&[u8]>,
    ) -> Result<(), Tried> {
        let block = |value: &[u8]| decoded(BlockValue::decode(value), "a block of a file");
        if let Some(now) = now
            && !change.is_kept(key)
        {
            let now = block(&now)?;
            change.free(now.block);
            change.count(Usage {
                files: 0,
                bytes: -now.bytes().cast_signed(),
            });
        }
        let Some(value) = value else {
            return change.delete_block(key).await;
        };
        let kept = block(value)?;
        let start = decoded(key::last_number(key), "a block's key")?;
        let extent = self.extents.0[block_size_index(start)];
        let owner = OwnerId(self.keys.0.0);
        let new = BlockValue {
            block: change.allocate(extent, owner).await?,
            written: kept.written,
        };
        let pages =
            u64::from(kept.written.trailing_zeros())..64 - u64::from(kept.written.leading_zeros());
        if kept.written != 0 {
            let mut copy = IoBuf::zeroed(((pages.end - pages.start) * PAGE_BYTES) as usize);
            for page in pages.clone().filter(|page| kept.written >> page & 1 == 1) {
                let read = self.store().read(kept.page(page)).await?;
                change.note(read.ticket);
                let at = ((page - pages.start) * PAGE_BYTES) as usize;
                copy.bytes_mut()[at..at + PAGE_BYTES as usize].copy_from_slice(&read.data);
            }
            let first = new.page(pages.start);
            change.write_range(RangeWrite { first, data: copy });
        }
        change.count(Usage {
            files: 0,
            bytes: new.bytes().cast_signed(),
        });
        change.put_block(key, new.encode()).await
    }

    async fn restore_inode(
        &self,
        change: &mut Change<P>,
        file: FileId,
        (now, value): (Option<Vec<u8>>, Option<&[u8]>),
        to: u32,
    ) -> Result<(), Tried> {
        let inode_of = |value: &[u8]| decoded(Inode::decode(file, value), "an inode");
        let now = now.as_deref().map(inode_of).transpose()?;
        let now_object = now.as_ref().and_then(Inode::object);
        let files = i64::from(value.is_some()) - i64::from(now.is_some());
        change.count(Usage { files, bytes: 0 });
        // It comes back when clients are let in again, and has what it is by then. Those that stay in memory are what
        // they were.
        self.objects.forget(file);
        if let Some(object) = now_object {
            change.later.push(Later::Sweep(object.dvol));
        }
        let Some(value) = value else {
            return change.delete(&self.keys.inode(file)).await;
        };
        let mut inode = inode_of(value)?;
        if let Some(object) = inode.object() {
            self.complete(file, &mut inode, |dvol| self.dvol_at(dvol, to))?;
            let said = self.restore_dvol(object.dvol, to).await?;
            // Higher than whatever was said of it.
            let stamps = [
                Some(object.stamp),
                Some(said),
                now_object.map(|now| now.stamp),
            ];
            let stamp = stamps.into_iter().flatten().max().unwrap_or_default();
            *content_mut(&mut inode) = Content::Object(ObjectContent { stamp, ..object });
        }
        if let Body::Directory(part) = &mut inode.body {
            let before = now.as_ref().and_then(Inode::directory);
            // No cookie is given to two names. How many it has had is not known if it was removed since.
            let jump = if before.is_some() { 0 } else { COOKIES_JUMP };
            let next_cookie = self.highest_cookie(file).await?.checked_add(jump);
            part.next_cookie = next_cookie.ok_or(FileError::NoSpace)?;
            if part.is_image_store && before.is_some_and(|before| !before.is_image_store) {
                change.put_plain(&self.keys.image_store(file.number()), &[])?;
            }
        }
        self.put_inode(change, file, &inode).await
    }

    /// The highest cookie that a directory gives next in any version of it.
    async fn highest_cookie(&self, directory: FileId) -> Result<u64, Tried> {
        let mut view = View::new(&self.tree, u32::MAX);
        let (from, to) = versions(&self.keys.inode(directory), u32::MAX);
        let mut highest = COOKIE_FIRST;
        for (_, value) in view.scan_plain(&from, &to, usize::MAX).await? {
            let inode = Inode::decode(directory, &value);
            if let Some(part) = inode.as_ref().and_then(Inode::directory) {
                highest = highest.max(part.next_cookie);
            }
        }
        Ok(highest)
    }

    /// Rolls a dvol back to what a snapshot has. Returns the highest stamp that it has had.
    async fn restore_dvol(&self, dvol: DvolId, to: u32) -> Result<u32, Tried> {
        let live = self.dvol(dvol).ok_or_else(|| self.not_there())?;
        let kept = self.dvol_at(dvol, to).ok_or(Tried::Again)?;
        let engine = self.places.at(live.place);
        if kept.handle == live.handle {
            return Ok(live.said.stamp);
        }
        let newest = self.with_state(|state| state.numbers_of_snapshots.last().copied());
        let frozen = engine.last_layer(dvol);
        let frozen = frozen.and_then(|info| snapshot_of(&info.name));
        if let Some(newest) = newest
            && live.said.since <= newest
            && frozen.is_none_or(|frozen| frozen < newest)
        {
            // A later snapshot has what is there now.
            let dvols = [(live.handle, layer_name(newest))];
            let taken = engine.snapshot(&dvols);
            taken.await.map_err(of_dvol)?;
        }
        engine
            .roll_back(live.handle, kept.handle)
            .await
            .map_err(of_dvol)?;
        let said = Said {
            since: self.with_state(|state| state.superblock.live),
            stamp: live.said.stamp.max(kept.said.stamp),
            ..kept.said
        };
        let changes = vec![DvolChange::SetAttributes {
            handle: live.handle,
            attributes: Box::new(said.encode()),
        }];
        let batch = Batch {
            conditions: Vec::new(),
            changes,
        };
        let done = engine.commit(batch, DvolStability::Stable).await;
        done.map_err(of_dvol)?;
        Ok(said.stamp)
    }
}
