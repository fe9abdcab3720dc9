//! Members that have no room in the middle of what is done with all of them.
//!
//! What a reservation takes once more, when what the volume has becomes a snapshot's, is what its member has of its own. So a volume of which
//! only one member was written to since its last snapshot has no room in that one, and in no other.

use flagstone::node::{NodeError, NodeErrorKind, NodeOptions, Reservation, VolumeSpec};
use flagstone_client::{Durability, Target};
use flagstone_wire::Status;

use super::{
    KIB, MIB, Random, SIZE, UNIT, all_of, assert_same, at, clone, create, delete, dvols, filled,
    kind, on_device, reserve, resize, roll_back, show, snapshot, spec, two_cores,
};
use crate::between::with_client;
use crate::client::{Client, ENOSPC, READ, ZEROES};
use crate::native::{addresses, listening};
use crate::support::Scene;

/// Bytes of the volume: the same for each of its members.
const WHOLE: u64 = 12 * MIB;
pub(super) const MEMBERS: u64 = 3;
/// What is left of the device: less than one member has, and more than the others need.
const LEFT: u64 = 2 * MIB;

/// On one journal: what it has is there for each member.
pub(super) fn one_core(options: &mut NodeOptions) {
    options.cores = Some(1);
    listening(options);
}

fn free(scene: &Scene) -> u64 {
    let shown = scene.ask(|node| node.show_device("main".to_owned()));
    shown.expect("shown").free_bytes
}

/// Has another volume reserve all but so much.
fn leave(scene: &Scene, left: u64) {
    if scene.show("other").is_err() {
        scene.create("other", 1 << 40).expect("created");
    }
    let mut reserved = scene.show("other").expect("is there").reserved_bytes;
    for _ in 0..20 {
        let free = free(scene);
        if free.abs_diff(left) < 64 * KIB {
            return;
        }
        // The map of what is reserved is set aside as well, so that comes near step by step.
        reserved = match free > left {
            true => reserved + (free - left) / 32 * 31,
            false => reserved - (left - free),
        };
        let bytes = reserved / 4096 * 4096;
        self::reserve(scene, "other", Reservation::Bytes(bytes)).expect("reserved");
    }
    panic!("{} are left, and not {left}", free(scene));
}

/// Writes one byte value all over one member, and a block to each other one.
fn write_to_member(client: &mut Client, model: &mut [u8], member: u64, value: u8) {
    for unit in 0..WHOLE / UNIT {
        let len = match unit % MEMBERS == member {
            true => UNIT,
            false if unit < MEMBERS => 4096,
            false => continue,
        };
        let data = vec![value; len as usize];
        assert_eq!(client.write(unit * UNIT, &data), 0);
        let first = (unit * UNIT) as usize;
        model[first..first + data.len()].copy_from_slice(&data);
    }
}

/// Writes to all of the volume, and keeps that in a snapshot `s`.
fn kept_in_a_snapshot(scene: &Scene, seed: u64, size_bytes: u64) -> Vec<u8> {
    let mut client = scene.attach("hot");
    let bytes = filled(&mut Random(seed), size_bytes);
    for (part, data) in bytes.chunks(MIB as usize).enumerate() {
        assert_eq!(client.write(part as u64 * MIB, data), 0);
    }
    snapshot(scene, "hot", "s").expect("taken");
    bytes
}

/// A volume with a snapshot `s`, all reserved, whose member of that number has all of its bytes of its own since; and what it had then, and has now.
pub(super) fn crowded(member: u64) -> (Scene, Vec<u8>, Vec<u8>) {
    let scene = Scene::with(one_core);
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            size_bytes: WHOLE,
            ..spec("hot", MEMBERS as u32)
        })
    });
    created.expect("created");
    scene.create("cold", MIB).expect("created");
    assert_eq!(scene.attach("cold").write(0, &[9; 1 << 20]), 0);
    let before = kept_in_a_snapshot(&scene, member, WHOLE);
    let mut client = scene.attach("hot");
    reserve(&scene, "hot", Reservation::Full).expect("reserved");
    let mut now = before.clone();
    write_to_member(&mut client, &mut now, member, 0xfe);
    leave(&scene, LEFT);
    (scene, before, now)
}

