//! Files whose content is a dvol: finding them, reading and writing them, and what goes before the first write
//! behind a snapshot. [fss 4: object layout]
//!
//! Who writes has the file's lock shared with others: what the dvol says of it is asked for when a write gets its
//! place in the journal, so size and times never go back. Who makes the file longer by a stable write, puts the
//! inode, cuts the file or keeps it for a snapshot has the lock alone.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change as DvolChange, DvolError, Engine, Handle, LayerInfo, Pieces,
    Stability as DvolStability,
};
use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, DvolId};
use tracing::error;

use crate::attributes::{Attributes, Changes};
use crate::change::{Change, Tried};
use crate::contents::content_mut;
use crate::error::FileError;
use crate::files::{Caller, FileId, FileRead, Stability, Written};
use crate::filesystem::{ATTEMPTS_MAX, Inner, decoded};
use crate::inode::{Content, Inode, ObjectContent};
use crate::object::{Object, Said, layer_name, snapshot_of};
use crate::permissions::{mode_after_write, require_read, require_write, stamp};
use crate::places::Place;
use crate::view::View;
use crate::zeros;

/// The largest file.
pub(crate) const OBJECT_MAX_BYTES: u64 = 1 << 53;
/// Bytes of one unit, at most.
const PART_MAX_BYTES: usize = 4 << 20;
/// A write of so many bytes at most happens wholly or not at all.
pub(crate) const UNIT_BYTES: usize = 64 << 10;
/// How often a read is tried beside writes to the same place before it keeps them off.
const READS_BESIDE: usize = 3;

/// Why an operation on a file's dvol failed.
pub(crate) fn of_dvol(error: DvolError) -> Tried {
    match error {
        // Its file is gone, or has another one: whoever looks again sees that.
        DvolError::NotFound => Tried::Again,
        DvolError::NoSpace | DvolError::TooMany => Tried::For(FileError::NoSpace),
        DvolError::Corrupt => Tried::For(FileError::Corrupt),
        DvolError::Device => Tried::For(FileError::Device),
        DvolError::Fenced | DvolError::Stopping => Tried::For(FileError::Stopping),
        error => {
            error!("an operation asks of a file's dvol what can't be: {error}");
            Tried::For(FileError::Device)
        }
    }
}

fn of(stability: Stability) -> DvolStability {
    match stability {
        Stability::Stable => DvolStability::Stable,
        Stability::Unstable => DvolStability::Unstable,
    }
}

/// Bytes that a device takes as they lie there; what comes from a client may begin anywhere in its buffer.
pub(crate) fn aligned(data: IoBuf) -> IoBuf {
    match data.as_ptr().addr().is_multiple_of(BUFFER_ALIGN) {
        true => data,
        false => IoBuf::copy_of(&data),
    }
}

/// What is written at once.
enum Part {
    Data(IoBuf),
    /// So many bytes, in whole blocks, of which holes are made.
    Zeros(u64),
}

/// What a look at the dvol of a file found.
pub(crate) struct FoundDvol {
    pub(crate) place: Place,
    pub(crate) handle: Handle,
    pub(crate) said: Said,
    pub(crate) mapped_bytes: u64,
}

impl<P: Platform> Inner<P> {
    /// A file's dvol, as it is now.
    pub(crate) fn dvol(&self, dvol: DvolId) -> Option<FoundDvol> {
        let (place, info) = self.places.find(dvol)?;
        Some(FoundDvol {
            place,
            handle: info.handle,
            said: Said::decode(&info.attributes)?,
            mapped_bytes: info.mapped_bytes,
        })
    }

    /// The layer that has what a dvol was at a snapshot, if one does; otherwise the dvol still has it.
    pub(crate) fn layer_at(&self, dvol: DvolId, snapshot: u32) -> Option<(Place, LayerInfo)> {
        // Their names have their order.
        self.places.layer_from(dvol, &layer_name(snapshot))
    }

    /// Whether a dvol may be on a device that isn't there.
    pub(crate) fn is_missing(&self, dvol: DvolId) -> bool {
        self.places.find(dvol).is_none() && !self.places.are_all_here()
    }

