//! What the clients of a recorded run sent, and what the sectors they wrote look like.
//!
//! The log is text. First a line `volume INDEX NAME ID` for each volume, then a line
//! `writer INDEX VOLUME FIRST SECTORS` for each client with the region it has to itself, then a line
//! `WRITER NUMBER KIND FIRST SECTORS` for each request, those of one writer in the order in which it
//! sent them; it sent none before the one before was answered. KIND is `write`, `write-stable`,
//! `clear` (a trim or zeros), `clear-stable` or `flush`. Sectors are of 512 bytes and count from the
//! volume's start; numbers rise, and no two writers use the same.
//!
//! A written sector says where it belongs and which request wrote it: five words, little-endian,
//! `0x464c414753544f4e`, the sector, the number, then a filling that depends on both.

use std::collections::BTreeMap;

use crate::image::SECTOR_BYTES;

/// First word of every written sector.
const STAMP: u64 = 0x464c_4147_5354_4f4e;

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Write the stamped sectors.
    Write,
    /// Make the range read as zeros.
    Clear,
}

/// One request that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number, which its sectors carry.
    pub number: u64,
    /// What it asks for.
    pub kind: Kind,
    /// Whether the answer promises that it survives.
    pub stable: bool,
    /// First sector of the volume.
    pub first: u64,
    /// How many.
    pub sectors: u64,
    /// True if the writer sent a flush, and had its answer, between this request and the one
    /// before.
    pub after_flush: bool,
}

impl Request {
    /// The sectors.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.sectors
    }
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The id of its dvol.
    pub id: u128,
}

/// A client with a region of a volume to itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The volume, by its place in the list.
    pub volume: usize,
    /// First sector of its region.
    pub first: u64,
    /// Sectors of its region.
    pub sectors: u64,
    /// What it sent, flushes left out.
    pub requests: Vec<Request>,
    /// For each sector of the region the requests that change it, by place in `requests`.
    pub touching: Vec<Vec<u32>>,
}

/// All that was sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientLog {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The clients.
    pub writers: Vec<Writer>,
    /// Which writer sent a number, and as which of its requests.
    numbers: BTreeMap<u64, (usize, usize)>,
}

impl ClientLog {
    /// Reads a log. The error names the line.
    pub fn parse(text: &str) -> Result<ClientLog, String> {
        let mut log = ClientLog::default();
        // Writers whose last line was a flush.
        let mut flushed = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            log.parse_line(line, &mut flushed)
                .ok_or_else(|| format!("line {} of the log makes no sense: {line}", index + 1))?;
        }
        Ok(log)
    }

    fn parse_line(&mut self, line: &str, flushed: &mut BTreeMap<usize, bool>) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        match *words.first()? {
            "volume" => {
                (number(1)? == self.volumes.len() as u64).then_some(())?;
                let id = u128::from_str_radix(words.get(3)?, 16).ok()?;
                let name = (*words.get(2)?).to_owned();
                self.volumes.push(Volume { name, id });
            }
            "writer" => {
                (number(1)? == self.writers.len() as u64).then_some(())?;
                let (volume, sectors) = (number(2)? as usize, number(4)?);
                self.volumes.get(volume)?;
                self.writers.push(Writer {
                    volume,
                    first: number(3)?,
                    sectors,
                    requests: Vec::new(),
                    touching: vec![Vec::new(); usize::try_from(sectors).ok()?],
                });
            }
            _ => {
                let index = number(0)? as usize;
                let writer = self.writers.get_mut(index)?;
                let (kind, stable) = match *words.get(2)? {
                    "write" => (Kind::Write, false),
                    "write-stable" => (Kind::Write, true),
                    "clear" => (Kind::Clear, false),
                    "clear-stable" => (Kind::Clear, true),
                    "flush" => {
                        flushed.insert(index, true);
                        return Some(());
                    }
                    _ => return None,
                };
                let request = Request {
                    number: number(1)?,
                    kind,
                    stable,
                    first: number(3)?,
                    sectors: number(4)?,
                    after_flush: flushed.insert(index, false) == Some(true),
                };
                let place = writer.requests.len();
                for sector in request.range() {
                    let at = usize::try_from(sector.checked_sub(writer.first)?).ok()?;
                    writer.touching.get_mut(at)?.push(place as u32);
                }
                let known = self.numbers.insert(request.number, (index, place));
                known.is_none().then_some(())?;
                writer.requests.push(request);
            }
        }
        Some(())
    }

    /// The writer that sent a number, and which of its requests that is.
    pub fn sender_of(&self, number: u64) -> Option<(usize, usize)> {
        self.numbers.get(&number).copied()
    }

    /// The volume with this id.
    pub fn volume_of_id(&self, id: u128) -> Option<usize> {
        self.volumes.iter().position(|volume| volume.id == id)
    }

    /// The writer whose region holds a sector of a volume.
    pub fn writer_of(&self, volume: usize, sector: u64) -> Option<usize> {
        self.writers
            .iter()
            .position(|w| w.volume == volume && (w.first..w.first + w.sectors).contains(&sector))
    }
}

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeros.
    Zeros,
    /// What the request with this number put there.
    Written(u64),
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// The number that a sector-sized piece of the device carries, if it looks like a client's sector.
pub fn number_in(bytes: &[u8]) -> Option<u64> {
    let is_sector = bytes.len() == SECTOR_BYTES as usize && word(bytes, 0) == STAMP;
    is_sector.then(|| word(bytes, 2))
}