/// What the others have stays as it is.
pub(super) fn others_are_as_they_were(scene: &Scene) {
    let (error, found) = scene.attach("cold").call(READ, 0, MIB as u32);
    assert_eq!((error, found == [9; 1 << 20]), (0, true));
}

pub(super) fn is_now(scene: &Scene, model: &[u8], what: &str) {
    let shown = show(scene, "hot");
    assert_eq!(shown.size_bytes, model.len() as u64, "{what}");
    assert_eq!(shown.reserve, Reservation::Full, "{what}");
    assert!(shown.reserved_bytes < shown.size_bytes + 4096 * MEMBERS);
    let found = all_of(&mut scene.attach("hot"), model.len() as u64);
    assert_same(&found, model, what);
    others_are_as_they_were(scene);
}

/// Whichever member has no room: no other one keeps a part of what wasn't done.
#[test]
fn a_snapshot_that_one_member_has_no_room_for_is_not_taken() {
    for member in 0..MEMBERS {
        let (scene, before, mut now) = crowded(member);
        for _ in 0..2 {
            let refused = snapshot(&scene, "hot", "t");
            assert_eq!(kind(refused), NodeErrorKind::NoSpace, "member {member}");
            assert_eq!(show(&scene, "hot").snapshot_count, 1);
            is_now(&scene, &now, "no snapshot was taken");
            // Nobody is kept out behind it.
            let mut client = scene.attach("hot");
            write_to_member(&mut client, &mut now, member, 0xfd);
        }
        assert_eq!(dvols(&scene), MEMBERS + 2);
        let (members, snapshots, scene) = on_device(scene);
        assert_eq!((members.len(), snapshots), (3, 3), "one of each member");
        is_now(&scene, &now, "behind a start");
        delete(&scene, "other").expect("is deleted");
        snapshot(&scene, "hot", "t").expect("is taken");
        for (name, bytes) in [("hot@s", &before), ("hot@t", &now)] {
            assert_same(&all_of(&mut scene.attach(name), WHOLE), bytes, name);
        }
    }
}

/// A clone of it as it is takes a snapshot of each member.
#[test]
fn a_clone_that_one_member_has_no_room_for_is_not_made() {
    for member in 0..MEMBERS {
        let (scene, before, now) = crowded(member);
        let refused = clone(&scene, "hot", "copy");
        assert_eq!(kind(refused), NodeErrorKind::NoSpace, "member {member}");
        assert_eq!(kind(scene.show("copy")), NodeErrorKind::NotFound);
        assert_eq!(dvols(&scene), MEMBERS + 2, "no member of it, either");
        is_now(&scene, &now, "no clone was made");
        // Of the snapshot one takes nothing, and its name is free.
        clone(&scene, "hot@s", "copy").expect("is cloned");
        assert_same(&all_of(&mut scene.attach("copy"), WHOLE), &before, "it");
        let (members, snapshots, scene) = on_device(scene);
        assert_eq!((members.len(), snapshots), (5, 3));
        assert_eq!(dvols(&scene), 2 * MEMBERS + 2);
        is_now(&scene, &now, "behind a start");
    }
}

/// Its last members have grown, and the next one has no room: they go back, with what they had reserved.
#[test]
fn a_volume_that_has_no_room_to_grow_is_as_it_was() {
    let (scene, _, now) = crowded(1);
    let free_before = free(&scene);
    for _ in 0..3 {
        // Each needs more than half of what is left.
        let refused = resize(&scene, "hot", WHOLE + MEMBERS * (LEFT / 4 * 3));
        assert_eq!(kind(refused), NodeErrorKind::NoSpace);
        is_now(&scene, &now, "it hasn't grown");
        let free = free(&scene);
        assert!(
            free.abs_diff(free_before) < MIB / 4,
            "{free} of {free_before}"
        );
    }
    assert_ne!(scene.attach("hot").call(READ, WHOLE, 1).0, 0);
    let (members, _, scene) = on_device(scene);
    let bytes: Vec<u64> = members.iter().map(|(_, bytes)| *bytes).collect();
    assert_eq!(bytes, [WHOLE / MEMBERS; 3], "no member is longer");
    is_now(&scene, &now, "behind a start");
    // And grows once there is room; the new bytes are zeros.
    delete(&scene, "other").expect("is deleted");
    let larger = WHOLE + MEMBERS * (LEFT / 4 * 3);
    resize(&scene, "hot", larger).expect("is resized");
    let mut model = now;
    model.resize(larger as usize, 0);
    is_now(&scene, &model, "it has grown");
    // What is reserved goes with its size, down as well.
    resize(&scene, "hot", 5 * UNIT).expect("is resized");
    model.truncate(5 * UNIT as usize);
    is_now(&scene, &model, "it is smaller");
}

