//! Where a volume goes: the target of a move within the node, on whatever core that is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use flagstone_device::engine::{Attributes, DvolError, Engine, Handle, Stability, join_few};
use flagstone_device::transfer::{
    Content, DvolTarget, NewDvol, Point, Resumed, Run, Snapshot, Target,
};
use flagstone_platform::locks::Mutex;
use flagstone_platform::sync::Share;
use flagstone_platform::{Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_sched::Want;

use super::{Copier, Haste, Job, MoveMarks, PAUSE_NS, TRIES_MAX};
use crate::node::MovePoint;
use crate::node::real::access::{Record, TokenStore};
use crate::node::real::attributes::{Receiving, VolumeAttributes};
use crate::node::real::core::{CoreNode, Unasked};

/// Bytes that are copied from one point to the next: about what a move that was cut off copies once more.
pub(in crate::node::real) const POINT_AFTER_BYTES: u64 = 128 << 20;

/// A volume on its way to this core.
pub(in crate::node::real) struct Arriving {
    /// The journal that it comes to.
    at: usize,
    target: DvolTarget<UringPlatform, MoveMarks>,
    copier: Copier,
}

impl Arriving {
    /// The journal that it comes to.
    pub(in crate::node::real) fn at(&self) -> usize {
        self.at
    }
}

/// Whether it still is a copy that nobody has taken up: not if it has arrived, or was thrown away.
fn is_copy(engine: &Engine<UringPlatform>, left: Handle) -> bool {
    engine.attributes_of(left).is_ok_and(|attributes| {
        let receiving = VolumeAttributes::decode(&attributes).receiving;
        matches!(receiving, Some(Receiving::Moved { .. }))
    })
}

/// Throws away what an earlier move has left, if this one comes to nothing before it has met it. One that it has met, and that is still there, was left
/// on purpose: whether it has arrived isn't known.
pub(super) async fn throw_away(core: &CoreNode, job: &Job) -> Result<bool, DvolError> {
    let there = There {
        core,
        job,
        attributes: [0; _],
        reserved_bytes: 0,
        held_since: &Cell::new(None),
        tokens: RefCell::default(),
    };
    let id = job.from.id;
    let is_met = there.ask(move |core| async move { Ok(core.arriving_of(id).is_some()) });
    match is_met.await? {
        true => Ok(false),
        false => there.abandon().await,
    }
}

/// The target, on whatever core it is.
pub(super) struct There<'a> {
    pub(super) core: &'a CoreNode,
    pub(super) job: &'a Job,
    pub(super) attributes: Attributes,
    pub(super) reserved_bytes: u64,
    /// Since when changes are held.
    pub(super) held_since: &'a Cell<Option<Time>>,
    /// What its tokens are, once nothing of them changes any more.
    pub(super) tokens: RefCell<Option<Arc<Record>>>,
}

impl There<'_> {
    fn haste(&self) -> Haste {
        self.job.watched.haste(self.held_since.get().is_some())
    }

    /// Whether it goes to another core of the device on which it is.
    fn is_same_device(&self) -> bool {
        let from = self.core.engines.get(self.job.from.engine);
        from.is_some_and(|owned| owned.engine.superblock().device_id.0 == self.job.to_device)
    }

    /// Asks the core that it is to be on. What it does has to be the same each time it is asked.
    async fn ask<R, F>(
        &self,
        work: impl Fn(Rc<CoreNode>) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        for _ in 0..TRIES_MAX {
            match self.core.ask(self.job.to.core, work.clone()).await {
                Ok(done) => return done,
                Err(Unasked::Busy) => self.core.platform.sleep_ns(PAUSE_NS).await,
                Err(Unasked::Stopped) => break,
            }
        }
        Err(DvolError::Stopping)
    }

    async fn with<R, F>(
        &self,
        work: impl Fn(Rc<Arriving>) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        let id = self.job.from.id;
        self.ask(move |core| {
            let (arriving, work) = (core.arriving_of(id), work.clone());
            async move { work(arriving.ok_or(DvolError::NotFound)?).await }
        })
        .await
    }

    /// Throws away what there is. Returns whether there was a copy that is gone now, durably: not if it has arrived.
    pub(super) async fn abandon(&self) -> Result<bool, DvolError> {
        let (id, engine, left) = (self.job.from.id, self.job.to.engine, self.job.left);
        self.ask(move |core| async move {
            let arriving = core.take_arriving(id);
            let owned = core.owned(engine)?;
            // First of all, so that no start goes on with it.
            match (arriving, left) {
                (Some(arriving), _) => arriving.target.abandon().await?,
                (None, Some(left)) if is_copy(&owned.engine, left) => {
                    owned.engine.delete(left, true).await?;
                }
                _ => return Ok(false),
            }
            let store = &owned.tokens;
            let _turn = store.turn().await;
            store.forget(id).await?;
            Ok(true)
        })
        .await
    }
}

