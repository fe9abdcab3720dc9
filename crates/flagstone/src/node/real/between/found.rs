//! What a start finds of moves between nodes, and what is done about it: volumes of which it has to be asked whose they are, those that
//! went, and those that have come and are not confirmed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{Engine, Handle};
use flagstone_device::transfer::{Mark, Marks};
use flagstone_moves::away::{Home, Left, Start, ask, at_start};
use flagstone_platform::Platform;
use flagstone_runtime::{Runtime, UringPlatform};
use flagstone_types::DvolId;

use super::leaving::{NodeHome, Promised};
use super::record::{Kind, MoveKey, MoveRecord};
use super::{Between, Elsewhere, MoveStore, Route};
use crate::node::real::core::{CoreNode, current};
use crate::node::real::moving::VolumeMarks;
use crate::node::real::names::{Claim, Names, Place};
use crate::node::real::opening::Part;
use crate::node::real::start::wait_for;
use crate::node::{NodeError, Slo, SnapshotSchedule};

/// How long the other node is asked to forget a move that came to nothing, in nanoseconds.
const ABANDON_NS: u64 = 5_000_000_000;

/// A dvol of a journal, as a start finds it.
pub(in crate::node::real) struct FoundDvol<'a> {
    pub(in crate::node::real) name: &'a str,
    pub(in crate::node::real) handle: Handle,
    pub(in crate::node::real) mark: Mark,
    pub(in crate::node::real) slo: Slo,
    pub(in crate::node::real) snapshots: Option<SnapshotSchedule>,
}

/// Something that a move has left, and that takes the other node to settle.
pub(in crate::node::real) struct LeftOver {
    record: MoveRecord,
    engine: usize,
    what: Start,
    /// What there is of the volume.
    handle: Option<Handle>,
    /// Of its name.
    claim: Option<Claim>,
    slo: Slo,
    snapshots: Option<SnapshotSchedule>,
}

/// What one journal has written down.
pub(in crate::node::real) struct FoundMoves {
    /// Core and engine.
    on: (usize, usize),
    between: Between,
    names: Names,
    routes: BTreeMap<DvolId, MoveRecord>,
    came: BTreeMap<DvolId, MoveRecord>,
    left: Vec<LeftOver>,
}

impl FoundMoves {
    /// Of this engine of a core.
    pub(in crate::node::real) fn new(
        on: (usize, usize),
        between: &Between,
        names: &Names,
        records: Vec<MoveRecord>,
    ) -> FoundMoves {
        let (came, routes): (Vec<_>, Vec<_>) = records
            .into_iter()
            .map(|record| (record.volume, record))
            .partition(|(_, record)| record.kind == Kind::Arrived);
        FoundMoves {
            on,
            between: between.clone(),
            names: names.clone(),
            routes: routes.into_iter().collect(),
            came: came.into_iter().collect(),
            left: Vec::new(),
        }
    }

    /// Whether a dvol is this node's as far as is known; otherwise it is settled later.
    pub(in crate::node::real) fn is_ours(&mut self, dvol: &FoundDvol<'_>) -> bool {
        let id = dvol.handle.id;
        if let Some(came) = self.came.remove(&id) {
            self.between.came(id, came.number, came.key);
        }
        let Some(record) = self.routes.remove(&id) else {
            return true;
        };
        let is_leaving = dvol.mark == Mark::Leaving(record.device.0);
        let what = at_start(Left {
            has_dvol: true,
            is_leaving,
            // A dvol without that mark has come back since.
            is_gone: record.kind != Kind::Leaving && is_leaving,
        });
        let (core, engine) = self.on;
        let place = Place { core, engine, id };
        let claim = match what {
            Start::Ask => self.names.claim(dvol.name, place),
            _ => None,
        };
        if what != Start::Abandon {
            self.put_route(&record, what);
        }
        self.left.push(LeftOver {
            record,
            engine,
            what,
            handle: Some(dvol.handle),
            claim,
            slo: dvol.slo,
            snapshots: dvol.snapshots,
        });
        what == Start::Abandon
    }

    fn put_route(&self, record: &MoveRecord, what: Start) {
        let Some(address) = record.address else {
            return;
        };
        let route = Route {
            name: record.name.clone(),
            elsewhere: match what {
                Start::Ask => Elsewhere::Asked(address),
                _ => Elsewhere::At(address),
            },
            on: self.on,
            at_ns: record.at_ns,
        };
        // Of more than there may be none was written down.
        let _ = self.between.put(record.volume, route);
    }

