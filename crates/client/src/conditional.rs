//! Changes and reads of several ranges in one instant, under conditions.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, VolumeNo, batch, query};

use crate::call::{Ask, Done, call};
use crate::client::Client;
use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::open::Inner;
use crate::options::Durability;
use crate::order::Blocks;
use crate::volume::Volume;

/// Bytes of the attributes of a volume.
pub const ATTRIBUTES_BYTES: usize = batch::ATTRIBUTES_BYTES as usize;

/// What must hold for a [`Client::commit`] or [`Client::read_if`] to happen.
pub enum Condition<'a, P: Platform, C: Connect> {
    /// Nothing in the range has changed after this LSN.
    UnchangedSince {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes, 1 at least.
        len_bytes: u64,
        /// The LSN.
        lsn: Lsn,
    },
    /// These are the bytes of the range.
    Equals {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// From which byte.
        offset_bytes: u64,
        /// The bytes, 1 at least.
        bytes: IoBuf,
    },
    /// The volume's epoch is not above this one.
    Epoch {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// The writer's epoch.
        epoch: Epoch,
    },
}

/// A change of a [`Client::commit`].
pub enum Change<'a, P: Platform, C: Connect> {
    /// These bytes are written.
    Write {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// From which byte.
        offset_bytes: u64,
        /// The bytes, 1 at least.
        bytes: IoBuf,
        /// What each block of it keeps.
        metadata: u64,
    },
    /// Whole blocks are given back.
    Deallocate {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// From which byte, a multiple of 4,096.
        offset_bytes: u64,
        /// How many bytes, a multiple of 4,096.
        len_bytes: u64,
    },
    /// These become the volume's attributes.
    SetAttributes {
        /// Whose.
        volume: &'a Volume<P, C>,
        /// All of them.
        attributes: [u8; ATTRIBUTES_BYTES],
    },
}

/// A range that a [`Client::read_if`] reads.
pub struct Range<'a, P: Platform, C: Connect> {
    /// Whose.
    pub volume: &'a Volume<P, C>,
    /// From which byte.
    pub offset_bytes: u64,
    /// How many bytes, 1 at least.
    pub len_bytes: u64,
}

/// What a change of several things at once came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The highest LSN of its changes.
    pub lsn: Lsn,
    /// The LSN of each, in their order. `None` if the connection broke before they arrived: they are not
    /// remembered.
    pub each: Option<Vec<Lsn>>,
}

impl Committed {
    /// From a reply that has an LSN for each of `count` changes.
    pub(crate) fn of(done: &Done, count: usize) -> Committed {
        let body = done.body.as_deref();
        let each = body.and_then(|body| query::decode_lsns(body, count).ok());
        Committed {
            lsn: done.lsn,
            each: each.map(Iterator::collect),
        }
    }
}

/// The volumes of a batch, each once.
pub(crate) struct Volumes<'a, P: Platform, C: Connect> {
    inners: Vec<&'a Rc<Inner<P, C>>>,
}

impl<'a, P: Platform, C: Connect> Volumes<'a, P, C> {
    pub(crate) fn new() -> Volumes<'a, P, C> {
        Volumes { inners: Vec::new() }
    }

    /// Which one of them it is.
    pub(crate) fn index(&mut self, volume: &'a Volume<P, C>) -> usize {
        let is_it = |inner: &&Rc<Inner<P, C>>| Rc::ptr_eq(inner, &volume.inner);
        self.inners.iter().position(is_it).unwrap_or_else(|| {
            self.inners.push(&volume.inner);
            self.inners.len() - 1
        })
    }

    pub(crate) fn inners(&self) -> &[&'a Rc<Inner<P, C>>] {
        &self.inners
    }
}

/// An entry as it is encoded, and which volume it names.
type Entry<E> = (usize, Box<dyn Fn(VolumeNo) -> E>);

fn encode<E: batch::Entry>(
    conditions: &[Entry<batch::Condition>],
    parts: &[Entry<E>],
    numbers: &[VolumeNo],
    out: &mut Vec<u8>,
) {
    let conditions: Vec<_> = conditions.iter().map(|(at, of)| of(numbers[*at])).collect();
    let parts: Vec<_> = parts.iter().map(|(at, of)| of(numbers[*at])).collect();
    let bytes = batch::encode(&conditions, &parts, out);
    bytes.expect("the count of entries was held to the limit before");
}

