//! Random histories of the filesystem in memory are such as it could have had, with restarts in between; and the
//! judge of histories notices what isn't true.

use crate::conformance;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{Caller, Creation, FileError, SnapshotNumber, Stability, Timestamp};
use flagstone_sim::{Rng, RunEnd, SimPlatform, World};

use conformance::calls::{Answer, Call, Made};
use conformance::histories::{Event, History, Plan};
use conformance::judge::{Verdict, begin, judge};
use conformance::matching::Matching;
use conformance::trees::walk;
use conformance::{Client, mode};

type Memory = MemoryFiles<SimPlatform>;

fn new_files(world: &World) -> Memory {
    let options = MemoryOptions {
        delay_max_ns: 50_000,
        ..MemoryOptions::default()
    };
    MemoryFiles::new(world.platform(0), options)
}

/// A history from nothing, and the filesystem as it is then.
fn run(world: &World, seed: u64, plan: &Plan) -> (Memory, Vec<Event>) {
    let fs = new_files(world);
    let history = History::default();
    history.start(&world.platform(0), &fs, plan, &mut Rng::new(seed));
    assert!(matches!(world.run_until_idle(), RunEnd::Idle));
    (fs, history.take_events())
}

type Judged = Result<Verdict<SimPlatform>, String>;

/// Judges what has happened since a model and a filesystem were the same.
fn judge_from(
    world: &World,
    (model, matching): (&Memory, &Matching),
    fs: &Memory,
    events: Vec<Event>,
) -> Judged {
    let platform = world.platform(0);
    let (model, fs) = (model.fork(&platform), fs.fork(&platform));
    let matching = matching.clone();
    world.block_on(0, async move {
        let tree = walk(&fs, SnapshotNumber::LIVE).await;
        judge(&platform, &model, &matching, &events, &tree.into()).await
    })
}

/// Judges a history from nothing.
fn judged(world: &World, fs: &Memory, events: Vec<Event>) -> Judged {
    let (model, matching) = begin(&world.platform(0), fs);
    judge_from(world, (&model, &matching), fs, events)
}

fn is_failed(event: &Event) -> bool {
    matches!(event.ended, Some((_, Err(_))))
}

fn judge_seeds(seeds: std::ops::Range<u64>, plan: &Plan) {
    let (mut calls, mut failed) = (0, 0);
    for seed in seeds {
        let world = World::new(seed);
        let (fs, events) = run(&world, seed, plan);
        calls += events.len();
        failed += events.iter().filter(|event| is_failed(event)).count();
        if let Err(what) = judged(&world, &fs, events) {
            panic!("seed {seed}: {what}");
        }
    }
    println!("{calls} calls, {failed} failed");
    assert!(
        failed * 10 > calls && failed * 3 < calls * 2,
        "both are tried"
    );
}

#[test]
fn one_client_sees_what_the_model_says() {
    judge_seeds(0..40, &Plan::default());
}

#[test]
fn several_clients_see_what_some_order_explains() {
    let plan = Plan {
        clients: 4,
        steps: 60,
        ..Plan::default()
    };
    judge_seeds(100..120, &plan);
}

/// A restart in the middle of everything, four times. Gives how many unanswered calls had happened, and how
/// many not.
fn run_lives(seed: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let plan = Plan {
        clients: 4,
        steps: 1_000,
        stable_only: true,
        ..Plan::default()
    };
    let first = World::new(seed);
    let mut fs = new_files(&first);
    let (mut model, mut matching) = begin(&first.platform(0), &fs);
    let history = History::default();
    let (mut happened, mut unanswered) = (0, 0);
    for life in 0..4 {
        let world = World::new(seed * 10 + life);
        fs = fs.fork(&world.platform(0));
        history.start(&world.platform(0), &fs, &plan, &mut rng);
        world.run_for(1_000_000 + rng.below(2_000_000));
        let _ = world.crash();
        let after = World::new(seed * 10 + life + 5_000);
        let events = history.take_events();
        unanswered += events.iter().filter(|event| event.ended.is_none()).count();
        let verdict = judge_from(&after, (&model, &matching), &fs, events);
        let verdict = verdict.unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        (model, matching) = (verdict.model, verdict.matching);
        happened += verdict.happened;
    }
    (happened, unanswered - happened)
}

