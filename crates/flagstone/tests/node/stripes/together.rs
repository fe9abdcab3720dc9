//! What is done with a striped volume at the same time: each thing comes to its end, and what is there then is what one after the other makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use flagstone::name::SourceRef;
use flagstone::node::{NodeError, NodeErrorKind, NodeFuture, TokenText};
use flagstone_types::Lsn;
use flagstone_wire::open::OpenReply;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status};

use super::{
    KIB, MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, create, delete, dvols,
    filled, kind, on_device, resize, scene, show, snapshot,
};
use crate::client::{Client, READ};
use crate::native::addresses;
use crate::native::client::Native;
use crate::support::Scene;

/// Longer than anything takes, shorter than anyone waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same, which is never waited for in vain.
fn in_time<'a, T: Send + 'a>(asked: NodeFuture<'a, T>) -> NodeFuture<'a, ()> {
    Box::pin(async move {
        let ended = tokio::time::timeout(PATIENCE, asked).await;
        ended.expect("it comes to its end").map(drop)
    })
}

/// Two things at once; which is begun first changes from round to round.
fn at_once<'a>(
    round: u64,
    one: NodeFuture<'a, ()>,
    other: NodeFuture<'a, ()>,
) -> Vec<NodeFuture<'a, ()>> {
    match round % 2 {
        0 => vec![one, other],
        _ => vec![other, one],
    }
}

/// The answers in the order in which they were named.
fn answers(round: u64, answers: Vec<Result<(), NodeError>>) -> [Result<(), NodeError>; 2] {
    let mut answers = answers;
    if round % 2 == 1 {
        answers.reverse();
    }
    answers.try_into().expect("two")
}

fn is_one_of(answer: &Result<(), NodeError>, kinds: &[NodeErrorKind]) {
    if let Err(error) = answer {
        assert!(kinds.contains(&error.kind), "{error}");
    }
}

