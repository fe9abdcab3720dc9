//! Taking a sharp picture of the state for a checkpoint.
//!
//! [`State::freeze`] runs between two records, so the picture holds everything up to one record and
//! nothing later. It allots every block the checkpoint will need and gives up every block that the
//! new root will not refer to, all within the picture; what was given up may be handed out again
//! only once the new root is durable.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_types::{BlockChecksum, BlockNo, SegmentNo, Slot};

use super::{JournaledBlock, State};
use crate::format::catalogue::CatalogueRecord;
use crate::format::segment::{NO_BITMAP, SegmentRecord};
use crate::format::table::{BlockPtr, PAGES_PER_INDEX, TableKind};
use crate::space::{Bitmap, BlockRun};
use crate::v2p::{DirtyWalk, Map};

/// Where a table's pages and index blocks lie.
#[derive(Clone, Default)]
pub struct TableLocations {
    /// Page n.
    pub pages: Vec<BlockPtr>,
    /// Index block n.
    pub index: Vec<BlockPtr>,
}

/// A catalogue page of the picture.
pub struct FrozenPage {
    /// Its number.
    pub page: u32,
    /// Its slots. The records' map roots are known once the maps have been written.
    pub records: Vec<Option<(CatalogueRecord, Map)>>,
}

/// A segment of the picture whose bitmap must be written.
pub struct FrozenSegment {
    /// Its bitmap.
    pub bitmap: Bitmap,
    /// Its record; the checksum is known once the bitmap is final.
    pub record: SegmentRecord,
}

/// A picture of the state.
pub struct Frozen {
    /// Maps that may hold nodes which are not on the device yet.
    pub maps: Vec<Map>,
    /// Catalogue pages that changed.
    pub pages: Vec<FrozenPage>,
    /// Segments whose bitmaps changed.
    pub segments: BTreeMap<SegmentNo, FrozenSegment>,
    /// Segment pages that changed, with the records of unchanged segments in them.
    pub segment_pages: BTreeMap<u32, Vec<Option<SegmentRecord>>>,
    /// Blocks for nodes, pages and index blocks.
    pub blocks: Vec<BlockNo>,
    /// Data that was in the journal alone, and where it goes.
    pub data: Vec<(BlockNo, JournaledBlock)>,
    /// Blocks that can be handed out again once the new root is durable.
    pub given_up: Vec<BlockNo>,
    /// Segments that are nobody's once the new root is durable.
    pub released_segments: BTreeSet<SegmentNo>,
    /// Locations of the tables; the checkpoint fills in the new ones.
    pub catalogue: TableLocations,
    /// The same for the segment table.
    pub segment_table: TableLocations,
    /// The next layer number.
    pub next_layer: u32,
}

impl State {
    /// Segments whose bitmaps must be loaded before a freeze.
    pub fn needed_for_freeze(&self) -> BTreeSet<SegmentNo> {
        let retired = self
            .retired
            .iter()
            .filter_map(|r| r.location())
            .map(|(block, _)| block);
        let tables = [&self.catalogue, &self.segment_table];
        let table_blocks = tables
            .into_iter()
            .flat_map(|t| t.pages.iter().chain(&t.index));
        let blocks = table_blocks
            .filter(|p| !p.is_none())
            .map(|p| p.block)
            .chain(retired);
        let dirty = self
            .pool
            .segments()
            .filter(|(_, s)| s.dirty)
            .map(|(no, _)| no);
        let needed: BTreeSet<SegmentNo> = blocks.map(BlockNo::segment).chain(dirty).collect();
        let mut needed = needed;
        needed.retain(|&no| {
            let owned = self.pool.segments_from(no).next();
            owned.is_some_and(|(owned, s)| owned == no && !s.is_loaded())
        });
        needed
    }

