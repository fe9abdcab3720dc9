//! Nodes as they lie on the device. The byte table is in `docs/formats/device.md`, "Map".
//!
//! Two checks stand between a device and a map. [`NodeImage::decode`] proves that the bytes are the
//! ones that were written and that they make sense by themselves; when the node gets its place in a
//! map ([`Missing::fill`](super::Missing::fill)), it must also be what its parent says: same first
//! key, no more than its parent's range, no higher LSN, as many data entries. After that everything
//! else may rely on the invariants of a node, whoever wrote the device.

use flagstone_types::{BlockChecksum, BlockNo, LayerNo, VBlock, unit::VBLOCKS_MAX};
use std::rc::Rc;

use super::node::{ENTRIES_MAX, HEADER_BYTES, LEVEL_MAX, NODE_BYTES, Node, Sum};
use super::packed::{ENTRY_BYTES, Packed};
use super::{Changed, Entry, EntryKind, Key, MapStats, NodePtr};
use crate::format::FormatError;
use crate::format::bytes::Reader;

/// "FSND", read as a little-endian number.
const MAGIC: u32 = 0x444e_5346;
const VERSION: u8 = 1;

/// That of a leaf with a delta that has holes: those who know no holes must not take it for one without.
const VERSION_WITH_HOLES: u8 = 2;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = AT_MAGIC + 4;
const AT_LEVEL: usize = AT_VERSION + 1;
const AT_COUNT: usize = AT_LEVEL + 1;
const AT_BIRTH: usize = AT_COUNT + 2;
const AT_RESERVED: usize = AT_BIRTH + 4;
const AT_FIRST: usize = AT_RESERVED + 4;
const AT_END: usize = AT_FIRST + 8;
const AT_ZERO: usize = AT_END + 8;

const _: () = assert!(AT_ZERO == 32 && AT_ZERO <= HEADER_BYTES);

/// A node's content, decoded and found sound by itself.
pub struct NodeImage {
    ptr: NodePtr,
    end: Key,
    entries: Vec<Packed>,
}

impl NodeImage {
    /// Decodes a node. `ptr` is what its parent says about it.
    pub fn decode(bytes: &[u8], ptr: &NodePtr) -> Result<NodeImage, FormatError> {
        if bytes.len() != NODE_BYTES {
            let found = bytes.len();
            return Err(wrong(
                ptr,
                format!("expected {NODE_BYTES} bytes, found {found}"),
            ));
        }
        let checksum = BlockChecksum::of(bytes);
        if checksum != ptr.checksum {
            let expected = ptr.checksum;
            let what = format!("expected checksum {expected:?}, found {checksum:?}");
            return Err(wrong(ptr, what));
        }
        let (version, first, end, count) = decode_header(bytes, ptr)?;
        let body = &bytes[HEADER_BYTES..];
        let entries: Vec<Packed> = body
            .as_chunks::<ENTRY_BYTES>()
            .0
            .iter()
            .take(count)
            .map(Packed::decode)
            .collect();
        let unused = &body[count * ENTRY_BYTES..];
        if first != entries[0].key() || unused.iter().any(|&byte| byte != 0) {
            return Err(wrong(ptr, "first key or unused bytes are wrong".to_owned()));
        }
        let image = NodeImage {
            ptr: *ptr,
            end,
            entries,
        };
        image.check_entries()?;
        if version != VERSION_WITH_HOLES && image.has_holes() {
            let what = format!("a delta has holes, which version {version} doesn't have");
            return Err(wrong(ptr, what));
        }
        Ok(image)
    }

