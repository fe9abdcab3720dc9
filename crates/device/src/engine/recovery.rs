//! Opening a journal: load its root, replay what follows in the ring, write a new root, serve.
//!
//! Recovery always ends with a durable root of a new incarnation before anything is served, so what
//! it dropped stays dropped, and running it again after a crash in the middle gives the same state.
//! Cost: the ring, the nodes that its records touch, and one checkpoint; never the device's size.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::rc::Rc;

use flagstone_platform::sync::Budget;
use flagstone_platform::{BlockDevice, BufferPool, IoBuf, Platform};
use flagstone_types::{BlockNo, ChainHash, SegmentNo, Slot};

use super::chain::{Chain, FoundUnit, check_end, group_at, suspect_groups};
use super::data::Data;
use super::format::{Found, find_superblock, read_again, rewrite_copies};
use super::info::EngineCounters;
use super::journal::{Journal, Position};
use super::options::EngineOptions;
use super::pieces;
use super::recent_parts::RecentParts;
use super::replay::in_group;
use super::ring::Ring;
use super::unit::Units;
use super::writers::Writers;
use super::{Engine, Inner, Signals};
use crate::cache::{BlockCache, Part};
use crate::format::FormatError;
use crate::format::catalogue::CatalogueRecord;
use crate::format::geometry::Geometry;
use crate::format::group::{self, HEADER_BYTES};
use crate::format::record::{Record, decode_units};
use crate::format::root::Root;
use crate::format::segment::SegmentRecord;
use crate::format::superblock::Superblock;
use crate::format::table::{BlockPtr, PAGES_PER_INDEX, TableKind, decode_index, decode_page};
use crate::offline::flip;
use crate::planted::{Bug, planted};
use crate::space::{DeviceShared, FlushedBy};
use crate::state::{COUNT_AFTER, State, TableLocations};

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
    /// The same, and the free blocks of these segments are not known, because their bitmaps are damaged.
    NoSpaceKnown(Vec<SegmentNo>),
    /// Another journal of the device can't be opened, and this one is of no use without it. Nothing
    /// is wrong with this one.
    OtherJournal,
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
                write!(f, "{what}, {block}, does not match its checksum")
            }
            OpenError::NoSpace => f.write_str("no blocks are left for the recovery's checkpoint"),
            OpenError::NoSpaceKnown(segments) => {
                let numbers: Vec<String> = segments.iter().map(|s| s.0.to_string()).collect();
                write!(
                    f,
                    "no blocks are left for the recovery's checkpoint, because which are free is not \
                     known where a bitmap is damaged: that of segment {}",
                    numbers.join(", of segment ")
                )
            }
            OpenError::OtherJournal => f.write_str("another journal can't be opened"),
        }
    }
}

impl std::error::Error for OpenError {}

/// When a journal is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    /// With all others of its device.
    Start,
    /// While the others are being served: another engine has handed it over.
    Again,
}

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
    /// Blocks of units above the watermark that can't be read. What should be there may have been
    /// acknowledged, so it stays mapped, and reading it is an error.
    pub unreadable: u64,
    /// True if the newest root had a flipped bit, which was flipped back.
    pub mended: bool,
}

impl<P: Platform> Engine<P> {
    /// Opens journal `journal_no` of a device and starts serving it. `shared` is the same for all
    /// journals of the device; they must be opened at the same time, since each waits until the
    /// segments of all are known. If one can't be opened, those that wait end with `OtherJournal`
    /// before they have begun a new incarnation; those that are open already have to be stopped by
    /// whoever opened them.
    pub async fn open(
        platform: P,
        device: P::Device,
        shared: DeviceShared,
        superblock: Superblock,
        journal_no: u16,
        options: EngineOptions,
    ) -> Result<(Engine<P>, RecoveryReport), OpenError> {
        let cache = BlockCache::new(options.cache_bytes, BufferPool::new());
        Self::open_sharing(
            &cache, platform, device, shared, superblock, journal_no, options,
        )
        .await
    }

    /// The same with a cache of blocks that engines of one core share.
    pub async fn open_sharing(
        cache: &BlockCache,
        platform: P,
        device: P::Device,
        shared: DeviceShared,
        superblock: Superblock,
        journal_no: u16,
        options: EngineOptions,
    ) -> Result<(Engine<P>, RecoveryReport), OpenError> {
        let all = shared.clone();
        let opened = Self::open_one(
            cache.join(),
            platform,
            device,
            shared,
            superblock,
            (journal_no, Opening::Start),
            options,
        );
        let opened = opened.await;
        if opened.is_err() {
            all.give_up();
        }
        opened
    }

