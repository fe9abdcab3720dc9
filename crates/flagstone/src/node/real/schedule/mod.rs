//! Snapshots by schedule: one task for each core, which looks at one volume after the other
//! (`docs/decisions/2026-11-24-snapshot-schedules.md`).
//!
//! The task sleeps until the first volume is due, and at most a minute: so it notices that the clock was set. A core
//! without schedules is never woken.

mod holds;
mod keeper;
mod plan;
mod rules;

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod sim_tests;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use flagstone_device::engine::{DvolError, Handle};
use flagstone_platform::record::NodeMark;
use flagstone_platform::{Platform, Time};
use flagstone_types::DvolId;

use self::holds::{Going, Holds};
use self::keeper::{Looked, Surroundings, look, times};
use self::plan::{Plan, Planned};
use super::RealNode;
use super::attributes::VolumeAttributes;
use super::core::CoreNode;
use crate::node::{
    MetricKind, NamedValue, NodeError, NodeErrorKind, ScheduledSnapshots, SnapshotSchedule,
    VolumeInfo,
};

/// How long after a failure a volume is looked at again, and the task sleeps at most.
const MINUTE_NS: u64 = 60_000_000_000;

/// By how much the wall clock may fall behind time without everything being looked at anew. Less costs no more than
/// that a snapshot comes so much late.
const BACK_NS: u64 = 10_000_000_000;

/// A core's volumes with schedules.
#[derive(Default)]
pub(super) struct Schedules {
    plan: RefCell<Plan>,
    pub(super) holds: Holds,
    counted: Cell<Counted>,
    /// How often the plan has changed, for the task to see, which waits with this.
    changes: Cell<u64>,
    waiting: Cell<Option<Waker>>,
}

/// What was done since the node was started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    volumes: u64,
    taken: u64,
    deleted: u64,
    failed: u64,
    /// The newest of all.
    last_ns: u64,
    shortest_s: u64,
}

impl Counted {
    /// Together with what another core has counted.
    pub(super) fn merge(&mut self, other: &Counted) {
        self.volumes += other.volumes;
        self.taken += other.taken;
        self.deleted += other.deleted;
        self.failed += other.failed;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.shortest_s = match (self.shortest_s, other.shortest_s) {
            (0, some) | (some, 0) => some,
            (one, other) => one.min(other),
        };
    }

    /// As a scrape shows it.
    pub(super) fn named(&self) -> Vec<NamedValue> {
        let value = |name, help, kind, value| NamedValue {
            name,
            help,
            kind,
            value,
        };
        let counter = |name, help, count: u64| value(name, help, MetricKind::Counter, count as f64);
        let gauge = |name, help, number: f64| value(name, help, MetricKind::Gauge, number);
        vec![
            gauge(
                "schedule_volumes",
                "Volumes that have a schedule of snapshots.",
                self.volumes as f64,
            ),
            counter(
                "schedule_taken",
                "Snapshots that schedules took.",
                self.taken,
            ),
            counter(
                "schedule_deleted",
                "Snapshots that schedules deleted, since no rule keeps them.",
                self.deleted,
            ),
            counter(
                "schedule_failed",
                "Looks at volumes in which a snapshot could not be taken or deleted.",
                self.failed,
            ),
            gauge(
                "schedule_last_taken_seconds",
                "When a schedule took its last snapshot, in seconds since 1970; 0 if none is there.",
                self.last_ns as f64 / 1e9,
            ),
            gauge(
                "schedule_shortest_interval_seconds",
                "The shortest interval of all schedules; 0 if there is none.",
                self.shortest_s as f64,
            ),
        ]
    }
}

impl Schedules {
    /// Those that were found when the node was started.
    pub(super) fn new(found: Vec<(usize, Handle, SnapshotSchedule)>) -> Schedules {
        let schedules = Schedules::default();
        for (engine, dvol, schedule) in found {
            schedules.plan.borrow_mut().put(engine, dvol, schedule);
        }
        schedules
    }

    /// A volume has this schedule from now on.
    pub(super) fn set(&self, engine: usize, dvol: Handle, schedule: Option<SnapshotSchedule>) {
        match schedule {
            None => self.plan.borrow_mut().remove(dvol.id),
            Some(schedule) => self.plan.borrow_mut().put(engine, dvol, schedule),
        }
        self.wake();
    }

