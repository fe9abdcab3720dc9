//! Makes images for tests: a device layer without I/O, time or concurrency.
//!
//! Records go through `State::apply`, as everywhere; what the engine does around that (journal,
//! checkpoints, reuse of blocks) is done here in the simplest way that the format allows. So an
//! image is right by construction, and the builder knows which blocks of it are live.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "several test crates include this, and each uses a part"
)]

pub mod golden;
pub mod patch;
pub mod records;
pub mod script;

use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::format::FormatError;
use flagstone_device::format::catalogue::{CatalogueRecord, MapRoot, RecordKind};
use flagstone_device::format::geometry::Geometry;
use flagstone_device::format::group::{self, GroupHeader, HEADER_BYTES};
use flagstone_device::format::record::{MapRun, MapRuns, MappedBlock, Record};
use flagstone_device::format::root::Root;
use flagstone_device::format::segment::SegmentRecord;
use flagstone_device::format::superblock::Superblock;
use flagstone_device::format::table::{
    BlockPtr, PAGES_PER_INDEX, TableKind, encode_index, encode_page,
};
use flagstone_device::offline::{Overlay, ReadBlocks, Zeros};
use flagstone_device::space::{BlockRun, Pool};
use flagstone_device::state::{Effects, Frozen, State, TableLocations};
use flagstone_device::v2p::{Changed, DirtyWalk, Key};
use flagstone_types::{
    BLOCK_SIZE, BlockChecksum, BlockNo, ChainHash, DeviceId, DvolId, Epoch, LayerNo, Lsn,
    SegmentNo, Slot, VBlock,
};

pub const BLOCK: usize = BLOCK_SIZE as usize;

/// A small generator: the same numbers for the same seed, for ever.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Where a journal stands.
#[derive(Clone, Copy, Debug)]
struct Position {
    next_seq: u64,
    ring_index: u32,
    prev_hash: ChainHash,
}

struct Journal {
    state: State,
    root_seq: u64,
    at: Position,
    /// Where the newest root's chain begins.
    trimmed: Position,
    watermark: u64,
    /// Freed, but not to be reused before the next flush.
    freed: Vec<BlockNo>,
    /// Ring blocks of the groups behind the root.
    ring_live: Vec<BlockNo>,
}

/// An image in the making.
pub struct Builder {
    pub image: Overlay<Zeros>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    journals: Vec<Journal>,
    stamp: u64,
    /// What was written to rings and data blocks since the last flush, and what was there before.
    unflushed: Vec<(BlockNo, Vec<u8>)>,
}

impl Builder {
    /// A formatted device.
    pub fn format(block_count: u64, journal_count: u16, ring_blocks: u32) -> Builder {
        let superblock = Superblock {
            device_id: DeviceId(0xf1a6_5704_e000_0000_0123_4567_89ab_cdef),
            generation: 1,
            block_count,
            journal_count,
            ring_blocks,
            created_ns: 1_700_000_000_000_000_000,
            compatible: 0,
            incompatible: 0,
        };
        let geometry = Geometry::checked(&superblock).expect("a test's device makes sense");
        let mut image = Overlay::new(Zeros { block_count });
        image.put(BlockNo(0), &superblock.encode());
        image.put(geometry.data_end, &superblock.encode());
        let start = Position {
            next_seq: 1,
            ring_index: 0,
            prev_hash: ChainHash(0),
        };
        let journals = (0..journal_count).map(|_| Journal {
            state: State::new(1, 1),
            root_seq: 0,
            at: start,
            trimmed: start,
            watermark: 0,
            freed: Vec::new(),
            ring_live: Vec::new(),
        });
        let journals = journals.collect();
        let unflushed = Vec::new();
        let mut builder = Builder {
            image,
            superblock,
            geometry,
            journals,
            stamp: 0,
            unflushed,
        };
        for journal in 0..journal_count {
            builder.write_root(
                journal,
                TableLocations::default(),
                TableLocations::default(),
                true,
            );
        }
        builder
    }

