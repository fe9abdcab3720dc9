//! The table of an extent: whose each block is.

use flagstone_types::BLOCK_SIZE;

use crate::pointer::{Generation, OwnerId, PagePtr};

/// Bytes of an entry: owner u64, generation u32, flags u32.
const ENTRY_BYTES: usize = 16;
/// Entries of one page of a table.
pub(crate) const ENTRIES_PER_TABLE_PAGE: u64 = BLOCK_SIZE / ENTRY_BYTES as u64;

const READ_ONLY: u32 = 1;

/// What the table says of a block. Whether it is allocated follows from the generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockEntry {
    pub(crate) owner: u64,
    pub(crate) generation: Generation,
    pub(crate) read_only: bool,
}

impl BlockEntry {
    /// Whether a pointer may be used. [fss 3: generation, customer and read-only bit match exactly]
    pub(crate) fn admits(&self, ptr: &PagePtr) -> bool {
        self.generation.is_allocated()
            && self.generation == ptr.generation
            && self.owner == ptr.owner.0
            && self.read_only == ptr.read_only
    }

    /// What a block becomes when it is given to somebody.
    pub(crate) fn allocated_to(owner: OwnerId, generation: Generation) -> BlockEntry {
        BlockEntry {
            owner: owner.0,
            generation,
            read_only: false,
        }
    }

    /// What a block becomes when it is given back.
    pub(crate) fn freed(generation: Generation) -> BlockEntry {
        BlockEntry {
            owner: 0,
            generation,
            read_only: false,
        }
    }

    fn encode(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&self.owner.to_le_bytes());
        out[8..12].copy_from_slice(&self.generation.0.to_le_bytes());
        let flags = if self.read_only { READ_ONLY } else { 0 };
        out[12..16].copy_from_slice(&flags.to_le_bytes());
    }

    /// `None` if it is none of this version: a free block has neither owner nor flags.
    fn decode(bytes: &[u8]) -> Option<BlockEntry> {
        let entry: &[u8; ENTRY_BYTES] = bytes.first_chunk()?;
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let flags = short(12);
        let found = BlockEntry {
            owner: u64::from_le_bytes(std::array::from_fn(|i| entry[i])),
            generation: Generation(short(8)),
            read_only: flags & READ_ONLY != 0,
        };
        let is_free = !found.generation.is_allocated();
        let fits = flags & !READ_ONLY == 0 && !(is_free && (found.owner != 0 || found.read_only));
        fits.then_some(found)
    }
}

/// One page of a table, as it is after everything that has been committed.
pub(crate) struct TablePage {
    entries: Vec<BlockEntry>,
    /// Entries of free blocks of the extent.
    pub(crate) free_count: u64,
    /// Whether it lies on the device, so that writing it takes no further space.
    pub(crate) is_mapped: bool,
}

impl TablePage {
    /// A page of which the first `count` entries are for blocks of the extent. `None` if the bytes are no
    /// page of a table.
    pub(crate) fn decode(bytes: &[u8], count: u64, is_mapped: bool) -> Option<TablePage> {
        let entries: Option<Vec<BlockEntry>> = bytes
            .chunks_exact(ENTRY_BYTES)
            .map(BlockEntry::decode)
            .collect();
        let entries = entries?;
        if entries.len() as u64 != ENTRIES_PER_TABLE_PAGE {
            return None;
        }
        let (ours, behind) = entries.split_at(count.min(ENTRIES_PER_TABLE_PAGE) as usize);
        if behind.iter().any(|entry| *entry != BlockEntry::default()) {
            return None;
        }
        let free_count = ours.iter().filter(|e| !e.generation.is_allocated()).count() as u64;
        Some(TablePage {
            entries,
            free_count,
            is_mapped,
        })
    }

