//! The judge of histories notices snapshots, copies and ways back that no order of the calls leads to.

use crate::conformance;

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{
    Caller, Creation, FileError, FileId, Node, SnapshotNumber, Stability, Timestamp,
};
use flagstone_platform::Platform;
use flagstone_sim::{Rng, RunEnd, SimPlatform, World};

use conformance::calls::{Answer, Call, Made};
use conformance::histories::{Event, History, Plan, Trees};
use conformance::judge::{End, begin, judge};
use conformance::mode;
use conformance::trees::walk;

type Memory = MemoryFiles<SimPlatform>;

/// What is done in truth, one behind the other.
#[derive(Clone)]
enum Act {
    Do(Call),
    /// What a copy looks at, which gets its name later.
    Look(Call),
    Name(Call),
}

/// When a call began and when it ended, for all that clients know. `None`: it was never answered.
type Told = (u64, Option<u64>);

const fn told(begun: u64, ended: u64) -> Told {
    (begun, Some(ended))
}

/// What is made first, second and so on in the topmost directory.
fn nth(number: u64) -> Node {
    Node::live(FileId {
        directory: 1,
        file: 1 + number,
    })
}

fn top() -> Node {
    Node::live(FileId {
        directory: 1,
        file: 0,
    })
}

fn make(name: &str) -> Act {
    let made = Made::File(Creation::Guarded);
    Act::Do(Call::Make(top(), name.into(), made, mode(0o644)))
}

fn write(content: &str) -> Act {
    let content = content.as_bytes().to_vec();
    Act::Do(Call::Write(nth(1), 0, content, Stability::Stable))
}

fn read(number: u64) -> Act {
    Act::Do(Call::Read(nth(number), 0, 100))
}

fn take(name: &str) -> Act {
    Act::Do(Call::TakeSnapshot(name.into()))
}

fn delete(name: &str) -> Act {
    Act::Do(Call::DeleteSnapshot(name.into()))
}

fn roll_back(name: &str) -> Act {
    Act::Do(Call::RollBack(name.into()))
}

/// A look at what the first snapshot has.
fn look_back() -> Act {
    let at = SnapshotNumber(1);
    Act::Do(Call::Attributes(Node { at, ..top() }))
}

fn copied() -> Call {
    Call::Copy(nth(1), top(), b"copy".to_vec())
}

struct Story {
    world: World,
    fs: Memory,
    events: Vec<Event>,
    end: End,
}

async fn end_of(fs: &Memory, mut trees: Trees) -> End {
    let mut names = BTreeMap::new();
    for info in fs.snapshots() {
        trees.insert(info.number, Rc::new(walk(fs, info.number).await));
        names.insert(info.name, info.number);
    }
    let tree = walk(fs, SnapshotNumber::LIVE).await;
    End { tree, names, trees }
}

impl Story {
    /// Does it, and tells it otherwise.
    fn of(script: &[(Act, Told)]) -> Story {
        let world = World::new(1);
        let fs = Memory::new(world.platform(0), MemoryOptions::default());
        let (on, script, platform) = (fs.clone(), script.to_vec(), world.platform(0));
        let (mut events, end) = world.block_on(0, async move {
            let caller = Caller::default();
            let (mut events, mut trees, mut looked) = (Vec::new(), Trees::new(), None);
            for (act, (begun, ended)) in script {
                let (call, answered) = match act {
                    Act::Look(call) => {
                        let Call::Copy(source, directory, name) = call else {
                            panic!("only who copies looks first");
                        };
                        let copied = on.copied(&caller, source, directory, &name).await;
                        looked = Some(copied.expect("is there"));
                        continue;
                    }
                    Act::Name(call) => {
                        let Call::Copy(_, directory, name) = &call else {
                            panic!("only who copies gives a name then");
                        };
                        let copied = looked.take().expect("was looked at");
                        let made = on.make_copy(&caller, *directory, name, &copied).await;
                        (call, made.map(Answer::Created))
                    }
                    Act::Do(call) => {
                        let answered = call.perform(&on, &caller).await;
                        (call, answered)
                    }
                };
                if let Ok(Answer::Taken(number, _)) = answered {
                    trees.insert(number, Rc::new(walk(&on, number).await));
                }
                events.push(Event {
                    begun,
                    ended: ended.map(|ended| (ended, answered)),
                    clock: Timestamp::from_ns(platform.wall_clock_ns()),
                    caller: caller.clone(),
                    call,
                });
            }
            let end = end_of(&on, trees).await;
            (events, end)
        });
        events.sort_by_key(|event| event.begun);
        Story {
            world,
            fs,
            events,
            end,
        }
    }

    /// How many calls that were not answered have happened, if it can be so at all.
    fn judged(&self) -> Result<usize, String> {
        self.judged_by(self.end.trees.clone())
    }

