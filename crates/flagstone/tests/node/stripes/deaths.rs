//! Nodes that end between any two steps of what is done with all members.

use std::sync::{Arc, Mutex};

use flagstone::node::{MoveHooks, MovePoint, NodeErrorKind, Reservation};

use super::closed::{damage, part_of};
use super::room::one_core;
use super::{
    KIB, MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, create, dvols, kind,
    on_device, reserve, resize, roll_back, show, snapshot, two_cores,
};
use crate::support::{Scene, copy_image};

/// A node with a striped volume, of whose device a copy is made at a point of what is done then. Returns the volume's bytes before that,
/// and a node on the copy.
fn died_at(point: MovePoint, work: impl FnOnce(&Scene)) -> (Vec<u8>, Scene) {
    let copied = Arc::new(Mutex::new(false));
    let seen = copied.clone();
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        let device = options.devices[0].path.clone();
        options.move_hooks = MoveHooks::at_points(move |at| {
            let mut copied = seen.lock().expect("nobody has died");
            if at == point && !*copied {
                *copied = true;
                copy_image(&device, &device.with_file_name("dead.img"));
            }
            true
        });
    });
    let scene = scene.expect("a node");
    create(&scene, "hot", 3);
    let (mut random, mut model) = (Random(11), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 40);
    drop(client);
    work(&scene);
    assert!(
        *copied.lock().expect("nobody has died"),
        "{point:?} was never reached"
    );
    (model, scene.down().with_image("dead.img").up(two_cores))
}

fn is_whole(scene: &Scene, model: &[u8], what: &str) {
    assert_eq!(show(scene, "hot").size_bytes, model.len() as u64, "{what}");
    let found = all_of(&mut scene.attach("hot"), model.len() as u64);
    assert_same(&found, model, what);
    // And it goes on as a volume does.
    let (mut random, mut model) = (Random(13), model.to_vec());
    change_it(&mut scene.attach("hot"), &mut model, &mut random, 20);
    snapshot(scene, "hot", "behind").expect("taken");
    let found = all_of(&mut scene.attach("hot@behind"), model.len() as u64);
    assert_same(&found, &model, what);
}

#[test]
fn one_that_was_half_made_or_half_deleted_is_not_there() {
    let (model, scene) = died_at(MovePoint::StripeMade, |scene| {
        create(scene, "new", 4);
    });
    // The point was reached by the first one already, whose members nobody has.
    assert_eq!(dvols(&scene), 0, "{}", model.len());
    create(&scene, "hot", 3);
    let (_, scene) = died_at(MovePoint::StripeDeleted, |scene| {
        let deleted = scene.ask(|node| node.delete_volume("hot".to_owned(), false));
        deleted.expect("is deleted");
    });
    assert_eq!(dvols(&scene), 0);
    assert_eq!(kind(scene.show("hot")), NodeErrorKind::NotFound);
}

#[test]
fn one_that_was_half_resized_has_one_size() {
    let (model, scene) = died_at(MovePoint::StripeGrown, |scene| {
        resize(scene, "hot", SIZE + 3 * MIB).expect("resized");
    });
    let (dvols, _, scene) = on_device(scene);
    assert_eq!(dvols.iter().map(|(_, bytes)| bytes).sum::<u64>(), SIZE);
    is_whole(&scene, &model, "it was growing");
    let smaller = UNIT + 4 * KIB;
    let (mut model, scene) = died_at(MovePoint::StripeShrunk, |scene| {
        resize(scene, "hot", smaller).expect("resized");
    });
    model.truncate(smaller as usize);
    let (dvols, _, scene) = on_device(scene);
    assert_eq!(dvols.iter().map(|(_, bytes)| bytes).sum::<u64>(), smaller);
    is_whole(&scene, &model, "it was shrinking");
    // What was given back is zeros.
    resize(&scene, "hot", SIZE).expect("resized");
    let found = all_of(&mut scene.attach("hot"), SIZE);
    assert!(found[smaller as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_snapshot_that_was_half_taken_or_half_deleted_is_not_there() {
    let layers = |scene: &Scene| show(scene, "hot").snapshot_count;
    let (model, scene) = died_at(MovePoint::StripeSnapped, |scene| {
        snapshot(scene, "hot", "one").expect("taken");
    });
    assert_eq!(layers(&scene), 0);
    let (_, snapshots, scene) = on_device(scene);
    assert_eq!(snapshots, 0, "no member has one, either");
    is_whole(&scene, &model, "a snapshot was being taken");
    let (model, scene) = died_at(MovePoint::StripeUnsnapped, |scene| {
        snapshot(scene, "hot", "one").expect("taken");
        let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "one")));
        deleted.expect("is deleted");
    });
    assert_eq!(layers(&scene), 0);
    let (_, snapshots, scene) = on_device(scene);
    assert_eq!(snapshots, 0, "no member has one, either");
    is_whole(&scene, &model, "a snapshot was being deleted");
}

