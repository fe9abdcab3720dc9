//! The record of a transaction, as it lies in a block of the store's own extent: `docs/formats/pagestore.md`.

use flagstone_platform::IoBuf;
use flagstone_types::{BLOCK_SIZE, ChainHash};

use super::message::{StoreId, TransactionId};
use crate::commit::{Commit, PARTS_MAX, PageWrite, RangeWrite};
use crate::pointer::{BlockPtr, ExtentId, POINTER_BYTES, PagePtr, PageSlot};

const MAGIC: [u8; 8] = *b"FSPTRANS";
const VERSION: u32 = 1;
const KIND_PREPARED: u32 = 1;
const KIND_DECIDED: u32 = 2;
/// Bytes before the body.
pub(super) const HEAD_BYTES: usize = 80;
const SEAL_AT: usize = 72;

/// What a store has of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) transaction: TransactionId,
    /// The participant before it.
    pub(super) previous: Option<StoreId>,
    pub(super) state: RecordState,
}

#[derive(Clone, Debug)]
pub(super) enum RecordState {
    Prepared {
        next: StoreId,
        part: Commit,
        /// Blocks of the device that are kept for it, in each extent.
        needs: Vec<(ExtentId, u64)>,
    },
    Decided,
}

impl Record {
    /// Its bytes, up to the end of a block of the device.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        let (kind, next) = match &self.state {
            RecordState::Prepared { next, .. } => (KIND_PREPARED, next.0),
            RecordState::Decided => (KIND_DECIDED, 0),
        };
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&kind.to_le_bytes());
        out[16..32].copy_from_slice(&self.transaction.0.to_le_bytes());
        let previous = self.previous.map_or(0, |previous| previous.0);
        out[32..48].copy_from_slice(&previous.to_le_bytes());
        out[48..64].copy_from_slice(&next.to_le_bytes());
        if let RecordState::Prepared { part, needs, .. } = &self.state {
            encode_body(part, needs, &mut out);
        }
        let body_len = (out.len() - HEAD_BYTES) as u64;
        out[64..72].copy_from_slice(&body_len.to_le_bytes());
        let seal = ChainHash::of(&out).0;
        out[SEAL_AT..HEAD_BYTES].copy_from_slice(&seal.to_le_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_SIZE as usize), 0);
        out
    }

    /// Bytes of the record that begins so, up to the end of a block of the device.
    pub(super) fn len_of(head: &[u8]) -> Option<u64> {
        let body_len = u64::from_le_bytes(head.get(64..72)?.try_into().ok()?);
        let len = body_len.checked_add(HEAD_BYTES as u64)?;
        len.checked_next_multiple_of(BLOCK_SIZE)
    }

    /// `None` if the bytes are no record of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let id = |at: usize| u128::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        if head[0..8] != MAGIC || short(8) != VERSION || Self::len_of(head)? != bytes.len() as u64 {
            return None;
        }
        let body_len = u64::from_le_bytes(std::array::from_fn(|i| head[64 + i]));
        let end = HEAD_BYTES + usize::try_from(body_len).ok()?;
        let (mut sealed, behind) = (bytes.get(..end)?.to_vec(), bytes.get(end..)?);
        sealed[SEAL_AT..HEAD_BYTES].fill(0);
        let is_sealed = head[SEAL_AT..] == ChainHash::of(&sealed).0.to_le_bytes();
        if !is_sealed || behind.iter().any(|&byte| byte != 0) {
            return None;
        }
        let body = &bytes[HEAD_BYTES..end];
        let state = match (short(12), id(48)) {
            (KIND_PREPARED, next) if next != 0 => {
                let (part, needs) = decode_body(body)?;
                RecordState::Prepared {
                    next: StoreId(next),
                    part,
                    needs,
                }
            }
            (KIND_DECIDED, 0) if body.is_empty() => RecordState::Decided,
            _ => return None,
        };
        Some(Record {
            transaction: TransactionId(id(16)),
            previous: Some(StoreId(id(32))).filter(|previous| previous.0 != 0),
            state,
        })
    }
}

fn encode_body(part: &Commit, needs: &[(ExtentId, u64)], out: &mut Vec<u8>) {
    out.push(needs.len() as u8);
    for (extent, blocks) in needs {
        out.extend(extent.0.to_le_bytes());
        out.extend(blocks.to_le_bytes());
    }
    let lens = [
        part.checks.len(),
        part.writes.len(),
        part.ranges.len(),
        part.allocates.len(),
        part.frees.len(),
        part.seals.len(),
    ];
    out.extend(lens.map(|len| len as u8));
    for (ptr, slot) in &part.checks {
        out.extend(ptr.encode());
        out.extend(slot.0.to_le_bytes());
    }
    for write in &part.writes {
        out.extend(write.ptr.encode());
        out.extend(write.slot.0.to_le_bytes());
        encode_data(&write.data, out);
    }
    for range in &part.ranges {
        out.extend(range.first.encode());
        encode_data(&range.data, out);
    }
    for ptr in part.allocates.iter().chain(&part.frees).chain(&part.seals) {
        out.extend(ptr.0.encode());
    }
}

