//! A load that knows what a crash may and may not lose.
//!
//! Each writer has a region of the volume and a connection of its own and sends one request at a
//! time: stable writes, unstable ones, flushes, of one sector up to many blocks. Every sector it
//! writes says where it belongs and which write put it there. After a crash the writer reads its
//! region and holds it against what it was told:
//!
//! - a sector holds a write that was sent to it, whole, and none older than its last stable one;
//! - within a block, a write is there in full or not at all;
//! - nothing else ever appears.
//!
//! What is found then counts as stable: a server that recovered to a state must not go back on it.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::nbd::{Connection, Failure};

/// The unit that carries a stamp; the smallest write there is.
pub(super) const SECTOR_BYTES: usize = 512;
const SECTORS_PER_BLOCK: u64 = 8;
/// The longest write: 256 KiB.
const WRITE_SECTORS_MAX: u64 = 512;
/// Reading back is done in pieces of this size.
const READ_SECTORS: u64 = 2048;
/// First word of every stamped sector.
const STAMP: u64 = 0x464c_4147_5354_4f4e;

/// A seeded generator, xorshift64*. The tests' choices repeat; the moment of the crash doesn't.
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring sequences, and zero would never leave zero.
        Random((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`, which must not be zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What one sector of a writer's region may hold.
#[derive(Clone, Default)]
struct Sector {
    /// The write that is stable here; zero for none, which reads as zeroes.
    stable: u64,
    /// Later writes sent to it, oldest first.
    later: Vec<u64>,
}

/// A write that isn't known to be stable.
#[derive(Clone, Copy)]
struct Write {
    number: u64,
    first: u64,
    sectors: u64,
}

/// One writer's region and all it knows about it.
pub(super) struct Writer {
    first_sector: u64,
    sectors: u64,
    /// Writes of different writers never have the same number.
    next_number: u64,
    random: Random,
    known: BTreeMap<u64, Sector>,
    unstable: Vec<Write>,
    /// Requests answered so far.
    pub(super) answered: u64,
}

impl Writer {
    /// Writer `index` of those that share a volume, with `region_bytes` each.
    pub(super) fn new(index: u64, region_bytes: u64, seed: u64) -> Writer {
        let sectors = region_bytes / SECTOR_BYTES as u64;
        Writer {
            first_sector: index * sectors,
            sectors,
            next_number: (index << 40) + 1,
            random: Random::new(seed ^ (index << 32)),
            known: BTreeMap::new(),
            unstable: Vec::new(),
            answered: 0,
        }
    }

    /// Sends requests until the connection breaks, which is what a crash looks like. An error the
    /// server answers with is a failure of the test.
    pub(super) fn run(&mut self, port: u16, export: &str) -> Result<()> {
        let Ok(mut connection) = Connection::open(port, export) else {
            return Ok(());
        };
        loop {
            match self.step(&mut connection) {
                Ok(()) => self.answered += 1,
                Err(Failure::Broken(_)) => return Ok(()),
                Err(failure) => bail!("under load: {failure}"),
            }
        }
    }

    /// One request.
    fn step(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let choice = self.random.below(10);
        if choice == 0 {
            connection.flush()?;
            // Everything answered before the flush was sent is stable now.
            self.all_stable();
            return Ok(());
        }
        let (first, sectors) = self.pick_range();
        let write = Write {
            number: self.next_number,
            first,
            sectors,
        };
        self.next_number += 1;
        let mut data = Vec::with_capacity(sectors as usize * SECTOR_BYTES);
        for sector in first..first + sectors {
            data.extend(stamp(sector, write.number));
            // From here on it may be on the device, answered or not.
            self.known
                .entry(sector)
                .or_default()
                .later
                .push(write.number);
        }
        self.unstable.push(write);
        let fua = choice > 5;
        connection.write(first * SECTOR_BYTES as u64, &data, fua)?;
        if fua {
            self.stable(write);
            self.unstable.retain(|other| other.number != write.number);
        }
        Ok(())
    }

    /// Mostly whole blocks, often parts of one, sometimes many; hot spots make overwrites common.
    fn pick_range(&mut self) -> (u64, u64) {
        let blocks = self.sectors / SECTORS_PER_BLOCK;
        let hot = self.random.below(2) == 0;
        let block = self.random.below(if hot { blocks.min(64) } else { blocks });
        let start = block * SECTORS_PER_BLOCK;
        let (offset, sectors) = match self.random.below(8) {
            0..=3 => (0, SECTORS_PER_BLOCK),
            4..=5 => {
                let offset = self.random.below(SECTORS_PER_BLOCK);
                (offset, 1 + self.random.below(SECTORS_PER_BLOCK - offset))
            }
            6 => (
                self.random.below(SECTORS_PER_BLOCK),
                1 + self.random.below(64),
            ),
            _ => (0, SECTORS_PER_BLOCK * (1 + self.random.below(32))),
        };
        let first = start + offset;
        let sectors = sectors.min(WRITE_SECTORS_MAX).min(self.sectors - first);
        (self.first_sector + first, sectors)
    }

    /// A stable write makes what came before it in its sectors history.
    fn stable(&mut self, write: Write) {
        for sector in write.first..write.first + write.sectors {
            if let Some(known) = self.known.get_mut(&sector) {
                known.stable = known.stable.max(write.number);
                known.later.retain(|number| *number > write.number);
            }
        }
    }

    fn all_stable(&mut self) {
        for write in std::mem::take(&mut self.unstable) {
            self.stable(write);
        }
    }

    /// Reads the whole region and holds it against what is known; then takes it as stable.
    pub(super) fn check(&mut self, port: u16, export: &str) -> Result<()> {
        let mut connection = Connection::open(port, export)?;
        let mut found = BTreeMap::new();
        let mut at = self.first_sector;
        let end = self.first_sector + self.sectors;
        let size_bytes = connection.size_bytes;
        ensure!(
            size_bytes >= end * SECTOR_BYTES as u64,
            "the export has only {size_bytes} bytes"
        );
        while at < end {
            let count = READ_SECTORS.min(end - at);
            let mut data = vec![0; count as usize * SECTOR_BYTES];
            connection.read(at * SECTOR_BYTES as u64, &mut data)?;
            for (sector, bytes) in (at..).zip(data.chunks_exact(SECTOR_BYTES)) {
                let number = read_stamp(sector, bytes)?;
                if number != 0 {
                    found.insert(sector, number);
                }
            }
            at += count;
        }
        connection.disconnect();
        self.judge(&found)?;
        for (sector, known) in &mut self.known {
            known.stable = found.get(sector).copied().unwrap_or(0);
            known.later.clear();
        }
        self.unstable.clear();
        Ok(())
    }

    fn judge(&self, found: &BTreeMap<u64, u64>) -> Result<()> {
        for (sector, known) in &self.known {
            let number = found.get(sector).copied().unwrap_or(0);
            ensure!(
                number >= known.stable,
                "sector {sector} lost stable write {}: it holds {number}",
                known.stable
            );
        }
        for (sector, number) in found {
            let known = self.known.get(sector).cloned().unwrap_or_default();
            ensure!(
                known.stable == *number || known.later.contains(number),
                "sector {sector} holds write {number}, but {} is stable there and {:?} later",
                known.stable,
                known.later
            );
        }
        for write in &self.unstable {
            self.judge_blocks(write, found)?;
        }
        Ok(())
    }

    /// A write may be lost block by block, but not within one.
    fn judge_blocks(&self, write: &Write, found: &BTreeMap<u64, u64>) -> Result<()> {
        let end = write.first + write.sectors;
        let mut at = write.first;
        while at < end {
            let block_end = (at / SECTORS_PER_BLOCK + 1) * SECTORS_PER_BLOCK;
            let part: Vec<u64> = (at..end.min(block_end))
                .map(|sector| found.get(&sector).copied().unwrap_or(0))
                .collect();
            if part.contains(&write.number) && part.iter().any(|number| *number < write.number) {
                bail!(
                    "write {} of sectors {}..{end} is torn within the block of sector {at}: {part:?}",
                    write.number,
                    write.first
                );
            }
            at = block_end;
        }
        Ok(())
    }
}

/// The content of a sector: where it belongs, who wrote it, and a filling that depends on both.
pub(super) fn stamp(sector: u64, number: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let mut fill = Random::new(sector.rotate_left(32) ^ number);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match index {
            0 => STAMP,
            1 => sector,
            2 => number,
            _ => fill.next(),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The number of the write that a sector holds; zero for one that was never written.
pub(super) fn read_stamp(sector: u64, bytes: &[u8]) -> Result<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
        u64::from_le_bytes(word)
    };
    ensure!(
        word(0) == STAMP,
        "sector {sector} holds bytes that nobody wrote: {:02x?}",
        &bytes[..32]
    );
    ensure!(
        word(1) == sector,
        "sector {sector} holds what belongs to sector {}",
        word(1)
    );
    let number = word(2);
    ensure!(
        bytes == stamp(sector, number),
        "sector {sector} holds a damaged write {number}"
    );
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeServer, Fault};
    use super::*;

    /// Runs a writer against a fake server that crashes after some requests, a few times over.
    fn crash_and_check(fault: Fault) -> Result<()> {
        let server = FakeServer::start(1 << 20, fault);
        let mut writer = Writer::new(0, 1 << 20, 7);
        for round in 0..6 {
            server.crash_after(200 + round * 37);
            writer.run(server.port(), "any")?;
            server.recover();
            writer.check(server.port(), "any")?;
        }
        assert!(writer.answered > 1000);
        Ok(())
    }

    #[test]
    fn an_honest_server_passes() {
        crash_and_check(Fault::None).expect("nothing to find");
    }

    #[test]
    fn a_lost_stable_write_is_found() {
        let error = crash_and_check(Fault::ForgetsFua).expect_err("loses stable writes");
        assert!(format!("{error}").contains("lost stable write"), "{error}");
    }

    #[test]
    fn a_flush_that_does_nothing_is_found() {
        let error = crash_and_check(Fault::SkipsFlush).expect_err("loses flushed writes");
        assert!(format!("{error}").contains("lost stable write"), "{error}");
    }

    #[test]
    fn a_torn_block_is_found() {
        let error = crash_and_check(Fault::TearsBlocks).expect_err("tears blocks");
        assert!(
            format!("{error}").contains("torn within the block"),
            "{error}"
        );
    }

    #[test]
    fn misplaced_and_damaged_sectors_are_found() {
        let mut bytes = stamp(5, 9);
        assert_eq!(read_stamp(5, &bytes).expect("whole"), 9);
        assert!(read_stamp(6, &bytes).is_err());
        bytes[300] ^= 1;
        assert!(read_stamp(5, &bytes).is_err());
    }
}
