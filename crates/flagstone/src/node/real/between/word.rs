//! What somebody says of a move in the place of a node that can't be asked: that a volume which is held stays, or that one which has come is this
//! node's.
//!
//! What each writes down, and why that is safe, is in `docs/decisions/2026-11-25-moves-between-nodes.md`, "A person's word".

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_device::engine::DvolError;
use flagstone_moves::away::{Ended, ask_of_fork, epoch_above};
use flagstone_platform::Platform;
use flagstone_types::{DvolId, Epoch};

use super::Elsewhere;
use super::leaving::Promised;
use super::record::{Kind, MoveRecord};
use crate::node::real::RealNode;
use crate::node::real::core::CoreNode;
use crate::node::real::errors::node_error;
use crate::node::{
    ForcedMove, ForcedOutcome, ForkState, MoveInfo, MoveState, MoveWord, NodeError, NodeErrorKind,
};

/// Before the other node is asked again whether it has a copy, in nanoseconds.
const FORK_PAUSE_NS: u64 = 5_000_000_000;

/// What became of a volume of which another node was asked whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It stays by somebody's word.
    Forced(Epoch),
    /// It had not gone.
    Stayed,
    /// It is there.
    Went(SocketAddr),
    /// It can't be written down, or the node stops.
    Failed(DvolError),
    /// It has not gone, and the node stops: the next start goes on with its move.
    CutOff,
}

/// What that is of a move.
pub(super) fn came_of(ended: &Ended) -> Came {
    match *ended {
        Ended::Forced(epoch) => Came::Forced(epoch),
        Ended::Stayed(_) => Came::Stayed,
        Ended::Went(at) => Came::Went(at),
        Ended::Unknown(error) => Came::Failed(error),
        Ended::CutOff(_) => Came::CutOff,
    }
}

/// Whoever waits for what becomes of a volume by his word.
type Waiting = tokio::sync::oneshot::Sender<Came>;

/// A volume that is held, since another node was asked in vain whose it is.
#[derive(Default)]
struct Held {
    why: String,
    /// Somebody has said that it stays.
    is_forced: bool,
    waiting: Option<Waiting>,
}

/// Volumes of a core that are held, since another node was asked in vain whose they are.
#[derive(Default)]
pub(in crate::node::real) struct Asking {
    held: RefCell<BTreeMap<DvolId, Held>>,
}

/// Why a volume doesn't stay by somebody's word.
#[derive(Clone, PartialEq, Eq, Debug)]
enum NotSaid {
    /// Nobody was asked in vain whose it is.
    NotHeld,
    /// Somebody has said so already.
    Said,
    /// It would have to go on in an epoch that there isn't.
    NoEpoch,
}

impl Asking {
    /// The other node was asked in vain. Returns whether that is new.
    pub(super) fn in_vain(&self, volume: DvolId, why: &str) -> bool {
        let mut held = self.held.borrow_mut();
        let is_new = !held.contains_key(&volume);
        why.clone_into(&mut held.entry(volume).or_default().why);
        is_new
    }

    /// Whether somebody has said that it stays.
    pub(super) fn is_forced(&self, volume: DvolId) -> bool {
        let held = self.held.borrow();
        held.get(&volume).is_some_and(|held| held.is_forced)
    }

    /// Somebody says so. Returns why the other node was asked in vain.
    fn say(&self, volume: DvolId, waiting: Waiting) -> Result<String, NotSaid> {
        let mut held = self.held.borrow_mut();
        let held = held.get_mut(&volume).ok_or(NotSaid::NotHeld)?;
        if held.is_forced {
            return Err(NotSaid::Said);
        }
        held.is_forced = true;
        held.waiting = Some(waiting);
        Ok(held.why.clone())
    }

    /// What became of it is known.
    pub(super) fn is_known(&self, volume: DvolId, came: Came) {
        let held = self.held.borrow_mut().remove(&volume);
        if let Some(waiting) = held.and_then(|held| held.waiting) {
            // Whoever said it may be gone.
            let _ = waiting.send(came);
        }
    }
}

impl CoreNode {
    /// A volume goes on here by somebody's word, and is served. The other node is told, and asked whether it has it, too, until it has not.
    pub(super) fn go_on_forced(
        self: &Rc<Self>,
        engine: usize,
        name: String,
        volume: DvolId,
        to: &Promised,
        epoch: Epoch,
    ) {
        self.between
            .put_fork(volume, Some(to.address), ForkState::Unknown);
        tracing::warn!(
            volume = name,
            node = %to.address,
            epoch = epoch.0,
            "it goes on here by force; whether the node that it was moving to has it, too, isn't known before that node answers"
        );
        let (core, to) = (self.clone(), to.clone());
        self.platform
            .spawn(async move { core.watch_fork(engine, name, volume, to).await });
    }

