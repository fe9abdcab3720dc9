//! Moves of volumes to and from other nodes: what this node is asked for, what it writes down, and where it sends clients whose volume has gone.
//!
//! The design is `docs/decisions/2026-11-25-moves-between-nodes.md`; both ends of a move, and who has the volume when either side dies, are
//! the crate `flagstone_moves`. Here is what a node has to do with them:
//!
//! - [`arrivals`]: promises that a volume may come, and the requests of its origin;
//! - [`arriving`]: what people see of those;
//! - [`leaving`]: a move away from this node;
//! - [`there`]: what is passed on to a volume that went, for clients that can't follow it;
//! - [`found`]: what a start finds of both;
//! - [`again`]: what goes on then;
//! - [`commands`]: what people ask for;
//! - [`word`]: what people say in the place of a node that can't be asked;
//! - [`record`]: what is written down, beside the journal's tokens.
//!
//! [`Between`] is the table of the whole node, which each core looks into: a client that comes to any core is sent on, and an origin that asks
//! any core is told the truth. Nothing looks into it for a request on a volume that is open.

pub(super) mod again;
pub(super) mod arrivals;
mod arriving;
mod commands;
mod connect;
pub(super) mod found;
pub(super) mod leaving;
pub(super) mod record;
pub(super) mod there;
pub(super) mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use flagstone_platform::Platform;
use flagstone_platform::locks::RwLock;
use flagstone_types::{DeviceId, DvolId};
use flagstone_wire::proof::Key;

use self::record::MoveRecord;
use super::records::RecordStore;
use crate::node::{Fork, ForkState};

pub(super) use self::connect::{UringClient, UringConnect};

/// What is written down of the moves of one journal's volumes.
pub(super) type MoveStore<P> = RecordStore<P, MoveRecord>;

/// Volumes of a journal that clients are sent on for, at most: of more, those that went first are forgotten.
pub(super) const GONE_MAX: usize = 4096;

/// Where a volume is that isn't here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elsewhere {
    /// There.
    At(SocketAddr),
    /// It may be there, or here: that is being asked.
    Asked(SocketAddr),
}

/// A volume that went, or may have.
#[derive(Clone, Debug)]
struct Route {
    name: String,
    elsewhere: Elsewhere,
    /// Core and journal that have it written down.
    on: (usize, usize),
    at_ns: u64,
    /// Why the node there could not be asked when it was asked last, if it is being asked.
    unanswered: Option<String>,
}

#[derive(Default)]
struct Tables {
    routes: BTreeMap<DvolId, Route>,
    /// Of those the volumes, by the names that they had: of several the one that went last.
    by_name: BTreeMap<String, DvolId>,
    /// Volumes that were promised a place here, and the latest arrival of each.
    promised: BTreeMap<DvolId, u32>,
    /// Volumes whose tokens are being handed over to another node.
    handed_over: BTreeSet<DvolId>,
    /// Volumes that have come and are not confirmed: arrival and key.
    came: BTreeMap<DvolId, (u32, Key)>,
    /// Arrivals that somebody has settled, and who has that written down: core and engine.
    settled: BTreeMap<(DvolId, u32), (Key, (usize, usize))>,
    /// Volumes of which there may be another copy, since somebody has said that they stay.
    forks: BTreeMap<DvolId, Fork>,
    /// Devices of this node.
    devices: BTreeSet<DeviceId>,
    /// Of those the ones of which not everything could be read: what isn't known there may have been.
    doubtful: BTreeSet<DeviceId>,
}

impl Tables {
    fn remove_route(&mut self, volume: DvolId) -> Option<Route> {
        let route = self.routes.remove(&volume)?;
        if self.by_name.get(&route.name) == Some(&volume) {
            self.by_name.remove(&route.name);
        }
        Some(route)
    }
}

/// Volumes that are elsewhere, and those that have just come.
#[derive(Clone)]
pub(super) struct Between {
    tables: Arc<RwLock<Tables>>,
    /// Volumes of a journal that clients are sent on for, at most.
    gone_max: usize,
}

