//! The store: the machine with its I/O. One for each journal, owned by the journal's core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, Handle, JOURNALED_MAX_BYTES, Piece, Pieces,
};
use flagstone_platform::sync::{Budget, Signal};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::BLOCK_SIZE;
use tracing::error;

use crate::commit::{Commit, CommitError, Committed, ReadError, StoreError, Ticket};
use crate::extent::Extent;
use crate::geometry::Geometry;
use crate::header::{self, Header};
use crate::latest::{Key, Known};
use crate::log::{self, Ring};
use crate::machine::{DeviceSlots, GroupMax, Machine, Refused};
use crate::pointer::{BlockPtr, ExtentId, OwnerId, PagePtr, PageSlot};
use crate::spanning::{RECORDS, StoreId};
use crate::table::{ENTRIES_PER_TABLE_PAGE, TablePage, place_of};

/// Pages of a table counted before others have their turn on the core.
const COUNTED_AT_ONCE: u64 = 16;
/// Set aside for a new extent.
const FIRST_RESERVE_BYTES: u64 = 1 << 20;
/// One commit in so many fails for nothing, where failures are injected. [fss 3]
const INJECTED_ONE_IN: u64 = 500;

/// The log: seconds of the busiest work, and read at a start within some tenths of one.
const LOG_BYTES: u64 = 32 << 20;

/// A frame of so many bytes takes nine blocks of the ring of the device's journal, where a group without one takes one.
const JOURNALED_BYTES: usize = 32 << 10;

/// Pages of trees for some hundred thousand files.
const RECENT_BYTES: usize = 64 << 20;

/// How to run a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// One commit with conditions in so many is refused with [`CommitError::Conflict`] though nothing has
    /// changed, so that what to do then is done every day. Zero: none. [fss 3]
    pub injected_one_in: u64,
    /// Memory for pages that were read lately, in bytes. Zero: none.
    pub recent_bytes: usize,
    /// Bytes of the log that a new store gets, at most a 64th of the device. Zero: none, and every group is put in its
    /// place at once.
    pub log_bytes: u64,
    /// Frames of the log of up to so many bytes are in the device's journal alone until they are put in their place, at most
    /// [`JOURNALED_MAX_BYTES`]. Zero: all go to the log's own blocks.
    pub journaled_bytes: usize,
}

impl Default for StoreOptions {
    /// Failures are injected in every build but a release.
    fn default() -> StoreOptions {
        StoreOptions {
            injected_one_in: match cfg!(debug_assertions) {
                true => INJECTED_ONE_IN,
                false => 0,
            },
            recent_bytes: RECENT_BYTES,
            log_bytes: LOG_BYTES,
            journaled_bytes: JOURNALED_BYTES,
        }
    }
}

/// A page that was read.
#[derive(Clone, Debug)]
pub struct PageRead {
    /// All of it; zeros if it was never written.
    pub data: IoBuf,
    /// Its version, for a commit that depends on it.
    pub slot: PageSlot,
    /// When it survives power loss. Whoever is told of what was read has to wait for that.
    pub ticket: Ticket,
}

/// A store. A cheap handle, used by one core.
pub struct Store<P: Platform> {
    pub(crate) inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Store<P> {
    fn clone(&self) -> Self {
        Store {
            inner: self.inner.clone(),
        }
    }
}

pub(crate) struct Inner<P: Platform> {
    pub(crate) platform: P,
    pub(crate) engine: Engine<P>,
    options: StoreOptions,
    pub(crate) log: Option<Handle>,
    pub(crate) machine: RefCell<Machine>,
    /// Blocks that somebody is about to allocate.
    claimed: RefCell<BTreeSet<(usize, u64)>>,
    /// One at a time changes what is set aside.
    space_turn: Budget,
    /// The turn of those who found the open group full.
    crowd: Budget,
    /// Something was committed or put in its place, or the store is stopping.
    pub(crate) work: Signal,
    /// A group became durable or was lost, or something was put in its place.
    pub(crate) settled: Signal,
    pub(crate) stopping: Cell<bool>,
    /// It is stopping, and what is in the log stays there.
    pub(crate) has_given_up: Cell<bool>,
    /// Somebody will see to what is in the log.
    pub(crate) has_timer: Cell<bool>,
    /// Putting that in its place has failed several times, and goes on failing.
    pub(crate) is_failing: Cell<bool>,
    pub(crate) counters: Cell<StoreCounters>,
    /// Names this life of the store.
    life: u64,
    /// Names the store.
    pub(crate) id: StoreId,
    /// As it was at the start.
    pub(crate) header: Cell<Header>,
    /// Who makes the extent for records.
    pub(crate) records_turn: Budget,
    /// The epoch in which it was last made sure that what was lost stays lost.
    pub(crate) sure_epoch: Cell<u64>,
}

/// What a store has counted. [`Store::counters`]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoreCounters {
    /// Groups of commits that became durable.
    pub groups: u64,
    /// Those of them whose frame went to the device's journal alone.
    pub groups_journaled: u64,
    /// Groups that could not be made durable, with what was committed behind each.
    pub groups_lost: u64,
    /// Times that what was in the log was put in its place.
    pub put_in_place: u64,
    /// Times that this failed and was tried again.
    pub put_in_place_failed: u64,
    /// Bytes of the log; zero without one.
    pub log_bytes: u64,
    /// Bytes of it that are not in their place yet.
    pub log_used_bytes: u64,
}

