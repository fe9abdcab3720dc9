//! What people ask for: a place for a volume of another node, and a move to one.

use std::net::SocketAddr;

use flagstone_device::engine::DvolError;
use flagstone_device::transfer::Became;
use flagstone_types::{DeviceId, DvolId};
use flagstone_wire::proof::{KEY_BYTES, Key};

use super::Elsewhere;
use super::arrivals::{Expected, SILENCE_NS};
use super::leaving::{Departure, Promised};
use super::there::is_of_use;
use crate::name::check_name;
use crate::node::real::RealNode;
use crate::node::real::creation::Wants;
use crate::node::real::describe::wall_clock_ns;
use crate::node::real::errors::{no_such_volume, node_error};
use crate::node::real::moves::moving;
use crate::node::real::moving::Watched;
use crate::node::real::names::{Claim, Place};
use crate::node::real::slo::note_floor;
use crate::node::{
    Arrival, ArrivalKey, ArrivalSpec, MoveInfo, MovePlace, MoveSpec, MoveState, NodeError,
    NodeErrorKind, Slo, VolumeInfo,
};

/// A number of so many hexadecimal digits.
fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn invalid(doing: &str, found: &str) -> NodeError {
    NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("use `flagstone volume move --to`, which asks the other node for it")
}

/// Why a volume of another node was not promised a place, on the core.
enum NotPromised {
    /// It is coming already.
    Coming,
    /// The core has no more room for promises.
    TooMany,
    /// The engine or core is gone.
    Failed(DvolError),
}

impl RealNode {
    /// That there is no such volume here, and where it went if that is known.
    pub(in crate::node::real) fn no_volume(&self, name: &str, doing: &str) -> NodeError {
        match self.between.named(name) {
            Some((_, Elsewhere::At(address))) => {
                let found = format!(
                    "volume '{name}' was moved to another node, which serves it with the native protocol at {address}"
                );
                NodeError::new(NodeErrorKind::NotFound, doing, found).next(
                    "ask that node: `flagstone volume show NAME` there has its address for NBD, which has another port",
                )
            }
            Some((id, Elsewhere::Asked(address))) => {
                let last = match self.between.why_unanswered(id) {
                    Some(why) => format!("; it was asked in vain a moment ago: {why}"),
                    None => String::new(),
                };
                let found = format!(
                    "volume '{name}' was being moved to another node when this one ended, and that node ({address}) has not said yet \
                     whether it has come{last}"
                );
                NodeError::new(NodeErrorKind::Unavailable, doing, found)
                    .next("bring that node back: until it answers, the volume is served nowhere. If it never comes back: `flagstone volume move NAME --stay --force`")
            }
            None => no_such_volume(name, doing),
        }
    }

    /// What is known of the move of a volume to another node that nobody remembers any more, since this one was started after it or it is long ago: it is
    /// there, or that node is being asked. Not more: of how far it came nothing is written down.
    pub(in crate::node::real) fn one_that_went(&self, name: &str) -> Option<MoveInfo> {
        let (id, elsewhere) = self.between.named(name)?;
        let (state, address) = match elsewhere {
            Elsewhere::At(address) => (MoveState::Done, address),
            // Nobody is served, and why is an error.
            Elsewhere::Asked(_) if self.between.why_unanswered(id).is_some() => return None,
            Elsewhere::Asked(address) => (MoveState::Running, address),
        };
        let place = |node| MovePlace {
            device: String::new(),
            core: 0,
            node,
        };
        let at_ns = self.between.went_at_ns(id)?;
        let (from, to) = (place(None), place(Some(address.to_string())));
        Some(MoveInfo {
            state,
            ..MoveInfo::that_begins(name, from, to, at_ns)
        })
    }

    /// Refuses to move a volume that goes on at another node.
    pub(in crate::node::real) fn refuse_fork(
        &self,
        id: DvolId,
        doing: &str,
    ) -> Result<(), NodeError> {
        if !self.between.is_fork(id) {
            return Ok(());
        }
        let found = "it goes on at the node that it came from, where somebody has had it stay by force: this is another copy of it";
        Err(NodeError::new(NodeErrorKind::Refused, doing, found)
            .next("delete it here, once nothing of it is needed"))
    }

