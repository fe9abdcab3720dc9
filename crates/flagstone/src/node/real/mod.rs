//! The real node: cores on io_uring, devices, gateways.
//!
//! Each core runs some journals of each device (journal j on core j modulo the number of cores) and
//! a gateway for every client. The control side reaches a core by messages and waits for the
//! answer; nothing here runs on the data path.

mod access;
mod attributes;
mod background;
mod between;
mod core;
mod describe;
mod engines;
mod epochs;
mod errors;
mod files;
mod journals;
mod look;
mod moves;
mod moves_left;
mod moving;
mod names;
mod native;
mod notes;
mod onward;
mod opening;
mod receive;
mod recording;
mod records;
mod resize;
mod schedule;
mod send;
mod slo;
mod start;
mod tuning;
mod under_way;
mod volume;

use flagstone_platform::locks::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use flagstone_device::engine::{CreateDvol, DvolError, DvolInfo, Engine, Handle};
use flagstone_platform::record::NodeMark;
use flagstone_runtime::{CoreRemote, DeviceLock, Refused, Runtime, UringPlatform};
use flagstone_sched::Device as DividedDevice;
use flagstone_types::DvolId;

use self::access::Access;
use self::attributes::VolumeAttributes;
use self::between::Between;
use self::core::{CoreNode, current};
use self::errors::{
    Wanted, apart, check_reservation, check_size, no_such_core, no_such_device, no_such_snapshot,
    no_such_volume, node_error, taken,
};
use self::journals::Homes;
use self::names::{Names, Place};
use self::receive::OneReceive;
use self::recording::Recording;
use self::schedule::check_not_of_schedule;
use self::slo::{Floors, note_floor};
use super::{
    Arrival, ArrivalSpec, ClonedFile, CreatedVolume, DeviceInfo, FileCloneSpec, FilesystemChanges,
    FilesystemCheck, FilesystemInfo, FilesystemPage, FilesystemSnapshotInfo,
    FilesystemSnapshotPage, FilesystemSpec, ForcedMove, HandedOverJournal, ImageStoreSpec,
    JournalInfo, Look, MetricsSnapshot, MoveInfo, MoveSpec, MoveWord, NewToken, Node, NodeError,
    NodeErrorKind, NodeFuture, NodeInfo, PageQuery, ReceiveId, ReceiveSpec, Reservation,
    Restrictions, RotateSpec, Schedule, ScrubState, ScrubStatus, Slo, SloPromise, SnapshotInfo,
    SnapshotPage, SnapshotQuery, SnapshotSchedule, StreamPart, StreamRun, StreamSource, TokenInfo,
    TokenKind, TokenList, TokenSpec, VolumeInfo, VolumePage, VolumeSpec,
};
use crate::name::{SnapshotRef, SourceRef};

pub use start::start;

#[cfg(test)]
mod tests;

/// How often and how long a message is offered to a core whose mailbox is full.
const SEND_TRIES: u32 = 1000;
const SEND_PAUSE: Duration = Duration::from_millis(2);

/// A device of the node.
struct Device {
    name: String,
    path: PathBuf,
    id: String,
    format_version: u32,
    /// Journals it has; journal j is run by core j modulo the number of cores.
    journal_count: usize,
    /// Keeps other processes out.
    _lock: DeviceLock,
}

