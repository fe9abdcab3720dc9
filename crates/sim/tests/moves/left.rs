//! A copy that a move has left goes on only as a copy of just what there is, and without what it can't know; and a round that went on is followed by
//! as many as it takes.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{CreateDvol, DvolError, Engine, EngineOptions, Handle, Stability};
use flagstone_device::transfer::{
    Content, DvolOrigin, DvolTarget, Failed, LAST_ROUND_BYTES, Marks, NewDvol, Origin, Part, Parts,
    Phase, Point, Progress, Target, What, move_dvol,
};
use flagstone_platform::Platform;
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};
use flagstone_types::{Epoch, LayerNo, Lsn};

use super::{
    BLOCK, ID, LIMIT_NS, TestMarks, Until, content, copy_of, new_dvol, whole, with_engines,
};
use crate::engine_support::begin;

const PART: u64 = 4 * BLOCK;
const POINT_AFTER: u64 = 8 * BLOCK;

fn new_copy() -> NewDvol {
    NewDvol {
        id: ID,
        name: "vm".into(),
        reserved_bytes: 0,
        attributes: [0; _],
    }
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, blocks: Range<u64>, number: u64) {
    for block in blocks {
        let write = engine.write(dvol, block * BLOCK, content(number), Stability::Stable);
        write.await.expect("writes");
    }
}

/// An origin with two snapshots, of 40 blocks each.
async fn origin_of(from: &Engine<SimPlatform>) -> (Handle, DvolOrigin<SimPlatform, TestMarks>) {
    let dvol = from.create(new_dvol()).await.expect("creates");
    for (number, name) in [(1, "one"), (2, "two")] {
        write(from, dvol, 0..40, number).await;
        let taken = from.snapshot(&[(dvol, name.to_owned())]).await;
        taken.expect("takes a snapshot");
    }
    write(from, dvol, 0..40, 3).await;
    let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
    origin.set_parts(Parts {
        bytes: PART,
        ..Parts::QUICK
    });
    (dvol, origin)
}

/// Moves it until so many bytes are copied, and leaves a copy with a point.
async fn cut_off(
    origin: &impl Origin,
    to: &Engine<SimPlatform>,
    behind_bytes: u64,
) -> (Handle, Point) {
    let target = copy_of(to).with_points(POINT_AFTER);
    let moved = move_dvol(origin, &target, &Until(Cell::new(behind_bytes))).await;
    assert_eq!(moved, Err(Failed::Before(DvolError::Busy)));
    let copy = target.made().expect("was made");
    let point = TestMarks.point_of(&to.attributes_of(copy).expect("is there"));
    (copy, point.expect("has a point"))
}

/// Bytes that are copied until the move is in the second snapshot, and until it copies what is now.
const IN_SECOND: u64 = 60 * BLOCK;
const IN_NOW: u64 = 100 * BLOCK;

#[test]
fn a_copy_goes_on_only_if_all_is_as_it_was() {
    type Change = fn(&mut Content, &mut NewDvol);
    let same: Change = |_, _| {};
    let other: &[(&str, u64, Change)] = &[
        ("name", IN_SECOND, |_, new| new.name = "other".into()),
        ("reservation", IN_SECOND, |_, new| {
            new.reserved_bytes = BLOCK
        }),
        ("epoch", IN_SECOND, |content, _| content.epoch.0 += 1),
        ("a snapshot's name", IN_SECOND, |content, _| {
            content.snapshots[0].name = "none".into();
        }),
        ("a snapshot's time", IN_SECOND, |content, _| {
            content.snapshots[0].created_ns += 1;
        }),
        ("a snapshot's size", IN_SECOND, |content, _| {
            content.snapshots[0].size_bytes += BLOCK;
        }),
        ("the next one's size", IN_SECOND, |content, _| {
            content.snapshots[1].size_bytes += BLOCK;
        }),
        ("the next one", IN_SECOND, |content, _| {
            content.snapshots[1].layer = LayerNo(77);
        }),
        ("the next one is gone", IN_SECOND, |content, _| {
            content.snapshots.truncate(1);
        }),
        ("the first one is gone", IN_SECOND, |content, _| {
            content.snapshots.remove(0);
        }),
        ("all are gone", IN_SECOND, |content, _| {
            content.snapshots.clear();
        }),
        ("size", IN_NOW, |content, _| content.size_bytes += BLOCK),
        ("one more", IN_NOW, |content, _| {
            let mut third = content.snapshots[1].clone();
            third.layer = LayerNo(third.layer.0 + 1);
            content.snapshots.push(third);
        }),
    ];
    let same = [("", IN_SECOND, same), ("", IN_NOW, same)];
    for &(what, behind_bytes, change) in same.iter().chain(other) {
        with_engines(move |[from, to]| async move {
            let (_, origin) = origin_of(&from).await;
            let mut content = origin.content().await.expect("is there");
            let (copy, point) = cut_off(&origin, &to, behind_bytes).await;
            assert!(point.offset_bytes > 0, "{point:?}");
            assert_eq!(point.of.is_none(), behind_bytes == IN_NOW, "{point:?}");
            let mut new = new_copy();
            change(&mut content, &mut new);
            let target = DvolTarget::new(to.clone(), TestMarks, new).left_at(copy);
            let resumed = target.resume(&content).await.expect("is answered");
            match what {
                "" => assert_eq!(resumed.expect("goes on").point, point),
                what => assert_eq!(resumed, None, "{what}"),
            }
            // What doesn't go on is gone.
            assert_eq!(to.dvols().len(), usize::from(what.is_empty()), "{what}");
        });
    }
}