    /// All dvols of the journal were looked at. Returns what is left to do.
    pub(in crate::node::real) async fn end(
        mut self,
        engine: &Engine<UringPlatform>,
        store: &MoveStore<UringPlatform>,
    ) -> Vec<LeftOver> {
        for (volume, _) in std::mem::take(&mut self.came) {
            let mut is_there = false;
            engine.visit_dvols(|handle, _| is_there |= handle.id == volume);
            if is_there {
                // It was coming, and what there is of it could not be deleted: it isn't said that it never will.
                let device = engine.superblock().device_id;
                self.between.write(|t| t.doubtful.insert(device));
                continue;
            }
            let _turn = store.turn().await;
            let key = MoveKey {
                volume,
                comes: true,
            };
            if let Err(error) = store.forget(key).await {
                tracing::debug!(%volume, "forgetting a volume that never came: {error}");
            }
        }
        for record in std::mem::take(&mut self.routes).into_values() {
            let what = at_start(Left {
                has_dvol: false,
                is_leaving: false,
                is_gone: record.kind != Kind::Leaving,
            });
            if what == Start::SendOn {
                self.put_route(&record, what);
            }
            if record.kind == Kind::Confirmed {
                continue;
            }
            self.left.push(LeftOver {
                record,
                engine: self.on.1,
                what,
                handle: None,
                claim: None,
                slo: Slo::default(),
                snapshots: None,
            });
        }
        self.left
    }
}

/// Forgets of volumes that are here that they were elsewhere. Before clients come: the tokens that such a one had where it was are not those it has.
pub(in crate::node::real) fn forget_stale(runtime: &Runtime, part: &Part) -> Result<(), NodeError> {
    let ids: Vec<DvolId> = part.between.read(|t| t.routes.keys().copied().collect());
    for id in ids {
        let Some((_, place)) = part.names.place_of(id) else {
            continue;
        };
        let Some(on) = part.between.take(id) else {
            continue;
        };
        let with_tokens = on != (place.core, place.engine);
        on_core(runtime, on.0, move |core| async move {
            let forgotten = core.forget_route_of(on.1, id, with_tokens).await;
            if let Err(error) = forgotten {
                tracing::debug!(volume = %id, "forgetting that it was elsewhere: {error}");
            }
        })?;
        on_core(runtime, place.core, move |core| async move {
            if let Some(store) = core.tokens.get(place.engine) {
                core.access.reload(store, id).await;
            }
        })?;
    }
    Ok(())
}

fn on_core<F: Future<Output = ()> + 'static>(
    runtime: &Runtime,
    core: usize,
    work: impl FnOnce(Rc<CoreNode>) -> F + Send + 'static,
) -> Result<(), NodeError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let sent = runtime.cores()[core].remote().call_then(
        move |_| async move {
            if let Some(core) = current() {
                work(core).await;
            }
        },
        move |()| {
            // Nobody waits once the node has given up.
            let _ = sender.send(());
        },
    );
    wait_for(sent.map(|()| receiver), "settling what moves have left")
}

impl CoreNode {
    /// Begins to settle what moves have left that takes other nodes. It goes on for as long as those can't be asked.
    pub(in crate::node::real) fn begin_left_over(self: &Rc<Self>) {
        for one in self.left_over.take() {
            let core = self.clone();
            self.platform
                .spawn(async move { core.settle_left(one).await });
        }
    }

    async fn settle_left(self: Rc<Self>, one: LeftOver) {
        let Some(to) = Promised::of(&one.record) else {
            return;
        };
        let volume = one.record.volume;
        let client = self.client_of(to.address);
        let arrival = client.arrival(to.address, to.number, to.key.clone());
        let question = to.question(volume);
        let home = NodeHome {
            core: &self,
            engine: one.engine,
            name: one.record.name.clone(),
            volume,
            to,
            notes: None,
            take_tokens: RefCell::default(),
        };
        match one.what {
            Start::SendOn => self.send_on(&one, &arrival, &home).await,
            Start::Abandon => {
                if let Err(error) = home.forget_route().await {
                    tracing::debug!(%volume, "forgetting a move that came to nothing: {error}");
                }
                let deadline = self.platform.now().plus_ns(ABANDON_NS);
                // Otherwise it ends there by itself.
                let _ = arrival
                    .settle(question.device, volume, (true, false), deadline)
                    .await;
            }
            Start::Ask => {
                let name = &one.record.name;
                tracing::info!(volume = name, to = %home.to.address, "it was being moved to another node, which is asked whether it has come");
                match ask(&self.platform, &arrival, question, &home).await {
                    None => {}
                    Some(Some(at)) => match home.gone(at).await {
                        Ok(()) => self.send_on(&one, &arrival, &home).await,
                        Err(error) => tracing::error!(
                            volume = name,
                            "that it is another node's can't be written down: {error}; it is served by this one neither, and the next start asks again"
                        ),
                    },
                    Some(None) => self.goes_on(one, &home).await,
                }
            }
        }
    }

    /// It is the other node's: what there is of it here goes.
    async fn send_on(
        self: &Rc<Self>,
        one: &LeftOver,
        arrival: &flagstone_client::Arrival<UringPlatform, super::UringConnect>,
        home: &NodeHome<'_>,
    ) {
        let name = &one.record.name;
        if let Some((engine, handle)) = self.engine(one.engine).zip(one.handle) {
            match engine.delete(handle, true).await {
                Ok(()) => {
                    tracing::info!(volume = name, to = %home.to.address, "it was moved to another node; what was left of it is deleted")
                }
                Err(error) => {
                    tracing::warn!(
                        volume = name,
                        "it was moved to another node, and what is left of it can't be deleted: {error}; the next start tries again"
                    );
                    return;
                }
            }
        }
        if one.record.kind != Kind::Confirmed {
            self.confirm(arrival, home).await;
        }
    }

