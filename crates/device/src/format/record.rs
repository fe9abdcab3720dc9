//! Journal records: the changes a group speaks of.
//!
//! A record names what is new, never what it displaces: replay finds that in the state it has. The
//! live path and recovery apply records with the same code, so they can't disagree. Consecutive
//! records of a group joined by the "more" flag are one atomic unit: all of them, or none.

use std::rc::Rc;

use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, Lsn, SegmentNo, Slot, VBlock};
use smallvec::SmallVec;

use super::FormatError;
use super::bytes::{Reader, Writer};
use super::catalogue::{self, ATTRIBUTE_BYTES, CatalogueRecord};
use crate::v2p::{Changed, Key};

/// What a record maps. Nearly all have one run, and those of small writes one block: that lies in the record itself.
pub type MapRuns = SmallVec<[MapRun; 1]>;

/// The blocks of a run.
pub type MappedBlocks = SmallVec<[MappedBlock; 1]>;

/// A block that a record maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedBlock {
    /// Where the data is.
    pub block: BlockNo,
    /// Its checksum.
    pub checksum: BlockChecksum,
    /// The tenant's metadata for the block.
    pub meta: u64,
}

/// Consecutive virtual blocks that a record maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRun {
    /// The first virtual block.
    pub start: VBlock,
    /// One mapping per block.
    pub blocks: MappedBlocks,
}

/// A change. Slots are of the journal that holds the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Blocks of a dvol now lie elsewhere.
    Map {
        /// The dvol.
        slot: Slot,
        /// The change's LSN.
        lsn: Lsn,
        /// What is mapped, in ascending order without overlap.
        runs: MapRuns,
    },
    /// A part of a block is replaced, without reading the block.
    Delta {
        /// The dvol.
        slot: Slot,
        /// The change's LSN.
        lsn: Lsn,
        /// Which block.
        vblock: VBlock,
        /// Which bytes of the block.
        changed: Changed,
        /// Where the bytes lie, at the same offset.
        block: BlockNo,
        /// Checksum of that whole block.
        checksum: BlockChecksum,
    },
    /// The data of a block now lies elsewhere, and the delta over it stays: what the delta has is not in the data.
    MapUnder {
        /// The dvol.
        slot: Slot,
        /// The change's LSN.
        lsn: Lsn,
        /// Which block.
        vblock: VBlock,
        /// Its data, without what the delta has.
        mapped: MappedBlock,
    },
    /// Ranges read as zeros and take no space.
    Unmap {
        /// The dvol.
        slot: Slot,
        /// The change's LSN.
        lsn: Lsn,
        /// Start and number of blocks, ascending, without overlap.
        ranges: Vec<(VBlock, u64)>,
    },
    /// A new dvol in a free slot; its `parent`, if any, gives the content (a clone).
    CreateDvol {
        /// Where.
        slot: Slot,
        /// What; `map` is not used.
        record: Box<CatalogueRecord>,
    },
    /// Name, size, flags, epoch, reservation and floor of a dvol or layer change to those of
    /// `record`; its map, layer, parent and attributes stay.
    Update {
        /// Which.
        slot: Slot,
        /// The new values.
        record: Box<CatalogueRecord>,
    },
    /// A dvol's head becomes a layer, and a new head begins on top of it.
    Snapshot {
        /// The dvol.
        slot: Slot,
        /// A free slot for the layer.
        layer_slot: Slot,
        /// Number of the new head.
        head: u32,
        /// When.
        created_ns: u64,
        /// The snapshot's name.
        name: String,
    },
    /// A dvol's head is discarded, and a new one begins on top of `to`.
    Rollback {
        /// The dvol.
        slot: Slot,
        /// The layer to go back to.
        to: Slot,
        /// A free slot for the discarded head, which is reaped.
        discard_slot: Slot,
        /// Number of the new head.
        head: u32,
        /// The change's LSN.
        lsn: Lsn,
        /// The dvol's size from now on.
        size_bytes: u64,
    },
    /// A dvol is gone; its head becomes a hidden layer in the same slot, which is reaped.
    DeleteDvol {
        /// Which.
        slot: Slot,
    },
    /// A layer is hidden, and reaped once at most one child remains.
    DeleteLayer {
        /// Which.
        slot: Slot,
    },
    /// A hidden layer's blocks up to a key are freed. At [`Key::END`] the layer is gone and its
    /// child, if any, stands on its parent.
    Reap {
        /// Which.
        slot: Slot,
        /// Everything below this key is reaped now.
        to: Key,
    },
    /// The journal owns one more segment, empty.
    ReserveSegment {
        /// Which.
        segment: SegmentNo,
    },
    /// The journal gives an empty segment back.
    ReleaseSegment {
        /// Which.
        segment: SegmentNo,
    },
    /// What the layer above keeps with a dvol is this now.
    Attributes {
        /// The dvol.
        slot: Slot,
        /// The change's LSN: that of the data beside it, if there is some.
        lsn: Lsn,
        /// What it is.
        attributes: Box<[u8; ATTRIBUTE_BYTES]>,
    },
    /// Whole blocks of a dvol have these bytes, which are in the journal alone until the next checkpoint.
    Journaled {
        /// The dvol.
        slot: Slot,
        /// The change's LSN.
        lsn: Lsn,
        /// The first block.
        start: VBlock,
        /// The bytes, from the start of that block on; what they leave of the last one is zeros. Not empty.
        data: Rc<[u8]>,
    },
    /// An earlier unit never happened: its data could not be written.
    Abort {
        /// The group the unit is in.
        seq: u64,
        /// The unit's position in that group, from zero.
        unit: u32,
    },
}