/// Some members have what is to be reserved, and the next one has no room.
#[test]
fn what_can_not_be_reserved_is_given_back() {
    let scene = Scene::with(one_core);
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            size_bytes: WHOLE,
            ..spec("hot", MEMBERS as u32)
        })
    });
    created.expect("created");
    reserve(&scene, "hot", Reservation::Bytes(3 * MIB)).expect("reserved");
    leave(&scene, 5 * MIB);
    let before = (show(&scene, "hot").reserved_bytes, free(&scene));
    let refused = reserve(&scene, "hot", Reservation::Full);
    assert_eq!(kind(refused), NodeErrorKind::NoSpace);
    let after = (show(&scene, "hot").reserved_bytes, free(&scene));
    assert_eq!(after.0, before.0);
    assert!(after.1.abs_diff(before.1) < MIB / 4, "{after:?} {before:?}");
    // Nor is there anything of a new one that has no room.
    let refused = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            size_bytes: WHOLE,
            reserve: Reservation::Full,
            ..spec("new", MEMBERS as u32)
        })
    });
    assert_eq!(kind(refused), NodeErrorKind::NoSpace);
    assert_eq!(dvols(&scene), MEMBERS + 1);
    let after = free(&scene);
    assert!(after.abs_diff(before.1) < MIB / 4, "{after} {before:?}");
    reserve(&scene, "hot", Reservation::Bytes(6 * MIB)).expect("there is room for that");
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            reserve: Reservation::Bytes(MIB / 2),
            ..spec("small", MEMBERS as u32)
        })
    });
    assert_eq!(created.expect("created").volume.reserved_bytes, MIB / 2);
    let scene = scene.restart(one_core);
    assert_eq!(dvols(&scene), 2 * MEMBERS + 1);
    assert_eq!(show(&scene, "hot").reserved_bytes, 6 * MIB);
}

/// Segments of the device that no journal has.
fn free_segments(scene: &Scene) -> u64 {
    let shown = scene.ask(|node| node.show_device("main".to_owned()));
    shown.expect("shown").segments_free
}

/// What is asked for in all, and a number that is there to be had.
fn most_of(refused: &NodeError, asked: u64) -> u64 {
    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
    let all = format!("({asked} bytes) were asked for in all its parts");
    assert!(refused.found.contains(&all), "{refused}");
    let most = refused
        .next_step
        .strip_prefix("ask for ")
        .expect("a number");
    let most = most.split(' ').next().expect("a number");
    most.parse().expect("a number")
}