    pub(super) async fn open_one(
        cache: Option<Part>,
        platform: P,
        device: P::Device,
        shared: DeviceShared,
        superblock: Superblock,
        (journal_no, opening): (u16, Opening),
        options: EngineOptions,
    ) -> Result<(Engine<P>, RecoveryReport), OpenError> {
        let geometry = shared.geometry().clone();
        let loader = Loader {
            platform: &platform,
            device: &device,
            geometry: &geometry,
        };
        let (root, mended) = loader.newest_root(&superblock, journal_no).await?;
        let mut state = State::new(root.incarnation, root.next_layer);
        state.count_tombstones_after = COUNT_AFTER.min(options.tombstones_max);
        loader.load_tables(&root, &mut state).await?;
        let chain = loader.read_chain(&superblock, &root).await?;
        let owned = owned_segments(&shared, &state, &chain);
        match opening {
            Opening::Start => {
                claim_segments(&shared, journal_no, &owned)?;
                shared.journal_known();
            }
            Opening::Again => claim_again(&shared, journal_no, &owned)?,
        }
        let root_slot = geometry.root_slots(journal_no)[(root.root_seq % 2) as usize];
        if mended {
            let bytes = IoBuf::copy_of(&root.encode());
            let (_, result) = device.write(root_slot.offset_bytes(), bytes).await;
            result.map_err(OpenError::Io)?;
        }
        let trusted = planted(Bug::TrustAfterFailedFlush);
        if !trusted {
            let suspects = suspect_groups(&geometry, journal_no, &chain);
            loader.rewrite(suspects).await?;
        }
        let (mut state, mut report) = loader.replay(state, &root, &chain).await?;
        report.mended = mended;
        let position = chain.position;
        // It may be as large as the ring, and the checkpoint takes memory, too.
        drop(chain);
        state.incarnation = root.incarnation + 1;
        state.pool.reuse_soon = options.reuse_soon;
        let journal = Journal::new(
            group::device_id_low(superblock.device_id),
            journal_no,
            state.incarnation,
            geometry.ring_blocks,
            position,
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
            cache,
            locks: RefCell::default(),
            freed: RefCell::default(),
            admin: Budget::new(1),
            segments_taking: RefCell::default(),
            laying_out: Default::default(),
            opening: Budget::new(1),
            way: Budget::new(1),
            overwrites: Budget::new(1),
            due_ahead: 0.into(),
            chosen_slots: RefCell::default(),
            pledged: RefCell::default(),
            pledge_held: false.into(),
            batched: RefCell::default(),
            journaled_dvols: RefCell::default(),
            made_ahead: Cell::default(),
            loose: Default::default(),
            recent_parts: RecentParts::new(options.recent_parts_bytes),
            waiting_writes: Default::default(),
            read_steps: Default::default(),
            changes: 0.into(),
            changes_kept: 0.into(),
            gives_all_back: false.into(),
            closing: RefCell::default(),
            given_lsns: RefCell::default(),
            scratch_body: RefCell::default(),
            scratch_runs: RefCell::default(),
            scratch_reusable: RefCell::default(),
            units: Units::default(),
            writers: Writers::default(),
            data: Data::default(),
            scratch_effects: RefCell::default(),
            scratch_entries: RefCell::default(),
            spare_checksums: RefCell::default(),
            signals: Signals::default(),
            counters: EngineCounters::default(),
            root_seq,
            checkpoint_requested: false.into(),
            checkpoints_started: 0.into(),
            checkpoints_done: 0.into(),
            checkpoints_failed: 0.into(),
            checkpointer_off: false.into(),
            flusher_off: false.into(),
            stop: Budget::new(1),
            has_stopped: false.into(),
            handed_over: false.into(),
            stopping: false.into(),
            reaping_failed: None.into(),
            reaping_settled: None.into(),
            host_full: false.into(),
            eviction: Default::default(),
            tasks: 0.into(),
            last_scrub: RefCell::default(),
            background_scrub: RefCell::default(),
            background: RefCell::default(),
            pressing: Cell::default(),
            pace: Cell::default(),
        };
        let engine = Engine {
            inner: Rc::new(inner),
        };
        let lost = engine.inner.state.borrow().pool.lost_segments().count() as u64;
        engine.inner.counters.bitmaps_lost.set(lost);
        let goes_on_from = match trusted || planted(Bug::RootNotRewritten) {
            true => None,
            false => Some(root_slot),
        };
        let finished = engine.finish_recovery(goes_on_from).await;
        finished.inspect_err(|_| {
            engine.inner.writers.end();
            engine.inner.data.end();
        })?;
        engine.start_tasks();
        engine.inner.signals.reap.notify();
        engine.inner.signals.forget.notify();
        Ok((engine, report))
    }

