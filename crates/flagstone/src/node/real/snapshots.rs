//! Snapshots of volumes: taking them, in one instant of several, rolling back, renaming and deleting them.

use std::rc::Rc;

use flagstone_device::engine::{DvolError, DvolInfo, Handle};
use flagstone_platform::record::NodeMark;
use flagstone_types::DvolId;

use super::RealNode;
use super::core::CoreNode;
use super::errors::{Wanted, apart, closed, no_such_snapshot, node_error};
use super::names::Place;
use super::resize::try_reserve_no_more;
use super::schedule::check_not_of_schedule;
use crate::name::SnapshotRef;
use crate::node::{NodeError, NodeErrorKind, SnapshotInfo, VolumeInfo};

impl RealNode {
    /// Takes snapshots of volumes that one engine has, in one instant.
    pub(super) async fn snapshot(
        &self,
        wanted: Vec<SnapshotRef>,
    ) -> Result<Vec<SnapshotInfo>, NodeError> {
        let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        let doing = format!("taking snapshot {}", names.join(" "));
        let mut places = Vec::new();
        for (index, snapshot) in wanted.iter().enumerate() {
            check_not_of_schedule(&snapshot.snapshot, &doing)?;
            let before = &wanted[..index];
            if before.contains(snapshot) {
                let found = format!("'{snapshot}' is named twice");
                return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                    .next("name each snapshot once"));
            }
            if before.iter().any(|s| s.volume == snapshot.volume) {
                let found = format!("volume '{}' is named twice", snapshot.volume);
                return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                    .next("take one snapshot of each volume at a time"));
            }
            places.push(self.target_to_change(&snapshot.volume, &doing)?.place);
        }
        let Some(first) = places.first().copied() else {
            return Err(NodeError::new(
                NodeErrorKind::InvalidArgument,
                doing,
                "none is named",
            ));
        };
        // A journal that goes to another core meanwhile is the same one.
        let striped = |place: &Place| self.names.stripe_of(place.id).is_some();
        if places.len() > 1 && places.iter().any(striped) {
            let found = "one of them is striped, so it is in several journals";
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("take the snapshot of a striped volume by itself"));
        }
        if places.iter().any(|place| place.engine != first.engine) {
            let mut owners = Vec::new();
            for (part, place) in wanted.iter().zip(&places) {
                owners.push((part.volume.clone(), self.owner_of(*place, &doing).await?));
            }
            return Err(apart(&owners, &doing));
        }
        if let Some(why) = self.homes.closed(first.engine) {
            return Err(closed(why, &doing));
        }
        // That of the first may be the older one of two.
        let core = self.homes.of(first.engine).unwrap_or(first.core);
        let ids = places.iter().map(|place| place.id);
        let volumes: Vec<(DvolId, String)> = ids
            .zip(wanted.iter().map(|part| part.volume.clone()))
            .collect();
        let (parts, marked) = (wanted.clone(), names);
        let taken = self
            .on_core(core, &doing, move |core| async move {
                // Its journal may have gone since it was looked up.
                let engine = core.engine(first.engine).ok_or(DvolError::Stopping)?;
                let mut dvols = Vec::new();
                for (part, place) in parts.into_iter().zip(places) {
                    let dvol = engine.dvol_with(place.id, &part.volume);
                    let dvol = dvol.ok_or(DvolError::NotFound)?;
                    core.check_settled(place.id)?;
                    dvols.push((dvol.handle, part.snapshot));
                }
                if let [(dvol, name)] = &dvols[..]
                    && let Some(stripe) = core.names.stripe_of(dvol.id)
                {
                    let dvol = (&engine, *dvol);
                    return core.snapshot_striped(dvol, &stripe, name.clone()).await;
                }
                for name in &marked {
                    core.recording.snapshot(NodeMark::SnapshotBegan, name);
                }
                let taken = engine.snapshot(&dvols).await.map(drop);
                for name in marked.iter().filter(|_| taken.is_ok()) {
                    core.recording.snapshot(NodeMark::SnapshotTaken, name);
                }
                taken
            })
            .await?;
        if let Err(error) = taken {
            let find = move |core: &CoreNode| {
                let owned = core.engines.get(first.engine)?;
                let engine = &owned.engine;
                let dvols = volumes
                    .iter()
                    .filter_map(|(id, name)| engine.dvol_with(*id, name));
                let again = dvols.map(|dvol| dvol.reserved_bytes).sum();
                Some((owned.device, engine.space(), Wanted::Again(again)))
            };
            let error = node_error(error, &doing);
            return Err(self.with_space(error, core, find).await);
        }
        let mut infos = Vec::new();
        for snapshot in wanted {
            infos.push(self.show_one_snapshot(snapshot).await?);
        }
        Ok(infos)
    }

    /// What owns the volumes of a place, in words.
    pub(super) async fn owner_of(&self, place: Place, doing: &str) -> Result<String, NodeError> {
        let found = self
            .on_core(place.core, doing, move |core| async move {
                let owned = core.engines.get(place.engine);
                owned.map(|owned| (owned.device, owned.engine.journal_no()))
            })
            .await?;
        let Some((device, journal)) = found else {
            return Ok(format!("core {}", place.core));
        };
        let device = &self.devices[device].name;
        Ok(format!(
            "core {}, journal {journal} of device '{device}'",
            place.core
        ))
    }

    /// Runs `work` with a snapshot's volume and its own handle.
    pub(super) async fn on_snapshot<R, F>(
        &self,
        snapshot: &SnapshotRef,
        doing: &str,
        work: impl FnOnce(Rc<CoreNode>, usize, Handle, Handle) -> F + Send + 'static,
    ) -> Result<R, NodeError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        let target = self.target(&snapshot.volume, doing)?;
        let (place, name) = (target.place, snapshot.snapshot.clone());
        self.on_volume(&target, doing, move |core, dvol| {
            let layer = core
                .engine(place.engine)
                .and_then(|e| e.layer(dvol.id, &name));
            let running = layer.map(|layer| work(core, place.engine, dvol, layer.handle));
            async move {
                match running {
                    Some(running) => running.await,
                    None => Err(DvolError::NotFound),
                }
            }
        })
        .await
        .map_err(|error| match error.kind {
            NodeErrorKind::NotFound => no_such_snapshot(&snapshot.to_string(), doing),
            _ => error,
        })
    }

    pub(super) async fn roll_back(&self, snapshot: SnapshotRef) -> Result<VolumeInfo, NodeError> {
        let doing = format!("rolling back to '{snapshot}'");
        self.target_to_change(&snapshot.volume, &doing)?;
        let named = snapshot.volume.clone();
        let rolled = self.on_snapshot(
            &snapshot,
            &doing,
            move |core, engine, dvol, layer| async move {
                let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
                if let Some(stripe) = core.names.stripe_of(dvol.id) {
                    let mut layers = engine.layers(dvol.id).into_iter();
                    let layer = layers.find(|found| found.handle == layer);
                    let layer = layer.ok_or(DvolError::NotFound)?;
                    let dvol = (&engine, dvol);
                    core.roll_striped_back(dvol, &stripe, &layer).await?;
                } else {
                    let sizing = core.sizing(dvol.id);
                    let _turn = sizing.take(1).await;
                    core.check_settled(dvol.id)?;
                    engine.roll_back(dvol, layer).await?;
                    // It may have been smaller.
                    try_reserve_no_more(&engine, dvol).await;
                }
                let what = "rolled back under its clients: they read the snapshot from now on";
                core.tell_of_attached(dvol.id, &named, what);
                Ok(())
            },
        );
        match rolled.await {
            Ok(()) => self.show(&snapshot.volume).await,
            Err(error) => {
                let target = self.target(&snapshot.volume, &doing)?;
                // It was to be rolled back, and now is neither: that is more than why.
                self.refuse_unwhole(&target, &doing)?;
                let wanted = |dvol: &DvolInfo| Wanted::Again(dvol.reserved_bytes);
                Err(self.with_space_of(error, &target, wanted).await)
            }
        }
    }

    pub(super) async fn delete_one_snapshot(&self, snapshot: SnapshotRef) -> Result<(), NodeError> {
        let doing = format!("deleting snapshot '{snapshot}'");
        self.target_to_change(&snapshot.volume, &doing)?;
        let name = snapshot.to_string();
        self.on_snapshot(&snapshot, &doing, |core, engine, _, layer| async move {
            let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
            if let Some(stripe) = core.names.stripe_of(layer.id) {
                return core.delete_striped_layer(&engine, &stripe, layer).await;
            }
            core.check_settled(layer.id)?;
            core.recording.snapshot(NodeMark::SnapshotGoing, &name);
            let deleted = engine.delete_layer(layer).await;
            if deleted.is_ok() {
                core.recording.snapshot(NodeMark::SnapshotGone, &name);
            }
            deleted
        })
        .await
    }

    pub(super) async fn rename_one_snapshot(
        &self,
        snapshot: SnapshotRef,
        new_name: String,
    ) -> Result<SnapshotInfo, NodeError> {
        let doing = format!("renaming snapshot '{snapshot}' to '{new_name}'");
        check_not_of_schedule(&new_name, &doing)?;
        let to = new_name.clone();
        self.on_snapshot(
            &snapshot,
            &doing,
            move |core, engine, _, layer| async move {
                let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
                core.check_not_moving(layer.id)?;
                engine.rename(layer, &to).await
            },
        )
        .await?;
        self.show_one_snapshot(SnapshotRef {
            snapshot: new_name,
            ..snapshot
        })
        .await
    }
}