#[test]
fn what_was_not_answered_may_have_happened() {
    let (mut happened, mut others) = (0, 0);
    for seed in 0..40 {
        let counts = run_lives(seed);
        happened += counts.0;
        others += counts.1;
    }
    println!("unanswered: {happened} must have happened, {others} need not");
    assert!(happened > 20 && others > 20);
}

/// Answers that can't be the right ones where this is.
fn untruths(answer: &Answer) -> Vec<Result<Answer, FileError>> {
    let mut wrong = vec![Err(FileError::Corrupt)];
    let mut tell = |change: &mut dyn FnMut(&mut Answer)| {
        let mut other = answer.clone();
        change(&mut other);
        if other != *answer {
            wrong.push(Ok(other));
        }
    };
    tell(&mut |answer| match answer {
        Answer::Attributes(a) | Answer::Access(_, a) | Answer::Target(_, a) => a.mode ^= 1,
        Answer::Read(_, is_end, _) => *is_end = !*is_end,
        Answer::Found(found) => found.attributes.links += 1,
        Answer::Written(written) => written.changes.after.size_bytes += 1,
        Answer::Changed(changes) => changes.before.size_bytes += 1,
        Answer::Created(created) => created.attributes.uid += 1,
        Answer::Renamed(_, to) => to.after.links += 1,
        Answer::Linked(attributes, _) => attributes.links -= 1,
        Answer::Listed(listing) => listing.is_end = !listing.is_end,
        Answer::Space(space) => space.files += 1,
        Answer::Taken(number, _) => number.0 += 1,
        Answer::Done => {}
    });
    tell(&mut |answer| match answer {
        Answer::Access(mask, _) => mask.read = !mask.read,
        Answer::Target(target, _) => target.push(b'x'),
        Answer::Read(bytes, ..) => bytes.iter_mut().take(1).for_each(|byte| *byte ^= 1),
        Answer::Changed(changes) => changes.after.changed = changes.before.changed,
        Answer::Created(created) => created.directory.after.number += 1,
        Answer::Renamed(from, _) => from.before.size_bytes += 1,
        Answer::Listed(listing) => drop(listing.entries.pop()),
        _ => {}
    });
    tell(&mut |answer| match answer {
        Answer::Read(bytes, ..) => drop(bytes.pop()),
        Answer::Listed(listing) => listing.entries.iter_mut().take(1).for_each(|entry| {
            entry.name.push(b'x');
        }),
        _ => {}
    });
    wrong
}

#[test]
fn an_answer_that_is_not_true_is_noticed() {
    let world = World::new(1);
    let plan = Plan {
        steps: 150,
        ..Plan::default()
    };
    let (fs, events) = run(&world, 1, &plan);
    judged(&world, &fs, events.clone())
        .map(drop)
        .expect("it is true");
    let mut told = 0;
    for place in 0..events.len() {
        let (ended, answered) = events[place].ended.clone().expect("all are answered");
        let wrong = match &answered {
            Ok(answer) => untruths(answer),
            Err(FileError::Denied) => vec![Err(FileError::NotFound)],
            Err(_) => vec![Err(FileError::Denied)],
        };
        for wrong in wrong {
            let mut events = events.clone();
            events[place].ended = Some((ended, wrong.clone()));
            let outcome = judged(&world, &fs, events);
            assert!(
                outcome.is_err(),
                "{place}: {wrong:?} instead of {answered:?}"
            );
            told += 1;
        }
    }
    assert!(told > 200);
}

