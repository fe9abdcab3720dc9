//! Entries as nodes hold them: 40 bytes each, in memory as on the device.
//!
//! [`Entry`] is the same thing for everybody else; it would take 48 bytes in a node. A map of a
//! mapped TiB holds 2^28 of them, so eight bytes are 2 GiB.

use std::cell::Cell;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, Lsn, VBlock};

use super::{Entry, EntryKind, Key};

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 40;

const KIND_SHIFT: u32 = 56;
const KEY_MASK: u64 = (1 << 53) - 1;

/// In an entry for a child: there may be tombstones below it. Set at least when there are.
const TOMBSTONES_BELOW: u64 = 1 << 53;

/// Bits of `head` that are zero in every entry.
const HEAD_ZERO: u64 = 0b11 << 54;

/// An entry. Where a child lies can change while the node is shared: the checkpoint finds a place
/// for the child, and eviction of the child has to leave its place behind here.
#[derive(Clone)]
pub(super) struct Packed {
    head: u64,
    block: Cell<u64>,
    checksum: Cell<u32>,
    pub(super) birth: LayerNo,
    pub(super) lsn: Lsn,
    pub(super) meta: u64,
}

const _: () = assert!(size_of::<Packed>() == ENTRY_BYTES);

impl Packed {
    pub(super) fn new(entry: &Entry) -> Packed {
        assert!(entry.key < Key::END, "a key fits 53 bits");
        assert!(
            entry.block < BlockNo::LIMIT,
            "a block's position fits 40 bits"
        );
        Packed {
            head: (entry.kind as u64) << KIND_SHIFT | entry.key.0,
            block: Cell::new(entry.block.0),
            checksum: Cell::new(entry.checksum.0),
            birth: entry.birth,
            lsn: entry.lsn,
            meta: entry.meta,
        }
    }

    pub(super) fn tombstone(start: VBlock, end: VBlock, birth: LayerNo, lsn: Lsn) -> Packed {
        assert!(start < end, "a tombstone covers something");
        Packed::new(&Entry {
            key: Key::block(start),
            kind: EntryKind::Tombstone,
            block: BlockNo(0),
            checksum: BlockChecksum(0),
            birth,
            lsn,
            meta: end.0 - start.0,
        })
    }

    pub(super) fn entry(&self) -> Entry {
        Entry {
            key: self.key(),
            kind: self.kind(),
            block: self.block(),
            checksum: self.checksum(),
            birth: self.birth,
            lsn: self.lsn,
            meta: self.meta,
        }
    }

    pub(super) fn key(&self) -> Key {
        Key(self.head & KEY_MASK)
    }

    pub(super) fn vblock(&self) -> VBlock {
        self.key().vblock()
    }

    pub(super) fn kind(&self) -> EntryKind {
        match self.head >> KIND_SHIFT {
            1 => EntryKind::Data,
            2 => EntryKind::Tombstone,
            3 => EntryKind::Delta,
            _ => EntryKind::Child,
        }
    }

    pub(super) fn is(&self, kind: EntryKind) -> bool {
        self.head >> KIND_SHIFT == kind as u64
    }

    pub(super) fn block(&self) -> BlockNo {
        BlockNo(self.block.get())
    }

    pub(super) fn checksum(&self) -> BlockChecksum {
        BlockChecksum(self.checksum.get())
    }

    /// Says where the child lies.
    pub(super) fn place_child(&self, block: BlockNo, checksum: BlockChecksum) {
        debug_assert!(self.is(EntryKind::Child));
        self.block.set(block.0);
        self.checksum.set(checksum.0);
    }

    /// The first virtual block behind what this leaf entry covers.
    pub(super) fn end_vblock(&self) -> VBlock {
        let count = if self.is(EntryKind::Tombstone) {
            self.meta
        } else {
            1
        };
        VBlock(self.vblock().0 + count)
    }

    /// The part of a tombstone that lies in `start..end`.
    pub(super) fn clipped(&self, start: VBlock, end: VBlock) -> Packed {
        debug_assert!(self.is(EntryKind::Tombstone));
        Packed::tombstone(
            start.max(self.vblock()),
            end.min(self.end_vblock()),
            self.birth,
            self.lsn,
        )
    }

    pub(super) fn tombstones_below(&self) -> bool {
        self.head & TOMBSTONES_BELOW != 0
    }

    pub(super) fn set_tombstones_below(&mut self, on: bool) {
        self.head = if on {
            self.head | TOMBSTONES_BELOW
        } else {
            self.head & !TOMBSTONES_BELOW
        };
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.head.to_le_bytes());
        out[8..16].copy_from_slice(&self.block.get().to_le_bytes());
        out[16..20].copy_from_slice(&self.checksum.get().to_le_bytes());
        out[20..24].copy_from_slice(&self.birth.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[32..ENTRY_BYTES].copy_from_slice(&self.meta.to_le_bytes());
    }

    /// The entry in these bytes, which may be anything.
    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Packed {
        let u64_at = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let both = u64_at(16);
        Packed {
            head: u64_at(0),
            block: Cell::new(u64_at(8)),
            checksum: Cell::new(both as u32),
            birth: LayerNo((both >> 32) as u32),
            lsn: Lsn(u64_at(24)),
            meta: u64_at(32),
        }
    }

    /// Whether the head is one that [`Packed::new`] makes.
    pub(super) fn head_is_valid(&self) -> bool {
        let kind = self.head >> KIND_SHIFT;
        let flag_allowed = kind == EntryKind::Child as u64;
        (1..=4).contains(&kind)
            && self.head & HEAD_ZERO == 0
            && (flag_allowed || self.head & TOMBSTONES_BELOW == 0)
    }
}
