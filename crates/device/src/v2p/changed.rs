//! Which bytes of its block a delta replaces.

use std::fmt;
use std::ops::Range;

use flagstone_types::BLOCK_SIZE;

/// What a hole in a delta is made of: as many bytes, at a multiple of as many.
const GRANULE: usize = 128;

const _: () = assert!(GRANULE * u32::BITS as usize == BLOCK_SIZE as usize);

/// Which bytes of its block a delta replaces: a range of them, less the holes in it.
///
/// A hole is a granule of 128 bytes that the delta leaves as it is. It lies within the range, and neither begins nor ends it, so
/// that the first and the last byte of the range are replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    start: u16,
    end: u16,
    /// A bit for each granule of the block, the first one's the lowest: set if it is a hole.
    holes: u32,
}

/// Bits of the granules `range`; empty if it ends before it begins.
fn bits(range: Range<usize>) -> u32 {
    let below = |end: usize| match end {
        0..32 => (1 << end) - 1,
        _ => u32::MAX,
    };
    below(range.end) & !below(range.start)
}

impl Changed {
    /// All of a block.
    pub const WHOLE: Changed = Changed {
        start: 0,
        end: BLOCK_SIZE as u16,
        holes: 0,
    };

    /// These bytes and no others. `None`: there are none, or they leave the block.
    pub fn of(range: Range<usize>) -> Option<Changed> {
        let fits = range.start < range.end && range.end as u64 <= BLOCK_SIZE;
        fits.then_some(Changed {
            start: range.start as u16,
            end: range.end as u16,
            holes: 0,
        })
    }

    /// These bytes less the holes. `None`: there are none, they leave the block, or a hole is where none can be.
    pub fn with_holes(range: Range<usize>, holes: u32) -> Option<Changed> {
        let whole = Changed::of(range.clone())?;
        let within = bits(range.start / GRANULE + 1..(range.end - 1) / GRANULE);
        (holes & !within == 0).then_some(Changed { holes, ..whole })
    }

    /// What an entry says: offset (16 bits), length (16 bits) and holes (32 bits).
    pub fn from_meta(meta: u64) -> Option<Changed> {
        let start = (meta & 0xffff) as usize;
        let len = (meta >> 16 & 0xffff) as usize;
        Changed::with_holes(start..start + len, (meta >> 32) as u32)
    }

    /// What an entry says of it.
    pub fn meta(self) -> u64 {
        let len = self.end - self.start;
        u64::from(self.start) | u64::from(len) << 16 | u64::from(self.holes) << 32
    }