    fn check_entries(&self) -> Result<(), FormatError> {
        let mut covered = VBlock(0);
        let mut before: Option<Key> = None;
        for (index, entry) in self.entries.iter().enumerate() {
            if !is_sound(entry, self.ptr.level, self.ptr.birth) {
                let entry = entry.entry();
                let what = format!("entry {index} is not valid at this level: {entry:?}");
                return Err(wrong(&self.ptr, what));
            }
            let in_order = before.is_none_or(|before| before < entry.key());
            if !in_order || entry.vblock() < covered && !self.is_pair(index) {
                return Err(wrong(&self.ptr, format!("entry {index} is out of order")));
            }
            before = Some(entry.key());
            covered = match self.ptr.level {
                0 => entry.end_vblock(),
                // Two children can't start in the same block: data and its delta stay together.
                _ => VBlock(entry.vblock().0 + 1),
            };
        }
        if Key::block(covered) > self.end {
            return Err(wrong(
                &self.ptr,
                format!("entries reach {covered:?}, behind its end"),
            ));
        }
        Ok(())
    }

    fn has_holes(&self) -> bool {
        self.entries.iter().any(has_holes)
    }

    /// Whether the entry is a delta over the data before it.
    fn is_pair(&self, index: usize) -> bool {
        index > 0
            && self.entries[index].is(EntryKind::Delta)
            && self.entries[index - 1].key() == Key::block(self.entries[index].vblock())
            && self.entries[index - 1].is(EntryKind::Data)
    }

    /// Checks that the node is the one that its parent means.
    pub(super) fn check_position(
        &self,
        ptr: &NodePtr,
        first: Option<Key>,
        upper: Key,
        sum: &Sum,
    ) -> Result<(), FormatError> {
        let own = Sum::of(&self.entries);
        let fits = self.ptr == *ptr
            && first.is_none_or(|first| first == self.first_key())
            && self.end <= upper
            && own.lsn <= sum.lsn
            && own.mapped == sum.mapped
            && (sum.tombstones || !own.tombstones);
        if fits {
            return Ok(());
        }
        let what = format!(
            "expected first key {first:?}, end up to {upper:?} and sums {sum:?}, found {:?}, {:?} \
             and {own:?}",
            self.first_key(),
            self.end
        );
        Err(wrong(ptr, what))
    }

    pub(super) fn into_node(self, stats: &Rc<MapStats>) -> Node {
        let NodeImage { ptr, end, entries } = self;
        Node::loaded(
            ptr.level,
            ptr.birth,
            end,
            entries,
            (ptr.block, ptr.checksum),
            stats,
        )
    }

    /// Zero for a leaf.
    pub fn level(&self) -> u8 {
        self.ptr.level
    }

    /// The layer the node was written in.
    pub fn birth(&self) -> LayerNo {
        self.ptr.birth
    }

    /// Key of the first entry.
    pub fn first_key(&self) -> Key {
        self.entries[0].key()
    }

    /// Behind everything the node covers.
    pub fn end_key(&self) -> Key {
        self.end
    }

    /// The entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + '_ {
        self.entries.iter().map(Packed::entry)
    }

    /// Where an entry of this node says its child lies; `None` for an entry of a leaf.
    pub fn child_ptr(&self, entry: &Entry) -> Option<NodePtr> {
        let &Entry {
            kind,
            block,
            checksum,
            birth,
            ..
        } = entry;
        let level = self.ptr.level.checked_sub(1)?;
        (kind == EntryKind::Child).then_some(NodePtr {
            block,
            checksum,
            birth,
            level,
        })
    }
}

fn wrong(ptr: &NodePtr, what: String) -> FormatError {
    FormatError::new(format!(
        "map node at {}, level {}: {what}",
        ptr.block, ptr.level
    ))
}

/// Whether it is a delta with holes.
fn has_holes(entry: &Packed) -> bool {
    entry.is(EntryKind::Delta) && entry.entry().changed().holes() != 0
}

