//! What members do at the same time, what comes of their errors, and what is refused.

use flagstone_platform::IoBuf;
use flagstone_types::Lsn;

use super::member::{Call, Driven, Log, Member, Stage, bytes_of, now};
use crate::striped::{Layout, Striped};
use crate::volume::{Piece, Stability, Volume, VolumeError};

const UNIT: u64 = 64 << 10;
const STABLE: Stability = Stability::Stable;
const UNSTABLE: Stability = Stability::Unstable;

/// Three members with four units each.
fn stage() -> Stage {
    Stage::new(Layout::new(3, UNIT).unwrap(), 12 * UNIT, UNIT)
}

/// So many bytes, other ones in each unit and block.
fn data(len: u64) -> IoBuf {
    let mut data = IoBuf::zeroed(len as usize);
    for (at, byte) in data.bytes_mut().iter_mut().enumerate() {
        *byte = (at / 4096 * 7 + at % 251) as u8;
    }
    data
}

#[test]
fn there_are_as_many_members_as_the_layout_has() {
    let log = Log::default();
    for count in [0, 2, 4] {
        let members = (0..count).map(|number| Member::new(number, 1 << 20, &log));
        let layout = Layout::new(3, UNIT).unwrap();
        assert!(Striped::new(layout, members.collect(), || Some(1)).is_none());
    }
    let stage = stage();
    assert_eq!(stage.volume.layout(), Layout::new(3, UNIT).unwrap());
    assert_eq!(stage.volume.members().len(), 3);
}

#[test]
fn a_read_comes_in_order_whoever_answers_first() {
    let stage = stage();
    let data = data(12 * UNIT);
    assert_eq!(now(stage.volume.write(0, data.clone(), UNSTABLE)), Ok(()));
    stage.calls();
    stage.hold();
    let (offset, len) = (UNIT - 100, 6 * UNIT + 200);
    let mut read = Driven::new(stage.volume.read(offset, len as u32));
    assert!(read.poll().is_none());
    let begun = stage.calls();
    let expected = [
        (0, Call::Read(UNIT - 100, 100)),
        (1, Call::Read(0, UNIT as u32)),
        (2, Call::Read(0, UNIT as u32)),
        (0, Call::Read(UNIT, UNIT as u32)),
        (1, Call::Read(UNIT, UNIT as u32)),
        (2, Call::Read(UNIT, UNIT as u32)),
        (0, Call::Read(2 * UNIT, UNIT as u32)),
        (1, Call::Read(2 * UNIT, 100)),
    ];
    assert_eq!(begun, expected, "all at once");
    let order = [(1, 2), (2, 1), (0, 2), (1, 0), (0, 0), (2, 0), (1, 1)];
    for (member, nth) in order {
        let before = read.wakes.count();
        stage.members[member].release(nth);
        assert!(read.wakes.count() > before, "who waits is woken");
        assert!(read.poll().is_none());
    }
    stage.members[0].release(1);
    let read = read.poll().expect("the last has ended").unwrap();
    assert!(bytes_of(&read) == data[offset as usize..(offset + len) as usize]);
}

#[test]
fn only_those_are_polled_that_were_woken() {
    let stage = stage();
    stage.hold();
    let mut write = Driven::new(stage.volume.write(0, data(12 * UNIT), UNSTABLE));
    assert!(write.poll().is_none());
    assert!(write.poll().is_none());
    let polls = || stage.members.iter().map(|m| m.polls.get()).sum::<usize>();
    assert_eq!(polls(), 12, "once each");
    stage.members[1].release(2);
    assert!(write.poll().is_none());
    assert_eq!(polls(), 13);
    // Another task waits for it from now on, and is the one that is woken.
    let old = std::mem::take(&mut write.wakes);
    assert!(write.poll().is_none());
    let before = (old.count(), write.wakes.count());
    stage.members[2].release(3);
    assert_eq!((old.count(), write.wakes.count()), (before.0, before.1 + 1));
    for (member, nth) in (0..3).flat_map(|member| (0..4).map(move |nth| (member, nth))) {
        if (member, nth) != (1, 2) && (member, nth) != (2, 3) {
            stage.members[member].release(nth);
        }
    }
    assert_eq!(write.poll(), Some(Ok(())));
}

#[test]
fn what_overlaps_begins_in_the_same_order_everywhere() {
    let stage = stage();
    stage.hold();
    let (mut one, mut two) = (
        Driven::new(stage.volume.write(0, data(6 * UNIT), UNSTABLE)),
        Driven::new(stage.volume.deallocate(0, 6 * UNIT, UNSTABLE)),
    );
    assert!(one.poll().is_none() && two.poll().is_none());
    let begun = stage.calls();
    let is_write = |(_, call): &(usize, Call)| matches!(call, Call::Write(..));
    assert_eq!(begun.len(), 9);
    assert!(begun[..6].iter().all(is_write) && !begun[6..].iter().any(is_write));
}