/// A running node.
struct RealNode {
    runtime: Mutex<Option<Runtime>>,
    remotes: Vec<CoreRemote>,
    devices: Vec<Device>,
    names: Names,
    /// Which core serves which journal.
    homes: Arc<Homes>,
    /// Who may open which volume.
    access: Access,
    /// Which volumes are at other nodes.
    between: Between,
    is_tls_required: bool,
    nbd_tcp: Vec<SocketAddr>,
    nbd_unix: Option<PathBuf>,
    /// For the native protocol, of each core.
    native_tcp: Vec<SocketAddr>,
    nfs_tcp: Vec<SocketAddr>,
    /// Our own.
    portmapper: Option<SocketAddr>,
    /// With that of this machine.
    registered_port: Option<u16>,
    started_ns: u64,
    notices: Vec<String>,
    stopping: AtomicBool,
    scrubs: Mutex<Vec<ScrubStatus>>,
    /// How each device is divided, as people say it.
    schedules: Mutex<Vec<Schedule>>,
    /// The same as the cores know it.
    divided: Vec<Arc<DividedDevice>>,
    /// What was promised whatever others do. Held while a promise is made, so never on a core.
    floors: Arc<tokio::sync::Mutex<Floors>>,
    moves: moves::Moves,
    incoming: Mutex<Incoming>,
    recording: Recording,
}

/// Streams that are being received.
#[derive(Default)]
struct Incoming {
    last: u64,
    by_id: BTreeMap<ReceiveId, OneReceive>,
}

/// A volume that an operation is about.
struct Target {
    name: String,
    place: Place,
}

impl RealNode {
    /// Runs `work` on a core and waits for its result.
    async fn on_core<R, F>(
        &self,
        core: usize,
        doing: &str,
        work: impl FnOnce(Rc<CoreNode>) -> F + Send + 'static,
    ) -> Result<R, NodeError>
    where
        R: Send + 'static,
        F: Future<Output = R> + 'static,
    {
        let gone = || {
            NodeError::new(NodeErrorKind::Unavailable, doing, "the node is stopping")
                .next("try again once it has been started")
        };
        let remote = self.remotes.get(core).ok_or_else(gone)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut message: flagstone_runtime::Message = Box::new(move |platform| {
            let Some(core) = current() else { return };
            let running = work(core);
            flagstone_platform::Platform::spawn(platform, async move {
                // Whoever asked may have given up.
                let _ = sender.send(running.await);
            });
        });
        for _ in 0..SEND_TRIES {
            match remote.try_send(message) {
                Ok(()) => return receiver.await.map_err(|_| gone()),
                Err(Refused::Full(back)) => message = back,
                Err(Refused::Stopped(_)) => return Err(gone()),
            }
            tokio::time::sleep(SEND_PAUSE).await;
        }
        Err(NodeError::new(
            NodeErrorKind::Unavailable,
            doing,
            "its core is too busy to answer",
        )
        .next("try again"))
    }

    fn target(&self, name: &str, doing: &str) -> Result<Target, NodeError> {
        match self.names.find(name) {
            Some(place) => Ok(Target {
                name: name.to_owned(),
                place,
            }),
            None => Err(self.no_volume(name, doing)),
        }
    }

