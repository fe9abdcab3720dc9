//! Volumes that come from other nodes: promises, and what their origins ask.
//!
//! A promise is in memory until the origin begins, and takes the volume's name meanwhile. Whoever has its key brings the volume; what each request
//! does is in `flagstone_device::transfer`. What was not heard of for [`SILENCE_NS`], or [`KEPT_NS`] once something has come, ends: no volume has come before
//! it was asked to. From the beginning on it is written down that the volume comes, so what has come by then outlives a start (`again.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};

use flagstone_device::engine::{Attributes, DvolError, Handle, Stability};
use flagstone_device::transfer::{Arrival, Became, Keeper, NewDvol};
use flagstone_fs::DvolRole;
use flagstone_gateway::native::arrivals::{ArrivalReply, ArrivalRequest, Arrivals, NewArrival};
use flagstone_gateway::native::directory::Ends;
use flagstone_gateway::native::volume::NativeError;
use flagstone_moves::here::{RecordBytes, carry_out};
use flagstone_platform::{Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_sched::Want;
use flagstone_types::{DeviceId, DvolId, Epoch};
use flagstone_wire::Operation;
use flagstone_wire::arrival::Settled;
use flagstone_wire::proof::{KEY_BYTES, Key};

use super::Elsewhere;
use super::record::{Kind, MoveKey, MoveRecord};
use crate::node::real::access::{Origin, Record};
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::core::CoreNode;
use crate::node::real::moving::{Copier, VolumeMarks};
use crate::node::real::names::{Claim, Place};
use crate::node::real::records::Kept;
use crate::node::{ArrivingVolume, ForkState, MovePoint, Slo};

/// How long an arrival stays of which something has come, and whose origin isn't heard of, in nanoseconds: a day. A start begins to count anew.
pub(super) const KEPT_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Between two looks whether what was under way for longer than that has ended, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;

/// How long an arrival stays that nobody asks for, in nanoseconds.
pub(super) const SILENCE_NS: u64 = 600_000_000_000;

/// An arrival that nobody has asked for in this long may be replaced by another one of the same volume, in nanoseconds.
const REPLACED_NS: u64 = 30_000_000_000;

/// Arrivals that a core has at a time.
const ARRIVALS_MAX: usize = 1024;

/// A volume that may come to a core.
pub(super) struct Expected {
    pub(super) id: DvolId,
    pub(super) name: String,
    pub(super) slo: Slo,
    pub(super) engine: usize,
    /// Of its name.
    pub(super) claim: Claim,
    /// Told when it has come, dropped when it won't.
    pub(super) came: tokio::sync::oneshot::Sender<()>,
}

/// Arrivals of one core, by number.
#[derive(Default)]
pub(in crate::node::real) struct CoreArrivals {
    by_number: RefCell<BTreeMap<u32, Rc<OneArrival>>>,
}

impl CoreArrivals {
    fn find(&self, number: u32) -> Option<Rc<OneArrival>> {
        self.by_number.borrow().get(&number).cloned()
    }

    /// That of this volume, if one is promised or under way.
    pub(super) fn of(&self, volume: DvolId) -> Option<Rc<OneArrival>> {
        let arrivals = self.by_number.borrow();
        arrivals
            .values()
            .find(|one| one.expected.id == volume)
            .cloned()
    }

    /// The name of one that is to come to this journal, if there is any.
    pub(in crate::node::real) fn at(&self, engine: usize) -> Option<String> {
        let arrivals = self.by_number.borrow();
        let mut there = arrivals
            .values()
            .filter(|one| one.expected.engine == engine);
        there.next().map(|one| one.expected.name.clone())
    }

    pub(super) fn all(&self) -> Vec<Rc<OneArrival>> {
        self.by_number.borrow().values().cloned().collect()
    }

    pub(super) fn is_full(&self) -> bool {
        self.by_number.borrow().len() >= ARRIVALS_MAX
    }

    fn remove(&self, number: u32) {
        self.by_number.borrow_mut().remove(&number);
    }

    /// What is asked about this volume from now on isn't asked of an arrival that is under way.
    pub(super) fn is_over(&self, volume: DvolId) {
        let mut arrivals = self.by_number.borrow_mut();
        arrivals.retain(|_, one| one.expected.id != volume);
    }
}

/// What doesn't change of it.
struct Announced {
    id: DvolId,
    name: String,
    slo: Slo,
    engine: usize,
}

/// A volume that may come, or is coming.
pub(in crate::node::real) struct OneArrival {
    number: u32,
    key: Key,
    expected: Rc<Announced>,
    arrival: Arrival<UringPlatform, VolumeMarks, NodeKeeper>,
    copier: Copier,
    heard: Cell<Time>,
    /// By which address.
    from: Cell<Option<IpAddr>>,
    under_way: Cell<u32>,
}

/// A request is under way.
struct Hearing<'a> {
    one: &'a OneArrival,
    platform: UringPlatform,
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.one.under_way.set(self.one.under_way.get() - 1);
        self.one.heard.set(self.platform.now());
    }
}

