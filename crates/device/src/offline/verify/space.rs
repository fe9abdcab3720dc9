//! Checking that the bitmaps say exactly what is in use.

use std::collections::BTreeMap;

use flagstone_types::unit::SEGMENT_BLOCKS;
use flagstone_types::{BlockChecksum, BlockNo, SegmentNo};

use super::problem::{Findings, Kind, Severity};
use crate::format::segment::{NO_BITMAP, SegmentRecord};
use crate::offline::claims::Claims;
use crate::offline::{Fault, Image, ReadBlocks};
use crate::space::Bitmap;

/// Runs of blocks that a message names.
const RUNS_NAMED_MAX: usize = 8;

/// The current bitmap of a segment, checked against its record.
pub(super) fn read_bitmap<R: ReadBlocks>(
    image: &Image<R>,
    segment: SegmentNo,
    record: &SegmentRecord,
) -> Result<Bitmap, Fault> {
    let slots = image.geometry.bitmap_slots(segment);
    if record.bitmap_slot == NO_BITMAP {
        return match record.used_blocks {
            0 => Ok(Bitmap::default()),
            used => Err(Fault::new(
                slots[0],
                format!(
                    "segment {}: {used} blocks are in use, but it has no bitmap",
                    segment.0
                ),
            )),
        };
    }
    let block = slots[usize::from(record.bitmap_slot & 1)];
    let bytes = image.read(block)?;
    let found = BlockChecksum::of(&bytes[..]);
    if found != record.bitmap_checksum {
        return Err(Fault::new(
            block,
            format!(
                "the bitmap of segment {} should have the checksum {:?} but has {found:?}",
                segment.0, record.bitmap_checksum
            ),
        ));
    }
    let bitmap = Bitmap::from_bytes(&bytes[..]);
    if bitmap.count() != record.used_blocks {
        return Err(Fault::new(
            block,
            format!(
                "the bitmap of segment {} has {} bits set, but its record says {}",
                segment.0,
                bitmap.count(),
                record.used_blocks
            ),
        ));
    }
    Ok(bitmap)
}

/// Compares the bitmaps of a journal's segments with what is really in use.
pub(super) struct SpaceCheck<'a> {
    /// Bitmaps that could be read, by segment.
    pub(super) bitmaps: &'a BTreeMap<SegmentNo, Bitmap>,
    /// Segments whose bitmaps could not be read: nothing can be said about them.
    pub(super) unknown: &'a [SegmentNo],
    /// What is in use.
    pub(super) claims: &'a Claims,
    /// Every map could be read, so what is not claimed is not in use.
    pub(super) is_complete: bool,
    /// When the state is one that replay has made in memory: said in messages.
    pub(super) after: &'static str,
    pub(super) findings: &'a mut Findings,
}

impl SpaceCheck<'_> {
    pub(super) fn run(&mut self) {
        let empty = Bitmap::default();
        let bitmaps = self.bitmaps;
        for (&segment, bitmap) in bitmaps {
            let claimed = self.claims.segment(segment).unwrap_or(&empty);
            if bitmap != claimed {
                self.compare(segment, bitmap, claimed);
            }
        }
        for (segment, claimed) in self.claims.segments() {
            if self.bitmaps.contains_key(&segment) || self.unknown.contains(&segment) {
                continue;
            }
            let runs = runs(segment, |index| claimed.get(index));
            let what = format!(
                "{} in segment {} in use{}, but the segment doesn't belong to the journal that \
                 uses {}",
                words(&runs),
                segment.0,
                self.after,
                if claimed.count() == 1 { "it" } else { "them" }
            );
            self.findings
                .add(Severity::Loss, Kind::Unmarked, &firsts(&runs), what);
        }
    }

    fn compare(&mut self, segment: SegmentNo, bitmap: &Bitmap, claimed: &Bitmap) {
        let unmarked = runs(segment, |index| claimed.get(index) && !bitmap.get(index));
        if !unmarked.is_empty() {
            let what = format!(
                "{} in use{}, but the bitmap of segment {} says free",
                words(&unmarked),
                self.after,
                segment.0
            );
            self.findings
                .add(Severity::Loss, Kind::Unmarked, &firsts(&unmarked), what);
        }
        let leaked = runs(segment, |index| bitmap.get(index) && !claimed.get(index));
        if !leaked.is_empty() && self.is_complete {
            let what = format!(
                "the bitmap of segment {} says used, but nothing refers to{}: {}",
                segment.0,
                self.after,
                words(&leaked)
                    .trim_end_matches(" are")
                    .trim_end_matches(" is")
            );
            self.findings
                .add(Severity::Leak, Kind::Leak, &firsts(&leaked), what);
        }
    }
}

/// Runs of blocks of a segment: first block and length.
fn runs(segment: SegmentNo, is_in: impl Fn(usize) -> bool) -> Vec<(BlockNo, u64)> {
    let mut runs: Vec<(BlockNo, u64)> = Vec::new();
    let first = segment.first_block().0;
    for index in (0..SEGMENT_BLOCKS as usize).filter(|&index| is_in(index)) {
        let block = first + index as u64;
        match runs.last_mut() {
            Some((start, count)) if start.0 + *count == block => *count += 1,
            _ => runs.push((BlockNo(block), 1)),
        }
    }
    runs
}

fn firsts(runs: &[(BlockNo, u64)]) -> Vec<BlockNo> {
    runs.iter().map(|&(start, _)| start).collect()
}

/// "blocks 5, 7 to 9 and 12 more are": ready to be followed by what they are.
fn words(runs: &[(BlockNo, u64)]) -> String {
    let total: u64 = runs.iter().map(|&(_, count)| count).sum();
    let named: Vec<String> = runs
        .iter()
        .take(RUNS_NAMED_MAX)
        .map(|&(start, count)| match count {
            1 => start.0.to_string(),
            _ => format!("{} to {}", start.0, start.0 + count - 1),
        })
        .collect();
    let more: u64 = runs
        .iter()
        .skip(RUNS_NAMED_MAX)
        .map(|&(_, count)| count)
        .sum();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    match total {
        1 => format!("block {} is", named.join("")),
        _ => format!("{total} blocks ({}{more}) are", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_read_well() {
        assert_eq!(words(&runs(SegmentNo(0), |i| i == 7)), "block 7 is");
        let several = runs(SegmentNo(1), |i| i == 7 || (9..12).contains(&i));
        assert_eq!(words(&several), "4 blocks (32775, 32777 to 32779) are");
        assert_eq!(firsts(&several), [BlockNo(32775), BlockNo(32777)]);
    }
}
