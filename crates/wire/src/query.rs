//! Bodies of questions and of replies that are lists of numbers: runs, LSNs, metadata.

use std::marker::PhantomData;

use flagstone_types::Lsn;

use crate::BodyError;
use crate::fields::{Fields, bounded, whole_entries};

/// Bytes of a run in a reply to `ALLOCATION` or `CHANGED_SINCE`.
pub const RUN_BYTES: usize = 8;
/// Bytes of a run in a reply to `READ` with `SPARSE`.
pub const SPARSE_RUN_BYTES: usize = 4;
/// Bytes for each block in a reply to `READ_METADATA`.
pub const BLOCK_METADATA_BYTES: usize = 16;
/// Bytes of an LSN.
pub const LSN_BYTES: usize = 8;

/// The bit beside the length of a [`Run`].
const MARK: u64 = 1 << 63;
/// The bit beside the length of a [`SparseRun`].
const SPARSE_MARK: u32 = 1 << 31;

/// Appends the body of `ALLOCATION` and `CHANGED_SINCE`: how many runs the reply may have.
pub fn encode_runs_max(runs_max: u32, out: &mut Vec<u8>) {
    out.extend(runs_max.to_le_bytes());
}

/// A body of `ALLOCATION` or `CHANGED_SINCE` that came: how many runs the reply may have, 1 at least.
pub fn decode_runs_max(body: &[u8]) -> Result<u32, BodyError> {
    let mut fields = Fields::new(body);
    let runs_max = fields.u32("the count of runs")?;
    fields.end()?;
    bounded("the count of runs", runs_max.into(), 1, u32::MAX.into())?;
    Ok(runs_max)
}

/// A part of a range, in a reply to `ALLOCATION` or `CHANGED_SINCE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// How long it is, 1 to 2^63 - 1 bytes.
    pub len_bytes: u64,
    /// It is allocated, or has changed.
    pub is_marked: bool,
}

/// A part of what was read, in a reply to `READ` with `SPARSE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SparseRun {
    /// How long it is, 1 to 2^31 - 1 bytes.
    pub len_bytes: u32,
    /// It reads as zeros, which are not in the payload.
    pub is_zeros: bool,
}

/// What is kept beside a block, in a reply to `READ_METADATA`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMetadata {
    /// Of the block's last change.
    pub lsn: Lsn,
    /// What the last `WRITE` gave it.
    pub metadata: u64,
}

/// Something of fixed length that a body is a list of.
pub trait Item: Sized {
    /// Bytes of one.
    const BYTES: usize;
    /// What complaints call the list.
    const LIST: &'static str;
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// From its bytes, of which there are [`Item::BYTES`]. `None`: it can't be.
    fn get(bytes: &[u8]) -> Option<Self>;
}

/// The number that `bytes` are.
fn number<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk::<N>().copied()
}

impl Item for Run {
    const BYTES: usize = RUN_BYTES;
    const LIST: &'static str = "the runs";

