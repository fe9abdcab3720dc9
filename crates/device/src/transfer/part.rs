//! A part of a dvol on its way: what is read of one engine, and written into another.
//!
//! A part is bounded in bytes and in work, so neither a large dvol nor a slow target is a burden to the origin's core.

use std::future::Future;
use std::ops::Range;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, Lsn};

use crate::engine::{DeviceReads, DvolError, Engine, Handle, Stability, gathered, join_few};

/// Bytes of data in a part of a move, at most.
pub const PART_BYTES: u64 = 1 << 20;

/// What a part of a move may have. In the worst case each run is one block.
const MOVED: Most = Most {
    bytes: PART_BYTES,
    runs: 512,
    read_bytes: RANGE_BYTES,
};

/// Ranges of a part that are read, or written, at the same time, at most. Blocks that lie anywhere would take a device's latency each, and the last round of a move is
/// one that clients wait for; more would be in the way of those who use the device.
pub const TOGETHER_MAX: usize = 32;

/// Bytes of one range, at most: of what is read at once. Whoever writes there waits while it is read with its metadata.
pub const RANGE_BYTES: u64 = 256 << 10;

/// How a dvol is read in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Bytes of data in a part, at most: a block to [`PART_BYTES`].
    pub bytes: u64,
    /// Bytes of a range, at most: a block to [`RANGE_BYTES`]. What lies together in the dvol may lie anywhere on the device, and then a range is as many
    /// operations as it has blocks, all at once.
    pub range_bytes: u64,
    /// Ranges that are read at the same time: 1 to [`TOGETHER_MAX`].
    pub together: usize,
}

impl Parts {
    /// As quickly as can be.
    pub const QUICK: Parts = Parts {
        bytes: PART_BYTES,
        range_bytes: RANGE_BYTES,
        together: TOGETHER_MAX,
    };
}

/// Extents that are asked for at once.
const EXTENTS_MAX: usize = 2048;

/// How often a part asks what is allocated or changed, at most: where a dvol has much that is neither, the core has other
/// things to do as well.
const QUERIES_MAX: usize = 64;

/// What of a dvol or layer is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// What is allocated, into an empty dvol.
    Allocated,
    /// What is allocated, and where nothing is: into one that may have anything there.
    Everything,
    /// What was written or deallocated behind this LSN, into one that has the state of then.
    ChangedSince(Lsn),
}

/// Bytes in one state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Run {
    /// What is stored, with the same metadata in each block.
    Data {
        /// Where in the dvol.
        offset_bytes: u64,
        /// The tenant's metadata of each block.
        meta: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Nothing is stored there.
    Zeros {
        /// Where in the dvol.
        offset_bytes: u64,
        /// How many bytes.
        len_bytes: u64,
    },
}

impl Run {
    /// Bytes of data in it: none of zeros.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Run::Data { bytes, .. } => bytes.len() as u64,
            Run::Zeros { .. } => 0,
        }
    }
}

/// A part of a dvol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// In the order of offsets.
    pub runs: Vec<Run>,
    /// Where the next part begins; `None` behind the last one.
    pub next_bytes: Option<u64>,
    /// What the device was asked for to read it.
    pub took: DeviceReads,
    /// Ranges of data in which it was read.
    pub ranges: u32,
}

impl Part {
    /// Bytes of data in it.
    pub fn data_bytes(&self) -> u64 {
        self.runs.iter().map(Run::data_bytes).sum()
    }

    /// Adds a run behind the last one; to that, if it goes on there with the same metadata.
    fn push(&mut self, run: Run) {
        let Some(Run::Data {
            offset_bytes,
            meta,
            bytes,
        }) = self.runs.last_mut()
        else {
            self.runs.push(run);
            return;
        };
        match run {
            Run::Data {
                offset_bytes: next,
                meta: its,
                bytes: more,
            } if next == *offset_bytes + bytes.len() as u64
                && its == *meta
                && (bytes.len() + more.len()) as u64 <= RANGE_BYTES =>
            {
                bytes.extend_from_slice(&more);
            }
            run => self.runs.push(run),
        }
    }
}

