//! An open extent: its shape, its table, and how much of its dvol is written and set aside.

use std::collections::BTreeMap;

use flagstone_device::engine::Handle;
use flagstone_types::BLOCK_SIZE;

use crate::geometry::Geometry;
use crate::pointer::{BlockPtr, ExtentId, OwnerId, PagePtr};
use crate::table::{BlockEntry, ENTRIES_PER_TABLE_PAGE, TablePage, place_of};

/// Space is set aside ahead of need in steps of an eighth of what is written, within these bounds, in
/// blocks of the device: 1 MiB to 64 MiB.
const HEADROOM: (u64, u64) = (256, 16_384);

/// See the module's page.
pub(crate) struct Extent {
    pub(crate) id: ExtentId,
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    /// What has been loaded of the table, as it is after all commits.
    tables: BTreeMap<u64, TablePage>,
    /// Blocks of the device that it has written once everything committed is durable, at most.
    mapped: u64,
    /// Blocks of the device that are set aside for it.
    reserved: u64,
    /// Of `mapped`: what comes with the open group, and with the one on its way.
    new_open: u64,
    new_flying: u64,
    /// Where looking for a free block goes on.
    pub(crate) search_from: u64,
}

impl Extent {
    pub(crate) fn new(id: ExtentId, handle: Handle, geometry: Geometry) -> Extent {
        Extent {
            id,
            handle,
            geometry,
            tables: BTreeMap::new(),
            mapped: 0,
            reserved: 0,
            new_open: 0,
            new_flying: 0,
            search_from: 0,
        }
    }

    /// Takes over what the device layer says: bytes written, bytes set aside.
    pub(crate) fn set_usage(&mut self, (mapped_bytes, reserved_bytes): (u64, u64)) {
        self.mapped = mapped_bytes / BLOCK_SIZE + self.new_open + self.new_flying;
        self.reserved = reserved_bytes / BLOCK_SIZE;
    }

    /// Blocks of the device in a page.
    pub(crate) fn device_blocks(&self, page_count: u64) -> u64 {
        page_count * (self.geometry.page_bytes() / BLOCK_SIZE)
    }

    /// Whether `blocks` more can be written without running out of what is set aside.
    pub(crate) fn has_room_for(&self, blocks: u64) -> bool {
        blocks == 0 || self.mapped + blocks <= self.reserved
    }

    /// Bytes to set aside so that `blocks` more can be written: generously, and just enough.
    pub(crate) fn wanted_bytes(&self, blocks: u64) -> (u64, u64) {
        let need = self.mapped + blocks;
        let whole = self.geometry.dvol_bytes() / BLOCK_SIZE;
        let ahead = need + (need / 8).clamp(HEADROOM.0, HEADROOM.1);
        (ahead.min(whole) * BLOCK_SIZE, need * BLOCK_SIZE)
    }

    /// If much more is set aside than is needed: takes it that only the rest is, and returns that in bytes.
    pub(crate) fn give_back_surplus(&mut self) -> Option<u64> {
        let (wanted, _) = self.wanted_bytes(0);
        if self.reserved * BLOCK_SIZE <= 2 * wanted {
            return None;
        }
        self.reserved = wanted / BLOCK_SIZE;
        Some(wanted)
    }

    pub(crate) fn note_new(&mut self, blocks: u64) {
        self.new_open += blocks;
        self.mapped += blocks;
    }

    /// The open group is on its way.
    pub(crate) fn handle_closed(&mut self) {
        self.new_flying += std::mem::take(&mut self.new_open);
    }

    /// It is durable, and counts with what the device layer says.
    pub(crate) fn handle_durable(&mut self, usage: (u64, u64)) {
        self.new_flying = 0;
        self.set_usage(usage);
    }

    /// Nothing of what was not durable has happened.
    pub(crate) fn handle_lost(&mut self, usage: (u64, u64)) {
        self.tables.clear();
        (self.new_open, self.new_flying) = (0, 0);
        self.set_usage(usage);
    }

    /// Entries that a page of the table has.
    pub(crate) fn entries_of(&self, table_page: u64) -> u64 {
        let first = table_page * ENTRIES_PER_TABLE_PAGE;
        let left = self.geometry.block_count().saturating_sub(first);
        left.min(ENTRIES_PER_TABLE_PAGE)
    }

    pub(crate) fn table(&self, table_page: u64) -> Option<&TablePage> {
        self.tables.get(&table_page)
    }

    /// Puts a page of the table there that was loaded, unless one is there already.
    pub(crate) fn put_table(&mut self, table_page: u64, page: TablePage) {
        self.tables.entry(table_page).or_insert(page);
    }

    /// What the table says of a block. `None` if that page is not loaded.
    pub(crate) fn entry(&self, block: u64) -> Option<BlockEntry> {
        let (table_page, index) = place_of(block);
        self.tables.get(&table_page).map(|page| page.get(index))
    }

    /// A block's pointer, if it is allocated. `None` if that page of the table is not loaded.
    pub(crate) fn block_ptr(&self, block: u64) -> Option<Option<BlockPtr>> {
        let entry = self.entry(block)?;
        let ptr = BlockPtr(PagePtr {
            extent: self.id,
            page: self.first_page(block),
            owner: OwnerId(entry.owner),
            generation: entry.generation,
            read_only: entry.read_only,
        });
        Some(entry.generation.is_allocated().then_some(ptr))
    }

    /// Allocated blocks of one page of the table, if it is loaded.
    pub(crate) fn allocated_in(&self, table_page: u64) -> Option<u64> {
        let page = self.tables.get(&table_page)?;
        Some(self.entries_of(table_page) - page.free_count)
    }

    /// Changes an entry whose page is loaded. Returns the blocks of the device that takes.
    pub(crate) fn set_entry(&mut self, block: u64, entry: BlockEntry) -> u64 {
        let (table_page, index) = place_of(block);
        let page = self
            .tables
            .get_mut(&table_page)
            .expect("loaded before a commit is applied");
        page.set(index, entry);
        u64::from(!std::mem::replace(&mut page.is_mapped, true))
    }

    /// Whether changing this block's entry takes a block of the device.
    pub(crate) fn entry_takes_space(&self, block: u64) -> bool {
        self.table(place_of(block).0)
            .is_none_or(|page| !page.is_mapped)
    }

    /// Whether a pointer is to one of its pages at all.
    pub(crate) fn contains(&self, ptr: &PagePtr) -> bool {
        ptr.page < self.geometry.page_count()
    }

    /// The first page of a block.
    pub(crate) fn first_page(&self, block: u64) -> u64 {
        block * self.geometry.pages_per_block()
    }
}