const TYPE_MAP: u8 = 1;
const TYPE_DELTA: u8 = 2;
const TYPE_UNMAP: u8 = 3;
const TYPE_CREATE_DVOL: u8 = 4;
const TYPE_UPDATE: u8 = 5;
const TYPE_SNAPSHOT: u8 = 6;
const TYPE_ROLLBACK: u8 = 7;
const TYPE_DELETE_DVOL: u8 = 8;
const TYPE_DELETE_LAYER: u8 = 9;
const TYPE_REAP: u8 = 10;
const TYPE_RESERVE_SEGMENT: u8 = 11;
const TYPE_RELEASE_SEGMENT: u8 = 12;
const TYPE_ABORT: u8 = 13;
const TYPE_ATTRIBUTES: u8 = 14;
const TYPE_DELTA_PIECES: u8 = 15;
const TYPE_JOURNALED: u8 = 16;
const TYPE_MAP_UNDER: u8 = 17;

/// The next record belongs to the same atomic unit.
const FLAG_MORE: u8 = 1;

/// Bytes in front of each record's body.
pub const RECORD_HEADER_BYTES: usize = 8;

/// Bytes of a [`Record::Attributes`], its header included.
pub const ATTRIBUTES_RECORD_BYTES: usize = RECORD_HEADER_BYTES + 12 + ATTRIBUTE_BYTES;

/// Bytes of a [`Record::Journaled`] beside its data, its header included.
pub const JOURNALED_RECORD_BYTES: usize = RECORD_HEADER_BYTES + 20;

/// Bytes of a [`Record::Map`] body before its runs.
pub const MAP_FIXED_BYTES: usize = 14;

/// Bytes per run and per block of a [`Record::Map`] (without and with metadata).
pub const MAP_RUN_BYTES: usize = 13;
/// Bytes per mapped block without tenant metadata.
pub const MAP_BLOCK_BYTES: usize = 9;
/// Bytes per mapped block with tenant metadata.
pub const MAP_BLOCK_META_BYTES: usize = 17;

impl Record {
    /// Appends the record. `more`: the next one belongs to the same unit.
    pub fn encode(&self, more: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let flags = if more { FLAG_MORE } else { 0 };
        Writer::new(out)
            .u8(self.type_code())
            .u8(flags)
            .u16(0)
            .u32(0);
        self.encode_body(out);
        let body_bytes = (out.len() - start - RECORD_HEADER_BYTES) as u32;
        out[start + 4..start + 8].copy_from_slice(&body_bytes.to_le_bytes());
    }

