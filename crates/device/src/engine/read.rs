//! Reading: look up, read what is mapped in as few device reads as possible, check every block.

use std::ops::{Deref, Range};
use std::rc::Rc;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::checksum::crc32c_combine_block;
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, Slot, VBlock};
use smallvec::SmallVec;

use super::cached::ReadPath;
use super::error::DvolError;
use super::join::{join_all, join_placed};
use super::{Engine, Inner};
use crate::engine::info::Handle;
use crate::planted::{Bug, planted};
use crate::v2p::{Entry, EntryKind, Key, Mapping, Missing};

/// Most bytes that one read can ask for.
pub const READ_MAX_BYTES: u64 = 64 << 20;

/// Blocks read from the device in one operation, at most (1 MiB).
const RUN_MAX_BLOCKS: u64 = 256;

/// Entries that memory is kept for between reads.
const SCRATCH_ENTRIES_MAX: usize = 1024;

/// Lists of checksums that are kept for their memory, each of at most 1 KiB.
const SPARE_CHECKSUMS_MAX: usize = 64;

/// Entries looked up at a time.
const LOOKUP_MAX: usize = 1 << 20;

/// Bytes that were read and whose checksums are right.
#[derive(Debug)]
pub struct Data {
    buf: IoBuf,
    crc: Option<u32>,
    took: DeviceReads,
}

/// What the device was asked for, to read something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceReads {
    /// Operations: one for each run of blocks that lie together. None for what was in the cache.
    pub operations: u32,
    /// Blocks in them.
    pub blocks: u32,
}

impl DeviceReads {
    pub(super) fn run(blocks: usize) -> DeviceReads {
        DeviceReads {
            operations: 1,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        }
    }

    /// Of both.
    pub fn and(self, other: DeviceReads) -> DeviceReads {
        DeviceReads {
            operations: self.operations.saturating_add(other.operations),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }

    /// Of all pieces of a read; map nodes that had to be loaded are not counted.
    pub fn of(pieces: &Pieces) -> DeviceReads {
        let data = pieces.iter().filter_map(|piece| match piece {
            Piece::Data(data) => Some(data.took),
            Piece::Zeros(_) => None,
        });
        data.fold(DeviceReads::default(), DeviceReads::and)
    }
}

impl Data {
    fn checked(buf: IoBuf, checksums: &[BlockChecksum], took: DeviceReads) -> Data {
        let crc = match checksums {
            [one] => one.0,
            many => many
                .iter()
                .fold(0, |crc, &next| crc32c_combine_block(crc, next)),
        };
        Data {
            buf,
            crc: Some(crc),
            took,
        }
    }

    /// CRC32C of them, if it is known without passing over them once more, as it is of whole blocks. It is made of what the map
    /// says: if the memory that the bytes are in is damaged later, it still tells.
    pub fn crc32c(&self) -> Option<u32> {
        self.crc
    }

    /// The buffer that they are in.
    pub fn into_buf(self) -> IoBuf {
        self.buf
    }