    pub fn state(&self, journal: u16) -> &State {
        &self.journals[usize::from(journal)].state
    }

    /// The journal takes a segment.
    pub fn reserve(&mut self, journal: u16, segment: u32) {
        self.unit(
            journal,
            vec![Record::ReserveSegment {
                segment: SegmentNo(segment),
            }],
        );
    }

    pub fn create(&mut self, journal: u16, name: &str, parent: Option<Slot>) -> Slot {
        let slot = self.free_slots(journal, 1)[0];
        let record = self.new_dvol(journal, name, parent);
        self.unit(
            journal,
            vec![Record::CreateDvol {
                slot,
                record: Box::new(record),
            }],
        );
        slot
    }

    fn new_dvol(&self, journal: u16, name: &str, parent: Option<Slot>) -> CatalogueRecord {
        let state = self.state(journal);
        let lsn = parent
            .and_then(|p| state.slot(p))
            .map_or(Lsn::ZERO, |p| p.record.lsn);
        CatalogueRecord {
            kind: RecordKind::Dvol,
            flags: 0,
            name: name.into(),
            id: DvolId(u128::from(state.next_layer) << 64 | u128::from(journal) << 16 | 0xd),
            size_bytes: 1 << 30,
            created_ns: 1_700_000_000_000_000_001,
            lsn,
            floor: Lsn::ZERO,
            gap: (Lsn::ZERO, Lsn::ZERO),
            older_gap: (Lsn::ZERO, Lsn::ZERO),
            epoch: Epoch(0),
            lsn_incarnation: state.incarnation,
            layer: LayerNo(state.next_layer),
            parent,
            reserved_blocks: 0,
            inherited_blocks: 0,
            mapped_blocks: 0,
            reap_cursor: Key(0),
            map: None,
            attributes: [0; 64],
        }
    }

    pub fn free_slots(&self, journal: u16, count: usize) -> Vec<Slot> {
        let free = self.state(journal).free_slots(count, &Default::default());
        free.expect("tests don't fill the catalogue")
    }

    pub fn next_lsn(&self, journal: u16, slot: Slot) -> Lsn {
        let state = self.state(journal);
        state.next_lsn(&state.slot(slot).expect("a dvol").record)
    }

    /// Writes `count` blocks of fresh data to the device and returns the record that maps them.
    pub fn data(&mut self, journal: u16, slot: Slot, start: u64, count: u64, meta: u64) -> Record {
        let blocks = self.take(journal, count);
        let mapped = blocks.into_iter().map(|block| {
            let checksum = self.put_data(block);
            MappedBlock {
                block,
                checksum,
                meta,
            }
        });
        let runs = MapRuns::from_iter([MapRun {
            start: VBlock(start),
            blocks: mapped.collect(),
        }]);
        Record::Map {
            slot,
            lsn: self.next_lsn(journal, slot),
            runs,
        }
    }

    pub fn delta(&mut self, journal: u16, slot: Slot, vblock: u64, at: (u16, u16)) -> Record {
        let block = self.take(journal, 1)[0];
        let checksum = self.put_data(block);
        Record::Delta {
            slot,
            lsn: self.next_lsn(journal, slot),
            vblock: VBlock(vblock),
            changed: Changed::of(usize::from(at.0)..usize::from(at.0 + at.1))
                .expect("within a block"),
            block,
            checksum,
        }
    }

    /// Data that takes the place of a block's data, under the delta that lies over it.
    pub fn under(&mut self, journal: u16, slot: Slot, vblock: u64, meta: u64) -> Record {
        let block = self.take(journal, 1)[0];
        let checksum = self.put_data(block);
        Record::MapUnder {
            slot,
            lsn: self.next_lsn(journal, slot),
            vblock: VBlock(vblock),
            mapped: MappedBlock {
                block,
                checksum,
                meta,
            },
        }
    }