    /// Refuses to delete a volume or to move it on whose origin may still ask whether it has come.
    pub(in crate::node::real) fn refuse_unconfirmed(
        &self,
        id: DvolId,
        doing: &str,
    ) -> Result<(), NodeError> {
        match self.between.is_unconfirmed(id) && !self.between.is_fork(id) {
            true => {
                let found =
                    "it has just come from another node, which has not confirmed yet that it knows";
                Err(NodeError::new(NodeErrorKind::Busy, doing, found)
                    .next("try again; if that lasts, bring the other node back. If it never comes back: `flagstone volume move NAME --settled --force`"))
            }
            false => Ok(()),
        }
    }

    /// Promises a volume of another node a place here.
    pub(in crate::node::real) async fn promise(
        &self,
        spec: ArrivalSpec,
    ) -> Result<Arrival, NodeError> {
        let doing = format!("promising volume '{}' of another node a place", spec.volume);
        check_name(&spec.volume).map_err(|found| invalid(&doing, &found.to_string()))?;
        let id = digits(&spec.id).map(|bytes| DvolId(u128::from_be_bytes(bytes)));
        let id = id.filter(|id| *id != DvolId(0));
        let id =
            id.ok_or_else(|| invalid(&doing, "the volume's id is not 32 hexadecimal digits"))?;
        if self.native_tcp.is_empty() {
            let found = "this node doesn't serve the native protocol, by which volumes come";
            return Err(NodeError::new(NodeErrorKind::Refused, doing, found)
                .next("start it with `--native ADDR:PORT`, or `native` in the configuration"));
        }
        if self.is_tls_required {
            let found = "this node serves nobody without TLS, and nodes bring volumes without it";
            return Err(NodeError::new(NodeErrorKind::Refused, doing, found)
                .next("start it without `tls.required` until the volume has come"));
        }
        if let Some((name, _)) = self.names.place_of(id) {
            let found = format!("this node has that volume, as '{name}'");
            return Err(NodeError::new(NodeErrorKind::AlreadyExists, doing, found)
                .next("name another node; within a node say `--device` or `--core`"));
        }
        let named = spec.device.as_deref();
        let place = self.place_for(named, spec.core, Wants::bytes(0), &doing);
        let (core, device) = place.await?;
        self.make_way(id, &doing).await?;
        let mut floors = self.floors.lock().await;
        self.admit(
            &floors,
            device,
            Some(id.into()),
            &spec.slo,
            spec.oversubscribe,
            &doing,
        )?;
        let claimed = Place {
            core,
            engine: 0,
            id: DvolId(0),
        };
        let claim = self.names.claim(&spec.volume, claimed);
        let Some(claim) = claim else {
            return Err(self.name_taken(&spec.volume, &doing).await);
        };
        let (came, has_come) = tokio::sync::oneshot::channel();
        let promised = self.expect(id, &spec, (core, device), claim, came, &doing);
        let (number, key) = promised.await?;
        note_floor(&mut floors, id, device, &spec.slo);
        self.between.promised(id, number);
        drop(floors);
        let (floors, between) = (self.floors.clone(), self.between.clone());
        tokio::spawn(async move {
            let has_come = has_come.await.is_ok();
            let mut floors = floors.lock().await;
            // Not what a later arrival was promised.
            if between.promise_of(id) == Some(number) {
                between.unpromised(id);
                if !has_come {
                    floors.remove(&id.into());
                }
            }
        });
        let address = self.native_tcp.get(core).map(SocketAddr::to_string);
        let volume_id = id.to_string();
        tracing::info!(target: "audit", volume = spec.volume, volume_id, arrival = number, core, "arrival promised");
        Ok(Arrival {
            number,
            key: ArrivalKey(key.0.iter().map(|byte| format!("{byte:02x}")).collect()),
            device: self.devices[device].id.clone(),
            device_name: self.devices[device].name.clone(),
            core: u32::try_from(core).unwrap_or(u32::MAX),
            address: address.unwrap_or_default(),
            ends_in_s: SILENCE_NS / 1_000_000_000,
        })
    }

