//! Filesystems: directories, files and their snapshots.
//!
//! Promises: an operation happens wholly or not at all, and survives power loss when it is answered (but an
//! unstable write, which survives when [`Files::commit`] is answered or a later change of the same file that
//! is stable). A name, a number or a cookie means the same for ever.
//!
//! Never: decides what an address may mount, or repeats what was refused with [`FileError::Later`]: both are
//! the gateway's.
//!
//! Read first: `docs/filesystem-plan.md`, then [`Files`]. Called by gateways and the binary; calls the tree,
//! the page store, and the device layer for large files. Source: Oracle FSS, section 4.

mod attributes;
mod error;
mod files;
pub mod memory;
mod permissions;

pub use attributes::{Attributes, Before, Changes, FileKind, SetAttributes, SetTime, Timestamp};
pub use error::FileError;
pub use files::{
    ANSWERS_KEPT, AccessMask, Caller, Cookie, Created, Creation, Entry, FileId, FileRead, Files,
    FilesystemId, Found, LINKS_MAX, Listing, NAME_MAX_BYTES, NAME_SIZE_BYTES, New, Node,
    SnapshotNumber, Space, Stability, TARGET_MAX_BYTES, Token, Written,
};
pub use flagstone_device::engine::{Piece, Pieces};
