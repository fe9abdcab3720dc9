//! Schedules on a real node: its task, its clock set wrong, restarts, streams, and names that clients can't give.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::name::{SnapshotRef, SourceRef};
use crate::node::real::start::start_node;
use crate::node::real::tests::{formatted, options, runtime, spec};
use crate::node::{Node, NodeOptions, SnapshotQuery, StreamSource, VolumeInfo};

const HOUR_S: i64 = 3600;
const YEAR_S: i64 = 365 * 24 * HOUR_S;

/// After this time an hourly snapshot is due, whatever the volume's turn is, and one alone.
const DUE_S: i64 = HOUR_S + HOUR_S / 8;

struct Scene {
    runtime: tokio::runtime::Runtime,
    path: PathBuf,
    node: Option<Arc<RealNode>>,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let path = formatted(&format!("schedule-{name}"));
        let runtime = runtime();
        let mut scene = Scene {
            runtime,
            path,
            node: None,
        };
        scene.start(0);
        scene
    }

    /// Starts a node whose clock is wrong by so much.
    fn start(&mut self, wall_shift_s: i64) {
        let options = NodeOptions {
            tuning: Some(format!("wall_shift_s={wall_shift_s}")),
            ..options(self.path.clone())
        };
        self.node = Some(start_node(options).unwrap());
    }

    fn restart(&mut self, wall_shift_s: i64) {
        self.ask(|node| node.shutdown()).unwrap();
        self.node = None;
        self.start(wall_shift_s);
    }

    fn node(&self) -> &RealNode {
        self.node.as_ref().unwrap()
    }

    fn ask<T>(
        &self,
        asked: impl FnOnce(&dyn Node) -> crate::node::NodeFuture<'_, T>,
    ) -> Result<T, NodeError> {
        self.runtime.block_on(asked(self.node()))
    }

    fn create(&self, name: &str) {
        self.ask(|node| node.create_volume(spec(name))).unwrap();
    }

    fn show(&self, name: &str) -> VolumeInfo {
        self.ask(|node| node.show_volume(name.to_owned())).unwrap()
    }

    fn set(&self, name: &str, every_s: u64, keep: u32) -> Result<VolumeInfo, NodeError> {
        let schedule = SnapshotSchedule {
            every_s,
            keep,
            daily: 0,
            weekly: 0,
            monthly: 0,
        };
        self.ask(|node| node.set_snapshot_schedule(name.to_owned(), Some(schedule)))
    }

    /// Names of a volume's snapshots, oldest first.
    fn names(&self, volume: &str) -> Vec<String> {
        let query = SnapshotQuery {
            volume: Some(volume.to_owned()),
            ..SnapshotQuery::default()
        };
        let mut items = self.ask(|node| node.list_snapshots(query)).unwrap().items;
        items.sort_by_key(|info| info.layer);
        items.into_iter().map(|info| info.name).collect()
    }

    /// Waits until a volume has snapshots of which something is true.
    fn wait(&self, volume: &str, what: impl Fn(&[String]) -> bool) -> Vec<String> {
        for _ in 0..1000 {
            let names = self.names(volume);
            if what(&names) {
                return names;
            }
            self.pause(10);
        }
        panic!("in vain: {:?}, {:?}", self.names(volume), self.show(volume));
    }

    /// What the task does meanwhile it has done; time for it to do what it must not.
    fn settle(&self) {
        self.pause(200);
    }

    fn pause(&self, ms: u64) {
        // Made within the runtime, which has the timers.
        let pause = async { tokio::time::sleep(Duration::from_millis(ms)).await };
        self.runtime.block_on(pause);
    }

    /// The clock jumps, and the task notices.
    fn jump(&self, by_s: i64) {
        let jumped = self.node().on_core(0, "jumping", move |core| async move {
            core.platform.shift_wall_clock(by_s * 1_000_000_000);
            core.schedules.wake();
        });
        self.runtime.block_on(jumped).unwrap();
    }

    fn value(&self, name: &str) -> f64 {
        let metrics = self.ask(|node| node.metrics()).unwrap();
        let found = metrics.more.iter().find(|value| value.name == name);
        found.unwrap().value
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.node.is_some() {
            let stopped = self.ask(|node| node.shutdown());
            if !std::thread::panicking() {
                stopped.unwrap();
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_schedule_is_kept_over_restarts_and_catches_up_once() {
    let mut scene = Scene::new("restarts");
    scene.create("vm");
    assert_eq!(scene.show("vm").scheduled, None);
    let info = scene.set("vm", 7 * 24 * 3600, 2).unwrap();
    let scheduled = info.scheduled.expect("it has one");
    assert_eq!(scheduled.schedule.to_string(), "every 7d keep 2");
    let first = scene.wait("vm", |names| names.len() == 1);
    let scheduled = scene.show("vm").scheduled.unwrap();
    let (last_ns, next_ns) = (scheduled.last_ns.unwrap(), scheduled.next_ns);
    // At a point of its grid that isn't near.
    let (eighth_ns, next_ns) = (7 * 3 * HOUR_S as u64 * 1_000_000_000, next_ns - last_ns);
    assert!(next_ns > eighth_ns && next_ns <= 9 * eighth_ns, "{next_ns}");
    for _ in 0..2 {
        scene.restart(0);
        scene.settle();
        assert_eq!(scene.names("vm"), first, "not due yet");
        assert_eq!(scene.show("vm").scheduled.as_ref(), Some(&scheduled));
    }
    // Off for five weeks: one.
    scene.restart(5 * 7 * 24 * HOUR_S);
    let second = scene.wait("vm", |names| names.len() == 2);
    assert_eq!(second[0], first[0]);
    scene.settle();
    assert_eq!(scene.names("vm"), second);
    assert_eq!(scene.value("schedule_volumes"), 1.0);
    assert_eq!(scene.value("schedule_taken"), 1.0);
    // A clone has none, and a name of its own doesn't take it away.
    let source = SourceRef {
        volume: "vm".to_owned(),
        snapshot: None,
    };
    scene
        .ask(|node| node.clone_volume(source, "clone".to_owned()))
        .unwrap();
    assert_eq!(scene.show("clone").scheduled, None);
    scene
        .ask(|node| node.rename_volume("vm".to_owned(), "db".to_owned()))
        .unwrap();
    assert!(scene.show("db").scheduled.is_some());
    // Without it nothing is done any more.
    let none = scene.ask(|node| node.set_snapshot_schedule("db".to_owned(), None));
    assert_eq!(none.unwrap().scheduled, None);
    scene.restart(50 * 7 * 24 * HOUR_S);
    scene.settle();
    assert_eq!(scene.show("db").scheduled, None);
    assert_eq!(scene.names("db"), second);
    assert_eq!(scene.value("schedule_volumes"), 0.0);
}

#[test]
fn clocks_that_jump_cost_nothing_right() {
    let mut scene = Scene::new("clocks");
    scene.create("vm");
    scene.set("vm", 3600, 3).unwrap();
    let first = scene.wait("vm", |names| names.len() == 1);
    // Ahead by a year: one is due. Back again: what seems to come from a year ahead says nothing, so one is.
    scene.jump(YEAR_S);
    scene.wait("vm", |names| names.len() == 2);
    scene.jump(-YEAR_S + 1);
    let three = scene.wait("vm", |names| names.len() == 3);
    assert_eq!(
        three[0], first[0],
        "the oldest layer stays, for there are three"
    );
    scene.settle();
    assert_eq!(scene.names("vm"), three);
    // The next is due in time, and the oldest layer goes.
    scene.jump(DUE_S);
    let after = scene.wait("vm", |names| !names.contains(&first[0]));
    assert_eq!(after[..2], three[1..]);
    // The same when the clock was put right while the node was off.
    scene.restart(-2 * YEAR_S);
    let behind = scene.wait("vm", |names| {
        names.len() == 3 && names.last() != after.last()
    });
    assert_eq!(behind[..2], after[1..]);
}

#[test]
fn volumes_that_are_gone_are_forgotten() {
    let scene = Scene::new("gone");
    for name in ["a", "b"] {
        scene.create(name);
        scene.set(name, 3600, 3).unwrap();
        scene.wait(name, |names| names.len() == 1);
    }
    scene
        .ask(|node| node.delete_volume("a".to_owned(), true))
        .unwrap();
    assert_eq!(scene.value("schedule_volumes"), 1.0);
    scene.jump(DUE_S);
    scene.wait("b", |names| names.len() == 2);
    assert_eq!(scene.value("schedule_failed"), 0.0);
}

#[test]
fn a_snapshot_that_is_sent_stays_until_the_stream_has_ended() {
    let scene = Scene::new("sent");
    scene.create("vm");
    scene.set("vm", 3600, 1).unwrap();
    let first = scene.wait("vm", |names| names.len() == 1).remove(0);
    let snapshot = SnapshotRef::new("vm", &first).unwrap();
    let source: StreamSource = scene
        .ask(|node| node.open_stream(snapshot.clone(), None))
        .unwrap();
    let part = source.clone();
    scene.jump(DUE_S);
    scene.wait("vm", |names| names.len() == 2);
    scene.settle();
    assert!(scene.names("vm").contains(&first));
    scene.ask(|node| node.read_stream(source, 0)).unwrap();
    // A part is a copy, and the stream goes on.
    scene.jump(61);
    scene.settle();
    assert!(scene.names("vm").contains(&first));
    drop(part);
    scene.jump(61);
    let left = scene.wait("vm", |names| names.len() == 1);
    assert!(!left.contains(&first));
    // People may delete what schedules took, at any time.
    let left = SnapshotRef::new("vm", &left[0]).unwrap();
    scene.ask(|node| node.delete_snapshot(left)).unwrap();
}

#[test]
fn clients_cannot_give_names_of_schedules() {
    let scene = Scene::new("names");
    scene.create("vm");
    let named = |name: &str| SnapshotRef::new("vm", name).unwrap();
    let forged = "auto-20261124T231500Z";
    let refused = scene
        .ask(|node| node.create_snapshots(vec![named(forged)]))
        .unwrap_err();
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    scene
        .ask(|node| node.create_snapshots(vec![named("monday")]))
        .unwrap();
    let refused = scene
        .ask(|node| node.rename_snapshot(named("monday"), forged.to_owned()))
        .unwrap_err();
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    assert_eq!(scene.names("vm"), ["monday"]);
    // What a schedule took is kept for good by another name.
    scene.set("vm", 60, 1).unwrap();
    let taken = scene.wait("vm", |names| names.len() == 2).remove(1);
    scene
        .ask(|node| node.rename_snapshot(named(&taken), "good".to_owned()))
        .unwrap();
    let refused = scene.set("vm", 30, 1).unwrap_err();
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    let refused = scene.set("vm", 3600, 0).unwrap_err();
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    assert_eq!(
        scene.set("none", 3600, 1).unwrap_err().kind,
        NodeErrorKind::NotFound
    );
}