    /// What an operation failed for, told by who is to blame: what another device than the tree's takes no more is no end of the
    /// filesystem.
    pub(crate) fn blamed(&self, error: FileError) -> FileError {
        let is_well = !self.stopping.get() && self.places.home().check_running().is_ok();
        match error {
            FileError::Stopping if is_well && self.places.is_one_away() => FileError::Device,
            error => error,
        }
    }

    /// Why a dvol that an inode names isn't there.
    pub(crate) fn not_there(&self) -> Tried {
        match self.places.are_all_here() {
            // The inode isn't any more either, or soon won't be.
            true => Tried::Again,
            false => Tried::For(FileError::Device),
        }
    }

    /// The engine that has the dvol of a file.
    pub(crate) fn engine_of(&self, object: &Object) -> &Engine<P> {
        self.places.at(object.place)
    }

    /// Before an inode is put with what its dvol says: makes that durable, if the dvol is on another device. On the same one what is
    /// committed later is durable later.
    pub(crate) async fn flush_elsewhere(&self, dvol: DvolId) -> Result<(), Tried> {
        match self.places.find(dvol) {
            Some((place, _)) if place != Place::HOME => {
                self.places.at(place).flush().await.map_err(of_dvol)
            }
            _ => Ok(()),
        }
    }

    /// The same for all that the filesystem has on other devices.
    pub(crate) async fn flush_all_elsewhere(&self) -> Result<(), Tried> {
        for (place, engine) in self.places.all() {
            let is_used = self.taken.borrow().dvols_at(place) > 0;
            if place != Place::HOME && is_used {
                engine.flush().await.map_err(of_dvol)?;
            }
        }
        Ok(())
    }

    /// What a dvol was at a snapshot.
    pub(crate) fn dvol_at(&self, dvol: DvolId, snapshot: u32) -> Option<FoundDvol> {
        let Some((place, info)) = self.layer_at(dvol, snapshot) else {
            return self.dvol(dvol);
        };
        Some(FoundDvol {
            place,
            handle: info.handle,
            said: Said::decode(&info.attributes)?,
            mapped_bytes: info.mapped_bytes,
        })
    }

    /// Completes an inode by what its dvol says, if it has one.
    pub(crate) fn complete(
        &self,
        file: FileId,
        inode: &mut Inode,
        found: impl FnOnce(DvolId) -> Option<FoundDvol>,
    ) -> Result<(), Tried> {
        let Some(object) = inode.object() else {
            return Ok(());
        };
        let found = found(object.dvol).ok_or_else(|| self.not_there())?;
        if (found.said.filesystem, found.said.file) != (self.keys.0, file) {
            error!(dvol = %object.dvol, "the dvol of a file says that it is another one's");
            return Err(FileError::Corrupt.into());
        }
        if !found.said.fold_into(inode, object.stamp) {
            return Err(Tried::Again);
        }
        inode.attributes.used_bytes = found.mapped_bytes;
        Ok(())
    }

    /// The same for who has the file alone: what was begun counts.
    pub(crate) fn complete_alone(&self, file: FileId, inode: &mut Inode) -> Result<(), Tried> {
        self.complete(file, inode, |dvol| self.dvol(dvol))?;
        if let Some(content) = inode.object()
            && let Some(object) = self.objects.get(file)
            && object.content.stamp == content.stamp
        {
            let used_bytes = inode.attributes.used_bytes;
            inode.attributes = Attributes {
                used_bytes,
                ..object.issued.get()
            };
        }
        Ok(())
    }

    /// The file in memory, if its content is a dvol. The caller has it locked, perhaps with others.
    pub(crate) async fn object(&self, file: FileId) -> Result<Option<Rc<Object>>, Tried> {
        self.check_there()?;
        if let Some(found) = self.objects.get(file) {
            return Ok(Some(found));
        }
        let rolled = self.rolled.get();
        let mut view = View::new(&self.tree, u32::MAX);
        let inode = self.look_at_put(&mut view, file).await;
        // Also if it failed: what it failed for was seen.
        self.store().wait(view.ticket()).await?;
        self.remember(file, inode?, rolled)
    }

