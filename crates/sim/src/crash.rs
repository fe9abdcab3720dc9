//! Crash images: what a disk may hold when power returns.
//!
//! [`CrashImages`] are the outcomes at one moment, of a simulated disk or of a recorded run;
//! [`LogReplay`] takes a record of what the real runtime did to a real device, event by event, and
//! gives the outcomes after each. What may be lost is decided in one place: `volatile.rs`.
//!
//! The order of a record's events is all that is known about time, so it has to be truthful: a
//! submission is recorded before the operation is handed to the kernel, a completion after the
//! kernel has reported it. Then "completed before" in the record implies the same in the world.
//!
//! Limit: of changes that were in flight together *and* overlap *and* were covered by one flush,
//! the one that completed last counts as the durable one. Flagstone never has overlapping changes
//! in flight.

use std::collections::BTreeMap;
use std::fmt;

use crate::image::{DiskImage, SECTOR_BYTES};
use crate::record::IoEvent;
use crate::rng::Rng;
use crate::volatile::{ChangeId, Payload, Survival, VolatileChange, WriteCache};

/// The most changes, or sectors, whose subsets are enumerated: a million images.
pub const SUBSETS_OF_MAX: usize = 20;

/// Everything that power loss at one moment may leave.
#[derive(Clone)]
pub struct CrashImages {
    pub(crate) cache: WriteCache,
}

/// There are too many outcomes to enumerate; sample them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany {
    /// Changes, or sectors, that may each survive or not.
    pub found: usize,
    /// The most that were asked for.
    pub limit: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMany { found, limit } = self;
        write!(
            f,
            "2^{found} crash images, more than 2^{limit}: sample them instead"
        )
    }
}

impl std::error::Error for TooMany {}

impl CrashImages {
    /// What may be lost, in the order of completion, then what was in flight.
    pub fn volatile(&self) -> Vec<VolatileChange> {
        self.cache.volatile()
    }

    /// The image if everything that may be lost is lost.
    pub fn nothing_survives(&self) -> DiskImage {
        self.cache.after_power_loss(&[])
    }

    /// The image if everything survives.
    pub fn everything_survives(&self) -> DiskImage {
        let all = vec![Survival::Whole; self.volatile().len()];
        self.cache.after_power_loss(&all)
    }

    /// One outcome, drawn so that the likely and the nasty ones both come up often.
    pub fn sample(&self, rng: &mut Rng) -> DiskImage {
        let survivals = draw_survivals(rng, &self.volatile());
        self.cache.after_power_loss(&survivals)
    }

    /// The outcomes in which each change survives wholly or not at all: 2^n images for n changes,
    /// at most `changes_max` (and [`SUBSETS_OF_MAX`]).
    pub fn subsets(
        &self,
        changes_max: usize,
    ) -> Result<impl Iterator<Item = DiskImage> + '_, TooMany> {
        let count = self.volatile().len();
        check_limit(count, changes_max)?;
        Ok((0..1u64 << count).map(move |choice| {
            let survivals: Vec<Survival> = (0..count)
                .map(|index| match choice >> index & 1 {
                    0 => Survival::Nothing,
                    _ => Survival::Whole,
                })
                .collect();
            self.cache.after_power_loss(&survivals)
        }))
    }

    /// Every outcome: each sector of each change survives or not. 2^n images for n sectors, at
    /// most `sectors_max` (and [`SUBSETS_OF_MAX`]).
    pub fn sector_subsets(
        &self,
        sectors_max: usize,
    ) -> Result<impl Iterator<Item = DiskImage> + '_, TooMany> {
        let volatile = self.volatile();
        let count: u64 = volatile.iter().map(VolatileChange::sectors).sum();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        check_limit(count, sectors_max)?;
        Ok((0..1u64 << count).map(move |choice| {
            let mut rest = choice;
            let survivals: Vec<Survival> = volatile
                .iter()
                .map(|change| {
                    let survival = Survival::Bits {
                        first_sector: change.first_sector(),
                        bits: rest,
                    };
                    rest = rest.checked_shr(change.sectors() as u32).unwrap_or(0);
                    survival
                })
                .collect();
            self.cache.after_power_loss(&survivals)
        }))
    }
}

fn check_limit(found: usize, asked: usize) -> Result<(), TooMany> {
    let limit = asked.min(SUBSETS_OF_MAX);
    if found > limit {
        return Err(TooMany { found, limit });
    }
    Ok(())
}

