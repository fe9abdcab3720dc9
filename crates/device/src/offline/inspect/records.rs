//! Journal records in words.

use flagstone_types::VBlock;

use crate::format::record::{Record, blocks_of_bytes};

/// Runs of a record that are named; more are counted.
const RUNS_NAMED_MAX: usize = 4;

/// A record in one line.
pub fn record_words(record: &Record) -> String {
    match record {
        Record::Map { slot, lsn, runs } => {
            let blocks: usize = runs.iter().map(|run| run.blocks.len()).sum();
            let named = runs.iter().take(RUNS_NAMED_MAX).map(|run| {
                let at = run.blocks.first().map_or(0, |mapped| mapped.block.0);
                format!("{} at {at}", range(run.start, run.blocks.len() as u64))
            });
            let named = several(named.collect(), runs.len());
            format!("map slot {}, LSN {lsn}: {blocks} blocks, {named}", slot.0)
        }
        Record::Delta {
            slot,
            lsn,
            vblock,
            changed,
            block,
            ..
        } => format!(
            "delta slot {}, LSN {lsn}: {changed} of virtual block {}, in {block}",
            slot.0, vblock.0
        ),
        Record::MapUnder {
            slot,
            lsn,
            vblock,
            mapped,
        } => format!(
            "map under a delta slot {}, LSN {lsn}: {} at {}",
            slot.0,
            range(*vblock, 1),
            mapped.block.0
        ),
        Record::Unmap { slot, lsn, ranges } => {
            let named = ranges
                .iter()
                .take(RUNS_NAMED_MAX)
                .map(|&(start, count)| range(start, count));
            let named = several(named.collect(), ranges.len());
            format!("unmap slot {}, LSN {lsn}: {named}", slot.0)
        }
        other => change_words(other),
    }
}

/// The same for records that don't speak of data.
fn change_words(record: &Record) -> String {
    match record {
        Record::CreateDvol { slot, record } => match record.parent {
            None => format!("create dvol '{}' in slot {}", record.name, slot.0),
            Some(parent) => format!(
                "create dvol '{}' in slot {}, a clone of slot {}",
                record.name, slot.0, parent.0
            ),
        },
        Record::Update { slot, record } => format!(
            "update slot {}: name '{}', {} bytes, epoch {}, {} blocks reserved",
            slot.0, record.name, record.size_bytes, record.epoch.0, record.reserved_blocks
        ),
        Record::Snapshot {
            slot,
            layer_slot,
            head,
            name,
            ..
        } => format!(
            "snapshot '{name}' of slot {} in slot {}; the head is layer {head} now",
            slot.0, layer_slot.0
        ),
        Record::Rollback {
            slot,
            to,
            discard_slot,
            head,
            lsn,
            ..
        } => format!(
            "roll slot {} back to slot {}, LSN {lsn}; the old head goes to slot {}, the new one is \
             layer {head}",
            slot.0, to.0, discard_slot.0
        ),
        Record::DeleteDvol { slot } => format!("delete the dvol in slot {}", slot.0),
        Record::DeleteLayer { slot } => format!("delete the layer in slot {}", slot.0),
        Record::Reap { slot, to } => {
            format!(
                "free what only slot {} needs, up to virtual block {}",
                slot.0,
                to.vblock().0
            )
        }
        Record::ReserveSegment { segment } => format!("reserve segment {}", segment.0),
        Record::ReleaseSegment { segment } => format!("release segment {}", segment.0),
        Record::Abort { seq, unit } => format!("abort unit {unit} of group {seq}"),
        Record::Attributes {
            slot,
            lsn,
            attributes,
        } => {
            let first = attributes.first().copied().unwrap_or_default();
            let version = attributes.get(1).copied().unwrap_or_default();
            format!(
                "attributes of slot {}, LSN {lsn}: kind {first}, version {version}",
                slot.0
            )
        }
        Record::Journaled {
            slot,
            lsn,
            start,
            data,
        } => format!(
            "data of slot {}, LSN {lsn}: {} bytes at {}, in the journal",
            slot.0,
            data.len(),
            range(*start, blocks_of_bytes(data.len()))
        ),
        Record::Map { .. }
        | Record::Delta { .. }
        | Record::MapUnder { .. }
        | Record::Unmap { .. } => String::new(),
    }
}

fn range(start: VBlock, count: u64) -> String {
    match count {
        1 => format!("v{}", start.0),
        _ => format!("v{} to v{}", start.0, start.0.saturating_add(count - 1)),
    }
}

fn several(named: Vec<String>, count: usize) -> String {
    let more = count - named.len();
    let named = named.join(", ");
    if more > 0 {
        format!("{named} and {more} more runs")
    } else {
        named
    }
}
