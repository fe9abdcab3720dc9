//! Volumes that are on their way here, as people see them: they are in no list of volumes, and nobody else gets their names.

use std::rc::Rc;

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

/// What came of ending the move of a volume that is on its way here.
enum Arrived {
    /// It is over, and what has come is gone.
    Over(usize, ArrivingVolume),
    /// It has come, or that isn't known.
    Perhaps,
}

impl CoreNode {
    /// Ends the move of a volume that is on its way to this core, if there is one of this name: what has come goes, and its origin is told so when it asks.
    async fn end_arrival(&self, name: &str) -> Option<Arrived> {
        let all = self.arrivals.all();
        let named = |one: &Rc<OneArrival>| {
            let shown = one.shown(self)?;
            (shown.1.volume == name).then(|| (one.clone(), shown))
        };
        let (one, (device, shown)) = all.iter().find_map(named)?;
        Some(match one.give_up(self).await {
            true => Arrived::Over(device, shown),
            false => Arrived::Perhaps,
        })
    }
}

impl RealNode {
    /// Ends the move of a volume that is on its way here. `None`: there is none of this name.
    pub(in crate::node::real) async fn end_arrival(
        &self,
        name: &str,
        doing: &str,
    ) -> Result<Option<MoveInfo>, NodeError> {
        for core in 0..self.remotes.len() {
            let wanted = name.to_owned();
            let ended = self.on_core(core, doing, move |core| async move {
                core.end_arrival(&wanted).await
            });
            match ended.await? {
                None => {}
                Some(Arrived::Perhaps) => {
                    let found = "it has come in this moment, or whether it has isn't known";
                    return Err(NodeError::new(NodeErrorKind::Busy, doing, found)
                        .next("look whether it is here: `flagstone volume list`"));
                }
                Some(Arrived::Over(device, one)) => {
                    let (volume_id, from) = (&one.id, &one.from);
                    tracing::info!(target: "audit", volume = name, volume_id, from, has_begun = one.has_begun, "arrival ended");
                    return Ok(Some(self.ended_arrival(device, one)));
                }
            }
        }
        Ok(None)
    }

    /// As a move: of what was at the other node only its address is known here.
    fn ended_arrival(&self, device: usize, one: ArrivingVolume) -> MoveInfo {
        let place = |device: String, core, node| MovePlace { device, core, node };
        let from = one.from.unwrap_or_default();
        MoveInfo {
            volume: one.volume,
            state: MoveState::Cancelled,
            waits: None,
            from: place(String::new(), 0, Some(from)),
            to: place(self.devices[device].name.clone(), one.core, None),
            phase: None,
            started_ns: 0,
            copied_bytes: 0,
            expected_bytes: 0,
            slowed_to_bytes: None,
            held_us: 0,
            limit_bytes: None,
            left_s: None,
            error: None,
            error_kind: None,
        }
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
