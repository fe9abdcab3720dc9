//! Who was locked out by somebody who has opened a volume alone: with what may be asked of several volumes at once, behind moves, and while the epoch is
//! just being raised.

use flagstone_types::{Epoch, Lsn};
use flagstone_wire::batch::{Change, Condition, ReadRange};
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::client::{READ, TRIM, ZEROES};
use crate::moves::{self, moved, to};
use crate::native::client::Native;
use crate::native::{addresses, listening, volume};
use crate::support::{Folder, Scene};

const BLOCK: u64 = 4096;

fn change(volume: VolumeNo) -> Change {
    Change::Write {
        volume,
        offset_bytes: 0,
        len_bytes: 512,
        metadata: 0,
    }
}

fn commit(native: &mut Native, conditions: &[Condition], volumes: &[VolumeNo], byte: u8) -> Status {
    let changes: Vec<Change> = volumes.iter().copied().map(change).collect();
    let bytes = vec![byte; 512 * changes.len()];
    let head = RequestHeader::of(Operation::Commit);
    native.batch(head, conditions, &changes, &bytes).status()
}

/// Also if only one of several was opened alone by somebody else: then nothing of it is done.
#[test]
fn who_is_locked_out_commits_nothing_and_takes_no_snapshot() {
    let scene = Scene::with(listening);
    let names = ["free", "taken"];
    let tokens = names.map(|name| volume(&scene, name, None));
    let at = addresses(&scene)[0];
    let mut first = Native::connect(at);
    let [free, taken] = [0, 1].map(|of| first.opened(names[of], &tokens[of], 0));
    assert_eq!(commit(&mut first, &[], &[free, taken], 1), Status::Ok);
    let mut second = Native::connect(at);
    let mine = second.opened("taken", &tokens[1], flag::ALONE);
    for volumes in [&[taken][..], &[free, taken]] {
        let refused = commit(&mut first, &[], volumes, 2);
        assert_eq!(refused, Status::StaleEpoch, "{volumes:?}");
        let refused = first.snapshot(volumes, "s").status();
        assert_eq!(refused, Status::StaleEpoch, "{volumes:?}");
    }
    for (of, volume) in [free, taken].into_iter().enumerate() {
        let name = names[of];
        assert_eq!(first.read(volume, 0, 512).payload, [1; 512], "{name}");
        let snapshot = first.open(&format!("{name}@s"), &tokens[of], 0);
        assert_eq!(snapshot.status(), Status::NotFound, "{name}");
    }
    // What nobody has taken is his still, and the other one's is whose it is now.
    assert_eq!(commit(&mut first, &[], &[free], 3), Status::Ok);
    assert_eq!(first.snapshot(&[free], "s").status(), Status::Ok);
    assert_eq!(commit(&mut second, &[], &[mine], 4), Status::Ok);
    assert_eq!(second.snapshot(&[mine], "s").status(), Status::Ok);
    assert_eq!(second.read(mine, 0, 512).payload, [4; 512]);
}

/// What it asks is passed on to where the volume is now, in the epoch in which it was attached. Who came behind that goes on.
#[test]
fn a_client_of_nbd_that_was_locked_out_stays_so_behind_moves() {
    let other = Folder::new();
    let scene = moves::scene(&other);
    let token = volume(&scene, "vm", Some(0));
    let mut old = scene.attach("vm");
    assert_eq!(old.write(0, &[1; BLOCK as usize]), 0);
    let mut native = Native::connect(addresses(&scene)[0]);
    native.opened("vm", &token, flag::ALONE);
    let mut new = scene.attach("vm");
    // To another core, to another device there, and back: each is one move more behind.
    let places = [
        (None, Some(1)),
        (Some("other"), None),
        (Some("main"), Some(0)),
    ];
    for (nth, (device, core)) in places.into_iter().enumerate() {
        moved(&scene, "vm", to(device, core));
        assert_ne!(old.write(0, &[2; BLOCK as usize]), 0, "{nth}");
        for command in [ZEROES, TRIM] {
            let error = old.call_with(0, command, 0, BLOCK as u32);
            assert_ne!(error, 0, "{nth}: {command}");
        }
        let byte = 3 + nth as u8;
        assert_eq!(new.write(BLOCK, &[byte; BLOCK as usize]), 0, "{nth}");
        let wanted = [[1; BLOCK as usize], [byte; BLOCK as usize]].concat();
        for client in [&mut old, &mut new] {
            let read = client.call(READ, 0, 2 * BLOCK as u32);
            assert!(read == (0, wanted.clone()), "{nth}");
        }
    }
}

