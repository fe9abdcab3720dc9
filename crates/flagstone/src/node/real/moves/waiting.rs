//! Moves that were cut off and wait: for a device that is not part of the node, or for another node.

use std::sync::Arc;

use flagstone_types::{DeviceId, DvolId};

use super::{Moves, OneMove, RealNode, Seen, State, Target, Waiting, Watched, count, moving};
use crate::node::{MoveInfo, MovePlace, MoveWait, MoveWaitsFor, NodeError, NodeErrorKind};

impl Moves {
    /// What the move of a volume waits for, if it does.
    pub(super) fn waits(&self, id: DvolId) -> Option<(Arc<Watched>, u128)> {
        let moves = self.lock();
        let watched = &moves.get(&id)?.watched;
        match watched.seen().state {
            State::Waiting(device) => Some((watched.clone(), device)),
            _ => None,
        }
    }

    /// Those that wait, by the ids of their volumes, and of the devices.
    fn all_waiting(&self) -> Vec<(DvolId, u128)> {
        let moves = self.lock();
        let waiting = moves
            .iter()
            .filter_map(|(id, one)| match one.watched.seen().state {
                State::Waiting(device) => Some((*id, device)),
                _ => None,
            });
        waiting.collect()
    }

    /// One waits for this device.
    fn waiting(&self, id: DvolId, info: MoveInfo, to_device: u128) {
        let one = OneMove {
            info,
            watched: Watched::waiting(to_device),
        };
        self.put(id, one);
    }

    /// The volume is gone: nobody ends its move any more, if that waits.
    pub(in crate::node::real) fn deleted(&self, id: DvolId) {
        let mut moves = self.lock();
        if moves.get(&id).is_some_and(OneMove::is_waiting) {
            moves.remove(&id);
        }
    }
}

/// What a move waits for, as the API has it. What waits for a device does so since a start, which this is the time of.
pub(super) fn shown(seen: &Seen, started_ns: u64) -> Option<MoveWait> {
    match (seen.state, seen.held.or(seen.away)) {
        (State::Waiting(_), _) => Some(MoveWait {
            what: MoveWaitsFor::Device,
            since_ns: started_ns,
            attempts: 0,
        }),
        (State::Running, Some(away)) => Some(MoveWait {
            what: MoveWaitsFor::Node,
            since_ns: away.since_ns,
            attempts: away.attempts,
        }),
        _ => None,
    }
}

/// What a move waits for.
fn waits(device: u128) -> String {
    format!(
        "was cut off, and waits for device {}, which is not part of this node now",
        DeviceId(device)
    )
}

/// What to do about that.
fn advice(volume: &str) -> String {
    format!(
        "start the node with that device, and the move goes on; or end it (`flagstone volume move {volume} --cancel`)"
    )
}

/// Both, of one move.
pub(super) fn words(device: u128) -> String {
    format!("it {}: {}", waits(device), advice("NAME"))
}

impl RealNode {
    pub(super) fn wait_for_device(&self, was_on: Option<usize>, one: Waiting) {
        let Some(was_on) = was_on else {
            return;
        };
        let (volume, device) = (&one.name, DeviceId(one.to_device).to_string());
        let info = self.move_info(volume, (was_on, one.at), (was_on, one.at));
        let to = MovePlace {
            device,
            core: 0,
            node: None,
        };
        let info = MoveInfo { to, ..info };
        self.moves.waiting(one.at.id, info, one.to_device);
    }

    /// Refuses a volume whose move waits for a device: another move would end that without a word.
    pub(in crate::node::real) fn refuse_waiting(
        &self,
        id: DvolId,
        doing: &str,
    ) -> Result<(), NodeError> {
        match self.moves.waits(id) {
            None => Ok(()),
            Some((_, device)) => {
                let found = format!("a move of it {}", waits(device));
                let next = advice("NAME");
                Err(NodeError::new(NodeErrorKind::Busy, doing, found).next(next))
            }
        }
    }

    /// What is to be said of the moves that wait.
    pub(in crate::node::real) fn waiting_notices(&self) -> Vec<String> {
        let waiting = self.moves.all_waiting().into_iter();
        waiting
            .filter_map(|(id, device)| {
                let name = self.names.name_of(id)?;
                let (waits, advice) = (waits(device), advice(&name));
                Some(format!("the move of volume '{name}' {waits}: {advice}"))
            })
            .collect()
    }

    /// Ends a move that waits for a device: durably, so the copy that is on it goes when it comes back.
    pub(super) async fn end_waiting(&self, name: &str, doing: &str) -> Result<(), NodeError> {
        let target = self.target_to_change(name, doing)?;
        let place = target.place;
        if !self.names.begin_moving(place.id) {
            return Err(moving(doing));
        }
        let ended = self.end_waiting_of(&target, doing).await;
        self.names.end_moving(place.id);
        ended
    }

    /// The same of a volume that nobody else moves meanwhile.
    async fn end_waiting_of(&self, target: &Target, doing: &str) -> Result<(), NodeError> {
        let (place, name) = (target.place, target.name.clone());
        let Some((watched, device)) = self.moves.waits(place.id) else {
            return Ok(());
        };
        self.on_volume(target, doing, move |core, _| async move {
            core.end_going(place, &name, device).await
        })
        .await?;
        let volume = &target.name;
        tracing::info!(volume, "its move, which waited for a device, was cancelled");
        watched.end(State::Cancelled);
        count(&self.moves.ended, &watched);
        Ok(())
    }
}
