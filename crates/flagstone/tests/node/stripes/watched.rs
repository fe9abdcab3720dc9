//! What is seen of a striped volume by whoever watches the node: all of it, whichever members and cores do it.

use std::io::Read;

use flagstone::node::{
    ActivityQuery, CauseKind, DeviceCeiling, Schedule, Slo, SloLimit, activity, explanation,
};

use super::{SIZE, UNIT, create, show, two_cores};
use crate::client::READ;
use crate::support::Scene;

fn divided() -> Scene {
    let scene = Scene::start(2 << 30, |options| {
        two_cores(options);
        options.devices[0].schedule = Schedule {
            ceiling: Some(DeviceCeiling {
                reads: 20_000,
                writes: 10_000,
                flushes: 0,
                bytes: 0,
                latency_us: 0,
            }),
            ..Schedule::default()
        };
    });
    scene.expect("a node")
}

/// The turns of all of them, as metrics add them up as well.
#[test]
fn top_shows_what_all_members_used() {
    let scene = divided();
    create(&scene, "hot", 4);
    let mut client = scene.attach("hot");
    assert_eq!(client.write(0, &vec![1; SIZE as usize]), 0);
    let look = || scene.ask(|node| node.look()).expect("answered");
    let turns = || {
        let metrics = scene.ask(|node| node.metrics()).expect("metrics");
        metrics.volumes[0].turns.clone()
    };
    let (before, turns_before) = (look(), turns());
    for unit in 0..SIZE / UNIT {
        assert_eq!(client.write(unit * UNIT, &[2; 4096]), 0);
    }
    let (after, turns_after) = (look(), turns());
    let on: Vec<usize> = after.cores.iter().map(|core| core.members.len()).collect();
    assert_eq!(on.iter().sum::<usize>(), 3, "all but the first: {on:?}");
    assert!(on.iter().all(|members| *members > 0), "{on:?}");
    let found = activity(&before, &after, &ActivityQuery::default());
    let [hot] = &found.volumes[..] else {
        panic!("one volume: {found:?}");
    };
    let seconds = found.interval_ns as f64 / 1e9;
    let used = hot.used.expect("divided") * seconds;
    let expected = (turns_after.used_ns - turns_before.used_ns) as f64 / 1e9;
    assert!(
        (used - expected).abs() < expected / 10.0 + seconds / 1e4,
        "{used} of {expected}: {found:?}"
    );
    let promised = hot.promised.expect("divided");
    let expected = turns_after.promised_ns as f64 / 1e9;
    assert!((promised - expected).abs() < 0.01, "{promised} {expected}");
    let device = &found.devices[0];
    assert_eq!(device.used, hot.used);
    assert_eq!(device.users.len(), 1, "{device:?}");
    assert_eq!(device.users[0].volume, "hot");
}

/// Also if the first one, which has the volume's name, is not asked for anything.
#[test]
fn what_members_wait_for_is_told() {
    let scene = divided();
    create(&scene, "hot", 4);
    let mut client = scene.attach("hot");
    assert_eq!(client.write(0, &vec![1; SIZE as usize]), 0);
    let limited = Slo {
        limit: SloLimit {
            reads: Some(200),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let change = scene.ask(|node| node.set_slo("hot".to_owned(), limited, false));
    change.expect("changed");
    // Fifty a second of each.
    let ranges: Vec<(u64, u32)> = (0..60)
        .map(|number| (UNIT * (1 + number % 3), 4096))
        .collect();
    let look = || scene.ask(|node| node.look()).expect("answered");
    let before = look();
    client.submit_many(READ, &ranges);
    for _ in &ranges {
        assert_eq!(client.answer().0, 0);
        let data = client.stream.read_exact(&mut [0; 4096]);
        data.expect("what was read");
    }
    let found = explanation(&before, &look(), &show(&scene, "hot"));
    let first = &found.causes[0];
    assert_eq!(first.kind, CauseKind::Turn, "{found:?}");
    assert!(first.part > 0.8, "{found:?}");
    assert!(
        first.says.contains("its own limit (reads=200)"),
        "{found:?}"
    );
    let sum: f64 = found.causes.iter().map(|cause| cause.part).sum();
    assert!(sum <= 1.001, "{found:?}");
}
