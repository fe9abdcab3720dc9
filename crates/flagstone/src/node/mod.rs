//! What the control side needs of a node: one trait, [`Node`], and the plain structs it speaks.
//!
//! The real node (`real`) passes each call to the cores as messages and gathers their answers;
//! tests have one in memory. Every struct here is also what the HTTP API shows (see
//! `docs/operating.md`), so a change to one is a change to the API and to `tests/snapshots`.
//!
//! Contract of the calls:
//! - A name in a request was checked by [`crate::name::check_name`]; the rest was not.
//! - A change that was answered survives power loss.
//! - The API carries a call to its end even if its client goes away, so an operation is never left
//!   half done; if its time runs out the client is told that it may still happen.
//! - Lists are sorted by name and paged: a page costs what it holds, not what the node holds.

mod activity;
mod error;
mod explain;
mod filesystems;
mod journals;
mod look;
mod metrics;
mod moves;
mod options;
mod points;
pub mod real;
mod slo;
mod snapshot_schedule;
mod stream;
mod tokens;
mod trace;
mod types;

use std::future::Future;
use std::pin::Pin;

pub use activity::{
    ACTIVITY_ROWS_MAX, Activity, ActivityOrder, ActivityQuery, CoreActivity, DeviceActivity,
    DeviceUser, FilesystemActivity, INTERVAL_LEAST_MS, INTERVAL_MOST_MS, Latency, OpActivity,
    SloState, VolumeActivity, activity,
};
pub use error::{NodeError, NodeErrorKind};
pub use explain::{Cause, CauseKind, Explanation, Measured, Note, NoteKind, Took, explanation};
pub use filesystems::{
    CheckedFilesystem, ClonedFile, FileCloneSpec, FilesystemChanges, FilesystemCheck,
    FilesystemInfo, FilesystemPage, FilesystemPart, FilesystemSnapshotInfo, FilesystemSnapshotPage,
    FilesystemSpec, ImageStoreSpec,
};
pub use journals::{HandOverSpec, HandedOverJournal, JournalInfo, JournalPage};
pub use look::{
    CoreLook, DeviceFacts, DeviceLook, IoMark, Look, MemberLook, ServerLook, VolumeLook,
    filesystem_name,
};
pub use metrics::{
    CoreMetrics, DeviceMetrics, ErrorCount, FilesystemIo, FilesystemMetrics, IoMetrics, MetricKind,
    MetricsSnapshot, NamedValue, NfsCallMetrics, TurnMetrics, VolumeMetrics,
};
pub use moves::{
    Arrival, ArrivalKey, ArrivalSpec, ArrivingVolume, ForceMoveSpec, ForcedMove, ForcedOutcome,
    Fork, ForkState, MoveInfo, MovePhase, MovePlace, MoveSpec, MoveState, MoveWait, MoveWaitsFor,
    MoveWord,
};
pub use options::{
    BLOCK_CACHE_DEFAULT_BYTES, DeviceOptions, ExportOptions, FAILURE_DOMAIN_MAX_BYTES, KeepAwake,
    MAP_CACHE_DEFAULT_BYTES, NATIVE_CONNECTIONS_DEFAULT, NBD_CONNECTIONS_DEFAULT, NodeOptions,
    SCRUB_DAYS_DEFAULT, STOP_GRACE_DEFAULT_MS, VOLUMES_EXPORT,
};
pub use points::{MoveHooks, MovePoint};
pub use slo::{
    BACKGROUND_DEFAULT_PERCENT, BACKGROUND_MAX_PERCENT, DeviceCeiling, Rates, Schedule,
    SchedulePolicy, Slo, SloLimit, SloPromise,
};
pub use snapshot_schedule::{
    EVERY_LEAST_S, EVERY_MOST_S, STAY_MOST, ScheduledSnapshots, SnapshotSchedule,
};
pub use stream::{
    PART_MAX_BYTES, PART_MAX_RUNS, ReceiveId, ReceiveSpec, StreamHold, StreamPart, StreamRun,
    StreamSource,
};
pub use tokens::{
    CreatedVolume, NewToken, RESTRICTIONS_MAX, ROTATION_OVERLAP_S, Restrictions, RotateSpec,
    TOKEN_LABEL_BYTES_MAX, TOKENS_MAX, TokenInfo, TokenKind, TokenList, TokenSpec, TokenState,
    TokenText,
};
pub use trace::{
    DeviceTrace, TRACE_ROWS_DEFAULT, TRACE_ROWS_MAX, TraceQuery, TracedKind, TracedOperation,
    TracedResult,
};
pub use types::{
    CoreInfo, DeviceInfo, DevicePage, NodeInfo, NodeState, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX,
    PageQuery, Reservation, STRIPE_UNIT_DEFAULT_BYTES, ScrubState, ScrubStatus, SnapshotInfo,
    SnapshotPage, SnapshotQuery, StripeInfo, StripeMember, VolumeInfo, VolumePage, VolumeSpec,
};