    /// The same if something else is in the snapshots.
    fn judged_by(&self, trees: Trees) -> Result<usize, String> {
        let (model, matching) = begin(&self.world.platform(0), &self.fs);
        let (platform, events) = (self.world.platform(0), self.events.clone());
        let end = End {
            tree: self.end.tree.clone(),
            names: self.end.names.clone(),
            trees,
        };
        let verdict = self.world.block_on(0, async move {
            judge(&platform, &model, &matching, &events, &end).await
        });
        verdict.map(|verdict| verdict.happened)
    }
}

fn judged(script: &[(Act, Told)]) -> Result<usize, String> {
    Story::of(script).judged()
}

fn is_noticed(what: &str, script: &[(Act, Told)]) {
    assert!(judged(script).is_err(), "{what}");
}

#[test]
fn a_snapshot_has_what_was_answered_before_and_nothing_that_began_behind() {
    let (first, early, late) = ((make("f"), told(0, 1)), told(2, 3), told(4, 5));
    let taken_first = [first.clone(), (take("s"), early), (write("x"), late)];
    assert_eq!(judged(&taken_first), Ok(0));
    let taken_last = [first.clone(), (write("x"), early), (take("s"), late)];
    assert_eq!(judged(&taken_last), Ok(0));
    let lacks = [first.clone(), (take("s"), late), (write("x"), early)];
    is_noticed("what was answered before is not in it", &lacks);
    let has = [first.clone(), (write("x"), late), (take("s"), early)];
    is_noticed("what began behind it is in it", &has);
    // While it goes on it is all the same.
    let beside = told(3, 6);
    for script in [
        [first.clone(), (take("s"), beside), (write("x"), early)],
        [first.clone(), (write("x"), late), (take("s"), beside)],
        [first.clone(), (write("x"), beside), (take("s"), early)],
    ] {
        let mut script = script;
        for (_, told) in &mut script[1..] {
            if *told == early {
                *told = (2, Some(4));
            }
        }
        assert_eq!(judged(&script), Ok(0));
    }
}

#[test]
fn a_snapshot_is_of_one_moment() {
    // It goes on beside both; one of them ended before the other began.
    let (f, one, two, all) = (told(0, 1), told(3, 4), told(5, 6), told(2, 7));
    let make_f = (make("f"), f);
    for place in 1..4 {
        let mut script = vec![make_f.clone(), (write("x"), one), (make("g"), two)];
        script.insert(place, (take("s"), all));
        assert_eq!(judged(&script), Ok(0), "{place}");
    }
    let half = [
        make_f,
        (make("g"), two),
        (take("s"), all),
        (write("x"), one),
    ];
    is_noticed("the later without the earlier", &half);
}

#[test]
fn what_two_snapshots_have_comes_in_their_order() {
    let f = (make("f"), told(0, 1));
    let (write, one, two) = ((write("x"), told(2, 9)), told(3, 4), told(5, 6));
    let script = [
        f.clone(),
        (take("one"), one),
        write.clone(),
        (take("two"), two),
    ];
    assert_eq!(judged(&script), Ok(0));
    let script = [f, (take("one"), two), write, (take("two"), one)];
    is_noticed("what the first has is gone in the second", &script);
}

#[test]
fn snapshots_are_there_that_were_taken_and_no_others() {
    let script = [
        (make("f"), told(0, 1)),
        (take("one"), told(2, 3)),
        (write("x"), told(4, 5)),
        (take("two"), told(6, 7)),
    ];
    let change = |change: &dyn Fn(&mut Story)| {
        let mut story = Story::of(&script);
        change(&mut story);
        story.judged()
    };
    let remove = |story: &mut Story| {
        story.end.names.remove("two");
    };
    let insert = |story: &mut Story, name: &str, number| {
        let number = SnapshotNumber(number);
        story.end.names.insert(name.into(), number);
    };
    let gone = change(&remove);
    assert!(gone.is_err(), "it is gone");
    let more = change(&|story| insert(story, "three", 3));
    assert!(more.is_err(), "nobody took it");
    let other = change(&|story| insert(story, "two", 1));
    assert!(other.is_err(), "it is another one");
    let again = change(&|story| {
        story.events[3].ended = Some((
            7,
            Ok(Answer::Taken(SnapshotNumber(1), Timestamp::default())),
        ));
    });
    assert!(again.is_err(), "the number was given before");
    // Unless nobody was told: then it is there or isn't, but nothing else.
    let open = |what: &dyn Fn(&mut Story)| {
        change(&|story| {
            story.events[3].ended = None;
            what(story);
        })
    };
    assert_eq!(open(&|_| {}), Ok(1));
    assert_eq!(open(&remove), Ok(0));
    let old = open(&|story| {
        let old = story.end.trees[&SnapshotNumber(1)].as_of(SnapshotNumber(2));
        story.end.trees.insert(SnapshotNumber(2), Rc::new(old));
    });
    assert!(old.is_err(), "it lacks what was answered before it began");
}