impl Default for Between {
    fn default() -> Between {
        Between::new(GONE_MAX)
    }
}

impl Between {
    /// Of a node that sends clients on for so many volumes of a journal.
    pub(super) fn new(gone_max: usize) -> Between {
        Between {
            tables: Arc::default(),
            gone_max,
        }
    }

    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.tables.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a volume is that isn't here.
    pub(super) fn of(&self, volume: DvolId) -> Option<Elsewhere> {
        self.read(|t| t.routes.get(&volume).map(|route| route.elsewhere))
    }

    /// Who has it written down that a volume is elsewhere: core and engine.
    fn is_noted_by(&self, volume: DvolId) -> Option<(usize, usize)> {
        self.read(|t| t.routes.get(&volume).map(|route| route.on))
    }

    /// A volume is promised a place, and what it is promised of the device is counted for this arrival from now on.
    fn promised(&self, volume: DvolId, arrival: u32) {
        self.write(|t| t.promised.insert(volume, arrival));
    }

    /// A volume is to go: what it is promised is counted for it as for all that are here.
    fn unpromised(&self, volume: DvolId) {
        self.write(|t| t.promised.remove(&volume));
    }

    /// The arrival that what a volume is promised is counted for, if it isn't counted for one that is here.
    fn promise_of(&self, volume: DvolId) -> Option<u32> {
        self.read(|t| t.promised.get(&volume).copied())
    }

    /// The name that a volume had when it went.
    fn name_of(&self, volume: DvolId) -> Option<String> {
        self.read(|t| t.routes.get(&volume).map(|route| route.name.clone()))
    }

    /// The volume that had this name when it went.
    pub(super) fn named(&self, name: &str) -> Option<(DvolId, Elsewhere)> {
        self.read(|t| {
            let volume = *t.by_name.get(name)?;
            Some((volume, t.routes.get(&volume)?.elsewhere))
        })
    }

    /// When a volume went, or began to: nanoseconds since 1970.
    fn went_at_ns(&self, volume: DvolId) -> Option<u64> {
        self.read(|t| t.routes.get(&volume).map(|route| route.at_ns))
    }

    /// The node that a volume may have gone to was asked in vain.
    fn asked_in_vain(&self, volume: DvolId, why: &str) {
        let is_known = self.why_unanswered(volume).as_deref() == Some(why);
        // It is asked several times a second.
        if !is_known {
            self.write(|t| {
                if let Some(route) = t.routes.get_mut(&volume) {
                    route.unanswered = Some(why.to_owned());
                }
            });
        }
    }

    /// Volumes that nobody serves since this node was started, as others were asked in vain whose they are.
    pub(super) fn held_since_start(&self) -> u64 {
        let is_held = |route: &&Route| {
            matches!(route.elsewhere, Elsewhere::Asked(_)) && route.unanswered.is_some()
        };
        self.read(|t| t.routes.values().filter(is_held).count() as u64)
    }

    /// Why it could not be asked whose a volume is when it was asked last; `None` if that is not known.
    fn why_unanswered(&self, volume: DvolId) -> Option<String> {
        self.read(|t| t.routes.get(&volume)?.unanswered.clone())
    }

    /// A volume is elsewhere, or may be. Returns one that is forgotten for it, with who has it written down.
    fn put(&self, volume: DvolId, route: Route) -> Option<(DvolId, (usize, usize))> {
        self.write(|t| {
            t.remove_route(volume);
            let on = route.on;
            // A start finds them in no order.
            let of_name = t
                .by_name
                .get(&route.name)
                .and_then(|other| t.routes.get(other));
            if of_name.is_none_or(|other| other.at_ns <= route.at_ns) {
                t.by_name.insert(route.name.clone(), volume);
            }
            t.routes.insert(volume, route);
            let gone =
                |route: &Route| route.on == on && matches!(route.elsewhere, Elsewhere::At(_));
            let mut gone: Vec<_> = t.routes.iter().filter(|(_, route)| gone(route)).collect();
            if gone.len() <= self.gone_max {
                return None;
            }
            gone.sort_by_key(|(_, route)| route.at_ns);
            let oldest = *gone.first()?.0;
            t.remove_route(oldest);
            Some((oldest, on))
        })
    }

