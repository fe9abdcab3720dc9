//! A node in memory.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::*;

use crate::fake_state::State;

/// A node in memory. A volume name that begins with `slow` makes creating it take 300 ms, `panic`
/// makes it panic.
pub(crate) struct FakeNode {
    pub(crate) state: Mutex<State>,
    pub(crate) metrics: Mutex<MetricsSnapshot>,
    /// What it is found to have counted, one after the other; at last it stays as it is.
    pub(crate) looks: Mutex<VecDeque<Look>>,
    /// Calls of `info` that find it starting, before it is ready.
    pub(crate) starting: AtomicU32,
    pub(crate) shutdowns: AtomicU32,
    /// How often it was asked for anything.
    pub(crate) calls: AtomicU32,
    pub(crate) options: Option<NodeOptions>,
}

impl FakeNode {
    pub(crate) fn new() -> FakeNode {
        FakeNode {
            state: Mutex::default(),
            metrics: Mutex::default(),
            looks: Mutex::default(),
            starting: AtomicU32::new(0),
            shutdowns: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            options: None,
        }
    }

    /// How many places that were promised were given back.
    pub(crate) fn given_back(&self) -> u32 {
        let state = self.state.lock();
        state
            .expect("no test panics while it holds the lock")
            .given_back
    }

    fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, NodeError>,
    ) -> NodeFuture<'_, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = act(&mut self
            .state
            .lock()
            .expect("no test panics while it holds the lock"));
        Box::pin(async move { answer })
    }
}