/// When ranges may be read: each waits for a turn of its own.
pub trait ReadTurns {
    /// What is held while a range is read.
    type Turn;

    /// Waits until a range of so many bytes may be read.
    fn turn(&self, len_bytes: u64) -> impl Future<Output = Self::Turn>;

    /// It was, and the device was asked for this.
    fn took(&self, turn: Self::Turn, took: DeviceReads);
}

/// At any time.
#[derive(Clone, Copy, Debug)]
pub struct AnyTime;

impl ReadTurns for AnyTime {
    type Turn = ();

    async fn turn(&self, _: u64) {}

    fn took(&self, (): (), _: DeviceReads) {}
}

/// The first part of these bytes of a dvol or layer, as far as it has as many. `HistoryForgotten` if it isn't known what changed.
pub async fn part_of<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    what: What,
    within: Range<u64>,
    parts: Parts,
    turns: &impl ReadTurns,
) -> Result<Part, DvolError> {
    let most = Most {
        bytes: parts.bytes.clamp(BLOCK_SIZE, PART_BYTES),
        read_bytes: parts.range_bytes.clamp(BLOCK_SIZE, RANGE_BYTES),
        ..MOVED
    };
    let plan = plan_within(engine, handle, what, within, most).await?;
    let data = plan.ranges.iter().filter(|range| range.is_data).count();
    let mut part = Part {
        next_bytes: plan.next_bytes,
        ranges: u32::try_from(data).unwrap_or(u32::MAX),
        ..Part::default()
    };
    let together = parts.together.min(TOGETHER_MAX);
    let reads = plan.ranges.into_iter();
    let reads = reads.map(|range| async move {
        if !range.is_data {
            return read_range(engine, handle, range).await;
        }
        let turn = turns.turn(range.len_bytes).await;
        let read = read_range(engine, handle, range).await;
        if let Ok((_, took)) = &read {
            turns.took(turn, *took);
        }
        read
    });
    for read in join_few(together, reads).await {
        let (runs, took) = read?;
        part.took = part.took.and(took);
        for run in runs {
            part.push(run);
        }
    }
    Ok(part)
}

/// What a part may have at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Bytes of data.
    pub bytes: u64,
    /// Ranges, of data and of zeros.
    pub runs: usize,
    /// Bytes of one range of data: of what is read at once.
    pub read_bytes: u64,
}

/// A range that a part is going to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedRange {
    /// Where in the dvol.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
    /// False: nothing is stored there.
    pub is_data: bool,
}

/// What a part is going to have, in the order of offsets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartPlan {
    /// Data, and where it was asked for what isn't.
    pub ranges: Vec<PlannedRange>,
    /// Where the next part begins; `None` behind the last one.
    pub next_bytes: Option<u64>,
}

/// What the part of a dvol or layer that begins at `from_bytes` is going to have. Reads maps, no data.
/// `HistoryForgotten` if it isn't known what changed.
pub async fn plan_of<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    what: What,
    from_bytes: u64,
    most: Most,
) -> Result<PartPlan, DvolError> {
    plan_within(engine, handle, what, from_bytes..u64::MAX, most).await
}

/// The same of these bytes, as far as there are as many.
async fn plan_within<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    what: What,
    within: Range<u64>,
    most: Most,
) -> Result<PartPlan, DvolError> {
    let end = within.end.min(engine.size_of(handle)?);
    let mut plan = Plan {
        most,
        ranges: Vec::new(),
        data_bytes: 0,
    };
    let mut at = within.start;
    for _ in 0..QUERIES_MAX {
        if at >= end || plan.is_full() {
            break;
        }
        at = match what {
            What::Allocated => plan.add(engine, handle, at, end, false).await?,
            What::Everything => plan.add(engine, handle, at, end, true).await?,
            What::ChangedSince(lsn) => plan.add_changed(engine, handle, lsn, at, end).await?,
        };
    }
    Ok(PartPlan {
        ranges: plan.ranges,
        next_bytes: (at < end).then_some(at),
    })
}