    async fn watch_fork(self: Rc<Self>, engine: usize, name: String, volume: DvolId, to: Promised) {
        let client = self.client_of(to.address);
        let arrival = client.arrival(to.address, to.number, to.key.clone());
        let question = to.question(volume);
        while !self.is_stopping() {
            // On whatever core and device of this node: the other copy is one of it there, too.
            let is_here = self.names.place_of(volume).is_some();
            let asked = match is_here {
                true => ask_of_fork(&self.platform, &arrival, question).await,
                // It was deleted, or has gone on.
                false => Some(false),
            };
            match asked {
                Some(false) => {
                    // If its journal is at another core now, the next start asks once more.
                    self.forget_forced(engine, volume, to.number).await;
                    if is_here {
                        let node = to.address;
                        tracing::info!(volume = name, %node, "the node that it was moving to has no copy of it");
                    }
                    self.between.drop_fork(volume);
                    return;
                }
                Some(true) => {
                    let there = Some(to.address);
                    if self.between.put_fork(volume, there, ForkState::There) {
                        tracing::error!(
                            volume = name,
                            node = %to.address,
                            "it goes on here by force, and the node that it was moving to has it, too: look whether anything of that copy is needed, and delete it \
                             there: `flagstone volume delete {name} --with-snapshots`"
                        );
                    }
                }
                None => {}
            }
            self.platform.sleep_ns(FORK_PAUSE_NS).await;
        }
    }

    /// Nothing is left of a word, unless the volume has been moved again since. Where that can't be written down, the next start asks once more.
    async fn forget_forced(&self, engine: usize, volume: DvolId, number: u32) {
        let Some(owned) = self.engines.get(engine) else {
            return;
        };
        let store = &owned.moves;
        let _turn = store.turn().await;
        let route = MoveRecord::route_of(volume);
        let Ok(Some(found)) = store.record(route).await else {
            return;
        };
        if (found.kind, found.number) == (Kind::Forced, number) {
            let _ = store.forget(route).await;
        }
    }

    /// Somebody says that a volume which is held stays.
    fn say_stay(
        &self,
        engine: usize,
        volume: DvolId,
        waiting: Waiting,
    ) -> Result<Result<String, NotSaid>, DvolError> {
        let engine = self.engine(engine).ok_or(DvolError::NotFound)?;
        let mut found = None;
        engine.visit_dvols(|handle, _| {
            if handle.id == volume {
                found = Some(handle);
            }
        });
        let epoch = engine.epoch_of(found.ok_or(DvolError::NotFound)?)?;
        Ok(match epoch_above(epoch) {
            Some(_) => self.asking.say(volume, waiting),
            None => Err(NotSaid::NoEpoch),
        })
    }
}

impl RealNode {
    /// Ends by somebody's word what another node would have to end.
    pub(in crate::node::real) async fn force(
        &self,
        name: String,
        word: MoveWord,
    ) -> Result<ForcedMove, NodeError> {
        match word {
            MoveWord::Stay => self.force_stay(&name).await,
            MoveWord::Settled => self.force_settled(&name).await,
        }
    }

    async fn force_stay(&self, name: &str) -> Result<ForcedMove, NodeError> {
        let doing = format!("having volume '{name}' stay by force");
        let place = self.names.find(name);
        let at_start = || match self.between.named(name) {
            Some((id, Elsewhere::Asked(_))) => Some((self.between.is_noted_by(id)?, id)),
            _ => None,
        };
        let found = place
            .map(|place| ((place.core, place.engine), place.id))
            .or_else(at_start);
        let ((core, engine), id) = found.ok_or_else(|| self.no_volume(name, &doing))?;
        let (waiting, came) = tokio::sync::oneshot::channel();
        let said = self.on_core(core, &doing, move |core| async move {
            core.say_stay(engine, id, waiting)
        });
        let said = said.await?.map_err(|error| node_error(error, &doing))?;
        let why = said.map_err(|why| self.not_said(why, id, &doing))?;
        let came = came.await.map_err(|_| stops(&doing))?;
        let (outcome, epoch) = match came {
            Came::Forced(epoch) => (ForcedOutcome::Forced, Some(epoch.0)),
            Came::Stayed | Came::CutOff => (ForcedOutcome::Stayed, None),
            Came::Went(_) => (ForcedOutcome::Went, None),
            Came::Failed(_) if self.stopping.load(std::sync::atomic::Ordering::Acquire) => {
                return Err(stops(&doing));
            }
            Came::Failed(error) => {
                return Err(node_error(error, &doing)
                    .next("restart the node: it then goes on with what was written down"));
            }
        };
        let node = match (came, self.between.of(id)) {
            // As it is reached.
            (Came::Went(_), Some(Elsewhere::At(at))) | (Came::Went(at), _) => Some(at.to_string()),
            _ => self.between.fork_of(id).and_then(|fork| fork.node),
        };
        let what = match outcome {
            ForcedOutcome::Forced => "volume stays by force",
            _ => "volume was to stay by force, and the other node has answered",
        };
        let (volume_id, outcome_name) = (id.to_string(), outcome.name());
        tracing::info!(target: "audit", volume = name, volume_id, outcome = outcome_name, node, epoch, asked_in_vain = why, "{what}");
        Ok(ForcedMove {
            volume: name.to_owned(),
            outcome,
            node,
            epoch,
        })
    }

