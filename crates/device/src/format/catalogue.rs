//! Records of the catalogue: dvols and layers.
//!
//! Both share one shape, because a layer is what a dvol's head was at some instant. A slot holds a
//! dvol, a layer, or nothing; slots are reused.

use flagstone_types::{BlockChecksum, BlockNo, DvolId, Epoch, LayerNo, Lsn, Slot};

use super::FormatError;
use super::bytes::{Reader, Writer};
use crate::v2p::{Key, NodePtr};

/// Bytes of a catalogue record.
pub const RECORD_BYTES: usize = 504;

/// Longest name of a dvol or layer, in bytes.
pub const NAME_MAX_BYTES: usize = 128;

/// Bytes for the layer above (file times and the like), changed with the data. Not used yet.
pub const ATTRIBUTE_BYTES: usize = 64;

/// Slots a journal's catalogue can have.
pub const SLOTS_MAX: u32 = super::table::TableKind::Catalogue.capacity() as u32;

const NO_SLOT: u32 = u32::MAX;

/// The dvol can't be written by clients.
pub const FLAG_READ_ONLY: u16 = 1;
/// The layer was deleted; it stays until at most one child remains and its blocks are reaped.
pub const FLAG_HIDDEN: u16 = 2;

const FLAGS_KNOWN: u16 = FLAG_READ_ONLY | FLAG_HIDDEN;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A dvol: a name, a size, and a head that clients change.
    Dvol = 1,
    /// A layer: a former head, kept as a snapshot or waiting to be reaped.
    Layer = 2,
}

/// The root of a map as it lies on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRoot {
    /// The root node.
    pub ptr: NodePtr,
    /// Highest LSN in the map.
    pub max_lsn: Lsn,
}

/// A dvol or a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogueRecord {
    /// Which of the two.
    pub kind: RecordKind,
    /// `FLAG_..` bits.
    pub flags: u16,
    /// The dvol's name, or the snapshot's.
    pub name: String,
    /// The dvol's id; for a layer, that of the dvol it was taken from.
    pub id: DvolId,
    /// Size in bytes.
    pub size_bytes: u64,
    /// When the dvol was created or the snapshot taken, nanoseconds since 1970.
    pub created_ns: u64,
    /// The last LSN given out (for a layer: when it was frozen).
    pub lsn: Lsn,
    /// Nothing is known of changes up to this one: tombstones below it may be gone.
    pub floor: Lsn,
    /// After a rollback: LSNs above `gap.0` and below `gap.1` belong to a discarded past.
    pub gap: (Lsn, Lsn),
    /// The same of all rollbacks before the last one, from the first to the last of them: what lies between two of those isn't told apart.
    pub older_gap: (Lsn, Lsn),
    /// Fencing number; writers with an older one are refused.
    pub epoch: Epoch,
    /// Incarnation of the node in which `lsn` was given out; see `docs/formats/device.md`, "LSNs
    /// after a crash".
    pub lsn_incarnation: u32,
    /// This layer's number: the birth of what is written in it.
    pub layer: LayerNo,
    /// The layer below, if any.
    pub parent: Option<Slot>,
    /// Blocks set aside for this dvol, in use or not.
    pub reserved_blocks: u64,
    /// Upper bound on the mapped blocks that belong to older layers.
    pub inherited_blocks: u64,
    /// Mapped data blocks.
    pub mapped_blocks: u64,
    /// Everything below this key has been reaped. Zero for a dvol.
    pub reap_cursor: Key,
    /// Where the map lies; `None`: empty.
    pub map: Option<MapRoot>,
    /// For the layer above.
    pub attributes: [u8; ATTRIBUTE_BYTES],
}

impl CatalogueRecord {
    /// Whether what the dvol was like at this LSN belongs to a past that a rollback has discarded.
    pub fn is_discarded(&self, lsn: Lsn) -> bool {
        let mut gaps = [self.gap, self.older_gap].into_iter();
        gaps.any(|(low, high)| lsn > low && lsn < high)
    }

    /// It is rolled back, by the change with this LSN, to what it was at `target`. What was discarded before stays so, also if it is of the past of what it goes
    /// back to now: who has read some of it in between can't be told what to read again.
    pub fn roll_back_to(&mut self, target: Lsn, lsn: Lsn) {
        let gaps = [self.older_gap, self.gap].into_iter();
        let older = gaps.filter(|(low, high)| low < high);
        let older = older.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        self.older_gap = older.unwrap_or_default();
        self.gap = (target, lsn);
    }