/// Version, first key, end and number of entries.
fn decode_header(bytes: &[u8], ptr: &NodePtr) -> Result<(u8, Key, Key, usize), FormatError> {
    let mut reader = Reader::new(&bytes[..HEADER_BYTES], "map node");
    let (magic, version) = (reader.u32()?, reader.u8()?);
    if magic != MAGIC || ![VERSION, VERSION_WITH_HOLES].contains(&version) {
        let what = format!(
            "expected magic {MAGIC:#x} and version {VERSION} or {VERSION_WITH_HOLES}, found {magic:#x} and {version}"
        );
        return Err(wrong(ptr, what));
    }
    let (level, count, birth) = (reader.u8()?, reader.u16()?, LayerNo(reader.u32()?));
    if level != ptr.level || level > LEVEL_MAX || birth != ptr.birth {
        let what = format!(
            "expected birth {:?}, found level {level} and {birth:?}",
            ptr.birth
        );
        return Err(wrong(ptr, what));
    }
    let count = usize::from(count);
    if count == 0 || count > ENTRIES_MAX {
        let what = format!("expected 1 to {ENTRIES_MAX} entries, found {count}");
        return Err(wrong(ptr, what));
    }
    let reserved = reader.u32()?;
    let (first, end) = (Key(reader.u64()?), Key(reader.u64()?));
    let unused = reader.take(HEADER_BYTES - AT_ZERO)?;
    let is_zero = reserved == 0 && unused.iter().all(|&byte| byte == 0);
    if !is_zero || end > Key::END || end.is_delta() {
        return Err(wrong(
            ptr,
            format!("reserved bytes are set, or end {end:?} is out of range"),
        ));
    }
    Ok((version, first, end, count))
}

/// Whether an entry can stand in a node of this level and birth.
fn is_sound(entry: &Packed, level: u8, birth: LayerNo) -> bool {
    if !entry.head_is_valid() || entry.birth > birth || entry.block() >= BlockNo::LIMIT {
        return false;
    }
    let on_block = !entry.key().is_delta();
    match entry.kind() {
        EntryKind::Child => level > 0 && entry.meta <= VBLOCKS_MAX,
        EntryKind::Data => level == 0 && on_block,
        EntryKind::Delta => level == 0 && !on_block && Changed::from_meta(entry.meta).is_some(),
        EntryKind::Tombstone => {
            let end = entry.vblock().0.checked_add(entry.meta);
            level == 0
                && on_block
                && entry.meta > 0
                && end.is_some_and(|end| end <= VBLOCKS_MAX)
                && entry.block() == BlockNo(0)
                && entry.checksum() == BlockChecksum(0)
        }
    }
}

impl Node {
    /// Writes the node into `bytes`. Its children have their places.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), NODE_BYTES, "a node is one block");
        assert!(!self.entries.is_empty() && self.entries.len() <= ENTRIES_MAX);
        for (entry, slot) in self.entries.iter().zip(&self.slots) {
            if let Some(child) = slot.loaded() {
                let place = child.place.final_location();
                let (block, checksum) = place.expect("children are written before their parent");
                entry.place_child(block, checksum);
            }
        }
        bytes.fill(0);
        bytes[AT_MAGIC..AT_VERSION].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[AT_VERSION] = match self.is_leaf() && self.entries.iter().any(has_holes) {
            true => VERSION_WITH_HOLES,
            false => VERSION,
        };
        bytes[AT_LEVEL] = self.level;
        bytes[AT_COUNT..AT_BIRTH].copy_from_slice(&(self.entries.len() as u16).to_le_bytes());
        bytes[AT_BIRTH..AT_RESERVED].copy_from_slice(&self.birth.0.to_le_bytes());
        bytes[AT_FIRST..AT_END].copy_from_slice(&self.first_key().0.to_le_bytes());
        bytes[AT_END..AT_ZERO].copy_from_slice(&self.end.0.to_le_bytes());
        let body = bytes[HEADER_BYTES..].as_chunks_mut::<ENTRY_BYTES>().0;
        for (entry, place) in self.entries.iter().zip(body) {
            entry.encode(place);
        }
    }
}
