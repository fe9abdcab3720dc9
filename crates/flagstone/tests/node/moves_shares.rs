//! What moves take of devices that are divided: as much as they ask of them, and of whom.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::{
    DeviceOptions, MoveInfo, MovePhase, MoveSpec, MoveState, NodeOptions, Rates, Schedule,
    SchedulePolicy, Slo, SloLimit, SloPromise,
};
use flagstone::offline::FormatOptions;

use crate::client::{Client, READ, WRITE};
use crate::moves::{block, ended};
use crate::support::{Folder, Scene};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// What is copied: blocks that each lie alone, in the volume and on the device.
const BLOCKS: u64 = 256;
const READS: f64 = 4000.0;
const WRITES: f64 = 2000.0;

fn change(options: &mut NodeOptions, other: &Folder) {
    divided(options, other, Schedule::default());
}

/// Both devices are divided, and so otherwise.
fn divided(options: &mut NodeOptions, other: &Folder, schedule: Schedule) {
    let ceiling = "reads=4000 writes=2000".parse().expect("a ceiling");
    let schedule = Schedule {
        ceiling: schedule.ceiling.or(Some(ceiling)),
        ..schedule
    };
    options.devices[0].schedule = schedule;
    options.devices.push(DeviceOptions {
        name: "other".to_owned(),
        path: other.path.join("other.img"),
        expected_size_bytes: None,
        layers: Vec::new(),
        schedule,
    });
}

/// Seconds of this device that moves took.
fn taken(scene: &Scene, device: &str) -> f64 {
    counted(scene, device, "moves_used_seconds")
}

/// Seconds of it that its own work took.
fn own_work(scene: &Scene, device: &str) -> f64 {
    counted(scene, device, "background_used_seconds")
}

fn counted(scene: &Scene, device: &str, name: &str) -> f64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let of = metrics.devices.iter().find(|one| one.device == device);
    let mut more = of.expect("is there").more.iter();
    let used = more.find(|one| one.name == name);
    used.expect("is told").value
}

/// A second device for a node, and the node with it.
fn scene(other: &Folder, size_bytes: u64, change: impl FnOnce(&mut NodeOptions)) -> Scene {
    let format = FormatOptions {
        size_bytes: Some(size_bytes),
        force: false,
        sparse: true,
    };
    let path = other.path.join("other.img");
    flagstone::offline::format(&path, &format).expect("formatted");
    Scene::start(size_bytes, change).expect("a node")
}

fn to_other(scene: &Scene, limit_bytes: Option<u64>) {
    let spec = MoveSpec {
        device: Some("other".to_owned()),
        limit_bytes,
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), spec));
    begun.expect("begins");
}

fn info(scene: &Scene) -> MoveInfo {
    let info = scene.ask(|node| node.show_move("vm".to_owned()));
    info.expect("is known")
}

/// Device time that a volume used, in seconds: of whatever device it was on.
fn used_by(scene: &Scene, name: &str) -> f64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let of = metrics.volumes.iter().find(|one| one.volume == name);
    of.expect("is there").turns.used_ns as f64 / 1e9
}

/// What a volume is promised of its device, in nanoseconds a second.
fn promised_to(scene: &Scene, name: &str) -> u64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let of = metrics.volumes.iter().find(|one| one.volume == name);
    of.expect("is there").turns.promised_ns
}

/// Moves blocks that lie so far from each other, written in another order than that in which they are read. Returns what either device was charged, as a part of what
/// an operation for each block would be.
fn charged(apart_blocks: u64) -> (f64, f64) {
    let other = Folder::new();
    let scene = scene(&other, 1 << 30, |options| change(options, &other));
    scene.create("vm", 8 * MIB).expect("created");
    let mut client = scene.attach("vm");
    let at = |number: u64| number * apart_blocks * BLOCK;
    for number in (0..BLOCKS).map(|nth| nth * 37 % BLOCKS) {
        assert_eq!(client.write(at(number), &block(number)), 0);
    }
    drop(client);
    // Nothing of it is in memory then.
    let scene = scene.restart(|options| change(options, &other));
    assert_eq!(taken(&scene, "main"), 0.0);
    to_other(&scene, None);
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(info.copied_bytes, BLOCKS * BLOCK);
    let mut client = scene.attach("vm");
    for number in 0..BLOCKS {
        let (error, found) = client.call(READ, at(number), BLOCK as u32);
        assert_eq!((error, found), (0, block(number)), "block {number}");
    }
    let part = |device, rate| taken(&scene, device) / (BLOCKS as f64 / rate);
    (part("main", READS), part("other", WRITES))
}

