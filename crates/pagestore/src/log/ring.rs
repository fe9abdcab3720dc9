//! Where in the log's dvol the frames lie: one behind the other from the second block on, and from there again.

use std::collections::VecDeque;
use std::ops::Range;

use flagstone_platform::IoBuf;
use flagstone_types::{BLOCK_SIZE, ChainHash};

const MAGIC: [u8; 8] = *b"FSPSTLOG";
const VERSION: u32 = 1;
const SEAL_AT: usize = BLOCK_SIZE as usize - 8;
/// Frames begin here.
pub(crate) const FIRST_AT: u64 = BLOCK_SIZE;

/// The log's first block: what is in its place, and where the next frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogHeader {
    /// All that frames up to this one changed is in its place.
    pub(crate) sequence: u64,
    /// The next frame lies here, or at [`FIRST_AT`] if this place was too short for it.
    pub(crate) next_at: u64,
}

impl LogHeader {
    /// Before the first frame.
    pub(crate) const EMPTY: LogHeader = LogHeader {
        sequence: 0,
        next_at: FIRST_AT,
    };

    pub(crate) fn encode(&self) -> IoBuf {
        let mut buf = IoBuf::zeroed(BLOCK_SIZE as usize);
        let out = buf.bytes_mut();
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..32].copy_from_slice(&self.next_at.to_le_bytes());
        let seal = ChainHash::of(&out[..SEAL_AT]).0;
        out[SEAL_AT..].copy_from_slice(&seal.to_le_bytes());
        buf
    }

    /// `None` if the bytes are no header of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<LogHeader> {
        let long = |at: usize| {
            let part = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(part.try_into().ok()?))
        };
        let header = LogHeader {
            sequence: long(16)?,
            next_at: long(24)?,
        };
        let is_place = header.next_at >= FIRST_AT && header.next_at.is_multiple_of(BLOCK_SIZE);
        (is_place && header.encode()[..] == *bytes).then_some(header)
    }
}

/// What of the log is in use.
pub(crate) struct Ring {
    end: u64,
    /// Behind the last frame.
    tail: u64,
    /// Bytes before that, round the end perhaps, that are needed, or were left out at the end.
    used: u64,
    /// Of the last frame.
    sequence: u64,
    /// What the header on the device says is in its place.
    cleared: u64,
    /// Where frames are that the device's journal alone has, and their numbers.
    journaled: VecDeque<(u64, Range<u64>)>,
    /// A frame that was not written may be there after all: it must not be taken for one that was.
    is_broken: bool,
}

/// Up to where a log can be cleared.
#[derive(Clone)]
pub(crate) struct Mark {
    pub(crate) header: LogHeader,
    used: u64,
    /// Where frames up to there are that the device's journal alone has. What lies between some of them is needed as little.
    pub(crate) journaled: Vec<Range<u64>>,
}

/// Ranges of a mark, about.
const MARKED_RANGES_MAX: usize = 8;

impl Ring {
    /// A log of so many bytes in which nothing is needed behind what the header says.
    pub(crate) fn new(end: u64, header: LogHeader) -> Ring {
        Ring {
            end,
            tail: header.next_at,
            used: 0,
            sequence: header.sequence,
            cleared: header.sequence,
            journaled: VecDeque::new(),
            is_broken: false,
        }
    }

    /// Bytes of a frame, at most.
    pub(crate) fn frame_max(&self) -> u64 {
        (self.end - FIRST_AT) / 4
    }

