//! What the tests share: tagged sectors, and an oracle that says what each sector may hold.
//!
//! The oracle shares no code with the simulator. It keeps the whole history and applies the
//! definition: a write's content is possible unless a write that is sure to be there was submitted
//! after the first one had ended.

#![allow(dead_code)] // Each test binary uses its part.

use std::collections::BTreeSet;

use flagstone_platform::IoBuf;
use flagstone_sim::record::IoEvent;
use flagstone_sim::{DiskImage, SECTOR_BYTES};

/// Identifies a write in the sectors it fills. Zero is the content of a fresh disk.
pub(crate) type Tag = u64;

/// Sectors that each hold `tag` throughout.
pub(crate) fn tagged_bytes(tag: Tag, sectors: u64) -> Vec<u8> {
    tag.to_le_bytes()
        .repeat((sectors * SECTOR_BYTES / 8) as usize)
}

/// A buffer of sectors that hold `tag`.
pub(crate) fn tagged(tag: Tag, sectors: u64) -> IoBuf {
    IoBuf::copy_of(&tagged_bytes(tag, sectors))
}

/// The tags of the sectors in `bytes`. Panics if one is torn within.
pub(crate) fn tags(bytes: &[u8]) -> Vec<Tag> {
    let sectors = bytes.chunks(SECTOR_BYTES as usize);
    sectors
        .map(|sector| {
            let mut words = sector.chunks(8).map(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                Tag::from_le_bytes(bytes)
            });
            let first = words.next().expect("a sector has words");
            assert!(words.all(|word| word == first), "a sector is torn");
            first
        })
        .collect()
}

/// The tags of an image's first sectors.
pub(crate) fn tags_of(image: &DiskImage, sectors: u64) -> Vec<Tag> {
    let mut bytes = vec![0; (sectors * SECTOR_BYTES) as usize];
    image.read(0, &mut bytes);
    tags(&bytes)
}

struct Write {
    id: u64,
    first: u64,
    sectors: u64,
    tag: Tag,
    submitted: usize,
    ended: Option<usize>,
    ok: bool,
    /// A flush failed on it: nothing is known about it.
    doubtful: bool,
    durable: bool,
}

struct Flush {
    id: u64,
    started: usize,
}

/// What a history of events allows.
#[derive(Default)]
pub(crate) struct Oracle {
    writes: Vec<Write>,
    flushes: Vec<Flush>,
    events: usize,
}

impl Oracle {
    /// After these events.
    pub(crate) fn of(events: &[IoEvent]) -> Oracle {
        let mut oracle = Oracle::default();
        for event in events {
            oracle.apply(event);
        }
        oracle
    }

    fn apply(&mut self, event: &IoEvent) {
        let now = self.events;
        self.events += 1;
        match event {
            IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                bytes,
            } => {
                let tag = tags(bytes).first().copied().unwrap_or(0);
                self.begin(*id, *offset_bytes, bytes.len() as u64, tag);
            }
            IoEvent::DiscardSubmitted {
                id,
                offset_bytes,
                len_bytes,
            } => self.begin(*id, *offset_bytes, *len_bytes, 0),
            IoEvent::WriteCompleted { id, ok } | IoEvent::DiscardCompleted { id, ok } => {
                let mut open = self.writes.iter_mut().filter(|w| w.ended.is_none());
                let write = open.find(|w| w.id == *id).expect("it was submitted");
                write.ended = Some(now);
                write.ok = *ok;
            }
            IoEvent::FlushSubmitted { id } => self.flushes.push(Flush {
                id: *id,
                started: now,
            }),
            IoEvent::FlushCompleted { id, ok } => {
                let index = self.flushes.iter().position(|flush| flush.id == *id);
                let flush = self.flushes.remove(index.expect("it was submitted"));
                for write in self.writes.iter_mut().filter(|write| !write.durable) {
                    if !ok {
                        write.doubtful = true;
                    } else if write.ok && !write.doubtful {
                        write.durable = write.ended.is_some_and(|ended| ended < flush.started);
                    }
                }
            }
            IoEvent::Mark { .. } => {}
        }
    }

    fn begin(&mut self, id: u64, offset_bytes: u64, len_bytes: u64, tag: Tag) {
        self.writes.push(Write {
            id,
            first: offset_bytes / SECTOR_BYTES,
            sectors: len_bytes / SECTOR_BYTES,
            tag,
            submitted: self.events,
            ended: None,
            ok: false,
            doubtful: false,
            durable: false,
        });
    }

    /// Tags possible on a sector when the writes that `surely` picks are sure to be there.
    fn possible(&self, sector: u64, surely: impl Fn(&Write) -> bool) -> BTreeSet<Tag> {
        let covering =
            |write: &&Write| (write.first..write.first + write.sectors).contains(&sector);
        let here: Vec<&Write> = self.writes.iter().filter(covering).collect();
        let sure: Vec<&Write> = here.iter().copied().filter(|w| surely(w)).collect();
        let mut possible: BTreeSet<Tag> = here
            .iter()
            .filter(|write| {
                let ended = write.ended.unwrap_or(usize::MAX);
                !sure.iter().any(|later| ended < later.submitted)
            })
            .map(|write| write.tag)
            .collect();
        if sure.is_empty() {
            possible.insert(0);
        }
        possible
    }

    /// Tags a sector may hold after a power loss.
    pub(crate) fn after_power_loss(&self, sector: u64) -> BTreeSet<Tag> {
        self.possible(sector, |write| write.durable)
    }

    /// Tags that a read, called when there had been `called_at` events, may return of a sector.
    pub(crate) fn readable(&self, sector: u64, called_at: usize) -> BTreeSet<Tag> {
        self.possible(sector, |write| {
            let done = write.ended.is_some_and(|ended| ended < called_at);
            done && write.ok && !write.doubtful
        })
    }

    /// Panics unless every sector holds something it may.
    pub(crate) fn check(&self, image: &DiskImage, sectors: u64) {
        for (sector, tag) in tags_of(image, sectors).into_iter().enumerate() {
            let allowed = self.after_power_loss(sector as u64);
            assert!(
                allowed.contains(&tag),
                "sector {sector} holds {tag}, allowed are {allowed:?}"
            );
        }
    }
}
