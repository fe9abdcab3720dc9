//! Which volumes of a core have schedules, and when each is to be looked at. Costs a step in a tree for each look, and
//! nothing for volumes whose time hasn't come.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::engine::Handle;
use flagstone_types::DvolId;

use crate::node::SnapshotSchedule;

/// A volume with a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    /// The engine on this core that has it.
    pub(super) engine: usize,
    pub(super) dvol: Handle,
    pub(super) schedule: SnapshotSchedule,
    /// When it is looked at, by the wall clock.
    look_ns: u64,
    /// When the last was taken, if any, and when the next is due. `None` before the first look.
    pub(super) times: Option<(Option<u64>, u64)>,
    /// Why the last look failed.
    pub(super) failure: Option<String>,
    /// Differs after each change of the schedule.
    version: u64,
}

#[derive(Default)]
pub(super) struct Plan {
    volumes: BTreeMap<DvolId, Planned>,
    /// When each of them is looked at.
    queue: BTreeSet<(u64, DvolId)>,
    changes: u64,
}

impl Plan {
    /// A volume has this schedule from now on; it is looked at next.
    pub(super) fn put(&mut self, engine: usize, dvol: Handle, schedule: SnapshotSchedule) {
        self.remove(dvol.id);
        self.changes += 1;
        let planned = Planned {
            engine,
            dvol,
            schedule,
            look_ns: 0,
            times: None,
            failure: None,
            version: self.changes,
        };
        self.queue.insert((0, dvol.id));
        self.volumes.insert(dvol.id, planned);
    }

    /// A volume has no schedule any more, or isn't there.
    pub(super) fn remove(&mut self, id: DvolId) {
        if let Some(planned) = self.volumes.remove(&id) {
            self.queue.remove(&(planned.look_ns, id));
        }
    }

    /// A look found that a volume isn't there. Unless it has come back meanwhile, with this schedule or another one.
    pub(super) fn gone(&mut self, before: &Planned) {
        let id = before.dvol.id;
        if self
            .get(id)
            .is_some_and(|now| now.version == before.version)
        {
            self.remove(id);
        }
    }

    pub(super) fn get(&self, id: DvolId) -> Option<&Planned> {
        self.volumes.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.volumes.len()
    }

    /// The shortest interval of all, in seconds; 0 if there is none.
    pub(super) fn shortest_s(&self) -> u64 {
        let intervals = self.volumes.values().map(|one| one.schedule.every_s);
        intervals.min().unwrap_or(0)
    }

    /// When the first volume is to be looked at, and which that is.
    pub(super) fn first(&self) -> Option<(u64, DvolId)> {
        self.queue.first().copied()
    }

    /// Everything is looked at anew: the clock went back.
    pub(super) fn look_at_all(&mut self) {
        self.queue = self.volumes.keys().map(|id| (0, *id)).collect();
        for planned in self.volumes.values_mut() {
            planned.look_ns = 0;
        }
    }

    /// A volume was looked at, and is again at that time. Unless its schedule was changed meanwhile: then it is next.
    pub(super) fn looked(
        &mut self,
        before: &Planned,
        look_ns: u64,
        times: (Option<u64>, u64),
        failure: Option<String>,
    ) {
        let id = before.dvol.id;
        let Some(planned) = self.volumes.get_mut(&id) else {
            return;
        };
        if planned.version != before.version {
            return;
        }
        self.queue.remove(&(planned.look_ns, id));
        self.queue.insert((look_ns, id));
        planned.look_ns = look_ns;
        planned.times = Some(times);
        planned.failure = failure;
    }
}

#[cfg(test)]
mod tests {
    use flagstone_types::Slot;

    use super::*;

    fn dvol(id: u128) -> Handle {
        Handle {
            slot: Slot(id as u32),
            id: DvolId(id),
            layer: None,
        }
    }

    fn hourly(keep: u32) -> SnapshotSchedule {
        SnapshotSchedule {
            every_s: 3600,
            keep,
            daily: 0,
            weekly: 0,
            monthly: 0,
        }
    }

    #[test]
    fn volumes_are_looked_at_in_the_order_of_their_times() {
        let mut plan = Plan::default();
        for id in 1..=3 {
            plan.put(0, dvol(id), hourly(1));
        }
        for (id, at) in [(1, 300), (2, 100), (3, 200)] {
            let before = plan.get(DvolId(id)).unwrap().clone();
            plan.looked(&before, at, (None, at), None);
        }
        assert_eq!(plan.first(), Some((100, DvolId(2))));
        plan.remove(DvolId(2));
        assert_eq!(plan.first(), Some((200, DvolId(3))));
        plan.look_at_all();
        assert_eq!(plan.first(), Some((0, DvolId(1))));
        plan.remove(DvolId(1));
        plan.remove(DvolId(3));
        assert_eq!((plan.first(), plan.len()), (None, 0));
    }

    #[test]
    fn what_was_changed_during_a_look_is_looked_at_again() {
        let mut plan = Plan::default();
        plan.put(0, dvol(1), hourly(1));
        let before = plan.get(DvolId(1)).unwrap().clone();
        plan.put(0, dvol(1), hourly(2));
        plan.looked(&before, 900, (None, 900), None);
        assert_eq!(plan.first(), Some((0, DvolId(1))));
        let before = plan.get(DvolId(1)).unwrap().clone();
        plan.remove(DvolId(1));
        plan.looked(&before, 900, (None, 900), None);
        assert_eq!(plan.first(), None, "it has none any more");
        plan.put(0, dvol(1), hourly(3));
        let before = plan.get(DvolId(1)).unwrap().clone();
        // It was moved away and back during a look, which has found nothing where it was.
        plan.put(1, dvol(1), hourly(3));
        plan.gone(&before);
        assert_eq!(plan.first(), Some((0, DvolId(1))));
        let before = plan.get(DvolId(1)).unwrap().clone();
        plan.gone(&before);
        assert_eq!(plan.first(), None);
        // However often it is changed, it is there once.
        for keep in 1..100 {
            plan.put(0, dvol(1), hourly(keep));
        }
        assert_eq!(plan.queue.len(), 1);
    }
}