/// Each journal takes whole segments: a refusal takes none, and says what can be had for all members together.
#[test]
fn what_has_no_room_takes_no_segments_and_is_told_what_there_is() {
    let scene = Scene::start(512 << 20, two_cores).expect("a node");
    let large = |reserve| VolumeSpec {
        size_bytes: 4 << 30,
        reserve,
        ..spec("hot", 3)
    };
    let create = |reserve| scene.ask(|node| node.create_volume(large(reserve)));
    let nothing_is_taken = |(segments, bytes): (u64, u64)| {
        // A checkpoint meanwhile may have given some back.
        assert!(free_segments(&scene) >= segments);
        let now = free(&scene);
        assert!(now + MIB / 4 > bytes, "{now} of {bytes} are free");
    };
    let before = (free_segments(&scene), free(&scene));
    let refused = create(Reservation::Full).expect_err("is refused");
    most_of(&refused, 4 << 30);
    nothing_is_taken(before);
    assert_eq!(dvols(&scene), 0);

    create(Reservation::None).expect("created");
    let before = (free_segments(&scene), free(&scene));
    let refused = reserve(&scene, "hot", Reservation::Full).expect_err("is refused");
    let most = most_of(&refused, 4 << 30);
    nothing_is_taken(before);
    assert_eq!(show(&scene, "hot").reserved_bytes, 0);
    assert!(
        most < before.1 && most > before.1 / 3,
        "{most} of {}",
        before.1
    );
    // That is true. What is more than the device has is not to be had.
    let more = reserve(&scene, "hot", Reservation::Bytes(before.1));
    assert_eq!(kind(more), NodeErrorKind::NoSpace);
    reserve(&scene, "hot", Reservation::Bytes(most)).expect("there is room for that");

    reserve(&scene, "hot", Reservation::None).expect("given back");
    resize(&scene, "hot", 12 * MIB).expect("is resized");
    reserve(&scene, "hot", Reservation::Full).expect("reserved");
    let before = (free_segments(&scene), free(&scene));
    let refused = resize(&scene, "hot", 4 << 30).expect_err("is refused");
    assert!(most_of(&refused, 4 << 30) > 12 * MIB);
    nothing_is_taken(before);
    let shown = show(&scene, "hot");
    assert_eq!(
        (shown.size_bytes, shown.reserve),
        (12 * MIB, Reservation::Full)
    );
}

/// Each has room when it looks, and not both: whoever finds none half way has nothing left of what it took.
#[test]
fn of_two_that_have_room_for_one_nothing_is_left_behind() {
    let scene = Scene::start(512 << 20, two_cores).expect("a node");
    let names = ["hot", "warm"];
    for name in names {
        let large = VolumeSpec {
            size_bytes: 4 << 30,
            ..spec(name, 3)
        };
        let created = scene.ask(|node| node.create_volume(large));
        created.expect("created");
    }
    let refused = reserve(&scene, "hot", Reservation::Full).expect_err("is refused");
    let most_bytes = most_of(&refused, 4 << 30);
    let most = Reservation::Bytes(most_bytes);
    for _ in 0..3 {
        let answers = scene.ask_all(|node| {
            let both = names.map(|name| node.set_reservation(name.to_owned(), most));
            both.into_iter().collect()
        });
        let mut done = 0;
        for (name, answer) in names.into_iter().zip(answers) {
            let expected = match answer {
                Ok(_) => most,
                Err(refused) => {
                    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
                    Reservation::None
                }
            };
            done += u32::from(expected == most);
            assert_eq!(show(&scene, name).reserve, expected, "{name}");
        }
        assert!(done < 2, "there is no room for both");
        for name in names {
            reserve(&scene, name, Reservation::None).expect("given back");
        }
        // Which journal has the larger part of a volume differs, and each may keep an empty segment.
        let part = Reservation::Bytes(most_bytes / 4 / 4096 * 4096);
        reserve(&scene, "warm", part).expect("there is room for that");
        reserve(&scene, "warm", Reservation::None).expect("given back");
    }
}

/// What nobody could use is not kept from others.
#[test]
fn no_more_is_reserved_than_the_volume_has() {
    let scene = Scene::with(one_core);
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            size_bytes: WHOLE,
            reserve: Reservation::Bytes(8 * MIB),
            ..spec("hot", MEMBERS as u32)
        })
    });
    created.expect("created");
    let reserved = |scene: &Scene| show(scene, "hot").reserved_bytes;
    resize(&scene, "hot", 10 * MIB).expect("is resized");
    assert_eq!(reserved(&scene), 8 * MIB, "there is room for that");
    let free_before = free(&scene);
    resize(&scene, "hot", 5 * MIB).expect("is resized");
    assert_eq!(reserved(&scene), 5 * MIB);
    assert!(free(&scene) >= free_before + 3 * MIB, "it is others' again");
    snapshot(&scene, "hot", "small").expect("taken");
    resize(&scene, "hot", WHOLE).expect("is resized");
    reserve(&scene, "hot", Reservation::Bytes(7 * MIB)).expect("reserved");
    roll_back(&scene, "hot", "small").expect("is rolled back");
    assert_eq!(reserved(&scene), 5 * MIB);
    let scene = scene.restart(one_core);
    assert_eq!(reserved(&scene), 5 * MIB);
}

