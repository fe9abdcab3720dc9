//! Volumes come to be and go: where they are put, creating, cloning, renaming and deleting them.

use flagstone_device::engine::{CreateDvol, DvolError, DvolInfo};
use flagstone_gateway::striped::Layout;
use flagstone_types::DvolId;

use super::access::tell_restricted;
use super::attributes::VolumeAttributes;
use super::core::CoreNode;
use super::errors::{
    Wanted, check_reservation, check_size, no_room_for_all, no_such_core, no_such_device,
    no_such_snapshot, node_error, taken,
};
use super::names::Place;
use super::slo::{Floors, note_floor};
use super::stripes::{NewStriped, Unreserved};
use super::{RealNode, Target, moves};
use crate::name::SourceRef;
use crate::node::{
    CreatedVolume, NodeError, NodeErrorKind, Reservation, Restrictions, STRIPE_UNIT_DEFAULT_BYTES,
    SloPromise, TokenKind, VolumeInfo, VolumeSpec,
};

/// What is to be set aside for a volume of this size, in bytes.
pub(super) fn reserved_bytes(reserve: Reservation, size_bytes: u64) -> u64 {
    match reserve {
        Reservation::None => 0,
        Reservation::Full => size_bytes,
        Reservation::Bytes(bytes) => bytes,
    }
}

/// What a device is chosen for.
#[derive(Clone, Copy)]
pub(super) struct Wants {
    /// What will surely be taken there.
    pub(super) bytes: u64,
    /// Cores that are to share it.
    pub(super) parts: usize,
}

impl Wants {
    pub(super) fn bytes(bytes: u64) -> Wants {
        Wants { bytes, parts: 1 }
    }
}

/// How a volume that is to be striped is.
fn layout_of(spec: &VolumeSpec, doing: &str) -> Result<Option<Layout>, NodeError> {
    let (members, unit_bytes) = match (spec.stripes, spec.stripe_unit_bytes) {
        (None, None) => return Ok(None),
        // Who asks for stripes is to know that there are none: how many never changes.
        (Some(1), _) => {
            let found = "one stripe is a volume that isn't striped";
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("leave the stripes out (`--stripes`) for such a volume, or give 2 to 16"));
        }
        (None, Some(_)) => {
            let found = "a unit of stripes, and no stripes";
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("say how many there are to be (`--stripes`), or leave the unit out"));
        }
        (Some(members), unit_bytes) => (members, unit_bytes.unwrap_or(STRIPE_UNIT_DEFAULT_BYTES)),
    };
    if spec.apart {
        let found = "striped, and in a journal of its own";
        return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
            .next("leave --apart out: its members are in journals of several cores"));
    }
    let layout = Layout::new(members as usize, unit_bytes);
    layout.map(Some).ok_or_else(|| {
        let found = format!("{members} stripes with units of {unit_bytes} bytes");
        NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
            .next("give 2 to 16 stripes, and a unit that is a power of two from 64K to 16M")
    })
}

