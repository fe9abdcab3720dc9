//! Bodies of `COMMIT` and `READ_IF`: conditions, and changes or ranges, as entries of 32 bytes.
//!
//! A batch that [`decode_commit`] or [`decode_read_if`] has let through is read without further
//! errors: each entry has a meaning, and the bytes of the payload that belong to it exist.

use std::marker::PhantomData;
use std::ops::Range;

use flagstone_types::{BLOCK_SIZE, Epoch, Lsn};

use crate::fields::{Fields, bounded, zeros};
use crate::{BodyError, VolumeNo};

/// Conditions and changes, or ranges, that one batch may have.
pub const ENTRIES_MAX: usize = 1024;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Bytes of the attributes of a volume.
pub const ATTRIBUTES_BYTES: u64 = 64;
/// Bytes before the entries: two counts.
const COUNTS_BYTES: usize = 4;

/// Something that must hold for a batch to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Nothing in the range has changed after this LSN.
    UnchangedSince {
        /// Whose.
        volume: VolumeNo,
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes, 1 at least.
        len_bytes: u64,
        /// The LSN.
        lsn: Lsn,
    },
    /// The bytes of the range are those in the payload.
    Equals {
        /// Whose.
        volume: VolumeNo,
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes, 1 at least.
        len_bytes: u64,
    },
    /// The volume's epoch is not above this one.
    Epoch {
        /// Whose.
        volume: VolumeNo,
        /// The writer's epoch.
        epoch: Epoch,
    },
}

/// A change of a `COMMIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The bytes in the payload are written.
    Write {
        /// Whose.
        volume: VolumeNo,
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes, 1 at least.
        len_bytes: u64,
        /// Of each block written.
        metadata: u64,
    },
    /// Whole blocks are given back.
    Deallocate {
        /// Whose.
        volume: VolumeNo,
        /// From which byte, a multiple of 4,096.
        offset_bytes: u64,
        /// How many bytes, a multiple of 4,096, one block at least.
        len_bytes: u64,
    },
    /// The 64 bytes in the payload become the volume's attributes.
    SetAttributes {
        /// Whose.
        volume: VolumeNo,
    },
}

/// A range that a `READ_IF` reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRange {
    /// Whose.
    pub volume: VolumeNo,
    /// From which byte.
    pub offset_bytes: u64,
    /// How many bytes, 1 at least.
    pub len_bytes: u64,
}

/// An entry as it lies in a body. Public because [`Entry`] speaks of it.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry {
    kind: u8,
    volume: VolumeNo,
    offset_bytes: u64,
    len_bytes: u64,
    value: u64,
}

/// What a batch has lists of.
pub trait Entry: Sized {
    /// As it lies in a body.
    fn to_raw(&self) -> RawEntry;
    /// From a body.
    fn from_raw(raw: RawEntry) -> Result<Self, BodyError>;
    /// How many bytes of the request's payload belong to it.
    fn payload_bytes(&self) -> u64;
}

