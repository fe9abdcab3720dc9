//! What a start finds of moves between nodes, and what is done about it: volumes of which it has to be asked whose they are, those that
//! went, those that have come and are not confirmed, and those that were on their way: these go on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{DvolError, Engine, Handle};
use flagstone_device::transfer::{Mark, Marks, go_on_above};
use flagstone_moves::away::{Home, Left, Start, Told, abandon, ask, at_start, epoch_above};
use flagstone_platform::Platform;
use flagstone_runtime::{Runtime, UringPlatform};
use flagstone_types::{DvolId, Epoch};

use super::leaving::{NodeHome, Promised};
use super::record::{Kind, MoveRecord};
use super::word::Came;
use super::{Between, Elsewhere, MoveStore, Route};
use crate::node::real::core::{CoreNode, current};
use crate::node::real::moving::VolumeMarks;
use crate::node::real::names::{Claim, Names, Place};
use crate::node::real::opening::Part;
use crate::node::real::start::wait_for;
use crate::node::{NodeError, Slo, SnapshotSchedule};

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

/// A volume that was on its way here. Its origin may go on.
pub(in crate::node::real) struct ComesAgain {
    pub(super) record: MoveRecord,
    pub(super) engine: usize,
    /// What has come of it, if that has a point.
    pub(super) copy: Option<Handle>,
    /// Of its name.
    pub(super) claim: Claim,
}

/// What is to become of the copy of a volume, with a point, that a start finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum CopyOf {
    /// It has not come from another node.
    None,
    /// It waits for its origin.
    Coming,
    /// Its origin has asked to finish, which came to nothing: it is thrown away.
    Never,
}