#[test]
fn a_deleted_snapshot_is_gone_and_no_other() {
    let (f, taken) = ((make("f"), told(0, 1)), (take("s"), told(2, 3)));
    let (early, late) = (told(4, 5), told(6, 7));
    let script = |acts: [(Act, Told); 2]| {
        let [one, two] = acts;
        [f.clone(), taken.clone(), one, two]
    };
    let seen = [(look_back(), early), (delete("s"), late)];
    assert_eq!(judged(&script(seen)), Ok(0));
    let gone = [(delete("s"), early), (look_back(), late)];
    assert_eq!(judged(&script(gone)), Ok(0));
    let beside = [(look_back(), (4, Some(6))), (delete("s"), (5, Some(7)))];
    assert_eq!(judged(&script(beside)), Ok(0));
    is_noticed(
        "it is seen behind its end",
        &script([(look_back(), late), (delete("s"), early)]),
    );
    is_noticed(
        "it is gone before its end",
        &script([(delete("s"), late), (look_back(), early)]),
    );
    let mut story = Story::of(&script([(delete("s"), early), (look_back(), late)]));
    story.end.names.insert("s".into(), SnapshotNumber(1));
    assert!(story.judged().is_err(), "it is still there");
    // Nobody was told, and it is there.
    let acts = [f.clone(), taken.clone(), (look_back(), early)];
    let mut story = Story::of(&acts);
    let open = Event {
        begun: 6,
        ended: None,
        clock: Timestamp::default(),
        caller: Caller::default(),
        call: Call::DeleteSnapshot("s".into()),
    };
    story.events.push(open);
    assert_eq!(story.judged(), Ok(0));
    let script = script([(delete("s"), (4, None)), (delete("t"), late)]);
    assert_eq!(judged(&script), Ok(1));
    let mut story = Story::of(&script);
    story.events[3].ended = Some((7, Ok(Answer::Done)));
    assert!(story.judged().is_err(), "there was no such snapshot");
}

#[test]
fn everything_goes_back_or_nothing() {
    let before = [
        (make("f"), told(0, 1)),
        (write("x"), told(2, 3)),
        (take("s"), told(4, 5)),
    ];
    let script = |acts: &[(Act, Told)]| [&before[..], acts].concat();
    let (early, late) = (told(6, 7), told(8, 9));
    for told in [early, late] {
        let read = (read(1), told);
        let written = script(&[
            (write("y"), early),
            (make("g"), early),
            (roll_back("s"), told),
        ]);
        assert_eq!(judged(&[&written[..], &[read]].concat()), Ok(0));
    }
    is_noticed(
        "what was answered before is still there",
        &script(&[(roll_back("s"), late), (write("y"), early)]),
    );
    is_noticed(
        "what began behind it is gone",
        &script(&[(write("y"), late), (roll_back("s"), early)]),
    );
    is_noticed(
        "what was there before is read behind it",
        &script(&[
            (write("y"), early),
            (read(1), told(10, 11)),
            (roll_back("s"), late),
        ]),
    );
    // Not one of two that were answered before.
    let half = script(&[
        (write("y"), early),
        (roll_back("s"), late),
        (make("g"), early),
    ]);
    is_noticed("half of it goes back", &half);
    // Nobody was told: all or nothing.
    let open = (roll_back("s"), (8, None));
    let happened = script(&[(write("y"), early), (make("g"), early), open.clone()]);
    assert_eq!(judged(&happened), Ok(1));
    let mut story = Story::of(&script(&[(write("y"), early), (make("g"), early)]));
    story.events.push(Event {
        begun: 8,
        ended: None,
        clock: Timestamp::default(),
        caller: Caller::default(),
        call: Call::RollBack("s".into()),
    });
    assert_eq!(story.judged(), Ok(0));
    let half = script(&[(write("y"), early), open, (make("g"), early)]);
    is_noticed("half of it goes back, and nobody was told", &half);
    let none = script(&[(roll_back("t"), early)]);
    assert_eq!(judged(&none), Ok(0));
    let mut story = Story::of(&none);
    story.events[3].ended = Some((7, Ok(Answer::Done)));
    assert!(story.judged().is_err(), "there is no such snapshot");
}

