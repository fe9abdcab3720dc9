//! What the native server knows of volumes: everything that the device layer can do with them.
//!
//! The binary implements it over the device layer; tests implement it over memory.
//!
//! Unlike [`crate::volume::Volume`], which is what a disk can do, this has LSNs, conditions, snapshots and
//! epochs, and each request says how long it may wait.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Time};
use flagstone_types::{DeviceId, DvolId, Epoch, Lsn};
use flagstone_wire::Status;
use flagstone_wire::batch::ATTRIBUTES_BYTES;
use flagstone_wire::query::Run;
use smallvec::SmallVec;

pub use crate::volume::Stability;

/// Whether whoever asked is still there to hear the answer: of all requests of one connection.
#[derive(Clone, Default, Debug)]
pub struct Presence(Rc<Cell<bool>>);

impl Presence {
    /// No answer can be sent to it any more. Who waits on its terms is to be polled then.
    pub fn leave(&self) {
        self.0.set(true);
    }

    /// Whether it has left.
    pub fn has_left(&self) -> bool {
        self.0.get()
    }
}

/// On what terms a request is carried out.
#[derive(Debug, Default)]
pub struct Terms {
    /// If its turn has not come by then, it is not to be begun: [`NativeError::Late`]. `None`: it waits as
    /// long as it takes.
    pub until: Option<Time>,
    /// The epoch of whoever asks. A change by an epoch below the volume's is refused:
    /// [`NativeError::StaleEpoch`]. Without a meaning for what changes nothing.
    pub epoch: Epoch,
    /// Nobody's who may leave: `None`.
    client: Option<Presence>,
    waited_ns: Cell<u64>,
}

impl Terms {
    /// Terms of a request that has waited for `waited_ns` already.
    pub fn new(until: Option<Time>, epoch: Epoch, waited_ns: u64) -> Terms {
        Terms {
            until,
            epoch,
            client: None,
            waited_ns: Cell::new(waited_ns),
        }
    }

    /// The same of a client that may leave.
    #[must_use]
    pub fn of(self, client: Option<&Presence>) -> Terms {
        Terms {
            client: client.cloned(),
            ..self
        }
    }

    /// Who asks, if it may leave.
    pub fn client(&self) -> Option<&Presence> {
        self.client.as_ref()
    }

    /// True once nobody is there to hear the answer: what has not begun is not to be begun, and is answered [`NativeError::Late`]. Its task is polled
    /// when that becomes so.
    pub fn has_left(&self) -> bool {
        self.client.as_ref().is_some_and(Presence::has_left)
    }

    /// Adds nanoseconds during which the request waited for its turn, whatever came of it. The client is
    /// told.
    pub fn note_waited(&self, ns: u64) {
        self.waited_ns.set(self.waited_ns.get().saturating_add(ns));
    }

    /// Nanoseconds that it has waited so far.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.get()
    }

    /// True if at `now` it is too late to begin.
    pub fn is_late(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now > until)
    }
}

/// A part of what a read returns. Parts follow each other without gaps.
#[derive(Debug)]
pub enum Part {
    /// Bytes from the device, checked against their checksums. With their CRC32C if it is known, as it is
    /// of a whole block: then they are not passed over once more.
    Data(IoBuf, Option<u32>),
    /// This many bytes that were never written or were deallocated: they read as zeros.
    Zeros(u64),
}

/// What a read returns, in order.
pub type Parts = SmallVec<[Part; 4]>;

/// What is said of an open volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its id; a snapshot has that of its volume.
    pub id: DvolId,
    /// Its size now, in bytes.
    pub size_bytes: u64,
    /// Its epoch now.
    pub epoch: Epoch,
    /// Every change of it is refused, whoever asks.
    pub read_only: bool,
    /// It is a snapshot. Then it is read-only, too.
    pub snapshot: bool,
    /// History up to here is forgotten.
    pub floor: Lsn,
    /// The device that it lies on.
    pub device: DeviceId,
    /// What fails together with the device, as whoever runs the node calls it. At most 255 bytes are
    /// sent.
    pub failure_domain: Rc<str>,
}