use crate::name::{SnapshotRef, SourceRef};

/// The future of one call: boxed, because the API holds its node as `dyn Node`.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, NodeError>> + Send + 'a>>;

/// A running node, as the control side sees it.
pub trait Node: Send + Sync + 'static {
    /// Creates an empty volume, with a token of its owner that is told only now. `AlreadyExists`, `NoSpace` (for its reservation), `NotFound` (the
    /// device or core named in the spec), `InvalidArgument` (its size is 0, or more is reserved than that).
    fn create_volume(&self, spec: VolumeSpec) -> NodeFuture<'_, CreatedVolume>;

    /// Makes a token of a volume; its key is told only now. `NotFound`, `InvalidArgument`, `TooMany` (it has
    /// [`TOKENS_MAX`] that are valid or in use).
    fn create_token(&self, volume: String, spec: TokenSpec) -> NodeFuture<'_, NewToken>;

    /// Sets from where a volume may be used, instead of what was set before. What is open stays open; NFS opens nothing.
    /// `NotFound`, `InvalidArgument` (more than [`RESTRICTIONS_MAX`] of either kind, or an address in a network in the place of the network).
    fn restrict_volume(
        &self,
        name: String,
        restrictions: Restrictions,
    ) -> NodeFuture<'_, VolumeInfo>;

    /// All tokens of a volume, by number, without their keys. `NotFound`.
    fn list_tokens(&self, volume: String) -> NodeFuture<'_, TokenList>;

    /// Revokes a token: nothing is opened with it any more, and each further request on what was is refused.
    /// Again changes nothing. `NotFound` (the volume, or the token).
    fn revoke_token(&self, volume: String, number: u32) -> NodeFuture<'_, TokenInfo>;

    /// Makes a token like another one of a volume, and has that one end, usually a day later: until then it opens the volume, so who has it
    /// open doesn't lose it when he has to open it again. What is open with it stays open behind that.
    /// `NotFound`, `InvalidArgument` (it has ended or was revoked), `TooMany` as for `create_token`.
    fn rotate_token(
        &self,
        volume: String,
        number: u32,
        spec: RotateSpec,
    ) -> NodeFuture<'_, NewToken>;

    /// Changes what a volume is promised and may not exceed, from now on, for its clients too. `NoSpace` if its device
    /// can't promise that beside what it has promised, unless `oversubscribe` is true; `InvalidArgument`.
    fn set_slo(&self, name: String, slo: Slo, oversubscribe: bool) -> NodeFuture<'_, VolumeInfo>;

    /// Changes when snapshots of a volume are taken by themselves, and which of them stay; `None`: none are taken, and
    /// those that were stay. `InvalidArgument`, `NotFound`, `Busy`.
    fn set_snapshot_schedule(
        &self,
        name: String,
        schedule: Option<SnapshotSchedule>,
    ) -> NodeFuture<'_, VolumeInfo>;

    /// A page of volumes, sorted by name.
    fn list_volumes(&self, query: PageQuery) -> NodeFuture<'_, VolumePage>;

    /// One volume. `NotFound`.
    fn show_volume(&self, name: String) -> NodeFuture<'_, VolumeInfo>;

    /// Grows or shrinks a volume. `Refused` if it would shrink and `allow_data_loss` is false;
    /// `NoSpace` if it is reserved in full and its device can't promise the difference;
    /// `InvalidArgument` (to nothing, or to more than clients can use).
    fn resize_volume(
        &self,
        name: String,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> NodeFuture<'_, VolumeInfo>;

    /// Gives a volume another name. Clients that are connected stay connected. `AlreadyExists`.
    fn rename_volume(&self, name: String, new_name: String) -> NodeFuture<'_, VolumeInfo>;

    /// Deletes a volume. `HasSnapshots` if it has any and `with_snapshots` is false. `Busy` if a
    /// client holds it open for writing, if the node tells such clients apart.
    fn delete_volume(&self, name: String, with_snapshots: bool) -> NodeFuture<'_, ()>;

    /// A volume that could go to another node now. `NotFound`, `Busy` (it is being moved or received, has come a moment ago, or is attached by NBD
    /// for whom this node couldn't pass on what they ask), `Refused` (it is a fork).
    fn check_departure(&self, name: String) -> NodeFuture<'_, VolumeInfo>;

    /// Promises that a volume of another node may come here, which takes its name for ten minutes. `AlreadyExists` (the name or the volume),
    /// `NotFound` (the device or core), `InvalidArgument`, `NoSpace` (what it is promised), `Busy` (it is coming), `Refused` (the native
    /// protocol isn't served).
    fn promise_arrival(&self, spec: ArrivalSpec) -> NodeFuture<'_, Arrival>;

    /// Gives back a place that a volume was promised, by the arrival's number. `NotFound`, also if the volume is on its way by now.
    fn give_back_arrival(&self, number: u32) -> NodeFuture<'_, ArrivingVolume>;

    /// Begins to move a volume to another device or core of the node, or to a place that another node has promised, with its snapshots, while
    /// it is used. `NotFound`, `InvalidArgument` (it is there), `Busy` (it is being moved or received, a move of it waits for a device, or it is
    /// attached by NBD and to leave the node), `NoSpace` (what it is promised, or has on a device of this node).
    fn move_volume(&self, name: String, spec: MoveSpec) -> NodeFuture<'_, MoveInfo>;

    /// The last move of a volume since the node was started, also one that was cut off before and waits for a device. `NotFound`.
    fn show_move(&self, name: String) -> NodeFuture<'_, MoveInfo>;

    /// Ends a move: the volume stays where it is, unless the move is over by then. `NotFound` if there is none. One that waits for a device is over
    /// with the answer, durably; `Busy` if the volume is being changed otherwise, or held. That of a volume which is on its way here from another node is
    /// over with the answer, too; of what is there the answer's `from` has only the address, or an empty one.
    fn cancel_move(&self, name: String) -> NodeFuture<'_, MoveInfo>;

    /// Has a move that runs copy so many bytes a second at most from now on, or as many as others leave; `NotFound` if none runs,
    /// `InvalidArgument` (so little that it would hardly end), `Busy` (it waits for a device).
    fn limit_move(&self, name: String, limit_bytes: Option<u64>) -> NodeFuture<'_, MoveInfo>;

    /// Ends by somebody's word what another node would have to end, which can't be asked: a volume that is held stays here, or one that has
    /// come is this node's. `NotFound`, `Busy` (the other node answers, or wasn't asked yet), `Refused` (there is nothing to end).
    fn force_move(&self, name: String, word: MoveWord) -> NodeFuture<'_, ForcedMove>;

    /// Starts a new volume from the state of another or of a snapshot. It stays on the device and
    /// core of its source, since it shares blocks with it.
    fn clone_volume(&self, source: SourceRef, new_name: String) -> NodeFuture<'_, VolumeInfo>;

    /// Makes a volume read as a snapshot of it did. Later snapshots stay.
    fn rollback_volume(&self, snapshot: SnapshotRef) -> NodeFuture<'_, VolumeInfo>;

    /// Changes how much space is kept free for a volume. `NoSpace`, `InvalidArgument` (more than its
    /// size).
    fn set_reservation(&self, name: String, reserve: Reservation) -> NodeFuture<'_, VolumeInfo>;

    /// Takes one or several snapshots in one instant: all or none of them exist afterwards, and no
    /// write lies between them. `InvalidArgument` if a name occurs twice or the node can't group
    /// these volumes.
    fn create_snapshots(&self, snapshots: Vec<SnapshotRef>) -> NodeFuture<'_, Vec<SnapshotInfo>>;

    /// A page of snapshots, sorted by volume, then name.
    fn list_snapshots(&self, query: SnapshotQuery) -> NodeFuture<'_, SnapshotPage>;

    /// One snapshot. `NotFound`.
    fn show_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, SnapshotInfo>;

    /// Deletes a snapshot, in any order with regard to others and to clones.
    fn delete_snapshot(&self, snapshot: SnapshotRef) -> NodeFuture<'_, ()>;

    /// Gives a snapshot another name within its volume. `AlreadyExists`.
    fn rename_snapshot(
        &self,
        snapshot: SnapshotRef,
        new_name: String,
    ) -> NodeFuture<'_, SnapshotInfo>;

    /// Begins to send a snapshot: all of it, or what changed since an older one of the same volume. `NotFound`;
    /// `InvalidArgument` if the other is newer; `Refused` if what changed since isn't known any more.
    fn open_stream(
        &self,
        snapshot: SnapshotRef,
        since: Option<String>,
    ) -> NodeFuture<'_, StreamSource>;

    /// The part of a snapshot that begins at `from_bytes`. Costs what it has, and next to nothing for holes.
    /// `NotFound` if the snapshot has been deleted. The volume's schedule doesn't delete it before the source is
    /// dropped.
    fn read_stream(&self, source: StreamSource, from_bytes: u64) -> NodeFuture<'_, StreamPart>;

    /// Begins to receive a stream. Until [`finish_receive`](Node::finish_receive) nobody sees anything of it: a new
    /// volume isn't there, another one can't be opened. What a crash or a stop leaves is undone at the next start.
    /// `AlreadyExists`, `NotFound`, `Busy`, and `Refused` if an incremental stream doesn't fit the volume.
    fn begin_receive(&self, spec: ReceiveSpec) -> NodeFuture<'_, ReceiveId>;

    /// Takes the next part of a stream. After an error only [`abandon_receive`](Node::abandon_receive) is left.
    fn receive_part(&self, id: ReceiveId, runs: Vec<StreamRun>) -> NodeFuture<'_, ()>;

    /// The stream is whole: takes the snapshot and shows the volume, durably. After an error it is abandoned.
    fn finish_receive(&self, id: ReceiveId) -> NodeFuture<'_, SnapshotInfo>;

    /// The stream isn't whole: the volume is what it was before, or isn't there.
    fn abandon_receive(&self, id: ReceiveId) -> NodeFuture<'_, ()>;

    /// Creates an empty filesystem. `AlreadyExists`, `NoSpace`.
    fn create_filesystem(&self, spec: FilesystemSpec) -> NodeFuture<'_, FilesystemInfo>;

    /// A page of filesystems, sorted by name.
    fn list_filesystems(&self, query: PageQuery) -> NodeFuture<'_, FilesystemPage>;

    /// One filesystem. `NotFound`.
    fn show_filesystem(&self, name: String) -> NodeFuture<'_, FilesystemInfo>;

    /// Changes a filesystem's quotas, and which of its files are kept as volumes' data is. `NotFound`,
    /// `InvalidArgument`.
    fn change_filesystem(
        &self,
        name: String,
        changes: FilesystemChanges,
    ) -> NodeFuture<'_, FilesystemInfo>;

    /// Makes a directory of a filesystem an image store, or an ordinary one again. `NotFound`,
    /// `InvalidArgument` (what is no directory).
    fn set_image_store(
        &self,
        filesystem: String,
        spec: ImageStoreSpec,
    ) -> NodeFuture<'_, FilesystemInfo>;

    /// Deletes a filesystem; what it held is given back behind. `HasSnapshots` if it has any and
    /// `with_snapshots` is false. `Busy` if a client has used it within the last minute and `even_if_used` is
    /// false. `NotFound`.
    fn delete_filesystem(
        &self,
        name: String,
        with_snapshots: bool,
        even_if_used: bool,
    ) -> NodeFuture<'_, ()>;

    /// Makes a filesystem what it was when a snapshot of it was taken. Later snapshots stay. It goes on if it
    /// takes longer than a call should, which the answer says. `NotFound`, `Busy`.
    fn roll_back_filesystem(
        &self,
        filesystem: String,
        snapshot: String,
    ) -> NodeFuture<'_, FilesystemInfo>;

    /// Proves that a filesystem is whole, or all of them and what they are stored in. Clients that change
    /// something meanwhile wait. What is wrong is in the answer. `NotFound`.
    fn check_filesystems(&self, name: Option<String>) -> NodeFuture<'_, FilesystemCheck>;

    /// Takes a snapshot of a filesystem: everything that was answered before is in it. `AlreadyExists`,
    /// `NotFound`.
    fn create_filesystem_snapshot(
        &self,
        filesystem: String,
        name: String,
    ) -> NodeFuture<'_, FilesystemSnapshotInfo>;

    /// All snapshots of a filesystem, sorted by name. `NotFound`.
    fn list_filesystem_snapshots(
        &self,
        filesystem: String,
    ) -> NodeFuture<'_, FilesystemSnapshotPage>;

    /// Deletes a snapshot of a filesystem. `NotFound`.
    fn delete_filesystem_snapshot(&self, filesystem: String, name: String) -> NodeFuture<'_, ()>;

    /// Makes a file of a filesystem a copy of another one, in no time if that is large. `NotFound`,
    /// `AlreadyExists`, `InvalidArgument` (what is no regular file or no path), `NoSpace`.
    fn clone_file(&self, filesystem: String, spec: FileCloneSpec) -> NodeFuture<'_, ClonedFile>;

    /// All devices, sorted by name. There are few.
    fn list_devices(&self) -> NodeFuture<'_, Vec<DeviceInfo>>;

    /// One device, by name or id. `NotFound`.
    fn show_device(&self, device: String) -> NodeFuture<'_, DeviceInfo>;

    /// Divides a device in another way, within milliseconds and until the node is started again. `NotFound`,
    /// `InvalidArgument`.
    fn set_schedule(&self, device: String, schedule: Schedule) -> NodeFuture<'_, DeviceInfo>;

    /// The journals of a device, by number: which core serves each, and what is in it. `NotFound`.
    fn list_journals(&self, device: String) -> NodeFuture<'_, Vec<JournalInfo>>;

    /// Has another core serve a journal, with all its volumes, until the node is started again. Nothing is copied; clients wait for some
    /// milliseconds and go on. `NotFound`, `InvalidArgument` (it is there already, or filesystems are stored in it), `Busy` (one of its volumes is being
    /// moved, received into or sent).
    fn hand_over_journal(
        &self,
        device: String,
        journal: u16,
        core: u32,
    ) -> NodeFuture<'_, HandedOverJournal>;

    /// What a device was asked for, if it is behind a layer that traces. No core is asked: this says what a device hangs on. `NotFound` (the
    /// device, or it has no trace).
    fn read_trace(&self, device: String, query: TraceQuery) -> NodeFuture<'_, DeviceTrace>;

    /// Starts a scrub, or answers with the one that runs: every live block is read and checked.
    fn start_scrub(&self, device: String) -> NodeFuture<'_, ScrubStatus>;

    /// How far the last scrub is.
    fn scrub_status(&self, device: String) -> NodeFuture<'_, ScrubStatus>;

    /// The node itself. Every core has answered, so this doubles as the readiness check.
    fn info(&self) -> NodeFuture<'_, NodeInfo>;

    /// Counters and histograms, copied from the cores. Volumes without activity may be left out.
    fn metrics(&self) -> NodeFuture<'_, MetricsSnapshot>;

    /// What was counted until now, to be compared with what was counted at another moment. Volumes without activity
    /// may be left out.
    fn look(&self) -> NodeFuture<'_, Look>;

    /// Stops: refuses new connections, answers what is in flight, writes checkpoints and ends the
    /// cores. Called once, at the end.
    fn shutdown(&self) -> NodeFuture<'_, ()>;
}