    /// A volume is here. Returns who has it written down that it was elsewhere.
    fn take(&self, volume: DvolId) -> Option<(usize, usize)> {
        self.write(|t| t.remove_route(volume).map(|route| route.on))
    }

    /// A volume's tokens don't change any more: they go with it to another node.
    fn hand_over(&self, volume: DvolId) {
        self.write(|t| t.handed_over.insert(volume));
    }

    /// They have gone, or stay.
    fn stays(&self, volume: DvolId) {
        self.write(|t| t.handed_over.remove(&volume));
    }

    /// Whether its tokens are being handed over.
    pub(super) fn is_handed_over(&self, volume: DvolId) -> bool {
        self.read(|t| t.handed_over.contains(&volume))
    }

    /// A volume has come, and its origin may ask about it.
    fn came(&self, volume: DvolId, number: u32, key: Key) {
        self.write(|t| t.came.insert(volume, (number, key)));
    }

    /// Nobody will ask any more.
    fn confirmed(&self, volume: DvolId) {
        self.write(|t| t.came.remove(&volume));
    }

    /// Whether a volume has come and its origin may still ask about it: until then it is neither deleted nor moved on.
    pub(super) fn is_unconfirmed(&self, volume: DvolId) -> bool {
        self.read(|t| t.came.contains_key(&volume))
    }

    /// The key of an arrival that is over.
    fn key(&self, number: u32, volume: DvolId) -> Option<Key> {
        self.read(|t| {
            if let Some((key, _)) = t.settled.get(&(volume, number)) {
                return Some(key.clone());
            }
            let (came, key) = t.came.get(&volume)?;
            (*came == number).then(|| key.clone())
        })
    }

    /// Somebody has settled an arrival, and who has that written down.
    fn settled(&self, volume: DvolId, number: u32, key: Key, on: (usize, usize)) {
        self.write(|t| t.settled.insert((volume, number), (key, on)));
    }

    /// Who has it written down that somebody has settled an arrival: core and engine.
    fn is_settled_on(&self, volume: DvolId, number: u32) -> Option<(usize, usize)> {
        self.read(|t| t.settled.get(&(volume, number)).map(|(_, on)| *on))
    }

    /// A journal is served by another core from now on.
    pub(super) fn changed_core(&self, engine: usize, core: usize) {
        self.write(|t| {
            let routes = t.routes.values_mut().map(|route| &mut route.on);
            let settled = t.settled.values_mut().map(|(_, on)| on);
            for on in routes.chain(settled).filter(|on| on.1 == engine) {
                on.0 = core;
            }
        });
    }

    /// Nobody will ask any more.
    fn forget_settled(&self, volume: DvolId, number: u32) {
        self.write(|t| t.settled.remove(&(volume, number)));
    }

    /// What is known of the other copy of a volume. Returns whether that is new.
    fn put_fork(&self, volume: DvolId, node: Option<SocketAddr>, state: ForkState) -> bool {
        let fork = Fork {
            state,
            node: node.map(|node| node.to_string()),
        };
        self.write(|t| t.forks.insert(volume, fork.clone()) != Some(fork))
    }

    /// The other copy of a volume.
    pub(super) fn fork_of(&self, volume: DvolId) -> Option<Fork> {
        self.read(|t| t.forks.get(&volume).cloned())
    }

    /// There is none, or the volume itself has gone.
    pub(super) fn drop_fork(&self, volume: DvolId) {
        self.write(|t| t.forks.remove(&volume));
    }