impl OneArrival {
    fn hear(&self, platform: &UringPlatform) -> Hearing<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Hearing {
            one: self,
            platform: platform.clone(),
        }
    }

    /// For how long nobody has asked for it.
    fn silent_ns(&self, now: Time) -> u64 {
        match self.under_way.get() {
            0 => now.since(self.heard.get()),
            _ => 0,
        }
    }

    /// Whether nobody has asked for it in this long.
    fn is_silent(&self, now: Time, for_ns: u64) -> bool {
        self.under_way.get() == 0 && self.silent_ns(now) >= for_ns
    }

    /// As people see it, with the number of its device. `None` once it has come.
    pub(super) fn shown(&self, core: &CoreNode) -> Option<(usize, ArrivingVolume)> {
        let expected = &self.expected;
        let device = core.engines.get(expected.engine)?.device;
        let silent_ns = self.silent_ns(core.platform.now());
        let ends_in_ns = self.stays_ns(core).saturating_sub(silent_ns);
        let shown = ArrivingVolume {
            volume: expected.name.clone(),
            id: expected.id.to_string(),
            device: String::new(),
            core: u32::try_from(core.index).unwrap_or(u32::MAX),
            has_begun: self.arrival.has_begun(),
            from: self.from.get().map(|ip| ip.to_canonical().to_string()),
            silent_s: silent_ns / 1_000_000_000,
            ends_in_s: ends_in_ns / 1_000_000_000,
        };
        core.names
            .place_of(expected.id)
            .is_none()
            .then_some((device, shown))
    }

    /// How long it stays if nobody asks for it, in nanoseconds.
    fn stays_ns(&self, core: &CoreNode) -> u64 {
        match self.arrival.has_begun() {
            true => core.move_hooks.kept_ns.unwrap_or(KEPT_NS),
            false => core.silence_ns(),
        }
    }

    /// Whether it may be replaced by a new promise.
    pub(super) fn may_be_replaced(&self, core: &CoreNode) -> bool {
        let replaced_ns = core.silence_ns() / (SILENCE_NS / REPLACED_NS);
        self.is_silent(core.platform.now(), replaced_ns)
    }

    /// Whether it was promised by this number, and nobody has begun to bring it.
    pub(super) fn is_promised_as(&self, number: u32) -> bool {
        self.number == number && !self.arrival.has_begun()
    }

    /// Gives it up, unless it has come, or it isn't known whether it can be undone.
    pub(super) async fn give_up(&self, core: &CoreNode) -> Became {
        let became = self.arrival.settle(true).await;
        if became == Became::Never {
            core.arrivals.remove(self.number);
        }
        became
    }

    /// What comes is what was promised.
    fn check(&self, new: &NewArrival) -> Result<(), NativeError> {
        let expected = &self.expected;
        let attributes: &Attributes = &new.attributes;
        let is_it = new.id == expected.id && new.name == expected.name;
        if !is_it {
            return Err(NativeError::Invalid("another volume was promised a place"));
        }
        if DvolRole::of(attributes).is_some() {
            return Err(NativeError::Invalid("its attributes are no volume's"));
        }
        if VolumeAttributes::decode(attributes).slo != expected.slo {
            return Err(NativeError::Invalid(
                "it was promised something else meanwhile; move it again",
            ));
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        core: &CoreNode,
        attempt: u64,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        let _hearing = self.hear(&core.platform);
        let at = core.address().ok_or(NativeError::Stopping)?;
        let _turn = match &request {
            ArrivalRequest::Begin(new) | ArrivalRequest::Again(new) => {
                self.check(new)?;
                None
            }
            ArrivalRequest::Point(_) => Some(self.copier.tenant(false).turn(Want::flush()).await),
            ArrivalRequest::Runs(_, payload) => {
                let want = Want::write(0, (payload.len() as u64).max(1), false);
                Some(self.copier.tenant(false).turn(want).await)
            }
            _ => None,
        };
        let confirms = matches!(request, ArrivalRequest::Settle { confirm: true, .. });
        let is_forked = matches!(request, ArrivalRequest::Settle { forked: true, .. });
        if confirms {
            core.at(MovePoint::Confirming).await;
        }
        let point = match &request {
            ArrivalRequest::Begin(_) => Some(MovePoint::Begun),
            ArrivalRequest::Runs(..) => Some(MovePoint::Taken),
            ArrivalRequest::Point(_) | ArrivalRequest::Snapshot { point: Some(_), .. } => {
                Some(MovePoint::PointKept)
            }
            ArrivalRequest::Finish(_) => Some(MovePoint::Arrived),
            _ if confirms => Some(MovePoint::Confirmed),
            _ => None,
        };
        let reply = carry_out(&self.arrival, at, attempt, request).await?;
        if let Some(point) = point {
            core.at(point).await;
        }
        match &reply {
            ArrivalReply::Settled(Settled::Never) => core.arrivals.remove(self.number),
            ArrivalReply::Settled(Settled::Arrived(_)) if confirms => {
                core.arrivals.remove(self.number);
            }
            ArrivalReply::Settled(Settled::Arrived(_)) if is_forked => {
                core.is_a_fork(self.expected.id);
            }
            _ => {}
        }
        Ok(reply)
    }
}

