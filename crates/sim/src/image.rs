//! A disk's content: sparse, and copied on write, so that thousands of images of one disk cost
//! little more than what differs between them.
//!
//! Pages (4 KiB) hang in chunks of 1 MiB; both are shared between images until one of them writes.
//! `Arc` and not `Rc`, so that images made on one thread can be recovered on several.
//!
//! Invariant: `stored_pages` counts the pages present; an absent page reads as the image's fill.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use flagstone_device::offline::{BlockBytes, ReadBlocks};
use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash};

use crate::rng::{Rng, split_mix};

/// The unit that a write after power loss is whole or absent in, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// The unit of storage and sharing, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Sectors in a page: the bits of a sector mask.
pub(crate) const PAGE_SECTORS: u64 = PAGE_BYTES / SECTOR_BYTES;

const _: () = assert!(PAGE_SECTORS == 8, "a mask of a page's sectors is a u8");

/// Pages in a chunk: 1 MiB.
const CHUNK_PAGES: u64 = 256;

type Page = [u8; PAGE_BYTES as usize];

/// What was never written reads as this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Zeros, as in a sparse file.
    Zeros,
    /// Noise of this seed, as on a used device. Catches code that trusts unwritten space.
    Noise(u64),
}

impl Fill {
    /// Writes what an absent page holds into `page`.
    fn fill_page(self, page_no: u64, page: &mut Page) {
        match self {
            Fill::Zeros => page.fill(0),
            Fill::Noise(seed) => Rng::stream(seed, page_no).fill(page),
        }
    }
}

#[derive(Clone)]
struct Chunk {
    pages: [Option<Arc<Page>>; CHUNK_PAGES as usize],
    stored: u64,
}

/// Sparse content of one disk. Cloning is cheap. Knows no size: whoever owns the image bounds
/// offsets.
#[derive(Clone)]
pub struct DiskImage {
    fill: Fill,
    chunks: BTreeMap<u64, Arc<Chunk>>,
    stored_pages: u64,
}

/// An image as the offline tools want it: so many blocks.
pub struct ImageBlocks<'a> {
    image: &'a DiskImage,
    count: u64,
}

impl ReadBlocks for ImageBlocks<'_> {
    fn block_count(&self) -> u64 {
        self.count
    }

    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        self.image.read(block.offset_bytes(), into);
        Ok(())
    }
}

