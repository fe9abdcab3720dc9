//! A frame of the log: what one group changed.

use flagstone_types::{BLOCK_SIZE, BlockChecksum, ChainHash};

use super::delta;

const MAGIC: [u8; 8] = *b"FSPFRAME";
/// Bytes before the entries.
pub(crate) const HEAD_BYTES: usize = 32;
/// Bytes that most frames don't exceed.
const USUAL_BYTES: usize = 8 << 10;
const SEAL_AT: usize = 24;
const KIND_FREED: u8 = 1;
const KIND_TABLE: u8 = 2;
const KIND_PAGE: u8 = 3;

/// What a page became.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change<'a> {
    /// It is made out of zeros, not out of what it was.
    is_of_zeros: bool,
    /// Of all of it, when it is made.
    checksum: BlockChecksum,
    ops: &'a [u8],
}

/// One thing that changed. Blocks that are freed come first, then pages of tables, then pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry<'a> {
    /// Nothing is in this block's pages any more, but what the same frame writes.
    Freed { extent: u64, block: u64 },
    /// A page of an extent's table.
    Table {
        extent: u64,
        page: u64,
        change: Change<'a>,
    },
    /// A page.
    Page {
        extent: u64,
        page: u64,
        slot: u64,
        change: Change<'a>,
    },
}

impl Change<'_> {
    /// Whether what the page was is needed to make it.
    pub(crate) fn needs_old(&self) -> bool {
        !self.is_of_zeros
    }

    /// Makes the page. `None` if it is not what it was when this was written.
    pub(crate) fn make(&self, old: &[u8], len_bytes: usize) -> Option<Vec<u8>> {
        let old = if self.is_of_zeros { &[] } else { old };
        let page = delta::apply(old, self.ops, len_bytes)?;
        (BlockChecksum::of(&page) == self.checksum).then_some(page)
    }
}

/// A frame in the making.
pub(crate) struct FrameWriter {
    bytes: Vec<u8>,
}

impl FrameWriter {
    pub(crate) fn new() -> FrameWriter {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.resize(HEAD_BYTES, 0);
        FrameWriter { bytes }
    }

    fn name(&mut self, kind: u8, extent: u64, number: u64) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&extent.to_le_bytes());
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn freed(&mut self, extent: u64, block: u64) {
        self.name(KIND_FREED, extent, block);
    }

    pub(crate) fn table(&mut self, extent: u64, page: u64, old: Option<&[u8]>, new: &[u8]) {
        self.name(KIND_TABLE, extent, page);
        self.change(old, new);
    }

    pub(crate) fn page(
        &mut self,
        (extent, page, slot): (u64, u64, u64),
        old: Option<&[u8]>,
        new: &[u8],
    ) {
        self.name(KIND_PAGE, extent, page);
        self.bytes.extend_from_slice(&slot.to_le_bytes());
        self.change(old, new);
    }

    fn change(&mut self, old: Option<&[u8]>, new: &[u8]) {
        self.bytes.push(u8::from(old.is_none()));
        self.bytes
            .extend_from_slice(&BlockChecksum::of(new).0.to_le_bytes());
        let at = self.bytes.len();
        self.bytes.extend([0; 4]);
        delta::encode(old.unwrap_or_default(), new, &mut self.bytes);
        let len = (self.bytes.len() - at - 4) as u32;
        self.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Bytes that it takes in the log.
    pub(crate) fn padded_len(&self) -> usize {
        self.bytes.len().next_multiple_of(BLOCK_SIZE as usize)
    }

    /// The frame of this number. What it leaves of its last block is zeros.
    pub(crate) fn finish(mut self, sequence: u64) -> Vec<u8> {
        let body_len = (self.bytes.len() - HEAD_BYTES) as u64;
        self.bytes[0..8].copy_from_slice(&MAGIC);
        self.bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&body_len.to_le_bytes());
        let seal = ChainHash::of(&self.bytes).0;
        self.bytes[SEAL_AT..HEAD_BYTES].copy_from_slice(&seal.to_le_bytes());
        self.bytes
    }
}

/// What the head of a frame says: its number, and its bytes with the head.
pub(crate) fn decode_head(bytes: &[u8]) -> Option<(u64, u64)> {
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let len = long(16).checked_add(HEAD_BYTES as u64)?;
    (head[0..8] == MAGIC).then_some((long(8), len))
}

