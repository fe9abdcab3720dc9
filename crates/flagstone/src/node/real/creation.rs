//! Volumes come to be and go: where they are put, creating, cloning, renaming and deleting them.

use flagstone_device::engine::{CreateDvol, DvolError, DvolInfo};
use flagstone_types::DvolId;

use super::attributes::VolumeAttributes;
use super::core::CoreNode;
use super::errors::{
    Wanted, check_reservation, check_size, no_such_core, no_such_device, no_such_snapshot,
    node_error, taken,
};
use super::names::Place;
use super::slo::{Floors, note_floor};
use super::{RealNode, Target, moves};
use crate::name::SourceRef;
use crate::node::{
    CreatedVolume, NodeError, NodeErrorKind, Reservation, SloPromise, TokenKind, VolumeInfo,
    VolumeSpec,
};

/// What is to be set aside for a volume of this size, in bytes.
pub(super) fn reserved_bytes(reserve: Reservation, size_bytes: u64) -> u64 {
    match reserve {
        Reservation::None => 0,
        Reservation::Full => size_bytes,
        Reservation::Bytes(bytes) => bytes,
    }
}

impl RealNode {
    /// The core and engine for a new volume: the core with the fewest volumes, on its first
    /// journal of the device, so that few journals share the flushes.
    pub(super) fn place_for(
        &self,
        device: Option<&str>,
        core: Option<u32>,
        doing: &str,
    ) -> Result<(usize, usize), NodeError> {
        let device = match device {
            None => 0,
            Some(wanted) => self
                .devices
                .iter()
                .position(|d| d.name == wanted || d.id == wanted)
                .ok_or_else(|| no_such_device(wanted, doing))?,
        };
        let core = match core {
            Some(core) => {
                self.check_serves(core, device, doing)?;
                core as usize
            }
            None => self.first_core_of(device, doing)?,
        };
        Ok((core, device))
    }

    /// The cores that can get volumes of a device, since they serve a journal of it that takes new ones: those with the fewest volumes first.
    pub(super) fn cores_of(&self, device: usize) -> Vec<usize> {
        let counts = self.names.per_core(self.remotes.len());
        let mut cores: Vec<usize> = (0..counts.len())
            .filter(|core| self.serves(*core, device))
            .collect();
        cores.sort_by_key(|core| counts[*core]);
        cores
    }

    /// The first of them.
    pub(super) fn first_core_of(&self, device: usize, doing: &str) -> Result<usize, NodeError> {
        let first = self.cores_of(device).first().copied();
        first.ok_or_else(|| {
            let name = &self.devices[device].name;
            let found = format!("no journal of device '{name}' takes new volumes");
            NodeError::new(NodeErrorKind::Unavailable, doing, found).next(format!(
                "`flagstone device journals {name}` says what is in each, and which are closed until the node is restarted"
            ))
        })
    }

    /// Refuses a core that can't own volumes of a device.
    pub(super) fn check_serves(
        &self,
        core: u32,
        device: usize,
        doing: &str,
    ) -> Result<(), NodeError> {
        let found = &self.devices[device];
        let cores = self.remotes.len().min(found.journal_count);
        if core as usize >= self.remotes.len() {
            return Err(no_such_core(core, cores, found.journal_count, doing));
        }
        if self.serves(core as usize, device) {
            return Ok(());
        }
        if core as usize >= cores {
            return Err(no_such_core(core, cores, found.journal_count, doing));
        }
        let name = &found.name;
        let what = format!(
            "core {core} serves no journal of device '{name}' just now that takes new volumes: they were handed over to other cores, or are one volume's each"
        );
        Err(NodeError::new(NodeErrorKind::NotFound, doing, what).next(format!(
            "name another core, or hand one over to it: `flagstone device journals {name}` lists them"
        )))
    }

    /// The core with the fewest volumes of those that serve an empty journal of a device beside the one for new volumes.
    pub(super) async fn core_with_spare(
        &self,
        device: usize,
        doing: &str,
    ) -> Result<usize, NodeError> {
        for core in self.cores_of(device) {
            let spare = self.on_core(core, doing, move |core| async move {
                core.engines.spare_of(device)
            });
            if spare.await?.is_some() {
                return Ok(core);
            }
        }
        Err(self.no_spare(device, None, doing))
    }

