//! Files that get large become dvols: the content is copied, and one transaction puts the inode with the dvol. Until
//! then nobody knows of it; whatever comes between, a sweep deletes a dvol that no inode names.

use std::rc::Rc;

use flagstone_device::engine::{CreateDvol, DvolError, Handle, Piece, Stability as DvolStability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::DvolId;
use tracing::warn;

use crate::change::{Change, Tried, needed_by};
use crate::contents::{BlockValue, block_start_and_size};
use crate::error::FileError;
use crate::files::{Caller, FileId};
use crate::filesystem::{ATTEMPTS_MAX, Inner, decoded};
use crate::inode::{Body, Content, Inode};
use crate::key;
use crate::object::{Said, dvol_name};
use crate::objects::{OBJECT_MAX_BYTES, aligned, of_dvol};
use crate::permissions::require_write;
use crate::places::Place;
use crate::view::View;

/// Blocks of a file looked for at once.
const BATCH: usize = 64;
/// When there are too many dvols, files stay as they are for some time.
const PAUSE_NS: u64 = 10_000_000_000;

/// A dvol that no inode names yet: no sweep may delete it. If it is given up, one does.
pub(crate) struct Making<P: Platform> {
    inner: Rc<Inner<P>>,
    pub(crate) dvol: DvolId,
    /// An inode names it.
    pub(crate) is_named: bool,
}

impl<P: Platform> Drop for Making<P> {
    fn drop(&mut self) {
        self.inner.making.borrow_mut().remove(&self.dvol);
        if !self.is_named {
            self.inner.sweep_soon(self.dvol);
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Sets a dvol's id aside.
    pub(crate) fn begin_making(self: &Rc<Self>) -> Making<P> {
        let high = u128::from(self.platform.random_u64());
        let dvol = DvolId(high << 64 | u128::from(self.platform.random_u64()));
        self.making.borrow_mut().insert(dvol);
        Making {
            inner: self.clone(),
            dvol,
            is_named: false,
        }
    }

    pub(crate) fn new_dvol(&self, dvol: DvolId) -> CreateDvol {
        CreateDvol {
            name: dvol_name(dvol),
            id: Some(dvol),
            size_bytes: OBJECT_MAX_BYTES,
            reserved_bytes: 0,
        }
    }

    /// Makes the dvol that was set aside, empty, where there is room for what the file has and so much more. `None`: there are too many dvols. Durable when this
    /// returns.
    pub(crate) async fn make_dvol(
        &self,
        making: &Making<P>,
        file: FileId,
        inode: &Inode,
        more_bytes: u64,
    ) -> Result<Option<(Place, Handle)>, Tried> {
        let needed = inode.attributes.used_bytes.saturating_add(more_bytes);
        let mut refused = None;
        let mut are_too_many = false;
        let is_one = self.with_state(|state| state.superblock.one_device);
        let places = match is_one || self.stays_home.get() {
            true => vec![Place::HOME],
            false => {
                let draw = || self.platform.random_u64();
                self.places.for_new(needed, draw)
            }
        };
        for place in places {
            self.note_place(place).await?;
            let said = self.said_first(file, inode, place);
            let new = self.new_dvol(making.dvol);
            let made = self.places.at(place).create_with(new, said.encode()).await;
            match made {
                Ok(handle) => return Ok(Some((place, handle))),
                Err(DvolError::TooMany) => are_too_many = true,
                Err(error @ DvolError::NoSpace) => refused = Some(error),
                Err(error) => return Err(of_dvol(error)),
            }
        }
        // In blocks there may be room.
        match refused {
            Some(error) if !are_too_many => Err(of_dvol(error)),
            _ => Ok(None),
        }
    }

    /// Before anything of a file is on another device than the tree: that says so from then on.
    async fn note_place(&self, place: Place) -> Result<(), Tried> {
        if self.places.is_noted(place) {
            return Ok(());
        }
        let device = self.places.at(place).superblock().device_id;
        let mut tx = self.tree.begin();
        tx.put(&key::place(device), &[])?;
        let committed = tx.commit().await?;
        self.store().wait(committed.ticket).await?;
        self.places.note(device);
        Ok(())
    }

    /// What the dvol of a file says that nobody has written to since its inode was put.
    pub(crate) fn said_first(&self, file: FileId, inode: &Inode, place: Place) -> Said {
        Said {
            home: self.places.mark_at(place),
            filesystem: self.keys.0,
            file,
            stamp: 0,
            since: self.with_state(|state| state.superblock.live),
            is_cleared: false,
            size_bytes: inode.attributes.size_bytes,
            time_ns: inode.attributes.changed.to_ns(),
        }
    }

    /// Whether a file is to become a dvol when it has this size.
    pub(crate) async fn is_to_promote(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &Inode,
        size_bytes: u64,
    ) -> Result<bool, Tried> {
        let Body::Regular { content, .. } = &inode.body else {
            return Ok(false);
        };
        let is_empty = match content {
            Content::Inline(bytes) => bytes.iter().all(|&byte| byte == 0),
            Content::Blocks { .. } => inode.attributes.used_bytes == 0,
            Content::Object(_) => return Ok(false),
        };
        if self.platform.now().0 < self.promote_from_ns.get() {
            return Ok(false);
        }
        let after = size_bytes.max(inode.attributes.size_bytes);
        if after > self.with_state(|state| state.superblock.promote_bytes) {
            return Ok(true);
        }
        if !is_empty || size_bytes == 0 {
            return Ok(false);
        }
        // The directory that it was made in says so, if that is still there.
        let made_in = FileId {
            directory: file.directory,
            file: 0,
        };
        let mut view = View::new(&self.tree, u32::MAX);
        let directory = self.look_at_put(&mut view, made_in).await;
        change.note(view.ticket());
        match directory {
            Ok(inode) => Ok(inode.directory().is_some_and(|part| part.is_image_store)),
            Err(Tried::For(FileError::Stale)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a file's content a dvol, before so many more bytes are written to it. Nobody sees a difference. It is as it was if there are too many dvols.
    pub(crate) async fn promote(
        self: &Rc<Self>,
        file: FileId,
        more_bytes: u64,
    ) -> Result<(), FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            match self.try_promote(file, more_bytes).await {
                Ok(()) => return Ok(()),
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(error),
            }
        }
        Err(FileError::Later)
    }

    async fn try_promote(self: &Rc<Self>, file: FileId, more_bytes: u64) -> Result<(), Tried> {
        let _entered = self.enter().await;
        let _own = self.locks.own(&[file.number()]).await;
        self.refresh().await?;
        let (live, snapshots) = self.with_state(|state| {
            let snapshots = state.numbers_of_snapshots.clone();
            (state.superblock.live, snapshots)
        });
        let mut change = Change::new(&self.tree, self.keys, live, snapshots);
        let inode = self.inode(&mut change, file).await;
        if inode.is_err() {
            // What it failed for was seen, and must survive before anybody is told.
            self.store().wait(change.ticket()).await?;
        }
        let inode = inode?;
        let Body::Regular { content, .. } = &inode.body else {
            return Ok(());
        };
        if matches!(content, Content::Object(_)) {
            return Ok(());
        }
        self.check_cut(&change, file, &inode).await?;
        if !self.has_room_to_promote(&mut change, file, &inode).await? {
            self.promote_from_ns.set(self.platform.now().0 + PAUSE_NS);
            return Ok(());
        }
        let mut making = self.begin_making();
        let Some(made) = self.make_dvol(&making, file, &inode, more_bytes).await? else {
            let now = self.platform.now().0;
            self.promote_from_ns.set(now + PAUSE_NS);
            warn!(
                "there are too many dvols on this journal for a large file to become one; it stays in blocks"
            );
            return Ok(());
        };
        let mut view = View::new(&self.tree, u32::MAX);
        self.copy_content(&mut view, file, &inode, made).await?;
        let mut twice = 0;
        if let Content::Blocks { .. } = content {
            twice = self.bytes_only_now(&mut change, file).await?;
            // Given back behind this, as a removed file's are.
            change.put_plain(&self.keys.orphan(file), &[])?;
            change.leaves_orphan = true;
        }
        let mut inode = Inner::<P>::with_object(&inode, making.dvol);
        inode.attributes.used_bytes = 0;
        self.put_inode(&mut change, file, &inode).await?;
        let ticket = self.commit_step(change).await?;
        // At once: blocks begin to be given back now.
        self.recount(making.dvol);
        if twice > 0 {
            self.giving_back.borrow_mut().insert(file, twice);
        }
        if let Err(error) = self.store().wait(ticket).await {
            // If it is lost, so is the file's dvol, and a sweep counts it no more.
            self.giving_back.borrow_mut().remove(&file);
            return Err(error.into());
        }
        making.is_named = true;
        Ok(())
    }

    /// Whether a file that becomes a dvol leaves its filesystem within the quota: what snapshots keep of its blocks
    /// stays beside the dvol. If not, it stays in blocks.
    async fn has_room_to_promote(
        &self,
        change: &mut Change<P>,
        file: FileId,
        inode: &Inode,
    ) -> Result<bool, Tried> {
        let quota = self.with_state(|state| state.superblock.quota_bytes);
        if quota == 0 {
            return Ok(true);
        }
        let goes = self.bytes_only_now(change, file).await?;
        let more = inode.attributes.used_bytes.saturating_sub(goes);
        Ok(more == 0 || self.used_bytes().saturating_add(more) <= quota)
    }

    /// Bytes of a file's blocks that no snapshot needs.
    async fn bytes_only_now(&self, change: &mut Change<P>, file: FileId) -> Result<u64, Tried> {
        let snapshots = self.with_state(|state| state.numbers_of_snapshots.clone());
        let mut view = View::new(&self.tree, u32::MAX);
        let (mut from, to) = self.keys.blocks(file, 0);
        let mut bytes = 0;
        let mut last: Vec<u8> = Vec::new();
        loop {
            let found = view.scan_plain(&from, &to, BATCH).await?;
            change.note(view.ticket());
            let Some((end, _)) = found.last() else {
                return Ok(bytes);
            };
            from = [end.as_slice(), &[0]].concat();
            for (versioned, value) in found {
                let (key, version) = decoded(key::split_version(&versioned), "a block's key")?;
                if key == last {
                    continue;
                }
                last = key.to_vec();
                if !value.is_empty() && needed_by(&snapshots, version, u32::MAX).is_none() {
                    let block = decoded(BlockValue::decode(&value), "a block of a file")?;
                    bytes += block.bytes();
                }
            }
        }
    }

    /// Copies what a file has into a new dvol; holes stay holes. Durable when this returns: of two units that no
    /// flush covers a crash may leave the later one alone, so an inode must not come to name it before.
    pub(crate) async fn copy_content(
        &self,
        view: &mut View<P>,
        file: FileId,
        inode: &Inode,
        (place, to): (Place, Handle),
    ) -> Result<(), Tried> {
        let engine = self.places.at(place);
        let content = inode.content().ok_or(FileError::Invalid)?;
        let size_bytes = inode.attributes.size_bytes;
        if let Content::Inline(bytes) = content {
            if bytes.iter().any(|&byte| byte != 0) {
                let data = IoBuf::copy_of(bytes);
                let write = engine.write(to, 0, data, DvolStability::Unstable);
                write.await.map_err(of_dvol)?;
            }
            return engine.flush().await.map_err(of_dvol);
        }
        let (mut from, end) = self.keys.blocks(file, 0);
        loop {
            let blocks = view.scan(&from, &end, BATCH).await?;
            let Some((last, _)) = blocks.last() else {
                return engine.flush().await.map_err(of_dvol);
            };
            from = [last.as_slice(), &[255; 5]].concat();
            for (key, value) in blocks {
                let start = decoded(key::last_number(&key), "a block's key")?;
                decoded(BlockValue::decode(&value), "a block of a file")?;
                let stop = size_bytes.min(start + block_start_and_size(start).1);
                if start >= stop {
                    continue;
                }
                let pieces = self.read_content(view, file, content, start..stop).await?;
                let mut at = start;
                for piece in pieces {
                    match piece {
                        Piece::Zeros(len) => at += len,
                        Piece::Data(data) => {
                            let len = data.len() as u64;
                            let data = aligned(data.into_buf());
                            let write = engine.write(to, at, data, DvolStability::Unstable);
                            write.await.map_err(of_dvol)?;
                            at += len;
                        }
                    }
                }
            }
        }
    }

    /// Before a file's size is set: one that becomes large by that becomes a dvol, if the caller may set it.
    pub(crate) async fn promote_for(
        self: &Rc<Self>,
        caller: &Caller,
        file: FileId,
        size_bytes: u64,
    ) -> Result<(), FileError> {
        if size_bytes <= self.with_state(|state| state.superblock.promote_bytes) {
            return Ok(());
        }
        let wanted = self.run(async |change| {
            let inode = self.inode(change, file).await?;
            if require_write(caller, &inode.attributes).is_err() {
                return Ok(false);
            }
            self.is_to_promote(change, file, &inode, size_bytes).await
        });
        match wanted.await {
            Ok(true) => self.promote(file, 0).await,
            // Whoever sets it finds out.
            Ok(false) | Err(FileError::Stale) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