#[test]
fn a_copy_has_what_was_there_while_it_was_made() {
    let before = [(make("f"), told(0, 1)), (write("x"), told(2, 3))];
    let script = |acts: &[(Act, Told)]| [&before[..], acts].concat();
    let (early, late, last) = (told(4, 5), told(6, 7), told(8, 9));
    let (copy, look) = (Act::Do(copied()), (Act::Look(copied()), (0, None)));
    let has_new = [(write("y"), early), (copy.clone(), late), (read(2), last)];
    assert_eq!(judged(&script(&has_new)), Ok(0));
    let has_old = [(copy.clone(), early), (write("y"), late), (read(2), last)];
    assert_eq!(judged(&script(&has_old)), Ok(0));
    is_noticed(
        "what came later is in it",
        &script(&[(write("y"), late), (copy.clone(), early), (read(2), last)]),
    );
    is_noticed(
        "what came earlier isn't in it",
        &script(&[(copy, late), (write("y"), early), (read(2), last)]),
    );
    // It has one of two that went on beside it, and its name comes behind both.
    let name = Act::Name(copied());
    let beside = |copy: Told| {
        script(&[
            (write("y"), told(5, 6)),
            look.clone(),
            (write("z"), told(7, 8)),
            (make("g"), told(9, 10)),
            (name.clone(), copy),
            (read(3), told(20, 21)),
        ])
    };
    assert_eq!(judged(&beside(told(4, 15))), Ok(0));
    assert_eq!(judged(&beside(told(7, 15))), Ok(0));
    is_noticed("it is older than it", &beside(told(9, 15)));
    is_noticed("it has its name too early", &beside(told(4, 8)));
    // As the tree at the end shows, though nobody has read it.
    let unread = |copy: Told| {
        let mut script = beside(copy);
        script.pop();
        script
    };
    assert_eq!(judged(&unread(told(7, 15))), Ok(0));
    is_noticed("it is older than it, at the end", &unread(told(9, 15)));
    let mut story = Story::of(&beside(told(4, 15)));
    let read = story.events.last_mut().expect("it was read");
    if let Some((_, Ok(Answer::Read(bytes, ..)))) = &mut read.ended {
        *bytes = b"z".to_vec();
    }
    assert!(story.judged().is_err(), "the tree has something else");
    let mut story = Story::of(&script(&has_old));
    story.events[2].ended = Some((5, Err(FileError::Exists)));
    assert!(story.judged().is_err(), "nobody had the name");
}

/// A history from nothing of clients that take snapshots, with what it leads to.
fn run(seed: u64, plan: &Plan) -> Story {
    let world = World::new(seed);
    let options = MemoryOptions {
        delay_max_ns: 50_000,
        ..MemoryOptions::default()
    };
    let fs = Memory::new(world.platform(0), options);
    let history = History::default();
    history.start(&world.platform(0), &fs, plan, &mut Rng::new(seed));
    assert!(matches!(world.run_until_idle(), RunEnd::Idle));
    let (on, trees) = (fs.clone(), history.trees());
    let end = world.block_on(0, async move { end_of(&on, trees).await });
    let events = history.take_events();
    Story {
        world,
        fs,
        events,
        end,
    }
}

fn plan(clients: u64, rolls_back: bool) -> Plan {
    Plan {
        clients,
        steps: 240 / clients as usize,
        kept_one_in: 6,
        rolls_back,
        ..Plan::default()
    }
}

#[test]
fn random_histories_with_snapshots_are_what_they_could_be() {
    let mut counts = [0; 4];
    for seed in 0..40 {
        let story = run(seed, &plan(1 + seed % 4, seed / 4 % 2 == 0));
        for event in &story.events {
            if let Some((_, Ok(_))) = event.ended {
                match event.call {
                    Call::TakeSnapshot(_) => counts[0] += 1,
                    Call::DeleteSnapshot(_) => counts[1] += 1,
                    Call::RollBack(_) => counts[2] += 1,
                    Call::Copy(..) => counts[3] += 1,
                    _ => {}
                }
            }
        }
        let judged = story.judged();
        judged.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("taken, deleted, rolled back, copied: {counts:?}");
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
}

/// Each snapshot has what the next one has, and that what it had.
#[test]
fn snapshots_that_were_mistaken_for_others_are_noticed() {
    let mut told = 0;
    for seed in 0..12 {
        let story = run(100 + seed, &plan(1 + seed % 2, false));
        let trees: Vec<_> = story.end.trees.iter().collect();
        for pair in trees.windows(2) {
            let [(one, of_one), (two, of_two)] = *pair else {
                continue;
            };
            if of_one.as_now() == of_two.as_now() {
                continue;
            }
            let mut trees = story.end.trees.clone();
            trees.insert(*one, Rc::new(of_two.as_of(*one)));
            trees.insert(*two, Rc::new(of_one.as_of(*two)));
            let judged = story.judged_by(trees);
            assert!(judged.is_err(), "seed {seed}: {one:?} and {two:?}");
            told += 1;
        }
    }
    println!("{told} pairs");
    assert!(told > 40, "{told}");
}