    pub(super) fn no_spare(&self, device: usize, core: Option<u32>, doing: &str) -> NodeError {
        let name = &self.devices[device].name;
        let whose = core.map_or(String::new(), |core| format!(" that core {core} serves"));
        let found = format!(
            "no journal of device '{name}'{whose} is empty but those that new volumes or filesystems go to"
        );
        NodeError::new(NodeErrorKind::NoSpace, doing, found).next(format!(
            "leave --apart out, or empty one: `flagstone device journals {name}` says what is in each"
        ))
    }

    pub(super) async fn create(&self, spec: VolumeSpec) -> Result<CreatedVolume, NodeError> {
        let doing = format!("creating volume '{}'", spec.name);
        // Asked once more below, where it counts; but whoever has one already is to be told so first.
        if self.names.find(&spec.name).is_some() {
            return Err(taken(&spec.name, &doing));
        }
        check_size(spec.size_bytes, &doing)?;
        let (core, device) = self.place_for(spec.device.as_deref(), spec.core, &doing)?;
        let core = match (spec.apart, spec.core) {
            (true, None) => self.core_with_spare(device, &doing).await?,
            _ => core,
        };
        let apart = spec.apart;
        let reserved_bytes = reserved_bytes(spec.reserve, spec.size_bytes);
        check_reservation(reserved_bytes, spec.size_bytes, &doing)?;
        let slo = spec.slo;
        // Held until it is there: two who ask at the same time can't both get what is left. Who asks for no floor
        // waits for nobody.
        let mut floors = match slo.promise {
            SloPromise::Floor(_) => Some(self.floors.lock().await),
            SloPromise::Share(_) => None,
        };
        let none = Floors::new();
        let known = floors.as_deref().unwrap_or(&none);
        self.admit(known, device, None, &slo, spec.oversubscribe, &doing)?;
        let new = CreateDvol {
            name: spec.name.clone(),
            id: None,
            size_bytes: spec.size_bytes,
            reserved_bytes,
        };
        let claimed = Place {
            core,
            engine: 0,
            id: DvolId(0),
        };
        let claim = self.names.claim(&spec.name, claimed);
        let claim = claim.ok_or_else(|| taken(&spec.name, &doing))?;
        let created = self.on_core(core, &doing, move |running| async move {
            let engine = match apart {
                true => running.engines.spare_of(device).ok_or(DvolError::TooMany)?,
                false => running
                    .engines
                    .first_of(device)
                    .ok_or(DvolError::Stopping)?,
            };
            // Before there is a volume: nobody else is to find the journal empty.
            if apart {
                running.homes.set_apart(engine, true);
            }
            let attributes = VolumeAttributes {
                slo,
                ..VolumeAttributes::default()
            };
            let created = running.create_volume(engine, new, attributes.encode());
            let created = created.await;
            if apart {
                // Whoever has just emptied it has perhaps taken the mark away.
                running.homes.set_apart(engine, created.is_ok());
            }
            let (id, token) = created?;
            running.set_slo(id, &slo);
            claim.came_to_be(Place { core, engine, id });
            Ok((id, token))
        });
        match created.await? {
            Ok((id, token)) => {
                if let Some(floors) = &mut floors {
                    note_floor(floors, id, device, &slo);
                }
                drop(floors);
                let kind = TokenKind::Owner;
                tracing::info!(target: "audit", volume = spec.name, token = 1, %kind, "token made");
                Ok(CreatedVolume {
                    volume: self.show(&spec.name).await?,
                    token: Some(token),
                })
            }
            Err(DvolError::TooMany) if apart => Err(self.no_spare(device, spec.core, &doing)),
            Err(error) => {
                let find = move |core: &CoreNode| {
                    let owned = core.engines.get(core.engines.first_of(device)?)?;
                    let wanted = Wanted::Anew(reserved_bytes);
                    Some((device, owned.engine.space(), wanted))
                };
                let error = node_error(error, &doing);
                Err(self.with_space(error, core, find).await)
            }
        }
    }

    pub(super) async fn clone_from(
        &self,
        source: SourceRef,
        new_name: String,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("cloning '{source}' to '{new_name}'");
        let target = match source.snapshot {
            None => self.target_to_change(&source.volume, &doing)?,
            Some(_) => self.target(&source.volume, &doing)?,
        };
        self.clone_at(source, new_name, &target).await
    }