/// What the node keeps of an arrival beside the dvol.
pub(in crate::node::real) struct NodeKeeper {
    core: Weak<CoreNode>,
    number: u32,
    key: Key,
    expected: Rc<Announced>,
    claim: RefCell<Option<Claim>>,
    came: RefCell<Option<tokio::sync::oneshot::Sender<()>>>,
    /// The tokens that have come with it.
    tokens: RefCell<Option<Record>>,
}

impl NodeKeeper {
    fn core(&self) -> Result<Rc<CoreNode>, DvolError> {
        self.core.upgrade().ok_or(DvolError::Stopping)
    }

    fn move_key(&self) -> MoveKey {
        MoveRecord::arrival_of(self.expected.id)
    }

    fn record(&self, core: &CoreNode, kind: Kind) -> Result<MoveRecord, DvolError> {
        let owned = core.owned(self.expected.engine)?;
        Ok(MoveRecord {
            kind,
            volume: self.expected.id,
            device: owned.engine.superblock().device_id,
            number: self.number,
            key: self.key.clone(),
            epoch: Epoch(0),
            at_ns: core.platform.wall_clock_ns(),
            address: None,
            name: String::new(),
            attributes: [0; _],
            limit_bytes: 0,
        })
    }
}

impl Keeper for NodeKeeper {
    type Record = RecordBytes;