fn in_epoch(volume: VolumeNo, epoch: u32) -> [Condition; 1] {
    let epoch = Epoch(epoch);
    [Condition::Epoch { volume, epoch }]
}

fn read_if(native: &mut Native, conditions: &[Condition], volume: VolumeNo) -> Status {
    let range = ReadRange {
        volume,
        offset_bytes: 0,
        len_bytes: 512,
    };
    let head = RequestHeader::of(Operation::ReadIf);
    native.batch(head, conditions, &[range], &[]).status()
}

fn raising(volume: VolumeNo, epoch: u32) -> RequestHeader {
    RequestHeader {
        volume,
        lsn: Lsn(epoch.into()),
        ..RequestHeader::of(Operation::SetEpoch)
    }
}

/// A writer of several volumes has one of them opened alone, and makes his changes of the others conditional on that.
#[test]
fn a_condition_holds_in_the_epoch_of_its_volume_and_in_none_before() {
    let scene = Scene::with(listening);
    let tokens = ["lock", "data"].map(|name| volume(&scene, name, None));
    let mut native = Native::connect(addresses(&scene)[0]);
    let lock = native.opened("lock", &tokens[0], 0);
    let data = native.opened("data", &tokens[1], 0);
    assert_eq!(commit(&mut native, &[], &[data], 1), Status::Ok);
    let epoch = scene.show("lock").expect("is there").epoch + 3;
    let raised = native.ask(raising(lock, epoch), &[], &[]);
    assert_eq!(raised.status(), Status::Ok, "{}", raised.sentence());
    for below in [epoch - 3, epoch - 1] {
        let conditions = in_epoch(lock, below);
        let refused = commit(&mut native, &conditions, &[data], 2);
        assert_eq!(refused, Status::StaleEpoch, "{below}");
        let refused = read_if(&mut native, &conditions, data);
        assert_eq!(refused, Status::StaleEpoch, "{below}");
    }
    assert_eq!(native.read(data, 0, 512).payload, [1; 512]);
    let conditions = in_epoch(lock, epoch);
    assert_eq!(read_if(&mut native, &conditions, data), Status::Ok);
    assert_eq!(commit(&mut native, &conditions, &[data], 3), Status::Ok);
    assert_eq!(native.read(data, 0, 512).payload, [3; 512]);
}

/// Whoever raises an epoch waits for the changes that are under way. The device has the old one until then, and nobody may go by that.
#[test]
fn a_condition_below_an_epoch_that_is_just_being_raised_does_not_hold() {
    let scene = Scene::with(|options| {
        listening(options);
        let slow = "latency flushes=300ms";
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    });
    let tokens = ["lock", "data"].map(|name| volume(&scene, name, None));
    let mut native = Native::connect(addresses(&scene)[0]);
    let lock = native.opened("lock", &tokens[0], 0);
    let data = native.opened("data", &tokens[1], 0);
    assert_eq!(commit(&mut native, &[], &[data], 1), Status::Ok);
    let epoch = scene.show("lock").expect("is there").epoch;
    let mut raiser = Native::connect(addresses(&scene)[0]);
    let theirs = raiser.opened("lock", &tokens[0], 0);
    let durable = RequestHeader {
        volume: theirs,
        flags: flag::DURABLE,
        ..RequestHeader::of(Operation::Write)
    };
    raiser.send(durable, &[], &[7; 512]);
    raiser.send(raising(theirs, epoch + 1), &[], &[]);
    // Both have come, and wait for the device.
    raiser.send(RequestHeader::of(Operation::Ping), &[], &[]);
    raiser.receive().expect("an answer");
    let conditions = in_epoch(lock, epoch);
    let refused = commit(&mut native, &conditions, &[data], 2);
    assert_eq!(refused, Status::StaleEpoch);
    let refused = read_if(&mut native, &conditions, data);
    assert_eq!(refused, Status::StaleEpoch);
    let conditions = in_epoch(lock, epoch + 1);
    assert_eq!(commit(&mut native, &conditions, &[data], 3), Status::Ok);
    for _ in 0..2 {
        let answer = raiser.receive().expect("an answer");
        assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
    }
    assert_eq!(native.read(data, 0, 512).payload, [3; 512]);
}