impl DiskImage {
    /// What the offline tools see of a disk of this size that holds the image.
    pub fn blocks(&self, size_bytes: u64) -> ImageBlocks<'_> {
        let count = size_bytes / BLOCK_SIZE;
        ImageBlocks { image: self, count }
    }

    /// An image on which nothing was written yet.
    pub fn new(fill: Fill) -> DiskImage {
        DiskImage {
            fill,
            chunks: BTreeMap::new(),
            stored_pages: 0,
        }
    }

    /// What absent pages read as.
    pub fn fill(&self) -> Fill {
        self.fill
    }

    /// Pages that are stored.
    pub fn stored_pages(&self) -> u64 {
        self.stored_pages
    }

    /// True if the page is stored.
    pub fn is_stored(&self, page_no: u64) -> bool {
        self.page(page_no).is_some()
    }

    /// The numbers of the stored pages from `first_page` on and below `end_page`, in order.
    pub fn stored_in(&self, first_page: u64, end_page: u64) -> impl Iterator<Item = u64> + '_ {
        let end_chunk = end_page.div_ceil(CHUNK_PAGES);
        let first_chunk = (first_page / CHUNK_PAGES).min(end_chunk);
        self.chunks
            .range(first_chunk..end_chunk)
            .flat_map(|(chunk_no, chunk)| {
                let base = chunk_no * CHUNK_PAGES;
                let stored = chunk.pages.iter().enumerate();
                stored.filter_map(move |(index, page)| page.as_ref().map(|_| base + index as u64))
            })
            .filter(move |page_no| (first_page..end_page).contains(page_no))
    }

    /// A stored page's number, chosen at random.
    pub fn random_stored_page(&self, rng: &mut Rng) -> Option<u64> {
        if self.stored_pages == 0 {
            return None;
        }
        let mut skip = rng.below(self.stored_pages);
        for (chunk_no, chunk) in &self.chunks {
            if skip >= chunk.stored {
                skip -= chunk.stored;
                continue;
            }
            let base = chunk_no * CHUNK_PAGES;
            return self.stored_in(base, base + CHUNK_PAGES).nth(skip as usize);
        }
        None
    }

    fn page(&self, page_no: u64) -> Option<&Arc<Page>> {
        let chunk = self.chunks.get(&(page_no / CHUNK_PAGES))?;
        chunk.pages[(page_no % CHUNK_PAGES) as usize].as_ref()
    }

    fn page_mut(&mut self, page_no: u64) -> &mut Page {
        let chunk = self.chunks.entry(page_no / CHUNK_PAGES).or_insert_with(|| {
            Arc::new(Chunk {
                pages: std::array::from_fn(|_| None),
                stored: 0,
            })
        });
        let chunk = Arc::make_mut(chunk);
        let slot = &mut chunk.pages[(page_no % CHUNK_PAGES) as usize];
        if slot.is_none() {
            chunk.stored += 1;
            self.stored_pages += 1;
        }
        let page = slot.get_or_insert_with(|| {
            let mut page = Arc::new([0; PAGE_BYTES as usize]);
            self.fill.fill_page(page_no, Arc::make_mut(&mut page));
            page
        });
        Arc::make_mut(page)
    }

    /// Forgets a page: it reads as the fill again.
    pub fn forget_page(&mut self, page_no: u64) {
        if !self.is_stored(page_no) {
            return;
        }
        let chunk_no = page_no / CHUNK_PAGES;
        let Some(chunk) = self.chunks.get_mut(&chunk_no) else {
            return;
        };
        let chunk = Arc::make_mut(chunk);
        chunk.pages[(page_no % CHUNK_PAGES) as usize] = None;
        chunk.stored -= 1;
        self.stored_pages -= 1;
        if chunk.stored == 0 {
            self.chunks.remove(&chunk_no);
        }
    }

    /// Copies the bytes at `offset_bytes` into `out`.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        for_each_page(offset_bytes, out.len(), |page_no, in_page, range| {
            let part = &mut out[range];
            match (self.page(page_no), self.fill) {
                (Some(page), _) => part.copy_from_slice(&page[in_page..in_page + part.len()]),
                (None, Fill::Zeros) => part.fill(0),
                (None, Fill::Noise(_)) => {
                    let mut page = [0; PAGE_BYTES as usize];
                    self.fill.fill_page(page_no, &mut page);
                    part.copy_from_slice(&page[in_page..in_page + part.len()]);
                }
            }
        });
    }

    /// Stores `bytes` at `offset_bytes`.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for_each_page(offset_bytes, bytes.len(), |page_no, in_page, range| {
            let part = &bytes[range];
            self.page_mut(page_no)[in_page..in_page + part.len()].copy_from_slice(part);
        });
    }

    /// Inverts one bit (0 to 7) of the byte at `offset_bytes`.
    pub fn flip_bit(&mut self, offset_bytes: u64, bit: u8) {
        let page = self.page_mut(offset_bytes / PAGE_BYTES);
        page[(offset_bytes % PAGE_BYTES) as usize] ^= 1 << (bit % 8);
    }

    /// A hash of the content. Stored pages that equal the fill count as absent, so equal content
    /// has equal hashes however it came about (among images with the same fill).
    pub fn content_hash(&self) -> u64 {
        let mut hash = 0;
        let mut fill = [0; PAGE_BYTES as usize];
        for page_no in self.stored_in(0, u64::MAX) {
            let Some(page) = self.page(page_no) else {
                continue;
            };
            self.fill.fill_page(page_no, &mut fill);
            if **page != fill {
                let page_hash = ChainHash::of(&page[..]).0;
                hash = split_mix(split_mix(hash ^ page_no) ^ page_hash);
            }
        }
        hash
    }

    /// The numbers of the pages whose content differs, in order. Both images have the same fill.
    pub fn differing_pages(&self, other: &DiskImage) -> Vec<u64> {
        assert!(self.fill == other.fill, "images with different fills");
        let mut pages: Vec<u64> = self.stored_in(0, u64::MAX).collect();
        pages.extend(other.stored_in(0, u64::MAX));
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|&page_no| match (self.page(page_no), other.page(page_no)) {
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => false,
            _ => {
                let (mut mine, mut theirs) = ([0; PAGE_BYTES as usize], [0; PAGE_BYTES as usize]);
                self.read(page_no * PAGE_BYTES, &mut mine);
                other.read(page_no * PAGE_BYTES, &mut theirs);
                mine != theirs
            }
        });
        pages
    }

    /// Reads an image from a file's bytes, to the end. Pages of zeros are not stored.
    pub fn load(source: &mut impl Read) -> io::Result<DiskImage> {
        let mut image = DiskImage::new(Fill::Zeros);
        let mut offset_bytes = 0;
        let mut piece = Vec::with_capacity((CHUNK_PAGES * PAGE_BYTES) as usize);
        loop {
            piece.clear();
            let want_bytes = CHUNK_PAGES * PAGE_BYTES;
            let got_bytes = source.by_ref().take(want_bytes).read_to_end(&mut piece)?;
            for page in piece.chunks(PAGE_BYTES as usize) {
                if page.iter().any(|&byte| byte != 0) {
                    image.write(offset_bytes, page);
                }
                offset_bytes += page.len() as u64;
            }
            if (got_bytes as u64) < want_bytes {
                return Ok(image);
            }
        }
    }

    /// Writes the stored pages into a sparse file (its holes must read as this image's fill).
    pub fn store(&self, target: &mut (impl Write + Seek)) -> io::Result<()> {
        for page_no in self.stored_in(0, u64::MAX) {
            if let Some(page) = self.page(page_no) {
                target.seek(SeekFrom::Start(page_no * PAGE_BYTES))?;
                target.write_all(&page[..])?;
            }
        }
        Ok(())
    }
}