    /// Whether a snapshot of this volume is being sent.
    pub(super) fn is_sent(&self, id: DvolId) -> bool {
        self.holds.is_sent(id)
    }

    /// A volume was deleted.
    pub(super) fn forget(&self, id: DvolId) {
        self.plan.borrow_mut().remove(id);
    }

    /// Has the task look at the plan, and whether the node is stopping.
    pub(super) fn wake(&self) {
        self.changes.set(self.changes.get() + 1);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    /// Waits until something has changed since `seen`, or until `sleep` has ended.
    async fn wait(&self, seen: u64, mut sleep: Pin<Box<dyn Future<Output = ()>>>) {
        let poll = |cx: &mut std::task::Context<'_>| {
            if self.changes.get() != seen || sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            self.waiting.set(Some(cx.waker().clone()));
            Poll::Pending
        };
        std::future::poll_fn(poll).await;
    }

    pub(super) fn counted(&self) -> Counted {
        let plan = self.plan.borrow();
        Counted {
            volumes: plan.len() as u64,
            shortest_s: plan.shortest_s(),
            ..self.counted.get()
        }
    }

    fn count(&self, looked: &Looked) {
        let mut counted = self.counted.get();
        counted.taken += u64::from(looked.taken_ns.is_some());
        counted.deleted += looked.deleted;
        counted.failed += u64::from(looked.not_taken.is_some() || looked.not_deleted.is_some());
        counted.last_ns = counted.last_ns.max(looked.last_ns.unwrap_or(0));
        self.counted.set(counted);
    }
}

/// A volume, as the look at it has to know it.
struct Around<'a> {
    core: &'a CoreNode,
    id: DvolId,
    name: &'a str,
}

impl Surroundings for Around<'_> {
    type Going = Going;

    fn is_closed(&self) -> bool {
        self.core.check_settled(self.id).is_err()
    }

    fn mark(&self, mark: NodeMark, snapshot: &str) {
        let name = format!("{}@{snapshot}", self.name);
        self.core.recording.snapshot(mark, &name);
    }

    fn begin_deleting(&self, layer: Handle) -> Option<Going> {
        self.core.schedules.holds.begin_deleting(layer)
    }
}

/// Whether the wall clock has fallen behind time since it was last looked at.
struct Clock {
    wall_ns: u64,
    time: Time,
}

impl Clock {
    fn of(platform: &impl Platform) -> Clock {
        Clock {
            wall_ns: platform.wall_clock_ns(),
            time: platform.now(),
        }
    }

    fn went_back(&mut self, platform: &impl Platform) -> bool {
        let now = Clock::of(platform);
        let passed_ns = now.time.since(self.time);
        let expected_ns = self.wall_ns.saturating_add(passed_ns);
        *self = now;
        self.wall_ns.saturating_add(BACK_NS) < expected_ns
    }
}

/// The core's task. Ends when the node stops.
pub(super) async fn run(core: Rc<CoreNode>) {
    let platform = core.platform.clone();
    let mut clock = Clock::of(&platform);
    while !core.is_stopping() {
        let seen = core.schedules.changes.get();
        if clock.went_back(&platform) {
            core.schedules.plan.borrow_mut().look_at_all();
        }
        let now_ns = platform.wall_clock_ns();
        let first = core.schedules.plan.borrow().first();
        let sleep: Pin<Box<dyn Future<Output = ()>>> = match first {
            Some((due_ns, id)) if due_ns <= now_ns => {
                look_at(&core, id, now_ns).await;
                platform.yield_now().await;
                continue;
            }
            Some((due_ns, _)) => Box::pin(platform.sleep_ns((due_ns - now_ns).min(MINUTE_NS))),
            None => Box::pin(std::future::pending()),
        };
        core.schedules.wait(seen, sleep).await;
    }
}