    fn put_data(&mut self, block: BlockNo) -> BlockChecksum {
        self.stamp += 1;
        let mut bytes = [0; BLOCK];
        // Mostly zeros, so that golden images stay small.
        bytes[..8].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[BLOCK - 8..].copy_from_slice(&(!self.stamp).to_le_bytes());
        self.put_cached(block, &bytes);
        BlockChecksum::of(&bytes)
    }

    /// Writes a block that power loss may take back until the next flush.
    fn put_cached(&mut self, block: BlockNo, bytes: &[u8]) {
        let mut before = [0; BLOCK];
        self.image.read(block, &mut before).expect("memory");
        self.unflushed.push((block, before.to_vec()));
        self.image.put(block, bytes);
    }

    /// The image after power loss: of what was not flushed some is there, some is torn, and the
    /// rest is as before.
    pub fn crash_image(&self, rng: &mut Rng) -> Overlay<Zeros> {
        let mut image = self.image.clone();
        for (block, before) in self.unflushed.iter().rev() {
            match rng.below(4) {
                0 => image.put(*block, before),
                1 => {
                    let mut torn = [0; BLOCK];
                    image.read(*block, &mut torn).expect("memory");
                    let at = 512 * (1 + rng.below(7) as usize);
                    torn[..at].copy_from_slice(&before[..at]);
                    image.put(*block, &torn);
                }
                _ => {}
            }
        }
        image
    }

    pub fn open_blocks(&self, journal: u16) -> u64 {
        self.state(journal).pool.open_blocks()
    }

    /// The pool of a journal, for tests that lie to it.
    pub fn pool(&mut self, journal: u16) -> &mut Pool {
        &mut self.journals[usize::from(journal)].state.pool
    }

    pub fn take_block(&mut self, journal: u16) -> BlockNo {
        self.take(journal, 1)[0]
    }

    fn take(&mut self, journal: u16, count: u64) -> Vec<BlockNo> {
        let mut runs = Vec::new();
        let pool = &mut self.journals[usize::from(journal)].state.pool;
        assert_eq!(
            pool.allocate(count, &mut runs),
            count,
            "a test's device is large enough"
        );
        runs.into_iter().flat_map(BlockRun::blocks).collect()
    }

    /// Applies a unit and writes it to the ring, in a group of its own.
    pub fn unit(&mut self, journal: u16, records: Vec<Record>) {
        for record in &records {
            self.apply(journal, record);
        }
        self.group(journal, &[records]);
    }

    /// Whether a record fits the state.
    pub fn check(&mut self, journal: u16, record: &Record) -> Result<(), FormatError> {
        self.state(journal).check(record, &self.geometry)
    }

    /// Applies a record without journaling it.
    pub fn apply(&mut self, journal: u16, record: &Record) {
        let state = &mut self.journals[usize::from(journal)].state;
        while let Some(missing) = state.missing(record) {
            let mut bytes = [0; BLOCK];
            self.image
                .read(missing.block(), &mut bytes)
                .expect("memory");
            missing.fill_from(&bytes).expect("a node we wrote");
        }
        state
            .check(record, &self.geometry)
            .expect("tests make records that fit");
        let mut effects = Effects::default();
        state.apply(record, &self.geometry, &mut effects);
        self.journals[usize::from(journal)]
            .freed
            .extend(effects.freed);
    }

    /// Writes a group to the ring, whatever is in it.
    pub fn group(&mut self, journal: u16, units: &[Vec<Record>]) {
        let mut body = vec![0; HEADER_BYTES];
        for unit in units {
            for (index, record) in unit.iter().enumerate() {
                record.encode(index + 1 < unit.len(), &mut body);
            }
        }
        let blocks = body.len().div_ceil(BLOCK) as u32;
        let to_end = self.geometry.ring_blocks - self.journals[usize::from(journal)].at.ring_index;
        if blocks > to_end {
            self.seal(journal, vec![0; HEADER_BYTES], Some(to_end as u16));
        }
        self.seal(journal, body, None);
    }

