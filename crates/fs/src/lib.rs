//! Filesystems: directories, files and their snapshots.
//!
//! Promises: an operation happens wholly or not at all, and survives power loss when it is answered (but an
//! unstable write, which survives when [`Files::commit`] is answered or a later change of the same file that
//! is stable). A name, a number or a cookie means the same for ever.
//!
//! Never: decides what an address may mount, or repeats what was refused with [`FileError::Later`]: both are
//! the gateway's.
//!
//! Read first: `docs/formats/filesystem.md`, then [`Files`]. Called by gateways and the binary; calls the tree,
//! the page store, and the device layer for large files. Source: Oracle FSS, section 4.

mod answer;
mod attributes;
mod change;
mod check;
mod clone;
mod codec;
mod contents;
mod description;
mod dot_snapshot;
mod error;
mod expiry;
mod files;
mod filesystem;
mod inode;
mod key;
mod locks;
pub mod memory;
mod names;
mod object;
mod objects;
mod operations;
mod pace;
mod paths;
mod permissions;
mod places;
mod promote;
mod reaper;
mod removal;
mod rollback;
mod settings;
mod snapshots;
mod superblock;
mod sweep;
mod system;
mod tokens;
mod view;
mod zeros;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Before, Changes, FileKind, SetAttributes, SetTime, Timestamp};
pub use check::{CheckProgress, CheckReport};
pub use description::Description;
pub use dot_snapshot::{HasSnapshots, SNAPSHOTS, SNAPSHOTS_NAME, WithSnapshots};
pub use error::FileError;
pub use files::{
    ANSWERS_KEPT, ANSWERS_KEPT_SECONDS, AccessMask, CLIENTS_KEPT, Caller, Cookie, Created,
    Creation, Entry, FileId, FileRead, Files, FilesystemId, Found, LINKS_MAX, Listing,
    NAME_MAX_BYTES, NAME_SIZE_BYTES, New, Node, SnapshotNumber, Space, Stability, TARGET_MAX_BYTES,
    Token, Written,
};
pub use filesystem::Filesystem;
pub use flagstone_device::engine::{Piece, Pieces};
pub use flagstone_pagestore::{
    ATTRIBUTE_KIND_MOVES, ATTRIBUTE_KIND_TOKENS, ATTRIBUTE_KIND_VOLUME, DvolRole, StoreCounters,
};
pub use inode::INLINE_MAX_BYTES;
pub use paths::{PathError, find, split_last};
pub use settings::{OPAQUE_MAX_BYTES, Opaque, PROMOTE_BYTES, Settings};
pub use snapshots::{SNAPSHOTS_MAX, SnapshotInfo};
pub use system::{CheckedAll, FilesystemInfo, FilesystemOptions, Filesystems};

/// Gives bytes to everything that reads what the tree holds, for a fuzzer. Panics if something that was read is
/// not written as the same bytes.
#[doc(hidden)]
pub fn fuzz_decoders(bytes: &[u8]) {
    let directory = FileId {
        directory: 5,
        file: 0,
    };
    let other = FileId {
        directory: 5,
        file: 6,
    };
    for file in [directory, other] {
        if let Some(inode) = inode::Inode::decode(file, bytes) {
            assert_eq!(inode.encode(), bytes);
        }
    }
    if let Some(value) = inode::EntryValue::decode(bytes) {
        assert_eq!(value.encode(), bytes);
    }
    if let Some(value) = inode::CookieValue::decode(bytes) {
        assert_eq!(inode::CookieValue::encode(value.file, &value.name), bytes);
    }
    if let Some(value) = contents::BlockValue::decode(bytes) {
        assert_eq!(value.encode(), bytes);
    }
    if let Some(value) = superblock::Superblock::decode(bytes) {
        assert_eq!(value.encode(), bytes);
    }
    if let Some(value) = superblock::SnapshotValue::decode(bytes) {
        assert_eq!(value.encode(), bytes);
    }
    tokens::fuzz(bytes);
    if let Some(attributes) = bytes.first_chunk()
        && let Some(said) = object::Said::decode(attributes)
    {
        assert_eq!(said.encode(), *attributes);
    }
    let keys = key::Keys(FilesystemId(7));
    let _ = (keys.of_file(bytes), keys.of_orphan(bytes));
    let _ = (keys.of_displaced(bytes), key::split_version(bytes));
    let _ = (key::is_block(bytes), key::last_number(bytes));
}