    /// Takes the picture, in which all that was in the journal alone has a block ([`State::place_journaled`]). `None` if there are not
    /// enough blocks to write it down; nothing has changed then.
    pub fn freeze(&mut self) -> Option<Frozen> {
        // A layer that is being reaped still holds nodes which the reaper has passed. If they were
        // written now, nobody would ever free them.
        for retired in self.retired.iter().filter(|r| r.location().is_none()) {
            retired.abandon(&self.map_stats);
        }
        let pages = self.dirty_pages.clone();
        let index = index_of(&pages);
        let maps: Vec<Map> = self.dirty_maps();
        // Clones share nodes that are not written yet: each is written once, not with every map.
        let in_maps: usize = maps.iter().map(DirtyWalk::count).sum();
        let node_count = in_maps.min(self.map_stats.dirty_nodes());
        let certain = node_count + pages.len() + index.len();
        let segment_pages_max = self.segment_page_count();
        let possible = segment_pages_max + segment_pages_max.div_ceil(PAGES_PER_INDEX);

        let mut open = self.take_blocks(certain + possible)?;
        let mut blocks = open.split_off(open.len() - certain);
        for &block in &blocks {
            self.pool.commit(block);
        }
        let mut given_up = self.give_up_retired();
        given_up.extend(self.give_up_tables(TableKind::Catalogue, &pages, &index));

        // Each page of the segment table that is written anew changes one or two segments, which
        // may lie in further pages.
        let (mut written, mut written_index) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let dirty = self.dirty_segment_pages();
            let fresh: BTreeSet<u32> = dirty.difference(&written).copied().collect();
            let fresh_index: BTreeSet<u32> = index_of(&dirty)
                .difference(&written_index)
                .copied()
                .collect();
            if fresh.is_empty() {
                break;
            }
            for _ in 0..fresh.len() + fresh_index.len() {
                let block = open
                    .pop()
                    .expect("as many were taken as there are pages in all");
                self.pool.commit(block);
                blocks.push(block);
            }
            given_up.extend(self.give_up_tables(TableKind::Segments, &fresh, &fresh_index));
            written.extend(fresh);
            written_index.extend(fresh_index);
        }
        for block in open {
            self.pool.reopen(block);
        }
        Some(self.picture(maps, &pages, &written, blocks, given_up))
    }

    /// Maps of the slots that changed.
    fn dirty_maps(&self) -> Vec<Map> {
        let slots = self.dirty_slots.iter();
        slots
            .filter_map(|&s| Some(self.slot(Slot(s))?.map.clone()))
            .collect()
    }

    /// Pages of the segment table up to the last owned segment.
    fn segment_page_count(&self) -> usize {
        let last = self
            .pool
            .segments()
            .map(|(no, _)| no)
            .chain(self.released_segments.iter().copied())
            .max();
        let in_use = last.map_or(0, |no| (no.0 / per_page(TableKind::Segments)) as usize + 1);
        in_use.max(self.segment_table.pages.len())
    }

    pub(super) fn take_blocks(&mut self, count: usize) -> Option<Vec<BlockNo>> {
        let mut runs = Vec::new();
        let got = self.pool.allocate(count as u64, &mut runs);
        let blocks: Vec<BlockNo> = runs.into_iter().flat_map(BlockRun::blocks).collect();
        if got == count as u64 {
            return Some(blocks);
        }
        for block in blocks {
            self.pool.reopen(block);
        }
        None
    }

    /// Gives up the nodes that no map refers to any more. Those that were never written have no
    /// block to give up.
    fn give_up_retired(&mut self) -> Vec<BlockNo> {
        let mut given_up = Vec::new();
        for retired in std::mem::take(&mut self.retired) {
            if let Some((block, _)) = retired.location() {
                self.pool.release(block);
                given_up.push(block);
            }
        }
        given_up
    }

    /// Gives up the present places of some of a table's pages and index blocks.
    fn give_up_tables(
        &mut self,
        table: TableKind,
        pages: &BTreeSet<u32>,
        index: &BTreeSet<u32>,
    ) -> Vec<BlockNo> {
        let locations = match table {
            TableKind::Catalogue => &mut self.catalogue,
            TableKind::Segments => &mut self.segment_table,
        };
        let mut given_up = Vec::new();
        let mut clear = |list: &mut Vec<BlockPtr>, number: u32| {
            if list.len() <= number as usize {
                list.resize(number as usize + 1, BlockPtr::NONE);
            }
            let ptr = std::mem::take(&mut list[number as usize]);
            if !ptr.is_none() {
                given_up.push(ptr.block);
            }
        };
        for &page in pages {
            clear(&mut locations.pages, page);
        }
        for &number in index {
            clear(&mut locations.index, number);
        }
        for &block in &given_up {
            self.pool.release(block);
        }
        given_up
    }

    /// Pages of the segment table with a segment that changed.
    fn dirty_segment_pages(&self) -> BTreeSet<u32> {
        let dirty = self
            .pool
            .segments()
            .filter(|(_, s)| s.dirty)
            .map(|(no, _)| no);
        let changed = dirty.chain(self.released_segments.iter().copied());
        changed
            .map(|no| no.0 / per_page(TableKind::Segments))
            .collect()
    }

    fn picture(
        &mut self,
        maps: Vec<Map>,
        pages: &BTreeSet<u32>,
        segment_pages: &BTreeSet<u32>,
        blocks: Vec<BlockNo>,
        mut given_up: Vec<BlockNo>,
    ) -> Frozen {
        let mut segments = BTreeMap::new();
        let dirty: Vec<SegmentNo> = self
            .pool
            .segments()
            .filter(|(_, s)| s.dirty)
            .map(|(no, _)| no)
            .collect();
        for no in dirty {
            let state = self.pool.segment_mut(no).expect("just listed");
            state.dirty = false;
            let slot = state.record.bitmap_slot;
            state.record.bitmap_slot = if slot == NO_BITMAP { 0 } else { 1 - slot };
            let bitmap = state.used().expect("loaded before the freeze").clone();
            segments.insert(
                no,
                FrozenSegment {
                    bitmap,
                    record: state.record,
                },
            );
        }
        let record_of = |no: u32| {
            let owned = self.pool.segments_from(SegmentNo(no)).next();
            owned
                .filter(|(owned, _)| owned.0 == no)
                .map(|(_, s)| s.record)
        };
        let count = per_page(TableKind::Segments);
        let segment_pages = segment_pages
            .iter()
            .map(|&page| {
                (
                    page,
                    (page * count..(page + 1) * count).map(record_of).collect(),
                )
            })
            .collect();
        let count = per_page(TableKind::Catalogue);
        let slot_of = |s: u32| {
            self.slot(Slot(s))
                .map(|s| (s.record.clone(), s.map.clone()))
        };
        let pages = pages
            .iter()
            .map(|&page| FrozenPage {
                page,
                records: (page * count..(page + 1) * count).map(slot_of).collect(),
            })
            .collect();
        self.dirty_slots.clear();
        self.dirty_pages.clear();
        self.dirty_nodes = 0;
        let (data, mut displaced) = self.journaled.take_placed();
        given_up.append(&mut displaced);
        Frozen {
            data,
            maps,
            pages,
            segments,
            segment_pages,
            blocks,
            given_up,
            released_segments: std::mem::take(&mut self.released_segments),
            catalogue: self.catalogue.clone(),
            segment_table: self.segment_table.clone(),
            next_layer: self.next_layer,
        }
    }

    /// Takes note of a finished checkpoint: where the tables lie now, which bitmaps the segments
    /// have, and which blocks were allotted but not needed.
    pub fn thaw(
        &mut self,
        catalogue: TableLocations,
        segment_table: TableLocations,
        checksums: impl Iterator<Item = (SegmentNo, BlockChecksum)>,
    ) {
        self.catalogue = catalogue;
        self.segment_table = segment_table;
        for (segment, checksum) in checksums {
            if let Some(state) = self.pool.segment_mut(segment) {
                state.record.bitmap_checksum = checksum;
            }
        }
    }

    /// The root of the picture is durable: nothing that was in the journal before it is asked for again.
    pub fn handle_root_durable(&mut self) {
        self.journaled.handle_placed();
    }

    /// Where the tables lie, while a root is being loaded.
    pub fn load_tables(&mut self, catalogue: TableLocations, segment_table: TableLocations) {
        self.catalogue = catalogue;
        self.segment_table = segment_table;
    }
}