/// Reads a frame: its number and what changed. `None` if it is none, or not whole.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Vec<Entry<'_>>)> {
    let (sequence, len) = decode_head(bytes)?;
    let (frame, behind) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    let mut sealed = frame.to_vec();
    sealed[SEAL_AT..HEAD_BYTES].fill(0);
    let seal = ChainHash::of(&sealed).0.to_le_bytes();
    if frame[SEAL_AT..HEAD_BYTES] != seal || behind.iter().any(|&byte| byte != 0) {
        return None;
    }
    let mut reader = Reader {
        rest: &frame[HEAD_BYTES..],
    };
    let mut entries = Vec::new();
    while !reader.rest.is_empty() {
        entries.push(reader.entry()?);
    }
    Some((sequence, entries))
}

/// Reads entries without a head, which a fuzzer would never seal, and makes pages with them.
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = decode(bytes);
    let mut reader = Reader { rest: bytes };
    while let Some(entry) = reader.entry() {
        if let Entry::Table { change, .. } | Entry::Page { change, .. } = entry {
            let _ = change.make(&[7; 4096], 4096);
            let old: Vec<u8> = bytes.iter().copied().cycle().take(512).collect();
            if let Some(page) = delta::apply(&old, change.ops, 512) {
                assert_eq!(page.len(), 512);
            }
        }
    }
    let (old, new) = bytes.split_at(bytes.len() / 2);
    let len = old.len().min(8192);
    let mut ops = Vec::new();
    delta::encode(&old[..len], &new[..len], &mut ops);
    assert_eq!(
        delta::apply(&old[..len], &ops, len).as_deref(),
        Some(&new[..len])
    );
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn entry(&mut self) -> Option<Entry<'a>> {
        let [kind] = self.take()?;
        let (extent, number) = (self.long()?, self.long()?);
        match kind {
            KIND_FREED => Some(Entry::Freed {
                extent,
                block: number,
            }),
            KIND_TABLE => Some(Entry::Table {
                extent,
                page: number,
                change: self.change()?,
            }),
            KIND_PAGE => Some(Entry::Page {
                extent,
                page: number,
                slot: self.long()?,
                change: self.change()?,
            }),
            _ => None,
        }
    }

    fn change(&mut self) -> Option<Change<'a>> {
        let [flags] = self.take()?;
        let checksum = BlockChecksum(u32::from_le_bytes(self.take()?));
        let len = u32::from_le_bytes(self.take()?) as usize;
        let (ops, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        (flags <= 1).then_some(Change {
            is_of_zeros: flags == 1,
            checksum,
            ops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut writer = FrameWriter::new();
        writer.freed(7, 3);
        writer.table(7, 0, None, &[1; 4096]);
        writer.page((7, 12, 99), Some(&[5; 4096]), &[5; 4096]);
        writer.page((8, 13, 100), None, &[6; 8192]);
        assert_eq!(writer.padded_len(), 4 * 4096);
        writer.finish(41)
    }

    #[test]
    fn a_frame_is_read_back() {
        let bytes = frame();
        assert_eq!(&bytes[..16], b"FSPFRAME\x29\0\0\0\0\0\0\0");
        let (sequence, entries) = decode(&bytes).expect("is a frame");
        assert_eq!((sequence, entries.len()), (41, 4));
        assert_eq!(
            entries[0],
            Entry::Freed {
                extent: 7,
                block: 3
            }
        );
        let Entry::Table {
            extent: 7,
            page: 0,
            change,
        } = entries[1]
        else {
            panic!("{:?}", entries[1]);
        };
        assert!(!change.needs_old());
        assert_eq!(change.make(&[9; 4096], 4096), Some(vec![1; 4096]));
        let Entry::Page {
            extent: 7,
            page: 12,
            slot: 99,
            change,
        } = entries[2]
        else {
            panic!("{:?}", entries[2]);
        };
        assert!(change.needs_old());
        assert_eq!(change.make(&[5; 4096], 4096), Some(vec![5; 4096]));
        assert_eq!(change.make(&[4; 4096], 4096), None, "of another page");
        let Entry::Page {
            extent: 8,
            page: 13,
            slot: 100,
            change,
        } = entries[3]
        else {
            panic!("{:?}", entries[3]);
        };
        assert_eq!(change.make(&[], 8192), Some(vec![6; 8192]));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = frame();
        for at in (0..bytes.len()).step_by(3).chain(0..200) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert_eq!(decode(&flipped), None, "byte {at}");
        }
        assert_eq!(decode(&bytes[..4096]), None, "the beginning of one");
        assert_eq!(decode(&[]), None);
        assert_eq!(decode_head(&bytes[..31]), None);
    }
}
