//! Why an operation on a tree failed.

use std::fmt;

use flagstone_pagestore::{CommitError, PagePtr, ReadError, StoreError};

/// Why an operation on a tree failed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// Something that the transaction has read was changed by another one: begin anew.
    Conflict,
    /// Others change the same pages all the time, or a split of them is under way: begin anew, later.
    Busy,
    /// A key or value is longer than there may be, or there are more than fifteen.
    TooLarge(&'static str),
    /// The transaction's own pages or blocks, those that are not the tree's.
    Part(CommitError),
    /// A page of the tree is not what the format says.
    Damaged(PagePtr, &'static str),
    /// The page store can't.
    Store(StoreError),
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Conflict => f.write_str("what was read has been changed by others"),
            TreeError::Busy => f.write_str("others change the same pages"),
            TreeError::TooLarge(what) => write!(f, "a transaction is too large: {what}"),
            TreeError::Part(error) => error.fmt(f),
            TreeError::Damaged(ptr, what) => write!(
                f,
                "page {} of extent {:#x}, which should be one of the tree: {what}",
                ptr.page, ptr.extent.0
            ),
            TreeError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TreeError {}

impl From<StoreError> for TreeError {
    fn from(error: StoreError) -> TreeError {
        TreeError::Store(error)
    }
}

/// What became of one attempt at something that is tried several times.
pub(crate) enum Tried {
    /// A pointer or a slot was out of date: look again.
    Stale,
    /// For good.
    For(TreeError),
}

impl From<TreeError> for Tried {
    fn from(error: TreeError) -> Tried {
        Tried::For(error)
    }
}

impl From<StoreError> for Tried {
    fn from(error: StoreError) -> Tried {
        Tried::For(error.into())
    }
}

impl From<ReadError> for Tried {
    fn from(error: ReadError) -> Tried {
        match error {
            ReadError::NotOwner(_) => Tried::Stale,
            ReadError::OutOfRange(ptr) => {
                Tried::For(TreeError::Damaged(ptr, "a pointer beyond its extent"))
            }
            ReadError::Store(error) => Tried::For(error.into()),
        }
    }
}

impl From<CommitError> for Tried {
    fn from(error: CommitError) -> Tried {
        match error {
            CommitError::Conflict(_)
            | CommitError::NotOwner(_)
            | CommitError::Taken(_)
            | CommitError::Busy(..) => Tried::Stale,
            CommitError::Store(error) => Tried::For(error.into()),
            CommitError::Invalid(_) => Tried::For(TreeError::Part(error)),
        }
    }
}