    /// Writes the root with which the new incarnation begins; before that, the one again that it goes on from.
    async fn finish_recovery(&self, goes_on_from: Option<BlockNo>) -> Result<(), OpenError> {
        while !self.inner.shared.is_complete() {
            if self.inner.shared.is_given_up() {
                return Err(OpenError::OtherJournal);
            }
            self.inner.platform.sleep_ns(1_000_000).await;
        }
        // Not before all journals have shown that they are this superblock's.
        let damaged = self.inner.shared.take_damaged_superblocks();
        rewrite_copies(&self.inner.device, &self.inner.superblock, damaged).await;
        // Whether it was stopped in order or not: the flush behind a stop's root may have failed, too. What takes the
        // place of the other root next would then be torn with nothing durable beside it but a root whose blocks
        // are used again already. Not before all journals are known: a device that can't be opened isn't written to.
        pieces::rewrite(&self.inner.platform, &self.inner.device, goes_on_from)
            .await
            .map_err(OpenError::Io)?;
        // What was read may still be in a volatile cache (the process died, the machine did not).
        // The checkpoint reuses blocks that the chain freed, so the chain must be durable first.
        if !planted(Bug::RecoveryFlushSkipped) {
            // As any flush: if that of another journal fails beside it, it proves nothing.
            let failed = |_| OpenError::Io(io::Error::other("a flush failed; see the log"));
            let flushed = self.inner.flush_device(FlushedBy::Checkpoint).await;
            flushed.map_err(failed)?;
        }
        self.inner
            .checkpoint(false)
            .await
            .map_err(|error| match error {
                super::DvolError::NoSpace => {
                    let lost = self.inner.state.borrow().pool.lost_segments().collect();
                    no_space(lost)
                }
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
        let Found {
            superblock,
            damaged,
        } = find_superblock(platform, device).await?;
        let geometry = Geometry::checked(&superblock).map_err(OpenError::Format)?;
        let shared = DeviceShared::new(geometry);
        shared.set_damaged_superblocks(damaged);
        Ok((superblock, shared))
    }
}

fn no_space(lost: Vec<SegmentNo>) -> OpenError {
    match lost.is_empty() {
        true => OpenError::NoSpace,
        false => OpenError::NoSpaceKnown(lost),
    }
}

/// The segments of a journal, as of the end of its chain.
fn owned_segments(shared: &DeviceShared, state: &State, chain: &Chain) -> BTreeSet<SegmentNo> {
    let mut owned: BTreeSet<SegmentNo> = state.pool.segments().map(|(no, _)| no).collect();
    for record in chain.units.iter().flat_map(|u| &u.records) {
        // One that is released stays ours until the new root no longer names it.
        if let Record::ReserveSegment { segment } = record {
            owned.insert(*segment);
        }
    }
    // The record of one that can't be is refused when its turn comes.
    owned.retain(|segment| shared.geometry().is_usable_segment(*segment));
    owned
}

/// Takes the segments of a journal out of the device's free ones.
fn claim_segments(
    shared: &DeviceShared,
    journal_no: u16,
    owned: &BTreeSet<SegmentNo>,
) -> Result<(), OpenError> {
    for &segment in owned {
        if !shared.claim(journal_no, segment) {
            return Err(OpenError::Format(FormatError {
                message: format!("segment {} is owned by two journals", segment.0),
            }));
        }
    }
    Ok(())
}

/// The same, where some are marked as the journal's already. What else is marked as its own, nothing on the device says is.
fn claim_again(
    shared: &DeviceShared,
    journal_no: u16,
    owned: &BTreeSet<SegmentNo>,
) -> Result<(), OpenError> {
    let marked: BTreeSet<SegmentNo> = shared.owned_by(journal_no).collect();
    let unmarked: BTreeSet<SegmentNo> = owned.difference(&marked).copied().collect();
    claim_segments(shared, journal_no, &unmarked)?;
    for &segment in marked.difference(owned) {
        shared.release(journal_no, segment);
    }
    Ok(())
}

/// Reads what a journal has on its device.
pub(super) struct Loader<'a, P: Platform> {
    pub(super) platform: &'a P,
    pub(super) device: &'a P::Device,
    pub(super) geometry: &'a Geometry,
}

impl<P: Platform> Loader<'_, P> {
    /// The root to go on from, and whether a flipped bit had to be flipped back for it.
    ///
    /// A slot that is one bit away from a valid root held that root: it was damaged, or its writing
    /// was interrupted with nothing but that bit missing. Everything it refers to was durable before
    /// it was written, so it is as good as if it were whole. A slot that is further away is taken
    /// for a torn write; if it was none, the ring tells in most cases ([`check_end`]).
    async fn newest_root(
        &self,
        superblock: &Superblock,
        journal: u16,
    ) -> Result<(Root, bool), OpenError> {
        let mut newest: Option<(Root, bool)> = None;
        let mut last_error = None;
        let decode = |bytes: &[u8]| {
            let root = Root::decode(bytes)?;
            root.check_place(superblock.device_id, journal, self.geometry)?;
            Ok::<Root, FormatError>(root)
        };
        for slot in self.geometry.root_slots(journal) {
            // One that can't be read may be the newest, and nothing shows what it says.
            let bytes = read_again(self.platform, self.device, slot)
                .await
                .map_err(OpenError::Io)?;
            let found = decode(&bytes).map(|root| (root, false)).or_else(|error| {
                let mended = flip::mend_sealed(&bytes).and_then(|m| decode(&m).ok());
                mended.map(|root| (root, true)).ok_or(error)
            });
            let is_newer = |root: &Root| {
                newest
                    .as_ref()
                    .is_none_or(|(other, _)| other.root_seq < root.root_seq)
            };
            match found {
                Ok(found) if is_newer(&found.0) => newest = Some(found),
                Ok(_) => {}
                Err(error) => last_error = Some(error),
            }
        }
        if let Some((root, true)) = &newest {
            tracing::warn!(
                journal,
                root = root.root_seq,
                "a bit of the newest root is flipped; it is flipped back"
            );
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
    ) -> Result<IoBuf, OpenError> {
        let bytes = read_again(self.platform, self.device, ptr.block)
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
        state.check_loaded().map_err(OpenError::Format)?;
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
        let page = match table {
            TableKind::Catalogue => "a page of the catalogue",
            TableKind::Segments => "a page of the segment table",
        };
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
            let what = match table {
                TableKind::Catalogue => "an index block of the catalogue",
                TableKind::Segments => "an index block of the segment table",
            };
            let bytes = self.read_table_block(*ptr, what).await?;
            let pages = decode_index(&bytes, table, first as u32).map_err(OpenError::Format)?;
            if let Some(outside) = pages.iter().find(|p| !p.is_within(self.geometry)) {
                return Err(OpenError::Damaged {
                    what: page,
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
            let bytes = self.read_table_block(*ptr, page).await?;
            let records = decode_page(&bytes, table, number as u32).map_err(OpenError::Format)?;
            for (at, record) in records.enumerate() {
                take(number as u32 * per_page + at as u32, record).map_err(OpenError::Format)?;
            }
        }
        Ok(locations)
    }

    /// Follows the chain from the root until it ends.
    async fn read_chain(&self, superblock: &Superblock, root: &Root) -> Result<Chain, OpenError> {
        let mut ring = Ring::new(self.platform, self.device, self.geometry, root.journal);
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
            let group = group_at(&mut ring, superblock, root, &chain.position).await?;
            let Some((header, bytes, hash)) = group else {
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
                let seq = header.seq;
                let units = decode_units(body).map_err(|error| in_group(seq, &error))?;
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
        check_end(&mut ring, superblock, root, &chain).await?;
        Ok(chain)
    }

    /// Writes again, byte for byte, what recovery goes on from and no successful flush may have
    /// covered: after a failed flush a device can read back well what it will still lose.
    pub(super) async fn rewrite(
        &self,
        blocks: impl IntoIterator<Item = BlockNo>,
    ) -> Result<(), OpenError> {
        pieces::rewrite(self.platform, self.device, blocks)
            .await
            .map_err(OpenError::Io)
    }
}
