//! Following a journal's chain from its root through the ring, as recovery does, and finding what
//! lies behind the chain's end that should not be there.

use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash};

use super::{Fault, Image, ReadBlocks, flip};
use crate::format::group::{
    self, GROUP_MAX_BLOCKS, GroupHeader, HEADER_BYTES, check_hash, decode_header,
};
use crate::format::record::{Record, decode_units};
use crate::format::root::Root;

/// Where a group's own hash is: the last field of its header.
const HASH_OFFSET: usize = HEADER_BYTES - 8;

/// Where in a header the fields are that follow from the group before: magic and version; device,
/// incarnation and journal; sequence number and the hash of the group before.
const KNOWN_FIELDS: [(usize, usize); 3] = [(0, 6), (8, 22), (24, 40)];

/// A group in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupPlace {
    /// What it says of itself.
    pub header: GroupHeader,
    /// Ring index at which it begins.
    pub ring_index: u32,
    /// Its first block.
    pub block: BlockNo,
    /// Its hash.
    pub hash: ChainHash,
}

/// What a ring holds, seen from a root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Which journal.
    pub journal: u16,
    /// The chain, oldest first.
    pub groups: Vec<GroupPlace>,
    /// Ring index at which the next group would begin.
    pub end_index: u32,
    /// Number the next group would have.
    pub end_seq: u64,
    /// Everything up to this group is on stable media with its data.
    pub watermark: u64,
    /// Where the chain ends there is a group that would continue it if one bit were different; and
    /// whether that can't be a torn write.
    pub flipped: Option<(GroupPlace, bool)>,
    /// Valid groups outside of the chain that prove that something is missing from it.
    pub strays: Vec<GroupPlace>,
    /// Ring blocks the medium refused to give. Part of the chain may be there.
    pub unreadable: Vec<Fault>,
}

impl Ring {
    /// Follows the chain behind `root` and looks through the rest of the ring.
    pub fn scan<R: ReadBlocks>(image: &Image<R>, root: &Root) -> Ring {
        let mut ring = Ring {
            journal: root.journal,
            groups: Vec::new(),
            end_index: root.ring_index,
            end_seq: root.next_seq,
            watermark: root.next_seq - 1,
            flipped: None,
            strays: Vec::new(),
            unreadable: Vec::new(),
        };
        let expect = Expect::of(image, root);
        let mut prev_hash = root.prev_hash;
        let mut left_blocks = image.geometry.ring_blocks;
        loop {
            let at = ring.end_index;
            let found = read_group(image, &expect, at);
            let continues = |place: &GroupPlace| {
                place.header.seq == ring.end_seq
                    && place.header.incarnation == root.incarnation
                    && place.header.prev_hash == prev_hash
                    && u32::from(place.header.block_count) <= left_blocks
            };
            match found {
                GroupFound::Valid(place) if continues(&place) => {
                    prev_hash = place.hash;
                    let blocks = u32::from(place.header.block_count);
                    left_blocks -= blocks;
                    // A group can't know of itself that it is durable.
                    let watermark = place.header.watermark.min(place.header.seq - 1);
                    ring.watermark = ring.watermark.max(watermark);
                    ring.end_index = (at + blocks) % image.geometry.ring_blocks;
                    ring.end_seq += 1;
                    ring.groups.push(place);
                    if left_blocks == 0 {
                        break;
                    }
                }
                _ => {
                    ring.flipped = mended_group(image, &expect, at, ring.end_seq, prev_hash)
                        .filter(|(place, _)| continues(place));
                    break;
                }
            }
        }
        ring.find_strays(image, &expect);
        ring
    }

    /// True if there is anything to replay.
    pub fn has_records(&self) -> bool {
        self.groups.iter().any(|group| group.header.body_bytes > 0)
    }

    /// Looks at every ring block outside of the chain. A valid group of the root's incarnation
    /// that comes later than the chain's end was written behind groups that are missing now; a
    /// group of a later incarnation was written behind a root that is missing now.
    fn find_strays<R: ReadBlocks>(&mut self, image: &Image<R>, expect: &Expect) {
        let in_chain: u32 = self
            .groups
            .iter()
            .map(|g| u32::from(g.header.block_count))
            .sum();
        let ring_blocks = image.geometry.ring_blocks;
        let mut step = in_chain;
        while step < ring_blocks {
            let at = (self.end_index + step - in_chain) % ring_blocks;
            step += 1;
            match read_group(image, expect, at) {
                GroupFound::Valid(place) => {
                    let header = &place.header;
                    let later = header.incarnation > expect.incarnation
                        || (header.incarnation == expect.incarnation && header.seq >= self.end_seq);
                    if later {
                        self.strays.push(place);
                    }
                }
                GroupFound::Unreadable(fault) => self.unreadable.push(fault),
                GroupFound::None => {}
            }
        }
    }

    /// What the strays prove, in words; `None` if they prove nothing. Behind the chain's end there
    /// may well be groups that were written while an earlier one was not: nothing in them was
    /// acknowledged. But a watermark among them that covers a missing group says that it was
    /// durable once.
    pub fn missing(&self, incarnation: u32) -> Option<String> {
        if let Some(stray) = self.strays.iter().max_by_key(|s| s.header.incarnation)
            && stray.header.incarnation > incarnation
        {
            return Some(format!(
                "the ring holds group {} of incarnation {} ({}), but the newest root that can be \
                 read is of incarnation {incarnation}: a later root is lost, and all that was \
                 written since",
                stray.header.seq, stray.header.incarnation, stray.block
            ));
        }
        let watermark = self.strays.iter().map(|s| s.header.watermark).max()?;
        let known = watermark.max(self.watermark);
        (known >= self.end_seq).then(|| {
            format!(
                "the chain ends before group {}, but a later group says that everything up to \
                 group {known} was on stable media: acknowledged changes are lost",
                self.end_seq
            )
        })
    }
}

