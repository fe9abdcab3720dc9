//! One owned segment: what is in use in it, and what must not be handed out.
//!
//! The rules are those of the [`Pool`](super::Pool), which alone changes segments and keeps the sums
//! over all of them.

use flagstone_types::{BlockNo, SegmentNo};

use super::Bitmap;
use super::pool::BlockRun;
use crate::format::segment::SegmentRecord;

/// The shortest long run.
pub(super) const LONG_RUN_BLOCKS: usize = 64;

/// One owned segment.
pub struct SegmentState {
    /// As the last checkpoint left it (and, for `used_blocks`, as of now).
    pub record: SegmentRecord,
    /// Changed since the last checkpoint.
    pub dirty: bool,
    pub(super) maps: Option<Maps>,
    pub(super) late: Vec<Late>,
    /// Allocatable block indices: first and end.
    pub(super) range: (usize, usize),
    /// Its bitmap is damaged: what was in use when that was found counts as used until it is freed.
    pub(super) lost: bool,
    /// Its bitmap could not be read the last time; others are tried first.
    pub(super) unreadable: bool,
}

pub(super) struct Maps {
    pub(super) used: Bitmap,
    pub(super) taken: Bitmap,
    /// Blocks in `range` whose `taken` bit is clear.
    pub(super) open_blocks: u32,
    /// Where the search for open blocks goes on.
    pub(super) cursor: usize,
    /// Where the search for long runs goes on.
    pub(super) long_cursor: usize,
    /// Long runs are looked for if at least this many blocks are open.
    pub(super) long_above: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Late {
    Commit(usize),
    Release(usize),
    Reopen(usize),
}

impl SegmentState {
    /// Blocks that can be handed out when nothing is in use.
    pub fn capacity(&self) -> u64 {
        (self.range.1 - self.range.0) as u64
    }

    /// Blocks not in use, if the bitmap is yet to be loaded and can be.
    pub(super) fn unloaded_free(&self) -> u64 {
        match self.can_be_loaded() {
            true => self
                .capacity()
                .saturating_sub(u64::from(self.record.used_blocks)),
            false => 0,
        }
    }

    pub(super) fn can_be_loaded(&self) -> bool {
        self.maps.is_none() && !self.unreadable
    }

    pub(super) fn open_blocks(&self) -> u64 {
        self.maps.as_ref().map_or(0, |m| u64::from(m.open_blocks))
    }

    /// True if the bitmap was found damaged.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// True if the bitmap is in memory.
    pub fn is_loaded(&self) -> bool {
        self.maps.is_some()
    }

    /// True if nothing is used, handed out, or waiting to be reopened.
    pub fn is_untouched(&self) -> bool {
        match &self.maps {
            Some(_) => self.open_blocks() == self.capacity(),
            // To be handed out a block must be loaded first.
            None => self.record.used_blocks == 0 && self.late.is_empty(),
        }
    }

    /// The bitmap of used blocks, if loaded.
    pub fn used(&self) -> Option<&Bitmap> {
        self.maps.as_ref().map(|maps| &maps.used)
    }
}

impl Maps {
    pub(super) fn new(used: Bitmap, range: (usize, usize)) -> Maps {
        let taken = used.clone();
        let open_blocks = (range.1 - range.0) as u32 - used.count_in(range);
        Maps {
            used,
            taken,
            open_blocks,
            cursor: range.0,
            long_cursor: range.0,
            long_above: LONG_RUN_BLOCKS as u32,
        }
    }

    /// Takes up to `max` blocks of the run of open blocks at `long_cursor`.
    pub(super) fn take_long(
        &mut self,
        max: u64,
        range: (usize, usize),
        segment: SegmentNo,
        out: &mut Vec<BlockRun>,
    ) -> u64 {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let found = self.taken.find_clear_run(self.long_cursor, range.1, max);
        let Some((start, len)) = found else { return 0 };
        self.take_run(start, len, segment, out);
        self.long_cursor = start + len;
        len as u64
    }

    /// Takes open blocks.
    fn take_run(&mut self, start: usize, len: usize, segment: SegmentNo, out: &mut Vec<BlockRun>) {
        for index in start..start + len {
            self.taken.set(index);
        }
        self.open_blocks -= len as u32;
        let start = BlockNo(segment.first_block().0 + start as u64);
        match out.last_mut() {
            Some(last) if last.start.0 + last.count == start.0 => last.count += len as u64,
            _ => out.push(BlockRun {
                start,
                count: len as u64,
            }),
        }
    }

    /// Takes up to `count` blocks from the cursor on; fewer where the segment ends.
    pub(super) fn take(
        &mut self,
        count: u64,
        range: (usize, usize),
        segment: SegmentNo,
        out: &mut Vec<BlockRun>,
    ) -> u64 {
        let mut left = count;
        while left > 0 && self.open_blocks > 0 {
            let max = usize::try_from(left).unwrap_or(usize::MAX);
            let Some((start, len)) = self.taken.find_clear_run(self.cursor, range.1, max) else {
                break;
            };
            self.take_run(start, len, segment, out);
            self.cursor = start + len;
            left -= len as u64;
        }
        count - left
    }

    /// Makes a change. By how much the number of open blocks changes; `None` if it does not fit.
    pub(super) fn change(&mut self, change: Late) -> Option<i64> {
        match change {
            Late::Commit(index) => {
                if self.used.set(index) {
                    return None;
                }
                // In a replay the block was never handed out.
                let was_open = !self.taken.set(index);
                self.open_blocks -= u32::from(was_open);
                Some(-i64::from(was_open))
            }
            Late::Release(index) => self.used.clear(index).then_some(0),
            Late::Reopen(index) => {
                if self.used.get(index) {
                    return None;
                }
                let was_taken = self.taken.clear(index);
                self.open_blocks += u32::from(was_taken);
                Some(i64::from(was_taken))
            }
        }
    }
}