    fn type_code(&self) -> u8 {
        match self {
            Record::Map { .. } => TYPE_MAP,
            Record::Delta { changed, .. } if changed.holes() != 0 => TYPE_DELTA_PIECES,
            Record::Delta { .. } => TYPE_DELTA,
            Record::MapUnder { .. } => TYPE_MAP_UNDER,
            Record::Unmap { .. } => TYPE_UNMAP,
            Record::CreateDvol { .. } => TYPE_CREATE_DVOL,
            Record::Update { .. } => TYPE_UPDATE,
            Record::Snapshot { .. } => TYPE_SNAPSHOT,
            Record::Rollback { .. } => TYPE_ROLLBACK,
            Record::DeleteDvol { .. } => TYPE_DELETE_DVOL,
            Record::DeleteLayer { .. } => TYPE_DELETE_LAYER,
            Record::Reap { .. } => TYPE_REAP,
            Record::ReserveSegment { .. } => TYPE_RESERVE_SEGMENT,
            Record::ReleaseSegment { .. } => TYPE_RELEASE_SEGMENT,
            Record::Abort { .. } => TYPE_ABORT,
            Record::Attributes { .. } => TYPE_ATTRIBUTES,
            Record::Journaled { .. } => TYPE_JOURNALED,
        }
    }

    /// What kind of record it is, in words.
    pub fn type_name(&self) -> &'static str {
        match self {
            Record::Map { .. } => "map",
            Record::Delta { .. } => "delta",
            Record::MapUnder { .. } => "map under a delta",
            Record::Unmap { .. } => "unmap",
            Record::CreateDvol { .. } => "create dvol",
            Record::Update { .. } => "update",
            Record::Snapshot { .. } => "snapshot",
            Record::Rollback { .. } => "roll back",
            Record::DeleteDvol { .. } => "delete dvol",
            Record::DeleteLayer { .. } => "delete layer",
            Record::Reap { .. } => "reap",
            Record::ReserveSegment { .. } => "reserve segment",
            Record::ReleaseSegment { .. } => "release segment",
            Record::Abort { .. } => "abort",
            Record::Attributes { .. } => "attributes",
            Record::Journaled { .. } => "journaled data",
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        match self {
            Record::Map { slot, lsn, runs } => encode_map(*slot, *lsn, runs, &mut writer),
            Record::Delta {
                slot,
                lsn,
                vblock,
                changed,
                block,
                checksum,
            } => {
                let range = changed.range();
                writer
                    .u32(slot.0)
                    .u64(lsn.0)
                    .u64(vblock.0)
                    .u16(range.start as u16)
                    .u16(range.len() as u16);
                writer.u40(block.0).u32(checksum.0);
                if changed.holes() != 0 {
                    writer.u32(changed.holes());
                }
            }
            Record::MapUnder {
                slot,
                lsn,
                vblock,
                mapped,
            } => {
                writer.u32(slot.0).u64(lsn.0).u64(vblock.0);
                writer.u40(mapped.block.0).u32(mapped.checksum.0);
                writer.u64(mapped.meta);
            }
            Record::Unmap { slot, lsn, ranges } => {
                writer.u32(slot.0).u64(lsn.0).u16(ranges.len() as u16);
                for (start, count) in ranges {
                    writer.u64(start.0).u64(*count);
                }
            }
            Record::CreateDvol { slot, record } | Record::Update { slot, record } => {
                writer.u32(slot.0);
                CatalogueRecord::encode(Some(record), out);
            }
            Record::Snapshot {
                slot,
                layer_slot,
                head,
                created_ns,
                name,
            } => {
                writer
                    .u32(slot.0)
                    .u32(layer_slot.0)
                    .u32(*head)
                    .u64(*created_ns);
                writer.u8(name.len() as u8).bytes(name.as_bytes());
            }
            Record::Rollback {
                slot,
                to,
                discard_slot,
                head,
                lsn,
                size_bytes,
            } => {
                writer.u32(slot.0).u32(to.0).u32(discard_slot.0).u32(*head);
                writer.u64(lsn.0).u64(*size_bytes);
            }
            Record::DeleteDvol { slot } | Record::DeleteLayer { slot } => {
                writer.u32(slot.0);
            }
            Record::Reap { slot, to } => {
                writer.u32(slot.0).u64(to.0);
            }
            Record::ReserveSegment { segment } | Record::ReleaseSegment { segment } => {
                writer.u32(segment.0);
            }
            Record::Abort { seq, unit } => {
                writer.u64(*seq).u32(*unit);
            }
            Record::Attributes {
                slot,
                lsn,
                attributes,
            } => {
                writer.u32(slot.0).u64(lsn.0).bytes(&attributes[..]);
            }
            Record::Journaled {
                slot,
                lsn,
                start,
                data,
            } => {
                writer.u32(slot.0).u64(lsn.0).u64(start.0).bytes(data);
            }
        }
    }