/// A snapshot of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name, 1 to 128 bytes.
    pub name: String,
    /// Of the last change in it.
    pub lsn: Lsn,
    /// When it was taken, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Size of the volume when it was taken, in bytes.
    pub size_bytes: u64,
}

/// Something that must hold for a batch.
pub struct Condition<V> {
    /// Of which volume.
    pub volume: V,
    /// What.
    pub what: ConditionKind,
}

/// See [`Condition`].
pub enum ConditionKind {
    /// Nothing in the range has changed after this LSN. Otherwise [`NativeError::ConditionFailed`].
    UnchangedSince {
        /// From which byte.
        offset_bytes: u64,
        /// How many, 1 at least.
        len_bytes: u64,
        /// The LSN.
        lsn: Lsn,
    },
    /// The bytes there are these. Otherwise [`NativeError::NotEqual`].
    Equals {
        /// From which byte.
        offset_bytes: u64,
        /// The bytes, one at least.
        bytes: IoBuf,
    },
    /// The volume's epoch is not above this one. Otherwise [`NativeError::StaleEpoch`].
    Epoch(Epoch),
}

/// A change of a batch.
pub struct Change<V> {
    /// Of which volume.
    pub volume: V,
    /// The epoch of whoever asks, in place of that in [`Terms`]: batches are of several volumes.
    pub epoch: Epoch,
    /// What.
    pub what: ChangeKind,
}

/// See [`Change`].
pub enum ChangeKind {
    /// The bytes are written.
    Write {
        /// From which byte.
        offset_bytes: u64,
        /// The bytes, one at least, at any address in memory.
        data: IoBuf,
        /// Of each block written.
        metadata: u64,
    },
    /// Whole blocks are given back.
    Deallocate {
        /// From which byte, a multiple of 4,096.
        offset_bytes: u64,
        /// How many, a multiple of 4,096, one block at least.
        len_bytes: u64,
    },
    /// These become the volume's attributes.
    SetAttributes([u8; ATTRIBUTES_BYTES as usize]),
}

/// A range of a volume.
pub struct VolumeRange<V> {
    /// Of which volume.
    pub volume: V,
    /// From which byte.
    pub offset_bytes: u64,
    /// How many, 1 at least.
    pub len_bytes: u64,
}