    async fn comes(&self, new: &NewDvol) -> Result<(), DvolError> {
        let core = self.core()?;
        let owned = core.owned(self.expected.engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        let record = MoveRecord {
            name: new.name.clone(),
            attributes: new.attributes,
            ..self.record(&core, Kind::Coming)?
        };
        store.put(&record, Stability::Stable).await?;
        core.at(MovePoint::ComingKept).await;
        Ok(())
    }

    async fn take_record(&self, record: Option<RecordBytes>) -> Result<(), DvolError> {
        let core = self.core()?;
        let engine = self.expected.engine;
        if let Some(bytes) = record {
            let tokens = <Record as Kept>::decode(&bytes[..]).map_err(|_| DvolError::Corrupt)?;
            if tokens.key() != self.expected.id {
                return Err(DvolError::Invalid);
            }
            let owned = core.owned(engine)?;
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.put(&tokens, Stability::Stable).await?;
            self.tokens.replace(Some(tokens));
        } else {
            // Those that it had here before it went are not its own any more.
            let owned = core.owned(engine)?;
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.forget(self.expected.id).await?;
            store.engine().flush().await?;
        }
        core.at(MovePoint::TokensKept).await;
        let owned = core.owned(engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        let record = self.record(&core, Kind::Arrived)?;
        store.put(&record, Stability::Stable).await?;
        core.at(MovePoint::ArrivalKept).await;
        Ok(())
    }

    async fn forget(&self, has_arrived: bool) -> Result<(), DvolError> {
        let core = self.core()?;
        let (engine, id) = (self.expected.engine, self.expected.id);
        if has_arrived {
            return core.confirm_arrival(engine, id).await;
        }
        {
            let owned = core.owned(engine)?;
            let store = &owned.moves;
            let _turn = store.turn().await;
            store.forget(self.move_key()).await?;
            // Before somebody else has its name: a start that found the record would keep that for it.
            store.engine().flush().await?;
        }
        // Its name, and what it was promised, are free again.
        self.claim.take();
        self.came.take();
        let owned = core.owned(engine)?;
        let store = &owned.tokens;
        // Those who come for it are sent on, if it was here before: that takes its tokens.
        if core.between.is_noted_by(id) != Some((core.index, engine)) {
            let _turn = store.turn().await;
            store.forget(id).await?;
        }
        Ok(())
    }

    fn arrived(&self, handle: Handle) {
        let Ok(core) = self.core() else { return };
        let (engine, id) = (self.expected.engine, handle.id);
        let attributes = core
            .engine(engine)
            .and_then(|e| e.attributes_of(handle).ok());
        let attributes = attributes
            .map(|a| VolumeAttributes::decode(&a))
            .unwrap_or_default();
        let snapshots = attributes.snapshots;
        if let Some(moved) = attributes.moved {
            core.names.came(id, (moved.since(), moved.epoch));
        }
        core.set_slo(id, &self.expected.slo);
        core.schedules.set(engine, handle, snapshots);
        match self.tokens.take() {
            Some(tokens) => core.access.set(tokens),
            None => core.access.forget(id),
        }
        core.between.came(id, self.number, self.key.clone());
        let was_on = core.between.take(id);
        if let Some(claim) = self.claim.take() {
            let core = core.index;
            claim.came_to_be(Place { core, engine, id });
        }
        if let Some(came) = self.came.take() {
            // Who asked may be gone.
            let _ = came.send(());
        }
        let volume = &self.expected.name;
        tracing::info!(volume, %id, core = core.index, "it has come from another node");
        if let Some(was_on) = was_on {
            let here = core.clone();
            core.platform.spawn(async move {
                here.forget_route(was_on, (here.index, engine), id).await;
            });
        }
    }
}

impl CoreNode {
    /// Where clients of the native protocol find this core.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.native_addresses().get(self.index).copied()
    }

    /// Promises a volume a place on this core. Returns the arrival's number and key.
    pub(super) fn promise_arrival(
        self: &Rc<Self>,
        expected: Expected,
    ) -> Result<(u32, Key), DvolError> {
        let owned = self.owned(expected.engine)?;
        if owned.making.is_shut() {
            return Err(DvolError::Busy);
        }
        let number = loop {
            // 0 would be like none.
            let number = self.platform.random_u64() as u32;
            if number != 0 && self.arrivals.find(number).is_none() {
                break number;
            }
        };
        let mut key = [0; KEY_BYTES];
        let (words, _) = key.as_chunks_mut::<8>();
        for word in words {
            *word = self.platform.random_u64().to_le_bytes();
        }
        let key = Key(key);
        self.expect_arrival(expected, (number, key.clone()), None)?;
        Ok((number, key))
    }

    /// Waits for a volume that may come: one that was promised a place, or (`left`) was on its way before the last start, with what has come of it.
    pub(super) fn expect_arrival(
        self: &Rc<Self>,
        expected: Expected,
        (number, key): (u32, Key),
        left: Option<Option<(NewDvol, Handle)>>,
    ) -> Result<(), DvolError> {
        let engine = self.owned(expected.engine)?.engine.clone();
        let copier = self.copier(expected.engine, expected.slo);
        let copier = copier.ok_or(DvolError::NotFound)?;
        let announced = Rc::new(Announced {
            id: expected.id,
            name: expected.name,
            slo: expected.slo,
            engine: expected.engine,
        });
        let keeper = NodeKeeper {
            core: Rc::downgrade(self),
            number,
            key: key.clone(),
            expected: announced.clone(),
            claim: RefCell::new(Some(expected.claim)),
            came: RefCell::new(Some(expected.came)),
            tokens: RefCell::default(),
        };
        let one = Rc::new(OneArrival {
            number,
            key,
            expected: announced,
            arrival: match left {
                None => Arrival::new(engine, VolumeMarks, keeper),
                Some(copy) => {
                    let now_ms = self.platform.wall_clock_ns() / 1_000_000;
                    Arrival::left(engine, VolumeMarks, keeper, copy, now_ms)
                }
            },
            copier,
            heard: Cell::new(self.platform.now()),
            from: Cell::new(None),
            under_way: Cell::new(0),
        });
        self.arrivals
            .by_number
            .borrow_mut()
            .insert(number, one.clone());
        let core = self.clone();
        self.platform
            .spawn(async move { core.end_when_silent(one).await });
        Ok(())
    }

    /// How long an arrival stays that nobody asks for, in nanoseconds.
    fn silence_ns(&self) -> u64 {
        self.move_hooks.silence_ns.unwrap_or(SILENCE_NS)
    }

    /// Ends an arrival that nobody asks for any more, and of which nothing is under way.
    async fn end_when_silent(self: Rc<Self>, one: Rc<OneArrival>) {
        loop {
            let due = one.heard.get().plus_ns(one.stays_ns(&self));
            self.platform
                .sleep_until(due.max(self.platform.now().plus_ns(LOOK_NS)))
                .await;
            let is_over = self.arrivals.find(one.number).is_none();
            if is_over || self.is_stopping() {
                return;
            }
            if one.is_silent(self.platform.now(), one.stays_ns(&self)) {
                // One that has come stays until its origin has confirmed that.
                if one.give_up(&self).await == Became::Never {
                    tracing::info!(
                        volume = one.expected.name,
                        "it was to come from another node, which is silent: given up"
                    );
                }
                return;
            }
        }
    }

    /// Nobody will ask about a volume that has come. Durable when this returns: it is never asked to be confirmed again.
    pub(super) async fn confirm_arrival(
        &self,
        engine: usize,
        volume: DvolId,
    ) -> Result<(), DvolError> {
        let owned = self.owned(engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        store.forget(MoveRecord::arrival_of(volume)).await?;
        store.engine().flush().await?;
        self.between.confirmed(volume);
        Ok(())
    }

    /// Somebody has said that a volume which has come may be deleted or moved on. Durable when this returns. From the first thing that is
    /// written down on its origin is told that it has come, whatever becomes of it.
    pub(super) async fn settle_arrival(
        &self,
        engine: usize,
        volume: DvolId,
    ) -> Result<(), DvolError> {
        let owned = self.owned(engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        // Otherwise its origin has confirmed meanwhile.
        if let Some(arrived) = store.record(MoveRecord::arrival_of(volume)).await? {
            let settled = MoveRecord {
                kind: Kind::Settled,
                at_ns: self.platform.wall_clock_ns(),
                ..arrived
            };
            store.put(&settled, Stability::Stable).await?;
            let (number, key) = (settled.number, settled.key);
            let on = (self.index, engine);
            self.between.settled(volume, number, key, on);
            self.at(MovePoint::SettledKept).await;
            store.forget(MoveRecord::arrival_of(volume)).await?;
            store.engine().flush().await?;
        }
        self.arrivals.is_over(volume);
        self.between.confirmed(volume);
        Ok(())
    }

    /// Nobody will ask about an arrival any more that somebody had settled.
    async fn forget_settled(
        &self,
        engine: usize,
        volume: DvolId,
        number: u32,
    ) -> Result<(), DvolError> {
        let owned = self.owned(engine)?;
        let store = &owned.moves;
        let _turn = store.turn().await;
        store.forget(MoveRecord::settled_of(volume, number)).await?;
        store.engine().flush().await?;
        self.between.forget_settled(volume, number);
        Ok(())
    }

    /// A volume that has come here goes on where it came from, by somebody's word there.
    fn is_a_fork(&self, volume: DvolId) {
        if self.between.put_fork(volume, None, ForkState::Here) {
            let name = self.names.name_of(volume).unwrap_or_default();
            tracing::error!(
                volume = name,
                "it has come from another node, where somebody has had it stay by force since: it goes on there, and what is here is another copy. \
                 Look whether anything of this one is needed, and delete it here: `flagstone volume delete {name} --with-snapshots`"
            );
        }
    }

    /// A fork was deleted: who asks is told that there is nothing. If it can't be written down, the next start finds that there is no such volume.
    pub(in crate::node::real) async fn forget_fork(&self, engine: usize, volume: DvolId) {
        self.between.drop_fork(volume);
        if let Err(error) = self.confirm_arrival(engine, volume).await {
            tracing::debug!(%volume, "forgetting how a copy came that was deleted: {error}");
        }
        self.arrivals.is_over(volume);
    }
}

/// The arrivals of a node as the server of one core sees them.
#[derive(Clone)]
pub(in crate::node::real) struct NodeArrivals {
    pub(in crate::node::real) core: Rc<CoreNode>,
}

impl NodeArrivals {
    /// What is asked of an arrival that isn't under way on this core: of a volume that has come, perhaps long ago.
    async fn of_what_came(
        &self,
        arrival: u32,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        let ArrivalRequest::Settle {
            volume,
            confirm,
            forked,
            ..
        } = request
        else {
            return Err(NativeError::NotFound);
        };
        let core = &self.core;
        if let Some(on) = core.between.is_settled_on(volume, arrival) {
            return self
                .of_what_was_settled(on, (volume, arrival), confirm, forked)
                .await;
        }
        let place = core.names.place_of(volume);
        let Some((_, place)) = place.filter(|_| core.between.is_unconfirmed(volume)) else {
            return Ok(ArrivalReply::Settled(Settled::NotHere));
        };
        let at = core.native_addresses().get(place.core).copied();
        let at = at.ok_or(NativeError::Stopping)?;
        if confirm {
            let confirmed = core.ask(place.core, move |there| async move {
                there.confirm_arrival(place.engine, volume).await
            });
            match confirmed.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NativeError::Device),
                Err(_) => return Err(NativeError::Busy),
            }
        }
        if forked {
            core.is_a_fork(volume);
        }
        Ok(ArrivalReply::Settled(Settled::Arrived(at)))
    }

    /// What is asked about an arrival that somebody has settled: it has come, whatever became of the volume since. Who goes on in any case
    /// (`forked`) is told whether there still is one.
    async fn of_what_was_settled(
        &self,
        on: (usize, usize),
        (volume, number): (DvolId, u32),
        confirm: bool,
        forked: bool,
    ) -> Result<ArrivalReply, NativeError> {
        let core = &self.core;
        let place = core.names.place_of(volume).map(|(_, place)| place);
        let at = match (place, core.between.of(volume)) {
            (Some(place), _) => core.native_addresses().get(place.core).copied(),
            (None, Some(Elsewhere::At(at) | Elsewhere::Asked(at))) => Some(at),
            (None, None) => core.address(),
        };
        let at = at.ok_or(NativeError::Stopping)?;
        let is_anywhere = place.is_some() || core.between.of(volume).is_some();
        if confirm || forked && !is_anywhere {
            let (on, engine) = on;
            let forgotten = core.ask(on, move |there| async move {
                there.forget_settled(engine, volume, number).await
            });
            match forgotten.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NativeError::Device),
                Err(_) => return Err(NativeError::Busy),
            }
        }
        if forked && place.is_some() {
            core.is_a_fork(volume);
        }
        Ok(ArrivalReply::Settled(match forked && !is_anywhere {
            true => Settled::Never,
            false => Settled::Arrived(at),
        }))
    }
}