    fn seal(&mut self, number: u16, mut bytes: Vec<u8>, pad: Option<u16>) {
        let journal = &mut self.journals[usize::from(number)];
        let mut header = GroupHeader {
            device_id_low: group::device_id_low(self.superblock.device_id),
            journal: number,
            incarnation: journal.state.incarnation,
            seq: journal.at.next_seq,
            prev_hash: journal.at.prev_hash,
            watermark: journal.watermark,
            block_count: pad.unwrap_or(0),
            pad: pad.is_some(),
            body_bytes: 0,
        };
        let prev_hash = group::seal(&mut header, &mut bytes);
        for (index, block) in (journal.at.ring_index..).zip(bytes.chunks(BLOCK)) {
            let at = self.geometry.ring_block(number, index);
            let mut before = [0; BLOCK];
            self.image.read(at, &mut before).expect("memory");
            self.unflushed.push((at, before.to_vec()));
            self.image.put(at, block);
            journal.ring_live.push(at);
        }
        let behind = journal.at.ring_index + u32::from(header.block_count);
        journal.at = Position {
            next_seq: header.seq + 1,
            ring_index: behind % self.geometry.ring_blocks,
            prev_hash,
        };
    }

    /// All that was written so far is durable: later groups say so, and what was freed is reused.
    pub fn flush(&mut self) {
        self.unflushed.clear();
        for journal in &mut self.journals {
            journal.watermark = journal.at.next_seq - 1;
            for block in journal.freed.drain(..) {
                journal.state.pool.reopen(block);
            }
        }
    }

    /// Reaps one step, as the engine does.
    pub fn reap(&mut self, number: u16, entries: usize) -> bool {
        let Some(slot) = self.state(number).reapable() else {
            return false;
        };
        let to = loop {
            let state = self.state(number);
            let found = state.slot(slot).expect("reapable");
            let child = found
                .children
                .first()
                .and_then(|&c| state.slot(c))
                .map(|c| &c.map);
            let parent = state.parent_layer(slot);
            let from = found.record.reap_cursor;
            let step = flagstone_device::v2p::reap_step(
                &found.map,
                child,
                parent,
                from,
                Key::END,
                entries,
            );
            match step {
                Ok(step) => break step.next.unwrap_or(Key::END),
                Err(missing) => {
                    let mut bytes = [0; BLOCK];
                    self.image
                        .read(missing.block(), &mut bytes)
                        .expect("memory");
                    missing.fill_from(&bytes).expect("a node we wrote");
                }
            }
        };
        self.unit(number, vec![Record::Reap { slot, to }]);
        true
    }

    /// Writes the state down and a new root.
    pub fn checkpoint(&mut self, number: u16, clean: bool) {
        self.flush();
        let state = &mut self.journals[usize::from(number)].state;
        state
            .place_journaled()
            .expect("a test's device is large enough");
        let frozen = state.freeze().expect("a test's device is large enough");
        let given_up = frozen.given_up.clone();
        let (catalogue, segments) = self.write_frozen(number, frozen);
        self.write_root(number, catalogue, segments, clean);
        let state = &mut self.journals[usize::from(number)].state;
        state.handle_root_durable();
        for block in given_up {
            state.pool.reopen(block);
        }
    }