/// Writes runs into a dvol, none of which overlap, up to [`TOGETHER_MAX`] at the same time: durable with the next flush. If one fails others may have been written.
pub async fn take_runs<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    runs: Vec<Run>,
) -> Result<(), DvolError> {
    let takes = runs.into_iter().map(|run| take_run(engine, handle, run));
    let taken = join_few(TOGETHER_MAX, takes).await;
    taken.into_iter().collect()
}

async fn take_run<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    run: Run,
) -> Result<(), DvolError> {
    match run {
        Run::Data {
            offset_bytes,
            meta,
            bytes,
        } => {
            let data = IoBuf::copy_of(&bytes);
            drop(bytes);
            let written = engine.write_ex(handle, offset_bytes, data, meta, Stability::Unstable);
            written.await.map(drop)
        }
        Run::Zeros {
            offset_bytes,
            len_bytes,
        } => {
            let gone = engine.deallocate(handle, offset_bytes, len_bytes, Stability::Unstable);
            gone.await.map(drop)
        }
    }
}

/// Where a dvol was written or deallocated behind an LSN, in the order of offsets. `HistoryForgotten` if that isn't known.
pub(super) async fn changed_behind<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    since: Lsn,
) -> Result<Vec<Range<u64>>, DvolError> {
    let size_bytes = engine.size_of(handle)?;
    let mut changed: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let extents = engine
            .changed_since(handle, since, at, size_bytes - at, EXTENTS_MAX)
            .await?;
        for extent in extents {
            let end = at + extent.len_bytes;
            match changed.last_mut() {
                _ if !extent.changed => {}
                Some(last) if last.end == at => last.end = end,
                _ => changed.push(at..end),
            }
            at = end;
        }
    }
    Ok(changed)
}

/// A plan as it is being made.
struct Plan {
    most: Most,
    ranges: Vec<PlannedRange>,
    data_bytes: u64,
}

impl Plan {
    fn is_full(&self) -> bool {
        self.data_bytes >= self.most.bytes || self.ranges.len() >= self.most.runs
    }

    fn push(&mut self, offset_bytes: u64, len_bytes: u64, is_data: bool) {
        self.ranges.push(PlannedRange {
            offset_bytes,
            len_bytes,
            is_data,
        });
    }

    /// Adds data, as much as there is room for. Returns where it ends.
    fn add_data(&mut self, mut at: u64, end: u64) -> u64 {
        while at < end && !self.is_full() {
            let room = self.most.bytes - self.data_bytes;
            // Whole blocks, so that each is read once.
            let len = (end - at)
                .min(self.most.read_bytes - at % BLOCK_SIZE)
                .min(room.next_multiple_of(BLOCK_SIZE));
            self.push(at, len, true);
            self.data_bytes += len;
            at += len;
        }
        at
    }

    /// Adds what is allocated from `at` on, and if asked what isn't. Returns how far that goes.
    async fn add<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        handle: Handle,
        mut at: u64,
        end: u64,
        with_holes: bool,
    ) -> Result<u64, DvolError> {
        let extents = engine.allocation(handle, at, end - at, EXTENTS_MAX).await?;
        for extent in extents {
            if self.is_full() {
                break;
            }
            let extent_end = at + extent.len_bytes;
            if extent.allocated {
                at = self.add_data(at, extent_end);
                if at < extent_end {
                    break;
                }
                continue;
            }
            if with_holes {
                self.push(at, extent.len_bytes, false);
            }
            at = extent_end;
        }
        Ok(at)
    }

    /// Adds what changed from `at` on: data, and what was deallocated. Returns how far that goes.
    async fn add_changed<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        handle: Handle,
        since: Lsn,
        mut at: u64,
        end: u64,
    ) -> Result<u64, DvolError> {
        let extents = engine
            .changed_since(handle, since, at, end - at, EXTENTS_MAX)
            .await?;
        for extent in extents {
            let extent_end = at + extent.len_bytes;
            if !extent.changed {
                at = extent_end;
                continue;
            }
            while at < extent_end && !self.is_full() {
                at = self.add(engine, handle, at, extent_end, true).await?;
            }
            if at < extent_end {
                break;
            }
        }
        Ok(at)
    }
}

