//! Opening a journal: load its root, replay what follows in the ring, write a new root, serve.
//!
//! Recovery always ends with a durable root of a new incarnation before anything is served, so what
//! it dropped stays dropped, and running it again after a crash in the middle gives the same state.
//! Cost: the ring, the nodes that its records touch, and one checkpoint; never the device's size.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::rc::Rc;

use flagstone_platform::sync::Budget;
use flagstone_platform::{BlockDevice, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, ChainHash, SegmentNo, Slot};

use super::format::{read, read_superblock};
use super::info::EngineCounters;
use super::journal::{Journal, Position};
use super::options::EngineOptions;
use super::{Engine, Inner, Signals};
use crate::format::FormatError;
use crate::format::catalogue::CatalogueRecord;
use crate::format::geometry::Geometry;
use crate::format::group::{self, HEADER_BYTES};
use crate::format::record::{Record, decode_units};
use crate::format::root::Root;
use crate::format::segment::SegmentRecord;
use crate::format::superblock::Superblock;
use crate::format::table::{BlockPtr, PAGES_PER_INDEX, TableKind, decode_index, decode_page};
use crate::planted::{Bug, planted};
use crate::space::DeviceShared;
use crate::state::{Effects, State, TableLocations};
use crate::v2p::Key;

/// Why a device can't be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Reading or writing failed.
    Io(io::Error),
    /// Something on the device is not what it should be.
    Format(FormatError),
    /// The device is smaller than its superblock says.
    TooSmall {
        /// Blocks the superblock speaks of.
        expected_blocks: u64,
        /// Blocks there are.
        found_blocks: u64,
    },
    /// A block's bytes don't match the pointer to it.
    Damaged {
        /// What it is.
        what: &'static str,
        /// Where it is.
        block: BlockNo,
    },
    /// No room for the checkpoint that ends recovery.
    NoSpace,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io(error) => write!(f, "the device failed: {error}"),
            OpenError::Format(error) => write!(f, "{error}"),
            OpenError::TooSmall {
                expected_blocks,
                found_blocks,
            } => write!(
                f,
                "the device was formatted with {expected_blocks} blocks of 4 KiB, but has \
                 {found_blocks}; was it truncated?"
            ),
            OpenError::Damaged { what, block } => {
                write!(
                    f,
                    "{what} at {block} does not match its checksum; run `flagstone verify`"
                )
            }
            OpenError::NoSpace => f.write_str("no blocks are left for the recovery's checkpoint"),
        }
    }
}

impl std::error::Error for OpenError {}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// True if the node had been stopped in order.
    pub clean: bool,
    /// Groups replayed.
    pub groups: u64,
    /// Atomic units applied.
    pub units: u64,
    /// Units above the watermark whose data was checked.
    pub suspects: u64,
    /// Units that were never acknowledged and whose data is not there.
    pub dropped: u64,
}

/// A unit read from the ring.
struct FoundUnit {
    seq: u64,
    records: Vec<Record>,
}

/// What the ring holds behind a root.
struct Chain {
    units: Vec<FoundUnit>,
    position: Position,
    watermark: u64,
    groups: u64,
    /// Each group's place: its sequence number, first ring block, and blocks with bytes of it.
    places: Vec<(u64, u32, u32)>,
}