    /// Runs `work` with the engine and handle of a volume.
    async fn on_volume<R, F>(
        &self,
        target: &Target,
        doing: &str,
        work: impl FnOnce(Rc<CoreNode>, Handle) -> F + Send + 'static,
    ) -> Result<R, NodeError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        let (place, name) = (target.place, target.name.clone());
        let result = self
            .on_core(place.core, doing, move |core| {
                let found = core
                    .engine(place.engine)
                    .and_then(|engine| engine.dvol_with(place.id, &name));
                let running = found.map(|info| work(core, info.handle));
                async move {
                    match running {
                        Some(running) => running.await,
                        None => Err(DvolError::NotFound),
                    }
                }
            })
            .await?;
        result.map_err(|error| node_error(error, doing))
    }

    /// The core and engine for a new volume: the core with the fewest volumes, on its first
    /// journal of the device, so that few journals share the flushes.
    fn place_for(
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
            None => self.cores_of(device).first().copied().unwrap_or(0),
        };
        Ok((core, device))
    }

    /// The cores that can own volumes of a device, since they serve a journal of it: those with the fewest volumes first.
    fn cores_of(&self, device: usize) -> Vec<usize> {
        let counts = self.names.per_core(self.remotes.len());
        let mut cores: Vec<usize> = (0..counts.len())
            .filter(|core| self.serves(*core, device))
            .collect();
        cores.sort_by_key(|core| counts[*core]);
        cores
    }

    /// Refuses a core that can't own volumes of a device.
    fn check_serves(&self, core: u32, device: usize, doing: &str) -> Result<(), NodeError> {
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
            "core {core} serves no journal of device '{name}' just now: they were handed over to others"
        );
        Err(NodeError::new(NodeErrorKind::NotFound, doing, what).next(format!(
            "name another core, or hand one over to it: `flagstone device journals {name}` lists them"
        )))
    }

    /// The core with the fewest volumes of those that serve an empty journal of a device beside the one for new volumes.
    async fn core_with_spare(&self, device: usize, doing: &str) -> Result<usize, NodeError> {
        for core in self.cores_of(device) {
            let spare = self.on_core(core, doing, move |core| async move {
                core.engines.spare_of(device)
            });
            if spare.await?.is_some() {
                return Ok(core);
            }
        }
        Err(self.no_spare(device, doing))
    }

    fn no_spare(&self, device: usize, doing: &str) -> NodeError {
        let name = &self.devices[device].name;
        let found =
            format!("no journal of device '{name}' is empty but those that new volumes go to");
        NodeError::new(NodeErrorKind::NoSpace, doing, found).next(format!(
            "leave --apart out, or empty one: `flagstone device journals {name}` says what is in each"
        ))
    }

    async fn create(&self, spec: VolumeSpec) -> Result<CreatedVolume, NodeError> {
        let doing = format!("creating volume '{}'", spec.name);
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
                    .ok_or(DvolError::NotFound)?,
            };
            let owned = running.owned(engine)?;
            let of_its_own = owned.is_apart.replace(owned.is_apart.get() || apart);
            let attributes = VolumeAttributes {
                slo,
                ..VolumeAttributes::default()
            };
            let created = running.create_volume(engine, new, attributes.encode());
            let created = created.await;
            if created.is_err() {
                owned.is_apart.set(of_its_own);
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
            Err(DvolError::TooMany) if apart => Err(self.no_spare(device, &doing)),
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

    async fn clone_from(
        &self,
        source: SourceRef,
        new_name: String,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("cloning '{source}' to '{new_name}'");
        let target = match source.snapshot {
            None => self.target_to_change(&source.volume, &doing)?,
            Some(_) => self.target(&source.volume, &doing)?,
        };
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
        let cloned = self.on_volume(&target, &doing, move |core, dvol| async move {
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
            claim.came_to_be(Place { id, ..place });
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
                Err(self.with_space_of(error, &target, wanted).await)
            }
        }
    }

    async fn rename(&self, name: String, new_name: String) -> Result<VolumeInfo, NodeError> {
        let doing = format!("renaming volume '{name}' to '{new_name}'");
        let target = self.target(&name, &doing)?;
        self.refuse_moving(&target, &doing)?;
        let claim = self.names.claim(&new_name, target.place);
        let claim = claim.ok_or_else(|| taken(&new_name, &doing))?;
        let (place, to) = (target.place, new_name.clone());
        self.on_volume(&target, &doing, move |core, dvol| async move {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            core.check_not_moving(dvol.id)?;
            engine.rename(dvol, &to).await?;
            claim.renamed(place);
            Ok(())
        })
        .await?;
        self.show(&new_name).await
    }

    async fn delete(&self, name: String, with_snapshots: bool) -> Result<(), NodeError> {
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

    /// Takes snapshots of volumes that one engine has, in one instant.
    async fn snapshot(&self, wanted: Vec<SnapshotRef>) -> Result<Vec<SnapshotInfo>, NodeError> {
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
        if places
            .iter()
            .any(|p| (p.core, p.engine) != (first.core, first.engine))
        {
            let mut owners = Vec::new();
            for (part, place) in wanted.iter().zip(&places) {
                owners.push((part.volume.clone(), self.owner_of(*place, &doing).await?));
            }
            return Err(apart(&owners, &doing));
        }
        let ids = places.iter().map(|place| place.id);
        let volumes: Vec<(DvolId, String)> = ids
            .zip(wanted.iter().map(|part| part.volume.clone()))
            .collect();
        let (parts, marked) = (wanted.clone(), names);
        let taken = self
            .on_core(first.core, &doing, move |core| async move {
                let engine = core.engine(first.engine).ok_or(DvolError::NotFound)?;
                let mut dvols = Vec::new();
                for (part, place) in parts.into_iter().zip(places) {
                    let dvol = engine.dvol_with(place.id, &part.volume);
                    let dvol = dvol.ok_or(DvolError::NotFound)?;
                    core.check_settled(place.id)?;
                    dvols.push((dvol.handle, part.snapshot));
                }
                for name in &marked {
                    core.recording.snapshot(NodeMark::SnapshotBegan, name);
                }
                let taken = engine.snapshot(&dvols).await;
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
            return Err(self.with_space(error, first.core, find).await);
        }
        let mut infos = Vec::new();
        for snapshot in wanted {
            infos.push(self.show_one_snapshot(snapshot).await?);
        }
        Ok(infos)
    }

    /// What owns the volumes of a place, in words.
    async fn owner_of(&self, place: Place, doing: &str) -> Result<String, NodeError> {
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
    async fn on_snapshot<R, F>(
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

    async fn stop(&self) -> Result<(), NodeError> {
        self.stopping.store(true, Ordering::Release);
        if let Some(port) = self.registered_port {
            let struck = tokio::task::spawn_blocking(move || files::register(port, false));
            if let Ok(Err(what)) = struck.await {
                tracing::warn!(
                    "the portmapper of this machine still says that NFS is on port {port}: {what}"
                );
            }
        }
        let mut result = Ok(());
        for core in 0..self.remotes.len() {
            let stopped = self
                .on_core(core, "stopping the node", |core| async move {
                    core.stop().await
                })
                .await;
            let failed = match stopped {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => {
                    NodeError::new(NodeErrorKind::Internal, "stopping the node", error)
                        .next("what was acknowledged is safe; the next start recovers the rest")
                }
                Err(error) => error,
            };
            result = Err(failed);
        }
        let runtime = self
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(runtime) = runtime {
            let _ = tokio::task::spawn_blocking(move || runtime.stop()).await;
        }
        self.recording.finish();
        result
    }
}

impl Node for RealNode {
    fn create_volume(&self, spec: VolumeSpec) -> NodeFuture<'_, CreatedVolume> {
        Box::pin(self.create(spec))
    }

    fn create_token(&self, volume: String, spec: TokenSpec) -> NodeFuture<'_, NewToken> {
        Box::pin(self.make_token(volume, spec))
    }

    fn restrict_volume(
        &self,
        name: String,
        restrictions: Restrictions,
    ) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.restrict(name, restrictions))
    }

    fn list_tokens(&self, volume: String) -> NodeFuture<'_, TokenList> {
        Box::pin(async move { self.tokens(&volume) })
    }

    fn revoke_token(&self, volume: String, number: u32) -> NodeFuture<'_, TokenInfo> {
        Box::pin(self.revoke_token_of(volume, number))
    }

    fn rotate_token(
        &self,
        volume: String,
        number: u32,
        spec: RotateSpec,
    ) -> NodeFuture<'_, NewToken> {
        Box::pin(self.replace_token(volume, number, spec))
    }

    fn set_slo(&self, name: String, slo: Slo, oversubscribe: bool) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.change_slo(name, slo, oversubscribe))
    }

    fn set_snapshot_schedule(
        &self,
        name: String,
        schedule: Option<SnapshotSchedule>,
    ) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.change_snapshot_schedule(name, schedule))
    }

    fn set_schedule(&self, device: String, schedule: Schedule) -> NodeFuture<'_, DeviceInfo> {
        Box::pin(self.change_schedule(device, schedule))
    }

    fn list_volumes(&self, query: PageQuery) -> NodeFuture<'_, VolumePage> {
        Box::pin(self.list(query))
    }

    fn show_volume(&self, name: String) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(async move { self.show(&name).await })
    }

    fn resize_volume(
        &self,
        name: String,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.resize(name, size_bytes, allow_data_loss))
    }

    fn rename_volume(&self, name: String, new_name: String) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.rename(name, new_name))
    }

    fn delete_volume(&self, name: String, with_snapshots: bool) -> NodeFuture<'_, ()> {
        Box::pin(self.delete(name, with_snapshots))
    }

    fn check_departure(&self, name: String) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.may_leave(name))
    }

    fn promise_arrival(&self, spec: ArrivalSpec) -> NodeFuture<'_, Arrival> {
        Box::pin(self.promise(spec))
    }

    fn move_volume(&self, name: String, spec: MoveSpec) -> NodeFuture<'_, MoveInfo> {
        Box::pin(self.start_move(name, spec))
    }

    fn show_move(&self, name: String) -> NodeFuture<'_, MoveInfo> {
        Box::pin(async move { self.move_of(&name) })
    }

    fn cancel_move(&self, name: String) -> NodeFuture<'_, MoveInfo> {
        Box::pin(async move { self.end_move(&name) })
    }

    fn force_move(&self, name: String, word: MoveWord) -> NodeFuture<'_, ForcedMove> {
        Box::pin(self.force(name, word))
    }

    fn clone_volume(&self, source: SourceRef, new_name: String) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.clone_from(source, new_name))
    }

    fn rollback_volume(&self, snapshot: SnapshotRef) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(async move {
            let doing = format!("rolling back to '{snapshot}'");
            self.target_to_change(&snapshot.volume, &doing)?;
            let named = snapshot.volume.clone();
            let rolled = self.on_snapshot(
                &snapshot,
                &doing,
                move |core, engine, dvol, layer| async move {
                    let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
                    let sizing = core.sizing(dvol.id);
                    let _turn = sizing.take(1).await;
                    core.check_settled(dvol.id)?;
                    engine.roll_back(dvol, layer).await?;
                    let what = "rolled back under its clients: they read the snapshot from now on";
                    core.tell_of_attached(dvol.id, &named, what);
                    Ok(())
                },
            );
            match rolled.await {
                Ok(()) => self.show(&snapshot.volume).await,
                Err(error) => {
                    let target = self.target(&snapshot.volume, &doing)?;
                    let wanted = |dvol: &DvolInfo| Wanted::Again(dvol.reserved_bytes);
                    Err(self.with_space_of(error, &target, wanted).await)
                }
            }
        })
    }

    fn set_reservation(&self, name: String, reserve: Reservation) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.reserve(name, reserve))
    }

    fn create_snapshots(&self, snapshots: Vec<SnapshotRef>) -> NodeFuture<'_, Vec<SnapshotInfo>> {
        Box::pin(self.snapshot(snapshots))
    }

    fn list_snapshots(&self, query: SnapshotQuery) -> NodeFuture<'_, SnapshotPage> {
        Box::pin(self.snapshots(query))
    }

    fn show_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, SnapshotInfo> {
        Box::pin(self.show_one_snapshot(snapshot))
    }

    fn delete_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            let doing = format!("deleting snapshot '{snapshot}'");
            self.target_to_change(&snapshot.volume, &doing)?;
            let name = snapshot.to_string();
            self.on_snapshot(&snapshot, &doing, |core, engine, _, layer| async move {
                let engine = core.engine(engine).ok_or(DvolError::NotFound)?;
                core.check_settled(layer.id)?;
                core.recording.snapshot(NodeMark::SnapshotGoing, &name);
                let deleted = engine.delete_layer(layer).await;
                if deleted.is_ok() {
                    core.recording.snapshot(NodeMark::SnapshotGone, &name);
                }
                deleted
            })
            .await
        })
    }

    fn rename_snapshot(
        &self,
        snapshot: SnapshotRef,
        new_name: String,
    ) -> NodeFuture<'_, SnapshotInfo> {
        Box::pin(async move {
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
        })
    }

    fn open_stream(
        &self,
        snapshot: SnapshotRef,
        since: Option<String>,
    ) -> NodeFuture<'_, StreamSource> {
        Box::pin(self.open_stream_of(snapshot, since))
    }

    fn read_stream(&self, source: StreamSource, from_bytes: u64) -> NodeFuture<'_, StreamPart> {
        Box::pin(self.read_part_of(source, from_bytes))
    }

    fn begin_receive(&self, spec: ReceiveSpec) -> NodeFuture<'_, ReceiveId> {
        Box::pin(self.begin(spec))
    }

    fn receive_part(&self, id: ReceiveId, runs: Vec<StreamRun>) -> NodeFuture<'_, ()> {
        Box::pin(self.take_part(id, runs))
    }

    fn finish_receive(&self, id: ReceiveId) -> NodeFuture<'_, SnapshotInfo> {
        Box::pin(self.finish(id))
    }

    fn abandon_receive(&self, id: ReceiveId) -> NodeFuture<'_, ()> {
        Box::pin(self.abandon(id))
    }

    fn create_filesystem(&self, spec: FilesystemSpec) -> NodeFuture<'_, FilesystemInfo> {
        Box::pin(self.create_fs(spec))
    }

    fn list_filesystems(&self, query: PageQuery) -> NodeFuture<'_, FilesystemPage> {
        Box::pin(self.list_fs(query))
    }

    fn show_filesystem(&self, name: String) -> NodeFuture<'_, FilesystemInfo> {
        Box::pin(self.show_fs(name))
    }

    fn change_filesystem(
        &self,
        name: String,
        changes: FilesystemChanges,
    ) -> NodeFuture<'_, FilesystemInfo> {
        Box::pin(self.change_fs(name, changes))
    }

    fn set_image_store(
        &self,
        filesystem: String,
        spec: ImageStoreSpec,
    ) -> NodeFuture<'_, FilesystemInfo> {
        Box::pin(self.set_fs_image_store(filesystem, spec))
    }

    fn delete_filesystem(
        &self,
        name: String,
        with_snapshots: bool,
        even_if_used: bool,
    ) -> NodeFuture<'_, ()> {
        Box::pin(self.delete_fs(name, with_snapshots, even_if_used))
    }

    fn roll_back_filesystem(
        &self,
        filesystem: String,
        snapshot: String,
    ) -> NodeFuture<'_, FilesystemInfo> {
        Box::pin(self.roll_back_fs(filesystem, snapshot))
    }

    fn check_filesystems(&self, name: Option<String>) -> NodeFuture<'_, FilesystemCheck> {
        Box::pin(self.check_fs(name))
    }

    fn create_filesystem_snapshot(
        &self,
        filesystem: String,
        name: String,
    ) -> NodeFuture<'_, FilesystemSnapshotInfo> {
        Box::pin(self.snapshot_fs(filesystem, name))
    }

    fn clone_file(&self, filesystem: String, spec: FileCloneSpec) -> NodeFuture<'_, ClonedFile> {
        Box::pin(self.clone_fs_file(filesystem, spec))
    }

    fn list_filesystem_snapshots(
        &self,
        filesystem: String,
    ) -> NodeFuture<'_, FilesystemSnapshotPage> {
        Box::pin(self.list_fs_snapshots(filesystem))
    }

    fn delete_filesystem_snapshot(&self, filesystem: String, name: String) -> NodeFuture<'_, ()> {
        Box::pin(self.delete_fs_snapshot(filesystem, name))
    }

    fn list_devices(&self) -> NodeFuture<'_, Vec<DeviceInfo>> {
        Box::pin(async move {
            let mut infos = Vec::new();
            for index in 0..self.devices.len() {
                infos.push(self.device_info(index).await?);
            }
            infos.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(infos)
        })
    }

    fn show_device(&self, device: String) -> NodeFuture<'_, DeviceInfo> {
        Box::pin(async move {
            let index = self.device_index(&device, "showing a device")?;
            self.device_info(index).await
        })
    }

    fn list_journals(&self, device: String) -> NodeFuture<'_, Vec<JournalInfo>> {
        Box::pin(self.journals_of(device))
    }

    fn hand_over_journal(
        &self,
        device: String,
        journal: u16,
        core: u32,
    ) -> NodeFuture<'_, HandedOverJournal> {
        Box::pin(self.hand_over(device, journal, core))
    }

    fn start_scrub(&self, device: String) -> NodeFuture<'_, ScrubStatus> {
        Box::pin(async move {
            let index = self.device_index(&device, "starting a scrub")?;
            self.scrub(index).await
        })
    }

    fn scrub_status(&self, device: String) -> NodeFuture<'_, ScrubStatus> {
        Box::pin(async move {
            let index = self.device_index(&device, "asking for a scrub's status")?;
            self.scrub_info(index).await
        })
    }

    fn info(&self) -> NodeFuture<'_, NodeInfo> {
        Box::pin(self.node_info())
    }

    fn metrics(&self) -> NodeFuture<'_, MetricsSnapshot> {
        Box::pin(self.collect_metrics())
    }

    fn look(&self) -> NodeFuture<'_, Look> {
        Box::pin(self.look_at_all())
    }

    fn shutdown(&self) -> NodeFuture<'_, ()> {
        Box::pin(self.stop())
    }
}

