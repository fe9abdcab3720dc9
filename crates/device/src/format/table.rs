//! Tables: arrays of fixed-size records in pages, found through one level of index blocks.
//!
//! A root points to index blocks, an index block to pages, a page holds records. Pages and index
//! blocks are written to new places by each checkpoint that changes them. Pointers carry the
//! CRC-64 of what they point to, so a table's block is checked by its parent as map nodes are.

use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash};

use super::FormatError;
use super::bytes::{Reader, Writer};
use super::geometry::Geometry;

/// Index blocks a root can point to, per table.
pub const INDEX_PTRS_MAX: usize = 120;

/// Pages an index block can point to.
pub const PAGES_PER_INDEX: usize = 250;

/// Bytes of a page or index block in front of its records.
pub const PAGE_HEADER_BYTES: usize = 64;

const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"FSTP");
const INDEX_MAGIC: u32 = u32::from_le_bytes(*b"FSTI");

const _: () = assert!(PAGE_HEADER_BYTES + PAGES_PER_INDEX * BlockPtr::BYTES <= 4096);
const _: () = assert!(128 + 2 * INDEX_PTRS_MAX * BlockPtr::BYTES + 8 <= 4096);

/// Which table a block belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableKind {
    /// Dvols and layers, by slot.
    Catalogue = 1,
    /// Segments, by number.
    Segments = 2,
}

impl TableKind {
    /// Bytes of one record.
    pub const fn record_bytes(self) -> usize {
        match self {
            TableKind::Catalogue => super::catalogue::RECORD_BYTES,
            TableKind::Segments => super::segment::RECORD_BYTES,
        }
    }

    /// Records in one page.
    pub const fn records_per_page(self) -> usize {
        (BLOCK_SIZE as usize - PAGE_HEADER_BYTES) / self.record_bytes()
    }

    /// Records a table can hold.
    pub const fn capacity(self) -> usize {
        INDEX_PTRS_MAX * PAGES_PER_INDEX * self.records_per_page()
    }
}

/// Where a table's block lies and what its bytes must hash to. The zero pointer means "nothing
/// here".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockPtr {
    /// Where.
    pub block: BlockNo,
    /// CRC-64 of its 4096 bytes.
    pub hash: ChainHash,
}

impl BlockPtr {
    /// Bytes of an encoded pointer.
    pub const BYTES: usize = 16;

    /// No block.
    pub const NONE: BlockPtr = BlockPtr {
        block: BlockNo(0),
        hash: ChainHash(0),
    };

    /// True if this points nowhere.
    pub fn is_none(&self) -> bool {
        self.block.0 == 0
    }

    /// True if this points nowhere or into the data area.
    pub fn is_within(&self, geometry: &Geometry) -> bool {
        self.is_none() || geometry.is_data(self.block)
    }

    /// Appends the pointer.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.block.0).u64(self.hash.0);
    }

    /// Reads a pointer.
    pub fn decode(reader: &mut Reader<'_>) -> Result<BlockPtr, FormatError> {
        Ok(BlockPtr {
            block: BlockNo(reader.u64()?),
            hash: ChainHash(reader.u64()?),
        })
    }
}

/// The 4096 bytes of an index block: pointers to the pages from `first_page` on.
pub fn encode_index(table: TableKind, first_page: u32, pages: &[BlockPtr]) -> Vec<u8> {
    assert!(pages.len() <= PAGES_PER_INDEX);
    let mut out = Vec::with_capacity(BLOCK_SIZE as usize);
    let mut writer = Writer::new(&mut out);
    writer
        .u32(INDEX_MAGIC)
        .u8(1)
        .u8(table as u8)
        .u16(pages.len() as u16)
        .u32(first_page);
    writer.pad_to(PAGE_HEADER_BYTES);
    for page in pages {
        page.encode(&mut writer);
    }
    writer.pad_to(BLOCK_SIZE as usize);
    out
}

/// Reads an index block. The caller has checked the bytes against the pointer that led here.
pub fn decode_index(
    block: &[u8],
    table: TableKind,
    first_page: u32,
) -> Result<Vec<BlockPtr>, FormatError> {
    let mut reader = Reader::new(block, "table index");
    let count = check_header(&mut reader, INDEX_MAGIC, table, first_page, PAGES_PER_INDEX)?;
    reader.seek(PAGE_HEADER_BYTES)?;
    (0..count).map(|_| BlockPtr::decode(&mut reader)).collect()
}

/// The 4096 bytes of page `page`, from its records' bytes (each of the table's record size).
pub fn encode_page(table: TableKind, page: u32, records: &[u8]) -> Vec<u8> {
    assert_eq!(
        records.len(),
        table.records_per_page() * table.record_bytes()
    );
    let mut out = Vec::with_capacity(BLOCK_SIZE as usize);
    let mut writer = Writer::new(&mut out);
    let count = table.records_per_page() as u16;
    writer
        .u32(PAGE_MAGIC)
        .u8(1)
        .u8(table as u8)
        .u16(count)
        .u32(page);
    writer
        .pad_to(PAGE_HEADER_BYTES)
        .bytes(records)
        .pad_to(BLOCK_SIZE as usize);
    out
}

/// The records of page `page`, one slice each.
pub fn decode_page(
    block: &[u8],
    table: TableKind,
    page: u32,
) -> Result<impl Iterator<Item = &[u8]>, FormatError> {
    let mut reader = Reader::new(block, "table page");
    let per_page = table.records_per_page();
    let count = check_header(&mut reader, PAGE_MAGIC, table, page, per_page)?;
    if count != per_page {
        return Err(FormatError::new(format!(
            "table page {page}: expected {per_page} records, found {count}"
        )));
    }
    reader.seek(PAGE_HEADER_BYTES)?;
    let records = reader.take(per_page * table.record_bytes())?;
    Ok(records.chunks_exact(table.record_bytes()))
}

fn check_header(
    reader: &mut Reader<'_>,
    magic: u32,
    table: TableKind,
    number: u32,
    count_max: usize,
) -> Result<usize, FormatError> {
    let found_magic = reader.u32()?;
    let version = reader.u8()?;
    let found_table = reader.u8()?;
    let count = usize::from(reader.u16()?);
    let found_number = reader.u32()?;
    if found_magic != magic || version != 1 || found_table != table as u8 {
        return Err(FormatError::new(format!(
            "table block: expected a version 1 block of the {table:?} table ({magic:#x}), found \
             {found_magic:#x}, version {version}, table {found_table}"
        )));
    }
    if found_number != number || count > count_max {
        return Err(FormatError::new(format!(
            "table block: expected number {number} with at most {count_max} records, found \
             number {found_number} with {count}"
        )));
    }
    Ok(count)
}