impl Arrivals for NodeArrivals {
    fn key(&self, arrival: u32, volume: Option<DvolId>) -> Option<Key> {
        let one = self.core.arrivals.find(arrival);
        let one = one.filter(|one| volume.is_none_or(|volume| volume == one.expected.id));
        match (one, volume) {
            (Some(one), _) => Some(one.key.clone()),
            (None, Some(volume)) => self.core.between.key(arrival, volume),
            (None, None) => None,
        }
    }

    async fn carry_out(
        &self,
        arrival: u32,
        attempt: u64,
        request: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        if self.core.is_stopping() {
            return Err(NativeError::Stopping);
        }
        match self.core.arrivals.find(arrival) {
            Some(one) => one.carry_out(&self.core, attempt, request).await,
            None => self.of_what_came(arrival, request).await,
        }
    }

    fn heard(&self, arrival: u32, ends: Ends) {
        if let Some(one) = self.core.arrivals.find(arrival) {
            one.from.set(ends.peer.map(|peer| peer.ip()));
        }
    }

    fn unknown(&self, device: DeviceId, volume: DvolId) -> Settled {
        let between = &self.core.between;
        // It has come by another arrival: that needn't be so.
        let may_be = between.is_unconfirmed(volume);
        match between.knows(device) && !may_be {
            true => Settled::Never,
            false => Settled::NotHere,
        }
    }

    fn audit(&self, arrival: u32, operation: Operation, client: &str, ends: Ends) {
        let from = Origin::of(ends);
        let line = self
            .core
            .access
            .refusal_line(from, self.core.platform.now());
        let Some(left_out) = line else {
            return;
        };
        let (from, on) = from.told();
        let (left_out, left_out_others) = left_out.told();
        // A wrong proof, or one for an arrival that isn't there.
        let (operation, rule) = (operation.name(), "wrong-warrant");
        tracing::info!(target: "audit", protocol = "native", arrival, operation, client, from, on, rule, left_out, left_out_others, "arrival refused");
    }
}
