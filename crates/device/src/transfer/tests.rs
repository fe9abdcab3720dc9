//! How many rounds a move makes, and before which it has changes held, with an origin of which a given number of bytes changes in each.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::*;

const MIB: u64 = 1 << 20;

/// An origin of which so much has changed at each mark, the first being the whole.
struct Written<F> {
    /// Bytes that have changed since the mark before, by the number of the mark and whether changes come more slowly.
    changed: F,
    marks: Cell<u64>,
    is_outrun: Rc<Cell<u32>>,
    copied: RefCell<Vec<u64>>,
    /// Rounds before the hold.
    held_behind: Cell<Option<usize>>,
}

impl<F: Fn(u64, bool) -> u64> Origin for Written<F> {
    async fn content(&self) -> Result<Content, DvolError> {
        Ok(Content {
            size_bytes: 1 << 40,
            snapshots: Vec::new(),
            expected_bytes: 0,
            epoch: Epoch(Epoch::PER_MOVE),
        })
    }

    async fn part(
        &self,
        _: Option<LayerNo>,
        _: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        let bytes = (self.changed)(self.marks.get(), self.is_outrun.get() > 0);
        // Several parts a round, as it is for real.
        let part_bytes = bytes.div_ceil(3);
        let left = bytes.saturating_sub(within.start);
        let mut copied = self.copied.borrow_mut();
        if within.start == 0 {
            copied.push(0);
        }
        if let Some(round) = copied.last_mut() {
            *round += part_bytes.min(left);
        }
        let data = vec![0; part_bytes.min(left) as usize];
        Ok(Part {
            next_bytes: (left > part_bytes).then_some(within.start + part_bytes),
            runs: vec![Run::Data {
                offset_bytes: within.start,
                meta: 0,
                bytes: data,
            }],
            ..Part::default()
        })
    }

    async fn going(&self) -> Result<(), DvolError> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), DvolError> {
        Ok(())
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        self.marks.set(self.marks.get() + 1);
        Ok(Lsn(self.marks.get()))
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        self.held_behind.set(Some(self.copied.borrow().len()));
        Ok(Epoch(0))
    }
}

struct Nowhere;

impl Target for Nowhere {
    async fn begin(&self, _: &Content) -> Result<(), DvolError> {
        Ok(())
    }

    async fn resize(&self, _: u64) -> Result<(), DvolError> {
        Ok(())
    }

    async fn take(&self, _: Vec<Run>) -> Result<(), DvolError> {
        Ok(())
    }

    async fn snapshot(&self, _: &Snapshot, _: Option<Point>) -> Result<(), DvolError> {
        Ok(())
    }

    async fn finish(&self) -> Result<(), DvolError> {
        Ok(())
    }
}

/// Counts how often it is told, and ends a move that has copied too much.
struct Told {
    hurried: Cell<u32>,
    outrun: Rc<Cell<u32>>,
    over: Cell<u32>,
    rest_bytes: Cell<u64>,
}

impl Progress for Told {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        let rest = self.rest_bytes.get().checked_sub(bytes);
        self.rest_bytes.set(rest.ok_or(DvolError::Busy)?);
        Ok(())
    }

    fn hurry(&self) {
        assert_eq!(
            (self.over.get(), self.outrun.get()),
            (0, 0),
            "it is over, or told late"
        );
        self.hurried.set(self.hurried.get() + 1);
    }

    fn outrun(&self) {
        assert_eq!(
            (self.over.get(), self.hurried.get()),
            (0, 1),
            "it is over, or told early"
        );
        self.outrun.set(self.outrun.get() + 1);
    }

    fn over(&self) {
        self.over.set(self.over.get() + 1);
    }
}

/// Moves it. Returns what was copied in each round, how many of those were before the hold, and what was said.
fn moved(
    rest_bytes: u64,
    changed: impl Fn(u64, bool) -> u64,
) -> (Result<(), Failed>, Vec<u64>, Option<usize>, Told) {
    let outrun = Rc::new(Cell::new(0));
    let origin = Written {
        changed,
        marks: Cell::default(),
        is_outrun: outrun.clone(),
        copied: RefCell::default(),
        held_behind: Cell::default(),
    };
    let told = Told {
        hurried: Cell::default(),
        outrun: outrun.clone(),
        over: Cell::new(0),
        rest_bytes: Cell::new(rest_bytes),
    };
    let result = {
        let moving = pin!(move_dvol(&origin, &Nowhere, &told));
        let polled = moving.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(result) = polled else {
            panic!("nothing waits");
        };
        result
    };
    assert_eq!(told.over.get(), 1, "whatever came of it");
    let held = origin.held_behind.get();
    let copied = origin.copied.borrow().clone();
    (result, copied, held, told)
}

