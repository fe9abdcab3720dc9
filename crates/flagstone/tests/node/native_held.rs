//! What clients of the native protocol may ask of a volume while it is moved.

use flagstone::node::{MoveSpec, MoveState};
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::deaths::until;
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