/// Calls `visit` with each page number, the position in the page, and the range of the buffer.
fn for_each_page(
    offset_bytes: u64,
    len_bytes: usize,
    mut visit: impl FnMut(u64, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < len_bytes {
        let at = offset_bytes + done as u64;
        let in_page = (at % PAGE_BYTES) as usize;
        let part = (PAGE_BYTES as usize - in_page).min(len_bytes - done);
        visit(at / PAGE_BYTES, in_page, done..done + part);
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_at(image: &DiskImage, offset_bytes: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        image.read(offset_bytes, &mut out);
        out
    }

    #[test]
    fn reads_back_across_pages_and_chunks() {
        let mut image = DiskImage::new(Fill::Zeros);
        let data: Vec<u8> = (0..3 << 20).map(|i| (i % 251) as u8).collect();
        let far = (200u64 << 30) + 700;
        image.write(far, &data);
        assert_eq!(bytes_at(&image, far, data.len()), data);
        assert_eq!(bytes_at(&image, far - 3, 4), [0, 0, 0, data[0]]);
        assert_eq!(image.stored_pages(), 769);
        assert_eq!(image.stored_in(0, u64::MAX).count(), 769);
        let first = far / PAGE_BYTES;
        let some: Vec<u64> = image.stored_in(first + 2, first + 5).collect();
        assert_eq!(some, [first + 2, first + 3, first + 4]);
        assert_eq!(image.stored_in(5, 2).count(), 0);
    }

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut image = DiskImage::new(Fill::Zeros);
        image.write(0, &[1; 8192]);
        let before = image.clone();
        let hash_before = image.content_hash();
        image.write(4096, &[2; 512]);
        image.flip_bit(0, 3);
        assert_eq!(bytes_at(&before, 0, 8192), [1; 8192]);
        assert_eq!(bytes_at(&image, 0, 1), [9]);
        assert_eq!(image.differing_pages(&before), [0, 1]);
        assert_ne!(image.content_hash(), hash_before);
        assert_eq!(before.content_hash(), hash_before);
    }

    #[test]
    fn forgotten_pages_read_as_the_fill() {
        let mut image = DiskImage::new(Fill::Noise(4));
        let noise = bytes_at(&image, 4096, 4096);
        assert!(noise.iter().any(|&b| b != 0));
        image.write(4096 + 512, &[7; 512]);
        assert_eq!(bytes_at(&image, 4096, 512), noise[..512]);
        image.forget_page(1);
        image.forget_page(77);
        assert_eq!(bytes_at(&image, 4096, 4096), noise);
        assert_eq!(image.stored_pages(), 0);
        assert_eq!(image.random_stored_page(&mut Rng::new(1)), None);
    }

    #[test]
    fn stored_pages_are_chosen_at_random() {
        let mut image = DiskImage::new(Fill::Zeros);
        for page_no in [3u64, 256, 300, 9_000_000] {
            image.write(page_no * PAGE_BYTES, &[1]);
        }
        let mut rng = Rng::new(2);
        let mut seen: Vec<u64> = (0..100)
            .filter_map(|_| image.random_stored_page(&mut rng))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [3, 256, 300, 9_000_000]);
    }

    #[test]
    fn equal_content_hashes_equal() {
        let mut one = DiskImage::new(Fill::Zeros);
        let two = one.clone();
        one.write(1 << 30, &[0; 4096]);
        assert_eq!(one.content_hash(), two.content_hash());
        assert!(one.differing_pages(&two).is_empty());
    }

    #[test]
    fn files_round_trip() {
        let mut image = DiskImage::new(Fill::Zeros);
        image.write(5000, &[3; 10_000]);
        image.write(2 << 20, &[4; 512]);
        let mut file = io::Cursor::new(Vec::new());
        image.store(&mut file).unwrap();
        let loaded = DiskImage::load(&mut io::Cursor::new(file.into_inner())).unwrap();
        assert_eq!(loaded.content_hash(), image.content_hash());
        assert_eq!(loaded.stored_pages(), 4);
    }
}