    /// Gives up an older promise of the same volume that nobody uses.
    async fn make_way(&self, id: DvolId, doing: &str) -> Result<(), NodeError> {
        for core in 0..self.remotes.len() {
            let is_free = self.on_core(core, doing, move |core| async move {
                let Some(one) = core.arrivals.of(id) else {
                    return true;
                };
                one.may_be_replaced(&core) && one.give_up(&core).await == Became::Never
            });
            if !is_free.await? {
                let found = "it is coming already, or was promised a place a moment ago";
                return Err(NodeError::new(NodeErrorKind::Busy, doing, found)
                    .next("see how far its move is at its node (`flagstone volume move NAME --status`), or try again in half a minute"));
            }
        }
        Ok(())
    }

    async fn expect(
        &self,
        id: DvolId,
        spec: &ArrivalSpec,
        (core, device): (usize, usize),
        claim: Claim,
        came: tokio::sync::oneshot::Sender<()>,
        doing: &str,
    ) -> Result<(u32, Key), NodeError> {
        let (name, slo) = (spec.volume.clone(), spec.slo);
        let promised = self.on_core(core, doing, move |core| async move {
            if core.arrivals.of(id).is_some() {
                return Err(NotPromised::Coming);
            }
            if core.arrivals.is_full() {
                return Err(NotPromised::TooMany);
            }
            let engine = core.engines.first_of(device);
            let engine = engine.ok_or(NotPromised::Failed(DvolError::NotFound))?;
            let expected = Expected {
                id,
                name,
                slo,
                engine,
                claim,
                came,
            };
            core.promise_arrival(expected).map_err(NotPromised::Failed)
        });
        promised.await?.map_err(|why| match why {
            NotPromised::Coming => {
                NodeError::new(NodeErrorKind::Busy, doing, "it is coming already")
                    .next("try again in half a minute")
            }
            NotPromised::TooMany => {
                let found =
                    "so many volumes were promised a place that there is room for no more promises";
                NodeError::new(NodeErrorKind::Busy, doing, found)
                    .next("try again once some have come")
            }
            NotPromised::Failed(error) => node_error(error, doing),
        })
    }

    /// A volume that could go to another node now: asked before that node promises it a place.
    pub(in crate::node::real) async fn may_leave(
        &self,
        name: String,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("moving volume '{name}'");
        let target = self.target_to_change(&name, &doing)?;
        self.refuse_striped(&target, &doing)?;
        self.refuse_fork(target.place.id, &doing)?;
        self.refuse_unconfirmed(target.place.id, &doing)?;
        self.refuse_waiting(target.place.id, &doing)?;
        self.refuse_stranded(target.place.id, &doing).await?;
        self.show(&name).await
    }

