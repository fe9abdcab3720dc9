//! Moves that were cut off and wait for a device that is not part of the node.

use std::sync::Arc;

use flagstone_types::{DeviceId, DvolId};

use super::{Moves, OneMove, RealNode, State, Target, Waiting, Watched, count, moving};
use crate::node::{MoveInfo, MovePlace, NodeError, NodeErrorKind};

impl Moves {
    /// What the move of a volume waits for, if it does.
    pub(super) fn waits(&self, id: DvolId) -> Option<(Arc<Watched>, u128)> {
        let moves = self.lock();
        let one = moves.get(&id).filter(|one| one.is_waiting())?;
        Some((one.watched.clone(), one.to_device))
    }

    /// Those that wait, with the ids of their volumes.
    fn all_waiting(&self) -> Vec<(DvolId, MoveInfo)> {
        let moves = self.lock();
        let waiting = moves.iter().filter(|(_, one)| one.is_waiting());
        waiting.map(|(id, one)| (*id, one.now())).collect()
    }

    /// One waits for this device.
    fn waiting(&self, id: DvolId, info: MoveInfo, to_device: u128) {
        let one = OneMove {
            info,
            watched: Watched::waiting(),
            to_device,
        };
        self.put(id, one);
    }
}

impl OneMove {
    /// What it waits for, and what to do.
    pub(super) fn waits_words(&self) -> String {
        format!(
            "it was cut off, and waits for device {}, which is not part of this node now: start the node with that device, and the move goes on; or end \
             it (`flagstone volume move NAME --cancel`)",
            DeviceId(self.to_device),
        )
    }
}

impl RealNode {
    pub(super) fn wait_for_device(&self, was_on: Option<usize>, one: Waiting) {
        let Some(was_on) = was_on else {
            return;
        };
        let (volume, device) = (&one.name, DeviceId(one.to_device).to_string());
        tracing::warn!(
            volume,
            device,
            "its move was cut off, and waits for a device that is not part of this node now: with that device the next start goes on; or end it \
             (`flagstone volume move {volume} --cancel`)"
        );
        let info = self.info(volume, (was_on, one.at), (was_on, one.at));
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
                let found = format!(
                    "a move of it that was cut off waits for device {}, which is not part of this node now",
                    DeviceId(device)
                );
                Err(NodeError::new(NodeErrorKind::Busy, doing, found).next(
                    "start the node with that device, and that move goes on; or end it first (`flagstone volume move NAME --cancel`)",
                ))
            }
        }
    }

    /// What is to be said of the moves that wait.
    pub(in crate::node::real) fn waiting_notices(&self) -> Vec<String> {
        let waiting = self.moves.all_waiting().into_iter();
        waiting
            .filter_map(|(id, info)| {
                let name = self.names.name_of(id)?;
                Some(format!(
                    "the move of volume '{name}' was cut off, and waits for device {}, which is not part of this node now: with that device the next start \
                     goes on; or end it (`flagstone volume move {name} --cancel`)",
                    info.to.device
                ))
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