impl<P: Platform> Engine<P> {
    /// Opens journal `journal_no` of a device and starts serving it. `shared` is the same for all
    /// journals of the device; they must be opened at the same time, since each waits until the
    /// segments of all are known.
    pub async fn open(
        platform: P,
        device: P::Device,
        shared: DeviceShared,
        superblock: Superblock,
        journal_no: u16,
        options: EngineOptions,
    ) -> Result<(Engine<P>, RecoveryReport), OpenError> {
        let geometry = shared.geometry().clone();
        let loader = Loader {
            platform: &platform,
            device: &device,
            geometry: &geometry,
        };
        let root = loader.newest_root(&superblock, journal_no).await?;
        let mut state = State::new(root.incarnation, root.next_layer);
        loader.load_tables(&root, &mut state).await?;
        let chain = loader.read_chain(&superblock, &root).await?;
        claim_segments(&shared, &state, &chain)?;
        let trusted = planted(Bug::TrustAfterFailedFlush);
        if !(trusted || root.clean && chain.groups == 0) {
            let slot = geometry.root_slots(journal_no)[(root.root_seq % 2) as usize];
            loader.rewrite([slot]).await?;
            loader
                .rewrite(suspect_groups(&geometry, journal_no, &chain))
                .await?;
        }
        let (state, report) = loader.replay(state, &root, &chain).await?;
        let mut state = state;
        state.incarnation = root.incarnation + 1;
        state.pool.reuse_soon = options.reuse_soon;
        let journal = Journal::new(
            group::device_id_low(superblock.device_id),
            journal_no,
            state.incarnation,
            geometry.ring_blocks,
            chain.position,
        );
        let root_seq = root.root_seq.into();
        let inner = Inner {
            platform,
            device,
            shared,
            superblock,
            capacity_blocks: geometry.capacity_blocks(),
            geometry,
            journal_no,
            options,
            state: RefCell::new(state),
            journal: RefCell::new(journal),
            commit: RefCell::default(),
            overflow: RefCell::default(),
            flusher: Default::default(),
            gate: Default::default(),
            locks: RefCell::default(),
            freed: RefCell::default(),
            admin: Budget::new(1),
            opening: Budget::new(1),
            chosen_slots: RefCell::default(),
            closing: RefCell::default(),
            given_lsns: RefCell::default(),
            signals: Signals::default(),
            counters: EngineCounters::default(),
            root_seq,
            checkpoint_requested: false.into(),
            checkpoints_started: 0.into(),
            checkpoints_done: 0.into(),
            checkpointer_off: false.into(),
            flusher_off: false.into(),
            stopping: false.into(),
            reaping_failed: None.into(),
            reaping_settled: None.into(),
            tasks: 0.into(),
            last_scrub: RefCell::default(),
        };
        let engine = Engine {
            inner: Rc::new(inner),
        };
        engine.finish_recovery().await?;
        engine.start_tasks();
        engine.inner.signals.reap.notify();
        Ok((engine, report))
    }

    /// Writes the root with which the new incarnation begins.
    async fn finish_recovery(&self) -> Result<(), OpenError> {
        while !self.inner.shared.is_complete() {
            self.inner.platform.sleep_ns(1_000_000).await;
        }
        // What was read may still be in a volatile cache (the process died, the machine did not).
        // The checkpoint reuses blocks that the chain freed, so the chain must be durable first.
        if !planted(Bug::RecoveryFlushSkipped) {
            self.inner.device.flush().await.map_err(OpenError::Io)?;
        }
        self.inner
            .checkpoint(false)
            .await
            .map_err(|error| match error {
                super::DvolError::NoSpace => OpenError::NoSpace,
                super::DvolError::Corrupt => OpenError::Damaged {
                    what: "a segment's bitmap",
                    block: BlockNo(0),
                },
                _ => OpenError::Io(io::Error::other("the recovery's checkpoint failed")),
            })
    }

    /// Reads the superblock of a device and prepares what its journals share.
    pub async fn prepare(
        platform: &P,
        device: &P::Device,
    ) -> Result<(Superblock, DeviceShared), OpenError> {
        let superblock = read_superblock(platform, device).await?;
        let geometry = Geometry::checked(&superblock).map_err(OpenError::Format)?;
        Ok((superblock, DeviceShared::new(geometry)))
    }
}

/// Takes the segments of this journal, as of the end of its chain, out of the device's free ones.
fn claim_segments(shared: &DeviceShared, state: &State, chain: &Chain) -> Result<(), OpenError> {
    let mut owned: BTreeSet<SegmentNo> = state.pool.segments().map(|(no, _)| no).collect();
    for record in chain.units.iter().flat_map(|u| &u.records) {
        match record {
            Record::ReserveSegment { segment } => {
                owned.insert(*segment);
            }
            // Stays ours until the new root no longer names it.
            Record::ReleaseSegment { .. } => {}
            _ => {}
        }
    }
    for segment in owned {
        if !shared.claim(segment) {
            return Err(OpenError::Format(FormatError {
                message: format!("segment {} is owned by two journals", segment.0),
            }));
        }
    }
    shared.journal_known();
    Ok(())
}

const BLOCK_BYTES: usize = BLOCK_SIZE as usize;

/// Blocks of the ring read at a time.
const RING_READ_BLOCKS: u32 = 256;

struct Loader<'a, P: Platform> {
    platform: &'a P,
    device: &'a P::Device,
    geometry: &'a Geometry,
}

