//! What clients of the native protocol may ask of a volume while it is moved, and what of several if one of them may be elsewhere.

use flagstone::node::{MovePoint, MoveSpec, MoveState};
use flagstone_wire::batch::{Change, Condition, ReadRange};
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::between::{begin, promise};
use crate::deaths::{NOW, Trap, dead, filled, small, trapped, until, up};
use crate::moves::{self, block, ended, to};
use crate::native::client::Native;
use crate::native::{addresses, volume};
use crate::support::Folder;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// All that changes what a volume is, and what is answered.
fn asked(native: &mut Native, vm: VolumeNo, new: &str) -> [(Operation, Status); 5] {
    let mut sized = |operation, len_bytes| {
        let head = RequestHeader {
            volume: vm,
            len_bytes,
            ..RequestHeader::of(operation)
        };
        (operation, native.ask(head, &[], &[]).status())
    };
    let resized = sized(Operation::Resize, 16 * MIB);
    let reserved = sized(Operation::Reserve, MIB);
    let taken = native.snapshot(&[vm], new).status();
    let mut named = |operation| (operation, native.named(operation, vm, "old").status());
    [
        named(Operation::RollBack),
        named(Operation::DeleteSnapshot),
        (Operation::Snapshot, taken),
        resized,
        reserved,
    ]
}

/// What was copied already would be another volume's there. Its bytes may change all the time.
#[test]
fn nothing_but_the_bytes_of_a_volume_changes_while_it_is_moved() {
    let other = Folder::new();
    let scene = moves::scene(&other);
    let tokens = ["vm", "still"].map(|name| volume(&scene, name, Some(0)));
    let mut native = Native::connect(addresses(&scene)[0]);
    let [vm, still] =
        [("vm", 0), ("still", 1)].map(|(name, of)| native.opened(name, &tokens[of], 0));
    for at in 0..8 {
        native.write(vm, at * MIB, &[5; MIB as usize], 0).lsn();
    }
    assert_eq!(native.snapshot(&[vm], "old").status(), Status::Ok);
    native.write(vm, 0, &block(6), 0).lsn();
    // Two minutes.
    let slow = MoveSpec {
        limit_bytes: Some(64 << 10),
        ..to(Some("other"), None)
    };
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), slow));
    begun.expect("begins");
    let is_copied = || {
        let info = scene.ask(|node| node.show_move("vm".to_owned()));
        (info.expect("is known").copied_bytes > 0).then_some(())
    };
    until("nothing is copied", is_copied);
    for (operation, status) in asked(&mut native, vm, "new") {
        assert_eq!(status, Status::InUse, "{operation:?}");
    }
    let both = native.snapshot(&[still, vm], "both");
    assert_eq!(both.status(), Status::InUse, "{}", both.sentence());
    native.write(vm, BLOCK, &block(7), 0).lsn();
    let lifted = scene.ask(|node| node.limit_move("vm".to_owned(), None));
    lifted.expect("is lifted, since it runs");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    let vm = native.opened("vm", &tokens[0], 0);
    assert_eq!(native.read(vm, 0, BLOCK).payload, block(6));
    assert_eq!(native.read(vm, BLOCK, BLOCK).payload, block(7));
    assert_eq!(native.read(vm, 2 * BLOCK, MIB).payload, [5; MIB as usize]);
    let old = native.opened("vm@old", &tokens[0], 0);
    assert_eq!(native.read(old, 0, MIB).payload, [5; MIB as usize]);
    for (name, token) in [("vm@new", 0), ("vm@both", 0), ("still@both", 1)] {
        let missing = native.open(name, &tokens[token], 0);
        assert_eq!(missing.status(), Status::NotFound, "{name}");
    }
    let shown = scene.show("vm").expect("is there");
    assert_eq!((shown.size_bytes, shown.reserved_bytes), (8 * MIB, 0));
    // And then it can be.
    for (operation, status) in asked(&mut native, vm, "new") {
        assert_eq!(status, Status::Ok, "{operation:?}");
    }
    assert_eq!(native.read(vm, 0, BLOCK).payload, [5; BLOCK as usize]);
}

/// A read of one volume waits until it is known whose it is, which may be for hours. What is asked of it together with others doesn't: all of them have to be
/// looked at in one instant.
#[test]
fn what_is_asked_together_with_a_volume_that_may_be_elsewhere_is_to_come_again() {
    let trap = Trap::at(MovePoint::ArrivalKept);
    let (one, other) = (small(|_| {}), trapped(&trap));
    let tokens = [filled(&one), volume(&one, "free", None)];
    let there = addresses(&other)[0];
    let mut native = Native::connect(addresses(&one)[0]);
    let vm = native.opened("vm", &tokens[0], 0);
    let free = native.opened("free", &tokens[1], 0);
    native.write(free, 0, &block(1), 0).lsn();
    let lsn = native.read(vm, 0, 1).head.lsn;
    let arrival = promise(&one, &other, "vm").expect("promises");
    begin(&one, arrival, "vm").expect("begins");
    trap.until_sprung();
    let range = |volume| ReadRange {
        volume,
        offset_bytes: 0,
        len_bytes: BLOCK,
    };
    let unchanged = |volume| Condition::UnchangedSince {
        volume,
        offset_bytes: 0,
        len_bytes: BLOCK,
        lsn,
    };
    // Whoever waits all the same is late.
    let head = |operation| RequestHeader {
        patience_ms: 5000,
        ..RequestHeader::of(operation)
    };
    let both = [free, vm].map(range);
    let read = native.batch(head(Operation::ReadIf), &[], &both, &[]);
    assert_eq!(read.status(), Status::Busy, "{}", read.sentence());
    let conditions = [unchanged(vm)];
    let free_alone = [range(free)];
    let read = native.batch(head(Operation::ReadIf), &conditions, &free_alone, &[]);
    assert_eq!(read.status(), Status::Busy, "{}", read.sentence());
    let change = Change::Write {
        volume: free,
        offset_bytes: 0,
        len_bytes: BLOCK,
        metadata: 0,
    };
    let commit = head(Operation::Commit);
    let changed = native.batch(commit, &conditions, &[change], &block(2));
    assert_eq!(changed.status(), Status::Busy, "{}", changed.sentence());
    let read = native.batch(head(Operation::ReadIf), &[], &free_alone, &[]);
    assert_eq!(read.status(), Status::Ok, "{}", read.sentence());
    assert_eq!(read.payload, block(1), "and nothing was changed");
    // It stays, as its target has forgotten it.
    let _other = up(dead(other), there);
    until("it isn't known whose it is", || {
        let read = one.show("vm").ok()?;
        read.moving.is_none().then_some(())
    });
    let read = native.batch(head(Operation::ReadIf), &[], &both, &[]);
    assert_eq!(read.status(), Status::Ok, "{}", read.sentence());
    assert_eq!(read.payload, [block(1), block(NOW)].concat());
}