    /// Reads one record and whether the next belongs to the same unit.
    pub fn decode(reader: &mut Reader<'_>) -> Result<(Record, bool), FormatError> {
        let code = reader.u8()?;
        let flags = reader.u8()?;
        let reserved = reader.u16()?;
        if flags & !FLAG_MORE != 0 || reserved != 0 {
            return Err(FormatError::new(format!(
                "journal record: unknown flags {flags:#x}"
            )));
        }
        let body_bytes = reader.u32()? as usize;
        let mut body = Reader::new(reader.take(body_bytes)?, "journal record");
        let record = Record::decode_body(code, &mut body)?;
        if body.remaining() != 0 {
            return Err(FormatError::new(format!(
                "journal record of type {code}: {} bytes are left over",
                body.remaining()
            )));
        }
        Ok((record, flags & FLAG_MORE != 0))
    }

    fn decode_body(code: u8, body: &mut Reader<'_>) -> Result<Record, FormatError> {
        Ok(match code {
            TYPE_MAP => decode_map(body)?,
            TYPE_DELTA => decode_delta(body, false)?,
            TYPE_DELTA_PIECES => decode_delta(body, true)?,
            TYPE_MAP_UNDER => decode_map_under(body)?,
            TYPE_UNMAP => decode_unmap(body)?,
            TYPE_CREATE_DVOL => Record::CreateDvol {
                slot: slot(body)?,
                record: Box::new(whole_record(body)?),
            },
            TYPE_UPDATE => Record::Update {
                slot: slot(body)?,
                record: Box::new(whole_record(body)?),
            },
            TYPE_SNAPSHOT => Record::Snapshot {
                slot: slot(body)?,
                layer_slot: slot(body)?,
                head: body.u32()?,
                created_ns: body.u64()?,
                name: {
                    let len = usize::from(body.u8()?);
                    name(body.take(len)?)?
                },
            },
            TYPE_ROLLBACK => Record::Rollback {
                slot: slot(body)?,
                to: slot(body)?,
                discard_slot: slot(body)?,
                head: body.u32()?,
                lsn: Lsn(body.u64()?),
                size_bytes: body.u64()?,
            },
            TYPE_DELETE_DVOL => Record::DeleteDvol { slot: slot(body)? },
            TYPE_DELETE_LAYER => Record::DeleteLayer { slot: slot(body)? },
            TYPE_REAP => Record::Reap {
                slot: slot(body)?,
                to: reap_key(body.u64()?)?,
            },
            TYPE_RESERVE_SEGMENT => Record::ReserveSegment {
                segment: SegmentNo(body.u32()?),
            },
            TYPE_RELEASE_SEGMENT => Record::ReleaseSegment {
                segment: SegmentNo(body.u32()?),
            },
            TYPE_ABORT => Record::Abort {
                seq: body.u64()?,
                unit: body.u32()?,
            },
            TYPE_ATTRIBUTES => Record::Attributes {
                slot: slot(body)?,
                lsn: Lsn(body.u64()?),
                attributes: Box::new(attributes(body.take(ATTRIBUTE_BYTES)?)?),
            },
            TYPE_JOURNALED => decode_journaled(body)?,
            other => {
                return Err(FormatError::new(format!(
                    "journal record: unknown type {other}"
                )));
            }
        })
    }

