//! Volumes that are on their way here, as people see them: they are in no list of volumes, and nobody else gets their names.

use std::rc::Rc;

use flagstone_device::transfer::Became;

use super::arrivals::OneArrival;
use crate::node::real::RealNode;
use crate::node::real::core::CoreNode;
use crate::node::real::errors::taken;
use crate::node::{ArrivingVolume, MoveInfo, MovePlace, MoveState, NodeError, NodeErrorKind};
use crate::output::duration;

impl CoreNode {
    /// Volumes that are on their way to this core, each with the number of its device.
    pub(in crate::node::real) fn arriving(&self) -> Vec<(usize, ArrivingVolume)> {
        let all = self.arrivals.all();
        all.iter().filter_map(|one| one.shown(self)).collect()
    }
}

/// Which of those that are on their way here.
#[derive(Clone)]
enum Which {
    /// The one of this name.
    Named(String),
    /// The one that was promised a place by this number, if nobody has begun to bring it.
    Promised(u32),
}

impl CoreNode {
    /// Ends the move of a volume that is on its way to this core, if there is that one: what has come goes, and its origin is told so when it asks.
    async fn end_arrival(&self, which: Which) -> Option<(Became, usize, ArrivingVolume)> {
        let all = self.arrivals.all();
        let is_it = |one: &Rc<OneArrival>, shown: &ArrivingVolume| match &which {
            Which::Named(name) => shown.volume == *name,
            Which::Promised(number) => one.is_promised_as(*number),
        };
        let found = all.iter().find_map(|one| {
            let (device, shown) = one.shown(self)?;
            is_it(one, &shown).then_some((one, device, shown))
        });
        let (one, device, shown) = found?;
        Some((one.give_up(self).await, device, shown))
    }
}

impl RealNode {
    /// Ends the move of a volume that is on its way here. `None`: there is none of this name.
    pub(in crate::node::real) async fn end_arrival(
        &self,
        name: &str,
        doing: &str,
    ) -> Result<Option<MoveInfo>, NodeError> {
        let ended = self.end_one(Which::Named(name.to_owned()), doing).await?;
        Ok(ended.map(ended_arrival))
    }

    /// Gives back a place that a volume was promised, which nobody has begun to bring.
    pub(in crate::node::real) async fn give_back(
        &self,
        number: u32,
    ) -> Result<ArrivingVolume, NodeError> {
        let doing = format!("giving back the place that arrival {number} was promised");
        let ended = self.end_one(Which::Promised(number), &doing).await?;
        ended.ok_or_else(|| {
            let found = "no such place is promised, or the volume is on its way";
            NodeError::new(NodeErrorKind::NotFound, &doing, found).next(
                "`flagstone node info` lists what arrives; `flagstone volume move NAME --cancel` ends that",
            )
        })
    }

    async fn end_one(
        &self,
        which: Which,
        doing: &str,
    ) -> Result<Option<ArrivingVolume>, NodeError> {
        for core in 0..self.remotes.len() {
            let wanted = which.clone();
            let ended = self.on_core(core, doing, move |core| async move {
                core.end_arrival(wanted).await
            });
            let Some((became, device, one)) = ended.await? else {
                continue;
            };
            let busy = |found: &str, next: &str| {
                Err(NodeError::new(NodeErrorKind::Busy, doing, found).next(next))
            };
            return match became {
                Became::Never => {
                    let (volume, volume_id, from) = (&one.volume, &one.id, &one.from);
                    tracing::info!(target: "audit", volume, volume_id, from, has_begun = one.has_begun, "arrival ended");
                    Ok(self.shown_arriving(vec![(device, one)]).pop())
                }
                Became::Arrived => busy(
                    "it has come in this moment",
                    "look at it: `flagstone volume show NAME`; to have it at the other node, move it there",
                ),
                Became::Arriving | Became::Unknown => busy(
                    "what has come of it can't be thrown away just now, as the device has failed",
                    "say it again; if that lasts, see what the log says of the device, and restart this node",
                ),
            };
        }
        Ok(None)
    }

    /// The same with the names of the devices.
    pub(in crate::node::real) fn shown_arriving(
        &self,
        arriving: Vec<(usize, ArrivingVolume)>,
    ) -> Vec<ArrivingVolume> {
        let named = |(device, one): (usize, ArrivingVolume)| ArrivingVolume {
            device: self.devices[device].name.clone(),
            ..one
        };
        arriving.into_iter().map(named).collect()
    }

    /// That a name is taken: by a volume, or by one that is on its way here.
    pub(in crate::node::real) async fn name_taken(&self, name: &str, doing: &str) -> NodeError {
        let by_arrival = self.taken_by_arrival(name, doing).await;
        by_arrival.unwrap_or_else(|| taken(name, doing))
    }

    /// The same if it is one that is on its way here.
    pub(in crate::node::real) async fn taken_by_arrival(
        &self,
        name: &str,
        doing: &str,
    ) -> Option<NodeError> {
        // Of a volume that is here no core has to be asked, which may take long.
        if self.names.find(name).is_some() {
            return None;
        }
        for core in 0..self.remotes.len() {
            let asked = self.on_core(core, doing, |core| async move { core.arriving() });
            let found = asked.await.ok()?.into_iter().map(|(_, one)| one);
            if let Some(one) = found.into_iter().find(|one| one.volume == name) {
                return Some(arrives(&one, doing));
            }
        }
        None
    }
}

/// As a move: of what is at the other node only its address is known here, if it was heard of.
fn ended_arrival(one: ArrivingVolume) -> MoveInfo {
    let place = |device, core, node| MovePlace { device, core, node };
    let from = place(String::new(), 0, Some(one.from.unwrap_or_default()));
    let to = place(one.device, one.core, None);
    MoveInfo {
        state: MoveState::Cancelled,
        ..MoveInfo::that_begins(&one.volume, from, to, 0)
    }
}

fn arrives(one: &ArrivingVolume, doing: &str) -> NodeError {
    let name = &one.volume;
    let from = match &one.from {
        Some(from) => format!(" ({from})"),
        None => String::new(),
    };
    let silent = duration(one.silent_s);
    let found = match (one.has_begun, &one.from) {
        (true, Some(_)) => format!(
            "a volume '{name}' is arriving from another node{from}, which was heard of {silent} ago, and the name is kept for it"
        ),
        (true, None) => format!(
            "a volume '{name}' is arriving from another node, which was not heard of since this one was started {silent} ago, and the name is kept for it"
        ),
        (false, _) => format!(
            "a volume '{name}' of another node was promised a place here {silent} ago, and the name is kept for it"
        ),
    };
    NodeError::new(NodeErrorKind::AlreadyExists, doing, found).next(format!(
        "choose another name, or wait until it has come, or end its move at the node that it comes from (`flagstone volume move {name} --cancel`); if that node stays \
         silent, the name is free in {}; to have it at once, end the move here, with the same command. `flagstone node info` lists what arrives",
        duration(one.ends_in_s)
    ))
}
