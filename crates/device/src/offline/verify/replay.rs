//! Replaying a ring in memory, to check what a node would serve after recovery.
//!
//! Records are applied by the same code as live and in recovery (`State::apply`). Which units are
//! left out is decided here in another way than recovery's, so that the two check each other: after
//! applying everything, a suspect unit's mapping is final if and only if its block is in use and no
//! later unit was given that block.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, SegmentNo, Slot};

use super::journal::Checkpoint;
use super::problem::{Findings, Kind, Severity};
use crate::format::catalogue::MapRoot;
use crate::format::record::Record;
use crate::format::root::Root;
use crate::offline::claims::Claims;
use crate::offline::layers::Layers;
use crate::offline::ring::{Ring, read_units};
use crate::offline::{BlockBytes, Fault, Image, ReadBlocks, flip};
use crate::space::Bitmap;
use crate::state::{Effects, State};
use crate::v2p::DirtyWalk;

/// What a replay leads to.
pub(super) struct Replay {
    pub(super) layers: Layers,
    /// Blocks of the tables, to which the maps' are to be added.
    pub(super) claims: Claims,
    /// What the bitmaps say, but for nodes that the next checkpoint would free.
    pub(super) bitmaps: BTreeMap<SegmentNo, Bitmap>,
    /// Nodes in memory, under positions behind the device's end.
    pub(super) placed: BTreeMap<u64, Box<BlockBytes>>,
    /// Units applied.
    pub(super) units: u64,
    /// Units left out because their data is not there.
    pub(super) dropped: u64,
    /// Segments that the journal owns then.
    pub(super) segments: u64,
    pub(super) next_layer: u32,
}

/// Over which block each record of a unit that writes a part of one was written, if over any, or under which delta.
type Under = BTreeMap<(usize, usize), Option<BlockNo>>;

/// For each block that a suspect unit was given last, that unit and the checksum it expects.
type Finals = BTreeMap<BlockNo, (usize, BlockChecksum)>;

struct FoundUnit {
    seq: u64,
    /// First block of its group.
    at: BlockNo,
    records: Vec<Record>,
}

/// Replays `ring` on what `root` describes.
pub(super) fn replay<R: ReadBlocks>(
    image: &Image<R>,
    root: &Root,
    ring: &Ring,
    before: &Checkpoint,
    findings: &mut Findings,
) -> Result<Replay, Fault> {
    let mut units = Vec::new();
    for place in &ring.groups {
        let at = place.block;
        let seq = place.header.seq;
        let found = read_units(image, root.journal, place)?;
        units.extend(
            found
                .into_iter()
                .map(|records| FoundUnit { seq, at, records }),
        );
    }
    let aborted = aborted(&units);
    let mut skip = aborted.clone();
    let mut under = Under::new();
    loop {
        let mut state = load(image, root, before)?;
        let (finals, moved) = apply_all(image, ring, &units, &skip, &mut state, &mut under)?;
        if !moved.is_empty() {
            skip.extend(moved);
            continue;
        }
        let bad = failing(image, &units, &finals, &state, findings);
        if bad.is_empty() {
            let applied = (units.len() - skip.len()) as u64;
            let dropped = (skip.len() - aborted.len()) as u64;
            return finish(image, before, &state, applied, dropped);
        }
        skip.extend(bad);
    }
}

/// The state of the root.
fn load<R>(image: &Image<R>, root: &Root, before: &Checkpoint) -> Result<State, Fault> {
    let mut state = State::new(root.incarnation, root.next_layer);
    for (slot, layer) in before.layers.iter() {
        state.load_slot(Slot(slot), layer.record.clone());
    }
    state.link_children();
    state
        .check_loaded()
        .map_err(|error| Fault::format(image.geometry.root_slots(root.journal)[0], error))?;
    for (&segment, &record) in &before.segments {
        state.pool.add(segment, record, &image.geometry);
        match before.bitmaps.get(&segment) {
            // What does not fit its record is found when the bitmaps are compared.
            Some(bitmap) => drop(state.pool.loaded(segment, bitmap.clone())),
            None => state.pool.lose(segment),
        }
    }
    Ok(state)
}

/// Units that an abort record takes back.
fn aborted(units: &[FoundUnit]) -> BTreeSet<usize> {
    let named: BTreeSet<(u64, u32)> = units
        .iter()
        .flat_map(|unit| &unit.records)
        .filter_map(|record| match record {
            Record::Abort { seq, unit } => Some((*seq, *unit)),
            _ => None,
        })
        .collect();
    let mut aborted = BTreeSet::new();
    let (mut seq, mut in_group) = (0, 0);
    for (index, unit) in units.iter().enumerate() {
        in_group = if unit.seq == seq { in_group + 1 } else { 0 };
        seq = unit.seq;
        if named.contains(&(seq, in_group)) {
            aborted.insert(index);
        }
    }
    aborted
}