impl RawEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.kind, 0, 0, 0]);
        out.extend(self.volume.0.to_le_bytes());
        out.extend(self.offset_bytes.to_le_bytes());
        out.extend(self.len_bytes.to_le_bytes());
        out.extend(self.value.to_le_bytes());
    }

    fn take(fields: &mut Fields<'_>) -> Result<RawEntry, BodyError> {
        let kind = fields.u8("the kind of an entry")?;
        zeros("bytes 1 to 3 of an entry", fields.bytes("an entry", 3)?)?;
        let volume = fields.u32("the volume of an entry")?;
        bounded("the volume of an entry", volume.into(), 1, u32::MAX.into())?;
        Ok(RawEntry {
            kind,
            volume: VolumeNo(volume),
            offset_bytes: fields.u64("the offset of an entry")?,
            len_bytes: fields.u64("the length of an entry")?,
            value: fields.u64("the last field of an entry")?,
        })
    }

    /// It names a range that can be.
    fn with_range(self) -> Result<RawEntry, BodyError> {
        let (offset_bytes, len_bytes) = (self.offset_bytes, self.len_bytes);
        bounded("the length of an entry", len_bytes, 1, u64::MAX)?;
        match offset_bytes.checked_add(len_bytes) {
            Some(_) => Ok(self),
            None => Err(BodyError::OutOfRange {
                offset_bytes,
                len_bytes,
            }),
        }
    }

    /// It names a range of whole blocks.
    fn with_blocks(self) -> Result<RawEntry, BodyError> {
        let raw = self.with_range()?;
        if (raw.offset_bytes | raw.len_bytes) % BLOCK_SIZE != 0 {
            let field = "what an entry for whole blocks has of other blocks";
            return Err(BodyError::NotZero { field });
        }
        Ok(raw)
    }

    /// It names no range.
    fn without_range(self) -> Result<RawEntry, BodyError> {
        if (self.offset_bytes, self.len_bytes) != (0, 0) {
            let field = "offset and length of an entry without a range";
            return Err(BodyError::NotZero { field });
        }
        Ok(self)
    }

    /// It has nothing in the last field.
    fn without_value(self) -> Result<RawEntry, BodyError> {
        if self.value != 0 {
            let field = "the last field of an entry that has no use for it";
            return Err(BodyError::NotZero { field });
        }
        Ok(self)
    }
}

impl Entry for Condition {
    fn to_raw(&self) -> RawEntry {
        let (kind, volume, offset_bytes, len_bytes, value) = match *self {
            Condition::UnchangedSince {
                volume,
                offset_bytes,
                len_bytes,
                lsn,
            } => (1, volume, offset_bytes, len_bytes, lsn.0),
            Condition::Equals {
                volume,
                offset_bytes,
                len_bytes,
            } => (2, volume, offset_bytes, len_bytes, 0),
            Condition::Epoch { volume, epoch } => (3, volume, 0, 0, epoch.0.into()),
        };
        RawEntry {
            kind,
            volume,
            offset_bytes,
            len_bytes,
            value,
        }
    }

    fn from_raw(raw: RawEntry) -> Result<Condition, BodyError> {
        let volume = raw.volume;
        match raw.kind {
            1 => raw.with_range().map(|raw| Condition::UnchangedSince {
                volume,
                offset_bytes: raw.offset_bytes,
                len_bytes: raw.len_bytes,
                lsn: Lsn(raw.value),
            }),
            2 => {
                let raw = raw.with_range()?.without_value()?;
                Ok(Condition::Equals {
                    volume,
                    offset_bytes: raw.offset_bytes,
                    len_bytes: raw.len_bytes,
                })
            }
            3 => {
                let value = raw.without_range()?.value;
                let epoch = bounded("the epoch", value, 0, Epoch::MAX.0.into())?;
                Ok(Condition::Epoch {
                    volume,
                    epoch: Epoch(epoch as u32),
                })
            }
            found => Err(unknown("the kind of a condition", found)),
        }
    }

    fn payload_bytes(&self) -> u64 {
        match *self {
            Condition::Equals { len_bytes, .. } => len_bytes,
            Condition::UnchangedSince { .. } | Condition::Epoch { .. } => 0,
        }
    }
}

impl Entry for Change {
    fn to_raw(&self) -> RawEntry {
        let (kind, volume, offset_bytes, len_bytes, value) = match *self {
            Change::Write {
                volume,
                offset_bytes,
                len_bytes,
                metadata,
            } => (1, volume, offset_bytes, len_bytes, metadata),
            Change::Deallocate {
                volume,
                offset_bytes,
                len_bytes,
            } => (2, volume, offset_bytes, len_bytes, 0),
            Change::SetAttributes { volume } => (3, volume, 0, ATTRIBUTES_BYTES, 0),
        };
        RawEntry {
            kind,
            volume,
            offset_bytes,
            len_bytes,
            value,
        }
    }

