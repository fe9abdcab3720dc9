//! What is of the whole: snapshots of one instant, clones, sizes, rollbacks, and what it is promised.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::name::SourceRef;
use flagstone::node::{NodeErrorKind, Rates, Reservation, Slo, SloLimit, SloPromise, VolumeSpec};

use super::{
    KIB, MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, clone, create, delete, dvols,
    kind, on_device, resize, roll_back, scene, show, snapshot, spec, two_cores,
};
use crate::client;
use crate::native::addresses;
use crate::native::client::Native;
use crate::support::Scene;

#[test]
fn snapshots_clones_and_sizes_are_of_the_whole() {
    let scene = scene();
    create(&scene, "hot", 4);
    let (mut random, mut model) = (Random(5), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 60);
    snapshot(&scene, "hot", "first").expect("taken");
    assert_eq!(
        kind(snapshot(&scene, "hot", "first")),
        NodeErrorKind::AlreadyExists
    );
    let first = model.clone();
    change_it(&mut client, &mut model, &mut random, 60);
    let shown = scene
        .ask(|node| node.show_snapshot(at("hot", "first")))
        .expect("shown");
    assert_eq!(shown.size_bytes, SIZE);
    assert!(shown.referenced_bytes > 0 && shown.unique_bytes > 0);
    let source: SourceRef = "hot@first".parse().expect("a source");
    let cloned = scene.ask(|node| node.clone_volume(source, "copy".to_owned()));
    assert_eq!(cloned.expect("cloned").size_bytes, SIZE);
    assert_same(
        &all_of(&mut scene.attach("hot@first"), SIZE),
        &first,
        "the snapshot",
    );
    // A clone of it as it is, which then changes by itself.
    let source: SourceRef = "hot".parse().expect("a source");
    let cloned = scene.ask(|node| node.clone_volume(source, "now".to_owned()));
    assert_eq!(
        cloned.expect("cloned").stripe.map(|s| s.members.len()),
        Some(4)
    );
    let mut now = model.clone();
    change_it(&mut scene.attach("now"), &mut now, &mut random, 60);
    assert_eq!(dvols(&scene), 12);
    // Larger: zeros; smaller, and larger again: zeros, too.
    for (size, kept) in [
        (SIZE + 5 * UNIT + 7 * KIB, SIZE),
        (2 * UNIT + 4 * KIB, 2 * UNIT + 4 * KIB),
        (SIZE, 2 * UNIT + 4 * KIB),
    ] {
        assert_eq!(
            resize(&scene, "hot", size).expect("resized").size_bytes,
            size
        );
        model.truncate(kept as usize);
        model.resize(size as usize, 0);
        assert_same(&all_of(&mut scene.attach("hot"), size), &model, "resized");
    }
    resize(&scene, "hot", UNIT).expect("resized");
    let rolled = scene.ask(|node| node.rollback_volume(at("hot", "first")));
    assert_eq!(rolled.expect("rolled back").size_bytes, SIZE);
    for _ in 0..2 {
        assert_same(
            &all_of(&mut scene.attach("hot"), SIZE),
            &first,
            "rolled back",
        );
        assert_same(
            &all_of(&mut scene.attach("copy"), SIZE),
            &first,
            "the clone",
        );
        assert_same(
            &all_of(&mut scene.attach("now"), SIZE),
            &now,
            "the other clone",
        );
    }
    drop(client);
    let scene = scene.restart(two_cores);
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &first,
        "behind a start",
    );
    assert_same(
        &all_of(&mut scene.attach("now"), SIZE),
        &now,
        "the other clone",
    );
    let renamed = scene.ask(|node| node.rename_snapshot(at("hot", "first"), "one".to_owned()));
    renamed.expect("renamed");
    assert_same(
        &all_of(&mut scene.attach("hot@one"), SIZE),
        &first,
        "renamed",
    );
    let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "one")));
    deleted.expect("is deleted");
    for name in ["hot", "copy", "now"] {
        let deleted = scene.ask(|node| node.delete_volume(name.to_owned(), false));
        deleted.expect("is deleted");
    }
    assert_eq!(dvols(&scene), 0);
}

