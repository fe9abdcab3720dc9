//! Random operations on a [`Builder`], so that images have everything that a format can hold.

use flagstone_device::format::record::Record;
use flagstone_types::{Slot, VBlock};

use super::{Builder, Rng};

/// Virtual blocks that the operations touch. Small, so that they meet each other.
const SPACE_BLOCKS: u64 = 600;

/// Carries out `count` random operations on a journal, with a checkpoint now and then.
pub fn run(builder: &mut Builder, journal: u16, rng: &mut Rng, count: usize) {
    for _ in 0..count {
        operation(builder, journal, rng);
        if rng.below(3) == 0 {
            builder.flush();
        }
        // The ring must not overflow, nor the device.
        let full = builder.ring_live(journal).len() as u32 > builder.geometry.ring_blocks / 2;
        if full || builder.open_blocks(journal) < 400 || rng.below(25) == 0 {
            builder.checkpoint(journal, false);
        }
    }
}

fn operation(builder: &mut Builder, journal: u16, rng: &mut Rng) {
    // Names are unique because layer numbers are.
    let step = builder.state(journal).next_layer;
    let dvols: Vec<Slot> = builder
        .state(journal)
        .dvols()
        .map(|(_, slot)| slot)
        .collect();
    let Some(&slot) = dvols.get(rng.below(dvols.len().max(1) as u64) as usize) else {
        builder.create(journal, &format!("dvol-{step}"), None);
        return;
    };
    let start = rng.below(SPACE_BLOCKS);
    match rng.below(16) {
        0 => {
            if dvols.len() < 4 {
                builder.create(journal, &format!("dvol-{step}"), None);
            }
        }
        1 => {
            let snapshots = layers(builder, journal);
            if !snapshots.is_empty() && dvols.len() < 6 {
                let from = *rng.pick(&snapshots);
                builder.create(journal, &format!("clone-{step}"), Some(from));
            }
        }
        2 | 3 => {
            let head = builder.state(journal).next_layer;
            let layer_slot = builder.free_slots(journal, 1)[0];
            let name = format!("snap-{step}");
            let created_ns = 5 + u64::from(step);
            let record = Record::Snapshot {
                slot,
                layer_slot,
                head,
                created_ns,
                name,
            };
            builder.unit(journal, vec![record]);
        }
        4 => {
            let snapshots = layers(builder, journal);
            if !snapshots.is_empty() {
                let slot = *rng.pick(&snapshots);
                builder.unit(journal, vec![Record::DeleteLayer { slot }]);
            }
        }
        5 => {
            if dvols.len() > 2 {
                builder.unit(journal, vec![Record::DeleteDvol { slot }]);
            }
        }
        6 => roll_back(builder, journal, rng, slot),
        7 | 8 => {
            let entries = 1 + rng.below(40) as usize;
            builder.reap(journal, entries);
        }
        9 => {
            let lsn = builder.next_lsn(journal, slot);
            let ranges = vec![(VBlock(start), 1 + rng.below(80))];
            builder.unit(journal, vec![Record::Unmap { slot, lsn, ranges }]);
        }
        10 | 11 => {
            let at = (rng.below(4000) as u16, 1 + rng.below(96) as u16);
            let record = builder.delta(journal, slot, start, at);
            builder.unit(journal, vec![record]);
            for _ in 0..rng.below(3) {
                let record = builder.under(journal, slot, start, rng.below(2));
                builder.unit(journal, vec![record]);
            }
        }
        12 if rng.below(2) == 0 => {
            // With what the layer above keeps, or that alone.
            let attributes = Box::new([rng.below(256) as u8; 64]);
            let lsn = builder.next_lsn(journal, slot);
            let described = Record::Attributes {
                slot,
                lsn,
                attributes,
            };
            let mut records = vec![described];
            if rng.below(2) == 0 {
                records.insert(0, builder.data(journal, slot, start, 2, 0));
            }
            builder.unit(journal, records);
        }
        12 => {
            // One unit over two dvols.
            let other = *rng.pick(&dvols);
            let first = builder.data(journal, slot, start, 1, 0);
            let mut records = vec![first];
            if other != slot {
                records.push(builder.data(journal, other, start / 2, 2, 7));
            }
            builder.unit(journal, records);
        }
        _ => {
            let most = if rng.below(5) == 0 { 60 } else { 6 };
            let count = 1 + rng.below(most);
            let meta = rng.below(2) * 0xabcd;
            let record = builder.data(journal, slot, start, count, meta);
            builder.unit(journal, vec![record]);
        }
    }
}

/// Snapshots that are not deleted.
fn layers(builder: &Builder, journal: u16) -> Vec<Slot> {
    let slots = builder.state(journal).slots();
    slots
        .filter(|(_, s)| !s.is_dvol() && !s.is_hidden())
        .map(|(slot, _)| slot)
        .collect()
}

fn roll_back(builder: &mut Builder, journal: u16, rng: &mut Rng, slot: Slot) {
    let state = builder.state(journal);
    let id = state.slot(slot).expect("a dvol").record.id;
    let own: Vec<Slot> = state.layers_of(id).map(|(_, slot)| slot).collect();
    if own.is_empty() {
        return;
    }
    let record = Record::Rollback {
        slot,
        to: *rng.pick(&own),
        discard_slot: builder.free_slots(journal, 1)[0],
        head: state.next_layer,
        lsn: builder.next_lsn(journal, slot),
        size_bytes: 1 << 30,
    };
    builder.unit(journal, vec![record]);
}