/// Draws what survives a power loss. Independent coins alone would make "everything up to here"
/// and "all but this one" vanishingly rare when much is volatile, so the kind is drawn first.
pub(crate) fn draw_survivals(rng: &mut Rng, volatile: &[VolatileChange]) -> Vec<Survival> {
    let kind = rng.below(7);
    let chosen = match volatile.len() {
        0 => return Vec::new(),
        len => rng.index(len),
    };
    let mut survivals = Vec::with_capacity(volatile.len());
    for (index, change) in volatile.iter().enumerate() {
        let torn = Survival::torn(rng, change.offset_bytes, change.len_bytes);
        let any = Survival::any(rng, change.offset_bytes, change.len_bytes);
        let coin = match rng.coin() {
            true => Survival::Whole,
            false => Survival::Nothing,
        };
        survivals.push(match kind {
            0 => Survival::Nothing,
            1 => Survival::Whole,
            // In order up to the chosen one, which is torn.
            2 if index < chosen => Survival::Whole,
            2 if index > chosen => Survival::Nothing,
            2 => torn,
            // All but the chosen one, only the chosen one.
            3 if index == chosen => Survival::Nothing,
            3 => Survival::Whole,
            4 if index == chosen => Survival::Whole,
            4 => Survival::Nothing,
            5 => coin,
            _ => any,
        });
    }
    survivals
}

/// Why an event does not fit the events before it. The record, or what made it, is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// A completion of something that is not in flight.
    NotInFlight {
        /// The operation.
        id: u64,
    },
    /// A submission under an id that is in flight.
    AlreadyInFlight {
        /// The operation.
        id: u64,
    },
    /// Offset or length are no multiples of a sector, or leave the 64-bit address space.
    BadRange {
        /// The operation.
        id: u64,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::NotInFlight { id } => {
                write!(f, "operation {id} completes but is not in flight")
            }
            ReplayError::AlreadyInFlight { id } => {
                write!(f, "operation {id} begins but is in flight already")
            }
            ReplayError::BadRange { id } => {
                write!(
                    f,
                    "operation {id} has an offset or a length that no device takes"
                )
            }
        }
    }
}

impl std::error::Error for ReplayError {}

/// Replays a record over the image the device held when recording began.
#[derive(Clone)]
pub struct LogReplay {
    images: CrashImages,
    changes: BTreeMap<u64, ChangeId>,
    flushes: BTreeMap<u64, u64>,
    position: u64,
}

impl LogReplay {
    /// Before the first event. Everything in `base` is durable.
    pub fn new(base: DiskImage) -> LogReplay {
        LogReplay {
            images: CrashImages {
                cache: WriteCache::new(base),
            },
            changes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            position: 0,
        }
    }

    /// The outcomes of a power loss after all of `events`.
    pub fn images_after<'a>(
        base: DiskImage,
        events: impl IntoIterator<Item = &'a IoEvent>,
    ) -> Result<CrashImages, ReplayError> {
        let mut replay = LogReplay::new(base);
        for event in events {
            replay.apply(event)?;
        }
        Ok(replay.images)
    }

    /// Events applied so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The outcomes of a power loss now.
    pub fn images(&self) -> &CrashImages {
        &self.images
    }

    /// Takes the next event.
    ///
    /// A write that failed may have reached the media in any part and no flush makes it durable;
    /// after a flush that failed the same holds for all that is not durable yet. A discard reads
    /// as zeros once it is durable.
    pub fn apply(&mut self, event: &IoEvent) -> Result<(), ReplayError> {
        let cache = &mut self.images.cache;
        match event {
            IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                bytes,
            } => {
                let payload = Payload::Bytes(bytes.clone());
                self.submit(*id, *offset_bytes, bytes.len() as u64, payload)?;
            }
            IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            } => self.submit(*id, *offset_bytes, *len_bytes, Payload::Zeros)?,
            IoEvent::WriteCompleted { id, ok } | IoEvent::DiscardCompleted { id, ok } => {
                let change = self.changes.remove(id);
                let change = change.ok_or(ReplayError::NotInFlight { id: *id })?;
                if !ok {
                    cache.doubt(change);
                }
                cache.complete(change, Survival::Whole, None);
            }
            IoEvent::FlushSubmitted { id } => {
                if self.flushes.contains_key(id) {
                    return Err(ReplayError::AlreadyInFlight { id: *id });
                }
                self.flushes.insert(*id, cache.flush_started());
            }
            IoEvent::FlushCompleted { id, ok } => {
                let started = self.flushes.remove(id);
                let started = started.ok_or(ReplayError::NotInFlight { id: *id })?;
                match ok {
                    true => cache.flushed(started),
                    false => cache.doubt_all(),
                }
            }
            IoEvent::Mark { .. } => {}
        }
        self.position += 1;
        Ok(())
    }

    fn submit(
        &mut self,
        id: u64,
        offset_bytes: u64,
        len_bytes: u64,
        payload: Payload,
    ) -> Result<(), ReplayError> {
        let aligned = (offset_bytes | len_bytes).is_multiple_of(SECTOR_BYTES);
        if !aligned || offset_bytes.checked_add(len_bytes).is_none() {
            return Err(ReplayError::BadRange { id });
        }
        if self.changes.contains_key(&id) {
            return Err(ReplayError::AlreadyInFlight { id });
        }
        let change = self.images.cache.submit(offset_bytes, len_bytes, payload);
        self.changes.insert(id, change);
        Ok(())
    }
}
