//! Records of every kind with fields that are right, nearly right or nonsense. What is chosen comes
//! from outside: a generator, or the bytes of a fuzzer.

use flagstone_device::format::bytes::Reader;
use flagstone_device::format::catalogue::{CatalogueRecord, RecordKind};
use flagstone_device::format::record::{MapRun, MappedBlock, MappedBlocks, Record};
use flagstone_device::v2p::{Changed, Key};
use flagstone_types::{
    BlockChecksum, BlockNo, DvolId, Epoch, LayerNo, Lsn, SegmentNo, Slot, VBlock,
};

use super::Builder;

/// `choose(n)` is a number below `n`.
pub type Choose<'a> = &'a mut dyn FnMut(u64) -> u64;

fn pick<T: Copy>(choose: Choose<'_>, items: &[T]) -> T {
    items[choose(items.len() as u64) as usize]
}

/// One piece or two.
fn changed(choose: Choose<'_>) -> Changed {
    let (start, end) = pick(
        choose,
        &[(0, 1), (9, 10), (0, 512), (4095, 4096), (0, 4096)],
    );
    let one = Changed::of(start..end).expect("within a block");
    let (start, end) = pick(choose, &[(1024, 1536), (2048, 2049)]);
    one.and(&(start..end)).unwrap_or(one)
}

fn slot(choose: Choose<'_>) -> Slot {
    match choose(12) {
        0 => Slot(pick(choose, &[20, 25])),
        _ => Slot(choose(8) as u32),
    }
}

/// A free slot, mostly.
fn free_slot(builder: &Builder, choose: Choose<'_>) -> Slot {
    match choose(6) {
        0 => slot(choose),
        _ => builder.free_slots(0, 1)[0],
    }
}

fn lsn(builder: &Builder, slot: Slot, choose: Choose<'_>) -> Lsn {
    let known = builder.state(0).slot(slot).map_or(0, |s| s.record.lsn.0);
    match choose(8) {
        0 => Lsn(pick(choose, &[0, 1, u64::MAX, u64::MAX - 1, 1 << 63])),
        1 => Lsn(known),
        _ => Lsn(known.saturating_add(1 + choose(3))),
    }
}

fn block(builder: &Builder, choose: Choose<'_>) -> BlockNo {
    let geometry = &builder.geometry;
    let start = geometry.data_start.0;
    match choose(24) {
        0 => BlockNo(start + choose(2)),
        1 => BlockNo(choose(start)),
        2 => BlockNo(geometry.data_end.0 - choose(2)),
        3 => pick(
            choose,
            &[
                BlockNo(0),
                BlockNo((1 << 40) - 1),
                BlockNo(32_768),
                BlockNo(32_769),
            ],
        ),
        4..=6 => BlockNo(start + 2 + choose(600)),
        _ => BlockNo(start + 600 + choose(geometry.data_end.0.min(32_768) - start - 600)),
    }
}

fn mapped(builder: &Builder, choose: Choose<'_>) -> MappedBlock {
    MappedBlock {
        block: block(builder, choose),
        checksum: BlockChecksum(7),
        meta: choose(2),
    }
}

fn head(builder: &Builder, choose: Choose<'_>) -> u32 {
    let next = builder.state(0).next_layer;
    match choose(8) {
        0 => pick(choose, &[0, 1, u32::MAX, next - 1]),
        _ => next + choose(2) as u32,
    }
}

fn name(choose: Choose<'_>) -> String {
    match choose(4) {
        0 => String::new(),
        1 => "dvol-1".into(),
        _ => format!("name-{}", choose(30)),
    }
}

fn catalogue_record(builder: &Builder, choose: Choose<'_>) -> CatalogueRecord {
    let of = slot(choose);
    let known = builder.state(0).slot(of).map(|s| s.record.clone());
    let unknown = CatalogueRecord {
        kind: RecordKind::Dvol,
        flags: 0,
        name: name(choose),
        id: DvolId(0),
        size_bytes: 1 << 30,
        created_ns: 1,
        lsn: Lsn::ZERO,
        floor: Lsn::ZERO,
        gap: (Lsn::ZERO, Lsn::ZERO),
        older_gap: (Lsn::ZERO, Lsn::ZERO),
        epoch: Epoch(0),
        lsn_incarnation: 1,
        layer: LayerNo(1),
        parent: None,
        reserved_blocks: 0,
        inherited_blocks: 0,
        mapped_blocks: 0,
        reap_cursor: Key(0),
        map: None,
        attributes: [0; 64],
    };
    let mut record = known.unwrap_or(unknown);
    for _ in 0..choose(3) {
        match choose(9) {
            0 => record.kind = pick(choose, &[RecordKind::Dvol, RecordKind::Layer]),
            1 => record.flags = choose(4) as u16,
            2 => record.name = name(choose),
            3 => record.lsn = lsn(builder, of, choose),
            4 => record.reap_cursor = Key(pick(choose, &[0, 2, 1 << 53])),
            5 => record.reserved_blocks = pick(choose, &[0, 9, 1 << 40, u64::MAX]),
            6 => record.mapped_blocks = pick(choose, &[0, u64::MAX]),
            7 => record.parent = Some(slot(choose)),
            _ => record.size_bytes = pick(choose, &[0, u64::MAX]),
        }
    }
    record
}