#[test]
fn a_tree_that_the_history_does_not_lead_to_is_noticed() {
    let world = World::new(1);
    let (fs, events) = run(&world, 3, &Plan::default());
    let outcome = judged(&world, &fs, events.clone());
    outcome.map(drop).expect("so far it is");
    for change in 0..9 {
        let fs = fs.fork(&world.platform(0));
        let on = fs.clone();
        world.block_on(0, async move {
            let root = Client::root(&on);
            let top = root.top();
            let mut names = root.names(top).await;
            names.retain(|name| name.is_ascii());
            let (first, last) = (&names[0], names.last().expect("has names"));
            assert_ne!(first, last);
            let node = root.lookup(top, first).await.expect("is there");
            match change {
                0 => drop(root.file(top, "new").await.expect("makes")),
                1 => drop(root.symlink(top, "new", b"x").await.expect("makes")),
                2 => drop(root.set(node, mode(0o123)).await.expect("sets")),
                3 => drop(
                    root.rename((top, first), (top, "new"))
                        .await
                        .expect("renames"),
                ),
                4 => {
                    root.rename((top, first), (top, "new"))
                        .await
                        .expect("renames");
                    root.rename((top, "new"), (top, first))
                        .await
                        .expect("renames");
                }
                5 => {
                    let bits = root.get(top).await.mode;
                    root.set(top, mode(bits)).await.expect("sets");
                }
                6 => {
                    root.rename((top, first), (top, "new"))
                        .await
                        .expect("renames");
                    root.rename((top, last), (top, first))
                        .await
                        .expect("renames");
                    root.rename((top, "new"), (top, last))
                        .await
                        .expect("renames");
                }
                7 => {
                    root.file(top, "new").await.expect("makes");
                    root.remove(top, "new").await.expect("removes");
                }
                _ => {
                    for name in &names {
                        let node = root.lookup(top, name).await.expect("is there");
                        if root.write(node, 0, b"other").await.is_ok() {
                            return;
                        }
                    }
                    panic!("none of {names:?} is a regular file");
                }
            }
        });
        let outcome = judged(&world, &fs, events.clone());
        assert!(outcome.is_err(), "{change}");
    }
}

#[test]
fn what_ended_before_another_began_comes_before_it() {
    let world = World::new(1);
    let fs = new_files(&world);
    let (on, platform) = (fs.clone(), world.platform(0));
    let (events, before) = world.block_on(0, async move {
        let root = Client::root(&on);
        let (caller, top) = (Caller::default(), root.top());
        let made = Call::Make(
            top,
            b"f".to_vec(),
            Made::File(Creation::Guarded),
            mode(0o644),
        );
        let mut events = Vec::new();
        let mut perform = async |call: Call| {
            let answered = call.perform(&on, &caller).await;
            let begun = events.len() as u64 * 2;
            events.push(Event {
                begun,
                ended: Some((begun + 1, answered)),
                clock: Timestamp::default(),
                caller: caller.clone(),
                call,
            });
        };
        perform(made).await;
        let file = root.lookup(top, "f").await.expect("was made");
        let write = |byte| Call::Write(file, 0, vec![byte], Stability::Stable);
        perform(write(b'x')).await;
        perform(Call::Read(file, 0, 9)).await;
        let before = on.fork(&platform);
        perform(write(b'y')).await;
        perform(Call::Read(file, 0, 9)).await;
        (events, before)
    });
    let verdict = |fs: &Memory, events: &[Event]| {
        let verdict = judged(&world, fs, events.to_vec());
        verdict.map(|verdict| verdict.happened)
    };
    assert_eq!(verdict(&fs, &events), Ok(0));
    let old = events[2].ended.clone().expect("was answered").1;
    let mut late = events.clone();
    late[4].ended = Some((9, old));
    assert!(
        verdict(&fs, &late).is_err(),
        "an old content after a new one"
    );
    // Unless the write went on meanwhile.
    late[3].ended = Some((10, late[3].ended.clone().expect("was answered").1));
    assert_eq!(verdict(&fs, &late), Ok(0));
    // Or wasn't answered: then it happened later, as the tree shows.
    late[3].ended = None;
    assert_eq!(verdict(&fs, &late), Ok(1));
    assert_eq!(verdict(&before, &late), Ok(0), "or never");
    // But what was seen stays.
    let mut seen = late.clone();
    seen[4] = events[4].clone();
    assert_eq!(verdict(&fs, &seen), Ok(1));
    assert!(verdict(&before, &seen).is_err(), "it was read");
    let mut back = seen.clone();
    back.push(Event {
        begun: 20,
        ..late[4].clone()
    });
    back[5].ended = late[4].ended.clone().map(|(_, answered)| (21, answered));
    assert!(verdict(&fs, &back).is_err(), "it doesn't go back");
}