/// A writer counts up in unit before unit, each write answered before the next is sent: in a snapshot, or a clone, the counts are the last so many,
/// without a gap.
#[test]
fn a_snapshot_is_of_one_instant() {
    // So that the writer goes on between one member's turn and the next one's.
    let slow = "latency writes=1ms";
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].layers = vec![slow.parse().expect(slow)];
    })
    .expect("a node");
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let (mut client, stopped) = (scene.attach("hot"), stop.clone());
    let units = SIZE / UNIT;
    let written = Arc::new(AtomicU64::new(0));
    let told = written.clone();
    let writer = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let count = told.load(Ordering::Relaxed);
            let block = count.to_le_bytes().repeat(512);
            // The other way round than members have their turns: who keeps the same pace would never be seen.
            let unit = units - 1 - count % units;
            assert_eq!(client.write(unit * UNIT, &block), 0);
            told.store(count + 1, Ordering::Relaxed);
        }
    });
    let taken: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    for (round, name) in taken.iter().enumerate() {
        // Each unit was written at least once before the first one.
        let until = Instant::now() + Duration::from_secs(60);
        while written.load(Ordering::Relaxed) < units + 7 * round as u64 {
            assert!(Instant::now() < until, "it writes");
            thread::sleep(Duration::from_millis(1));
        }
        // A clone of it as it is, too.
        match round % 2 {
            1 => drop(clone(&scene, "hot", name).expect("cloned")),
            _ => snapshot(&scene, "hot", name).expect("taken"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("wrote");
    for (round, name) in taken.into_iter().enumerate() {
        let mut client = scene.attach(&match round % 2 {
            1 => name.clone(),
            _ => format!("hot@{name}"),
        });
        let mut counts: Vec<u64> = (0..units)
            .map(|unit| {
                let (error, bytes) = client.call(client::READ, unit * UNIT, 8);
                assert_eq!(error, 0);
                u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
            })
            .collect();
        counts.sort_unstable();
        let last = counts[counts.len() - 1];
        // The last so many, without a gap.
        let expected: Vec<u64> = (last + 1 - units..=last).collect();
        assert_eq!(counts, expected, "{name}");
    }
}

/// Nobody sees one member rolled back and another not.
#[test]
fn readers_see_all_of_it_rolled_back_or_nothing() {
    let scene = scene();
    let token = create(&scene, "hot", 2).token.expect("a token");
    let (old, new) = (vec![1; 8 * UNIT as usize], vec![2; 8 * UNIT as usize]);
    let mut client = scene.attach("hot");
    assert_eq!(client.write(0, &old), 0);
    snapshot(&scene, "hot", "one").expect("taken");
    let stop = Arc::new(AtomicBool::new(false));
    let writing = Arc::new(RwLock::new(()));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (mut client, stopped) = (scene.attach("hot"), stop.clone());
            let (writes, writing) = ((old.clone(), new.clone()), writing.clone());
            thread::spawn(move || {
                let mut rounds = 0u64;
                while !stopped.load(Ordering::Relaxed) {
                    // A write of several members may be seen in part.
                    let _none = writing.read().expect("nobody has died");
                    let (error, found) = client.call(client::READ, 0, 8 * UNIT as u32);
                    assert_eq!(error, 0);
                    assert!(found == writes.0 || found == writes.1, "some of both");
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    let natively = {
        let address = addresses(&scene)[show(&scene, "hot").core as usize];
        let stopped = stop.clone();
        let (writes, writing) = ((old.clone(), new.clone()), writing.clone());
        thread::spawn(move || {
            let mut native = Native::connect(address);
            let open = native.opened("hot", &token, 0);
            let mut rounds = 0u64;
            while !stopped.load(Ordering::Relaxed) {
                let _none = writing.read().expect("nobody has died");
                let found = native.read(open, 0, 8 * UNIT).payload;
                assert!(found == writes.0 || found == writes.1, "some of both");
                rounds += 1;
            }
            rounds
        })
    };
    for _ in 0..40 {
        let alone = writing.write().expect("nobody has died");
        assert_eq!(client.write(0, &new), 0);
        drop(alone);
        let rolled = scene.ask(|node| node.rollback_volume(at("hot", "one")));
        rolled.expect("rolled back");
        let (error, found) = client.call(client::READ, 0, 8 * UNIT as u32);
        assert_eq!((error, found == old), (0, true));
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().expect("read") > 40);
    }
    assert!(natively.join().expect("read") > 40);
}

#[test]
fn what_it_is_promised_and_reserved_is_of_the_whole() {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    })
    .expect("a node");
    let floor = |reads| Slo {
        promise: SloPromise::Floor(Rates { reads, writes: 3 }),
        limit: SloLimit {
            bytes: Some(100 * MIB + 1),
            ..SloLimit::default()
        },
    };
    let created = scene.ask(|node| {
        node.create_volume(VolumeSpec {
            slo: floor(4001),
            reserve: Reservation::Full,
            ..spec("hot", 4)
        })
    });
    let created = created.expect("created").volume;
    assert_eq!(created.slo, floor(4001));
    assert_eq!(created.reserve, Reservation::Full);
    assert!(created.reserved_bytes >= SIZE);
    // It is counted once, before and behind a start.
    let too_much = |scene: &Scene| {
        scene.ask(|node| {
            node.create_volume(VolumeSpec {
                slo: floor(6000),
                ..spec("more", 2)
            })
        })
    };
    assert_eq!(kind(too_much(&scene)), NodeErrorKind::NoSpace);
    let changed = scene.ask(|node| node.set_slo("hot".to_owned(), floor(5000), false));
    assert_eq!(changed.expect("is changed").slo, floor(5000));
    let scene = scene.restart(|options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    });
    assert_eq!(show(&scene, "hot").slo, floor(5000));
    assert_eq!(kind(too_much(&scene)), NodeErrorKind::NoSpace);
    // Each member has its part at once, and behind a start.
    let promised = |scene: &Scene| {
        let mut client = scene.attach("hot");
        assert_eq!(client.write(0, &vec![1; 4 * UNIT as usize]), 0);
        let metrics = scene.ask(|node| node.metrics()).expect("metrics");
        metrics.volumes[0].turns.promised_ns
    };
    let expected = promised(&scene);
    assert!(expected > 450_000_000, "half of the device: {expected}");
    let again = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=10000 writes=5000".parse().expect("one"));
    });
    let again = again.expect("a node");
    let created = again.ask(|node| {
        node.create_volume(VolumeSpec {
            slo: floor(5000),
            ..spec("hot", 4)
        })
    });
    created.expect("created");
    let found = promised(&again);
    assert!(
        found.abs_diff(expected) < expected / 100,
        "{found} and {expected}"
    );
    let reserved = scene.ask(|node| node.set_reservation("hot".to_owned(), Reservation::None));
    assert_eq!(reserved.expect("is changed").reserved_bytes, 0);
}