    fn not_said(&self, why: NotSaid, id: DvolId, doing: &str) -> NodeError {
        let error = |kind, found: &str| NodeError::new(kind, doing, found);
        match why {
            NotSaid::Said => error(NodeErrorKind::Busy, "somebody has said so just now")
                .next("see what came of it: `flagstone volume show NAME`"),
            NotSaid::NoEpoch => error(
                NodeErrorKind::Refused,
                "its epoch would have to be raised by more than there is up to 2^20 - 1",
            )
            .next("bring the other node back, or restore what it had into a new volume"),
            NotSaid::NotHeld => match self.moves.last(id) {
                Some(MoveInfo {
                    state: MoveState::Unknown,
                    error: trouble,
                    ..
                }) => error(
                    NodeErrorKind::Busy,
                    &trouble.unwrap_or_else(|| "a device has failed".to_owned()),
                )
                .next("restart this node: it asks the other one then, and if that doesn't answer, say this again"),
                _ if self.names.is_moving(id) => error(
                    NodeErrorKind::Busy,
                    "it is being moved, and no other node was asked in vain whose it is",
                )
                .next(
                    "wait (`flagstone volume move NAME --status`), or end the move (`--cancel`): this is for a volume that is held because the other node \
                     can't be asked",
                ),
                _ if self.names.place_of(id).is_some() => error(
                    NodeErrorKind::Refused,
                    "it is not being moved: it is here, and is served",
                )
                .next("there is nothing to force"),
                _ => error(
                    NodeErrorKind::Busy,
                    "the other node is being asked whose it is, and may still answer",
                )
                .next("try again in some seconds"),
            },
        }
    }

    async fn force_settled(&self, name: &str) -> Result<ForcedMove, NodeError> {
        let doing = format!("settling by force that volume '{name}' has come");
        let target = self.target(name, &doing)?;
        let (id, engine) = (target.place.id, target.place.engine);
        if !self.between.is_unconfirmed(id) {
            let found = "there is no other node that has to confirm that it has come";
            return Err(NodeError::new(NodeErrorKind::Refused, doing, found)
                .next("it can be deleted and moved as it is"));
        }
        let settled = self.on_core(target.place.core, &doing, move |core| async move {
            core.settle_arrival(engine, id).await
        });
        settled.await?.map_err(|error| node_error(error, &doing))?;
        let (volume_id, outcome) = (id.to_string(), ForcedOutcome::Settled.name());
        tracing::info!(target: "audit", volume = name, volume_id, outcome, "volume settled by force, though its old node has not confirmed");
        Ok(ForcedMove {
            volume: name.to_owned(),
            outcome: ForcedOutcome::Settled,
            node: None,
            epoch: None,
        })
    }
}

fn stops(doing: &str) -> NodeError {
    NodeError::new(NodeErrorKind::Unavailable, doing, "the node is stopping")
        .next("start it, and see with `flagstone volume show` what came of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_for_a_volume_that_is_held_and_is_said_once() {
        let asking = Asking::default();
        let said = || {
            let (waiting, came) = tokio::sync::oneshot::channel();
            (asking.say(DvolId(1), waiting), came)
        };
        assert_eq!(said().0, Err(NotSaid::NotHeld));
        assert!(asking.in_vain(DvolId(1), "no connection"));
        assert!(!asking.in_vain(DvolId(1), "no answer"));
        assert!(!asking.is_forced(DvolId(1)));
        let (first, mut came) = said();
        assert_eq!(first, Ok("no answer".to_owned()));
        assert!(asking.is_forced(DvolId(1)));
        assert!(!asking.is_forced(DvolId(2)));
        asking.in_vain(DvolId(1), "no answer");
        assert_eq!(said().0, Err(NotSaid::Said));
        asking.is_known(DvolId(1), Came::Forced(Epoch(7)));
        assert_eq!(came.try_recv(), Ok(Came::Forced(Epoch(7))));
        assert_eq!(said().0, Err(NotSaid::NotHeld), "it goes on");
        asking.is_known(DvolId(1), Came::Stayed);
    }
}