#[test]
fn a_failed_piece_waits_for_the_others() {
    let stage = stage();
    stage.hold();
    let failures = [(1, VolumeError::NoSpace), (2, VolumeError::Corrupt)];
    for (member, error) in failures {
        stage.members[member]
            .failures
            .borrow_mut()
            .push_back(Some(error));
    }
    let mut write = Driven::new(stage.volume.write(
        10,
        data(4 * UNIT).narrow(10..4 * UNIT as usize),
        STABLE,
    ));
    assert!(write.poll().is_none());
    assert_eq!(stage.calls().len(), 4);
    // The later error comes first.
    for (member, nth) in [(2, 0), (1, 0), (0, 1)] {
        stage.members[member].release(nth);
        assert!(write.poll().is_none(), "one is under way");
    }
    stage.members[0].release(0);
    assert_eq!(write.poll(), Some(Err(VolumeError::NoSpace)));
    let ended = stage.members.iter().map(|member| member.ended.get());
    assert_eq!(ended.sum::<usize>(), 4);
    drop(write);
    // What didn't fail was written.
    assert_eq!(stage.members[0].written.borrow().len(), 2);
}

/// Begins an operation of all three members, of which the first and the last fail, and ends them in an order
/// that isn't theirs.
fn ends_together(begin: impl AsyncFnOnce(&Striped<Member>) -> Result<(), VolumeError>) {
    let stage = stage();
    stage.hold();
    let failures = [(0, VolumeError::Fenced), (2, VolumeError::Device)];
    for (member, error) in failures {
        stage.members[member]
            .failures
            .borrow_mut()
            .push_back(Some(error));
    }
    let mut change = Driven::new(begin(&stage.volume));
    assert!(change.poll().is_none());
    assert_eq!(stage.calls().len(), 3, "all at once");
    for member in [2, 0] {
        stage.members[member].release(0);
        assert!(change.poll().is_none(), "one is under way");
    }
    stage.members[1].release(0);
    assert_eq!(change.poll(), Some(Err(VolumeError::Fenced)));
}

#[test]
fn changes_of_all_members_end_together() {
    let (offset, len) = (100, 12 * UNIT - 200);
    ends_together(async |volume| volume.flush().await);
    ends_together(async |volume| volume.deallocate(offset, len, UNSTABLE).await);
    ends_together(async |volume| volume.write_zeroes(offset, len, true, STABLE).await);
    // The first error in order of the range, not of the members.
    let stage = stage();
    for (member, error) in [(0, VolumeError::Device), (2, VolumeError::Corrupt)] {
        stage.members[member]
            .failures
            .borrow_mut()
            .push_back(Some(error));
    }
    let cleared = stage.volume.deallocate(2 * UNIT, 3 * UNIT, UNSTABLE);
    assert_eq!(now(cleared), Err(VolumeError::Corrupt));
}

#[test]
fn a_flush_reaches_every_member() {
    let stage = stage();
    let clone = stage.volume.clone();
    assert_eq!(now(stage.volume.write(UNIT, data(9), UNSTABLE)), Ok(()));
    assert_eq!(now(clone.flush()), Ok(()));
    let calls = stage.calls();
    let flushes = [(0, Call::Flush), (1, Call::Flush), (2, Call::Flush)];
    assert_eq!(calls[1..], flushes);
    // Also if nothing is known to have changed: others may have done it.
    assert_eq!(now(stage.volume.flush()), Ok(()));
    assert_eq!(stage.calls(), flushes);
    for member in 0..3 {
        let failures = &stage.members[member].failures;
        failures.borrow_mut().push_back(Some(VolumeError::Fenced));
        assert_eq!(now(stage.volume.flush()), Err(VolumeError::Fenced));
    }
}

#[test]
fn what_lies_within_one_unit_is_handed_on_as_it_is() {
    let stage = stage();
    let volume = &stage.volume;
    let whole = data(UNIT);
    assert_eq!(now(volume.write(4 * UNIT, whole.clone(), STABLE)), Ok(()));
    assert_eq!(
        stage.members[1].written.borrow()[0].as_ptr(),
        whole.as_ptr()
    );
    let read = now(volume.read(5 * UNIT - 9, 9)).unwrap();
    let Piece::Data(found) = &read[0] else {
        panic!("it was written");
    };
    let left = stage.members[1].read.take().unwrap();
    assert_eq!((found.as_ptr(), found.len()), (left.as_ptr(), 9));
    assert_eq!(read.len(), 2, "nothing is put together");
    let _ = now(volume.deallocate(11 * UNIT, UNIT, STABLE));
    let _ = now(volume.write_zeroes(6 * UNIT + 1, UNIT - 1, true, STABLE));
    let _ = now(volume.allocation(UNIT, 5, 77));
    let expected = [
        (1, Call::Write(UNIT, UNIT, STABLE)),
        (1, Call::Read(2 * UNIT - 9, 9)),
        (2, Call::Deallocate(3 * UNIT, UNIT, STABLE)),
        (0, Call::WriteZeroes(2 * UNIT + 1, UNIT - 1, true, STABLE)),
        (1, Call::Allocation(0, 5, 77)),
    ];
    assert_eq!(stage.calls(), expected);
    // The member's own future is polled by whoever waits, without anything between.
    stage.hold();
    for (offset, polls) in [(UNIT, 2), (UNIT + 1, 3)] {
        let mut read = Driven::new(volume.read(offset, UNIT as u32));
        assert!(read.poll().is_none() && read.poll().is_none());
        assert_eq!(stage.members[1].polls.get(), polls);
    }
}