    /// It never came there: it goes on here.
    async fn goes_on(self: &Rc<Self>, one: LeftOver, home: &NodeHome<'_>) {
        let name = &one.record.name;
        let Some((engine, handle)) = self.engine(one.engine).zip(one.handle) else {
            return;
        };
        let unmarked = async {
            let attributes = VolumeMarks.plain(&engine.attributes_of(handle)?);
            engine.set_attributes(handle, attributes).await?;
            home.forget_route().await
        };
        if let Err(error) = unmarked.await {
            // Whoever asks again is answered the same.
            tracing::warn!(
                volume = name,
                "taking the mark of its move away: {error}; the next start asks again"
            );
            self.between.take(handle.id);
        }
        self.set_slo(handle.id, &one.slo);
        self.schedules.set(one.engine, handle, one.snapshots);
        let place = Place {
            core: self.index,
            engine: one.engine,
            id: handle.id,
        };
        match one.claim {
            Some(claim) => claim.came_to_be(place),
            None => drop(self.names.insert_found(name, place)),
        }
        tracing::info!(
            volume = name,
            "it was being moved to another node when this one ended, and has not come there: it goes on here"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use flagstone_types::{DeviceId, Slot};
    use flagstone_wire::proof::Key;

    use super::*;

    const ID: DvolId = DvolId(5);
    const THERE: DeviceId = DeviceId(9);

    fn at() -> SocketAddr {
        SocketAddr::new([10, 0, 0, 2].into(), 4420)
    }

    fn record(kind: Kind) -> MoveRecord {
        MoveRecord {
            kind,
            volume: ID,
            device: THERE,
            number: 3,
            key: Key([1; 32]),
            at_ns: 7,
            address: (kind != Kind::Arrived).then(at),
            name: "vm".to_owned(),
        }
    }

    /// What is made of a record and a dvol with this mark: whether it is served, what is left to do, and where clients are told that it is.
    fn made_of(kind: Kind, mark: Mark) -> (bool, Option<Start>, Option<Elsewhere>, bool) {
        let (between, names) = (Between::default(), Names::default());
        let mut found = FoundMoves::new((0, 1), &between, &names, vec![record(kind)]);
        let handle = Handle {
            slot: Slot(2),
            id: ID,
            layer: None,
        };
        let is_ours = found.is_ours(&FoundDvol {
            name: "vm",
            handle,
            mark,
            slo: Slo::default(),
            snapshots: None,
        });
        let left = found.left.first();
        let what = left.map(|left| {
            assert_eq!((left.engine, left.handle), (1, Some(handle)));
            // Nobody else gets the name of one that may be here.
            let is_taken = names.claim("vm", place()).is_none();
            assert_eq!(is_taken, left.what == Start::Ask);
            left.what
        });
        (is_ours, what, between.of(ID), between.is_unconfirmed(ID))
    }

    fn place() -> Place {
        Place {
            core: 0,
            engine: 0,
            id: DvolId(0),
        }
    }

    #[test]
    fn each_record_and_mark_says_whose_the_volume_is() {
        let leaving = Mark::Leaving(THERE.0);
        let elsewhere = Mark::Leaving(THERE.0 + 1);
        let sent_on = (false, Some(Start::SendOn), Some(Elsewhere::At(at())), false);
        let asked = (false, Some(Start::Ask), Some(Elsewhere::Asked(at())), false);
        let goes_on = (true, Some(Start::Abandon), None, false);
        for (kind, mark, expected) in [
            (Kind::Arrived, Mark::Plain, (true, None, None, true)),
            (Kind::Leaving, leaving, asked),
            // It was not held yet, or for another move.
            (Kind::Leaving, Mark::Plain, goes_on),
            (Kind::Leaving, elsewhere, goes_on),
            (Kind::Gone, leaving, sent_on),
            (Kind::Confirmed, leaving, sent_on),
            // It has come back.
            (Kind::Gone, Mark::Plain, goes_on),
            (Kind::Confirmed, Mark::Plain, goes_on),
            (Kind::Confirmed, elsewhere, goes_on),
        ] {
            assert_eq!(made_of(kind, mark), expected, "{kind:?} {mark:?}");
        }
    }

    #[test]
    fn a_dvol_of_which_nothing_is_written_down_is_ours() {
        let (between, names) = (Between::default(), Names::default());
        let mut other = record(Kind::Gone);
        other.volume = DvolId(6);
        let mut found = FoundMoves::new((0, 0), &between, &names, vec![other]);
        let handle = Handle {
            slot: Slot(2),
            id: ID,
            layer: None,
        };
        let dvol = FoundDvol {
            name: "vm",
            handle,
            mark: Mark::Leaving(THERE.0),
            slo: Slo::default(),
            snapshots: None,
        };
        assert!(found.is_ours(&dvol), "what it says is looked at elsewhere");
        assert!(found.left.is_empty());
    }
}