impl<P: Platform> Loader<'_, P> {
    async fn newest_root(&self, superblock: &Superblock, journal: u16) -> Result<Root, OpenError> {
        let mut newest: Option<Root> = None;
        let mut last_error = None;
        for slot in self.geometry.root_slots(journal) {
            let bytes = read(self.platform, self.device, slot)
                .await
                .map_err(OpenError::Io)?;
            let root = Root::decode(&bytes).and_then(|root| {
                root.check_place(superblock.device_id, journal, self.geometry)?;
                Ok(root)
            });
            match root {
                Ok(root) if newest.as_ref().is_none_or(|n| n.root_seq < root.root_seq) => {
                    newest = Some(root);
                }
                Ok(_) => {}
                Err(error) => last_error = Some(error),
            }
        }
        newest.ok_or_else(|| {
            OpenError::Format(last_error.unwrap_or(FormatError {
                message: format!("journal {journal} has no valid root"),
            }))
        })
    }

    async fn read_table_block(
        &self,
        ptr: BlockPtr,
        what: &'static str,
    ) -> Result<flagstone_platform::IoBuf, OpenError> {
        let bytes = read(self.platform, self.device, ptr.block)
            .await
            .map_err(OpenError::Io)?;
        if ChainHash::of(&bytes) != ptr.hash {
            return Err(OpenError::Damaged {
                what,
                block: ptr.block,
            });
        }
        Ok(bytes)
    }

    async fn load_tables(&self, root: &Root, state: &mut State) -> Result<(), OpenError> {
        let catalogue = self
            .load_table(TableKind::Catalogue, &root.catalogue, |number, bytes| {
                if let Some(record) = CatalogueRecord::decode(bytes)? {
                    state.load_slot(Slot(number), record);
                }
                Ok(())
            })
            .await?;
        let orphans = state.link_children();
        if !orphans.is_empty() {
            let message = format!("catalogue: the parents of slots {orphans:?} are missing");
            return Err(OpenError::Format(FormatError { message }));
        }
        let geometry = self.geometry;
        let segments = self
            .load_table(TableKind::Segments, &root.segments, |number, bytes| {
                let Some(record) = SegmentRecord::decode(bytes)? else {
                    return Ok(());
                };
                if !geometry.is_usable_segment(SegmentNo(number)) {
                    let message = format!("segment table: segment {number} does not exist");
                    return Err(FormatError { message });
                }
                state.pool.add(SegmentNo(number), record, geometry);
                Ok(())
            })
            .await?;
        state.load_tables(catalogue, segments);
        Ok(())
    }

    /// Reads a table and hands each record with its number to `take`.
    async fn load_table(
        &self,
        table: TableKind,
        index: &[BlockPtr],
        mut take: impl FnMut(u32, &[u8]) -> Result<(), FormatError>,
    ) -> Result<TableLocations, OpenError> {
        let mut locations = TableLocations {
            pages: Vec::new(),
            index: index.to_vec(),
        };
        for (number, ptr) in index.iter().enumerate() {
            let first = number * PAGES_PER_INDEX;
            locations.pages.resize(first, BlockPtr::NONE);
            if ptr.is_none() {
                continue;
            }
            let bytes = self.read_table_block(*ptr, "a table's index block").await?;
            let pages = decode_index(&bytes, table, first as u32).map_err(OpenError::Format)?;
            if let Some(outside) = pages.iter().find(|p| !p.is_within(self.geometry)) {
                return Err(OpenError::Damaged {
                    what: "a table page",
                    block: outside.block,
                });
            }
            locations.pages.extend(pages);
        }
        let per_page = table.records_per_page() as u32;
        for (number, ptr) in locations.pages.iter().enumerate() {
            if ptr.is_none() {
                continue;
            }
            let bytes = self.read_table_block(*ptr, "a table page").await?;
            let records = decode_page(&bytes, table, number as u32).map_err(OpenError::Format)?;
            for (at, record) in records.enumerate() {
                take(number as u32 * per_page + at as u32, record).map_err(OpenError::Format)?;
            }
        }
        Ok(locations)
    }

    /// Follows the chain from the root until it ends.
    async fn read_chain(&self, superblock: &Superblock, root: &Root) -> Result<Chain, OpenError> {
        let ring = self.read_ring(root.journal).await?;
        let mut chain = Chain {
            units: Vec::new(),
            position: Position {
                next_seq: root.next_seq,
                ring_index: root.ring_index,
                prev_hash: root.prev_hash,
            },
            watermark: root.next_seq - 1,
            groups: 0,
            places: Vec::new(),
        };
        let mut left = self.geometry.ring_blocks;
        while left > 0 {
            let Some((header, bytes, hash)) = group_at(&ring, superblock, root, &chain.position)
            else {
                break;
            };
            let blocks = u32::from(header.block_count);
            if blocks > left {
                break;
            }
            left -= blocks;
            if !header.pad {
                let body = &bytes[HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize];
                // The group's hash is right, so this was written by a Flagstone: not understanding
                // it is no reason to drop what may have been acknowledged.
                let units = decode_units(body).map_err(OpenError::Format)?;
                let seq = header.seq;
                chain
                    .units
                    .extend(units.into_iter().map(|records| FoundUnit { seq, records }));
            }
            chain.watermark = chain.watermark.max(header.watermark.min(header.seq - 1));
            chain.groups += 1;
            let held = if header.pad { 1 } else { blocks };
            chain
                .places
                .push((header.seq, chain.position.ring_index, held));
            chain.position = Position {
                next_seq: header.seq + 1,
                ring_index: (chain.position.ring_index + blocks) % self.geometry.ring_blocks,
                prev_hash: hash,
            };
        }
        check_end(&ring, superblock, root, &chain)?;
        Ok(chain)
    }

    /// The whole ring.
    async fn read_ring(&self, journal: u16) -> Result<Vec<u8>, OpenError> {
        let mut ring = Vec::with_capacity(self.geometry.ring_blocks as usize * BLOCK_BYTES);
        let mut at = 0;
        while at < self.geometry.ring_blocks {
            let blocks = (self.geometry.ring_blocks - at).min(RING_READ_BLOCKS);
            let place = self.geometry.ring_block(journal, at);
            let buf = self.platform.buffers().take(blocks as usize * BLOCK_BYTES);
            let (buf, result) = self.device.read(place.offset_bytes(), buf).await;
            result.map_err(OpenError::Io)?;
            ring.extend_from_slice(&buf);
            at += blocks;
        }
        Ok(ring)
    }

    /// Writes again, byte for byte, what recovery goes on from and no successful flush may have
    /// covered: after a failed flush a device can read back well what it will still lose.
    async fn rewrite(&self, blocks: impl IntoIterator<Item = BlockNo>) -> Result<(), OpenError> {
        for block in blocks {
            let bytes = read(self.platform, self.device, block)
                .await
                .map_err(OpenError::Io)?;
            let (_, result) = self.device.write(block.offset_bytes(), bytes).await;
            result.map_err(OpenError::Io)?;
        }
        Ok(())
    }

    /// Applies the chain's units to the state of the root, but for aborted ones and for those above
    /// the watermark whose data is not there.
    async fn replay(
        &self,
        mut state: State,
        root: &Root,
        chain: &Chain,
    ) -> Result<(State, RecoveryReport), OpenError> {
        let mut report = RecoveryReport {
            clean: root.clean && chain.groups == 0,
            groups: chain.groups,
            ..RecoveryReport::default()
        };
        let skip = self.units_to_skip(chain, &mut report).await?;
        for (index, unit) in chain.units.iter().enumerate() {
            let from = match skip.contains(&index) {
                true if planted(Bug::DropOnlyPart) => 1,
                true => continue,
                false => 0,
            };
            for record in &unit.records[from..] {
                state
                    .check(record, self.geometry)
                    .map_err(OpenError::Format)?;
                self.apply(&mut state, record).await?;
            }
            report.units += 1;
        }
        Ok((state, report))
    }

    async fn apply(&self, state: &mut State, record: &Record) -> Result<(), OpenError> {
        while let Some(missing) = state.missing(record) {
            let ptr = missing.ptr();
            let bytes = read(self.platform, self.device, ptr.block)
                .await
                .map_err(OpenError::Io)?;
            missing.fill_from(&bytes).map_err(OpenError::Format)?;
        }
        let mut effects = Effects::default();
        state.apply(record, self.geometry, &mut effects);
        // No read is under way, and the new root is durable before anything is written.
        for block in effects.freed {
            state.pool.reopen(block);
        }
        Ok(())
    }

    /// Units that must not be applied: aborted ones, and suspects whose data is not there.
    async fn units_to_skip(
        &self,
        chain: &Chain,
        report: &mut RecoveryReport,
    ) -> Result<BTreeSet<usize>, OpenError> {
        let mut skip = match planted(Bug::AbortedApplied) {
            true => BTreeSet::new(),
            false => aborted(chain),
        };
        if planted(Bug::SuspectsNotChecked) {
            return Ok(skip);
        }
        let suspects: BTreeSet<usize> = (0..chain.units.len())
            .filter(|&i| chain.units[i].seq > chain.watermark && !skip.contains(&i))
            .collect();
        report.suspects = suspects.len() as u64;
        let mut checked: BTreeMap<BlockNo, BlockChecksum> = BTreeMap::new();
        loop {
            let mut bad = BTreeSet::new();
            for (index, block, expected) in final_mappings(chain, &skip) {
                if !suspects.contains(&index) || bad.contains(&index) {
                    continue;
                }
                let found = match checked.get(&block) {
                    Some(&found) => found,
                    None => {
                        let found = self.checksum_of(block).await?;
                        checked.insert(block, found);
                        found
                    }
                };
                if found != expected {
                    bad.insert(index);
                }
            }
            if bad.is_empty() {
                let kept = final_mappings(chain, &skip);
                let kept = kept
                    .into_iter()
                    .filter(|(index, ..)| suspects.contains(index));
                if !planted(Bug::TrustAfterFailedFlush) {
                    self.rewrite(kept.map(|(_, block, _)| block)).await?;
                }
                return Ok(skip);
            }
            report.dropped += bad.len() as u64;
            skip.extend(bad);
            if planted(Bug::NoFixpoint) {
                return Ok(skip);
            }
        }
    }

    async fn checksum_of(&self, block: BlockNo) -> Result<BlockChecksum, OpenError> {
        if !self.geometry.is_data(block) {
            let message = format!("journal record: {block} lies outside the data area");
            return Err(OpenError::Format(FormatError { message }));
        }
        let bytes = read(self.platform, self.device, block)
            .await
            .map_err(OpenError::Io)?;
        Ok(BlockChecksum::of(&bytes))
    }
}