    fn write_frozen(&mut self, number: u16, frozen: Frozen) -> (TableLocations, TableLocations) {
        let Frozen {
            maps,
            pages,
            mut segments,
            mut segment_pages,
            mut blocks,
            data,
            ..
        } = frozen;
        for (block, data) in data {
            self.image.put(block, &data.bytes());
        }
        let (mut catalogue, mut segment_table) = (frozen.catalogue, frozen.segment_table);
        let mut bytes = vec![0; BLOCK];
        for map in &maps {
            let mut walk = DirtyWalk::new(map);
            while let Some(node) = walk.next() {
                let block = blocks.pop().expect("counted by the freeze");
                node.write_to(block, &mut bytes);
                self.image.put(block, &bytes);
            }
        }
        let encoded = pages.into_iter().map(|page| {
            let mut records = Vec::new();
            for slot in page.records {
                let record = slot.map(|(mut record, map)| {
                    let root = map.root_ptr();
                    record.map = root.map(|ptr| MapRoot {
                        ptr,
                        max_lsn: map.max_lsn(),
                    });
                    record.mapped_blocks = map.mapped_count();
                    record
                });
                CatalogueRecord::encode(record.as_ref(), &mut records);
            }
            (
                page.page,
                encode_page(TableKind::Catalogue, page.page, &records),
            )
        });
        let encoded: Vec<_> = encoded.collect();
        self.write_table(TableKind::Catalogue, encoded, &mut catalogue, &mut blocks);
        let journal = &mut self.journals[usize::from(number)];
        let index_count = index_numbers(segment_pages.keys().copied()).len();
        let surplus = blocks.len() - segment_pages.len() - index_count;
        for block in blocks.drain(..surplus) {
            let segment = segments.get_mut(&block.segment()).expect("allotted there");
            segment.bitmap.clear(block.index_in_segment());
            segment.record.used_blocks -= 1;
            journal.state.pool.release(block);
            journal.state.pool.reopen(block);
        }
        let mut checksums = BTreeMap::new();
        for (&no, segment) in &mut segments {
            segment.bitmap.to_bytes(&mut bytes);
            let slots = self.geometry.bitmap_slots(no);
            self.image
                .put(slots[usize::from(segment.record.bitmap_slot)], &bytes);
            segment.record.bitmap_checksum = BlockChecksum::of(&bytes);
            checksums.insert(no, segment.record.bitmap_checksum);
        }
        let per_page = TableKind::Segments.records_per_page() as u32;
        let mut encoded = Vec::new();
        for (page, records) in &mut segment_pages {
            let mut out = Vec::new();
            for (index, record) in (page * per_page..).zip(records) {
                if let (Some(record), Some(new)) =
                    (record.as_mut(), segments.get(&SegmentNo(index)))
                {
                    *record = new.record;
                }
                SegmentRecord::encode(record.as_ref(), &mut out);
            }
            encoded.push((*page, encode_page(TableKind::Segments, *page, &out)));
        }
        self.write_table(
            TableKind::Segments,
            encoded,
            &mut segment_table,
            &mut blocks,
        );
        assert!(blocks.is_empty());
        let state = &mut self.journals[usize::from(number)].state;
        state.map_stats.node_writes_done();
        state.thaw(
            catalogue.clone(),
            segment_table.clone(),
            checksums.into_iter(),
        );
        (catalogue, segment_table)
    }

    fn write_table(
        &mut self,
        table: TableKind,
        pages: Vec<(u32, Vec<u8>)>,
        locations: &mut TableLocations,
        blocks: &mut Vec<BlockNo>,
    ) {
        let indexes = index_numbers(pages.iter().map(|(page, _)| *page));
        for (page, bytes) in pages {
            let block = blocks.pop().expect("counted by the freeze");
            locations.pages[page as usize] = BlockPtr {
                block,
                hash: ChainHash::of(&bytes),
            };
            self.image.put(block, &bytes);
        }
        for index in indexes {
            let first = index as usize * PAGES_PER_INDEX;
            let end = locations.pages.len().min(first + PAGES_PER_INDEX);
            let bytes = encode_index(table, first as u32, &locations.pages[first..end]);
            let block = blocks.pop().expect("counted by the freeze");
            locations.index[index as usize] = BlockPtr {
                block,
                hash: ChainHash::of(&bytes),
            };
            self.image.put(block, &bytes);
        }
    }

