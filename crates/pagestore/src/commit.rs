//! What a commit asks for, and what can come of it. [fss 3: multi-page store-conditional]

use std::fmt;

use flagstone_device::engine::DvolError;
use flagstone_platform::IoBuf;

use crate::pointer::{BlockPtr, ExtentId, PagePtr, PageSlot};
use crate::spanning::TransactionId;

/// Parts of one commit, at most: pages it depends on or writes, ranges, and blocks it allocates, frees or
/// seals. A page that is both a condition and written is one part. [fss 3]
pub const PARTS_MAX: usize = 15;

/// A page to replace, if it is still the one that was read.
#[derive(Clone, Debug)]
pub struct PageWrite {
    /// Which.
    pub ptr: PagePtr,
    /// Its slot when it was read.
    pub slot: PageSlot,
    /// All of it.
    pub data: IoBuf,
}

/// Whole pages of one block to replace, whatever they hold.
#[derive(Clone, Debug)]
pub struct RangeWrite {
    /// The first of them.
    pub first: PagePtr,
    /// All of them, one after the other.
    pub data: IoBuf,
}

/// A multi-page store-conditional: all of it happens in one instant, or nothing.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Pages that must still have these slots.
    pub checks: Vec<(PagePtr, PageSlot)>,
    /// Pages to replace under a condition.
    pub writes: Vec<PageWrite>,
    /// Pages to replace without one: of blocks whose owner has an order of his own.
    pub ranges: Vec<RangeWrite>,
    /// Free blocks to take, as [`crate::Store::claim`] has named them. Their pages may be written in the
    /// same commit, with slot 0.
    pub allocates: Vec<BlockPtr>,
    /// Blocks to give back. Nothing of them may be written in the same commit.
    pub frees: Vec<BlockPtr>,
    /// Blocks that nobody may change from now on. Their pointers have the read-only bit afterwards.
    pub seals: Vec<BlockPtr>,
}

impl Commit {
    /// How many parts it has, against [`PARTS_MAX`].
    pub fn parts(&self) -> usize {
        let is_written = |ptr: &PagePtr| self.writes.iter().any(|write| write.ptr == *ptr);
        let checks = self.checks.iter().filter(|(ptr, _)| !is_written(ptr));
        checks.count()
            + self.writes.len()
            + self.ranges.len()
            + self.allocates.len()
            + self.frees.len()
            + self.seals.len()
    }

    /// Whether anything is different afterwards.
    pub(crate) fn changes_something(&self) -> bool {
        let lists = [
            self.writes.is_empty(),
            self.ranges.is_empty(),
            self.allocates.is_empty(),
            self.frees.is_empty(),
            self.seals.is_empty(),
        ];
        lists.contains(&false)
    }
}

/// When what was committed, or read, survives power loss: give it to [`crate::Store::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticket {
    /// How often the store had lost commits by then.
    pub(crate) epoch: u64,
    /// The group it is in. Zero: durable for ever.
    pub(crate) group: u64,
}

/// A commit that has happened. Others see it at once; durable it is when its ticket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The slot that every page written has now.
    pub slot: PageSlot,
    /// To wait for.
    pub ticket: Ticket,
}

/// Why a store does nothing more, or not this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// What was committed, or what it was built on, could not be made durable and has not happened. Read
    /// again and begin anew.
    Lost,
    /// The device has no room for it.
    NoSpace,
    /// Stored bytes don't match their checksum, or are not what the format says.
    Corrupt,
    /// The device failed the operation.
    Device,
    /// The log is full, and the device keeps failing to take what it has to its place: nothing more is committed until
    /// it does. What was committed before is not lost.
    Stuck,
    /// A flush failed: nothing is acknowledged until the node has been restarted.
    Fenced,
    /// The node is stopping.
    Stopping,
    /// There is no such extent here.
    NoExtent(ExtentId),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Lost => f.write_str("it could not be made durable and has not happened"),
            StoreError::NoSpace => f.write_str("the device is full"),
            StoreError::Corrupt => {
                f.write_str("stored bytes do not match their checksum or format")
            }
            StoreError::Device => f.write_str("the device failed the operation"),
            StoreError::Stuck => {
                f.write_str("the log is full, and the device fails to take what it has")
            }
            StoreError::Fenced => f.write_str("the device is fenced after a failed flush"),
            StoreError::Stopping => f.write_str("the node is stopping"),
            StoreError::NoExtent(id) => write!(f, "extent {:#x} is not in this store", id.0),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<DvolError> for StoreError {
    fn from(error: DvolError) -> StoreError {
        match error {
            DvolError::NoSpace | DvolError::TooMany => StoreError::NoSpace,
            DvolError::Fenced => StoreError::Fenced,
            DvolError::Stopping => StoreError::Stopping,
            DvolError::Corrupt => StoreError::Corrupt,
            _ => StoreError::Device,
        }
    }
}

/// Why a page was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// Its block is free, sealed, or somebody else's by now: the pointer is of the past.
    NotOwner(PagePtr),
    /// The pointer leaves the extent.
    OutOfRange(PagePtr),
    /// The store can't.
    Store(StoreError),
}

/// Why a commit did not happen. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitError {
    /// This page has changed since it was read.
    Conflict(PagePtr),
    /// The block of this page is free, sealed, or somebody else's by now.
    NotOwner(PagePtr),
    /// The block to allocate is not free, or its turn has passed.
    Taken(BlockPtr),
    /// A commit over several stores holds this page until it has happened or not. Try again, or have it seen to:
    /// [`crate::Spanning::see_to`].
    Busy(PagePtr, TransactionId),
    /// It makes no sense: too many parts, a part twice, a page of the wrong length, beyond the extent.
    Invalid(&'static str),
    /// The store can't.
    Store(StoreError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotOwner(ptr) => {
                write!(f, "reading {}: its block is not theirs any more", Of(ptr))
            }
            ReadError::OutOfRange(ptr) => write!(f, "reading {}: beyond the extent", Of(ptr)),
            ReadError::Store(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitError::Conflict(ptr) => write!(f, "{} has changed since it was read", Of(ptr)),
            CommitError::NotOwner(ptr) => {
                write!(f, "{}: its block is not theirs any more", Of(ptr))
            }
            CommitError::Taken(ptr) => write!(f, "the block at {} is not free", Of(&ptr.0)),
            CommitError::Busy(ptr, transaction) => {
                write!(f, "{} is busy: transaction {transaction:?}", Of(ptr))
            }
            CommitError::Invalid(what) => write!(f, "a commit makes no sense: {what}"),
            CommitError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}
impl std::error::Error for CommitError {}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> ReadError {
        ReadError::Store(error)
    }
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> CommitError {
        CommitError::Store(error)
    }
}

/// How messages name a page.
struct Of<'a>(&'a PagePtr);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagePtr {
            extent,
            page,
            owner,
            generation,
            ..
        } = self.0;
        write!(
            f,
            "page {page} of extent {:#x} (owner {:#x}, generation {})",
            extent.0, owner.0, generation.0
        )
    }
}