/// A free block that nobody else will be offered while this lives.
pub struct Claim<P: Platform> {
    inner: Rc<Inner<P>>,
    key: (usize, u64),
    /// To be allocated by a commit.
    pub ptr: BlockPtr,
}

impl<P: Platform> Drop for Claim<P> {
    fn drop(&mut self) {
        self.inner.claimed.borrow_mut().remove(&self.key);
    }
}

impl<P: Platform> Store<P> {
    /// Opens the store of an engine's journal with all its extents; makes one where there is none.
    pub async fn open(
        platform: P,
        engine: Engine<P>,
        options: StoreOptions,
    ) -> Result<Store<P>, StoreError> {
        let is_extent = |attributes| Geometry::of_attributes(attributes).is_ok();
        let has_extents = engine
            .dvols()
            .iter()
            .any(|info| is_extent(&info.attributes));
        let (slots, mut header, id) = header::take_slots(&engine, has_extents).await?;
        let life = slots.start;
        let group_max = GroupMax::of_device(engine.capacity_bytes());
        let log = log::open(&engine, options.log_bytes, group_max).await?;
        if log.is_some() {
            header = header::note_log(&engine, header).await?;
        }
        let (log, ring) = log.map(|log| (log.handle, log.ring)).unzip();
        let mut machine = Machine::new(slots, group_max, options.recent_bytes, ring);
        machine.journaled_max = options.journaled_bytes.min(JOURNALED_MAX_BYTES);
        for info in engine.dvols() {
            if let Ok((id, geometry)) = Geometry::of_attributes(&info.attributes) {
                let mut extent = Extent::new(id, info.handle, geometry);
                extent.set_usage((info.mapped_bytes, info.reserved_bytes));
                machine.add_extent(extent);
            }
        }
        let inner = Rc::new(Inner {
            platform: platform.clone(),
            engine,
            options,
            log,
            machine: RefCell::new(machine),
            claimed: RefCell::default(),
            space_turn: Budget::new(1),
            crowd: Budget::new(1),
            work: Signal::new(),
            settled: Signal::new(),
            stopping: Cell::new(false),
            has_given_up: Cell::new(false),
            has_timer: Cell::new(false),
            is_failing: Cell::new(false),
            counters: Cell::default(),
            life,
            id: StoreId(id.0),
            header: Cell::new(header),
            records_turn: Budget::new(1),
            sure_epoch: Cell::new(0),
        });
        let store = Store { inner };
        store.load_records().await?;
        // Behind the records: what is kept for prepared parts must not be given back.
        platform.spawn(store.inner.clone().carry_out_groups());
        Ok(store)
    }

    /// Finishes what has been committed and stops. The engine is stopped by whoever opened it.
    pub async fn stop(&self) {
        let inner = &self.inner;
        inner.stopping.set(true);
        inner.work.notify();
        loop {
            let settled = inner.settled.wait();
            let is_over = inner.machine.borrow().dead.is_some();
            if is_over {
                break;
            }
            settled.await;
        }
    }