    /// Appends the record, [`RECORD_BYTES`] long. `None` is a free slot: all zeros.
    pub fn encode(record: Option<&CatalogueRecord>, out: &mut Vec<u8>) {
        let start = out.len();
        if let Some(record) = record {
            record.encode_fields(out);
        }
        assert!(out.len() - start <= RECORD_BYTES);
        out.resize(start + RECORD_BYTES, 0);
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        assert!(
            self.name.len() <= NAME_MAX_BYTES,
            "names are checked when they are given"
        );
        let start = out.len();
        let mut writer = Writer::new(out);
        writer
            .u8(self.kind as u8)
            .u8(1)
            .u16(self.flags)
            .u8(self.name.len() as u8)
            .bytes(&[0; 3])
            .u128(self.id.0)
            .u64(self.size_bytes)
            .u64(self.created_ns)
            .u64(self.lsn.0)
            .u64(self.floor.0)
            .u64(self.gap.0.0)
            .u64(self.gap.1.0)
            .u32(self.epoch.0)
            .u32(self.lsn_incarnation)
            .u32(self.layer.0)
            .u32(self.parent.map_or(NO_SLOT, |slot| slot.0))
            .u64(self.reserved_blocks)
            .u64(self.inherited_blocks)
            .u64(self.mapped_blocks)
            .u64(self.reap_cursor.0);
        match &self.map {
            Some(root) => writer
                .u64(root.ptr.block.0)
                .u32(root.ptr.checksum.0)
                .u32(root.ptr.birth.0)
                .u8(root.ptr.level)
                .u8(1)
                .bytes(&[0; 6])
                .u64(root.max_lsn.0),
            None => writer.bytes(&[0; 32]),
        };
        writer
            .bytes(&self.attributes)
            .u64(self.older_gap.0.0)
            .u64(self.older_gap.1.0);
        writer.pad_to(start + 256).bytes(self.name.as_bytes());
    }

    /// Reads a record; `None` for a free slot.
    pub fn decode(bytes: &[u8]) -> Result<Option<CatalogueRecord>, FormatError> {
        let mut reader = Reader::new(bytes, "catalogue record");
        let kind = match reader.u8()? {
            0 => return Ok(None),
            1 => RecordKind::Dvol,
            2 => RecordKind::Layer,
            other => {
                return Err(FormatError::new(format!(
                    "catalogue record: unknown kind {other}"
                )));
            }
        };
        let version = reader.u8()?;
        let flags = reader.u16()?;
        if version != 1 || flags & !FLAGS_KNOWN != 0 {
            return Err(FormatError::new(format!(
                "catalogue record: expected version 1 and known flags, found version {version} \
                 and flags {flags:#x}"
            )));
        }
        let name_len = usize::from(reader.u8()?);
        reader.take(3)?;
        let mut record = CatalogueRecord {
            kind,
            flags,
            name: String::new(),
            id: DvolId(reader.u128()?),
            size_bytes: reader.u64()?,
            created_ns: reader.u64()?,
            lsn: Lsn(reader.u64()?),
            floor: Lsn(reader.u64()?),
            gap: (Lsn(reader.u64()?), Lsn(reader.u64()?)),
            epoch: Epoch(reader.u32()?),
            lsn_incarnation: reader.u32()?,
            layer: LayerNo(reader.u32()?),
            parent: Some(reader.u32()?)
                .filter(|&slot| slot != NO_SLOT)
                .map(Slot),
            reserved_blocks: reader.u64()?,
            inherited_blocks: reader.u64()?,
            mapped_blocks: reader.u64()?,
            reap_cursor: Key(reader.u64()?),
            map: decode_map_root(&mut reader)?,
            attributes: [0; ATTRIBUTE_BYTES],
            older_gap: (Lsn::ZERO, Lsn::ZERO),
        };
        record
            .attributes
            .copy_from_slice(reader.take(ATTRIBUTE_BYTES)?);
        record.older_gap = (Lsn(reader.u64()?), Lsn(reader.u64()?));
        reader.seek(256)?;
        record.name = decode_name(reader.take(name_len)?)?;
        record.check()?;
        Ok(Some(record))
    }

