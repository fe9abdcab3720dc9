//! Opening the log: what it has is put in its place, before anything else is read.

use flagstone_device::engine::{
    Attributes, Batch, Change, CreateDvol, Engine, Handle, Piece, Stability,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::BLOCK_SIZE;
use tracing::{error, info};

use super::ATTRIBUTE_KIND_LOG;
use super::frame::{self, Entry};
use super::ring::{FIRST_AT, LogHeader, Ring};
use crate::commit::StoreError;
use crate::dirty::Dirty;
use crate::extent::Extent;
use crate::geometry::Geometry;
use crate::latest::Version;
use crate::machine::GroupMax;
use crate::pointer::PageSlot;
use crate::table::TablePage;

/// Name of the dvol. One in each journal.
const LOG_DVOL: &str = ".pagestore-log";
const VERSION: u8 = 1;
/// What a new log has at least: the largest frame has a quarter of it.
const BYTES_MIN: u64 = 256 << 10;
/// What it takes of a device at most.
const CAPACITY_PART: u64 = 64;

/// A log whose frames are all in their place.
pub(crate) struct Log {
    pub(crate) handle: Handle,
    pub(crate) ring: Ring,
}

/// Finds the log, or makes one of so many bytes (none if that is zero or there is no room), and puts in its place
/// what it has.
pub(crate) async fn open<P: Platform>(
    engine: &Engine<P>,
    wanted_bytes: u64,
    group_max: GroupMax,
) -> Result<Option<Log>, StoreError> {
    let (handle, size_bytes) = match engine.dvol(LOG_DVOL) {
        Some(found) if found.attributes == attributes() => (found.handle, found.size_bytes),
        Some(_) => {
            error!(
                "opening the page store: the dvol {LOG_DVOL} is not a log of a version that is known; nothing is read \
                 or written"
            );
            return Err(StoreError::Corrupt);
        }
        None => match create(engine, wanted_bytes).await? {
            Some(created) => created,
            None => return Ok(None),
        },
    };
    let bytes = read(engine, handle, 0, BLOCK_SIZE).await?;
    let header = match LogHeader::decode(&bytes) {
        Some(header) if header.next_at <= size_bytes => header,
        // A crash came before the first time that it was cleared.
        None if bytes.iter().all(|&byte| byte == 0) => LogHeader::EMPTY,
        _ => {
            error!(
                "opening the page store: the first block of its log {LOG_DVOL} is not what the format says; nothing is \
                 read or written"
            );
            return Err(StoreError::Corrupt);
        }
    };
    let mut replay = Replay {
        engine,
        handle,
        size_bytes,
        group_max,
        header,
        cleared: header,
        extents: extents_of(engine),
        dirty: Dirty::default(),
    };
    let first = header.sequence;
    while let Some((at, bytes)) = replay.next_frame().await? {
        replay.take(at, &bytes).await?;
    }
    replay.clear().await?;
    let frames = replay.header.sequence - first;
    if frames > 0 {
        info!(
            "the page store's log had {frames} groups that were not in their place; they are now"
        );
    }
    Ok(Some(Log {
        handle,
        ring: Ring::new(size_bytes, replay.header),
    }))
}

fn attributes() -> Attributes {
    let mut attributes: Attributes = [0; _];
    attributes[0] = ATTRIBUTE_KIND_LOG;
    attributes[1] = VERSION;
    attributes
}

/// `None` without a log: on a device that is full it does without.
async fn create<P: Platform>(
    engine: &Engine<P>,
    wanted_bytes: u64,
) -> Result<Option<(Handle, u64)>, StoreError> {
    let part = engine.capacity_bytes() / CAPACITY_PART;
    let size_bytes = wanted_bytes.min(part) / BLOCK_SIZE * BLOCK_SIZE;
    if size_bytes < BYTES_MIN.min(wanted_bytes) || wanted_bytes == 0 {
        return Ok(None);
    }
    let new = CreateDvol {
        name: LOG_DVOL.to_owned(),
        id: None,
        size_bytes,
        reserved_bytes: size_bytes,
    };
    match engine
        .create_with(new, attributes())
        .await
        .map_err(StoreError::from)
    {
        Ok(handle) => Ok(Some((handle, size_bytes))),
        Err(StoreError::NoSpace) => Ok(None),
        Err(error) => Err(error),
    }
}

fn extents_of<P: Platform>(engine: &Engine<P>) -> Vec<Extent> {
    let dvols = engine.dvols();
    let extents = dvols.iter().filter_map(|info| {
        let (id, geometry) = Geometry::of_attributes(&info.attributes).ok()?;
        Some(Extent::new(id, info.handle, geometry))
    });
    extents.collect()
}

async fn read<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<Vec<u8>, StoreError> {
    let mut out = Vec::with_capacity(len_bytes as usize);
    for piece in engine.read(handle, offset_bytes, len_bytes).await? {
        match piece {
            Piece::Data(data) => out.extend_from_slice(&data),
            Piece::Zeros(len) => out.resize(out.len() + len as usize, 0),
        }
    }
    Ok(out)
}

struct Replay<'a, P: Platform> {
    engine: &'a Engine<P>,
    handle: Handle,
    size_bytes: u64,
    group_max: GroupMax,
    /// Behind the last frame that was taken.
    header: LogHeader,
    /// What the header on the device says.
    cleared: LogHeader,
    extents: Vec<Extent>,
    /// What frames changed that is not in its place.
    dirty: Dirty,
}