/// Each is an operation of either device, however many come in one part: others would pay for what isn't charged.
#[test]
fn scattered_blocks_are_charged_one_by_one() {
    let (read, written) = charged(4);
    assert!((0.95..1.15).contains(&read), "{read}");
    assert!((0.95..1.15).contains(&written), "{written}");
}

/// They lie together in the volume and not on the device, so what is read together is as many operations. What is written is not.
#[test]
fn blocks_that_lie_together_are_charged_as_the_device_has_them() {
    let (read, written) = charged(1);
    assert!((0.95..1.15).contains(&read), "{read}");
    assert!(written < 1.1, "{written}");
}

/// What is written again and again while it is moved, in blocks that each lie alone: more than changes are held for before it hurries.
const HURRIED: u64 = 96;
/// What a neighbour is promised, in reads a second: three fifths of the device.
const FLOOR: u64 = 2400;

/// Whatever ends a test, its clients end, too: else one that fails would never.
struct Stop<'a>([&'a AtomicU64; 2]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        for depth in self.0 {
            depth.store(0, Ordering::Relaxed);
        }
    }
}

/// Keeps as many requests of a block under way as it is told, until that is none, at blocks so far from each other, and counts those that are answered.
fn keep_busy(
    mut client: Client,
    command: u16,
    (blocks, apart): (u64, u64),
    depth: &AtomicU64,
    done: &AtomicU64,
) {
    let (mut number, mut under_way) = (0, 0);
    loop {
        while under_way < depth.load(Ordering::Relaxed) {
            let at = number % blocks * apart * BLOCK;
            let data = match command {
                WRITE => block(number),
                _ => Vec::new(),
            };
            client.submit(command, at, BLOCK as u32, &data);
            (number, under_way) = (number + 1, under_way + 1);
        }
        if under_way == 0 {
            return;
        }
        assert_eq!(client.answer().0, 0);
        if command == READ {
            client.data(BLOCK);
        }
        under_way -= 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// It is written as quickly as it is copied. From then on it is read in its own turns, and its clients share those with the copy: not the little that moves are promised, nor
/// anything of a neighbour. All of it is counted in device time, not by the clock.
#[test]
fn a_move_in_a_hurry_takes_the_turns_of_its_volume_and_of_nobody_else() {
    let other = Folder::new();
    // With one journal, so that all that moves are promised is this one's.
    let scene = scene(&other, 256 * MIB, |options| {
        let schedule = Schedule {
            background_percent: 20,
            ..Schedule::default()
        };
        divided(options, &other, schedule);
    });
    scene.create("vm", 8 * MIB).expect("created");
    scene.create("db", MIB).expect("created");
    assert_eq!(scene.attach("db").write(0, &[7; 64 * BLOCK as usize]), 0);
    let floor = Slo {
        promise: SloPromise::Floor(Rates {
            reads: FLOOR,
            writes: 0,
        }),
        limit: SloLimit::default(),
    };
    let set = scene.ask(|node| node.set_slo("db".to_owned(), floor, false));
    set.expect("there is room");
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
    // One at a time, so that the first rounds don't take as long as with a device that is used up.
    let (writes, reads) = (AtomicU64::new(1), AtomicU64::new(64));
    let (info, seen) = thread::scope(|scope| {
        let _stop = Stop([&writes, &reads]);
        let writer = scene.attach("vm");
        scope.spawn(|| keep_busy(writer, WRITE, (HURRIED, 4), &writes, &written));
        while written.load(Ordering::Relaxed) < HURRIED {
            thread::sleep(Duration::from_millis(2));
        }
        // A second for each round.
        to_other(&scene, Some(HURRIED * BLOCK));
        let until = Instant::now() + Duration::from_secs(120);
        let mut seen = Vec::new();
        let info = loop {
            let info = info(&scene);
            match (info.state, info.phase) {
                (MoveState::Running, Some(MovePhase::CatchingUp { round: 2.. })) => {
                    if seen.is_empty() {
                        writes.store(16, Ordering::Relaxed);
                        for _ in 0..4 {
                            let reader = scene.attach("db");
                            scope.spawn(|| keep_busy(reader, READ, (64, 1), &reads, &read));
                        }
                        let lifted = scene.ask(|node| node.limit_move("vm".to_owned(), None));
                        lifted.expect("is lifted");
                        // Now all of them wait for turns.
                        thread::sleep(Duration::from_millis(50));
                    }
                    let used = ["vm", "db"].map(|name| used_by(&scene, name));
                    seen.push((used, taken(&scene, "main")));
                }
                // Who waits for its end needn't wait for those.
                (MoveState::Running, Some(MovePhase::Switching)) => {
                    reads.store(0, Ordering::Relaxed);
                }
                (MoveState::Running, _) => {}
                _ => break info,
            }
            assert!(Instant::now() < until, "it doesn't end: {info:?}");
            thread::sleep(Duration::from_millis(10));
        };
        (info, seen)
    });
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    let copied = (info.copied_bytes / BLOCK) as f64;
    let moves = taken(&scene, "main") * READS;
    let written = written.into_inner() as f64 / WRITES;
    let own = (used_by(&scene, "vm") - written) * READS;
    let round = HURRIED as f64;
    // Two rounds until it hurries, four in a hurry, and what is copied while changes are held.
    assert!(copied >= 5.0 * round, "{copied}");
    assert!(moves <= 2.6 * round, "{moves} of {copied}");
    let rest = copied - moves;
    assert!(
        (rest - 1.1 * round..rest + 0.1 * round).contains(&own),
        "{own} in its own turns, {moves} in those of moves, of {copied}"
    );
    let ([vm, db], moved) = seen[0];
    let ([vm_then, db_then], moved_then) = seen[seen.len() - 1];
    let (vm, db, moved) = (vm_then - vm, db_then - db, moved_then - moved);
    let promised = FLOOR as f64 / READS;
    let got = db / (vm + db + moved);
    println!(
        "{copied} blocks: {moves} in turns of moves, {own} in its own; a neighbour got {got} of the device"
    );
    assert!(got >= 0.95 * promised, "{got} of {promised}");
}

/// What its clients wait for at its end takes turns with what it is promised, and without its limits: neither those of moves nor its own.
#[test]
fn what_is_copied_while_changes_are_held_keeps_to_no_limit_and_is_nobodys() {
    // As much as a part of a large write has: what is above that would wait for the limit before the move does.
    const HELD: u64 = 16;
    let other = Folder::new();
    let scene = scene(&other, 256 * MIB, |options| change(options, &other));
    scene.create("vm", 8 * MIB).expect("created");
    let mut client = scene.attach("vm");
    // As much as is copied in one round, and no more: then changes are held.
    let copied = 64;
    for number in 0..copied {
        assert_eq!(client.write(number * 4 * BLOCK, &block(number)), 0);
    }
    let mut used = used_by(&scene, "vm");
    let limit = Slo {
        limit: SloLimit {
            bytes: Some(5 << 10),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let set = scene.ask(|node| node.set_slo("vm".to_owned(), limit, false));
    set.expect("is limited");
    // Four seconds.
    to_other(&scene, Some(64 << 10));
    while info(&scene).copied_bytes == 0 {
        thread::sleep(Duration::from_millis(2));
    }
    // Where it has been by now. At once, and then nothing for a quarter of a minute.
    assert_eq!(client.write(0, &[9; (HELD * BLOCK) as usize]), 0);
    let seen = info(&scene);
    assert_eq!(seen.phase, Some(MovePhase::Volume), "{seen:?}");
    used += HELD as f64 / WRITES;
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(info.copied_bytes, (copied + HELD) * BLOCK);
    // With the limit it takes twelve.
    assert!(info.held_us < 6_000_000, "{info:?}");
    for (device, rate) in [("main", READS), ("other", WRITES)] {
        let moves = taken(&scene, device) * rate;
        let copied = copied as f64;
        assert!(
            (0.95 * copied..1.3 * copied).contains(&moves),
            "{device}: {moves}"
        );
    }
    let own = (used_by(&scene, "vm") - used) * READS;
    assert!((-1.0..1.0).contains(&own), "{own}");
}

/// The least that a volume is promised of a device, in nanoseconds a second, while another one goes to another core of it; and for how long the
/// changes of that one were held, which is long on this device.
fn promised_beside_a_move(is_used: bool) -> (u64, u64) {
    let change = |options: &mut NodeOptions| {
        options.cores = Some(2);
        let device = &mut options.devices[0];
        // Large requests cost little more: else the first volume of each core takes long.
        let ceiling = "reads=4000 writes=2000 bytes=400000000";
        device.schedule = Schedule {
            ceiling: Some(ceiling.parse().expect("a ceiling")),
            policy: SchedulePolicy::Strict,
            background_percent: 50,
        };
        let slow = "latency reads=5ms writes=5ms flushes=5ms";
        device.layers = vec![slow.parse().expect(slow)];
    };
    // So large that there is a journal for each core.
    let scene = Scene::start(1 << 30, change).expect("a node");
    for name in ["vm", "db"] {
        let created = scene.create_at(name, MIB, Some(("main", 0)));
        created.expect("created");
        assert_eq!(scene.attach(name).write(0, &block(1)), 0);
    }
    // Nobody has used it lately then.
    let scene = scene.restart(change);
    let client = is_used.then(|| {
        let mut client = scene.attach("vm");
        assert_eq!(client.write(BLOCK, &block(2)), 0);
        client
    });
    let (read, depth) = (AtomicU64::new(0), AtomicU64::new(1));
    let seen = thread::scope(|scope| {
        let _stop = Stop([&depth, &depth]);
        let reader = scene.attach("db");
        scope.spawn(|| keep_busy(reader, READ, (1, 1), &depth, &read));
        while read.load(Ordering::Relaxed) < 10 {
            thread::sleep(Duration::from_millis(2));
        }
        let spec = MoveSpec {
            core: Some(1),
            ..MoveSpec::default()
        };
        let begun = scene.ask(|node| node.move_volume("vm".to_owned(), spec));
        begun.expect("begins");
        let mut least = u64::MAX;
        loop {
            let promised = promised_to(&scene, "db");
            let info = info(&scene);
            if info.state != MoveState::Running {
                assert_eq!(info.state, MoveState::Done, "{info:?}");
                return (least, info.held_us);
            }
            // More when it has left: its client asks for nothing, so it is nobody's at its new place.
            least = least.min(promised);
        }
    });
    drop(client);
    seen
}

/// What strict time sharing gives others is what they are promised, whether or not anybody uses the rest. So a volume counts once while it moves, however many
/// queues it has, and not at all if nobody uses it.
#[test]
fn others_are_promised_no_less_while_a_volume_goes_to_another_core() {
    for (is_used, parts) in [(false, 1), (true, 2)] {
        let (least, held_us) = promised_beside_a_move(is_used);
        println!("used {is_used}: {least} at least, held for {held_us} us");
        // Of what is not kept, and not the background's: 31 in 32, and half of that.
        let expected = 1_000_000_000 * 31 / 32 / 2 / parts;
        assert!(least.abs_diff(expected) < 1000, "{least}, {expected}");
        assert!(held_us > 10_000, "{held_us}");
    }
}

/// In a hurry a volume counts once more for what is copied to another device. On its own that would claim its floor twice, of a device that has it once.
#[test]
fn a_floor_is_claimed_once_while_a_move_on_one_device_hurries() {
    let scene = Scene::start(1 << 30, |options| {
        options.cores = Some(2);
        let ceiling = "reads=4000 writes=2000 bytes=400000000";
        options.devices[0].schedule = Schedule {
            ceiling: Some(ceiling.parse().expect("a ceiling")),
            background_percent: 20,
            ..Schedule::default()
        };
    });
    let scene = scene.expect("a node");
    for name in ["vm", "db"] {
        let created = scene.create_at(name, 8 * MIB, Some(("main", 0)));
        created.expect("created");
        assert_eq!(scene.attach(name).write(0, &block(1)), 0);
    }
    let floor = Slo {
        promise: SloPromise::Floor(Rates {
            reads: 800,
            writes: 400,
        }),
        limit: SloLimit::default(),
    };
    let set = scene.ask(|node| node.set_slo("vm".to_owned(), floor, false));
    set.expect("there is room");
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let (writes, reads) = (AtomicU64::new(1), AtomicU64::new(1));
    let (before, hurried) = thread::scope(|scope| {
        let _stop = Stop([&writes, &reads]);
        let (writer, reader) = (scene.attach("vm"), scene.attach("db"));
        scope.spawn(|| keep_busy(writer, WRITE, (HURRIED, 4), &writes, &written));
        scope.spawn(|| keep_busy(reader, READ, (1, 1), &reads, &read));
        while written.load(Ordering::Relaxed) < HURRIED || read.load(Ordering::Relaxed) < 10 {
            thread::sleep(Duration::from_millis(2));
        }
        let before = promised_to(&scene, "db");
        // A second for each round.
        let spec = MoveSpec {
            core: Some(1),
            limit_bytes: Some(HURRIED * BLOCK),
            ..MoveSpec::default()
        };
        let begun = scene.ask(|node| node.move_volume("vm".to_owned(), spec));
        begun.expect("begins");
        let mut hurried = Vec::new();
        loop {
            let seen = promised_to(&scene, "db");
            let info = info(&scene);
            match (info.state, info.phase) {
                // What is copied in a hurry has begun to come by then.
                (MoveState::Running, Some(MovePhase::CatchingUp { round: 3.. })) => {
                    hurried.push(seen);
                }
                (MoveState::Running, _) => {}
                _ => {
                    assert_eq!(info.state, MoveState::Done, "{info:?}");
                    return (before, hurried);
                }
            }
        }
    });
    assert!(!hurried.is_empty(), "it was never seen in a hurry");
    assert!(
        hurried.iter().all(|seen| *seen == before),
        "{before}: {hurried:?}"
    );
}

/// Long before somebody looks at who got what.
#[test]
fn what_a_volume_used_is_known_when_it_has_left_its_device() {
    let other = Folder::new();
    let scene = scene(&other, 256 * MIB, |options| change(options, &other));
    scene.create("vm", 8 * MIB).expect("created");
    let mut client = scene.attach("vm");
    for number in 0..16 {
        assert_eq!(client.write(number * BLOCK, &block(number)), 0);
    }
    to_other(&scene, None);
    assert_eq!(ended(&scene, "vm").state, MoveState::Done);
    let used = used_by(&scene, "vm") * WRITES;
    assert!((15.5..16.5).contains(&used), "{used}");
}

/// Counters never go back.
#[test]
fn what_was_taken_stays_counted_when_a_journal_goes_to_another_core() {
    let other = Folder::new();
    let scene = scene(&other, 1 << 30, |options| {
        options.cores = Some(2);
        change(options, &other);
    });
    scene.create("vm", 8 * MIB).expect("created");
    let mut client = scene.attach("vm");
    for number in 0..64 {
        assert_eq!(client.write(number * 4 * BLOCK, &block(number)), 0);
    }
    to_other(&scene, None);
    assert_eq!(ended(&scene, "vm").state, MoveState::Done);
    let moves = |scene: &Scene| ["main", "other"].map(|device| taken(scene, device));
    let own = |scene: &Scene| own_work(scene, "main");
    let (before, mut last) = (moves(&scene), own(&scene));
    assert!(before.iter().all(|used| *used > 0.0), "{before:?}");
    for _ in 0..2 {
        for device in ["main", "other"] {
            let journals = scene.ask(|node| node.list_journals(device.to_owned()));
            for one in journals.expect("are listed") {
                let (number, to) = (one.journal, 1 - one.core);
                let handed =
                    scene.ask(|node| node.hand_over_journal(device.to_owned(), number, to));
                handed.expect("is handed over");
            }
        }
        assert_eq!(moves(&scene), before);
        let now = own(&scene);
        assert!(now > 0.0 && now >= last, "{last}, then {now}");
        last = now;
    }
}
