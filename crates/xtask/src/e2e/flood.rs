//! A client that writes as quickly as it is answered while its volume is moved, and what it sees of each move: the longest time in which none of
//! its writes was answered. Whoever waits for a disk sees that, whatever the node says of how long it held changes.
//!
//! A volume that is written as quickly as it is copied has its writes made slower on purpose until it is moved. A single one may wait for its turn then, while
//! others are answered, so what is judged is the time without answers; the longest wait of one write is printed. Behind each move the client stops and reads
//! the whole volume: a write that a move lost would be written over before long.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::load::Random;
use super::nbd::{Command, Connection, REPLY_MAGIC, request};
use super::others::{Others, Work};
use super::pauses;

/// The volume that it has.
pub(super) const VOLUME: &str = "flood";
/// Many times what is copied while changes are held, and what is written while it is copied is more than that, too.
pub(super) const VOLUME_BYTES: u64 = 64 << 20;
/// Of each kind: an odd number, so that one is in the middle.
pub(super) const MOVES: usize = 7;
const BLOCK_BYTES: u64 = 4096;
/// What is read back at a time.
const READ_BYTES: u64 = 256 << 10;
/// In flight.
const DEPTH: u64 = 16;
/// It writes for so long before a move, and behind it: what waited for its end is answered by then.
const AROUND: Duration = Duration::from_millis(100);
/// A move that takes longer has no end. (One takes a second or two.)
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// An answer to a write, and how long that took.
#[derive(Clone, Copy)]
struct Answer {
    at: Instant,
    took: Duration,
}

/// What the client saw of one move.
struct Seen {
    answers: Vec<Answer>,
    /// When the move began and when it was over.
    from: Instant,
    to: Instant,
}

impl Seen {
    /// The longest time without an answer, of which a part lies between the beginning of the move and shortly behind its end.
    fn without_answer(&self) -> Duration {
        let until = self.to + AROUND;
        let pauses = self.answers.windows(2).filter_map(|pair| match pair {
            [before, next] if next.at >= self.from && before.at <= until => {
                Some(next.at.duration_since(before.at))
            }
            _ => None,
        });
        pauses.max().unwrap_or_default()
    }

    /// What was answered in that time.
    fn within(&self) -> impl Iterator<Item = &Answer> {
        let within = self.from..self.to + AROUND;
        self.answers
            .iter()
            .filter(move |answer| within.contains(&answer.at))
    }

    fn longest(&self) -> Duration {
        let took = self.within().map(|answer| answer.took);
        took.max().unwrap_or_default()
    }
}

/// A move, as the client and the node saw it.
pub(super) struct Moved {
    without_answer: Duration,
    longest: Duration,
    took: Duration,
    writes: usize,
    /// For how long the node held changes, in microseconds.
    held_us: u64,
}

/// Says what a client saw of the moves of one kind, and fails if the middle one of its pauses is not below the bound.
pub(super) fn judge(what: &str, bound: Duration, moves: &[Moved]) -> Result<()> {
    let what = format!("{what}, written without a limit");
    let longest = moves.iter().map(|moved| moved.longest).max();
    let held = moves.iter().map(|moved| moved.held_us).max();
    let took_s: f64 = moves.iter().map(|moved| moved.took.as_secs_f64()).sum();
    let slowest = moves.iter().map(|moved| moved.took).max();
    let writes: usize = moves.iter().map(|moved| moved.writes).sum();
    println!(
        "{what}: {} moves in {took_s:.1} s, the longest in {:.1} s; {:.0} writes a second, of which one took {:.1} ms; by the node's word changes waited {:.1} ms at most",
        moves.len(),
        slowest.unwrap_or_default().as_secs_f64(),
        writes as f64 / took_s.max(f64::EPSILON),
        longest.unwrap_or_default().as_secs_f64() * 1e3,
        held.unwrap_or(0) as f64 / 1e3
    );
    let pauses = moves.iter().map(|moved| moved.without_answer.as_micros());
    let pauses: Vec<u64> = pauses
        .map(|us| u64::try_from(us).unwrap_or(u64::MAX))
        .collect();
    let waited = format!("{what}: no answer came for");
    pauses::judge_middle(&waited, bound, &pauses)
}

/// What is in flight.
#[derive(Clone, Copy)]
struct Pending {
    block: u64,
    since: Instant,
}

/// The client. It has one connection for all its moves.
pub(super) struct Flood {
    stream: TcpStream,
    /// How often each block was written. No two writes of one block are in flight: each of those in flight has blocks of its own.
    versions: Vec<u64>,
    /// One for each that may be in flight.
    pending: Vec<Pending>,
    random: Random,
    /// When it began.
    before: Work,
}