/// Notes what the move is said to have copied before.
struct Before(Until, Cell<Option<u64>>);

impl Progress for Before {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        self.0.copied(bytes).await
    }

    fn resumed(&self, copied_bytes: u64) {
        self.1.set(Some(copied_bytes));
    }
}

/// What the copy had is counted no more. Its space comes back only while it is reaped, and without that the device has no room for another one.
#[test]
fn a_move_begins_anew_where_there_is_no_room_for_two_copies() {
    with_engines(|[from, to]| async move {
        let new = CreateDvol {
            size_bytes: MANY * BLOCK,
            ..new_dvol()
        };
        let dvol = from.create(new).await.expect("creates");
        write(&from, dvol, 0..MANY, 1).await;
        let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let (copy, _) = cut_off(&origin, &to, (MANY - 100) * BLOCK).await;
        let space = to.space();
        let free_bytes = space.open_bytes + space.unowned_bytes - space.kept_bytes;
        let rest_bytes = (free_bytes - MANY * BLOCK / 2) / BLOCK * BLOCK;
        let filler = CreateDvol {
            name: "filler".into(),
            id: None,
            size_bytes: rest_bytes,
            reserved_bytes: rest_bytes,
        };
        to.create(filler).await.expect("creates");
        let moved = Before(Until(Cell::new(u64::MAX)), Cell::default());
        // The name is another one by now.
        let new = NewDvol {
            name: "other".into(),
            ..new_copy()
        };
        let target = DvolTarget::new(to.clone(), TestMarks, new).with_points(POINT_AFTER);
        let target = target.left_at(copy);
        assert_eq!(move_dvol(&origin, &target, &moved).await, Ok(()));
        assert_eq!(moved.1.get(), Some(0));
        let made = target.made().expect("was made");
        assert!(whole(&to, made).await == whole(&from, dvol).await);
    });
}

/// It ended before it had said once more that it goes on.
#[test]
fn a_move_that_is_cut_off_before_it_goes_on_still_goes_on() {
    with_engines(|[from, to]| async move {
        let (dvol, origin) = origin_of(&from).await;
        cut_off(&origin, &to, IN_NOW).await;
        let attributes = || from.attributes_of(dvol).expect("is there");
        let going = attributes();
        assert_ne!(going, TestMarks.plain(&going));
        let again = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let again = again.that_is_going();
        assert_eq!(again.interrupt().await, Ok(()));
        assert_eq!(attributes(), going);
        // One that has left nothing doesn't.
        let other = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        assert_eq!(other.interrupt().await, Ok(()));
        assert_eq!(attributes(), TestMarks.plain(&going));
    });
}

/// What was overwritten since a snapshot that only a clone needs any more.
#[test]
fn what_only_a_clone_needs_is_not_part_of_a_copy() {
    with_engines(|[from, _]| async move {
        let (dvol, _) = origin_of(&from).await;
        let copied = |dvol| from.copy_bytes_of(dvol).expect("is there");
        assert_eq!(copied(dvol), 3 * 40 * BLOCK);
        let one = from.layer(ID, "one").expect("is there").handle;
        let new = CreateDvol {
            name: "clone".into(),
            id: None,
            ..new_dvol()
        };
        let clone = from.clone_of(one, new).await.expect("is cloned");
        assert_eq!(copied(clone), 40 * BLOCK);
        from.delete_layer(one).await.expect("is deleted");
        assert_eq!(copied(dvol), 2 * 40 * BLOCK);
        assert_eq!(from.own_bytes_of(dvol), Ok(3 * 40 * BLOCK));
        let content = origin_content(&from, dvol).await;
        assert_eq!(content.expected_bytes, 2 * 40 * BLOCK);
    });
}