    /// Changes whenever commits that somebody could have seen have been lost: with each start, and when a
    /// group could not be made durable. NFS calls it the write verifier. [rfc1813 3.3.7]
    pub fn verifier(&self) -> u64 {
        self.inner.life ^ self.inner.machine.borrow().epoch()
    }

    /// What it has done since it was opened, and what its log holds now.
    pub fn counters(&self) -> StoreCounters {
        let machine = self.inner.machine.borrow();
        let (log_bytes, log_used_bytes) = machine.ring.as_ref().map_or((0, 0), Ring::usage);
        StoreCounters {
            log_bytes,
            log_used_bytes,
            ..self.inner.counters.get()
        }
    }

    /// The extents here.
    pub fn extents(&self) -> Vec<ExtentId> {
        let machine = self.inner.machine.borrow();
        machine.extent_ids().filter(|id| *id != RECORDS).collect()
    }

    /// The shape of one.
    pub fn geometry(&self, id: ExtentId) -> Result<Geometry, StoreError> {
        let machine = self.inner.machine.borrow();
        let index = machine.index_of(id)?;
        Ok(machine.extent(index).geometry)
    }

    /// The pointer of a block, if it is allocated.
    pub async fn block(&self, id: ExtentId, block: u64) -> Result<Option<BlockPtr>, StoreError> {
        let inner = &self.inner;
        let index = inner.machine.borrow().index_of(id)?;
        if block >= inner.machine.borrow().extent(index).geometry.block_count() {
            return Ok(None);
        }
        loop {
            let found = inner.machine.borrow().extent(index).block_ptr(block);
            match found {
                Some(found) => return Ok(found),
                None => inner.load_table(index, place_of(block).0).await?,
            }
        }
    }

    /// How many blocks of an extent are allocated. Reads as much of its table as was ever written.
    pub async fn allocated_blocks(&self, id: ExtentId) -> Result<u64, StoreError> {
        let inner = &self.inner;
        let index = inner.machine.borrow().index_of(id)?;
        let table_pages = inner.machine.borrow().extent(index).geometry.table_pages();
        let (mut count, mut page) = (0, 0);
        while page < table_pages {
            let (is_written, end) = inner.table_run(index, page..table_pages).await?;
            for page in page..end {
                let is_loaded = |page| inner.machine.borrow().extent(index).table(page).is_some();
                // What was committed and isn't on the device yet is in memory.
                if !is_written && !is_loaded(page) {
                    continue;
                }
                loop {
                    let in_page = inner.machine.borrow().extent(index).allocated_in(page);
                    match in_page {
                        Some(in_page) => break count += in_page,
                        None => inner.load_table(index, page).await?,
                    }
                }
                if page % COUNTED_AT_ONCE == 0 {
                    inner.platform.yield_now().await;
                }
            }
            page = end;
        }
        Ok(count)
    }

    /// Creates an extent. Its id must not have been used before, and not be the highest, which is the store's own.
    /// Durable when this returns.
    pub async fn create_extent(&self, id: ExtentId, geometry: Geometry) -> Result<(), StoreError> {
        match id {
            RECORDS => Err(StoreError::NoExtent(id)),
            _ => self.inner.create_extent(id, geometry).await,
        }
    }

    /// Reads a page.
    pub async fn read(&self, ptr: PagePtr) -> Result<PageRead, ReadError> {
        let inner = &self.inner;
        let (index, geometry) = inner.check_pointer(&ptr, 1)?;
        let page_bytes = geometry.page_bytes();
        inner.check_owner(index, &ptr).await?;
        if let Some(read) = inner.read_latest(index, ptr.page, page_bytes) {
            return Ok(read);
        }
        let key: Key = (index, ptr.page);
        if let Some((data, slot)) = inner.machine.borrow().recent.get(key) {
            return Ok(PageRead {
                data: data.clone(),
                slot: *slot,
                ticket: Ticket::default(),
            });
        }
        // Apart, so that who finds a page in memory carries no room for this.
        Box::pin(self.read_device(ptr, index, geometry)).await
    }