fn per_page(table: TableKind) -> u32 {
    table.records_per_page() as u32
}

/// The index blocks that point to `pages`.
fn index_of(pages: &BTreeSet<u32>) -> BTreeSet<u32> {
    pages
        .iter()
        .map(|page| page / PAGES_PER_INDEX as u32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::Geometry;
    use crate::format::superblock;

    /// A state that owns these segments, all of them empty.
    fn owning(segments: &[u32]) -> State {
        let superblock = superblock::Superblock {
            block_count: 1000 * 32768,
            ..superblock::sample()
        };
        let geometry = Geometry::checked(&superblock).expect("valid");
        let mut state = State::new(1, 1);
        for &segment in segments {
            state
                .pool
                .add(SegmentNo(segment), SegmentRecord::EMPTY, &geometry);
        }
        state
    }

    /// Blocks for pages of the segment table are taken for the worst case.
    #[test]
    fn a_picture_keeps_no_block_that_it_does_not_need() {
        let mut state = owning(&[0, 1, 900]);
        let before = state.pool.open_blocks();
        let frozen = state.freeze().expect("there is room");
        let taken = before - state.pool.open_blocks();
        assert_eq!(taken, frozen.blocks.len() as u64);
        assert_eq!(state.pool.used_blocks(), taken);
    }

    #[test]
    fn a_picture_that_has_no_room_takes_nothing() {
        let mut state = owning(&[0]);
        let mut runs = Vec::new();
        let all = state.pool.open_blocks();
        state.pool.allocate(all - 1, &mut runs);
        assert_eq!(state.pool.open_blocks(), 1);
        assert!(state.freeze().is_none());
        assert_eq!(state.pool.open_blocks(), 1);
        assert_eq!(state.pool.used_blocks(), 0);
    }
}