/// The group at `position` of a ring, with its bytes and hash, if it continues the chain.
fn group_at<'a>(
    ring: &'a [u8],
    superblock: &Superblock,
    root: &Root,
    position: &Position,
) -> Option<(group::GroupHeader, &'a [u8], ChainHash)> {
    let at = position.ring_index as usize * BLOCK_BYTES;
    let rest = ring.get(at..)?;
    let header = group::decode_header(rest.get(..BLOCK_BYTES)?).ok()?;
    let continues = is_ours(&header, superblock, root)
        && header.seq == position.next_seq
        && (header.prev_hash == position.prev_hash
            || planted(Bug::NoPrevHash)
            || planted(Bug::NoChain))
        && usize::from(header.block_count) * BLOCK_BYTES <= rest.len();
    if !continues {
        return None;
    }
    let blocks = if header.pad {
        1
    } else {
        usize::from(header.block_count)
    };
    let bytes = &rest[..blocks * BLOCK_BYTES];
    group::check_hash(bytes).map(|hash| (header, bytes, hash))
}

fn is_ours(header: &group::GroupHeader, superblock: &Superblock, root: &Root) -> bool {
    header.device_id_low == group::device_id_low(superblock.device_id)
        && header.journal == root.journal
        && (header.incarnation == root.incarnation
            || planted(Bug::NoIncarnation)
            || planted(Bug::NoChain))
}