/// Why an operation failed. Each has a status of its own, which says whether it was carried out.
#[derive(Clone, Debug)]
pub enum NativeError {
    /// It makes no sense, or is larger than one atomic unit can be: what is wrong, as a sentence for people.
    Invalid(&'static str),
    /// More bytes are asked for than can be read in one go.
    TooLong,
    /// The volume is on another core or node, which listens there. Nothing was done.
    Moved(SocketAddr),
    /// The volume was deleted.
    Gone,
    /// No more of these can be: of what, and what to do, as a sentence for people.
    Limit(&'static str),
    /// Its core is busy, or whose the volume is isn't known. Nothing was done.
    Busy,
    /// Its turn came after [`Terms::until`]. Nothing was done.
    Late,
    /// The node is stopping. Nothing was done.
    Stopping,
    /// The range leaves the volume.
    OutOfRange,
    /// The volume can't be written, or is a snapshot.
    ReadOnly,
    /// The device, or the volume's reservation, has no room. Of a change that was carried out in parts, some
    /// may have been.
    NoSpace,
    /// Stored bytes don't match their checksum. Never answered with data.
    Corrupt,
    /// The device failed the operation.
    Device,
    /// A flush failed earlier: the device takes no more changes until the node is restarted.
    Fenced,
    /// The epoch of whoever asks is below the volume's.
    StaleEpoch,
    /// A range has changed: by the change with this LSN, or [`Lsn::ZERO`] if it isn't known.
    ConditionFailed(Lsn),
    /// The bytes are others than expected: these for [`NativeVolume::compare_and_swap`], none for batches.
    NotEqual(Option<IoBuf>),
    /// What changed since then is forgotten.
    Forgotten,
    /// The volumes of a batch are not in one journal.
    NotTogether,
    /// The name is taken.
    Exists,
    /// There is no such snapshot.
    NotFound,
    /// Something else needs what was to go.
    InUse,
    /// A part of a change was made, and then something came in between: what, and what to do, as a sentence for people.
    Partly(&'static str),
}

impl NativeError {
    /// What is answered.
    pub fn status(&self) -> Status {
        match self {
            NativeError::Invalid(_) => Status::Invalid,
            NativeError::TooLong => Status::TooLong,
            NativeError::Moved(_) => Status::Moved,
            NativeError::Gone => Status::Gone,
            NativeError::Limit(_) => Status::Limit,
            NativeError::Busy => Status::Busy,
            NativeError::Late => Status::Late,
            NativeError::Stopping => Status::Stopping,
            NativeError::OutOfRange => Status::OutOfRange,
            NativeError::ReadOnly => Status::ReadOnly,
            NativeError::NoSpace => Status::NoSpace,
            NativeError::Corrupt => Status::Corrupt,
            NativeError::Device => Status::Device,
            NativeError::Fenced => Status::Fenced,
            NativeError::StaleEpoch => Status::StaleEpoch,
            NativeError::ConditionFailed(_) => Status::ConditionFailed,
            NativeError::NotEqual(_) => Status::NotEqual,
            NativeError::Forgotten => Status::Forgotten,
            NativeError::NotTogether => Status::NotTogether,
            NativeError::Exists => Status::Exists,
            NativeError::NotFound => Status::NotFound,
            NativeError::InUse => Status::InUse,
            NativeError::Partly(_) => Status::Partly,
        }
    }
}

impl fmt::Display for NativeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NativeError::Invalid(what) | NativeError::Limit(what) | NativeError::Partly(what) => {
                f.write_str(what)
            }
            NativeError::Moved(address) => write!(f, "the volume is at {address}"),
            other => f.write_str(other.status().sentence()),
        }
    }
}

impl std::error::Error for NativeError {}