    fn check(&self) -> Result<(), FormatError> {
        let name = &self.name;
        if self.epoch > Epoch::MAX || self.reap_cursor > Key::END {
            return Err(FormatError::new(format!(
                "catalogue record of '{name}': epoch {} or reap cursor {} is out of range",
                self.epoch.0, self.reap_cursor.0
            )));
        }
        if self.parent.is_some_and(|slot| slot.0 >= SLOTS_MAX) {
            return Err(FormatError::new(format!(
                "catalogue record of '{name}': its parent is no slot"
            )));
        }
        if self.reserved_blocks > BlockNo::LIMIT.0 {
            return Err(FormatError::new(format!(
                "catalogue record of '{name}': {} reserved blocks are more than a device can have",
                self.reserved_blocks
            )));
        }
        if self.layer.0 == 0 {
            return Err(FormatError::new(format!(
                "catalogue record of '{name}': layer numbers begin at 1, found 0"
            )));
        }
        Ok(())
    }
}

fn decode_map_root(reader: &mut Reader<'_>) -> Result<Option<MapRoot>, FormatError> {
    let block = BlockNo(reader.u64()?);
    let checksum = BlockChecksum(reader.u32()?);
    let birth = LayerNo(reader.u32()?);
    let level = reader.u8()?;
    let present = reader.u8()?;
    reader.take(6)?;
    let max_lsn = Lsn(reader.u64()?);
    match present {
        0 => Ok(None),
        1 if level < 16 && block < BlockNo::LIMIT => Ok(Some(MapRoot {
            ptr: NodePtr {
                block,
                checksum,
                birth,
                level,
            },
            max_lsn,
        })),
        _ => Err(FormatError::new(format!(
            "catalogue record: expected a map root of level below 16, found level {level} at \
             {block} (presence {present})"
        ))),
    }
}

/// Checks a name's length and letters.
fn decode_name(bytes: &[u8]) -> Result<String, FormatError> {
    if bytes.len() > NAME_MAX_BYTES {
        return Err(FormatError::new(format!(
            "catalogue record: expected a name of at most {NAME_MAX_BYTES} bytes, found {}",
            bytes.len()
        )));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(FormatError::new("catalogue record: its name is not UTF-8")),
    }
}

#[cfg(test)]
pub(crate) fn sample() -> CatalogueRecord {
    CatalogueRecord {
        kind: RecordKind::Dvol,
        flags: FLAG_READ_ONLY,
        name: "demo".into(),
        id: DvolId(5),
        size_bytes: 1 << 30,
        created_ns: 1,
        lsn: Lsn(2),
        floor: Lsn(0),
        gap: (Lsn(2), Lsn(3)),
        older_gap: (Lsn(0), Lsn(1)),
        epoch: Epoch(3),
        lsn_incarnation: 4,
        layer: LayerNo(6),
        parent: Some(Slot(7)),
        reserved_blocks: 8,
        inherited_blocks: 9,
        mapped_blocks: 10,
        reap_cursor: Key(0),
        map: Some(MapRoot {
            ptr: NodePtr {
                block: BlockNo(11),
                checksum: BlockChecksum(12),
                birth: LayerNo(6),
                level: 2,
            },
            max_lsn: Lsn(13),
        }),
        attributes: [14; ATTRIBUTE_BYTES],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut out = Vec::new();
        CatalogueRecord::encode(Some(&sample()), &mut out);
        CatalogueRecord::encode(None, &mut out);
        assert_eq!(out.len(), 2 * RECORD_BYTES);
        assert_eq!(
            CatalogueRecord::decode(&out[..RECORD_BYTES]),
            Ok(Some(sample()))
        );
        assert_eq!(CatalogueRecord::decode(&out[RECORD_BYTES..]), Ok(None));
    }

    #[test]
    fn longest_name_fits() {
        let mut record = sample();
        record.name = "n".repeat(NAME_MAX_BYTES);
        let mut out = Vec::new();
        CatalogueRecord::encode(Some(&record), &mut out);
        assert_eq!(CatalogueRecord::decode(&out), Ok(Some(record)));
    }
}
