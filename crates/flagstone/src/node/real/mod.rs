//! The real node: cores on io_uring, devices, gateways.
//!
//! Each core runs some journals of each device (at the start journal j on core j modulo the number of cores; `journals/` hands them on) and
//! a gateway for every client. The control side reaches a core by messages and waits for the
//! answer; nothing here runs on the data path.

mod access;
mod attributes;
mod background;
mod between;
mod core;
mod creation;
mod describe;
mod engines;
mod epochs;
mod errors;
mod files;
mod journals;
mod look;
mod moves;
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
mod snapshots;
mod start;
mod stripes;
mod traces;
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

use flagstone_device::engine::{DvolError, Engine, Handle, ScrubReport};
use flagstone_platform::layers::Layers;
use flagstone_runtime::{CoreRemote, DeviceLock, Refused, Runtime, UringPlatform};
use flagstone_sched::Device as DividedDevice;

use self::access::Access;
use self::between::Between;
use self::core::{CoreNode, current};
use self::errors::{closed, no_such_device, no_such_volume, node_error};
use self::journals::Homes;
use self::names::{Names, Place};
use self::receive::OneReceive;
use self::recording::Recording;
use self::slo::Floors;
use super::{
    Arrival, ArrivalSpec, ArrivingVolume, ClonedFile, CreatedVolume, DeviceInfo, DeviceTrace,
    FileCloneSpec, FilesystemChanges, FilesystemCheck, FilesystemInfo, FilesystemPage,
    FilesystemSnapshotInfo, FilesystemSnapshotPage, FilesystemSpec, ForcedMove, HandedOverJournal,
    ImageStoreSpec, JournalInfo, Look, MetricsSnapshot, MoveInfo, MoveSpec, MoveWord, NewToken,
    Node, NodeError, NodeErrorKind, NodeFuture, NodeInfo, PageQuery, ReceiveId, ReceiveSpec,
    Reservation, Restrictions, RotateSpec, Schedule, ScrubState, ScrubStatus, Slo, SnapshotInfo,
    SnapshotPage, SnapshotQuery, SnapshotSchedule, StreamPart, StreamRun, StreamSource, TokenInfo,
    TokenList, TokenSpec, TraceQuery, VolumeInfo, VolumePage, VolumeSpec,
};
use crate::name::{SnapshotRef, SourceRef};

pub use start::start;

#[cfg(test)]
mod tests;

/// How often and how long a message is offered to a core whose mailbox is full.
const SEND_TRIES: u32 = 1000;
const SEND_PAUSE: Duration = Duration::from_millis(2);

/// How often a volume is looked for that is somewhere else each time.
const FOLLOWS_MAX: u32 = 16;

/// A device of the node.
struct Device {
    name: String,
    path: PathBuf,
    id: String,
    format_version: u32,
    /// Journals it has; `Homes` says which core serves each.
    journal_count: usize,
    /// What its cores ask it for passes these.
    layers: Option<Arc<Layers>>,
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
    /// What the wall clock showed, when the node was started, at the beginning of the cores' time.
    clock_ns: u64,
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
    /// How long a stop waits for those who are at work.
    stop_grace: Duration,
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
        let (mut place, mut work) = (target.place, work);
        for _ in 0..FOLLOWS_MAX {
            let name = target.name.clone();
            let asked = self.on_core(place.core, doing, move |core| async move {
                let engine = core.engine(place.engine);
                match engine.and_then(|engine| engine.dvol_with(place.id, &name)) {
                    Some(info) => Ok(work(core, info.handle).await),
                    None => Err(work),
                }
            });
            work = match asked.await? {
                Ok(done) => return done.map_err(|error| node_error(error, doing)),
                Err(back) => back,
            };
            match self.names.place_of(place.id) {
                // Its journal went to another core in this moment.
                Some((_, now)) if now != place && now.engine == place.engine => place = now,
                Some((_, now)) if now != place => break,
                _ => {
                    return Err(match self.homes.closed(place.engine) {
                        Some(why) => closed(why, doing),
                        // Its journal was on its way to another core, and is nowhere now.
                        None if self.stopping.load(Ordering::Acquire) => {
                            node_error(DvolError::Stopping, doing)
                        }
                        None => node_error(DvolError::NotFound, doing),
                    });
                }
            }
        }
        let found = "it went to another place of the node in this moment";
        Err(NodeError::new(NodeErrorKind::Busy, doing, found).next("try again"))
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
            let stopping = self.on_core(core, "stopping the node", |core| async move {
                core.stop_serving().await;
            });
            // One that has stopped already is told below.
            let _ = stopping.await;
        }
        self.moves.let_end(self.stop_grace).await;
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
        Box::pin(async move { self.end_move(&name).await })
    }

    fn give_back_arrival(&self, number: u32) -> NodeFuture<'_, ArrivingVolume> {
        Box::pin(self.give_back(number))
    }

    fn limit_move(&self, name: String, limit_bytes: Option<u64>) -> NodeFuture<'_, MoveInfo> {
        Box::pin(async move { self.change_move_limit(&name, limit_bytes) })
    }

    fn force_move(&self, name: String, word: MoveWord) -> NodeFuture<'_, ForcedMove> {
        Box::pin(self.force(name, word))
    }

    fn clone_volume(&self, source: SourceRef, new_name: String) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.clone_from(source, new_name))
    }

    fn rollback_volume(&self, snapshot: SnapshotRef) -> NodeFuture<'_, VolumeInfo> {
        Box::pin(self.roll_back(snapshot))
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
        Box::pin(self.delete_one_snapshot(snapshot))
    }

    fn rename_snapshot(
        &self,
        snapshot: SnapshotRef,
        new_name: String,
    ) -> NodeFuture<'_, SnapshotInfo> {
        Box::pin(self.rename_one_snapshot(snapshot, new_name))
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

    fn read_trace(&self, device: String, query: TraceQuery) -> NodeFuture<'_, DeviceTrace> {
        Box::pin(async move { self.trace_of(&device, &query) })
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
        let (running, before) = {
            let mut scrubs = self.scrubs.lock().unwrap_or_else(PoisonError::into_inner);
            let before = scrubs[device].clone();
            let running = before.state == ScrubState::Running;
            if !running {
                scrubs[device] = ScrubStatus {
                    state: ScrubState::Running,
                    started_ns: describe::wall_clock_ns(),
                    ..ScrubStatus::default()
                };
            }
            (running, before)
        };
        if !running {
            let begun = self.on_journals(device, "starting a scrub", |core, owned| {
                // One that goes is scrubbed where it arrives.
                let stays = !owned.making.is_shut();
                stays.then(|| core.scrub(owned.engine.clone()))
            });
            if let Err(error) = begun.await {
                // None, or not all of them: what there is to be told is of the one before.
                let mut scrubs = self.scrubs.lock().unwrap_or_else(PoisonError::into_inner);
                scrubs[device] = before;
                return Err(error);
            }
        }
        self.scrub_info(device).await
    }
}

impl CoreNode {
    /// Scrubs a journal's volumes beside all else.
    fn scrub(&self, engine: Engine<UringPlatform>) {
        // It has begun, whoever asks from here on.
        engine.go_by_scrub(ScrubReport::default());
        // Fails only when the engine stops, which the status tells.
        let scrub = async move { drop(engine.scrub(SCRUB_PAUSE_NS).await) };
        flagstone_platform::Platform::spawn(&self.platform, scrub);
    }
}

/// Between two steps of a scrub, of at most 1 MiB each: leaves the device mostly to clients.
const SCRUB_PAUSE_NS: u64 = 2_000_000;