impl Flood {
    /// Attaches the volume at this node, wherever it is, and writes all of it.
    pub(super) fn open(port: u16) -> Result<Flood> {
        let connection = Connection::open(port, VOLUME)?;
        let blocks = connection.size_bytes / BLOCK_BYTES;
        ensure!(
            blocks >= DEPTH && connection.size_bytes.is_multiple_of(READ_BYTES),
            "the volume has {blocks} blocks"
        );
        let nothing = Pending {
            block: 0,
            since: Instant::now(),
        };
        let mut flood = Flood {
            stream: connection.into_stream(),
            versions: vec![0; usize::try_from(blocks)?],
            pending: vec![nothing; DEPTH as usize],
            random: Random::new(1),
            before: Work::until_now()?,
        };
        flood.fill().context("filling the volume")?;
        Ok(flood)
    }

    /// Lets the volume go. Returns what others had of the machine meanwhile.
    pub(super) fn end(self) -> Result<Others> {
        self.before.others("writes without a limit")
    }

    fn fill(&mut self) -> Result<()> {
        for first in (0..self.versions.len() as u64).step_by(DEPTH as usize) {
            let blocks = first..(first + DEPTH).min(self.versions.len() as u64);
            for block in blocks.clone() {
                self.send(block % DEPTH, block)?;
            }
            for _ in blocks {
                self.receive()?;
            }
        }
        Ok(())
    }

    /// Does something with the volume, which returns how long changes were held meanwhile, in microseconds; writes before, beside and behind
    /// it, and then looks whether everything that was written is there.
    pub(super) fn beside(&mut self, moves: impl FnOnce() -> Result<u64>) -> Result<Moved> {
        let is_over = AtomicBool::new(false);
        let (moved, answers) = thread::scope(|scope| {
            let writing = scope.spawn(|| self.write_until(&is_over));
            thread::sleep(AROUND);
            let from = Instant::now();
            let moved = moves().map(|held_us| (held_us, from, Instant::now()));
            thread::sleep(AROUND);
            is_over.store(true, Ordering::SeqCst);
            let answers = writing.join();
            (
                moved,
                answers.unwrap_or_else(|_| Err(anyhow!("the client panicked"))),
            )
        });
        // The client's error first: a move that fails behind it says less.
        let answers =
            answers.context("a client that writes without a limit while its volume is moved")?;
        let (held_us, from, to) = moved?;
        self.check()
            .context("what was written without a limit while its volume was moved")?;
        let seen = Seen { answers, from, to };
        Ok(Moved {
            without_answer: seen.without_answer(),
            longest: seen.longest(),
            took: to.duration_since(from),
            writes: seen.within().count(),
            held_us,
        })
    }

    fn write_until(&mut self, is_over: &AtomicBool) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        let began = Instant::now();
        for slot in 0..DEPTH {
            self.send_any(slot)?;
        }
        let mut in_flight = DEPTH;
        let mut is_late = false;
        while in_flight > 0 {
            let (slot, answer) = self.receive()?;
            answers.push(answer);
            is_late |= answer.at.duration_since(began) > MOVE_LIMIT;
            match is_late || is_over.load(Ordering::SeqCst) {
                true => in_flight -= 1,
                false => self.send_any(slot)?,
            }
        }
        // Nobody writes any more, so that the move can come to its end.
        ensure!(
            !is_late,
            "a move was not over after {} s",
            MOVE_LIMIT.as_secs()
        );
        Ok(answers)
    }

    /// Writes one of the blocks that are this slot's.
    fn send_any(&mut self, slot: u64) -> Result<()> {
        let each = self.versions.len() as u64 / DEPTH;
        let block = self.random.below(each) * DEPTH + slot;
        self.send(slot, block)
    }

    fn send(&mut self, slot: u64, block: u64) -> Result<()> {
        let version = &mut self.versions[block as usize];
        *version += 1;
        let data = stamp(block, *version).repeat(BLOCK_BYTES as usize / STAMP_BYTES);
        let mut bytes = request(
            0,
            Command::Write as u16,
            slot,
            block * BLOCK_BYTES,
            BLOCK_BYTES as u32,
        );
        bytes.extend(data);
        let since = Instant::now();
        self.pending[slot as usize] = Pending { block, since };
        self.stream.write_all(&bytes).context("sending a write")
    }

    /// Takes the next answer to a write, and says whose it is.
    fn receive(&mut self) -> Result<(u64, Answer)> {
        let (slot, error) = self.reply()?;
        let at = Instant::now();
        let pending = self.pending.get(usize::try_from(slot)?);
        let Pending { block, since } = *pending.context("a reply to something never asked")?;
        ensure!(
            error == 0,
            "writing block {block} failed with error {error}"
        );
        let took = at.duration_since(since);
        Ok((slot, Answer { at, took }))
    }

    /// The next reply: to what, and with which error.
    fn reply(&mut self) -> Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream
            .read_exact(&mut reply)
            .context("waiting for an answer")?;
        let [a, b, c, d, e, f, g, h, handle @ ..] = reply;
        ensure!(
            u32::from_be_bytes([a, b, c, d]) == REPLY_MAGIC,
            "what came is no reply"
        );
        Ok((u64::from_be_bytes(handle), u32::from_be_bytes([e, f, g, h])))
    }

    /// Reads back the whole volume. Nothing is in flight.
    fn check(&mut self) -> Result<()> {
        let mut data = vec![0; READ_BYTES as usize];
        let each = READ_BYTES / BLOCK_BYTES;
        for first in (0..self.versions.len() as u64).step_by(each as usize) {
            let read = request(
                0,
                Command::Read as u16,
                first,
                first * BLOCK_BYTES,
                READ_BYTES as u32,
            );
            self.stream.write_all(&read).context("sending a read")?;
            let (handle, error) = self.reply()?;
            ensure!(
                handle == first && error == 0,
                "reading from block {first} on failed with error {error}"
            );
            self.stream
                .read_exact(&mut data)
                .context("waiting for what is read")?;
            let blocks = data.chunks_exact(BLOCK_BYTES as usize);
            for (block, found) in (first..).zip(blocks) {
                is_write(block, self.versions[block as usize], found)?;
            }
        }
        Ok(())
    }
}