    /// Takes into memory what was seen of a file since `rolled` was so many.
    pub(crate) fn remember(
        &self,
        file: FileId,
        inode: Inode,
        rolled: u64,
    ) -> Result<Option<Rc<Object>>, Tried> {
        // A rollback asks for no file's lock. What was there before it must not be in memory behind it: writes would go by a
        // stamp that is over, and be lost.
        self.check_there()?;
        if self.rolled.get() != rolled {
            return Err(Tried::Again);
        }
        let Some(content) = inode.object() else {
            return Ok(None);
        };
        let found = self.dvol(content.dvol).ok_or_else(|| self.not_there())?;
        let mut now = inode.clone();
        self.complete(file, &mut now, |dvol| self.dvol(dvol))?;
        let frozen = self.places.at(found.place).last_layer(content.dvol);
        let frozen = frozen.and_then(|info| snapshot_of(&info.name));
        let object = Rc::new(Object::new(
            file,
            (found.place, found.handle),
            content,
            inode,
            now.attributes,
            &found.said,
            frozen.unwrap_or_default(),
        ));
        if content.cut_bytes > 0 {
            // Nobody works with it before that is done.
            return Ok(Some(object));
        }
        let is_calm = |object: &Object| match self.visible(object) {
            Ok(seen) => seen.changed == object.issued.get().changed,
            Err(_) => true,
        };
        Ok(Some(self.objects.put(object, is_calm)))
    }

    /// The file as everybody sees it.
    pub(crate) fn visible(&self, object: &Object) -> Result<Attributes, Tried> {
        let engine = self.engine_of(object);
        let attributes = engine.attributes_of(object.handle).map_err(of_dvol)?;
        let said = decoded(Said::decode(&attributes), "what a file's dvol says")?;
        let mut inode = object.inode.clone();
        if !said.fold_into(&mut inode, object.content.stamp) {
            return Err(Tried::Again);
        }
        inode.attributes.used_bytes = engine.mapped_bytes_of(object.handle).map_err(of_dvol)?;
        Ok(inode.attributes)
    }

    /// The newest snapshot that a dvol must be kept for before it is changed.
    fn to_freeze(&self, object: &Object) -> Option<u32> {
        let newest = self.with_state(|state| state.numbers_of_snapshots.last().copied())?;
        (object.since.get() <= newest && object.frozen.get() < newest).then_some(newest)
    }

    /// Keeps a dvol as it is for the newest snapshot. The caller has the file alone.
    async fn freeze(&self, object: &Object, snapshot: u32) -> Result<(), Tried> {
        let name = layer_name(snapshot);
        // It may be there: then a crash came before the write that it was for.
        let engine = self.engine_of(object);
        if engine.layer(object.handle.id, &name).is_none() {
            let taken = engine.snapshot(&[(object.handle, name)]).await;
            taken.map_err(of_dvol)?;
        }
        object.frozen.set(snapshot);
        self.recount(object.handle.id);
        Ok(())
    }

    /// What a change of an object has its dvol say. `change` says how the file changes.
    pub(crate) fn said(&self, object: &Object) -> Said {
        let issued = object.issued.get();
        Said {
            filesystem: self.keys.0,
            file: object.file,
            stamp: object.content.stamp,
            since: object.since.get(),
            is_cleared: object.is_cleared.get(),
            size_bytes: issued.size_bytes,
            time_ns: issued.changed.to_ns(),
            home: self.places.mark_at(object.place),
        }
    }