    /// Whether a volume that is here is the copy of one that goes on where it came from.
    pub(super) fn is_fork(&self, volume: DvolId) -> bool {
        let is_here = |fork: &Fork| fork.state == ForkState::Here;
        self.read(|t| t.forks.get(&volume).is_some_and(is_here))
    }

    /// Whether it is known of this device what has come to it.
    fn knows(&self, device: DeviceId) -> bool {
        self.read(|t| t.devices.contains(&device) && !t.doubtful.contains(&device))
    }

    /// Reads what a journal has written down. What can't be read is said in the log: what it was about isn't answered for.
    pub(super) async fn load<P: Platform>(
        &self,
        store: &MoveStore<P>,
        device: usize,
        journal: u16,
    ) -> Vec<MoveRecord> {
        let id = store.engine().superblock().device_id;
        self.write(|t| t.devices.insert(id));
        let loaded = match store.load(|_| true).await {
            Ok(loaded) => loaded,
            Err(error) => {
                self.write(|t| t.doubtful.insert(id));
                tracing::error!(
                    device,
                    journal,
                    "reading what moves of volumes between nodes have left: {error}; nodes that ask whether a volume has come \
                     to this device are not answered"
                );
                return Vec::new();
            }
        };
        for what in &loaded.unreadable {
            self.write(|t| t.doubtful.insert(id));
            tracing::error!(
                device,
                journal,
                "reading what moves of volumes between nodes have left: {what}; nodes that ask whether a volume has come to \
                 this device are not answered"
            );
        }
        loaded.records
    }
}