/// The first member to be rolled back has no room: nothing was done, so it is as it was, and open.
#[test]
fn a_rollback_that_can_not_begin_leaves_it_as_it_was() {
    let (scene, mut before, now) = crowded(1);
    let mut client = scene.attach("hot");
    let refused = roll_back(&scene, "hot", "s");
    assert_eq!(kind(refused), NodeErrorKind::NoSpace);
    is_now(&scene, &now, "it isn't rolled back");
    assert_eq!(client.call(READ, 0, 4096).0, 0, "who has it open goes on");
    assert_eq!(client.write(UNIT, &now[UNIT as usize..][..100]), 0);
    let scene = scene.restart(one_core);
    is_now(&scene, &now, "nor does a start do it");
    delete(&scene, "other").expect("is deleted");
    roll_back(&scene, "hot", "s").expect("is rolled back");
    is_now(&scene, &before, "it is rolled back");
    // That is over: no start does it again.
    assert_eq!(scene.attach("hot").write(0, &vec![4; 4 * UNIT as usize]), 0);
    before[..4 * UNIT as usize].fill(4);
    let scene = scene.restart(one_core);
    is_now(&scene, &before, "a later start");
}

/// Room that somebody makes within two seconds is enough.
#[test]
fn a_rollback_waits_a_while_for_room() {
    for member in [0, 2] {
        let (scene, before, _) = crowded(member);
        let answers = scene.ask_all(|node| {
            let rolled = node.rollback_volume(at("hot", "s"));
            let making_room = node.delete_volume("other".to_owned(), true);
            vec![
                Box::pin(async move { rolled.await.map(drop) }),
                Box::pin(async move {
                    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
                    making_room.await
                }),
            ]
        });
        for answer in answers {
            answer.expect("is done");
        }
        is_now(&scene, &before, "it is rolled back");
    }
}

/// Fills the device, down to the last block.
fn fill(scene: &Scene) {
    if scene.show("full").is_err() {
        scene.create("full", 1 << 40).expect("created");
    }
    let mut client = scene.attach("full");
    let mut end = 0;
    for len in [MIB, 4096] {
        let data = vec![5; len as usize];
        loop {
            match client.write(end, &data) {
                0 => end += len,
                error => {
                    assert_eq!(error, ENOSPC);
                    break;
                }
            }
        }
    }
    // A part of a block takes one more.
    let mut parts = (0..end).step_by(4096);
    let last = parts.find(|at| client.call_with(0, ZEROES, at + 5, 100) == ENOSPC);
    assert!(last.is_some(), "there is room");
}

/// Makes the volume smaller on a device that is full, which fails for want of a block for the rest of the last one.
fn shrink_without_room(scene: &Scene, smaller: u64) {
    // What there is to be had at a checkpoint is little, and is had once.
    let refused = (0..20).find_map(|_| {
        fill(scene);
        let refused = resize(scene, "hot", smaller).err();
        if refused.is_none() {
            roll_back(scene, "hot", "s").expect("is rolled back");
        }
        refused
    });
    let refused = refused.expect("there was always room");
    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
}