/// A chain may end anywhere above its watermark. But if some later group says that the one which is
/// missing was on stable media, then that one is damaged, and what it held was acknowledged.
fn check_end(
    ring: &[u8],
    superblock: &Superblock,
    root: &Root,
    chain: &Chain,
) -> Result<(), OpenError> {
    let missing = chain.position.next_seq;
    for block in ring.chunks_exact(BLOCK_BYTES) {
        let Ok(header) = group::decode_header(block) else {
            continue;
        };
        let blocks = usize::from(header.block_count);
        let tells = is_ours(&header, superblock, root)
            && header.seq > missing
            && header.watermark >= missing
            && (header.pad || blocks == 1)
            && group::check_hash(block).is_some();
        if tells {
            return Err(OpenError::Format(FormatError {
                message: format!(
                    "journal {}: group {missing} was on stable media (group {} says so) and can't \
                     be read; what it held is lost",
                    root.journal, header.seq
                ),
            }));
        }
    }
    Ok(())
}

/// The ring blocks of groups above the watermark.
fn suspect_groups(geometry: &Geometry, journal: u16, chain: &Chain) -> Vec<BlockNo> {
    let suspects = chain
        .places
        .iter()
        .filter(|(seq, ..)| *seq > chain.watermark);
    suspects
        .flat_map(|&(_, first, count)| first..first + count)
        .map(|index| geometry.ring_block(journal, index))
        .collect()
}