    /// Bytes for frames, and how many of them are needed.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.end - FIRST_AT, self.used)
    }

    /// Whether it should be cleared soon.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used > (self.end - FIRST_AT) / 2 || self.is_broken
    }

    /// Where the next frame, of so many bytes, goes, and its number. `None`: not before the log was cleared.
    pub(crate) fn place(&mut self, len: u64) -> Option<(u64, u64)> {
        let left = self.end - self.tail;
        let goes_round = left < len;
        let skipped = if goes_round { left } else { 0 };
        let is_room = self.used + skipped + len < self.end - FIRST_AT;
        if self.is_broken || !is_room {
            return None;
        }
        let at = if goes_round { FIRST_AT } else { self.tail };
        self.tail = at + len;
        self.used += skipped + len;
        self.sequence += 1;
        Some((at, self.sequence))
    }

    /// The last frame was not written.
    pub(crate) fn handle_lost(&mut self) {
        self.is_broken = true;
    }

    /// Whether the header on the device is behind.
    pub(crate) fn is_behind(&self) -> bool {
        self.cleared < self.sequence
    }

    /// All that was written so far.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            header: LogHeader {
                sequence: self.sequence,
                next_at: self.tail,
            },
            used: self.used,
            journaled: self.marked(),
        }
    }

    /// The last frame that was placed goes to the device's journal alone.
    pub(crate) fn handle_journaled(&mut self, at: u64, len: u64) {
        self.journaled.push_back((self.sequence, at..at + len));
    }

    fn marked(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (_, frame) in &self.journaled {
            let is_full = ranges.len() >= MARKED_RANGES_MAX;
            match ranges.last_mut() {
                // Behind each other in the ring: all between was written before the last of them.
                Some(last) if last.end == frame.start || is_full && last.end < frame.start => {
                    last.end = frame.end;
                }
                _ => ranges.push(frame.clone()),
            }
        }
        ranges
    }

    /// What was written up to there is in its place, and the header on the device says so.
    pub(crate) fn handle_cleared(&mut self, mark: Mark) {
        self.used -= mark.used;
        self.cleared = mark.header.sequence;
        let is_cleared = |(sequence, _): &(u64, Range<u64>)| *sequence <= mark.header.sequence;
        while self.journaled.front().is_some_and(is_cleared) {
            self.journaled.pop_front();
        }
        self.is_broken &= self.is_behind();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = FIRST_AT + 16 * BLOCK_SIZE;

    #[test]
    fn a_header_is_read_back_and_every_flipped_bit_noticed() {
        let header = LogHeader {
            sequence: 0x0102_0304_0506_0708,
            next_at: 5 * BLOCK_SIZE,
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..12], b"FSPSTLOG\x01\0\0\0");
        assert_eq!(&bytes[16..24], &[8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(LogHeader::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogHeader::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(LogHeader::decode(&bytes[..100]), None);
        for next_at in [0, FIRST_AT + 1] {
            let header = LogHeader { next_at, ..header };
            assert_eq!(LogHeader::decode(&header.encode()), None);
        }
    }

    #[test]
    fn frames_follow_each_other_and_never_lie_on_one_that_is_needed() {
        let block = |n: u64| FIRST_AT + n * BLOCK_SIZE;
        let mut ring = Ring::new(END, LogHeader::EMPTY);
        assert_eq!(ring.frame_max(), 4 * BLOCK_SIZE);
        assert_eq!(ring.place(4 * BLOCK_SIZE), Some((block(0), 1)));
        assert_eq!(ring.place(4 * BLOCK_SIZE), Some((block(4), 2)));
        let mark = ring.mark();
        assert_eq!(
            mark.header,
            LogHeader {
                sequence: 2,
                next_at: block(8)
            }
        );
        assert!(ring.is_behind() && !ring.is_half_full());
        assert_eq!(ring.place(4 * BLOCK_SIZE), Some((block(8), 3)));
        assert!(ring.is_half_full());
        assert_eq!(ring.place(3 * BLOCK_SIZE), Some((block(12), 4)));
        assert_eq!(ring.place(BLOCK_SIZE), None, "one block stays free");
        assert_eq!(ring.place(2 * BLOCK_SIZE), None);
        ring.handle_cleared(mark);
        // The block that is left is skipped.
        assert_eq!(ring.place(2 * BLOCK_SIZE), Some((block(0), 5)));
        assert_eq!(ring.place(4 * BLOCK_SIZE), Some((block(2), 6)));
        assert_eq!(
            ring.place(2 * BLOCK_SIZE),
            None,
            "there begins what is needed"
        );
        assert_eq!(ring.place(BLOCK_SIZE), Some((block(6), 7)));
        let mark = ring.mark();
        ring.handle_cleared(mark);
        assert!(!ring.is_behind() && !ring.is_half_full());
        // Up to the very end, and from the beginning again.
        assert_eq!(ring.place(9 * BLOCK_SIZE), Some((block(7), 8)));
        assert_eq!(ring.mark().header.next_at, END);
        assert_eq!(ring.place(BLOCK_SIZE), Some((block(0), 9)));
    }

    /// So few that a batch has room for them, and none of what is needed.
    #[test]
    fn frames_of_the_journal_are_marked_once_in_few_ranges() {
        let block = |n: u64| FIRST_AT + n * BLOCK_SIZE;
        let mut ring = Ring::new(FIRST_AT + 100 * BLOCK_SIZE, LogHeader::EMPTY);
        let put = |ring: &mut Ring, journaled: bool| {
            let (at, _) = ring.place(BLOCK_SIZE).expect("has room");
            if journaled {
                ring.handle_journaled(at, BLOCK_SIZE);
            }
        };
        for journaled in [true, true, false, true] {
            put(&mut ring, journaled);
        }
        let first = ring.mark();
        assert_eq!(first.journaled, [block(0)..block(2), block(3)..block(4)]);
        put(&mut ring, true);
        ring.handle_cleared(first);
        let since = block(4)..block(5);
        assert_eq!(ring.mark().journaled, vec![since], "what came since");
        for n in 0..60 {
            put(&mut ring, n % 2 == 1);
        }
        let many = ring.mark();
        assert_eq!(many.journaled.len(), MARKED_RANGES_MAX);
        assert_eq!(many.journaled[0], block(4)..block(5));
        assert_eq!(many.journaled.last().unwrap().end, block(65));
        ring.handle_cleared(many);
        assert!(ring.mark().journaled.is_empty());
        // Round the end.
        for _ in 0..50 {
            put(&mut ring, true);
        }
        assert_eq!(
            ring.mark().journaled,
            [block(65)..block(100), block(0)..block(15)]
        );
    }

    #[test]
    fn after_a_frame_that_was_lost_none_is_written_before_the_log_was_cleared() {
        let mut ring = Ring::new(END, LogHeader::EMPTY);
        let before = ring.mark();
        assert_eq!(ring.place(BLOCK_SIZE), Some((FIRST_AT, 1)));
        ring.handle_lost();
        assert!(ring.is_half_full() && ring.is_behind());
        assert_eq!(ring.place(BLOCK_SIZE), None);
        ring.handle_cleared(before);
        assert_eq!(ring.place(BLOCK_SIZE), None, "cleared up to before it");
        let mark = ring.mark();
        ring.handle_cleared(mark);
        assert_eq!(ring.place(BLOCK_SIZE), Some((FIRST_AT + BLOCK_SIZE, 2)));
    }
}