/// The units of a group of the chain.
pub fn read_units<R: ReadBlocks>(
    image: &Image<R>,
    journal: u16,
    place: &GroupPlace,
) -> Result<Vec<Vec<Record>>, Fault> {
    if place.header.pad {
        return Ok(Vec::new());
    }
    let bytes = read_bytes(image, journal, place.ring_index, &place.header)?;
    let end = (HEADER_BYTES + place.header.body_bytes as usize).min(bytes.len());
    decode_units(&bytes[HEADER_BYTES..end]).map_err(|error| Fault::format(place.block, error))
}

/// What makes a group one of this journal.
struct Expect {
    device_id_low: u64,
    journal: u16,
    incarnation: u32,
}

impl Expect {
    fn of<R>(image: &Image<R>, root: &Root) -> Expect {
        Expect {
            device_id_low: group::device_id_low(image.superblock.device_id),
            journal: root.journal,
            incarnation: root.incarnation,
        }
    }

    fn fits(&self, header: &GroupHeader) -> bool {
        header.device_id_low == self.device_id_low && header.journal == self.journal
    }
}

enum GroupFound {
    Valid(GroupPlace),
    None,
    Unreadable(Fault),
}

/// Reads what is at a ring index as a group of this journal.
fn read_group<R: ReadBlocks>(image: &Image<R>, expect: &Expect, ring_index: u32) -> GroupFound {
    let block = image.geometry.ring_block(expect.journal, ring_index);
    let first = match image.read(block) {
        Ok(first) => first,
        Err(fault) => return GroupFound::Unreadable(fault),
    };
    let header = decode_header(&first[..])
        .ok()
        .filter(|header| expect.fits(header));
    if let Some(header) = header
        && let Ok(bytes) = read_bytes(image, expect.journal, ring_index, &header)
        && let Some(hash) = check_hash(&bytes)
    {
        return GroupFound::Valid(GroupPlace {
            header,
            ring_index,
            block,
            hash,
        });
    }
    GroupFound::None
}

/// The group of this journal and incarnation that lies at a ring index but for one flipped bit, and
/// whether a torn write is ruled out.
fn mended_group<R: ReadBlocks>(
    image: &Image<R>,
    expect: &Expect,
    ring_index: u32,
    seq: u64,
    prev_hash: ChainHash,
) -> Option<(GroupPlace, bool)> {
    let first = image
        .read(image.geometry.ring_block(expect.journal, ring_index))
        .ok()?;
    if !is_almost(&first[..], expect, seq, prev_hash) {
        return None;
    }
    // Which bit it is depends on how long the group is, and its length may be what is flipped.
    let longest = GROUP_MAX_BLOCKS.min(image.geometry.ring_blocks - ring_index);
    let all = read_run(image, expect.journal, ring_index, longest).ok()?;
    let block = image.geometry.ring_block(expect.journal, ring_index);
    (1..=longest).find_map(|blocks| {
        let bytes = &all[..blocks as usize * BLOCK_SIZE as usize];
        let mended = flip::mend_group(bytes, HASH_OFFSET)?;
        let header = decode_header(&mended).ok()?;
        let is_ours = expect.fits(&header)
            && header.incarnation == expect.incarnation
            && stored_blocks(&header) == blocks;
        let hash = check_hash(&mended).filter(|_| is_ours)?;
        let is_certain = flip::is_certain(bytes, &mended);
        Some((
            GroupPlace {
                header,
                ring_index,
                block,
                hash,
            },
            is_certain,
        ))
    })
}

/// Whether at most one bit of the fields that are known beforehand differs from those of the next
/// group. Spares looking for a flipped bit in what is no group at all.
fn is_almost(bytes: &[u8], expect: &Expect, seq: u64, prev_hash: ChainHash) -> bool {
    let mut header = GroupHeader {
        device_id_low: expect.device_id_low,
        journal: expect.journal,
        incarnation: expect.incarnation,
        seq,
        prev_hash,
        watermark: 0,
        block_count: 0,
        pad: false,
        body_bytes: 0,
    };
    let mut wanted = vec![0; HEADER_BYTES];
    group::seal(&mut header, &mut wanted);
    let differing: u32 = KNOWN_FIELDS
        .into_iter()
        .flat_map(|(from, end)| bytes[from..end].iter().zip(&wanted[from..end]))
        .map(|(found, wanted)| (found ^ wanted).count_ones())
        .sum();
    differing <= 1
}

/// Blocks of a group that are really there.
fn stored_blocks(header: &GroupHeader) -> u32 {
    if header.pad {
        1
    } else {
        u32::from(header.block_count)
    }
}

fn read_bytes<R: ReadBlocks>(
    image: &Image<R>,
    journal: u16,
    ring_index: u32,
    header: &GroupHeader,
) -> Result<Vec<u8>, Fault> {
    let behind = ring_index.saturating_add(u32::from(header.block_count));
    if behind > image.geometry.ring_blocks {
        let block = image.geometry.ring_block(journal, ring_index);
        return Err(Fault::new(block, "a group runs over the end of the ring"));
    }
    read_run(image, journal, ring_index, stored_blocks(header))
}

fn read_run<R: ReadBlocks>(
    image: &Image<R>,
    journal: u16,
    ring_index: u32,
    blocks: u32,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_SIZE as usize);
    for index in ring_index..ring_index + blocks {
        bytes.extend_from_slice(&image.read(image.geometry.ring_block(journal, index))?[..]);
    }
    Ok(bytes)
}
