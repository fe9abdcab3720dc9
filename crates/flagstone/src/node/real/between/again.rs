//! What was on its way between nodes when this one ended, and goes on: volumes that go, and volumes that come.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::transfer::NewDvol;
use flagstone_platform::Platform;
use flagstone_types::DvolId;

use super::arrivals::Expected;
use super::found::ComesAgain;
use super::leaving::{Departure, Promised};
use crate::node::real::RealNode;
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::core::CoreNode;
use crate::node::real::moves::count;
use crate::node::real::moving::left::Departing;
use crate::node::real::moving::{State, Watched};
use crate::node::real::slo::note_floor;
use crate::node::{MoveInfo, MovePlace, Slo};

/// A volume that is waited for since a start, and isn't counted yet among those that were promised something.
pub(in crate::node::real) struct ExpectedAgain {
    volume: DvolId,
    /// The arrival.
    number: u32,
    engine: usize,
    slo: Slo,
    /// Told when it has come, dropped when it won't.
    has_come: tokio::sync::oneshot::Receiver<()>,
}

impl CoreNode {
    /// Waits for the origins of what was on its way here. Before anybody is served: whoever asks for what isn't known is told that it never was.
    pub(in crate::node::real) fn begin_expecting_again(self: &Rc<Self>) {
        for one in self.comes_again.take() {
            self.expect_again(one);
        }
    }

    fn expect_again(self: &Rc<Self>, one: ComesAgain) {
        let (record, engine) = (one.record, one.engine);
        let slo = VolumeAttributes::decode(&record.attributes).slo;
        let (volume, name) = (record.volume, record.name.clone());
        let copy = one.copy.and_then(|handle| {
            let info = self.engine(engine)?.dvol_with(volume, &name)?;
            let new = NewDvol {
                id: volume,
                name: name.clone(),
                reserved_bytes: info.reserved_bytes,
                attributes: record.attributes,
            };
            Some((new, handle))
        });
        let (came, has_come) = tokio::sync::oneshot::channel();
        let expected = Expected {
            id: volume,
            name,
            slo,
            engine,
            claim: one.claim,
            came,
        };
        let has_copy = copy.is_some();
        let number = record.number;
        match self.expect_arrival(expected, (number, record.key), Some(copy)) {
            Ok(()) => {
                tracing::info!(
                    volume = record.name,
                    has_copy,
                    "it was coming from another node when this one ended, and waits for that to go on"
                );
                self.expected_again.borrow_mut().push(ExpectedAgain {
                    volume,
                    number,
                    engine,
                    slo,
                    has_come,
                });
            }
            Err(error) => tracing::warn!(
                volume = record.name,
                "it was coming from another node when this one ended, and that can't go on: {error}"
            ),
        }
    }
}

impl RealNode {
    /// What a core does to move a volume to another node, and to count that.
    pub(super) fn run_departure(
        &self,
        job: Departure,
    ) -> impl FnOnce(&Rc<CoreNode>) + Send + 'static {
        let (ended, floors) = (self.moves.ended(), Arc::clone(&self.floors));
        let between = self.between.clone();
        move |core| {
            let (core, platform) = (core.clone(), core.platform.clone());
            platform.spawn(async move {
                let (id, watched) = (job.from.id, job.watched.clone());
                let state = core.send_volume(job).await;
                count(&ended, &watched);
                let mut floors = floors.lock().await;
                // It may have been promised a place for its way back.
                if state == State::Done && between.promise_of(id).is_none() {
                    floors.remove(&id.into());
                }
            });
        }
    }

    /// Goes on with a move to another node that was cut off when this one ended.
    pub(in crate::node::real) fn go_on_departing(&self, was_on: Option<usize>, one: Departing) {
        let (id, core) = (one.from.id, one.from.core);
        let (Some(was_on), Some(to)) = (was_on, Promised::of(&one.record)) else {
            self.names.end_moving(id);
            return;
        };
        let limit_bytes = Some(one.record.limit_bytes).filter(|limit| *limit > 0);
        let watched = Watched::new(limit_bytes);
        let here = (was_on, one.from);
        let info = MoveInfo {
            // Of the device there no more is known.
            to: MovePlace {
                device: to.device.to_string(),
                core: 0,
                node: Some(to.address.to_string()),
            },
            limit_bytes,
            ..self.move_info(&one.name, here, here)
        };
        let job = Departure {
            name: one.name,
            from: one.from,
            slo: one.slo,
            watched: watched.clone(),
            to,
            has_begun: true,
        };
        self.moves.begun(id, &info, &watched);
        self.moves.resumed();
        let run = self.run_departure(job);
        self.have_go_on(core, id, &info.volume, &watched, run);
    }

    /// Counts what volumes were promised that were on their way here.
    pub(in crate::node::real) fn count_expected_again(&self) {
        for core in 0..self.remotes.len() {
            let (floors, between) = (self.floors.clone(), self.between.clone());
            let counted = self.send(core, move |core| {
                for one in core.expected_again.take() {
                    let owned = core.engines.get(one.engine);
                    let Some(device) = owned.map(|owned| owned.device) else {
                        continue;
                    };
                    let (floors, between) = (floors.clone(), between.clone());
                    core.platform.spawn(async move {
                        let id = one.volume;
                        note_floor(&mut *floors.lock().await, id, device, &one.slo);
                        between.promised(id, one.number);
                        let has_come = one.has_come.await.is_ok();
                        let mut floors = floors.lock().await;
                        // Not what a later arrival was promised.
                        if between.promise_of(id) == Some(one.number) {
                            between.unpromised(id);
                            if !has_come {
                                floors.remove(&id.into());
                            }
                        }
                    });
                }
            });
            if let Err(refused) = counted {
                tracing::warn!(
                    core,
                    "counting what was promised to volumes that come: {refused}"
                );
            }
        }
    }
}