async fn look_at(core: &CoreNode, id: DvolId, now_ns: u64) {
    let schedules = &core.schedules;
    let planned = schedules.plan.borrow().get(id).cloned();
    let Some(planned) = planned else { return };
    let (Some(engine), Some(name)) = (core.engine(planned.engine), core.names.name_of(id)) else {
        schedules.plan.borrow_mut().gone(&planned);
        return;
    };
    let around = Around {
        core,
        id,
        name: &name,
    };
    let schedule = &planned.schedule;
    let looked = look(&core.platform, &engine, planned.dvol, schedule, &around).await;
    if core.is_stopping() {
        return;
    }
    if looked.not_taken == Some(DvolError::NotFound) {
        // It was deleted meanwhile.
        schedules.plan.borrow_mut().gone(&planned);
        return;
    }
    schedules.count(&looked);
    tell(&name, &planned, &looked);
    let failed = looked.not_taken.or(looked.not_deleted);
    let again = failed.is_some() || looked.held > 0;
    let look_ns = match again {
        true => now_ns.saturating_add(MINUTE_NS),
        false => looked.next_ns,
    };
    let failure = failed.map(why);
    let times = (looked.last_ns, looked.next_ns);
    let mut plan = schedules.plan.borrow_mut();
    plan.looked(&planned, look_ns, times, failure);
}

/// In the log, once until it is well again.
fn tell(volume: &str, before: &Planned, looked: &Looked) {
    let (deleted, schedule) = (looked.deleted, before.schedule);
    tracing::debug!(volume, %schedule, deleted, taken = looked.taken_ns.is_some(), "looked at by schedule");
    let failed = [("taken", looked.not_taken), ("deleted", looked.not_deleted)];
    match (&before.failure, failed) {
        (Some(_), [(_, None), (_, None)]) => {
            tracing::info!(volume, "snapshots by schedule are taken again");
        }
        (None, failed) => {
            for (what, error) in failed {
                if let Some(error) = error {
                    let why = why(error);
                    tracing::warn!(
                        volume,
                        "a snapshot by schedule can't be {what}, and it is tried again each minute: {why}"
                    );
                }
            }
        }
        (Some(_), _) => {}
    }
}

fn why(error: DvolError) -> String {
    match error {
        DvolError::AlreadyExists => {
            "there already is one of this second: was the clock set back?".to_owned()
        }
        DvolError::Busy => {
            "the volume is being moved, or a stream is being received into it".to_owned()
        }
        error => error.to_string(),
    }
}

impl CoreNode {
    /// A volume's schedule and what has come of it.
    pub(super) fn scheduled_of(&self, id: DvolId) -> Option<ScheduledSnapshots> {
        let plan = self.schedules.plan.borrow();
        let planned = plan.get(id)?;
        let now_ns = self.platform.wall_clock_ns();
        let (last_ns, next_ns) = match planned.times {
            Some(times) => times,
            None => {
                let engine = self.engine(planned.engine)?;
                times(&engine, planned.dvol, &planned.schedule, now_ns)
            }
        };
        Some(ScheduledSnapshots {
            schedule: planned.schedule,
            last_ns,
            next_ns,
            is_due: next_ns <= now_ns,
            failure: planned.failure.clone(),
        })
    }
}

impl RealNode {
    pub(super) async fn change_snapshot_schedule(
        &self,
        name: String,
        schedule: Option<SnapshotSchedule>,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("changing the schedule of volume '{name}'");
        let target = self.target_to_change(&name, &doing)?;
        // Before what is wrong with the schedule: whoever puts that right would be refused all the same.
        if schedule.is_some() {
            self.refuse_striped(&target, &doing)?;
        }
        if let Some(Err((found, next))) = schedule.map(|schedule| schedule.check()) {
            let error = NodeError::new(NodeErrorKind::InvalidArgument, doing, found);
            return Err(error.next(next));
        }
        let place = target.place;
        self.on_volume(&target, &doing, move |core, dvol| async move {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            // Nobody else changes the others meanwhile.
            let settings = core.sizing(dvol.id);
            let _turn = settings.take(1).await;
            core.check_settled(dvol.id)?;
            let attributes = VolumeAttributes {
                snapshots: schedule,
                ..VolumeAttributes::decode(&engine.attributes_of(dvol)?)
            };
            engine.set_attributes(dvol, attributes.encode()).await?;
            core.schedules.set(place.engine, dvol, schedule);
            Ok(())
        })
        .await?;
        self.show(&name).await
    }
}

/// Refuses a snapshot's name that only schedules give.
pub(super) fn check_not_of_schedule(snapshot: &str, doing: &str) -> Result<(), NodeError> {
    if !crate::name::is_of_schedule(snapshot) {
        return Ok(());
    }
    let found = format!("names of the form of '{snapshot}' are those of snapshots by schedule");
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("choose another name; `flagstone volume schedule` has snapshots taken by themselves"))
}
