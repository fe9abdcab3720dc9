//! Members whose journals go from core to core, and who waits for whom meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use flagstone::name::SourceRef;
use flagstone::node::{NodeErrorKind, NodeFuture, VolumeSpec};

use super::{
    MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, create, ended, resize, scene,
    show, snapshot, spec, two_cores, writers,
};
use crate::client;
use crate::support::Scene;

/// Clients go on while the journals of its members go from core to core.
#[test]
fn its_journals_change_their_cores_under_its_clients() {
    let scene = scene();
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let (mut client, stopped) = (scene.attach("hot"), stop.clone());
    let writer = thread::spawn(move || {
        let (mut random, mut model) = (Random(9), vec![0; SIZE as usize]);
        while !stopped.load(Ordering::Relaxed) {
            change_it(&mut client, &mut model, &mut random, 5);
        }
        assert_same(&all_of(&mut client, SIZE), &model, "on its way");
        model
    });
    let members = show(&scene, "hot").stripe.expect("is striped").members;
    for round in 0..6 {
        for member in &members[..2] {
            let to = (member.core + 1 + round) % 2;
            let journal = member.journal;
            let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
            handed.expect("is handed over");
        }
        let now = show(&scene, "hot");
        assert_eq!(now.stripe.expect("is striped").members.len(), 4);
        snapshot(&scene, "hot", &format!("s{round}")).expect("taken");
    }
    stop.store(true, Ordering::Relaxed);
    let model = writer.join().expect("wrote");
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &model,
        "attached anew",
    );
    let scene = scene.restart(two_cores);
    assert_same(
        &all_of(&mut scene.attach("hot"), SIZE),
        &model,
        "behind a start",
    );
}

/// A volume of one stripe would be another one than was asked for, for good.
#[test]
fn one_stripe_is_refused() {
    let scene = scene();
    for stripe_unit_bytes in [None, Some(UNIT)] {
        let refused = scene.ask(|node| {
            node.create_volume(VolumeSpec {
                stripe_unit_bytes,
                ..spec("hot", 1)
            })
        });
        let refused = refused.expect_err("is refused");
        assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
        assert!(refused.found.contains("isn't striped"), "{refused}");
    }
    assert!(scene.show("hot").is_err());
}

/// More members than cores do no more work at a time: whoever makes such a volume is told.
#[test]
fn members_that_share_a_core_draw_a_remark() {
    let scene = scene();
    let told = |name: &str, stripes| {
        let made = create(&scene, name, stripes).volume;
        assert_eq!(made.stripes, Some(stripes));
        assert_eq!(show(&scene, name).stripe, made.stripe);
        made.stripe.expect("is striped").warning
    };
    assert_eq!(told("two", 2), None);
    let warning = told("sixteen", 16).expect("they share cores");
    assert!(warning.contains("16 parts share 2 cores"), "{warning}");
    let listed = scene.ask(|node| node.list_volumes(Default::default()));
    let listed = listed.expect("are listed").items;
    let stripes: Vec<Option<u32>> = listed.iter().map(|volume| volume.stripes).collect();
    assert_eq!(stripes, [Some(16), Some(2)]);
    let scene = scene.restart(|options| options.cores = Some(1));
    let warning = show(&scene, "two").stripe.expect("is striped").warning;
    let warning = warning.expect("there is one core now");
    assert!(warning.contains("2 parts share 1 core:"), "{warning}");
}