    /// Its bytes, [`BLOCK_SIZE`] of them.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        for (entry, place) in self.entries.iter().zip(out.chunks_exact_mut(ENTRY_BYTES)) {
            entry.encode(place);
        }
    }

    pub(crate) fn get(&self, index: usize) -> BlockEntry {
        self.entries[index]
    }

    pub(crate) fn set(&mut self, index: usize, entry: BlockEntry) {
        let was = self.entries[index].generation.is_allocated();
        let is = entry.generation.is_allocated();
        self.free_count = self.free_count + u64::from(was && !is) - u64::from(!was && is);
        self.entries[index] = entry;
    }

    /// Free entries from `from` on.
    pub(crate) fn free_from(&self, from: usize, count: usize) -> impl Iterator<Item = usize> + '_ {
        let range = from.min(count)..count;
        range.filter(|&index| !self.entries[index].generation.is_allocated())
    }
}

/// Where a block's entry is: page of the table, position in it.
pub(crate) fn place_of(block: u64) -> (u64, usize) {
    let (page, index) = (
        block / ENTRIES_PER_TABLE_PAGE,
        block % ENTRIES_PER_TABLE_PAGE,
    );
    (page, index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::ExtentId;

    #[test]
    fn entries_admit_only_what_fits_exactly() {
        let entry = BlockEntry::allocated_to(OwnerId(7), Generation(1));
        let ptr = PagePtr {
            extent: ExtentId(1),
            page: 0,
            owner: OwnerId(7),
            generation: Generation(1),
            read_only: false,
        };
        assert!(entry.admits(&ptr));
        assert!(!entry.admits(&PagePtr {
            owner: OwnerId(8),
            ..ptr
        }));
        assert!(!entry.admits(&PagePtr {
            generation: Generation(3),
            ..ptr
        }));
        assert!(!entry.admits(&PagePtr {
            read_only: true,
            ..ptr
        }));
        let freed = BlockEntry::freed(Generation(2));
        assert!(!freed.admits(&PagePtr {
            generation: Generation(2),
            owner: OwnerId(0),
            ..ptr
        }));
    }

    #[test]
    fn pages_are_read_back_and_others_refused() {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        let mut page = TablePage::decode(&bytes, 200, false).expect("zeros are an empty table");
        assert_eq!(page.free_count, 200);
        page.set(3, BlockEntry::allocated_to(OwnerId(9), Generation(1)));
        page.set(
            4,
            BlockEntry {
                read_only: true,
                ..page.get(3)
            },
        );
        assert_eq!(page.free_count, 198);
        assert_eq!(page.free_from(2, 200).next(), Some(2));
        assert_eq!(page.free_from(3, 200).next(), Some(5));
        assert_eq!(page.free_from(200, 200).next(), None);
        page.encode(&mut bytes);
        assert_eq!(
            bytes[3 * 16..4 * 16],
            [9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[4 * 16 + 12], 1);
        let again = TablePage::decode(&bytes, 200, true).expect("its own bytes");
        assert_eq!((again.get(4), again.free_count), (page.get(4), 198));
        assert!(
            TablePage::decode(&bytes, 4, true).is_none(),
            "an entry behind the last block"
        );
        assert!(TablePage::decode(&bytes[..4080], 200, true).is_none());
        let mut flags = bytes.clone();
        flags[12] = 2;
        assert!(TablePage::decode(&flags, 200, true).is_none());
        let mut owned_and_free = bytes.clone();
        owned_and_free[0] = 1;
        assert!(TablePage::decode(&owned_and_free, 200, true).is_none());
    }

    #[test]
    fn setting_twice_counts_once() {
        let mut page = TablePage::decode(&[0; 4096], 256, false).expect("zeros");
        let taken = BlockEntry::allocated_to(OwnerId(9), Generation(1));
        page.set(0, taken);
        page.set(0, taken);
        assert_eq!(page.free_count, 255);
        page.set(0, BlockEntry::freed(Generation(2)));
        page.set(0, BlockEntry::freed(Generation(2)));
        assert_eq!(page.free_count, 256);
    }
}