    /// Writes to a file whose content is a dvol. `None` if it isn't.
    pub(crate) async fn write_object(
        &self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        data: &IoBuf,
        stability: Stability,
    ) -> Result<Option<Changes>, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 2 {
                self.platform.yield_now().await;
            }
            let written = self.try_write_object(caller, file, offset_bytes, data, stability);
            match written.await {
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(self.blamed(error)),
                Ok(written) => return Ok(written),
            }
        }
        Err(FileError::Later)
    }

    async fn try_write_object(
        &self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        data: &IoBuf,
        stability: Stability,
    ) -> Result<Option<Changes>, Tried> {
        let _entered = self.enter().await;
        self.refresh().await?;
        let shared = self.locks.share(file.number()).await;
        let Some(object) = self.object(file).await? else {
            return Ok(None);
        };
        require_write(caller, &object.issued.get())?;
        // What others say of the file while this is under way has its size: if it were lost and they were not,
        // zeros would be left of it. Of an unstable write they may be.
        let end = offset_bytes + data.len() as u64;
        let is_longer = end > object.issued.get().size_bytes && stability == Stability::Stable;
        if object.content.cut_bytes == 0 && self.to_freeze(&object).is_none() && !is_longer {
            let written = self.write_parts(caller, &object, offset_bytes, data, stability);
            return written.await.map(Some);
        }
        drop(shared);
        let _own = self.locks.own(&[file.number()]).await;
        let Some(object) = self.object(file).await? else {
            return Ok(None);
        };
        require_write(caller, &object.issued.get())?;
        if object.content.cut_bytes > 0 {
            Box::pin(self.finish_cut(&object)).await?;
            return Err(Tried::Again);
        }
        if let Some(snapshot) = self.to_freeze(&object) {
            self.freeze(&object, snapshot).await?;
        }
        let written = self.write_parts(caller, &object, offset_bytes, data, stability);
        written.await.map(Some)
    }

    /// Writes in as few units as may be: a long write is no one transaction.
    async fn write_parts(
        &self,
        caller: &Caller,
        object: &Object,
        offset_bytes: u64,
        data: &IoBuf,
        stability: Stability,
    ) -> Result<Changes, Tried> {
        let whole = offset_bytes..offset_bytes + data.len() as u64;
        let holes = self.with_state(|state| state.superblock.zeros_to_holes);
        let part_at = |from: usize| match holes {
            true => zeros::next(offset_bytes + from as u64, &data[from..]),
            false => (data.len() - from, false),
        };
        let parts = std::iter::successors(Some((0, part_at(0))), |(from, (len, _))| {
            let next = from + len;
            (next < data.len()).then(|| (next, part_at(next)))
        });
        // Nothing is taken by a hole.
        let kept = parts.filter(|(_, (_, is_zeros))| !is_zeros);
        let kept = kept.map(|(from, (len, _))| {
            let start = offset_bytes + from as u64;
            start..start + len as u64
        });
        self.check_room_for(object, kept).await?;
        let _writing = object.begin_write(whole);
        let mut changes: Option<Changes> = None;
        let mut from = 0;
        while from < data.len() {
            let (len, is_zeros) = part_at(from);
            let part = from..from + len.min(PART_MAX_BYTES);
            // The last one's flush covers those before it.
            let stability = match part.end < data.len() {
                true => Stability::Unstable,
                false => stability,
            };
            let at = offset_bytes + from as u64;
            from = part.end;
            let part = match is_zeros {
                true => Part::Zeros(part.len() as u64),
                false => Part::Data(data.slice(part)),
            };
            let done = self.write_part(caller, object, at, part, stability).await;
            self.recount_object(object);
            let (before, after) = done?;
            let before = changes.map_or((&before).into(), |changes| changes.before);
            changes = Some(Changes { before, after });
        }
        changes.ok_or(Tried::For(FileError::Invalid))
    }

    async fn write_part(
        &self,
        caller: &Caller,
        object: &Object,
        offset_bytes: u64,
        part: Part,
        stability: Stability,
    ) -> Result<(Attributes, Attributes), Tried> {
        let end = offset_bytes
            + match &part {
                Part::Data(data) => data.len() as u64,
                Part::Zeros(len_bytes) => *len_bytes,
            };
        let changed = Cell::new(None);
        // Asked for when the write gets its place: others may have got theirs since this was begun.
        let said = || {
            let before = object.issued.get();
            let now = stamp(&before, self.now());
            let after = Attributes {
                mode: mode_after_write(caller, before.mode),
                size_bytes: before.size_bytes.max(end),
                modified: now,
                changed: now,
                ..before
            };
            if after.mode != before.mode {
                object.is_cleared.set(true);
            }
            object.issued.set(after);
            object
                .since
                .set(self.with_state(|state| state.superblock.live));
            changed.set(Some((before, after)));
            self.said(object).encode()
        };
        let engine = self.engine_of(object);
        let was_cleared = object.is_cleared.get();
        let (handle, stability) = (object.handle, of(stability));
        let written = match part {
            Part::Data(data) => {
                let data = aligned(data);
                let work = engine.write_with(handle, offset_bytes, data, stability, said);
                work.await
            }
            Part::Zeros(len_bytes) => {
                let work = engine.deallocate_with(handle, offset_bytes, len_bytes, stability, said);
                work.await
            }
        };
        if let Err(error) = written {
            // It never was, unless others have built on it: then the file has zeros there.
            if let Some((before, after)) = changed.get()
                && object.issued.get() == after
            {
                object.issued.set(before);
                object.is_cleared.set(was_cleared);
            }
            return Err(of_dvol(error));
        }
        let (before, mut after) = changed.get().ok_or(Tried::For(FileError::Invalid))?;
        if let Ok(mapped_bytes) = engine.mapped_bytes_of(object.handle) {
            after.used_bytes = mapped_bytes;
        }
        Ok((before, after))
    }

    /// Reads a file whose content is a dvol. `None` if it isn't.
    pub(crate) async fn read_object(
        &self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Option<FileRead>, FileError> {
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > READS_BESIDE {
                self.platform.yield_now().await;
            }
            let alone = attempt > READS_BESIDE;
            let read = self.try_read_object(caller, file, offset_bytes, len_bytes, alone);
            match read.await {
                Err(Tried::Again) => {}
                Err(Tried::For(error)) => return Err(self.blamed(error)),
                Ok(read) => return Ok(read),
            }
        }
        Err(FileError::Later)
    }

    async fn try_read_object(
        &self,
        caller: &Caller,
        file: FileId,
        offset_bytes: u64,
        len_bytes: u32,
        alone: bool,
    ) -> Result<Option<FileRead>, Tried> {
        // Keeps it from being cut; alone, also from being written.
        let _locked = match alone {
            true => self.locks.own(&[file.number()]).await,
            false => vec![self.locks.share(file.number()).await],
        };
        let rolled = self.rolled.get();
        let Some(object) = self.object(file).await? else {
            return Ok(None);
        };
        let before = self.visible(&object)?;
        require_read(caller, &before)?;
        let rest = before.size_bytes.saturating_sub(offset_bytes);
        let len = rest.min(u64::from(len_bytes));
        let range = offset_bytes..offset_bytes.saturating_add(u64::from(len_bytes));
        let reading = object.begin_read(range);
        let pieces = match len {
            0 => Pieces::new(),
            len => {
                let engine = self.engine_of(&object);
                let read = engine.read_through(object.handle, offset_bytes, len);
                read.await.map_err(of_dvol)?
            }
        };
        // Else they may be of a snapshot that everything goes back to, and the attributes are not.
        self.check_there()?;
        if self.rolled.get() != rolled {
            return Err(Tried::Again);
        }
        // Bytes and attributes are of one moment: no write to them came true meanwhile.
        if reading.reader.is_met() && self.visible(&object)?.changed != before.changed {
            return Err(Tried::Again);
        }
        Ok(Some(FileRead {
            pieces,
            is_end: len == rest,
            attributes: before,
        }))
    }

    /// Reads bytes of a file as a snapshot has it, all of them before its end.
    pub(crate) async fn read_kept(
        &self,
        dvol: DvolId,
        snapshot: u32,
        range: Range<u64>,
    ) -> Result<Pieces, Tried> {
        if range.is_empty() {
            return Ok(Pieces::new());
        }
        let found = self.dvol_at(dvol, snapshot);
        let found = found.ok_or_else(|| self.not_there())?;
        let len = range.end - range.start;
        let engine = self.places.at(found.place);
        let read = engine.read_through(found.handle, range.start, len);
        let pieces = read.await;
        let pieces = pieces.map_err(of_dvol)?;
        // Otherwise it was written meanwhile, and kept before that: what was read may be new.
        let now = self.dvol_at(dvol, snapshot).ok_or(Tried::Again)?;
        match now.handle == found.handle {
            true => Ok(pieces),
            false => Err(Tried::Again),
        }
    }

    /// Makes what was written to a file durable. `None` if its content isn't a dvol.
    pub(crate) async fn commit_object(
        &self,
        caller: &Caller,
        file: FileId,
    ) -> Result<Option<Written>, FileError> {
        for _ in 0..ATTEMPTS_MAX {
            let committed = self.try_commit_object(caller, file).await;
            match committed {
                Err(Tried::Again) => self.platform.yield_now().await,
                Err(Tried::For(error)) => return Err(self.blamed(error)),
                Ok(written) => return Ok(written),
            }
        }
        Err(FileError::Later)
    }

    async fn try_commit_object(
        &self,
        caller: &Caller,
        file: FileId,
    ) -> Result<Option<Written>, Tried> {
        let _shared = self.locks.share(file.number()).await;
        let Some(object) = self.object(file).await? else {
            return Ok(None);
        };
        require_write(caller, &self.visible(&object)?)?;
        self.engine_of(&object).flush().await.map_err(of_dvol)?;
        // Only then, as the client must see another one if anything was lost.
        let verifier = self.store().verifier();
        let attributes = self.visible(&object)?;
        Ok(Some(Written {
            changes: Changes {
                before: (&attributes).into(),
                after: attributes,
            },
            stability: Stability::Stable,
            verifier,
        }))
    }

    /// Gives back what a cut has left behind the end, and notes that it is done. The caller has the file alone,
    /// and looks at it anew afterwards.
    pub(crate) async fn finish_cut(&self, object: &Object) -> Result<(), Tried> {
        if let Some(snapshot) = self.to_freeze(object) {
            self.freeze(object, snapshot).await?;
        }
        let engine = self.engine_of(object);
        let handle = object.handle;
        let size_bytes = object.issued.get().size_bytes;
        let mut said = engine.attributes_of(handle).map_err(of_dvol)?;
        let now = decoded(Said::decode(&said), "what a file's dvol says")?;
        let since = self.with_state(|state| state.superblock.live);
        if now.since != since {
            said = Said { since, ..now }.encode();
            let attributes = Box::new(said);
            let changes = vec![DvolChange::SetAttributes { handle, attributes }];
            let batch = Batch {
                conditions: Vec::new(),
                changes,
            };
            let done = engine.commit(batch, DvolStability::Unstable).await;
            done.map_err(of_dvol)?;
            object.since.set(since);
        }
        let end = object.content.cut_bytes.next_multiple_of(BLOCK_SIZE);
        let end = end.min(OBJECT_MAX_BYTES);
        if end > size_bytes {
            let len = end - size_bytes;
            let gone = engine.deallocate(handle, size_bytes, len, DvolStability::Unstable);
            gone.await.map_err(of_dvol)?;
        }
        self.recount_object(object);
        // Before anything says that it is done: a crash can leave a later unit and take an earlier one.
        engine.flush().await.map_err(of_dvol)?;
        let (live, snapshots) = self.with_state(|state| {
            let snapshots = state.numbers_of_snapshots.clone();
            (state.superblock.live, snapshots)
        });
        let mut step = Change::new(&self.tree, self.keys, live, snapshots);
        let mut inode = self.inode(&mut step, object.file).await?;
        if let Content::Object(content) = content_mut(&mut inode) {
            content.cut_bytes = 0;
        }
        self.put_inode(&mut step, object.file, &inode).await?;
        let ticket = self.commit_step(step).await?;
        // Before anything is written there: that could become durable without this.
        self.store().wait(ticket).await?;
        Ok(())
    }

    /// The inode of a file whose content becomes a dvol.
    pub(crate) fn with_object(inode: &Inode, dvol: DvolId) -> Inode {
        let mut inode = inode.clone();
        *content_mut(&mut inode) = Content::Object(ObjectContent {
            dvol,
            stamp: 0,
            cut_bytes: 0,
        });
        inode
    }
}
