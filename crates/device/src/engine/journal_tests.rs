//! The ring's arithmetic, and what the journal knows to be on the device.

use flagstone_types::BlockNo;

use super::super::unit::{DataState, UnitParts, Units};
use super::*;

const RING_BLOCKS: u32 = 128;

fn journal() -> Journal {
    let position = Position {
        next_seq: 1,
        ring_index: 0,
        prev_hash: ChainHash(0),
    };
    Journal::new(7, 0, 1, RING_BLOCKS, position)
}

fn unit(data: DataState) -> Pooled<Unit> {
    unit_of(false, data)
}

fn unit_of(stable: bool, data: DataState) -> Pooled<Unit> {
    let parts = UnitParts {
        stable,
        blocks: SmallVec::from_slice(&[BlockNo(1)]),
        ..UnitParts::default()
    };
    let (unit, _) = Units::default().make(parts);
    unit.data.set(data);
    unit.answer.take();
    unit
}

/// A ring as a device sees it: which blocks the root still needs, and the group in each.
struct Ring {
    journal: Journal,
    /// Blocks from the root's position up to the journal's.
    live: VecDeque<u32>,
    /// Where a root could begin, with the blocks in front of it since the last trim.
    cuts: Vec<(Position, usize)>,
    random: u64,
}

impl Ring {
    fn new(seed: u64) -> Ring {
        Ring {
            journal: journal(),
            live: VecDeque::new(),
            cuts: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    /// Takes what is to be written to the device.
    fn write(&mut self, sealed: SealedGroups) {
        for group in sealed {
            let header = group::decode_header(&group.bytes).expect("a group");
            let blocks = u32::from(header.block_count);
            let end = group.ring_index + blocks;
            assert!(end <= RING_BLOCKS, "a group ends within the ring");
            if header.pad {
                assert_eq!(end, RING_BLOCKS, "a pad goes up to the ring's end");
            }
            for block in group.ring_index..end {
                assert!(!self.live.contains(&block), "block {block} is still needed");
                self.live.push_back(block);
            }
            self.journal.handle_written(group.seq);
        }
        self.journal.settle();
        let place = (self.journal.position(), self.live.len());
        self.cuts.push(place);
        assert_eq!(self.journal.used_blocks() as usize, self.live.len());
    }

    /// A root that begins at some group is durable.
    fn trim(&mut self, nth: usize) {
        let (position, blocks) = self.cuts[nth];
        self.journal.trim(position);
        self.live.drain(..blocks);
        self.cuts.drain(..=nth);
        for (_, before) in &mut self.cuts {
            *before -= blocks;
        }
        assert_eq!(self.journal.used_blocks() as usize, self.live.len());
    }

    /// Has this many units of one byte taken back, in as many groups as the journal likes. False if
    /// the ring is full.
    fn abort(&mut self, count: u64, bytes: usize) -> bool {
        for _ in 0..count {
            let aborted = unit(DataState::Written);
            self.journal.add_abort(aborted, &vec![1; bytes]);
        }
        while self.journal.has_aborts() {
            let Some(sealed) = self.journal.close_aborts() else {
                self.journal.abandon();
                return false;
            };
            self.write(sealed);
        }
        true
    }
}

/// Whatever is written and given up, no block that a root needs is written, and no group goes over
/// the end of the ring.
#[test]
fn what_a_root_needs_is_not_written_over() {
    let (mut pads, mut full, mut filled_by_aborts) = (0, 0, 0);
    for seed in 0..200 {
        let mut ring = Ring::new(seed);
        for _ in 0..300 {
            match ring.below(10) {
                0..6 => {
                    let len = match ring.below(3) {
                        0 => ring.below(BODY_MAX_BYTES as u64),
                        _ => ring.below(8192),
                    };
                    if ring.journal.fits(len as usize) {
                        let small = unit(DataState::Written);
                        ring.journal.add(small, &vec![1; len as usize]);
                    }
                    if ring.journal.has_room() {
                        let sealed = ring.journal.close();
                        pads += usize::from(sealed.len() > 1);
                        ring.write(sealed);
                    } else {
                        full += 1;
                    }
                }
                6..9 => {
                    let count = 1 + ring.below(400);
                    if !ring.abort(count, 32) {
                        filled_by_aborts += 1;
                    }
                }
                _ if ring.cuts.is_empty() => {}
                _ => {
                    let nth = ring.below(ring.cuts.len() as u64) as usize;
                    ring.trim(nth);
                }
            }
        }
    }
    assert!(
        pads > 0 && full > 0 && filled_by_aborts > 0,
        "or this shows little"
    );
}

/// Aborts can fill the ring to its last block; a root that begins where it began frees nothing.
#[test]
fn a_full_ring_is_not_taken_for_an_empty_one() {
    let mut ring = Ring::new(1);
    ring.cuts.push((ring.journal.position(), 0));
    while ring.live.len() < RING_BLOCKS as usize {
        assert!(ring.abort(1, 32), "there is room");
    }
    assert!(!ring.abort(1, 32));
    ring.trim(0);
    assert_eq!(ring.journal.used_blocks(), RING_BLOCKS);
    assert!(!ring.abort(1, 32), "nothing has become free");
    let last = ring.cuts.len() - 1;
    ring.trim(last);
    assert!(ring.abort(1, 32));
}

/// A write that fails when the ring is as full as it can be is taken back all the same, and so are
/// those that fail after it.
#[test]
fn the_ring_keeps_room_for_aborts() {
    for seed in 0..50 {
        let mut ring = Ring::new(seed);
        while ring.journal.has_room() {
            let sealed = ring.journal.close();
            ring.write(sealed);
            let len = ring.below(BODY_MAX_BYTES as u64) as usize;
            ring.journal.add(unit(DataState::Written), &vec![1; len]);
        }
        for _ in 0..ABORT_BLOCKS {
            assert!(ring.abort(1, 32), "seed {seed}");
        }
    }
}

/// The watermark goes as far as groups are written with everything before them and all their data,
/// and no further: also if a group holds nothing, as a pad does.
#[test]
fn only_what_is_written_is_settled() {
    let mut journal = journal();
    let pending = unit(DataState::Pending);
    journal.add(pending.clone(), &[1; 32]);
    let first = journal.close()[0].seq;
    let empty = journal.close()[0].seq;
    journal.add(unit(DataState::Written), &[1; 32]);
    let third = journal.close()[0].seq;
    assert_eq!(journal.settle(), first - 1);
    assert_eq!(
        journal.handle_written(third).len(),
        0,
        "not with those before"
    );
    assert_eq!(journal.handle_written(first).len(), 1);
    assert_eq!(journal.settle(), first - 1, "its data is not written");
    pending.data.set(DataState::Written);
    assert_eq!(journal.settle(), first, "the empty one is not written");
    assert_eq!(
        journal.handle_written(empty).len(),
        1,
        "the third is, by now"
    );
    assert_eq!(journal.settle(), third);
}

/// Once nothing more is written, one empty group tells that everything is on stable media.
#[test]
fn the_watermark_is_told_once_when_things_are_quiet() {
    let mut journal = journal();
    assert!(!journal.should_tell_watermark(), "there is nothing to tell");
    journal.add(unit(DataState::Written), &[1; 32]);
    assert!(!journal.should_tell_watermark(), "a group is about to");
    let seq = journal.close()[0].seq;
    journal.handle_written(seq);
    let settled = journal.settle();
    assert!(journal.has_unflushed());
    assert!(!journal.should_tell_watermark(), "it isn't flushed");
    journal.handle_flushed(settled);
    assert!(!journal.has_unflushed());
    assert!(journal.should_tell_watermark());
    let told = journal.close();
    let header = group::decode_header(&told[0].bytes).expect("a group");
    assert_eq!(header.watermark, seq);
    assert!(!journal.should_tell_watermark(), "it is told");
    journal.handle_written(told[0].seq);
    journal.settle();
    assert!(!journal.has_unflushed(), "or telling would never end");
}

#[test]
fn only_a_small_group_of_unstable_units_behind_one_in_flight_grows() {
    let unstable = || unit(DataState::Written);
    let stable = || unit_of(true, DataState::Written);
    let mut journal = journal();
    journal.add(unstable(), &[0; 40]);
    assert!(!journal.may_grow(), "nothing is in flight");
    let sealed = journal.close();
    assert_eq!(sealed.len(), 1);

    journal.add(unstable(), &[0; 40]);
    assert!(journal.may_grow(), "one is in flight");
    journal.add(unstable(), &[0; BLOCK_SIZE as usize - HEADER_BYTES - 41]);
    assert!(journal.may_grow(), "its block has a byte left");
    journal.add(unstable(), &[0; 1]);
    assert!(!journal.may_grow(), "its block is full");
    let second = journal.close();

    journal.add(unstable(), &[0; 40]);
    journal.add(stable(), &[0; 40]);
    assert!(!journal.may_grow(), "somebody waits for a flush");
    let third = journal.close();
    for group in [sealed, second, third].iter().flatten() {
        journal.handle_written(group.seq);
    }
    journal.add(unstable(), &[0; 40]);
    assert!(!journal.may_grow(), "all are written");
}

#[test]
fn a_checkpoint_is_due_while_there_is_room_for_what_comes_meanwhile() {
    let mut journal = journal();
    while !journal.is_due() {
        journal.add(unit(DataState::Written), &[0; 40]);
        assert!(journal.has_room(), "no checkpoint was due");
        journal.close();
    }
    assert_eq!(journal.used_blocks(), RING_BLOCKS / 2 + 1);
    for (blocks, used) in [(2048, 1024), (8192, 6144), (65_536, 57_344)] {
        journal.ring_blocks = blocks;
        journal.used_blocks = used;
        assert!(!journal.is_due(), "{used} of {blocks}");
        journal.used_blocks = used + 1;
        assert!(journal.is_due(), "{used} and one of {blocks}");
    }
}

/// A ring of many small records is bounded by what a restart needs for each.
#[test]
fn a_checkpoint_is_due_when_there_are_many_units_that_no_root_is_behind() {
    let mut journal = journal();
    let close = |journal: &mut Journal, count: usize| {
        for _ in 0..count {
            journal.add(unit(DataState::Written), &[0; 8]);
        }
        journal.close();
    };
    close(&mut journal, 5);
    let cut = journal.cut();
    close(&mut journal, 7);
    journal.units_closed += UNITS_MAX - 12;
    assert!(!journal.is_due());
    close(&mut journal, 1);
    assert!(journal.is_due(), "one more than there may be");
    // The checkpoint's root covers what was before its cut, and nothing behind it.
    journal.trim(cut);
    assert!(!journal.is_due());
    assert_eq!(journal.units_closed - journal.units_trimmed, UNITS_MAX - 4);
    close(&mut journal, 4);
    assert!(!journal.is_due());
    close(&mut journal, 1);
    assert!(journal.is_due());
}

#[test]
fn memory_of_groups_that_are_over_is_used_again_up_to_a_bound() {
    let mut journal = journal();
    for round in 0..3 * SPARES_MAX {
        journal.add(unit(DataState::Written), &[round as u8; 40]);
        for group in journal.close() {
            assert_eq!(group.bytes[HEADER_BYTES..][..40], [round as u8; 40]);
            assert_eq!(
                group.bytes[HEADER_BYTES + 40..],
                [0; 4096 - HEADER_BYTES - 40]
            );
            let journaled = journal.handle_written(group.seq);
            assert_eq!(journaled.len(), 1, "nothing is left of the group before");
            journal.keep_units(journaled);
            journal.keep_bytes(group.bytes);
        }
        journal.settle();
        journal.trim(journal.position());
    }
    assert_eq!(journal.spare_bytes.len(), 1);
    assert!(journal.spare_units.len() <= 3);
    for _ in 0..3 * SPARES_MAX {
        journal.keep_units(vec![unit(DataState::Written)]);
        journal.keep_bytes(vec![1; 40]);
    }
    assert_eq!(journal.spare_units.len(), SPARES_MAX);
    assert_eq!(journal.spare_bytes.len(), SPARES_MAX);
    let mut large = self::journal();
    large.keep_units(Vec::with_capacity(SPARE_MAX_BYTES));
    large.keep_bytes(Vec::with_capacity(2 * SPARE_MAX_BYTES));
    assert!(large.spare_units.is_empty() && large.spare_bytes.is_empty());
}