    /// Physical blocks this record makes live, with their checksums.
    pub fn new_blocks(&self) -> impl Iterator<Item = (BlockNo, BlockChecksum)> + '_ {
        let (runs, one) = match self {
            Record::Map { runs, .. } => (runs.as_slice(), None),
            Record::Delta {
                block, checksum, ..
            } => (&[][..], Some((*block, *checksum))),
            Record::MapUnder { mapped, .. } => (&[][..], Some((mapped.block, mapped.checksum))),
            _ => (&[][..], None),
        };
        runs.iter()
            .flat_map(|run| run.blocks.iter().map(|b| (b.block, b.checksum)))
            .chain(one)
    }
}

fn encode_map(slot: Slot, lsn: Lsn, runs: &[MapRun], writer: &mut Writer<'_>) {
    writer.u32(slot.0).u64(lsn.0).u16(runs.len() as u16);
    for run in runs {
        let has_meta = run.blocks.iter().any(|b| b.meta != 0);
        writer
            .u64(run.start.0)
            .u32(run.blocks.len() as u32)
            .u8(u8::from(has_meta));
        for mapped in &run.blocks {
            writer.u40(mapped.block.0).u32(mapped.checksum.0);
            if has_meta {
                writer.u64(mapped.meta);
            }
        }
    }
}

fn decode_map(body: &mut Reader<'_>) -> Result<Record, FormatError> {
    let slot = slot(body)?;
    let lsn = Lsn(body.u64()?);
    let run_count = usize::from(body.u16()?);
    let mut runs = MapRuns::with_capacity(run_count.min(body.remaining() / MAP_RUN_BYTES));
    let mut behind = 0;
    for _ in 0..run_count {
        let start = body.u64()?;
        let count = body.u32()? as usize;
        let has_meta = match body.u8()? {
            0 => false,
            1 => true,
            other => {
                return Err(FormatError::new(format!(
                    "map record: unknown run flags {other}"
                )));
            }
        };
        let each = if has_meta {
            MAP_BLOCK_META_BYTES
        } else {
            MAP_BLOCK_BYTES
        };
        if count == 0 || count > body.remaining() / each {
            return Err(FormatError::new(format!(
                "map record: a run of {count} blocks does not fit its {} bytes",
                body.remaining()
            )));
        }
        behind = check_range(start, count as u64, behind)?;
        let mut blocks = MappedBlocks::with_capacity(count);
        for _ in 0..count {
            blocks.push(MappedBlock {
                block: BlockNo(body.u40()?),
                checksum: BlockChecksum(body.u32()?),
                meta: if has_meta { body.u64()? } else { 0 },
            });
        }
        runs.push(MapRun {
            start: VBlock(start),
            blocks,
        });
    }
    Ok(Record::Map { slot, lsn, runs })
}

fn decode_delta(body: &mut Reader<'_>, has_holes: bool) -> Result<Record, FormatError> {
    let slot = slot(body)?;
    let lsn = Lsn(body.u64()?);
    let vblock = body.u64()?;
    check_range(vblock, 1, 0)?;
    let offset_bytes = usize::from(body.u16()?);
    let len_bytes = usize::from(body.u16()?);
    let range = offset_bytes..offset_bytes + len_bytes;
    let Some(without_holes) = Changed::of(range.clone()) else {
        return Err(FormatError::new(format!(
            "delta record: {len_bytes} bytes at {offset_bytes} leave the block"
        )));
    };
    let block = BlockNo(body.u40()?);
    let checksum = BlockChecksum(body.u32()?);
    let changed = if has_holes {
        let holes = body.u32()?;
        let changed = Changed::with_holes(range, holes).filter(|_| holes != 0);
        changed.ok_or_else(|| {
            FormatError::new(format!(
                "delta record: {holes:#x} are no holes in {len_bytes} bytes at {offset_bytes}"
            ))
        })?
    } else {
        without_holes
    };
    Ok(Record::Delta {
        slot,
        lsn,
        vblock: VBlock(vblock),
        changed,
        block,
        checksum,
    })
}

