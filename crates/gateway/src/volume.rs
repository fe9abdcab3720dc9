//! What a gateway knows of volumes: one small interface.
//!
//! The binary implements it over the device layer; tests implement it over memory. A gateway never
//! sees dvols, maps or devices.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;

use flagstone_platform::IoBuf;
use flagstone_types::Lsn;
use smallvec::SmallVec;

/// What the client wants to be true when a change is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stability {
    /// On the device, but a power loss before the next flush may undo it.
    Unstable,
    /// Survives power loss.
    Stable,
}

/// A part of what a read returns. Parts follow each other without gaps.
#[derive(Debug)]
pub enum Piece {
    /// Bytes from the device, checked against their checksums.
    Data(IoBuf),
    /// This many bytes that were never written or were deallocated: they read as zeros.
    Zeros(u64),
}

/// What a read returns, in order.
pub type Payload = SmallVec<[Piece; 4]>;

/// A run of a volume's bytes in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationExtent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// False: reads as zeros and takes no space.
    pub allocated: bool,
}

/// A run of a volume's bytes, changed or not since some LSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedExtent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// True: written or deallocated since.
    pub changed: bool,
}

/// Why an operation failed. A gateway has one table from these to its status codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeError {
    /// The range leaves the volume.
    OutOfRange,
    /// The volume or snapshot can't be written.
    ReadOnly,
    /// The device (or the volume's reservation) has no room. Reads, overwrites of reserved volumes
    /// and deallocation still work.
    NoSpace,
    /// Stored bytes don't match their checksum. Never answered with data.
    Corrupt,
    /// The device failed the operation.
    Device,
    /// A flush failed earlier: the device takes no more changes until the node is restarted.
    Fenced,
    /// The volume was deleted, or the node is stopping.
    Gone,
    /// The history asked for is forgotten.
    HistoryForgotten,
    /// Not possible with this volume.
    Unsupported,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeError::OutOfRange => "the range leaves the volume",
            VolumeError::ReadOnly => "the volume is read-only",
            VolumeError::NoSpace => "the device is full",
            VolumeError::Corrupt => "stored bytes do not match their checksum",
            VolumeError::Device => "the device failed the operation",
            VolumeError::Fenced => "the device is fenced after a failed flush; restart the node",
            VolumeError::Gone => "the volume is gone",
            VolumeError::HistoryForgotten => "the history asked for is forgotten",
            VolumeError::Unsupported => "not supported by this volume",
        })
    }
}

impl std::error::Error for VolumeError {}

/// An open volume (or snapshot, which is read-only). A cheap handle, used by one core.
///
/// Offsets and lengths are any number of bytes within the size. An operation is atomic per block;
/// changes that overlap in time apply in the order in which the calls were made.
pub trait Volume: Clone + 'static {
    /// Size in bytes now; `None` once the volume was deleted. Then every request is refused, whatever
    /// it asks for.
    fn size_bytes(&self) -> Option<u64>;

    /// True if every change is refused.
    fn is_read_only(&self) -> bool;

    /// Reads `len_bytes` from `offset_bytes`.
    fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<Payload, VolumeError>>;

    /// Writes the view of `data`.
    fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// Makes every change answered before this call survive power loss.
    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>>;

    /// Gives the space of the range back; it reads as zeros afterwards. Where only a part of a block
    /// is asked for it is advice: it succeeds also if there is no room for the zeros that would have
    /// to be written there. [decibel 4.1: deallocate]
    fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// Makes the range read as zeros. With `keep_allocated` later writes to it can't run out of
    /// space. A gateway asks for large ranges of those in parts.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// What of the range is allocated: extents from `offset_bytes` on, adjacent ones merged, at
    /// most `extents_max`; they may end before the range does, and cover at least one byte.
    fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<AllocationExtent>, VolumeError>>;

    /// What of the range changed after `since`; the same rules as for [`Volume::allocation`].
    fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<ChangedExtent>, VolumeError>>;
}

/// Why a name can't be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// No volume or snapshot of that name.
    NotFound,
    /// The node is stopping or the device is not available.
    Unavailable,
    /// It may not be opened by this connection.
    Forbidden,
    /// It was moved to another node.
    Moved,
    /// Who may open it can't be read, so nobody may until somebody has said it anew.
    Unruled,
}

/// The two ends of a connection, as far as they are known: of a Unix socket neither is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The address by which it came in.
    pub local: Option<SocketAddr>,
    /// The number of the interface by which it came in, which need not be the one that has the address.
    pub interface: Option<u32>,
}

/// Where a name leads.
#[derive(Clone)]
pub enum Opened<V> {
    /// On this core.
    Here(V),
    /// On another core of this node: hand the connection over to it.
    OnCore(usize),
}

/// An export as a listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The name a client opens: `volume` or `volume@snapshot`.
    pub name: String,
    /// A sentence for people; may be empty.
    pub description: String,
}

/// The names a gateway serves.
pub trait VolumeDirectory: Clone + 'static {
    /// What it opens.
    type Volume: Volume;

    /// Opens a volume (`name`) or a snapshot (`name@snapshot`).
    fn open(&self, name: &str) -> impl Future<Output = Result<Opened<Self::Volume>, OpenError>>;

    /// Names that a client shall find on the node, sorted: the first `count_max` behind `after`.
    /// Fewer only at the end. Snapshots can be left out.
    fn list(&self, after: Option<&str>, count_max: usize) -> impl Future<Output = Vec<ExportInfo>>;

    /// Whether a connection with these ends may open `name`, or be shown it, and why not. Nothing is said of what isn't there.
    fn check_open(&self, _name: &str, _ends: Ends) -> Result<(), OpenError> {
        Ok(())
    }

    /// A connection was refused `name` for its ends: a line of the audit log.
    fn note_forbidden(&self, _name: &str, _ends: Ends) {}

    /// The sentence for people about `name`; empty if there is none.
    fn describe(&self, name: &str) -> impl Future<Output = String>;

    /// Names of the snapshots of `volume`, sorted. Asked on the core that owns it only.
    fn snapshots(&self, volume: &str) -> impl Future<Output = Vec<String>>;

    /// LSN at which `snapshot` of `volume` was taken, to compare with ("what changed since"). `None`
    /// if there is no such snapshot. Asked on the core that owns the volume only.
    fn snapshot_lsn(&self, volume: &str, snapshot: &str) -> impl Future<Output = Option<Lsn>>;
}
