//! What a map's tree holds: keys, entries and pointers to nodes.
//!
//! An entry of a leaf maps one virtual block (or, for a tombstone, a run of them); an entry of an
//! inner node points to a child. Both have the same 40-byte form on disk
//! (`docs/formats/device.md`, "Map").

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::Changed;

/// A position in a map: a virtual block, and whether the entry is the block itself or a delta over
/// it. A delta sorts right behind its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Key(pub u64);

impl Key {
    /// Above every key.
    pub const END: Key = Key(1 << 53);

    /// The key of the block itself.
    pub fn block(vblock: VBlock) -> Key {
        Key(vblock.0 << 1)
    }

    /// The key of the delta over `vblock`.
    pub fn delta(vblock: VBlock) -> Key {
        Key(vblock.0 << 1 | 1)
    }

    /// The virtual block this key belongs to.
    pub fn vblock(self) -> VBlock {
        VBlock(self.0 >> 1)
    }

    /// True for the key of a delta.
    pub fn is_delta(self) -> bool {
        self.0 & 1 == 1
    }
}

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// A block of data. `meta` is the tenant's 64-bit metadata for the block.
    Data = 1,
    /// A run of deallocated blocks, kept so that "changed since" knows of them. `meta` is the
    /// number of blocks, `block` and `checksum` are zero.
    Tombstone = 2,
    /// Parts of a block that replace the same parts of the block below it (or of zeros). The
    /// bytes lie in `block` at their own offset. `meta` says which they are ([`Changed::meta`]); `checksum` covers the
    /// whole of `block`.
    Delta = 3,
    /// A child of an inner node: `key` is the first key of its range, `lsn` the highest LSN below
    /// it, `meta` the number of data entries below it.
    Child = 4,
}

/// One entry of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where in the map.
    pub key: Key,
    /// What it is.
    pub kind: EntryKind,
    /// Where on the device.
    pub block: BlockNo,
    /// CRC32C of that block.
    pub checksum: BlockChecksum,
    /// The layer in which the entry (or the child's present version) was written.
    pub birth: LayerNo,
    /// LSN of the last change.
    pub lsn: Lsn,
    /// Depends on the kind.
    pub meta: u64,
}

impl Entry {
    /// The first virtual block behind what this leaf entry covers.
    pub fn end_vblock(&self) -> VBlock {
        match self.kind {
            EntryKind::Tombstone => VBlock(self.key.vblock().0 + self.meta),
            EntryKind::Data | EntryKind::Delta | EntryKind::Child => {
                VBlock(self.key.vblock().0 + 1)
            }
        }
    }

    /// Of a delta, the bytes of its block that it replaces.
    pub fn changed(&self) -> Changed {
        // `is_sound` (codec.rs) lets no other entry in that comes from a device.
        Changed::from_meta(self.meta).expect("a delta replaces bytes of its block")
    }
}

/// Where a node lies, and what its 4096 bytes must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePtr {
    /// Where on the device.
    pub block: BlockNo,
    /// CRC32C of the node.
    pub checksum: BlockChecksum,
    /// The layer it was written in.
    pub birth: LayerNo,
    /// Zero for a leaf.
    pub level: u8,
}