/// An open volume, or snapshot, on its core. A cheap handle.
///
/// **Order.** The server polls the futures of one connection's changes for the first time in the order in which
/// the requests came. An implementation promises that changes of one volume which overlap apply in the order in
/// which their futures were first polled, whatever they wait for afterwards (a turn, a lock, the device). That
/// is all that makes the order of changes on a connection true.
///
/// **Turns.** An implementation waits for the request's turn at the device itself, says with
/// [`Terms::note_waited`] how long that took, and answers [`NativeError::Late`] if [`Terms::until`] has passed
/// when the turn comes, or once [`Terms::has_left`] while it waits: nobody can have the session of that client before all of its requests have
/// ended. What was begun is finished.
///
/// **Dropping** a future may leave its operation done, half done (each block wholly or not at all) or not
/// done. The server drops none that it has polled as long as its task lives.
///
/// **Not carried out** is a promise where a status says so: of [`NativeError::Moved`], [`NativeError::Busy`],
/// [`NativeError::Late`] and [`NativeError::Stopping`] above all, which a client repeats.
///
/// Offsets, lengths and sizes are in bytes. Ranges are never empty, and never end beyond 2^64; whether they lie
/// within the volume is the implementation's to see.
pub trait NativeVolume: Clone + 'static {
    /// What it is now; `None` once it was deleted. Then every request is answered [`NativeError::Gone`].
    fn describe(&self) -> Option<Description>;

    /// Why [`NativeVolume::describe`] has nothing to tell: it was deleted, or it is elsewhere.
    fn gone(&self) -> NativeError {
        NativeError::Gone
    }

    /// Its last LSN. A cheap question, asked before each read.
    fn lsn(&self) -> Lsn;

    /// Reads. At most the server's limit for a payload, which is below 64 MiB.
    fn read(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<Parts, NativeError>>;

    /// Writes the view of `data`, which begins at the same offset from an aligned address as the range from a
    /// block, so whole blocks are aligned in memory. Each block written gets `metadata`, or none.
    fn write(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    ) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// Makes the range read as zeros. With `keep_space` later writes to it can't run out of space. Ranges
    /// of any length come; a long one is carried out in parts, and the answer is the LSN of the last.
    fn zero(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        keep_space: bool,
        stability: Stability,
    ) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// Gives the space of the range back; it reads as zeros afterwards. Of any length, as [`NativeVolume::zero`].
    fn deallocate(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// Makes every change answered before its future was first polled survive power loss, and says up to which
    /// LSN that is so.
    fn flush(&self, terms: &Terms) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// Reads whole blocks, and of each the LSN of its last change and its metadata, all of one instant.
    fn read_metadata(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<(Parts, Vec<(Lsn, u64)>), NativeError>>;

    /// Writes `new` if the bytes there are `expected`, which are as many, up to a block and within one. If
    /// not: [`NativeError::NotEqual`] with those that are there.
    fn compare_and_swap(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    ) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// What of the range is allocated: runs from its beginning on, one at least, at most `runs_max`; they may
    /// end before the range does.
    fn allocation(
        &self,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: usize,
    ) -> impl Future<Output = Result<Vec<Run>, NativeError>>;

    /// What of the range changed after `since`; runs as of [`NativeVolume::allocation`].
    fn changed_since(
        &self,
        terms: &Terms,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: usize,
    ) -> impl Future<Output = Result<Vec<Run>, NativeError>>;

    /// Raises the epoch to `epoch`, or by one if none is named, and returns what it is then. One that is named
    /// and below the present one is refused; the present one itself is not. Durable, and when it returns no
    /// change of an older epoch is applied any more, not even one that was under way. The epoch of the terms
    /// has no meaning here.
    fn set_epoch(
        &self,
        terms: &Terms,
        epoch: Option<Epoch>,
    ) -> impl Future<Output = Result<Epoch, NativeError>>;

    /// Deletes the snapshot of this name. Durable.
    fn delete_snapshot(
        &self,
        terms: &Terms,
        name: &str,
    ) -> impl Future<Output = Result<(), NativeError>>;

    /// Makes the volume what it was in the snapshot of this name. Durable.
    fn roll_back(
        &self,
        terms: &Terms,
        name: &str,
    ) -> impl Future<Output = Result<Lsn, NativeError>>;

    /// Its snapshots, by name: the first `count_max` behind `after` (the empty name: from the beginning).
    /// Fewer only at the end.
    fn snapshots(
        &self,
        terms: &Terms,
        after: &str,
        count_max: usize,
    ) -> impl Future<Output = Result<Vec<SnapshotInfo>, NativeError>>;

    /// Gives the volume another size. Durable.
    fn resize(
        &self,
        terms: &Terms,
        size_bytes: u64,
    ) -> impl Future<Output = Result<(), NativeError>>;

    /// Reserves so many bytes of space for it, of its size at most. Durable.
    fn reserve(&self, terms: &Terms, bytes: u64) -> impl Future<Output = Result<(), NativeError>>;

    /// Carries out all changes, one at least, if all conditions hold, in one instant; otherwise none. Returns
    /// the LSN of each change, in their order.
    fn commit(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        changes: Vec<Change<Self>>,
        stability: Stability,
    ) -> impl Future<Output = Result<Vec<Lsn>, NativeError>>;

    /// Reads all ranges in one instant, if all conditions hold in it: their parts after one another.
    fn read_if(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        ranges: Vec<VolumeRange<Self>>,
    ) -> impl Future<Output = Result<Parts, NativeError>>;

    /// Takes a snapshot of each volume, one at least, in one instant, under the name beside it. Durable. Returns
    /// the LSN of each, in their order. The epochs are those of whoever asks.
    fn snapshot(
        terms: &Terms,
        volumes: Vec<(Self, Epoch, String)>,
    ) -> impl Future<Output = Result<Vec<Lsn>, NativeError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_end_after_their_time() {
        let terms = Terms::new(Some(Time(5)), Epoch(0), 7);
        assert!(!terms.is_late(Time(5)));
        assert!(terms.is_late(Time(6)));
        assert!(!Terms::default().is_late(Time(u64::MAX)));
        terms.note_waited(3);
        terms.note_waited(u64::MAX);
        assert_eq!(terms.waited_ns(), u64::MAX);
    }
}