async fn origin_content(from: &Engine<SimPlatform>, dvol: Handle) -> Content {
    let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
    origin.content().await.expect("is there")
}

/// The copy was changed by somebody else.
#[test]
fn a_copy_with_another_snapshot_does_not_go_on() {
    with_engines(|[from, to]| async move {
        let (_, origin) = origin_of(&from).await;
        let content = origin.content().await.expect("is there");
        let (copy, _) = cut_off(&origin, &to, IN_SECOND).await;
        let taken = to.snapshot(&[(copy, "more".to_owned())]).await;
        taken.expect("takes a snapshot");
        let target = copy_of(&to).left_at(copy);
        assert_eq!(target.resume(&content).await, Ok(None));
    });
}

/// What the copy has behind its point can't be found out any more.
#[test]
fn a_copy_that_has_forgotten_what_it_got_behind_its_point_does_not_go_on() {
    let world = World::new(11);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let disks = [64 << 20, 64 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
        let from = begin(&platform, &disks[0], EngineOptions::default()).await;
        let forgetful = EngineOptions {
            tombstones_max: 2,
            ..EngineOptions::default()
        };
        let to = begin(&platform, &disks[1], forgetful).await;
        let (dvol, origin) = origin_of(&from).await;
        let (copy, point) = cut_off(&origin, &to, IN_NOW).await;
        let is_known = || to.floor_of(copy).expect("is there") <= point.lsn;
        for _ in 0..20 {
            for block in 41..96 {
                write(&to, copy, block..block + 1, 9).await;
                let gone = to.deallocate(copy, block * BLOCK, BLOCK, Stability::Stable);
                gone.await.expect("deallocates");
            }
            platform.sleep_ns(3_000_000_000).await;
        }
        assert!(!is_known(), "all of it is remembered");
        // It begins anew, and what was written there is nowhere.
        let target = copy_of(&to).with_points(POINT_AFTER).left_at(copy);
        let moved = Before(Until(Cell::new(u64::MAX)), Cell::default());
        assert_eq!(move_dvol(&origin, &target, &moved).await, Ok(()));
        assert_eq!(moved.1.get(), Some(0));
        let made = target.made().expect("was made");
        assert_eq!(whole(&to, made).await, whole(&from, dvol).await);
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get());
}

/// The origin, of which it isn't known any more what changed: each part that asks that is refused.
struct Forgetful<'a> {
    origin: &'a DvolOrigin<SimPlatform, TestMarks>,
    refused: Cell<u32>,
    most: u32,
}

impl Origin for Forgetful<'_> {
    async fn content(&self) -> Result<Content, DvolError> {
        self.origin.content().await
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        if matches!(what, What::ChangedSince(_)) && self.refused.get() < self.most {
            self.refused.set(self.refused.get() + 1);
            return Err(DvolError::HistoryForgotten);
        }
        self.origin.part(of, what, within).await
    }

    async fn going(&self) -> Result<(), DvolError> {
        self.origin.going().await
    }

    async fn settle(&self) -> Result<(), DvolError> {
        self.origin.settle().await
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        self.origin.mark().await
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        self.origin.hold().await
    }
}

/// The point names an LSN of the origin, and the origin has forgotten what changed since.
#[test]
fn a_move_goes_on_though_what_changed_since_its_point_is_forgotten() {
    for behind_bytes in [IN_SECOND, IN_NOW] {
        with_engines(move |[from, to]| async move {
            let (dvol, origin) = origin_of(&from).await;
            let (copy, point) = cut_off(&origin, &to, behind_bytes).await;
            assert!(matches!(point.what, What::ChangedSince(_)), "{point:?}");
            // Where the copy is done already, and where nothing is any more.
            write(&from, dvol, 0..2, 4).await;
            let gone = from.deallocate(dvol, BLOCK, BLOCK, Stability::Stable);
            gone.await.expect("deallocates");
            let forgetful = Forgetful {
                origin: &origin,
                refused: Cell::new(0),
                most: 1,
            };
            let target = copy_of(&to).with_points(POINT_AFTER).left_at(copy);
            let moved = move_dvol(&forgetful, &target, &Until(Cell::new(u64::MAX))).await;
            assert_eq!(moved, Ok(()));
            assert_eq!(forgetful.refused.get(), 1);
            assert_eq!(target.made(), Some(copy), "the same goes on");
            assert_eq!(whole(&to, copy).await, whole(&from, dvol).await);
            for name in ["one", "two"] {
                let [here, there] = [&from, &to].map(|engine| engine.layer(ID, name));
                let (here, there) = (here.expect("is there"), there.expect("is there"));
                assert_eq!(
                    whole(&to, there.handle).await,
                    whole(&from, here.handle).await
                );
            }
        });
    }
}