/// Applies the units that hold. Returns which was given each block last, and the units that write a part of
/// a block over another one, or under another delta, than when all units were applied (noted the first time): the one they belong to
/// is left out.
fn apply_all<R: ReadBlocks>(
    image: &Image<R>,
    ring: &Ring,
    units: &[FoundUnit],
    skip: &BTreeSet<usize>,
    state: &mut State,
    under: &mut Under,
) -> Result<(Finals, Vec<usize>), Fault> {
    let (mut finals, mut moved) = (Finals::new(), Vec::new());
    for (index, unit) in units
        .iter()
        .enumerate()
        .filter(|(index, _)| !skip.contains(index))
    {
        for (number, record) in unit.records.iter().enumerate() {
            let wrong = |what: &dyn std::fmt::Display| {
                Fault::new(unit.at, format!("group {}: {what}", unit.seq))
            };
            state
                .check(record, &image.geometry)
                .map_err(|e| wrong(&e))?;
            while let Some(missing) = state.missing(record) {
                let bytes = image.read(missing.block())?;
                missing
                    .fill_from(&bytes[..])
                    .map_err(|e| Fault::format(missing.block(), e))?;
            }
            let mapping_of = |slot: &Slot, vblock| {
                let found = state.slot(*slot).and_then(|s| s.map.get(vblock).ok());
                found.unwrap_or_default()
            };
            let beside = match record {
                Record::Delta { slot, vblock, .. } => {
                    let mapping = mapping_of(slot, *vblock);
                    Some(mapping.data().map(|data| data.block))
                }
                Record::MapUnder { slot, vblock, .. } => {
                    let mapping = mapping_of(slot, *vblock);
                    Some(mapping.delta.map(|delta| delta.block))
                }
                _ => None,
            };
            if let Some(block) = beside
                && *under.entry((index, number)).or_insert(block) != block
            {
                moved.push(index);
            }
            state.apply(record, &image.geometry, &mut Effects::default());
            if let Some(misfit) = state.pool.misfit() {
                return Err(wrong(&misfit));
            }
            for (block, checksum) in record.new_blocks() {
                match unit.seq > ring.watermark {
                    true => finals.insert(block, (index, checksum)),
                    false => finals.remove(&block),
                };
            }
        }
    }
    Ok((finals, moved))
}

/// Suspect units with a final mapping whose data is not there.
fn failing<R: ReadBlocks>(
    image: &Image<R>,
    units: &[FoundUnit],
    finals: &Finals,
    state: &State,
    findings: &mut Findings,
) -> BTreeSet<usize> {
    let mut bad = BTreeSet::new();
    for (&block, &(index, expected)) in finals {
        if state.pool.is_used(block) != Some(true) {
            continue;
        }
        let bytes = match image.read(block) {
            Ok(bytes) => bytes,
            // What can't be read says nothing: the unit may have been acknowledged, and is kept.
            Err(fault) => {
                let what = format!(
                    "data of a unit at the journal's end (group {}): {fault}. A node would keep \
                     the unit; reading the block fails",
                    units[index].seq
                );
                findings.add(Severity::Loss, Kind::Data, &[block], what);
                continue;
            }
        };
        if BlockChecksum::of(&bytes[..]) == expected {
            continue;
        }
        bad.insert(index);
        if let Some(bit) = flip::in_block(&bytes[..], expected) {
            // An older version of the same data may well differ in one bit: no proof of damage.
            findings.note(format!(
                "{block}, written by a unit at the journal's end (group {}), is one bit away from \
                 what it should be ({bit}): an older version, or damage. A node leaves the unit \
                 out as never acknowledged",
                units[index].seq
            ));
        }
    }
    bad
}

/// Turns the state into what the checks understand.
fn finish<R: ReadBlocks>(
    image: &Image<R>,
    before: &Checkpoint,
    state: &State,
    units: u64,
    dropped: u64,
) -> Result<Replay, Fault> {
    let mut placed = BTreeMap::new();
    let mut next = BlockNo(image.superblock.block_count.max(image.source.block_count()));
    let mut layers = Layers::default();
    for (slot, found) in state.slots() {
        let mut walk = DirtyWalk::new(&found.map);
        while let Some(node) = walk.next() {
            if next >= BlockNo::LIMIT {
                return Err(Fault::new(
                    next,
                    "there is no number left for a node in memory",
                ));
            }
            let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
            node.write_to(next, &mut bytes[..]);
            placed.insert(next.0, bytes);
            next.0 += 1;
        }
        let mut record = found.record.clone();
        let root = found.map.root_ptr();
        record.map = root.map(|ptr| MapRoot {
            ptr,
            max_lsn: found.map.max_lsn(),
        });
        let page = before
            .layers
            .get(slot.0)
            .map_or(BlockNo(0), |layer| layer.page);
        layers.insert(slot.0, record, page);
    }
    if let Some((slot, problem)) = layers.link().into_iter().next() {
        return Err(Fault::new(
            BlockNo(0),
            format!("{}: {problem}", layers.words(slot)),
        ));
    }
    let mut claims = Claims::default();
    for &block in &before.tables {
        // Checked once already.
        let _ = claims.claim(block, &image.geometry);
    }
    let used = |segment: &crate::space::SegmentState| {
        segment.used().filter(|_| !segment.is_lost()).cloned()
    };
    let bitmaps = state
        .pool
        .segments()
        .filter_map(|(no, s)| Some((no, used(s)?)))
        .collect();
    Ok(Replay {
        layers,
        claims,
        bitmaps,
        placed,
        units,
        dropped,
        segments: state.pool.segments().count() as u64,
        next_layer: state.next_layer,
    })
}