impl There<'_> {
    /// Has the other core take a volume, with what is done first.
    async fn meet<R, F>(
        &self,
        left: Option<Handle>,
        work: impl Fn(Rc<Arriving>) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        let new = NewDvol {
            id: self.job.from.id,
            name: self.job.name.clone(),
            reserved_bytes: self.reserved_bytes,
            attributes: self.attributes,
        };
        let (at, slo) = (self.job.to.engine, self.job.slo);
        let marks = MoveMarks(self.job.watched.clone());
        self.ask(move |core| {
            let (new, work, marks) = (new.clone(), work.clone(), marks.clone());
            async move {
                let owned = core.engines.get(at).ok_or(DvolError::NotFound)?;
                let id = new.id;
                let _made = owned
                    .making
                    .enter()
                    .await
                    .map_err(|_| DvolError::Stopping)?;
                let copier = core.copier(at, slo).ok_or(DvolError::NotFound)?;
                let target = DvolTarget::new(owned.engine.clone(), marks, new);
                let target = match left {
                    Some(left) => target.left_at(left),
                    None => target,
                };
                let arriving = Rc::new(Arriving { at, target, copier });
                core.put_arriving(id, arriving.clone());
                work(arriving).await
            }
        })
        .await
    }
}

impl Target for There<'_> {
    async fn begin(&self, content: &Content) -> Result<(), DvolError> {
        let content = content.clone();
        self.meet(None, move |arriving| {
            let content = content.clone();
            async move { arriving.target.begin(&content).await }
        })
        .await
    }

    fn point_after_bytes(&self) -> Option<u64> {
        let hooks = &self.core.move_hooks;
        Some(hooks.point_after_bytes.unwrap_or(POINT_AFTER_BYTES))
    }

    async fn resume(&self, content: &Content) -> Result<Option<Resumed>, DvolError> {
        let Some(left) = self.job.left else {
            return Ok(None);
        };
        let content = content.clone();
        let resumed = self.meet(Some(left), move |arriving| {
            let content = content.clone();
            async move { arriving.target.resume(&content).await }
        });
        let resumed = resumed.await?;
        let volume = &self.job.name;
        match &resumed {
            Some(resumed) => tracing::info!(
                volume,
                bytes = resumed.point.copied_bytes,
                "its move goes on where the last run of the node left it"
            ),
            None => tracing::info!(
                volume,
                "its move was cut off, and can't go on with the copy that it left: it begins anew"
            ),
        }
        Ok(resumed)
    }

    async fn save(&self, point: Point) -> Result<(), DvolError> {
        let (haste, is_same_device) = (self.haste(), self.is_same_device());
        self.with(move |arriving| async move {
            let tenant = arriving.copier.tenant_there(haste, is_same_device);
            let _turn = tenant.turn(Want::flush()).await;
            arriving.target.save(point).await
        })
        .await?;
        self.core.at(MovePoint::PointKept).await;
        Ok(())
    }

    async fn resize(&self, size_bytes: u64) -> Result<(), DvolError> {
        self.with(move |arriving| async move { arriving.target.resize(size_bytes).await })
            .await
    }

    async fn take(&self, runs: Vec<Run>) -> Result<(), DvolError> {
        // Whoever is asked in vain gives them back.
        let runs = Arc::new(Mutex::new(runs));
        let (haste, is_same_device) = (self.haste(), self.is_same_device());
        self.with(move |arriving| {
            let runs = runs.clone();
            async move {
                let runs =
                    std::mem::take(&mut *runs.lock().unwrap_or_else(PoisonError::into_inner));
                let copier = &arriving.copier;
                let tenant = &copier.tenant_there(haste, is_same_device);
                // Each in a turn of its own, as all others' requests, who would else wait for those of a whole part. What becomes zeros takes nothing of the device.
                let writes = runs.into_iter().map(|run| {
                    let target = &arriving.target;
                    async move {
                        let _turn = match run.data_bytes() {
                            0 => None,
                            bytes => Some(tenant.turn(Want::write(0, bytes, false)).await),
                        };
                        target.take(vec![run]).await
                    }
                });
                let taken = join_few(copier.together(haste, false), writes).await;
                taken.into_iter().collect()
            }
        })
        .await
    }

    async fn snapshot(&self, snapshot: &Snapshot, next: Option<Point>) -> Result<(), DvolError> {
        let snapshot = snapshot.clone();
        self.with(move |arriving| {
            let snapshot = snapshot.clone();
            async move { arriving.target.snapshot(&snapshot, next).await }
        })
        .await?;
        self.core.at(MovePoint::PointKept).await;
        Ok(())
    }

    async fn finish(&self) -> Result<(), DvolError> {
        let tokens = self.tokens.borrow().clone();
        let (id, at, slo) = (self.job.from.id, self.job.to.engine, self.job.slo);
        let snapshots = VolumeAttributes::decode(&self.attributes).snapshots;
        self.ask(move |core| {
            let tokens = tokens.clone();
            async move {
                let arriving = core.arriving_of(id).ok_or(DvolError::NotFound)?;
                if let Some(record) = tokens {
                    let owned = core.owned(at)?;
                    let store = &owned.tokens;
                    let _turn = store.turn().await;
                    store.put(&record, Stability::Stable).await?;
                }
                core.at(MovePoint::TokensKept).await;
                arriving.target.finish().await?;
                core.take_arriving(id);
                core.set_slo(id, &slo);
                // It isn't known here when it was last changed, and it may have been since somebody looked.
                let now_ns = core.platform.wall_clock_ns();
                core.notes_of(id).change.tell(now_ns);
                if let Some(handle) = arriving.target.made() {
                    core.schedules.set(at, handle, snapshots);
                }
                Ok(())
            }
        })
        .await
    }
}