/// Units that an abort record takes back.
fn aborted(chain: &Chain) -> BTreeSet<usize> {
    let mut first_of_group: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, unit) in chain.units.iter().enumerate() {
        first_of_group.entry(unit.seq).or_insert(index);
    }
    let mut aborted = BTreeSet::new();
    for record in chain.units.iter().flat_map(|u| &u.records) {
        if let Record::Abort { seq, unit } = record
            && let Some(first) = first_of_group.get(seq)
        {
            let index = first + *unit as usize;
            if chain.units.get(index).is_some_and(|u| u.seq == *seq) {
                aborted.insert(index);
            }
        }
    }
    aborted
}

/// The unit that maps a place last, with the block and its checksum; `None`: it was unmapped.
type LastMappings = BTreeMap<(Slot, Key), Option<(usize, BlockNo, BlockChecksum)>>;

/// For each place that the units map, the unit that maps it last, the block and its checksum.
/// Superseded mappings are left out: their blocks may hold something else by now.
fn final_mappings(chain: &Chain, skip: &BTreeSet<usize>) -> Vec<(usize, BlockNo, BlockChecksum)> {
    let mut last = LastMappings::new();
    let mut superseded = Vec::new();
    for (index, unit) in chain
        .units
        .iter()
        .enumerate()
        .filter(|(i, _)| !skip.contains(i))
    {
        for record in &unit.records {
            match record {
                Record::Map { slot, runs, .. } => {
                    for (vblock, mapped) in runs.iter().flat_map(|run| {
                        (run.start.0..)
                            .map(flagstone_types::VBlock)
                            .zip(&run.blocks)
                    }) {
                        let found = (index, mapped.block, mapped.checksum);
                        if planted(Bug::SupersededChecked) {
                            superseded.push(found);
                        }
                        last.insert((*slot, Key::block(vblock)), Some(found));
                        last.insert((*slot, Key::delta(vblock)), None);
                    }
                }
                Record::Delta {
                    slot,
                    vblock,
                    block,
                    checksum,
                    ..
                } => {
                    let found = (index, *block, *checksum);
                    last.insert((*slot, Key::delta(*vblock)), Some(found));
                }
                Record::Unmap { slot, ranges, .. } => {
                    for &(start, count) in ranges {
                        let from = Key::block(start);
                        let end = Key::block(flagstone_types::VBlock(start.0 + count));
                        let gone: Vec<Key> = last
                            .range((*slot, from)..(*slot, end))
                            .map(|((_, key), _)| *key)
                            .collect();
                        for key in gone {
                            last.insert((*slot, key), None);
                        }
                    }
                }
                // A snapshot keeps what is mapped now: from here on, changes to the dvol do not
                // supersede it. The same holds for a slot that is given to something else.
                Record::Snapshot {
                    slot, layer_slot, ..
                } => {
                    move_mappings(&mut last, *slot, *layer_slot);
                }
                Record::Rollback {
                    slot, discard_slot, ..
                } => {
                    move_mappings(&mut last, *slot, *discard_slot);
                }
                _ => {}
            }
        }
    }
    let superseded = superseded.into_iter();
    last.into_values().flatten().chain(superseded).collect()
}

/// What a slot maps now stays as it is, under another slot's name.
fn move_mappings(last: &mut LastMappings, from: Slot, to: Slot) {
    let keys: Vec<Key> = last
        .range((from, Key(0))..=(from, Key::END))
        .map(|((_, key), _)| *key)
        .collect();
    for key in keys {
        if let Some(value) = last.remove(&(from, key)) {
            last.insert((to, key), value);
        }
    }
}