/// What a range has: data as runs of blocks with the same metadata. What was deallocated since it was planned is zeros.
async fn read_range<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    range: PlannedRange,
) -> Result<(Vec<Run>, DeviceReads), DvolError> {
    let (offset_bytes, len_bytes) = (range.offset_bytes, range.len_bytes);
    if !range.is_data {
        let zeros = Run::Zeros {
            offset_bytes,
            len_bytes,
        };
        return Ok((vec![zeros], DeviceReads::default()));
    }
    let mut runs = Vec::new();
    let (pieces, metas) = engine.read_ex(handle, offset_bytes, len_bytes).await?;
    let took = DeviceReads::of(&pieces);
    let bytes = gathered(&pieces, len_bytes);
    let mut at = 0;
    let mut blocks = metas.iter().peekable();
    while let Some(first) = blocks.next() {
        let mut end = at + part_of_block(offset_bytes + at as u64);
        while blocks.next_if(|next| next.meta == first.meta).is_some() {
            end += BLOCK_SIZE as usize;
        }
        let end = end.min(bytes.len());
        runs.push(Run::Data {
            offset_bytes: offset_bytes + at as u64,
            meta: first.meta,
            bytes: bytes[at..end].to_vec(),
        });
        at = end;
    }
    Ok((runs, took))
}

/// Bytes from here to the end of the block.
fn part_of_block(offset_bytes: u64) -> usize {
    (BLOCK_SIZE - offset_bytes % BLOCK_SIZE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(at: u64, blocks: u64, meta: u64) -> Run {
        Run::Data {
            offset_bytes: at * BLOCK_SIZE,
            meta,
            bytes: (0..blocks * BLOCK_SIZE)
                .map(|byte| (byte / 7 + at) as u8)
                .collect(),
        }
    }

    /// The target writes each run by itself.
    #[test]
    fn what_was_read_in_pieces_is_one_run_where_it_is_one() {
        let mut part = Part::default();
        let zeros = Run::Zeros {
            offset_bytes: 9 * BLOCK_SIZE,
            len_bytes: BLOCK_SIZE,
        };
        let bytes = |run: &Run| match run {
            Run::Data { bytes, .. } => bytes.clone(),
            Run::Zeros { .. } => Vec::new(),
        };
        let pieces = [
            data(1, 2, 5),
            data(3, 1, 5),
            // Other metadata, and then a gap.
            data(4, 1, 6),
            data(6, 3, 6),
            zeros.clone(),
            data(10, 1, 6),
        ];
        for piece in pieces.clone() {
            part.push(piece);
        }
        let first = Run::Data {
            offset_bytes: BLOCK_SIZE,
            meta: 5,
            bytes: [bytes(&pieces[0]), bytes(&pieces[1])].concat(),
        };
        let [_, _, others @ ..] = pieces;
        assert_eq!(part.runs, [&[first], &others[..]].concat());
    }

    #[test]
    fn no_run_becomes_larger_than_a_range_may_be() {
        let mut part = Part::default();
        let most = RANGE_BYTES / BLOCK_SIZE;
        for at in 0..=most {
            part.push(data(at, 1, 0));
        }
        let sizes: Vec<u64> = part.runs.iter().map(Run::data_bytes).collect();
        assert_eq!(sizes, [RANGE_BYTES, BLOCK_SIZE]);
    }
}