fn decode_map_under(body: &mut Reader<'_>) -> Result<Record, FormatError> {
    let slot = slot(body)?;
    let lsn = Lsn(body.u64()?);
    let vblock = body.u64()?;
    check_range(vblock, 1, 0)?;
    let mapped = MappedBlock {
        block: BlockNo(body.u40()?),
        checksum: BlockChecksum(body.u32()?),
        meta: body.u64()?,
    };
    Ok(Record::MapUnder {
        slot,
        lsn,
        vblock: VBlock(vblock),
        mapped,
    })
}

fn decode_journaled(body: &mut Reader<'_>) -> Result<Record, FormatError> {
    let slot = slot(body)?;
    let lsn = Lsn(body.u64()?);
    let start = body.u64()?;
    let data = body.take(body.remaining())?;
    check_range(start, blocks_of_bytes(data.len()), 0)?;
    Ok(Record::Journaled {
        slot,
        lsn,
        start: VBlock(start),
        data: data.into(),
    })
}

/// Blocks that so many bytes take.
pub fn blocks_of_bytes(len: usize) -> u64 {
    (len as u64).div_ceil(BLOCK_SIZE)
}

fn decode_unmap(body: &mut Reader<'_>) -> Result<Record, FormatError> {
    let slot = slot(body)?;
    let lsn = Lsn(body.u64()?);
    let count = usize::from(body.u16()?);
    let mut ranges = Vec::with_capacity(count.min(body.remaining() / 16));
    let mut behind = 0;
    for _ in 0..count {
        let start = body.u64()?;
        let blocks = body.u64()?;
        behind = check_range(start, blocks, behind)?;
        ranges.push((VBlock(start), blocks));
    }
    Ok(Record::Unmap { slot, lsn, ranges })
}

/// Checks that a run is not empty, lies in the address space, and begins at or behind `behind`.
/// Returns its end.
fn check_range(start: u64, count: u64, behind: u64) -> Result<u64, FormatError> {
    let end = start
        .checked_add(count)
        .filter(|&e| e <= flagstone_types::unit::VBLOCKS_MAX);
    match end {
        Some(end) if count > 0 && start >= behind => Ok(end),
        _ => Err(FormatError::new(format!(
            "journal record: expected ascending ranges within 2^52 blocks, found {count} at {start}"
        ))),
    }
}

fn slot(body: &mut Reader<'_>) -> Result<Slot, FormatError> {
    let slot = body.u32()?;
    if slot >= catalogue::SLOTS_MAX {
        return Err(FormatError::new(format!(
            "journal record: expected a slot below {}, found {slot}",
            catalogue::SLOTS_MAX
        )));
    }
    Ok(Slot(slot))
}

fn whole_record(body: &mut Reader<'_>) -> Result<CatalogueRecord, FormatError> {
    CatalogueRecord::decode(body.take(catalogue::RECORD_BYTES)?)?
        .ok_or_else(|| FormatError::new("journal record: its catalogue record is empty"))
}

fn attributes(bytes: &[u8]) -> Result<[u8; ATTRIBUTE_BYTES], FormatError> {
    let all = bytes.try_into();
    all.map_err(|_| FormatError::new("attributes record: it is too short"))
}

fn reap_key(key: u64) -> Result<Key, FormatError> {
    let key = Key(key);
    if key > Key::END {
        return Err(FormatError::new(format!(
            "reap record: key {} is out of range",
            key.0
        )));
    }
    Ok(key)
}

fn name(bytes: &[u8]) -> Result<String, FormatError> {
    if bytes.len() > catalogue::NAME_MAX_BYTES {
        return Err(FormatError::new("journal record: its name is too long"));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(FormatError::new("journal record: its name is not UTF-8")),
    }
}