/// Each member has its part of the bytes, whatever the volume was before.
#[test]
fn members_are_as_long_as_their_parts() {
    let mut scene = scene();
    create(&scene, "hot", 3);
    let expect = |scene: Scene, what: &str| {
        let size = show(&scene, "hot").size_bytes;
        let (members, _, scene) = on_device(scene);
        let row = 3 * UNIT;
        let part = |number: u64| {
            let rest = (size % row).saturating_sub(number * UNIT).min(UNIT);
            size / row * UNIT + rest
        };
        let mut parts: Vec<u64> = (0..3).map(part).collect();
        let mut found: Vec<u64> = members.iter().map(|(_, bytes)| *bytes).collect();
        found.sort_unstable();
        parts.sort_unstable();
        assert_eq!(found, parts, "{what}");
        scene
    };
    scene = expect(scene, "created");
    snapshot(&scene, "hot", "s").expect("taken");
    for size in [SIZE + 7 * UNIT + 13, 5 * UNIT + 1] {
        resize(&scene, "hot", size).expect("resized");
        scene = expect(scene, "resized");
    }
    // That takes somebody's word.
    let refused = scene.ask(|node| node.resize_volume("hot".to_owned(), UNIT, false));
    assert_eq!(kind(refused), NodeErrorKind::Refused);
    scene = expect(scene, "not resized");
    assert_eq!(show(&scene, "hot").size_bytes, 5 * UNIT + 1);
    // A clone is as long as what it is a clone of.
    for (source, size) in [("hot@s", SIZE), ("hot", 5 * UNIT + 1)] {
        let cloned = clone(&scene, source, "copy").expect("cloned");
        assert_eq!(cloned.size_bytes, size);
        let zeros = vec![0; size as usize];
        assert_same(&all_of(&mut scene.attach("copy"), size), &zeros, source);
        delete(&scene, "copy").expect("is deleted");
    }
    roll_back(&scene, "hot", "s").expect("is rolled back");
    scene = expect(scene, "rolled back");
    assert_eq!(show(&scene, "hot").size_bytes, SIZE);
}