impl RealNode {
    /// The core and device for a new volume: the core with the fewest volumes, on its first
    /// journal of the device, so that few journals share the flushes.
    pub(super) async fn place_for(
        &self,
        device: Option<&str>,
        core: Option<u32>,
        wants: Wants,
        doing: &str,
    ) -> Result<(usize, usize), NodeError> {
        let device = match device {
            None => self.device_for(core, wants, doing).await?,
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

    /// The device for a volume for which none is named: the first one with a core for each part and with the room that is wanted, and a
    /// sixteenth of it left then. If there is none: the one with the most cores, and of several such the one with the most room.
    async fn device_for(
        &self,
        core: Option<u32>,
        wants: Wants,
        doing: &str,
    ) -> Result<usize, NodeError> {
        let mut best = None;
        if self.devices.len() == 1 {
            return Ok(0);
        }
        for device in 0..self.devices.len() {
            let mut cores = self.cores_of(device);
            let count = cores.len();
            cores.retain(|one| core.is_none_or(|core| core as usize == *one));
            let Some(first) = cores.first() else {
                continue;
            };
            let space = self.on_core(*first, doing, move |core| async move {
                let owned = core.engines.get(core.engines.first_of(device)?)?;
                (!owned.engine.is_fenced()).then(|| owned.engine.space())
            });
            // One that doesn't answer, or has failed, is not chosen.
            let Ok(Some(space)) = space.await else {
                continue;
            };
            let room = space.open_bytes.saturating_sub(space.kept_bytes);
            let left = room.checked_sub(wants.bytes);
            if count >= wants.parts && left.is_some_and(|left| left >= space.capacity_bytes / 16) {
                return Ok(device);
            }
            let comes_near = (count.min(wants.parts), room);
            if best.is_none_or(|(_, so_far)| comes_near > so_far) {
                best = Some((device, comes_near));
            }
        }
        // With none, the first one says why.
        Ok(best.map_or(0, |(device, _)| device))
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

    /// The cores for so many members of a striped volume, the first one of which is to be `first`: as many as there are, and then again.
    fn cores_for(&self, device: usize, first: usize, members: usize) -> Vec<usize> {
        let mut cores = self.cores_of(device);
        cores.retain(|core| *core != first);
        cores.insert(0, first);
        cores.into_iter().cycle().take(members).collect()
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
        let layout = layout_of(&spec, &doing)?;
        let reserved_bytes = reserved_bytes(spec.reserve, spec.size_bytes);
        check_reservation(reserved_bytes, spec.size_bytes, &doing)?;
        let wants = Wants {
            bytes: reserved_bytes,
            parts: layout.as_ref().map_or(1, Layout::members),
        };
        let named = spec.device.as_deref();
        let (core, device) = self.place_for(named, spec.core, wants, &doing).await?;
        let core = match (spec.apart, spec.core) {
            (true, None) => self.core_with_spare(device, &doing).await?,
            _ => core,
        };
        let apart = spec.apart;
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
        let Some(claim) = claim else {
            return Err(self.name_taken(&spec.name, &doing).await);
        };
        let striped = layout.map(|layout| NewStriped {
            name: spec.name.clone(),
            layout,
            cores: self.cores_for(device, core, layout.members()),
            device,
            size_bytes: spec.size_bytes,
            reserved_bytes,
            slo,
        });
        let created = self.on_core(core, &doing, move |running| async move {
            if let Some(striped) = striped {
                let engine = running.engines.first_of(device);
                let engine = engine.ok_or(DvolError::Stopping)?;
                return running.create_striped(engine, striped, claim).await;
            }
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
                let kind = TokenKind::Owner.to_string();
                tracing::info!(target: "audit", volume = spec.name, token = 1, kind, "token made");
                Ok(CreatedVolume {
                    volume: self.show(&spec.name).await?,
                    token: Some(token),
                })
            }
            Err(Unreserved::NoRoom(shortage)) => {
                let device = &self.devices[device];
                let named = (device.name.as_str(), device.path.as_path());
                Err(no_room_for_all(&shortage, named, doing))
            }
            Err(Unreserved::Dvol(DvolError::TooMany)) if apart => {
                Err(self.no_spare(device, spec.core, &doing))
            }
            Err(Unreserved::Dvol(error)) => {
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
        self.refuse_unwhole(&target, &doing)?;
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
        let Some(claim) = claim else {
            return Err(self.name_taken(&new_name, &doing).await);
        };
        let place = target.place;
        let new = CreateDvol {
            name: new_name.clone(),
            id: None,
            size_bytes: 0,
            reserved_bytes: 0,
        };
        let snapshot = source.snapshot.clone();
        let is_head = snapshot.is_none();
        let stripe = self.names.stripe_of(place.id);
        let cloned = self.on_volume(target, &doing, move |core, dvol| async move {
            let owned = core.owned(place.engine)?;
            let _made = owned.made_in().await?;
            if let Some(stripe) = stripe {
                let layer = match snapshot {
                    None => None,
                    Some(name) => {
                        let layer = owned.engine.layer(dvol.id, &name);
                        Some(layer.ok_or(DvolError::NotFound)?)
                    }
                };
                let new = (new.name, claim);
                return core
                    .clone_striped((&owned, dvol), &stripe, layer, new)
                    .await;
            }
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
            let id = core.random_id();
            let is_restricted = core.restrict_clone(place.engine, dvol.id, id).await?;
            let new = CreateDvol {
                id: is_restricted.then_some(id),
                ..new
            };
            let id = match engine.clone_of(source, new).await {
                Ok(made) => made.id,
                Err(error) => {
                    core.forget_tokens(place.engine, id).await;
                    return Err(error);
                }
            };
            // Its journal may have come here since it was looked up.
            let core = core.index;
            claim.came_to_be(Place { id, core, ..place });
            Ok(())
        });
        match cloned.await {
            Ok(()) => {
                let clone = self.show(&new_name).await?;
                if clone.restrictions != Restrictions::default() {
                    tell_restricted(&new_name, Some(&source.to_string()), &clone.restrictions);
                }
                Ok(clone)
            }
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
        let Some(claim) = claim else {
            return Err(self.name_taken(&new_name, &doing).await);
        };
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
        let target = match self.target(&name, &doing)? {
            // All that can be done with it.
            target if self.names.is_unwhole(target.place.id) => target,
            _ => self.target_to_change(&name, &doing)?,
        };
        self.refuse_unconfirmed(target.place.id, &doing)?;
        let (place, named) = (target.place, name.clone());
        let names = self.names.clone();
        let stripe = self.names.stripe_of(place.id);
        let deleted = self
            .on_volume(&target, &doing, move |core, dvol| async move {
                let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
                // Not in the middle of what is done with its members.
                let sizing = core.sizing(dvol.id);
                let _turn = match stripe {
                    Some(_) => Some(sizing.take(1).await),
                    None => None,
                };
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
                    if let Some(stripe) = stripe {
                        core.delete_members(stripe.others().map(|(_, id)| id)).await;
                    }
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
                self.moves.deleted(place.id);
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