    fn write_root(
        &mut self,
        number: u16,
        catalogue: TableLocations,
        segments: TableLocations,
        clean: bool,
    ) {
        let journal = &mut self.journals[usize::from(number)];
        journal.root_seq += 1;
        journal.trimmed = journal.at;
        journal.ring_live.clear();
        let root = Root {
            device_id: self.superblock.device_id,
            journal: number,
            root_seq: journal.root_seq,
            incarnation: journal.state.incarnation,
            next_seq: journal.at.next_seq,
            ring_index: journal.at.ring_index,
            prev_hash: journal.at.prev_hash,
            next_layer: journal.state.next_layer,
            clean,
            catalogue: catalogue.index,
            segments: segments.index,
        };
        let slot = self.geometry.root_slots(number)[(root.root_seq % 2) as usize];
        self.image.put(slot, &root.encode());
    }

    /// The node stops in order and starts anew.
    pub fn restart(&mut self, journal: u16) {
        self.checkpoint(journal, true);
        self.start(journal);
    }

    /// The node starts after a stop in order: a root of the next incarnation that is not clean.
    pub fn start(&mut self, journal: u16) {
        self.journals[usize::from(journal)].state.incarnation += 1;
        self.checkpoint(journal, false);
    }

    /// Ring index at which the journal's next group begins.
    pub fn ring_index(&self, journal: u16) -> u32 {
        self.journals[usize::from(journal)].at.ring_index
    }

    /// Number of the journal's next group.
    pub fn next_seq(&self, journal: u16) -> u64 {
        self.journals[usize::from(journal)].at.next_seq
    }

    /// Ring blocks that hold the chain behind the newest root.
    pub fn ring_live(&self, journal: u16) -> &[BlockNo] {
        &self.journals[usize::from(journal)].ring_live
    }

    /// Whether a block was written since the last flush.
    pub fn is_suspect(&self, block: BlockNo) -> bool {
        self.unflushed
            .iter()
            .any(|(unflushed, _)| *unflushed == block)
    }

    /// Where the newest root of a journal is.
    pub fn newest_root_slot(&self, number: u16) -> BlockNo {
        let root_seq = self.journals[usize::from(number)].root_seq;
        self.geometry.root_slots(number)[(root_seq % 2) as usize]
    }

    /// Every block in which a flipped bit matters.
    pub fn live_blocks(&self) -> BTreeSet<BlockNo> {
        let mut live = BTreeSet::from([BlockNo(0), self.geometry.data_end]);
        for (number, journal) in (0..).zip(&self.journals) {
            let slots = self.geometry.root_slots(number);
            live.insert(slots[(journal.root_seq % 2) as usize]);
            if journal.root_seq > 1 {
                live.extend(slots);
            }
            live.extend(&journal.ring_live);
            for (segment, state) in journal.state.pool.segments() {
                if let Some(&slot) = self
                    .geometry
                    .bitmap_slots(segment)
                    .get(usize::from(state.record.bitmap_slot))
                {
                    live.insert(slot);
                }
                let used = state.used().expect("nothing is unloaded here");
                let first = segment.first_block().0;
                live.extend(
                    (0..32768)
                        .filter(|&i| used.get(i))
                        .map(|i| BlockNo(first + i as u64)),
                );
            }
        }
        live
    }

    /// Some block of data that is mapped.
    pub fn some_data_block(&self, journal: u16) -> BlockNo {
        let mut entries = Vec::new();
        for (_, slot) in self.state(journal).slots() {
            let all = VBlock(0)..VBlock(1 << 40);
            slot.map
                .lookup(all, 1, &mut entries)
                .expect("nothing is evicted here");
        }
        let data = entries
            .iter()
            .find(|e| e.kind == flagstone_device::v2p::EntryKind::Data);
        data.expect("something is mapped").block
    }
}

/// A virtual block.
pub fn vblock(number: u64) -> VBlock {
    VBlock(number)
}

fn index_numbers(pages: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    pages.map(|page| page / PAGES_PER_INDEX as u32).collect()
}