/// The target, which takes the volume's tokens with it when it finishes.
pub(super) struct WithTokens<'a> {
    pub(super) there: &'a There<'a>,
    pub(super) store: &'a TokenStore<UringPlatform>,
    /// Nobody changes them while this is held.
    pub(super) turn: RefCell<Option<(Share, tokio::sync::OwnedMutexGuard<()>)>>,
}

impl Target for WithTokens<'_> {
    async fn begin(&self, content: &Content) -> Result<(), DvolError> {
        self.there.begin(content).await
    }

    fn point_after_bytes(&self) -> Option<u64> {
        self.there.point_after_bytes()
    }

    async fn resume(&self, content: &Content) -> Result<Option<Resumed>, DvolError> {
        self.there.resume(content).await
    }

    async fn save(&self, point: Point) -> Result<(), DvolError> {
        self.there.save(point).await
    }

    async fn resize(&self, size_bytes: u64) -> Result<(), DvolError> {
        self.there.resize(size_bytes).await
    }

    async fn take(&self, runs: Vec<Run>) -> Result<(), DvolError> {
        self.there.take(runs).await
    }

    async fn snapshot(&self, snapshot: &Snapshot, next: Option<Point>) -> Result<(), DvolError> {
        self.there.snapshot(snapshot, next).await
    }

    async fn finish(&self) -> Result<(), DvolError> {
        // Nobody else holds one of these while he waits for another.
        let ending = self.there.core.names.turn_to_end().await;
        let turn = self.store.turn().await;
        *self.turn.borrow_mut() = Some((turn, ending));
        let tokens = self.there.core.access.record_of(self.there.job.from.id);
        *self.there.tokens.borrow_mut() = tokens;
        self.there.finish().await
    }
}