fn encode_data(data: &[u8], out: &mut Vec<u8>) {
    out.extend((data.len() as u32).to_le_bytes());
    out.extend_from_slice(data);
}

fn decode_body(bytes: &[u8]) -> Option<(Commit, Vec<(ExtentId, u64)>)> {
    let mut reader = Reader { rest: bytes };
    let [needs_len] = reader.take()?;
    let mut needs = Vec::new();
    for _ in 0..needs_len {
        needs.push((ExtentId(reader.long()?), reader.long()?));
    }
    let lens: [u8; 6] = reader.take()?;
    if lens.iter().any(|len| usize::from(*len) > PARTS_MAX) {
        return None;
    }
    let mut part = Commit::default();
    for _ in 0..lens[0] {
        part.checks
            .push((reader.pointer()?, PageSlot(reader.long()?)));
    }
    for _ in 0..lens[1] {
        part.writes.push(PageWrite {
            ptr: reader.pointer()?,
            slot: PageSlot(reader.long()?),
            data: reader.data()?,
        });
    }
    for _ in 0..lens[2] {
        part.ranges.push(RangeWrite {
            first: reader.pointer()?,
            data: reader.data()?,
        });
    }
    let blocks = [&mut part.allocates, &mut part.frees, &mut part.seals];
    for (blocks, len) in blocks.into_iter().zip(&lens[3..]) {
        for _ in 0..*len {
            blocks.push(BlockPtr(reader.pointer()?));
        }
    }
    reader.rest.is_empty().then_some((part, needs))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn pointer(&mut self) -> Option<PagePtr> {
        let bytes: [u8; POINTER_BYTES] = self.take()?;
        PagePtr::decode(&bytes).ok()
    }

    fn data(&mut self) -> Option<IoBuf> {
        let len = u32::from_le_bytes(self.take()?) as usize;
        let (data, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(IoBuf::copy_of(data))
    }
}

/// Reads bodies without a head, which a fuzzer would never seal.
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(record) = Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Some((part, needs)) = decode_body(bytes) {
        let mut again = Vec::new();
        encode_body(&part, &needs, &mut again);
        assert_eq!(again, bytes);
        let record = Record {
            transaction: TransactionId(7),
            previous: None,
            state: RecordState::Prepared {
                next: StoreId(8),
                part,
                needs,
            },
        };
        let bytes = record.encode();
        let again = Record::decode(&bytes).expect("its own bytes");
        assert_eq!(again.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::{Generation, OwnerId};

    fn ptr(page: u64) -> PagePtr {
        PagePtr {
            extent: ExtentId(3),
            page,
            owner: OwnerId(4),
            generation: Generation(5),
            read_only: false,
        }
    }

    fn prepared() -> Record {
        let part = Commit {
            checks: vec![(ptr(1), PageSlot(11))],
            writes: vec![PageWrite {
                ptr: ptr(2),
                slot: PageSlot(12),
                data: IoBuf::copy_of(&[7; 4096]),
            }],
            ranges: vec![RangeWrite {
                first: ptr(3),
                data: IoBuf::copy_of(&[8; 8192]),
            }],
            allocates: vec![BlockPtr(ptr(4))],
            frees: vec![BlockPtr(ptr(8)), BlockPtr(ptr(12))],
            seals: vec![BlockPtr(ptr(16))],
        };
        Record {
            transaction: TransactionId(1 << 100),
            previous: None,
            state: RecordState::Prepared {
                next: StoreId(9),
                part,
                needs: vec![(ExtentId(3), 4)],
            },
        }
    }

    #[test]
    fn records_are_read_back_and_every_flipped_bit_noticed() {
        let decided = Record {
            transaction: TransactionId(2),
            previous: Some(StoreId(6)),
            state: RecordState::Decided,
        };
        for record in [prepared(), decided] {
            let bytes = record.encode();
            assert_eq!(bytes.len() as u64 % BLOCK_SIZE, 0);
            assert_eq!(Record::len_of(&bytes), Some(bytes.len() as u64));
            let again = Record::decode(&bytes).expect("its own bytes");
            assert_eq!(format!("{again:?}"), format!("{record:?}"));
            assert_eq!(again.encode(), bytes);
            for at in (0..bytes.len()).step_by(7).chain(0..200) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                assert!(Record::decode(&flipped).is_none(), "byte {at}");
            }
            assert!(Record::decode(&bytes[..HEAD_BYTES]).is_none());
        }
    }

    #[test]
    fn bodies_that_are_cut_are_refused() {
        let RecordState::Prepared { part, needs, .. } = prepared().state else {
            panic!("is prepared");
        };
        let mut body = Vec::new();
        encode_body(&part, &needs, &mut body);
        fuzz(&body);
        for len in (0..body.len()).step_by(5) {
            assert!(decode_body(&body[..len]).is_none(), "{len} bytes");
            fuzz(&body[..len]);
        }
        // Whatever is read is written as the same bytes.
        for bit in (0..400 * 8).chain((body.len() - 200) * 8..body.len() * 8) {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fuzz(&flipped);
        }
    }
}
