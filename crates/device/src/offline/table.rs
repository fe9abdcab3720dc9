//! Walking a table from the root: index blocks, pages, records.

use flagstone_types::{BlockNo, ChainHash};

use super::{BlockBytes, Fault, Image, ReadBlocks};
use crate::format::FormatError;
use crate::format::catalogue::CatalogueRecord;
use crate::format::segment::SegmentRecord;
use crate::format::table::{BlockPtr, PAGES_PER_INDEX, TableKind, decode_index, decode_page};

/// What a walk over a table comes across.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TableItem<T> {
    /// An index block.
    Index {
        /// Its position in the root.
        number: u32,
        /// Where it lies.
        block: BlockNo,
    },
    /// A page. Its records follow.
    Page {
        /// Its number.
        number: u32,
        /// Where it lies.
        block: BlockNo,
    },
    /// A record that isn't empty.
    Record {
        /// Its number in the table: a slot, or a segment.
        number: u32,
        /// The page it is in.
        block: BlockNo,
        /// What it says.
        record: T,
    },
    /// Something that can't be read: all records below it are lost.
    Fault(Fault),
}

/// Walks the catalogue whose index blocks a root names.
pub fn walk_catalogue<R: ReadBlocks>(
    image: &Image<R>,
    index: &[BlockPtr],
    visit: impl FnMut(TableItem<CatalogueRecord>),
) {
    walk(
        image,
        TableKind::Catalogue,
        index,
        CatalogueRecord::decode,
        visit,
    );
}

/// Walks the segment table whose index blocks a root names.
pub fn walk_segments<R: ReadBlocks>(
    image: &Image<R>,
    index: &[BlockPtr],
    visit: impl FnMut(TableItem<SegmentRecord>),
) {
    walk(
        image,
        TableKind::Segments,
        index,
        SegmentRecord::decode,
        visit,
    );
}

fn walk<T, R: ReadBlocks>(
    image: &Image<R>,
    table: TableKind,
    index: &[BlockPtr],
    decode: impl Fn(&[u8]) -> Result<Option<T>, FormatError>,
    mut visit: impl FnMut(TableItem<T>),
) {
    for (number, ptr) in index.iter().enumerate().filter(|(_, ptr)| !ptr.is_none()) {
        // At most 120 index blocks of 250 pages, so the numbers fit.
        let first_page = (number * PAGES_PER_INDEX) as u32;
        let pages = read_checked(image, ptr).and_then(|bytes| {
            decode_index(&bytes[..], table, first_page).map_err(|e| Fault::format(ptr.block, e))
        });
        let pages = match pages {
            Ok(pages) => pages,
            Err(fault) => {
                visit(TableItem::Fault(fault));
                continue;
            }
        };
        visit(TableItem::Index {
            number: number as u32,
            block: ptr.block,
        });
        for (page, ptr) in (first_page..).zip(&pages).filter(|(_, ptr)| !ptr.is_none()) {
            walk_page(image, table, page, ptr, &decode, &mut visit);
        }
    }
}

fn walk_page<T, R: ReadBlocks>(
    image: &Image<R>,
    table: TableKind,
    page: u32,
    ptr: &BlockPtr,
    decode: &impl Fn(&[u8]) -> Result<Option<T>, FormatError>,
    visit: &mut impl FnMut(TableItem<T>),
) {
    let bytes = match read_checked(image, ptr) {
        Ok(bytes) => bytes,
        Err(fault) => return visit(TableItem::Fault(fault)),
    };
    let records = match decode_page(&bytes[..], table, page) {
        Ok(records) => records,
        Err(error) => return visit(TableItem::Fault(Fault::format(ptr.block, error))),
    };
    visit(TableItem::Page {
        number: page,
        block: ptr.block,
    });
    let first = page * table.records_per_page() as u32;
    for (number, bytes) in (first..).zip(records) {
        match decode(bytes) {
            Ok(None) => {}
            Ok(Some(record)) => visit(TableItem::Record {
                number,
                block: ptr.block,
                record,
            }),
            Err(error) => visit(TableItem::Fault(Fault::format(ptr.block, error))),
        }
    }
}

/// Reads a table's block and checks it against the pointer that led to it.
fn read_checked<R: ReadBlocks>(image: &Image<R>, ptr: &BlockPtr) -> Result<Box<BlockBytes>, Fault> {
    if !ptr.is_within(&image.geometry) {
        return Err(Fault::new(
            ptr.block,
            "a table's pointer leads out of the data area",
        ));
    }
    let bytes = image.read(ptr.block)?;
    let found = ChainHash::of(&bytes[..]);
    if found != ptr.hash {
        return Err(Fault::new(
            ptr.block,
            format!(
                "a table's block should have the CRC-64 {:?} but has {found:?}",
                ptr.hash
            ),
        ));
    }
    Ok(bytes)
}
