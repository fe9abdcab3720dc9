//! Checkpoints: writing the state down, so that the ring can be used again and recovery stays short.
//!
//! Order: wait until everything up to the cut is applied; take the picture; write nodes (children
//! first), catalogue pages, bitmaps, segment pages and index blocks to fresh places; flush; write
//! the root into the older slot; flush; only then trim the ring and reuse what the picture gave up.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo, ChainHash, SegmentNo};

use super::Inner;
use super::background::{Pace, Turn};
use super::commit::Written;
use super::error::DvolError;
use super::join::join_all;
use super::journal::Position;
use super::laying_out::Needed;
use crate::format::catalogue::{CatalogueRecord, MapRoot};
use crate::format::root::Root;
use crate::format::segment::SegmentRecord;
use crate::format::table::{BlockPtr, PAGES_PER_INDEX, TableKind, encode_index, encode_page};
use crate::planted::{Bug, planted};
use crate::space::FlushedBy;
use crate::state::{Frozen, FrozenPage, JournaledBlock, TableLocations};
use crate::v2p::DirtyWalk;

/// Most consecutive metadata blocks written in one operation. While they are gathered nothing else
/// runs on the core, and a client's read or write waits behind them on the device.
const RUN_MAX_BLOCKS: usize = 16;

/// Runs of metadata blocks written at the same time.
const RUNS_IN_FLIGHT_MAX: usize = 8;

/// How often a metadata write is tried before the device is fenced.
const WRITE_TRIES: usize = 3;

/// Writes of one checkpoint. Blocks that lie side by side, as freshly allotted ones mostly do, go out
/// in one operation: a checkpoint of scattered small writes would otherwise cost the device as many
/// operations as the writes themselves.
struct Batch<'a, P: Platform> {
    inner: &'a Inner<P>,
    /// The run being gathered: its first block and its bytes.
    start: BlockNo,
    gathered: Vec<u8>,
    writes: Vec<(BlockNo, IoBuf)>,
}