    /// The same, once it was looked up where the source is.
    pub(super) async fn clone_at(
        &self,
        source: SourceRef,
        new_name: String,
        target: &Target,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("cloning '{source}' to '{new_name}'");
        let claim = self.names.claim(&new_name, target.place);
        let claim = claim.ok_or_else(|| taken(&new_name, &doing))?;
        let place = target.place;
        let new = CreateDvol {
            name: new_name.clone(),
            id: None,
            size_bytes: 0,
            reserved_bytes: 0,
        };
        let snapshot = source.snapshot.clone();
        let is_head = snapshot.is_none();
        let cloned = self.on_volume(target, &doing, move |core, dvol| async move {
            let owned = core.owned(place.engine)?;
            let _made = owned.made_in().await?;
            let engine = &owned.engine;
            let source = match snapshot {
                None => {
                    core.check_settled(dvol.id)?;
                    dvol
                }
                Some(name) => {
                    engine
                        .layer(dvol.id, &name)
                        .ok_or(DvolError::NotFound)?
                        .handle
                }
            };
            let id = engine.clone_of(source, new).await?.id;
            // Its journal may have come here since it was looked up.
            let core = core.index;
            claim.came_to_be(Place { id, core, ..place });
            Ok(())
        });
        match cloned.await {
            Ok(()) => self.show(&new_name).await,
            Err(error) if error.kind == NodeErrorKind::NotFound && !is_head => {
                Err(no_such_snapshot(&source.to_string(), &doing))
            }
            Err(error) => {
                let wanted = move |dvol: &DvolInfo| match is_head {
                    true => Wanted::Again(dvol.reserved_bytes),
                    false => Wanted::Anew(0),
                };
                Err(self.with_space_of(error, target, wanted).await)
            }
        }
    }

    pub(super) async fn rename(
        &self,
        name: String,
        new_name: String,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("renaming volume '{name}' to '{new_name}'");
        let target = self.target(&name, &doing)?;
        self.refuse_moving(&target, &doing)?;
        self.rename_at(&target, new_name).await
    }

    /// The same, once it was looked up where it is.
    pub(super) async fn rename_at(
        &self,
        target: &Target,
        new_name: String,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("renaming volume '{}' to '{new_name}'", target.name);
        let claim = self.names.claim(&new_name, target.place);
        let claim = claim.ok_or_else(|| taken(&new_name, &doing))?;
        let (place, to) = (target.place, new_name.clone());
        self.on_volume(target, &doing, move |core, dvol| async move {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            core.check_not_moving(dvol.id)?;
            engine.rename(dvol, &to).await?;
            let core = core.index;
            claim.renamed(Place { core, ..place });
            Ok(())
        })
        .await?;
        self.show(&new_name).await
    }

    pub(super) async fn delete(&self, name: String, with_snapshots: bool) -> Result<(), NodeError> {
        let doing = format!("deleting volume '{name}'");
        let target = self.target_to_change(&name, &doing)?;
        self.refuse_unconfirmed(target.place.id, &doing)?;
        let (place, named) = (target.place, name.clone());
        let names = self.names.clone();
        let deleted = self
            .on_volume(&target, &doing, move |core, dvol| async move {
                let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
                let is_fork = core.between.is_fork(dvol.id);
                if core.check_not_moving(dvol.id).is_err()
                    || core.between.is_unconfirmed(dvol.id) && !is_fork
                {
                    return Ok(false);
                }
                let deleted = engine.delete(dvol, with_snapshots).await;
                if deleted.is_ok() {
                    let what = "deleted under its clients: they get an error for each request";
                    core.tell_of_attached(dvol.id, &named, what);
                    core.forget(dvol.id);
                    core.engines.emptied(place.engine);
                    names.deleted(dvol.id);
                    core.forget_tokens(place.engine, dvol.id).await;
                    match is_fork {
                        true => core.forget_fork(place.engine, dvol.id).await,
                        false => core.between.drop_fork(dvol.id),
                    }
                }
                deleted.map(|()| true)
            })
            .await;
        match deleted {
            // A move began behind the look above.
            Ok(false) => Err(moves::moving(&doing)),
            Ok(true) => {
                self.forget_floor(place.id.into());
                Ok(())
            }
            Err(error) if error.kind == NodeErrorKind::Busy => {
                Err(
                    NodeError::new(NodeErrorKind::HasSnapshots, doing, "it has snapshots")
                        .next("delete them first, or pass --with-snapshots"),
                )
            }
            Err(error) => Err(error),
        }
    }
}