    /// This part of them. The CRC of a part is not known.
    pub fn narrow(self, range: Range<usize>) -> Data {
        match range == (0..self.buf.len()) {
            true => self,
            false => Data {
                buf: self.buf.narrow(range),
                crc: None,
                took: self.took,
            },
        }
    }
}

/// Bytes that were checked elsewhere.
impl From<IoBuf> for Data {
    fn from(buf: IoBuf) -> Data {
        Data {
            buf,
            crc: None,
            took: DeviceReads::default(),
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

/// A part of what a read returns.
#[derive(Debug)]
pub enum Piece {
    /// Bytes from the device.
    Data(Data),
    /// This many zeros that take no space.
    Zeros(u64),
}

/// What a read returns, in order and without gaps.
pub type Pieces = SmallVec<[Piece; 4]>;

/// A read, step by step.
pub(super) type Steps = SmallVec<[Step; 4]>;

/// Those of the blocks of a run.
pub(super) type Checksums = SmallVec<[BlockChecksum; 4]>;

/// One step of a read.
pub(super) enum Step {
    Zeros(u64),
    /// It is in the cache: a block, and its checksum.
    Cached(IoBuf, BlockChecksum),
    Run {
        start: BlockNo,
        checksums: Checksums,
    },
    Patched {
        base: Option<Entry>,
        delta: Entry,
    },
}

impl<P: Platform> Engine<P> {
    /// Reads any bytes of a dvol or layer.
    pub async fn read(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Pieces, DvolError> {
        let wish = self.inner.usual_path();
        self.read_on(wish, handle, offset_bytes, len_bytes).await
    }

    /// The same through the cache, if there is one: for what is likely to be read again, by this reader or
    /// by others.
    pub async fn read_through(
        &self,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Pieces, DvolError> {
        let wish = ReadPath::Through;
        self.read_on(wish, handle, offset_bytes, len_bytes).await
    }

    async fn read_on(
        &self,
        wish: ReadPath,
        handle: Handle,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Pieces, DvolError> {
        let inner = &self.inner;
        let size = inner.resolve(handle)?.size_bytes;
        let end = offset_bytes.checked_add(len_bytes).filter(|&e| e <= size);
        let Some(end) = end else {
            return Err(DvolError::OutOfRange);
        };
        if len_bytes > READ_MAX_BYTES {
            return Err(DvolError::Invalid);
        }
        if len_bytes == 0 {
            return Ok(Pieces::new());
        }
        let first = VBlock::containing(offset_bytes);
        let blocks = first..VBlock(end.div_ceil(BLOCK_SIZE));
        let skip = offset_bytes - first.offset_bytes();
        let wanted = skip..skip + len_bytes;
        let pieces = inner.read_bytes(wish, handle.slot, blocks, wanted).await?;
        // While map nodes were being loaded, it may have been deleted and its slot given to another
        // one. What was read then is that one's.
        inner.resolve(handle)?;
        Ok(trim(pieces, skip, len_bytes))
    }
}

impl<P: Platform> Inner<P> {
    /// Reads whole blocks.
    pub(super) async fn read_blocks(
        self: &Rc<Self>,
        wish: ReadPath,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<Pieces, DvolError> {
        let whole = 0..(range.end.0 - range.start.0) * BLOCK_SIZE;
        self.read_bytes(wish, slot, range, whole).await
    }

    /// Reads blocks of which only these bytes are wanted, counted from the first one's start: the others may be
    /// anything.
    async fn read_bytes(
        self: &Rc<Self>,
        wish: ReadPath,
        slot: Slot,
        range: Range<VBlock>,
        wanted: Range<u64>,
    ) -> Result<Pieces, DvolError> {
        loop {
            self.settle_journaled(slot, &range).await?;
            if let Some(pieces) = self.try_read_bytes(wish, slot, &range, &wanted).await? {
                return Ok(pieces);
            }
        }
    }

    /// `None` if the map was no longer right once its nodes were there.
    async fn try_read_bytes(
        self: &Rc<Self>,
        wish: ReadPath,
        slot: Slot,
        range: &Range<VBlock>,
        wanted: &Range<u64>,
    ) -> Result<Option<Pieces>, DvolError> {
        // Entered before the lookup: what it finds is not reused before the read ends.
        let _pass = self.gate.enter();
        self.check_ours()?;
        let path = self.path_of(wish, range.end.0 - range.start.0);
        let mut steps = self.plan_read(slot, range.clone()).await?;
        if !self.is_map_right(slot, range) {
            return Ok(None);
        }
        only_wanted(&mut steps, wanted);
        let steps = self.take_cached(steps, path);
        if steps.len() == 1 {
            let mut pieces = Pieces::new();
            for step in steps {
                pieces.push(self.take_step(slot, step, path).await?);
            }
            return Ok(Some(pieces));
        }
        let each = steps
            .into_iter()
            .map(|step| self.clone().take_step_alone(slot, step, path));
        let all = join_placed(&self.read_steps, each).await;
        let all: Result<Pieces, DvolError> = all.into_iter().collect();
        all.map(Some)
    }

    async fn plan_read(&self, slot: Slot, range: Range<VBlock>) -> Result<Steps, DvolError> {
        if range.end.0 - range.start.0 == 1
            && let Some(found) = self.state.borrow().slot(slot)
            && let Ok(mapping) = found.map.get(range.start)
        {
            return Ok(plan_one(&mapping));
        }
        let mut makes_room = true;
        loop {
            let missing = match self.try_plan(slot, range.clone())? {
                Ok(steps) => return Ok(steps),
                Err(missing) => missing,
            };
            // As for a change: else maps would take more and more as long as there are reads alone.
            if std::mem::take(&mut makes_room) {
                self.evict_nodes();
            }
            let ahead = {
                let state = self.state.borrow();
                state
                    .slot(slot)
                    .map(|s| s.map.missing_many(range.clone(), 32))
            };
            match ahead {
                Some(ahead) if ahead.len() > 1 => {
                    let loads = join_all(ahead.iter().map(|m| self.load_node(m))).await;
                    loads.into_iter().collect::<Result<(), _>>()?;
                }
                _ => self.load_node(&missing).await?,
            }
        }
    }

    /// The steps, if every map node that says them is in memory.
    fn try_plan(
        &self,
        slot: Slot,
        range: Range<VBlock>,
    ) -> Result<Result<Steps, Missing>, DvolError> {
        let state = self.state.borrow();
        let Some(found) = state.slot(slot) else {
            return Err(DvolError::NotFound);
        };
        let mut entries = self.scratch_entries.borrow_mut();
        entries.clear();
        let looked_up = found.map.lookup(range.clone(), LOOKUP_MAX, &mut entries);
        let spare = &mut self.spare_checksums.borrow_mut();
        let steps = looked_up.map(|()| plan(&entries, range, spare));
        // One large read leaves nothing.
        entries.truncate(SCRATCH_ENTRIES_MAX);
        entries.shrink_to(SCRATCH_ENTRIES_MAX);
        Ok(steps)
    }

    /// Keeps a list for its memory.
    fn keep_checksums(&self, mut checksums: Checksums) {
        let mut spare = self.spare_checksums.borrow_mut();
        if checksums.spilled() && spare.len() < SPARE_CHECKSUMS_MAX {
            checksums.clear();
            spare.push(checksums);
        }
    }

    async fn take_step_alone(
        self: Rc<Self>,
        slot: Slot,
        step: Step,
        path: ReadPath,
    ) -> Result<Piece, DvolError> {
        self.take_step(slot, step, path).await
    }

    async fn take_step(&self, slot: Slot, step: Step, path: ReadPath) -> Result<Piece, DvolError> {
        match step {
            Step::Zeros(len) => Ok(Piece::Zeros(len)),
            Step::Cached(page, checksum) => {
                let took = DeviceReads::default();
                Ok(Piece::Data(Data::checked(page, &[checksum], took)))
            }
            Step::Run { start, checksums } => {
                let read = self.read_kept(slot, start, &checksums, path).await?;
                let took = DeviceReads::run(checksums.len());
                let data = Data::checked(read, &checksums, took);
                self.keep_checksums(checksums);
                Ok(Piece::Data(data))
            }
            Step::Patched { base, delta } => {
                let (buf, took) = self.read_patched(slot, base, delta, path).await?;
                Ok(Piece::Data(Data {
                    buf,
                    crc: None,
                    took,
                }))
            }
        }
    }

    /// Reads consecutive blocks, which the map of a slot has, and checks each. What does not match is read once more, in case it
    /// was damaged on the way.
    pub(super) async fn read_checked(
        &self,
        slot: Slot,
        start: BlockNo,
        checksums: &[BlockChecksum],
    ) -> Result<IoBuf, DvolError> {
        let len_bytes = checksums.len() * BLOCK_SIZE as usize;
        let mut buf = self.platform.buffers().take(len_bytes);
        for attempt in 0..2 {
            let (back, result) = self.device.read(start.offset_bytes(), buf).await;
            buf = back;
            if planted(Bug::CachedUnchecked) && result.is_ok() {
                self.keep_cached(start, checksums, &buf);
            }
            let wrong = match result {
                Ok(()) => first_wrong(&buf, checksums),
                Err(_) if attempt == 0 => continue,
                Err(error) => {
                    let (volume, snapshot) = self.names_of(slot);
                    tracing::warn!(
                        volume,
                        snapshot,
                        block = start.0,
                        "a read of the device failed: {error}"
                    );
                    self.counters
                        .read_errors
                        .set(self.counters.read_errors.get() + 1);
                    return Err(DvolError::Device);
                }
            };
            match wrong {
                None => return Ok(buf),
                Some(_) if attempt == 0 => {}
                Some(index) => {
                    self.counters
                        .corrupt_blocks
                        .set(self.counters.corrupt_blocks.get() + 1);
                    let (volume, snapshot) = self.names_of(slot);
                    tracing::warn!(
                        volume,
                        snapshot,
                        block = start.0 + index as u64,
                        expected = ?checksums[index],
                        "stored bytes do not match their checksum"
                    );
                    // What was read well once is not served any more: readers are told, too.
                    self.forget_cached(&[BlockNo(start.0 + index as u64)]);
                }
            }
        }
        Err(DvolError::Corrupt)
    }

    /// The names of what a slot has, for the log: of a dvol, and of the snapshot if it is one. None of what is gone.
    #[cold]
    fn names_of(&self, slot: Slot) -> (Option<String>, Option<String>) {
        let state = self.state.borrow();
        let Some(found) = state.slot(slot) else {
            return (None, None);
        };
        let record = &found.record;
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        if found.is_dvol() {
            return (named(&record.name), None);
        }
        let mut dvols = state.slots().filter(|(_, other)| other.is_dvol());
        let dvol = dvols.find(|(_, other)| other.record.id == record.id);
        let dvol = dvol.and_then(|(_, dvol)| named(&dvol.record.name));
        (dvol, named(&record.name))
    }

    /// A block with a part of it replaced.
    async fn read_patched(
        &self,
        slot: Slot,
        base: Option<Entry>,
        delta: Entry,
        path: ReadPath,
    ) -> Result<(IoBuf, DeviceReads), DvolError> {
        let (patch, mut took) = self.read_entry(slot, &delta, path).await?;
        let base = match base {
            Some(base) => {
                let (base, more) = self.read_entry(slot, &base, path).await?;
                took = took.and(more);
                Some(base)
            }
            None => None,
        };
        let mut whole = match base {
            Some(base) if base.is_unshared() => base,
            base => {
                let mut whole = self.platform.buffers().take(BLOCK_SIZE as usize);
                match base {
                    Some(base) => whole.bytes_mut().copy_from_slice(&base),
                    None => whole.bytes_mut().fill(0),
                }
                whole
            }
        };
        let bytes = whole.bytes_mut();
        let changed = delta.changed();
        if planted(Bug::HolesTaken) {
            let all = changed.range();
            bytes[all.clone()].copy_from_slice(&patch[all]);
            return Ok((whole, took));
        }
        for piece in changed.pieces() {
            bytes[piece.clone()].copy_from_slice(&patch[piece]);
        }
        Ok((whole, took))
    }
}

fn first_wrong(bytes: &[u8], checksums: &[BlockChecksum]) -> Option<usize> {
    if planted(Bug::ChecksumIgnored) {
        return None;
    }
    let blocks = bytes.chunks_exact(BLOCK_SIZE as usize);
    blocks
        .zip(checksums)
        .position(|(block, &expected)| BlockChecksum::of(block) != expected)
}

/// The one step that reads one block.
fn plan_one(mapping: &Mapping) -> Steps {
    let mut steps = SmallVec::new();
    match (mapping.data().copied(), mapping.delta) {
        (base, Some(delta)) => steps.push(Step::Patched { base, delta }),
        (Some(data), None) => steps.push(run_of(data.block, data.checksum)),
        (None, None) => push_zeros(&mut steps, 1),
    }
    steps
}

/// Turns what a lookup found into steps that cover the range without gaps.
fn plan(entries: &[Entry], range: Range<VBlock>, spare: &mut Vec<Checksums>) -> Steps {
    let mut steps = Steps::new();
    let mut at = range.start.0;
    let mut index = 0;
    while index < entries.len() {
        let entry = entries[index];
        index += 1;
        let vblock = entry.key.vblock().0;
        if entry.kind == EntryKind::Tombstone || vblock < at || vblock >= range.end.0 {
            continue;
        }
        if vblock > at {
            push_zeros(&mut steps, vblock - at);
        }
        at = vblock + 1;
        let delta = match entry.kind {
            EntryKind::Delta => Some((None, entry)),
            _ => match entries.get(index) {
                Some(next) if next.key == Key::delta(VBlock(vblock)) => {
                    index += 1;
                    Some((Some(entry), *next))
                }
                _ => None,
            },
        };
        match delta {
            Some((base, delta)) => steps.push(Step::Patched { base, delta }),
            None => push_block(&mut steps, entry.block, entry.checksum, spare),
        }
    }
    if at < range.end.0 {
        push_zeros(&mut steps, range.end.0 - at);
    }
    steps
}

/// Of one block with a delta, leaves out what has none of the wanted bytes: a small read then takes one block of
/// the device, not two.
fn only_wanted(steps: &mut Steps, wanted: &Range<u64>) {
    let [Step::Patched { base, delta }] = &steps[..] else {
        return;
    };
    let changed = delta.changed();
    let wanted = wanted.start as usize..wanted.end as usize;
    let from = if changed.covers(&wanted) {
        Some(*delta)
    } else if !changed.touches(&wanted) {
        *base
    } else {
        return;
    };
    steps.clear();
    match from {
        Some(entry) => steps.push(run_of(entry.block, entry.checksum)),
        None => push_zeros(steps, 1),
    }
}

fn push_zeros(steps: &mut Steps, blocks: u64) {
    match steps.last_mut() {
        Some(Step::Zeros(len)) => *len += blocks * BLOCK_SIZE,
        _ => steps.push(Step::Zeros(blocks * BLOCK_SIZE)),
    }
}

fn push_block(
    steps: &mut Steps,
    block: BlockNo,
    checksum: BlockChecksum,
    spare: &mut Vec<Checksums>,
) {
    if let Some(Step::Run { start, checksums }) = steps.last_mut() {
        let len = checksums.len() as u64;
        if start.0 + len == block.0 && len < RUN_MAX_BLOCKS {
            if checksums.len() == checksums.inline_size()
                && let Some(mut list) = spare.pop()
            {
                list.extend_from_slice(checksums);
                *checksums = list;
            }
            checksums.push(checksum);
            return;
        }
    }
    steps.push(run_of(block, checksum));
}

/// A run of one block.
fn run_of(block: BlockNo, checksum: BlockChecksum) -> Step {
    Step::Run {
        start: block,
        checksums: SmallVec::from_slice(&[checksum]),
    }
}

/// Cuts pieces that begin `skip` bytes early to `len` bytes.
fn trim(pieces: Pieces, skip: u64, len: u64) -> Pieces {
    let (mut skip, mut left) = (skip, len);
    let mut out = Pieces::new();
    for piece in pieces {
        let piece_len = match &piece {
            Piece::Data(buf) => buf.len() as u64,
            Piece::Zeros(len) => *len,
        };
        let from = skip.min(piece_len);
        let to = piece_len.min(from.saturating_add(left));
        skip -= from;
        left -= to - from;
        if from == to {
            continue;
        }
        out.push(match piece {
            Piece::Data(data) => Piece::Data(data.narrow(from as usize..to as usize)),
            Piece::Zeros(_) => Piece::Zeros(to - from),
        });
    }
    out
}

/// What was read, in one piece of so many bytes.
pub fn gathered(pieces: &Pieces, len_bytes: u64) -> Vec<u8> {
    let len = |bytes: u64| usize::try_from(bytes).unwrap_or_default();
    let mut bytes = Vec::with_capacity(len(len_bytes));
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeros(zeros) => bytes.resize(bytes.len() + len(*zeros), 0),
        }
    }
    bytes
}

/// Copies pieces into one unshared buffer.
pub(super) fn gather<P: Platform>(inner: &Rc<Inner<P>>, pieces: &Pieces, len: usize) -> IoBuf {
    let mut buf = inner.platform.buffers().take(len);
    let bytes = buf.bytes_mut();
    let mut at = 0;
    for piece in pieces {
        match piece {
            Piece::Data(data) => {
                bytes[at..at + data.len()].copy_from_slice(data);
                at += data.len();
            }
            Piece::Zeros(len) => {
                bytes[at..at + *len as usize].fill(0);
                at += *len as usize;
            }
        }
    }
    buf
}