/// What one journal has written down.
pub(in crate::node::real) struct FoundMoves {
    /// Core and engine.
    on: (usize, usize),
    between: Between,
    names: Names,
    routes: BTreeMap<DvolId, MoveRecord>,
    came: BTreeMap<DvolId, MoveRecord>,
    /// Volumes that come, of which no copy was found yet.
    coming: BTreeMap<DvolId, MoveRecord>,
    comes_again: Vec<ComesAgain>,
    /// Volumes that were on their way and have no place here any more.
    stale: Vec<DvolId>,
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
        let (settled, records): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|record| record.kind == Kind::Settled);
        for record in settled {
            between.settled(record.volume, record.number, record.key, on);
        }
        let (coming, records): (Vec<_>, Vec<_>) = records
            .into_iter()
            .map(|record| (record.volume, record))
            .partition(|(_, record)| record.kind == Kind::Coming);
        let (came, routes): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|(_, record)| record.kind == Kind::Arrived);
        FoundMoves {
            on,
            between: between.clone(),
            names: names.clone(),
            routes: routes.into_iter().collect(),
            came: came.into_iter().collect(),
            coming: coming.into_iter().collect(),
            comes_again: Vec::new(),
            stale: Vec::new(),
            left: Vec::new(),
        }
    }

    /// What a copy with a point is that was found.
    pub(in crate::node::real) fn copy(&mut self, copy: Handle) -> CopyOf {
        if self.came.contains_key(&copy.id) {
            return CopyOf::Never;
        }
        let record = self.coming.remove(&copy.id);
        match record.is_some_and(|record| self.comes(record, Some(copy))) {
            true => CopyOf::Coming,
            false => CopyOf::None,
        }
    }

    /// Whether there is a place for a volume that was on its way: not if another one has got its name.
    fn comes(&mut self, record: MoveRecord, copy: Option<Handle>) -> bool {
        let (core, engine) = self.on;
        // It has no place before it has come.
        let place = Place {
            core,
            engine: 0,
            id: DvolId(0),
        };
        let Some(claim) = self.names.claim(&record.name, place) else {
            self.stale.push(record.volume);
            return false;
        };
        self.comes_again.push(ComesAgain {
            record,
            engine,
            copy,
            claim,
        });
        true
    }

    /// Whether a dvol is this node's as far as is known; otherwise it is settled later. If its move goes on, what is written down of that is in `goes_on`.
    pub(in crate::node::real) fn is_ours(
        &mut self,
        dvol: &FoundDvol<'_>,
        goes_on: &mut Option<MoveRecord>,
    ) -> bool {
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
            is_going: dvol.mark == Mark::Going(record.device.0),
            // A dvol without that mark has come back since.
            is_gone: record.kind.is_gone() && is_leaving,
            is_forced: record.kind == Kind::Forced,
        });
        if what == Start::GoOn {
            *goes_on = Some(record);
            return true;
        }
        let (core, engine) = self.on;
        let place = Place { core, engine, id };
        let claim = match what {
            Start::Ask | Start::Force => self.names.claim(dvol.name, place),
            _ => None,
        };
        let is_ours = matches!(what, Start::Abandon | Start::Watch);
        if !is_ours {
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
        is_ours
    }

    fn put_route(&self, record: &MoveRecord, what: Start) {
        let Some(address) = record.address else {
            return;
        };
        let route = Route {
            name: record.name.clone(),
            elsewhere: match what {
                Start::Ask | Start::Force => Elsewhere::Asked(address),
                _ => Elsewhere::At(address),
            },
            on: self.on,
            at_ns: record.at_ns,
            unanswered: None,
        };
        // Of more than there may be none was written down.
        let _ = self.between.put(record.volume, route);
    }

    /// All dvols of the journal were looked at. Returns what is left to do, and what may go on to come.
    pub(in crate::node::real) async fn end(
        mut self,
        engine: &Engine<UringPlatform>,
        store: &MoveStore<UringPlatform>,
    ) -> (Vec<LeftOver>, Vec<ComesAgain>) {
        for record in std::mem::take(&mut self.coming).into_values() {
            self.comes(record, None);
        }
        for volume in std::mem::take(&mut self.stale) {
            let _turn = store.turn().await;
            if let Err(error) = store.forget(MoveRecord::arrival_of(volume)).await {
                tracing::debug!(%volume, "forgetting a volume that was to come: {error}");
            }
        }
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
            if let Err(error) = store.forget(MoveRecord::arrival_of(volume)).await {
                tracing::debug!(%volume, "forgetting a volume that never came: {error}");
            }
        }
        for record in std::mem::take(&mut self.routes).into_values() {
            let what = at_start(Left {
                has_dvol: false,
                is_leaving: false,
                is_going: false,
                is_gone: record.kind.is_gone(),
                is_forced: false,
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
        (self.left, self.comes_again)
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
            if let Some(owned) = core.engines.get(place.engine) {
                let store = &owned.tokens;
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
            watched: None,
            take_tokens: RefCell::default(),
            held_since: None,
            is_kept: Cell::new(true),
            is_untold: Cell::new(false),
        };
        match one.what {
            // That is the node's to do.
            Start::GoOn => {}
            Start::SendOn => self.send_on(&one, &arrival, &home).await,
            Start::Abandon => {
                if let Err(error) = home.forget_route().await {
                    tracing::debug!(%volume, "forgetting a move that came to nothing: {error}");
                }
                if !abandon(&self.platform, &arrival, question).await {
                    self.abandon_later(&home.name, volume, &home.to);
                }
            }
            Start::Ask => {
                let name = &one.record.name;
                tracing::info!(volume = name, to = %home.to.address, "it was being moved to another node, which is asked whether it has come");
                match ask(&self.platform, &arrival, question, &home).await {
                    None => self
                        .asking
                        .is_known(volume, Came::Failed(DvolError::Stopping)),
                    Some(Told::There(at)) => match home.gone(at).await {
                        Ok(()) => {
                            self.asking.is_known(volume, Came::Went(at));
                            self.send_on(&one, &arrival, &home).await;
                        }
                        Err(error) => {
                            self.asking.is_known(volume, Came::Failed(error));
                            tracing::error!(
                                volume = name,
                                "that it is another node's can't be written down: {error}; it is served by this one neither, and the next start asks again"
                            );
                        }
                    },
                    Some(Told::Never) => {
                        self.goes_on(one, &home).await;
                        self.asking.is_known(volume, Came::Stayed);
                    }
                    Some(Told::Forced) => {
                        let forced = self.forced_now(&one, &home).await;
                        self.goes_on_forced(one, &home, forced).await;
                    }
                }
            }
            Start::Force => {
                let epoch = one.record.epoch;
                self.goes_on_forced(one, &home, Ok(epoch)).await;
            }
            Start::Watch => {
                let (name, epoch) = (one.record.name.clone(), one.record.epoch);
                self.go_on_forced(one.engine, name, volume, &home.to, epoch);
            }
        }
    }

    /// Somebody has said that it stays. Writes that down.
    async fn forced_now(&self, one: &LeftOver, home: &NodeHome<'_>) -> Result<Epoch, DvolError> {
        let found = self.engine(one.engine).zip(one.handle);
        let (engine, handle) = found.ok_or(DvolError::NotFound)?;
        let epoch = epoch_above(engine.epoch_of(handle)?).ok_or(DvolError::TooMany)?;
        home.keep_forced(epoch).await?;
        Ok(epoch)
    }

    /// It goes on here by somebody's word, which is written down.
    async fn goes_on_forced(
        self: &Rc<Self>,
        one: LeftOver,
        home: &NodeHome<'_>,
        forced: Result<Epoch, DvolError>,
    ) {
        let (volume, name, engine) = (one.record.volume, one.record.name.clone(), one.engine);
        let carried_out = async {
            let epoch = forced?;
            let found = self.engine(engine).zip(one.handle);
            let (engine, handle) = found.ok_or(DvolError::NotFound)?;
            go_on_above(&engine, handle, &VolumeMarks, epoch).await?;
            Ok(epoch)
        };
        match carried_out.await {
            Ok(epoch) => {
                self.between.take(volume);
                self.is_served(one).await;
                self.go_on_forced(engine, name, volume, &home.to, epoch);
                self.asking.is_known(volume, Came::Forced(epoch));
            }
            Err(error) => {
                tracing::error!(
                    volume = name,
                    "that it stays by force can't be written down: {error}; it is served by nobody until the node is restarted"
                );
                self.asking.is_known(volume, Came::Failed(error));
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
        self.is_served(one).await;
        tracing::info!(
            volume = home.name,
            "it was being moved to another node when this one ended, and has not come there: it goes on here"
        );
    }

    /// From now on it is found here.
    async fn is_served(&self, one: LeftOver) {
        let Some(handle) = one.handle else {
            return;
        };
        // While it was in doubt nobody asked for it. If its record may be one that can't be read, nobody may use it.
        if let Some(owned) = self.engines.get(one.engine) {
            self.access.reload(&owned.tokens, handle.id).await;
        }
        let name = &one.record.name;
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
            epoch: Epoch(if kind == Kind::Forced { 70_000 } else { 0 }),
            at_ns: 7,
            address: (!kind.comes()).then(at),
            name: "vm".to_owned(),
            attributes: [0; _],
            limit_bytes: 0,
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
        let mut goes_on = None;
        let dvol = FoundDvol {
            name: "vm",
            handle,
            mark,
            slo: Slo::default(),
            snapshots: None,
        };
        let is_ours = found.is_ours(&dvol, &mut goes_on);
        if let Some(record) = goes_on {
            assert!(found.left.is_empty() && record.volume == ID);
            return (is_ours, Some(Start::GoOn), between.of(ID), false);
        }
        let left = found.left.first();
        let what = left.map(|left| {
            assert_eq!((left.engine, left.handle), (1, Some(handle)));
            // Nobody else gets the name of one that may be here.
            let is_taken = names.claim("vm", place()).is_none();
            let is_held = matches!(left.what, Start::Ask | Start::Force);
            assert_eq!(is_taken, is_held);
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
        let (going, moves_on) = (Mark::Going(THERE.0), (true, Some(Start::GoOn), None, false));
        let forced = (
            false,
            Some(Start::Force),
            Some(Elsewhere::Asked(at())),
            false,
        );
        let watched = (true, Some(Start::Watch), None, false);
        for (kind, mark, expected) in [
            (Kind::Arrived, Mark::Plain, (true, None, None, true)),
            (Kind::Leaving, leaving, asked),
            // It was not held yet, or for another move.
            (Kind::Leaving, Mark::Plain, goes_on),
            (Kind::Leaving, elsewhere, goes_on),
            // It was copied, or is again behind a hold that came to nothing.
            (Kind::Going, going, moves_on),
            (Kind::Leaving, going, moves_on),
            // It was ended, or had not begun.
            (Kind::Going, Mark::Plain, goes_on),
            (Kind::Going, Mark::Going(THERE.0 + 1), goes_on),
            (Kind::Gone, leaving, sent_on),
            (Kind::Confirmed, leaving, sent_on),
            // It has come back.
            (Kind::Gone, Mark::Plain, goes_on),
            (Kind::Confirmed, Mark::Plain, goes_on),
            (Kind::Confirmed, elsewhere, goes_on),
            (Kind::Forced, leaving, forced),
            (Kind::Forced, Mark::Plain, watched),
            (Kind::Forced, elsewhere, watched),
            (Kind::Settled, Mark::Plain, (true, None, None, false)),
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
        let mut goes_on = None;
        let is_ours = found.is_ours(&dvol, &mut goes_on);
        assert!(is_ours, "what it says is looked at elsewhere");
        assert!(found.left.is_empty() && goes_on.is_none());
    }

    #[test]
    fn a_copy_waits_for_its_origin_or_is_of_another_move() {
        let handle = Handle {
            slot: Slot(2),
            id: ID,
            layer: None,
        };
        for (kind, is_taken, expected) in [
            (Kind::Coming, false, CopyOf::Coming),
            (Kind::Coming, true, CopyOf::None),
            (Kind::Arrived, false, CopyOf::Never),
            (Kind::Gone, false, CopyOf::None),
        ] {
            let (between, names) = (Between::default(), Names::default());
            let _other = is_taken.then(|| names.claim("vm", place()));
            let mut found = FoundMoves::new((0, 1), &between, &names, vec![record(kind)]);
            assert_eq!(found.copy(handle), expected, "{kind:?}");
            let copies: Vec<_> = found.comes_again.iter().map(|one| one.copy).collect();
            let waits = expected == CopyOf::Coming;
            assert_eq!(copies, if waits { vec![Some(handle)] } else { vec![] });
            // Nobody else gets its name.
            assert_eq!(names.claim("vm", place()).is_none(), waits || is_taken);
        }
    }
}