/// Volumes whose tokens are still needed though they aren't in the journal: those that clients are sent on for.
pub(super) fn with_routes(records: &[MoveRecord]) -> BTreeSet<DvolId> {
    let goes = |record: &&MoveRecord| !record.kind.comes();
    records.iter().filter(goes).map(|r| r.volume).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str, elsewhere: Elsewhere, at_ns: u64) -> Route {
        Route {
            name: name.to_owned(),
            elsewhere,
            on: (0, 0),
            at_ns,
            unanswered: None,
        }
    }

    fn at(port: u16) -> Elsewhere {
        Elsewhere::At(SocketAddr::new([10, 0, 0, 1].into(), port))
    }

    #[test]
    fn a_volume_is_where_it_went_last() {
        let between = Between::default();
        assert_eq!(between.put(DvolId(1), route("a", at(1), 1)), None);
        assert_eq!(between.put(DvolId(2), route("a", at(2), 2)), None);
        assert_eq!(between.named("a"), Some((DvolId(2), at(2))));
        assert_eq!(between.of(DvolId(1)), Some(at(1)), "by its id");
        assert_eq!(between.put(DvolId(2), route("b", at(3), 3)), None);
        assert_eq!(between.named("a"), None, "it had another name");
        assert_eq!(between.named("b"), Some((DvolId(2), at(3))));
        assert_eq!(between.take(DvolId(2)), Some((0, 0)));
        assert_eq!((between.of(DvolId(2)), between.named("b")), (None, None));
        assert_eq!(between.take(DvolId(2)), None);
    }

    #[test]
    fn of_too_many_that_went_the_first_is_forgotten() {
        let between = Between::default();
        let asked = Elsewhere::Asked(SocketAddr::new([10, 0, 0, 1].into(), 9));
        between.put(DvolId(9_999_999), route("asked", asked, 0));
        for n in 0..GONE_MAX as u64 {
            let forgotten = between.put(DvolId(n.into()), route(&format!("v{n}"), at(1), n + 1));
            assert_eq!(forgotten, None, "{n}");
        }
        let other = Route {
            on: (1, 0),
            ..route("other", at(1), 0)
        };
        assert_eq!(
            between.put(DvolId(7_777_777), other),
            None,
            "in another journal"
        );
        let forgotten = between.put(DvolId(5_000_000), route("last", at(1), 1 << 40));
        assert_eq!(forgotten, Some((DvolId(0), (0, 0))));
        assert_eq!(between.of(DvolId(0)), None);
        assert_eq!(
            between.of(DvolId(9_999_999)),
            Some(asked),
            "it is not known where"
        );
    }

    #[test]
    fn held_since_a_start_is_who_was_asked_for_in_vain() {
        let between = Between::default();
        let asked = Elsewhere::Asked(SocketAddr::new([10, 0, 0, 1].into(), 9));
        between.put(DvolId(1), route("asked", asked, 0));
        between.put(DvolId(2), route("gone", at(1), 1));
        assert_eq!(between.held_since_start(), 0, "it may still be answered");
        between.asked_in_vain(DvolId(1), "no answer");
        between.asked_in_vain(DvolId(2), "no answer");
        assert_eq!(between.held_since_start(), 1);
        between.take(DvolId(1));
        assert_eq!(between.held_since_start(), 0);
    }

    #[test]
    fn an_arrival_is_known_by_its_volume_until_it_is_confirmed() {
        let between = Between::default();
        between.came(DvolId(1), 5, Key([3; 32]));
        assert!(between.key(5, DvolId(1)).is_some());
        assert!(between.key(4, DvolId(1)).is_none());
        assert!(between.key(5, DvolId(2)).is_none());
        assert!(between.is_unconfirmed(DvolId(1)));
        between.confirmed(DvolId(1));
        assert!(!between.is_unconfirmed(DvolId(1)));
        assert!(!between.knows(DeviceId(1)), "no such device");
    }

    #[test]
    fn an_arrival_that_was_settled_is_known_beside_a_later_one() {
        let between = Between::default();
        between.came(DvolId(1), 5, Key([3; 32]));
        between.settled(DvolId(1), 5, Key([3; 32]), (1, 2));
        between.confirmed(DvolId(1));
        assert!(!between.is_unconfirmed(DvolId(1)), "it may be deleted");
        between.came(DvolId(1), 6, Key([4; 32]));
        let keys = [5, 6, 7].map(|number| between.key(number, DvolId(1)).map(|key| key.0[0]));
        assert_eq!(keys, [Some(3), Some(4), None]);
        assert_eq!(between.is_settled_on(DvolId(1), 5), Some((1, 2)));
        assert_eq!(between.is_settled_on(DvolId(1), 6), None);
        between.forget_settled(DvolId(1), 5);
        assert!(between.key(5, DvolId(1)).is_none());
    }

    #[test]
    fn what_a_journal_has_written_down_goes_with_it() {
        let between = Between::default();
        for (volume, engine) in [(1, 4), (2, 5)] {
            let route = Route {
                on: (0, engine),
                ..route(&format!("v{volume}"), at(1), 1)
            };
            between.put(DvolId(volume), route);
            between.settled(DvolId(volume), 7, Key([3; 32]), (0, engine));
        }
        between.changed_core(5, 1);
        let on = |volume| {
            let volume = DvolId(volume);
            (
                between.is_noted_by(volume),
                between.is_settled_on(volume, 7),
            )
        };
        assert_eq!(on(1), (Some((0, 4)), Some((0, 4))));
        assert_eq!(on(2), (Some((1, 5)), Some((1, 5))));
    }

    #[test]
    fn what_is_known_of_a_copy_is_told_once() {
        let between = Between::default();
        let node = Some(SocketAddr::new([10, 0, 0, 1].into(), 9));
        assert!(between.put_fork(DvolId(1), node, ForkState::Unknown));
        assert!(!between.put_fork(DvolId(1), node, ForkState::Unknown));
        assert!(between.put_fork(DvolId(1), node, ForkState::There));
        assert!(!between.is_fork(DvolId(1)), "the other one is");
        assert!(between.put_fork(DvolId(2), None, ForkState::Here));
        assert!(between.is_fork(DvolId(2)));
        between.drop_fork(DvolId(2));
        assert_eq!(
            (between.is_fork(DvolId(2)), between.fork_of(DvolId(2))),
            (false, None)
        );
    }
}