    fn from_raw(raw: RawEntry) -> Result<Change, BodyError> {
        let volume = raw.volume;
        match raw.kind {
            1 => raw.with_range().map(|raw| Change::Write {
                volume,
                offset_bytes: raw.offset_bytes,
                len_bytes: raw.len_bytes,
                metadata: raw.value,
            }),
            2 => {
                let raw = raw.with_blocks()?.without_value()?;
                Ok(Change::Deallocate {
                    volume,
                    offset_bytes: raw.offset_bytes,
                    len_bytes: raw.len_bytes,
                })
            }
            3 => {
                let raw = raw.without_value()?;
                bounded("the offset of attributes", raw.offset_bytes, 0, 0)?;
                let (len, field) = (raw.len_bytes, "the length of attributes");
                bounded(field, len, ATTRIBUTES_BYTES, ATTRIBUTES_BYTES)?;
                Ok(Change::SetAttributes { volume })
            }
            found => Err(unknown("the kind of a change", found)),
        }
    }

    fn payload_bytes(&self) -> u64 {
        match *self {
            Change::Write { len_bytes, .. } => len_bytes,
            Change::Deallocate { .. } => 0,
            Change::SetAttributes { .. } => ATTRIBUTES_BYTES,
        }
    }
}

impl Entry for ReadRange {
    fn to_raw(&self) -> RawEntry {
        RawEntry {
            kind: 1,
            volume: self.volume,
            offset_bytes: self.offset_bytes,
            len_bytes: self.len_bytes,
            value: 0,
        }
    }

    fn from_raw(raw: RawEntry) -> Result<ReadRange, BodyError> {
        if raw.kind != 1 {
            return Err(unknown("the kind of a range", raw.kind));
        }
        let raw = raw.with_range()?.without_value()?;
        Ok(ReadRange {
            volume: raw.volume,
            offset_bytes: raw.offset_bytes,
            len_bytes: raw.len_bytes,
        })
    }

    fn payload_bytes(&self) -> u64 {
        0
    }
}

fn unknown(field: &'static str, found: u8) -> BodyError {
    let found = found.into();
    BodyError::Unknown { field, found }
}

/// Entries of a body that was looked through, each with the part of the payload that belongs to it
/// (an empty one if it has none).
#[derive(Clone)]
pub struct Entries<'a, E> {
    fields: Fields<'a>,
    left: usize,
    /// Where in the payload the next entry's bytes begin.
    at: usize,
    kind: PhantomData<E>,
}

impl<'a, E: Entry> Entries<'a, E> {
    /// Looks through `count` entries, whose bytes in the payload begin at `at` and may end at `end`,
    /// and takes them from `fields`. The second result is where they end.
    fn take(
        fields: &mut Fields<'a>,
        count: usize,
        at: usize,
        end: usize,
    ) -> Result<(Entries<'a, E>, usize), BodyError> {
        let entries = Entries {
            fields: *fields,
            left: count,
            at,
            kind: PhantomData,
        };
        let mut at = at as u64;
        for _ in 0..count {
            let entry = E::from_raw(RawEntry::take(fields)?)?;
            // Each is compared, so the sum can't leave the bounds of its type.
            at = at.saturating_add(entry.payload_bytes());
            if at > end as u64 {
                return Err(payload_sum(at, end));
            }
        }
        Ok((entries, at as usize))
    }
}