/// Opens the volume again and again, changing its epoch or its size each time.
fn natively(
    scene: &Scene,
    token: &TokenText,
    stop: &Arc<AtomicBool>,
    flags: u8,
    ask: impl Fn(&OpenReply<'_>, u64) -> RequestHeader + Send + 'static,
) -> thread::JoinHandle<u64> {
    let address = addresses(scene)[show(scene, "hot").core as usize];
    let (token, stopped) = (TokenText(token.0.clone()), stop.clone());
    thread::spawn(move || {
        let mut done = 0;
        while !stopped.load(Ordering::Relaxed) {
            let mut native = Native::connect(address);
            for round in 0..8 {
                let opened = native.open("hot", &token, flags);
                if opened.status() != Status::Ok {
                    // One epoch at a time is raised, and nobody waits for ever.
                    let busy = [Status::Late, Status::Busy, Status::StaleEpoch];
                    assert!(busy.contains(&opened.status()), "{}", opened.sentence());
                    continue;
                }
                let reply = OpenReply::decode(&opened.body).expect("a reply");
                let head = RequestHeader {
                    volume: opened.head.volume,
                    ..ask(&reply, round)
                };
                let answer = native.ask(head, &[], &[]);
                match answer.status() {
                    Status::Ok => done += 1,
                    // Somebody else was first.
                    Status::StaleEpoch | Status::Late | Status::Busy => {}
                    other => panic!("{other}: {}", answer.sentence()),
                }
            }
        }
        done
    })
}

/// Raising an epoch waits for changes under way, a size waits for what is behind its end, and both for the same gate: neither for the other.
#[test]
fn epochs_and_sizes_change_at_the_same_time() {
    let scene = scene();
    let token = create(&scene, "hot", 4).token.expect("a token");
    let stop = Arc::new(AtomicBool::new(false));
    let raise = |reply: &OpenReply<'_>, _| RequestHeader {
        patience_ms: 40,
        lsn: Lsn(u64::from(reply.epoch.0) + 1),
        ..RequestHeader::of(Operation::SetEpoch)
    };
    let sized = |_: &OpenReply<'_>, round: u64| RequestHeader {
        len_bytes: match round % 2 {
            0 => 2 * UNIT + 100,
            _ => SIZE,
        },
        ..RequestHeader::of(Operation::Resize)
    };
    let asked = [
        natively(&scene, &token, &stop, flag::ALONE, raise),
        natively(&scene, &token, &stop, 0, raise),
        natively(&scene, &token, &stop, 0, sized),
        natively(&scene, &token, &stop, flag::ALONE, sized),
    ];
    // Each is locked out before long.
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (tcp, stopped, written) = (scene.tcp, stop.clone(), written.clone());
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut client = Client::attach(tcp, "hot");
                // Of two members, and within the smallest size.
                while client.write(UNIT - 2048, &[1; 4096]) == 0 {
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    // On a busy machine the writer may be late for a hundred of them.
    let is_enough = |round| round >= 150 && written.load(Ordering::Relaxed) > 0;
    for round in (0..1500u64).take_while(|&round| !is_enough(round)) {
        let size = match round % 2 {
            0 => UNIT + 3 * KIB,
            _ => SIZE + MIB,
        };
        let answers =
            scene.ask_all(|node| vec![in_time(node.resize_volume("hot".to_owned(), size, true))]);
        for answer in answers {
            answer.expect("is resized");
        }
        if round % 10 == 0 {
            snapshot(&scene, "hot", "s").expect("is taken");
            scene
                .ask(|node| node.delete_snapshot(at("hot", "s")))
                .expect("is deleted");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let done = asked.map(|asked| asked.join().expect("nobody waits for ever"));
    assert!(done.iter().all(|done| *done > 0), "{done:?}");
    writer.join().expect("wrote");
    assert!(written.load(Ordering::Relaxed) > 0);
    assert!(show(&scene, "hot").epoch > 10);
    is_of_one_size(scene);
}

/// The volume and its members have the size that it says, and are read and written all over.
fn is_of_one_size(scene: Scene) {
    let size = show(&scene, "hot").size_bytes;
    let data = filled(&mut Random(size), size);
    let mut client = scene.attach("hot");
    for (part, data) in data.chunks(MIB as usize).enumerate() {
        assert_eq!(client.write(part as u64 * MIB, data), 0);
    }
    assert_same(&all_of(&mut client, size), &data, "all over");
    assert_ne!(client.call(READ, size, 1).0, 0);
    let (members, snapshots, scene) = on_device(scene);
    assert_eq!(members.iter().map(|(_, bytes)| bytes).sum::<u64>(), size);
    assert_eq!(snapshots, 0);
    assert_eq!(show(&scene, "hot").size_bytes, size);
    assert_same(&all_of(&mut scene.attach("hot"), size), &data, "started");
}

/// Either the clone has all of it, or there is none; and never a member that no volume has.
#[test]
fn a_snapshot_is_deleted_while_it_is_cloned() {
    let scene = scene();
    create(&scene, "hot", 4);
    let (mut random, mut model) = (Random(51), vec![0; SIZE as usize]);
    let mut cloned = 0;
    for round in 0..24 {
        change_it(&mut scene.attach("hot"), &mut model, &mut random, 3);
        snapshot(&scene, "hot", "s").expect("taken");
        let both = scene.ask_all(|node| {
            let source: SourceRef = "hot@s".parse().expect("a source");
            let cloned = in_time(node.clone_volume(source, "copy".to_owned()));
            at_once(round, cloned, in_time(node.delete_snapshot(at("hot", "s"))))
        });
        let [clone, deleted] = answers(round, both);
        deleted.expect("is deleted");
        is_one_of(&clone, &[NodeErrorKind::NotFound]);
        assert_eq!(show(&scene, "hot").snapshot_count, 0);
        let volumes = 1 + u64::from(clone.is_ok());
        assert_eq!(dvols(&scene), 4 * volumes, "round {round}");
        if clone.is_ok() {
            cloned += 1;
            let found = all_of(&mut scene.attach("copy"), SIZE);
            assert_same(&found, &model, "the clone");
            delete(&scene, "copy").expect("is deleted");
        } else {
            assert_eq!(kind(scene.show("copy")), NodeErrorKind::NotFound);
        }
        assert_eq!(dvols(&scene), 4);
    }
    assert!(cloned > 0, "it was never there in time");
    is_of_one_size(scene);
}

/// The same with the volume itself, cloned as it is or as it was.
#[test]
fn a_volume_is_deleted_while_it_is_cloned() {
    let scene = scene();
    let mut cloned = 0;
    for round in 0..24 {
        create(&scene, "hot", 3);
        let (mut random, mut model) = (Random(round), vec![0; SIZE as usize]);
        change_it(&mut scene.attach("hot"), &mut model, &mut random, 10);
        snapshot(&scene, "hot", "s").expect("taken");
        let source = ["hot", "hot@s"][round as usize / 2 % 2];
        let both = scene.ask_all(|node| {
            let source: SourceRef = source.parse().expect("a source");
            let cloned = in_time(node.clone_volume(source, "copy".to_owned()));
            let deleted = node.delete_volume("hot".to_owned(), true);
            at_once(round, cloned, in_time(deleted))
        });
        let [clone, deleted] = answers(round, both);
        deleted.expect("is deleted");
        is_one_of(&clone, &[NodeErrorKind::NotFound]);
        assert_eq!(kind(scene.show("hot")), NodeErrorKind::NotFound);
        let volumes = u64::from(clone.is_ok());
        assert_eq!(dvols(&scene), 3 * volumes, "round {round}");
        if clone.is_ok() {
            cloned += 1;
            let found = all_of(&mut scene.attach("copy"), SIZE);
            assert_same(&found, &model, "the clone");
            delete(&scene, "copy").expect("is deleted");
        }
    }
    assert!(cloned > 0, "it was never there in time");
    assert_eq!(dvols(&scene), 0);
    let (members, snapshots, _) = on_device(scene);
    assert_eq!((members.len(), snapshots), (0, 0));
}

#[test]
fn a_volume_is_renamed_while_it_is_resized() {
    let scene = scene();
    create(&scene, "hot", 4);
    let mut model = filled(&mut Random(61), SIZE);
    let mut client = scene.attach("hot");
    for (part, data) in model.chunks(MIB as usize).enumerate() {
        assert_eq!(client.write(part as u64 * MIB, data), 0);
    }
    let (mut size, mut least) = (SIZE, SIZE);
    for round in 0..40u64 {
        let wanted = SIZE - 4 * KIB * (round % 4) + MIB * (round % 3);
        let both = scene.ask_all(|node| {
            let resized = node.resize_volume("hot".to_owned(), wanted, true);
            let renamed = node.rename_volume("hot".to_owned(), "warm".to_owned());
            at_once(round, in_time(resized), in_time(renamed))
        });
        let [resized, renamed] = answers(round, both);
        renamed.expect("is renamed");
        // Also one that was resized, and had another name when it was to be shown.
        is_one_of(&resized, &[NodeErrorKind::NotFound]);
        let found = show(&scene, "warm").size_bytes;
        assert!(found == wanted || resized.is_err() && found == size);
        size = found;
        least = least.min(size);
        let back = scene.ask(|node| node.rename_volume("warm".to_owned(), "hot".to_owned()));
        back.expect("is renamed");
    }
    model.truncate(least as usize);
    model.resize(size as usize, 0);
    assert_same(&all_of(&mut scene.attach("hot"), size), &model, "resized");
    is_of_one_size(scene);
}

#[test]
fn two_sizes_at_once_are_one_behind_the_other() {
    let scene = scene();
    create(&scene, "hot", 4);
    let full = filled(&mut Random(71), SIZE);
    for round in 0..30u64 {
        let mut client = scene.attach("hot");
        for (part, data) in full.chunks(MIB as usize).enumerate() {
            assert_eq!(client.write(part as u64 * MIB, data), 0);
        }
        let smaller = UNIT * (1 + round % 7) + 1000 * (round % 3);
        let sizes = [smaller, SIZE + MIB + 12 * KIB];
        let both = scene.ask_all(|node| {
            let [one, other] =
                sizes.map(|size| in_time(node.resize_volume("hot".to_owned(), size, true)));
            at_once(round, one, other)
        });
        for answer in both {
            answer.expect("is resized");
        }
        let size = show(&scene, "hot").size_bytes;
        assert!(sizes.contains(&size), "{size}");
        // First larger, then smaller; or the other way round, and then the rest is zeros.
        let mut model = full[..smaller as usize].to_vec();
        model.resize(size as usize, 0);
        assert_same(&all_of(&mut scene.attach("hot"), size), &model, "then");
        resize(&scene, "hot", SIZE).expect("is resized");
        model.resize(SIZE as usize, 0);
        assert_same(&all_of(&mut scene.attach("hot"), SIZE), &model, "again");
    }
    // Another one than it was made with.
    resize(&scene, "hot", 9 * UNIT + 5).expect("is resized");
    is_of_one_size(scene);
}

/// All members are rolled back to the same one of the two.
#[test]
fn two_rollbacks_at_once_are_one_behind_the_other() {
    let scene = scene();
    create(&scene, "hot", 4);
    let sizes = [SIZE, 2 * MIB + 5 * KIB];
    let mut then = Vec::new();
    for (name, size) in ["a", "b"].into_iter().zip(sizes) {
        resize(&scene, "hot", size).expect("is resized");
        let data = filled(&mut Random(size), size);
        let mut client = scene.attach("hot");
        for (part, data) in data.chunks(MIB as usize).enumerate() {
            assert_eq!(client.write(part as u64 * MIB, data), 0);
        }
        snapshot(&scene, "hot", name).expect("taken");
        then.push(data);
    }
    for round in 0..30u64 {
        let mut client = scene.attach("hot");
        assert_eq!(client.write(0, &vec![9; 8 * UNIT as usize]), 0);
        let both = scene.ask_all(|node| {
            let [one, other] =
                ["a", "b"].map(|name| in_time(node.rollback_volume(at("hot", name))));
            at_once(round, one, other)
        });
        for answer in both {
            answer.expect("is rolled back");
        }
        let size = show(&scene, "hot").size_bytes;
        let which = sizes.iter().position(|one| *one == size);
        let which = which.expect("one of both");
        let found = all_of(&mut scene.attach("hot"), size);
        assert_same(&found, &then[which], "all of it");
        if round % 10 == 9 {
            snapshot(&scene, "hot", "c").expect("is taken");
            let found = all_of(&mut scene.attach("hot@c"), size);
            assert_same(&found, &then[which], "a snapshot of it");
            let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "c")));
            deleted.expect("is deleted");
        }
    }
    // And while the one that it is rolled back to is deleted.
    for round in 0..10u64 {
        snapshot(&scene, "hot", "c").expect("is taken");
        let size = show(&scene, "hot").size_bytes;
        let mut model = all_of(&mut scene.attach("hot"), size);
        assert_eq!(scene.attach("hot").write(0, &[round as u8; 9000]), 0);
        let both = scene.ask_all(|node| {
            let rolled = in_time(node.rollback_volume(at("hot", "c")));
            at_once(round, rolled, in_time(node.delete_snapshot(at("hot", "c"))))
        });
        let [rolled, deleted] = answers(round, both);
        deleted.expect("is deleted");
        is_one_of(&rolled, &[NodeErrorKind::NotFound]);
        if rolled.is_err() {
            model[..9000].fill(round as u8);
        }
        assert_same(&all_of(&mut scene.attach("hot"), size), &model, "either");
    }
}