/// Who has let something into the whole waits for turns at the device when the whole is held: neither may wait for the other.
#[test]
fn what_waits_for_its_turn_holds_nobody_up() {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule.ceiling = Some("reads=3000 writes=1500".parse().expect("one"));
    })
    .expect("a node");
    create(&scene, "hot", 4);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = writers(&scene, "hot", 12, &stop);
    let members = show(&scene, "hot").stripe.expect("is striped").members;
    for round in 0..4u32 {
        snapshot(&scene, "hot", "s").expect("taken");
        resize(&scene, "hot", SIZE + MIB).expect("resized");
        let source: SourceRef = "hot".parse().expect("a source");
        let cloned = scene.ask(|node| node.clone_volume(source, "copy".to_owned()));
        cloned.expect("cloned");
        for member in &members[..2] {
            let to = (member.core + 1 + round) % 2;
            let journal = member.journal;
            let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
            handed.expect("is handed over");
        }
        resize(&scene, "hot", SIZE).expect("resized");
        let renamed = format!("hot{round}");
        let to = |from: &str, to: &str| {
            let renamed = scene.ask(|node| node.rename_volume(from.to_owned(), to.to_owned()));
            renamed.expect("renamed");
        };
        to("hot", &renamed);
        to(&renamed, "hot");
        let deleted = scene.ask(|node| node.delete_volume("copy".to_owned(), true));
        deleted.expect("is deleted");
        let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "s")));
        deleted.expect("is deleted");
    }
    ended(writers, &stop);
    // With readers alone a rollback may come.
    snapshot(&scene, "hot", "s").expect("taken");
    let reader = {
        let (mut client, stopped) = (scene.attach("hot"), Arc::new(AtomicBool::new(false)));
        let stop = stopped.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                assert_eq!(client.call(client::READ, 0, (10 * UNIT) as u32).0, 0);
            }
        });
        (thread, stop)
    };
    for _ in 0..3 {
        let rolled = scene.ask(|node| node.rollback_volume(at("hot", "s")));
        rolled.expect("rolled back");
    }
    reader.1.store(true, Ordering::Relaxed);
    reader.0.join().expect("read");
}

/// Two volumes, each with its first member in the journal of the other's second one, and both journals go at the same time; and clones are made
/// meanwhile.
#[test]
fn journals_that_go_at_the_same_time_do_not_wait_for_each_other() {
    let scene = scene();
    let at_core = |name: &str, core, members| {
        let created = scene.ask(|node| {
            node.create_volume(VolumeSpec {
                core: Some(core),
                ..spec(name, members)
            })
        });
        created.expect("created");
    };
    at_core("one", 0, 2);
    // Of this one two are in each journal.
    at_core("hot", 1, 4);
    let members = show(&scene, "one").stripe.expect("is striped").members;
    let stop = Arc::new(AtomicBool::new(false));
    let mut all = writers(&scene, "one", 3, &stop);
    all.extend(writers(&scene, "hot", 3, &stop));
    for round in 0..6u32 {
        let answers = scene.ask_all(|node| {
            let handed = members.iter().map(|member| {
                let to = (member.core + 1 + round) % 2;
                let handed = node.hand_over_journal("main".to_owned(), member.journal, to);
                let handed: NodeFuture<'_, ()> = Box::pin(async move { handed.await.map(drop) });
                handed
            });
            let handed: Vec<_> = handed.collect();
            let cloned = ["one", "hot"].map(|name| {
                let source: SourceRef = name.parse().expect("a source");
                let cloned = node.clone_volume(source, format!("{name}-{round}"));
                let cloned: NodeFuture<'_, ()> = Box::pin(async move { cloned.await.map(drop) });
                cloned
            });
            // Who comes first isn't always the same.
            let (mut first, then): (Vec<_>, Vec<_>) = match round % 2 {
                0 => (handed, cloned.into()),
                _ => (cloned.into(), handed),
            };
            first.extend(then);
            first
        });
        for answer in answers {
            // Who comes in the moment of a hand-over may be told to try again.
            if let Err(error) = answer {
                assert_eq!(error.kind, NodeErrorKind::Busy, "{error}");
            }
        }
    }
    ended(all, &stop);
}

/// Clients that were attached before a volume's journal went are passed on by what the volume is, not by its name.
#[test]
fn a_renaming_is_not_noticed_by_those_who_are_passed_on() {
    let scene = scene();
    create(&scene, "hot", 3);
    scene.create("cold", SIZE).expect("created");
    let stop = Arc::new(AtomicBool::new(false));
    let mut all = writers(&scene, "hot", 4, &stop);
    all.extend(writers(&scene, "cold", 4, &stop));
    for name in ["hot", "cold"] {
        let info = show(&scene, name);
        let (journal, to) = (info.journal, 1 - info.core);
        let handed = scene.ask(|node| node.hand_over_journal("main".to_owned(), journal, to));
        handed.expect("is handed over");
    }
    for round in 0..100 {
        for name in ["hot", "cold"] {
            let other = format!("{name}-{round}");
            for (from, to) in [(name, other.as_str()), (other.as_str(), name)] {
                let renamed = scene.ask(|node| node.rename_volume(from.to_owned(), to.to_owned()));
                renamed.expect("renamed");
            }
        }
    }
    ended(all, &stop);
}