/// Some record.
pub fn record(builder: &Builder, choose: Choose<'_>) -> Record {
    let at = slot(choose);
    match choose(19) {
        0..=3 => {
            let mut start = 0;
            let runs = (0..=choose(3)).map(|_| {
                start += choose(200);
                let count = 1 + choose(40);
                let first = block(builder, choose);
                let mut blocks: MappedBlocks = (0..count)
                    .map(|i| MappedBlock {
                        block: BlockNo((first.0 + i).min((1 << 40) - 1)),
                        checksum: BlockChecksum(7),
                        meta: 0,
                    })
                    .collect();
                if choose(3) == 0 {
                    blocks[0] = mapped(builder, choose);
                }
                let run = MapRun {
                    start: VBlock(start),
                    blocks,
                };
                start += count;
                run
            });
            let runs = runs.collect();
            let lsn = lsn(builder, at, choose);
            Record::Map {
                slot: at,
                lsn,
                runs,
            }
        }
        4 | 5 => Record::Delta {
            slot: at,
            lsn: lsn(builder, at, choose),
            vblock: VBlock(pick(choose, &[3, 40, (1 << 52) - 1, 1 << 52])),
            changed: changed(choose),
            block: block(builder, choose),
            checksum: BlockChecksum(7),
        },
        6 => Record::Unmap {
            slot: at,
            lsn: lsn(builder, at, choose),
            ranges: vec![
                (VBlock(choose(300)), 1 + choose(300)),
                (VBlock(700), pick(choose, &[1, 1 << 51, 1 << 52])),
            ],
        },
        7 => {
            let mut new = catalogue_record(builder, choose);
            if choose(4) != 0 {
                new.kind = RecordKind::Dvol;
                new.flags = 0;
                new.reap_cursor = Key(0);
                new.name = format!("made-{}", builder.state(0).next_layer);
            }
            new.layer = LayerNo(head(builder, choose));
            // Whether an id is new can't be told without looking at all of them.
            new.id = DvolId(u128::from(builder.state(0).next_layer) << 32 | 0x77);
            if choose(2) == 0 {
                new.parent = None;
            }
            Record::CreateDvol {
                slot: free_slot(builder, choose),
                record: Box::new(new),
            }
        }
        8 => Record::Update {
            slot: at,
            record: Box::new(catalogue_record(builder, choose)),
        },
        9 | 10 => Record::Snapshot {
            slot: at,
            layer_slot: free_slot(builder, choose),
            head: head(builder, choose),
            created_ns: 5,
            // One without a name is deleted by the next record of its unit.
            name: match name(choose) {
                name if name.is_empty() => format!("made-{}", builder.state(0).next_layer),
                name => name,
            },
        },
        11 => Record::Rollback {
            slot: at,
            to: slot(choose),
            discard_slot: free_slot(builder, choose),
            head: head(builder, choose),
            lsn: lsn(builder, at, choose),
            size_bytes: choose(1 << 30),
        },
        12 => match choose(3) {
            0 => Record::DeleteDvol { slot: at },
            _ => Record::DeleteLayer { slot: at },
        },
        17 => Record::MapUnder {
            slot: at,
            lsn: lsn(builder, at, choose),
            vblock: VBlock(pick(choose, &[3, 40, (1 << 52) - 1, 1 << 52])),
            mapped: mapped(builder, choose),
        },
        15 => Record::Attributes {
            slot: at,
            lsn: lsn(builder, at, choose),
            attributes: Box::new([choose(256) as u8; _]),
        },
        16 => Record::Journaled {
            slot: at,
            lsn: lsn(builder, at, choose),
            start: VBlock(pick(choose, &[3, 40, 300, (1 << 52) - 1])),
            data: vec![7; 1 + choose(9000) as usize].into(),
        },
        13 | 14 => {
            let reapable = builder.state(0).reapable();
            let to = match choose(4) {
                0 => pick(choose, &[0, 1, 3, 1 << 53, (1 << 53) + 1]),
                1 => 1 << 53,
                _ => 2 * choose(400),
            };
            Record::Reap {
                slot: reapable.filter(|_| choose(4) != 0).unwrap_or(at),
                to: Key(to),
            }
        }
        _ => {
            let segment = SegmentNo(pick(choose, &[0, 1, 2, 3, u32::MAX]));
            match choose(3) {
                0 => Record::ReleaseSegment { segment },
                1 => Record::ReserveSegment { segment },
                _ => Record::Abort {
                    seq: choose(9),
                    unit: choose(3) as u32,
                },
            }
        }
    }
}

/// The record as it comes back from a device; `None` if it is refused.
pub fn through_the_device(record: &Record) -> Option<Record> {
    let mut bytes = Vec::new();
    record.encode(false, &mut bytes);
    let mut reader = Reader::new(&bytes, "a test's record");
    Record::decode(&mut reader).ok().map(|(record, _)| record)
}
