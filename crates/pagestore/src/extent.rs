//! An open extent: its shape, its table, and how much of its dvol is written and set aside.

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_device::engine::Handle;
use flagstone_platform::IoBuf;
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
    /// Of them, what parts that are prepared will take. [`crate::spanning`]
    pub(crate) kept: u64,
    /// Of `mapped`: what comes with the open group, with the one on its way, with those in the log, and with what is
    /// being put in its place.
    new_open: u64,
    new_flying: u64,
    new_logged: u64,
    new_writing: u64,
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
            kept: 0,
            new_open: 0,
            new_flying: 0,
            new_logged: 0,
            new_writing: 0,
            search_from: 0,
        }
    }

    /// Takes over what the device layer says: bytes written, bytes set aside.
    pub(crate) fn set_usage(&mut self, (mapped_bytes, reserved_bytes): (u64, u64)) {
        let new = self.new_open + self.new_flying + self.new_logged + self.new_writing;
        self.mapped = mapped_bytes / BLOCK_SIZE + new;
        self.reserved = reserved_bytes / BLOCK_SIZE;
    }

    /// Blocks of the device in a page.
    pub(crate) fn device_blocks(&self, page_count: u64) -> u64 {
        page_count * (self.geometry.page_bytes() / BLOCK_SIZE)
    }

    /// Whether `blocks` more can be written without running out of what is set aside.
    pub(crate) fn has_room_for(&self, blocks: u64) -> bool {
        blocks == 0 || self.mapped + self.kept + blocks <= self.reserved
    }

    /// Bytes to set aside so that `blocks` more can be written: generously, and just enough.
    pub(crate) fn wanted_bytes(&self, blocks: u64) -> (u64, u64) {
        let need = self.mapped + self.kept + blocks;
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

    /// Of what is on its way, `blocks` are in their place, so they count with what the device layer says.
    pub(crate) fn handle_placed(&mut self, blocks: u64) {
        self.new_flying -= blocks;
    }

    /// It is in the log.
    pub(crate) fn handle_logged(&mut self) {
        self.new_logged += std::mem::take(&mut self.new_flying);
    }

    /// What the log has is being put in its place.
    pub(crate) fn handle_writing(&mut self) {
        self.new_writing += std::mem::take(&mut self.new_logged);
    }

    /// It is there, and counts with what the device layer says.
    pub(crate) fn handle_written(&mut self, usage: (u64, u64)) {
        self.new_writing = 0;
        self.set_usage(usage);
    }

    /// Nothing of what was neither durable nor on the log has happened.
    pub(crate) fn handle_lost(&mut self, usage: (u64, u64)) {
        self.tables.clear();
        (self.new_open, self.new_flying) = (0, 0);
        self.set_usage(usage);
    }

    /// The pages of a block.
    pub(crate) fn pages_of(&self, block: u64) -> Range<u64> {
        let first = self.first_page(block);
        first..first + self.geometry.pages_per_block()
    }

    /// Where a page lies on the device.
    pub(crate) fn page_place(&self, page: u64) -> (Handle, u64) {
        (self.handle, self.geometry.page_offset(page))
    }

    /// Where a page of the table lies on the device.
    pub(crate) fn table_place(&self, table_page: u64) -> (Handle, u64) {
        (self.handle, self.geometry.table_offset(table_page))
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

    /// The bytes of a page of the table that is loaded.
    pub(crate) fn encoded_table(&self, table_page: u64) -> IoBuf {
        let mut data = IoBuf::zeroed(BLOCK_SIZE as usize);
        let table = self.tables.get(&table_page);
        table
            .expect("loaded before it is changed")
            .encode(data.bytes_mut());
        data
    }

    /// Puts a page of the table there that was changed durably and is not in its place yet. It has its space.
    pub(crate) fn put_back_table(&mut self, table_page: u64, bytes: &[u8]) {
        let page = TablePage::decode(bytes, self.entries_of(table_page), true);
        self.tables.insert(table_page, page.expect("its own bytes"));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a commit will have mapped counts from the commit on, wherever it is on its way.
    #[test]
    fn what_is_not_in_its_place_counts_until_it_is() {
        let geometry = Geometry::new(4096, 16 << 10, 300).expect("a shape");
        let handle = Handle {
            slot: flagstone_types::Slot(0),
            id: flagstone_types::DvolId(1),
            layer: None,
        };
        let mut extent = Extent::new(ExtentId(1), handle, geometry);
        let bytes = |blocks: u64| blocks * BLOCK_SIZE;
        extent.set_usage((bytes(2), bytes(10)));
        let room = |extent: &Extent| (0..20).rev().find(|&n| extent.has_room_for(n));
        assert_eq!(room(&extent), Some(8));
        extent.note_new(3);
        assert_eq!(room(&extent), Some(5), "committed");
        extent.handle_closed();
        extent.note_new(1);
        extent.set_usage((bytes(2), bytes(10)));
        assert_eq!(
            room(&extent),
            Some(4),
            "on its way, and committed behind it"
        );
        extent.handle_placed(1);
        extent.set_usage((bytes(3), bytes(10)));
        assert_eq!(room(&extent), Some(4), "one is in its place");
        extent.handle_logged();
        extent.set_usage((bytes(3), bytes(10)));
        assert_eq!(room(&extent), Some(4), "in the log");
        extent.handle_lost((bytes(3), bytes(10)));
        assert_eq!(room(&extent), Some(5), "without what was lost");
        extent.handle_writing();
        extent.note_new(2);
        extent.set_usage((bytes(3), bytes(10)));
        assert_eq!(room(&extent), Some(3), "being put in its place");
        extent.handle_written((bytes(5), bytes(10)));
        assert_eq!(room(&extent), Some(3), "and there");
    }
}