impl<'a, P: Platform> Batch<'a, P> {
    fn new(inner: &'a Inner<P>) -> Batch<'a, P> {
        Batch {
            inner,
            start: BlockNo(0),
            gathered: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// Has `bytes`, one block, written to `block` before the next [`Batch::finish`] ends.
    async fn add(&mut self, block: BlockNo, bytes: &[u8]) -> Result<(), DvolError> {
        let count = self.gathered.len() / BLOCK_SIZE as usize;
        let fits = count < RUN_MAX_BLOCKS && self.start.0 + count as u64 == block.0;
        if count > 0 && !fits {
            self.close_run();
            if self.writes.len() >= RUNS_IN_FLIGHT_MAX {
                self.write_runs().await?;
            } else {
                self.inner.platform.yield_now().await;
            }
        }
        if self.gathered.is_empty() {
            self.start = block;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    fn close_run(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let mut buf = self.inner.platform.buffers().take(self.gathered.len());
        buf.bytes_mut().copy_from_slice(&self.gathered);
        self.gathered.clear();
        self.writes.push((self.start, buf));
    }

    async fn write_runs(&mut self) -> Result<(), DvolError> {
        let inner = self.inner;
        let writes = std::mem::take(&mut self.writes);
        let each = writes.into_iter().map(|(block, buf)| async move {
            let blocks = buf.len() as u64 / BLOCK_SIZE;
            let _turn: Turn = inner.checkpoint_turn(blocks).await;
            inner.note_pace(blocks);
            inner
                .write_with_retries(
                    block.offset_bytes(),
                    buf,
                    (Written::Checkpoint, WRITE_TRIES),
                )
                .await
        });
        let results = join_all(each).await;
        if results.iter().all(Result::is_ok) {
            Ok(())
        } else {
            Err(DvolError::Device)
        }
    }

    async fn finish(&mut self) -> Result<(), DvolError> {
        self.close_run();
        self.write_runs().await
    }
}

impl<P: Platform> Inner<P> {
    /// True if the state or the ring reached a limit.
    pub(super) fn wants_checkpoint(&self) -> bool {
        let journal = self.journal.borrow();
        if self.options.hold_checkpoints {
            return false;
        }
        journal.is_due() || self.has_many_dirty_nodes() || self.checkpoint_requested.get()
    }

    /// Has a checkpoint made soon.
    pub(super) fn request_checkpoint(&self) {
        self.checkpoint_requested.set(true);
        self.signals.checkpoint_wanted.notify();
    }

    /// Waits for a checkpoint that begins after this call. `Stopping` if none does: behind the last one,
    /// which may fail, there is no other.
    pub(super) async fn checkpoint_now(&self) -> Result<(), DvolError> {
        let _pressing = self.press();
        self.checkpoint_soon().await
    }

    /// The same for who has time: the checkpoint waits for its turns at the device.
    pub(super) async fn checkpoint_soon(&self) -> Result<(), DvolError> {
        let target = self.checkpoints_started.get() + 1;
        let failed = self.checkpoints_failed.get();
        self.request_checkpoint();
        while self.checkpoints_done.get() < target {
            let signal = self.signals.checkpointed.wait();
            if self.shared.is_fenced() {
                return Err(DvolError::Fenced);
            }
            if self.checkpoints_failed.get() > failed {
                return Err(DvolError::NoSpace);
            }
            if self.checkpointer_off.get() {
                return Err(DvolError::Stopping);
            }
            signal.await;
        }
        Ok(())
    }

    /// Task: makes checkpoints when they are wanted.
    pub(super) async fn run_checkpointer(self: Rc<Self>) {
        loop {
            let signal = self.signals.checkpoint_wanted.wait();
            if self.shared.is_fenced() {
                return self.fail_all(DvolError::Fenced);
            }
            if self.checkpointer_off.get() {
                return;
            }
            if !self.wants_checkpoint() {
                signal.await;
                continue;
            }
            self.checkpoint_requested.set(false);
            match self.checkpoint(false).await {
                // What it has given up may have emptied another segment.
                Ok(()) => self.offer_segments(),
                Err(DvolError::NoSpace) => {
                    // Cannot happen while the reserve holds; better late than never.
                    tracing::warn!("a checkpoint found no blocks; it is tried again");
                    // It has left nothing behind, and who waits for it is told.
                    let started = self.checkpoints_started.get();
                    self.checkpoints_started.set(started - 1);
                    let failed = self.checkpoints_failed.get();
                    self.checkpoints_failed.set(failed + 1);
                    self.signals.checkpointed.notify();
                    self.platform.sleep_ns(10_000_000).await;
                    // A ring that is full asks once more.
                    self.signals.journal.notify();
                }
                Err(_) => {
                    self.fence("a checkpoint could not be written");
                    return;
                }
            }
            self.evict_nodes();
        }
    }

    /// The last checkpoint before a stop in order.
    pub(super) async fn final_checkpoint(self: &Rc<Self>) -> Result<(), DvolError> {
        if self.shared.is_fenced() {
            return Err(DvolError::Fenced);
        }
        // Let a checkpoint under way end; then nothing else makes one.
        while self.checkpoints_started.get() > self.checkpoints_done.get() {
            let signal = self.signals.checkpointed.wait();
            if self.shared.is_fenced() {
                return Err(DvolError::Fenced);
            }
            signal.await;
        }
        self.checkpointer_off.set(true);
        // Whoever waits for another one need not wait for the end of this.
        self.signals.checkpointed.notify();
        self.flush_now().await?;
        self.checkpoint(true).await
    }

    /// Makes one checkpoint.
    pub(super) async fn checkpoint(self: &Rc<Self>, clean: bool) -> Result<(), DvolError> {
        self.checkpoints_started
            .set(self.checkpoints_started.get() + 1);
        let began = self.platform.now();
        self.state.borrow_mut().pool.retry_unreadable();
        // Nothing follows the root of a stop in order.
        if !clean {
            self.give_segments_back()?;
        }
        let position = self.cut().await?;
        // What is given a block by the picture may be deallocated before it is there. The block is not another's before that.
        let writing = (!planted(Bug::JournaledBlockReused)).then(|| self.gate.enter());
        let frozen = self.freeze_at(position).await;
        let changes = self.changes.get();
        self.hold_after(None);
        let mut frozen = frozen?;
        self.changes_kept.set(changes);
        let mut given_up = frozen.given_up.clone();
        let released = frozen.released_segments.clone();
        if planted(Bug::TrimBeforeRoot) {
            self.journal.borrow_mut().trim(position);
            self.signals.journal.notify();
        }
        if planted(Bug::ReuseBeforeRoot) {
            self.gate.freed(&mut given_up.clone());
            self.reopen_blocks();
        }
        let data = std::mem::take(&mut frozen.data);
        self.pace.set(Pace {
            blocks: (data.len() + frozen.blocks.len() + frozen.segments.len()) as u64,
            begun: 0,
            used_at_cut: self.journal.borrow().used_blocks(),
        });
        self.write_journaled(data).await?;
        drop(writing);
        let root = self.write_frozen(frozen, position, clean).await?;
        self.write_root(root).await?;
        self.state.borrow_mut().handle_root_durable();
        self.journal.borrow_mut().trim(position);
        // A node may just be being read at its old place.
        if !planted(Bug::ReuseBeforeRoot) {
            self.gate.freed(&mut given_up);
        }
        self.reopen_blocks();
        for segment in released {
            self.shared.release(self.journal_no, segment);
        }
        let counters = &self.counters;
        counters.checkpoints.set(counters.checkpoints.get() + 1);
        counters.checkpoint_ns.set(self.platform.now().since(began));
        self.checkpoints_done.set(self.checkpoints_done.get() + 1);
        for signal in [
            &self.signals.checkpointed,
            &self.signals.journal,
            &self.signals.space,
            &self.signals.blocks_low,
        ] {
            signal.notify();
        }
        Ok(())
    }

    /// Stops applying behind the last closed group, and waits until all up to it is applied.
    async fn cut(self: &Rc<Self>) -> Result<Position, DvolError> {
        let position = self.journal.borrow_mut().cut();
        let last = position.next_seq - 1;
        self.hold_after(Some(last));
        loop {
            let signal = self.signals.applied.wait();
            if self.shared.is_fenced() {
                return Err(DvolError::Fenced);
            }
            if !self.commit.borrow().has_pending_up_to(last) {
                return Ok(position);
            }
            signal.await;
        }
    }

    /// Gives blocks to what is in the journal alone. False if there are not enough.
    async fn place_for_freeze(&self) -> Result<bool, DvolError> {
        loop {
            let missing = self.state.borrow().missing_to_place();
            match missing {
                Some(missing) => self.load_node(&missing).await?,
                None => return Ok(self.state.borrow_mut().place_journaled().is_some()),
            }
        }
    }

    /// Brings all into memory that the picture touches.
    async fn load_for_freeze(&self) -> Result<(), DvolError> {
        loop {
            let needed = self.state.borrow().needed_for_freeze();
            if needed.is_empty() {
                return Ok(());
            }
            for segment in needed {
                self.load_bitmap(segment).await?;
            }
        }
    }

    /// Takes the picture.
    async fn freeze_at(self: &Rc<Self>, _position: Position) -> Result<Frozen, DvolError> {
        loop {
            if self.place_for_freeze().await? {
                // What that has displaced may lie anywhere.
                self.load_for_freeze().await?;
                let frozen = self.state.borrow_mut().freeze();
                if let Some(frozen) = frozen {
                    self.check_misfit()?;
                    return Ok(frozen);
                }
            }
            // More open blocks may be had from a bitmap that is not loaded or a free segment.
            let unloaded = self.state.borrow().pool.wants_loading();
            match unloaded {
                Some(segment) => self.load_bitmap(segment).await?,
                // Should not be needed while the reserve holds. Nothing is applied meanwhile; but if a sparse file can't grow, that is
                // no space and is tried again, where a write of the checkpoint that fails fences the device.
                None => self.open_segment(Needed::ByChange).await?,
            }
        }
    }

    /// Fails if the maps and the bitmaps have been found to contradict each other. Nothing that
    /// follows from such a state may be written.
    pub(super) fn check_misfit(&self) -> Result<(), DvolError> {
        let misfit = self.state.borrow().pool.misfit();
        let Some(misfit) = misfit else { return Ok(()) };
        tracing::error!(
            journal = self.journal_no,
            "maps and bitmaps contradict each other: {misfit}; run `flagstone verify`"
        );
        Err(DvolError::Corrupt)
    }

    /// Writes data that was in the journal alone to the blocks that it was given.
    async fn write_journaled(&self, data: Vec<(BlockNo, JournaledBlock)>) -> Result<(), DvolError> {
        // Nothing that is freed can be used meanwhile.
        let _pressing = self.press();
        let mut batch = Batch::new(self);
        for (block, data) in data {
            batch.add(block, &data.bytes()).await?;
        }
        batch.finish().await
    }

    /// Writes everything the new root refers to, and returns the root.
    async fn write_frozen(
        &self,
        frozen: Frozen,
        position: Position,
        clean: bool,
    ) -> Result<Root, DvolError> {
        let Frozen {
            maps,
            pages,
            mut segments,
            mut segment_pages,
            mut blocks,
            mut catalogue,
            mut segment_table,
            next_layer,
            ..
        } = frozen;
        let mut batch = Batch::new(self);
        // They are taken from the end, and are to be taken in ascending order.
        blocks.reverse();
        self.write_nodes(maps, &mut blocks, &mut batch).await?;
        let encoded = pages
            .into_iter()
            .map(|p| (p.page, encode_catalogue_page(p)))
            .collect();
        write_table(
            TableKind::Catalogue,
            encoded,
            &mut catalogue,
            &mut blocks,
            &mut batch,
        )
        .await?;
        // The segment pages know their blocks before the bitmaps are final: allot them first.
        let index_count = index_numbers(segment_pages.keys()).len();
        let kept = blocks
            .len()
            .saturating_sub(segment_pages.len() + index_count);
        for block in blocks.drain(..kept) {
            self.return_block(block, &mut segments);
        }
        let mut checksums = BTreeMap::new();
        for (&no, segment) in &mut segments {
            let checksum = self
                .write_bitmap(no, segment.record, &segment.bitmap, &mut batch)
                .await?;
            segment.record.bitmap_checksum = checksum;
            checksums.insert(no, checksum);
        }
        let per_page = TableKind::Segments.records_per_page() as u32;
        let mut encoded = Vec::new();
        for (page, records) in &mut segment_pages {
            for (index, record) in records.iter_mut().enumerate() {
                let no = SegmentNo(page * per_page + index as u32);
                if let (Some(record), Some(segment)) = (record.as_mut(), segments.get(&no)) {
                    *record = segment.record;
                }
            }
            encoded.push((*page, encode_segment_page(*page, records)));
        }
        write_table(
            TableKind::Segments,
            encoded,
            &mut segment_table,
            &mut blocks,
            &mut batch,
        )
        .await?;
        batch.finish().await?;
        self.state.borrow().map_stats.node_writes_done();
        let root_seq = self.root_seq.get() + 1;
        let state = &mut *self.state.borrow_mut();
        let root = Root {
            device_id: self.superblock.device_id,
            journal: self.journal_no,
            root_seq,
            incarnation: state.incarnation,
            next_seq: position.next_seq,
            ring_index: position.ring_index,
            prev_hash: position.prev_hash,
            next_layer,
            clean,
            catalogue: catalogue.index.clone(),
            segments: segment_table.index.clone(),
        };
        state.thaw(catalogue, segment_table, checksums.into_iter());
        Ok(root)
    }

    async fn write_nodes(
        &self,
        maps: Vec<crate::v2p::Map>,
        blocks: &mut Vec<BlockNo>,
        batch: &mut Batch<'_, P>,
    ) -> Result<(), DvolError> {
        let mut bytes = [0; BLOCK_SIZE as usize];
        for map in &maps {
            let mut walk = DirtyWalk::new(map);
            while let Some(node) = walk.next() {
                let block = blocks.pop().expect("the freeze counted every dirty node");
                node.write_to(block, &mut bytes);
                batch.add(block, &bytes).await?;
                self.counters
                    .nodes_written
                    .set(self.counters.nodes_written.get() + 1);
            }
        }
        Ok(())
    }

    /// A block that was allotted but not needed.
    fn return_block(
        &self,
        block: BlockNo,
        segments: &mut BTreeMap<SegmentNo, crate::state::FrozenSegment>,
    ) {
        if let Some(segment) = segments.get_mut(&block.segment()) {
            segment.bitmap.clear(block.index_in_segment());
            segment.record.used_blocks -= 1;
        }
        let mut state = self.state.borrow_mut();
        state.pool.release(block);
        state.pool.reopen(block);
    }

    async fn write_bitmap(
        &self,
        segment: SegmentNo,
        record: SegmentRecord,
        bitmap: &crate::space::Bitmap,
        batch: &mut Batch<'_, P>,
    ) -> Result<BlockChecksum, DvolError> {
        let mut bytes = [0; BLOCK_SIZE as usize];
        bitmap.to_bytes(&mut bytes);
        let place = self.geometry.bitmap_slots(segment)[usize::from(record.bitmap_slot & 1)];
        batch.add(place, &bytes).await?;
        Ok(BlockChecksum::of(&bytes))
    }

    /// Makes what the root refers to durable, then the root itself.
    pub(super) async fn write_root(&self, root: Root) -> Result<(), DvolError> {
        if !planted(Bug::RootBeforeFlush) {
            self.flush_device(FlushedBy::Checkpoint).await?;
        }
        let turn = match planted(Bug::RootInPlace) {
            true => 0,
            false => (root.root_seq % 2) as usize,
        };
        let slot = self.geometry.root_slots(self.journal_no)[turn];
        let bytes = root.encode();
        let mut buf = self.platform.buffers().take(bytes.len());
        buf.bytes_mut().copy_from_slice(&bytes);
        self.write_with_retries(slot.offset_bytes(), buf, (Written::Checkpoint, WRITE_TRIES))
            .await
            .map_err(|_| DvolError::Device)?;
        self.flush_device(FlushedBy::Checkpoint).await?;
        self.root_seq.set(root.root_seq);
        Ok(())
    }
}

fn encode_catalogue_page(page: FrozenPage) -> Vec<u8> {
    let mut records = Vec::new();
    for slot in page.records {
        let record = slot.map(|(mut record, map)| {
            record.map = map.root_ptr().map(|ptr| MapRoot {
                ptr,
                max_lsn: map.max_lsn(),
            });
            record.mapped_blocks = map.mapped_count();
            record
        });
        CatalogueRecord::encode(record.as_ref(), &mut records);
    }
    encode_page(TableKind::Catalogue, page.page, &records)
}

fn encode_segment_page(page: u32, records: &[Option<SegmentRecord>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        SegmentRecord::encode(record.as_ref(), &mut bytes);
    }
    encode_page(TableKind::Segments, page, &bytes)
}

fn index_numbers<'a>(pages: impl Iterator<Item = &'a u32>) -> std::collections::BTreeSet<u32> {
    pages.map(|page| page / PAGES_PER_INDEX as u32).collect()
}

/// Writes pages of a table and the index blocks that point to them.
async fn write_table<P: Platform>(
    table: TableKind,
    pages: Vec<(u32, Vec<u8>)>,
    locations: &mut TableLocations,
    blocks: &mut Vec<BlockNo>,
    batch: &mut Batch<'_, P>,
) -> Result<(), DvolError> {
    let indexes = index_numbers(pages.iter().map(|(page, _)| page));
    for (page, bytes) in pages {
        let block = blocks.pop().expect("the freeze counted every page");
        locations.pages[page as usize] = BlockPtr {
            block,
            hash: ChainHash::of(&bytes),
        };
        batch.add(block, &bytes).await?;
    }
    for index in indexes {
        let first = index as usize * PAGES_PER_INDEX;
        let end = locations.pages.len().min(first + PAGES_PER_INDEX);
        let bytes = encode_index(table, first as u32, &locations.pages[first..end]);
        let block = blocks.pop().expect("the freeze counted every index block");
        locations.index[index as usize] = BlockPtr {
            block,
            hash: ChainHash::of(&bytes),
        };
        batch.add(block, &bytes).await?;
    }
    Ok(())
}