    /// From the first to the last byte, with the holes.
    pub fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }

    /// A bit for each granule of the block that is a hole.
    pub fn holes(self) -> u32 {
        self.holes
    }

    /// Whether that is all of the block.
    pub fn is_whole(self) -> bool {
        self == Changed::WHOLE
    }

    /// What lies between the holes, in order.
    pub fn pieces(self) -> impl Iterator<Item = Range<usize>> {
        let mut at = usize::from(self.start);
        std::iter::from_fn(move || {
            let start = at;
            let granule = start.div_ceil(GRANULE);
            let ahead = self.holes & bits(granule..32);
            let end = match ahead {
                0 => usize::from(self.end),
                _ => ahead.trailing_zeros() as usize * GRANULE,
            };
            at = match ahead {
                0 => end,
                _ => end + (ahead >> ahead.trailing_zeros()).trailing_ones() as usize * GRANULE,
            };
            (start < end).then_some(start..end)
        })
    }

    /// Whether all of these bytes are replaced.
    pub fn covers(self, range: &Range<usize>) -> bool {
        let all = self.range();
        let touched = bits(range.start / GRANULE..range.end.div_ceil(GRANULE));
        all.start <= range.start && range.end <= all.end && self.holes & touched == 0
    }

    /// Whether any of these bytes is replaced.
    pub fn touches(self, range: &Range<usize>) -> bool {
        let mut pieces = self.pieces();
        pieces.any(|piece| piece.start < range.end && range.start < piece.end)
    }

    /// These bytes and those of `range`, which is not empty and lies within the block. `None`: what neither of them replaces can't be a hole.
    pub fn and(self, range: &Range<usize>) -> Option<Changed> {
        let old = self.range();
        let cut = |at: usize| !at.is_multiple_of(GRANULE) && self.holes >> (at / GRANULE) & 1 == 1;
        if cut(range.start) || cut(range.end) {
            return None;
        }
        let filled = bits(range.start.div_ceil(GRANULE)..range.end / GRANULE);
        let gap = old.end.min(range.end)..old.start.max(range.start);
        let is_gap = gap.start < gap.end;
        if is_gap && !(gap.start.is_multiple_of(GRANULE) && gap.end.is_multiple_of(GRANULE)) {
            return None;
        }
        let opened = match is_gap {
            true => bits(gap.start / GRANULE..gap.end / GRANULE),
            false => 0,
        };
        Some(Changed {
            start: old.start.min(range.start) as u16,
            end: old.end.max(range.end) as u16,
            holes: self.holes & !filled | opened,
        })
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, piece) in self.pieces().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{} bytes at {}", piece.len(), piece.start)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_SIZE as usize;

    /// Which bytes, one by one.
    fn each(changed: Changed) -> Vec<bool> {
        let mut bytes = vec![false; BLOCK];
        let mut before = 0;
        for piece in changed.pieces() {
            assert!(piece.start < piece.end && before <= piece.start);
            before = piece.end + 1;
            bytes[piece].fill(true);
        }
        bytes
    }

    fn any(choose: &mut impl FnMut(usize) -> usize) -> Range<usize> {
        let unit = [1, 64, 128, 512][choose(4)];
        let start = choose(BLOCK / unit) * unit;
        let len = (1 + choose(BLOCK / unit / 3)) * unit;
        start..(start + len).min(BLOCK)
    }

    #[test]
    fn what_is_put_together_is_what_each_of_its_parts_is() {
        let mut seed = 1_u64;
        let mut choose = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let (mut joined, mut refused, mut with_holes) = (0, 0, 0);
        for _ in 0..3000 {
            let mut changed = Changed::of(any(&mut choose)).unwrap();
            let mut expected = each(changed);
            for _ in 0..6 {
                let more = any(&mut choose);
                let wanted = any(&mut choose);
                assert_eq!(
                    changed.covers(&wanted),
                    expected[wanted.clone()].iter().all(|&b| b)
                );
                assert_eq!(
                    changed.touches(&wanted),
                    expected[wanted].iter().any(|&b| b)
                );
                let Some(both) = changed.and(&more) else {
                    refused += 1;
                    continue;
                };
                joined += 1;
                expected[more].fill(true);
                assert_eq!(each(both), expected);
                assert_eq!(Changed::from_meta(both.meta()), Some(both));
                assert_eq!(both.is_whole(), expected.iter().all(|&b| b));
                with_holes += usize::from(both.holes() != 0);
                changed = both;
            }
        }
        assert!(joined > 5000 && refused > 1000 && with_holes > 1000);
    }

    #[test]
    fn only_what_is_no_granule_is_refused() {
        let part = |range| Changed::of(range).unwrap();
        let first = part(0..512);
        assert!(first.and(&(512..513)).is_some() && first.and(&(640..641)).is_some());
        assert!(first.and(&(600..700)).is_none());
        assert!(part(0..500).and(&(512..1024)).is_none());
        assert!(part(1024..2048).and(&(10..896)).is_some());
        assert!(part(1024..2048).and(&(10..900)).is_none());
        let holed = first.and(&(1024..2048)).unwrap();
        assert_eq!(holed.holes(), 0b1111_0000);
        assert!(holed.and(&(600..700)).is_none() && holed.and(&(500..600)).is_none());
        assert_eq!(holed.and(&(500..1030)), Some(part(0..2048)));
        assert_eq!(holed.to_string(), "512 bytes at 0, 1024 bytes at 1024");
        let left = holed.and(&(500..640)).unwrap();
        assert_eq!(left.holes(), 0b1110_0000);
    }

    #[test]
    fn holes_lie_within() {
        let with = |range, holes| Changed::with_holes(range, holes).is_some();
        assert!(with(0..4096, 0x7fff_fffe) && !with(0..4096, 1) && !with(0..4096, 1 << 31));
        assert!(with(127..4096 - 127, 0x7fff_fffe));
        assert!(!with(128..4096, 2) && with(128..4096, 4));
        assert!(with(0..129 + 128, 2) && !with(0..128 + 128, 2));
        assert!(!with(0..0, 0) && !with(1..4097, 0));
        assert!(with(4095..4096, 0) && !with(4095..4096, 1 << 30));
        assert_eq!(Changed::from_meta(u64::MAX), None);
    }
}