    /// Reads a page that is not in memory.
    async fn read_device(
        &self,
        ptr: PagePtr,
        index: usize,
        geometry: Geometry,
    ) -> Result<PageRead, ReadError> {
        let inner = &self.inner;
        let key: Key = (index, ptr.page);
        let page_bytes = geometry.page_bytes();
        let handle = inner.machine.borrow().extent(index).handle;
        let offset = geometry.page_offset(ptr.page);
        let metas = async || {
            let found = inner.engine.metas_of(handle, offset, page_bytes).await;
            found.map_err(StoreError::from)
        };
        let (pieces, slot, lookups) = loop {
            // No lock: readers don't wait for each other, and no commit waits for a slow read. A slot is never
            // given twice, so what is read between two looks at the same slot belongs to it.
            let lookups = inner.machine.borrow().lookups;
            let before = metas().await?;
            let found = inner.engine.read_through(handle, offset, page_bytes).await;
            let pieces = found.map_err(StoreError::from)?;
            let is_same = metas().await? == before;
            match one_slot(&before) {
                Some(slot) if is_same => break (pieces, slot, lookups),
                None if is_same && inner.machine.borrow().lookups == lookups => {
                    return Err(StoreError::Corrupt.into());
                }
                _ => {}
            }
        };
        // The block may have been freed meanwhile; then it may hold what is not theirs.
        inner.check_owner(index, &ptr).await?;
        let data = inner.join(pieces, page_bytes as usize);
        let mut machine = inner.machine.borrow_mut();
        // If it has changed meanwhile it is on its way, or the device has got something newer.
        let is_newest = machine.lookups == lookups && machine.latest(index, ptr.page).is_none();
        if is_newest && slot != PageSlot(0) {
            machine.recent.put(key, &data, slot);
        }
        // Who keeps it keeps no memory of the pool for transfers.
        let kept = machine.recent.get(key).map(|(kept, _)| kept.clone());
        Ok(PageRead {
            data: kept.filter(|_| is_newest).unwrap_or(data),
            slot,
            ticket: Ticket::default(),
        })
    }

    /// A number that changes with every commit, and when commits are lost: as long as it is the same, what was the
    /// newest version of a page is that still. `None`: nothing can be committed any more.
    pub fn moment(&self) -> Option<u64> {
        self.inner.machine.borrow().moment()
    }

    /// When a page that was read survives power loss, if it is still the newest version and that is known without asking
    /// the device. `None` says nothing: read it.
    pub fn newest(&self, ptr: PagePtr, slot: PageSlot) -> Option<Ticket> {
        self.inner.machine.borrow().newest(&ptr, slot)
    }