const STAMP_BYTES: usize = 16;

/// What a block is full of behind this one of its writes.
fn stamp(block: u64, version: u64) -> [u8; STAMP_BYTES] {
    (u128::from(block) << 64 | u128::from(version)).to_be_bytes()
}

/// Fails unless this is what the block has behind this one of its writes, in each byte.
fn is_write(block: u64, version: u64, found: &[u8]) -> Result<()> {
    let right = stamp(block, version);
    let stamps = found.chunks_exact(STAMP_BYTES);
    let mut wrong = (0..).step_by(STAMP_BYTES).zip(stamps);
    let Some((at, there)) = wrong.find(|(_, there)| *there != right) else {
        return Ok(());
    };
    let there = u128::from_be_bytes(there.try_into()?);
    let (of, write) = (there >> 64, there as u64);
    Err(anyhow!(
        "block {block} has to hold its write number {version}, the last one, which was answered; its byte {at} and those behind it are of write number {write} of block {of}, if of any"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(answers: &[(u64, u64)], from_ms: u64, to_ms: u64) -> Seen {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let answer = |&(at_ms, took_ms): &(u64, u64)| Answer {
            at: at(at_ms),
            took: Duration::from_millis(took_ms),
        };
        Seen {
            answers: answers.iter().map(answer).collect(),
            from: at(from_ms),
            to: at(to_ms),
        }
    }

    #[test]
    fn the_longest_time_without_an_answer_may_begin_before_and_end_behind() {
        let answers = [(0, 90), (500, 1), (530, 40), (535, 5), (2000, 7)];
        let ms = Duration::from_millis;
        let long = seen(&answers, 501, 510);
        assert_eq!(long.without_answer(), ms(1465), "shortly behind its end");
        assert_eq!(long.longest(), ms(40));
        assert_eq!(long.within().count(), 2);
        assert_eq!(seen(&answers, 300, 310).without_answer(), ms(500), "around");
        assert_eq!(seen(&answers, 500, 501).without_answer(), ms(1465));
        let answers = [(0, 1), (500, 1), (530, 1), (700, 1), (2000, 1)];
        assert_eq!(seen(&answers, 501, 510).without_answer(), ms(170));
        assert_eq!(seen(&answers, 1000, 1001).longest(), ms(0));
        assert_eq!(seen(&[], 1, 2).without_answer(), ms(0));
    }

    #[test]
    fn the_middle_one_of_what_the_client_saw_is_judged() {
        let moved = |ms| Moved {
            without_answer: Duration::from_millis(ms),
            longest: Duration::ZERO,
            took: Duration::ZERO,
            writes: 0,
            held_us: 0,
        };
        let bound = Duration::from_millis(50);
        judge("here", bound, &[moved(1), moved(49), moved(900)]).expect("one may be long");
        let error = judge("there", bound, &[moved(1), moved(50), moved(900)]);
        let text = error.expect_err("too long").to_string();
        for word in [
            "there, written without a limit: no answer came for 50.0 ms",
            "1.0, 50.0, 900.0",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        judge("nowhere", bound, &[]).expect_err("nothing was moved");
    }

    #[test]
    fn a_wrong_byte_is_found_and_said_whose_it_is() {
        let written =
            |block, version| stamp(block, version).repeat(BLOCK_BYTES as usize / STAMP_BYTES);
        is_write(7, 3, &written(7, 3)).expect("right");
        let text = |found: &[u8]| is_write(7, 3, found).expect_err("wrong").to_string();
        let older = text(&written(7, 2));
        for word in ["block 7", "number 3", "byte 0", "write number 2 of block 7"] {
            assert!(older.contains(word), "{word} in {older}");
        }
        assert!(text(&written(8, 3)).contains("write number 3 of block 8"));
        assert!(text(&[0; BLOCK_BYTES as usize]).contains("write number 0 of block 0"));
        // Half of it, and one bit.
        let mut torn = written(7, 3);
        torn[2048..].copy_from_slice(&written(7, 2)[2048..]);
        assert!(text(&torn).contains("byte 2048"));
        let mut flipped = written(7, 3);
        flipped[4095] ^= 1;
        assert!(text(&flipped).contains("byte 4080"));
    }
}