/// Conditions as they are encoded; their bytes are added to the payload.
fn conditions_of<'a, P: Platform, C: Connect>(
    conditions: &'a [Condition<'a, P, C>],
    volumes: &mut Volumes<'a, P, C>,
    payload: &mut Vec<IoBuf>,
) -> Vec<Entry<batch::Condition>> {
    let mut entry = |condition: &'a Condition<'a, P, C>| -> Entry<batch::Condition> {
        match condition {
            Condition::UnchangedSince {
                volume,
                offset_bytes,
                len_bytes,
                lsn,
            } => {
                let (offset_bytes, len_bytes, lsn) = (*offset_bytes, *len_bytes, *lsn);
                let of = move |volume| batch::Condition::UnchangedSince {
                    volume,
                    offset_bytes,
                    len_bytes,
                    lsn,
                };
                (volumes.index(volume), Box::new(of))
            }
            Condition::Equals {
                volume,
                offset_bytes,
                bytes,
            } => {
                payload.push(bytes.clone());
                let (offset_bytes, len_bytes) = (*offset_bytes, bytes.len() as u64);
                let of = move |volume| batch::Condition::Equals {
                    volume,
                    offset_bytes,
                    len_bytes,
                };
                (volumes.index(volume), Box::new(of))
            }
            Condition::Epoch { volume, epoch } => {
                let epoch = *epoch;
                let of = move |volume| batch::Condition::Epoch { volume, epoch };
                (volumes.index(volume), Box::new(of))
            }
        }
    };
    conditions.iter().map(&mut entry).collect()
}

/// A change as it is encoded, and the blocks that it touches.
fn change_of<'a, P: Platform, C: Connect>(
    change: &'a Change<'a, P, C>,
    volumes: &mut Volumes<'a, P, C>,
    payload: &mut Vec<IoBuf>,
) -> (Entry<batch::Change>, Blocks) {
    match change {
        Change::Write {
            volume,
            offset_bytes,
            bytes,
            metadata,
        } => {
            payload.push(bytes.clone());
            let (offset_bytes, len_bytes) = (*offset_bytes, bytes.len() as u64);
            let metadata = *metadata;
            let of = move |volume| batch::Change::Write {
                volume,
                offset_bytes,
                len_bytes,
                metadata,
            };
            let blocks = Blocks::of(volume.description().id, offset_bytes, len_bytes);
            ((volumes.index(volume), Box::new(of)), blocks)
        }
        Change::Deallocate {
            volume,
            offset_bytes,
            len_bytes,
        } => {
            let (offset_bytes, len_bytes) = (*offset_bytes, *len_bytes);
            let of = move |volume| batch::Change::Deallocate {
                volume,
                offset_bytes,
                len_bytes,
            };
            let blocks = Blocks::of(volume.description().id, offset_bytes, len_bytes);
            ((volumes.index(volume), Box::new(of)), blocks)
        }
        Change::SetAttributes { volume, attributes } => {
            payload.push(IoBuf::copy_of(attributes));
            let of = |volume| batch::Change::SetAttributes { volume };
            // They are ordered among themselves: as if they were the last block that can be, which no
            // volume has.
            let blocks = Blocks::of(volume.description().id, u64::MAX, 1);
            ((volumes.index(volume), Box::new(of)), blocks)
        }
    }
}