impl Node for FakeNode {
    fn create_volume(&self, spec: VolumeSpec) -> NodeFuture<'_, CreatedVolume> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if spec.name.starts_with("slow") {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            assert!(!spec.name.starts_with("panic"), "a bug in the node");
            self.with(|state| state.create(spec)).await
        })
    }

    fn create_token(&self, volume: String, spec: TokenSpec) -> NodeFuture<'_, NewToken> {
        self.with(|state| state.create_token(&volume, spec))
    }

    fn restrict_volume(
        &self,
        name: String,
        restrictions: Restrictions,
    ) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| {
            let volume = state.volume("restricting", &name)?;
            volume.restrictions = restrictions;
            Ok(volume.clone())
        })
    }

    fn list_tokens(&self, volume: String) -> NodeFuture<'_, TokenList> {
        self.with(|state| state.list_tokens(&volume))
    }

    fn revoke_token(&self, volume: String, number: u32) -> NodeFuture<'_, TokenInfo> {
        self.with(|state| state.revoke_token(&volume, number))
    }

    fn rotate_token(
        &self,
        volume: String,
        number: u32,
        spec: RotateSpec,
    ) -> NodeFuture<'_, NewToken> {
        self.with(|state| state.rotate_token(&volume, number, spec))
    }

    fn list_volumes(&self, query: PageQuery) -> NodeFuture<'_, VolumePage> {
        self.with(|state| Ok(state.list(&query)))
    }

    fn show_volume(&self, name: String) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.show(&name))
    }

    fn resize_volume(
        &self,
        name: String,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.resize(&name, size_bytes, allow_data_loss))
    }

    fn rename_volume(&self, name: String, new_name: String) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.rename(&name, &new_name))
    }

    fn delete_volume(&self, name: String, with_snapshots: bool) -> NodeFuture<'_, ()> {
        self.with(|state| state.delete(&name, with_snapshots))
    }

    fn clone_volume(&self, source: SourceRef, new_name: String) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.clone_volume(&source, &new_name))
    }

    fn check_departure(&self, name: String) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.check_departure(&name))
    }

    fn promise_arrival(&self, spec: ArrivalSpec) -> NodeFuture<'_, Arrival> {
        self.with(|state| state.promise_arrival(&spec))
    }

    fn move_volume(&self, name: String, spec: MoveSpec) -> NodeFuture<'_, MoveInfo> {
        self.with(|state| state.begin_move(&name, &spec))
    }

    fn show_move(&self, name: String) -> NodeFuture<'_, MoveInfo> {
        self.with(|state| state.next_of_move(&name))
    }

    fn cancel_move(&self, name: String) -> NodeFuture<'_, MoveInfo> {
        self.with(|state| state.cancel_move(&name))
    }

    fn give_back_arrival(&self, number: u32) -> NodeFuture<'_, ArrivingVolume> {
        self.with(|state| state.give_back_arrival(number))
    }

    fn limit_move(&self, name: String, limit_bytes: Option<u64>) -> NodeFuture<'_, MoveInfo> {
        self.with(|state| state.limit_move(&name, limit_bytes))
    }

    fn force_move(&self, name: String, word: MoveWord) -> NodeFuture<'_, ForcedMove> {
        self.with(|state| state.force_move(&name, word))
    }

    fn rollback_volume(&self, snapshot: SnapshotRef) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.rollback(&snapshot))
    }

    fn set_reservation(&self, name: String, reserve: Reservation) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.reserve(&name, reserve))
    }

    fn set_slo(&self, name: String, slo: Slo, oversubscribe: bool) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.set_slo(&name, slo, oversubscribe))
    }

    fn set_snapshot_schedule(
        &self,
        name: String,
        schedule: Option<SnapshotSchedule>,
    ) -> NodeFuture<'_, VolumeInfo> {
        self.with(|state| state.set_snapshot_schedule(&name, schedule))
    }

    fn set_schedule(&self, device: String, schedule: Schedule) -> NodeFuture<'_, DeviceInfo> {
        self.with(|state| state.set_schedule(&device, schedule))
    }

    fn create_snapshots(&self, snapshots: Vec<SnapshotRef>) -> NodeFuture<'_, Vec<SnapshotInfo>> {
        self.with(|state| state.create_snapshots(&snapshots))
    }

    fn list_snapshots(&self, query: SnapshotQuery) -> NodeFuture<'_, SnapshotPage> {
        self.with(|state| state.list_snapshots(&query))
    }

    fn show_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, SnapshotInfo> {
        self.with(|state| state.snapshot("showing", &snapshot).cloned())
    }

    fn delete_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, ()> {
        self.with(|state| state.delete_snapshot(&snapshot))
    }

    fn rename_snapshot(
        &self,
        snapshot: SnapshotRef,
        new_name: String,
    ) -> NodeFuture<'_, SnapshotInfo> {
        self.with(|state| state.rename_snapshot(&snapshot, &new_name))
    }

    fn open_stream(
        &self,
        snapshot: SnapshotRef,
        since: Option<String>,
    ) -> NodeFuture<'_, StreamSource> {
        self.with(|state| state.open_stream(&snapshot, since))
    }

    fn read_stream(&self, source: StreamSource, from_bytes: u64) -> NodeFuture<'_, StreamPart> {
        self.with(|state| state.read_stream(&source, from_bytes))
    }

    fn begin_receive(&self, spec: ReceiveSpec) -> NodeFuture<'_, ReceiveId> {
        self.with(|state| state.begin_receive(spec))
    }

    fn receive_part(&self, id: ReceiveId, runs: Vec<StreamRun>) -> NodeFuture<'_, ()> {
        self.with(|state| state.receive_part(id, runs))
    }

    fn finish_receive(&self, id: ReceiveId) -> NodeFuture<'_, SnapshotInfo> {
        self.with(|state| state.finish_receive(id))
    }

    fn abandon_receive(&self, id: ReceiveId) -> NodeFuture<'_, ()> {
        self.with(|state| state.abandon_receive(id))
    }

    fn create_filesystem(&self, spec: FilesystemSpec) -> NodeFuture<'_, FilesystemInfo> {
        self.with(|state| state.filesystems.create(&spec))
    }

    fn list_filesystems(&self, query: PageQuery) -> NodeFuture<'_, FilesystemPage> {
        self.with(|state| Ok(state.filesystems.list(&query)))
    }

    fn show_filesystem(&self, name: String) -> NodeFuture<'_, FilesystemInfo> {
        self.with(|state| state.filesystems.show(&name))
    }

    fn change_filesystem(
        &self,
        name: String,
        changes: FilesystemChanges,
    ) -> NodeFuture<'_, FilesystemInfo> {
        self.with(|state| state.filesystems.change(&name, changes))
    }

    fn set_image_store(
        &self,
        filesystem: String,
        spec: ImageStoreSpec,
    ) -> NodeFuture<'_, FilesystemInfo> {
        self.with(|state| state.filesystems.set_image_store(&filesystem, spec))
    }

    fn delete_filesystem(
        &self,
        name: String,
        with_snapshots: bool,
        even_if_used: bool,
    ) -> NodeFuture<'_, ()> {
        self.with(|state| {
            let all = &mut state.filesystems;
            all.delete(&name, with_snapshots, even_if_used)
        })
    }

    fn roll_back_filesystem(
        &self,
        filesystem: String,
        snapshot: String,
    ) -> NodeFuture<'_, FilesystemInfo> {
        self.with(|state| state.filesystems.roll_back(&filesystem, &snapshot))
    }

    fn check_filesystems(&self, name: Option<String>) -> NodeFuture<'_, FilesystemCheck> {
        self.with(|state| state.filesystems.check(name.as_deref()))
    }

    fn create_filesystem_snapshot(
        &self,
        filesystem: String,
        name: String,
    ) -> NodeFuture<'_, FilesystemSnapshotInfo> {
        self.with(|state| state.filesystems.snapshot(&filesystem, &name))
    }

    fn clone_file(&self, filesystem: String, spec: FileCloneSpec) -> NodeFuture<'_, ClonedFile> {
        self.with(|state| state.filesystems.clone_file(&filesystem, spec))
    }

    fn list_filesystem_snapshots(
        &self,
        filesystem: String,
    ) -> NodeFuture<'_, FilesystemSnapshotPage> {
        self.with(|state| state.filesystems.snapshots(&filesystem))
    }

    fn delete_filesystem_snapshot(&self, filesystem: String, name: String) -> NodeFuture<'_, ()> {
        self.with(|state| state.filesystems.delete_snapshot(&filesystem, &name))
    }

    fn list_devices(&self) -> NodeFuture<'_, Vec<DeviceInfo>> {
        self.with(|state| Ok(vec![state.device("device")?]))
    }

    fn show_device(&self, device: String) -> NodeFuture<'_, DeviceInfo> {
        self.with(|state| state.device(&device))
    }

    fn list_journals(&self, device: String) -> NodeFuture<'_, Vec<JournalInfo>> {
        self.with(|state| state.journals(&device))
    }

    fn hand_over_journal(
        &self,
        device: String,
        journal: u16,
        core: u32,
    ) -> NodeFuture<'_, HandedOverJournal> {
        self.with(|state| state.hand_over(&device, journal, core))
    }

    fn read_trace(&self, device: String, query: TraceQuery) -> NodeFuture<'_, DeviceTrace> {
        self.with(|state| state.trace(&device, &query))
    }

    fn start_scrub(&self, device: String) -> NodeFuture<'_, ScrubStatus> {
        self.with(|state| state.scrub(&device, true))
    }

    fn scrub_status(&self, device: String) -> NodeFuture<'_, ScrubStatus> {
        self.with(|state| state.scrub(&device, false))
    }

    fn info(&self) -> NodeFuture<'_, NodeInfo> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let waits = self.starting.load(Ordering::Relaxed);
        self.starting
            .store(waits.saturating_sub(1), Ordering::Relaxed);
        let core = |core| CoreInfo {
            core,
            cpu: Some(core),
            volume_count: 1,
            connection_count: 2,
        };
        let options = self.options.as_ref();
        let info = NodeInfo {
            version: "0.1.0".to_string(),
            pid: std::process::id(),
            state: if waits > 0 {
                NodeState::Starting
            } else {
                NodeState::Ready
            },
            started_ns: 1_700_000_000_000_000_000,
            uptime_s: 3700,
            cores: vec![core(0), core(1)],
            api_address: String::new(),
            nbd_addresses: vec!["127.0.0.1:10809".to_string()],
            nbd_unix: options
                .and_then(|options| options.nbd_unix.as_ref())
                .map(|path| path.display().to_string()),
            has_portmapper: false,
            native_addresses: Vec::new(),
            nfs_addresses: options
                .and_then(|options| options.nfs)
                .map(|_| "127.0.0.1:12049".to_string())
                .into_iter()
                .collect(),
            arriving: vec![ArrivingVolume {
                volume: "comes".to_owned(),
                id: "2f".repeat(16),
                device: "device".to_owned(),
                core: 1,
                has_begun: true,
                from: Some("10.0.0.9".to_owned()),
                silent_s: 90,
                ends_in_s: 86_310,
            }],
            notices: vec!["registered buffers are off: `ulimit -l` is 8 MiB".to_string()],
        };
        Box::pin(async move { Ok(info) })
    }

    fn metrics(&self) -> NodeFuture<'_, MetricsSnapshot> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let metrics = self.metrics.lock().expect("no test panics with it").clone();
        Box::pin(async move { Ok(metrics) })
    }

    fn look(&self) -> NodeFuture<'_, Look> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut looks = self.looks.lock().expect("no test panics with it");
        let look = match looks.len() {
            0 | 1 => looks.front().cloned(),
            _ => looks.pop_front(),
        };
        drop(looks);
        Box::pin(async move { Ok(look.unwrap_or_default()) })
    }

    fn shutdown(&self) -> NodeFuture<'_, ()> {
        self.shutdowns.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }
}
