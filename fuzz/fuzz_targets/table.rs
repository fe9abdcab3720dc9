//! Index blocks and pages of both tables, with any bytes behind a right header and without one.

#![no_main]

use flagstone_device::format::catalogue::CatalogueRecord;
use flagstone_device::format::segment::SegmentRecord;
use flagstone_device::format::table::{
    TableKind, decode_index, decode_page, encode_index, encode_page,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for table in [TableKind::Catalogue, TableKind::Segments] {
        for number in [0, 1, u32::MAX] {
            index(data, table, number);
            page(data, table, number);
        }
        // The right header, then the fuzzer's bytes.
        let mut block = encode_page(
            table,
            7,
            &vec![0; table.records_per_page() * table.record_bytes()],
        );
        let count = data.len().min(block.len() - 64);
        block[64..64 + count].copy_from_slice(&data[..count]);
        page(&block, table, 7);
        let mut block = encode_index(table, 7, &[]);
        let count = data.len().min(block.len() - 6);
        block[6..6 + count].copy_from_slice(&data[..count]);
        index(&block, table, 7);
    }
});

fn index(block: &[u8], table: TableKind, first_page: u32) {
    if let Ok(pages) = decode_index(block, table, first_page) {
        let again = encode_index(table, first_page, &pages);
        assert_eq!(
            decode_index(&again, table, first_page).expect("we wrote it"),
            pages
        );
    }
}

fn page(block: &[u8], table: TableKind, page: u32) {
    let Ok(records) = decode_page(block, table, page) else {
        return;
    };
    for record in records {
        let _ = match table {
            TableKind::Catalogue => CatalogueRecord::decode(record).map(|_| ()),
            TableKind::Segments => SegmentRecord::decode(record).map(|_| ()),
        };
    }
}