impl<E: Entry> Iterator for Entries<'_, E> {
    type Item = (E, Range<usize>);

    fn next(&mut self) -> Option<(E, Range<usize>)> {
        self.left = self.left.checked_sub(1)?;
        // All of them were looked at when they were taken.
        let entry = E::from_raw(RawEntry::take(&mut self.fields).ok()?).ok()?;
        let from = self.at;
        self.at += entry.payload_bytes() as usize;
        Some((entry, from..self.at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<E: Entry> ExactSizeIterator for Entries<'_, E> {}

/// Body of a `COMMIT` (`E` is [`Change`]) or `READ_IF` ([`ReadRange`]).
#[derive(Clone)]
pub struct Batch<'a, E> {
    /// Must hold, all in the same instant.
    pub conditions: Entries<'a, Condition>,
    /// Happen, or are read, in this instant.
    pub parts: Entries<'a, E>,
}

/// Body of a `COMMIT`.
pub type Commit<'a> = Batch<'a, Change>;
/// Body of a `READ_IF`.
pub type ReadIf<'a> = Batch<'a, ReadRange>;

impl<'a, E: Entry> Batch<'a, E> {
    fn decode(body: &'a [u8], payload_bytes: u32) -> Result<Batch<'a, E>, BodyError> {
        let mut fields = Fields::new(body);
        let conditions = usize::from(fields.u16("the count of conditions")?);
        let parts = usize::from(fields.u16("the count of changes or ranges")?);
        let count = (conditions + parts) as u64;
        bounded("the count of entries", count, 1, ENTRIES_MAX as u64)?;
        let end = payload_bytes as usize;
        let (conditions, at) = Entries::take(&mut fields, conditions, 0, end)?;
        let (parts, at) = Entries::take(&mut fields, parts, at, end)?;
        fields.end()?;
        if at != end {
            return Err(payload_sum(at as u64, end));
        }
        Ok(Batch { conditions, parts })
    }
}

fn payload_sum(found: u64, expected: usize) -> BodyError {
    BodyError::Sum {
        field: "the lengths of entries with payload",
        found,
        expected: expected as u64,
    }
}

/// A body of `COMMIT` that came, whose request has so much payload. It has one change at least.
pub fn decode_commit(body: &[u8], payload_bytes: u32) -> Result<Commit<'_>, BodyError> {
    let commit = Commit::decode(body, payload_bytes)?;
    let (changes, most) = (commit.parts.len() as u64, ENTRIES_MAX as u64);
    bounded("the count of changes", changes, 1, most)?;
    Ok(commit)
}

/// A body of `READ_IF` that came, whose request has so much payload, and the bytes that it asks for:
/// at most `reply_max_bytes`.
pub fn decode_read_if(
    body: &[u8],
    payload_bytes: u32,
    reply_max_bytes: u32,
) -> Result<(ReadIf<'_>, u32), BodyError> {
    let read_if = ReadIf::decode(body, payload_bytes)?;
    let ranges = read_if.parts.clone();
    let found = ranges.fold(0, |sum: u64, (range, _)| {
        sum.saturating_add(range.len_bytes)
    });
    match u32::try_from(found) {
        Ok(bytes) if bytes <= reply_max_bytes => Ok((read_if, bytes)),
        _ => Err(BodyError::TooLong {
            found,
            max: reply_max_bytes.into(),
        }),
    }
}

/// Appends the body of a `COMMIT` or `READ_IF`, and returns how much payload goes with it: the bytes
/// of each entry that has some, in this order. `None`, and nothing is appended, if there are more
/// entries than there may be.
pub fn encode<E: Entry>(conditions: &[Condition], parts: &[E], out: &mut Vec<u8>) -> Option<u64> {
    if conditions.len() + parts.len() > ENTRIES_MAX {
        return None;
    }
    out.reserve(COUNTS_BYTES + ENTRY_BYTES * (conditions.len() + parts.len()));
    out.extend((conditions.len() as u16).to_le_bytes());
    out.extend((parts.len() as u16).to_le_bytes());
    let mut payload_bytes = 0_u64;
    for condition in conditions {
        condition.to_raw().encode(out);
        payload_bytes = payload_bytes.saturating_add(condition.payload_bytes());
    }
    for part in parts {
        part.to_raw().encode(out);
        payload_bytes = payload_bytes.saturating_add(part.payload_bytes());
    }
    Some(payload_bytes)
}