impl<P: Platform, C: Connect> Client<P, C> {
    /// Carries out all `changes` (1 at least) in one instant, if all `conditions` hold in it, or none
    /// of them. All volumes must be on one core and in one journal ([`Status::NotTogether`]); together
    /// there are 1,024 conditions and changes at most. Ends at the deadline of the first change's
    /// volume.
    ///
    /// [`Status::NotTogether`]: flagstone_wire::Status::NotTogether
    pub async fn commit(
        &self,
        conditions: &[Condition<'_, P, C>],
        changes: &[Change<'_, P, C>],
        durability: Durability,
    ) -> Result<Committed, Error> {
        let (mut volumes, mut payload) = (Volumes::new(), Vec::new());
        let encoded_conditions = conditions_of(conditions, &mut volumes, &mut payload);
        let encoded = changes
            .iter()
            .map(|change| change_of(change, &mut volumes, &mut payload));
        let (encoded, blocks): (Vec<_>, Vec<_>) = encoded.unzip();
        let doing = format!("committing {} changes", changes.len());
        let volume = match changes.first() {
            Some(
                Change::Write { volume, .. }
                | Change::Deallocate { volume, .. }
                | Change::SetAttributes { volume, .. },
            ) => *volume,
            None => return invalid(&doing, "there must be one change at least"),
        };
        if conditions.len() + changes.len() > batch::ENTRIES_MAX {
            return invalid(&doing, "there may be 1,024 conditions and changes together");
        }
        let body = |numbers: &[VolumeNo], out: &mut Vec<u8>| {
            encode(&encoded_conditions, &encoded, numbers, out);
        };
        let mut ask: Ask<'_> = volume.ask(Operation::Commit, doing);
        ask.body = &body;
        ask.payload = payload;
        ask.blocks = blocks;
        if durability == Durability::Durable {
            ask.fields.flags |= flag::DURABLE;
        }
        let done = call(volumes.inners(), ask).await?;
        if durability == Durability::Visible {
            for inner in volumes.inners() {
                inner.note_unflushed(&done);
            }
        }
        Ok(Committed::of(&done, changes.len()))
    }

    /// Reads all `ranges` (1 at least) in one instant, if all `conditions` hold in it. Otherwise as
    /// [`Client::commit`]; the ranges together may be as long as one reply.
    pub async fn read_if(
        &self,
        conditions: &[Condition<'_, P, C>],
        ranges: &[Range<'_, P, C>],
    ) -> Result<Vec<IoBuf>, Error> {
        let (mut volumes, mut payload) = (Volumes::new(), Vec::new());
        let encoded_conditions = conditions_of(conditions, &mut volumes, &mut payload);
        let entry = |range: &Range<'_, P, C>, at| -> Entry<batch::ReadRange> {
            let (offset_bytes, len_bytes) = (range.offset_bytes, range.len_bytes);
            let of = move |volume| batch::ReadRange {
                volume,
                offset_bytes,
                len_bytes,
            };
            (at, Box::new(of))
        };
        let mut encoded = Vec::with_capacity(ranges.len());
        for range in ranges {
            let at = volumes.index(range.volume);
            encoded.push(entry(range, at));
        }
        let doing = format!("reading {} ranges at once", ranges.len());
        let Some(first) = ranges.first() else {
            return invalid(&doing, "there must be one range at least");
        };
        if conditions.len() + ranges.len() > batch::ENTRIES_MAX {
            return invalid(&doing, "there may be 1,024 conditions and ranges together");
        }
        let body = |numbers: &[VolumeNo], out: &mut Vec<u8>| {
            encode(&encoded_conditions, &encoded, numbers, out);
        };
        let sum = ranges
            .iter()
            .fold(0, |sum: u64, range| sum.saturating_add(range.len_bytes));
        let mut ask: Ask<'_> = first.volume.ask(Operation::ReadIf, doing.clone());
        ask.body = &body;
        ask.payload = payload;
        ask.reply_payload_bytes = Some(sum);
        let done = call(volumes.inners(), ask).await?;
        if done.payload.len() as u64 != sum {
            let text = format!("{} bytes came, of {sum}", done.payload.len());
            return Err(Error::of(false, &doing, Cause::Protocol(text)));
        }
        let mut at = 0;
        let pieces = ranges.iter().map(|range| {
            let from = at;
            // Their sum is the length of the payload.
            at += range.len_bytes as usize;
            done.payload.slice(from..at)
        });
        Ok(pieces.collect())
    }
}

impl<P: Platform, C: Connect> Volume<P, C> {
    /// Writes `new` if `expected` is what is there, both of the same length and within one block: the
    /// change's LSN. Otherwise [`Cause::NotEqual`], with what is there.
    pub async fn compare_and_swap(
        &self,
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let operation = Operation::CompareAndSwap;
        let (doing, len_bytes) = ("comparing and swapping", expected.len() as u64);
        let mut ask = self.change(operation, doing, offset_bytes, len_bytes, durability);
        if expected.len() != new.len() {
            let text = "both must have the same length";
            return invalid(&ask.doing, text);
        }
        ask.payload = vec![expected, new];
        self.change_data(ask, durability).await
    }
}

pub(crate) fn invalid<T>(doing: &str, what: &str) -> Result<T, Error> {
    Err(Error::of(false, doing, Cause::Invalid(what.to_owned())))
}
