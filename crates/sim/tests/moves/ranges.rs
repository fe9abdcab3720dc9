//! How a part is read: in which ranges, how many of them at the same time, in whose turns, and what is said of it.

use std::cell::{Cell, RefCell};

use flagstone_device::engine::{DeviceReads, Stability};
use flagstone_device::transfer::{AnyTime, Parts, ReadTurns, Run, What, part_of};

use super::{BLOCK, content, new_dvol, with_engines};

const BLOCKS: u64 = 16;

/// Counts what is asked of it.
#[derive(Default)]
struct Turns {
    /// How large each range was, and what was taken for it.
    asked: RefCell<Vec<u64>>,
    took: RefCell<Vec<DeviceReads>>,
    held: Cell<usize>,
    most_held: Cell<usize>,
}

impl ReadTurns for Turns {
    type Turn = ();

    async fn turn(&self, len_bytes: u64) {
        self.asked.borrow_mut().push(len_bytes);
        self.held.set(self.held.get() + 1);
        self.most_held
            .set(self.most_held.get().max(self.held.get()));
    }

    fn took(&self, (): (), took: DeviceReads) {
        self.took.borrow_mut().push(took);
        self.held.set(self.held.get() - 1);
    }
}

fn parts(range_blocks: u64, together: usize) -> Parts {
    Parts {
        bytes: BLOCKS * BLOCK,
        range_bytes: range_blocks * BLOCK,
        together,
    }
}

/// The blocks lie together in the dvol, and each by itself on the device.
#[test]
fn a_part_is_read_in_ranges_each_in_a_turn() {
    with_engines(|[engine, _]| async move {
        let dvol = engine.create(new_dvol()).await.expect("creates");
        for block in (0..BLOCKS).map(|nth| nth * 7 % BLOCKS) {
            let write = engine.write(dvol, block * BLOCK, content(block + 1), Stability::Stable);
            write.await.expect("writes");
        }
        let everything = {
            let bytes = (0..BLOCKS).flat_map(|block| content(block + 1).to_vec());
            Run::Data {
                offset_bytes: 0,
                meta: 0,
                bytes: bytes.collect(),
            }
        };
        for (range_blocks, together) in [(1, 2), (4, 1), (16, 2), (1, 16), (3, 3)] {
            let turns = Turns::default();
            let parts = parts(range_blocks, together);
            let read = part_of(&engine, dvol, What::Allocated, 0..u64::MAX, parts, &turns);
            let part = read.await.expect("is read");
            let ranges = BLOCKS.div_ceil(range_blocks);
            assert_eq!(part.runs, std::slice::from_ref(&everything), "{parts:?}");
            assert_eq!(part.ranges, ranges as u32, "{parts:?}");
            let asked = turns.asked.borrow();
            assert_eq!(asked.len() as u64, ranges, "{parts:?}");
            assert!(asked.iter().all(|len| *len <= range_blocks * BLOCK));
            assert_eq!(asked.iter().sum::<u64>(), BLOCKS * BLOCK);
            assert_eq!(
                turns.most_held.get(),
                together.min(asked.len()),
                "{parts:?}"
            );
            // Each block is an operation of its own, whatever they are asked for in.
            assert_eq!((part.took.operations, part.took.blocks), (16, 16));
            let took = turns.took.borrow();
            let sum = took
                .iter()
                .fold(DeviceReads::default(), |sum, one| sum.and(*one));
            assert_eq!(sum, part.took);
        }
    });
}

#[test]
fn holes_take_no_turn_and_nothing_of_the_device() {
    with_engines(|[engine, _]| async move {
        let dvol = engine.create(new_dvol()).await.expect("creates");
        for block in [1, 2, 9] {
            let write = engine.write(dvol, block * BLOCK, content(7), Stability::Stable);
            write.await.expect("writes");
        }
        let turns = Turns::default();
        let within = 0..12 * BLOCK;
        let read = part_of(
            &engine,
            dvol,
            What::Everything,
            within.clone(),
            parts(8, 4),
            &turns,
        );
        let part = read.await.expect("is read");
        let lens: Vec<u64> = turns.asked.borrow().clone();
        assert_eq!(lens, [2 * BLOCK, BLOCK]);
        // Both were written in this order, one behind the other.
        assert_eq!(
            (part.ranges, part.took.operations, part.took.blocks),
            (2, 2, 3)
        );
        let data: Vec<u64> = part.runs.iter().map(Run::data_bytes).collect();
        assert_eq!(data, [0, 2 * BLOCK, 0, BLOCK, 0]);
        // Without turns it is the same.
        let any = part_of(
            &engine,
            dvol,
            What::Everything,
            within,
            parts(8, 4),
            &AnyTime,
        );
        assert_eq!(any.await, Ok(part));
    });
}