/// The new end lies within a block that a snapshot has as well: its rest takes a block to be made zero. The volume is smaller by then, and what was
/// behind its end is never seen again.
#[test]
fn what_lies_behind_the_end_of_a_volume_without_room_stays_unseen() {
    let scene = Scene::with(one_core);
    create(&scene, "hot", 3);
    scene.create("cold", MIB).expect("created");
    assert_eq!(scene.attach("cold").write(0, &[9; 1 << 20]), 0);
    let before = kept_in_a_snapshot(&scene, 21, SIZE);
    // In the second row of units, in the block of each member once.
    for (round, member) in [2, 1, 0].into_iter().enumerate() {
        let end = (6 + member) * UNIT + 4096 * 3 + 1000;
        let smaller = end - round as u64 * 3 * UNIT;
        shrink_without_room(&scene, smaller);
        let mut model = before[..smaller as usize].to_vec();
        let is_smaller = |scene: &Scene, model: &[u8]| {
            let size = model.len() as u64;
            assert_eq!(show(scene, "hot").size_bytes, size);
            let mut client = scene.attach("hot");
            assert_same(&all_of(&mut client, size), model, "it is smaller");
            assert_ne!(client.call(READ, size, 1).0, 0);
            assert_ne!(client.write(size, &[1]), 0);
            others_are_as_they_were(scene);
        };
        is_smaller(&scene, &model);
        // It doesn't grow before the rest is zeros, which has no room still.
        if let Err(refused) = resize(&scene, "hot", SIZE) {
            assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
            is_smaller(&scene, &model);
        } else {
            model.resize(SIZE as usize, 0);
            is_smaller(&scene, &model);
            continue;
        }
        delete(&scene, "full").expect("is deleted");
        resize(&scene, "hot", SIZE).expect("is resized");
        model.resize(SIZE as usize, 0);
        is_smaller(&scene, &model);
        roll_back(&scene, "hot", "s").expect("is rolled back");
        is_smaller(&scene, &before);
    }
}

/// The same, and the node ends before there is room.
#[test]
fn a_start_without_room_shows_nothing_that_lies_behind_the_end() {
    let scene = Scene::with(one_core);
    create(&scene, "hot", 3);
    let before = kept_in_a_snapshot(&scene, 22, SIZE);
    let smaller = 7 * UNIT + 3 * 4096 + 1000;
    shrink_without_room(&scene, smaller);
    // The others have what they are to have, whatever becomes of the one.
    let (members, _, scene) = on_device(scene);
    let bytes: u64 = members.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, smaller);
    assert_eq!(show(&scene, "hot").size_bytes, smaller);
    let mut model = before[..smaller as usize].to_vec();
    let found = all_of(&mut scene.attach("hot"), smaller);
    assert_same(&found, &model, "behind a start");
    delete(&scene, "full").expect("is deleted");
    resize(&scene, "hot", SIZE).expect("is resized");
    model.resize(SIZE as usize, 0);
    assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, "larger");
    assert_same(&all_of(&mut scene.attach("hot@s"), SIZE), &before, "then");
}

/// Over NBD a disk is told that it may forget something, and does as much of that as it can. Natively what isn't zero afterwards is said: on a device without
/// room the ends of a range, which would have to be written, are as they were.
#[test]
fn what_cannot_be_deallocated_is_said() {
    let scene = Scene::with(one_core);
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            size_bytes: WHOLE,
            ..spec("hot", MEMBERS as u32)
        })
    });
    let token = created.expect("created").token.expect("a token");
    let before = kept_in_a_snapshot(&scene, 9, WHOLE);
    leave(&scene, LEFT);
    // Until nothing can be written any more, be it that a little was left.
    let mut client = scene.attach("hot");
    let mut now = before.clone();
    for block in (0..WHOLE as usize).step_by(4096) {
        if client.write(block as u64, &[5; 4096]) == ENOSPC {
            assert!(block < 2 * LEFT as usize, "it was nearly full");
            break;
        }
        now[block..block + 4096].fill(5);
    }
    // Both ends lie in blocks that the snapshot has, in two members.
    let (at, len) = (WHOLE - 2 * UNIT - 100, UNIT + 200);
    let core = show(&scene, "hot").core as usize;
    let target = Target::Name("hot".to_owned());
    let address = addresses(&scene)[core];
    let error = with_client(address, target, &token, move |_, volume| async move {
        let clearing = volume.deallocate(at, len, Durability::Durable);
        clearing.await.expect_err("there is no room")
    });
    let error = error.join().expect("joined");
    assert!(error.may_have_happened(), "{error}");
    assert_eq!(error.status(), Some(Status::NoSpace), "{error}");
    let (error, found) = client.call(READ, at, 100);
    assert_eq!(error, 0);
    assert_same(&found, &now[at as usize..][..100], "the first end");
}