impl<P: Platform> Replay<'_, P> {
    /// The next frame and where it lies.
    async fn next_frame(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        for at in [self.header.next_at, FIRST_AT] {
            if at + BLOCK_SIZE > self.size_bytes {
                continue;
            }
            let bytes = read(self.engine, self.handle, at, BLOCK_SIZE).await?;
            let Some((sequence, len)) = frame::decode_head(&bytes) else {
                continue;
            };
            if sequence != self.header.sequence + 1 || len > self.size_bytes - at {
                continue;
            }
            let len = len.next_multiple_of(BLOCK_SIZE);
            return Ok(Some((at, read(self.engine, self.handle, at, len).await?)));
        }
        Ok(None)
    }

    async fn take(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let Some((sequence, entries)) = frame::decode(bytes) else {
            // The device layer has its checksums: it is there as it was written, and it was not written so.
            error!(
                "opening the page store: frame {} at byte {at} of its log {LOG_DVOL} is not what the format says; \
                 nothing is read or written",
                self.header.sequence + 1
            );
            return Err(StoreError::Corrupt);
        };
        let parts = self.dirty.changes_max() + 2 * entries.len();
        let is_much = self.dirty.bytes() > self.group_max.bytes / 2;
        if parts > self.group_max.changes || is_much {
            self.clear().await?;
        }
        for entry in &entries {
            let done = self.apply(entry).await?;
            if done.is_none() {
                error!(
                    "opening the page store: frame {sequence} of its log {LOG_DVOL} changes {}, and that is not what \
                     it was then; nothing is read or written",
                    name(entry)
                );
                return Err(StoreError::Corrupt);
            }
        }
        self.header = LogHeader {
            sequence,
            next_at: at + bytes.len() as u64,
        };
        Ok(())
    }

    /// `None`: it does not fit what is there.
    async fn apply(&mut self, entry: &Entry<'_>) -> Result<Option<()>, StoreError> {
        let (id, number) = match *entry {
            Entry::Freed { extent, block } => (extent, block),
            Entry::Table { extent, page, .. } | Entry::Page { extent, page, .. } => (extent, page),
        };
        let Some(index) = self.extents.iter().position(|extent| extent.id.0 == id) else {
            return Ok(None);
        };
        let geometry = self.extents[index].geometry;
        match entry {
            Entry::Freed { .. } if number < geometry.block_count() => {
                self.dirty.free(index, number, &self.extents);
            }
            Entry::Table { change, .. } if number < geometry.table_pages() => {
                let known = self
                    .dirty
                    .tables
                    .get(&(index, number))
                    .map(|data| data.to_vec());
                let old = match known {
                    Some(old) => old,
                    None if change.needs_old() => {
                        let (handle, offset_bytes) = self.extents[index].table_place(number);
                        read(self.engine, handle, offset_bytes, BLOCK_SIZE).await?
                    }
                    None => Vec::new(),
                };
                let entries = self.extents[index].entries_of(number);
                let made = change.make(&old, BLOCK_SIZE as usize);
                let made = made.filter(|made| TablePage::decode(made, entries, true).is_some());
                let Some(made) = made else {
                    return Ok(None);
                };
                self.dirty
                    .tables
                    .insert((index, number), IoBuf::copy_of(&made));
            }
            Entry::Page { change, slot, .. } if number < geometry.page_count() => {
                let len = geometry.page_bytes() as usize;
                let key = (index, number);
                let known = self
                    .dirty
                    .pages()
                    .get(&key)
                    .map(|version| version.bytes().to_vec());
                let old = match known {
                    Some(old) => old,
                    None if change.needs_old() => {
                        let (handle, offset_bytes) = self.extents[index].page_place(number);
                        read(self.engine, handle, offset_bytes, len as u64).await?
                    }
                    None => Vec::new(),
                };
                let Some(made) = change.make(&old, len) else {
                    return Ok(None);
                };
                let version = Version::alone(IoBuf::copy_of(&made), PageSlot(*slot));
                self.dirty.put(key, version);
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Puts in its place what was taken, and says so.
    async fn clear(&mut self) -> Result<(), StoreError> {
        // Not whether something was changed: a frame may have no entries, and its place is used again as well.
        if self.header == self.cleared && self.dirty.is_empty() {
            return Ok(());
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut changes = dirty.changes(&self.extents);
        changes.push(header_change(self.handle, self.header));
        let batch = Batch {
            conditions: Vec::new(),
            changes,
        };
        self.engine.commit(batch, Stability::Stable).await?;
        self.cleared = self.header;
        Ok(())
    }
}

/// Writes the log's header.
pub(crate) fn header_change(handle: Handle, header: LogHeader) -> Change {
    Change::Write {
        handle,
        offset_bytes: 0,
        data: header.encode(),
        meta: 0,
    }
}

fn name(entry: &Entry<'_>) -> String {
    match entry {
        Entry::Freed { extent, block } => format!("block {block} of extent {extent:#x}"),
        Entry::Table { extent, page, .. } => {
            format!("page {page} of the table of extent {extent:#x}")
        }
        Entry::Page { extent, page, .. } => format!("page {page} of extent {extent:#x}"),
    }
}
