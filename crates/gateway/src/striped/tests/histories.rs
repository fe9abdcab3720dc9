//! Random histories against one array of bytes, and what is allocated against one list of blocks.

use std::num::NonZero;

use flagstone_platform::IoBuf;

use super::member::{BLOCK, Call, Random, Stage, bytes_of, now};
use crate::striped::{Layout, merge};
use crate::volume::{AllocationExtent, Piece, Stability, Volume, VolumeError};

/// What the volume has to be.
struct Model {
    bytes: Vec<u8>,
    allocated: Vec<bool>,
}

fn extent(allocated: bool, len_bytes: u64) -> AllocationExtent {
    AllocationExtent {
        len_bytes,
        allocated,
    }
}

fn push(extents: &mut Vec<AllocationExtent>, next: AllocationExtent) {
    match extents.last_mut() {
        Some(last) if last.allocated == next.allocated => last.len_bytes += next.len_bytes,
        _ => extents.push(next),
    }
}

impl Model {
    fn new(size: u64) -> Model {
        Model {
            bytes: vec![0; size as usize],
            allocated: vec![false; size.div_ceil(BLOCK) as usize],
        }
    }

    /// Blocks that a range touches, and whether it has all of each.
    fn blocks(offset: u64, len: u64) -> impl Iterator<Item = (usize, bool)> {
        let end = offset + len;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK).max(offset / BLOCK);
        blocks.filter(move |_| len > 0).map(move |block| {
            let is_whole = offset <= block * BLOCK && (block + 1) * BLOCK <= end;
            (block as usize, is_whole)
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let at = offset as usize;
        self.bytes[at..at + data.len()].copy_from_slice(data);
        for (block, _) in Model::blocks(offset, data.len() as u64) {
            self.allocated[block] = true;
        }
    }

    fn zero(&mut self, offset: u64, len: u64, keep: bool) {
        self.bytes[offset as usize..(offset + len) as usize].fill(0);
        for (block, is_whole) in Model::blocks(offset, len) {
            let before = self.allocated[block];
            self.allocated[block] = keep || (before && !is_whole);
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<AllocationExtent> {
        let mut extents = Vec::new();
        for (block, _) in Model::blocks(offset, len) {
            let start = (block as u64 * BLOCK).max(offset);
            let end = ((block as u64 + 1) * BLOCK).min(offset + len);
            push(&mut extents, extent(self.allocated[block], end - start));
        }
        extents
    }
}

struct History {
    random: Random,
    layout: Layout,
    stage: Stage,
    model: Model,
    size: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = Random(seed);
        let members = [2, 3, 4, 7, 16][random.below(5) as usize];
        let layout = Layout::new(members, (64 << 10) << random.below(2)).unwrap();
        let units = 1 + random.below(3 * members as u64);
        let odd = random.below(2) * random.below(layout.unit_bytes());
        let size = units * layout.unit_bytes() + odd;
        let longer = random.below(3) * random.below(1 << 20);
        History {
            random,
            layout,
            stage: Stage::new(layout, size, longer),
            model: Model::new(size),
            size,
        }
    }

    /// A range within the volume, often at borders of blocks or units.
    fn range(&mut self) -> (u64, u64) {
        let random = &mut self.random;
        let grain = [1, BLOCK, self.layout.unit_bytes()][random.below(3) as usize];
        let offset = random.below(self.size + 1) / grain * grain;
        let most = match random.below(3) {
            0 => self.size - offset,
            1 => (self.size - offset).min(3 * self.layout.unit_bytes()),
            _ => (self.size - offset).min(3 * BLOCK),
        };
        let len = random.below(most + 1) / grain * grain;
        (offset, len)
    }

    fn stability(&mut self) -> Stability {
        match self.random.below(2) {
            0 => Stability::Stable,
            _ => Stability::Unstable,
        }
    }

    fn write(&mut self) {
        let (offset, len) = self.range();
        let stability = self.stability();
        let skew = (offset % BLOCK) as usize;
        let mut data = IoBuf::zeroed(skew + len as usize);
        let mut word = self.random.next();
        for byte in data.bytes_mut() {
            word = word.rotate_left(7).wrapping_add(1);
            *byte = word as u8;
        }
        let data = data.narrow(skew..skew + len as usize);
        self.model.write(offset, &data);
        let written = self.stage.volume.write(offset, data.clone(), stability);
        assert_eq!(now(written), Ok(()));
        let calls = self.stage.calls();
        let pieces = self.layout.cut(offset, len).count();
        assert_eq!(calls.len(), pieces.max(1), "one call for each piece");
        for (_, call) in calls {
            assert!(matches!(call, Call::Write(_, _, s) if s == stability));
        }
    }

    fn clear(&mut self) {
        let (offset, len) = self.range();
        let stability = self.stability();
        let volume = &self.stage.volume;
        let (kind, cleared) = match self.random.below(3) {
            0 => (None, now(volume.deallocate(offset, len, stability))),
            keep => {
                let keep = keep == 1;
                let zeroing = volume.write_zeroes(offset, len, keep, stability);
                (Some(keep), now(zeroing))
            }
        };
        assert_eq!(cleared, Ok(()));
        self.model.zero(offset, len, kind == Some(true));
        let calls = self.stage.calls();
        let spans = self.layout.spans(offset, len).count();
        assert_eq!(calls.len(), spans.max(1), "one call of each member");
        for (_, call) in calls {
            match call {
                Call::Deallocate(_, _, s) => assert_eq!((None, stability), (kind, s)),
                Call::WriteZeroes(_, _, k, s) => assert_eq!((Some(k), s), (kind, stability)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn read(&mut self, (offset, len): (u64, u64)) {
        let read = now(self.stage.volume.read(offset, len as u32)).expect("in order");
        let expected = &self.model.bytes[offset as usize..(offset + len) as usize];
        assert!(bytes_of(&read) == expected, "read at {offset}, {len} bytes");
        if self.layout.cut(offset, len).count() > 1 {
            let is_zeros = |piece: &Piece| matches!(piece, Piece::Zeros(_));
            let mut pairs = read.windows(2);
            let apart = pairs.all(|pair| !(is_zeros(&pair[0]) && is_zeros(&pair[1])));
            assert!(apart, "zeros are merged");
            let is_empty = |piece: &Piece| match piece {
                Piece::Data(data) => data.is_empty(),
                Piece::Zeros(len) => *len == 0,
            };
            assert!(!read.iter().any(is_empty));
        }
        self.stage.calls();
    }

    fn allocation(&mut self, (offset, len): (u64, u64), extents_max: usize) {
        let Some(len) = NonZero::new(len) else { return };
        let expected = self.model.extents(offset, len.get());
        let asking = self.stage.volume.allocation(offset, len.get(), extents_max);
        let found = now(asking).expect("in order");
        let calls = self.stage.calls().len();
        assert_eq!(calls, self.layout.spans(offset, len.get()).count());
        assert!(found.len() <= extents_max);
        // Each member tells of that many at least.
        let least = extents_max.div_ceil(self.layout.members());
        assert!(found.len() >= least.min(expected.len()));
        assert_eq!(found[0], expected[0], "the first is as long as it is");
        let last = found.len() - 1;
        assert_eq!(found[..last], expected[..last]);
        assert_eq!(found[last].allocated, expected[last].allocated);
        assert!(found[last].len_bytes <= expected[last].len_bytes);
        if extents_max == usize::MAX {
            assert_eq!(found, expected, "nothing is left out");
        }
    }

    /// What a client learns that asks again and again, of members that tell little at a time.
    fn allocation_step_by_step(&mut self, (offset, len): (u64, u64)) {
        let (mut at, end) = (offset, offset + len);
        let mut found = Vec::new();
        while at < end {
            for member in &self.stage.members {
                let most = 1 + self.random.below(3);
                member.extents_max.set(most as usize);
            }
            let extents_max = 1 + self.random.below(5) as usize;
            let asking = self.stage.volume.allocation(at, end - at, extents_max);
            let extents = now(asking).expect("in order");
            assert!((1..=extents_max).contains(&extents.len()));
            for next in extents {
                assert!(next.len_bytes > 0);
                at += next.len_bytes;
                push(&mut found, next);
            }
        }
        for member in &self.stage.members {
            member.extents_max.set(usize::MAX);
        }
        assert_eq!(found, self.model.extents(offset, len));
        self.stage.calls();
    }

    fn step(&mut self) {
        match self.random.below(8) {
            0..3 => self.write(),
            3..5 => self.clear(),
            5 => {
                let range = self.range();
                self.read(range);
            }
            6 => {
                let range = self.range();
                let extents_max = [1, 2, 5, 40, usize::MAX][self.random.below(5) as usize];
                self.allocation(range, extents_max);
            }
            _ => {
                let range = self.range();
                self.allocation_step_by_step(range);
            }
        }
    }

    fn check_all(&mut self) {
        self.read((0, self.size));
        self.allocation((0, self.size), usize::MAX);
        for (number, member) in self.stage.members.iter().enumerate() {
            let needed = self.layout.member_size_bytes(number, self.size);
            let last = member.blocks.borrow().keys().next_back().copied();
            assert!(last.is_none_or(|block| block * BLOCK < needed), "behind it");
        }
    }
}

#[test]
fn random_histories() {
    for seed in 0..60 {
        let mut history = History::new(seed);
        for _ in 0..60 {
            history.step();
        }
        history.check_all();
    }
}

#[test]
fn a_hole_of_64_tib_is_asked_for_once_of_each_member() {
    let layout = Layout::new(16, 64 << 10).unwrap();
    let size = 64 << 40;
    let stage = Stage::new(layout, size, 0);
    let found = now(stage.volume.allocation(0, size, 4096));
    assert_eq!(found, Ok(vec![extent(false, size)]));
    assert_eq!(stage.calls().len(), 16);
    // None at all can't be an answer.
    let found = now(stage.volume.allocation(0, size, 0));
    assert_eq!(found, Ok(vec![extent(false, size)]));
    stage.calls();
    let cleared = stage.volume.deallocate(1, size - 2, Stability::Unstable);
    assert_eq!(now(cleared), Ok(()));
    assert_eq!(stage.calls().len(), 16);
    // One block in the middle, and all of one member.
    let middle = (32 << 40) + 5 * (64 << 10) + 4096;
    let written = stage
        .volume
        .write(middle, IoBuf::zeroed(4096), Stability::Unstable);
    assert_eq!(now(written), Ok(()));
    let found = now(stage.volume.allocation(0, size, 4096)).unwrap();
    let rest = size - middle - 4096;
    let expected = [extent(false, middle), extent(true, 4096)];
    assert_eq!(found[..2], expected);
    assert_eq!(found[2..], [extent(false, rest)]);
    stage.members[3].solid.set(true);
    let found = now(stage.volume.allocation(0, size, 7)).unwrap();
    let (unit, others) = (64 << 10, 15 * (64 << 10));
    let mut expected = vec![extent(false, 3 * unit)];
    for _ in 0..3 {
        expected.extend([extent(true, unit), extent(false, others)]);
    }
    assert_eq!(found, expected);
    for member in &stage.members {
        member.solid.set(true);
    }
    let found = now(stage.volume.allocation(0, size, 1));
    assert_eq!(found, Ok(vec![extent(true, size)]));
}

#[test]
fn what_is_known_is_walked_by_extents_and_not_by_units() {
    let layout = Layout::new(16, 64 << 10).unwrap();
    let asked = |end: u64, extents_max: usize, state: &dyn Fn(usize, u64) -> (bool, u64)| {
        let mut count = 0;
        let extents = merge(layout, (0, end), extents_max, |member, at| {
            count += 1;
            assert!(count < 10_000, "unit by unit");
            Some(state(member, at))
        });
        (extents, count)
    };
    for allocated in [false, true] {
        let (extents, count) = asked(u64::MAX, 9, &|_, _| (allocated, u64::MAX));
        assert_eq!(extents, [extent(allocated, u64::MAX)]);
        assert_eq!(count, 16);
    }
    // A member that tells of one run in two parts.
    let (extents, _) = asked(1 << 30, 1, &|_, at| {
        (true, at / (1 << 24) * (1 << 24) + (1 << 24))
    });
    assert_eq!(extents, [extent(true, 1 << 30)]);
    // All members change at the same place, row after row of a thousand.
    let row = 1000 * (64 << 10);
    let rows = |_, at: u64| ((at / row).is_multiple_of(2), (at / row + 1) * row);
    let (extents, count) = asked(u64::MAX, 20, &rows);
    let expected: Vec<_> = (0..20).map(|n| extent(n % 2 == 0, 16 * row)).collect();
    assert_eq!(extents, expected);
    assert!(count <= 21 * 16, "{count}");
}

#[test]
fn a_member_that_tells_nothing_is_broken() {
    let layout = Layout::new(3, 64 << 10).unwrap();
    let stage = Stage::new(layout, 1 << 20, 0);
    stage.members[1].mute.set(true);
    // What is before it is known.
    let found = now(stage.volume.allocation(4096, 1 << 19, 9));
    assert_eq!(found, Ok(vec![extent(false, (64 << 10) - 4096)]));
    let found = now(stage.volume.allocation(64 << 10, 1 << 19, 9));
    assert_eq!(found, Err(VolumeError::Device));
}