#[test]
fn one_that_was_half_rolled_back_is_rolled_back() {
    for point in [MovePoint::StripeRolling, MovePoint::StripeRolled] {
        let (model, scene) = died_at(point, |scene| {
            snapshot(scene, "hot", "one").expect("taken");
            let (mut random, mut later) = (Random(17), vec![0; SIZE as usize]);
            change_it(&mut scene.attach("hot"), &mut later, &mut random, 40);
            resize(scene, "hot", 2 * UNIT).expect("resized");
            let rolled = scene.ask(|node| node.rollback_volume(at("hot", "one")));
            rolled.expect("rolled back");
        });
        is_whole(&scene, &model, "it was being rolled back");
    }
}

/// Members that are rolled back and could not give back what is reserved beyond their size: the volume is rolled back, and not what it was. A
/// start gives it back.
#[test]
fn what_stays_reserved_keeps_no_member_from_being_rolled_back() {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        let hooks = MoveHooks::at_points(|point| point != MovePoint::StripeMemberRolled);
        options.move_hooks = hooks;
    });
    let scene = scene.expect("a node");
    create(&scene, "hot", 3);
    let (mut random, mut model) = (Random(19), vec![0; SIZE as usize]);
    change_it(&mut scene.attach("hot"), &mut model, &mut random, 40);
    snapshot(&scene, "hot", "small").expect("taken");
    resize(&scene, "hot", SIZE + 3 * MIB).expect("resized");
    let mut larger = vec![0; SIZE as usize];
    change_it(&mut scene.attach("hot"), &mut larger, &mut random, 40);
    let reserved = reserve(&scene, "hot", Reservation::Full).expect("reserved");
    let rolled = roll_back(&scene, "hot", "small").expect("is rolled back");
    assert_eq!(rolled.reserved_bytes, reserved.reserved_bytes);
    let found = all_of(&mut scene.attach("hot"), SIZE);
    assert_same(&found, &model, "it is rolled back");
    let scene = scene.restart(two_cores);
    let reserved = show(&scene, "hot").reserved_bytes;
    assert!((SIZE..SIZE + 3 * 4096).contains(&reserved), "{reserved}");
    is_whole(&scene, &model, "a later start");
}

/// The node ended in the middle of a change of sizes, when more was reserved for volumes than they have.
#[test]
fn a_start_keeps_no_more_reserved_than_a_volume_has() {
    let scene = Scene::with(one_core);
    create(&scene, "hot", 3);
    scene.create("cold", MIB).expect("created");
    let before = ["hot", "cold"].map(|name| {
        let reserved = reserve(&scene, name, Reservation::Full);
        reserved.expect("reserved").reserved_bytes
    });
    let path = scene.device_path();
    let down = scene.down();
    damage(&path, |engine| {
        Box::pin(async move {
            for name in ["cold", "hot", ".1", ".2"] {
                engine.set_reserved(part_of(&engine, name), 8 * MIB).await?;
            }
            Ok(())
        })
    });
    let scene = down.up(one_core);
    let after = ["hot", "cold"].map(|name| show(&scene, name).reserved_bytes);
    assert_eq!(after, before);
}