/// What a sector of a volume holds. An error if no client ever sent that there.
pub fn read_sector(sector: u64, bytes: &[u8]) -> Result<Content, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Content::Zeros);
    }
    if word(bytes, 0) != STAMP {
        return Err(format!(
            "sector {sector} holds bytes that nobody wrote: {:02x?}",
            &bytes[..32]
        ));
    }
    let (belongs, number) = (word(bytes, 1), word(bytes, 2));
    if belongs != sector {
        return Err(format!("sector {sector} holds what belongs to {belongs}"));
    }
    if bytes != stamp(sector, number) {
        return Err(format!("sector {sector} holds a damaged write {number}"));
    }
    Ok(Content::Written(number))
}

/// The content of a written sector.
pub fn stamp(sector: u64, number: u64) -> [u8; SECTOR_BYTES as usize] {
    let mut bytes = [0; SECTOR_BYTES as usize];
    // xorshift64*; the seed is spread and never zero.
    let seed = sector.rotate_left(32) ^ number ^ 0x9e37_79b9_7f4a_7c15;
    let mut state = seed.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match index {
            0 => STAMP,
            1 => sector,
            2 => number,
            _ => {
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                state.wrapping_mul(0x2545_f491_4f6c_dd1d)
            }
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let text = "volume 0 data 1f\nwriter 0 0 0 64\nwriter 1 0 64 64\n\
                    0 1 write 0 8\n0 2 flush 0 0\n0 3 clear-stable 4 2\n1 900 write-stable 64 1";
        let log = ClientLog::parse(text).unwrap();
        assert_eq!(log.volume_of_id(0x1f), Some(0));
        assert_eq!(log.writer_of(0, 64), Some(1));
        assert_eq!(log.sender_of(3), Some((0, 1)));
        let requests = &log.writers[0].requests;
        assert!(requests[1].after_flush && requests[1].stable);
        assert_eq!(requests[1].kind, Kind::Clear);
        assert!(!requests[0].after_flush);
        assert_eq!(log.writers[0].touching[5], [0, 1]);
        for bad in ["0 1 write 0 8", "volume 0 x", "volume 1 x 0", "what"] {
            assert!(ClientLog::parse(bad).is_err(), "{bad}");
        }
        let outside = format!("{text}\n1 901 write 0 1");
        assert!(ClientLog::parse(&outside).is_err());
    }

    #[test]
    fn sectors_say_what_they_are() {
        let mut bytes = stamp(5, 9);
        assert_eq!(read_sector(5, &bytes), Ok(Content::Written(9)));
        assert_eq!(number_in(&bytes), Some(9));
        assert!(read_sector(6, &bytes).is_err());
        bytes[300] ^= 1;
        assert!(read_sector(5, &bytes).is_err());
        assert_eq!(read_sector(5, &[0; 512]), Ok(Content::Zeros));
    }
}
