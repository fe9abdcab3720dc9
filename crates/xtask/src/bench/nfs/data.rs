//! Loads on what files hold: reads and writes at random places and one after the other.
//!
//! Each block carries its own place, so that what is read can be judged.

use anyhow::{Result, ensure};

use super::client::{Line, Step, Work};
use super::wire::{Answer, Handle, Stability, procedure};

pub(super) const BLOCK_BYTES: u64 = 4096;
pub(super) const MEGABYTE: u64 = 1 << 20;
/// Exclusive or of a block's place with this is what its first eight bytes hold.
const STAMP: u64 = 0x666c_6167_7374_6f6e;

/// A generator that needs to be no more than quick (xorshift64).
pub(in crate::bench) struct Random(u64);

impl Random {
    pub(in crate::bench) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(in crate::bench) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The high bits are the better ones.
        (self.0 >> 11) % limit.max(1)
    }
}

/// Bytes that do not compress.
pub(in crate::bench) fn noise(len: u64) -> Vec<u8> {
    let mut random = Random::new(len);
    let words = (0..len / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes());
    words.collect()
}

/// Which of a slot's calls are writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Reads,
    Writes,
    /// A write for every four reads.
    Mix,
}

/// Where the next call goes.
#[derive(Clone, Copy, Debug)]
enum Place {
    Random,
    /// The next bytes, up to the file's end.
    Sequential(u64),
}

/// Reads and writes of one file.
pub(super) struct Transfers<'a> {
    file: &'a Handle,
    size: u64,
    kind: Kind,
    stability: Stability,
    transfer: u64,
    place: Place,
    random: Random,
    data: Vec<u8>,
    /// Of each slot's last call.
    sent: Vec<(u64, bool)>,
    /// What an operation counts.
    units: u64,
}

impl<'a> Transfers<'a> {
    /// 4 KiB at random places; writes are stable when answered.
    pub(super) fn random(file: &'a Handle, size: u64, kind: Kind, seed: u64) -> Transfers<'a> {
        Transfers {
            file,
            size,
            kind,
            stability: Stability::FileSync,
            transfer: BLOCK_BYTES,
            place: Place::Random,
            random: Random::new(seed),
            data: noise(BLOCK_BYTES),
            sent: Vec::new(),
            units: 1,
        }
    }

    /// From the file's beginning to its end, so many bytes at a time; writes are unstable.
    pub(super) fn sequential(file: &'a Handle, size: u64, kind: Kind, transfer: u64) -> Self {
        Transfers {
            stability: Stability::Unstable,
            transfer,
            place: Place::Sequential(0),
            data: noise(transfer),
            ..Transfers::random(file, size, kind, 1)
        }
    }

    fn next_place(&mut self) -> Option<u64> {
        match &mut self.place {
            Place::Random => Some(self.random.below(self.size / self.transfer) * self.transfer),
            Place::Sequential(next) => {
                let place = *next;
                *next += self.transfer;
                (*next <= self.size).then_some(place)
            }
        }
    }
}

impl Work for Transfers<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let Some(place) = self.next_place() else {
            return false;
        };
        let writes = match self.kind {
            Kind::Reads => false,
            Kind::Writes => true,
            Kind::Mix => self.random.below(5) == 0,
        };
        if self.sent.len() <= slot {
            self.sent.resize(slot + 1, (0, false));
        }
        self.sent[slot] = (place, writes);
        let count = self.transfer as u32;
        if writes {
            for at in (0..self.transfer).step_by(BLOCK_BYTES as usize) {
                let stamp = (STAMP ^ (place + at)).to_le_bytes();
                self.data[at as usize..at as usize + 8].copy_from_slice(&stamp);
            }
        }
        let (file, data, stability) = (self.file, &self.data, self.stability);
        let number = if writes {
            procedure::WRITE
        } else {
            procedure::READ
        };
        line.call(slot, number, |out| {
            out.opaque(&file.0);
            out.long(place);
            out.word(count);
            if writes {
                out.word(stability as u32);
                out.opaque(data);
            }
        });
        true
    }

    fn take(&mut self, slot: usize, mut answer: Answer, _line: &mut Line) -> Result<Step> {
        let (place, wrote) = self.sent[slot];
        if wrote {
            written(&mut answer, self.transfer, self.stability)?;
        } else {
            answer.must_be_ok("READ")?;
            answer.skip_attributes()?;
            let (count, _at_end) = (answer.word()?, answer.word()?);
            let data = answer.opaque()?;
            ensure!(
                u64::from(count) == self.transfer && data.len() as u64 == self.transfer,
                "READ of {} bytes at {place} gave {count}",
                self.transfer
            );
            for (index, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                let expected = (STAMP ^ (place + index as u64 * BLOCK_BYTES)).to_le_bytes();
                ensure!(
                    block.starts_with(&expected),
                    "READ at {place}: block {index} holds other bytes than were written there"
                );
            }
        }
        Ok(Step::Done(self.units))
    }
}

/// Checks the answer to a WRITE.
pub(crate) fn written(answer: &mut Answer, expected: u64, asked: Stability) -> Result<()> {
    answer.must_be_ok("WRITE")?;
    answer.skip_changes()?;
    let (count, committed) = (answer.word()?, answer.word()?);
    ensure!(
        u64::from(count) == expected,
        "WRITE of {expected} bytes took {count}"
    );
    ensure!(
        committed >= asked as u32,
        "WRITE was asked to be as stable as {asked:?}, and is {committed}"
    );
    Ok(())
}