    /// Begins to move a volume to a place that another node has promised.
    pub(in crate::node::real) async fn start_departure(
        &self,
        name: &str,
        from: Place,
        device: usize,
        slo: Slo,
        spec: &MoveSpec,
        arrival: &Arrival,
    ) -> Result<MoveInfo, NodeError> {
        let doing = format!("moving volume '{name}'");
        if spec.device.is_some() || spec.core.is_some() {
            let found =
                "a device or core of this node beside the place that another one has promised";
            return Err(invalid(&doing, found));
        }
        let to = promised_of(arrival).map_err(|found| invalid(&doing, found))?;
        if self
            .devices
            .iter()
            .any(|device| device.id == arrival.device)
        {
            let found = "the place that was promised is on this node";
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("within a node say `--device` or `--core`"));
        }
        if !self.names.begin_moving(from.id) {
            return Err(moving(&doing));
        }
        self.check_still_at(from, &doing)?;
        let begun = self.begin_departure(name, from, device, slo, spec, arrival, to, &doing);
        begun.await.inspect_err(|_| self.names.end_moving(from.id))
    }

    #[allow(clippy::too_many_arguments)] // What was found out, each thing once.
    async fn begin_departure(
        &self,
        name: &str,
        from: Place,
        device: usize,
        slo: Slo,
        spec: &MoveSpec,
        arrival: &Arrival,
        to: Promised,
        doing: &str,
    ) -> Result<MoveInfo, NodeError> {
        self.refuse_stranded(from.id, doing).await?;
        let here = MovePlace {
            device: self.devices[device].name.clone(),
            core: u32::try_from(from.core).unwrap_or(u32::MAX),
            node: None,
        };
        let there = MovePlace {
            device: arrival.device_name.clone(),
            core: arrival.core,
            node: Some(arrival.address.clone()),
        };
        let info = MoveInfo {
            limit_bytes: spec.limit_bytes,
            ..MoveInfo::that_begins(name, here, there, wall_clock_ns())
        };
        let watched = Watched::new(spec.limit_bytes);
        let job = Departure {
            name: name.to_owned(),
            from,
            slo,
            watched: watched.clone(),
            to,
            has_begun: false,
        };
        let run = self.run_departure(job);
        self.on_core(from.core, doing, move |core| async move { run(&core) })
            .await?;
        self.moves.begun(from.id, &info, &watched);
        Ok(info)
    }

    /// Refuses a volume that clients of NBD have attached for whom this node could not be its client at the other one.
    async fn refuse_stranded(&self, id: DvolId, doing: &str) -> Result<(), NodeError> {
        let mut connections = 0;
        for core in 0..self.remotes.len() {
            connections += self
                .on_core(
                    core,
                    doing,
                    move |core| async move { core.attached_by_nbd(id) },
                )
                .await?;
        }
        let why = match self
            .access
            .record_of(id)
            .map(|tokens| is_of_use(&tokens, wall_clock_ns()))
        {
            Some(Ok(())) => return Ok(()),
            _ if connections == 0 => return Ok(()),
            Some(Err(why)) => why,
            None => "it has no token",
        };
        let found = format!(
            "{connections} NBD connections have it attached, and this node, which would pass on what they ask, could not open it there: {why}"
        );
        Err(NodeError::new(NodeErrorKind::Busy, doing, found)
            .next("detach it there, or make a token that may write and lift the volume's restrictions while it moves"))
    }
}

/// The place that another node has promised, from what it has said.
fn promised_of(arrival: &Arrival) -> Result<Promised, &'static str> {
    let key = digits::<KEY_BYTES>(&arrival.key.0);
    let key = key.ok_or("the arrival's key is not 64 hexadecimal digits")?;
    let device = digits(&arrival.device).map(|bytes| DeviceId(u128::from_be_bytes(bytes)));
    let device = device.ok_or("the id of the arrival's device is not 32 hexadecimal digits")?;
    let address: SocketAddr = arrival
        .address
        .parse()
        .map_err(|_| "the arrival's address is not ADDR:PORT")?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err("the arrival's address can't be connected to");
    }
    Ok(Promised {
        number: arrival.number,
        key: Key(key),
        device,
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_what_they_say_and_nothing_else_is() {
        assert_eq!(digits("00ff10"), Some([0, 0xff, 0x10]));
        for text in ["", "00ff1", "00ff1g", "+0ff10", "00ff100", "0\u{e4}f10"] {
            assert_eq!(digits::<3>(text), None, "{text}");
        }
    }

    #[test]
    fn a_promise_that_makes_no_sense_is_refused() {
        let good = Arrival {
            number: 1,
            key: ArrivalKey("ab".repeat(32)),
            device: "0".repeat(31) + "7",
            device_name: "main".to_owned(),
            core: 0,
            address: "10.0.0.2:4420".to_owned(),
            ends_in_s: 600,
        };
        let promised = promised_of(&good).expect("makes sense");
        assert_eq!((promised.device, promised.number), (DeviceId(7), 1));
        assert!(
            !format!("{good:?}").contains("abab"),
            "the key is no one's business"
        );
        let with = |change: &dyn Fn(&mut Arrival)| {
            let mut arrival = good.clone();
            change(&mut arrival);
            promised_of(&arrival).err()
        };
        for change in [
            &(|a: &mut Arrival| a.key.0.push('0')) as &dyn Fn(&mut Arrival),
            &|a| a.device.clear(),
            &|a| a.address = "here".to_owned(),
            &|a| a.address = "0.0.0.0:4420".to_owned(),
            &|a| a.address = "10.0.0.2:0".to_owned(),
        ] {
            assert!(with(change).is_some());
        }
    }
}