/// Blocks of a dvol of which a round can have much, and how many are written in each round.
const MANY: u64 = 3000;
const WRITTEN: u64 = 1100;

/// The origin, of which much is written just behind each of the first marks, each time elsewhere: so much that no round is the last one.
struct Busy<'a> {
    origin: &'a DvolOrigin<SimPlatform, TestMarks>,
    from: (Engine<SimPlatform>, Handle),
    marks: &'a Cell<u64>,
    most: u64,
}

impl Origin for Busy<'_> {
    async fn content(&self) -> Result<Content, DvolError> {
        self.origin.content().await
    }

    async fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<Part, DvolError> {
        self.origin.part(of, what, within).await
    }

    async fn going(&self) -> Result<(), DvolError> {
        self.origin.going().await
    }

    async fn settle(&self) -> Result<(), DvolError> {
        self.origin.settle().await
    }

    async fn mark(&self) -> Result<Lsn, DvolError> {
        let lsn = self.origin.mark().await?;
        let nth = self.marks.get() + 1;
        self.marks.set(nth);
        if nth <= self.most {
            let first = nth * 700 % (MANY - WRITTEN);
            let (engine, dvol) = &self.from;
            write(engine, *dvol, first..first + WRITTEN, 100 + nth).await;
        }
        Ok(lsn)
    }

    async fn hold(&self) -> Result<Epoch, DvolError> {
        self.origin.hold().await
    }
}

/// Notes what the move did.
struct Phases(Until, std::cell::RefCell<Vec<Phase>>);

impl Progress for Phases {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        self.0.copied(bytes).await
    }

    fn phase(&self, phase: Phase) {
        self.1.borrow_mut().push(phase);
    }
}

#[test]
fn a_round_that_went_on_is_followed_by_others_while_much_is_written() {
    const { assert!(WRITTEN * BLOCK > LAST_ROUND_BYTES) };
    with_engines(|[from, to]| async move {
        let new = flagstone_device::engine::CreateDvol {
            size_bytes: MANY * BLOCK,
            ..new_dvol()
        };
        let dvol = from.create(new).await.expect("creates");
        write(&from, dvol, 0..MANY, 1).await;
        let taken = from.snapshot(&[(dvol, "one".to_owned())]).await;
        taken.expect("takes a snapshot");
        let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let marks = Cell::new(0);
        let busy = Busy {
            origin: &origin,
            from: (from.clone(), dvol),
            marks: &marks,
            most: 4,
        };
        // The snapshot, what was written behind the first mark, and half of what was behind the second one.
        let behind_bytes = (MANY + WRITTEN + WRITTEN / 2) * BLOCK;
        let (copy, point) = cut_off(&busy, &to, behind_bytes).await;
        assert_eq!((point.of, marks.get()), (None, 2), "{point:?}");
        assert!(point.offset_bytes > 0, "{point:?}");
        let phases = Phases(Until(Cell::new(u64::MAX)), Default::default());
        let target = copy_of(&to).with_points(POINT_AFTER).left_at(copy);
        let moved = move_dvol(&busy, &target, &phases).await;
        assert_eq!(moved, Ok(()));
        // The one that went on; those of the marks 3 to 5, which have what was written behind the mark before; and one in which there is nothing.
        assert_eq!(marks.get(), 6);
        let catching_up = |round| Phase::CatchingUp { round };
        let expected = [
            Phase::Now,
            catching_up(1),
            catching_up(2),
            catching_up(3),
            catching_up(4),
            Phase::Switching,
        ];
        assert_eq!(*phases.1.borrow(), expected);
        assert!(
            whole(&to, copy).await == whole(&from, dvol).await,
            "what arrives is the origin"
        );
    });
}

#[test]
fn a_move_says_what_it_does() {
    with_engines(|[from, to]| async move {
        let (_, origin) = origin_of(&from).await;
        let phases = Phases(Until(Cell::new(u64::MAX)), Default::default());
        let target = copy_of(&to);
        assert_eq!(move_dvol(&origin, &target, &phases).await, Ok(()));
        let snapshot = |number| Phase::Snapshot { number, of: 2 };
        let expected = [snapshot(1), snapshot(2), Phase::Now, Phase::Switching];
        assert_eq!(*phases.1.borrow(), expected);
    });
}