    /// Reads bytes of one block, from `offset_bytes` behind the beginning of the page of `first`. Each page
    /// is as it was at one instant; to see several as they were at the same one, keep writers away.
    pub async fn read_range(
        &self,
        first: PagePtr,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(Pieces, Ticket), ReadError> {
        let inner = &self.inner;
        let page_bytes = inner.check_pointer(&first, 1)?.1.page_bytes();
        let pages = match offset_bytes.checked_add(len_bytes) {
            Some(end) if len_bytes > 0 => offset_bytes / page_bytes..end.div_ceil(page_bytes),
            _ => return Err(ReadError::OutOfRange(first)),
        };
        let (index, geometry) = inner.check_pointer(&first, pages.end)?;
        inner.check_owner(index, &first).await?;
        let mut ticket = Ticket::default();
        let (mut pieces, mut page) = (Pieces::new(), pages.start);
        while page < pages.end {
            if let Some(read) = inner.read_latest(index, first.page + page, page_bytes) {
                ticket = self.later(ticket, read.ticket);
                pieces.push(Piece::Data(read.data.into()));
                page += 1;
                continue;
            }
            let is_on_device = |page: &u64| {
                let machine = inner.machine.borrow();
                machine.latest(index, first.page + page).is_none()
            };
            let end = (page..pages.end).take_while(is_on_device).count() as u64 + page;
            let handle = inner.machine.borrow().extent(index).handle;
            let offset = geometry.page_offset(first.page + page);
            let found = inner
                .engine
                .read_through(handle, offset, (end - page) * page_bytes)
                .await;
            pieces.extend(found.map_err(StoreError::from)?);
            page = end;
        }
        inner.check_owner(index, &first).await?;
        let skip = offset_bytes - pages.start * page_bytes;
        Ok((trim(pieces, skip, len_bytes), ticket))
    }

    /// Names a free block of an extent that nobody else is offered, to be allocated by a commit. `NoSpace`
    /// if there is none.
    pub async fn claim(&self, id: ExtentId, owner: OwnerId) -> Result<Claim<P>, StoreError> {
        let inner = &self.inner;
        let index = inner.machine.borrow().index_of(id)?;
        let geometry = inner.machine.borrow().extent(index).geometry;
        let from = inner.machine.borrow().extent(index).search_from;
        let table_pages = geometry.table_pages();
        let first_page = from / ENTRIES_PER_TABLE_PAGE;
        // The page in which the last search ended comes twice: from there on, and its beginning.
        for turn in 0..=table_pages {
            let table_page = (first_page + turn) % table_pages;
            let skip = if turn == 0 {
                from % ENTRIES_PER_TABLE_PAGE
            } else {
                0
            };
            while inner
                .machine
                .borrow()
                .extent(index)
                .table(table_page)
                .is_none()
            {
                inner.load_table(index, table_page).await?;
            }
            if let Some(claim) = inner.claim_in(index, table_page, skip as usize, owner, id) {
                return Ok(claim);
            }
        }
        Err(StoreError::NoSpace)
    }

    /// Commits all of it or nothing. Others see it when this returns; durable it is when its ticket is.
    /// [fss 3: multi-page store-conditional]
    pub async fn commit(&self, commit: &Commit) -> Result<Committed, CommitError> {
        let inner = &self.inner;
        if let Some(ptr) = inner.injected(commit) {
            return Err(CommitError::Conflict(ptr));
        }
        inner
            .decide(commit, |machine, found| machine.commit(commit, found))
            .await
    }

    /// Waits until what a ticket stands for survives power loss, or is lost.
    pub async fn wait(&self, ticket: Ticket) -> Result<(), StoreError> {
        let inner = &self.inner;
        loop {
            let settled = inner.settled.wait();
            let state = inner.machine.borrow().state_of(ticket);
            match state {
                Ok(true) => return Ok(()),
                Ok(false) => settled.await,
                Err(error) => return Err(error),
            }
        }
    }

    /// The ticket for both.
    pub fn later(&self, one: Ticket, other: Ticket) -> Ticket {
        if one.epoch == other.epoch || one.group == 0 || other.group == 0 {
            return if one.group >= other.group { one } else { other };
        }
        let (old, new) = if one.epoch < other.epoch {
            (one, other)
        } else {
            (other, one)
        };
        match self.inner.machine.borrow().state_of(old) {
            Ok(_) => new,
            Err(_) => old,
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Has something decided, of which `commit` has all the pages, as soon as that can be: looks up, loads and sets aside
    /// what it takes.
    pub(crate) async fn decide<D>(
        &self,
        commit: &Commit,
        mut decide: impl FnMut(&mut Machine, &DeviceSlots) -> Result<D, Refused>,
    ) -> Result<D, CommitError> {
        // Those who found the open group full go first, in their order.
        let is_crowded = self.crowd.free() == 0;
        let mut turn = if is_crowded {
            Some(self.crowd.take(1).await)
        } else {
            None
        };
        // What memory doesn't say of the pages: nothing of those of trees, as a rule.
        let mut found = DeviceSlots::new();
        loop {
            if self.stopping.get() {
                return Err(StoreError::Stopping.into());
            }
            let settled = self.settled.wait();
            if self.is_failing.get() && self.machine.borrow().needs_room {
                return Err(StoreError::Stuck.into());
            }
            let decided = decide(&mut self.machine.borrow_mut(), &found);
            // From the next wait on it may be old.
            found.clear();
            match decided {
                Ok(decided) => {
                    self.work.notify();
                    return Ok(decided);
                }
                Err(Refused::For(error)) => return Err(error),
                Err(Refused::GroupFull) if turn.is_none() => turn = Some(self.crowd.take(1).await),
                Err(Refused::GroupFull) => settled.await,
                Err(Refused::NeedsTable(index, page)) => {
                    Box::pin(self.load_table(index, page)).await?;
                }
                Err(Refused::NeedsSlot) => found = Box::pin(self.look_up_now(commit)).await?,
                Err(Refused::NeedsSpace(index, blocks)) => {
                    Box::pin(self.set_aside(index, blocks)).await?;
                }
            }
        }
    }

    pub(crate) async fn create_extent(
        &self,
        id: ExtentId,
        geometry: Geometry,
    ) -> Result<(), StoreError> {
        let size_bytes = geometry.dvol_bytes();
        let new = CreateDvol {
            name: format!(".extent-{:016x}", id.0),
            id: None,
            size_bytes,
            reserved_bytes: FIRST_RESERVE_BYTES.min(size_bytes),
        };
        let attributes = geometry.attributes(id);
        let handle = self.engine.create_with(new, attributes).await?;
        let mut extent = Extent::new(id, handle, geometry);
        extent.set_usage(self.engine.usage_of(handle)?);
        self.machine.borrow_mut().add_extent(extent);
        Ok(())
    }

    /// Whether the first of some pages of a table was written, and up to which one that is so of all.
    async fn table_run(
        &self,
        index: usize,
        pages: std::ops::Range<u64>,
    ) -> Result<(bool, u64), StoreError> {
        let (handle, geometry) = {
            let machine = self.machine.borrow();
            let extent = machine.extent(index);
            (extent.handle, extent.geometry)
        };
        let offset = geometry.table_offset(pages.start);
        let len = (pages.end - pages.start) * BLOCK_SIZE;
        let runs = self.engine.allocation(handle, offset, len, 1).await?;
        let run = runs.first().ok_or(StoreError::Device)?;
        let end = pages.start + (run.len_bytes / BLOCK_SIZE).max(1);
        Ok((run.allocated, end.min(pages.end)))
    }

    fn check_pointer(&self, ptr: &PagePtr, count: u64) -> Result<(usize, Geometry), ReadError> {
        let machine = self.machine.borrow();
        if let Some(error) = machine.dead.filter(|error| *error == StoreError::Stopping) {
            return Err(error.into());
        }
        let index = machine.index_of(ptr.extent)?;
        let geometry = machine.extent(index).geometry;
        let in_block = ptr.page % geometry.pages_per_block();
        if ptr.page >= geometry.page_count() || count > geometry.pages_per_block() - in_block {
            return Err(ReadError::OutOfRange(*ptr));
        }
        Ok((index, geometry))
    }

    async fn check_owner(&self, index: usize, ptr: &PagePtr) -> Result<(), ReadError> {
        loop {
            let admitted = self.machine.borrow().admits(index, ptr);
            match admitted {
                Ok(true) => return Ok(()),
                Err(Refused::NeedsTable(index, page)) => {
                    Box::pin(self.load_table(index, page)).await?;
                }
                _ => return Err(ReadError::NotOwner(*ptr)),
            }
        }
    }

    /// A page that isn't durable as it is.
    fn read_latest(&self, index: usize, page: u64, page_bytes: u64) -> Option<PageRead> {
        let machine = self.machine.borrow();
        match machine.latest(index, page)? {
            Known::Version(version) => Some(PageRead {
                data: version.bytes(),
                slot: version.slot,
                ticket: machine.ticket(version.group),
            }),
            Known::Empty(group) => Some(PageRead {
                data: IoBuf::zeroed(page_bytes as usize),
                slot: PageSlot(0),
                ticket: machine.ticket(group),
            }),
        }
    }

    async fn load_table(&self, index: usize, table_page: u64) -> Result<(), StoreError> {
        let (handle, offset, count) = {
            let machine = self.machine.borrow();
            let extent = machine.extent(index);
            if extent.table(table_page).is_some() {
                return Ok(());
            }
            let offset = extent.geometry.table_offset(table_page);
            (extent.handle, offset, extent.entries_of(table_page))
        };
        let epoch = self.machine.borrow().epoch();
        let pieces = self.engine.read(handle, offset, BLOCK_SIZE).await?;
        let is_mapped = !matches!(pieces.first(), Some(Piece::Zeros(_)));
        let bytes = self.join(pieces, BLOCK_SIZE as usize);
        let Some(page) = TablePage::decode(&bytes, count, is_mapped) else {
            error!(
                "opening page {table_page} of the table of extent {:#x}: its bytes are not what the \
                 format says; nothing of its blocks is read or written",
                self.machine.borrow().extent(index).id.0
            );
            return Err(StoreError::Corrupt);
        };
        let mut machine = self.machine.borrow_mut();
        // While it isn't loaded no commit can change it. If commits were lost meanwhile it may have been
        // loaded and changed before that.
        if machine.epoch() == epoch {
            machine.extent_mut(index).put_table(table_page, page);
        }
        Ok(())
    }

    fn claim_in(
        self: &Rc<Self>,
        index: usize,
        table_page: u64,
        skip: usize,
        owner: OwnerId,
        id: ExtentId,
    ) -> Option<Claim<P>> {
        let mut machine = self.machine.borrow_mut();
        let extent = machine.extent(index);
        let count = extent.entries_of(table_page) as usize;
        let first = table_page * ENTRIES_PER_TABLE_PAGE;
        let page = extent
            .table(table_page)
            .filter(|page| page.free_count > 0)?;
        let mut claimed = self.claimed.borrow_mut();
        let free = page.free_from(skip, count).find(|entry| {
            let block = first + *entry as u64;
            let is_held = !machine.ledger.is_empty()
                && machine.ledger.holds_pages(id, &extent.pages_of(block));
            !is_held && !claimed.contains(&(index, block))
        })?;
        let (block, entry) = (first + free as u64, page.get(free));
        claimed.insert((index, block));
        let ptr = BlockPtr(PagePtr {
            extent: id,
            page: extent.first_page(block),
            owner,
            generation: machine.next_generation(index, block, entry.generation),
            read_only: false,
        });
        let extent = machine.extent_mut(index);
        extent.search_from = (block + 1) % extent.geometry.block_count();
        Some(Claim {
            inner: self.clone(),
            key: (index, block),
            ptr,
        })
    }

    fn injected(&self, commit: &Commit) -> Option<PagePtr> {
        let checked = commit.checks.first().map(|(ptr, _)| *ptr);
        let ptr = checked.or_else(|| commit.writes.first().map(|write| write.ptr))?;
        let one_in = self.options.injected_one_in;
        (one_in > 0 && self.platform.random_u64().is_multiple_of(one_in)).then_some(ptr)
    }

    /// The slots of a commit's pages as the device has them at this moment, where memory doesn't say them.
    async fn look_up_now(&self, commit: &Commit) -> Result<DeviceSlots, CommitError> {
        loop {
            let lookups = self.machine.borrow().lookups;
            let found = self.look_up(commit).await?;
            if self.machine.borrow().lookups == lookups {
                return Ok(found.ok_or(StoreError::Corrupt)?);
            }
        }
    }

    /// The slots of a commit's pages as the device has them, where nothing newer is known. `None` if a page
    /// seems to have several: it is damaged, if nothing has changed meanwhile.
    async fn look_up(&self, commit: &Commit) -> Result<Option<DeviceSlots>, CommitError> {
        let mut found = DeviceSlots::new();
        let mut is_whole = true;
        for (ptr, _) in &commit.checks {
            is_whole &= self.look_up_pages(ptr, 1, &mut found).await?;
        }
        for write in &commit.writes {
            is_whole &= self.look_up_pages(&write.ptr, 1, &mut found).await?;
        }
        for range in &commit.ranges {
            let index = self.machine.borrow().index_of(range.first.extent)?;
            let page_bytes = self.machine.borrow().extent(index).geometry.page_bytes();
            let count = range.data.len() as u64 / page_bytes;
            is_whole &= self.look_up_pages(&range.first, count, &mut found).await?;
        }
        Ok(is_whole.then_some(found))
    }

    async fn look_up_pages(
        &self,
        first: &PagePtr,
        count: u64,
        found: &mut DeviceSlots,
    ) -> Result<bool, CommitError> {
        let (index, handle, geometry) = {
            let machine = self.machine.borrow();
            let index = machine.index_of(first.extent)?;
            let extent = machine.extent(index);
            (index, extent.handle, extent.geometry)
        };
        let end = first.page.saturating_add(count).min(geometry.page_count());
        let mut is_known = |page: u64| {
            let machine = self.machine.borrow();
            let slot = machine.recent.slot((index, page));
            found.extend(slot.map(|slot| ((index, page), slot)));
            slot.is_some() || machine.latest(index, page).is_some()
        };
        if (first.page..end).all(&mut is_known) {
            return Ok(true);
        }
        let (offset, len) = (geometry.page_offset(first.page), end - first.page);
        let metas = self
            .engine
            .metas_of(handle, offset, len * geometry.page_bytes());
        let metas = Box::pin(metas).await.map_err(StoreError::from)?;
        let per_page = (geometry.page_bytes() / BLOCK_SIZE) as usize;
        for (page, metas) in (first.page..end).zip(metas.chunks(per_page)) {
            let Some(slot) = one_slot(metas) else {
                return Ok(false);
            };
            let key: Key = (index, page);
            found.insert(key, slot);
        }
        Ok(true)
    }

    /// Has space set aside for an extent, ahead of need if it can be had.
    async fn set_aside(&self, index: usize, blocks: u64) -> Result<(), StoreError> {
        let _turn = self.space_turn.take(1).await;
        let (handle, (wanted, needed)) = {
            let machine = self.machine.borrow();
            let extent = machine.extent(index);
            if extent.has_room_for(blocks) {
                return Ok(());
            }
            (extent.handle, extent.wanted_bytes(blocks))
        };
        let settled = self.settled.wait();
        let is_idle = self.machine.borrow().is_idle();
        let size_bytes = self.machine.borrow().extent(index).geometry.dvol_bytes();
        let mut done = Err(DvolError::NoSpace);
        if needed <= size_bytes {
            done = self.engine.set_reserved(handle, wanted).await;
            if done.is_err() && needed < wanted {
                done = self.engine.set_reserved(handle, needed).await;
            }
        }
        if done == Err(DvolError::NoSpace) && !is_idle {
            // What is on its way or in the log may give back what is missing, or count twice so far.
            self.machine.borrow_mut().is_due = true;
            self.work.notify();
            settled.await;
            return Ok(());
        }
        done?;
        let usage = self.engine.usage_of(handle)?;
        self.machine.borrow_mut().extent_mut(index).set_usage(usage);
        Ok(())
    }

    /// Gives back what is set aside and far more than is needed. Failing costs nothing but space.
    pub(crate) async fn give_back(self: Rc<Self>) {
        let count = self.machine.borrow().extent_count();
        for index in 0..count {
            let Some(_turn) = self.space_turn.try_take(1) else {
                return;
            };
            let (handle, bytes) = {
                let mut machine = self.machine.borrow_mut();
                let extent = machine.extent_mut(index);
                match extent.give_back_surplus() {
                    Some(bytes) => (extent.handle, bytes),
                    None => continue,
                }
            };
            let done = self.engine.set_reserved(handle, bytes).await;
            if let (Ok(()), Ok(usage)) = (done, self.engine.usage_of(handle)) {
                self.machine.borrow_mut().extent_mut(index).set_usage(usage);
            }
        }
    }

    /// All of it in one buffer.
    pub(crate) fn join(&self, mut pieces: Pieces, len: usize) -> IoBuf {
        if pieces.len() == 1
            && let Some(Piece::Data(data)) = pieces.pop()
        {
            return data.into_buf();
        }
        let mut out = IoBuf::zeroed(len);
        let bytes = out.bytes_mut();
        let mut at = 0;
        for piece in pieces {
            match piece {
                Piece::Data(data) => {
                    bytes[at..at + data.len()].copy_from_slice(&data);
                    at += data.len();
                }
                Piece::Zeros(len) => at += len as usize,
            }
        }
        out
    }
}

/// The slot of a page, if its blocks agree on one.
fn one_slot(metas: &[u64]) -> Option<PageSlot> {
    let first = *metas.first()?;
    metas
        .iter()
        .all(|meta| *meta == first)
        .then_some(PageSlot(first))
}

/// The bytes from `skip` on, `len` of them.
fn trim(pieces: Pieces, mut skip: u64, mut len: u64) -> Pieces {
    let mut out = Pieces::new();
    for piece in pieces {
        let size = match &piece {
            Piece::Data(data) => data.len() as u64,
            Piece::Zeros(size) => *size,
        };
        let begin = skip.min(size);
        let end = size.min(begin + len);
        skip -= begin;
        len -= end - begin;
        if begin == end {
            continue;
        }
        out.push(match piece {
            Piece::Data(data) => Piece::Data(data.narrow(begin as usize..end as usize)),
            Piece::Zeros(_) => Piece::Zeros(end - begin),
        });
    }
    out
}