#[test]
fn pieces_of_a_write_are_not_copied() {
    let stage = stage();
    let all = data(3 * UNIT);
    assert_eq!(now(stage.volume.write(UNIT, all.clone(), STABLE)), Ok(()));
    for (member, at) in [(1, 0), (2, UNIT), (0, 2 * UNIT)] {
        let written = stage.members[member].written.borrow();
        assert_eq!(written[0].as_ptr(), all[at as usize..].as_ptr());
    }
}

#[test]
fn an_empty_range_is_one_member_s() {
    let stage = stage();
    let end = 12 * UNIT;
    assert!(now(stage.volume.read(end, 0)).unwrap().is_empty());
    assert_eq!(now(stage.volume.write(UNIT, data(0), STABLE)), Ok(()));
    let expected = [(0, Call::Read(4 * UNIT, 0)), (1, Call::Write(0, 0, STABLE))];
    assert_eq!(stage.calls(), expected);
}

#[test]
fn a_member_s_wrong_length_moves_nothing() {
    // Of the last ones, two make up for each other.
    for (first, second) in [(1, 0), (0, 1), (-1, 0), (0, -1), (1, -1), (-1, 1)] {
        let stage = stage();
        stage.members[0].wrong_by.set(first);
        stage.members[1].wrong_by.set(second);
        let read = now(stage.volume.read(0, 2 * UNIT as u32));
        assert_eq!(read.err(), Some(VolumeError::Device));
    }
}

#[test]
fn reads_tell_the_first_error_in_order() {
    let stage = stage();
    for (member, error) in [(0, VolumeError::Device), (2, VolumeError::Corrupt)] {
        stage.members[member]
            .failures
            .borrow_mut()
            .push_back(Some(error));
    }
    let read = now(stage.volume.read(UNIT, 3 * UNIT as u32));
    assert_eq!(read.err(), Some(VolumeError::Corrupt));
    for (member, error) in [(0, VolumeError::Device), (2, VolumeError::Corrupt)] {
        stage.members[member]
            .failures
            .borrow_mut()
            .push_back(Some(error));
    }
    let told = now(stage.volume.allocation(UNIT, 3 * UNIT, 9));
    assert_eq!(told.err(), Some(VolumeError::Corrupt));
}

/// What everything that has a range says to one.
fn all_say(stage: &Stage, offset: u64, len: u32, error: VolumeError) {
    let (volume, long) = (&stage.volume, u64::from(len));
    assert_eq!(now(volume.read(offset, len)).err(), Some(error));
    let buf =
        IoBuf::zeroed(8192).narrow(offset as usize % 4096..offset as usize % 4096 + len as usize);
    assert_eq!(now(volume.write(offset, buf, STABLE)), Err(error));
    assert_eq!(now(volume.deallocate(offset, long, STABLE)), Err(error));
    let zeroing = volume.write_zeroes(offset, long, false, STABLE);
    assert_eq!(now(zeroing), Err(error));
    assert_eq!(now(volume.allocation(offset, long, 9)), Err(error));
    let changed = volume.changed_since(Lsn(1), offset, long, 9);
    assert_eq!(now(changed), Err(error));
    assert_eq!(stage.calls(), [], "no member is asked");
}

#[test]
fn nothing_comes_to_what_is_behind_the_size() {
    let stage = stage();
    for (offset, len) in [
        (12 * UNIT, 1),
        (12 * UNIT - 1, 2),
        (u64::MAX, 2),
        (13 * UNIT, 0),
    ] {
        all_say(&stage, offset, len, VolumeError::OutOfRange);
    }
    assert_eq!(now(stage.volume.read(12 * UNIT - 1, 1)).map(|_| ()), Ok(()));
    // The size is asked for each time.
    stage.calls();
    stage.size.set(Some(7 * UNIT - 1));
    assert_eq!(stage.volume.size_bytes(), Some(7 * UNIT - 1));
    all_say(&stage, 7 * UNIT - 2, 2, VolumeError::OutOfRange);
    stage.size.set(None);
    assert_eq!(stage.volume.size_bytes(), None);
    for (offset, len) in [(0, 0), (0, 1), (u64::MAX, 2)] {
        all_say(&stage, offset, len, VolumeError::Gone);
    }
    assert_eq!(now(stage.volume.flush()), Err(VolumeError::Gone));
    assert_eq!(stage.calls(), []);
}

#[test]
fn it_is_read_only_if_a_member_is() {
    for member in 0..3 {
        let stage = stage();
        assert!(!stage.volume.is_read_only());
        stage.members[member].read_only.set(true);
        assert!(stage.volume.is_read_only());
    }
}

#[test]
fn what_changed_is_not_known() {
    let stage = stage();
    let changed = stage.volume.changed_since(Lsn(1), 0, 12 * UNIT, 9);
    assert_eq!(now(changed), Err(VolumeError::Unsupported));
}