    fn put(&self, out: &mut Vec<u8>) {
        let mark = if self.is_marked { MARK } else { 0 };
        out.extend((self.len_bytes & !MARK | mark).to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<Run> {
        let word = u64::from_le_bytes(number(bytes)?);
        let len_bytes = word & !MARK;
        (len_bytes > 0).then_some(Run {
            len_bytes,
            is_marked: word & MARK != 0,
        })
    }
}

impl Item for SparseRun {
    const BYTES: usize = SPARSE_RUN_BYTES;
    const LIST: &'static str = "the runs";

    fn put(&self, out: &mut Vec<u8>) {
        let mark = if self.is_zeros { SPARSE_MARK } else { 0 };
        out.extend((self.len_bytes & !SPARSE_MARK | mark).to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<SparseRun> {
        let word = u32::from_le_bytes(number(bytes)?);
        let len_bytes = word & !SPARSE_MARK;
        (len_bytes > 0).then_some(SparseRun {
            len_bytes,
            is_zeros: word & SPARSE_MARK != 0,
        })
    }
}

impl Item for BlockMetadata {
    const BYTES: usize = BLOCK_METADATA_BYTES;
    const LIST: &'static str = "the metadata of blocks";

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.lsn.0.to_le_bytes());
        out.extend(self.metadata.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<BlockMetadata> {
        let (lsn, metadata) = bytes.split_at_checked(LSN_BYTES)?;
        Some(BlockMetadata {
            lsn: Lsn(u64::from_le_bytes(number(lsn)?)),
            metadata: u64::from_le_bytes(number(metadata)?),
        })
    }
}

impl Item for Lsn {
    const BYTES: usize = LSN_BYTES;
    const LIST: &'static str = "the LSNs";

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<Lsn> {
        number(bytes).map(|bytes| Lsn(u64::from_le_bytes(bytes)))
    }
}

/// A list that was looked through.
#[derive(Clone)]
pub struct Items<'a, T> {
    rest: &'a [u8],
    kind: PhantomData<T>,
}

impl<'a, T: Item> Items<'a, T> {
    /// All of `body` is a list of items that can be.
    fn decode(body: &'a [u8]) -> Result<Items<'a, T>, BodyError> {
        whole_entries(T::LIST, body, T::BYTES)?;
        let impossible = body
            .chunks_exact(T::BYTES)
            .any(|item| T::get(item).is_none());
        if impossible {
            // Of what is listed only a run can be impossible.
            return Err(BodyError::Bounds {
                field: "the length of a run",
                found: 0,
                min: 1,
                max: MARK - 1,
            });
        }
        Ok(Items {
            rest: body,
            kind: PhantomData,
        })
    }
}

impl<T: Item> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (item, rest) = self.rest.split_at_checked(T::BYTES)?;
        self.rest = rest;
        T::get(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len() / T::BYTES;
        (left, Some(left))
    }
}

impl<T: Item> ExactSizeIterator for Items<'_, T> {}

/// Appends a list of any of the items of this module: all of the body of a reply.
pub fn encode<T: Item>(items: impl IntoIterator<Item = T>, out: &mut Vec<u8>) {
    for item in items {
        item.put(out);
    }
}

/// A reply to `ALLOCATION` or `CHANGED_SINCE` for a range of `asked_bytes`, at least 1, and at most so
/// many runs. They begin where the range does, and may end before it; who wants to know more asks
/// again from there on.
pub fn decode_runs(
    body: &[u8],
    asked_bytes: u64,
    runs_max: u32,
) -> Result<Items<'_, Run>, BodyError> {
    let runs = Items::<Run>::decode(body)?;
    // One at least, or who asks again from where they end would do so for ever.
    bounded("the count of runs", runs.len() as u64, 1, runs_max.into())?;
    let found = runs
        .clone()
        .fold(0, |sum: u64, run| sum.saturating_add(run.len_bytes));
    bounded("the length of all runs", found, 1, asked_bytes)?;
    Ok(runs)
}

/// A reply to `READ` of `asked_bytes` with `SPARSE`, whose payload has `payload_bytes`.
pub fn decode_sparse_runs(
    body: &[u8],
    asked_bytes: u64,
    payload_bytes: u32,
) -> Result<Items<'_, SparseRun>, BodyError> {
    let runs = Items::<SparseRun>::decode(body)?;
    // Each is below 2^31 and there are fewer than 2^32: the sums fit.
    let (mut all, mut data) = (0_u64, 0_u64);
    for run in runs.clone() {
        all += u64::from(run.len_bytes);
        data += if run.is_zeros {
            0
        } else {
            run.len_bytes.into()
        };
    }
    same("the lengths of all runs", all, asked_bytes)?;
    same("the lengths of runs with data", data, payload_bytes.into())?;
    Ok(runs)
}

/// A reply to `READ_METADATA` of so many blocks.
pub fn decode_metadata(body: &[u8], blocks: u64) -> Result<Items<'_, BlockMetadata>, BodyError> {
    let items = Items::<BlockMetadata>::decode(body)?;
    same("the blocks with metadata", items.len() as u64, blocks)?;
    Ok(items)
}

/// A reply to `COMMIT` or `SNAPSHOT`: an LSN for each of `count` changes or volumes.
pub fn decode_lsns(body: &[u8], count: usize) -> Result<Items<'_, Lsn>, BodyError> {
    let items = Items::<Lsn>::decode(body)?;
    same("the LSNs", items.len() as u64, count as u64)?;
    Ok(items)
}

fn same(field: &'static str, found: u64, expected: u64) -> Result<(), BodyError> {
    if found == expected {
        return Ok(());
    }
    Err(BodyError::Sum {
        field,
        found,
        expected,
    })
}