fn reserved_bytes(reserve: Reservation, size_bytes: u64) -> u64 {
    match reserve {
        Reservation::None => 0,
        Reservation::Full => size_bytes,
        Reservation::Bytes(bytes) => bytes,
    }
}

impl RealNode {
    fn device_index(&self, device: &str, doing: &str) -> Result<usize, NodeError> {
        let found = self
            .devices
            .iter()
            .position(|d| d.name == device || d.id == device);
        found.ok_or_else(|| no_such_device(device, doing))
    }

    /// Starts a scrub on every engine of a device, unless one runs.
    async fn scrub(&self, device: usize) -> Result<ScrubStatus, NodeError> {
        let running = {
            let mut scrubs = self.scrubs.lock().unwrap_or_else(PoisonError::into_inner);
            let running = scrubs[device].state == ScrubState::Running;
            if !running {
                scrubs[device] = ScrubStatus {
                    state: ScrubState::Running,
                    started_ns: describe::wall_clock_ns(),
                    ..ScrubStatus::default()
                };
            }
            running
        };
        if !running {
            for core in 0..self.remotes.len() {
                self.on_core(core, "starting a scrub", move |core| async move {
                    for (_, owned) in core.engines.of(device) {
                        core.scrub(owned.engine.clone());
                    }
                })
                .await?;
            }
        }
        self.scrub_info(device).await
    }
}

impl CoreNode {
    /// Scrubs a journal's volumes beside all else.
    fn scrub(&self, engine: Engine<UringPlatform>) {
        // Fails only when the engine stops, which the status tells.
        let scrub = async move { drop(engine.scrub(SCRUB_PAUSE_NS).await) };
        flagstone_platform::Platform::spawn(&self.platform, scrub);
    }
}

/// Between two steps of a scrub, of at most 1 MiB each: leaves the device mostly to clients.
const SCRUB_PAUSE_NS: u64 = 2_000_000;