#[test]
fn rounds_that_become_smaller_are_left_alone() {
    let (result, copied, held, told) = moved(u64::MAX, |mark, _| (64 * MIB) >> (mark - 1));
    assert_eq!(result, Ok(()));
    // 64, 32, 16, 8, 4, 2, 1, 1/2, 1/4. And what has changed since.
    assert_eq!(copied.len(), 10, "{copied:?}");
    assert_eq!(
        (held, told.hurried.get(), told.outrun.get()),
        (Some(9), 0, 0)
    );
}

/// How many rounds there are before the hold if this changes in each (of the last one as much in all others), how often it is said to hurry, and how often that
/// it is outrun.
fn rounds_of(sizes: &[u64]) -> (Option<usize>, u32, u32) {
    let (result, copied, held, told) = moved(u64::MAX, |mark, _| {
        sizes[(mark as usize - 1).min(sizes.len() - 1)]
    });
    assert_eq!(result, Ok(()), "{copied:?}");
    (held, told.hurried.get(), told.outrun.get())
}

#[test]
fn rounds_end_when_little_is_left() {
    let little = LAST_ROUND_BYTES;
    assert_eq!(rounds_of(&[little]), (Some(1), 0, 0));
    assert_eq!(rounds_of(&[8 * MIB, little]), (Some(2), 0, 0));
    assert_eq!(rounds_of(&[8 * MIB, little + 1, 1]), (Some(3), 0, 0));
    assert_eq!(
        rounds_of(&[8 * MIB, 3 * MIB, MIB, little, 1]),
        (Some(4), 0, 0)
    );
    // Half as much becomes smaller, and a byte more doesn't: more than anybody is held for.
    assert_eq!(rounds_of(&[8 * MIB, 4 * MIB, 1]), (Some(3), 0, 0));
    assert_eq!(rounds_of(&[8 * MIB, 4 * MIB + 1, 1]), (Some(3), 1, 1));
    assert_eq!(rounds_of(&[6 * MIB, 4 * MIB, 1]), (Some(3), 1, 0));
}

#[test]
fn what_stays_as_large_is_held_for_when_hurrying_hasnt_helped() {
    // All, as much again, and three more in a hurry; behind the next one changes are held.
    assert_eq!(rounds_of(&[FAIR_ROUND_BYTES]), (Some(6), 1, 0));
    assert_eq!(rounds_of(&[LAST_ROUND_BYTES + 1]), (Some(6), 1, 0));
    // Rounds that become smaller don't count, and are not held for while they do.
    let smaller = &[4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, MIB, MIB];
    assert_eq!(rounds_of(smaller), (Some(7), 1, 0));
    let then_smaller = &[
        64 * MIB,
        64 * MIB,
        64 * MIB,
        64 * MIB,
        64 * MIB,
        3 * MIB,
        LAST_ROUND_BYTES,
    ];
    assert_eq!(rounds_of(then_smaller), (Some(7), 1, 1));
    // That would be too much to wait for.
    let many = ROUNDS_MANY as usize;
    assert_eq!(rounds_of(&[FAIR_ROUND_BYTES + 1]), (Some(many), 1, 1));
}

#[test]
fn who_writes_much_now_and_then_is_held_for_a_small_round() {
    let now_and_then = [10 * MIB, 3 * MIB].repeat(8);
    assert_eq!(rounds_of(&now_and_then), (Some(8), 1, 1));
    let more = [40 * MIB, 16 * MIB].repeat(8);
    assert_eq!(rounds_of(&more), (Some(ROUNDS_MANY as usize), 1, 1));
}

#[test]
fn a_writer_that_is_as_quick_is_outrun_once_and_then_rounds_become_smaller() {
    let (result, copied, held, told) = moved(u64::MAX, |mark, is_slowed| match is_slowed {
        false => 48 * MIB,
        true => (48 * MIB) >> (mark - 2),
    });
    assert_eq!(result, Ok(()));
    // All of it; as much again, so it is outrun; then always half.
    let sizes: Vec<u64> = copied.iter().map(|bytes| bytes / (192 << 10)).collect();
    assert_eq!(sizes, [256, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1]);
    assert_eq!((held, told.outrun.get()), (Some(10), 1));
}

#[test]
fn nobody_is_held_for_a_large_round_and_after_many_for_a_smaller_one() {
    // As much is written as ever, whoever has been told.
    let large = LATE_ROUND_BYTES + 1;
    let (result, copied, held, told) = moved(40 * large, |_, _| large);
    assert_eq!(result, Err(Failed::Before(DvolError::Busy)));
    assert!(copied.len() >= 40, "{}", copied.len());
    assert_eq!((held, told.outrun.get()), (None, 1));

    let (result, copied, held, told) = moved(u64::MAX, |_, _| LATE_ROUND_BYTES);
    assert_eq!(result, Ok(()));
    let many = ROUNDS_MANY as usize;
    assert_eq!(copied.len(), many + 1);
    assert_eq!((held, told.outrun.get()), (Some(many), 1));
}