/// Decodes the body of a group into its atomic units.
pub fn decode_units(body: &[u8]) -> Result<Vec<Vec<Record>>, FormatError> {
    let mut reader = Reader::new(body, "journal group");
    let mut units = Vec::new();
    let mut unit = Vec::new();
    while reader.remaining() > 0 {
        let (record, more) = Record::decode(&mut reader)?;
        if !more && unit.is_empty() {
            // Nearly all: there may be millions, so no memory for more than the one.
            units.push(vec![record]);
            continue;
        }
        unit.push(record);
        if !more {
            units.push(std::mem::take(&mut unit));
        }
    }
    if !unit.is_empty() {
        return Err(FormatError::new(
            "journal group: its last unit does not end",
        ));
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn samples() -> Vec<Record> {
        let mapped = |n: u64, meta| MappedBlock {
            block: BlockNo(n),
            checksum: BlockChecksum(n as u32),
            meta,
        };
        let record = Box::new(catalogue::sample());
        vec![
            Record::Map {
                slot: Slot(1),
                lsn: Lsn(2),
                runs: smallvec![
                    MapRun {
                        start: VBlock(3),
                        blocks: smallvec![mapped(1, 0), mapped(2, 0)],
                    },
                    MapRun {
                        start: VBlock(9),
                        blocks: smallvec![mapped((1 << 40) - 1, 7)],
                    },
                ],
            },
            Record::Delta {
                slot: Slot(1),
                lsn: Lsn(3),
                vblock: VBlock((1 << 52) - 1),
                changed: Changed::of(512..4096).unwrap(),
                block: BlockNo(4),
                checksum: BlockChecksum(5),
            },
            Record::Delta {
                slot: Slot(1),
                lsn: Lsn(3),
                vblock: VBlock(0),
                changed: Changed::with_holes(0..4096, 0x7fff_fffe).unwrap(),
                block: BlockNo(4),
                checksum: BlockChecksum(5),
            },
            Record::MapUnder {
                slot: Slot(1),
                lsn: Lsn(4),
                vblock: VBlock((1 << 52) - 1),
                mapped: mapped((1 << 40) - 1, 7),
            },
            Record::Unmap {
                slot: Slot(2),
                lsn: Lsn(4),
                ranges: vec![(VBlock(0), 1), (VBlock(1), (1 << 52) - 1)],
            },
            Record::CreateDvol {
                slot: Slot(5),
                record: record.clone(),
            },
            Record::Update {
                slot: Slot(5),
                record,
            },
            Record::Snapshot {
                slot: Slot(5),
                layer_slot: Slot(6),
                head: 7,
                created_ns: 8,
                name: "monday".into(),
            },
            Record::Rollback {
                slot: Slot(5),
                to: Slot(6),
                discard_slot: Slot(7),
                head: 9,
                lsn: Lsn(10),
                size_bytes: 4096,
            },
            Record::DeleteDvol { slot: Slot(5) },
            Record::DeleteLayer { slot: Slot(6) },
            Record::Reap {
                slot: Slot(6),
                to: Key::END,
            },
            Record::ReserveSegment {
                segment: SegmentNo(3),
            },
            Record::ReleaseSegment {
                segment: SegmentNo(3),
            },
            Record::Abort { seq: 11, unit: 12 },
            Record::Attributes {
                slot: Slot(5),
                lsn: Lsn(11),
                attributes: Box::new(std::array::from_fn(|at| at as u8)),
            },
            Record::Journaled {
                slot: Slot(5),
                lsn: Lsn(12),
                start: VBlock((1 << 52) - 2),
                data: (0..5000).map(|at| at as u8).collect(),
            },
        ]
    }

    #[test]
    fn round_trip_as_units() {
        let samples = samples();
        let mut body = Vec::new();
        for (index, record) in samples.iter().enumerate() {
            record.encode(index % 3 != 2 && index + 1 != samples.len(), &mut body);
        }
        let units = decode_units(&body).expect("own bytes");
        assert_eq!(units.len(), samples.len().div_ceil(3));
        assert_eq!(units.concat(), samples);
    }

    #[test]
    fn a_delta_with_holes_is_a_record_of_its_own() {
        let bytes_of = |changed| {
            let delta = Record::Delta {
                slot: Slot(1),
                lsn: Lsn(2),
                vblock: VBlock(3),
                changed,
                block: BlockNo(4),
                checksum: BlockChecksum(5),
            };
            let mut bytes = Vec::new();
            delta.encode(false, &mut bytes);
            bytes
        };
        let one = Changed::of(0..512).unwrap();
        let both = one.and(&(1024..2048)).unwrap();
        let start = [
            [1, 0, 0, 0].as_slice(),
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0],
        ];
        let end = [[4, 0, 0, 0, 0].as_slice(), &[5, 0, 0, 0]].concat();
        let body = [&start.concat()[..], &[0, 2], &end].concat();
        let expected = [&[2, 0, 0, 0, 33, 0, 0, 0], &body[..]].concat();
        assert_eq!(bytes_of(one), expected);
        let body = [&start.concat()[..], &[0, 8], &end, &[0xf0, 0, 0, 0]].concat();
        let expected = [&[15, 0, 0, 0, 37, 0, 0, 0], &body[..]].concat();
        assert_eq!(bytes_of(both), expected);

        // None at all, and none where there can be one: at either end, and behind.
        for holes in [0_u32, 1, 1 << 15, 1 << 16, 1 << 31] {
            let mut wrong = expected.clone();
            wrong[41..].copy_from_slice(&holes.to_le_bytes());
            let refused = decode_units(&wrong).unwrap_err().to_string();
            assert!(
                refused.contains("are no holes in 2048 bytes at 0"),
                "{refused}"
            );
        }
        let mut without = expected.clone();
        without[0] = TYPE_DELTA;
        assert!(decode_units(&without).is_err(), "bytes are left over");
    }

    #[test]
    fn what_is_mapped_under_a_delta_is_one_block_and_no_more() {
        let mapped = MappedBlock {
            block: BlockNo(4),
            checksum: BlockChecksum(5),
            meta: 6,
        };
        let record = |vblock| Record::MapUnder {
            slot: Slot(1),
            lsn: Lsn(2),
            vblock: VBlock(vblock),
            mapped,
        };
        let bytes_of = |record: Record| {
            let mut bytes = Vec::new();
            record.encode(false, &mut bytes);
            bytes
        };
        let body = [
            [1, 0, 0, 0].as_slice(),
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0, 0],
            &[5, 0, 0, 0],
            &[6, 0, 0, 0, 0, 0, 0, 0],
        ];
        let expected = [&[17, 0, 0, 0, 37, 0, 0, 0], &body.concat()[..]].concat();
        assert_eq!(bytes_of(record(3)), expected);
        assert_eq!(
            record(3).new_blocks().collect::<Vec<_>>(),
            [(BlockNo(4), BlockChecksum(5))]
        );

        let refused = |bytes: &[u8]| decode_units(bytes).unwrap_err().to_string();
        assert!(refused(&bytes_of(record(1 << 52))).contains("within 2^52 blocks"));
        for (len, what) in [(36, "expected 8 more bytes"), (38, "1 bytes are left over")] {
            let mut wrong = expected.clone();
            wrong.resize(RECORD_HEADER_BYTES + len, 0);
            wrong[4] = len as u8;
            let refused = refused(&wrong);
            assert!(refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn sizes_are_as_computed() {
        let mut body = Vec::new();
        let runs = smallvec![MapRun {
            start: VBlock(0),
            blocks: smallvec![
                MappedBlock {
                    block: BlockNo(1),
                    checksum: BlockChecksum(0),
                    meta: 0
                };
                3
            ],
        }];
        Record::Map {
            slot: Slot(0),
            lsn: Lsn(1),
            runs,
        }
        .encode(false, &mut body);
        let expected = RECORD_HEADER_BYTES + MAP_FIXED_BYTES + MAP_RUN_BYTES + 3 * MAP_BLOCK_BYTES;
        assert_eq!(body.len(), expected);
        body.clear();
        Record::Attributes {
            slot: Slot(0),
            lsn: Lsn(1),
            attributes: Box::new([7; _]),
        }
        .encode(true, &mut body);
        assert_eq!(body.len(), ATTRIBUTES_RECORD_BYTES);
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let mut body = Vec::new();
        for record in samples() {
            record.encode(false, &mut body);
        }
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut damaged = body.clone();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (state >> 33) as usize % damaged.len();
                damaged[at] = (state >> 20) as u8;
            }
            let _ = decode_units(&damaged);
            let _ = decode_units(&damaged[..(state >> 40) as usize % damaged.len()]);
        }
    }
}
